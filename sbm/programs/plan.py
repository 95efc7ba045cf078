"""Plan: estimate memory, passes and time of a training in advance.

Memory is planned as for the training itself. Trials then take a few seconds: the same learners
train on a sample of the chunks of each block, with a proportionally smaller cache, then on samples
four times larger until the time is up. The estimate extrapolates: time scales with the rows, and
passes grow by the difference between the last two trials each time the rows quadruple.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sbm.distributed.comm import Replicas
from sbm.distributed.launch import MOST_PROCESSES
from sbm.engine.certificate import certify, replace_weights
from sbm.engine.clock import clock
from sbm.engine.columns import ColumnPasses
from sbm.engine.engine import Engine, Pauses, y_dtype
from sbm.engine.exchange import LATENCY, MORE_WORK, RATE, Exchange
from sbm.engine.kernels import kernels_of, prepare
from sbm.engine.learners import Group
from sbm.engine.machine import free_bytes, return_freed_memory
from sbm.engine.memory import MemoryPlan, Part, Shape
from sbm.engine.pace import (
    LEAST_PASSES,
    NEWTON_PASSES,
    RANK_ROUNDS,
    Work,
    choose_rounds,
    passes_left,
)  # fmt: skip
from sbm.engine.problems import make_problems
from sbm.engine.progress import Progress
from sbm.errors import SettingsError
from sbm.programs.training.l1 import (
    ColumnSteps,
    refuse_for_sparse,
    sparse_problems,
    total_certificate,
)  # fmt: skip
from sbm.programs.training.newton import (
    refuse_newton,
    starts_with_newton,
    suits_newton,
    work_of,
)  # fmt: skip
from sbm.programs.training.ranks import WorkShare, deal_parts, only
from sbm.programs.training.scales import scale_features
from sbm.programs.training.setup import find_store, fits_newton, open_run, plan_of, shape_of
from sbm.programs.training.turns import divide_classes
from sbm.settings import Settings
from sbm.solver.gap import GapWatch
from sbm.solver.l1 import Work as ColumnWork
from sbm.solver.problem import AnyProblem
from sbm.solver.step import Totals
from sbm.store.blocks import BlockStore, require_whole
from sbm.store.files import temporary_folder

FIRST_NNZ = 500_000  # nonzeros of the first trial, times outputs
GROWTH = 4  # ratio of rows of consecutive trials
READ_SECONDS = 0.3  # time to measure the disk
# Factors between the estimate and its bounds: speed of a busy machine, and number of passes.
SPEED_RANGE = 1.3
PASSES_RANGE = 1.4
FEWER = 0.3  # least share of the estimated rows of a round and of their changed weights
UNKNOWN_PASSES = 4.0  # least estimate if there was no time for two passes
UNFINISHED_RANGE = 6.0  # upper factor of passes if no trial converged
START_SECONDS = 0.3  # to start Python and write the model


@dataclass(frozen=True)
class Trial:
    """Result of a training on a sample of the rows."""

    nnz: int  # nonzeros of the sample
    passes: float  # passes to the tolerance; extrapolated from the gap if the time was up before
    # seconds of a later pass: solving, and waiting for the blocks that are read again
    seconds_a_pass: float
    seconds_to_decode: float  # seconds that the first pass waits for the blocks that stay decoded
    seconds_a_look: float  # seconds per certificate
    seconds: dict[str, float]  # seconds by purpose; see `Seconds`
    visits_nnz: float  # nonzeros visited by the solver
    loaded_nnz: float  # nonzeros read and decoded
    is_done: bool  # whether the certified gap reached the tolerance
    visits_a_pass: float = 1.0  # visits per row and pass
    rounds_a_pass: float = 1.0
    awake: float = 1.0  # share of the rows that are not at rest when their block is solved
    # nonzeros of the rows that are visited and updated in a round
    visited_nnz: float = 0.0
    changed_nnz: float = 0.0


def plan(
    store: str | Path | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    seconds: float = 5.0,
    processes: int = 1,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Estimate memory, passes and time of a training from trials of a few seconds.

    Only a temporary folder is written, and removed at the end. The trials run in this process. For
    several, the work is divided and the cost of their sums is added, from counts.

    Parameters
    ----------
    store : str or Path, optional
        Default: the only ``*.sbm`` in the current folder.
    settings : sbm.Settings or dict, optional
        Settings of the training. `warm_start` is ignored.
    seconds : float
        Time for trials; longer gives better estimates.
    processes : int
        Number of processes that train together over MPI, each with a core of its own.
    progress : Progress, optional
        Receives the number of trials.

    Returns
    -------
    dict
        ``store``, ``rows``, ``features``, ``nnz``; ``mem`` and ``memory`` (planned bytes by
        purpose, and ``total``); ``blocks``, ``decoded_blocks`` (those that stay decoded in memory),
        ``decoded_bytes`` (memory, blocks and bytes read are those of one process),
        ``bytes_read_again`` (by each pass after the first), ``block_rows`` and ``block_nnz`` (of
        the largest), ``cache_rows``, ``cache_nnz``; ``bytes_a_pass``; ``disk_bytes_per_second``,
        ``decode_nnz_per_second``, ``solve_nnz_per_second``; ``seconds_a_pass``, ``passes`` and
        ``seconds`` (each a list: least, likely, most), ``turns`` (in how many the classes are
        trained; all but ``seconds`` is of one), ``solver`` (the last one; None for sparse models),
        ``switched_after`` (passes of the dual solver, or None), ``max_passes``, ``is_measured``
        (whether a trial was the whole training) and ``trials``. Also ``processes``, and for several
        ``bytes_sent`` by each (a list as above) and ``sums`` (of a round: of frequent weights, and
        of all weights; 0 if nothing is added up).

    Raises
    ------
    StoreError
        The store is missing, damaged, or a shard.
    DataError, SettingsError, MemoryPlanError
        As for `sbm.train`; also a setting whose time cannot be estimated.
    """
    settings, progress = Settings.of(settings), Progress.of(progress)
    if not seconds > 0:
        raise SettingsError(f"seconds is {seconds:g}; it must be above 0")
    settings.refuse_foreign("plan")
    settings = replace(settings, warm_start=None)
    if not 1 <= processes <= MOST_PROCESSES:
        raise SettingsError(f"launch is {processes}; it must be from 1 to {MOST_PROCESSES}")
    is_sparse = settings.penalty != "l2"
    if is_sparse:
        refuse_for_sparse(settings, processes)
    return_freed_memory()
    blocks = BlockStore(find_store(store))
    require_whole(blocks)
    blocks.scaling = settings.scale
    refuse_newton(settings)
    dual, newton = settings.for_dual(), replace(settings, solver="newton")
    comm = Replicas(processes)
    turns = divide_classes(dual, blocks) if processes == 1 else []
    share = WorkShare.of(comm, dual, blocks)
    problems = only(make_problems(dual, blocks), turns[0]) if turns else share.problems
    n = share.adding.size
    memory = plan_of(dual, blocks, _shape_of(dual, blocks, problems, share), None, progress)
    prepare(kernels_of(dual, problems), blocks.value_type, progress)
    scale_features(blocks, progress)
    own = max(deal_parts(share.adding, blocks, memory), key=len)
    with blocks.in_use():
        chunks = [chunk for part in memory.parts for chunk in part.chunks]
        disk = blocks.read_cold(chunks, READ_SECONDS)
        trials = _trials(blocks, dual, problems, memory, seconds, progress, n)
        size = sum(chunk.size for chunk in chunks)
    again = n * _bytes_again(memory, own)
    found = _forecast(trials, blocks.nnz, size, again, disk, settings)
    if is_sparse:
        described = _described(blocks, settings, memory, own)
        return described | found | {"solver": None, "switched_after": None, "processes": 1}
    others, is_first = [], settings.solver == "newton" or settings.intercept
    if is_first or suits_newton(newton, blocks, processes):
        others = only(make_problems(newton, blocks), turns[0]) if turns else share.problems
    may_switch = settings.solver == "auto" and bool(others) and fits_newton(newton, blocks, others)
    is_first = is_first or (may_switch and starts_with_newton(settings, blocks))
    if is_first:
        shape = _shape_of(newton, blocks, others, share)
        memory = plan_of(newton, blocks, shape, None, progress)
        own = max(deal_parts(share.adding, blocks, memory), key=len)
    passes, work = _likely_passes(trials, blocks.nnz), work_of(blocks, problems)
    found |= _foresee(found, trials[-1], passes, work, is_first, may_switch)
    found |= _divide(found, trials[-1], memory, own, work, share)
    found |= {"turns": max(1, len(turns)), "processes": processes}
    found["seconds"] = [found["turns"] * time for time in found["seconds"]]
    return _described(blocks, settings, memory, own) | found


def _shape_of(
    settings: Settings, store: BlockStore, problems: Sequence[AnyProblem], share: WorkShare
) -> Shape:
    """Return the shape for the memory plan of the process that needs the most memory."""
    shape = shape_of(settings, store, problems, processes=share.adding.size)
    return replace(shape, more_bytes=shape.more_bytes + share.collected_bytes(shape.n_weights))


def _passes_in_all(gaps: Sequence[float], tol: float, done: float) -> float:
    """Estimate the total passes to the tolerance, of which some are done."""
    left = passes_left(gaps, tol)
    return max(UNKNOWN_PASSES, 2 * done) if left is None else len(gaps) + left


# ------------------------------------------------------------------------------------- trials


def _trials(
    store: BlockStore,
    settings: Settings,
    problems: Sequence[AnyProblem],
    memory: MemoryPlan,
    seconds: float,
    progress: Progress,
    ranks: int,
) -> list[Trial]:
    """Train on growing samples, while the next trial is likely to finish in time.

    If each rank keeps its rows in memory, the largest sample is the rows of one rank.
    """
    begin = clock()
    outputs = sum(problem.n_outputs for problem in problems)
    trials: list[Trial] = []
    if memory.is_whole:
        memory = replace(memory, parts=[max(memory.parts, key=lambda part: part.nnz)])
    staying = memory.staying(range(len(memory.parts)))
    attempt = _try if settings.penalty == "l2" else _try_sparse
    progress.start("measuring", None, "trials")
    for some in _thinned_plans(memory, FIRST_NNZ // outputs):
        began = clock()
        left = seconds - (began - begin)
        trials.append(attempt(store, settings, problems, some, staying, left, ranks))
        progress.advance(len(trials))
        now = clock()
        if GROWTH * (now - began) > seconds - (now - begin):
            break
    progress.finish()
    return trials


def _thinned_plans(memory: MemoryPlan, first: int) -> Iterator[MemoryPlan]:
    """Yield plans for growing samples; the last one is the plan itself."""
    before = wanted = 0
    nnz = sum(part.nnz for part in memory.parts)
    while before < nnz:
        wanted = max(first, GROWTH * wanted)
        some = _thinned(memory, min(1.0, wanted / nnz))
        size = sum(part.nnz for part in some.parts)
        if size > before:  # chunks are not divided, so it may be unchanged
            before = size
            yield some


def _thinned(memory: MemoryPlan, share: float) -> MemoryPlan:
    """Return a plan for a share of the chunks of each part, with a proportional cache."""
    if share >= 1:
        return memory
    step = round(1 / share)  # of the chunks of each part, evenly spaced and at least one
    parts = [
        Part(part.pieces, part.chunks[:: min(len(part.chunks), step)]) for part in memory.parts
    ]
    kept = sum(part.nnz for part in parts) / sum(part.nnz for part in memory.parts)
    return replace(
        memory,
        parts=parts,
        cache_rows=math.ceil(kept * memory.cache_rows),
        cache_nnz=math.ceil(kept * memory.cache_nnz),
        items={
            name: math.ceil(kept * size) if name == "columns" else size
            for name, size in memory.items.items()
        },
    )


def _try(
    store: BlockStore,
    settings: Settings,
    problems: Sequence[AnyProblem],
    memory: MemoryPlan,
    staying: Sequence[int],
    seconds: float,
    ranks: int,
) -> Trial:
    """Train as `sbm.train` does until the certified gap reaches the tolerance or time is up."""
    end = clock() + seconds
    done_blocks = [0]

    def seconds_left() -> float:
        return end - clock()

    def is_late() -> bool:
        done_blocks[0] += 1  # the engine calls this after each block
        return seconds_left() < 0

    with (
        temporary_folder() as folder,
        open_run(Path(folder, "trial.run"), problems, memory) as run,
    ):
        engine = Engine(
            store, settings, problems, memory, run, Progress(), pauses=Pauses(is_late),
            staying=staying,
        )  # fmt: skip
        with engine.at_work():
            gaps, totals, looks, is_done = _passes(engine, settings, problems, seconds_left, ranks)
    nnz = sum(part.nnz for part in memory.parts)
    rows = sum(part.rows for part in memory.parts)
    passes = done_blocks[0] / len(memory.parts)
    spent = asdict(engine.seconds)
    again = 1 - sum(memory.parts[k].nnz for k in staying) / max(1, nnz)  # share read in each pass
    wait = spent["wait"] / (1 + max(0.0, passes - 1) * again)  # to read all
    return Trial(
        nnz=nnz,
        passes=float(len(gaps)) if is_done else _passes_in_all(gaps, settings.tol, passes),
        seconds_a_pass=again * wait + spent["solve"] / passes,
        seconds_to_decode=(1 - again) * wait,
        seconds_a_look=spent["certify"] / looks if looks else spent["load"] / passes,
        seconds=spent,
        visits_nnz=totals.visits / max(1, rows) * nnz,
        loaded_nnz=(passes + looks) * nnz,
        is_done=is_done,
        visits_a_pass=totals.visits / max(1, rows) / passes,
        rounds_a_pass=totals.rounds / passes,
        awake=1 - totals.rest / (max(1, rows) * passes),
        visited_nnz=totals.visits / max(1, totals.rounds) * nnz / max(1, rows),
        changed_nnz=totals.updates / max(1, totals.rounds) * nnz / max(1, rows),
    )


def _try_sparse(
    store: BlockStore,
    settings: Settings,
    problems: Sequence[AnyProblem],
    memory: MemoryPlan,
    staying: Sequence[int],
    seconds: float,
    ranks: int,
) -> Trial:
    """Train a sparse model as `_try` does; with fewer rows, C is larger."""
    end, gaps, work = clock() + seconds, list[float](), ColumnWork()
    nnz = sum(part.nnz for part in memory.parts)
    rows = sum(part.rows for part in memory.parts)
    scale = store.n_rows / max(1, rows)
    every = [
        replace(one, cost=scale * one.cost, other=scale * one.other)
        for one in sparse_problems(problems, settings)
    ]
    dtype = y_dtype(problems[0], store)
    reads = ColumnPasses(store, memory, settings, every, Progress(), dtype, staying)
    steps = ColumnSteps(reads, settings.tol, Progress(), lambda: clock() > end)
    is_done = False
    with reads.at_work():
        while not is_done and len(gaps) < settings.max_passes and (not gaps or clock() < end):
            steps.look("", lambda: None, len(gaps) + 1)
            gaps.append(total_certificate(reads.fits).relative_gap)
            is_done = gaps[-1] <= settings.tol
            if not is_done:
                work.add(steps.improve(gaps[-1], len(gaps)))
    spent, passes = asdict(reads.seconds), len(gaps)
    again = 1 - sum(memory.parts[k].nnz for k in staying) / max(1, nnz)
    wait = spent["wait"] / (1 + (passes - 1) * again)  # to read all; `certify` includes it
    return Trial(
        nnz=nnz,
        passes=float(passes) if is_done else _passes_in_all(gaps, settings.tol, passes),
        seconds_a_pass=again * wait + (spent["certify"] - spent["wait"] + spent["solve"]) / passes,
        seconds_to_decode=(1 - again) * wait,
        seconds_a_look=0.0,  # every pass is one
        seconds=spent,
        visits_nnz=work.nonzeros,
        loaded_nnz=passes * nnz,
        is_done=is_done,
        visits_a_pass=work.nonzeros / max(1, nnz) / passes,
    )


def _passes(
    engine: Engine,
    settings: Settings,
    problems: Sequence[AnyProblem],
    seconds_left: Callable[[], float],
    ranks: int,
) -> tuple[list[float], Totals, int, bool]:
    """Run passes; return estimated gaps, totals, number of certificates, and whether it is done."""
    watch, all_totals = GapWatch(settings.tol), Totals()
    gaps: list[float] = []
    rounds: list[int] = []
    free: dict[int, int] = {}
    looks, listed = 0, problems[0].listed
    while len(rounds) < settings.max_passes:
        rounds.append(
            choose_rounds(
                settings.rounds, len(engine.plan.parts), rounds, listed=listed,
                processes=ranks, whole=engine.whole_work,
            )
        )  # fmt: skip
        engine.set_pace(rounds[-1], free, watch.stop)
        totals, found_free = engine.run_pass(len(rounds))
        for one in totals.values():
            all_totals.add(one)
        # As in a training, all learners have caches of the same size.
        free = dict.fromkeys(found_free, sum(found_free.values()) // len(found_free))
        if seconds_left() < 0:
            break
        gap, dual = Group(engine.learners).estimate(totals)
        gaps.append(gap / max(abs(dual), 1e-300))
        if watch.is_due(gap, dual, engine.plan.is_whole):
            (certificate, found), looks = certify(engine), looks + 1
            if certificate.relative_gap <= settings.tol:
                return gaps, all_totals, looks, True
            watch.learn(certificate.relative_gap)
            replace_weights(engine, found)
    return gaps, all_totals, looks, False


# ----------------------------------------------------------------------------------- forecast


def _forecast(
    trials: Sequence[Trial], nnz: int, size: int, again: int, disk: float, settings: Settings
) -> dict[str, Any]:
    """Extrapolate speeds, passes and seconds of the training from the last trials.

    The first pass reads `size` bytes, later ones read `again`.
    """
    last = trials[-1]
    scale = nnz / last.nnz
    is_measured = scale == 1 and last.is_done
    passes = _likely_passes(trials, nnz)
    spread = 1.0 if is_measured else PASSES_RANGE
    most = spread if last.is_done else UNFINISHED_RANGE  # gaps shrink more slowly later
    by_pass = [_rounded(passes / spread), _rounded(passes), math.ceil(passes * most)]
    by_pass = [min(n, settings.max_passes) for n in by_pass]
    warm = scale * last.seconds_a_pass
    cold = max(warm + scale * last.seconds_to_decode, size / disk)
    # The system caches what it has read, if there is room.
    later = warm if size < free_bytes() else max(warm, again / disk)
    look = START_SECONDS + scale * last.seconds_a_look + (later - warm)
    likely = cold + (by_pass[1] - 1) * later + look
    least = by_pass[0] * warm + look
    most = cold + (by_pass[2] - 1) * later + 2 * look
    speed = SPEED_RANGE
    return {
        "bytes_a_pass": size,
        "disk_bytes_per_second": disk,
        "decode_nnz_per_second": last.loaded_nnz / max(last.seconds["load"], 1e-9),
        "solve_nnz_per_second": last.visits_nnz / max(last.seconds["solve"], 1e-9),
        "seconds_a_pass": [warm / speed, later, max(cold, later) * speed],
        "passes": by_pass,
        "seconds": [least / speed, likely, most * speed],
        "max_passes": settings.max_passes,
        "is_measured": is_measured,
        "trials": [asdict(trial) for trial in trials],
    }


def _likely_passes(trials: Sequence[Trial], nnz: int) -> float:
    """Extrapolate the passes of the trials to all nonzeros."""
    return trials[-1].passes + _growth(trials) * math.log(nnz / trials[-1].nnz, GROWTH)


def _foresee(
    found: Mapping[str, Any],
    last: Trial,
    passes: float,
    work: Work,
    is_first: bool,
    may_switch: bool,
) -> dict[str, Any]:
    """Return the solver that a training ends with, and its passes and seconds if that is Newton's.

    Its costs relative to those of the dual solver are known; the trials measured the latter.

    Parameters
    ----------
    found : mapping
        The forecast of the dual solver, which needs this number of `passes`.
    is_first, may_switch : bool
        Whether Newton's method is used from the first pass, or may be used later.
    """
    done, visits = 0 if is_first else LEAST_PASSES, work.rows * last.visits_a_pass
    is_enough, left = passes <= found["max_passes"], passes - done
    if not is_first and not (may_switch and work.newton_pays(left, visits, is_enough)):
        return {"solver": "dual", "switched_after": None}
    a_pass = found["seconds_a_pass"][1]
    all_passes = a_pass * work.newton() / work.dual(1, visits)
    first = found["bytes_a_pass"] / found["disk_bytes_per_second"] + START_SECONDS + done * a_pass
    return {
        "solver": "newton",
        "switched_after": None if is_first else done,
        "passes": [
            min(done + n, found["max_passes"]) for n in (3, NEWTON_PASSES, 2 * NEWTON_PASSES)
        ],
        "seconds": [first / SPEED_RANGE + k * all_passes for k in (0.3, 1.0, 3.0)],
        "is_measured": False,
    }


def _growth(trials: Sequence[Trial]) -> float:
    """Return how many more passes a sample with `GROWTH` times the rows takes."""
    if len(trials) < 2:
        return 0.5
    before, last = trials[-2:]
    return max(0.0, last.passes - before.passes) / max(
        1e-9, math.log(last.nnz / before.nnz, GROWTH)
    )


def _rounded(passes: float) -> int:
    return max(1, round(passes))


def _bytes_again(memory: MemoryPlan, own: Sequence[int]) -> int:
    """Return the bytes that each pass of a process after the first reads."""
    staying = set(memory.staying(own))
    return sum(c.size for k in own if k not in staying for c in memory.parts[k].chunks)


def _described(
    store: BlockStore, settings: Settings, memory: MemoryPlan, own: Sequence[int]
) -> dict[str, Any]:
    """Return the facts that need no trial; `own` are the parts of the process."""
    staying = memory.staying(own)
    return {
        "store": str(store.folder),
        "rows": store.n_rows,
        "features": store.n_features,
        "nnz": store.nnz,
        "mem": settings.mem_bytes,
        "memory": {**memory.items, "total": memory.total},
        "blocks": len(own),
        "decoded_blocks": len(staying),
        "decoded_bytes": memory.decoded_bytes(staying),
        "bytes_read_again": _bytes_again(memory, own),
        "block_rows": memory.part_rows,
        "block_nnz": memory.part_nnz,
        "cache_rows": memory.cache_rows,
        "cache_nnz": memory.cache_nnz,
    }


def _divide(
    found: Mapping[str, Any],
    last: Trial,
    memory: MemoryPlan,
    own: Sequence[int],
    work: Work,
    share: WorkShare,
) -> dict[str, Any]:
    """Return what changes in a forecast if several ranks divide the rows: time, passes and bytes.

    Each rank has a core and a disk of its own, and some more work than its share.
    """
    n, outputs = share.adding.size, work.problems
    if n == 1:
        sent = [8.0 * work.weights * outputs] * 3 if share.is_by_class else [0.0] * 3
        return {"sums": [0, 0], "bytes_sent": sent}
    whole, is_newton = memory.is_whole, found["solver"] == "newton"
    more = [1.0 if is_newton else n**power for power in MORE_WORK]
    passes = [k * factor for k, factor in zip(found["passes"], more, strict=True)]
    # If its rows are one part, a rank makes as many rounds in a pass as the trial.
    rounds = [k * (last.rounds_a_pass if whole else len(own) * RANK_ROUNDS) for k in passes]
    scale = work.nnz / last.nnz / (n if whole else 1)
    visited, changed = scale * last.visited_nnz, scale * last.changed_nnz
    room = last.awake * memory.part_nnz + memory.cache_nnz
    exchanges = [
        Exchange(n, work.weights, outputs, int(nnz))
        for nnz in (FEWER * min(visited, room), 0.5 * (visited + room), max(visited, room))
    ]
    looks = 16.0 * work.weights * outputs * (n - 1) / n  # of a certificate
    sent = [
        looks + k * one.bytes_sent(nnz)
        for k, one, nnz in zip(rounds, exchanges, (FEWER * changed, changed, math.inf), strict=True)
    ]
    if is_newton:  # each pass adds up the matrices
        rounds, sent = [0.0] * 3, [looks * work.weights * k for k in passes]
    sums = [
        one.seconds(*costs)
        for one, *costs in zip(exchanges, rounds, sent, LATENCY, RATE, strict=True)
    ]
    least = START_SECONDS, START_SECONDS, START_SECONDS * SPEED_RANGE
    seconds = [
        begin + (time - begin) * factor / n + extra
        for time, begin, factor, extra in zip(found["seconds"], least, more, sums, strict=True)
    ]
    return {
        "seconds_a_pass": [
            time * factor / n + extra / k
            for time, factor, extra, k in zip(
                found["seconds_a_pass"], more, sums, passes, strict=True
            )
        ],
        "passes": [min(max(1, round(k)), found["max_passes"]) for k in passes],
        "seconds": seconds,
        "bytes_a_pass": sum(c.size for k in own for c in memory.parts[k].chunks),
        "sums": [0, 1] if is_newton else list(exchanges[1].sums),
        "bytes_sent": sent,
        "is_measured": False,
    }
