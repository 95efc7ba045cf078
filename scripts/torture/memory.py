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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sbm
from sbm.losses import LOSSES
from scripts.bench.tools import Finished, run_process, sbm_command
from scripts.torture.tally import Tally

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


class Shelf:
    """Texts, stores and models, made when they are first asked for."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed

    def place(self, name: str, suffix: str) -> Path:
        """Where something of some data is kept."""
        return self.folder / f"{name.replace(' ', '-')}{suffix}"

    def _kept(self, name: str, suffix: str, make: Callable[[Path, Data], object]) -> Path:
        path = self.place(name, suffix)
        if not path.exists():
            make(path, DATA[name])
        return path

    def text(self, name: str) -> Path:
        """Text of a shape."""

        def make(path: Path, data: Data) -> None:
            part = "".join(data.lines(self.seed)).encode("ascii")
            with open(path, "wb") as file:
                for _ in range(data.times):
                    file.write(part)

        return self._kept(name, ".svm", make)

    def night(self, name: str, k: int = 0) -> Path:
        """Text of a few more rows, other ones for each number."""

        def make(path: Path, data: Data) -> None:
            path.write_text("".join(itertools.islice(data.lines(self.seed + 1000 + k), NIGHT_ROWS)))

        return self._kept(name, f".night-{k}.svm", make)

    def store(self, name: str) -> Path:
        """Store of a shape."""

        def make(path: Path, data: Data) -> None:
            sbm.split(self.text(name), path, blocks=data.blocks, dtype=data.dtype)
            for k in range(data.nights):
                sbm.split(self.night(name, k), path, blocks=1, append=True)

        return self._kept(name, ".sbm", make)

    def weights(self, name: str) -> Path:
        """A weight a line for each row of a store, in the order of its text."""

        def make(path: Path, data: Data) -> None:
            dice, rows = random.Random(self.seed), data.rows * data.times + data.nights * NIGHT_ROWS
            path.write_text("".join(f"{dice.random() + 0.5:.3f}\n" for _ in range(rows)))

        return self._kept(name, ".weights", make)

    def model(self, name: str) -> Path:
        """Model of a shape, with its run."""

        def make(path: Path, data: Data) -> None:
            loss = "squared_error" if data.kind == "targets" else "hinge"
            settings = {"loss": loss, "max_passes": 1, "rounds": 1, "tol": 1e-12, "mem": "4GB"}
            sbm.train(self.store(name), path, settings)

        return self._kept(name, ".model", make)

    def private(self, path: Path, number: int) -> Path:
        """Return a copy that a case may change."""
        copy = self.folder / f"case-{number}{path.suffix}"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(path, copy)
        return copy


# ------------------------------------------------------------------------------------------ cases

_CLASSES = [name for name, loss in LOSSES.items() if "classification" in loss.tasks]
_MANY = tuple(name for name in _CLASSES if LOSSES[name].kind is not None)
_ONE_BY_ONE = tuple(name for name in _CLASSES if LOSSES[name].kind is None)  # a model a class
_LOSSES = {
    "binary": (*_CLASSES, "one_class"),
    "multi": _MANY,
    "targets": (*(n for n, loss in LOSSES.items() if "regression" in loss.tasks), "one_class"),
}
_CACHES = ("0", "0.5", "auto")


@dataclass(frozen=True)
class Case:
    """One measurement."""

    # number, seed: which make it again
    number: int
    seed: int
    command: str
    data: str
    options: tuple[str, ...] = ()  # words in capitals stand for files: WEIGHTS, MODEL
    room: float = 1.0  # the bound, in multiples of the least

    def __str__(self) -> str:
        words = " ".join(self.options)
        return (
            f"seed {self.seed} case {self.number}: {self.command} of {self.data!r} {words}".rstrip()
            + f" at {self.room:g} times the least --mem"
        )


def _losses_of(name: str) -> tuple[str, ...]:
    """Losses that fit the labels; more where there are few enough classes for one model each."""
    kind = DATA[name].kind
    several = _ONE_BY_ONE if name == "ten classes" else ()
    return _LOSSES[kind] + several


def _extras(loss: str, name: str) -> Iterator[tuple[str, ...]]:
    """Options that change the memory of a training."""
    yield ()
    if loss != "one_class":
        yield ("--bias", "1")
    yield ("--weights", "WEIGHTS")
    yield ("--warm-start", "MODEL")
    if DATA[name].kind != "targets" and loss == "squared_error":
        yield ("--task", "classification")
    if DATA[name].kind != "targets" and loss in _MANY and DATA[name].classes < 100:
        yield ("--calibrate",)


@functools.cache
def grid() -> list[tuple[str, str, tuple[str, ...]]]:
    """All commands, data and options."""
    cells: list[tuple[str, str, tuple[str, ...]]] = []
    for name in DATA:
        for command in ("split", "count", "append", "export", "expire", "check", "predict"):
            cells.append((command, name, ()))
        cells += [("predict store", name, ()), ("info store", name, ()), ("info run", name, ())]
        cells += [("split", name, ("--no-shuffle", "--threads", "1"))]
        for loss in _losses_of(name):
            for frac in _CACHES:
                for more in _extras(loss, name):
                    chosen = ("--loss", loss, "--cache-frac", frac, *more)
                    cells.append(("train", name, chosen))
            if loss != "one_class":
                cells.append(("tune", name, ("--loss", loss)))
            if name not in ("nights", "labels"):
                for frac in ("0", "0.5"):
                    cells.append(("stream", name, ("--loss", loss, "--cache-frac", frac)))
        if DATA[name].kind != "targets":
            cells.append(("stream", name, ("--policy", "none")))
    return cells


def cases_of(cases: int, seed: int) -> list[Case]:
    """Draw cases so that all commands come early, and those with many options more often."""
    dice = random.Random(seed)
    cells = sorted(grid(), key=lambda cell: dice.random())
    of_command: dict[str, list[tuple[str, str, tuple[str, ...]]]] = {}
    for cell in cells:
        of_command.setdefault(cell[0], []).append(cell)
    first = [some[0] for some in of_command.values()]
    rest = [cell for cell in cells if cell not in first]
    drawn = itertools.islice(itertools.cycle([*first, *rest]), cases)
    rooms = itertools.cycle(ROOMS)
    return [Case(k, seed, *cell, next(rooms)) for k, cell in enumerate(drawn)]


# ------------------------------------------------------------------------------------- one case


@dataclass
class Outcome:
    """What a case showed."""

    # bound, peak: bytes; those of the process that came closest to its bound
    bound: int = 1
    peak: int = 0
    failures: list[str] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)  # exit code of each process
    seconds: float = 0.0

    @property
    def share(self) -> float:
        """Peak in bounds."""
        return self.peak / self.bound

    def add(self, bound: int, done: Finished) -> None:
        """Take the end of a process."""
        self.codes.append(done.code)
        self.seconds += done.seconds
        if done.peak_bytes / bound > self.share:
            self.bound, self.peak = bound, done.peak_bytes


def fenced(command: Sequence[str | Path], size: int | None) -> Finished:
    """Run a program that may use so many bytes; None: as many as it wants."""
    if size is not None and sys.platform == "linux":
        limit = [sys.executable, "-I", "-S", "-c", LIMITER, str(size + UNTOUCHED)]
        command = [*limit, *command]
    return run_process(command, codes=range(-64, 256))


def run_case(case: Case, shelf: Shelf) -> Outcome:
    """Run one case."""
    outcome = Outcome()
    run = _Run(case, shelf, outcome)
    try:
        run.go()
    finally:
        run.clean_up()
    if outcome.peak > outcome.bound:
        share = f"{100 * outcome.share:.1f} %"
        outcome.failures.append(
            f"{case}: peak {outcome.peak:,} of {outcome.bound:,} bytes ({share})"
        )
    return outcome


class _Run:
    """A case at work."""

    def __init__(self, case: Case, shelf: Shelf, outcome: Outcome) -> None:
        self.case, self.shelf, self.outcome = case, shelf, outcome
        self.out = shelf.folder / f"case-{case.number}.out"

    def clean_up(self) -> None:
        """Remove what the case made."""
        for path in self.shelf.folder.glob(f"case-{self.case.number}.*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def fail(self, why: str, done: Finished) -> None:
        """Note that something is wrong."""
        last = done.stderr.strip().rsplit("\n", 1)[-1][-500:]
        self.outcome.failures.append(f"{self.case}: {why}, exit code {done.code}: {last}")

    def go(self) -> None:
        """Run the command."""
        command = self.case.command.split()[0]
        if command in ("split", "count", "append", "train", "tune"):
            self._bounded(getattr(self, f"_{command}"))
        elif command == "stream":
            self._stream()
        else:
            self._unbounded()

    # --------------------------------------------------------------------------- with a least

    def _bounded(self, command_of: Callable[[str], list[str]]) -> None:
        """Ask for the least bound, and keep to it or to a multiple; it may turn out larger."""
        asked = fenced(command_of("1MB"), None)
        found = LEAST.search(asked.stderr)
        if asked.code != 1 or not found:
            return self.fail("no minimum was reported", asked)
        megabytes = int(int(found[1]) * self.case.room)
        for _ in range(4):
            bound = megabytes * 1_000_000
            done = fenced(command_of(f"{megabytes}MB"), bound)
            self.outcome.add(bound, done)
            if done.code in (0, BUDGET):
                return None
            # What follows from the text is known late.
            more = LEAST.search(done.stderr) or ROOM_FOR_MORE.search(done.stderr)
            if not more or int(more[1]) <= megabytes:
                break
            megabytes = int(more[1])
        return self.fail(f"it failed at --mem {megabytes}MB", done)

    def _split(self, mem: str) -> list[str]:
        data = DATA[self.case.data]
        return self._line(
            "split", self.shelf.text(self.case.data), "-o", self.out, "--force", "--mem", mem,
            "--dtype", data.dtype, *self.case.options,
        )  # fmt: skip

    def _count(self, mem: str) -> list[str]:
        return [*self._split(mem), "--min-count", "2"]

    def _append(self, mem: str) -> list[str]:
        store = self.shelf.private(self.shelf.store(self.case.data), self.case.number)
        night = self.shelf.text(self.case.data)
        return self._line("split", "--append", store, night, "--force", "--mem", mem)

    def _train(self, mem: str) -> list[str]:
        name = self.case.data
        store, options = self.shelf.store(name), list(self.case.options)
        if "WEIGHTS" in options:
            options[options.index("WEIGHTS")] = str(self.shelf.weights(name))
        if "MODEL" in options:
            options[options.index("MODEL")] = str(self._model_to_start_from(options))
        budget = ("--max-passes", "2", "--rounds", "1", "--tol", "1e-12")
        return self._line("train", store, "-o", self.out, "--mem", mem, *budget, *options)

    def _model_to_start_from(self, options: list[str]) -> Path:
        """Train once with the loss of the case, at any bound."""
        loss = options[options.index("--loss") + 1]
        path = self.shelf.folder / f"case-{self.case.number}.earlier"
        if not path.exists():
            plain = ("--loss", loss, "--max-passes", "1", "--rounds", "1", "--tol", "1e-12")
            store = self.shelf.store(self.case.data)
            fenced(self._line("train", store, "-o", path, "--mem", "4GB", *plain), None)
        return path

    def _tune(self, mem: str) -> list[str]:
        budget = ("--max-passes", "1", "--rounds", "1", "--tol", "1e-12", "--folds", "2")
        store = self.shelf.store(self.case.data)
        return self._line(
            "tune", store, "-o", self.out, "--C", "0.1,1", "--mem", mem, *budget,
            *self.case.options,
        )  # fmt: skip

    # ------------------------------------------------------------------- streams, and the rest

    def _stream(self) -> None:
        """Learn text; where the plan is outgrown, go on with what the refusal says is enough."""
        start: list[Any] = [self.shelf.text(self.case.data), "-o", self.out, *self.case.options]
        asked = fenced(self._line("stream", *start, "--mem", "1MB"), None)
        goes_on = False
        for _ in range(8):
            found = ROOM_FOR_MORE.search(asked.stderr)
            if asked.code != 1 or not (found or LONG_LINE in asked.stderr):
                return self.fail("no bound was reported", asked)
            megabytes = int((int(found[1]) if found else FOR_LONG_LINES) * self.case.room)
            words = ["--resume", self.out] if goes_on else start
            bound = megabytes * 1_000_000
            line = self._line("stream", *words, "--mem", f"{megabytes}MB", "--rounds", "1")
            asked = fenced(line, bound)
            self.outcome.add(bound, asked)
            if asked.code == 0:
                return None
            goes_on = goes_on or "use --resume to continue" in asked.stderr
        return self.fail("refused eight times", asked)

    def _unbounded(self) -> None:
        """Run a command without ``--mem``; it is held to the size of what it loads."""
        name, shelf, case = self.case.data, self.shelf, self.case
        data = DATA[name]
        store, features = shelf.store(name), data.features
        outputs = data.classes if data.kind == "multi" else 1
        model = 2 * 8 * features * outputs + 48 * features
        night, trained = shelf.night(name, 0), shelf.model(name)
        text = store if case.command == "predict store" else shelf.text(name)
        if case.command == "expire":
            store = shelf.private(store, case.number)
            if not data.nights:
                sbm.split(night, store, append=True, blocks=1)
        form = "json" if data.apart > 1 else "liblinear"  # whose ids end at 2^31
        lines: dict[str, tuple[list[Any], int]] = {
            "check": (["check", store], 48 * features),
            "info store": (["info", store], 0),
            "info run": (["info", f"{trained}.run"], 0),
            "expire": (["expire", store, "--source", night.name], 48 * features),
            "export": (["export", trained, "-o", self.out, "--format", form], model),
            "predict": (["predict", trained, text, "-o", self.out], model + PIECES),
        }
        line, size = lines.get(case.command) or lines["predict"]
        if case.command == "predict store":
            size += 40 * max(data.features * bool(data.giants), 1_000_000)
        bound = ALLOWANCE + size
        done = fenced(self._line(*line), bound)
        self.outcome.add(bound, done)
        if done.code != 0:
            self.fail("failed", done)

    @staticmethod
    def _line(*words: str | Path) -> list[str]:
        return [*sbm_command(*words), "-q"]


# ------------------------------------------------------------------------------------------- run


def run(
    cases: int, seed: int, folder: Path, tell: Callable[[str], None], only: int | None = None
) -> Tally:
    """Run a seeded sample of the grid; see `scripts.torture.kills.run`."""
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
        tell(
            f"{case}: {outcome.share:.3f} of {outcome.bound / 1e6:.0f} MB, exit {outcome.codes}, "
            f"{outcome.seconds:.1f} s"
        )
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
