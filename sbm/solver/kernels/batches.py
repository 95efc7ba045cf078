"""Crammer-Singer and Weston-Watkins with lists of classes, for batches of rows at fixed weights.

The problem is that of `joint`: of a row of class y with losses l_c = 1 - z_y + z_c, the variables
β_c >= 0 of classes c ≠ y, at most C each (Weston-Watkins) or in sum (Crammer-Singer). Only listed
classes have variables other than 0. A visit solves for all variables of the list.

The rows of a batch are visited at the same weights, and all steps Δ are made together. The dual
value changes by Σ l Δ - ½ Σ_c |Σ_i ±Δ_ic x_i|². As |Σ_i Δ_ic x_i|² <= Σ_i Δ_ic² Σ_j |x_i·x_j| over
the rows j of the batch that have class c (Gershgorin), each row maximises, within the bounds, ::

    Σ_c l_c Δ_c - ½ Σ_c h_c Δ_c² - ½ h_y (Σ_c Δ_c)²,    h_ic = Σ_j |x_i·x_j|

so the dual value never falls. With one row in a batch, or no common class, this is the exact
solution of the row's problem.

Each class has one owner, with tables T of weights (`tables`). It computes decision values and
curvatures, and makes the steps. What it computes does not depend on the number of owners, nor does
the division of rows into batches.

A batch has rows 0 to n - 1, with row k of the block ``rows[k]``; its nonzeros ptr[k] to ptr[k + 1],
from mid[k] on outside the heads of tables, of `ranks` and `values`; and its entries first[k] to
first[k + 1]: its own class, then those of its list that are awake, of classes `cls` and, in the
list, places `at` (-1: own class). The lists: row i has entries offsets[i] to offsets[i + 1] of
`listed`, classes in ascending order, ~c if they are asleep, and `betas`.

With a small C, nearly all variables of Weston-Watkins are at C. So a list may have an entry of the
row's own class, whose value d, the row's default, is that of the variables of all classes that are
not listed. Their steps are those of a step -d x of all classes, which no loss sees, so the weights
in the tables are without it: w_c and the same vector for all classes are the weights of variables,
which are 0 in sum. A negative value is a default from the next pass on.
"""

import numpy as np
from numba import njit

from sbm.solver.kernels.classes import EVER, FULL, TINY
from sbm.solver.kernels.common import permute
from sbm.solver.kernels.tables import add, dot, look_ahead

__all__ = [
    "add_rows", "apply", "count_features", "decide", "dot_rows", "gather", "list_rows",
    "look_at_lists", "mark_wanted", "measure", "merge", "own_values", "solve", "sort_nonzeros",
    "sum_up", "visit",
]  # fmt: skip

_CRAMMER_SINGER = 1
_MOST_REST = 3  # a row rests 2^k - 1 rounds after k visits with a small gap
_ASLEEP = -0.005  # a class with a smaller loss and no variable is left alone until the next scoring


@njit(nogil=True, error_model="numpy")
def count_features(lengths, starts, indices, counts):
    """Add the number of nonzeros of each feature to `counts`."""
    for i in range(len(starts)):
        for p in range(starts[i], starts[i] + np.int64(lengths[i])):
            counts[np.uint32(indices[p])] += 1


@njit(nogil=True, error_model="numpy")
def sort_nonzeros(starts, lengths, indices, values, rank, keys):
    """Sort the nonzeros of each row by the rank of their features, in place.

    Then sums over a row do not depend on how many features are in the head of tables.

    Parameters
    ----------
    keys : (longest row,) int32
        Scratch.
    """
    for i in range(len(starts)):
        begin, n = starts[i], np.int64(lengths[i])
        is_sorted = True
        for k in range(n):
            keys[k] = rank[np.uint32(indices[begin + k])]
            is_sorted &= k == 0 or keys[k - 1] <= keys[k]
        gap = 0 if is_sorted else 1
        while 0 < 3 * gap < n:
            gap = 3 * gap + 1
        while gap > 0:  # Shell's sort
            for k in range(gap, n):
                key, feature, to = keys[k], indices[begin + k], k
                value = 1.0 if values is None else np.float64(values[begin + k])
                while to >= gap and keys[to - gap] > key:
                    keys[to] = keys[to - gap]
                    indices[begin + to] = indices[begin + to - gap]
                    if values is not None:
                        values[begin + to] = values[begin + to - gap]
                    to -= gap
                keys[to] = key
                indices[begin + to] = feature
                if values is not None:
                    values[begin + to] = value
            gap //= 3


@njit(nogil=True, error_model="numpy")
def measure(starts, lengths, values, y, weight, costs, bias, squares, own_costs):
    """Write the squared norm and the cost of each row."""
    for i in range(len(starts)):
        square = bias * bias
        for p in range(starts[i], starts[i] + np.int64(lengths[i])):
            v = 1.0 if values is None else np.float64(values[p])
            square += v * v
        squares[i] = square
        own_costs[i] = costs[y[i]] * (weight[i] if len(weight) > 1 else weight[0])


@njit(nogil=True, error_model="numpy")
def list_rows(n, seed, skip, squares, costs, order, out):
    """Write the rows that have variables and do not rest, in random order; return their number."""
    permute(order, n, seed)
    m = 0
    for k in range(n):
        i = order[k]
        if squares[i] < TINY or costs[i] == 0.0:
            continue
        if skip[i] == 0:
            out[m] = i
            m += 1
        else:
            skip[i] -= 1
    return m


@njit(nogil=True, error_model="numpy", forceinline=True)
def _take_row(i, starts, lengths, indices, values, rank, bias, width, ranks, parts, position):
    """Write ranks and values of a row, sorted by rank; return (mid, end)."""
    begin, end = starts[i], starts[i] + np.int64(lengths[i])
    if bias > 0.0:
        ranks[position] = rank[len(rank) - 1]
        parts[position] = bias
        position += 1
    mid = position
    for p in range(begin, end):
        r = rank[np.uint32(indices[p])]
        ranks[position] = r
        parts[position] = 1.0 if values is None else np.float64(values[p])
        position += 1
        if r < width:
            mid = position
    return mid, position


@njit(nogil=True, error_model="numpy")
def gather(
    order, most, starts, lengths, indices, values, y, rank, bias, width, offsets, listed, rows, ptr,
    mid, ranks, parts, first, cls, at,
):  # fmt: skip
    """Begin a batch with at most `most` rows of `order` that fit; return (rows, entries).

    A single row always fits. `width` is that of the heads of tables; the bias must be in them.
    """
    n = 0
    e = 0
    position = 0
    while n < min(most, len(order)):
        i = order[n]
        m = offsets[i + 1] - offsets[i]
        if n > 0 and (position + lengths[i] + 1 > len(ranks) or e + m + 1 > len(cls)):
            break
        rows[n], ptr[n], first[n] = i, position, e
        mid[n], position = _take_row(
            i, starts, lengths, indices, values, rank, bias, width, ranks, parts, position
        )
        cls[e] = y[i]
        at[e] = -1
        e += 1
        for q in range(offsets[i], offsets[i + 1]):
            if listed[q] >= 0 and listed[q] != y[i]:
                cls[e] = listed[q]
                at[e] = q
                e += 1
        n += 1
    ptr[n], first[n] = position, e
    return n, e


@njit(nogil=True, error_model="numpy")
def decide(
    begin, lines, used, head, cells, tags, top, own, n, rows, ptr, mid, ranks, parts, first,
    cls, squares, z, h, seen, stamp, before, row_of, dense, gram, is_known,
):  # fmt: skip
    """Write decision values `z` and curvatures `h` of an owner's entries of a batch.

    Parameters
    ----------
    own : (K,) int32
        Number of each class in the tables; -1 for classes of other owners.
    squares : (n_block,) float64
        Squared norms of rows.
    seen, stamp : (K + 1,) int64
        Scratch: the last entry of a class, and whether it is of this batch.
    before, row_of : (n_entries,) int64, int32
        Scratch: the entry before one of the same class, and the row of each.
    dense : (n_weights,) float64
        Scratch, zeros.
    gram, is_known : (n,) float64, int32
        Scratch: |x_i·x_j| of a row and those before it.
    """
    T = (begin, lines, used, head, cells, tags, top)
    last = len(stamp) - 1
    stamp[last] += 1
    now = stamp[last]
    for k in range(n):
        is_known[k] = -1
    for k in range(n):
        b, m, e = ptr[k], mid[k], ptr[k + 1]
        is_spread = False
        following = first[k]
        while following < first[k + 1] and own[cls[following]] < 0:
            following += 1
        while following < first[k + 1]:
            q = following
            following = q + 1
            while following < first[k + 1] and own[cls[following]] < 0:
                following += 1
            c = cls[q]
            curvature = squares[rows[k]]
            if stamp[c] == now:
                o = seen[c]
                while o >= 0:
                    j = row_of[o]
                    if is_known[j] != k:
                        if not is_spread:
                            for p in range(b, e):
                                dense[np.uint32(ranks[p])] = parts[p]
                            is_spread = True
                        product = 0.0
                        for p in range(ptr[j], ptr[j + 1]):
                            product += parts[p] * dense[np.uint32(ranks[p])]
                        gram[j] = abs(product)
                        is_known[j] = k
                    curvature += gram[j]
                    h[o] += gram[j]
                    o = before[o]
                before[q] = seen[c]
            else:
                before[q] = -1
                stamp[c] = now
            seen[c] = q
            row_of[q] = k
            h[q] = curvature
            if following < first[k + 1]:
                look_ahead(T, own[cls[following]], ranks, b, m, e)
            z[q] = dot(T, own[c], ranks, parts, b, m, e)
        if is_spread:
            for p in range(b, e):
                dense[np.uint32(ranks[p])] = 0.0


@njit(nogil=True, error_model="numpy", forceinline=True)
def _step_in_box(loss, beta, h, h_own, n, C, new):
    """Write the variables of a row that maximise its part of the bound, at most C each; see above.

    They are new_c = clip(β_c + (l_c - t) / h_c) with t = h_own ΣΔ, the root of a decreasing,
    piecewise linear function.
    """
    low, high, t = -EVER, EVER, 0.0
    for _ in range(100):
        above = 0.0
        below = 1.0
        for k in range(n):
            b = beta[k] + (loss[k] - t) / h[k]
            if b <= 0.0:
                above -= h_own * beta[k]
            elif b >= C:
                above += h_own * (C - beta[k])
            else:
                above += h_own * loss[k] / h[k]
                below += h_own / h[k]
        following = above / below
        if following == t:
            break
        if following > t:
            low = t
        else:
            high = t
        if following <= low or following >= high:
            following = 0.5 * (low + high)
            if following <= low or following >= high:
                break
        t = following
    for k in range(n):
        new[k] = min(max(beta[k] + (loss[k] - t) / h[k], 0.0), C)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _step_in_simplex(loss, beta, h, h_own, n, C, new):
    """Write the variables of a row that maximise its part of the bound, at most C in sum.

    They are new_c = max(0, (v_c - t) / h_c), with v_c = l_c + h_c β_c, where t is the root of
    Σ new = min(t / h_own + Σβ, C). The v_c and t are relative to the largest v_c, because h C may
    be lost in the rounding of a loss. Newton's method on a convex function: after the first step it
    approaches from below, and it ends when the set of positive variables repeats.
    """
    top = 0
    sum_ = 0.0
    for k in range(n):
        sum_ += beta[k]
        if loss[k] + h[k] * beta[k] > loss[top] + h[top] * beta[top]:
            top = k
    largest = loss[top] + h[top] * beta[top] if n > 0 else 0.0
    for k in range(n):
        new[k] = (loss[k] - loss[top]) + (h[k] * beta[k] - h[top] * beta[top])
    t = -largest
    for step in range(n + 2):
        above = 0.0
        below = 0.0
        for k in range(n):
            if new[k] > t:
                above += new[k] / h[k]
                below += 1.0 / h[k]
        following = (h_own * (above - sum_) - largest) / (1.0 + h_own * below)
        if below > 0.0:
            following = max(following, (above - C) / below)
        if step > 0 and following <= t:
            break
        t = following
    sum_ = 0.0
    for k in range(n):
        new[k] = max((new[k] - t) / h[k], 0.0)
        sum_ += new[k]
    if sum_ > C * FULL:  # what the variables lack to C is rounding
        for k in range(n):
            new[k] *= C / sum_


@njit(nogil=True, error_model="numpy")
def solve(
    n,
    rows,
    first,
    at,
    z,
    h,
    kind,
    squares,
    costs,
    listed,
    betas,
    small,
    rest,
    skip,
    loss,
    new,
    steps,
    stats,
):
    """Solve the problems of the rows of a batch, and change their variables.

    Parameters
    ----------
    kind : int
        As in `joint`.
    squares, costs : (n_block,) float64
    small : float
        A row with at most this gap rests.
    rest, skip : (n_block,) uint8
        Visits with a small gap in a row; rounds to rest.
    loss, new : (most entries of a row,) float64
        Scratch.
    steps : (n_entries,) float64
        Steps of weights of classes, in rows: own class first. Written.
    stats : (6,) float64
        Raised by: gaps at the visits, rise of Σβ, rows, entries that moved; squared steps times
        curvatures, and times those of rows alone.
    """
    for k in range(n):
        i = rows[k]
        C = costs[i]
        b = first[k]
        m = first[k + 1] - b - 1
        most = 0.0
        sum_ = 0.0
        gap = 0.0
        beta = betas[at[b + 1] : at[b + m] + 1] if m > 0 else betas[:0]
        packed = len(beta) == m
        for j in range(m):
            q = b + 1 + j
            loss[j] = 1.0 - z[b] + z[q]
            old = betas[at[q]]
            most = max(most, loss[j])
            sum_ += old
            gap += (C - old) * max(loss[j], 0.0) - old * min(loss[j], 0.0)
        if kind == _CRAMMER_SINGER:
            gap = max(C - sum_, 0.0) * most
            for j in range(m):
                gap += betas[at[b + 1 + j]] * (most - loss[j])
        if not packed:  # some between are asleep
            beta = new[m : 2 * m]
            for j in range(m):
                beta[j] = betas[at[b + 1 + j]]
        stats[0] += gap
        stats[2] += 1
        if kind == _CRAMMER_SINGER:
            _step_in_simplex(loss, beta, h[b + 1 :], h[b], m, C, new)
        else:
            _step_in_box(loss, beta, h[b + 1 :], h[b], m, C, new)
        total = 0.0
        for j in range(m):
            q = b + 1 + j
            step = new[j] - beta[j]
            total += step
            steps[q] = -step
            stats[3] += step != 0.0
            stats[4] += h[q] * step * step
            stats[5] += squares[i] * step * step
        for j in range(m):
            q = b + 1 + j
            betas[at[q]] = new[j]
            if new[j] == 0.0 and loss[j] < _ASLEEP:
                listed[at[q]] = ~listed[at[q]]
        steps[b] = total
        stats[1] += total
        stats[4] += h[b] * total * total
        stats[5] += squares[i] * total * total
        rest[i] = min(rest[i] + 1, _MOST_REST) if gap <= small else 0
        skip[i] = (1 << rest[i]) - 1


@njit(nogil=True, error_model="numpy")
def apply(
    begin, lines, used, head, cells, tags, top, own, n, done, ptr, mid, ranks, parts, first,
    cls, steps,
):  # fmt: skip
    """Make the steps of an owner's entries of a batch, from entry `done` on; return those done.

    These are fewer than all if the tables are full.
    """
    T = (begin, lines, used, head, cells, tags, top)
    for k in range(n):
        b, m, e = ptr[k], mid[k], ptr[k + 1]
        for q in range(max(done, first[k]), first[k + 1]):
            c = own[cls[q]]
            if c < 0 or steps[q] == 0.0:
                continue
            if q + 1 < first[k + 1] and own[cls[q + 1]] >= 0 and steps[q + 1] != 0.0:
                look_ahead(T, own[cls[q + 1]], ranks, b, m, e)
            if not add(T, c, ranks, parts, b, m, e, steps[q]):
                return q
    return first[n]


@njit(nogil=True, error_model="numpy")
def visit(
    begin, lines, used, head, cells, tags, top, own, order, most, starts, lengths, indices,
    values, y, rank, bias, offsets, listed, betas, kind, squares, costs, small, rest, skip, rows,
    ptr, mid, ranks, parts, first, cls, at, z, h, steps, seen, stamp, before, row_of, dense, gram,
    is_known, loss, new, state, stats,
):  # fmt: skip
    """Visit the rows of `order` in batches if all classes have one owner; return whether all are.

    Otherwise the tables are full, and another call continues. The arrays are those of `gather`,
    `decide`, `solve` and `apply`.

    Parameters
    ----------
    state : (4,) int64
        Rows of `order` that are visited; of the last batch, rows, entries, and entries whose steps
        are made. Zeros before the first call.
    """
    while True:
        if state[1] > 0:
            state[3] = apply(
                begin, lines, used, head, cells, tags, top, own, state[1], state[3], ptr, mid,
                ranks, parts, first, cls, steps,
            )  # fmt: skip
            if state[3] < state[2]:
                return False
        if state[0] == len(order):
            return True
        n, entries = gather(
            order[state[0] :], most, starts, lengths, indices, values, y, rank, bias,
            head.shape[1], offsets, listed, rows, ptr, mid, ranks, parts, first, cls, at,
        )  # fmt: skip
        decide(
            begin, lines, used, head, cells, tags, top, own, n, rows, ptr, mid, ranks, parts,
            first, cls, squares, z, h, seen, stamp, before, row_of, dense, gram, is_known,
        )  # fmt: skip
        solve(
            n, rows, first, at, z, h, kind, squares, costs, listed, betas, small, rest, skip, loss,
            new, steps, stats,
        )  # fmt: skip
        state[0] += n
        state[1], state[2], state[3] = n, entries, 0


@njit(nogil=True, error_model="numpy")
def add_rows(
    begin, lines, used, head, cells, tags, top, own, done, starts, lengths, indices, values,
    y, rank, bias, offsets, listed, betas, factors, ranks, parts,
):  # fmt: skip
    """Add rows times their variables to the weights of an owner's classes; return entries done.

    If `factors` (K,) is not empty, rows times that of their class are added to it instead. Entries
    count from 0: of each row, its own class and then its list. They are fewer than all if the
    tables are full.
    """
    T = (begin, lines, used, head, cells, tags, top)
    for i in range(len(starts)):
        b, e = offsets[i], offsets[i + 1]
        if e + i + 1 <= done:
            continue
        sum_ = 0.0
        default = 0.0
        others = len(own)
        for q in range(b, e):
            if listed[q] == y[i]:
                default = max(betas[q], 0.0)
            else:
                sum_ += betas[q]
                others -= 1
        sum_ += default * others
        is_own = False
        for q in range(b, e):
            is_own |= own[listed[q]] >= 0 and betas[q] != default
        if len(factors) > 0:
            sum_ = factors[y[i]]
        is_own |= own[y[i]] >= 0 and sum_ != 0.0
        if not is_own:
            continue
        mid, end = _take_row(
            i, starts, lengths, indices, values, rank, bias, head.shape[1], ranks, parts, 0
        )
        c = own[y[i]]
        is_due = done <= b + i and c >= 0 and sum_ != 0.0
        if is_due and not add(T, c, ranks, parts, 0, mid, end, sum_):
            return b + i
        for q in range(max(b, done - i - 1), e):
            c = own[listed[q]]
            if c < 0 or betas[q] == default or listed[q] == y[i]:
                continue
            if q + 1 < e and own[listed[q + 1]] >= 0 and betas[q + 1] != default:
                look_ahead(T, own[listed[q + 1]], ranks, 0, mid, end)
            if not add(T, c, ranks, parts, 0, mid, end, default - betas[q]):
                return q + i + 1
    return offsets[len(starts)] + len(starts)


@njit(nogil=True, error_model="numpy")
def dot_rows(starts, lengths, indices, values, rank, bias, weights, out):
    """Write the product of each row and dense weights, which are by rank."""
    for i in range(len(starts)):
        z = bias * weights[rank[len(rank) - 1]] if bias > 0.0 else 0.0
        for p in range(starts[i], starts[i] + np.int64(lengths[i])):
            v = 1.0 if values is None else np.float64(values[p])
            z += v * weights[rank[np.uint32(indices[p])]]
        out[i] = z


@njit(nogil=True, error_model="numpy")
def look_at_lists(n_classes, offsets, listed, betas, y, defaults, is_fixed, sums):
    """Write default and Σβ of each row, and whether its default is not 0 or will not be."""
    for i in range(len(y)):
        sum_ = 0.0
        default = 0.0
        others = n_classes - 1
        is_fixed[i] = False
        for q in range(offsets[i], offsets[i + 1]):
            if listed[q] == y[i]:
                default = max(betas[q], 0.0)
                is_fixed[i] = True
            else:
                sum_ += betas[q]
                others -= 1
        defaults[i] = default
        sums[i] = sum_ + default * others


@njit(nogil=True, error_model="numpy")
def own_values(
    begin, lines, used, head, cells, tags, top, own, starts, lengths, indices, values, y,
    rank, bias, offsets, listed, wanted, ranks, parts, z_own, z,
):  # fmt: skip
    """Write an owner's decision values: of each row's class, and of wanted entries of its list.

    Parameters
    ----------
    wanted : (any,) bool
        Entries of the lists whose values are wanted; if empty, those of own classes.
    z_own, z : (n,) and (any,) float64
        Written where they are the owner's.
    """
    T = (begin, lines, used, head, cells, tags, top)
    width = head.shape[1]
    for i in range(len(starts)):
        if len(wanted) == 0:
            if own[y[i]] >= 0:
                mid, end = _take_row(
                    i, starts, lengths, indices, values, rank, bias, width, ranks, parts, 0
                )
                z_own[i] = dot(T, own[y[i]], ranks, parts, 0, mid, end)
            continue
        end = 0
        mid = 0
        for q in range(offsets[i], offsets[i + 1]):
            c = own[listed[q]]
            if c >= 0 and wanted[q]:
                if end == 0:
                    mid, end = _take_row(
                        i, starts, lengths, indices, values, rank, bias, width, ranks, parts, 0
                    )
                z[q] = dot(T, c, ranks, parts, 0, mid, end)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _stays(q, listed, betas, y, default, stays):
    """Return whether an entry of a list stays, whatever its loss; see `merge`."""
    return (stays[q] if default == 0.0 else betas[q] != default) or listed[q] == y


@njit(nogil=True, error_model="numpy")
def merge(
    offsets, listed, betas, y, defaults, stays, losses, keep, found_ends, found, found_losses,
    new_offsets, new_listed, new_betas, new_losses, is_new,
):  # fmt: skip
    """Write lists with the classes found, without those to drop; return their size.

    A class is dropped if it has the row's default and need not stay, and has a loss below -`keep`.
    If there is less room, only the offsets are written.

    Parameters
    ----------
    defaults : (n,) float64
    stays : (any,) bool
        Listed classes to keep in rows without a default.
    losses : (any,) float32
        Losses of listed classes, times the signs of rows.
    found_ends, found, found_losses : (n + 1,) int64, (any,) int32, float32
        Classes that are not listed, ascending in each row, and their losses.
    is_new : (any,) bool
        Written: whether a class was found.
    """
    n = len(offsets) - 1
    size = 0
    for i in range(n):
        new_offsets[i] = size
        for q in range(offsets[i], offsets[i + 1]):
            size += losses[q] > -keep or _stays(q, listed, betas, y[i], defaults[i], stays)
        size += found_ends[i + 1] - found_ends[i]
    new_offsets[n] = size
    if size > len(new_listed):
        return size
    to = 0
    for i in range(n):
        f, q = found_ends[i], offsets[i]
        while f < found_ends[i + 1] or q < offsets[i + 1]:
            takes = q == offsets[i + 1] or (f < found_ends[i + 1] and found[f] < listed[q])
            if takes:
                new_listed[to], new_losses[to] = found[f], found_losses[f]
                new_betas[to] = defaults[i]
                f += 1
            else:
                q += 1
                if not losses[q - 1] > -keep and not _stays(
                    q - 1, listed, betas, y[i], defaults[i], stays
                ):
                    continue
                new_listed[to] = listed[q - 1]
                new_betas[to] = betas[q - 1]
                new_losses[to] = losses[q - 1]
            is_new[to] = takes
            to += 1
    return size


@njit(nogil=True, error_model="numpy")
def sum_up(
    kind, n_classes, squares, costs, y, defaults, totals, offsets, listed, betas, errors, rounding,
    z_own, is_wanted, is_new, z, counts, found_ends, bounds, most_found, sums,
):  # fmt: skip
    """Add the certificate of rows to `sums`.

    That is the loss, Σβ, support vectors, those inside their bounds, classes that are missing in
    the lists, and how much larger the loss may be because of rounding.

    Losses of listed classes with `is_wanted` are exact, 1 - z_own + z; those of others are not
    positive, or, for Crammer-Singer, not the largest. If more classes were found, `counts`, than
    are in the list of a row, bounds of all of them count. Of a row with a default, that is true of
    losses times -1, so that their positive parts and the sum of all losses, in `totals`, are the
    loss.

    Parameters
    ----------
    defaults, totals : (n,) float64
    errors : (n,) float64
        Error of approximate losses; that of exact ones is `rounding` times it.
    bounds : (n,) float64
        Sum of the losses of the classes that were found, in errors.
    most_found : (n,) float32
        The largest of them.
    """
    for i in range(len(costs)):
        C = costs[i]
        if C == 0.0:
            continue
        if squares[i] < TINY:  # all losses are 1, and all variables at their bound
            all_ = 1.0 if kind == _CRAMMER_SINGER else n_classes - 1.0
            sums[0] += C * all_
            sums[1] += C * all_
            sums[2] += 1
            continue
        misses = counts[i] > found_ends[i + 1] - found_ends[i]
        total = bounds[i] * errors[i] if misses else 0.0
        sign = 1.0
        others = n_classes - 1
        counted = 1
        if defaults[i] > 0.0:
            total += totals[i]
            sign = -1.0
            counted = n_classes
        most = max(0.0, np.float64(most_found[i]) + errors[i]) if misses else 0.0
        sums[4] += counts[i] - (found_ends[i + 1] - found_ends[i])
        sum_ = 0.0
        positive = 0
        inside = 0
        for q in range(offsets[i], offsets[i + 1]):
            if listed[q] == y[i]:
                continue
            others -= 1
            if is_wanted[q] and not (misses and is_new[q]):
                loss = sign * (1.0 - z_own[i] + z[q])
                total += max(loss, 0.0)
                most = max(most, loss)
                counted += kind != _CRAMMER_SINGER
            sum_ += betas[q]
            positive += betas[q] > 0.0
            inside += 0.0 < betas[q] < C
        positive += defaults[i] > 0.0
        sums[0] += C * (most if kind == _CRAMMER_SINGER else total)
        sums[1] += sum_ + defaults[i] * others
        sums[2] += positive > 0
        sums[5] += C * counted * errors[i] * rounding
        if kind == _CRAMMER_SINGER:
            sums[3] += positive > 1 or (positive == 1 and sum_ < C * FULL)
        else:
            sums[3] += inside > 0


@njit(nogil=True, error_model="numpy")
def mark_wanted(kind, offsets, losses, errors, is_wanted):
    """Mark the entries whose losses may count: above 0, or for Crammer-Singer the largest."""
    for i in range(len(offsets) - 1):
        floor = -errors[i]
        if kind == _CRAMMER_SINGER:
            for q in range(offsets[i], offsets[i + 1]):
                floor = max(floor, losses[q] - 2.0 * errors[i])
        for q in range(offsets[i], offsets[i + 1]):
            is_wanted[q] = losses[q] >= floor
