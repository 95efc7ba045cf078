"""A sample of the grid of `scripts/torture_memory.py`, and its own machinery."""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sbm.errors import MemoryPlanError
from sbm.jobs.dealing.options import SplitOptions, check_ids
from scripts import torture_memory
from scripts.bench_tools import Finished
from scripts.torture_memory import Case, Data, Fence, Outcome, Shelf, cases_of, grid, run, run_case

# The shapes of the grid, smaller.
SMALL = {
    "short rows": Data("binary", 5_000, 3, 100, times=20),
    "wide": Data("binary", 200, 1000, 200_000, real=True),
    "ten classes": Data("multi", 2_000, 10, 500, classes=10, times=2, real=True),
    "targets": Data("targets", 5_000, 8, 100, times=2, real=True),
}


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torture_memory, "DATA", SMALL)
    # What is measured must not compile; what was compiled before is on the disk.
    monkeypatch.delenv("SBM_COMPILE_HERE", raising=False)
    grid.cache_clear()
    yield
    grid.cache_clear()


def test_the_grid_holds_every_command_and_loss() -> None:
    from sbm.losses import LOSSES
    from sbm.solver.online import ONLINE

    cells = grid()
    assert len(set(cells)) == len(cells)
    commands = {command.split()[0] for command, _, _ in cells}
    assert commands == {
        "split", "count", "append", "train", "tune", "stream", "predict", "export", "expire",
        "check", "info",
    }  # fmt: skip
    of_loss: dict[tuple[str, str], set[str]] = {}
    for command, name, options in cells:
        if "--loss" in options:
            kind = torture_memory.DATA[name].kind
            loss = options[options.index("--loss") + 1]
            of_loss.setdefault((command, kind), set()).add(loss)
    assert set().union(*(of_loss["train", kind] for kind in ("binary", "multi", "targets"))) == (
        set(LOSSES)
    )
    assert of_loss["train", "binary"] == set(LOSSES) - of_loss["train", "targets"] | {
        "squared_error", "one_class"
    }  # fmt: skip
    assert of_loss["stream", "binary"] == of_loss["train", "binary"]
    assert of_loss["tune", "binary"] == of_loss["train", "binary"] - {"one_class"}
    words = Counter(word for command, _, options in cells if command == "train" for word in options)
    for option in (
        "--weights", "--calibrate", "--warm-start", "--caches", "--schedule", "--bias", "auto",
    ):  # fmt: skip
        assert words[option] > 5, option
    learners = {options[1] for command, _, options in cells if "--learner" in options}
    assert learners >= {"bmd", *ONLINE}


def test_cases_are_drawn_again_from_their_seed_and_cover_all_commands_first() -> None:
    cases = cases_of(200, 5)
    assert cases == cases_of(200, 5)
    assert cases[:50] == cases_of(50, 5)  # a case is known by its number and the seed alone
    assert cases != cases_of(200, 6)
    commands = {command for command, _, _ in grid()}
    assert {case.command for case in cases[: len(commands)]} == commands
    assert len({(case.command, case.data, case.options) for case in cases}) == 200
    assert {case.room for case in cases} == {1.0, 1.3, 3.0}
    assert str(cases[7]).startswith("seed 5 case 7: ")


def test_no_peak_is_above_its_bound(small: None, tmp_path: Path) -> None:
    commands = {command for command, _, _ in grid()}
    told: list[str] = []
    tally = run(len(commands) + 1, 3, tmp_path, told.append)
    assert tally.failures == []
    assert tally.tried == len(commands) + 1 == len(told)
    assert set(tally.figures["commands"]) == commands
    assert tally.figures["limit of the system"] == (
        "RLIMIT_DATA" if sys.platform == "linux" else "nothing"
    )
    for figures in tally.figures["commands"].values():
        assert 0 < figures["largest share of bound"] <= 1
    assert not list(tmp_path.glob("case-*"))


def test_one_case_can_be_run_again(small: None, tmp_path: Path) -> None:
    told: list[str] = []
    tally = run(20, 3, tmp_path, told.append, chosen=4)
    assert tally.tried == 1
    assert told[0].startswith("seed 3 case 4: ")


def finished(code: int, peak: int, stderr: str = "") -> Finished:
    return Finished(1.0, 1.0, peak, code, "", stderr)


class Script(Fence):
    """Answers what it is told instead of running anything."""

    def __init__(self, *answers: Finished) -> None:
        super().__init__(rlimit=False)
        self.answers, self.sizes = list(answers), []

    def run(self, command: Any, size: int | None) -> Finished:
        self.sizes.append(size)
        return self.answers.pop(0)


REFUSAL = "sbm: --mem 1 MB is too little; the least that works is --mem 120MB"


def test_a_peak_above_the_bound_is_a_failure(tmp_path: Path) -> None:
    case = Case(3, 1, "train", "targets", ("--loss", "squared_error"), 1.3)
    shelf = Shelf(tmp_path, 1)
    shelf.store = lambda name: tmp_path / "x.sbm"  # type: ignore[method-assign]
    fence = Script(finished(1, 0, REFUSAL), finished(3, 156_000_001))
    outcome = run_case(case, shelf, fence)
    assert fence.sizes == [None, 156_000_000]
    (failure,) = outcome.failures
    assert failure == (
        "seed 1 case 3: train of 'targets' --loss squared_error at 1.3 times the least --mem: peak "
        "156,000,001 of 156,000,000 bytes (100.0 %)"
    )
    fence = Script(finished(1, 0, REFUSAL), finished(3, 156_000_000))
    assert run_case(case, shelf, fence).failures == []


def test_more_memory_is_given_where_it_is_asked_for_on_the_way(tmp_path: Path) -> None:
    late = "sbm: 7 distinct features; raise --mem, as --mem 150MB has room for twice as many"
    fence = Script(finished(1, 0, REFUSAL), finished(1, 1, late), finished(0, 1))
    shelf = Shelf(tmp_path, 1)
    shelf.text = lambda name: tmp_path / "x.svm"  # type: ignore[method-assign]
    outcome = run_case(Case(3, 1, "split", "wide"), shelf, fence)
    assert (outcome.failures, outcome.codes) == ([], [1, 0])
    assert fence.sizes == [None, 120_000_000, 150_000_000]


def test_the_bound_that_is_named_for_more_features_is_enough() -> None:
    def options(mem: int) -> SplitOptions:
        return SplitOptions(4, None, "float32", 0, True, 1, 2, mem, False, 1)

    for n in (3_000_000, 20_000_000):
        ids = type("Ids", (), {"nbytes": 20 * n, "__len__": lambda self, n=n: n})()
        with pytest.raises(MemoryPlanError, match=r"as --mem \d+MB has room for twice") as caught:
            check_ids(ids, options(200_000_000))
        ids.nbytes *= 2
        check_ids(ids, options(caught.value.least_bytes + 1))
        with pytest.raises(MemoryPlanError):
            check_ids(ids, options(caught.value.least_bytes - 5_000_000))


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([finished(1, 0, "sbm: no")], "no least bound was named, exit code 1: sbm: no"),
        ([finished(0, 0, REFUSAL)], "no least bound was named, exit code 0"),
        ([finished(1, 0, REFUSAL), finished(-9, 1)], "failed at --mem 120MB, exit code -9"),
        # The least that was named must do.
        ([finished(1, 0, REFUSAL), finished(1, 1, REFUSAL)], "failed at --mem 120MB, exit code 1"),
    ],
)
def test_a_command_that_does_not_work_is_a_failure(
    answers: list[Finished], why: str, tmp_path: Path
) -> None:
    shelf = Shelf(tmp_path, 1)
    shelf.store = lambda name: tmp_path / "x.sbm"  # type: ignore[method-assign]
    outcome = run_case(Case(3, 1, "train", "targets"), shelf, Script(*answers))
    assert len(outcome.failures) == 1
    assert why in outcome.failures[0]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere this limit is not kept")
def test_the_fence_stops_a_program_that_takes_more_than_its_bound() -> None:
    program = "a = bytearray(int(__import__('sys').argv[1])); print(len(a))"
    for size, works in ((100_000_000, True), (400_000_000, False)):
        line = [sys.executable, "-c", program, str(size)]
        done = Fence().run(line, 150_000_000)
        assert (done.code == 0) == works, done.stderr
    assert "MemoryError" in done.stderr


@pytest.mark.parametrize("limit", ["memory.max", "memory.limit_in_bytes"])
def test_a_program_is_moved_to_a_group_of_its_own_with_a_limit(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    mkdir, rmdir = Path.mkdir, Path.rmdir

    def make(self: Path, *arguments: Any) -> None:  # as the system fills a new group
        mkdir(self, *arguments)
        (self / limit).write_text("max")
        (self / "cgroup.procs").write_text("")

    def remove(self: Path) -> None:  # and empties it
        made.extend([(self / limit).read_text(), int((self / "cgroup.procs").read_text())])
        for name in (limit, "cgroup.procs"):
            (self / name).unlink()
        rmdir(self)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "mkdir", make)
        patch.setattr(Path, "rmdir", remove)
        fence = Fence(cgroup=tmp_path)
        done = fence.run([sys.executable, "-c", "import os; print(os.getpid())"], 123_000_000)
    assert done.code == 0, done.stderr
    assert made == ["123000000", int(done.stdout)]
    assert fence.name == "cgroup"
    assert list(tmp_path.iterdir()) == []


def test_the_share_of_the_process_closest_to_its_bound_counts() -> None:
    outcome = Outcome()
    outcome.add(100, finished(1, 80))
    outcome.add(200, finished(0, 100))
    assert (outcome.peak, outcome.bound, outcome.share) == (80, 100, 0.8)
    assert outcome.codes == [1, 0]
