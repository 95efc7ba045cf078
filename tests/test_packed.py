"""Compressed inputs: the same bytes, bounded pieces and windows, and no truncation unnoticed."""

import bz2
import gzip
import io
import lzma
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from inside import MOST, USUAL, Unpacked, errors, patch, window_of

import sbm
from sbm.errors import DataError, MemoryPlanError


def zstd(data: bytes, window: int = 20, *, checksum: bool = False) -> bytes:
    parameters = zstandard.ZstdCompressionParameters(window_log=window, write_checksum=checksum)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packer.compress(data) + packer.flush()  # the frame does not state its size


def xz(data: bytes, dictionary: int) -> bytes:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": dictionary}]
    return lzma.compress(data, filters=filters)


PACK: dict[str, list[Callable[[bytes], bytes]]] = {
    ".gz": [gzip.compress, lambda data: gzip.compress(data, 1)],
    ".bz2": [bz2.compress],
    ".xz": [lzma.compress, lambda data: xz(data, 1 << 22)],
    ".zst": [zstd, lambda data: zstd(data, 15, checksum=True), zstandard.compress,
             lambda data: b"\x5a\x2a\x4d\x18\3\0\0\0abc" + zstd(data)],
}  # fmt: skip


def unpack(name: str, data: bytes, room: int = 1 << 20) -> bytes:
    stream, found, piece = Unpacked(io.BytesIO(data).read, name, 0), b"", bytearray(room)
    while n := stream.readinto(memoryview(piece)):
        assert n <= MOST
        found += piece[:n]
    return found


@pytest.mark.parametrize("ending", PACK)
def test_frames_are_unpacked_in_bounded_pieces(ending: str) -> None:
    dice = random.Random(ending)
    for _ in range(12):
        data = packed = b""
        for pack in dice.choices(PACK[ending], k=dice.randrange(1, 4)):
            blank, noise = dice.choice([0, 10, 5 << 18]), dice.choice([0, 5, 200_000])
            part = dice.randbytes(noise) + b"\n" * blank + dice.randbytes(noise // 2)
            data, packed = data + part, packed + pack(part)
        assert unpack("A" + ending.upper(), packed, dice.choice([1 << 12, 1 << 20])) == data
        if data:
            with pytest.raises(errors()):
                unpack("a" + ending, packed[: -dice.randrange(1, 9)])


@pytest.mark.parametrize("library", ["zlib", "isal"])
def test_libraries_of_gzip_agree(
    library: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun: list[int] = []
    if library == "zlib":
        monkeypatch.setitem(sys.modules, "isal", None)
    else:
        isal_zlib = pytest.importorskip("isal.isal_zlib")
        begin = isal_zlib.decompressobj
        monkeypatch.setattr(
            isal_zlib, "decompressobj", lambda wbits: begun.append(wbits) or begin(wbits)
        )
    data = random.Random(3).randbytes(150_000)
    parts = [data, b"\n" * (3 << 18), b"", data[::-1], b"0" * MOST]
    packed = b"\0\0".join(gzip.compress(part, level) for level, part in enumerate(parts))
    assert unpack("a.gz", packed + b"\0" * 9) == b"".join(parts)
    assert len(begun) == (len(parts) if library == "isal" else 0)
    path = tmp_path / "a.svm.gz"
    whole = gzip.compress(text(40_000))
    for at in (2, len(whole) // 2, -6, -1):  # method, content, checksum, length
        damaged = bytearray(whole)
        damaged[at] ^= 255
        with pytest.raises(errors()):
            unpack("a.gz", bytes(damaged))
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"a\.svm\.gz"):
            sbm.split(path, tmp_path / "s.sbm")


def text(n: int) -> bytes:
    return b"".join(b"%d %d:1\n" % (k % 2, k % 9 + 1) for k in range(n))


@pytest.mark.parametrize(
    ("name", "pack"),
    [("a.svm.zst", lambda data: zstd(data, 27)), ("a.svm.xz", lambda data: xz(data, 1 << 26))],
)
def test_window_is_part_of_the_memory_plan(
    name: str, pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(pack(text(100)))
    assert 1 << 26 <= window_of(str(path)) < 1 << 28
    with pytest.raises(MemoryPlanError, match="to read and decompress") as caught:
        sbm.split(path, tmp_path / "s.sbm", mem="110MB")
    least = caught.value.least_bytes
    assert sbm.split(path, tmp_path / "s.sbm", mem=least)["rows"] == 100
    with pytest.raises(MemoryPlanError, match="to read and decompress"):
        sbm.train(path, tmp_path / "m.model", {"mem": "110MB"})
    with pytest.MonkeyPatch.context() as context:
        patch(context, "Unpacked", None)  # refused before anything is decompressed
        with pytest.raises(MemoryPlanError, match="to decompress") as caught:
            sbm.stream(path, tmp_path / "t.model", {"mem": "114MB"})
    least = caught.value.least_bytes + 1_000_000
    assert sbm.stream(path, tmp_path / "t.model", {"mem": least})[1]["rows"] == 100
    # Of a later frame nothing is known when memory is planned.
    path.write_bytes(zstd(text(100)) + zstd(text(100), 27))
    if name.endswith("zst"):
        assert window_of(str(path)) == 0
        with pytest.raises(DataError, match=r"window of 134 MB.*decompress it first"):
            sbm.split(path, tmp_path / "t.sbm", mem="114MB")


def test_usual_windows_need_no_plan(tmp_path: Path) -> None:
    for ending, packs in PACK.items():
        for pack in packs:
            path = tmp_path / f"a{ending}"
            path.write_bytes(pack(text(10)))
            assert window_of(str(path)) == 0
    path = tmp_path / "a.zst"
    path.write_bytes(zstandard.ZstdCompressor(level=19).compressobj().compress(text(9)))
    assert window_of(str(path)) == 0
    assert USUAL == 8 << 20
