"""Kills, faults, damaged files and peaks of memory: a small share of `scripts.torture`."""

import errno
from pathlib import Path
from typing import Any

import pytest
from launching import needs_mpi

from scripts.torture import memory as torture_memory
from scripts.torture import ranks as torture_ranks
from scripts.torture.faults import run as run_faults
from scripts.torture.faulty_files import Trouble
from scripts.torture.flips import run as run_flips
from scripts.torture.hostile import run as run_hostile
from scripts.torture.inputs import run as run_inputs
from scripts.torture.kills import run as run_kills
from scripts.torture.memory import Data, grid
from scripts.torture.scenarios import Stage, run_command, write_texts

SPLIT = ("split", "-q", "a.svm", "-o", "s.sbm", "--blocks", "2", "--threads", "1")
TRAIN = ("train", "-q", "s.sbm", "-o", "m.model", "--max-passes", "2", "--mem", "300MB")


def ignore(text: str) -> None:
    """Show nothing."""


@pytest.mark.process
@pytest.mark.parametrize(
    ("run", "cases"),
    [(run_kills, 4), (run_faults, 4), (run_flips, 8), (run_hostile, 12), (run_inputs, 30)],
)
def test_some_damage_loses_nothing(run: Any, cases: int, tmp_path: Path) -> None:
    tally = run(cases, 5, tmp_path, ignore)
    assert tally.failures == []
    assert tally.tried == cases


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "cases"),
    [
        (run_kills, 50),
        (run_faults, 50),
        (run_flips, 1000),
        (run_hostile, 4000),
        (run_inputs, 1400),
    ],
)
def test_much_damage_loses_nothing(run: Any, cases: int, tmp_path: Path) -> None:
    tally = run(cases, 1, tmp_path, ignore)
    assert tally.failures == []
    assert tally.tried == cases
    if run is run_flips:
        assert tally.figures["outcome"]["refused"] > 0.6 * cases


# ---------------------------------------------------------------------------- kills and faults


@pytest.mark.process
def test_killed_training_resumes_instead_of_starting_over(tmp_path: Path) -> None:
    stage = Stage("train: one-vs-rest", tmp_path)
    points = stage.points[0]
    folder = stage.begin()
    assert stage.run(0, Trouble(int(0.6 * len(points)), "before")).was_killed
    ended = run_command(stage.scenario.lines[0], folder)
    assert ended.code == 0
    assert 0 < sum(p.kind == "read" for p in ended.points) < 0.8 * len(points)
    assert stage.find_damage() == []


@pytest.mark.process
def test_failed_write_is_reported_with_file_and_reason(tmp_path: Path) -> None:
    write_texts(tmp_path)
    points = run_command(SPLIT, tmp_path).points
    at = [f"{p.kind} {Path(p.name).name}" for p in points].index("write manifest.json.tmp")
    line = [word.replace("s.sbm", "t.sbm") for word in SPLIT]
    ended = run_command(line, tmp_path, Trouble(at, "fail", errno.ENOSPC))
    assert ended.code == 1
    assert "t.sbm.partial/manifest.json: No space left on device" in ended.stderr
    assert not list(tmp_path.glob("t.sbm*"))


# -------------------------------------------------------------------------------- durability


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, str]]]:
    """The calls that change files, as (kind, name), of each command; of shards with folders."""
    folder, found = tmp_path_factory.mktemp("durability"), {}
    write_texts(folder)
    shards = [word.replace("s.sbm", "t.sbm") for word in SPLIT]
    shards += ["--shards", "2"]
    for name, line in (
        ("split", SPLIT), ("train", TRAIN), ("shards", shards), ("again", [*shards, "--force"]),
    ):  # fmt: skip
        ended = run_command(line, folder)
        assert ended.code in (0, 3), ended.err
        found[name] = [(p.kind, p.name) for p in ended.points if p.changes]
        if name in ("split", "train"):
            found[name] = [(kind, path.rsplit("/", 1)[-1]) for kind, path in found[name]]
    return found


def last(points: list[tuple[str, str]], kind: str, name: str) -> int:
    return max(k for k, point in enumerate(points) if point == (kind, name))


@pytest.mark.process
@pytest.mark.parametrize("command", ["split", "train"])
def test_renamed_files_and_their_names_are_synced(points: Any, command: str) -> None:
    renamed = [k for k, (kind, n) in enumerate(points[command]) if kind == "rename" and ".tmp" in n]
    assert renamed
    for k in renamed:
        name = points[command][k][1]
        before = [kind for kind, other in points[command][:k] if other == name]
        assert before[-2:] in (["sync", "close"], ["write", "sync"]), (name, before)
        assert "sync folder" in [kind for kind, _ in points[command][k : k + 3]]


@pytest.mark.process
def test_manifest_comes_after_all_it_names(points: Any) -> None:
    mine = points["split"]
    named = last(mine, "rename", "manifest.json.tmp")
    files = {name for kind, name in mine if kind == "create" and name.endswith(("sbb", "sba.tmp"))}
    assert len(files) == 4  # two blocks, ids and index
    for name in files:
        assert last(mine, "write", name) < last(mine, "sync", name) < named
    for folder in ("t.0.sbm.partial", "t.1.sbm.partial"):
        made = [n for kind, n in points["shards"] if kind == "create" and n.startswith(folder)]
        assert [name.endswith("manifest.json.tmp") for name in made] == [*[False] * 4, True]


@pytest.mark.process
def test_older_shards_stay_until_the_new_ones_are_durable(points: Any) -> None:
    mine = points["again"]
    # The manifest of the whole store: from then on the shards are the new ones.
    done = next(k for k, (kind, n) in enumerate(mine) if kind == "unlink" and "manifest" in n)
    folder = mine[done][1].rpartition("/")[0]
    assert mine[done + 1] == ("sync folder", folder)


@pytest.mark.process
def test_record_comes_after_its_state_and_alphas(points: Any) -> None:
    mine = points["train"]
    commits = [k for k, point in enumerate(mine) if point == ("rename", "run.json.tmp")]
    states = [k for k, (kind, n) in enumerate(mine) if kind == "create" and n.startswith("state-")]
    assert states
    assert states[0] < commits[0]  # a record names nothing that is still to come
    for state in states:
        commit = min(k for k in commits if k > state)
        before = max([k for k in commits if k < state], default=0)
        named = {name for kind, name in mine[before:commit] if kind == "create"}
        for name in named:
            if name.startswith(("alpha", "state")):
                written = last(mine[:commit], "write", name)
                assert written < last(mine[:commit], "sync", name)
                assert mine[:commit].index(("create", name)) < last(
                    mine[:commit], "sync folder", "m.model.run"
                )


@needs_mpi
@pytest.mark.process
@pytest.mark.slow
def test_killed_and_hanging_ranks_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torture_ranks, "TRAININGS", torture_ranks.TRAININGS[:1])
    tally = torture_ranks.run(torture_ranks.HANGING, 0, tmp_path, ignore)
    assert tally.failures == []
    assert tally.figures["by signal"] == {"SIGKILL": torture_ranks.HANGING - 1, "SIGSTOP": 1}


# ------------------------------------------------------------------------------ peaks of memory

# The shapes of the grid, smaller.
SMALL = {
    "short rows": Data("binary", 5_000, 3, 100, times=20),
    "wide": Data("binary", 200, 1000, 200_000, real=True),
    "ten classes": Data("multi", 2_000, 10, 500, classes=10, times=2, real=True),
    "targets": Data("targets", 5_000, 8, 100, times=2, real=True),
}


@pytest.mark.process
@pytest.mark.slow
def test_no_peak_is_above_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torture_memory, "DATA", SMALL)
    # What is measured must not compile; what was compiled before is on the disk.
    monkeypatch.delenv("SBM_COMPILE_HERE", raising=False)
    grid.cache_clear()
    try:
        commands = {command for command, _, _ in grid()}
        tally = torture_memory.run(len(commands) + 1, 3, tmp_path, ignore)
    finally:
        grid.cache_clear()
    assert tally.failures == []
    assert set(tally.figures["cases"]) == commands
    assert all(0 < share <= 1 for share in tally.figures["largest share of bound"].values())
