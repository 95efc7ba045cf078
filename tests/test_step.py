"""The solver against slow, obvious versions of itself."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from simulation import N_FEATURES, Simulation, make_blocks

from sbm.alphas import Dense
from sbm.losses import LOSSES
from sbm.rows import Arena
from sbm.solver.cache import POLICIES, WorkingSet
from sbm.solver.problem import Problem
from sbm.solver.variables import DenseSet

BINARY = sorted(name for name, loss in LOSSES.items() if loss.kernel == "svc")


class Binary(Simulation):
    """Two classes, from their definitions."""

    def alphas(self):
        return np.array(super().alphas())

    def signs(self):
        return np.where(self.y == self.problem.positive, 1.0, -1.0)

    def primal(self, w):
        h = np.maximum(0, 1 - self.signs() * (self.design() @ w))
        loss = h**2 if self.problem.loss.squared else h
        return 0.5 * w @ w + self.problem.costs(self.y) @ loss

    def dual(self, alpha):
        w = self.design().T @ (alpha * self.signs())
        C = self.problem.costs(self.y)
        D = np.divide(0.5, C, where=C > 0, out=np.zeros_like(C)) * self.problem.loss.squared
        return alpha.sum() - 0.5 * (D * alpha**2).sum() - 0.5 * w @ w


def make_problem(loss="hinge", positive_cost=0.7, negative_cost=0.4, bias=0.0):
    return Problem(LOSSES[loss], positive_cost, negative_cost, positive=1, bias=bias)


@given(
    seed=st.integers(0, 10**6),
    loss=st.sampled_from(BINARY),
    policy=st.sampled_from(sorted(POLICIES)),
    n_blocks=st.integers(1, 5),
    cache_rows=st.integers(0, 25),
    rounds=st.integers(1, 4),
    values=st.booleans(),
    bias=st.sampled_from([0.0, 1.5]),
    negative_cost=st.sampled_from([0.0, 0.4]),
    screened=st.booleans(),
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_every_step_keeps_the_link_the_homes_the_box_and_never_lowers_the_dual(
    seed, loss, policy, n_blocks, cache_rows, rounds, values, bias, negative_cost, screened
):
    X, y, blocks = make_blocks(seed, n_blocks, 9, values)
    problem = make_problem(loss, 0.7, negative_cost, bias)
    sim = Binary(X, y, blocks, problem, cache_rows, 50, policy, rounds, values)
    random = np.random.default_rng(seed)
    before = 0.0
    for _ in range(3):
        order = random.permutation(n_blocks)
        for block, result in sim.steps(order, screened):
            alpha = sim.alphas()
            costs = problem.costs(y)
            assert (alpha >= 0).all()
            if not problem.loss.squared:
                assert (alpha <= costs).all()
            assert (alpha[costs == 0] == 0).all()
            link = sim.design().T @ (alpha * sim.signs())
            np.testing.assert_allclose(sim.solver.W[:, 0], link, atol=1e-12)
            assert sim.solver.dual == pytest.approx(sim.dual(alpha), abs=1e-11)
            assert sim.solver.dual >= before - 1e-12
            before = sim.solver.dual
            working = sim.working
            assert working.n_cached <= cache_rows
            assert working.lengths[: working.n_cached].sum() <= 50
            assert result.totals.visits + result.totals.rest >= len(blocks[block])
            assert screened or result.totals.rest == 0


@pytest.mark.parametrize("loss", BINARY)
@pytest.mark.parametrize("cache_rows", [0, 10])
@pytest.mark.parametrize("bias", [0.0, 2.0])
@pytest.mark.parametrize("screened", [False, True])
def test_steps_reach_the_optimum_that_scipy_finds(loss, cache_rows, bias, screened):
    X, y, blocks = make_blocks(3, 4, 10)
    problem = make_problem(loss, bias=bias)
    sim = Binary(X, y, blocks, problem, cache_rows, 80, "gradient", 3)
    for _ in range(400):
        for _ in sim.steps(range(4), screened):
            pass
    D = np.diag(0.5 / problem.costs(y)) if problem.loss.squared else 0.0
    A = sim.design() * sim.signs()[:, None]
    Q = A @ A.T + D
    upper = [None] * len(y) if problem.loss.squared else problem.costs(y)
    best = minimize(
        lambda a: 0.5 * a @ Q @ a - a.sum(), np.zeros(len(y)), jac=lambda a: Q @ a - 1,
        bounds=[(0, u) for u in upper], options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 10000},
    )  # fmt: skip
    assert sim.solver.dual == pytest.approx(-best.fun, rel=1e-8)
    assert sim.primal(sim.solver.W[:, 0]) == pytest.approx(-best.fun, rel=1e-6)


@pytest.mark.parametrize("loss", BINARY)
@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_the_certificate_is_primal_minus_dual_whatever_the_weights(loss, bias):
    X, y, blocks = make_blocks(5, 3, 12)
    problem = make_problem(loss, 0.9, 0.3, bias)
    sim = Binary(X, y, blocks, problem, 8, 60, "gradient", 2)
    for block in range(3):
        sim.step(block)
    alpha = sim.alphas()
    sim.solver.W += np.random.default_rng(1).normal(size=sim.solver.W.shape) * 0.01  # drift
    for block in range(3):
        spilled = Dense(sim.spill[block].values.copy())
        sim.working.alphas_of(block, spilled)
        np.testing.assert_array_equal(spilled.values, alpha[blocks[block]])
    certificate, W_alpha = sim.certify()
    w = sim.solver.W[:, 0]
    assert certificate.primal == pytest.approx(sim.primal(w), rel=1e-12)
    assert certificate.dual == pytest.approx(sim.dual(alpha), rel=1e-12)
    assert certificate.gap == pytest.approx(sim.primal(w) - sim.dual(alpha), rel=1e-10)
    link = sim.design().T @ (alpha * sim.signs())
    np.testing.assert_allclose(W_alpha[:, 0], link, atol=1e-13)
    drift = np.linalg.norm(w - link) / np.sqrt(2 * sim.primal(w))
    assert certificate.drift == pytest.approx(drift, rel=1e-9)
    assert certificate.n_support == np.count_nonzero(alpha)
    free = problem.loss.is_free(alpha, problem.costs(y))
    assert certificate.n_free == np.count_nonzero(free)


@pytest.mark.parametrize("loss", BINARY)
@pytest.mark.parametrize("bias", [0.0, 1.0])
def test_a_row_is_at_rest_exactly_when_a_visit_would_not_change_it(loss, bias):
    X, _, blocks = make_blocks(8, 3, 40)
    y = (X @ np.random.default_rng(8).normal(size=N_FEATURES) > 0).astype(np.int32)
    problem = make_problem(loss, 30.0, 20.0, bias)
    sim = Binary(X, y, blocks, problem, 20, 120, "gradient", 2)
    for block in (0, 1, 2, 0, 1, 2):
        sim.step(block)
    screen = sim.screen(1)
    cached = np.zeros(len(blocks[1]), bool)
    sim.working.mark_cached(1, cached)
    alpha, w = sim.spill[1].values, sim.solver.W[:, 0]
    rows = blocks[1]
    G = sim.signs()[rows] * (sim.design()[rows] @ w) - 1
    C = problem.costs(y[rows])
    if problem.loss.squared:
        G += 0.5 / C * alpha
    upper = np.inf if problem.loss.squared else C
    rest = ((alpha == 0) & (G >= 0)) | ((alpha == upper) & (G <= 0))
    np.testing.assert_array_equal(screen.moving, cached | ~rest)
    assert 0 < np.count_nonzero(screen.moving) < len(rows)


@given(seed=st.integers(0, 10**6), few=st.booleans())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_selection_takes_the_best_rows_that_fit_free_rows_and_small_numbers_first(seed, few):
    random = np.random.default_rng(seed)
    n = int(random.integers(1, 60)) if seed % 8 else 8184 + seed // 8 % 16  # by other digits
    max_rows, max_nnz = int(random.integers(0, n + 10)), int(random.integers(0, 3 * n + 20))
    if seed % 5 == 0:
        max_nnz = 0  # room for rows without nonzeros
    working = WorkingSet(Arena.of(1, "ones"), DenseSet(max_rows + n), max_rows, max_nnz)
    working.n = n
    working.lengths[:n] = random.integers(0, 7, n)
    working.home[:n] = random.integers(0, 3, n)
    working.row[:n] = random.permutation(n)
    rank = random.normal(size=n).astype(np.float32)
    if few:  # many ties
        rank = np.sign(rank) * (np.abs(rank) > 0.5)
    rank[random.random(n) < 0.1] = -np.inf
    free = random.random(n) < 0.5
    keep = working.select(rank.astype(np.float32), lambda rows: free[rows])

    order = sorted(range(n), key=lambda i: (-rank[i], not free[i], working.home[i], working.row[i]))
    expected, rows, nnz = np.zeros(n, bool), 0, 0
    for i in order:
        rows, nnz = rows + 1, nnz + working.lengths[i]
        if np.isneginf(rank[i]) or rows > max_rows or nnz > max_nnz:
            break
        expected[i] = True
    np.testing.assert_array_equal(keep, expected)


def test_the_seed_decides_the_order_of_visits():
    def weights(seed):
        X, y, blocks = make_blocks(6, 2, 30)
        sim = Binary(X, y, blocks, make_problem(), 10, 80, "gradient", 1, seed=seed)
        for block in range(2):
            sim.step(block)
        return sim.solver.W.tobytes()

    assert weights(1) == weights(1)
    assert len({weights(seed) for seed in range(4)}) == 4


def test_rows_without_features_get_their_closed_form_alphas():
    X = np.zeros((6, N_FEATURES))
    y = np.array([0, 1, 0, 1, 1, 0], np.int32)
    for loss, factor in (("hinge", 1.0), ("squared_hinge", 2.0)):
        problem = make_problem(loss)
        sim = Binary(X, y, [np.arange(6)], problem, 0, 0, "gradient", 1)
        sim.step(0)
        np.testing.assert_array_equal(sim.alphas(), factor * problem.costs(y))
