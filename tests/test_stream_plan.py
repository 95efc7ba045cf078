"""Memory plans of streams: the bound is kept, and errors report the smallest one that works."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import (
    DIRECT_LIMIT,
    LEAST_ROWS,
    MOST_ROWS,
    NONZERO_BYTES,
    Needs,
    Shape,
    StreamPlan,
    parsers_of,
    plan_stream,
    row_bytes,
)

from sbm.errors import MemoryPlanError

NEEDS = Needs(
    rows=1024, nnz=40_000, longest=200, features=9000, largest_id=20_000, labels=3, has_values=True
)
SHAPES = [
    Shape(0, [1], copies=1), Shape(0, [1], copies=3, row_bytes=4), Shape(0, [3], listed=True),
    Shape(0, [40], listed=True), Shape(0, [1] * 3),
]  # fmt: skip


def plan(
    mem: int = 10**9, shape: Shape = SHAPES[0], needs: Needs = NEEDS, frac: float = 0.5,
    dtype: str = "float32",
) -> StreamPlan:  # fmt: skip
    return plan_stream(mem, frac, shape, needs, dtype, "d.model")


def bytes_of(made: StreamPlan, shape: Shape, dtype: str = "float32") -> int:
    """Return a lower bound of the bytes of a plan's arrays."""
    size, nonzero = made.size, NONZERO_BYTES[dtype if made.planned.has_values else "ones"]
    weights = 8 * size.features * sum(shape.outputs) * shape.copies
    blocks = 2 * (16 * size.block_rows + nonzero * size.block_nnz)
    cache = 16 * size.cache_rows + nonzero * size.cache_nnz
    work, _ = row_bytes(shape, size.row_variables)
    return weights + 8 * size.features + blocks + cache + work * size.block_rows


@given(
    mem=st.integers(1, 8 * 10**9), shape=st.sampled_from(SHAPES),
    frac=st.sampled_from([0.0, 0.3, 0.9]), rows=st.integers(1, 100_000),
    average=st.integers(0, 300), longest=st.integers(1, 50_000),
    features=st.integers(1, 2_000_000), bits=st.integers(1, 40), hashed=st.booleans(),
    dtype=st.sampled_from(["float32", "float64"]), has_values=st.booleans(),
)  # fmt: skip
def test_plan_keeps_its_bound(
    mem, shape, frac, rows, average, longest, features, bits, hashed, dtype, has_values
):
    largest = min((1 << bits) - 1, DIRECT_LIMIT - 1)
    needs = Needs(
        rows, rows * average, max(longest, average), features, largest, hashed, 2, has_values
    )
    with pytest.raises(MemoryPlanError) as caught:
        plan(1, shape, needs, frac, dtype)
    least = caught.value.least_bytes
    if mem < least:
        with pytest.raises(MemoryPlanError):
            plan(mem, shape, needs, frac, dtype)
        mem = least
    made = plan(mem, shape, needs, frac, dtype)
    size, planned = made.size, made.planned
    fixed = sum(made.items[name] for name in ("interpreter", "text", "overhead"))
    assert fixed + bytes_of(made, shape, dtype) <= mem
    assert made.total <= mem
    assert size.features >= needs.features
    assert size.block_rows >= LEAST_ROWS - 1  # rounding
    assert size.block_nnz >= max(needs.longest, size.block_rows * average)
    assert (size.cache_rows == 0) == (frac == 0)
    assert needs.largest_id <= planned.largest_id < DIRECT_LIMIT
    assert planned == replace(needs, features=size.features, largest_id=planned.largest_id)
    assert made.value_type == (dtype if has_values else "ones")


@pytest.mark.parametrize("features", [9_000, 9_000_000])
def test_error_reports_needs_and_least_memory(features):
    needs = replace(NEEDS, features=features)
    what = rf"--mem 1 MB .*d\.model.* {features:,} features"
    with pytest.raises(MemoryPlanError, match=what) as caught:
        plan(1_000_000, needs=needs)
    assert plan(caught.value.least_bytes, needs=needs).size.block_rows >= LEAST_ROWS - 1
    with pytest.raises(MemoryPlanError):
        plan(caught.value.least_bytes - 1000, needs=needs)
    enough = int(str(caught.value).rsplit("--mem ", 1)[1].split("MB")[0]) * 1_000_000
    assert plan(enough, needs=replace(needs, features=2 * features))


def test_more_memory_is_used():
    sizes = [plan(mem).size for mem in range(200_000_000, 500_000_000, 50_000_000)]
    assert [s.block_rows for s in sizes] == sorted({s.block_rows for s in sizes})
    assert [s.features for s in sizes] == sorted({s.features for s in sizes})
    ones = plan(250_000_000, needs=replace(NEEDS, has_values=False)).size
    double = plan(250_000_000, dtype="float64").size
    assert ones.block_rows > plan(250_000_000).size.block_rows > double.block_rows
    # At most as many rows as pay, however much memory there is.
    assert plan(10**10).size.block_rows == plan(10**9).size.block_rows == MOST_ROWS
    assert plan(10**10).size.cache_rows <= MOST_ROWS
    for mem, most in ((0, 1), (150_000_000, 1), (10**9, 5), (10**10, 8)):
        some = [parsers_of(mem, threads) for threads in range(40)]
        assert (some, some[0], some[-1]) == (sorted(some), 1, most)
