"""Experiments of the papers: each measures, draws, and judges the claims of a paper by rules.

    python -m scripts.papers figure2 -o results/paper-figure2
    python -m scripts.papers figure2 sets=webspam max_passes=10 --data webspam=webspam.svm

An experiment is a module of ``scripts.papers`` with a function of its name, which fills a `Report`
and adds `Claims`. The first line of the function's docstring is the title of the report, the other
paragraphs are notes. Words NAME=VALUE change the module's ``SETTINGS``; ``QUICK`` has those of
--quick, a toy size for tests; ``AXES`` has the panels of the picture.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from scripts.bench.plot import draw
from scripts.bench.tools import BenchError, Report, paragraphs
from scripts.papers import dcd, figure2, figure3, figure5, table2, ww

MODULES = (figure2, figure3, figure5, table2, dcd, ww)
EXPERIMENTS: dict[str, ModuleType] = {one.__name__.rpartition(".")[2]: one for one in MODULES}


def _text(word: str) -> tuple[str, Path]:
    """Return name and file of SET=TEXT or TEXT."""
    name, _, path = word.rpartition("=")
    if not Path(path).is_file():
        raise argparse.ArgumentTypeError(f"{path}: no such file")
    return name, Path(path).resolve()


def settings_of(module: Any, words: Sequence[str], quick: bool) -> dict[str, Any]:
    """Return the settings of an experiment. Raises `BenchError` if it has not one of them."""
    settings = {**module.SETTINGS, **(module.QUICK if quick else {})}
    for word in words:
        name, _, value = word.partition("=")
        if name not in settings:
            raise BenchError(f"{name}: not one of the settings {', '.join(settings)}")
        old = settings[name]
        kind = type(old[0] if isinstance(old, list) else old)
        many = [kind(part) for part in value.split(",")]
        settings[name] = many if isinstance(old, list) else many[0]
    return settings


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; exit code 0 done, 1 error or a row that is not ok, 2 usage."""
    parser = argparse.ArgumentParser(prog="scripts.papers", description=(__doc__ or "")[:97])
    parser.add_argument("name", choices=EXPERIMENTS, metavar="NAME", help=", ".join(EXPERIMENTS))
    parser.add_argument("words", nargs="*", metavar="SETTING=VALUE")
    for option, what in (("data", "to train on"), ("test", "to test on, one for each --data"),
                         ("unit", "as --data, brought to rows of length 1")):  # fmt: skip
        parser.add_argument(f"--{option}", type=_text, action="append", default=[],
                            metavar="[SET=]TEXT", help=f"{what}; default: made")  # fmt: skip
    parser.add_argument("--keep", type=Path, help="folder for texts that are made, and reused")
    parser.add_argument("--quick", action="store_true", help="a toy size, for tests")
    parser.add_argument("-o", dest="prefix", type=Path, metavar="PREFIX",
                        help="write PREFIX.json, PREFIX.md, PREFIX.png")  # fmt: skip
    args = parser.parse_intermixed_args(argv)
    module = EXPERIMENTS[args.name]
    run = getattr(module, args.name)
    # Otherwise each process that is timed may compile its modules again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        settings = settings_of(module, args.words, args.quick)
        title, *notes = paragraphs(run)
        report = Report(args.name, title, {"quick": args.quick, **settings})
        with tempfile.TemporaryDirectory(prefix="sbm-bench-") as folder:
            vars(args).update(settings, folder=Path(folder))
            run(args, report)
        report.notes = [*notes, *report.notes]
        if args.prefix is not None:
            report.write(args.prefix)
            picture = args.prefix.with_name(args.prefix.name + ".png")
            draw(asdict(report), getattr(module, "AXES", ()), picture)
    except (BenchError, OSError, ModuleNotFoundError) as error:
        print(f"scripts.papers: {error}", file=sys.stderr)
        return 1
    print(report.markdown(), end="")
    return 0 if all(row.get("ok", True) for row in report.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
