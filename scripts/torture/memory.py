"""Every command that learns or deals, at bounds of memory from the least that it accepts.

A case is a command, data of a shape that stresses one part of the memory, options, and a bound: the
least one that the command's own refusal names, times 1, 1.3 or 3. The command must work there, and
its peak resident memory, measured from outside, must be within. Commands without ``--mem`` are held
to what they load (a model, a chunk) and a fixed allowance.

On Linux the system sets a second limit: `RLIMIT_DATA`, which counts all memory that a process may
write to, touched or not, but not its code; it is 64 MB above the bound, for what is never touched.
"""

import functools
import itertools
import random
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import sbm
from sbm.losses import LOSSES
from scripts.bench.tools import Finished, run_process, sbm_command
from scripts.torture.tally import Tally, Tell

BUDGET = 3  # exit code of a training that used up its passes
LEAST = re.compile(r"at least --mem (\d+)MB")
ROOM_FOR_MORE = re.compile(r"--mem (\d+)MB has room for twice as many")
# What a stream says of a line that needs more memory than it has for text, and what is enough here.
LONG_LINE, FOR_LONG_LINES = "does not fit in --mem; raise --mem", 160
ROOMS = (1.0, 1.3, 3.0)
# Of commands that load no more than they must: the interpreter and buffers, and pieces of text.
ALLOWANCE, PIECES = 110_000_000, 60_000_000

# Memory that a program may write to and does not: stacks of threads, buffers that are not full.
UNTOUCHED = 64_000_000

# Runs a program with a limit of what it may write to; a thread's stack is 8 MB otherwise.
LIMITER = """\
import os, resource, sys
size = int(sys.argv[1])
stack, most = 1 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]
resource.setrlimit(resource.RLIMIT_STACK, (stack, most))
resource.setrlimit(resource.RLIMIT_DATA, (size, size))
os.execvp(sys.argv[2], sys.argv[2:])
"""

# ------------------------------------------------------------------------------------------ data


@dataclass(frozen=True)
class Data:
    """Text of a shape that stresses one part of the memory."""

    kind: str  # one of "binary", "multi", "targets"
    # rows, nnz, features: of the text that is repeated `times` times
    rows: int
    nnz: int
    features: int
    times: int = 1
    classes: int = 2  # labels 1 to so many, of kind ``multi``
    first: int = 1  # the smallest id; ids are apart by `apart`
    apart: int = 1
    real: bool = False  # whether values differ from 1
    dtype: str = "auto"
    blocks: int = 4
    nights: int = 0  # blocks of a few rows each that are appended
    giants: int = 0  # rows with as many nonzeros as there are features, among the others

    def lines(self, seed: int) -> Iterator[str]:
        """Yield the lines of the text that is repeated."""
        dice = random.Random(seed)
        for row in range(self.rows):
            nnz = self.features if row < self.giants else self.nnz
            begin = row * self.nnz if row >= self.giants else 0
            # Rows that follow each other have other features, so that all appear.
            places = sorted({(begin + k) % self.features for k in range(nnz)})
            ids = [self.first + self.apart * place for place in places]
            if self.real:
                words = [f"{k}:{dice.random():.6g}" for k in ids]
            else:
                words = [f"{k}:1" for k in ids]
            yield f"{self._label(dice, row)} {' '.join(words)}\n"

    def _label(self, dice: random.Random, row: int) -> str:
        if self.kind == "targets":
            return f"{dice.gauss(0, 1):.9g}"
        if self.kind == "multi":
            return str(1 + (row if row < self.classes else dice.randrange(self.classes)))
        return dice.choice(("+1", "-1"))


DATA = {
    "short rows": Data("binary", 20_000, 3, 100, times=60),
    "wide": Data("binary", 1200, 1000, 1_200_000, times=2, real=True),
    "long rows": Data("binary", 8, 100_000, 400_000, times=5, real=True, dtype="float64"),
    "giants": Data("binary", 30_000, 4, 300_000, giants=3, times=2),
    "hashed": Data("binary", 20_000, 10, 150_000, apart=1 << 44, times=3, real=True),
    "nights": Data("binary", 20_000, 10, 5_000, nights=50, real=True),
    "ten classes": Data("multi", 20_000, 10, 5_000, classes=10, times=3, real=True),
    "classes": Data("multi", 4_000, 10, 3_000, classes=520, times=3),
    "labels": Data("multi", 4_000, 3, 500, classes=2_000),
    "targets": Data("targets", 40_000, 8, 500, times=5, real=True),
}
NIGHT_ROWS = 150


# ------------------------------------------------------------------------------------- commands

_BUDGET = "--rounds 1 --tol 1e-12"
_SPLIT = "split TEXT -o OUT --force --dtype DTYPE"
# Arguments of sbm; words in capitals stand for files of `Shelf`.
COMMANDS = {
    "split": _SPLIT,
    "split, one thread": f"{_SPLIT} --no-shuffle --threads 1",
    "count": f"{_SPLIT} --min-count 2",
    "append": "split --append COPY TEXT --force",
    "train": f"train STORE -o OUT {_BUDGET} --max-passes 2",
    "tune": f"tune STORE -o OUT {_BUDGET} --max-passes 1 --folds 2 --C 0.1,1",
    "stream": "stream TEXT -o OUT --rounds 1",
    # These have no --mem.
    "check": "check STORE", "info store": "info STORE", "info run": "info MODEL.run",
    "expire": "expire COPY --source NIGHT", "export": "export MODEL -o OUT --format FORM",
    "predict": "predict MODEL TEXT -o OUT", "predict store": "predict MODEL STORE -o OUT",
}  # fmt: skip
BOUNDED = ("split", "count", "append", "train", "tune", "stream")


class Shelf:
    """Texts, stores and models of shapes, made when they are first asked for."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed

    def file(self, kind: str, name: str, number: int, loss: str = "") -> Path:
        """Return the file that a word of a command stands for."""
        data, of_case = DATA[name], self.folder / f"case-{number}"
        if kind == "OUT":
            return of_case.with_suffix(".out")
        if kind == "COPY":
            copy = of_case.with_suffix(".sbm")
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(self.file("STORE", name, number), copy)
            return copy
        path = self.folder / f"{name.replace(' ', '-')}{loss}.{kind.lower()}"
        if not path.exists():
            self._make(kind, path, name, data, loss)
        return path

    def _make(self, kind: str, path: Path, name: str, data: Data, loss: str) -> None:
        if kind == "TEXT":
            part = "".join(data.lines(self.seed)).encode("ascii")
            with open(path, "wb") as file:
                for _ in range(data.times):
                    file.write(part)
        elif kind == "STORE":
            sbm.split(self.file("TEXT", name, 0), path, blocks=data.blocks, dtype=data.dtype)
            for k in range(max(1, data.nights)):
                night = path.with_suffix(f".night-{k}.svm")
                lines = itertools.islice(data.lines(self.seed + 1000 + k), NIGHT_ROWS)
                night.write_text("".join(lines))
                sbm.split(night, path, blocks=1, append=True)
        elif kind == "WEIGHTS":
            dice = random.Random(self.seed)
            rows = sbm.info(self.file("STORE", name, 0))["rows"]
            path.write_text("".join(f"{dice.random() + 0.5:.3f}\n" for _ in range(rows)))
        else:
            loss = loss or ("squared_error" if data.kind == "targets" else "hinge")
            settings = {"loss": loss, "max_passes": 1, "rounds": 1, "tol": 1e-12, "mem": "4GB"}
            sbm.train(self.file("STORE", name, 0), path, settings)


# ------------------------------------------------------------------------------------------ cases

_CLASSES = [name for name, loss in LOSSES.items() if "classification" in loss.tasks]
_JOINT = [name for name in _CLASSES if LOSSES[name].kind is not None]
_REGRESSION = [name for name, loss in LOSSES.items() if "regression" in loss.tasks]
Cell = tuple[str, str, tuple[str, ...]]


@dataclass(frozen=True)
class Case:
    """One measurement."""

    # number, seed: which make it again
    number: int
    seed: int
    command: str
    data: str
    options: tuple[str, ...] = ()
    room: float = 1.0  # the bound, in multiples of the least

    def __str__(self) -> str:
        words = " ".join(self.options)
        what = f"seed {self.seed} case {self.number}: {self.command} of {self.data!r} {words}"
        return f"{what.rstrip()} at {self.room:g} times the least --mem"


def _losses_of(name: str) -> list[str]:
    """Losses that fit the labels; a model a class only where there are few."""
    kind = DATA[name].kind
    if kind == "multi":
        return _CLASSES if DATA[name].classes <= 10 else _JOINT
    return [*(_CLASSES if kind == "binary" else _REGRESSION), "one_class"]


@functools.cache
def grid() -> list[Cell]:
    """All commands, data and options."""
    cells: list[Cell] = []
    for name, data in DATA.items():
        cells += [(command, name, ()) for command in COMMANDS
                  if command not in ("train", "tune", "stream")]  # fmt: skip
        for loss in _losses_of(name):
            chosen = ("--loss", loss)
            extras = [(), ("--weights", "WEIGHTS"), ("--warm-start", "EARLIER")]
            extras += [("--bias", "1")] * (loss != "one_class")
            is_small = data.kind != "targets" and loss in _JOINT and data.classes < 100
            extras += [("--calibrate",)] * is_small
            for frac, more in itertools.product(("0", "0.5", "auto"), extras):
                cells.append(("train", name, (*chosen, "--cache-frac", frac, *more)))
            if loss != "one_class":
                cells.append(("tune", name, chosen))
            if name not in ("nights", "labels"):
                cells += [("stream", name, (*chosen, "--cache-frac", f)) for f in ("0", "0.5")]
    return cells


def cases_of(cases: int, seed: int) -> list[Case]:
    """Draw cases so that all commands come early, and those with many options more often."""
    cells = [*grid()]
    random.Random(seed).shuffle(cells)
    first = {cell[0]: cell for cell in reversed(cells)}
    rest = [cell for cell in cells if cell not in first.values()]
    drawn = itertools.islice(itertools.cycle([*first.values(), *rest]), cases)
    rooms = itertools.cycle(ROOMS)
    return [Case(k, seed, *cell, next(rooms)) for k, cell in enumerate(drawn)]


# ------------------------------------------------------------------------------------- one case


@dataclass
class Outcome:
    """What a case showed: the bound and the peak of the process that came closest to it."""

    bound: int = 1
    peak: int = 0
    failures: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Peak in bounds."""
        return self.peak / self.bound

    def run(self, command: Sequence[str], bound: int) -> Finished:
        """Run a program that may use so many bytes, and take its peak."""
        limit: list[str] = []
        if sys.platform == "linux":
            limit = [sys.executable, "-I", "-S", "-c", LIMITER, str(bound + UNTOUCHED)]
        done = run_process([*limit, *command], codes=range(-64, 256))
        if done.peak_bytes / bound > self.share:
            self.bound, self.peak = bound, done.peak_bytes
        return done


def run_case(case: Case, shelf: Shelf) -> Outcome:
    """Run one case."""
    outcome, name = Outcome(), case.data
    data = DATA[name]
    loss = case.options[1] if "--loss" in case.options else ""
    facts = {"DTYPE": data.dtype, "FORM": "json" if data.apart > 1 else "liblinear",
             "NIGHT": f"{name.replace(' ', '-')}.night-0.svm"}  # fmt: skip
    words: list[str] = []
    for word in (*COMMANDS[case.command].split(), *case.options):
        kind, dot, ending = word.partition(".")
        if kind in facts:
            word = facts[kind]
        elif kind.isalpha() and kind.isupper():
            path = shelf.file(kind, name, case.number, loss if kind == "EARLIER" else "")
            word = f"{path}{dot}{ending}"
        words.append(word)
    try:
        wrong = (_bounded if case.command.split(",")[0] in BOUNDED else _unbounded)(
            case, words, outcome
        )
    finally:
        for path in shelf.folder.glob(f"case-{case.number}.*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if wrong is not None:
        last = wrong.stderr.strip().rsplit("\n", 1)[-1][-500:]
        outcome.failures.append(f"{case}: exit code {wrong.code}: {last}")
    if outcome.peak > outcome.bound:
        peak = f"peak {outcome.peak:,} of {outcome.bound:,} bytes"
        outcome.failures.append(f"{case}: {peak} ({100 * outcome.share:.1f} %)")
    return outcome


def _bounded(case: Case, words: list[str], outcome: Outcome) -> Finished | None:
    """Run at the bound that the command asks for; what follows from the text is known late."""
    done = run_process(sbm_command(*words, "-q", "--mem", "1MB"), codes=range(-64, 256))
    before = 0
    for _ in range(8):
        found = LEAST.search(done.stderr) or ROOM_FOR_MORE.search(done.stderr)
        is_long = LONG_LINE in done.stderr
        if done.code != 1 or not (found or is_long):
            return done
        asked = int(found[1]) if found else FOR_LONG_LINES
        megabytes = int(asked * (case.room if case.command == "stream" or not before else 1))
        if megabytes <= before and case.command != "stream":
            return done
        if "use --resume to continue" in done.stderr:
            words = ["stream", "--resume", words[words.index("-o") + 1], "--rounds", "1"]
        before = megabytes
        done = outcome.run(
            sbm_command(*words, "-q", "--mem", f"{megabytes}MB"), megabytes * 1_000_000
        )
        if done.code in (0, BUDGET):
            return None
    return done


def _unbounded(case: Case, words: list[str], outcome: Outcome) -> Finished | None:
    """Run a command without ``--mem``; it is held to the size of what it loads."""
    data = DATA[case.data]
    outputs = data.classes if data.kind == "multi" else 1
    model = 2 * 8 * data.features * outputs + 48 * data.features
    rows = 40 * max(data.features * bool(data.giants), 1_000_000)  # a chunk of a store
    size = {"export": model, "predict": model + PIECES, "predict store": model + PIECES + rows,
            "check": 48 * data.features, "expire": 48 * data.features}  # fmt: skip
    done = outcome.run(sbm_command(*words, "-q"), ALLOWANCE + size.get(case.command, 0))
    return None if done.code == 0 else done


def run(cases: int, seed: int, folder: Path, tell: Tell, only: int | None = None) -> Tally:
    """Run a seeded sample of the grid."""
    tally, by_command = Tally("peak memory within --mem"), dict[str, dict[str, float]]()
    folder.mkdir(parents=True, exist_ok=True)
    shelf = Shelf(folder, seed)
    for dtype in ("float32", "float64"):  # so that no measured process starts a compiler
        run_process(sbm_command("precompile", "--dtype", dtype))

    def attempt(case: Case) -> list[str]:
        outcome = run_case(case, shelf)
        ours = by_command.setdefault(case.command, {"cases": 0, "largest share of bound": 0.0})
        ours["cases"] += 1
        ours["largest share of bound"] = max(ours["largest share of bound"], outcome.share)
        tell(f"{case}: {outcome.share:.3f} of {outcome.bound / 1e6:.0f} MB")
        return outcome.failures

    chosen = [case for case in cases_of(cases, seed) if only in (None, case.number)]
    tally.try_each(chosen, attempt, tell)
    tally.figures = {
        "cases": {name: f["cases"] for name, f in by_command.items()},
        "largest share of bound": {
            name: f["largest share of bound"] for name, f in by_command.items()
        },
    }
    return tally
