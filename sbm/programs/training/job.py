"""A training before its first pass: options, memory plan and starting point."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sbm.compiled.clock import compile_seconds
from sbm.dataset.options import ReadOptions
from sbm.distributed.comm import Comm
from sbm.engine.machine import interpreter_bytes, resident_bytes, smaller
from sbm.engine.memory import MemoryPlan
from sbm.engine.progress import Progress
from sbm.errors import MemoryPlanError, StoreError
from sbm.plain import dataclass
from sbm.programs.training.checks import refuse_ranks
from sbm.programs.training.needs import (
    check_memory_of_products,
    fits,
    in_groups,
    is_wide,
    near_bytes,
    plan_of,
)
from sbm.programs.training.newton import starts_with_newton, suits_newton
from sbm.programs.training.ranks import (
    StatusFile,
    any_of,
    common_record,
    deal_parts,
    folder_of,
    one_first,
    refuse_others,
    runs_of_others,
)
from sbm.programs.training.scales import scale_features
from sbm.programs.training.sharedstart import SharedStart
from sbm.programs.training.state import (
    TrainingState,
    bound_before,
    family_of,
    identity,
    is_of,
    open_run,
    refuse_unfinished,
    run_to_resume,
)
from sbm.programs.training.task import Task
from sbm.programs.training.warmstart import (
    PreviousRun,
    find_run,
    last_run,
    lost_classes,
    shape_record,
)
from sbm.settings import Settings
from sbm.store.blocks import BlockStore
from sbm.store.run import Run, run_folder
from sbm.units import count, format_size

if TYPE_CHECKING:
    from sbm.dataset.weights import AnyWeights
    from sbm.programs.training.validation import Validation

__all__ = ["Carried", "Job", "StartPoint", "TrainOptions"]


@dataclass(frozen=True)
class TrainOptions:
    """Options of a training that do not change the model.

    Attributes
    ----------
    resume, is_stopped, progress
        As for `sbm.train`.
    reading : ReadOptions
        How to read text or matrices.
    keep_store : str, Path or None
        Store of the rows that are read, to write besides.
    test : str, Path or None
        Data that the caller will predict after the training; its first rows are checked before.
    read_rate : float or None
        Maximum bytes read per second, to simulate a slow disk in benchmarks.
    while_reading : callable
        Returns the context in which text is read. A signal may raise `KeyboardInterrupt` there, as
        a pipe can block, and there is nothing to save yet.
    """

    resume: bool | None = None
    is_stopped: Callable[[], bool] = lambda: False
    progress: Progress = field(default_factory=Progress)
    reading: ReadOptions = field(default_factory=ReadOptions)
    keep_store: str | Path | None = None
    test: str | Path | None = None
    read_rate: float | None = None
    while_reading: Callable[[], AbstractContextManager[Any]] = nullcontext


@dataclass(frozen=True)
class Carried:
    """What is kept when a training switches to Newton's method.

    Attributes
    ----------
    state : TrainingState
    columns : list of ndarray, shape (n_weights,), float64
        Weights by output.
    """

    state: TrainingState
    columns: list[npt.NDArray[np.float64]]


@dataclass(frozen=True)
class StartPoint:
    """Where a training starts. By default it starts from zero.

    Attributes
    ----------
    record : dict or None
        The last checkpoint of its own run, possibly of a finished one.
    earlier : PreviousRun or None
        Another run, whose alphas are the start.
    carried : Carried or None
        What the solver learned that was used until now.
    others : sequence of Path
        Folders of the same training with another number of ranks.
    """

    record: dict[str, Any] | None = None
    earlier: PreviousRun | None = None
    others: Sequence[Path] = ()
    carried: Carried | None = None

    @property
    def last_commit(self) -> Mapping[str, Any] | None:
        """The last checkpoint of either run, to check whether that is finished."""
        return self.record or (Run.read(self.others[0]) if self.others else None)


@dataclass
class Job:
    """A training to run; `prepare` resolves its task and fills in memory plan and identity.

    Attributes
    ----------
    store : BlockStore
    path : Path
        Path of the model.
    asked : Settings
        As given, whose solver may be ``auto``.
    options : TrainOptions
    begin : float
        Start time, by `sbm.compiled.clock.clock`.
    comm : Comm
    read : dict or None
        Report of reading text, as of `sbm.split`.
    classes : slice or None
        Class codes to train, if the others have turns of their own; None for all.
    whole_run : Path or None
        The run, if it is not next to the model, but that of a training in turns, which locked it.
    turn : mapping
        Which turn it is, stored in each checkpoint; empty without turns.
    shared_start : Path or None
        Run that all turns start from.
    bound : int or None
        Bytes to plan for, if not ``--mem``.
    task : Task
    plan : MemoryPlan
    own : list of int
        The blocks of this rank.
    weights : RowWeights, StoredWeights or None
    itself : dict
        The identity of this training, stored in each checkpoint.
    reserved : int
        Bytes of the bound for the tables of rows in memory.
    validation : Validation or None
    may_plan_with_less : bool
        Whether all ranks will retry together after memory ran out.
    """

    store: BlockStore
    path: Path
    asked: Settings
    options: TrainOptions
    begin: float
    comm: Comm
    read: dict[str, Any] | None = None
    classes: slice | None = None
    whole_run: Path | None = None
    turn: Mapping[str, Any] = field(default_factory=dict)
    shared_start: Path | None = None
    bound: int | None = None
    task: Task = field(init=False)
    plan: MemoryPlan = field(init=False)
    own: list[int] = field(init=False)
    weights: AnyWeights | None = field(init=False)
    itself: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.carried: Carried | None = None
        self.validation: Validation | None = None
        self.is_resumed = False  # before it switched to another solver
        self._solver = ""  # as asked, or the one that is used instead of ``auto``
        self.folder = self.whole_run or folder_of(run_folder(self.path), self.comm)
        self.status = StatusFile(run_folder(self.path), self.comm)
        self._is_locked = self.whole_run is not None
        self.may_plan_with_less = self.comm.size == 1  # otherwise only one of them ran out
        self._plans = 0
        self._switch: tuple[Any, bool] | None = None  # the last answer of `can_switch`
        self.compile_seconds = 0.0
        rows, ours = self.store.memory, interpreter_bytes()
        self._table_bytes = self.reserved = 0 if rows is None else rows.table_bytes
        ours += 0 if rows is None else rows.decoded.nbytes() + rows.reader_bytes
        self._spare_memory = max(0, resident_bytes() - ours)  # used by the caller

    # ------------------------------------------------------------------------- preparation

    def prepare(self) -> None:
        """Resolve the task, read the row weights, plan the memory and check all options."""
        self.reserved = self._table_bytes
        self._solver = "newton" if self.carried is not None else self.asked.solver
        self.task = self._resolve(self._solver)
        plan_of(self.task)  # fail before anything is read
        if self.asked.validate is not None and self.validation is None:
            from sbm.programs.training.validation import Validation

            self.validation = Validation(self.task, self.options.progress, self.options.reading)
            self.task = self._resolve(self._solver)
            plan_of(self.task)
        self.weights = self.task.read_weights(self.path.parent, self.options.progress)
        self.itself = self.identity()
        if not any_of(self.comm, not self._has_switched())[0] or self._starts_with_newton():
            self._solver = "newton"
            self.task = self._resolve(self._solver)
        refuse_others(self.comm, self.store, self.itself)
        self._plan()
        if not is_wide(self.task):
            self.reserved += near_bytes(self.task, self.plan)
            return
        refuse_ranks(self.task, self.comm.size)
        check_memory_of_products(self.plan, self.plan.missing(self.own, self.reserved))

    def identity(self) -> dict[str, Any]:
        """Return what identifies the training, before its memory is planned."""
        return {**identity(self.asked, self.store, self.weights), **self.turn}

    def _resolve(self, solver: str, counts: Sequence[float] | None = None) -> Task:
        """Return the task for a solver; `counts` are row weights per class, to balance classes."""
        settings = replace(self.asked, solver=solver)
        task = Task.of(settings, self.store, self.comm, counts=counts, classes=self.classes)
        task = in_groups(task)
        if self.validation is None:
            return task
        return replace(task, judge_bytes=self.validation.n_bytes, advice="no --validate")

    def _has_switched(self) -> bool:
        """Return whether the run to start from was switched to Newton's method, in this rank."""
        if self._solver != "auto" or self.options.resume is False:
            return False
        folders, warm_start = [self.folder], self.asked.warm_start
        if not is_of(self.folder, self.itself):
            if warm_start is None:
                return False
            folders = last_run(self.path) if warm_start is True else find_run(str(warm_start))
        return any(family_of(Run.read(folder)) == "newton" for folder in folders)

    def _starts_with_newton(self) -> bool:
        """Return whether `auto` begins with Newton's method."""
        return starts_with_newton(self.task) and self.can_switch()

    def switch(self, carried: Carried, start: StartPoint) -> None:
        """Continue with Newton's method; call `prepare` again."""
        self.is_resumed, self.carried = start.record is not None, carried

    def can_switch(self) -> bool:
        """Return whether Newton's method is supported and fits into memory."""
        if self._solver != "auto" or self.task.method != "dual":
            return False
        case = (self.bound, self.reserved, self.validation)
        # Planning can cost as much as a pass. Ranks have to plan at the same time.
        if self._switch is None or self._switch[0] != case or self.comm.size > 1:
            self._switch = (case, self._can_switch())
        return self._switch[1]

    def _can_switch(self) -> bool:
        if not suits_newton(self.task):
            return False
        return not any_of(self.comm, not fits(self._resolve("newton"), self.bound, self.reserved))[
            0
        ]

    def balance_classes(self) -> None:
        """Resolve the task again if classes are balanced by row weights."""
        counts = self.task.class_counts(self.weights)
        if counts is not None:
            self.task = self._resolve(self._solver, counts)

    def _plan_within(self, mem: int) -> MemoryPlan:
        return plan_of(self.task, mem, reserved=self.reserved)

    def _smaller_plan(self) -> MemoryPlan:
        return smaller(self._plan_within, self.plan.total, f"training on {self.store.name}")

    # ------------------------------------------------------------------------------ memory

    def _plan(self) -> None:
        """Plan the memory, divide the blocks, and add both to the identity."""
        if not self._plans and self.options.resume is not False:
            self.bound = bound_before(self.folder, self.itself)
        self.plan = self._agreed_plan()
        self._plans += 1
        share = self.task.share
        dividing = self.task.dividing
        self.own = deal_parts(dividing, self.store, self.plan)[dividing.rank]
        shape = shape_record(self.store, self.plan, share.problems)
        self.itself |= {"shape": shape, "bound": self.bound}
        self.itself["n_labels"] = len(self.store.labels or [])  # for a warm start
        self.itself["positive"] = getattr(share.every[0], "positive", None)
        self.itself |= {"own": self.own} if self.comm.size > 1 else {}
        self.itself |= {"classes": [self.comm.rank, self.comm.size]} if share.is_by_class else {}

    def _agreed_plan(self) -> MemoryPlan:
        """Plan for the smallest memory of all ranks, so that they cut blocks in the same way."""
        plan = plan_of(self.task, self.bound, self.options.progress, self.reserved)
        least = int(self.task.share.adding.gather([plan.total]).min())
        if least < plan.total:
            self.bound = least
            plan = self._plan_within(least)
        return plan

    @property
    def staying(self) -> list[int]:
        """The blocks of this rank that stay decoded in memory."""
        return list(self.plan.staying(self.own, self.reserved))

    def is_too_large(self) -> bool:
        """Return whether memory use exceeds the bound and there is a smaller plan."""
        most = (self.bound or self.task.settings.mem_bytes) + self._spare_memory
        if resident_bytes() <= most:
            return False
        try:
            self._smaller_plan()
        except MemoryPlanError:
            self._spare_memory = 1 << 62  # the plan is already the smallest: stop checking
            return False
        return True

    def plan_with_less(self) -> None:
        """Choose a smaller bound after memory ran out.

        Raises
        ------
        MemoryPlanError
            There is no smaller plan.
        """
        if not self._plans:
            raise MemoryPlanError(
                "memory ran out before training was planned; close other programs or raise the "
                "memory limit",
                interpreter_bytes(),
            )
        gc.collect()
        before = self.plan.total
        self.bound = self._smaller_plan().total
        self.options.progress.stage(
            f"more memory was needed than planned ({format_size(before)}); continuing with smaller "
            f"blocks, planned for {format_size(self.bound)}"
        )

    # ------------------------------------------------------------------------ starting point

    def find_start(self) -> StartPoint:
        """Find a checkpoint to resume, or a run with another number of ranks."""
        if self.carried is not None:
            return StartPoint(carried=self.carried)
        if self._plans > 1 and is_of(self.folder, self.itself):  # blocks are cut differently now
            if self.task.method == "columns":  # whose state has no rows
                return StartPoint(Run.read(self.folder))
            if self.task.method == "classes":  # no training starts from its lists
                return StartPoint()
            problems = self.task.share.problems
            return StartPoint(earlier=PreviousRun([self.folder], self.store, self.itself, problems))
        record = run_to_resume(
            self.folder, self.itself, self.options.resume, self.store, self._is_locked
        )
        record = common_record(self.task.share.adding, self.folder, record)
        if any_of(self.comm, record is None)[0]:
            return StartPoint(others=self._runs_of_others())
        return StartPoint(record)

    def _runs_of_others(self) -> list[Path]:
        """Return the run of this training with another number of ranks, if there is one.

        Raises
        ------
        StoreError
            Another unfinished training would be lost, or not all ranks can read the run.
        """
        if self.options.resume is False or self.task.settings.warm_start is not None:
            return []
        folders = runs_of_others(run_folder(self.path), self.comm)
        seen = [bool(folders) for folders in self.comm.share(list(map(str, folders)))]
        if any(seen) and not all(seen):
            raise StoreError(
                f"rank {seen.index(False)} cannot read the run of {self.path}, which used another "
                "number of ranks; start the same number as before, or use --fresh to start over"
            )
        if folders and not is_of(folders[0], self.itself):
            refuse_unfinished(folders[0])
            return []
        return folders

    def with_earlier(self, start: StartPoint) -> StartPoint:
        """Add the earlier run to a start, if there is one.

        That is the run given by `warm_start`, or the one with another number of ranks.
        """
        has_no_earlier = self.task.method in ("columns", "classes")
        if start.record or start.earlier or start.carried or has_no_earlier:
            return start
        if self.shared_start is not None and self.task.method == "dual":
            problems = self.task.share.problems
            return StartPoint(
                earlier=SharedStart(self.shared_start, self.store, self.itself, problems)
            )
        folders, warm_start = start.others, self.task.settings.warm_start
        if warm_start is True:
            folders = last_run(self.path)
            if not folders:
                self.options.progress.stage(f"{self.path} has no earlier run; starting from zero")
        elif warm_start is not None:
            folders = find_run(str(warm_start))
        elif folders:
            self.options.progress.stage(
                f"starting from the run in {folders[0].parent}, which used another number of ranks"
            )
        n_outputs = sum(problem.n_outputs for problem in self.task.share.every)
        if folders and (note := lost_classes(folders[0], self.store, self.itself, n_outputs)):
            self.options.progress.stage(note)
            folders = []
        if not folders:
            return start
        return StartPoint(
            earlier=PreviousRun(folders, self.store, self.itself, self.task.share.problems)
        )

    # --------------------------------------------------------------------------------- start

    def _prepare_kernels(self) -> None:
        task = self.task
        summed = task.method == "dual" and task.share.adding.size > 1
        task.prepare_kernels(self.plan, self.staying, self.options.progress, summed=summed)

    def compile_kernels(self) -> None:
        """Report the plan, compile the kernels and find the scales of features.

        Raises
        ------
        KeyboardInterrupt
            The training was asked to stop.
        """
        plan = self.plan
        n_staying, rows = sum(plan.parts[k].rows for k in self.staying), self.store.n_rows
        models = f"{self.task.models} models, " if self.task.models > 1 else ""
        self.options.progress.note(
            f"{models}{count(plan.n_blocks, 'block')}, {n_staying:,} of {rows:,} rows stay in "
            f"memory, cache {plan.cache_rows} rows; memory: {plan.describe()}"
        )
        before = compile_seconds()
        one_first(self.comm, self._prepare_kernels)
        self.compile_seconds += compile_seconds() - before
        if self.validation is not None:
            self.validation.choose_rows()
        if self.carried is None:  # otherwise they are known
            self.store = scale_features(self.store, self.comm)
            self.task = replace(self.task, store=self.store)
        if any_of(self.comm, self.options.is_stopped())[0]:
            raise KeyboardInterrupt

    def open_run(self, start: StartPoint) -> AbstractContextManager[Run]:
        """Open the run of this rank, new or at its last checkpoint."""
        is_same_log = start.carried is not None or bool(self.turn.get("reports"))
        return open_run(
            self.folder,
            self.task.problems,
            self.plan,
            start.record,
            self.comm.size > 1,
            is_same_log,
            self._is_locked,
        )
