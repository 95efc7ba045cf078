"""Transformed numbers, crosses of columns, and those of namespaces of Vowpal Wabbit's text."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from helpers import features_of
from inside import BlockStore, cli, patch

import sbm
from sbm.errors import DataError, SettingsError


def table(n: int = 200) -> pa.Table:
    random = np.random.default_rng(3)
    return pa.table({
        "ad": [["x", "y", "a*b", None][k] for k in random.integers(0, 4, n)],
        "device": [["phone", "desk"][k] for k in random.integers(0, 2, n)],
        "age": pa.array(random.integers(0, 6, n), mask=random.random(n) < 0.1),
        "day": pa.array(np.datetime64("2026-01-01") + random.integers(0, 90, n)),
        "paid": random.lognormal(3, 2, n).round(2) * random.choice([-1, 0, 1], n),
        "label": random.integers(0, 2, n),
    })  # fmt: skip


def word(name: str, value: Any) -> tuple[str, float]:
    return f"{name}={'(missing)' if value is None else value}", 1.0


def number(name: str, value: Any) -> tuple[str, float]:
    return word(name, None) if value is None else (name, float(value))


def test_crosses_are_products(tmp_path: Path) -> None:
    rows = table()
    crosses = ["ad:device", "age:device", "paid:age", "day:device"]
    found = features_of(rows, tmp_path, cross=crosses)
    for row, features in zip(rows.to_pylist(), found, strict=True):
        ad, device = word("ad", row["ad"]), word("device", row["device"])
        age, paid = number("age", row["age"]), number("paid", row["paid"])
        years = (row["day"] - rows["day"][0].as_py().replace(2000, 1, 1)).days / 365.2425
        days = [
            ("day", years),
            (f"day.month={row['day'].month}", 1.0),
            (f"day.weekday={row['day']:%a}", 1.0),
        ]
        wanted = dict([ad, device, age, paid, *days])
        pairs = [(ad, device), (age, device), (paid, age), *((day, device) for day in days)]
        wanted |= {f"{a}*{b}": x * y for (a, x), (b, y) in pairs}
        assert features == pytest.approx({name: x for name, x in wanted.items() if x})


def test_crosses_do_not_depend_on_batches_and_formats(tmp_path: Path) -> None:
    rows = table()
    csv = tmp_path / "a.csv"
    pa.csv.write_csv(rows, csv)
    pq.write_table(rows, tmp_path / "a.parquet", row_group_size=70)
    models = []
    for k, (data, cells) in enumerate(
        itertools.product([csv, tmp_path / "a.parquet", rows], [60, 1 << 19])
    ):
        with pytest.MonkeyPatch.context() as context:
            patch(context, "tables._CELLS", cells)
            sbm.train(data, tmp_path / "m.model", cross=["ad:device", "ad:age"])
        models.append(sbm.Model.load(tmp_path / "m.model"))
        assert models[0].W.tobytes() == models[k].W.tobytes()
        assert list(models[0].names) == list(models[k].names)
    predicted = sbm.predict(tmp_path / "m.model", csv)
    assert predicted["unknown_nonzeros"] == 0
    assert predicted["accuracy"] == np.mean(models[0].predict(rows) == rows["label"].to_numpy())


def test_many_crosses_share_hashed_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = table()
    patch(monkeypatch, "crosses._MOST", 3)
    found = features_of(rows, tmp_path, cross=["ad:age"])
    names = {name for row in found for name in row}
    assert sum("*" in name and "hash" not in name for name in names) >= 3
    assert any(name.startswith("ad*age=(hash ") for name in names)
    sbm.train(rows, tmp_path / "m.model", cross=["ad:age"])
    pq.write_table(rows, tmp_path / "a.parquet")
    assert sbm.predict(tmp_path / "m.model", tmp_path / "a.parquet")["unknown_nonzeros"] == 0


def test_numbers_are_logarithms_and_bins(tmp_path: Path) -> None:
    rows = table()
    found = features_of(rows, tmp_path, column={"paid": "log1p", "age": "bins:3"})
    ages = [row["age"] for row in rows.to_pylist() if row["age"] is not None]
    edges = np.unique(np.quantile(ages, [1 / 3, 2 / 3], method="inverted_cdf")).tolist()
    edges = [edge for edge in edges if edge > min(ages)]
    bounds = [float("-inf"), *edges, float("inf")]
    for row, features in zip(rows.to_pylist(), found, strict=True):
        x = row["paid"]
        assert features.get("paid", 0.0) == pytest.approx(np.sign(x) * np.log1p(abs(x)), rel=1e-6)
        names = [name for name in features if name.startswith("age=")]
        low, high = next(
            ((a, b) for a, b in itertools.pairwise(bounds) if (row["age"] or 0) >= a
             and (row["age"] or 0) < b), (0, 0),
        )  # fmt: skip
        wanted = "(missing)" if row["age"] is None else f"[{low:g},{high:g})"
        assert names == [f"age={wanted}"]


def test_transformations_are_kept_in_models(tmp_path: Path) -> None:
    rows = table()
    kinds = tmp_path / "kinds.toml"
    kinds.write_text('[columns]\npaid = "log1p"\nage = "bins:4"\n')
    sbm.split(rows, tmp_path / "s.sbm", columns=kinds, cross=["age:device"])
    other = rows.slice(0, 50).select(rows.column_names[::-1])
    pq.write_table(other, tmp_path / "b.parquet")
    sbm.split(tmp_path / "b.parquet", tmp_path / "s.sbm", append=True)
    store, _ = sbm.train(tmp_path / "s.sbm", tmp_path / "m.model")
    assert not any("(hash" in name for name in store.names)
    assert sbm.predict(tmp_path / "m.model", tmp_path / "b.parquet")["unknown_nonzeros"] == 0


@pytest.mark.parametrize(
    ("cross", "column", "facts"),
    [
        (["ad:devise"], {}, "no column 'devise' .*did you mean 'device'"),
        (["ad:day"], {"ad": "ignored"}, "column ad cannot be crossed, as it is ignored"),
        (["ad"], {}, "a table has columns, not namespaces"),
        (["a:"], {}, "expected two columns"),
        (["ad:"], {}, "expected two columns"),
        ([], {"age": "bins:1"}, "bins may have a number from 2 to 1000"),
        ([], {"age": "bin"}, "did you mean 'bins'"),
    ],
)
def test_invalid_crosses_are_refused(
    cross: list[str], column: dict[str, str], facts: str, tmp_path: Path
) -> None:
    with pytest.raises((DataError, SettingsError), match=facts):
        sbm.split(table(), tmp_path / "s.sbm", cross=cross, column=column)


def test_only_numbers_are_scaled(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x, colour = random.normal(size=200) * 50, random.integers(0, 2, 200)
    y = (x / 50 + colour + random.normal(size=200) > 0.5).astype(int)
    words = pa.array([["red", "blue"][k] for k in colour])
    settings: dict[str, Any] = {"loss": "log_loss", "tol": 1e-6, "solver": "newton"}
    large = pa.table({"x": x, "colour": words, "label": y})
    small = pa.table({"x": x / x.std(), "colour": words, "label": y})
    scaled, _ = sbm.train(large, tmp_path / "a.model", {**settings, "scale": "std"})
    plain, _ = sbm.train(small, tmp_path / "b.model", settings)
    found = scaled.decision_function(large), plain.decision_function(small)
    np.testing.assert_allclose(*found, rtol=1e-3, atol=1e-3)


VW = """1 |user age:2 city=Oslo |ad shoes:3 red
-1 |user age:1 |ad red |other z
1 |user city=Rome |other z:2
-1 |ad shoes |user age
"""


def test_quadratic_features_of_vw(tmp_path: Path) -> None:
    text = tmp_path / "a.vw"
    text.write_text(VW)
    sbm.split(text, tmp_path / "s.sbm", cross=["ua", "uu"], hash_bits=18)
    plain = tmp_path / "plain.svm"
    sbm.cat(tmp_path / "s.sbm", plain, names=tmp_path / "names.txt")
    names = dict(line.split(" ", 1) for line in (tmp_path / "names.txt").read_text().splitlines())
    ids = {name: int(k) for k, name in names.items()}
    pair = "user^age*ad^shoes"
    assert ids[pair] == (ids["user^age"] * 16777619 ^ ids["ad^shoes"]) & (2**18 - 1)
    rows = [
        {names[part.split(":")[0]]: float(part.split(":")[1]) for part in line.split()[1:]}
        for line in plain.read_text().splitlines()
    ]
    assert rows[0] == {
        "user^age": 2, "user^city=Oslo": 1, "ad^shoes": 3, "ad^red": 1, "user^age*ad^shoes": 6,
        "user^age*ad^red": 2, "user^city=Oslo*ad^shoes": 3, "user^city=Oslo*ad^red": 1,
        "user^age*user^age": 4, "user^age*user^city=Oslo": 2,
        "user^city=Oslo*user^city=Oslo": 1,
    }  # fmt: skip
    assert rows[2] == {"user^city=Rome": 1, "user^city=Rome*user^city=Rome": 1, "other^z": 2}
    sbm.train(tmp_path / "s.sbm", tmp_path / "m.model")
    assert sbm.predict(tmp_path / "m.model", text)["unknown_nonzeros"] == 0
    with pytest.raises(SettingsError, match="quadratic differs"):
        sbm.split(text, tmp_path / "s.sbm", append=True, cross=["ab"], force=True)


def test_q_with_two_letters_is_quadratic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.vw").write_text(VW)
    for words in (["-q", "ua"], ["-q", "a.vw"]):
        inputs = ["a.vw"] if words[1] != "a.vw" else []
        done = CliRunner().invoke(cli, ["split", *inputs, *words, "-o", "s.sbm", "--force"])
        assert done.exit_code == 0, done.output
        record = BlockStore(Path("s.sbm")).manifest["generations"][0]["options"]["names"]
        assert record.get("quadratic", []) == (["ua"] if inputs else [])


def test_streams_have_quadratic_features(tmp_path: Path) -> None:
    text = tmp_path / "a.vw"
    text.write_text(VW * 3)
    sbm.stream(text, tmp_path / "s.model", options={"quadratic": "ua,uu"})
    sbm.train(text, tmp_path / "t.model", cross=["ua", "uu"])
    streamed, trained = (sbm.Model.load(tmp_path / name) for name in ("s.model", "t.model"))
    assert set(streamed.ids.tolist()) == set(trained.ids.tolist())
    assert sbm.predict(streamed, text)["unknown_nonzeros"] == 0
    sbm.stream(text, tmp_path / "s.model", resume=True)
    with pytest.raises(SettingsError, match="quadratic is ab, but"):
        sbm.stream(text, tmp_path / "s.model", options={"quadratic": "ab"}, resume=True)


@pytest.mark.parametrize(
    ("cells", "kind"),
    [([["a"], ["b", "c"]], "words"), ([[1], [2, 3]], "ids"), ([[0.5]] * 2, "vector")],
)
def test_lists_cannot_be_crossed(cells, kind):
    table = pa.table({"a": cells, "b": ["x", "y"], "label": [0, 1]})
    with pytest.raises(
        DataError, match=f"column a cannot be crossed, as it is {kind}; cross another"
    ):
        sbm.columns(table, cross=["a:b"])
