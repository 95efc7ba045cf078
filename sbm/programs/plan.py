"""Plan: estimate memory, passes and time of a training in advance.

Memory is planned as for the training itself. Trials then take a few seconds: the same learners
train on a sample of the chunks of each block, with a proportionally smaller cache, then on samples
four times larger until the time is up. The estimate extrapolates: time scales with the rows, and
passes grow by the difference between the last two trials each time the rows quadruple.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sbm.engine.certificate import certify, replace_weights
from sbm.engine.clock import clock
from sbm.engine.columns import ColumnPasses
from sbm.engine.engine import Engine, Pauses, y_dtype
from sbm.engine.kernels import kernels_of, prepare
from sbm.engine.learners import Group
from sbm.engine.machine import free_bytes, return_freed_memory
from sbm.engine.memory import MemoryPlan, Part
from sbm.engine.pace import LEAST_PASSES, NEWTON_PASSES, Work, choose_rounds, passes_left
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
from sbm.programs.training.ranks import only
from sbm.programs.training.scales import scale_features
from sbm.programs.training.setup import find_store, fits_newton, open_run, plan_of, shape_of
from sbm.programs.training.turns import divide_classes
from sbm.settings import Settings
from sbm.solver.gap import GapWatch
from sbm.solver.l1 import Work as ColumnWork
from sbm.solver.problem import AnyProblem
from sbm.solver.step import Totals
from sbm.store.blocks import BlockStore, require_whole

FIRST_NNZ = 500_000  # nonzeros of the first trial, times outputs
GROWTH = 4  # ratio of rows of consecutive trials
READ_SECONDS = 0.3  # time to measure the disk
# Factors between the estimate and its bounds: speed of a busy machine, and number of passes.
SPEED_RANGE = 1.3
PASSES_RANGE = 1.4
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


def plan(
    store: str | Path | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    seconds: float = 5.0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Estimate memory, passes and time of a training from trials of a few seconds.

    Only a temporary folder is written, and removed at the end.

    Parameters
    ----------
    store : str or Path, optional
        Default: the only ``*.sbm`` in the current folder.
    settings : sbm.Settings or dict, optional
        Settings of the training. `warm_start` is ignored.
    seconds : float
        Time for trials; longer gives better estimates.
    progress : Progress, optional
        Receives the number of trials.

    Returns
    -------
    dict
        ``store``, ``rows``, ``features``, ``nnz``; ``mem`` and ``memory`` (planned bytes by
        purpose, and ``total``); ``blocks``, ``decoded_blocks`` (those that stay decoded in memory),
        ``decoded_bytes``, ``bytes_read_again`` (by each pass after the first), ``block_rows`` and
        ``block_nnz`` (of the largest),
        ``cache_rows``, ``cache_nnz``; ``bytes_a_pass``; ``disk_bytes_per_second``,
        ``decode_nnz_per_second``, ``solve_nnz_per_second``; ``seconds_a_pass``, ``passes`` and
        ``seconds`` (each a list: least, likely, most), ``turns`` (in how many the classes are
        trained; all but ``seconds`` is of one), ``solver`` (the last one; None for sparse models),
        ``switched_after`` (passes of the dual solver, or None), ``max_passes``, ``is_measured``
        (whether a trial was the whole training) and ``trials``.

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
    is_sparse = settings.penalty != "l2"
    if is_sparse:
        refuse_for_sparse(settings, 1)
    return_freed_memory()
    blocks = BlockStore(find_store(store))
    require_whole(blocks)
    blocks.scaling = settings.scale
    refuse_newton(settings)
    dual, newton = settings.for_dual(), replace(settings, solver="newton")
    turns = divide_classes(dual, blocks)
    problems = only(make_problems(dual, blocks), turns[0])
    memory = plan_of(dual, blocks, shape_of(dual, blocks, problems), None, progress)
    prepare(kernels_of(dual, problems), blocks.value_type, progress)
    scale_features(blocks, progress)
    with blocks.in_use():
        chunks = [chunk for part in memory.parts for chunk in part.chunks]
        disk = blocks.read_cold(chunks, READ_SECONDS)
        trials = _trials(blocks, dual, problems, memory, seconds, progress)
        size = sum(chunk.size for chunk in chunks)
    if is_sparse:
        described = _described(blocks, settings, memory)
        again = described["bytes_read_again"]
        found = _forecast(trials, blocks.nnz, size, again, disk, settings)
        return described | found | {"solver": None, "switched_after": None}
    others, is_first = [], settings.solver == "newton" or settings.intercept
    if is_first or suits_newton(newton, blocks):
        others = only(make_problems(newton, blocks), turns[0])
    may_switch = settings.solver == "auto" and bool(others) and fits_newton(newton, blocks, others)
    is_first = is_first or (may_switch and starts_with_newton(settings, blocks))
    if is_first:
        shape = shape_of(newton, blocks, others)
        memory = plan_of(newton, blocks, shape, None, progress)
    described = _described(blocks, settings, memory)
    again = described["bytes_read_again"]
    found = _forecast(trials, blocks.nnz, size, again, disk, settings)
    found["turns"] = len(turns)
    passes, work = _likely_passes(trials, blocks.nnz), work_of(blocks, problems)
    found |= _foresee(found, trials[-1], passes, work, is_first, may_switch)
    return described | found | {"seconds": [len(turns) * time for time in found["seconds"]]}


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
) -> list[Trial]:
    """Train on growing samples, while the next trial is likely to finish in time."""
    begin = clock()
    outputs = sum(problem.n_outputs for problem in problems)
    trials: list[Trial] = []
    staying = memory.staying(range(len(memory.parts)))
    attempt = _try if settings.penalty == "l2" else _try_sparse
    progress.start("measuring", None, "trials")
    for some in _thinned_plans(memory, store.nnz, FIRST_NNZ // outputs):
        began = clock()
        left = seconds - (began - begin)
        trials.append(attempt(store, settings, problems, some, staying, left))
        progress.advance(len(trials))
        now = clock()
        if GROWTH * (now - began) > seconds - (now - begin):
            break
    progress.finish()
    return trials


def _thinned_plans(memory: MemoryPlan, nnz: int, first: int) -> Iterator[MemoryPlan]:
    """Yield plans for growing samples; the last one covers all nonzeros."""
    before = wanted = 0
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
        tempfile.TemporaryDirectory(prefix="sbm-") as folder,
        open_run(Path(folder, "trial.run"), problems, memory) as run,
    ):
        engine = Engine(
            store, settings, problems, memory, run, Progress(), pauses=Pauses(is_late),
            staying=staying,
        )  # fmt: skip
        with engine.at_work():
            gaps, totals, looks, is_done = _passes(engine, settings, problems, seconds_left)
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
    )


def _try_sparse(
    store: BlockStore,
    settings: Settings,
    problems: Sequence[AnyProblem],
    memory: MemoryPlan,
    staying: Sequence[int],
    seconds: float,
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
                whole=engine.whole_work,
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


def _described(store: BlockStore, settings: Settings, memory: MemoryPlan) -> dict[str, Any]:
    """Return the facts that need no trial."""
    parts = range(len(memory.parts))
    staying = memory.staying(parts)
    read = [k for k in parts if k not in set(staying)]
    return {
        "store": str(store.folder),
        "rows": store.n_rows,
        "features": store.n_features,
        "nnz": store.nnz,
        "mem": settings.mem_bytes,
        "memory": {**memory.items, "total": memory.total},
        "blocks": len(memory.parts),
        "decoded_blocks": len(staying),
        "decoded_bytes": memory.decoded_bytes(staying),
        "bytes_read_again": sum(chunk.size for k in read for chunk in memory.parts[k].chunks),
        "block_rows": memory.part_rows,
        "block_nnz": memory.part_nnz,
        "cache_rows": memory.cache_rows,
        "cache_nnz": memory.cache_nnz,
    }
