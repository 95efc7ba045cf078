"""What a start costs: ``python -m scripts.startup -o scripts/results/startup``.

Two commands with kernels at hand (`sbm --help`, `sbm train` on a handful of rows), and every kernel
that a first run of a command compiles, with the processor seconds it takes. A kernel is compiled
for each combination of argument types, so it may come more than once.
"""

import argparse
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sbm.compiled import COMPILE_HERE, FOLDER
from scripts.bench.tools import Finished, machine_facts, run_process, sbm_command, stolen_share

ROOT = Path(__file__).resolve().parent.parent
LOG = "SBM_STARTUP_LOG"  # names the file that the spy writes
MOST = {"sbm --help": 0.2, "sbm train": 1.5}  # seconds that the starts are to take

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
    "train --class-blocks": f"{_TRAIN} --loss weston_watkins --class-blocks 4",
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


@dataclass(frozen=True)
class Compiled:
    """A kernel that a command compiled.

    Attributes
    ----------
    command, kernel : str
    times : int
        Combinations of argument types.
    seconds : float
        Of the processor, all of them together.
    """

    command: str
    kernel: str
    times: int
    seconds: float


@contextmanager
def _environment(**values: str | None) -> Iterator[None]:
    """Let variables have these values meanwhile; None takes one away."""
    before = {name: os.environ.get(name) for name in values}
    try:
        for name, value in values.items():
            _set(name, value)
        yield
    finally:
        for name, value in before.items():
            _set(name, value)


def _set(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def starts(folder: Path, runs: int) -> dict[str, Finished]:
    """Run `sbm --help` and `sbm train` with kernels at hand; return the median one of each."""
    commands = {"sbm --help": ["--help"], "sbm train": ["train", "rows.sbm", "-q", "--fresh"]}
    found = {}
    with _environment(**{FOLDER: str(folder / "code"), COMPILE_HERE: None}):
        for name, words in commands.items():
            done = [run_process(sbm_command(*words), folder=folder) for _ in range(runs + 1)]
            # The first one is not counted.
            found[name] = sorted(done[1:], key=lambda one: one.seconds)[runs // 2]
    return found


def compiled_by(folder: Path, commands: Mapping[str, str]) -> list[Compiled]:
    """Run commands for the first time, one after the other; return what each compiled."""
    spy, log = folder / "spy", folder / "log"
    spy.mkdir()
    (spy / "sitecustomize.py").write_text(SPY, "utf-8")
    path = os.pathsep.join([str(spy), str(ROOT)])
    found = []
    with _environment(
        **{FOLDER: str(folder / "code"), COMPILE_HERE: None, LOG: str(log), "PYTHONPATH": path}
    ):
        for name, words in commands.items():
            log.write_text("")
            run_process(sbm_command(*words.split(), "-q"), folder=folder, codes=(0, 3))
            made: dict[str, list[float]] = {}
            for line in log.read_text().splitlines():
                module, kernel, seconds = json.loads(line)
                short = module.removeprefix("sbm.").replace(".kernels.", "/")
                made.setdefault(f"{short}.{kernel}", []).append(seconds)
            found += [Compiled(name, kernel, len(s), sum(s)) for kernel, s in made.items()]
    return found


def report_of(
    found: Sequence[Compiled], warm: Mapping[str, Finished], facts: Mapping[str, Any]
) -> str:
    """Return two tables: the starts, and the kernels that first runs compile."""
    lines = ["# Starts", "", "| command | seconds | CPU seconds | at most |", "|---|---|---|---|"]
    for name, one in warm.items():
        lines.append(f"| `{name}` | {one.seconds:.2f} | {one.cpu_seconds:.2f} | {MOST[name]} |")
    lines += [
        "", "Kernels that a first run compiles; those of the commands above it are there already.",
        "", "| first run | kernel | types | CPU seconds |", "|---|---|---|---|",
    ]  # fmt: skip
    for name, rows in itertools.groupby(found, lambda one: one.command):
        mine = list(rows)
        total = sum(one.seconds for one in mine)
        lines.append(f"| `sbm {name}` | all | {sum(m.times for m in mine)} | {total:.1f} |")
        lines += [f"| | `{one.kernel}` | {one.times} | {one.seconds:.1f} |" for one in mine]
    return "\n".join([*lines, "", f"```\n{json.dumps(facts, indent=1)}\n```"]) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print or write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("-o", "--output", type=Path, help="write OUTPUT.md")
    parser.add_argument("--runs", type=int, default=5, help="of each start")
    parser.add_argument("--commands", nargs="*", default=list(COMMANDS), help="first runs")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="sbm-startup-") as name:
        folder = Path(name)
        rows = "".join(f"{k % 2 * 2 - 1} {k % 5 + 1}:0.5 {k % 7 + 9}:1\n" for k in range(60))
        (folder / "rows.svm").write_text(rows)
        found = compiled_by(folder, {name: COMMANDS[name] for name in args.commands})
        took = starts(folder, args.runs)
        machine = machine_facts() | {"stolen_share": stolen_share()}
        text = report_of(found, took, machine)
    print(text, end="")
    if args.output is not None:
        args.output.with_suffix(".md").write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
