"""Block files: bounded chunks, reading in any order, and file operations."""

import errno
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from inside import CHUNK_NNZ, CHUNK_ROWS, BlockStore, BlockWriter, Rows, patch
from inside import store_container_module as container
from inside import store_files_module as files
from processes import finished

import sbm
from sbm.errors import StoreError


def test_chunks_are_bounded_in_rows_and_nonzeros(tmp_path):
    many = 2 * CHUNK_ROWS + 5
    n = np.zeros(many, np.int32)
    n[:3] = [CHUNK_NNZ // 2, CHUNK_NNZ // 2, CHUNK_NNZ + 9]  # the third alone is too long
    starts = np.concatenate([[0], np.cumsum(n[:3])[:2], np.zeros(many - 3)]).astype(np.int64)
    indices = np.concatenate([np.arange(k) for k in n[:3]]).astype(np.int32)
    y = np.arange(many, dtype=np.int32) % 257  # just takes two bytes
    with ThreadPoolExecutor(1) as pool:
        writer = BlockWriter(tmp_path, 4, 3, 1)
        nothing = np.arange(0)
        writer.add(Rows(starts, n, indices, None, y), [nothing, np.arange(many), nothing], pool)
        blocks, index = writer.finish()
    assert index[:, 0].tolist() == [4] * len(index)
    assert index[:, 3].tolist() == [2, 1, CHUNK_ROWS, CHUNK_ROWS, 2]
    assert index[:, 4].tolist() == [CHUNK_NNZ, CHUNK_NNZ + 9, 0, 0, 0]
    assert index[:, 1].tolist() == [0, *np.cumsum(index[:-1, 2]).tolist()]
    [path] = tmp_path.iterdir()
    [block] = blocks
    assert (block["file"], block["rows"]) == (path.name, many) == ("block-000004.sbb", many)
    assert block["bytes"] == path.stat().st_size
    offset, size = index[2, 1:3].tolist()
    data = path.read_bytes()[offset : offset + size]
    arrays = container.decode(data, "chunk", "here").arrays
    assert arrays["codes"].dtype == np.uint16
    assert arrays["codes"].tolist() == y[3 : 3 + CHUNK_ROWS].tolist()
    assert container.header_crc(data) == index[2, 5]


@pytest.fixture
def store(tmp_path, monkeypatch):
    """60 rows in one block of 6 chunks, in the order of the text; row k has label k % 3."""
    patch(monkeypatch, "CHUNK_ROWS", 10)
    lines = (f"{k % 3} {k}:{k}.5 {k + 1}:2" for k in range(60))
    (tmp_path / "a.svm").write_text("\n".join(lines))
    sbm.split(tmp_path / "a.svm", tmp_path / "a.sbm", blocks=1, shuffle=False, threads=1)
    return tmp_path / "a.sbm"


def test_chunks_are_read_in_any_order_after_an_offset(store):
    opened = BlockStore(store)
    chunks = [opened.chunks[0][k] for k in (4, 0, 5)]
    room = Rows(
        np.full(40, -1, np.int64), np.full(40, -1, np.int32), np.full(80, -1, np.int32),
        np.full(80, -1, np.float32), np.full(40, -1, np.int32),
    )  # fmt: skip
    got = opened.read(chunks, room, 7)
    chosen = [*range(40, 50), *range(10), *range(50, 60)]
    assert got.starts.tolist() == [7 + 2 * k for k in range(30)]
    assert got.lengths.tolist() == [2] * 30
    ids = opened.read_feature_ids()
    assert ids.tolist() == list(range(61))
    assert got.indices[7:67].tolist() == [i for k in chosen for i in (k, k + 1)]
    assert got.values is not None
    assert got.values[7:67].tolist() == [v for k in chosen for v in (k + 0.5, 2)]
    assert got.y.tolist() == [k % 3 for k in chosen]
    assert (room.indices[:7] == -1).all()
    assert (room.indices[67:] == -1).all()
    assert (room.y[30:] == -1).all()
    assert len(opened.read([], room, 7)) == 0
    assert opened.read_seconds > 0
    codes = [opened.read_codes(chunk) for chunk in opened.chunks[0]]
    assert np.concatenate(codes).tolist() == [k % 3 for k in range(60)]
    assert (opened.label_counts, opened.labels) == ([20, 20, 20], [0, 1, 2])
    for seconds, unread in ((10, 0), (0, 2)):
        left = iter(chunks)
        assert opened.read_cold(left, seconds) > 0
        assert len(list(left)) == unread


def test_missing_and_truncated_files_are_named(store):
    chunk = BlockStore(store).chunks[0][5]
    block = store / "block-000000.sbb"
    block.write_bytes(block.read_bytes()[:-1])
    with pytest.raises(StoreError, match=f"{block} is shorter"):
        BlockStore(store).read_codes(chunk)
    block.unlink()
    with pytest.raises(StoreError, match=f"{block} does not exist"):
        BlockStore(store).read_codes(chunk)
    for folder, what in ((store.parent, "has no manifest.json"), (store / "x", "does not exist")):
        with pytest.raises(StoreError, match=f"{folder}.* {what}"):
            BlockStore(folder)


# --------------------------------------------------------------------------------------- folders


def two_folders(tmp_path: Path) -> tuple[Path, Path]:
    new, old = tmp_path / "x.sbm.partial", tmp_path / "x.sbm"
    for folder, text in ((new, "new"), (old, "old")):
        folder.mkdir()
        (folder / text).write_text(text)
    return new, old


def names(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def no_swap(a: Path, b: Path) -> None:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(b))


@pytest.mark.parametrize("swaps", [True, False])
def test_complete_folder_replaces_an_older_one(tmp_path, monkeypatch, swaps):
    if not swaps:
        patch(monkeypatch, "_swap", no_swap)
    new, old = two_folders(tmp_path)
    files.put_in_place(new, old)
    assert names(tmp_path) == ["x.sbm.partial/old", "x.sbm/new"]


@pytest.mark.parametrize("swaps", [True, False])
@pytest.mark.parametrize("replaces", [True, False])
def test_failed_sync_restores_folder_names(tmp_path, monkeypatch, swaps, replaces):
    def fail(folder: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    if not swaps:
        patch(monkeypatch, "_swap", no_swap)
    new, old = two_folders(tmp_path)
    if not replaces:
        files.remove([old])
    before = names(tmp_path)
    patch(monkeypatch, "_sync", fail)
    with pytest.raises(StoreError, match=r"cannot write .*x\.sbm: Input/output error"):
        files.put_in_place(new, old)
    assert names(tmp_path) == before


def test_failed_slow_swap_restores_old_folder(tmp_path, monkeypatch):
    patch(monkeypatch, "_swap", no_swap)
    new, old = two_folders(tmp_path)
    files.remove([new])
    with pytest.raises(StoreError, match=r"x\.sbm"):
        files.put_in_place(new, old)
    assert names(tmp_path) == ["x.sbm/old"]


def test_write_error_names_the_right_file(tmp_path):
    output, missing = tmp_path / "out", tmp_path / "in"
    with pytest.raises(FileNotFoundError) as caught, files.open_atomically(output):
        missing.read_bytes()
    assert caught.value.filename == str(missing)
    assert names(tmp_path) == []
    writing = files.open_atomically(output)
    writing.__enter__()
    (unfinished,) = tmp_path.iterdir()
    unfinished.unlink()
    with pytest.raises(StoreError, match=f"cannot write {output}: it was removed"):
        writing.__exit__(None, None, None)
    assert names(tmp_path) == []


def test_two_writers_of_a_file_do_not_mix(tmp_path):
    output = tmp_path / "out"
    with files.open_atomically(output) as first, files.open_atomically(output) as second:
        for k in range(1000):
            first.write(b"1" * k)
            second.write(b"2" * (1000 - k))
    assert output.read_bytes() == b"1" * 499_500
    assert names(tmp_path) == ["out"]


@pytest.mark.process
def test_temporary_file_of_a_killed_writer_is_removed(tmp_path):
    output = tmp_path / "out"
    code = f"""
import os, pathlib, sbm.store.files
writer = sbm.store.files.open_atomically(pathlib.Path({str(output)!r}))
writer.__enter__().write(b"x")
os.kill(os.getpid(), 9)
"""
    finished([sys.executable, "-c", code])
    assert names(tmp_path) == ["out.tmp"]
    (tmp_path / "out.2.tmp").write_bytes(b"left")
    files.write_atomically(output, [b"whole"])
    assert names(tmp_path) == ["out"]
    with files.open_atomically(output) as file:
        files.write_atomically(output, [b"between"])
        file.write(b"last")
    assert output.read_bytes() == b"last"
    assert names(tmp_path) == ["out"]


def test_temporary_files_that_are_not_used_are_closed(tmp_path, monkeypatch):
    real, handles = files._is_ours, []

    def is_ours(handle):
        handles.append(handle)
        if len(handles) == 1:  # a signal
            raise KeyboardInterrupt
        return len(handles) > 2 and real(handle)  # another writer takes it for abandoned

    monkeypatch.setattr(files, "_is_ours", is_ours)
    with pytest.raises(KeyboardInterrupt):
        files.write_atomically(tmp_path / "out", [b"whole"])
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(handles[0])
    assert names(tmp_path) == []
    files.write_atomically(tmp_path / "out", [b"whole"])
    assert (tmp_path / "out").read_bytes() == b"whole"
    for handle in handles:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(handle)


def test_folders_are_made_with_their_parents(tmp_path):
    for _ in range(2):
        files.make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot write .*file/c: Not a directory"):
        files.make_folder(tmp_path / "file" / "c")
