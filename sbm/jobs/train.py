"""Train: selective block minimization over a block store (Algorithm 1 of Chang & Roth 2011).

Pass after pass over all blocks (`sbm.jobs.training.engine`) until the free running estimate of the
gap says that it may be small enough; then a pass of its own certifies the model at fixed W.

All there is to go on from is committed at the end of every pass and now and then inside: whenever
the process ends, the same command goes on from there (`sbm.jobs.training.resume`) and comes to the
same bytes as if nothing had happened.
"""

from __future__ import annotations

import gc
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from sbm.distributed.comm import Comm, SerialComm
from sbm.errors import MemoryPlanError, SettingsError, StoreError
from sbm.jobs.machine.kernels import kernels_of, prepare
from sbm.jobs.machine.memory import INTERPRETER, MemoryPlan, Shape
from sbm.jobs.machine.process import peak_bytes, resident_bytes, return_freed_memory
from sbm.jobs.progress import Progress
from sbm.jobs.training.calibration import FOLDS, HELD_OUT_BYTES, Collector, held_out_problems
from sbm.jobs.training.engine import FULL_PASS, MOST_DRIFT, Engine, Group, Learner
from sbm.jobs.training.pace import choose_blocks, choose_rounds, passes_left
from sbm.jobs.training.problem import label_places, make_model, model_labels, odd_labels
from sbm.jobs.training.ranks import (
    Share,
    Status,
    any_of,
    common_name,
    common_record,
    deal_parts,
    finished_model,
    folder_of,
    forget_others,
    one_first,
    own_name,
    refuse_others,
    runs_of_others,
    share_cores,
)  # fmt: skip
from sbm.jobs.training.resume import (
    Ledger,
    bound_before,
    identity,
    is_of,
    refuse_unfinished,
    run_to_go_on_with,
)  # fmt: skip
from sbm.jobs.training.setup import (
    class_counts,
    find_store,
    open_run,
    place_of,
    plan_of,
    read_weights,
    run_folder,
    shape_of,
    smaller_plan,
    time_left,
)  # fmt: skip
from sbm.jobs.training.trial import Trial, refuse_without_room
from sbm.jobs.training.warmstart import Earlier, find_run, last_run, shape_record
from sbm.settings import Settings, format_size
from sbm.solver.gap import Certificate, GapWatch
from sbm.solver.problem import AnyProblem
from sbm.solver.step import Totals
from sbm.store.blocks import BlockStore, require_whole
from sbm.store.files import file_checksum
from sbm.store.model import Model
from sbm.store.run import Run

if TYPE_CHECKING:
    from sbm.jobs.training.weights import RowWeights

__all__ = ["train"]

# At the end of a pass a commit waits for this much time since the last one, and for this many times
# what that one took: short passes are not worth the waiting for the disk.
COMMIT_SECONDS = 1.0
COMMIT_SHARE = 20.0


@overload
def train(
    store: str | Path | None = None,
    model: str | Path | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    resume: bool | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
    read_rate: float | None = None,
    test: str | Path | None = None,
    test_every: int = 1,
    comm: None = None,
) -> tuple[Model, dict[str, Any]]: ...


@overload
def train(
    store: str | Path | None = None,
    model: str | Path | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    resume: bool | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
    read_rate: float | None = None,
    test: str | Path | None = None,
    test_every: int = 1,
    comm: Comm,
) -> tuple[Model | None, dict[str, Any]]: ...


def train(
    store: str | Path | None = None,
    model: str | Path | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    resume: bool | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
    read_rate: float | None = None,
    test: str | Path | None = None,
    test_every: int = 1,
    comm: Comm | None = None,
) -> tuple[Model | None, dict[str, Any]]:
    """Train a model on a store.

    What an earlier call with the same store and settings began is gone on with; where that one came
    to its end, its model and report are returned.

    Several processes train one model together if each of them calls this with the same arguments
    (`sbm.jobs.training.ranks`). Where one of them fails the others wait for it, until their
    deadline: end them all then (``comm.abort``).

    Parameters
    ----------
    store : str or Path, optional
        Default: the only ``*.sbm`` in the current folder. Of several processes ``{rank}`` in it is
        the number of each.
    model : str or Path, optional
        Where the model goes. Default: the store's name with ``.model``, in the current folder. The
        state of the training is kept beside it in ``MODEL.run/``.
    settings : sbm.Settings or dict, optional
        Loss, cost, memory and the rest; ``help(sbm.Settings)`` lists the names.
    resume : bool, optional
        True: there must be something to go on with. False: begin anew, whatever there is. Default:
        go on with a training of the same store and settings if there is one.
    is_stopped : callable
        Is asked after each block whether to commit and end.
    progress : Progress, optional
        Is told each block and each pass.
    read_rate : float, optional
        Read no more bytes a second than this, as from a slow disk; for benchmarks.
    test : str or Path, optional
        Text or store to predict after every `test_every`-th pass and after the last one; what comes
        of it is in the log and told to `progress`, as ``test`` of a pass. The model is the same,
        and no seconds count that this takes.
    test_every : int
        Passes.
    comm : Comm, optional
        Of several processes, as ``sbm.distributed.comm.world()`` returns it. Default: alone.

    Returns
    -------
    model : Model
        The certified one, as written; of several processes, in number 0 alone, None in the others.
    report : dict
        ``primal``, ``dual``, ``gap``, ``relative_gap``, ``drift``, ``converged``, ``passes``,
        ``rounds`` (of each pass),
        ``visits``, ``updates``, ``visits_cut_short`` (in the last pass), ``seconds`` (total, disk,
        load, wait, solve, certify, combine, write),
        ``bytes_read``, ``peak_rss_bytes``, ``n_support``, ``n_free``, ``model``; ``resumed``
        (whether it was gone on with) and ``was_finished``. Seconds and bytes are those of all the
        processes that took part, one after the other; of several at a time, those of this one.
        These also report ``processes`` and ``bytes_sent`` by this one.

    Raises
    ------
    StoreError
        No store, damaged, or in use; or there is an unfinished training of other data.
    DataError
        The labels do not fit the loss; or there is no test text, or it is none.
    SettingsError
        A setting that does not exist, is out of range, or means nothing for the loss; or there is
        an unfinished training with other settings.
    MemoryPlanError
        ``settings.mem`` is too small; says what would do.
    KeyboardInterrupt
        It was told to stop; all is kept.
    """
    begin = time.perf_counter()
    return_freed_memory()
    comm = comm or SerialComm()
    settings = share_cores(Settings.of(settings), comm)
    blocks = BlockStore(find_store(None if store is None else own_name(store, comm)))
    if comm.size == 1:
        require_whole(blocks)
    path = place_of(model or (common_name(store, ".model") if store else None), blocks)
    if progress is not None and (odd := odd_labels(settings, blocks)):
        progress.stage(odd)
    trial = None if test is None else Trial(test, test_every)
    if trial is not None:
        trial.refuse_in_many(settings, comm.size)
    if settings.class_blocks is not None:
        from sbm.jobs.classblocks.training import train_class_blocks  # a program of its own

        return train_class_blocks(
            blocks, path, settings, comm, resume=resume, is_stopped=is_stopped, progress=progress,
            begin=begin,
        )  # fmt: skip
    job = _Job(
        blocks, path, settings, resume, is_stopped, progress or Progress(), begin, read_rate, comm,
        trial,
    )  # fmt: skip
    while True:
        try:
            return job.run()
        except MemoryPlanError:
            raise
        except MemoryError:
            if not job.may_plan_with_less:
                raise
        job.plan_with_less()  # not above: what was raised keeps the arrays of all it went through


@dataclass
class _Job:
    """What a training is asked to do, and the bound it is planned for."""

    store: BlockStore
    path: Path
    settings: Settings
    resume: bool | None
    is_stopped: Callable[[], bool]
    progress: Progress
    begin: float
    read_rate: float | None
    comm: Comm
    trial: Trial | None = None
    plan: MemoryPlan | None = None
    bound: int | None = None  # where it is another one than --mem
    spare_memory: int = 0  # of what calls this, beside an interpreter

    def __post_init__(self) -> None:
        self.folder = folder_of(run_folder(self.path), self.comm)
        self.status = Status(run_folder(self.path), self.comm)
        self.may_plan_with_less = self.comm.size == 1  # else it is a process alone that ran out
        self.spare_memory = max(0, resident_bytes() - INTERPRETER)

    def run(self) -> tuple[Model | None, dict[str, Any]]:
        """Train as planned."""
        settings, blocks, path, progress = self.settings, self.store, self.path, self.progress
        comm = self.comm
        refuse_in_many(settings, comm)
        share = Share.of(comm, settings, blocks)
        spare = held_out_problems(settings, blocks)
        self.shape = self._shape(share, spare)
        plan_of(settings, blocks, self.shape)  # it is refused before anything is read
        if self.trial is not None:
            refuse_without_room(
                blocks, settings.mem_bytes,
                lambda mem: plan_of(settings, blocks, self.shape, mem).total,
            )  # fmt: skip
        weights = read_weights(settings, blocks, [*share.problems, *spare], path.parent)
        itself = identity(settings, blocks, weights)
        refuse_others(comm, blocks, itself)
        is_again = self.plan is not None
        if not is_again and self.resume is not False:
            self.bound = bound_before(self.folder, itself)
        self.plan = plan = self._agreed_plan(share.adding)
        parts = deal_parts(share.adding, blocks, plan)
        itself |= {"shape": shape_record(blocks, plan, share.problems), "bound": self.bound}
        itself |= {"own": parts[share.adding.rank]} if comm.size > 1 else {}
        itself |= {"classes": [comm.rank, comm.size]} if share.is_by_class else {}
        record = earlier = None
        others: list[Path] = []
        if is_again and is_of(self.folder, itself):
            earlier = Earlier([self.folder], blocks, settings, share.problems)
        else:
            record = run_to_go_on_with(self.folder, itself, settings, self.resume)
            record = common_record(share.adding, self.folder, record)
            if any_of(comm, record is None)[0]:
                record = None
            others = [] if record is not None else self._runs_of_others(itself)
        done = record or (Run.read(others[0]) if others else None)
        if (finished := finished_model(comm, path, done)) is not None:
            return finished
        progress.note(
            f"{len(plan.parts)} blocks, cache {plan.cache_rows} rows; memory: {plan.describe()}"
        )
        kernels = kernels_of(settings, share.problems)
        one_first(comm, lambda: prepare(kernels, blocks.value_type, progress))
        if self.trial is not None:
            prepare("predict", "float64", progress)
        if any_of(comm, self.is_stopped())[0]:
            raise KeyboardInterrupt
        # All that can be refused comes before the run of an earlier training is replaced.
        if record is None and earlier is None:
            earlier = self._find_earlier(share, others)
        counts = class_counts(settings, blocks, weights)
        if counts is not None:
            share = Share.of(comm, settings, blocks, counts)
            spare = held_out_problems(settings, blocks, counts)
        problems = [*share.problems, *spare]
        with (
            blocks.in_use(),
            open_run(self.folder, problems, plan, record, comm.size > 1) as run,
        ):
            self.status.say("running")
            training = _Training(
                self, share, spare, plan, parts[share.adding.rank], run, weights, itself
            )
            calibration = training.run(earlier, record)
            report, made = share.total(training.report()), time.perf_counter()
            W = [solver.W for solver in training.solvers]
            del training  # its memory goes to the writing of the model
            result = crc32 = None
            W = share.collect(W)
            if comm.rank == 0:
                result = make_model(blocks, settings, share.every, W, report)
                result.info["calibration"] = calibration
                result.save(path)
                crc32 = file_checksum(path)
            report |= {"model": str(path), "resumed": record is not None, "was_finished": False}
            report["seconds"]["total"] += time.perf_counter() - made
            report["peak_rss_bytes"] = peak_bytes()
            run.log({"event": "end", **report})
            run.note(report=report, model_crc32=comm.share(crc32)[0])
            forget_others(run_folder(path), comm.size)
            self.status.say("finished", report=report)
        return result, report

    def _runs_of_others(self, itself: Mapping[str, Any]) -> list[Path]:
        """Return the run of this training by another number of processes, if that is there.

        Raises
        ------
        StoreError
            There is another training, which would be lost; or not all processes see the run.
        """
        if self.resume is False or self.settings.warm_start is not None:
            return []
        folders = runs_of_others(run_folder(self.path), self.comm)
        seen = [bool(folders) for folders in self.comm.share(list(map(str, folders)))]
        if any(seen) and not all(seen):
            raise StoreError(
                f"process {seen.index(False)} cannot see the run beside {self.path}, which was of "
                "another number of processes; start as many as before, or start over with --fresh"
            )
        if folders and not is_of(folders[0], itself):
            refuse_unfinished(folders[0])
            return []
        return folders

    def _find_earlier(self, share: Share, others: list[Path]) -> Earlier | None:
        """Return what to start from: the run that is named, or that of other processes."""
        settings, folders = self.settings, others
        if settings.warm_start is True:
            folders = last_run(self.path)
            if not folders:
                self.progress.stage(f"{self.path} was not trained yet: starting from nothing")
        elif settings.warm_start is not None:
            folders = find_run(str(settings.warm_start))
        elif folders:
            self.progress.stage(
                f"going on from the alphas of another number of processes, in {folders[0].parent}"
            )
        return Earlier(folders, self.store, settings, share.problems) if folders else None

    def _shape(self, share: Share, spare: Sequence[AnyProblem]) -> Shape:
        """Return what decides the memory; what the weights of all classes take comes on top."""
        problems = [*share.problems, *spare]
        shape = shape_of(
            self.settings, self.store, problems, 2 if spare else 1, share.adding.size
        )  # fmt: skip
        if share.is_by_class and self.comm.rank == 0:
            others = sum(problem.n_outputs for problem in share.every)
            shape = replace(shape, more_bytes=shape.more_bytes + 8 * shape.n_weights * others)
        return replace(shape, advice="no --calibrate") if spare else shape

    def _agreed_plan(self, adding: Comm) -> MemoryPlan:
        """Plan for what there is in all processes that add up, so that blocks are cut alike."""
        plan = plan_of(self.settings, self.store, self.shape, self.bound, self.progress)
        least = int(adding.gather([plan.total]).min())
        if least < plan.total:
            self.bound = least
            plan = plan_of(self.settings, self.store, self.shape, least)
        return plan

    def is_too_large(self) -> bool:
        """Whether more memory is in use than there may be, and a smaller plan would do."""
        assert self.plan is not None
        most = (self.bound or self.settings.mem_bytes) + self.spare_memory
        if resident_bytes() <= most:
            return False
        try:
            smaller_plan(self.settings, self.store, self.plan, self.shape)
        except MemoryPlanError:
            self.spare_memory = 1 << 62  # it is the least there is: going on as it is
            return False
        return True

    def plan_with_less(self) -> None:
        """Take a smaller bound, after memory ran out.

        Raises
        ------
        MemoryPlanError
            There is no smaller plan.
        """
        if self.plan is None:  # there was not even a plan yet
            raise MemoryPlanError(
                "memory ran out before anything was planned; end other programs, or raise the "
                "limit on this one",
                INTERPRETER,
            )
        gc.collect()
        before = self.plan.total
        self.bound = smaller_plan(self.settings, self.store, self.plan, self.shape).total
        self.progress.stage(
            f"a plan for {format_size(before)} was not enough; going on with smaller blocks, "
            f"planned for {format_size(self.bound)}"
        )


def refuse_in_many(settings: Settings, comm: Comm) -> None:
    """Notice what takes a single process.

    Raises
    ------
    SettingsError
        It was asked for, and there are several.
    """
    if comm.size > 1 and settings.calibrate:
        raise SettingsError(
            f"calibrate is for one process, and there are {comm.size}; train without it, then "
            "again with --warm-start --calibrate alone"
        )
    if comm.size > 1 and settings.weights == "-":
        raise SettingsError(
            f"weights come from standard input, which only one of {comm.size} processes can read; "
            "put them in a file"
        )


@dataclass
class _Training:
    """The loop of one training and its bookkeeping.

    There is one learner, but for one-vs-rest in groups of classes, or with one variable a row:
    there every group or class has its own weights, cache and variables, and all of them work on the
    block that is loaded. To calibrate there is a second set, which never learns from some rows; it
    is no part of the model.
    """

    job: _Job
    share: Share
    spare: Sequence[AnyProblem]
    plan: MemoryPlan
    own: Sequence[int]
    run_files: Run
    weights: RowWeights | None
    itself: dict[str, Any]
    ledger: Ledger = field(default_factory=Ledger)

    def __post_init__(self) -> None:
        job, self.problems = self.job, self.share.problems
        n = len(self.problems)
        self.store, self.settings, self.progress = job.store, job.settings, job.progress
        self.begin, self.is_stopped = job.begin, job.is_stopped
        self.engine = Engine(
            self.store, self.settings, [*self.problems, *self.spare], self.plan, self.run_files,
            self.progress, folds=FOLDS if self.spare else None,
            held_out=[None] * n + [0] * len(self.spare), weights=self.weights,
            read_rate=job.read_rate, comm=self.share.adding, own=self.own, is_late=self._is_late,
            after_stretch=self._after_stretch, after_look=self._stop_if_asked,
        )  # fmt: skip
        self.learners, self.spare_learners = self.engine.learners[:n], self.engine.learners[n:]
        self.solvers = [learner.solver for learner in self.learners]
        self.seconds = self.engine.seconds
        self._pass_bytes = sum(c.size for part in self.plan.parts for c in part.chunks)
        self._committed, self._commit_after = time.monotonic(), COMMIT_SECONDS
        self._n_commits = 0
        self.ledger.watch.tol = self.settings.tol
        self.ledger.mark = asdict(self.seconds)

    @property
    def dual(self) -> float:
        """F(α) at this moment, up to the drift of W."""
        return math.fsum(solver.dual for solver in self.solvers)

    def run(
        self, earlier: Earlier | None, record: Mapping[str, Any] | None
    ) -> dict[str, Any] | None:
        """Train, from nothing, from an earlier run's alphas or from a commit; then calibrate."""
        with self.engine.at_work():
            if record is not None:
                self._go_on(record)
            elif earlier is not None:
                self._start_from(earlier)
            self._run_passes()
            self._wait_for_all()
            return self._calibrate() if self.spare else None

    def _go_on(self, record: Mapping[str, Any]) -> None:
        """Take over what the last commit of this run says."""
        try:
            self.ledger = ledger = Ledger.of(record)
            for name, value in ledger.seconds.items():
                setattr(self.seconds, name, value)
            self.engine.disk_before = self.seconds.disk
            self.engine.reader.bytes_read = ledger.bytes_read
            needs_rows = not ledger.is_done or bool(self.spare)
            self.engine.restore(record["engine"], self.run_files, needs_rows)
            if self.engine.now is not None:
                self._set_pace()
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise StoreError(
                f"{self.run_files.folder} cannot be gone on with ({error}); start over with --fresh"
            ) from error
        self.progress.stage(
            f"going on with {self.run_files.folder}, after {ledger.passes} passes; --fresh starts "
            "over"
        )

    def _start_from(self, earlier: Earlier) -> None:
        """Take over W and alphas; all of it is looked at once, so it has a certificate."""
        ledger = self.ledger
        ledger.is_warm = not earlier.is_rescaled
        self._set_active(self.spare_learners, False)
        earlier.hand_over(self.run_files, self.plan, self.own)
        ledger.certificate = certificate = earlier.start(self.engine)
        self._set_active(self.spare_learners, True)
        self.progress.note(f"warm start: certified relative gap {certificate.relative_gap:.2e}")
        ledger.is_done = certificate.relative_gap <= self.settings.tol
        ledger.only = self._new_blocks(earlier)
        self._commit()

    def _run_passes(self) -> None:
        """Pass after pass until the certified gap is small enough or a budget is used up."""
        ledger = self.ledger
        if ledger.is_done:
            return
        self.engine.agree_on_unit()
        while not ledger.is_done:
            if ledger.ended is None:
                ledger.ended = self._pass()
                self._commit_if_due(self._commit_after)
            in_time = not self._is_late()
            done, is_whole = ledger.ended, ledger.only is None
            last = not in_time or ledger.passes >= self.settings.max_passes
            certificate = None
            if self._is_certificate_due(done) or last:
                certificate = ledger.certificate = self._certify(last)
                if is_whole:
                    ledger.watch.learn(certificate.relative_gap)
                last = last or certificate.relative_gap <= self.settings.tol
            test = self._test() if last or self._is_test_due() else None
            self._report_pass(done, certificate, in_time and is_whole, test)
            ledger.only = None if last else self._part_of_pass(certificate)
            ledger.ended, ledger.is_done = None, last
        self._commit()

    def _is_certificate_due(self, done: Totals) -> bool:
        """Whether the pass that ended has perhaps reached the tolerance."""
        ledger = self.ledger
        if ledger.only is not None:  # of part of a pass there is no estimate
            return ledger.passes > 1  # the first one was over new blocks
        ledger.gaps.append(done.gap)
        return ledger.watch.is_due(done.gap, max(abs(self.dual), self.problems[0].unit))

    def _new_blocks(self, earlier: Earlier) -> list[int] | None:
        """Return the blocks with rows that the earlier training had not, where others had them.

        They come first: before they have moved W there is nothing to do for the others.
        """
        new = earlier.new_parts(self.plan)
        some = 0 < len(new) < len(self.plan.parts) and self.settings.max_passes > 1
        some = some and self.share.adding.size == 1
        return self.engine.shuffled(1, new) if some else None

    def _part_of_pass(self, certificate: Certificate | None) -> list[int] | None:
        """Return the blocks of the next pass, where a certificate says that some will do."""
        ledger, blocks = self.ledger, range(len(self.plan.parts))
        number = ledger.passes + 1
        if certificate is None or not ledger.is_warm or number % FULL_PASS == 0:
            return None
        if self.share.adding.size > 1:  # what is left to do is not the same everywhere
            return None
        if len(ledger.gaps) < 2 or ledger.gaps[-2] == 0:
            return None
        shrink = ledger.gaps[-1] / ledger.gaps[-2]
        n = choose_blocks(len(blocks), certificate.relative_gap, self.settings.tol, shrink)
        return self.engine.shuffled(number, blocks)[:n] if n < len(blocks) else None

    def _pass(self) -> Totals:
        """One pass, over some blocks or all, or the rest of one."""
        ledger = self.ledger
        if self.engine.now is None:
            ledger.rounds.append(self._rounds())
            self._set_pace()
            ledger.passes += 1
            ledger.mark = asdict(self.seconds)
        totals, free = self.engine.run_pass(ledger.passes, only=ledger.only)
        if ledger.only is None:  # of the other blocks it is not known
            ledger.free_rows = sum(free[learner.number] for learner in self.learners)
        done = Totals()
        for learner in self.learners:
            done.add(totals[learner.number])
        ledger.totals.add(done)
        ledger.cut_short = done.starved
        return done

    def _calibrate(self) -> dict[str, Any]:
        """Fit probabilities to decision values of rows that the second set never saw."""
        ledger = self.ledger
        self._set_active(self.learners, False)
        for learner in self.spare_learners:  # after a warm start there may have been no pass yet
            learner.solver.rounds = ledger.rounds[-1] if ledger.rounds else self._rounds()
        if not ledger.calibrating:
            ledger.watch = GapWatch(self.settings.tol)
        self.engine.last_pass = ledger.passes + self.settings.max_passes
        while not ledger.is_calibrated:
            if self.engine.now is None:
                ledger.calibrating += 1
            totals, _ = self.engine.run_pass(ledger.passes + ledger.calibrating)
            gap = sum(one.gap for one in totals.values())
            dual = math.fsum(learner.solver.dual for learner in self.spare_learners)
            late = self._is_late() or ledger.calibrating == self.settings.max_passes
            ledger.is_calibrated = ledger.watch.is_due(gap, dual) or late
            self._commit_if_due(0.0 if ledger.is_calibrated else self._commit_after)
        labels = model_labels(self.problems[0], self.store)
        places = label_places(self.problems[0], self.store)
        collector = Collector(labels, places, HELD_OUT_BYTES // 24)  # a copy is made of them
        group = Group(self.spare_learners, collector)
        for visit in self.engine.visit_all("calibrate"):
            group.be_judged(visit.rows, visit.folds)
        return collector.calibrate(self.problems[0].loss.joint)

    @staticmethod
    def _set_active(learners: Sequence[Learner], active: bool) -> None:
        for learner in learners:
            learner.is_active = active

    def _count_free(self) -> int:
        return sum(solver.count_free() for solver in self.solvers)

    def _count_ages(self) -> list[int]:
        """Return how many cached rows came in the last pass, the one before it, and so on."""
        counts = [solver.working.count_ages() for solver in self.solvers]
        return [sum(some) for some in itertools.zip_longest(*counts, fillvalue=0)]

    def _set_pace(self) -> None:
        """Set rounds and cache size of the pass at work."""
        free = self.ledger.free_rows
        self.engine.set_pace(
            self.ledger.rounds[-1], None if free is None else free // len(self.learners)
        )

    def _rounds(self) -> int:
        spent, ledger = self._spent(), self.ledger
        return choose_rounds(
            self.settings.rounds, len(self.plan.parts), ledger.rounds, self._pass_bytes,
            spent["disk"], spent["load"], spent["solve"], self.problems[0].listed, ledger.is_warm,
            self.share.adding.size,
        )  # fmt: skip

    def _spent(self) -> dict[str, float]:
        """Seconds since the last pass began, by purpose."""
        return {k: v - self.ledger.mark[k] for k, v in asdict(self.seconds).items()}

    def _is_late(self) -> bool:
        late = time_left(self.settings, self.begin) < 0
        return late if self.share.is_by_class else self._any(late)[0]

    def _certify(self, last: bool) -> Certificate:
        """Evaluate primal and dual at fixed W and alphas.

        Where there is still something to do, it goes on with weights rebuilt from the alphas; also
        where numbers are so extreme that the running ones have drifted away. After the last pass
        weights stay what was certified: the model is these.
        """
        self._set_active(self.spare_learners, False)
        found = self.engine.certify()
        certificate = Certificate.total([one for one, _ in found.values()])
        if certificate.drift > MOST_DRIFT:
            self.engine.replace_weights(found)
            found = self.engine.certify()
            certificate = Certificate.total([one for one, _ in found.values()])
        self._set_active(self.spare_learners, True)
        if certificate.drift > MOST_DRIFT:
            raise StoreError(
                f"the weights do not belong to their alphas (drift {certificate.drift:.1e}); "
                "this is a bug in sbm, please report it"
            )
        if certificate.relative_gap > self.settings.tol and not last:
            self.engine.replace_weights(found)
        return certificate

    def _is_test_due(self) -> bool:
        return self.job.trial is not None and self.job.trial.is_due(self.ledger.passes)

    def _test(self) -> dict[str, Any] | None:
        """Predict the test text, if there is one; the clock of the training stands still."""
        if self.job.trial is None:
            return None
        begin = time.perf_counter()
        weights = [solver.W for solver in self.solvers]
        found = self.job.trial.judge(
            self.store, self.problems, weights, self.progress, self._stop_if_asked
        )
        took = time.perf_counter() - begin
        self.begin += took
        return {**found, "seconds": took}

    def _report_pass(
        self,
        done: Totals,
        certificate: Certificate | None,
        complete: bool,
        test: dict[str, Any] | None,
    ) -> None:
        seconds = self._spent()
        busy = max(seconds["solve"], 1e-9)
        dual = self.dual
        record = {
            "pass": self.ledger.passes,
            "rounds": self.ledger.rounds[-1],
            "elapsed": self._elapsed(),
            "seconds": seconds,
            "rows_per_second": done.visits / busy,
            "nnz_per_second": done.visits / busy * self.store.nnz / self.store.n_rows,
            "dual": dual,
            # A pass that was cut short has not seen every row.
            "estimated_gap": done.gap if complete else None,
            "estimated_relative_gap": (
                min(done.gap / max(abs(dual), 1e-300), 1e300) if complete else None
            ),
            "passes_left": passes_left(
                [gap / max(abs(dual), 1e-300) for gap in self.ledger.gaps], self.settings.tol
            ),
            "visits": done.visits,
            "updates": done.updates,
            "free_rows": self.ledger.free_rows,
            "cache_rows": sum(s.working.cache_rows for s in self.solvers),
            "cached_rows": sum(s.working.n_cached for s in self.solvers),
            "cached_free": self._count_free(),
            "cached_zero": sum(s.working.count_zero() for s in self.solvers),
            "cached_ages": self._count_ages(),
            "cache_hits": done.cached,
            "rows_at_rest": done.rest,
            "visits_cut_short": done.starved,
            "bytes_read": self.engine.reader.bytes_read,
            "resident_bytes": resident_bytes(),
            "certificate": certificate.to_dict() if certificate else None,
            "test": test,
        }
        self.run_files.log({"event": "pass", **record})
        self.progress.row(record)

    def _after_stretch(self) -> None:
        """Commit inside a pass, where it is time or the end."""
        self._commit_if_due(float(self.settings.checkpoint_every) or math.inf)

    def _commit_if_due(self, after: float) -> None:
        """Commit if the last one is so many seconds old; also if told to stop, and end here."""
        every = float(self.settings.checkpoint_every) or math.inf
        is_due = time.monotonic() - self._committed >= min(after, every)
        asked, is_due, is_too_large = self._any(self.is_stopped(), is_due, self.job.is_too_large())
        if asked or is_due or is_too_large:
            self._commit()
        if asked:
            self.share.comm.barrier()  # nobody ends while another one commits
            raise KeyboardInterrupt
        if is_too_large:
            self.job.may_plan_with_less = True  # all processes come here
            raise MemoryError

    def _stop_if_asked(self) -> None:
        """End here if told so, where nothing has changed since the last commit.

        Of processes that add up each has looked at another number of blocks: they end later.
        """
        if self.share.adding.size == 1 and self._any(self.is_stopped())[0]:
            raise KeyboardInterrupt

    def _any(self, asked: bool, *flags: bool) -> list[bool]:
        """Return what is set in any of the processes that do the same; the first flag, in any.

        With classes of its own a process also hears here, again and again, that the others live.
        """
        if not self.share.is_by_class:
            return any_of(self.share.comm, asked, *flags)
        return [any_of(self.share.comm, asked, True)[0], *flags]

    def _wait_for_all(self) -> None:
        """With classes of its own a process may be the first; wait until all are ready."""
        is_one_at_work = self.share.is_by_class
        while is_one_at_work:
            asked, is_one_at_work = any_of(self.share.comm, self.is_stopped(), False)
            if asked:
                raise KeyboardInterrupt

    def _commit(self) -> None:
        """Make this moment, between two steps, the state to come back to."""
        begin = time.monotonic()
        with self.seconds.measure("write"):
            place, ledger = self.engine.place(), self.ledger
            ledger.seconds = asdict(self.seconds)
            ledger.bytes_read = self.engine.reader.bytes_read
            now = replace(ledger, elapsed=self._elapsed())
            self.run_files.commit(
                {**self.itself, **now.record(), "engine": place}, self.engine.state()
            )
            if self._n_commits > 0:  # before one commits again all have
                forget_others(run_folder(self.job.path), self.share.comm.size)
            self._n_commits += 1
        took = time.monotonic() - begin
        self._committed, self._commit_after = begin + took, max(COMMIT_SECONDS, COMMIT_SHARE * took)

    def _elapsed(self) -> float:
        """Seconds of all processes that took part."""
        return self.ledger.elapsed + time.perf_counter() - self.begin

    def report(self) -> dict[str, Any]:
        """The figures of the training."""
        ledger, certificate = self.ledger, self.ledger.certificate
        assert certificate is not None
        return {
            "primal": certificate.primal,
            "dual": certificate.dual,
            "gap": certificate.gap,
            "relative_gap": certificate.relative_gap,
            "converged": certificate.relative_gap <= self.settings.tol,
            "passes": ledger.passes,
            "rounds": ledger.rounds,
            "updates": ledger.totals.updates,
            "visits": ledger.totals.visits,
            "visits_cut_short": ledger.cut_short,
            "seconds": {"total": self._elapsed(), **asdict(self.seconds)},
            "bytes_read": self.engine.reader.bytes_read,
            "peak_rss_bytes": peak_bytes(),
            "n_support": certificate.n_support,
            "n_free": certificate.n_free,
            "drift": certificate.drift,
        }
