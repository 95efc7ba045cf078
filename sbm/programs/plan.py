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
from sbm.engine.learners import Seconds
from sbm.engine.machine import return_freed_memory
from sbm.engine.memory import MemoryPlan, Part
from sbm.engine.pace import choose_rounds
from sbm.engine.progress import Progress
from sbm.errors import require_number
from sbm.methods import method_named
from sbm.programs.training.job import Job, StartPoint, TrainOptions
from sbm.programs.training.needs import fits, in_groups, plan_of
from sbm.programs.training.newton import starts_with_newton, suits_newton
from sbm.programs.training.ranks import WorkShare, deal_parts
from sbm.programs.training.scales import scale_features
from sbm.programs.training.task import Task
from sbm.programs.training.training import Training
from sbm.programs.training.turns import divide_classes
from sbm.settings import Settings
from sbm.store.blocks import BlockStore
from sbm.store.files import temporary_folder

SAMPLE = 4_000_000  # nonzeros times outputs that are visited to measure: about 0.1 s


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
    rows = scale_features(rows)
    task = replace(task, store=rows)
    with rows.in_use():
        chunks = [chunk for part in memory.parts for chunk in part.chunks]
        disk = rows.read_cold(chunks, 0.3)  # seconds to measure for
        sample = _thinned(memory, SAMPLE // sum(problem.n_outputs for problem in problems))
        seconds = _measure(task, sample)
    seen, nnz = sum(part.nnz for part in sample.parts), sum(memory.parts[k].nnz for k in own)
    has_rounds = task.method in ("dual", "columns")  # others take what depends on the rows
    decode = seconds.load or seconds.certify  # Newton's method certifies while it reads
    # The method of columns measures its look as that of a certificate, with waiting.
    solve = seconds.solve + max(0.0, seconds.certify - seconds.wait) if has_rounds else None
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
        "decode_nnz_per_second": _rate(seen, decode),
        "solve_nnz_per_second": None if solve is None else _rate(seen, solve),
        "rounds": choose_rounds(
            settings.rounds, memory.n_blocks, listed=problems[0].listed,
            processes=task.share.adding.size, whole=whole, moves=task.may_have_line,
        ),
        "seconds_a_round": None if solve is None else solve * nnz / seen,
        "turns": max(1, len(turns)),
        "solver": {"columns": None, "classes": "dual"}.get(task.method, task.method),
        "max_passes": settings.max_passes, "processes": processes,
    }  # fmt: skip


def _first_task(settings: Settings, rows: BlockStore, comm: Comm, classes: slice | None) -> Task:
    """Return the task of the first pass, whose solver is not ``auto``."""
    task = in_groups(Task.of(settings, rows, comm, classes=classes))
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


def _measure(task: Task, sample: MemoryPlan) -> Seconds:
    """Visit the rows of a sample once, as the method of the task does; return what that took."""
    settings = replace(task.settings, rounds=1, time_limit=None)
    share = WorkShare(SerialComm(), task.share.problems, False)
    with temporary_folder() as folder:
        options = TrainOptions()
        job = _Sample(task.store, Path(folder, "sample.model"), settings, options, 0.0, share.comm)
        job.task, job.plan = replace(task, settings=settings, share=share), sample
        job.prepare()
        with job.open_run(StartPoint()) as run:
            training = Training(job, run, method_named(task.method))
            with training.method.at_work():
                training.method.measure()
    return training.seconds


class _Sample(Job):
    """A training that only visits the rows of its plan."""

    def prepare(self) -> None:
        """All rows of the plan are those of this process."""
        self.own, self.weights, self.itself = list(range(len(self.plan.parts))), None, {}

    def is_too_large(self) -> bool:
        """Return False: it ends soon."""
        return False
