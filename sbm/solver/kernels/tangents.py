"""Searches along lines between rounds of coordinate descent: the method of parallel tangents.

For a loss with one variable per row the dual is, with w = Σ α_i s_i x_i, ::

    max_α  D(α) = Σ d_i(α_i) - ½|w|²   with bounds on each α

A search begins at α, with an earlier point α' and its w'. It goes along α - α' to where D is
largest if each d_i is replaced by its expansion to second order and there are no bounds. Variables
that leave their bounds are then clipped. If D is smaller there, everything stays as it was.

Given: rows (as in common.py), and as for `solve` in rounds.py. In place: alpha, w; `before` and
`w_before` are the earlier point, and then that of the beginning. Returned: whether D rose.
Source: Shah, Buehler & Kempthorne 1964. Without bounds, and with steps along the gradient instead
of rounds, this is the method of conjugate gradients.
"""

import numpy as np
from numba import njit

from sbm.solver.kernels.common import add

__all__ = ["make_search"]


def make_search(read, expand, clip, dual):
    """Return a kernel that searches along a line, built from functions of a loss.

    `read` is that of rounds.py; ``expand(alpha, row, numbers)`` returns slope and minus curvature
    of d_i at α, ``clip(far, alpha, row)`` how far from α towards `far` the bounds allow to go, and
    ``dual(alpha, row, numbers)`` d_i.
    """

    @njit(nogil=True, error_model="numpy")
    def search(
        starts, lengths, y, weight, indices, values, alpha, w, extra, bias, scale,
        positive, classify, cost_positive, cost_negative, squared, epsilon, ahead,
        before, w_before, sums,
    ):  # fmt: skip
        """Search along a line through the earlier point; return 1 if the dual value rose, or 0.

        Parameters
        ----------
        starts ... ahead
            As in `solve` of rounds.py. The extra feature, if there is one, is the last of w.
        before, w_before : like alpha and w, in place
            An earlier point. Then the point where the search began.
        sums : (1,) float64, added to in place
            Rise of Σ d_i.
        """
        numbers = positive, classify, cost_positive, cost_negative, squared, epsilon
        n, d = len(starts), len(w)
        slope = 0.0
        curvature = 0.0
        for i in range(n):
            way = alpha[i] - before[i]
            if way != 0.0:
                first, second = expand(alpha[i], read(i, y, weight, numbers), numbers)
                slope += first * way
                curvature += second * way * way
        square = 0.0
        for j in range(d):
            way = w[j] - w_before[j]
            slope -= w[j] * way
            curvature += way * way
            square += w[j] * w[j]
        t = slope / curvature
        if not 0.0 < t < np.inf:
            return 0
        for j in range(d):
            old = w[j]
            w[j] = old + t * (old - w_before[j])
            w_before[j] = old
        rise = 0.0
        for i in range(n):
            old = alpha[i]
            way = old - before[i]
            before[i] = old
            if way != 0.0:
                row = read(i, y, weight, numbers)
                far = old + t * way
                new = clip(far, old, row)
                if new != far:
                    step = (new - far) * row[1]
                    begin = np.uint64(starts[i])
                    add(indices, values, begin, begin + np.uint64(lengths[i]), w, step)
                    if bias > 0.0:
                        w[d - 1] += step * bias
                alpha[i] = new
                rise += dual(new, row, numbers) - dual(old, row, numbers)
        for j in range(d):
            square -= w[j] * w[j]
        if not rise + 0.5 * square > 0.0:
            for i in range(n):
                alpha[i] = before[i]
            for j in range(d):
                w[j] = w_before[j]
            return 0
        sums[0] += rise
        return 1

    return search
