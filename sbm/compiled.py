"""Compiled kernels without numba at run time: machine code is read from disk and linked.

A kernel is a numba function under a ``kernels/`` folder. It takes arrays and numbers, changes
arrays in place and returns nothing or whole numbers. Importing numba and loading a kernel from its
cache takes 0.5 s and 90 MB per process, more than a small training. So machine code is stored as
one object file per kernel and combination of argument types. llvmlite links it and ctypes calls
it, without the interpreter's lock. numba is imported only to compile::

    rows = load("sbm.store.kernels.rows")
    used = rows.encode_numbers(lengths, symbols, bits)  # as if rows were the module

Kernels do not allocate or raise: scratch arrays are arguments, errors are returned as numbers. The
name of an object file includes a hash of the kernel's source and of the kernel files it imports, so
kernels are recompiled if any of them changes. Code is compiled for the current processor. A wheel
may contain code for a more general processor (``sbm/native``, see ``hatch_build.py``); if the
current one can run it, nothing is compiled. Files that another user could have written are ignored.
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
import signal
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
from sbm.resident import release_llvm

# Set in the environment of a process that may compile. Others start a child process to compile,
# because compiling takes tens of megabytes that are never freed.
COMPILE_HERE = "SBM_COMPILE_HERE"
# Names the folder for machine code, instead of the default ones.
FOLDER = "SBM_CACHE_DIR"
# Names the processor to compile for, one of _FEATURES, instead of the current one.
PROCESSOR = "SBM_PROCESSOR"

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_lock = threading.Lock()
_PACKAGE = Path(__file__).resolve().parent
# Machine code in a wheel, with a file of two lines: processor and llvmlite version.
NATIVE = _PACKAGE / "native"
_FEATURES = {
    "x86-64-v3": "avx avx2 bmi bmi2 cx16 f16c fma lzcnt movbe popcnt sahf sse3 sse4.1 sse4.2 ssse3",
    "generic": "",
}
_SCALARS = {
    "bool": ctypes.c_int64, "int64": ctypes.c_int64, "uint64": ctypes.c_uint64,
    "float64": ctypes.c_double,
}  # fmt: skip
# Symbols that numba uses to raise exceptions. No kernel raises, so they are never called.
_UNREACHED = (
    "numba_gil_ensure", "numba_gil_release", "numba_unpickle", "numba_do_raise",
    "numba_runtime_build_excinfo_struct", "NRT_Free", "NRT_MemInfo_call_dtor",
)  # fmt: skip

# Settings of numba that do not affect the generated code.
_SAME_CODE = ("NUMBA_CACHE_DIR=", "NUMBA_NUM_THREADS=", "NUMBA_THREADING_LAYER=")

# An import statement, up to the end of the line or parenthesis. (Parsing with ast takes 5 ms.)
_IMPORT = re.compile(rb"^[ \t]*(?:from|import) [^\n(]*(?:\([^)]*\))?", re.MULTILINE)
_WORD = re.compile(rb"\w+")

Kinds = tuple[str, ...]


class KernelError(SbmError):
    """A kernel that cannot be compiled or linked: a bug or a broken installation."""


@functools.cache
def _array_kind(dtype: np.dtype[Any], ndim: int) -> str:
    return f"{dtype.name}[{ndim}]"  # cached, as numpy builds the name each time


def _kind(value: Any) -> str:
    """Return the name of an argument's type: ``int32[1]`` for an array, ``float64``, ``none``."""
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
    raise TypeError(f"kernel arguments are arrays, numbers or None, not {type(value).__name__}")


def _address(array: np.ndarray[Any, Any]) -> int:
    """Return the address of an array; numpy's own ways take three to seven times as long."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))
    except (TypeError, ValueError):  # read-only or empty
        return array.ctypes.data


def _flatten(values: Sequence[Any]) -> list[Any]:
    """Return C arguments: an array becomes its address and shape, None is omitted."""
    flat: list[Any] = []
    for value in values:
        if isinstance(value, np.ndarray):
            if not value.flags.c_contiguous:
                raise TypeError("kernel arguments must be contiguous arrays")
            flat.append(_address(value))
            flat += value.shape
        elif value is not None:
            flat.append(float(value) if isinstance(value, float | np.floating) else int(value))
    return flat


def _signature(kinds: Kinds) -> list[Any]:
    """Return the C types of `_flatten`'s result, followed by the address of the results."""
    flat: list[Any] = []
    for kind in kinds:
        if kind.endswith("]"):
            flat += [ctypes.c_void_p, *[ctypes.c_int64] * int(kind[-2])]
        elif kind != "none":
            flat.append(_SCALARS[kind])
    return [*flat, ctypes.c_void_p]


# -------------------------------------------------------------------------------- calling


class Kernel:
    """A compiled function, loaded or compiled for each combination of argument types.

    Parameters
    ----------
    module : str
        Module in a ``kernels`` folder, such as ``sbm.store.kernels.rows``.
    name : str
        Name of a numba function in that module.
    """

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name
        self._linked: dict[Kinds, tuple[Callable[..., None], int]] = {}

    def __call__(self, *values: Any) -> Any:
        """Call the kernel; return None, an int or a tuple of ints.

        Raises
        ------
        KernelError
            If the kernel cannot be compiled or linked.
        TypeError
            If an argument is not a contiguous array, a number or None.
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
        with _lock:  # several threads may make the first call
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
    """Return an object with the kernels of a module as attributes."""
    return _Kernels(module)


@functools.cache
def _linker() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    linker = llvm.create_lljit_compiler()
    release_llvm()
    return linker


_keep: list[Any] = []  # references that keep linked code alive


def _link(code: bytes, kinds: Kinds) -> tuple[Callable[..., None], int]:
    """Link the content of an object file; return the function and its number of results."""
    head, _, machine_code = code.partition(b"\n")
    facts = json.loads(head)
    abort = ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value
    library = llvm.JITLibraryBuilder().add_object_img(machine_code).add_current_process()
    for name in _UNREACHED:
        library.import_symbol(name, abort)
    linked = library.export_symbol(facts["symbol"]).link(_linker(), f"kernel {len(_keep)}")
    _keep.append(linked)
    release_llvm()
    prototype = ctypes.CFUNCTYPE(None, *_signature(kinds))
    return prototype(linked[facts["symbol"]]), int(facts["results"])


# -------------------------------------------------------------------------------- storing


def _candidates() -> list[Path]:
    """Return possible folders for machine code: next to the source, or the user's cache."""
    if os.environ.get(FOLDER):
        return [Path(os.environ[FOLDER]).absolute()]
    caches = [os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")]
    user = [Path(cache, "sbm") for cache in caches if os.path.isabs(cache)]
    return [_PACKAGE / "__pycache__", *user[:1]]


@functools.cache
def folder() -> Path:
    """Return the folder for machine code; a temporary one if no other is usable."""
    for place in _candidates():
        with contextlib.suppress(OSError):
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            place.mkdir(mode=0o755, exist_ok=True)
        if _is_safe(place) and os.access(place, os.W_OK | os.X_OK):
            return place
    try:
        passing = Path(tempfile.mkdtemp(prefix="sbm-"))
    except OSError:
        return _candidates()[-1]  # not writable: each process compiles again
    atexit.register(shutil.rmtree, passing, ignore_errors=True)
    return passing


def unusable() -> list[Path]:
    """Return the folders that cannot be used, if machine code is kept only temporarily."""
    return [] if folder() in _candidates() else _candidates()


def places() -> list[Path]:
    """Return the folders searched for machine code, the one written to first."""
    wanted = dict.fromkeys([folder(), *_candidates(), NATIVE])
    return [place for place in wanted if _is_safe(place)]


def _is_safe(file: Path | int) -> bool:
    """Whether a file or folder exists and no untrusted user can write to it."""
    try:
        return _is_ours(os.stat(file), _PACKAGE.stat())
    except OSError:
        return False


def _is_ours(status: os.stat_result, package: os.stat_result) -> bool:
    """Whether only we, root, and users who can write our source can write to it."""
    others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) & ~package.st_mode
    if status.st_gid != package.st_gid:
        others |= status.st_mode & stat.S_IWGRP
    return status.st_uid in (os.geteuid(), 0, package.st_uid) and not others


@functools.cache
def _target() -> tuple[str, str, str]:
    """Return the processor, its features and the llvmlite version that code is compiled for."""
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
    """Return the platform and the processor that code is compiled for."""
    name, features, _ = _target()
    return f"{llvm.get_process_triple()} {name} {features}"


def _source(module: str) -> Path:
    return _PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")


def fingerprint(*sources: Path) -> str:
    """Return a hash (16 hex digits) of sources, compiler, compiler settings and processor."""
    numba = sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith("NUMBA_"))
    numba = [setting for setting in numba if not setting.startswith(_SAME_CODE)]
    state = f"{_target()[2]} {_machine()} {numba!a}"
    digest = hashlib.blake2b(state.encode(), digest_size=8)
    for source in (Path(__file__), *sources):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _sources(module: str) -> list[Path]:
    """Return the file of a module and of all kernels it imports, directly or indirectly."""
    found = [_source(module)]
    kernels = {path.stem: path for path in _PACKAGE.glob("*/kernels/[a-z]*.py")}
    for source in found:  # the list grows during the loop
        beside = {path.stem: path for path in source.parent.glob("[a-z]*.py")}
        for name in _imports(source.read_bytes()):
            helper = beside.get(name) or kernels.get(name)
            if helper is not None and helper not in found:
                found.append(helper)
    return found


@functools.cache
def _imports(source: bytes) -> list[str]:
    """Return all words in a file's imports; too many are harmless."""
    words = {word for line in _IMPORT.findall(source) for word in _WORD.findall(line)}
    return sorted(word.decode() for word in words)


def _file_name(module: str, name: str, kinds: Kinds) -> str:
    """Return the name of an object file; the part before the fingerprint ignores the source."""
    what = f"{zlib.crc32(' '.join([_machine(), *kinds]).encode()):08x}"
    short = module.removeprefix("sbm.").replace(".kernels.", "-")
    return f"{short}-{name}.{what}.{fingerprint(*_sources(module))}.sbk"


def _pack(name: str, code: bytes) -> bytes:
    """Prepend a checksum of the code and the name, which detects renamed files."""
    return zlib.crc32(code, zlib.crc32(name.encode())).to_bytes(4, "little") + code


def _unpack(name: str, data: bytes) -> bytes | None:
    return data[4:] if data == _pack(name, data[4:]) else None


def _read(name: str) -> bytes | None:
    """Return the content of an object file, or None if no intact and safe one exists."""
    for place in places():
        with contextlib.suppress(OSError), open(place / name, "rb") as file:
            code = _unpack(name, file.read()) if _is_safe(file.fileno()) else None
            if code is not None:
                return code
    return None


def keep(name: str, data: bytes) -> None:
    """Write an object file if possible, and remove those of earlier sources."""
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
    except OSError:  # it is compiled again next time
        with contextlib.suppress(OSError):
            partial.unlink()


def _open_for_us(path: str, flags: int) -> int:
    return os.open(path, flags, 0o644)  # never writable by others, for any umask


# ------------------------------------------------------------------------------- compiling


def _make(module: str, name: str, kinds: Kinds) -> bytes:
    """Compile a kernel, in a child process if needed; return the object file's content."""
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
        reason = problem or "the compiler's output is not machine code"
        raise KernelError(f"{module}.{name} cannot be compiled: {reason}")
    return found


@contextlib.contextmanager
def _one_at_a_time(name: str) -> Iterator[None]:
    """Let one process compile a kernel while others wait for it."""
    lock = folder() / f"{name}.lock"
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # without locks each process compiles for itself
            file = held.enter_context(open(lock, "ab", opener=_open_for_us))
            fcntl.flock(file, fcntl.LOCK_EX)
            held.callback(lock.unlink, missing_ok=True)
        yield


def print_code(module: str, name: str, kinds: Kinds) -> None:
    """Compile a kernel and write the object file to standard output, for the parent process."""
    file = _file_name(module, name, kinds)
    sys.stdout.buffer.write(_pack(file, _make(module, name, kinds)))


def run_compiler(order: str) -> tuple[str, bytes]:
    """Run Python code in a child process that may compile, with the same module search path.

    Returns
    -------
    problem : str
        Error message; empty on success.
    output : bytes
    """
    paths = list(sys.path)
    with contextlib.suppress(OSError):  # the current folder may be gone
        paths = [os.path.abspath(path) for path in sys.path]
    code = (
        f"import sys; sys.path[:] = {paths!a}; from sbm.compiled import end_with; "
        f"end_with({os.getpid()}); {order}"
    )
    environment = {**os.environ, COMPILE_HERE: "1", FOLDER: str(folder())}
    isolated = ["-I"] if sys.flags.isolated else []
    with _stops_at_once():
        try:
            child = subprocess.Popen(
                # -P prevents imports from the current folder, which may not even exist.
                [sys.executable, "-P", *isolated, "-c", code], env=environment, cwd="/",
                # Ctrl-C is not sent to the child: the parent stops it.
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                process_group=0,
            )  # fmt: skip
        except OSError as error:
            return str(error), b""
        _compilers.add(child)
        try:
            output, errors = child.communicate()
        except BaseException:
            stop_compilers()
            raise
        finally:
            _compilers.discard(child)
    last = errors.decode("utf-8", "replace").strip().rsplit("\n", 1)[-1]
    return (last or f"exit code {child.returncode}") if child.returncode else "", output


_compilers: set[subprocess.Popen[bytes]] = set()


def stop_compilers() -> None:
    """Kill the compilers that this process started, with the processes they started."""
    for child in list(_compilers):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


@contextlib.contextmanager
def _stops_at_once() -> Iterator[None]:
    """Let signals that have a handler raise `KeyboardInterrupt`, in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _STOPS}
    before = {number: handler for number, handler in before.items() if callable(handler)}
    for number in before:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_with(parent: int) -> None:
    """Exit soon after the parent process ends, even if it was killed."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _compile(module: str, name: str, kinds: Kinds) -> bytes:
    """Compile a kernel with a C interface and return the content of an object file.

    Raises
    ------
    KernelError
        If the kernel allocates or returns anything but whole numbers.
    """
    numba: Any = importlib.import_module("numba")
    if _target()[0] in _FEATURES:  # the default is the current processor
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
    exec(source, names)  # numba does not compile functions with *args
    compiled = numba.cfunc(types.void(*c_types, types.CPointer(types.int64)))(names["call"])
    return _emit(compiled.inspect_llvm(), compiled.native_name, n_results)


def _spare_wrappers(module: str) -> None:
    """Disable numba's wrappers, two per kernel; compiling takes 1.4 to 1.7 times as long with them.

    The wrappers are only needed to call kernels from Python or C through numba. A process that has
    compiled must not do that: numba would call the missing wrapper and crash.
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
    """Compile a kernel and return the number of whole numbers it returns."""
    types: Any = importlib.import_module("numba.types")
    arguments = tuple(map(_numba_type, kinds))
    function.compile(arguments)
    result = function.overloads[arguments].signature.return_type
    if result == types.none:
        return 0
    members = tuple(result) if isinstance(result, types.BaseTuple) else (result,)
    if not all(isinstance(m, types.Integer | types.Boolean) for m in members):
        raise KernelError(f"{function.__name__} returns {result}; expected whole numbers")
    return len(members)


def _emit(ir: str, symbol: str, n_results: int) -> bytes:
    """Compile LLVM code to the content of an object file."""
    _linker()
    module = llvm.parse_assembly(ir)
    for function in module.functions:
        if function.is_declaration and function.name.startswith("NRT_MemInfo_alloc"):
            raise KernelError(f"{symbol} allocates memory; pass scratch arrays as arguments")
    cpu, features, _ = _target()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=cpu, features=features, opt=3, reloc="pic"
    )
    head = json.dumps({"symbol": symbol, "results": n_results}).encode()
    return head + b"\n" + bytes(machine.emit_object(module))
