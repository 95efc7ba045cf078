"""One-vs-rest of more classes than fit into memory: some classes at a time; sparse weights."""

import json
import subprocess
import sys
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
from inside import (
    BlockStore,
    Job,
    Model,
    SerialComm,
    SparseWeights,
    Task,
    TrainOptions,
    divide_classes,
    patch,
    plan_of,
)
from inside import engine_clock_module as engine_clock
from inside import training_ranks_module as ranks
from inside import training_turns_module as turns

import sbm
from sbm.errors import MemoryPlanError, StoreError

PROVEN = ("primal", "dual", "gap", "relative_gap", "drift", "n_support", "n_free")
N_CLASSES, N_ROWS = 30, 1500
SETTINGS = {"loss": "hinge", "C": 1.0, "bias": 1.0, "max_passes": 200}
LITTLE = {**SETTINGS, "mem": "72MB"}  # for a third of the weights and their copy


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    random, folder = np.random.default_rng(0), tmp_path_factory.mktemp("turns")
    with open(folder / "d.svm", "w") as file:
        for _ in range(N_ROWS):
            y = random.integers(N_CLASSES)
            own = 50_000 + 5 * y + random.choice(5, 2, replace=False)
            ids = np.union1d(own, random.integers(0, 50_000, 15))
            file.write(f"{10 - y} {' '.join(f'{k}:1' for k in ids)}\n")
    sbm.split(folder / "d.svm", folder / "d.sbm", blocks=3)
    return folder / "d.sbm"


def in_turns(store, path, **more):
    stages = []

    class Progress(sbm.Progress):
        def stage(self, text):
            stages.append(text)

    _, report = sbm.train(store, path, {**LITTLE, **more}, progress=Progress())
    return report, [text for text in stages if text.startswith("turn ")]


@pytest.mark.slow
def test_rows_stay_in_one_part_in_two_turns(store, tmp_path, monkeypatch):
    path, some = tmp_path / "m.model", {"mem": "79MB"}
    by_blocks, turn_lines = in_turns(store, tmp_path / "b.model", **some)
    assert (by_blocks["blocks"], turn_lines) == (3, [])
    patch(monkeypatch, "MOST_WHOLE", 10**9)
    report, turn_lines = in_turns(store, path, **some)
    assert (report["blocks"], len(turn_lines)) == (1, 2)
    assert report["converged"]
    assert report["dual"] <= by_blocks["primal"]
    assert by_blocks["dual"] <= report["primal"]


@pytest.mark.long
def test_turns_reach_the_optimum_of_one_training(store, tmp_path):
    path = tmp_path / "m.model"
    report, turn_lines = in_turns(store, path, threads=1)
    whole, one = sbm.train(store, tmp_path / "one.model", SETTINGS)
    assert len(turn_lines) > 2
    assert report["converged"]
    assert report["dual"] <= one["primal"]
    assert one["dual"] <= report["primal"]
    found = Model.load(path)
    assert found.labels == whole.labels
    assert found.certificate["primal"] == report["primal"]
    data = store.with_suffix(".svm")
    assert sbm.predict(path, data)["accuracy"] == sbm.predict(whole, data)["accuracy"]
    left = {one.name for one in (tmp_path / "m.model.run").iterdir()}
    assert not [name for name in left if name.startswith(("classes-", "shared."))]
    assert in_turns(store, path)[0]["was_finished"]
    assert in_turns(store, tmp_path / "two.model", threads=2)[0]["primal"] == report["primal"]
    assert (tmp_path / "two.model").read_bytes() == path.read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("steps", [2, 12, 60, 90])
def test_turns_resume_with_the_same_bytes(store, tmp_path, steps):
    path, left = tmp_path / "m.model", [steps]

    def is_stopped():
        left[0] -= 1
        return left[0] < 0

    with pytest.raises(KeyboardInterrupt):
        sbm.train(store, path, LITTLE, is_stopped=is_stopped)
    assert not path.exists()
    with pytest.raises(sbm.SettingsError, match="other settings"):
        sbm.train(store, path, {**LITTLE, "C": 2.0})
    report, _ = in_turns(store, path)
    in_turns(store, tmp_path / "once.model")
    assert path.read_bytes() == (tmp_path / "once.model").read_bytes()
    assert report["passes"] == Model.load(path).info["passes"]


@pytest.mark.long
def test_run_is_in_use_between_turns(store, tmp_path):
    path, refused = tmp_path / "m.model", []

    class Progress(sbm.Progress):
        def stage(self, text):
            if text.startswith(("shared start", "turn ")):
                for more in ({}, {"mem": "1GB"}):
                    for resume in (None, False):
                        with pytest.raises(StoreError, match="in use by another sbm process"):
                            sbm.train(store, path, {**LITTLE, **more}, resume=resume)
                refused.append(text)

    sbm.train(store, path, LITTLE, progress=Progress())
    assert len(refused) > 3
    in_turns(store, tmp_path / "alone.model")
    assert path.read_bytes() == (tmp_path / "alone.model").read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_shared_start_saves_visits(store, tmp_path, monkeypatch, loss):
    weights = np.random.default_rng(1).integers(0, 4, N_ROWS)
    np.savetxt(tmp_path / "weights.txt", weights)
    more = {"loss": loss, "class_weight": {"3": 2.0}, "weights": str(tmp_path / "weights.txt")}
    more |= {"mem": "400MB", "threads": 1}
    patch(monkeypatch, "MOST_CLASSES", 10)
    report, turn_lines = in_turns(store, tmp_path / "m.model", **more)
    monkeypatch.setattr(turns, "_shared_start", lambda *_: None)
    alone, _ = in_turns(store, tmp_path / "alone.model", **more)
    assert len(turn_lines) > 2
    assert report["visits"] < 0.7 * alone["visits"]
    assert report["converged"]
    assert report["dual"] <= alone["primal"]
    assert alone["dual"] <= report["primal"]


@pytest.mark.long
def test_turns_are_pruned(store, tmp_path):
    whole, plain = tmp_path / "whole.model", in_turns(store, tmp_path / "plain.model")[0]
    report, _ = in_turns(store, whole, prune=0.1)
    assert report["dropped"] > 0
    assert report["converged"]
    assert report["primal"] == pytest.approx(plain["primal"] + report["added"])
    assert report["gap"] == pytest.approx(plain["gap"] + report["added"])
    assert Model.load(whole).certificate["gap"] == report["gap"]
    assert np.abs(Model.load(whole, most_dense=0).W.entries[1]).min() > 0.1
    assert in_turns(store, whole, prune=0.1)[0]["was_finished"]


@pytest.mark.parametrize("after", [0.0, 3.0, 6.0])  # of the last pass, certificate and model
def test_time_limit_bounds_all_turns(store, tmp_path, monkeypatch, after):
    now, limits = [1000.0], []
    report = dict.fromkeys((*PROVEN, *ranks._SUMMED, "passes", "bytes_read"), 1.0)
    report |= {"passes_left": None, "is_falling": True, "resumed": False}

    def train(part):
        limits.append(part.asked.time_limit)
        now[0] = max(now[0] + 4.0, 1000.0 + limits[-1]) + after
        return None, report | {"seconds": {"total": now[0] - 1000.0}}

    for module in (turns, engine_clock):
        monkeypatch.setattr(module, "clock", lambda: now[0])
    patch(monkeypatch, "_join", lambda *some: SimpleNamespace(save=Path.touch))
    monkeypatch.setattr(turns.Model, "load", lambda *some, **more: None)
    monkeypatch.setattr(turns.Run, "read", lambda folder: {})
    run = SimpleNamespace(log=lambda event: None, note=lambda **facts: None)
    monkeypatch.setattr(Job, "open_run", lambda *_: nullcontext(run))
    settings = sbm.Settings(**SETTINGS, time_limit=100.0)
    rows = BlockStore(store)
    job = Job(rows, tmp_path / "m.model", settings, TrainOptions(), 1000.0, SerialComm())
    task = Task.of(settings, rows)
    _, total = turns.train_in_turns(job, task, [slice(k, k + 5) for k in range(0, 30, 5)], train)
    assert len(limits) == 7  # with the shared start
    assert total["seconds"]["total"] == pytest.approx(100.0)


def test_turn_has_no_more_classes_than_a_checkpoint_holds(store, monkeypatch):
    settings = sbm.Settings(**SETTINGS, mem="1GB")
    assert divide_classes(Task.of(settings, BlockStore(store))) == [slice(0, N_CLASSES)]
    patch(monkeypatch, "MOST_CLASSES", 11)
    cut = divide_classes(Task.of(settings, BlockStore(store)))
    assert [(one.start, one.stop) for one in cut] == [(0, 10), (10, 20), (20, 30)]


def test_memory_stays_within_its_bound(tmp_path):
    with open(tmp_path / "d.svm", "w") as file:
        for i in range(120):  # all weights of all 30 classes are above or below 0
            ids = range(1 + 400 * i, 401 + 400 * i)
            file.write(f"{i % 30} {' '.join(f'{k}:1' for k in ids)}\n")
    sbm.split(tmp_path / "d.svm", tmp_path / "d.sbm", blocks=3)
    words = ["train", "d.sbm", "-o", "m.model", "--mem", "73MB", "--bias", "1", "--json"]
    line = [sys.executable, "-m", "sbm", *words]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, check=True)
    assert json.loads(done.stdout)["peak_rss_bytes"] <= 119_000_000
    with pytest.raises(StoreError, match="kept no alphas"):
        sbm.train(tmp_path / "d.sbm", tmp_path / "m.model", {"bias": 1.0, "warm_start": True})


@pytest.mark.parametrize("loss", ["hinge", "crammer_singer"])
def test_weights_leave_room_for_rows(store, tmp_path, loss):
    """With one array of weights, blocks are screened late and certificates read them twice."""
    job, path = {**SETTINGS, "loss": loss, "mem": "77MB"}, tmp_path / "m.model"
    plan = plan_of(Task.of(sbm.Settings(**job), BlockStore(store)))
    assert plan.is_lean
    assert plan.items["weights"] == 8 * (BlockStore(store).n_features + 1) * N_CLASSES
    _, report = sbm.train(store, path, {**job, "threads": 1})
    _, one = sbm.train(store, tmp_path / "one.model", {**SETTINGS, "loss": loss})
    assert report["converged"]
    assert report["drift"] == 0.0
    assert report["dual"] <= one["primal"]
    assert one["dual"] <= report["primal"]
    assert Model.load(path).labels == Model.load(tmp_path / "one.model").labels
    left = [8]

    def is_stopped():
        left[0] -= 1
        return left[0] < 0

    other = tmp_path / "other.model"
    with pytest.raises(KeyboardInterrupt):
        sbm.train(store, other, {**job, "threads": 2}, is_stopped=is_stopped)
    _, again = sbm.train(store, other, {**job, "threads": 2})
    assert again["resumed"]
    assert other.read_bytes() == path.read_bytes()


def test_many_classes_have_two_arrays_of_weights(store, monkeypatch):
    """Their rows have so many variables that blocks took more memory than planned."""
    task = Task.of(sbm.Settings(**SETTINGS, mem="77MB"), BlockStore(store))

    def is_lean() -> bool:
        with suppress(MemoryPlanError):
            return plan_of(task).is_lean
        return False

    assert is_lean()
    monkeypatch.setattr("sbm.programs.training.needs.MANY", N_CLASSES)
    assert not is_lean()


def test_refusal_names_what_fits(store, tmp_path):
    with pytest.raises(MemoryPlanError, match="loss='hinge', which trains some classes at a time"):
        sbm.train(store, tmp_path / "m.model", {**LITTLE, "mem": "69MB", "loss": "crammer_singer"})
    with pytest.raises(MemoryPlanError) as least:
        sbm.train(store, tmp_path / "m.model", {**LITTLE, "mem": "54MB"})
    assert least.value.least_bytes < 117_000_000  # not that of all classes


def test_plan_counts_turns(store):
    assert sbm.plan(store, LITTLE)["turns"] > 2


def test_sparse_weights_predict_like_dense_ones(store, tmp_path):
    path, data, random = tmp_path / "m.model", store.with_suffix(".svm"), np.random.default_rng(0)
    ids = random.choice(50_100, 20_000, replace=False)
    W = random.normal(size=(20_000, 7)) * (random.random((20_000, 7)) < 0.2)
    info = {"loss": "hinge"}
    Model(ids, W, [float(k) for k in range(7)], 1.0, np.arange(7.0), info).save(path)
    dense = Model.load(path)
    sparse = Model.load(path, most_dense=0)
    assert isinstance(sparse.W, SparseWeights)
    assert np.array_equal(sparse.W, dense.W)
    assert np.array_equal(sparse.W[[3, 1]], dense.W[[3, 1]])
    assert sparse.n_nonzero == dense.n_nonzero
    assert sparse.top(3, 1.0) == dense.top(3, 1.0)
    X = scipy.sparse.random(20, 50_100, 0.01, "csr", random_state=0)
    assert np.allclose(sparse.decision_function(X), dense.decision_function(X), rtol=1e-12)
    outputs = []
    for k, model in enumerate((dense, sparse)):
        sbm.predict(model, data, tmp_path / f"{k}.txt")
        sbm.export(model, format="json", output=tmp_path / f"{k}.json")
        model.save(tmp_path / f"{k}.model")
        names = f"{k}.txt", f"{k}.json", f"{k}.model"
        outputs.append([(tmp_path / name).read_bytes() for name in names])
    assert outputs[0] == outputs[1]
    assert json.loads(outputs[0][1])["weights"]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError, match="damaged"):
        Model.load(path)
