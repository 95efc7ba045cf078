"""Trainings that are looked at after each pass: objective, and accuracy on a test text."""

import contextlib
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from scripts.bench.commands import log_of, remove
from scripts.bench.data import Floats, parse

NEVER = 1e-15  # a tolerance that is not reached
CONFIGS = Path(__file__).resolve().parents[2] / "configs"

Look = Callable[[Floats], float]
Point = dict[str, float]


@dataclass(frozen=True)
class Method:
    """One way to spend the memory of a block of BMD."""

    name: str  # as in the paper
    cache_frac: float  # share of it that is cache; the rest is the block
    policy: str
    parts: str  # whether blocks are those of the store, or drawn anew in each pass

    @classmethod
    def of(cls, name: str, config: str, parts: str = "blocks") -> "Method":
        """Read one of the paper's settings from ``configs/``."""
        given = tomllib.loads((CONFIGS / f"{config}.toml").read_text("utf-8"))
        return cls(name, given["cache-frac"], given.get("policy", "gradient"), parts)

    @property
    def options(self) -> dict[str, Any]:
        """Of a training."""
        return {"cache_frac": self.cache_frac, "policy": self.policy, "parts": self.parts}

    def blocks(self, of_bmd: int) -> int:
        """Blocks of its store, where BMD has so many."""
        return round(of_bmd / (1 - self.cache_frac))


METHODS = (
    Method.of("SBM-1/2", "paper_sbm_half"),
    Method.of("SBM-1/3", "paper_sbm_third"),
    Method.of("SBM-1/2-rand", "paper_sbm_half_rand"),
    Method.of("BMD", "paper_bmd"),
    Method.of("BMD, drawn anew", "paper_bmd", "drawn"),
)


class Examiner:
    """A text in memory, as the features of a store, whose features weights are of."""

    def __init__(self, store: Path, text: Path) -> None:
        import scipy.sparse

        from sbm.store.blocks import BlockStore

        blocks = BlockStore(store)
        known = blocks.read_feature_ids()
        labels = np.array(blocks.labels, np.float64)
        order, self._columns = np.argsort(known), np.argsort(labels)
        self._labels, parts, truth = labels[self._columns], [], []
        for wanted, indptr, ids, values in parse(text):
            place = np.minimum(np.searchsorted(known, ids, sorter=order), len(known) - 1)
            column = order[place]
            present = known[column] == ids
            values, column = np.where(present, values, 0.0), np.where(present, column, 0)
            shape = (len(wanted), len(known))
            parts.append(scipy.sparse.csr_matrix((values, column, indptr), shape))
            truth.append(wanted)
        self._X = scipy.sparse.csr_matrix(scipy.sparse.vstack(parts, "csr"))
        self._truth = np.concatenate(truth)

    def accuracy(self, W: Floats) -> float:
        """Share of right labels, by weights of each class; of two classes, of the larger label."""
        scores = self._X @ W
        if W.shape[1] == 1:
            best = (scores[:, 0] > 0).astype(np.intp)
        else:
            best = scores[:, self._columns].argmax(axis=1)
        return float(np.mean(self._labels[best] == self._truth))

    def signed(self) -> tuple[Floats, Any]:
        """Signs of the rows of two classes, and the rows as a matrix in float64."""
        return np.where(self._truth == self._labels[1], 1.0, -1.0), self._X

    def primal(self, W: Floats, C: float, power: int) -> float:
        """½|w|² + C Σ max(0, 1 - s w·x)^power, of two classes."""
        signs, X = self.signed()
        excess = np.maximum(0.0, 1.0 - signs * (X @ W[:, 0]))
        return 0.5 * float(np.vdot(W, W)) + C * float((excess**power).sum())

    @property
    def rows(self) -> int:
        """Rows of the text."""
        return len(self._truth)


def watch(
    store: Path,
    model: Path,
    options: Mapping[str, Any],
    looks: Mapping[str, Look],
    read_rate: float | None = None,
) -> list[Point]:
    """Train in this process; return what is known after each pass.

    With ``parts`` of blocks, every block is read again in each pass, as if memory were small.
    ``looks`` are computed of the weights, shape (n_features, n_outputs); a read rate, in bytes a
    second, makes the disk slow. Of each pass: ``seconds`` since the beginning, without certificates
    and looking; ``dual``; what the looks found; ``load``, ``wait`` and ``solve`` seconds of it.
    """
    import sbm
    from sbm.distributed.comm import SerialComm
    from sbm.engine.memory import MemoryPlan
    from sbm.programs.train import train_ranks
    from sbm.programs.training.job import TrainOptions

    points: list[Point] = []
    looking = 0.0

    def look(elapsed: float, dual: float, weights: list[Floats]) -> None:
        nonlocal looking
        begin = time.perf_counter()
        W = np.concatenate(weights, axis=1)
        found = {name: see(W) for name, see in looks.items()}
        points.append({"seconds": elapsed - looking, "dual": dual, **found})
        looking += time.perf_counter() - begin

    remove(model, model.with_name(model.name + ".run"))
    reading: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if options.get("parts") == "blocks":
        reading = mock.patch.object(MemoryPlan, "staying", return_value=[])
    with _watched(look), reading:
        how = TrainOptions(read_rate=read_rate)
        train_ranks(SerialComm(), store, model, sbm.Settings(**options), how)
    certifying = 0.0
    passes = (event for event in log_of(model) if event["event"] == "pass")
    for point, event in zip(points, passes, strict=True):
        certifying += event["seconds"]["certify"]
        point["seconds"] -= certifying
        point |= {name: event["seconds"][name] for name in ("load", "wait", "solve")}
        point |= {name: event[name] for name in ("visits", "free_rows", "cached_free")}
    return points


@contextlib.contextmanager
def _watched(look: Callable[[float, float, list[Floats]], None]) -> Iterator[None]:
    """While inside, every training shows its weights after each pass."""
    import sbm.programs.train as job
    from sbm.programs.training.training import Training

    class Watched(Training):
        """A training that is looked at."""

        def end_pass(self, *arguments: Any) -> None:
            super().end_pass(*arguments)
            elapsed = time.perf_counter() - self.begin
            look(elapsed, self.method.dual, self.method.weights)

    with mock.patch.object(job, "Training", Watched):
        yield
