"""Training with many classes end to end: optima, invariances, labels, weights and refusals."""

import json
import os
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import fit, full_weights, write_rows
from processes import finished

import sbm
from sbm.errors import DataError, MemoryPlanError, SettingsError
from sbm.losses import LOSSES

ROOT = Path(__file__).resolve().parent.parent
LABELS = [1e6, -3.0, 7.0, 0.5, 2.0]
JOINT = sorted(name for name, loss in LOSSES.items() if loss.joint)
MANY = sorted(name for name, loss in LOSSES.items() if loss.kind is not None)
OVR = ["hinge", "squared_hinge"]


def random_rows(seed=0, n=300, K=5, features=12, noise=0.5):
    """Sparse rows of K classes, and the class of each."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, features)).astype(np.float32).astype(float)
    X[random.random(X.shape) < 0.4] = 0
    scores = X @ random.normal(size=(features, K)) + noise * random.normal(size=(n, K))
    return X, scores.argmax(axis=1)


def make_store(folder, X, labels, name="d", **options):
    sbm.split([write_rows(folder / f"{name}.svm", X, labels)], folder / f"{name}.sbm", **options)
    return folder / f"{name}.sbm"


@pytest.fixture
def store(tmp_path):
    X, y = random_rows()
    return make_store(tmp_path, X, np.array(LABELS)[y], blocks=4)


def primal(loss, X, labels, W, columns, C, weight=None):
    """Objective from its definition; `columns` are the labels of the columns of W."""
    own = np.asarray(labels)[:, None] == np.asarray(columns)
    z, factor = X @ W, np.array([(weight or {}).get(label, 1.0) for label in labels])
    if loss in JOINT:
        slack = np.where(own, 0, np.maximum(0, 1 - z[own][:, None] + z))
        each = slack.max(axis=1) if loss == "crammer_singer" else slack.sum(axis=1)
        return 0.5 * (W**2).sum() + C * factor @ each
    h = np.maximum(0, 1 - np.where(own, z, -z)) ** (2 if loss == "squared_hinge" else 1)
    return 0.5 * (W**2).sum() + C * (np.where(own, factor[:, None], 1) * h).sum()


def assert_near(ours, theirs):
    """Two certified models are as near as their gaps say: |W - W*| <= sqrt(2 gap)."""
    (a, first), (b, second) = ours, theirs
    assert a.labels == b.labels
    np.testing.assert_array_equal(a.ids, b.ids)
    distance = np.sqrt(2 * first["gap"]) + np.sqrt(2 * second["gap"])
    assert np.linalg.norm(a.W - b.W) <= distance * (1 + 1e-6) + 1e-9
    assert first["dual"] <= second["primal"] * (1 + 1e-12)
    assert second["dual"] <= first["primal"] * (1 + 1e-12)


# ------------------------------------------------------------------------------- the optimum

# Values of C whose optimum is reached fast: large ones take many passes and say no more.
REFERENCES = [
    ("pendigits_scale", 12, [0.01, 0.1, 1.0]),
    ("letter", 12, [0.1]),
    ("pendigits_scale", 1, [0.1]),
]


@pytest.mark.parametrize("loss", MANY)
@pytest.mark.parametrize(("name", "n_blocks", "costs"), REFERENCES)
def test_reference_optimum_is_certified(name, n_blocks, costs, loss, text_of, reference, tmp_path):
    sbm.split([text_of(name)], tmp_path / "d.sbm", blocks=n_blocks)
    optima = {r["C"]: r["primal"] for r in reference[name][loss] if r["C"] in costs}
    assert optima
    for C, optimum in optima.items():
        _, report, passes = fit(
            tmp_path / "d.sbm", loss=loss, C=C, rounds=30, tol=5e-5, max_passes=1000
        )
        assert report["converged"], C
        assert -1e-6 <= report["primal"] / optimum - 1 <= 1e-4, C
        assert max(p["dual"] for p in passes) <= optimum * (1 + 1e-6), C
        assert report["drift"] <= 1e-9, C


@pytest.mark.parametrize("loss", MANY)
def test_the_certificate_is_that_of_the_model_and_counts_rows(store, loss):
    X, y = random_rows()
    model, report, _ = fit(store, loss=loss, C=0.1, tol=1e-6, max_passes=2000, rounds=10)
    assert report["converged"]
    W, labels = full_weights(model, X.shape[1]), np.array(LABELS)[y]
    expected = primal(loss, X, labels, W, model.labels, 0.1)
    assert report["primal"] == pytest.approx(expected, rel=1e-9)
    assert report["gap"] == pytest.approx(report["primal"] - report["dual"], rel=1e-6)
    most = len(X) if loss in JOINT else len(X) * len(LABELS)
    assert 0 < report["n_free"] <= report["n_support"] <= most


@pytest.mark.parametrize("loss", JOINT)
def test_two_classes_are_the_hinge_at_twice_the_cost(tmp_path, loss):
    X, y = random_rows(1, K=2)
    path = make_store(tmp_path, X, [3.0 if k else -2.0 for k in y], blocks=3)
    options = {"tol": 1e-8, "max_passes": 20000, "rounds": 10, "bias": 1.0}
    joint, ours, _ = fit(path, loss=loss, C=0.05, class_weight={3: 2, -2: 0.5}, **options)
    binary, theirs, _ = fit(path, loss="hinge", C=0.1, class_weight={3: 2, -2: 0.5}, **options)
    assert ours["converged"]
    assert theirs["converged"]
    assert joint.labels == binary.labels == [-2, 3]
    distance = 2 * np.sqrt(2 * ours["gap"]) + np.sqrt(2 * theirs["gap"]) + 1e-9
    assert np.linalg.norm(joint.W[:, 1] - joint.W[:, 0] - binary.W[:, 0]) <= distance
    b, c = joint.bias_weights, binary.bias_weights
    assert abs(b[1] - b[0] - c[0]) <= distance
    assert ours["primal"] == pytest.approx(theirs["primal"] / 2, rel=1e-7)


@pytest.mark.parametrize("loss", OVR)
def test_one_against_the_rest_is_a_binary_training_for_each_label(tmp_path, store, loss):
    X, y = random_rows()
    options = {"loss": loss, "C": 0.1, "tol": 1e-7, "max_passes": 20000, "rounds": 10}
    model, report, _ = fit(store, **options)
    assert report["converged"]
    assert report["relative_gap"] <= 1e-7
    W, primals = full_weights(model, X.shape[1]), 0.0
    for k, label in enumerate(model.labels):
        signs = np.where(np.array(LABELS)[y] == label, 1, -1)
        alone, theirs, _ = fit(make_store(tmp_path, X, signs, f"b{k}", blocks=4), **options)
        distance = np.sqrt(2 * report["gap"]) + np.sqrt(2 * theirs["gap"])
        assert np.linalg.norm(W[:, k] - full_weights(alone, X.shape[1])[:, 0]) <= distance
        primals += theirs["primal"]
    assert report["primal"] == pytest.approx(primals, rel=3e-7)


# ------------------------------------------------------------------------------- invariances


@pytest.mark.parametrize(
    ("loss", "caches"), [*((loss, 1) for loss in MANY), *((loss, 3) for loss in OVR)]
)
def test_threads_change_no_byte(store, loss, caches):
    models = []
    for threads in (1, 2, 1):
        fit(store, loss=loss, C=0.3, tol=1e-5, max_passes=300, threads=threads, caches=caches)
        models.append((store.parent / "m.model").read_bytes())
    assert models[0] == models[1] == models[2]


@pytest.mark.parametrize("loss", OVR)
def test_any_number_of_caches_reaches_the_same_optimum(store, loss):
    """More caches than classes are as many as there are classes."""
    options = {"loss": loss, "C": 0.1, "tol": 1e-6, "max_passes": 5000, "rounds": 10, "bias": 0.5}
    first, *others = [fit(store, caches=caches, **options)[:2] for caches in (1, 3, 5, 9)]
    assert first[1]["converged"]
    for other in others:
        assert other[1]["converged"]
        assert_near(first, other)
    np.testing.assert_array_equal(others[1][0].W, others[2][0].W)


@pytest.mark.parametrize("loss", MANY)
def test_blocks_order_cache_and_seed_do_not_move_the_optimum(tmp_path, loss):
    X, y = random_rows(2, n=150)
    labels = np.array(LABELS)[y]
    order = np.argsort(labels, kind="stable")  # some blocks would lack classes without dealing
    fitted = []
    for name, rows, n_blocks in (("a", slice(None), 1), ("b", order, 4), ("c", order[::-1], 12)):
        path = make_store(tmp_path, X[rows], labels[rows], name, blocks=n_blocks, seed=n_blocks)
        for frac, seed in ((0.0, 0), (0.5, 1)):
            model, report, _ = fit(
                path, loss=loss, C=0.02, cache_frac=frac, seed=seed, tol=1e-5, max_passes=9999,
                rounds=20,
            )  # fmt: skip
            assert report["converged"]
            order_of_ids = np.argsort(model.ids)
            model.ids, model.W = model.ids[order_of_ids], model.W[order_of_ids]
            fitted.append((model, report))
    for other in fitted[1:]:
        assert_near(fitted[0], other)


def test_support_vectors_are_counted_by_class_whatever_the_number_of_caches(store):
    counts = [
        fit(store, C=0.1, tol=1e-9, max_passes=3000, rounds=30, caches=n)[1]["n_support"]
        for n in (1, 3)
    ]
    assert counts[0] == counts[1] > 300


def test_pairs_of_classes_reach_the_optimum_with_the_same_bytes_for_any_threads(store):
    options = {"loss": "weston_watkins", "C": 0.1, "tol": 1e-5, "max_passes": 500}
    fitted = [fit(store, schedule="pairs", threads=n, **options) for n in (1, 2)]
    assert_near(fitted[0][:2], fit(store, **options)[:2])
    np.testing.assert_array_equal(fitted[0][0].W, fitted[1][0].W)
    assert fitted[0][1]["updates"] == fitted[1][1]["updates"]


def test_pairs_of_classes_are_given_the_memory_they_need(store):
    least = []
    for schedule in ("sample", "pairs"):
        with pytest.raises(MemoryPlanError) as error:
            fit(store, loss="weston_watkins", schedule=schedule, mem="50MB")
        least.append(error.value.least_bytes)
    assert least[0] < least[1]


def test_the_cache_score_of_the_paper_reaches_the_optimum(store):
    for loss in MANY:
        options = {"loss": loss, "C": 0.1, "tol": 1e-5, "max_passes": 500}
        assert_near(fit(store, policy="active", **options)[:2], fit(store, **options)[:2])


# ------------------------------------------------------------------------------------- labels


@pytest.mark.parametrize("loss", MANY)
def test_columns_belong_to_the_labels_in_their_order(tmp_path, loss):
    X, y = random_rows(3, n=600, K=5)
    X[np.arange(len(X)), y] += 6  # one line tells a class from all others
    labels = np.array(LABELS)[y]
    path = make_store(tmp_path, X, labels, blocks=3)
    for caches in (1, 2) if loss in OVR else (1,):
        model, _, _ = fit(path, loss=loss, C=10.0, max_passes=30, rounds=10, caches=caches)
        assert model.labels == sorted(LABELS)
        result = sbm.predict(model, tmp_path / "d.svm")
        assert result["accuracy"] > 0.9
        best = (X @ full_weights(model, X.shape[1])).argmax(axis=1)
        assert (np.array(model.labels)[best] == labels).mean() == result["accuracy"]


@pytest.mark.parametrize("loss", MANY)
def test_a_class_of_one_row_is_a_class(tmp_path, loss):
    X, y = random_rows(4, n=60, K=3)
    labels = y.astype(float)
    labels[17] = 77
    path = make_store(tmp_path, X, labels, blocks=6)
    options = {"loss": loss, "C": 1.0, "tol": 1e-5, "max_passes": 5000, "rounds": 10}
    model, report, _ = fit(path, **options)
    assert report["converged"]
    assert model.labels == [0, 1, 2, 77]
    W = full_weights(model, X.shape[1])
    assert report["primal"] == pytest.approx(
        primal(loss, X, labels, W, model.labels, 1.0), rel=1e-9
    )


def test_300_classes_train_in_the_memory_they_were_given(tmp_path):
    random = np.random.default_rng(5)
    y = np.arange(3000) % 300
    X = (random.random((3000, 60)) < 0.1) * np.float32(1)
    X[np.arange(3000), y % 60] = 2
    X[np.arange(3000), (y // 5 + 7) % 60] = 3
    path = make_store(tmp_path, X, y, blocks=6)
    environment = {k: v for k, v in os.environ.items() if k != "SBM_COMPILE_HERE"}
    for loss in ("hinge", "weston_watkins"):
        line = f"train {path} -o m.model --mem 150MB --loss {loss} -C 0.1 --tol 1e-2 --json"
        done = finished(
            [sys.executable, "-m", "sbm", *shlex.split(line)],
            cwd=tmp_path,
            env={**environment, "PYTHONPATH": str(ROOT)},
        )
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["converged"]
        assert 0 <= report["gap"] <= 1e-2 * report["primal"]
        assert report["peak_rss_bytes"] <= 150_000_000
        assert len(sbm.Model.load(tmp_path / "m.model").labels) == 300


# ------------------------------------------------------------------------------------- weights

WEIGHT = {7.0: 3.0, -3.0: 0.25}


@pytest.mark.parametrize("loss", MANY)
def test_class_weights_mean_what_they_mean_to_scikit_learn(store, loss):
    """One-vs-rest weights a class's own rows; the others weight rows by their own class."""
    X, y = random_rows()
    labels = np.array(LABELS)[y]
    model, report, _ = fit(
        store, loss=loss, C=0.2, class_weight=WEIGHT, tol=1e-7, max_passes=9999, rounds=10
    )
    assert report["converged"]
    ours = full_weights(model, X.shape[1])
    value = primal(loss, X, labels, ours, model.labels, 0.2, WEIGHT)
    assert report["primal"] == pytest.approx(value, rel=1e-9)
    if loss == "weston_watkins":
        return  # scikit-learn has none
    svm = pytest.importorskip("sklearn.svm")
    codes = np.searchsorted(model.labels, labels)  # it takes whole numbers only
    weight = {model.labels.index(label): factor for label, factor in WEIGHT.items()}
    kind = {"multi_class": "crammer_singer"} if loss == "crammer_singer" else {"loss": loss}
    theirs = svm.LinearSVC(
        C=0.2, **kind, fit_intercept=False, class_weight=weight, tol=1e-8, max_iter=10**6,
        random_state=0,
    ).fit(X, codes)  # fmt: skip
    value = primal(loss, X, labels, theirs.coef_.T, model.labels, 0.2, WEIGHT)
    assert report["dual"] <= value * (1 + 1e-9)
    assert value <= report["dual"] * (1 + 1e-5)


# ------------------------------------------------------------------------------------ refusals


def test_options_that_belong_to_another_problem_are_refused(store, tmp_path):
    for loss in ("hinge", "squared_hinge", "crammer_singer"):
        with pytest.raises(SettingsError) as error:
            fit(store, loss=loss, schedule="pairs")
        assert str(error.value) == (
            f"schedule is 'pairs', which belongs to weston_watkins; {loss} visits sample by sample"
        )
    caches = (
        "caches is 2; only one-vs-rest, hinge or squared_hinge with more than two labels, "
        "can have more than one"
    )
    X, y = random_rows(6, n=20, K=2)
    two = make_store(tmp_path, X, y, "two")
    for path, loss in ((store, "crammer_singer"), (store, "weston_watkins"), (two, "hinge")):
        with pytest.raises(SettingsError) as error:
            fit(path, loss=loss, caches=2)
        assert str(error.value) == caches
    with pytest.raises(SettingsError) as error:
        sbm.Settings(schedule="pears")
    assert str(error.value) == (
        "unknown schedule 'pears', known are sample, pairs; did you mean 'pairs'?"
    )


def test_weights_that_do_not_fit_the_memory_are_refused_with_what_would(tmp_path):
    ids = np.random.default_rng(7).integers(1, 10**9, (300, 60))
    rows = [" ".join(f"{k}:1" for k in sorted(set(row))) for row in ids.tolist()]
    lines = [f"{k} {row}\n" for k, row in enumerate(rows)]
    (tmp_path / "w.svm").write_text("".join(lines))
    sbm.split([tmp_path / "w.svm"], tmp_path / "w.sbm")
    for loss in ("hinge", "crammer_singer"):
        with pytest.raises(MemoryPlanError, match=r"^--mem 150 MB is too little to train on ") as e:
            fit(tmp_path / "w.sbm", loss=loss, mem="150MB")
        features = len(np.unique(ids))
        assert e.value.least_bytes > 92_000_000 + 2 * 8 * 300 * features
        _, report, _ = fit(tmp_path / "w.sbm", loss=loss, mem=e.value.least_bytes, max_passes=2)
        assert report["passes"] <= 2


@pytest.mark.parametrize("loss", JOINT)
def test_one_label_alone_is_refused(tmp_path, loss):
    path = make_store(tmp_path, np.eye(3), [4, 4, 4])
    with pytest.raises(DataError) as error:
        fit(path, loss=loss)
    assert str(error.value) == (
        f"all rows of {path} have the label 4, {loss} needs at least two classes"
    )


@pytest.mark.parametrize("loss", ["hinge", "crammer_singer"])
def test_labels_of_a_model_ascend_in_whatever_order_they_come(loss, tmp_path):
    (tmp_path / "d.svm").write_text("3 1:1\n1 2:1\n2 3:1\n3 1:1 4:1\n1 2:1 4:1\n")
    sbm.split([tmp_path / "d.svm"], tmp_path / "d.sbm", blocks=1)
    model, _ = sbm.train(tmp_path / "d.sbm", tmp_path / "m.model", {"loss": loss, "C": 10.0})
    assert model.labels == [1.0, 2.0, 3.0]
    assert sbm.predict(model, tmp_path / "d.svm")["accuracy"] == 1.0
