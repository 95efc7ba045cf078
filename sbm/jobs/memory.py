"""The memory plan: what `--mem` is spent on, decided before any work starts."""

from collections.abc import Sequence
from dataclasses import dataclass

from sbm.errors import MemoryPlanError
from sbm.jobs.pace import BASE_FRAC, MOST_FRAC
from sbm.settings import format_size
from sbm.store.blocks import NONZERO_BYTES, BlockStore, Chunk

__all__ = ["INTERPRETER", "MemoryPlan", "Part", "plan_training"]

# Python, numpy, llvmlite and the kernels, loaded from disk.
INTERPRETER = 92_000_000
# Buffers of files, progress and the like.
OVERHEAD = 12_000_000
# Alphas on their way to the disk: of rows that left the cache, and encoded.
STRAY_BYTES = 4_000_000
UNWRITTEN_BYTES = 4_000_000

# Bytes a row takes beside its nonzeros. Working set: start, length, class, alpha, score, home,
# number, keep mark, position among the active rows. Buffer: start, length, class. Spilling: alphas
# and moving marks of this block and the next, codes, the rows that leave.
_WORK_ROW = 8 + 4 + 4 + 8 + 4 + 4 + 4 + 1 + 12
_BUFFER_ROW = 8 + 4 + 4
_SPILL_ROW = 2 * (8 + 1) + 9 + 16
# Decoding holds the compressed bytes and the symbols of one chunk.
_DECODE_NONZERO = 12


@dataclass(frozen=True)
class Part:
    """What is loaded at a time: a block, or a share of one that is too large for the memory.

    Attributes
    ----------
    block : int
    chunks : list of Chunk
        Every q-th chunk where the block is cut in q, so that each part is a sample of the block.
    rows, nnz : int
    """

    block: int
    chunks: list[Chunk]
    rows: int
    nnz: int


@dataclass(frozen=True)
class MemoryPlan:
    """How the bytes are spent.

    Attributes
    ----------
    parts : list of Part
        The blocks of the training.
    cache_rows, cache_nnz : int
        Capacity of the cache.
    part_rows, part_nnz : int
        Of the largest part; there are two buffers for parts.
    items : dict of str to int
        Bytes by purpose.
    """

    parts: list[Part]
    cache_rows: int
    cache_nnz: int
    part_rows: int
    part_nnz: int
    items: dict[str, int]

    def decoders(self, threads: int, mem: int) -> int:
        """How many chunks can be decoded at a time with so many threads, one of them solving."""
        spare = max(0, mem - self.total) // self.items["decoding"]
        return max(1, min(threads - 1, 1 + spare))

    @property
    def total(self) -> int:
        """Bytes in all."""
        return sum(self.items.values())

    def describe(self) -> str:
        """The items in words."""
        return ", ".join(f"{name} {format_size(size)}" for name, size in self.items.items())


def plan_training(
    store: BlockStore, mem: int, cache_frac: float | str, n_weights: int, n_outputs: int = 1
) -> MemoryPlan:
    """Turn a memory bound into block and cache sizes.

    Blocks are loaded whole where they fit, else in a few equal parts that do. The cache has
    ``cache_frac / (1 - cache_frac)`` times the rows and nonzeros of what is loaded at a time: it is
    `cache_frac` of the working set, as in the experiments of the SBM paper.

    Parameters
    ----------
    store : BlockStore
    mem : int
        Bytes of the whole process.
    cache_frac : float or "auto"
        In [0, 1); ``auto`` makes room for `BASE_FRAC`, and up to `MOST_FRAC` in what is left then.
    n_weights, n_outputs : int
        Shape of W.

    Returns
    -------
    MemoryPlan

    Raises
    ------
    MemoryPlanError
        Not even single chunks fit; says what would.
    """
    facts = _Facts(store, n_weights, n_outputs)
    base, most = (BASE_FRAC, MOST_FRAC) if isinstance(cache_frac, str) else (cache_frac,) * 2
    room = mem - sum(facts.fixed.values())
    most_cuts = max(len(chunks) for chunks in store.chunks)
    cuts = 1
    while True:
        parts = [part for chunks in store.chunks for part in _cut_block(chunks, cuts)]
        blocks = facts.block_bytes(parts)
        _, _, wanted = facts.cache(parts, base)
        if blocks + wanted <= room:
            break
        if cuts == most_cuts:
            if blocks <= room:
                break
            raise _too_little(store, mem, facts, blocks)
        cuts = min(most_cuts, max(cuts + 1, cuts * 9 // 8))
    if facts.ids > room:
        raise _too_little(store, mem, facts, blocks)
    rows, nnz, wanted = facts.cache(parts, most)
    granted = min(wanted, room - blocks)
    if granted < wanted:
        rows, nnz = int(rows * granted / wanted), int(nnz * granted / wanted)
    return MemoryPlan(
        parts=parts,
        cache_rows=rows,
        cache_nnz=nnz,
        part_rows=max(p.rows for p in parts),
        part_nnz=max(p.nnz for p in parts),
        items=facts.fixed | {"blocks": blocks, "cache": granted},
    )


class _Facts:
    """Bytes that follow from the store and the shape of W."""

    def __init__(self, store: BlockStore, n_weights: int, n_outputs: int) -> None:
        self.nonzero = NONZERO_BYTES[store.value_type]
        more = 8 * (n_outputs - 1)
        self.work_row, self.spill_row = _WORK_ROW + more, _SPILL_ROW + 3 * more
        self.cache_row = self.work_row + 16 + more  # with the room to leave
        largest_chunk = max(c.nnz + c.rows for chunks in store.chunks for c in chunks)
        self.store = store
        self.ids = 8 * n_weights  # to write the model, when blocks and cache are gone
        self.fixed = {
            "interpreter": INTERPRETER,
            "weights": 8 * n_weights * n_outputs * 2,  # W, and a copy to screen and certify with
            "decoding": largest_chunk * (_DECODE_NONZERO + self.nonzero),
            "overhead": OVERHEAD + STRAY_BYTES + UNWRITTEN_BYTES,
        }

    def block_bytes(self, parts: list[Part]) -> int:
        """Two buffers, the rows of one in the working set, and their spill."""
        rows, nnz = max(p.rows for p in parts), max(p.nnz for p in parts)
        buffers = 2 * (nnz * self.nonzero + rows * _BUFFER_ROW)
        return buffers + rows * (self.work_row + self.spill_row)

    def cache(self, parts: list[Part], cache_frac: float) -> tuple[int, int, int]:
        """Rows, nonzeros and bytes of the cache that goes with these parts."""
        share = cache_frac / (1 - cache_frac)
        rows = min(int(max(p.rows for p in parts) * share), self.store.n_rows)
        nnz = min(int(max(p.nnz for p in parts) * share), self.store.nnz)
        return rows, nnz, rows * self.cache_row + nnz * self.nonzero


def _too_little(store: BlockStore, mem: int, facts: _Facts, blocks: int) -> MemoryPlanError:
    last = {"blocks": blocks} if blocks >= facts.ids else {"feature ids": facts.ids}
    items = facts.fixed | last
    needed = ", ".join(f"{name} {format_size(size)}" for name, size in items.items())
    least = sum(items.values())
    return MemoryPlanError(
        f"--mem {format_size(mem)} is too little to train on {store.folder}, which needs {needed}; "
        f"the least that works is --mem {-(-least // 1_000_000)}MB",
        least,
    )


def _cut_block(chunks: Sequence[Chunk], cuts: int) -> list[Part]:
    """Cut a block into at most `cuts` parts, each with every cuts-th chunk."""
    return [
        Part(
            chunks[0].block,
            list(chunks[k::cuts]),
            sum(c.rows for c in chunks[k::cuts]),
            sum(c.nnz for c in chunks[k::cuts]),
        )
        for k in range(min(cuts, len(chunks)))
    ]
