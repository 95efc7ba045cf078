"""Tables of text: what a cell means, wherever it stands, and what is refused."""

import csv
import gzip
import io
import math
import random
import re
from pathlib import Path
from typing import Any

import pytest
from helpers import store_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_parser import Row

from sbm.errors import DataError, SettingsError
from sbm.jobs.split import split
from sbm.store.vw import hash_names

IN_TURN: dict[str, Any] = {"blocks": 1, "shuffle": False, "threads": 2, "force": True}


def in_order(folder: Path) -> list[Row]:
    return [row for block in store_rows(folder) for row in block]


def identity(name: str, bits: int = 22) -> int:
    return int(hash_names([name.encode("utf-8", "surrogateescape")], bits)[0])


def slow(table: list[list[str]], text: tuple[str, ...] = ()) -> list[Row]:
    """The rows of a table with a column y, cell by cell; values as float64."""
    header, *records = table
    rows = []
    for record in records:
        features: dict[int, float] = {}
        for name, cell in zip(header, record, strict=True):
            if name == "y" or not cell.strip():
                continue
            number = None
            if name not in text and re.fullmatch(r"[-+.eE0-9\s]+", cell, re.ASCII):
                try:
                    number = float(cell)
                except ValueError:
                    number = None
            key = identity(name if number is not None else f"{name}={cell}")
            value = 1.0 if number is None else number
            if value:
                features[key] = features.get(key, 0.0) + value
        rows.append((float(record[header.index("y")]), tuple(sorted(features.items()))))
    return rows


def written(path: Path, table: list[list[str]], delimiter: str = ",", **options: Any) -> Path:
    file = io.StringIO()
    csv.writer(file, delimiter=delimiter, **options).writerows(table)
    data = file.getvalue().encode("utf-8", "surrogateescape")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


CELLS = st.one_of(
    st.sampled_from(["", " ", "0", "1", "-2.5", " 3 ", "1e3", ".5", "5.", "a=b", "\t"]),
    st.sampled_from(["1_0", "nan", "inf", "e", "1e", "2024-01-31", "\u0663"]),
    st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=6),
)  # fmt: skip


@st.composite
def tables(draw: st.DrawFn) -> list[list[str]]:
    names = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), min_size=1, max_size=4)
    header = draw(st.lists(names, unique=True, max_size=4))
    header = [name for name in header if name not in ("label", "y", "target")]
    header.insert(draw(st.integers(0, len(header))), "y")
    n = draw(st.integers(1, 12))
    return [header, *(
        ["1" if name == "y" else draw(CELLS) for name in header] for _ in range(n)
    )]  # fmt: skip


@settings(deadline=None, derandomize=True, max_examples=30)
@given(
    tables(), st.sampled_from(["csv", "tsv", "csv.gz"]), st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]), st.integers(1, 30), st.booleans(),
)  # fmt: skip
def test_any_table_that_the_library_writes_comes_back_however_it_is_cut(
    tmp_path_factory: pytest.TempPathFactory, table: list[list[str]], ending: str, end: str,
    quoting: int, cells: int, all_text: bool,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("tables")
    delimiter = "\t" if ending == "tsv" else ","
    path = written(
        folder / f"a.{ending}", table, delimiter, lineterminator=end, quoting=quoting
    )  # fmt: skip
    text = tuple(name for name in table[0] if name != "y") if all_text else ()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sbm.store.table._CELLS", cells)
        split(path, folder / "a.sbm", dtype="float64", text=text, **IN_TURN)
    ours = in_order(folder / "a.sbm")
    expected = slow(table, text)
    assert [(y, [i for i, _ in f]) for y, f in ours] == [
        (y, [i for i, _ in f]) for y, f in expected
    ]
    for (_, a), (_, b) in zip(ours, expected, strict=True):
        assert all(math.isclose(x, y, rel_tol=1e-12) for (_, x), (_, y) in zip(a, b, strict=True))


def test_a_table_is_the_text_of_vowpal_wabbit_that_says_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('age,colour,7,y\n33,"dark_red",2,1\n,blue,,-1\n0,5,x,1\n')
    (tmp_path / "a.vw").write_text(
        "1 | age:33 colour=dark_red 7:2\n-1 | colour=blue\n1 | colour:5 7=x\n"
    )
    split(tmp_path / "a.csv", tmp_path / "csv.sbm", **IN_TURN)
    split(tmp_path / "a.vw", tmp_path / "vw.sbm", **IN_TURN)
    assert in_order(tmp_path / "csv.sbm") == in_order(tmp_path / "vw.sbm")
    assert (7, 2.0) in in_order(tmp_path / "csv.sbm")[0][1], "a name of digits is a number"


def test_what_pandas_writes_is_read(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"y": [1, 0], "x": [0.1, None], "word": ['say "a, b"', "two\nlines"]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    split(tmp_path / "a.csv", tmp_path / "a.sbm", dtype="float64", **IN_TURN)
    assert in_order(tmp_path / "a.sbm") == [
        (1.0, tuple(sorted([(identity("x"), 0.1), (identity('word=say "a, b"'), 1.0)]))),
        (0.0, ((identity("word=two\nlines"), 1.0),)),
    ]
    frame.to_csv(tmp_path / "b.csv")
    with pytest.raises(DataError, match=r"b\.csv:1: found a column without a name; give it one"):
        split(tmp_path / "b.csv", tmp_path / "b.sbm")


@pytest.mark.parametrize(
    ("header", "label", "column"),
    [("a,label", None, 1), ("y,a", None, 0), ("a,target", None, 1), ("y,z", "z", 1)],
)
def test_labels_are_found_by_name(
    tmp_path: Path, header: str, label: str | None, column: int
) -> None:
    (tmp_path / "a.csv").write_text(f"{header}\n3,5\n")
    split(tmp_path / "a.csv", tmp_path / "a.sbm", label=label, **IN_TURN)
    other = header.split(",")[1 - column]
    values = [3.0, 5.0]
    assert in_order(tmp_path / "a.sbm") == [
        (values[column], ((identity(other), values[1 - column]),))
    ]


CHOOSE = "; name the one that holds the labels with --label"
QUOTES = "; quotes stand around a whole cell, and are doubled in it"
LARGE = "too large for the value type (float64 reaches 1.79e308, float32 3.4e38; see --dtype)"
NUMBERS = "as the label, but only finite numbers are allowed"
LONG = "y,b\n1,2\n1," + "a" * 140_000
REFUSED = [
    ("y,label\n1,2\n", {}, f":1: found label and y among the columns y, label{CHOOSE}"),
    ("a,b\n1,2\n", {}, f":1: found no label or y or target among the columns a, b{CHOOSE}"),
    ("y,b\n1,2\n", {"label": "z"}, f":1: found no z among the columns y, b{CHOOSE}"),
    ("y,b\n1,2\n", {"text": ["z"]}, ":1: found no column z among y, b, which --text names"),
    ("y,b,b\n1,2,3\n", {}, ":1: found column b twice; each needs its own name"),
    ("y,b\n1,2\n\n1,2,3\n", {}, ":4: found 3 cells, but the header has 2"),
    ("y,b\n1,2\n1\n", {}, ":3: found 1 cells, but the header has 2"),
    ("y,b\n1,2\nx,2\n", {}, ":3: found 'x' where a numeric label is expected"),
    ("y,b\n1,2\n,2\n", {}, ":3: found '' where a numeric label is expected"),
    ("y,b\nnan,2\n", {}, f":2: found 'nan' {NUMBERS}"),
    ("y,b\n1e999,2\n", {}, f":2: found '1e999' {NUMBERS}"),
    ("y,b\n1,1e39\n", {}, f":2: found 1e39 in column b, {LARGE}"),
    ('y,b\n1,"a\nb"\n1,"a" b\n', {}, f":4: ',' expected after '\"'{QUOTES}"),
    ('y,b\n1,"a\n1,2\n', {}, f":2: unexpected end of data{QUOTES}"),
    (LONG, {}, f":3: field larger than field limit (131072){QUOTES}"),
]


@pytest.mark.parametrize(("text", "options", "sentence"), REFUSED)
def test_what_is_no_table_is_refused_in_one_sentence(
    tmp_path: Path, text: str, options: dict[str, Any], sentence: str
) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        split(path, tmp_path / "a.sbm", **options)
    assert str(caught.value) == f"{path}{sentence}"
    assert not (tmp_path / "a.sbm").exists()


def test_wrong_rows_may_be_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y,b\n1,2\nx,2\n1\n-1,1e99\n-1,4\n")
    report = split(tmp_path / "a.csv", tmp_path / "a.sbm", on_error="skip", **IN_TURN)
    b = identity("b")
    assert in_order(tmp_path / "a.sbm") == [(1.0, ((b, 2.0),)), (-1.0, ((b, 4.0),))]
    assert [p.split(": ")[0].rsplit(":", 1)[1] for p in report["problems"]] == ["3", "4", "5"]


def test_damaged_and_disguised_tables_are_refused(tmp_path: Path) -> None:
    data = gzip.compress(b"y,b\n" + b"1,2\n" * 1000)
    for name, content, message in (
        ("a.csv.gz", data[:-20], "the file is damaged or not what its name says"),
        ("b.csv", data, "found gzip data; decompress it on its way"),
        ("c.csv", b"", "found no label or y or target"),
        ("d.csv", b"y,b\n", "the input holds no rows"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=message):
            split(tmp_path / name, tmp_path / "a.sbm")


def test_a_line_that_memory_has_no_room_for_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y,b\n1," + ",".join(["2"] * 9_000_000))
    with pytest.raises(DataError, match=r"found a line longer than [0-9]+ characters, more than"):
        split(tmp_path / "a.csv", tmp_path / "a.sbm", mem="200MB")


def test_threads_and_pieces_change_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    r = random.Random(4)
    table = [["y", "n", "w"]] + [
        [str(k % 2), r.choice(["", "1", "2.5"]), f"w{r.randrange(500)}"] for k in range(3000)
    ]
    path = written(tmp_path / "a.csv", table)
    split(path, tmp_path / "whole", blocks=4, threads=1)
    monkeypatch.setattr("sbm.store.table._CELLS", 100)
    split(path, tmp_path / "a", blocks=4, threads=3)
    for file in (tmp_path / "whole").glob("*.sb?"):
        assert file.read_bytes() == (tmp_path / "a" / file.name).read_bytes()


def test_columns_of_text_are_kept_with_the_store(tmp_path: Path) -> None:
    path, store = tmp_path / "a.csv", tmp_path / "a.sbm"
    path.write_text("class,zip\n1,94110\n")
    split(path, store, label="class", text=["zip"], **IN_TURN)
    path.write_text("zip,class\n94111,0\n")
    split(path, store, append=True)
    assert in_order(store) == [
        (1.0, ((identity("zip=94110"), 1.0),)), (0.0, ((identity("zip=94111"), 1.0),))
    ]  # fmt: skip
    with pytest.raises(SettingsError) as caught:
        split(path, store, append=True, text=["class"])
    assert str(caught.value) == f"the text columns of {store} are zip; leave out --text"
