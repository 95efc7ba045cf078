"""Every benchmark and experiment of scripts/ runs at toy size, and its facts hold."""

import ast
import importlib.util
import itertools
import json
import math
import re
import sys

import numpy as np
import pytest
from helpers import SCRIPTS, load_script
from launching import environment, needs_mpi
from processes import finished

import sbm

PEERS = ("liblinear", "sklearn", "vowpalwabbit", "matplotlib")
MISSING = [name for name in PEERS if importlib.util.find_spec(name) is None]
needs_peers = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")


def run_script(tmp_path, name, *arguments):
    """Run a script with a report; return it."""
    command = [sys.executable, "-m", f"scripts.{name}", *arguments, "-o", "out/report"]
    done = finished(command, cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout == (tmp_path / "out" / "report.md").read_text()
    text = (tmp_path / "out" / "report.json").read_text()
    assert str(tmp_path) not in text
    report = json.loads(text)
    assert report["rows"]
    for rows in (report["rows"], *report["tables"].values()):
        numbers = [v for row in rows for v in row.values() if isinstance(v, float)]
        assert all(map(math.isfinite, numbers))
    assert all(map(math.isfinite, report["ratios"].values()))
    return report


# ----------------------------------------------------------------------------------- results

results, texts = load_script("bench.results"), load_script("bench.texts")
pages = load_script("bench.pages")
schedule, toys = load_script("papers.schedule"), load_script("papers.data")
# The blocks of pages that one result fills.
SHOWN = {
    "grid": ["numbers", "grid"], "memory": ["bounds"], "optima": ["optima"], "sparse": ["sparse"],
    "converge": ["newton", "conjugate", "remedies"], "tune": ["tuning"], "nightly": ["nightly"],
    "scale": ["heldout"], "ranks": ["machines"], "demo": ["demo", "people"],
}  # fmt: skip
# Of each row, what must hold: the same problem is solved by all, and labels have the right sign.
HOLDS = {
    "stream": lambda row: 0.65 < row["accuracy"] < 1,
    "grid": lambda row: row["gap little"] <= 1e-3 and row["above"] < 0.02,
    "memory": lambda row: row["of_bound"] <= 1,
}


@needs_peers
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=needs_mpi) if name == "ranks" else name
    for name, one in results.RESULTS.items() if callable(one.make)
])  # fmt: skip
def test_result_is_made_at_toy_size(tmp_path, monkeypatch, name):
    place = results.Place(tmp_path / "out", tmp_path / "kept", quick=True)
    assert results.make(name, place)
    report = json.loads((tmp_path / "out" / f"{name}.json").read_text())
    assert report["rows"]
    assert all(HOLDS.get(name, lambda row: row.get("ok", True))(row) for row in report["rows"])
    assert results.changed(name, tmp_path / "out") == []
    assert str(tmp_path) not in json.dumps(report)
    monkeypatch.setattr(pages, "result", lambda _: report)
    for block in SHOWN.get(name, []):
        assert "\n" in pages.BLOCKS[block]()


@pytest.fixture
def one_result(tmp_path, monkeypatch):
    """Add a result that reads a text and runs one module; return its place and its runs."""
    ran = []

    def make(bench):
        ran.append(bench.text("tiny"))
        bench.add(ok=True)

    one = results.Result("a number", make, ("sbm.units",))
    monkeypatch.setitem(results.RESULTS, "one", one)
    return results.Place(tmp_path / "out", tmp_path / "kept", quick=True), ran


def test_peer_is_measured_without_the_start_of_python():
    tools = load_script("bench.tools")
    code = """
import time
time.sleep(0.5)
held = bytearray(60_000_000)
for _ in range(2):
    with measured:
        more = bytearray(b"1" * int(sys.argv[1]))
"""
    done = tools.run_inside(code, 40_000_000)
    assert 0 < done.seconds < 0.5
    assert 80e6 < done.peak_bytes < 130e6  # two copies; the first block stays for the next one
    small = tools.run_inside("with measured:\n    pass")
    assert small.peak_bytes == tools.SMALLEST_PEAK


def test_result_is_made_again_only_if_it_changed(one_result, monkeypatch):
    place, ran = one_result
    assert results.changed("one", place.results) == ["missing"]
    for _ in range(2):
        assert results.run(["one"], place) == 0
    assert len(ran) == 1
    code = results._code
    monkeypatch.setattr(results, "_code", lambda name: code(name) + "changed")
    assert results.changed("one", place.results) == ["code"]
    monkeypatch.setattr(results, "_code", code)
    monkeypatch.setitem(texts.DATA, "tiny", texts.Data("the same", rows=3))
    assert results.changed("one", place.results) == ["data"]
    assert results.run(["one"], place, again=True) == 0
    assert len(ran) == 2


def test_failing_result_does_not_stop_the_others(one_result, monkeypatch, capsys):
    place, ran = one_result
    bad = results.Result("fails", lambda bench: bench.text("nowhere"), ("sbm.units",))
    monkeypatch.setitem(results.RESULTS, "bad", bad)
    assert results.run(["bad", "one"], place) == 1
    assert len(ran) == 1
    assert "nowhere" in capsys.readouterr().err


def test_dependencies_are_the_imports_and_the_code_without_comments():
    assert {"sbm.units", "sbm.errors"} <= set(results.modules_of(["sbm.units"]))
    assert "sbm.programs.streaming.state" not in results.modules_of(["sbm.programs.split"])
    assert "sbm.solver.kernels.svc" in results.modules_of(["sbm.programs.train"])
    codes = ("def f():\n 'a'\n return 1", "def f():  # b\n 'c'\n return 1", "def f():\n return 2")
    plain, told, other = (results._bare(ast.parse(text)) for text in codes)
    assert plain == told != other


def test_every_result_file_has_a_row():
    for path in (SCRIPTS / "results").glob("*.json"):
        assert path.stem in results.RESULTS, path.name
    for one in results.RESULTS.values():
        assert {*results.modules_of(one.runs)} >= {*one.runs}
        for name in re.findall(r"@([\w.]+)", one.make if isinstance(one.make, str) else ""):
            assert name in texts.DATA


# -------------------------------------------------------------------------------- the papers


@needs_peers
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("name", ["figure2", "figure3", "figure5", "dcd", "ww"])
def test_paper_experiment_judges_every_claim(tmp_path, name):
    report = run_script(tmp_path, "papers", name, "--quick")
    claims = report["tables"]["claims"]
    known = json.loads((SCRIPTS / "results" / f"paper-{name}.json").read_text())["tables"]["claims"]
    places = {(claim["paper"], claim["where"]) for claim in claims}
    assert places
    assert places <= {(claim["paper"], claim["where"]) for claim in known}
    assert {claim["holds"] for claim in claims} <= {"yes", "no", "partly", "dropped"}
    assert all(bool(claim["why"]) == (claim["holds"] != "yes") for claim in claims)
    duals = {}
    for row in report["tables"]["curves"] if name == "figure2" else []:
        duals.setdefault((row["data"], row["method"]), []).append(row["dual"])
    assert all(curve == sorted(curve) for curve in duals.values())


@pytest.mark.parametrize("n", [2, 3, 4, 7, 8])
def test_every_two_classes_meet_once(n):
    rounds = schedule.rounds_of(n)
    assert len(rounds) == n - 1 + n % 2
    assert all(np.unique(pairs).size == pairs.size for pairs in rounds)
    met = [tuple(pair) for pairs in rounds for pair in pairs.tolist()]
    assert sorted(met) == list(itertools.combinations(range(n), 2))


@pytest.mark.long
@pytest.mark.parametrize("loss", ["weston_watkins", "crammer_singer"])
def test_pairs_of_classes_reach_the_optimum(tmp_path, loss):
    text = toys.make_toy(tmp_path / "toy.svm", 200, 5, real=True)
    settings = {"loss": loss, "C": 0.3, "tol": 1e-5, "max_passes": 5000}
    _, report = sbm.train(text, tmp_path / "m.model", settings)
    found = schedule.by_pairs(text, loss, 0.3, 300, 0.99999 * report["dual"])
    assert 0.99999 * report["dual"] <= found["duals"][-1] <= report["primal"] * (1 + 1e-9)
    assert found["duals"] == sorted(found["duals"])
    assert 1 < found["speed_up"][2] <= found["speed_up"][4] <= 2  # two meetings in a round


@needs_peers
@pytest.mark.slow
@pytest.mark.process
def test_table_2_has_every_learner(tmp_path):
    report = run_script(tmp_path, "papers", "table2", "--quick")
    for classes in (2, 4):
        rows = [row for row in report["rows"] if row["classes"] == classes]
        assert {"BMD", "SBM-in-3", "SBM", "Reference"} <= {row["solver"] for row in rows}
        assert all(120 / classes < row["accuracy_percent"] <= 100 for row in rows)


def test_claims_page_matches_results():
    script, results = load_script("papers.claims"), SCRIPTS / "results"
    assert (results / "claims.md").read_text("utf-8") == script.table(script.collect(results))


# -------------------------------------------------------------------------------------- usage


@pytest.mark.parametrize(
    "path", [path.relative_to(SCRIPTS) for path in SCRIPTS.rglob("*.py")], ids=str
)
def test_script_can_be_imported(path):
    if path.name == "docs_site.py":
        pytest.importorskip("griffe", reason="comes with the extra docs")
    load_script(".".join(path.with_suffix("").parts))


@pytest.mark.process
@pytest.mark.parametrize(("name", "words", "code"), [
    ("bench", ["nothing"], 2), ("bench", ["grid", "--quick"], 2),
    ("papers", ["figure2", "sets=a9a"], 1), ("papers", ["figure2", "set=webspam"], 1),
    ("papers", ["table2", "--data", "nowhere.svm"], 2),
])  # fmt: skip
def test_wrong_use_is_refused(name, words, code):
    done = finished([sys.executable, "-m", f"scripts.{name}", *words], env=environment())
    assert done.returncode == code
    assert f"scripts.{name}" in done.stderr
