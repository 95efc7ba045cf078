"""Benchmark of losses: text to a certified model beside LIBLINEAR's solvers of the same problem."""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench.data import Floats, labels_of
from scripts.bench.ours import (
    BUDGET,
    solving_of,
    split,
    splitting_options,
    train,
    training_options,
    warm_training,
)
from scripts.bench.peers import (
    Liblinear,
    LinearModel,
    iteration_in_memory,
    read_liblinear_model,
    read_our_model,
)
from scripts.bench.tools import BenchError, Finished, Report, alternate, median, median_ratio, tell

EPSILON = 0.1  # both programs' own
READING_E = 1e9  # so that LIBLINEAR ends after one iteration
READING_SOLVER = 12  # any will do: all read alike, and this one takes any labels
ALIKE = 1e-6  # objectives that differ by less, relatively, are equal


@dataclass(frozen=True)
class FamilyLoss:
    """One loss.

    Attributes
    ----------
    of_rows : callable
        ``of_rows(y, z)``: the loss of each row, of its sign or target and its decision value.
    peers : dict of int to float
        LIBLINEAR's solvers and the ``-e`` that each takes by itself.
    targets : bool
        Whether labels are targets.
    """

    of_rows: Callable[[Floats, Floats], Floats]
    peers: dict[int, float]
    targets: bool = False


def _deviation(y: Floats, z: Floats) -> Floats:
    excess: Floats = np.maximum(0.0, np.abs(y - z) - EPSILON)
    return excess


LOSSES: dict[str, FamilyLoss] = {
    "log_loss": FamilyLoss(lambda y, z: np.logaddexp(0.0, -y * z), {7: 0.1, 0: 0.01}),
    "squared_hinge": FamilyLoss(lambda y, z: np.maximum(0.0, 1.0 - y * z) ** 2, {1: 0.1}),
    "epsilon_insensitive": FamilyLoss(_deviation, {13: 0.1}, targets=True),
    "squared_epsilon_insensitive": FamilyLoss(
        lambda y, z: _deviation(y, z) ** 2, {12: 0.1, 11: 1e-4}, targets=True
    ),
}


def family_objective(text: Path, loss: str, C: float, model: LinearModel) -> float:
    """Primal value: ½ |w|² + C times the loss of all rows, in float64 from the text."""
    of_rows = LOSSES[loss].of_rows
    sum_ = sum(float(of_rows(y, decisions).sum()) for y, decisions in model.decide(text))
    return 0.5 * float(model.weights @ model.weights) + C * sum_


def bench_family(args: argparse.Namespace, report: Report) -> None:
    """Time text to a certified model, and solving alone, beside LIBLINEAR with its own tolerance.

    Ours is ``sbm split`` and ``sbm train`` to ``--tol``, the peer's whole process goes from the
    same text to a model file. All take turns; the split of a run counts for all losses. Objectives
    are computed by one function from the text and the weights in the model files.
    """
    texts = [args.data, *args.also]
    for text in texts:
        if not text.is_file():
            raise BenchError(f"{text}: no such file")
    for text in texts:
        report.rows += list(_compare_on(args, text))
    for row in report.rows:
        name = f"{row['data']}: {row['loss']} of -s {row['peer_s']}"
        for what in ("whole", "solving", "memory"):
            report.ratios[f"{name}, {what}"] = row[f"{what}_ratio"]
    report.notes = [
        f"LIBLINEAR: {Liblinear(args).what.split(',')[0]}, -e its own default for each solver",
        *_differences(report.rows),
        (
            "objective: computed by one function from the text and the weights in the model file; "
            "above: above the largest certified dual value, so at most that far from the optimum"
        ),
        "whole: of ours sbm split and sbm train, processes; of LIBLINEAR its one process",
        (
            "solving: of ours solving, certificates and waiting for rows after the first time, "
            "from its report and log; of LIBLINEAR the whole process less reading and writing (a "
            "process of one iteration, less that iteration in memory through the C library)"
        ),
        "memory: peaks from outside, of ours the larger one of split and train",
        f"epsilon {EPSILON} of both; in regression the labels themselves are the targets",
    ]


def _compare_on(args: argparse.Namespace, text: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of the table for one text."""
    two = len(np.unique(labels_of(text))) == 2
    losses = [loss for loss in args.losses if two or LOSSES[loss].targets]
    if not losses:
        raise BenchError(f"{text.name} has not two labels, so only regression can be measured")
    store = args.folder / "family.sbm"
    begin = partial(split, text, store, **splitting_options(args))
    begin()  # compiles
    ours = {loss: _Ours(store, args, loss) for loss in losses}
    for one in ours.values():
        warm_training(args, store, one.model, **one.options)
    peers = [_Peer(text, args, loss, solver) for loss in losses for solver in LOSSES[loss].peers]
    reader = Liblinear(args, solver=READING_SOLVER)
    tasks: dict[str, Callable[[], Any]] = {"split": begin}
    tasks |= {loss: one.run for loss, one in ours.items()}
    tasks["reading"] = partial(reader.run, text, args.folder / "reading.model", READING_E)
    tasks |= {peer.name: peer.run for peer in peers}
    runs = alternate(tasks, args.runs)
    iteration = iteration_in_memory(text, args.C, READING_SOLVER, READING_E)
    reading = median([reader.reading(done, iteration) for done in runs["reading"]])
    values = {loss: one.objective(text) for loss, one in ours.items()}
    for peer in peers:
        trained = [done for done, _ in runs[peer.loss]]
        facts = trained[0].json()
        bound = max(done.json()["dual"] for done in trained)
        value = values[peer.loss]
        yield {
            "data": text.name, "loss": peer.loss, "peer_s": peer.solver, "peer_e": peer.e,
            "passes": facts["passes"], "certified_gap": facts["relative_gap"],
            "converged": facts["converged"],
            **_objectives(value, peer.objective(), bound),
            **_costs(runs["split"], runs[peer.loss], runs[peer.name], peer.solving(runs, reading)),
        }  # fmt: skip


class _Ours:
    """Our training of one loss on a store."""

    def __init__(self, store: Path, args: argparse.Namespace, loss: str) -> None:
        self._store, self._C, self._loss = store, args.C, loss
        self.model = args.folder / f"{loss}.model"
        self.options = training_options(args, loss=loss)

    def run(self) -> tuple[Finished, float]:
        """Train; return the process and its seconds of solving."""
        done = train(self._store, self.model, codes=BUDGET, **self.options)
        return done, solving_of(done, self.model)

    def objective(self, text: Path) -> float:
        """Of the last model."""
        tell(f"objective of {self._loss}")
        return family_objective(text, self._loss, self._C, read_our_model(self.model))


class _Peer:
    """LIBLINEAR with one solver on one text."""

    def __init__(self, text: Path, args: argparse.Namespace, loss: str, solver: int) -> None:
        self._text, self._C, self._program = text, args.C, Liblinear(args, solver=solver)
        self._model = args.folder / f"liblinear-{solver}.model"
        self.loss, self.solver, self.e = loss, solver, LOSSES[loss].peers[solver]
        self.name = f"LIBLINEAR -s {solver}"

    def run(self) -> Finished:
        """Train from the text to a model file."""
        return self._program.run(self._text, self._model, self.e)

    def objective(self) -> float:
        """Of the last model."""
        tell(f"objective of {self.name}")
        return family_objective(self._text, self.loss, self._C, read_liblinear_model(self._model))

    def solving(self, runs: dict[str, list[Any]], reading: float) -> list[float]:
        """Seconds of solving: those that it prints, else all but those of reading."""
        done: list[Finished] = runs[self.name]
        known = [self._program.shares(one).get("train", one.seconds - reading) for one in done]
        return [max(seconds, 1e-3) for seconds in known]


def _objectives(ours: float, peer: float, bound: float) -> dict[str, Any]:
    """Cells of both objectives; the stored values are rounded, so one may be below the bound."""
    share = peer / ours - 1
    words = f"{abs(share):.1e} {'worse' if share > 0 else 'better'}"
    return {
        "objective": f"{ours:.10g}", "peer_objective": f"{peer:.10g}",
        "peer_is": "equal" if abs(share) < ALIKE else words,
        "above": max(ours / bound - 1, 0.0), "peer_above": max(peer / bound - 1, 0.0),
    }  # fmt: skip


def _costs(
    splits: list[Finished],
    ours: list[tuple[Finished, float]],
    peer: list[Finished],
    peer_solving: list[float],
) -> dict[str, float]:
    """Cells of times and memory of runs that took turns."""
    splitting, peer_whole = [done.seconds for done in splits], [done.seconds for done in peer]
    training, solving = [done.seconds for done, _ in ours], [seconds for _, seconds in ours]
    whole = [sum(pair) for pair in zip(splitting, training, strict=True)]
    peak = max(done.peak_bytes for done in (*splits, *(done for done, _ in ours)))
    peer_peak = max(done.peak_bytes for done in peer)
    return {
        "split": median(splitting), "train": median(training), "peer_whole": median(peer_whole),
        "whole_ratio": median_ratio(whole, peer_whole),
        "solving": median(solving), "peer_solving": median(peer_solving),
        "solving_ratio": median_ratio(solving, peer_solving),
        "MB": peak / 1e6, "peer_MB": peer_peak / 1e6, "memory_ratio": peak / peer_peak,
    }  # fmt: skip


def _differences(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a note for each objective of LIBLINEAR that is not ours."""
    for row in rows:
        if row["peer_is"] != "equal":
            yield (
                f"{row['data']}: LIBLINEAR's objective of -s {row['peer_s']} is {row['peer_is']} "
                "than ours"
            )
