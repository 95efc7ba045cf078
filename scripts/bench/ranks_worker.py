"""A rank of the benchmark `ranks`: trains, and reports the cost.

    mpiexec -n 2 python -m mpi4py -m scripts.bench.ranks_worker TASK

TASK is JSON. A hook notes the visits of this rank between two sums of all weights.
"""

import json
import resource
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.distributed.comm import Comm, world
from sbm.engine.sync import Combiner
from sbm.programs.train import train_ranks
from sbm.programs.training.job import TrainOptions
from sbm.solver.cache import WorkingSet

TIMEOUT = 600.0


def watch_sums() -> list[float]:
    """Note the visits of this rank before each sum of all weights."""
    visits: list[float] = []
    original = Combiner._add_all

    def noted(
        self: Combiner, work: WorkingSet, stats: npt.NDArray[np.float64]
    ) -> npt.NDArray[np.float64]:
        visits.append(float(stats[2]))
        return original(self, work, stats)

    Combiner._add_all = noted  # type: ignore[method-assign]
    return visits


def run_training(task: dict[str, Any], comm: Comm) -> dict[str, Any]:
    """Train; return the report, the bytes sent, and the visits of this rank by sum."""
    visits = watch_sums()
    model = Path(task["out"], "model")  # a new name, so nothing is resumed
    _, report = train_ranks(
        comm, task["store"], model, task["settings"], TrainOptions(resume=False)
    )
    used = resource.getrusage(resource.RUSAGE_SELF)
    cpu = used.ru_utime + used.ru_stime
    return {"report": report, "cpu": cpu, "sent": comm.sent, "visits": visits or [report["visits"]]}


def main() -> None:
    """Do the task; every process writes what it found to a file of its own."""
    task = json.loads(sys.argv[1])
    comm = world(TIMEOUT)
    found = run_training(task, comm)
    Path(task["out"], f"{comm.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
