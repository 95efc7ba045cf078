"""Compile the kernels of a command once, in a child process.

Compiling takes tens of megabytes that a process never returns, so it must not happen in a process
with bounded memory. The first command of its kind starts a child that runs it on a few rows
(`sbm.programs.precompile`). The machine code is cached on disk, with a marker file next to it.
"""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import sbm
from sbm import compiled
from sbm.engine.clock import stopped_clock
from sbm.engine.machine import resident_bytes, system_limit, usable_threads
from sbm.engine.progress import Progress
from sbm.settings import Settings
from sbm.solver.problem import AnyProblem

__all__ = [
    "NEWTON", "RANKS", "SPARSE", "STREAM", "WEIGHTED", "WITHOUT_STORE", "compile_ahead", "is_ready",
    "kernels_of", "prepare",
]  # fmt: skip

STREAM = "stream-"
NEWTON = "-newton"  # second-order training
SPARSE = "l1"
WEIGHTED = "-weighted"  # weighted rows use separate kernels
RANKS = "-ranks"  # so do several ranks
TICK = 1.0  # seconds
MOST_WORKERS = 8  # compile in parallel
WORKER_BYTES = 160_000_000  # resident memory of each, and of the process that starts them
WITHOUT_STORE = ("split", "predict", "names", "validate")


def kernels_of(settings: Settings, problems: Sequence[AnyProblem], weighted: bool = False) -> str:
    """Return the name of the kernels that a training needs, for `prepare`.

    `weighted` is for rows whose weights do not come from the setting.
    """
    if settings.method == "columns":
        return SPARSE
    name = str(problems[0].loss.kernel)
    if problems[0].listed:
        name = "multiclass" if problems[0].loss.joint else "one-vs-rest"
    if settings.method == "newton":
        name += NEWTON
    return name + WEIGHTED if weighted or settings.weights is not None else name


_ready: set[tuple[object, ...]] = set()  # arguments for which `is_ready` returned true


def prepare(command: str, value_type: str, progress: Progress) -> None:
    """Compile a command's kernels unless they are on disk.

    Parameters
    ----------
    command : str
        ``split``, ``predict`` (of text), ``names`` (of features), ``validate``, or a result of
        `kernels_of`.
    value_type : {"ones", "float32", "float64"}
    progress : Progress
        Reports the wait.
    """
    if compiled.COMPILE_HERE in os.environ or is_ready(command, value_type):
        return
    if command not in WITHOUT_STORE:  # its child splits a few rows first
        prepare("split", "float32" if value_type == "ones" else value_type, progress)
    if unusable := compiled.unusable():
        progress.stage(
            "cannot cache compiled kernels in "
            f"{' or '.join(map(str, unusable))}: not writable by this user, or writable by "
            f"others; set {compiled.FOLDER} to a private folder"
        )
    what = f"compiling kernels for {_in_words(command)} (only once)"
    begin = time.perf_counter()
    # The signal may come before the compiler has begun.
    with _ticking(lambda seconds: progress.wait(what, seconds)), compiled._stops_at_once():
        problem = compile_ahead([command], value_type, _workers())
    if problem:
        progress.note(f"compiling ahead failed ({problem}); compiling each kernel when needed")
    else:
        progress.wait(what, time.perf_counter() - begin, is_over=True)


def _workers() -> int:
    """Return the number of processes that compile, which must fit into the system's memory."""
    workers, limit = min(usable_threads(None), MOST_WORKERS), system_limit()
    if limit is not None:
        workers = min(workers, (limit.size - resident_bytes()) // WORKER_BYTES - 1)
    return max(1, workers)


@contextmanager
def _ticking(tell: Callable[[float], None]) -> Iterator[None]:
    """Call a function once per second, from a thread, with the seconds elapsed."""
    over, begin = threading.Event(), time.perf_counter()

    def tick() -> None:
        while not over.wait(TICK):
            tell(time.perf_counter() - begin)

    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    try:
        yield
    finally:
        over.set()
        ticker.join()


def is_ready(command: str, value_type: str) -> bool:
    """Return whether a command's kernels are on disk."""
    places = compiled.places()
    case = (command, value_type, *places)
    if case not in _ready:  # the marker is a hash of all kernels
        marker = _marker(command, value_type)
        if not any(os.path.exists(place / marker) for place in places):
            return False
        _ready.add(case)
    return True


def compile_ahead(commands: Sequence[str], value_type: str, workers: int = 1) -> str:
    """Compile the kernels of commands in a child process with `workers` compilers in parallel.

    Returns
    -------
    str
        The error, or an empty string.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="sbm-", ignore_cleanup_errors=True) as folder:
            arguments = f"{list(commands)!r}, {value_type!r}, {folder!a}, {workers}"
            with stopped_clock():
                problem, _ = compiled.run_compiler(
                    f"from sbm.programs.precompile import run; run({arguments})"
                )
    except OSError as error:
        problem = str(error)
    if not problem:
        for command in commands:
            compiled.keep(_marker(command, value_type), b"")
    return problem


def _marker(command: str, value_type: str) -> str:
    sources = sorted(Path(sbm.__file__).parent.glob("*/kernels/*.py"))
    return f"{command}-{value_type}.{compiled.fingerprint(*sources)}.ready"


def _in_words(command: str) -> str:
    """Return what a command's kernels are for, such as "training (svc)", for messages."""
    if command in WITHOUT_STORE:
        return command
    what = "streaming" if command.startswith(STREAM) else "training"
    return f"{what} ({command.removeprefix(STREAM)})"
