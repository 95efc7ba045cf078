"""Passes over a block store: every block is loaded once, for all that learn from it.

The body of Algorithm 1 (Chang & Roth 2011), for one model or many: while the learners work on a
block, the next one is read, decoded and screened; a block is merged with the cache of each learner,
solved and selected from, and the other alphas go back to disk.

Screening leaves out rows that were at rest at the W of one step ago. F rises with every visit and
is bounded, so steps go to 0 and the two W become one: whatever the iterates approach satisfies the
optimality conditions, screened rows included. Every `FULL_PASS`-th pass visits all rows, which
keeps Theorem 1 and its linear rate to the letter.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from sbm.alphas import Alphas, no_alphas
from sbm.distributed.comm import Comm, SerialComm
from sbm.engine.learners import Coming, Group, HeldOut, Learner, Own, Pass, Seconds, Visit
from sbm.engine.machine import resident_bytes, usable_threads
from sbm.engine.memory import MemoryPlan
from sbm.engine.pace import choose_cache_rows
from sbm.engine.prefetch import Loaded, loading_thread
from sbm.engine.progress import Progress
from sbm.engine.reader import BlockReader, RowWeights
from sbm.engine.sync import Combiner, agree_on_unit
from sbm.rows import SPARE, Arena, Rows
from sbm.settings import Settings
from sbm.solver.cache import Evicted, WorkingSet
from sbm.solver.gap import Certificate, Certifier
from sbm.solver.problem import AnyProblem, OneClass, squared_norm
from sbm.solver.step import Solver, Step, Totals
from sbm.solver.variables import DenseSet, ListPool
from sbm.store.blocks import BlockStore
from sbm.store.run import Run

__all__ = ["FULL_PASS", "Engine", "Pauses"]

Result = TypeVar("Result")
Weights: TypeAlias = npt.NDArray[np.float64]

# Every so many passes all rows are visited: Theorem 1 asks for every alpha once in a bounded time.
FULL_PASS = 8
_TOTALS = (float, float, int, int, int, int, int, int)  # types of what Totals are made of


def _never() -> bool:
    return False


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Pauses:
    """What is asked and called between two steps.

    Attributes
    ----------
    is_late : callable
        Tells after each stretch whether to stop.
    after_stretch : callable
        Is called after each stretch but the last of a pass; `Engine.place` and `Engine.state` then
        hold what there is to go on from.
    after_look : callable
        Is called after each block that is looked at while weights and alphas stay as they are.
    """

    is_late: Callable[[], bool] = _never
    after_stretch: Callable[[], None] = _nothing
    after_look: Callable[[], None] = _nothing


class Engine:
    """Learners, what they learn from, and the threads between.

    Parameters
    ----------
    store : BlockStore
    settings : Settings
    problems : sequence of Problem, MultiProblem or OneClass
        Of each learner.
    plan : MemoryPlan
    run : Run
        Keeps the alphas of each learner: block j of learner k at home ``k * n_blocks + j``.
    progress : Progress
    held_out : HeldOut, optional
        Default: every learner sees all rows.
    weights : RowWeights, optional
    read_rate : float, optional
        Most bytes a second that are read.
    comm : Comm, optional
        Of several processes that train one model, each on blocks of its own. Default: alone.
    own : sequence of int, optional
        The blocks of this process. Default: all.
    pauses : Pauses, optional

    Attributes
    ----------
    learners : list of Learner
    seconds : Seconds
    reader : BlockReader
    now : Pass or None
        The pass at work, also one to go on with.
    disk_before : float
        Seconds of waiting for the disk in the processes before this one.
    last_pass : int
        Nothing is read ahead of a pass behind this one.
    """

    def __init__(
        self,
        store: BlockStore,
        settings: Settings,
        problems: Sequence[AnyProblem],
        plan: MemoryPlan,
        run: Run,
        progress: Progress,
        *,
        held_out: HeldOut | None = None,
        weights: RowWeights | None = None,
        read_rate: float | None = None,
        comm: Comm | None = None,
        own: Sequence[int] | None = None,
        pauses: Pauses | None = None,
    ) -> None:
        self.store, self.settings, self.plan = store, settings, plan
        self.progress, self._run = progress, run
        self._folds = held_out.folds if held_out else None
        self._pauses = pauses or Pauses()
        self._comm = comm or SerialComm()
        self.own = list(range(len(plan.parts)) if own is None else own)
        self.seconds = Seconds()
        n = len(problems)
        self._cache_nnz = plan.cache_nnz // n
        caches = n * (self._cache_nnz + SPARE)
        self._arena = Arena.of(caches + 2 * plan.part_nnz + SPARE, store.value_type)
        self._y_dtype = y_dtype(problems[0], store)
        self._weighted = weights is not None
        threads = usable_threads(settings.threads)
        self.team = ThreadPoolExecutor(threads, "sbm-solve")
        without = held_out.by_learner if held_out else [None] * n
        self.learners = [
            Learner(k, self._solver(k, n, problem), without[k])
            for k, problem in enumerate(problems)
        ]
        self._blocks_a_stretch, self._most_stretches = self._stretches()
        self._combiners = self._make_combiners()
        self._pool = loading_thread(threads)
        decoders = plan.decoders(threads, settings.mem_bytes)
        self.reader = BlockReader(
            store, plan, self._arena, caches, self._pool, decoders, read_rate, self._y_dtype,
            weights,
        )  # fmt: skip
        self._blocks: Generator[Loaded[int, Coming, Rows]] | None = None
        self._evicted: dict[int, Evicted] = {}
        self._last_block = -1
        self.now: Pass | None = None
        self.disk_before = 0.0
        self._keeping: list[Future[dict[int, int]]] = []
        self._coming: Coming | None = None  # the block that is read last
        self._marks: dict[int, npt.NDArray[np.bool_]] = {}  # of the first block to be read
        self._marked: int | None = None  # which one that is
        self.last_pass = settings.max_passes
        self._alphas = [
            [no_alphas(plan.part_rows, p.listed) for p in problems] for _ in range(2)
        ]  # fmt: skip
        self._fold_room = np.empty((2, plan.part_rows if held_out else 0), np.uint8)

    def _stretches(self) -> tuple[int, int]:
        """Return the blocks of a stretch, and the stretches of a pass in the process with most."""
        size = 1 if self._comm.size == 1 else self.settings.sync_every
        return size, int(self._comm.gather([-(-len(self.own) // size)]).max())

    def _make_combiners(self) -> dict[int, Combiner]:
        """Make what adds up the steps of several processes, a learner each; alone there is none."""
        if self._comm.size == 1:
            return {}
        return {
            k: Combiner(self._comm, learner.solver, self.settings, self._run, self._home(k, 0))
            for k, learner in enumerate(self.learners)
        }

    def _solver(self, k: int, n: int, problem: AnyProblem) -> Solver:
        """Make the solver of the k-th of n problems."""
        plan, settings = self.plan, self.settings
        rows = plan.cache_rows // n
        alpha: DenseSet | ListPool = DenseSet(plan.part_rows + rows)
        if problem.listed:
            variables = min(plan.row_variables, problem.n_outputs)
            n_blocks = len(plan.parts)
            alpha = ListPool(plan.part_rows, rows, variables, n_blocks, problem.n_outputs)
        base = k * (self._cache_nnz + SPARE)
        working = WorkingSet(
            self._arena, alpha, rows, self._cache_nnz, self._y_dtype, base, self._weighted
        )
        W = np.zeros((self.store.n_features + (problem.bias > 0), problem.n_outputs))
        return Solver(
            problem, W, working, rounds=1, policy=settings.policy, seed=settings.seed + k,
        )  # fmt: skip

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Keep the threads; outside there are none."""
        with self._pool, self.team:
            try:
                yield
            finally:
                self._stop_reading()
                # Who is asked here knows this engine, too: both would keep their arrays until
                # garbage is looked for, and that takes long where a program holds much else.
                self._pauses = Pauses()

    def for_each(
        self, groups: Sequence[Group], work: Callable[[Group], Result]
    ) -> Iterator[Result]:
        """Call ``work`` for each group, several at the same time; no result depends on that."""
        return self.team.map(work, groups) if len(groups) > 1 else map(work, groups)

    # ------------------------------------------------------------------------------- passes

    def run_pass(
        self,
        number: int,
        groups: Sequence[Group] | None = None,
        what: str = "pass",
        only: Sequence[int] | None = None,
    ) -> tuple[dict[int, Totals], dict[int, int]]:
        """Outer iteration t of Algorithm 1, for all active learners.

        Parameters
        ----------
        number : int
            Of the pass, from 1.
        groups : sequence of Group, optional
            All active learners; default: each alone.
        what : str
            For progress, before the number.
        only : sequence of int, optional
            The blocks to load, in their order. Default: all, in a random one.

        Returns
        -------
        totals : dict of int to Totals
            Of each learner.
        free : dict of int to int
            Rows with a variable inside its bounds, of each learner.
        """
        active = self._active
        groups = groups or [Group([learner]) for learner in active]
        if only is not None and self.now is None:
            self._stop_reading()
        now = self.now = self.now or self._begin(number, only)
        every_row = number % FULL_PASS == 0 or not self._screens
        self.progress.start(f"{what} {number}", len(now.order), "blocks")
        n_stretches = len(now.order) if self._comm.size == 1 else self._most_stretches
        while now.stretches < n_stretches:
            with self._stretch(now):
                for _ in range(min(self._blocks_a_stretch, len(now.order) - now.done)):
                    self._visit_next(now, groups, every_row)
            if self._pauses.is_late():
                break
            if now.stretches < n_stretches:
                self._pauses.after_stretch()
        self.progress.finish()
        if len(self.own) <= 1 or now.is_part:
            self._stop_reading()
        self._settle()
        self.now = None
        for learner in active:
            learner.solver.working.grow_older()
        free = Counter({learner.number: learner.solver.count_free() for learner in active})
        free.update(now.free)
        return {k: self._of_all(mine) for k, mine in now.totals.items()}, free

    def agree_on_unit(self) -> None:
        """Let several processes have the same unit of the offset of one class."""
        for learner in self.learners if self._comm.size > 1 else ():
            problem = learner.solver.problem
            if isinstance(problem, OneClass) and problem.unit == 0.0:
                first = next(self.visit_all("measure"), None)
                agree_on_unit(self._comm, problem, None if first is None else first.rows)

    def set_pace(self, rounds: int, free: Mapping[int, int]) -> None:
        """Set the rounds of the next pass, and the size of its caches where the setting is auto.

        Parameters
        ----------
        rounds : int
        free : mapping of int to int
            Rows that had an alpha inside its bounds in the last pass, by number of the learner;
            where one is missing it is not known.
        """
        plan, capacity = self.plan, self.plan.cache_rows // len(self.learners)
        for learner in self.learners:
            learner.solver.rounds = rounds
            if self.settings.cache_frac == "auto":
                learner.solver.working.cache_rows = choose_cache_rows(
                    free.get(learner.number), plan.part_rows, capacity
                )

    def _visit_next(self, now: Pass, groups: Sequence[Group], every_row: bool) -> None:
        """Inner iteration of Algorithm 1: load, merge, solve, select, keep."""
        # Load: the block was read, decoded and screened during the step before.
        if self._blocks is None:
            self._evicted = {}
            order = self._order(now)
            self._blocks = self.reader.read(order, self._prepare, self._load_alpha, self._look)
        loaded = next(self._blocks)
        self.seconds.disk = self.disk_before + self.reader.disk_seconds
        self.seconds.load += loaded.load_seconds
        self.seconds.wait += loaded.wait_seconds
        coming, rows = loaded.coming, loaded.result
        block, folds = coming.block, coming.folds
        if self._coming is coming:  # nothing is read ahead
            self._coming = None

        def work(group: Group) -> dict[int, Step]:
            group.be_judged(rows, folds)
            found = {}
            for learner in group.learners:
                begin, k = time.perf_counter(), learner.number
                alpha = coming.own[k].alpha
                moving = coming.own[k].moving(block, self._evicted.get(k))
                if k in self._combiners:
                    self._combiners[k].visit(block, alpha)
                if every_row:
                    moving = None
                mine = learner.its_own(folds)
                if mine is not None:
                    moving = mine if moving is None else moving & mine
                # Merge with the cache, solve, select what is cached next.
                found[k] = learner.solver.step(block, rows, alpha, moving)
                learner.seconds += time.perf_counter() - begin
            return found

        steps: dict[int, Step] = {}
        with self.seconds.measure("solve"):
            for found in self.for_each(groups, work):
                steps |= found
        # Keep: the alphas go back to the run while the next block is solved.
        self._keeping.append(self._pool.submit(self._keep, block, steps))
        for k, step in steps.items():
            now.totals[k].add(step.totals)
            self._evicted[k] = step.evicted
        self._last_block = block
        now.done += 1
        solved = sum(self.plan.parts[one].rows for one in now.order[: now.done])
        self.progress.advance(now.done, rows=solved, memory=resident_bytes())

    @contextmanager
    def _stretch(self, now: Pass) -> Iterator[None]:
        """Let the processes add up what they do inside; alone, do nothing."""
        active = [k for k in self._combiners if self.learners[k].is_active]
        first = now.done
        for k in active:
            self._combiners[k].begin()
        yield
        now.stretches += 1
        if not active:
            return
        self._settle()
        with self.seconds.measure("combine"):
            changed = {k: self._combiners[k].combine() for k in active}
        if now.done > first:  # without a step no row has left a cache
            self._evicted |= {k: evicted for k, evicted in changed.items() if evicted is not None}
        coming = self._coming
        if coming is not None and coming.block in now.order[first : now.done]:
            self._stop_reading()  # what it was read with has changed

    def _of_all(self, mine: Totals) -> Totals:
        """Add up the totals of all processes."""
        numbers = self._comm.gather(list(asdict(mine).values()))
        return Totals(*(kind(n) for kind, n in zip(_TOTALS, numbers.sum(axis=0), strict=True)))

    def _begin(self, number: int, only: Sequence[int] | None) -> Pass:
        """Begin a pass over all blocks, or over some."""
        order = self._order_of(number, self._last_block) if only is None else list(only)
        totals = {learner.number: Totals() for learner in self._active}
        return Pass(number, order, only is not None, totals=totals)

    def _settle(self) -> None:
        """Wait until the alphas of all blocks that are done are where they belong."""
        keeping, self._keeping = self._keeping, []
        for task in keeping:
            free = task.result()
            if self.now is not None:
                self.now.free.update(free)

    def _order(self, now: Pass) -> Iterator[int]:
        """Blocks that are left of a pass, and those of the passes behind it.

        With a single block, reading ends with the pass: its alphas would be read before they are
        kept.
        """
        yield from now.order[now.done :]
        if now.is_part or len(self.own) <= 1:
            return
        before = now.order[-1]
        for number in range(now.number + 1, self.last_pass + 1):
            order = self._order_of(number, before)
            before = order[-1]
            yield from order

    def _order_of(self, number: int, before: int) -> list[int]:
        """Return the blocks of a pass in an order of its own; `before` does not come first.

        A block that came twice in a row would be read before its alphas are kept.
        """
        order = self.shuffled(number, self.own)
        return order[-1:] + order[:-1] if order[:1] == [before] else order

    def shuffled(self, number: int, blocks: Sequence[int]) -> list[int]:
        """Return blocks in a random order, another one for each number of a pass."""
        random = np.random.default_rng([self.settings.seed, 3, number])
        return [blocks[k] for k in random.permutation(len(blocks))]

    def _home(self, k: int, block: int) -> int:
        """Where the run keeps the variables of the k-th learner in a block."""
        return k * len(self.plan.parts) + block

    def _keep(self, block: int, steps: dict[int, Step]) -> dict[int, int]:
        """Put the alphas that a step handed back where they belong, in the loading thread.

        Returns how many of the block's rows are inside their bounds, for each learner.
        """
        free = {}
        for k, step in steps.items():
            evicted = step.evicted
            free[k] = self._run.store(self._home(k, block), step.alpha)
            self._run.add_strays(evicted.home + self._home(k, 0), evicted.row, evicted.alpha)
        return free

    def _stop_reading(self) -> None:
        """Give up the block that is being read ahead; its weights or its buffer are outdated."""
        if self._blocks is not None:
            self._blocks.close()
            self._blocks = self._coming = None
        self._marks, self._marked = {}, None

    @property
    def _active(self) -> list[Learner]:
        return [learner for learner in self.learners if learner.is_active]

    @property
    def _screens(self) -> bool:
        return self.settings.screen and self.learners[0].solver.problem.loss.rests

    def _prepare(self, block: int, slot: int) -> Coming:
        """Note weights and cache as they are now, for the screening of the next block."""
        self._coming = coming = self._prepare_alpha(block, slot)
        if not self._screens:
            return coming
        marks, self._marks, self._marked = self._marks, {}, None
        for k, own in coming.own.items():
            if k in marks:
                coming.own[k] = Own(own.alpha, marks=marks[k])
                continue
            screen = self.learners[k].solver.look_ahead(block, len(own.alpha))
            coming.own[k] = Own(own.alpha, screen)
        return coming

    def _prepare_alpha(self, block: int, slot: int) -> Coming:
        rows = self.plan.parts[block].rows
        folds = self._fold_room[slot, :rows] if self._folds is not None else None
        own = {
            learner.number: Own(self._alphas[slot][learner.number].part(0, rows))
            for learner in self._active
        }
        return Coming(block, folds, own)

    def _load_alpha(self, block: int, coming: Coming) -> None:
        for k, own in coming.own.items():
            self._run.load(self._home(k, block), own.alpha)

    def _look(self, coming: Coming, first: int, rows: Rows) -> None:
        """Divide and screen a chunk of the next block, as soon as it is decoded."""
        if self._folds is not None and coming.folds is not None:
            theirs = coming.folds[first : first + len(rows)]
            self._folds.assign(coming.block, first, rows, theirs)
        for own in coming.own.values():
            if own.screen is not None:
                own.screen.add(first, rows, own.alpha.part(first, len(rows)))

    # ------------------------------------------------------------------------------- commits

    def place(self) -> dict[str, Any]:
        """Where the engine is between two steps, as JSON; with `state` all there is to keep.

        Call it first: it waits until nothing is under way.

        Raises
        ------
        Exception
            The block that is read ahead cannot be read: which of its rows are to be visited is not
            known, and whoever went on without that would come to other bytes.
        """
        self._settle()
        coming = self._coming
        if coming is not None and self.reader.failure is not None:
            raise self.reader.failure
        return {
            "last_block": self._last_block,
            "pass": None if self.now is None else self.now.record(),
            "coming": self._marked if coming is None else coming.block,
            "adding": {k: one.adding.record() for k, one in self._combiners.items()},
        }

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """What learners hold, and which rows of the block that is read ahead are to be visited.

        That block was screened with weights that are gone.
        """
        arrays: dict[str, npt.NDArray[np.generic]] = {}
        for learner in self.learners:
            mine = learner.solver.state()
            arrays |= {_named(name, learner.number): array for name, array in mine.items()}
        found: dict[int, npt.NDArray[np.bool_] | None] = {**self._marks}
        if self._coming is not None:  # else nothing was read since the last commit
            found = {
                k: own.moving(self._coming.block, self._evicted.get(k))
                for k, own in self._coming.own.items()
            }
        for k, moving in found.items():
            if moving is not None:
                arrays[_named("moving", k)] = np.packbits(moving)
        return arrays

    def restore(self, place: Mapping[str, Any], run: Run, with_rows: bool = True) -> None:
        """Go on where `place` and the state of a run's last commit say.

        Parameters
        ----------
        place : mapping
        run : Run
        with_rows : bool
            Whether rows of the caches are read, too; without them there is no step.

        Raises
        ------
        KeyError, ValueError, TypeError
            They do not belong to this training.
        """
        self._last_block = int(place["last_block"])
        self.now = Pass.of(place["pass"]) if place["pass"] is not None else None
        names, marks = run.state_names(), {}
        for learner in self.learners:
            k, solver = learner.number, learner.solver
            mine = {_bare(name): name for name in names if _number(name) == k}
            own_W = mine.pop("W")  # by itself: there is room for one copy more
            solver.W[:] = run.read_state([own_W])[own_W]
            found = run.read_state(list(mine.values()))
            state = {name: found[mine[name]] for name in mine}
            solver.restore(state)
            solver.working.restore(state)
            if "moving" in state:
                rows = self.plan.parts[int(place["coming"])].rows
                marks[k] = np.unpackbits(state["moving"], count=rows).view(np.bool_)
        for k, combiner in self._combiners.items():
            combiner.adding.restore(place["adding"][str(k)])
        if with_rows:
            self._refill()
        # Not before: reading everything forgets them.
        self._marks, self._marked = marks, place["coming"]

    def _refill(self) -> None:
        """Read the rows of the caches."""
        missing = sum(learner.solver.working.n_cached for learner in self.learners)
        if not missing:
            return
        for visit in self.visit_all("read the cache"):
            for learner in self.learners:
                missing -= learner.solver.working.refill(visit.block, visit.rows)
        if missing:
            raise ValueError("cached rows that the store has not")

    # ------------------------------------------------------------------- everything at fixed W

    def visit_all(self, what: str) -> Iterator[Visit]:
        """Yield every block with the alphas of the active learners, cached ones included."""
        self._stop_reading()
        self.progress.start(what, len(self.own), "blocks")
        blocks = self.reader.read(self.own, self._prepare_alpha, self._load_alpha, self._look)
        for done, loaded in enumerate(blocks, 1):
            visit = loaded.coming.visit(loaded.result)
            for k, mine in visit.alpha.items():
                self.learners[k].solver.working.alphas_of(visit.block, mine)
            yield visit
            self.progress.advance(done)
            self._pauses.after_look()
        self.progress.finish()

    def certify(
        self,
        groups: Sequence[Group] | None = None,
        change: Callable[[Visit, Learner], None] = lambda visit, learner: None,
    ) -> dict[int, tuple[Certificate, Weights]]:
        """Evaluate primal and dual of the active learners at fixed W and alphas.

        Held-out rows are shown to the judges meanwhile.

        Parameters
        ----------
        groups : sequence of Group, optional
            All active learners; default: each alone.
        change : callable
            Is called first for each learner and block, and may change the alphas.

        Returns
        -------
        dict of int to (Certificate, ndarray)
            The arrays are the weights that belong to the alphas, to go on training with.
        """
        active = self._active
        groups = groups or [Group([learner]) for learner in active]
        with self.seconds.measure("certify"):
            certifiers = {
                learner.number: Certifier(
                    learner.solver.problem, learner.solver.W, learner.solver.W_seen
                )
                for learner in active
            }
            for visit in self.visit_all("certify"):

                def add(group: Group, visit: Visit = visit) -> None:
                    group.be_judged(visit.rows, visit.folds)
                    for learner in group.learners:
                        change(visit, learner)
                        rows, alpha = visit.rows, visit.alpha[learner.number]
                        mine = learner.its_own(visit.folds)
                        if mine is not None:
                            places = np.flatnonzero(mine)
                            rows, alpha = rows.take(places), alpha.take(places)
                        certifiers[learner.number].add(rows, alpha)

                list(self.for_each(groups, add))
            for certifier in certifiers.values():
                self._add_up(certifier)
            return {k: (c.finish(), c.W_alpha) for k, c in certifiers.items()}

    def _add_up(self, certifier: Certifier) -> None:
        """Let a certificate be of the blocks of all processes."""
        theirs = self._comm.share([one.tolist() for one in certifier.sums])
        certifier.sums = [np.array(one) for one in itertools.chain(*theirs)]
        for array in certifier.arrays:
            self._comm.add_up(array)

    def replace_weights(self, found: dict[int, tuple[Certificate, Weights]]) -> None:
        """Go on with the weights that `certify` rebuilt from the alphas; that cancels drift."""
        for k, (certificate, W_alpha) in found.items():
            solver = self.learners[k].solver
            solver.W[:] = W_alpha
            solver.dual_sum = certificate.dual + 0.5 * squared_norm(W_alpha)

    def fork(self, source: Learner, target: Learner, factor: float) -> None:
        """Let a learner start where another one is, between two passes.

        With a cost that is `factor` times as large, variables that are as many times as large are
        inside their bounds, and Σ d_i is as many times as large: so it is for every loss. Less than
        all of that way is gone where the dual is known to be higher there.
        """
        self._stop_reading()
        share = ray(source.solver.dual_sum, source.solver.W, factor)
        for block, part in enumerate(self.plan.parts):
            alpha = self._run.load(self._home(source.number, block))
            source.solver.working.alphas_of(block, alpha)
            target.solver.working.alpha.admit(block, alpha)
            self._run.store(self._home(target.number, block), alpha.times(share * factor))
            assert len(alpha) == part.rows
        np.multiply(source.solver.W, share * factor, out=target.solver.W)
        target.solver.dual_sum = share * factor * source.solver.dual_sum

    def keep(self, block: int, learner: Learner, alpha: Alphas) -> None:
        """Let the run hold these alphas of a block; none of its rows may be cached."""
        self._run.store(self._home(learner.number, block), alpha)


def y_dtype(problem: AnyProblem, store: BlockStore) -> str:
    """Type of what is learned: class codes, or real-valued targets."""
    if problem.classify or (store.labels is not None and problem.loss.name == "one_class"):
        return "int32"
    return "float64"


def _named(name: str, k: int) -> str:
    """Name of an array of the k-th learner in a state."""
    return name if k == 0 else f"{name}-{k}"


def _bare(name: str) -> str:
    """Undo `_named`."""
    return name.partition("-")[0]


def _number(name: str) -> int:
    """Return the number of the learner that an array of a state is of."""
    return int(name.partition("-")[2] or 0)


def ray(dual_sum: float, W: Weights, factor: float) -> float:
    """Return the best share of the way to alphas that are multiplied by a factor.

    F(θα) >= θ Σ d_i(α_i) - ½ θ² |W|², as d is concave and 0 at 0; this is largest at the share.

    Parameters
    ----------
    dual_sum : float
        Σ d_i at the alphas as they are.
    W : ndarray
        Weights that belong to them.
    factor : float
    """
    size = factor * squared_norm(W)
    return min(1.0, max(0.0, dual_sum / size)) if size > 0 and factor != 1 else 1.0
