"""Problems of many classes against slow, obvious versions of themselves."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import N_FEATURES, Simulation, make_blocks

from sbm.alphas import Lists
from sbm.losses import LOSSES
from sbm.solver.cache import POLICIES
from sbm.solver.problem import MultiProblem, Problem

JOINT = sorted(name for name, loss in LOSSES.items() if loss.joint)
KINDS = sorted(name for name, loss in LOSSES.items() if loss.kind is not None)


class Multi(Simulation):
    """Many classes, from their definitions; all arrays have a row a row and a column a class."""

    @property
    def name(self):
        return self.problem.loss.name

    @property
    def own(self):
        """Whether a column is that of the row's class."""
        classes = self.problem.first + np.arange(self.problem.n_outputs)
        return self.y[:, None] == classes

    @property
    def costs(self):
        """Cost of each variable; 0 for those that do not exist."""
        mine = self.problem.costs[self.y][:, None]
        if self.problem.loss.joint:
            return np.where(self.own, 0.0, mine)
        return np.where(self.own, mine, self.problem.cost_rest)

    def betas(self):
        """All variables; fails where a list is not by output or holds a 0."""
        beta = np.zeros(self.own.shape)
        for i, row in enumerate(self.alphas()):
            outputs = [k for k, _ in row]
            assert outputs == sorted(set(outputs))
            assert all(value != 0 for _, value in row)
            beta[i, outputs] = [value for _, value in row]
        return beta

    def moves(self, beta):
        """u_i, so that W = Σ x_i (outer) u_i."""
        if not self.problem.loss.joint:
            return np.where(self.own, beta, -beta)
        return np.where(self.own, beta.sum(axis=1, keepdims=True), -beta)

    def weights(self, beta):
        return self.design().T @ self.moves(beta)

    def losses(self, W):
        """h of one-vs-rest; l of the others, with 0 for the row's own class."""
        z = self.design() @ W
        if not self.problem.loss.joint:
            return 1 - np.where(self.own, z, -z)
        return np.where(self.own, 0, 1 - z[self.own][:, None] + z)

    def primal(self, W):
        h = np.maximum(self.losses(W), 0)
        each = {"squared_hinge": h**2, "crammer_singer": h.max(axis=1, keepdims=True)}
        costs = self.costs.max(axis=1, keepdims=True) if self.problem.loss.joint else self.costs
        return 0.5 * (W**2).sum() + (costs * each.get(self.name, h)).sum()

    def dual_terms(self, beta):
        D = np.divide(0.5, self.costs, where=self.costs > 0, out=np.zeros_like(self.costs))
        return beta - 0.5 * D * beta**2 * self.problem.loss.squared

    def dual(self, beta):
        return self.dual_terms(beta).sum() - 0.5 * (self.weights(beta) ** 2).sum()

    def check_feasible(self, beta):
        assert (beta >= 0).all()
        assert (beta[self.costs == 0] == 0).all()
        if self.name == "crammer_singer":
            assert (beta.sum(axis=1) <= self.costs.max(axis=1) * (1 + 1e-14)).all()
        elif not self.problem.loss.squared:
            assert (beta <= self.costs).all()

    def room_for_growth(self, W, beta):
        """At least what the dual could rise by the variables of each row; 0 at a maximum only."""
        G = self.losses(W) - (
            0.5 * beta / np.maximum(self.costs, 1e-300) if self.problem.loss.squared else 0
        )
        if self.name == "crammer_singer":
            G, C = np.where(self.own, 0, G), self.costs.max(axis=1)
            return C * np.maximum(G.max(axis=1), 0) - (G * beta).sum(axis=1)
        up = self.costs * G**2 if self.problem.loss.squared else (self.costs - beta) * G
        return np.where(G > 0, up, -G * beta).sum(axis=1)

    def violations(self, W, beta):
        """Section 7 of the notes: how far the gradient of each row is from rest."""
        loss, costs = self.losses(W), self.costs
        worst = np.zeros(len(beta))
        for i, (mine, l_c, C) in enumerate(zip(beta, loss, costs, strict=True)):
            exists = C > 0
            if not exists.any():
                continue
            mine, l_c, C = mine[exists], l_c[exists], C[exists]
            if self.name == "crammer_singer":
                tight = list(l_c[mine > 0]) + [0] * int(mine.sum() < C[0] * (1 - 1e-12))
                worst[i] = max(0, l_c.max()) - min(tight)
            elif self.problem.loss.squared:
                G = 0.5 * mine / C - l_c
                worst[i] = np.where(mine > 0, abs(G), np.maximum(-G, 0)).max()
            else:
                inside = np.where(mine > 0, abs(l_c), np.maximum(l_c, 0))
                worst[i] = np.where(mine >= C, np.maximum(-l_c, 0), inside).max()
        return worst


def make_problem(loss, K, cost=0.7, zero=False, bias=0.0, group=None):
    """Costs that differ by class, one of them 0 if asked for; a group of one-vs-rest."""
    costs = cost * (1 + 0.5 * np.cos(np.arange(K)))
    if zero:
        costs[K // 2] = 0
    problem = MultiProblem(LOSSES[loss], costs, cost, bias)
    return problem if group is None else problem.groups(3)[group]


def make(loss, K, *, seed=0, n_blocks=3, rows_each=9, cache_rows=10, rounds=2, **options):
    """A simulation on random rows."""
    values = options.pop("values", True)
    chosen = {k: options.pop(k) for k in ("zero", "bias", "group", "cost") if k in options}
    policy = options.pop("policy", "gradient")
    X, y, blocks = make_blocks(seed, n_blocks, rows_each, values, classes=K)
    problem = make_problem(loss, K, **chosen)
    return Multi(X, y, blocks, problem, cache_rows, 50, policy, rounds, values, **options)


# ------------------------------------------------------------------------------ every step


@given(
    seed=st.integers(0, 10**6),
    loss=st.sampled_from(KINDS),
    K=st.sampled_from([2, 3, 5, 17, 33]),
    group=st.sampled_from([None, None, 0, 1, 2]),
    policy=st.sampled_from(sorted(POLICIES)),
    n_blocks=st.integers(1, 5),
    cache_rows=st.integers(0, 25),
    rounds=st.integers(1, 4),
    values=st.booleans(),
    bias=st.sampled_from([0.0, 1.5]),
    zero=st.booleans(),
    screened=st.booleans(),
    row_variables=st.sampled_from([None, None, 1, 2]),
)
@settings(max_examples=250, deadline=None, derandomize=True)
def test_every_step_keeps_link_homes_bounds_and_counts_and_never_lowers_the_dual(
    seed, loss, K, group, policy, n_blocks, cache_rows, rounds, values, bias, zero, screened,
    row_variables,
):  # fmt: skip
    if LOSSES[loss].joint or K < 3:
        group = None
    sim = make(
        loss, K, seed=seed, n_blocks=n_blocks, cache_rows=cache_rows, rounds=rounds, values=values,
        policy=policy, zero=zero, bias=bias, group=group, row_variables=row_variables,
    )  # fmt: skip
    check_steps(sim, np.random.default_rng(seed), screened)


def check_steps(sim, random, screened, passes=3):
    """Take steps and look at everything after each; return how many visits were cut short."""
    before, starved = 0.0, 0
    pool, working = sim.working.alpha, sim.working
    for _ in range(passes):
        for block, result in sim.steps(random.permutation(len(sim.blocks)), screened):
            beta = sim.betas()
            sim.check_feasible(beta)
            np.testing.assert_allclose(sim.solver.W, sim.weights(beta), atol=1e-12)
            assert sim.solver.dual == pytest.approx(sim.dual(beta), abs=1e-11)
            assert sim.solver.dual >= before - 1e-12
            before = sim.solver.dual
            in_use = [np.count_nonzero(beta[rows]) for rows in sim.blocks]
            assert pool.held.tolist() == in_use
            assert max(in_use) <= pool.held_limit
            assert working.n_cached <= working.cache_rows
            assert working.lengths[: working.n_cached].sum() <= working.cache_nnz
            assert pool.used[0] <= pool.cache_limit
            assert result.totals.visits + result.totals.rest >= len(sim.blocks[block])
            assert screened or result.totals.rest == 0
            starved += result.totals.starved
    return starved


@pytest.mark.parametrize("loss", KINDS)
@pytest.mark.parametrize("row_variables", [1, 2])
def test_lists_without_room_cut_visits_short_and_nothing_else(loss, row_variables):
    sim = make(
        loss, 17, n_blocks=3, rows_each=30, cache_rows=20, rounds=3, cost=3.0,
        row_variables=row_variables,
    )  # fmt: skip
    assert check_steps(sim, np.random.default_rng(0), False, passes=6) > 0


# ------------------------------------------------------------------------------ one row


def slow_step(loss, slack, a, beta, C):
    """Best variables of a row: the level of section 7 by bisection."""
    v = slack / a + beta + beta.sum()
    low, high = 0.0, max(0.0, v.max()) + len(v) * C + 1
    for _ in range(200):
        level = 0.5 * (low + high)
        taken = np.maximum(v - level, 0)
        excess = (
            taken.sum() - min(level, C)
            if loss == "crammer_singer"
            else np.minimum(taken, C).sum() - level
        )
        low, high = (level, high) if excess > 0 else (low, level)
    return np.maximum(v - high, 0) if loss == "crammer_singer" else np.clip(v - high, 0, C)


@st.composite
def one_row(draw):
    """A row with feasible variables at weights of any kind, ties and bounds included."""
    loss = draw(st.sampled_from(KINDS))
    K = draw(st.sampled_from([2, 3, 5, 17, 33]))
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    scale = draw(st.sampled_from([1e-3, 0.1, 1.0, 10.0, 1e3]))
    C = draw(st.sampled_from([0.01, 1.0, 100.0]))
    ties = draw(st.booleans())
    X = np.zeros((1, N_FEATURES))
    X[0, :3] = np.float32(scale * random.integers(1, 3, 3))
    problem = MultiProblem(LOSSES[loss], np.full(K, C), C, 0.0)
    y = random.integers(0, K, 1).astype(np.int32)
    sim = Multi(X, y, [np.arange(1)], problem, 0, 0, "gradient", 1)
    z = random.integers(-2, 3, K) if ties else random.normal(size=K) * 2
    sim.solver.W[:3] = z / X[0, :3].sum()
    beta = random.random((1, K)) * (random.random((1, K)) < draw(st.sampled_from([0, 0.3, 1])))
    if ties:
        beta = np.round(beta * 2) / 2
    beta = np.where(sim.costs > 0, C * beta, 0)
    if loss == "crammer_singer" and beta.sum() > 0:
        beta *= C / beta.sum() * draw(st.sampled_from([0.5, 1.0]))
    (outputs,) = np.nonzero(beta[0])
    lists = Lists(np.array([0, len(outputs)]), outputs.astype(np.int32), beta[0, outputs])
    sim.spill[0] = lists
    sim.working.alpha.held[0] = len(outputs)
    return sim, sim.betas(), C


@given(one_row())
@settings(max_examples=800, deadline=None, derandomize=True)
def test_a_visit_finds_the_best_variables_of_its_row(case):
    sim, beta, C = case
    before, W = sim.losses(sim.solver.W), sim.solver.W.copy()
    a = float((sim.X[0] ** 2).sum())
    moving = sim.screen(0).moving[0]
    result = sim.step(0)
    new = sim.betas()
    sim.check_feasible(new)
    # The weights move along, and nothing is to be gained any more: a maximum, whatever found it.
    np.testing.assert_allclose(
        sim.solver.W - W, sim.weights(new - beta), rtol=1e-9, atol=1e-15 * abs(W).max() + 1e-12 * C
    )
    scale = max(1.0, abs(before).max()) * sim.costs.sum()
    assert sim.room_for_growth(sim.solver.W, new)[0] <= 1e-11 * (scale + a * C * C * sim.y.size)
    if sim.problem.loss.joint:
        rest = ~sim.own[0]
        expected = slow_step(sim.name, before[0, rest], a, beta[0, rest], C)
        rounding = 1e-14 * abs(before).max() / a
        np.testing.assert_allclose(new[0, rest], expected, rtol=1e-9, atol=1e-10 * C + rounding)
    # Marked by the screen exactly if the visit changes it, but for changes of rounding.
    if not moving:
        np.testing.assert_array_equal(new, beta)
        assert result.totals.updates == 0
    if sim.violations(W, beta)[0] > 1e-9 * max(1.0, abs(before).max()):
        assert moving
        assert (new != beta).any()
    elif sim.violations(W, beta)[0] == 0:
        np.testing.assert_allclose(new, beta, rtol=1e-12)


def test_bounds_are_reached_exactly():
    """Rows that lose whatever they do have all they can: C in all, or C for each."""
    for loss, K in (("crammer_singer", 2), ("crammer_singer", 7), ("weston_watkins", 7)):
        sim = make(loss, K, cost=1e-4)
        for _ in range(5):
            for block in range(3):
                sim.step(block)
        beta, C = sim.betas(), sim.costs
        if loss == "weston_watkins":
            np.testing.assert_array_equal(beta, C)
        else:
            np.testing.assert_allclose(beta.sum(axis=1), C.max(axis=1), rtol=1e-15)
        certificate, _ = sim.certify()
        assert certificate.n_support == len(beta)


def test_rows_without_features_get_their_closed_form_variables():
    for loss in KINDS:
        problem = make_problem(loss, 4)
        y = np.arange(8, dtype=np.int32) % 4
        sim = Multi(np.zeros((8, N_FEATURES)), y, [np.arange(8)], problem, 0, 0, "gradient", 1)
        sim.step(0)
        expected = (2 if problem.loss.squared else 1) * sim.costs
        if loss == "crammer_singer":
            np.testing.assert_array_equal(np.count_nonzero(sim.betas(), axis=1), 1)
            np.testing.assert_array_equal(sim.betas().sum(axis=1), expected.max(axis=1))
        else:
            np.testing.assert_array_equal(sim.betas(), expected)


# ------------------------------------------------------------------------------ certificate


@pytest.mark.parametrize("loss", KINDS)
@pytest.mark.parametrize("K", [2, 3, 17])
@pytest.mark.parametrize("bias", [0.0, 1.0])
@pytest.mark.parametrize("zero", [False, True])
def test_the_certificate_is_primal_minus_dual_whatever_the_weights(loss, K, bias, zero):
    sim = make(loss, K, seed=5, rows_each=12, bias=bias, zero=zero)
    for block in range(3):
        sim.step(block)
    check_certificate(sim)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
@pytest.mark.parametrize("K", [3, 17, 33])
@pytest.mark.parametrize("group", [0, 1, 2])
def test_groups_of_classes_have_a_certificate_of_their_own(loss, K, group):
    sim = make(loss, K, seed=6, rows_each=20, group=group)
    for block in range(3):
        sim.step(block)
    check_certificate(sim)


def check_certificate(sim):
    """Compare with primal and dual from their definitions, at weights that have drifted."""
    beta = sim.betas()
    sim.solver.W += np.random.default_rng(1).normal(size=sim.solver.W.shape) * 0.01
    certificate, W_alpha = sim.certify()
    W = sim.solver.W
    assert certificate.primal == pytest.approx(sim.primal(W), rel=1e-12)
    assert certificate.dual == pytest.approx(sim.dual(beta), rel=1e-12)
    assert certificate.gap == pytest.approx(sim.primal(W) - sim.dual(beta), rel=1e-10)
    np.testing.assert_allclose(W_alpha, sim.weights(beta), atol=1e-13)
    drift = np.linalg.norm(W - W_alpha) / np.sqrt(2 * sim.primal(W))
    assert certificate.drift == pytest.approx(drift, rel=1e-9)
    below = beta < sim.costs
    if sim.problem.loss.squared:
        below = beta < np.inf
    if sim.problem.loss.joint:
        support, free = beta.any(axis=1), ((beta > 0) & below).any(axis=1)
    else:  # every class has support vectors of its own
        support, free = beta > 0, (beta > 0) & below
    if sim.name == "crammer_singer":  # what is left of C is a variable too
        left = beta.sum(axis=1) < sim.costs.max(axis=1) * (1 - 1e-12)
        free = beta.any(axis=1) & ((beta > 0).sum(axis=1) + left > 1)
    assert certificate.n_support == np.count_nonzero(support) > 0
    assert certificate.n_free == np.count_nonzero(free)


@pytest.mark.parametrize(
    ("loss", "group"),
    [(loss, g) for loss in KINDS for g in (None, 0, 1, 2) if g is None or loss not in JOINT],
)
def test_a_row_is_at_rest_exactly_when_its_violation_is_zero(loss, group):
    K = 5
    X, y, blocks = make_blocks(8, 3, 60, empty_rows=False, classes=K)
    X = 0.2 * X
    X[np.arange(len(X)), y] += np.float32(1.5)  # most rows can be told apart
    X = X.astype(np.float32).astype(float)
    y[::9] = (y[::9] + 1) % K
    problem = make_problem(loss, K, 1.0, zero=True, bias=1.0, group=group)
    sim = Multi(X, y, blocks, problem, 20, 120, "gradient", 3)
    for block in (0, 1, 2) * 10:
        sim.step(block)
    sim.solver.W += 0.1 * np.random.default_rng(2).normal(size=sim.solver.W.shape)
    screen = sim.screen(1)
    rows = blocks[1]
    cached = np.zeros(len(rows), bool)
    sim.working.mark_cached(1, cached)
    violation = sim.violations(sim.solver.W, sim.betas())[rows]
    clear = (violation == 0) | (violation > 1e-12)  # what is between may be rounding
    assert np.count_nonzero(violation[clear & ~cached] == 0) > 1
    assert np.count_nonzero(violation[clear & ~cached] > 0) > 3
    np.testing.assert_array_equal(screen.moving[clear], (cached | (violation > 0))[clear])
    assert screen.moving[cached].all()


# ------------------------------------------------------------------------------ the optimum


@pytest.mark.parametrize("loss", KINDS)
@pytest.mark.parametrize("K", [2, 3, 17])
@pytest.mark.parametrize(("cache_rows", "screened"), [(0, False), (10, True)])
def test_steps_reach_the_optimum(loss, K, cache_rows, screened):
    """Primal and dual from their definitions meet, so both are the optimum."""
    sim = make(
        loss, K, n_blocks=4, rows_each=10, cache_rows=cache_rows, rounds=5, bias=1.0, cost=0.05
    )  # fmt: skip
    converge(sim, 1e-9, screened)
    beta = sim.betas()
    sim.check_feasible(beta)
    primal = sim.primal(sim.solver.W)
    assert -1e-14 * primal <= primal - sim.dual(beta) <= 1e-8 * primal


def converge(sim, tol, screened=False):
    """Train until the certificate is good; every 8th pass visits all rows."""
    for number in range(1, 1001):
        for _ in sim.steps(range(len(sim.blocks)), screened and number % 8):
            pass
        if number % 20 == 0 and sim.certify()[0].relative_gap < tol:
            return
    pytest.fail("no convergence")


@pytest.mark.parametrize("loss", JOINT)
def test_two_classes_are_the_binary_hinge_at_twice_the_cost(loss):
    X, y, blocks = make_blocks(4, 3, 15)
    costs = np.array([0.03, 0.08])
    problem = MultiProblem(LOSSES[loss], costs, 1.0, 0.7)
    joint = Multi(X, y, blocks, problem, 10, 80, "gradient", 3)
    alone = Problem(LOSSES["hinge"], 2 * costs[1], 2 * costs[0], positive=1, bias=0.7)
    binary = Simulation(X, y, blocks, alone, 10, 80, "gradient", 3)
    converge(joint, 1e-11)
    converge(binary, 1e-11)
    W, w = joint.solver.W, binary.solver.W[:, 0]
    np.testing.assert_allclose(W[:, 1] - W[:, 0], w, atol=1e-5)  # sqrt(2 gap)
    np.testing.assert_allclose(W.sum(axis=1), 0, atol=1e-12)
    ours, theirs = joint.certify()[0], binary.certify()[0]
    assert ours.primal == pytest.approx(theirs.primal / 2, rel=1e-9)
    assert ours.dual == pytest.approx(theirs.dual / 2, rel=1e-9)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_one_against_the_rest_is_a_binary_problem_for_each_class(loss):
    K = 4
    X, y, blocks = make_blocks(9, 3, 15, classes=K)
    problem = make_problem(loss, K, 0.04, bias=1.0)
    together = Multi(X, y, blocks, problem, 10, 80, "gradient", 3)
    alone = [
        Simulation(
            X, y, blocks, Problem(LOSSES[loss], problem.costs[k], 0.04, positive=k, bias=1.0),
            10, 80, "gradient", 3,
        )
        for k in range(K)
    ]  # fmt: skip
    for sim in (together, *alone):
        converge(sim, 1e-11)
    W = np.hstack([sim.solver.W for sim in alone])
    np.testing.assert_allclose(together.solver.W, W, atol=1e-5)  # sqrt(2 gap)
    certificates = [sim.certify()[0] for sim in alone]
    ours = together.certify()[0]
    assert ours.primal == pytest.approx(sum(c.primal for c in certificates), rel=1e-9)
    assert ours.dual == pytest.approx(sum(c.dual for c in certificates), rel=1e-9)
