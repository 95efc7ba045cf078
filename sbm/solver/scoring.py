"""Losses of all classes for all rows at fixed weights: certificate, and search for classes.

Losses are computed in tiles of classes, approximately; see `sbm.solver.kernels.scoring`. Those that
count in the certificate are computed again, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.alphas import Lists, join
from sbm.compiled.calls import load
from sbm.plain import dataclass
from sbm.rows import Rows
from sbm.solver.byclass import ByClass, RowFacts, Tables

__all__ = ["FOUND", "Scoring", "scoring_bytes"]

Floats = npt.NDArray[np.float64]
Float32s = npt.NDArray[np.float32]
Int32s = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

FOUND = 16  # most classes that a row's list gets at a time; and the first list has
_WIDTH = 128  # classes of a tile, as in kernels/scoring.py
_DENSE = 4096  # most frequent features, which are dense in a tile: 2 MB
# If at most this share of the rows miss more classes, for Weston-Watkins, they get all of them; in
# sum at most so many. A few such rows would keep the gap large.
_HARD, _MOST_HARD = 1 / 16, 1 << 22
_KEEP = 0.05  # a class without a variable whose loss is below minus this leaves a list
_NEVER = np.float32(-1e30)  # as in kernels/scoring.py
# Rows whose lists are made at a time, and bytes of each: of classes that are found, and of usual
# lists before and after, with losses and marks.
_AT_ONCE, _MAKING = 1 << 14, 40 * 16 + 40 * 48
_EVERY = -1e29  # below the loss of any class
_LAST = np.int32(2**31 - 1)  # after all classes
_ROUNDING = 2.0**-28  # of a float64, in that of a float32, and a bit less


def scoring_bytes(n_weights: int, n_rows: int) -> int:
    """Return the bytes of a tile, a quarter of whose lists is not 0, and of lists in the making."""
    dense = min(_DENSE, n_weights)
    tile = _WIDTH * (4 * dense + 5 * (n_weights - dense) // 4) + 8 * n_weights
    return tile + min(n_rows, _AT_ONCE) * _MAKING


@dataclass
class _Found:
    """What a scoring of some rows of a block found.

    Attributes
    ----------
    rows : ndarray, shape (n_some,), int32
        The rows, ascending.
    losses : ndarray, float32
        Losses of listed classes.
    best, best_losses : ndarray, shape (n_some, m), int32, float32
        Classes that are not listed and have the largest losses, the largest first.
    counts : ndarray, shape (n,), int32
        Number of classes that are not listed and have a loss above the least, by row of the block.
    bounds : ndarray, shape (n,), float64
        Bound on the sum of their losses, in errors.
    errors : ndarray, shape (n,), float64
        Error of the losses of each row.
    """

    rows: Int32s
    losses: Float32s
    best: Int32s
    best_losses: Float32s
    counts: Int32s
    bounds: Floats
    errors: Floats

    def largest(self, own: slice) -> Float32s:
        """Return the largest loss of a class that is not listed, for a range of rows."""
        a, b = np.searchsorted(self.rows, [own.start, own.stop])
        found = np.full(own.stop - own.start, _NEVER)
        found[self.rows[a:b] - own.start] = self.best_losses[a:b, 0]
        return found


@dataclass
class _Columns:
    """Classes to add to the lists of rows: ``classes[ends[i] : ends[i + 1]]``, ascending."""

    ends: npt.NDArray[np.int64]
    classes: Int32s
    losses: Float32s

    @classmethod
    def of(cls, own: slice, pieces: Sequence[_Found], most: int) -> _Columns:
        """Return at most `most` classes of each row of a range; of a row, the last piece counts."""
        sizes = np.zeros(own.stop - own.start, np.int64)
        last = np.full(len(sizes), -1)
        ranges = [np.searchsorted(found.rows, [own.start, own.stop]) for found in pieces]
        for k, (found, (a, b)) in enumerate(zip(pieces, ranges, strict=True)):
            rows = found.rows[a:b]
            sizes[rows - own.start] = np.minimum(found.counts[rows], found.best.shape[1])
            last[rows - own.start] = k
        np.minimum(sizes, most, out=sizes)
        ends = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=ends[1:])
        classes, losses = np.empty(ends[-1], np.int32), np.empty(ends[-1], np.float32)
        for k, (found, (a, b)) in enumerate(zip(pieces, ranges, strict=True)):
            places = a + np.flatnonzero(last[found.rows[a:b] - own.start] == k)
            rows = found.rows[places] - own.start
            n = sizes[rows]
            width = int(n.max(initial=0))
            is_there = np.arange(width) < n[:, None]
            theirs = np.where(is_there, found.best[places, :width], _LAST)
            order = np.argsort(theirs, axis=1, kind="stable")
            at = (ends[rows][:, None] + np.arange(width))[is_there]
            classes[at] = np.take_along_axis(theirs, order, 1)[is_there]
            sorted_losses = np.take_along_axis(found.best_losses[places, :width], order, 1)
            losses[at] = sorted_losses[is_there]
        return cls(ends, classes, losses)


class Scoring:
    """Scores the rows of blocks.

    Parameters
    ----------
    weights : ByClass
    """

    def __init__(self, weights: ByClass) -> None:
        self._weights = weights
        self._kernels = load("sbm.solver.kernels.scoring")
        n = len(weights.rank)
        self._tile = np.zeros((min(_DENSE, n), _WIDTH), np.float32)
        self._ends = np.zeros(n - len(self._tile) + 1, np.int64)
        self._places, self._parts = np.zeros(0, np.uint8), np.zeros(0, np.float32)
        self.largest, self._scale = 0.0, 1.0

    def begin(self) -> Floats:
        """Look at the weights before blocks are scored; return the squared norm of each class."""
        norms = self._weights.norms()
        self.largest = math.sqrt(norms.max(initial=0.0))
        self._scale = math.ldexp(1.0, -math.frexp(self.largest)[1])
        return norms

    def first_lists(self, rows: Rows, facts: RowFacts) -> Lists:
        """Return lists of the classes whose weights, their centroids, suit each row best."""
        n = len(rows)
        none = Lists(np.zeros(n + 1, np.int64), np.empty(0, np.int32), np.empty(0))
        every = self._taking_part(facts)
        found = self._find(rows, facts, every, none, np.zeros(n), FOUND, _EVERY)
        parts: list[Lists] = []
        for first in range(0, n, _AT_ONCE):
            own = slice(first, min(first + _AT_ONCE, n))
            columns = _Columns.of(own, [found], FOUND)
            parts.append(Lists(columns.ends, columns.classes, np.zeros(len(columns.classes))))
        joined = join(parts or [none])
        assert isinstance(joined, Lists)
        return joined

    def score(
        self, rows: Rows, facts: RowFacts, lists: Lists, room: int, stays: Bools
    ) -> tuple[Floats, Lists]:
        """Certify the weights for the rows of a block, and find the classes missing in lists.

        Parameters
        ----------
        rows, facts, lists
            Of the block.
        room : int
            Most classes of all lists, unless they have more now.
        stays : ndarray, bool
            Entries of the lists that are not dropped, whatever their loss.

        Returns
        -------
        sums : ndarray, shape (6,), float64
            See the kernel ``batches.sum_up``.
        lists : Lists
            For the next visits.
        """
        weights = self._weights
        z_own = weights.own_values(rows, lists)
        every = self._taking_part(facts)
        found = self._find(rows, facts, every, lists, z_own, FOUND, 0.0)
        pieces = [found]
        hard = np.flatnonzero(found.counts > FOUND).astype(np.int32)
        is_ww = weights.problem.loss.name == "weston_watkins"
        if is_ww and 0 < len(hard) <= max(1, int(_HARD * len(rows))):
            most = max(FOUND, min(int(found.counts[hard].max()), _MOST_HARD // len(hard)))
            pieces.append(self._find(rows, facts, hard, lists, z_own, most, 0.0))
        sums, parts = np.zeros(6), list[Lists]()
        left = room
        for first in range(0, len(rows), _AT_ONCE):
            end = min(first + _AT_ONCE, len(rows))
            share = left * (end - first) // (len(rows) - first)
            parts.append(
                self._settle(rows, facts, lists, z_own, pieces, (first, end), share, stays, sums)
            )
            left -= len(parts[-1].outputs)
        joined = join(parts or [lists])
        assert isinstance(joined, Lists)
        return sums, joined

    def _settle(
        self,
        rows: Rows,
        facts: RowFacts,
        lists: Lists,
        z_own: Floats,
        pieces: Sequence[_Found],
        bounds: tuple[int, int],
        room: int,
        stays: Bools,
        sums: Floats,
    ) -> Lists:
        """Add the certificate of some rows of a block to the sums; return their new lists."""
        weights, kernels, (first, end) = self._weights, self._weights.kernels, bounds
        own, found = slice(first, end), pieces[0]
        begin, stop = int(lists.offsets[first]), int(lists.offsets[end])
        theirs = lists.part(first, end - first)
        before = Lists(theirs.offsets - begin, lists.outputs[begin:], lists.values[begin:])
        most = pieces[-1].best.shape[1]
        while True:
            columns = _Columns.of(own, pieces, most)
            new, losses, is_new = self._merge(
                before, stays[begin:stop], found.losses[begin:stop], columns
            )
            if len(new.outputs) <= room or not len(columns.classes):
                break
            most //= 2
        is_wanted = np.empty(len(new.outputs), np.bool_)
        kernels.mark_wanted(weights.kind, new.offsets, losses, found.errors[own], is_wanted)
        z = weights.values(rows.part(first, end - first), new, is_wanted)
        kernels.sum_up(
            weights.kind, len(weights.process), facts.squares[own], facts.costs[own], new.offsets,
            new.values, found.errors[own], _ROUNDING, z_own[own], is_wanted, is_new, z,
            found.counts[own], columns.ends, found.bounds[own], found.largest(own), sums,
        )  # fmt: skip
        return new

    def _taking_part(self, facts: RowFacts) -> Int32s:
        """Return the rows that have variables: those with nonzeros and a cost."""
        least = 1e-200  # as in kernels/classes.py
        return np.flatnonzero((facts.squares >= least) & (facts.costs > 0)).astype(np.int32)

    def _merge(
        self, lists: Lists, stays: Bools, losses: Float32s, columns: _Columns
    ) -> tuple[Lists, Float32s, npt.NDArray[np.bool_]]:
        """Return new lists, their losses, and which classes are new."""
        offsets = np.empty_like(lists.offsets)
        new = Lists(offsets, np.empty(0, np.int32), np.empty(0))
        new_losses, is_new = np.empty(0, np.float32), np.empty(0, np.bool_)
        while True:
            size = self._weights.kernels.merge(
                lists.offsets, lists.outputs, lists.values, stays, losses, _KEEP, columns.ends,
                columns.classes, columns.losses, new.offsets, new.outputs, new.values, new_losses,
                is_new,
            )  # fmt: skip
            if size <= len(new.outputs):
                return new, new_losses, is_new
            new.set(offsets, np.empty(size, np.int32), np.empty(size))
            new_losses, is_new = np.empty(size, np.float32), np.empty(size, np.bool_)

    def _find(
        self,
        rows: Rows,
        facts: RowFacts,
        some: Int32s,
        lists: Lists,
        z_own: Floats,
        m: int,
        least: float,
    ) -> _Found:
        """Score some rows of a block: find their m classes with the largest losses."""
        weights, n = self._weights, len(rows)
        m = max(1, min(m, len(weights.process) - 1))
        size = rows.nnz + n
        prepared = (
            np.ldexp(1.0, np.frexp(np.sqrt(facts.squares))[1]), np.zeros(n + 1, np.int64),
            np.zeros(n, np.int64), np.empty(size, np.int32), np.empty(size, np.float32),
            np.empty(n),
        )  # fmt: skip
        self._kernels.prepare(
            rows.starts, rows.lengths, rows.indices, rows.values, weights.rank,
            weights.problem.bias, len(self._tile), self.largest, facts.squares, *prepared,
        )  # fmt: skip
        found = _Found(
            some, np.zeros(len(lists.outputs), np.float32), np.full((len(some), m), -1, np.int32),
            np.full((len(some), m), _NEVER), np.zeros(n, np.int32), np.zeros(n), prepared[-1],
        )  # fmt: skip
        for tables in weights.tables:
            self._score(tables, rows, some, lists, z_own, least, prepared, found)
        self._join(lists, found)
        return found

    def _score(
        self,
        tables: Tables,
        rows: Rows,
        some: Int32s,
        lists: Lists,
        z_own: Floats,
        least: float,
        prepared: tuple[Any, ...],
        found: _Found,
    ) -> None:
        """Score some rows for the classes of an owner, tile after tile."""
        cursor = lists.offsets[:-1].copy()
        shares = np.array_split(some, 8)  # for any number of threads
        offsets = np.cumsum([0, *map(len, shares)]).tolist()
        z = [np.empty(_WIDTH, np.float32) for _ in shares]
        for first in range(0, len(tables.classes), _WIDTH):
            last = min(first + _WIDTH, len(tables.classes))
            while True:
                needed = self._kernels.fill_tile(
                    *tables.readable, first, last, self._scale, self._tile, self._ends,
                    self._places, self._parts,
                )  # fmt: skip
                if needed <= len(self._places):
                    break
                self._places = np.empty(needed + needed // 4, np.uint8)
                self._parts = np.empty(len(self._places), np.float32)

            def work(share: int, first: int = first, last: int = last) -> None:
                self._kernels.score(
                    shares[share], offsets[share], first, last, tables.own, tables.classes,
                    rows.y, self._scale, self._tile, self._ends, self._places, self._parts,
                    *prepared, z_own, least, lists.offsets, lists.outputs, found.losses, cursor,
                    found.best, found.best_losses, found.counts, found.bounds, z[share],
                )  # fmt: skip

            for _ in self._weights.spread(work, range(len(shares))):
                pass

    def _join(self, lists: Lists, found: _Found) -> None:
        """Join what all processes found."""
        weights, comm = self._weights, self._weights.comm
        if comm.size == 1:
            return
        weights.own_entries(weights.process[lists.outputs], found.losses)
        for name in ("counts", "bounds"):
            mine = getattr(found, name)
            total = mine.astype(np.float64)
            comm.add_up(total)
            mine[:] = total
        sizes = np.full(comm.size, found.best.size, np.int64)
        shape = found.best.shape
        best = np.hstack([a.reshape(shape) for a in comm.collect(found.best.ravel(), sizes)])
        losses = np.hstack(
            [a.reshape(shape) for a in comm.collect(found.best_losses.ravel(), sizes)]
        )
        order = np.lexsort((best, -losses), axis=1)[:, : shape[1]]
        found.best[:] = np.take_along_axis(best, order, 1)
        found.best_losses[:] = np.take_along_axis(losses, order, 1)
