"""The container: what goes in comes out, and nothing else is ever believed."""

import json
import math
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sbm.errors import StoreError
from sbm.store import arrays as container

MAGIC = b"\x89SBM\r\n\x1a\n"
DTYPES = ["|u1", "|i1", "|b1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f4", "<f8"]


def joined(*args: Any, **kwargs: Any) -> bytes:
    return b"".join(container.encode(*args, **kwargs))


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    """Equal names, types, shapes and bytes."""
    return list(a) == list(b) and all(
        a[k].dtype == b[k].dtype and a[k].shape == b[k].shape and a[k].tobytes() == b[k].tobytes()
        for k in a
    )


SMALL = {
    "codes": np.array([[1, 2, 3], [250, 5, 6]], np.uint8),
    "ids": np.array([1, 2**40, -3], np.int64),
    "weights": np.array([[0.5], [-1e300]], np.float64),
    "none": np.empty((0, 4), np.float32),
}
META = {"rows": 7, "name": "é", "more": [1.5, None, True]}


# ------------------------------------------------------------------------------------- round trip


@settings(deadline=None, derandomize=True, max_examples=150)
@given(st.data(), st.sampled_from([None, 1, 3, 19]))
def test_arrays_of_every_type_and_shape_come_back(data: Any, level: int | None) -> None:
    shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6)
    arrays = data.draw(
        st.dictionaries(
            st.text(max_size=5),
            st.sampled_from(DTYPES).flatmap(lambda t: hnp.arrays(np.dtype(t), shapes)),
            max_size=4,
        )
    )
    back = container.decode(joined("thing", arrays, META, level=level), "thing", "here")
    assert same(back.arrays, arrays)
    assert back.meta == META


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("level", [None, 1])
def test_every_type_is_stored_with_the_codec_meant_for_it(dtype: str, level: int | None) -> None:
    array = np.arange(5000).astype(dtype)
    data = joined("thing", {"a": array}, level=level)
    header = json.loads(data[20 : 20 + int.from_bytes(data[12:16], "little")])
    one_byte = array.dtype.itemsize == 1
    assert header["arrays"][0]["codec"] == (
        "raw" if level is None else "zstd" if one_byte else "shuffle"
    )
    assert header["arrays"][0]["bytes"] == len(data) - 20 - int.from_bytes(data[12:16], "little")
    assert same(container.decode(data, "thing", "here").arrays, {"a": array})
    if level:
        assert len(data) < array.nbytes


def test_slices_transposes_and_read_only_arrays_are_stored_as_they_look() -> None:
    base = np.arange(24, dtype=np.int32).reshape(4, 6)
    base.flags.writeable = False
    arrays = {"t": base.T, "s": base[::2, ::-3], "f": np.asfortranarray(base)}
    for level in (None, 1):
        back = container.decode(joined("thing", arrays, level=level), "thing", "here").arrays
        assert {k: v.tolist() for k, v in back.items()} == {
            k: v.tolist() for k, v in arrays.items()
        }


@pytest.mark.parametrize("level", [None, 1])
def test_numbers_of_the_other_byte_order_keep_their_value(level: int | None) -> None:
    array = np.array([1, 2, 70000], ">i4")
    back = container.decode(joined("thing", {"a": array}, level=level), "thing", "here").arrays
    assert back["a"].tolist() == [1, 2, 70000]


def test_a_file_is_written_and_read_and_leaves_no_temporary_one(tmp_path: Path) -> None:
    size = container.write(tmp_path / "a.sba", "thing", SMALL, META)
    assert size == (tmp_path / "a.sba").stat().st_size
    assert [p.name for p in tmp_path.iterdir()] == ["a.sba"]
    back = container.read(tmp_path / "a.sba", "thing")
    assert same(back.arrays, SMALL)
    assert back.meta == META


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as caught:
        container.read(tmp_path / "a.sba", "thing")
    assert str(caught.value) == (
        f"{tmp_path / 'a.sba'} does not exist; see that the name is right, or restore it"
    )


# ----------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("level", [None, 1])
def test_every_flipped_bit_is_noticed(level: int | None) -> None:
    data = joined("thing", SMALL, META, level=level)
    assert same(container.decode(data, "thing", "here").arrays, SMALL)
    for position in range(len(data)):
        for bit in range(8):
            bad = bytearray(data)
            bad[position] ^= 1 << bit
            with pytest.raises(StoreError):
                container.decode(bytes(bad), "thing", "here")


@pytest.mark.parametrize("level", [None, 1])
def test_every_truncation_and_every_extra_byte_is_noticed(level: int | None) -> None:
    data = joined("thing", SMALL, META, level=level)
    for size in range(len(data)):
        with pytest.raises(StoreError):
            container.decode(data[:size], "thing", "here")
    with pytest.raises(StoreError) as caught:
        container.decode(data + b"\0", "thing", "here")
    assert str(caught.value) == (
        "here is damaged (bytes behind its end); restore it from a copy or make it again"
    )


def test_swapped_payloads_are_noticed() -> None:
    a, b = np.arange(10, dtype=np.uint8), np.arange(10, 20, dtype=np.uint8)
    data = joined("thing", {"a": a, "b": b}, level=None)
    bad = data[:-20] + data[-10:] + data[-20:-10]
    with pytest.raises(StoreError, match="array 'a'"):
        container.decode(bad, "thing", "here")


def test_damage_is_said_in_a_sentence() -> None:
    data = joined("thing", SMALL, level=None)
    expected = {
        0: "here is not an sbm file (or its first bytes are damaged); models are made by sbm "
        "train, stores by sbm split",
        30: "here is damaged (its header); restore it from a copy or make it again",
        len(data) - 1: "here is damaged (array 'weights'); restore it from a copy or make it again",
    }
    for position, sentence in expected.items():
        bad = bytearray(data)
        bad[position] ^= 1
        with pytest.raises(StoreError) as caught:
            container.decode(bytes(bad), "thing", "here")
        assert str(caught.value) == sentence


# ----------------------------------------------------------------------- headers made to do harm


def forged(header: Any, payload: bytes = b"", version: int = 1) -> bytes:
    """Return a container whose checksums are all right, whatever it says."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    numbers = (version, len(text), zlib.crc32(text))
    return MAGIC + b"".join(n.to_bytes(4, "little") for n in numbers) + text + payload


def entry(payload: bytes, **changes: Any) -> dict[str, Any]:
    plain = {
        "name": "a",
        "dtype": "<i4",
        "shape": [2],
        "codec": "raw",
        "bytes": len(payload),
        "crc32": zlib.crc32(payload),
    }
    return {k: v for k, v in {**plain, **changes}.items() if v is not ...}


def with_entries(*entries: Any) -> dict[str, Any]:
    return {"kind": "thing", "meta": {}, "arrays": list(entries)}


EIGHT = b"\1\0\0\0\2\0\0\0"
PACKED = zstandard.ZstdCompressor().compress(EIGHT)
# A frame that promises 2^56 bytes: magic, descriptor (8 bytes of size), window, size, last block.
LIAR = b"\x28\xb5\x2f\xfd\xc0\x00" + (1 << 56).to_bytes(8, "little") + b"\x01\x00\x00"


def test_the_forger_can_make_sound_containers() -> None:
    raw = container.decode(forged(with_entries(entry(EIGHT)), EIGHT), "thing", "here")
    assert raw.arrays["a"].tolist() == [1, 2]
    packed = container.decode(
        forged(with_entries(entry(PACKED, codec="zstd")), PACKED), "thing", "here"
    )
    assert packed.arrays["a"].tolist() == [1, 2]
    assert zstandard.frame_content_size(LIAR) == 1 << 56


@pytest.mark.parametrize(
    "changes",
    [
        {"shape": [3]},
        {"shape": [1]},
        {"shape": []},
        {"shape": [-2]},
        {"shape": [-1, -2]},
        {"shape": [2**62]},
        {"shape": [2**31, 2**31, 2**31]},
        {"shape": [0, 2**70]},
        {"shape": [0]},
        {"shape": ["two"]},
        {"shape": [None]},
        {"shape": [[2]]},
        {"shape": [2.5]},
        {"shape": [math.nan]},
        {"shape": [math.inf]},
        {"shape": None},
        {"shape": 2},
        {"shape": [1] * 100 + [2]},
        {"shape": ...},
        {"dtype": "|O8"},
        {"dtype": "|O"},
        {"dtype": "O"},
        {"dtype": "<U1"},
        {"dtype": "|V4"},
        {"dtype": ">i4"},
        {"dtype": "<M8[s]"},
        {"dtype": [["a", "<i4"]]},
        {"dtype": {}},
        {"dtype": None},
        {"dtype": 4},
        {"dtype": ...},
        {"codec": "gzip"},
        {"codec": ""},
        {"codec": None},
        {"codec": ["raw"]},
        {"codec": ...},
        {"bytes": -8},
        {"bytes": 9},
        {"bytes": 7},
        {"bytes": 2**70},
        {"bytes": "8"},
        {"bytes": 8.5},
        {"bytes": None},
        {"bytes": ...},
        {"crc32": 1},
        {"crc32": None},
        {"crc32": ...},
        {"name": ...},
        {"name": None},
        {"name": ["a"]},
        {"name": 5},
    ],
    ids=lambda changes: f"{next(iter(changes))}={str(next(iter(changes.values())))[:20]}",
)
@pytest.mark.parametrize("codec", ["raw", "zstd", "shuffle"])
def test_entries_that_make_no_sense_are_refused(changes: dict[str, Any], codec: str) -> None:
    payload = EIGHT if codec == "raw" else PACKED
    if changes.get("bytes") == 8.5:
        changes = {"bytes": len(payload) + 0.5}
    elif changes.get("bytes") == "8":
        changes = {"bytes": str(len(payload))}
    data = forged(with_entries(entry(payload, **{"codec": codec, **changes})), payload)
    tracemalloc.start()
    try:
        with pytest.raises(StoreError):
            container.decode(data, "thing", "here")
        assert tracemalloc.get_traced_memory()[1] < 3_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", ["gzip", "", None, "RAW"])
def test_a_codec_that_is_not_known_is_not_guessed(codec: Any) -> None:
    data = forged(with_entries(entry(PACKED, codec=codec)), PACKED)
    with pytest.raises(StoreError):
        container.decode(data, "thing", "here")


@pytest.mark.parametrize("codec", ["zstd", "shuffle"])
@pytest.mark.parametrize("shape", [[2**54], [2]])
def test_a_frame_that_promises_too_much_is_refused_before_memory_is_taken(
    codec: str, shape: list[int]
) -> None:
    data = forged(with_entries(entry(LIAR, shape=shape, codec=codec)), LIAR)
    with pytest.raises(StoreError):
        container.decode(data, "thing", "here")


@pytest.mark.parametrize("codec", ["zstd", "shuffle"])
def test_bytes_behind_the_frame_of_an_array_are_refused(codec: str) -> None:
    payload = PACKED + PACKED
    data = forged(with_entries(entry(payload, codec=codec)), payload)
    with pytest.raises(StoreError):
        container.decode(data, "thing", "here")


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[" * 5000 + b"]" * 5000,
        [],
        "thing",
        None,
        5,
        {},
        {"kind": "thing"},
        {"kind": "thing", "meta": {}},
        {"kind": "thing", "arrays": []},
        {"kind": "thing", "meta": {}, "arrays": None},
        {"kind": "thing", "meta": {}, "arrays": [5]},
        {"kind": "thing", "meta": {}, "arrays": ["abc"]},
        {"kind": "thing", "meta": {}, "arrays": [None]},
        {"kind": "thing", "meta": {}, "arrays": [[]]},
        {"kind": "thing", "meta": [], "arrays": []},
    ],
    ids=lambda header: str(header)[:40],
)
def test_headers_that_make_no_sense_are_refused(header: Any) -> None:
    with pytest.raises(StoreError):
        container.decode(forged(header), "thing", "here")


def test_a_name_that_occurs_twice_is_refused() -> None:
    data = forged(with_entries(entry(EIGHT), entry(EIGHT)), EIGHT + EIGHT)
    with pytest.raises(StoreError):
        container.decode(data, "thing", "here")


def test_a_header_that_claims_gigabytes_is_refused() -> None:
    data = bytearray(forged(with_entries()))
    data[12:16] = (2**32 - 1).to_bytes(4, "little")
    with pytest.raises(StoreError, match=r"here is damaged \(its header\)"):
        container.decode(bytes(data), "thing", "here")


def test_another_version_is_refused_in_these_words() -> None:
    with pytest.raises(StoreError) as caught:
        container.decode(forged(with_entries(), version=2), "thing", "here")
    assert str(caught.value) == (
        "here has format version 2, this program reads version 1; "
        "use the program that wrote it, or a newer one"
    )


def test_another_kind_is_refused_in_these_words() -> None:
    with pytest.raises(StoreError) as caught:
        container.decode(joined("model", SMALL), "chunk", "here")
    assert str(caught.value) == "here holds a model, a chunk is expected"
