"""Crammer-Singer and Weston-Watkins of thousands of classes: weights by class, lists of classes.

A dense W of features x classes does not fit, and most of it is 0. So each class has its weights in
a table (`sbm.solver.kernels.tables`), each row a list of the classes that matter for it, and rows
are visited in batches (`sbm.solver.kernels.batches`). From time to time all losses are computed
at fixed weights (`sbm.solver.scoring`): this certifies the weights, and finds the classes that are
missing in the lists.

Each class has one owner: a thread of a process. What an owner computes does not depend on their
number, so neither does the model. Rows and lists are in every process, weights are not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.alphas import Lists
from sbm.compiled.calls import load
from sbm.distributed.comm import Comm
from sbm.errors import DataError
from sbm.plain import dataclass
from sbm.rows import Rows
from sbm.solver.problem import TOO_LARGE, MultiProblem, Spread

__all__ = [
    "BATCH", "LINE", "ByClass", "RowFacts", "Tables", "TablesFullError", "batch_bytes",
    "divide", "least_bytes", "wake",
]  # fmt: skip

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

# Most rows of a batch, and of the first one. The more of them share classes, the shorter are their
# steps: batches are halved, or doubled, if curvatures are on average so many times those of single
# rows.
BATCH, _FIRST = 64, 16
_TOO_MANY, _FEW = 1.5, 1.2
LINE = 64  # bytes of a line of a table, which has ten or six weights
# About ten classes of a row have a variable. So if a feature is in more rows than the classes
# divided by the first of these, a sixth of the classes has a weight of it: in a table, they would
# take not much less than dense weights of all classes. By the second one, it is a hundredth.
_FREQUENT, _RARE = 64, 1024
# Bytes of float32 weights in tables with spare lines per nonzero of the rows: texts had up to
# twelve weights that are not 0.
_TABLES = 120
# Nonzeros and classes of a batch, unless a single row has more.
_NONZEROS, _CLASSES = 1 << 16, 1 << 15
_SPARE = 0.25  # lines of tables that grow, per line in use, before they are squeezed
_LEAST_SPARE = 1 << 14  # lines
_TIGHT = 50  # tables would be squeezed all the time if only this part of them is free
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 divided by the golden ratio
_OTHERS = 4  # the work of a class without rows, in rows


class TablesFullError(MemoryError):
    """The weights need more memory than there is for them."""


def divide(sizes: Sequence[float], owners: int) -> Int32s:
    """Return the owner of each class: the largest first, each to the one with the least work."""
    owner, loads = np.zeros(len(sizes), np.int32), [0.0] * owners
    if owners > 1:
        for c in np.argsort(-np.asarray(sizes), kind="stable").tolist():
            owner[c] = least = loads.index(min(loads))
            loads[least] += sizes[c] + _OTHERS
    return owner


def _dense_features(
    counts: Ints, n_classes: int, own: int, n_bytes: int, dtype: npt.DTypeLike
) -> int:
    """Return how many of the most frequent features have dense weights, which are faster.

    Parameters
    ----------
    counts : ndarray, shape (n_weights,), int64
        Rows of each feature.
    n_classes, own : int
        Number of all classes, and most of an owner.
    n_bytes : int
        Most memory of the weights of an owner.
    dtype : dtype
        Of a weight.
    """
    size = np.dtype(dtype).itemsize
    each = size * own
    if each * len(counts) <= n_bytes:
        return len(counts)
    spare = n_bytes - int(counts.sum()) * _TABLES * size // 4 * own // n_classes
    frequent, used = (int((counts * k >= n_classes).sum()) for k in (_FREQUENT, _RARE))
    return max(1, min(spare // each, used), min(n_bytes // 2 // each, frequent))


def wake(lists: Lists) -> None:
    """Let all classes of the lists take part in visits."""
    listed = lists.outputs
    np.copyto(listed, ~listed, where=listed < 0)


class Tables:
    """The weights of the classes of one owner; see `sbm.solver.kernels.tables`.

    Parameters
    ----------
    classes : ndarray, int32
        Ascending.
    n_classes, n_weights, n_dense : int
        Number of all classes, of weights of each, and of those of the most frequent features, which
        are dense.
    n_bytes : int
        Most memory of the tables, which they take as they grow.
    dtype : dtype
        Of weights that are not dense: float32 or float64.

    Attributes
    ----------
    own : ndarray, shape (n_classes,), int32
        Number of each class here; -1 for those of others.
    """

    def __init__(
        self,
        classes: Int32s,
        n_classes: int,
        n_weights: int,
        n_dense: int,
        n_bytes: int,
        dtype: npt.DTypeLike,
    ) -> None:
        self._kernels = load("sbm.solver.kernels.tables")
        self.classes = classes
        self.own = np.full(n_classes, -1, np.int32)
        self.own[classes] = np.arange(len(classes), dtype=np.int32)
        n = len(classes)
        self.begin, self.lines, self.used = (np.zeros(n, np.int64) for _ in range(3))
        self.head = np.zeros((n, n_dense), dtype)
        self._most = max(_LEAST_SPARE, (n_bytes - self.head.nbytes) // LINE)
        room = np.empty(8 * self._most + 8, np.uint64)  # the system gives memory when it is written
        first = -(room.ctypes.data // 8) % 8
        self.tags = room[first : first + 8 * self._most]
        self.cells = self.tags.view(dtype)
        bits = max(1, (n_weights - 1).bit_length())
        factor = _GOLDEN >> (64 - bits) | 1
        self.top = np.array([0, 0, bits, factor, pow(factor, -1, 1 << bits), 0, 0])
        self._limit(0)

    @property
    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """The tables, as kernels take them."""
        return self.begin, self.lines, self.used, self.head, self.cells, self.tags, self.top

    @property
    def readable(self) -> tuple[npt.NDArray[Any], ...]:
        """The tables, as kernels take them that only read them."""
        return self.begin, self.lines, self.head, self.cells, self.tags, self.top

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return LINE * int(self.top[0]) + self.head.nbytes

    def _limit(self, least: int) -> None:
        """Let tables grow before they are squeezed, to at least so many lines."""
        live = int(self.lines.sum())
        spare = max(_LEAST_SPARE, int(_SPARE * live))
        self.top[1] = min(self._most, max(live + spare, least))

    def lay_out(self) -> None:
        """Make all weights 0, in tables that have room for those before."""
        self.top[1] = self._most
        self._kernels.lay_out(*self.arrays)
        self._limit(0)

    def clear(self) -> None:
        """Make all weights 0, in tables without room."""
        self.used[:] = 0
        self.lay_out()

    def make_room(self) -> None:
        """Make room for a table that grows after a kernel found none.

        If all memory is in use, weights are packed, which makes them slower.

        Raises
        ------
        TablesFullError
            There is none.
        """
        live, before, most = int(self.lines.sum()), int(self.top[0]), int(self.top[1])
        is_full = (before == live and most == self._most) or self._is_tight(live)
        if is_full:
            self.top[5] = 1
        order = np.argsort(self.begin, kind="stable")
        spare = np.empty(8 * int(self.lines.max(initial=0)), np.uint64)
        tables = self.begin, self.lines, self.used, self.cells, self.tags, self.top
        self._kernels.squeeze(order, *tables, spare.view(self.cells.dtype), spare)
        now = int(self.top[0])
        if is_full and (now == before or self._is_tight(now)):
            raise TablesFullError
        self._limit(most + _LEAST_SPARE if before == live else 0)

    def _is_tight(self, live: int) -> bool:
        """Return whether tables with so many lines would be squeezed all the time."""
        return live + live // _TIGHT >= self._most

    def norms(self) -> Floats:
        """Return the squared norm of the weights of each class."""
        out = np.empty(len(self.classes))
        self._kernels.norms(self.begin, self.lines, self.head, self.cells, out)
        return out


@dataclass
class RowFacts:
    """What the rows of a block have besides their nonzeros.

    Attributes
    ----------
    squares, costs : ndarray, shape (n,), float64
        Squared norm and cost of each row.
    rest, skip : ndarray, shape (n,), uint8
        Visits with a small gap in a row; rounds to rest.
    """

    squares: Floats
    costs: Floats
    rest: npt.NDArray[np.uint8]
    skip: npt.NDArray[np.uint8]


class _Batch:
    """Arrays of a batch."""

    def __init__(self, n_classes: int, longest: int) -> None:
        nonzeros, entries = max(_NONZEROS, longest + 1), max(_CLASSES, n_classes + 1)
        self.rows, self.ptr = np.zeros(BATCH, np.int32), np.zeros(BATCH + 1, np.int64)
        self.mid, self.first = np.zeros(BATCH, np.int64), np.zeros(BATCH + 1, np.int64)
        self.ranks, self.parts = np.zeros(nonzeros, np.int32), np.zeros(nonzeros)
        self.cls, self.at = np.zeros(entries, np.int32), np.zeros(entries, np.int64)
        self.z, self.h, self.steps = (np.zeros(entries) for _ in range(3))
        self.n, self.entries = 0, 0


class _Owner:
    """The tables of an owner, and its scratch."""

    def __init__(self, tables: Tables, n_weights: int, n_classes: int, longest: int) -> None:
        self.tables = tables
        self.seen, self.stamp = np.zeros(n_classes, np.int64), np.zeros(n_classes + 1, np.int64)
        entries = max(_CLASSES, n_classes + 1)
        self.before, self.row_of = np.zeros(entries, np.int64), np.zeros(entries, np.int32)
        self.dense, self.gram = np.zeros(n_weights), np.zeros(BATCH)
        self.is_known = np.zeros(BATCH, np.int32)
        self.row = np.zeros(longest + 1, np.int32), np.zeros(longest + 1)


def batch_bytes(n_weights: int, n_classes: int, longest: int, owners: int) -> int:
    """Return the bytes of batches and scratch in a process with so many owners."""
    nonzeros, entries = max(_NONZEROS, longest + 1), max(_CLASSES, n_classes + 1)
    each = 20 * n_classes + 12 * entries + 8 * n_weights + 12 * longest
    return 2 * (12 * nonzeros + 36 * entries) + owners * each


def least_bytes(n_weights: int) -> int:
    """Return the fewest bytes of the table of a class: tags are of 15 bits; see the kernels."""
    return LINE * ((1 << (n_weights - 1).bit_length()) // 0x7FFF + 2)


class ByClass:
    """Weights of all classes, and visits of the rows of a block.

    Parameters
    ----------
    problem : MultiProblem
    rank : ndarray, shape (n_weights,), int32
        Rank of each feature by number of rows, 0 for the most frequent one. That of the bias is 0.
    counts : ndarray, shape (n_weights,), int64
        Rows of each feature.
    class_rows : sequence of float
        Rows of each class.
    comm : Comm
        Connects the processes; all of them have all rows.
    owners : int
        Owners in this process.
    spread : callable
        Like the builtin `map`; calls may run in several threads.
    n_bytes : int
        Most memory of the weights in this process.
    longest : int
        Most nonzeros of a row.

    Attributes
    ----------
    tables : list of Tables
        Those of this process, by owner.
    process : ndarray, shape (n_classes,), int32
        The process of each class.
    batch : int
        Most rows of a batch.
    """

    def __init__(
        self,
        problem: MultiProblem,
        rank: Int32s,
        counts: Ints,
        class_rows: Sequence[float],
        comm: Comm,
        owners: int,
        spread: Spread,
        n_bytes: int,
        longest: int,
    ) -> None:
        self.kernels = load("sbm.solver.kernels.batches")
        self.problem, self.rank, self.comm, self.spread = problem, rank, comm, spread
        self.batch = _FIRST
        n = len(problem.costs)
        self.process = divide(class_rows, comm.size)
        mine = np.flatnonzero(self.process == comm.rank).astype(np.int32)
        owner = divide([class_rows[c] for c in mine.tolist()], owners)
        self._classes, self._n_bytes = [mine[owner == k] for k in range(owners)], n_bytes // owners
        self._counts, self._longest = counts, longest
        self.set_type(np.float32)
        self._batches = [_Batch(n, longest) for _ in range(2)]
        self._loss, self._new = np.zeros(n + 1), np.zeros(2 * n + 2)

    def set_type(self, dtype: npt.DTypeLike) -> None:
        """Make weights of a dtype that are 0."""
        n, n_weights = len(self.problem.costs), len(self.rank)
        own = max(1, *map(len, self._classes))
        n_dense = _dense_features(self._counts, n, own, self._n_bytes, dtype)
        self.tables, self._owners = [], []  # before others need memory
        for classes in self._classes:
            tables = Tables(classes, n, n_weights, n_dense, self._n_bytes, dtype)
            self.tables.append(tables)
            self._owners.append(_Owner(tables, n_weights, n, self._longest))

    @property
    def is_double(self) -> bool:
        """Whether weights are float64."""
        return bool(self.tables[0].cells.dtype == np.float64)

    @property
    def kind(self) -> int:
        """Number of the loss, as kernels take it."""
        return int(self.problem.loss.kind or 0)

    def sort(self, rows: Rows) -> None:
        """Sort the nonzeros of each row as the methods of this class take them, in place."""
        keys = np.empty(int(rows.lengths.max(initial=0)), np.int32)
        self.kernels.sort_nonzeros(*_nonzeros(rows), self.rank, keys)

    def facts(self, rows: Rows) -> RowFacts:
        """Return the facts of the rows of a block."""
        n = len(rows)
        found = RowFacts(np.empty(n), np.empty(n), np.zeros(n, np.uint8), np.zeros(n, np.uint8))
        self.kernels.measure(
            rows.starts, rows.lengths, rows.values, rows.y, rows.factors, self.problem.costs,
            self.problem.bias, found.squares, found.costs,
        )  # fmt: skip
        if not np.isfinite(found.squares).all():
            raise DataError(TOO_LARGE)
        return found

    def _for_each_owner(self, work: Callable[[_Owner], None]) -> None:
        """Call a function for each owner of this process, in parallel."""
        for _ in self.spread(work, self._owners):
            pass

    def own_entries(self, of: Int32s, values: npt.NDArray[Any]) -> None:
        """Replace entries of `values` by those of the process that each belongs to, `of`.

        Parameters
        ----------
        of : ndarray, shape (n,), int32
        values : ndarray, shape (..., n)
        """
        if self.comm.size == 1:
            return
        counts = np.bincount(of, minlength=self.comm.size)
        rest = values.shape[:-1]
        mine = np.ascontiguousarray(values[..., of == self.comm.rank]).ravel()
        each = int(np.prod(rest, dtype=np.int64))
        for process, theirs in enumerate(self.comm.collect(mine, counts * each)):
            if process != self.comm.rank:
                values[..., of == process] = theirs.reshape(*rest, counts[process])

    # ------------------------------------------------------------------------------- visits

    def visit(self, rows: Rows, facts: RowFacts, lists: Lists, seed: int, small: float) -> Floats:
        """Visit the rows of a block once that do not rest, in random order.

        Parameters
        ----------
        rows, facts, lists
            Of the block; variables change.
        seed : int
            From 1.
        small : float
            A row with at most this gap rests in some of the next rounds.

        Returns
        -------
        ndarray, shape (6,), float64
            See the kernel ``batches.solve``.

        Raises
        ------
        TablesFullError
            The weights do not fit.
        DataError
            If a number overflows.
        """
        n, stats = len(rows), np.zeros(6)
        order = np.empty(n, np.int32)
        m = self.kernels.list_rows(
            n, np.uint64(seed), facts.skip, facts.squares, facts.costs, np.empty(n, np.int32), order
        )
        if self.comm.size == len(self._owners) == 1:
            self._visit_alone(order[:m], rows, facts, lists, small, stats)
        else:
            self._visit_together(order[:m], rows, facts, lists, small, stats)
        if not np.isfinite(stats).all():
            raise DataError(TOO_LARGE)
        curvature = stats[4] / stats[5] if stats[5] > 0 else 1.0
        if curvature > _TOO_MANY:
            self.batch = max(1, self.batch // 2)
        elif curvature < _FEW:
            self.batch = min(BATCH, 2 * self.batch)
        return stats

    def _visit_alone(
        self,
        order: Int32s,
        rows: Rows,
        facts: RowFacts,
        lists: Lists,
        small: float,
        stats: Floats,
    ) -> None:
        """Visit rows in batches if all classes have one owner: in one call, without exchanges."""
        (owner,), batch, state = self._owners, self._batches[0], np.zeros(4, np.int64)
        while not self.kernels.visit(
            *owner.tables.arrays, owner.tables.own, order, self.batch, *_nonzeros(rows), rows.y,
            self.rank, self.problem.bias, lists.offsets, lists.outputs, lists.values, self.kind,
            facts.squares, facts.costs, small, facts.rest, facts.skip, batch.rows, batch.ptr,
            batch.mid, batch.ranks, batch.parts, batch.first, batch.cls, batch.at, batch.z, batch.h,
            batch.steps, owner.seen, owner.stamp, owner.before, owner.row_of, owner.dense,
            owner.gram, owner.is_known, self._loss, self._new, state, stats,
        ):  # fmt: skip
            owner.tables.make_room()

    def _visit_together(
        self,
        order: Int32s,
        rows: Rows,
        facts: RowFacts,
        lists: Lists,
        small: float,
        stats: Floats,
    ) -> None:
        """Visit rows in batches, whose decision values the owners exchange."""
        before: _Batch | None = None
        done, m = 0, len(order)
        while done < m or before is not None:
            batch = None
            if done < m:
                batch = self._batches[before is self._batches[0]]
                batch.n, batch.entries = self.kernels.gather(
                    order[done:m], self.batch, *_nonzeros(rows), rows.y, self.rank,
                    self.problem.bias, self.tables[0].head.shape[1], lists.offsets,
                    lists.outputs, batch.rows,
                    batch.ptr, batch.mid, batch.ranks, batch.parts, batch.first, batch.cls,
                    batch.at,
                )  # fmt: skip
                done += batch.n
            self._step(before, batch, facts)
            if batch is not None:
                self._exchange(batch)
                self.kernels.solve(
                    batch.n, batch.rows, batch.first, batch.at, batch.z, batch.h, self.kind,
                    facts.squares, facts.costs, lists.outputs, lists.values, small, facts.rest,
                    facts.skip, self._loss, self._new, batch.steps, stats,
                )  # fmt: skip
            before = batch

    def _step(self, before: _Batch | None, batch: _Batch | None, facts: RowFacts) -> None:
        """Make the steps of a batch, and compute decision values of the next one."""

        def work(owner: _Owner) -> None:
            arrays, own = owner.tables.arrays, owner.tables.own
            done = 0
            while before is not None and done < before.entries:
                done = self.kernels.apply(
                    *arrays, own, before.n, done, before.ptr, before.mid, before.ranks,
                    before.parts, before.first, before.cls, before.steps,
                )  # fmt: skip
                if done < before.entries:
                    owner.tables.make_room()
            if batch is not None:
                self.kernels.decide(
                    *arrays, own, batch.n, batch.rows, batch.ptr, batch.mid, batch.ranks,
                    batch.parts, batch.first, batch.cls, facts.squares, batch.z, batch.h,
                    owner.seen, owner.stamp, owner.before, owner.row_of, owner.dense, owner.gram,
                    owner.is_known,
                )  # fmt: skip

        self._for_each_owner(work)

    def _exchange(self, batch: _Batch) -> None:
        """Send decision values and curvatures of this process's classes, and receive others."""
        if self.comm.size > 1:
            own = slice(0, batch.entries)
            both = np.stack([batch.z[own], batch.h[own]])
            self.own_entries(self.process[batch.cls[own]], both)
            batch.z[own], batch.h[own] = both

    # ------------------------------------------------------------------------------ weights

    def lay_out(self) -> None:
        """Make all weights 0, before they are computed from the variables again."""
        for tables in self.tables:
            tables.lay_out()

    def clear(self) -> None:
        """Make all weights 0."""
        for tables in self.tables:
            tables.clear()

    def add_rows(self, rows: Rows, lists: Lists, factors: Floats | None = None) -> None:
        """Add rows times their variables to the weights, or times the factor of their class.

        Raises
        ------
        TablesFullError
            The weights do not fit.
        """
        total = int(lists.offsets[-1]) + len(rows)

        def work(owner: _Owner) -> None:
            done = 0
            while done < total:
                done = self.kernels.add_rows(
                    *owner.tables.arrays, owner.tables.own, done, *_nonzeros(rows), rows.y,
                    self.rank, self.problem.bias, lists.offsets, lists.outputs, lists.values,
                    np.empty(0) if factors is None else factors, *owner.row,
                )  # fmt: skip
                if done < total:
                    owner.tables.make_room()

        self._for_each_owner(work)

    def norms(self) -> Floats:
        """Return the squared norm of the weights of each class."""
        out = np.zeros(len(self.process))
        for tables in self.tables:
            out[tables.classes] = tables.norms()
        self.own_entries(self.process, out)
        return out

    def sum_of_classes(self, largest: float) -> Floats:
        """Return the sum of the weights of all classes, by rank.

        Parameters
        ----------
        largest : float
            No weight exceeds it.
        """
        unit = math.ldexp(1.0, math.frexp(largest)[1])
        sums, kernels = np.zeros((2, len(self.rank))), load("sbm.solver.kernels.tables")
        for tables in self.tables:
            kernels.add_up(*tables.readable, unit, sums)
        for words in sums:
            self.comm.add_up(words)
        total: Floats = sums[0] + math.ldexp(1.0, -31) * sums[1]
        return total * math.ldexp(unit, -31)

    def products(self, rows: Rows, weights: Floats) -> Floats:
        """Return the product of each row and dense weights, which are by rank."""
        out = np.empty(len(rows))
        self.kernels.dot_rows(*_nonzeros(rows), self.rank, self.problem.bias, weights, out)
        return out

    def look_at(self, rows: Rows, lists: Lists) -> tuple[Floats, Bools, Floats]:
        """Return each row's default, whether it is not 0 or will not be, and its Σβ."""
        n = len(rows)
        facts = np.zeros(n), np.zeros(n, np.bool_), np.zeros(n)
        self.kernels.look_at_lists(
            len(self.process), lists.offsets, lists.outputs, lists.values, rows.y, *facts
        )
        return facts

    def own_values(self, rows: Rows, lists: Lists) -> Floats:
        """Return the decision value of each row's class."""
        z = np.zeros(len(rows))
        self._values(rows, lists, np.empty(0, np.bool_), z, np.empty(0))
        self.own_entries(self.process[rows.y], z)
        return z

    def values(self, rows: Rows, lists: Lists, is_wanted: Bools) -> Floats:
        """Return decision values of listed classes that are wanted; 0 for others."""
        z = np.zeros(len(is_wanted))
        if not len(z):
            return z
        self._values(rows, lists, is_wanted, np.empty(0), z)
        if self.comm.size > 1:
            there = np.flatnonzero(is_wanted)
            mine = z[there]
            self.own_entries(self.process[lists.outputs[there]], mine)
            z[there] = mine
        return z

    def _values(self, rows: Rows, lists: Lists, is_wanted: Bools, z_own: Floats, z: Floats) -> None:
        self._for_each_owner(
            lambda owner: self.kernels.own_values(
                *owner.tables.arrays,
                owner.tables.own,
                *_nonzeros(rows),
                rows.y,
                self.rank,
                self.problem.bias,
                lists.offsets,
                lists.outputs,
                is_wanted,
                *owner.row,
                z_own,
                z,
            )
        )


def _nonzeros(rows: Rows) -> tuple[Any, ...]:
    """Return the nonzeros of rows, as kernels take them."""
    return rows.starts, rows.lengths, rows.indices, rows.values
