"""Decision values z = W'x of rows."""

import numpy as np
from numba import njit

__all__ = ["decide"]


@njit(nogil=True, error_model="numpy")
def decide(indptr, indices, values, W, start, out):
    """Write the decision values of rows.

    Parameters
    ----------
    indptr : (n_rows + 1,) int64
    indices : (nnz,) int32
        Rows of W; negative for features the model does not know.
    values : (nnz,) float32 or float64, or None
    W : (n_features, n_outputs) float64
    start : (n_outputs,) float64
        Share of the bias.
    out : (n_rows, n_outputs) float64, filled in place

    Returns
    -------
    int
        Nonzeros whose feature is unknown.
    """
    unknown = 0
    for i in range(len(indptr) - 1):
        for k in range(W.shape[1]):
            out[i, k] = start[k]
        for p in range(indptr[i], indptr[i + 1]):
            index = indices[p]
            if index < 0:
                unknown += 1
                continue
            v = 1.0 if values is None else np.float64(values[p])
            for k in range(W.shape[1]):
                out[i, k] += v * W[index, k]
    return unknown
