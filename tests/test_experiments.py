"""Every benchmark and experiment of scripts/ runs at toy size, and its facts hold."""

import importlib.util
import json
import math
import sys

import pytest
from helpers import SCRIPTS, load_script
from launching import environment, needs_mpi
from processes import finished

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


# -------------------------------------------------------------------------------- benchmarks

BENCHMARKS = load_script("bench.__main__").BENCHMARKS

# Of each row, what must hold: the same problem is solved by all, and labels have the right sign.
HOLDS = {
    "one-pass": lambda row: 0.65 < row["test_accuracy"] < 1,
    "grid": lambda row: row["gap"] is None or (row["gap"] <= 0.01 and abs(row["above"]) < 0.02),
    "nightly": lambda row: row["ratio"] <= 0.35,
    "stream-memory": lambda row: row["resident_MB"] < 300,
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Make a text of two classes."""
    path = tmp_path_factory.mktemp("data") / "two.svm"
    size = ["--rows", "12000", "--features", "5000", "--nnz", "10", "--power", "0.8"]
    load_script("data.synthetic").main(["-o", str(path), *size, "--noise", "0.02"])
    return path


@needs_peers
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=needs_mpi) if name == "ranks" else name
    for name in BENCHMARKS if name not in ("all", "optima")
])  # fmt: skip
def test_benchmark_runs_at_toy_size(tmp_path, text, name):
    more = ["--data", text] * bool(BENCHMARKS[name].rows) + ["--two-commands"] * (name == "grid")
    report = run_script(tmp_path, "bench", name, "--quick", *more)
    assert report["benchmark"] == name
    for row in report["rows"]:
        assert HOLDS.get(name, lambda row: row.get("ok", True))(row), row


# ---------------------------------------------------------------------------- all results


def test_run_of_all_repeats_disturbed_results_and_resumes(tmp_path, monkeypatch):
    script, tools = load_script("bench.everything"), load_script("bench.tools")
    shares, made, commit = iter([0.3, 0.1, 0.01, 0.5, 0.4, 0.6, 0.0]), [], ["one"]

    def run(command, args, prefix):
        prefix.parent.mkdir(exist_ok=True)
        share = next(shares)
        made.append(prefix.name)
        text = json.dumps({"machine": {"stolen_share": share}})
        prefix.with_name(f"{prefix.name}.json").write_text(text)
        return 0

    def start(*more):
        made.clear()
        command = ["all", "--quick", *more, "-o", str(tmp_path / "out/all")]
        assert load_script("bench.registry").main(BENCHMARKS, "bench", command) == 0
        rows = json.loads((tmp_path / "out/all.json").read_text())["rows"]
        return {row["result"]: (row["commit"], row["stolen_share"]) for row in rows}

    monkeypatch.setattr(script, "_run", run)
    monkeypatch.setattr(
        script, "RESULTS", {name: script.RESULTS[name] for name in ("start", "split")}
    )
    monkeypatch.setattr(tools, "code_commit", lambda: commit[0])
    assert start() == {"start": ("one", 0.01), "split": ("one", 0.4)}
    assert made == ["start"] * 3 + ["split"] * 3
    kept = json.loads((tmp_path / "out/split.json").read_text())
    assert kept["machine"]["stolen_share"] == 0.4
    assert start() == {"start": ("one", 0.01), "split": ("one", 0.0)}
    assert made == ["split"]
    assert start() == {"start": ("one", 0.01), "split": ("one", 0.0)}
    assert not made
    shares = iter([0.02])
    assert start("--only", "start") == {"start": ("one", 0.02), "split": ("one", 0.0)}
    commit[0], shares = "two", iter([0.0, 0.0])
    assert start() == {"start": ("two", 0.0), "split": ("two", 0.0)}


def test_every_result_is_made_by_the_run_of_all():
    script, commands = load_script("bench.everything"), {}
    for path in (SCRIPTS / "results").glob("*.json"):
        assert path.stem in {*script.RESULTS, "all"}, path.name
    for name, one in script.RESULTS.items():
        module, *words = one.command.split()
        commands.setdefault(module, []).append(words[0])
        wanted = set(script.CAPITALS.findall(one.command))
        assert wanted <= {*script.TEXTS, "OUT", "REFERENCE", "KEEP", "DIGITS"}, name
    assert set(commands["bench"]) <= set(BENCHMARKS)
    assert set(commands["papers"]) <= set(load_script("papers.__main__").EXPERIMENTS)


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


@needs_peers
@pytest.mark.slow
@pytest.mark.process
def test_table_2_has_every_learner(tmp_path):
    report = run_script(tmp_path, "papers", "table2", "--runs", "1")
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


@pytest.mark.parametrize("name", BENCHMARKS)
def test_help_describes_every_option(name, capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        load_script("bench.registry").main(BENCHMARKS, "bench", [name, "--help"])
    shown = capsys.readouterr().out
    assert all(
        f"--{key.replace('_', '-')}" in shown for key in BENCHMARKS[name].options if len(key) > 1
    )


@pytest.mark.process
@pytest.mark.parametrize(("name", "words", "code"), [
    ("bench", ["parse", "--data", "nowhere.svm"], 1), ("bench", ["parse", "--runs", "0"], 2),
    ("bench", ["grid", "--losses", "nothing"], 2), ("papers", ["figure2", "--sets", "a9a"], 2),
    ("papers", ["table2", "--data", "nowhere.svm"], 1), ("papers.claims", ["nowhere.svm"], 1),
])  # fmt: skip
def test_wrong_use_is_refused(name, words, code):
    done = finished([sys.executable, "-m", f"scripts.{name}", *words], env=environment())
    assert done.returncode == code
    assert f"scripts.{name}" in done.stderr
