"""Benchmark of starts: with kernels at hand, and what a first run of each command compiles."""

import argparse
import json
import os
from pathlib import Path
from typing import Any
from unittest import mock

from sbm.compiled import COMPILE_HERE, FOLDER
from scripts.bench.registry import Option, Registry, benchmark
from scripts.bench.tools import Report, costs, run_process, sbm_command, tell

BENCHMARKS: Registry = {}
ROOT = Path(__file__).resolve().parents[2]
LOG = "SBM_STARTUP_LOG"  # names the file that the spy writes
MOST = {"--help": 0.2, "train rows.sbm -q --fresh": 1.5}  # seconds that starts are to take

# What is run for the first time, in this order: kernels of earlier ones are there already.
_TRAIN = "train rows.sbm --fresh -o a.model"
COMMANDS = {
    "split": "split rows.svm -o rows.sbm --blocks 2",
    "train": "train rows.sbm",
    "predict": "predict rows.model rows.svm",
    "train --loss log_loss": f"{_TRAIN} --loss log_loss",
    "train --loss squared_error": f"{_TRAIN} --loss squared_error",
    "train --loss one_class": f"{_TRAIN} --loss one_class",
    "train --loss crammer_singer": f"{_TRAIN} --loss crammer_singer",
    "train --class-blocks": f"{_TRAIN} --loss weston_watkins --class-blocks 2",
    "stream": "stream rows.svm -o s.model",
    "tune": "tune rows.sbm -o t.model --C 0.1,1",
}
# Notes what `sbm.compiled` compiles and how long it takes, in this process and the children that
# it starts to compile. Found by Python at its start.
SPY = """
import os, sys
if os.environ.get("SBM_STARTUP_LOG"):
    import importlib.abc, importlib.machinery, importlib.util

    class Finder(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path, target=None):
            if name != "sbm.compiled":
                return None
            spec = importlib.machinery.PathFinder.find_spec(name, path)
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                compile_ = module._compile

                def timed(kernel_module, kernel, kinds):
                    import json, time
                    import numba  # its import is no kernel's
                    begin = time.process_time()
                    code = compile_(kernel_module, kernel, kinds)
                    spent = time.process_time() - begin
                    with open(os.environ["SBM_STARTUP_LOG"], "a") as log:
                        log.write(json.dumps([kernel_module, kernel, spent]) + "\\n")
                    return code

                module._compile = timed

            spec.loader.exec_module = exec_module
            return spec

    sys.meta_path.insert(0, Finder())
"""


@benchmark(
    BENCHMARKS, options={"commands": Option(str, "first runs", list(COMMANDS))},
    quick={"commands": ["split", "train"]},
)  # fmt: skip
def startup(args: argparse.Namespace, report: Report) -> None:
    """What a start costs.

    Commands with kernels at hand, on a handful of rows; then every kernel that a first run
    compiles, with the processor seconds it takes. Kernels of the commands above it are there
    already. types: a kernel is compiled for each combination of argument types.
    """
    rows = "".join(f"{k % 2 * 2 - 1} {k % 5 + 1}:0.5 {k % 7 + 9}:1\n" for k in range(60))
    (args.folder / "rows.svm").write_text(rows)
    spy, log = args.folder / "spy", args.folder / "log"
    spy.mkdir()
    (spy / "sitecustomize.py").write_text(SPY, "utf-8")
    path = os.pathsep.join([str(spy), str(ROOT)])
    changes = {FOLDER: str(args.folder / "code"), LOG: str(log), "PYTHONPATH": path}
    table = report.tables["kernels that a first run compiles"] = []
    with mock.patch.dict(os.environ, changes):
        os.environ.pop(COMPILE_HERE, None)
        for name in args.commands:
            log.write_text("")
            tell(f"first run: {name}")
            words = sbm_command(*COMMANDS[name].split(), "-q")
            run_process(words, folder=args.folder, codes=(0, 3))
            table += _compiled(name, log)
        os.environ.pop(LOG)
        for name, most in MOST.items():
            words = sbm_command(*name.split())
            done = [run_process(words, folder=args.folder) for _ in range(args.runs + 1)]
            # The first one is not counted.
            report.rows.append({"command": f"sbm {name}", **costs(done[1:]), "at_most": most})


def _compiled(name: str, log: Path) -> list[dict[str, Any]]:
    """Rows of what a command compiled: all of it, and each kernel."""
    made: dict[str, list[float]] = {}
    for line in log.read_text().splitlines():
        module, kernel, seconds = json.loads(line)
        short = module.removeprefix("sbm.").replace(".kernels.", "/")
        made.setdefault(f"{short}.{kernel}", []).append(seconds)
    made = {"all": [s for some in made.values() for s in some], **made}
    return [
        {"first_run": f"sbm {name}", "kernel": kernel, "types": len(some), "CPU_seconds": sum(some)}
        for kernel, some in made.items()
    ]
