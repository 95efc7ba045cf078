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
import os
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.errors import StoreError
from sbm.jobs.memory import STRAY_BYTES, UNWRITTEN_BYTES, MemoryPlan, plan_training
from sbm.jobs.pace import choose_cache_rows, choose_rounds
from sbm.jobs.prefetch import Loaded, loading_thread
from sbm.jobs.problem import make_model, make_problem
from sbm.jobs.process import peak_bytes, resident_bytes, return_freed_memory
from sbm.jobs.progress import Progress
from sbm.jobs.reader import BlockReader
from sbm.jobs.warm import prepare
from sbm.rows import SPARE, Arena, Rows
from sbm.settings import Settings
from sbm.solver.cache import Evicted, WorkingSet
from sbm.solver.gap import Certificate, Certifier, GapWatch
from sbm.solver.problem import Problem
from sbm.solver.step import Screen, Solver, Step, Totals
from sbm.store.blocks import BlockStore
from sbm.store.model import Model, check_output
from sbm.store.run import Run

__all__ = ["find_store", "train"]

# Passes shorter than this are not each committed.
COMMIT_SECONDS = 1.0
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
        ``visits``, ``updates``, ``seconds`` (total, disk, load, wait, solve, certify, write),
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
    problem = make_problem(settings, blocks)
    n_weights = blocks.n_features + (settings.bias > 0)
    frac = 0.0 if settings.policy == "none" else settings.cache_frac
    plan = plan_training(blocks, settings.mem_bytes, frac, n_weights)
    _say_plan(plan, progress)
    prepare("train", blocks.value_type, progress)
    rows_of_parts = [part.rows for part in plan.parts]
    folder = path.with_name(path.name + ".run")
    values = problem.resting_values
    with (
        blocks.in_use(),
        Run.create(folder, rows_of_parts, 1, values, STRAY_BYTES, UNWRITTEN_BYTES) as run,
    ):
        training = _Training(blocks, settings, problem, plan, run, progress, begin, read_rate)
        certificate, converged = training.run()
        report = training.report(certificate, converged)
        W = training.solver.W
        del training  # its memory goes to the writing of the model
        result = make_model(blocks, settings, W, report)
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

    alpha: npt.NDArray[np.float64]
    screen: Screen | None = None

    def moving(
        self, block: int, evicted: Evicted | None, every_row: bool
    ) -> npt.NDArray[np.bool_] | None:
        """Which rows to visit, None for all; rows evicted since are taken over and visited."""
        late: npt.NDArray[np.int32] | slice = slice(0)
        if evicted is not None:
            mine = evicted.home == block
            late = evicted.row[mine]
            self.alpha[late] = evicted.alpha[mine]
        if every_row or self.screen is None:
            return None
        self.screen.moving[late] = True
        return self.screen.moving


def _look(coming: _Coming, first: int, rows: Rows) -> None:
    """Screen a chunk of the next block, as soon as it is decoded."""
    if coming.screen is not None:
        coming.screen.add(first, rows, coming.alpha[first : first + len(rows)])


@dataclass
class _Training:
    """The loop of one training and its bookkeeping."""

    store: BlockStore
    settings: Settings
    problem: Problem
    plan: MemoryPlan
    run_files: Run
    progress: Progress
    begin: float
    read_rate: float | None
    seconds: _Seconds = field(default_factory=_Seconds)
    totals: Totals = field(default_factory=Totals)
    passes: int = 0

    def __post_init__(self) -> None:
        plan, settings = self.plan, self.settings
        nonzeros = plan.cache_nnz + 2 * plan.part_nnz + 2 * SPARE
        arena = Arena.of(nonzeros, self.store.value_type)
        working = WorkingSet(arena, plan.cache_rows, plan.cache_nnz, plan.part_rows)
        n_weights = self.store.n_features + (settings.bias > 0)
        self.solver = Solver(
            self.problem, np.zeros((n_weights, 1)), working,
            rounds=1, policy=settings.policy, seed=settings.seed,
        )  # fmt: skip
        threads = settings.threads or len(os.sched_getaffinity(0))
        decoders = plan.decoders(threads, settings.mem_bytes)
        self._pool = loading_thread(threads)
        self.reader = BlockReader(self.store, plan, arena, self._pool, decoders, self.read_rate)
        self._blocks: Generator[Loaded[int, _Coming, Rows]] | None = None
        self._evicted: Evicted | None = None
        self._last_block = -1
        self.rounds: list[int] = []
        self._pass_bytes = sum(c.size for part in plan.parts for c in part.chunks)
        self._free_rows: int | None = None
        self._alphas = [np.empty((plan.part_rows, 1)) for _ in range(2)]
        self._committed = self.begin
        self._mark = asdict(self.seconds)

    def run(self) -> tuple[Certificate, bool]:
        """Pass after pass until the certified gap is small enough or a budget is used up."""
        with self._pool:
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
            if last or watch.is_due(done.gap, self.solver.dual):
                certificate, W = self._certify()
                watch.learn(certificate.relative_gap)
                converged = certificate.relative_gap <= self.settings.tol
                last = last or converged
                if not last:
                    self.solver.W[:] = W  # rebuilt from the alphas, which cancels the drift
                del W
            self._report_pass(done, certificate, in_time)
            if last or time.perf_counter() - self._committed > COMMIT_SECONDS:
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
            self._evicted = None
            self._blocks = self.reader.read(self._order(), self._prepare, self._load_alpha, _look)
        kept = []
        for k, loaded in enumerate(itertools.islice(self._blocks, n_blocks)):
            block, coming = loaded.item, loaded.coming
            self.seconds.disk = self.reader.disk_seconds
            self.seconds.load += loaded.load_seconds
            self.seconds.wait += loaded.wait_seconds
            moving = coming.moving(block, self._evicted, every_row)
            with self.seconds.measure("solve"):
                step = self.solver.step(block, loaded.result, coming.alpha, moving)
            done.add(step.totals)
            self._evicted, self._last_block = step.evicted, block
            kept.append(self._pool.submit(self._keep, block, step))
            self.progress.advance(k + 1)
            if self._is_late():
                break
        self.progress.finish()
        if n_blocks == 1:
            self._stop_reading()
        self._free_rows = sum(task.result() for task in kept) + self.solver.count_free()
        self.totals.add(done)
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

    def _keep(self, block: int, step: Step) -> int:
        """Put the alphas that a step handed back where they belong, in the loading thread.

        Returns how many of the block's are inside their bounds.
        """
        evicted = step.evicted
        free = self.run_files.store(block, step.alpha)
        self.run_files.add_strays(evicted.home, evicted.row, evicted.alpha)
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
            spent["disk"], spent["load"], spent["solve"],
        )  # fmt: skip
        self.rounds.append(rounds)
        self.solver.rounds = rounds
        if self.settings.cache_frac == "auto":
            plan = self.plan
            self.solver.working.cache_rows = choose_cache_rows(
                self._free_rows, plan.part_rows, plan.cache_rows
            )

    def _spent(self) -> dict[str, float]:
        """Seconds since the last pass began, by purpose."""
        return {k: v - self._mark[k] for k, v in asdict(self.seconds).items()}

    def _prepare(self, block: int, slot: int) -> "_Coming":
        """Note weights and cache as they are now, for the screening of the next block."""
        coming = self._prepare_alpha(block, slot)
        if not self.settings.screen:
            return coming
        return _Coming(coming.alpha, self.solver.look_ahead(block, len(coming.alpha)))

    def _prepare_alpha(self, block: int, slot: int) -> "_Coming":
        return _Coming(self._alphas[slot][: self.plan.parts[block].rows])

    def _load_alpha(self, block: int, coming: "_Coming") -> None:
        self.run_files.load(block, coming.alpha)

    def _is_late(self) -> bool:
        limit = self.settings.time_limit
        return limit is not None and time.perf_counter() - self.begin > float(limit)

    def _certify(self) -> tuple[Certificate, npt.NDArray[np.float64]]:
        """Evaluate primal and dual at fixed W and alphas; also rebuild W from the alphas."""
        self._stop_reading()
        with self.seconds.measure("certify"):
            certifier = Certifier(self.problem, self.solver.W, self.solver.W_seen)
            n_blocks = len(self.plan.parts)
            self.progress.start("certify", n_blocks, "blocks")
            blocks = self.reader.read(range(n_blocks), self._prepare_alpha, self._load_alpha)
            for k, loaded in enumerate(blocks):
                alpha = loaded.coming.alpha
                self.solver.working.alphas_of(loaded.item, alpha)
                certifier.add(loaded.result, alpha)
                self.progress.advance(k + 1)
            self.progress.finish()
            certificate = certifier.finish()
        if certificate.drift > 1e-9:
            raise StoreError(
                f"the weights do not belong to their alphas (drift {certificate.drift:.1e}); "
                "this is a bug in sbm, please report it"
            )
        return certificate, certifier.W_alpha

    def _report_pass(self, done: Totals, certificate: Certificate | None, complete: bool) -> None:
        seconds = self._spent()
        busy = max(seconds["solve"], 1e-9)
        dual = self.solver.dual
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
            "cache_rows": self.solver.working.cache_rows,
            "cached_rows": self.solver.working.n_cached,
            "cached_free": self.solver.count_free(),
            "cache_hits": done.cached,
            "rows_at_rest": done.rest,
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
        with self.seconds.measure("write"):
            self.run_files.commit(position, self.solver.state())
        self._committed = time.perf_counter()

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
            "seconds": {"total": time.perf_counter() - self.begin, **asdict(self.seconds)},
            "bytes_read": self.reader.bytes_read,
            "peak_rss_bytes": peak_bytes(),
            "n_support": certificate.n_support,
            "n_free": certificate.n_free,
            "drift": certificate.drift,
        }
