"""Compile a kernel: numba translates it to LLVM's language, LLVM to an object file.

Only processes that compile import this module, as it imports numba.
"""

import ctypes
import functools
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import llvmlite.binding as llvm
from numba import cfunc, config, types
from numba.core import codegen
from numba.core.compiler_lock import global_compiler_lock
from numba.extending import is_jitted

from sbm.compiled import processor
from sbm.compiled.calls import MOST_RESULTS, KernelError
from sbm.compiled.linker import NEVER_CALLED, link
from sbm.compiled.processor import Kinds

__all__ = ["compile_object", "linked_by_llvm"]

# The function of an object file that is called, by numba's rule for names.
_ENTRY = "call"


@functools.cache
def _target() -> tuple[str, str]:
    """Return the processor and its features that code is compiled for."""
    level = processor.level()
    if level is not None:
        return level, ",".join(f"+{feature}" for feature in processor.LEVELS[level])
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def compile_object(module: str, name: str, kinds: Kinds) -> tuple[str, bytes]:
    """Compile a kernel with a C interface.

    Returns
    -------
    function : str
        Name in the object file.
    code : bytes
        Content of an object file.

    Raises
    ------
    KernelError
        If the kernel allocates or returns anything but whole numbers.
    """
    if processor.level() is not None:  # the default is the current processor
        vars(config)["CPU_NAME"], vars(config)["CPU_FEATURES"] = _target()
    function = getattr(importlib.import_module(module), name)
    _spare_wrappers(module)
    arguments, parameters, c_types = [], [], []
    for k, kind in enumerate(kinds):
        if kind == "none":
            arguments.append("None")
        elif kind.endswith("]"):
            sizes = [f"n{k}_{axis}" for axis in range(int(kind[-2]))]
            arguments.append(f"carray(a{k}, ({', '.join(sizes)},))")
            parameters += [f"a{k}", *sizes]
            c_types += [types.CPointer(_numba_type(kind).dtype), *[types.int64] * len(sizes)]
        else:
            arguments.append(f"a{k} != 0" if kind == "bool" else f"a{k}")
            parameters.append(f"a{k}")
            c_types.append(types.int64 if kind == "bool" else _numba_type(kind))
    with _optimize_once(in_any_order=hasattr(sys.modules[module], "FAST")):
        n_results = _count_results(function, kinds)
        body = [f"r = kernel({', '.join(arguments)})"]
        if n_results == 1:
            body.append("out[0] = r")
        elif n_results > 1:
            body += [f"out[{k}] = r[{k}]" for k in range(n_results)]
        body.append(f"return {n_results}")
        source = f"def {_ENTRY}({', '.join([*parameters, 'out'])}):\n    " + "\n    ".join(body)
        names = {"carray": importlib.import_module("numba").carray, "kernel": function}
        exec(source, names)  # numba does not compile functions with *args
        signature = types.int64(*c_types, types.CPointer(types.int64))
        compiled = cfunc(signature)(names[_ENTRY])
        return compiled.native_name, _emit(compiled.inspect_llvm(), f"{module}.{name}")


def _spare_wrappers(module: str) -> None:
    """Disable numba's wrappers, two per kernel; compiling takes 1.4 to 1.7 times as long with them.

    The wrappers are only needed to call kernels from Python or C through numba. A process that has
    compiled must not do that: numba would call the missing wrapper and crash.
    """
    folder = module.rpartition(".")[0]
    ours = [
        known
        for name, known in sys.modules.items()
        if name.startswith((f"{folder}.", "sbm.")) and ".kernels." in name
    ]
    for value in [value for known in ours for value in vars(known).values()]:
        if is_jitted(value):
            value.targetoptions.update(no_cpython_wrapper=True, no_cfunc_wrapper=True)


@contextmanager
def _optimize_once(in_any_order: bool) -> Iterator[None]:
    """Make numba spend time only on the function that is kept, for a third less of it.

    Otherwise it makes machine code of each function that a kernel calls, although that is never
    run, and optimises each of them fully before it is optimised again within the kernel. The
    methods are numba's own, under its lock, and are put back: other functions are compiled as
    usual afterwards. Where sums may be taken in any order, functions are optimised fully, because
    the order depends on it.
    """
    optimize = codegen.CPUCodeLibrary._optimize_final_module

    def cheaply(library: Any) -> None:
        if in_any_order or library.name == _ENTRY:
            optimize(library)
            return
        made = library._codegen
        passes, builder = made._module_pass_manager(
            loop_vectorize=made._loopvect, slp_vectorize=False, opt=made._opt_level, cost="cheap"
        )
        passes.run(library._final_module, builder)

    def address(library: Any, name: str) -> int:
        library._ensure_finalized()
        return 0  # never called

    instead: dict[tuple[Any, str], Any] = {
        (codegen.CPUCodeLibrary, "_optimize_final_module"): cheaply,
        (codegen.JITCodeLibrary, "_finalize_specific"): lambda library: None,
        (codegen.JITCodeLibrary, "get_pointer_to_function"): address,
        (codegen.JITCPUCodegen, "set_env"): lambda made, name, environment: None,
        (codegen.JITCPUCodegen, "_add_module"): lambda made, module: None,
    }
    with global_compiler_lock:
        before = {place: place[0].__dict__.get(place[1]) for place in instead}
        for (owner, name), method in instead.items():
            setattr(owner, name, method)
        try:
            yield
        finally:
            for (owner, name), method in before.items():
                if method is None:
                    delattr(owner, name)
                else:
                    setattr(owner, name, method)


def _numba_type(kind: str) -> Any:
    if kind.endswith("]"):
        return types.Array(_numba_type(kind[:-3]), int(kind[-2]), "C")
    return types.boolean if kind == "bool" else getattr(types, kind)


def _count_results(function: Any, kinds: Kinds) -> int:
    """Compile a kernel and return the number of whole numbers it returns."""
    arguments = tuple(map(_numba_type, kinds))
    function.compile(arguments)
    result: Any = function.overloads[arguments].signature.return_type
    if result == types.none:
        return 0
    members: tuple[Any, ...] = tuple(result) if isinstance(result, types.BaseTuple) else (result,)  # type: ignore[arg-type]
    whole = all(isinstance(member, types.Integer | types.Boolean) for member in members)
    if not whole or len(members) > MOST_RESULTS:
        raise KernelError(
            f"{function.__name__} returns {result}; expected at most {MOST_RESULTS} whole numbers"
        )
    return len(members)


def _emit(ir: str, kernel: str) -> bytes:
    """Compile LLVM code to the content of an object file."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(ir)
    for function in module.functions:
        if function.is_declaration and function.name.startswith("NRT_MemInfo_alloc"):
            raise KernelError(f"{kernel} allocates memory; pass scratch arrays as arguments")
    name, features = _target()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=name,
        features=features,
        opt=3,
        reloc="pic",
        codemodel="small" if processor.has_linker() else "jitdefault",
    )
    return bytes(machine.emit_object(module))


# --------------------------------------------------------------- systems that `link` does not know


def code_of(symbol: str, function: str, code: bytes) -> bytes:
    """Return what is stored of a kernel: a library, or where `link` makes none, its object file."""
    if processor.has_linker():
        return link({symbol: (function, code)})
    return function.encode() + b"\n" + code


@functools.cache
def _linker() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_lljit_compiler()


_keep: list[Any] = []  # references that keep linked code alive


def linked_by_llvm(symbol: str, stored: bytes) -> int:
    """Return the address of the function in an object file."""
    function, _, code = stored.partition(b"\n")
    library = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
    abort = ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value
    for name in NEVER_CALLED:
        library.import_symbol(name, abort)
    linked = library.export_symbol(function.decode()).link(_linker(), symbol)
    _keep.append(linked)
    return int(linked[function.decode()])
