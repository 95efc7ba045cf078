"""Several processes train one model: the optimum, the same bits again, and what is refused."""

import itertools
import json
import math

import numpy as np
import pytest
from families import CASES, Case, assert_same_optimum, make_store
from helpers import fit, write_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from threads import in_threads

import sbm
from sbm.alphas import Dense, Lists, blend
from sbm.distributed.comm import SerialComm
from sbm.errors import SettingsError, StoreError
from sbm.jobs.engine.combine import Combiner
from sbm.solver.adding import Adding
from sbm.store.records import encode_record
from sbm.store.run import Run, runs_here

OPTIONS = {"C": 0.1, "tol": 1e-3, "max_passes": 3000, "threads": 1, "cache_frac": 0.3}


def options_of(case, **options):
    return {**{k: v for k, v in OPTIONS.items() if k != "C"}, **case.at(OPTIONS["C"]), **options}


def train(size, store, options, name="many.model", **more):
    """Train as several processes; return what each returned."""
    return in_threads(
        size, lambda comm: sbm.train(store, store.parent / name, options, comm=comm, **more)
    )


def a_store(folder, case=None, n_blocks=5, **rows):
    X, y = (case or Case("hinge", 2)).rows(**rows)
    return make_store(folder, X, y, blocks=n_blocks)


# --------------------------------------------------------------------------------- the optimum


@pytest.mark.parametrize(
    ("case", "size"), [(case, 2 + k % 2) for k, case in enumerate(CASES)], ids=str
)
def test_every_loss_comes_to_the_optimum(tmp_path, case, size):
    store = a_store(tmp_path, case)
    alone = fit(store, "alone.model", **options_of(case, tol=1e-6))[:2]
    (model, report), *others = train(size, store, options_of(case))
    assert report["converged"]
    assert report["drift"] <= 1e-9
    assert_same_optimum((model, report), alone)
    assert all(theirs is None for theirs, _ in others)
    proven = ("primal", "dual", "gap", "n_support", "n_free", "passes")
    for _, theirs in others:
        assert {name: theirs[name] for name in proven} == {name: report[name] for name in proven}
    assert sbm.Model.load(tmp_path / "many.model").info == model.info
    assert report["processes"] == size


@pytest.mark.parametrize(("loss", "options"), [
    ("hinge", {"sigma": "safe"}), ("crammer_singer", {"sigma": 1.0}), ("hinge", {"sigma": 1.5}),
    ("crammer_singer", {"sync_every": 2}), ("hinge", {"sync_every": 9}),
    ("crammer_singer", {"sigma": 1.0, "sync_every": 3}), ("hinge", {"policy": "none"}),
    ("crammer_singer", {"screen": False}), ("hinge", {"rounds": 4}),
    ("crammer_singer", {"cache_frac": "auto"}), ("hinge", {"bias": 1.0}),
    ("crammer_singer", {"class_weight": "balanced"}),
], ids=str)  # fmt: skip
def test_every_setting_comes_to_the_optimum(tmp_path, loss, options):
    case = Case(loss, 3 if loss == "crammer_singer" else 2)
    store = a_store(tmp_path, case)
    chosen = options_of(case, **options)
    alone = fit(store, "alone.model", **{**chosen, "tol": 1e-6, "sync_every": 1})[:2]
    (model, report), *_ = train(3, store, chosen)
    assert report["converged"]
    assert_same_optimum((model, report), alone)


@pytest.mark.parametrize(("size", "n_blocks"), [(4, 3), (5, 1), (2, 2)])
def test_processes_may_have_few_blocks_or_none(tmp_path, size, n_blocks):
    case = Case("squared_hinge", 2)
    store = a_store(tmp_path, case, n_blocks)
    alone = fit(store, "alone.model", **options_of(case))[:2]
    (model, report), *_ = train(size, store, options_of(case))
    assert report["converged"]
    assert_same_optimum((model, report), alone)


def test_one_process_writes_what_a_program_alone_writes(tmp_path):
    case = Case("hinge", 2)
    store = a_store(tmp_path, case)
    for name, more in (("a.model", {}), ("b.model", {"comm": SerialComm()})):
        sbm.train(store, tmp_path / name, options_of(case), **more)
    assert (tmp_path / "a.model").read_bytes() == (tmp_path / "b.model").read_bytes()


@pytest.mark.parametrize("case", [Case("hinge", 2), Case("weston_watkins", 3), Case("hinge", 3)])
def test_the_same_again_and_any_number_of_threads(tmp_path, case):
    store = a_store(tmp_path, case)
    for k, threads in enumerate((1, 1, 3)):
        train(3, store, options_of(case, threads=threads), f"{k}.model")
    first, second, third = ((tmp_path / f"{k}.model").read_bytes() for k in range(3))
    assert first == second == third


@pytest.mark.parametrize("case", [
    Case("hinge", 2), Case("squared_hinge", 2), Case("log_loss", 2), Case("squared_error", 0),
    Case("epsilon_insensitive", 0), Case("crammer_singer", 3), Case("weston_watkins", 3),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("sigma", ["adaptive", "safe", 1.0])
def test_the_dual_never_falls(tmp_path, monkeypatch, case, sigma):
    """The lower bound that is kept, against the objective computed anew from all alphas."""
    duals = []
    combine = Combiner.combine

    def noted(self):
        result = combine(self)
        if self._comm.rank == 0:
            duals.append(self._solver.dual)
        return result

    monkeypatch.setattr(Combiner, "combine", noted)
    store = a_store(tmp_path, case, n=200)
    (_, report), *_ = train(4, store, options_of(case, sigma=sigma, max_passes=12, tol=1e-9))
    assert len(duals) >= 20
    # A certificate puts the dual itself in the place of the bound, which is below it.
    assert all(b >= a - 1e-12 * abs(a) for a, b in itertools.pairwise(duals))
    assert duals[-1] <= report["dual"] * (1 + 1e-12)


def test_plain_adding_would_let_it_fall(tmp_path, monkeypatch):
    """What the share is for: rows that all say the same, and steps that are simply added up."""
    monkeypatch.setattr(Adding, "share", lambda self, gain, cross, size: 1.0)
    X, y = np.ones((120, 1)), np.ones(120)
    y[::40] = -1.0
    store = make_store(tmp_path, X, y, blocks=4)
    (_, report), *_ = train(4, store, {"sigma": 1.0, "max_passes": 3, "threads": 1, "tol": 1e-9})
    assert report["dual"] < 0


# ------------------------------------------------------------------------------------ the parts

floats = st.floats(-1e6, 1e6)


@given(st.lists(st.tuples(floats, floats), max_size=20), st.floats(0, 1))
def test_a_share_of_the_way_lies_between(pairs, share):
    old, new = (np.array([pair[k] for pair in pairs], float) for k in (0, 1))
    mixed = blend(Dense(old), Dense(new), share).values
    assert ((np.minimum(old, new) <= mixed) & (mixed <= np.maximum(old, new))).all()
    np.testing.assert_allclose(mixed, old + share * (new - old), rtol=1e-12, atol=1e-9)
    np.testing.assert_array_equal(mixed[old == new], old[old == new])


tables = st.integers(0, 6).flatmap(
    lambda n: st.tuples(*(st.lists(st.tuples(*[st.sampled_from([0, 0, 1.5, 2, 7])] * 4),
                                   min_size=n, max_size=n) for _ in range(2)))
)  # fmt: skip


def lists_of(table):
    table = np.array(table, float).reshape(-1, 4)
    rows, outputs = np.nonzero(table)
    offsets = np.searchsorted(rows, np.arange(len(table) + 1))
    return Lists(offsets.astype(np.int64), outputs.astype(np.int32), table[rows, outputs])


@given(tables, st.sampled_from([0.0, 0.25, 1.0]))
def test_lists_are_blended_like_tables(pair, share):
    old, new = (np.array(table, float).reshape(-1, 4) for table in pair)
    mixed = blend(lists_of(old), lists_of(new), share)
    expected = lists_of(old + share * (new - old))
    np.testing.assert_array_equal(mixed.offsets, expected.offsets)
    np.testing.assert_array_equal(mixed.outputs, expected.outputs)
    np.testing.assert_array_equal(mixed.values, expected.values)


@settings(max_examples=200)
@given(st.integers(1, 9), st.lists(st.tuples(st.floats(0, 1e3), st.floats(0, 1e3)), max_size=12))
def test_sigma_stays_between_one_and_the_number_of_processes(n, rounds):
    adding = Adding("adaptive", n)
    assert adding.sigma == n
    for size, other in rounds:
        adding.learn(size, [other / n] * n)
        assert 1 <= adding.sigma <= n
    again = Adding("adaptive", n)
    again.restore(json.loads(json.dumps(adding.record())))
    assert again == adding


@pytest.mark.parametrize(
    ("rule", "gain", "cross", "size", "share"),
    [(1.0, 3.0, 1.0, 4.0, 0.5), (1.0, 9.0, 1.0, 4.0, 1.0), (1.0, 1.0, 2.0, 4.0, 0.0),
     (1.0, 0.0, 0.0, 0.0, 1.0), ("safe", 1.0, 0.0, 4.0, 1.0)],
)  # fmt: skip
def test_the_share_is_the_best_point_of_a_parabola(rule, gain, cross, size, share):
    assert Adding(rule, 4).share(gain, cross, size) == share


# ---------------------------------------------------------------------------- stopped, gone on


def stopped(size, store, options, after, name="many.model"):
    """Train, but have process 0 told to stop after so many rounds."""
    left = [after]

    def train_some(comm):
        def is_stopped():
            if comm.rank == 0:
                left[0] -= 1
            return comm.rank == 0 and left[0] < 0

        with pytest.raises(KeyboardInterrupt):
            sbm.train(store, store.parent / name, options, comm=comm, is_stopped=is_stopped)

    in_threads(size, train_some)


@pytest.mark.parametrize(
    ("after", "case"),
    [(7, case) for case in CASES[::2]] + [(2, case) for case in CASES[1:4]],
    ids=str,
)
def test_the_same_command_goes_on_to_the_same_bytes(tmp_path, case, after):
    store = a_store(tmp_path, case)
    options = options_of(case, tol=1e-3, checkpoint_every=0)
    train(3, store, options, "whole.model")
    stopped(3, store, options, after)
    assert not (tmp_path / "many.model").exists()
    (_, report), *_ = train(3, store, options)
    assert report["resumed"]
    assert (tmp_path / "many.model").read_bytes() == (tmp_path / "whole.model").read_bytes()
    (_, again), *_ = train(3, store, options)
    assert again == {**report, "was_finished": True}


@pytest.mark.parametrize("case", [Case("hinge", 2), Case("weston_watkins", 3)], ids=str)
def test_stopped_after_every_round_it_comes_to_the_same_bytes(tmp_path, case):
    """Also where a process has no block in the round between two stops."""
    store = a_store(tmp_path, case)  # of 5 blocks, 3 and 2 for each
    options = options_of(case, tol=1e-4)
    train(2, store, options, "whole.model")
    for _ in range(14):
        stopped(2, store, options, 1)
    train(2, store, options)
    assert (tmp_path / "many.model").read_bytes() == (tmp_path / "whole.model").read_bytes()


@pytest.mark.parametrize("late", [0, 2])
def test_all_go_back_to_a_commit_they_have_in_common(tmp_path, late):
    case = Case("crammer_singer", 3)
    store = a_store(tmp_path, case)
    options = options_of(case, tol=1e-4)
    train(3, store, options, "whole.model")
    for after in (5, 9):
        stopped(3, store, options, after)  # which commits
    folder = tmp_path / "many.model.run" / f"rank-{late}-of-3"
    number = Run.read(folder)["commit"]
    assert Run.roll_back(folder)["commit"] == number - 1  # it was killed before its last commit
    train(3, store, options)
    assert (tmp_path / "many.model").read_bytes() == (tmp_path / "whole.model").read_bytes()


@pytest.mark.parametrize(("before", "now", "case"), [
    (3, 2, Case("hinge", 2)), (2, 4, Case("weston_watkins", 3)), (3, 1, Case("weston_watkins", 3)),
    (1, 3, Case("hinge", 2)), (3, 2, Case("one_class", 1, {"nu": 0.2})),
], ids=str)  # fmt: skip
def test_another_number_of_processes_goes_on_from_the_alphas(tmp_path, case, before, now):
    store = a_store(tmp_path, case)
    options = options_of(case, tol=1e-5)
    alone = fit(store, "alone.model", **options)[:2]
    stopped(before, store, options, 12)
    told = []

    class Told(sbm.jobs.progress.Progress):
        def stage(self, text):
            told.append(text)

    (model, report), *_ = train(now, store, options, progress=Told())
    run = tmp_path / "many.model.run"
    assert f"going on from the alphas of another number of processes, in {run}" in told or (
        before == 1 and any("going on from the alphas" in text for text in told)
    )
    assert list(runs_here(run)) == [now]
    assert report["converged"]
    assert_same_optimum((model, report), alone)


@pytest.mark.parametrize(("before", "now"), [(3, 3), (1, 3), (3, 1)])
def test_the_next_night_goes_on_from_alphas_of_any_number(tmp_path, before, now):
    case = Case("crammer_singer", 3)
    store = a_store(tmp_path, case)
    train(before, store, options_of(case, tol=1e-4))
    X, y = case.rows(1, n=40)
    sbm.split([write_rows(tmp_path / "more.svm", X, y)], store, append=True)
    (model, report), *_ = train(now, store, options_of(case, warm_start=True))
    assert_same_optimum((model, report), fit(store, "alone.model", **options_of(case))[:2])
    (_, cold), *_ = train(now, store, options_of(case), "cold.model")
    assert report["updates"] < cold["updates"]


def test_a_finished_training_is_left_alone_by_any_number(tmp_path):
    case = Case("hinge", 2)
    store = a_store(tmp_path, case)
    (_, report), *_ = train(3, store, options_of(case))
    data = (tmp_path / "many.model").read_bytes()
    for size in (1, 2, 3):
        results = train(size, store, options_of(case))
        assert all(theirs["was_finished"] for _, theirs in results)
        assert results[0][1] == {**report, "was_finished": True}
    assert (tmp_path / "many.model").read_bytes() == data


def forgetful(monkeypatch, rank):
    """Have a process killed, as it were, before it notes the end."""
    note = Run.note
    monkeypatch.setattr(
        Run, "note", lambda run, **facts: None if run.folder.name == f"rank-{rank}-of-2"
        else note(run, **facts),
    )  # fmt: skip


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("more", [0, 200])
def test_not_all_know_that_it_is_finished(tmp_path, monkeypatch, rank, more):
    store = a_store(tmp_path)
    options = options_of(Case("hinge", 2), tol=1e-6, max_passes=3)
    train(2, store, options, "whole.model")
    train(2, store, {**options, "max_passes": 3 + more}, "whole.model")
    with monkeypatch.context() as patch:
        forgetful(patch, rank)
        train(2, store, options)
    results = train(2, store, {**options, "max_passes": 3 + more})
    assert [report["was_finished"] for _, report in results] == [False, False]
    assert (tmp_path / "many.model").read_bytes() == (tmp_path / "whole.model").read_bytes()
    assert all(report["was_finished"] for _, report in train(2, store, options))


def test_the_status_file_tells_what_launchers_do_not(tmp_path):
    case = Case("hinge", 2)
    store = a_store(tmp_path, case)
    path = tmp_path / "many.model.run" / "status.json"
    stopped(2, store, options_of(case), 3)
    assert json.loads(path.read_text())["state"] == "running"
    (_, report), *_ = train(2, store, options_of(case))
    status = json.loads(path.read_text())
    assert (status["state"], status["processes"]) == ("finished", 2)
    assert status["report"]["primal"] == report["primal"]
    fit(store, "alone.model", **options_of(case))
    assert not (tmp_path / "alone.model.run" / "status.json").exists()


# ----------------------------------------------------------------------------- by class, shards


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "log_loss"])
def test_one_vs_rest_is_divided_by_classes_and_sends_no_weights(tmp_path, monkeypatch, loss):
    monkeypatch.setattr(Combiner, "combine", lambda self: pytest.fail("nothing is added up"))
    case = Case(loss, 3)
    store = a_store(tmp_path, case)
    alone = fit(store, "alone.model", **options_of(case, tol=1e-6))[:2]
    for size in (2, 3):
        (model, report), *_ = train(size, store, options_of(case, tol=1e-4), f"{size}.model")
        assert report["converged"]
        assert_same_optimum((model, report), alone)
        assert math.isclose(report["primal"], alone[1]["primal"], rel_tol=2e-4)


def test_by_class_each_goes_on_from_its_own_last_commit(tmp_path):
    """One may have come to its end, and commit no more, while others go on."""
    case = Case("hinge", 3)
    store = a_store(tmp_path, case)
    train(2, store, options_of(case), "whole.model")
    stopped(2, store, options_of(case), 7)
    folder = tmp_path / "many.model.run" / "rank-1-of-2"
    record = {**Run.read(folder), "commit": 99, "before": None}
    (folder / "run.json").write_bytes(encode_record("run", record))
    results = train(2, store, options_of(case))
    assert all(report["resumed"] for _, report in results)
    assert (tmp_path / "many.model").read_bytes() == (tmp_path / "whole.model").read_bytes()


def test_more_processes_than_classes_add_up(tmp_path):
    case = Case("squared_hinge", 3)
    store = a_store(tmp_path, case)
    (_, report), *_ = train(4, store, options_of(case))
    assert report["converged"]


# --------------------------------------------------------------------------------- what is refused


def test_other_stores_are_refused(tmp_path):
    case = Case("hinge", 2)
    a, b = (make_store(tmp_path, *case.rows(seed), name=str(seed), blocks=3) for seed in (0, 1))
    with pytest.raises(StoreError) as error:
        in_threads(2, lambda comm: sbm.train(
            [a, b][comm.rank], tmp_path / "x.model", options_of(case), comm=comm
        ))  # fmt: skip
    rank = 0 if str(a) in str(error.value) else 1
    assert str(error.value) == (
        f"{[a, b][rank]} of process {rank} and that of process {1 - rank} are other stores; give "
        "all processes the same one, or shards of one"
    )
    assert not (tmp_path / "x.model").exists()


def test_other_settings_are_refused(tmp_path):
    case = Case("hinge", 2)
    store = a_store(tmp_path, case)
    with pytest.raises(StoreError, match=r"processes [01] and [01] were given other settings"):
        in_threads(2, lambda comm: sbm.train(
            store, tmp_path / "x.model", options_of(case, seed=comm.rank), comm=comm
        ))  # fmt: skip


@pytest.mark.parametrize(("options", "sentence"), [
    ({"calibrate": True}, ("calibrate is for one process, and there are 2; train without it, then "
                           "again with --warm-start --calibrate alone")),
    ({"weights": "-"}, ("weights come from standard input, which only one of 2 processes can read; "
                        "put them in a file")),
])  # fmt: skip
def test_what_one_process_alone_can_do_is_refused(tmp_path, options, sentence):
    case = Case("hinge", 2)
    store = a_store(tmp_path, case)
    with pytest.raises(SettingsError) as error:
        train(2, store, options_of(case, **options))
    assert str(error.value) == sentence


def test_a_run_of_other_settings_by_other_processes_is_not_lost(tmp_path):
    case = Case("hinge", 2)
    store = a_store(tmp_path, case)
    stopped(3, store, options_of(case, tol=1e-6), 5)
    run = tmp_path / "many.model.run"
    with pytest.raises(StoreError, match="holds an unfinished training, which would be lost"):
        train(2, store, options_of(case, tol=1e-6, loss="squared_hinge"))
    assert list(runs_here(run)) == [3]
    (_, report), *_ = train(2, store, options_of(case, loss="squared_hinge"), resume=False)
    assert report["converged"]
    assert list(runs_here(run)) == [2]


@pytest.mark.parametrize("sigma", [0.5, -1, float("inf")])
def test_a_sigma_below_one_is_refused(sigma):
    with pytest.raises(SettingsError, match=r"sigma is .*it must be at least 1, adaptive or safe"):
        sbm.Settings(sigma=sigma)


def test_words_for_sigma():
    assert sbm.Settings(sigma="2.5").sigma == 2.5
    with pytest.raises(SettingsError) as error:
        sbm.Settings(sigma="save")
    assert str(error.value) == "sigma is 'save'; a number or adaptive or safe is expected"


@pytest.mark.parametrize("size", [3, 5])
def test_shards_and_a_shared_store_come_to_the_same_optimum(tmp_path, monkeypatch, size):
    case = Case("crammer_singer", 3)
    store = a_store(tmp_path, case, 6)
    sbm.split([tmp_path / "d.svm"], tmp_path / "e.sbm", blocks=6, shards=size)
    alone = fit(store, "alone.model", **options_of(case))[:2]
    monkeypatch.chdir(tmp_path)
    (model, report), *_ = in_threads(
        size, lambda comm: sbm.train("e.{rank}.sbm", None, options_of(case), comm=comm)
    )
    assert report["model"] == "e.model"
    assert_same_optimum((model, report), alone)


def test_a_shard_that_nobody_has_is_refused(tmp_path):
    sbm.split([a_store(tmp_path).with_suffix(".svm")], tmp_path / "e.sbm", blocks=6, shards=3)
    with pytest.raises(StoreError) as error:
        in_threads(2, lambda comm: sbm.train(
            tmp_path / "e.{rank}.sbm", tmp_path / "x.model", comm=comm, settings={"threads": 1}
        ))  # fmt: skip
    rank = 0 if "e.0.sbm" in str(error.value) else 1
    assert str(error.value) == (
        f"block-000002.sbb of {tmp_path / f'e.{rank}.sbm'} can be seen by none of the 2 processes; "
        "start as many as there are shards, or copy the missing files there"
    )
    with pytest.raises(StoreError, match="is a part of a store"):
        sbm.train(tmp_path / "e.0.sbm")
