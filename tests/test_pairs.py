"""Weston-Watkins by pairs of classes: the schedule, and the optimum it leads to."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from sbm.rows import Rows
from sbm.solver import pairs as pairs_module
from sbm.solver.pairs import (
    Fixtures,
    PairProblem,
    PairRounds,
    certify_pairs,
    count_days,
    pairs_between,
    pairs_of,
    solve_pairs,
)  # fmt: skip

N_FEATURES = 6


@pytest.fixture(autouse=True, scope="module")
def _divide_small_days_too():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs_module, "LEAST_PART", 1)
        yield


# ------------------------------------------------------------------------------- match days


@given(n_classes=st.integers(1, 70))
@settings(max_examples=70, deadline=None, derandomize=True)
def test_every_pair_meets_once_and_no_class_meets_two_on_a_day(n_classes):
    met = []
    for day in range(count_days(n_classes)):
        pairs = pairs_of(n_classes, day)
        assert pairs.dtype == np.int32
        assert pairs.shape == (n_classes // 2, 2)
        assert (pairs[:, 0] < pairs[:, 1]).all()
        assert len(np.unique(pairs)) == pairs.size
        met += map(tuple, pairs.tolist())
    assert sorted(met) == [(a, b) for a in range(n_classes) for b in range(a + 1, n_classes)]


@given(n_classes=st.integers(2, 41), day=st.integers(0, 40))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_partners_are_those_of_the_formula_and_each_others(n_classes, day):
    day %= count_days(n_classes)
    modulus = n_classes - 1 if n_classes % 2 == 0 else n_classes

    def partner(c):
        if n_classes % 2 == 0 and c in (day, n_classes - 1):
            return day + n_classes - 1 - c
        return (2 * day - c) % modulus

    assert all(partner(partner(c)) == c for c in range(n_classes))
    expected = {(c, partner(c)) for c in range(n_classes) if c < partner(c)}
    assert set(map(tuple, pairs_of(n_classes, day).tolist())) == expected


def test_small_leagues():
    assert (count_days(1), count_days(2), count_days(3), count_days(4)) == (1, 1, 3, 3)
    assert pairs_of(2, 0).tolist() == [[0, 1]]
    assert [pairs_of(3, day).tolist() for day in range(3)] == [[[1, 2]], [[0, 2]], [[0, 1]]]


@pytest.mark.parametrize("n", range(5))
@pytest.mark.parametrize("m", range(5))
def test_two_sets_of_classes_meet_each_other_once(n, m):
    met = []
    for day in range(max(n, m)):
        pairs = pairs_between(n, m, day)
        assert pairs.dtype == np.int32
        assert len(np.unique(pairs)) == pairs.size == 2 * min(n, m)
        met += map(tuple, pairs.tolist())
    assert sorted(met) == [(a, n + b) for a in range(n) for b in range(m)]


# ---------------------------------------------------------------------------------- problems


class Problem:
    """A small dense problem, its formulas in plain numpy, and the arrays the solver changes."""

    def __init__(self, seed, n, n_classes, values=np.float32, bias=0.0, zero_cost=False, absent=()):
        random = np.random.default_rng(seed)
        X = random.normal(size=(n, N_FEATURES)).astype(np.float32)
        X[random.random(X.shape) < 0.4] = 0
        X[:: max(2, n // 3)] = 0  # rows without features
        if values is None:
            X = (X != 0).astype(np.float32)
        present = np.setdiff1d(np.arange(n_classes), absent)
        self.y = random.choice(present, n).astype(np.int32)
        self.costs = random.uniform(0.1, 1.5, n_classes)
        if zero_cost:
            self.costs[present[0]] = 0.0
        self.bias, self.K = bias, n_classes
        self.X = np.hstack([X, np.full((n, 1), bias)]) if bias else X.astype(float)
        self.C = np.repeat(self.costs[self.y, None], n_classes, axis=1)
        self.C[np.arange(n), self.y] = 0  # the β that are no variables
        lengths = np.count_nonzero(X, axis=1).astype(np.int32)
        starts = np.cumsum(lengths, dtype=np.int64) - lengths
        stored = None if values is None else X[X != 0].astype(values)
        self.rows = Rows(starts, lengths, np.nonzero(X)[1].astype(np.int32), stored, self.y)
        self.home = random.integers(0, 2, n).astype(np.int32)
        self.beta = np.zeros((n, n_classes))
        self.score = np.full(n, 7.0, np.float32)
        self.W = np.zeros((n_classes, self.X.shape[1]))
        self.state = np.array([seed], np.uint64)

    def solve(self, rounds, **options):
        problem = self.problem(fixtures=options.pop("fixtures", None))
        return solve_pairs(
            problem, self.home, self.score, PairRounds(rounds, self.state, **options)
        )

    def problem(self, **options):
        chosen = {"W": self.W, **options}
        return PairProblem(self.rows, self.beta, costs=self.costs, bias=self.bias, **chosen)

    def solve_to(self, tolerance):
        """Do rounds to a relative gap; return gap and primal value."""
        for _ in range(200):
            self.solve(200)
            gap = self.gap_terms(self.W, self.beta).sum()
            primal = 0.5 * (self.W**2).sum() + (self.C * np.maximum(self.slack(self.W), 0)).sum()
            if gap <= tolerance * primal:
                break
        return gap, primal

    def link(self, beta):
        """The weights of some β, shape (K, n_weights)."""
        u = -beta.reshape(self.C.shape)
        u[np.arange(len(u)), self.y] = -u.sum(axis=1)
        return u.T @ self.X

    def dual(self, beta):
        return beta.sum() - 0.5 * (self.link(beta) ** 2).sum()

    def slack(self, W):
        """l_ic = 1 - z_iy + z_ic, shape (n, K)."""
        z = self.X @ W.T
        return 1 - z[np.arange(len(z)), self.y][:, None] + z

    def gap_terms(self, W, beta):
        """The terms of P - F, one for each β."""
        slack = self.slack(W)
        return (self.C - beta) * np.maximum(slack, 0) - beta * np.minimum(slack, 0)

    def best(self):
        """The optimal value, by a general method that knows nothing of coordinates."""

        def negative(beta):
            W = self.link(beta)
            return 0.5 * (W**2).sum() - beta.sum(), -self.slack(W).ravel()

        bounds = [(0.0, c) for c in self.C.ravel()]
        options = {"ftol": 1e-16, "gtol": 1e-11, "maxiter": 50000, "maxfun": 500000}
        start = np.zeros(self.C.size)
        found = minimize(negative, start, jac=True, bounds=bounds, options=options)
        return -found.fun


CASES = [
    {"n_classes": 2}, {"n_classes": 3}, {"n_classes": 5},
    {"n_classes": 3, "values": None}, {"n_classes": 5, "values": np.float64},
    {"n_classes": 2, "bias": 1.5}, {"n_classes": 5, "bias": 0.5},
    {"n_classes": 5, "zero_cost": True}, {"n_classes": 3, "zero_cost": True, "bias": 1.0},
    {"n_classes": 5, "absent": (0, 3)}, {"n_classes": 6, "absent": (1, 2, 3, 4, 5)},
    {"n_classes": 7, "values": None, "bias": 2.0, "absent": (6,)},
]  # fmt: skip
EVERY_CASE = pytest.mark.parametrize("case", CASES, ids=str)


@given(
    seed=st.integers(0, 10**6),
    case=st.sampled_from(CASES),
    n=st.integers(1, 30),
    chunk=st.sampled_from([1, 4]),
    tasks=st.integers(1, 3),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_every_round_keeps_the_link_and_the_box_and_never_lowers_the_dual(
    seed, case, n, chunk, tasks
):
    p = Problem(seed, n, **case)
    visited = np.count_nonzero(p.C) // (p.K - 1)
    value = 0.0
    for _ in range(4):
        before = p.beta.copy()
        totals = p.solve(1, chunk=chunk, tasks=tasks)
        assert (p.beta >= 0).all()
        assert (p.beta <= p.C).all()  # C is 0 where y is, and where the cost is
        np.testing.assert_allclose(p.W, p.link(p.beta), atol=1e-10)
        assert p.dual(p.beta) >= value - 1e-12
        value = p.dual(p.beta)
        assert totals.gain == pytest.approx(p.beta.sum() - before.sum(), abs=1e-12)
        assert totals.rounds == 1
        assert totals.visits == visited
        assert totals.pair_visits == visited * (p.K - 1)
        assert np.count_nonzero(p.beta != before) <= totals.updates <= totals.pair_visits
        np.testing.assert_array_equal(np.isneginf(p.score), p.costs[p.y] == 0)


@EVERY_CASE
def test_rounds_reach_the_optimum_that_scipy_finds(case):
    p = Problem(3, 18, **case)
    gap, primal = p.solve_to(1e-9)
    assert primal - p.dual(p.beta) == pytest.approx(gap, abs=1e-10 * primal)
    assert gap <= 1e-8 * primal
    assert p.dual(p.beta) == pytest.approx(p.best(), rel=1e-8)


@EVERY_CASE
def test_a_round_reports_gap_violation_and_scores(case):
    p = Problem(4, 40, **case)
    random = np.random.default_rng(4)
    # Whatever becomes of β as small as these, W stays: what is reported is known beforehand.
    p.costs *= 1e-12
    p.C *= 1e-12
    p.W[:] = random.normal(size=p.W.shape)
    p.beta[:] = p.C * random.choice([0.0, 0.3, 1.0], p.C.shape)
    slack = p.slack(p.W)
    PG = np.where(p.beta <= 0, np.maximum(slack, 0), slack)
    PG = np.where((p.beta > 0) & (p.beta >= p.C), np.minimum(slack, 0), PG)
    gap = p.gap_terms(p.W, p.beta)[p.home == 1].sum()
    totals = p.solve(1, block=1)
    assert totals.gap == pytest.approx(gap, rel=1e-9)
    assert totals.violation == pytest.approx(np.abs(PG[p.C > 0]).max(), rel=1e-9)
    assert np.isin(p.beta[p.C > 0] / p.C[p.C > 0], [0, 1]).all()
    rank = np.where(p.beta <= 0, slack, -slack)
    rank[p.C == 0] = -np.inf
    np.testing.assert_allclose(p.score, rank.max(axis=1), rtol=1e-6)


def test_later_rounds_add_nothing_to_the_gap():
    once, often = Problem(5, 30, 4), Problem(5, 30, 4)
    assert often.solve(4).gap == once.solve(1).gap > 0


def test_rows_of_zeros_are_solved_at_once():
    p = Problem(5, 20, 4)
    p.X[:] = 0
    p.rows = Rows(p.rows.starts, p.rows.lengths * 0, p.rows.indices, p.rows.values, p.y)
    totals = p.solve(3)
    np.testing.assert_array_equal(p.beta, p.C)  # rows of zeros: β = C at once
    assert totals.gap == pytest.approx(p.C[p.home == 0].sum(), rel=1e-14)  # l = 1, β = 0
    assert (totals.rounds, totals.visits, totals.updates) == (2, 40, 60)
    assert totals.violation == 0
    np.testing.assert_array_equal(p.score, np.full(20, -1, np.float32))
    assert p.solve(3).rounds == 1


def test_a_first_round_within_the_tolerance_is_the_last():
    p = Problem(6, 24, 4)
    p.solve(1000)
    totals = p.solve(5, inner_tol=1e-3)
    assert 0 < totals.violation <= 1e-3
    assert totals.rounds == 1
    assert p.solve(5, inner_tol=0.1 * totals.violation).rounds == 5


@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_weights_multiply_the_costs_of_their_rows(bias):
    p = Problem(8, 30, 4, bias=bias)
    weight = np.random.default_rng(8).choice([0.0, 0.5, 1.0, 3.0], 30)
    p.C *= weight[:, None]
    p.rows.weights = weight
    for _ in range(20):
        p.solve(200)
    assert (p.beta >= 0).all()
    assert (p.beta <= p.C).all()
    assert (p.beta > p.costs.max()).any()  # the weights matter
    np.testing.assert_allclose(p.W, p.link(p.beta), atol=1e-12)
    primal = 0.5 * (p.W**2).sum() + (p.C * np.maximum(p.slack(p.W), 0)).sum()
    assert primal - p.dual(p.beta) == pytest.approx(0, abs=1e-7 * primal)
    np.testing.assert_array_equal(np.isneginf(p.score), weight == 0)


def test_no_rows_and_no_rounds_are_no_work():
    p = Problem(7, 5, 3)
    assert p.solve(0) == p.solve(0)
    np.testing.assert_array_equal(p.score, np.full(5, 7, np.float32))
    rows = p.rows.part(0, 0)
    problem = PairProblem(rows, p.beta[:0], p.W, p.costs)
    totals = solve_pairs(problem, p.home[:0], p.score[:0], PairRounds(4, p.state))
    assert (totals.rounds, totals.pair_visits, totals.gain) == (1, 0, 0)
    assert not p.W.any()


# ------------------------------------------------------------------------ whoever does the work


@pytest.mark.parametrize("n_classes", [2, 3, 6, 11])
@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_the_bytes_do_not_depend_on_tasks_and_threads(n_classes, bias):
    def outcome(tasks, spread):
        p = Problem(8, 200, n_classes, bias=bias)
        totals = [p.solve(3, chunk=3, tasks=tasks, spread=spread) for _ in range(2)]
        return [a.tobytes() for a in (p.W, p.beta, p.score, p.state)], totals

    alone = outcome(1, map)
    with ThreadPoolExecutor(2) as pool:
        for tasks in (1, 2, 3, 7):
            assert outcome(tasks, map) == alone
            assert outcome(tasks, pool.map) == alone
    backwards = outcome(3, lambda function, parts: map(function, parts[::-1]))
    assert backwards == alone


def test_another_state_is_another_order_and_prefetching_none():
    def weights(state, **options):
        p = Problem(9, 60, 2)
        p.state[0] = state
        p.solve(1, **options)
        return p.W.tobytes()

    assert weights(1) == weights(1, ahead=0) == weights(1, ahead=100)
    assert len({weights(state) for state in range(5)}) == 5
    p = Problem(9, 60, 2)
    p.solve(1)
    assert p.state[0] != 9


def test_the_parts_of_a_day_are_of_about_the_same_work():
    p = Problem(10, 600, 12)
    loads = []

    def spread(function, parts):
        loads.append([len(scratch) for _, scratch in parts])  # as long as there are rows to visit
        return map(function, parts)

    p.solve(1, tasks=3, spread=spread)
    assert len(loads) == 11
    for parts in loads:
        assert sum(parts) == 600
        assert max(parts) <= 1.3 * 200


def test_days_of_little_work_are_not_divided(monkeypatch):
    p = Problem(10, 600, 12)

    def spread(function, parts):
        sizes.append(len(parts))
        return map(function, parts)

    for least, expected in ((5000, [2] * 11), (20000, [])):
        monkeypatch.setattr(pairs_module, "LEAST_PART", least)
        sizes = []
        p.solve(1, tasks=7, spread=spread)
        assert sizes == expected


# --------------------------------------------------------------------------------- by hand


@pytest.mark.parametrize("sigma", [1.0, 2.0])
@pytest.mark.parametrize("bias", [0.0, 2.0])
@pytest.mark.parametrize("cost", [0.01, 10.0])
def test_one_visit_by_hand(sigma, bias, cost):
    x = np.array([0.5, -2.0, 1.0, bias])[: 4 if bias else 3]
    rows = Rows(
        np.array([0], np.int64), np.array([3], np.int32), np.arange(3, dtype=np.int32),
        x[:3].astype(np.float32), np.array([1], np.int32),
    )  # fmt: skip
    W = np.array([[0.1, 0.2, 0.3, 0.4], [-0.3, 0.1, 0.2, 0.15]])[:, : len(x)].copy()
    beta, score = np.array([[0.004, 0.0]]), np.zeros(1, np.float32)
    g = (W[1] - W[0]) @ x - 1
    new = np.clip(0.004 - g / (2 * sigma * x @ x), 0, cost)
    expected = W + np.outer([-1, 1], sigma * (new - 0.004) * x)
    problem = PairProblem(rows, beta, W, np.array([3.0, cost]), bias)
    how = PairRounds(1, np.array([1], np.uint64), sigma=sigma)
    totals = solve_pairs(problem, np.zeros(1, np.int32), score, how)
    assert beta[0, 0] == pytest.approx(new, rel=1e-14)
    assert beta[0, 1] == 0
    np.testing.assert_allclose(W, expected, rtol=1e-14)
    assert totals.violation == pytest.approx(abs(g), rel=1e-14)
    assert totals.gain == pytest.approx(new - 0.004, rel=1e-14)
    slack = -g
    factored = (cost - 0.004) * slack if slack > 0 else -0.004 * slack
    assert totals.gap == pytest.approx(factored, rel=1e-13)
    rank = slack if new <= 0 else (-slack if new >= cost else abs(slack))
    assert score[0] == pytest.approx(rank, rel=1e-6)


@pytest.mark.parametrize("sigma", [2.0, 3.0])
def test_sigma_solves_the_local_problem_of_one_of_several_workers(sigma):
    p = Problem(11, 24, 4, bias=1.0)
    p.solve(1)
    start, W0 = p.beta.copy(), p.W.copy()

    def local(beta):
        moved = p.link(beta) - W0
        return beta.sum() - (W0 * moved).sum() - 0.5 * sigma * (moved**2).sum()

    value = local(p.beta)
    for _ in range(3000):
        p.solve(1, sigma=sigma)
        assert local(p.beta) >= value - 1e-11
        value = local(p.beta)
        np.testing.assert_allclose(p.W, W0 + sigma * (p.link(p.beta) - W0), atol=1e-10)
    PG = p.slack(p.W)  # the gradient of `local`, at these weights
    PG[(p.beta <= 0) & (PG < 0)] = 0
    PG[(p.beta >= p.C) & (PG > 0)] = 0
    assert np.abs(PG).max() < 1e-6
    assert value > local(start) + 0.01


@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_two_classes_are_the_hinge_svm_at_twice_the_cost(bias):
    p = Problem(12, 30, 2, bias=bias)
    p.costs[:] = 0.4
    p.C[p.C > 0] = 0.4
    p.solve_to(1e-12)
    A = p.X * np.where(p.y == 1, 1.0, -1.0)[:, None]
    best = minimize(
        lambda a: 0.5 * (a @ A) @ (a @ A) - a.sum(), np.zeros(len(A)),
        jac=lambda a: A @ (a @ A) - 1, bounds=[(0, 0.8)] * len(A),
        options={"ftol": 1e-16, "gtol": 1e-11, "maxiter": 10000},
    )  # fmt: skip
    w = p.W[1] - p.W[0]
    np.testing.assert_allclose(w, best.x @ A, atol=1e-5)
    hinge = 0.5 * w @ w + 0.8 * np.maximum(0, 1 - A @ w).sum()
    assert hinge == pytest.approx(-best.fun, rel=1e-7)
    np.testing.assert_allclose(p.W.sum(axis=0), 0, atol=1e-12)


# --------------------------------------------------------------------------------- fixtures


def test_all_classes_elsewhere_are_the_same_bytes():
    """Classes at other rows of a larger W."""
    usual, other = Problem(13, 60, 5, bias=1.0), Problem(13, 60, 5, bias=1.0)
    usual.solve(3)
    place = np.array([6, 2, 5, 0, 9], np.int32)
    other.W = np.full((10, other.W.shape[1]), 7.0)
    other.W[place] = 0
    other.solve(3, fixtures=Fixtures.within(place))
    assert other.W[place].tobytes() == usual.W.tobytes()
    assert (np.delete(other.W, place, axis=0) == 7).all()
    assert other.beta.tobytes() == usual.beta.tobytes()


@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_two_sets_that_meet_share_columns_and_leave_their_own_pairs_alone(bias):
    p = Problem(14, 60, 5, bias=bias)
    place, n_first = np.array([3, 1, 4, 0, 2], np.int32), 2
    fixtures = Fixtures.between(place[:n_first], place[n_first:])
    full, p.beta = p.beta, np.zeros((60, 3))
    totals = p.solve(2, fixtures=fixtures)
    side = p.y >= n_first
    full[~side, n_first:] = p.beta[~side]
    full[side, :n_first] = p.beta[side, :n_first]
    assert not p.beta[side, n_first:].any()
    np.testing.assert_allclose(p.W[place], p.link(full), atol=1e-12)
    assert totals.gain == pytest.approx(full.sum(), rel=1e-12)
    assert totals.pair_visits == 2 * (3 * np.count_nonzero(~side) + 2 * np.count_nonzero(side))


@EVERY_CASE
def test_the_certificate_is_the_sum_over_pairs(case):
    p = Problem(15, 40, **case)
    p.solve(2)
    weight = np.random.default_rng(15).choice([0.0, 0.5, 2.0], 40)
    p.beta *= np.minimum(weight, 1)[:, None]
    p.C *= weight[:, None]
    p.rows.weights = weight
    W = p.W + 0.1  # any will do
    W_alpha, marks = np.zeros_like(W), np.zeros(40, np.uint8)
    fixtures = Fixtures.within(np.arange(p.K, dtype=np.int32))
    gap, loss, dual = certify_pairs(p.problem(W=W, fixtures=fixtures), W_alpha, marks)
    assert gap == pytest.approx(p.gap_terms(W, p.beta).sum(), rel=1e-9)
    assert loss == pytest.approx((p.C * np.maximum(p.slack(W), 0)).sum(), rel=1e-12)
    assert dual == pytest.approx(p.beta.sum(), rel=1e-12)
    np.testing.assert_allclose(W_alpha, p.link(p.beta), atol=1e-12)
    np.testing.assert_array_equal(marks & 1 > 0, (p.beta > 0).any(axis=1))
    np.testing.assert_array_equal(marks & 2 > 0, ((p.beta > 0) & (p.beta < p.C)).any(axis=1))
