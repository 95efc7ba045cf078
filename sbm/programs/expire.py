"""Expire: drop the blocks of old sources from a store.

The rows added by one run of ``sbm split`` are in separate blocks, so they can be dropped without
rewriting other rows: the manifest is written without these blocks, then their files are removed.
A later warm start drops their alphas, too.

Feature ids and labels keep their indices and codes, so models and runs stay valid. But sources that
are dropped by name take along the labels that came last and have no rows left, as if these sources
had never been appended.
"""

import contextlib
import copy
import datetime
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.engine.progress import Progress
from sbm.errors import DataError, SettingsError, StoreError
from sbm.inputs.urls import without_query
from sbm.store import blocks as store_files
from sbm.store.blocks import BlockStore, require_whole
from sbm.store.files import lock
from sbm.units import parse_moment

Generation = dict[str, Any]  # an entry of the manifest
NAMED = 10  # most sources named in an error message


def expire(
    store: str | Path,
    *,
    before: str | datetime.datetime | None = None,
    sources: str | Path | Sequence[str | Path] = (),
    if_any: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Drop sources from a store, with all of their rows.

    Parameters
    ----------
    store : str or Path
    before : str or datetime, optional
        Drop what was added before this ISO date or time (UTC if it names no zone), or ``30d`` ago.
    sources : str, Path or sequence of these
        Alternative: names of sources, as `sbm.info` shows them, or paths that end in these.
    if_any : bool
        If nothing matches, report that instead of raising.
    dry_run : bool
        Only report; do not change the store.
    progress : Progress, optional
        Receives the rows counted.

    Returns
    -------
    dict
        ``store``, ``sources`` (a dict each: name, added, rows, bytes of text), ``rows``, ``blocks``
        and ``bytes`` dropped, ``rows_left``, ``labels_without_rows``, ``labels_dropped``,
        ``dry_run``.

    Raises
    ------
    SettingsError
        Neither or both of `before` and `sources` are given, or `before` is not a date.
    DataError
        Nothing matches, everything matches, or rows to drop share a block with rows that stay.
    StoreError
        The store is missing, a shard, damaged, in use, or not writable.
    """
    names = [sources] if isinstance(sources, str | Path) else list(sources)
    if before is not None and names:
        raise SettingsError("--before and --source exclude each other; give one of them")
    if before is None and not names:
        raise SettingsError("nothing to drop was named; give --before DATE or --source NAME")
    folder, progress = Path(store), Progress.of(progress)
    require_whole(BlockStore(folder))
    at_rest = contextlib.nullcontext(set[str]()) if dry_run else _at_rest(folder)
    with at_rest as removed:
        manifest = store_files.read_manifest(folder)
        finished = _finished(manifest, removed)
        if finished:
            progress.stage(f"{folder}: {_names(finished)} was dropped by an earlier command")
        if before is None:
            done = {source["name"] for source in finished}
            chosen = _named(folder, manifest, [str(name) for name in names], if_any, done)
        else:
            moment = parse_moment(before) if isinstance(before, str) else before
            is_optional = if_any or bool(finished)
            chosen = _added_before(folder, manifest, moment, str(before), is_optional)
        if chosen and len(chosen) == len(store_files.kept_generations(manifest)):
            raise DataError(
                f"this would drop all rows of {folder}; build a new store with sbm split --force, "
                "or remove the folder"
            )
        left = _without(BlockStore(folder), chosen, progress)
        if before is None and left["labels"] is not None:
            _drop_last_labels(left["labels"])
        if chosen and not dry_run:
            store_files.write_manifest(folder, left)
            store_files.remove_leftovers(folder, left)
        return _report(folder, manifest, left, chosen) | {"dry_run": dry_run}


@contextlib.contextmanager
def _at_rest(folder: Path) -> Iterator[set[str]]:
    """Lock a store against appending and training, and remove files of killed commands.

    Yields the names of these files.
    """
    store_files.read_manifest(folder)  # create no lock file in a folder that is not a store
    with contextlib.ExitStack() as locks:
        for place in (folder / "lock", folder):
            locks.enter_context(lock(place, f"the store {folder}"))
        yield store_files.remove_leftovers(folder, store_files.read_manifest(folder))


def _finished(manifest: dict[str, Any], removed: set[str]) -> list[dict[str, Any]]:
    """Return the sources that a killed command dropped, whose files were removed only now."""
    gone = [g for g in manifest["generations"] if "expired" in g]
    return [s for g in gone if removed.intersection(g["blocks"]) for s in _with_rows(g)]


def _with_rows(generation: Generation) -> list[dict[str, Any]]:
    """Return the sources of a generation that have rows."""
    return [source for source in generation["sources"] if source["rows"]]


def _names(sources: Sequence[dict[str, Any]]) -> str:
    """Return the names of sources for a message, at most `NAMED`."""
    names = list(dict.fromkeys(source["name"] for source in sources))
    shown = ", ".join(names[:NAMED])
    return shown + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _added_before(
    folder: Path, manifest: dict[str, Any], moment: datetime.datetime, words: str, if_any: bool
) -> list[Generation]:
    """Return the generations added before a moment."""
    moment = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
    kept = store_files.kept_generations(manifest)
    added = [datetime.datetime.fromisoformat(generation["added"]) for generation in kept]
    chosen = [g for g, when in zip(kept, added, strict=True) if when < moment]
    if not chosen and not if_any:
        oldest = kept[added.index(min(added))]
        raise DataError(
            f"{folder} has no source added before {words}; the oldest "
            f"({_names(_with_rows(oldest))}) was added {oldest['added']}; use a later date, or "
            "--if-any"
        )
    return chosen


def _named(
    folder: Path, manifest: dict[str, Any], names: list[str], if_any: bool, done: set[str]
) -> list[Generation]:
    """Return the generations of the named sources; `done` are names that may be missing."""
    kept = store_files.kept_generations(manifest)
    known = [source for generation in kept for source in _with_rows(generation)]
    names = [without_query(name) for name in names]
    present = done.union(source["name"] for source in known)
    wanted = {_meant(name, present): name for name in names}
    missing = [wanted[name] for name in wanted if name not in present]
    if missing and not if_any:
        gone = [g for g in manifest["generations"] if "expired" in g]
        for generation in gone:
            dropped = {source["name"] for source in generation["sources"]}
            if _meant(missing[0], dropped) in dropped:
                raise DataError(
                    f"{missing[0]} was already dropped from {folder} at "
                    f"{generation['expired']['at']}; leave it out, or use --if-any"
                )
        raise DataError(f"{folder} has no source {missing[0]}; sources are {_names(known)}")
    chosen = []
    for generation in kept:
        mine = _with_rows(generation)
        others = [source for source in mine if source["name"] not in wanted]
        if len(others) == len(mine):
            continue
        if others:
            named = [source for source in mine if source["name"] in wanted]
            raise DataError(
                f"{_names(named)} was added to {folder} together with {_names(others)}, so their "
                "rows share blocks; drop all of them, or rebuild the store and append sources one "
                "by one"
            )
        chosen.append(generation)
    return chosen


def _meant(name: str, known: set[str]) -> str:
    """Return the name of a source that a path ends in, or the path if there is none."""
    path = Path(name).parts
    ends = (str(Path(*path[k:])) for k in range(len(path)))
    return next((end for end in ends if end in known), name)


def _without(store: BlockStore, chosen: Sequence[Generation], progress: Progress) -> dict[str, Any]:
    """Return the manifest without the blocks of some generations."""
    gone = {name for generation in chosen for name in generation["blocks"]}
    blocks = store.manifest["blocks"]
    manifest = copy.deepcopy(store.manifest)
    manifest["blocks"] = [entry for entry in blocks if entry["file"] not in gone]
    for key in ("rows", "nnz"):
        manifest[key] = sum(entry[key] for entry in manifest["blocks"])
    if store.labels is not None:
        numbers = [k for k, entry in enumerate(blocks) if entry["file"] in gone]
        counts = np.array(manifest["labels"]["counts"]) - _count(store, numbers, progress)
        if counts.min() < 0:
            raise StoreError(f"{store.folder}: labels do not match the manifest; run sbm check")
        manifest["labels"]["counts"] = counts.tolist()
    at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    for generation in manifest["generations"]:
        if "expired" not in generation and gone.intersection(generation["blocks"]):
            # A warm start identifies the blocks of an earlier run by these entries.
            mine = [entry for entry in blocks if entry["file"] in generation["blocks"]]
            generation["expired"] = {"at": at, "blocks": mine}
    return manifest


def _drop_last_labels(labels: dict[str, Any]) -> None:
    """Drop the labels with the largest codes that have no rows."""
    while labels["counts"] and not labels["counts"][-1]:
        labels["counts"].pop()
        labels["values"].pop()
    names = labels.get("names", [])
    while names and float(len(names) - 1) not in labels["values"]:
        names.pop()


def _count(store: BlockStore, blocks: Sequence[int], progress: Progress) -> npt.NDArray[np.int64]:
    """Return the number of rows of each class code in some blocks."""
    counts = np.zeros(len(store.labels or []), np.int64)
    total = sum(store.manifest["blocks"][block]["rows"] for block in blocks)
    done = 0
    progress.start("expire", total, "rows")
    for block in blocks:
        for chunk in store.chunks[block]:
            codes = store.read_codes(chunk)
            if int(codes.max(initial=0)) >= len(counts):
                raise StoreError(
                    f"{store.folder} holds a class code without a label; run sbm check"
                )
            counts += np.bincount(codes, minlength=len(counts))
            done += chunk.rows
            progress.advance(done, rows=done)
    progress.finish()
    return counts


def _report(
    folder: Path, before: dict[str, Any], after: dict[str, Any], chosen: Sequence[Generation]
) -> dict[str, Any]:
    """Return the totals of the dropped rows."""
    labels, counts = after["labels"], before["labels"]
    empty, gone = [], []
    if labels is not None:
        words = dict(enumerate(counts.get("names", [])))
        values, n = [words.get(label, label) for label in counts["values"]], len(labels["values"])
        were = zip(values, counts["counts"], labels["counts"], strict=False)
        empty = [label for label, was, now in were if was and not now]
        gone = values[n:]
    dropped = {
        key: sum(entry[key] for entry in before["blocks"])
        - sum(entry[key] for entry in after["blocks"])
        for key in ("rows", "bytes")
    }
    return {
        "store": str(folder),
        "sources": [
            {key: source[key] for key in ("name", "rows", "bytes")} | {"added": g["added"]}
            for g in chosen
            for source in _with_rows(g)
        ],
        **dropped,
        "blocks": len(before["blocks"]) - len(after["blocks"]),
        "rows_left": after["rows"],
        "labels_without_rows": empty,
        "labels_dropped": gone,
    }
