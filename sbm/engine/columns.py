"""Passes over rows that train sparse models: margins and slopes of all rows, and chosen columns.

A pass visits every block once, at fixed weights. It computes the margins, the slopes' sum for every
feature and the lower bounds, and collects the columns of chosen features in memory. Blocks that fit
beside the columns stay decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sbm.compiled.calls import load
from sbm.compiled.clock import clock
from sbm.engine.learners import HeldOut, Seconds
from sbm.engine.memory import Budget, MemoryPlan, Shape, plan_training
from sbm.engine.progress import Progress
from sbm.engine.reader import BlockReader, RowWeights
from sbm.errors import MemoryPlanError
from sbm.plain import dataclass
from sbm.rows import Rows
from sbm.solver.l1 import MOST_GRAM, Columns, Labels, Scratch, SparseFit, SparseProblem
from sbm.solver.problem import Spread
from sbm.solver.sums import AT_ONCE
from sbm.store.blocks import NONZERO_BYTES, BlockStore

__all__ = ["ColumnPasses", "FeatureSizes", "plan_columns"]

Item = TypeVar("Item")
Result = TypeVar("Result")

# Doubles per feature: of each model (weights, slopes; one more with an intercept), and of all
# together (counts, squares, packed and other sizes, last pass, reach, column; to choose features:
# eight).
_OF_A_FIT, _OF_ALL = 2, 15
# Doubles per row: margins of each model, and of each model that is solved.
_ROW_OF_A_FIT, _ROW_OF_A_SOLVE = 1, 6
_MATRICES = 4  # of products of columns, of each model that is solved
# Bytes per column: feature, start, gain, scale, place; and of each model that is solved. What
# chooses the features, in turn with the solver, is counted among the doubles per feature.
_COLUMN, _COLUMN_OF_A_SOLVE, _CHOOSING = 32, 156, 64
_COLUMNS_SHARE = 0.75  # of the memory for blocks and columns
_ROW = 4  # bytes of a row's number in a column


def _column_bytes(solves: int) -> int:
    return _COLUMN + _COLUMN_OF_A_SOLVE * solves - _CHOOSING


def _short_nonzeros(store: BlockStore) -> int:
    """Return the room for columns without the rows that do not matter to a Newton step."""
    return store.nnz // 2


def _wanted(store: BlockStore, n_weights: int, fits: int) -> int:
    """Return the bytes of all columns."""
    each = _column_bytes(min(fits, AT_ONCE))
    return store.nnz * NONZERO_BYTES[store.value_type] + n_weights * each


def plan_columns(
    store: BlockStore,
    mem: int,
    shape: Shape,
    is_weighted: bool,
    intercept: bool,
    reserved: int = 0,
) -> MemoryPlan:
    """Divide a memory bound among blocks of rows, the margins of all rows, and columns.

    Memory that the columns cannot use is left for blocks that stay decoded. If they fit twice, each
    model that is solved may copy half of them. If they do not all fit, models are solved one after
    the other.

    Parameters
    ----------
    store : BlockStore
    mem : int
        Bytes of the whole process.
    shape : Shape
        As for other trainings; its outputs are the models.
    is_weighted : bool
        Whether rows have weights.
    intercept : bool
        Whether there is a bias without a penalty.
    reserved : int
        Bytes that the plan must leave free.

    Returns
    -------
    MemoryPlan
        Without a cache; ``items["columns"]`` is the room for columns, and ``items["copies"]``, if
        it is there, for copies of them.

    Raises
    ------
    MemoryPlanError
        The bound is too small; the message has the smallest one that works.
    """
    fits = sum(shape.outputs)
    wanted = _wanted(store, shape.n_weights, fits)
    given = store, mem, shape, is_weighted, intercept, reserved
    at_once = min(fits, AT_ONCE)
    copies = at_once * _short_nonzeros(store) * NONZERO_BYTES[store.value_type]
    for more in (copies, 0):
        with suppress(MemoryPlanError):
            made = _plan_columns(*given[:-1], reserved + more, wanted, at_once)
            if made.items["columns"] == wanted:
                if more:
                    made.items["copies"] = more
                return made
    made = _plan_columns(*given, wanted, 1)
    room = min(made.items["columns"], wanted - 1)
    return replace(made, items=made.items | {"columns": room})


def _plan_columns(
    store: BlockStore,
    mem: int,
    shape: Shape,
    is_weighted: bool,
    intercept: bool,
    reserved: int,
    wanted: int,
    solves: int,
) -> MemoryPlan:
    """Return the plan for a number of models at the same time; `wanted` are all columns."""
    fits, rows, n = sum(shape.outputs), store.n_rows, shape.n_weights
    weights = shape.models if shape.models > 1 else is_weighted  # with folds, each has its own
    margins = 8 * rows * (1 + weights + _ROW_OF_A_FIT * fits + _ROW_OF_A_SOLVE * solves)
    margins += 8 * _MATRICES * solves * min(n, MOST_GRAM) ** 2
    nonzero = NONZERO_BYTES[store.value_type]
    # Half of the room has space for any single column.
    least = min(wanted, 2 * (rows * nonzero + _column_bytes(solves)))
    plain = replace(
        shape, outputs=(1,), listed=False, may_join=False,
        draws=False, copies=(_OF_A_FIT + intercept) * fits + _OF_ALL,
    )  # fmt: skip

    def plan(columns: int) -> MemoryPlan:
        more = shape.more_bytes + margins + columns + reserved
        made = plan_training(store, mem, 0.0, replace(plain, more_bytes=more))
        items = {name: size for name, size in made.items.items() if name != "cache"}
        items["overhead"] -= margins + columns + reserved
        return replace(made, items=items | {"margins": margins, "columns": columns})

    try:
        made = plan(least)
    except MemoryPlanError as error:
        rest = {"margins": margins, "columns": least, "weights": 8 * n * plain.copies}
        rest |= {"reserved": reserved} if reserved else {}
        rest["blocks and others"] = error.least_bytes - sum(rest.values())
        Budget(mem, f"to train on {store.name}", rest).check()
        raise
    free = made.left - reserved + made.items["blocks"] + least
    if (share := min(wanted, int(_COLUMNS_SHARE * free))) > least:
        with suppress(MemoryPlanError):  # then blocks take more than their share
            made = plan(share)
    room = min(wanted, made.items["columns"] + made.left - reserved)
    return replace(made, items=made.items | {"columns": room})


@dataclass
class FeatureSizes:
    """Facts about each feature, from the first pass.

    Attributes
    ----------
    counts : ndarray, shape (n_weights,), int64
        Nonzeros.
    squares : ndarray, shape (n_weights,), float64
        Sum of squares.
    packed : ndarray, shape (n_weights,), int64
        Bytes of the rows of its column, if columns are packed.
    """

    counts: npt.NDArray[np.int64]
    squares: npt.NDArray[np.float64]
    packed: npt.NDArray[np.int64]

    @classmethod
    def of(cls, n_weights: int) -> FeatureSizes:
        """Return zeros, to be counted."""
        counts, packed = np.zeros((2, n_weights), np.int64)
        return cls(counts, np.zeros(n_weights), packed)


class ColumnPasses:
    """Reads all rows at fixed weights, and collects columns.

    Parameters
    ----------
    store : BlockStore
    plan : MemoryPlan
    threads : int
    problems : sequence of SparseProblem
    progress : Progress
    y_dtype : str
        Type of the labels of the store's rows.
    staying : sequence of int
        The blocks that stay decoded in memory.
    weights : RowWeights, optional
    read_rate : float, optional
        Maximum bytes read per second.
    held_out : HeldOut, optional
        Which rows each model does not learn from; it computes their margins.

    Attributes
    ----------
    fits : list of SparseFit
        One per problem.
    folds : ndarray, shape (n_rows,), uint8
        Fold of each row, if rows are held out.
    columns : Columns
    seconds : Seconds
    reader : BlockReader
    """

    def __init__(
        self,
        store: BlockStore,
        plan: MemoryPlan,
        threads: int,
        problems: Sequence[SparseProblem],
        progress: Progress,
        y_dtype: str,
        staying: Sequence[int],
        weights: RowWeights | None = None,
        read_rate: float | None = None,
        held_out: HeldOut | None = None,
    ) -> None:
        self._store, self._plan, self._progress = store, plan, progress
        self._bias = problems[0].bias
        rows = sum(part.rows for part in plan.parts)
        n = store.n_features + (self._bias > 0)
        y, ones = np.zeros(rows), np.ones(rows if weights is not None else 0)
        keys: list[int | None] = [None] * len(problems)
        if held_out is not None:
            keys, ones = list(held_out.by_learner), np.ones(rows)
        self._held_out = held_out
        self.folds = np.empty(rows if held_out is not None else 0, np.uint8)
        self._labels = {key: Labels(y, ones.copy() if key else ones) for key in {*keys}}
        self.fits = [
            SparseFit(one, self._labels[key], np.zeros(n), np.zeros(n), np.zeros(rows))
            for one, key in zip(problems, keys, strict=True)
        ]
        # If columns do not all fit, their rows take one or two bytes instead of four.
        self._packs = self.room() < _wanted(store, n, len(problems))
        self._at_once = 1 if self._packs else min(len(problems), AT_ONCE)
        self.columns = self._no_columns()
        self.seconds = Seconds()
        room = _short_nonzeros(store) if "copies" in plan.items else 0
        value_type = None if store.value_type == "ones" else store.value_type
        self._scratch = [Scratch.of(rows, room, value_type) for _ in range(self._at_once)]
        self._team = ThreadPoolExecutor(threads, "sbm-solve")
        self.reader = BlockReader(
            store, plan, staying, len(staying) == len(plan.parts), y_dtype, threads,
            rate=read_rate, weights=weights,
        )  # fmt: skip

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Run the threads inside this context."""
        with self.reader.pool, self._team:
            yield

    def room(self) -> int:
        """Return the bytes for columns."""
        return self._plan.items["columns"]

    def column_sizes(self, sizes: FeatureSizes) -> npt.NDArray[np.int64]:
        """Return the bytes of each feature's column; 0 for features without nonzeros."""
        nonzeros = sizes.counts * NONZERO_BYTES[self._store.value_type]
        if self._packs:
            nonzeros += sizes.packed - _ROW * sizes.counts
        if self._bias > 0:
            nonzeros[-1] = 0  # its values are all the same
        return np.where(sizes.counts > 0, nonzeros + _column_bytes(self._at_once), 0)

    def for_each_fit(self, work: Callable[[SparseFit, Scratch], Result]) -> list[Result]:
        """Call ``work(fit, scratch)`` for each model, a few at the same time."""
        found: list[Result] = []
        for begin in range(0, len(self.fits), self._at_once):
            some = self.fits[begin : begin + self._at_once]
            found += self._map(
                lambda pair: work(*pair), list(zip(some, self._scratch, strict=False))
            )
        return found

    def spread(self) -> Spread:
        """Return a ``map`` for the work of one model; models at the same time have one thread."""
        return self._team.map if self._at_once == 1 else map

    def _map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        return list(self._team.map(work, items) if len(items) > 1 else map(work, items))

    def read(
        self,
        what: str,
        after_block: Callable[[], None],
        *,
        looks: bool = True,
        sizes: FeatureSizes,
        counts: bool = False,
        collect: npt.NDArray[np.int32] | None = None,
    ) -> None:
        """Read all rows once.

        Parameters
        ----------
        what : str
            Label for progress.
        after_block : callable
            Called after each block; may raise.
        looks : bool
            Whether to compute margins, slopes and bounds of every model.
        sizes : FeatureSizes
        counts : bool
            Whether to count the sizes, before anything is collected.
        collect : ndarray, int32, optional
            Features whose columns replace those in memory.
        """
        kernels = load("sbm.solver.kernels.l1")
        begin = clock()
        work: list[Callable[[Rows, int], Any]] = []
        if looks:
            for fit in self.fits:
                fit.begin()
                work.append(fit.add)
        if collect is not None:
            work.append(self._collector(collect, sizes))
        if counts:
            last = np.zeros(len(sizes.counts), np.int32) if self._packs else None

            def count(rows: Rows, first: int) -> None:
                kernels.count(
                    rows.starts, rows.lengths, rows.indices, rows.values, self._bias, first,
                    sizes.counts, sizes.squares, sizes.packed, last,
                )  # fmt: skip

            work.append(count)
        for block, (rows, first) in enumerate(self._blocks(what)):
            self._take_labels(block, rows, first)
            self._map(lambda task: task(rows, first), work)  # noqa: B023  called at once
            after_block()
        if looks:
            self.finish()
        self.seconds.certify += clock() - begin

    def _blocks(self, what: str) -> Iterator[tuple[Rows, int]]:
        """Yield every block with the number of its first row, in the order of the store."""
        order = self._plan.blocks(range(len(self._plan.parts)))
        self._progress.start(what, len(order), "blocks")
        blocks = self.reader.read(order, lambda *_: None, lambda *_: None)
        first = 0
        for done, loaded in enumerate(blocks, 1):
            self.seconds.load += loaded.load_seconds
            self.seconds.wait += loaded.wait_seconds
            yield loaded.result, first
            first += len(loaded.result)
            self._progress.advance(done)
        self.seconds.disk = self.reader.disk_seconds
        self._progress.finish()

    def finish(self) -> None:
        """Compute objectives and lower bounds of all models."""
        self.for_each_fit(lambda fit, scratch: fit.finish(scratch, self.spread()))

    def _take_labels(self, block: int, rows: Rows, first: int) -> None:
        """Copy labels and weights of a block; the weight of a row that is held out is 0."""
        if self._held_out is not None:
            folds = self.folds[first : first + len(rows)]
            self._held_out.folds.assign(block, 0, rows, folds)
        for key, labels in self._labels.items():
            some = labels.part(first, len(rows))
            some.y[:] = rows.y
            if rows.weights is not None:
                some.weights[:] = rows.weights
            if key is not None:
                some.weights[folds == key] = 0.0

    def _no_columns(self) -> Columns:
        """Return no columns, except that of an intercept, which has no nonzeros."""
        fit = self.fits[0]
        features = np.arange(len(fit.w) - fit.problem.intercept, len(fit.w), dtype=np.int32)
        values = None if self._store.value_type == "ones" else np.empty(0, self._store.value_type)
        starts, dense = np.zeros(1 + len(features), np.int64), len(features) - 1
        rows: Any = np.empty(0, np.uint8 if self._packs else np.int32)
        scales = np.ones(len(features), np.float32)
        places = starts[:-1] if self._packs else None
        return Columns(features, starts, rows, values, dense, scales, places)

    def _collector(
        self, chosen: npt.NDArray[np.int32], sizes: FeatureSizes
    ) -> Callable[[Rows, int], None]:
        """Replace the columns; return the function that collects the nonzeros of a block."""
        self.columns = self._no_columns()  # free the memory before the next columns
        n = len(sizes.counts)
        lengths = sizes.counts[chosen]
        has_bias = self._bias > 0 and len(chosen) > 0 and chosen[-1] == n - 1
        if has_bias:
            lengths[-1] = 0
        starts = np.concatenate([[0], np.cumsum(lengths)])
        values = None
        if self._store.value_type != "ones":
            values = np.empty(starts[-1], self._store.value_type)
        places = at = last = None
        if self._packs:
            at = np.concatenate([[0], np.cumsum(sizes.packed[chosen])])
            rows_of: Any = np.empty(at[-1], np.uint8)
            places, at, last = at[:-1].copy(), at[:-1], np.zeros(len(chosen), np.int32)
        else:
            rows_of = np.empty(starts[-1], np.int32)
        dense = len(chosen) - 1 if has_bias else -1
        with np.errstate(divide="ignore"):  # squares of tiny values may be 0
            scales = np.sqrt(sizes.counts[chosen] / sizes.squares[chosen]).astype(np.float32)
        self.columns = Columns(chosen, starts, rows_of, values, dense, scales, places)
        column = np.full(n, -1, np.int32)
        column[chosen] = np.arange(len(chosen), dtype=np.int32)
        ends = starts[:-1].copy()

        def collect(rows: Rows, first: int) -> None:
            load("sbm.solver.kernels.l1").collect(
                rows.starts, rows.lengths, rows.indices, rows.values, first, column, ends, at,
                last, rows_of, values,
            )  # fmt: skip

        return collect
