"""Kernels of one variable a row, called directly, against slow formulas in plain numpy."""

import math
import os
import sys

import numpy as np
import pytest
from processes import finished
from scipy.optimize import LinearConstraint, minimize, minimize_scalar
from scipy.special import expit, xlogy
from simulation import Simulation

from sbm import compiled
from sbm.compiled import load
from sbm.losses import LOSSES
from sbm.solver.problem import MultiProblem

N_FEATURES = 5


def sparse(X, values):
    """The rows of X as a kernel takes them: (starts, lengths, indices, values)."""
    lengths = np.count_nonzero(X, axis=1).astype(np.int32)
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    stored = None if values is None else X[X != 0].astype(values)
    return starts, lengths, np.nonzero(X)[1].astype(np.int32), stored


def make_rows(seed, n, values=np.float32, zero_rows=True):
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, N_FEATURES)).astype(np.float32).astype(float)
    X[random.random(X.shape) < 0.3] = 0
    if values is None:
        X = (X != 0).astype(float)
    if zero_rows:
        X[3 :: n // 3] = 0
    return X


class Machine:
    """Rows, one kernel that changes alpha and w, and the formulas of its problem.

    The two duals are written as one: d(α) is concave, w = Σ α_i u_i x_i, u_i = ±1 or 1.
    """

    costs = (0.7, 0.4)
    epsilon = 0.0
    squared = False
    classes = True
    kernel = "svc"

    def __init__(self, seed=0, n=30, bias=0.0, values=np.float32, weight=None, X=None, y=None):
        random = np.random.default_rng(seed + 1000)
        self.X = make_rows(seed, n, values) if X is None else X
        self.n = len(self.X)
        if y is None:
            truth = self.X @ random.normal(size=N_FEATURES) + random.normal(size=self.n)
            y = (truth > 0).astype(np.int32) if self.classes else truth
        self.y, self.weight, self.bias, self.dtype = y, weight, bias, values
        self.rows = sparse(self.X, values)
        self.A = np.hstack([self.X, np.full((self.n, 1), bias)]) if bias else self.X
        self.alpha, self.w = np.zeros(self.n), np.zeros(self.A.shape[1])
        self.score = np.full(self.n, 7.0, np.float32)
        self.state = np.array([seed + 1], np.uint64)
        self.home = random.integers(0, 2, self.n).astype(np.int32)

    # ------------------------------------------------------------------ formulas

    @property
    def C(self):
        C = np.where(self.y == 1, *self.costs) if self.classes else np.full(self.n, self.costs[0])
        return C if self.weight is None else C * self.weight

    @property
    def u(self):
        return np.where(self.y == 1, 1.0, -1.0)

    @property
    def bounds(self):
        return np.zeros(self.n), np.where(self.C > 0, np.inf, 0) if self.squared else self.C

    def link(self, alpha):
        return self.A.T @ (self.u * alpha)

    def penalty(self, alpha):
        """½ D α²; rows of cost 0 have no α."""
        C = self.C
        return np.divide(alpha**2, 4 * C, out=np.zeros(self.n), where=C > 0) * self.squared

    def losses(self, z):
        h = np.maximum(1 - self.u * z, 0)
        return self.C * (h**2 if self.squared else h)

    def duals(self, alpha):
        return alpha - self.penalty(alpha)

    def slack(self, alpha, new, z):
        """Score of a visit, from its definition: gradient before it, place after it."""
        G = self.u * z - 1 + 2 * np.divide(self.penalty(alpha), alpha, where=alpha != 0,
                                            out=np.zeros(self.n))  # fmt: skip
        upper = self.bounds[1]
        return np.where(new == 0, -G, np.where(new >= upper, G, abs(G)))

    def primal(self, w):
        return 0.5 * w @ w + self.losses(self.A @ w).sum()

    def dual(self, alpha):
        w = self.link(alpha)
        return self.duals(alpha).sum() - 0.5 * w @ w

    def gaps(self, w, alpha):
        """g_i, from the definition."""
        z = self.A @ w
        return self.losses(z) - self.duals(alpha) + alpha * self.u * z

    def feasible(self, random):
        """Random alphas in the box, some at its ends."""
        lower, upper = (np.clip(bound, -2.5, 2.5) for bound in self.bounds)
        alpha = random.uniform(lower, upper)
        ends = random.random(self.n)
        alpha = np.where(ends < 0.2, lower if not self.squared else alpha, alpha)
        alpha = np.where(ends > 0.8, upper if not self.squared else alpha, alpha)
        return np.where(random.random(self.n) < 0.3, 0.0, alpha)

    # ------------------------------------------------------------------- kernels

    @property
    def numbers(self):
        return (1, *self.costs, self.bias, self.squared)

    def set(self, alpha):
        self.alpha[:] = alpha
        self.w[:] = self.link(alpha)

    def solve(self, rounds=1, sigma=1.0, only=slice(None), block=0, chunk=4, ahead=0, tol=0.0):
        starts, lengths, indices, values = self.rows
        weight = None if self.weight is None else np.ascontiguousarray(self.weight[only])
        n, stats = len(starts[only]), np.zeros(5)
        load(f"sbm.solver.kernels.{self.kernel}").solve(
            starts[only], lengths[only], self.y[only], weight, self.home[only], indices, values,
            self.alpha[only], self.score[only], self.w, *self.numbers, sigma, rounds, chunk, ahead,
            tol, block, self.state, np.empty(n, np.int32), np.empty(n, np.int64), stats,
        )  # fmt: skip
        return stats

    def screen(self, moving):
        starts, lengths, indices, values = self.rows
        load(f"sbm.solver.kernels.{self.kernel}").screen(
            starts, lengths, self.y, self.weight, indices, values, self.alpha, self.w,
            *self.numbers, 0, moving,
        )  # fmt: skip

    def certify(self, ahead=0):
        starts, lengths, indices, values = self.rows
        w_alpha, sums = np.zeros_like(self.w), np.zeros(5)
        load(f"sbm.solver.kernels.{self.kernel}").certify(
            starts, lengths, self.y, self.weight, indices, values, self.alpha, self.w, w_alpha,
            *self.numbers, ahead, sums,
        )  # fmt: skip
        return w_alpha, sums

    def converge(self, tol=1e-10):
        for _ in range(400):
            self.solve(50)
            if self.primal(self.w) - self.dual(self.alpha) <= tol * self.primal(self.w):
                return
        raise AssertionError("no convergence")


class SquaredHinge(Machine):
    squared = True


class Absolute(Machine):
    kernel = "svr"
    classes = False
    epsilon = 0.3

    @property
    def target(self):
        return self.y

    @property
    def u(self):
        return np.ones(self.n)

    @property
    def bounds(self):
        upper = np.where(self.C > 0, np.inf, 0) if self.squared else self.C
        return -upper, upper

    def losses(self, z):
        h = np.maximum(abs(self.target - z) - self.epsilon, 0)
        return self.C * (h**2 if self.squared else h)

    def duals(self, alpha):
        return self.target * alpha - self.epsilon * abs(alpha) - self.penalty(alpha)

    def slack(self, alpha, new, z):
        D = np.divide(0.5, self.C, where=self.C > 0, out=np.zeros(self.n)) * self.squared
        G = z - self.target + D * alpha
        up, down = G + self.epsilon, G - self.epsilon
        upper = self.bounds[1]
        inside = np.where(new > 0, abs(up), abs(down))
        inside = np.where(new >= upper, up, np.where(new <= -upper, -down, inside))
        return np.where(new == 0, -np.minimum(up, -down), inside)

    @property
    def numbers(self):
        return (-1 if not self.classes else 1, self.classes, *self.costs, self.bias, self.squared,
                self.epsilon)  # fmt: skip


class SquaredTube(Absolute):
    squared = True


class LeastSquares(Absolute):
    squared = True
    epsilon = 0.0


class LeastSquaresClassifier(LeastSquares):
    classes = True

    @property
    def target(self):
        return np.where(self.y == 1, 1.0, -1.0)


class AbsoluteClassifier(LeastSquaresClassifier):
    squared = False
    epsilon = 0.2


class Logistic(Machine):
    kernel = "logistic"

    @property
    def numbers(self):
        return (1, *self.costs, self.bias)

    def losses(self, z):
        return self.C * np.logaddexp(0, -self.u * z)

    def duals(self, alpha):
        p = np.divide(alpha, self.C, where=self.C > 0, out=np.zeros(self.n))
        return -self.C * (xlogy(p, p) + xlogy(1 - p, 1 - p))

    def slack(self, alpha, new, z):
        p = np.divide(new, self.C, where=self.C > 0, out=np.zeros(self.n))
        return p * (1 - p)


HINGES = [Machine, SquaredHinge]
TUBES = [Absolute, SquaredTube, LeastSquares, LeastSquaresClassifier, AbsoluteClassifier]
ALL = [*HINGES, *TUBES, Logistic]
every_machine = pytest.mark.parametrize("machine", ALL, ids=lambda m: m.__name__)


def some_weights(n, zeros=True):
    weight = np.array([1.0, 0.5, 2.0, 3.0, 1.5])[np.arange(n) % 5]
    if zeros:
        weight[::7] = 0.0
    return weight


# ------------------------------------------------------------------------------- single visits


@every_machine
@pytest.mark.parametrize("bias", [0.0, 1.5])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_visit_solves_for_its_alpha_exactly_and_scores_its_row(machine, bias, weighted):
    random = np.random.default_rng(4)
    weight = some_weights(30) if weighted else None
    for seed in range(3):
        m = machine(seed, bias=bias, weight=weight)
        for i in range(m.n):
            sigma = (1.0, 3.0)[i % 2]
            alpha = m.feasible(random)
            m.set(alpha)
            m.w += random.normal(size=len(m.w)) * (0.0, 1.0)[(i + seed) % 2]
            before, z = m.w.copy(), m.A @ m.w
            m.home[i] = i % 3
            stats = m.solve(only=slice(i, i + 1), sigma=sigma, block=1)
            new = m.alpha.copy()
            if m.C[i] == 0:
                assert new[i] == alpha[i] == 0
                assert m.score[i] == -np.inf
                continue

            curvature = sigma * m.A[i] @ m.A[i]

            def value(a, m=m, i=i, alpha=alpha, z=z, curvature=curvature):
                moved = alpha.copy()
                moved[i] = a
                d = a - alpha[i]
                return m.duals(moved)[i] - d * m.u[i] * z[i] - 0.5 * curvature * d * d

            lower, upper = (bound[i] for bound in m.bounds)
            assert lower <= new[i] <= upper
            reach = 2 * abs(alpha[i]) + 4 * m.C[i] * (abs(z[i]) + 5)  # squared ones have no bounds
            lower, upper = max(lower, -reach), min(upper, reach)
            best = minimize_scalar(
                lambda a: -value(a), bounds=(lower, upper), method="bounded",
                options={"xatol": 1e-12, "maxiter": 2000},
            )  # fmt: skip
            assert value(new[i]) >= max(-best.fun, value(lower), value(upper)) - 1e-13
            assert stats[0] == pytest.approx(m.duals(new)[i] - m.duals(alpha)[i], abs=1e-13)
            counted = m.gaps(before, alpha)[i] if i % 3 == 1 else 0.0
            assert stats[1] == pytest.approx(counted, rel=1e-12, abs=1e-12)
            assert stats[2:].tolist() == [1, new[i] != alpha[i], 1]
            assert m.score[i] == pytest.approx(m.slack(alpha, new, z)[i], rel=1e-6, abs=1e-7)
            link = before + sigma * (new[i] - alpha[i]) * m.u[i] * m.A[i]
            np.testing.assert_allclose(m.w, link, atol=1e-14)


@every_machine
def test_rows_without_features_get_their_closed_form(machine):
    m = machine(X=np.zeros((12, N_FEATURES)), values=None)
    if not m.classes:
        m.y[:6] = [0.0, 0.3, -0.3, 0.31, -5.0, 2.0]
    m.solve(2)
    if m.kernel == "svr":
        t = m.target
        over = np.maximum(abs(t) - m.epsilon, 0)
        expected = np.sign(t) * (2 * m.C * over if m.squared else m.C * (over > 0))
    else:
        expected = {Machine: m.C, SquaredHinge: 2 * m.C, Logistic: 0.5 * m.C}[machine]
    np.testing.assert_allclose(m.alpha, expected, rtol=1e-15)
    assert m.primal(m.w) - m.dual(m.alpha) == pytest.approx(0, abs=1e-13)


# ----------------------------------------------------------------------------------- many visits


@every_machine
@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_rounds_keep_box_and_link_and_never_lower_the_dual(machine, bias):
    for seed, values in enumerate([np.float32, None, np.float64]):
        m = machine(seed, bias=bias, values=values, weight=some_weights(30))
        for _ in range(6):
            before, held = m.dual(m.alpha), m.duals(m.alpha).sum()
            stats = m.solve(3)
            lower, upper = m.bounds
            assert (lower <= m.alpha).all()
            assert (m.alpha <= upper).all()
            np.testing.assert_allclose(m.w, m.link(m.alpha), atol=1e-13)
            assert m.dual(m.alpha) >= before - 1e-13
            assert stats[0] == pytest.approx(m.duals(m.alpha).sum() - held, abs=1e-12)
            assert stats[4] == 3
        assert (m.score[m.C == 0] == -np.inf).all()
        assert np.isfinite(m.score[m.C > 0]).all()


def best_primal(m):
    """The least primal value, by a general method: smooth in w, or with a variable a row."""
    if m.squared or isinstance(m, Logistic):
        return minimize(m.primal, np.zeros(m.A.shape[1]), method="BFGS", options={"gtol": 1e-9}).fun
    two_sided = isinstance(m, Absolute)
    sides = [1.0, -1.0] if two_sided else [1.0]
    B = np.vstack([side * m.u[:, None] * m.A for side in sides])
    target = np.concatenate([side * m.target for side in sides]) if two_sided else np.ones(m.n)
    Q, C = B @ B.T, np.tile(m.C, len(sides))
    found = minimize(
        lambda a: 0.5 * a @ Q @ a - (target - m.epsilon) @ a, np.zeros(len(C)),
        jac=lambda a: Q @ a - target + m.epsilon, bounds=[(0, c) for c in C],
        options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 10000, "maxfun": 10**6},
    )  # fmt: skip
    return -found.fun


@every_machine
@pytest.mark.parametrize("weighted", [False, True])
def test_rounds_reach_the_optimum_that_scipy_finds(machine, weighted):
    m = machine(2, bias=1.0, weight=some_weights(30) if weighted else None)
    m.converge()
    assert m.primal(m.w) == pytest.approx(best_primal(m), rel=1e-7)
    assert m.primal(np.zeros_like(m.w)) > 1.05 * m.primal(m.w)


@every_machine
def test_a_first_round_that_finds_little_to_do_is_the_last(machine):
    m = machine(2)
    assert m.solve(5, tol=np.inf)[4] == 1
    assert m.solve(5, tol=1e-12)[4] == 5
    m.converge(1e-12)
    assert m.solve(5, tol=1e-2)[4] == 1


@every_machine
@pytest.mark.parametrize("weighted", [False, True])
def test_chunks_and_prefetching_change_no_result(machine, weighted):
    weight = some_weights(30) if weighted else None
    plain, ahead = machine(1, weight=weight), machine(1, weight=weight)
    for _ in range(3):
        stats = plain.solve(4)
        np.testing.assert_array_equal(stats, ahead.solve(4, ahead=2))
    np.testing.assert_array_equal(plain.alpha, ahead.alpha)
    np.testing.assert_array_equal(plain.certify()[1], ahead.certify(ahead=2)[1])


@pytest.mark.parametrize("machine", [Machine, SquaredHinge, Absolute, SquaredTube])
def test_rows_at_rest_are_left_out_of_later_rounds(machine):
    m = machine(2)
    if m.kernel == "svr":
        m.y *= 0.5
    m.solve(100)
    assert m.solve(50)[2] < 0.9 * 50 * m.n


def test_every_round_takes_a_fresh_order_from_the_state():
    states = []
    for rounds in (1, 2, 3):
        m = Machine(5)
        states.append(int(m.state[0]))
        m.solve(rounds)
        states.append(int(m.state[0]))
    assert len(set(states)) == 4  # one start, and an end for each number of rounds
    once, twice = Machine(5), Machine(5)
    once.solve(1)
    twice.state[:] = once.state
    twice.solve(1)
    assert once.w.tobytes() != twice.w.tobytes()


def test_rows_that_nearly_move_are_visited_again():
    # The first one is at rest by 0.1, the others move by more than that in the first round.
    X = np.zeros((3, N_FEATURES))
    X[0, 0] = 1.0
    X[1:, 1:3] = [[1.0, 0.5], [0.5, 1.0]]
    m = Machine(X=X, y=np.ones(3, np.int32))
    m.w[0] = 1.1
    stats = m.solve(3)
    assert stats[2:].tolist()[0::2] == [9, 3]  # visits, rounds


@pytest.mark.parametrize("machine", [LeastSquares, LeastSquaresClassifier, Logistic])
def test_where_nothing_rests_every_round_visits_every_row(machine):
    m = machine(2)
    assert m.solve(50)[2] == 50 * m.n


# ----------------------------------------------------------------------------------- certificates


@every_machine
@pytest.mark.parametrize("bias", [0.0, 1.5])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_certificate_is_primal_minus_dual_whatever_the_weights(machine, bias, weighted):
    random = np.random.default_rng(3)
    for seed, values in enumerate([np.float32, None]):
        weight = some_weights(30) if weighted else None
        m = machine(seed, bias=bias, values=values, weight=weight)
        for size in (0.1, 3.0):
            m.set(m.feasible(random))
            m.w += size * random.normal(size=len(m.w))
            w_alpha, sums = m.certify()
            link = m.link(m.alpha)
            np.testing.assert_allclose(w_alpha, link, atol=1e-13)
            apart = 0.5 * np.square(m.w - link).sum()
            assert sums[0] + apart == pytest.approx(m.primal(m.w) - m.dual(m.alpha), rel=1e-11)
            assert sums[0] == pytest.approx(m.gaps(m.w, m.alpha).sum(), rel=1e-11)
            assert sums[1] == pytest.approx(m.losses(m.A @ m.w).sum(), rel=1e-12)
            assert sums[2] == pytest.approx(m.duals(m.alpha).sum(), rel=1e-12)
            inside = (m.alpha != 0) & (abs(m.alpha) < m.bounds[1])
            assert sums[3:].tolist() == [np.count_nonzero(m.alpha), np.count_nonzero(inside)]
            assert 0 < sums[3] < m.n


@pytest.mark.parametrize("machine", HINGES + TUBES, ids=lambda m: m.__name__)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_row_is_at_rest_exactly_when_it_is_pushed_against_a_bound(machine, weighted):
    m = machine(6, n=60, weight=some_weights(60) if weighted else None)
    for anywhere in (False, True):
        m.solve(4)
        if anywhere:
            m.set(m.feasible(np.random.default_rng(2)))
        slack = m.slack(m.alpha, m.alpha, m.A @ m.w)
        at_bound = (m.alpha == 0) | (abs(m.alpha) >= m.bounds[1])
        expected = (m.C > 0) & ~(at_bound & (slack <= 0))
        marked = np.arange(m.n) == 1
        moving = marked.copy()
        m.screen(moving)
        np.testing.assert_array_equal(moving, expected | marked)
        if not (m.epsilon > 0 or m.kernel == "svc"):
            assert expected[m.C > 0].all()
        elif not anywhere:
            assert 0 < np.count_nonzero(expected) < np.count_nonzero(m.C)


# ---------------------------------------------------------------------------------------- weights


@every_machine
def test_a_weight_of_two_is_the_row_twice_and_of_none_its_absence(machine):
    times = np.array([1, 2, 0, 3, 1] * 6)
    m = machine(5, bias=1.0, weight=times.astype(float))
    rows = np.repeat(np.arange(m.n), times)
    other = machine(5, bias=1.0, X=m.X[rows], y=m.y[rows])
    # The same certificate, with the alpha of a row divided among its copies.
    alpha = m.feasible(np.random.default_rng(1))
    m.set(alpha)
    other.set((alpha / np.maximum(times, 1))[rows])
    np.testing.assert_allclose(m.w, other.w, atol=1e-14)
    (w_alpha, sums), (w_other, sums_other) = m.certify(), other.certify()
    np.testing.assert_allclose(w_alpha, w_other, atol=1e-13)
    np.testing.assert_allclose(sums[:3], sums_other[:3], rtol=1e-12)
    # And the same optimum.
    m.set(0.0)
    m.converge(1e-12)
    other.converge(1e-12)
    np.testing.assert_allclose(m.w, other.w, atol=1e-5)
    assert m.primal(m.w) == pytest.approx(other.primal(m.w), rel=1e-12)
    assert (m.alpha[times == 0] == 0).all()


class Weighted:
    """Kernels of many classes, with weights where `MultiProblem` says None."""

    def __init__(self, weight):
        self._kernels = load("sbm.solver.kernels.multiclass")
        self._weight = weight

    def __getattr__(self, name):
        kernel, place = getattr(self._kernels, name), 2 if name == "mark_free" else 3

        def call(*arguments):
            assert arguments[place] is None
            return kernel(*arguments[:place], self._weight, *arguments[place + 1 :])

        return call if name in ("solve", "screen", "certify", "mark_free") else kernel


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "crammer_singer", "weston_watkins"])
def test_weights_of_many_classes_are_rows_so_many_times(loss, monkeypatch):
    random = np.random.default_rng(2)
    times = np.array([1, 2, 0, 3, 1] * 6)
    X, y = make_rows(2, 30), random.integers(0, 3, 30).astype(np.int32)
    rows = np.repeat(np.arange(30), times)
    problem = MultiProblem(LOSSES[loss], np.array([0.3, 0.5, 0.2]), 0.4, bias=1.0)

    def simulate(X, y, steps):
        sim = Simulation(X, y, [np.arange(len(X))], problem, 0, 0, "gradient", 5)
        for _ in range(steps):
            sim.step(0)
        return sim, sim.certify()[0]

    plain, theirs = simulate(X[rows], y[rows], 200)
    kernels = Weighted(times.astype(float))
    monkeypatch.setattr(MultiProblem, "_kernels", property(lambda _: kernels))
    weighted, ours = simulate(X, y, 200)
    assert ours.relative_gap < 1e-9
    assert ours.primal == pytest.approx(theirs.primal, rel=1e-8)
    np.testing.assert_allclose(weighted.solver.W, plain.solver.W, atol=1e-3)

    # Variables, and which of them are inside bounds that follow the weights.
    lists, free, n_free = weighted.spill[0], np.empty(30, bool), 0
    costs, rest = problem.costs[y] * times, 0.4 * times
    for i, row in enumerate(weighted.alphas()):
        if loss == "crammer_singer":
            total = sum(v for _, v in row)
            assert total <= costs[i] * (1 + 1e-12)
            inside = len(row) > 1 or 0 < total < costs[i] * (1 - 1e-12)
            n_free += inside
        else:
            joint = loss == "weston_watkins"
            upper = [costs[i] if joint or c == y[i] else rest[i] for c, _ in row]
            below = [v < u for (_, v), u in zip(row, upper, strict=True)]
            if not problem.loss.squared:
                assert all(v <= u for (_, v), u in zip(row, upper, strict=True))
            inside = bool(row) if problem.loss.squared else any(below)
            n_free += inside if joint else len(row) if problem.loss.squared else sum(below)
        free[i] = inside
        assert not (row and times[i] == 0)
    marked = np.empty(30, bool)
    begin, count = lists.offsets[:-1].copy(), np.diff(lists.offsets).astype(np.int32)
    kernels.mark_free(
        np.arange(30), y, None, begin, count, lists.outputs, lists.values, problem.loss.kind, 0,
        problem.costs, 0.4, problem.loss.squared, np.empty(16), marked,
    )  # fmt: skip
    np.testing.assert_array_equal(marked, free)
    assert ours.n_free == n_free > 0

    moving = np.zeros(30, bool)
    problem.screen(weighted.load(0), lists, weighted.solver.W + 0.1, moving)
    assert not moving[times == 0].any()
    assert moving[times > 0].any()


# --------------------------------------------------------------------------------- known solvers


def test_squared_error_is_ridge_regression():
    m = LeastSquares(3, n=40)
    m.costs = (0.7, 0.0)
    m.converge(1e-14)
    lam = 1 / (2 * 0.7)
    expected = np.linalg.solve(m.A.T @ m.A + lam * np.eye(N_FEATURES), m.A.T @ m.y)
    np.testing.assert_allclose(m.w, expected, atol=1e-7)


@pytest.mark.parametrize("machine", [Absolute, SquaredTube])
def test_regression_in_a_tube_is_that_of_liblinear(machine):
    svm = pytest.importorskip("sklearn.svm")
    m = machine(3, n=40, weight=some_weights(40, zeros=False))
    m.converge(1e-12)
    loss = "squared_epsilon_insensitive" if m.squared else "epsilon_insensitive"
    theirs = svm.LinearSVR(
        epsilon=0.3, C=0.7, loss=loss, fit_intercept=False, tol=1e-10, max_iter=10**6,
        dual=True, random_state=0,
    ).fit(m.X, m.y, sample_weight=m.weight)  # fmt: skip
    np.testing.assert_allclose(m.w, theirs.coef_, atol=1e-5)


def test_logistic_regression_is_that_of_liblinear():
    linear_model = pytest.importorskip("sklearn.linear_model")
    m = Logistic(3, n=40, weight=some_weights(40, zeros=False))
    m.costs = (0.7, 0.7)
    m.converge(1e-14)
    theirs = linear_model.LogisticRegression(
        C=0.7, fit_intercept=False, tol=1e-10, max_iter=10**5
    ).fit(m.X, m.y, sample_weight=m.weight)  # fmt: skip
    np.testing.assert_allclose(m.w, theirs.coef_[0], atol=1e-6)


# ------------------------------------------------------------------------- logistic: the far ends


@pytest.mark.parametrize("C", [1e-10, 1e-3, 1.0, 1e4, 1e10])
@pytest.mark.parametrize("margin", [0.0, 1e-9, 1.0, 40.0, 800.0, 1e6])
@pytest.mark.parametrize("side", [1.0, -1.0])
def test_a_logistic_visit_is_exact_however_large_the_numbers(C, margin, side):
    for x in (1e-12, 1e-3, 1.0, 100.0):
        for share in (0.0, 1e-15, 0.3, 0.5, 1 - 1e-12, 1.0):
            m = Logistic(X=np.array([[x, 0, 0, 0, 0]]), y=np.ones(1, np.int32), values=np.float64)
            m.costs = (C, C)
            m.alpha[0] = old = share * C
            m.w[0] = side * margin / x
            z = m.w[0] * x
            stats = m.solve()
            new, A = m.alpha[0], x * x
            assert np.isfinite([new, *m.w, *stats, m.score[0]]).all()
            assert 0 <= new <= C

            def slope(t, z=z, A=A, old=old):
                return t + z + A * (C * expit(t) - old)

            low, high = -abs(z) - A * C - 1, abs(z) + A * C + 1
            for _ in range(200):
                middle = 0.5 * (low + high)
                low, high = (middle, high) if slope(middle) < 0 else (low, middle)
            # A visit is not exact where it would not move weights by more than rounding.
            rounding = 1e-13 * (abs(z) + A * C + 1)
            assert new == pytest.approx(C * expit(low), rel=1e-8, abs=C * min(1, rounding))
            _, sums = m.certify()
            assert np.isfinite(sums).all()
            assert sums[0] >= 0


def test_exponentials_and_logarithms_made_of_arithmetic_are_those_of_the_library():
    import numba

    from sbm.solver.kernels import elementary

    # Of their own, as `sbm.compiled` may have spared the wrappers to call them by from here.
    exp, log1p, log_ratio = (
        numba.njit(getattr(elementary, name).py_func) for name in ("exp", "log1p", "log_ratio")
    )
    random = np.random.default_rng(0)
    for x in [0.0, -708.0, 708.0, *np.linspace(-700, 700, 2001), *random.normal(size=2000)]:
        assert exp(x) == pytest.approx(math.exp(x), rel=1e-15)
    assert 0 < exp(-1e6) < 1e-307
    for x in [0.0, 1.0, 1e-300, *random.random(2000), *10.0 ** -random.uniform(0, 20, 500)]:
        assert log1p(x) == pytest.approx(math.log1p(x), rel=1e-15, abs=0)
    a = np.exp(random.uniform(-690, 690, 4000))
    b = a * np.exp(random.normal(size=4000) * np.repeat([1e-9, 1.0, 3.0, 5.0], 1000))
    for over, under in [*zip(a, b, strict=True), *zip(a, np.flip(a), strict=True)]:
        expected = float(np.log(np.longdouble(over) / np.longdouble(under)))
        assert log_ratio(over, under) == pytest.approx(expected, rel=1e-15, abs=1e-15)


@pytest.mark.parametrize("C", [1e-10, 1e10])
def test_extreme_costs_have_certificates_that_are_finite_and_close(C):
    m = Logistic(7, n=40, bias=1.0)
    m.costs = (C, C)
    for _ in range(5):
        before = m.dual(m.alpha)
        m.solve(200)
        assert m.dual(m.alpha) >= before - 1e-12 * abs(before)
        w_alpha, sums = m.certify()
        gap = sums[0] + 0.5 * np.square(m.w - w_alpha).sum()
        primal = 0.5 * m.w @ m.w + sums[1]
        assert gap >= 0
        assert primal == pytest.approx(m.primal(m.w), rel=1e-12)
        assert gap == pytest.approx(primal - m.dual(m.alpha), rel=1e-6, abs=1e-12 * primal)
    assert gap < (1e-12 if C < 1 else 1) * primal


def test_kernels_that_call_mathematical_functions_link_in_a_process_without_numba(tmp_path):
    code = (
        "import sys, numpy as np\n"
        "from pathlib import Path\n"
        "from sbm import compiled\n"
        f"compiled.folder = lambda: Path({str(tmp_path)!r})\n"
        "sums, w = np.zeros(5), np.zeros(1)\n"
        "one = np.ones(1)\n"
        "compiled.load('sbm.solver.kernels.logistic').certify(\n"
        "    np.zeros(1, np.int64), np.ones(1, np.int32), np.ones(1, np.int32), None,\n"
        "    np.zeros(1, np.int32), one, 0.5 * one, w, w.copy(), 1, 1.0, 1.0, 0.0, 0, sums)\n"
        "print(*sums.tolist(), 'numba' in sys.modules)\n"
    )
    env = {k: v for k, v in os.environ.items() if k != compiled.COMPILE_HERE}
    done = finished([sys.executable, "-c", code], env=env)
    assert done.returncode == 0, done.stderr
    *sums, numba = done.stdout.split()
    assert [float(s) for s in sums] == pytest.approx([0, math.log(2), math.log(2), 1, 1])
    assert numba == "False"


# ------------------------------------------------------------------------------------- one class


class OneClass:
    """Rows, the kernel of the one-class machine, and its formulas."""

    def __init__(self, seed, nu, n=40, weight=None, X=None, values=np.float64):
        random = np.random.default_rng(seed)
        self.X = random.normal(size=(n, N_FEATURES)) + 1.0 if X is None else X
        self.n, self.nu, self.weight = len(self.X), nu, weight
        self.rows = sparse(self.X, values)
        self.alpha, self.w = np.zeros(self.n), np.zeros(N_FEATURES)
        self.upper = np.ones(self.n) if weight is None else weight
        self.N = nu * self.upper.sum()
        self.scale = np.square(self.X).sum(axis=1).mean()
        self.level = np.zeros(2)
        self.score = np.zeros(self.n, np.float32)
        self.home = np.zeros(self.n, np.int32)
        self.state = np.array([seed + 1], np.uint64)
        self.set(nu * self.upper)

    def set(self, alpha):
        self.alpha[:] = alpha
        self.w[:] = self.X.T @ self.alpha
        self.level[1] = self.alpha.sum()

    def solve(self, rounds=1, sigma=1.0, only=slice(None), block=0, ahead=0):
        starts, lengths, indices, values = self.rows
        n, stats = len(starts[only]), np.zeros(5)
        weight = None if self.weight is None else self.weight[only]
        load("sbm.solver.kernels.one_class").solve(
            starts[only], lengths[only], weight, self.home[only], indices, values,
            self.alpha[only], self.score[only], self.w, self.level, self.scale, sigma, rounds, 4,
            ahead, 0.0, block, self.state, np.empty(n, np.int32), np.empty(n, np.int64), stats,
        )  # fmt: skip
        return stats

    def certify(self, rho, ahead=0):
        starts, lengths, indices, values = self.rows
        w_alpha, x_sum, sums = np.zeros(N_FEATURES), np.zeros(N_FEATURES), np.zeros(6)
        load("sbm.solver.kernels.one_class").certify(
            starts, lengths, self.weight, indices, values, self.alpha, self.w, w_alpha, x_sum, rho,
            ahead, sums,
        )  # fmt: skip
        return w_alpha, x_sum, sums

    def converge(self, passes=3000):
        """Passes over blocks of rows, each with a share of the multiplier's step."""
        blocks = [slice(k, k + self.n // 4) for k in range(0, self.n, self.n // 4)]
        for _ in range(passes):
            for block in blocks:
                self.solve(2, only=block)
                self.level[0] -= self.scale / len(blocks) * (self.level[1] - self.N)

    def primal(self, w, rho):
        hinge = np.maximum(rho - self.X @ w, 0)
        return 0.5 * w @ w - self.N * rho + self.upper @ hinge

    def best(self):
        """The optimal value, by a general method."""
        scale = 1 / np.square(self.X.T @ (self.nu * self.upper)).sum()
        found = minimize(
            lambda a: 0.5 * scale * np.square(self.X.T @ a).sum(), self.nu * self.upper,
            jac=lambda a: scale * self.X @ (self.X.T @ a), bounds=[(0, v) for v in self.upper],
            constraints=LinearConstraint(np.ones((1, self.n)), self.N, self.N), method="SLSQP",
            options={"ftol": 1e-9, "maxiter": 2000},
        )  # fmt: skip
        assert found.success
        return -found.fun / scale


@pytest.mark.parametrize("weighted", [False, True])
def test_a_visit_of_one_class_solves_for_its_alpha_with_the_level_as_a_weight(weighted):
    random = np.random.default_rng(8)
    o = OneClass(1, 0.4, weight=some_weights(40) if weighted else None)
    o.home[:] = np.arange(40) % 2
    for i in range(40):
        o.set(random.uniform(0, 1, 40) * o.upper)
        if i % 4 == 0:
            o.alpha[i] = (0.0, o.upper[i])[i % 8 == 0]
        o.level[0] = random.normal() * 20
        old, w, (rho, total), sigma = o.alpha[i], o.w.copy(), o.level.copy(), (1.0, 2.0)[i % 2]
        stats = o.solve(only=slice(i, i + 1), sigma=sigma)
        if o.upper[i] == 0:
            assert o.alpha[i] == 0
            assert o.score[i] == -np.inf
            continue
        G, x = o.X[i] @ w - rho, o.X[i]
        new = min(max(old - G / (sigma * (x @ x + o.scale)), 0), o.upper[i])
        assert o.alpha[i] == pytest.approx(new, rel=1e-13, abs=1e-15)
        np.testing.assert_allclose(o.w, w + sigma * (new - old) * x, atol=1e-12)
        assert o.level[0] == pytest.approx(rho - sigma * o.scale * (new - old), rel=1e-12)
        assert o.level[1] == pytest.approx(total + new - old, rel=1e-13)
        rank = -G if new == 0 else G if new == o.upper[i] else abs(G)
        assert o.score[i] == pytest.approx(rank, rel=1e-6)
        g = o.upper[i] * max(-G, 0) + old * G  # φ - d + αz, but for the share of N ρ
        assert stats[:2] == pytest.approx([0, g if i % 2 == 0 else 0], rel=1e-11)
        assert stats[2:].tolist() == [1, new != old, 1]


@pytest.mark.parametrize("nu", [0.1, 0.45])
@pytest.mark.parametrize("weighted", [False, True])
def test_multiplier_steps_lead_to_the_optimum_of_one_class(nu, weighted):
    o = OneClass(3, nu, weight=some_weights(40) if weighted else None)
    o.converge()
    best = o.best()
    rho = o.level[0]
    assert o.level[1] == pytest.approx(o.alpha.sum(), rel=1e-9)
    assert o.alpha.sum() == pytest.approx(o.N, rel=1e-6)
    assert (o.alpha >= 0).all()
    assert (o.alpha <= o.upper).all()
    np.testing.assert_allclose(o.w, o.X.T @ o.alpha, atol=1e-10)
    assert best < 0
    assert o.primal(o.w, rho) == pytest.approx(best, rel=1e-6)
    assert -0.5 * o.w @ o.w == pytest.approx(best, rel=1e-5)


def test_one_class_is_that_of_liblinear():
    liblinearutil = pytest.importorskip("liblinear.liblinearutil")
    o = OneClass(4, 0.3)
    o.converge()
    theirs = liblinearutil.train([1] * 40, o.X, "-s 21 -n 0.3 -e 1e-10 -q")
    w, _ = theirs.get_decfun()
    np.testing.assert_allclose(o.w, w, rtol=1e-4)
    assert o.level[0] == pytest.approx(theirs.rho, rel=1e-4)


@pytest.mark.parametrize("weighted", [False, True])
def test_sums_of_one_class_make_a_certificate(weighted):
    random = np.random.default_rng(5)
    o = OneClass(6, 0.25, weight=some_weights(40) if weighted else None)
    for share in (0.1, 0.6):
        alpha = np.where(random.random(40) < 0.5, o.upper, share * random.random(40) * o.upper)
        alpha[random.random(40) < 0.3] = 0
        o.set(alpha)
        o.w += random.normal(size=N_FEATURES)
        rho = 3.0 * share
        w_alpha, x_sum, sums = o.certify(rho)
        z = o.X @ o.w
        np.testing.assert_allclose(w_alpha, o.X.T @ alpha, rtol=1e-12)
        np.testing.assert_allclose(x_sum, o.X.T @ o.upper, rtol=1e-12)
        loss = o.upper @ np.maximum(rho - z, 0)
        support = np.count_nonzero(alpha)
        free = np.count_nonzero((alpha > 0) & (alpha < o.upper))
        expected = [loss, alpha.sum(), o.upper.sum(), support, free]
        np.testing.assert_allclose(sums[:5], expected, rtol=1e-11)
        size = o.upper @ (np.abs(o.X) @ np.abs(o.w))  # of what is rounded
        assert 0 <= sums[5] <= 20 * 2.0**-53 * size
        assert (sums[5] > 0) == (loss > 0)
        np.testing.assert_array_equal(sums, o.certify(rho, ahead=3)[2])
        assert 0 < free < support < 40


def test_rounds_of_one_class_keep_box_link_and_level():
    o, ahead = OneClass(2, 0.3, weight=some_weights(40)), OneClass(2, 0.3, weight=some_weights(40))
    o.level[0] = ahead.level[0] = rho = 5.0
    total = o.level[1]
    stats = o.solve(20)
    np.testing.assert_array_equal(stats, ahead.solve(20, ahead=2))
    assert stats[4] == 20
    assert stats[2] < 20 * 40  # some rest
    assert (o.alpha >= 0).all()
    assert (o.alpha <= o.upper).all()
    np.testing.assert_allclose(o.w, o.X.T @ o.alpha, atol=1e-11)
    assert o.level[1] == pytest.approx(o.alpha.sum(), rel=1e-12)
    assert o.level[0] == pytest.approx(rho - o.scale * (o.level[1] - total), rel=1e-12)


def test_weights_of_one_class_are_rows_so_many_times():
    times = np.array([1, 2, 0, 3, 1] * 8)
    weighted = OneClass(9, 0.3, weight=times.astype(float))
    plain = OneClass(9, 0.3, X=np.repeat(weighted.X, times, axis=0))
    assert plain.n % 4 == 0
    weighted.converge()
    plain.converge()
    np.testing.assert_allclose(weighted.w, plain.w, rtol=1e-4)
    assert weighted.level[0] == pytest.approx(plain.level[0], rel=1e-4)
