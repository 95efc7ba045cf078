"""A stream at work: its memory plan, what learns, what is predicted, and its commits."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from sbm.engine.clock import clock, compile_seconds
from sbm.engine.kernels import prepare
from sbm.engine.learners import JUDGED, Seconds
from sbm.engine.machine import less, peak_bytes, resident_bytes, system_limit, usable_threads
from sbm.engine.memory import INTERPRETER
from sbm.engine.prefetch import loading_thread, prefetched
from sbm.engine.problems import assemble_model, choose_task, model_labels
from sbm.engine.progress import Progress
from sbm.errors import DataError, MemoryPlanError
from sbm.inputs.idtable import IdTable
from sbm.inputs.live import Patience
from sbm.inputs.text import PIECE, Source
from sbm.losses import LOSSES
from sbm.models.model import Model
from sbm.programs.splitting.reading import Labels
from sbm.programs.streaming.arrivals import (
    Arrivals,
    Block,
    Limits,
    Needs,
    TextOptions,
    arrays_of,
    sources_at,
)
from sbm.programs.streaming.options import Opened
from sbm.programs.streaming.plan import (
    FIRST_BLOCK,
    StreamPlan,
    least_for_stream,
    parsers_of,
    plan_stream,
)  # fmt: skip
from sbm.programs.streaming.progressive import Progressive, row_losses
from sbm.programs.streaming.students import (
    Seen,
    learner_kernels,
    learner_shape,
    make_learner,
    problems_of,
)  # fmt: skip
from sbm.rows import Rows
from sbm.settings import format_number, format_size
from sbm.solver.onepass import OnePass, caches_nnz
from sbm.solver.problem import AnyProblem, decide
from sbm.solver.step import Totals

__all__ = ["Stream", "rows_in_front"]

POLISH_ROUNDS = 10  # over the cache alone, at the end: there is no text to keep up with

# Rows that are planned for, the problems of their classes, and the plan.
_Planned: TypeAlias = tuple[Needs, list[AnyProblem], StreamPlan]


class Stream:
    """A stream at work: what it reads, what learns, its plan and its commits.

    Parameters
    ----------
    path : Path
        Of the model.
    opened : Opened
    sources : list of Source
    progress : Progress
    is_stopped : callable
    begin : float
        When it was asked for, by `sbm.engine.clock.clock`.

    Attributes
    ----------
    arrivals : Arrivals
    student : OnePass or None
        What learns; None before the first row is there.
    seen : Needs
        What the rows that are learned take.
    position, pending : list
        Of the inputs behind these rows; and rows that were read and are not learned.
    is_cut_short : bool
        Whether it was told to stop.
    """

    def __init__(
        self,
        path: Path,
        opened: Opened,
        sources: list[Source],
        progress: Progress,
        is_stopped: Callable[[], bool],
        begin: float,
    ) -> None:
        self.path, self.progress, self.begin = path, progress, begin
        self.run, self.settings, self.options = opened.run, opened.settings, opened.options
        self.is_stopped = is_stopped
        record = opened.record
        self.seconds = Seconds()
        self._compiled_before = compile_seconds()
        self._predict_seconds = 0.0
        self._bound = self._mem = self._usable_memory()
        # Of what calls this, beside an interpreter.
        self._spare_memory = max(0, resident_bytes() - INTERPRETER)
        self.is_least = False
        self.totals = Totals(**record.get("totals", {}))
        self.n_blocks = int(record.get("blocks", 0))
        self._inputs = [source.path for source in sources]
        self.progressive = Progressive(self._tell, record.get("progressive"))
        threads = usable_threads(self.settings.threads)
        self._threads = threads
        self._team = ThreadPoolExecutor(threads, "sbm-solve")
        self._loader = loading_thread(threads)
        self.arrivals = self._make_arrivals(opened, sources)
        self.learner: OnePass | None = None
        self._slots: list[Rows] = []
        self.is_cut_short = False
        self._needs, self.seen = Needs(), self.arrivals.needs
        self.position: list[dict[str, Any]] = record.get("sources", [])
        self.pending: list[dict[str, npt.NDArray[Any]]] = list(self._pending_of(opened))
        self._committed, self._commit_rows = time.monotonic(), self.arrivals.needs.rows
        total = sum(source.size for source in sources)
        progress.start("stream", total if all(s.size for s in sources) else None)
        prepare("split", self.options.dtype, progress)
        if self.seen.rows:
            planned = self.plan_for(Needs(**record["needs"]))
            if self.seen.features > planned[2].size.features:  # it goes on with less memory
                planned = self.plan_for(self.seen)
            self.make_learner(planned, opened.state, record["learner"])
        opened.state = {}  # where nothing was learned yet, the first plan is made anew

    def close(self) -> None:
        """End the threads, also one that waits for text that may never come."""
        self.arrivals.patience.gave_up = True
        if isinstance(self._loader, ThreadPoolExecutor):
            self._loader.shutdown()
        self.arrivals.close()
        self._team.shutdown()

    def _make_arrivals(self, opened: Opened, sources: list[Source]) -> Arrivals:
        record, state, options = opened.record, opened.state, self.options
        mem = self._mem
        task = self._task = choose_task(self.settings, LOSSES[self.settings.loss])
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
    def _pending_of(opened: Opened) -> list[dict[str, npt.NDArray[Any]]]:
        n = opened.record.get("pending", 0)
        return [_named(opened.state, f"pending-{k}-") for k in range(n)]

    # ------------------------------------------------------------------------------- blocks

    def peek(self) -> Needs | None:
        """Read the first rows, and return what they take; None where there are none."""
        return self.arrivals.peek(FIRST_BLOCK, lambda: self.is_due(0))

    def blocks(self) -> Iterator[Block]:
        """Yield blocks of rows that fit the plan, each as it is; the next one gathers meanwhile."""
        blocks = prefetched(itertools.repeat(None), self._limits, self._gather, self._loader)
        for loaded in blocks:
            self.seconds.wait += loaded.wait_seconds
            self.seconds.load += loaded.load_seconds
            yield loaded.result

    def keep_unlearned(self, *rows: Rows) -> None:
        """Note the rows that were read and are not learned: these, and those behind them."""
        self.position, remaining = self.arrivals.remaining()
        self.pending = [*(arrays_of(some) for some in rows if len(some)), *remaining]

    def _limits(self, item: None, slot: int) -> Limits:
        """Decide how large the next block may be."""
        size, rows = self._plan.size, self.arrivals.needs.rows
        most = min(size.block_rows, max(FIRST_BLOCK, rows))
        _, every = self.options.commit_interval
        if every:
            most = min(most, every - rows % every)
        return Limits(most, size.block_nnz, self._plan.planned, lambda: self.is_due(0))

    def _gather(self, item: None, slot: int, limits: Limits) -> Block:
        size = self._plan.size
        offset = caches_nnz(size, len(self._problems)) + slot * size.block_nnz
        return self.arrivals.gather(self._slots[slot], offset, limits)

    def is_due(self, rows: int) -> bool:
        """Whether it is time for a commit."""
        seconds, every = self.options.commit_interval
        late = seconds > 0 and time.monotonic() - self._committed > seconds
        return late or (every > 0 and rows - self._commit_rows >= every)

    def learn(self, block: Block) -> None:
        """Predict the rows of a block, and learn them."""
        assert self.learner is not None
        self.learner.grow(block.needs.features)
        begin = clock()
        self._predict(block.rows)
        self._predict_seconds += clock() - begin
        with self.seconds.measure("solve"):
            done = self.learner.learn(block.rows)
        self.totals.add(done)
        self.n_blocks += 1
        source = sum(source.parsed for source in self.arrivals.sources)
        self.progress.advance(source, rows=block.needs.rows)
        self.run.log({
            "event": "block", "rows": block.needs.rows, "features": block.needs.features,
            "elapsed": clock() - self.begin, "cached_rows": self.learner.n_cached,
            "dual": self.learner.dual, "visits": done.visits, "updates": done.updates,
            **self.quality(), "resident_bytes": resident_bytes(),
        })  # fmt: skip

    def _predict(self, rows: Rows) -> None:
        """Predict rows that were not learned yet."""
        assert self.learner is not None
        weights, bias = self.learner.weights, self.settings.bias
        step = max(1, JUDGED // sum(W.shape[1] for W in weights))
        for first in range(0, len(rows), step):
            some = rows.part(first, min(step, len(rows) - first))
            table = np.hstack([decide(some, W, bias) for W in weights])
            self.progressive.add(*row_losses(self.loss, self._problems, some.y, table))

    def _tell(self, record: dict[str, Any]) -> None:
        assert self.learner is not None
        if self._task == "regression":
            record |= {"accuracy": None, "last_accuracy": None}
        self.progress.doubling({
            **record, "features": self.seen.features, "cached_rows": self.learner.n_cached,
            "elapsed": clock() - self.begin, "resident_bytes": resident_bytes(),
        })  # fmt: skip

    # ------------------------------------------------------------------------- plan and student

    def make_learner(
        self,
        planned: _Planned,
        state: Mapping[str, npt.NDArray[Any]] | None = None,
        before: Mapping[str, Any] | None = None,
    ) -> None:
        """Make what learns, from a state if given; smaller where there is no memory for it."""
        while True:
            with contextlib.suppress(MemoryError):
                return self._try_student(planned, state, before)
            self.learner, self._slots = None, []
            self.use_less()
            planned = self.plan_for(planned[0])

    def _try_student(
        self,
        planned: _Planned,
        state: Mapping[str, npt.NDArray[Any]] | None,
        before: Mapping[str, Any] | None,
    ) -> None:
        self._needs, self._problems, self._plan = planned
        self.loss, problems = self._problems[0].loss, self._problems
        self.progress.note(
            f"blocks of {self._plan.size.block_rows} rows, cache {self._plan.size.cache_rows} "
            f"rows; memory: {self._plan.describe()}"
        )
        kernels = learner_kernels(self.settings, problems)
        prepare(kernels, self._plan.value_type, self.progress)
        self.learner, self._slots = make_learner(
            self.settings, problems, self._plan,
            "float64" if self._task == "regression" else "int32", self._team.map,
        )  # fmt: skip
        if state is not None and before is not None:
            self.learner.restore(state, before)

    def _usable_memory(self) -> int:
        """Return the bound: --mem, or what the system gives where that is less."""
        mem, limit = self.settings.mem_bytes, system_limit()
        if limit is None or limit.size >= mem:
            return mem
        self.progress.note(f"{limit.less_than(mem)}; the plan keeps to that")
        return limit.size

    def is_above_bound(self) -> bool:
        """Whether more memory is in use than there should be, and nothing is done about it yet."""
        done = self.is_least or self.arrivals.is_outgrown
        return not done and resident_bytes() > self._bound + self._spare_memory

    def use_less(self) -> None:
        """Plan for less from now on: memory ran out, or more is in use than the bound.

        Raises
        ------
        MemoryPlanError
            It ran out, and there is no smaller plan.
        """
        shape, frac = learner_shape(self._problems), self.settings.cache_frac
        least = least_for_stream(float(frac), shape, self._needs, self.options.dtype)
        before = self._plan.total
        try:
            self._mem = less(before, least, f"learning {self.path}")
        except MemoryPlanError:
            if self.learner is None:
                raise
            self.is_least = True
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
            kept = f"{rows_in_front(self._commit_rows)} kept, go on with --resume"
        size = format_size(self._mem)
        return MemoryPlanError(
            f"memory ran out while learning {self.path}, planned for {size}; {kept} and less --mem",
            self._mem,
        )

    def plan_for(self, needs: Needs) -> _Planned:
        """Return the problems of what is known now, and a plan that has room for more."""
        problems = problems_of(self.settings, self._labels(needs))
        shape, frac = learner_shape(problems), float(self.settings.cache_frac)
        mem, dtype = self._mem, self.options.dtype
        plan = plan_stream(mem, frac, shape, needs, dtype, self.path.name)
        return needs, problems, plan

    def _labels(self, needs: Needs) -> list[float] | None:
        """Labels by class code, those of the rows that have these needs."""
        labels = self.arrivals.labels
        return None if labels is None else labels.values[: needs.labels]

    def go_on_larger(self) -> None:
        """Make another plan, for the row that did not fit or less memory; go on from a commit."""
        assert self.learner is not None
        needs = max(self.arrivals.wanted, self.arrivals.needs, key=lambda some: some.rows)
        try:
            self._refuse_weighted(needs)
            planned = self.plan_for(needs)
        except (DataError, MemoryPlanError) as error:
            self.keep_unlearned()
            self.save()
            advice = f"{rows_in_front(self.seen.rows)} learned and kept"
            if isinstance(error, DataError):
                raise DataError(f"{error}; {advice}") from None
            advice += ", go on with --resume"
            raise MemoryPlanError(f"{error}; {advice}", error.least_bytes) from None
        self.commit()
        before = self.learner.describe()
        self.learner, self._slots = None, []
        self.make_learner(
            planned,
            self.run.read_state(list(filter(_is_of_student, self.run.state_names()))),
            before,
        )
        self.arrivals.is_outgrown = False

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

    def save(self) -> None:
        """Commit all there is to go on from, and write the model."""
        self.commit()
        with self.seconds.measure("write"):
            if not self.lacks_classes:
                self.make_model().save(self.path)

    def commit(self) -> None:
        """Commit all there is to go on from."""
        assert self.learner is not None
        state = self.learner.state() | {"ids": self.arrivals.ids.keys}
        for k, rows in enumerate(self.pending):
            state |= {f"pending-{k}-{name}": array for name, array in rows.items()}
        labels = self.arrivals.labels
        record = {
            "kind": "stream",
            "settings": self.settings.to_dict(),
            "options": self.options.kept(),
            "inputs": self._inputs,
            "learner": self.learner.describe(),
            "needs": asdict(self._needs),
            "seen": asdict(self.seen),
            "sources": self.position,
            "pending": len(self.pending),
            "left": sum(len(rows["y"]) for rows in self.pending),
            "labels": labels.values if labels else [],
            "progressive": self.progressive.state(),
            "totals": asdict(self.totals),
            "blocks": self.n_blocks,
        }
        with self.seconds.measure("write"):
            self.run.commit(record, state)
        self._committed, self._commit_rows = time.monotonic(), self.seen.rows

    @property
    def lacks_classes(self) -> bool:
        """Whether all rows so far have one label, and the loss tells labels apart from another."""
        return self.loss.joint and self.seen.labels == 1

    def make_model(self) -> Model:
        """Make the model of the rows that are learned."""
        assert self.learner is not None
        facts = {
            "rounds": [self.settings.rounds],
            "converged": False,
            "passes": 1,
            "updates": self.totals.updates,
            "rows": self.learner.n_rows,
            "sources": sources_at(self.position),
            "stream": {
                "blocks": self.n_blocks, "dual": self.learner.dual, **self.quality(),
            },
        }  # fmt: skip
        return assemble_model(
            self.arrivals.ids.keys[: self.seen.features],
            model_labels(self._problems[0], Seen(self.seen.rows, self._labels(self._needs))),
            self.settings, self._problems, self.learner.weights, facts,
        )  # fmt: skip

    def quality(self) -> dict[str, float | None]:
        """The progressive figures."""
        loss, accuracy = self.progressive.all.means()
        return {"loss": loss, "accuracy": None if self._task == "regression" else accuracy}

    def polish(self) -> None:
        """Solve once more for the rows that are kept."""
        assert self.learner is not None
        with self.seconds.measure("solve"):
            self.totals.add(self.learner.polish(POLISH_ROUNDS))

    def report(self, model: Model) -> dict[str, Any]:
        """Return the figures of the stream so far; see `sbm.stream`."""
        assert self.learner is not None
        sources = self.arrivals.sources
        return {
            "rows": self.learner.n_rows,
            "blocks": self.n_blocks,
            "features": self.seen.features,
            "labels": model.labels,
            **self.quality(),
            "dual": self.learner.dual,
            "visits": self.totals.visits,
            "updates": self.totals.updates,
            "visits_cut_short": self.totals.starved,
            "text_bytes": sum(max(0, source.text) for source in sources),
            "skipped": sum(source.skipped for source in sources),
            "problems": [problem for source in sources for problem in source.problems],
            "open": [source.shown for source in sources if source.is_open],
            "stopped": self.is_cut_short,
            "pending": sum(len(rows["y"]) for rows in self.pending),
            "seconds": {
                "total": clock() - self.begin, "load": self.seconds.load,
                "wait": self.seconds.wait, "predict": self._predict_seconds,
                "learn": self.seconds.solve, "write": self.seconds.write,
                "compile": compile_seconds() - self._compiled_before,
            },
            "peak_rss_bytes": peak_bytes(),
            "model": str(self.path),
        }  # fmt: skip


def rows_in_front(n: int) -> str:
    """Say how many rows came before what was refused."""
    return "the row in front of it is" if n == 1 else f"the {n:,} rows in front of it are"


def _is_of_student(name: str) -> bool:
    return name != "ids" and not name.startswith("pending-")


def _named(state: Mapping[str, npt.NDArray[Any]], prefix: str) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays whose names begin so, without that."""
    return {k.removeprefix(prefix): a for k, a in state.items() if k.startswith(prefix)}
