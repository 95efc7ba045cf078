"""Training with every loss end to end: its optimum, agreement with peers, and invariances."""

import ctypes

import numpy as np
import pytest
from families import CASES, N_FEATURES, Case, assert_same_optimum, make_store, row_losses
from helpers import fit, full_weights

import sbm
from sbm.errors import SettingsError
from sbm.losses import LOSSES

EVERY = pytest.mark.parametrize("case", CASES, ids=str)
REGRESSION = ["epsilon_insensitive", "squared_epsilon_insensitive", "squared_error"]


def test_every_loss_is_among_the_cases():
    assert {case.loss for case in CASES} == set(LOSSES)


# ------------------------------------------------------------------------------- the optimum

# None and some of a cache, one and many blocks.
REFERENCES = [
    ("heart_scale", "log_loss", 4, 0.5, [0.1, 1.0]),
    ("phishing", "log_loss", 6, 0.0, [0.1]),
    ("a9a", "log_loss", 6, 0.5, [0.1]),
    ("w8a", "log_loss", 1, 0.5, [0.1, 1.0]),
    ("farm_ads", "log_loss", 3, 0.5, [0.1, 1.0]),
    ("abalone", "epsilon_insensitive", 4, 0.5, [0.1]),
    ("abalone", "epsilon_insensitive", 1, 0.0, [0.1, 1.0]),
    ("abalone", "squared_epsilon_insensitive", 4, 0.5, [0.1]),
    ("housing_scale", "epsilon_insensitive", 3, 0.5, [0.1, 1.0]),
    ("housing_scale", "squared_epsilon_insensitive", 3, 0.0, [0.1]),
    ("housing_scale", "squared_epsilon_insensitive", 1, 0.5, [0.1, 1.0]),
]


@pytest.mark.parametrize(("name", "loss", "n_blocks", "frac", "costs"), REFERENCES)
def test_reference_optimum_is_certified(
    name, loss, n_blocks, frac, costs, text_of, reference, tmp_path
):
    sbm.split([text_of(name)], tmp_path / "d.sbm", blocks=n_blocks)
    optima = {r["C"]: r["primal"] for r in reference[name][loss] if r["C"] in costs}
    assert len(optima) == len(costs)
    for C, optimum in optima.items():
        _, report, passes = fit(
            tmp_path / "d.sbm", loss=loss, C=C, cache_frac=frac, rounds=20, tol=1e-4,
            max_passes=5000,
        )  # fmt: skip
        assert report["converged"], C
        assert report["relative_gap"] <= 1e-4, C
        assert -1e-6 <= report["primal"] / optimum - 1 <= 1e-4, C
        assert max(p["dual"] for p in passes) <= optimum * (1 + 1e-6), C
        assert report["drift"] <= 1e-9, C


@EVERY
def test_the_certificate_is_that_of_the_model(tmp_path, case):
    X, y = case.rows()
    bias = 0.0 if case.loss == "one_class" else 1.5
    model, report, _ = fit(
        make_store(tmp_path, X, y, blocks=3), **case.at(0.3), bias=bias, tol=1e-5,
        max_passes=2000, rounds=10,
    )  # fmt: skip
    assert report["converged"]
    assert report["primal"] == pytest.approx(case.primal(X, y, model), rel=1e-9)
    assert report["gap"] == pytest.approx(report["primal"] - report["dual"], rel=1e-5, abs=1e-12)
    assert 0 <= report["gap"] <= 1e-5 * max(abs(report["primal"]), abs(report["dual"]))
    assert report["drift"] <= 1e-9
    assert report["n_support"] > 0
    assert report["n_free"] <= report["n_support"] <= len(X) * max(1, case.labels)


@EVERY
def test_blocks_cache_and_screening_do_not_move_the_optimum(tmp_path, case):
    X, y = case.rows(1)
    order = np.argsort(y, kind="stable")
    fitted = []
    for name, rows, n_blocks in (("a", slice(None), 1), ("b", order, 5)):
        store = make_store(tmp_path, X[rows], y[rows], name, blocks=n_blocks, seed=n_blocks)
        for options in ({"cache_frac": 0.5}, {"screen": False}, {"policy": "random", "seed": 3}):
            model, report, _ = fit(
                store, **case.at(0.1), tol=1e-5, max_passes=20000, rounds=5, **options
            )
            assert report["converged"], (name, options)
            fitted.append((model, report))
    for other in fitted[1:]:
        assert_same_optimum(fitted[0], other)


@EVERY
def test_no_cache_is_needed(tmp_path, case):
    X, y = case.rows(2)
    store = make_store(tmp_path, X, y, blocks=3)
    options = {**case.at(0.1), "tol": 1e-4, "max_passes": 5000, "rounds": 5}
    model, report, _ = fit(store, cache_frac=0.0, **options)
    assert report["converged"]
    assert_same_optimum((model, report), fit(store, **options)[:2])


@EVERY
def test_threads_change_no_byte(tmp_path, case):
    X, y = case.rows(3, n=300)
    store = make_store(tmp_path, X, y, blocks=4)
    models = []
    for threads in (1, 2):
        fit(store, **case.at(0.5), tol=1e-4, max_passes=60, threads=threads)
        models.append((tmp_path / "m.model").read_bytes())
    assert models[0] == models[1]


@pytest.mark.parametrize("loss", REGRESSION[:2])
def test_screening_of_the_tube_changes_nothing_in_the_optimum_and_saves_visits(tmp_path, loss):
    X, y = Case(loss, 0).rows(4, n=1000, noise=0.1)
    store = make_store(tmp_path, X, y, blocks=6)
    options = {"loss": loss, "C": 0.1, "epsilon": 0.2, "tol": 1e-4, "max_passes": 300, "rounds": 2}
    *screened, passes = fit(store, **options)
    *whole, every = fit(store, screen=False, **options)
    assert screened[1]["converged"]
    assert whole[1]["converged"]
    assert_same_optimum(tuple(screened), tuple(whole))
    assert passes[-2]["rows_at_rest"] > 500
    assert all(p["rows_at_rest"] == 0 for p in every)


def test_few_whole_numbers_are_targets_like_any_other(tmp_path):
    """The store keeps such labels as classes."""
    X, _ = Case("squared_error", 0).rows()
    y = np.round(X[:, 0] + 2 * X[:, 1]).clip(-3, 3)
    model, _, _ = fit(
        make_store(tmp_path, X, y, blocks=3), loss="squared_error", C=2.0, tol=1e-10,
        max_passes=1000,
    )  # fmt: skip
    assert model.labels == []
    expected = np.linalg.solve(X.T @ X + np.eye(N_FEATURES) / 4, X.T @ y)
    np.testing.assert_allclose(full_weights(model, N_FEATURES)[:, 0], expected, atol=1e-4)


# ---------------------------------------------------------------------------------- options


def test_options_that_do_not_fit_the_loss_are_refused(tmp_path):
    X, y = Case("hinge", 2).rows()
    store = make_store(tmp_path, X, y)
    for options, sentence in (
        ({"loss": "hinge", "task": "regression"},
         "task is regression, but hinge is for classification"),
        ({"loss": "epsilon_insensitive", "task": "classification"},
         "task is classification, but epsilon_insensitive is for regression"),
        ({"loss": "one_class", "task": "classification"},
         "task is classification, but one_class is for no labels at all"),
        ({"loss": "epsilon_insensitive", "class_weight": {7: 2}},
         "class_weight needs classes, and epsilon_insensitive has none; leave it out"),
        ({"loss": "one_class", "bias": 1.0}, "one_class has an offset of its own; leave out bias"),
        ({"loss": "squared_error", "epsilon": 0.2},
         ("epsilon is 0.2, which belongs to epsilon_insensitive and squared_epsilon_insensitive; "
          "leave it out with squared_error")),
        ({"loss": "hinge", "nu": 0.25},
         "nu is 0.25, which belongs to one_class; leave it out with hinge"),
        ({"loss": "one_class", "C": 2.0},
         "C is 2, and one_class has none; leave it out and give nu"),
        ({"loss": "log_loss", "caches": 2},
         ("caches is 2; only one-vs-rest, hinge or squared_hinge with more than two labels, can "
          "have more than one")),
    ):  # fmt: skip
        with pytest.raises(SettingsError) as error:
            fit(store, **options)
        assert str(error.value) == sentence
    assert not (tmp_path / "m.model.run").exists()


CLASSES = [case for case in CASES if case.labels in (2, 3)]


@pytest.mark.parametrize("case", CLASSES, ids=str)
def test_balanced_is_the_weights_given_by_hand(tmp_path, case):
    X, y = case.rows(5)
    rare = (y != 7) | (np.arange(len(y)) % 4 == 0)
    X, y = X[rare], y[rare]
    labels, counts = np.unique(y, return_counts=True)
    assert len(set(counts)) > 1
    store = make_store(tmp_path, X, y, blocks=3)
    by_hand = {k: len(y) / (len(labels) * n) for k, n in zip(labels, counts, strict=True)}
    options = {**case.at(0.2), "tol": 1e-5, "max_passes": 500}
    balanced, ours, _ = fit(store, class_weight="balanced", **options)
    given, theirs, _ = fit(store, class_weight=by_hand, **options)
    plain, _, _ = fit(store, **options)
    np.testing.assert_array_equal(balanced.W, given.W)
    assert ours["primal"] == theirs["primal"]
    assert not np.array_equal(balanced.W, plain.W)


# ------------------------------------------------------------------------------- one class


@pytest.mark.parametrize("name", ["heart_scale", "a9a", "w8a"])
def test_one_class_is_certified_within_the_usual_budget(name, text_of, tmp_path):
    """Of w8a a twelfth of the rows are empty: for a small nu the optimum is 0, exactly."""
    sbm.split([text_of(name)], tmp_path / "d.sbm", blocks=6)
    for nu in (0.05, 0.1, 0.5):
        model, report, _ = fit(tmp_path / "d.sbm", loss="one_class", nu=nu)
        assert report["converged"], nu
        assert report["primal"] >= report["dual"]
        if (name, nu) == ("w8a", 0.05):
            assert abs(report["primal"]) < 0.01
            assert np.abs(model.W).max() < 0.1
        else:
            assert report["relative_gap"] <= 1e-3
            assert report["primal"] < 0


def test_rows_on_both_sides_of_the_origin_have_an_optimum_of_0(tmp_path):
    X = np.vstack([np.eye(3), -np.eye(3)] * 20)
    model, report, _ = fit(make_store(tmp_path, X, np.ones(len(X))), loss="one_class", nu=0.5)
    assert report["converged"]
    assert 0 <= report["gap"] <= 1e-3
    assert np.abs(model.W).max() < 0.1


@pytest.mark.parametrize("nu", [0.03, 0.1, 0.5, 0.9])
def test_liblinear_finds_the_same_outliers(tmp_path, nu):
    peer = pytest.importorskip("liblinear.liblinearutil")
    X, y = Case("one_class", 1).rows(6, n=300)
    theirs = peer.train(y, X, f"-s 21 -n {nu} -e 1e-8 -q")
    w, rho = np.array(theirs.get_decfun()[0])[: X.shape[1]], theirs.rho
    model, report, _ = fit(
        make_store(tmp_path, X, y, blocks=4), loss="one_class", nu=nu, tol=1e-7, max_passes=2000
    )
    assert report["converged"]
    N = nu * len(X)
    primal = 0.5 * w @ w - N * rho + np.maximum(0, rho - X @ w).sum()
    assert primal == pytest.approx(report["dual"], rel=1e-5)
    assert report["dual"] <= primal + 1e-9 * abs(primal)
    ours = full_weights(model, X.shape[1])[:, 0]
    np.testing.assert_allclose(ours, w, atol=np.sqrt(2 * report["gap"]) + 1e-4 * abs(w).max())
    labels, _, values = peer.predict(y, X, theirs, "-q")
    decision = X @ ours + model.bias_weights[0]
    clear = np.abs(np.array(values)[:, 0]) > 1e-3 * abs(rho)
    assert (np.where(decision > 0, 1, -1)[clear] == np.array(labels)[clear]).all()
    assert abs((decision < 0).mean() - nu) <= 0.05


# -------------------------------------------------------------------------- agreement with peers


def assert_peer_is_near(report, primal, tol=1e-6):
    """A peer's model is optimal for the problem of a certified one, within `tol`."""
    assert report["converged"]
    assert report["dual"] <= primal * (1 + 1e-9)
    assert primal <= report["primal"] * (1 + tol)


# (-s, case, options of LIBLINEAR and the same in our words)
PEERS = [
    (0, Case("log_loss", 2), "-c 0.5 -B 2", {"C": 0.5, "bias": 2.0}),
    (7, Case("log_loss", 2), "-c 0.5 -w7 3 -w-3 0.5", {"C": 0.5, "class_weight": {7: 3, -3: 0.5}}),
    (0, Case("log_loss", 3), "-c 2", {"C": 2.0}),
    (7, Case("log_loss", 3), "-c 0.3 -B 1 -w2 4", {"C": 0.3, "bias": 1.0, "class_weight": {2: 4}}),
    (2, Case("squared_hinge", 3), "-c 0.3 -w2 4", {"C": 0.3, "class_weight": {2: 4}}),
    (3, Case("hinge", 3), "-c 0.1 -B 1", {"C": 0.1, "bias": 1.0}),
    (4, Case("crammer_singer", 3), "-c 0.2 -w2 3 -w7 0.5",
     {"C": 0.2, "class_weight": {2: 3, 7: 0.5}}),
    (11, Case("squared_epsilon_insensitive", 0), "-c 0.5 -p 0.3 -B 1",
     {"C": 0.5, "epsilon": 0.3, "bias": 1.0}),
    (12, Case("squared_epsilon_insensitive", 0), "-c 0.5 -p 0", {"C": 0.5, "epsilon": 0.0}),
    (13, Case("epsilon_insensitive", 0), "-c 0.1 -p 0.2 -B 1",
     {"C": 0.1, "epsilon": 0.2, "bias": 1.0}),
]  # fmt: skip


@pytest.mark.parametrize(("s", "case", "options", "ours"), PEERS, ids=lambda x: str(x))
def test_liblinear_finds_the_same_model(tmp_path, s, case, options, ours):
    peer = pytest.importorskip("liblinear.liblinearutil")
    X, y = case.rows(7)
    ctypes.CDLL(None).srand(1)  # it may stop far away, by its random numbers
    theirs = peer.train(y, X, f"-s {s} {options} -e 1e-9 -q")
    model, report, _ = fit(
        make_store(tmp_path, X, y, blocks=3), **case.options, **ours, tol=1e-8, max_passes=20000
    )
    labels = theirs.get_labels() if case.labels else []
    columns = [labels.index(label) for label in model.labels] if case.labels > 2 else [0]
    found = [theirs.get_decfun(k) for k in columns]
    W, b = np.array([w for w, _ in found]).T, np.array([b for _, b in found])
    if case.labels == 2 and labels[0] != model.labels[1]:
        W, b = -W, -b
    bias = ours.get("bias", 0.0)
    weight = ours.get("class_weight", {})
    v = np.array([weight.get(label, 1.0) for label in y])
    if case.labels == 3 and case.loss != "crammer_singer":  # other classes have weight 1
        each = np.zeros(len(y))
        for k, label in enumerate(model.labels):
            z = X @ W[:, k] + b[k]
            own = np.where(y == label, 1.0, -1.0)
            each += np.where(own > 0, v, 1) * row_losses(
                case.loss, z[:, None], own, [-1.0, 1.0]
            )  # fmt: skip
    else:
        each = v * row_losses(case.loss, X @ W + b, y, model.labels, ours.get("epsilon", 0.1))
    extra = (b / bias) ** 2 if bias else np.zeros(1)
    primal = 0.5 * (W**2).sum() + 0.5 * extra.sum() + ours["C"] * each.sum()
    assert_peer_is_near(report, primal)
    distance = np.sqrt(2 * report["gap"]) + np.sqrt(2 * max(0, primal - report["dual"])) + 1e-7
    assert np.linalg.norm(full_weights(model, X.shape[1]) - W) <= distance
    assert np.linalg.norm(bias * model.bias_weights - b) <= max(1, bias) * distance


SKLEARN = [
    ("LinearSVC", Case("hinge", 2), {"loss": "hinge"}),
    ("LinearSVC", Case("squared_hinge", 2), {"loss": "squared_hinge"}),
    ("LogisticRegression", Case("log_loss", 2), {"solver": "liblinear"}),
    ("OneVsRest", Case("log_loss", 3), {"solver": "liblinear"}),
    ("LinearSVR", Case("epsilon_insensitive", 0), {"loss": "epsilon_insensitive"}),
    ("LinearSVR", Case("squared_epsilon_insensitive", 0), {"loss": "squared_epsilon_insensitive"}),
]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("name", "case", "options"), SKLEARN, ids=lambda x: str(x))
def test_scikit_learn_finds_the_same_model(tmp_path, name, case, options, weighted):
    pytest.importorskip("sklearn")
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC, LinearSVR

    X, y = case.rows(8)
    v = np.random.default_rng(8).integers(0, 4, len(y)) / 2 if weighted else np.ones(len(y))
    common = {"C": 0.4, "intercept_scaling": 2.0, "tol": 1e-10, "max_iter": 10**6}
    common |= {"random_state": 0, **options}
    tube = {}
    if case.labels == 0:
        common["epsilon"] = 0.2
        tube = {"epsilon": 0.2}
    kind = {"LinearSVC": LinearSVC, "LinearSVR": LinearSVR}.get(name, LogisticRegression)
    found = []
    for label in sorted(set(y)) if name == "OneVsRest" else [None]:
        own = y if label is None else np.where(y == label, 1, 0)
        theirs = kind(**common).fit(X, own, sample_weight=v)
        found.append([*np.ravel(theirs.coef_), *np.ravel(theirs.intercept_)])
    (tmp_path / "v.txt").write_text("".join(f"{x}\n" for x in v))
    model, report, _ = fit(
        make_store(tmp_path, X, y, blocks=3), **case.at(0.4), bias=2.0, tol=1e-9,
        max_passes=50000, **tube, weights=str(tmp_path / "v.txt") if weighted else None,
    )  # fmt: skip
    assert report["converged"]
    ours = np.vstack([full_weights(model, X.shape[1]), 2 * model.bias_weights])
    np.testing.assert_allclose(ours.T, found, atol=3e-4)


@pytest.mark.parametrize("bias", [0.0, 2.0])
def test_squared_error_is_ridge_regression(tmp_path, bias):
    linear_model = pytest.importorskip("sklearn.linear_model")
    X, y = Case("squared_error", 0).rows(9)
    store = make_store(tmp_path, X, y, blocks=4)
    for alpha in (0.1, 10.0):
        design = np.hstack([X, np.full((len(X), 1), bias)])
        theirs = linear_model.Ridge(alpha, fit_intercept=False).fit(design, y)
        model, report, _ = fit(
            store, loss="squared_error", C=1 / (2 * alpha), bias=bias, tol=1e-11, max_passes=20000
        )
        assert report["converged"]
        ours = [*full_weights(model, X.shape[1])[:, 0], model.bias_weights[0]]
        np.testing.assert_allclose(ours, theirs.coef_, atol=1e-5)
        assert model.labels == []


@pytest.mark.parametrize("labels", [2, 3])
def test_squared_error_of_classes_is_regularised_least_squares(tmp_path, labels):
    case = Case("squared_error", labels, {"task": "classification"})
    X, y = case.rows(10)
    model, report, _ = fit(
        make_store(tmp_path, X, y, blocks=4), **case.at(0.7), tol=1e-11, max_passes=20000
    )
    assert report["converged"]
    assert model.labels == sorted(set(y))
    targets = model.labels if labels == 3 else model.labels[1:]
    signs = np.where(y[:, None] == np.array(targets), 1.0, -1.0)
    expected = np.linalg.solve(X.T @ X + np.eye(X.shape[1]) / (2 * 0.7), X.T @ signs)
    np.testing.assert_allclose(full_weights(model, X.shape[1]), expected, atol=1e-5)


# ------------------------------------------------------------------------------ sample weights


@EVERY
def test_a_weight_is_that_many_rows_and_0_is_none(tmp_path, case):
    bias = 0.0 if case.loss == "one_class" else 1.0
    X, y = case.rows(11, n=90)
    v = np.random.default_rng(11).integers(0, 4, len(y))
    (tmp_path / "v.txt").write_text("".join(f"{x}\n" for x in v))
    options = {**case.at(0.2), "bias": bias, "tol": 1e-6, "max_passes": 20000}
    weighted, ours, _ = fit(
        make_store(tmp_path, X, y, blocks=3), weights=str(tmp_path / "v.txt"), **options
    )
    repeated = make_store(tmp_path, np.repeat(X, v, axis=0), np.repeat(y, v), "r", blocks=4)
    plain, theirs, _ = fit(repeated, **options)
    assert ours["converged"]
    assert theirs["converged"]
    assert ours["primal"] == pytest.approx(case.primal(X, y, weighted, v), rel=1e-9)
    assert_same_optimum((weighted, ours), (plain, theirs))
    assert ours["primal"] == pytest.approx(theirs["primal"], rel=2e-6)
