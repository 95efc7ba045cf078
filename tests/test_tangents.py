"""Searches along lines between rounds of coordinate descent (method of parallel tangents)."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from families import Case, make_store
from inside import LOSSES, Dense, ParallelTangents, Problem, Rounds, Rows, load, patch

import sbm

N, D, C, EPSILON = 40, 7, 2.0, 0.1
TARGETS = ("epsilon_insensitive", "squared_error", "squared_epsilon_insensitive")
UNBOUNDED = TARGETS[1:]
ALL = ("hinge", "squared_hinge", "log_loss", *TARGETS)


def dual_terms(loss, alpha, y, cost):
    """d_i of each row, from the definitions of the duals."""
    with np.errstate(divide="ignore", invalid="ignore"):
        if loss == "log_loss":
            p = alpha / cost
            return cost * np.nan_to_num(-p * np.log(p) - (1 - p) * np.log(1 - p))
    d = y * alpha if loss in TARGETS else alpha.copy()
    if loss in TARGETS and loss != "squared_error":
        d -= EPSILON * abs(alpha)
    return d - (0.25 * alpha**2 / cost if LOSSES[loss].squared else 0)


def slope_and_curvature(loss, alpha, y, cost):
    """First derivative of each d_i, and minus the second."""
    if loss == "log_loss":
        return np.log((cost - alpha) / alpha), cost / (alpha * (cost - alpha))
    first = y.copy() if loss in TARGETS else np.ones(len(alpha))
    if loss in TARGETS and loss != "squared_error":
        first -= EPSILON * np.sign(alpha)
    second = 0.5 / cost if LOSSES[loss].squared else np.zeros(len(alpha))
    return first - second * alpha, second


def expected(loss, alpha, before, y, cost, X, signs):
    """Return the point of a search, by the definition of the method."""
    way, w = alpha - before, X.T @ (alpha * signs)
    u = X.T @ (way * signs)
    first, second = slope_and_curvature(loss, alpha, y, cost)
    t = (first @ way - w @ u) / ((second * way) @ way + u @ u)
    far = alpha + t * way
    if loss == "log_loss":
        return np.clip(far, 0.1 * alpha, alpha + 0.9 * (cost - alpha))
    upper = np.inf if LOSSES[loss].squared else cost
    return np.clip(far, -upper if loss in TARGETS else 0.0, upper)


@pytest.mark.parametrize("bias", [0.0, 1.5])
@pytest.mark.parametrize("loss", ALL)
def test_a_search_is_that_of_the_definition(loss, bias):
    outcomes = set()
    for seed in range(12 if loss in UNBOUNDED else 15):
        random = np.random.default_rng(seed)
        X = random.normal(size=(N, D)).astype(np.float32)
        y = random.normal(size=N) if loss in TARGETS else random.integers(2, size=N, dtype=np.int32)
        weights = random.uniform(0.5, 2.0, N)
        epsilon = 0.0 if loss == "squared_error" else EPSILON
        problem = Problem(LOSSES[loss], C, C, 1, bias, epsilon, loss not in TARGETS)
        signs = np.ones(N) if loss in TARGETS else np.where(y == 1, 1.0, -1.0)
        cost = C * weights
        whole = np.hstack([X.astype(float), np.full((N, 1), bias)])[:, : D + (bias > 0)]
        side = random.choice([-1, 1], N) if loss in TARGETS else 1
        alpha = cost * side * random.choice([0.01, 0.99], N)
        before = cost * side * random.uniform(0.01, 0.98, N) * random.choice([0.1, 1.0], N)
        falls = seed > 11
        start = alpha if falls else before
        first, _ = slope_and_curvature(loss, start, y, cost)
        gradient = first - signs * (whole @ (whole.T @ (start * signs)))
        if falls:  # the rows that rise leave their bounds at once, and the others fall
            is_far = abs(alpha) > 0.5 * cost
            rises = (gradient * side > 0) == is_far
            rises &= is_far if loss in TARGETS else ~is_far | (not LOSSES[loss].squared)
            ratio = (gradient @ (rises * gradient)) / (gradient @ (~rises * gradient))
            before = alpha - 1e-2 * gradient * np.where(rises, 1.0, -0.9 * ratio)
        else:
            size = random.choice([1e-3, 1e-4, -1e-3]) * (np.arange(N) % 5 > 0)  # some stay
            alpha = side * np.clip(side * (before + size * gradient), 0.01 * cost, 0.99 * cost)
        w, w_before = (whole.T @ (a * signs) for a in (alpha, before))
        rows = Rows(
            np.arange(0, N * D, D), np.full(N, D, np.int32),
            np.tile(np.arange(D, dtype=np.int32), N + 8), np.append(X, np.zeros(8 * D, np.float32)),
            y, weights,
        )  # fmt: skip
        W = w.reshape(-1, 1).copy()
        now, start, sums = alpha.copy(), (before.copy(), w_before.copy()), np.ones(1)
        arguments = problem.arguments(rows, now, W)
        rose = load(f"sbm.solver.kernels.{LOSSES[loss].kernel}").search(*arguments, *start, sums)
        point = expected(loss, alpha, before, y, cost, whole, signs)
        values = [dual_terms(loss, a, y, cost).sum() for a in (alpha, point)]
        norms = [((whole.T @ (a * signs)) ** 2).sum() / 2 for a in (alpha, point)]
        gain = values[1] - values[0] - norms[1] + norms[0]
        outcomes.add(rose)
        t_is_positive = (point - alpha) @ (alpha - before) > 0
        if abs(gain) > 1e-9:
            assert rose == (gain > 0 and t_is_positive)
        assert not falls or (gain < -1e-3 and t_is_positive)
        wanted = point if rose else alpha
        assert now == pytest.approx(wanted, rel=1e-9, abs=1e-12)
        assert W[:, 0] == pytest.approx(whole.T @ (wanted * signs), rel=1e-8, abs=1e-9)
        rise = values[1] - values[0] if rose else 0.0
        assert sums[0] - 1.0 == pytest.approx(rise, rel=1e-8, abs=1e-9)
        if rose:
            assert start[0].tolist() == alpha.tolist()
            assert start[1] == pytest.approx(w)
    assert outcomes == {0, 1}


def test_searches_go_through_the_last_but_one_point_and_wait_after_failures():
    alpha, w = np.zeros(3), np.zeros(2)
    tangents = ParallelTangents(alpha, w)
    ends, begins, rounds, rises = [0.0], [], [], []
    outcomes = [1, 1, 0, 0, 1, 1]

    def search(given, before, w_before, rise):
        assert (given, rise.tolist(), len(w_before)) == ("given", [0.0], len(w))
        begins.append(before[0])
        if outcomes[len(begins) - 1]:
            before[:], w_before[:], rise[0] = alpha, w, 3.0
            alpha[:] += 0.5
        return outcomes[len(begins) - 1]

    for number in range(1, 11):
        alpha += 1
        rise = tangents.end_round(5.0, search, ("given",))
        if len(begins) == len(ends):
            ends.append(alpha[0])
            rounds.append(number)
            rises.append(rise)
        else:
            assert rise == 0.0
    # A search takes as long as to visit five nonzeros here.
    assert rounds == [1, 2, 3, 5, 9, 10]
    assert rises == [3.0 * rose for rose in outcomes]
    assert begins == [ends[k] for k in (0, 0, 1, 3, 4, 4)]


@pytest.mark.parametrize("stop", [0.0, 0.1])
@pytest.mark.parametrize(("rounds", "ends_at"), [(20, 99), (20, 12), (8, 99), (10, 99)])
def test_rounds_after_the_first_ones_alternate_with_searches(rounds, ends_at, stop, monkeypatch):
    calls = []

    def solve(*arguments):
        stats, first, last = arguments[-1], *arguments[-11:-9]
        calls.append((first, last, stats[1] > 0))
        stats += [1.0, 1.0, 5.0 * (last - first), 0.0, last - first]
        return int(last == ends_at)

    def search(*arguments):
        calls.append("search")
        arguments[-1][0] = 10.0
        return 1

    monkeypatch.setattr(Problem, "_kernels", SimpleNamespace(solve=solve, search=search))
    alpha = np.zeros(9)
    work = SimpleNamespace(
        n=9, alpha=Dense(alpha), home=alpha, score=alpha, rest=alpha,
        rows=Rows(*([np.ones(9, np.int32)] * 3), None, np.zeros(9, np.int32), None),
    )  # fmt: skip
    how = Rounds(*([0] * 7), stop=stop, searches=True)
    how = replace(how, rounds=rounds)
    stats = Problem(LOSSES["hinge"], C, C, 1).solve(work, np.zeros((1, 1)), how)
    searches, end = 0, min(rounds, ends_at)
    expected = [(0, 8, False)]
    for r in range(8, end):
        expected.append((r, r + 1, stop == 0.0))
        if r % 2 and r + 1 < end:  # two rounds visit as many nonzeros as there are variables
            expected.append("search")
            searches += 1
    assert calls == expected
    assert stats.tolist()[2::2] == [5.0 * end, end]
    assert stats[0] == len(calls) - searches + 10.0 * searches


CASES = [Case("hinge", 2, {"bias": 1.0}), Case("squared_hinge", 2), Case("log_loss", 2),
         Case("epsilon_insensitive", 0)]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_large_C_takes_fewer_visits_to_the_same_optimum(case, tmp_path, monkeypatch):
    patch(monkeypatch, "MOST_WHOLE", 10**9)
    X, y = case.rows(0, 400, noise=0.3)
    store = make_store(tmp_path, X, y, blocks=3)
    chosen = {**case.at(1e3), "solver": "dual", "tol": 1e-5, "max_passes": 1000}
    found = {}
    for first in (8, 10**9):
        patch(monkeypatch, "problem.FIRST", first)
        model, report = sbm.train(store, tmp_path / "m.model", chosen, resume=False)
        assert report["converged"]
        assert report["drift"] <= 1e-9
        assert case.primal(X, y, model) == pytest.approx(report["primal"], rel=1e-6)
        found[first] = report
    with_searches, without = found[8], found[10**9]
    assert with_searches["primal"] == pytest.approx(without["primal"], rel=2e-5)
    assert with_searches["visits"] < 0.6 * without["visits"]
