"""Compile in child processes, because compiling takes memory that is never freed."""

import contextlib
import fcntl
import importlib
import importlib.util
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import TypeVar

from sbm.compiled import cache, processor
from sbm.compiled.calls import KernelError
from sbm.compiled.clock import stopped_clock
from sbm.compiled.declared import Specialization
from sbm.compiled.linker import link
from sbm.compiled.processor import Kinds

__all__ = [
    "compile_all",
    "end_with",
    "make",
    "make_library",
    "stop_compilers",
]

Result = TypeVar("Result")
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def make(module: str, name: str, kinds: Kinds) -> tuple[Path | None, bytes]:
    """Compile a kernel, in a child process if needed; return its file, if any, and the library.

    Raises
    ------
    KernelError
        If it cannot be compiled.
    """
    if cache.COMPILE_HERE in os.environ:
        return _compile(module, name, kinds)
    problem = compile_all([(module, name, kinds)])
    stored = None
    if not problem:
        stored = cache.read(cache.file_name(processor.symbol_name(module, name, kinds)))
    if stored is None:
        reason = problem or f"its machine code cannot be kept in {cache.folder()}"
        raise KernelError(f"{module}.{name} cannot be compiled: {reason}")
    return stored


def _compile(module: str, name: str, kinds: Kinds) -> tuple[Path | None, bytes]:
    symbol = processor.symbol_name(module, name, kinds)
    file = cache.file_name(symbol)
    with _one_at_a_time(file):
        stored = cache.read(file)  # another process may have compiled it while this one waited
        if stored is None:
            compiler = importlib.import_module("sbm.compiled.compiler")
            code = compiler.code_of(symbol, *compiler.compile_object(module, name, kinds))
            cache.keep(file, cache.pack(file, code))
            stored = cache.read(file)
            return stored if stored is not None else (None, code)
    return stored


@contextlib.contextmanager
def _one_at_a_time(name: str) -> Iterator[None]:
    """Let one process compile a kernel while others wait for it."""
    lock = cache.folder() / f"{name}.lock"
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):  # without locks each process compiles for itself
            file = held.enter_context(open(lock, "ab", opener=cache.open_for_us))
            fcntl.flock(file, fcntl.LOCK_EX)
            held.callback(lock.unlink, missing_ok=True)
        yield


def compile_all(
    kernels: Sequence[Specialization],
    workers: int = 1,
    tell: Callable[[int], None] | None = None,
) -> str:
    """Compile kernels in a child process, which starts others if `workers` is above 1.

    `tell` receives the number of kernels compiled, after each of them.

    Returns
    -------
    str
        The error, or an empty string.

    Raises
    ------
    KernelError
        If numba is missing.
    """
    if importlib.util.find_spec("numba") is None:
        raise KernelError(
            "there is no compiled code for this processor, and numba, which compiles it, is not "
            "installed: pip install 'sbm-linear[compile]'"
        )
    order = f"from sbm.compiled.child import work; work({workers})"
    return run_compiler(order, json.dumps(kernels).encode(), tell)


def work(workers: int) -> None:
    """Compile the kernels that the parent process writes, and print a letter for each."""
    kernels = [(module, name, tuple(kinds)) for module, name, kinds in json.load(sys.stdin)]
    for _ in _spread(_compile_group, _groups(kernels), workers):
        pass
    cache.delete_old()


def make_library(kernels: Sequence[Specialization], workers: int) -> bytes:
    """Compile kernels in this process and others; return one library with all of them."""
    objects: dict[str, tuple[str, bytes]] = {}
    for made in _spread(_objects_of_group, _groups(kernels), workers):
        objects |= made
    return link(dict(sorted(objects.items())))


def _spread(
    function: Callable[[list[Specialization]], Result],
    groups: Sequence[list[Specialization]],
    workers: int,
) -> Iterator[Result]:
    """Call a function that compiles for each group, in other processes if `workers` is above 1."""
    importlib.import_module("sbm.compiled.compiler")  # before the fork
    if workers > 1 and len(groups) > 1:
        fork = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(workers, fork, end_with, (os.getpid(),)) as pool:
            for done in as_completed([pool.submit(function, group) for group in groups]):
                yield done.result()
    else:
        yield from map(function, groups)


def _groups(kernels: Sequence[Specialization]) -> list[list[Specialization]]:
    """Return the variants of each kernel, which share functions; what takes longest comes first."""
    groups: dict[tuple[str, str], list[Specialization]] = {}
    for module, name, kinds in kernels:
        groups.setdefault((module, name), []).append((module, name, kinds))
    lengths = {module: processor.source_of(module).stat().st_size for module, _, _ in kernels}
    return sorted(groups.values(), key=lambda group: -len(group) * lengths[group[0][0]])


def _compile_group(kernels: Sequence[Specialization]) -> None:
    for kernel in kernels:
        _compile(*kernel)
        os.write(1, b".")


def _objects_of_group(kernels: Sequence[Specialization]) -> dict[str, tuple[str, bytes]]:
    compiler = importlib.import_module("sbm.compiled.compiler")
    return {processor.symbol_name(*each): compiler.compile_object(*each) for each in kernels}


def run_compiler(order: str, given: bytes = b"", tell: Callable[[int], None] | None = None) -> str:
    """Run Python code in a child process that may compile, with the same module search path.

    `given` is its standard input. `tell` receives the number of bytes that it has printed.

    Returns
    -------
    str
        Error message; empty on success.
    """
    paths = list(sys.path)
    with contextlib.suppress(OSError):  # the current folder may be gone
        paths = [os.path.abspath(path) for path in sys.path]
    code = (
        f"import sys; sys.path[:] = {paths!a}; from sbm.compiled.child import end_with; "
        f"end_with({os.getpid()}); {order}"
    )
    environment = {**os.environ, cache.COMPILE_HERE: "1", cache.FOLDER: str(cache.folder())}
    isolated = ["-I"] if sys.flags.isolated else []
    with stops_at_once(), stopped_clock():
        try:
            child = subprocess.Popen(
                # -P prevents imports from the current folder, which may not even exist.
                [sys.executable, "-P", *isolated, "-c", code],
                env=environment,
                cwd="/",
                # Ctrl-C is not sent to the child: the parent stops it.
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,
                bufsize=0,
            )
        except OSError as error:
            return str(error)
        _compilers.add(child)
        try:
            errors = _talk(child, given, tell)
        except BaseException:
            stop_compilers()
            raise
        finally:
            _compilers.discard(child)
    last = errors.decode("utf-8", "replace").strip().rsplit("\n", 1)[-1]
    return (last or f"exit code {child.returncode}") if child.returncode else ""


def _talk(
    child: subprocess.Popen[bytes], given: bytes, tell: Callable[[int], None] | None
) -> bytes:
    """Write a child's input and read its output until it ends; return its errors."""
    stdin, stdout, stderr = child.stdin, child.stdout, child.stderr
    assert stdin is not None
    assert stdout is not None
    assert stderr is not None
    errors: list[bytes] = []
    reader = threading.Thread(target=lambda: errors.append(stderr.read()), daemon=True)
    reader.start()
    with contextlib.suppress(BrokenPipeError):
        stdin.write(given)
    stdin.close()
    printed = 0
    while piece := stdout.read(64):
        printed += len(piece)
        if tell is not None:
            tell(printed)
    child.wait()
    reader.join()
    stdout.close()
    stderr.close()
    return errors[0]


_compilers: set[subprocess.Popen[bytes]] = set()


def stop_compilers() -> None:
    """Kill the compilers that this process started, with the processes they started."""
    for child in list(_compilers):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


@contextlib.contextmanager
def stops_at_once() -> Iterator[None]:
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
