"""scripts/bench.py, bench_memory.py and bench_ranks.py: every benchmark still runs, at toy size."""

import dataclasses
import importlib.util
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import SCRIPTS, load_script
from launching import environment, needs_mpi
from processes import finished

RATIOS = {
    "parse": {"MB_per_second", "times_scikit-learn", "times_liblinear_python_reader"},
    "split": {
        "MB_of_text_per_second",
        "of_liblinear_one_iteration_process",
        "of_liblinear_reading_alone",
        "of_scikit-learn_loader",
        "100_blocks_of_1_block",
        "2_threads_of_1",
        "gz_of_decompressing",
        "zst_of_decompressing",
    },
    "kernel": {
        "short rows, implicit ones: epoch_of_liblinear_iteration",
        "short rows, implicit ones: epoch_of_touching",
        "short rows, float32: epoch_of_liblinear_iteration",
        "short rows, float32: epoch_of_touching",
        "short rows: gap_of_plain_order_after_8_epochs",
        "long rows, float32: epoch_of_liblinear_iteration",
        "long rows, float32: epoch_of_touching",
        "long rows: gap_of_plain_order_after_8_epochs",
    },
    "start": {"seconds", "times_python", "times_numpy"},
    "text-to-gap": {
        "sbm_of_liblinear_time",
        "sbm_of_liblinear_peak_memory",
        "sbm_of_vw_single_pass_time",
        "sbm_certified_relative_gap",
        "sbm_passes",
    },
    "one-pass": {
        "stream_of_vw_single_pass_time",
        "stream_of_vw_single_pass_cpu_time",
        "stream_of_split_and_train_time",
        "sbm_of_vw_single_pass_time",
        "sbm_of_vw_single_pass_cpu_time",
        "accuracy_of_one_pass_of_converged",
        "accuracy_of_vw_of_converged",
        "accuracy_of_stream_of_converged",
        "points: stream_below_converged",
        "points: stream_above_vw",
        "points: stream_above_best_online_learner",
        "points: stream_above_bmd",
    },
    "stream-memory": {
        "MB_of_text_per_second",
        "rows_per_second",
        "peak_MB",
        "peak_of_mem",
        "slope_of_the_last_half_bytes_a_GB",
        "slope: growth_of_the_last_half_of_peak",
    },
    "scaling": {
        "split_us_per_row: largest_of_smallest",
        "pass_us_per_row: largest_of_smallest",
        "split_peak_MB: largest_of_smallest",
        "train_peak_MB: largest_of_smallest",
    },
    "overlap": {"wall_of_larger", "sum_of_larger", "passes_with_cache_of_without"},
    "rounds": {
        "not throttled: auto_of_best_fixed_seconds",
        "not throttled: auto_of_best_fixed_passes",
        "100 MB/s: auto_of_best_fixed_seconds",
        "100 MB/s: auto_of_best_fixed_passes",
    },
    "cache": {
        "data.svm: auto_of_best_fixed_seconds",
        "data.svm: auto_of_best_fixed_passes",
    },
    "screening": {"visits: screened_of_all", "seconds: screened_of_all"},
    "threads": {
        "split: 2_threads_of_1",
        "split: 8_threads_of_1, extrapolated",
        "train: 2_threads_of_1",
        "train: 8_threads_of_1, extrapolated",
    },
    "family": {
        f"data.svm: {loss} of -s {solver}, {what}"
        for loss, solver in (
            ("log_loss", 7),
            ("log_loss", 0),
            ("squared_hinge", 1),
            ("epsilon_insensitive", 13),
            ("squared_epsilon_insensitive", 12),
            ("squared_epsilon_insensitive", 11),
        )
        for what in ("whole", "solving", "memory")
    },
    "tune": {
        "time: tune_of_one_training",
        "CPU time: tune_of_one_training",
        "bytes read: tune_of_one_training",
        "time: folds_of_alone",
        "CPU time: tune_of_alone",
        "bytes read: folds_of_alone",
    },
    "plan": {"largest_factor_between_foreseen_and_taken"},
    "nightly": {
        "updates, data.svm, C 0.1, mem 400MB: warm_of_scratch",
        "updates of all nights that append: warm_of_scratch",
        "updates of all nights that expire as much: warm_of_scratch",
    },
    "multiclass": {
        f"{loss}: {what}_of_liblinear, {which}"
        for loss in ("crammer_singer", "weston_watkins", "hinge")
        for what in ("solving", "whole", "memory")
        for which in ("median", "largest")
    },
    "bmd": {
        f"rounds {rounds}: {what}"
        for rounds in (10, "auto")
        for what in (
            "dual difference, SBM-1/2_of_SBM-1/2-rand",
            "dual difference, SBM-1/2_of_BMD",
            "seconds_of_a_first_pass, SBM-1/2_of_BMD",
        )
    },
    "pairs": {
        "sample: seconds, speed_up_of_2_threads",
        "sample: solve, speed_up_of_2_threads",
        "pairs: seconds, speed_up_of_2_threads",
        "pairs: solve, speed_up_of_2_threads",
        "seconds with 2 threads: pairs_of_sample",
        "solve with 2 threads: pairs_of_sample",
    },
    "class-blocks": {"data.svm: speed_up_of_2_processes"},
    "ovr-cache": {
        "1 caches: speed_up_of_2_threads",
        "2 caches: speed_up_of_2_threads",
        "2 caches: of_1_with_2_threads",
    },
    "classes": {
        f"{loss}: {what}, most_classes_of_fewest"
        for loss in ("crammer_singer", "weston_watkins")
        for what in ("seconds_a_pass", "peak_MB")
    },
    "multiclass-error": {
        f"{loss}: best_error_percent, mean of the sets"
        for loss in ("crammer_singer", "weston_watkins", "hinge")
    },
}
ROWS = 12_000  # of two classes
MULTICLASS = {"multiclass", "bmd", "pairs", "class-blocks", "ovr-cache", "multiclass-error"}
WITHOUT_DATA = {"start", "parse", "classes", "stream-memory"}  # or of their own
LEARNERS = {"liblinear": "liblinear-official", "sklearn": "scikit-learn"}
PEERS = {
    "parse": LEARNERS,
    "split": LEARNERS,
    "class-blocks": {"mpi4py": "mpi4py"},
    "kernel": {"liblinear": "liblinear-official"},
    "text-to-gap": LEARNERS | {"vowpalwabbit": "vowpalwabbit"},
    "one-pass": {"vowpalwabbit": "vowpalwabbit"},
    "family": LEARNERS,
    "multiclass": {"liblinear": "liblinear-official"},
}
PICTURES = {"text-to-gap", "scaling", "bmd", "classes", "tune", "stream-memory"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The text of the benchmarks of two classes but one, which makes its own."""
    return make_text(tmp_path_factory.mktemp("data") / "data.svm", ROWS)


@pytest.fixture(scope="module")
def classes_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The text of those of several classes."""
    return make_text(tmp_path_factory.mktemp("classes") / "data.svm", 1000, "--classes", "4")


def make_text(out: Path, rows: int, *more: str) -> Path:
    script = [sys.executable, str(SCRIPTS / "make_synthetic.py"), "-o", str(out)]
    size = ["--rows", str(rows), "--features", "5000", "--nnz", "10", "--power", "0.8"]
    finished([*script, *size, "--noise", "0.02", *more], check=True)
    return out


def read_report(prefix: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(prefix.with_name(prefix.name + ".json").read_text())
    assert set(report) == {
        "benchmark", "title", "settings", "data", "rows", "tables", "ratios", "notes", "machine",
    }  # fmt: skip
    assert {"date", "cores", "memory_bytes", "python", "numpy", "numba"} <= set(report["machine"])
    assert 0 <= report["machine"]["stolen_share"] < 1
    tables = [report["rows"], *report["tables"].values()]
    for rows in tables:
        assert rows
        assert all(set(row) == set(rows[0]) for row in rows)
    text = prefix.with_name(prefix.name + ".md").read_text().splitlines()
    assert text[0].startswith(f"## {report['benchmark']}: ")
    assert sum(line.startswith("|") for line in text) == sum(2 + len(rows) for rows in tables)
    for number in (n for rows in tables for n in numbers_of(rows)):
        assert math.isfinite(number)
        assert number >= 0
    for name, number in report["ratios"].items():
        assert math.isfinite(number)
        assert number > 0 or "points" in name or "slope" in name, name  # differences have a sign
    return report


def numbers_of(rows: list[dict[str, Any]]) -> list[float]:
    values = [value for row in rows for value in row.values()]
    return [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]


@pytest.mark.parametrize("name", list(RATIOS))
def test_benchmark_runs_at_toy_size(
    name: str, data: Path, classes_data: Path, tmp_path: Path
) -> None:
    for module, package in PEERS.get(name, {}).items():
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{package} is not installed")
    if name == "stream-memory" and not Path("/proc/self/io").exists():
        pytest.skip("looks at /proc")
    prefix = tmp_path / "folder" / "report"
    command = [sys.executable, str(SCRIPTS / "bench.py"), name, "--quick", "-o", str(prefix)]
    command += ["--runs", "1"]  # of more it would be the median
    text = classes_data if name in MULTICLASS else data
    command += [] if name in WITHOUT_DATA else ["--data", str(text)]
    done = finished(command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (tmp_path / "folder" / "report.md").read_text()
    report = read_report(prefix)
    assert report["benchmark"] == name
    assert set(report["ratios"]) == RATIOS[name]
    assert str(tmp_path) not in json.dumps(report)
    assert str(text.parent) not in json.dumps(report)
    assert sys.prefix not in json.dumps(report)
    if name == "text-to-gap":
        for row in report["rows"][:2]:
            assert 0 <= row["above_bound"] < 0.03, row  # both solve the same problem
    if name in ("text-to-gap", "one-pass"):
        for row in report["rows"]:
            assert 0.65 < row["test_accuracy"] < 1, row  # labels have the right sign
    if name == "one-pass":
        names = [row["what"].removeprefix("stream, ").split(",")[0] for row in report["rows"]]
        online = ["perceptron", "passive_aggressive", "arow", "pegasos", "bmd"]
        assert names == ["sbm", "sbm stream", "VW", "sbm", *online]
    if name == "stream-memory":
        assert report["data"]["text"] == "0.04 GB"
        assert report["data"]["features"] > 6900  # 5000 of the rows, 2000 that came one by one
        peak, bound = report["ratios"]["peak_MB"], report["settings"]["bound_MB"]
        assert max(row["resident_MB"] for row in report["rows"]) <= peak < bound
        log = report["tables"]["log of the run"]
        assert log[-1]["rows"] == report["data"]["rows"]
    if name == "family":
        for row in report["rows"]:
            assert row["converged"], row
            assert row["above"] < 0.011, row
            assert row["peer_above"] < 0.1, row  # the same problem, the same sign of the labels
    if name == "tune":
        values = report["tables"]["values of C, all folds on one stream"]
        assert [row["C"] for row in values] == ["0.01", "1"]
        assert sum(row["status"].endswith(", the best") for row in values) == 1
        _, folds, final, together, alone = report["rows"]
        assert together["MB_read"] == pytest.approx(folds["MB_read"] + final["MB_read"])
        assert alone["what"] == "4 models alone"
        assert 0.75 < report["rows"][-2]["test_accuracy"] < 1
    if name == "nightly":
        assert report["rows"][0]["ratio"] <= 0.35
        tables = report["tables"].values()
        assert [len(rows) for rows in tables] == [1, 1]
        for row in [*report["rows"], *(row for rows in tables for row in rows)]:
            assert row["difference"] <= row["relative_gap"] + row["gap_from_scratch"], row
        (night,) = report["tables"]["1 nights that expire as much"]
        assert night["rows"] == ROWS // 2
    if name == "multiclass":
        for row in report["rows"]:
            assert row["reached"], row
            assert 0 <= row["above"] < 0.01, row  # the same problem, the labels in the same order
            assert 0 < row["peer_above"] < 0.1, row
    if name == "bmd":
        for row in report["rows"]:
            assert 20 < row["accuracy_percent"] < 100, row
    picture = prefix.with_name("report.png")
    drawn = name in PICTURES and importlib.util.find_spec("matplotlib") is not None
    assert picture.exists() == drawn
    assert not drawn or picture.read_bytes().startswith(b"\x89PNG")


def test_objective_is_that_of_the_formula(tmp_path: Path) -> None:
    text = "+1 2:0.5 7:2\n-1 3:1 9000:4\n+1\n-1 2:-1\n"
    (tmp_path / "small.svm").write_text(text)
    ids, weights = np.array([2, 3, 7]), np.array([0.25, -3.0, 0.125])
    peers = load_script("bench_peers")
    model = peers.LinearModel(ids, weights, 1.0)
    value = peers.objective(tmp_path / "small.svm", 0.5, model)
    margins = np.array([0.5 * 0.25 + 2 * 0.125, 3.0, 0.0, 0.25])
    expected = 0.5 * weights @ weights + 0.5 * np.maximum(0, 1 - margins).sum()
    assert value == pytest.approx(expected, rel=1e-15)
    assert peers.accuracy(tmp_path / "small.svm", model) == 0.75  # an empty row is never right


@pytest.mark.parametrize(
    ("loss", "of_rows"),
    [
        ("log_loss", lambda y, z: np.log1p(np.exp(-y * z))),
        ("squared_hinge", lambda y, z: np.maximum(0, 1 - y * z) ** 2),
        ("epsilon_insensitive", lambda y, z: np.maximum(0, abs(y - z) - 0.1)),
        ("squared_epsilon_insensitive", lambda y, z: np.maximum(0, abs(y - z) - 0.1) ** 2),
    ],
)
def test_objective_of_the_family_is_that_of_the_formula(
    loss: str, of_rows: Any, tmp_path: Path
) -> None:
    (tmp_path / "small.svm").write_text("2 2:0.5 7:2\n0.5 3:1 9000:4\n2\n0.5 2:-1\n")
    family, peers = load_script("bench_family"), load_script("bench_peers")
    targets = family.LOSSES[loss].targets
    weights = np.array([0.25, -3.0, 0.125])
    model = peers.LinearModel(np.array([2, 3, 7]), weights, None if targets else 2.0)
    value = family.family_objective(tmp_path / "small.svm", loss, 0.5, model)
    y = np.array([2, 0.5, 2, 0.5] if targets else [1, -1, 1, -1])
    z = np.array([0.5 * 0.25 + 2 * 0.125, -3.0, 0.0, -0.25])
    assert value == pytest.approx(0.5 * weights @ weights + 0.5 * of_rows(y, z).sum(), rel=1e-15)


def test_liblinear_model_of_regression_has_no_labels(tmp_path: Path) -> None:
    head = "solver_type L2R_L1LOSS_SVR_DUAL\nnr_class 2\nnr_feature 2\nbias -1\n"
    (tmp_path / "peer.model").write_text(f"{head}w\n0.5 \n-0.25 \n")
    model = load_script("bench_peers").read_liblinear_model(tmp_path / "peer.model")
    assert model.weights.tolist() == [0.5, -0.25]
    assert model.positive is None


def test_regression_alone_of_targets(tmp_path: Path) -> None:
    (tmp_path / "targets.svm").write_text("1 1:1\n2 1:2\n3 1:3\n")
    command = [sys.executable, str(SCRIPTS / "bench.py"), "family", "--losses", "log_loss"]
    command += ["--quick", "--data", "targets.svm"]
    done = finished(command, cwd=tmp_path)
    assert done.returncode == 1
    assert "targets.svm has not two labels, so only regression can be measured" in done.stderr


def test_a_fold_is_one_line_of_so_many(tmp_path: Path) -> None:
    (tmp_path / "all.svm").write_text("".join(f"{k} 1:1\n" for k in range(7)))
    cut = load_script("bench_tune").without_a_fold
    left = [cut(tmp_path / "all.svm", 3, k, tmp_path / f"{k}.svm").read_text() for k in range(3)]
    labels = [[int(line.split()[0]) for line in text.splitlines()] for text in left]
    assert labels == [[1, 2, 4, 5], [0, 2, 3, 5, 6], [0, 1, 3, 4, 6]]


def test_outcomes_are_told_by_data_and_loss(tmp_path: Path) -> None:
    optima = load_script("verify_optima")
    one = optima.Outcome(
        "x", "hinge", 1.0, 1, 0.5, 1, 4, 1, 1.0, 1.0, 1.0, 0.0, 2e-5, 0.0, 0.0, 0.1
    )
    bad = dataclasses.replace(one, C=0.1, primal_excess=2e-4, passes=8, seconds=2.0)
    other = dataclasses.replace(one, data="y")
    grid = optima.Grid(["x", "y"], ["hinge"], [1.0], [1, 3], [0.5], ["auto"], 1e-4)
    optima.write_outcomes(tmp_path / "o.json", [one, bad, other], optima.new_report("o", grid))
    assert [o["passed"] for o in json.loads((tmp_path / "o.json").read_text())] == [1, 0, 1]
    text = (tmp_path / "o.md").read_text().splitlines()
    assert text[0] == "## o: certified primal against the trusted optimum"
    assert text[4:6] == [
        "| x | hinge | 0.1, 1 | 1 of 2 | 2.0e-04 | 6 | 8 | 0.1 to 2 |",
        "| y | hinge | 1 | 1 of 1 | 2.0e-05 | 4 | 4 | 0.1 to 0.1 |",
    ]


def test_gap_of_liblinear_is_that_of_a_small_problem(tmp_path: Path) -> None:
    pytest.importorskip("liblinear", reason="liblinear-official is not installed")
    rng = np.random.default_rng(0)
    rows = [
        f"{2 * (a > b) - 1} 1:{a:.3f} 2:{b:.3f} {k % 5 + 3}:1\n"
        for k, (a, b) in enumerate(rng.random((200, 2)))
    ]
    (tmp_path / "small.svm").write_text("".join(rows))
    held = load_script("bench_ours").hold(tmp_path / "small.svm", tmp_path, 1.0)
    library = load_script("bench_peers").LiblinearLibrary(held, 1.0)
    found = {k: library.after(k) for k in range(1, 9)}
    assert all(state.iterations == k for k, state in found.items() if state is not None)
    gaps = [state.relative_gap for state in found.values() if state is not None]
    assert len(gaps) > 2
    assert 1 > gaps[0] > gaps[-1] > 0


MULTICLASS_TEXT = "7 2:0.5 7:2\n-1 3:1 9000:4\n3\n-1 2:-1\n"
# Decision values, a column a label: -1, 3, 7.
DECISIONS = np.array([[0.5, -1.0, 0.75], [-3.0, 0.0, 1.0], [0.0, 0.0, 0.0], [-1.0, 0.0, 0.5]])
WEIGHTS = np.array([[1.0, 0.0, -0.5], [-3.0, 0.0, 1.0], [0.0, -0.5, 0.5]])  # of ids 2, 3, 7


def make_classifier() -> Any:
    ids, labels = np.array([2, 3, 7]), np.array([-1.0, 3.0, 7.0])
    return load_script("bench_evaluate").Classifier(ids, WEIGHTS, labels)


@pytest.mark.parametrize(
    ("loss", "losses"),
    [
        ("crammer_singer", [0.75, 5.0, 1.0, 2.5]),
        ("weston_watkins", [0.75, 4.0 + 5.0, 1.0 + 1.0, 2.0 + 2.5]),
        ("hinge", [1.5 + 0.0 + 0.25, 4.0 + 1.0 + 2.0, 3.0, 2.0 + 1.0 + 1.5]),
    ],
)
def test_objective_of_several_classes_is_that_of_the_formula(
    loss: str, losses: list[float], tmp_path: Path
) -> None:
    (tmp_path / "small.svm").write_text(MULTICLASS_TEXT)
    evaluate = load_script("bench_evaluate")
    value = evaluate.total_objective(tmp_path / "small.svm", loss, 0.5, make_classifier())
    assert value == pytest.approx(0.5 * np.sum(WEIGHTS**2) + 0.5 * sum(losses), rel=1e-15)


def test_decisions_of_several_classes(tmp_path: Path) -> None:
    (tmp_path / "small.svm").write_text(MULTICLASS_TEXT)
    evaluate = load_script("bench_evaluate")
    ((own, decisions),) = make_classifier().decide(tmp_path / "small.svm")
    assert own.tolist() == [2, 0, 1, 0]
    assert decisions.tolist() == DECISIONS.tolist()
    assert evaluate.error_rate(tmp_path / "small.svm", make_classifier()) == 0.75


def test_liblinear_model_of_several_classes_is_read_in_order_of_labels(tmp_path: Path) -> None:
    head = "solver_type MCSVM_CS\nnr_class 3\nlabel 7 -1 3\nnr_feature 2\nbias -1\n"
    (tmp_path / "peer.model").write_text(f"{head}w\n1 2 3 \n4 5 6 \n")
    evaluate = load_script("bench_evaluate")
    model = evaluate.read_liblinear_classifier(tmp_path / "peer.model")
    assert model.ids.tolist() == [1, 2]
    assert model.labels.tolist() == [-1, 3, 7]
    assert model.W.tolist() == [[2, 3, 1], [5, 6, 4]]


def test_a_fifth_is_held_out_where_there_is_no_test_half(tmp_path: Path) -> None:
    lines = [f"{k % 5} {k + 1}:1\n" for k in range(200)]  # labels in turn
    (tmp_path / "all.svm").write_text("".join(lines))
    (tmp_path / "halves").mkdir()
    halves = load_script("bench_classes").halves
    first, last, held = halves(tmp_path / "all.svm", tmp_path / "halves")
    assert held
    both = first.read_text().splitlines(True), last.read_text().splitlines(True)
    assert sorted([*both[0], *both[1]]) == sorted(lines)
    assert 20 < len(both[1]) < 60
    assert {line[0] for line in both[1]} == set("01234")
    (tmp_path / "all.t.svm").write_text("0 1:1\n")
    found = halves(tmp_path / "all.svm", tmp_path / "halves")
    assert found == (tmp_path / "all.svm", tmp_path / "all.t.svm", False)


@pytest.mark.parametrize("end", ["\n", ""])
def test_last_tenth_is_held_out(end: str, tmp_path: Path) -> None:
    lines = [f"+1 {k}:1" for k in range(1, 31)]
    (tmp_path / "all.svm").write_text("\n".join(lines) + end)
    first, last = load_script("bench_data").hold_out(tmp_path / "all.svm", 0.1, tmp_path)
    assert first.read_text() + last.read_text() == (tmp_path / "all.svm").read_text()
    assert first.read_text().split("\n") == [*lines[: 27 if end else 26], ""]


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_end_of_line_is_where_the_lines_end(share: float, tmp_path: Path) -> None:
    lines = [b"x" * (k % 7) + b"\n" for k in range(40)]
    (tmp_path / "text").write_bytes(b"".join(lines))
    data = load_script("bench_data")
    whole = data.PIECE
    try:
        for data.PIECE in (1, 3, 64, whole):  # lines of many pieces, pieces of many lines
            count, end = data.end_of_line(tmp_path / "text", share)
            assert (count, end) == (40 * share, len(b"".join(lines[: int(40 * share)])))
    finally:
        data.PIECE = whole


@pytest.mark.parametrize("grow", [0, 5])
def test_text_of_a_stream_is_written_again_and_again(grow: int, tmp_path: Path) -> None:
    streams = load_script("bench_stream")
    rows = [f"{k % 2} {k + 1}:1" for k in range(8)]
    if grow:
        rows = [row + " 0000009:1" * (k % 4 == 0) for k, row in enumerate(rows)]
    text = "\n".join(rows) + "\n"
    (tmp_path / "base.svm").write_text(text)
    size = 3 * len(text) - 2  # the last row does not fit
    arguments = [tmp_path / "base.svm", size, grow, 9]
    with streams._fed(arguments) as feeder:
        written = feeder.stdout.read().decode().splitlines()
    assert len(written) == 23
    features = [row.split()[1:] for row in written]
    for k in (0, 8):
        assert sorted(int(row[0][:-2]) for row in features[k : k + 8]) == list(range(1, 9))
    new = [int(row[1][:-2]) for row in features if len(row) > 1]
    assert all((int(row[0][:-2]) % 4 == 1) == (len(row) > 1) for row in features if grow)
    assert set(new) <= set(range(9, 9 + grow))
    assert sorted(set(new[:2])) == ([9] if grow else [])  # a fifth, two fifths, two fifths


def test_text_for_vowpal_wabbit(tmp_path: Path) -> None:
    (tmp_path / "small.svm").write_text("3 1:1 11:1 12:1.5 # 4:1\n\n-2 7:0.5 8:1\n3\n")
    load_script("bench_peers").to_vw(tmp_path / "small.svm", tmp_path / "small.vw", 3.0)
    lines = (tmp_path / "small.vw").read_text().splitlines()
    assert [line.rstrip() for line in lines] == ["1 |f 1 11 12:1.5", "-1 |f 7:0.5 8", "1 |f"]


@pytest.mark.parametrize(("ratio", "share"), [(1.0, 0.0), (0.5, 1.0), (0.75, 0.5), (1.2, 0.0)])
def test_parallel_share_follows_from_two_times(ratio: float, share: float) -> None:
    assert load_script("bench_training").parallel_share(ratio) == pytest.approx(share)


def test_without_matplotlib_a_sentence_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = load_script("bench_plot")
    monkeypatch.setattr(plot.importlib.util, "find_spec", lambda name: None)
    assert not plot.draw({"benchmark": "scaling"}, tmp_path / "none.png")
    assert "matplotlib is not installed" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("labels", ["+1 -1", "-1 1"])
def test_liblinear_model_is_read_with_its_sign(labels: str, tmp_path: Path) -> None:
    head = f"solver_type L2R_L1LOSS_SVC_DUAL\nnr_class 2\nlabel {labels}\nnr_feature 2\nbias -1\n"
    (tmp_path / "peer.model").write_text(f"{head}w\n0.5 \n-0.25 \n")
    model = load_script("bench_peers").read_liblinear_model(tmp_path / "peer.model")
    assert model.ids.tolist() == [1, 2]
    assert model.weights.tolist() == [0.5, -0.25]
    assert model.positive == float(labels.split()[0])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["parse", "--data", "nowhere.svm"], 1, "nowhere.svm: no such file"),
        (["parse", "--runs", "0"], 2, "--runs must be at least 1"),
        (["one-pass", "--data", __file__, "--test", "nowhere"], 1, "nowhere: no such file"),
        (["cache", "--cache-frac", "0.5,many"], 2, "invalid list of"),
        (["multiclass", "--data", "nowhere.svm"], 1, "nowhere.svm: no such file"),
        (["multiclass", "-C", "1,0"], 2, "invalid list of float above 0"),
        (["classes", "--losses", "hinge,log"], 2, "invalid list of"),
        (["family", "--losses", "hinge"], 2, "invalid list of"),
        (["family", "--data", __file__, "--also", "nowhere.svm"], 1, "nowhere.svm: no such file"),
        (["tune", "--loss", "one_class"], 2, "invalid choice"),
        (["one-pass", "--learner-C", "0.1,0"], 2, "invalid costs"),
        (["stream-memory", "--grow", "99999999"], 1, "more than 7 digits"),
        (["nothing"], 2, "invalid choice"),
    ],
)
def test_wrong_use_is_one_line(
    arguments: list[str], code: int, message: str, tmp_path: Path
) -> None:
    command = [sys.executable, str(SCRIPTS / "bench.py"), *arguments]
    done = finished(command, cwd=tmp_path)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@needs_mpi
def test_processes_add_up_at_toy_size(tmp_path: Path) -> None:
    prefix = tmp_path / "folder" / "report"
    command = [sys.executable, str(SCRIPTS / "bench_ranks.py"), "--quick", "-o", str(prefix)]
    done = finished(command, cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout == prefix.with_name("report.md").read_text()
    report = read_report(prefix)
    assert all(row["ok"] for row in report["rows"])
    assert [row["processes"] for row in report["rows"]] == [1, 2, 1, 2]
    rounds, wire = report["tables"].values()
    rules = ["alone", "adaptive", "safe", "1, with the share", "1, averaged", "adaptive"]
    assert [row["sigma"] for row in rounds] == rules
    assert [row["rounds_a_pass"] for row in rounds] == [16, 8, 8, 8, 8, 4]
    assert all(0.99 < row["sent_of_formula"] < 1.01 for row in wire)


@pytest.mark.parametrize("arguments", [[], ["--quick", "--data", "."]])
def test_ranks_are_of_one_text(arguments: list[str]) -> None:
    command = [sys.executable, str(SCRIPTS / "bench_ranks.py"), *arguments]
    done = finished(command)
    assert done.returncode == 2
    assert "either --data FOLDER or --quick is needed" in done.stderr


def test_what_was_not_reached_is_above_the_limit() -> None:
    ranks = load_script("bench_ranks")
    problem = ranks.Problem("two", "hinge", 0.1)
    a_round = {"sent": 1_000_000, "updates": 500_000}
    rounds = [{"dual": dual, **a_round} for dual in (90.0, 98.9, 99.0, 99.5, 99.8, 99.89)]
    found = {"rounds": rounds, "passes": [{"gap": 0.5}, {"gap": 0.01}, {"gap": 0.002}]}
    row = ranks.rounds_row(ranks.Training(problem, 2, 1.0), found, 100.0)
    assert row == {
        "processes": 2, "sigma": "1, with the share", "sync_every": 1, "rounds_a_pass": 2,
        "rounds, dual 0.01": 3, "rounds, dual 0.001": "> 6",
        "passes, gap 0.01": 2, "passes, gap 0.001": "> 3",
        "MB sent, dual 0.001": "> 6", "million updates, dual 0.001": "> 3",
        "MB sent, gap 0.001": "> 6", "million updates, gap 0.001": "> 3",
    }  # fmt: skip
    rounds.append({"dual": 99.91, **a_round})
    rounds.append({"dual": 99.95, **a_round})
    found["passes"].append({"gap": 0.001})
    row = ranks.rounds_row(ranks.Training(problem, 2), found, 100.0)
    assert [row["rounds, dual 0.001"], row["passes, gap 0.001"]] == [7, 4]
    assert [row["MB sent, dual 0.001"], row["MB sent, gap 0.001"]] == ["7", "8"]


def test_peak_memory_stays_below_mem(tmp_path: Path) -> None:
    prefix = tmp_path / "report"
    command = [sys.executable, str(SCRIPTS / "bench_memory.py"), "--quick", "-o", str(prefix)]
    done = finished(command)
    assert done.returncode == 0, done.stderr
    report = read_report(prefix)
    trained = [(r["blocks"], r["cache_frac"]) for r in report["rows"] if r["command"] == "train"]
    assert trained == [(12, 0.5), (12, 0)]
    assert [r["blocks"] for r in report["rows"] if r["command"] == "tune"] == [12]
    assert all(row["ok"] and row["peak_MB"] < row["bound_MB"] for row in report["rows"])
