"""Compile the kernels that a command needs, before it needs them.

Compiling takes tens of megabytes that a process never returns, so it must not happen in a process
with bounded memory; and its time is not the command's. So each command says at its begin which
kernels it will call (`prepare`). What is missing is compiled in child processes and cached on disk,
with a marker that makes the next check fast.
"""

import functools
import os
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import sbm
from sbm.compiled import cache
from sbm.compiled.calls import is_there
from sbm.compiled.declared import Specialization, specializations
from sbm.engine.machine import resident_bytes, system_limit, usable_threads
from sbm.engine.progress import Progress
from sbm.settings import Settings
from sbm.solver.problem import AnyProblem
from sbm.units import count

__all__ = [
    "BY_CLASS",
    "IDS",
    "JUDGE",
    "LINES",
    "NAMES",
    "PREDICT",
    "PREDICT_SPARSE",
    "READ_TEXT",
    "STORE",
    "TABLES",
    "WEIGHTS",
    "Types",
    "kernels_of",
    "prepare",
    "types_of",
    "types_of_dtype",
]

# Kernels by what they are for; `sbm.compiled.declared` has the names.
IDS = ("inputs.ids.*",)
READ_TEXT = ("inputs.text.*", *IDS, "store.rows.gather_rows")
WEIGHTS = ("inputs.text.parse",)
LINES = ("inputs.lines.write_lines",)
_WORDS = ("inputs.lines.write_words", *LINES)
NAMES = ("inputs.names.*", "store.sorting.*")
TABLES = ("inputs.cells.*", "inputs.words.*", "store.sorting.*")
STORE = (
    "store.rows.encode_rows", "store.rows.encode_numbers", "store.rows.decode_rows",
    "store.rows.decode_numbers", "store.values.*",
)  # fmt: skip
_AUC = ("solver.decision.judge", "solver.decision.count_buckets")
PREDICT = ("solver.decision.decide", "solver.decision.best", *_WORDS, *_AUC)
PREDICT_SPARSE = ("solver.decision.decide_sparse", "solver.decision.best", *_WORDS, *_AUC)
JUDGE = ("solver.decision.decide", "solver.decision.assign", "solver.decision.hold_out", *_AUC)
_DECIDE = ("solver.decision.decide",)
_ALPHAS = ("store.alphas.*",)
BY_CLASS = ("solver.batches.*", "solver.scoring.*", "solver.tables.*", *_ALPHAS)
_WORKING_SET = ("solver.working_set.*",)
_WORKING_SET_IN_MEMORY = (
    "solver.working_set.compact", "solver.working_set.merge", "solver.working_set.spill",
)  # fmt: skip
_RANKS = ("solver.changes.*", "solver.common.begin_round", "inputs.ids.count")
MOST_WORKERS = 8  # compile in parallel
WORKER_BYTES = 160_000_000  # resident memory of each, and of the process that starts them

Types = dict[str, str | bool | tuple[str, ...]]


def kernels_of(
    settings: Settings,
    problems: Sequence[AnyProblem],
    in_memory: bool = False,
    summed: bool = False,
    streamed: bool = False,
) -> tuple[str, ...]:
    """Return the kernels of a training.

    Parameters
    ----------
    settings : Settings
    problems : sequence of problems
    in_memory : bool
        All rows are in memory, so that none leave the working set for others.
    summed : bool
        The steps of several processes are added up.
    streamed : bool
        Each block of rows is judged before it is learned from.
    """
    if settings.method == "columns":
        return ("solver.l1.*", "inputs.ids.count")
    listed = problems[0].listed
    module = "multiclass" if listed else str(problems[0].loss.kernel)
    kernels: tuple[str, ...] = (f"solver.{module}.*", *_ALPHAS)
    if listed:
        kernels += ("solver.lists.*",)
    if settings.method == "newton":
        return (*kernels, *_DECIDE, "solver.newton.*")
    kernels += _WORKING_SET_IN_MEMORY if in_memory else _WORKING_SET
    kernels += _DECIDE if streamed or problems[0].loss.name == "one_class" else ()
    return (*kernels, *_RANKS) if summed else kernels


def types_of(problems: Sequence[AnyProblem], value_type: str, summed: bool = False) -> Types:
    """Return the types of arguments that `kernels_of` are called with.

    Parameters
    ----------
    problems : sequence of problems
    value_type : {"ones", "float32", "float64"}
        Of the values of nonzeros.
    summed : bool
        As for `kernels_of`.
    """
    types = types_of_dtype(value_type)
    types["values"] = "none" if value_type == "ones" else f"{value_type}[1]"
    if problems[0].loss.name != "one_class":  # which takes rows with classes or targets
        types["y"] = "int32[1]" if problems[0].classify else "float64[1]"
    # Weights by class become float64 later, if ever.
    return types | {"summed": summed, "joint": problems[0].loss.joint, "cell": "float32"}


def types_of_dtype(dtype: str) -> Types:
    """Return the types of arguments for rows of a dtype; values that are all 1 are left out."""
    is_double = dtype == "float64"
    return {
        "values": ("none", f"{dtype}[1]"), "numbers": f"{dtype}[1]",
        "words": "uint64[1]" if is_double else "uint32[1]",
        "bits": ("none", "uint64[1]" if is_double else "uint32[1]"),
    }  # fmt: skip


_ready: set[tuple[object, ...]] = set()  # arguments for which all kernels were there


def prepare(what: str, kernels: Sequence[str], types: Types, progress: Progress) -> None:
    """Compile kernels unless they are on disk.

    Parameters
    ----------
    what : str
        What they are for, such as "training", for messages.
    kernels, types
        As for `sbm.compiled.declared.specializations`.
    progress : Progress
        Reports the wait.
    """
    case = (kernels, tuple(sorted(types.items())), cache.folder())
    if cache.COMPILE_HERE in os.environ or case in _ready:
        return
    marker = _marker(case[:2])
    if not _is_there(marker):
        wanted = [each for each in specializations(kernels, **types) if not is_there(*each)]
        if wanted:
            problem = _compile(what, wanted, progress)
            if problem:
                progress.note(f"compiling ahead failed ({problem}); compiling when needed")
                return
        cache.keep(marker, b"")
    _ready.add(case)


def _compile(what: str, kernels: Sequence[Specialization], progress: Progress) -> str:
    """Compile kernels and report the wait; return the error, or an empty string."""
    if unusable := cache.unusable():
        progress.stage(
            "cannot cache compiled kernels in "
            f"{' or '.join(map(str, unusable))}: not writable by this user, or writable by "
            f"others; set {cache.FOLDER} to a private folder"
        )
    from sbm.compiled import child  # only to compile, because its import takes 10 ms

    words = f"compiling {count(len(kernels), 'kernel')} for {what} (only once)"
    begin = time.perf_counter()
    # The signal may come before the compiler has begun.
    with _ticking(lambda seconds: progress.wait(words, seconds)), child.stops_at_once():
        problem = child.compile_all(kernels, _workers())
    if not problem:
        progress.wait(words, time.perf_counter() - begin, is_over=True)
    return problem


def _is_there(marker: str) -> bool:
    return any(os.path.exists(place / marker) for place in cache.places())


def _marker(case: object) -> str:
    """Return the name of a file that says that kernels are there, as their sources are now."""
    return cache.file_name(f"ready.{zlib.crc32(repr((case, _sources())).encode()):08x}.1")


@functools.cache
def _sources() -> list[tuple[str, int, int]]:
    """Return all kernels and what compiles them, with times of change and sizes.

    A file that changes unnoticed does no harm: a kernel looks at its text when it is loaded.
    """
    package = Path(sbm.__file__).parent
    found = []
    for folder in [*package.glob("*/kernels"), package / "compiled"]:
        with os.scandir(folder) as files:
            facts = [(file.path, file.stat()) for file in files if file.name.endswith(".py")]
        found += [(path, status.st_mtime_ns, status.st_size) for path, status in facts]
    return sorted(found)


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
        while not over.wait(1.0):  # seconds
            tell(time.perf_counter() - begin)

    ticker = threading.Thread(target=tick, daemon=True)
    ticker.start()
    try:
        yield
    finally:
        over.set()
        ticker.join()
