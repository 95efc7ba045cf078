"""A running stream: its memory plan, learner, progressive validation and checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.compiled.clock import clock, compile_seconds
from sbm.dataset.coding import Labels
from sbm.dataset.newlabels import NewLabels
from sbm.dataset.sources import columns_seen
from sbm.engine.kernels import READ_TEXT, TABLES, kernels_of, prepare, types_of, types_of_dtype
from sbm.engine.learners import JUDGED, Seconds
from sbm.engine.machine import (
    interpreter_bytes,
    peak_bytes,
    resident_bytes,
    smaller,
    system_limit,
    usable_threads,
)
from sbm.engine.prefetch import loading_thread
from sbm.engine.problems import assemble_model
from sbm.engine.progress import Progress
from sbm.errors import DataError, MemoryPlanError, SettingsError
from sbm.fields import Table, fields_of, is_count, is_distinct_numbers, is_number, is_number_or_inf
from sbm.inputs.formats import LIBSVM, check_headers, check_names, reader_memory
from sbm.inputs.idtable import IdTable
from sbm.inputs.live import Patience, SourceProgress
from sbm.inputs.text import PIECE, Source
from sbm.losses import LOSSES
from sbm.models.model import Model
from sbm.names import Names
from sbm.plain import dataclass
from sbm.programs.streaming.arrivals import (
    ANY,
    Arrivals,
    Needs,
    NewRows,
    Reached,
    TextOptions,
    arrays_of,
)
from sbm.programs.streaming.learner import (
    Seen,
    Workspace,
    learner_shape,
    problems_of,
    target_type,
)
from sbm.programs.streaming.options import Opened
from sbm.programs.streaming.plan import (
    FIRST_BLOCK,
    StreamPlan,
    parsers_of,
    plan_stream,
    require_windows,
)
from sbm.programs.streaming.progressive import Progressive, Sums, row_losses
from sbm.rows import Arena, Rows
from sbm.settings import SETTINGS_FIELDS
from sbm.solver.onepass import FEW_ROWS
from sbm.solver.problem import AnyProblem, decide
from sbm.solver.step import Totals
from sbm.store.run import sources_at
from sbm.units import format_number, format_size

_SOURCE = {"name": str, "path": str, **fields_of(SourceProgress, tail=str)}
# Of the record of a run, besides those of each checkpoint; see `Stream.commit`.
RUN_FIELDS: Table = {
    "settings": SETTINGS_FIELDS, "inputs": [str],
    "options": {"classes?": (None, [is_number]), "*": lambda value: True},
    "learner": {"rows": is_count, "outputs": [is_count], "listed": bool, "positive": (None, int)},
    "needs": fields_of(Needs), "seen": fields_of(Needs), "sources": [_SOURCE],
    "progressive": {"all": fields_of(Sums), "last": fields_of(Sums), "mark": is_count},
    "pending": is_count, "left": is_count, "labels": is_distinct_numbers, "labels_of?": str,
    "columns?": lambda value: isinstance(value, dict),
    "totals": fields_of(Totals, gap=is_number_or_inf), "blocks": is_count,
}  # fmt: skip

_OF_NAMES = "feature-"  # begin of the names of arrays in a checkpoint
_FEW_VISITS = 1 << 19  # the polish of a small stream takes less time than starting


@dataclass
class _Seconds(Seconds):
    """Time by activity, including prediction and polish."""

    predict: float = 0.0
    polish: float = 0.0


class Stream:
    """A running stream: reads, predicts and learns rows, and writes checkpoints.

    Parameters
    ----------
    path : Path
        Path of the model.

    Attributes
    ----------
    arrivals : Arrivals
    reached : Reached
        Position after the last learned row.
    work : Workspace
        The learner; it is created when the first rows are known.
    is_cut_short : bool
        Whether it was stopped.
    """

    work: Workspace

    def __init__(
        self,
        path: Path,
        opened: Opened,
        sources: list[Source],
        progress: Progress,
        is_stopped: Callable[[], bool],
    ) -> None:
        self._begin, self._seconds = clock(), _Seconds()
        self._compiled_before = compile_seconds()
        self.path, self.opened, self.progress = path, opened, progress
        record, self._inputs = opened.record, [source.path for source in sources]
        self._mem = mem = self._usable_memory()
        self._reserved = reader_memory(sources)
        if self._reserved:  # the first rows, on which the plan is based, already take it
            require_windows(mem, path.name, self._reserved)
        # If memory use exceeds this, the plan was too large. It includes the caller's memory.
        self._most: float = mem + max(0, resident_bytes() - interpreter_bytes())
        self._totals = Totals(**record.get("totals", {}))
        self._n_blocks, self._polish_visits = int(record.get("blocks", 0)), 0
        self.progressive = Progressive(self._tell, record.get("progressive"))
        threads = usable_threads(opened.settings.threads)
        self._team = ThreadPoolExecutor(threads, "sbm-solve")
        self._loader = loading_thread(threads)
        self._reading = opened.options.input_options(self._task != "classification")
        self._restore_columns(sources)
        self.arrivals = self._make_arrivals(sources, threads, is_stopped)
        self.reached = self.arrivals.reached
        self._committed = time.monotonic(), self.reached.needs.rows
        self.is_cut_short = False
        total = sum(source.size for source in sources)
        progress.start("stream", total if all(s.size for s in sources) else None)
        prepare("reading", READ_TEXT, types_of_dtype(opened.options.dtype), progress)
        self._needs, self._planned = Needs(), ANY  # what the plan is based on, and has room for
        if self.reached.needs.rows:
            needs = Needs(**record["needs"])
            if self.reached.needs.features > self._plan(needs).size.features:  # less memory now
                needs = self.reached.needs
            self._make_room(needs, self._plan(needs), opened.state, record["learner"])
        else:
            first = Arena.of(256 * FIRST_BLOCK, opened.options.dtype)
            self._inboxes = [first.room(FIRST_BLOCK, target_type(opened.settings))]
        opened.state = {}

    def close(self) -> None:
        """End the threads, including one that waits for text."""
        self.arrivals.patience.gave_up = True
        self._loader.shutdown()
        self.arrivals.close()
        self._team.shutdown()

    def _make_arrivals(
        self, sources: list[Source], threads: int, is_stopped: Callable[[], bool]
    ) -> Arrivals:
        record, state, options = self.opened.record, self.opened.state, self.opened.options
        known: Sequence[float] = options.classes or (record["labels"] if record else ())
        task = self._task
        labels = Labels(list(known), [0] * len(known)) if task == "classification" else None
        parsers = parsers_of(self._mem, max(1, threads - 1))
        longest = max(PIECE, (self._mem - interpreter_bytes()) // 12)
        text = TextOptions(
            options.dtype,
            options.on_error == "skip",
            parsers,
            longest,
            options.format or LIBSVM,
            self._reading,
        )
        idle = options.idle_timeout
        patience = Patience(options.follow, None if idle is None else float(idle), is_stopped)
        reached = None
        if record:
            pending = [_named(state, f"pending-{k}-") for k in range(record["pending"])]
            reached = Reached(Needs(**record["seen"]), record["sources"], pending)
        return Arrivals(
            sources, IdTable(state.get("ids")), labels, text, patience, reached,
            fixed=options.classes is not None, new_labels=self._new_labels(labels),
            unlabelled=task == "none",
        )  # fmt: skip

    def _new_labels(self, labels: Labels | None) -> NewLabels | None:
        """Return what refuses new labels of later files; None if they are allowed, or not."""
        options, record = self.opened.options, self.opened.record
        if labels is None or options.new_labels or options.classes is not None:
            return None
        n = int(record.get("labels_before", 0))
        is_pair = bool(record.get("is_pair", False))
        path = str(record.get("labels_of", ""))
        return NewLabels(labels.values[:n], here=labels.values[n:], here_of=path, is_pair=is_pair)

    @property
    def _task(self) -> str:
        return self.opened.settings.problem

    # ------------------------------------------------------------------------------- blocks

    def learn_all(self) -> None:
        """Learn until the input ends or the stream is stopped.

        Raises
        ------
        DataError
            The input has no rows.
        KeyboardInterrupt
            The stream was stopped before the first row.
        """
        self._coming: Future[NewRows] | None = self._gather()
        if not self.reached.needs.rows:
            self._begin_with(self._coming.result())
        while self._coming is not None:
            wanted = self._learn_block(self._coming)
            if wanted is not None:  # nothing refers to the buffers of the old plan anymore
                self._make_larger(wanted)
                self._coming = self._gather()

    def _learn_block(self, coming: Future[NewRows]) -> Needs | None:
        """Learn the next block; return what to plan for, if it does not fit the plan."""
        with self._seconds.measure("wait"):
            block = coming.result()
        self._coming = None
        if block.is_cut:
            self.is_cut_short = True
            self._keep_unlearned(block.rows)
            return None
        wanted = block.wanted if block.wanted != self._needs else None
        if not (wanted or block.is_last) and self._is_above_bound():
            wanted = block.reached.needs
        if not (block.is_last or wanted):
            self._coming = self._gather()  # while these are learned
        for rows in self.work.parts(block.rows):
            self._learn(rows, block)
        self.reached = block.reached
        if not block.is_last and self._is_due(self.reached.needs.rows):
            self.save()
        return wanted

    def _gather(self) -> Future[NewRows]:
        """Start gathering the next block in the loading thread."""
        rows = self.arrivals.reached.needs.rows
        self._inboxes = self._inboxes[::-1]  # one for the block that is learned
        inbox = self._inboxes[0]
        growth = 1 if rows < FEW_ROWS else 3  # a block is visited together with all cached rows
        most = min(len(inbox), max(FIRST_BLOCK, growth * rows))
        _, every = self.opened.options.commit_interval
        if every:
            most = min(most, every - rows % every)
        planned = self._planned

        def gather() -> NewRows:
            with self._seconds.measure("load"):
                return self.arrivals.gather(inbox.part(0, most), planned, lambda: self._is_due(0))

        return self._loader.submit(gather)

    def _begin_with(self, block: NewRows) -> None:
        """Make the first plan, from the rows of the first block."""
        needs = block.wanted or block.reached.needs
        if not needs.rows and block.is_cut:
            raise KeyboardInterrupt  # there is nothing to save
        if not needs.rows:
            raise self.arrivals.error or DataError("the input has no rows; no model was written")
        self._make_room(needs, self._plan(needs))

    def _keep_unlearned(self, *rows: Rows) -> None:
        """Set `reached` so that it includes all rows that were read but not learned."""
        position, remaining = self.arrivals.remaining()
        pending = [*(arrays_of(some) for some in rows if len(some)), *remaining]
        self.reached = Reached(self.reached.needs, position, pending)

    def _is_due(self, rows: int) -> bool:
        """Return whether a checkpoint is due, if `rows` rows have been learned."""
        seconds, every = self.opened.options.commit_interval
        at, before = self._committed
        late = seconds > 0 and time.monotonic() - at > seconds
        return late or (every > 0 and rows - before >= every)

    def _learn(self, rows: Rows, block: NewRows) -> None:
        """Predict rows, then learn them."""
        learner = self.work.learner
        learner.grow(block.reached.needs.features)
        with self._seconds.measure("predict"):
            self._predict(rows)
        with self._seconds.measure("solve"):
            done = learner.learn(rows, is_polished=True)
        self._totals.add(done)
        self._n_blocks += 1
        parsed = sum(source.parsed for source in self.arrivals.sources)
        self.progress.advance(parsed, rows=learner.n_rows)
        self.opened.run.log({
            "event": "block", "rows": learner.n_rows, "features": block.reached.needs.features,
            "elapsed": clock() - self._begin, "cached_rows": learner.n_cached,
            "dual": learner.dual, "visits": done.visits, "updates": done.updates,
            **self._quality(), "resident_bytes": resident_bytes(),
        })  # fmt: skip

    def _predict(self, rows: Rows) -> None:
        """Predict rows that have not been learned yet, for the progressive loss."""
        weights, settings = self.work.learner.weights, self.opened.settings
        step = max(1, JUDGED // sum(W.shape[1] for W in weights))
        for first in range(0, len(rows), step):
            some = rows.part(first, min(step, len(rows) - first))
            table = np.hstack([decide(some, W, settings.bias) for W in weights])
            problems = self.work.learner.problems
            self.progressive.add(*row_losses(LOSSES[settings.loss], problems, some.y, table))

    def _tell(self, record: dict[str, Any]) -> None:
        if self._task == "regression":
            record |= {"accuracy": None, "last_accuracy": None}
        learner = self.work.learner
        self.progress.doubling({
            **record, "features": self.arrivals.reached.needs.features,
            "cached_rows": learner.n_cached, "elapsed": clock() - self._begin,
            "resident_bytes": resident_bytes(),
        })  # fmt: skip

    # ------------------------------------------------------------------------------- memory

    def _make_room(
        self,
        needs: Needs,
        plan: StreamPlan,
        state: Mapping[str, npt.NDArray[Any]] | None = None,
        before: Mapping[str, Any] | None = None,
    ) -> None:
        """Allocate buffers and learner as planned; retry with a smaller plan if memory runs out.

        The learner is restored from `state` and `before`, if given.
        """
        settings, problems = self.opened.settings, self._problems(needs)
        while True:
            self._needs, self._planned, size = needs, plan.planned, plan.size
            self.progress.note(
                f"blocks of {size.block_rows} rows, cache {size.cache_rows} rows; "
                f"memory: {plan.describe()}"
            )
            kernels = kernels_of(settings, problems, streamed=True)
            types = types_of(problems, plan.value_type)
            prepare("streaming", kernels, types, self.progress)
            try:
                self.work = Workspace.of(
                    settings, problems, size, plan.value_type, spread=self._team.map, rooms=2
                )
                self._inboxes = self.work.rooms
                if state is not None and before is not None:
                    self.work.learner.restore(state, before)
                return
            except MemoryError:
                self.__dict__.pop("work", None)
            plan = self._use_less(plan.total)

    def _problems(self, needs: Needs) -> list[AnyProblem]:
        """Return the problems for the classes known so far."""
        return problems_of(self.opened.settings, self._labels(needs))

    def _plan(self, needs: Needs, mem: int | None = None) -> StreamPlan:
        """Return a plan with room for these needs and more."""
        frac, shape = float(self.opened.settings.cache_frac), learner_shape(self._problems(needs))
        dtype, name = self.opened.options.dtype, self.path.name
        return plan_stream(mem or self._mem, frac, shape, needs, dtype, name, self._reserved)

    def _labels(self, needs: Needs) -> list[float] | None:
        """Return the labels by class code for these needs; None for targets."""
        labels = self.arrivals.labels
        return None if labels is None else labels.values[: needs.labels]

    def _make_larger(self, needs: Needs) -> None:
        """Make a new plan, for a row that did not fit or for less memory, and continue with it."""
        try:
            self._refuse_weighted(needs)
            plan = self._plan(needs)
        except (DataError, SettingsError, MemoryPlanError) as error:
            self._keep_unlearned()
            self.save()
            advice = f"{rows_in_front(self.reached.needs.rows)} learned and saved"
            if not isinstance(error, MemoryPlanError):
                raise type(error)(f"{error}; {advice}") from None
            advice += "; use --resume"
            raise MemoryPlanError(f"{error}; {advice}", error.least_bytes) from None
        self.commit()
        run, before = self.opened.run, self.work.learner.describe()
        del self.work, self._inboxes
        state = run.read_state(list(filter(_is_learned, run.state_names())))
        self._make_room(needs, plan, state, before)

    def _refuse_weighted(self, needs: Needs) -> None:
        """Check that class weights still apply if a third class occurs.

        Two classes are one problem. With a problem per class, the rows so far would get another
        cost than they were learned with.
        """
        labels, before = self._labels(needs), self._needs.labels
        if labels and self.opened.settings.class_weight and before <= 2 < needs.labels:
            raise DataError(
                f"label {format_number(labels[2])} is new, but --class-weight was applied to two "
                "classes only; name all labels with --classes"
            )

    def _usable_memory(self) -> int:
        """Return the bound: --mem, or the limit of the system if that is less."""
        mem, limit = self.opened.settings.mem_bytes, system_limit()
        if limit is None or limit.size >= mem:
            return mem
        self.progress.note(f"{limit.less_than(mem)}; planning for that limit")
        return limit.size

    def _is_above_bound(self) -> bool:
        """Return whether memory use exceeds the bound and there is a smaller plan."""
        if resident_bytes() <= self._most:
            return False
        try:
            self._use_less(self._mem)
        except MemoryPlanError:
            self._most = math.inf
            self.progress.note("memory use is above --mem, but no smaller plan exists")
            return False
        return True

    def _use_less(self, before: int) -> StreamPlan:
        """Return a smaller plan, and use its bound from now on.

        Raises `MemoryPlanError` if there is no smaller plan.
        """
        plan = smaller(partial(self._plan, self._needs), before, f"learning {self.path}")
        self._mem = plan.mem
        self.progress.note(
            f"more memory was needed than planned ({format_size(before)}); continuing with a plan "
            f"for {format_size(self._mem)}"
        )
        return plan

    def out_of_memory(self) -> MemoryPlanError:
        """Return the error after memory ran out; it reports what is saved."""
        kept = "nothing was learned yet; retry with"
        if rows := self._committed[1]:
            kept = f"{rows_in_front(rows)} saved; retry with --resume and"
        size = format_size(self._mem)
        return MemoryPlanError(
            f"memory ran out while learning {self.path}, planned for {size}; {kept} less --mem",
            self._mem,
        )

    # ------------------------------------------------------------------------------- saving

    def save(self) -> None:
        """Write a checkpoint and the model."""
        self.commit()
        if not self.lacks_classes:
            with self._seconds.measure("write"):
                self.make_model().save(self.path)

    def commit(self) -> None:
        """Write a checkpoint."""
        learner, pending = self.work.learner, self.reached.pending
        state = learner.state() | {"ids": self.arrivals.ids.keys} | self._names()
        for k, rows in enumerate(pending):
            state |= {f"pending-{k}-{name}": array for name, array in rows.items()}
        labels, new_labels = self.arrivals.labels, self.arrivals.new_labels
        record = {
            "kind": "stream",
            "settings": self.opened.settings.to_dict(),
            "options": self.opened.options.kept(),
            "inputs": self._inputs,
            "learner": learner.describe(),
            "needs": asdict(self._needs),
            "seen": asdict(self.reached.needs),
            "sources": self.reached.position,
            "pending": len(pending),
            "left": self._n_pending,
            "labels": labels.values if labels else [],
            "labels_before": 0 if new_labels is None else new_labels.n_before,
            "labels_of": "" if new_labels is None else new_labels.current,
            "is_pair": new_labels is not None and new_labels.is_pair,
            "progressive": self.progressive.state(),
            "totals": asdict(self._totals),
            "blocks": self._n_blocks,
            **({"columns": self._reading.table.record()} if self._is_table else {}),
        }
        with self._seconds.measure("write"):
            self.opened.run.commit(record, state)
        self._committed = time.monotonic(), self.reached.needs.rows

    @property
    def _n_pending(self) -> int:
        return sum(len(rows["y"]) for rows in self.reached.pending)

    @property
    def lacks_classes(self) -> bool:
        """Whether all rows so far have one label, but the loss needs at least two."""
        return LOSSES[self.opened.settings.loss].joint and self.reached.needs.labels == 1

    def make_model(self) -> Model:
        """Create the model of the rows learned so far."""
        learner, settings = self.work.learner, self.opened.settings
        facts = {
            "rounds": [settings.rounds],
            "converged": False,
            "passes": 1,
            "updates": self._totals.updates,
            "rows": learner.n_rows,
            "sources": sources_at(self.reached.position),
            "stream": {"blocks": self._n_blocks, "dual": learner.dual, **self._quality()},
        }
        if self._is_table:
            facts["names"] = self._reading.table.record()
        elif (bits := self.opened.options.hash_bits) is not None:
            pairs = self.opened.options.pairs
            facts["names"] = {"hash_bits": bits, **({"quadratic": [*pairs]} if pairs else {})}
        seen = self.reached.needs
        rows = Seen(seen.rows, self._labels(self._needs))
        ids = self.arrivals.ids.keys[: seen.features]
        model = assemble_model(ids, rows, settings, learner.problems, learner.weights, facts)
        if self._is_table:
            model.names = self._reading.table.words.of(ids)
        return model

    @property
    def _is_table(self) -> bool:
        return self.opened.options.is_table

    def _names(self) -> dict[str, npt.NDArray[Any]]:
        """Return the names of features of tables, as arrays of a checkpoint."""
        if not self._is_table:
            return {}
        words = self._reading.table.words
        ids = words.ids[: len(words)].copy()
        arrays = words.of(ids).arrays()
        return {f"{_OF_NAMES}{name}": array for name, array in {**arrays, "ids": ids}.items()}

    def _restore_columns(self, sources: Sequence[Source]) -> None:
        """Let tables be read as those before, with the same names."""
        for source in sources:
            source.options = self._reading
        if not self._is_table:
            return
        if self.opened.record:
            arrays = _named(self.opened.state, _OF_NAMES)
            ids = arrays.pop("ids")
            names = Names.from_arrays(arrays, len(ids))
            columns = self.opened.record["columns"]
            self._reading.table.follow(columns, "the stream", names, ids, grows=True)
        prepare("reading tables", TABLES, {}, self.progress)
        check_names(sources)
        check_headers(sources)
        for line in columns_seen(sources):
            self.progress.stage(line)

    def _quality(self) -> dict[str, float | None]:
        """Return the progressive loss and accuracy."""
        loss, accuracy = self.progressive.all.means()
        return {"loss": loss, "accuracy": None if self._task == "regression" else accuracy}

    def polish(self) -> None:
        """Solve for the cached rows once more, with less work than the pass.

        Reading and predicting a row takes at least as long as two visits.
        """
        learner = self.work.learner
        visits = max(_FEW_VISITS, self._totals.visits + 2 * learner.n_rows)
        with self._seconds.measure("polish"):
            done = learner.polish(visits)
        self._totals.add(done)
        self._polish_visits = done.visits
        self.opened.run.log({
            "event": "polish", "elapsed": clock() - self._begin, "cached_rows": learner.n_cached,
            "dual": learner.dual, "visits": done.visits, "updates": done.updates,
        })  # fmt: skip

    def report(self, model: Model) -> dict[str, Any]:
        """Return the report of the stream; see `sbm.stream`."""
        learner, sources, seconds = self.work.learner, self.arrivals.sources, self._seconds
        return {
            "rows": learner.n_rows,
            "blocks": self._n_blocks,
            "features": self.reached.needs.features,
            "labels": model.labels,
            **self._quality(),
            "dual": learner.dual,
            "visits": self._totals.visits,
            "polish_visits": self._polish_visits,
            "updates": self._totals.updates,
            "visits_cut_short": self._totals.starved,
            "text_bytes": sum(source.done.text for source in sources),
            "skipped": sum(source.done.skipped for source in sources),
            "problems": [problem for source in sources for problem in source.problems],
            "open": [source.shown for source in sources if source.is_open],
            "stopped": self.is_cut_short,
            "pending": self._n_pending,
            "seconds": {
                "total": clock() - self._begin, "load": seconds.load,
                "wait": seconds.wait, "predict": seconds.predict, "learn": seconds.solve,
                "polish": seconds.polish, "write": seconds.write,
                "compile": compile_seconds() - self._compiled_before,
            },
            "peak_rss_bytes": peak_bytes(),
            "model": str(self.path),
        }  # fmt: skip


def rows_in_front(n: int) -> str:
    """Return "the N rows before it are", for messages about an error in the input."""
    return "the row before it is" if n == 1 else f"the {n:,} rows before it are"


def _is_learned(name: str) -> bool:
    """Return whether an array of a checkpoint belongs to the learner."""
    return name != "ids" and not name.startswith(("pending-", _OF_NAMES))


def _named(state: Mapping[str, npt.NDArray[Any]], prefix: str) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays whose names start with `prefix`, with the prefix removed."""
    return {k.removeprefix(prefix): a for k, a in state.items() if k.startswith(prefix)}
