"""Joint losses with weights by class and lists of classes: optimum, certificate, bytes, memory."""

import json

import numpy as np
import pytest
from families import assert_same_optimum, make_store, row_losses
from helpers import full_weights, write_rows
from hypothesis import given
from hypothesis import strategies as st
from inside import (
    LOSSES as BY_NAME,
)
from inside import (
    ByClass,
    Lists,
    MultiProblem,
    Rows,
    Run,
    Scoring,
    SerialComm,
    Tables,
    TablesFullError,
    divide,
    load,
    patch,
    train_ranks,
    wake,
)
from inside import engine_byclass_module as byclass
from inside import training_task_module as task
from threads import in_threads

import sbm
from sbm.errors import MemoryPlanError

LOSSES = ("crammer_singer", "weston_watkins")


@pytest.fixture(autouse=True)
def few_classes(monkeypatch):
    """Keep weights by class, however few classes there are."""
    monkeypatch.setattr(task, "DENSE_SHARE", 0.0)
    monkeypatch.setattr(task, "FEWEST_CLASSES", 2)


def rows(classes=60, n=200, features=50, seed=0):
    """Return rows of several classes with words of their own, some of one row, equal or empty."""
    random = np.random.default_rng(seed)
    y = random.integers(0, classes, n) * 3.0 + 1
    X = np.where(random.random((n, features)) < 0.1, random.normal(size=(n, features)), 0)
    for i, label in enumerate(y):
        X[i, np.random.default_rng(int(label)).integers(0, features, 3)] += 1
    X, y = np.vstack([X, X[:5], np.zeros((4, features))]), np.concatenate([y, y[:5], y[:4]])
    y[0] = 1000
    return X.astype(np.float32).astype(float), y


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("s"), *rows(), blocks=3)


def train(store, path, **options):
    chosen = {"mem": "400MB", "tol": 1e-3, "max_passes": 300, "threads": 1, **options}
    return sbm.train(store, path, chosen, resume=False)


def dense(monkeypatch, *arguments, **options):
    """Train with all weights of a feature side by side."""
    with monkeypatch.context() as patched:
        patched.setattr(task, "DENSE_SHARE", 10.0**9)
        patched.setattr(task, "FEWEST_CLASSES", 10**9)
        return train(*arguments, **options)


@pytest.mark.long
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "options",
    [
        {"C": 1e-3},
        {"C": 0.01},
        {"C": 0.03},
        {"C": 1},
        {"C": 3, "tol": 1e-2},
        {"bias": 0.5, "tol": 1e-2},
        {"class_weight": {"4": 3, "7": 0}, "scale": "maxabs"},
    ],
    ids=str,
)
def test_same_optimum_as_dense_weights(monkeypatch, tmp_path, store, loss, options):
    ours = train(store, tmp_path / "a.model", loss=loss, **options)
    assert Run.read(tmp_path / "a.model.run")["method"]["family"] == "classes"
    assert ours[1]["converged"]
    assert_same_optimum(ours, dense(monkeypatch, store, tmp_path / "b.model", loss=loss, **options))


HARD = {
    "large C and a bias": (lambda X, y: (X, y), {"C": 1e4, "bias": 1.0}),
    "small C": (lambda X, y: (X, y), {"C": 1e-4}),
    "tiny values": (lambda X, y: (X * 1e-30, y), {"C": 1.0}),
    "equal rows of many classes": (lambda X, y: (np.ones((300, 4)), np.arange(300.0) % 60), {}),
    "duplicates with other labels": (
        lambda X, y: (np.tile(X[:40], (5, 1)), np.random.default_rng(3).permutation(200) % 40.0),
        {"C": 10.0},
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", HARD)
def test_hard_problems_reach_the_optimum_of_dense_weights(monkeypatch, tmp_path, loss, name):
    change, options = HARD[name]
    patch(monkeypatch, "MOST_WHOLE", 10**9)  # rows in memory
    store = make_store(tmp_path, *change(*rows()))
    ours = train(store, tmp_path / "a.model", loss=loss, **{"max_passes": 40, **options})
    assert ours[1]["converged"]
    assert_same_optimum(ours, dense(monkeypatch, store, tmp_path / "b.model", loss=loss, **options))


@pytest.mark.parametrize("C", [1e-3, 0.02, 0.5])
@pytest.mark.parametrize("loss", LOSSES)
def test_certified_objective_is_that_of_the_model(tmp_path, loss, C):
    X, y = rows()
    data = write_rows(tmp_path / "d.svm", X, y)
    model, report = train(data, tmp_path / "m.model", loss=loss, C=C, tol=1e-2)
    W = full_weights(model, X.shape[1])
    primal = 0.5 * (W**2).sum() + C * row_losses(loss, X @ W, y, model.labels).sum()
    assert -1e-9 < report["primal"] / primal - 1 < 1e-7  # if classes are missing, a bound
    assert report["dual"] <= primal
    assert abs(W.sum(axis=1)).max() <= 1e-5 * abs(W).max()  # so it is at the optimum


def n_listed(path):
    """Return the classes in all lists after each pass."""
    log = (path.parent / f"{path.name}.run" / "log.jsonl").read_text().splitlines()
    return [json.loads(line)["listed_classes"] for line in log if '"pass"' in line]


def test_variables_at_a_small_cost_need_no_lists(monkeypatch, tmp_path):
    """Lists got 16 classes a pass until they had all of them, as all variables are at C."""
    patch(monkeypatch, "MOST_WHOLE", 10**9)
    X, y = rows(classes=100)
    path = tmp_path / "m.model"
    report = train(make_store(tmp_path, X, y), path, loss="weston_watkins", C=1e-5)[1]
    assert report["converged"]
    assert report["passes"] <= 3
    assert n_listed(path)[-1] < 20 * len(X)
    beta_sum = 1e-5 * len(X) * (len(np.unique(y)) - 1)
    assert report["dual"] == pytest.approx(beta_sum, rel=0.05)


@pytest.mark.long
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("classes", [2, 3])
def test_few_classes(monkeypatch, tmp_path, loss, classes):
    X, y = rows()
    store = make_store(tmp_path, X, y // 3 % classes)
    ours = train(store, tmp_path / "a.model", loss=loss)
    assert_same_optimum(ours, dense(monkeypatch, store, tmp_path / "b.model", loss=loss))


@pytest.mark.long
@pytest.mark.parametrize("C", [0.01, 1, 100])  # with defaults, without, with a proximal term
@pytest.mark.parametrize("loss", LOSSES)
def test_same_bytes_for_threads_and_ranks(monkeypatch, tmp_path, store, loss, C):
    if C > 1:
        patch(monkeypatch, "MOST_WHOLE", 10**9)
    options = {"loss": loss, "tol": 1e-2, "mem": "400MB", "max_passes": 3 if C > 1 else 300, "C": C}
    made = set()
    for threads in (1, 3):
        path = tmp_path / "one.model"
        sbm.train(store, path, options | {"threads": threads}, resume=False)
        made.add(path.read_bytes())
    for size in (2, 3):
        path = tmp_path / f"{size}.model"
        in_threads(
            size, lambda comm, path=path: train_ranks(comm, store, path, options | {"threads": 1})
        )
        made.add(path.read_bytes())
    assert len(made) == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("ranks", "C", "far"),
    [
        (1, 0.02, 3),
        (1, 1, 3),
        (2, 1, 3),
        (1, 100, 3),
        (2, 100, 3),
        (2, 0.02, 1e9),
        (1, 1, 1e9),
        (2, 100, 1e9),
    ],
)
def test_resume_gives_the_same_bytes(monkeypatch, tmp_path, store, ranks, C, far):
    monkeypatch.setattr(byclass, "_FAR", far)  # if large, weights become float64
    options = {"loss": "weston_watkins", "mem": "400MB", "max_passes": 300, "threads": 1, "C": C}
    if C > 1:
        patch(monkeypatch, "MOST_WHOLE", 10**9)
        options["max_passes"] = 4
    path = tmp_path / "m.model"
    for most in (1, 2):  # passes
        in_threads(
            ranks,
            lambda comm, most=most: train_ranks(comm, store, path, options | {"max_passes": most}),
        )
    in_threads(ranks, lambda comm: train_ranks(comm, store, path, options))
    sbm.train(store, tmp_path / "whole.model", options)
    passes = sbm.Model.load(path).info["passes"]
    assert passes > 2
    assert path.read_bytes() == (tmp_path / "whole.model").read_bytes()


@pytest.mark.long
@pytest.mark.parametrize(
    ("loss", "C"), [("crammer_singer", 1), ("weston_watkins", 1), ("weston_watkins", 0.01)]
)
def test_rows_that_do_not_fit_in_memory(monkeypatch, tmp_path, store, loss, C):
    monkeypatch.setattr(byclass, "_ROW", 250_000)
    ours = train(store, tmp_path / "a.model", loss=loss, C=C, mem="120MB")
    assert ours[1]["blocks"] > 1
    assert ours[1]["converged"]
    assert_same_optimum(ours, dense(monkeypatch, store, tmp_path / "b.model", loss=loss, C=C))


def wide_rows(path, n, features, nonzeros):
    """Write rows of 600 classes with random features, and return the path."""
    random = np.random.default_rng(0)
    with path.open("w") as file:
        for i in range(n):
            ids = np.unique(random.integers(1, features, nonzeros))
            file.write(f"{i % 600} {' '.join(f'{k}:1' for k in ids)}\n")
    return path


def test_weights_may_use_what_blocks_leave(tmp_path):
    """Weston-Watkins ended in its second pass although half of the memory was free."""
    data = wide_rows(tmp_path / "d.svm", 1200, 40_000, 10)
    settings = {"loss": "weston_watkins", "parts": "blocks", "mem": "120MB"}
    assert sbm.plan(data, settings)["memory"]["total"] > 0.9 * 120e6


@pytest.mark.long
def test_weights_that_do_not_fit_are_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(byclass, "_LEAST", 0.0)
    data = wide_rows(tmp_path / "d.svm", 3000, 300_000, 200)
    store = tmp_path / "d.sbm"
    sbm.split(data, store)
    with pytest.raises(MemoryPlanError) as caught:
        train(store, tmp_path / "m.model", loss="weston_watkins", mem="60MB")
    least = caught.value.least_bytes
    with pytest.raises(MemoryPlanError, match=r"the weights of \d+ classes .* --launch 2"):
        train(store, tmp_path / "m.model", loss="weston_watkins", mem=f"{least // 10**6 + 1}MB")


def rows_of(X, y):
    """Return dense rows as those of a block."""
    where = X != 0
    lengths = where.sum(axis=1).astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(lengths)])[:-1].astype(np.int64)
    indices = where.nonzero()[1].astype(np.int32)
    return Rows(
        starts, lengths, indices, X[where], np.unique(y, return_inverse=True)[1].astype("i4")
    )


def no_lists(n):
    return Lists(np.zeros(n + 1, np.int64), np.empty(0, np.int32), np.empty(0))


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3000), st.integers(-3, 3)), max_size=400),
    st.sampled_from([(np.float32, 1), (np.float32, 1024), (np.float64, 1024)]),
)
def test_tables_hold_sums_of_rows(steps, kind):
    """However tables grow, are squeezed or laid out, they have the weights of a dictionary."""
    n, (dtype, n_dense) = 3000 + 1, kind
    tables = Tables(np.arange(3, dtype=np.int32), 3, n, n_dense, 1 << 22, dtype)
    expected = np.zeros((n, 3))
    kernels = load("sbm.solver.kernels.batches")
    for again in range(2):
        tables.lay_out()
        expected[:] = 0
        for c, feature, value in steps:
            X = np.zeros((1, n))
            X[0, [feature, 2 * feature % n]] = [1.0, 0.5]
            some = rows_of(X, [0])
            some.y[:] = c
            expected[:, c] += value * X[0]
            done = kernels.add_rows(
                *tables.arrays, tables.own, 0, some.starts, some.lengths, some.indices,
                some.values, some.y, np.arange(n, dtype=np.int32), 0.0, *vars(no_lists(1)).values(),
                np.full(3, float(value)), np.zeros(n, np.int32), np.zeros(n),
            )  # fmt: skip
            assert done == 1
        if again:
            tables.make_room()
        assert np.allclose(tables.norms(), (expected**2).sum(axis=0), atol=1e-9)


@pytest.mark.parametrize("n_features", [40_000, 400_000])
def test_tables_are_packed_if_memory_is_short(n_features):
    """They have the same norms as tables with room, to the last bit, at 7.7 bytes a weight."""
    kernels, random = load("sbm.solver.kernels.batches"), np.random.default_rng(0)
    n, K, features = 2000, 200, n_features + 1024
    X = [np.unique(random.integers(features, size=400)).astype(np.int32) for _ in range(n)]
    lengths = np.array([len(ids) for ids in X], np.int32)
    starts = np.cumsum(lengths).astype(np.int64) - lengths
    y, values = (np.arange(n) % K).astype(np.int32), random.normal(size=lengths.sum())
    total, found = 0, []
    for has_room in (True, False):
        tables = Tables(np.arange(K, dtype=np.int32), K, features, 1024, 1 << 26, np.float32)
        if not has_room:
            tables._most = total // 8
        for _ in range(2):  # sizes are those of the weights before, then
            tables.lay_out()
            done = 0
            while done < n:
                done = kernels.add_rows(
                    *tables.arrays, tables.own, done, starts, lengths, np.concatenate(X), values, y,
                    np.arange(features, dtype=np.int32), 0.0, *vars(no_lists(n)).values(),
                    np.ones(K), np.zeros(400, np.int32), np.zeros(400),
                )  # fmt: skip
                if done < n:
                    tables.make_room()
        total = int(tables.used.sum())
        found.append((tables.norms(), total))
    assert found[0][1] == found[1][1]
    assert np.array_equal(found[0][0], found[1][0])
    assert tables.top[5]
    assert tables.nbytes - tables.head.nbytes <= 7.7 * total


@given(
    st.lists(st.dictionaries(st.integers(0, 99), st.integers(1, 9), max_size=60), max_size=5),
    st.integers(0, 9), st.sampled_from([None, np.float32]),
)  # fmt: skip
def test_nonzeros_are_sorted_by_rank(rows, seed, dtype):
    rank = np.random.default_rng(seed).permutation(100).astype(np.int32)
    ids = [sorted(row) for row in rows]
    lengths = np.array([len(row) for row in rows], np.int32)
    starts = np.cumsum(lengths).astype(np.int64) - lengths
    indices = np.array([k for row in ids for k in row], np.int32)
    values = dtype and np.array([row[k] for row in rows for k in sorted(row)], dtype)
    keys = np.empty(lengths.max(initial=0), np.int32)
    load("sbm.solver.kernels.batches").sort_nonzeros(starts, lengths, indices, values, rank, keys)
    expected = [k for row in ids for k in sorted(row, key=lambda k: rank[k])]
    assert indices.tolist() == expected
    if dtype:
        by_row = [row[k] for row in rows for k in sorted(row, key=lambda k: rank[k])]
        assert values.tolist() == by_row


@pytest.mark.long
@pytest.mark.parametrize("C", [10, 1000])
@pytest.mark.parametrize("loss", LOSSES)
def test_weights_become_double_if_rounding_matters(monkeypatch, tmp_path, store, loss, C):
    """Without that, gaps stay at the rounding of float32; and the dual value is exact with both."""
    patch(monkeypatch, "MOST_WHOLE", 10**9)
    options = {"loss": loss, "C": C, "max_passes": 60}
    ours = train(store, tmp_path / "a.model", **options, tol=1e-9)
    assert ours[1]["converged"]
    assert ours[1]["relative_gap"] <= 1e-9
    expected = dense(monkeypatch, store, tmp_path / "b.model", **options, tol=1e-9)
    assert_same_optimum(ours, expected)
    for tol in (1e-3, 1e-5):  # certified by a bound of rounding, and by products
        assert_same_optimum(train(store, tmp_path / "c.model", **options, tol=tol), expected)


def test_certified_weights_are_those_of_the_model(monkeypatch, tmp_path, store):
    """They become float64 for the next pass, not before the model is written."""
    made = set()
    for far in (0.0, 1e9):
        monkeypatch.setattr(byclass, "_FAR", far)
        train(store, tmp_path / "m.model", loss="crammer_singer", max_passes=1)
        made.add((tmp_path / "m.model").read_bytes())
    assert len(made) == 1


def test_full_tables_are_an_error():
    tables = Tables(np.arange(1, dtype=np.int32), 1, 10, 10, 0, np.float32)
    tables.lines[0] = tables.top[0] = tables.top[1] = len(tables.tags) // 8
    tables.cells[:] = 1.0
    with pytest.raises(TablesFullError):
        tables.make_room()


def test_classes_are_divided_evenly():
    owner = divide([9, 1, 1, 1, 1, 5], 2)
    assert sorted(np.bincount(owner)) == [2, 4] or sorted(np.bincount(owner)) == [3, 3]
    assert divide([1, 2], 1).tolist() == [0, 0]


def test_dense_weights_of_uneven_owners_fit_in_memory():
    """The owner of a large class has few others, so the other one has more than its share."""
    K, features, n_bytes = 1000, 500, 2_000_000
    weights = ByClass(
        MultiProblem(BY_NAME["crammer_singer"], np.ones(K), 0.0),
        np.arange(features, dtype=np.int32), np.full(features, 900), [2000] + [1] * (K - 1),
        SerialComm(), 2, map, n_bytes, 12,
    )  # fmt: skip
    sizes = [len(tables.classes) for tables in weights.tables]
    assert max(sizes) > 1.1 * K / 2
    assert all(tables.head.nbytes <= n_bytes // 2 for tables in weights.tables)


@pytest.mark.parametrize("loss", LOSSES)
def test_dual_value_never_falls(loss):
    """Even if all rows of a batch share their classes."""
    X, y = rows(classes=4, n=100, features=12)
    some = rows_of(X, y)
    costs = np.full(int(some.y.max()) + 1, 2.0)
    weights = ByClass(
        MultiProblem(BY_NAME[loss], costs, 2.0), np.arange(12, dtype=np.int32),
        np.ones(12, np.int64), np.bincount(some.y).tolist(), SerialComm(), 1, map, 1 << 20, 12,
    )  # fmt: skip
    facts, scoring = weights.facts(some), Scoring(weights)
    weights.add_rows(some, no_lists(len(some)), np.ones(len(costs)))
    scoring.begin()
    lists = scoring.first_lists(some, facts)
    weights.clear()
    values = [0.0]
    for k in range(12):
        weights.batch = 64
        weights.visit(some, facts, lists, k + 1, 0.0)
        wake(lists)
        weights.lay_out()
        weights.add_rows(some, lists)
        values.append(lists.values.sum() - 0.5 * weights.norms().sum())
    assert values[-1] > 0
    assert (np.diff(values) >= -1e-9 * values[-1]).all()


def test_warm_start_from_weights_by_class_starts_from_zero(store, tmp_path):
    before = tmp_path / "before.model"
    train(store, before, loss="crammer_singer")
    first = train(store, tmp_path / "cold.model", loss="crammer_singer", C=2.0)
    for warm_start in (str(before), True):
        model = before if warm_start is True else tmp_path / "warm.model"
        _, report = train(store, model, loss="crammer_singer", C=2.0, warm_start=warm_start)
        assert report["converged"]
        assert report["primal"] == pytest.approx(first[1]["primal"], rel=2e-3)
