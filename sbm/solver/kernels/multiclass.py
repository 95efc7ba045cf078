"""Many classes: one-vs-rest, Crammer-Singer and Weston-Watkins machines, in the dual.

For rows x_i of class y_i with costs C_i, and a weight vector w_c per class, the primal problems are

    min_W  ½ Σ_c |w_c|² + Σ_i φ_i,      z_c = w_c·x_i,   l_c = 1 - z_y + z_c for c ≠ y

    one-vs-rest      φ_i = Σ_c C_ic max(0, 1 - s_ic z_c)^p      s_ic = +1 if c = y_i, else -1
    Crammer-Singer   φ_i = C_i max(0, max_c l_c)
    Weston-Watkins   φ_i = C_i Σ_c max(0, l_c)

and their duals, with variables β_ic ≥ 0 (for the last two only c ≠ y_i), ::

    max_β  Σ_ic β_ic - ½ Σ D_ic β_ic² - ½|W|²

    one-vs-rest      β_ic ≤ U_ic,        w_c = Σ_i s_ic β_ic x_i
    Crammer-Singer   Σ_c β_ic ≤ C_i,     w_c = Σ_{y_i = c} x_i Σ_d β_id - Σ_{y_i ≠ c} β_ic x_i
    Weston-Watkins   β_ic ≤ C_i,         likewise

with U and D of one-vs-rest as in svc.py; D is 0 for the others. A visit solves exactly for all
variables of a row, as described in one_vs_rest.py and joint.py. This file has the common parts: the
order of visits, the selection of relevant classes in later rounds, and the lists.

Only the nonzero variables of a row are stored, as a list in a pool (lists.py), so memory grows with
their number and not with rows times classes.

Given: rows (as in common.py); class codes `y`; `kind` one of joint.py, or None for one-vs-rest: as
the type differs, only the code of one of these files is compiled; `first` the class of the first
column of W (one-vs-rest divides the classes into groups; 0 for the others);
`costs` (n_classes,) float64: C times class weight, for one-vs-rest of the rows of the class;
`cost_rest`: for one-vs-rest, of all other rows; `weight` of each row, or one for all, which
multiplies both.
In place: lists, W, score. Returned: nothing; totals are added to `stats` and `sums`.
Source: see those two files; for the relevant classes LIBLINEAR's appendix E.5.
"""

import math

import numpy as np
from numba import njit

from sbm.solver.kernels import joint, one_vs_rest
from sbm.solver.kernels.classes import (
    FAST,
    NEVER,
    count_nonzero,
    decide,
    decide_few,
    decision_error,
    move,
    move_damped,
    prefetch_weights,
    squared_norm,
)
from sbm.solver.kernels.common import (
    OUT,
    add_sums,
    begin_round,
    damped_square,
    is_settled,
    is_solved,
    prefetch,
    prefetch_coming,
    rest_longer,
    weight_of,
)
from sbm.solver.kernels.joint import CRAMMER_SINGER
from sbm.solver.kernels.lists import make_room, read, read_few, squeeze, write

__all__ = ["certify", "mark_free", "screen", "solve"]

FEW = 16  # most classes of a row in later rounds
_NEAR = 0.1  # a class with variable 0 is relevant if its loss is this close to moving it
_LISTS_AHEAD = 2  # rows ahead to prefetch lists


@njit(nogil=True, error_model="numpy", forceinline=True)
def _column(y, first, W):
    """Return the column of a row's class; -1 if it is outside this range of classes."""
    own = y - first
    return own if own < W.shape[1] else -1


@njit(nogil=True, error_model="numpy", forceinline=True)
def _costs_of(i, label, costs, cost_rest, weight):
    """Return C_i for the row's class, and for all other classes (one-vs-rest)."""
    factor = weight_of(i, weight)
    return costs[label] * factor, cost_rest * factor


@njit(nogil=True, error_model="numpy", fastmath=FAST, forceinline=True)
def _losses(own, z):
    """Turn z into l_c = 1 - z_y + z_c, and make l_y so small that it never matters."""
    margin = 1.0 - z[own]
    for k in range(len(z)):
        z[k] += margin
    z[own] = NEVER


@njit(nogil=True, error_model="numpy", forceinline=True)
def _judge(own, cost, z, beta, kind, cost_rest, squared):
    """Return (largest violation, share of the gap) of a row; turns z into losses if it has any."""
    if kind is None:
        return one_vs_rest.judge(own, z, beta, cost, cost_rest, squared)
    _losses(own, z)
    return joint.judge(z, beta, cost, kind)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _solve_row(own, cost, z, a, beta, kind, cost_rest, squared, violation, shut, new, v):
    """Write the variables of a row after its step; return its rank for the cache."""
    if kind is None:
        return one_vs_rest.solve(own, z, a, beta, cost, cost_rest, squared, new)
    if violation > 0.0:
        joint.solve(own, z, a, beta, cost, kind, False, shut, new, v)
    else:
        for k in range(len(beta)):
            new[k] = beta[k]
    return joint.rank(z, new, cost, kind, violation)


@njit(nogil=True, error_model="numpy")
def _shut_out(beta, new, room, turn, shut):
    """Keep only as many new nonzero variables as there is room for."""
    outputs = len(shut)
    left = room - count_nonzero(beta, outputs)
    for t in range(outputs):
        k = (turn + t) % outputs
        grows = beta[k] == 0.0 and new[k] != 0.0 and left > 0
        shut[k] = beta[k] == 0.0 and not grows
        left -= grows


@njit(nogil=True, error_model="numpy", forceinline=True)
def _steps(own, cost, beta, new, n_outputs, kind, cost_rest, squared, columns, steps):
    """List the columns of W that move, and their steps; return (their number, rise of Σ d)."""
    n = 0
    gain = 0.0
    for k in range(n_outputs):
        change = new[k] - beta[k]
        sign = -1.0
        rise = change
        if kind is None:
            C = cost if k == own else cost_rest
            sign = 1.0 if k == own else -1.0
            rise = change * (1.0 - (0.25 / C if squared and C > 0.0 else 0.0) * (new[k] + beta[k]))
        gain += rise
        columns[n] = k
        steps[n] = sign * change
        n += change != 0.0
    if kind is not None:
        columns[n] = own
        steps[n] = gain
        n += n > 0
    return n, gain


# Later rounds use only the relevant classes of a row: its own class, and those whose variable is
# nonzero or close to moving (LIBLINEAR's appendix E.5 shrinks variables similarly). Rows with more
# than `FEW` relevant classes, and all rows in the first round, use all classes.


@njit(nogil=True, error_model="numpy", forceinline=True)
def _choose_few(own, z, new, n_outputs, kind, few):
    """Write the relevant classes of a row, in order; return their number, or -1 if too many."""
    most = _largest_loss(z, n_outputs, kind)
    n = 0
    for k in range(n_outputs):
        few[min(n, FEW)] = k
        n += (k == own) | _matters(k, own, z, new, most, kind)
    return n if n <= FEW else -1


@njit(nogil=True, error_model="numpy", forceinline=True)
def _largest_loss(z, n_outputs, kind):
    """Return the threshold for the loss of a class; for Crammer-Singer the largest loss."""
    most = 0.0
    if kind is not None and kind == CRAMMER_SINGER:
        for k in range(n_outputs):
            most = max(most, z[k])
    return most


@njit(nogil=True, error_model="numpy", forceinline=True)
def _matters(k, own, z, new, most, kind):
    """Whether a variable is nonzero or close to moving."""
    loss = z[k]
    if kind is None:
        loss = 1.0 - z[k] if k == own else 1.0 + z[k]
    return (new[k] > 0.0) | (loss > most - _NEAR)


@njit(nogil=True, error_model="numpy")
def solve(
    starts, lengths, y, weight, home, indices, values, begin, count, outputs, betas, used, held,
    few, n_few, score, W, kind, first, costs, cost_rest, bias, squared, rest_turns, damping,
    damping_extra, code, worsts, turn, held_limit, rounds, chunk, ahead, inner_tol,
    stop, dual_sum, at, state, awake, order, scratch, scratch_few, columns, shut, shut_few,
    stats,
):  # fmt: skip
    """Run bounded rounds of dual coordinate descent over a working set.

    Rounds, chunks and the order of visits are those of rounds.py. Later rounds skip rows that
    were at rest, farther from moving than the mean violation of the previous round.

    Parameters
    ----------
    starts, lengths, y : (n,) int64, int32, int32
    weight : (n,) float64, or (1,) for all rows
        Multiplies the costs of each row; a row of weight 0 is never visited.
    home : (n,) int32
    indices, values : int32, float32 or float64 or None
    begin, count : (n,) int64, int32, in place
        List of each row in the pool.
    outputs, betas, used : (room,) int32, (room,) float64, (1,) int64, in place
        The pool and its used length.
    held : (n_parts,) int64, in place
        Number of variables of each part, and a constant of its own.
    few, n_few : (n, FEW + 1) int32, (n,) int32
        Scratch; empty if there are few classes.
    score : (n,) float32, in place
        Cache score of each row's last visit.
    W : (n_features + (bias > 0), K) float64, in place
    kind : int, or None for one-vs-rest
    first : int
    costs : (n_classes,) float64
    cost_rest : float
    bias : float
        Value of the extra feature; 0 for none.
    squared : bool
        Squared hinge; one-vs-rest only.
    rest_turns : (n,) uint8, in place
        `rest` of rounds.py.
    damping, damping_extra, code, worsts, turn
        As in rounds.py.
    held_limit : int
        Maximum of `held`.
    rounds, chunk, ahead : int
        Maximum rounds; most rows per chunk, a power of 2; rows to prefetch ahead, 0 for none.
    inner_tol : float
        Stop after a full first round if its largest violation is not above.
    stop, dual_sum : float
        As in rounds.py.
    at : (n_parts,) int32
        Rows whose part has an entry of at least 0 count towards the gap estimate.
    state : (1,) uint64, in place
        Random generator.
    awake, order : (n,) int32, (room_for_order(n, chunk),) int32
        Scratch.
    scratch, scratch_few : (5, width) float64, (5, FEW) float64
    columns, shut, shut_few : (width,) int32, (K,) bool, (FEW,) bool
        Scratch; `width` is above K and a multiple of 8, for vectorization.
    stats : (6,) float64, added to in place
        Change of Σ d_i; gap of the block's rows at their first visit (with `stop`: of the rows of
        the last round); visits; updates; rounds; visits cut short because the lists were full.
    """
    n_outputs = W.shape[1]
    scratch[0, :] = NEVER
    scratch[2, :] = 0.0
    shut[:] = False
    shut_few[:] = False
    gain = 0.0
    gap = 0.0
    updates = 0
    visits = 0
    starved = 0
    limit = worsts[0]
    for r in range(turn, rounds):
        if damping is None:
            places = begin_round(order, chunk, state, rest_turns, awake)
        else:
            places = len(awake)
        worst = 0.0
        total = 0.0
        if stop > 0.0:
            gap = 0.0
        may_squeeze = True
        for s in range(places):
            prefetch_coming(awake, s, places, starts, lengths, y, indices, begin, score)
            if ahead > 0 and s + ahead < places:
                q = np.uint64(awake[s + ahead])
                prefetch_weights(W, indices, np.uint64(starts[q]), np.uint64(lengths[q]))
            if s + _LISTS_AHEAD < places:
                q = np.uint64(awake[s + _LISTS_AHEAD])
                prefetch(outputs, begin[q])
                prefetch(betas, begin[q])
            i = np.uint64(awake[s])
            visits += 1
            label = np.int64(y[i])
            cost, rest = _costs_of(i, label, costs, cost_rest, weight)
            most = cost if kind is not None else max(cost, rest)
            if most == 0.0:
                score[i] = -np.inf
                continue
            start = np.uint64(starts[i])
            end = start + np.uint64(lengths[i])
            if damping is None:
                a = squared_norm(values, start, end) + bias * bias
            else:
                a = damped_square(indices, values, start, end, damping, code)
                a += damping_extra * bias * bias
            in_few = r > 0 and len(n_few) > 0 and n_few[i] >= 0
            room_for = scratch_few if in_few else scratch
            z, beta, new = room_for[0], room_for[1], room_for[2]
            v, steps = room_for[3], room_for[4]
            closed = shut_few if in_few else shut
            if in_few:
                n_outputs = np.int64(n_few[i])
                decide_few(indices, values, start, end, W, bias, few[i], n_outputs, z)
                own = read_few(
                    i, begin, count, outputs, betas, few[i], n_outputs, label - first, beta
                )
            else:
                n_outputs = W.shape[1]
                own = _column(label, first, W)
                decide(indices, values, start, end, W, bias, z)
                read(begin[i], np.int64(count[i]), outputs, betas, beta)
            violation, row_gap = _judge(own, cost, z, beta, kind, rest, squared)
            if stop > 0.0 or (r == 0 and at[np.uint32(home[i])] >= 0):
                # Adds 0, or NaN if |x|² is infinite, which is detected later.
                gap += row_gap + 0.0 * a
            worst = max(worst, violation)
            total += violation
            rank = _solve_row(own, cost, z, a, beta, kind, rest, squared, violation, closed, new, v)
            score[i] = rank
            if len(n_few) > 0 and not in_few and r + 1 < rounds:
                n_few[i] = _choose_few(own, z, new, n_outputs, kind, few[i])
            rest_turns[i] = rest_longer(rest_turns[i], violation == 0.0 and rank < 0.0)
            if violation == 0.0:
                if rank < -limit:
                    rest_turns[i] = OUT
                continue
            wanted = count_nonzero(new, n_outputs)
            before = np.int64(count[i])
            grant = min(wanted, before + held_limit - held[np.uint32(home[i])])
            if may_squeeze and used[0] + 2 + grant > len(outputs):
                squeeze(begin, count, outputs, betas, used)
                may_squeeze = 8 * used[0] < 7 * len(outputs)  # else in vain, row after row
            room = make_room(i, grant, begin, outputs, betas, used)
            if min(room, grant) < wanted:
                starved += 1
                if len(n_few) > 0 and not in_few:
                    n_few[i] = -1  # they were chosen for variables it does not get
                _shut_out(beta, new, min(room, grant), visits, closed)
                if kind is None:
                    for c in range(n_outputs):
                        new[c] = beta[c] if closed[c] else new[c]
                else:
                    joint.solve(own, z, a, beta, cost, kind, True, closed, new, v)
                closed[:] = False
            n_steps, rise = _steps(
                own, cost, beta, new, n_outputs, kind, rest, squared, columns, steps
            )
            if in_few:
                for j in range(n_steps):
                    columns[j] = few[i, np.uint32(columns[j])]
            updates += n_steps > 0
            gain += rise
            if damping is None:
                move(indices, values, start, end, W, bias, columns, steps, n_steps)
            elif n_steps > 0:
                move_damped(
                    indices, values, start, end, W, bias, columns, steps, n_steps,
                    damping, damping_extra, code,
                )  # fmt: skip
                awake[updates - 1] = i
            write(i, begin, count, outputs, betas, new, n_outputs, columns, steps)
            if in_few:
                for q in range(begin[i], begin[i] + count[i]):
                    outputs[q] = few[i, np.uint32(outputs[q])]
            held[np.uint32(home[i])] += np.int64(count[i]) - before
        stats[4] += 1
        if damping is not None:
            worsts[1] += total
            worsts[2] += places
            break
        if is_settled(r, worst, inner_tol):
            break
        if stop > 0.0 and is_solved(gap, stop, dual_sum + gain, W):
            break
        limit = total / places  # the mean: the largest violation stays large for long
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
    z[:] = NEVER
    for i in range(n):
        if ahead > 0 and i + np.uint64(ahead) < n:
            q = i + np.uint64(ahead)
            prefetch_weights(W, indices, np.uint64(starts[q]), np.uint64(lengths[q]))
        start = np.uint64(starts[i])
        decide(indices, values, start, start + np.uint64(lengths[i]), W, bias, z)
        read(offsets[i], offsets[i + np.uint64(1)] - offsets[i], outputs, betas, beta)
        label = np.int64(y[i])
        own = _column(label, first, W)
        cost, rest = _costs_of(i, label, costs, cost_rest, weight)
        violation, _ = _judge(own, cost, z, beta, kind, rest, squared)
        moving[i] |= violation > 0.0


@njit(nogil=True, error_model="numpy", forceinline=True)
def _is_free(own, cost, beta, kind, cost_rest, squared):
    """Whether a variable of a row is inside its bounds."""
    if kind is None:
        return one_vs_rest.count_free(own, cost, beta, cost_rest, squared) > 0
    return joint.is_free(beta, cost, kind)


@njit(nogil=True, error_model="numpy")
def mark_free(
    rows, y, weight, begin, count, outputs, betas, kind, first, costs, cost_rest, squared, beta, out
):
    """Write whether each row of the working set has a variable inside its bounds.

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
        read(begin[i], np.int64(count[i]), outputs, betas, beta)
        label = np.int64(y[i])
        cost, rest = _costs_of(i, label, costs, cost_rest, weight)
        out[t] = _is_free(label - first, cost, beta, kind, rest, squared)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _values(own, cost, z, beta, n_outputs, kind, cost_rest, squared):
    """Return (φ_i, d_i) of a row; z has its losses, except for one-vs-rest."""
    if kind is None:
        return one_vs_rest.values(own, cost, z, beta, n_outputs, cost_rest, squared)
    return joint.values(own, z, beta, cost, n_outputs, kind)


@njit(nogil=True, error_model="numpy", forceinline=True)
def _missed(own, cost, z, beta, kind, cost_rest, squared, error):
    """Return how much larger a row's share of the gap may be if every z has an error."""
    if kind is None:
        return one_vs_rest.missed(own, z, beta, cost, cost_rest, squared, error)
    return joint.missed(z, beta, cost, kind, 2.0 * error)


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
        The weights that belong to the variables, rebuilt from scratch over all blocks. Empty if W
        has them.
    scratch, columns : (4, width) float64, (width,) int32
        Scratch.
    sums : (7,) float64, added to in place
        Σ g_i (the gap at drift 0, whatever W'x_i was rounded by), Σ φ_i, Σ d_i, rows with a
        variable above 0, rows with one inside its bounds; of one-vs-rest these variables
        themselves, as every class has its own rows. Then Σ |x_i| Σ_c |change of column c|,
        and how much larger Σ φ_i may be because of rounding.
    others : as in `solve`; nothing of these is changed
    """
    n = np.uint64(len(starts))
    n_outputs = W.shape[1]
    z = scratch[0]
    beta = scratch[1]
    nothing = scratch[2]
    z[:] = NEVER
    nothing[:] = 0.0
    steps = scratch[3]
    gap = 0.0
    loss = 0.0
    dual = 0.0
    support = 0
    free = 0
    size = 0.0
    missed = 0.0
    for i in range(n):
        if ahead > 0 and i + np.uint64(ahead) < n:
            q = i + np.uint64(ahead)
            prefetch_weights(W, indices, np.uint64(starts[q]), np.uint64(lengths[q]))
        label = np.int64(y[i])
        start = np.uint64(starts[i])
        end = start + np.uint64(lengths[i])
        decide(indices, values, start, end, W, bias, z)
        read(offsets[i], offsets[i + np.uint64(1)] - offsets[i], outputs, betas, beta)
        own = _column(label, first, W)
        cost, rest = _costs_of(i, label, costs, cost_rest, weight)
        _, row_gap = _judge(own, cost, z, beta, kind, rest, squared)
        row_loss, row_dual = _values(own, cost, z, beta, n_outputs, kind, rest, squared)
        gap += row_gap
        error = decision_error(indices, values, start, end, W, bias)
        gap += _missed(own, cost, z, beta, kind, rest, squared, error)
        loss += row_loss
        missed += _missed(own, cost, z, nothing, kind, rest, squared, error)
        dual += row_dual
        n_steps, _ = _steps(
            own, cost, nothing, beta, n_outputs, kind, rest, squared, columns, steps
        )
        if n_steps > 0:
            if kind is None:
                support += n_steps
                free += one_vs_rest.count_free(own, cost, beta, rest, squared)
            else:
                support += 1
                free += _is_free(own, cost, beta, kind, rest, squared)
            if len(W_alpha) > 0:
                move(indices, values, start, end, W_alpha, bias, columns, steps, n_steps)
            norm = math.sqrt(squared_norm(values, start, end) + bias * bias)
            for j in range(n_steps):
                size += abs(steps[j]) * norm
    add_sums(sums, gap, loss, dual, support, free, size, missed)
