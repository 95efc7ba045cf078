"""Training end to end: the optimum, its certificate, and what must not change it."""

import dataclasses
import itertools
import json
import shutil

import numpy as np
import pytest
from helpers import Passes, fit, load_script, write_rows

import sbm
from sbm.errors import DataError, MemoryPlanError, SettingsError, StoreError
from sbm.jobs.dealing import coding
from sbm.jobs.engine import pace
from sbm.jobs.training import setup, state
from sbm.solver.step import Solver
from sbm.store import arrays, blocks
from sbm.store.blocks import BlockStore
from sbm.store.run import Run

ROUNDING = 1e-6  # values are float32: the optimum differs from float64's by about 1e-7


def random_rows(seed=0, n=400, features=12, noise=0.5):
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, features)).astype(np.float32).astype(float)
    X[random.random(X.shape) < 0.4] = 0
    y = np.sign(X @ random.normal(size=features) + noise * random.normal(size=n))
    y[y == 0] = 1
    return X, y


@pytest.fixture
def store(tmp_path):
    X, y = random_rows()
    sbm.split([write_rows(tmp_path / "d.svm", X, y)], tmp_path / "d.sbm", blocks=5)
    return tmp_path / "d.sbm"


# ------------------------------------------------------------------------------- the optimum

SMALL_SETS = [("a9a", 12), ("w8a", 3), ("phishing", 12), ("farm_ads", 3), ("phishing", 1)]


@pytest.mark.parametrize(("first", "name", "n_blocks"), [(k, *s) for k, s in enumerate(SMALL_SETS)])
def test_reference_optimum_is_certified_for_any_cache_and_rounds(
    first, name, n_blocks, text_of, reference, tmp_path
):
    sbm.split([text_of(name)], tmp_path / "d.sbm", blocks=n_blocks)
    rounds_of = (3,) if name == "farm_ads" else (1, 3, 10)  # its rows are long
    grid = [*itertools.product(("hinge", "squared_hinge"), (0.1, 1.0), (0.33, 0.5), rounds_of)]
    # A fifth for each set, which has every value; another one for the next set.
    step = 3 if name == "farm_ads" else 5
    for loss, C, cache_frac, rounds in grid[first % step :: step]:
        optimum = next(r["primal"] for r in reference[name][loss] if r["C"] == C)
        _, report, passes = fit(
            tmp_path / "d.sbm", loss=loss, C=C, cache_frac=cache_frac, rounds=rounds, tol=1e-4,
            max_passes=5000,
        )  # fmt: skip
        case = f"{loss} C={C} cache={cache_frac} rounds={rounds}"
        assert report["converged"], case
        assert report["relative_gap"] <= 1e-4, case
        assert -ROUNDING <= report["primal"] / optimum - 1 <= 1e-4, case
        assert max(p["dual"] for p in passes) <= optimum * (1 + ROUNDING), case
        assert report["drift"] <= 1e-9, case


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
@pytest.mark.parametrize("name", ["phishing", "w8a"])
def test_block_minimization_without_a_cache_reaches_the_optimum_too(
    name, loss, text_of, reference, tmp_path
):
    sbm.split([text_of(name)], tmp_path / "d.sbm", blocks=3)
    optimum = next(r["primal"] for r in reference[name][loss] if r["C"] == 0.1)
    _, report, _ = fit(
        tmp_path / "d.sbm", loss=loss, C=0.1, cache_frac=0.0, rounds=10, tol=1e-4, max_passes=9999
    )
    assert report["converged"]
    assert -ROUNDING <= report["primal"] / optimum - 1 <= 1e-4


@pytest.fixture(scope="session")
def prep_stores(text_of, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prep")
    for n_blocks in (12, 24):
        sbm.split([text_of("prep_small_binary")], folder / f"p{n_blocks}.sbm", blocks=n_blocks)
    return folder


def test_real_text_reaches_its_optimum(prep_stores, reference, tmp_path):
    optimum = next(r["primal"] for r in reference["prep_small_binary"]["hinge"] if r["C"] == 0.1)
    model = tmp_path / "m.model"
    settings = sbm.Settings(C=0.1, rounds=1, tol=1e-4)
    _, report = sbm.train(prep_stores / "p24.sbm", model, settings)
    assert -1e-9 <= report["primal"] / optimum - 1 <= 1e-4
    assert report["converged"]


def test_at_equal_memory_chosen_cache_beats_random_cache_beats_no_cache(prep_stores, tmp_path):
    # Figure 2 of the paper. Memory for a twelfth of the rows: blocks of 1/24 beside a cache of
    # 1/24, or blocks of 1/12 alone.
    duals = {}
    for policy, store, frac in (("gradient", 24, 0.5), ("random", 24, 0.5), ("none", 12, 0.0)):
        progress = Passes()
        settings = sbm.Settings(C=0.1, policy=policy, cache_frac=frac, max_passes=3, tol=1e-12)
        sbm.train(prep_stores / f"p{store}.sbm", tmp_path / "m", settings, progress=progress)
        duals[policy] = progress.rows[2]["dual"]
    assert duals["gradient"] > duals["random"] > duals["none"]


def test_liblinear_finds_the_same_model_with_bias_and_class_weights(tmp_path):
    liblinearutil = pytest.importorskip("liblinear.liblinearutil")
    X, y = random_rows(4)
    sbm.split([write_rows(tmp_path / "d.svm", X, y)], tmp_path / "d.sbm", blocks=3)
    for loss, solver in (("hinge", 3), ("squared_hinge", 1)):
        options = f"-s {solver} -c 0.01 -B 2 -w1 3 -w-1 0.5 -e 1e-8 -q"
        theirs = liblinearutil.train(
            y, [{k + 1: v for k, v in enumerate(x) if v} for x in X], options
        )
        w, b = theirs.get_decfun()
        sign = 1 if theirs.get_labels()[0] == 1 else -1
        model, report, _ = fit(
            tmp_path / "d.sbm", loss=loss, C=0.01, bias=2.0, tol=1e-9, max_passes=20000,
            class_weight={1: 3, -1: 0.5},
        )  # fmt: skip
        ours = np.zeros(len(w))
        ours[model.ids - 1] = model.W[:, 0]
        # LIBLINEAR ends after 1000 iterations, so its own objective says how near it can be.
        w, b = sign * np.array(w), sign * b
        h = np.maximum(0, 1 - y * (X @ w + b))
        C = np.where(y > 0, 0.03, 0.005)
        primal = 0.5 * (w @ w + (b / 2) ** 2) + C @ (h if loss == "hinge" else h**2)
        assert report["dual"] <= primal * (1 + 1e-12)
        assert primal <= report["dual"] * (1 + 1e-3)
        distance = np.sqrt(np.sum((w - ours) ** 2) + (b / 2 - model.bias_weights[0]) ** 2)
        assert distance <= np.sqrt(2 * (primal - report["dual"])) + 1e-4


def test_scikit_learn_finds_the_same_model(store):
    svm = pytest.importorskip("sklearn.svm")
    X, y = random_rows()
    theirs = svm.LinearSVC(
        C=0.5, loss="hinge", fit_intercept=False, tol=1e-9, max_iter=10**6, random_state=0
    ).fit(X, y)
    model, _, _ = fit(store, C=0.5, tol=1e-9, max_passes=20000)
    ours = np.zeros(X.shape[1])
    ours[model.ids - 1] = model.W[:, 0]
    np.testing.assert_allclose(theirs.coef_[0], ours, atol=1e-4)


# ----------------------------------------------------------------------------- the certificate


@pytest.mark.parametrize("policy", ["gradient", "random", "none"])
def test_weights_are_the_sum_over_their_alphas_at_every_commit(store, policy):
    model, report, _ = fit(store, policy=policy, tol=1e-6, max_passes=300, rounds=2)
    run = store.parent / "m.model.run"
    record = Run.read(run)
    state = arrays.read(run / record["state"], "state").arrays
    data = BlockStore(store)
    X, y = random_rows()
    alpha, rows_of = read_alphas(run, record, state, data)
    w = np.zeros(data.n_features)
    support = 0
    for block, (codes, rows) in enumerate(rows_of):
        signs = np.where(np.asarray(data.labels)[codes] > 0, 1.0, -1.0)
        w += rows.T @ (alpha[block] * signs)
        support += np.count_nonzero(alpha[block])
    np.testing.assert_allclose(w, model.W[:, 0], atol=1e-9 * np.linalg.norm(w))
    assert support == report["n_support"]
    ids = data.read_feature_ids()
    full = np.zeros(X.shape[1])
    full[ids - 1] = w
    primal = 0.5 * full @ full + np.maximum(0, 1 - y * (X @ full)).sum()
    assert primal == pytest.approx(report["primal"], rel=1e-9)


def read_alphas(run, record, state, data):
    """Alphas and dense rows of every block, from the files alone."""
    alpha, rows_of = [], []
    for block, chunks in enumerate(data.chunks):
        n, nnz = sum(c.rows for c in chunks), sum(c.nnz for c in chunks)
        room = sbm.rows.Rows(
            np.empty(n, np.int64), np.empty(n, np.int32), np.empty(nnz, np.int32),
            np.empty(nnz, np.float32), np.empty(n, np.int32),
        )  # fmt: skip
        rows = data.read(chunks, room, 0)
        X = np.zeros((n, data.n_features))
        for i, (start, length) in enumerate(zip(rows.starts, rows.lengths, strict=True)):
            X[i, rows.indices[start : start + length]] = rows.values[start : start + length]
        rows_of.append((rows.y, X))
        values = np.zeros(n)
        if str(block) in record["alphas"]:
            file = arrays.read(run / record["alphas"][str(block)], "alpha")
            codes = file.arrays["codes"]
            values = np.array([*file.meta["resting"], *[0] * 256])[codes]
            values[codes == 255] = file.arrays["free"]
        mine = state["home"] == block
        assert (values[state["row"][mine]] == 0).all(), "a cached row has a second home"
        values[state["row"][mine]] = state["alpha"][mine]
        alpha.append(values)
    return alpha, rows_of


def test_a_used_up_budget_is_said_and_still_certified(store):
    _, report, passes = fit(store, tol=1e-12, max_passes=2)
    assert not report["converged"]
    assert report["passes"] == len(passes) == 2
    assert passes[-1]["certificate"]["relative_gap"] == report["relative_gap"] > 1e-12
    assert report["primal"] - report["dual"] == pytest.approx(report["gap"], rel=1e-6)
    assert not sbm.Model.load(report["model"]).converged
    _, report, _ = fit(store, tol=1e-300, max_passes=10**6, time_limit=0.5)
    assert not report["converged"]
    assert report["seconds"]["total"] < 20


# ------------------------------------------------------------------------------- invariances


def test_the_same_settings_give_the_same_bytes(store):
    fit(store, "a.model", tol=1e-5, max_passes=500)
    fit(store, "b.model", tol=1e-5, max_passes=500)
    a, b = ((store.parent / name).read_bytes() for name in ("a.model", "b.model"))
    assert a == b
    fit(store, "c.model", tol=1e-5, max_passes=500, seed=1)
    assert (store.parent / "c.model").read_bytes() != a


@pytest.mark.parametrize("threads", [1, 3, 8])
def test_threads_change_no_byte(store, threads):
    options = {"tol": 1e-5, "cache_frac": "auto", "max_passes": 200}
    _, expected, passes = fit(store, "a.model", threads=2, **options)
    _, report, again = fit(store, "b.model", threads=threads, **options)
    assert (store.parent / "a.model").read_bytes() == (store.parent / "b.model").read_bytes()
    assert [p["dual"] for p in passes] == [p["dual"] for p in again]
    assert (report["visits"], report["updates"]) == (expected["visits"], expected["updates"])


def test_many_chunks_are_decoded_and_screened_at_a_time_with_the_same_result(tmp_path, monkeypatch):
    X, y = random_rows(n=900)
    monkeypatch.setattr(blocks, "CHUNK_NNZ", 100)
    sbm.split([write_rows(tmp_path / "d.svm", X, y)], tmp_path / "d.sbm", blocks=3)
    assert all(len(chunks) > 10 for chunks in BlockStore(tmp_path / "d.sbm").chunks)
    models = []
    for threads in (1, 2, 6):
        fit(tmp_path / "d.sbm", threads=threads, tol=1e-4, max_passes=500)
        models.append((tmp_path / "m.model").read_bytes())
    assert models[0] == models[1] == models[2]


def test_a_slow_disk_gets_more_rounds_and_the_list_of_them_repeats_the_training(store, monkeypatch):
    monkeypatch.setattr(pace, "LEAST_BYTES", 0)

    def run(**settings):
        chosen = sbm.Settings(mem="400MB", tol=1e-6, **settings)
        return sbm.train(store, store.parent / "m.model", chosen, read_rate=rate)

    size = sum(b["bytes"] for b in BlockStore(store).manifest["blocks"])
    rate = size / 0.3  # a pass waits 0.3 s, and solves for some milliseconds
    first, slow = run(max_passes=3)
    assert slow["seconds"]["disk"] >= 0.3
    assert slow["rounds"][0] == 6  # 24 visits of the cache over 5 blocks, and one more
    assert slow["rounds"][1] > 5
    rate = None
    second, replay = run(max_passes=3, rounds=",".join(map(str, slow["rounds"])))
    assert replay["rounds"] == slow["rounds"] == second.info["rounds"]
    np.testing.assert_array_equal(first.W, second.W)
    assert (first.info["certificate"], first.info["updates"]) == (
        second.info["certificate"], second.info["updates"],
    )  # fmt: skip


@pytest.mark.parametrize("n_blocks", [1, 2, 3])
def test_every_pass_takes_every_block_once_and_none_twice_in_a_row(tmp_path, monkeypatch, n_blocks):
    X, y = random_rows()
    sbm.split([write_rows(tmp_path / "d.svm", X, y)], tmp_path / "d.sbm", blocks=n_blocks)
    taken = []
    step = Solver.step

    def noted(self, block, *arguments):
        taken.append(block)
        return step(self, block, *arguments)

    monkeypatch.setattr(Solver, "step", noted)
    fit(tmp_path / "d.sbm", tol=1e-300, max_passes=40)
    passes = np.array(taken).reshape(40, n_blocks)
    assert (np.sort(passes, axis=1) == np.arange(n_blocks)).all()
    if n_blocks > 1:
        assert all(a != b for a, b in itertools.pairwise(taken))
    if n_blocks > 2:
        assert len(np.unique(passes, axis=0)) > 1


def test_rows_at_rest_are_counted_and_not_visited(store):
    _, _, passes = fit(store, C=1.0, tol=1e-6, rounds=1, max_passes=100)
    assert all(p["rows_at_rest"] >= 0 for p in passes)
    assert passes[-1]["rows_at_rest"] > 100
    assert passes[-1]["visits"] < passes[0]["visits"]


def test_the_cache_follows_the_free_alphas_within_what_was_planned(tmp_path):
    X, y = random_rows(n=3000, noise=0.05)
    sbm.split([write_rows(tmp_path / "d.svm", X, y)], tmp_path / "d.sbm", blocks=12)
    _, report, passes = fit(tmp_path / "d.sbm", cache_frac="auto", tol=1e-6, max_passes=300)
    assert report["converged"]
    part = max(sum(c.rows for c in chunks) for chunks in BlockStore(tmp_path / "d.sbm").chunks)
    limits = [p["cache_rows"] for p in passes]
    assert limits[0] == part  # half of the working set
    assert all(part // 3 <= limit <= 3 * part for limit in limits)
    for before, after in itertools.pairwise(passes):
        wanted = int(1.5 * before["free_rows"])
        assert after["cache_rows"] == min(3 * part, max(part // 3, wanted))
        assert after["cached_rows"] <= after["cache_rows"]


def test_the_first_certificate_within_the_relative_tolerance_ends_it(store):
    for C in (1e-6, 10.0):  # objectives far below 1, and far above
        _, report, passes = fit(store, C=C, tol=1e-2, max_passes=500)
        proven = [p["certificate"]["relative_gap"] for p in passes if p["certificate"]]
        assert proven[-1] == report["relative_gap"] <= 1e-2
        assert all(gap > 1e-2 for gap in proven[:-1])
        assert (report["gap"] <= 1e-2) == (C < 1)


def test_commits_do_not_change_the_result(store, monkeypatch):
    fit(store, "a.model", tol=1e-5, max_passes=500)
    monkeypatch.setattr(state, "COMMIT_SECONDS", -1.0)
    monkeypatch.setattr(setup, "STRAY_BYTES", 1)
    monkeypatch.setattr(setup, "UNWRITTEN_BYTES", 1)
    fit(store, "b.model", tol=1e-5, max_passes=500)
    a, b = ((store.parent / name).read_bytes() for name in ("a.model", "b.model"))
    assert a == b


def test_blocks_order_cache_and_policy_do_not_move_the_optimum(tmp_path):
    X, y = random_rows(7, n=200)
    order = np.argsort(y, kind="stable")  # label-sorted input
    models = []
    for name, rows, n_blocks in (("a", slice(None), 1), ("b", order, 12), ("c", order[::-1], 3)):
        text = write_rows(tmp_path / f"{name}.svm", X[rows], y[rows])
        sbm.split([text], tmp_path / f"{name}.sbm", blocks=n_blocks, seed=n_blocks)
        policies = [("gradient", 0.5), ("random", 0.7), ("none", 0.5)]
        for policy, frac in policies if name == "c" else policies[:1]:
            model, report, _ = fit(
                tmp_path / f"{name}.sbm", policy=policy, cache_frac=frac, tol=1e-6,
                max_passes=100_000,
            )  # fmt: skip
            assert report["converged"]
            w = np.zeros(X.shape[1])
            w[model.ids - 1] = model.W[:, 0]
            models.append(w)
    for w in models[1:]:
        # |w - w*| <= sqrt(2 gap)
        np.testing.assert_allclose(w, models[0], atol=2 * np.sqrt(2e-8 * report["primal"]))


def test_label_sorted_input_costs_no_more_passes(tmp_path):
    X, y = random_rows(8, n=3000)
    passes = {}
    for name, rows in (("random", slice(None)), ("sorted", np.argsort(y, kind="stable"))):
        text = write_rows(tmp_path / f"{name}.svm", X[rows], y[rows])
        sbm.split([text], tmp_path / f"{name}.sbm", blocks=12)
        _, report, _ = fit(tmp_path / f"{name}.sbm", tol=1e-4, max_passes=500)
        passes[name] = report["passes"]
    assert passes["sorted"] <= 1.5 * passes["random"] + 1


def test_blocks_too_large_for_the_memory_are_cut_and_the_optimum_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "CHUNK_NNZ", 200)
    X, y = random_rows(9, n=200)
    sbm.split([write_rows(tmp_path / "d.svm", X, y)], tmp_path / "d.sbm", blocks=2)
    whole, _, _ = fit(tmp_path / "d.sbm", tol=1e-6, max_passes=20000)
    with pytest.raises(MemoryPlanError) as error:
        fit(tmp_path / "d.sbm", mem="1MB")
    plans = []
    real = setup.plan_training
    monkeypatch.setattr(setup, "plan_training", lambda *a: plans.append(real(*a)) or plans[-1])
    least = error.value.least_bytes
    cut, report, _ = fit(tmp_path / "d.sbm", mem=least, tol=1e-6, max_passes=20000)
    assert len(plans[-1].parts) > 2
    assert report["converged"]
    np.testing.assert_allclose(whole.W, cut.W, atol=2 * np.sqrt(2e-6 * report["primal"]))


def test_too_little_memory_is_refused_with_the_plan_and_the_least_that_works(store):
    with pytest.raises(MemoryPlanError) as error:
        fit(store, mem="50MB")
    message = str(error.value)
    assert message.startswith("--mem 50 MB is too little to train on ")
    assert "interpreter 92 MB, weights" in message
    least = error.value.least_bytes
    assert message.endswith(f"the least that works is --mem {-(-least // 1_000_000)}MB")
    fit(store, mem=f"{-(-least // 1_000_000)}MB")
    assert not (store.parent / "n.model.run").exists()


# --------------------------------------------------------------------------- unusual data


def test_one_class_alone_gives_a_model_that_says_so(tmp_path):
    for label, positive in ((5.0, True), (-2.0, False)):
        (tmp_path / "d.svm").write_text(f"{label:g} 1:1 2:2\n{label:g} 2:1\n")
        sbm.split([tmp_path / "d.svm"], tmp_path / "d.sbm", force=True)
        model, report, _ = fit(tmp_path / "d.sbm", C=10.0, tol=1e-10, max_passes=1000)
        assert report["converged"]
        assert model.labels[1 if positive else 0] == label
        result = sbm.predict(model, tmp_path / "d.svm")
        assert result["accuracy"] == 1.0


def test_rows_without_features_and_features_without_weight(tmp_path):
    (tmp_path / "d.svm").write_text("+1\n-1\n+1\n+1 7:0\n-1 8:0\n")
    sbm.split([tmp_path / "d.svm"], tmp_path / "d.sbm")
    for loss in ("hinge", "squared_hinge"):
        model, report, _ = fit(tmp_path / "d.sbm", loss=loss)
        assert not model.W.any()
        assert report["converged"]
        assert report["primal"] == report["dual"] == 5.0  # every row loses 1 whatever w is
        assert report["relative_gap"] == 0


def test_a_class_of_weight_zero_is_never_looked_at(tmp_path):
    X, y = random_rows(5, n=60)
    sbm.split([write_rows(tmp_path / "d.svm", X, y)], tmp_path / "d.sbm", blocks=2)
    model, _, _ = fit(tmp_path / "d.sbm", class_weight={-1: 0.0}, tol=1e-9, max_passes=9999)
    sbm.split([write_rows(tmp_path / "p.svm", X[y > 0], y[y > 0])], tmp_path / "p.sbm")
    alone, _, _ = fit(tmp_path / "p.sbm", tol=1e-9, max_passes=9999)
    weights = dict(zip(model.ids.tolist(), model.W[:, 0], strict=True))
    for identity, weight in zip(alone.ids.tolist(), alone.W[:, 0], strict=True):
        assert weights[identity] == pytest.approx(weight, abs=1e-4)


def test_float64_values_are_kept(tmp_path):
    X, y = random_rows(6, n=80)
    X *= 1 + 1e-10  # beyond float32
    sbm.split([write_rows(tmp_path / "d.svm", X, y)], tmp_path / "d.sbm", dtype="float64")
    model, report, _ = fit(tmp_path / "d.sbm", tol=1e-10, max_passes=99999)
    w = np.zeros(X.shape[1])
    w[model.ids - 1] = model.W[:, 0]
    primal = 0.5 * w @ w + np.maximum(0, 1 - y * (X @ w)).sum()
    assert primal == pytest.approx(report["primal"], rel=1e-13)


def test_more_than_two_labels_are_trained_one_against_the_rest(tmp_path):
    (tmp_path / "d.svm").write_text("1 1:1\n2 1:1 3:1\n3 2:1\n")
    sbm.split([tmp_path / "d.svm"], tmp_path / "d.sbm")
    model, report, _ = fit(tmp_path / "d.sbm", tol=1e-6, max_passes=1000)
    assert report["converged"]
    assert model.labels == [1, 2, 3]
    assert model.W.shape == (3, 3)


def test_labels_that_do_not_fit_the_loss_are_refused_with_what_to_use(tmp_path, monkeypatch):
    monkeypatch.setattr(coding, "MOST_LABELS", 5)
    (tmp_path / "r.svm").write_text("".join(f"{k + 0.5} 1:1\n" for k in range(9)))
    sbm.split([tmp_path / "r.svm"], tmp_path / "r.sbm")
    assert BlockStore(tmp_path / "r.sbm").labels is None
    (tmp_path / "o.svm").write_text("3 1:1\n3 2:1\n")
    sbm.split([tmp_path / "o.svm"], tmp_path / "o.sbm")
    for loss in ("hinge", "squared_hinge", "crammer_singer", "weston_watkins"):
        with pytest.raises(DataError) as error:
            fit(tmp_path / "r.sbm", loss=loss)
        assert str(error.value) == (
            f"{tmp_path / 'r.sbm'} has real-valued labels, {loss} needs classes; "
            "use --loss epsilon_insensitive or another loss for regression"
        )
    for loss in ("crammer_singer", "weston_watkins"):
        with pytest.raises(DataError) as error:
            fit(tmp_path / "o.sbm", loss=loss)
        assert str(error.value) == (
            f"all rows of {tmp_path / 'o.sbm'} have the label 3, {loss} needs at least two classes"
        )


def test_settings_that_do_not_fit_the_store_are_refused(store):
    with pytest.raises(SettingsError, match="class_weight names label 3, the labels are -1, 1"):
        fit(store, class_weight={3: 2.0})
    with pytest.raises(SettingsError, match=r"unknown policy 'gradeint', known are .* mean 'gradi"):
        fit(store, policy="gradeint")


def test_a_second_training_of_the_same_model_is_refused_while_the_first_one_runs(store):
    with (
        Run.create(store.parent / "m.model.run", [1]),
        pytest.raises(
            StoreError, match=r"the run .*m\.model\.run is in use by another sbm process"
        ),
    ):
        fit(store)


def test_the_log_has_a_line_a_pass_and_the_run_only_committed_files(store):
    _, report, passes = fit(store, tol=1e-6, max_passes=300)
    run = store.parent / "m.model.run"
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert [r["event"] for r in log] == ["pass"] * len(passes) + ["end"]
    assert log[-1]["relative_gap"] == report["relative_gap"]
    record = Run.read(run)
    expected = {"run.json", "log.jsonl", "lock", record["state"], *record["alphas"].values()}
    assert {p.name for p in run.iterdir()} == expected


def test_a_damaged_block_stops_the_training_with_its_place(store):
    shutil.copytree(store, store.parent / "bad.sbm")
    path = store.parent / "bad.sbm" / "block-000003.sbb"
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(StoreError, match=r"block-000003\.sbb at byte 0 is damaged"):
        fit(store.parent / "bad.sbm")


def test_verify_optima_judges_by_the_reference(tmp_path):
    outcome = load_script("verify_optima").Outcome(
        "x", "hinge", 1.0, 1, 0.5, 1, 1, 1, 1.0, 1.0, 1.0, 0.0, 2e-4, 0.0, 0.0, 0.1
    )
    assert not outcome.passed
    # Where the optimum is known to lie between two values only, a primal between them is right.
    below = dataclasses.replace(outcome, primal_excess=-3e-5)
    assert not below.passed
    assert dataclasses.replace(below, known_within=3e-5).passed


def test_a_store_without_rows_is_refused(store):
    # Nothing makes one today; dropping the last block of a store could.
    manifest = blocks.read_manifest(store)
    empty = {"blocks": [], "rows": 0, "nnz": 0, "generations": [], "features": 0}
    blocks.write_manifest(store, manifest | empty)
    with pytest.raises(DataError) as error:
        fit(store)
    assert str(error.value) == f"{store} holds no rows; nothing can be trained on it"
    assert sbm.info(store)["rows"] == 0
