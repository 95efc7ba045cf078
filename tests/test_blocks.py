"""Block files and the manifest: rows back as they were dealt, and no belief in damaged files."""

import json
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Row, as_rows, store_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from sbm.errors import StoreError
from sbm.rows import Rows
from sbm.store import arrays as container
from sbm.store import blocks as block_module
from sbm.store.blocks import (
    CHUNK_NNZ,
    CHUNK_ROWS,
    BlockStore,
    BlockWriter,
    read_manifest,
    write_manifest,
)

IDS = np.array([5, 2**63 - 1, 0, 77, 3, 4, 6, 8], np.int64)


def random_rows(
    seed: int, n: int, value_type: str = "float32", n_labels: int | None = 3, longest: int = 6
) -> Rows:
    r = np.random.default_rng(seed)
    rows = [sorted(r.choice(len(IDS), r.integers(0, longest + 1), replace=False)) for _ in range(n)]
    lengths = np.array([len(row) for row in rows], np.int32)
    starts = np.concatenate([[0], np.cumsum(lengths)])[:-1].astype(np.int64)
    indices = np.array([i for row in rows for i in row], np.int32)
    values = None if value_type == "ones" else r.integers(-4, 5, len(indices)).astype(value_type)
    y = r.standard_normal(n) if n_labels is None else r.integers(0, n_labels, n).astype(np.int32)
    return Rows(starts, lengths, indices, values, y)


def write_store(
    folder: Path,
    batches: list[tuple[Rows, list[np.ndarray]]],
    value_type: str = "float32",
    labels: list[float] | None = None,
    class_values: list[float] | None = None,
) -> Path:
    """Write a store the way split does, from rows and what goes to which block.

    As those of before it does not note which files are its own, so that tests may forge them.
    """
    folder.mkdir()
    with ThreadPoolExecutor(2) as pool:
        writer = BlockWriter(folder, 0, len(batches[0][1]), 1, pool)
        for rows, deal in batches:
            writer.add(rows, deal)
        blocks, index = writer.finish()
    container.write(folder / "features-0000.sba", "features", {"ids": IDS})
    container.write(folder / "index-0000.sba", "index", {"chunks": index[:, :5]})
    for entry in blocks:
        del entry["crc32"]
    manifest = {
        "format": block_module.FORMAT,
        "version": block_module.VERSION,
        "rows": sum(b["rows"] for b in blocks),
        "features": len(IDS),
        "nnz": sum(b["nnz"] for b in blocks),
        "value_type": value_type,
        "dtype": "float32",
        "labels": None if labels is None else {"values": labels, "counts": [0] * len(labels)},
        "class_values": class_values,
        "blocks": blocks,
        "generations": [{
            "features": "features-0000.sba", "index": "index-0000.sba", "sources": [],
            "rows": sum(b["rows"] for b in blocks), "blocks": [b["file"] for b in blocks],
            "options": {}, "added": "2026-01-01T00:00:00+00:00",
        }],
    }  # fmt: skip
    write_manifest(folder, manifest)
    return folder


def plain(rows: Rows, chosen: np.ndarray, labels: list[float] | None) -> list[Row]:
    y = rows.y if labels is None else np.array(labels)[rows.y]
    return as_rows(y[chosen], rows.starts[chosen], rows.lengths[chosen], IDS[rows.indices],
                   rows.values)  # fmt: skip


def small_store(tmp_path: Path) -> Path:
    rows = random_rows(1, 30)
    deal = [np.arange(0, 30, 2), np.arange(1, 30, 2)]
    return write_store(tmp_path / "x.sbm", [(rows, deal)], labels=[-1.0, 1.0, 2.5])


# ------------------------------------------------------------------------------------- round trip


@pytest.mark.parametrize("value_type", ["ones", "float32", "float64"])
def test_rows_come_back_block_by_block_in_the_order_dealt(tmp_path: Path, value_type: str) -> None:
    labels = [-1.0, 1.0, 2.5]
    batches = []
    r = np.random.default_rng(3)
    for seed in range(3):
        rows = random_rows(seed, 50, value_type)
        order = r.permutation(50)
        batches.append((rows, [order[:20], order[20:20], order[20:]]))
    folder = write_store(tmp_path / "x.sbm", batches, value_type, labels)
    expected = [
        [row for rows, deal in batches for row in plain(rows, deal[b], labels)] for b in (0, 2)
    ]
    assert store_rows(folder) == expected
    store = BlockStore(folder)
    assert [b["file"] for b in store.manifest["blocks"]] == ["block-000000.sbb", "block-000001.sbb"]
    assert sorted(p.name for p in folder.glob("block*")) == ["block-000000.sbb", "block-000001.sbb"]
    assert (store.n_rows, store.n_blocks, store.n_features) == (150, 2, len(IDS))
    assert store.nnz == sum(rows.nnz for rows, _ in batches)
    assert [len(chunks) for chunks in store.chunks] == [3, 3]
    assert store.read_feature_ids().tolist() == IDS.tolist()


@settings(deadline=None, derandomize=True, max_examples=25)
@given(
    st.integers(0, 99), st.integers(0, 40), st.integers(1, 7), st.sampled_from(["ones", "float64"])
)
def test_any_deal_of_any_rows_comes_back(
    tmp_path_factory: pytest.TempPathFactory, seed: int, n: int, blocks: int, value_type: str
) -> None:
    rows = random_rows(seed, n, value_type, n_labels=None)
    home = np.random.default_rng(seed).integers(0, blocks, n)
    deal = [np.flatnonzero(home == b) for b in range(blocks)]
    folder = write_store(tmp_path_factory.mktemp("s") / "x.sbm", [(rows, deal)], value_type)
    expected = [plain(rows, chosen, None) for chosen in deal if len(chosen)]
    assert store_rows(folder) == expected


def test_a_block_is_cut_in_chunks_of_bounded_rows_and_nonzeros(tmp_path: Path) -> None:
    many = 2 * CHUNK_ROWS + 5
    n = np.zeros(many, np.int32)
    n[:3] = [CHUNK_NNZ // 2, CHUNK_NNZ // 2, CHUNK_NNZ + 9]  # the third alone is too long
    starts = np.concatenate([[0], np.cumsum(n[:3])[:2], np.zeros(many - 3)]).astype(np.int64)
    indices = np.concatenate([np.arange(k) for k in n[:3]]).astype(np.int32)
    y = np.arange(many, dtype=np.int32) % 300  # takes two bytes
    with ThreadPoolExecutor(1) as pool:
        writer = BlockWriter(tmp_path, 4, 1, 1, pool)
        writer.add(Rows(starts, n, indices, None, y), [np.arange(many)])
        blocks, index = writer.finish()
    assert index[:, 0].tolist() == [4] * len(index)
    assert index[:, 3].tolist() == [2, 1, CHUNK_ROWS, CHUNK_ROWS, 2]
    assert index[:, 4].tolist() == [CHUNK_NNZ, CHUNK_NNZ + 9, 0, 0, 0]
    assert index[:, 1].tolist() == [0, *np.cumsum(index[:-1, 2]).tolist()]
    assert blocks[0]["file"] == "block-000004.sbb"
    assert blocks[0]["rows"] == many
    assert blocks[0]["bytes"] == (tmp_path / "block-000004.sbb").stat().st_size
    data = (tmp_path / "block-000004.sbb").read_bytes()
    offset, size = index[2, 1:3].tolist()
    arrays = container.decode(data[offset : offset + size], "chunk", "here").arrays
    assert arrays["codes"].dtype == np.uint16
    assert arrays["codes"].tolist() == y[3 : 3 + CHUNK_ROWS].tolist()


def test_chunks_are_read_in_any_number_and_order_behind_an_offset(tmp_path: Path) -> None:
    rows = random_rows(5, 60)
    deals = [[np.arange(10 * k, 10 * k + 10)] for k in range(6)]
    folder = write_store(tmp_path / "x.sbm", [(rows, d) for d in deals], labels=[0.0, 1.0, 2.0])
    store = BlockStore(folder)
    chunks = [store.chunks[0][k] for k in (4, 0, 5)]
    nnz = sum(c.nnz for c in chunks)
    room = Rows(
        np.full(40, -1, np.int64), np.full(40, -1, np.int32), np.full(nnz + 20, -1, np.int32),
        np.full(nnz + 20, -1, np.float32), np.full(40, -1, np.int32),
    )  # fmt: skip
    got = store.read(chunks, room, 7)
    assert len(got) == 30
    chosen = np.r_[40:50, 0:10, 50:60]
    indices = np.maximum(got.indices, 0)
    codes = [0.0, 1.0, 2.0]
    assert as_rows(
        np.array(codes)[got.y], got.starts, got.lengths, IDS[indices], got.values
    ) == plain(rows, chosen, codes)
    assert np.shares_memory(got.indices, room.indices)
    assert (room.indices[:7] == -1).all()
    assert (room.indices[7 + nnz :] == -1).all()
    assert (room.y[30:] == -1).all()
    assert len(store.read([], room, 7)) == 0


def test_codes_are_read_as_labels_where_the_store_turned_to_real_labels(tmp_path: Path) -> None:
    first, second = random_rows(1, 8), random_rows(2, 8, n_labels=None)
    deal = [np.arange(8)]
    folder = write_store(
        tmp_path / "x.sbm", [(first, deal), (second, deal)], class_values=[5.5, -1.0, 3.0]
    )
    assert store_rows(folder) == [
        plain(first, deal[0], [5.5, -1.0, 3.0]) + plain(second, deal[0], None)
    ]


def test_values_that_are_all_one_in_some_chunks_are_read_as_ones(tmp_path: Path) -> None:
    ones = random_rows(1, 20, "ones")
    ones.values = np.ones(len(ones.indices), np.float32)
    mixed = random_rows(2, 20)
    deal = [np.arange(20)]
    folder = write_store(tmp_path / "x.sbm", [(ones, deal), (mixed, deal)], labels=[0.0, 1.0, 2.0])
    expected = plain(ones, deal[0], [0.0, 1.0, 2.0]) + plain(mixed, deal[0], [0.0, 1.0, 2.0])
    assert store_rows(folder) == [expected]


# ----------------------------------------------------------------------------------------- damage


def read_all(folder: Path) -> Any:
    BlockStore(folder).read_feature_ids()
    return store_rows(folder)


@pytest.mark.parametrize("pattern", ["manifest.json", "index-*", "features-*", "block-000001*"])
def test_every_damaged_file_is_noticed(tmp_path: Path, pattern: str) -> None:
    folder = small_store(tmp_path)
    expected = read_all(folder)
    [path] = folder.glob(pattern)
    data = path.read_bytes()
    refused = 0
    r = np.random.default_rng(6)
    for position in r.choice(len(data), min(len(data), 400), replace=False):
        bad = bytearray(data)
        bad[position] ^= 1 << int(r.integers(8))
        path.write_bytes(bad)
        try:
            assert read_all(folder) == expected
        except StoreError:
            refused += 1
    assert refused > 0.9 * min(len(data), 400)
    for size in r.choice(len(data), 60):
        path.write_bytes(data[:size])
        with pytest.raises(StoreError):
            read_all(folder)
    path.unlink()
    with pytest.raises(StoreError):
        read_all(folder)


def test_a_folder_without_a_manifest_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        BlockStore(tmp_path)
    assert str(caught.value) == (
        f"{tmp_path} is not a store (it has no manifest.json); make a store with sbm split"
    )


def test_damage_is_said_in_a_sentence(tmp_path: Path) -> None:
    folder = small_store(tmp_path)
    block = folder / "block-000001.sbb"
    data = block.read_bytes()
    block.write_bytes(data[:-1])
    with pytest.raises(StoreError) as caught:
        store_rows(folder)
    assert str(caught.value) == f"{block} is shorter than the index says; split the data again"
    block.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(StoreError) as caught:
        store_rows(folder)
    assert str(caught.value) == (
        f"{block} at byte 0 is damaged (array 'codes'); restore it from a copy or make it again"
    )
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(StoreError) as caught:
        store_rows(folder)
    assert str(caught.value) == f"{folder / 'manifest.json'} is damaged; split the data again"


# -------------------------------------------------------- manifests and indexes made to do harm


def forge(folder: Path, change: Any) -> None:
    """Change the manifest and give it a right checksum."""
    manifest = read_manifest(folder)
    changed = change(manifest)
    manifest = manifest if changed is None else changed
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    outer = {"crc32": zlib.crc32(text.encode()), "manifest": manifest}
    (folder / "manifest.json").write_text(json.dumps(outer))


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/b", "", ".", "..", 5, None, ["x"]])
@pytest.mark.parametrize("place", ["blocks", "index", "features"])
def test_names_that_could_lead_outside_the_store_are_refused(
    tmp_path: Path, name: Any, place: str
) -> None:
    folder = small_store(tmp_path)

    def change(manifest: dict[str, Any]) -> None:
        if place == "blocks":
            manifest["blocks"][0]["file"] = name
        else:
            manifest["generations"][0][place] = name

    forge(folder, change)
    with pytest.raises(StoreError) as caught:
        read_all(folder)
    assert str(caught.value) == (
        f"{folder}: the manifest names {name!r}, which is no file of the store"
    )


def test_another_version_and_another_format_are_refused(tmp_path: Path) -> None:
    folder = small_store(tmp_path)
    forge(folder, lambda m: {**m, "version": 3})
    with pytest.raises(StoreError) as caught:
        BlockStore(folder)
    assert str(caught.value) == (
        f"{folder} has store version 3, this program reads versions 1 and 2; "
        "use the program that wrote it, or a newer one"
    )
    (folder / "manifest.json").unlink()
    write_manifest(folder, {"format": "sbm-run"})
    with pytest.raises(StoreError) as caught:
        BlockStore(folder)
    assert str(caught.value) == f"{folder / 'manifest.json'} is not the manifest of a store"


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda m: [], id="list"),
        pytest.param(lambda m: "x", id="text"),
        pytest.param(lambda m: {k: v for k, v in m.items() if k != "version"}, id="no-version"),
        pytest.param(lambda m: {k: v for k, v in m.items() if k != "blocks"}, id="no-blocks"),
        pytest.param(
            lambda m: {k: v for k, v in m.items() if k != "generations"}, id="no-generations"
        ),
        pytest.param(lambda m: {**m, "blocks": 5}, id="blocks-number"),
        pytest.param(lambda m: {**m, "blocks": [{}]}, id="block-empty"),
        pytest.param(lambda m: {**m, "blocks": ["block-000000.sbb"]}, id="block-text"),
        pytest.param(lambda m: {**m, "generations": [{}]}, id="generation-empty"),
        pytest.param(lambda m: {**m, "generations": []}, id="no-generation"),
        pytest.param(lambda m: {**m, "blocks": [*m["blocks"], m["blocks"][0]]}, id="block-twice"),
        pytest.param(lambda m: {**m, "features": 7}, id="features-few"),
        pytest.param(lambda m: {**m, "features": 9}, id="features-many"),
        pytest.param(lambda m: {**m, "features": -1}, id="features-negative"),
        pytest.param(lambda m: {**m, "features": 2**60}, id="features-huge"),
        pytest.param(lambda m: {**m, "features": "8"}, id="features-text"),
        pytest.param(lambda m: {**m, "labels": {"values": [1.0], "counts": [30]}}, id="labels-few"),
        pytest.param(lambda m: {**m, "labels": {}}, id="labels-empty"),
        pytest.param(lambda m: {**m, "value_type": "|O8"}, id="value-type-object"),
        pytest.param(lambda m: {**m, "value_type": "int8"}, id="value-type-int8"),
        pytest.param(
            lambda m: {**m, "value_type": "ones"}, id="value-type-ones"
        ),  # there are values: they must not be dropped
        pytest.param(lambda m: {**m, "rows": 31}, id="rows-wrong"),
        pytest.param(lambda m: {**m, "nnz": 0}, id="nnz-wrong"),
    ],
)
def test_manifests_that_make_no_sense_are_refused(tmp_path: Path, change: Any) -> None:
    folder = small_store(tmp_path)
    forge(folder, change)
    with pytest.raises(StoreError):
        read_all(folder)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda t: t[:, :4], id="four-columns"),
        pytest.param(lambda t: t[0], id="one-dimension"),
        pytest.param(lambda t: t[:1], id="row-missing"),
        pytest.param(lambda t: np.vstack([t, t]), id="rows-twice"),
        pytest.param(lambda t: t.astype(np.float64) + 0.5, id="floats"),
        pytest.param(lambda t: np.add(t, [0, 1, 0, 0, 0]), id="offset-wrong"),
        pytest.param(lambda t: np.add(t, [0, -1, 0, 0, 0]), id="offset-negative"),
        pytest.param(lambda t: np.add(t, [0, 2**62, 0, 0, 0]), id="offset-huge"),
        pytest.param(lambda t: np.subtract(t, [0, 0, 2**62, 0, 0]), id="size-negative"),
        pytest.param(lambda t: np.add(t, [[0, 0, 0, 1, 0], [0, 0, 0, 1, 0]]), id="rows-wrong"),
        pytest.param(lambda t: np.add(t, [[0, 0, 0, 0, 1], [0, 0, 0, 0, -1]]), id="nnz-wrong"),
        pytest.param(
            lambda t: np.vstack([t, [0, 0, 10, -5, 0], [0, 0, -10, 5, 0]]), id="negative-rows"
        ),
        pytest.param(lambda t: {"wrong": t}, id="wrong-name"),
    ],
)
def test_an_index_that_makes_no_sense_is_refused(tmp_path: Path, change: Any) -> None:
    folder = small_store(tmp_path)
    path = folder / "index-0000.sba"
    table = container.read(path, "index").arrays["chunks"]
    changed = change(table)
    arrays = changed if isinstance(changed, dict) else {"chunks": np.ascontiguousarray(changed)}
    container.write(path, "index", arrays)
    with pytest.raises(StoreError):
        read_all(folder)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda a: a.pop("codes"), id="no-codes"),
        pytest.param(lambda a: a.pop("gaps"), id="no-gaps"),
        pytest.param(lambda a: a.update(codes=a["codes"][:-1]), id="codes-short"),
        pytest.param(lambda a: a.update(codes=a["codes"][:1]), id="codes-one"),
        pytest.param(lambda a: a.update(codes=a["codes"] + np.uint8(3)), id="codes-unknown"),
        pytest.param(
            lambda a: a.update(codes=a["codes"].astype(np.int8) - np.int8(1)), id="codes-negative"
        ),
        pytest.param(lambda a: a.update(codes=a["codes"] + 0.5), id="codes-float"),
        pytest.param(lambda a: a.update(labels=a["codes"] + 0.5), id="labels-and-codes"),
        pytest.param(lambda a: a.update(values=a["values"][:1]), id="values-one"),
        pytest.param(
            lambda a: a.update(values=a["values"].astype(np.float64) * 1e300), id="values-too-large"
        ),
        pytest.param(lambda a: a.update(gaps=a["gaps"].astype(np.float32)), id="gaps-float"),
        pytest.param(lambda a: a.update(gaps=a["gaps"][0]), id="gaps-flat"),
        pytest.param(lambda a: a.update(gaps=a["gaps"] + np.uint8(5)), id="gaps-changed"),
        pytest.param(lambda a: a.update(lengths=a["lengths"] + np.uint8(1)), id="lengths-changed"),
    ],
)
def test_a_chunk_whose_arrays_make_no_sense_is_refused(tmp_path: Path, change: Any) -> None:
    folder = small_store(tmp_path)
    path = folder / "block-000001.sbb"
    arrays = dict(container.read(path, "chunk").arrays)
    change(arrays)
    size = container.write(path, "chunk", arrays)
    table = container.read(folder / "index-0000.sba", "index").arrays["chunks"].copy()
    table[1, 2] = size
    container.write(folder / "index-0000.sba", "index", {"chunks": table})
    forge(folder, lambda m: m["blocks"][1].update(bytes=size))
    with pytest.raises(StoreError, match=r"block-000001\.sbb"):
        store_rows(folder)


def test_a_block_may_be_dropped_from_the_manifest(tmp_path: Path) -> None:
    folder = small_store(tmp_path)
    second = store_rows(folder)[1]
    nnz = sum(len(features) for _, features in second)
    forge(folder, lambda m: {**m, "blocks": m["blocks"][1:], "rows": 15, "nnz": nnz})
    (folder / "block-000000.sbb").unlink()
    assert store_rows(folder) == [second]


def test_the_manifest_can_be_written_out_in_another_layout(tmp_path: Path) -> None:
    folder = small_store(tmp_path)
    outer = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(outer))
    assert len(read_all(folder)) == 2
