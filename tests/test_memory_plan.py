"""The memory plan: never more than the bound, and the least bound named is one that works."""

import itertools
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbm.errors import MemoryPlanError
from sbm.jobs.machine.memory import INTERPRETER, MemoryPlan, Shape, dealing_bytes, plan_training
from sbm.settings import parse_size
from sbm.store.blocks import CHUNK_NNZ, Chunk

WIDTH = {"ones": 4, "float32": 8, "float64": 12}


def store_of(
    blocks: int, chunks: int, rows: int, nnz: int, value_type: str, uneven: bool = False
) -> Any:
    """Return what a plan asks of a store: chunks with so many rows and nonzeros each."""
    made = [
        [
            Chunk(b, 1000 * c, 1000, rows + (b + c if uneven else 0), nnz - (c if uneven else 0))
            for c in range(max(1, chunks - (b if uneven else 0)))
        ]
        for b in range(blocks)
    ]
    flat = [c for block in made for c in block]
    return SimpleNamespace(
        folder=Path("x.sbm"),
        chunks=made,
        value_type=value_type,
        n_rows=sum(c.rows for c in flat),
        nnz=sum(c.nnz for c in flat),
        n_blocks=blocks,
        blocks_of_generations=[blocks],
    )


STORES = st.builds(
    store_of,
    st.integers(1, 12),
    st.integers(1, 60),
    st.integers(1, 60_000),
    st.integers(100, CHUNK_NNZ),
    st.sampled_from(list(WIDTH)),
    st.booleans(),
)
OUTPUTS = st.one_of(
    st.just(([1], False)),
    st.integers(1, 300).map(lambda k: ([k], True)),
    st.lists(st.integers(1, 9), min_size=1, max_size=5).map(lambda ks: (ks, True)),
)
FRACTIONS = st.sampled_from([0.0, 0.1, 0.33, 0.5, 0.9])


def bytes_of_rows(store: Any, rows: int, nnz: int) -> int:
    """Bytes that rows and nonzeros take at the very least, in memory of any layout."""
    return nnz * WIDTH[store.value_type] + rows * 16


def check(store: Any, plan: MemoryPlan, mem: int, cache_frac: float) -> None:
    assert plan.total <= mem
    assert min(plan.items.values()) >= 0
    assert plan.items["interpreter"] == INTERPRETER
    # Every chunk in exactly one part; of one run of split, parts of one block only.
    seen = [c for part in plan.parts for c in part.chunks]
    assert sorted(seen, key=repr) == sorted(itertools.chain(*store.chunks), key=repr)
    for part in plan.parts:
        assert {c.block for c in part.chunks} == {part.pieces[0].block}
        assert sum(piece.rows for piece in part.pieces) == part.rows
        assert part.rows == sum(c.rows for c in part.chunks)
        assert part.nnz == sum(c.nnz for c in part.chunks)
    assert plan.part_rows == max(part.rows for part in plan.parts)
    assert plan.part_nnz == max(part.nnz for part in plan.parts)
    # What is promised is paid for: two buffers of parts, and the cache.
    assert plan.items["blocks"] >= 2 * bytes_of_rows(store, plan.part_rows, plan.part_nnz)
    assert plan.items["cache"] >= bytes_of_rows(store, plan.cache_rows, plan.cache_nnz)
    if cache_frac == 0:
        assert plan.cache_rows == plan.cache_nnz == plan.items["cache"] == 0
    # No more cache than the share of whole blocks asked for, nor more rows than there are.
    share = cache_frac / (1 - cache_frac)
    assert plan.cache_nnz <= min(
        store.nnz, share * max(sum(c.nnz for c in chunks) for chunks in store.chunks)
    )
    assert plan.cache_rows <= min(
        store.n_rows, share * max(sum(c.rows for c in chunks) for chunks in store.chunks)
    )


@settings(deadline=None, derandomize=True, max_examples=60)
@given(STORES, FRACTIONS, st.integers(1, 5_000_000), OUTPUTS)
def test_plans_keep_the_bound_and_the_least_one_is_the_least(
    store: Any, cache_frac: float, n_weights: int, shape: tuple[list[int], bool]
) -> None:
    outputs, listed = shape
    with pytest.raises(MemoryPlanError) as caught:
        plan_training(store, INTERPRETER, cache_frac, Shape(n_weights, outputs, listed))
    least = caught.value.least_bytes
    assert least >= INTERPRETER + 8 * n_weights * sum(outputs)
    for mem in (least, *(int(least * factor) for factor in (1.01, 1.2, 2, 10, 100))):
        plan = plan_training(store, mem, cache_frac, Shape(n_weights, outputs, listed))
        check(store, plan, mem, cache_frac)
        if listed:
            # The lists of a block, in the working set and on their way to the disk.
            variables = sum(min(plan.row_variables, k) for k in outputs)
            assert 1 <= plan.row_variables <= max(outputs)
            assert plan.items["blocks"] >= 2 * 12 * variables * plan.part_rows
            assert plan.items["cache"] >= 12 * variables * plan.cache_rows
    with pytest.raises(MemoryPlanError) as again:
        plan_training(store, least - 1, cache_frac, Shape(n_weights, outputs, listed))
    assert again.value.least_bytes == least


def test_the_refusal_names_the_least_size_in_a_form_that_is_accepted() -> None:
    store = store_of(3, 10, 1000, 100_000, "float32")
    with pytest.raises(MemoryPlanError) as caught:
        plan_training(store, 60_000_000, 0.5, Shape(1000))
    found = re.fullmatch(
        r"--mem 60 MB is too little to train on x\.sbm, which needs interpreter 92 MB, "
        r"weights 16 kB, decoding .+, overhead .+, blocks .+; "
        r"the least that works is --mem (\d+MB)",
        str(caught.value),
    )
    assert found, str(caught.value)
    named = parse_size(found[1])
    assert 0 <= named - caught.value.least_bytes < 1_000_000
    plan_training(store, named, 0.5, Shape(1000))


@pytest.mark.parametrize("cache_frac", [0.25, 0.5, 0.75])
def test_with_memory_for_all_blocks_stay_whole_and_the_cache_has_its_share(
    cache_frac: float,
) -> None:
    store = store_of(12, 5, 1000, 50_000, "float32")
    plan = plan_training(store, 10**10, cache_frac, Shape(1000))
    assert [[piece.block for piece in part.pieces] for part in plan.parts] == [
        [b] for b in range(12)
    ]
    assert (plan.part_rows, plan.part_nnz) == (5000, 250_000)
    assert plan.cache_nnz == pytest.approx(cache_frac * (plan.cache_nnz + plan.part_nnz), abs=2)
    assert plan.cache_rows == pytest.approx(cache_frac * (plan.cache_rows + plan.part_rows), abs=2)


@pytest.mark.parametrize("cache_frac", [0.25, 0.5, 0.75])
def test_with_little_memory_the_cache_keeps_about_its_share(cache_frac: float) -> None:
    store = store_of(2, 400, 10_000, 200_000, "float32")  # blocks of 640 MB
    plan = plan_training(store, 700_000_000, cache_frac, Shape(1000))
    assert len(plan.parts) > 2
    share = cache_frac / (1 - cache_frac)
    assert plan.cache_rows == pytest.approx(share * plan.part_rows, rel=1e-3)
    assert plan.cache_nnz == pytest.approx(share * plan.part_nnz, rel=1e-3)
    assert plan.total > 0.75 * 700_000_000  # and nothing much is left unused


@settings(deadline=None, derandomize=True, max_examples=15)
@given(STORES, FRACTIONS)
def test_more_memory_never_means_less_cache(store: Any, cache_frac: float) -> None:
    with pytest.raises(MemoryPlanError) as caught:
        plan_training(store, 1, cache_frac, Shape(1000))
    least = caught.value.least_bytes
    cache, most_parts = -1, 10**9
    for step in range(40):
        plan = plan_training(store, least + int(1.35**step * 10_000), cache_frac, Shape(1000))
        assert plan.cache_nnz >= cache
        assert len(plan.parts) <= most_parts
        cache, most_parts = plan.cache_nnz, len(plan.parts)


def test_parts_are_samples_of_their_block() -> None:
    store = store_of(1, 10, 1000, 200_000, "float32")
    with pytest.raises(MemoryPlanError) as caught:
        plan_training(store, 1, 0.0, Shape(10))
    plan = plan_training(store, caught.value.least_bytes + 15_000_000, 0.0, Shape(10))
    assert 1 < len(plan.parts) < 10
    q = len(plan.parts)
    for k, part in enumerate(plan.parts):
        assert part.chunks == store.chunks[0][k::q]


def with_nights(store: Any, nights: list[int]) -> Any:
    """Add a block of one chunk, of so many rows, for each night."""
    for n in nights:
        store.chunks.append([Chunk(len(store.chunks), 0, 1000, n, 10 * n)])
        store.blocks_of_generations.append(1)
    store.n_rows += sum(nights)
    store.nnz += 10 * sum(nights)
    return store


def blocks_of(plan: MemoryPlan) -> list[list[int]]:
    return [[piece.block for piece in part.pieces] for part in plan.parts]


def test_small_blocks_that_were_appended_are_loaded_together() -> None:
    store = with_nights(store_of(12, 1, 1000, 10_000, "ones"), [100] * 25 + [950, 40, 40, 2000])
    plan = plan_training(store, 10**10, 0.5, Shape(1000))
    # A twelfth of all are 1461 rows, but the largest block has 2000.
    assert blocks_of(plan) == [
        [0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], list(range(12, 32)),
        [*range(32, 37), 37, 38, 39], [40],
    ]  # fmt: skip
    assert plan.part_rows == 2000


def test_a_window_of_nights_has_no_more_parts_than_a_split_of_all_of_it() -> None:
    store = with_nights(store_of(1, 1, 100, 1000, "ones"), [100] * 47)
    plan = plan_training(store, 10**10, 0.5, Shape(1000))
    assert blocks_of(plan) == [[4 * k, 4 * k + 1, 4 * k + 2, 4 * k + 3] for k in range(12)]


def test_many_blocks_that_were_asked_for_stay_apart() -> None:
    store = with_nights(store_of(60, 1, 1000, 10_000, "ones"), [500, 400, 200])
    plan = plan_training(store, 10**10, 0.5, Shape(1000))
    # A split of everything into 60 would give each 1019 rows.
    assert blocks_of(plan) == [*([k] for k in range(60)), [60, 61], [62]]


def test_with_little_memory_joined_parts_are_no_larger_than_a_block() -> None:
    store = with_nights(store_of(1, 1, 20_000, 200_000, "ones"), [20_000] * 23 + [5_000] * 4)
    ample = plan_training(store, 10**10, 0.5, Shape(1000))
    assert ample.part_rows == 40_000
    with pytest.raises(MemoryPlanError) as caught:
        plan_training(store, 1, 0.5, Shape(1000))
    tight = plan_training(store, caught.value.least_bytes, 0.5, Shape(1000))
    assert blocks_of(tight) == [*([k] for k in range(24)), [24, 25, 26, 27]]
    assert tight.part_rows == 20_000


def test_lists_have_room_for_all_classes_where_that_costs_no_block() -> None:
    store = store_of(12, 5, 1000, 50_000, "float32")
    ample = plan_training(store, 10**10, 0.5, Shape(1000, [300], True))
    assert ample.row_variables == 300
    with pytest.raises(MemoryPlanError) as caught:
        plan_training(store, 1, 0.5, Shape(1000, [300], True))
    tight = plan_training(store, caught.value.least_bytes, 0.5, Shape(1000, [300], True))
    assert tight.row_variables == 4
    binary = plan_training(store, 10**10, 0.5, Shape(1000))
    assert ample.items["weights"] == 300 * binary.items["weights"]


def test_what_is_needed_before_all_else_is_planned_for() -> None:
    store = store_of(3, 10, 1000, 100_000, "float32")
    without = Shape(1000)
    with_weights = Shape(1000, first_bytes=100_000_000)
    with pytest.raises(MemoryPlanError) as caught:
        plan_training(store, INTERPRETER, 0.5, without)
    least = caught.value.least_bytes
    with pytest.raises(MemoryPlanError, match=r"weights of rows 100 MB; the least that") as caught:
        plan_training(store, least, 0.5, with_weights)
    more = caught.value.least_bytes
    assert more >= INTERPRETER + 100_000_000
    assert least < more < least + 100_000_000  # it is given back, so there is no sum of both
    assert plan_training(store, more, 0.5, with_weights) == plan_training(store, more, 0.5, without)
    # Where all else needs more than that, nothing changes.
    wide = Shape(100_000_000, first_bytes=100_000_000)
    with pytest.raises(MemoryPlanError) as caught:
        plan_training(store, INTERPRETER, 0.5, wide)
    least = caught.value.least_bytes
    assert plan_training(store, least, 0.5, wide).total <= least


def test_dealing_weights_needs_what_the_largest_batch_does() -> None:
    generations = [{"deal": {"batches": [10, 3_000_000]}}, {}, {"deal": {"batches": [200]}}]
    store: Any = SimpleNamespace(manifest={"generations": generations})
    few: Any = SimpleNamespace(manifest={"generations": generations[1:]})
    assert dealing_bytes(store) - dealing_bytes(few) == 40 * (3_000_000 - 200)
    assert dealing_bytes(few) > 30_000_000
