"""Shards of scipy.sparse and Parquet files: the rows that the other tool wrote, however it did."""

import contextlib
import hashlib
import io
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from helpers import store_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_parser import Row

from sbm.errors import DataError, MemoryPlanError
from sbm.jobs.split import split
from sbm.store.blocks import read_manifest

Plain = tuple[float, list[tuple[int, float]]]
NONZEROS = st.lists(
    st.tuples(st.integers(0, 40), st.sampled_from([1.0, 0.25, -3.0, 0.0])),
    max_size=7, unique_by=lambda pair: pair[0],
)  # fmt: skip
ROWS = st.lists(st.tuples(st.sampled_from([1.0, -1.0, 0.5]), NONZEROS), min_size=1, max_size=25)
IN_TURN: dict[str, Any] = {"blocks": 1, "shuffle": False, "threads": 2, "force": True}


def in_order(folder: Path) -> list[Row]:
    return [row for block in store_rows(folder) for row in block]


def expected(rows: list[Plain]) -> list[Row]:
    return [(label, tuple(sorted(features))) for label, features in rows]


def parts(rows: list[Plain]) -> tuple[npt.NDArray[Any], ...]:
    """Arrays ``data``, ``indices``, ``indptr`` and ``y``."""
    nonzeros = [pair for _, features in rows for pair in features]
    return (
        np.array([v for _, v in nonzeros], float),
        np.array([i for i, _ in nonzeros], np.int32),
        np.cumsum([0, *(len(f) for _, f in rows)]),
        np.array([label for label, _ in rows]),
    )


def refusal(source: Path, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        split(source, source.parent / "a.sbm", threads=1, **options)
    assert not (source.parent / "a.sbm").exists()
    return str(caught.value).replace(f"{source.parent}/", "")


# ------------------------------------------------------------------------------------------ npz


def save_inside(path: Path, rows: list[Plain], name: str = "y") -> None:
    data, indices, indptr, y = parts(rows)
    labels = {name: y}
    np.savez(path, data=data, indices=indices, indptr=indptr, shape=(len(rows), 41), **labels)  # type: ignore[arg-type]


def save_beside(path: Path, rows: list[Plain], name: str = "y") -> None:
    data, indices, indptr, y = parts(rows)
    sp.save_npz(path, sp.csr_matrix((data, indices, indptr), (len(rows), 41)))
    np.save(path.with_suffix(f".{name}.npy"), y)


@settings(deadline=None, derandomize=True, max_examples=15)
@given(ROWS, st.sampled_from([1, 6, 1000]), st.booleans())
def test_shards_give_the_rows_of_the_matrix_however_they_are_cut(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Plain], most: int, inside: bool
) -> None:
    folder = tmp_path_factory.mktemp("npz")
    (save_inside if inside else save_beside)(folder / "a.npz", rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sbm.store.pieces.PIECE", 16 * most)
        report = split(folder / "a.npz", folder / "a.sbm", **IN_TURN)
    assert in_order(folder / "a.sbm") == expected(rows)
    [source] = read_manifest(folder / "a.sbm")["generations"][0]["sources"]
    files = [folder / "a.npz"] if inside else [folder / "a.npz", folder / "a.y.npy"]
    digest = hashlib.sha256(b"".join(p.read_bytes() for p in files)).hexdigest()
    assert source == {
        "name": "a.npz", "bytes": files[0].stat().st_size, "sha256": digest,
        "rows": len(rows), "skipped": 0,
    }  # fmt: skip
    assert report["skipped"] == 0


@pytest.mark.parametrize("save", [save_inside, save_beside])
@pytest.mark.parametrize("name", ["y", "labels"])
def test_labels_are_found_inside_a_shard_and_beside_it(
    tmp_path: Path, save: Callable[..., None], name: str
) -> None:
    save(tmp_path / "part.1.npz", [(2.0, [(1, 0.5)])], name)
    split(tmp_path / "part.1.npz", tmp_path / "a.sbm", **IN_TURN)
    assert in_order(tmp_path / "a.sbm") == [(2.0, ((1, 0.5),))]


def rewritten(path: Path, name: str, data: bytes | None) -> None:
    """Exchange a member of an archive, or take it out."""
    with zipfile.ZipFile(path) as archive:
        members = {n: archive.read(n) for n in archive.namelist()}
    members.pop(f"{name}.npy", None)
    if data is not None:
        members[f"{name}.npy"] = data
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)


def npy(array: npt.NDArray[Any], **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


PICKLED = npy(np.array([1, "x"], object), allow_pickle=True)
APART = "indptr, indices and data do not belong together"
HOSTILE = [
    ("indptr", npy(np.array([0, 2, 1])), "indptr decreases"),
    ("indptr", npy(np.array([0, 1, 9])), "indices has too few numbers"),
    ("indptr", npy(np.array([0, 1, 1])), "indptr ends in front of the last 1 nonzeros"),
    ("indptr", npy(np.array([1, 1, 2])), APART),
    ("data", npy(np.ones(3)), APART),
    ("data", npy(np.ones((2, 1))), "data is an array of float64 and shape (2, 1)"),
    ("data", PICKLED, "data is an array of object and shape (2,)"),
    ("data", npy(np.ones(2))[:-1], "data ends too early"),
    ("data", npy(np.ones(2)) + b"x", "data is longer than it says"),
]


@pytest.mark.parametrize(("name", "data", "reason"), HOSTILE)
def test_shards_that_contradict_themselves_are_refused(
    tmp_path: Path, name: str, data: bytes, reason: str
) -> None:
    save_inside(tmp_path / "a.npz", [(1.0, [(1, 2.0)]), (2.0, [(2, 2.0)])])
    rewritten(tmp_path / "a.npz", name, data)
    assert refusal(tmp_path / "a.npz") == (
        f"a.npz cannot be read ({reason}); it is damaged, or not what scipy.sparse and NumPy write"
    )


NO_SHARDS = [
    (
        "y", None,
        ("a.npz has no labels; add an array y to it, with numpy.savez, or write the file a.y.npy, "
        "with numpy.save"),
    ),
    (
        "indptr", None,
        ("a.npz has no array indptr; a shard has data, indices and indptr of a CSR matrix, as "
        "scipy.sparse.save_npz writes them"),
    ),
    ("y", npy(np.ones(3)), "a.npz has 3 labels, but 2 rows; give a label for each"),
    (
        "format", npy(np.array(b"csc")),
        ("a.npz holds a matrix of format csc; save it as CSR, with scipy.sparse.save_npz(path, "
        "X.tocsr())"),
    ),
    (
        "indices", npy(np.array([1, -2])),
        ("a.npz, row 2: found a feature id that is negative or larger than 9223372036854775807; "
        "ids are numbers between"),
    ),
    (
        "data", npy(np.array([np.nan, 1])),
        "a.npz, row 1: found nan as the value of feature 1, but only finite numbers are allowed",
    ),
    (
        "y", npy(np.array([1, np.inf])),
        "a.npz, row 2: found inf as the label, but only finite numbers are allowed",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "data", "sentence"), NO_SHARDS)
def test_archives_that_are_no_shards_are_refused(
    tmp_path: Path, name: str, data: bytes | None, sentence: str
) -> None:
    save_inside(tmp_path / "a.npz", [(1.0, [(1, 2.0)]), (2.0, [(2, 2.0)])])
    rewritten(tmp_path / "a.npz", name, data)
    assert refusal(tmp_path / "a.npz") == sentence


@pytest.mark.parametrize("place", range(0, 1200, 37))
def test_a_flipped_byte_of_a_shard_is_noticed_or_changes_nothing(
    tmp_path: Path, place: int
) -> None:
    rows: list[Plain] = [(1.0, [(1, 2.0)]), (2.0, [(2, 2.0)])]
    save_inside(tmp_path / "a.npz", rows)
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[place % len(data)] ^= 1
    (tmp_path / "a.npz").write_bytes(data)
    with contextlib.suppress(DataError):
        split(tmp_path / "a.npz", tmp_path / "a.sbm", **IN_TURN)
        assert in_order(tmp_path / "a.sbm") == expected(rows)


def test_shards_of_other_types_and_byte_orders_are_read(tmp_path: Path) -> None:
    np.savez_compressed(
        tmp_path / "a.npz", data=np.array([2, 3], ">i2"), indices=np.array([5, 1], ">u8"),
        indptr=np.array([0, 2], np.uint16), labels=np.array([True]),
    )  # fmt: skip
    split(tmp_path / "a.npz", tmp_path / "a.sbm", **IN_TURN)
    assert in_order(tmp_path / "a.sbm") == [(1.0, ((1, 3.0), (5, 2.0)))]


def test_wrong_rows_of_a_shard_may_be_left_out(tmp_path: Path) -> None:
    save_inside(tmp_path / "a.npz", [(1.0, [(1, np.nan)]), (np.nan, []), (2.0, [(2, 2.0)])])
    report = split(tmp_path / "a.npz", tmp_path / "a.sbm", on_error="skip", **IN_TURN)
    assert in_order(tmp_path / "a.sbm") == [(2.0, ((2, 2.0),))]
    assert (report["rows"], report["skipped"], len(report["problems"])) == (1, 2, 2)


def test_shards_are_appended_once_and_counted_twice(tmp_path: Path) -> None:
    for name, i in (("a", 1), ("b", 2)):
        save_beside(tmp_path / f"{name}.npz", [(1.0, [(i, 1.0), (9, 1.0)])])
    store = tmp_path / "all.sbm"
    split(tmp_path / "a.npz", store, **IN_TURN)
    split(tmp_path / "b.npz", store, append=True)
    with pytest.raises(DataError, match=r"b\.npz is already in .*, same SHA-256"):
        split(tmp_path / "b.npz", store, append=True)
    np.save(tmp_path / "b.y.npy", np.array([3.0]))  # other labels make other rows
    split(tmp_path / "b.npz", store, append=True)
    report = split(
        [tmp_path / "a.npz", tmp_path / "b.npz"], tmp_path / "frequent.sbm", min_count=2, **IN_TURN
    )
    assert report["left_out"] == {"features": 2, "nnz": 2}
    assert in_order(tmp_path / "frequent.sbm") == [(1.0, ((9, 1.0),)), (3.0, ((9, 1.0),))]


# -------------------------------------------------------------------------------------- Parquet


def write(path: Path, rows: list[Plain], ids: Any = None, values: Any = None, n: int = 7) -> None:
    table: dict[str, Any] = {
        "note": ["x"] * len(rows),
        "label": [label for label, _ in rows],
        "indices": pa.array([[i for i, _ in f] for _, f in rows], ids or pa.list_(pa.int32())),
    }
    if values is not False:
        table["values"] = pa.array(
            [[v for _, v in f] for _, f in rows], values or pa.list_(pa.float32())
        )
    pq.write_table(pa.table(table), path, row_group_size=n)


@settings(deadline=None, derandomize=True, max_examples=15)
@given(ROWS, st.sampled_from([1, 6, 1000]), st.integers(1, 30))
def test_tables_give_their_rows_however_they_are_cut(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Plain], most: int, group: int
) -> None:
    folder = tmp_path_factory.mktemp("parquet")
    write(folder / "a.parquet", rows, n=group)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sbm.store.pieces.PIECE", 16 * most)
        split(folder / "a.parquet", folder / "a.sbm", **IN_TURN)
    assert in_order(folder / "a.sbm") == expected(rows)


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
def test_tables_of_other_types_are_read(tmp_path: Path, ids: Any, values: Any) -> None:
    rows: list[Plain] = [(1.0, [(5, 2.0), (3, -1.0)]), (2.0, [(4, 1.0), (1, 1.0)])]
    write(tmp_path / "a.pq", rows, ids, values)
    report = split(tmp_path / "a.pq", tmp_path / "a.sbm", **IN_TURN)
    ones = [(y, [(i, 1.0) for i, _ in f]) for y, f in rows]
    assert in_order(tmp_path / "a.sbm") == expected(ones if values is False else rows)
    assert (report["value_type"] == "ones") == (values is False)


def test_a_column_of_labels_may_have_any_name_and_be_a_dictionary(tmp_path: Path) -> None:
    target = pa.array([3, 3, 5], pa.int16()).dictionary_encode()
    table = pa.table({"target": target, "indices": [[1], [], [2, 2]], "values": [[1], [], [1, 4]]})
    pq.write_table(table, tmp_path / "a.parquet")
    split(tmp_path / "a.parquet", tmp_path / "a.sbm", label="target", **IN_TURN)
    assert in_order(tmp_path / "a.sbm") == [(3.0, ((1, 1.0),)), (3.0, ()), (5.0, ((2, 5.0),))]


NULLS = {
    "label": ([1, None, 2], [[1], [2], [3]], [[1], [1], [1]], "found a null as the label"),
    "list": ([1, 2, 2], [[1], None, [3]], [[1], [], [1]], "found a null for the indices"),
    "id": ([1, 2, 2], [[1], [2, None], [3]], [[1], [1, 1], [1]], "found a null among the indices"),
    "value": ([1, 2, 2], [[1], [2], [3]], [[1], [None], [1]], "found a null among the values"),
    "length": ([1, 2, 2], [[1], [2, 3], [3]], [[1], [1], [1]], "found 2 indices, but 1 values"),
    "nan": (
        [1, 2, 2], [[1], [2], [3]], [[1.0], [np.nan], [1.0]],
        "found nan as the value of feature 2, but only finite numbers are allowed",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", NULLS)
def test_rows_with_nulls_are_refused_or_left_out(tmp_path: Path, what: str) -> None:
    labels, ids, values, sentence = NULLS[what]
    table = pa.table({"label": labels, "indices": ids, "values": values})
    pq.write_table(table, tmp_path / "a.parquet")
    assert refusal(tmp_path / "a.parquet") == f"a.parquet, row 2: {sentence}"
    report = split(tmp_path / "a.parquet", tmp_path / "a.sbm", on_error="skip", **IN_TURN)
    assert in_order(tmp_path / "a.sbm") == [(1.0, ((1, 1.0),)), (2.0, ((3, 1.0),))]
    assert report["problems"] == [f"{tmp_path}/a.parquet, row 2: {sentence}"]


def test_what_is_no_table_of_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"label": [1], "values": [[1]]}), path)
    assert refusal(path) == (
        "a.parquet has no column indices; it has label, values, and rows are a column label, or "
        "the one that --label names, and lists indices and values"
    )
    pq.write_table(pa.table({"label": ["x"], "indices": [[1]]}), path)
    assert refusal(path) == "a.parquet: column label holds string; numbers are expected"
    pq.write_table(pa.table({"label": [1], "indices": [1]}), path)
    assert refusal(path) == "a.parquet: column indices holds int64; lists of numbers are expected"
    path.write_bytes(b"1 1:1\n" * 10)
    assert refusal(path).startswith("a.parquet cannot be read (")
    assert refusal(path).endswith("); it is damaged or no Parquet file")


def test_without_pyarrow_a_sentence_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.parquet").touch()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert refusal(tmp_path / "a.parquet") == (
        "a.parquet is a Parquet file, which pyarrow reads; install it with pip install 'sbm[arrow]'"
    )


def test_memory_for_pyarrow_is_reserved(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [(1.0, [(1, 2.0)])])
    with pytest.raises(MemoryPlanError) as caught:
        split(tmp_path / "a.parquet", tmp_path / "a.sbm", mem="200MB")
    least = caught.value.least_bytes
    assert str(caught.value) == (
        f"--mem 200 MB is too little to split; the least that works is --mem {-(-least // 10**6)}MB"
    )
    split(tmp_path / "a.parquet", tmp_path / "a.sbm", mem=least)
