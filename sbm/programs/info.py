"""Info: describe a store, run or model. Check: verify every byte of a store."""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.engine.kernels import STORE, prepare, types_of_dtype
from sbm.engine.progress import Progress
from sbm.errors import StoreError, require_path
from sbm.models.liblinear import load_model
from sbm.programs.reporting.figures import read_log
from sbm.rows import Arena
from sbm.settings import used_by
from sbm.store.blocks import (
    MANIFEST,
    NONZERO_BYTES,
    BlockStore,
    kept_generations,
    telling_change,
)
from sbm.store.run import LOG, RECORD, Run, is_finished, sources_at


def info(path: str | Path) -> dict[str, Any]:
    """Describe a store, a run or a model.

    Parameters
    ----------
    path : str or Path
        A store ``*.sbm``, a run folder ``*.run`` or a model file (of `sbm.train` or LIBLINEAR).

    Returns
    -------
    dict
        ``kind`` is ``store``, ``run`` or ``model``; the other keys depend on it.

    Raises
    ------
    StoreError
        The path is none of these, or damaged.
    """
    require_path(path, "what to describe")
    path = Path(path)
    if path.is_dir():
        if (path / MANIFEST).exists():
            return _store(path)
        if (path / RECORD).exists() or (path / LOG).exists():
            return _run(path)
        raise StoreError(f"{path} is neither a store (no {MANIFEST}) nor a run (no run.json)")
    if not path.exists():
        raise StoreError(f"{path} does not exist; expected a store, a run or a model")
    return _model(path)


def _store(path: Path) -> dict[str, Any]:
    store = BlockStore(path)
    size = sum(b["bytes"] for b in store.manifest["blocks"])
    labels = store.manifest["labels"]
    kept = kept_generations(store.manifest)
    return {
        "kind": "store",
        "path": str(path),
        "format_version": store.manifest["version"],
        "rows": store.n_rows,
        "features": store.n_features,
        "nnz": store.nnz,
        "nnz_per_row": store.nnz / store.n_rows if store.n_rows else 0.0,
        "value_type": store.value_type,
        "blocks": store.n_blocks,
        **_shard(store),
        "chunks": sum(len(c) for c in store.chunks),
        "block_rows": [b["rows"] for b in store.manifest["blocks"]],
        "bytes": size,
        "bits_per_nonzero": 8 * size / store.nnz if store.nnz else 0.0,
        # What all rows would take in memory.
        "memory_bytes": store.nnz * NONZERO_BYTES[store.value_type] + 16 * store.n_rows,
        "labels": labels,
        "names_bytes": store.names_bytes,
        "sources": [
            {**source, "added": generation["added"]}
            for generation in kept
            for source in generation["sources"]
        ],
        "expired": [
            {**source, "added": generation["added"], "expired": generation["expired"]["at"]}
            for generation in store.manifest["generations"]
            if "expired" in generation
            for source in generation["sources"]
        ],
        "options": [g["options"] for g in kept],
        "left_out": [
            {"min_count": g["options"]["min_count"], **g["left_out"]}
            for g in kept
            if "left_out" in g
        ],
    }


def _shard(store: BlockStore) -> dict[str, Any]:
    """Return which part of a store this is, if it is a shard."""
    shard, here = store.shard, store.blocks_here
    if shard is None:
        return {}
    facts = {"number": shard.number, "of": shard.of, "here": here, "blocks": store.n_blocks}
    return {"shard": facts}


def _run(path: Path) -> dict[str, Any]:
    log = read_log(path / LOG, dict, skip_damaged=True)
    committed = Run.read(path) if (path / RECORD).exists() else {}
    passes = [record for record in log if record["event"] == "pass"]
    ends = [record for record in log if record["event"] == "end"]
    if committed.get("kind") == "stream":
        finished = bool(ends) and log[-1] is ends[-1] and not ends[-1].get("stopped")
        return _stream(path, committed, finished)
    return {
        "kind": "run",
        "path": str(path),
        "finished": is_finished(committed) if committed else bool(ends),
        "store": committed.get("store"),
        "passes": committed.get("passes", max([record["pass"] for record in passes], default=0)),
        "certificate": committed.get("certificate"),
        "settings": committed.get("settings"),  # None before the first checkpoint
        "bytes": sum(_size(p) for p in path.iterdir()),
        "log": passes,
    }


def _stream(path: Path, record: dict[str, Any], finished: bool) -> dict[str, Any]:
    """Describe the run of a stream."""
    return {
        "kind": "run",
        "path": str(path),
        "finished": finished,
        "rows": record["learner"]["rows"],
        "rows_not_learned": record["left"],
        "features": record["seen"]["features"],
        "blocks": record["blocks"],
        "sources": sources_at(record["sources"]),
        "settings": used_by("stream", record["settings"]),
        "bytes": sum(_size(p) for p in path.iterdir()),
        "log": [],
    }


def _size(path: Path) -> int:
    """Return the size of a file, or 0 if it is being replaced."""
    with contextlib.suppress(OSError):
        return path.stat().st_size
    return 0


def _model(path: Path) -> dict[str, Any]:
    model = load_model(path)
    facts = {
        "kind": "model",
        "path": str(path),
        "bytes": path.stat().st_size,
        "features": len(model.ids),
        "nonzero_weights": model.n_nonzero,
        "outputs": model.W.shape[1],
        "labels": model.label_names or model.labels,
        "bias": model.bias,
    }
    return {**facts, **model.info, **facts}  # facts first, and not overridden by the model


def check(path: str | Path, *, progress: Progress | None = None) -> dict[str, Any]:
    """Read every byte of a store and verify checksums and invariants.

    Parameters
    ----------
    path : str or Path
    progress : Progress, optional
        Receives the rows read.

    Returns
    -------
    dict
        ``rows``, ``chunks``, ``bytes`` and ``features`` verified, and ``unused_features``, the
        number of ids that no row uses. For a shard, only its own blocks are verified;
        ``elsewhere`` is the number of the others, which may use these ids.

    Raises
    ------
    StoreError
        The first damage found, with its place.
    """
    require_path(path, "the store")
    if Path(path).is_file():
        raise StoreError(
            f"{path} is a file, but a store is a folder written by sbm split; use sbm info to "
            "verify a model"
        )
    with telling_change(Path(path)):
        return _check(BlockStore(path), Progress.of(progress))


def _check(store: BlockStore, progress: Progress) -> dict[str, Any]:
    path = store.folder
    prepare("reading", STORE, types_of_dtype(store.manifest["dtype"]), progress)
    ids = store.read_feature_ids()
    if len(np.unique(ids)) != len(ids):
        raise StoreError(
            f"{path}: a feature id occurs twice in the dictionary; split the data again"
        )
    seen = np.zeros(store.n_features, np.bool_)
    y_dtype = "float64" if store.labels is None else "int32"
    counts = np.zeros(len(store.labels or []), np.int64)
    rows_read = chunks_read = 0
    here = set(store.blocks_here)
    elsewhere = {b for b in range(store.n_blocks) if store.is_elsewhere(b)} - here
    blocks = [b for b in range(store.n_blocks) if b not in elsewhere]
    entries = [store.manifest["blocks"][b] for b in blocks]
    chunks = [chunk for b in blocks for chunk in store.chunks[b]]
    for entry in entries:
        file = store.folder / entry["file"]
        if _size(file) != entry["bytes"]:
            raise StoreError(
                f"{file} has {_size(file)} bytes, but the manifest says {entry['bytes']}; "
                "split the data again"
            )
    progress.start("check", sum(entry["rows"] for entry in entries), "rows")
    for chunk in chunks:
        room = Arena.of(chunk.nnz, store.value_type).room(chunk.rows, y_dtype)
        rows = store.read([chunk], room, 0)
        seen[rows.indices] = True
        if rows.values is not None and not np.isfinite(rows.values).all():
            raise StoreError(
                f"{path}: block {chunk.block} at byte {chunk.offset} holds an infinite or nan "
                "value; split the data again"
            )
        if store.labels is not None:
            counts += np.bincount(rows.y, minlength=len(counts))
        rows_read += len(rows)
        chunks_read += 1
        progress.advance(rows_read, rows=rows_read)
    progress.finish()
    if not elsewhere and not _adds_up(store, rows_read, counts):
        raise StoreError(
            f"{path}: the manifest's counts do not match the blocks; split the data again"
        )
    return {
        "store": str(path),
        "rows": rows_read,
        "chunks": chunks_read,
        "bytes": sum(entry["bytes"] for entry in entries),
        "features": len(ids),
        "unused_features": int(np.count_nonzero(~seen)),
        "elsewhere": len(elsewhere),
    }


def _adds_up(store: BlockStore, rows: int, counts: npt.NDArray[np.int64]) -> bool:
    """Whether the counts of the manifest match the blocks."""
    labels = store.manifest["labels"]
    nnz = sum(chunk.nnz for block in store.chunks for chunk in block)
    counted = rows == store.n_rows and nnz == store.nnz
    return counted and (not labels or counts.tolist() == labels["counts"])
