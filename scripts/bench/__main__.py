"""Make the results that README and docs show.

    python -m scripts.bench all --reference ../shared/data    # what every page shows: half an hour
    python -m scripts.bench papers --reference ../shared/data # the papers' experiments: two hours
    python -m scripts.bench grid tune                         # these two, up to date or not
    python -m scripts.bench all --list                        # what is out of date, and why
    python -m scripts.bench all --quick -o FOLDER             # a toy size, for tests

`all` and `papers` make only what is missing or out of date: see `scripts.bench.results`, whose
table has a row for each result. Texts are made once, in --keep. Afterwards the pages are written,
unless -o names another folder. --reference is a folder with reference.json and texts NAME.svm.zst.
The exit code is 1 if a result could not be made or has a row that is not ok.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.bench.results import ALL, HERE, PAPERS, RESULTS, Place, changed, run
from scripts.bench.tools import run_process, script_command


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line."""
    parser = argparse.ArgumentParser(
        prog="scripts.bench", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("names", nargs="+", metavar="NAME", choices=(ALL, PAPERS, *RESULTS),
                        help=f"{ALL}, {PAPERS}, or of {', '.join(RESULTS)}")  # fmt: skip
    parser.add_argument("--reference", type=Path, metavar="FOLDER", help="folder of public sets")
    parser.add_argument("--keep", type=Path, default=Place.kept, help="folder for texts")
    parser.add_argument("-o", dest="results", type=Path, default=HERE, help="folder of the results")
    parser.add_argument("--again", action="store_true", help="make what is up to date, too")
    parser.add_argument("--list", action="store_true", help="only list what is out of date")
    parser.add_argument("--quick", action="store_true", help="a toy size")
    args = parser.parse_args(argv)
    if args.quick and args.results == HERE and not args.list:
        parser.error("--quick needs -o FOLDER: toy results are not kept")
    groups = {name for name in args.names if name in (ALL, PAPERS)}
    names = [n for n, one in RESULTS.items() if n in args.names or one.group in groups]
    if args.list:
        for name in names:
            print(f"{name}: {', '.join(changed(name, args.results)) or 'up to date'}")
        return 0
    place = Place(args.results, args.keep, args.reference, args.quick)
    failed = run(names, place, again=args.again or not groups)
    if args.results == HERE:
        run_process(script_command("docs_tables"))
    return failed


if __name__ == "__main__":
    sys.exit(main())
