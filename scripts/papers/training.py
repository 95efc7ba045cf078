"""Trainings of the SBM paper on one data set, and their curves: equations (7) and (8)."""

from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

from scripts.bench.commands import log_of
from scripts.bench.data import first_bytes
from scripts.bench.tools import tell, timed
from scripts.bench.trajectory import NEVER, Examiner, Point, watch
from scripts.papers.data import Problem
from scripts.papers.tools import Curve, first_at

# Of all trainings.
TRAINING: dict[str, Any] = {
    "rows": 200_000,  # of texts that are made
    "max_passes": 6, "mem": "4GB",
    # of the training to the optimum: its tolerance, 0 for that of the data set, and its passes
    "tol": 0.0, "reference_passes": 200,
}  # fmt: skip
QUICK_TRAINING = {"rows": 600, "max_passes": 2, "tol": 1e-2, "mem": "1GB"}


@dataclass(frozen=True)
class Reference:
    """A model that is as good as optimal."""

    primal: float
    dual: float
    accuracy: float  # share of right labels of the test text
    free_share: float  # of the rows, those whose alpha is inside its bounds


class Trainer:
    """Trains on the stores of one data set, in this process, split to these numbers of blocks."""

    def __init__(
        self, args: Namespace, problem: Problem, blocks: Iterable[int], dtype: str = "auto"
    ) -> None:
        self.problem, self._args, self._dtype = problem, args, dtype
        self._folder: Path = args.folder / f"{problem.name}-{dtype}"
        self._folder.mkdir()
        self._model = self._folder / "one.model"
        self._options = {
            "loss": problem.loss, "C": problem.C, "mem": args.mem, "tol": NEVER, "solver": "dual",
            "parts": "blocks",
            "max_passes": args.max_passes,
        }  # fmt: skip
        if not args.quick:
            self._warm_up()
        self.split_seconds = {n: self._split(n) for n in dict.fromkeys(blocks)}
        self.examiner = Examiner(self.store(next(iter(self.split_seconds))), problem.test)

    def store(self, blocks: int) -> Path:
        """The store of so many blocks."""
        return self._folder / f"{blocks}.sbm"

    def bytes(self, blocks: int) -> int:
        """Size of that store."""
        files = (path for path in self.store(blocks).rglob("*") if path.is_file())
        return sum(path.stat().st_size for path in files)

    def _warm_up(self) -> None:
        """Compile split and training, with rows of the data, so that nothing timed has to."""
        part = first_bytes(self.problem.text, 200_000, self._folder / "warm.svm")
        store = self._folder / "warm.sbm"
        split_seconds(part, store, 2, self._dtype)
        accuracy = Examiner(store, part).accuracy
        for share in (0.0, 0.5):
            some = {**self._options, "max_passes": 1, "cache_frac": share}
            watch(store, self._model, some, {"accuracy": accuracy})

    def _split(self, blocks: int) -> float:
        tell(f"{self.problem.title}: splitting to {blocks} blocks")
        return split_seconds(self.problem.text, self.store(blocks), blocks, self._dtype)

    def train(
        self, name: str, blocks: int, *, rate: float | None = None, **options: Any
    ) -> list[Point]:
        """Train for ``max_passes``; what is known after each pass.

        A rate, in bytes a second, makes the disk slow; further options are settings.
        """
        tell(f"{self.problem.title}: {name}" + (f", {rate / 1e6:.3g} MB/s" if rate else ""))
        looks = {"accuracy": self.examiner.accuracy}
        return watch(self.store(blocks), self._model, self._options | options, looks, rate)

    def refer(self, blocks: int) -> Reference:
        """Train until the gap is small."""
        tol = self._args.tol or self.problem.tol
        most = self._args.reference_passes
        points = self.train(f"to {tol:g}", blocks, tol=tol, max_passes=most, rounds="auto")
        end = next(event for event in log_of(self._model) if event["event"] == "end")
        rows = store_of(self.store(blocks)).n_rows
        free = end.get("n_free", end.get("n_support", 0))  # without upper bounds, all are free
        return Reference(end["primal"], end["dual"], points[-1]["accuracy"], free / rows)


def split_seconds(text: Path, store: Path, blocks: int, dtype: str) -> float:
    """Split a text in this process; the seconds it takes."""
    import sbm

    return timed(lambda: sbm.split([text], store, blocks=blocks, dtype=dtype, force=True))


def store_of(path: Path) -> Any:
    """Open a store."""
    from sbm.store.blocks import BlockStore

    return BlockStore(path)


@dataclass(frozen=True)
class Seen:
    """What is known of an online learner after some passes."""

    passes: int
    seconds: float  # from text
    accuracy: float
    learning: float | None = None  # seconds of it that were not reading, a pass


class Curves:
    """Curves of several methods on one data set, after the seconds of the split before each.

    ``others`` are learners that have no dual value. ``known``: how closely the optimum is known,
    relatively.
    """

    def __init__(
        self,
        data: str,
        found: Mapping[str, list[Point]],
        before: Mapping[str, float],
        reference: Reference,
        others: Mapping[str, list[Seen]] | None = None,
    ) -> None:
        points = [point for some in found.values() for point in some]
        more = [seen.accuracy for some in (others or {}).values() for seen in some]
        self._optimum = max(reference.dual, *(point["dual"] for point in points))
        self._best = max(reference.accuracy, *more, *(point["accuracy"] for point in points))
        self._data = data
        self.known = max(reference.primal / self._optimum - 1, 1e-12)
        self.by_name = self.also(found, before)
        self.by_name |= {name: self._seen(name, some) for name, some in (others or {}).items()}

    def _curve(self, name: str, points: list[Point], before: float) -> Curve:
        return [
            {
                "data": self._data, "method": name, "pass": k,
                "seconds": before + point["seconds"], "dual": point["dual"],
                "difference": abs((point["dual"] - self._optimum) / point["dual"]),
                "accuracy": point["accuracy"],
                "accuracy_difference": 100 * (self._best - point["accuracy"]),
                "load": point["load"], "solve": point["solve"], "visits": point["visits"],
                "free_rows": point["free_rows"], "cached_free": point["cached_free"],
            }
            for k, point in enumerate(points, 1)
        ]  # fmt: skip

    def _seen(self, name: str, found: list[Seen]) -> Curve:
        return [
            {
                "data": self._data, "method": name, "pass": one.passes, "seconds": one.seconds,
                "dual": None, "difference": None, "accuracy": one.accuracy,
                "accuracy_difference": 100 * (self._best - one.accuracy), "solve": one.learning,
                **dict.fromkeys(("load", "visits", "free_rows", "cached_free")),
            }
            for one in found
        ]  # fmt: skip

    def also(
        self, found: Mapping[str, list[Point]], before: Mapping[str, float]
    ) -> dict[str, Curve]:
        """Curves of further trainings, measured against the same optimum and accuracy."""
        return {name: self._curve(name, found[name], before[name]) for name in found}

    def difference(self, name: str, number: int = 0) -> float:
        """Distance from the optimum after a pass, by default the last one.

        Not below what is known of the optimum.
        """
        return max(float(self.by_name[name][number - 1]["difference"]), self.known)

    def ratio(self, name: str, other: str) -> float:
        """Difference of one method over that of another: geometric mean over the passes."""
        numbers = range(1, 1 + min(len(self.by_name[name]), len(self.by_name[other])))
        logs = [log(self.difference(name, k) / self.difference(other, k)) for k in numbers]
        return exp(fmean(logs))

    def passes_to(self, name: str, level: float) -> float:
        """Passes to a difference, infinite if it takes more than there are."""
        return first_at(self.by_name[name], "difference", max(level, self.known), "pass")

    def rows(self) -> Curve:
        """All of them."""
        return [row for curve in self.by_name.values() for row in curve]
