"""Streams, and the online learners of the papers beside them, with their numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.bench.commands import remove, stream
from scripts.bench.data import first_bytes, labels_of
from scripts.bench.tools import Finished, run_process, script_command, tell


@dataclass(frozen=True)
class Learner:
    """A learner of ``scripts.papers.learners`` with its numbers."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)  # ``C`` or ``lambda``

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
    "bmd": {"cache_frac": 0.0, "rounds": 10},
    "sbm in 3": {"rounds": 3},
    "sbm": {"rounds": 10},
}
_WITH_COST = ("passive_aggressive", "arow")


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

    def progressive(learner: Learner) -> float:
        tell(f"choosing C: {title_of(learner)}")
        return float(learner.run(text, model, labels).json()["accuracy"])

    found = {name: Learner(name) for name in ONLINE}
    found["pegasos"] = Learner("pegasos", {"lambda": 1 / (C * rows)})
    for name in _WITH_COST:
        found[name] = max((Learner(name, {"C": cost}) for cost in costs), key=progressive)
    return list(found.values())


def warm_up_streams(
    text: Path, folder: Path, options: Iterable[dict[str, Any]], online: bool = True
) -> None:
    """Compile what streams and online learners need, so that no timed process has to."""
    tell("warming up the streams")
    part, model = first_bytes(text, 200_000, folder / "warm.svm"), folder / "warm.model"
    for some in options:
        stream(part, model, **some)
    if online:
        Learner(ONLINE[0]).run(part, model, sorted(set(labels_of(part).tolist())))
