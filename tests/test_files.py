import errno
import os
from pathlib import Path

import pytest

from sbm.errors import StoreError
from sbm.store import files


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
def test_a_complete_folder_takes_the_place_of_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swaps: bool
) -> None:
    if not swaps:
        monkeypatch.setattr(files, "_swap", no_swap)
    new, old = two_folders(tmp_path)
    files.put_in_place(new, old)
    assert names(tmp_path) == ["x.sbm.partial/old", "x.sbm/new"]


@pytest.mark.parametrize("swaps", [True, False])
@pytest.mark.parametrize("there_was_one", [True, False])
def test_names_are_as_they_were_where_they_cannot_be_made_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, swaps: bool, there_was_one: bool
) -> None:
    def fail(folder: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    if not swaps:
        monkeypatch.setattr(files, "_swap", no_swap)
    new, old = two_folders(tmp_path)
    if not there_was_one:
        files.remove([old])
    before = names(tmp_path)
    monkeypatch.setattr(files, "_sync", fail)
    with pytest.raises(StoreError, match=r"cannot write .*x\.sbm: Input/output error; choose"):
        files.put_in_place(new, old)
    assert names(tmp_path) == before


def test_an_error_of_another_file_is_not_blamed_on_the_one_that_is_written(tmp_path: Path) -> None:
    output, missing = tmp_path / "out", tmp_path / "in"
    with pytest.raises(FileNotFoundError) as caught, files.open_atomically(output):
        missing.read_bytes()
    assert caught.value.filename == str(missing)
    assert names(tmp_path) == []


def test_a_file_that_is_removed_while_it_is_written_is_told(tmp_path: Path) -> None:
    message = f"cannot write {tmp_path / 'out'}: something removed it meanwhile; run the same"
    writing = files.open_atomically(tmp_path / "out")
    writing.__enter__()
    (unfinished,) = tmp_path.iterdir()
    unfinished.unlink()
    with pytest.raises(StoreError, match=message):
        writing.__exit__(None, None, None)
    assert names(tmp_path) == []


def test_folders_are_made_with_those_they_lie_in(tmp_path: Path) -> None:
    files.make_folder(tmp_path / "a" / "b")
    files.make_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"cannot write .*file/c: Not a directory; choose"):
        files.make_folder(tmp_path / "file" / "c")
