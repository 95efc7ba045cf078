"""Benchmark of the compiled loop: epochs over rows in memory, and what an epoch achieves."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.solver.step import INNER_TOL, chunk_of
from scripts.bench.commands import Held, hold
from scripts.bench.data import Floats, make_text
from scripts.bench.peers import LiblinearLibrary
from scripts.bench.registry import Registry, benchmark, existing
from scripts.bench.tools import BenchError, Report, alternate, median, tell, timed

BENCHMARKS: Registry = {}


@benchmark(
    BENCHMARKS, rows=2_500_000,
    options={"C": 0.1, "more_iterations": 2, "epochs": [1, 2, 4, 8], "long": None,
             "long_rows": 60_000, "long_features": 100_000, "long_nnz": 500},
    quick={"more_iterations": 30, "runs": 3, "long_rows": 1500, "long_features": 2000,
           "long_nnz": 200},
)  # fmt: skip
def kernel(args: argparse.Namespace, report: Report) -> None:
    """One epoch over rows in memory.

    One thread each; the same rows in the same order; once for the data and once for long rows. Ours
    is one call of the kernel with rounds=1 over all rows as a store with one block gives them
    (dealt at random, indices in order of first appearance), in chunks as the solver cuts them.
    Epoch 1 starts from zero weights, the next ones go on from there.

    LIBLINEAR's iteration: its train is called through the C library with the problem already built,
    features in order of id. It has no option for the number of iterations, and its time includes
    setting up and the final objective. So it runs twice: with -e 1e9, which ends after iteration 1,
    and with the largest -e found (by lowering it step by step) that ends after at least
    --more-iterations more; the number is read from its output. The difference of the two times,
    divided by the difference of the iterations, is one iteration: iterations 2 to about 5, where
    shrinking has hardly begun. What it does remove makes LIBLINEAR look faster, not us.

    touch: a compiled loop that adds up W[indices[p]] over all nonzeros in storage order, with four
    sums, so that it waits for memory alone.

    relative gap: primal less dual value over the larger one, once each, not timed; of ours in
    chunks as the solver cuts them and in a plain random order (chunks of one row); LIBLINEAR's from
    its weights and the dual value it prints, empty where no -e ends after just so many iterations.
    """
    texts = {"short rows": args.data, "long rows": _long_text(args, report)}
    for name, text in texts.items():
        tell(f"loading {name}")
        _Comparison(name, hold(text, args.folder, args.C), args).fill(report)


def _long_text(args: argparse.Namespace, report: Report) -> Path:
    """The text with long rows, made if need be."""
    if args.long is not None:
        report.data["long"] = args.long.name
        return existing(args.long)
    text: Path = args.folder / "long.svm"
    tell("making data with long rows")
    shape = ("--rows", args.long_rows, "--features", args.long_features)
    more = ("--nnz", args.long_nnz, "--values", "real", "--power", 0.8)
    report.data["long"] = make_text(text, *shape, *more)
    return text


class _Comparison:
    """Everything about one data set."""

    def __init__(self, name: str, held: Held, args: argparse.Namespace) -> None:
        self._name, self._held, self._args = name, held, args
        self._peer = LiblinearLibrary(held, args.C)

    def fill(self, report: Report) -> None:
        """Measure, and add to the report."""
        few, many, e = self._peer.find_iterations(self._args.more_iterations)
        times = alternate(self._tasks(many, e), self._args.runs)
        # Its order is random anew in every call, and with it the number of iterations.
        pairs = zip(times.pop("later"), times.pop("first"), strict=True)
        each = [
            (later - first) / (more - less) if more > less else 0.0
            for (later, more), (first, less) in pairs
        ]
        iteration = median(each)
        if iteration <= 0:
            raise BenchError(
                f"{self._name}: LIBLINEAR's iterations are too short to time on these rows; "
                "give more rows, or a larger --more-iterations"
            )
        self._fill_times(report, times, iteration, (few, many))
        self._fill_gaps(report)
        report.data[self._name] = (
            f"{len(self._held.rows):,} rows, {self._held.n_features:,} features, "
            f"{self._held.nnz:,} nonzeros"
        )
        report.settings[f"liblinear_e, {self._name}"] = f"1e9 and {e:.4g}"
        report.settings[f"liblinear_iterations, {self._name}"] = f"{few} and {many}"

    def _tasks(self, epochs: int, e: float) -> dict[str, Callable[[], Any]]:
        held, touch = self._held, _make_touch()
        tasks: dict[str, Callable[[], Any]] = {}
        for kind, values in held.kinds.items():
            ours = _Epochs(held, values)
            W = np.random.default_rng(0).standard_normal(held.n_features)
            shown = None if values is None else values[: held.nnz]
            loop = partial(touch, held.rows.indices[: held.nnz], shown, W)
            loop(), ours.run(1)  # compile
            tasks[f"sbm {kind}"] = partial(ours.run, epochs)
            tasks[f"touch {kind}"] = partial(timed, loop)
        tasks["first"] = partial(self._peer.timed_iterations, 1e9)
        tasks["later"] = partial(self._peer.timed_iterations, e)
        return tasks

    def _fill_times(
        self, report: Report, times: dict[str, list[Any]], iteration: float, span: tuple[int, int]
    ) -> None:
        few, many = span
        nnz = self._held.nnz

        def add(what: str, seconds: float) -> None:
            report.rows.append({
                "rows": self._name, "what": what, "seconds": seconds,
                "Mnonzeros_per_second": nnz / seconds / 1e6,
                "of_liblinear_iteration": seconds / iteration,
            })  # fmt: skip

        for kind in self._held.kinds:
            epochs = np.array(times[f"sbm {kind}"])  # runs x epochs
            later = median(epochs[:, few:].mean(axis=1).tolist())
            touched = median(times[f"touch {kind}"])
            add(f"sbm, {kind}, epoch 1", median(epochs[:, 0].tolist()))
            add(f"sbm, {kind}, mean of epochs {few + 1} to {many}", later)
            add(f"touch every nonzero and its weight, {kind}", touched)
            key = f"{self._name}, {kind}"
            report.ratios[f"{key}: epoch_of_liblinear_iteration"] = later / iteration
            report.ratios[f"{key}: epoch_of_touching"] = later / touched
        add(f"LIBLINEAR -s 3, mean of iterations {few + 1} to {many}", iteration)

    def _fill_gaps(self, report: Report) -> None:
        """Gaps after some epochs, as a table of their own."""
        tell(f"gaps after some epochs, {self._name}")
        counts = self._args.epochs
        ours = _Epochs(self._held, self._held.rows.values)
        columns = {
            "sbm": ours.gaps(counts),
            "sbm_in_plain_random_order": ours.gaps(counts, chunk=1),
            "LIBLINEAR": {k: self._peer_gap(k) for k in counts},
        }
        title = "relative gap after some epochs"
        report.tables.setdefault(title, []).extend(
            {"rows": self._name, "epochs": k} | {name: gaps[k] for name, gaps in columns.items()}
            for k in counts
        )
        last = counts[-1]
        ratio = columns["sbm"][last] / columns["sbm_in_plain_random_order"][last]
        report.ratios[f"{self._name}: gap_of_plain_order_after_{last}_epochs"] = ratio

    def _peer_gap(self, iterations: int) -> Any:
        found = self._peer.after(iterations)
        return None if found is None else found.relative_gap


@dataclass
class _Epochs:
    """Epochs of our kernel, from zero."""

    held: Held
    values: Any
    home: npt.NDArray[np.int32] = field(init=False)
    active: npt.NDArray[np.int32] = field(init=False)
    order: npt.NDArray[np.int32] = field(init=False)

    def __post_init__(self) -> None:
        self.home = np.zeros(len(self.held.rows), np.int32)
        self.awake, self.order = (
            np.empty_like(self.home),
            np.empty_like(self.home),
        )

    def run(self, number: int) -> list[float]:
        """Seconds of each epoch."""
        epoch, _, _ = self._from_zero()
        return [timed(epoch) for _ in range(number)]

    def gaps(self, counts: list[int], chunk: int | None = None) -> dict[int, float]:
        """Certified relative gap after some numbers of epochs."""
        from sbm.alphas import Dense
        from sbm.solver.gap import Certifier

        epoch, W, alpha = self._from_zero(chunk)
        gaps: dict[int, float] = {}
        for k in range(1, max(counts) + 1):
            epoch()
            if k in counts:
                certifier = Certifier(self.held.problem, W, np.empty_like(W))
                certifier.add(self.held.rows, Dense(alpha))
                gaps[k] = certifier.finish().relative_gap
        return gaps

    def _from_zero(self, chunk: int | None = None) -> tuple[Callable[[], None], Floats, Floats]:
        """An epoch to be called again and again, and its weights and alphas."""
        from sbm.compiled.calls import load
        from sbm.solver.problem import room_for_order

        rows, n = replace(self.held.rows, values=self.values), len(self.held.rows)
        alpha, score, rest = np.zeros(n), np.zeros(n, np.float32), np.zeros(n, np.uint8)
        W = np.zeros((self.held.n_features, 1))
        state = np.array([1], np.uint64)
        size = chunk or chunk_of(rows.lengths)
        order = self.order[: room_for_order(n, size)]
        arguments = self.held.problem.arguments(rows, alpha, W)

        def epoch() -> None:
            rest[:] = 0
            load("sbm.solver.kernels.svc").solve(
                *arguments, self.home, score, rest, None, 1.0, None, None, 0, 1, size, INNER_TOL,
                0.0, 0.0, 0, state, self.awake, order, np.zeros(5),
            )  # fmt: skip

        return epoch, W, alpha


def _make_touch() -> Callable[..., float]:
    """Compile the roofline loop."""
    from numba import njit

    @njit(error_model="numpy")
    def touch(indices: Any, values: Any, W: Any) -> float:
        a = b = c = d = 0.0
        end = len(indices) // 4 * 4
        for p in range(0, end, 4):
            if values is None:
                a += W[indices[p]]
                b += W[indices[p + 1]]
                c += W[indices[p + 2]]
                d += W[indices[p + 3]]
            else:
                a += W[indices[p]] * values[p]
                b += W[indices[p + 1]] * values[p + 1]
                c += W[indices[p + 2]] * values[p + 2]
                d += W[indices[p + 3]] * values[p + 3]
        for p in range(end, len(indices)):
            a += W[indices[p]]
        return a + b + c + d

    compiled: Callable[..., float] = touch
    return compiled
