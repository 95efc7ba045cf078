"""Streams, and the online learners of the papers beside them, with their numbers."""

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.bench.data import first_bytes, labels_of
from scripts.bench.ours import remove, stream
from scripts.bench.tools import Finished, run_process, script_command, tell


@dataclass(frozen=True)
class Learner:
    """A learner of ``scripts.papers.learners`` with its numbers.

    Attributes
    ----------
    name : str
    options : dict
        ``C`` or ``lambda``.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, text: Path, model: Path, labels: Sequence[float], passes: int = 1) -> Finished:
        """Learn a text; the report is on stdout."""
        remove(model)
        words = [f"--labels={','.join(map(repr, labels))}", f"--passes={passes}"]
        words += [f"-C{v!r}" if k == "C" else f"--{k}={v!r}" for k, v in self.options.items()]
        command = script_command("papers.learners", text, "-o", model)
        return run_process([*command, "--learner", self.name, *words])


# Of Chang & Roth (2011), table 2: what keeps no rows, and what learns block by block.
ONLINE = ("perceptron", "passive_aggressive", "arow", "pegasos")
BLOCKWISE: dict[str, dict[str, Any]] = {
    "bmd": {"policy": "none", "rounds": 10},
    "sbm in 3": {"rounds": 3},
    "sbm": {"rounds": 10},
}
_WITH_COST = ("passive_aggressive", "arow")


def learner_options(parser: argparse.ArgumentParser) -> None:
    """Of the online learners."""

    def costs(text: str) -> list[float]:
        values = [float(word) for word in text.split(",")]
        if not all(value > 0 for value in values):
            raise ValueError
        return values

    parser.add_argument(
        "--learner-C", type=costs, default=[0.01, 0.1, 1.0], metavar="C,C,...",
        help="of passive_aggressive and arow; of several the one of the best progressive accuracy, "
        "which is of the training text (default: 0.01,0.1,1)",
    )  # fmt: skip


def title_of(learner: Learner) -> str:
    """Its name and what was chosen for it."""
    return ", ".join([learner.name, *(f"{k} {v:.3g}" for k, v in learner.options.items())])


def choose(
    text: Path, model: Path, costs: list[float], C: float, labels: Sequence[float], rows: int
) -> list[Learner]:
    """Return the online learners with their numbers.

    λ of pegasos is 1/(C n), as in the problem that is solved. The cost of others is the one whose
    progressive accuracy is best: every row is predicted before it is learned, so no other text is
    needed for that.
    """
    learners = []
    for name in ONLINE:
        tried = [Learner(name)]
        if name == "pegasos":
            tried = [Learner(name, {"lambda": 1 / (C * rows)})]
        elif name in _WITH_COST:
            tried = [Learner(name, {"C": cost}) for cost in costs]
        best = tried[0]
        if len(tried) > 1:
            best = max(tried, key=lambda one: _progressive(text, model, one, labels))
        learners.append(best)
    return learners


def _progressive(text: Path, model: Path, learner: Learner, labels: Sequence[float]) -> float:
    tell(f"choosing C: {title_of(learner)}")
    return float(learner.run(text, model, labels).json()["accuracy"])


def warm_up_streams(text: Path, folder: Path, mem: str, options: Iterable[dict[str, Any]]) -> None:
    """Compile what streams need, with rows of the data, so that no timed process has to."""
    tell("warming up the streams")
    part = first_bytes(text, 200_000, folder / "warm.svm")
    for some in options:
        stream(part, folder / "warm.model", **{"mem": mem, **some})


def warm_up_learners(text: Path, folder: Path) -> None:
    """Compile the online learners."""
    part = first_bytes(text, 200_000, folder / "warm.svm")
    Learner(ONLINE[0]).run(part, folder / "warm.model", sorted(set(labels_of(part).tolist())))
