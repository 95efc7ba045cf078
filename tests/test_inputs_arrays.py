"""Files of scipy.sparse and Parquet files in all their variants."""

import hashlib
import io
import sys
import zipfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse as sp
from helpers import store_rows
from hypothesis import given
from hypothesis import strategies as st
from slow_parser import Row

from sbm.errors import DataError, MemoryPlanError
from sbm.inputs.arrow import read_arrow
from sbm.inputs.columns import Cells
from sbm.inputs.matrices import Batch, read_rows
from sbm.inputs.text import Source
from sbm.programs.split import split
from sbm.store.blocks import read_manifest

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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sbm.inputs.matrices.PIECE", 16 * piece)
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


def npy(array: npt.NDArray[Any], **options: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


HOSTILE: list[tuple[str, Any, str]] = [
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
    ("y", np.ones(3), "3 labels, but 2 rows"),
    ("format", np.array(b"csc"), "csc format"),
    ("indices", np.array([1, -2]), "row 2: .*id that is negative"),
    ("data", np.array([np.nan, 1]), "row 1: found nan .*feature 1.*finite"),
    ("data", np.array([1, 1e39]), "row 2: found 1e.39 .*feature 2, too large"),
    ("y", np.array([1, np.inf]), "row 2: found inf as the label"),
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


def test_codes_outside_their_dictionary_are_refused() -> None:
    for codes in ([0, 2], [-2, 0]):
        with pytest.raises(DataError, match="2 words"):
            Cells(None, str, [b"x", b"y"], np.array(codes))


# -------------------------------------------------------------------------------------- Parquet


def write(path: Path, rows: list[Plain], ids: Any = None, values: Any = None, n: int = 7) -> Path:
    table: dict[str, Any] = {
        "note": ["x"] * len(rows),
        "label": [label for label, _ in rows],
        "indices": pa.array([[i for i, _ in f] for _, f in rows], ids or pa.list_(pa.int32())),
    }
    if values is not False:
        kind = values or pa.list_(pa.float32())
        table["values"] = pa.array([[v for _, v in f] for _, f in rows], kind)
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
    ({"indices": None}, "column values .*list.*--exclude values"),
    ({"label": [[1], [2], [3]]}, "column label .*list"),
    ({"indices": [1, 2, 3]}, "column values .*list"),
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


def test_missing_pyarrow_is_reported_and_memory_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.parquet", TWO_ROWS)
    with pytest.raises(MemoryPlanError, match="--mem 200 MB") as caught:
        rows_in(path, mem="200MB")
    assert rows_in(path, mem=caught.value.least_bytes) == expected(TWO_ROWS)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DataError, match=r"a\.parquet .*pyarrow"):
        rows_in(path)


def test_longest_row_of_parquet_is_bounded(tmp_path: Path) -> None:
    rows: list[Plain] = [(1.0, [(i, 2.0) for i in range(k)]) for k in (3, 4, 5)]
    path = write(tmp_path / "a.parquet", rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sbm.inputs.matrices.PIECE", 16)  # one row per piece
        pieces = list(read_rows(read_arrow, Source(str(path), format="parquet"), largest_row=5))
        assert len(pieces) == 3
        with pytest.raises(DataError, match=r"a\.parquet.* 5 nonzeros.*--mem"):
            list(read_rows(read_arrow, Source(str(path), format="parquet"), largest_row=4))
    assert len(list(read_rows(read_arrow, Source(str(path), format="parquet"), largest_row=5))) == 1
