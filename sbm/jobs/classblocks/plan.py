"""The memory plan of a training by blocks of classes.

One half of what the bound leaves is for weights, the other half for rows: so the parts in which
two blocks are solved, and with them the model, do not depend on how many blocks of weights a
process holds, which is less the more processes there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sbm.errors import MemoryPlanError
from sbm.jobs.classblocks.schedule import Schedule
from sbm.jobs.machine.memory import BUFFER_ROW, INTERPRETER, OVERHEAD, Shape, row_bytes
from sbm.settings import format_size
from sbm.store.blocks import CHUNK_NNZ, NONZERO_BYTES, BlockStore, Chunk

__all__ = ["ClassPlan", "cut_meeting", "plan_classes"]

# Order of the rows by class; all variables, and their places as they turn into lists again.
_PAIR_ROW = 64
_PAIR_VARIABLE = 8 + 16 + 12

# Encoding of rows that are sorted, and encoded variables on their way to the disk.
ENCODING, UNWRITTEN_BYTES = 16_000_000, 4_000_000
# While a chunk is decoded: its bytes and symbols, a nonzero.
DECODE_NONZERO = 12
# Sorting the rows of a batch: start, length, class; block, order.
SORTED_ROW = BUFFER_ROW + 4 + 8 + 8
# A chunk of sorted rows takes at most this share of what there is for rows.
CHUNK_SHARE = 16


@dataclass(frozen=True)
class ClassPlan:
    """How the bytes are spent.

    Attributes
    ----------
    room : int
        Bytes for rows at work, or rows being sorted.
    chunk_rows : int
        Most rows of a chunk of sorted rows.
    row, nonzero : int
        Bytes of a row at work, its variables included, and of a nonzero: of two buffers for both.
    items : dict of str to int
        Bytes by purpose.
    """

    room: int
    chunk_rows: int
    row: int
    nonzero: int
    items: dict[str, int]

    @property
    def total(self) -> int:
        """Bytes in all."""
        return sum(self.items.values())

    @property
    def batch(self) -> int:
        """Bytes of rows that are sorted at a time."""
        return self.room - ENCODING

    def bytes_of(self, chunks: Sequence[Chunk]) -> int:
        """Bytes of rows at work."""
        return sum(self.nonzero * chunk.nnz + self.row * chunk.rows for chunk in chunks)

    def describe(self) -> str:
        """The items in words."""
        return ", ".join(f"{name} {format_size(size)}" for name, size in self.items.items())


def plan_classes(
    store: BlockStore, mem: int, schedule: Schedule, sizes: Sequence[int], n_weights: int
) -> ClassPlan:
    """Turn a memory bound into room for rows, the same for any number of processes.

    Parameters
    ----------
    store : BlockStore
    mem : int
        Bytes of each process.
    schedule : Schedule
    sizes : sequence of int
        Classes of each block.
    n_weights : int
        Weights of a class.

    Returns
    -------
    ClassPlan

    Raises
    ------
    MemoryPlanError
        The bound is too small; says what would do.
    """
    nonzero, size, n_classes = NONZERO_BYTES[store.value_type], max(sizes), sum(sizes)
    n_ranks = 1 + max(schedule.home)
    block = 8 * n_weights * size
    # Beside the weights those of the variables, to certify; and what is sent as places and values.
    tables = [2 * block * schedule.most_blocks(rank) for rank in range(n_ranks)]
    sent = [block * schedule.most_moves(rank) // 2 for rank in range(n_ranks)]
    weights = max(map(sum, zip(tables, sent, strict=True)))
    model = 8 * n_weights * n_classes + max(8 * n_weights * n_classes, tables[0] // 2)
    largest = max(store.chunks, key=lambda chunks: max(c.nnz for c in chunks))
    chunk = max(largest, key=lambda c: c.nnz)
    chunk_nnz = max(chunk.nnz, min(CHUNK_NNZ, store.nnz))
    fixed = {
        "interpreter": INTERPRETER,
        "decoding": chunk_nnz * (DECODE_NONZERO + nonzero),
        # A mark a row: whether it has variables that are not 0.
        "overhead": OVERHEAD + UNWRITTEN_BYTES + store.n_rows + 16 * store.n_rows // len(sizes),
    }
    shape = Shape(n_weights, [size], listed=True)
    row = 2 * BUFFER_ROW + sum(row_bytes(shape, size)) + _PAIR_ROW + size * _PAIR_VARIABLE
    rows_of_chunk = max(c.rows for chunks in store.chunks for c in chunks)
    least = max(
        CHUNK_SHARE * row,
        4 * nonzero * chunk_nnz * CHUNK_SHARE // (CHUNK_SHARE - 2),
        ENCODING + nonzero * chunk_nnz + SORTED_ROW * rows_of_chunk,
    )
    spent = sum(fixed.values())
    halves = 2 * max(weights, least)
    model += 8 * n_weights  # ids
    if spent + max(halves, model) > mem:
        last = {"weights": weights, "as much for rows": halves - weights}
        if model > halves:
            last = {"the model": model}
        needed = ", ".join(f"{k} {format_size(v)}" for k, v in (fixed | last).items())
        advice = ", or more processes" if weights > least and halves >= model else ""
        raise MemoryPlanError(
            f"--mem {format_size(mem)} is too little to train on {store.folder} with "
            f"{len(sizes)} blocks of classes, which needs {needed}; the least that works is "
            f"--mem {-(-(spent + max(halves, model)) // 1_000_000)}MB{advice}",
            spent + max(halves, model),
        )
    room = (mem - spent) // 2
    items = fixed | {"weights": weights, "rows": room}
    return ClassPlan(room, max(1, room // (CHUNK_SHARE * row)), row, 2 * nonzero, items)


def cut_meeting(plan: ClassPlan, sides: Sequence[Sequence[Chunk]]) -> list[list[Chunk]]:
    """Cut the rows of the blocks of a meeting into as few parts as fit the plan.

    Every part has its share of each block, so that pairs of classes meet in all of them.

    Parameters
    ----------
    plan : ClassPlan
    sides : sequence of sequence of Chunk
        Chunks of each of the blocks.

    Returns
    -------
    list[list[Chunk]]
        Of each part, those of the first block before those of the second.
    """
    most = max(map(len, sides))
    least = sum(map(plan.bytes_of, sides)) // plan.room
    for cuts in range(max(1, min(least, most)), most + 1):
        found = [[c for side in sides for c in side[k::cuts]] for k in range(cuts)]
        if cuts == most or max(map(plan.bytes_of, found)) <= plan.room:
            return found
    return []
