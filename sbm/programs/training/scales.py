"""The sizes of columns: what `--scale` divides values by, and units of weights."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from sbm.dataset.sources import numeric_features
from sbm.distributed.comm import Comm, SerialComm
from sbm.engine.memory import DRAWN, Part
from sbm.errors import DataError
from sbm.rows import Arena, Rows
from sbm.solver.metric import ColumnSizes, Metric
from sbm.solver.problem import TOO_LARGE, AnyProblem
from sbm.solver.proximal import units_for
from sbm.store.blocks import BlockStore, Chunk

__all__ = ["FEATURE_BYTES", "is_uneven", "scale_features", "units_of"]

Floats = npt.NDArray[np.float64]

FEATURE_BYTES = 5 * 8  # per feature while scales are found, of which 8 stay


def scale_features(store: BlockStore, comm: Comm | None = None) -> BlockStore:
    """Find the scales of all features for the ``scaling`` of a store; return one that scales rows.

    Several ranks read a part of the blocks each.

    Raises
    ------
    DataError
        A standard deviation exceeds the range of a float64.
    """
    if store.scaling == "none" or store.scales is not None or store.value_type == "ones":
        return store
    comm = comm or SerialComm()
    here = store.blocks_here
    if store.shard is None:
        here = here[comm.rank :: comm.size]
    chunks = (chunk for block in here for chunk in store.chunks[block])
    rows = (_read(store, chunk) for chunk in chunks)
    with np.errstate(over="ignore", invalid="ignore"):
        if store.scaling == "maxabs":
            scales = _largest(rows, store.n_features, comm)
        else:
            scales = _deviations(rows, store.n_features, store.n_rows, comm, store.value_type)
    if not np.isfinite(scales).all():
        raise DataError(TOO_LARGE)
    scales = np.where(scales > 0, scales, 1.0)
    is_numeric = numeric_features(store)
    return store.scaled(scales if is_numeric is None else np.where(is_numeric, scales, 1.0))


def _rows_of(store: BlockStore, chunk: Chunk) -> Rows:
    """Return the rows of a chunk, in memory of their own."""
    y_dtype = "float64" if store.labels is None else "int32"
    arena = Arena.of(chunk.nnz, store.value_type)
    return store.read([chunk], arena.room(chunk.rows, y_dtype), 0)


def _read(store: BlockStore, chunk: Chunk) -> tuple[npt.NDArray[np.int32], Floats]:
    """Return indices and values of the nonzeros of a chunk."""
    rows = _rows_of(store, chunk)
    values = np.ones(chunk.nnz) if rows.values is None else rows.values.astype(np.float64)
    return rows.indices, values


def _largest(rows: Iterator[tuple[npt.NDArray[np.int32], Floats]], n: int, comm: Comm) -> Floats:
    """Return the largest absolute value of each feature."""
    found = np.zeros(n)
    for indices, values in rows:
        np.maximum.at(found, indices, np.abs(values))
    mine = found.copy()
    for rank in range(comm.size):
        theirs = mine * (rank == comm.rank)
        comm.add_up(theirs)
        np.maximum(found, theirs, out=found)
    return found


def _deviations(
    rows: Iterator[tuple[npt.NDArray[np.int32], Floats]],
    n: int,
    n_rows: int,
    comm: Comm,
    value_type: str,
) -> Floats:
    """Return the standard deviation of each feature over all rows; 0 if it may be rounding.

    Sums are of differences to a value of the feature, so that little is lost to rounding. A
    constant column may still deviate from its mean by roundings: those made here, and those of its
    values.
    """
    counts, shifts, sums, squares = np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n)
    for indices, values in rows:
        new = counts[indices] == 0
        shifts[indices[new]] = values[new]
        values -= shifts[indices]
        np.add.at(counts, indices, 1.0)
        np.add.at(sums, indices, values)
        np.add.at(squares, indices, values * values)
    # No more arrays than `FEATURE_BYTES`: the names change with what they hold.
    term = np.maximum(counts, 1.0)
    sums /= term
    np.multiply(sums, sums, out=term)
    term *= counts
    squares -= term  # around the mean
    sums += shifts
    means, every, totals = sums, np.multiply(sums, counts, out=shifts), term
    totals[:] = counts
    for array in (totals, every):
        comm.add_up(array)
    np.divide(every, totals, out=every, where=totals > 0)
    means -= every
    means *= means
    means *= counts
    squares += means
    comm.add_up(squares)
    # A deviation of at most two roundings of the mean, in the type of the values, counts as 0. A
    # column that some rows lack differs from its mean by more.
    within = 2.0 * float(np.finfo("float64" if value_type == "float64" else "float32").eps)
    within += (2.0 + comm.size) * float(np.finfo("float64").eps)
    every *= every
    every *= totals
    squares[squares <= within * within * every] = 0.0
    every *= np.subtract(n_rows, totals, out=totals)
    every /= n_rows
    squares += every  # of the rows where it is 0
    squares /= n_rows
    return np.sqrt(np.maximum(squares, 0.0, out=squares), out=squares)


def units_of(
    store: BlockStore, problems: Sequence[AnyProblem], parts: Sequence[Part], comm: Comm
) -> Floats | None:
    """Return the units of weights for training over blocks; None if all are 1.

    All rows are read, unless the first ones show that they are not needed.

    Parameters
    ----------
    store : BlockStore
    problems : sequence of Problem or MultiProblem
    parts : sequence of Part
        Those of this rank.
    comm : Comm
        Connects the ranks, which get the same units.

    Returns
    -------
    ndarray, shape (n_weights, 1), float64, or None
        See `sbm.solver.proximal`.
    """
    sizes = ColumnSizes(store.n_features + (problems[0].bias > 0))
    first = [part.chunks[:1] for part in parts[::DRAWN]]
    others = [part.chunks[k % DRAWN == 0 :] for k, part in enumerate(parts)]
    for chunks in (first, others):
        for chunk in itertools.chain(*chunks):
            sizes.add(_rows_of(store, chunk))
        units = units_for(Metric(sizes.of_all(comm), store.value_type), problems)
        if units is None:
            return None
    return units


def is_uneven(store: BlockStore) -> bool:
    """Whether units of weights pay, as far as the first chunk of the blocks that are here tells."""
    sizes = ColumnSizes(store.n_features)
    for block in store.blocks_here[:1]:
        sizes.add(_rows_of(store, store.chunks[block][0]))
    return Metric(sizes, store.value_type).is_needed
