"""scripts/paper_*.py: every experiment still runs, at toy size; the rules behind claims."""

import argparse
import importlib.util
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import SCRIPTS, load_script
from processes import finished

SETS = {"webspam-like", "kddcup10-like", "prep-like"}
METHODS = {"SBM-1/2", "SBM-1/3", "SBM-1/2-rand", "BMD"}
# Script: data in the curves, and papers and places of its claims.
EXPERIMENTS: dict[str, tuple[set[str], set[tuple[str, str]]]] = {
    "figure2": (
        SETS | {f"{name}, slow disk" for name in SETS},
        {
            ("SBM 2011", where)
            for where in (
                "7.1, figure 2",
                "7.1, footnote 6",
                "1, 7.2",
                "7.1, figure 2 (c)",
                "7.1",
            )
        },
    ),
    "figure3": (
        {"webspam-like, float64", "webspam-like, float32"},
        {("SBM 2011", where) for where in ("7.1, figure 3", "7.1", "B.1", "B.1, figure 4")},
    ),
    "figure5": (
        {f"{name}-like, in-{k}" for name in ("webspam", "kddcup10") for k in (3, 10)},
        {("SBM 2011", f"B.2, figure 5{place}") for place in ("", " (a), (b)", " (c)", " (d)")},
    ),
    "dcd": (
        {"synthetic, L1", "synthetic, L2"},
        {
            ("DCD 2008", "5"),
            ("DCD 2008", "5, table 2"),
            ("DCD 2008", "5, figure 1"),
            ("DCD 2008", "5, figure 2"),
            ("LIBLINEAR 2008", "4, figure 1"),
        },
    ),
    "ww": (
        set(),
        {("WW 2016", "4, C, table C.1"), ("WW 2016", "4.3, table 2")},
    ),
}


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_runs_at_toy_size(name: str, tmp_path: Path) -> None:
    if name == "dcd":
        pytest.importorskip("liblinear", reason="liblinear-official is not installed")
    command = [sys.executable, str(SCRIPTS / f"paper_{name}.py"), "--quick", "-o", "out/result"]
    done = finished(command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (tmp_path / "out" / "result.md").read_text()
    report = json.loads((tmp_path / "out" / "result.json").read_text())
    assert str(tmp_path) not in json.dumps(report)
    curves, claims = report["tables"]["curves"], report["tables"]["claims"]
    data, places = EXPERIMENTS[name]
    assert {row["data"] for row in curves} == data
    assert {(claim["paper"], claim["where"]) for claim in claims} == places
    assert {claim["holds"] for claim in claims} <= {"yes", "no", "partly"}
    assert all(claim["here"] and claim["expected"] for claim in claims)
    assert report["rows"]
    assert all(math.isfinite(value) for value in report["ratios"].values())
    drawn = data and importlib.util.find_spec("matplotlib") is not None
    assert (tmp_path / "out" / "result.png").exists() == bool(drawn)
    if name == "figure2":
        check_figure2(curves)


def check_figure2(curves: list[dict[str, Any]]) -> None:
    """Duals rise towards one optimum, whatever the disk."""
    fast = {(row["data"], row["method"], row["pass"]): row["dual"] for row in curves}
    for data in SETS:
        optimum = max(dual for (name, *_), dual in fast.items() if name == data)
        for method in METHODS:
            duals = [fast[data, method, k] for k in (1, 2)]
            assert duals == sorted(duals)
            assert duals[-1] > 0.7 * optimum
        for method in ("SBM-1/2", "BMD"):
            assert fast[f"{data}, slow disk", method, 2] == fast[data, method, 2]


def test_wrong_use_is_one_line(tmp_path: Path) -> None:
    figure2, dcd = str(SCRIPTS / "paper_figure2.py"), str(SCRIPTS / "paper_dcd.py")
    (tmp_path / "one.svm").write_text("1 1:1\n1 2:1\n")
    for arguments, code, message in (
        ([figure2, "--sets", "mnist"], 2, "'mnist' is not one of webspam, kddcup10, prep"),
        ([figure2, "--data", "prep"], 2, "'prep' is not one of webspam, kddcup10, prep, =, value"),
        ([dcd, "--data", "one.svm"], 1, "one.svm has 1 different labels, two are needed"),
    ):
        command = [sys.executable, *arguments]
        done = finished(command, cwd=tmp_path)
        assert done.returncode == code
        assert message in done.stderr
        assert "Traceback" not in done.stderr


def test_a_claim_of_several_parts_holds_partly() -> None:
    judge = load_script("paper_tools").judge
    assert [judge(True, True), judge(False, False), judge(True, False)] == ["yes", "no", "partly"]


def test_differences_are_those_of_the_paper() -> None:
    tools = load_script("paper_tools")
    assert tools.relative_difference(80.0, 100.0) == pytest.approx(0.25)  # (7): divided by f
    assert tools.relative_difference(-80.0, -100.0) == pytest.approx(0.25)
    assert tools.accuracy_difference(0.95, 0.9) == pytest.approx(5.0)
    curve = [{"gap": gap, "pass": k} for k, gap in enumerate((0.5, 0.1, 0.2), 1)]
    assert tools.first_at(curve, "gap", 0.1, "pass") == 2
    assert tools.first_at(curve, "gap", 0.01, "pass") == math.inf
    assert tools.words([("a", math.inf), ("b", 1234.0), ("c", 0.01234)]) == (
        "a never, b 1,234, c 0.0123"
    )


def test_methods_are_those_of_the_configuration_files() -> None:
    trajectory = load_script("bench_trajectory")
    known = {m.name: (m.cache_frac, m.policy, m.blocks(12)) for m in trajectory.METHODS}
    assert known == {
        "SBM-1/2": (0.5, "gradient", 24), "SBM-1/3": (0.333, "gradient", 18),
        "SBM-1/2-rand": (0.5, "random", 24), "BMD": (0.0, "none", 12),
    }  # fmt: skip


def test_texts_that_were_made_are_kept(tmp_path: Path) -> None:
    data = load_script("paper_data")
    parser = argparse.ArgumentParser()
    data.data_options("webspam")(parser)
    report = load_script("bench_tools").Report("x", "y", machine={})
    for turn in ("first", "second"):
        args = parser.parse_args(["--rows", "40", "--keep", str(tmp_path / "kept")])
        args.quick, args.folder = True, tmp_path / turn
        args.folder.mkdir()
        (problem,) = data.problems(args, report)
        assert (problem.title, problem.C, problem.blocks) == ("webspam-like", 0.1, 4)
        if turn == "first":
            problem.text.write_text("+1 1:1\n-1 2:1\n")
    assert problem.text.read_text() == "+1 1:1\n-1 2:1\n"
    assert report.data == {"webspam": "a toy of 40 rows", "webspam_rows": 2}


def test_a_text_that_is_given_has_the_cost_of_the_paper(tmp_path: Path) -> None:
    data = load_script("paper_data")
    text = data.make_toy(tmp_path / "a.svm", 30, 2, real=True)
    parser = argparse.ArgumentParser()
    data.data_options("webspam")(parser)
    report = load_script("bench_tools").Report("x", "y", machine={})
    for more, cost in (([], 64.0), (["-C", "webspam=2"], 2.0)):
        args = parser.parse_args(["--data", f"webspam={text}", *more])
        args.quick, args.folder = False, tmp_path / f"{cost}"
        args.folder.mkdir()
        (problem,) = data.problems(args, report)
        assert (problem.title, problem.C, problem.blocks) == ("webspam", cost, 12)
        sizes = [len(path.read_text().splitlines()) for path in (problem.text, problem.test)]
        assert sizes == [27, 3]


def test_rows_are_brought_to_length_1(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("1 1:3 7:4\n2\n3 2:0.5\n")
    out = load_script("paper_ww").unit_length(tmp_path / "a.svm", tmp_path / "b.svm")
    assert out.read_text() == "1 1:0.6 7:0.8\n2 \n3 2:1\n"


def claim(**changes: str) -> dict[str, Any]:
    facts = {
        "paper": "WW 2016", "where": "4.2", "claim": "fast", "data": "a|b", "expected": "1.6 times",
        "here": "1.7 times", "holds": "yes",
    }  # fmt: skip
    return facts | changes


def test_claims_of_all_results_are_one_table(tmp_path: Path) -> None:
    script = load_script("paper_claims")
    reports = {
        "paper-b": ([claim(), claim(holds="no")], ["the machine had other work meanwhile"]),
        "paper-a": ([claim(paper="SBM 2011", holds="partly")], []),
        "other": ([claim(paper="nobody's")], []),
    }
    for name, (claims, notes) in reports.items():
        text = json.dumps({"tables": {"claims": claims}, "notes": notes})
        (tmp_path / f"{name}.json").write_text(text)
    (tmp_path / "paper-c.json").write_text(json.dumps({"tables": {}, "notes": []}))
    assert script.main([str(tmp_path), "-o", str(tmp_path / "claims.md")]) == 0
    lines = (tmp_path / "claims.md").read_text().splitlines()
    assert lines[2].startswith("3 claims, each on one data set: 1 yes, 1 partly, 1 no.")
    assert lines[4].startswith("Measured while the machine had other work: paper-b. ")
    assert lines[6:10] == [
        "| paper | claims | yes | partly | no |", "|---|---|---|---|---|",
        "| SBM 2011 | 1 | 0 | 1 | 0 |", "| WW 2016 | 2 | 1 | 0 | 1 |",
    ]  # fmt: skip
    assert lines[-1] == "| 4.2 | fast | a\\|b | 1.6 times | 1.7 times | **no** |"


def test_a_folder_without_claims_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load_script("paper_claims").main([str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"paper_claims.py: no claims in paper-*.json of {tmp_path}\n"


def test_the_page_of_claims_is_that_of_the_results() -> None:
    script, results = load_script("paper_claims"), SCRIPTS / "results"
    page = script.table(script.collect(results))
    assert (results / "claims.md").read_text("utf-8") == page
    counts = page.splitlines()[2].split(". ")[0]
    readme = (SCRIPTS.parent / "README.md").read_text("utf-8")
    assert counts in " ".join(readme.split())


def test_two_classes_are_examined_by_one_column(tmp_path: Path) -> None:
    import sbm

    (tmp_path / "a.svm").write_text("3 5:1\n8 5:-1\n3 9:2\n3\n")
    sbm.split([tmp_path / "a.svm"], tmp_path / "a.sbm", blocks=1)
    examiner = load_script("bench_trajectory").Examiner(tmp_path / "a.sbm", tmp_path / "a.svm")
    W = np.array([[-2.0], [0.25]])  # of the features 5 and 9, in order of appearance
    assert examiner.accuracy(W) == 0.75  # +2 is 8, and no decision is not
    excess = np.array([1 - 2.0, 1 - 2.0, 1 + 0.5, 1.0])
    expected = 0.5 * (4 + 0.0625) + 0.1 * (np.maximum(0, excess) ** 2).sum()
    assert examiner.primal(W, 0.1, 2) == pytest.approx(expected, rel=1e-15)
