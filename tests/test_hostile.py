"""Hostile files raise `SbmError` without a crash, much memory, or opening other files."""

import contextlib
import copy
import json
import math
import os
import shutil
import sys
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from inside import Arena, BlockStore, Run, encode_record, read_manifest
from inside import store_container_module as container

import sbm
from sbm.errors import SbmError, StoreError

SMALL = 40_000_000  # memory in bytes that a small file may take: 16 MB per array, briefly twice
TEXT = "".join(f"{(-1, 1, 5)[k % 3]} {k % 7 + 1}:{k / 8} {k + 9}:1 300:0.5\n" for k in range(24))
QUICK = {"mem": "300MB", "max_passes": 1, "threads": 1, "loss": "squared_hinge"}
U8 = np.uint8

# Replacement values.
ODD: list[Any] = [
    None, True, -1, 0, 7, 2**31, 2**61, 2**63, 10**400, 0.5, -1e308, math.nan, math.inf, "", "x",
    "../x", "/etc/passwd", "a\0b", "x" * 9000, "lock", [], [[]], [None], ["x"], {}, {"x": 1},
    [2**62] * 3, [math.nan],
]  # fmt: skip


# -------------------------------------------------------------------------------------- watching

_opened: list[str] | None = None


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    if _opened is not None and event == "open" and isinstance(arguments[0], str | bytes):
        _opened.append(os.fsdecode(arguments[0]))


sys.addaudithook(_note)  # stays for the rest of the process, and does nothing outside `watched`


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[None]:
    """Fail if much memory is taken, or a file outside the folder is opened."""
    global _opened
    _opened = []
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < SMALL
    finally:
        tracemalloc.stop()
        opened, _opened = _opened, None
    ours = (str(folder), str(Path(sbm.__file__).parent), "/proc/", "/dev/", "/sys/", sys.prefix,
            sys.base_prefix)  # fmt: skip
    assert [name for name in opened if name.startswith("/") and not name.startswith(ours)] == []


def refuse(path: Path, *calls: Callable[[], Any], within: Path | None = None) -> None:
    """Fail unless each call is refused in a line that names the path."""
    for call in calls:
        with watched(within or path.parent), pytest.raises(SbmError) as caught:
            call()
        sentence = str(caught.value)
        assert str(path) in sentence
        assert "\n" not in sentence
        assert len(sentence) < 600


def refuse_or_read(folder: Path, *calls: Callable[[], Any]) -> None:
    """Fail if a call raises anything but a `SbmError`."""
    for call in calls:
        with watched(folder), contextlib.suppress(SbmError):
            call()


# ---------------------------------------------------------------------------------------- stores


def read_all(folder: Path) -> None:
    store = BlockStore(folder)
    store.read_feature_ids()
    for chunk in (chunk for chunks in store.chunks for chunk in chunks):
        kind = "float64" if store.labels is None else "int32"
        store.read([chunk], Arena.of(chunk.nnz, store.value_type).room(chunk.rows, kind), 0)


def forge(folder: Path, manifest: Any) -> None:
    """Write a manifest with a valid checksum."""
    (folder / "manifest.json").write_bytes(encode_record("manifest", manifest))


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sound")
    (folder / "a.svm").write_text(TEXT)
    (folder / "b.svm").write_text("1 400:1\n5 9:2\n")
    sbm.split([folder / "a.svm"], folder / "s.sbm", blocks=2, threads=1)
    sbm.split([folder / "b.svm"], folder / "s.sbm", append=True, threads=1)
    sbm.train(folder / "s.sbm", folder / "m.model", {"mem": "300MB", "max_passes": 2, "threads": 1})
    return folder


@pytest.fixture
def store(sound, tmp_path):
    return shutil.copytree(sound / "s.sbm", tmp_path / "s.sbm")


CHUNK: dict[str, Any] = {  # three rows: 0 2, nothing, 1 2 3
    "lengths": np.array([2, 0, 3], U8),
    "lengths_bits": np.zeros(8, U8),
    "gaps": np.array([0, 1, 1, 0, 0], U8),
    "gaps_bits": np.zeros(8, U8),
    "values": np.array([0, 1, 2, 1, 0], U8),
    "table": np.array([1, 2, 3], np.float32),
    "codes": np.array([0, 1, 0], U8),
}


def lay(
    folder: Path,
    chunk: dict[str, Any] | None = None,
    rows: int = 3,
    nnz: int = 5,
    ids: Any = (5, 7, 9, 2**40),
    index: Callable[[Any], Any] = lambda table: table,
    crcs: Callable[[Any], Any] = lambda crcs: crcs,
    **manifest: Any,
) -> Path:
    """Make a store of one chunk with any content and valid checksums."""
    folder.mkdir(exist_ok=True)
    arrays = {k: v for k, v in {**CHUNK, **(chunk or {})}.items() if v is not None}
    data = b"".join(container.encode("chunk", arrays))
    (folder / "block-000000.sbb").write_bytes(data)
    features = b"".join(container.encode("features", {"ids": np.asarray(ids)}))
    (folder / "features-0000.sba").write_bytes(features)
    table = np.array([[0, 0, len(data), rows, nnz]], np.int64)
    crc32 = np.array([container.header_crc(data)], np.uint32)
    container.write(
        folder / "index-0000.sba", "index", {"chunks": index(table), "crc32": crcs(crc32)}
    )
    entry = {
        "file": "block-000000.sbb", "rows": rows, "nnz": nnz, "bytes": len(data),
        "crc32": zlib.crc32(crc32.tobytes()),
    }  # fmt: skip
    content = {
        "format": "sbm-store", "version": 1, "rows": rows, "features": 4, "nnz": nnz,
        "value_type": "float32", "dtype": "float32",
        "labels": {"values": [-1.0, 1.0], "counts": [2, 1]}, "class_values": None,
        "blocks": [entry],
        "generations": [{
            "features": "features-0000.sba", "index": "index-0000.sba", "rows": rows,
            "features_crc32": container.header_crc(features), "blocks": ["block-000000.sbb"],
            "sources": [{"name": "a", "rows": rows, "bytes": 9, "skipped": 0, "sha256": ""}],
            "options": {"seed": 0, "shuffle": True}, "added": "2026-01-01T00:00:00+00:00",
            "deal": {"first": 0, "blocks": 1, "batches": [rows]},
        }],
    }  # fmt: skip
    forge(folder, content | manifest)
    return folder


def test_forged_store_of_the_tests_is_valid(tmp_path):
    folder = lay(tmp_path / "s.sbm")
    assert sbm.check(folder)["rows"] == 3
    assert sbm.check(lay(folder, {"values": None}))["rows"] == 3
    real = {"codes": None, "labels": np.array([1.5, 2, 3])}
    assert sbm.check(lay(folder, real, labels=None))["rows"] == 3
    read_all(folder)


def test_invalid_chunks_are_refused(tmp_path):
    for chunk in (
        {"gaps": np.array([0, 1, 1, 0, 1], U8)}, {"gaps": np.array([0, 1, 227, 0, 0], U8)},
        {"gaps": np.zeros(1 << 20, U8)}, {"gaps": None}, {"lengths": np.array([2, 0, 4], U8)},
        {"lengths": np.array([227, 0, 3], U8)}, {"lengths": np.array([2, 3], U8)},
        {"values": np.array([1, 2, 3, 4, 5], U8)}, {"values": np.zeros(5)}, {"table": None},
        {"table": np.array([1, np.nan, 3], np.float32)}, {"table": np.array([1.0, 2, 3])},
        {"codes": np.array([0, 2, 0], U8)}, {"codes": np.array([0, 1, 0], np.int64)},
        {"codes": np.zeros((3, 1), U8)}, {"codes": np.zeros(2, U8)}, {"codes": None},
        {"codes": None, "labels": np.zeros(3)},
    ):  # fmt: skip
        folder = lay(tmp_path / "s.sbm", chunk)
        refuse(folder, lambda: read_all(folder), lambda: sbm.check(folder))  # noqa: B023
    for labels in (np.zeros(2), np.zeros(3, np.float32), np.array([0, 1, np.nan])):
        folder = lay(tmp_path / "s.sbm", {"codes": None, "labels": labels}, labels=None)
        refuse(folder, lambda: read_all(folder))  # noqa: B023


def test_invalid_indexes_are_refused(tmp_path):
    added = [
        [0, 1, 0, 0, 0], [0, 2**62, 0, 0, 0], [0, -1, 0, 0, 0], [0, 0, -(2**62), 0, 0],
        [0, 0, 0, 0, -(2**62)], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1], [0, 0, 1, 0, 0], [1, 0, 0, 0, 0],
    ]  # fmt: skip
    for change in (
        *(lambda t, row=row: np.add(t, row) for row in added), lambda t: np.vstack([t, t]),
        lambda t: np.vstack([t, [0, t[0, 2], 0, 0, 0]]), lambda t: t[:0], lambda t: t[:, :4],
        lambda t: t.astype(np.float64), lambda t: t.ravel(),
        lambda t: np.full((1 << 19, 5), 0, np.int64),
    ):  # fmt: skip
        folder = lay(tmp_path / "s.sbm", index=lambda t, c=change: np.ascontiguousarray(c(t)))
        refuse(folder, lambda: BlockStore(folder))  # noqa: B023
    for change in (lambda c: c + np.uint32(1), lambda c: c[:0], lambda c: c.astype(np.int64)):
        folder = lay(tmp_path / "s.sbm", crcs=change)
        refuse(folder, lambda: BlockStore(folder))  # noqa: B023


def test_manifest_values_are_checked(tmp_path):
    def labels(*values: Any, counts: Any = (2, 1)) -> dict[str, Any]:
        return {"labels": {"values": list(values), "counts": list(counts)}}

    for claim in (
        {"rows": 2**61}, {"nnz": 2**61}, {"rows": 70_000}, {"nnz": 300_000}, {"rows": 1},
        {"rows": 4}, {"nnz": 0}, {"features": 2**31 - 1}, {"features": 2**31}, {"features": 5},
        {"features": 3}, {"features": -1}, {"features": "4"}, {"features": True},
        labels(1.0, math.nan), labels(1.0, 1.0), labels("a", "b"), labels(1.0, 10**400),
        labels(True, 2.0), labels(1.0), labels(-1.0, 1.0, counts=(1, 2)),
        labels(-1.0, 1.0, counts=(2**62, 1)), labels(-1.0, 1.0, counts=(2, -1)),
        labels(-1.0, 1.0, counts=(2, 1, 0)), {"labels": {}}, {"labels": None},
        {"labels": None, "class_values": []}, {"labels": None, "class_values": [math.inf, 0.0]},
        {"value_type": "ones"}, {"value_type": "float64"}, {"value_type": "int8"},
        {"dtype": "float16"}, {"version": 2}, {"version": True}, {"format": "sbm-run"},
        {"blocks": 5}, {"blocks": [{}]}, {"blocks": []}, {"blocks": ["block-000000.sbb"]},
        {"generations": [{}]}, {"generations": []}, {"generations": None},
        {"ids": (5, -7, 9, 1)}, {"ids": (5.0, 7, 9, 1)}, {"ids": ((5, 7), (9, 1))},
        {"ids": np.array([5, 7, 9, 1], np.int32)}, {"ids": (5, 7, 9)}, {"ids": (5, 7, 9, 1, 3)},
        {"ids": (5, 7, 5, 1)}, {"ids": np.zeros(1 << 22, np.int64)},
    ):  # fmt: skip
        folder = lay(tmp_path / "s.sbm", **claim)
        refuse(folder, lambda: sbm.check(folder))  # noqa: B023


def test_generation_values_are_checked(tmp_path):
    folder = lay(tmp_path / "s.sbm")
    good = read_manifest(folder)
    source, deal = good["generations"][0]["sources"][0], good["generations"][0]["deal"]
    generation = [
        {"rows": -1}, {"rows": None}, {"blocks": None}, {"blocks": [5]}, {"blocks": ["../x"]},
        {"sources": None}, {"sources": [source | {"name": 5}]},
        {"sources": [source | {"rows": -1}]},
        {"options": []}, {"left_out": 5}, {"added": "soon"}, {"added": "2026-01-01T00:00:00"},
        {"features_crc32": -1}, {"features_crc32": 2**32}, {"features_crc32": "x"},
        {"features_crc32": 5}, {"deal": deal | {"batches": [2]}}, {"deal": deal | {"batches": 3}},
        {"deal": deal | {"batches": [4, -1]}}, {"deal": deal | {"blocks": 0}},
        {"deal": deal | {"blocks": 1_000_000}}, {"deal": deal | {"first": -1}},
        {"options": {"seed": -1, "shuffle": True}}, {"options": {"seed": 0, "shuffle": 1}},
        {"expired": {"at": 5, "blocks": []}}, {"expired": {"at": "", "blocks": good["blocks"]}},
    ]  # fmt: skip
    block = [{"crc32": 5}, {"crc32": -1}, {"bytes": 4}, {"bytes": 2**62}, {"rows": "3"}]
    for place, changes in (("generations", generation), ("blocks", block)):
        for change in changes:
            bad = copy.deepcopy(good)
            bad[place][0].update(change)
            forge(folder, bad)
            refuse(folder, lambda: sbm.check(folder))
    for key, most in (("rows", 1 << 10), ("nnz", 1 << 15)):  # upper bounds per byte
        good[key] = good["blocks"][0][key] = good["blocks"][0]["bytes"] * most
        forge(folder, good)
        assert read_manifest(folder)[key] == good[key]
        good[key] = good["blocks"][0][key] = good[key] + 1
        forge(folder, good)
        refuse(folder, lambda: read_manifest(folder))
        good[key] = good["blocks"][0][key] = 0


NAMES = [
    "../x", "/etc/passwd", "a/../b", "block-000000.sbb\0", "block-000000.sbb/", "lock",
    "manifest.json", "block-٠٠٠٠٠٠.sbb", "BLOCK-000000.sbb", "block-000000.sbb\n", "", ".", 5, None,
    ["x"], "x" * 10_000,
]  # fmt: skip


@pytest.mark.parametrize("pad", [b" " * 150_000_000, b"[" + b"[],[],{}," * 2_000_000 + b"0],"])
def test_records_larger_than_plausible_are_refused(sound, store, tmp_path, pad):
    """They are refused before they are decoded, which would take a multiple of their size."""
    run = shutil.copytree(sound / "m.model.run", tmp_path / "m.model.run")
    for path, call in ((store / "manifest.json", lambda: sbm.info(store)),
                       (run / "run.json", lambda: Run.read(run))):  # fmt: skip
        sized, before = path.read_bytes(), b"{" if pad[:1] == b" " else b'{"x": '
        path.write_bytes(before + pad + sized[1:])
        with pytest.raises(StoreError, match=f"{path} has .* bytes, too many") as caught:
            call()
        assert "\n" not in str(caught.value)
        path.write_bytes(sized.replace(b"\n", b"\n   "))  # the layout does not matter
        call()


def test_manifest_of_many_blocks_is_plausible(tmp_path):
    folder = lay(tmp_path / "s.sbm")
    content = read_manifest(folder)
    [entry] = content["blocks"]
    content["blocks"] = [entry | {"file": f"block-{k:06d}.sbb"} for k in range(20_000)]
    content["rows"], content["nnz"] = 60_000, 100_000
    forge(folder, content)
    assert len(read_manifest(folder)["blocks"]) == 20_000


@pytest.mark.parametrize("place", ["file", "index", "features", "expired"])
def test_names_of_other_files_are_refused(store, place):
    manifest = read_manifest(store)
    for name in NAMES:
        bad = copy.deepcopy(manifest)
        if place == "file":
            bad["blocks"][0]["file"] = name
        elif place == "expired":
            gone = {**manifest["blocks"][0], "file": name}
            bad["generations"][0]["expired"] = {"at": "", "blocks": [gone]}
        else:
            bad["generations"][0][place] = name
        forge(store, bad)
        refuse(store, lambda: sbm.info(store), lambda: BlockStore(store))


@pytest.mark.parametrize(
    "name", ["manifest.json", "index-0000.sba", "features-0000.sba", "block-000000.sbb"]
)
def test_links_and_devices_are_not_opened(store, name):
    path, outside = store / name, store.parent / "outside"
    path.rename(outside)  # even with the right content
    for make in (
        lambda: path.symlink_to(outside), lambda: path.symlink_to("/dev/zero"),
        lambda: path.symlink_to(name), lambda: os.mkfifo(path),
    ):  # fmt: skip
        make()
        refuse(path, lambda: read_all(store), within=store.parent)
        path.unlink()
    path.mkdir()
    refuse(path, lambda: read_all(store), within=store.parent)
    path.rmdir()
    outside.rename(path)
    link = store.parent / "link.sbm"
    link.symlink_to(store)  # the store itself may be reached by a link
    assert sbm.check(link)["rows"] == 26


@pytest.mark.parametrize("is_there", [True, False])
def test_links_in_a_store_are_not_written_through(store, is_there):
    target = store.parent / "outside"
    if is_there:
        target.write_text("mine")
    (store.parent / "new.svm").write_text("1 5:1\n")
    for name in (
        "manifest.json.tmp", "block-000004.sbb", "features-0002.sba", "index-0002.sba.tmp"
    ):  # fmt: skip
        (store / name).symlink_to(target)
    sbm.split([store.parent / "new.svm"], store, append=True, threads=1)
    assert sbm.check(store)["rows"] == 27
    (store / "lock").unlink()
    (store / "lock").symlink_to(target)
    with pytest.raises(StoreError, match=r"cannot write .*lock"):
        sbm.expire(store, sources=["new.svm"])
    assert target.exists() == is_there
    assert not is_there or target.read_text() == "mine"


@pytest.mark.parametrize(
    "name", ["log.jsonl", "run.json.tmp", "lock", "state-000001.sba", "alpha-000001.sba"]
)
def test_links_in_a_run_are_not_written_through(sound, tmp_path, name):
    (tmp_path / "outside").write_text("mine")
    run = tmp_path / "x.model.run"
    run.mkdir()
    (run / name).symlink_to(tmp_path / "outside")
    with contextlib.suppress(StoreError):
        sbm.train(sound / "s.sbm", tmp_path / "x.model", QUICK)
    assert (tmp_path / "outside").read_text() == "mine"


# ---------------------------------------------------------------------------------------- models

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
    "counts": np.array([1, 0, 2], U8),
    "columns": np.array([0, 1, 2], U8),
    "values": np.array([1.0, 2.0, 3.0]),
}
WIDE = {"ids": SPARSE["ids"], "bias_weights": np.zeros(3), "W": np.ones((3, 3))}


def use(path: Path) -> None:
    """Perform every operation on a model."""
    model = sbm.Model.load(path)
    model.predict(X)
    sbm.info(path)
    (path.parent / "t.svm").write_text("1 3:1\n-1 4:2\n")
    sbm.predict(path, path.parent / "t.svm", path.parent / "out.txt", probability=True)


def test_invalid_models_are_refused(tmp_path):
    path = tmp_path / "m.model"
    for arrays in (SPARSE, WIDE):
        container.write(path, "model", arrays, META)
        use(path)
    many = {"ids": np.zeros(1 << 20, "i8"), "counts": np.zeros(1 << 20, U8), "values": np.zeros(0),
            "columns": np.zeros(0, U8), "bias_weights": np.zeros(1 << 22)}  # fmt: skip
    for change in (
        {"columns": np.array([0, 1, 3], U8)}, {"columns": np.array([0, -1, 2], np.int8)},
        {"columns": np.array([0.0, 1, 2])}, {"columns": np.array([0, 1], U8)},
        {"counts": np.array([1, 0, 3], U8)}, {"counts": np.array([2, -1, 2], np.int8)},
        {"counts": np.array([2**63, 2**63, 3], "<u8")}, {"counts": np.array([1, 2], U8)},
        {"values": np.ones(4)}, {"values": np.ones((3, 1))}, {"values": None},
        {"values": np.ones(3, np.int64)}, {"ids": np.array([3, -4, 9])},
        {"ids": np.array([3.0, 4, 9])}, {"ids": np.zeros((3, 1), "i8")}, {"bias_weights": None},
        {"bias_weights": np.zeros(2)}, {"bias_weights": np.zeros((3, 1))},
        {"bias_weights": np.zeros(3, np.float32)}, {"bias_weights": np.zeros(0)}, many,
    ):  # fmt: skip
        arrays = {k: v for k, v in {**SPARSE, **change}.items() if v is not None}
        container.write(path, "model", arrays, META)
        with pytest.raises(StoreError, match=str(path)):
            sbm.Model.load(path)
    for W in (np.ones((1, 3)), np.ones(3), np.ones((3, 0)), np.ones((3, 3), np.int64)):
        container.write(path, "model", WIDE | {"W": W}, META)
        refuse(path, lambda: sbm.Model.load(path))
    source = {"name": "a", "rows": 1}
    infos = [
        [], {"loss": 3}, {"certificate": 3}, {"sources": {}},
        {"sources": [source | {"rows": -1}]}, {"sources": [source | {"name": 3}]},
    ]  # fmt: skip
    for change in (
        {"labels": []}, {"labels": [1.0]}, {"labels": [1.0, 2.0]}, {"labels": [1.0, 1.0, 2.0]},
        {"labels": [1.0, 2.0, math.nan]}, {"labels": [True, 2.0, 3.0]}, {"bias": "x"},
        {"labels": [1.0, 2.0, 3.0, 4.0]}, {"bias": math.inf}, *({"info": info} for info in infos),
    ):  # fmt: skip
        container.write(path, "model", WIDE, META | change)
        refuse(path, lambda: sbm.Model.load(path))
    container.write(path, "model", WIDE, {})
    refuse(path, lambda: sbm.Model.load(path))
    container.write(path, "model", WIDE, META | {"labels": [3.0, -1.0, 2.0]})
    assert sbm.Model.load(path).labels == [3.0, -1.0, 2.0]


def test_model_info_cannot_override_kind(tmp_path):
    path = tmp_path / "m.model"
    info = {"kind": "store", "path": "/etc/passwd", "loss": "hinge"}
    container.write(path, "model", WIDE, META | {"info": info})
    assert (sbm.info(path)["kind"], sbm.info(path)["path"]) == ("model", str(path))


LIBLINEAR = "solver_type L2R_LR\nnr_class 3\nlabel 1 2 3\nnr_feature 2\nbias 1\nw\n" + "1 2 3\n" * 3


# ------------------------------------------------------------------------ any change of any value


def places(content: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values in JSON content."""
    found = [at] if at else []
    if isinstance(content, dict | list):
        inner = content.items() if isinstance(content, dict) else enumerate(content[:4])
        for key, value in inner:
            found += places(value, (*at, key))
    return found


def odd(data: st.DataObject, content: Any) -> Any:
    """Return content with an odd value somewhere, or without a value."""
    at = data.draw(st.sampled_from(places(content)))
    to = data.draw(st.sampled_from([*ODD, ...]))
    content = copy.deepcopy(content)
    parent = content
    for key in at[:-1]:
        parent = parent[key]
    if to is ...:
        del parent[at[-1]]
    else:
        parent[at[-1]] = to
    return content


@pytest.fixture(scope="module")
def changing(tmp_path_factory):
    """A folder whose files any example may change."""
    return tmp_path_factory.mktemp("changing")


@pytest.mark.long
@given(st.data())
def test_changed_manifest_is_refused_or_harmless(sound, changing, data):
    store = changing / "s.sbm"
    shutil.copytree(sound / "s.sbm", store, dirs_exist_ok=True)
    forge(store, odd(data, read_manifest(store)))
    refuse_or_read(
        changing, lambda: sbm.info(store), lambda: sbm.check(store),
        lambda: sbm.expire(store, before="30d", dry_run=True),
        lambda: sbm.expire(store, sources=["a.svm"], dry_run=True),
    )  # fmt: skip
    with contextlib.suppress(SbmError):
        sbm.train(store, changing / "new.model", QUICK)


@given(st.data())
def test_changed_model_is_refused_or_harmless(changing, data):
    path = changing / "m.model"
    container.write(path, "model", data.draw(st.sampled_from([SPARSE, WIDE])), odd(data, META))
    refuse_or_read(changing, lambda: use(path), lambda: sbm.export(
        path, changing / "e.sbm.model", format="sbm", prune=0.5
    ))  # fmt: skip


@given(st.integers(0, len(LIBLINEAR)), st.integers(0, 9), st.binary(max_size=12))
def test_changed_liblinear_text_is_refused_or_harmless(changing, at, length, new):
    text = LIBLINEAR.encode()
    path = changing / "m.txt"
    path.write_bytes(b"solver_type " + (text[:at] + new + text[at + length :])[12:])
    refuse_or_read(changing, lambda: sbm.info(path))


@given(st.data())
def test_changed_run_is_refused_or_harmless(sound, changing, data):
    run = changing / "m.model.run"
    shutil.copytree(sound / "m.model.run", run, dirs_exist_ok=True)
    record = json.loads((run / "run.json").read_bytes())["run"]
    (run / "run.json").write_bytes(encode_record("run", odd(data, record)))
    refuse_or_read(changing, lambda: sbm.info(run))
    with contextlib.suppress(SbmError):
        sbm.train(sound / "s.sbm", changing / "new.model", {**QUICK, "warm_start": str(run)})
