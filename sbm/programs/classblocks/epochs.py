"""The epochs of a training by blocks of classes: what one process solves, and certifies."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.alphas import Alphas, Lists
from sbm.distributed.comm import Comm
from sbm.engine.clock import clock
from sbm.engine.learners import Seconds
from sbm.engine.machine import peak_bytes, resident_bytes, usable_threads
from sbm.engine.pace import choose_rounds
from sbm.engine.prefetch import loading_thread, prefetched
from sbm.engine.progress import Progress
from sbm.errors import DataError, StoreError
from sbm.programs.classblocks.division import Division, Field, MeetingPart, SortedRows
from sbm.programs.classblocks.moving import MovingBlocks
from sbm.programs.training.ledger import Ledger
from sbm.programs.training.ranks import folder_of
from sbm.programs.training.setup import run_folder, time_left
from sbm.rows import SPARE, Arena, Rows
from sbm.settings import Settings
from sbm.solver.gap import MOST_DRIFT, Certificate
from sbm.solver.pairs import PairProblem, PairRounds, certify_pairs, solve_pairs
from sbm.solver.problem import TOO_LARGE, squared_norm
from sbm.store.blocks import BlockStore, Chunk
from sbm.store.run import Run

__all__ = ["ClassJob", "Epochs"]

Floats = npt.NDArray[np.float64]
Int32s = npt.NDArray[np.int32]

# Over the pairs of a meeting, where ``rounds`` is ``auto``; more would polish what the next
# meetings undo.
ROUNDS = 2
SUPPORT, FREE = 1, 2  # of kernels/class_pairs.py


@dataclass(frozen=True)
class ClassJob:
    """What a training by blocks of classes is asked to do, and with whom.

    Attributes
    ----------
    store : BlockStore
    path : Path
        Of the model.
    settings : Settings
    comm : Comm
    is_stopped : callable
        Whether somebody wants it to end.
    progress : Progress
    begin : float
        When it began, by `sbm.engine.clock.clock`.
    itself : dict
        What tells it from others, in every commit.
    """

    store: BlockStore
    path: Path
    settings: Settings
    comm: Comm
    is_stopped: Callable[[], bool]
    progress: Progress
    begin: float
    itself: dict[str, Any]

    @property
    def folder(self) -> Path:
        """Where the run of this process is."""
        return folder_of(run_folder(self.path), self.comm)


class Epochs:
    """The epochs of one process, one after the other.

    Parameters
    ----------
    job : ClassJob
    division : Division
    rows : SortedRows
    parts : list of MeetingPart
    run : Run
    """

    def __init__(
        self,
        job: ClassJob,
        division: Division,
        rows: SortedRows,
        parts: list[MeetingPart],
        run: Run,
    ) -> None:
        self.job, self.division, self.rows, self.run_files = job, division, rows, run
        self.parts, self.comm, self.settings = parts, job.comm, job.settings
        self.schedule = division.schedule
        self.home = [b for b, at in enumerate(self.schedule.home) if at == self.comm.rank]
        self.n_pairs = sum(map(len, self.schedule.days))
        self.W, self.W_alpha = self._no_weights(), self._no_weights()
        most = max((part.rows for part in parts), default=0)
        nnz = max((part.nnz for part in parts), default=0)
        arena = Arena.of(2 * nnz + SPARE, rows.store.value_type)
        self._buffers = [(arena.room(most), offset) for offset in (0, nnz)]
        self._place = {  # of a chunk's rows: their block, and the first one's number there
            chunk: (block, first)
            for block, chunks in enumerate(rows.chunks)
            for chunk, first in zip(chunks, _firsts(chunks), strict=True)
        }
        self.seconds, self.ledger, self.dual_sum = Seconds(), Ledger(), 0.0
        self.ledger.watch.tol = self.settings.tol
        self._threads = usable_threads(self.settings.threads)

    def _no_weights(self) -> MovingBlocks:
        """Return weights that are all 0, at home."""
        rows = [len(classes) for classes in self.division.classes]
        places = self.schedule.most_blocks(self.comm.rank)
        return MovingBlocks(self.comm, rows, self.division.n_weights, self.home, places)

    def run(self, record: Mapping[str, Any] | None) -> dict[str, Any]:
        """Train, from nothing or from a commit, until the gap is small or a budget is used up."""
        if record is not None:
            self._go_on(record)
        self._loading = loading_thread(self._threads)
        self._team = ThreadPoolExecutor(self._threads, "sbm-pairs")
        with self._loading, self._team:
            while not self.ledger.is_done:
                self._advance()
                self._commit()
        return self._report()

    def _advance(self) -> None:
        """Do an epoch, and certify where it has perhaps reached the tolerance."""
        ledger, settings = self.ledger, self.settings
        before, begun = asdict(self.seconds), ledger.totals.visits
        ledger.passes += 1
        ledger.rounds.append(_rounds(settings.rounds, ledger.rounds))
        gap = self._epoch()
        norms = self._by_class(lambda w, _: squared_norm(w))
        dual = self.dual_sum - 0.5 * math.fsum(norms)
        late = self.comm.gather([time_left(settings, self.job.begin)]).min() < 0
        last = bool(late) or ledger.passes >= settings.max_passes
        certificate = None
        if ledger.watch.is_due(gap, dual) or last:
            ledger.certificate = certificate = self._certify(last)
            ledger.watch.learn(certificate.relative_gap)
            last = last or certificate.relative_gap <= settings.tol
        ledger.is_done = last
        spent = {name: x - before[name] for name, x in asdict(self.seconds).items()}
        self._tell(spent, ledger.totals.visits - begun, gap, dual, certificate)

    def _epoch(self) -> float:
        """Solve all pairs of classes; return the estimate of the gap."""
        stats = np.zeros((self.n_pairs, 4))
        for part, rows, alpha in self._visit(self.W):
            with self.seconds.measure("solve"):
                stats[part.pair] += self._solve(part, rows, alpha)
        self._share(stats)
        gain, gap, visits, updates = map(math.fsum, stats.T)
        self.dual_sum += gain
        self.ledger.totals.visits += int(visits) // (self.division.n_classes - 1)
        self.ledger.totals.updates += int(updates)
        return gap

    def _solve(self, part: MeetingPart, rows: Rows, alpha: Lists) -> tuple[float, float, int, int]:
        """Solve a part, and keep its variables; return gain, gap, visits and updates."""
        here = self._field(part, rows)
        beta = here.spread(alpha, self.division.column)
        seeds = [self.settings.seed, self.ledger.passes, part.pair, part.cut]
        state = np.random.SeedSequence(seeds).generate_state(1, np.uint64).astype(np.uint64)
        how = PairRounds(self.ledger.rounds[-1], state, spread=self._team.map, tasks=self._threads)
        totals = solve_pairs(self._meeting(here, beta), how)
        self.run_files.store(part.number, here.gather(beta))
        return totals.gain, totals.gap, totals.visits, totals.updates

    def _meeting(self, here: Field, beta: Floats) -> PairProblem:
        """Return the problem of the pairs of classes of a part."""
        problem = self.division.problem
        costs = problem.costs[here.classes]
        return PairProblem(here.rows, beta, self.W.table, costs, problem.bias, here.fixtures)

    def _field(self, part: MeetingPart, rows: Rows) -> Field:
        """Return the rows and classes of a part by their own numbers."""
        blocks = part.meeting.blocks
        classes = [self.division.classes[block] for block in blocks]
        places = [self.W.place(block) for block in blocks]
        return Field.of(classes, places, rows, self.division.column)

    # ------------------------------------------------------------------------ days of an epoch

    def _visit(self, *weights: MovingBlocks) -> Iterator[tuple[MeetingPart, Rows, Lists]]:
        """Yield this process's parts with rows and variables; weights travel meanwhile.

        In the end all are at home again.
        """
        at = 0
        loaded = prefetched(self.parts, lambda part, slot: None, self._load, self._loading)
        with contextlib.closing(loaded):
            for one in loaded:
                self.seconds.load += one.load_seconds
                self.seconds.wait += one.wait_seconds
                at = self._move(at, one.item.day, weights)
                rows, alpha = one.result
                yield one.item, rows, alpha
        self._move(at, len(self.schedule.days), weights)
        self.ledger.bytes_read += sum(c.size for part in self.parts for c in part.chunks)
        self.seconds.disk = self.rows.store.read_seconds

    def _load(self, part: MeetingPart, slot: int, coming: None) -> tuple[Rows, Lists]:
        """Read a part, in the thread that reads ahead."""
        room, offset = self._buffers[slot]
        rows = self.rows.store.read(part.chunks, room, offset)
        return rows, _lists(self.run_files.load(part.number))

    def _move(self, at: int, to: int, weights: Sequence[MovingBlocks]) -> int:
        """Do what is due from one day to another; all processes do so before every day."""
        with self.seconds.measure("wait"):
            for day in range(at + 1, to + 1):
                if self.comm.gather([bool(self.job.is_stopped())]).any():
                    raise KeyboardInterrupt
                for blocks in weights:
                    blocks.move(*self.schedule.moves_of(day, self.comm.rank))
        return to

    def _share(self, sums: Floats) -> None:
        """Let all processes know what one of them has found; the others have 0 there.

        So whatever is made of the numbers, and in which order, is the same for any number of them.

        Raises
        ------
        DataError
            A number is beyond the range of a float.
        """
        self.comm.add_up(sums)
        if not np.isfinite(sums).all():
            raise DataError(TOO_LARGE)

    def _by_class(self, measure: Callable[[Floats, Floats], float]) -> Floats:
        """Return a number for each class: ``measure(w, weights that belong to its variables)``."""
        found = np.zeros(self.division.n_classes)
        for block in self.home:
            rows = zip(self.W.block(block), self.W_alpha.block(block), strict=True)
            for c, (w, w_alpha) in zip(self.division.classes[block], rows, strict=True):
                found[c] = measure(w[:, np.newaxis], w_alpha[:, np.newaxis])
        self._share(found)
        return found

    # ---------------------------------------------------------------------------- certificate

    def _certify(self, last: bool) -> Certificate:
        """Evaluate primal and dual at fixed W and variables.

        Training goes on with weights rebuilt from the variables; after the last epoch they stay
        what was certified: the model is these.
        """
        with self.seconds.measure("certify"):
            certificate = self._look_at_all()
            if certificate.drift > MOST_DRIFT:
                self._rebuild()
                certificate = self._look_at_all()
        if certificate.drift > MOST_DRIFT:
            raise StoreError(
                f"the weights do not belong to their alphas (drift {certificate.drift:.1e}); "
                "this is a bug in sbm, please report it"
            )
        if certificate.relative_gap > self.settings.tol and not last:
            self._rebuild()
        return certificate

    def _rebuild(self) -> None:
        """Take the weights that belong to the variables."""
        for block in self.home:
            self.W.block(block)[:] = self.W_alpha.block(block)

    def _look_at_all(self) -> Certificate:
        """Visit every row once with each other class, and change nothing but `W_alpha`.

        P(W) - F(α) = Σ g_ic + ½|W - W(α)|², where g_ic of a row i of class y depends on the weights
        of y and c alone.
        """
        sums = np.zeros((self.n_pairs, 3))
        marks = [np.zeros(n, np.uint8) for n in self.division.rows]
        self.W_alpha.clear_like(self.W)  # a part has its places in both
        for part, rows, alpha in self._visit(self.W, self.W_alpha):
            sums[part.pair] += self._look(part, rows, alpha, marks)
        self._share(sums)
        gap, loss, self.dual_sum = map(math.fsum, sums.T)
        norm, norm_alpha, drift2 = (
            math.fsum(self._by_class(measure))
            for measure in (
                lambda w, _: squared_norm(w),
                lambda _, w_alpha: squared_norm(w_alpha),
                squared_norm,
            )
        )
        primal, dual = 0.5 * norm + loss, self.dual_sum - 0.5 * norm_alpha
        gap += 0.5 * drift2
        scale, size2 = max(abs(primal), abs(dual)), max(2 * primal, norm)
        return Certificate(
            primal, dual, gap, gap / scale if scale > 0 else 0.0,
            drift=math.sqrt(drift2 / size2) if drift2 > 0 else 0.0,
            n_support=self._count(marks, SUPPORT), n_free=self._count(marks, FREE),
        )  # fmt: skip

    def _look(
        self, part: MeetingPart, rows: Rows, alpha: Lists, marks: Sequence[npt.NDArray[np.uint8]]
    ) -> Floats:
        """Return what a part adds to gap, primal and dual; mark its rows."""
        here, mine = self._field(part, rows), np.zeros(len(rows), np.uint8)
        sums = certify_pairs(
            self._meeting(here, here.spread(alpha, self.division.column)), self.W_alpha.table, mine,
            spread=self._team.map, tasks=self._threads,
        )  # fmt: skip
        for chunk, first in zip(part.chunks, _firsts(part.chunks), strict=True):
            block, place = self._place[chunk]
            marks[block][place : place + chunk.rows] |= mine[first : first + chunk.rows]
        return sums

    def _count(self, marks: Sequence[npt.NDArray[np.uint8]], kind: int) -> int:
        """Count the rows that have a mark in one process or another."""
        n = 0
        for mine in marks:
            marked = (mine & kind).astype(np.float64)
            self.comm.add_up(marked)
            n += int(np.count_nonzero(marked))
        return n

    # ------------------------------------------------------------------------ commit and report

    def _commit(self) -> None:
        """Make the end of this epoch the state to come back to, once all have come to it."""
        with self.seconds.measure("write"):
            self.ledger.seconds = asdict(self.seconds)
            now = replace(self.ledger, elapsed=self._elapsed())
            position = {**self.job.itself, **now.record(), "dual_sum": self.dual_sum}
            state = {_name(block): self.W.block(block) for block in self.home}
            self.run_files.commit(position, state)

    def _go_on(self, record: Mapping[str, Any]) -> None:
        """Take over what the last commit of this run says."""
        try:
            self.ledger, self.dual_sum = Ledger.of(record), float(record["dual_sum"])
            for name, value in self.ledger.seconds.items():
                setattr(self.seconds, name, value)
            for block in self.home:
                name = _name(block)
                self.W.block(block)[:] = self.run_files.read_state({name})[name]
        except (KeyError, TypeError, ValueError) as error:
            folder = self.run_files.folder
            raise StoreError(
                f"{folder} cannot be gone on with ({error}); start over with --fresh"
            ) from error
        self.job.progress.stage(
            f"going on with {self.run_files.folder}, after {self.ledger.passes} passes; --fresh "
            "starts over"
        )

    def collect(self) -> Floats | None:
        """Return all weights, shape (n_weights, n_classes), in the first process."""
        if self.comm.rank > 0:
            self.comm.exchange([(0, self.W.block(block)) for block in self.home], [])
            return None
        W = np.zeros((self.division.n_weights, self.division.n_classes))
        for block, owner in enumerate(self.schedule.home):
            classes = self.division.classes[block]
            if owner > 0:
                mine = np.empty((len(classes), self.division.n_weights))
                self.comm.exchange([], [(owner, mine)])
            else:
                mine = self.W.block(block)
            W[:, classes] = mine.T
        return W

    def _elapsed(self) -> float:
        """Seconds of all commands that took part."""
        return self.ledger.elapsed + clock() - self.job.begin

    def _tell(
        self,
        spent: Mapping[str, float],
        visits: int,
        gap: float,
        dual: float,
        certificate: Certificate | None,
    ) -> None:
        """Log an epoch, and show it."""
        busy = max(spent["solve"], 1e-9)
        mean = self.rows.store.nnz / max(1, self.rows.store.n_rows)
        record = {
            "pass": self.ledger.passes,
            "rounds": self.ledger.rounds[-1],
            "elapsed": self._elapsed(),
            "seconds": dict(spent),
            "rows_per_second": visits / busy,
            "nnz_per_second": visits / busy * mean,
            "dual": dual,
            "estimated_gap": gap,
            "estimated_relative_gap": min(gap / max(abs(dual), 1e-300), 1e300),
            "tol": self.settings.tol,
            "visits": visits,
            "cached_rows": 0,
            "cached_free": 0,
            "cache_hits": 0,
            "bytes_sent": self.comm.sent,
            "bytes_read": self.ledger.bytes_read,
            "resident_bytes": resident_bytes(),
            "certificate": certificate.to_dict() if certificate else None,
        }
        self.run_files.log({"event": "pass", **record})
        self.job.progress.row(record)

    def _report(self) -> dict[str, Any]:
        """The figures of the training, the same in all processes but for seconds and bytes read."""
        ledger, certificate = self.ledger, self.ledger.certificate
        assert certificate is not None
        return {
            **certificate.to_dict(),
            "converged": certificate.relative_gap <= self.settings.tol,
            "passes": ledger.passes,
            "rounds": ledger.rounds,
            "updates": ledger.totals.updates,
            "visits": ledger.totals.visits,
            "visits_cut_short": 0,
            "seconds": {"total": self._elapsed(), **asdict(self.seconds)},
            "bytes_read": ledger.bytes_read,
            "bytes_sent": int(self.comm.gather([self.comm.sent]).max()),
            "processes": self.comm.size,
            "peak_rss_bytes": peak_bytes(),
        }


def _rounds(setting: int | str, before: Sequence[int]) -> int:
    """Return the rounds over each part in the next epoch."""
    return ROUNDS if setting == "auto" else choose_rounds(setting, 1, before)


def _firsts(chunks: Sequence[Chunk]) -> list[int]:
    """Return the number of each chunk's first row, where they lie one behind the other."""
    ends = np.cumsum([chunk.rows for chunk in chunks], dtype=np.int64)
    return [int(end) - chunk.rows for end, chunk in zip(ends, chunks, strict=True)]


def _name(block: int) -> str:
    """Name of a block of weights in a commit."""
    return f"W-{block:05d}"


def _lists(alpha: Alphas) -> Lists:
    assert isinstance(alpha, Lists)
    return alpha
