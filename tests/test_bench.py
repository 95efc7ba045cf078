"""scripts/bench.py and scripts/bench_memory.py: every benchmark still runs, at toy size."""

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import SCRIPTS

RATIOS = {
    "parse": {"MB_per_second", "times_scikit-learn", "times_liblinear_python_reader"},
    "epoch": {
        "implicit ones: epoch_of_liblinear_iteration",
        "implicit ones: epoch_of_touching",
        "float32: epoch_of_liblinear_iteration",
        "float32: epoch_of_touching",
    },
    "start": {"seconds", "times_python", "times_numpy"},
    "text-to-gap": {
        "sbm_of_liblinear_time",
        "sbm_of_liblinear_peak_memory",
        "sbm_certified_relative_gap",
        "sbm_passes",
    },
    "overlap": {"wall_of_larger", "sum_of_larger"},
}
NEEDS_PEERS = {"parse", "epoch", "text-to-gap"}


@pytest.fixture(scope="module", autouse=True)
def memory_bench(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple["subprocess.Popen[str]", Path]]:
    """The longest one runs beside the others: memory does not depend on who else runs."""
    prefix = tmp_path_factory.mktemp("memory") / "report"
    command = [sys.executable, str(SCRIPTS / "bench_memory.py"), "--quick", "-o", str(prefix)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        yield process, prefix
        process.kill()


def read_report(prefix: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(prefix.with_name(prefix.name + ".json").read_text())
    assert set(report) == {
        "benchmark", "title", "settings", "data", "rows", "ratios", "notes", "machine",
    }  # fmt: skip
    assert {"date", "cores", "memory_bytes", "python", "numpy", "numba"} <= set(report["machine"])
    columns = [set(row) for row in report["rows"]]
    assert columns
    assert all(c == columns[0] for c in columns)
    table = prefix.with_name(prefix.name + ".md").read_text().splitlines()
    assert table[0].startswith(f"## {report['benchmark']}: ")
    assert sum(line.startswith("|") for line in table) == 2 + len(report["rows"])
    for number in [*report["ratios"].values(), *numbers_of(report["rows"])]:
        assert math.isfinite(number)
        assert number >= 0
    assert all(number > 0 for number in report["ratios"].values())
    return report


def numbers_of(rows: list[dict[str, Any]]) -> list[float]:
    values = [value for row in rows for value in row.values()]
    return [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]


@pytest.mark.parametrize("name", list(RATIOS))
def test_benchmark_runs_at_toy_size(name: str, tmp_path: Path) -> None:
    if name in NEEDS_PEERS:
        pytest.importorskip("liblinear", reason="liblinear-official is not installed")
        pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    prefix = tmp_path / "folder" / "report"
    command = [sys.executable, str(SCRIPTS / "bench.py"), name, "--quick", "-o", str(prefix)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (tmp_path / "folder" / "report.md").read_text()
    report = read_report(prefix)
    assert report["benchmark"] == name
    assert set(report["ratios"]) == RATIOS[name]
    assert str(tmp_path) not in json.dumps(report)
    assert sys.prefix not in json.dumps(report)


def test_text_to_gap_reaches_the_optimum_with_both(tmp_path: Path) -> None:
    pytest.importorskip("liblinear", reason="liblinear-official is not installed")
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    rows = [f"{'+-'[k % 3 == 0]}1 {k % 7 + 1}:1 {k % 11 + 10}:0.5\n" for k in range(300)]
    (tmp_path / "small.svm").write_text("".join(rows))
    command = [
        sys.executable, str(SCRIPTS / "bench.py"), "text-to-gap", "--data", "small.svm",
        "--runs", "1", "--tol", "1e-6", "--rounds", "20", "--liblinear-e", "1e-6", "-o", "r",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = read_report(tmp_path / "r")
    for row in report["rows"]:
        assert row["above_bound"] == pytest.approx(0, abs=2e-6)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["parse", "--data", "nowhere.svm"], 1, "nowhere.svm: no such file"),
        (["parse", "--runs", "0"], 2, "--runs must be at least 1"),
        (["nothing"], 2, "invalid choice"),
    ],
)
def test_wrong_use_is_one_line(
    arguments: list[str], code: int, message: str, tmp_path: Path
) -> None:
    command = [sys.executable, str(SCRIPTS / "bench.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_peak_memory_stays_below_mem(
    memory_bench: tuple["subprocess.Popen[str]", Path],
) -> None:
    process, prefix = memory_bench
    output = process.communicate(timeout=300)[0]
    assert process.returncode == 0, output
    report = read_report(prefix)
    trained = [(r["blocks"], r["cache_frac"]) for r in report["rows"] if r["command"] == "train"]
    assert trained == [(12, 0.5), (12, 0), (100, 0.5), (100, 0)]
    assert all(row["ok"] and row["peak_MB"] < row["bound_MB"] for row in report["rows"])
