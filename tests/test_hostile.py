"""Files made to do harm: an error of ours, no crash, little memory, nothing opened elsewhere."""

import contextlib
import copy
import json
import math
import os
import re
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sbm
from sbm.errors import SbmError, StoreError
from sbm.rows import Arena
from sbm.store import arrays as container
from sbm.store.blocks import BlockStore, read_manifest
from sbm.store.codec import decode_rows
from sbm.store.files import open_own
from sbm.store.records import encode_record

MAGIC = b"\x89SBM\r\n\x1a\n"
SMALL = (
    40_000_000  # bytes that a file of a few kilobytes may cost: 16 MB an array, twice for a moment
)
TEXT = "".join(f"{(-1, 1, 5)[k % 3]} {k % 7 + 1}:{k / 8} {k + 9}:1 300:0.5\n" for k in range(24))
MANY = settings(
    max_examples=60, deadline=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip

# What stands where something else is expected.
ODD: list[Any] = [
    None, True, -1, 0, 7, 2**31, 2**61, 2**63, 10**400, 0.5, -1e308, math.nan, math.inf, "", "x",
    "../x", "/etc/passwd", "a\0b", "x" * 9000, "lock", [], [[]], [None], ["x"], {}, {"x": 1},
    [2**62] * 3, [math.nan],
]  # fmt: skip


# ------------------------------------------------------------------------------------- watching

_opened: list[str] | None = None


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is not None and event == "open" and isinstance(arguments[0], str | bytes):
        _opened.append(os.fsdecode(arguments[0]))


sys.addaudithook(_note)  # nothing takes it out again; it does nothing where nobody asks


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[None]:
    """See to it that little memory is taken, and that no file beside the folder is opened."""
    global _opened
    _opened = []
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < SMALL
    finally:
        tracemalloc.stop()
        opened, _opened = _opened, None
    ours = (str(folder), str(Path(sbm.__file__).parent), "/proc/", "/dev/", "/sys/", sys.prefix)
    elsewhere = [name for name in opened if name.startswith("/") and not name.startswith(ours)]
    assert [name for name in elsewhere if not name.startswith(sys.base_prefix)] == []


def refusal(folder: Path, call: Callable[[], Any]) -> str:
    """Return the sentence in which something is refused."""
    with watched(folder), pytest.raises(SbmError) as caught:
        call()
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert len(sentence) < 600
    return sentence


def is_refused_or_read(folder: Path, *calls: Callable[[], Any]) -> None:
    """Nothing but an error of ours comes of any of the calls."""
    for call in calls:
        with watched(folder), contextlib.suppress(SbmError):
            call()


# ---------------------------------------------------------------------------------- stores


def read_all(folder: Path) -> None:
    store = BlockStore(folder)
    store.read_feature_ids()
    for chunk in (chunk for chunks in store.chunks for chunk in chunks):
        kind = "float64" if store.labels is None else "int32"
        store.read([chunk], Arena.of(chunk.nnz, store.value_type).room(chunk.rows, kind), 0)


def forge(folder: Path, manifest: Any) -> None:
    """Write a manifest with a right checksum, whatever it says."""
    (folder / "manifest.json").write_bytes(encode_record("manifest", manifest))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    (folder / "a.svm").write_text(TEXT)
    (folder / "b.svm").write_text("1 400:1\n5 9:2\n")
    sbm.split([folder / "a.svm"], folder / "s.sbm", blocks=2, threads=1)
    sbm.split([folder / "b.svm"], folder / "s.sbm", append=True, threads=1)
    sbm.train(folder / "s.sbm", folder / "m.model", {"mem": "300MB", "max_passes": 2, "threads": 1})
    return folder


@pytest.fixture
def store(sound: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "s.sbm"
    folder.mkdir()
    for path in (sound / "s.sbm").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def chunk_arrays() -> dict[str, Any]:
    """Three rows: 0 2, nothing, 1 2 3."""
    return {
        "lengths": np.array([2, 0, 3], np.uint8),
        "lengths_bits": np.zeros(8, np.uint8),
        "gaps": np.array([0, 1, 1, 0, 0], np.uint8),
        "gaps_bits": np.zeros(8, np.uint8),
        "values": np.array([1, 2, 3, 4, 5], np.float32),
        "codes": np.array([0, 1, 0], np.uint8),
    }


def lay(
    folder: Path,
    chunk: dict[str, Any] | bytes,
    rows: int = 3,
    nnz: int = 5,
    ids: Any = None,
    index: Any = None,
    **manifest: Any,
) -> Path:
    """Make a store of one chunk whose checksums are all right, whatever it says."""
    folder.mkdir(exist_ok=True)
    data = chunk if isinstance(chunk, bytes) else b"".join(container.encode("chunk", chunk))
    (folder / "block-000000.sbb").write_bytes(data)
    names = np.array([5, 7, 9, 2**40]) if ids is None else ids
    features = b"".join(container.encode("features", {"ids": names}))
    (folder / "features-0000.sba").write_bytes(features)
    table = np.array([[0, 0, len(data), rows, nnz]], np.int64)
    crcs = np.array([container.header_crc(data)], np.uint32)
    container.write(
        folder / "index-0000.sba", "index",
        {"chunks": table if index is None else index(table), "crc32": crcs},
    )  # fmt: skip
    entry = {
        "file": "block-000000.sbb", "rows": rows, "nnz": nnz, "bytes": len(data),
        "crc32": zlib.crc32(crcs.tobytes()),
    }  # fmt: skip
    content = {
        "format": "sbm-store", "version": 2, "rows": rows, "features": 4, "nnz": nnz,
        "value_type": "float32", "dtype": "float32",
        "labels": {"values": [-1.0, 1.0], "counts": [2, 1]}, "class_values": None,
        "blocks": [entry],
        "generations": [{
            "features": "features-0000.sba", "index": "index-0000.sba", "rows": rows,
            "features_crc32": container.header_crc(features), "blocks": ["block-000000.sbb"],
            "sources": [], "options": {}, "added": "2026-01-01T00:00:00+00:00",
        }],
    }  # fmt: skip
    forge(folder, content | manifest)
    return folder


def test_the_forger_can_make_sound_stores(tmp_path: Path) -> None:
    folder = lay(tmp_path / "s.sbm", chunk_arrays())
    assert sbm.check(folder)["rows"] == 3
    is_refused_or_read(tmp_path, lambda: read_all(folder))


def bomb(size: int) -> bytes:
    """A frame of zeros that says its size."""
    return zstandard.ZstdCompressor(level=19).compress(bytes(size))


def forged(*entries: tuple[dict[str, Any], bytes], **more: Any) -> bytes:
    """Return a container whose checksums are all right, whatever its entries say."""
    plain = {"codec": "raw", "dtype": "|u1"}
    listed = [
        {**plain, "bytes": len(data), "crc32": zlib.crc32(data), **entry} for entry, data in entries
    ]
    text = json.dumps({"kind": "chunk", "meta": {}, "arrays": listed, **more}).encode()
    numbers = (1, len(text), zlib.crc32(text))
    head = MAGIC + b"".join(n.to_bytes(4, "little") for n in numbers) + text
    return head + b"".join(data for _, data in entries)


def of_chunk(**changed: Any) -> dict[str, Any]:
    arrays = chunk_arrays() | changed
    return {name: array for name, array in arrays.items() if array is not None}


U8 = np.uint8


@pytest.mark.parametrize(
    "chunk",
    [
        pytest.param(of_chunk(gaps=np.array([0, 1, 1, 0, 1], U8)), id="an index that is none"),
        pytest.param(of_chunk(gaps=np.array([0, 1, 227, 0, 0], U8)), id="a gap of 2^32"),
        pytest.param(of_chunk(gaps=np.array([0, 1, 255, 0, 0], U8)), id="a gap that is none"),
        pytest.param(of_chunk(gaps=np.array([0, 1], U8)), id="few gaps"),
        pytest.param(of_chunk(gaps=np.zeros(1 << 20, U8)), id="many gaps"),
        pytest.param(of_chunk(gaps=np.zeros((5, 1), U8)), id="gaps in two dimensions"),
        pytest.param(of_chunk(gaps=np.zeros(5, np.int8)), id="gaps of another type"),
        pytest.param(of_chunk(gaps=None), id="no gaps"),
        pytest.param(of_chunk(gaps_bits=np.zeros(7, U8)), id="a stream too short to be read"),
        pytest.param(of_chunk(gaps_bits=np.zeros(9, U8)), id="a stream that goes on"),
        pytest.param(of_chunk(gaps_bits=np.zeros(0, U8)), id="no stream"),
        pytest.param(of_chunk(lengths=np.array([2, 0, 4], U8)), id="longer rows"),
        pytest.param(of_chunk(lengths=np.array([2, 0, 2], U8)), id="shorter rows"),
        pytest.param(of_chunk(lengths=np.array([227, 0, 3], U8)), id="a row of 2^32"),
        pytest.param(of_chunk(lengths=np.array([255, 0, 3], U8)), id="a length that is none"),
        pytest.param(of_chunk(lengths=np.array([2, 3], U8)), id="few rows"),
        pytest.param(of_chunk(values=np.array([1, 2, np.nan, 4, 5], np.float32)), id="NaN"),
        pytest.param(of_chunk(values=np.array([1, 2, 3, -np.inf, 5], np.float32)), id="infinity"),
        pytest.param(of_chunk(values=np.zeros(5)), id="values of another type"),
        pytest.param(of_chunk(values=np.zeros(4, np.float32)), id="few values"),
        pytest.param(of_chunk(codes=np.array([0, 2, 0], U8)), id="a code without a label"),
        pytest.param(of_chunk(codes=np.array([0, 1, 0], np.int64)), id="codes of another type"),
        pytest.param(of_chunk(codes=np.zeros((3, 1), U8)), id="codes in two dimensions"),
        pytest.param(of_chunk(codes=None, labels=np.zeros(3)), id="numbers instead of codes"),
        pytest.param(of_chunk(codes=None), id="no labels"),
        pytest.param(of_chunk(gaps_more=np.zeros(0, np.uint32)), id="half of version 1"),
        pytest.param(b"", id="nothing"),
        pytest.param(forged(), id="no arrays"),
        pytest.param(
            forged(({"name": "gaps", "codec": "zstd", "shape": [1 << 28]}, bomb(1 << 28))),
            id="a bomb",
        ),
        pytest.param(
            forged(({"name": "gaps", "codec": "zstd", "shape": [5]}, bomb(1 << 28))),
            id="a bomb that is not told of",
        ),
    ],
)
def test_chunks_that_make_no_sense_are_refused(tmp_path: Path, chunk: Any) -> None:
    folder = lay(tmp_path / "s.sbm", chunk)
    sentence = refusal(tmp_path, lambda: read_all(folder))
    assert str(folder) in sentence
    assert refusal(tmp_path, lambda: sbm.check(folder)).startswith(str(folder))


def frame(said: int, blocks: int) -> bytes:
    """A frame of zstd that says a size, of blocks of 128 kB zeros."""
    size = said.to_bytes(8, "little")
    head = b"\x28\xb5\x2f\xfd\xc0\x88" + size  # 8 bytes of size, a window of 128 MB
    one = (1 << 1 | (1 << 17) << 3).to_bytes(3, "little")  # a run of one byte, not the last
    return head + (one + b"\0") * blocks + (1).to_bytes(3, "little")


@pytest.mark.parametrize(
    ("data", "shape"),
    [
        pytest.param(frame(8, 2000), [8], id="more than it says"),
        pytest.param(frame(1 << 40, 2), [1 << 40], id="less than it says"),
        pytest.param(bomb(1 << 28), [1 << 28], id="as much as it says"),
        pytest.param(bomb(64) + bomb(1 << 28), [64], id="two frames"),
        pytest.param(
            zstandard.ZstdCompressor(write_content_size=False).compress(bytes(64)), [64],
            id="no size",
        ),
        pytest.param(b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + bomb(64), [64], id="a frame to skip"),
        pytest.param(b"", [0], id="no frame"),
    ],
)  # fmt: skip
def test_frames_made_to_expand_are_refused(tmp_path: Path, data: bytes, shape: list[int]) -> None:
    path = tmp_path / "x.sba"
    for codec in ("zstd", "shuffle"):
        path.write_bytes(forged(({"name": "a", "codec": codec, "shape": shape}, data)))
        sentence = refusal(tmp_path, lambda: container.read(path, "chunk"))
        assert sentence == f"{path} is damaged (array 'a'); restore it from a copy or make it again"


@pytest.mark.parametrize(
    "header",
    [
        b'{"kind": "chunk", "meta": {}, "arrays": [], "arrays": []}',
        b'{"kind": "chunk", "kind": "chunk", "meta": {}, "arrays": []}',
        b'{"kind": "chunk", "meta": {"a": 1, "a": 2}, "arrays": []}',
        b'{"kind": "chunk", "meta": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000 + b"}",
        b'{"kind": "chunk", "meta": {}, "arrays": [' + b"9" * 10_000 + b"]}",
    ],
    ids=["arrays twice", "kind twice", "meta twice", "deep", "digits"],
)
def test_headers_that_say_two_things_or_never_end_are_refused(
    tmp_path: Path, header: bytes
) -> None:
    path = tmp_path / "x.sba"
    numbers = (1, len(header), zlib.crc32(header))
    path.write_bytes(MAGIC + b"".join(n.to_bytes(4, "little") for n in numbers) + header)
    sentence = refusal(tmp_path, lambda: container.read(path, "chunk"))
    assert sentence == f"{path} is damaged (its header); restore it from a copy or make it again"


@pytest.mark.parametrize(
    "index",
    [
        pytest.param(lambda t: np.add(t, [0, 1, 0, 0, 0]), id="behind its place"),
        pytest.param(lambda t: np.add(t, [0, 2**62, 0, 0, 0]), id="far outside"),
        pytest.param(lambda t: np.vstack([t, t]), id="one place twice"),
        pytest.param(lambda t: np.vstack([t, t - t]), id="a chunk of nothing"),
        pytest.param(lambda t: np.subtract(t, [0, 0, 0, 0, 2**63 - 1]), id="negative"),
        pytest.param(lambda t: np.full((1 << 22, 5), 0, np.int64), id="millions"),
        pytest.param(lambda t: t.astype(np.float64), id="no whole numbers"),
        pytest.param(lambda t: t.ravel(), id="one dimension"),
    ],
)
def test_an_index_that_points_elsewhere_is_refused(tmp_path: Path, index: Any) -> None:
    folder = lay(tmp_path / "s.sbm", chunk_arrays(), index=index)
    assert str(folder) in refusal(tmp_path, lambda: read_all(folder))


@pytest.mark.parametrize(
    "claim",
    [
        {"rows": 2**61}, {"nnz": 2**61}, {"rows": 70_000}, {"nnz": 300_000}, {"rows": 1},
        {"nnz": 0}, {"features": 2**31 - 1}, {"features": 5}, {"features": 3},
        {"labels": {"values": [1.0, math.nan], "counts": [2, 1]}},
        {"labels": {"values": [1.0, 1.0], "counts": [2, 1]}},
        {"labels": {"values": ["a", "b"], "counts": [2, 1]}},
        {"labels": {"values": [1.0, 10**400], "counts": [2, 1]}},
        {"labels": {"values": [1.0, 2.0], "counts": [2**62, 1]}},
        {"labels": {"values": [1.0, 2.0], "counts": [1, 2]}},
        {"labels": {"values": [True, 2.0], "counts": [2, 1]}},
        {"labels": None},
        {"labels": None, "class_values": []}, {"labels": None, "class_values": [math.inf, 0.0]},
        {"value_type": "ones"}, {"value_type": "float64"},
    ],
    ids=str,
)  # fmt: skip
def test_claims_that_the_files_do_not_bear_out_are_refused(
    tmp_path: Path, claim: dict[str, Any]
) -> None:
    sizes = {key: value for key, value in claim.items() if key in ("rows", "nnz")}
    rest = {key: value for key, value in claim.items() if key not in sizes}
    folder = lay(tmp_path / "s.sbm", chunk_arrays(), **sizes, **rest)
    assert str(folder) in refusal(tmp_path, lambda: sbm.check(folder))


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        (np.array([5, -7, 9, 1]), "holds no feature ids"),
        (np.array([5.0, 7, 9, 1]), "holds no feature ids"),
        (np.array([[5, 7], [9, 1]]), "holds no feature ids"),
        (np.array([5, 7, 9], np.int32), "holds no feature ids"),
        (np.array([5, 7, 9]), "holds fewer feature ids"),
        (np.array([5, 7, 9, 1, 3]), "holds more ids"),
        (np.array([5, 7, 5, 1]), "a feature id occurs twice"),
        (np.zeros(1 << 24, np.int64), "is damaged"),
    ],
)
def test_ids_that_are_none_are_refused(tmp_path: Path, ids: Any, why: str) -> None:
    folder = lay(tmp_path / "s.sbm", chunk_arrays(), ids=ids)
    assert why in refusal(tmp_path, lambda: sbm.check(folder))


NAMES = [
    "../x", "/etc/passwd", "a/../b", "block-000000.sbb\0", "block-000000.sbb/", "lock",
    "manifest.json", "block-٠٠٠٠٠٠.sbb", "BLOCK-000000.sbb", "block-000000.sbb\n", "", ".", 5, None,
    ["x"], "x" * 10_000,
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name)[:20])
@pytest.mark.parametrize("place", ["file", "index", "features", "expired"])
def test_names_of_other_files_are_refused(store: Path, name: Any, place: str) -> None:
    manifest = read_manifest(store)
    if place == "file":
        manifest["blocks"][0]["file"] = name
    elif place == "expired":
        gone = {**manifest["blocks"][0], "file": name}
        manifest["generations"][0]["expired"] = {"at": "", "blocks": [gone]}
    else:
        manifest["generations"][0][place] = name
    forge(store, manifest)
    for call in (sbm.info, sbm.check, BlockStore):
        assert str(store) in refusal(store.parent, lambda call=call: call(store))


@pytest.mark.parametrize(
    "name", ["manifest.json", "index-0000.sba", "features-0000.sba", "block-000000.sbb"]
)
@pytest.mark.parametrize("what", ["link", "folder", "pipe", "device", "loop"])
def test_what_is_no_file_of_the_store_is_not_opened(store: Path, name: str, what: str) -> None:
    path, outside = store / name, store.parent / "outside"
    content = path.read_bytes()
    path.unlink()
    if what == "link":
        outside.write_bytes(content)  # even if there is what should be here
        path.symlink_to(outside)
    elif what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero" if what == "device" else name)
    sentence = refusal(store.parent, lambda: read_all(store))
    assert sentence == f"{path} is a link or no file at all; put a copy of the file there"


def test_a_store_may_be_reached_by_a_link(store: Path) -> None:
    link = store.parent / "link.sbm"
    link.symlink_to(store)
    assert sbm.check(link)["rows"] == 26
    with open_own(link / "manifest.json") as file:
        assert file.read(1) == b"{"


def outside(folder: Path) -> Path:
    """Make a file that is not ours."""
    path = folder / "outside"
    path.write_text("mine")
    return path


@pytest.mark.parametrize("is_there", [True, False])
def test_no_link_in_a_store_is_written_through(store: Path, is_there: bool) -> None:
    mine = outside(store.parent)
    target = mine if is_there else store.parent / "none"
    (store.parent / "new.svm").write_text("1 5:1\n")
    for name in (
        "manifest.json.tmp",
        "block-000004.sbb",
        "features-0002.sba",
        "index-0002.sba.tmp",
    ):
        (store / name).symlink_to(target)
    sbm.split([store.parent / "new.svm"], store, append=True, threads=1)
    assert sbm.check(store)["rows"] == 27
    (store / "lock").unlink()
    (store / "lock").symlink_to(target)
    with pytest.raises(StoreError, match=r"cannot write .*lock: Too many levels of symbolic links"):
        sbm.expire(store, sources=["new.svm"])
    assert mine.read_text() == "mine"
    assert not (store.parent / "none").exists()


@pytest.mark.parametrize(
    "name", ["log.jsonl", "run.json.tmp", "lock", "state-000001.sba", "alpha-00000.000001.sba"]
)
def test_no_link_in_a_run_is_written_through(sound: Path, tmp_path: Path, name: str) -> None:
    mine = outside(tmp_path)
    run = tmp_path / "x.model.run"
    run.mkdir()
    (run / name).symlink_to(mine)
    chosen = {"mem": "300MB", "max_passes": 1, "threads": 1, "loss": "squared_hinge"}
    with contextlib.suppress(StoreError):
        sbm.train(sound / "s.sbm", tmp_path / "x.model", chosen)
    assert mine.read_text() == "mine"


# --------------------------------------------------------------------------- anything, anywhere


def places(content: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values in JSON content."""
    found = [at] if at else []
    if isinstance(content, dict | list):
        inner = content.items() if isinstance(content, dict) else enumerate(content[:4])
        for key, value in inner:
            found += places(value, (*at, key))
    return found


def changed(content: Any, at: tuple[Any, ...], to: Any) -> Any:
    """Return content with another value somewhere, or, for ``...``, without it."""
    content = copy.deepcopy(content)
    parent = content
    for key in at[:-1]:
        parent = parent[key]
    if to is ...:
        del parent[at[-1]]
    else:
        parent[at[-1]] = to
    return content


def odd(data: st.DataObject, content: Any) -> Any:
    at = data.draw(st.sampled_from(places(content)))
    return changed(content, at, data.draw(st.sampled_from([*ODD, ...])))


def quick_train(folder: Path) -> None:
    chosen = {"mem": "300MB", "max_passes": 1, "threads": 1, "loss": "squared_hinge"}
    sbm.train(folder, folder.parent / "new.model", chosen)


@MANY
@given(st.data())
def test_any_change_of_a_manifest_is_refused_or_harmless(store: Path, data: Any) -> None:
    manifest = json.loads((store / "manifest.json").read_bytes())["manifest"]
    before = (store / "manifest.json").read_bytes()
    try:
        forge(store, odd(data, manifest))
        is_refused_or_read(
            store.parent, lambda: sbm.info(store), lambda: sbm.check(store),
            lambda: sbm.expire(store, before="30d", dry_run=True),
            lambda: sbm.expire(store, sources=["a.svm"], dry_run=True),
        )  # fmt: skip
        with contextlib.suppress(SbmError):
            quick_train(store)
    finally:
        (store / "manifest.json").write_bytes(before)


@MANY
@given(st.data())
def test_any_change_of_a_header_is_refused_or_harmless(tmp_path: Path, data: Any) -> None:
    sound = b"".join(container.encode("chunk", chunk_arrays(), {"x": [1, {"y": 2}]}))
    end = container.HEAD + int.from_bytes(sound[12:16], "little")
    header = json.dumps(odd(data, json.loads(sound[container.HEAD : end]))).encode()
    numbers = (1, len(header), zlib.crc32(header))
    head = MAGIC + b"".join(n.to_bytes(4, "little") for n in numbers) + header
    (tmp_path / "x").write_bytes(head + sound[end:])
    is_refused_or_read(tmp_path, lambda: container.read(tmp_path / "x", "chunk"))


BYTES = st.binary(max_size=40).map(lambda data: np.frombuffer(data, np.uint8))
GUARD = 32


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    st.fixed_dictionaries({
        "lengths": BYTES, "lengths_bits": BYTES, "gaps": BYTES, "gaps_bits": BYTES
    }),
    st.integers(0, 2**31 - 1),
    st.booleans(),
)  # fmt: skip
def test_no_bytes_lead_a_kernel_out_of_its_arrays(
    arrays: dict[str, Any], n_features: int, is_old: bool
) -> None:
    n, nnz = len(arrays["lengths"]), len(arrays["gaps"])
    if is_old:
        for name in ("lengths", "gaps"):
            more = arrays.pop(f"{name}_bits")
            arrays[f"{name}_more"] = np.frombuffer(more[: len(more) // 4 * 4].tobytes(), np.uint32)
            width = 2 if len(arrays[name]) % 2 == 0 else 1
            arrays[name] = arrays[name].reshape(width, -1)
        n, nnz = arrays["lengths"].shape[1], arrays["gaps"].shape[1]
    lengths = np.full(n + 2 * GUARD, -99, np.int32)
    indices = np.full(nnz + 2 * GUARD, -99, np.int32)
    own = slice(GUARD, GUARD + nnz)
    try:
        decode_rows(arrays, n_features, lengths[GUARD : GUARD + n], indices[own], None)
    except (ValueError, KeyError):
        pass
    else:
        assert lengths[GUARD : GUARD + n].sum() == nnz
        assert nnz == 0 or 0 <= indices[own].min() <= indices[own].max() < n_features
        for row in np.split(indices[own], np.cumsum(lengths[GUARD : GUARD + n])[:-1]):
            assert (np.diff(row) > 0).all()
    for array in (lengths, indices):
        assert (array[:GUARD] == -99).all()
        assert (array[-GUARD:] == -99).all()


# ---------------------------------------------------------------------------------- models

X = scipy.sparse.csr_matrix(np.eye(3, 20))
META: dict[str, Any] = {
    "labels": [-1.0, 1.0, 5.0],
    "bias": 1.0,
    "info": {
        "loss": "log_loss", "C": 1.0, "certificate": {"gap": 0.1}, "converged": True,
        "sources": [{"name": "a.svm", "rows": 3, "skipped": 0}],
        "calibration": {"kind": "softmax", "T": 1.0},
    },
}  # fmt: skip
SPARSE: dict[str, Any] = {
    "ids": np.array([3, 4, 2**40]),
    "bias_weights": np.zeros(3),
    "counts": np.array([1, 0, 2], np.uint8),
    "columns": np.array([0, 1, 2], np.uint8),
    "values": np.array([1.0, 2.0, 3.0]),
}
WIDE = {"ids": SPARSE["ids"], "bias_weights": np.zeros(3), "W": np.ones((3, 3))}


def use(path: Path) -> None:
    """All that is done with a model."""
    model = sbm.Model.load(path)
    model.predict(X)
    sbm.info(path)
    (path.parent / "t.svm").write_text("1 3:1\n-1 4:2\n")
    sbm.predict(path, path.parent / "t.svm", path.parent / "out.txt", probability=True)


def test_the_models_to_be_changed_are_sound(tmp_path: Path) -> None:
    for arrays in (SPARSE, WIDE):
        container.write(tmp_path / "m.model", "model", arrays, META)
        use(tmp_path / "m.model")
        assert (tmp_path / "out.txt").exists()


@pytest.mark.parametrize(
    "change",
    [
        {"columns": np.array([0, 1, 3], U8)}, {"columns": np.array([0, -1, 2], np.int8)},
        {"columns": np.array([0.0, 1, 2])}, {"counts": np.array([1, 0, 3], U8)},
        {"counts": np.array([2, -1, 2], np.int8)}, {"counts": np.array([2**63, 2**63, 3], "<u8")},
        {"counts": np.array([1, 2], U8)}, {"values": np.ones(4)}, {"values": np.ones((3, 1))},
        {"ids": np.array([3, -4, 9])}, {"ids": np.array([3.0, 4, 9])},
        {"ids": np.zeros((3, 1), "i8")},
        {"ids": np.zeros(1 << 20, "i8"), "counts": np.zeros(1 << 20, U8),
         "columns": np.zeros(0, U8), "values": np.zeros(0), "bias_weights": np.zeros(1 << 22)},
        {"bias_weights": np.zeros(2)}, {"bias_weights": np.zeros((3, 1))},
        {"bias_weights": np.zeros(3, np.float32)}, {"bias_weights": np.zeros(0)},
    ],
    ids=lambda change: f"{next(iter(change))}-{next(iter(change.values())).dtype}",
)  # fmt: skip
def test_models_whose_arrays_make_no_sense_are_refused(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    path = tmp_path / "m.model"
    container.write(path, "model", SPARSE | change, META)
    if len(change) == 5:  # it would take 32 TB: whether that is refused is up to the system
        with pytest.raises(StoreError, match=re.escape(str(path))):
            sbm.Model.load(path)
    else:
        assert str(path) in refusal(tmp_path, lambda: sbm.Model.load(path))


@MANY
@given(st.data())
def test_any_change_of_what_a_model_says_is_refused_or_harmless(tmp_path: Path, data: Any) -> None:
    path = tmp_path / "m.model"
    container.write(path, "model", data.draw(st.sampled_from([SPARSE, WIDE])), odd(data, META))
    is_refused_or_read(tmp_path, lambda: use(path), lambda: sbm.export(
        path, tmp_path / "e.sbm.model", format="sbm", prune=0.5
    ))  # fmt: skip


def test_a_model_does_not_say_that_it_is_something_else(tmp_path: Path) -> None:
    path = tmp_path / "m.model"
    info = {"kind": "store", "path": "/etc/passwd", "loss": "hinge"}
    container.write(path, "model", WIDE, META | {"info": info})
    assert (sbm.info(path)["kind"], sbm.info(path)["path"]) == ("model", str(path))


# ---------------------------------------------------------------------------- LIBLINEAR's text

LIBLINEAR = "solver_type L2R_LR\nnr_class 3\nlabel 1 2 3\nnr_feature 2\nbias 1\nw\n" + "1 2 3\n" * 3


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("nr_feature 2", "nr_feature 1000000000000000000"),
        ("nr_feature 2", "nr_feature 2147483647"),
        ("nr_feature 2", "nr_feature -1"), ("nr_feature 2", "nr_feature 1"),
        ("nr_class 3", "nr_class 1000000000"), ("nr_class 3", "nr_class 0"),
        ("label 1 2 3", "label 1 2 99999999999"), ("label 1 2 3", "label 1 2 nan"),
        ("label 1 2 3", "label 1 2 2"), ("label 1 2 3", "label " + "1 " * 100_000),
        ("bias 1", "bias nan"), ("bias 1", "bias 1e999"), ("bias 1", "bias 1\nbias 1"),
        ("w\n", ""), ("w\n1 2 3", "w\n1 nan 3"), ("w\n1 2 3", "w\n1 -inf 3"),
        ("w\n1 2 3", "w\n1 1e999 3"), ("w\n1 2 3", "w\n1 2"), ("w\n1 2 3", "w\n1 1_0 3"),
        ("w\n1 2 3", "w\n1 0x1 3"), ("w\n1 2 3", "w\n" + "1" * 1_000_000),
        ("w\n1 2 3", "w\n" + " " * 1_000_000), ("w\n1 2 3", "w\n1 2 \0"),
        ("solver_type L2R_LR", "solver_type " + "x" * 1_000_000),
        ("L2R_LR", "ONECLASS_SVM"), ("L2R_LR", "__import__('os')"),
    ],
    ids=lambda text: text[:30].strip(),
)  # fmt: skip
def test_hostile_text_of_liblinear_is_refused(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "m.txt"
    path.write_text(LIBLINEAR)
    assert len(sbm.info(path)["labels"]) == 3
    path.write_text(LIBLINEAR.replace(old, new, 1))
    assert str(path) in refusal(tmp_path, lambda: sbm.info(path))


@MANY
@given(st.integers(0, len(LIBLINEAR)), st.integers(0, 9), st.binary(max_size=12))
def test_any_change_of_liblinears_text_is_refused_or_harmless(
    tmp_path: Path, at: int, length: int, new: bytes
) -> None:
    text = LIBLINEAR.encode()
    (tmp_path / "m.txt").write_bytes(b"solver_type " + (text[:at] + new + text[at + length :])[12:])
    is_refused_or_read(tmp_path, lambda: sbm.info(tmp_path / "m.txt"))


# ---------------------------------------------------------------------------------------- runs


@MANY
@given(st.data())
def test_any_change_of_a_runs_record_is_refused_or_harmless(
    sound: Path, tmp_path: Path, data: Any
) -> None:
    run = tmp_path / "m.model.run"
    run.mkdir(exist_ok=True)
    for path in (sound / "m.model.run").iterdir():
        (run / path.name).write_bytes(path.read_bytes())
    record = json.loads((run / "run.json").read_bytes())["run"]
    (run / "run.json").write_bytes(encode_record("run", odd(data, record)))
    chosen = {
        "mem": "300MB", "max_passes": 1, "threads": 1, "loss": "squared_hinge",
        "warm_start": str(run),
    }  # fmt: skip
    is_refused_or_read(tmp_path, lambda: sbm.info(run))
    with contextlib.suppress(SbmError):
        sbm.train(sound / "s.sbm", tmp_path / "new.model", chosen)
