"""Passes over a block store: each block is loaded once for all learners.

The body of Algorithm 1 (Chang & Roth 2011), for one model or many. While the learners work on a
block, the next one is read, decoded and screened. A block is merged with the cache of each learner,
solved, and selected from; the alphas of the rows that are not cached go back to disk.

Screening skips rows that were at rest at the W of the previous step. F increases with every visit
and is bounded, so the steps go to 0 and the two W converge to the same limit, which satisfies the
optimality conditions for screened rows, too. Every `FULL_PASS`-th pass visits all rows, as
Theorem 1 and its linear rate require.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from sbm.alphas import Alphas, Dense, Lists, cut, join, no_alphas
from sbm.distributed.comm import Comm, SerialComm
from sbm.engine.learners import (
    BlockAlphas,
    Group,
    HeldOut,
    Learner,
    NextBlock,
    Pass,
    Seconds,
    Visit,
)
from sbm.engine.machine import resident_bytes
from sbm.engine.memory import MemoryPlan
from sbm.engine.pace import choose_cache_rows
from sbm.engine.prefetch import Prefetched
from sbm.engine.progress import Progress
from sbm.engine.reader import BlockReader, RowWeights
from sbm.engine.sync import Combiner
from sbm.plain import dataclass
from sbm.rows import SPARE, Rows
from sbm.solver.block import Block
from sbm.solver.cache import Evicted, WorkingSet
from sbm.solver.problem import AnyProblem
from sbm.solver.proximal import Proximal
from sbm.solver.step import Solver, Step, Totals
from sbm.solver.variables import DenseSet, ListPool
from sbm.solver.whole import WholeSet
from sbm.store.blocks import BlockStore
from sbm.store.run import Run

__all__ = ["FULL_PASS", "Engine", "Pauses", "VisitOptions"]

Result = TypeVar("Result")

# Every 8th pass visits all rows: Theorem 1 requires each alpha to be visited in bounded time.
FULL_PASS = 8
_TOTALS = (float, float, int, int, int, int, int, int)  # types of the fields of Totals


@dataclass(frozen=True)
class Pauses:
    """Callbacks between two steps.

    Attributes
    ----------
    is_late : callable
        Called after each step; returns whether to stop.
    after_step : callable
        Called after each step but the last of a pass; it may take a snapshot.
    after_look : callable
        Called after each block of a read at fixed weights.
    """

    is_late: Callable[[], bool] = lambda: False
    after_step: Callable[[], None] = lambda: None
    after_look: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class VisitOptions:
    """How rows are visited, as the settings say.

    Attributes
    ----------
    threads : int
    seed : int
        Of the order of blocks and rows.
    policy : str
        A key of `sbm.solver.cache.POLICIES`.
    screens : bool
        Whether rows at rest are skipped.
    adapts_cache : bool
        Whether the cache gets smaller when few rows are free.
    max_passes : int
    """

    threads: int
    seed: int
    policy: str
    screens: bool
    adapts_cache: bool
    max_passes: int


class Engine:
    """Runs passes of one or more learners over the blocks of a store.

    Parameters
    ----------
    store : BlockStore
    options : VisitOptions
    problems : sequence of Problem, MultiProblem or OneClass
        One per learner.
    plan : MemoryPlan
    run : Run
        Stores the alphas of each learner: part j of learner k under ``k * n_parts + j``.
    progress : Progress
    held_out : HeldOut, optional
        Default: every learner sees all rows.
    weights : RowWeights, optional
        Row weights. Default: 1.
    read_rate : float, optional
        Maximum bytes read per second.
    comm : Comm, optional
        Connects the ranks that train one model, each on its own blocks. Default: a single rank.
    own : sequence of int, optional
        The parts of this rank. Default: all.
    pauses : Pauses, optional
    staying : sequence of int, optional
        The parts that stay decoded in memory. Default: as many as fit.

    Attributes
    ----------
    staying : list of int
    learners : list of Learner
    seconds : Seconds
    reader : BlockReader
    now : Pass or None
        The current pass; after `restore`, the pass to resume.
    last_block : list of int
        The parts of the last visited block; empty before the first one.
    coming : NextBlock or None
        The block that is read ahead.
    marks : dict of int to ndarray, shape (n_rows,), bool
        From a snapshot, by learner: the rows to visit in the first block that is read.
    marked : list of int or None
        The parts of that block.
    evicted : dict of int to Evicted
        By learner: rows of other blocks that left the cache in the last step.
    last_pass : int
        No blocks of later passes are read ahead.
    """

    def __init__(
        self,
        store: BlockStore,
        options: VisitOptions,
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
        staying: Sequence[int] | None = None,
    ) -> None:
        self.store, self._options, self.plan = store, options, plan
        self.progress, self.run = progress, run
        self._folds = held_out.folds if held_out else None
        self.pauses = pauses or Pauses()
        self.comm = comm or SerialComm()
        self.own = list(range(len(plan.parts)) if own is None else own)
        self.seconds = Seconds()
        n = len(problems)
        # The alphas of a single part stay in memory, like its rows.
        self._holds = plan.is_whole and self.comm.size == 1 and not problems[0].listed
        self.staying = plan.staying(self.own) if staying is None else list(staying)
        is_whole = len(self.staying) == len(self.own)  # nothing is read again
        self._cache_nnz = plan.cache_nnz // n
        self._y_dtype, self._weighted = y_dtype(problems[0], store), weights is not None
        self.reader = BlockReader(
            store, plan, self.staying, is_whole, self._y_dtype, options.threads,
            caches=n * (self._cache_nnz + SPARE), rate=read_rate, weights=weights,
        )  # fmt: skip
        self._pool = self.reader.pool
        self.team = ThreadPoolExecutor(options.threads, "sbm-solve")
        without = held_out.by_learner if held_out else [None] * n
        self.learners = [
            Learner(k, self._solver(k, n, problem), without[k])
            for k, problem in enumerate(problems)
        ]
        self._blocks: Generator[Prefetched[Sequence[int], NextBlock, Rows]] | None = None
        self.evicted: dict[int, Evicted] = {}
        self.last_block = list[int]()
        self.now: Pass | None = None
        self._keeping: list[Future[dict[int, int]]] = []
        self.coming: NextBlock | None = None
        self.marks: dict[int, npt.NDArray[np.bool_]] = {}
        self.marked: list[int] | None = None
        self.last_pass = options.max_passes
        self._alphas = [self._alpha_room(problems) for _ in range(2)]
        self._fold_room = np.empty((2, plan.block_rows if held_out else 0), np.uint8)

    def _alpha_room(self, problems: Sequence[AnyProblem]) -> list[Alphas]:
        """Return room for the alphas of a block; that of the learners themselves if they stay."""
        if not self._holds:
            return [no_alphas(self.plan.block_rows, problem.listed) for problem in problems]
        working = [learner.solver.working for learner in self.learners]
        return [one.every for one in working if isinstance(one, WholeSet)]

    def _solver(self, k: int, n: int, problem: AnyProblem) -> Solver:
        """Create the solver of the k-th of n problems."""
        plan = self.plan
        rows = plan.cache_rows // n
        if self._holds:
            arena = self.reader.arena
            whole = WholeSet(arena, plan.block_rows, self._y_dtype, self._weighted)
            return self._solver_of(k, n, problem, whole)
        alpha: DenseSet | ListPool = DenseSet(plan.block_rows + rows)
        if problem.listed:
            variables = min(plan.row_variables, problem.n_outputs)
            alpha = ListPool(
                plan.block_rows, rows, variables, plan.rows_of_parts, problem.n_outputs
            )
        arena, decoded = self.reader.arena, self.reader.decoded
        base = decoded + k * (self._cache_nnz + SPARE)
        working = WorkingSet(
            arena, alpha, rows, self._cache_nnz, self._y_dtype, base, self._weighted, decoded,
            self.comm.size > 1,
        )  # fmt: skip
        return self._solver_of(k, n, problem, working)

    def _solver_of(self, k: int, n: int, problem: AnyProblem, working: WorkingSet) -> Solver:
        options = self._options
        W = np.zeros((self.store.n_features + (problem.bias > 0), problem.n_outputs))
        solver = Solver(
            problem, W, working, rounds=1, policy=options.policy, seed=options.seed + k,
            spread=self.team.map if n == 1 else map, is_lean=self.plan.is_lean,
            searches=self._holds,
        )  # fmt: skip
        if self.comm.size > 1:
            solver.together = Combiner(self.comm, problem, W)
        return solver

    def use_units(self, units: npt.NDArray[np.float64]) -> None:
        """Give all learners a proximal term with these units, before the first pass.

        Parameters
        ----------
        units : ndarray, shape (n_weights, 1), float64
            See `sbm.solver.proximal`.
        """
        self.reader.units = units[:, 0]
        for learner in self.learners:
            solver = learner.solver
            solver.proximal = Proximal(units, solver.W)

    def use_lines(self) -> None:
        """Let all learners move along a line between passes, unless they were restored with it."""
        for learner in self.learners:
            learner.solver.use_line()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Run the threads inside this context; at the end, stop reading and shut them down."""
        with self._pool, self.team:
            try:
                yield
            finally:
                self.stop_reading()
                self.reader.leave_units()  # rows in memory may be used again
                # The callbacks refer to this engine: without this, the cycle would keep all
                # arrays until the next garbage collection, which may be late in a large program.
                self.pauses = Pauses()

    def for_each(
        self, groups: Sequence[Group], work: Callable[[Group], Result]
    ) -> Iterator[Result]:
        """Call ``work`` for each group, in parallel; results do not depend on the threads."""
        is_parallel = len(groups) > 1 and self.comm.size == 1  # only one thread may call MPI
        return self.team.map(work, groups) if is_parallel else map(work, groups)

    def begin_pass(self, number: int, only: Sequence[int] | None = None) -> Pass:
        """Begin outer iteration t of Algorithm 1 for all active learners.

        Parameters
        ----------
        number : int
            Number of the pass, from 1.
        only : sequence of int, optional
            The parts to visit. Default: all.
        """
        if only is not None:
            self.stop_reading()
        if only is None:
            order = self._order_of(number, self.last_block)
        else:
            order = self.plan.blocks(self.shuffled(number, only))
        totals = {learner.number: Totals() for learner in self.active}
        self.now = Pass(number, order, only is not None, totals=totals)
        return self.now

    def visits(self, now: Pass, what: str = "pass") -> Iterator[Visit]:
        """Yield the blocks of a pass, for inner iterations of Algorithm 1.

        Each was read, decoded and screened during the visit before. Before the next one is
        requested, `Visit.steps` must have the step of each active learner. At the end, `now` has
        totals and free rows of all blocks.

        Parameters
        ----------
        now : Pass
            As `begin_pass` returned it, or the one that was interrupted.
        what : str
            Label for progress, shown before the number of the pass.
        """
        self.progress.start(f"{what} {now.number}", len(now.order), "blocks")
        for learner in self.active:
            learner.solver.begin_pass()
        # All ranks make as many steps as the one with the most blocks.
        n_steps = int(self.comm.gather([len(now.order)]).max())
        while now.steps < n_steps:
            if now.done < len(now.order):
                visit = self._load(now)
                with self.seconds.measure("solve"):
                    yield visit
                self._store(now, visit)
            else:
                self._visit_cached(now)
            now.steps += 1
            if self.pauses.is_late():
                break
            if now.steps < n_steps:
                self.pauses.after_step()
        self.progress.finish()
        if now.is_part or self._following(now.number, now.order) is None:
            self.stop_reading()
        self.settle()
        self.now = None
        for learner in self.active:
            learner.solver.working.grow_older()
        free = Counter({learner.number: learner.solver.count_free() for learner in self.active})
        free.update(now.free)
        now.free = free
        for learner in self.active:
            now.totals[learner.number].gap += learner.solver.end_pass()
        now.totals = {k: self._of_all(mine) for k, mine in now.totals.items()}

    def set_pace(self, rounds: int, free: Mapping[int, int], stop: float = 0.0) -> None:
        """Set the rounds of the next pass and, with ``cache_frac="auto"``, the cache sizes.

        Parameters
        ----------
        rounds : int
        free : mapping of int to int
            By learner number: rows that had an alpha inside its bounds in the last pass. Learners
            without an entry are treated as in the first pass.
        stop : float
            If one part has all rows, its rounds end at this relative gap.
        """
        plan, capacity = self.plan, self.plan.cache_rows // len(self.learners)
        for learner in self.learners:
            learner.solver.rounds = rounds
            learner.solver.stop = stop if plan.is_whole else 0.0
            if self._options.adapts_cache:
                learner.solver.working.cache_rows = choose_cache_rows(
                    free.get(learner.number), plan.block_rows, capacity
                )

    def _load(self, now: Pass) -> Visit:
        """Return the next block of a pass."""
        if self._blocks is None:
            self.evicted = {}
            order = self._order(now)
            self._blocks = self.reader.read(
                order, self._prepare, self.load_alpha, self.look, in_units=True
            )
        loaded = next(self._blocks)
        self.seconds.disk = self.reader.disk_seconds
        self.seconds.load += loaded.load_seconds
        self.seconds.wait += loaded.wait_seconds
        coming, is_full = loaded.coming, now.number % FULL_PASS == 0 or not self.screens
        if self.coming is coming:  # nothing is read ahead
            self.coming = None
        parts, is_whole = (coming.block, loaded.result, coming.folds), self.plan.is_whole
        return Visit(*parts, coming.own, self.evicted, is_full, is_whole)

    def _store(self, now: Pass, visit: Visit) -> None:
        """Write the alphas of a block to the run while the next block is solved."""
        self._keeping.append(self._pool.submit(self._keep, visit.block, visit.steps))
        for k, step in visit.steps.items():
            now.totals[k].add(step.totals)
            self.evicted[k] = step.evicted
        self.last_block = list(visit.block.parts)
        now.done += 1
        solved = sum(self.plan.parts[one].rows for some in now.order[: now.done] for one in some)
        self.progress.advance(now.done, rows=solved, memory=resident_bytes())

    def _visit_cached(self, now: Pass) -> None:
        """Make a step without a block, while other ranks have one."""
        self.settle()
        for learner in self.active:
            k, solver = learner.number, learner.solver
            none = self.reader.arena.room(0, self._y_dtype, self._weighted)
            with self.seconds.measure("solve"):
                step = solver.step(self._block([]), none, no_alphas(0, solver.problem.listed))
            evicted = step.evicted
            self.run.add_evicted(evicted.home + self.home(k, 0), evicted.row, evicted.alpha)
            now.totals[k].add(step.totals)
            before = self.evicted.get(k)
            self.evicted[k] = evicted if before is None else before.and_also(evicted)

    def _of_all(self, mine: Totals) -> Totals:
        """Add up the totals of all ranks."""
        numbers = self.comm.gather(list(asdict(mine).values()))
        return Totals(*(kind(n) for kind, n in zip(_TOTALS, numbers.sum(axis=0), strict=True)))

    def settle(self) -> None:
        """Wait until the run holds the alphas of all visited blocks."""
        keeping, self._keeping = self._keeping, []
        for task in keeping:
            free = task.result()
            if self.now is not None:
                self.now.free.update(free)

    def _order(self, now: Pass) -> Iterator[list[int]]:
        """Yield the remaining blocks of a pass, then those of the following passes.

        Reading ends with a pass if the first block of the next one has rows of its last block:
        their alphas would be read before they are stored.
        """
        number, order = now.number, now.order
        yield from order[now.done :]
        while not now.is_part and number < self.last_pass:
            following = self._following(number, order)
            if following is None:
                return
            yield from following
            number, order = number + 1, following

    def _following(self, number: int, order: Sequence[Sequence[int]]) -> list[list[int]] | None:
        """Return the blocks of the pass after one with this number and order, if it is read on.

        Between two passes, a line moves alphas, so that none may be read before.
        """
        if not order or self.moves:
            return None
        following = self._order_of(number + 1, order[-1])
        return None if set(following[0]) & set(order[-1]) else following

    def _order_of(self, number: int, before: Sequence[int]) -> list[list[int]]:
        """Return the blocks of a pass, in random order.

        The first one has no parts of the block `before` it, if others are left.
        """
        order = self.shuffled(number, self.own)
        if not self.plan.draws and order[:1] == list(before):
            order = order[-1:] + order[:-1]
        return self.plan.blocks(order, before)

    def _block(self, parts: Sequence[int]) -> Block:
        return Block.of(parts, self.plan.rows_of_parts)

    def shuffled(self, number: int, parts: Sequence[int]) -> list[int]:
        """Return parts in a random order that depends on the seed and the pass number."""
        random = np.random.default_rng([self._options.seed, 3, number])
        return [parts[k] for k in random.permutation(len(parts))]

    def room(self, slot: int, k: int, n: int) -> npt.NDArray[np.float64]:
        """Return room for n alphas of the k-th learner, one of two, while no block is read."""
        return self._alphas[slot][k].values[:n]

    def home(self, k: int, part: int) -> int:
        """Return the number under which the run stores a part's alphas of the k-th learner."""
        return k * len(self.plan.parts) + part

    def _keep(self, block: Block, steps: dict[int, Step]) -> dict[int, int]:
        """Store the alphas that the steps returned; called in the loading thread.

        Returns the number of the block's rows inside their bounds, by learner.
        """
        free = {}
        for k, step in steps.items():
            evicted = step.evicted
            if self._holds and isinstance(step.alpha, Dense):
                free[k] = self.run.hold(self.home(k, block.parts[0]), step.alpha)
                continue
            free[k] = self.store_alpha(k, block, step.alpha)
            self.run.add_evicted(evicted.home + self.home(k, 0), evicted.row, evicted.alpha)
        return free

    def store_alpha(self, k: int, block: Block, alpha: Alphas) -> int:
        """Store the alphas of a block in the run; return how many are inside their bounds."""
        sizes = [rows for _, _, rows in block.slices()]
        pieces = [alpha] if len(sizes) == 1 else cut(alpha, sizes)
        return sum(
            self.run.store(self.home(k, part), mine)
            for part, mine in zip(block.parts, pieces, strict=True)
        )

    def stop_reading(self) -> None:
        """Discard the block that is read ahead, because its weights or buffer are outdated."""
        if self._blocks is not None:
            self._blocks.close()
            self._blocks = self.coming = None
        self.marks, self.marked = {}, None

    @property
    def whole_work(self) -> int | None:
        """Nonzeros times outputs of the largest part, if each rank has only one; otherwise None."""
        if not self.plan.is_whole:
            return None
        outputs = sum(learner.solver.problem.n_outputs for learner in self.learners)
        return max(part.nnz for part in self.plan.parts) * outputs

    @property
    def active(self) -> list[Learner]:
        """Learners that take part in the following passes."""
        return [learner for learner in self.learners if learner.is_active]

    @property
    def moves(self) -> bool:
        """Whether W moves on between passes; see `use_lines`."""
        return self.learners[0].solver.line is not None

    @property
    def screens(self) -> bool:
        """Whether rows at rest are skipped."""
        return self._options.screens and self.learners[0].solver.problem.loss.rests

    def _prepare(self, parts: Sequence[int], slot: int) -> NextBlock:
        """Prepare the next block: save the current weights and cache for its screening."""
        self.coming = coming = self.prepare_alpha(parts, slot)
        if not self.screens or self.plan.is_lean:  # then `Visit.solve` screens the block
            return coming
        is_restored = self.marked == list(parts)
        marks, self.marks, self.marked = self.marks, {}, None
        for k, own in coming.own.items():
            solver = self.learners[k].solver
            if is_restored:
                coming.own[k] = BlockAlphas(own.alpha, marks=marks.get(k))
            elif solver.pays_screening:
                coming.own[k] = BlockAlphas(own.alpha, solver.look_ahead(coming.block))
        return coming

    def prepare_alpha(self, parts: Sequence[int], slot: int) -> NextBlock:
        """Return buffers for the folds and alphas of a block that is about to be read."""
        block = self._block(parts)
        folds = self._fold_room[slot, : len(block)] if self._folds is not None else None
        own = {
            learner.number: BlockAlphas(self._alphas[slot][learner.number].part(0, len(block)))
            for learner in self.active
        }
        return NextBlock(block, folds, own)

    def load_alpha(self, parts: Sequence[int], coming: NextBlock) -> None:
        """Read the alphas of a block from the run."""
        for k, own in coming.own.items():
            if isinstance(own.alpha, Dense) or len(parts) == 1:
                for part, first, rows in coming.block.slices():
                    into = own.alpha if len(parts) == 1 else own.alpha.part(first, rows)
                    self.run.load(self.home(k, part), into)
                continue
            every = join([self.run.load(self.home(k, part)) for part in parts])
            assert isinstance(every, Lists)
            own.alpha.set(every.offsets, every.outputs, every.values)

    def look(self, coming: NextBlock, first: int, rows: Rows) -> None:
        """Assign folds to some rows of the next block and screen them, when they are decoded."""
        if self._folds is not None and coming.folds is not None:
            theirs = coming.folds[first : first + len(rows)]
            k = int(np.searchsorted(coming.block.firsts, first, side="right")) - 1
            begin = first - int(coming.block.firsts[k])
            self._folds.assign(coming.block.parts[k], begin, rows, theirs)
        for own in coming.own.values():
            if own.screen is not None:
                own.screen.add(first, rows, own.alpha.part(first, len(rows)))


def y_dtype(problem: AnyProblem, store: BlockStore) -> str:
    """Return the dtype of y: int32 for class codes, float64 for targets."""
    if problem.classify or (store.labels is not None and problem.loss.name == "one_class"):
        return "int32"
    return "float64"
