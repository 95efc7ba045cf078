"""Loops over rows for losses with one variable per row, built from a few functions per loss.

A loss has w = Σ α_i s_i x_i and a dual Σ d_i - ½|w|² with bounds on each α. Its kernels are ::

    solve = make_solve(_read, _gap, _visit)
    screen = make_screen(_read, _at_rest)
    certify = make_certify(_read, _terms)

Its functions get z = w·x and α of a row, `row` (the result of `_read`), and
`numbers`: (positive, classify, cost_positive, cost_negative, squared, epsilon) ::

    _read(i, y, weight, numbers)           (C, s, ...): cost, sign, and other values that are needed
    _gap(z, alpha, row, numbers)           share in P - F, a sum of nonnegative terms
    _visit(z, a, alpha, row, numbers)      (new α, violation, score, rise, fall); a is |x|², and
                                           the visit raises d_i by rise - fall
    _at_rest(z, alpha, row, numbers)       whether a visit would not change α
    _terms(z, error, alpha, row, numbers)  (gap, φ_i, more, rise, fall): the largest share in P - F
                                           for a z with the given error, and how much larger φ_i
                                           may be; d_i = rise - fall

They are inlined by ``forceinline``. ``inline="always"`` compiles log_loss 0.6 s faster (of 4.5 s),
but visits of short rows take 3 % longer.

The extra feature has the value `bias` in every row but is not stored in rows; its weight is not in
w. `late` adds it after the sum over a row instead of before, which rounds differently.
"""

import math

import numpy as np
from numba import njit

from sbm.solver.kernels.common import (
    OUT,
    add,
    add_damped,
    add_sums,
    begin_round,
    damped_square,
    dot,
    dot_within,
    is_settled,
    is_solved,
    prefetch_ahead,
    prefetch_coming,
    prefetch_row,
    rest_longer,
)

__all__ = ["make_certify", "make_screen", "make_solve"]


def make_solve(read, row_gap, visit, late=False, rests=True):
    """Return a kernel that runs bounded rounds of dual coordinate descent over a working set.

    `rests` is false if every visit changes α.
    """

    @njit(nogil=True, error_model="numpy")
    def solve(
        starts, lengths, y, weight, indices, values, alpha, w, extra, bias, scale,
        positive, classify, cost_positive, cost_negative, squared, epsilon, ahead,
        home, score, rest, damping, damping_extra, code, worsts, turn, rounds, chunk, inner_tol,
        stop, dual_sum, at, state, awake, order, stats,
    ):  # fmt: skip
        """Run bounded rounds of dual coordinate descent over a working set.

        Chunks of rows are visited in random order, the rows of a chunk in storage order. The first
        round visits every row that `rest` allows (all but for several processes, as Theorem 1 of
        SBM 2011 requires). A row that a visit leaves at a bound rests for some rounds, and for all
        that follow if it was pushed against the bound by more than the largest violation of the
        previous round.

        A visit takes about as long as a few mispredicted branches, so it uses arithmetic instead
        of branches, except for changing w.

        Parameters
        ----------
        starts, lengths : (n,) int64, int32
            Row i has nonzeros starts[i] to starts[i] + lengths[i].
        y : (n,) int32 or float64, or None
            Class codes or targets.
        weight : (n,) float64, or (1,) for all rows
            Multiplies the cost of each row.
        indices, values : int32, float32 or float64 or None
        alpha : (n,) float64, in place
        w : (at least n_features,) float64, in place
        extra : (1,) float64, in place
            Weight of the extra feature; may be the last entry of w.
        bias, scale : float
            Value of the extra feature, 0 for none; square of the unit of its weight, 1
            except for one class.
        positive : int
            Class code with s = +1, or with the target +1.
        classify : bool
            `y` holds class codes.
        cost_positive, cost_negative : float
            C_i of rows of weight 1, of the positive class or with a target, and of all others.
        squared : bool
            Squared loss.
        epsilon : float
            Half the width of the tube in which targets have no loss.
        ahead : int
            Rows to prefetch ahead, 0 for none.
        home : (n,) int32
        score : (n,) float32, in place
            Cache score of each row's last visit (SBM 2011, section 2.2, second form).
        rest : (n,) uint8, in place
            Turns that each row is left alone; see `rest_longer`.
        damping : (n_buckets,) float64, or None
            If several processes are summed: the factor of curvature and step of w, by
            bucket of features. Then a call visits the rows in `awake` once.
        damping_extra : float
            That of the extra feature.
        code : (n_weights,) uint8, or None
            Bucket of each weight.
        worsts : (3,) float64, in place, or None
            With `damping`: as `limit`, largest violation of the previous round; that of this round
            so far; 1.
        turn, rounds, chunk : int
            Number of the first round; maximum rounds; most rows per chunk, a power of 2.
        inner_tol : float
            Stop after a full first round if its largest violation is not above.
        stop, dual_sum : float
            If `stop` is above 0: end after a round in which the gap of the visited rows was at most
            `stop` of the dual value, and return that gap. `dual_sum` is Σ d_i before.
        at : (n_parts,) int32
            Rows whose part has an entry of at least 0 count towards the gap estimate.
        state : (1,) uint64, in place
            Random generator.
        awake, order : (n,) int32, (room_for_order(n, chunk),) int32
            Scratch. With `damping`, `awake` has the rows to visit; it begins with the updated ones
            at the end.
        stats : (5,) float64, added to in place
            Change of Σ d_i; gap of the block's rows at their first visit (with `stop`: of the rows
            of the last round); visits; updates; rounds.
        """
        numbers = positive, classify, cost_positive, cost_negative, squared, epsilon
        w_extra = extra[0]
        gain = stats[0]
        gap = 0.0
        updates = 0
        visits = 0
        limit = worsts[0]
        ended = 0
        for r in range(turn, rounds):
            if damping is None:
                places = begin_round(order, chunk, state, rest, awake)
            else:
                places = len(awake)
            worst = 0.0
            if stop > 0.0:
                gap = 0.0
            for s in range(places):
                prefetch_coming(awake, s, places, starts, lengths, y, indices, alpha, score)
                if ahead > 0 and s + ahead < places:
                    prefetch_row(w, indices, starts, lengths, awake[s + ahead])
                i = np.uint64(awake[s])
                visits += 1
                row = read(i, y, weight, numbers)
                C, sign = row[0], row[1]
                if C == 0.0:
                    score[i] = -np.inf
                    continue
                begin = np.uint64(starts[i])
                end = begin + np.uint64(lengths[i])
                share = bias * w_extra
                first = 0.0 if late else share
                if code is not None:
                    prefetch_row(code, indices, starts, lengths, i)
                z, a = dot(indices, values, begin, end, w, first, scale * bias * bias)
                if damping is not None and not rests:
                    a = damped_square(indices, values, begin, end, damping, code)
                    a += damping_extra * scale * bias * bias
                if late:
                    z += share
                old = alpha[i]
                if stop > 0.0 or (r == 0 and at[np.uint32(home[i])] >= 0):
                    # Adds 0, or NaN if |x|² is infinite, which is detected later.
                    gap += row_gap(z, old, row, numbers) + 0.0 * a
                new, violation, rank, rise, fall = visit(z, a, old, row, numbers)
                if damping is not None and rests and new != old:
                    # Most rows rest, whatever the curvature.
                    a = damped_square(indices, values, begin, end, damping, code)
                    a += damping_extra * scale * bias * bias
                    new, violation, rank, rise, fall = visit(z, a, old, row, numbers)
                if rests:
                    rest[i] = rest_longer(rest[i], new == old and rank < 0.0)
                worst = max(worst, violation)
                score[i] = rank
                step = new - old
                if step != 0.0:
                    updates += 1
                    gain += rise
                    gain -= fall
                    alpha[i] = new
                    if damping is None:
                        add(indices, values, begin, end, w, step * sign)
                    else:
                        awake[updates - 1] = i
                        add_damped(indices, values, begin, end, w, step * sign, damping, code)
                    w_extra += damping_extra * scale * step * sign * bias
                elif rank < -limit and violation == 0.0:
                    rest[i] = OUT
            stats[4] += 1
            if damping is not None:
                worsts[1] = max(worsts[1], worst)
                worsts[2] = 1.0
                break
            limit = worst
            if is_settled(r, worst, inner_tol) or (
                stop > 0.0 and is_solved(gap, stop, dual_sum + gain, w)
            ):
                ended = 1
            if ended == 1:
                break
        extra[0] = w_extra
        worsts[0] = limit
        stats[0] = gain
        stats[1] += gap
        stats[2] += visits
        stats[3] += updates
        return ended

    return solve


def make_screen(read, at_rest):
    """Return a kernel that marks the rows whose alpha a visit would change."""

    @njit(nogil=True, error_model="numpy")
    def screen(
        starts, lengths, y, weight, indices, values, alpha, w, extra, bias, scale,
        positive, classify, cost_positive, cost_negative, squared, epsilon, ahead,
        moving,
    ):  # fmt: skip
        """Mark the rows whose alpha a visit would change, at fixed w.

        (Gradients at fixed w, in parallel, then serial updates where needed: Chiang, Lee & Lin,
        KDD 2016.)

        Parameters
        ----------
        starts ... ahead
            As in `solve`; nothing of these is changed.
        moving : (n,) bool, in place
            Rows that are marked already stay so.
        """
        numbers = positive, classify, cost_positive, cost_negative, squared, epsilon
        n = np.uint64(len(starts))
        share = bias * extra[0]
        for i in range(n):
            prefetch_ahead(w, indices, starts, lengths, i, n, ahead)
            begin = np.uint64(starts[i])
            end = begin + np.uint64(lengths[i])
            z, _ = dot(indices, values, begin, end, w, share, 0.0)
            row = read(i, y, weight, numbers)
            moving[i] |= (not at_rest(z, alpha[i], row, numbers)) & (row[0] > 0.0)

    return screen


def make_certify(read, terms, late=False):
    """Return a kernel that adds the rows of a block to the certificate."""

    @njit(nogil=True, error_model="numpy")
    def certify(
        starts, lengths, y, weight, indices, values, alpha, w, extra, bias, scale,
        positive, classify, cost_positive, cost_negative, squared, epsilon, ahead,
        w_alpha, x_sum, sums,
    ):  # fmt: skip
        """Add the rows of one block to the certificate at fixed w and alpha.

        Parameters
        ----------
        starts ... ahead
            As in `solve`; nothing of these is changed.
        w_alpha : like w, added to in place
            Σ α_i s_i x_i, rebuilt from scratch over all blocks; with a bias above 0 its last entry
            belongs to the extra feature.
        x_sum : like w, or None, added to in place
            Σ C_i x_i.
        sums : (7,) float64, added to in place
            Σ g_i (the gap at drift 0, whatever w·x_i was rounded by), Σ φ_i (the primal's loss),
            Σ d_i (the dual without -½|w|²), support vectors, free support vectors, Σ |α_i| |x_i|,
            how much larger Σ φ_i may be because of rounding.
        """
        numbers = positive, classify, cost_positive, cost_negative, squared, epsilon
        n = np.uint64(len(starts))
        share = bias * extra[0]
        w_alpha_extra = 0.0
        gap = 0.0
        loss = 0.0
        dual = 0.0
        support = 0
        free = 0
        size = 0.0
        missed = 0.0
        for i in range(n):
            prefetch_ahead(w, indices, starts, lengths, i, n, ahead)
            row = read(i, y, weight, numbers)
            C, s = row[0], row[1]
            if C == 0.0:
                continue
            begin = np.uint64(starts[i])
            end = begin + np.uint64(lengths[i])
            z, error, square = dot_within(indices, values, begin, end, w, 0.0 if late else share)
            if late:
                z += share
            value = alpha[i]
            row_gap, row_loss, more, rise, fall = terms(z, error, value, row, numbers)
            gap += row_gap
            loss += row_loss
            missed += more
            dual += rise
            dual -= fall
            if x_sum is not None:
                add(indices, values, begin, end, x_sum, C)
            if value != 0.0:
                support += 1
                free += squared or abs(value) < C
                add(indices, values, begin, end, w_alpha, value * s)
                w_alpha_extra += value * s * bias
                size += abs(value) * math.sqrt(square + bias * bias)
        if bias > 0.0:
            w_alpha[len(w_alpha) - 1] += w_alpha_extra
        add_sums(sums, gap, loss, dual, support, free, size, missed)

    return certify
