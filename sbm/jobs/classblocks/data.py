"""The rows of a store, sorted by blocks of classes: a store of its own, as long as it is needed."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sbm.jobs.classblocks.plan import SORTED_ROW, ClassPlan
from sbm.jobs.progress import Progress
from sbm.rows import Arena
from sbm.store.blocks import (
    NONZERO_BYTES,
    BlockStore,
    BlockWriter,
    Chunk,
    write_generation,
    write_manifest,
)  # fmt: skip
from sbm.store.files import lock, make_folder, remove

__all__ = ["SortedRows", "sorted_rows"]

LEVEL = 1  # of zstd


class SortedRows:
    """A store with a block for each block of classes that has rows.

    Parameters
    ----------
    store : BlockStore
    blocks : sequence of int
        Number of each block of the store among the blocks of classes.
    n_blocks : int

    Attributes
    ----------
    store : BlockStore
    chunks : list of list of Chunk
        Of each block of classes.
    """

    def __init__(self, store: BlockStore, blocks: Sequence[int], n_blocks: int) -> None:
        self.store = store
        self.chunks: list[list[Chunk]] = [[] for _ in range(n_blocks)]
        for block, chunks in zip(blocks, store.chunks, strict=True):
            self.chunks[block] = chunks


@contextlib.contextmanager
def sorted_rows(
    store: BlockStore,
    folder: Path,
    classes: Sequence[npt.NDArray[np.int32]],
    wanted: Collection[int],
    plan: ClassPlan,
    progress: Progress,
) -> Iterator[SortedRows]:
    """Read a store once, and write its rows by blocks of classes; they are gone afterwards.

    What a block looks like depends on the plan, not on what else is wanted.

    Parameters
    ----------
    store : BlockStore
    folder : Path
        Where to put them; what is there is replaced.
    classes : sequence of ndarray of int32
        Classes of each block.
    wanted : collection of int
        The blocks that are needed.
    plan : ClassPlan
    progress : Progress

    Yields
    ------
    SortedRows

    Raises
    ------
    StoreError
        Something cannot be read or written, or another process is at work there.
    """
    make_folder(folder.parent)
    with lock(folder.with_name(folder.name + ".lock"), f"the run {folder.parent}"):
        remove([folder])
        make_folder(folder)
        try:
            yield _sort(store, folder, classes, wanted, plan, progress)
        finally:
            remove([folder])


def _sort(
    store: BlockStore,
    folder: Path,
    classes: Sequence[npt.NDArray[np.int32]],
    wanted: Collection[int],
    plan: ClassPlan,
    progress: Progress,
) -> SortedRows:
    """Write the rows, an index and a manifest."""
    block_of = np.empty(sum(map(len, classes)), np.int32)
    for block, mine in enumerate(classes):
        block_of[mine] = block if block in wanted else len(classes)
    counts = np.array(store.label_counts)
    filled = [b for b in sorted(wanted) if counts[classes[b]].sum() > 0]
    progress.start("sort", store.n_rows, "rows")
    with ThreadPoolExecutor(1, "sbm-write") as pool:
        writer = BlockWriter(folder, 0, len(classes), LEVEL, pool)
        _write_rows(store, writer, block_of, plan, progress)
        blocks, index = writer.finish()
    progress.finish()
    generation = {
        **write_generation(folder, 0, np.empty(0, np.int64), index),
        "rows": sum(entry["rows"] for entry in blocks),
        "blocks": [entry["file"] for entry in blocks],
        "sources": [], "options": {}, "added": store.manifest["generations"][0]["added"],
    }  # fmt: skip
    manifest = {
        **store.manifest,
        "blocks": blocks,
        "rows": generation["rows"],
        "nnz": sum(entry["nnz"] for entry in blocks),
        "generations": [generation],
    }
    write_manifest(folder, manifest)
    return SortedRows(BlockStore(folder), filled, len(classes))


def _write_rows(
    store: BlockStore,
    writer: BlockWriter,
    block_of: npt.NDArray[np.int32],
    plan: ClassPlan,
    progress: Progress,
) -> None:
    """Deal the rows of the store to blocks, in its order, as many at a time as there is room."""
    batches = list(_batches(store, plan.batch))
    n_rows = max(sum(c.rows for c in batch) for batch in batches)
    nnz = max(sum(c.nnz for c in batch) for batch in batches)
    room = Arena.of(nnz, store.value_type).room(n_rows)
    done = 0
    for batch in batches:
        rows = store.read(batch, room, 0)
        blocks = block_of[rows.y]
        deal = [np.flatnonzero(blocks == b) for b in range(writer.n_blocks)]
        for k in range(0, max(map(len, deal)), plan.chunk_rows):
            writer.add(rows, [mine[k : k + plan.chunk_rows] for mine in deal])
        writer.wait()
        done += len(rows)
        progress.advance(done)


def _batches(store: BlockStore, room: int) -> Iterator[list[Chunk]]:
    """Yield chunks of the store that are decoded together."""
    nonzero = NONZERO_BYTES[store.value_type]
    batch: list[Chunk] = []
    taken = 0
    for chunk in (c for chunks in store.chunks for c in chunks):
        size = nonzero * chunk.nnz + SORTED_ROW * chunk.rows
        if batch and taken + size > room:
            yield batch
            batch, taken = [], 0
        batch.append(chunk)
        taken += size
    yield batch
