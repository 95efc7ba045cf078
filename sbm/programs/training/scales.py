"""Measure whether feature scales differ so much that training converges slowly."""

import numpy as np

from sbm.rows import Arena
from sbm.store.blocks import BlockStore

__all__ = ["feature_scales"]

FREQUENT = 0.1  # minimum share of rows with the feature


def feature_scales(store: BlockStore) -> list[float] | None:
    """Return the smallest and the largest scale of frequent features in the first chunk.

    The scale of a feature is its largest absolute value. The result is None if no feature is
    frequent, or all values are 1.
    """
    chunk = next(iter(store.chunks[store.blocks_here[0]]), None)
    if chunk is None or not chunk.nnz or store.value_type == "ones":
        return None
    y_dtype = "float64" if store.labels is None else "int32"
    arena = Arena.of(chunk.nnz, store.value_type)
    rows = store.read([chunk], arena.room(chunk.rows, y_dtype), 0)
    assert rows.values is not None
    order = np.argsort(rows.indices[: chunk.nnz], kind="stable")
    features = rows.indices[order].astype(np.int64)
    firsts = np.flatnonzero(np.diff(features, prepend=-1))
    scales = np.maximum.reduceat(np.abs(rows.values[order]), firsts)
    counts = np.diff(np.append(firsts, chunk.nnz))
    frequent = scales[(counts >= FREQUENT * chunk.rows) & (scales > 0)]
    return [float(frequent.min()), float(frequent.max())] if len(frequent) else None
