"""The memory plan of a stream: how `--mem` is divided, based on the rows so far.

The numbers of rows, features and classes are unknown in advance. So a plan has room for more than
was seen, and a new plan is made when that is used up.
"""

from __future__ import annotations

from dataclasses import replace

from sbm.dataset.options import PIECE_BYTES
from sbm.engine.machine import interpreter_bytes
from sbm.engine.memory import OVERHEAD, Budget, RowSizes, Shape
from sbm.inputs.idtable import DIRECT_LIMIT
from sbm.plain import dataclass
from sbm.programs.streaming.arrivals import Needs
from sbm.solver.onepass import Size
from sbm.units import in_megabytes

# Rows of the first block. Later blocks grow with the rows so far, up to the planned size. So the
# progressive loss is meaningful early, and a small stream has its model soon.
FIRST_BLOCK = 1024
LEAST_ROWS = 256  # minimum for the largest block
# Maximum. Larger blocks take more memory, but the model is no better after the same visits: the
# first rows of a block are learned long before they are visited together with later ones.
MOST_ROWS = 3 << 16
# Bytes per id in the table, which doubles as it grows; ids too large for an array are hashed.
_ID_BYTES, _HASHED_BYTES = 16, 96
# Variables per row that lists have room for: with many classes most rows need few.
_ROW_VARIABLES = 4


@dataclass(frozen=True)
class StreamPlan(Budget):
    """The memory plan of a stream."""

    size: Size  # sizes of block, cache and weights
    value_type: str  # one of "ones", "float32", "float64"
    planned: Needs  # what rows may need: features, ids, labels, values other than 1


def _id_table(largest_id: int, growth: int) -> tuple[int, int]:
    """Plan the plain array of codes of ids.

    Returns
    -------
    largest : int
        The largest id that a table `growth` times as large has room for.
    size : int
        Bytes, including the copy made when it grows.
    """
    entries = min(DIRECT_LIMIT, growth << max(10, largest_id.bit_length()))
    return entries - 1, 4 * entries + (2 * entries if growth > 1 else 0)


def parsers_of(mem: int, threads: int) -> int:
    """Return the number of parsing threads. The plan and so the results do not depend on it."""
    return max(1, min(threads, _pieces(mem) - 2))


def _pieces(mem: int) -> int:
    """Return the number of pieces of text that are planned for."""
    return min(10, 3 + max(0, mem - interpreter_bytes()) // 200_000_000)


def _text_bytes(mem: int) -> int:
    return _pieces(mem) * PIECE_BYTES


def require_windows(mem: int, what: str, reserved: int) -> None:
    """Check that windows of decompressors fit, before the first rows are read.

    Raises `MemoryPlanError` if they do not fit beside the memory that any stream needs.
    """
    fixed = _fixed_parts(mem, what, reserved)
    rest = fixed.total - fixed.items["text"]
    replace(fixed, items=fixed.items | {"text": _with_text(mem, rest) - rest}).check()


def _fixed_parts(mem: int, what: str, reserved: int) -> Budget:
    """Return the memory that does not depend on the rows; see `plan_stream`."""
    windows = {"to decompress": reserved} if reserved else {}
    items = {
        "interpreter": interpreter_bytes(),
        "text": _text_bytes(mem),
        "overhead": OVERHEAD,
        **windows,
    }
    return Budget(mem, f"for {what}", items)


def plan_stream(
    mem: int,
    cache_frac: float,
    shape: Shape,
    needs: Needs,
    dtype: str,
    what: str,
    reserved: int = 0,
) -> StreamPlan:
    """Choose the sizes of a stream for a memory bound and the rows so far.

    Parameters
    ----------
    mem : int
        Bytes of the whole process.
    cache_frac : float
        Share of the working set that is cache, in [0, 1).
    shape : Shape
        Its `n_weights` is ignored; `copies` is the number of arrays of the size of W.
    dtype : {"float32", "float64"}
        Type of values other than 1.
    what : str
        The stream's name for messages.
    reserved : int
        Bytes for the windows of decompressors.

    Raises
    ------
    MemoryPlanError
        `mem` is too small; the message has the smallest bound.
    """
    value_type = dtype if needs.has_values else "ones"
    variables = min(_ROW_VARIABLES, max(shape.outputs)) if shape.listed else 0
    sizes = RowSizes(shape, variables, value_type)
    share = sizes.caches * cache_frac / (1 - cache_frac)
    weight_bytes = 8 * sum(shape.outputs) * shape.copies
    feature = weight_bytes + _ID_BYTES + (_HASHED_BYTES if needs.hashed else 0)
    fixed = _fixed_parts(mem, what, reserved)
    average = max(1.0, needs.nnz / max(1, needs.rows))
    # Rows may have more nonzeros than on average so far.
    nnz = average * 1.25
    row = sizes.loaded + 2 * nnz * sizes.nonzero + share * (sizes.cached + nnz * sizes.nonzero)
    # The longest row must fit, whatever the average.
    longest = int((2 + share) * needs.longest * sizes.nonzero)
    least = int(LEAST_ROWS * row) + longest
    for growth in (2, 1):  # with room for larger ids, if possible
        largest_id, table = _id_table(needs.largest_id, growth)
        features = needs.features * feature + table
        if features + least <= fixed.left:
            break
    else:
        _refuse(fixed, {f"{needs.features:,} features": features, "blocks and cache": least})
    # Features first get a quarter of the memory.
    wanted = max(2 * features, int(fixed.left * 0.25))
    for_features = min(wanted, features + (fixed.left - least - features) // 2)
    rows = min(MOST_ROWS, int((fixed.left - for_features - longest) / row))
    block_nnz = int(rows * nnz) + needs.longest
    size = Size(
        rows, block_nnz, int(rows * share), int(block_nnz * share),
        (for_features - table) // feature,
        variables,
    )  # fmt: skip
    rest = {"features": for_features, "blocks and cache": int(rows * row) + longest}
    planned = replace(needs, features=size.features, largest_id=largest_id)
    return StreamPlan(mem, fixed.task, fixed.items | rest, size, value_type, planned)


def _refuse(fixed: Budget, more: dict[str, int]) -> None:
    """Raise the error with the smallest bound, which includes the text that it would read ahead."""
    features, least = more.values()
    rest = fixed.total - fixed.items["text"] + features + least
    enough = in_megabytes(_with_text(fixed.mem, rest + max(features, 8 * least)))
    text = _with_text(fixed.mem, rest) - rest
    needed = replace(fixed, items=fixed.items | {"text": text} | more)
    needed.check(f"; --mem {enough} has room for twice as many features")


def _with_text(mem: int, rest: int) -> int:
    """Return the smallest bound from `mem` on that fits `rest` and its text."""
    while mem < rest + _text_bytes(mem):
        mem = rest + _text_bytes(mem)
    return mem
