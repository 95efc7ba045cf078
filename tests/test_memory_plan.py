"""Memory: plans keep the bound, also after memory ran out and under limits of the system."""

import itertools
import os
import re
import resource
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from families import make_store
from hypothesis import given
from hypothesis import strategies as st
from inside import (
    CHUNK_NNZ,
    INTERPRETER,
    Arena,
    BlockStore,
    Chunk,
    Limit,
    MemoryPlan,
    Progress,
    Shape,
    SplitOptions,
    Task,
    interpreter_bytes,
    parse_size,
    patch,
    plan_training,
    row_place_bytes,
    shape_of,
    smaller,
    system_limit,
    within_limit,
)
from inside import dataset_coding_module as coding
from inside import dataset_deal_module as deal
from inside import engine_machine_module as limits
from inside import engine_machine_module as process
from streams import learn, make_lines, same, small_plans

import sbm
from sbm.errors import MemoryPlanError
from scripts.bench.tools import run_process

MEM = 400_000_000
AMPLE = 10**10
WIDTH = {"ones": 4, "float32": 8, "float64": 12}


def store_of(blocks: int, chunks: int, rows: int, nnz: int, kind: str, uneven: bool = False) -> Any:
    """Return a fake store for plans: chunks with N rows and nonzeros each."""
    made = [
        [
            Chunk(b, 1000 * c, 1000, rows + (b + c if uneven else 0), nnz - (c if uneven else 0), 0)
            for c in range(max(1, chunks - (b if uneven else 0)))
        ]
        for b in range(blocks)
    ]
    return SimpleNamespace(
        name="x.sbm", chunks=made, value_type=kind,
        n_rows=sum(c.rows for c in itertools.chain(*made)),
        nnz=sum(c.nnz for c in itertools.chain(*made)),
        n_blocks=blocks, blocks_of_generations=[blocks],
    )  # fmt: skip


def least_of(store: Any, cache_frac: Any, shape: Shape, mem: int = 1) -> int:
    """Return the smallest bound in the error."""
    with pytest.raises(MemoryPlanError) as caught:
        plan_training(store, mem, cache_frac, shape)
    return caught.value.least_bytes


# ------------------------------------------------------------------------------ plans of training

STORES = st.builds(
    store_of, st.integers(1, 12), st.integers(1, 60), st.integers(1, 60_000),
    st.integers(100, CHUNK_NNZ), st.sampled_from(list(WIDTH)), st.booleans(),
)  # fmt: skip
OUTPUTS = st.one_of(
    st.just(([1], False)),
    st.lists(st.just(1), min_size=2, max_size=5).map(lambda ks: (ks, False)),
    st.lists(st.integers(1, 300), min_size=1, max_size=5).map(lambda ks: (ks, True)),
)
FRACTIONS = st.sampled_from([0.0, 0.1, 0.33, 0.5, 0.9])


def check(store: Any, plan: MemoryPlan, cache_frac: float, outputs: list[int]) -> None:
    """Check that each chunk is in one part, and that the plan covers all needs."""
    seen = [c for part in plan.parts for c in part.chunks]
    assert sorted(seen, key=repr) == sorted(itertools.chain(*store.chunks), key=repr)
    for part in plan.parts:
        assert {c.block for c in part.chunks} == {part.pieces[0].block}
        assert sum(piece.rows for piece in part.pieces) == part.rows
        assert part.rows == sum(c.rows for c in part.chunks)
        assert part.nnz == sum(c.nnz for c in part.chunks)
    order = np.random.default_rng(len(plan.parts)).permutation(len(plan.parts)).tolist()
    blocks = [[plan.parts[k] for k in block] for block in plan.blocks(order)]
    assert plan.block_rows >= max(sum(part.rows for part in block) for block in blocks)
    assert plan.block_nnz >= max(sum(part.nnz for part in block) for block in blocks)
    if not plan.draws:
        assert plan.block_rows == max(part.rows for part in plan.parts)
        assert plan.block_nnz == max(part.nnz for part in plan.parts)
    width = WIDTH[store.value_type]
    assert plan.items["interpreter"] == INTERPRETER
    assert plan.items["blocks"] >= 2 * (plan.block_nnz * width + plan.block_rows * 16)
    assert plan.items["cache"] >= plan.cache_nnz * width + plan.cache_rows * 16
    largest = max(c.nnz for c in seen)
    assert plan.items["decoding"] >= largest * (12 + width)
    # No more cache than the share of whole blocks asked for, nor more rows than there are.
    share, caches = cache_frac / (1 - cache_frac), len(outputs)
    for cached, name, total in (
        (plan.cache_nnz, "nnz", store.nnz), (plan.cache_rows, "rows", store.n_rows),
    ):  # fmt: skip
        block = max(sum(getattr(c, name) for c in chunks) for chunks in store.chunks)
        assert cached <= caches * min(total, share * block)


@pytest.mark.long
@given(STORES, FRACTIONS, st.integers(1, 5_000_000), OUTPUTS, st.booleans())
def test_plans_keep_bound_down_to_minimum(
    store: Any, cache_frac: float, n_weights: int, shape: tuple[list[int], bool], draws: bool
) -> None:
    outputs, listed = shape
    wanted = Shape(n_weights, outputs, listed, draws=draws)
    least = least_of(store, cache_frac, wanted, INTERPRETER)
    assert least >= INTERPRETER + 8 * n_weights * sum(outputs)
    assert least_of(store, cache_frac, wanted, least - 1) == least
    cache, most_parts = -1, 10**9
    for mem in (least, *(least + int(4**step * 10_000) for step in (2, 6, 11))):
        plan = plan_training(store, mem, cache_frac, wanted)
        assert plan.total <= mem
        assert min(plan.items.values()) >= 0
        check(store, plan, cache_frac, outputs)
        if listed:  # the lists of a block, in the working set and on their way to the disk
            variables = sum(min(plan.row_variables, k) for k in outputs)
            assert 1 <= plan.row_variables <= max(outputs)
            assert plan.items["blocks"] >= 2 * 12 * variables * plan.block_rows
        else:  # more memory never means less cache, or smaller blocks
            assert plan.cache_nnz >= cache
            assert draws or len(plan.parts) <= most_parts
        cache, most_parts = plan.cache_nnz, len(plan.parts)


@pytest.mark.parametrize("cache_frac", [0.25, 0.5, 0.75, "auto"])
def test_cache_has_its_share(cache_frac: Any) -> None:
    store = store_of(12, 5, 1000, 50_000, "float32")
    plan = plan_training(store, AMPLE, cache_frac, Shape(1000))
    assert blocks_of(plan) == [[b] for b in range(12)]
    assert (plan.block_rows, plan.block_nnz) == (5000, 250_000)
    frac = 0.75 if cache_frac == "auto" else cache_frac
    assert plan.cache_nnz == pytest.approx(frac * (plan.cache_nnz + plan.block_nnz), abs=2)
    assert plan.cache_rows == pytest.approx(frac * (plan.cache_rows + plan.block_rows), abs=2)
    two = plan_training(store, AMPLE, cache_frac, Shape(1000, [1, 1]))
    assert (two.cache_rows, two.cache_nnz) == (2 * plan.cache_rows, 2 * plan.cache_nnz)
    store = store_of(2, 400, 10_000, 200_000, "float32")  # blocks of 640 MB
    plan = plan_training(store, 700_000_000, cache_frac, Shape(1000))
    assert len(plan.parts) > 2
    assert plan.total > 0.75 * 700_000_000  # and not much is left unused
    if cache_frac != "auto":
        share = cache_frac / (1 - cache_frac)
        assert plan.cache_rows == pytest.approx(share * plan.block_rows, rel=1e-3)
        assert plan.cache_nnz == pytest.approx(share * plan.block_nnz, rel=1e-3)


def test_error_reports_least_memory_and_its_use() -> None:
    store = store_of(3, 10, 1000, 100_000, "float32")
    for shape, facts in (
        (Shape(1000), "interpreter 46 MB, weights 16 kB, decoding .+, overhead .+, blocks .+"),
        (Shape(1000, first_bytes=10**8), "interpreter .*, weights of rows, or scales 100 MB"),
        (Shape(10**7, [1], copies=1, advice="no --calibrate"), "feature ids .*or no --calibrate"),
        (
            Shape(10**7, [1] * 6, models=2),
            r"2 models .* x 3 classes x 2 models x 8 bytes x 2 copies",
        ),
    ):
        with pytest.raises(MemoryPlanError, match=rf"--mem 60 MB .*{facts}") as caught:
            plan_training(store, 60_000_000, 0.5, shape)
        named = re.search(r"at least --mem (\d+MB)", str(caught.value))
        assert named
        assert 0 <= parse_size(named[1]) - caught.value.least_bytes < 1_000_000
        assert plan_training(store, parse_size(named[1]), 0.5, shape).parts


@pytest.mark.parametrize(
    ("more", "least"),
    [
        ({"copies": 5}, 3 * 8 * 1000), ({"more_bytes": 10**6}, 10**6),
        ({"outputs": [1] * 4}, 3 * 2 * 8 * 1000), ({"row_bytes": 8}, 3 * 8 * 1000),
        ({"ranks": 2}, 3 * 8 * 1000), ({"listed": True, "outputs": [9]}, 8 * 12 * 1000),
        ({"first_bytes": 10**9}, 9 * 10**8),
    ],
)  # fmt: skip
def test_additional_needs_are_planned(more: dict[str, Any], least: int) -> None:
    store = store_of(3, 10, 1000, 100_000, "float32")
    plain = least_of(store, 0.0, Shape(1000))
    assert plain + least <= least_of(store, 0.0, Shape(1000, **more)) <= plain + 10 * least


def test_parts_are_samples_of_their_block() -> None:
    store = store_of(1, 10, 1000, 200_000, "float32")
    plan = plan_training(store, least_of(store, 0.0, Shape(10)) + 15_000_000, 0.0, Shape(10))
    q = len(plan.parts)
    assert 1 < q < 10
    for k, part in enumerate(plan.parts):
        assert part.chunks == store.chunks[0][k::q]


def with_nights(store: Any, nights: list[int]) -> Any:
    """Add a block of one chunk, of N rows, for each night."""
    for n in nights:
        store.chunks.append([Chunk(len(store.chunks), 0, 1000, n, 10 * n, 0)])
        store.blocks_of_generations.append(1)
    store.n_rows += sum(nights)
    store.nnz += 10 * sum(nights)
    return store


def blocks_of(plan: MemoryPlan) -> list[list[int]]:
    return [[piece.block for piece in part.pieces] for part in plan.parts]


def test_small_appended_blocks_are_loaded_together() -> None:
    for blocks, rows, nights, expected in (
        # A twelfth of all are 1461 rows, but the largest block has 2000.
        (12, 1000, [100] * 25 + [950, 40, 40, 2000],
         [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [*range(12, 32)],
          [*range(32, 37), 37, 38, 39], [40]]),
        (1, 100, [100] * 47, [[4 * k, 4 * k + 1, 4 * k + 2, 4 * k + 3] for k in range(12)]),
        # A split of everything into 60 would give each 1019 rows.
        (60, 1000, [500, 400, 200], [*([k] for k in range(60)), [60, 61], [62]]),
    ):  # fmt: skip
        store = with_nights(store_of(blocks, 1, rows, 10 * rows, "ones"), nights)
        assert blocks_of(plan_training(store, AMPLE, 0.5, Shape(1000))) == expected
    store = with_nights(store_of(1, 1, 20_000, 200_000, "ones"), [20_000] * 23 + [5_000] * 4)
    assert plan_training(store, AMPLE, 0.5, Shape(1000)).block_rows == 40_000
    tight = plan_training(store, least_of(store, 0.5, Shape(1000)), 0.5, Shape(1000))
    assert blocks_of(tight) == [*([k] for k in range(24)), [24, 25, 26, 27]]


def test_joined_blocks_hold_at_most_a_twelfth() -> None:
    store = with_nights(store_of(1, 1, 100, 1000, "ones"), [100] * 47)
    for chunks in store.chunks[24:]:
        chunks[0] = Chunk(chunks[0].block, 0, 1000, 100, 20_000, 0)
    store.nnz = sum(c.nnz for chunks in store.chunks for c in chunks)
    plan = plan_training(store, AMPLE, 0.5, Shape(1000))
    assert 20_000 < plan.block_nnz <= -(-store.nnz // 12)


def test_lists_use_only_spare_memory() -> None:
    store, shape = store_of(12, 5, 1000, 50_000, "float32"), Shape(1000, [300], True)
    ample = plan_training(store, AMPLE, 0.5, shape)
    assert ample.row_variables == 300
    assert plan_training(store, least_of(store, 0.5, shape), 0.5, shape).row_variables == 4
    binary = plan_training(store, AMPLE, 0.5, Shape(1000))
    assert ample.items["weights"] == 300 * binary.items["weights"]


def test_rows_with_few_variables_are_joined_with_shorter_lists(monkeypatch: Any) -> None:
    patch(monkeypatch, "MOST_WHOLE", 10**9)
    store = store_of(12, 5, 100, 5_000, "float32")
    few = Shape(1000, [300], True, has_few=True, may_join=True)
    ample = plan_training(store, AMPLE, 0.5, few)
    assert (ample.is_whole, ample.row_variables) == (True, 300)
    short = plan_training(store, ample.total - 1, 0.5, few)
    assert (short.is_whole, short.row_variables) == (True, 64)
    assert not plan_training(store, ample.total - 1, 0.5, replace(few, has_few=False)).is_whole


def test_spare_memory_allows_more_decoders() -> None:
    plan = plan_training(store_of(3, 5, 1000, 50_000, "float32"), AMPLE, 0.5, Shape(9))
    assert [plan.decoders(threads, AMPLE) for threads in (0, 1, 4)] == [1, 1, 4]
    one = plan.items["decoding"]
    assert [plan.decoders(9, spare) for spare in (-5, 0, one - 1, one)] == [1, 1, 1, 2]
    assert plan.describe().startswith("interpreter 46 MB, weights 144 B, decoding ")


def test_dealing_weights_needs_the_largest_batch() -> None:
    generations = [{"deal": {"batches": [10, 3_000_000]}}, {}, {"deal": {"batches": [200]}}]
    store: Any = SimpleNamespace(manifest={"generations": generations})
    few: Any = SimpleNamespace(manifest={"generations": generations[1:]})
    assert row_place_bytes(store) - row_place_bytes(few) == 40 * (3_000_000 - 200)
    assert row_place_bytes(few) > 30_000_000


def test_smaller_plan_has_smaller_parts_or_cache() -> None:
    store, shape = store_of(2, 40, 5000, 100_000, "float32"), Shape(1000)
    plan, least, tries = plan_training(store, 10**9, 0.5, shape), least_of(store, 0.5, shape), 0

    def less() -> MemoryPlan:
        return smaller(
            lambda mem: plan_training(store, mem, 0.5, shape), plan.total, "training on x.sbm"
        )

    while plan.total > least + 2_000_000:
        found = less()
        assert least <= found.total < plan.total
        assert found.mem == least + (plan.total - least) // 2
        assert len(found.parts) > len(plan.parts) or found.cache_nnz < plan.cache_nnz
        plan, tries = found, tries + 1
    assert 2 < tries < 15
    with pytest.raises(MemoryPlanError, match=r"ran out while training on x\.sbm, with --mem"):
        less()


# ------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize(
    ("lines", "files", "size"),
    [
        ("4:cpu,memory:/a/b\n", {"memory/a/b/memory.limit_in_bytes": "3000000\n"}, 3_000_000),
        # The smallest of the groups around counts.
        ("4:memory:/a/b\n0::/\n",
         {"memory/memory.limit_in_bytes": "9223372036854771712",
          "memory/a/memory.limit_in_bytes": "2000000",
          "memory/a/b/memory.limit_in_bytes": "4000000"}, 2_000_000),
        # In a container the path is that of the host, and not there.
        ("4:memory:/docker/x\n", {"memory/memory.limit_in_bytes": "5000000"}, 5_000_000),
        ("0::/u/x\n", {"u/x/memory.max": "max\n", "u/memory.max": "6000000"}, 6_000_000),
        ("4:cpu:/a\n0::/\n", {}, None), ("nonsense\n", {}, None),
        ("0::/u/x\n", {"u/x/memory.max": "max\n"}, None),
    ],
)  # fmt: skip
def test_smallest_control_group_limit_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, files: dict[str, str], size: Any
) -> None:
    patch(monkeypatch, "_process_limits", lambda: iter(()))
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(lines)
    for name, value in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value)
    expected = Limit(size, "the memory cgroup") if size else Limit(machine, "this machine")
    assert system_limit(tmp_path) == expected


@pytest.mark.parametrize(
    ("name", "what"), [("RLIMIT_DATA", "ulimit -d"), ("RLIMIT_AS", "ulimit -v")]
)
def test_limits_of_the_shell_are_found(
    name: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, unlimited = getattr(resource, name), resource.RLIM_INFINITY

    def limit_of(kind: int) -> tuple[int, int]:
        return (10**12 if kind == ours else unlimited, unlimited)

    monkeypatch.setattr(limits.resource, "getrlimit", limit_of)
    monkeypatch.setattr(limits.os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 10**12}.get)
    found = system_limit(tmp_path)
    assert found is not None
    assert found.what == what
    assert 0.99e12 < found.size <= 10**12
    assert (found.size == 10**12) == (what == "ulimit -d")


def test_plan_keeps_to_the_limit_of_the_system() -> None:
    notes: list[str] = []

    def plan(mem: int) -> SimpleNamespace:
        if mem < 100_000_000:
            raise MemoryPlanError("too little", 100_000_000)
        return SimpleNamespace(total=min(mem, 600_000_000), mem=mem)

    ample, short = Limit(600_000_000, "this machine"), Limit(300_000_000, "the memory cgroup")
    for limit in (None, ample):  # it needs no more than that
        assert within_limit(plan, 10**9, limit, notes.append).mem == 10**9
    assert notes == []
    assert within_limit(plan, 10**9, short, notes.append).mem == 300_000_000
    assert len(notes) == 1
    assert all(fact in notes[0] for fact in ("--mem is 1 GB", "the memory cgroup", "300 MB"))
    with pytest.raises(MemoryPlanError, match=r"ulimit -d .* 50 MB.* 100 MB") as caught:
        within_limit(plan, 10**9, Limit(50_000_000, "ulimit -d"), notes.append)
    assert caught.value.least_bytes == 100_000_000


def test_memory_of_this_process_is_measured() -> None:
    before = process.resident_bytes()
    block = np.ones(5_000_000)
    assert process.peak_bytes() >= process.resident_bytes() >= before + 0.9 * block.nbytes
    assert process.usable_threads(3) == 3
    assert process.usable_threads(None) == len(os.sched_getaffinity(0))


# ------------------------------------------------------------------------- memory that runs out


class Notes(Progress):
    """Keeps the lines that are shown once."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def about(self, words: str) -> list[str]:
        return [note for note in self.notes if words in note]


def failing(calls: Any, real: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that some calls, by number, run out of memory."""
    made = iter(range(1, 1_000_000))

    def make(*arguments: Any, **options: Any) -> Any:
        if next(made) in calls:
            raise MemoryError
        return real(*arguments, **options)

    return make


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "d.svm"
    path.write_bytes(b"".join(make_lines(2000, classes=2)))
    return path


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


PLACES = {
    "batch": (deal._Batch, "of"), "piece": (coding.CodedText, "of"),
    "chunk": (sbm.store.blocks, "encode_rows"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("place", "calls", "min_count"),
    [("batch", {1, 2, 3}, 1), ("piece", {4}, 2), ("chunk", {3}, 1), ("batch", {2}, 2)],
)
def test_split_restarts_with_less_memory(
    place: str, calls: set[int], min_count: int, source: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    patch(monkeypatch, "text.PIECE", 10_000)
    bounds: list[int] = []
    within = SplitOptions.within

    def noted(self: SplitOptions, mem: int, reserved: int = 0) -> SplitOptions:
        made = within(self, mem, reserved)
        bounds.append(made.mem)
        return made

    monkeypatch.setattr(SplitOptions, "within", noted)
    owner, name = PLACES[place]
    options: dict[str, Any] = {"blocks": 3, "threads": 2, "min_count": min_count}
    progress = Notes()
    with monkeypatch.context() as context:
        context.setattr(owner, name, failing(calls, getattr(owner, name)))
        sbm.split(source, tmp_path / "one.sbm", mem=MEM, progress=progress, **options)
    assert len(progress.about("out of memory with --mem")) == len(bounds) - 1 > 0
    sbm.split(source, tmp_path / "other.sbm", mem=bounds[-1], **options)
    one, other = files_of(tmp_path / "one.sbm"), files_of(tmp_path / "other.sbm")
    assert {n: b for n, b in one.items() if n.endswith("sbb")} == {
        n: b for n, b in other.items() if n.endswith("sbb")
    }


def test_stream_out_of_memory_continues_from_checkpoint(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = small_plans(monkeypatch)
    one, other = tmp_path / "one.model", tmp_path / "other.model"
    learn(source, one)
    n_plans = len(plans)
    assert n_plans > 3
    plans.clear()
    with monkeypatch.context() as context:
        context.setattr(Arena, "of", failing({2, 4, 5}, Arena.of))
        learn(source, other)
    assert len(plans) == n_plans + 3  # a smaller one each
    same(one, other)  # the plans of these tests have one size, whatever the bound
    with monkeypatch.context() as context:
        context.setattr(Arena, "of", failing(range(6, 1000), Arena.of))
        with pytest.raises(MemoryPlanError, match=r"ran out while learning .*d\.model"):
            learn(source, tmp_path / "d.model")
    learn(source, tmp_path / "d.model", resume=True)
    same(one, tmp_path / "d.model")


# ----------------------------------------------------------------- peaks and limits of processes

WRONG = """
import sys
from sbm.engine import memory
rows, nonzeros = memory.row_bytes, memory.NONZERO_BYTES
memory.row_bytes = lambda *some: tuple(size // 2 for size in rows(*some))
memory.NONZERO_BYTES = {name: size / 2 for name, size in nonzeros.items()}
memory.BUFFER_ROW //= 2
from sbm.cli import main
main(sys.argv[1:])
"""
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="peaks and limits are others")


@ON_LINUX
@pytest.mark.process
def test_estimates_wrong_by_half_keep_the_bound(tmp_path: Path) -> None:
    (tmp_path / "d.svm").write_bytes(b"".join(make_lines(10_000, classes=2)) * 20)
    store = tmp_path / "d.sbm"
    sbm.split(tmp_path / "d.svm", store, blocks=2)
    words = ["train", store, "-o", tmp_path / "d.model", "--max-passes", 2, "--mem", "140MB"]
    done = run_process([sys.executable, "-c", WRONG, *map(str, words)], codes=(0, 3))
    assert 0 < done.peak_bytes <= 140_000_000


def test_interpreter_is_measured_in_a_process_of_the_command_line(monkeypatch):
    patch(monkeypatch, "machine.resident_bytes", lambda: INTERPRETER + 20_000_000)
    for name, expected in (("pytest", INTERPRETER), ("sbm.__main__", INTERPRETER + 32_000_000)):
        monkeypatch.setattr(sys.modules["__main__"], "__spec__", SimpleNamespace(name=name))
        interpreter_bytes.cache_clear()
        with monkeypatch.context() as context:
            context.delitem(sys.modules, "mpi4py.MPI", raising=False)
            assert interpreter_bytes() == expected
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    interpreter_bytes.cache_clear()
    assert interpreter_bytes() == INTERPRETER + 46_000_000  # more than is resident
    interpreter_bytes.cache_clear()


# --------------------------------------------------------------------------- bytes of a plan


@pytest.mark.parametrize(
    ("outputs", "listed", "blocks", "cache"),
    [
        ([1], False, 4_450_000, 2_260_000), ([1, 1, 1], False, 6_310_000, 6_780_000),
        ([300], True, 236_690_000, 39_140_000),
    ],
    ids=["one model", "three models", "300 classes in lists"],
)  # fmt: skip
def test_bytes_of_a_plan_are_these(outputs, listed, blocks, cache):
    """Whoever changes a constant on purpose compares peaks first: scripts.bench memory."""
    shape = Shape(n_weights=1000, outputs=outputs, listed=listed, copies=2)
    plan = plan_training(store_of(4, 10, 1000, 20_000, "float32"), MEM, 0.5, shape)
    assert plan.items == {
        "interpreter": INTERPRETER, "overhead": 20_000_000, "weights": 16_000 * sum(outputs),
        "blocks": blocks, "cache": cache, "decoding": 420_000,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("job", "is_wide", "is_uneven", "row_bytes", "more_bytes", "copies"),
    [
        ({"loss": "hinge", "solver": "dual"}, False, False, 0, 0, 2),
        ({"loss": "hinge", "calibrate": True}, False, False, 1, 16_000_000, 2),
        ({"loss": "one_class"}, False, False, 4, 0, 5),
        ({"loss": "log_loss", "solver": "newton"}, False, False, 16, 0, 2),
        ({"loss": "log_loss", "solver": "newton"}, True, True, 120, 0, 2),
        ({"loss": "epsilon_insensitive", "solver": "newton"}, True, False, 60, 0, 2),
        ({"loss": "hinge", "solver": "newton"}, True, True, 152, 0, 2),
        ({"loss": "crammer_singer", "solver": "newton"}, True, False, 320, 0, 2),
    ],
)  # fmt: skip
def test_bytes_of_the_rows_of_a_method_are_these(
    job, is_wide, is_uneven, row_bytes, more_bytes, copies, tmp_path, monkeypatch
):
    X, y = np.eye(30, 4), np.arange(30) % 3
    monkeypatch.setattr(Task, "has_many_features", is_wide)
    monkeypatch.setattr(Task, "is_uneven", is_uneven)
    store = make_store(tmp_path, X, y, blocks=2)
    shape = shape_of(Task.of(sbm.Settings(**job), BlockStore(store)))
    found = shape.row_bytes, shape.more_bytes, shape.copies
    assert found == (row_bytes, more_bytes, copies)


def test_stream_plans_for_a_limit_below_mem(tmp_path, monkeypatch):
    (tmp_path / "a.svm").write_bytes(b"".join(make_lines(40)))
    found = {}
    for name, size in (("ample", 10**12), ("short", 150_000_000)):
        patch(monkeypatch, "streaming.system_limit", lambda size=size: Limit(size, "ulimit -v"))
        notes = []
        progress = type("Notes", (Progress,), {"note": lambda self, text, n=notes: n.append(text)})
        sbm.stream(tmp_path / "a.svm", tmp_path / f"{name}.model", progress=progress())
        found[name] = [note for note in notes if "ulimit -v" in note]
    assert found["ample"] == []
    assert "150 MB" in found["short"][0]
