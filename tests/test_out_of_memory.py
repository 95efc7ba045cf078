"""Where a plan turns out wrong, or the system gives less than --mem: less is used, and told."""

import gc
import itertools
import json
import os
import re
import resource
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from processes import finished
from streams import learn, make_lines, same, small_plans

import sbm
from sbm.errors import MemoryPlanError
from sbm.jobs.dealing import coding, deal
from sbm.jobs.dealing import options as dealing
from sbm.jobs.dealing.reading import read_sources
from sbm.jobs.machine import limits, memory
from sbm.jobs.machine.limits import Limit, less, system_limit, within_limit
from sbm.jobs.machine.memory import Shape, plan_training, plan_with_less
from sbm.jobs.progress import Progress
from sbm.jobs.streaming import state as stream_job
from sbm.rows import Arena
from sbm.store import text
from sbm.store.blocks import BlockStore
from sbm.store.idtable import IdTable
from scripts.bench_tools import run_process

MEM = 400_000_000


class Notes(Progress):
    """Keeps what is told once."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def about(self, words: str) -> list[str]:
        return [note for note in self.notes if words in note]


def files_of(folder: Path) -> dict[str, bytes]:
    """Bytes of the blocks of a store."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.sbb"))}


def failing(calls: set[int], real: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that sets room aside so that some calls find none."""
    made = iter(range(1, 1_000_000))

    def make(*arguments: Any, **options: Any) -> Any:
        if next(made) in calls:
            raise MemoryError
        return real(*arguments, **options)

    return make


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "d.svm"
    path.write_bytes(b"".join(make_lines(3000, classes=2)))
    return path


# ------------------------------------------------------------------------------ the next bound


def test_bounds_get_smaller_until_there_is_no_plan() -> None:
    tried = [2_000_000_000]
    while tried[-1] > 152_000_000:
        tried.append(less(tried[-1], 150_000_000, "splitting"))
    with pytest.raises(MemoryPlanError) as caught:
        less(tried[-1], 150_000_000, "splitting")
    assert tried == sorted(tried, reverse=True)
    assert all(bound >= 150_000_000 for bound in tried)
    assert 5 < len(tried) < 15
    assert str(caught.value) == (
        f"memory ran out while splitting, with --mem {tried[-1] / 1e6:.0f} MB, and there is no "
        "plan that needs less; end other programs, or raise the limit on this one"
    )


# ------------------------------------------------------------------------------------- limits


def system(root: Path, lines: str, limits_of: dict[str, str]) -> Path:
    """Make files as a system has them."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(lines)
    for name, value in limits_of.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value)
    return root


@pytest.mark.parametrize(
    ("lines", "files", "size"),
    [
        ("4:cpu,memory:/a/b\n", {"memory/a/b/memory.limit_in_bytes": "3000000\n"}, 3_000_000),
        # The smallest of the groups around counts.
        (
            "4:memory:/a/b\n0::/\n",
            {
                "memory/memory.limit_in_bytes": "9223372036854771712",
                "memory/a/memory.limit_in_bytes": "2000000",
                "memory/a/b/memory.limit_in_bytes": "4000000",
            },
            2_000_000,
        ),
        # In a container the path is that of the host, and not there.
        ("4:memory:/docker/x\n", {"memory/memory.limit_in_bytes": "5000000"}, 5_000_000),
        ("0::/user/x\n", {"user/x/memory.max": "max\n", "user/memory.max": "6000000"}, 6_000_000),
        ("0::/user/x\n", {"user/x/memory.max": "7000000\n"}, 7_000_000),
    ],
)
def test_the_smallest_limit_of_the_control_groups_is_found(
    tmp_path: Path, lines: str, files: dict[str, str], size: int
) -> None:
    assert system_limit(system(tmp_path, lines, files)) == Limit(size, "the memory cgroup")


@pytest.mark.parametrize("lines", ["4:cpu:/a\n0::/\n", "nonsense\n", "0::/user/x\n"])
def test_without_control_groups_the_machine_is_the_limit(
    tmp_path: Path, lines: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "_process_limits", lambda: iter(()))
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    root = system(tmp_path, lines, {"user/x/memory.max": "max\n"})
    assert system_limit(root) == Limit(total, "this machine")


@pytest.mark.parametrize(
    ("name", "what"), [("RLIMIT_DATA", "ulimit -d"), ("RLIMIT_AS", "ulimit -v")]
)
def test_limits_of_the_shell_are_found(
    name: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = getattr(resource, name)
    unlimited = resource.RLIM_INFINITY

    def limit_of(kind: int) -> tuple[int, int]:
        return (10**12 if kind == ours else unlimited, unlimited)

    monkeypatch.setattr(limits.resource, "getrlimit", limit_of)
    monkeypatch.setattr(limits.os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 10**12}.get)
    found = system_limit(tmp_path)
    assert found is not None
    assert found.what == what
    assert 0.99e12 < found.size <= 10**12


def test_a_plan_keeps_to_what_the_system_gives() -> None:
    notes: list[str] = []

    def plan(mem: int) -> SimpleNamespace:
        if mem < 100_000_000:
            raise MemoryPlanError("too little", 100_000_000)
        return SimpleNamespace(total=min(mem, 600_000_000), mem=mem)

    ample, short = Limit(700_000_000, "this machine"), Limit(300_000_000, "the memory cgroup")
    assert within_limit(plan, 10**9, None, notes.append).mem == 10**9
    assert within_limit(plan, 10**9, ample, notes.append).mem == 10**9  # it needs less than that
    assert notes == []
    assert within_limit(plan, 10**9, short, notes.append).mem == 300_000_000
    assert notes == [
        "--mem is 1 GB, but the memory cgroup gives this process 300 MB; the plan keeps to that"
    ]
    with pytest.raises(MemoryPlanError) as caught:
        within_limit(plan, 10**9, Limit(50_000_000, "ulimit -d"), notes.append)
    assert str(caught.value) == (
        "--mem is 1 GB, but ulimit -d gives this process 50 MB, and at least 100 MB are needed; "
        "raise that limit, or run this where there is more memory"
    )
    assert caught.value.least_bytes == 100_000_000


# ------------------------------------------------------------------------------------- split


@pytest.mark.parametrize("min_count", [1, 2])
@pytest.mark.parametrize(
    ("place", "calls"),
    [
        ("batch", {1}),
        ("batch", {2}),
        ("batch", {1, 2, 3}),
        ("piece", {1}),
        ("piece", {4}),
        ("chunk", {1}),
        ("chunk", {3}),
    ],
)
def test_a_split_that_runs_out_of_memory_begins_anew_with_less(
    place: str, calls: set[int], min_count: int, source: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(text, "PIECE", 10_000)
    bounds = []

    def note_bound(mem: int, *arguments: Any) -> int:
        bounds.append(less(mem, *arguments))
        return bounds[-1]

    monkeypatch.setattr(dealing, "less", note_bound)
    owner, name = {
        "batch": (deal._Batch, "of"),
        "piece": (coding.CodedText, "of"),
        "chunk": (sbm.store.blocks, "encode_rows"),
    }[place]
    options: dict[str, Any] = {"blocks": 3, "threads": 2, "min_count": min_count}
    progress = Notes()
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing(calls, getattr(owner, name)))
        sbm.split(source, tmp_path / "one.sbm", mem=MEM, progress=progress, **options)
    assert bounds
    assert [n.startswith("memory ran out, with --mem") for n in progress.about("ran out")] == (
        [True] * len(bounds)
    )
    sbm.split(source, tmp_path / "other.sbm", mem=bounds[-1], **options)
    assert files_of(tmp_path / "one.sbm") == files_of(tmp_path / "other.sbm")
    sbm.check(tmp_path / "one.sbm")


@pytest.mark.parametrize("place", ["convert", "add"])
def test_an_error_leaves_no_thread_that_reads_until_garbage_is_looked_for(
    place: str, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Garbage may be looked for by a thread that holds a lock which the other needs to end.
    monkeypatch.setattr(text, "PIECE", 10_000)

    class Taker:
        ids, n_rows = IdTable(), 0

        def add(self, coded: coding.CodedText, share: float) -> None:
            raise MemoryError

    if place == "convert":
        monkeypatch.setattr(coding.CodedText, "of", failing({1}, coding.CodedText.of))
    options = dealing.checked_options(
        MEM, blocks=3, block_size=None, dtype="float32", seed=0, shuffle=True, level=1, threads=2,
        on_error="fail", min_count=1, shards=None, reserved=0,
    )  # fmt: skip
    gc.disable()
    try:
        with (
            ThreadPoolExecutor(1, "sbm-parse") as pool,
            pytest.raises(MemoryError),
        ):
            read_sources("split", [text.Source(str(source))], Taker(), options, pool, Notes())
        assert [t.name for t in threading.enumerate() if t.name.startswith("sbm-read")] == []
    finally:
        gc.enable()


def test_a_split_without_memory_says_so_and_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deal._Batch, "of", failing(set(range(1000)), deal._Batch.of))
    with pytest.raises(MemoryPlanError, match=r"memory ran out while splitting, .* needs less"):
        sbm.split(source, tmp_path / "d.sbm", mem=MEM)
    assert [path.name for path in tmp_path.iterdir()] == ["d.svm"]


def test_an_append_that_runs_out_of_memory_leaves_the_store_or_completes_it(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "d.sbm"
    sbm.split(source, store, blocks=2)
    before = {path.name: path.read_bytes() for path in store.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(deal._Batch, "of", failing(set(range(1000)), deal._Batch.of))
        with pytest.raises(MemoryPlanError):
            sbm.split(source, store, append=True, force=True)
    assert {path.name: path.read_bytes() for path in store.iterdir()} == before
    monkeypatch.setattr(deal._Batch, "of", failing({1}, deal._Batch.of))
    sbm.split(source, store, append=True, force=True, blocks=2)
    assert sbm.check(store)["rows"] == 6000


def test_a_pipe_is_not_read_twice(source: Path, tmp_path: Path) -> None:
    code = (
        "from sbm.jobs.dealing import deal\n"
        "def refuse(*arguments): raise MemoryError\n"
        "deal.Dealer._deal = refuse\n"
        "from sbm.cli import main\n"
        "main(['split', '-', '-o', 'd.sbm', '-q'])\n"
    )
    with open(source, "rb") as file:
        done = finished([sys.executable, "-c", code], stdin=file, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == (
        "sbm: memory ran out while reading -, with --mem 1 GB, and it cannot be read again; give "
        "less --mem than that, or raise the limit on this process\n"
    )
    assert not (tmp_path / "d.sbm").exists()


# ------------------------------------------------------------------------------------ streams


def test_a_stream_that_finds_no_room_is_as_one_with_less_memory(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = tmp_path / "one.model", tmp_path / "other.model"
    bounds: list[int] = []
    real = stream_job.plan_stream

    def note_bound(mem: int, *arguments: Any) -> Any:
        bounds.append(mem)
        return real(mem, *arguments)

    monkeypatch.setattr(stream_job, "plan_stream", note_bound)
    progress = Notes()
    with monkeypatch.context() as patch:
        patch.setattr(Arena, "of", failing({1, 2}, Arena.of))
        _, report = sbm.stream(source, one, {"mem": MEM}, progress=progress)
    assert report["rows"] == 3000
    assert bounds[0] == MEM
    assert len(bounds) == 3
    assert bounds[2] < bounds[1] < MEM
    notes = progress.about("was not enough")
    assert len(notes) == 2
    assert re.fullmatch(
        r"a plan for 400 MB was not enough; going on with one for \d+ MB", notes[0]
    ), notes[0]
    _, plain = sbm.stream(source, other, {"mem": bounds[2]})
    assert np.array_equal(sbm.Model.load(one).W, sbm.Model.load(other).W)
    assert report["loss"] == plain["loss"]


def test_a_stream_that_finds_no_room_on_its_way_goes_on_from_its_commit(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = small_plans(monkeypatch)
    one, other = tmp_path / "one.model", tmp_path / "other.model"
    learn(source, one)
    n_plans = len(plans)
    assert n_plans > 3
    plans.clear()
    with monkeypatch.context() as patch:
        patch.setattr(Arena, "of", failing({2, 4, 5}, Arena.of))
        learn(source, other)
    assert len(plans) == n_plans + 3
    same(one, other)  # the plans of these tests have one size, whatever the bound


def test_a_stream_that_never_finds_room_says_what_is_kept(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_plans(monkeypatch)
    model = tmp_path / "d.model"
    with monkeypatch.context() as patch:
        patch.setattr(Arena, "of", failing(set(range(3, 1000)), Arena.of))
        with pytest.raises(MemoryPlanError, match=r"memory ran out while learning .*d\.model"):
            learn(source, model)
    learn(source, model, resume=True)
    learn(source, tmp_path / "plain.model")
    same(model, tmp_path / "plain.model")


def test_a_stream_that_grows_above_its_bound_goes_on_smaller(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = small_plans(monkeypatch)
    one, other = tmp_path / "one.model", tmp_path / "other.model"
    learn(source, one)
    assert len(plans) > 8
    plans.clear()
    monkeypatch.setattr(stream_job, "resident_bytes", lambda: MEM + 1 if 2 < len(plans) < 8 else 0)
    progress = Notes()
    sbm.stream(source, other, {"mem": MEM}, progress=progress)
    assert 1 <= len(progress.about("was not enough")) <= 5
    a, b = sbm.Model.load(one), sbm.Model.load(other)
    assert a.info["rows"] == b.info["rows"] == 3000
    # Blocks end elsewhere, so the two are not the same, but they are about as good.
    qualities = [model.info["stream"]["accuracy"] for model in (a, b)]
    assert abs(qualities[0] - qualities[1]) < 0.03


def test_a_stream_that_cannot_be_smaller_goes_on_all_the_same(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_plans(monkeypatch)
    sizes = itertools.chain([0], itertools.repeat(10**15))  # at the start, and from then on
    monkeypatch.setattr(stream_job, "resident_bytes", lambda: next(sizes))
    progress = Notes()
    _, report = sbm.stream(source, tmp_path / "d.model", {"mem": MEM}, progress=progress)
    assert report["rows"] == 3000
    assert 3 < len(progress.about("was not enough")) < 15
    assert progress.about("no plan keeps") == ["no plan keeps to 400 MB; going on as it is"]


def test_what_a_stream_is_called_from_is_no_part_of_its_bound(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_plans(monkeypatch)
    monkeypatch.setattr(stream_job, "resident_bytes", lambda: 10**15)  # from the start
    progress = Notes()
    sbm.stream(source, tmp_path / "d.model", {"mem": MEM}, progress=progress)
    assert progress.about("not enough") == progress.about("no plan keeps") == []


def test_a_stream_without_memory_for_a_block_says_how_to_go_on(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_plans(monkeypatch)
    monkeypatch.setattr(stream_job.Stream, "_predict", failing({30}, stream_job.Stream._predict))
    with pytest.raises(MemoryPlanError) as caught:
        learn(source, tmp_path / "d.model", options={"checkpoint_every": "100rows"})
    found = re.fullmatch(
        r"memory ran out while learning .*d\.model, planned for 400 MB; the (\d+) rows in front of "
        r"it are kept, go on with --resume and less --mem",
        str(caught.value),
    )
    assert found, str(caught.value)
    monkeypatch.undo()
    assert learn(source, tmp_path / "d.model", resume=True, mem="300MB")["rows"] == 3000


# ----------------------------------------------------------------------------------- training


def test_a_smaller_plan_of_a_training_has_smaller_parts_or_a_smaller_cache(
    source: Path, tmp_path: Path
) -> None:
    sbm.split(source, tmp_path / "d.sbm", blocks=2)
    store = BlockStore(tmp_path / "d.sbm")
    store.chunks[:] = [
        [memory.Chunk(b, 1000 * c, 1000, 5000, 100_000) for c in range(40)] for b in range(2)
    ]
    store.manifest.update(rows=400_000, nnz=8_000_000)
    shape = Shape(1000)
    plan = plan_training(store, 10**9, 0.5, shape)
    assert len(plan.parts) == 2
    with pytest.raises(MemoryPlanError) as caught:
        plan_training(store, 1, 0.5, shape)
    least, tries = caught.value.least_bytes, 0
    while plan.total > least + 2_000_000:
        smaller = plan_with_less(store, plan, 0.5, shape)
        assert least <= smaller.total < plan.total
        assert len(smaller.parts) > len(plan.parts) or smaller.cache_nnz < plan.cache_nnz
        plan, tries = smaller, tries + 1
    assert tries > 2
    with pytest.raises(MemoryPlanError, match=r"memory ran out while training on .*d\.sbm, with"):
        plan_with_less(store, plan, 0.5, shape)


# -------------------------------------------------------------------------- estimates by half

WRONG = """
import sys
from sbm.jobs.dealing import options
from sbm.jobs.machine import memory
from sbm.jobs.streaming import plan as streamplan
for module in (memory, streamplan):
    rows, nonzeros = module.row_bytes, module.NONZERO_BYTES
    module.row_bytes = lambda *some, rows=rows: tuple(size // 2 for size in rows(*some))
    module.NONZERO_BYTES = {name: size / 2 for name, size in nonzeros.items()}
    module.BUFFER_ROW //= 2
options.PIECE_FACTOR //= 2
from sbm.cli import main
main(sys.argv[1:])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the peak is another number")
@pytest.mark.parametrize("command", ["split", "train", "stream"])
def test_estimates_of_rows_that_are_wrong_by_half_are_within_what_is_spared(
    command: str, tmp_path: Path
) -> None:
    path, store = tmp_path / "d.svm", tmp_path / "d.sbm"
    path.write_bytes(b"".join(make_lines(10_000, classes=2)) * 20)
    if command == "train":
        sbm.split(path, store, blocks=2)
    mem = {"split": 170, "train": 140, "stream": 150}[command]
    words = {
        "split": ["split", path, "-o", store, "--json"],
        "train": ["train", store, "-o", tmp_path / "d.model", "--max-passes", "2", "--json"],
        "stream": ["stream", path, "-o", tmp_path / "d.model", "--json"],
    }[command]
    line = [sys.executable, "-c", WRONG, *map(str, words), "--mem", f"{mem}MB"]
    done = run_process(line, codes=(0, 3))
    assert json.loads(done.stdout)
    assert done.peak_bytes <= mem * 1_000_000


# ----------------------------------------------------------------- limits that the system sets

LIMITER = """
import os, resource, sys
stack = resource.getrlimit(resource.RLIMIT_STACK)[1]
resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, stack))
resource.setrlimit(resource.RLIMIT_DATA, (int(sys.argv[1]),) * 2)
os.execv(sys.executable, [sys.executable, "-m", "sbm", *sys.argv[2:]])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere this limit is not kept")
@pytest.mark.parametrize("size", [400_000_000, 250_000_000])
@pytest.mark.parametrize("command", ["split", "stream"])
def test_a_limit_below_the_bound_is_noticed_and_kept(
    command: str, size: int, source: Path, tmp_path: Path
) -> None:
    words = [command, source, "-o", tmp_path / "out", "--mem", "2GB", "-v"]
    line = [sys.executable, "-c", LIMITER, str(size), *map(str, words)]
    done = finished(line)
    assert done.returncode == 0, done.stderr
    told = f"--mem is 2 GB, but ulimit -d gives this process {size / 1e6:.0f} MB; the plan keeps"
    assert (told in done.stderr) == (command == "stream" or size < 476_000_000)
