"""Weston-Watkins by blocks of classes: the optimum, and the same bytes for any processes."""

import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
from helpers import fit, full_weights, write_rows
from threads import in_threads

import sbm
from sbm.distributed.comm import SerialComm
from sbm.errors import MemoryPlanError, SettingsError
from sbm.programs.classblocks import division
from sbm.programs.classblocks.moving import MovingBlocks
from sbm.programs.classblocks.plan import cut_meeting, make_schedule, plan_classes
from sbm.programs.classblocks.training import train_class_blocks
from sbm.settings import Settings
from sbm.store.blocks import BlockStore, Chunk
from sbm.store.run import Run

LOSS = "weston_watkins"
N_FEATURES, COST = 12, 0.01


def make_rows(n_classes, n=160, seed=0):
    """Rows around a centre for each class, with about a third of the features 0."""
    random = np.random.default_rng(seed)
    y = random.integers(0, n_classes, n)
    X = random.normal(size=(n_classes, N_FEATURES))[y] + random.normal(size=(n, N_FEATURES))
    X[random.random(X.shape) < 0.3] = 0
    X[::40] = 0
    return X.astype(np.float32), y.astype(float)


def make_store(folder, n_classes, n=160):
    sbm.split(write_rows(folder / "t.svm", *make_rows(n_classes, n)), folder / "t.sbm", blocks=3)
    return folder / "t.sbm"


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    made = {}

    def store_of(n_classes):
        if n_classes not in made:
            made[n_classes] = make_store(tmp_path_factory.mktemp("store"), n_classes)
        return made[n_classes]

    return store_of


def train(store, model, n_ranks=1, resume=None, is_stopped=lambda: False, **settings):
    """Train in N processes; the model, and the report of each."""
    chosen = {"loss": LOSS, "C": COST, "tol": 1e-3, "max_passes": 300, "mem": "400MB", "threads": 1}
    chosen = Settings(**{**chosen, "class_blocks": 4, **settings})

    def work(comm):
        return train_class_blocks(
            BlockStore(store), model, chosen, comm, resume=resume, is_stopped=is_stopped
        )

    found = [work(SerialComm())] if n_ranks == 1 else in_threads(n_ranks, work)
    assert all(made is None for made, _ in found[1:])
    return found[0][0], [report for _, report in found]


def stop(store, path, n_ranks, asks):
    asked = []
    with pytest.raises(KeyboardInterrupt):
        train(store, path, n_ranks, is_stopped=lambda: len(asked) > asks or asked.append(1))
    assert not path.exists()


@pytest.fixture(scope="module")
def whole(stores, tmp_path_factory):
    """The bytes of a training that nothing disturbed, by any number of processes."""
    path = tmp_path_factory.mktemp("whole") / "m.model"
    train(stores(7), path)
    return path.read_bytes()


# ------------------------------------------------------------------------------------ the optimum


@pytest.mark.parametrize(("n_blocks", "bias"), [(1, 0.0), (3, 1.0), (4, 0.0)])
def test_optimum_is_that_of_training_by_row(stores, tmp_path, n_blocks, bias):
    weight = {"class_weight": {0: 2.0, 3: 0.5}, "bias": bias, "tol": 1e-4}
    model, (report,) = train(stores(7), tmp_path / "m.model", class_blocks=n_blocks, **weight)
    assert report["converged"]
    assert report["drift"] < 1e-12
    other, theirs, _ = fit(stores(7), loss=LOSS, C=COST, max_passes=3000, rounds=10, **weight)
    assert report["gap"] == pytest.approx(report["primal"] - report["dual"], rel=1e-6, abs=1e-9)
    assert report["dual"] <= theirs["primal"] * (1 + 1e-12)
    assert theirs["dual"] <= report["primal"] * (1 + 1e-12)
    distance = np.hypot(
        np.linalg.norm(full_weights(model, N_FEATURES) - full_weights(other, N_FEATURES)),
        np.linalg.norm(model.bias_weights - other.bias_weights),
    )
    assert distance <= np.sqrt(2 * report["gap"]) + np.sqrt(2 * theirs["gap"]) + 1e-9
    for name in ("n_support", "n_free"):
        assert report[name] == pytest.approx(theirs[name], abs=3)


def test_certificate_is_that_of_the_written_model(stores, tmp_path):
    model, (report,) = train(stores(5), tmp_path / "m.model", class_blocks=3, max_passes=4)
    X, y = make_rows(5)
    assert (report["converged"], report["passes"]) == (False, 4)
    z = X.astype(float) @ full_weights(model, N_FEATURES)
    own = np.arange(len(z)), y.astype(int)
    slack = np.maximum(0, 1 - z[own][:, None] + z)
    slack[own] = 0
    expected = 0.5 * (model.W**2).sum() + COST * slack.sum()
    assert report["primal"] == pytest.approx(expected, rel=1e-12)
    assert model.info["certificate"]["primal"] == report["primal"]
    log = [json.loads(x) for x in (tmp_path / "m.model.run/log.jsonl").read_text().splitlines()]
    assert [one.get("pass") for one in log] == [1, 2, 3, 4, None]
    assert log[3]["certificate"]["primal"] == report["primal"]
    assert sum(one["visits"] for one in log[:4]) == report["visits"]
    duals = [one["dual"] for one in log[:4]]
    assert duals == sorted(duals)
    assert duals[-1] == pytest.approx(report["dual"])
    assert log[3]["bytes_read"] > log[0]["bytes_read"] > 0
    assert log[2]["estimated_relative_gap"] == pytest.approx(log[2]["estimated_gap"] / duals[2])


# ------------------------------------------------------------------------------- the same bytes


@pytest.mark.long
@pytest.mark.parametrize(
    "case",
    [
        {"n_classes": 7, "class_blocks": 5, "bias": 1.0},
        {"n_classes": 6, "class_blocks": 9},  # some are empty
        {"n_classes": 2, "class_blocks": 2},  # fewer than processes
        {"n_classes": 7, "class_blocks": 6, "rounds": "1,2", "class_weight": {2: 0.0}},
    ],
    ids=str,
)
def test_number_of_processes_changes_no_byte(stores, tmp_path, case):
    settings = dict(case)
    store = stores(settings.pop("n_classes"))
    models = []
    for n_ranks in (1, 4):
        path = tmp_path / f"{n_ranks}.model"
        _, reports = train(store, path, n_ranks, threads=n_ranks, **settings)
        models.append(path.read_bytes())
        for name in ("primal", "dual", "gap", "passes", "updates", "visits", "n_support", "n_free"):
            assert len({report[name] for report in reports}) == 1
        assert reports[0]["processes"] == n_ranks
        assert reports[0]["converged"]
    assert len(set(models)) == 1


def test_pieces_keep_optimum_and_bytes(stores, tmp_path, monkeypatch, whole):
    def plan(*arguments):  # have room for 60 rows at a time, in chunks of 10
        made = plan_classes(*arguments)
        room = 60 * made.row + 60 * N_FEATURES * made.nonzero
        return replace(made, room=room, chunk_rows=10)

    monkeypatch.setattr(division, "plan_classes", plan)
    monkeypatch.setattr("sbm.programs.classblocks.plan.ENCODING", 0)
    models = []
    for n_ranks in (1, 2):
        path = tmp_path / f"{n_ranks}.model"
        model, reports = train(stores(7), path, n_ranks, tol=1e-2)
        models.append(path.read_bytes())
        assert reports[0]["converged"]
    assert models[0] == models[1] != whole
    (tmp_path / "whole.model").write_bytes(whole)
    other = sbm.Model.load(tmp_path / "whole.model")
    gaps = reports[0]["gap"], other.info["certificate"]["gap"]
    assert 0 < np.linalg.norm(other.W - model.W) <= sum(np.sqrt(2 * gap) for gap in gaps)


# ---------------------------------------------------------------------------- ends and new starts


@pytest.mark.parametrize("n_ranks", [1, 3])
def test_stopped_training_resumes_to_same_bytes(stores, tmp_path, n_ranks, whole):
    path = tmp_path / "m.model"
    stop(stores(7), path, n_ranks, 12 * n_ranks)
    assert not list(tmp_path.rglob("*.sbb"))  # the sorted rows
    _, reports = train(stores(7), path, n_ranks, resume=True)
    assert all(report["resumed"] for report in reports)
    assert path.read_bytes() == whole
    assert not list(tmp_path.rglob("*.sbb"))
    _, reports = train(stores(7), path, n_ranks)
    assert all(report["was_finished"] for report in reports)
    path.unlink()
    train(stores(7), path, n_ranks)  # it is written again, from the run
    assert path.read_bytes() == whole


def test_raised_budget_resumes_where_it_ended(stores, tmp_path):
    path = tmp_path / "m.model"
    train(stores(7), path, 2, max_passes=2)
    before = Run.read(tmp_path / "m.model.run/rank-0-of-2")
    _, (report, _) = train(stores(7), path, 2)
    assert report["resumed"]
    assert report["converged"]
    assert report["seconds"]["total"] > before["elapsed"]
    assert report["seconds"]["solve"] > before["seconds"]["solve"] > 0


@pytest.mark.parametrize(("late", "resumed"), [(0, True), (1, True), ("gone", False)])
def test_processes_go_back_to_common_commit(stores, tmp_path, late, resumed, whole):
    path = tmp_path / "m.model"
    stop(stores(7), path, 2, 30)
    with pytest.raises(SettingsError, match=r"m\.model\.run .*2 processes.* 1; .*--fresh"):
        train(stores(7), path)
    if late == "gone":
        shutil.rmtree(tmp_path / "m.model.run" / "rank-1-of-2")
    else:
        Run.roll_back(tmp_path / "m.model.run" / f"rank-{late}-of-2")
    _, reports = train(stores(7), path, 2)
    assert [report["resumed"] for report in reports] == [resumed] * 2
    assert path.read_bytes() == whole


# ------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"loss": "crammer_singer"}, "class_blocks is 2, .* weston_watkins.* crammer_singer"),
        ({"weights": "w"}, "weights .* class_blocks"),
        ({"warm_start": True}, "warm_start .* class_blocks"),
        ({"calibrate": True}, "calibrate .* class_blocks"),
        ({"class_blocks": 0}, "class_blocks is 0; .* 1 to 1024"),
        ({"class_blocks": 1025}, "class_blocks is 1025"),
        ({"class_blocks": True}, "class_blocks is True"),
    ],
)
def test_unfit_settings_are_refused(stores, tmp_path, options, facts):
    with pytest.raises(SettingsError, match=facts):
        train(stores(5), tmp_path / "m.model", **{"class_blocks": 2, **options})
    assert os.listdir(tmp_path) == []


def test_memory_plan_keeps_the_bound(stores):
    store, sizes = BlockStore(stores(7)), [2, 2, 2, 1]

    def plan(mem, ranks=2, n_weights=10**6):
        return plan_classes(store, mem, make_schedule(4, ranks), sizes, n_weights)

    facts = r"--mem 100 MB .*4 blocks .*weights 112 MB, as much for rows 112 MB.*more processes"
    with pytest.raises(MemoryPlanError, match=facts) as error:
        plan(10**8)
    least = error.value.least_bytes
    assert least - 1 <= plan(least).total <= least
    with pytest.raises(MemoryPlanError):
        plan(least - 1)
    plans = [plan(10**9, n) for n in (1, 2, 4)]
    assert len({(plan.room, plan.chunk_rows) for plan in plans}) == 1
    assert plans[0].items["weights"] > plans[1].items["weights"]
    with pytest.raises(MemoryPlanError) as error:
        plan(10**8, n_weights=10)
    assert "processes" not in str(error.value)


@pytest.mark.parametrize(("n", "n_parts"), [(1, 8), (2, 8), (5, 3), (7, 2), (20, 1)])
def test_meetings_are_cut_into_fewest_pieces(stores, n, n_parts):
    plan = plan_classes(BlockStore(stores(7)), 10**9, make_schedule(2, 1), [4, 3], 10)
    chunks = [Chunk(0, k, 1, 10, 100, 0) for k in range(12)]
    small = replace(plan, room=n * plan.bytes_of(chunks[:1]))
    parts = cut_meeting(small, [chunks[:8], chunks[8:]])
    assert sorted(c.offset for part in parts for c in part) == list(range(12))
    assert len(parts) == n_parts
    assert n == 1 or all(plan.bytes_of(part) <= small.room for part in parts)


# ------------------------------------------------------------------------------ blocks that move


@pytest.mark.parametrize("density", [0.0, 0.1, 0.3, 0.9])
def test_moved_blocks_arrive_and_sparse_ones_cost_less(density):
    rows, width = [3, 2, 0, 3], 50
    random = np.random.default_rng(1)
    contents = [random.normal(size=(n, width)) * (random.random((n, width)) < density)
                for n in rows]  # fmt: skip

    def work(comm):
        mine, theirs = ([0, 2], [1, 3])[:: 1 if comm.rank == 0 else -1]
        other = 1 - comm.rank
        blocks = MovingBlocks(comm, rows, width, mine, 4)
        for b in mine:
            blocks.block(b)[:] = contents[b]
        for _ in range(3):
            blocks.move([(b, other) for b in mine], [(b, other) for b in theirs])
            mine, theirs = theirs, mine
            assert blocks.here == mine
            for b in mine:
                np.testing.assert_array_equal(blocks.block(b), contents[b])
                np.testing.assert_array_equal(blocks.table[blocks.place(b)], contents[b])
        return comm.sent

    def size_of(b):
        nonzeros, dense = np.count_nonzero(contents[b]), 8 * rows[b] * width
        return 8 * rows[b] + (12 * nonzeros if 24 * nonzeros < dense else dense)

    first, second = size_of(0) + size_of(2), size_of(1) + size_of(3)
    assert in_threads(2, work) == [2 * first + second, 2 * second + first]
