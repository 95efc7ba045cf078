"""The column model: kinds, the same features from every format, exact names, and memory."""

import datetime
import itertools
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from helpers import features_of
from hypothesis import example, given
from hypothesis import strategies as st
from inside import Names, WordTable, cli, patch
from processes import finished

import sbm
from sbm.errors import DataError, SettingsError

N = 300


def people(n: int = N, seed: int = 0) -> pa.Table:
    """A table with a column of each kind that CSV can hold."""
    random = np.random.default_rng(seed)

    def gaps(values: Any, share: float = 0.1) -> pa.Array:
        return pa.array(values, mask=random.random(n) < share)

    days = np.datetime64("2026-01-30") + random.integers(0, 90, n)
    return pa.table({
        "size": gaps(np.round(random.normal(size=n), 3)),
        "age": gaps(random.integers(18, 80, n)),
        "old": gaps(random.random(n) < 0.5),
        "colour": gaps(np.array(["red", "grün", "a, \"b\"", "NA"])[random.integers(0, 4, n)]),
        "zip": pa.array([f"{k:05d}" for k in random.integers(0, 300, n)]),
        "user_id": random.integers(0, 40, n),
        "day": pa.array(days),
        "at": pa.array(days.astype("M8[s]") + 3600 * random.integers(0, 9, n)),
        "price": gaps([f"{k:,}" for k in random.integers(1, 10**6, n)]),
        "row": np.arange(n),
        "label": np.where(random.random(n) < 0.5, "yes", "no"),
    })  # fmt: skip


def csv_of(table: pa.Table, path: Path, separator: str) -> Path:
    options = pyarrow.csv.WriteOptions(delimiter=separator)
    pyarrow.csv.write_csv(table, path, options)
    return path


def parquet_of(table: pa.Table, path: Path) -> Path:
    pq.write_table(table, path, row_group_size=70)
    return path


def arrow_of(table: pa.Table, path: Path) -> Path:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=90)
    return path


def feather_of(table: pa.Table, path: Path) -> Path:
    pyarrow.feather.write_feather(table, path, chunksize=90)
    return path


def pandas_csv(table: pa.Table, path: Path) -> Path:
    pandas_of(table).to_csv(path, index=False)
    return path


class Rows:
    """Rows as dicts that can be iterated again, as a data set of Hugging Face."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.table.to_pylist())


def pandas_of(table: pa.Table) -> Any:
    """Return a frame of pandas; skip the test where it is not installed."""
    pytest.importorskip("pandas")
    return table.to_pandas()


WAYS = {
    "csv": lambda table, folder: csv_of(table, folder / "a.csv", ","),
    "tsv": lambda table, folder: csv_of(table, folder / "a.tsv", "\t"),
    "csv of pandas": lambda table, folder: pandas_csv(table, folder / "p.csv"),
    "parquet": lambda table, folder: parquet_of(table, folder / "a.parquet"),
    "feather": lambda table, folder: feather_of(table, folder / "a.feather"),
    "arrow stream": lambda table, folder: arrow_of(table, folder / "s.arrow"),
    "pyarrow": lambda table, folder: table,
    "reader": lambda table, folder: table.to_reader(max_chunksize=70),
    "batches": lambda table, folder: iter(table.to_batches(max_chunksize=70)),
    "data set": lambda table, folder: pyarrow.dataset.dataset(table),
    "dicts": lambda table, folder: table.to_pylist(),
    "rows": lambda table, folder: Rows(table),
    "columns": lambda table, folder: table.to_pydict(),
    "pandas": lambda table, folder: pandas_of(table),
    "pandas of arrow": lambda table, folder: table.to_pandas(
        types_mapper=pytest.importorskip("pandas").ArrowDtype
    ),
    "polars": lambda table, folder: pytest.importorskip("polars").from_arrow(table),
    "lazy polars": lambda table, folder: pytest.importorskip("polars").from_arrow(table).lazy(),
    "categories": lambda table, folder: table.set_column(
        3, "colour", table["colour"].combine_chunks().dictionary_encode()
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    return features_of(people(), tmp_path_factory.mktemp("whole"))


def test_each_kind_becomes_its_features(expected: list[dict[str, float]]) -> None:
    for row, features in zip(people().to_pylist(), expected, strict=True):
        days = (row["day"] - datetime.date(2000, 1, 1)).days
        hour = row["at"].hour
        years = (days + hour / 24) / 365.2425
        price = row["price"] and float(row["price"].replace(",", ""))
        numbers = {"size": row["size"], "age": row["age"], "old": row["old"], "price": price}
        wanted = {
            **{name: float(x) for name, x in numbers.items() if x},
            **{f"{name}=(missing)": 1.0 for name, x in numbers.items() if x is None},
            f"colour={row['colour'] or '(missing)'}": 1.0, f"zip={row['zip']}": 1.0,
            f"user_id={row['user_id']}": 1.0,
            "day": days / 365.2425, f"day.month={row['day'].month}": 1.0,
            f"day.weekday={row['day']:%a}": 1.0,
            "at": years, f"at.month={row['at'].month}": 1.0, f"at.weekday={row['at']:%a}": 1.0,
            f"at.hour={hour}": 1.0,
        }  # fmt: skip
        assert features == pytest.approx(wanted)


@pytest.mark.parametrize("way", WAYS)
def test_every_format_has_the_same_features(
    way: str, tmp_path: Path, expected: list[dict[str, float]]
) -> None:
    assert features_of(WAYS[way](people(), tmp_path), tmp_path) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        *itertools.permutations(
            ["csv", "csv of pandas", "parquet", "feather", "pandas", "polars"], 2
        )
    ],
)
def test_a_model_of_one_format_predicts_every_other(one: str, other: str, tmp_path: Path) -> None:
    data = WAYS[one](people(), tmp_path)
    model, _ = sbm.train(data, tmp_path / "a.model", {"loss": "log_loss"})
    new = people(seed=1)
    scores = model.decision_function(new)
    shuffled = new.select(new.column_names[::-1])
    data = WAYS[other](shuffled, tmp_path)
    if isinstance(data, Path):
        report = sbm.predict(model, data, tmp_path / "out", decision=True)
        found = np.loadtxt(tmp_path / "out")
        assert not [text for text in report["warnings"] if "column" in text]
    else:
        found = model.decision_function(data)
    np.testing.assert_allclose(found, scores, rtol=1e-12)


LISTS = pa.table({
    "tags": [["a", "b"], [], None, ["b", "c"]],
    "ids": [[7, 8], [8], [], None],
    "vector": pa.array([[1.0, 0, 2], [0, 0, 0], None, [3, 4, 5]], pa.list_(pa.float32(), 3)),
    "of": [
        {"x": 1.5, "in": {"y": "u"}}, {"x": 2.5, "in": None}, None, {"x": 3.5, "in": {"y": "v"}}
    ],
    "price": [Decimal("1.50"), None, Decimal("0.00"), Decimal("2.25")],
    "label": [0, 1, 0, 1],
})  # fmt: skip


@pytest.mark.parametrize("way", ["pyarrow", "parquet", "feather", "arrow stream", "polars"])
def test_lists_vectors_structs_and_decimals_are_read(way: str, tmp_path: Path) -> None:
    assert features_of(WAYS[way](LISTS, tmp_path), tmp_path) == [
        {"tags=a": 1, "tags=b": 1, "ids=7": 1, "ids=8": 1, "vector[0]": 1, "vector[2]": 2,
         "of.x": 1.5, "of.in.y=u": 1, "price": 1.5},
        {"ids=8": 1, "of.x": 2.5, "of.in.y=(missing)": 1, "price=(missing)": 1},
        {"vector=(missing)": 1, "of.x=(missing)": 1, "of.in.y=(missing)": 1},
        {"tags=b": 1, "tags=c": 1, "vector[0]": 3, "vector[1]": 4, "vector[2]": 5, "of.x": 3.5,
         "of.in.y=v": 1, "price": 2.25},
    ]  # fmt: skip


CODES = [f"{k * 2654435761 % 2**32:08x}" for k in range(40)]
MANY = [*range(200)]
# Odd numbers with one meaning, and cells without one.
ODD = ["(5)", "\u22125", "\u20135", "1,00,000", "1_000", "1\u2019000", "5 €", "US$5", "5 %"]
WRONG = ["oops", "12 apples", "n.a.", "#DIV/0!", "5-", "0x1F"]


@pytest.mark.parametrize(
    ("name", "cells", "kind", "seen"),
    [
        ("a", ["1", "2.5", "-3e4", ""], "number", "25 % missing"),
        ("a", ["37,055", "1", "2,000,000.5"], "number", "67 % have a thousands separator"),
        ("a", ["$0.75", "1", "3 €"], "number", "67 % have a currency"),
        ("a", ["1.57%", "3%"], "number", "100 % have a percent sign"),
        ("a", ["0,5", "12,25", "3"], "number", "decimal comma"),
        ("a", ["1.234,5", "7"], "number", "decimal comma"),
        ("a", ["1", "NA", "2", "null", "--"], "number", "60 % missing"),
        ("a", ["1"] * 9 + ["unknown"], "number", "10 % are 'unknown', read as missing"),
        *(("a", [*"123456789", odd], "number", "10 %") for odd in ODD),
        *(("a", [*"123456789", odd], "number", "distinct") for odd in ("1e5", "+3")),
        *(("a", [*"123456789", odd], "number", f"{odd!r}, read as missing") for odd in WRONG),
        ("a", ["1", "2", "3x"], "category", "3 distinct words"),
        ("a", ["00501", "94110"], "category", "leading zeros"),
        ("a", CODES, "category", "40 distinct words"),
        ("a", ["1e5", "9ab01234", "12345678"], "category", "3 distinct"),
        ("a", ["1e5", "100"], "number", "2 distinct"),
        ("ad_id", ["1", "2", "1"], "category", "named as a code"),
        ("adId", ["1", "2", "1"], "category", "named as a code"),
        ("paid", ["1", "2", "1"], "number", "2 distinct"),
        ("a", ["12345678901234567890", "1"], "category", "more digits"),
        ("a", ["True", "FALSE", "true", ""], "flag", "25 % missing"),
        ("a", ["yes", "no"], "category", "2 distinct words"),
        ("a", ["2026-01-31", "2026-02-01"], "date", "2026-01-31 to 2026-02-01"),
        ("a", ["01/31/2026", "02/01/2026"], "date", "%m/%d/%Y"),
        ("a", ["31/01/2026", "01/02/2026"], "date", "%d/%m/%Y"),
        ("a", ["31.01.2026"], "date", "%d.%m.%Y"),
        ("a", ["2026-01-31 10:00:00", "2026-01-31T12:30Z", "NA"], "date", "with a time"),
        ("a", ["2026-02-30", "2026-02-01"], "category", "2 distinct"),
        ("a", ["2026-02-01"] * 9 + ["0000-00-00"], "date", "'0000-00-00', read as missing"),
        ("a", ["true", "false", "true"] * 3 + ["maybe"], "flag", "'maybe', read as missing"),
        ("a", ["11/30/25", "1/2/99"], "date", "1999-01-02 to 2025-11-30 (%m/%d/%y)"),
        ("a", ["30.11.68", "1.2.69"], "date", "1969-02-01 to 2068-11-30 (%d.%m.%y)"),
        ("a", ["30-Nov-25", "1-Feb-26"], "date", "2025-11-30 to 2026-02-01 (%d-%b-%y)"),
        ("a", ["11/30/2025", "1/2/26"], "category", "2 distinct"),
        ("a", ["01/02/2026"], "date", "%d/%m/%Y would fit, too"),
        ("a", list(map(str, MANY)), "id", "each is the one before plus 1"),
        ("a", [str(3 * k * k) for k in MANY], "number", "200 distinct"),
        ("a", [f"u{k}" for k in MANY], "id", "all differ"),
        ("a", [f"{k:08d}" if k % 2 else str(k) for k in MANY], "id", "all differ"),
        ("a", [f"how do I get to number {k} from here" for k in MANY], "text", "raw text"),
        ("a", ["", " "], "empty", "no values"),
    ],
)
def test_kinds_are_inferred(
    name: str, cells: list[str], kind: str, seen: str, tmp_path: Path
) -> None:
    table = pa.table({name: cells, "b": ["1"] * len(cells)})
    for data in (table, csv_of(table, tmp_path / "a.csv", ",")):
        found = {column["name"]: column for column in sbm.columns(data)["columns"]}
        assert (found[name]["kind"], seen in found[name]["seen"]) == (kind, True), found[name]


def test_numbers_of_all_spellings_are_equal(tmp_path: Path) -> None:
    cells = [
        "1234.5",
        "1,234.5",
        "$1,234.50",
        "1 234.5",
        " 1234.5 ",
        "+1234.5",
        "123450%",
        "x",
        "-",
    ]
    (tmp_path / "a.csv").write_text("a,y\n" + "".join(f'"{cell}",1\n' for cell in cells))
    rows = features_of(tmp_path / "a.csv", tmp_path, column=["a=number"])
    assert rows == [{"a": 1234.5}] * 7 + [{"a=(missing)": 1}] * 2
    odd = ["(1_234.5)", "\u22121,234.5", "\u20131234.5", "(€\u00a01\u2019234.5)", "-1234.5 kr"]
    (tmp_path / "a.csv").write_text("a,y\n" + "".join(f'"{cell}",1\n' for cell in odd))
    assert features_of(tmp_path / "a.csv", tmp_path) == [{"a": -1234.5}] * 5
    (tmp_path / "a.csv").write_text("a;y\n1.234,5;1\n1234,5;0\n(1234,5);0\n")
    rows = features_of(tmp_path / "a.csv", tmp_path, sep=";", decimal=",")
    assert rows == [{"a": 1234.5}, {"a": 1234.5}, {"a": -1234.5}]


FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=64)


@given(st.lists(st.one_of(FLOATS, st.integers(-(2**53), 2**53)), min_size=1, max_size=30))
@example([7e22, 7e23, 7e-22, 7e-23])  # 1e23 is no double
def test_numbers_are_exact(tmp_path_factory: pytest.TempPathFactory, numbers: list[float]) -> None:
    folder = tmp_path_factory.mktemp("numbers")
    text = "".join(f"{x!r},1\n" for x in numbers)
    (folder / "a.csv").write_text("a,y\n" + text + "bad,1\n")
    rows = features_of(folder / "a.csv", folder, column={"a": "number"})
    assert [row.get("a", 0.0) for row in rows] == [*map(float, numbers), 0.0]


def test_mixed_cells_are_counted_and_shown(tmp_path: Path) -> None:
    lines = [f"{k % 7},{k % 2}" for k in range(12_000)]
    lines[11_000] = "oops,1"  # behind the rows that are looked at
    (tmp_path / "a.csv").write_text("a,y\n" + "\n".join(lines) + "\n")
    done = CliRunner().invoke(
        cli, ["split", f"{tmp_path}/a.csv", "-o", f"{tmp_path}/a.sbm"], catch_exceptions=False
    )
    assert "a (1, such as 'oops')" in done.output
    assert "a  number    whole numbers 0 to 6, 7 distinct" in done.output


def test_headerless_and_encoded_text_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    for encoding, options in (("latin-1", {"encoding": "latin-1"}), ("utf-16", {})):
        path.write_bytes("1|größe, 'n'|2,5\r\n0|'a|b'|1\r\n".encode(encoding))
        given_ = {"format": "csv", "sep": "|", "quote": "'", "header": False, "label": "1"}
        rows = features_of(path, tmp_path, **given_, **options)
        assert rows == [{"2=größe, 'n'": 1, "3": 2.5}, {"2=a|b": 1, "3": 1}]
    path.write_bytes(b"\xff1,2\n")
    with pytest.raises(DataError, match=r"not ascii .* another"):
        sbm.split(path, format="csv", encoding="ascii", header=False, label="1")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_kinds_are_inferred_from_several_files(ending: str, tmp_path: Path) -> None:
    for k in range(120):
        folder = tmp_path / f"day={k % 9}"
        folder.mkdir(exist_ok=True)
        x = None if k < 3 else k / 2
        table = pa.table({"u": [f"u{k}"], "x": [x], "n": [k if k else "1e1"], "label": [k % 2]})
        write = pq.write_table if ending == "parquet" else pyarrow.csv.write_csv
        write(table, folder / f"{k:03d}.{ending}")
    found = sbm.columns(f"{tmp_path}/day=*/*")["columns"]
    kinds = {one["name"]: one["kind"] for one in found}
    assert kinds == {
        "label": "label", "u": "id", "x": "number", "n": "number", "day": "number"
    }  # fmt: skip


def test_partitions_are_columns(tmp_path: Path) -> None:
    for day, region in itertools.product(("2026-11-01", "2026-11-02"), ("a b", None)):
        folder = tmp_path / f"day={day}" / f"region={region or '__HIVE_DEFAULT_PARTITION__'}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"x": [1.0], "label": [int(day[-1])]}), folder / "p.parquet")
    rows = features_of(f"{tmp_path}/day=*", tmp_path)
    words = [{key for key in row if "=" in key and "." not in key} for row in rows]
    assert words == [{"region=(missing)"}, {"region=a b"}] * 2
    assert rows[0]["day"] != rows[2]["day"]


def test_columns_are_chosen_by_patterns_lists_and_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x1,x2,z,w,y\n1,2,3,4,1\n5,6,7,8,0\n")
    sbm.columns(tmp_path / "a.csv", tmp_path / "a.toml", column=["x*=category", "z,w=ignored"])
    text = (tmp_path / "a.toml").read_text()
    assert '"x2" = "category"  # whole numbers 2 to 6, 2 distinct; chosen: category' in text
    rows = features_of(tmp_path / "a.csv", tmp_path, columns=tmp_path / "a.toml")
    assert rows == [{"x1=1": 1, "x2=2": 1}, {"x1=5": 1, "x2=6": 1}]
    rows = features_of(
        tmp_path / "a.csv", tmp_path, columns=tmp_path / "a.toml", column={"z": "number"}
    )
    assert rows[0] == {"x1=1": 1, "x2=2": 1, "z": 3}
    (tmp_path / "b.toml").write_text("x = [")
    for options, facts in (
        ({"columns": tmp_path / "b.toml"}, "not valid TOML"), ({"column": ["x1"]}, "NAME=KIND"),
        ({"column": ["x1=nmber"]}, "did you mean 'number'"), ({"column": ["q*=id"]}, "'q\\*'"),
        ({"sep": ";;"}, "one ASCII character"), ({"encoding": "x"}, "unknown"),
    ):  # fmt: skip
        with pytest.raises((SettingsError, DataError), match=facts):
            sbm.split(tmp_path / "a.csv", tmp_path / "a.sbm", **options)


def test_ambiguous_names_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,a=b,y\nb,1,1\nc,2,0\n")
    with pytest.raises(DataError, match=r"columns a and a=b; .*Rename or exclude one"):
        sbm.split(tmp_path / "a.csv", tmp_path / "a.sbm")
    assert features_of(tmp_path / "a.csv", tmp_path, exclude=["a"]) == [{"a=b": 1}, {"a=b": 2}]


@given(
    st.lists(st.lists(st.binary(min_size=1, max_size=5), max_size=9), max_size=9),
    st.lists(st.binary(min_size=1, max_size=5)),
)
def test_words_are_a_dictionary(parts: list[list[bytes]], more: list[bytes]) -> None:
    table, known = WordTable(), dict[bytes, int]()
    for part in parts:
        codes = [known.setdefault(word, len(known)) for word in part]
        assert table.add(part).tolist() == codes
    ids = 1 + np.arange(len(known))
    names = table.of(ids)
    assert [name.encode("utf-8", "replace") for name in names] == [
        word.decode("utf-8", "replace").encode() for word in known
    ]
    again = WordTable(Names.of(known), 5 * ids)
    for word in [*known, *more]:
        code = again.code_of(word)
        expected_id = 5 * (1 + known[word]) if word in known else None
        assert (int(again.ids[code]) if code >= 0 else None) == expected_id
    assert again.free_id == 1 + 5 * len(known)


def test_features_do_not_depend_on_batches(tmp_path: Path) -> None:
    table = people()
    data = [
        csv_of(table, tmp_path / "a.csv", ","),
        table,
        parquet_of(table, tmp_path / "a.parquet"),
    ]
    stores = []
    for size, threads in ((1 << 19, 1), (50, 3)):
        with pytest.MonkeyPatch.context() as context:
            patch(context, "tables._CELLS", size)
            patch(context, "delimited.PIECE", 100 * size)
            for one in data:
                sbm.split(one, tmp_path / "a.sbm", force=True, threads=threads)
                files = sorted((tmp_path / "a.sbm").glob("*.sb*"))
                stores.append([path.read_bytes() for path in files])
    assert all(store == stores[0] for store in stores)


def test_without_pyarrow_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text("a,y\n1,1\n")
    (tmp_path / "a.svm").write_text("1 1:1\n")
    (tmp_path / "a.vw").write_text("1 | a\n")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"reading .*a\.csv needs pyarrow.*pip install pyarrow"):
        sbm.split(tmp_path / "a.csv")
    for name in ("a.svm", "a.vw"):
        sbm.split(tmp_path / name, tmp_path / "a.sbm", force=True)


@pytest.mark.process
@pytest.mark.slow
def test_text_of_many_cells_keeps_the_bound(tmp_path: Path) -> None:
    with open(tmp_path / "a.csv", "w") as file:
        file.write(",".join(["y", *(f"c{k}" for k in range(2000))]) + "\n")
        for k in range(1500):
            file.write(f"{k % 2}" + ",a" * 2000 + "\n")
    code = (
        "import sbm, sys; from sbm.engine.machine import peak_bytes;"
        "sbm.split(sys.argv[1], sys.argv[1] + '.sbm', mem='250MB', threads=2);"
        "print(peak_bytes())"
    )
    line = [sys.executable, "-c", code, str(tmp_path / "a.csv")]
    done = subprocess.run(line, capture_output=True, check=True)
    assert int(done.stdout) < 250_000_000


def test_columns_are_shown_and_unknown_words_counted(tmp_path: Path) -> None:
    sbm.train(pa.table({"a": ["x", "y"], "b": ["u", "v"], "y": [0, 1]}), tmp_path / "a.model")
    (tmp_path / "a.csv").write_text("a,b\nx,new\nz,v\nq,u\n")
    report = sbm.predict(tmp_path / "a.model", tmp_path / "a.csv")
    assert report["unknown_words"] == {"a": 2, "b": 1}
    shown = CliRunner().invoke(cli, ["info", f"{tmp_path}/a.model"]).stdout
    assert "columns a (category), b (category)\n" in shown
    done = CliRunner().invoke(cli, ["predict", f"{tmp_path}/a.model", f"{tmp_path}/a.csv"])
    assert "words that are not in the training data: a 2, b 1" in done.output


def test_columns_of_a_pipe_are_shown(tmp_path: Path) -> None:
    text = "a,y\n" + "".join(f"{k % 5},{k % 2}\n" for k in range(50))
    line = ["split", "-", "-o", f"{tmp_path}/a.sbm", "--format", "csv"]
    done = CliRunner().invoke(cli, line, input=text)
    assert done.output.count("a  number    whole numbers 0 to 4, 5 distinct") == 1


def test_table_without_features_and_bytes_that_are_no_text_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"y,b\n1,2\n0,3\n")
    assert features_of(tmp_path / "a.csv", tmp_path, exclude=["b"]) == [{}, {}]
    (tmp_path / "a.csv").write_bytes(b"y,a,b\n1,\x80,1\n0,2\xb1,2\n1,3,\xff\n0,4,1\n0,4,2\n1,1,1\n")
    rows = features_of(tmp_path / "a.csv", tmp_path)
    assert rows[0] == {"a=�": 1, "b": 1}
    assert rows[2] == {"a=3": 1, "b=(missing)": 1}


@pytest.mark.process
def test_commands_read_tables_without_pandas(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    table = people()
    csv_of(table, tmp_path / "a.csv", ",")
    parquet_of(table, tmp_path / "a.parquet")
    code = (
        "import sys; from sbm.cli.commands import cli\n"
        "cli(sys.argv[1:], standalone_mode=False)\n"
        "print('pandas' in sys.modules)\n"
        "import pyarrow as pa; print(pa.scalar(3).as_py(), pa.array(['x']).to_numpy(False)[0])\n"
    )
    predict = ["predict", "a.model", "a.csv", "-o", "p.parquet", "--id", "zip"]
    split, train = ["split", "a.csv", "-o", "a.sbm"], ["train", "a.parquet", "-o", "a.model"]
    for arguments in (split, train, predict):
        done = finished([sys.executable, "-c", code, *arguments, "-q"], cwd=tmp_path, check=True)
        assert done.stdout.splitlines()[-2:] == ["False", "3 x"], arguments


def test_written_kinds_keep_their_numbers(tmp_path):
    table, toml = tmp_path / "a.csv", tmp_path / "a.toml"
    table.write_text("p,y\n" + "".join(f"{k},{k % 2}\n" for k in range(40)))
    sbm.columns(table, toml, column=["p=bins:3"])
    for name, more in (("a", {"column": ["p=bins:3"]}), ("b", {"columns": toml})):
        sbm.split(table, tmp_path / f"{name}.sbm", **more)
        sbm.cat(tmp_path / f"{name}.sbm", tmp_path / f"{name}.svm")
    text = (tmp_path / "a.svm").read_text()
    assert (tmp_path / "b.svm").read_text() == text
    assert len({line.split()[1] for line in text.splitlines()}) == 3


def test_dirt_is_shown_as_split_sees_it(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(", x,c, y,\n0,1,a,0,\n1,inf,b,1,\n2,1e39,a,0,\n3,2,b\n4,7,b,1,\n")
    found = sbm.columns(path)
    kinds = {one["name"]: one["kind"] for one in found["columns"]}
    assert kinds == {
        "y": "label", "(column 1)": "ignored", "x": "number", "c": "category",
        "(column 5)": "ignored",
    }  # fmt: skip
    (warning,) = found["warnings"]
    for fact in ("a.csv:3: found inf", "a.csv:4: found 1e39", "a.csv:5: found 3 cells"):
        assert fact in warning
    with pytest.raises(DataError, match=r"no column 'z' for label"):
        sbm.columns(path, label="z")
    with pytest.raises(SettingsError, match=r"c\.json .* \.toml"):
        sbm.columns(path, tmp_path / "c.json")
    with pytest.raises(DataError, match=r":3: found inf .*:4: found 1e39 .*:5: found 3 cells"):
        sbm.split(path, tmp_path / "a.sbm")
