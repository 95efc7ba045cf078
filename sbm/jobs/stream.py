"""Stream: a model of text that is read once, as it comes (SBM 2011, section 4).

Text is parsed and rows gather in a block while the block before it is at work: it is predicted,
which is the progressive validation, and then learned. No store is made. What there is to go on from
(W, cache, alphas, what was read and not learned) is committed now and then, and at the end.

Rows, features and classes are not known ahead, so the memory plan is made for more than was seen.
Where the next row does not fit it, the stream is committed, another plan is made and the stream
goes on from the commit, as it does in another process.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError, MemoryPlanError, SettingsError, StoreError
from sbm.jobs.dealing.deal import Labels
from sbm.jobs.machine.kernels import prepare
from sbm.jobs.machine.limits import less, system_limit
from sbm.jobs.machine.memory import INTERPRETER
from sbm.jobs.machine.prefetch import loading_thread, prefetched
from sbm.jobs.machine.process import (
    peak_bytes,
    resident_bytes,
    return_freed_memory,
    usable_threads,
)  # fmt: skip
from sbm.jobs.progress import Progress
from sbm.jobs.streaming.arrivals import (
    Arrivals,
    Block,
    Limits,
    Needs,
    TextOptions,
    arrays_of,
    sources_of,
)
from sbm.jobs.streaming.options import FREE, KEPT, StreamOptions, check_settings, merge
from sbm.jobs.streaming.plan import (
    FIRST_BLOCK,
    StreamPlan,
    least_for_stream,
    parsers_of,
    plan_stream,
)  # fmt: skip
from sbm.jobs.streaming.progressive import Progressive, row_losses
from sbm.jobs.streaming.students import (
    Seen,
    Student,
    make_student,
    problems_of,
    shape_of_student,
    student_kernels,
)  # fmt: skip
from sbm.jobs.training.engine import JUDGED, Seconds
from sbm.jobs.training.problem import assemble_model, choose_task, model_labels
from sbm.jobs.training.resume import is_finished
from sbm.jobs.training.setup import as_path, run_folder
from sbm.rows import Rows
from sbm.settings import Settings, format_number, format_size
from sbm.solver.losses import find_loss
from sbm.solver.onepass import caches_nnz
from sbm.solver.problem import AnyProblem, decide
from sbm.solver.step import Totals
from sbm.store.formats import FORMATS, LIBSVM, format_of
from sbm.store.idtable import IdTable
from sbm.store.live import Patience
from sbm.store.model import Model, check_output
from sbm.store.run import RECORD, Run
from sbm.store.text import PIECE, Source, expand_inputs, is_packed

__all__ = ["stream"]

POLISH_ROUNDS = 10  # over the cache alone, at the end: there is no text to keep up with


def stream(
    inputs: str | Path | Sequence[str | Path] | None = None,
    model: str | Path | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    options: StreamOptions | Mapping[str, Any] | None = None,
    resume: bool = False,
    is_stopped: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
) -> tuple[Model, dict[str, Any]]:
    """Learn a model from text that is read once.

    Parameters
    ----------
    inputs : str, Path or sequence of these, optional
        Files or globs, plain or .gz, .bz2, .xz, .zst; ``-`` is standard input. To resume, the
        default is those of before.
    model : str or Path
        Where the model goes; what there is to go on from is kept beside it in ``MODEL.run/``.
    settings : sbm.Settings or dict, optional
        Loss, cost, memory, rounds, cache. To resume, the default is those of before; a dict gives
        some of them again, of which only ``mem`` and ``threads`` may be others.
    options : StreamOptions or dict, optional
        ``learner``, ``decay`` (λ of pegasos), ``classes``, ``dtype``, ``on_error``,
        ``checkpoint_every``, ``follow``, ``idle_timeout``, as the options of `sbm stream`. To
        resume, all but the last two are those of before.
    resume : bool
        Go on with the stream that made this model.
    is_stopped : callable
        Is asked now and then whether to finish the block, commit and end.
    progress : Progress, optional
        Is told the bytes read, and the progressive loss whenever the rows have doubled.

    Returns
    -------
    model : Model
        As written; without a certificate, as a stream is seen once.
    report : dict
        ``rows``, ``blocks``, ``features``, ``labels``, ``learner``, ``loss`` and ``accuracy``
        (progressive), ``dual`` (a lower bound of the optimum of all rows, or None), ``visits``,
        ``updates``, ``visits_cut_short`` (as in training), ``seconds``, ``text_bytes``,
        ``skipped``, ``problems``, ``open`` (inputs whose last line had no line end), ``stopped``,
        ``pending`` (rows read and not learned), ``peak_rss_bytes``, ``model``.

    Raises
    ------
    DataError
        The input holds no rows, or something that is not LIBSVM text; all rows in front of it are
        learned and kept.
    SettingsError
        A setting that does not exist, is out of range, or means nothing for a stream.
    MemoryPlanError
        ``settings.mem`` is too small; all rows so far are kept.
    StoreError
        There is nothing to go on from, or something cannot be written.
    KeyboardInterrupt
        It was told to stop before there was any row.
    """
    begin = time.perf_counter()
    return_freed_memory()
    progress = progress or Progress()
    names = [inputs] if isinstance(inputs, str | Path) else inputs
    if names is None and not resume:
        raise SettingsError("no input; give LIBSVM text files, globs, or - for a pipe")
    if model is None:
        raise SettingsError("name the model with -o")
    path = as_path(model)
    check_output(path)
    sources = None if names is None else expand_inputs(names)
    _refuse_other_formats(sources or [])
    with _opened(path, settings, options, resume) as opened:
        if sources is None:
            sources = expand_inputs(opened.record["inputs"])
        _refuse_packed(sources, opened.options)
        try:
            one = _Stream(path, opened, sources, progress, is_stopped, begin)
        except (KeyError, TypeError) as error:
            if not opened.record:
                raise
            raise StoreError(
                f"{run_folder(path)} cannot be gone on with ({error}); begin anew without --resume"
            ) from error
        try:
            one.run()
            return one.finish()
        except MemoryError as error:
            if isinstance(error, MemoryPlanError):
                raise
            raise one.out_of_memory() from error
        finally:
            one.close()


def _refuse_other_formats(sources: Sequence[Source]) -> None:
    """Notice files that are no LIBSVM text, which alone can be gone on with in its middle."""
    for source in sources:
        if (found := format_of(source.name)) is not FORMATS[LIBSVM]:
            raise SettingsError(
                f"{source.name} is {found.name} by its name, and sbm stream reads LIBSVM text; "
                "make a store of it with sbm split, and train on that"
            )


def _refuse_packed(sources: Sequence[Source], options: StreamOptions) -> None:
    """Notice a file that cannot be followed."""
    if options.follow and sources and is_packed(sources[-1].name):
        raise SettingsError(
            f"{sources[-1].name} is compressed, and such a file cannot be followed; leave out "
            "--follow, or decompress it on its way (zcat, zstdcat) and give - for the pipe"
        )


def _refuse_training(folder: Path) -> None:
    """Notice a training that has not come to its end, where the run of a stream would be."""
    if not (folder / RECORD).is_file():
        return
    with contextlib.suppress(StoreError):  # what cannot be read cannot be gone on with either
        record = Run.read(folder)
        if record.get("kind", "stream") == "stream" or is_finished(record):
            return
        raise SettingsError(
            f"{folder} holds an unfinished training, which would be lost; give the model another "
            "name with -o, or remove that folder"
        )


@dataclass
class _Opened:
    """The run of a stream, and what is known at its start."""

    run: Run
    settings: Settings
    options: StreamOptions
    record: dict[str, Any] = field(default_factory=dict)
    state: dict[str, npt.NDArray[Any]] = field(default_factory=dict)


@contextmanager
def _opened(
    path: Path,
    settings: Settings | Mapping[str, Any] | None,
    options: StreamOptions | Mapping[str, Any] | None,
    resume: bool,
) -> Iterator[_Opened]:
    """Open the run of a stream, anew or where it ended."""
    folder = run_folder(path)
    if not resume:
        chosen = StreamOptions.of(options)
        checked = check_settings(Settings.of(settings), chosen)
        _refuse_training(folder)
        with Run.create(folder, []) as run:
            yield _Opened(run, checked, chosen)
        return
    if not (folder / "run.json").is_file():
        raise StoreError(
            f"{path} is no stream to go on with (there is no {folder / 'run.json'}); name the "
            "model of one, or begin without --resume"
        )
    record = Run.read(folder)
    if record.get("kind") != "stream":
        raise StoreError(
            f"{folder} is of sbm train, not of a stream; sbm train --warm-start goes on with it"
        )
    given = dict(options) if isinstance(options, Mapping) else asdict(options) if options else {}
    if given.get("classes") is not None:
        given["classes"] = [float(label) for label in given["classes"]]
    chosen = StreamOptions.of(merge(record["options"], given, KEPT))
    values = settings.to_dict() if isinstance(settings, Settings) else dict(settings or {})
    kept = [name for name in record["settings"] if name not in FREE]
    asked = check_settings(Settings.from_dict({**record["settings"], **values}), chosen).to_dict()
    checked = Settings.from_dict(merge(record["settings"], asked, kept))
    with Run.take_up(folder, []) as (run, record):
        yield _Opened(run, checked, chosen, record, run.read_state())


# Rows that are planned for, the problems of their classes, and the plan.
_Planned: TypeAlias = tuple[Needs, list[AnyProblem], StreamPlan]


class _Stream:
    """The loop of a stream and its bookkeeping."""

    def __init__(
        self,
        path: Path,
        opened: _Opened,
        sources: list[Source],
        progress: Progress,
        is_stopped: Callable[[], bool],
        begin: float,
    ) -> None:
        self.path, self.progress, self.begin = path, progress, begin
        self._run, self.settings, self.options = opened.run, opened.settings, opened.options
        self.is_stopped = is_stopped
        record = opened.record
        self.seconds = Seconds()
        self._predict_seconds = 0.0
        self._bound = self._mem = self._usable_memory()
        # Of what calls this, beside an interpreter.
        self._spare_memory = max(0, resident_bytes() - INTERPRETER)
        self._is_least = False
        self.totals = Totals(**record.get("totals", {}))
        self.n_blocks = int(record.get("blocks", 0))
        self._inputs = [source.path for source in sources]
        self._progressive = Progressive(self._tell, record.get("progressive"))
        threads = usable_threads(self.settings.threads)
        self._threads = threads
        self._team = ThreadPoolExecutor(threads, "sbm-solve")
        self._loader = loading_thread(threads)
        self._arrivals = self._make_arrivals(opened, sources)
        self._student: Student | None = None
        self._slots: list[Rows] = []
        self._stopped = False
        self._needs, self._seen = Needs(), self._arrivals.needs
        self._position: list[dict[str, Any]] = record.get("sources", [])
        self._pending: list[dict[str, npt.NDArray[Any]]] = list(self._pending_of(opened))
        self._committed, self._commit_rows = time.monotonic(), self._arrivals.needs.rows
        total = sum(source.size for source in sources)
        progress.start("stream", total if all(s.size for s in sources) else None)
        prepare("split", self.options.dtype, progress)
        if self._seen.rows:
            planned = self._plan_for(Needs(**record["needs"]))
            if self._seen.features > planned[2].size.features:  # it goes on with less memory
                planned = self._plan_for(self._seen)
            self._make_student(planned, opened.state, record["student"])
        opened.state = {}  # where nothing was learned yet, the first plan is made anew

    def close(self) -> None:
        """End the threads, also one that waits for text that may never come."""
        self._arrivals.patience.gave_up = True
        if isinstance(self._loader, ThreadPoolExecutor):
            self._loader.shutdown()
        self._arrivals.close()
        self._team.shutdown()

    def _make_arrivals(self, opened: _Opened, sources: list[Source]) -> Arrivals:
        record, state, options = opened.record, opened.state, self.options
        mem = self._mem
        task = self._task = choose_task(self.settings, find_loss(self.settings.loss))
        known: Sequence[float] = options.classes or (record["labels"] if record else ())
        labels = Labels(list(known), [0] * len(known)) if task == "classification" else None
        text = TextOptions(
            options.dtype, options.on_error == "skip", parsers_of(mem, max(1, self._threads - 1)),
            max(PIECE, (mem - INTERPRETER) // 12),
        )  # fmt: skip
        idle = options.idle_timeout
        patience = Patience(options.follow, None if idle is None else float(idle), self.is_stopped)
        return Arrivals(
            sources, IdTable(state.get("ids")), labels, text, patience,
            fixed=options.classes is not None, unlabelled=task == "none",
            position=record.get("sources", ()), pending=self._pending_of(opened),
            needs=Needs(**record["seen"]) if record else None,
        )  # fmt: skip

    @staticmethod
    def _pending_of(opened: _Opened) -> list[dict[str, npt.NDArray[Any]]]:
        n = opened.record.get("pending", 0)
        return [_named(opened.state, f"pending-{k}-") for k in range(n)]

    # ----------------------------------------------------------------------------- the loop

    def run(self) -> None:
        """Learn until there are no more rows."""
        needs = self._arrivals.peek(FIRST_BLOCK, lambda: self._is_due(0))
        if self._student is None:
            if needs is None and self.is_stopped():
                raise KeyboardInterrupt  # there is nothing to keep
            if needs is None:
                raise self._arrivals.error or DataError(
                    "the input holds no rows; nothing was learned and no model written"
                )
            self._make_student(self._plan_for(needs))
        while not self._learn_blocks():
            self._go_on_larger()

    def _learn_blocks(self) -> bool:
        """Learn the blocks that fit the plan; return whether these were all."""
        blocks = prefetched(itertools.repeat(None), self._limits, self._gather, self._loader)
        for loaded in blocks:
            self.seconds.wait += loaded.wait_seconds
            self.seconds.load += loaded.load_seconds
            block = loaded.result
            if block.is_cut:
                self._stopped = True
                self._keep_unlearned(block.rows)
                return True
            # Where it has no rows there may be the begin of a line behind those before it.
            self._seen, self._position, self._pending = block.needs, block.position, block.pending
            if len(block.rows):
                self._learn(block)
            if block.is_last:
                return not self._arrivals.is_outgrown
            if self._is_above_bound():
                self._use_less()
                # What is being gathered is the last block.
                self._arrivals.is_outgrown = not self._is_least
            if self._is_due(block.needs.rows):
                self._save()
        return True

    def _keep_unlearned(self, *rows: Rows) -> None:
        """Note the rows that were read and are not learned: these, and those behind them."""
        self._position, remaining = self._arrivals.remaining()
        self._pending = [*(arrays_of(some) for some in rows if len(some)), *remaining]

    def _limits(self, item: None, slot: int) -> Limits:
        """Decide how large the next block may be."""
        size, rows = self._plan.size, self._arrivals.needs.rows
        most = min(size.block_rows, max(FIRST_BLOCK, rows))
        _, every = self.options.checkpoints
        if every:
            most = min(most, every - rows % every)
        return Limits(most, size.block_nnz, self._plan.planned, lambda: self._is_due(0))

    def _gather(self, item: None, slot: int, limits: Limits) -> Block:
        size = self._plan.size
        offset = caches_nnz(size, len(self._problems)) + slot * size.block_nnz
        return self._arrivals.gather(self._slots[slot], offset, limits)

    def _is_due(self, rows: int) -> bool:
        """Whether it is time for a commit."""
        seconds, every = self.options.checkpoints
        late = seconds > 0 and time.monotonic() - self._committed > seconds
        return late or (every > 0 and rows - self._commit_rows >= every)

    def _learn(self, block: Block) -> None:
        assert self._student is not None
        self._student.grow(block.needs.features)
        begin = time.perf_counter()
        self._predict(block.rows)
        self._predict_seconds += time.perf_counter() - begin
        with self.seconds.measure("solve"):
            done = self._student.learn(block.rows)
        self.totals.add(done)
        self.n_blocks += 1
        source = sum(source.parsed for source in self._arrivals.sources)
        self.progress.advance(source, rows=block.needs.rows)
        self._run.log({
            "event": "block", "rows": block.needs.rows, "features": block.needs.features,
            "elapsed": time.perf_counter() - self.begin, "cached_rows": self._student.n_cached,
            "dual": self._student.dual, "visits": done.visits, "updates": done.updates,
            **self._quality(), "resident_bytes": resident_bytes(),
        })  # fmt: skip

    def _predict(self, rows: Rows) -> None:
        """Predict rows that were not learned yet."""
        assert self._student is not None
        weights, bias = self._student.weights, self.settings.bias
        step = max(1, JUDGED // sum(W.shape[1] for W in weights))
        for first in range(0, len(rows), step):
            some = rows.part(first, min(step, len(rows) - first))
            table = np.hstack([decide(some, W, bias) for W in weights])
            self._progressive.add(*row_losses(self._loss, self._problems, some.y, table))

    def _tell(self, record: dict[str, Any]) -> None:
        assert self._student is not None
        if self._task == "regression":
            record |= {"accuracy": None, "last_accuracy": None}
        self.progress.doubling({
            **record, "features": self._seen.features, "cached_rows": self._student.n_cached,
            "elapsed": time.perf_counter() - self.begin, "resident_bytes": resident_bytes(),
        })  # fmt: skip

    # ------------------------------------------------------------------------- plan and student

    def _make_student(
        self,
        planned: _Planned,
        state: Mapping[str, npt.NDArray[Any]] | None = None,
        before: Mapping[str, Any] | None = None,
    ) -> None:
        """Make what learns, from a state if given; smaller where there is no memory for it."""
        while True:
            with contextlib.suppress(MemoryError):
                return self._try_student(planned, state, before)
            self._student, self._slots = None, []
            self._use_less()
            planned = self._plan_for(planned[0])

    def _try_student(
        self,
        planned: _Planned,
        state: Mapping[str, npt.NDArray[Any]] | None,
        before: Mapping[str, Any] | None,
    ) -> None:
        self._needs, self._problems, self._plan = planned
        self._loss, problems = self._problems[0].loss, self._problems
        self.progress.note(
            f"blocks of {self._plan.size.block_rows} rows, cache {self._plan.size.cache_rows} "
            f"rows; memory: {self._plan.describe()}"
        )
        settings, options = self.settings, self.options
        kernels = student_kernels(settings, options, problems)
        prepare(kernels, self._plan.value_type, self.progress)
        self._student, self._slots = make_student(
            settings, options, problems, self._plan,
            "float64" if self._task == "regression" else "int32", self._team.map, self._threads,
        )  # fmt: skip
        if state is not None and before is not None:
            self._student.restore(state, before)

    def _usable_memory(self) -> int:
        """Return the bound: --mem, or what the system gives where that is less."""
        mem, limit = self.settings.mem_bytes, system_limit()
        if limit is None or limit.size >= mem:
            return mem
        self.progress.note(f"{limit.less_than(mem)}; the plan keeps to that")
        return limit.size

    def _is_above_bound(self) -> bool:
        """Whether more memory is in use than there should be, and nothing is done about it yet."""
        done = self._is_least or self._arrivals.is_outgrown
        return not done and resident_bytes() > self._bound + self._spare_memory

    def _use_less(self) -> None:
        """Plan for less from now on: memory ran out, or more is in use than the bound.

        Raises
        ------
        MemoryPlanError
            It ran out, and there is no smaller plan.
        """
        shape, frac = shape_of_student(self._problems, self.options), self.settings.cache_frac
        least = least_for_stream(float(frac), shape, self._needs, self.options.dtype)
        before = self._plan.total
        try:
            self._mem = less(before, least, f"learning {self.path}")
        except MemoryPlanError:
            if self._student is None:
                raise
            self._is_least = True
            self.progress.note(f"no plan keeps to {format_size(self._bound)}; going on as it is")
            return
        self.progress.note(
            f"a plan for {format_size(before)} was not enough; going on with one for "
            f"{format_size(self._mem)}"
        )

    def out_of_memory(self) -> MemoryPlanError:
        """Say what is kept."""
        kept = "nothing was learned yet"
        if self._commit_rows:
            kept = f"{_rows_in_front(self._commit_rows)} kept, go on with --resume"
        size = format_size(self._mem)
        return MemoryPlanError(
            f"memory ran out while learning {self.path}, planned for {size}; {kept} and less --mem",
            self._mem,
        )

    def _plan_for(self, needs: Needs) -> _Planned:
        """Return the problems of what is known now, and a plan that has room for more."""
        problems = problems_of(self.settings, self.options, self._labels(needs))
        shape, frac = shape_of_student(problems, self.options), float(self.settings.cache_frac)
        mem, dtype = self._mem, self.options.dtype
        plan = plan_stream(mem, frac, shape, needs, dtype, self.path.name)
        return needs, problems, plan

    def _labels(self, needs: Needs) -> list[float] | None:
        """Labels by class code, those of the rows that have these needs."""
        labels = self._arrivals.labels
        return None if labels is None else labels.values[: needs.labels]

    def _go_on_larger(self) -> None:
        """Make another plan, for the row that did not fit or less memory; go on from a commit."""
        assert self._student is not None
        needs = max(self._arrivals.wanted, self._arrivals.needs, key=lambda some: some.rows)
        try:
            self._refuse_weighted(needs)
            planned = self._plan_for(needs)
        except (DataError, MemoryPlanError) as error:
            self._keep_unlearned()
            self._save()
            advice = f"{_rows_in_front(self._seen.rows)} learned and kept"
            if isinstance(error, DataError):
                raise DataError(f"{error}; {advice}") from None
            advice += ", go on with --resume"
            raise MemoryPlanError(f"{error}; {advice}", error.least_bytes) from None
        self._commit()
        before = self._student.describe()
        self._student, self._slots = None, []
        self._make_student(
            planned,
            self._run.read_state(list(filter(_is_of_student, self._run.state_names()))),
            before,
        )
        self._arrivals.is_outgrown = False

    def _refuse_weighted(self, needs: Needs) -> None:
        """Notice a third class where the first two have weights of their own.

        Two classes are one problem; turned into one for each class, rows of the rest would have
        another cost than they were learned with.
        """
        labels = self._labels(needs)
        if labels and self.settings.class_weight and self._needs.labels <= 2 < needs.labels:
            raise DataError(
                f"label {format_number(labels[2])} came after two others, which had weights of "
                "their own; with --class-weight name all labels by --classes"
            )

    # ----------------------------------------------------------------------------------- saving

    def _save(self) -> None:
        """Commit all there is to go on from, and write the model."""
        self._commit()
        with self.seconds.measure("write"):
            if not self._lacks_classes:
                self._model().save(self.path)

    def _commit(self) -> None:
        """Commit all there is to go on from."""
        assert self._student is not None
        state = self._student.state() | {"ids": self._arrivals.ids.keys}
        for k, rows in enumerate(self._pending):
            state |= {f"pending-{k}-{name}": array for name, array in rows.items()}
        labels = self._arrivals.labels
        record = {
            "kind": "stream",
            "settings": self.settings.to_dict(),
            "options": self.options.kept(),
            "inputs": self._inputs,
            "student": self._student.describe(),
            "needs": asdict(self._needs),
            "seen": asdict(self._seen),
            "sources": self._position,
            "pending": len(self._pending),
            "left": sum(len(rows["y"]) for rows in self._pending),
            "labels": labels.values if labels else [],
            "progressive": self._progressive.state(),
            "totals": asdict(self.totals),
            "blocks": self.n_blocks,
        }
        with self.seconds.measure("write"):
            self._run.commit(record, state)
        self._committed, self._commit_rows = time.monotonic(), self._seen.rows

    @property
    def _lacks_classes(self) -> bool:
        """Whether all rows so far have one label, and the loss tells labels apart from another."""
        return self._loss.joint and self._seen.labels == 1

    def _model(self) -> Model:
        """Make the model of the rows that are learned."""
        assert self._student is not None
        facts = {
            "rounds": [self.settings.rounds],
            "converged": False,
            "passes": 1,
            "updates": self.totals.updates,
            "rows": self._student.n_rows,
            "sources": sources_of(self._position),
            "stream": {
                "learner": self.options.learner, "blocks": self.n_blocks,
                "dual": self._student.dual, **self._quality(),
            },
        }  # fmt: skip
        return assemble_model(
            self._arrivals.ids.keys[: self._seen.features],
            model_labels(self._problems[0], Seen(self._seen.rows, self._labels(self._needs))),
            self.settings, self._problems, self._student.weights, facts,
        )  # fmt: skip

    def _quality(self) -> dict[str, float | None]:
        """The progressive figures."""
        loss, accuracy = self._progressive.all.means()
        return {"loss": loss, "accuracy": None if self._task == "regression" else accuracy}

    def finish(self) -> tuple[Model, dict[str, Any]]:
        """Commit, polish, write the model and report.

        What is committed is not polished, so that a stream that goes on is as one that never ended.

        Raises
        ------
        DataError
            Something was refused; what came before is learned and kept.
        """
        assert self._student is not None
        self.progress.finish()
        self._commit()
        if not self._stopped:
            with self.seconds.measure("solve"):
                self.totals.add(self._student.polish(POLISH_ROUNDS))
        if not self._lacks_classes:
            self._model().save(self.path)
        if self._arrivals.error is not None:
            raise DataError(
                f"{self._arrivals.error}; {_rows_in_front(self._seen.rows)} learned and kept in "
                f"{self.path}, mend the text and go on with --resume"
            )
        if self._lacks_classes:
            raise DataError(
                f"all {self._seen.rows:,} rows have one label, {self._loss.name} needs at least "
                "two classes; they are kept, go on with --resume"
            )
        self._progressive.tell()
        model, sources = self._model(), self._arrivals.sources
        report = {
            "rows": self._student.n_rows,
            "blocks": self.n_blocks,
            "features": self._seen.features,
            "labels": model.labels,
            **self._quality(),
            "dual": self._student.dual,
            "visits": self.totals.visits,
            "updates": self.totals.updates,
            "visits_cut_short": self.totals.starved,
            "text_bytes": sum(max(0, source.text) for source in sources),
            "skipped": sum(source.skipped for source in sources),
            "problems": [problem for source in sources for problem in source.problems],
            "open": [source.shown for source in sources if source.is_open],
            "learner": self.options.learner,
            "stopped": self._stopped,
            "pending": sum(len(rows["y"]) for rows in self._pending),
            "seconds": {
                "total": time.perf_counter() - self.begin, "load": self.seconds.load,
                "wait": self.seconds.wait, "predict": self._predict_seconds,
                "learn": self.seconds.solve, "write": self.seconds.write,
            },
            "peak_rss_bytes": peak_bytes(),
            "model": str(self.path),
        }  # fmt: skip
        self._run.log({"event": "end", **report})
        return model, report


def _rows_in_front(n: int) -> str:
    return "the row in front of it is" if n == 1 else f"the {n:,} rows in front of it are"


def _is_of_student(name: str) -> bool:
    return name != "ids" and not name.startswith("pending-")


def _named(state: Mapping[str, npt.NDArray[Any]], prefix: str) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays whose names begin so, without that."""
    return {k.removeprefix(prefix): a for k, a in state.items() if k.startswith(prefix)}
