"""The memory plan: what `--mem` is spent on, decided before any work starts."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sbm.engine.machine import less
from sbm.errors import MemoryPlanError
from sbm.settings import format_size
from sbm.solver.variables import FEW, MANY
from sbm.store.blocks import NONZERO_BYTES, BlockStore, Chunk, kept_generations

__all__ = [
    "AUTO_BLOCKS", "BASE_FRAC", "BUFFER_ROW", "INTERPRETER", "MOST_FRAC", "OVERHEAD",
    "MemoryPlan", "Part", "Piece", "Shape", "cut_block", "dealing_bytes", "join_parts",
    "plan_training", "plan_with_less", "row_bytes",
]  # fmt: skip

# Python, numpy, llvmlite and the kernels, loaded from disk.
INTERPRETER = 92_000_000
# Of a store, where nothing else is asked for.
AUTO_BLOCKS = 12
# Share of the working set that is cache with ``--cache-frac auto``: in the first pass, and at most.
BASE_FRAC = 0.5
MOST_FRAC = 0.75
# Buffers of files, progress and the like.
OVERHEAD = 12_000_000
# Alphas on their way to the disk: of rows that left the cache, and encoded.
STRAY_BYTES = 4_000_000
UNWRITTEN_BYTES = 4_000_000

# Bytes a row takes beside its nonzeros. Working set: start, length, class, alpha, score, home,
# number, keep mark, age, position among the active rows. Buffer: start, length, class. Spilling:
# alphas and moving marks of this block and the next, codes, the rows that leave.
_WORK_ROW = 8 + 4 + 4 + 8 + 4 + 4 + 4 + 1 + 12
BUFFER_ROW = 8 + 4 + 4
_SPILL_ROW = 2 * (8 + 1) + 9 + 16
# Where rows have lists of variables. Working set: begin and length instead of alpha, and the head
# of the list; for each variable output and value. Spilling: lists of this block as they were and
# as they will be, of the next one and of the rows that leave; codes and positions.
_LIST_WORK_ROW = 8 + 4 + 12 - 8
_LIST_SPILL_ROW = 4 * 8 + 4
_VARIABLE = 12
_SPILL_VARIABLE = 4 * 12 + 9 + 8
# Variables a row that are planned for, the largest number that fits; most rows need few.
_ROW_VARIABLES = (1 << 31, 64, 32, 16, 8, 4)
# Blocks of classes: of a row and a variable, the arrays of the pair of blocks that it is solved in.
_PAIR_ROW = 160 + 4 * (FEW + 2)
_PAIR_VARIABLE = 96
# Weights of rows are dealt in batches: the order, the weights, those of each block; and their text.
_DEAL_ROW, _DEAL_TEXT = 40, 32_000_000
# Decoding holds the compressed bytes and the symbols of one chunk.
_DECODE_NONZERO = 12


@dataclass(frozen=True)
class Shape:
    """What decides the memory of a training, beside the data.

    Attributes
    ----------
    n_weights : int
        Rows of W.
    outputs : sequence of int
        Columns of W, of each problem that is solved.
    listed : bool
        Whether rows have lists of variables, and not one each.
    paired : bool
        Whether they are solved by pairs of blocks of classes.
    copies : int
        How often W is there: to screen and certify with, too.
    row_bytes : int
        What a row takes beside the usual: its target, weight or fold.
    more_bytes : int
        What is needed beside all that.
    first_bytes : int
        What is needed before all else is there, and given back.
    noted_blocks : int
        Blocks whose alphas, as they were, are kept until several processes sync.
    models : int
        How many models the problems make up. Each has a cache that is as large as if it were alone;
        groups of the classes of one model share that room.
    advice : str
        What else than more memory would do, for the sentence that refuses a bound.
    """

    n_weights: int
    outputs: Sequence[int] = (1,)
    listed: bool = False
    paired: bool = False
    copies: int = 2
    row_bytes: int = 0
    more_bytes: int = 0
    first_bytes: int = 0
    noted_blocks: int = 0
    models: int = 1
    advice: str = ""


@dataclass(frozen=True)
class Piece:
    """A block, or a sample of one that is too large for the memory.

    Attributes
    ----------
    block, first, step : int
        Of the chunks of the block every `step`-th, from the `first` on.
    rows : int
    """

    block: int
    first: int
    step: int
    rows: int


@dataclass(frozen=True)
class Part:
    """What is loaded at a time: a block, a piece of one, or several small ones.

    Attributes
    ----------
    pieces : list of Piece
    chunks : list of Chunk
        Of all pieces, one behind the other.
    rows, nnz : int
    """

    pieces: list[Piece]
    chunks: list[Chunk]
    rows: int
    nnz: int

    def with_more(self, other: "Part") -> "Part":
        """Return this part with another one behind it."""
        return Part(
            [*self.pieces, *other.pieces], [*self.chunks, *other.chunks],
            self.rows + other.rows, self.nnz + other.nnz,
        )  # fmt: skip


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
    row_variables : int
        Variables a row, on average, that the lists of a block have room for.
    items : dict of str to int
        Bytes by purpose.
    """

    parts: list[Part]
    cache_rows: int
    cache_nnz: int
    part_rows: int
    part_nnz: int
    row_variables: int
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


def plan_training(store: BlockStore, mem: int, cache_frac: float | str, shape: Shape) -> MemoryPlan:
    """Turn a memory bound into block and cache sizes.

    Blocks are loaded whole where they fit, else in a few equal parts that do; small ones that were
    appended are loaded together. The cache has
    ``cache_frac / (1 - cache_frac)`` times the rows and nonzeros of what is loaded at a time: it is
    `cache_frac` of the working set, as in the experiments of the SBM paper.

    Parameters
    ----------
    store : BlockStore
    mem : int
        Bytes of the whole process.
    cache_frac : float or "auto"
        In [0, 1); ``auto`` makes room for `BASE_FRAC`, and up to `MOST_FRAC` in what is left then.
    shape : Shape

    Returns
    -------
    MemoryPlan

    Raises
    ------
    MemoryPlanError
        Not even single chunks fit; says what would.
    """
    base, most = (BASE_FRAC, MOST_FRAC) if isinstance(cache_frac, str) else (cache_frac,) * 2
    most_outputs = max(shape.outputs)
    choices = sorted({min(n, most_outputs) for n in _ROW_VARIABLES}) if shape.listed else [0]
    plans: list[tuple[_Facts, list[Part], int, int]] = []
    for variables in choices:  # as many as leave the blocks as large as with the fewest
        facts = _Facts(store, shape, variables)
        room = mem - sum(facts.fixed.values())
        parts, blocks, fits = facts.cut(room, base)
        if plans and (not fits or len(parts) > len(plans[0][1])):
            break
        plans.append((facts, parts, blocks, variables))
    facts, parts, blocks, variables = plans[-1]
    if facts.least(blocks) > mem:
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
        row_variables=variables,
        items=facts.fixed | {"blocks": blocks, "cache": granted},
    )


def plan_with_less(
    store: BlockStore, before: MemoryPlan, cache_frac: float | str, shape: Shape
) -> MemoryPlan:
    """Plan again, after memory ran out with a plan.

    Parameters
    ----------
    store : BlockStore
    before : MemoryPlan
        The plan that was too large.
    cache_frac, shape : see `plan_training`

    Returns
    -------
    MemoryPlan

    Raises
    ------
    MemoryPlanError
        There is no smaller plan.
    """
    try:
        plan_training(store, 1, cache_frac, shape)
    except MemoryPlanError as error:
        mem = less(before.total, error.least_bytes, f"training on {store.folder}")
    return plan_training(store, mem, cache_frac, shape)


class _Facts:
    """Bytes that follow from the store and the shape of W."""

    def __init__(self, store: BlockStore, shape: Shape, variables: int) -> None:
        outputs = shape.outputs
        self.nonzero = NONZERO_BYTES[store.value_type]
        self.buffer_row = BUFFER_ROW + shape.row_bytes
        self.work_row, self.spill_row = row_bytes(shape, variables)
        # Of a cached row: with the room to leave. Caches of several models are counted one by one.
        self.caches = shape.models if shape.listed else len(outputs)
        self.cache_row = -(-self.work_row // self.caches) + 16
        largest_chunk = max(c.nnz + c.rows for chunks in store.chunks for c in chunks)
        self.store = store
        # Instead of blocks and cache: to write the model, when they are gone, and before they come.
        self.ids, self.first = 8 * shape.n_weights, shape.first_bytes
        self.n_weights, self.n_outputs, self.models = shape.n_weights, sum(outputs), shape.models
        self.advice = f", or {shape.advice}" if shape.advice else ""
        self.fixed = {
            "interpreter": INTERPRETER,
            "weights": 8 * shape.n_weights * self.n_outputs * shape.copies,
            "decoding": largest_chunk * (_DECODE_NONZERO + self.nonzero),
            "overhead": OVERHEAD + STRAY_BYTES + UNWRITTEN_BYTES + shape.more_bytes,
        }

    @property
    def before(self) -> dict[str, int]:
        """What there is before all else."""
        items = {name: self.fixed[name] for name in ("interpreter", "overhead")}
        return {**items, "weights of rows": self.first}

    def least(self, blocks: int) -> int:
        """The smallest bound with so many bytes of blocks."""
        return max(sum(self.fixed.values()) + max(blocks, self.ids), sum(self.before.values()))

    def cut(self, room: int, cache_frac: float) -> tuple[list[Part], int, bool]:
        """Cut blocks until they and their cache fit; return parts, their bytes, whether they do."""
        most_cuts = max(len(chunks) for chunks in self.store.chunks)
        cuts = 1
        while True:
            cut = [part for chunks in self.store.chunks for part in cut_block(chunks, cuts)]
            for parts in self.joined(cut):
                blocks = self.block_bytes(parts)
                _, _, wanted = self.cache(parts, cache_frac)
                fits = blocks + wanted <= room
                if fits:
                    return parts, blocks, fits
            if cuts == most_cuts:
                return parts, blocks, fits
            cuts = min(most_cuts, max(cuts + 1, cuts * 9 // 8))

    def joined(self, parts: list[Part]) -> Iterator[list[Part]]:
        """Yield ways to load small parts together, those that need most memory first.

        Every night that is appended brings a block, however small, and every step visits the whole
        cache. So there are no more parts than a split of the whole store would make; where that
        does not fit the memory, parts are at most as large as the largest block.
        """
        made = self.store.blocks_of_generations
        if len(made) > 1:
            most = max(AUTO_BLOCKS, *made)
            yield join_parts(parts, -(-self.store.n_rows // most), -(-self.store.nnz // most))
            yield join_parts(parts)
        else:
            yield parts

    def block_bytes(self, parts: list[Part]) -> int:
        """Two buffers, the rows of one in the working set, and their spill."""
        rows, nnz = max(p.rows for p in parts), max(p.nnz for p in parts)
        buffers = 2 * (nnz * self.nonzero + rows * self.buffer_row)
        return buffers + rows * (self.work_row + self.spill_row)

    def cache(self, parts: list[Part], cache_frac: float) -> tuple[int, int, int]:
        """Rows, nonzeros and bytes of the cache that goes with these parts."""
        share = cache_frac / (1 - cache_frac)
        rows = self.caches * min(int(max(p.rows for p in parts) * share), self.store.n_rows)
        nnz = self.caches * min(int(max(p.nnz for p in parts) * share), self.store.nnz)
        return rows, nnz, rows * self.cache_row + nnz * self.nonzero


def dealing_bytes(store: BlockStore) -> int:
    """Bytes that it takes to deal weights of rows as the rows of a store were dealt."""
    deals = [g["deal"]["batches"] for g in kept_generations(store.manifest) if "deal" in g]
    return _DEAL_ROW * int(max(itertools.chain([0], *deals))) + _DEAL_TEXT


def row_bytes(shape: Shape, variables: int) -> tuple[int, int]:
    """Bytes of a row in the working set, and of its way out of it; nonzeros left out."""
    outputs, n = shape.outputs, len(shape.outputs)
    # Every problem has a working set of its own.
    work, spill = n * (_WORK_ROW + shape.row_bytes), n * _SPILL_ROW
    if shape.listed:
        room = sum(min(variables, k) for k in outputs)
        work += n * _LIST_WORK_ROW + room * _VARIABLE
        work += sum(4 * (FEW + 2) for k in outputs if k > MANY)
        work += shape.paired * (_PAIR_ROW + room * _PAIR_VARIABLE)
        spill += n * _LIST_SPILL_ROW + room * _SPILL_VARIABLE
    if shape.noted_blocks:  # those of the cache, too, and both as they are and as they will be
        alpha = n * 8 + (room * _VARIABLE if shape.listed else 0)
        spill += (2 + 3 * shape.noted_blocks) * alpha
    return work, spill


def _too_little(store: BlockStore, mem: int, facts: _Facts, blocks: int) -> MemoryPlanError:
    last = {"blocks": blocks} if blocks >= facts.ids else {"feature ids": facts.ids}
    items = facts.fixed | last
    if sum(items.values()) < facts.least(blocks):
        items = facts.before
    needed = ", ".join(f"{name} {format_size(size)}" for name, size in items.items())
    least = sum(items.values())
    advice, classes = facts.advice, facts.n_outputs // facts.models
    what = f"{facts.models} models " if facts.models > 1 else ""
    if facts.n_outputs > 1 and 2 * facts.fixed["weights"] > least:
        copies = facts.fixed["weights"] // (8 * facts.n_weights * facts.n_outputs)
        shape = [f"{facts.n_weights:,} features"]
        shape += [f"{classes:,} classes"] if classes > 1 else []
        shape += [f"{facts.models:,} models"] if facts.models > 1 else []
        advice += (
            f", or fewer features: weights are {' x '.join(shape)} x 8 bytes, {copies} times, and "
            "sbm split --min-count N leaves out features that N rows do not have"
        )
    return MemoryPlanError(
        f"--mem {format_size(mem)} is too little to train {what}on {store.folder}, which needs "
        f"{needed}; the least that works is --mem {-(-least // 1_000_000)}MB{advice}",
        least,
    )


def cut_block(chunks: Sequence[Chunk], cuts: int) -> list[Part]:
    """Cut a block into at most `cuts` parts, each with every cuts-th chunk."""
    parts = []
    for k in range(min(cuts, len(chunks))):
        mine = list(chunks[k::cuts])
        rows, nnz = sum(c.rows for c in mine), sum(c.nnz for c in mine)
        parts.append(Part([Piece(chunks[0].block, k, cuts, rows)], mine, rows, nnz))
    return parts


def join_parts(parts: Sequence[Part], rows: int = 0, nnz: int = 0) -> list[Part]:
    """Join neighbours up to so many rows and nonzeros, or those of the largest part."""
    rows, nnz = max(rows, *(p.rows for p in parts)), max(nnz, *(p.nnz for p in parts))
    joined = [parts[0]]
    for part in parts[1:]:
        both = joined[-1].with_more(part)
        if both.rows <= rows and both.nnz <= nnz:
            joined[-1] = both
        else:
            joined.append(part)
    return joined
