"""scripts/paper_table2.py: the table at toy size."""

import importlib.util
import json
import math
import sys
from pathlib import Path

import pytest
from helpers import SCRIPTS, load_script
from processes import finished

SCRIPT = str(SCRIPTS / "paper_table2.py")
STREAMS = ["Perceptron", "MIRA", "CW", "BM-Pegasos", "BMD", "SBM-in-3", "SBM"]


def test_the_table_has_every_learner_of_both_texts(tmp_path: Path) -> None:
    if importlib.util.find_spec("vowpalwabbit") is None:
        pytest.skip("vowpalwabbit is not installed")
    command = [sys.executable, SCRIPT, "--runs", "1", "--learner-C", "0.1", "-o", "out/table"]
    done = finished(command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (tmp_path / "out" / "table.md").read_text()
    report = json.loads((tmp_path / "out" / "table.json").read_text())
    assert str(tmp_path) not in json.dumps(report)
    of_classes = {
        n: [row for row in report["rows"] if row["classes"] == n] for n in (2, 4)
    }  # fmt: skip
    assert [row["solver"] for row in of_classes[4]] == [*STREAMS, "Reference"]
    assert [row["solver"] for row in of_classes[2]] == [
        *STREAMS[:3],
        "VW",
        *STREAMS[3:],
        "Reference",
    ]
    for row in report["rows"]:
        chance = 100 / row["classes"]
        assert 1.2 * chance < row["accuracy_percent"] <= 100, row
        assert row["total_seconds"] > 0
        if row["solver"] in STREAMS:
            assert 0 < row["IO_share"] < 1
            assert row["learning_seconds"] < row["total_seconds"]
    assert not any(row["paper_percent"] for row in of_classes[2])  # the paper's has ten classes
    by_solver = {row["solver"]: row for row in of_classes[4]}
    assert by_solver["SBM-in-3"]["paper_percent"] == 81.61
    assert by_solver["SBM-in-3"]["paper_of_reference"] == pytest.approx(81.61 / 82.90)
    assert by_solver["SBM"]["paper_IO_share"] == pytest.approx(354 / (354 + 1956))
    assert by_solver["BM-Pegasos"]["paper_percent"] is None
    assert len(report["ratios"]) == 10
    assert all(math.isfinite(value) for value in report["ratios"].values())


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--data", "a.svm"], 2, "give a --test for each --data"),
        (["--data", "a.svm", "--test", "b.svm"], 1, "a.svm: no such file"),
        (["--runs", "0"], 2, "--runs must be at least 1"),
        (["--learner-C", "0"], 2, "invalid costs"),
    ],
)
def test_wrong_use_is_one_line(
    arguments: list[str], code: int, message: str, tmp_path: Path
) -> None:
    command = [sys.executable, SCRIPT, *arguments]
    done = finished(command, cwd=tmp_path)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_cost_of_online_learners_is_chosen_on_the_text_it_trains_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learners = load_script("bench_learners")
    progressive = {("passive_aggressive", 0.1): 0.8, ("arow", 1.0): 0.9}

    class Done:
        def __init__(self, **options: float | str) -> None:
            self.key = options["learner"], options["C"]

        def json(self) -> dict[str, float]:
            return {"accuracy": progressive.get(self.key, 0.5)}  # type: ignore[call-overload]

    monkeypatch.setattr(learners, "stream", lambda text, model, **options: Done(**options))
    chosen = learners.choose(tmp_path, tmp_path, "1GB", [0.01, 0.1, 1.0], 0.1, 1000)
    assert {one.name: one.options for one in chosen} == {
        "perceptron": {}, "passive_aggressive": {"C": 0.1}, "arow": {"C": 1.0},
        "pegasos": {"lambda": pytest.approx(0.01)},
    }  # fmt: skip
