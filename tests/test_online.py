"""Online learners against their papers' formulas in dense arithmetic, and what is known of them."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from sbm.errors import SettingsError
from sbm.rows import Rows
from sbm.solver.online import ONLINE, Online

N_FEATURES = 8
EVERY_LEARNER = pytest.mark.parametrize("name", ONLINE)
OUTPUTS = pytest.mark.parametrize("n_outputs", [1, 2, 5])
SEEDS = st.integers(0, 10_000)


def make_data(seed, n, n_outputs, values=np.float32, zero_rows=True):
    """Rows and class codes; those of two classes are 0, 1 and 2, of which one is positive."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, N_FEATURES)).astype(np.float32).astype(float)
    X[random.random(X.shape) < 0.4] = 0
    if values is None:
        X = (X != 0).astype(float)
    if zero_rows:
        X[:: max(2, n // 3)] = 0
    return X, random.integers(0, max(3, n_outputs), n).astype(np.int32)


def sparse(X, y, values=np.float64):
    """The rows of X; their nonzeros lie from the last row to the first, behind a few of nobody."""
    lengths = np.count_nonzero(X, axis=1).astype(np.int32)
    starts = 3 + np.cumsum(lengths[::-1], dtype=np.int64)[::-1] - lengths
    back = X[::-1]
    indices = np.concatenate([[99] * 3, np.nonzero(back)[1]]).astype(np.int32)
    stored = np.concatenate([[np.nan] * 3, back[back != 0]])
    return Rows(starts, lengths, indices, None if values is None else stored.astype(values), y)


def zeros(name, n_outputs, n_weights):
    return [np.zeros((n_weights, n_outputs)) for _ in range(ONLINE[name].n_arrays)]


def learn_all(online, X, y, n_outputs, parts=1, positive=1, values=np.float64):
    """Learn rows in some calls; the arrays, and how many updates there were."""
    arrays = zeros(online.learner.name, n_outputs, N_FEATURES + (online.bias > 0))
    rows, updates = sparse(X, y, values), 0
    for part in np.array_split(np.arange(len(X)), parts):
        visits, moved = online.learn(rows.part(part[0], len(part)), arrays, positive)
        assert visits == len(part)
        updates += moved
    return arrays, updates


class Oracle:
    """The formulas, for one row after the other: W and the u of a row are dense matrices."""

    def __init__(self, name, n_outputs, C, decay, bias, positive=1):
        self.step = getattr(self, name)
        self.n_outputs, self.C, self.decay, self.bias = n_outputs, C, decay, bias
        self.positive = positive
        shape = N_FEATURES + (bias > 0), n_outputs
        self.W, self.precision = np.zeros(shape), np.ones(shape)
        self.t = self.updates = 0

    def u(self, x, y):
        if self.n_outputs == 1:
            return x[:, None] if y == self.positive else -x[:, None]
        z = x @ self.W
        z[y] = -np.inf
        signs = np.zeros(self.n_outputs)
        signs[y], signs[z.argmax()] = 1, -1
        return np.outer(x, signs)

    def learn(self, X, labels):
        for x, y in zip(X, labels, strict=True):
            x = np.append(x, self.bias) if self.bias else x
            u = self.u(x, y)
            margin = (self.W * u).sum()
            self.step(u, margin)

    def perceptron(self, u, margin):
        if margin <= 0 and u.any():
            self.W += u
            self.updates += 1

    def passive_aggressive(self, u, margin):
        if margin < 1 and u.any():
            self.W += min(self.C, (1 - margin) / (u**2).sum()) * u
            self.updates += 1

    def arow(self, u, margin):
        if margin < 1 and u.any():
            r = 1 / (2 * self.C)
            u = u.ravel()
            Sigma = np.diag(1 / self.precision.ravel())
            beta = 1 / (u @ Sigma @ u + r)
            self.W += (max(0, 1 - margin) * beta * Sigma @ u).reshape(self.W.shape)
            exact = np.linalg.inv(Sigma) + np.outer(u, u) / r
            self.precision = np.diag(exact).reshape(self.W.shape)
            self.updates += 1

    def pegasos(self, u, margin):
        self.t += 1
        eta = 1 / (self.decay * self.t)
        self.W = (1 - eta * self.decay) * self.W
        if margin < 1 and u.any():
            self.W = self.W + eta * u
            self.updates += 1
        norm = np.linalg.norm(self.W)
        if norm > 0:
            self.W = min(1, 1 / (np.sqrt(self.decay) * norm)) * self.W


# ----------------------------------------------------------------------------- their formulas


@EVERY_LEARNER
@OUTPUTS
@pytest.mark.parametrize("values", [None, np.float32, np.float64])
@pytest.mark.parametrize("bias", [0.0, 0.5])
def test_a_learner_does_what_its_formula_says(name, n_outputs, values, bias):
    for seed, C, decay in [(1, 0.03, 0.4871), (2, 1.0, 0.1137), (3, 99.0, 1.039e-3)]:
        X, y = make_data(seed, 60, n_outputs, values)
        y = np.minimum(y, n_outputs - 1) if n_outputs > 1 else y
        online = Online(ONLINE[name], C=C, decay=decay, bias=bias)
        oracle = Oracle(name, n_outputs, C, decay, bias)
        oracle.learn(X, y)
        for parts in (1, 4):
            online.counters[:] = 0
            (W, *others), updates = learn_all(online, X, y, n_outputs, parts, values=values)
            np.testing.assert_allclose(W, oracle.W, rtol=1e-9, atol=1e-11 * abs(oracle.W).max())
            assert updates == oracle.updates
            assert 0 < updates <= len(X)
            for P in others:
                np.testing.assert_allclose(1 + P, oracle.precision, rtol=1e-10)
            expected = [oracle.t, np.square(oracle.W).sum()] if name == "pegasos" else [0, 0]
            np.testing.assert_allclose(online.counters, [*expected, 0, 0], rtol=1e-9)


@EVERY_LEARNER
@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, n_outputs=st.sampled_from([1, 3]), cuts=st.sets(st.integers(0, 30)))
def test_calls_are_the_rows_one_after_the_other(name, seed, n_outputs, cuts):
    X, y = make_data(seed, 30, n_outputs)
    rows, positive = sparse(X, y), 1
    results = []
    for bounds in ([0, 30], [0, *sorted(cuts), 30]):
        online = Online(ONLINE[name], C=0.3, decay=0.01, bias=1.0)
        arrays, moved = zeros(name, n_outputs, 9), 0
        for a, b in itertools.pairwise(bounds):
            visits, updates = online.learn(rows.part(a, b - a), arrays, positive)
            assert visits == b - a
            moved += updates
        results.append([*arrays, online.counters, np.array([moved])])
    for one, many in zip(*results, strict=True):
        if name == "pegasos":  # its scale is multiplied into W at other times
            np.testing.assert_allclose(one, many, rtol=1e-9, atol=1e-9)
        else:
            np.testing.assert_array_equal(one, many)


@EVERY_LEARNER
@OUTPUTS
@pytest.mark.parametrize("bias", [0.0, 2.0])
def test_rows_of_w_that_come_later_might_have_been_there_from_the_start(name, n_outputs, bias):
    X, y = make_data(5, 40, n_outputs)
    X[:20, 5:] = 0
    y %= max(2, n_outputs)
    online = Online(ONLINE[name], C=0.5, decay=0.02, bias=bias)
    whole, _ = learn_all(online, X, y, n_outputs, parts=2)
    grown = Online(ONLINE[name], C=0.5, decay=0.02, bias=bias)
    few = zeros(name, n_outputs, 5 + (bias > 0))
    grown.learn(sparse(X[:20], y[:20]), few, 1)
    many = [np.insert(array, [5] * 3, 0.0, axis=0) for array in few]
    grown.learn(sparse(X[20:], y[20:]), many, 1)
    for left, right in zip([*whole, online.counters], [*many, grown.counters], strict=True):
        np.testing.assert_array_equal(left, right)
    assert whole[0][5:8].all()


@EVERY_LEARNER
@OUTPUTS
def test_rows_of_zeros_are_no_updates(name, n_outputs):
    X, y = make_data(3, 30, n_outputs)
    y %= max(2, n_outputs)
    online = Online(ONLINE[name], C=1.0, decay=0.1, bias=0.0)
    arrays, _ = learn_all(online, X, y, n_outputs)
    before = [array.copy() for array in arrays]
    counters = online.counters.copy()
    assert online.learn(sparse(np.zeros((3, 8)), y[:3]), arrays, 1) == (3, 0)
    if name == "pegasos":  # they are steps nevertheless: 29/30 · 30/31 · ... of W is left
        before[0] *= 30 / 33
        counters[:2] = 33, counters[1] * (30 / 33) ** 2
    for left, right in zip([*arrays, online.counters], [*before, counters], strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-13)


@EVERY_LEARNER
def test_no_rows_and_no_features_change_nothing(name):
    online = Online(ONLINE[name], C=1.0, decay=0.1, bias=0.0)
    arrays = zeros(name, 1, 0)
    none = Rows(np.zeros(2, np.int64), np.zeros(2, np.int32), np.zeros(0, np.int32), None,
                np.zeros(2, np.int32))  # fmt: skip
    assert online.learn(none.part(0, 0), arrays, 1) == (0, 0)
    assert not online.counters.any()
    assert online.learn(none, arrays, 1) == (2, 0)


@EVERY_LEARNER
def test_the_rows_of_one_class_are_positive_and_all_others_negative(name):
    X, y = make_data(9, 40, 1)
    assert set(y) == {0, 1, 2}
    results = []
    for positive in (0, 2):
        online = Online(ONLINE[name], C=1.0, decay=0.1, bias=1.0)
        results.append(learn_all(online, X, y, 1, positive=positive)[0][0])
        again = Online(ONLINE[name], C=1.0, decay=0.1, bias=1.0)
        signs = (y == positive).astype(np.int32)
        np.testing.assert_array_equal(learn_all(again, X, signs, 1)[0][0], results[-1])
    assert abs(results[0] - results[1]).max() > 0.1


@pytest.mark.parametrize("name", ["perceptron", "passive_aggressive", "pegasos"])
@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, C=st.sampled_from([0.05, 1.0, 50.0]))
def test_two_of_many_classes_are_two_classes(name, seed, C):
    X, y = make_data(seed, 40, 1)
    y = np.minimum(y, 1)
    one = Online(ONLINE[name], C=C, decay=0.01 / C, bias=1.0)
    # u is twice as long, squared: a step of half the length moves the difference as far.
    two = Online(ONLINE[name], C=C / 2, decay=0.02 / C, bias=1.0)
    (w, *_), updates = learn_all(one, X, y, 1)
    (W, *_), updates_2 = learn_all(two, X, y, 2)
    assert updates == updates_2
    times = 2.0 if name == "perceptron" else 1.0
    scale = 1e-10 * abs(w).max()
    np.testing.assert_allclose(W[:, 1] - W[:, 0], times * w[:, 0], rtol=1e-9, atol=scale)
    np.testing.assert_allclose(W[:, 1], -W[:, 0], rtol=1e-9, atol=scale)


# --------------------------------------------------------------------------------- perceptron


def test_undecided_rows_are_mistakes_and_of_equal_classes_the_lowest_is_the_rival():
    online = Online(ONLINE["perceptron"], C=1.0, decay=1.0, bias=0.0)
    x = sparse(np.eye(1, 8), np.array([1], np.int32))
    (w,) = zeros("perceptron", 1, 8)
    assert online.learn(x, [w], 1) == (1, 1)
    assert w[:, 0].tolist() == [1] + [0] * 7
    assert online.learn(x, [w], 1) == (1, 0)
    (W,) = zeros("perceptron", 4, 8)
    assert online.learn(x, [W], 1) == (1, 1)
    assert W[0].tolist() == [-1, 1, 0, 0]
    W[0] = [-1, 1, 1, 1]
    assert online.learn(x, [W], 1) == (1, 1)
    assert W[0].tolist() == [-1, 2, 0, 1]
    W[0] = [3, 3, 1, 1]
    zero = sparse(np.eye(1, 8), np.array([0], np.int32))
    assert online.learn(zero, [W], 1) == (1, 1)
    assert W[0].tolist() == [4, 2, 1, 1]
    assert online.learn(zero, [W], 1) == (1, 0)


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, n_outputs=st.sampled_from([1, 4]))
def test_the_perceptron_makes_no_more_mistakes_than_novikoff_allows(seed, n_outputs):
    random = np.random.default_rng(seed)
    truth = random.normal(size=(N_FEATURES, n_outputs))
    truth /= np.linalg.norm(truth)
    X = random.normal(size=(60, N_FEATURES))
    z = X @ truth
    if n_outputs == 1:
        y, margins = (z[:, 0] > 0).astype(np.int32), abs(z[:, 0])
    else:
        y = z.argmax(axis=1).astype(np.int32)
        best = np.sort(z, axis=1)
        margins = best[:, -1] - best[:, -2]
    kept = margins > 0.05
    X, y, gamma = X[kept], y[kept], margins[kept].min()
    length = np.square(X).sum(axis=1).max() * (1 if n_outputs == 1 else 2)  # the largest |u|²
    online, arrays = Online(ONLINE["perceptron"], C=1, decay=1, bias=0), [np.zeros_like(truth)]
    mistakes, rows = 0, sparse(X, y)
    while (latest := online.learn(rows, arrays, 1)[1]) > 0:
        mistakes += latest
        assert mistakes <= length / gamma**2
    scores = X @ arrays[0]
    found = scores[:, 0] > 0 if n_outputs == 1 else scores.argmax(axis=1)
    np.testing.assert_array_equal(found, y)
    assert mistakes > 0


# -------------------------------------------------------------------------- passive-aggressive


@settings(max_examples=30, deadline=None)
@given(seed=SEEDS, n_outputs=st.sampled_from([1, 4]), C=st.sampled_from([0.01, 0.3, 1e6]))
def test_a_passive_aggressive_step_ends_at_margin_1_or_is_c_long(seed, n_outputs, C):
    X, y = make_data(seed, 30, n_outputs, zero_rows=False)
    X[:, 0] = 1.0  # none is zero
    online = Online(ONLINE["passive_aggressive"], C=C, decay=1.0, bias=0.5)
    oracle = Oracle("passive_aggressive", n_outputs, C, 1.0, 0.5)
    W = np.zeros((9, n_outputs))
    for x, label in zip(X, y, strict=True):
        oracle.W = W.copy()
        u = oracle.u(np.append(x, 0.5), label)
        before = (W * u).sum()
        _, updates = online.learn(sparse(x[None], np.array([label], np.int32)), [W], 1)
        after = (W * u).sum()
        step = ((W - oracle.W) * u).sum() / (u**2).sum()
        np.testing.assert_allclose(W - oracle.W, step * u, atol=1e-13 * max(1, abs(W).max()))
        if before >= 1 + 1e-12:
            assert updates == step == 0
        elif before < 1 - 1e-12:
            assert updates == 1
            assert step <= C * (1 + 1e-9)
            assert after == pytest.approx(1, abs=1e-11) or (step == pytest.approx(C) and after < 1)


# ---------------------------------------------------------------------------------------- arow


def test_steps_of_arow_that_can_be_worked_out_by_hand():
    online = Online(ONLINE["arow"], C=0.5, decay=1.0, bias=0.0)  # r = 1
    X = np.zeros((1, 8))
    X[0, :2] = 1, 2
    W, P = zeros("arow", 1, 8)
    online.learn(sparse(X, np.array([1], np.int32)), [W, P], 1)
    np.testing.assert_allclose(W[:3, 0], [1 / 6, 2 / 6, 0], rtol=1e-15)  # β = 1 / (5 + 1)
    assert P[:3, 0].tolist() == [1, 4, 0]
    online.learn(sparse(X, np.array([0], np.int32)), [W, P], 1)  # m = -5/6, Σ = 1/2, 1/5
    step = (1 + 5 / 6) / (1 / 2 + 4 / 5 + 1)
    np.testing.assert_allclose(W[:2, 0], [1 / 6 - step / 2, 2 / 6 - step * 2 / 5], rtol=1e-14)
    assert P[:3, 0].tolist() == [2, 8, 0]
    W, P = zeros("arow", 3, 8)
    online.learn(sparse(X, np.array([2], np.int32)), [W, P], 1)
    np.testing.assert_allclose(W[:2], np.outer([1, 2], [-1 / 11, 0, 1 / 11]), rtol=1e-15)
    np.testing.assert_array_equal(P[:2], np.outer([1, 4], [1, 0, 1]))


# ------------------------------------------------------------------------------------- pegasos


@settings(max_examples=30, deadline=None)
@given(
    seed=SEEDS, n_outputs=st.sampled_from([1, 4]), values=st.sampled_from([None, np.float64]),
    decay=st.sampled_from([1e-12, 1e-3, 0.1, 2.0]),
)  # fmt: skip
def test_weights_of_pegasos_stay_in_their_ball_and_their_norm_is_known(
    seed, n_outputs, values, decay
):
    X, y = make_data(seed, 60, n_outputs, values)
    online = Online(ONLINE["pegasos"], C=1.0, decay=decay, bias=1.0)
    W, rows = np.zeros((9, n_outputs)), sparse(X, y, values)
    for k in range(0, 60, 5):
        online.learn(rows.part(k, 5), [W], 1)
        norm = np.square(W).sum()
        assert norm * decay <= 1 + 1e-12
        assert online.counters[0] == k + 5
        assert online.counters[1] == pytest.approx(norm, rel=1e-10, abs=1e-12 / decay)


@OUTPUTS
def test_scales_that_no_number_can_hold_do_pegasos_no_harm(n_outputs):
    X, y = make_data(1, 400, n_outputs, zero_rows=False)
    X[:, 0] = 1.0
    decay = 1e-24  # a row that is misclassified at first makes what was before 1e-12 of it
    y %= max(2, n_outputs)
    oracle = Oracle("pegasos", n_outputs, 1.0, decay, 0.0)
    oracle.learn(X, y)
    online = Online(ONLINE["pegasos"], C=1.0, decay=decay, bias=0.0)
    (W,), updates = learn_all(online, X, y, n_outputs)
    assert updates == oracle.updates > 100
    np.testing.assert_allclose(W, oracle.W, rtol=1e-9, atol=1e-9 * abs(oracle.W).max())
    assert online.counters[1] == pytest.approx(1 / decay, rel=0.1)


def test_pegasos_nears_the_optimum_of_its_problem():
    random = np.random.default_rng(0)
    X = random.normal(size=(50, N_FEATURES))
    y = (X @ random.normal(size=N_FEATURES) + random.normal(size=50) > 0).astype(np.int32)
    decay, s = 0.1, np.where(y == 1, 1.0, -1.0)

    def objective(w):
        return decay / 2 * w @ w + np.maximum(0, 1 - s * (X @ w)).mean()

    online, W = Online(ONLINE["pegasos"], C=1.0, decay=decay, bias=0.0), np.zeros((8, 1))
    reached = []
    for passes in (1, 10, 1000):
        for _ in range(passes):
            online.learn(sparse(X, y).take(random.permutation(50)), [W], 1)
        reached.append(objective(W[:, 0]))
    M = s[:, None] * X  # its dual, by a general method
    dual = minimize(
        lambda a: np.square(M.T @ a).sum() / (2 * decay) - a.sum(), np.full(50, 0.01),
        jac=lambda a: M @ (M.T @ a) / decay - 1, bounds=[(0, 1 / 50)] * 50, method="L-BFGS-B",
    )  # fmt: skip
    best = -dual.fun
    assert reached[0] > reached[1] > reached[2] > best - 1e-6
    assert reached[2] < best * 1.005


# ------------------------------------------------------------------------------------ the table


@EVERY_LEARNER
def test_the_table_says_what_a_learner_keeps_and_uses(name):
    learner = ONLINE[name]
    assert learner.name == name
    assert learner.source[-1] != "."
    assert "\n" not in learner.formula
    X, y = make_data(2, 30, 1)
    results = []
    for C, decay in [(0.1, 0.1), (0.01, 0.1), (0.1, 0.01)]:
        online = Online(learner, C=C, decay=decay, bias=0.0)
        assert online.counters.shape == (4,)
        arrays, _ = learn_all(online, X, y, 1)
        assert all(array.any() for array in arrays)
        results.append(arrays[0])
    assert learner.uses_C == (results[0] != results[1]).any()
    assert (name == "pegasos") == (results[0] != results[2]).any()


@pytest.mark.parametrize(
    ("name", "numbers", "message"),
    [
        ("arow", {"C": 0.0}, "C of arow is 0; it must be a finite number above 0"),
        ("passive_aggressive", {"C": -1.5}, "C of passive_aggressive is -1.5; it must be"),
        ("pegasos", {"decay": 0.0}, "decay of pegasos is 0; it must be a finite number above 0"),
        ("pegasos", {"decay": float("nan")}, "decay of pegasos is nan; it must be"),
        ("pegasos", {"decay": float("inf")}, "decay of pegasos is inf; it must be"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(name, numbers, message):
    with pytest.raises(SettingsError, match=message):
        Online(ONLINE[name], **{"C": 1.0, "decay": 1.0, "bias": 0.0, **numbers})
    if name == "pegasos":
        Online(ONLINE[name], C=0.0, decay=1.0, bias=0.0)  # what it does not use may be anything
