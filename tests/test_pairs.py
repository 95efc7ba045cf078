"""Weston-Watkins by pairs of classes, which blocks of classes are trained with."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
)

N_FEATURES = 6


@pytest.fixture(autouse=True, scope="module")
def _divide_small_days_too():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs_module, "LEAST_PART", 1)
        yield


@given(n_classes=st.integers(1, 70))
def test_every_pair_meets_once_on_some_day(n_classes):
    met = []
    for day in range(count_days(n_classes)):
        pairs = pairs_of(n_classes, day)
        assert pairs.dtype == np.int32
        assert len(np.unique(pairs)) == pairs.size == n_classes // 2 * 2
        met += map(tuple, pairs.tolist())
    assert sorted(met) == [(a, b) for a in range(n_classes) for b in range(a + 1, n_classes)]


@given(n=st.integers(0, 9), m=st.integers(0, 9))
def test_two_sets_of_classes_meet_each_other_once(n, m):
    met = []
    for day in range(max(n, m)):
        pairs = pairs_between(n, m, day)
        assert len(np.unique(pairs)) == pairs.size == 2 * min(n, m)
        met += map(tuple, pairs.tolist())
    assert sorted(met) == [(a, n + b) for a in range(n) for b in range(m)]


class Problem:
    """A small dense problem, its formulas in plain numpy, and the arrays the solver changes."""

    def __init__(self, seed, n, n_classes, values=np.float32, bias=0.0, weighted=False):
        random = np.random.default_rng(seed)
        X = random.normal(size=(n, N_FEATURES)).astype(np.float32)
        X[random.random(X.shape) < 0.4] = 0
        X[:: max(2, n // 3)] = 0  # rows without features
        self.y = random.integers(0, n_classes, n).astype(np.int32)
        self.costs = random.uniform(0.1, 1.5, n_classes)
        if n_classes > 4:
            self.costs[1] = 0.0
            self.y[self.y == 2] = 3  # a class without rows
        self.bias, self.K = bias, n_classes
        self.X = np.hstack([X, np.full((n, 1), bias)]) if bias else X.astype(float)
        weights = random.choice([0.0, 0.5, 2.0], n) if weighted else np.ones(n)
        self.C = np.repeat((self.costs[self.y] * weights)[:, None], n_classes, axis=1)
        self.C[np.arange(n), self.y] = 0  # the β that are no variables
        lengths = np.count_nonzero(X, axis=1).astype(np.int32)
        starts = np.cumsum(lengths, dtype=np.int64) - lengths
        self.rows = Rows(
            starts, lengths, np.nonzero(X)[1].astype(np.int32), X[X != 0].astype(values), self.y,
            weights if weighted else None,
        )  # fmt: skip
        self.beta = np.zeros((n, n_classes))
        self.W = np.zeros((n_classes, self.X.shape[1]))
        self.state = np.array([seed], np.uint64)

    def problem(self, fixtures=None):
        return PairProblem(self.rows, self.beta, self.W, self.costs, self.bias, fixtures)

    def solve(self, rounds, fixtures=None, **options):
        how = PairRounds(rounds, self.state, **options)
        return solve_pairs(self.problem(fixtures), how)

    def link(self, beta):
        """The weights of some β, shape (K, n_weights)."""
        u = -beta
        u[np.arange(len(u)), self.y] = -u.sum(axis=1)
        return u.T @ self.X

    def slack(self):
        """1 - z_y + z_c, shape (n, K)."""
        z = self.X @ self.W.T
        return 1 - z[np.arange(len(z)), self.y][:, None] + z

    def gap_terms(self):
        slack = self.slack()
        return (self.C - self.beta) * np.maximum(slack, 0) - self.beta * np.minimum(slack, 0)


@given(
    seed=st.integers(0, 10**6), n=st.integers(1, 30), n_classes=st.sampled_from([2, 3, 5, 7]),
    bias=st.sampled_from([0.0, 1.5]), chunk=st.sampled_from([1, 4]), tasks=st.integers(1, 3),
    weighted=st.booleans(),
)  # fmt: skip
def test_rounds_keep_link_and_box_and_raise_dual(seed, n, n_classes, bias, chunk, tasks, weighted):
    p, value = Problem(seed, n, n_classes, bias=bias, weighted=weighted), 0.0
    for _ in range(4):
        before = p.beta.copy()
        totals = p.solve(1, chunk=chunk, tasks=tasks)
        assert (p.beta >= 0).all()
        assert (p.beta <= p.C).all()  # C is 0 at the own class, and if the cost is
        np.testing.assert_allclose(p.W, p.link(p.beta), atol=1e-10)
        dual = p.beta.sum() - 0.5 * (p.W**2).sum()
        assert dual >= value - 1e-12
        value = dual
        assert totals.gain == pytest.approx(p.beta.sum() - before.sum(), abs=1e-12)
        assert np.count_nonzero(p.beta != before) <= totals.updates <= totals.visits


@pytest.mark.parametrize(("n_classes", "bias", "weighted"), [(2, 1.5, False), (5, 0.0, True)])
def test_rounds_reach_the_optimum(n_classes, bias, weighted):
    p = Problem(3, 18, n_classes, bias=bias, weighted=weighted)
    for _ in range(40):
        p.solve(200)
        gap = p.gap_terms().sum()
        primal = 0.5 * (p.W**2).sum() + (p.C * np.maximum(p.slack(), 0)).sum()
        if gap <= 1e-8 * primal:
            break
    dual = p.beta.sum() - 0.5 * (p.link(p.beta) ** 2).sum()
    assert primal - dual == pytest.approx(gap, abs=1e-10 * primal)
    assert gap <= 1e-8 * primal


def test_round_reports_gap_of_first_visits():
    p = Problem(4, 40, 5, bias=0.5)
    random = np.random.default_rng(4)
    # Whatever becomes of β as small as these, W stays: what is reported is known beforehand.
    p.costs *= 1e-12
    p.C *= 1e-12
    p.W[:] = random.normal(size=p.W.shape)
    p.beta[:] = p.C * random.choice([0.0, 0.3, 1.0], p.C.shape)
    gap = p.gap_terms().sum()
    assert p.solve(1).gap == pytest.approx(gap, rel=1e-9)
    once, often = Problem(5, 30, 4), Problem(5, 30, 4)
    assert often.solve(4).gap == once.solve(1).gap > 0


def test_rounds_end_when_nothing_is_left():
    p = Problem(6, 24, 3)
    p.costs[:] = 0.0
    assert p.solve(5).visits == 0
    p = Problem(6, 4, 2)
    p.costs[:] = 1e-3  # all variables reach their bounds
    visits = p.solve(1).visits
    assert p.solve(5).visits == visits


@pytest.mark.parametrize("n_classes", [2, 11])
def test_bytes_do_not_depend_on_tasks_and_threads(n_classes):
    def outcome(tasks, spread, **options):
        p = Problem(8, 200, n_classes, bias=1.0)
        totals = [p.solve(3, chunk=3, tasks=tasks, spread=spread, **options) for _ in range(2)]
        return [a.tobytes() for a in (p.W, p.beta, p.state)], totals

    alone = outcome(1, map)
    assert outcome(1, map, ahead=0) == alone
    with ThreadPoolExecutor(2) as pool:
        for tasks in (2, 7):
            assert outcome(tasks, pool.map) == alone
    assert outcome(3, lambda function, parts: map(function, parts[::-1])) == alone


def test_two_sets_share_columns_and_leave_own_pairs_alone():
    p = Problem(14, 60, 5, bias=1.0)
    place, n_first = np.array([3, 1, 4, 0, 2], np.int32), 2
    full, p.beta = p.beta, np.zeros((60, 3))
    totals = p.solve(2, Fixtures.between(place[:n_first], place[n_first:]))
    side = p.y >= n_first
    full[~side, n_first:] = p.beta[~side]
    full[side, :n_first] = p.beta[side, :n_first]
    assert not p.beta[side, n_first:].any()
    np.testing.assert_allclose(p.W[place], p.link(full), atol=1e-12)
    assert totals.gain == pytest.approx(full.sum(), rel=1e-12)


@pytest.mark.parametrize("bias", [0.0, 2.0])
def test_certificate_is_the_sum_over_pairs(bias):
    p = Problem(15, 40, 5, bias=bias, weighted=True)
    p.solve(2)
    link = p.link(p.beta)
    p.W += 0.1  # any will do
    W_alpha, marks = np.zeros_like(p.W), np.zeros(40, np.uint8)
    fixtures = Fixtures.within(np.arange(p.K, dtype=np.int32))
    gap, loss, dual = certify_pairs(p.problem(fixtures), W_alpha, marks)
    assert gap == pytest.approx(p.gap_terms().sum(), rel=1e-9)
    assert loss == pytest.approx((p.C * np.maximum(p.slack(), 0)).sum(), rel=1e-12)
    assert dual == pytest.approx(p.beta.sum(), rel=1e-12)
    np.testing.assert_allclose(W_alpha, link, atol=1e-12)
    np.testing.assert_array_equal(marks & 1 > 0, (p.beta > 0).any(axis=1))
    np.testing.assert_array_equal(marks & 2 > 0, ((p.beta > 0) & (p.beta < p.C)).any(axis=1))
