"""The grid: text to a certified model on many kinds of data, in ample and in little memory."""

import argparse
import itertools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from sbm.units import parse_size
from scripts.bench import tools
from scripts.bench.commands import BUDGET, option_words, split, train, training_options
from scripts.bench.data import first_bytes, make_text
from scripts.bench.peers import VW_NOTE, Liblinear, VowpalWabbit
from scripts.bench.registry import QUICK, Option, Registry, benchmark, existing, one_of
from scripts.bench.tools import Report, Run
from scripts.bench.weights import objective, read_liblinear, read_ours

BENCHMARKS: Registry = {}
ONE_ITERATION = 1e9  # -e with which LIBLINEAR does little but read
DECODED_SHARE = 5  # with little memory there is room for a fifth of the decoded rows
QUICK_ROWS = 2_000
BLOCKS = (1, 2, 4, 12, 24)  # that --parts auto is held against
PARTS_TARGET = 1.1
LIBLINEAR_E = {0: 0.01, 1: 0.1, 3: 0.1, 4: 0.1, 7: 0.1}  # what each -s takes by itself


@dataclass(frozen=True)
class Data:
    """A data set of the grid."""

    rows: int  # maximum number of rows; the first ones of the source
    shape: str = ""  # options of ``scripts.data.synthetic``, if no text is given
    source: str = ""  # data set that it is cut from, if not one of its own
    note: str = ""  # what is special about it


DATA = {
    "prep": Data(2_650_000, "--features 700000 --nnz 10 --power 0.8"),
    "prep-part": Data(1_000_000, source="prep"),
    "sorted": Data(1_000_000, source="prep", note=", sorted by label"),
    "trigrams": Data(25_000, "--features 30000 --nnz 690 --power 0.5 --values real"),
    "digits": Data(
        60_000, "--features 780 --nnz 150 --values real --classes 10 --own 0.8 --noise 0"
    ),
    "ten": Data(600_000, "--features 700000 --nnz 10 --power 0.8 --classes 10"),
    "power": Data(300_000, "--features 1000000 --nnz 50 --power 1.1", note=", power law"),
    "tiny": Data(1_000, note=", mostly start-up"),
}


@dataclass(frozen=True)
class Cell:
    """A problem on a data set."""

    data: str
    loss: str
    solver: int  # LIBLINEAR's -s; of two that it has for a loss, the faster one
    C: float
    targets: dict[str, float] = field(default_factory=dict)  # ratios to reach, by what is measured

    @property
    def options(self) -> dict[str, Any]:
        """Options of ``sbm train`` and ``sbm plan``."""
        return {"loss": self.loss, "C": self.C}


LONG = {"default": 0.6, "little": 1.0, "split": 0.5}
CELLS = (
    Cell("prep", "hinge", 3, 0.1, {"default": 0.125, "little": 0.16, "vw": 1.1, "split": 0.2}),
    Cell("prep-part", "squared_hinge", 1, 0.1),
    Cell("prep-part", "log_loss", 0, 0.1),
    Cell("sorted", "hinge", 3, 0.1),
    Cell("trigrams", "hinge", 3, 1.0, LONG),
    Cell("trigrams", "squared_hinge", 1, 1.0, LONG),
    Cell("trigrams", "log_loss", 7, 1.0, LONG),
    Cell("digits", "squared_hinge", 1, 1.0, {"default": 0.35}),
    Cell("digits", "crammer_singer", 4, 0.01, {"default": 0.7}),
    Cell("ten", "hinge", 3, 0.1),
    Cell("ten", "crammer_singer", 4, 0.1),
    Cell("power", "hinge", 3, 0.1),
    Cell("tiny", "hinge", 3, 1.0),
)
LOSSES = list(dict.fromkeys(cell.loss for cell in CELLS))


def _named(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    return one_of(DATA)(name), Path(path)


@benchmark(
    BENCHMARKS, runs=3,
    options={
        "data": Option(_named, "SET=TEXT, instead of synthetic text", [], repeated=True),
        "sets": Option(one_of(DATA), f"of {', '.join(DATA)}", list(DATA)),
        "losses": Option(one_of(LOSSES), "of sbm", LOSSES),
        "two_commands": Option(bool, "sbm split and sbm train instead of sbm train TEXT"),
        "resume": Option(bool, "skip what PREFIX.json of the same commit and settings has"),
        "tol": 1e-3, "max_passes": 500, "liblinear_train": None,
    },
    quick={**QUICK, "sets": ["prep", "digits", "tiny"], "losses": ["hinge", "crammer_singer"]},
)  # fmt: skip
def grid(args: argparse.Namespace, report: Report) -> None:
    """Text to a certified model, beside LIBLINEAR.

    Whole processes from text in the page cache to a model on disk, taking turns. Compiling and
    converting text are left out. Peak memory is that of the largest process, from outside.
    LIBLINEAR has its own -e for each solver; with one iteration it reads, hardly solves, and
    writes.

    default, vw: with the default --mem. little: with the smallest --mem that the command accepts
    and a fifth of the decoded rows. split: that command alone. train STORE: training on a store,
    beside LIBLINEAR from text. parts: --parts auto beside the fastest of 1, 2, 4, 12 and 24
    blocks with --parts blocks.

    gap: certified. above: objective above LIBLINEAR's, relatively; both are computed by one
    function from the text and the weights in the model file.
    """
    if args.resume:
        report.resume(args.prefix, "runs", "tol", "two_commands")
    known = {(row["data"], row["loss"]) for row in report.rows}
    for cell in CELLS:
        is_wanted = cell.data in args.sets and cell.loss in args.losses
        if is_wanted and (cell.data, cell.loss) not in known:
            tools.tell(f"cell: {cell.data}, {cell.loss}")
            contest = _Contest(args, cell, _text_of(args, cell.data))
            report.rows += contest.rows()
            report.data[cell.data] = contest.description()
            if args.prefix is not None:  # for --resume; the facts at the end are not known yet
                replace(report, machine=dict(report.machine)).write(args.prefix)
    if not report.rows:
        raise tools.BenchError("no cell has both one of --sets and one of --losses")
    report.notes += [f"LIBLINEAR: {Liblinear(args, 1.0).what.split(',')[0]}", VW_NOTE]


def _text_of(args: argparse.Namespace, name: str) -> Path:
    """Return the text of a data set; makes it once."""
    data = DATA[name]
    text: Path = args.folder / f"{name}.svm"
    if text.exists():
        return text
    rows = min(data.rows, QUICK_ROWS) if args.quick else data.rows
    given = {"tiny": tools.ROOT / "data/sample.svm", **dict(args.data)}
    if data.shape and name not in given:
        tools.tell(f"making {name}")
        make_text(text, "--rows", rows, *data.shape.split())
        return text
    source = existing(given[name]) if name in given else _text_of(args, data.source)
    with source.open("rb") as file, text.open("wb") as out:
        lines = list(itertools.islice(file, rows))
        if name == "sorted":
            lines.sort(key=lambda line: float(line.split(None, 1)[0]))
        out.writelines(lines)
    return text


def _least(command: str, source: Path, **options: Any) -> int:
    """Return the smallest ``--mem`` that a command asks for if it gets too little."""
    words = option_words(options | {"mem": "1MB"})
    done = tools.run_process(tools.sbm_command(command, source, *words), codes=(1, 2))
    found = re.search(r"at least --mem (\w+)", done.stderr)
    if found is None:
        raise tools.BenchError(f"sbm {command} does not ask for more memory:\n{done.stderr}")
    return parse_size(found[1])


def _megabytes(size: int) -> str:
    return f"{math.ceil(size / 1e6)}MB"


class _Contest:
    """The contestants of one cell, each with a model of its own in the folder."""

    def __init__(self, args: argparse.Namespace, cell: Cell, text: Path) -> None:
        self.args, self.cell, self.text = args, cell, text
        self.store = args.folder / "store.sbm"
        self.liblinear = Liblinear(args, cell.C, solver=cell.solver)
        split(text, self.store)  # compiles
        self.facts = tools.run_process(tools.sbm_command("info", self.store, "--json")).json()
        for source in [self.store] if args.two_commands else [self.store, text]:
            self._train(source, "warm", max_passes=1)

    def _model(self, name: str) -> Path:
        return Path(self.args.folder, f"{name}.model")

    def _train(self, source: Path, name: str, **options: Any) -> Run:
        settings = training_options(self.args, **self.cell.options, **options)
        done = train(source, self._model(name), codes=BUDGET, **settings)
        return Run([done], facts=done.json())

    def _split_and_train(self, name: str, mem: str | None = None) -> Run:
        """Split and train; split gets more memory where it asks for more."""
        for_split = mem and _megabytes(max(parse_size(mem), _least("split", self.text)))
        first = split(self.text, self.store, mem=for_split)
        then = self._train(self.store, name, mem=mem)
        return Run([first, *then.processes], facts=then.facts)

    def _liblinear(self, name: str, e: float) -> Run:
        return Run([self.liblinear.run(self.text, self._model(name), e)])

    def rows(self) -> Iterator[dict[str, Any]]:
        """Let the contestants take turns; yield the rows of the table."""
        cell, args, text = self.cell, self.args, self.text
        least = _least("plan", self.store, **cell.options)
        if not args.two_commands:
            least = max(least, _least("train", text, **cell.options))
        mem = _megabytes(least + self.facts["memory_bytes"] // DECODED_SHARE)
        tasks: dict[str, Callable[[], Run]] = {
            "store": partial(self._split_and_train, "store"),
            "liblinear": partial(self._liblinear, "liblinear", LIBLINEAR_E[cell.solver]),
            "reading": partial(self._liblinear, "reading", ONE_ITERATION),
        }
        if args.two_commands:
            tasks["little"] = partial(self._split_and_train, "little", mem)
        else:
            tasks["default"] = partial(self._train, text, "default")
            tasks["little"] = partial(self._train, text, "little", mem=mem)
            tasks |= {
                f"blocks {n}": partial(self._train, text, "blocks", blocks=n, parts="blocks")
                for n in BLOCKS
            }
        if "vw" in cell.targets:
            vw = VowpalWabbit(text, first_bytes(text, 10_000, args.folder / "part"), args.folder)
            tasks["vw"] = lambda: Run([vw.run()])
        runs = tools.alternate(tasks, args.runs)
        splits, trains = zip(*(run.processes for run in runs["store"]), strict=True)
        name = "store" if args.two_commands else "default"
        peer, theirs = f"LIBLINEAR `-s {cell.solver}`", runs["liblinear"]
        tools.tell("objectives")
        of = partial(objective, text, cell.loss, cell.C)
        least_objective = of(read_liblinear(self._model("liblinear")))
        for what, model, given in (("default", name, None), ("little", "little", mem)):
            more = {
                "mem": given, "gap": runs[model][-1].facts["relative_gap"],
                "above": of(read_ours(self._model(model))) / least_objective - 1,
            }  # fmt: skip
            yield self._row(what, runs[model], peer, theirs) | more
        yield self._row("split", splits, f"{peer}, one iteration", runs["reading"])
        yield self._row("train STORE", trains, peer, theirs)
        if not args.two_commands:
            fixed = {name: runs[name] for name in runs if name.startswith("blocks")}
            best = min(fixed, key=lambda name: tools.ratio(fixed[name], theirs))
            row = self._row("parts", runs["default"], best, fixed[best])
            yield row | {"target": PARTS_TARGET}
        if "vw" in runs:
            yield self._row("vw", runs[name], "VW, one pass", runs["vw"])

    def _row(
        self, what: str, ours: Sequence[Any], peer: str, theirs: Sequence[Any]
    ) -> dict[str, Any]:
        cell, other = self.cell, {f"peer_{k}": v for k, v in tools.costs(theirs).items()}
        return {
            "data": cell.data, "loss": cell.loss, "C": cell.C, "what": what, "mem": None,
            "peer": peer, "ratio": tools.ratio(ours, theirs), "target": cell.targets.get(what),
            **tools.costs(ours), **other, "gap": None, "above": None,
        }  # fmt: skip

    def description(self) -> str:
        """Describe the data by what the store says of it."""
        facts = self.facts
        values = "ones" if facts["value_type"] == "ones" else "real values"
        return (
            f"{facts['rows']:,} rows of {facts['nnz_per_row']:.0f} {values}, "
            f"{len(facts['labels']['values'])} classes{DATA[self.cell.data].note}"
        )
