"""Online learners: each row is seen once, in the order in which it comes.

A row x of class y has a margin m, positive where it is classified rightly. Of two classes there is
one weight vector w, and s = ±1; of many there is one a class, and r is the highest-scoring wrong
class, the lowest code of equal ones::

    two classes    m = s w·x,      u = s x
    many           m = z_y - z_r,  u = x at w_y, -x at w_r        z_c = w_c·x

With W for all weights, m = W·u and |u|² = |x|² or 2|x|². The learners move along u, by a step that
depends on the margin before it::

    perceptron           m ≤ 0:  W += u
    passive_aggressive   m < 1:  W += min(C, (1 - m) / |u|²) u
    arow                 m < 1:  W += (1 - m) / (u·Σu + r) Σu,   Σ⁻¹ += diag(u²) / r,   r = 1 / 2C
    pegasos              W *= 1 - 1/t,   m < 1:  W += u / (λt),   |W|² ≤ 1/λ by scaling

The perceptron is that of Rosenblatt 1958, with the max-score update of Crammer & Singer 2003 for
many classes. passive_aggressive is PA-I of Crammer, Dekel, Keshet, Shalev-Shwartz & Singer 2006,
which solves min ½|W' - W|² + C max(0, 1 - W'·u); without C it is MIRA's binary form. arow is that
of Crammer, Kulesza & Dredze 2009, figure 1, which keeps a Gaussian over the weights, here with a
diagonal Σ: of the exact update of Σ⁻¹ the diagonal is kept. pegasos is figure 1 of Shalev-Shwartz,
Singer, Srebro & Cotter 2011, with the projection: subgradient steps of length 1/(λt) on
½λ|W|² + mean max(0, 1 - m).

A row with |x|² = 0 says nothing: it is no update. A bias B > 0 is one more feature of value B, kept
in the last row of W and in no row.

Given: rows (as in sparse.py); class codes `y`; `positive`, where n_outputs is 1: the rows of that
class have s = +1; z (n_outputs,): scratch.
In place: W (n_weights, n_outputs) float64. Returned: the number of updates.
Source: the papers above.
"""

import numpy as np
from numba import njit

from sbm.solver.kernels.sparse import add, dot

__all__ = ["arow", "passive_aggressive", "pegasos", "perceptron"]

# A scale below this is multiplied into the weights, which are as much larger until then.
_SMALL = 1e-100


# ------------------------------------------------------------------------------------- a row


@njit(nogil=True, error_model="numpy", forceinline=True)
def _score(indices, values, begin, end, W, bias, z):
    """Write z = W'x of one row; return |x|²."""
    a = bias * bias
    for k in range(len(z)):
        z[k] = bias * W[W.shape[0] - 1, k] if bias > 0.0 else 0.0
    for p in range(begin, end):
        w = W[np.uint32(indices[p])]
        v = 1.0 if values is None else np.float64(values[p])
        a += v * v
        for k in range(len(z)):
            z[k] += v * w[k]
    return a


@njit(nogil=True, error_model="numpy", forceinline=True)
def _best_wrong(own, z):
    """Return the class that scores highest but for `own`, the lowest code of equal ones."""
    best = np.uint64(own == 0)
    for k in range(best + np.uint64(1), np.uint64(len(z))):
        if k != own and z[k] > z[best]:
            best = k
    return best


@njit(nogil=True, error_model="numpy", forceinline=True)
def _judge(label, indices, values, begin, end, W, bias, positive, z):
    """Return (m, |u|², s, own, rival) of one row; u is s x at column `own`, -x at `rival`.

    Of two classes there is no rival: it is `own`. Of many s is 1.
    """
    if W.shape[1] == 1:
        s = 1.0 if label == positive else -1.0
        z_bias = bias * W[W.shape[0] - 1, 0] if bias > 0.0 else 0.0
        score, a = dot(indices, values, begin, end, W[:, 0], z_bias, bias * bias)
        return s * score, a, s, np.uint64(0), np.uint64(0)
    own = np.uint64(label)
    a = _score(indices, values, begin, end, W, bias, z)
    rival = _best_wrong(own, z)
    return z[own] - z[rival], 2.0 * a, 1.0, own, rival


@njit(nogil=True, error_model="numpy", forceinline=True)
def _add_to(indices, values, begin, end, W, bias, column, step):
    """Add step times one row to a column of W."""
    add(indices, values, begin, end, W[:, column], step)
    if bias > 0.0:
        W[W.shape[0] - 1, column] += step * bias


@njit(nogil=True, error_model="numpy", forceinline=True)
def _move(indices, values, begin, end, W, bias, own, rival, s, step):
    """Add step times u of one row to W."""
    _add_to(indices, values, begin, end, W, bias, own, step * s)
    if rival != own:
        _add_to(indices, values, begin, end, W, bias, rival, -step)


# ------------------------------------------------------------------------- steps along the row


@njit(nogil=True, error_model="numpy")
def perceptron(starts, lengths, y, indices, values, W, positive, bias, z):
    """Add the rows that are classified wrongly, or are undecided.

    Parameters
    ----------
    starts, lengths, y : (n,) int64, int32, int32
    indices, values : int32, float32 or float64 or None
    W : (n_weights, n_outputs) float64, in place
    positive : int
    bias : float
    z : (n_outputs,) float64
        Scratch.

    Returns
    -------
    int
    """
    updates = 0
    for i in range(np.uint64(len(starts))):
        begin = np.uint64(starts[i])
        end = begin + np.uint64(lengths[i])
        m, a, s, own, rival = _judge(y[i], indices, values, begin, end, W, bias, positive, z)
        if m <= 0.0 and a > 0.0:
            updates += 1
            _move(indices, values, begin, end, W, bias, own, rival, s, 1.0)
    return updates


@njit(nogil=True, error_model="numpy")
def passive_aggressive(starts, lengths, y, indices, values, W, positive, bias, C, z):
    """Change W as little as gives each row a margin of 1, by a step of C at most.

    Parameters
    ----------
    starts ... bias, z
        As in `perceptron`.
    C : float
        Longest step, as a multiple of u.

    Returns
    -------
    int
    """
    updates = 0
    for i in range(np.uint64(len(starts))):
        begin = np.uint64(starts[i])
        end = begin + np.uint64(lengths[i])
        m, a, s, own, rival = _judge(y[i], indices, values, begin, end, W, bias, positive, z)
        if m < 1.0 and a > 0.0:
            updates += 1
            step = min(C, (1.0 - m) / a)
            _move(indices, values, begin, end, W, bias, own, rival, s, step)
    return updates


# ------------------------------------------------------------------------------ second order


@njit(nogil=True, error_model="numpy", forceinline=True)
def _variance(indices, values, begin, end, P, bias, column):
    """Return x·Σx of one row, Σ = 1 / (1 + P) at a column."""
    variance = bias * bias / (1.0 + P[P.shape[0] - 1, column]) if bias > 0.0 else 0.0
    for p in range(begin, end):
        v = 1.0 if values is None else np.float64(values[p])
        variance += v * v / (1.0 + P[np.uint32(indices[p]), column])
    return variance


@njit(nogil=True, error_model="numpy", forceinline=True)
def _learn_one(W, P, feature, column, v, step, r):
    """Add step times Σx to one weight, then make it surer; v is the value of its feature."""
    W[feature, column] += step * v / (1.0 + P[feature, column])
    P[feature, column] += v * v / r


@njit(nogil=True, error_model="numpy", forceinline=True)
def _learn_column(indices, values, begin, end, W, P, bias, column, step, r):
    """Add step times Σx of one row to a column of W, then x²/r to that of P."""
    for p in range(begin, end):
        v = 1.0 if values is None else np.float64(values[p])
        _learn_one(W, P, np.uint64(np.uint32(indices[p])), column, v, step, r)
    if bias > 0.0:
        _learn_one(W, P, np.uint64(W.shape[0] - 1), column, bias, step, r)


@njit(nogil=True, error_model="numpy")
def arow(starts, lengths, y, indices, values, W, P, positive, bias, C, z):
    """Move those weights most of which least is known, and know more of them.

    Parameters
    ----------
    starts ... W, positive, bias, z
        As in `perceptron`.
    P : like W, in place
        Precision minus 1: Σ = 1 / (1 + P), so that zeros are the start.
    C : float
        1 / (2r).

    Returns
    -------
    int
    """
    r = 0.5 / C
    updates = 0
    for i in range(np.uint64(len(starts))):
        begin = np.uint64(starts[i])
        end = begin + np.uint64(lengths[i])
        m, a, s, own, rival = _judge(y[i], indices, values, begin, end, W, bias, positive, z)
        if m < 1.0 and a > 0.0:
            updates += 1
            variance = _variance(indices, values, begin, end, P, bias, own)
            if rival != own:
                variance += _variance(indices, values, begin, end, P, bias, rival)
            step = (1.0 - m) / (variance + r)
            _learn_column(indices, values, begin, end, W, P, bias, own, step * s, r)
            if rival != own:
                _learn_column(indices, values, begin, end, W, P, bias, rival, -step, r)
    return updates


# -------------------------------------------------------------------------- subgradient steps


@njit(nogil=True, error_model="numpy")
def _multiply(W, scale):
    for f in range(W.shape[0]):
        for k in range(W.shape[1]):
            W[f, k] *= scale


@njit(nogil=True, error_model="numpy")
def pegasos(starts, lengths, y, indices, values, W, positive, bias, decay, counters, z):
    """Take a subgradient step a row.

    Every step shrinks all weights. They are kept as scale times W until the end of the call, and
    |scale W|² is kept up to date, so that a step takes as long as its row is.

    Parameters
    ----------
    starts ... bias, z
        As in `perceptron`.
    decay : float
        λ.
    counters : (at least 2,) float64, in place
        t, |W|².

    Returns
    -------
    int
    """
    t, norm = counters[0], counters[1]
    scale = 1.0
    updates = 0
    for i in range(np.uint64(len(starts))):
        begin = np.uint64(starts[i])
        end = begin + np.uint64(lengths[i])
        m, a, s, own, rival = _judge(y[i], indices, values, begin, end, W, bias, positive, z)
        m *= scale
        t += 1.0
        shrink = 1.0 - 1.0 / t
        scale *= shrink
        norm *= shrink * shrink
        if m < 1.0 and a > 0.0:
            if scale < _SMALL:  # also at t = 1, when it is 0
                _multiply(W, scale)
                scale = 1.0
            updates += 1
            step = 1.0 / (decay * t)
            _move(indices, values, begin, end, W, bias, own, rival, s, step / scale)
            norm += step * (2.0 * shrink * m + step * a)
            if norm * decay > 1.0:
                scale *= np.sqrt(1.0 / (norm * decay))
                norm = 1.0 / decay
    _multiply(W, scale)
    counters[0], counters[1] = t, norm
    return updates
