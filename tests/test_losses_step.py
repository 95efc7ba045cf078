"""Steps of every loss with one variable a row that is no hinge, against slow versions."""

import numpy as np
import pytest
from families import OF_ALPHA, OF_MARGIN
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import N_FEATURES, Simulation, make_blocks

from sbm.losses import LOSSES
from sbm.solver.cache import POLICIES
from sbm.solver.problem import OneClass, Problem

# Those of `svc` are in test_step.py.
SEPARABLE = sorted(
    name for name, loss in LOSSES.items() if loss.kernel not in (None, "svc", "one_class")
)
KINDS = [*SEPARABLE, "squared_error of classes"]
EPSILON = 0.3


class Slow(Simulation):
    """One variable a row, from the definitions."""

    def alphas(self):
        return np.array(super().alphas())

    @property
    def costs(self):
        return self.problem.costs(self.y, self.row_weights)

    @property
    def signs(self):
        """What α is multiplied by in W."""
        if self.problem.loss.signed:
            return np.ones(len(self.y))
        return np.where(self.y == self.problem.positive, 1.0, -1.0)

    @property
    def targets(self):
        if not self.problem.classify:
            return self.y
        return np.where(self.y == self.problem.positive, 1.0, -1.0)

    def link(self, alpha):
        return self.design().T @ (alpha * self.signs)

    def row_losses(self, w):
        z = self.design() @ w
        if not self.problem.loss.signed:
            return self.costs * OF_MARGIN[self.problem.loss.name](self.signs * z)
        h = np.maximum(0, np.abs(self.targets - z) - self.problem.epsilon)
        return self.costs * (h**2 if self.problem.loss.squared else h)

    def primal(self, w):
        return 0.5 * w @ w + self.row_losses(w).sum()

    def dual(self, alpha):
        C, used = self.costs, self.costs > 0
        if not self.problem.loss.signed:
            p = np.divide(alpha, C, where=used, out=np.zeros_like(alpha))
            d = C * OF_ALPHA[self.problem.loss.name](p)
        else:
            d = self.targets * alpha - self.problem.epsilon * np.abs(alpha)
            if self.problem.loss.squared:
                d = d - np.divide(alpha**2, 4 * C, where=used, out=np.zeros_like(alpha))
        w = self.link(alpha)
        return d.sum() - 0.5 * w @ w


def make_problem(kind, bias=0.0, negative_cost=0.4):
    if kind == "squared_error of classes":
        return Problem(LOSSES["squared_error"], 0.7, negative_cost, 1, bias)
    loss = LOSSES[kind]
    if not loss.signed:
        return Problem(loss, 0.7, negative_cost, 1, bias)
    epsilon = 0.0 if kind == "squared_error" else EPSILON
    return Problem(loss, 0.7, 0.7, -1, bias, epsilon, classify=False)


def make(kind, seed, n_blocks, rows_each, bias=0.0, weighted=True, values=True, cost=0.4):
    """Rows with what is to be learned of them, and weights, some of them 0."""
    X, y, blocks = make_blocks(seed, n_blocks, rows_each, values)
    random = np.random.default_rng(seed)
    problem = make_problem(kind, bias, cost)
    if not problem.classify:
        y = np.round(X @ random.normal(size=N_FEATURES) + random.normal(size=len(X)), 3)
    weights = random.integers(0, 4, len(y)) / 2 if weighted else None
    return X, y, blocks, problem, weights


@pytest.mark.parametrize("kind", KINDS)
@given(
    seed=st.integers(0, 10**6),
    policy=st.sampled_from(sorted(POLICIES)),
    n_blocks=st.integers(1, 5),
    cache_rows=st.integers(0, 25),
    rounds=st.integers(1, 4),
    values=st.booleans(),
    bias=st.sampled_from([0.0, 1.5]),
    cost=st.sampled_from([0.0, 0.4]),
    weighted=st.booleans(),
    screened=st.booleans(),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_every_step_keeps_the_link_the_homes_the_box_and_never_lowers_the_dual(
    kind, seed, policy, n_blocks, cache_rows, rounds, values, bias, cost, weighted, screened
):
    X, y, blocks, problem, weights = make(kind, seed, n_blocks, 9, bias, weighted, values, cost)
    sim = Slow(X, y, blocks, problem, cache_rows, 50, policy, rounds, values, weights=weights)
    random = np.random.default_rng(seed)
    before = 0.0
    for _ in range(3):
        order = random.permutation(n_blocks)
        for block, result in sim.steps(order, screened and problem.loss.rests):
            alpha, costs = sim.alphas(), sim.costs  # each has one home, or this fails
            if not problem.loss.squared:
                assert (np.abs(alpha) <= costs).all()
            if not problem.loss.signed:
                assert (alpha >= 0).all()
            assert (alpha[costs == 0] == 0).all()
            np.testing.assert_allclose(sim.solver.W[:, 0], sim.link(alpha), atol=1e-12)
            assert sim.solver.dual == pytest.approx(sim.dual(alpha), abs=1e-10)
            assert sim.solver.dual >= before - 1e-12
            before = sim.solver.dual
            assert sim.working.n_cached <= cache_rows
            assert sim.working.lengths[: sim.working.n_cached].sum() <= 50
            assert result.totals.visits + result.totals.rest >= len(blocks[block])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [0.0, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_certificate_is_primal_minus_dual_whatever_the_weights(kind, bias, weighted):
    X, y, blocks, problem, weights = make(kind, 5, 3, 12, bias, weighted)
    sim = Slow(X, y, blocks, problem, 8, 60, "gradient", 2, weights=weights)
    for block in range(3):
        sim.step(block)
    alpha = sim.alphas()
    sim.solver.W += np.random.default_rng(1).normal(size=sim.solver.W.shape) * 0.01  # drift
    certificate, W_alpha = sim.certify()
    w = sim.solver.W[:, 0]
    assert certificate.primal == pytest.approx(sim.primal(w), rel=1e-12)
    assert certificate.dual == pytest.approx(sim.dual(alpha), rel=1e-12)
    assert certificate.gap == pytest.approx(sim.primal(w) - sim.dual(alpha), rel=1e-10)
    np.testing.assert_allclose(W_alpha[:, 0], sim.link(alpha), atol=1e-13)
    assert certificate.n_support == np.count_nonzero(alpha)
    free = problem.loss.is_free(alpha, sim.costs)
    assert certificate.n_free == np.count_nonzero(free)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cache_rows", [0, 10])
def test_steps_reach_an_optimum_that_no_direction_improves(kind, cache_rows):
    X, y, blocks, problem, weights = make(kind, 3, 4, 10, 1.0)
    sim = Slow(X, y, blocks, problem, cache_rows, 80, "gradient", 3, weights=weights)
    for _ in range(300):
        for _ in sim.steps(range(4), problem.loss.rests):
            pass
    w = sim.solver.W[:, 0]
    best = sim.primal(w)
    assert best - sim.dual(sim.alphas()) <= 1e-6 * best
    random = np.random.default_rng(0)
    for size in (1e-2, 1e-1, 1.0):
        for _ in range(20):
            assert sim.primal(w + size * random.normal(size=len(w))) > best


@pytest.mark.parametrize("kind", sorted(k for k in SEPARABLE if LOSSES[k].rests))
def test_a_row_is_at_rest_exactly_when_a_visit_would_not_change_it(kind):
    X, y, blocks, problem, weights = make(kind, 8, 3, 40, 1.0)
    sim = Slow(X, y, blocks, problem, 20, 120, "gradient", 2, weights=weights)
    for block in (0, 1, 2, 0, 1, 2):
        sim.step(block)
    screen = sim.screen(1)
    cached = np.zeros(len(blocks[1]), bool)
    sim.working.mark_cached(1, cached)
    rows, alpha = blocks[1], sim.spill[1].values
    z, C = sim.design()[rows] @ sim.solver.W[:, 0], sim.costs[rows]
    if problem.loss.signed:
        e = y[rows] - z
        upper = np.full(len(rows), np.inf) if problem.loss.squared else C
        rest = (alpha == 0) & (np.abs(e) <= EPSILON)
        rest |= (alpha >= upper) & (e >= EPSILON)
        rest |= (alpha <= -upper) & (e <= -EPSILON)
    else:  # the slope of d - α m at the end where α is
        d, m, h = OF_ALPHA[kind], sim.signs[rows] * z, 1e-6
        rest = (alpha == 0) & ((d(h) - d(0)) / h <= m)
        rest |= (alpha >= C) & ((d(1) - d(1 - h)) / h >= m)
    np.testing.assert_array_equal(screen.moving, cached | (~rest & (C > 0)))
    assert 0 < np.count_nonzero(screen.moving) < len(rows)


@pytest.mark.parametrize("kind", KINDS)
def test_alphas_from_elsewhere_are_moved_inside_their_bounds(kind):
    X, y, blocks, problem, weights = make(kind, 4, 1, 30, cost=0.0)
    sim = Slow(X, y, blocks, problem, 0, 0, "gradient", 1, weights=weights)
    rows, alpha = sim.load(0), sim.spill[0]
    alpha.values[:] = before = np.random.default_rng(0).normal(size=30) * 2
    problem.make_feasible(rows, alpha)
    C = sim.costs[blocks[0]]
    upper = np.where(C > 0, np.inf if problem.loss.squared else C, 0.0)
    lower = -upper if problem.loss.signed else 0 * upper
    np.testing.assert_array_equal(alpha.values, np.clip(before, np.where(C > 0, lower, 0), upper))
    assert (alpha.values[C == 0] == 0).all()


# ------------------------------------------------------------------------------- one class


def one_class(seed, n_blocks, rows_each, nu, weighted, values=True):
    X, _, blocks = make_blocks(seed, n_blocks, rows_each, values)
    X[:, 0] = 1 if not values else 2
    random = np.random.default_rng(seed)
    weights = random.integers(0, 4, len(X)) / 2 if weighted else None
    if weights is not None:
        weights[0] = 1.0
    total = float(len(X)) if weights is None else float(weights.sum())
    return X, np.zeros(len(X)), blocks, OneClass(LOSSES["one_class"], nu, total), weights


@given(
    seed=st.integers(0, 10**6),
    policy=st.sampled_from(sorted(POLICIES)),
    n_blocks=st.integers(1, 5),
    cache_rows=st.integers(0, 25),
    rounds=st.integers(1, 4),
    values=st.booleans(),
    nu=st.sampled_from([0.05, 0.5, 1.0]),
    weighted=st.booleans(),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_every_step_of_one_class_keeps_the_link_the_sum_and_the_box(
    seed, policy, n_blocks, cache_rows, rounds, values, nu, weighted
):
    X, y, blocks, problem, weights = one_class(seed, n_blocks, 9, nu, weighted, values)
    sim = Simulation(X, y, blocks, problem, cache_rows, 50, policy, rounds, values, weights=weights)
    upper = np.ones(len(X)) if weights is None else weights
    for _ in range(3):
        for block in range(n_blocks):
            sim.step(block)
            alpha = np.array(sim.alphas())
            assert (alpha >= 0).all()
            assert (alpha <= upper).all()
            np.testing.assert_allclose(sim.solver.W[:, 0], X.T @ alpha, atol=1e-10)
            assert problem.state()["level"][1] == pytest.approx(alpha.sum(), abs=1e-10)
            assert sim.working.n_cached <= cache_rows


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("nu", [0.05, 0.5, 1.0])
def test_the_certificate_of_one_class_is_that_of_the_nearest_feasible_alphas(nu, weighted):
    X, y, blocks, problem, weights = one_class(2, 3, 20, nu, weighted)
    sim = Simulation(X, y, blocks, problem, 8, 60, "gradient", 2, weights=weights)
    v = np.ones(len(X)) if weights is None else weights
    N = nu * v.sum()
    for block in (0, 1, 2, 0, 1, 2, 0, 1, 2):
        sim.step(block)
        alpha, w, rho = np.array(sim.alphas()), sim.solver.W[:, 0], problem.rho
        S = alpha.sum()
        near = alpha * (N / S) if S >= N else alpha + (v - alpha) * (N - S) / (v.sum() - S)
        assert near.sum() == pytest.approx(N)
        assert (near <= v + 1e-12).all()
        certificate, W_alpha = sim.certify()
        primal = 0.5 * w @ w - N * rho + v @ np.maximum(0, rho - X @ w)
        dual = -0.5 * np.square(X.T @ near).sum()
        assert certificate.primal == pytest.approx(primal, rel=1e-9, abs=1e-9)
        assert certificate.dual == pytest.approx(dual, rel=1e-9, abs=1e-9)
        assert certificate.gap == pytest.approx(primal - dual, rel=1e-9, abs=1e-9)
        np.testing.assert_allclose(W_alpha[:, 0], X.T @ alpha, atol=1e-10)
        assert primal >= dual - 1e-9
    assert certificate.n_support == np.count_nonzero(alpha)


def test_one_class_goes_on_from_its_state():
    X, y, blocks, problem, _ = one_class(2, 3, 20, 0.3, False)
    sim = Simulation(X, y, blocks, problem, 0, 0, "gradient", 2)
    for block in range(3):
        sim.step(block)
    state = {name: array.copy() for name, array in problem.state().items()}
    other = OneClass(problem.loss, problem.nu, problem.total)
    other.restore(state)
    assert (other.rho, other.unit) == (problem.rho, problem.unit)
    assert other.unit > 0
