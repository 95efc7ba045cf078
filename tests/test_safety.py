"""Concurrent commands and foreign files: refused, waited for, or left unchanged."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import Passes
from inside import BlockStore, Run, encode_record, lock
from processes import started

import sbm
from sbm.errors import SettingsError, StoreError

ROOT = Path(__file__).resolve().parent.parent
TEXT = "".join(f"{s}1 {k}:1 {k % 7 + 9}:0.5\n" for k in range(1, 9) for s in "+-") * 3
MORE = "".join(f"{s}1 {k}:2 {k % 5 + 9}:1\n" for k in range(1, 9) for s in "-+")
SLOW = {"C": 3.0, "tol": 1e-12, "max_passes": 5, "rounds": 1}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.svm").write_text(TEXT)
    Path("b.svm").write_text(MORE)
    sbm.split("a.svm", "a.sbm", blocks=3)
    sbm.split("b.svm", "a.sbm", append=True)
    sbm.train("a.sbm", "a.model")
    return tmp_path


# -------------------------------------------------------------------------------- other commands


class Meanwhile(Passes):
    """Does something after the first pass of a training."""

    def __init__(self, what: Callable[[], Any]) -> None:
        super().__init__()
        self.what, self.outcome = what, None

    def row(self, record: Any) -> None:
        super().row(record)
        if self.outcome is None:
            try:
                self.outcome = self.what() or "done"
            except StoreError as error:
                self.outcome = str(error)


def train_and(what: Callable[[], Any]) -> Any:
    """Do something during a training, which must give the same model as undisturbed."""
    sbm.train("a.sbm", "alone.model", SLOW)
    progress = Meanwhile(what)
    sbm.train("a.sbm", "x.model", SLOW, progress=progress, resume=False)
    assert len(progress.rows) > 1
    assert (sbm.Model.load("x.model").W == sbm.Model.load("alone.model").W).all()
    return progress.outcome


@pytest.mark.parametrize(
    ("what", "refused"),
    [
        (lambda: sbm.train("a.sbm", "x.model", SLOW), "the run x.model.run is in use"),
        (lambda: sbm.stream("a.svm", "x.model"), "the run x.model.run is in use"),
        (lambda: sbm.expire("a.sbm", sources="a.svm"), "the store a.sbm is in use"),
        (lambda: sbm.split("a.svm", "a.sbm", force=True), "the store a.sbm is in use"),
    ],
)
def test_changing_a_store_in_use_is_refused(here, what, refused):
    assert train_and(what).startswith(refused)
    assert not Path("a.sbm.partial").exists()
    assert sbm.check("a.sbm")["rows"] == 64


def test_training_and_appending_run_during_a_training(here):
    train_and(lambda: sbm.train("a.sbm", "other.model", SLOW))
    assert (sbm.Model.load("other.model").W == sbm.Model.load("alone.model").W).all()
    append = lambda: sbm.split("a.svm", "a.sbm", append=True, force=True)  # noqa: E731
    assert train_and(append)["rows"] == 48
    assert sbm.check("a.sbm")["rows"] == 112


def test_store_changed_before_its_lock_is_refused(here):
    store = BlockStore("a.sbm")
    sbm.split("a.svm", "a.sbm", append=True, force=True)
    with store.in_use(), BlockStore("a.sbm").in_use():  # appending is no such change; readers share
        assert store.n_rows == 64
    for change in (
        lambda: sbm.expire("a.sbm", sources="b.svm"),
        lambda: sbm.split("b.svm", "a.sbm", force=True),
    ):
        store = BlockStore("a.sbm")
        change()
        with pytest.raises(StoreError, match=r"a\.sbm was changed"), store.in_use():
            pass


def state(folder: Path) -> dict[str, tuple[int, int, int]]:
    facts = {str(path): path.stat() for path in [folder, *folder.rglob("*")]}
    return {name: (f.st_mtime_ns, f.st_size, f.st_ino) for name, f in facts.items()}


def test_readers_leave_no_trace(here, tmp_path_factory):
    before = state(here)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for path in ("a.sbm", "a.model", "a.model.run"):
        sbm.info(path)
    sbm.check("a.sbm")
    sbm.predict("a.model", "a.sbm", elsewhere / "out.txt")
    sbm.predict("a.model", "a.svm")
    sbm.export("a.model", elsewhere / "a.npz", format="npz")
    sbm.expire("a.sbm", sources="b.svm", dry_run=True)
    assert state(here) == before


READ = """
from pathlib import Path
import sbm
errors, n = set(), 0
print("ready", flush=True)
while not Path("stop").exists():
    for job in (
        lambda: sbm.info("a.sbm"), lambda: sbm.info("a.model.run"), lambda: sbm.check("a.sbm"),
        lambda: sbm.predict("a.model", "a.svm"), lambda: sbm.predict("s.model", "b.svm"),
        lambda: sbm.info("s.model.run"),
    ):
        try:
            job()
            n += 1
        except sbm.SbmError as error:
            errors.add(str(error))
print(n, *sorted(errors), sep="\\n")
"""


@pytest.mark.process
def test_concurrent_readers_see_consistent_states(here):
    sbm.stream("a.svm", "s.model")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-c", READ]
    with started(line, stdout=subprocess.PIPE, text=True, env=environment) as reader:
        assert reader.stdout.readline() == "ready\n"
        for k in range(3):
            sbm.split("a.svm", "a.sbm", append=True, force=True)
            sbm.train("a.sbm", "a.model", {"C": 0.1 + k}, resume=False)
            sbm.stream("a.svm", "s.model")
        Path("stop").touch()
        n, *errors = reader.communicate()[0].splitlines()
    assert int(n) > 0
    # A new run has no checkpoint yet.
    assert all("is not a run" in e or "neither a store" in e for e in errors), errors
    assert sbm.check("a.sbm")["rows"] == 64 + 3 * 48


# ----------------------------------------------------------------------------------- other files


def test_model_replaces_only_a_model(here):
    for output, facts in (("a.svm", "not a model"), ("a.sbm", "a folder"), ("no/m", "no is no")):
        with pytest.raises(StoreError, match=facts):
            sbm.train("a.sbm", output)
        assert not Path(f"{output}.run").exists()
    assert Path("a.svm").read_text() == TEXT
    sbm.train("a.sbm", settings=sbm.Settings(C=2.0))
    assert sbm.Model.load("a.model").info["C"] == 2.0


# ------------------------------------------------------------------- readers, and foreign things


def changed_under(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Change a store after a reader has opened it."""
    read, done = BlockStore.read_feature_ids, []

    def first(store: BlockStore) -> Any:
        ids = read(store)
        if not done:
            done.append(change())
        return ids

    monkeypatch.setattr(BlockStore, "read_feature_ids", first)


@pytest.mark.parametrize("is_expired", [True, False])
def test_change_under_a_reader_is_not_reported_as_damage(here, monkeypatch, is_expired):
    sbm.split("a.svm", "r.sbm", blocks=2)
    sbm.split("b.svm", "r.sbm", append=True, blocks=2)
    sbm.train("r.sbm", "r.model", {"max_passes": 1})

    def change() -> None:
        if is_expired:
            sbm.expire("r.sbm", sources="a.svm")
        else:
            sbm.split("b.svm", "r.sbm", force=True, blocks=1)

    for reader in (sbm.check, lambda store: sbm.predict("r.model", store)):
        with monkeypatch.context() as context:
            changed_under(context, change)
            with pytest.raises(StoreError, match=r"r\.sbm was changed in the meantime"):
                reader("r.sbm")
        sbm.split("a.svm", "r.sbm", force=True, blocks=2)
        sbm.split("b.svm", "r.sbm", append=True, blocks=2)


def test_run_at_work_is_in_use_for_other_commands(here):
    sbm.split("a.svm", "r.sbm", blocks=2)
    sbm.train("r.sbm", "r.model", {"max_passes": 1, "tol": 1e-9})
    record = Run.read(Path("r.model.run"))
    with lock(Path("r.model.run/lock"), "it"):
        unfinished = {k: v for k, v in record.items() if k != "report"}
        Path("r.model.run/run.json").write_bytes(encode_record("run", unfinished))
        with pytest.raises(StoreError, match=r"r\.model\.run is in use"):
            sbm.train("r.sbm", "r.model", {"C": 7.0})
        with pytest.raises(StoreError, match=r"r\.model\.run is in use"):
            sbm.tune("r.sbm", "r.model", Cs=[1.0, 2.0])
        with pytest.raises(StoreError, match=r"r\.model\.run is in use"):
            sbm.stream("a.svm", "r.model")
    with pytest.raises(SettingsError, match=r"unfinished training with other settings: C=1"):
        sbm.train("r.sbm", "r.model", {"C": 7.0})


def test_pipes_in_place_of_files_are_refused(here):
    sbm.split("a.svm", "r.sbm", blocks=2)
    os.mkfifo("pipe.model")
    for use in (sbm.info, lambda path: sbm.predict(path, "a.svm"), sbm.check):
        with pytest.raises(StoreError, match=r"pipe\.model"):
            use("pipe.model")
    for name in ("log.jsonl", "lock"):
        folder = Path(f"{name}.model.run")
        folder.mkdir()
        os.mkfifo(folder / name)
        if name == "log.jsonl":
            with pytest.raises(StoreError, match=r"log\.jsonl is not a regular file"):
                sbm.train("r.sbm", f"{name}.model", {"max_passes": 1})
        else:
            sbm.train("r.sbm", f"{name}.model", {"max_passes": 1})  # it can be locked


def test_store_with_foreign_files_is_not_replaced(here):
    sbm.split("a.svm", "r.sbm", blocks=2)
    Path("r.sbm/thesis.txt").write_text("years")
    with pytest.raises(StoreError, match=r"r\.sbm also holds thesis\.txt"):
        sbm.split("a.svm", "r.sbm", force=True)
    assert Path("r.sbm/thesis.txt").read_text() == "years"
    Path("r.sbm/thesis.txt").unlink()
    sbm.split("a.svm", "r.sbm", force=True)
