"""Everything that may go wrong with files and text, as often as asked: the torture run.

    python -m scripts.torture --kills 500 --faults all --flips 100000 --fuzz 10000000 --seed 0 \
        --json scripts/results/torture.json

* ``--kills``: commands killed at points between two calls of the file system, in the middle of a
  write, without power, and at random moments; then the same command, and its bytes compared.
* ``--faults``: calls of the file system that fail.
* ``--flips``: bits of stores, runs and models that tip over, and files that are cut off.
* ``--fuzz``: text against a slow parser.
* ``--numbers``: extreme numbers in every problem; results are finite, certificates true.
* ``--memory``: commands at the least ``--mem`` that they accept, peaks measured.
* ``--bounds``: every kernel on so many lines, compiled so that it checks the bounds of its arrays.

Each takes a number of cases; of kills and faults ``all`` means each point of each command. Sections
without a number are left out. A failure tells its seed and number; ``--kills 500 --only 123`` (with
that seed) runs it alone. Exit code 1: something failed.
"""

import argparse
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.bench.tools import Report
from scripts.torture.tally import Tally

SECTIONS = {
    "kills": "scripts.torture.kills", "faults": "scripts.torture.faults",
    "flips": "scripts.torture.flips", "fuzz": "scripts.torture.text",
    "bounds": "scripts.torture.bounds", "memory": "scripts.torture.memory",
    "numbers": "scripts.torture.numbers",
}  # fmt: skip
WHOLE = ("kills", "faults")  # of which all there are can be asked for
SINGLE = ("kills", "faults", "flips", "numbers")  # of which one can be run alone
MOST_TOLD = 50  # failures in a report

Section = Callable[..., Tally]


def tell(text: str) -> None:
    """Say on stderr what is going on."""
    print(f"torture: {text}", file=sys.stderr, flush=True)


def find_section(name: str) -> Section | None:
    """Return what runs the cases of a section, None where its file is not there."""
    module = SECTIONS[name]
    try:
        section: Section = importlib.import_module(module).run
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        return None
    return section


def number_of_cases(name: str, text: str) -> int:
    """Read a number, or ``all``.

    Raises
    ------
    SystemExit
        It is neither.
    """
    if text == "all" and name in WHOLE:
        return -1
    if not text.isdigit():
        hint = " or all" if name in WHOLE else ""
        sys.exit(f"torture: --{name} is {text!r}; give a number of cases{hint}")
    return int(text)


def read_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in SECTIONS:
        parser.add_argument(f"--{name}", metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, metavar="CASE", help="this case alone")
    parser.add_argument("--folder", type=Path, help="where there is room; default: a temporary one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write a report, and FILE.md")
    return parser.parse_args(arguments)


def run(args: argparse.Namespace, folder: Path) -> tuple[Report, list[str]]:
    """Run the sections that are asked for; return the report and what failed."""
    report = Report("torture", "does anything get lost, or wrong?", settings={"seed": args.seed})
    failures: list[str] = []
    for name in SECTIONS:
        text = getattr(args, name)
        if text is None:
            continue
        section = find_section(name)
        if section is None:
            tell(f"{name}: left out, there is no {SECTIONS[name].replace('.', '/')}.py")
            continue
        report.settings[name] = text
        begin = time.perf_counter()
        only = {} if args.only is None or name not in SINGLE else {"only": args.only}
        tally = section(number_of_cases(name, text), args.seed, folder / name, tell, **only)
        _add(report, tally, time.perf_counter() - begin)
        failures += [f"{name}: {failure}" for failure in tally.failures]
    for failure in failures[:MOST_TOLD]:
        report.notes.append(f"FAILED {failure}")
    return report, failures


def _add(report: Report, tally: Tally, seconds: float) -> None:
    report.rows.append(
        {"what": tally.what, "tried": tally.tried, "failures": len(tally.failures),
         "seconds": seconds}
    )  # fmt: skip
    for group, counts in tally.figures.items():
        if isinstance(counts, dict):
            rows: list[dict[str, Any]] = [
                {"kind": kind, "cases": n} for kind, n in sorted(counts.items())
            ]
            report.tables[f"{tally.what}, {group}"] = rows
        else:
            report.ratios[f"{tally.what}: {group}"] = counts


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line says."""
    args = read_arguments(arguments)
    if all(getattr(args, name) is None for name in SECTIONS):
        sys.exit(f"torture: nothing to do; give --{', --'.join(SECTIONS)} with numbers of cases")
    for name in SECTIONS:
        if getattr(args, name) is not None:
            number_of_cases(name, getattr(args, name))
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: children are forked
    os.environ.setdefault("SBM_COMPILE_HERE", "1")
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        report, failures = run(args, Path(folder))
    if args.json is not None:
        report.write(args.json.with_suffix(""))
    print(report.markdown())
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
