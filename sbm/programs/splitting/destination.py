"""Destination: the folder that a split writes to, and how it becomes a store, or several shards.

All is written to ``NAME.partial`` beside the store to be, which is complete when it gets its name.
A command that is killed leaves such folders behind; the next one with that name takes them over.
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

__all__ = ["appended", "new_shards", "new_store"]

# What may be done about a store that is there.
_REPLACE = "replace it with --force"
_ADD_OR_REPLACE = f"add to it with --append, {_REPLACE}"


@contextlib.contextmanager
def new_store(target: Path, force: bool) -> Iterator[Path]:
    """Give a folder to write to; on success it becomes the store, on failure nothing is left.

    Parameters
    ----------
    target : Path
        The store.
    force : bool
        Replace the one that is there.

    Yields
    ------
    Path

    Raises
    ------
    StoreError
        It is there already, or in use, or cannot be written.
    """
    _recover(target)
    _refuse_to_replace(target, force, _ADD_OR_REPLACE)
    with contextlib.ExitStack() as locks:
        _lock_older(target, locks)
        partial = _make_partial(target, locks)
        try:
            store_files.remove_leftovers(partial)
            yield partial
            _refuse_to_replace(target, force, _ADD_OR_REPLACE)
            put_in_place(partial, target)
        finally:
            remove([partial])  # an older store, or half of a new one


@contextlib.contextmanager
def appended(target: Path) -> Iterator[dict[str, Any]]:
    """Lock a store that gets new blocks; give its manifest; on failure remove what was added.

    Raises
    ------
    StoreError
        It is no store, a part of one, or in use.
    """
    store_files.require_whole(store_files.BlockStore(target))  # no lock in what is no store
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
    """Give a folder to write a store to; on success its blocks are dealt to shards.

    Names cannot be given to several folders at once. So the whole store's manifest stays in its
    folder until all shards have theirs: as long as it is there, shards of the same manifest are
    those of a command that was killed, and the next one begins anew.

    Parameters
    ----------
    target : Path
        The store whose shards are made: ``big.sbm`` for ``big.0.sbm`` and so on.
    n_shards : int
    force : bool
        Replace those that are there.

    Yields
    ------
    Path

    Raises
    ------
    StoreError
        One is there already, or in use, or cannot be written.
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
                remove(ours)  # else they are needed to take back what has a name


def _refuse_to_replace(target: Path, force: bool, ways: str) -> None:
    if target.exists() and not force:
        raise StoreError(f"{target} exists; {ways}, or name another with -o")
    if target.exists() and not (target / store_files.MANIFEST).exists():
        raise StoreError(f"{target} exists and is not a store; --force does not replace it")


def _recover(target: Path) -> None:
    """Bring back a store that a split was about to replace when it was killed."""
    old = aside(target)
    if store_files.holds_only_ours(old):
        if target.exists():
            remove([old])
        else:
            put_in_place(old, target)


def _lock_older(target: Path, locks: contextlib.ExitStack) -> None:
    """Keep a store that is to be replaced from being appended to or trained on."""
    if target.exists():
        for place in (target / "lock", target):
            locks.enter_context(lock(place, f"the store {target}"))


def _partial(target: Path) -> Path:
    return target.with_name(target.name + ".partial")


def _make_partial(target: Path, locks: contextlib.ExitStack) -> Path:
    """Make and lock the folder that becomes the store; that of a killed split is taken over."""
    if not target.parent.is_dir():
        raise StoreError(f"{target.parent} is no folder; make it, or choose another place with -o")
    partial = _partial(target)
    if partial.exists() and not store_files.holds_only_ours(partial):
        raise StoreError(f"{partial} is in the way and holds other files; move it elsewhere")
    make_folder(partial)
    locks.enter_context(lock(partial / "lock", f"the store {target}"))
    return partial


def _deal(whole: Path, partials: Sequence[Path]) -> None:
    """Move the block files of a store to its shards, and give each a copy of all else."""
    manifest = store_files.read_manifest(whole)
    blocks = [entry["file"] for entry in manifest["blocks"]]
    if len(blocks) < len(partials):
        raise DataError(
            f"{len(partials)} shards need as many blocks, and there are {len(blocks)}; give "
            "--blocks, or fewer --shards"
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
    """Give complete shards their names; on failure none has it."""
    manifest = whole / store_files.MANIFEST
    try:
        for shard in shards:
            put_in_place(_partial(shard), shard)
        with writing(manifest):
            manifest.unlink()  # they are not taken back any more
    except BaseException:
        with contextlib.suppress(StoreError):  # then the next command does it
            _take_back(whole, shards)
        raise
    with contextlib.suppress(StoreError):  # before the older shards are removed
        files.sync_folder(whole)


def _take_back(whole: Path, shards: Sequence[Path]) -> None:
    """Take their names from shards of a command that failed or was killed meanwhile."""
    for shard in shards:
        if not _is_of(whole, shard):
            continue
        partial = _partial(shard)
        if (partial / store_files.MANIFEST).exists():
            put_in_place(partial, shard)  # the older one
        elif not partial.exists():
            put_in_place(shard, partial)


def _is_of(whole: Path, shard: Path) -> bool:
    """Whether a folder is a shard of a store that is being dealt."""
    mine, its = (folder / store_files.MANIFEST for folder in (whole, shard))
    with reading(mine), reading(its):
        return mine.exists() and its.exists() and mine.read_bytes() == its.read_bytes()
