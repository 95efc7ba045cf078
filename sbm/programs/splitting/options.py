"""What a split is told, checked, and the memory that it takes."""

from dataclasses import dataclass, replace

from sbm.engine.machine import smaller, usable_threads
from sbm.engine.memory import INTERPRETER, Budget
from sbm.engine.progress import Progress
from sbm.errors import SettingsError
from sbm.inputs.idtable import IdTable
from sbm.inputs.text import PIECE
from sbm.units import format_size, parse_size

__all__ = [
    "SplitOptions", "batch_bytes", "check_ids", "check_shards", "checked_options",
    "limit_threads", "with_less",
]  # fmt: skip

LEAST_BLOCK = 100_000  # bytes
MOST_SHARDS = 256  # each is locked, and a process has about a thousand files
LARGEST_BATCH = 64_000_000  # bytes of rows; more does not compress better
PIECE_BYTES = 5 * PIECE  # of a piece of text that is being parsed


@dataclass(frozen=True)
class SplitOptions:
    """The arguments of `sbm.split` that decide what a store looks like, checked.

    Attributes
    ----------
    blocks, block_size : int or None
        How many blocks, or their bytes.
    dtype, seed, shuffle, level, threads, mem, skip, min_count
        As of `sbm.split`.
    least_blocks : int
        Fewest blocks, where their number is chosen.
    """

    blocks: int | None
    block_size: int | None
    dtype: str
    seed: int
    shuffle: bool
    level: int
    threads: int
    mem: int
    skip: bool
    min_count: int
    least_blocks: int = 1

    @property
    def total(self) -> int:
        """Bytes that are used of `mem`; more would only be of use for ids."""
        return min(self.mem, INTERPRETER + 6 * batch_bytes(self.mem))


def batch_bytes(mem: int) -> int:
    """Bytes of one of the two batches; of the memory alone, so that threads change no byte."""
    return min(LARGEST_BATCH, (mem - INTERPRETER) // 6)


def limit_threads(mem: int, threads: int, reserved: int = 0) -> int:
    """Return the threads, at most `threads`, whose pieces of text fit beside the batches.

    Of `mem`, `reserved` bytes are taken by the library that reads the input.

    Raises
    ------
    MemoryPlanError
        Not even one does; says what would.
    """
    items = {"interpreter": INTERPRETER} | ({"library": reserved} if reserved else {})
    fixed = Budget(mem, "to split", items)
    needed = {"text": 3 * PIECE_BYTES, "batches": 3 * PIECE_BYTES}  # of a single thread
    replace(fixed, items=items | needed).check()
    most = (fixed.left - 3 * batch_bytes(mem - reserved)) // PIECE_BYTES - 2
    return min(threads, most)


def check_ids(ids: IdTable, options: SplitOptions, count_bytes: int = 0) -> None:
    """Refuse more ids than fit beside the batches, with `count_bytes` for their counts.

    There are no batches yet while features are counted, but their room is not given to ids then:
    a table that grows needs more than it holds in the end.

    Raises
    ------
    MemoryPlanError
        Says what there is room for.
    """
    text, needed = (options.threads + 2) * PIECE_BYTES, ids.nbytes + count_bytes
    if INTERPRETER + text + 2 * batch_bytes(options.mem) + needed <= options.mem:
        return
    what, twice = "ids and counts" if count_bytes else "ids", 2 * needed  # more may come
    items = {
        "interpreter": INTERPRETER, "text": text,
        "batches": min((text + twice) // 2, 2 * LARGEST_BATCH),
        f"{what} of twice the {len(ids):,} features so far": twice,
    }  # fmt: skip
    Budget(options.mem, "to split", items).check()


def check_shards(shards: int | None, blocks: int | None, append: bool) -> None:
    """Notice shards that cannot be made.

    Raises
    ------
    SettingsError
        They are too many, or more than blocks, or of a store that is there.
    """
    if shards is None:
        return
    if append:
        raise SettingsError("--shards makes a store anew; give --append or --shards, not both")
    if not 1 <= shards <= MOST_SHARDS:
        raise SettingsError(f"shards is {shards}; it must be from 1 to {MOST_SHARDS}")
    if blocks is not None and blocks < shards:
        raise SettingsError(
            f"blocks is {blocks}, and each of {shards} shards needs one; give --blocks {shards} "
            "or more"
        )


def checked_options(
    mem: int,
    *,
    blocks: int | None,
    block_size: int | str | None,
    dtype: str,
    seed: int,
    shuffle: bool,
    level: int,
    threads: int | None,
    on_error: str,
    min_count: int,
    shards: int | None,
    reserved: int,
) -> SplitOptions:
    """Return the arguments of `sbm.split` as options.

    Parameters
    ----------
    mem : int
        Bytes of the whole process.
    reserved : int
        Bytes of these that the library takes which reads the input.
    blocks, block_size, dtype, seed, shuffle, level, threads, on_error, min_count, shards
        As of `sbm.split`.

    Raises
    ------
    SettingsError
        One is out of range.
    MemoryPlanError
        `mem` is too small.
    """
    if blocks is not None and block_size is not None:
        raise SettingsError("give --blocks or --block-size, not both")
    if block_size is not None and parse_size(block_size) < LEAST_BLOCK:
        raise SettingsError(f"block_size is {block_size}; it must be at least 100kB")
    if blocks is not None and not 1 <= blocks <= 999_999:
        raise SettingsError(f"blocks is {blocks}; it must be from 1 to 999999")
    if dtype not in ("auto", "float32", "float64"):
        raise SettingsError(f"dtype is {dtype!r}; it must be auto, float32 or float64")
    if not 1 <= level <= 19:
        raise SettingsError(f"level is {level}; it must be from 1 to 19")
    if threads is not None and threads < 1:
        raise SettingsError(f"threads is {threads}; it must be at least 1")
    if on_error not in ("fail", "skip"):
        raise SettingsError(f"on_error is {on_error!r}; it must be fail or skip")
    if seed < 0:
        raise SettingsError(f"seed is {seed}; it must be at least 0")
    if not 1 <= min_count < 1 << 31:
        raise SettingsError(f"min_count is {min_count}; it must be from 1 to {(1 << 31) - 1}")
    return SplitOptions(
        blocks=blocks,
        block_size=None if block_size is None else parse_size(block_size),
        dtype="float32" if dtype == "auto" else dtype,
        seed=seed,
        shuffle=shuffle,
        level=level,
        threads=limit_threads(mem, usable_threads(threads), reserved),
        mem=mem - reserved,
        skip=on_error == "skip",
        min_count=min_count,
        least_blocks=shards or 1,  # each holds one at least
    )


def with_less(options: SplitOptions, progress: Progress) -> SplitOptions:
    """Return the options of another try, after memory ran out."""

    def plan(mem: int) -> SplitOptions:
        return replace(options, mem=mem, threads=limit_threads(mem, options.threads))

    less = smaller(plan, options.total, "splitting")
    progress.note(
        f"memory ran out, with --mem {format_size(options.mem)}; beginning anew as with "
        f"{format_size(less.mem)}"
    )
    return less
