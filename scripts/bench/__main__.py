"""Benchmarks: one subcommand a question, ours beside the peers, in alternating runs.

    python -m scripts.bench parse --data big.svm -o results/parse
    python -m scripts.bench text-to-gap --quick

`parse`        how fast is text turned into rows, on one core?
`split`        how long from text to a store, while LIBLINEAR and scikit-learn merely read?
`kernel`       how long does one round over rows in memory take, against LIBLINEAR's iteration and
               against merely touching every nonzero and its weight? What does it achieve?
`start`        how long does ``sbm --help`` take?
`text-to-gap`  how long from text to a model of given accuracy, with how much memory?
`one-pass`     how good is the model of text that is read once, against the optimum, Vowpal
               Wabbit's single pass and online learners? How long does it take?
`stream-memory`  does memory stay the same while gigabytes come through a pipe?
`scaling`      do time per row and memory stay the same when the data grows?
`overlap`      does a pass cost the larger one of loading and solving, or their sum? What is the
               cache good for at equal memory?
`rounds`       how many rounds should a working set get, on a fast and on a slow disk?
`cache`        how large should the cache be?
`screening`    what do rows that need no visit save, and what could safe rules save?
`threads`      what do two threads give, and what would eight?
`family`       other losses: how long from text to a model, and solving alone, against LIBLINEAR?
`tune`         what does cross-validation on one stream cost, in trainings and against models alone?
`plan`         is what `sbm plan` foresees what then happens?
`nightly`      how much of the work does a warm start save when rows are appended and expired?

Of several classes:

`multiclass`        how long to LIBLINEAR's objective, of Crammer and Singer and of one-vs-rest?
`bmd`               what does a chosen cache give against a random one and against none (BMD)?
`classes`           what do time and memory do when classes become more?
`class-blocks`      what do threads give that divide the classes, beside solving for all together?
`multiclass-error`  how good are the losses on unseen rows?

Every number is a median over ``--runs`` runs, in which the contestants take turns; ratios are
medians of the ratios of neighbouring runs. Data is LIBSVM text with two labels, by default made
by ``scripts.data.synthetic`` and thrown away; where accuracy is measured, the last tenth of its
lines is held out unless ``--test`` names a text. Of several classes the text has ten, and some take
several texts, ``--data`` again and again. The report goes to stdout as Markdown, and with ``-o``
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

from scripts.bench.blocks import bench_class_blocks, class_blocks_options
from scripts.bench.bmd import bench_bmd
from scripts.bench.classes import bench_classes, bench_multiclass_error
from scripts.bench.data import FEATURES, QUICK_FEATURES, hold_out, make_text
from scripts.bench.family import bench_family
from scripts.bench.kernel import bench_kernel
from scripts.bench.models import bench_text_to_gap
from scripts.bench.multiclass import bench_multiclass
from scripts.bench.nightly import bench_nightly
from scripts.bench.options import (
    bmd_options,
    cache_option,
    cache_options,
    classes_options,
    cost_option,
    error_options,
    family_options,
    gap_options,
    kernel_options,
    liblinear_option,
    limit_options,
    multiclass_options,
    nightly_options,
    one_pass_options,
    overlap_options,
    parse_options,
    plan_options,
    rounds_option,
    rounds_options,
    scaling_options,
    screening_options,
    split_options,
    splitting_options,
    stream_memory_options,
    training_options,
    tune_options,
)
from scripts.bench.plan import bench_plan
from scripts.bench.plot import draw
from scripts.bench.stream import bench_one_pass, bench_stream_memory
from scripts.bench.text import bench_parse, bench_split, bench_start
from scripts.bench.tools import BenchError, Report, tell
from scripts.bench.training import (
    bench_cache,
    bench_overlap,
    bench_rounds,
    bench_scaling,
    bench_screening,
    bench_threads,
)
from scripts.bench.tune import bench_tune

HELD_OUT = 0.1
QUICK_ROWS = 20_000
QUICK_TRAINING = {"tol": 1e-2, "runs": 1}
QUICK_CLASSES = {"runs": 1, "max_passes": 20}
QUICK_LONG = {"long_rows": 1500, "long_features": 2000, "long_nnz": 200}

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
    classes : int
        Of the data that is made.
    several : bool
        Whether there may be several texts.
    """

    run: Callable[[argparse.Namespace, Report], None]
    title: str
    options: tuple[Callable[[argparse.ArgumentParser], None], ...] = ()
    defaults: dict[str, Any] = field(default_factory=dict)
    quick: dict[str, Any] = field(default_factory=dict)
    rows: int = 2_500_000
    needs_test: bool = False
    classes: int = 2
    several: bool = False


BENCHMARKS: dict[str, Benchmark] = {
    "parse": Benchmark(
        bench_parse, "LIBSVM text to rows on one core", (parse_options,), quick={"peer_bytes": 2e5}
    ),
    "split": Benchmark(
        bench_split,
        "LIBSVM text to a store",
        (cost_option, splitting_options, split_options, liblinear_option),
        quick={"runs": 1},
    ),
    "kernel": Benchmark(
        bench_kernel,
        "one epoch over rows in memory",
        (cost_option, kernel_options),
        quick={"more_iterations": 30, "runs": 3, **QUICK_LONG},
    ),
    "start": Benchmark(bench_start, "start of the program", rows=0),
    "text-to-gap": Benchmark(
        bench_text_to_gap,
        "text to a model of given accuracy",
        (training_options, rounds_option, cache_option, liblinear_option, gap_options),
        {"mem": "160MB"},
        {**QUICK_TRAINING, "bound_tol": 1e-3, "curve_passes": 2, "mem": "400MB"},
        needs_test=True,
    ),
    "one-pass": Benchmark(
        bench_one_pass,
        "the model of text that is read once",
        (training_options, rounds_option, cache_option, one_pass_options),
        {"tol": 1e-4, "mem": "200MB", "rounds": 2},
        {**QUICK_TRAINING, "learner_C": [0.1], "mem": "400MB"},
        needs_test=True,
    ),
    "stream-memory": Benchmark(
        bench_stream_memory,
        "memory of a stream through a pipe",
        (rounds_option, cache_option, stream_memory_options),
        quick={
            "size": "40MB",
            "base": "4MB",
            "features": 5000,
            "grow": 2000,
            "sample_seconds": 0.02,
        },
        rows=0,
    ),
    "scaling": Benchmark(
        bench_scaling,
        "time per row and memory when the data grows",
        (training_options, rounds_option, cache_option, scaling_options),
        {"mem": "300MB"},
        {"runs": 1, "parts": [4, 1]},
        rows=4_000_000,
    ),
    "overlap": Benchmark(
        bench_overlap,
        "loading behind solving",
        (training_options, rounds_option, cache_option, overlap_options),
        quick=QUICK_TRAINING,
    ),
    "rounds": Benchmark(
        bench_rounds,
        "rounds over a working set",
        (training_options, cache_option, rounds_options),
        quick={**QUICK_TRAINING, "rounds": [2, "auto"]},
    ),
    "cache": Benchmark(
        bench_cache,
        "size of the cache",
        (training_options, rounds_option, cache_options),
        quick={**QUICK_TRAINING, "cache_frac": [0.0, 0.5, "auto"]},
    ),
    "screening": Benchmark(
        bench_screening,
        "rows that need no visit",
        (training_options, rounds_option, cache_option, screening_options),
        quick={**QUICK_TRAINING, "gaps": [1e-2]},
    ),
    "threads": Benchmark(
        bench_threads,
        "one thread and two",
        (training_options, rounds_option, cache_option),
        quick=QUICK_TRAINING,
    ),
    "family": Benchmark(
        bench_family,
        "losses beside LIBLINEAR's solvers",
        (training_options, rounds_option, cache_option, liblinear_option, family_options),
        {"C": 1.0},
        QUICK_TRAINING,
    ),
    "tune": Benchmark(
        bench_tune,
        "cross-validation on one stream",
        (training_options, rounds_option, cache_option, tune_options),
        {"mem": "2GB", "max_passes": 50},
        {**QUICK_TRAINING, "grid": "0.01,1", "folds": 2, "alone": True},
        needs_test=True,
    ),
    "plan": Benchmark(
        bench_plan,
        "what a training takes, foreseen and taken",
        (limit_options, rounds_option, cache_option, plan_options),
        {"mem": "2GB", "max_passes": 200, "runs": 3},
        {**QUICK_TRAINING, "C": [0.1], "seconds": 0.5},
        several=True,
    ),
    "nightly": Benchmark(
        bench_nightly,
        "warm starts when rows are appended and expired",
        (training_options, rounds_option, cache_option, nightly_options),
        {"runs": 1, "max_passes": 50, "mem": None},
        {**QUICK_TRAINING, "nights": 1},
    ),
    "multiclass": Benchmark(
        bench_multiclass,
        "several classes to LIBLINEAR's objective",
        (limit_options, rounds_option, cache_option, liblinear_option, multiclass_options),
        {"mem": "2GB", "blocks": 1},
        {"runs": 1, "C": [0.1], "e": [0.1]},
        rows=500_000,
        classes=10,
        several=True,
    ),
    "bmd": Benchmark(
        bench_bmd,
        "a chosen cache against a random one and none",
        (training_options, bmd_options),
        {"mem": "4GB", "blocks": 15, "max_passes": 8, "tol": 1e-4, "runs": 1},
        {"max_passes": 2, "tol": 1e-2},
        rows=1_000_000,
        needs_test=True,
        classes=10,
    ),
    "classes": Benchmark(
        bench_classes,
        "time and memory when classes become more",
        (training_options, rounds_option, cache_option, classes_options),
        {"mem": "4GB", "losses": ["crammer_singer", "weston_watkins"]},
        {"runs": 1, "classes": [4, 12], "made_rows": 2000, "features": 2000, "passes": 2},
        rows=0,
    ),
    "class-blocks": Benchmark(
        bench_class_blocks,
        "Weston-Watkins by blocks of classes on several threads",
        (training_options, rounds_option, class_blocks_options),
        {"mem": "1GB"},
        {**QUICK_CLASSES, "max_passes": 3},
        rows=1_000_000,
        classes=10,
        several=True,
    ),
    "multiclass-error": Benchmark(
        bench_multiclass_error,
        "test error of the losses",
        (limit_options, rounds_option, cache_option, error_options),
        {"mem": "2GB"},
        {**QUICK_CLASSES, "C": [0.1]},
        rows=500_000,
        classes=10,
        several=True,
    ),
}


# ---------------------------------------------------------------------------------- command line


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts.bench", description=(__doc__ or "").split("\n", 1)[0]
    )
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
                action="append" if benchmark.several else "store",
                help=f"LIBSVM text with {'two' if benchmark.classes == 2 else 'several'} labels"
                f"{', may be repeated' * benchmark.several}; default: made, then removed",
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
    benchmark = BENCHMARKS[args.benchmark]
    if args.data is None:
        texts = [args.folder / "data.svm"]
        tell("making data")
        report.data["name"] = make_text(texts[0], *_shape(args, benchmark.classes))
    else:
        texts = [_existing(path) for path in (args.data if benchmark.several else [args.data])]
        report.data["name"] = ", ".join(path.name for path in texts)
    args.data = texts if benchmark.several else texts[0]
    if benchmark.needs_test:
        _find_test(args, report)
        texts = [args.data]
    report.data["bytes"] = sum(path.stat().st_size for path in texts)


def _shape(args: argparse.Namespace, classes: int) -> tuple[str | float, ...]:
    """What is asked of the maker of the data."""
    features = QUICK_FEATURES if args.quick else FEATURES
    shape = ("--rows", args.rows, "--features", features, "--nnz", 10, "--power", 0.8)
    return shape if classes == 2 else (*shape, "--classes", classes)


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
        print(f"scripts.bench: {error.name} is missing; install sbm[bench]", file=sys.stderr)
        return 1
    except (BenchError, OSError) as error:
        print(f"scripts.bench: {error}", file=sys.stderr)
        return 1
    print(report.markdown(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
