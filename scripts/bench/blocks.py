"""Blocks of classes in several processes: what they give, and what they send."""

import argparse
import json
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import Any

from scripts.bench.losses import count_labels
from scripts.bench.ours import remove, split, splitting_options
from scripts.bench.registry import TRAINING, Registry, benchmark
from scripts.bench.tools import (
    BenchError,
    Report,
    alternate,
    median,
    median_ratio,
    run_process,
    tell,
)  # fmt: skip

BENCHMARKS: Registry = {}
LOSS = "weston_watkins"

# What each process runs.
WORK = """
import json, sys
from pathlib import Path
from sbm.distributed.comm import world
from sbm.programs.classblocks.training import train_class_blocks
from sbm.settings import Settings
from sbm.store.blocks import BlockStore

store, model, settings = sys.argv[1:]
comm = world()
_, report = train_class_blocks(
    BlockStore(store), Path(model), Settings(**json.loads(settings)), comm, resume=False
)
if comm.rank == 0:
    print(json.dumps(report))
"""


@benchmark(
    BENCHMARKS, rows=1_000_000, classes=10, several=True,
    options={**TRAINING, "mem": "1GB", "class_blocks": 4, "processes": [1, 2]},
    quick={"max_passes": 3},
)  # fmt: skip
def class_blocks(args: argparse.Namespace, report: Report) -> None:
    """Weston-Watkins by blocks of classes in several processes.

    One thread a process, all on this machine, in turn; medians of the runs. The models are the same
    bytes, so that nothing but time, memory and messages differs. Seconds are those of the first
    process, from its beginning to the model. wait: for rows and for other processes; sent: by the
    process that sent most.
    """
    for text in args.data:
        store, model = args.folder / "blocks.sbm", args.folder / "blocks.model"
        classes = count_labels(text)
        tell(f"splitting {text.name}")
        split(text, store, **splitting_options(args))
        settings = {
            "loss": LOSS, "C": args.C, "tol": args.tol, "max_passes": args.max_passes,
            "rounds": args.rounds, "mem": args.mem, "class_blocks": args.class_blocks, "threads": 1,
        }  # fmt: skip
        _train(1, store, model, settings | {"max_passes": 1})  # compiles
        tasks = {n: partial(_train, n, store, model, settings) for n in args.processes}
        runs = alternate({f"{n} processes": task for n, task in tasks.items()}, args.runs)
        if len({run["model_bytes"] for found in runs.values() for run in found}) > 1:
            raise BenchError("the models differ")
        first = [run["seconds"]["total"] for run in runs[f"{args.processes[0]} processes"]]
        for n in args.processes:
            found = runs[f"{n} processes"]
            facts = {"data": text.name, "classes": classes, "blocks": args.class_blocks}
            report.rows.append({**facts, "processes": n, **_row_of(found)})
            seconds = [run["seconds"]["total"] for run in found]
            if n != args.processes[0]:
                name = f"{text.name}: speed_up_of_{n}_processes"
                report.ratios[name] = median_ratio(first, seconds)


def _train(n: int, store: Path, model: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Train in so many processes; return the report, with the bytes of the model."""
    remove(model, model.with_name(model.name + ".run"))
    launcher = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
    if launcher is None:
        raise BenchError("there is no mpiexec beside this Python; pip install mpi4py mpich")
    command = [launcher, "-n", str(n), sys.executable, "-m", "mpi4py", "-c", WORK, str(store),
               str(model), json.dumps(settings)]  # fmt: skip
    return run_process(command).json() | {"model_bytes": model.read_bytes()}


def _row_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Cells of one number of processes."""
    seconds = {
        name: median([run["seconds"][name] for run in found])
        for name in ("total", "solve", "wait", "certify")
    }
    return {
        **seconds,
        "passes": found[0]["passes"], "relative_gap": found[0]["relative_gap"],
        "sent_MB": found[0]["bytes_sent"] / 1e6,
        "peak_MB": median([run["peak_rss_bytes"] for run in found]) / 1e6,
    }  # fmt: skip
