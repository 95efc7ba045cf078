"""One pass of selective block minimization, checked with all discarded alphas."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import lists_of, plain
from hypothesis import given
from hypothesis import strategies as st
from inside import (
    LOSSES,
    Alphas,
    Arena,
    Certifier,
    Dense,
    MultiProblem,
    OneClass,
    OnePass,
    Rows,
    Settings,
    Size,
    caches_nnz,
    make_problems,
)
from inside import ROWS_SPARE as SPARE

N_FEATURES = 14
BLOCK = 12


def make_rows(seed: int, n: int, classes: int = 2) -> tuple[Any, Any]:
    """Different rows, none empty, whose later ones have more features."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, N_FEATURES)).astype(np.float32).astype(float)
    X[random.random(X.shape) < 0.4] = 0
    known = 5 + (N_FEATURES - 5) * np.arange(n) // n
    X[np.arange(N_FEATURES) > known[:, None]] = 0
    X[:, 0] = (1 + np.arange(n) / n).astype(np.float32)
    return X, random.integers(0, classes, n)


def problems_of(loss: str, labels: list[float] | None, **chosen: Any) -> list[Any]:
    """The problems of some labels, as a stream makes them."""
    kind = LOSSES[loss]
    if kind.joint and labels is not None and len(labels) == 1:
        return [MultiProblem(kind, np.array([chosen.get("C", 1.0)]), 1.0, chosen.get("bias", 0.0))]
    seen = SimpleNamespace(name="rows", n_rows=1, labels=labels, label_counts=[], label_names=None)
    return make_problems(Settings(loss=loss, **chosen), seen)


class Watched:
    """A pass over rows, and the alphas of all problems and rows, including dropped ones."""

    def __init__(
        self, X: Any, y: Any, problems: Any, *, cache_rows: int = 9, cache_nnz: int = 70,
        rounds: int = 3, policy: str = "gradient", variables: int = 16,
    ) -> None:  # fmt: skip
        self.X, self.y, self.problems = X, y, problems
        first, n = problems[0], len(problems)
        self.is_one_class = isinstance(first, OneClass)
        self.dtype = np.dtype(np.int32 if first.classify else np.float64)
        self.size = Size(
            BLOCK, BLOCK * N_FEATURES, n * cache_rows, n * cache_nnz, N_FEATURES,
            min(variables, first.n_outputs) if first.listed else 0,
        )  # fmt: skip
        self.block = caches_nnz(self.size, n)
        self.arena = Arena.of(self.block + self.size.block_nnz + SPARE, "float32")
        self.one = OnePass(
            problems, self.arena, self.size, self.dtype, rounds=rounds, policy=policy, seed=3
        )
        self.alpha: list[dict[int, Any]] = [{} for _ in problems]
        self.learned: list[int] = []
        for k, solver in enumerate(self.one._solvers):
            self._watch(solver.working, self.alpha[k])

    def _watch(self, working: Any, alphas: dict[int, Any]) -> None:
        """Note the alphas of a working set before rows leave it."""
        compact = working.compact

        def note(keep: Any, block: int, alpha: Alphas) -> Any:
            mine = plain(working.alpha.take(np.arange(working.n)))
            alphas.update(zip(self.numbers(working), mine, strict=True))
            return compact(keep, block, alpha)

        working.compact = note

    def numbers(self, working: Any) -> list[int]:
        """Which rows a working set holds; the first value of each is its own."""
        first = self.arena.values[working.starts[: working.n]]
        return [int(np.flatnonzero(self.X[:, 0] == value)[0]) for value in first]

    def rows(self, numbers: Any) -> Rows:
        """Return rows in the arena, after the caches."""
        X = self.X[numbers]
        lengths = np.count_nonzero(X, axis=1).astype(np.int32)
        own = slice(self.block, self.block + int(lengths.sum()))
        self.arena.indices[own], self.arena.values[own] = np.nonzero(X)[1], X[X != 0]
        starts = self.block + np.cumsum(lengths, dtype=np.int64) - lengths
        y = self.y[numbers].astype(self.dtype)
        return Rows(starts, lengths, self.arena.indices, self.arena.values, y)

    def learn(self, numbers: Any) -> Any:
        numbers = [int(i) for i in numbers]
        self.learned += numbers
        self.one.grow(int(np.flatnonzero(self.X[self.learned].any(axis=0)).max()) + 1)
        for alphas, problem in zip(self.alpha, self.problems, strict=True):
            alphas.update({i: [] if problem.listed else 0.0 for i in numbers})
        return self.one.learn(self.rows(numbers))

    def check(self) -> tuple[float, float]:
        """Check that W = W(α) and the alphas are feasible; return F and the gap."""
        dual = primal = 0.0
        for alphas, problem, W in zip(self.alpha, self.problems, self.one.weights, strict=True):
            W_alpha = np.empty_like(W)
            certifier = Certifier(problem, W, W_alpha)
            for part in np.array_split(self.learned, len(self.learned) // BLOCK + 1):
                mine = [alphas[i] for i in part]
                alpha = lists_of(mine) if problem.listed else Dense(np.array(mine, float))
                before = alpha.values.copy()
                problem.make_feasible(self.rows(part), alpha)
                np.testing.assert_allclose(alpha.values, before, atol=1e-12)
                certifier.add(self.rows(part), alpha)
            np.testing.assert_allclose(W, W_alpha, atol=1e-11)
            certificate = certifier.finish()
            dual, primal = dual + certificate.dual, primal + certificate.primal
        if not self.is_one_class:
            assert self.one.dual == pytest.approx(dual, abs=1e-10)
            assert dual <= primal + 1e-10
        return dual, primal - dual

    def resumed(self, **options: Any) -> "Watched":
        """Another one that resumes from the state of this one."""
        other = Watched(self.X, self.y, options.pop("problems", self.problems), **options)
        state = {name: array.copy() for name, array in self.one.state().items()}
        other.one.restore(state, self.one.describe())
        other.learned += self.learned
        for mine, theirs in zip(self.alpha, other.alpha, strict=False):
            theirs.update(mine)
        return other


CASES: list[tuple[str, int, dict[str, Any]]] = [
    ("hinge", 2, {"C": 0.7}),
    ("squared_hinge", 2, {"C": 0.7, "bias": 1.5, "class_weight": {1: 2.0}}),
    ("hinge", 4, {"C": 0.7, "bias": 1.0}),
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
BLOCKS = [np.arange(60)[a:b] for a, b in ((0, 5), (5, 17), (17, 18), (18, 30), (30, 38), (38, 50),
                                          (50, 60))]  # fmt: skip


def start(loss: str, classes: int, chosen: Any, seed: int = 1, **more: Any) -> Watched:
    X, y = make_rows(seed, 60, max(2, classes))
    labels = [float(k) for k in range(classes)] if classes else None
    if not classes:
        y = X @ np.sin(np.arange(N_FEATURES)) + np.cos(np.arange(60))
    return Watched(X, y, problems_of(loss, labels, **chosen), **more)


@given(
    case=st.sampled_from(CASES),
    seed=st.integers(0, 10**6),
    cache=st.tuples(st.integers(0, 20), st.integers(0, 120)) | st.just((0, 0)),
    rounds=st.integers(1, 4),
    policy=st.sampled_from(["gradient", "random"]),
)
def test_any_stream_keeps_the_invariants(case, seed, cache, rounds, policy):
    rows, nnz = cache
    more = {"cache_rows": rows, "cache_nnz": nnz, "variables": 1 + seed % 4}
    sim = start(*case, seed, rounds=rounds, policy=policy, **more)
    before, forgotten = 0.0, {}
    for k, block in enumerate([*BLOCKS, None]):
        if block is None:
            done = sim.one.polish(200)
            assert done.visits <= 200
        else:
            sim.learn(block)
        dual, _ = sim.check()
        assert dual >= before - 1e-11
        before = dual
        assert sim.one.n_cached <= sim.size.cache_rows
        assert all(sim.alpha[0][i] == alpha for i, alpha in forgotten.items())
        cached = set(sim.numbers(sim.one._solvers[0].working))
        forgotten = {i: alpha for i, alpha in sim.alpha[0].items() if i not in cached}
        if k == seed % 7:
            mine = sim.one._solvers[0].working
            scores = dict(zip(sim.numbers(mine), mine.score[: mine.n].tolist(), strict=True))
            more |= {"cache_rows": rows // 2, "cache_nnz": nnz // 2}
            sim = sim.resumed(rounds=rounds, policy=policy, **more)
            assert sim.check()[0] == pytest.approx(dual, abs=1e-10)
            kept = [scores.pop(i) for i in sim.numbers(sim.one._solvers[0].working)]
            assert min(kept, default=np.inf) >= max(scores.values(), default=-np.inf)
    assert sim.one.n_rows == 60
    assert len(forgotten) >= 60 - rows


@EVERY_CASE
def test_resumed_pass_has_the_same_bytes(loss, classes, chosen):
    one = start(loss, classes, chosen)
    for block in BLOCKS[:3]:
        one.learn(block)
    other = one.resumed()
    for block in BLOCKS[3:]:
        for sim in (one, other):
            sim.learn(block)
        assert other.check() == one.check()
        mine, theirs = one.one.state(), other.one.state()
        assert {n: a.tobytes() for n, a in mine.items()} == {
            n: a.tobytes() for n, a in theirs.items()
        }
    assert one.one.describe() == other.one.describe()


@EVERY_CASE
def test_cache_of_all_rows_reaches_the_optimum(loss, classes, chosen):
    sim = start(loss, classes, chosen, cache_rows=60, cache_nnz=60 * N_FEATURES, rounds=50)
    for block in BLOCKS:
        sim.learn(block)
    dual, gap = sim.check()
    for _ in range(100):
        if gap <= 1e-6 * (dual + gap):
            break
        for _ in range(20):
            sim.one.polish(180 * len(sim.problems))
        dual, gap = sim.check()
    assert gap <= 1e-6 * (dual + gap)


# -------------------------------------------------------------------------------- late classes


def widened(loss: str, before: list[Any], now: list[Any], alphas: list[dict[int, Any]]) -> Any:
    """The alphas of fewer classes as those of more, from what the problems mean."""
    if isinstance(before[0], MultiProblem):
        return alphas
    rest = dict.fromkeys(alphas[0], 0.0)
    if len(before) > 1:  # problems of their own; a new class begins with zeros
        return [*alphas, *[rest] * (len(now) - len(before))]
    if isinstance(now[0], MultiProblem):  # each of two classes against the rest
        return [{i: [(0, a), (1, a)] if a else [] for i, a in alphas[0].items()}]
    # Whose rows have s = +1 in one and -1 in the other: signed variables change their sign.
    sign = -1 if LOSSES[loss].kernel == "svr" else 1
    own = before[0].positive if before[0].positive >= 0 else 1
    parts = {own: alphas[0], 1 - own: {i: sign * a for i, a in alphas[0].items()}}
    return [parts.get(p.positive, rest) for p in now]


@pytest.mark.parametrize("labels", [(7.0, -1.0, 3.0, 12.0), (-1.0, 7.0, 3.0, 12.0)])
@pytest.mark.parametrize(
    ("loss", "chosen"),
    [
        ("hinge", {"bias": 1.0}), ("crammer_singer", {"bias": 1.0}), ("weston_watkins", {}),
        ("log_loss", {"bias": 1.0}), ("squared_error", {"task": "classification"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", [(1, 2, 3, 4), (1, 3), (2, 4), (3, 4)])
def test_late_class_keeps_the_invariants(loss, chosen, path, labels):
    X, y = make_rows(5, 15 * len(path))
    sim: Any = None
    dual = 0.0
    for k, n in enumerate(path):
        problems = problems_of(loss, list(labels[:n]), **chosen)
        if sim is None:
            sim = Watched(X, y, problems)
        else:
            before = sim
            sim = before.resumed(problems=problems)
            for mine, alphas in zip(
                sim.alpha, widened(loss, before.problems, problems, before.alpha), strict=True
            ):
                mine.update(alphas)
            again, _ = sim.check()
            is_doubled = before.problems[0].n_outputs == 1 and n > 2 and path[k - 1] < 3
            if not LOSSES[loss].joint:
                assert again == pytest.approx(2 * dual if is_doubled else dual, abs=1e-10)
            dual = again
        for part in np.array_split(np.arange(15 * k, 15 * (k + 1)), 3):
            sim.y[part] = (part + part // 3) % n
            sim.learn(part)
            after, _ = sim.check()
            assert after >= dual - 1e-11
            dual = after
    assert dual > 0


# ------------------------------------------------------------------------------------- one class


def test_one_class_counts_rows_and_keeps_its_quantile():
    X, _ = make_rows(2, 60)
    problem = OneClass(LOSSES["one_class"], 0.3, 17.0)  # no rows were seen, whatever this says
    sim = Watched(X, np.zeros(60), [problem])
    for block in BLOCKS:
        sim.learn(block)
        n, w = len(sim.learned), sim.one.weights[0][:, 0]
        alpha = np.array([sim.alpha[0][i] for i in sim.learned])
        assert problem.total == n
        assert ((alpha >= 0) & (alpha <= 1)).all()
        assert problem._level[1] == pytest.approx(alpha.sum(), abs=1e-10)
        assert abs(problem._level[1] - 0.3 * n) < 0.3 * n * 0.5
        np.testing.assert_allclose(w, (X[sim.learned].T @ alpha)[: len(w)], atol=1e-11)
        assert problem.rho == pytest.approx(np.quantile(X[block][:, : len(w)] @ w, 0.3), rel=1e-9)
        assert sim.one.dual is None
    before = w.tobytes()
    assert sim.one.polish(900).visits == 0
    assert sim.one.weights[0].tobytes() == before
    fresh = sim.resumed(problems=[OneClass(LOSSES["one_class"], 0.3, 1.0)])
    assert (fresh.problems[0].total, fresh.problems[0].rho) == (60, problem.rho)
