"""Compiled kernels without the compiler: machine code from the disk, linked in a millisecond.

A kernel is a function under a ``kernels/`` folder that numba compiles: arrays and numbers in,
arrays changed in place, nothing or whole numbers out. Importing numba and loading a kernel from
its cache takes half a second and 90 MB in every process, more than a small training. So machine
code is kept as one object file for each kernel and combination of argument types; llvmlite links
it and ctypes calls it, without the interpreter's lock. numba is imported only to compile::

    planes = load("sbm.store.kernels.planes")
    used = planes.join(low_and_high, exceptions, out)  # as if planes were the module

Kernels allocate nothing and raise nothing: scratch is an argument, trouble is a number returned.
Machine code is named after the text of its kernel's file and of the files of the same folder that
this one imports, so that it is made again when any of them changes.
"""

import ast
import ctypes
import functools
import hashlib
import importlib
import json
import os
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numpy as np

from sbm.errors import SbmError

__all__ = ["COMPILE_HERE", "Kernel", "KernelError", "fingerprint", "folder", "load"]

# Set in the environment of a process that may compile; others start a child for it, because
# compiling takes tens of megabytes that are never given back.
COMPILE_HERE = "SBM_COMPILE_HERE"

_lock = threading.Lock()
_PACKAGE = Path(__file__).resolve().parent
_SCALARS = {
    "bool": ctypes.c_int64, "int64": ctypes.c_int64, "uint64": ctypes.c_uint64,
    "float64": ctypes.c_double,
}  # fmt: skip
# What numba's way of raising exceptions refers to. No kernel raises, so no call gets there.
_UNREACHED = (
    "numba_gil_ensure", "numba_gil_release", "numba_unpickle", "numba_do_raise",
    "numba_runtime_build_excinfo_struct", "NRT_Free", "NRT_MemInfo_call_dtor",
)  # fmt: skip

Kinds = tuple[str, ...]


class KernelError(SbmError):
    """A kernel that cannot be compiled or linked; a mistake of ours or of the set-up."""


def _kind(value: Any) -> str:
    """Name the type of an argument: ``int32[1]`` for an array, ``float64``, ``none``, ..."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype.name}[{value.ndim}]"
    if value is None:
        return "none"
    if isinstance(value, bool | np.bool_):
        return "bool"
    if isinstance(value, np.uint64):
        return "uint64"
    if isinstance(value, int | np.integer):
        return "int64"
    if isinstance(value, float | np.floating):
        return "float64"
    raise TypeError(f"a kernel takes arrays, numbers and None, not {type(value).__name__}")


def _flatten(values: Sequence[Any]) -> list[Any]:
    """Arguments as C sees them: an array is its address and its shape, None is nothing."""
    flat: list[Any] = []
    for value in values:
        if isinstance(value, np.ndarray):
            if not value.flags.c_contiguous:
                raise TypeError("a kernel takes contiguous arrays only")
            flat.append(value.__array_interface__["data"][0])
            flat += value.shape
        elif value is not None:
            flat.append(float(value) if isinstance(value, float | np.floating) else int(value))
    return flat


def _signature(kinds: Kinds) -> list[Any]:
    """The C types of `_flatten`, and of the address of the results behind them."""
    flat: list[Any] = []
    for kind in kinds:
        if kind.endswith("]"):
            flat += [ctypes.c_void_p, *[ctypes.c_int64] * int(kind[-2])]
        elif kind != "none":
            flat.append(_SCALARS[kind])
    return [*flat, ctypes.c_void_p]


# -------------------------------------------------------------------------------- calling


class Kernel:
    """A compiled function, found or made for each combination of argument types.

    Parameters
    ----------
    module : str
        Under ``sbm``, in a folder ``kernels``.
    name : str
        A function there that numba compiles.
    """

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name
        self._linked: dict[Kinds, tuple[Callable[..., None], int]] = {}

    def __call__(self, *values: Any) -> Any:
        """Call it: None, an int or a tuple of ints comes back.

        Raises
        ------
        KernelError
            It cannot be compiled or linked.
        TypeError
            An argument is no contiguous array, number or None.
        """
        kinds = tuple(map(_kind, values))
        linked = self._linked.get(kinds)
        if linked is None:
            linked = self._link(kinds)
        function, n_results = linked
        results = np.empty(max(1, n_results), np.int64)
        function(*_flatten(values), results.__array_interface__["data"][0])
        if n_results == 0:
            return None
        return int(results[0]) if n_results == 1 else tuple(results.tolist())

    def _link(self, kinds: Kinds) -> tuple[Callable[..., None], int]:
        with _lock:  # threads meet here on their first calls
            if kinds not in self._linked:
                code = _read(_path(self.module, self.name, kinds))
                if code is None:
                    code = _make(self.module, self.name, kinds)
                self._linked[kinds] = _link(code, kinds)
            return self._linked[kinds]


class _Kernels:
    """Stands for a module of kernels, without importing it."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Kernel:
        kernel = Kernel(self._module, name)
        setattr(self, name, kernel)
        return kernel


@functools.cache
def load(module: str) -> Any:
    """Return something that has the kernels of a module as its attributes."""
    return _Kernels(module)


@functools.cache
def _linker() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.create_lljit_compiler()


_keep: list[Any] = []  # what is linked is unlinked when this goes


def _link(code: bytes, kinds: Kinds) -> tuple[Callable[..., None], int]:
    """Turn the content of an object file into something to call, and the number of its results."""
    head, _, machine_code = code.partition(b"\n")
    facts = json.loads(head)
    abort = ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value
    library = llvm.JITLibraryBuilder().add_object_img(machine_code).add_current_process()
    for name in _UNREACHED:
        library.import_symbol(name, abort)
    linked = library.export_symbol(facts["symbol"]).link(_linker(), f"kernel {len(_keep)}")
    _keep.append(linked)
    prototype = ctypes.CFUNCTYPE(None, *_signature(kinds))
    return prototype(linked[facts["symbol"]]), int(facts["results"])


# -------------------------------------------------------------------------------- keeping


@functools.cache
def folder() -> Path:
    """Where machine code is kept: beside the source, else in the user's cache folder."""
    beside = _PACKAGE / "__pycache__"
    if os.access(beside if beside.is_dir() else _PACKAGE, os.W_OK):
        return beside
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sbm"


@functools.cache
def _machine() -> str:
    """The processor that machine code is made for."""
    features = llvm.get_host_cpu_features().flatten()
    return f"{llvm.get_process_triple()} {llvm.get_host_cpu_name()} {features}"


def _source(module: str) -> Path:
    return _PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")


def fingerprint(*sources: Path) -> str:
    """Name a state of sources, compiler and processor, in 16 letters."""
    digest = hashlib.blake2b(f"{llvmlite.__version__} {_machine()}".encode(), digest_size=8)
    for source in (Path(__file__), *sources):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _sources(module: str) -> list[Path]:
    """The file of a module and all it imports from its own folder, by way of others too."""
    found = [_source(module)]
    for source in found:  # it grows
        for name in _imports(source.read_bytes()):
            helper = source.with_name(f"{name}.py")
            if helper not in found and helper.is_file():
                found.append(helper)
    return found


@functools.cache
def _imports(source: bytes) -> list[str]:
    """Words of a file's imports, those of other folders too: a file too many does no harm."""
    words: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = (node.module or "") if isinstance(node, ast.ImportFrom) else ""
            for name in [module, *(alias.name for alias in node.names)]:
                words.update(name.split("."))
    return sorted(words - {""})


def _path(module: str, name: str, kinds: Kinds) -> Path:
    """Of the object file; what stands before the last dot stays when the source changes."""
    what = f"{zlib.crc32(' '.join([_machine(), *kinds]).encode()):08x}"
    short = module.removeprefix("sbm.").replace(".kernels.", "-")
    return folder() / f"{short}-{name}.{what}.{fingerprint(*_sources(module))}.sbk"


def _read(path: Path) -> bytes | None:
    """Content of an object file; None where there is none that is whole."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    return data[4:] if zlib.crc32(data[4:]).to_bytes(4, "little") == data[:4] else None


def _write(path: Path, code: bytes) -> None:
    """Keep machine code if the folder allows it, and drop what it replaces."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{path.name}.{os.getpid()}")  # several processes may compile
        partial.write_bytes(zlib.crc32(code).to_bytes(4, "little") + code)
        partial.replace(path)
        for old in path.parent.glob(f"{path.name.rsplit('.', 2)[0]}.*.sbk"):
            if old != path:
                old.unlink(missing_ok=True)
    except OSError:
        pass  # it is compiled again next time


# ------------------------------------------------------------------------------- compiling


def _make(module: str, name: str, kinds: Kinds) -> bytes:
    """Compile a kernel, in a child unless this process may; return what an object file holds."""
    if COMPILE_HERE in os.environ:
        code = _compile(module, name, kinds)
        _write(_path(module, name, kinds), code)
        return code
    order = f"from sbm.compiled import print_code; print_code({module!r}, {name!r}, {kinds!r})"
    child = subprocess.run(
        [sys.executable, "-c", order], env={**os.environ, COMPILE_HERE: "1"},
        capture_output=True, check=False,
    )  # fmt: skip
    if child.returncode != 0:
        last = child.stderr.decode("utf-8", "replace").strip().rsplit("\n", 1)[-1]
        raise KernelError(f"{module}.{name} cannot be compiled: {last}")
    return child.stdout


def print_code(module: str, name: str, kinds: Kinds) -> None:
    """Compile and write the content of an object file to standard output, for the parent."""
    sys.stdout.buffer.write(_make(module, name, kinds))


def _compile(module: str, name: str, kinds: Kinds) -> bytes:
    """Compile a kernel behind a C function and return the content of an object file.

    Raises
    ------
    KernelError
        It allocates, or returns something else than whole numbers.
    """
    numba: Any = importlib.import_module("numba")
    types = numba.types
    function = getattr(importlib.import_module(module), name)
    n_results = _count_results(function, kinds)
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
    call = f"kernel({', '.join(arguments)})"
    body = [call] if n_results == 0 else [f"r = {call}"]
    body += ["out[0] = r"] if n_results == 1 else [f"out[{k}] = r[{k}]" for k in range(n_results)]
    source = f"def call({', '.join([*parameters, 'out'])}):\n    " + "\n    ".join(body)
    names = {"carray": numba.carray, "kernel": function}
    exec(source, names)  # numba compiles no function with a variable number of arguments
    compiled = numba.cfunc(types.void(*c_types, types.CPointer(types.int64)))(names["call"])
    return _emit(compiled.inspect_llvm(), compiled.native_name, n_results)


def _numba_type(kind: str) -> Any:
    types: Any = importlib.import_module("numba.types")
    if kind.endswith("]"):
        return types.Array(_numba_type(kind[:-3]), int(kind[-2]), "C")
    return types.boolean if kind == "bool" else getattr(types, kind)


def _count_results(function: Any, kinds: Kinds) -> int:
    """Compile a kernel and return how many whole numbers it hands back."""
    types: Any = importlib.import_module("numba.types")
    arguments = tuple(map(_numba_type, kinds))
    function.compile(arguments)
    result = function.overloads[arguments].signature.return_type
    if result == types.none:
        return 0
    members = tuple(result) if isinstance(result, types.BaseTuple) else (result,)
    if not all(isinstance(m, types.Integer | types.Boolean) for m in members):
        raise KernelError(f"{function.__name__} returns {result}; whole numbers are expected")
    return len(members)


def _emit(ir: str, symbol: str, n_results: int) -> bytes:
    """Turn LLVM's intermediate code into what an object file holds."""
    _linker()
    module = llvm.parse_assembly(ir)
    for function in module.functions:
        if function.is_declaration and function.name.startswith("NRT_MemInfo_alloc"):
            raise KernelError(f"{symbol} allocates; give it its scratch as an argument")
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(),
        opt=3, reloc="pic",
    )  # fmt: skip
    head = json.dumps({"symbol": symbol, "results": n_results}).encode()
    return head + b"\n" + bytes(machine.emit_object(module))
