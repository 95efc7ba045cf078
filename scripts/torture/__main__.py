"""The torture run: kills, failing calls, damaged files, hostile input and extreme settings.

    python -m scripts.torture --kills 500 --faults 500 --flips 100000 --examples 2000 --seed 0 \
        --json scripts/results/torture.json

* ``--kills``: commands killed between two calls of the file system, in the middle of a write, by a
  power cut, and at random moments; then the same command runs again and its bytes are compared.
* ``--faults``: calls of the file system that fail.
* ``--flips``: flipped bits in stores, runs and models, and truncated files.
* ``--examples``: the tests of readers and codecs in guarded memory, with this many random examples.
* ``--bounds``: the same and the tests of trainings, with kernels that check array bounds.
* ``--numbers``: extreme numbers in every problem; results must be finite, certificates true.
* ``--hostile``: compressed bombs, concurrent writers of one file, records with forged fields, and
  very many input files.
* ``--inputs``: damaged Feather, Parquet, npz, npy, CSV, VW and LIBSVM files, read by each command.
* ``--ranks``: processes of one training, killed or stopped while they exchange messages. It needs
  mpi4py and mpiexec.
* ``--memory``: commands at the smallest ``--mem`` that they accept, with measured peaks.

Each option takes a number of cases. Sections without a number are skipped. A failure shows its seed
and number; ``--kills 500 --only 123`` (with that seed) runs only that case. The exit code is 1 if
something failed.
"""

import argparse
import importlib
import os
import sys
import tempfile
import time
from pathlib import Path

from scripts.bench.tools import Report
from scripts.torture.tally import Tally

SECTIONS = {  # module and function
    "kills": "kills:run", "faults": "faults:run", "flips": "flips:run",
    "examples": "guard:run_examples", "bounds": "guard:run_bounds", "memory": "memory:run",
    "numbers": "numbers:run", "hostile": "hostile:run", "inputs": "inputs:run",
    "ranks": "ranks:run",
}  # fmt: skip
WHOLE = ("examples", "bounds")  # of which no case can be run alone
MOST_TOLD = 50  # failures in a report


def tell(text: str) -> None:
    """Print progress on stderr."""
    print(f"torture: {text}", file=sys.stderr, flush=True)


def _number(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of cases")
    return int(text)


def _add(report: Report, tally: Tally, seconds: float) -> None:
    report.rows.append({
        "what": tally.what, "tried": tally.tried, "failures": len(tally.failures),
        "seconds": seconds,
    })  # fmt: skip
    for group, counts in tally.figures.items():
        if isinstance(counts, dict):
            rows = [{"kind": kind, "cases": n} for kind, n in sorted(counts.items())]
            report.tables[f"{tally.what}, {group}"] = rows
        else:
            report.ratios[f"{tally.what}: {group}"] = counts


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in SECTIONS:
        parser.add_argument(f"--{name}", type=_number, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, metavar="CASE", help="this case alone")
    parser.add_argument("--folder", type=Path, help="folder to work in; default: a temporary one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a report, and FILE.md")
    args = parser.parse_args(arguments)
    chosen = {name: getattr(args, name) for name in SECTIONS if getattr(args, name) is not None}
    if not chosen:
        parser.error(f"nothing to do; give --{', --'.join(SECTIONS)} with numbers of cases")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: children are forked
    if chosen.keys() - {"memory"}:  # what is measured must not compile
        os.environ.setdefault("SBM_COMPILE_HERE", "1")
    settings = {"seed": args.seed, **chosen}
    report = Report("torture", "find results that are lost or wrong", settings)
    failures: list[str] = []
    if args.folder:
        args.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.folder and args.folder.resolve()) as folder:
        for name, cases in chosen.items():
            module, _, function = SECTIONS[name].partition(":")
            section = getattr(importlib.import_module(f"scripts.torture.{module}"), function)
            begin, only = time.perf_counter(), {}
            if args.only is not None and name not in WHOLE:
                only = {"only": args.only}
            tally = section(cases, args.seed, Path(folder, name), tell, **only)
            _add(report, tally, time.perf_counter() - begin)
            failures += [f"{name}: {failure}" for failure in tally.failures]
    report.notes += [f"FAILED {failure}" for failure in failures[:MOST_TOLD]]
    if args.json is not None:
        report.write(args.json.with_suffix(""))
    print(report.markdown())
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
