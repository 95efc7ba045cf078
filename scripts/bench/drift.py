"""How far the running weights drift from the sum over their alphas."""

import argparse
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

import sbm
from scripts.bench.registry import Registry, benchmark
from scripts.bench.tools import Report, tell

BENCHMARKS: Registry = {}
# Loss and labels; 0: targets.
LOSSES: list[tuple[str, int]] = [
    ("hinge", 2), ("hinge", 4), ("squared_hinge", 2), ("log_loss", 2), ("crammer_singer", 4),
    ("weston_watkins", 4), ("epsilon_insensitive", 0), ("squared_error", 0), ("one_class", 1),
]  # fmt: skip
SCALES: dict[str, list[float]] = {
    "1": [1.0], "1e30": [1e30], "1e-30": [1e-30], "1e9 beside 1": [1e9, 1.0, 1.0, 1.0],
    "1e30 beside 1e-30": [1e30, 1e-30],
}  # fmt: skip
COSTS = (1e-10, 1.0, 1e10)
LIMIT = 1e-9  # above it a training says that something is wrong


@benchmark(
    BENCHMARKS, runs=0, options={"rows": 1000, "passes": [1, 10, 50, 200]},
    quick={"rows": 30, "passes": [2]},
)  # fmt: skip
def drift(args: argparse.Namespace, report: Report) -> None:
    """Distance of the running weights from the sum over their alphas.

    W is changed with every visit and never made anew, unless a certificate falls short; every
    change is rounded. drift: the distance |W - W(α)| by sqrt(2 P), of the weights that have an
    objective of P, the largest size. Each number is the worst of all costs (1e-10, 1, 1e10), after
    so many passes without a certificate; a training says that something is wrong above 1e-9.

    Two rounds a pass and more, six blocks, half of the working set cached.
    """
    cells: dict[tuple[str, str], dict[str, float]] = {}
    for one in measure(args.rows, args.passes, args.folder):
        tell(", ".join(f"{name} {value}" for name, value in one.items()))
        mine = cells.setdefault((one["loss"], one["values"]), {})
        name = f"{one['passes']} passes"
        mine[name] = max(mine.get(name, 0.0), one["drift"])
    for (loss, values), mine in cells.items():
        shown = {name: f"{worst:.1e}" for name, worst in mine.items()}
        report.rows.append({"loss": loss, "values": values, **shown,
                            "ok": max(mine.values()) <= LIMIT})  # fmt: skip
    report.ratios["worst_drift"] = max(max(mine.values()) for mine in cells.values())


def measure(
    rows: int, passes: Sequence[int], folder: Path, costs: Sequence[float] = COSTS,
    losses: Sequence[tuple[str, int]] = LOSSES,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Yield the drift of trainings, one for each loss, scale, cost and number of passes."""
    text, store, model = folder / "d.svm", folder / "d.sbm", folder / "m.model"
    by_labels: dict[int, list[str]] = {}
    for loss, labels in losses:
        by_labels.setdefault(labels, []).append(loss)
    for (labels, names), (scale, factors) in itertools.product(by_labels.items(), SCALES.items()):
        _write(text, *_rows_of(rows, labels, factors))
        sbm.split([text], store, blocks=6, force=True)
        for loss, C, n in itertools.product(names, costs, passes):
            if loss == "one_class" and costs[-1] != C:  # it has no C
                continue
            # No estimate of the gap is so small: there is no certificate, which would make W anew,
            # before the last pass.
            settings = {
                "loss": loss,
                "C": C,
                "max_passes": n,
                "mem": "400MB",
                "tol": 1e-300,
                "parts": "blocks",
                "solver": "dual",
            }
            if loss == "one_class":
                del settings["C"]
            with mock.patch("sbm.programs.training.dual.MOST_DRIFT", float("inf")):
                _, report = sbm.train(store, model, settings)
            name = f"{loss}, {labels} classes" if labels > 2 else loss
            yield {"loss": name, "values": scale, "C": C, "passes": n, "drift": report["drift"]}


def _rows_of(
    n: int, labels: int, factors: list[float]
) -> tuple[npt.NDArray[np.float64], list[float]]:
    """Rows like those of a9a: 14 of 123 features, here with values; and labels or targets."""
    random = np.random.default_rng(0)
    X = np.zeros((n, 123))
    for x in X:
        x[random.choice(123, 14, replace=False)] = random.normal(size=14).round(3)
    scores = X @ random.normal(size=(123, max(1, labels)))
    scores += 2 * random.normal(size=scores.shape)
    X *= np.resize(np.array(factors), 123)
    return X, (scores[:, 0].round(3) if labels == 0 else scores.argmax(axis=1)).tolist()


def _write(path: Path, X: npt.NDArray[np.float64], labels: list[float]) -> None:
    with open(path, "w", encoding="ascii") as file:
        for x, label in zip(X, labels, strict=True):
            pairs = " ".join(f"{f + 1}:{x[f].item()!r}" for f in np.flatnonzero(x))
            file.write(f"{label!r} {pairs}\n")
