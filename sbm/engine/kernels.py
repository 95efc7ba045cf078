"""Compiling the kernels of a command once, in a process of its own.

Compiling takes tens of megabytes that a process never gives back, so it does not happen in one
whose memory is bounded: the first command of its kind starts a child that runs it on a handful of
rows (`sbm.programs.precompile`), and the machine code stays on disk. A marker beside that code
says it is there.
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
from sbm.engine.machine import usable_threads
from sbm.engine.progress import Progress
from sbm.settings import Settings
from sbm.solver.problem import AnyProblem

__all__ = [
    "STREAM", "WEIGHTED", "WITHOUT_STORE", "compile_ahead", "is_ready", "kernels_of", "prepare",
]  # fmt: skip

STREAM = "stream-"
WEIGHTED = "-weighted"  # rows with weights have kernels of their own
TICK = 1.0  # seconds
MOST_WORKERS = 8  # that compile at a time, each in 150 MB
WITHOUT_STORE = ("split", "predict", "names")


def kernels_of(settings: Settings, problems: Sequence[AnyProblem], weighted: bool = False) -> str:
    """Name the kernels a training needs, for `prepare`; weights may come without a file."""
    name = str(problems[0].loss.kernel)
    if problems[0].listed:
        name = "multiclass"
    return name + WEIGHTED if weighted or settings.weights is not None else name


def prepare(command: str, value_type: str, progress: Progress) -> None:
    """Compile a command's kernels unless they are on disk.

    Parameters
    ----------
    command : str
        ``split``, ``predict`` (of text), ``names`` (of features), or what `kernels_of` says.
    value_type : {"ones", "float32", "float64"}
    progress : Progress
        Is told when this takes a while.
    """
    if compiled.COMPILE_HERE in os.environ or is_ready(command, value_type):
        return
    if command not in WITHOUT_STORE:  # its child splits a few rows first
        prepare("split", "float32" if value_type == "ones" else value_type, progress)
    if unusable := compiled.unusable():
        progress.stage(
            "compiled kernels cannot be kept for the next command in "
            f"{' or '.join(map(str, unusable))}: this user cannot write there, or others can; "
            f"name a folder of your own in {compiled.FOLDER}"
        )
    what = f"compiling the kernels of {_in_words(command)}, once"
    begin = time.perf_counter()
    with _ticking(lambda seconds: progress.wait(what, seconds)):
        problem = compile_ahead([command], value_type, min(usable_threads(None), MOST_WORKERS))
    if problem:
        progress.note(f"compiling ahead failed ({problem}); compiling kernel by kernel instead")
    else:
        progress.wait(what, time.perf_counter() - begin, is_over=True)


@contextmanager
def _ticking(tell: Callable[[float], None]) -> Iterator[None]:
    """Call a function with the seconds that passed, once a second, from a thread."""
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
    """Whether a command's kernels are on disk."""
    marker = _marker(command, value_type)
    return any(os.path.exists(place / marker) for place in compiled.places())


def compile_ahead(commands: Sequence[str], value_type: str, workers: int = 1) -> str:
    """Compile the kernels of commands in a child; return what went wrong, or an empty string.

    The child has so many processes compile at a time.
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
    """Say what kernels are for, and which ones: a training may need several kinds, one by one."""
    if command in WITHOUT_STORE:
        return command
    what = "streaming" if command.startswith(STREAM) else "training"
    return f"{what} ({command.removeprefix(STREAM)})"
