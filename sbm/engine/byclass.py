"""Passes over rows for the joint losses of thousands of classes; see `sbm.solver.byclass`.

Every process reads all rows and keeps the lists of their classes: in memory if all rows are one
part, in the run otherwise. The weights of classes are divided among the processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from sbm.alphas import Lists, cut, join, no_alphas
from sbm.compiled.calls import load
from sbm.distributed.comm import Comm
from sbm.engine.learners import Seconds
from sbm.engine.memory import SLACK, Budget, MemoryPlan, Shape, plan_training
from sbm.engine.progress import Progress
from sbm.engine.reader import BlockReader, RowWeights
from sbm.errors import MemoryPlanError
from sbm.models.weights import WindowedWeights, by_feature, window_bytes
from sbm.plain import dataclass
from sbm.rows import Rows
from sbm.solver.byclass import (
    ByClass,
    RowFacts,
    TablesFullError,
    batch_bytes,
    least_bytes,
    wake,
)
from sbm.solver.gap import Certificate, relative
from sbm.solver.problem import EPSILON, MultiProblem, squared_norm
from sbm.solver.proximal import ListedTerm
from sbm.solver.scoring import FOUND, Scoring, scoring_bytes
from sbm.solver.step import Totals
from sbm.store.blocks import BlockStore
from sbm.store.run import Run
from sbm.units import format_size, in_megabytes

__all__ = ["ClassPasses", "plan_classes"]

# Weights that are not 0, per nonzero of the rows: about the fewest that texts had; the most is 12.
_LEAST = 2.0
_WEIGHT = 14  # bytes, with the room to grow
# Bytes of a row: norms, costs, values, errors, ends, counts, bounds, orders; of a class that is
# found for it; and of one of its list, before and after a scoring, with a proximal term.
_ROW, _OF_FOUND, _OF_LISTED = 140, 8, 44
_LISTED = 32  # classes of a list, on average
_PREPARED = 8  # bytes of a nonzero while its row is scored
# Rounds of a pass end when the gaps at the visits fell by the first factor, or to the second one
# times the tolerance. A row whose gap is below a share of its part of that rests.
_FALL, _OF_TOL, _REST = 0.2, 0.2, 0.2
_ROUNDS = 50  # at most
# With a proximal term, a pass has so many steps. The rounds of a step end at this fall of the gaps,
# or after as many rounds as the term allows.
_STEPS, _FALL_OF_STEP = 5, 0.02
_UNIT = 2.0**-24  # relative rounding error of a float32
_FAR = 3.0  # times that the gap to reach must be larger than the noise of float32
_SMALL = 0.05  # part of the tolerance that rounding of weights may be
_WAKE = 4  # rounds after which classes that were left alone are looked at again
_ROUNDS_OF_PART = 3  # at most, of a block that is not all of the rows


def plan_classes(
    store: BlockStore, mem: int, shape: Shape, processes: int, threads: int, reserved: int = 0
) -> MemoryPlan:
    """Divide a memory bound among rows, lists and the weights of classes.

    Parameters
    ----------
    store : BlockStore
    mem : int
        Bytes of each process.
    shape : Shape
        As for other trainings.
    processes : int
        Number of processes that the classes are divided among.
    threads : int
        Threads of each.
    reserved : int
        Bytes that the plan must leave free.

    Returns
    -------
    MemoryPlan
        Without a cache; ``items["weights"]`` is the most that weights may take.

    Raises
    ------
    MemoryPlanError
        The bound is too small for the weights that are expected at least; the message has one that
        may work.
    """
    n, classes = shape.n_weights, sum(shape.outputs)
    longest = min(n, max(c.nnz for chunks in store.chunks for c in chunks))
    scratch = batch_bytes(n, classes, longest, threads) + 24 * n
    scratch += scoring_bytes(n, store.n_rows)
    each = least_bytes(n) * classes // processes
    dense = 8 * n * -(-classes // processes)  # bytes if all are stored

    def weights(share: float) -> int:
        return each + min(dense, int(share * store.nnz * _WEIGHT / processes))

    mean = store.nnz / max(1, store.n_rows)
    row = _ROW + FOUND * _OF_FOUND + _LISTED * _OF_LISTED + int(_PREPARED * mean)
    plain = replace(shape, outputs=(1,), listed=False, copies=0, ranks=1, models=1)

    def plan(size: int) -> MemoryPlan:
        more = shape.more_bytes + scratch + size
        every = store.n_rows * row
        made = None
        with suppress(MemoryPlanError):
            made = plan_training(store, mem, 0.0, replace(plain, more_bytes=more + every), reserved)
        if made is None or not made.is_whole:
            # These bytes are planned for both buffers of a block, and once more.
            some = replace(plain, more_bytes=more, row_bytes=shape.row_bytes + row // 2)
            every, made = 0, plan_training(store, mem, 0.0, replace(some, may_join=False), reserved)
        items = {name: value for name, value in made.items.items() if name != "cache"}
        items["overhead"] -= scratch + size + every
        items["blocks"] += every
        return replace(made, items=items | {"weights": size, "tiles": scratch})

    least = weights(_LEAST)
    try:
        made = plan(least)
    except MemoryPlanError as error:
        needs = {"weights, at least": least, "tiles": scratch}
        needs["rows and others"] = error.least_bytes - sum(needs.values())
        advice = f", or {shape.advice}" if shape.advice else ""
        Budget(mem, f"to train on {store.name}", needs).check(advice)
        raise
    free = max(0, made.left - reserved - int(SLACK * mem))
    size = min(max(dense + each, least), least + free)
    return replace(made, items=made.items | {"weights": size})


@dataclass
class Block:
    """Some parts of the rows in memory, with what is known of them."""

    parts: Sequence[int]
    rows: Rows
    facts: RowFacts
    lists: Lists


class ClassPasses:
    """Visits and scores all rows, block after block.

    Parameters
    ----------
    store : BlockStore
    plan : MemoryPlan
    problem : MultiProblem
    run : Run
        Stores the lists.
    progress : Progress
    comm : Comm
        Connects the processes.
    staying : sequence of int
        The parts that stay decoded in memory.
    after_round : callable
        Called between two rounds, and after each block that is read; may raise.
    seed, threads : int
        As of the settings.
    weights : RowWeights, optional
        Row weights. Default: 1.
    read_rate : float, optional
        Maximum bytes read per second.

    Attributes
    ----------
    seconds : Seconds
    reader : BlockReader
    is_double : bool
        Whether the next visits need float64 weights.
    """

    def __init__(
        self,
        store: BlockStore,
        plan: MemoryPlan,
        problem: MultiProblem,
        run: Run,
        progress: Progress,
        comm: Comm,
        staying: Sequence[int],
        after_round: Callable[[], None],
        *,
        seed: int,
        threads: int,
        weights: RowWeights | None = None,
        read_rate: float | None = None,
    ) -> None:
        self._store, self._plan, self._problem = store, plan, problem
        self._run, self._progress, self._comm, self._after_round = run, progress, comm, after_round
        self._seed, self._threads = seed, threads
        self.seconds = Seconds()
        self._team = ThreadPoolExecutor(self._threads, "sbm-solve")
        self.reader = BlockReader(
            store, plan, staying, len(staying) == len(plan.parts), "int32", self._threads,
            rate=read_rate, weights=weights,
        )  # fmt: skip
        # If all rows are one part.
        self._facts: RowFacts | None = None
        self._lists: Lists | None = None
        self.term: ListedTerm | None = None
        self._n_weights = store.n_features + (problem.bias > 0)
        self._by_class: ByClass | None = None
        self.is_double = False
        self._is_settled, self._has_defaults = True, False  # defaults of rows
        self._centre: npt.NDArray[np.float64] | None = None

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Run the threads inside this context."""
        with self.reader.pool, self._team:
            yield

    def _order(self, number: int) -> list[list[int]]:
        """Return the parts of each block of a pass, in random order."""
        random = np.random.default_rng([self._seed, 3, number])
        return self._plan.blocks([int(k) for k in random.permutation(len(self._plan.parts))])

    def _rows(
        self, what: str, order: Sequence[Sequence[int]] | None = None
    ) -> Iterator[tuple[Sequence[int], Rows]]:
        """Yield the rows of blocks with their parts, by default in the order of the store."""
        if order is None:
            order = self._plan.blocks(range(len(self._plan.parts)))
        self._progress.start(what, len(order), "blocks")
        blocks = self.reader.read(order, lambda *_: None, lambda *_: None)
        for done, loaded in enumerate(blocks, 1):
            self.seconds.load += loaded.load_seconds
            self.seconds.wait += loaded.wait_seconds
            if self._by_class is not None:
                self._by_class.sort(loaded.result)
            yield order[done - 1], loaded.result
            self._progress.advance(done)
            self._after_round()
        self.seconds.disk = self.reader.disk_seconds
        self._progress.finish()

    def _blocks(self, what: str, order: Sequence[Sequence[int]] | None = None) -> Iterator[Block]:
        for parts, rows in self._rows(what, order):
            if self._plan.is_whole:
                self._facts = self._facts or self.by_class.facts(rows)
            yield Block(parts, rows, self._facts or self.by_class.facts(rows), self._load(parts))

    def _load(self, parts: Sequence[int]) -> Lists:
        """Return the lists of a block."""
        lists = self._lists or join([self._run.load(part) for part in parts])
        assert isinstance(lists, Lists)
        if self._plan.is_whole:
            self._lists = lists
        return lists

    def _keep(self, parts: Sequence[int], lists: Lists) -> None:
        if self._plan.is_whole:
            self._lists = lists
        else:
            self._store_lists(parts, lists)

    def _store_lists(self, parts: Sequence[int], lists: Lists) -> None:
        sizes = [self._plan.rows_of_parts[part] for part in parts]
        for part, some in zip(parts, cut(lists, sizes), strict=True):
            self._run.store(part, some)

    def store_lists(self) -> None:
        """Store the lists that are in memory in the run, with variables of the problem itself."""
        if self._lists is not None:
            scale = 1.0 if self.term is None else self.term.scale
            self._store_lists(range(len(self._plan.parts)), self._lists.times(scale))

    @property
    def by_class(self) -> ByClass:
        """The weights, after `look`."""
        assert self._by_class is not None
        return self._by_class

    # --------------------------------------------------------------------------- beginning

    def count(self) -> int:
        """Count the nonzeros of each feature; return their number."""
        self._counts, self._longest = np.zeros(self._n_weights, np.int64), 0
        kernels = load("sbm.solver.kernels.batches")
        for _, rows in self._rows("count"):
            kernels.count_features(rows.lengths, rows.starts, rows.indices, self._counts)
            self._longest = max(self._longest, int(rows.lengths.max(initial=0)))
        return int(self._counts.sum())

    def look(self) -> None:
        """Count the features of all rows, and make weights that are 0."""
        self.count()
        counts = self._counts
        if self._problem.bias > 0:
            counts[-1] = self._store.n_rows + 1
        self.feature_of = np.argsort(-counts, kind="stable").astype(np.int32)
        rank = np.empty_like(self.feature_of)
        rank[self.feature_of] = np.arange(len(rank), dtype=np.int32)
        spread = self._team.map if self._threads > 1 else map
        class_rows = [float(n) for n in self._store.label_counts]
        self._by_class = ByClass(
            self._problem, rank, counts, class_rows, self._comm, self._threads, spread,
            self._plan.items["weights"], self._longest,
        )  # fmt: skip
        self.scoring = Scoring(self.by_class)

    def begin(self) -> None:
        """Make the first lists: the classes with the nearest centroids."""
        sizes = np.maximum(np.array(self._store.label_counts, np.float64), 1.0)
        with self._within_memory():
            for _, rows in self._rows("centroids"):
                none = no_alphas(len(rows), True)
                assert isinstance(none, Lists)
                self.by_class.add_rows(rows, none, 1.0 / sizes)
            self.scoring.begin()
            for block in self._blocks("first classes"):
                self._keep(block.parts, self.scoring.first_lists(block.rows, block.facts))
        self.by_class.clear()

    def restore(self, term: ListedTerm | None, is_double: bool) -> None:
        """Read the lists of a checkpoint with its proximal term, and compute the weights."""
        if term is not None and self._plan.is_whole:
            self.term = term
            self._lists = self._load(range(len(self._plan.parts))).times(1.0 / term.scale)
        self._set_type(is_double)
        self.rebuild()

    def _set_type(self, is_double: bool) -> None:
        """Make weights that are 0."""
        self.by_class.set_type(np.float64 if is_double else np.float32)

    def rebuild(self, of: Callable[[Lists], Lists] | None = None, settles: bool = False) -> None:
        """Compute the weights again, which removes rounding and what became 0.

        Parameters
        ----------
        of : callable, optional
            Returns the coefficients of rows, given the variables. Default: those of the weights.
        settles : bool
            Whether defaults of rows hold from now on that were found since the last pass.
        """
        self.by_class.lay_out()
        self._n_sums = np.zeros(len(self._problem.costs))
        self._is_settled, self._has_defaults = True, False
        with self._within_memory():
            for parts, rows in self._rows("weights"):
                lists = self._load(parts)
                wake(lists)
                if (lists.values < 0.0).any():
                    self._is_settled = settles
                if settles:
                    np.abs(lists.values, out=lists.values)
                    self._keep(parts, lists)
                if of is not None:
                    lists = of(lists)
                elif self.term is not None:
                    lists = replace(lists, values=self.term.weights(lists.values))
                self.by_class.add_rows(rows, lists)
                n, has_defaults = len(self._n_sums), self.by_class.look_at(rows, lists)[0].any()
                self._has_defaults |= bool(has_defaults)
                added = lists.outputs if has_defaults else lists.outputs[lists.values != 0.0]
                self._n_sums += np.bincount(added, minlength=n)
                self._n_sums += np.bincount(rows.y, minlength=n)
        self._centre = None
        if self._has_defaults:
            largest = math.sqrt(self.by_class.norms().max())
            self._centre = self.by_class.sum_of_classes(largest) / len(self._problem.costs)

    def _stored(self, norms: npt.NDArray[np.float64]) -> float:
        """Return |W|² of the weights in memory, whose mean over classes is made 0."""
        size = math.fsum(norms)
        if self._centre is not None:
            size -= len(norms) * squared_norm(self._centre[:, None])
        return size

    @contextmanager
    def _within_memory(self) -> Iterator[None]:
        try:
            yield
        except TablesFullError:
            plan, n = self._plan, len(self._problem.costs)
            least = plan.mem + plan.items["weights"] // 2
            raise MemoryPlanError(
                f"the weights of {n:,} classes need more than the "
                f"{format_size(plan.items['weights'])} that --mem {format_size(plan.mem)} leaves; "
                f"use at least --mem {in_megabytes(least)}, or --launch "
                f"{2 * self._comm.size} to divide them among processes",
                least,
            ) from None

    # ------------------------------------------------------------------------------ passes

    def visit(self, number: int, primal: float, tol: float, is_late: Callable[[], bool]) -> Totals:
        """Visit the rows of each block in rounds.

        Parameters
        ----------
        number : int
            Of the pass, from 1.
        primal : float
            The last certified value; 0 for none.
        tol : float
            Relative gap to reach.
        is_late : callable
            Called between rounds; ends the pass if true.
        """
        totals = Totals()
        if self.is_double != self.by_class.is_double:  # not before: others were certified
            self._set_type(self.is_double)
            self.rebuild(settles=True)
        elif not self._is_settled:
            self.rebuild(settles=True)
        if self.term is not None:
            self.term.begin_pass(primal)
        for block in self._blocks(f"pass {number}", self._order(number)):
            if number == 1 and self._plan.is_whole:
                self.term = ListedTerm.of(self._problem, block.facts.squares, block.lists)
            rounds = 0
            for step in range(1 if self.term is None else _STEPS):
                if self.term is not None:
                    moved = replace(block.lists, values=self.term.move(block.lists.values))
                    with self._within_memory():
                        self.by_class.add_rows(block.rows, moved)
                gap, more = self._visit_block(block, (number, step), tol * primal, totals, is_late)
                rounds += more
                if is_late():
                    break
            totals.gap += gap
            totals.rounds = max(totals.rounds, rounds)
            self._keep(block.parts, block.lists)
            if is_late():
                break
        return totals

    def _visit_block(
        self,
        block: Block,
        step: tuple[int, int],
        tol: float,
        totals: Totals,
        is_late: Callable[[], bool],
    ) -> tuple[float, int]:
        """Visit the rows of a block in rounds; return the gaps at the last visits, and the rounds.

        Parameters
        ----------
        block : Block
        step : tuple of int
            Number of the pass, and of the step in it.
        tol : float
            Gap of all rows to reach.
        totals : Totals
            Visits and updates are added.
        is_late : callable
        """
        n, facts, fall = len(block.rows), block.facts, _FALL
        most = _ROUNDS if self._plan.is_whole else _ROUNDS_OF_PART
        goal = tol * n / self._store.n_rows
        if self.term is not None:
            scale, most, fall = self.term.scale, int(self.term.rounds), _FALL_OF_STEP
            facts, goal = replace(facts, costs=facts.costs / scale), goal / scale
        facts.rest[:] = facts.skip[:] = 0
        small = 0.0
        for round_ in range(most):
            random = np.random.default_rng([self._seed, 5, *step, round_, *block.parts])
            seed = int(random.integers(1, 2**62))
            with self._within_memory(), self.seconds.measure("solve"):
                stats = self.by_class.visit(block.rows, facts, block.lists, seed, small)
            gap, _, visits, moved, *_ = stats.tolist()
            totals.visits += int(visits)
            totals.updates += int(moved)
            if round_ == 0:
                goal = max(fall * gap, _OF_TOL * goal)
                small = _REST * goal / max(1, n)
            if gap <= goal or is_late():
                break
            if round_ % _WAKE == _WAKE - 1:
                wake(block.lists)
            self._after_round()
        wake(block.lists)
        return gap, round_ + 1

    def certify(self, tol: float) -> Certificate:
        """Compute the weights from the variables, certify them, and find classes for the lists.

        Parameters
        ----------
        tol : float
            Relative gap to reach; rounding of weights must not matter for it.
        """
        term = self.term
        if term is not None:  # the weights of the variables alone
            self.rebuild(lambda lists: lists.times(term.scale))
            norms = self.by_class.norms()
            size_of_dual, error = self._size(tol, norms, lambda lists: lists.times(term.scale))
        self.rebuild()
        norms = self.scoring.begin()
        if term is None:
            size_of_dual, error = self._size(tol, norms, lambda lists: lists)
        size = self._stored(norms)
        with self.seconds.measure("certify"):
            sums = []
            for block in self._blocks("certify"):
                sums.append(self._certify_block(block))
        loss, betas, support, free, missing, rounding, largest = (
            math.fsum(column) for column in zip(*sums, strict=True)
        )
        self.missing = int(missing)
        primal = 0.5 * size + loss
        dual = betas - 0.5 * (size_of_dual + error)
        rounding += EPSILON * (primal + abs(betas)) * 4.0
        gap = max(0.0, primal - dual) + rounding
        # Visits cannot make the gap smaller than about this.
        noise = _UNIT * largest * self.scoring.largest
        self.is_double |= _FAR * noise > tol * primal
        return Certificate(
            primal, dual, gap, relative(gap, primal, dual), 0.0, int(support), int(free)
        )

    def _size(
        self, tol: float, norms: npt.NDArray[np.float64], of: Callable[[Lists], Lists]
    ) -> tuple[float, float]:
        """Return |W|² of the weights that follow from variables, and its error.

        The weights in memory, W + E, are these after `rebuild`, rounded at each of the sums that
        they are: |E_c| ≤ u n_c |W_c|, with n_c rows that have class c listed. If the error of
        |W + E|² may matter, it is 2 W·(W + E) - |W + E|² = |W|² - |E|², where W·(W + E) follows
        from the decision values of the rows: it takes as many products as a round. If rows have
        defaults, all that is true of the weights whose mean over classes is 0.
        """
        stored, product, n = self._stored(norms), 0.0, len(norms)
        parts = (EPSILON if self.by_class.is_double else _UNIT) * self._n_sums
        rest = math.fsum(parts * parts * norms)
        error = 2.0 * math.fsum(parts * norms)
        if self._centre is not None:
            error = 2.0 * math.sqrt(stored * rest) + rest
        if error <= _SMALL * tol * stored:
            return stored, error
        for some, rows in self._rows("weights"):
            lists = of(self._load(some))
            z_own = self.by_class.own_values(rows, lists)
            if self._centre is None:
                z = self.by_class.values(rows, lists, lists.values != 0.0)
                product += float((lists.values * (np.repeat(z_own, lists.counts) - z)).sum())
                continue
            defaults, _, sums = self.by_class.look_at(rows, lists)
            of_row = np.repeat(np.arange(len(rows)), lists.counts)
            is_own = lists.outputs == rows.y[of_row]
            default = defaults[of_row]
            steps = np.where(is_own, 0.0, default - lists.values)
            z = self.by_class.values(rows, lists, steps != 0.0)
            every = n * self.by_class.products(rows, self._centre)  # of all classes, in sum
            product += float((steps * z).sum() + ((sums + defaults) * z_own).sum())
            product -= float((defaults * every).sum())
        return 2.0 * product - stored, rest

    def _certify_block(self, block: Block) -> npt.NDArray[np.float64]:
        """Return the sums of a block for the certificate, and keep its new lists.

        The last one is that of costs times norms of the rows, for each loss that counts.
        """
        room, lists, term = self._room_for(len(block.rows)), block.lists, self.term
        stays = lists.values != 0.0
        if term is not None:
            stays, lists = term.uses(lists.values), lists.times(term.scale)
        sums, found = self.scoring.score(
            block.rows, block.facts, lists, room, stays, self._centre, term is None
        )
        if term is None:
            self._is_settled &= not (found.values < 0.0).any()
        else:
            found = found.times(1.0 / term.scale)
            term.follow(lists, found)
        self._keep(block.parts, found)
        sizes = block.facts.costs * np.sqrt(block.facts.squares)
        if self._problem.loss.name == "weston_watkins":  # which adds up losses
            ends = np.cumsum(np.concatenate([[0], found.values != 0.0]))[found.offsets]
            sizes *= np.maximum(np.diff(ends), 1)
        return np.append(sums, sizes.sum())

    def _room_for(self, n: int) -> int:
        """Return how many classes the lists of so many rows may have."""
        planned = n * (_LISTED + FOUND)
        return planned + (self._spare() + max(0, self._plan.left) // 2) // (4 * _OF_LISTED)

    def _spare(self) -> int:
        """Return the bytes that the plan has for weights and that they do not take."""
        taken = sum(tables.nbytes for tables in self.by_class.tables)
        return max(0, self._plan.items["weights"] - taken)

    @property
    def listed(self) -> int:
        """Number of classes in the lists that are in memory."""
        return 0 if self._lists is None else len(self._lists.outputs)

    # ------------------------------------------------------------------------------- model

    def weights(self) -> WindowedWeights:
        """Return the weights of this process's classes, by feature."""
        kernels, tables = load("sbm.solver.kernels.tables"), self.by_class.tables
        nonzeros = np.zeros(self._n_weights, np.int64)
        for one in tables:
            kernels.count(*one.readable, self.feature_of, nonzeros)
        counts, centre = nonzeros, np.zeros(0)
        if self._centre is not None:
            centre = np.empty(self._n_weights)
            centre[self.feature_of] = self._centre
            n_own = sum(len(one.classes) for one in tables)
            counts = np.where(centre != 0.0, n_own, nonzeros)

        def read(
            first: int, end: int, columns: npt.NDArray[np.int32]
        ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
            own = nonzeros[first:end]
            ends = np.cumsum(own) - own
            outs, values = np.empty(own.sum(), np.int32), np.empty(own.sum())
            for one in tables:
                mine = columns[one.classes]
                kernels.take(
                    np.argsort(mine, kind="stable"), mine, *one.readable, self.feature_of, first,
                    end, ends, outs, values,
                )  # fmt: skip
            if not len(centre):
                return outs, values
            if len(tables) > 1:
                of = np.repeat(np.arange(first, end, dtype=np.int32), own)
                outs, values = by_feature(of, outs, values)
            mine = np.sort(np.concatenate([columns[one.classes] for one in tables]))
            return _centred(mine, centre[first:end], own, outs, values)

        room = max(self._spare() // 2, window_bytes(int(nonzeros.sum())))
        is_sorted = len(tables) == 1 or len(centre) > 0
        return WindowedWeights(counts, len(self._problem.costs), read, is_sorted, room)


def _centred(
    columns: npt.NDArray[np.int32],
    centre: npt.NDArray[np.float64],
    counts: npt.NDArray[np.int64],
    outs: npt.NDArray[np.int32],
    values: npt.NDArray[np.float64],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]:
    """Return columns and weights of features less their `centre`, of all columns if it is not 0.

    Parameters
    ----------
    columns : ndarray, shape (n_own,), int32
        Of the classes of this process, ascending.
    centre, counts : ndarray, shape (n_features,), float64, int64
        What to subtract, and the number of weights of each feature.
    outs, values : ndarray, shape (n,), int32, float64
        Columns and weights, feature after feature.
    """
    is_all = centre != 0.0
    sizes = np.where(is_all, len(columns), counts)
    begin = np.cumsum(sizes) - sizes
    all_values = np.repeat(-centre, sizes)
    all_outs = np.empty(len(all_values), np.int32)
    all_outs[np.repeat(is_all, sizes)] = np.tile(columns, int(is_all.sum()))
    # Where the weights are that do not follow from the centre alone.
    rank = np.arange(len(outs)) - np.repeat(np.cumsum(counts) - counts, counts)
    places = np.where(np.repeat(is_all, counts), np.searchsorted(columns, outs), rank)
    places += np.repeat(begin, counts)
    all_values[places] += values
    all_outs[places] = outs
    return all_outs, all_values
