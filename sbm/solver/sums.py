"""Sums over rows for second-order methods, and systems of linear equations.

All sums are over fixed slices of the rows, added up in a fixed order, so no result depends on the
number of threads. Nothing here calls a BLAS or LAPACK, whose order depends on the processor, nor a
transcendental function of numpy, whose last digit does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.compiled.calls import load
from sbm.distributed.comm import Comm, SerialComm
from sbm.errors import DataError
from sbm.rows import Rows
from sbm.solver.problem import TOO_LARGE, Spread, decide

__all__ = [
    "AT_ONCE", "SLICES", "Sums", "copy_rows", "dot", "exponential", "factorize", "hessian_bytes",
    "product", "product_bytes", "slices_of", "solve", "way_bytes",
]  # fmt: skip

Floats = npt.NDArray[np.float64]

SLICES = 4  # of the rows of a block
AT_ONCE = 4  # models that are solved at the same time, for any number of threads
_TOGETHER = 8  # as in kernels/newton.py
_PARALLEL = 50_000  # rows times weights to add a row to
_RIDGES = (0.0, 1e-14, 1e-12, 1e-10, 1e-8, 1e-6)
# Of `exponential`: numbers at a time, log 2 in two parts, and the coefficients of its series.
_AT_ONCE = 4096
_LOG2_HIGH, _LOG2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_SERIES = [1.0 / math.factorial(k) for k in range(13, -1, -1)]


def hessian_bytes(n_weights: int, n_problems: int, smooth: bool) -> int:
    """Return the bytes of the matrices of a training."""
    matrices = SLICES * n_problems + 3 if smooth else SLICES + n_problems + 3
    return 8 * n_weights * (n_weights * matrices + SLICES * (_TOGETHER + 2))


def product_bytes(n_weights: int, n_problems: int) -> int:
    """Return the bytes of the vectors of a training without matrices."""
    return 8 * n_weights * (n_problems * (2 * SLICES + 2) + SLICES + 8)


def way_bytes(n_weights: int, outputs: Sequence[int]) -> int:
    """Return the bytes of the vectors of a training whose rows are visited in one piece.

    Each problem has two of its own. The others are those of a certificate and of the problems that
    are solved at the same time.
    """
    several = sum(sorted(outputs)[-AT_ONCE:])
    vectors = 2 * sum(outputs) + SLICES * max(outputs) + 3 * several + 2 * SLICES + 8
    return 8 * n_weights * vectors


@functools.cache
def _kernels() -> Any:
    return load("sbm.solver.kernels.newton")


class Sums:
    """Products of rows with vectors, over slices that may be summed in parallel.

    Parameters
    ----------
    n_weights : int
    bias : float
    spread : callable
        Like the builtin `map`.
    comm : Comm, optional
        Connects the ranks that have the rows. All of them get the same results. Default: one rank.
    """

    def __init__(
        self, n_weights: int, bias: float, spread: Spread, comm: Comm | None = None
    ) -> None:
        self.comm: Comm = comm or SerialComm()
        self._kernels = _kernels()
        self.n_weights, self.bias, self.spread = n_weights, bias, spread
        self._dense = np.zeros((SLICES, _TOGETHER, n_weights))
        self._weight = np.zeros((SLICES, _TOGETHER))

    def add_rows(self, rows: Rows, r: Floats, out: Floats) -> None:
        """Add Σ r_i x_i to `out`, shape (n_weights,)."""
        self._kernels.add_rows(
            rows.starts, rows.lengths, rows.indices, rows.values, self.bias, r, out
        )

    def add_gram(self, k: int, rows: Rows, r: Floats, H: Floats) -> None:
        """Add Σ r_i x_i x_i' to the lower triangle of H, with the k-th scratch."""
        self._kernels.gram(
            rows.starts, rows.lengths, rows.indices, rows.values, self.bias, r, H,
            self._dense[k], self._weight[k],
        )  # fmt: skip

    def add_squares(self, rows: Rows, r: Floats, out: Floats) -> None:
        """Add Σ r_i x_i², by weight, to `out`, shape (n_weights,)."""
        self._kernels.add_squares(
            rows.starts, rows.lengths, rows.indices, rows.values, self.bias, r, out
        )

    def add_gram_of(self, rows: Rows, r: Floats, place: npt.NDArray[np.int32], H: Floats) -> None:
        """Add Σ r_i x_i x_i', of the weights that have a place in H, to its lower triangle."""
        self._kernels.gram_of(
            rows.starts,
            rows.lengths,
            rows.indices,
            rows.values,
            self.bias,
            r,
            place,
            H,
            np.empty(len(H), np.int32),
            np.empty(len(H)),
        )

    def multiply(
        self, pieces: Sequence[Rows], r: Sequence[Floats], v: Floats, outs: Floats
    ) -> Floats:
        """Return Σ r_i x_i x_i'v over all rows of the pieces, given r of each piece.

        `outs`, shape (SLICES, n_weights), is scratch, and has the result.
        """
        outs[:] = 0.0

        def work(k: int) -> None:
            for one, mine in list(zip(pieces, r, strict=True))[k::SLICES]:
                self._kernels.multiply(
                    one.starts, one.lengths, one.indices, one.values, self.bias, mine, v, outs[k]
                )

        list(self.spread(work, range(SLICES)))
        return self.add_up(outs)

    def times(self, pieces: Sequence[Rows], w: Floats) -> Floats:
        """Return the decision values of all rows of the pieces."""
        W = w[:, np.newaxis]
        groups = [
            pieces[len(pieces) * k // SLICES : len(pieces) * (k + 1) // SLICES]
            for k in range(SLICES)
        ]

        def work(group: Sequence[Rows]) -> list[Floats]:
            return [decide(rows, W, self.bias)[:, 0] for rows in group]

        found = self._spread(pieces, 1)(work, groups)
        return np.concatenate([np.empty(0), *(z for one in found for z in one)])

    def transposed(self, pieces: Sequence[Rows], r: Floats) -> Floats:
        """Return Σ r_i x_i over all rows of the pieces."""
        parts, outs = _cut(pieces, r), np.zeros((SLICES, self.n_weights))

        def work(k: int) -> None:
            for rows, mine in list(zip(pieces, parts, strict=True))[k::SLICES]:
                self.add_rows(rows, mine, outs[k])

        list(self._spread(pieces, 1)(work, range(SLICES)))
        return self.add_up(outs)

    def add_up(self, outs: Floats) -> Floats:
        """Return the sum of arrays of all ranks; `outs` is changed."""
        total: Floats = outs[0]
        for part in outs[1:]:
            total += part
        self.comm.add_up(total)
        return total

    def total(self, own: float, common: float = 0.0) -> float:
        """Return the sum of a number of each rank, and one that all ranks have."""
        numbers = self.comm.gather([own, common])
        return math.fsum(numbers[:, 0]) + float(numbers[0, 1])

    def least(self, number: float) -> float:
        """Return the least number of all ranks."""
        return float(self.comm.gather([number]).min())

    def gram(self, pieces: Sequence[Rows], r: Floats) -> Floats:
        """Return the lower triangle of Σ r_i x_i x_i' over all rows of the pieces."""
        parts, outs = _cut(pieces, r), np.zeros((SLICES, self.n_weights, self.n_weights))

        def work(k: int) -> None:
            for rows, mine in list(zip(pieces, parts, strict=True))[k::SLICES]:
                self.add_gram(k, rows, mine, outs[k])

        list(self._spread(pieces, self.n_weights)(work, range(SLICES)))
        return self.add_up(outs)

    def _spread(self, pieces: Sequence[Rows], work: int) -> Spread:
        """Return how to call functions: in parallel if it takes longer than starting them."""
        return self.spread if work * sum(map(len, pieces)) > _PARALLEL else map

    def solve(self, factor: tuple[Floats, Floats], b: Floats) -> Floats:
        """Solve a system, given the result of `factorize`; all ranks get the same solution."""
        x = solve(factor, b)
        if self.comm.size > 1:  # other processors may round differently
            x *= self.comm.rank == 0
            self.comm.add_up(x)
        return x


def _cut(pieces: Sequence[Rows], r: Floats) -> list[Floats]:
    """Cut a vector into those of the pieces."""
    return np.split(r, np.cumsum([len(rows) for rows in pieces], dtype=np.intp))[:-1]


def slices_of(rows: Rows) -> list[Rows]:
    """Cut rows into slices."""
    ends = [len(rows) * k // SLICES for k in range(SLICES + 1)]
    return [rows.part(ends[k], ends[k + 1] - ends[k]) for k in range(SLICES)]


def copy_rows(rows: Rows, chosen: npt.NDArray[np.intp]) -> Rows:
    """Return a copy of some rows, with nonzeros of their own."""
    lengths = rows.lengths[chosen]
    ends = np.cumsum(lengths, dtype=np.int64)
    starts = ends - lengths
    where = np.repeat(rows.starts[chosen] - starts, lengths)
    where += np.arange(len(where))
    values = None if rows.values is None else rows.values[where]
    return Rows(starts, lengths, rows.indices[where], values, rows.y[:0])


def factorize(H: Floats) -> tuple[Floats, Floats]:
    """Return the Cholesky factor of H, scaled to a diagonal of 1, and the scale.

    The lower triangle of H counts. A multiple of the identity is added if rounding made H
    indefinite.
    """
    diagonal = np.diag(H)
    if not np.isfinite(diagonal).all():
        raise DataError(TOO_LARGE)
    scale = 1.0 / np.sqrt(np.maximum(diagonal, 1e-300))
    for ridge in _RIDGES:
        L = H * scale
        L *= scale[:, np.newaxis]
        L.flat[:: len(L) + 1] += ridge
        if _kernels().factorize(L):
            return L, scale
    raise DataError(TOO_LARGE)


def solve(factor: tuple[Floats, Floats], b: Floats) -> Floats:
    """Solve a system, given the result of `factorize`."""
    L, scale = factor
    x: Floats = b * scale
    _kernels().solve(L, x)
    x *= scale
    return x


def product(A: Floats, x: Floats) -> Floats:
    """Return A x; unlike that of a BLAS, the result does not depend on the processor."""
    found: Floats = np.einsum("ij,j->i", A, x)
    return found


def exponential(x: Floats) -> Floats:
    """Return exp(x) for x of at most 700 in size, with the same bits on every processor.

    It consists of sums and products, in which processors agree. The error is a few roundings.
    """
    found = np.empty(len(x))
    for k in range(0, len(x), _AT_ONCE):
        some = x[k : k + _AT_ONCE]
        n = np.rint(some * (1.0 / math.log(2.0)))
        r = some - n * _LOG2_HIGH
        r -= n * _LOG2_LOW
        series = np.full(len(some), _SERIES[0])
        for coefficient in _SERIES[1:]:
            series *= r
            series += coefficient
        np.ldexp(series, n.astype(np.int32), out=found[k : k + _AT_ONCE])
    return found


def dot(a: Floats, b: Floats) -> float:
    """Return a·b; unlike that of a BLAS, the result depends on neither threads nor processor."""
    return float((a * b).sum())
