"""The registry of benchmarks and experiments: their options, defaults and command line.

A benchmark is a function ``run(args, report)`` with the decorator `benchmark`. The first line of
its docstring is the title of its report, the other paragraphs are the first notes.
"""

import argparse
import inspect
import json
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from sbm.losses import LOSSES
from sbm.settings import Settings
from scripts.bench.data import hold_out, make_text
from scripts.bench.plot import Axes, draw
from scripts.bench.tools import BenchError, Report, tell

HELD_OUT = 0.1
FEATURES, QUICK_ROWS, QUICK_FEATURES = 700_000, 20_000, 5_000
TRAINING: dict[str, Any] = {
    "C": 0.1, "blocks": 12, "mem": "400MB", "split_mem": None, "tol": 1e-3, "max_passes": 500,
    "rounds": Settings().rounds, "cache_frac": Settings().cache_frac,
}  # fmt: skip
QUICK = {"tol": 1e-2}

Run = Callable[[argparse.Namespace, Report], None]


@dataclass(frozen=True)
class Option:
    """An option of a command."""

    # converts a word; if the default is a list, each of the words between commas
    kind: Callable[[str], Any]
    help: str = ""
    default: Any = None
    repeated: bool = False  # whether it may be given several times, with one value each

    def add(self, parser: argparse.ArgumentParser, name: str) -> None:
        """Add the option to a parser."""
        flag = f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"
        many = isinstance(self.default, list)
        shown = ",".join(map(str, self.default)) if many else self.default
        words = self.help if shown in (None, "", False) else f"{self.help}; default: {shown}"
        words = words.replace("%", "%%")
        if self.kind is bool:
            parser.add_argument(flag, dest=name, action="store_true", help=words)
        else:
            kind = _list_of(self.kind) if many and not self.repeated else self.kind
            parser.add_argument(
                flag, dest=name, type=kind, default=self.default, help=words.lstrip("; "),
                metavar=name.upper() + ",..." * (many and not self.repeated),
                action="append" if self.repeated else "store",
            )  # fmt: skip


def _list_of(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    def read(text: str) -> list[Any]:
        return [kind(word) for word in text.split(",")]

    read.__name__ = f"list of {kind.__name__.strip('_')}"  # for the message of argparse
    return read


def _or_auto(text: str) -> Any:
    return text if text == "auto" else float(text) if "." in text else int(text)


def _rate(text: str) -> float | None:
    return None if text == "none" else float(text)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _positive(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise ValueError
    return number


def one_of(names: Collection[str]) -> Callable[[str], str]:
    """Return the type of an option that takes one of `names`."""

    def read(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(names)}")
        return text

    return read


OPTIONS: dict[str, Option] = {
    "C": Option(_positive, "cost"),
    "blocks": Option(_count, "number of blocks of a store"),
    "mem": Option(str, "--mem of each sbm command"),
    "split_mem": Option(str, "--mem of sbm split only"),
    "tol": Option(float, "certified gap to train to"),
    "max_passes": Option(_count, "maximum number of passes"),
    "parts": Option(one_of(("auto", "blocks")), "--parts of sbm train"),
    "rounds": Option(_or_auto, "--rounds of sbm train"),
    "cache_frac": Option(_or_auto, "--cache-frac of sbm train"),
    "loss": Option(one_of(LOSSES), "--loss of sbm"),
    "losses": Option(one_of(LOSSES), "losses of sbm"),
    "liblinear_train": Option(str, "LIBLINEAR's program, or none for its library"),
    "peer_bytes": Option(float, "bytes of text that the peers read"),
    "threads": Option(_count, "--threads of sbm split"),
    "more_iterations": Option(_count, "minimum difference in iterations of LIBLINEAR's two runs"),
    "epochs": Option(_count, "epochs after which the gap is computed"),
    "long": Option(Path, "text with long rows; default: synthetic"),
    "long_rows": Option(_count, "rows of the synthetic text with long rows"),
    "long_features": Option(_count, "features of that text"),
    "long_nnz": Option(_count, "nonzeros per row of that text"),
    "e": Option(float, "LIBLINEAR's tolerances"),
    "stream_mem": Option(str, "--mem of sbm stream"),
    "stream_rounds": Option(_or_auto, "--rounds of sbm stream"),
    "learner_C": Option(
        _positive, "costs of passive_aggressive and arow; the most accurate one is used"
    ),
    "size": Option(str, "size of the text"),
    "base": Option(str, "size of the text that is repeated"),
    "features": Option(_count, "features of the synthetic text"),
    "sample_seconds": Option(float, "seconds between two samples"),
    "bmd_max_passes": Option(_count, "maximum passes without a cache"),
    "read_rates": Option(_rate, "bytes per second, or none"),
    "grid": Option(str, "values of C for sbm tune; -C is for the single training"),
    "folds": Option(_count, "--folds of sbm tune"),
    "alone": Option(bool, "also train each model of each fold separately"),
    "seconds": Option(_positive, "time limit of a training"),
    "mems": Option(str, "--mem of sbm train; nights use the first one"),
    "costs": Option(_positive, "other values of C"),
    "nights": Option(_count, "number of nights of each kind"),
    "also": Option(Path, "more data", repeated=True),
    "processes": Option(_count, "numbers of processes"),
    "passes": Option(_count, "passes of each training"),
    "online_passes": Option(_count, "passes of Pegasos and Vowpal Wabbit"),
    "reference": Option(Path, "folder with reference.json and NAME.svm.zst"),
    "sets": Option(str, "names in reference.json"),
    "cache_fracs": Option(float, "shares of cache; 0 is block minimization, slow on dense sets"),
    "keep": Option(Path, "folder for generated data, which is reused"),
    "rows": Option(int, "rows of the synthetic data"),
    "split_mems": Option(str, "values of --mem of sbm split, one store each"),
}


@dataclass(frozen=True)
class Benchmark:
    """One row of the registry; see `benchmark`."""

    run: Run
    options: Mapping[str, Any] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)
    rows: int = 0
    needs_test: bool = False
    several: bool = False
    runs: int = 5
    axes: tuple[Axes, ...] = ()

    @property
    def paragraphs(self) -> list[str]:
        """Title and notes."""
        text = inspect.getdoc(self.run) or ""
        title, *notes = (" ".join(part.split()) for part in text.split("\n\n"))
        return [title.removesuffix("."), *notes]


Registry = dict[str, Benchmark]


def benchmark(registry: Registry, name: str = "", **facts: Any) -> Callable[[Run], Run]:
    """Register a function.

    Parameters
    ----------
    name : str
        Default: the name of the function.
    **facts
        ``options``: names with defaults (or with an `Option`); ``quick``: options that ``--quick``
        changes; ``rows`` of the synthetic data, 0 for a benchmark without ``--data``;
        ``needs_test``: whether accuracy is measured; ``several``: whether several texts may be
        given; ``runs`` of each contestant, 0 if nothing is repeated; ``axes``: panels of the
        picture.
    """

    def register(run: Run) -> Run:
        registry[name or run.__name__.replace("_", "-")] = Benchmark(run, **facts)
        return run

    return register


# ---------------------------------------------------------------------------------- command line


def _parser(registry: Registry, prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog)
    commands = parser.add_subparsers(dest="benchmark", required=True, metavar="NAME")
    for name, one in registry.items():
        command = commands.add_parser(name, help=one.paragraphs[0], description=one.paragraphs[0])
        command.add_argument("--quick", action="store_true", help="a toy size, for tests")
        command.add_argument(
            "-o", dest="prefix", type=Path, metavar="PREFIX",
            help="write PREFIX.json, PREFIX.md, PREFIX.png",
        )  # fmt: skip
        if one.axes:
            what = "only draw the picture of this result again"
            command.add_argument("--redraw", type=Path, metavar="FILE.json", help=what)
        if one.runs:
            Option(_count, "number of runs of each contestant", one.runs).add(command, "runs")
        if one.rows:
            what = "LIBSVM text; default: synthetic, then removed"
            Option(Path, what, repeated=one.several).add(command, "data")
            OPTIONS["rows"].add(command, "rows")
        if one.needs_test:
            what = "text to predict; default: the last tenth of the data, held out"
            Option(Path, what).add(command, "test")
        for key, default in one.options.items():
            is_own = isinstance(default, Option)
            option = default if is_own else replace(OPTIONS[key], default=default)
            option.add(command, key)
    return parser


def existing(path: Path) -> Path:
    """Return a file's full path. Raises `BenchError` if there is no such file."""
    if not path.is_file():
        raise BenchError(f"{path}: no such file")
    return path.resolve()


def _find_data(one: Benchmark, args: argparse.Namespace, report: Report) -> None:
    """Find or make the data, and describe it."""
    if args.data is None:
        texts = [args.folder / "data.svm"]
        tell("making data")
        rows = args.rows or (QUICK_ROWS if args.quick else one.rows)
        features = QUICK_FEATURES if args.quick else FEATURES
        shape = ("--rows", rows, "--features", features, "--nnz", 10, "--power", 0.8)
        report.data["name"] = make_text(texts[0], *shape)
    else:
        texts = [existing(path) for path in (args.data if one.several else [args.data])]
        report.data["name"] = ", ".join(path.name for path in texts)
    args.data = texts if one.several else texts[0]
    if one.needs_test and args.test is None:
        args.data, args.test = hold_out(texts[0], HELD_OUT, args.folder)
        report.data["test"] = f"the last {HELD_OUT:.0%} of the lines, held out"
    elif one.needs_test:
        args.test = existing(args.test)
        report.data["test"] = args.test.name


def _is_plain(value: Any) -> bool:
    """Whether the value of an option is not a path."""
    values = value if isinstance(value, list) else [value]
    return bool(values) and not any(isinstance(v, Path | tuple) or v is None for v in values)


def run_one(name: str, one: Benchmark, args: argparse.Namespace) -> Report:
    """Run a benchmark. Raises `BenchError` if the benchmark cannot run."""
    title, *notes = one.paragraphs
    left_out = ("benchmark", "prefix", "redraw", "rows", "liblinear_train")
    settings = {k: v for k, v in vars(args).items() if k not in left_out and _is_plain(v)}
    report = Report(name, title, settings)
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="sbm-bench-") as folder:
        args.folder, args.report = Path(folder), report
        if one.rows:
            _find_data(one, args, report)
        one.run(args, report)
    report.notes = [*notes, *report.notes]
    after = os.getloadavg()[0]
    report.machine["load_average_before_and_after"] = f"{before:.1f}, {after:.1f}"
    if max(before, after) > report.machine["cores"] + 1:
        report.notes.append(
            "the machine was busy (see its load average): trust passes, visits and "
            "ratios more than seconds"
        )
    return report


def main(registry: Registry, prog: str, argv: Sequence[str] | None = None) -> int:
    """Run a command line; exit code 0 done, 1 error or a row that is not ok, 2 usage."""
    parser = _parser(registry, prog)
    args = parser.parse_args(argv)
    one = registry[args.benchmark]
    if args.quick:
        command = parser._subparsers._group_actions[0].choices[args.benchmark]  # type: ignore[union-attr, index]
        command.set_defaults(**{**({"runs": 1} if one.runs else {}), **one.quick})
        args = parser.parse_args(argv)  # what was given on the command line stays
    try:
        if getattr(args, "redraw", None) is not None:
            draw(json.loads(args.redraw.read_bytes()), one.axes, args.redraw.with_suffix(".png"))
            return 0
        # Otherwise each process that is timed may compile its modules again.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        report = run_one(args.benchmark, one, args)
        if args.prefix is not None:
            report.write(args.prefix)
            draw(asdict(report), one.axes, args.prefix.with_name(args.prefix.name + ".png"))
    except ModuleNotFoundError as error:
        print(f"{prog}: {error.name} is missing; pip install '.[bench]'", file=sys.stderr)
        return 1
    except (BenchError, OSError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 1
    print(report.markdown(), end="")
    return 0 if all(row.get("ok", True) for row in report.rows) else 1
