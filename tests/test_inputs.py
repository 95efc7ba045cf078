"""Input formats: tables and Vowpal Wabbit text, hashed names, mixed formats and errors."""

import csv
import gzip
import io
import json
import math
import random
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from helpers import as_rows, features_of, fit, store_rows
from hypothesis import given
from hypothesis import strategies as st
from inside import (
    INPUT_FORMATS,
    InputOptions,
    Model,
    NameTable,
    Naming,
    Room,
    Source,
    cli,
    default_store,
    format_of,
    hash_names,
    names_of,
    parse_vw,
    patch,
    read_manifest,
    split,
)
from inside import PARSING_SPARE as SPARE
from inside import VW_REASONS as REASONS
from slow_parser import Row

import sbm
from sbm.errors import DataError, SbmError, SettingsError

IN_TURN: dict[str, Any] = {"blocks": 1, "shuffle": False, "threads": 2, "force": True}


def in_order(folder: Path) -> list[Row]:
    return [row for block in store_rows(folder) for row in block]


def rows_in(path: Path, content: str | bytes, /, **options: Any) -> list[Row]:
    """Write a file, split it, and read the rows of the store."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    split(path, path.parent / "rows.sbm", **{**IN_TURN, **options})
    return in_order(path.parent / "rows.sbm")


def identity(name: str, bits: int = 22) -> int:
    return int(hash_names([name.encode("utf-8", "surrogateescape")], bits)[0])


# ---------------------------------------------------------------------------- names and options


@pytest.mark.parametrize(
    ("name", "kind", "store"),
    [
        ("a.svm", "libsvm", "a"), ("a.dat", "libsvm", "a.dat"), ("-", "libsvm", "-"),
        ("a.csv.zst", "csv", "a"), ("A.CSV", "csv", "A.CSV"), ("a.tsv", "tsv", "a"),
        ("x/a.vw.gz", "vw", "a"), ("a.npz", "npz", "a"), ("a.pq", "parquet", "a"),
    ],
)  # fmt: skip
def test_file_name_determines_format(name: str, kind: str, store: str) -> None:
    assert format_of(name).name == kind
    assert default_store(name) == Path(f"{store}.sbm")


def test_several_formats_make_one_store(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("1 5:2\n")
    (tmp_path / "b.vw").write_text("2 | 5:3\n")
    (tmp_path / "c.csv").write_text("y,5\n3,4\n")
    np.savez(tmp_path / "d.npz", data=[5.0], indices=[5], indptr=[0, 1], y=[4])
    names = [tmp_path / f"{name}" for name in ("a.svm", "b.vw", "d.npz", "a.svm")]
    split(names, tmp_path / "a.sbm", **IN_TURN)
    expected = [(1, ((5, 2),)), (2, ((5, 3),)), (4, ((5, 5),)), (1, ((5, 2),))]
    assert in_order(tmp_path / "a.sbm") == expected
    with pytest.raises(DataError, match=r"c\.csv is a table .*a\.svm cannot be added"):
        split([names[0], tmp_path / "c.csv"], tmp_path / "b.sbm")
    with pytest.raises(DataError, match=r"c\.csv is a table, but .* features of no table"):
        split(tmp_path / "c.csv", tmp_path / "a.sbm", append=True)
    split(tmp_path / "c.csv", tmp_path / "c.sbm")
    with pytest.raises(DataError, match=r"a\.svm is not a table, but .* features of a table"):
        split(tmp_path / "a.svm", tmp_path / "c.sbm", append=True)


@pytest.mark.parametrize(
    ("name", "options", "facts"),
    [
        ("a.npz.gz", {}, "a.npz.gz .*compressed"),
        ("a.svm", {"format": "cvs"}, "'cvs'.*libsvm, vw, csv.*'csv'"),
        ("a.txt", {}, r"a\.txt:1: found 'y,b'"),
        ("-", {"format": "npz"}, "standard input: .*npz .*pipe"),
        ("-", {"format": "parquet"}, "standard input: .*parquet .*pipe"),
        ("a.vw", {"hash_bits": 0}, "hash_bits is 0"),
        ("a.vw", {"hash_bits": 33}, "hash_bits is 33"),
    ],
)
def test_unreadable_input_is_refused(
    name: str, options: dict[str, Any], facts: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text("y,b\n1,2\n")
    with pytest.raises(SbmError, match=facts):
        split("-" if name == "-" else tmp_path / name, tmp_path / "a.sbm", **options)


def test_format_of_pipe_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"y\t7\n1\t2\n")))
    split("-", tmp_path / "a.sbm", format="tsv", **IN_TURN)
    assert in_order(tmp_path / "a.sbm") == [(1, ((1, 2),))]
    (tmp_path / "a.csv").write_text("c,zip,w\n1,5,x\n0,5,7\n")
    line = f"split {tmp_path}/a.csv -o {tmp_path}/b.sbm --format csv --label c"
    columns = ["--categorical", "zip", "--categorical", "w"]
    done = CliRunner().invoke(cli, [*line.split(), *columns, "--json"])
    report = json.loads(done.stdout)
    assert (report["rows"], report["features"], report["value_type"]) == (2, 3, "ones")


def test_rare_words_are_one_feature(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y,w,n\n1,a,\n0,b,\n1,a,\n0,c,5\n")
    found = features_of(tmp_path / "a.csv", tmp_path, min_count=2)
    assert [{*row} for row in found] == [
        {"w=a", "n=(missing)"}, {"w=(rare)", "n=(missing)"}, {"w=a", "n=(missing)"}, {"w=(rare)"}
    ]  # fmt: skip
    model, _ = sbm.train(tmp_path / "turn.sbm", tmp_path / "a.model")
    scores = model.decision_function(pa.table({"w": ["new", "b", "a"], "n": ["1", "1", "1"]}))
    assert scores[0] == scores[1] != scores[2]


def test_bits_are_kept_with_the_store(tmp_path: Path) -> None:
    path, store = tmp_path / "a.vw", tmp_path / "a.sbm"
    path.write_text("1 | zip=94110\n")
    split(path, store, hash_bits=10, **IN_TURN)
    path.write_text("0 | zip=94111\n")
    split(path, store, append=True)
    assert in_order(store) == [
        (1.0, ((identity("zip=94110", 10), 1.0),)), (0.0, ((identity("zip=94111", 10), 1.0),))
    ]  # fmt: skip
    records = [g["options"]["names"] for g in read_manifest(store)["generations"]]
    assert records == [{"hash_bits": 10}] * 2
    with pytest.raises(SettingsError, match=r"hash_bits is 11.*a\.sbm.* 10 bits"):
        split(path, store, append=True, hash_bits=11)


def test_columns_are_kept_with_the_store(tmp_path: Path) -> None:
    path, store = tmp_path / "a.csv", tmp_path / "a.sbm"
    path.write_text("class,zip\n1,94110\n")
    split(path, store, label="class", categorical=["zip"], **IN_TURN)
    path.write_text("zip,class\n94111,0\n")
    split(path, store, append=True)
    assert in_order(store) == [(1.0, ((1, 1.0),)), (0.0, ((2, 1.0),))]
    records = [g["options"]["names"] for g in read_manifest(store)["generations"]]
    zips = {"name": "zip", "kind": "category", "content": "numbers"}
    assert records == [{"label": "class", "columns": [zips]}] * 2
    for option in ({"column": ["zip=number"]}, {"column": {"z*": "flag"}}):
        with pytest.raises(SettingsError, match=r"zip .* but .*a\.sbm has it as category"):
            split(path, store, append=True, **option)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.vw.gz"])
def test_rows_do_not_depend_on_threads_or_pieces(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    r = random.Random(4)
    rows = [(k % 2, r.choice(["", "1", "2.5"]), f"w{r.randrange(500)}") for k in range(3000)]
    if ".vw" in name:
        text = "".join(f"{y} | n:{n or 0} {word}\n" for y, n, word in rows)
    else:
        text = "".join(f"{y},{n},{word}\n" for y, n, word in [("y", "n", "w"), *rows])
    data = (text.replace(",", "\t") if "tsv" in name else text).encode()
    data = gzip.compress(data) if name.endswith(".gz") else data
    whole = rows_in(tmp_path / name, data, threads=1)
    patch(monkeypatch, "tables._CELLS", 100)
    patch(monkeypatch, "text.PIECE", 1000)
    patch(monkeypatch, "delimited.PIECE", 1000)
    assert rows_in(tmp_path / name, data, threads=3) == whole
    assert len(whole) == 3000


# ------------------------------------------------------------------------------------ prediction


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, its store and a model."""
    folder = tmp_path_factory.mktemp("trained")
    rows = [
        (k % 3 != 0, f"{k % 3},{k % 5},{'low' if k % 2 else 'high'},9{k % 2}") for k in range(90)
    ]
    lines = [f"{int(y)},{cells}\n" for y, cells in rows]
    (folder / "a.csv").write_text("class,n,m,word,zip\n" + "".join(lines))
    store = folder / "a.sbm"
    split(folder / "a.csv", store, label="class", categorical=["zip"])
    model, _, _ = fit(store, "a.model", C=10.0)
    kinds = {column["name"]: column["kind"] for column in model.info["names"]["columns"]}
    assert kinds == {"n": "number", "m": "number", "word": "category", "zip": "category"}
    return folder


def test_model_reads_columns_like_its_store(trained: Path) -> None:
    model = trained / "a.model"
    of_store = sbm.predict(model, trained / "a.sbm")
    of_table = sbm.predict(model, trained / "a.csv")
    for key in ("rows", "accuracy", "auc", "confusion", "unknown_nonzeros"):
        assert of_table[key] == of_store[key]
    assert of_table["unknown_nonzeros"] == 0
    (trained / "new").write_text("zip,class,word,m,n\n91,1,new,0.5,2\n")
    report = sbm.predict(model, trained / "new", trained / "out", format="csv", decision=True)
    assert (report["rows"], report["unknown_nonzeros"]) == (1, 1)
    loaded = Model.load(model)
    weights = dict(zip(loaded.names or (), loaded.W[:, 0], strict=True))
    score = weights["zip=91"] + 0.5 * weights["m"] + 2 * weights["n"]
    assert float((trained / "out").read_text()) == pytest.approx(score)
    (trained / "new.vw").write_text("1 | zip=91 word=new m:0.5 n:2\n")
    with pytest.raises(DataError, match="was trained on a table"):
        sbm.predict(model, trained / "new.vw")
    (trained / "new.svm").write_text("1 1:1\n")
    assert "columns" in sbm.predict(model, trained / "new.svm")["warnings"][0]


def test_other_columns_are_reported(trained: Path) -> None:
    for header, missing, unknown in (
        ("zip,class,word,m,n", "", ""), ("n,word,zip,class", "missing 'm'", ""),
        ("n,M,Zip,word,class", "missing 'm', 'zip'", "unknown 'M', 'Zip'"),
        ("n,m,word,zip", "", ""), ("n,m,word,zip,label", "", "unknown 'label'"),
    ):  # fmt: skip
        (trained / "c.csv").write_text(f"{header}\n" + ",".join("1" for _ in header.split(",")))
        warnings = "".join(sbm.predict(trained / "a.model", trained / "c.csv")["warnings"])
        facts = "; ".join(filter(None, (missing, unknown)))
        assert facts in warnings if facts else "differ" not in warnings


def test_new_columns_of_appended_tables_are_left_out(tmp_path: Path) -> None:
    for header in ("y,a,b", "b,c,y"):
        (tmp_path / "t.csv").write_text(f"{header}\n1,2,3\n0,1,2\n")
        is_more = header != "y,a,b"
        split(tmp_path / "t.csv", tmp_path / "t.sbm", append=is_more, new_labels=is_more)
    record = names_of(read_manifest(tmp_path / "t.sbm"))
    assert record is not None
    assert [column["name"] for column in record["columns"]] == ["a", "b"]


def test_names_need_a_model_with_names(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("y,b\n1,2\n")
    model = Model(np.array([1]), np.array([[1.0]]), [0.0, 1.0])
    with pytest.raises(DataError, match=r"a\.csv has .*names.* ids"):
        sbm.predict(model, path)
    assert InputOptions().following(Naming({"hash_bits": 9}), "a").hash_bits == 9
    column = {"name": "a", "kind": "number"}
    bad = [
        {"hash_bits": 0},
        {"hash_bits": 33},
        {"hash_bits": True},
        {"columns": 1},
        {"columns": [1]},
        {"columns": [column, column]},
        {"columns": [{**column, "size": -1}]},
        {"columns": [{**column, "kind": "x"}]},
        {"columns": [{**column, "name": 1}]},
        {"columns": [column], "label": 1},
        {"columns": [], "dialect": {"quote": ""}},
    ]
    for wrong in bad:
        with pytest.raises(SettingsError, match="in a are invalid"):
            InputOptions().following(Naming(wrong), "a")


# ----------------------------------------------------------------------------------------- tables


def slow_table(table: list[list[str]]) -> list[tuple[float, dict[str, float]]]:
    """The rows of a table with a column y and words, cell by cell."""
    header, *records = table
    rows = []
    for record in records:
        cells = dict(zip(header, record, strict=True))
        label = float(cells.pop("y"))
        is_blank = {name: not cell.strip(" \t\n\r\f\v") for name, cell in cells.items()}
        names = [f"{n}={'(missing)' if is_blank[n] else cell}" for n, cell in cells.items()]
        rows.append((label, dict.fromkeys(names, 1.0)))
    return rows


WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=6)
CELLS = st.one_of(
    st.sampled_from(["", " ", "0", "1", "-2.5", " 3 ", "1e3", ".5", "5.", "a=b", "\t"]),
    st.sampled_from(["1_0", "nan", "inf", "e", "1e", "2024-01-31", "\u0663", "7"]),
    WORDS,
)


@st.composite
def tables(draw: st.DrawFn) -> list[list[str]]:
    header = draw(st.lists(WORDS.filter(bool), unique=True, max_size=4))
    header = [name for name in header if name not in ("label", "y", "target") and "=" not in name]
    header = list(dict.fromkeys(filter(None, (name.strip(" ") for name in header))))
    header.insert(draw(st.integers(0, len(header))), "y")
    n = draw(st.integers(1, 12))
    first = ["1" if name == "y" else "w0" for name in header]  # so that columns hold words
    rows = (["1" if name == "y" else draw(CELLS) for name in header] for _ in range(n))
    return [header, first, *rows]


@given(
    tables(), st.sampled_from(["csv", "tsv", "csv.gz"]), st.sampled_from(["\n", "\r\n"]),
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]), st.integers(1, 30), st.booleans(),
)  # fmt: skip
def test_tables_of_csv_module_round_trip(
    tmp_path_factory: pytest.TempPathFactory, table: list[list[str]], ending: str, end: str,
    quoting: int, cells: int, in_pieces: bool,
) -> None:  # fmt: skip
    file = io.StringIO()
    delimiter = "\t" if ending == "tsv" else ","
    writer = csv.writer(file, delimiter=delimiter, lineterminator=end, quoting=quoting)
    writer.writerows(table)
    data = file.getvalue().encode("utf-8", "surrogateescape")
    with pytest.MonkeyPatch.context() as context:
        patch(context, "tables._CELLS", cells)
        if in_pieces:
            patch(context, "delimited.PIECE", 8)
        path = tmp_path_factory.mktemp("tables") / f"a.{ending}"
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        text = [name for name in table[0] if name != "y"]
        ours = features_of(path, path.parent, label="y", column=dict.fromkeys(text, "category"))
    assert ours == [row for _, row in slow_table(table)]


def assert_close(ours: list[Row], theirs: list[Row], tolerance: float = 1e-12) -> None:
    """Assert that rows are equal up to rounding."""
    for (y, features), (label, expected) in zip(ours, theirs, strict=True):
        assert (y, [i for i, _ in features]) == (label, [i for i, _ in expected])
        for (_, a), (_, b) in zip(features, expected, strict=True):
            assert math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)


@pytest.mark.parametrize(
    ("header", "label", "column"),
    [("a,label", None, 1), ("y,a", None, 0), ("a,target", None, 1), ("y,z", "z", 1)],
)
def test_label_column_is_found_by_name(
    header: str, label: str | None, column: int, tmp_path: Path
) -> None:
    values = [3.0, 5.0]
    expected = [(values[column], ((1, values[1 - column]),))]
    assert rows_in(tmp_path / "a.csv", f"{header}\n3,5\n", label=label) == expected


REFUSED_TABLES = [
    ("y,label\n1,2\n", {}, ":1: found columns 'label' and 'y'.*--label"),
    ("a,b\n1,2\n", {}, ":1: found no column 'label' or 'y' or 'target' among 'a', 'b'"),
    ("y,b\n1,2\n", {"label": "z"}, ":1: found no column 'z' for --label among"),
    (
        "y,b\n1,2\n",
        {"categorical": ["z"]},
        ":1: found no column 'z' for --categorical among 'y', 'b'",
    ),
    ("y,b,b\n1,2,3\n", {}, ":1: found column b twice"),
    ("y,b\r1,2\r0,3\r", {}, ":1: found lines that end with a carriage return"),
    ('y,b\n1,2\n0,"3\n1,4\n', {}, ":3: .* quote .* never closed"),
    ('y,b\n1,2\n0,"3" 4\n', {}, ":3: found text behind a closing quote"),
    ("y,b\n1,2,3\n0,1,2\n", {}, ":2: found 3 cells.*; .*:3: the same"),
    ("y,b\n1,2\n0,1e39\n", {}, ":3: found 1e39 in column b.* --dtype float64"),
    ("y,b\n1,2\n\n1,2,3\n", {}, ":4: found 3 cells.* 2"),
    ("y,b\n1,2\n1\n", {}, ":3: found 1 cells.* 2"),
    ("y,b\n1,2\nx,2\n", {}, ":3: found 'x' .*label"),
    ("y,b\n1,2\n,2\n", {}, ":3: found '' .*label"),
    ("y,b\n1,2\n%s,2\n" % ("x" * 41), {}, ":3: found 'x+\\.\\.\\.x+' "),
    ("y,b\nnan,2\n", {}, ":2: found 'nan' .*finite"),
    ("y,b\n1e999,2\n", {}, ":2: found '1e999' .*finite"),
    ("y,b\n1,1e39\n", {}, r":2: found 1e39 in column b, too large"),
    ('y,b\n1,"a\nb"\n1,"a" b\n', {}, ":4: .*quotes"),
    ('y,b\n1,"a\n1,2\n', {}, ":2: .*quotes"),
    ("", {}, "no rows"),
    ("y,b\n", {}, "no rows"),
    (gzip.compress(b"y,b\n1,2\n", mtime=0), {}, "found gzip data"),
]


@pytest.mark.parametrize(("text", "options", "facts"), REFUSED_TABLES)
def test_invalid_table_is_reported_with_line(
    text: str | bytes, options: dict[str, Any], facts: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=facts):
        rows_in(tmp_path / "a.csv", text, **options)
    assert not (tmp_path / "rows.sbm").exists()


def test_invalid_table_rows_can_be_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y,b\n1,2\nx,2\n1\n-1,1e99\n-1,4\n")
    report = split(tmp_path / "a.csv", tmp_path / "a.sbm", on_error="skip", **IN_TURN)
    assert in_order(tmp_path / "a.sbm") == [(1.0, ((1, 2.0),)), (-1.0, ((1, 4.0),))]
    assert [p.split(": ")[0].rsplit(":", 1)[1] for p in report["problems"]] == ["3", "4", "5"]


def test_rows_longer_than_a_piece_are_read(tmp_path: Path, monkeypatch: Any) -> None:
    patch(monkeypatch, "delimited.PIECE", 64)
    text, cells = tmp_path / "a.csv", ["u", "w" * 300, "u"]
    text.write_text("y,b\n" + "".join(f'{k},"{cell}"\n' for k, cell in enumerate(cells)))
    report = split(text, tmp_path / "a.sbm", column={"b": "category"}, **IN_TURN)
    assert (report["rows"], report["features"]) == (3, 2)


@pytest.mark.parametrize(("cells", "facts"), [(11, ":1: .* 11 col"), (90, "longer .*--mem")])
def test_rows_larger_than_memory_are_rejected(cells: int, facts: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y" + "".join(f",{k}" for k in range(1, cells)))
    source = Source(str(tmp_path / "a.csv"), format="csv", options=InputOptions())
    read = INPUT_FORMATS["csv"].read
    assert read is not None
    with pytest.MonkeyPatch.context() as context:
        patch(context, "delimited.PIECE", 64)
        with pytest.raises(DataError, match=facts):
            list(read(source, "float32", 10))


# -------------------------------------------------------------------------- Vowpal Wabbit's text


def parsed_vw(text: bytes, bits: int = 18, **options: Any) -> Any:
    buffer = np.zeros(len(text) + SPARE, np.uint8)
    buffer[: len(text)] = np.frombuffer(text, np.uint8)
    chosen = {"dtype": "float64", "skip": True, **options}
    return parse_vw(buffer, len(text), mask=(1 << bits) - 1, **chosen)


def vw_rows(text: bytes, bits: int = 18) -> list[Row]:
    p = parsed_vw(text, bits)
    assert not p.errors, [e.explain(REASONS) for e in p.errors]
    return as_rows(p.labels, p.indptr[:-1], np.diff(p.indptr), p.ids, p.values)


@pytest.fixture(scope="module")
def theirs() -> Any:
    """Return the label of a line, and its features summed by id, as in Vowpal Wabbit."""
    pyvw = pytest.importorskip("vowpalwabbit.pyvw")
    workspace = pyvw.Workspace("--quiet --noconstant -b 18")

    def read(line: str) -> Row:
        example = workspace.parse(line)
        features: dict[int, float] = defaultdict(float)
        for identity, value in example.iter_features():
            features[identity] += value
        label = example.get_simplelabel_label()
        workspace.finish_example(example)
        return label, tuple(sorted(features.items()))

    yield read
    workspace.finish()


# Values are sums of few powers of two: exact in the float32 that Vowpal Wabbit computes with.
NAMES = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\n\r\t\v\f \0|:"), min_size=1),
    st.integers(0, 2**40).map(str),
    st.sampled_from(["a", "b", "12", "colour=red", "#", "'", "\x01a\x01", "é"]),
)
VALUES = st.sampled_from(["", "", ":1", ":0.5", ":-2", ":.25", ":4.", ":+3", ":1e1", ":0"])


@st.composite
def vw_lines(draw: st.DrawFn) -> str:
    label = draw(st.sampled_from(["1", "-1", "0.5", "+3", "1 1", "-1 1.0 0", "left\t2"]))
    line = label + " " + draw(st.sampled_from(["", "'tag", "tag", "' "]))
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.one_of(st.just(""), NAMES))
        name += draw(st.sampled_from(["", "", ":2", ":0.5"])) if name else ""
        features = draw(st.lists(st.builds("{}{}".format, NAMES, VALUES), max_size=6))
        line += f"|{name} " + draw(st.sampled_from([" ", "\t", "  "])).join(features)
    return line + draw(st.sampled_from(["", " "]))


@given(line=vw_lines())
def test_vw_rows_match_vowpal_wabbit(line: str, theirs: Any) -> None:
    assert_close(vw_rows(line.encode() + b"\n"), [theirs(line)], 1e-6)


@given(st.from_regex(r"\A[0-9]{0,9}\Z"), st.lists(st.from_regex(r"\A[0-9]{1,12}\Z")), st.booleans())
def test_vw_names_of_digits_are_numbers(space: str, names: list[str], ends: bool) -> None:
    text = f"1 |{space} " + " ".join(f"{name}:2" if len(name) % 2 else name for name in names)
    [(_, features)] = vw_rows(text.encode() + b"\r\n" * ends)
    values: dict[int, float] = defaultdict(float)
    for name in names:
        values[(int(name) + int(space or 0)) % 2**18] += 1 + len(name) % 2
    assert features == tuple(sorted(values.items()))


@given(st.lists(st.lists(st.sampled_from(["a", "b", "7", "12345678"])), min_size=2, max_size=4))
def test_vw_arrays_are_used_again(texts: list[list[str]]) -> None:
    room, table = Room(200, "float32"), NameTable()
    for k, names in enumerate(texts):
        text = (f"1 {k} |x {' '.join(names)}\n" * (k % 2 + 1)).encode()
        mine, alone = (
            parsed_vw(text, names=table, dtype="float32", room=one, pairs=["xx"])
            for one in (room, None)
        )
        assert mine.weights is alone.weights is None or (mine.weights == alone.weights).all()
        for name in ("labels", "indptr", "ids"):
            assert (getattr(mine, name) == getattr(alone, name)).all()
        assert [*mine.names[0]] == [*alone.names[0]]
        assert [*mine.names[1]] == [*alone.names[1]]


REFUSED_LINES = [
    ("|f a", "no label .*bar"), ("1|f a", "no label .*bar"),
    ("x |f a", "'x' .*label"), ("1 1 0 7 |f a", "'7' .*label"), ("nan |f a", "'nan'.*finite"),
    ("1 -2.5 |f a", "importance '-2.5'.*at least 0"), ("1 1 0.5 |f a", "base '0.5'"),
    ("1 |f a:x", "'x' .*number"), ("1 |f a:", "'' .*number"), ("1 |f a:1:2", "'1:2' .*number"),
    ("1 |f a:inf", "'inf'.*finite"), ("1 |f:x a", "'x' .*number"),
    ("1 |f a:1e39", "'1e39', too large"), ("1 1:2 3:4", "'1' without a bar"),
    ("1 |f :1", "':1' .*name"), ("1 |:2 a", "':2' .*name"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "facts"), REFUSED_LINES)
def test_invalid_vw_line_is_reported_or_skipped(line: str, facts: str, tmp_path: Path) -> None:
    text = f"1 |f a:2\n\n{line}\n-1 |f b:0.5\n"
    with pytest.raises(DataError, match=rf"a\.vw:3: found .*{facts}"):
        rows_in(tmp_path / "a.vw", text)
    rows = rows_in(tmp_path / "a.vw", text, on_error="skip")
    assert [(y, [v for _, v in f]) for y, f in rows] == [(1.0, [2.0]), (-1.0, [0.5])]


@given(st.lists(st.binary(max_size=30), max_size=4), st.booleans())
def test_random_bytes_keep_vw_arrays_consistent(rows: list[bytes], skip: bool) -> None:
    text = b"".join(b"1 |f a:0.5 " + row + b"\n" for row in rows)
    p = parsed_vw(text, skip=skip)
    assert len(p.indptr) == len(p.labels) + 1
    assert p.indptr[-1] == len(p.ids)
    assert not len(p.ids) or (p.ids.min() >= 0 and p.ids.max() < 2**18)
    if skip:
        assert len(p.labels) + p.n_errors <= p.n_lines == text.count(b"\n")


def test_shortest_vw_names_fit() -> None:
    text = b"1 |f " + b" ".join(b"%c" % (97 + k % 26) for k in range(5000)) + b"\n"
    [(_, features)] = vw_rows(text)
    assert (len(features), sum(v for _, v in features)) == (26, 5000)


@pytest.mark.parametrize("name", ["a.svm", "a.svm.gz", "a.vw", "a.csv"])
def test_byte_order_mark_is_skipped(name: str, tmp_path: Path) -> None:
    text = {"a.vw": "1 | 1:1\n", "a.csv": "y,5\n1,1\n"}.get(name, "1 1:1\n").encode("utf-8-sig")
    assert rows_in(tmp_path / name, gzip.compress(text) if ".gz" in name else text) == [
        (1.0, ((1, 1.0),))
    ]


@pytest.mark.parametrize(("cells", "facts"), [("y;a;b", "--sep ';'"), ("y\ta", "--format tsv")])
def test_other_delimiters_are_reported(cells: str, facts: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"{cells}\n")
    with pytest.raises(DataError, match=facts):
        split(path, tmp_path / "a.sbm")
