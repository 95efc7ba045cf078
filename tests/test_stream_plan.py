"""The memory of a stream: what fits is planned, what does not is refused with what would do."""

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbm.errors import MemoryPlanError
from sbm.jobs.machine.memory import Shape, row_bytes
from sbm.jobs.streaming.arrivals import Needs
from sbm.jobs.streaming.plan import LEAST_ROWS, StreamPlan, parsers_of, plan_stream
from sbm.store.blocks import NONZERO_BYTES
from sbm.store.idtable import DIRECT_LIMIT

NEEDS = Needs(
    rows=1024, nnz=40_000, longest=200, features=9000, largest_id=20_000, labels=3, has_values=True
)
SHAPES = [
    Shape(0, [1], copies=1),
    Shape(0, [1], copies=3, row_bytes=4),
    Shape(0, [3], listed=True),
    Shape(0, [40], listed=True),
    Shape(0, [1] * 3),
]


def plan(mem: int = 1_000_000_000, shape: Shape = SHAPES[0], needs: Needs = NEEDS, **more: Any):
    chosen: dict[str, Any] = {"cache_frac": 0.5, "dtype": "float32", "what": "d.model", **more}
    return plan_stream(mem, chosen["cache_frac"], shape, needs, chosen["dtype"], chosen["what"])


def bytes_of(made: StreamPlan, shape: Shape, dtype: str = "float32") -> int:
    """What the arrays of a plan take, counted from below."""
    size, nonzero = made.size, NONZERO_BYTES[dtype if made.planned.has_values else "ones"]
    weights = 8 * size.features * sum(shape.outputs) * shape.copies
    blocks = 2 * (16 * size.block_rows + nonzero * size.block_nnz)
    cache = 16 * size.cache_rows + nonzero * size.cache_nnz
    work, _ = row_bytes(shape, size.row_variables)
    return weights + 8 * size.features + blocks + cache + work * size.block_rows


@given(
    mem=st.integers(1, 8_000_000_000),
    shape=st.sampled_from(SHAPES),
    frac=st.sampled_from([0.0, 0.3, 0.5, 0.9]),
    rows=st.integers(1, 100_000),
    average=st.integers(0, 300),
    longest=st.integers(1, 50_000),
    features=st.integers(1, 2_000_000),
    bits=st.integers(1, 40),
    hashed=st.booleans(),
    dtype=st.sampled_from(["float32", "float64"]),
)
@settings(max_examples=300, deadline=None, derandomize=True)
def test_a_plan_keeps_to_its_bound_and_has_room_for_what_came(
    mem, shape, frac, rows, average, longest, features, bits, hashed, dtype
):
    longest = max(longest, average)
    needs = Needs(
        rows, rows * average, longest, features, min((1 << bits) - 1, DIRECT_LIMIT - 1), hashed,
        2, True,
    )  # fmt: skip
    least = 0
    try:
        made = plan(mem, shape, needs, cache_frac=frac, dtype=dtype)
    except MemoryPlanError as error:
        least = error.least_bytes
    if least:
        assert least > mem
        mem = least  # is enough
        made = plan(mem, shape, needs, cache_frac=frac, dtype=dtype)
    size = made.size
    assert sum(made.items.values()) <= mem
    fixed = sum(made.items[name] for name in ("interpreter", "text", "overhead"))
    assert fixed + bytes_of(made, shape, dtype) <= mem
    assert size.features >= needs.features
    assert size.block_rows >= LEAST_ROWS - 1  # rounding
    assert size.block_nnz >= needs.longest
    assert (size.cache_rows == 0) == (frac == 0)
    assert made.planned.largest_id >= needs.largest_id
    assert made.planned.largest_id < DIRECT_LIMIT
    assert made.planned == replace(
        needs, features=size.features, largest_id=made.planned.largest_id
    )
    assert plan(mem, shape, needs, cache_frac=frac, dtype=dtype) == made
    # What was planned for may come: another plan for it is no smaller than what there is.
    assert size.block_nnz >= size.block_rows * average


def test_a_bound_that_is_too_small_is_refused_with_the_least_one():
    with pytest.raises(MemoryPlanError) as caught:
        plan(1_000_000)
    found = re.fullmatch(
        r"--mem 1 MB is too little for d\.model, which needs interpreter 92 MB, text 31\.5 MB, "
        r"overhead 12 MB, 9,000 features [\d.]+ kB, blocks and cache [\d.]+ kB; --mem (\d+)MB has "
        r"room for twice as many features",
        str(caught.value),
    )
    assert found, str(caught.value)
    assert plan(caught.value.least_bytes).size.block_rows >= LEAST_ROWS - 1
    enough = int(found[1]) * 1_000_000
    assert plan(enough, needs=replace(NEEDS, features=2 * NEEDS.features))


def test_more_memory_gives_larger_blocks_and_more_features():
    sizes = [plan(mem).size for mem in range(200_000_000, 1_000_000_000, 50_000_000)]
    assert [s.block_rows for s in sizes] == sorted({s.block_rows for s in sizes})
    assert [s.features for s in sizes] == sorted({s.features for s in sizes})


def test_values_of_one_take_no_room():
    ones = plan(needs=replace(NEEDS, has_values=False))
    assert (ones.value_type, plan().value_type) == ("ones", "float32")
    assert plan(dtype="float64").value_type == "float64"
    assert ones.size.block_rows > plan().size.block_rows > plan(dtype="float64").size.block_rows


def test_threads_parse_within_the_memory():
    for mem in (0, 150_000_000, 10**9, 10**10):
        some = [parsers_of(mem, threads) for threads in range(40)]
        assert some == sorted(some)
        assert some[0] == 1
        assert some[-1] <= 8
    assert parsers_of(150_000_000, 40) == 1
    assert parsers_of(10**10, 40) == 8


def test_the_items_are_told_in_words():
    assert re.fullmatch(
        r"interpreter 92 MB, text [\d.]+ MB, overhead 12 MB, features [\d.]+ MB, blocks and cache "
        r"[\d.]+ MB",
        plan().describe(),
    )
