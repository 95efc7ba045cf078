"""Weston-Watkins by blocks of classes: the optimum, and the same bytes whoever takes part."""

import json
import os
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers import fit, full_weights, write_rows
from processes import finished
from threads import in_threads

import sbm
from sbm.distributed.comm import SerialComm
from sbm.distributed.moving import MovingBlocks
from sbm.errors import DataError, MemoryPlanError, SettingsError, StoreError
from sbm.jobs.classblocks import division
from sbm.jobs.classblocks.plan import cut_meeting, plan_classes
from sbm.jobs.classblocks.schedule import make_schedule
from sbm.jobs.classblocks.training import train_class_blocks
from sbm.settings import Settings
from sbm.store.blocks import BlockStore, Chunk
from sbm.store.manifest import read_manifest, write_manifest
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
    X, y = make_rows(n_classes, n)
    sbm.split(write_rows(folder / "t.svm", X, y), folder / "t.sbm", blocks=3)
    return folder / "t.sbm"


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    made = {}

    def store_of(n_classes):
        if n_classes not in made:
            made[n_classes] = make_store(tmp_path_factory.mktemp("store"), n_classes)
        return made[n_classes]

    return store_of


def train(store, model, n_ranks=1, **settings):
    """Train in so many processes; the model, and the report of each."""
    chosen = {"loss": LOSS, "C": COST, "tol": 1e-3, "max_passes": 300, "mem": "400MB", "threads": 1}
    keys = ("resume", "is_stopped")
    options = {key: settings.pop(key) for key in keys if key in settings}
    chosen = Settings(**{**chosen, **settings})

    def work(comm):
        return train_class_blocks(BlockStore(store), model, chosen, comm, **options)

    found = [work(SerialComm())] if n_ranks == 1 else in_threads(n_ranks, work)
    assert all(made is None for made, _ in found[1:])
    return found[0][0], [report for _, report in found]


# ------------------------------------------------------------------------------------ the optimum


@pytest.mark.parametrize("bias", [0.0, 1.0])
@pytest.mark.parametrize("n_blocks", [1, 3, 4])
def test_it_is_the_optimum_that_training_row_by_row_finds(stores, tmp_path, n_blocks, bias):
    store = stores(7)
    weight = {"class_weight": {0: 2.0, 3: 0.5}, "bias": bias, "tol": 1e-5}
    model, (report,) = train(store, tmp_path / "m.model", class_blocks=n_blocks, **weight)
    assert report["converged"]
    assert report["drift"] < 1e-12
    other, theirs, _ = fit(store, loss=LOSS, C=COST, max_passes=3000, rounds=10, **weight)
    assert report["gap"] == pytest.approx(report["primal"] - report["dual"], rel=1e-6, abs=1e-9)
    assert report["dual"] <= theirs["primal"] * (1 + 1e-12)
    assert theirs["dual"] <= report["primal"] * (1 + 1e-12)
    ours = full_weights(model, N_FEATURES), model.bias_weights
    distance = np.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(
        ours, (full_weights(other, N_FEATURES), other.bias_weights), strict=True
    )))  # fmt: skip
    assert distance <= np.sqrt(2 * report["gap"]) + np.sqrt(2 * theirs["gap"]) + 1e-9
    for name in ("n_support", "n_free"):
        assert report[name] == pytest.approx(theirs[name], abs=3)


def test_the_certificate_is_that_of_the_model_that_is_written(stores, tmp_path):
    model, (report,) = train(stores(5), tmp_path / "m.model", class_blocks=3, max_passes=4)
    X, y = make_rows(5)
    assert not report["converged"]
    assert report["passes"] == 4
    z = X.astype(float) @ full_weights(model, N_FEATURES)
    own = z[np.arange(len(z)), y.astype(int)]
    slack = np.maximum(0, 1 - own[:, None] + z)
    slack[np.arange(len(z)), y.astype(int)] = 0
    expected = 0.5 * (model.W**2).sum() + COST * slack.sum()
    assert report["primal"] == pytest.approx(expected, rel=1e-12)
    assert model.info["certificate"]["primal"] == report["primal"]


def test_it_is_the_optimum_of_the_reference(reference, text_of, tmp_path):
    known = min(reference["pendigits_scale"][LOSS], key=lambda one: one["C"])
    sbm.split(text_of("pendigits_scale"), tmp_path / "p.sbm")
    _, (report,) = train(
        tmp_path / "p.sbm", tmp_path / "p.model", C=known["C"], class_blocks=4, tol=1e-2, rounds=5
    )
    assert report["converged"]
    assert report["relative_gap"] <= 1e-2
    assert report["primal"] <= known["primal"] * (1 + 1.1e-2)
    assert report["dual"] <= known["primal"] * (1 + 1e-7)
    assert known["dual"] <= report["primal"] * (1 + 1e-7)


# ------------------------------------------------------------------------------- the same bytes


CASES = [
    {"n_classes": 7, "class_blocks": 4},
    {"n_classes": 7, "class_blocks": 5, "bias": 1.0},
    {"n_classes": 6, "class_blocks": 9},  # some are empty
    {"n_classes": 2, "class_blocks": 2},
    {"n_classes": 5, "class_blocks": 1},
    {"n_classes": 7, "class_blocks": 6, "rounds": "1,2", "class_weight": {2: 0.0}},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_model_does_not_depend_on_the_number_of_processes(stores, tmp_path, case):
    settings = dict(case)
    store = stores(settings.pop("n_classes"))
    alone = None
    for n_ranks in (1, 2, 3, 5):
        path = tmp_path / f"{n_ranks}.model"
        _, reports = train(store, path, n_ranks, **settings)
        alone = alone or path.read_bytes()
        assert path.read_bytes() == alone
        for name in ("primal", "dual", "gap", "passes", "updates", "visits", "n_support", "n_free"):
            assert len({report[name] for report in reports}) == 1
        assert reports[0]["processes"] == n_ranks
        assert reports[0]["converged"]


def with_pieces(monkeypatch, rows, chunk_rows):
    """Have room for so many rows at a time only, in chunks of fewer."""

    def plan(*arguments):
        made = plan_classes(*arguments)
        room = rows * made.row + rows * N_FEATURES * made.nonzero
        return replace(made, room=room, chunk_rows=chunk_rows)

    monkeypatch.setattr(division, "plan_classes", plan)
    monkeypatch.setattr("sbm.jobs.classblocks.plan.ENCODING", 0)


def test_pieces_lead_to_the_same_optimum_and_the_same_bytes(stores, tmp_path, monkeypatch):
    whole, (report,) = train(stores(7), tmp_path / "0.model", class_blocks=4)
    with_pieces(monkeypatch, 20, 4)
    models = []
    for n_ranks in (1, 3):
        path = tmp_path / f"{n_ranks}.model"
        model, reports = train(stores(7), path, n_ranks, class_blocks=4)
        models.append(path.read_bytes())
        assert reports[0]["converged"]
    assert models[0] == models[1] != (tmp_path / "0.model").read_bytes()
    theirs = reports[0]
    distance = np.linalg.norm(whole.W - model.W)
    assert 0 < distance <= np.sqrt(2 * report["gap"]) + np.sqrt(2 * theirs["gap"])


def test_a_class_without_rows_has_weights_that_matter(tmp_path):
    store = make_store(tmp_path, 5)
    manifest = read_manifest(store)
    manifest["labels"]["values"].append(99.0)
    manifest["labels"]["counts"].append(0)
    write_manifest(store, manifest)
    other, theirs, _ = fit(store, loss=LOSS, C=COST, tol=1e-4, max_passes=3000, rounds=10)
    model, (report,) = train(store, tmp_path / "1.model", class_blocks=6, tol=1e-4)
    train(store, tmp_path / "2.model", 2, class_blocks=6, tol=1e-4)
    assert (tmp_path / "1.model").read_bytes() == (tmp_path / "2.model").read_bytes()
    assert model.labels == [0, 1, 2, 3, 4, 99]
    assert np.linalg.norm(model.W[:, 5]) > 1e-3
    distance = np.linalg.norm(model.W - other.W)
    assert distance <= np.sqrt(2 * report["gap"]) + np.sqrt(2 * theirs["gap"]) + 1e-9


def test_threads_change_no_byte(stores, tmp_path):
    for threads in (1, 3):
        train(stores(7), tmp_path / f"{threads}.model", class_blocks=3, threads=threads)
    assert (tmp_path / "1.model").read_bytes() == (tmp_path / "3.model").read_bytes()


def test_seeds_and_blocks_make_other_models(stores, tmp_path):
    found = set()
    for k, case in enumerate(({}, {"seed": 1}, {"class_blocks": 3})):
        train(stores(7), tmp_path / f"{k}.model", **{"class_blocks": 4, "max_passes": 2, **case})
        found.add((tmp_path / f"{k}.model").read_bytes())
    assert len(found) == 3


# ---------------------------------------------------------------------------- ends and new starts


@pytest.mark.parametrize("n_ranks", [1, 2, 3])
def test_who_is_stopped_goes_on_to_the_same_bytes(stores, tmp_path, n_ranks):
    options = {"class_blocks": 4}
    train(stores(7), tmp_path / "whole.model", n_ranks, **options)
    asked = []

    def is_stopped():
        asked.append(1)
        return len(asked) == 10 * n_ranks  # in the third epoch

    path = tmp_path / "m.model"
    with pytest.raises(KeyboardInterrupt):
        train(stores(7), path, n_ranks, is_stopped=is_stopped, **options)
    assert not path.exists()
    _, reports = train(stores(7), path, n_ranks, resume=True, **options)
    assert all(report["resumed"] for report in reports)
    assert path.read_bytes() == (tmp_path / "whole.model").read_bytes()
    _, reports = train(stores(7), path, n_ranks, **options)
    assert all(report["was_finished"] for report in reports)
    path.unlink()  # it is written again, from the run
    train(stores(7), path, n_ranks, **options)
    assert path.read_bytes() == (tmp_path / "whole.model").read_bytes()


def test_more_passes_go_on_where_the_budget_ended(stores, tmp_path):
    path = tmp_path / "m.model"
    train(stores(7), path, 2, class_blocks=4, max_passes=2)
    _, reports = train(stores(7), path, 2, class_blocks=4)
    assert reports[0]["resumed"]
    assert reports[0]["converged"]


def test_the_sorted_rows_are_gone_afterwards(stores, tmp_path):
    train(stores(7), tmp_path / "m.model", 2, class_blocks=4)
    assert not list(tmp_path.rglob("*.sbb"))
    with pytest.raises(KeyboardInterrupt):
        train(stores(7), tmp_path / "n.model", class_blocks=4, is_stopped=lambda: True)
    assert not list(tmp_path.rglob("*.sbb"))


def test_two_trainings_of_one_model_do_not_disturb_each_other(stores, tmp_path):
    path, refused = tmp_path / "m.model", []

    def is_stopped():
        if not refused:
            with pytest.raises(StoreError) as error:
                train(stores(7), path, class_blocks=4)
            refused.append(str(error.value))
        return False

    train(stores(7), path, class_blocks=4, is_stopped=is_stopped)
    sentence = f"the run {path}.run is in use by another sbm process; wait for it to end or stop it"
    assert refused == [sentence]


def test_another_number_of_processes_does_not_go_on(stores, tmp_path):
    path, asked = tmp_path / "m.model", []
    with pytest.raises(KeyboardInterrupt):
        train(
            stores(7),
            path,
            2,
            class_blocks=4,
            is_stopped=lambda: len(asked) > 30 or asked.append(1),
        )
    sentence = (
        f"{path}.run holds an unfinished training in 2 processes, and now there are 1; start as "
        "many to go on with it, or start over with --fresh"
    )
    with pytest.raises(SettingsError, match=f"^{re.escape(sentence)}$"):
        train(stores(7), path, class_blocks=4)
    train(stores(7), path, class_blocks=4, resume=False)


@pytest.mark.parametrize("late", [0, 1])
def test_a_process_that_is_one_commit_behind_is_waited_for(stores, tmp_path, late):
    options = {"class_blocks": 4}
    train(stores(7), tmp_path / "whole.model", 2, **options)
    path, asked = tmp_path / "m.model", []
    with pytest.raises(KeyboardInterrupt):
        train(stores(7), path, 2, is_stopped=lambda: len(asked) > 30 or asked.append(1), **options)
    Run.roll_back(tmp_path / "m.model.run" / f"rank-{late}-of-2")
    _, reports = train(stores(7), path, 2, **options)
    assert all(report["resumed"] for report in reports)
    assert path.read_bytes() == (tmp_path / "whole.model").read_bytes()


def test_different_commits_are_no_state_to_go_on_from(stores, tmp_path):
    options = {"class_blocks": 4}
    train(stores(7), tmp_path / "whole.model", 2, **options)
    path, asked = tmp_path / "m.model", []
    with pytest.raises(KeyboardInterrupt):
        train(stores(7), path, 2, is_stopped=lambda: len(asked) > 30 or asked.append(1), **options)
    shutil.rmtree(tmp_path / "m.model.run" / "rank-1-of-2")
    _, reports = train(stores(7), path, 2, **options)
    assert not any(report["resumed"] for report in reports)
    assert path.read_bytes() == (tmp_path / "whole.model").read_bytes()


# ------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"loss": "crammer_singer"},
         "class_blocks is 2, which belongs to weston_watkins; leave it out with crammer_singer"),
        ({"loss": "hinge"},
         "class_blocks is 2, which belongs to weston_watkins; leave it out with hinge"),
        ({"weights": "w"},
         "weights does not go together with class_blocks; leave out one of the two"),
        ({"warm_start": True},
         "warm_start does not go together with class_blocks; leave out one of the two"),
        ({"calibrate": True},
         "calibrate does not go together with class_blocks; leave out one of the two"),
        ({"class_blocks": 0}, "class_blocks is 0; it must be from 1 to 1024"),
        ({"class_blocks": 1025}, "class_blocks is 1025; it must be from 1 to 1024"),
        ({"class_blocks": True}, "class_blocks is True; a whole number is expected"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused(stores, tmp_path, options, sentence):
    with pytest.raises(SettingsError, match=f"^{re.escape(sentence)}$"):
        train(stores(5), tmp_path / "m.model", **{"class_blocks": 2, **options})
    assert os.listdir(tmp_path) == []


def test_numbers_beyond_a_float_are_refused_by_all(tmp_path):
    X, y = make_rows(4)
    X[3] = 1e38
    sbm.split(write_rows(tmp_path / "t.svm", X.astype(float) * 1e200, y), tmp_path / "t.sbm",
              dtype="float64")  # fmt: skip
    with pytest.raises(DataError, match="beyond what a float64 holds"):
        train(tmp_path / "t.sbm", tmp_path / "m.model", 2, class_blocks=4)


def test_the_least_memory_is_said_and_enough(stores, tmp_path):
    store = BlockStore(stores(7))
    schedule, sizes = make_schedule(4, 2), [2, 2, 2, 1]
    with pytest.raises(MemoryPlanError) as error:
        plan_classes(store, 10**8, schedule, sizes, 10**6)
    least = re.fullmatch(
        r"--mem 100 MB is too little to train on .*t\.sbm with 4 blocks of classes, which needs "
        r"interpreter .*, decoding .*, overhead .*, weights 112 MB, as much for rows 112 MB; the "
        r"least that works is --mem (\d+)MB, or more processes",
        str(error.value),
    )[1]  # fmt: skip
    assert (
        plan_classes(store, int(least) * 10**6, schedule, sizes, 10**6).total <= int(least) * 10**6
    )
    with pytest.raises(MemoryPlanError):
        plan_classes(store, (int(least) - 1) * 10**6, schedule, sizes, 10**6)


def test_room_for_rows_does_not_depend_on_the_number_of_processes(stores):
    store, sizes = BlockStore(stores(7)), [2, 2, 2, 1]
    plans = [plan_classes(store, 10**9, make_schedule(4, n), sizes, 10**6) for n in (1, 2, 4)]
    assert len({(plan.room, plan.chunk_rows) for plan in plans}) == 1
    assert plans[0].items["weights"] > plans[1].items["weights"]


def test_meetings_are_cut_into_the_fewest_pieces_that_fit(stores):
    plan = plan_classes(BlockStore(stores(7)), 10**9, make_schedule(2, 1), [4, 3], 10)
    chunks = [Chunk(0, k, 1, 10, 100) for k in range(12)]
    for n in (1, 2, 5, 7, 20):
        small = replace(plan, room=n * plan.bytes_of(chunks[:1]))
        parts = cut_meeting(small, [chunks[:8], chunks[8:]])
        assert sorted(c.offset for part in parts for c in part) == list(range(12))
        assert all(plan.bytes_of(part) <= small.room for part in parts[: None if n > 1 else 0])
        assert len(parts) == {1: 8, 2: 8, 5: 3, 7: 2, 20: 1}[n]


# ------------------------------------------------------------------------------ blocks that move


@pytest.mark.parametrize("density", [0.0, 0.1, 0.3, 0.9])
def test_blocks_arrive_as_they_left_and_sparse_ones_cost_less(density):
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

    sent = in_threads(2, work)
    first, second = size_of(0) + size_of(2), size_of(1) + size_of(3)
    assert sent == [2 * first + second, 2 * second + first]


def test_a_process_sends_what_the_schedule_says(stores, tmp_path):
    """Dense data: all weights are numbers other than 0 after an epoch, and travel as they are."""
    n_passes, counts = 3, {}
    for passes in (1, n_passes):
        options = {"class_blocks": 8, "max_passes": passes, "tol": 1e-15, "bias": 1.0}
        _, reports = train(stores(8), tmp_path / f"{passes}.model", 4, **options)
        counts[passes] = reports[0]["bytes_sent"]
    schedule, block = make_schedule(8, 4), 8 * (N_FEATURES + 1) + 8
    moves = [schedule.moves_of(k, rank)[0] for k in range(9) for rank in (0,)]
    most = max(
        sum(len(schedule.moves_of(k, rank)[0]) for k in range(9)) for rank in range(4)
    )  # fmt: skip
    assert sum(map(len, moves)) <= most <= 8
    assert counts[n_passes] - counts[1] == pytest.approx(2 * most * block, rel=0.1)


# ------------------------------------------------------------------------------- real processes

WORKER = """
import json, os, signal, sys
from pathlib import Path
from sbm.distributed.comm import world
from sbm.jobs.classblocks.training import train_class_blocks
from sbm.settings import Settings
from sbm.store.blocks import BlockStore

store, model, settings, killed, at = sys.argv[1:]
comm, asked = world(60.0), [0]

def is_stopped():
    asked[0] += 1
    if (comm.rank, asked[0]) == (int(killed), int(at)):
        os.kill(os.getpid(), signal.SIGKILL)
    return False

_, report = train_class_blocks(
    BlockStore(store), Path(model), Settings(**json.loads(settings)), comm, is_stopped=is_stopped
)
if comm.rank == 0:
    print(json.dumps(report))
"""


def mpiexec(n_ranks, folder, store, model, killed=-1, at=0, **settings):
    """Train in processes of their own; what the launcher came to."""
    pytest.importorskip("mpi4py")
    launcher = shutil.which(
        "mpiexec", path=os.path.dirname(sys.executable) + os.pathsep + os.defpath
    )
    if launcher is None:
        pytest.skip("no mpiexec here")
    (folder / "worker.py").write_text(WORKER)
    chosen = {"loss": LOSS, "C": COST, "mem": "400MB", "threads": 1, "max_passes": 300, **settings}
    command = [launcher, "-n", n_ranks, sys.executable, "-m", "mpi4py", folder / "worker.py", store,
               model, json.dumps(chosen), killed, at]  # fmt: skip
    return finished(list(map(str, command)), cwd=Path(sbm.__file__).parent.parent)


def test_processes_write_the_same_bytes_also_after_one_was_killed(stores, tmp_path):
    options = {"class_blocks": 4}
    train(stores(7), tmp_path / "1.model", **options)
    expected = (tmp_path / "1.model").read_bytes()
    for n_ranks in (2, 4):
        done = mpiexec(n_ranks, tmp_path, stores(7), tmp_path / f"{n_ranks}.model", **options)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["processes"] == n_ranks
        assert (tmp_path / f"{n_ranks}.model").read_bytes() == expected
    path = tmp_path / "killed.model"
    done = mpiexec(2, tmp_path, stores(7), path, 1, 15, **options)
    assert done.returncode != 0
    assert not path.exists()
    done = mpiexec(2, tmp_path, stores(7), path, **options)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["resumed"]
    assert path.read_bytes() == expected
