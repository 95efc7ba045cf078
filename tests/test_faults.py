import errno
from pathlib import Path

import pytest

from scripts.faulty_files import Trouble
from scripts.torture_faults import FAULTS, run
from scripts.torture_scenarios import SCENARIOS, run_command, write_texts

SPLIT = ("split", "-q", "a.svm", "-o", "s.sbm", "--blocks", "1", "--threads", "1")


def test_fifty_faults_of_all_kinds_lose_nothing_and_say_so(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    told: list[str] = []
    tally = run(50, 1, tmp_path_factory.getbasetemp() / "torture", told.append)
    assert tally.failures == []
    assert tally.tried == 50
    assert set(tally.figures["by fault"]) == set(FAULTS)
    assert set(tally.figures["by scenario"]) == set(SCENARIOS)
    calls = {"create", "write", "sync", "rename", "open", "close", "unlink"}
    assert calls <= set(tally.figures["by call"])


@pytest.mark.parametrize(
    ("code", "advice"),
    [(errno.ENOSPC, "free space or choose another place"), (errno.EIO, "choose another place")],
)
def test_a_write_that_fails_is_told_with_the_file_the_reason_and_advice(
    tmp_path: Path, code: int, advice: str
) -> None:
    write_texts(tmp_path)
    points = run_command(SPLIT, tmp_path).points
    names = [f"{point.kind} {Path(point.name).name}" for point in points]
    at = names.index("write manifest.json.tmp")
    line = tuple(word.replace("s.sbm", "t.sbm") for word in SPLIT)
    ended = run_command(line, tmp_path, Trouble(at, "fail", code))
    reason = {errno.ENOSPC: "No space left on device", errno.EIO: "Input/output error"}[code]
    assert ended.code == 1
    assert ended.stderr == (
        f"sbm: cannot write t.sbm.partial/manifest.json: {reason}; {advice} with -o\n"
    )
    assert not list(tmp_path.glob("t.sbm*"))
