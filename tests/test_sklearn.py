"""The estimators: scikit-learn's checks, the optimum, batches, and models made of them."""

import importlib
import os
import pickle
import sys
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
import sklearn.svm
from families import Case, make_store, row_losses
from helpers import fit
from inside import Incremental, Rows, Run, patch, read_model
from sklearn.datasets import dump_svmlight_file, load_breast_cancer
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC, LinearSVR
from sklearn.utils import estimator_checks

import sbm
from sbm.errors import DataError, MemoryPlanError, SbmError, SettingsError
from sbm.sklearn import SBMClassifier, SBMOneClass, SBMRegressor

C, TOL = 0.5, 1e-6


@pytest.fixture(autouse=True)
def joined(monkeypatch):
    """Rows of a fit are one part, as outside of tests."""
    patch(monkeypatch, "MOST_WHOLE", 200_000_000)


SINGLE = {"dtype": "float32"}  # so that the checks need no kernels of their own
UNCONVERGED = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
# Weights and copies of rows are one problem, but its optimum is found within tol only.
INEXACT = dict.fromkeys(
    (f"check_sample_weight_equivalence_on_{kind}_data" for kind in ("dense", "sparse")),
    "passes at a small tol",
)


@estimator_checks.parametrize_with_checks(
    [SBMClassifier(tol=0.01, **SINGLE), SBMRegressor(tol=0.1, **SINGLE),
     SBMOneClass(tol=0.01, **SINGLE), SBMClassifier("log_loss", penalty="l1", tol=0.1, **SINGLE)],
    expected_failed_checks=lambda _: INEXACT,
)  # fmt: skip
@UNCONVERGED
def test_sklearn_checks_pass(estimator, check):
    check(estimator)


@pytest.mark.parametrize(
    "check",
    [
        estimator_checks.check_classifiers_train,  # shape, sum, order of probabilities
        estimator_checks.check_methods_subset_invariance,
    ],
)
@pytest.mark.parametrize("loss", ["log_loss", "crammer_singer"])
def test_sklearn_checks_of_probabilities_pass(loss, check):
    check("SBMClassifier", SBMClassifier(loss, tol=0.1, probability=loss != "log_loss", **SINGLE))


# ----------------------------------------------------------------------------------- what they find


def make_rows(n=80, classes=3):
    """Rows whose values are exact in float32, and labels, or targets if there are no classes."""
    random = np.random.default_rng(0)
    X = random.normal(size=(n, 6)).astype(np.float32).astype(float)
    X[random.random(X.shape) < 0.3] = 0
    scores = X @ random.normal(size=(6, max(1, classes))) + 0.5
    scores += 0.5 * random.normal(size=scores.shape)
    return X, scores.argmax(axis=1) if classes else scores[:, 0].round(3)


def classifier(loss="squared_hinge", **params):
    return SBMClassifier(loss, **{"C": C, "tol": TOL, "max_iter": 400, "random_state": 0} | params)


def regressor(loss="squared_epsilon_insensitive", **params):
    return SBMRegressor(loss, C=C, tol=TOL, max_iter=400, random_state=0, **params)


def one_class():
    return SBMOneClass(0.2, tol=1e-4, max_iter=400, random_state=0)


def flat(estimator, scaling=None):
    """Weights and intercept as one vector, the latter as the weight of a feature."""
    scaling = scaling or getattr(estimator, "intercept_scaling", 1.0)
    return np.concatenate([np.ravel(estimator.coef_), np.ravel(estimator.intercept_) / scaling])


def assert_same_optimum(first, second):
    """Two certified solutions of one problem: |w - w*| <= sqrt(2 gap)."""
    gaps = [estimator.model_.certificate["gap"] for estimator in (first, second)]
    distance = np.linalg.norm(flat(first) - flat(second))
    assert distance <= np.sqrt(2 * gaps[0]) + np.sqrt(2 * gaps[1]) + 1e-9
    assert np.linalg.norm(flat(first)) > 10 * distance


SVC = {"C": C, "tol": 1e-9, "max_iter": 1_000_000, "dual": True, "random_state": 0}
SCALED, PLAIN = {"intercept_scaling": 3.0}, {"fit_intercept": False}
FREE = {"intercept_scaling": np.inf}


@pytest.mark.parametrize(
    ("estimator", "peer", "classes"),
    [
        (classifier("hinge"), LinearSVC(loss="hinge", **SVC), 2),
        (classifier(), LinearSVC(**SVC), 3),
        (classifier(**SCALED), LinearSVC(**SVC, **SCALED), 2),
        (classifier(**PLAIN), LinearSVC(**SVC, **PLAIN), 2),
        (classifier("crammer_singer"), LinearSVC(multi_class="crammer_singer", **SVC), 3),
        (classifier("log_loss"), LogisticRegression(C=C, tol=1e-9, solver="liblinear"), 2),
        (regressor("epsilon_insensitive"), LinearSVR(**SVC, epsilon=0.1), 0),
        (regressor(), LinearSVR(**SVC, epsilon=0.1, loss="squared_epsilon_insensitive"), 0),
        (regressor("squared_error", **PLAIN), Ridge(1 / (2 * C), **PLAIN), 0),
        (classifier("hinge", **FREE), sklearn.svm.SVC(C=C, kernel="linear", tol=1e-9), 2),
        (classifier("log_loss", **FREE), LogisticRegression(C=C, solver="newton-cholesky"), 2),
        (regressor("squared_error", **FREE), Ridge(1 / (2 * C)), 0),
    ],
)  # fmt: skip
def test_optimum_matches_sklearn(estimator, peer, classes):
    X, y = make_rows(classes=classes)
    estimator.fit(X, y)
    peer.fit(X, y)
    certificate = estimator.model_.certificate
    scaling = getattr(estimator, "intercept_scaling", 1.0)

    def objective(fitted):
        z = X @ np.atleast_2d(fitted.coef_).T + np.ravel(fitted.intercept_)
        each = row_losses(estimator.loss, z, y, list(range(classes)))
        return 0.5 * (flat(fitted, scaling) ** 2).sum() + C * each.sum()

    assert estimator.dual_gap_ == certificate["relative_gap"] <= TOL
    assert objective(estimator) == pytest.approx(certificate["primal"], rel=1e-9)
    assert certificate["dual"] <= objective(peer) * (1 + 1e-9)
    assert objective(estimator) <= objective(peer) * (1 + TOL) + 1e-9
    distance = np.linalg.norm(flat(estimator) - flat(peer, scaling))
    assert distance <= np.sqrt(2 * certificate["gap"]) + 1e-3
    assert estimator.coef_.shape == peer.coef_.shape
    predicted = estimator.predict(X)
    if not classes:
        np.testing.assert_allclose(predicted, peer.predict(X), atol=0.01)
        return
    expected = peer.decision_function(X)
    np.testing.assert_allclose(estimator.decision_function(X), expected, atol=0.01)
    assert np.mean(predicted != peer.predict(X)) < 0.02  # scores may tie within that


def test_share_nu_lies_outside():
    X = make_rows(200)[0].astype(np.float32) + 3
    fitted = one_class().fit(X)
    assert fitted.dual_gap_ <= 1e-4
    assert (fitted.predict(X) == -1).mean() == pytest.approx(0.2, abs=0.03)
    inside = fitted.score_samples(X) - fitted.offset_
    np.testing.assert_allclose(inside, fitted.decision_function(X), atol=1e-12)


def test_order_threads_and_blocks_do_not_matter():
    X, y = make_rows()
    order = np.argsort(y, kind="stable")
    one = classifier(n_jobs=1).fit(X, y)
    assert_same_optimum(one, classifier().fit(X[order], y[order]))
    assert classifier(n_jobs=2).fit(X, y).coef_.tolist() == one.coef_.tolist()
    assert_same_optimum(classifier(blocks=5, cache_frac="auto", rounds="3,1").fit(X, y), one)


def test_matrix_format_does_not_matter():
    X, y = make_rows()
    expected = classifier().fit(X, y).coef_.tolist()
    csr = scipy.sparse.csr_array(X)
    halves = (np.repeat(csr.data / 2, 2), np.repeat(csr.indices, 2), 2 * csr.indptr)
    wide = scipy.sparse.csr_matrix(X)
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    for matrix in (
        csr, scipy.sparse.coo_array(X), csr[:, ::-1][:, ::-1],
        scipy.sparse.csr_matrix(halves, csr.shape), wide, np.asfortranarray(X),
        X.astype(np.float32),
    ):  # fmt: skip
        fitted = classifier().fit(matrix, y)
        assert fitted.coef_.tolist() == expected
        assert fitted.predict(matrix).tolist() == fitted.predict(X).tolist()


def test_values_are_rounded_only_on_request():
    X, y = make_rows(classes=2)
    exact, X = classifier().fit(X, y), X * (1 + 1e-9)
    assert classifier(dtype="float32").fit(X, y).coef_.tolist() == exact.coef_.tolist()
    assert classifier().fit(X, y).coef_.tolist() != exact.coef_.tolist()


@pytest.mark.parametrize("make", [classifier, regressor])
def test_paths_and_weights_match_rows(make, tmp_path):
    X, y = make_rows(classes=3 if make is classifier else 0)
    text, store = tmp_path / "d.svm", tmp_path / "d.sbm"
    dump_svmlight_file(X, y, str(text), zero_based=True)
    sbm.split(text, store, blocks=3)
    weight = np.arange(len(y)) % 3
    some, twice = weight > 0, weight == 2  # 2 is a row twice, 0 is none
    expected, weighted = make().fit(X, y), make().fit(X, y, weight)
    copies = make().fit(np.vstack([X[some], X[twice]]), np.concatenate([y[some], y[twice]]))
    assert_same_optimum(weighted, copies)
    assert make().fit(X, y, np.ones(len(y))).coef_.tolist() == expected.coef_.tolist()
    for path in (text, str(store)):
        found = make()
        found.feature_names_in_ = np.array(["a"])  # of an earlier fit of a table
        found.fit(path)
        assert not hasattr(found, "feature_names_in_")
        assert_same_optimum(found, expected)
        assert found.predict(X).shape == y.shape
        assert_same_optimum(make().fit(path, sample_weight=weight), weighted)
    if make is classifier:
        assert (found.classes_.tolist(), found.classes_.dtype.kind) == ([0, 1, 2], "i")
        sbm.split((X, np.array(["a", "b", "c"])[y]), store, force=True)
        assert make().fit(store).predict(X).tolist() == ["abc"[k] for k in found.predict(X)]


def test_labels_of_any_kind():
    X, y = make_rows()
    expected = classifier().fit(X, y)
    for labels in (["c", "a", "b"], [-7, 2, 0], [True, False, True]):
        kept = y < 2 if isinstance(labels[0], bool) else slice(None)
        values, codes = np.unique(labels, return_inverse=True)
        fitted = classifier().fit(X[kept], np.array(labels)[y[kept]])
        assert fitted.classes_.tolist() == values.tolist()
        assert set(fitted.predict(X).tolist()) <= set(labels)
        if len(values) == 3:  # columns are those of the labels in ascending order
            np.testing.assert_allclose(fitted.coef_[codes], expected.coef_, atol=1e-2)
    assert classifier().fit(X, np.array([-7, 2, 0])[y]).model_.labels == [-7, 0, 2]
    words = classifier().fit(X, np.array(["c", "a", "b"])[y])
    assert (words.model_.to_sklearn().predict(X) == words.predict(X)).all()


def test_class_weights_go_by_label():
    X, y = make_rows(classes=2)
    names = np.array(["no", "yes"])[y]
    weighted = classifier(class_weight={"yes": 2.5}).fit(X, names)
    assert_same_optimum(weighted, classifier().fit(X, names, np.where(y == 1, 2.5, 1)))
    balanced = dict(zip(["no", "yes"], len(y) / (2 * np.bincount(y)), strict=True))
    expected = classifier(class_weight=balanced).fit(X, names)
    assert_same_optimum(classifier(class_weight="balanced").fit(X, names), expected)


@pytest.mark.parametrize(
    ("labels", "given"),
    [
        (["1", "2"], {"1": 1, "2": 3}), (["1", "2"], {1: 1, 2: 3}), (["01", "2.0"], {"2": 3}),
        (["1", "2"], {2.0: 3}), (["1", "2"], {np.int8(2): np.float32(3)}), ([1, 2], {"2": "3"}),
        ([1.0, 2.0], {"2": 3}), ([False, True], {True: 3}), ([False, True], {"True": 3}),
        ([False, True], {1: 3, 0: 1.0}), (["a", "b"], {"a": 1, "b": 3, "c": 9}),
        (["2.0", "2"], {"2": 3}), ([-1, 10**15], {10**15: 3}), ([-1, 10**15], {"1e15": 3}),
    ],
)  # fmt: skip
def test_class_weights_match_labels_by_value(labels, given):
    X, y = make_rows(classes=2)
    names = np.array(labels)[y]
    expected = classifier().fit(X, names, np.where(names == labels[1], 3, 1))
    assert_same_optimum(classifier(class_weight=given).fit(X, names), expected)
    classifier(class_weight=given).partial_fit(X, names, sorted(set(labels)))


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        ({"3": 2}, r"label '3', but the labels are '1', '2'$"), ({"x": 1, "1": 2}, "label 'x'"),
        ({1: 2, "1": 3}, "label 1 twice"), ({"1": -1}, "label 1 is -1"),
        ({"2": "x"}, "label 2 is 'x'"), ({"1": None}, "label 1 is None"),
        ([1, 2], r"class_weight is \[1, 2\]"), ({"1": np.nan}, "nan"), ({None: 2}, "label None"),
    ],
)  # fmt: skip
def test_other_class_weights_are_refused(given, facts):
    X, y = make_rows(classes=2)
    with pytest.raises(SettingsError, match=facts):
        classifier(class_weight=given).fit(X, np.array(["1", "2"])[y])


def test_probabilities_exist_only_where_defined():
    X, y = make_rows()
    assert not hasattr(SBMClassifier(), "predict_proba")
    for params in ({"loss": "log_loss"}, {"probability": True}):
        fitted = SBMClassifier(**params, **SINGLE).fit(X, y)
        p = fitted.predict_proba(X)
        assert p.shape == (len(y), 3)
        assert p.tolist() == fitted.model_.predict_proba(scipy.sparse.csr_matrix(X)).tolist()
        np.testing.assert_allclose(np.exp(fitted.predict_log_proba(X)), p)


# ----------------------------------------------------------------------------- fit and its refusals


def test_unconverged_fit_warns(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    X, y = make_rows()
    with pytest.warns(ConvergenceWarning, match=r" 1 pass, above tol=1e-09") as warned:
        fitted = SBMClassifier(max_iter=1, rounds=1, tol=1e-9, **SINGLE).fit(X, y)
    assert warned[0].filename == __file__  # of the caller
    assert fitted.n_iter_ == 1
    assert fitted.dual_gap_ > 1e-9
    assert list(tmp_path.iterdir()) == []  # temporary files are removed


@pytest.mark.parametrize(
    ("estimator", "facts"),
    [
        (classifier("hing"), "loss 'hing'.*'hinge'"), (regressor("hinge"), "regression.*hinge"),
        (classifier("epsilon_insensitive"), "classification.*epsilon_insensitive"),
        (classifier(C=-1), "C is -1"), (classifier(intercept_scaling=0), "intercept_scaling is 0"),
        (classifier(intercept_scaling="x"), "intercept_scaling is 'x'; .* number above 0"),
        (SBMRegressor(intercept_scaling=None), "intercept_scaling is None; .* number above 0"),
        (classifier(intercept_scaling=[1]), r"intercept_scaling is \[1\]"),
        (classifier(dtype="int8"), "dtype is 'int8'.*float64"),
    ],
    ids=str,
)  # fmt: skip
def test_bad_parameters_are_refused(estimator, facts):
    X, y = make_rows()
    more = {"classes": [0, 1, 2]} if isinstance(estimator, SBMClassifier) else {}
    for call in (lambda: estimator.fit(X, y), lambda: estimator.partial_fit(X, y, **more)):
        with pytest.raises(ValueError, match=facts):
            call()


def test_parameters_that_a_penalty_ignores():
    X, y = make_rows()
    for params in ({"penalty": "l1"}, {"penalty": "l2"}, {"penalty": "elasticnet"}):
        estimator = SBMClassifier("log_loss", l1_ratio=0.9, random_state=0, **params).fit(X, y)
        assert hasattr(estimator, "partial_fit") == (params["penalty"] == "l2")
    assert not hasattr(SBMRegressor(scale="std"), "partial_fit")
    assert not hasattr(SBMRegressor(intercept_scaling=np.inf), "partial_fit")
    assert hasattr(SBMRegressor(fit_intercept=False, intercept_scaling=np.inf), "partial_fit")


def test_features_have_the_names_of_columns():
    pandas = pytest.importorskip("pandas")
    X, y = make_rows()
    frame = pandas.DataFrame(X.toarray() if scipy.sparse.issparse(X) else X)
    frame.columns = [f"größe {k}" for k in range(frame.shape[1])]
    for estimator in (classifier().fit(frame, y), classifier().partial_fit(frame, y, [0, 1, 2])):
        names = {name for label in (0, 1, 2) for name, _ in estimator.model_.top(2, label)}
        assert names <= set(frame.columns)
    assert classifier().fit(X, y).model_.names is None


def test_path_of_a_table(tmp_path):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"city": ["a", "b"] * 20, "zip": [1, 2] * 20, "id": range(40)})
    table["w"], table["kind"] = 2.0, ["yes", "no"] * 20
    table.to_csv(tmp_path / "t.csv", index=False)
    path, columns = tmp_path / "t.csv", {"categorical": ["zip"], "exclude": ["id"]}
    estimator = classifier("log_loss").fit(path, "kind", "w", **columns)
    assert estimator.classes_.tolist() == ["no", "yes"]
    assert {name for name, _ in estimator.model_.top(9)} == {"city=a", "zip=1"}
    assert estimator.score(table, table["kind"]) == 1.0
    assert estimator.predict_proba(table).shape == (40, 2)
    for arguments, more, facts in (
        ((path,), {}, "choose the label column with y$"),
        ((path, "kid"), {}, "no column 'kid' for y; did you mean 'kind'"),
        ((path, "kind"), {"exclude": ["idd"]}, "for exclude; did you mean 'id'"),
        ((path, [1, 0]), {}, "^y .* name of a column"),
        ((np.ones((2, 2)), [0, 1]), {"exclude": ["id"]}, "exclude applies to the path of a table"),
    ):
        with pytest.raises(DataError, match=facts):
            classifier().fit(*arguments, **more)


def test_errors_name_parameters():
    X, y = make_rows()
    for params, facts in (
        ({"max_iter": 0}, "^max_iter is 0"), ({"probability": 3}, "^probability is 3"),
        ({"penalty": "l1"}, "use loss='log_loss'"), ({"mem": "9MB"}, "mem='.*MB'"),
        ({"loss": "crammer_singer", "intercept_scaling": np.inf}, "^intercept_scaling .*_singer"),
    ):  # fmt: skip
        with pytest.raises(SbmError, match=facts):
            SBMClassifier(**params).fit(X, y)


def test_fit_writes_nothing_to_the_disk_itself(monkeypatch, tmp_path):
    X, y = make_rows()
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    classifier().fit(X, y)
    assert not synced
    sbm.split([(X, y)], tmp_path / "a.sbm")
    assert synced


def test_bad_data_is_refused(tmp_path):
    X, y = make_rows()
    hashed, plain, missing = (tmp_path / f"{name}.svm" for name in ("hashed", "plain", "missing"))
    plain.write_text("1 1:1\n-1 3:1\n")
    hashed.write_text("1 9007199254740993:1\n-1 3:1\n")
    balanced = classifier(class_weight="balanced")
    for call, error, facts in (
        (lambda: classifier().fit(X, np.ones(80)), DataError, r"1\.0$"),
        (lambda: classifier().fit(X, y, np.zeros(80)), DataError, "weights are zero"),
        (lambda: classifier().fit(X, y, [1, 1, 1]), DataError, r"\(3,\).* 80 rows"),
        (lambda: classifier().fit(X, y, [1, *[-1] * 79]), DataError, r"row 1 is -1\.0"),
        (lambda: classifier().fit(plain, sample_weight=[[1]]), DataError, r"\(1, 1\)"),
        (lambda: balanced.partial_fit(X, y, [0, 1, 2]), SettingsError, "class_weight balanced"),
        (lambda: classifier().partial_fit(X, y, [0, 1]), DataError, "label 2"),
        (lambda: classifier().fit(missing), DataError, r"missing\.svm"),
        (lambda: classifier().fit(hashed, y), DataError, r"^y .*hashed\.svm"),
        (lambda: classifier().fit(hashed), MemoryPlanError, r"coef_.* 9007199254740993 .*2 GB"),
        (lambda: classifier(mem="1MB").fit(X, y), MemoryPlanError, "mem='1MB'"),
        (lambda: classifier(mem="50MB").partial_fit(X, y, [0, 1, 2]), MemoryPlanError, "partial_"),
    ):  # fmt: skip
        with pytest.raises(error, match=facts):
            call()


# ----------------------------------------------------------------------------------- batch by batch


def test_batch_is_learned_as_a_stream_block(tmp_path):
    X, y = make_rows(300, classes=2)
    X[0] = 1  # the first row numbers the features
    text, settings = tmp_path / "d.svm", sbm.Settings(C=0.1, bias=1.0, seed=5, mem="400MB")
    dump_svmlight_file(X, y, str(text), zero_based=True)
    sbm.stream(text, tmp_path / "d.model", settings)
    with Run.resume(tmp_path / "d.model.run", []) as (run, _):
        expected = run.read_state(["W-0"])["W-0"]  # not polished yet, as it may be resumed
    sparse = scipy.sparse.csr_array(X)
    learner = Incremental(settings, [0.0, 1.0], 6)
    model = learner.learn(Rows(
        sparse.indptr[:-1].astype(np.int64), np.diff(sparse.indptr).astype(np.int32),
        sparse.indices.astype(np.int32), sparse.data.astype(np.float32), y.astype(np.int32),
    ))  # fmt: skip
    assert [*model.W[:, 0], *model.bias_weights] == expected[:, 0].tolist()
    assert learner.n_rows == 300


@pytest.mark.parametrize(
    ("estimator", "classes"),
    [
        (SBMClassifier("hinge"), 2), (SBMClassifier("log_loss"), 3),
        (SBMClassifier("crammer_singer"), 3), (SBMRegressor("squared_epsilon_insensitive"), 0),
        (SBMOneClass(0.2), 0),
    ],
    ids=str,
)  # fmt: skip
def test_pickling_between_batches_changes_nothing(estimator, classes):
    X, y = make_rows(1500, classes=classes)
    X = X.astype(np.float32) + 3 * isinstance(estimator, SBMOneClass)
    more = {"classes": range(classes)} if classes else {}
    estimator.set_params(random_state=0, **({"C": 0.1} if classes else {}))
    other = pickle.loads(pickle.dumps(estimator))
    for k in range(0, 1500, 400):
        part = X[k : k + 400], y[k : k + 400]
        estimator.partial_fit(*part, **more)
        other = pickle.loads(pickle.dumps(other.partial_fit(*part, **more)))
        assert other.coef_.tolist() == estimator.coef_.tolist()
    assert not hasattr(estimator, "dual_gap_")
    assert estimator.model_.info["rows"] == 1500
    if isinstance(estimator, SBMOneClass):
        assert (estimator.predict(X) == -1).mean() == pytest.approx(0.2, abs=0.1)
    else:
        optimum = pickle.loads(pickle.dumps(estimator)).fit(X, y)
        assert estimator.score(X, y) > optimum.score(X, y) - 0.04


def test_batches_may_grow_and_change_type():
    X, y = make_rows(2000, classes=2)
    X[:1000] = X[:1000] != 0  # all values are 1
    X[:1000, 1:] = 0
    estimator = SBMClassifier(random_state=0)
    for first, last in ((0, 10), (10, 1000), (1000, 2000)):
        estimator.partial_fit(X[first:last], y[first:last], [0, 1])
    estimator.partial_fit(X[1500:], y[1500:], sample_weight=np.arange(500) % 4)
    estimator.partial_fit(X[1000:] * (1 + 1e-9), y[1000:])  # no more float32
    assert estimator.model_.info["rows"] == 3375
    assert estimator.score(X[1000:], y[1000:]) > 0.85


def test_batch_weights_are_copies_of_rows():
    X, y = make_rows(classes=2)
    weight = np.arange(len(y)) % 3
    some, twice = weight > 0, weight == 2
    params = {"rounds": 2000, "C": 0.1, "random_state": 0}
    one = SBMClassifier("squared_hinge", **params).partial_fit(X, y, [0, 1], weight)
    two = SBMClassifier("squared_hinge", **params).partial_fit(
        np.vstack([X[some], X[twice]]), np.concatenate([y[some], y[twice]]), [0, 1]
    )
    np.testing.assert_allclose(one.coef_, two.coef_, atol=1e-6)
    nothing = SBMClassifier(**params).partial_fit(X, y, [0, 1], np.zeros(len(y)))
    assert not nothing.coef_.any()


def test_fit_and_partial_fit_do_not_mix():
    X, y = make_rows(classes=2)
    estimator = SBMClassifier(random_state=0).partial_fit(X, y, [0, 1])
    with pytest.raises(SettingsError, match=r"C is 3.0.* 1.0"):
        estimator.set_params(C=3.0).partial_fit(X, y)
    alone = SBMClassifier(C=3.0, random_state=0).fit(X, y)
    assert estimator.fit(X, y).coef_.tolist() == alone.coef_.tolist()
    with pytest.warns(UserWarning, match="partial_fit"):
        estimator.partial_fit(X, y)
    assert not hasattr(estimator, "dual_gap_")


def test_large_batch_is_cut_into_blocks():
    X, y = make_rows(20_000, classes=2)
    estimator = SBMClassifier(mem="94MB", random_state=0).partial_fit(X, y, [0, 1])
    assert estimator.model_.info["stream"]["blocks"] > 1
    assert estimator.score(X, y) > 0.85


# ----------------------------------------------------------------------------- models as estimators


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        (Case("hinge", 2), "LinearSVC"), (Case("crammer_singer", 2), "LinearSVC"),
        (Case("crammer_singer", 3), "LinearSVC"), (Case("log_loss", 2), "LogisticRegression"),
        (Case("log_loss", 3), "LinearSVC"), (Case("epsilon_insensitive", 0), "LinearSVR"),
        (Case("squared_error", 0), "Ridge"), (Case("one_class", 1, {"nu": 0.2}), "SGDOneClassSVM"),
    ],
    ids=str,
)  # fmt: skip
def test_model_to_sklearn_predicts_the_same(case, kind, tmp_path):
    X, y = case.rows()
    bias = {} if case.loss == "one_class" else {"bias": 2.0, "C": 0.25}
    model, _, _ = fit(make_store(tmp_path, X, y), tol=0.1, **case.options, **bias)
    matrix = scipy.sparse.csr_matrix(np.hstack([np.zeros((len(X), 1)), X]))  # ids from 1
    copy = pickle.dumps(model.to_sklearn())
    assert b"sbm" not in copy
    estimator = pickle.loads(copy)
    assert type(estimator).__name__ == kind
    assert estimator.n_features_in_ == 7
    expected = {"C": 0.25, "alpha": 2.0, "nu": 0.2, "epsilon": 0.1}
    assert all(estimator.get_params().get(name, v) == v for name, v in expected.items())
    np.testing.assert_allclose(estimator.predict(matrix), model.predict(matrix), atol=1e-12)
    if case.labels == 3:
        scores = estimator.decision_function(matrix)
        order = np.argsort(model.labels)
        np.testing.assert_allclose(scores, model.decision_function(matrix)[:, order], atol=1e-12)
    if kind == "LogisticRegression":
        p = model.predict_proba(matrix)
        np.testing.assert_allclose(estimator.predict_proba(matrix), p, atol=1e-12)


def test_liblinear_models_become_estimators(tmp_path):
    (tmp_path / "m").write_text(
        "solver_type L2R_L2LOSS_SVC\nnr_class 2\nlabel 1 -1\nnr_feature 2\nbias 1\nw\n1\n-2\n0.5\n"
    )
    estimator = read_model(tmp_path / "m").to_sklearn()
    assert estimator.classes_.tolist() == [-1, 1]
    assert estimator.decision_function([[0, 1, 0], [0, 0, 1]]).tolist() == [1.5, -1.5]
    two_columns = sbm.Model(np.array([1]), np.array([[2.0, 0.5]]), [7.0, 3.0]).to_sklearn()
    assert two_columns.classes_.tolist() == [3, 7]
    assert two_columns.decision_function([[0, 1]]).tolist() == [1.5]


def test_estimator_columns_hold_every_id(monkeypatch):
    model = sbm.Model(np.array([3, 7]), np.ones((2, 1)), [0.5, 1.0])
    assert model.to_sklearn().coef_.tolist() == [[0, 0, 0, 1, 0, 0, 0, 1]]
    assert model.to_sklearn(n_features=8).coef_.shape == (1, 8)
    assert model.to_sklearn().classes_.tolist() == [0.5, 1.0]
    with pytest.raises(DataError, match=r"id 7.* 7; .*n_features=8"):
        model.to_sklearn(n_features=7)
    with pytest.raises(DataError, match=r"9223372036854775807.*memory"):
        replace(model, ids=np.array([3, 2**63 - 1])).to_sklearn()
    monkeypatch.setitem(sys.modules, "sklearn.base", None)  # as if it were not installed
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    monkeypatch.delitem(sys.modules, "sbm.sklearn")
    with pytest.raises(ImportError, match=r"scikit-learn 1\.6"):
        importlib.import_module("sbm.sklearn")
    with pytest.raises(SettingsError, match="scikit-learn"):
        model.to_sklearn()


def test_text_without_id_0_starts_at_1(tmp_path):
    X, y = load_breast_cancer(return_X_y=True)
    X = X / X.max(axis=0)
    for first, n_columns in ((1, 30), (0, 30)):
        text = tmp_path / f"{first}.svm"
        dump_svmlight_file(X, y, str(text), zero_based=first == 0)
        estimator = SBMClassifier("log_loss", C=10.0, mem="400MB").fit(text)
        assert estimator.n_features_in_ == n_columns
        assert estimator.score(X, y) > 0.95
        assert (estimator.predict_proba(X).argmax(axis=1) == estimator.predict(X)).all()
        assert sbm.predict(estimator.model_, text)["accuracy"] == estimator.score(X, y)
        with pytest.raises(ValueError, match="31 features"):
            estimator.predict(np.column_stack([np.zeros(len(X)), X]))
    store = tmp_path / "mixed.sbm"  # columns of a matrix count from 0, whatever stands beside it
    sbm.split(tmp_path / "1.svm", store)
    sbm.split((np.column_stack([np.zeros(len(X)), X]), y), store, append=True, name="matrix")
    estimator = SBMClassifier("log_loss", C=10.0, mem="400MB").fit(store)
    assert estimator.n_features_in_ == 31
