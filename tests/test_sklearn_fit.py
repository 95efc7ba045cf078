"""What the estimators find: the optimum, from rows in memory as from files, and batch by batch."""

import importlib
import pickle
import sys
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
from families import CASES, make_store, row_losses
from helpers import fit
from sklearn.datasets import dump_svmlight_file
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC, LinearSVR

import sbm
from sbm.errors import DataError, MemoryPlanError, SettingsError
from sbm.interop.liblinear import read_model
from sbm.jobs.streaming.incremental import Incremental
from sbm.probabilities import probabilities
from sbm.rows import Rows
from sbm.sklearn import SBMClassifier, SBMOneClass, SBMRegressor
from sbm.store.run import Run

C, TOL = 0.5, 1e-6


def rows(n=80, classes=3, seed=0):
    """Rows whose values are the same in float32, and labels; targets where there are no classes."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, 6)).astype(np.float32).astype(float)
    X[random.random(X.shape) < 0.3] = 0
    scores = X @ random.normal(size=(6, max(1, classes))) + 0.5
    scores += 0.5 * random.normal(size=scores.shape)
    return X, scores.argmax(axis=1) if classes else scores[:, 0].round(3)


def classifier(loss="squared_hinge", **params):
    return SBMClassifier(loss, **{"C": C, "tol": TOL, "max_iter": 400, "random_state": 0} | params)


def regressor(loss, **params):
    return SBMRegressor(loss, C=C, tol=TOL, max_iter=400, random_state=0, **params)


def flat(estimator):
    """Weights and intercept as one vector, the latter as that of a feature."""
    scaling = getattr(estimator, "intercept_scaling", 1.0)
    return np.concatenate([np.ravel(estimator.coef_), np.ravel(estimator.intercept_) / scaling])


def assert_same_optimum(first, second):
    """Two certified ones of one problem: |w - w*| <= sqrt(2 gap)."""
    gaps = [estimator.model_.certificate["gap"] for estimator in (first, second)]
    distance = np.linalg.norm(flat(first) - flat(second))
    assert distance <= np.sqrt(2 * gaps[0]) + np.sqrt(2 * gaps[1]) + 1e-9
    assert np.linalg.norm(flat(first)) > 10 * distance


# --------------------------------------------------------------------------- against scikit-learn

SVC = {"C": C, "tol": 1e-9, "max_iter": 1_000_000, "dual": True, "random_state": 0}
SVR = {"C": C, "tol": 1e-9, "max_iter": 1_000_000, "dual": True, "epsilon": 0.1, "random_state": 0}
PEERS = [
    (classifier("hinge"), LinearSVC(loss="hinge", **SVC), 2),
    (classifier("squared_hinge"), LinearSVC(loss="squared_hinge", **SVC), 3),
    (classifier("squared_hinge", intercept_scaling=3.0),
     LinearSVC(loss="squared_hinge", intercept_scaling=3.0, **SVC), 2),
    (classifier("squared_hinge", fit_intercept=False),
     LinearSVC(loss="squared_hinge", fit_intercept=False, **SVC), 2),
    (classifier("crammer_singer"), LinearSVC(multi_class="crammer_singer", **SVC), 3),
    (classifier("log_loss"), LogisticRegression(C=C, tol=1e-9, solver="liblinear"), 2),
    (regressor("epsilon_insensitive"), LinearSVR(**SVR), 0),
    (regressor("squared_epsilon_insensitive"),
     LinearSVR(loss="squared_epsilon_insensitive", **SVR), 0),
    (regressor("squared_error", fit_intercept=False), Ridge(1 / (2 * C), fit_intercept=False), 0),
]  # fmt: skip


@pytest.mark.parametrize(
    ("estimator", "peer", "classes"), PEERS, ids=[f"{e.loss}-{n}" for e, _, n in PEERS]
)
def test_scikit_learn_finds_the_same_optimum(estimator, peer, classes):
    X, y = rows(classes=classes)
    estimator.fit(X, y)
    peer.fit(X, y)
    certificate = estimator.model_.certificate

    def objective(fitted):
        z = X @ np.atleast_2d(fitted.coef_).T + np.ravel(fitted.intercept_)
        each = row_losses(estimator.loss, z, y, list(range(classes)))
        return 0.5 * (flat(fitted) ** 2).sum() + C * each.sum()

    assert estimator.dual_gap_ == certificate["relative_gap"] <= TOL
    assert objective(estimator) == pytest.approx(certificate["primal"], rel=1e-9)
    assert certificate["dual"] <= objective(peer) * (1 + 1e-9)
    assert objective(estimator) <= objective(peer) * (1 + TOL) + 1e-9
    assert np.linalg.norm(flat(estimator) - flat(peer)) <= np.sqrt(2 * certificate["gap"]) + 1e-3
    assert estimator.coef_.shape == peer.coef_.shape
    np.testing.assert_array_equal(
        estimator.predict(X) if classes else 0, peer.predict(X) if classes else 0
    )


def test_weston_watkins_and_least_squares_classify():
    X, y = rows()
    for loss in ("weston_watkins", "squared_error"):
        fitted = classifier(loss).fit(X, y)
        assert fitted.dual_gap_ <= TOL
        assert fitted.score(X, y) > 0.8


def test_a_share_nu_of_the_rows_lies_outside():
    X = rows(200)[0].astype(np.float32) + 3
    fitted = SBMOneClass(0.2, tol=1e-4, max_iter=400, random_state=0).fit(X)
    assert fitted.dual_gap_ <= 1e-4
    assert (fitted.predict(X) == -1).mean() == pytest.approx(0.2, abs=0.03)
    inside = fitted.score_samples(X) - fitted.offset_
    np.testing.assert_allclose(inside, fitted.decision_function(X), atol=1e-12)


# ----------------------------------------------------------------------------- what does not matter


def test_the_order_of_rows_does_not_matter():
    X, y = rows()
    order = np.argsort(y, kind="stable")
    assert_same_optimum(classifier().fit(X, y), classifier().fit(X[order], y[order]))


def test_threads_and_blocks_do_not_matter():
    X, y = rows()
    one = classifier(n_jobs=1).fit(X, y)
    assert classifier(n_jobs=2).fit(X, y).coef_.tolist() == one.coef_.tolist()
    assert_same_optimum(classifier(blocks=5, cache_frac="auto", rounds="3,1").fit(X, y), one)


def test_any_matrix_of_the_same_numbers_will_do():
    X, y = rows()
    expected = classifier().fit(X, y).coef_.tolist()
    csr = scipy.sparse.csr_array(X)
    shuffled = csr[:, ::-1][:, ::-1]
    twice = scipy.sparse.csr_matrix(
        (np.repeat(csr.data / 2, 2), np.repeat(csr.indices, 2), 2 * csr.indptr), csr.shape
    )
    wide = scipy.sparse.csr_matrix(X)
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    for matrix in (
        csr, scipy.sparse.csc_matrix(X), scipy.sparse.coo_array(X), scipy.sparse.lil_matrix(X),
        shuffled, twice, wide, np.asfortranarray(X), X.astype(np.float32),
    ):  # fmt: skip
        fitted = classifier().fit(matrix, y)
        assert fitted.coef_.tolist() == expected
        assert fitted.predict(matrix).tolist() == fitted.predict(X).tolist()


def test_values_are_rounded_only_where_that_was_asked_for():
    X, y = rows(classes=2)
    exact, X = classifier().fit(X, y), X * (1 + 1e-9)
    assert classifier(dtype="float32").fit(X, y).coef_.tolist() == exact.coef_.tolist()
    assert classifier().fit(X, y).coef_.tolist() != exact.coef_.tolist()


@pytest.mark.parametrize("make", [classifier, lambda: regressor("squared_epsilon_insensitive")])
def test_a_path_gives_what_its_rows_give(make, tmp_path):
    X, y = rows(classes=3 if make is classifier else 0)
    expected = make().fit(X, y)
    text, store = tmp_path / "d.svm", tmp_path / "d.sbm"
    dump_svmlight_file(X, y, str(text), zero_based=True)
    sbm.split(text, store, blocks=3)
    weights = np.arange(len(y)) % 3
    weighted = make().fit(X, y, weights)
    for path in (text, str(store)):
        found = make().fit(path)
        assert_same_optimum(found, expected)
        assert found.predict(X).shape == y.shape
        assert_same_optimum(make().fit(path, sample_weight=weights), weighted)
    if make is classifier:
        assert found.classes_.tolist() == [0, 1, 2]
        assert found.classes_.dtype.kind == "i"
    with pytest.raises(
        DataError, match=r"^y was given with the path .*, which has the labels; leave"
    ):
        make().fit(store, y)


# -------------------------------------------------------------------------------- weights and names


@pytest.mark.parametrize("make", [classifier, lambda: regressor("squared_epsilon_insensitive")])
def test_a_weight_of_2_is_a_row_twice_and_0_is_none(make):
    X, y = rows(classes=3 if make is classifier else 0)
    weight = np.arange(len(y)) % 3
    some, twice = weight > 0, weight == 2
    copies = make().fit(np.vstack([X[some], X[twice]]), np.concatenate([y[some], y[twice]]))
    assert_same_optimum(make().fit(X, y, weight), copies)
    ones = make().fit(X, y, np.ones(len(y)))
    assert ones.coef_.tolist() == make().fit(X, y).coef_.tolist()


def test_labels_may_be_of_any_kind():
    X, y = rows()
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


def test_class_weights_go_by_label():
    X, y = rows(classes=2)
    names, factors = np.array(["no", "yes"])[y], {"yes": 2.5}
    weighted = classifier(class_weight=factors).fit(X, names)
    assert_same_optimum(weighted, classifier().fit(X, names, np.where(y == 1, 2.5, 1)))
    counts = np.bincount(y)
    balanced = dict(zip(["no", "yes"], len(y) / (2 * counts), strict=True))
    assert_same_optimum(
        classifier(class_weight="balanced").fit(X, names),
        classifier(class_weight=balanced).fit(X, names),
    )


# --------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("estimator", "sentence"),
    [
        (classifier("hing"), "^unknown loss 'hing', known are .*did you mean 'hinge'"),
        (classifier("epsilon_insensitive"), "^task is classification, but epsilon_insensitive is"),
        (regressor("hinge"), "^task is regression, but hinge is for classification$"),
        (classifier(C=-1), "^C is -1; it must be a finite number above 0$"),
        (classifier(intercept_scaling=0), "^intercept_scaling is 0; it must be above 0"),
        (classifier(dtype="int8"), "^dtype is 'int8'; it must be auto, float32 or float64$"),
    ],
    ids=str,
)
def test_parameters_that_cannot_be_are_refused(estimator, sentence):
    X, y = rows()
    with pytest.raises(ValueError, match=sentence):
        estimator.fit(X, y)
    with pytest.raises(ValueError, match=sentence):
        estimator.partial_fit(X, y, **{} if isinstance(estimator, SBMRegressor) else {"classes": y})


def test_data_that_cannot_be_is_refused(tmp_path):
    X, y = rows()
    with pytest.raises(DataError, match=r"^classes are told apart by at least two of them, and "):
        classifier().fit(X, np.ones(len(y)))
    with pytest.raises(
        DataError, match=r"^all sample weights are zero; give at least one row a weight"
    ):
        classifier().fit(X, y, np.zeros(len(y)))
    with pytest.raises(SettingsError, match=r"^class_weight balanced needs the number of rows of"):
        classifier(class_weight="balanced").partial_fit(X, y, [0, 1, 2])
    with pytest.raises(DataError, match=r"^label 2 is none of classes; name all of them with the"):
        classifier().partial_fit(X, y, [0, 1])
    with pytest.raises(
        DataError, match=r"^sample_weight has shape \(3,\), and there are 80 rows; a"
    ):
        classifier().fit(X, y, [1, 1, 1])
    with pytest.raises(DataError, match=r"^sample_weight of row 1 is -1\.0; a finite number of at"):
        classifier().fit(X, y, [1, *[-1] * 79])
    with pytest.raises(DataError, match=r"missing\.svm does not exist; give LIBSVM text files"):
        classifier().fit(tmp_path / "missing.svm")
    with pytest.raises(MemoryPlanError, match=r"--mem 1 MB is too little"):
        classifier(mem="1MB").fit(X, y)


def test_ids_that_are_hashes_are_refused_before_any_training(tmp_path):
    text = tmp_path / "hashed.svm"
    text.write_text("1 9007199254740993:1\n-1 3:1\n")
    with pytest.raises(
        MemoryPlanError, match=r"^feature ids reach 9007199254740993, and coef_ with"
    ):
        classifier().fit(text)


# --------------------------------------------------------------------------------- batch by batch


def batches(X, y, n):
    return [(X[k : k + n], y[k : k + n]) for k in range(0, len(y), n)]


def test_a_batch_is_learned_as_a_stream_learns_a_block(tmp_path):
    X, y = rows(300, classes=2)
    X[0] = 1  # the first row numbers the features
    text, settings = tmp_path / "d.svm", sbm.Settings(C=0.1, bias=1.0, seed=5, mem="400MB")
    dump_svmlight_file(X, y, str(text), zero_based=True)
    sbm.stream(text, tmp_path / "d.model", settings)
    with Run.take_up(tmp_path / "d.model.run", []) as (run, _):
        expected = run.read_state(["W-0"])["W-0"]  # not polished yet, as it may go on
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
        (SBMClassifier("hinge"), 2), (SBMClassifier("squared_hinge"), 3),
        (SBMClassifier("log_loss"), 3), (SBMClassifier("crammer_singer"), 3),
        (SBMRegressor("squared_epsilon_insensitive"), 0), (SBMOneClass(0.2), 0),
    ],
    ids=str,
)  # fmt: skip
def test_one_pickled_between_two_batches_goes_on_as_if_it_was_not(estimator, classes):
    X, y = rows(3000, classes=classes)
    X = X.astype(np.float32) + 3 * isinstance(estimator, SBMOneClass)
    more = {"classes": range(classes)} if classes else {}
    estimator.set_params(random_state=0, C=0.1) if classes else estimator.set_params(random_state=0)
    other = pickle.loads(pickle.dumps(estimator))
    for part in batches(X, y, 700):
        estimator.partial_fit(*part, **more)
        other = pickle.loads(pickle.dumps(other.partial_fit(*part, **more)))
        assert other.coef_.tolist() == estimator.coef_.tolist()
    assert not hasattr(estimator, "dual_gap_")
    if isinstance(estimator, SBMOneClass):
        assert (estimator.predict(X) == -1).mean() == pytest.approx(0.2, abs=0.1)
    else:
        optimum = pickle.loads(pickle.dumps(estimator)).fit(X, y)
        assert estimator.score(X, y) > optimum.score(X, y) - 0.03


def test_batches_may_become_larger_longer_real_valued_and_weighted():
    X, y = rows(2000, classes=2)
    X[:1000] = X[:1000] != 0  # of 1 alone
    X[:1000, 1:] = 0
    estimator = SBMClassifier(random_state=0)
    for first, last in ((0, 10), (10, 1000), (1000, 2000)):
        estimator.partial_fit(X[first:last], y[first:last], [0, 1])
    longer = pickle.loads(pickle.dumps(estimator))
    estimator.partial_fit(X[1500:], y[1500:], sample_weight=np.arange(500) % 4)
    estimator.partial_fit(X[:5], y[:5])
    assert estimator.model_.info["rows"] == 2380
    assert estimator.score(X[1000:], y[1000:]) > 0.85
    longer.partial_fit(X[1000:] * (1 + 1e-9), y[1000:])  # no more float32
    assert longer.score(X[1000:], y[1000:]) > 0.85


def test_weights_of_a_batch_are_copies_of_its_rows():
    X, y = rows(classes=2)
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


def test_batches_keep_their_settings_and_fit_is_another_matter():
    X, y = rows(classes=2)
    estimator = SBMClassifier(random_state=0).partial_fit(X, y, [0, 1])
    with pytest.raises(
        SettingsError, match=r"^C is 3.0, but partial_fit began with 1.0; set it back"
    ):
        estimator.set_params(C=3.0).partial_fit(X, y)
    alone = SBMClassifier(C=3.0, random_state=0).fit(X, y)
    assert estimator.fit(X, y).coef_.tolist() == alone.coef_.tolist()
    with pytest.warns(UserWarning, match=r"^partial_fit begins anew: what fit found is forgotten"):
        estimator.partial_fit(X, y)
    assert not hasattr(estimator, "dual_gap_")


def test_a_batch_too_large_for_the_memory_is_several_blocks():
    X, y = rows(20_000, classes=2)
    estimator = SBMClassifier(mem="140MB", random_state=0).partial_fit(X, y, [0, 1])
    assert estimator.model_.info["stream"]["blocks"] > 1
    assert estimator.score(X, y) > 0.85
    with pytest.raises(MemoryPlanError, match=r"too little for partial_fit"):
        SBMClassifier(mem="50MB").partial_fit(X, y, [0, 1])


# ---------------------------------------------------------------------------- models as estimators


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_model_becomes_an_estimator_that_predicts_the_same(case, tmp_path):
    X, y = case.rows()
    bias = {} if case.loss == "one_class" else {"bias": 2.0}
    model, _, _ = fit(make_store(tmp_path, X, y), tol=0.1, **case.options, **bias)
    matrix = scipy.sparse.csr_matrix(np.hstack([np.zeros((len(X), 1)), X]))  # ids from 1
    estimator = model.to_sklearn()
    copy = pickle.dumps(estimator)
    assert b"sbm" not in copy
    predicted = pickle.loads(copy).predict(matrix)
    np.testing.assert_allclose(predicted, model.predict(matrix), atol=1e-12)
    if case.labels == 3:
        scores = estimator.decision_function(matrix)
        np.testing.assert_allclose(scores, model.decision_function(matrix), atol=1e-12)
    if case.loss == "log_loss":
        p = model.predict_proba(matrix)
        np.testing.assert_array_equal(p, probabilities(model, model.decision_function(matrix)))
        if case.labels == 2:
            np.testing.assert_allclose(estimator.predict_proba(matrix), p, atol=1e-12)


def test_models_of_liblinear_become_estimators_with_ascending_labels(tmp_path):
    (tmp_path / "m").write_text(
        "solver_type L2R_L2LOSS_SVC\nnr_class 2\nlabel 1 -1\nnr_feature 2\nbias -1\nw\n1\n-2\n"
    )
    estimator = read_model(tmp_path / "m").to_sklearn()
    assert estimator.classes_.tolist() == [-1, 1]
    assert estimator.predict([[0, 1, 0], [0, 0, 1]]).tolist() == [1, -1]


def test_columns_of_an_estimator_hold_every_id():
    model = sbm.Model(np.array([3, 7]), np.ones((2, 1)), [0.0, 1.0])
    assert model.to_sklearn(n_features=10).coef_.shape == (1, 10)
    with pytest.raises(DataError, match=r"^the model has weights of feature id 7, which 5 columns"):
        model.to_sklearn(n_features=5)
    with pytest.raises(
        DataError, match=r"^feature ids of this model reach 9223372036854775807, and"
    ):
        replace(model, ids=np.array([3, 2**63 - 1])).to_sklearn()


def test_without_scikit_learn_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    monkeypatch.delitem(sys.modules, "sbm.sklearn")
    with pytest.raises(
        ImportError, match=r"^sbm.sklearn needs scikit-learn 1.6 or newer; pip inst"
    ):
        importlib.import_module("sbm.sklearn")
    with pytest.raises(
        SettingsError, match=r"^to_sklearn needs scikit-learn, which is not install"
    ):
        sbm.Model(np.array([3]), np.ones((1, 1)), []).to_sklearn()
