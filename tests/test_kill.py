import signal
from pathlib import Path

import pytest

from scripts.faulty_files import KILLS, Trouble, _Disk
from scripts.torture_kills import HOWS, run
from scripts.torture_scenarios import SCENARIOS, Stage, run_command, write_texts


def test_nothing_is_lost_or_wrong_after_fifty_kills(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    told: list[str] = []
    tally = run(50, 0, tmp_path_factory.getbasetemp() / "torture", told.append)
    assert tally.failures == []
    assert tally.tried == 50
    assert set(tally.figures["by kind"]) == set(HOWS)
    assert set(tally.figures["by scenario"]) == set(SCENARIOS)
    assert len(told) == len(SCENARIOS)


def test_a_training_that_was_killed_goes_on_instead_of_starting_over(tmp_path: Path) -> None:
    stage = Stage("train: one-vs-rest", tmp_path)
    points = stage.points[0]
    late = Trouble(int(0.9 * len(points)), "before")
    folder = stage.begin()
    assert stage.run(0, late).was_killed
    ended = run_command(stage.scenario.lines[0], folder)
    assert ended.code == 0
    assert 0 < sum(p.kind == "read" for p in ended.points) < 0.5 * len(points)
    assert stage.find_damage() == []


def test_a_finished_training_is_left_as_it_is(tmp_path: Path) -> None:
    stage = Stage("train: auto cache", tmp_path)
    ended = stage.run(0)
    assert ended.code == 0
    assert not [point for point in ended.points if point.kind in ("write", "rename", "unlink")]


@pytest.mark.parametrize("how", KILLS)
def test_a_kill_comes_where_it_is_asked_for(tmp_path: Path, how: str) -> None:
    write_texts(tmp_path)
    line = ("split", "-q", "a.svm", "-o", "s.sbm", "--blocks", "1", "--threads", "1")
    points = run_command(line, tmp_path).points
    (written,) = [k for k, p in enumerate(points) if p.kind == "write" and "block" in p.name]
    size = (tmp_path / "s.sbm" / "block-000000.sbb").stat().st_size
    ended = run_command(("split", "-q", "a.svm", "-o", "t.sbm", *line[5:]), tmp_path,
                        Trouble(written, how, seed=1))  # fmt: skip
    assert ended.code == -signal.SIGKILL
    found = (tmp_path / "t.sbm.partial" / "block-000000.sbb").stat().st_size
    assert found == {"before": 0, "after": size, "mid": (size + 1) // 2, "power": 0}[how]


def test_without_power_goes_what_was_not_synced(tmp_path: Path) -> None:
    # Without the call of fsync behind it, a manifest that has its name may lack its bytes.
    folder = tmp_path / "here"
    folder.mkdir()
    disk = _Disk(str(folder), str(tmp_path / "shadow"))
    for seed in range(20):
        new, old = folder / "new", folder / "old"
        old.write_bytes(b"old")
        disk.touch(str(old), truncated=False)
        new.write_bytes(b"new bytes")
        disk.note("create", [str(new)])
        disk.touch(str(new), truncated=True)
        disk.lose(seed)
        assert old.read_bytes() == b"old"
        if new.exists():
            left = new.read_bytes()
            assert left.rstrip(b"\0") == b"new bytes"[: len(left.rstrip(b"\0"))]
