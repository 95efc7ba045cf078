"""Streams of tables: the same model from every format, resumed or not, with names."""

import itertools
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from inside import cli
from processes import finished

import sbm
from sbm.errors import DataError, SettingsError

N = 9000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place, random = tmp_path_factory.mktemp("tables"), np.random.default_rng(0)
    ad, x = random.zipf(1.6, N) % 500, random.normal(size=N)
    y = (x + np.sin(ad) + random.normal(size=N) > 0.3).astype(int)
    rows = pa.table({
        "x": pa.array(x.round(3), mask=random.random(N) < 0.05),
        "ad": [f"ad {k}" for k in ad],
        "day": pa.array(np.datetime64("2026-03-01") + random.integers(0, 60, N)),
        "label": y,
    })  # fmt: skip
    pa.csv.write_csv(rows, place / "a.csv")
    pq.write_table(rows, place / "a.parquet", row_group_size=1700)
    pyarrow.feather.write_feather(rows, place / "a.feather", chunksize=1700)
    return place


OPTIONS = {"reading": {"cross": ["x:day"]}}


@pytest.mark.process
def test_formats_and_pipes_give_the_same_model(folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.model"
    models = []
    for data in (folder / "a.csv", folder / "a.parquet", folder / "a.feather"):
        found, report = sbm.stream(data, model, {"loss": "log_loss"}, options=OPTIONS)
        models.append(found)
        assert report["rows"] == N
    place = str(folder / "a.csv")
    words = ["stream", place, "-o", str(tmp_path / "t.model"), "--test", place, "--json"]
    tested = CliRunner().invoke(cli, words)
    assert tested.exit_code == 0, tested.output
    assert '"unknown_nonzeros": 0' in tested.output
    words = ["-", "--format", "csv", "--loss", "log_loss", "-o", str(model), "--cross", "x:day"]
    command = [sys.executable, "-m", "sbm", "stream", *words]
    finished(command, feed=(folder / "a.csv").read_bytes(), text=False, check=True)
    models.append(sbm.Model.load(model))
    for other in models[1:]:
        assert other.W.tobytes() == models[0].W.tobytes()
        assert other.names is not None
        assert list(other.names) == list(models[0].names or ())
    report = sbm.predict(models[0], folder / "a.parquet")
    assert report["unknown_nonzeros"] == 0
    assert report["accuracy"] > 0.65


@pytest.mark.parametrize("name", ["a.csv", "a.parquet", "a.feather"])
@pytest.mark.parametrize("calls", [3, 9])
def test_resumed_streams_equal_others(name: str, calls: int, folder: Path, tmp_path: Path) -> None:
    whole, _ = sbm.stream(folder / name, tmp_path / "w.model", options=OPTIONS)
    counter = itertools.count()
    model = tmp_path / "r.model"
    for k in range(20):
        stops = (lambda: next(counter) % (calls + 4) >= calls) if k < 19 else (lambda: False)
        try:
            part, report = sbm.stream(
                folder / name if k == 0 else None, model, None,
                options=OPTIONS if k == 0 else None, resume=k > 0, is_stopped=stops,
            )  # fmt: skip
        except KeyboardInterrupt:
            assert k == 0
            continue
        if not report["stopped"]:
            break
    assert report["rows"] == N
    assert sorted(part.names or ()) == sorted(whole.names or ())
    assert sbm.predict(part, folder / name)["unknown_nonzeros"] == 0


def test_other_columns_are_refused_if_strict(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "b.csv"
    other.write_text("x,ad,label\n1,ad 2,1\n2,ad 3,0\n")
    inputs = [folder / "a.csv", other]
    with pytest.raises(DataError, match=r"columns differ.*day"):
        sbm.stream(inputs, tmp_path / "m.model", options={"reading": {"strict": True}})
    words = tmp_path / "w.csv"
    words.write_text("x,label\n1,yes\n2,no\n")
    with pytest.raises(DataError, match="labels of a stream are numbers"):
        sbm.stream(words, tmp_path / "m.model")
    with pytest.raises(SettingsError, match="cannot be followed"):
        sbm.stream(other, tmp_path / "m.model", options={"follow": True})
    text = tmp_path / "a.svm"
    text.write_text("1 1:1\n")
    with pytest.raises(SettingsError, match="cross applies to tables"):
        sbm.stream(text, tmp_path / "m.model", options=OPTIONS)
