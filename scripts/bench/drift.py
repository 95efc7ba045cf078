"""How far the running weights drift from the sum over their alphas.

W is changed with every visit and never made anew, unless a certificate falls short; every change is
rounded. `drift` of a certificate is the distance |W - W(α)| by sqrt(2 P) (of the weights that have
an objective of P, the largest size). Each training here goes over the rows so many times without a
certificate in between, and measures it at the end.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt

import sbm
from scripts.bench.tools import Report, tell

# Name, labels (0: targets), settings.
LOSSES: list[tuple[str, int]] = [
    ("hinge", 2), ("hinge", 4), ("squared_hinge", 2), ("log_loss", 2), ("crammer_singer", 4),
    ("weston_watkins", 4), ("epsilon_insensitive", 0), ("squared_error", 0), ("one_class", 1),
]  # fmt: skip
SCALES: dict[str, list[float]] = {
    "1": [1.0],
    "1e30": [1e30],
    "1e-30": [1e-30],
    "1e9 beside 1": [1e9, 1.0, 1.0, 1.0],
    "1e30 beside 1e-30": [1e30, 1e-30],
}
COSTS = (1e-10, 1.0, 1e10)
PASSES = (1, 10, 50, 200)
LIMIT = 1e-9  # above it a training says that something is wrong


@dataclass(frozen=True)
class Measured:
    """Drift of one training.

    Attributes
    ----------
    loss, scale : str
        What was trained, on values of what size.
    C : float
    passes : int
    drift, relative_gap : float
    """

    loss: str
    scale: str
    C: float
    passes: int
    drift: float
    relative_gap: float


def rows_of(n: int, labels: int, scale: str) -> tuple[npt.NDArray[np.float64], list[float]]:
    """Rows like those of a9a: 14 of 123 features, here with values; and labels or targets."""
    random = np.random.default_rng(0)
    X = np.zeros((n, 123))
    for x in X:
        x[random.choice(123, 14, replace=False)] = random.normal(size=14).round(3)
    scores = X @ random.normal(size=(123, max(1, labels)))
    scores += 2 * random.normal(size=scores.shape)
    X *= np.resize(np.array(SCALES[scale]), 123)
    return X, (scores[:, 0].round(3) if labels == 0 else scores.argmax(axis=1)).tolist()


def measure(
    rows: int,
    passes: tuple[int, ...],
    folder: Path,
    costs: tuple[float, ...] = COSTS,
    losses: list[tuple[str, int]] | None = None,
) -> Iterator[Measured]:
    """Yield what the trainings come to, one after the other.

    Parameters
    ----------
    rows : int
    passes : tuple of int
        Each number is a training of its own.
    folder : Path
        For files.
    costs : tuple of float
    losses : list of (str, int), optional
        Losses and how many labels; default: all.
    """
    for labels in (0, 1, 2, 4):
        mine = [name for name, n in losses or LOSSES if n == labels]
        for k, scale in enumerate(SCALES if mine else []):
            text, store = folder / "d.svm", folder / f"{labels}-{k}.sbm"
            _write(text, *rows_of(rows, labels, scale))
            sbm.split([text], store, blocks=6)
            for loss in mine:
                for C in costs if loss != "one_class" else (1.0,):
                    for n in passes:
                        found = _drift(store, folder / "m.model", loss, C, n)
                        yield Measured(_name(loss, labels), scale, C, n, *found)


def _name(loss: str, labels: int) -> str:
    return f"{loss}, {labels} classes" if labels > 2 else loss


def _write(path: Path, X: npt.NDArray[np.float64], labels: list[float]) -> None:
    with open(path, "w", encoding="ascii") as file:
        for x, label in zip(X, labels, strict=True):
            pairs = " ".join(f"{f + 1}:{x[f].item()!r}" for f in np.flatnonzero(x))
            file.write(f"{label!r} {pairs}\n")


def _drift(store: Path, model: Path, loss: str, C: float, passes: int) -> tuple[float, float]:
    """Train so many passes with one certificate, at the end."""
    settings: dict[str, Any] = {"loss": loss, "C": C, "max_passes": passes, "mem": "400MB"}
    # No estimate of the gap is so small: there is no certificate, which would make W anew, before
    # the last pass.
    settings["tol"] = 1e-300
    with mock.patch("sbm.programs.training.state.MOST_DRIFT", float("inf")):
        _, report = sbm.train(store, model, settings)
    return report["drift"], report["relative_gap"]


def report_of(found: list[Measured], rows: int) -> Report:
    """Make the table: a row for each loss and scale, with the worst drift of all costs."""
    report = Report(
        "drift", "distance of the running weights from the sum over their alphas",
        settings={"rows": rows, "costs": ", ".join(f"{C:g}" for C in sorted({m.C for m in found}))},
        notes=[
            "each number: the worst of all costs, after so many passes without a certificate",
            f"a training says that something is wrong above {LIMIT:g}",
            "two rounds a pass and more, six blocks, half of the working set cached",
        ],
    )  # fmt: skip
    groups: dict[tuple[str, str], list[Measured]] = {}
    for one in found:
        groups.setdefault((one.loss, one.scale), []).append(one)
    for (loss, scale), mine in groups.items():
        report.rows.append(
            {"loss": loss, "values": scale}
            | {
                f"{n} passes": _worst([m for m in mine if m.passes == n])
                for n in sorted({m.passes for m in mine})
            }
        )  # fmt: skip
    report.ratios["worst_drift"] = max(m.drift for m in found)
    return report


def _worst(found: list[Measured]) -> str:
    return f"{max(m.drift for m in found):.1e}"


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--passes", type=int, nargs="+", default=list(PASSES))
    parser.add_argument("-o", "--output", type=Path, help="write OUTPUT.json and OUTPUT.md")
    options = parser.parse_args(argv)
    found: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder:
        for one in measure(options.rows, tuple(options.passes), Path(folder)):
            found.append(one)
            tell(
                f"{one.loss}, values {one.scale}, C {one.C:g}, {one.passes} passes: {one.drift:.1e}"
            )
    report = report_of(found, options.rows)
    print(report.markdown())
    if options.output:
        report.write(options.output)
    return 0 if report.ratios["worst_drift"] <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
