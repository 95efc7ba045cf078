"""Streams and the online learners beside them: which there are, and with which numbers."""

import argparse
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.bench_data import first_bytes
from scripts.bench_ours import stream
from scripts.bench_tools import tell

__all__ = [
    "BLOCKWISE", "ONLINE", "Learner", "choose", "learner_options", "title_of", "warm_up_streams",
]  # fmt: skip


@dataclass(frozen=True)
class Learner:
    """A value of ``sbm stream --learner`` with its numbers.

    Attributes
    ----------
    name : str
        Of the option.
    options : dict
        Of the command, beside text, model and memory.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def all_options(self, mem: str) -> dict[str, Any]:
        """Those of the command."""
        return {"learner": self.name, "mem": mem, **self.options}


# Of Chang & Roth (2011), table 2: what keeps no rows, and what learns block by block.
ONLINE = ("perceptron", "passive_aggressive", "arow", "pegasos")
BLOCKWISE = {
    "bmd": {"learner": "bmd", "rounds": 10},
    "sbm in 3": {"learner": "sbm", "rounds": 3},
    "sbm": {"learner": "sbm", "rounds": 10},
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
    numbers = {k: v for k, v in learner.options.items() if k in ("C", "lambda")}
    return ", ".join([learner.name, *(f"{k} {v:.3g}" for k, v in numbers.items())])


def choose(
    text: Path, model: Path, mem: str, costs: list[float], C: float, rows: int
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
        learners.append(max(tried, key=lambda one: _progressive(text, model, mem, one, len(tried))))
    return learners


def _progressive(text: Path, model: Path, mem: str, learner: Learner, n_tried: int) -> float:
    if n_tried == 1:
        return 0.0
    tell(f"choosing C: {title_of(learner)}")
    return float(stream(text, model, **learner.all_options(mem)).json()["accuracy"])


def warm_up_streams(text: Path, folder: Path, mem: str, options: Iterable[dict[str, Any]]) -> None:
    """Compile what streams need, with rows of the data, so that no timed process has to."""
    tell("warming up the streams")
    part = first_bytes(text, 200_000, folder / "warm.svm")
    for some in options:
        stream(part, folder / "warm.model", **{"mem": mem, **some})
