"""The example of the docs runs, and logging and progress reach Python's users."""

import logging
import runpy
import sys
from pathlib import Path

import pytest
from inside import NotebookProgress, Progress

import sbm

EXAMPLES = Path(__file__).resolve().parent.parent / "docs" / "examples"


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")  # of the libraries that it shows
def test_people_goes_from_parquet_to_a_scorer(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow", reason="needs the extra arrow")
    monkeypatch.chdir(tmp_path)
    found = runpy.run_path(str(EXAMPLES / "people.py"))
    assert found["accuracy"] > 0.85
    assert found["watch"].gaps
    assert found["model"].classes_.tolist() == ["high", "low"]
    assert {"age", "hours", "job=pilot"} <= {name for name, _ in found["model"].top(-9)}
    if found["mlflow"] is not None:
        runs = found["mlflow"].search_runs(output_format="list")
        assert runs[0].data.metrics["relative_gap"] == pytest.approx(found["watch"].gaps[-1])
    if "onnxruntime" in sys.modules:
        assert (tmp_path / "people.onnx").stat().st_size > 100


@pytest.fixture
def text(tmp_path):
    (tmp_path / "a.svm").write_text("1 1:1\n-1 2:1\n" * 20)
    return tmp_path / "a.svm"


def test_trainings_log_under_the_name_of_the_package(text, caplog):
    with caplog.at_level(logging.DEBUG, "sbm"):
        sbm.train(text, text.with_suffix(".model"))
    told = [(r.name, r.levelname) for r in caplog.records]
    assert ("sbm", "INFO") in told
    assert "certified relative gap" in caplog.text
    assert "a.svm: 40 rows" in caplog.text


def test_notebooks_show_bars(text, monkeypatch, capsys):
    assert type(Progress.of(None)) is Progress
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    assert type(Progress.of(None)) is NotebookProgress
    seen = []
    monkeypatch.setattr("tqdm.std.tqdm.update", lambda bar, n: seen.append((bar.desc, n)))
    sbm.split(text, text.with_suffix(".sbm"))
    assert ("split", text.stat().st_size) in seen
    capsys.readouterr()
    report = sbm.train(text.with_suffix(".sbm"), text.with_suffix(".model"))[1]
    title, first = capsys.readouterr().out.splitlines()[:2]
    assert title.startswith("pass  seconds  gap (tol 0.001)")
    assert first.startswith("   1 ")
    page = sbm.report(report["model"], text.with_suffix(".html"))
    assert page._repr_html_().startswith("<iframe")
    assert page["png"] is None
