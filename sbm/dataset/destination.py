"""Folders that a split writes to, and how they become a store or several shards.

A store is written to ``NAME.partial`` and renamed when it is complete. A killed command leaves such
a folder; the next command with the same target reuses it.
"""

import contextlib
import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from sbm.errors import DataError, StoreError
from sbm.store import blocks as store_files
from sbm.store import files
from sbm.store.files import aside, lock, make_folder, put_in_place, reading, remove, writing
from sbm.store.shards import Shard, shard_path, write_shard

# Advice for a target that already exists.
_REPLACE = "replace it with --force, or choose another name with -o"
_ADD_OR_REPLACE = f"add to it with --append, {_REPLACE}"


@contextlib.contextmanager
def new_store(target: Path, force: bool, ways: str = _ADD_OR_REPLACE) -> Iterator[Path]:
    """Provide a folder to write to. On success it becomes the store; on failure it is removed.

    Parameters
    ----------
    target : Path
        The store.
    force : bool
        Replace an existing store.
    ways : str
        Advice if it exists.

    Raises
    ------
    StoreError
        The store exists, is in use, or cannot be written.
    """
    _recover(target)
    _refuse_to_replace(target, force, ways)
    with contextlib.ExitStack() as locks:
        _lock_older(target, locks)
        # At the end it holds an older store, or an incomplete one.
        partial = locks.enter_context(_removed_at_end(target))
        yield partial
        _refuse_to_replace(target, force, ways)
        put_in_place(partial, target)


@contextlib.contextmanager
def scratch(target: Path) -> Iterator[Path]:
    """Provide the folder ``TARGET.partial``, which is removed at the end and not made durable."""
    with files.unsynced(_partial(target)), _removed_at_end(target) as partial:
        yield partial


@contextlib.contextmanager
def _removed_at_end(target: Path) -> Iterator[Path]:
    with contextlib.ExitStack() as locks:
        partial = _make_partial(target, locks)
        try:
            store_files.remove_leftovers(partial)
            yield partial
        finally:
            remove([partial])


@contextlib.contextmanager
def appended(target: Path) -> Iterator[dict[str, Any]]:
    """Lock a store to append to and yield its manifest. On failure, remove what was added.

    Raises `StoreError` if the target is not a store, is a shard, or is in use.
    """
    store_files.require_whole(store_files.BlockStore(target))  # create no lock file elsewhere
    with lock(target / "lock", f"the store {target}"):
        manifest = store_files.read_manifest(target)
        store_files.remove_leftovers(target, manifest)
        with reading(target):
            before = set(target.iterdir())
        try:
            yield copy.deepcopy(manifest)
        except BaseException:
            with contextlib.suppress(StoreError):
                if store_files.read_manifest(target) == manifest:
                    new = [p for p in target.iterdir() if p not in before]
                    remove(new)
            raise


@contextlib.contextmanager
def new_shards(target: Path, n_shards: int, force: bool) -> Iterator[Path]:
    """Provide a folder to write a store to. On success its blocks are dealt to shards.

    Several folders cannot be renamed atomically. So the manifest of the whole store stays in its
    folder until all shards are renamed. If a later command finds it, shards with the same manifest
    are from a killed command and are undone.

    Parameters
    ----------
    target : Path
        The store to divide: ``big.sbm`` for ``big.0.sbm`` and so on.
    force : bool
        Replace existing shards.

    Raises
    ------
    StoreError
        A shard exists, is in use, or cannot be written.
    DataError
        There are fewer blocks than shards.
    """
    shards = [shard_path(target, number) for number in range(n_shards)]
    with contextlib.ExitStack() as locks:
        whole = _make_partial(target, locks)
        ours = [whole]
        try:
            _take_back(whole, shards)
            for shard in shards:
                _recover(shard)
                _refuse_to_replace(shard, force, _REPLACE)
            store_files.remove_leftovers(whole)
            for shard in shards:
                _lock_older(shard, locks)
                ours.append(_make_partial(shard, locks))
                store_files.remove_leftovers(ours[-1])
            yield whole
            _deal(whole, ours[1:])
            for shard in shards:
                _refuse_to_replace(shard, force, _REPLACE)
            _put_all_in_place(whole, shards)
        finally:
            if not any(_is_of(whole, shard) for shard in shards):
                remove(ours)  # otherwise they are needed to undo the renaming


def _refuse_to_replace(target: Path, force: bool, ways: str) -> None:
    if target.exists() and not force:
        raise StoreError(f"{target} exists; {ways}")
    if target.exists() and not (target / store_files.MANIFEST).exists():
        raise StoreError(f"{target} exists and is not a store; --force does not replace it")
    if target.exists() and (others := store_files.foreign_files(target)):
        raise StoreError(
            f"{target} also holds {others[0]}, which is not a file of sbm; move it elsewhere"
        )


def _recover(target: Path) -> None:
    """Restore a store that a killed split was about to replace."""
    old = aside(target)
    if store_files.holds_only_ours(old):
        if target.exists():
            remove([old])
        else:
            put_in_place(old, target)


def _lock_older(target: Path, locks: contextlib.ExitStack) -> None:
    """Lock a store to be replaced against appending and training."""
    if target.exists():
        for place in (target / "lock", target):
            locks.enter_context(lock(place, f"the store {target}"))


def _partial(target: Path) -> Path:
    return target.with_name(target.name + ".partial")


def _make_partial(target: Path, locks: contextlib.ExitStack) -> Path:
    """Create and lock the folder that becomes the store, or reuse that of a killed split."""
    if not target.parent.is_dir():
        raise StoreError(f"{target.parent} is not a folder; create it, or use another with -o")
    partial = _partial(target)
    if partial.exists() and not store_files.holds_only_ours(partial):
        raise StoreError(f"cannot use {partial}, which holds other files; move it elsewhere")
    make_folder(partial)
    locks.enter_context(lock(partial / "lock", f"the store {target}"))
    return partial


def _deal(whole: Path, partials: Sequence[Path]) -> None:
    """Move the block files of a store to its shards, and copy all other files to each."""
    manifest = store_files.read_manifest(whole)
    blocks = [entry["file"] for entry in manifest["blocks"]]
    if len(blocks) < len(partials):
        raise DataError(
            f"{len(partials)} shards need at least one block each, but there are {len(blocks)} "
            "blocks; raise --blocks or lower --shards"
        )
    others = [g[key] for g in manifest["generations"] for key in ("features", "index")]
    for number, partial in enumerate(partials):
        shard = Shard(number, len(partials))
        for name in others:
            files.copy(whole / name, partial)
        files.move([whole / name for b, name in enumerate(blocks) if shard.holds(b)], partial)
        write_shard(partial, shard)
        files.copy(whole / store_files.MANIFEST, partial)  # last, as in any store


def _put_all_in_place(whole: Path, shards: Sequence[Path]) -> None:
    """Rename complete shards to their final names; on failure undo it."""
    manifest = whole / store_files.MANIFEST
    try:
        for shard in shards:
            put_in_place(_partial(shard), shard)
        with writing(manifest):
            manifest.unlink()  # from now on the renaming is not undone
    except BaseException:
        with contextlib.suppress(StoreError):  # otherwise the next command does it
            _take_back(whole, shards)
        raise
    with contextlib.suppress(StoreError):  # before the older shards are removed
        files.sync_folder(whole)


def _take_back(whole: Path, shards: Sequence[Path]) -> None:
    """Undo the renaming of shards by a command that failed or was killed."""
    for shard in shards:
        if not _is_of(whole, shard):
            continue
        partial = _partial(shard)
        if (partial / store_files.MANIFEST).exists():
            put_in_place(partial, shard)  # restores the older shard
        elif not partial.exists():
            put_in_place(shard, partial)


def _is_of(whole: Path, shard: Path) -> bool:
    """Whether a folder is a shard of the store in `whole`."""
    mine, its = (folder / store_files.MANIFEST for folder in (whole, shard))
    with reading(mine), reading(its):
        return mine.exists() and its.exists() and mine.read_bytes() == its.read_bytes()
