"""One pass of selective block minimization, with every alpha that it forgets in plain sight."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import lists_of, plain
from hypothesis import given, settings
from hypothesis import strategies as st

from sbm.alphas import Alphas, Dense
from sbm.jobs.training.problem import make_problems
from sbm.losses import LOSSES
from sbm.rows import SPARE, Arena, Rows
from sbm.settings import Settings
from sbm.solver.gap import Certifier
from sbm.solver.onepass import GrowingWeights, OnePass, Size, caches_nnz
from sbm.solver.online import ONLINE, OnlinePass
from sbm.solver.problem import MultiProblem, OneClass

N_FEATURES = 14
BLOCK = 12


def make_rows(seed: int, n: int, classes: int = 2, late: bool = False) -> tuple[Any, Any]:
    """Different rows whose later ones have more features, and perhaps more classes."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, N_FEATURES)).astype(np.float32).astype(float)
    X[random.random(X.shape) < 0.4] = 0
    known = 5 + (N_FEATURES - 5) * np.arange(n) // n
    X[np.arange(N_FEATURES) > known[:, None]] = 0
    X[:, 0] = (1 + np.arange(n) / n).astype(
        np.float32
    )  # so that no two rows are the same, and none is empty
    y = random.integers(0, classes, n)
    if late:
        y = np.minimum(y, 1 + np.arange(n) * classes // n)
    return X, y


def problems_of(loss: str, labels: list[float] | None, **chosen: Any) -> list[Any]:
    """The problems of some labels, as a stream makes them."""
    kind = LOSSES[loss]
    if kind.joint and labels is not None and len(labels) == 1:
        return [MultiProblem(kind, np.array([chosen.get("C", 1.0)]), 1.0, chosen.get("bias", 0.0))]
    seen = SimpleNamespace(name="rows", n_rows=1, labels=labels, label_counts=[])
    return make_problems(Settings(loss=loss, **chosen), seen)


class Watched:
    """A pass over rows, and the alphas of every problem and row, also of those it forgot."""

    def __init__(
        self, X: Any, y: Any, problems: Any, *, cache_rows: int = 9, cache_nnz: int = 70,
        rounds: int = 3, policy: str = "gradient", features: int = N_FEATURES, values: bool = True,
        variables: int = 16,
    ) -> None:  # fmt: skip
        self.X, self.y, self.problems = X, y, problems
        first = problems[0]
        self.dtype = np.dtype(np.int32 if first.classify else np.float64)
        n = len(problems)
        self.size = Size(
            BLOCK, BLOCK * N_FEATURES, n * cache_rows, n * cache_nnz, features,
            min(variables, first.n_outputs) if first.listed else 0,
        )  # fmt: skip
        nonzeros = caches_nnz(self.size, n) + self.size.block_nnz + SPARE
        self.arena = Arena.of(nonzeros, "float32" if values else "ones")
        self.one = OnePass(
            problems, self.arena, self.size, self.dtype, rounds=rounds, policy=policy, seed=3
        )
        self.number = {self._key(np.flatnonzero(x), x[x != 0]): i for i, x in enumerate(X)}
        assert len(self.number) == len(X)
        self.alpha: list[dict[int, Any]] = [{} for _ in problems]
        self.learned: list[int] = []
        for k, solver in enumerate(self.one._solvers):
            self._watch(solver.working, k)

    def _key(self, indices: Any, values: Any) -> tuple[Any, ...]:
        return (*indices.tolist(), *values.tolist())

    def _watch(self, working: Any, k: int) -> None:
        compact = working.compact

        def note(keep: Any, block: int, alpha: Alphas) -> Any:
            numbers = self._numbers(working)
            mine = plain(working.alpha.take(np.arange(working.n)))
            self.alpha[k] |= dict(zip(numbers, mine, strict=True))
            return compact(keep, block, alpha)

        working.compact = note

    def _numbers(self, working: Any) -> list[int]:
        """Which rows a working set holds."""
        numbers = []
        for i in range(working.n):
            own = slice(working.starts[i], working.starts[i] + working.lengths[i])
            values = self.arena.values
            kept = np.ones(working.lengths[i]) if values is None else values[own]
            numbers.append(self.number[self._key(self.arena.indices[own], kept)])
        return numbers

    def rows(self, numbers: Any) -> Rows:
        """Rows in the arena, behind the caches."""
        position = caches_nnz(self.size, len(self.problems))
        starts, lengths = [], []
        for row in numbers:
            indices = np.flatnonzero(self.X[row])
            own = slice(position, position + len(indices))
            self.arena.indices[own] = indices
            if self.arena.values is not None:
                self.arena.values[own] = self.X[row, indices]
            starts.append(position)
            lengths.append(len(indices))
            position = own.stop
        y = self.y[numbers].astype(self.dtype)
        return Rows(
            np.array(starts, np.int64), np.array(lengths, np.int32), self.arena.indices,
            self.arena.values, y,
        )  # fmt: skip

    def learn(self, numbers: Any) -> Any:
        numbers = [int(i) for i in numbers]
        self.learned += numbers
        seen = self.X[self.learned]
        self.one.grow(int(np.flatnonzero((seen != 0).any(axis=0)).max()) + 1)
        rest = [] if not isinstance(self.problems[0], OneClass) else None
        for alphas, problem in zip(self.alpha, self.problems, strict=True):
            nothing: Any = rest if problem.listed else 0.0
            alphas |= dict.fromkeys(numbers, nothing)
        return self.one.learn(self.rows(numbers))

    def certify(self) -> list[Any]:
        """The certificate of each problem, of all alphas, where those that are forgotten count."""
        certificates = []
        for k, problem in enumerate(self.problems):
            W = self.one.weights[k]
            W_alpha = np.empty_like(W)
            certifier = Certifier(problem, W, W_alpha)
            for first in range(0, len(self.learned), BLOCK):
                some = self.learned[first : first + BLOCK]
                certifier.add(self.rows(some), self.alphas_of(k, some))
            certificates.append(certifier.finish())
            np.testing.assert_allclose(W, W_alpha, atol=1e-11)
        return certificates

    def alphas_of(self, k: int, numbers: list[int]) -> Alphas:
        mine = [self.alpha[k][i] for i in numbers]
        return lists_of(mine) if self.problems[k].listed else Dense(np.array(mine, float))

    def check(self) -> float:
        """See to it that W belongs to the alphas, which are feasible; return F."""
        for k, problem in enumerate(self.problems):
            for first in range(0, len(self.learned), BLOCK):
                some = self.learned[first : first + BLOCK]
                before, after = self.alphas_of(k, some), self.alphas_of(k, some)
                problem.make_feasible(self.rows(some), after)
                np.testing.assert_allclose(after.values, before.values, atol=1e-12)
        certificates = self.certify()
        dual = sum(c.dual for c in certificates)
        if not isinstance(self.problems[0], OneClass):
            assert self.one.dual == pytest.approx(dual, abs=1e-10)
            assert dual <= sum(c.primal for c in certificates) + 1e-10
        return dual

    def state(self) -> dict[str, Any]:
        return {name: array.copy() for name, array in self.one.state().items()}

    def go_on(self, **options: Any) -> "Watched":
        """Another one that goes on from the state of this one."""
        other = Watched(self.X, self.y, options.pop("problems", self.problems), **options)
        other.one.restore(self.state(), self.one.describe())
        other.learned = list(self.learned)
        other.alpha = [dict(alphas) for alphas in self.alpha]
        return other


def blocks_of(n: int, seed: int = 0) -> list[Any]:
    """Row numbers in blocks of different sizes."""
    random = np.random.default_rng(seed)
    ends = np.cumsum(random.integers(1, BLOCK + 1, n))
    return [part for part in np.split(np.arange(n), ends[ends < n]) if len(part)]


CASES: list[tuple[str, int, dict[str, Any]]] = [
    ("hinge", 2, {"C": 0.7}),
    ("squared_hinge", 2, {"C": 0.7, "bias": 1.5, "class_weight": {1: 2.0}}),
    ("hinge", 4, {"C": 0.7, "bias": 1.0}),
    ("squared_hinge", 3, {}),
    ("crammer_singer", 4, {"C": 0.5, "bias": 1.0}),
    ("weston_watkins", 3, {"C": 0.5}),
    ("log_loss", 2, {}),
    ("log_loss", 3, {"bias": 1.0}),
    ("squared_error", 3, {"task": "classification"}),
    ("epsilon_insensitive", 0, {"bias": 1.0}),
    ("squared_epsilon_insensitive", 0, {}),
    ("squared_error", 0, {}),
]
EVERY_CASE = pytest.mark.parametrize(("loss", "classes", "chosen"), CASES)


def start(loss: str, classes: int, chosen: Any, n: int = 60, seed: int = 1, **more: Any) -> Watched:
    X, y = make_rows(seed, n, max(2, classes))
    labels = [float(k) for k in range(classes)] if classes else None
    if not classes:
        y = X @ np.sin(np.arange(N_FEATURES)) + np.cos(np.arange(n))
    return Watched(X, y, problems_of(loss, labels, **chosen), **more)


@EVERY_CASE
@pytest.mark.parametrize("policy", ["gradient", "random", "none"])
def test_weights_belong_to_all_alphas_and_the_dual_value_never_falls(loss, classes, chosen, policy):
    sim = start(loss, classes, chosen, policy=policy, cache_rows=0 if policy == "none" else 9)
    before = 0.0
    frozen: dict[int, Any] = {}
    for block in blocks_of(60):
        sim.learn(block)
        dual = sim.check()
        assert dual >= before - 1e-11
        before = dual
        assert sim.one.n_cached <= len(sim.problems) * sim.size.cache_rows
        cached = set(sim._numbers(sim.one._solvers[0].working))
        assert all(sim.alpha[0][i] == alpha for i, alpha in frozen.items())
        frozen = {i: alpha for i, alpha in sim.alpha[0].items() if i not in cached}
    assert sim.one.n_rows == 60
    assert len(frozen) >= 60 - 9
    if policy != "none":
        sim.one.polish(20)
        assert sim.check() > before - 1e-11
        assert all(sim.alpha[0][i] == alpha for i, alpha in frozen.items())


def test_the_invariants_hold_by_the_formulas_too():
    # Hinge, from its definition, with nothing of the solver's own.
    sim = start("hinge", 2, {"C": 0.7}, n=50)
    for block in blocks_of(50):
        sim.learn(block)
        alpha = np.array([sim.alpha[0][i] for i in sim.learned])
        signs = np.where(sim.y[sim.learned] == 1, 1.0, -1.0)
        w = sim.X[sim.learned].T @ (alpha * signs)
        ours = np.zeros(N_FEATURES)
        ours[: len(sim.one.weights[0])] = sim.one.weights[0][:, 0]
        np.testing.assert_allclose(ours, w, atol=1e-12)
        assert (alpha >= 0).all()
        assert (alpha <= 0.7).all()
        assert sim.one.dual == pytest.approx(alpha.sum() - 0.5 * w @ w, abs=1e-12)
    assert (alpha > 0).sum() > 20


@given(
    seed=st.integers(0, 10**6),
    case=st.sampled_from([case for case in CASES if LOSSES[case[0]].rests]),
    cache_rows=st.integers(0, 20),
    cache_nnz=st.integers(0, 120),
    rounds=st.integers(1, 4),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_any_stream_keeps_the_invariants(seed, case, cache_rows, cache_nnz, rounds):
    sim = start(
        *case, n=40, seed=seed, cache_rows=cache_rows, cache_nnz=cache_nnz, rounds=rounds,
        variables=1 + seed % 4,
    )  # fmt: skip
    before = 0.0
    for block in blocks_of(40, seed):
        totals = sim.learn(block)
        assert totals.rest == 0
        dual = sim.check()
        assert dual >= before - 1e-11
        before = dual


@EVERY_CASE
def test_a_state_that_is_taken_over_gives_the_same_bytes(loss, classes, chosen):
    blocks = blocks_of(60)
    one = start(loss, classes, chosen)
    for block in blocks[:3]:
        one.learn(block)
    other = one.go_on()
    for block in blocks[3:]:
        for sim in (one, other):
            sim.learn(block)
        assert other.check() == one.check()
        mine, theirs = one.state(), other.state()
        assert sorted(mine) == sorted(theirs)
        for name, array in mine.items():
            assert array.tobytes() == theirs[name].tobytes(), name
    assert one.one.describe() == other.one.describe()


@EVERY_CASE
@pytest.mark.parametrize(("cache_rows", "cache_nnz"), [(4, 70), (9, 25), (0, 0), (30, 300)])
def test_of_a_cache_that_is_too_large_the_best_rows_are_kept(
    loss, classes, chosen, cache_rows, cache_nnz
):
    blocks = blocks_of(60)
    one = start(loss, classes, chosen)
    for block in blocks[:4]:
        one.learn(block)
    other = one.go_on(cache_rows=cache_rows, cache_nnz=cache_nnz)
    for k, (mine, theirs) in enumerate(zip(one.one._solvers, other.one._solvers, strict=True)):
        before, after = mine.working, theirs.working
        scores = dict(zip(one._numbers(before), before.score[: before.n].tolist(), strict=True))
        kept = other._numbers(after)
        assert {*kept} <= {*scores}
        assert len(kept) <= cache_rows
        assert after.lengths[: after.n].sum() <= cache_nnz
        dropped = [score for i, score in scores.items() if i not in kept]
        if cache_rows == 4:
            assert len(kept) == 4
        if cache_rows == 30:
            assert not dropped
        if dropped and kept:
            assert min(scores[i] for i in kept) >= max(dropped)
        assert all(other.alpha[k][i] == one.alpha[k][i] for i in kept)
    assert other.check() == one.check()
    for block in blocks[4:]:
        other.learn(block)
        other.check()


# -------------------------------------------------------------------------------- late classes

ALL = [(7.0, -1.0, 3.0, 12.0), (-1.0, 7.0, 3.0, 12.0), (-5.0, -7.0, -9.0, -6.0)]


def converted(loss: str, before: list[Any], now: list[Any], alphas: list[dict[int, Any]]) -> Any:
    """The alphas of fewer classes as those of more, from what the problems mean."""
    first = now[0]
    if isinstance(before[0], MultiProblem):
        return alphas
    if len(before) > 1:  # problems of their own; a new class begins with zeros
        return [*alphas, *[dict.fromkeys(alphas[0], 0.0)] * (len(now) - len(before))]
    signed = LOSSES[loss].kernel == "svr"
    positive = before[0].positive
    if isinstance(first, MultiProblem):  # each of two classes against the rest
        return [{i: [(0, a), (1, a)] if a else [] for i, a in alphas[0].items()}]
    # Whose rows have s = +1 in one and -1 in the other: signed variables change their sign.
    flip = {i: -a if signed else a for i, a in alphas[0].items()}
    own = positive if positive >= 0 else 1
    return [
        alphas[0] if p.positive == own else flip if p.positive == 1 - own
        else dict.fromkeys(alphas[0], 0.0)
        for p in now
    ]  # fmt: skip


@pytest.mark.parametrize("labels", ALL)
@pytest.mark.parametrize(
    ("loss", "chosen"),
    [
        ("hinge", {"bias": 1.0}), ("squared_hinge", {}), ("crammer_singer", {"bias": 1.0}),
        ("weston_watkins", {}), ("log_loss", {"bias": 1.0}),
        ("squared_error", {"task": "classification"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", [(1, 2, 3, 4), (1, 3), (2, 4), (1, 4), (3, 4), (2, 3)])
def test_a_class_that_comes_late_leaves_all_variables_feasible_and_the_weights_theirs(
    loss, chosen, path, labels
):
    X, y = make_rows(5, 15 * len(path))
    sim: Any = None
    dual = 0.0
    for k, n in enumerate(path):
        problems = problems_of(loss, list(labels[:n]), **chosen)
        if sim is None:
            sim = Watched(X, y, problems)
        else:
            before, dual = sim, sim.check()
            sim = before.go_on(problems=problems)
            sim.alpha = converted(loss, before.problems, problems, before.alpha)
            again = sim.check()
            twice = before.problems[0].n_outputs == 1 and n > 2 and path[k - 1] < 3
            if not LOSSES[loss].joint:
                assert again == pytest.approx(2 * dual if twice else dual, abs=1e-10)
            dual = again
        for part in np.array_split(np.arange(15 * k, 15 * (k + 1)), 3):
            sim.y[part] = (part + part // 3) % n
            sim.learn(part)
            after = sim.check()
            assert after >= dual - 1e-11
            dual = after
    assert dual > 0


# ------------------------------------------------------------------------------------- one class


def test_one_class_begins_with_nothing_and_every_row_brings_its_share():
    X, _y = make_rows(2, 60)
    problem = OneClass(LOSSES["one_class"], 0.3, 17.0)  # no rows were seen, whatever this says
    sim = Watched(X, np.zeros(60), [problem])
    for block in blocks_of(60):
        level = problem._level[1]
        sim.learn(block)
        n = len(sim.learned)
        assert problem.total == n
        alpha = np.array([sim.alpha[0][i] for i in sim.learned])
        assert ((alpha >= 0) & (alpha <= 1)).all()
        assert problem._level[1] == pytest.approx(alpha.sum(), abs=1e-10)
        w = np.zeros(N_FEATURES)
        w[: len(sim.one.weights[0])] = sim.one.weights[0][:, 0]
        np.testing.assert_allclose(w, X[sim.learned].T @ alpha, atol=1e-11)
        assert abs(problem._level[1] - 0.3 * n) < 0.3 * n * 0.5
        assert level <= problem._level[1] + n
    fresh = sim.go_on(problems=[OneClass(LOSSES["one_class"], 0.3, 1.0)])
    assert fresh.problems[0].total == 60
    assert fresh.problems[0].rho == problem.rho
    assert not np.array_equal(fresh.problems[0]._level, [0, 0])


# ------------------------------------------------------------------------------------ the optimum


@EVERY_CASE
def test_a_cache_with_room_for_all_rows_reaches_the_optimum(loss, classes, chosen):
    sim = start(loss, classes, chosen, cache_rows=60, cache_nnz=60 * N_FEATURES, rounds=50)
    for block in blocks_of(60):
        sim.learn(block)
    for _ in range(400):  # what is shrunk in a call comes back in the next one
        sim.one.polish(10)
    sim.check()
    gap = sum(c.gap for c in sim.certify())
    primal = sum(c.primal for c in sim.certify())
    assert gap <= 1e-6 * primal


def test_of_one_class_the_offset_is_the_quantile_of_the_last_block():
    X, _ = make_rows(2, 60)
    problem = OneClass(LOSSES["one_class"], 0.3, 1.0)
    sim = Watched(X, np.zeros(60), [problem])
    for block in blocks_of(60):
        sim.learn(block)
        w = sim.one.weights[0][:, 0]
        assert problem.rho == pytest.approx(np.quantile(X[block][:, : len(w)] @ w, 0.3), rel=1e-9)
        assert sim.one.dual is None
    before = sim.state()
    assert sim.one.polish(9).visits == 0
    assert all(before[name].tobytes() == array.tobytes() for name, array in sim.state().items())


# ---------------------------------------------------------------------------- weights and learners


def test_the_row_of_the_bias_is_the_last_one_whatever_grows():
    weights = GrowingWeights(10, 2, with_bias=True)
    assert weights.grow(0).shape == (1, 2)
    weights.values[-1] = [5, 6]
    before = 0
    for n in (3, 3, 4, 10):
        values = weights.grow(n)
        assert values.shape == (n + 1, 2)
        np.testing.assert_array_equal(values[-1], [5, 6])
        np.testing.assert_array_equal(values[:before], np.full((before, 2), 1.0))
        np.testing.assert_array_equal(values[before:-1], np.zeros((n - before, 2)))
        assert values.base is weights.values.base  # in place
        values[:-1] = 1
        before = n
    without = GrowingWeights(4, 1, with_bias=False)
    without.grow(2)[:] = 1
    np.testing.assert_array_equal(without.grow(4)[:, 0], [1, 1, 0, 0])


def online_rows(X: Any, y: Any) -> Rows:
    lengths = np.count_nonzero(X, axis=1).astype(np.int32)
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    indices = np.concatenate([np.nonzero(X)[1], np.zeros(SPARE)]).astype(np.int32)
    values = np.concatenate([X[X != 0], np.zeros(SPARE)]).astype(np.float32)
    return Rows(starts, lengths, indices, values, y.astype(np.int32))


def make_online(name: str, n_outputs: int, positive: int, bias: float = 1.0) -> OnlinePass:
    return OnlinePass(
        ONLINE[name], C=0.5, decay=0.01, bias=bias, positive=positive, n_outputs=n_outputs,
        features=N_FEATURES,
    )  # fmt: skip


@pytest.mark.parametrize("name", ONLINE)
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_an_online_learner_goes_on_with_the_same_bytes(name, n_outputs):
    X, y = make_rows(4, 60, max(2, n_outputs))
    one = make_online(name, n_outputs, 1)
    for part in np.array_split(np.arange(60), 5):
        one.grow(int(np.flatnonzero((X[: part[-1] + 1] != 0).any(axis=0)).max()) + 1)
        totals = one.learn(online_rows(X[part], y[part]))
        assert totals.visits == len(part)
        other = make_online(name, n_outputs, 1)
        other.restore({k: a.copy() for k, a in one.state().items()}, one.describe())
        assert (other.n_rows, other.n_cached, other.dual) == (part[-1] + 1, 0, None)
        for k, array in one.state().items():
            assert other.state()[k].tobytes() == array.tobytes()
        one = other
    assert one.polish(9).visits == 0


@pytest.mark.parametrize("name", ONLINE)
@pytest.mark.parametrize(("positive", "now"), [(0, 1), (1, 1), (0, 0), (-1, 1), (-1, 0)])
def test_two_classes_that_change_sides_are_told_apart_as_before(name, positive, now):
    X, y = make_rows(4, 40)
    y[:] = np.maximum(y, 0) if positive >= 0 else 0
    one = make_online(name, 1, positive)
    one.grow(N_FEATURES)
    one.learn(online_rows(X, y))
    other = make_online(name, 1, now)
    other.restore(one.state(), one.describe())
    # Code 1 is positive in both, or in none: or w stands for the other class now.
    changed = (positive == 0) != (now == 0)
    factor = -1 if changed else 1
    np.testing.assert_array_equal(other.weights[0], factor * one.weights[0])
    if ONLINE[name].n_arrays > 1:
        np.testing.assert_array_equal(other.state()["array-1"], one.state()["array-1"])


@pytest.mark.parametrize("name", ONLINE)
@pytest.mark.parametrize("positive", [0, 1])
def test_two_classes_become_columns_that_tell_them_apart_as_before(name, positive):
    X, y = make_rows(4, 40)
    one = make_online(name, 1, positive)
    one.grow(N_FEATURES)
    one.learn(online_rows(X, y))
    w = one.weights[0][:, 0].copy()
    other = make_online(name, 4, 0)
    other.restore(one.state(), one.describe())
    W = other.weights[0]
    np.testing.assert_allclose(W[:, positive] - W[:, 1 - positive], w, atol=1e-15)
    assert (W[:, 2:] == 0).all()
    if name == "arow":
        precision, old = other.state()["array-1"], one.state()["array-1"][:, 0]
        np.testing.assert_array_equal(precision[:, :2], np.stack([old, old], 1))
    if name == "pegasos":
        assert other.state()["counters"][1] == pytest.approx((W**2).sum())
    five = make_online(name, 5, 0)
    five.restore(other.state(), other.describe())
    np.testing.assert_array_equal(five.weights[0][:, :4], W)
    assert (five.weights[0][:, 4] == 0).all()
