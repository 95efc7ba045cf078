"""Several commands at once: who waits for whom, who is refused, and who is never disturbed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import Passes
from processes import started

import sbm
from sbm.errors import StoreError
from sbm.store.blocks import BlockStore

ROOT = Path(__file__).resolve().parent.parent
TEXT = "".join(f"{s}1 {k}:1 {k % 7 + 9}:0.5\n" for k in range(1, 9) for s in "+-") * 3
MORE = "".join(f"{s}1 {k}:2 {k % 5 + 9}:1\n" for k in range(1, 9) for s in "-+")


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("a.svm").write_text(TEXT)
    Path("b.svm").write_text(MORE)
    sbm.split("a.svm", "a.sbm", blocks=3)
    sbm.split("b.svm", "a.sbm", append=True)
    sbm.train("a.sbm", "a.model")
    return tmp_path


class Meanwhile(Passes):
    """Does something after the first pass of a training."""

    def __init__(self, what) -> None:
        super().__init__()
        self.what, self.outcome = what, None

    def row(self, record) -> None:
        super().row(record)
        if self.outcome is None:
            try:
                self.outcome = self.what() or "done"
            except StoreError as error:
                self.outcome = str(error)


SLOW = {"C": 3.0, "tol": 1e-12, "max_passes": 5, "rounds": 1}


def train_and(what, model="x.model"):
    progress = Meanwhile(what)
    sbm.train("a.sbm", model, SLOW, progress=progress)
    assert len(progress.rows) > 1
    return progress.outcome


def test_two_trainings_of_one_store_are_as_each_alone(here):
    sbm.train("a.sbm", "alone.model", SLOW)
    train_and(lambda: sbm.train("a.sbm", "other.model", SLOW), "one.model")
    alone = Path("alone.model").read_bytes()
    for name in ("one", "other"):
        model = sbm.Model.load(f"{name}.model")
        assert (model.W == sbm.Model.load("alone.model").W).all()
        assert len(Path(f"{name}.model").read_bytes()) == len(alone)


IN_USE = "is in use by another sbm process; wait for it to end or stop it"


@pytest.mark.parametrize(
    ("what", "refused"),
    [
        (lambda: sbm.train("a.sbm", "x.model", SLOW), f"the run x.model.run {IN_USE}"),
        (lambda: sbm.stream("a.svm", "x.model"), f"the run x.model.run {IN_USE}"),
        (lambda: sbm.expire("a.sbm", sources="a.svm"), f"the store a.sbm {IN_USE}"),
        (lambda: sbm.split("a.svm", "a.sbm", force=True), f"the store a.sbm {IN_USE}"),
    ],
)  # fmt: skip
def test_what_would_change_what_a_training_works_on_is_refused_and_harms_nothing(
    here, what, refused
):
    sbm.train("a.sbm", "alone.model", SLOW)
    assert train_and(what) == refused
    assert (sbm.Model.load("x.model").W == sbm.Model.load("alone.model").W).all()
    assert sbm.check("a.sbm")["rows"] == 64


def test_appending_to_a_store_that_is_trained_on_changes_nothing_for_that_training(here):
    sbm.train("a.sbm", "alone.model", SLOW)
    append = lambda: sbm.split("a.svm", "a.sbm", append=True, force=True)  # noqa: E731
    assert train_and(append)["rows"] == 48
    assert (sbm.Model.load("x.model").W == sbm.Model.load("alone.model").W).all()
    assert sbm.check("a.sbm")["rows"] == 112


@pytest.mark.parametrize("change", ["expire", "force"])
def test_a_store_that_changes_between_its_opening_and_its_lock_is_refused(here, change):
    store = BlockStore("a.sbm")
    if change == "expire":
        sbm.expire("a.sbm", sources="b.svm")
    else:
        sbm.split("b.svm", "a.sbm", force=True)
    with pytest.raises(StoreError) as error, store.in_use():
        pass
    assert str(error.value) == "the store a.sbm was changed meanwhile; run the same command again"


def test_a_store_that_is_appended_to_between_its_opening_and_its_lock_is_not(here):
    store = BlockStore("a.sbm")
    sbm.split("a.svm", "a.sbm", append=True, force=True)
    with store.in_use():
        assert store.n_rows == 64


def state(folder: Path) -> dict[str, tuple[int, int, int]]:
    paths = [folder, *folder.rglob("*")]
    facts = [path.stat() for path in paths]
    return {str(p): (f.st_mtime_ns, f.st_size, f.st_ino) for p, f in zip(paths, facts, strict=True)}


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
import os, sys, time
from pathlib import Path
import sbm
errors, n = set(), 0
print("ready", flush=True)
while not Path("stop").exists():
    for job in (
        lambda: sbm.info("a.sbm"), lambda: sbm.info("a.model"), lambda: sbm.info("a.model.run"),
        lambda: sbm.predict("a.model", "a.svm"), lambda: sbm.info("s.model"),
        lambda: sbm.predict("s.model", "b.svm"), lambda: sbm.info("s.model.run"),
        lambda: sbm.check("a.sbm"),
    ):
        try:
            job()
            n += 1
        except sbm.SbmError as error:
            errors.add(str(error))
print(n, *sorted(errors), sep="\\n")
"""


def test_readers_in_a_loop_disturb_no_writer_and_see_whole_states(here):
    sbm.stream("a.svm", "s.model")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with started(
        [sys.executable, "-c", READ], stdout=subprocess.PIPE, text=True, env=environment
    ) as reader:
        assert reader.stdout.readline() == "ready\n"
        for k in range(3):
            sbm.split("a.svm", "a.sbm", append=True, force=True)
            sbm.train("a.sbm", "a.model", {"C": 0.1 + k}, resume=False)
            sbm.stream("a.svm", "s.model")
        Path("stop").touch()
        n, *errors = reader.communicate()[0].splitlines()
    assert int(n) > 0
    # A run that begins anew has no commit yet.
    assert all("is not a run" in e or "neither a store" in e for e in errors), errors
    assert sbm.check("a.sbm")["rows"] == 64 + 3 * 48


def test_a_lock_goes_with_the_process_that_is_killed(here):
    code = (
        "import sbm.jobs.progress, time\n"
        "class Stay(sbm.jobs.progress.Progress):\n"
        "    def row(self, record):\n        print('here', flush=True)\n        time.sleep(600)\n"
        "sbm.train('a.sbm', 'x.model', {'C': 3.0}, progress=Stay())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with started(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout.readline() == "here\n"
        for job in (
            lambda: sbm.train("a.sbm", "x.model"),
            lambda: sbm.expire("a.sbm", sources="a.svm"),
        ):
            with pytest.raises(StoreError, match="in use by another sbm process"):
                job()
        process.send_signal(signal.SIGKILL)
        process.wait()
    sbm.train("a.sbm", "x.model", {"C": 3.0})
    assert sbm.expire("a.sbm", sources="a.svm")["rows"] == 48
