"""Sparse models: r|w|₁ + (1-r)/2 |w|² + C Σ loss, by proximal Newton steps on columns in memory.

With θ = -C f'(z), the slopes of the losses at the margins z = Xw, g = X'θ is minus the gradient of
the losses. The optimality conditions are g_j = r sign(w_j) + (1-r) w_j if w_j is not 0, and
|g_j| ≤ r if it is.

A Newton step minimises the quadratic model of the losses plus the penalty by coordinate descent.
It keeps e = -H X d, where H is the diagonal curvature of the losses and d the step, so that a visit
of column j is one product e·x_j and one addition of -δ H x_j (Yuan, Ho and Lin 2012, newGLMNET). A
line search then finds the length of the step. If sweeps over the columns are not enough, and there
are few columns, X'HX is formed. Then sweeps over it alternate with steps to the optimum of the
weights that are not 0 (feature-sign search; Lee, Battle, Raina and Ng 2007).

The certificate. For any θ, and for r < 1,

    D(θ) = -Σ C f*(-θ_i / C) - Σ_j max(0, |x_j·θ| - r)² / (2 (1-r))  ≤  P(w) for every w.

For r = 1 the second sum must be 0: θ must fulfil |x_j·θ| ≤ 1 for all j. The slopes at w do only in
the limit, so they are scaled by s = 1 / max_j |x_j·θ(w)|. A single rare feature beyond its bound
thus weakens D a lot; Newton steps in the columns of all features beyond their bound restore it.

Terms of a row, for a cost C and q = loss slope:

    log_loss        f = log(1 + exp(-tz))    θ = C t q, q = 1 / (1 + exp(tz))    D = C H(q)
    squared_hinge   f = max(0, 1 - tz)²      θ = 2 C t b, b = max(0, 1 - tz)     D = C (2b - b²)
    squared_error   f = (t - z)²             θ = 2 C e, e = t - z                D = C (2et - e²)

H(q) is the entropy -q log q - (1-q) log(1-q). A factor s multiplies q, b and e.

An intercept is the weight of the bias feature, of value 1, without a penalty. It adds the condition
Σ θ_i = 0 to the dual point. The larger one of Σ θ_i > 0 and Σ -θ_i > 0 is scaled down to the other,
and the sums θ·x_j of both sides are kept apart for this. Between two passes, the intercept is set
to its optimum, so that both are equal except for rounding.

Columns are given as ::

    starts     (m + 1,) int64: column k has nonzeros starts[k] to starts[k + 1]
    rows       int32; or uint8, the differences of consecutive rows, 7 bits a byte, lowest first;
               all bytes of a difference but its last have 128 added
    places     None; or (m,) int64, where the bytes of a column begin
    values     float32 or float64; None if all are 1
    dense      the column of the bias feature, whose value is `bias` in every row; -1 for none

and rows as in `common`. `y` has class codes or targets as float64; `weights` is empty if all are 1.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from sbm.solver.kernels.common import add, dot, exp, log1p, log_ratio

__all__ = [
    "center", "collect", "count", "curvatures", "descend", "differentiate", "dual", "gram",
    "linearize", "movers", "multiply", "near", "number_curved", "products", "shorten", "sweep",
    "visit",
]  # fmt: skip

LOG_LOSS, SQUARED_HINGE, SQUARED_ERROR = range(3)
TARGETS = -2  # `positive` if y has targets
_SUM = {"reassoc", "contract"}  # sums in any order, fixed in the machine code
_TINY = 1e-300
_52 = np.int64(52)
_LOW, _ONE, _TWO = np.uint64(127), np.uint64(1), np.uint64(2)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _target_and_cost(i, y, weights, positive, cost, other):
    """Return the target ±1 or y, and the cost of a row."""
    t, C = y[i], cost
    if positive != TARGETS:
        t = 1.0
        if y[i] != positive:
            t, C = -1.0, other
    if len(weights) > 0:
        C *= weights[i]
    return t, C


@njit(nogil=True, error_model="numpy", forceinline=True)
def _slope(kind, z, t):
    """Return t q, 2 t b or 2 e: minus the derivative of the loss."""
    if kind == LOG_LOSS:
        return t / (1.0 + exp(t * z))
    if kind == SQUARED_HINGE:
        return 2.0 * t * max(0.0, 1.0 - t * z)
    return 2.0 * (t - z)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _loss(kind, z, t):
    if kind == LOG_LOSS:
        m = t * z
        return max(-m, 0.0) + log1p(exp(-abs(m)))
    b = 1.0 - t * z if kind == SQUARED_HINGE else t - z
    return b * b if kind == SQUARED_ERROR or b > 0.0 else 0.0


@njit(nogil=True, error_model="numpy", forceinline=True)
def _curvature(kind, z, t):
    if kind == LOG_LOSS:
        q = 1.0 / (1.0 + exp(abs(z)))
        return q * (1.0 - q)
    return 2.0 if kind == SQUARED_ERROR or t * z < 1.0 else 0.0


@njit(nogil=True, error_model="numpy", forceinline=True)
def _entropy(q):
    """Return -q log q - (1-q) log(1-q) for 0 ≤ q ≤ 1."""
    if q < _TINY or q > 1.0 - 1e-16:
        return 0.0
    return -q * log_ratio(q, 1.0) - (1.0 - q) * log_ratio(1.0 - q, 1.0)


# ------------------------------------------------------------------------------ passes over rows


@njit(nogil=True, error_model="numpy")
def count(starts, lengths, indices, values, bias, first, counts, squares, sizes, last):
    """Add the number of nonzeros and the sum of squares of each feature.

    If `last` is not None, it has the last row of each feature, and `sizes` gets the bytes of the
    differences of rows; `first` is the first row's number.
    """
    for i in range(len(starts)):
        begin = np.uint64(starts[i])
        for p in range(begin, begin + np.uint64(lengths[i])):
            j = np.uint32(indices[p])
            v = 1.0 if values is None else np.float64(values[p])
            counts[j] += 1
            squares[j] += v * v
            if last is not None:
                gap = first + i - last[j]
                last[j] = first + i
                sizes[j] += 1
                while gap >= 128:
                    gap >>= 7
                    sizes[j] += 1
    if bias > 0.0:
        counts[len(counts) - 1] += len(starts)
        squares[len(counts) - 1] += bias * bias * len(starts)


@njit(nogil=True, error_model="numpy")
def visit(
    starts, lengths, indices, values, bias, y, weights, kind, positive, cost, other, w, z, g, rising
):
    """Write the margins of rows at fixed w, and add θ_i x_i to `rising` if θ_i > 0, else to g."""
    last = len(w) - 1
    for i in range(len(starts)):
        begin = np.uint64(starts[i])
        end = begin + np.uint64(lengths[i])
        first = bias * w[last] if bias > 0.0 else 0.0
        z[i], _ = dot(indices, values, begin, end, w, first, 0.0)
        t, C = _target_and_cost(i, y, weights, positive, cost, other)
        theta = C * _slope(kind, z[i], t)
        if theta != 0.0:
            side = rising if theta > 0.0 else g
            add(indices, values, begin, end, side, theta)
            if bias > 0.0:
                side[last] += bias * theta


@njit(nogil=True, error_model="numpy")
def collect(starts, lengths, indices, values, first, column, ends, places, last, rows, kept):
    """Append the nonzeros of chosen features to their columns; `first` is the first row's number.

    `column` has the column of each feature, or -1; `ends` the end of each column; `places` that of
    its bytes, or None, and `last` its last row.
    """
    for i in range(len(starts)):
        begin = np.uint64(starts[i])
        for p in range(begin, begin + np.uint64(lengths[i])):
            k = column[np.uint32(indices[p])]
            if k >= 0:
                place = ends[np.uint32(k)]
                if places is None:
                    rows[np.uint64(place)] = first + i
                else:
                    gap, at = first + i - last[np.uint32(k)], places[np.uint32(k)]
                    last[np.uint32(k)] = first + i
                    while gap >= 128:
                        rows[np.uint64(at)] = np.uint8(128 | (gap & 127))
                        at += 1
                        gap >>= 7
                    rows[np.uint64(at)] = np.uint8(gap)
                    places[np.uint32(k)] = at + 1
                if values is not None:
                    kept[np.uint64(place)] = values[p]
                ends[np.uint32(k)] = place + 1


# -------------------------------------------------------------------------- sums over all margins


@njit(nogil=True, error_model="numpy")
def linearize(
    z, step, length, y, weights, kind, positive, cost, other, theta, model, first, end, sums
):
    """Write θ and the curvature, as in `sweep`, of rows at the margins z + length * step.

    sums: losses, Σ θ_i times the margin.
    """
    loss = linear = 0.0
    for i in range(first, end):
        t, C = _target_and_cost(i, y, weights, positive, cost, other)
        m = z[i] if length == 0.0 else z[i] + length * step[i]
        loss += C * _loss(kind, m, t)
        theta[i] = C * _slope(kind, m, t)
        model[2 * i + 1] = C * _curvature(kind, m, t)
        linear += theta[i] * m
    sums[0], sums[1] = loss, linear


@njit(nogil=True, error_model="numpy")
def center(z, y, weights, kind, positive, cost, other, sums):
    """Find the shift of all margins at which Σ θ_i is 0; written to sums[0]."""
    shift, low, high = 0.0, -np.inf, np.inf
    for _ in range(100):
        slope = size = curvature = 0.0
        for i in range(len(z)):
            t, C = _target_and_cost(i, y, weights, positive, cost, other)
            theta = C * _slope(kind, z[i] + shift, t)
            slope += theta
            size += abs(theta)
            curvature += C * _curvature(kind, z[i] + shift, t)
        if abs(slope) <= 1e-15 * size or not curvature > 0.0:
            break
        if slope > 0.0:
            low = shift
        else:
            high = shift
        step = slope / curvature
        if kind == LOG_LOSS:
            step = min(max(step, -2.0), 2.0)
        new = shift + step
        if not low < new < high:
            new = 0.5 * (low + high)
        if new == shift or not np.isfinite(new):
            break
        shift = new
    sums[0] = shift


@njit(nogil=True, error_model="numpy")
def dual(z, y, weights, kind, positive, cost, other, s, up, down, sums):
    """Sum the row terms of D(s θ), where θ_i > 0 are multiplied by `up`, and θ_i < 0 by `down`.

    For the squared losses, sums are the coefficients a and b of a s - b s², whatever s is; for
    log_loss the value and 0.
    """
    a = b = 0.0
    for i in range(len(z)):
        t, C = _target_and_cost(i, y, weights, positive, cost, other)
        if kind == LOG_LOSS:
            q = s * (up if t > 0.0 else down)
            a += C * _entropy(q / (1.0 + exp(t * z[i])))
        else:
            half = 0.5 * _slope(kind, z[i], t)
            half *= up if half > 0.0 else down
            a += 2.0 * C * half * t
            b += C * half * half
    sums[0], sums[1] = a, b


# ------------------------------------------------------------------------------------- columns


@njit(nogil=True, error_model="numpy", forceinline=True)
def _first(places, k):
    """Return where the bytes of a column begin."""
    return np.uint64(0) if places is None else np.uint64(places[k])


@njit(nogil=True, error_model="numpy", forceinline=True)
def _next(rows, places, a, at, before):
    """Return the row of nonzero `a`, which follows `before`, and where the next one's bytes are."""
    if places is None:
        return np.uint64(np.uint32(rows[a])), at
    byte = np.uint64(rows[at])
    gap, shift = byte & _LOW, np.uint64(7)
    at += _ONE
    while byte > _LOW:
        byte = np.uint64(rows[at])
        gap |= (byte & _LOW) << shift
        shift += np.uint64(7)
        at += _ONE
    return before + gap, at


@njit(nogil=True, error_model="numpy", forceinline=True, fastmath=_SUM)
def _product(starts, rows, places, values, k, dense, bias, e, by):
    """Return e · x_k, where every by-th number of the array belongs to a row."""
    s = 0.0
    if k == dense:
        for i in range((len(e) + by - 1) // by):
            s += np.float64(e[by * i])
        return s * bias
    at, i, by = _first(places, k), np.uint64(0), np.uint64(by)
    for p in range(np.uint64(starts[k]), np.uint64(starts[k + 1])):
        i, at = _next(rows, places, p, at, i)
        one = np.float64(e[by * i])
        s += one if values is None else np.float64(values[p]) * one
    return s


@njit(nogil=True, error_model="numpy")
def differentiate(starts, rows, places, values, dense, bias, theta, g, first, end):
    """Write θ·x_k of the columns from `first` to `end`."""
    for k in range(first, end):
        g[k] = _product(starts, rows, places, values, k, dense, bias, theta, 1)


@njit(nogil=True, error_model="numpy")
def curvatures(starts, rows, places, values, dense, bias, some, H, ridge, h):
    """Write Σ_i H_i x_ik² + ridge of some columns; return the nonzeros visited.

    Every second number of H belongs to a row.
    """
    visited = 0
    for a in range(len(some)):
        k = some[a]
        visited += starts[k + 1] - starts[k]
        if values is None or k == dense:
            h[k] = _product(starts, rows, places, values, k, dense, bias, H, 2)
            if k == dense:
                h[k] *= bias
        else:
            q = 0.0
            at, i = _first(places, k), np.uint64(0)
            for p in range(np.uint64(starts[k]), np.uint64(starts[k + 1])):
                i, at = _next(rows, places, p, at, i)
                v = np.float64(values[p])
                q += v * v * H[_TWO * i]
            h[k] = q
        h[k] += ridge
    return visited


@njit(nogil=True, error_model="numpy")
def number_curved(model, numbers, curved):
    """Number the rows whose H is not 0, and write -1 for the others; return how many there are.

    `curved` gets e and H of these rows, alternately; if they do not fit, returns 0.
    """
    n = 0
    for i in range(len(numbers)):
        numbers[i] = -1
        if model[2 * i + 1] != 0.0:
            if 2 * n + 2 > len(curved):
                return 0
            curved[2 * n] = model[2 * i]
            curved[2 * n + 1] = model[2 * i + 1]
            numbers[i] = n
            n += 1
    return n


@njit(nogil=True, error_model="numpy")
def shorten(starts, rows, values, some, numbers, short_starts, short_rows, short_values):
    """Copy some columns, in ascending order, without the rows that have no number.

    The other columns of the copy are empty. Returns 1, or 0 if the copy has too little room.
    """
    position, room = np.uint64(0), np.uint64(len(short_rows))
    done = 0
    for a in range(len(some)):
        k = some[a]
        while done <= k:
            short_starts[done] = position
            done += 1
        for p in range(np.uint64(starts[k]), np.uint64(starts[k + 1])):
            i = numbers[np.uint32(rows[p])]
            if i >= 0:
                if position == room:
                    return 0
                short_rows[position] = i
                if values is not None:
                    short_values[position] = values[p]
                position += _ONE
    while done < len(short_starts):
        short_starts[done] = position
        done += 1
    return 1


@njit(nogil=True, error_model="numpy")
def products(starts, rows, places, values, dense, bias, some, e, by, out):
    """Write e · x_k of some columns, where every by-th number of e belongs to a row."""
    for a in range(len(some)):
        out[a] = _product(starts, rows, places, values, some[a], dense, bias, e, by)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _violation(G, w, lasso):
    """Return how far a weight is from its optimality condition; G has the l2 part."""
    if w == 0.0:
        return max(0.0, abs(G) - lasso)
    return abs(G - lasso) if w > 0.0 else abs(G + lasso)


@njit(nogil=True, error_model="numpy")
def near(g, w, free, ridge, lasso, share, active, sums):
    """Write the columns worth a visit: with a weight, or |g| above this share of its bound.

    Returns the number of columns; sums: violations.
    """
    n, total = 0, 0.0
    for k in range(len(g)):
        violation = abs(g[k]) if k == free else _violation(g[k] - ridge * w[k], w[k], lasso)
        total += violation
        if violation > 0.0 or w[k] != 0.0 or abs(g[k]) > share * lasso:
            active[n] = k
            n += 1
    sums[0] = total
    return n


@njit(nogil=True, error_model="numpy", forceinline=True)
def _minimum(best, part):
    """Return the weight that minimises a quadratic around `best` plus the penalty."""
    return best - part if best > part else (best + part if best < -part else 0.0)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _descend(starts, rows, places, values, k, dense, bias, step, model):
    """Add -step H x_k to e."""
    if k == dense:
        for i in range(len(model) // 2):
            model[2 * i] -= step * bias * model[2 * i + 1]
        return
    at, i = _first(places, k), np.uint64(0)
    for p in range(np.uint64(starts[k]), np.uint64(starts[k + 1])):
        i, at = _next(rows, places, p, at, i)
        change = step * model[_TWO * i + _ONE]
        model[_TWO * i] -= change if values is None else change * np.float64(values[p])


@njit(nogil=True, error_model="numpy")
def sweep(
    starts, rows, places, values, dense, bias, free, model, g, w, d, h, ridge, lasso, box, active,
    m, limit, gain, gains, sums,
):  # fmt: skip
    """Visit the columns active[:m] once; keep those that may still move at the front.

    `model` has e and H, alternately: a visit needs both, and finds them side by side.

    The penalty is lasso |w|₁ + ridge/2 |w|², without column `free`. Columns with w = 0 whose
    product is more than `limit` inside the bound are dropped. A weight moves at most box[k] in one
    Newton step. `gain` gets the decrease of the model by each column, and `gains` adds it up;
    sums: violations, the largest violation, the decrease.

    Returns
    -------
    tuple of int
        Columns kept, columns that moved, nonzeros visited.
    """
    kept = moved = visited = 0
    total = worst = decrease = 0.0
    for a in range(m):
        k = active[a]
        l1, l2 = (lasso, ridge) if k != free else (0.0, 0.0)
        now = w[k] + d[k]
        G = g[k] + _product(starts, rows, places, values, k, dense, bias, model, 2) - l2 * now
        visited += starts[k + 1] - starts[k]
        gain[k] = 0.0
        if now == 0.0 and abs(G) < l1 - limit:
            continue
        violation = _violation(G, now, l1)
        active[kept] = k
        kept += 1
        total += violation
        worst = max(worst, violation)
        if violation == 0.0:
            continue
        new = _minimum(now + G / h[k], l1 / h[k])
        new = min(max(new, w[k] - box[k]), w[k] + box[k])
        step = new - now
        if step != 0.0:
            d[k] += step
            if new == 0.0:
                d[k] = -w[k]
            gain[k] = 0.5 * h[k] * step * step
            gains[k] += gain[k]
            decrease += gain[k]
            _descend(starts, rows, places, values, k, dense, bias, step, model)
            visited += starts[k + 1] - starts[k]
            moved += 1
    sums[0], sums[1], sums[2] = total, worst, decrease
    return kept, moved, visited


@njit(nogil=True, error_model="numpy", forceinline=True)
def _grade(gain, largest):
    """Return how many times `gain` is halved from `largest`, up to 63."""
    top = np.float64(largest).view(np.int64) >> _52
    return min(np.int64(63), top - (np.float64(gain).view(np.int64) >> _52))


@njit(nogil=True, error_model="numpy")
def movers(starts, active, m, gain, share, room, grades, out):
    """Write the columns with the largest gains: `share` of the sum, at most `room` nonzeros.

    Gains are sorted by their exponents only; `grades`, shape (2, 64), is scratch. Returns the
    number of columns.
    """
    largest = total = 0.0
    for a in range(m):
        total += gain[active[a]]
        largest = max(largest, gain[active[a]])
    if not _TINY < largest < np.inf:
        return 0
    for grade in range(64):
        grades[0, grade] = grades[1, grade] = 0.0
    for a in range(m):
        k = active[a]
        if gain[k] > 0.0:
            grade = _grade(gain[k], largest)
            grades[0, grade] += gain[k]
            grades[1, grade] += starts[k + 1] - starts[k] + 1
    got = used = 0.0
    last = -1
    while last < 62 and got < share * total and used + grades[1, last + 1] <= room:
        last += 1
        got += grades[0, last]
        used += grades[1, last]
    n = 0
    for a in range(m):
        k = active[a]
        if gain[k] > 0.0 and _grade(gain[k], largest) <= last:
            out[n] = k
            n += 1
    return n


@njit(nogil=True, error_model="numpy")
def multiply(starts, rows, places, values, dense, bias, some, d, out):
    """Write Σ_a d_a x_k over some columns k to `out`."""
    out[:] = 0.0
    for a in range(len(some)):
        k, step = some[a], d[a]
        if step == 0.0:
            continue
        if k == dense:
            for i in range(len(out)):
                out[i] += step * bias
            continue
        at, i = _first(places, k), np.uint64(0)
        for p in range(np.uint64(starts[k]), np.uint64(starts[k + 1])):
            i, at = _next(rows, places, p, at, i)
            out[i] += step if values is None else step * np.float64(values[p])


@njit(nogil=True, error_model="numpy", fastmath=_SUM)
def gram(starts, rows, places, values, dense, bias, some, H, first, by, column, G):
    """Write X'HX of some columns: every by-th row of its lower triangle from `first`, mirrored.

    Every second number of H belongs to a row; `column`, shape (n_rows,), is scratch.
    """
    column[:] = 0.0
    for a in range(first, len(some), by):
        k = some[a]
        _scatter(starts, rows, places, values, k, dense, bias, H, column)
        for b in range(a + 1):
            G[a, b] = _product(starts, rows, places, values, some[b], dense, bias, column, 1)
            G[b, a] = G[a, b]
        if k == dense:
            column[:] = 0.0
            continue
        at, i = _first(places, k), np.uint64(0)
        for p in range(np.uint64(starts[k]), np.uint64(starts[k + 1])):
            i, at = _next(rows, places, p, at, i)
            column[i] = 0.0


@njit(nogil=True, error_model="numpy", forceinline=True)
def _scatter(starts, rows, places, values, k, dense, bias, H, column):
    """Write H x_k to its rows."""
    if k == dense:
        for i in range(len(column)):
            column[i] = bias * H[2 * i]
        return
    at, i = _first(places, k), np.uint64(0)
    for p in range(np.uint64(starts[k]), np.uint64(starts[k + 1])):
        i, at = _next(rows, places, p, at, i)
        column[i] = H[_TWO * i] if values is None else H[_TWO * i] * np.float64(values[p])


@njit(nogil=True, error_model="numpy", fastmath=_SUM)
def descend(G, r, w, d, box, lasso, ridge, tol, most, left):
    """Minimise d'Gd/2 - g·d plus the penalty of w + d by coordinate descent on d.

    G is symmetric, and r is g - G d. `lasso` and `ridge` are those of each weight, which moves at
    most box[a] from w[a]. Ends when the sum of the violations in a sweep, written to left[0], is at
    most `tol`, or after `most` updates. Returns the number of updates.
    """
    updates, before = 0, -1
    while before < updates < most:
        before, left[0] = updates, 0.0
        for a in range(len(r)):
            now, size = w[a] + d[a], G[a, a] + ridge[a]
            slope = r[a] - ridge[a] * now
            left[0] += _violation(slope, now, lasso[a])
            new = _minimum(now + slope / size, lasso[a] / size)
            new = min(max(new, w[a] - box[a]), w[a] + box[a])
            if new == now:
                continue
            updates += 1
            step, d[a] = new - now, new - w[a]
            for b in range(len(r)):
                r[b] -= step * G[a, b]
        if left[0] <= tol:
            break
    return updates
