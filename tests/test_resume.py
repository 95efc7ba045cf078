"""Training resumes after a stop, a kill or a power cut, and reaches the same bytes."""

import json
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from families import Case, make_store
from helpers import Passes, fit, write_rows
from inside import BlockStore, Dual, Engine, MemoryPlan, Progress, Run, main, patch
from processes import finished

import sbm
from sbm.errors import MemoryPlanError, SettingsError, StoreError

HINGE = Case("hinge", 2)
# Every kind of state in a checkpoint.
STATES = pytest.mark.parametrize(
    "case",
    [
        Case("hinge", 2, {"cache_frac": "auto", "rounds": "2,1"}, "-auto"),
        Case("hinge", 2, {"policy": "random", "threads": 1, "bias": 1.0}, "-random"),
        Case("hinge", 2, {"calibrate": True, "screen": False}, "-calibrate"),
        Case("squared_hinge", 3, {"cache_frac": 0.0}, "-none"),
        Case("log_loss", 2), Case("crammer_singer", 3, {"solver": "dual"}),
        Case("weston_watkins", 3, {"calibrate": True}, "-calibrate"),
        Case("epsilon_insensitive", 0), Case("squared_error", 3, {"task": "classification"}),
        Case("one_class", 1, {"nu": 0.2}),
    ],
    ids=str,
)  # fmt: skip


class LostError(Exception):
    """Simulates a killed process."""


class After(Progress):
    """Stops or kills the training after N blocks of passes; records the stages."""

    def __init__(self, n: int, lost: bool = False, kind: str = "pass") -> None:
        self.left, self.lost, self.kind, self.names = n, lost, kind, []

    def start(self, what: str, total: int | None, unit: str = "B") -> None:
        self.is_pass = what.startswith(self.kind)
        self.names.append(what)

    def advance(self, done: int, **numbers: object) -> None:
        self.left -= self.is_pass
        if self.lost and self.left == 0:
            raise LostError

    def is_stopped(self) -> bool:
        return not self.lost and self.left <= 0


def options_of(case=HINGE, **more):
    return {"tol": 1e-7, "max_passes": 6, "mem": "400MB", **case.at(1.0), **more}


def make(folder, case=HINGE, n=100, n_blocks=5):
    return make_store(folder, *case.rows(0, n), blocks=n_blocks)


@pytest.fixture(scope="module")
def hinge(tmp_path_factory):
    """A store, and the model of an uninterrupted training with `options_of()`."""
    store = make(tmp_path_factory.mktemp("hinge"))
    return store, whole(store, options_of())


def whole(store, options):
    sbm.train(store, store.parent / "whole.model", options)
    return (store.parent / "whole.model").read_bytes()


def stop(store, path, options, n=7):
    part = After(n)
    with pytest.raises(KeyboardInterrupt):
        sbm.train(store, path, options, is_stopped=part.is_stopped, progress=part)


def lose(store, path, options, n):
    with pytest.raises(LostError):
        sbm.train(store, path, options, progress=After(n, lost=True))


# ----------------------------------------------------------------------------- the same bytes


@STATES
def test_resume_reproduces_model_bytes(tmp_path, case):
    store, options, path = make(tmp_path, case), options_of(case), tmp_path / "m.model"
    expected = whole(store, options)
    stop(store, path, options, 4)
    lose(store, path, {**options, "checkpoint_every": 1e-9}, 9)
    stop(store, path, options, 8)
    assert not path.exists()
    progress = Passes()
    report = sbm.train(store, path, options, progress=progress)[1]
    assert report["resumed"]
    assert not report["was_finished"]
    assert "m.model.run" in progress.stages[0]
    assert path.read_bytes() == expected


@pytest.mark.parametrize(
    ("labels", "more"),
    [(3, {}), (2, {"calibrate": True})],  # the first one switches to Newton's method
    ids=["switch", "calibrate"],
)
@pytest.mark.long
def test_resume_from_any_checkpoint(tmp_path, monkeypatch, labels, more):
    patch(monkeypatch, "MOST_WHOLE", 0)
    random = np.random.default_rng(0)
    X = random.normal(size=(1500, 8))
    y = np.argmax(X[:, :labels] + 0.8 * random.normal(size=(1500, labels)), axis=1)
    store, path = make_store(tmp_path, X, y, blocks=5), tmp_path / "m.model"
    options = {"mem": "400MB", "rounds": 1, "tol": 1e-4, "checkpoint_every": 1e-9, **more}
    expected = whole(store, options)
    for n in range(14, 24):
        left = iter(range(n))
        with pytest.raises(KeyboardInterrupt):
            sbm.train(
                store, path, options, resume=False, is_stopped=lambda left=left: next(left, -1) < 0
            )
        sbm.train(store, path, options)
        assert path.read_bytes() == expected, n


@pytest.mark.parametrize(
    "case", [HINGE, Case("log_loss", 2, {"threads": 1}), Case("weston_watkins", 3)], ids=str
)
def test_unreadable_block_is_not_in_a_checkpoint(tmp_path, monkeypatch, case):
    monkeypatch.setattr(MemoryPlan, "staying", lambda *_: [])
    store, path = make(tmp_path, case), tmp_path / "m.model"
    options = options_of(case, checkpoint_every=1e-9, max_passes=3)
    expected = whole(store, options)
    read, left = BlockStore.read, [0]

    def read_or_fail(*arguments, **more):
        left[0] -= 1
        if left[0] == 0:
            raise StoreError("block is not there for once")
        return read(*arguments, **more)

    monkeypatch.setattr(BlockStore, "read", read_or_fail)
    for fails_at in (9, 18):  # the last one is of the certificate
        left[0] = fails_at
        with pytest.raises(StoreError, match="not there for once"):
            sbm.train(store, path, options, resume=False)
        sbm.train(store, path, options)
        assert path.read_bytes() == expected, fails_at


def test_commits_without_checkpoints_come_after_passes(hinge, tmp_path, monkeypatch):
    store, expected = hinge
    path, options = tmp_path / "m.model", options_of(checkpoint_every=0)
    lose(store, path, options, 14)
    assert not (tmp_path / "m.model.run/run.json").exists()  # too early for a checkpoint
    patch(monkeypatch, "COMMIT_SECONDS", 0)
    patch(monkeypatch, "COMMIT_SHARE", 0)
    lose(store, path, options, 14)
    passes = Passes()
    sbm.train(store, path, options, progress=passes)
    assert [row["pass"] for row in passes.rows] == [3, 4, 5, 6]
    assert path.read_bytes() == expected


def test_figures_continue_across_a_stop(hinge, tmp_path):
    store, path, options = hinge[0], tmp_path / "m.model", options_of(checkpoint_every=1e-9)
    _, straight, _ = fit(store, tmp_path / "whole.model", **options)
    stop(store, path, options, 14)
    before = Run.read(tmp_path / "m.model.run")
    _, report, _ = fit(store, path, **options)
    for name in ("updates", "visits", "rounds", "n_support", "passes"):
        assert report[name] == straight[name], name
    assert report["bytes_read"] >= straight["bytes_read"] >= before["bytes_read"] > 0
    assert report["seconds"]["total"] > before["elapsed"] > 0
    for name, seconds in before["seconds"].items():
        assert report["seconds"][name] >= seconds >= 0, name
    log = (tmp_path / "m.model.run/log.jsonl").read_text().splitlines()
    assert [json.loads(line).get("pass") for line in log] == [1, 2, 3, 4, 5, 6, None]


def test_resumed_warm_start_needs_no_first_model(tmp_path):
    store, path = make(tmp_path), tmp_path / "m.model"
    sbm.train(store, tmp_path / "a.model", options_of(tol=1e-2))
    options = options_of(C=3.0, warm_start=str(tmp_path / "a.model"))
    expected = whole(store, options)
    stop(store, path, options, 14)
    (tmp_path / "a.model").unlink()
    for file in (tmp_path / "a.model.run").iterdir():
        file.unlink()
    assert sbm.train(store, path, options)[1]["resumed"]
    assert path.read_bytes() == expected


def test_interrupted_warm_start_keeps_old_run(tmp_path):
    store = make(tmp_path, n=150)
    options = options_of(warm_start=True)
    models = {}
    for name in ("a.model", "b.model"):
        sbm.train(store, tmp_path / name, options)
    sbm.split(write_rows(tmp_path / "new.svm", *HINGE.rows(1, 30)), store, append=True)
    for name, losses in (("a.model", ()), ("b.model", (1, 3, 9, 12))):
        for n in losses:
            lose(store, tmp_path / name, options, n)
        sbm.train(store, tmp_path / name, options)
        models[name] = (tmp_path / name).read_bytes()
    assert models["a.model"] == models["b.model"]


# ------------------------------------------------------------------------- finished trainings


def test_finished_training_returns_without_reading(tmp_path):
    store, path = make(tmp_path), tmp_path / "m.model"
    options = options_of(tol=1e-2, max_passes=50)
    with pytest.raises(StoreError, match=r"m\.model\.run; .*resume=True"):
        sbm.train(store, path, options, resume=True)
    assert not Path(f"{path}.run").exists()
    model, first = sbm.train(store, path, options)
    before = {p: p.read_bytes() for p in (tmp_path / "m.model.run").iterdir()}
    for block in store.glob("block-*"):
        block.unlink()
    again, report = sbm.train(store, path, {**options, "threads": 1, "warm_start": True})
    assert report == {**first, "was_finished": True}
    assert np.array_equal(again.W, model.W)
    assert {p: p.read_bytes() for p in (tmp_path / "m.model.run").iterdir()} == before


@pytest.mark.parametrize("calibrate", [False, True])
def test_missing_or_replaced_model_is_rewritten(hinge, tmp_path, calibrate):
    store, path, options = hinge[0], tmp_path / "m.model", options_of(calibrate=calibrate)
    fit(store, path, **options)
    expected = path.read_bytes()
    for damage in (path.unlink, lambda: path.write_bytes(expected[:-1] + b"x")):
        damage()
        _, report, passes = fit(store, path, **options)
        assert path.read_bytes() == expected
        assert (passes, report["was_finished"]) == ([], False)
    assert fit(store, path, **options)[1]["was_finished"]


def test_other_settings_replace_finished_training(hinge, tmp_path):
    store, expected = hinge
    path, options = tmp_path / "m.model", options_of()
    sbm.train(store, path, options)
    assert not sbm.train(store, path, {**options, "C": 2.0})[1]["resumed"]
    assert sbm.Model.load(path).info["C"] == 2.0
    for resume in (None, False):
        passes = Passes()
        report = sbm.train(store, path, options, resume=resume, progress=passes)[1]
        assert len(passes.rows) == 6
        assert (report["resumed"], report["was_finished"]) == (False, False)
        assert path.read_bytes() == expected
    assert "other settings" in refused(SettingsError, store, path, options_of(C=3.0), resume=True)


def test_exhausted_budget_can_be_raised(hinge, tmp_path):
    store, path, options = hinge[0], tmp_path / "m.model", options_of(max_passes=3)
    fit(store, path, **options)
    assert fit(store, path, **options)[1]["was_finished"]
    _, report, passes = fit(store, path, **{**options, "max_passes": 5})
    assert [row["pass"] for row in passes] == [4, 5]
    assert report["passes"] == 5
    _, report, _ = fit(store, path, **{**options, "max_passes": 50, "time_limit": 1e-9})
    assert (report["passes"], report["converged"]) == (6, False)  # time is checked after a pass
    _, report, _ = fit(store, path, **{**options, "max_passes": 500})
    assert report["converged"]
    assert report["passes"] > 6
    assert fit(store, path, **{**options, "max_passes": 5000})[1]["was_finished"]


# ------------------------------------------------------------------------------ what is refused


def refused(kind, store, path, options, **more):
    """Return the message of a training that must fail and leave its run as it was."""
    before = {p: p.read_bytes() for p in Path(f"{path}.run").iterdir()}
    with pytest.raises(kind) as error:
        sbm.train(store, path, options, **more)
    assert {p: p.read_bytes() for p in Path(f"{path}.run").iterdir()} == before
    return str(error.value)


def test_unfinished_training_needs_same_settings(hinge, tmp_path):
    store, expected = hinge
    path, options = tmp_path / "m.model", options_of(threads=2)
    stop(store, path, options)
    for others, facts in (
        ({"C": 2.0, "cache_frac": 0.25}, ("C=1 (now 2), cache_frac=0.5 (now 0.25)",)),
        ({"mem": "500MB"}, ("mem='400MB' (now 500 MB)",)),
    ):
        text = refused(SettingsError, store, path, {**options, **others})
        assert all(fact in text for fact in (f"{path}.run", "resume=False", *facts)), text
    free = {"threads": 1, "checkpoint_every": 0}
    assert sbm.train(store, path, {**options, **free})[1]["resumed"]
    assert path.read_bytes() == expected
    stop(store, path, {**options, "C": 2.0})
    assert not sbm.train(store, path, options, resume=False)[1]["resumed"]
    assert path.read_bytes() == expected


def test_unfinished_training_needs_same_data(tmp_path):
    store, path, options = make(tmp_path), tmp_path / "m.model", options_of(tol=1e-3)
    stop(store, path, options)
    np.savetxt(tmp_path / "w", np.arange(1, 101) / 50)
    weighted = {**options, "weights": str(tmp_path / "w")}
    stop(store, tmp_path / "w.model", weighted)
    np.savetxt(tmp_path / "w", np.arange(2, 102) / 50)
    assert "weights" in refused(SettingsError, store, tmp_path / "w.model", weighted)
    text = (tmp_path / "d.svm").read_text()
    first = text.split()[1]
    (tmp_path / "d.svm").write_text(text.replace(first, first.split(":")[0] + ":0.25", 1))
    sbm.split(tmp_path / "d.svm", store, blocks=5, force=True)
    for resume in (None, True):
        message = refused(StoreError, store, path, options, resume=resume)
        assert all(x in message for x in ("other data", str(store), "resume=False"))
        assert "--warm-start" not in message  # which would be refused
    assert not sbm.train(store, path, options, resume=False)[1]["resumed"]


def test_warm_start_uses_unfinished_training(tmp_path):
    store, path = make(tmp_path), tmp_path / "m.model"
    options = options_of(tol=1e-3, max_passes=50, warm_start=True)
    stop(store, path, {**options, "tol": 1e-9})
    sbm.split(write_rows(tmp_path / "new.svm", *HINGE.rows(1, 30)), store, append=True)
    report = sbm.train(store, path, options)[1]
    assert report["converged"]
    assert not report["resumed"]


def test_stream_and_training_do_not_replace_each_other(hinge, tmp_path):
    store, text = hinge[0], hinge[0].with_suffix(".svm")
    path, options = tmp_path / "m.model", options_of()
    sbm.stream(text, path)
    message = refused(StoreError, store, path, options)
    assert all(fact in message for fact in (f"{path}.run", "sbm.stream", "model=", "resume=False"))
    assert not sbm.train(store, path, options, resume=False)[1]["resumed"]
    stop(store, tmp_path / "n.model", options)
    with pytest.raises(SettingsError, match=r"n\.model\.run .*unfinished training"):
        sbm.stream(text, tmp_path / "n.model")
    assert sbm.train(store, tmp_path / "n.model", options)[1]["resumed"]
    assert sbm.stream(text, tmp_path / "n.model")[1]["rows"] == 100  # a finished one is replaced


def test_damaged_run_is_refused_without_fresh(hinge, tmp_path):
    store, expected = hinge
    path, options = tmp_path / "m.model", options_of()
    stop(store, path, options)
    record = Path(f"{path}.run/run.json")
    record.write_bytes(record.read_bytes().replace(b'"passes": 2', b'"passes": 3'))
    message = refused(StoreError, store, path, options)
    assert all(fact in message for fact in (str(record), "damaged", "checksum", "resume=False"))
    sbm.train(store, path, options, resume=False)
    assert path.read_bytes() == expected


@pytest.mark.parametrize(
    "lie",
    [
        {"passes": "many"}, {"rounds": None}, {"method": {}}, {"totals": {"x": 1}},
        {"method": {"family": "dual", "last_block": 0, "pass": None, "coming": 99}},
        {"watch": None},
        {"seconds": [1]},
    ],
    ids=str,
)  # fmt: skip
def test_invalid_record_is_refused(hinge, tmp_path, lie):
    path = tmp_path / "m.model"
    stop(hinge[0], path, options_of())
    with Run.resume(Path(f"{path}.run"), [20] * 5) as (run, _):
        run.note(**lie)
    with pytest.raises(StoreError, match=r"m\.model\.run.* resume=False"):
        sbm.train(hinge[0], path, options_of())


# ----------------------------------------------------------------------------- on the command line


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_writes_checkpoint_and_command_resumes(hinge, tmp_path, number, monkeypatch):
    store, expected = hinge
    line = ["train", str(store), "-o", "d.model", "--loss", "hinge", "-C", "1", "--tol", "1e-7",
            "--max-passes", "6", "--mem", "400MB"]  # fmt: skip
    hold = (
        "import signal, sys, os, sbm.engine.memory as m, sbm.programs.training.training as t\n"
        "m.MOST_WHOLE = 0\n"
        "old = t.Training.after_step\n"
        "def after(self):\n"
        f"    if self.state.passes == 3: os.kill(os.getpid(), {int(number)})\n"
        "    old(self)\n"
        "t.Training.after_step = after\n"
        f"import sbm.cli; sbm.cli.main({[*line, '-q']!r})\n"
    )
    done = finished([sys.executable, "-c", hold], cwd=tmp_path)
    assert done.returncode == 130
    assert done.stderr.lstrip().startswith("sbm: stopped")
    assert not (tmp_path / "d.model").exists()
    assert Run.read(tmp_path / "d.model.run")["passes"] == 3
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(line)
    assert end.value.code == 0
    assert (tmp_path / "d.model").read_bytes() == expected


# ----------------------------------------------------------------------------------------- tune


def tuned(folder, name, progress=None, Cs=(0.01, 0.1, 1.0, 10.0), **options):
    """Tune; return the model's bytes and the report."""
    path, settings = folder / name, options_of(tol=1e-6, max_passes=12, solver="dual")
    report = sbm.tune(
        folder / "d.sbm", path, settings, Cs=list(Cs), folds=3, progress=progress, **options
    )[1]
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in report["settings"]]
    return path.read_bytes(), [report["best"], report["passes"], rows]


@pytest.mark.long
def test_tune_resumes_in_every_stage(tmp_path, monkeypatch):
    make(tmp_path, n=200)
    expected = tuned(tmp_path, "whole.model")
    patch(monkeypatch, "COMMIT_SECONDS", 0)
    patch(monkeypatch, "COMMIT_SHARE", 0)
    with pytest.raises(LostError):  # of other values, so it is not resumed
        tuned(tmp_path, "m.model", After(12, lost=True, kind="tune"), Cs=(1.0, 2.0))
    assert (tmp_path / "m.model.tune.run" / "run.json").exists()
    with pytest.raises(LostError):
        tuned(tmp_path, "m.model", After(17, lost=True, kind="tune"))
    seen = After(13, lost=True)
    with pytest.raises(LostError):
        tuned(tmp_path, "m.model", seen)
    assert seen.names[:2] == ["read the cache", "tune, pass 4"]
    last = After(10**9)
    assert tuned(tmp_path, "m.model", last) == expected
    assert not [name for name in last.names if name.startswith("tune") or name == "pass 1"]
    assert not (tmp_path / "m.model.tune.run").exists()


# ------------------------------------------------------------------------------- out of memory


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """A store for which a smaller plan exists, options, and the optimum."""
    store = make(tmp_path_factory.mktemp("wide"), n=3000, n_blocks=3)
    options = options_of(tol=1e-3, max_passes=60)
    return store, options, sbm.train(store, store.parent / "whole.model", options)[1]["primal"]


def fail_once(monkeypatch, owner, name, n):
    """Let the n-th call run out of memory."""
    calls, old = [], getattr(owner, name)

    def fail(*arguments, **options):
        calls.append(name)
        if len(calls) == n:
            raise MemoryError
        return old(*arguments, **options)

    monkeypatch.setattr(owner, name, fail)


@pytest.mark.parametrize(
    ("owner", "name", "n"),
    [
        (Engine, "__init__", 1),
        (Engine, "_load", 1),
        (Engine, "_load", 8),
        (Dual, "certify", 1),
    ],
)
def test_memory_error_continues_with_smaller_plan(tmp_path, monkeypatch, wide, owner, name, n):
    patch(monkeypatch, "_CLOSE", 0)
    store, options, primal = wide
    fail_once(monkeypatch, owner, name, n)
    report = sbm.train(store, tmp_path / "m.model", options)[1]
    assert report["converged"]
    assert abs(report["primal"] - primal) <= 2e-3 * primal
    assert Run.read(tmp_path / "m.model.run")["bound"] < 400_000_000
    assert sbm.train(store, tmp_path / "m.model", options)[1]["primal"] == report["primal"]


def test_resume_keeps_smaller_plan(tmp_path, monkeypatch, wide):
    patch(monkeypatch, "_CLOSE", 0)
    store, options, _ = wide
    path, options = tmp_path / "m.model", {**options, "checkpoint_every": 1e-9}
    with monkeypatch.context() as context:
        fail_once(context, Engine, "__init__", 1)
        lose(store, path, options, 5)
    bound = Run.read(tmp_path / "m.model.run")["bound"]
    assert bound < 400_000_000
    assert sbm.train(store, path, options)[1]["resumed"]
    assert Run.read(tmp_path / "m.model.run")["bound"] == bound
    with monkeypatch.context() as context:
        fail_once(context, Engine, "__init__", 1)
        sbm.train(store, tmp_path / "whole.model", options)
    assert path.read_bytes() == (tmp_path / "whole.model").read_bytes()


def test_memory_error_without_smaller_plan_is_reported(hinge, tmp_path, monkeypatch):
    fail_once(monkeypatch, Engine, "__init__", 1)
    with pytest.raises(MemoryPlanError, match=r"ran out while training .*d\.sbm.*mem='66MB'"):
        sbm.train(hinge[0], tmp_path / "m.model", options_of())


def test_growth_above_bound_continues_from_checkpoint(wide, tmp_path, monkeypatch):
    patch(monkeypatch, "_CLOSE", 0)
    # The caller's memory is not part of the bound; then 7 blocks fit, and one does not.
    sizes = iter([0] + [300_000_000] * 7 + [10**12] + [0] * 10**4)
    patch(monkeypatch, "resident_bytes", lambda: next(sizes))
    _, report, passes = fit(wide[0], tmp_path / "m.model", **wide[1])
    assert report["converged"]
    numbers = [row["pass"] for row in passes]
    again = numbers.index(1, 1)
    assert again >= 2
    assert numbers == [*range(1, again + 1), *range(1, len(numbers) - again + 1)]
    assert passes[again]["dual"] > passes[again - 1]["dual"]  # it started from those alphas
