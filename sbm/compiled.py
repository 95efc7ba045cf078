"""Compiled kernels without the compiler: machine code from the disk, linked in a millisecond.

A kernel is a function under a ``kernels/`` folder that numba compiles: arrays and numbers in,
arrays changed in place, nothing or whole numbers out. Importing numba and loading a kernel from
its cache takes half a second and 90 MB in every process, more than a small training. So machine
code is kept as one object file for each kernel and combination of argument types; llvmlite links
it and ctypes calls it, without the interpreter's lock. numba is imported only to compile::

    rows = load("sbm.store.kernels.rows")
    used = rows.encode_numbers(lengths, symbols, bits)  # as if rows were the module

Kernels allocate nothing and raise nothing: scratch is an argument, trouble is a number returned.
Machine code is named after the text of its kernel's file and of the kernel files that this one
imports, so it is compiled again when any of them changes. It is made for the processor at hand. A
wheel may bring code for a more general processor (``sbm/native``, see ``hatch_build.py``); if this
one can run it, nothing is compiled at all. Files that another user could have written are ignored.
"""

import atexit
import contextlib
import ctypes
import fcntl
import functools
import hashlib
import importlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numpy as np

from sbm.errors import SbmError

__all__ = [
    "COMPILE_HERE", "FOLDER", "NATIVE", "PROCESSOR", "Kernel", "KernelError", "fingerprint",
    "folder", "keep", "load", "places", "run_compiler", "unusable",
]  # fmt: skip

# Set in the environment of a process that may compile; others start a child for it, because
# compiling takes tens of megabytes that are never given back.
COMPILE_HERE = "SBM_COMPILE_HERE"
# Names the folder for machine code, instead of those that are looked for.
FOLDER = "SBM_CACHE_DIR"
# Names the processor to compile for, one of _FEATURES, instead of the one at hand.
PROCESSOR = "SBM_PROCESSOR"

_lock = threading.Lock()
_PACKAGE = Path(__file__).resolve().parent
# Machine code that a wheel brings, and what it was made with: two lines, processor and llvmlite.
NATIVE = _PACKAGE / "native"
_FEATURES = {
    "x86-64-v3": "avx avx2 bmi bmi2 cx16 f16c fma lzcnt movbe popcnt sahf sse3 sse4.1 sse4.2 ssse3",
    "generic": "",
}
_SCALARS = {
    "bool": ctypes.c_int64, "int64": ctypes.c_int64, "uint64": ctypes.c_uint64,
    "float64": ctypes.c_double,
}  # fmt: skip
# What numba's way of raising exceptions refers to. No kernel raises, so no call gets there.
_UNREACHED = (
    "numba_gil_ensure", "numba_gil_release", "numba_unpickle", "numba_do_raise",
    "numba_runtime_build_excinfo_struct", "NRT_Free", "NRT_MemInfo_call_dtor",
)  # fmt: skip

# Settings of numba that change nothing in the code it makes of a kernel.
_SAME_CODE = ("NUMBA_CACHE_DIR=", "NUMBA_NUM_THREADS=", "NUMBA_THREADING_LAYER=")

# What a file imports, to the end of the line or of the parenthesis. Parsing it takes 5 ms.
_IMPORT = re.compile(rb"^[ \t]*(?:from|import) [^\n(]*(?:\([^)]*\))?", re.MULTILINE)
_WORD = re.compile(rb"\w+")

Kinds = tuple[str, ...]


class KernelError(SbmError):
    """A kernel that cannot be compiled or linked; a mistake of ours or of the set-up."""


@functools.cache
def _array_kind(dtype: np.dtype[Any], ndim: int) -> str:
    return f"{dtype.name}[{ndim}]"  # numpy puts the name together anew each time


def _kind(value: Any) -> str:
    """Name the type of an argument: ``int32[1]`` for an array, ``float64``, ``none``, ..."""
    if isinstance(value, np.ndarray):
        return _array_kind(value.dtype, value.ndim)
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


def _address(array: np.ndarray[Any, Any]) -> int:
    """Where an array lies; numpy's own ways take three to seven times as long."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))
    except (TypeError, ValueError):  # it is not to be written, or empty
        return array.ctypes.data


def _flatten(values: Sequence[Any]) -> list[Any]:
    """Arguments as C sees them: an array is its address and its shape, None is nothing."""
    flat: list[Any] = []
    for value in values:
        if isinstance(value, np.ndarray):
            if not value.flags.c_contiguous:
                raise TypeError("a kernel takes contiguous arrays only")
            flat.append(_address(value))
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
        results = (ctypes.c_int64 * n_results)()
        function(*_flatten(values), results)
        if n_results == 0:
            return None
        return results[0] if n_results == 1 else tuple(results)

    def _link(self, kinds: Kinds) -> tuple[Callable[..., None], int]:
        with _lock:  # threads meet here on their first calls
            if kinds not in self._linked:
                code = _read(_file_name(self.module, self.name, kinds))
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


def _candidates() -> list[Path]:
    """Where machine code may be kept: beside the source, or in the user's cache folder."""
    if os.environ.get(FOLDER):
        return [Path(os.environ[FOLDER]).absolute()]
    caches = [os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")]
    user = [Path(cache, "sbm") for cache in caches if os.path.isabs(cache)]
    return [_PACKAGE / "__pycache__", *user[:1]]


@functools.cache
def folder() -> Path:
    """Where machine code is kept; where there is no place for it, a folder that goes with us."""
    for place in _candidates():
        with contextlib.suppress(OSError):
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            place.mkdir(mode=0o755, exist_ok=True)
        if _is_safe(place) and os.access(place, os.W_OK | os.X_OK):
            return place
    try:
        passing = Path(tempfile.mkdtemp(prefix="sbm-"))
    except OSError:
        return _candidates()[-1]  # what cannot be written is compiled again
    atexit.register(shutil.rmtree, passing, ignore_errors=True)
    return passing


def unusable() -> list[Path]:
    """Return the places that were passed over, where the next process finds nothing of ours."""
    return [] if folder() in _candidates() else _candidates()


def places() -> list[Path]:
    """Return where machine code is looked for, the folder that is written to first."""
    wanted = dict.fromkeys([folder(), *_candidates(), NATIVE])
    return [place for place in wanted if _is_safe(place)]


def _is_safe(file: Path | int) -> bool:
    """Whether a file or folder is there, and what is in it is ours."""
    try:
        return _is_ours(os.stat(file), _PACKAGE.stat())
    except OSError:
        return False


def _is_ours(status: os.stat_result, package: os.stat_result) -> bool:
    """Whether nobody can write there but us, root, and who could write our source as well."""
    others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) & ~package.st_mode
    if status.st_gid != package.st_gid:
        others |= status.st_mode & stat.S_IWGRP
    return status.st_uid in (os.geteuid(), 0, package.st_uid) and not others


@functools.cache
def _target() -> tuple[str, str, str]:
    """Return what machine code is made for and with: processor, its features, llvmlite."""
    host = llvm.get_host_cpu_features()
    name, version = os.environ.get(PROCESSOR), llvmlite.__version__
    if name is None:
        with contextlib.suppress(OSError, ValueError):
            name, version = (NATIVE / "made-for").read_text("ascii").split("\n")[:2]
    elif name not in _FEATURES:
        raise KernelError(f"{PROCESSOR} is {name}; choose one of {', '.join(_FEATURES)}")
    if name in _FEATURES and all(map(host.get, _FEATURES[name].split())):
        return name, ",".join(f"+{feature}" for feature in _FEATURES[name].split()), version
    return llvm.get_host_cpu_name(), host.flatten(), llvmlite.__version__


@functools.cache
def _machine() -> str:
    """Return the platform and the processor that machine code is made for."""
    name, features, _ = _target()
    return f"{llvm.get_process_triple()} {name} {features}"


def _source(module: str) -> Path:
    return _PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")


def fingerprint(*sources: Path) -> str:
    """Name a state of sources, compiler, its settings and the processor, in 16 letters."""
    numba = sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith("NUMBA_"))
    numba = [setting for setting in numba if not setting.startswith(_SAME_CODE)]
    state = f"{_target()[2]} {_machine()} {numba!a}"
    digest = hashlib.blake2b(state.encode(), digest_size=8)
    for source in (Path(__file__), *sources):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _sources(module: str) -> list[Path]:
    """The file of a module and all kernels it imports, by way of others too."""
    found = [_source(module)]
    kernels = {path.stem: path for path in _PACKAGE.glob("*/kernels/[a-z]*.py")}
    for source in found:  # it grows
        beside = {path.stem: path for path in source.parent.glob("[a-z]*.py")}
        for name in _imports(source.read_bytes()):
            helper = beside.get(name) or kernels.get(name)
            if helper is not None and helper not in found:
                found.append(helper)
    return found


@functools.cache
def _imports(source: bytes) -> list[str]:
    """Words of a file's imports, those of other folders too: a file too many does no harm."""
    words = {word for line in _IMPORT.findall(source) for word in _WORD.findall(line)}
    return sorted(word.decode() for word in words)


def _file_name(module: str, name: str, kinds: Kinds) -> str:
    """Of the object file; what stands before the last dot stays when the source changes."""
    what = f"{zlib.crc32(' '.join([_machine(), *kinds]).encode()):08x}"
    short = module.removeprefix("sbm.").replace(".kernels.", "-")
    return f"{short}-{name}.{what}.{fingerprint(*_sources(module))}.sbk"


def _pack(name: str, code: bytes) -> bytes:
    """Put a checksum in front, of the name too: a file under another name is none."""
    return zlib.crc32(code, zlib.crc32(name.encode())).to_bytes(4, "little") + code


def _unpack(name: str, data: bytes) -> bytes | None:
    return data[4:] if data == _pack(name, data[4:]) else None


def _read(name: str) -> bytes | None:
    """Content of an object file; None where there is none that is whole, and not by others."""
    for place in places():
        with contextlib.suppress(OSError), open(place / name, "rb") as file:
            code = _unpack(name, file.read()) if _is_safe(file.fileno()) else None
            if code is not None:
                return code
    return None


def keep(name: str, data: bytes) -> None:
    """Write a file if the folder allows it, and drop those of earlier sources."""
    place = folder()
    partial = place / f"{name}.{os.getpid()}.{time.monotonic_ns()}"  # several may compile at once
    try:
        place.mkdir(parents=True, exist_ok=True)
        with open(partial, "xb", opener=_open_for_us) as file:
            file.write(data)
        partial.replace(place / name)
        for old in place.glob(f"{name.rsplit('.', 2)[0]}.*"):
            if old.name != name:
                old.unlink(missing_ok=True)
    except OSError:  # it is made again next time
        with contextlib.suppress(OSError):
            partial.unlink()


def _open_for_us(path: str, flags: int) -> int:
    return os.open(path, flags, 0o644)  # for others to read at most, whatever the umask


# ------------------------------------------------------------------------------- compiling


def _make(module: str, name: str, kinds: Kinds) -> bytes:
    """Compile a kernel, in a child unless this process may; return what an object file holds."""
    file = _file_name(module, name, kinds)
    if COMPILE_HERE in os.environ:
        with _one_at_a_time(file):
            code = _read(file)  # another process may have compiled it while this one waited
            if code is None:
                code = _compile(module, name, kinds)
                keep(file, _pack(file, code))
        return code
    problem, data = run_compiler(
        f"from sbm.compiled import print_code; print_code({module!r}, {name!r}, {kinds!r})"
    )
    found = _unpack(file, data) if not problem else None
    if found is None:
        reason = problem or "what the compiler printed is no machine code"
        raise KernelError(f"{module}.{name} cannot be compiled: {reason}")
    return found


@contextlib.contextmanager
def _one_at_a_time(name: str) -> Iterator[None]:
    """Let one process compile a kernel while others that need it wait."""
    lock = folder() / f"{name}.lock"
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # without locks each process compiles for itself
            file = held.enter_context(open(lock, "ab", opener=_open_for_us))
            fcntl.flock(file, fcntl.LOCK_EX)
            held.callback(lock.unlink, missing_ok=True)
        yield


def print_code(module: str, name: str, kinds: Kinds) -> None:
    """Compile and write the content of an object file to standard output, for the parent."""
    file = _file_name(module, name, kinds)
    sys.stdout.buffer.write(_pack(file, _make(module, name, kinds)))


def run_compiler(order: str) -> tuple[str, bytes]:
    """Run Python code in a child that may compile, and that finds the modules that we find.

    Returns
    -------
    problem : str
        Empty where it went well.
    output : bytes
    """
    paths = list(sys.path)
    with contextlib.suppress(OSError):  # the current folder may be gone
        paths = [os.path.abspath(path) for path in sys.path]
    code = f"import sys; sys.path[:] = {paths!a}; {order}"
    environment = {**os.environ, COMPILE_HERE: "1", FOLDER: str(folder())}
    isolated = ["-I"] if sys.flags.isolated else []
    try:
        child = subprocess.run(
            # Without -P it would import what lies in the current folder, which may be gone, too.
            [sys.executable, "-P", *isolated, "-c", code], env=environment, check=False, cwd="/",
            # Ctrl-C is for us to answer: we stop the child, if we stop.
            stdin=subprocess.DEVNULL, capture_output=True, process_group=0,
        )  # fmt: skip
    except OSError as error:
        return str(error), b""
    last = child.stderr.decode("utf-8", "replace").strip().rsplit("\n", 1)[-1]
    return (last or f"exit code {child.returncode}") if child.returncode else "", child.stdout


def _compile(module: str, name: str, kinds: Kinds) -> bytes:
    """Compile a kernel behind a C function and return the content of an object file.

    Raises
    ------
    KernelError
        It allocates, or returns something else than whole numbers.
    """
    numba: Any = importlib.import_module("numba")
    if _target()[0] in _FEATURES:  # by itself numba takes the processor at hand
        numba.config.CPU_NAME, numba.config.CPU_FEATURES, _ = _target()
    types = numba.types
    function = getattr(importlib.import_module(module), name)
    _spare_wrappers(module)
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


def _spare_wrappers(module: str) -> None:
    """Have numba make of kernels nothing for others to call them by.

    It makes two more functions of each otherwise, and compiling takes 1.4 to 1.7 times as long.
    """
    is_jitted = importlib.import_module("numba.extending").is_jitted
    folder = module.rpartition(".")[0]
    ours = [
        known for name, known in sys.modules.items()
        if name.startswith((f"{folder}.", "sbm.")) and ".kernels." in name
    ]  # fmt: skip
    for value in [value for known in ours for value in vars(known).values()]:
        if is_jitted(value):
            value.targetoptions.update(no_cpython_wrapper=True, no_cfunc_wrapper=True)


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
    cpu, features, _ = _target()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=cpu, features=features, opt=3, reloc="pic"
    )
    head = json.dumps({"symbol": symbol, "results": n_results}).encode()
    return head + b"\n" + bytes(machine.emit_object(module))
