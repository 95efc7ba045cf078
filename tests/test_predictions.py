"""Files of predictions: ids of rows, tables, and the quality of probabilities."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from inside import cli
from sklearn.metrics import brier_score_loss, log_loss

import sbm
from sbm.errors import DataError, SettingsError


def visits(path: Path, n: int = 400) -> Path:
    random = np.random.default_rng(0)
    x = random.normal(size=n)
    y = np.where(random.random(n) < 1 / (1 + np.exp(-2 * x)), "yes", "no")
    lines = [f'"visit {k}",{x[k]:.4f},{"red" if x[k] > 1 else "blue"},{y[k]}' for k in range(n)]
    path.write_text("\n".join(["who,x,colour,label", *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("visits")
    data = visits(folder / "visits.csv")
    sbm.train(data, folder / "m.model", {"loss": "log_loss"})
    return data, folder / "m.model"


def rows_of(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        return list(pq.read_table(path).to_pylist())
    with open(path, newline="") as file:
        return list(csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ","))


def test_tables_have_ids_and_probabilities(trained: tuple[Path, Path], tmp_path: Path) -> None:
    data, model = trained
    plain, tables = tmp_path / "p.txt", []
    sbm.predict(model, data, plain, probability=True, id="who")
    for name in ("p.csv", "p.tsv", "p.parquet"):
        sbm.predict(model, data, tmp_path / name, probability=True, id="who")
        tables.append(rows_of(tmp_path / name))
    title, *lines = plain.read_text().splitlines()
    assert title == "who\tlabels no yes"
    for k, line in enumerate(lines):
        who, rest = line.split("\t")
        label, no, yes = rest.split()
        assert who == f"visit {k}"
        for table in tables:
            row = table[k]
            assert list(row) == ["who", "prediction", "probability_no", "probability_yes"]
            assert (row["who"], row["prediction"]) == (who, label)
            assert (float(row["probability_no"]), float(row["probability_yes"])) == (
                float(no), float(yes),
            )  # fmt: skip


def test_probabilities_are_judged_beside_the_base_rate(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    data, model = trained
    report = sbm.predict(model, data, tmp_path / "p.csv", probability=True)
    y = np.array([row["label"] == "yes" for row in rows_of(data)])
    p = np.array([float(row["probability_yes"]) for row in rows_of(tmp_path / "p.csv")])
    share = np.full(len(y), y.mean())
    assert report["log_loss"] == pytest.approx(log_loss(y, p))
    assert report["brier"] == pytest.approx(brier_score_loss(y, p))
    assert report["base_log_loss"] == pytest.approx(log_loss(y, share))
    assert report["base_brier"] == pytest.approx(brier_score_loss(y, share))
    assert sbm.predict(model, data)["log_loss"] == report["log_loss"]
    wrong = tmp_path / "wrong.csv"  # other labels than the features say
    wrong.write_text(data.read_text().replace("yes\n", "no_\n").replace("no\n", "yes\n")
                     .replace("no_\n", "no\n"))  # fmt: skip
    warnings = sbm.predict(model, wrong)["warnings"]
    assert any("worse than predicting the share" in text for text in warnings)


@pytest.mark.parametrize("metric", ["log_loss", "brier"])
def test_validation_and_tuning_use_probabilities(metric: str, tmp_path: Path) -> None:
    data = visits(tmp_path / "visits.csv", 300)
    settings = {"loss": "log_loss", "validate": 0.3, "metric": metric}
    _, report = sbm.train(data, tmp_path / "m.model", settings)
    assert 0 < report["validation"]["score"] < report["validation"]["base_rate"]
    _, tuned = sbm.tune(
        data, tmp_path / "t.model", {"loss": "log_loss"}, Cs=[0.001, 1], folds=2, metric=metric
    )
    assert tuned["best"] == 1
    assert tuned["settings"][1]["mean"] < tuned["base_rate"]
    with pytest.raises(SettingsError, match="needs probabilities"):
        sbm.train(data, tmp_path / "n.model", {"validate": 0.3, "metric": metric})


def test_tags_of_vw_are_ids(tmp_path: Path) -> None:
    text = tmp_path / "a.vw"
    text.write_text("1 1.0 'first|f x y\n-1 second|f z\n\n1 |f x\n-1 0.5 'fourth |f z\n")
    sbm.train(text, tmp_path / "m.model")
    sbm.predict(tmp_path / "m.model", text, tmp_path / "p.csv", id="tag")
    assert [row["tag"] for row in rows_of(tmp_path / "p.csv")] == ["first", "second", "", "fourth"]


def test_unknown_ids_are_refused(trained: tuple[Path, Path], tmp_path: Path) -> None:
    data, model = trained
    with pytest.raises(DataError, match="no column 'whom' for id; did you mean 'who'"):
        sbm.predict(model, data, id="whom")
    sbm.split(data, tmp_path / "s.sbm")
    with pytest.raises(SettingsError, match="a store"):
        sbm.predict(model, tmp_path / "s.sbm", id="who")


def test_many_classes_are_a_table(tmp_path: Path) -> None:
    data = tmp_path / "a.csv"
    data.write_text("x,label\n" + "".join(f"{k % 3},{'abc'[k % 3]}\n" for k in range(60)))
    sbm.train(data, tmp_path / "m.model", {"loss": "log_loss", "bias": 1})
    out = tmp_path / "p.csv"
    sbm.predict(tmp_path / "m.model", data, out, top=2)
    assert list(rows_of(out)[0]) == ["prediction_1", "prediction_2"]
    sbm.predict(tmp_path / "m.model", data, out, decision=True)
    assert list(rows_of(out)[0]) == ["decision_a", "decision_b", "decision_c"]
    report = sbm.predict(tmp_path / "m.model", data)
    assert report["base_log_loss"] == pytest.approx(np.log(3))


def test_verbose_figures_include_pr_auc(trained: tuple[Path, Path], tmp_path: Path) -> None:
    data, model = trained
    out = tmp_path / "p.txt"
    expected = f"PR-AUC {sbm.predict(model, data, out)['pr_auc']:.6f}"
    for flag, is_shown in (("-v", True), ("--threads=1", False)):
        words = ["predict", str(model), str(data), "-o", str(out), flag]
        assert (expected in CliRunner().invoke(cli, words).output) == is_shown
