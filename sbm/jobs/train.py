"""Train: selective block minimization over a block store (Algorithm 1 of Chang & Roth 2011).

For each pass, for each block in a seeded random order (the next one is read and screened
meanwhile): merge its moving rows with the cache, solve, select the next cache, put the other alphas
back on disk. When the free running estimate of the gap says so, a pass of its own certifies the
model at fixed W.

Screening leaves out rows that were at rest at the W of one step ago. F rises with every visit and
is bounded, so steps go to 0 and the two W become one: whatever the iterates approach satisfies the
optimality conditions, screened rows included. Every `FULL_PASS`-th pass visits all rows, which
keeps Theorem 1 and its linear rate to the letter.
"""

import itertools
import math
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from sbm.alphas import Alphas, no_alphas
from sbm.errors import StoreError
from sbm.jobs.memory import STRAY_BYTES, UNWRITTEN_BYTES, MemoryPlan, plan_training
from sbm.jobs.pace import choose_cache_rows, choose_rounds
from sbm.jobs.prefetch import Loaded, loading_thread
from sbm.jobs.problem import make_model, make_problems
from sbm.jobs.process import peak_bytes, resident_bytes, return_freed_memory
from sbm.jobs.progress import Progress
from sbm.jobs.reader import BlockReader
from sbm.jobs.warm import prepare
from sbm.rows import SPARE, Arena, Rows
from sbm.settings import Settings
from sbm.solver.cache import Evicted, WorkingSet
from sbm.solver.gap import Certificate, Certifier, GapWatch
from sbm.solver.problem import AnyProblem
from sbm.solver.step import Screen, Solver, Step, Totals
from sbm.solver.variables import DenseSet, ListPool
from sbm.store.blocks import BlockStore
from sbm.store.model import Model, check_output
from sbm.store.run import Run

__all__ = ["find_store", "train"]

Result = TypeVar("Result")

# A commit waits for this much time since the last one, and for this many times what that one took.
COMMIT_SECONDS = 1.0
COMMIT_SHARE = 20.0
# Every so many passes all rows are visited: Theorem 1 asks for every alpha once in a bounded time.
FULL_PASS = 8


def train(
    store: str | Path | None = None,
    model: str | Path | None = None,
    settings: Settings | None = None,
    *,
    progress: Progress | None = None,
    read_rate: float | None = None,
) -> tuple[Model, dict[str, Any]]:
    """Train a model on a store.

    Parameters
    ----------
    store : str or Path, optional
        Default: the only ``*.sbm`` in the current folder.
    model : str or Path, optional
        Where the model goes. Default: the store's name with ``.model``, in the current folder. The
        state of the training is kept beside it in ``MODEL.run/``.
    settings : Settings, optional
    progress : Progress, optional
        Is told each block and each pass.
    read_rate : float, optional
        Read no more bytes a second than this, as from a slow disk; for benchmarks.

    Returns
    -------
    model : Model
        The certified one, as written.
    report : dict
        ``primal``, ``dual``, ``gap``, ``relative_gap``, ``drift``, ``converged``, ``passes``,
        ``rounds`` (of each pass),
        ``visits``, ``updates``, ``visits_cut_short`` (in the last pass), ``seconds`` (total, disk,
        load, wait, solve, certify, write),
        ``bytes_read``, ``peak_rss_bytes``, ``n_support``, ``n_free``, ``model``.

    Raises
    ------
    StoreError
        No store, damaged, or in use.
    DataError
        The labels do not fit the loss.
    MemoryPlanError
        ``settings.mem`` is too small; says what would do.
    """
    begin = time.perf_counter()
    return_freed_memory()
    settings = settings or Settings()
    progress = progress or Progress()
    blocks = BlockStore(find_store(store))
    path = Path(model) if model is not None else Path(f"{blocks.folder.resolve().stem}.model")
    check_output(path)
    problems = make_problems(settings, blocks)
    n_weights = blocks.n_features + (settings.bias > 0)
    frac = 0.0 if settings.policy == "none" else settings.cache_frac
    outputs = [problem.n_outputs for problem in problems]
    pairs = settings.schedule == "pairs"
    plan = plan_training(
        blocks, settings.mem_bytes, frac, n_weights, outputs, problems[0].listed, pairs
    )
    _say_plan(plan, progress)
    kernels = "pairs" if pairs else "multiclass" if problems[0].listed else "train"
    prepare(kernels, blocks.value_type, progress)
    rows_of_parts = [part.rows for part in plan.parts] * len(problems)
    folder = path.with_name(path.name + ".run")
    lists_of = max(outputs) if problems[0].listed else None
    values = problems[0].resting_values
    with (
        blocks.in_use(),
        Run.create(folder, rows_of_parts, lists_of, values, STRAY_BYTES, UNWRITTEN_BYTES) as run,
    ):
        training = _Training(blocks, settings, problems, plan, run, progress, begin, read_rate)
        certificate, converged = training.run()
        report = training.report(certificate, converged)
        weights = [solver.W for solver in training.solvers]
        del training  # its memory goes to the writing of the model
        result = make_model(blocks, settings, weights, report)
        result.save(path)
        report["model"] = str(path)
        report["seconds"]["total"] = time.perf_counter() - begin
        report["peak_rss_bytes"] = peak_bytes()
        run.log({"event": "end", **report})
    return result, report


def find_store(store: str | Path | None) -> Path:
    """Return the store meant: the one named, or the only one in the current folder.

    Raises
    ------
    StoreError
        There is none, or there are several (they are named).
    """
    if store is not None:
        return Path(store)
    found = sorted(p for p in Path().glob("*.sbm") if p.is_dir())
    if not found:
        raise StoreError("no *.sbm store in this folder; make one with sbm split, or name it")
    if len(found) > 1:
        names = ", ".join(map(str, found))
        raise StoreError(f"several stores in this folder ({names}); name the one to use")
    return found[0]


def _say_plan(plan: MemoryPlan, progress: Progress) -> None:
    progress.note(
        f"{len(plan.parts)} blocks, cache {plan.cache_rows} rows; memory: {plan.describe()}"
    )


@dataclass
class _Seconds:
    """Where the time went. Loading overlaps with solving; waiting does not."""

    disk: float = 0.0
    load: float = 0.0
    wait: float = 0.0
    solve: float = 0.0
    certify: float = 0.0
    write: float = 0.0

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time spent inside to one of the entries."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, name, getattr(self, name) + time.perf_counter() - begin)


@dataclass(frozen=True)
class _Coming:
    """What is known of the next block before it is loaded."""

    alpha: Alphas
    screen: Screen | None = None

    def moving(
        self, block: int, evicted: Evicted | None, every_row: bool
    ) -> npt.NDArray[np.bool_] | None:
        """Which rows to visit, None for all; rows evicted since are taken over and visited."""
        late: npt.NDArray[np.int32] | slice = slice(0)
        if evicted is not None:
            mine = np.flatnonzero(evicted.home == block)
            late = evicted.row[mine]
            self.alpha.put(late, evicted.alpha.take(mine))
        if every_row or self.screen is None:
            return None
        self.screen.moving[late] = True
        return self.screen.moving


def _look(coming: list[_Coming], first: int, rows: Rows) -> None:
    """Screen a chunk of the next block, as soon as it is decoded."""
    for mine in coming:
        if mine.screen is not None:
            mine.screen.add(first, rows, mine.alpha.part(first, len(rows)))


@dataclass
class _Training:
    """The loop of one training and its bookkeeping.

    There is one solver, but for one-vs-rest in groups of classes: there every group has its own
    weights, cache and variables, and all of them work on the block that is loaded.
    """

    store: BlockStore
    settings: Settings
    problems: Sequence[AnyProblem]
    plan: MemoryPlan
    run_files: Run
    progress: Progress
    begin: float
    read_rate: float | None
    seconds: _Seconds = field(default_factory=_Seconds)
    totals: Totals = field(default_factory=Totals)
    passes: int = 0

    def __post_init__(self) -> None:
        plan, settings, n_groups = self.plan, self.settings, len(self.problems)
        self._cache_nnz = plan.cache_nnz // n_groups
        caches = n_groups * (self._cache_nnz + SPARE)
        self._arena = Arena.of(caches + 2 * plan.part_nnz + SPARE, self.store.value_type)
        threads = settings.threads or len(os.sched_getaffinity(0))
        self._team = ThreadPoolExecutor(threads, "sbm-solve")
        self.solvers = [
            self._solver(k, problem, threads) for k, problem in enumerate(self.problems)
        ]
        decoders = plan.decoders(threads, settings.mem_bytes)
        self._pool = loading_thread(threads)
        self.reader = BlockReader(
            self.store, plan, self._arena, caches, self._pool, decoders, self.read_rate
        )
        self._blocks: Generator[Loaded[int, list[_Coming], Rows]] | None = None
        self._evicted: list[Evicted | None] = [None] * n_groups
        self._last_block = -1
        self._cut_short = 0
        self.rounds: list[int] = []
        self._pass_bytes = sum(c.size for part in plan.parts for c in part.chunks)
        self._free_rows: int | None = None
        self._alphas = [self._room_for_alphas() for _ in range(2)]
        self._committed, self._commit_after = self.begin, COMMIT_SECONDS
        self._mark = asdict(self.seconds)

    def _solver(self, k: int, problem: AnyProblem, threads: int) -> Solver:
        """Make the solver of the k-th problem."""
        plan, settings = self.plan, self.settings
        rows = plan.cache_rows // len(self.problems)
        n_blocks = len(plan.parts)
        alpha: DenseSet | ListPool = DenseSet(plan.part_rows + rows)
        if problem.listed:
            variables = min(plan.row_variables, problem.n_outputs)
            alpha = ListPool(plan.part_rows, rows, variables, n_blocks, problem.n_outputs)
        base = k * (self._cache_nnz + SPARE)
        working = WorkingSet(self._arena, alpha, rows, self._cache_nnz, base=base)
        W = np.zeros((self.store.n_features + (settings.bias > 0), problem.n_outputs))
        return Solver(
            problem, W, working, rounds=1, policy=settings.policy, seed=settings.seed + k,
            spread=self._team.map, tasks=threads,
        )  # fmt: skip

    def _room_for_alphas(self) -> list[Alphas]:
        """Variables of a block to come, for each solver."""
        return [no_alphas(self.plan.part_rows, problem.listed) for problem in self.problems]

    def _for_each(self, work: Callable[[int], Result]) -> list[Result]:
        """Call ``work(k)`` for each solver, at the same time; no result depends on that."""
        n = len(self.solvers)
        return list(self._team.map(work, range(n))) if n > 1 else [work(0)]

    @property
    def dual(self) -> float:
        """F(α) at this moment, up to the drift of W."""
        return math.fsum(solver.dual for solver in self.solvers)

    def run(self) -> tuple[Certificate, bool]:
        """Pass after pass until the certified gap is small enough or a budget is used up."""
        with self._pool, self._team:
            try:
                return self._run_passes()
            finally:
                self._stop_reading()

    def _run_passes(self) -> tuple[Certificate, bool]:
        watch = GapWatch(self.settings.tol)
        converged = False
        while True:
            done, in_time = self._pass()
            last = not in_time or self.passes == self.settings.max_passes
            certificate = None
            if last or watch.is_due(done.gap, self.dual):
                certificate, weights = self._certify()
                watch.learn(certificate.relative_gap)
                converged = certificate.relative_gap <= self.settings.tol
                last = last or converged
                if not last:
                    for solver, W in zip(self.solvers, weights, strict=True):
                        solver.W[:] = W  # rebuilt from the alphas, which cancels the drift
                del weights
            self._report_pass(done, certificate, in_time)
            if last or time.perf_counter() - self._committed > self._commit_after:
                self._commit(certificate)
            if last:
                assert certificate is not None
                return certificate, converged

    def _pass(self) -> tuple[Totals, bool]:
        """Outer iteration t of Algorithm 1; also tells whether it ended within the time limit."""
        done = Totals()
        self._choose()
        self.passes += 1
        self._mark = asdict(self.seconds)
        n_blocks = len(self.plan.parts)
        every_row = self.passes % FULL_PASS == 0 or not self.settings.screen
        self.progress.start(f"pass {self.passes}", n_blocks, "blocks")
        if self._blocks is None:
            self._evicted = [None] * len(self.solvers)
            self._blocks = self.reader.read(self._order(), self._prepare, self._load_alpha, _look)
        kept = []
        for k, loaded in enumerate(itertools.islice(self._blocks, n_blocks)):
            block, coming = loaded.item, loaded.coming
            self.seconds.disk = self.reader.disk_seconds
            self.seconds.load += loaded.load_seconds
            self.seconds.wait += loaded.wait_seconds
            with self.seconds.measure("solve"):
                steps = self._step(block, loaded.result, coming, every_row)
            for step in steps:
                done.add(step.totals)
            self._evicted, self._last_block = [step.evicted for step in steps], block
            kept.append(self._pool.submit(self._keep, block, steps))
            self.progress.advance(k + 1)
            if self._is_late():
                break
        self.progress.finish()
        if n_blocks == 1:
            self._stop_reading()
        self._free_rows = sum(task.result() for task in kept) + self._count_free()
        self.totals.add(done)
        self._cut_short = done.starved
        return done, not self._is_late()

    def _order(self) -> Iterator[int]:
        """Blocks of the passes to come, each pass in an order of its own.

        No block comes twice in a row: its alphas would be read before they are kept. With a single
        block, reading therefore ends with the pass.
        """
        n_blocks = len(self.plan.parts)
        last = self.settings.max_passes if n_blocks > 1 else self.passes
        before = self._last_block
        for number in range(self.passes, last + 1):
            random = np.random.default_rng([self.settings.seed, 3, number])
            order = random.permutation(n_blocks)
            if order[0] == before:
                order = np.roll(order, 1)
            before = order[-1]
            yield from map(int, order)

    def _step(self, block: int, rows: Rows, coming: list[_Coming], every_row: bool) -> list[Step]:
        """Inner iteration of Algorithm 1, of every solver."""

        def work(k: int) -> Step:
            moving = coming[k].moving(block, self._evicted[k], every_row)
            return self.solvers[k].step(block, rows, coming[k].alpha, moving)

        return self._for_each(work)

    def _count_free(self) -> int:
        return sum(solver.count_free() for solver in self.solvers)

    def _home(self, k: int, block: int) -> int:
        """Where the run keeps the variables of the k-th solver in a block."""
        return k * len(self.plan.parts) + block

    def _keep(self, block: int, steps: list[Step]) -> int:
        """Put the alphas that a step handed back where they belong, in the loading thread.

        Returns how many of the block's rows are inside their bounds.
        """
        free = 0
        for k, step in enumerate(steps):
            evicted = step.evicted
            free += self.run_files.store(self._home(k, block), step.alpha)
            self.run_files.add_strays(evicted.home + self._home(k, 0), evicted.row, evicted.alpha)
        return free

    def _stop_reading(self) -> None:
        """Give up the block that is being read ahead; its weights or its buffer are outdated."""
        if self._blocks is not None:
            self._blocks.close()
            self._blocks = None

    def _choose(self) -> None:
        """Set rounds and cache size of the next pass."""
        spent = self._spent()
        rounds = choose_rounds(
            self.settings.rounds, len(self.plan.parts), self.rounds, self._pass_bytes,
            spent["disk"], spent["load"], spent["solve"], self.problems[0].listed,
        )  # fmt: skip
        self.rounds.append(rounds)
        plan, n = self.plan, len(self.solvers)
        for solver in self.solvers:
            solver.rounds = rounds
            if self.settings.cache_frac == "auto":
                free = None if self._free_rows is None else self._free_rows // n
                solver.working.cache_rows = choose_cache_rows(
                    free, plan.part_rows, plan.cache_rows // n
                )

    def _spent(self) -> dict[str, float]:
        """Seconds since the last pass began, by purpose."""
        return {k: v - self._mark[k] for k, v in asdict(self.seconds).items()}

    def _prepare(self, block: int, slot: int) -> list[_Coming]:
        """Note weights and cache as they are now, for the screening of the next block."""
        coming = self._prepare_alpha(block, slot)
        if not self.settings.screen:
            return coming
        return [
            _Coming(mine.alpha, solver.look_ahead(block, len(mine.alpha)))
            for mine, solver in zip(coming, self.solvers, strict=True)
        ]

    def _prepare_alpha(self, block: int, slot: int) -> list[_Coming]:
        return [_Coming(a.part(0, self.plan.parts[block].rows)) for a in self._alphas[slot]]

    def _load_alpha(self, block: int, coming: list[_Coming]) -> None:
        for k, mine in enumerate(coming):
            self.run_files.load(self._home(k, block), mine.alpha)

    def _is_late(self) -> bool:
        limit = self.settings.time_limit
        return limit is not None and time.perf_counter() - self.begin > float(limit)

    def _certify(self) -> tuple[Certificate, list[npt.NDArray[np.float64]]]:
        """Evaluate primal and dual at fixed W and alphas; also rebuild W from the alphas."""
        self._stop_reading()
        with self.seconds.measure("certify"):
            certifiers = [Certifier(s.problem, s.W, s.W_seen) for s in self.solvers]
            n_blocks = len(self.plan.parts)
            self.progress.start("certify", n_blocks, "blocks")
            blocks = self.reader.read(range(n_blocks), self._prepare_alpha, self._load_alpha)
            for done, loaded in enumerate(blocks, 1):

                def add(k: int, block: Loaded[int, list[_Coming], Rows] = loaded) -> None:
                    alpha = block.coming[k].alpha
                    self.solvers[k].working.alphas_of(block.item, alpha)
                    certifiers[k].add(block.result, alpha)

                self._for_each(add)
                self.progress.advance(done)
            self.progress.finish()
            certificate = Certificate.total([c.finish() for c in certifiers])
        if certificate.drift > 1e-9:
            raise StoreError(
                f"the weights do not belong to their alphas (drift {certificate.drift:.1e}); "
                "this is a bug in sbm, please report it"
            )
        return certificate, [c.W_alpha for c in certifiers]

    def _report_pass(self, done: Totals, certificate: Certificate | None, complete: bool) -> None:
        seconds = self._spent()
        busy = max(seconds["solve"], 1e-9)
        dual = self.dual
        record = {
            "pass": self.passes,
            "rounds": self.rounds[-1],
            "elapsed": time.perf_counter() - self.begin,
            "seconds": seconds,
            "rows_per_second": done.visits / busy,
            "nnz_per_second": done.visits / busy * self.store.nnz / self.store.n_rows,
            "dual": dual,
            # A pass that was cut short has not seen every row.
            "estimated_gap": done.gap if complete else None,
            "estimated_relative_gap": done.gap / max(abs(dual), 1e-300) if complete else None,
            "visits": done.visits,
            "updates": done.updates,
            "free_rows": self._free_rows,
            "cache_rows": sum(s.working.cache_rows for s in self.solvers),
            "cached_rows": sum(s.working.n_cached for s in self.solvers),
            "cached_free": self._count_free(),
            "cache_hits": done.cached,
            "rows_at_rest": done.rest,
            "visits_cut_short": done.starved,
            "resident_bytes": resident_bytes(),
            "certificate": certificate.to_dict() if certificate else None,
        }
        self.run_files.log({"event": "pass", **record})
        self.progress.row(record)

    def _commit(self, certificate: Certificate | None) -> None:
        """Make the end of this pass the state to come back to."""
        position = {
            "settings": self.settings.to_dict(),
            "store": str(self.store.folder),
            "store_rows": self.store.n_rows,
            "passes": self.passes,
            "rounds": self.rounds,
            "certificate": certificate.to_dict() if certificate else None,
            "totals": asdict(self.totals),
        }
        begin = time.perf_counter()
        with self.seconds.measure("write"):
            self.run_files.commit(position, self._state())
        self._committed = time.perf_counter()
        self._commit_after = max(COMMIT_SECONDS, COMMIT_SHARE * (self._committed - begin))

    def _state(self) -> dict[str, npt.NDArray[np.generic]]:
        """What a commit keeps of all solvers."""
        return {
            name if k == 0 else f"{name}-{k}": array
            for k, solver in enumerate(self.solvers)
            for name, array in solver.state().items()
        }

    def report(self, certificate: Certificate, converged: bool) -> dict[str, Any]:
        """The figures of the training."""
        return {
            "primal": certificate.primal,
            "dual": certificate.dual,
            "gap": certificate.gap,
            "relative_gap": certificate.relative_gap,
            "converged": converged,
            "passes": self.passes,
            "rounds": self.rounds,
            "updates": self.totals.updates,
            "visits": self.totals.visits,
            "visits_cut_short": self._cut_short,
            "seconds": {"total": time.perf_counter() - self.begin, **asdict(self.seconds)},
            "bytes_read": self.reader.bytes_read,
            "peak_rss_bytes": peak_bytes(),
            "n_support": certificate.n_support,
            "n_free": certificate.n_free,
            "drift": certificate.drift,
        }
