"""The binary container and JSON records: round trips, damage, and forged headers."""

import json
import math
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from inside import checksum, decode_record, encode_record
from inside import store_container_module as container

from sbm.errors import StoreError

MAGIC = b"\x89SBM\r\n\x1a\n"
DTYPES = ["|u1", "|i1", "|b1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f4", "<f8"]
SMALL = {
    "codes": np.array([[1, 2, 3], [250, 5, 6]], np.uint8),
    "ids": np.array([1, 2**40, -3], np.int64),
    "weights": np.array([[0.5], [-1e300]], np.float64),
    "none": np.empty((0, 4), np.float32),
}
META = {"rows": 7, "name": "é", "more": [1.5, None, True]}


def joined(*args: Any, **kwargs: Any) -> bytes:
    return b"".join(container.encode(*args, **kwargs))


def decoded(data: bytes, **options: Any) -> container.Container:
    return container.decode(data, "thing", "here", **options)


def assert_same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    """Names, types, shapes and bytes are equal."""
    assert list(a) == list(b)
    for k in a:
        assert (a[k].dtype, a[k].shape) == (b[k].dtype, b[k].shape)
        assert a[k].tobytes() == b[k].tobytes()


# ------------------------------------------------------------------------------------ round trip


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.sampled_from(DTYPES).flatmap(
            lambda t: hnp.arrays(np.dtype(t), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0))
        ),
        max_size=4,
    ),
    st.sampled_from([None, 1, 19]),
)
def test_arrays_round_trip(arrays, level):
    back = decoded(joined("thing", arrays, META, level=level))
    assert_same(back.arrays, arrays)
    assert back.meta == META


@pytest.mark.parametrize("dtype", DTYPES)
def test_codec_follows_type_and_level(dtype):
    array = np.arange(5000).astype(dtype)
    for level, raw, codec in (
        (None, (), "raw"), (1, ("a",), "raw"),
        (1, (), "zstd" if array.dtype.itemsize == 1 else "shuffle"),
    ):  # fmt: skip
        data = joined("thing", {"a": array}, level=level, raw=raw)
        header = json.loads(data[20 : 20 + int.from_bytes(data[12:16], "little")])
        assert header["arrays"][0]["codec"] == codec
        assert (len(data) < array.nbytes) == (codec != "raw")
        assert_same(decoded(data).arrays, {"a": array})


@pytest.mark.parametrize("level", [None, 1])
def test_views_and_other_byte_orders_keep_values(level):
    base = np.arange(24, dtype=np.int32).reshape(4, 6)
    base.flags.writeable = False
    arrays = {"t": base.T, "s": base[::2, ::-3], "f": np.asfortranarray(base),
              "big": np.array([1, 2, 70000], ">i4")}  # fmt: skip
    back = decoded(joined("thing", arrays, level=level)).arrays
    assert {k: v.tolist() for k, v in back.items()} == {k: v.tolist() for k, v in arrays.items()}


def test_written_file_is_read_in_part_or_whole(tmp_path):
    path = tmp_path / "a.sba"
    size = container.write(path, "thing", SMALL, META)
    assert size == path.stat().st_size
    assert [p.name for p in tmp_path.iterdir()] == ["a.sba"]
    back = container.read(path, "thing")
    assert_same(back.arrays, SMALL)
    assert back.meta == META
    some = container.read(path, "thing", {"ids", "none"}.__contains__).arrays
    assert_same(some, {k: SMALL[k] for k in ("ids", "none")})
    data = path.read_bytes()
    crc32 = container.header_crc(data)
    assert container.read(path, "thing", crc32=crc32).meta == META
    for call in (
        lambda: container.read(path, "thing", crc32=crc32 ^ 1),
        lambda: container.read(tmp_path / "missing", "thing"),
        lambda: container.read(path, "thing", most_bytes=6 + 24 + 15),
    ):
        with pytest.raises(StoreError, match=str(tmp_path)):
            call()
    assert_same(container.read(path, "thing", most_bytes=6 + 24 + 16).arrays, SMALL)
    assert container.is_container(path)
    path.write_bytes(data[1:])
    assert not container.is_container(path)
    assert not container.is_container(tmp_path / "missing")


# ---------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("level", [None, 1])
def test_flipped_bits_and_truncations_are_detected(tmp_path, level):
    data = joined("thing", SMALL, META, level=level)
    for position in range(len(data)):
        bad = bytearray(data)
        bad[position] ^= 1 << position % 8
        for damaged in (bytes(bad), data[:position]):
            with pytest.raises(StoreError, match="here"):
                decoded(damaged)
    (tmp_path / "x").write_bytes(data + b"\0")
    for call in (
        lambda: decoded(data + b"\0"),
        lambda: container.read(tmp_path / "x", "thing"),
    ):
        with pytest.raises(StoreError, match=r"damaged .*extra bytes"):
            call()


# ---------------------------------------------------------------------------------------- forged


def forged(header: Any, payload: bytes = b"", version: int = 1) -> bytes:
    """Return a container with any header and valid checksums."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    numbers = (version, len(text), zlib.crc32(text))
    return MAGIC + b"".join(n.to_bytes(4, "little") for n in numbers) + text + payload


def of_payload(payload: bytes, **changes: Any) -> bytes:
    """Return a container of one array; a change to ``...`` removes a field of its entry."""
    plain = {"name": "a", "dtype": "<i4", "shape": [2], "codec": "raw", "bytes": len(payload),
             "crc32": zlib.crc32(payload)}  # fmt: skip
    entry = {k: v for k, v in {**plain, **changes}.items() if v is not ...}
    return forged({"kind": "thing", "meta": {}, "arrays": [entry]}, payload)


def refuse(path: Path, data: bytes, match: str = "damaged") -> None:
    """Fail unless a file is refused, by both readers, without taking much memory."""
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(StoreError, match=match):
            decoded(data)
        with pytest.raises(StoreError, match=match):
            container.read(path, "thing")
        assert tracemalloc.get_traced_memory()[1] < 20_000_000  # a header may take 16 MB
    finally:
        tracemalloc.stop()


EIGHT = b"\1\0\0\0\2\0\0\0"
PACKED = zstandard.ZstdCompressor().compress(EIGHT)


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_forged_containers_of_the_tests_are_valid(codec):
    data = of_payload(EIGHT if codec == "raw" else PACKED, codec=codec)
    assert decoded(data).arrays["a"].tolist() == [1, 2]


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("shape", [[3], [1], [], [-2], [-1, -2], [2**62], [2**31] * 3, [0, 2**70], [0], ["two"],
                   [None], [[2]], [2.5], [math.nan], None, 2, [1] * 100 + [2], ...]),
        ("dtype", ["|O8", "O", "<U1", "|V4", ">i4", "<M8[s]", [["a", "<i4"]], {}, None, 4, ...]),
        ("codec", ["gzip", "", "RAW", None, ["raw"], ...]),
        ("bytes", [-8, 9, 7, 2**70, "8", 8.5, None, ...]),
        ("crc32", [1, None, ...]),
        ("name", [None, ["a"], 5, ...]),
    ],
)  # fmt: skip
def test_invalid_entries_are_refused(tmp_path, field, values):
    for value in values:
        refuse(tmp_path / "x", of_payload(EIGHT, **{field: value}))
        if field in ("shape", "dtype"):
            for codec in ("zstd", "shuffle"):
                refuse(tmp_path / "x", of_payload(PACKED, **{"codec": codec, field: value}))


def bomb(size: int) -> bytes:
    """A frame of zeros."""
    return zstandard.ZstdCompressor(level=19).compress(bytes(size))


def frame(claimed: int, blocks: int) -> bytes:
    """A frame that claims a size, of blocks of 128 kB zeros."""
    head = b"\x28\xb5\x2f\xfd\xc0\x88" + claimed.to_bytes(8, "little")
    one = (1 << 1 | (1 << 17) << 3).to_bytes(3, "little")  # a run of one byte, not the last
    return head + (one + b"\0") * blocks + (1).to_bytes(3, "little")


@pytest.mark.parametrize(
    ("payload", "shape"),
    [
        (frame(8, 2000), 8), (frame(1 << 40, 2), 1 << 40), (frame(1 << 56, 0), 1 << 56),
        (frame(300_000, 2), 300_000), (bomb(1 << 26), 1 << 26), (bomb(64) + bomb(1 << 26), 64),
        (zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64)), 64),
        (b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + bomb(64), 64), (b"", 0),
    ],
    ids=["more", "less", "huge", "cut", "bomb", "two frames", "no size", "skippable", "none"],
)  # fmt: skip
def test_compression_bombs_are_refused(tmp_path, payload, shape):
    for codec in ("zstd", "shuffle"):
        data = of_payload(payload, codec=codec, dtype="|u1", shape=[shape])
        refuse(tmp_path / "x", data, r"damaged \(array 'a'\)")


@pytest.mark.parametrize(
    "header",
    [
        b"", b"{", b"\xff\xfe", b"[" * 5000 + b"]" * 5000, [], "thing", None, 5, {},
        {"kind": "thing", "meta": {}}, {"kind": "thing", "arrays": []},
        {"kind": "thing", "meta": {}, "arrays": None},
        {"kind": "thing", "meta": {}, "arrays": ["abc"]},
        {"kind": "thing", "meta": {}, "arrays": [[]]},
        {"kind": "thing", "meta": [], "arrays": []},
        b'{"kind": "thing", "meta": {}, "arrays": [], "arrays": []}',
        b'{"kind": "thing", "meta": {"a": 1, "a": 2}, "arrays": []}',
        b'{"kind": "thing", "meta": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}",
        b'{"kind": "thing", "meta": {}, "arrays": [' + b"9" * 10_000 + b"]}",
    ],
    ids=lambda header: str(header)[:40],
)  # fmt: skip
def test_invalid_headers_are_refused(tmp_path, header):
    refuse(tmp_path / "x", forged(header), r"damaged \(invalid header\)")


def test_duplicate_names_and_other_kinds_are_refused(tmp_path):
    one = json.loads(of_payload(EIGHT)[20:-8])["arrays"]
    twice = {"kind": "thing", "meta": {}, "arrays": one * 2}
    refuse(tmp_path / "x", forged(twice, EIGHT * 2), "invalid header")
    data = bytearray(of_payload(EIGHT))
    data[12:16] = (2**32 - 1).to_bytes(4, "little")
    refuse(tmp_path / "x", bytes(data), "invalid header")
    refuse(tmp_path / "x", forged({}, version=2), r"version 2.* reads version 1")
    refuse(tmp_path / "x", joined("model", SMALL), "model data; expected thing data")
    refuse(tmp_path / "x", joined("x" * 99, SMALL), "something else; expected thing data")


# --------------------------------------------------------------------------------------- records

CONTENT = {"rows": 3, "gap": 1e-3, "name": "x", "list": [1, {"a": None}], "limit": math.inf}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)  # fmt: skip


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_records_round_trip_in_any_layout(content):
    data = encode_record("run", content)
    assert decode_record("run", data) == content
    compact = json.dumps({"run": content, "crc32": checksum(content)}, separators=(",", ":"))
    assert decode_record("run", compact.encode()) == content


def test_damaged_records_are_detected():
    data = encode_record("run", CONTENT)
    for place in range(len(data)):
        flipped = bytearray(data)
        flipped[place] ^= 1 << place % 8
        for damaged in (bytes(flipped), data[:place]):
            with pytest.raises(ValueError, match=r".*"):
                decode_record("run", damaged)


@pytest.mark.parametrize(
    "data",
    [
        b"[]", b'{"crc32": 1}', b'{"crc32": 1, "run": {"a": 1}}', b'{"\xff', b"[" * 100_000,
        b'{"crc32": 2745614147, "run": {}, "more": 1}', b'{"crc32": 223132457, "run": []}',
        b'{"crc32": 2745614147, "run": {}, "run": {}}',
        b'{"crc32": ' + b"1" * 5000 + b', "run": {}}',
    ],
    ids=lambda data: str(data[:40]),
)  # fmt: skip
def test_invalid_records_are_refused(data):
    assert decode_record("run", b'{"crc32": 2745614147, "run": {}}') == {}
    with pytest.raises(ValueError, match=r".*"):
        decode_record("run", data)
