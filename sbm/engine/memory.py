"""The memory plan: how `--mem` is divided, decided before training starts."""

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property

import numpy as np

from sbm.engine.machine import interpreter_bytes
from sbm.errors import MemoryPlanError
from sbm.plain import dataclass
from sbm.solver.variables import FEW, MANY
from sbm.store.blocks import NONZERO_BYTES, BlockStore, Chunk, kept_generations
from sbm.units import format_size, in_megabytes

__all__ = [
    "AUTO_BLOCKS",
    "BASE_FRAC",
    "BUFFER_ROW",
    "DRAWN",
    "MOST_FRAC",
    "OVERHEAD",
    "SLACK",
    "Budget",
    "MemoryPlan",
    "Part",
    "Piece",
    "RowSizes",
    "Shape",
    "plan_training",
    "row_bytes",
    "row_place_bytes",
]

# Default number of blocks of a store.
AUTO_BLOCKS = 12
# Cache share of the working set with ``--cache-frac auto``: in the first pass, and the maximum.
BASE_FRAC = 0.5
MOST_FRAC = 0.75
# Buffers of files, progress and the like.
OVERHEAD = 12_000_000
# Alphas that are not yet on disk: of rows that left the cache, and encoded.
EVICTED_BYTES = 4_000_000
UNWRITTEN_BYTES = 4_000_000

# Bytes per row in addition to its nonzeros. Working set: start, length, class, alpha, score, home,
# number, keep mark, age, turns at rest, position among the rows to visit. Buffer: start, length,
# class. Spilling: alphas and moving marks of this block and the next, codes, the rows that leave.
_WORK_ROW = 8 + 4 + 4 + 8 + 4 + 4 + 4 + 1 + 1 + 12
BUFFER_ROW = 8 + 4 + 4
_SPILL_ROW = 2 * (8 + 1) + 9 + 16
# For rows with lists of variables. Working set: begin and length instead of alpha, and the head
# of the list; output and value per variable. Spilling: lists of this block before and after the
# step, of the next block and of the rows that leave; codes and positions.
_LIST_WORK_ROW = 8 + 4 + 12 - 8
_LIST_SPILL_ROW = 4 * 8 + 4
_VARIABLE = 12
_SPILL_VARIABLE = 4 * 12 + 9 + 8
# Candidates for the planned variables per row; the largest that fits is used. Most rows need few.
_ROW_VARIABLES = (1 << 31, 64, 32, 16, 8, 4)
# Row weights are dealt in batches: the order, the weights, those per block; and their text.
_DEAL_ROW, _DEAL_TEXT = 40, 32_000_000
# Most nonzeros times outputs of a single part: a round of them takes some seconds.
MOST_WHOLE = 2_000_000_000
# Parts of a block that is drawn anew in each pass. Two are nearly as good as many; but the last
# chunks of stored blocks are smaller, and a block is filled better with several parts.
DRAWN = 8
# Share of the bound that decoded blocks leave free.
SLACK = 0.02
# Python's objects for a chunk.
_CHUNK_OBJECTS = 700
# Decoding holds the compressed bytes and the symbols of one chunk.
_DECODE_NONZERO = 12


@dataclass(frozen=True)
class Budget:
    """A memory bound and how it is used.

    Attributes
    ----------
    mem : int
        The bound: bytes of the whole process.
    task : str
        Continues the message "is too small ...": ``to train on d.sbm``.
    items : dict of str to int
        Bytes by purpose.
    """

    mem: int
    task: str
    items: dict[str, int]

    @property
    def total(self) -> int:
        """Total bytes."""
        return sum(self.items.values())

    @property
    def left(self) -> int:
        """Unused bytes of the bound; negative if the bound is too small."""
        return self.mem - self.total

    def describe(self) -> str:
        """Return the items as text."""
        return ", ".join(f"{name} {format_size(size)}" for name, size in self.items.items())

    def check(self, advice: str = "") -> None:
        """Check that the items fit into the bound.

        Parameters
        ----------
        advice : str
            Alternative to more memory, appended to the message.

        Raises
        ------
        MemoryPlanError
            They do not fit; the message lists the items and the smallest bound.
        """
        if self.left < 0:
            raise MemoryPlanError(
                f"--mem {format_size(self.mem)} is too small {self.task}, which needs "
                f"{self.describe()}; use at least --mem {in_megabytes(self.total)}"
                f"{advice}",
                self.total,
            )


@dataclass(frozen=True)
class Shape:
    """What the memory of a training depends on, besides the data.

    Attributes
    ----------
    n_weights : int
        Rows of W.
    outputs : sequence of int
        Columns of W for each problem.
    listed : bool
        Whether rows have lists of variables instead of one each.
    has_few : bool
        Whether few variables of a row are not 0, so that a single part may have shorter lists.
    copies : int
        Number of arrays of the size of W, including those for screening and certificates.
    row_bytes : int
        Additional bytes per row: target, weight or fold.
    more_bytes : int
        Additional bytes in total.
    first_bytes : int
        Bytes needed at the beginning and then freed.
    hessian_bytes : int
        Bytes of the matrices of a second-order method.
    ranks : int
        Number of ranks whose steps are added up.
    by_block : bool
        Whether only whole blocks may be divided among the ranks.
    models : int
        Number of models that the problems belong to. Each model has a full-size cache, which the
        problems of that model share.
    may_join : bool
        Whether all blocks may be joined into one part.
    draws : bool
        Whether blocks are drawn anew in each pass.
    is_accelerated : bool
        Whether the method is accelerated coordinate descent. It has no working set, and can stop
        within a part, which may then be of any size.
    advice : str
        Alternative to more memory, for the error message.
    """

    n_weights: int
    outputs: Sequence[int] = (1,)
    listed: bool = False
    has_few: bool = False
    copies: int = 2
    row_bytes: int = 0
    more_bytes: int = 0
    first_bytes: int = 0
    hessian_bytes: int = 0
    ranks: int = 1
    by_block: bool = False
    models: int = 1
    may_join: bool = False
    draws: bool = False
    is_accelerated: bool = False
    advice: str = ""


@dataclass(frozen=True)
class Piece:
    """A block, or every n-th chunk of a block that is too large for the memory.

    Attributes
    ----------
    block, first, step : int
        Every `step`-th chunk of the block, starting with number `first`.
    rows : int
        Number of rows.
    """

    block: int
    first: int
    step: int
    rows: int


@dataclass(frozen=True)
class Part:
    """Rows that are always loaded together: some chunks of one stored block, or of several.

    Attributes
    ----------
    pieces : list of Piece
    chunks : list of Chunk
        Chunks of all pieces, in order.
    """

    pieces: list[Piece]
    chunks: list[Chunk]

    @cached_property
    def rows(self) -> int:
        """Rows of all chunks."""
        return sum(chunk.rows for chunk in self.chunks)

    @cached_property
    def nnz(self) -> int:
        """Nonzeros of all chunks."""
        return sum(chunk.nnz for chunk in self.chunks)


@dataclass(frozen=True)
class MemoryPlan(Budget):
    """The memory plan of a training.

    Attributes
    ----------
    parts : list of Part
    block_rows, block_nnz : int
        Most rows and nonzeros of a block, which is one part or more.
    draws : bool
        Whether blocks are drawn anew in each pass; if not, each part is a block.
    cache_rows, cache_nnz : int
        Capacity of the cache.
    row_variables : int
        Average number of variables per row that the lists of a block have room for.
    nonzero, row : int
        Bytes of a decoded nonzero, and of a decoded row besides its nonzeros.
    is_whole : bool
        Whether there is one part for each rank, which stays decoded.
    is_lean : bool
        Whether each learner has a single array of weights, so that more rows fit: a block is
        screened when it is visited, and a certificate reads the rows twice.
    """

    parts: list[Part]
    block_rows: int
    block_nnz: int
    cache_rows: int
    cache_nnz: int
    row_variables: int
    nonzero: int
    row: int
    draws: bool = False
    is_whole: bool = False
    is_lean: bool = False

    @property
    def is_crowded(self) -> bool:
        """Whether weights take more than blocks and cache, and not all rows stay in memory."""
        is_large = self.items["weights"] > self.items["blocks"] + self.items["cache"]
        return is_large and self.missing(range(len(self.parts))) > 0

    @cached_property
    def n_blocks(self) -> int:
        """Blocks of a pass over all parts, about."""
        return len(self.blocks(range(len(self.parts))))

    @cached_property
    def rows_of_parts(self) -> list[int]:
        """Rows of each part."""
        return [part.rows for part in self.parts]

    def blocks(self, order: Sequence[int], before: Collection[int] = ()) -> list[list[int]]:
        """Divide parts into blocks.

        Parameters
        ----------
        order : sequence of int
            Parts. Without `draws`, each is a block, in this order.
        before : collection of int
            Parts that the first block has only if there are no others.

        Returns
        -------
        list of list of int
            The parts of each block, in the order of the store.
        """
        if not self.draws:
            return [[part] for part in order]
        left, blocks = list(order), list[list[int]]()
        while left:
            block, rows, nnz = list[int](), 0, 0
            apart = before if not blocks and any(part not in before for part in left) else ()
            for part in left:
                more = self.parts[part]
                fits = rows + more.rows <= self.block_rows and nnz + more.nnz <= self.block_nnz
                if part not in apart and fits:
                    block.append(part)
                    rows, nnz = rows + more.rows, nnz + more.nnz
            taken = set(block)
            left = [part for part in left if part not in taken]
            blocks.append(sorted(block))
        return blocks

    def share_of(self, parts: Collection[int], own: Collection[int]) -> float:
        """Return the share of some parts' rows in the rows of a rank, whose parts are `own`."""
        rows = self.rows_of_parts
        return sum(rows[part] for part in parts) / max(1, sum(rows[part] for part in own))

    def decoded_bytes(self, parts: Iterable[int]) -> int:
        """Return the bytes of decoded parts."""
        chosen = [self.parts[k] for k in parts]
        return sum(part.nnz * self.nonzero + part.rows * self.row for part in chosen)

    def staying(self, own: Sequence[int], reserved: int = 0) -> list[int]:
        """Return the parts that stay decoded in memory; the others are read again in each pass.

        If all parts stay, there are no buffers, and cached rows are not copied. This changes the
        speed, but not the model.

        Parameters
        ----------
        own : sequence of int
            The parts of this rank.
        reserved : int
            Bytes of the bound that are needed for something else.
        """
        if self.missing(own, reserved) <= 0:
            return list(own)
        sizes = np.cumsum([self.decoded_bytes([k]) for k in own])
        return list(own[: int(np.searchsorted(sizes, self._room(reserved), side="right"))])

    def missing(self, own: Sequence[int], reserved: int = 0) -> int:
        """Return how many more bytes all parts of a rank need to stay; at most 0 if they stay."""
        if self.is_whole:
            return 0
        copies = (2 * self.block_nnz + self.cache_nnz) * self.nonzero
        if not self.draws:  # a block of some parts is a list of their rows
            copies += 2 * self.block_rows * self.row
        return self.decoded_bytes(own) - self._room(reserved) - copies

    def _room(self, reserved: int) -> int:
        room = self.left - reserved - int(SLACK * self.mem)
        return room - _CHUNK_OBJECTS * sum(len(part.chunks) for part in self.parts)

    def decoders(self, threads: int, spare: int) -> int:
        """Return how many chunks can be decoded in parallel with `threads`."""
        return max(1, min(threads, 1 + max(0, spare) // self.items["decoding"]))


def plan_training(
    store: BlockStore, mem: int, cache_frac: float | str, shape: Shape, reserved: int = 0
) -> MemoryPlan:
    """Choose block and cache sizes for a memory bound.

    If all rows of a rank fit, decoded, and are few enough for several rounds between two looks at
    the clock, they are a single part without a cache (`shape` must allow it; accelerated coordinate
    descent needs it, as it visits rows in one random order). If not, stored blocks are
    loaded whole if they fit, otherwise in equal parts that fit; small appended blocks are loaded
    together. If blocks are drawn anew in each pass, there are about `DRAWN` parts in as much
    memory. The cache has ``cache_frac / (1 - cache_frac)`` times the rows and nonzeros of the
    largest part, so it is `cache_frac` of the working set, as in the SBM paper.

    Parameters
    ----------
    store : BlockStore
    mem : int
        Bytes of the whole process.
    cache_frac : float or "auto"
        In [0, 1). ``auto``: at least `BASE_FRAC`, and up to `MOST_FRAC` if memory is left.
    shape : Shape
    reserved : int
        Bytes that a single part must leave free.

    Returns
    -------
    MemoryPlan

    Raises
    ------
    MemoryPlanError
        Not even single chunks fit; the message has the smallest bound.
    """
    base, most = (BASE_FRAC, MOST_FRAC) if isinstance(cache_frac, str) else (cache_frac,) * 2
    models = f"{shape.models} models " if shape.models > 1 else ""
    largest_chunk = max(c.nnz + c.rows for chunks in store.chunks for c in chunks)
    fixed = Budget(mem, f"to train {models}on {store.name}", {
        "interpreter": interpreter_bytes(),
        "weights": 8 * shape.n_weights * sum(shape.outputs) * shape.copies,
        "decoding": largest_chunk * (_DECODE_NONZERO + NONZERO_BYTES[store.value_type]),
        "overhead": OVERHEAD + EVICTED_BYTES + UNWRITTEN_BYTES + shape.more_bytes,
        **({"hessian": shape.hessian_bytes} if shape.hessian_bytes else {}),
    })  # fmt: skip
    limits = {min(n, max(shape.outputs)) for n in _ROW_VARIABLES} if shape.listed else {0}
    is_small = store.nnz * sum(shape.outputs) <= MOST_WHOLE * shape.ranks
    if shape.may_join and (is_small or shape.is_accelerated):
        for variables in sorted(limits, reverse=True)[: 2 if shape.has_few else 1]:
            whole = _plan_whole(store, fixed, shape, variables, reserved)
            if whole is not None:
                return whole
    plans: list[tuple[int, RowSizes, list[Part]]] = []
    for variables in sorted(limits):  # the most that do not make blocks smaller
        sizes = RowSizes(shape, variables, store.value_type)
        parts, fits = _choose_parts(store, sizes, fixed.left, base)
        if plans and (not fits or len(parts) > len(plans[0][2])):
            break
        plans.append((variables, sizes, parts))
    variables, sizes, parts = plans[-1]
    blocks = sizes.blocks(parts)
    _check_least(fixed, blocks, shape)
    rows, nnz, wanted = sizes.cache(store, parts, most)
    block_rows, block_nnz = max(p.rows for p in parts), max(p.nnz for p in parts)
    if shape.draws:
        parts = _finer(store, parts)
    granted = min(wanted, fixed.left - blocks)
    if granted < wanted:
        rows, nnz = int(rows * granted / wanted), int(nnz * granted / wanted)
    items = fixed.items | {"blocks": blocks, "cache": granted}
    row = BUFFER_ROW + shape.row_bytes
    return MemoryPlan(
        mem, fixed.task, items, parts, block_rows, block_nnz, rows, nnz, variables, sizes.nonzero,
        row, draws=shape.draws,
    )  # fmt: skip


def _plan_whole(
    store: BlockStore, fixed: Budget, shape: Shape, variables: int, reserved: int
) -> MemoryPlan | None:
    """Return a plan with one part for each rank; None if they do not fit."""
    parts = [part for rank in range(shape.ranks) if (part := _part_of(store, shape, rank)).pieces]
    sizes, row = RowSizes(shape, variables, store.value_type), BUFFER_ROW + shape.row_bytes
    nnz, rows = max(part.nnz for part in parts), max(part.rows for part in parts)
    blocks = nnz * sizes.nonzero + rows * (sizes.loaded - row)  # no second buffer
    # One more copy: the weights of half of the rows during a certificate, and one of two points of
    # searches along lines; the other one takes the place of a copy that only blocks need.
    n = len(shape.outputs) if not shape.listed else len(shape.outputs) == 1
    more = 8 * shape.n_weights * shape.outputs[0] * n
    weights = fixed.items["weights"] + more
    items = fixed.items | {"weights": weights, "blocks": blocks, "cache": 0}
    plan = MemoryPlan(
        fixed.mem, fixed.task, items, parts, rows, nnz, 0, 0, variables, sizes.nonzero, row,
        is_whole=True,
    )  # fmt: skip
    least = math.ceil((plan.total + reserved) / (1 - SLACK))
    if least <= fixed.mem:
        return plan
    if shape.is_accelerated:
        needs = Budget(fixed.mem, fixed.task, items | {"spare": least - plan.total})
        needs.check(", or --solver dual, which need not keep all rows in memory")
    return None


def _part_of(store: BlockStore, shape: Shape, rank: int) -> Part:
    """Return the rows of a rank: some chunks of each block, or whole blocks."""
    pieces, chunks, n = [], [], shape.ranks
    for k, some in enumerate(store.chunks):
        first, step = ((rank + k) % n, n) if not shape.by_block else (0, 1)
        mine = some[first::step] if not shape.by_block or k % n == rank else []
        if mine:
            pieces.append(Piece(k, first, step, sum(chunk.rows for chunk in mine)))
            chunks += mine
    return Part(pieces, chunks)


def _check_least(fixed: Budget, blocks: int, shape: Shape) -> None:
    """Check the bound against the needs at the beginning, during passes, and at the end."""
    before = {name: fixed.items[name] for name in ("interpreter", "overhead")}
    largest = max(
        fixed.items | {"blocks": blocks},
        fixed.items | {"feature ids": 8 * shape.n_weights},  # to write the model
        before | {"weights of rows, or scales": shape.first_bytes},
        key=lambda items: sum(items.values()),
    )
    n_outputs, advice = sum(shape.outputs), f", or {shape.advice}" if shape.advice else ""
    if n_outputs > 1 and 2 * fixed.items["weights"] > sum(largest.values()):
        counts = {"classes": n_outputs // shape.models, "models": shape.models}
        factors = [f"{n:,} {name}" for name, n in counts.items() if n > 1]
        advice += (
            f", or fewer features: weights take {shape.n_weights:,} features x "
            f"{' x '.join(factors)} x 8 bytes x {shape.copies} copies; "
            "sbm split --min-count N drops features found in fewer than N rows"
        )
    Budget(fixed.mem, fixed.task, largest).check(advice)


class RowSizes:
    """Bytes per row in buffers, working set and cache.

    Parameters
    ----------
    shape : Shape
    variables : int
        Variables per row that lists have room for.
    value_type : {"ones", "float32", "float64"}

    Attributes
    ----------
    nonzero : int
        Bytes per nonzero.
    loaded : int
        Bytes per loaded row: two buffers, its place in the working set, and its spill.
    caches : int
        Number of caches.
    cached : int
        Bytes per cached row, including its way out of the cache.
    """

    def __init__(self, shape: Shape, variables: int, value_type: str) -> None:
        self.nonzero = NONZERO_BYTES[value_type]
        work, spill = row_bytes(shape, variables)
        self.loaded = 2 * (BUFFER_ROW + shape.row_bytes) + work + spill
        self.caches = len(shape.outputs)
        self.cached = -(-work // self.caches) + 16

    def blocks(self, parts: list[Part]) -> int:
        """Return the bytes for the largest of these parts."""
        return (
            2 * max(p.nnz for p in parts) * self.nonzero + max(p.rows for p in parts) * self.loaded
        )

    def cache(
        self, store: BlockStore, parts: list[Part], cache_frac: float
    ) -> tuple[int, int, int]:
        """Return rows, nonzeros and bytes of the cache for these parts."""
        share = cache_frac / (1 - cache_frac)
        rows = self.caches * min(int(max(p.rows for p in parts) * share), store.n_rows)
        nnz = self.caches * min(int(max(p.nnz for p in parts) * share), store.nnz)
        return rows, nnz, rows * self.cached + nnz * self.nonzero


def _choose_parts(
    store: BlockStore, sizes: RowSizes, room: int, cache_frac: float
) -> tuple[list[Part], bool]:
    """Cut blocks until they and their cache fit; return the parts, and if they fit."""
    parts: list[Part] = []
    for parts in _ways_to_load(store):
        if sizes.blocks(parts) + sizes.cache(store, parts, cache_frac)[2] <= room:
            return parts, True
    return parts, False


def _ways_to_load(store: BlockStore) -> Iterator[list[Part]]:
    """Yield ways to cut and join blocks, starting with the one that needs the most memory.

    Each append adds at least one block, however small, and each step visits the whole cache. So
    small blocks are joined until there are no more parts than in a fresh split of the store. If
    that does not fit, parts are at most as large as the largest block.
    """
    made = store.blocks_of_generations
    cuts, most_cuts = 0, max(map(len, store.chunks))
    while cuts < most_cuts:
        cuts = min(most_cuts, max(cuts + 1, cuts * 9 // 8))
        parts = [part for chunks in store.chunks for part in _cut_block(chunks, cuts)]
        if len(made) > 1:
            most = max(AUTO_BLOCKS, *made)
            yield _join_parts(parts, -(-store.n_rows // most), -(-store.nnz // most))
            yield _join_parts(parts)
        else:
            yield parts


def _cut_block(chunks: Sequence[Chunk], cuts: int) -> Iterator[Part]:
    """Cut a block into at most `cuts` parts, each with every cuts-th chunk."""
    for k in range(min(cuts, len(chunks))):
        mine = list(chunks[k::cuts])
        rows = sum(chunk.rows for chunk in mine)
        yield Part([Piece(chunks[0].block, k, cuts, rows)], mine)


def _finer(store: BlockStore, parts: Sequence[Part]) -> list[Part]:
    """Cut parts so that about `DRAWN` of them are as large as the largest one."""
    most, finer = max(part.nnz + part.rows for part in parts), list[Part]()
    for piece in itertools.chain(*(part.pieces for part in parts)):
        mine = store.chunks[piece.block][piece.first :: piece.step]
        size = sum(chunk.nnz + chunk.rows for chunk in mine)
        for part in _cut_block(mine, math.ceil(DRAWN * size / most)):
            (inner,) = part.pieces
            first, step = piece.first + inner.first * piece.step, inner.step * piece.step
            finer.append(Part([Piece(piece.block, first, step, part.rows)], part.chunks))
    return finer


def _join_parts(parts: Sequence[Part], rows: int = 0, nnz: int = 0) -> list[Part]:
    """Join neighbours up to `rows` and `nnz`, or the size of the largest part."""
    rows, nnz = max(rows, *(p.rows for p in parts)), max(nnz, *(p.nnz for p in parts))
    joined = [parts[0]]
    for part in parts[1:]:
        both = Part(joined[-1].pieces + part.pieces, joined[-1].chunks + part.chunks)
        if both.rows <= rows and both.nnz <= nnz:
            joined[-1] = both
        else:
            joined.append(part)
    return joined


def row_place_bytes(store: BlockStore) -> int:
    """Return the bytes needed to deal row weights to blocks as the rows were dealt."""
    deals = [g["deal"]["batches"] for g in kept_generations(store.manifest) if "deal" in g]
    return _DEAL_ROW * int(max(itertools.chain([0], *deals))) + _DEAL_TEXT


def row_bytes(shape: Shape, variables: int) -> tuple[int, int]:
    """Return the bytes per row in the working set and in spilling, without nonzeros."""
    outputs, n = shape.outputs, len(shape.outputs)
    # Every problem has its own working set.
    work, spill = n * (_WORK_ROW + shape.row_bytes), n * _SPILL_ROW
    if shape.is_accelerated:  # alphas of one problem after the other are stored
        work, spill = 0, _SPILL_ROW
    if shape.listed:
        room = sum(min(variables, k) for k in outputs)
        work += n * _LIST_WORK_ROW + room * _VARIABLE
        work += sum(4 * (FEW + 2) for k in outputs if k > MANY)
        spill += n * _LIST_SPILL_ROW + room * _SPILL_VARIABLE
    if shape.ranks > 1:  # alphas before a sum, after it, and in between
        spill += 3 * (n * 8 + (room * _VARIABLE if shape.listed else 0))
    return work, spill
