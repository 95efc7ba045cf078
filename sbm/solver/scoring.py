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
# For Weston-Watkins, rows that miss more classes get them at once, if there is room: all of them
# if at most this share of the rows are such, as a few could keep the gap large. Otherwise each
# gets a quarter more than those whose variables, from one bound to the other, would make the
# decision value of the row's own class 1, which grows with Σβ.
_HARD = 1 / 16
_KEEP = 0.05  # a class without a variable whose loss is below minus this leaves a list
_NEVER = np.float32(-1e30)  # as in kernels/scoring.py
# Rows whose lists are made at a time, classes of their usual lists with those found, and bytes of
# each row: of classes that are found, and of lists before and after, with losses and marks.
_AT_ONCE, _USUAL, _MAKING = 1 << 14, 64, 40 * 16 + 40 * 48
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
    def of(cls, own: slice, pieces: Sequence[_Found], limits: npt.NDArray[np.int64]) -> _Columns:
        """Return some classes of each row of a range, at most its limit.

        Of a row, the last piece counts.
        """
        sizes = np.zeros(own.stop - own.start, np.int64)
        last = np.full(len(sizes), -1)
        ranges = [np.searchsorted(found.rows, [own.start, own.stop]) for found in pieces]
        for k, (found, (a, b)) in enumerate(zip(pieces, ranges, strict=True)):
            rows = found.rows[a:b]
            sizes[rows - own.start] = np.minimum(found.counts[rows], found.best.shape[1])
            last[rows - own.start] = k
        np.minimum(sizes, limits, out=sizes)
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


@dataclass
class _Given:
    """A block and what is known of its rows, each array with a value a row.

    `stays` is of the entries of the lists, `totals` the sum of the losses of all classes for rows
    with a default, and `limits` has the most classes that a list gets.
    """

    rows: Rows
    facts: RowFacts
    lists: Lists
    z_own: Floats
    defaults: Floats
    totals: Floats
    limits: npt.NDArray[np.int64]
    stays: Bools


def _with_defaults(
    lists: Lists, y: npt.NDArray[Any], n_classes: int, gets_default: Bools, costs: Floats
) -> Lists:
    """Add the default C to the lists of some rows, from the next pass on; see `batches`."""
    rows = np.flatnonzero(gets_default)
    keys = np.repeat(np.arange(len(lists), dtype=np.int64), lists.counts) * n_classes
    keys += lists.outputs
    places = np.searchsorted(keys, rows * n_classes + y[rows])
    offsets = lists.offsets + np.concatenate([[0], np.cumsum(gets_default)])
    outputs = np.insert(lists.outputs, places, y[rows])
    return Lists(offsets, outputs, np.insert(lists.values, places, -costs[rows]))


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
        every, zeros = self._taking_part(facts), np.zeros(n)
        found = self._find(rows, facts, every, none, zeros, zeros, FOUND, _EVERY)
        parts: list[Lists] = []
        for first in range(0, n, _AT_ONCE):
            own = slice(first, min(first + _AT_ONCE, n))
            columns = _Columns.of(own, [found], np.full(own.stop - own.start, FOUND))
            parts.append(Lists(columns.ends, columns.classes, np.zeros(len(columns.classes))))
        joined = join(parts or [none])
        assert isinstance(joined, Lists)
        return joined

    def score(
        self,
        rows: Rows,
        facts: RowFacts,
        lists: Lists,
        room: int,
        stays: Bools,
        centre: Floats | None,
        may_default: bool,
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
        centre : ndarray, shape (n_weights,), float64, or None
            Mean of the weights of all classes, by rank, if rows have defaults.
        may_default : bool
            Whether rows get defaults; from the next pass on.

        Returns
        -------
        sums : ndarray, shape (6,), float64
            See the kernel ``batches.sum_up``.
        lists : Lists
            For the next visits.
        """
        weights = self._weights
        z_own, n_classes = weights.own_values(rows, lists), len(weights.process)
        defaults, is_fixed, beta_sums = weights.look_at(rows, lists)
        totals = np.zeros(len(rows))  # of all losses of a row
        if centre is not None:
            totals = n_classes * (weights.products(rows, centre) - z_own) + (n_classes - 1)
        every = self._taking_part(facts)
        found = self._find(rows, facts, every, lists, z_own, defaults, FOUND, 0.0)
        pieces, is_hard = [found], found.counts > FOUND
        is_ww = weights.problem.loss.name == "weston_watkins"
        gets_default = np.zeros(len(rows), np.bool_)
        if is_ww and may_default:
            # If more than half of the variables will be at C: own values grow with their sum.
            half = 0.5 * (n_classes - 1)
            gets_default = ~is_fixed & (found.counts > half)
            gets_default &= z_own * half * facts.costs < beta_sums
            is_hard &= ~gets_default
        hard = np.flatnonzero(is_hard).astype(np.int32)
        limits = np.full(len(rows), FOUND)  # most classes that a list gets
        if is_ww and len(hard):
            wanted = found.counts[hard].astype(np.float64)
            if len(hard) > max(1, int(_HARD * len(rows))):
                z, betas = z_own[hard], beta_sums[hard]
                missing = abs(betas / np.maximum(z, 1e-9) - betas) / facts.costs[hard]
                np.clip(1.25 * missing, FOUND, wanted, out=wanted)
            limits[hard] = wanted
            most = min(int(wanted.max()), max(0, room - len(lists.outputs)) // len(hard))
            if most > FOUND:
                pieces.append(self._find(rows, facts, hard, lists, z_own, defaults, most, 0.0))
        given = _Given(rows, facts, lists, z_own, defaults, totals, limits, stays)
        sums, parts = np.zeros(6), list[Lists]()
        left, longest = room, int(lists.counts.mean()) + pieces[-1].best.shape[1]
        step = max(1, min(len(rows), _AT_ONCE) * _USUAL // max(_USUAL, longest))
        for first in range(0, len(rows), step):
            end = min(first + step, len(rows))
            share = left * (end - first) // (len(rows) - first)
            parts.append(self._settle(given, pieces, slice(first, end), share, sums))
            left -= len(parts[-1].outputs)
        joined = join(parts or [lists])
        assert isinstance(joined, Lists)
        if gets_default.any():
            joined = _with_defaults(joined, rows.y, n_classes, gets_default, facts.costs)
        return sums, joined

    def _settle(
        self, given: _Given, pieces: Sequence[_Found], own: slice, room: int, sums: Floats
    ) -> Lists:
        """Add the certificate of some rows of a block to the sums; return their new lists."""
        weights, kernels, found = self._weights, self._weights.kernels, pieces[0]
        facts, lists, first, end = given.facts, given.lists, own.start, own.stop
        begin, stop = int(lists.offsets[first]), int(lists.offsets[end])
        theirs = lists.part(first, end - first)
        before = Lists(theirs.offsets - begin, lists.outputs[begin:], lists.values[begin:])
        y, limits = given.rows.y[own], given.limits[own].copy()
        while True:
            columns = _Columns.of(own, pieces, limits)
            losses, stays = found.losses[begin:stop], given.stays[begin:stop]
            new, losses, is_new = self._merge(
                before, y, given.defaults[own], stays, losses, columns
            )
            if len(new.outputs) <= room or not len(columns.classes):
                break
            limits //= 2
        is_wanted = np.empty(len(new.outputs), np.bool_)
        kernels.mark_wanted(weights.kind, new.offsets, losses, found.errors[own], is_wanted)
        z = weights.values(given.rows.part(first, end - first), new, is_wanted)
        kernels.sum_up(
            weights.kind, len(weights.process), facts.squares[own], facts.costs[own],
            y, given.defaults[own], given.totals[own], new.offsets, new.outputs,
            new.values, found.errors[own], _ROUNDING, given.z_own[own], is_wanted, is_new, z,
            found.counts[own], columns.ends, found.bounds[own], found.largest(own), sums,
        )  # fmt: skip
        return new

    def _taking_part(self, facts: RowFacts) -> Int32s:
        """Return the rows that have variables: those with nonzeros and a cost."""
        least = 1e-200  # as in kernels/classes.py
        return np.flatnonzero((facts.squares >= least) & (facts.costs > 0)).astype(np.int32)

    def _merge(
        self,
        lists: Lists,
        y: npt.NDArray[Any],
        defaults: Floats,
        stays: Bools,
        losses: Float32s,
        columns: _Columns,
    ) -> tuple[Lists, Float32s, npt.NDArray[np.bool_]]:
        """Return new lists, their losses, and which classes are new."""
        offsets = np.empty_like(lists.offsets)
        new = Lists(offsets, np.empty(0, np.int32), np.empty(0))
        new_losses, is_new = np.empty(0, np.float32), np.empty(0, np.bool_)
        while True:
            size = self._weights.kernels.merge(
                lists.offsets, lists.outputs, lists.values, y, defaults, stays, losses, _KEEP,
                columns.ends, columns.classes, columns.losses, new.offsets, new.outputs, new.values,
                new_losses, is_new,
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
        defaults: Floats,
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
        signs = np.where(defaults > 0, np.float32(-1.0), np.float32(1.0))
        own = z_own, signs, least
        for tables in weights.tables:
            self._score(tables, rows, some, lists, own, prepared, found)
        self._join(lists, found)
        return found

    def _score(
        self,
        tables: Tables,
        rows: Rows,
        some: Int32s,
        lists: Lists,
        own: tuple[Any, ...],
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
                    *prepared, *own, lists.offsets, lists.outputs, found.losses, cursor,
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
