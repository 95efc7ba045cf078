"""The command line of the papers' experiments: their options, defaults and reports.

An experiment is a function ``run(args, report)`` with the decorator `benchmark`. The first line of
its docstring is the title of its report, the other paragraphs are the first notes.
"""

import argparse
import inspect
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scripts.bench.plot import Axes, draw
from scripts.bench.tools import BenchError, Report

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


def one_of(names: Collection[str]) -> Callable[[str], str]:
    """Return the type of an option that takes one of `names`."""

    def read(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(names)}")
        return text

    return read


# What a plain default means; its type is the option's.
MEANINGS = {
    "C": "cost", "blocks": "number of blocks of a store", "mem": "--mem of each sbm command",
    "tol": "certified gap to train to", "max_passes": "maximum number of passes",
    "rounds": "--rounds of sbm train", "e": "LIBLINEAR's tolerances", "rows": "rows of made data",
    "online_passes": "passes of Pegasos and Vowpal Wabbit", "learner_C": "costs of online learners",
}  # fmt: skip


def option_of(name: str, default: Any) -> Option:
    """Return the option of a name: the default itself, or one of the default's type."""
    if isinstance(default, Option):
        return default
    first = default[0] if isinstance(default, list) else default
    return Option(float if first is None else type(first), MEANINGS[name], default)


@dataclass(frozen=True)
class Benchmark:
    """One row of the registry; see `benchmark`."""

    run: Run
    options: Mapping[str, Any] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)
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
        changes; ``runs`` of each contestant, 0 if nothing is repeated; ``axes``: panels of the
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
        if one.runs:
            Option(int, "number of runs of each contestant", one.runs).add(command, "runs")
        for key, default in one.options.items():
            option_of(key, default).add(command, key)
    return parser


def existing(path: Path) -> Path:
    """Return a file's full path. Raises `BenchError` if there is no such file."""
    if not path.is_file():
        raise BenchError(f"{path}: no such file")
    return path.resolve()


def _is_plain(value: Any) -> bool:
    """Whether the value of an option is not a path."""
    values = value if isinstance(value, list) else [value]
    return bool(values) and not any(isinstance(v, Path | tuple) or v is None for v in values)


def run_one(name: str, one: Benchmark, args: argparse.Namespace) -> Report:
    """Run a benchmark. Raises `BenchError` if the benchmark cannot run."""
    title, *notes = one.paragraphs
    left_out = ("benchmark", "prefix", "rows")
    settings = {k: v for k, v in vars(args).items() if k not in left_out and _is_plain(v)}
    report = Report(name, title, settings)
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="sbm-bench-") as folder:
        args.folder, args.report = Path(folder), report
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
