"""Benchmarks: one subcommand a question, ours beside the peers, in alternating runs.

    python scripts/bench.py parse --data big.svm -o results/parse
    python scripts/bench.py text-to-gap --quick

`parse`        how fast is text turned into rows, on one core?
`split`        how long from text to a store, while LIBLINEAR and scikit-learn merely read?
`kernel`       how long does one sweep over rows in memory take, against LIBLINEAR's iteration and
               against merely touching every nonzero and its weight? What does it achieve?
`start`        how long does ``sbm --help`` take?
`text-to-gap`  how long from text to a model of given accuracy, with how much memory?
`one-pass`     how good is the model after a single pass, against Vowpal Wabbit's?
`scaling`      do time per row and memory stay the same when the data grows?
`overlap`      does a pass cost the larger one of loading and solving, or their sum? What is the
               cache good for at equal memory?
`rounds`       how often should a working set be swept, on a fast and on a slow disk?
`cache`        how large should the cache be?
`screening`    what do rows that need no visit save, and what could safe rules save?
`threads`      what do two threads give, and what would eight?

Every number is a median over ``--runs`` runs, in which the contestants take turns; ratios are
medians of the ratios of neighbouring runs. Data is LIBSVM text with two labels, by default made
by ``make_synthetic.py`` and thrown away; where accuracy is measured, the last tenth of its lines
is held out unless ``--test`` names a text. The report goes to stdout as Markdown, and with ``-o``
to PREFIX.md, PREFIX.json and, where there is a picture, PREFIX.png. ``--quick`` is a toy size that
only shows that everything still runs.

To add a benchmark, write a function that takes the arguments and fills a `Report`, and add a row to
`BENCHMARKS`.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from sbm.settings import Settings
from scripts.bench_data import FEATURES, QUICK_FEATURES, hold_out, make_text
from scripts.bench_kernel import bench_kernel
from scripts.bench_models import bench_one_pass, bench_text_to_gap
from scripts.bench_plot import draw
from scripts.bench_text import bench_parse, bench_split, bench_start
from scripts.bench_tools import BenchError, Report, tell
from scripts.bench_training import (
    bench_cache,
    bench_overlap,
    bench_rounds,
    bench_scaling,
    bench_screening,
    bench_threads,
)

HELD_OUT = 0.1
QUICK_ROWS = 20_000
QUICK_TRAINING = {"tol": 1e-2, "runs": 1}
QUICK_LONG = {"long_rows": 1500, "long_features": 2000, "long_nnz": 200}

# --------------------------------------------------------------------------------------- options


def _list_of(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Type of an option that takes values separated by commas."""

    def read(text: str) -> list[Any]:
        return [kind(word) for word in text.split(",")]

    read.__name__ = f"list of {kind.__name__}"  # for the message of argparse
    return read


def _or_auto(kind: Callable[[str], Any]) -> Callable[[str], Any]:
    """Type of an option that takes a number or ``auto``."""

    def read(text: str) -> Any:
        return text if text == "auto" else kind(text)

    read.__name__ = f"{getattr(kind, '__name__', 'number')} or auto"
    return read


def _rate(text: str) -> float | None:
    return None if text == "none" else float(text)


def _cost(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-C", dest="C", type=float, default=0.1)


def _splitting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--blocks", type=int, default=12, metavar="M")
    parser.add_argument("--mem", default="400MB", metavar="SIZE", help="of each of our processes")


def _training(parser: argparse.ArgumentParser) -> None:
    _cost(parser)
    _splitting(parser)
    parser.add_argument("--split-mem", metavar="SIZE", help="of sbm split alone; default: --mem")
    parser.add_argument("--tol", type=float, default=1e-3)
    parser.add_argument("--max-passes", type=int, default=500, metavar="N")


def _rounds(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rounds", type=_or_auto(int), default=Settings().rounds, metavar="N",
        help="of sbm train; default: its own",
    )  # fmt: skip


def _cache(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cache-frac", type=_or_auto(float), default=Settings().cache_frac, metavar="F",
        help="of sbm train; default: its own",
    )  # fmt: skip


def _liblinear(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--liblinear-train", metavar="PROGRAM",
        help="LIBLINEAR's own program, or none for the library; default: liblinear-train on PATH",
    )  # fmt: skip


def _parse_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--peer-bytes", type=float, default=64e6, metavar="N", help="text that the peers read"
    )


def _split_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, default=2, metavar="N", help="of sbm split")


def _kernel_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--more-iterations", type=int, default=2, metavar="N",
        help="least difference of the two runs of LIBLINEAR",
    )  # fmt: skip
    parser.add_argument(
        "--epochs", type=_list_of(int), default=[1, 2, 4, 8], metavar="K,K,...",
        help="after which the gap is computed",
    )  # fmt: skip
    parser.add_argument("--long", type=Path, metavar="FILE", help="text with long rows")
    parser.add_argument("--long-rows", type=int, default=60_000, metavar="N", help="if it is made")
    parser.add_argument("--long-features", type=int, default=100_000, metavar="N")
    parser.add_argument("--long-nnz", type=int, default=500, metavar="N")


def _gap_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--liblinear-e", type=float, default=0.1, metavar="E")
    parser.add_argument(
        "--bound-tol", type=float, default=1e-5, metavar="T", help="of the training for a bound"
    )
    parser.add_argument(
        "--curve-passes", type=int, default=30, metavar="N", help="most passes of a curve's point"
    )


def _scaling_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--parts", type=_list_of(int), default=[8, 4, 2, 1], metavar="N,N,...",
        help="1/N of the lines each",
    )  # fmt: skip


def _overlap_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--bmd-max-passes", type=int, default=100, metavar="N", help="without a cache"
    )


def _rounds_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rounds", type=_list_of(_or_auto(int)), default=[1, 2, 3, 5, 10, "auto"],
        metavar="N,N,...",
    )  # fmt: skip
    parser.add_argument(
        "--read-rates", type=_list_of(_rate), default=[None, 1e8], metavar="R,R,...",
        help="bytes a second, or none; default: none,1e8",
    )  # fmt: skip


def _cache_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--cache-frac", type=_list_of(_or_auto(float)), default=[0.0, 0.25, 0.5, 0.75, "auto"],
        metavar="F,F,...",
    )  # fmt: skip
    parser.add_argument(
        "--also", type=Path, action="append", default=[], metavar="FILE", help="more data"
    )


def _screening_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gaps", type=_list_of(float), default=[1e-2, 1e-3, 1e-4, 1e-5, 1e-6], metavar="G,G,...",
        help="relative gaps at which safe rows are counted",
    )  # fmt: skip


# ----------------------------------------------------------------------------------------- table


@dataclass(frozen=True)
class Benchmark:
    """One row of the table.

    Attributes
    ----------
    run : callable
        ``run(args, report)`` fills the report.
    title : str
    options : tuple of callable
        Add their options to a parser.
    defaults : dict
        Of options, where they differ.
    quick : dict
        Options that ``--quick`` changes.
    rows : int
        Rows of the data that is made; 0 for a benchmark without data.
    needs_test : bool
        Whether accuracy is measured.
    """

    run: Callable[[argparse.Namespace, Report], None]
    title: str
    options: tuple[Callable[[argparse.ArgumentParser], None], ...] = ()
    defaults: dict[str, Any] = field(default_factory=dict)
    quick: dict[str, Any] = field(default_factory=dict)
    rows: int = 2_500_000
    needs_test: bool = False


BENCHMARKS: dict[str, Benchmark] = {
    "parse": Benchmark(
        bench_parse, "LIBSVM text to rows on one core", (_parse_options,), quick={"peer_bytes": 2e5}
    ),
    "split": Benchmark(
        bench_split,
        "LIBSVM text to a store",
        (_cost, _splitting, _split_options, _liblinear),
        quick={"runs": 1},
    ),
    "kernel": Benchmark(
        bench_kernel,
        "one epoch over rows in memory",
        (_cost, _kernel_options),
        quick={"more_iterations": 30, "runs": 7, **QUICK_LONG},
    ),
    "start": Benchmark(bench_start, "start of the program", rows=0),
    "text-to-gap": Benchmark(
        bench_text_to_gap,
        "text to a model of given accuracy",
        (_training, _rounds, _cache, _liblinear, _gap_options),
        {"mem": "160MB"},
        {**QUICK_TRAINING, "bound_tol": 1e-3, "curve_passes": 2, "mem": "400MB"},
        needs_test=True,
    ),
    "one-pass": Benchmark(
        bench_one_pass,
        "the model after a single pass",
        (_training, _rounds, _cache),
        {"tol": 1e-4},
        QUICK_TRAINING,
        needs_test=True,
    ),
    "scaling": Benchmark(
        bench_scaling,
        "time per row and memory when the data grows",
        (_training, _rounds, _cache, _scaling_options),
        {"mem": "300MB"},
        {"runs": 1, "parts": [4, 1]},
        rows=4_000_000,
    ),
    "overlap": Benchmark(
        bench_overlap,
        "loading behind solving",
        (_training, _rounds, _cache, _overlap_options),
        quick=QUICK_TRAINING,
    ),
    "rounds": Benchmark(
        bench_rounds,
        "sweeps over a working set",
        (_training, _cache, _rounds_options),
        quick={**QUICK_TRAINING, "rounds": [2, "auto"]},
    ),
    "cache": Benchmark(
        bench_cache,
        "size of the cache",
        (_training, _rounds, _cache_options),
        quick={**QUICK_TRAINING, "cache_frac": [0.0, 0.5, "auto"]},
    ),
    "screening": Benchmark(
        bench_screening,
        "rows that need no visit",
        (_training, _rounds, _cache, _screening_options),
        quick={**QUICK_TRAINING, "gaps": [1e-2]},
    ),
    "threads": Benchmark(
        bench_threads, "one thread and two", (_training, _rounds, _cache), quick=QUICK_TRAINING
    ),
}


# ---------------------------------------------------------------------------------- command line


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.py", description=(__doc__ or "").split("\n", 1)[0])
    commands = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    for name, benchmark in BENCHMARKS.items():
        command = commands.add_parser(name, help=benchmark.title, description=benchmark.title)
        command.add_argument("--quick", action="store_true", help="a toy size, for tests")
        command.add_argument("--runs", type=int, metavar="N", help="default 5, fewer with --quick")
        command.add_argument(
            "-o", dest="prefix", type=Path, metavar="PREFIX",
            help="write PREFIX.json, PREFIX.md, PREFIX.png",
        )  # fmt: skip
        if benchmark.rows:
            command.add_argument(
                "--data", type=Path, metavar="FILE",
                help="LIBSVM text with two labels; default: made, then removed",
            )  # fmt: skip
            command.add_argument("--rows", type=int, metavar="N", help="of the data that is made")
        if benchmark.needs_test:
            command.add_argument(
                "--test", type=Path, metavar="FILE",
                help="text to predict; default: the last tenth of the data is held out",
            )  # fmt: skip
        for add_options in benchmark.options:
            add_options(command)
        command.set_defaults(**benchmark.defaults)
    return parser


def _make_data(args: argparse.Namespace, report: Report) -> None:
    """See to it that there is data, and describe it."""
    if args.data is None:
        args.data = args.folder / "data.svm"
        tell("making data")
        features = QUICK_FEATURES if args.quick else FEATURES
        shape = ("--rows", args.rows, "--features", features, "--nnz", 10, "--power", 0.8)
        report.data["name"] = make_text(args.data, *shape)
    else:
        args.data = _existing(args.data)
        report.data["name"] = args.data.name
    if BENCHMARKS[args.benchmark].needs_test:
        _find_test(args, report)
    report.data["bytes"] = args.data.stat().st_size


def _find_test(args: argparse.Namespace, report: Report) -> None:
    """See to it that there is a text to predict."""
    if args.test is None:
        args.data, args.test = hold_out(args.data, HELD_OUT, args.folder)
        report.data["test"] = f"the last {HELD_OUT:.0%} of the lines, held out"
    else:
        args.test = _existing(args.test)
        report.data["test"] = args.test.name


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise BenchError(f"{path}: no such file")
    return path.resolve()


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """The options, without those that are told elsewhere or name places."""
    left_out = (
        "benchmark", "prefix", "data", "test", "also", "long", "rows", "folder", "liblinear_train",
    )  # fmt: skip
    return {k: v for k, v in vars(args).items() if k not in left_out and v is not None}


def run(args: argparse.Namespace) -> Report:
    """Run one benchmark.

    Raises
    ------
    BenchError
        It cannot be done.
    """
    benchmark = BENCHMARKS[args.benchmark]
    given = {"runs": args.runs} if args.runs else {}
    if args.quick:
        vars(args).update({"runs": 2} | benchmark.quick | given)
    args.runs = args.runs or 5
    report = Report(args.benchmark, benchmark.title, settings=_settings(args))
    with tempfile.TemporaryDirectory(prefix="sbm-bench-") as folder:
        args.folder = Path(folder)
        if benchmark.rows:
            args.rows = args.rows or (QUICK_ROWS if args.quick else benchmark.rows)
            _make_data(args, report)
        benchmark.run(args, report)
    return report


def _write(report: Report, prefix: Path) -> None:
    """Write PREFIX.json, PREFIX.md and the picture, if there is one."""
    report.write(prefix)
    draw(asdict(report), prefix.with_name(prefix.name + ".png"))


def main(argv: list[str] | None = None) -> int:
    """Run the command line; exit code 0 done, 1 error, 2 usage."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.runs is not None and args.runs < 1:
        parser.error("--runs must be at least 1")
    try:
        report = run(args)
        if args.prefix is not None:
            _write(report, args.prefix)
    except ModuleNotFoundError as error:
        print(f"bench.py: {error.name} is missing; install the extra bench", file=sys.stderr)
        return 1
    except (BenchError, OSError) as error:
        print(f"bench.py: {error}", file=sys.stderr)
        return 1
    print(report.markdown(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
