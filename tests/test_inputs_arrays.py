"""Files of scipy.sparse and Parquet files in all their variants."""

import hashlib
import io
import itertools
import sys
import zipfile
from collections.abc import Callable, Generator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from helpers import store_rows
from hypothesis import given
from hypothesis import strategies as st
from inside import (
    INPUT_FORMATS,
    Batch,
    Progress,
    Source,
    patch,
    predict,
    read_manifest,
    read_rows,
    split,
    train,
)
from slow_parser import Row

from sbm.errors import DataError, MemoryPlanError

READ_PARQUET = INPUT_FORMATS["parquet"].read
Plain = tuple[float, list[tuple[int, float]]]
NONZEROS = st.lists(
    st.tuples(st.integers(0, 40), st.sampled_from([1.0, 0.25, -3.0, 0.0])),
    max_size=7, unique_by=lambda pair: pair[0],
)  # fmt: skip
ROWS = st.lists(st.tuples(st.sampled_from([1.0, -1.0, 0.5]), NONZEROS), min_size=1, max_size=25)
IN_TURN: dict[str, Any] = {"blocks": 1, "shuffle": False, "threads": 2, "force": True}
TWO_ROWS: list[Plain] = [(1.0, [(1, 2.0)]), (2.0, [(2, 2.0)])]


def rows_in(path: Path, piece: int = 1000, **options: Any) -> list[Row]:
    """Split a file in pieces of a given size, and read the rows of the store."""
    with pytest.MonkeyPatch.context() as context:
        patch(context, "matrices.PIECE", 16 * piece)
        split(path, path.parent / "a.sbm", **{**IN_TURN, **options})
    return [row for block in store_rows(path.parent / "a.sbm") for row in block]


def expected(rows: list[Plain]) -> list[Row]:
    return [(label, tuple(sorted(features))) for label, features in rows]


# ------------------------------------------------------------------------------------------ npz


def save_inside(path: Path, rows: list[Plain], name: str = "y", **more: Any) -> Path:
    """Write a .npz file that contains its labels."""
    nonzeros = [pair for _, features in rows for pair in features]
    arrays = {
        "data": np.array([v for _, v in nonzeros], float),
        "indices": np.array([i for i, _ in nonzeros], np.int32),
        "indptr": np.cumsum([0, *(len(f) for _, f in rows)]),
        name: np.array([label for label, _ in rows]), **more,
    }  # fmt: skip
    np.savez(path, **{key: array for key, array in arrays.items() if array is not None})
    return path


def save_beside(path: Path, rows: list[Plain], name: str = "y") -> Path:
    """Write a .npz file with scipy, and its labels to a separate file."""
    save_inside(path, rows)
    with np.load(path) as a:
        sp.save_npz(path, sp.csr_matrix((a["data"], a["indices"], a["indptr"]), (len(rows), 41)))
    np.save(path.with_suffix(f".{name}.npy"), np.array([label for label, _ in rows]))
    return path


SAVE = st.sampled_from([save_inside, save_beside])


@given(ROWS, st.sampled_from([1, 6, 1000]), SAVE, st.sampled_from(["y", "labels"]))
def test_npz_file_gives_its_rows_and_digest(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Plain], piece: int,
    save: Callable[..., Path], name: str,
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("npz")
    path = save(folder / "part.1.npz", rows, name)
    assert rows_in(path, piece) == expected(rows)
    [source] = read_manifest(folder / "a.sbm")["generations"][0]["sources"]
    files = [path, folder / f"part.1.{name}.npy"]
    data = b"".join(p.read_bytes() for p in files if p.exists())
    assert source == {
        "name": "part.1.npz", "bytes": path.stat().st_size, "rows": len(rows), "skipped": 0,
        "sha256": hashlib.sha256(data).hexdigest(), "format": "npz",
    }  # fmt: skip


def test_other_types_and_byte_orders_are_read(tmp_path: Path) -> None:
    np.savez_compressed(
        tmp_path / "a.npz", data=np.array([2, 3], ">i2"), indices=np.array([5, 1], ">u8"),
        indptr=np.array([0, 2], np.uint16), labels=np.array([True]),
    )  # fmt: skip
    assert rows_in(tmp_path / "a.npz") == [(1.0, ((1, 3.0), (5, 2.0)))]


@pytest.mark.parametrize("format_", ["csr", b"csr", np.array("csr", ">U3"), np.array(["csr"])])
def test_format_of_a_matrix_may_be_a_string(tmp_path: Path, format_: Any) -> None:
    path = save_inside(tmp_path / "a.npz", TWO_ROWS, format=np.asarray(format_))
    assert rows_in(path) == expected(TWO_ROWS)
    save_inside(path, TWO_ROWS, format=np.array("coo"))
    with pytest.raises(DataError, match=r"a\.npz holds a matrix in coo format"):
        rows_in(path)


LABELS: list[tuple[Any, list[str]]] = [
    (["no", "yes", "no"], ["no", "yes"]), (np.array(["2", "11", "2"], ">U2"), ["11", "2"]),
    ([["no"], ["yes"], ["no"]], ["no", "yes"]), ([[3], [4], [3]], []),
    (np.asfortranarray([[3.0], [4], [3]]), []), ([["a b"], ["é"], ["a b"]], ["a b", "é"]),
]  # fmt: skip


@pytest.mark.parametrize(("y", "names"), LABELS)
@pytest.mark.parametrize("inside", [True, False])
def test_labels_of_npz_are_words_or_a_column(
    tmp_path: Path, y: Any, names: list[str], inside: bool
) -> None:
    rows: list[Plain] = [(0.0, [(1, 2.0)]), (0.0, [(2, 2.0)]), (0.0, [(1, 2.0)])]
    path = save_inside(tmp_path / "a.npz", rows, y=np.array(y) if inside else None)
    if not inside:
        np.save(tmp_path / "a.y.npy", np.array(y))
    read = [label for label, _ in rows_in(path, piece=1)]
    labels = read_manifest(tmp_path / "a.sbm")["labels"]
    assert labels.get("names", []) == names
    words = {k: str(word) for k, word in enumerate(names)} or {3.0: 3, 4.0: 4}
    assert [words[label] for label in read] == np.array(y).ravel().tolist()


@pytest.mark.parametrize(
    ("y", "facts"),
    [
        (np.ones((2, 3)), r"y has shape \(2, 3\).*multi-label"), (np.ones(()), r"shape \(\)"),
        (np.array(["a", 1], object), "y has dtype object.*astype"),
        (np.array([b"a", b"b"]), "y has dtype .S1"), (np.array([1j, 2]), "y has dtype complex128"),
    ],
)  # fmt: skip
def test_other_labels_of_npz_are_named(tmp_path: Path, y: Any, facts: str) -> None:
    path = save_inside(tmp_path / "a.npz", TWO_ROWS, y=y)
    with pytest.raises(DataError, match=rf"a\.npz.*{facts}") as caught:
        rows_in(path)
    assert "damaged" not in str(caught.value)


def npy(array: npt.NDArray[Any], **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


NO_CHARACTERS = np.array([0x110000, 0x61], "<u4").view("<U1")
HOSTILE: list[tuple[str, Any, str]] = [
    ("y", NO_CHARACTERS, "beyond Unicode"),
    ("y", NO_CHARACTERS.astype(">U1"), "beyond Unicode"),
    ("indptr", np.array([0, 2, 1]), "row 1: indptr goes from 0 to 2"),
    ("indptr", np.array([0, -1, 2]), "row 1: indptr goes from 0 to -1"),
    ("indptr", np.array([0, 2**63 - 1, -(2**63) + 5]), "row 1: indptr"),
    ("indptr", np.array([0, 2**63, 2], np.uint64), "row 1: indptr"),
    ("indptr", npy(np.zeros(0, np.int64)).replace(b"(0,), }", b"(-5,),}"), r"\(-5,\)"),
    ("indptr", np.array([0, 1, 9]), "indices is too short"),
    ("indptr", np.array([0, 1, 1]), "indptr ends .* 1 nonzeros"),
    ("indptr", np.array([1, 1, 2]), "indptr, indices and data"),
    ("data", np.ones(3), "indptr, indices and data"),
    ("data", np.ones((2, 1)), r"data .*float64 .*\(2, 1\)"),
    ("data", npy(np.array([1, "x"], object), allow_pickle=True), "data .*object"),
    ("data", npy(np.ones(2))[:-1], "data is truncated"),
    ("data", npy(np.ones(2)) + b"x", "data is longer"),
    ("y", None, r"no labels.*a\.y\.npy"),
    ("indptr", None, "no array indptr"),
    ("indices", b"lzma", "unknown compression"),
    ("data", npy(np.ones(2)).replace(b"False", b"F(lse"), "damaged"),
    ("data", npy(np.ones(2)).replace(b"'<f8'", b"'(,)'"), "header of data is invalid"),
    ("format", npy(np.array("csr")).replace(b"(), }", b"(), ("), "header of format is invalid"),
    ("y", np.ones(3), "3 labels, but 2 rows"),
    ("format", np.array(b"csc"), "csc format"),
    ("indices", np.array([1, -2]), "row 2: .*id that is negative"),
    ("data", np.array([np.nan, 1]), "row 1: found nan .*feature 1.*finite"),
    ("data", np.array([1, 1e39]), "row 2: found 1e.39 .*feature 2, too large"),
    ("y", np.array([1, np.inf]), "row 2: found inf as the label"),
    ("y", np.array([1, 0x110000], "<u4").view("<U1"), "damaged"),
    ("y", np.array([1, 0xD800], "<u4").view("<U1"), "not valid Unicode"),
    ("format", np.array([2**32 - 1], "<u4").view("<U1"), "damaged"),
]


@pytest.mark.parametrize(("name", "content", "facts"), HOSTILE)
def test_hostile_npz_file_is_rejected(tmp_path: Path, name: str, content: Any, facts: str) -> None:
    is_raw = isinstance(content, bytes)
    path = save_inside(tmp_path / "a.npz", TWO_ROWS, **{name: None if is_raw else content})
    if is_raw:
        with zipfile.ZipFile(path, "a") as archive:
            kind = zipfile.ZIP_LZMA if content == b"lzma" else None
            archive.writestr(f"{name}.npy", content, kind)
    with pytest.raises(DataError, match=rf"a\.npz.*{facts}"):
        rows_in(path)
    assert not (tmp_path / "a.sbm").exists()


def test_invalid_npz_rows_can_be_skipped(tmp_path: Path) -> None:
    path = save_inside(tmp_path / "a.npz", [(1.0, [(1, np.nan)]), (np.nan, []), (2.0, [(2, 2.0)])])
    report = split(path, tmp_path / "b.sbm", on_error="skip")
    assert rows_in(path, on_error="skip") == [(2.0, ((2, 2.0),))]
    assert (report["rows"], report["skipped"], len(report["problems"])) == (1, 2, 2)


# ------------------------------------------------------------------------- rules of any reader

THREE = {
    "labels": np.ones(3), "indptr": np.array([0, 1, 1, 2]), "ids": np.array([4, 5]),
    "values": np.ones(2),
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "facts"),
    [
        ({"indptr": np.array([0, 1, 2])}, r"row 4: indptr .*\(3,\).* 4 integers"),
        ({"indptr": np.array([0.0, 1.0, 1.0, 2.0])}, "row 4: indptr .*float64"),
        ({"indptr": np.array([1, 1, 1, 2])}, "row 4: indptr begins with 1"),
        ({"indptr": np.array([0, 2, 1, 2])}, "row 5: indptr goes from 2 to 1"),
        ({"indptr": np.array([0, 1, 1, 9])}, "row 6: indptr goes from 1 to 9.* 2 nonzeros"),
        ({"indptr": np.array([0, 1, 2**63, 2], np.uint64)}, "row 5: indptr"),
        ({"indptr": np.array([0, 2**63 - 1, -(2**63) + 5, 2])}, "row 4: indptr"),
        ({"ids": np.array([4])}, "row 6: indptr"), ({"values": np.ones(1)}, "row 6: indptr"),
        ({"ids": np.array([4, 5, 6])}, ": found 3 ids and 2 values"),
        ({"values": np.ones(3)}, ": found 2 ids and 3 values"),
        ({"ids": np.array([[4], [5]])}, r": .*\(2, 1\)"), ({"ids": np.ones(2)}, ": .*float64"),
        ({"values": np.array(["x", "y"])}, ": .*<U1"), ({"weights": np.ones(2)}, r": .*\(2,\)"),
        ({"labels": np.ones((3, 1))}, r": .*\(3, 1\)"),
        ({"names": (np.array([4, 5]), [b"x"])}, ": .* 1 names of 2 ids"),
    ],
)  # fmt: skip
def test_batches_of_any_reader_are_checked(changed: dict[str, Any], facts: str) -> None:
    def read(source: Source, dtype: str, largest_row: int) -> Generator[Batch]:
        yield Batch(**THREE)
        yield Batch(**{**THREE, **changed})

    pieces = read_rows(read, Source("a"))
    assert len(next(pieces).parsed.labels) == 3
    with pytest.raises(DataError, match=f"^a.*{facts}"):
        next(pieces)


# -------------------------------------------------------------------------------------- Parquet


def write(path: Path, rows: list[Plain], ids: Any = None, values: Any = None, n: int = 7) -> Path:
    table: dict[str, Any] = {
        "note": ["x"] * len(rows),
        "label": [label for label, _ in rows],
        "indices": pa.array([[i for i, _ in f] for _, f in rows], ids or pa.list_(pa.int32())),
    }
    if values is not False:
        kind = values or pa.list_(pa.float32())
        as_kind = np.float16 if kind.value_type == pa.float16() else lambda value: value
        table["values"] = pa.array([[as_kind(v) for _, v in f] for _, f in rows], kind)
    pq.write_table(pa.table(table), path, row_group_size=n)
    return path


@given(ROWS, st.sampled_from([1, 6, 1000]), st.integers(1, 30))
def test_parquet_rows_are_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Plain], piece: int, group: int
) -> None:
    path = write(tmp_path_factory.mktemp("parquet") / "a.parquet", rows, n=group)
    assert rows_in(path, piece) == expected(rows)


@pytest.mark.parametrize(
    ("ids", "values"),
    [
        (pa.list_(pa.int64()), pa.list_(pa.float64())),
        (pa.large_list(pa.uint16()), pa.large_list(pa.int8())),
        (pa.list_(pa.int32(), 2), pa.list_(pa.float16(), 2)),
        (pa.list_(pa.int32()), False),
    ],
    ids=str,
)
def test_parquet_with_other_types_is_read(tmp_path: Path, ids: Any, values: Any) -> None:
    rows: list[Plain] = [(1.0, [(5, 2.0), (3, -1.0)]), (2.0, [(4, 1.0), (1, 1.0)])]
    ones = [(y, [(i, 1.0) for i, _ in f]) for y, f in rows]
    found = rows_in(write(tmp_path / "a.pq", rows, ids, values))
    assert found == expected(ones if values is False else rows)
    assert (read_manifest(tmp_path / "a.sbm")["value_type"] == "ones") == (values is False)


def test_label_column_can_be_named_or_a_dictionary(tmp_path: Path) -> None:
    target = pa.array([3, 3, 5], pa.int16()).dictionary_encode()
    table = pa.table({"target": target, "indices": [[1], [], [2, 2]], "values": [[1], [], [1, 4]]})
    pq.write_table(table, tmp_path / "a.parquet")
    rows = rows_in(tmp_path / "a.parquet", label="target")
    assert rows == [(3.0, ((1, 1.0),)), (3.0, ()), (5.0, ((2, 5.0),))]


REFUSED_TABLES: list[tuple[dict[str, Any] | None, str]] = [
    ({"label": [1, None, 2]}, "row 2: found a null as the label"),
    ({"indices": [[1], None, [3]], "values": [[1], [], [1]]}, "row 2: .*null .*list of indices"),
    ({"indices": [[1], [2, None], [3]], "values": [[1], [1, 1], [1]]}, "row 2: .*null in the ind"),
    ({"values": [[1], [None], [1]]}, "row 2: .*null in the values"),
    ({"indices": [[1], [2, 3], [3]]}, "row 2: found 2 indices but 1 values"),
    ({"values": [[1.0], [np.nan], [1.0]]}, "row 2: found nan .*feature 2"),
    ({"label": [[1], [2], [3]]}, "column label .*list"),
    (None, "damaged or not a parquet"),
]


@pytest.mark.parametrize(("columns", "facts"), REFUSED_TABLES)
def test_invalid_parquet_is_rejected_or_row_skipped(
    tmp_path: Path, columns: dict[str, Any] | None, facts: str
) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"1 1:1\n" * 10)
    if columns:
        usual = {"label": [1, 2, 2], "indices": [[1], [2], [3]], "values": [[1], [1], [1]]}
        table = {name: column for name, column in {**usual, **columns}.items() if column}
        pq.write_table(pa.table(table), path)
    with pytest.raises(DataError, match=rf"a\.parquet.*{facts}"):
        rows_in(path)
    if "row 2" in facts:
        assert rows_in(path, on_error="skip") == [(1.0, ((1, 1.0),)), (2.0, ((3, 1.0),))]


@pytest.mark.parametrize("kind", [pa.list_, pa.large_list])
@pytest.mark.parametrize("part", [slice(0, 4), slice(1, 4)])
@pytest.mark.parametrize("null", [*itertools.product([None, 1, 3], repeat=3)])
def test_null_lists_may_cover_values(
    kind: Any, part: slice, null: tuple[int | None, ...], tmp_path: Path
) -> None:
    """A row is refused if its list of indices or of values is null, or holds a null."""

    def lists(numbers: pa.Array, null_row: int | None) -> pa.Array:
        ends = np.arange(0, 9, 2, "int32" if kind is pa.list_ else "int64")
        valid = np.packbits([row != null_row for row in range(4)], bitorder="little")
        buffers = [pa.py_buffer(valid.tobytes()), pa.py_buffer(ends.tobytes())]
        return pa.Array.from_buffers(kind(numbers.type), 4, buffers, children=[numbers])

    no_ids, no_values, no_number = null
    numbers = [None if k // 2 == no_number else 1.0 for k in range(8)]
    columns = {
        "label": pa.array([0.0, 1.0, 2.0, 3.0]),
        "indices": lists(pa.array([1, 2] * 4), no_ids),
        "values": lists(pa.array(numbers, pa.float64()), no_values),
    }
    batch = pa.record_batch(columns)[part]
    store = tmp_path / "a.sbm"
    split(pa.Table.from_batches([batch]), store, on_error="skip", new_labels=True)
    refused = set(null)
    kept = [row for row in range(part.start, part.stop) if row not in refused]
    assert sorted(label for block in store_rows(store) for label, _ in block) == kept


def test_missing_pyarrow_is_reported_and_memory_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.parquet", TWO_ROWS)
    with pytest.raises(MemoryPlanError, match="--mem 120 MB") as caught:
        rows_in(path, mem="120MB")
    assert rows_in(path, mem=caught.value.least_bytes) == expected(TWO_ROWS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"a\.parquet .*pyarrow"):
        rows_in(path)


def test_longest_row_of_parquet_is_bounded(tmp_path: Path) -> None:
    rows: list[Plain] = [(1.0, [(i, 2.0) for i in range(k)]) for k in (3, 4, 5)]
    path = write(tmp_path / "a.parquet", rows)
    with pytest.MonkeyPatch.context() as context:
        patch(context, "matrices.PIECE", 16)  # one row per piece
        pieces = list(read_rows(READ_PARQUET, Source(str(path), format="parquet"), largest_row=5))
        assert len(pieces) == 3
        with pytest.raises(DataError, match=r"a\.parquet.* 5 nonzeros.*--mem"):
            list(read_rows(READ_PARQUET, Source(str(path), format="parquet"), largest_row=4))
    assert (
        len(list(read_rows(READ_PARQUET, Source(str(path), format="parquet"), largest_row=5))) == 1
    )


# -------------------------------------------------------------------------------------- labels


def write_labels(folder: Path, kind: str, labels: list[int]) -> Any:
    """Write a row for each label; return the input of `split`."""
    path, n = folder / f"a.{kind.split('-')[0]}", len(labels)
    if kind in ("svm", "vw"):
        bar = "|" if kind == "vw" else ""
        path.write_text("".join(f"{y} {bar} {k + 1}:1\n" for k, y in enumerate(labels)))
    elif kind in ("csv", "tsv"):
        cells = [["a", "label"], *[[str(k), str(y)] for k, y in enumerate(labels)]]
        path.write_text("".join((",\t"[kind == "tsv"]).join(row) + "\n" for row in cells))
    elif kind == "npz":
        save_inside(path, [(y, [(k, 2.0)]) for k, y in enumerate(labels)])
    elif "arrays" in kind:
        y = np.array(
            labels, {"arrays": np.int64, "objects-arrays": object}.get(kind, np.longdouble)
        )
        return (np.eye(n), y)
    else:
        _, type_, *lists = kind.split("-")
        decimals = [None if y is None else Decimal(y) for y in labels]
        column = pa.array(decimals).cast(pa.decimal128(25, 3)) if type_ == "decimal" else labels
        if type_ == "dictionary":
            column = pa.array(labels).dictionary_encode()
        features = {"indices": [[k] for k in range(n)]} if lists else {"a": list(range(n))}
        table = pa.table({"label": column, **features})
        if "frame" in kind:
            return table
        (pq.write_table if "parquet" in kind else pa.feather.write_feather)(table, path)
    return path


KINDS = [
    "svm", "vw", "csv", "tsv", "npz", "arrays", "objects-arrays", "long-arrays", "parquet-int",
    "parquet-decimal", "parquet-int-lists", "parquet-decimal-lists", "feather-int", "frame-int",
    "frame-dictionary",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_labels_that_float64_rounds_are_refused(tmp_path: Path, kind: str) -> None:
    exact = [2**53, 2**53 + 2, -(2**60), 1]
    store = tmp_path / "s.sbm"
    report = split(write_labels(tmp_path, kind, exact), store, **IN_TURN)
    assert sorted(report["labels"]["values"]) == sorted(exact)
    data = write_labels(tmp_path, kind, [2**53, 2**53 + 1, 1])
    place = {"npz": "row 2", "arrays": "row 1", "frame": "row 2", "svm": ":2", "sv": ":3"}
    where = next((place[k] for k in place if k in kind), "2")
    with pytest.raises(DataError, match=rf"{where}: found the label '9007199254740993[0.]*'"):
        split(data, store, **IN_TURN)
    report = split(data, store, on_error="skip", **IN_TURN)
    assert (report["rows"], report["skipped"]) == (2, 1)


@pytest.mark.parametrize(
    ("y", "found"),
    [([np.nan, "a"], "0: found nan"), (["a", None], "1: found None"), ([1, "a"], "1: found 'a'"),
     (("a", True), "1: found True"), (np.array([1, None], object), "1: found None")],
)  # fmt: skip
def test_mixed_labels_are_no_words(tmp_path: Path, y: Any, found: str) -> None:
    with pytest.raises(DataError, match=f"chunk 0, row {found} as the label"):
        split((np.eye(2), y), tmp_path / "a.sbm")


@pytest.mark.parametrize("kind", KINDS)
def test_targets_may_be_rounded(tmp_path: Path, kind: str) -> None:
    data = write_labels(tmp_path, kind, [2**53, 2**53 + 1, 1])
    settings = {"loss": "epsilon_insensitive", "max_passes": 1}
    model, report = train(data, tmp_path / "a.model", settings)
    assert report["read"]["rows"] == 3
    if isinstance(data, Path):
        assert predict(model, data)["rows"] == 3


def test_rounded_values_are_noted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = [1577836800123 + 60_000 * k for k in range(3)]
    said: list[str] = []
    progress = Progress()
    progress.stage = said.append  # type: ignore[method-assign]
    table = pa.table({"label": [0, 1, 0], "one": [1, 1, 1], "time": times})
    text = tmp_path / "a.svm"
    text.write_text("".join(f"1 1:0.1 7:{t}\n" for t in times))
    for data, facts in ((table, "row 1: feature time has"), (text, "a.svm:1: feature 7 has")):
        said.clear()
        split(data, tmp_path / "a.sbm", force=True, progress=progress)
        said[:] = [line for line in said if "float64" in line]
        assert len(said) == 1
        assert facts in said[0]
        split(data, tmp_path / "a.sbm", force=True, dtype="float64", progress=progress)
        assert sum("float64" in line for line in said) == 1
