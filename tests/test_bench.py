"""scripts/bench.py and scripts/bench_memory.py: every benchmark still runs, at toy size."""

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import SCRIPTS, load_script

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
    if name == "text-to-gap":
        for row in report["rows"]:
            assert 0 <= row["above_bound"] < 0.03, row  # both solve the same problem


def test_objective_is_that_of_the_formula(tmp_path: Path) -> None:
    text = "+1 2:0.5 7:2\n-1 3:1 9000:4\n+1\n-1 2:-1\n"
    (tmp_path / "small.svm").write_text(text)
    ids, weights = np.array([2, 3, 7]), np.array([0.25, -3.0, 0.125])
    value = load_script("bench")._objective(tmp_path / "small.svm", 0.5, ids, weights, 1.0)
    margins = np.array([0.5 * 0.25 + 2 * 0.125, 3.0, 0.0, 0.25])
    expected = 0.5 * weights @ weights + 0.5 * np.maximum(0, 1 - margins).sum()
    assert value == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("labels", ["+1 -1", "-1 1"])
def test_liblinear_model_is_read_with_its_sign(labels: str, tmp_path: Path) -> None:
    head = f"solver_type L2R_L1LOSS_SVC_DUAL\nnr_class 2\nlabel {labels}\nnr_feature 2\nbias -1\n"
    (tmp_path / "peer.model").write_text(f"{head}w\n0.5 \n-0.25 \n")
    ids, weights, positive = load_script("bench")._read_liblinear_model(tmp_path / "peer.model")
    assert ids.tolist() == [1, 2]
    assert weights.tolist() == [0.5, -0.25]
    assert positive == float(labels.split()[0])


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
