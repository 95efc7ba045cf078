import json
from pathlib import Path

import pytest
from helpers import load_script

from scripts.torture_scenarios import SCENARIOS

torture = load_script("torture")


def test_a_run_writes_a_report_with_the_counts_of_each_kind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = tmp_path / "found.json"
    code = torture.main(["--kills", "2", "--folder", str(tmp_path), "--json", str(prefix)])
    assert code == 0
    report = json.loads(prefix.read_text())
    assert [(row["what"], row["tried"], row["failures"]) for row in report["rows"]] == [
        ("kills", 2, 0)
    ]
    assert report["tables"]["kills, by kind"] == [
        {"kind": "after", "cases": 1}, {"kind": "before", "cases": 1},
    ]  # fmt: skip
    assert prefix.with_suffix(".md").read_text() + "\n" == capsys.readouterr().out


def test_one_case_is_replayed_by_its_number(tmp_path: Path) -> None:
    run = torture.find_section("kills")
    number = 2 * len(SCENARIOS) + list(SCENARIOS).index("split")  # they take turns
    tally = run(3 * len(SCENARIOS), 3, tmp_path, lambda text: None, only=number)
    assert (tally.tried, tally.failures) == (1, [])
    assert tally.figures["by scenario"] == {"split": 1}


def test_failures_are_told_and_end_with_code_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tally = torture.Tally("flips", 7, ["seed 0 case 3: a bit that nobody missed"])
    monkeypatch.setattr(torture, "find_section", lambda name: lambda *arguments: tally)
    assert torture.main(["--flips", "7", "--folder", str(tmp_path)]) == 1
    assert "- FAILED flips: seed 0 case 3: a bit that nobody missed" in capsys.readouterr().out


def test_a_section_that_is_not_there_is_left_out_and_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(torture.SECTIONS, "fuzz", "scripts.torture_of_nothing")
    assert torture.main(["--fuzz", "7", "--folder", str(tmp_path)]) == 0
    assert capsys.readouterr().err == (
        "torture: fuzz: left out, there is no scripts/torture_of_nothing.py\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kills", "many"], "--kills is 'many'; give a number of cases or all"),
        (["--fuzz", "all"], "--fuzz is 'all'; give a number of cases"),
        (
            [],
            f"nothing to do; give --{', --'.join(torture.SECTIONS)} with numbers of cases",
        ),
    ],
)
def test_what_has_no_meaning_is_refused(arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as caught:
        torture.main(arguments)
    assert caught.value.code == f"torture: {message}"
