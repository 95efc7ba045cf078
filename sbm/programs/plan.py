"""Plan: the memory, the blocks and the reading of a training, and what a pass takes.

Memory is planned as for the training itself. Then the learners of the training visit a sample of
each block once, which measures how fast rows are read, decoded and solved. How many passes a
training needs is not known in advance, so no total time is given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from sbm.dataset.open import Reader, open_rows
from sbm.dataset.options import ReadKeywords, ReadOptions
from sbm.distributed.comm import Comm, Replicas, SerialComm
from sbm.distributed.launch import MOST_PROCESSES
from sbm.engine.byclass import ClassPasses
from sbm.engine.certificate import certify
from sbm.engine.columns import ColumnPasses
from sbm.engine.engine import Engine, y_dtype
from sbm.engine.learners import Group
from sbm.engine.machine import return_freed_memory
from sbm.engine.memory import MemoryPlan, Part
from sbm.engine.pace import choose_rounds
from sbm.engine.progress import Progress
from sbm.errors import require_number
from sbm.plain import dataclass
from sbm.programs.training.columns import ColumnSteps, sparse_problems
from sbm.programs.training.needs import fits, plan_of
from sbm.programs.training.newton import starts_with_newton, suits_newton
from sbm.programs.training.ranks import deal_parts
from sbm.programs.training.scales import scale_features
from sbm.programs.training.state import open_run
from sbm.programs.training.task import Task
from sbm.programs.training.turns import divide_classes
from sbm.settings import Settings
from sbm.solver.problem import MultiProblem
from sbm.store.blocks import BlockStore
from sbm.store.files import temporary_folder

SAMPLE = 4_000_000  # nonzeros times outputs that are visited to measure: about 0.1 s
READ_SECONDS = 0.3  # time to measure the disk


@dataclass(frozen=True)
class Speed:
    """What a visit of a sample took.

    Attributes
    ----------
    nnz : int
        Nonzeros of the sample.
    decode : float
        Seconds to decode the sample; with Newton's method, also to compute decision values.
    solve : float or None
        Seconds to visit its rows, and those cached from it, once; None for Newton's method.
    """

    nnz: int
    decode: float
    solve: float | None


def plan(
    data: Any = None,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    processes: int = 1,
    progress: Progress | None = None,
    **reading: Unpack[ReadKeywords],
) -> dict[str, Any]:
    """Plan the memory of a training, and measure what a pass takes.

    Only a temporary folder is written, and removed at the end.

    Parameters
    ----------
    data
        A store, text or matrices, as for `sbm.train`; text is read to plan for its rows. Default:
        the only ``*.sbm`` in the current folder.
    settings : sbm.Settings or dict, optional
        Settings of the training. `warm_start` is ignored.
    processes : int
        Number of processes that train together over MPI. Memory, blocks and bytes are then those of
        the process that needs the most memory.
    progress : Progress, optional
        Receives notes.
    **reading
        How to read text or matrices; ``help(sbm.ReadOptions)`` lists the names.

    Returns
    -------
    dict
        ``store``, ``rows``, ``features``, ``nnz``; ``mem`` and ``memory`` (planned bytes by
        purpose, and ``total``); ``blocks``, ``decoded_share`` (of the rows, those that stay
        decoded), ``decoded_bytes``, ``block_rows`` and ``block_nnz`` (of the largest block),
        ``cache_rows``, ``cache_nnz``; ``bytes_a_pass`` (read by the first pass) and
        ``bytes_read_again`` (by each later pass); ``disk_bytes_per_second`` (None if
        all rows are in memory), ``decode_nnz_per_second``, ``solve_nnz_per_second``
        (the last one None for Newton's method); ``rounds`` of the first pass, at most, and
        ``seconds_a_round``, to visit all rows of the process once; ``turns`` (in how many the
        classes are trained), ``solver`` of the first pass (None for sparse models), ``max_passes``
        and ``processes``.

    Raises
    ------
    StoreError
        The store is missing, damaged, or a shard.
    DataError, SettingsError, MemoryPlanError
        As for `sbm.train`; also a setting that cannot be planned.
    """
    settings = Settings.of(settings)
    settings.refuse_foreign("plan")
    settings = replace(settings, warm_start=None)
    require_number("launch", processes, 1, MOST_PROCESSES)
    settings.refuse_conflicts(processes)
    return_freed_memory()
    how, told = ReadOptions.of(reading), Progress.of(progress)
    with temporary_folder() as folder:
        model = Path(folder, "plan.model")  # its name is that of the folder of rows, too
        with open_rows(data, model, settings, Reader(how, progress=told)) as (rows, _, _):
            return _plan(rows, settings, processes, told)


def _plan(
    rows: BlockStore, settings: Settings, processes: int, progress: Progress
) -> dict[str, Any]:
    """Plan a training on the rows of a store; see `plan`."""
    comm = Replicas(processes)
    turns = divide_classes(Task.of(settings, rows)) if processes == 1 else []
    task = _first_task(settings, rows, comm, turns[0] if len(turns) > 1 else None)
    problems = task.problems
    memory = plan_of(task, None, progress)
    own = max(deal_parts(task.dividing, rows, memory), key=len)
    staying = memory.staying(own)
    task.prepare_kernels(memory, staying, progress)
    scale_features(rows, progress)
    with rows.in_use():
        disk = rows.read_cold([c for part in memory.parts for c in part.chunks], READ_SECONDS)
        measure = _MEASURES.get(task.method, _measure)
        sample = _thinned(memory, SAMPLE // sum(problem.n_outputs for problem in problems))
        speed = measure(task, sample)
    nnz = sum(memory.parts[k].nnz for k in own)
    whole = nnz * sum(problem.n_outputs for problem in problems) if memory.is_whole else None
    return {
        "store": rows.name,
        "rows": rows.n_rows, "features": rows.n_features, "nnz": rows.nnz,
        "mem": settings.mem_bytes, "memory": {**memory.items, "total": memory.total},
        "blocks": len(memory.blocks(own)),
        "decoded_share": memory.share_of(staying, own),
        "decoded_bytes": memory.decoded_bytes(staying),
        "block_rows": memory.block_rows, "block_nnz": memory.block_nnz,
        "cache_rows": memory.cache_rows, "cache_nnz": memory.cache_nnz,
        "bytes_a_pass": _bytes_of(memory, own),
        "bytes_read_again": _bytes_of(memory, set(own) - set(staying)),
        "disk_bytes_per_second": disk if math.isfinite(disk) else None,
        "decode_nnz_per_second": _rate(speed.nnz, speed.decode),
        "solve_nnz_per_second": None if speed.solve is None else _rate(speed.nnz, speed.solve),
        "rounds": choose_rounds(
            settings.rounds, memory.n_blocks, listed=problems[0].listed,
            processes=task.share.adding.size, whole=whole,
        ),
        "seconds_a_round": None if speed.solve is None else speed.solve * nnz / speed.nnz,
        "turns": max(1, len(turns)),
        "solver": {"columns": None, "classes": "dual"}.get(task.method, task.method),
        "max_passes": settings.max_passes, "processes": processes,
    }  # fmt: skip


def _first_task(settings: Settings, rows: BlockStore, comm: Comm, classes: slice | None) -> Task:
    """Return the task of the first pass, whose solver is not ``auto``."""
    task = Task.of(settings, rows, comm, classes=classes)
    if settings.solver != "auto" or task.method != "dual" or not suits_newton(task):
        return task
    newton = Task.of(replace(settings, solver="newton"), rows, comm, classes=classes)
    return newton if starts_with_newton(task) and fits(newton) else task


def _bytes_of(memory: MemoryPlan, parts: Sequence[int] | set[int]) -> int:
    return sum(chunk.size for k in parts for chunk in memory.parts[k].chunks)


def _rate(nnz: int, seconds: float) -> float:
    return nnz / max(seconds, 1e-9)


def _thinned(memory: MemoryPlan, nnz: int) -> MemoryPlan:
    """Return a plan for evenly spaced chunks of each part, at least one, with a smaller cache.

    If all rows are one part, as in each of several processes, the sample is of the largest part.
    """
    parts = memory.parts
    if memory.is_whole:
        parts = [max(parts, key=lambda part: part.nnz)]
    every = sum(part.nnz for part in parts)
    step = max(1, every // max(1, nnz))
    parts = [Part(part.pieces, part.chunks[:: min(len(part.chunks), step)]) for part in parts]
    kept = sum(part.nnz for part in parts) / max(1, every)
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


def _measure(task: Task, sample: MemoryPlan) -> Speed:
    """Run a pass of one round over a sample; with Newton's method, only read it."""
    with (
        temporary_folder() as folder,
        open_run(Path(folder, "sample.run"), task.problems, sample) as run,
    ):
        staying = sample.staying(range(len(sample.parts)))
        engine = Engine(
            task.store, task.settings, task.problems, sample, run, Progress(), staying=staying
        )
        with engine.at_work():
            if task.method == "newton":
                certify(engine)
            else:
                engine.set_pace(1, {})
                for visit in engine.visits(engine.begin_pass(1)):
                    for learner in engine.learners:
                        visit.steps.update(visit.solve(Group([learner])))
    nnz, seconds = sum(part.nnz for part in sample.parts), engine.seconds
    if task.method == "newton":
        return Speed(nnz, seconds.certify, None)
    return Speed(nnz, seconds.load, seconds.solve)


def _measure_columns(task: Task, sample: MemoryPlan) -> Speed:
    """Look at a sample as a pass of a sparse model does."""
    store, settings, problems = task.store, task.settings, task.problems
    every, staying = sparse_problems(problems, settings), sample.staying(range(len(sample.parts)))
    dtype = y_dtype(problems[0], store)
    reads = ColumnPasses(store, sample, settings, every, Progress(), dtype, staying)
    steps = ColumnSteps(reads, settings.tol, Progress(), lambda: False)
    with reads.at_work():
        steps.look("", lambda: None, 1)
    seconds = reads.seconds
    look = seconds.certify - seconds.wait + seconds.solve  # `certify` includes waiting
    return Speed(sum(part.nnz for part in sample.parts), seconds.load, max(0.0, look))


def _measure_classes(task: Task, sample: MemoryPlan) -> Speed:
    """Read a sample; the time of visits depends on the classes of the rows that are near."""
    with (
        temporary_folder() as folder,
        open_run(Path(folder, "sample.run"), task.problems, sample) as run,
    ):
        (problem,) = task.problems
        assert isinstance(problem, MultiProblem)
        passes = ClassPasses(
            task.store, sample, problem, run, Progress(), SerialComm(),
            sample.staying(range(len(sample.parts))), lambda: None, seed=0, threads=1,
        )  # fmt: skip
        with passes.at_work():
            nnz = passes.count()
    return Speed(nnz, passes.seconds.load, None)


_MEASURES = {"columns": _measure_columns, "classes": _measure_classes}
