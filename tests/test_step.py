"""A step of the solver against the definitions of every loss: optimum, certificate, screening."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from families import CASES, OF_ALPHA, OF_MARGIN
from hypothesis import given
from hypothesis import strategies as st
from inside import (
    LOSSES,
    POLICIES,
    Arena,
    Damping,
    DenseSet,
    GapWatch,
    ListPool,
    Lists,
    MultiProblem,
    OneClass,
    Problem,
    Rounds,
    WorkingSet,
    patch,
)
from scipy.special import expit
from simulation import N_FEATURES, Simulation, make_blocks

# Kinds that one solver trains: two classes, targets, or all classes together.
KINDS = [
    case for case in CASES
    if not case.suffix and (case.labels in (0, 2) or LOSSES[case.loss].kind is not None)
]  # fmt: skip
SINGLE = [case for case in KINDS if case.labels < 3 and not LOSSES[case.loss].joint]
LISTED = sorted(name for name, loss in LOSSES.items() if loss.kind is not None)
EVERY = pytest.mark.parametrize("case", KINDS, ids=str)
DAMPED_WEIGHTS = "hinge-2"  # weights of rows with damped steps: one case, each kernel compiles long


class Defined(Simulation):
    """The objective and its dual, from the terms that the classes below define."""

    @property
    def loss(self):
        return self.problem.loss

    @property
    def upper(self):
        return np.where(self.costs > 0, np.inf, 0.0) if self.loss.squared else self.costs

    def quadratic(self, alpha):
        """Return ½ D α²; 0 for rows of cost 0."""
        C = self.costs
        half = np.divide(alpha**2, 4 * C, where=C > 0, out=np.zeros_like(C))
        return half * self.loss.squared

    def primal(self, W):
        return 0.5 * (W**2).sum() + self.losses(W).sum()

    def dual(self, alpha):
        return self.terms(alpha).sum() - 0.5 * (self.link(alpha) ** 2).sum()


class Single(Defined):
    """One variable per row: d(α) = t α - ε |α| - α² / 4C, or the entropy; the margin is u w·x."""

    @property
    def costs(self):
        return self.problem.costs(self.y, self.row_weights)

    @property
    def lower(self):
        return -self.upper if self.loss.signed else np.zeros(len(self.y))

    @property
    def signs(self):
        return np.where(self.y == self.problem.positive, 1.0, -1.0)

    @property
    def u(self):
        return np.ones(len(self.y)) if self.loss.signed else self.signs

    @property
    def t(self):
        if not self.loss.signed:
            return np.ones(len(self.y))
        return self.signs if self.problem.classify else self.y

    def variables(self):
        return np.array(self.alphas())

    def link(self, alpha):
        return self.design().T @ (self.u * alpha)[:, None]

    def margins(self, W):
        return self.u * (self.design() @ W[:, 0])

    def losses(self, W):
        m = self.margins(W)
        if not self.loss.signed:
            return self.costs * OF_MARGIN[self.loss.name](m)
        h = np.maximum(0, abs(self.t - m) - self.problem.epsilon)
        return self.costs * (h**2 if self.loss.squared else h)

    def terms(self, alpha):
        if self.loss.name == "log_loss":
            C = self.costs
            share = np.divide(alpha, C, where=C > 0, out=np.zeros(len(C)))
            return C * OF_ALPHA["log_loss"](share)
        return self.t * alpha - self.problem.epsilon * abs(alpha) - self.quadratic(alpha)

    def slopes(self, alpha, m):
        """Slope of the dual to the left and to the right of each variable."""
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.loss.name == "log_loss":
                slope = np.log(self.costs - alpha) - np.log(alpha) - m
                return slope, slope
            bend = alpha * np.where(self.costs > 0, 0.5 / self.costs, 0) * self.loss.squared
        slope, epsilon = self.t - bend - m, self.problem.epsilon
        left = slope + np.where(alpha > 0, -epsilon, epsilon)
        return left, slope + np.where(alpha < 0, epsilon, -epsilon)

    def violations(self, alpha, m):
        """How fast the dual could rise by each variable inside its bounds."""
        left, right = self.slopes(alpha, m)
        up = np.where(alpha < self.upper, right, 0)
        return np.maximum(np.maximum(up, np.where(alpha > self.lower, -left, 0)), 0)

    def ranks(self, alpha, new, m):
        """Return the score of a visit: the gradient before it, at the variable after it."""
        if self.loss.name == "log_loss":
            share = np.divide(new, self.costs, where=self.costs > 0, out=np.zeros(len(new)))
            return share * (1 - share)
        G = (
            m
            - self.t
            + 2 * np.divide(self.quadratic(alpha), alpha, where=alpha != 0, out=np.zeros(len(m)))
        )
        up, down = G + self.problem.epsilon, G - self.problem.epsilon
        down = down if self.loss.signed else np.full(len(m), -np.inf)
        inside = np.where(new > 0, abs(up), abs(down))
        inside = np.where(new >= self.upper, up, np.where(new <= -self.upper, -down, inside))
        return np.where(new == 0, -np.minimum(up, -down), inside)

    def check_feasible(self, alpha):
        assert (alpha >= self.lower).all()
        assert (alpha <= self.upper).all()

    def marks(self, alpha):
        """Support vectors, and those inside their bounds."""
        return alpha != 0, (alpha != 0) & (abs(alpha) < self.upper)


class Listed(Defined):
    """Many classes; arrays have one line per row and one column per class."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        pool, working = self.working.alpha, self.working
        each = max(len(block) for block in self.blocks)
        room = self.block_rows, working.cache_rows, pool.held_limit // each
        working.alpha = ListPool(*room, [len(b) for b in self.blocks], self.problem.n_outputs)

    @property
    def own(self):
        return self.y[:, None] == np.arange(self.problem.n_outputs)

    @property
    def costs(self):
        """Cost of each variable; 0 for those that do not exist."""
        weights = np.ones(len(self.y)) if self.row_weights is None else self.row_weights
        mine = (self.problem.costs[self.y] * weights)[:, None]
        if self.loss.joint:
            return np.where(self.own, 0.0, mine)
        return np.where(self.own, mine, self.problem.cost_rest * weights[:, None])

    def variables(self):
        """All variables; fails if a list is not by output or holds a 0."""
        beta = np.zeros(self.own.shape)
        for i, row in enumerate(self.alphas()):
            outputs = [k for k, _ in row]
            assert outputs == sorted(set(outputs))
            assert all(value != 0 for _, value in row)
            beta[i, outputs] = [value for _, value in row]
        return beta

    def link(self, beta):
        rises = beta.sum(axis=1, keepdims=True) if self.loss.joint else beta
        return self.design().T @ np.where(self.own, rises, -beta)

    def slack(self, W):
        """1 - s z of one-vs-rest; 1 - z_y + z_c of the others, 0 for the row's own class."""
        z = self.design() @ W
        if not self.loss.joint:
            return 1 - np.where(self.own, z, -z)
        return np.where(self.own, 0, 1 - z[self.own][:, None] + z)

    def losses(self, W):
        h = np.maximum(self.slack(W), 0)
        if self.loss.name == "crammer_singer":
            return self.costs.max(axis=1) * h.max(axis=1)
        return self.costs * (h**2 if self.loss.squared else h)

    def terms(self, beta):
        return beta - self.quadratic(beta)

    def violations(self, beta, W):
        """How far the gradient of each row is from rest."""
        slack, costs = self.slack(W), self.costs
        worst = np.zeros(len(beta))
        for i in np.flatnonzero(costs.any(axis=1)):
            exists = costs[i] > 0
            mine, l_c, C = beta[i, exists], slack[i, exists], costs[i, exists]
            if self.loss.name == "crammer_singer":
                tight = [*l_c[mine > 0], *[0] * int(mine.sum() < C[0] * (1 - 1e-12))]
                worst[i] = max(0, l_c.max()) - min(tight)
            else:
                G = l_c - 0.5 * mine / C * self.loss.squared
                G = np.where(mine > 0, abs(G), np.maximum(G, 0))
                at_upper = (mine >= C) & (not self.loss.squared)
                worst[i] = np.where(at_upper, np.maximum(-l_c, 0), G).max()
        return worst

    def check_feasible(self, beta):
        assert (beta >= 0).all()
        assert (beta[self.costs == 0] == 0).all()
        if self.loss.name == "crammer_singer":
            assert (beta.sum(axis=1) <= self.costs.max(axis=1) * (1 + 1e-14)).all()
        else:
            assert (beta <= self.upper).all()

    def marks(self, beta):
        """Support vectors, and those inside their bounds: rows, or variables of one-vs-rest."""
        support, free = beta > 0, (beta > 0) & (beta < self.upper)
        if not self.loss.joint:
            return support, free
        if self.loss.name == "crammer_singer":  # what is left of C is a variable too
            left = beta.sum(axis=1) < self.costs.max(axis=1) * (1 - 1e-12)
            return support.any(axis=1), support.any(axis=1) & (support.sum(axis=1) + left > 1)
        return support.any(axis=1), free.any(axis=1)


def make(
    case, seed=0, n_blocks=3, rows_each=9, cache_rows=10, rounds=2, *, bias=0.0, zero=False,
    weighted=False, values=True, policy="gradient", classes=5, cost=0.7, solver_seed=0,
    ones=False, cache_nnz=50, **options,
):  # fmt: skip
    """A simulation on random rows; with `zero` a class has cost 0, weights are 0 to 1.5, or 1."""
    loss, random = LOSSES[case.loss], np.random.default_rng(seed)
    listed = case.labels > 2 or loss.joint
    n_classes = max(2, classes if case.labels > 2 else case.labels)
    X, y, blocks = make_blocks(seed, n_blocks, rows_each, values, classes=n_classes)
    if listed:
        costs = cost * (1 + 0.5 * np.cos(np.arange(n_classes)))
        costs[n_classes // 2] *= not zero
        problem = MultiProblem(loss, costs, cost, bias)
    elif case.labels == 2:
        problem = Problem(loss, cost, 0.0 if zero else 0.6 * cost, 1, bias)
    else:
        epsilon = 0.0 if case.loss == "squared_error" else 0.3
        problem = Problem(loss, cost, cost, -1, bias, epsilon, classify=False)
        y = np.round(X @ random.normal(size=N_FEATURES) + random.normal(size=len(X)), 3)
    weights = random.integers(0, 4, len(y)) / 2 if weighted else None
    if ones:
        weights = np.ones(len(y))
    kind = Listed if listed else Single
    return kind(
        X, y, blocks, problem, cache_rows, cache_nnz, policy, rounds, values, solver_seed,
        weights=weights,
        **options,
    )  # fmt: skip


# ---------------------------------------------------------------------------------- many steps


@EVERY
@given(
    seed=st.integers(0, 10**6),
    classes=st.sampled_from([3, 5, 17, 33]),
    row_variables=st.sampled_from([None, None, 1, 2]),
    screened=st.booleans(),
    values=st.booleans(),
    options=st.fixed_dictionaries({
        "policy": st.sampled_from(sorted(POLICIES)), "n_blocks": st.integers(1, 5),
        "cache_rows": st.integers(0, 25), "rounds": st.integers(1, 4),
        "bias": st.sampled_from([0.0, 1.5]), "zero": st.booleans(), "weighted": st.booleans(),
        "together": st.integers(1, 3),
    }),
)  # fmt: skip
def test_steps_keep_invariants_and_raise_dual(
    case, seed, classes, row_variables, screened, values, options
):
    values = values or case not in SINGLE
    sim = make(case, seed, classes=classes, values=values, row_variables=row_variables, **options)
    check_steps(sim, seed, screened and sim.loss.rests)


def check_steps(sim, seed, screened, passes=3, rises=True):
    """Take steps and check everything after each; return how many visits were cut short."""
    before, starved, working = 0.0, 0, sim.working
    random = np.random.default_rng(seed)
    for _ in range(passes):
        order = random.permutation(len(sim.blocks)).tolist()
        drawn = [order[k : k + sim.together] for k in range(0, len(order), sim.together)]
        for block, result in sim.steps(drawn, screened):
            alpha = sim.variables()  # fails if a row has two homes
            sim.check_feasible(alpha)
            np.testing.assert_allclose(sim.solver.W, sim.link(alpha), atol=1e-12)
            assert sim.solver.dual == pytest.approx(sim.dual(alpha), abs=1e-10)
            assert sim.solver.dual >= before - 1e-12 or not rises
            before = sim.solver.dual
            assert working.n_cached <= working.cache_rows
            assert working.lengths[: working.n_cached].sum() <= working.cache_nnz
            assert result.totals.visits + result.totals.rest >= len(sim.rows_of(block))
            assert screened or result.totals.rest == 0
            starved += result.totals.starved
            free = sim.marks(alpha)[1].reshape(len(alpha), -1).any(axis=1)
            cached = zip(working.home, working.row, range(working.n_cached), strict=False)
            rows = [sim.blocks[home][row] for home, row, _ in cached]
            assert sim.solver.count_free() == np.count_nonzero(free[rows])
            if sim.problem.listed:
                pool = working.alpha
                in_use = [np.count_nonzero(alpha[rows]) for rows in sim.blocks]
                assert pool.held.tolist() == in_use
                assert max(in_use) <= pool.held_limit
                assert pool.used[0] <= pool.cache_limit
    return starved


def test_free_rows_are_counted_a_few_at_a_time():
    sizes = []

    def is_free(rows):
        sizes.append(len(rows))
        return rows % 3 == 0

    solver = type(make(SINGLE[0], 0).solver)
    some = SimpleNamespace(working=SimpleNamespace(n_cached=300_001), _is_free=is_free)
    assert solver.count_free(some) == 100_001
    assert max(sizes) <= 1 << 16  # bytes of each are not in the memory plan


@pytest.mark.parametrize("loss", LISTED)
def test_full_lists_cut_visits_short(loss):
    case = next(c for c in KINDS if c.loss == loss and c.labels == 3)
    sim = make(case, 0, 3, 30, 20, 3, classes=17, cost=3.0, row_variables=1)
    assert check_steps(sim, 0, False, passes=6) > 0


@EVERY
@pytest.mark.parametrize(("bias", "odd"), [(0.0, False), (1.5, True)])
def test_certificate_is_primal_minus_dual(case, bias, odd):
    sim = make(case, 5, rows_each=12, cache_rows=8, bias=bias, zero=odd, weighted=odd)
    for block in range(3):
        sim.step(block)
    alpha = sim.variables()
    sim.solver.W += np.random.default_rng(1).normal(size=sim.solver.W.shape) * 0.01  # drift
    certificate, W_alpha = sim.certify()
    W = sim.solver.W
    assert certificate.primal == pytest.approx(sim.primal(W), rel=1e-12)
    assert certificate.dual == pytest.approx(sim.dual(alpha), rel=1e-12)
    assert certificate.gap == pytest.approx(sim.primal(W) - sim.dual(alpha), rel=1e-10)
    assert certificate.relative_gap == pytest.approx(certificate.gap / sim.primal(W), rel=1e-9)
    np.testing.assert_allclose(W_alpha, sim.link(alpha), atol=1e-13)
    drift = np.linalg.norm(W - W_alpha) / np.sqrt(2 * sim.primal(W))
    assert certificate.drift == pytest.approx(drift, rel=1e-9)
    support, free = sim.marks(alpha)
    loss = LOSSES[case.loss]
    assert certificate.n_support == (np.count_nonzero(support) if loss.rests else None) != 0
    assert certificate.n_free == (np.count_nonzero(free) if loss.bounded else None)


@pytest.mark.parametrize("case", [c for c in KINDS if LOSSES[c.loss].rests], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_screen_marks_exactly_the_rows_that_would_move(case, weighted):
    sim = make(case, 8, 3, 60, 20, 3, bias=1.0, zero=case.labels > 2, weighted=weighted)
    if case in SINGLE:
        y = sim.X @ np.random.default_rng(8).normal(size=N_FEATURES)
        sim.y = 0.3 * y if case.labels == 0 else (y > 0).astype(np.int32)
    else:
        sim.X[np.arange(len(sim.X)), sim.y] += 3.0  # most rows can be told apart
        sim.X = (0.5 * sim.X).astype(np.float32).astype(float)
        sim.y[::9] = (sim.y[::9] + 1) % sim.problem.n_outputs
    for block in (0, 1, 2) * 10:
        sim.step(block)
    sim.solver.W += 0.1 * np.random.default_rng(2).normal(size=sim.solver.W.shape)
    screen, rows = sim.screen(1), sim.blocks[1]
    cached = np.zeros(len(rows), bool)
    sim.working.mark_cached(sim.of(1), cached)
    alpha, W = sim.variables(), sim.solver.W
    violation = sim.violations(alpha, sim.margins(W) if case in SINGLE else W)[rows]
    clear = (violation == 0) | (violation > 1e-12)  # what is between may be rounding
    np.testing.assert_array_equal(screen.moving[clear], (cached | (violation > 0))[clear])
    assert screen.moving[cached].all()
    assert np.count_nonzero(violation[~cached] == 0) > 1
    assert np.count_nonzero(violation[~cached] > 0) > 1


def outcome(sim):
    """What some steps end with, to the byte."""
    for _ in sim.steps([0, 1, 2, 1, 0], sim.loss.rests):
        pass
    certificate, W_alpha = sim.certify()
    return sim.solver.W.tobytes(), W_alpha.tobytes(), certificate


@EVERY
def test_prefetching_changes_no_byte(case, monkeypatch):
    found = []
    for ahead in (0, 2):
        patch(monkeypatch, "rows_ahead", lambda W, ahead=ahead: ahead)
        found.append(outcome(make(case, 3, bias=1.0, weighted=True)))
    assert found[0] == found[1]


@EVERY
def test_weights_of_one_change_no_byte(case):
    found = [outcome(make(case, 3, bias=1.0, ones=ones)) for ones in (False, True)]
    assert found[0] == found[1]


@EVERY
def test_single_row_has_its_weight(case):
    sim = make(case, 3, 1, 1, 0, bias=1.5, weighted=True)
    if case.labels == 0:
        sim.y = np.array([3.0])  # outside of the tube
    for weight in (0.0, 1.5):
        sim.row_weights[:] = weight
        sim.step(0)
        assert sim.working.weights[0] == weight
        assert sim.solver.W.any() == (weight > 0)


@EVERY
def test_rounds_stop_at_gap_and_advance_random_state(case):
    def rounds(n, tol=0.0, at=0):
        sim = make(case, 2, 1, 30, 30, 1, cache_nnz=300)
        sim.step(0)
        W, work, state = sim.solver.W, sim.working, np.array([5], np.uint64)
        awake, order = np.empty(work.n, np.int32), np.empty(work.n, np.int32)
        work.rest[:] = 0
        how = Rounds(np.array([at], np.int32), n, 1, tol, state, awake, order)
        return sim.problem.solve(work, W, how), int(state[0])

    (once, first), (often, last) = rounds(1), rounds(20)
    assert first != last
    assert once[1] == often[1] > 0  # the gap of first visits
    assert (once[4], often[4]) == (1, 20)
    assert rounds(5, tol=np.inf)[0][4] == 1
    assert rounds(5, at=-1)[0][1] == 0
    # Later rounds skip rows at rest; with the squared hinge there are none here.
    if case.loss != "squared_hinge":
        assert (often[2] < 20 * once[2]) == LOSSES[case.loss].rests


def test_rows_that_nearly_move_are_visited_again():
    # The first one is at rest by 0.1, the others move by more than that in the first round. It is
    # left alone in the second round.
    X = np.zeros((3, N_FEATURES))
    X[0, 0] = 1.0
    X[1:, 1:3] = [[1.0, 0.5], [0.5, 1.0]]
    problem = Problem(LOSSES["hinge"], 0.7, 0.4, positive=1)
    sim = Single(X, np.ones(3, np.int32), [np.arange(3)], problem, 0, 0, "gradient", 3)
    sim.solver.W[0] = 1.1
    totals = sim.step(0).totals
    assert (totals.visits, totals.rounds) == (8, 3)


def test_blocks_are_screened_while_rows_rest():
    solver = make(CASES[0]).solver
    solver.rounds, all_move = 1, np.ones(40, np.bool_)
    assert not solver.pays_screening  # before the first step, nothing can rest
    solver.dual_sum = 1.0
    assert solver.pays_screening
    solver.note_screen(all_move)
    skipped = 0
    while not solver.pays_screening:
        solver.note_screen(None)
        skipped += 1
    assert 2 <= skipped < 20
    fresh = make(CASES[0]).solver
    solver.note_screen(all_move)
    fresh.restore(solver.state())
    assert not fresh.pays_screening
    fresh.note_screen(np.arange(40) % 2 == 0)
    assert fresh.pays_screening


def test_seed_decides_order_of_visits():
    def weights(seed):
        sim = make(KINDS[0], 6, 2, 30, rounds=1, solver_seed=seed)
        for block in range(2):
            sim.step(block)
        return sim.solver.W.tobytes()

    assert weights(1) == weights(1)
    assert len({weights(seed) for seed in range(4)}) == 4


# ---------------------------------------------------------------------------------- one visit


def _by_row(alpha):
    """Return the variables of each row."""
    if not isinstance(alpha, Lists):
        return alpha.values.tolist()
    ends = alpha.offsets[1:-1]
    parts = np.split(alpha.outputs, ends), np.split(alpha.values, ends)
    return [(a.tolist(), b.tolist()) for a, b in zip(*parts, strict=True)]


class Damped:
    """Makes a round as one of several ranks, with the same damping of all weights."""

    dual_sum = 0.0

    def __init__(self, solver, sigma):
        self.solver = solver
        self.damping = Damping(
            np.full(64, sigma),
            sigma,
            np.zeros(len(solver.W), np.uint8),
            np.array([np.inf, 0.0, 1.0]),
        )

    def solve(self, work, how):
        rows = np.arange(work.n, dtype=np.int32)
        how = dataclasses.replace(how, damping=self.damping, awake=rows)
        before = _by_row(work.alpha.copy(work.n))
        stats = self.solver.problem.solve(work, self.solver.W, how)
        after = _by_row(work.alpha.copy(work.n))
        changed = [a != b for a, b in zip(before, after, strict=True)]
        np.testing.assert_array_equal(np.sort(how.awake[: int(stats[3])]), np.flatnonzero(changed))
        self.dual_sum += float(stats[0])
        return stats


@pytest.mark.parametrize("case", SINGLE, ids=str)
@pytest.mark.parametrize(("bias", "weighted"), [(0.0, True), (1.5, False)])
def test_visit_solves_for_one_variable_exactly(case, bias, weighted):
    damps = not weighted or str(case) == DAMPED_WEIGHTS
    sim = make(case, 4, 40, 1, 0, 1, bias=bias, zero=True, weighted=weighted)
    random = np.random.default_rng(4)
    for block, (i,) in enumerate(sim.blocks):
        alpha = np.zeros(40)
        limit = min(sim.upper[i], 2.5)
        low = -limit if sim.loss.signed else 0.0
        ends = (0.0,) if sim.loss.squared else (0.0, low, limit)
        alpha[i] = random.choice([*ends, random.uniform(low, limit)])
        sim.spill[block].values[0] = alpha[i]
        sigma = random.choice([1.0, 3.0]) if damps else 1.0
        sim.solver.together = Damped(sim.solver, sigma) if damps else None
        sim.solver.W[:] = before = random.normal(size=sim.solver.W.shape)
        totals, m = sim.step(block).totals, sim.margins(before)
        new = alpha.copy()
        new[i] = sim.spill[block].values[0]
        if sim.costs[i] == 0:
            assert new[i] == 0
            assert sim.working.score[0] == -np.inf
            continue
        sim.check_feasible(new)
        x = sim.design()[i]
        behind = m + sigma * (x @ x) * (new[i] - alpha[i])
        assert sim.violations(new, behind)[i] <= 1e-9
        link = before[:, 0] + sigma * (new[i] - alpha[i]) * sim.u[i] * x
        np.testing.assert_allclose(sim.solver.W[:, 0], link, atol=1e-13)
        gain = sim.terms(new)[i] - sim.terms(alpha)[i]
        assert totals.gain == pytest.approx(gain, abs=1e-13)
        gap = sim.losses(before)[i] - sim.terms(alpha)[i] + alpha[i] * m[i]
        assert totals.gap == pytest.approx(gap, rel=1e-11, abs=1e-12)
        assert (totals.visits, totals.updates, totals.rounds) == (1, new[i] != alpha[i], 1)
        rank = sim.ranks(alpha, new, m)[i]
        assert sim.working.score[0] == pytest.approx(rank, rel=1e-5, abs=1e-6)


@st.composite
def one_row(draw, loss):
    """A row with feasible variables at weights of any kind, ties and bounds included."""
    K = draw(st.sampled_from([2, 3, 5, 17, 33]))
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    scale = draw(st.sampled_from([0.0, 1e-3, 0.1, 1.0, 10.0, 1e3]))
    C = draw(st.sampled_from([0.01, 1.0, 100.0]))
    ties = draw(st.booleans())
    X = np.zeros((1, N_FEATURES))
    X[0, :3] = np.float32(scale * random.integers(1, 3, 3))
    problem = MultiProblem(LOSSES[loss], np.full(K, C), C, 0.0)
    y = random.integers(0, K, 1).astype(np.int32)
    sim = Listed(X, y, [np.arange(1)], problem, 0, 0, "gradient", 1, weights=np.ones(1))
    z = random.integers(-2, 3, K) if ties else random.normal(size=K) * 2
    sim.solver.W[:3] = z / (X[0, :3].sum() or 1.0)
    beta = random.random((1, K)) * (random.random((1, K)) < draw(st.sampled_from([0, 0.3, 1])))
    if ties:
        beta = np.round(beta * 2) / 2
    beta = np.where(sim.costs > 0, C * beta, 0)
    if loss == "crammer_singer" and beta.sum() > 0:
        beta *= C / beta.sum() * draw(st.sampled_from([0.5, 1.0]))
    (outputs,) = np.nonzero(beta[0])
    sim.spill[0] = Lists(np.array([0, len(outputs)]), outputs.astype(np.int32), beta[0, outputs])
    sim.working.alpha.held[0] = len(outputs)
    return sim, sim.variables(), C


@pytest.mark.parametrize("loss", LISTED)
@given(data=st.data())
def test_visit_finds_best_list_of_a_row(loss, data):
    sim, beta, C = data.draw(one_row(loss))
    before, W = sim.slack(sim.solver.W), sim.solver.W.copy()
    a, largest = float((sim.X[0] ** 2).sum()), abs(before).max()
    moving = sim.screen(0).moving[0]
    totals = sim.step(0).totals
    new = sim.variables()
    sim.check_feasible(new)
    np.testing.assert_allclose(
        sim.solver.W - W, sim.link(new - beta), rtol=1e-9, atol=1e-15 * abs(W).max() + 1e-12 * C
    )
    gain = sim.terms(new).sum() - sim.terms(beta).sum()
    assert totals.gain == pytest.approx(gain, abs=1e-11 * C * len(beta[0]))
    gap = sim.losses(W).sum() - sim.terms(beta).sum() + ((1 - before) * beta).sum()
    assert totals.gap == pytest.approx(gap, rel=1e-9, abs=1e-9 * C * largest)
    # No direction increases the dual: a maximum.
    assert sim.violations(new, sim.solver.W)[0] <= 1e-9 * (1.0 + largest + a * C)
    # Marked by the screen exactly if the visit changes it, up to rounding.
    violation = sim.violations(beta, W)[0]
    if not moving:
        np.testing.assert_array_equal(new, beta)
        assert totals.updates == 0
    if violation > 1e-9 * max(1.0, largest):
        assert moving
        assert (new != beta).any()
    elif violation == 0:
        np.testing.assert_allclose(new, beta, rtol=1e-12)


@pytest.mark.parametrize("C", [1e-10, 1.0, 1e10])
@pytest.mark.parametrize("x", [1e-12, 1.0, 100.0])
def test_logistic_visit_is_exact_for_extreme_numbers(C, x):
    x = float(np.float32(x))
    problem = Problem(LOSSES["log_loss"], C, C, positive=1)
    X, y = np.eye(1, N_FEATURES) * x, np.ones(1, np.int32)
    for margin in (0.0, 1e-9, -1.0, 40.0, -800.0, 1e6, -1e6):
        for share in (0.0, 1e-15, 0.5, 1 - 1e-12, 1.0):
            sim = Single(X, y, [np.arange(1)], problem, 0, 0, "gradient", 1)
            sim.spill[0].values[0] = old = share * C
            sim.solver.W[0] = margin / x
            z, A = sim.solver.W[0, 0] * x, x * x
            totals = sim.step(0).totals
            new = sim.spill[0].values[0]
            assert np.isfinite([new, *sim.solver.W[:, 0], totals.gain, totals.gap]).all()
            assert 0 <= new <= C
            low, high = -abs(z) - A * C - 1, abs(z) + A * C + 1
            for _ in range(200):  # for t, with α = C / (1 + exp(-t))
                t = 0.5 * (low + high)
                falls = t + z + A * (C * expit(t) - old) < 0
                low, high = (t, high) if falls else (low, t)
            # A visit is not exact if it would move weights by no more than rounding.
            rounding = 1e-13 * (abs(z) + A * C + 1)
            assert new == pytest.approx(C * expit(low), rel=1e-8, abs=C * min(1, rounding))
            assert 0 <= sim.certify()[0].gap < np.inf


# ---------------------------------------------------------------------- feasible starts, the cache


@EVERY
def test_infeasible_alphas_are_clipped_to_bounds(case):
    sim = make(case, 4, 1, 30, 0, 1, zero=True, weighted=True)
    random, alpha, rows = np.random.default_rng(0), sim.spill[0], sim.load(0)
    places = sim.blocks[0]
    before = 2 * random.normal(size=sim.costs.shape)
    if case in SINGLE:
        alpha.values[:] = before[places]
        sim.problem.make_feasible(rows, alpha)
        np.testing.assert_array_equal(sim.variables(), np.clip(before, sim.lower, sim.upper))
        return
    K = sim.problem.n_outputs
    before[sim.costs == 0] = abs(before[sim.costs == 0]) * (not sim.loss.joint)
    alpha.set(np.arange(31) * K, np.tile(np.arange(K, dtype=np.int32), 30), before[places].ravel())
    sim.problem.make_feasible(rows, alpha)
    beta, positive = sim.variables(), np.maximum(before, 0)
    sim.check_feasible(beta)
    if case.loss == "crammer_singer":
        C, total = sim.costs.max(axis=1), positive.sum(axis=1)
        positive *= np.minimum(1, C / np.where(total > 0, total, 1))[:, None]
    np.testing.assert_allclose(beta, np.minimum(positive, sim.upper), rtol=1e-14)


def test_resting_values_are_the_bounds():
    found = {str(case): make(case, zero=True).problem.resting_values for case in KINDS}
    assert found["hinge-2"] == found["epsilon_insensitive-0"][:1] == [0.7]
    assert found["epsilon_insensitive-0"] == [0.7, -0.7]
    assert found["crammer_singer-2"] == [0.7, 0.7 * 1.5]
    assert found["log_loss-2"] == found["squared_hinge-3"] == []
    assert one_class(0, 1, 9, 0.5)[0].problem.resting_values == [1.0]


def test_mixed_policy_ranks_random_rows_first():
    score = np.where(np.arange(4000) % 4 == 0, -np.inf, 1).astype(np.float32)
    ranks = POLICIES["mixed"](score, np.random.default_rng(0), 0.5)
    assert np.isneginf(ranks[::4]).all()  # rows of cost 0
    assert np.isposinf(ranks).sum() == pytest.approx(750, rel=0.1)


def test_certificate_is_due_when_the_estimate_allows():
    watch = GapWatch(tol=1e-3)
    assert [watch.is_due(gap, 2.0) for gap in (2.0, 0.5, 0.01)] == [False, False, True]
    watch.learn(certified=2e-3)  # of an estimate of 5e-3
    assert not watch.is_due(2.6e-3, 2.0)  # 5.2e-4 by that ratio: half the tolerance is 5e-4
    assert watch.is_due(2.6e-3, 2.0)
    assert GapWatch(tol=1e-3).is_due(0.0, 0.0)


def test_infeasible_one_class_alphas_are_clipped():
    sim, upper = one_class(4, 1, 30, 0.5)
    rows, alpha = sim.load(0), sim.spill[0]
    alpha.values[:] = before = 2 * np.random.default_rng(0).normal(size=30)
    sim.problem.make_feasible(rows, alpha)
    np.testing.assert_array_equal(alpha.values, np.clip(before, 0, upper[sim.blocks[0]]))


@given(seed=st.integers(0, 10**6), few=st.booleans(), many=st.booleans())
def test_selection_takes_best_rows_that_fit(seed, few, many):
    """Free rows come first among equals, then small numbers."""
    random = np.random.default_rng(seed)
    n = 8184 + seed % 16 if many else int(random.integers(1, 60))
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


# ---------------------------------------------------------------------------------- one class


def one_class(seed, n_blocks, rows_each, nu, cache_rows=8, policy="gradient", rounds=2):
    """A simulation with weights 0 to 1.5, and the weights."""
    X, _, blocks = make_blocks(seed, n_blocks, rows_each)
    X[:, 0] = 2
    weights = np.random.default_rng(seed).integers(0, 4, len(X)) / 2
    weights[0] = 1.0
    problem = OneClass(LOSSES["one_class"], nu, float(weights.sum()))
    sim = Simulation(
        X, np.zeros(len(X)), blocks, problem, cache_rows, 60, policy, rounds, weights=weights
    )
    return sim, weights


@given(
    seed=st.integers(0, 10**6),
    policy=st.sampled_from(sorted(POLICIES)),
    n_blocks=st.integers(1, 5),
    cache_rows=st.integers(0, 25),
    nu=st.sampled_from([0.05, 0.5, 1.0]),
)
def test_one_class_steps_keep_invariants(seed, policy, n_blocks, cache_rows, nu):
    sim, upper = one_class(seed, n_blocks, 9, nu, cache_rows, policy)
    for block in [*range(n_blocks)] * 3:
        sim.step(block)
        alpha = np.array(sim.alphas())
        assert (alpha >= 0).all()
        assert (alpha <= upper).all()
        np.testing.assert_allclose(sim.solver.W[:, 0], sim.X.T @ alpha, atol=1e-10)
        assert sim.problem.state()["level"][1] == pytest.approx(alpha.sum(), abs=1e-10)


def test_one_class_visit_moves_alpha_weights_and_level():
    sim, upper = one_class(1, 40, 1, 0.4, 0, rounds=1)
    random, problem = np.random.default_rng(8), sim.problem
    problem.agree_on_scale([scale := 3.0], [1.0])
    for block, (i,) in enumerate(sim.blocks):
        sim.spill[block].values[0] = old = random.choice([0.0, 0.3, 1.0]) * upper[i]
        sigma = (1.0, 2.0)[block % 2]
        sim.solver.together = None if sigma == 1 else Damped(sim.solver, sigma)
        sim.solver.W[:] = before = random.normal(size=(N_FEATURES, 1))
        problem.state()["level"][0] = random.normal() * 20
        (rho, total, visited), x = problem.numbers(), sim.X[i]
        totals = sim.step(block).totals
        new, G = sim.spill[block].values[0], x @ before[:, 0] - rho
        moved, visited = rho - sigma * scale * (new - old), visited + upper[i]
        excess = total + new - old - problem.nu * problem.total
        if sigma == 1:  # the offset is moved against what Σ α is off by
            moved, visited = moved - scale * visited / problem.total * excess, 0.0
        assert problem.numbers() == pytest.approx([moved, total + new - old, visited], rel=1e-9)
        gap = upper[i] * max(-G, 0) + old * G + abs(moved * excess) * upper[i] / problem.total
        assert totals.gap == pytest.approx(gap, rel=1e-9)
        expected = min(max(old - G / (sigma * (x @ x + scale)), 0), upper[i])
        assert new == pytest.approx(expected, rel=1e-13, abs=1e-15)
        np.testing.assert_allclose(sim.solver.W[:, 0], before[:, 0] + sigma * (new - old) * x)
        assert (totals.visits, totals.updates) == (1, new != old)
        if upper[i] > 0:
            rank = -G if new == 0 else G if new == upper[i] else abs(G)
            assert sim.working.score[0] == pytest.approx(rank, rel=1e-5)
        else:
            assert sim.working.score[0] == -np.inf


@pytest.mark.parametrize("nu", [0.05, 0.5, 1.0])
def test_one_class_certificate_uses_nearest_feasible_alphas(nu):
    sim, v = one_class(2, 3, 20, nu)
    X, N = sim.X, nu * v.sum()
    for block in (0, 1, 2) * 3:
        sim.step(block)
        alpha, w, rho = np.array(sim.alphas()), sim.solver.W[:, 0], sim.problem.rho
        S = alpha.sum()
        near = alpha * (N / S) if S >= N else alpha + (v - alpha) * (N - S) / (v.sum() - S)
        assert near.sum() == pytest.approx(N)
        certificate, W_alpha = sim.certify()
        assert sim.problem.rho <= rho  # lowered to the optimum at W, if it was above
        at = [rho, *(one for one in X @ w if one <= rho)]
        primal = min(0.5 * w @ w - N * r + v @ np.maximum(0, r - X @ w) for r in at)
        dual = -0.5 * np.square(X.T @ near).sum()
        assert certificate.primal == pytest.approx(primal, rel=1e-9, abs=1e-9)
        assert certificate.dual == pytest.approx(dual, rel=1e-9, abs=1e-9)
        assert certificate.gap == pytest.approx(primal - dual, rel=1e-9, abs=1e-9)
        np.testing.assert_allclose(W_alpha[:, 0], X.T @ alpha, atol=1e-10)
    free = (alpha > 0) & (alpha < v)
    assert certificate.n_support == np.count_nonzero(alpha)
    assert certificate.n_free == np.count_nonzero(free)
