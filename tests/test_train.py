"""Training end to end: the optimum, its certificate, and settings that must not change it."""

import itertools
import json

import numpy as np
import pytest
from helpers import fit, full_weights, store_rows, write_rows
from inside import BlockStore, MemoryPlan, Run, SerialComm, TrainOptions, patch, train_ranks
from inside import engine_pace_module as pace
from inside import store_blocks_module as blocks

import sbm
from sbm.errors import DataError, MemoryPlanError, SettingsError

FEATURES = 12


def random_rows(seed=0, n=400, noise=0.5):
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, FEATURES)).astype(np.float32).astype(float)
    X[random.random(X.shape) < 0.4] = 0
    y = np.sign(X @ random.normal(size=FEATURES) + noise * random.normal(size=n))
    y[y == 0] = 1
    return X, y


def split_rows(path, X, y, **options):
    sbm.split([write_rows(path.with_suffix(".svm"), X, y)], path, **options)
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """400 rows in five blocks of several chunks each; models go elsewhere."""
    with pytest.MonkeyPatch.context() as context:
        patch(context, "CHUNK_NNZ", 100)
        path = split_rows(tmp_path_factory.mktemp("train") / "d.sbm", *random_rows(), blocks=5)
    assert all(len(chunks) > 3 for chunks in BlockStore(path).chunks)
    return path


# ------------------------------------------------------------------------------- the optimum


# ----------------------------------------------------------------------------- the certificate


@pytest.mark.parametrize("policy", ["gradient", "mixed", "random"])
def test_weights_are_the_sum_over_alphas(store, tmp_path, policy):
    model, report, _ = fit(
        store,
        tmp_path / "m.model",
        C=0.1,
        policy=policy,
        tol=1e-4,
        max_passes=300,
        rounds=2,
        solver="dual",
    )
    stored, opened, parts = store_rows(store), BlockStore(store), []
    for pieces in Run.read(tmp_path / "m.model.run")["shape"]["parts"]:
        parts.append([])
        for block, first, step, _ in pieces:
            ends = np.cumsum([chunk.rows for chunk in opened.chunks[block]])
            chunks = np.split(np.arange(ends[-1]), ends[:-1])[first::step]
            parts[-1] += [stored[block][row] for row in np.concatenate(chunks)]
    run, kept = Run.reopen(tmp_path / "m.model.run", [len(rows) for rows in parts])
    w, support = np.zeros(FEATURES), 0
    for part, rows in enumerate(parts):
        alpha, mine = run.load(part).values, kept["home"] == part
        assert not alpha[kept["row"][mine]].any(), "a cached row has a second home"
        alpha[kept["row"][mine]] = kept["alpha"][mine]
        support += np.count_nonzero(alpha)
        for a, (label, features) in zip(alpha, rows, strict=True):
            for number, x in features:
                w[number - 1] += a * label * x
    np.testing.assert_allclose(w, full_weights(model, FEATURES)[:, 0], atol=1e-9 * report["primal"])
    assert support == report["n_support"]
    X, y = random_rows()
    primal = 0.5 * w @ w + 0.1 * np.maximum(0, 1 - y * (X @ w)).sum()
    assert primal == pytest.approx(report["primal"], rel=1e-9)


def test_exhausted_budget_is_reported_and_certified(store, tmp_path):
    path = tmp_path / "m.model"
    _, report, passes = fit(store, path, tol=1e-12, max_passes=2)
    assert not report["converged"]
    assert report["passes"] == len(passes) == 2
    assert passes[-1]["certificate"]["relative_gap"] == report["relative_gap"] > 1e-12
    assert report["primal"] - report["dual"] == pytest.approx(report["gap"], rel=1e-6)
    assert not sbm.Model.load(path).converged
    _, report, _ = fit(store, tmp_path / "n.model", tol=1e-300, max_passes=10**6, time_limit=0.2)
    assert not report["converged"]
    assert 0.2 <= report["seconds"]["total"] < 20


@pytest.mark.parametrize("C", [1e-6, 10.0])  # objectives far below 1, and far above
def test_first_certificate_within_tolerance_ends_training(store, tmp_path, C):
    _, report, passes = fit(store, tmp_path / "m.model", C=C, tol=1e-2, max_passes=500)
    proven = [p["certificate"]["relative_gap"] for p in passes if p["certificate"]]
    assert proven[-1] == report["relative_gap"] <= 1e-2
    assert all(gap > 1e-2 for gap in proven[:-1])
    assert (report["gap"] <= 1e-2) == (C < 1)


# ------------------------------------------------------------------------------- invariances


@pytest.mark.long
def test_model_bytes_depend_only_on_seed(store, tmp_path, monkeypatch):
    options = {"tol": 1e-5, "cache_frac": "auto", "max_passes": 100}
    path = tmp_path / "m.model"
    _, expected, passes = fit(store, path, threads=2, **options)
    for threads in (1, 2, 6):
        _, report, again = fit(store, tmp_path / f"{threads}.model", threads=threads, **options)
        assert (tmp_path / f"{threads}.model").read_bytes() == path.read_bytes()
        assert [p["dual"] for p in passes] == [p["dual"] for p in again]
        assert (report["visits"], report["updates"]) == (expected["visits"], expected["updates"])
    fit(store, tmp_path / "s.model", seed=1, **options)
    assert (tmp_path / "s.model").read_bytes() != path.read_bytes()
    patch(monkeypatch, "COMMIT_SECONDS", -1.0)
    patch(monkeypatch, "EVICTED_BYTES", 1)
    patch(monkeypatch, "UNWRITTEN_BYTES", 1)
    fit(store, tmp_path / "c.model", **options)
    assert (tmp_path / "c.model").read_bytes() == path.read_bytes()


@pytest.mark.long
def test_listed_rounds_repeat_slow_disk_training(store, tmp_path, monkeypatch):
    patch(monkeypatch, "LEAST_BYTES", 0)
    monkeypatch.setattr(MemoryPlan, "staying", lambda *_: [])  # every pass reads all
    patch(monkeypatch, "PassCost", lambda size, disk, *_: pace.PassCost(size, disk, disk, disk / 8))
    size = sum(b["bytes"] for b in BlockStore(store).manifest["blocks"])
    options = {"mem": "400MB", "tol": 1e-6, "max_passes": 3}
    how = TrainOptions(read_rate=size / 0.2)
    first, slow = train_ranks(SerialComm(), store, tmp_path / "m.model", options, how)
    assert slow["seconds"]["disk"] >= 0.2  # of each pass
    assert slow["rounds"][1:] == [pace.MOST_ROUNDS] * 2
    listed = {**options, "rounds": ",".join(map(str, slow["rounds"]))}
    second, replay = sbm.train(store, tmp_path / "m.model", listed)
    assert replay["rounds"] == slow["rounds"] == second.info["rounds"]
    np.testing.assert_array_equal(first.W, second.W)
    assert first.info["certificate"] == second.info["certificate"]
    assert replay["updates"] == slow["updates"]


@pytest.mark.long
def test_cache_follows_free_alphas_within_plan(tmp_path):
    path = split_rows(tmp_path / "d.sbm", *random_rows(n=1500, noise=0.05), blocks=12)
    _, report, passes = fit(path, cache_frac="auto", tol=1e-6, max_passes=300, solver="dual")
    assert report["converged"]
    part = max(sum(c.rows for c in chunks) for chunks in BlockStore(path).chunks)
    assert passes[0]["cache_rows"] == part  # half of the working set
    for before, after in itertools.pairwise(passes):
        wanted = int(1.5 * before["free_rows"])
        assert after["cache_rows"] == min(3 * part, max(part // 3, wanted))
        assert after["cached_rows"] <= after["cache_rows"]


@pytest.mark.long
def test_blocks_order_cache_and_policy_keep_optimum(tmp_path):
    X, y = random_rows(7, n=200)
    order = np.argsort(y, kind="stable")  # label-sorted input
    models = []
    for policy, rows, n_blocks, cache_frac in (
        ("gradient", slice(None), 1, 0.5), ("gradient", order, 12, 0.2),
        ("random", order[::-1], 3, 0.7), ("gradient", order, 3, 0.0),
    ):  # fmt: skip
        path = split_rows(tmp_path / f"{len(models)}.sbm", X[rows], y[rows], blocks=n_blocks)
        model, report, _ = fit(
            path, C=0.1, policy=policy, cache_frac=cache_frac, tol=1e-6, max_passes=10**5
        )
        assert report["converged"]
        models.append(full_weights(model, FEATURES))
    for W in models[1:]:  # |W - W*| <= sqrt(2 gap)
        np.testing.assert_allclose(W, models[0], atol=2 * np.sqrt(2e-6 * report["primal"]))


@pytest.mark.long
def test_cut_blocks_keep_optimum(store, tmp_path):
    options = {"C": 0.1, "tol": 1e-4, "max_passes": 20000}
    whole, _, _ = fit(store, tmp_path / "m.model", **options)
    with pytest.raises(MemoryPlanError, match=r"mem='50MB' .*least mem='\d+MB'$") as error:
        fit(store, tmp_path / "n.model", mem="50MB", **options)
    assert not (tmp_path / "n.model.run").exists()
    least = error.value.least_bytes
    cut, report, _ = fit(store, tmp_path / "n.model", mem=least, **options)
    assert len(Run.read(tmp_path / "n.model.run")["shape"]["parts"]) > 5
    assert report["converged"]
    np.testing.assert_allclose(whole.W, cut.W, atol=2 * np.sqrt(2e-4 * report["primal"]))


# --------------------------------------------------------------------------- unusual data


def test_rows_without_features_have_zero_weights(tmp_path):
    (tmp_path / "d.svm").write_text("+1\n-1\n+1\n+1 7:0\n-1 8:0\n")
    sbm.split([tmp_path / "d.svm"], tmp_path / "d.sbm")
    model, report, _ = fit(tmp_path / "d.sbm")
    assert not model.W.any()
    assert report["converged"]
    assert report["primal"] == report["dual"] == 5.0  # every row loses 1 whatever w is
    assert report["relative_gap"] == 0


REFUSALS = [
    ("real", {"loss": "hinge"}, DataError, "real.sbm .* real-valued .* loss='epsilon_insensitive'"),
    ("real", {"loss": "weston_watkins"}, DataError, "real.sbm .* real-valued"),
    ("one", {"loss": "crammer_singer"}, DataError, "one.sbm .* label 3; .* two classes"),
    ("empty", {}, DataError, "empty.sbm .*no rows"),
    ("two", {"class_weight": {3: 2.0}}, SettingsError, "label 3, .* -1, 1"),
    ("one", {"threshold": "f1", "validate": 0.5}, SettingsError, "needs two classes, .* have 1"),
    ("two", {"policy": "gradeint"}, SettingsError, "policy 'gradeint'.* mean 'gradi"),
]


@pytest.mark.parametrize(("data", "options", "error", "facts"), REFUSALS)
def test_invalid_data_and_settings_are_refused(tmp_path, monkeypatch, data, options, error, facts):
    patch(monkeypatch, "MOST_LABELS", 5)
    labels = {"real": np.arange(9) + 0.5, "one": [3, 3], "two": [-1, 1], "empty": [-1, 1]}[data]
    path = split_rows(tmp_path / f"{data}.sbm", np.ones((len(labels), 1)), labels)
    if data == "empty":  # no command writes one; dropping the last block of a store could
        empty = {"blocks": [], "rows": 0, "nnz": 0, "generations": [], "features": 0}
        blocks.write_manifest(path, blocks.read_manifest(path) | empty)
        assert sbm.info(path)["rows"] == 0
    with pytest.raises(error, match=facts):
        fit(path, **options)
    assert not (tmp_path / "m.model.run").exists()


def test_unusual_labels_are_reported():
    class Labelled:
        name, n_rows, label_names, label_counts = "d", 9, (), ()

        def __init__(self, labels):
            self.labels = labels

    def told(labels, **settings):
        return sbm.engine.problems.label_warning(sbm.Settings(**settings), Labelled(labels))

    assert "label 3" in told([3.0])
    assert "0.5" in told([0.5, 1.0, 2.0])
    assert "3 classes" in told([0.5, 1.0, 2.0])
    assert told([1.0, 2.0, 3.0]) is told([0.5, 1.0]) is told([]) is told(None) is None
    assert told([0.5, 1.0, 2.0], loss="epsilon_insensitive") is None


@pytest.mark.long
def test_log_has_one_line_per_pass(store, tmp_path):
    _, report, passes = fit(
        store, tmp_path / "m.model", tol=1e-6, rounds=1, max_passes=100, solver="dual"
    )
    run = tmp_path / "m.model.run"
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    assert [r["event"] for r in log] == ["pass"] * len(passes) + ["end"]
    assert log[-1]["relative_gap"] == report["relative_gap"]
    assert [r["pass"] for r in log[:-1]] == list(range(1, len(passes) + 1))
    assert sum(r["visits"] for r in log[:-1]) == report["visits"] == log[-1]["visits"]
    assert sum(r["updates"] for r in log[:-1]) == report["updates"]
    data = BlockStore(store)
    for r in log[:-1]:
        assert r["rounds"] == 1
        assert r["rows_per_second"] * r["seconds"]["solve"] == pytest.approx(r["visits"])
        assert r["nnz_per_second"] == pytest.approx(r["rows_per_second"] * data.nnz / data.n_rows)
        assert r["estimated_relative_gap"] == pytest.approx(r["estimated_gap"] / r["dual"])
    assert log[-2]["rows_at_rest"] > 100  # which are not visited
    assert log[-2]["visits"] < log[0]["visits"]
    record = Run.read(run)
    expected = {"run.json", "log.jsonl", "lock", record["state"], *record["files"]}
    assert {p.name for p in run.iterdir()} == expected
