"""A rank of the benchmark `ranks`: trains or sums arrays, and reports the cost.

    mpiexec -n 2 python -m mpi4py -m scripts.bench.ranks_worker TASK

TASK is JSON. This module adds hooks to the training that the package does not have: the dual after
every round, a certificate after every pass, and averaging instead of adding.
"""

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sbm.distributed.comm import Comm, MpiComm, SerialComm, world
from sbm.engine.engine import Engine
from sbm.engine.learners import Pass
from sbm.engine.progress import Progress
from sbm.engine.sync import Adding
from sbm.programs.train import train_ranks
from sbm.programs.training.job import TrainOptions
from sbm.solver.gap import GapWatch

AVERAGE = "average"
TIMEOUT = 600.0


class Passes(Progress):
    """Keeps the certificate and the counts of each pass, which are those of all processes."""

    def __init__(self) -> None:
        self.kept: list[dict[str, Any]] = []

    def row(self, record: dict[str, Any]) -> None:
        """See `Progress`."""
        certificate = record["certificate"] or {}
        gap, dual = certificate.get("relative_gap"), certificate.get("dual")
        counts = {name: record[name] for name in ("visits", "updates")}
        self.kept.append({"gap": gap, "dual": dual, **counts})


def watch_rounds(comm: Comm) -> list[dict[str, Any]]:
    """Have every round noted: its pass, the dual, and what this process sent and did in it."""
    rounds: list[dict[str, Any]] = []
    original = Engine._stretch

    @contextmanager
    def watched(self: Engine, now: Pass) -> Iterator[None]:
        sent, before = comm.sent, [(t.visits, t.updates) for t in now.totals.values()]
        with original(self, now):
            yield
        after = [(t.visits, t.updates) for t in now.totals.values()]
        visits, updates = (np.sum(after, axis=0) - np.sum(before, axis=0)).tolist()
        dual = math.fsum(learner.solver.dual for learner in self.learners)
        sigma = [one.adding.sigma for one in self.combiners.values()]
        rounds.append(
            {"pass": now.number, "dual": dual, "sent": comm.sent - sent, "visits": visits,
             "updates": updates, "next_sigma": max(sigma, default=1.0)}
        )  # fmt: skip

    Engine._stretch = watched  # type: ignore[method-assign]
    return rounds


def certify_every_pass() -> None:
    """Have a certificate after every pass, not only where the running estimate promises one."""
    GapWatch.is_due = lambda *_: True  # type: ignore[method-assign]


def average() -> None:
    """Go a P-th of the way that all processes lead, each of which had gone the whole of it."""
    Adding.share = lambda self, gain, cross, size: 1.0 / self.n  # type: ignore[method-assign]


def run_training(task: dict[str, Any], comm: Comm) -> dict[str, Any]:
    """Train; return report, rounds and passes."""
    settings, passes = dict(task["settings"]), Passes()
    if settings.get("sigma") == AVERAGE:
        settings["sigma"] = 1.0
        average()
    rounds = watch_rounds(comm) if task["watched"] else []
    if task["watched"]:
        certify_every_pass()
    model = Path(task["out"], "model")  # a new name, so nothing is resumed
    options = TrainOptions(resume=False, progress=passes)
    _, report = train_ranks(comm, task["store"], model, settings, options)
    return {"report": report, "rounds": rounds, "passes": passes.kept}


def run_sum(task: dict[str, Any], comm: MpiComm) -> dict[str, Any]:
    """Add up arrays of which a share is not 0; return bytes sent and shares that are not 0."""
    n, share = task["n"], task["share"]
    arrays = []
    for rank in range(comm.size):
        random = np.random.default_rng([5, rank])
        arrays.append(np.where(random.random(n) < share, random.integers(1, 9, n), 0.0))
    total, sent = arrays[comm.rank].copy(), comm.sent
    comm.add_up(total)
    assert (total == np.sum(arrays, axis=0)).all()
    changed = [float(np.mean(array != 0)) for array in arrays]
    union = float(np.mean(total != 0))
    return {"sent": comm.sent - sent, "changed": float(np.mean(changed)), "union": union}


def main() -> None:
    """Do the task; every process writes what it found to a file of its own."""
    task = json.loads(sys.argv[1])
    comm = world(TIMEOUT)
    if "n" in task:
        assert not isinstance(comm, SerialComm)
        found = run_sum(task, comm)  # type: ignore[arg-type]
    else:
        found = run_training(task, comm)
    Path(task["out"], f"{comm.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
