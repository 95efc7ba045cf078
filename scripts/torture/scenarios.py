"""Small jobs to be troubled: what they start from, their command lines, what they leave behind.

A `Stage` runs one scenario: it makes the folder to start from and, without trouble, the states that
the folder goes through. A case starts from a copy of that folder. Commands run in children that are
forked, not started: the interpreter and all modules are there already. A lock that another thread
holds is never given back in the child; so a server that has a single thread does it.
"""

import contextlib
import errno
import faulthandler
import gzip
import hashlib
import io
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import zstandard

import sbm
import sbm.cli
import sbm.dataset.weights
import sbm.programs.cat
import sbm.programs.expire
import sbm.programs.export
import sbm.programs.info
import sbm.programs.predict
import sbm.programs.report
import sbm.programs.split
import sbm.programs.stream
import sbm.programs.train
import sbm.programs.tune
import sbm.store.files
from sbm.errors import SbmError
from sbm.store import container
from sbm.store.blocks import MANIFEST
from sbm.store.run import Run
from scripts.torture.faulty_files import Layer, Point, Trouble
from scripts.torture.tally import Section, Tally, Tell

Line = tuple[str, ...]
PATIENCE = 120  # seconds until a command hangs

_server = multiprocessing.get_context("forkserver")
_server.set_forkserver_preload([__name__])


@dataclass(frozen=True)
class Scenario:
    """Commands to be troubled."""

    lines: tuple[Line, ...]  # arguments of sbm, one command after the other
    before: tuple[Line, ...] = ()  # what is run first, without trouble
    # beside success: how a command says that there is nothing left to do, a regular expression
    done: str = "(?!)"
    slow_swap: bool = False  # the system cannot exchange the names of two folders

    @property
    def command(self) -> str:
        """What it is about, for counts."""
        return self.lines[0][0]


def _troubled(
    *lines: str, before: Sequence[str] = (), done: str = "(?!)", slow_swap: bool = False
) -> Scenario:
    words, first = (tuple(tuple(line.split()) for line in some) for some in (lines, before))
    return Scenario(words, first, done, slow_swap)


_EXISTS = r"exists; (add to it with --append|replace it with --force)"
_KNOWN = r"is already in .* as .*\(same SHA-256\)"
_GONE = r"was already dropped from"
_SPLIT = "split -q a.svm -o s.sbm --blocks 6 --threads 2"
_REPLACE = "split -q b.svm c.svm -o s.sbm --blocks 3 --force"
_APPEND = ("split -q --append s.sbm b.svm --blocks 2", "split -q --append s.sbm c.svm --blocks 2")
_EXPIRE = "expire -q s.sbm --source a.svm"
_TRAIN = "train -q s.sbm -o m.model --tol 1e-2 --max-passes 300 --threads 2 --mem 400MB"
_OFTEN = "--checkpoint-every 0.003s --tol 5e-2"  # at most blocks
_LOOSE = _TRAIN.replace("1e-2", "1e-1")
_TEXT = _TRAIN.replace("s.sbm", "a.svm c.svm --blocks 6")
_MULTI = "split -q multi.svm -o s.sbm --blocks 4 --threads 2"
_STREAM = "stream -q a.svm b.svm -o m.model --mem 400MB --threads 2 --checkpoint-every 40rows"
_TUNE = "tune -q s.sbm -C 0.1,1 --folds 2 -o m.model --tol 3e-2 --mem 400MB --threads 2"
_JSON, _REPORT = "-o m.json --format json", "report -q m.model -o m.html"


def _train(options: str, *, split: str = _SPLIT) -> Scenario:
    return _troubled(f"{_TRAIN} {options}", before=[split])


SCENARIOS: dict[str, Scenario] = {
    "split": _troubled(_SPLIT, done=_EXISTS),
    "split: rare features": _troubled(
        "split -q a.svm -o s.sbm --blocks 3 --min-count 3", done=_EXISTS
    ),
    "split: packed sources": _troubled(
        "split -q a.svm.gz b.svm.zst c.svm -o s.sbm --blocks 4", done=_EXISTS
    ),
    "split: real labels, in turn": _troubled(
        "split -q real.svm -o s.sbm --no-shuffle --dtype float64", done=_EXISTS
    ),
    "split: replace": _troubled(_REPLACE, before=[_SPLIT]),
    "split: replace, slowly": _troubled(_REPLACE, before=[_SPLIT], slow_swap=True),
    "split: shards": _troubled(f"{_SPLIT} --shards 3", done=_EXISTS),
    "split: replace shards": _troubled(f"{_REPLACE} --shards 3", before=[f"{_SPLIT} --shards 3"]),
    "append": _troubled(_APPEND[0], before=[_SPLIT], done=_KNOWN),
    "append: twice": _troubled(*_APPEND, before=[_SPLIT], done=_KNOWN),
    "expire": _troubled(_EXPIRE, before=[_SPLIT, _APPEND[0]], done=_GONE),
    "train: hinge": _train("--cache-frac 0.5"),
    "train: hinge, a checkpoint a block": _train(f"--cache-frac 0.5 {_OFTEN}"),
    "train: hinge, a new model": _troubled(f"{_TRAIN} -C 0.01 --fresh", before=[_SPLIT, _TRAIN]),
    "train: log_loss": _train("--loss log_loss --cache-frac 0.3 --bias 1"),
    "train: newton": _train(f"--solver newton --loss log_loss -C 10 {_OFTEN}", split=_MULTI),
    "train: interior point": _train(f"--solver newton -C 10 {_OFTEN}"),
    "train: weston_watkins": _train(f"--loss weston_watkins {_OFTEN}", split=_MULTI),
    "train: one-vs-rest": _train(_OFTEN, split=_MULTI),
    "train: one-vs-rest in turns": _troubled(
        f"{_TRAIN} --bias 1 {_OFTEN} --mem 119MB", before=["split -q wide.svm -o s.sbm --blocks 3"]
    ),
    "train: calibrated": _train(f"--loss squared_hinge --calibrate {_OFTEN}"),
    "train: validated": _train(f"--validate 20% --threshold f1 --cache-frac 0.5 {_OFTEN}"),
    "train: text, validated": _troubled(f"{_TEXT} --validate b.svm --metric auc {_OFTEN}"),
    "train: l1, validated": _train("--loss log_loss --penalty l1 --validate b.svm"),
    "train: one_class": _train("--loss one_class --nu 0.3"),
    "train: auto cache": _train(f"--cache-frac auto {_OFTEN}"),
    "train: weights": _train("--weights weights.txt"),
    "train: regression": _train(
        "--loss epsilon_insensitive", split="split -q real.svm -o s.sbm --blocks 5"
    ),
    "train: scaled": _train(f"--scale std --cache-frac 0.5 {_OFTEN}"),
    "train: Newton, scaled": _train("--solver newton --loss log_loss --scale std --intercept"),
    "train: interior point, scaled text": _troubled(
        f"{_TEXT} --solver newton --scale maxabs --intercept --checkpoint-every 0.02"
    ),
    "train: text": _troubled(_TEXT),
    "train: text, spilled": _troubled(f"{_TEXT} {_OFTEN} --mem 156MB"),
    "train: text, with its store": _troubled(f"{_TEXT} --keep-store s.sbm"),
    "train: warm": _troubled(
        f"{_TRAIN} --warm-start", before=[_SPLIT, _APPEND[0], _TRAIN, _APPEND[1], _EXPIRE]
    ),
    "stream": _troubled(_STREAM),
    "stream: multi-class": _troubled(_STREAM.replace("a.svm b.svm", "multi.svm")),
    "stream: packed": _troubled(
        "stream -q a.svm.gz b.svm.zst -o m.model --mem 400MB --checkpoint-every 64rows"
    ),
    "stream: the next day": _troubled("stream -q --resume m.model c.svm", before=[_STREAM]),
    "stream: a new model": _troubled(f"{_STREAM} -C 0.1", before=[_STREAM]),
    "tune": _troubled(_TUNE, before=[_SPLIT]),
    "tune: text": _troubled(_TUNE.replace("s.sbm", "a.svm b.svm")),
    "tune: sparse": _troubled(f"{_TUNE} --penalty l1 --loss log_loss", before=[_SPLIT]),
    "tune: newton": _troubled(f"{_TUNE} --solver newton", before=[_SPLIT]),
    "cat": _troubled("cat s.sbm -q -o out.svm", before=[_SPLIT]),
    "cat: over an older one": _troubled(
        "cat s.sbm -q -o out.svm",
        before=[_SPLIT, "cat s.sbm -q -o out.svm", _APPEND[0]],
    ),
    "export": _troubled("export m.model", before=[_SPLIT, _LOOSE]),
    "export: npz": _troubled(
        "export m.model --format npz --prune 1e-3", before=[_SPLIT, _LOOSE]
    ),
    "export: over an older one": _troubled(
        f"export n.model {_JSON}",
        before=[_SPLIT, _LOOSE, f"export m.model {_JSON}",
                _LOOSE.replace("m.model", "n.model") + " -C 0.01"],
    ),
    "predict": _troubled(
        "predict -q m.model b.svm -o out.txt --confusion table.tsv",
        before=[_SPLIT, _LOOSE, "predict -q m.model a.svm -o out.txt"],
    ),
    "report": _troubled(_REPORT, before=[_SPLIT, _LOOSE, _REPORT]),
    "a night": _troubled(
        _APPEND[0], f"{_EXPIRE} --if-any", f"{_TRAIN} --warm-start", before=[_SPLIT, _TRAIN],
        done=f"{_KNOWN}|{_GONE}",
    ),
}  # fmt: skip


# ---------------------------------------------------------------------------------- text to read


def write_texts(folder: Path) -> None:
    """Write the inputs of all scenarios."""
    choose = random.Random(7)
    hidden = [choose.gauss(0, 1) for _ in range(80)]

    def rows(n: int, kind: str) -> str:
        lines = []
        for _ in range(n):
            ids = sorted(choose.sample(range(80), choose.randint(2, 9)))
            values = [round(choose.uniform(0.1, 2), 3) for _ in ids]
            score = sum(hidden[i] * v for i, v in zip(ids, values, strict=True))
            score += choose.gauss(0, 1)
            label = {
                "binary": f"{1 if score > 0 else -1:+d}",
                "multi": str(min(3, max(0, int(score + 2)))),
                "real": f"{score:.4f}",
            }[kind]
            cells = " ".join(f"{i + 1}:{v:g}" for i, v in zip(ids, values, strict=True))
            lines.append(f"{label} {cells}\n")
        return "".join(lines)

    texts = {name: rows(120, "binary") for name in ("a", "b", "c")}
    texts |= {"multi": rows(120, "multi"), "real": rows(120, "real")}
    wide = (range(1 + 400 * i, 401 + 400 * i) for i in range(120))  # 30 classes
    texts["wide"] = "".join(
        f"{i % 30} " + " ".join(f"{k}:1" for k in ids) + "\n" for i, ids in enumerate(wide)
    )
    for name, text in texts.items():
        (folder / f"{name}.svm").write_text(text, "ascii")
    (folder / "a.svm.gz").write_bytes(gzip.compress(texts["a"].encode(), mtime=0))
    (folder / "b.svm.zst").write_bytes(zstandard.compress(texts["b"].encode()))
    weights = "".join(f"{choose.uniform(0, 2):.3f}\n" for _ in range(120))
    (folder / "weights.txt").write_text(weights, "ascii")


# ------------------------------------------------------------------------------ children at work


@dataclass(frozen=True)
class Ended:
    """A command that ended, or was killed."""

    code: int  # exit code; negative: the signal it died of
    stderr: str
    stdout: str
    seconds: float
    points: list[Point] = field(default_factory=list)  # what it did to files, if it was not killed

    @property
    def was_killed(self) -> bool:
        """Whether it died of what killed it on purpose."""
        return self.code == -signal.SIGKILL


def run_command(
    line: Sequence[str],
    folder: Path,
    trouble: Trouble | None = None,
    *,
    kill_after: float | None = None,
    slow_swap: bool = False,
) -> Ended:
    """Run a command of sbm in a child and a folder.

    It is killed from outside after ``kill_after`` seconds. ``slow_swap``: as if the system could
    not exchange the names of two folders.
    """
    beside = folder.with_name(folder.name + ".said")
    for place in (beside, folder.with_name(folder.name + ".shadow")):  # of the command before
        shutil.rmtree(place, ignore_errors=True)
    beside.mkdir()
    for name in ("out", "err"):
        (beside / name).touch()  # it may be killed before it gets there
    begin = time.perf_counter()
    child = _server.Process(target=_be_sbm, args=(line, folder, trouble, beside, slow_swap))
    child.start()
    limit = PATIENCE if kill_after is None else kill_after
    code = _wait(child, limit, signal.SIGABRT if kill_after is None else signal.SIGKILL)
    seconds = time.perf_counter() - begin
    said = {name: (beside / name).read_text("utf-8", "replace") for name in ("out", "err")}
    points = []
    if (beside / "points").exists():
        points = [Point(*p) for p in json.loads((beside / "points").read_text())]
    return Ended(code, said["err"], said["out"], seconds, points)


def _wait(child: Any, limit: float, last: int) -> int:
    """Wait for a child's end, and see to it after some time; return its exit code."""
    child.join(limit)
    if child.exitcode is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, last)
        child.join()
    code = int(child.exitcode)
    child.close()
    return code


def _forget_swap() -> None:
    def swap(a: Path, b: Path) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS), str(b))

    files: Any = sbm.store.files
    files._swap = swap


def _be_sbm(
    line: Sequence[str], folder: Path, trouble: Trouble | None, beside: Path, slow_swap: bool
) -> None:
    """Be the command, in the child, to its end."""
    code = 70
    try:
        for number, name in ((1, "out"), (2, "err")):
            handle = os.open(beside / name, os.O_WRONLY)
            os.dup2(handle, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False, buffering=1)
        faulthandler.enable(file=2)
        os.chdir(folder)
        layer = Layer(folder, trouble)
        if slow_swap:
            _forget_swap()
        layer.install()
        try:
            sbm.cli.main(list(line))
        except SystemExit as end:
            code = int(end.code or 0)
        if trouble is None:
            points = [(point.kind, point.name) for point in layer.points]
            with open(beside / "points.part", "w", encoding="ascii") as file:
                json.dump(points, file)
            os.replace(beside / "points.part", beside / "points")  # it may be killed here, too
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        code = 70
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


# --------------------------------------------------------------------------- folders as they are

Tree = dict[str, bytes]
_OF_THE_CLOCK = (
    "seconds", "mark", "elapsed", "log_bytes", "bytes_read", "peak_rss_bytes", "resumed",
    "state_crc32",  # of a header that holds that name; the file itself is compared
)  # fmt: skip
_DATE = re.compile(rb"\d{4}-\d\d-\d\d \d\d:\d\d UTC")
_SERIAL = re.compile(r"(alpha|state)-\d+\.sba")


def read_tree(folder: Path) -> Tree:
    """All files below a folder, without what is of the clock.

    Left out are: when a source was added or expired (and with it the checksum of the manifest), the
    running numbers in the names of a run's files, which count commits and thus depend on the clock,
    too, the lines of a log, and of run.json seconds, the memory of the process, what was read
    ahead (by bytes), the length of the log, and whether the training was resumed, and of a page its
    date.
    """
    tree = {}
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            if not any(path.iterdir()):
                tree[str(path.relative_to(folder)) + "/"] = b""
            continue
        if path.name.startswith("alpha-") and (path.parent / "run.json").exists():
            continue
        name = _SERIAL.sub(r"\1.N.sba", str(path.relative_to(folder)))
        tree[name + "'" if name in tree else name] = _without_clock(path)
        if path.name == "run.json":
            tree |= _alphas(path.parent, name.removesuffix("run.json"))
    return tree


def _alphas(folder: Path, name: str) -> Tree:
    """Alphas of a run by part: commits, and thus the clock, decide which are in one file."""
    tree = {}
    try:
        record = json.loads((folder / "run.json").read_bytes())["run"]
        for part, data in _alphas_of(folder, record):
            tree[f"{name}alpha-{part}"] = data
        for path in folder.glob("alpha-*"):
            if path.name not in record["files"]:
                tree[f"{name}{path.name}"] = b""
    except (SbmError, OSError, ValueError, KeyError):
        tree[f"{name}alphas"] = b"damaged"
    return tree


def _alphas_of(folder: Path, record: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield the encoded alphas of each part, checked."""
    for part, (number, offset, size, crc32) in record["alphas"].items():
        path = folder / record["files"][number]
        data = path.read_bytes()[offset : offset + size]
        container.decode(data, "alpha", str(path), crc32=crc32)
        yield part, data


def _without_clock(path: Path) -> bytes:
    data = path.read_bytes()
    if path.name == "log.jsonl":
        return b""
    if path.suffix == ".html":
        return _DATE.sub(b"", data)
    try:
        if _SERIAL.fullmatch(path.name):
            return _without_name(path)
        if path.name == "run.json":
            record = json.loads(data)["run"]
            report = record.get("report", {})
            turns = record.get("reports", [])
            record["alphas"], record["files"] = sorted(record["alphas"]), []
            others = record.get("second") or {}, report.get("read") or {}
            for facts in (record, report, *others, *turns):
                for name in _OF_THE_CLOCK:
                    facts.pop(name, None)
            return _SERIAL.sub(r"\1.N.sba", json.dumps(record)).encode()
        if path.name == MANIFEST:
            record = json.loads(data)["manifest"]
            for generation in record["generations"]:
                generation["added"] = ""
                if "expired" in generation:
                    generation["expired"]["at"] = ""
            return json.dumps(record).encode()
    except (SbmError, ValueError, KeyError):
        pass  # damaged: these bytes are of no state
    return data


def _without_name(path: Path) -> bytes:
    """Content of a run's file, which knows its name."""
    kind = path.name.partition("-")[0]
    file = container.read(path, kind)
    meta = {key: value for key, value in file.meta.items() if key != "name"}
    parts = [(name, str(a.dtype), a.shape, a.tobytes()) for name, a in file.arrays.items()]
    return repr((meta, parts)).encode()


def differences(found: Tree, expected: Tree) -> list[str]:
    """What is otherwise than it should be."""
    lines = [f"{name} is left over" for name in found if name not in expected]
    lines += [f"{name} is missing" for name in expected if name not in found]
    return lines + [
        f"{name} has different bytes"
        for name in expected
        if name in found and found[name] != expected[name]
    ]


@dataclass(frozen=True)
class Case:
    """Trouble for a command of a scenario."""

    scenario: str
    command: int  # which of its commands has it
    trouble: Trouble | None  # None: it is killed from outside,
    moment: float = 0.0  # when this share of its usual time has passed
    more: tuple[Trouble, ...] = ()  # kills of the same command when it runs again
    point: Point | None = None  # what was there when nothing failed

    def __str__(self) -> str:
        how = str(self.trouble) if self.trouble else f"killed at {self.moment:.3f} of its time"
        again = "".join(f", again {trouble}" for trouble in self.more)
        where = f" ({self.point.kind} of {self.point.name})" if self.point else ""
        return f"{self.scenario!r}, command {self.command}, {how}{where}{again}"


class Stage:
    """A scenario, what it starts from, and the states it goes through without trouble.

    ``states`` has the folder before the first command and after each; ``points`` and ``seconds``
    are those of each command. Raises `RuntimeError` if a command fails without any trouble.
    """

    _known: ClassVar[dict[tuple[str, Path], "Stage"]] = {}

    @classmethod
    def of(cls, name: str, folder: Path) -> "Stage":
        """Return the stage of a scenario, made once in a folder."""
        if (name, folder) not in cls._known:
            cls._known[name, folder] = cls(name, folder)
        return cls._known[name, folder]

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.scenario = name, SCENARIOS[name]
        self.folder = folder / re.sub(r"\W+", "-", name) / "case"
        self._start = self._made(folder / "starts", self.scenario.before)
        self._rehearse()
        self.begin()
        self.states = [read_tree(self.folder)]
        self.points: list[list[Point]] = []
        self.seconds: list[float] = []
        for line in self.scenario.lines:
            ended = self._run_well(line, self.folder)
            self.points.append(ended.points)
            self.seconds.append(ended.seconds)
            self.states.append(read_tree(self.folder))

    def _made(self, folder: Path, lines: tuple[Line, ...]) -> Path:
        """Return a folder in which some commands were run; scenarios share them."""
        name = hashlib.sha256(repr(lines).encode()).hexdigest()[:16]
        if not (folder / name).exists():
            making = folder / "making"
            if lines:
                before = self._made(folder, lines[:-1])
                shutil.copytree(before, making)
                self._run_well(lines[-1], making)
            else:
                making.mkdir(parents=True)
                write_texts(making)
            making.rename(folder / name)
        return folder / name

    def _rehearse(self) -> None:
        """Run the commands in this process once, for the modules and kernels that they load.

        Children begin with them; there is no thread left when they are forked.
        """
        with (
            contextlib.chdir(self.begin()),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            for line in self.scenario.lines:
                sbm.cli.cli.main(list(line), standalone_mode=False)

    def begin(self) -> Path:
        """Make the folder of a case."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(self._start, self.folder)
        return self.folder

    def _run_well(self, line: Line, folder: Path) -> Ended:
        ended = run_command(line, folder, slow_swap=self.scenario.slow_swap)
        if ended.code != 0:
            words = " ".join(line)
            raise RuntimeError(f"{self.name}: sbm {words} exited with {ended.code}: {ended.stderr}")
        return ended

    # -------------------------------------------------------------------------------- judgements

    def find_damage(self) -> list[str]:
        """What is neither of an old state nor of a new one, in the folder of the case."""
        return [*self._damaged_stores(), *self._damaged_files(), *self._damaged_runs()]

    def _damaged_stores(self) -> Iterator[str]:
        now = read_tree(self.folder)
        if self.scenario.slow_swap and "s.sbm/manifest.json" not in now:  # the next split finds it
            now = {name.replace("s.sbm.replaced/", "s.sbm/"): data for name, data in now.items()}
        manifests = {name for state in self.states for name in state if name.endswith(MANIFEST)}
        for name in sorted(manifests):
            store = name.removesuffix(f"/{MANIFEST}")
            if name not in now:
                if name in self.states[0]:
                    yield f"{store} is lost"
                continue
            same = [state for state in self.states if state.get(name) == now[name]]
            if not same:
                yield f"{name} is of no state there ever was"
                continue
            manifest = json.loads(now[name])
            files = [entry["file"] for entry in manifest["blocks"]]
            files += [g[key] for g in manifest["generations"] for key in ("features", "index")]
            for file in files:
                path = f"{store}/{file}"
                if path not in same[0]:
                    continue  # in another shard
                if path not in now:
                    yield f"{path} is missing"
                elif now[path] != same[0][path]:
                    yield f"{path} has different bytes"

    def _damaged_files(self) -> Iterator[str]:
        """Files of their own: models, exports, predictions, and the inputs."""
        now = read_tree(self.folder)
        names = {name for state in self.states for name in state if "/" not in name}
        for name in sorted(names):
            if name not in now:
                if name in self.states[0]:
                    yield f"{name} is lost"
            elif all(state.get(name) != now[name] for state in self.states):
                if self.scenario.command != "stream" or not name.endswith(".model"):
                    yield f"{name} is of no state there ever was"
                    continue
                try:
                    sbm.Model.load(self.folder / name)
                except SbmError as error:
                    yield f"{name}: {error}"

    def _damaged_runs(self) -> Iterator[str]:
        for folder in sorted(self.folder.glob("*.run*")):
            if not (folder / "run.json").exists():
                continue
            try:
                record = Run.read(folder)
                container.read(folder / record["state"], "state")
                list(_alphas_of(folder, record))
            except (SbmError, KeyError) as error:
                yield f"{folder.name}: {error}"

    def finish(self, command: int = 0, troubles: Sequence[Trouble] = ()) -> list[str]:
        """Run the same commands again, to their end; return what is wrong then.

        One command is killed by each of the troubles before, when it runs again.
        """
        for trouble in troubles:
            for number in range(command):
                self.run(number, again=True)
            self.run(command, trouble, again=True)
        for number in range(len(self.scenario.lines)):
            ended = self.run(number, again=True)
            is_done = ended.code == 1 and re.search(self.scenario.done, ended.stderr)
            if ended.code != 0 and not is_done:
                return [f"the same command exits with {ended.code}: {ended.stderr.strip()}"]
        return differences(read_tree(self.folder), self.states[-1])

    def run(
        self,
        number: int,
        trouble: Trouble | None = None,
        *,
        again: bool = False,
        kill_after: float | None = None,
    ) -> Ended:
        """Run a command of the scenario in the folder of the case.

        A stream that has committed is resumed with --resume.
        """
        line = list(self.scenario.lines[number])
        is_new_stream = line[0] == "stream" and "--resume" not in line
        if again and is_new_stream and self._has_stream(line):
            sources = [word for word in line if ".svm" in word]
            line = ["stream", "-q", "--resume", "m.model", *sources]
        slow = self.scenario.slow_swap
        return run_command(line, self.folder, trouble, kill_after=kill_after, slow_swap=slow)

    def _has_stream(self, line: Sequence[str]) -> bool:
        """Whether the stream in the folder is this command's, not one of before."""
        path = self.folder / "m.model.run" / "run.json"
        if not path.exists():
            return False
        old = self.states[0].get("m.model.run/run.json")
        return old is None or _without_clock(path) != old


def section_of(
    what: str,
    draw: Callable[[int, int, Stage], Case],
    run_case: Callable[[Stage, Case], list[str]],
    count: Callable[[Tally, Case], None],
) -> Section:
    """Return a section that spreads its cases over all scenarios.

    ``draw`` makes the case of a number and a seed, and ``count`` notes of what kind it was.
    """

    def run(cases: int, seed: int, folder: Path, tell: Tell, only: int | None = None) -> Tally:
        tally = Tally(what)
        for k, name in enumerate(SCENARIOS):
            numbers = [n for n in range(k, cases, len(SCENARIOS)) if only in (None, n)]
            if not numbers:
                continue
            stage = Stage.of(name, folder)

            def attempt(numbered: tuple[int, Case], stage: Stage = stage) -> list[str]:
                tally.count("by command", stage.scenario.command)
                tally.count("by scenario", stage.name)
                count(tally, numbered[1])
                return run_case(stage, numbered[1])

            drawn = ((n, draw(n, seed, stage)) for n in numbers)
            tally.try_each(drawn, attempt, tell, f"seed {seed} case {{0[0]}}: {{0[1]}}")
            tell(f"{what}: {name}, {tally.tried} so far, {len(tally.failures)} failures")
        return tally

    return run
