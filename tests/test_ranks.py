"""Several ranks train one model: optimum, resumed runs, shards, and errors."""

import itertools
import json
import math
import re

import numpy as np
import pytest
from families import CASES, Case, assert_same_optimum, make_store
from helpers import fit, write_rows
from inside import (
    LOSSES,
    Arena,
    BlockStore,
    Combiner,
    Problem,
    Run,
    SerialComm,
    Shape,
    TrainOptions,
    encode_record,
    load,
    patch,
    plan_training,
    runs_here,
    squared_norm,
    train_ranks,
)
from inside import engine_sync_module as sync
from inside import training_dual_module as dual
from inside import training_ranks_module as ranks
from threads import in_threads

import sbm
from sbm.errors import SettingsError, StoreError

OPTIONS = {"C": 0.1, "tol": 1e-3, "max_passes": 3000, "threads": 1, "cache_frac": 0.3}
HINGE = Case("hinge", 2)
BY_CLASS = Case("hinge", 3)
CS = Case("crammer_singer", 3)
WW = Case("weston_watkins", 3)


def options_of(case, **options):
    return {**{k: v for k, v in OPTIONS.items() if k != "C"}, **case.at(OPTIONS["C"]), **options}


@pytest.fixture(scope="module")
def store_of(tmp_path_factory):
    """Return the store of a case, made once."""
    made = {}

    def store(case, n_blocks=5):
        key = str(case), n_blocks
        if key not in made:
            made[key] = make_store(tmp_path_factory.mktemp("s"), *case.rows(), blocks=n_blocks)
        return made[key]

    return store


@pytest.fixture(scope="module")
def alone(store_of):
    """Train with a single rank."""

    def model(case):
        path = store_of(case)  # a second call finds the training finished
        return fit(path, "alone.model", **options_of(case, tol=1e-6))[:2]

    return model


@pytest.fixture
def model(tmp_path):
    return tmp_path / "many.model"


def train(size, store, path, options, **more):
    """Train as several ranks; return the results by rank."""
    return in_threads(
        size, lambda comm: train_ranks(comm, store, path, options, TrainOptions(**more))
    )


def stop(size, store, path, options, after):
    """Train, but have rank 0 stopped after some rounds."""
    left = [after]

    def train_some(comm):
        def is_stopped():
            if comm.rank == 0:
                left[0] -= 1
            return comm.rank == 0 and left[0] < 0

        with pytest.raises(KeyboardInterrupt):
            train_ranks(comm, store, path, options, TrainOptions(is_stopped=is_stopped))

    in_threads(size, train_some)


# ------------------------------------------------------------------------- optimum and resume


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_loss_reaches_optimum_and_resumes(store_of, alone, tmp_path, model, case):
    """A resume with another number of threads gives the same bytes."""
    k = CASES.index(case)
    size, store, options = 2 + k % 2, store_of(case), options_of(case, checkpoint_every=0)
    (found, report), *others = train(size, store, tmp_path / "whole.model", options)
    assert report["converged"]
    assert report["drift"] <= 1e-9
    assert report["processes"] == size
    assert_same_optimum((found, report), alone(case))
    assert math.isclose(case.primal(*case.rows(), found), report["primal"], rel_tol=1e-9)
    for no_model, theirs in others:
        assert no_model is None
        counts = {"n_support", "n_free"} & report.keys()  # if the loss has them
        for name in ("primal", "dual", "gap", "passes", "updates", *counts):
            assert theirs[name] == report[name], name

    is_short = case.loss in ("squared_error", "squared_epsilon_insensitive")
    stop(size, store, model, options, 1 if is_short else 2 + k % 6)
    assert not model.exists()
    (_, resumed), *_ = train(size, store, model, {**options, "threads": 3})
    assert resumed["resumed"]
    assert model.read_bytes() == (tmp_path / "whole.model").read_bytes()
    assert train(size, store, model, options)[0][1] == {**resumed, "was_finished": True}


@pytest.fixture
def often(monkeypatch):
    """Have changes added up as often as with large data, in three ways."""

    def choose(n):
        patch(monkeypatch, "MOST_WHOLE", 200_000_000)
        patch(monkeypatch, "LEAST_NNZ", 1)
        patch(monkeypatch, "SUMS", 5)
        patch(monkeypatch, "FREQUENT", 3)
        patch(monkeypatch, "DENSE", (1e9, 0, 1e9)[n])
        patch(monkeypatch, "MOST_LISTED", (1 << 19, 1 << 19, 16)[n])

    return choose


@pytest.mark.parametrize(("how", "case", "size", "n_blocks", "options"), [
    *((how, HINGE, 3, 5, {"rounds": 4}) for how in (0, 1, 2)),
    *((how, CS, 3, 5, {"parts": "blocks"}) for how in (0, 1, 2)),
    (0, HINGE, 2, 5, {"cache_frac": 0.0, "parts": "blocks"}), (1, HINGE, 4, 3, {"bias": 1.0}),
    (2, HINGE, 2, 12, {"cache_frac": 0.1, "parts": "blocks"}), (0, CS, 5, 1, {"screen": False}),
    (1, CS, 3, 5, {"cache_frac": "auto", "class_weight": "balanced"}), (2, CS, 2, 12, {}),
    (2, BY_CLASS, 4, 5, {"parts": "blocks"}),  # more ranks than classes: their weights are added up
    (0, Case("log_loss", 2), 3, 5, {}), (1, Case("one_class", 1, {"nu": 0.2}), 2, 5, {}),
], ids=str)  # fmt: skip
def test_settings_reach_optimum(
    store_of, model, monkeypatch, often, how, case, size, n_blocks, options
):
    drifts, replace = [0.0], dual.replace_weights

    def noted(engine, found):
        drifts.extend(certificate.drift for certificate, _ in found.values())
        replace(engine, found)

    patch(monkeypatch, "replace_weights", noted)
    store, chosen = store_of(case, n_blocks), options_of(case, **options)
    expected = fit(store, f"{model}-alone", **{**chosen, "tol": 1e-6})[:2]
    often(how)
    (found, report), *_ = train(size, store, model, chosen)
    assert report["converged"]
    assert max(drifts) <= 1e-9  # W matches the alphas after every sum
    assert_same_optimum((found, report), expected)


@pytest.mark.parametrize(("case", "is_too_bold"), [
    (HINGE, False), (CS, False), (WW, False), (Case("log_loss", 2), False), (CS, True),
    (Case("squared_error", 0), True), (Case("epsilon_insensitive", 0), True),
], ids=str)  # fmt: skip
def test_dual_bound_never_decreases(store_of, model, monkeypatch, often, case, is_too_bold):
    duals, shares = [], set()
    add_all, share = Combiner._add_all, Combiner._share

    def noted(self, *arguments):
        result = add_all(self, *arguments)
        if self._comm.rank == 0:
            duals.append(self.dual_sum - 0.5 * squared_norm(self._W))
        return result

    def noted_share(self, *arguments):
        shares.add(found := share(self, *arguments))
        return found

    monkeypatch.setattr(Combiner, "_add_all", noted)
    monkeypatch.setattr(Combiner, "_share", noted_share)
    often(0)
    if is_too_bold:  # no damping: the sum goes too far
        patch(monkeypatch, "SPARE", 0.0)
    options = options_of(case, max_passes=3, tol=1e-9, parts="blocks", solver="dual")
    (_, report), *_ = train(4, store_of(case, 24), model, options)
    assert len(duals) >= 10
    assert min(shares) < 1.0 or not is_too_bold or case.loss != "squared_error"
    # A certificate replaces the lower bound by the dual itself, which is above it.
    assert all(b >= a - 1e-12 * abs(a) for a, b in itertools.pairwise(duals))
    assert duals[-1] <= report["dual"] * (1 + 1e-12)


@pytest.mark.long
@pytest.mark.parametrize("case", [HINGE, WW], ids=str)
def test_stop_after_any_round_keeps_model_bytes(store_of, tmp_path, model, case):
    options = options_of(case)
    train(2, store_of(case), tmp_path / "whole.model", options)
    for _ in range(7):
        stop(2, store_of(case), model, options, 1)
    train(2, store_of(case), model, options)
    assert model.read_bytes() == (tmp_path / "whole.model").read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("late", [0, 2])
def test_ranks_return_to_common_checkpoint(store_of, tmp_path, model, late):
    store, options = store_of(CS), options_of(CS)
    train(3, store, tmp_path / "whole.model", options)
    for after in (3, 4):
        stop(3, store, model, options, after)
    folder = tmp_path / "many.model.run" / f"rank-{late}-of-3"
    number = Run.read(folder)["commit"]
    assert Run.roll_back(folder)["commit"] == number - 1  # as if killed before its last checkpoint
    train(3, store, model, options)
    assert model.read_bytes() == (tmp_path / "whole.model").read_bytes()


@pytest.mark.long
@pytest.mark.parametrize(("before", "now", "case"), [
    (3, 2, HINGE), (3, 1, WW), (1, 3, HINGE), (2, 4, Case("one_class", 1, {"nu": 0.2})),
], ids=str)  # fmt: skip
def test_other_number_of_ranks_resumes(store_of, alone, tmp_path, model, case, before, now):
    store, options = store_of(case), options_of(case)
    stop(before, store, model, options, 8)
    (found, report), *_ = train(now, store, model, options)
    assert list(runs_here(tmp_path / "many.model.run")) == [now]
    assert report["converged"]
    assert_same_optimum((found, report), alone(case))
    (_, cold), *_ = train(now, store, tmp_path / "cold.model", options)
    assert report["updates"] != cold["updates"]  # it started from the alphas it found


@pytest.mark.long
@pytest.mark.parametrize(("before", "now"), [(3, 3), (1, 3), (3, 1)])
def test_warm_start_accepts_any_number_of_ranks(tmp_path, model, before, now):
    store = make_store(tmp_path, *CS.rows(), blocks=5)
    train(before, store, model, options_of(CS))
    sbm.split([write_rows(tmp_path / "more.svm", *CS.rows(1, n=20))], store, append=True)
    (found, report), *_ = train(now, store, model, options_of(CS, warm_start=True))
    assert_same_optimum((found, report), fit(store, "alone.model", **options_of(CS))[:2])
    (_, cold), *_ = train(now, store, tmp_path / "cold.model", options_of(CS))
    assert report["updates"] < cold["updates"]


def test_finished_model_is_kept_for_any_ranks(store_of, model):
    (_, report), *_ = train(3, store_of(HINGE), model, options_of(HINGE))
    data = model.read_bytes()
    for size in (1, 2, 3):
        results = train(size, store_of(HINGE), model, options_of(HINGE))
        assert all(theirs["was_finished"] for _, theirs in results)
        assert results[0][1] == {**report, "was_finished": True}
    assert model.read_bytes() == data


@pytest.mark.parametrize(("rank", "more"), [(0, 0), (1, 0), (0, 20), (1, 20)])
def test_rank_that_missed_the_end_resumes(store_of, tmp_path, model, monkeypatch, rank, more):
    store, whole = store_of(HINGE), tmp_path / "whole.model"
    options = options_of(HINGE, tol=1e-6, max_passes=3)
    train(2, store, whole, options)
    train(2, store, whole, {**options, "max_passes": 3 + more})
    note = Run.note

    def forget(run, **facts):
        if run.folder.name != f"rank-{rank}-of-2":
            note(run, **facts)

    with monkeypatch.context() as context:  # as if killed before it records the end
        context.setattr(Run, "note", forget)
        train(2, store, model, options)
    results = train(2, store, model, {**options, "max_passes": 3 + more})
    assert [report["was_finished"] for _, report in results] == [False, False]
    assert model.read_bytes() == whole.read_bytes()
    assert all(report["was_finished"] for _, report in train(2, store, model, options))


def test_status_file_reports_the_end(store_of, model):
    path = model.with_name("many.model.run") / "status.json"
    stop(2, store_of(HINGE), model, options_of(HINGE), 3)
    assert json.loads(path.read_text()) == {"state": "running", "processes": 2}
    (_, report), *_ = train(2, store_of(HINGE), model, options_of(HINGE))
    status = json.loads(path.read_text())
    assert (status["state"], status["processes"]) == ("finished", 2)
    assert status["report"]["primal"] == report["primal"]
    path.unlink()
    sbm.train(store_of(HINGE), model, options_of(HINGE), resume=False)
    assert not path.exists()  # a single rank writes none


# ----------------------------------------------------------------------------- by class, shards


@pytest.mark.parametrize("loss", ["hinge", "log_loss"])
def test_classes_are_divided_without_sums(store_of, alone, model, monkeypatch, loss):
    monkeypatch.setattr(Combiner, "solve", lambda *_: pytest.fail("weights are added up"))
    case = Case(loss, 3)
    for size in (2, 3):
        path = model.with_name(f"{size}.model")
        (found, report), *_ = train(size, store_of(case), path, options_of(case, tol=1e-4))
        assert report["converged"]
        assert_same_optimum((found, report), alone(case))
        assert math.isclose(report["primal"], alone(case)[1]["primal"], rel_tol=2e-4)


def test_by_class_ranks_resume_from_own_checkpoint(store_of, tmp_path, model):
    """A rank may have finished and write no more checkpoints while others continue."""
    store, options = store_of(BY_CLASS), options_of(BY_CLASS)
    train(2, store, tmp_path / "whole.model", options)
    stop(2, store, model, options, 7)
    folder = tmp_path / "many.model.run" / "rank-1-of-2"
    record = {**Run.read(folder), "commit": 99, "before": None}
    (folder / "run.json").write_bytes(encode_record("run", record))
    assert all(report["resumed"] for _, report in train(2, store, model, options))
    assert model.read_bytes() == (tmp_path / "whole.model").read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("size", [3, 5])
def test_shards_reach_the_optimum_of_the_store(store_of, alone, tmp_path, monkeypatch, size):
    text = store_of(CS).with_suffix(".svm")
    sbm.split([text], tmp_path / "e.sbm", blocks=6, shards=size)
    monkeypatch.chdir(tmp_path)
    (found, report), *_ = in_threads(
        size, lambda comm: train_ranks(comm, "e.{rank}.sbm", None, options_of(CS))
    )
    assert report["model"] == "e.model"
    assert_same_optimum((found, report), alone(CS))


def test_parts_are_dealt_by_size(tmp_path, model):
    """The first half of the rows has all the features, and so most of the nonzeros."""
    X = np.ones((80, 40))
    X[40:, 1:] = 0
    store = make_store(tmp_path, X, np.where(np.arange(80) % 2, 1.0, -1.0), blocks=8)
    train(2, store, model, options_of(HINGE, max_passes=1))
    manifest = sbm.store.blocks.BlockStore(store).manifest["blocks"]
    loads = [
        sum(manifest[b]["nnz"] for b in Run.read(folder)["own"])
        for folder in runs_here(tmp_path / "many.model.run")[2]
    ]
    assert max(loads) <= 1.5 * min(loads)


# ------------------------------------------------------------------------------------ the parts


def test_damping_follows_agreement_by_frequency():
    """Two ranks change a frequent weight alike, and rare ones independently."""
    W = np.zeros((40, 1))
    rows = Arena(np.array([0, 1] * 20 + list(range(2, 40)), np.int32), None).room(39)
    rows.lengths[:], rows.starts[:] = [2] * 20 + [2] * 19, np.arange(0, 78, 2)

    def learned(comm):
        combiner = Combiner(comm, Problem(LOSSES["hinge"], 1.0, 1.0, 1), W.copy())
        combiner._learn_frequencies(rows)
        return combiner.state()

    for state in in_threads(2, learned):
        assert (state["code"] & 31).tolist() == [6, 6] + [2] * 38  # both ranks have these rows
        assert (state["damping"] == 2.0).all()

    kernels = load("sbm.solver.kernels.changes")
    averages, damping = np.zeros((2, 64)), np.full(64, 4.0)
    squares, own = np.zeros(64), np.zeros(64)
    squares[:3], own[:3] = [16.0, 1.0, 3.0], [4.0, 4.0, 2.0]
    kernels.learn(averages, squares, own, 0, 32, 0.3, 1.0, damping, 4.0)
    assert damping[:4].tolist() == [4.0, 1.0, 1.5, 4.0]
    squares[2], own[2] = 1.0, 8.0
    kernels.learn(averages, squares, own, 0, 32, 0.0, 1.0, damping, 4.0)
    assert damping[2] == 1.5
    kernels.learn(averages, squares, own, 0, 32, 0.5, 1.0, damping, 4.0)
    assert damping[2] == 1.0


def test_sums_of_a_round_follow_its_size():
    assert sync.sums_of(0) == (1, 1)
    assert sync.sums_of(5 * sync.LEAST_NNZ) == (5, 3)  # two are of all weights
    assert sync.sums_of(10**9) == (sync.SUMS, sync.SUMS // sync.FULL_SUMS)
    # There are as many frequent weights for any number of classes.
    assert sync.frequent_of(1) == sync.FREQUENT
    assert sync.frequent_of(20) * 20 <= sync.FREQUENT
    assert sync.frequent_of(10**6) == 1


@pytest.mark.parametrize(("gain", "cross", "size", "share"), [
    (3.0, 2.0, 4.0, 0.25), (9.0, 1.0, 4.0, 1.0), (3.0, 1.0, 4.0, 1.0), (1.0, 2.0, 4.0, 0.0),
    (0.0, 0.0, 0.0, 1.0),
])  # fmt: skip
def test_share_is_optimum_of_parabola_if_sum_goes_too_far(gain, cross, size, share):
    combiner = Combiner(SerialComm(), Problem(LOSSES["hinge"], 1.0, 1.0, 1), np.zeros((3, 1)))
    assert combiner._share(gain, cross, size) == share


def test_ranks_have_equal_parts(store_of, monkeypatch):
    patch(monkeypatch, "MOST_WHOLE", 200_000_000)
    store = BlockStore(store_of(HINGE, 5))
    for n, by_block in ((2, False), (3, True), (5, True), (8, False)):
        plan = plan_training(store, 10**9, 0.5, Shape(10, may_join=True, ranks=n,
                                                      by_block=by_block))  # fmt: skip
        assert plan.is_whole
        assert len(plan.parts) == min(n, 5)
        assert sum(part.rows for part in plan.parts) == store.n_rows
        chunks = [chunk for part in plan.parts for chunk in part.chunks]
        assert len(chunks) == len(set(chunks)) == sum(map(len, store.chunks))


def test_ranks_of_a_machine_share_its_cores(monkeypatch):
    patch(monkeypatch, "usable_threads", lambda wanted: 7)

    def threads(size, **options):
        settings = sbm.Settings(**options)
        return [s.threads for s in in_threads(size, lambda c: ranks.share_cores(settings, c))]

    assert (threads(2), threads(9), threads(1)) == ([3, 3], [1] * 9, [None])
    assert threads(2, threads=5) == [5, 5]


def test_first_rank_works_before_the_others():
    done = []
    in_threads(3, lambda c: ranks.one_first(c, lambda: done.append(c.rank)))
    assert (done[0], sorted(done)) == (0, [0, 1, 2])


# --------------------------------------------------------------------------------- what is refused


def test_other_stores_are_refused(tmp_path, model):
    stores = [make_store(tmp_path, *HINGE.rows(k), name=str(k), blocks=3) for k in (0, 1)]
    with pytest.raises(StoreError, match=r"[01]\.sbm of rank [01] .* rank [01] "):
        in_threads(2, lambda c: train_ranks(c, stores[c.rank], model, options_of(HINGE)))
    assert not model.exists()


@pytest.mark.parametrize(("options", "error", "facts"), [
    ([{"seed": 0}, {"seed": 1}], StoreError, r"[01] and [01] .*settings"),
    ([{"calibrate": True}] * 2, SettingsError, "calibrate .*2"),
    ([{"weights": "-"}] * 2, SettingsError, "weights - .*2 processes and standard input"),
])  # fmt: skip
def test_different_settings_of_ranks_are_refused(store_of, model, options, error, facts):
    chosen = [options_of(HINGE, **mine) for mine in options]
    with pytest.raises(error, match=facts):
        in_threads(2, lambda c: train_ranks(c, store_of(HINGE), model, chosen[c.rank]))


def test_unfinished_run_of_others_is_not_overwritten(store_of, tmp_path, model):
    store, run = store_of(HINGE), tmp_path / "many.model.run"
    stop(3, store, model, options_of(HINGE, tol=1e-6), 5)
    other = options_of(HINGE, loss="squared_hinge")
    with pytest.raises(StoreError, match=re.escape(str(run))):
        train(2, store, model, other)
    assert list(runs_here(run)) == [3]
    (_, report), *_ = train(2, store, model, other, resume=False)
    assert report["converged"]
    assert list(runs_here(run)) == [2]


def test_missing_shard_is_refused(store_of, tmp_path, model):
    text = store_of(HINGE).with_suffix(".svm")
    sbm.split([text], tmp_path / "e.sbm", blocks=6, shards=3)
    with pytest.raises(StoreError, match=r"block-000002\.sbb of \S+e\.[01]\.sbm .* 2 "):
        train(2, tmp_path / "e.{rank}.sbm", model, {"threads": 1})
    with pytest.raises(StoreError, match=r"e\.0\.sbm"):
        sbm.train(tmp_path / "e.0.sbm")


# ---------------------------------------------------------------------------------- second order

NEWTON = {"solver": "newton", "C": 10.0, "tol": 1e-6, "threads": 1}


@pytest.mark.parametrize(("case", "size", "n_blocks"), [
    (Case("hinge", 2), 3, 5), (Case("log_loss", 2), 2, 5), (Case("squared_hinge", 3), 5, 3),
    (Case("log_loss", 3), 2, 5), (Case("epsilon_insensitive", 0), 4, 3),
], ids=str)  # fmt: skip
def test_newton_passes_do_not_depend_on_ranks(store_of, tmp_path, model, case, size, n_blocks):
    """More ranks than blocks and fewer ranks than classes included; a resume keeps the bytes."""
    store, options = store_of(case, n_blocks), {**NEWTON, "loss": case.loss}
    expected = fit(store, tmp_path / "alone.model", **options)[:2]
    (found, report), *others = train(size, store, tmp_path / "whole.model", options)
    assert report["converged"]
    assert_same_optimum((found, report), expected)
    is_by_class = case.labels >= size
    assert is_by_class or abs(report["passes"] - expected[1]["passes"]) <= 1
    assert is_by_class or all(theirs["gap"] == report["gap"] for _, theirs in others)
    stop(size, store, model, {**options, "checkpoint_every": 0}, 3 if is_by_class else 1)
    (_, resumed), *_ = train(size, store, model, {**options, "threads": 3})
    assert resumed["resumed"]
    assert model.read_bytes() == (tmp_path / "whole.model").read_bytes()


def test_ranks_switch_to_newton_together(tmp_path, model):
    random = np.random.default_rng(0)
    X = random.normal(size=(400, 4)) * [1, 100, 10_000, 1]
    y = np.where(X @ [1, 1e-2, 1e-4, 1] + 0.3 * random.normal(size=400) > 0, 1.0, -1.0)
    store = make_store(tmp_path, X, y, blocks=4)
    options = {"loss": "squared_hinge", "C": 1.0, "checkpoint_every": 0}
    (_, report), *_ = train(2, store, tmp_path / "whole.model", options)
    assert report["converged"]
    stop(2, store, model, options, 4)
    train(2, store, model, options)
    assert model.read_bytes() == (tmp_path / "whole.model").read_bytes()
