"""Many classes: one-vs-rest, Crammer-Singer and Weston-Watkins machines, in the dual.

For rows x_i of class y_i with costs C_i, and one weight vector w_c a class, the primal problems are

    min_W  ½ Σ_c |w_c|² + Σ_i φ_i,      z_c = w_c·x_i,   l_c = 1 - z_y + z_c for c ≠ y

    one-vs-rest      φ_i = Σ_c C_ic max(0, 1 - s_ic z_c)^p      s_ic = +1 if c = y_i, else -1
    Crammer-Singer   φ_i = C_i max(0, max_c l_c)
    Weston-Watkins   φ_i = C_i Σ_c max(0, l_c)

and their duals, with variables β_ic ≥ 0 (of the last two for c ≠ y_i only), ::

    max_β  Σ_ic β_ic - ½ Σ D_ic β_ic² - ½|W|²

    one-vs-rest      β_ic ≤ U_ic,        w_c = Σ_i s_ic β_ic x_i
    Crammer-Singer   Σ_c β_ic ≤ C_i,     w_c = Σ_{y_i = c} x_i Σ_d β_id - Σ_{y_i ≠ c} β_ic x_i
    Weston-Watkins   β_ic ≤ C_i,         likewise

with U and D of one-vs-rest as in svc.py; D is 0 in the others. A visit of a row solves for all its
variables at once, exactly: of one-vs-rest one by one (Hsieh et al. 2008), of the others by finding
the level γ = Σ_c β_c, the root of a decreasing, piecewise linear function, in a few sweeps over the
classes (Crammer-Singer: Keerthi et al. 2008, LIBLINEAR's appendix E, algorithm 2, which sorts;
Weston-Watkins: the same with an upper bound for every variable, Wang & Scott 2021).

Variables of a row are kept as a list of those that are not 0, so memory grows with the variables in
use and not with rows times classes. Lists lie in one pool (see `_make_room`).

Given: rows as (starts, lengths, indices, values), `values` None when all are 1; class codes `y`;
`kind` one of the constants below; `first` the class of the first column of W (one-vs-rest divides
the classes into groups; 0 for the others); `costs` (n_classes,): C times class weight, of
one-vs-rest for the rows of the class itself; `cost_rest`: of one-vs-rest for all other rows; a
`weight` for each row, which multiplies both, or None.
In place: lists, W, score.
"""

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from sbm.solver.kernels.sparse import add_sums, new_order, rounding, rows_left

__all__ = ["append", "certify", "copy_lists", "mark_free", "screen", "solve"]

FEW = 16  # classes of a row that later rounds look at, at most
_NEAR = 0.1  # how far a variable at 0 may be from moving, in units of the loss, to be among them

ONE_VS_REST = 0
CRAMMER_SINGER = 1
WESTON_WATKINS = 2

# Sums over the classes of a row may be taken in any order, so that they are taken several at a
# time; nothing that happens to a row is no number.
_FAST = {"reassoc", "nsz", "nnan", "contract"}

# A row with a smaller squared norm than this moves no weight; no cost is as small.
_TINY = 1e-200
# Below any loss and above any variable, but not so that a multiple of 0 would be no number.
_NEVER = -1e300
_EVER = 1e300
_LOW = -1e90  # below any loss, and finite divided by the smallest norm
# Sums of variables that are to be C differ from it by rounding.
_FULL = 1.0 - 1e-12


@intrinsic
def _prefetch(typing_context, array, row, column):
    """Ask for the cache line of array[row, column]; no effect but on time."""

    def generate(context, builder, signature, arguments):
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        width = builder.extract_value(view.shape, 1)
        place = builder.add(builder.mul(arguments[1], width), arguments[2])
        address = builder.bitcast(builder.gep(view.data, [place]), ir.IntType(8).as_pointer())
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [address, word(0), word(3), word(1)])  # read, keep, data
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp), generate


@njit(nogil=True, error_model="numpy", forceinline=True)
def _prefetch_weights(W, indices, begin, length):
    """Ask for the weights of one row: a cache line holds those of 8 classes."""
    width = min(W.shape[1], 32)
    for p in range(begin, begin + length):
        for k in range(0, width, 8):
            _prefetch(W, np.int64(indices[p]), np.int64(k))


# ------------------------------------------------------------------------------ rows times weights


@njit(nogil=True, error_model="numpy", forceinline=True)
def _dot8(indices, values, begin, end, W, k, z):
    """Write z[k : k + 8]; eight sums stay in registers over all nonzeros."""
    z0 = z1 = z2 = z3 = z4 = z5 = z6 = z7 = 0.0
    for p in range(begin, end):
        f = np.uint32(indices[p])
        v = 1.0 if values is None else np.float64(values[p])
        z0 += v * W[f, k]
        z1 += v * W[f, k + np.uint64(1)]
        z2 += v * W[f, k + np.uint64(2)]
        z3 += v * W[f, k + np.uint64(3)]
        z4 += v * W[f, k + np.uint64(4)]
        z5 += v * W[f, k + np.uint64(5)]
        z6 += v * W[f, k + np.uint64(6)]
        z7 += v * W[f, k + np.uint64(7)]
    z[k] = z0
    z[k + np.uint64(1)] = z1
    z[k + np.uint64(2)] = z2
    z[k + np.uint64(3)] = z3
    z[k + np.uint64(4)] = z4
    z[k + np.uint64(5)] = z5
    z[k + np.uint64(6)] = z6
    z[k + np.uint64(7)] = z7


@njit(nogil=True, error_model="numpy", forceinline=True)
def _dot4(indices, values, begin, end, W, k, z):
    """Write z[k : k + 4]."""
    z0 = z1 = z2 = z3 = 0.0
    for p in range(begin, end):
        f = np.uint32(indices[p])
        v = 1.0 if values is None else np.float64(values[p])
        z0 += v * W[f, k]
        z1 += v * W[f, k + np.uint64(1)]
        z2 += v * W[f, k + np.uint64(2)]
        z3 += v * W[f, k + np.uint64(3)]
    z[k] = z0
    z[k + np.uint64(1)] = z1
    z[k + np.uint64(2)] = z2
    z[k + np.uint64(3)] = z3


@njit(nogil=True, error_model="numpy", forceinline=True)
def _dot1(indices, values, begin, end, W, k, z):
    """Write z[k]."""
    sum_ = 0.0
    for p in range(begin, end):
        v = 1.0 if values is None else np.float64(values[p])
        sum_ += v * W[np.uint32(indices[p]), k]
    z[k] = sum_


@njit(nogil=True, error_model="numpy", forceinline=True)
def _decide(indices, values, begin, end, W, bias, z):
    """Write z = W'x of one row. Blocks of classes may overlap: each is written, not added to."""
    outputs = np.uint64(W.shape[1])
    k = np.uint64(0)
    while k + np.uint64(8) <= outputs:
        _dot8(indices, values, begin, end, W, k, z)
        k += np.uint64(8)
    if outputs >= np.uint64(4):
        if k + np.uint64(4) < outputs:
            _dot4(indices, values, begin, end, W, k, z)
        if k < outputs:
            _dot4(indices, values, begin, end, W, outputs - np.uint64(4), z)
    else:
        while k < outputs:
            _dot1(indices, values, begin, end, W, k, z)
            k += np.uint64(1)
    if bias > 0.0:
        for c in range(outputs):
            z[c] += bias * W[W.shape[0] - 1, c]


@njit(nogil=True, error_model="numpy", forceinline=True)
def _squared_norm(values, begin, end):
    if values is None:
        return np.float64(end - begin)
    a = 0.0
    for p in range(begin, end):
        v = np.float64(values[p])
        a += v * v
    return a


@njit(nogil=True, error_model="numpy", forceinline=True)
def _move(indices, values, begin, end, W, bias, columns, steps, n_steps):
    """Add steps[j] times one row to column columns[j] of W, for j below n_steps."""
    for p in range(begin, end):
        f = np.uint32(indices[p])
        v = 1.0 if values is None else np.float64(values[p])
        for j in range(n_steps):
            W[f, np.uint32(columns[j])] += v * steps[j]
    if bias > 0.0:
        for j in range(n_steps):
            W[W.shape[0] - 1, np.uint32(columns[j])] += bias * steps[j]


# --------------------------------------------------------------------------------- lists of a row
#
# The list of row i is outputs[begin[i] : begin[i] + count[i]] and the same of betas. In front of
# every list the pool holds the row it belongs to (in outputs) and its room (in betas): a list that
# outgrows its room moves to the end of the pool, and once the end is reached, what nobody uses any
# more is squeezed out. `held` counts the variables of every block, wherever its rows are, and is
# kept below a limit: so the lists of a block that go to the disk never outgrow their share either.


@njit(nogil=True, error_model="numpy")
def _squeeze(begin, count, outputs, betas, used):
    """Move the lists that are in use to the front of the pool."""
    to = 0
    position = 0
    while position < used[0]:
        i = np.uint64(outputs[position])
        following = position + 1 + np.int64(betas[position])
        if begin[i] == position + 1:
            n = np.int64(count[i])
            outputs[to] = outputs[position]
            betas[to] = np.float64(n)
            for q in range(n):
                outputs[to + 1 + q] = outputs[position + 1 + q]
                betas[to + 1 + q] = betas[position + 1 + q]
            begin[i] = to + 1
            to += 1 + n
        position = following
    used[0] = to


@njit(nogil=True, error_model="numpy", forceinline=True)
def _make_room(i, wanted, begin, outputs, betas, used):
    """Give row i room for `wanted` variables if possible; return the room it has then.

    The variables in its list are lost if it moves: the caller has a copy.
    """
    room = np.int64(betas[begin[i] - 1])
    free = len(outputs) - used[0] - 1
    if wanted <= room or free <= room:
        return room
    room = min(wanted + 1, free)
    outputs[used[0]] = np.int32(i)
    betas[used[0]] = np.float64(room)
    begin[i] = used[0] + 1
    used[0] += 1 + room
    return room


@njit(nogil=True, error_model="numpy", forceinline=True)
def _read(first, n, outputs, betas, beta):
    """Spread the list of n variables that begins at `first` over beta, one entry a class."""
    beta[:] = 0.0
    for q in range(first, first + n):
        beta[np.uint32(outputs[q])] = betas[q]


@njit(nogil=True, error_model="numpy", forceinline=True)
def _write(i, begin, count, outputs, betas, beta, n_outputs, columns, values):
    """Make the list of row i from beta; there must be room."""
    n = _pick(beta, n_outputs, columns, values)
    for j in range(n):
        outputs[begin[i] + j] = columns[j]
        betas[begin[i] + j] = values[j]
    count[i] = n


@njit(nogil=True, error_model="numpy", forceinline=True)
def _pick(beta, n_outputs, columns, values):
    """List what is not 0, without branches; return how much that is."""
    n = 0
    for k in range(n_outputs):
        columns[n] = k
        values[n] = beta[k]
        n += beta[k] != 0.0
    return n


@njit(nogil=True, error_model="numpy", forceinline=True)
def _count(beta, n_outputs):
    n = 0
    for k in range(n_outputs):
        n += beta[k] != 0.0
    return n


@njit(nogil=True, error_model="numpy")
def append(first, rows, offsets, l_outputs, l_betas, begin, count, outputs, betas, used):
    """Give working rows from `first` on the lists of rows of a block; return how many got one.

    Parameters
    ----------
    first : int
    rows : (n,) int32
        Numbers of the rows in the block.
    offsets, l_outputs, l_betas : (n_block + 1,) int64, int32, float64
        Lists of the block.
    begin, count, outputs, betas, used : the pool, in place
    """
    for t in range(len(rows)):
        source = offsets[np.uint32(rows[t])]
        n = offsets[np.uint32(rows[t]) + np.uint32(1)] - source
        if used[0] + 1 + n > len(outputs):
            return t
        outputs[used[0]] = np.int32(first + t)
        betas[used[0]] = np.float64(n)
        begin[first + t] = used[0] + 1
        count[first + t] = n
        for q in range(n):
            outputs[used[0] + 1 + q] = l_outputs[source + q]
            betas[used[0] + 1 + q] = l_betas[source + q]
        used[0] += 1 + n
    return len(rows)


@njit(nogil=True, error_model="numpy")
def copy_lists(begins, counts, outputs, betas, to_begins, to_outputs, to_betas):
    """Copy lists that lie anywhere in one pair of arrays to anywhere in another pair.

    Parameters
    ----------
    begins, counts, to_begins : (n,) int64
    outputs, betas : (any,) int32, float64
    to_outputs, to_betas : (any,) int32, float64, filled in place
    """
    for i in range(len(begins)):
        for q in range(counts[i]):
            to_outputs[to_begins[i] + q] = outputs[begins[i] + q]
            to_betas[to_begins[i] + q] = betas[begins[i] + q]


# ------------------------------------------------------------------------------- one-vs-rest


@njit(nogil=True, error_model="numpy", forceinline=True)
def _row_gap(h, alpha, cost, squared):
    """Share of one variable in P - F, h = 1 - margin, as terms that are never negative."""
    if squared:
        r = max(h, 0.0) - 0.5 * alpha / max(cost, _TINY)
        return cost * r * r - alpha * min(h, 0.0)
    return (cost - alpha) * max(h, 0.0) - alpha * min(h, 0.0)


@njit(nogil=True, error_model="numpy", fastmath=_FAST, forceinline=True)
def _judge_rest(own, z, beta, cost, cost_rest, squared):
    """Return (largest violation, share of the gap) of a row."""
    worst = 0.0
    gap = 0.0
    for k in range(len(z)):
        C = cost if k == own else cost_rest
        h = 1.0 - z[k] if k == own else 1.0 + z[k]
        upper = _EVER if squared else C
        G = (0.5 * beta[k] / max(C, _TINY) if squared else 0.0) - h
        PG = min(G, 0.0) if beta[k] <= 0.0 else (max(G, 0.0) if beta[k] >= upper else G)
        worst = max(worst, abs(PG) if C > 0.0 else 0.0)
        gap += _row_gap(h, beta[k], C, squared) if C > 0.0 else 0.0
    return worst, gap


@njit(nogil=True, error_model="numpy", fastmath=_FAST, forceinline=True)
def _solve_rest(own, z, a, beta, cost, cost_rest, squared, new):
    """Write the exact step of every class, each with the others left alone; return the rank."""
    rank = _NEVER
    for k in range(len(z)):
        C = cost if k == own else cost_rest
        h = 1.0 - z[k] if k == own else 1.0 + z[k]
        diagonal = 0.5 / max(C, _TINY) if squared else 0.0
        upper = _EVER if squared and C > 0.0 else C
        G = diagonal * beta[k] - h
        # A row of zeros has no curvature and G = -1: the step is up, as far as it goes.
        step = G / max(a + diagonal, _TINY)
        new[k] = min(max(beta[k] - step, 0.0), upper)
        slack = -G if new[k] <= 0.0 else (G if new[k] >= upper else abs(G))
        rank = max(rank, slack if C > 0.0 else _NEVER)
    return rank


# ---------------------------------------------------------------- Crammer-Singer, Weston-Watkins


@njit(nogil=True, error_model="numpy", fastmath=_FAST, forceinline=True)
def _losses(own, z):
    """Turn z into l_c = 1 - z_y + z_c, and make l_y so small that it never counts."""
    margin = 1.0 - z[own]
    for k in range(len(z)):
        z[k] += margin
    z[own] = _NEVER


@njit(nogil=True, error_model="numpy", fastmath=_FAST, forceinline=True)
def _judge_joint(loss, beta, C, kind):
    """Return (largest violation, share of the gap) of a row; for a cost of 0 both are 0."""
    if C == 0.0:
        return 0.0, 0.0
    worst = 0.0
    gap = 0.0
    if kind == WESTON_WATKINS:
        for k in range(len(loss)):
            up = max(loss[k], 0.0)
            down = -min(loss[k], 0.0)
            worst = max(worst, up if beta[k] < C else 0.0)
            worst = max(worst, down if beta[k] > 0.0 else 0.0)
            gap += (C - beta[k]) * up + beta[k] * down
        return worst, gap
    most = 0.0
    least = _EVER
    sum_ = 0.0
    for k in range(len(loss)):
        most = max(most, loss[k])
        least = min(least, loss[k] if beta[k] > 0.0 else _EVER)
        sum_ += beta[k]
    for k in range(len(loss)):
        gap += beta[k] * (most - loss[k])
    least = min(least, 0.0) if sum_ < C * _FULL else least  # what is left of C has loss 0
    return max(most - least, 0.0), gap + max(C - sum_, 0.0) * most


@njit(nogil=True, error_model="numpy", fastmath=_FAST, forceinline=True)
def _find_simplex_level(v, top, guess, C):
    """Return the root γ of  Σ max(v_c - γ, 0) = min(top + γ, C).

    The v_c and γ are relative to the largest of them, which is `top`: that may be far above C, and
    then nothing would be left of C.

    Newton's method on a convex, piecewise linear function: after one step from anywhere it comes
    from below and ends exactly, once the same variables are above the level again. It finds what
    LIBLINEAR's algorithm 2 finds by sorting.
    """
    level = guess
    for step in range(len(v) + 2):  # each but the first leaves out a variable
        above = 0
        sum_ = 0.0
        for k in range(len(v)):
            inside = v[k] > level
            above += inside
            sum_ += v[k] if inside else 0.0
        following = (sum_ - top) / (above + 1)
        if top + following > C:
            following = (sum_ - C) / above
        if step > 0 and following <= level:
            break
        level = following
    return level


@njit(nogil=True, error_model="numpy", fastmath=_FAST, forceinline=True)
def _find_box_level(v, keys, C):
    """Return the root γ of  Σ min(max(v_c - γ, 0), C) = γ.

    Variables are fixed at a bound, those at one side at a time, until the level of the others
    violates none of their bounds (Bitran & Hax 1981, for a resource of variable size).
    """
    n = 0
    for k in range(len(v)):
        keys[n] = v[k]
        n += v[k] > 0.0
    full = 0
    while True:
        sum_ = 0.0
        for j in range(n):
            sum_ += keys[j]
        level = (C * full + sum_) / (1 + n)
        below = 0.0
        above = 0.0
        for j in range(n):
            below += max(level - keys[j], 0.0)
            above += max(keys[j] - level - C, 0.0)
        if below == above:  # mostly both are 0
            return level
        m = 0
        for j in range(n):
            key = keys[j]
            keys[m] = key
            stays = key > level if below > above else key - level < C
            m += stays
        if m == n:
            return level
        full += 0 if below > above else n - m
        n = m


@njit(nogil=True, error_model="numpy", fastmath=_FAST, forceinline=True)
def _solve_joint(own, loss, a, beta, C, kind, may_shut, shut, new, v, keys):
    """Write the exact minimiser over all variables of a row whose class is not shut."""
    sum_ = 0.0
    for k in range(len(loss)):
        sum_ += beta[k]
    if a < _TINY:
        left = 1 if kind == CRAMMER_SINGER else len(shut)
        for k in range(len(shut)):
            takes = k != own and not shut[k] and left > 0
            new[k] = C if takes else 0.0
            left -= takes
        return
    scale = 1.0 / a
    if kind == WESTON_WATKINS:
        for k in range(len(loss)):
            v[k] = loss[k] * scale + (beta[k] + sum_)
        if may_shut:
            for k in range(len(shut)):
                v[k] = _NEVER if shut[k] else v[k]
        level = _find_box_level(v, keys, C)
        for k in range(len(loss)):
            new[k] = min(max(v[k] - level, 0.0), C)
        return
    most = _NEVER
    for k in range(len(loss)):
        v[k] = loss[k] + a * beta[k]
    if may_shut:
        for k in range(len(shut)):
            v[k] = _NEVER if shut[k] else v[k]
    for k in range(len(loss)):
        most = max(most, v[k])
    for k in range(len(loss)):
        v[k] = (v[k] - most) * scale
    top = max(most, _LOW) * scale + sum_
    level = _find_simplex_level(v, top, sum_ - top, C)
    total = 0.0
    for k in range(len(loss)):
        new[k] = max(v[k] - level, 0.0)
        total += new[k]
    if total > C * _FULL:  # what the variables lack to C is rounding
        for k in range(len(loss)):
            new[k] *= C / total


@njit(nogil=True, error_model="numpy", fastmath=_FAST, forceinline=True)
def _rank_joint(loss, new, C, kind, violation):
    """Score of a row for the cache: gradients from before its step, variables from after it."""
    rank = _NEVER
    if kind == WESTON_WATKINS:
        for k in range(len(loss)):
            slack = loss[k] if new[k] <= 0.0 else (-loss[k] if new[k] >= C else abs(loss[k]))
            rank = max(rank, slack)
        return rank
    # The variables and what is left of C are a point of a simplex. In a corner of it the row is at
    # rest by the distance to the runner-up; elsewhere it moves by its violation.
    sum_ = 0.0
    positive = 0
    corner = 0.0
    for k in range(len(loss)):
        rises = new[k] > 0.0
        sum_ += new[k]
        positive += rises
        corner = loss[k] if rises else corner
        rank = max(rank, _NEVER if rises else loss[k])
    left = sum_ < C * _FULL
    if positive + left != 1:
        return violation
    return max(rank, 0.0) - corner if positive == 1 else rank


# ------------------------------------------------------------------ what rounding may have done


@njit(nogil=True, error_model="numpy", forceinline=True)
def _size8(indices, values, begin, end, W, k):
    """Return the largest Σ |x_f W_fc| of eight classes c, from k on."""
    s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
    for p in range(begin, end):
        f = np.uint32(indices[p])
        v = 1.0 if values is None else np.float64(values[p])
        s0 += abs(v * W[f, k])
        s1 += abs(v * W[f, k + np.uint64(1)])
        s2 += abs(v * W[f, k + np.uint64(2)])
        s3 += abs(v * W[f, k + np.uint64(3)])
        s4 += abs(v * W[f, k + np.uint64(4)])
        s5 += abs(v * W[f, k + np.uint64(5)])
        s6 += abs(v * W[f, k + np.uint64(6)])
        s7 += abs(v * W[f, k + np.uint64(7)])
    return max(max(max(s0, s1), max(s2, s3)), max(max(s4, s5), max(s6, s7)))


@njit(nogil=True, error_model="numpy", forceinline=True)
def _size1(indices, values, begin, end, W, k):
    """Return Σ |x_f W_fk|."""
    sum_ = 0.0
    for p in range(begin, end):
        v = 1.0 if values is None else np.float64(values[p])
        sum_ += abs(v * W[np.uint32(indices[p]), k])
    return sum_


@njit(nogil=True, error_model="numpy", forceinline=True)
def _error(indices, values, begin, end, W, bias):
    """Bound of the rounding error of every z of one row."""
    outputs = np.uint64(W.shape[1])
    size = 0.0
    k = np.uint64(0)
    while k + np.uint64(8) <= outputs:
        size = max(size, _size8(indices, values, begin, end, W, k))
        k += np.uint64(8)
    if outputs > np.uint64(8) and k < outputs:  # as of `_decide`, blocks may overlap
        size = max(size, _size8(indices, values, begin, end, W, outputs - np.uint64(8)))
        k = outputs
    while k < outputs:
        size = max(size, _size1(indices, values, begin, end, W, k))
        k += np.uint64(1)
    if bias > 0.0:
        last = 0.0
        for c in range(outputs):
            last = max(last, abs(W[W.shape[0] - 1, c]))
        size += bias * last
    return rounding(end - begin, size)


@njit(nogil=True, error_model="numpy", fastmath=_FAST, forceinline=True)
def _missed_rest(own, z, beta, cost, cost_rest, squared, error):
    """How much larger the share of a row in the gap may be, where every z has an error."""
    missed = 0.0
    for k in range(len(z)):
        C = cost if k == own else cost_rest
        h = 1.0 - z[k] if k == own else 1.0 + z[k]
        more = max(h + error, 0.0) - max(h, 0.0)
        if squared:
            r = abs(max(h, 0.0) - 0.5 * beta[k] / max(C, _TINY))
            more = error if beta[k] > 0.0 else more
            one = C * more * (2.0 * r + more)
        else:
            one = (C - beta[k]) * more
        missed += one + beta[k] * error if C > 0.0 else 0.0
    return missed


@njit(nogil=True, error_model="numpy", fastmath=_FAST, forceinline=True)
def _missed_joint(loss, beta, C, kind, error):
    """The same, given losses, where each loss has an error."""
    missed = 0.0
    if kind == WESTON_WATKINS:
        for k in range(len(loss)):
            more = max(loss[k] + error, 0.0) - max(loss[k], 0.0)
            missed += (C - beta[k]) * more + beta[k] * error
        return missed
    most = _NEVER
    sum_ = 0.0
    for k in range(len(loss)):
        most = max(most, loss[k])
        sum_ += beta[k]
    more = max(most + error, 0.0) - max(most, 0.0)
    return max(C - sum_, 0.0) * more + 2.0 * error * sum_


# ------------------------------------------------------------------------------------ the kernels


@njit(nogil=True, error_model="numpy", forceinline=True)
def _column(y, first, W):
    """Column of a row's class; -1 where it is none of these, and not what lies behind them."""
    own = y - first
    return own if own < W.shape[1] else -1


@njit(nogil=True, error_model="numpy", forceinline=True)
def _costs_of(i, label, costs, cost_rest, weight):
    """Return C_i of the row's own class, and of one-vs-rest of all other classes."""
    cost = costs[label]
    if weight is not None:
        cost *= weight[i]
        cost_rest *= weight[i]
    return cost, cost_rest


@njit(nogil=True, error_model="numpy", forceinline=True)
def _judge(own, cost, z, beta, kind, cost_rest, squared):
    """Return (largest violation, share of the gap) of a row; turns z into losses if it has any."""
    if kind == ONE_VS_REST:
        return _judge_rest(own, z, beta, cost, cost_rest, squared)
    _losses(own, z)
    return _judge_joint(z, beta, cost, kind)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _solve_row(own, cost, z, a, beta, kind, cost_rest, squared, violation, shut, new, v, keys):
    """Write the variables of a row after its step; return its rank for the cache."""
    if kind == ONE_VS_REST:
        return _solve_rest(own, z, a, beta, cost, cost_rest, squared, new)
    if violation > 0.0:
        _solve_joint(own, z, a, beta, cost, kind, False, shut, new, v, keys)
    else:
        for k in range(len(beta)):
            new[k] = beta[k]
    return _rank_joint(z, new, cost, kind, violation)


@njit(nogil=True, error_model="numpy")
def _shut_out(beta, new, room, turn, shut):
    """Let as many variables become nonzero as there is room for, and no other one."""
    outputs = len(shut)
    left = room - _count(beta, outputs)
    for t in range(outputs):
        k = (turn + t) % outputs
        grows = beta[k] == 0.0 and new[k] != 0.0 and left > 0
        shut[k] = beta[k] == 0.0 and not grows
        left -= grows


@njit(nogil=True, error_model="numpy", forceinline=True)
def _steps(
    own, cost, beta, new, n_outputs, kind, cost_rest, squared, sigma, columns, steps
):  # fmt: skip
    """List the columns of W that move, and by how much; return (their number, rise of Σ d)."""
    n = 0
    gain = 0.0
    for k in range(n_outputs):
        change = new[k] - beta[k]
        sign = -sigma
        rise = change
        if kind == ONE_VS_REST:
            C = cost if k == own else cost_rest
            sign = sigma if k == own else -sigma
            rise = change * (1.0 - (0.25 / C if squared and C > 0.0 else 0.0) * (new[k] + beta[k]))
        gain += rise
        columns[n] = k
        steps[n] = sign * change
        n += change != 0.0
    if kind != ONE_VS_REST and n > 0:
        columns[n] = own
        steps[n] = sigma * gain
        n += 1
    return n, gain


# Later rounds look at the few classes of a row that matter: those whose variable is not 0 or nearly
# moves, and its own (LIBLINEAR's appendix E.5 shrinks variables likewise). A row with more of them
# than `FEW` is visited with all. The first round always looks at all classes.


@njit(nogil=True, error_model="numpy", forceinline=True)
def _choose_few(own, z, new, n_outputs, kind, few):
    """Write the classes of a row that matter, in order; return how many, or -1 for too many."""
    most = _largest_loss(z, n_outputs, kind)
    n = 0
    for k in range(n_outputs):
        few[min(n, FEW)] = k
        n += (k == own) | _matters(k, own, z, new, most, kind)
    return n if n <= FEW else -1


@njit(nogil=True, error_model="numpy", forceinline=True)
def _count_active(own, z, new, n_outputs, kind):
    """Count the variables of a row that are not shrunk: the cache score of SBM 2011, section 3."""
    most = _largest_loss(z, n_outputs, kind)
    n = 0
    for k in range(n_outputs):
        n += _matters(k, own, z, new, most, kind)
    return n


@njit(nogil=True, error_model="numpy", forceinline=True)
def _largest_loss(z, n_outputs, kind):
    """What the loss of a class is compared with; of Crammer-Singer the largest one counts alone."""
    most = 0.0
    if kind == CRAMMER_SINGER:
        for k in range(n_outputs):
            most = max(most, z[k])
    return most


@njit(nogil=True, error_model="numpy", forceinline=True)
def _matters(k, own, z, new, most, kind):
    """Whether a variable is not 0 or nearly moves."""
    loss = z[k]
    if kind == ONE_VS_REST:
        loss = 1.0 - z[k] if k == own else 1.0 + z[k]
    return (new[k] > 0.0) | (loss > most - _NEAR)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _decide_few(indices, values, begin, end, W, bias, few, m, z):
    """Write z of a few classes of one row."""
    z[:] = _NEVER
    for j in range(m):
        z[j] = bias * W[W.shape[0] - 1, np.uint32(few[j])] if bias > 0.0 else 0.0
    for p in range(begin, end):
        f = np.uint32(indices[p])
        v = 1.0 if values is None else np.float64(values[p])
        for j in range(m):
            z[j] += v * W[f, np.uint32(few[j])]


@njit(nogil=True, error_model="numpy", forceinline=True)
def _read_few(i, begin, count, outputs, betas, few, m, label, beta):
    """Spread the list of row i over its few classes; return where its own class is, or -1."""
    beta[:] = 0.0
    own = -1
    q = begin[i]
    end = q + count[i]
    for j in range(m):
        if few[j] == label:
            own = j
        if q < end and outputs[q] == few[j]:
            beta[j] = betas[q]
            q += 1
    return own


@njit(nogil=True, error_model="numpy")
def solve(
    starts, lengths, y, weight, home, indices, values, begin, count, outputs, betas, used, held,
    few, n_few, score, W, kind, first, costs, cost_rest, bias, squared, sigma, held_limit, rounds,
    chunk, ahead, inner_tol, block, count_active, state, active, order, scratch, scratch_few,
    columns, shut, shut_few, stats,
):  # fmt: skip
    """Run bounded rounds of dual coordinate descent over a working set.

    Rounds, chunks and the order of visits are those of svc.py. Later rounds leave out rows that
    were at rest, farther from moving than the mean violation of the round before.

    Parameters
    ----------
    starts, lengths, y : (n,) int64, int32, int32
    weight : (n,) float64, or None for ones
        Multiplies the costs of each row; a row of weight 0 is never visited.
    home : (n,) int32
    indices, values : int32, float32 or float64 or None
    begin, count : (n,) int64, int32, in place
        List of each row in the pool.
    outputs, betas, used : (room,) int32, (room,) float64, (1,) int64, in place
        The pool and how much of it is taken.
    held : (n_homes,) int64, in place
        Variables of each block.
    few, n_few : (n, FEW + 1) int32, (n,) int32
        Scratch; of no rows where there are few classes anyway.
    score : (n,) float32, in place
        Cache score of each row's last visit.
    W : (n_features + (bias > 0), K) float64, in place
    kind, first : int
    costs : (n_classes,) float64
    cost_rest : float
    squared : bool
        Squared hinge; of one-vs-rest only.
    sigma : float
        1 on one machine; scales curvature and step of W when several are added up.
    held_limit : int
        Most variables of a block.
    rounds, chunk, ahead : int
        Most rounds; rows to a chunk; rows to prefetch ahead, 0 for none.
    inner_tol : float
        End after a full first round whose largest violation is not above.
    block : int
        Rows with home == block count towards the gap estimate.
    count_active : bool
        Score rows by the number of their variables that are not shrunk.
    state : (1,) uint64, in place
        Random generator.
    active, order : (n,) int32, (at least n / chunk,) int64
        Scratch.
    scratch, scratch_few : (6, width) float64, (6, FEW) float64
    columns, shut, shut_few : (width,) int32, (K,) bool, (FEW,) bool
        Scratch; `width` is above K and a multiple of 16, which suits the processor.
    stats : (6,) float64, added to in place
        Change of Σ d_i; gap of the block's rows at their first visit; visits; updates; rounds;
        visits that were cut short because the lists had no room.
    """
    n_outputs = W.shape[1]
    scratch[0, :] = _NEVER
    scratch[2, :] = 0.0
    shut[:] = False
    shut_few[:] = False
    n = len(starts)
    m = n
    gain = 0.0
    gap = 0.0
    updates = 0
    visits = 0
    starved = 0
    limit = np.inf
    for r in range(rounds):
        chunks = new_order(order, m, chunk, state)
        worst = 0.0
        total = 0.0
        dropped = 0
        may_squeeze = True
        for k in range(chunks):
            last = min(m, (order[k] + 1) * chunk)
            for t in range(order[k] * chunk, last):
                if ahead > 0 and t + ahead < last:
                    q = np.uint64(active[t + ahead] if r > 0 else t + ahead)
                    _prefetch_weights(W, indices, np.uint64(starts[q]), np.uint64(lengths[q]))
                i = np.uint64(active[t] if r > 0 else t)
                label = np.int64(y[i])
                cost, rest = _costs_of(i, label, costs, cost_rest, weight)
                if cost == 0.0 and (kind != ONE_VS_REST or rest == 0.0):
                    score[i] = -np.inf
                    continue
                start = np.uint64(starts[i])
                end = start + np.uint64(lengths[i])
                a = sigma * (_squared_norm(values, start, end) + bias * bias)
                in_few = r > 0 and len(n_few) > 0 and n_few[i] >= 0
                room_for = scratch_few if in_few else scratch
                z, beta, new = room_for[0], room_for[1], room_for[2]
                v, keys, steps = room_for[3], room_for[4], room_for[5]
                closed = shut_few if in_few else shut
                if in_few:
                    n_outputs = np.int64(n_few[i])
                    _decide_few(indices, values, start, end, W, bias, few[i], n_outputs, z)
                    own = _read_few(
                        i, begin, count, outputs, betas, few[i], n_outputs, label - first, beta
                    )
                else:
                    n_outputs = W.shape[1]
                    own = _column(label, first, W)
                    _decide(indices, values, start, end, W, bias, z)
                    _read(begin[i], np.int64(count[i]), outputs, betas, beta)
                violation, row_gap = _judge(own, cost, z, beta, kind, rest, squared)
                if r == 0 and home[i] == block:
                    # The product is 0, but no number where |x|² is infinite: that is noticed then.
                    gap += row_gap + 0.0 * a
                worst = max(worst, violation)
                total += violation
                rank = _solve_row(
                    own, cost, z, a, beta, kind, rest, squared, violation, closed, new, v, keys
                )
                score[i] = rank
                if count_active:
                    score[i] = _count_active(own, z, new, n_outputs, kind)
                if len(n_few) > 0 and not in_few and r + 1 < rounds:
                    n_few[i] = _choose_few(own, z, new, n_outputs, kind, few[i])
                if violation == 0.0:
                    if rank < -limit:
                        active[t] = -1
                        dropped += 1
                    continue
                wanted = _count(new, n_outputs)
                before = np.int64(count[i])
                grant = min(wanted, before + held_limit - held[np.uint32(home[i])])
                if may_squeeze and used[0] + 2 + grant > len(outputs):
                    _squeeze(begin, count, outputs, betas, used)
                    may_squeeze = 8 * used[0] < 7 * len(outputs)  # else in vain, row after row
                room = _make_room(i, grant, begin, outputs, betas, used)
                if min(room, grant) < wanted:
                    starved += 1
                    if len(n_few) > 0 and not in_few:
                        n_few[i] = -1  # they were chosen for variables it does not get
                    _shut_out(beta, new, min(room, grant), visits + t, closed)
                    if kind == ONE_VS_REST:
                        for c in range(n_outputs):
                            new[c] = beta[c] if closed[c] else new[c]
                    else:
                        _solve_joint(own, z, a, beta, cost, kind, True, closed, new, v, keys)
                    closed[:] = False
                n_steps, rise = _steps(
                    own, cost, beta, new, n_outputs, kind, rest, squared, sigma, columns, steps
                )
                if in_few:
                    for j in range(n_steps):
                        columns[j] = few[i, np.uint32(columns[j])]
                updates += n_steps > 0
                gain += rise
                _move(indices, values, start, end, W, bias, columns, steps, n_steps)
                _write(i, begin, count, outputs, betas, new, n_outputs, columns, steps)
                if in_few:
                    for q in range(begin[i], begin[i] + count[i]):
                        outputs[q] = few[i, np.uint32(outputs[q])]
                held[np.uint32(home[i])] += np.int64(count[i]) - before
        visits += m
        stats[4] += 1
        if r + 1 == rounds or worst == 0.0 or (r == 0 and worst <= inner_tol):
            break
        limit = total / m  # the mean: the largest violation stays large for long
        m = rows_left(active, m, r, dropped)
    stats[0] += gain
    stats[1] += gap
    stats[2] += visits
    stats[3] += updates
    stats[5] += starved


@njit(nogil=True, error_model="numpy")
def screen(
    starts, lengths, y, weight, indices, values, offsets, outputs, betas, W,
    kind, first, costs, cost_rest, bias, squared, ahead, scratch, moving,
):  # fmt: skip
    """Mark the rows that a visit would change, at fixed W.

    Parameters
    ----------
    offsets, outputs, betas : (n + 1,) int64, int32, float64
        Lists of the rows.
    scratch : (2, width) float64
    moving : (n,) bool, in place
        Rows that are marked already stay so.
    others : as in `solve`; nothing of these is changed
    """
    n = np.uint64(len(starts))
    z = scratch[0]
    beta = scratch[1]
    z[:] = _NEVER
    for i in range(n):
        if ahead > 0 and i + np.uint64(ahead) < n:
            q = i + np.uint64(ahead)
            _prefetch_weights(W, indices, np.uint64(starts[q]), np.uint64(lengths[q]))
        start = np.uint64(starts[i])
        _decide(indices, values, start, start + np.uint64(lengths[i]), W, bias, z)
        _read(offsets[i], offsets[i + np.uint64(1)] - offsets[i], outputs, betas, beta)
        label = np.int64(y[i])
        own = _column(label, first, W)
        cost, rest = _costs_of(i, label, costs, cost_rest, weight)
        violation, _ = _judge(own, cost, z, beta, kind, rest, squared)
        moving[i] |= violation > 0.0


@njit(nogil=True, error_model="numpy", forceinline=True)
def _is_free(own, cost, beta, kind, cost_rest, squared):
    """Whether a variable of a row lies inside its bounds."""
    if kind == CRAMMER_SINGER:
        positive = 0
        sum_ = 0.0
        for k in range(len(beta)):
            positive += beta[k] > 0.0
            sum_ += beta[k]
        return positive > 1 or (positive == 1 and sum_ < cost * _FULL)
    for k in range(len(beta)):
        C = cost_rest if kind == ONE_VS_REST and k != own else cost
        if beta[k] > 0.0 and (squared or beta[k] < C):
            return True
    return False


@njit(nogil=True, error_model="numpy", forceinline=True)
def _count_free(own, cost, beta, cost_rest, squared):
    """Variables of a row of one-vs-rest that lie inside their bounds."""
    n = 0
    for k in range(len(beta)):
        n += (beta[k] > 0.0) & (squared or beta[k] < (cost if k == own else cost_rest))
    return n


@njit(nogil=True, error_model="numpy")
def mark_free(
    rows, y, weight, begin, count, outputs, betas, kind, first, costs, cost_rest, squared, beta, out
):
    """Tell of rows of the working set whether they have a variable inside its bounds.

    Parameters
    ----------
    rows : (n,) int64
        Positions in the working set, whose `y` and `weight` these are.
    beta : (width,) float64
        Scratch.
    out : (n,) bool, filled in place
    others : as in `solve`
    """
    for t in range(len(rows)):
        i = np.uint64(rows[t])
        _read(begin[i], np.int64(count[i]), outputs, betas, beta)
        label = np.int64(y[i])
        cost, rest = _costs_of(i, label, costs, cost_rest, weight)
        out[t] = _is_free(label - first, cost, beta, kind, rest, squared)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _values(own, cost, z, beta, n_outputs, kind, cost_rest, squared):
    """Return (φ_i, d_i) of a row, z being its losses but for one-vs-rest."""
    loss = 0.0
    dual = 0.0
    if kind == CRAMMER_SINGER:
        most = 0.0
        for k in range(n_outputs):
            if k != own:
                most = max(most, z[k])
                dual += beta[k]
        return cost * most, dual
    for k in range(n_outputs):
        if kind == WESTON_WATKINS:
            if k != own:
                loss += cost * max(z[k], 0.0)
                dual += beta[k]
            continue
        C = cost if k == own else cost_rest
        h = max(1.0 - z[k] if k == own else 1.0 + z[k], 0.0)
        if C > 0.0:
            loss += C * h * h if squared else C * h
            dual += beta[k] - (0.25 * beta[k] * beta[k] / C if squared else 0.0)
    return loss, dual


@njit(nogil=True, error_model="numpy")
def certify(
    starts, lengths, y, weight, indices, values, offsets, outputs, betas, W, W_alpha,
    kind, first, costs, cost_rest, bias, squared, ahead, scratch, columns, sums,
):  # fmt: skip
    """Add the rows of one block to the certificate at fixed W and variables.

    Parameters
    ----------
    offsets, outputs, betas : (n + 1,) int64, int32, float64
        Lists of the rows.
    W_alpha : like W, added to in place
        The weights that belong to the variables, rebuilt from scratch over all blocks.
    scratch, columns : (4, width) float64, (width,) int32
        Scratch.
    sums : (5,) float64, added to in place
        Σ g_i (the gap at drift 0, whatever W'x_i was rounded by), Σ φ_i, Σ d_i, rows with a
        variable above 0, rows with one inside its bounds; of one-vs-rest these variables
        themselves, as every class has its own rows.
    others : as in `solve`; nothing of these is changed
    """
    n = np.uint64(len(starts))
    n_outputs = W.shape[1]
    z = scratch[0]
    beta = scratch[1]
    nothing = scratch[2]
    z[:] = _NEVER
    nothing[:] = 0.0
    steps = scratch[3]
    gap = 0.0
    loss = 0.0
    dual = 0.0
    support = 0
    free = 0
    for i in range(n):
        if ahead > 0 and i + np.uint64(ahead) < n:
            q = i + np.uint64(ahead)
            _prefetch_weights(W, indices, np.uint64(starts[q]), np.uint64(lengths[q]))
        label = np.int64(y[i])
        start = np.uint64(starts[i])
        end = start + np.uint64(lengths[i])
        _decide(indices, values, start, end, W, bias, z)
        _read(offsets[i], offsets[i + np.uint64(1)] - offsets[i], outputs, betas, beta)
        own = _column(label, first, W)
        cost, rest = _costs_of(i, label, costs, cost_rest, weight)
        _, row_gap = _judge(own, cost, z, beta, kind, rest, squared)
        row_loss, row_dual = _values(own, cost, z, beta, n_outputs, kind, rest, squared)
        gap += row_gap
        error = _error(indices, values, start, end, W, bias)
        if kind == ONE_VS_REST:
            gap += _missed_rest(own, z, beta, cost, rest, squared, error)
        else:
            gap += _missed_joint(z, beta, cost, kind, 2.0 * error)
        loss += row_loss
        dual += row_dual
        n_steps, _ = _steps(
            own, cost, nothing, beta, n_outputs, kind, rest, squared, 1.0, columns, steps
        )
        if n_steps > 0:
            if kind == ONE_VS_REST:
                support += n_steps
                free += _count_free(own, cost, beta, rest, squared)
            else:
                support += 1
                free += _is_free(own, cost, beta, kind, rest, squared)
            _move(indices, values, start, end, W_alpha, bias, columns, steps, n_steps)
    add_sums(sums, gap, loss, dual, support, free)
