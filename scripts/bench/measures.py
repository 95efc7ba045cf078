"""What each result measures: a function that fills a report, from commands as users type them.

A function gets a `Bench`, which has the texts, runs the commands and has the report. Its first
line of docstring is the title of the report, the other paragraphs are notes.
"""

import itertools
import json
import math
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sbm.units import parse_size
from scripts.bench import tools
from scripts.bench.commands import BUDGET, learn, log_of, metric_of, option_words, remove, split
from scripts.bench.data import first_bytes, hold_out
from scripts.bench.peers import Liblinear, VowpalWabbit
from scripts.bench.texts import DATA, text_of
from scripts.bench.tools import Finished, Report, alternate, costs, ratio, run_process, sbm_command
from scripts.bench.weights import accuracy, objective, read_liblinear, read_ours

COSTS = (0.1, 1.0, 10.0)
TOL = 1e-3
TO_TOL = {"tol": TOL, "time_limit": "20s", "max_passes": 20_000}


@dataclass(frozen=True)
class Bench:
    """The folders, the report and the size of one result."""

    folder: Path  # removed at the end
    kept: Path  # for texts, which are made once
    reference: Path | None
    quick: bool
    report: Report

    @property
    def model(self) -> Path:
        """Where a model goes that is looked at at once."""
        return self.folder / "m.model"

    def text(self, name: str) -> Path:
        """Return a text of `scripts.bench.texts`, and describe it in the report."""
        self.report.data[name] = DATA[name].what
        return text_of(name, self.kept, self.reference, self.quick)

    def store(self, source: Path, **options: Any) -> Path:
        """Split a text to a store, made once for each set of options."""
        key = "".join(f"-{k}{v}" for k, v in sorted(options.items()))
        store = self.folder / f"{source.stem}{key}.sbm"
        if not store.exists():
            split(source, store, **options)
        return store

    def train(self, source: Path, *flags: str, **options: Any) -> Finished:
        """Run ``train``, or another ``command``, from scratch to a ``model``."""
        command, model = options.pop("command", "train"), options.pop("model", self.model)
        return learn(command, source, model, *flags, codes=BUDGET, **options)

    def add(self, **cells: Any) -> None:
        """Add a row to the report."""
        self.report.rows.append(cells)
        tools.tell(", ".join(f"{k} {v}" for k, v in cells.items()))

    def less(self, values: Sequence[Any], most: int = 1) -> Sequence[Any]:
        """Return the values, or the first ones at toy size."""
        return values[:most] if self.quick else values

    def skip(self, what: str, reason: str) -> None:
        """Note what was left out."""
        self.report.notes.append(f"{what}: skipped, {reason}")


# ------------------------------------------------------------------------------------ the grid

# LIBLINEAR's -s of a loss, and the -e that it takes by itself.
PEERS = {"hinge": (3, 0.1), "squared_hinge": (1, 0.1), "log_loss": (7, 0.1),
         "crammer_singer": (4, 0.1)}  # fmt: skip
GRID = ("ones", "reals", "digits", "mixed", "classes", "ill", "tiny")
SEVERAL = ("digits", "classes")  # of more than two classes
DECODED_SHARE = 5  # in little memory there is room for a fifth of the decoded rows
REPEATED_C, REPEATS = 1.0, 3


def grid(bench: Bench) -> None:
    """Text to a certified model, in ample and in little memory, beside LIBLINEAR.

    From text in the page cache to a model on disk, taking turns, to a certified gap of 1e-3, at
    most 20 seconds; LIBLINEAR at its own -e. Whole processes; if LIBLINEAR is a library, without
    the start of Python in its time and its peak. C = 1 is the median of three runs.
    Compiling is left out. Peak memory is that of the largest process, from outside.

    little: the smallest --mem that the command accepts and a fifth of the decoded rows. gap:
    certified. above: objective above LIBLINEAR's, relative to it; both are computed by one function
    from the text and the weights in the model file.
    """
    for name in bench.less(GRID, 3):
        text = bench.text(name)
        facts = run_process(sbm_command("info", bench.store(text), "--json")).json()
        losses = [*PEERS][:: -1 if name in SEVERAL else 1][: 4 if name in SEVERAL else 3]
        for loss in bench.less(losses):
            least = max(
                _least(command, source, loss=loss)
                for command, source in (("plan", bench.store(text)), ("train", text))
            )
            mem = f"{math.ceil((least + facts['memory_bytes'] / DECODED_SHARE) / 1e6)}MB"
            bench.train(text, loss=loss, max_passes=1)  # compiles
            bench.train(text, loss=loss, max_passes=1, mem=mem)
            for C in bench.less(COSTS):
                _cell(bench, name, text, loss, C, mem)


def _least(command: str, source: Path, **options: Any) -> int:
    """Return the smallest ``--mem`` that a command asks for if it gets too little."""
    words = option_words(options | {"mem": "1MB"})
    done = run_process(sbm_command(command, source, *words), codes=(1, 2))
    found = re.search(r"at least --mem (\w+)", done.stderr)
    if found is None:
        raise tools.BenchError(f"sbm {command} does not ask for more memory:\n{done.stderr}")
    return parse_size(found[1])


def _cell(bench: Bench, name: str, text: Path, loss: str, C: float, mem: str) -> None:
    """Let the contestants take turns on one problem."""
    solver, e = PEERS[loss]
    peer, theirs = Liblinear.found(C, solver), bench.folder / "liblinear.model"
    ours = {what: bench.folder / f"{what}.model" for what in ("ample", "little")}
    options = {"loss": loss, "C": C, **TO_TOL}
    tasks = {
        "ample": partial(bench.train, text, model=ours["ample"], **options),
        "little": partial(bench.train, text, model=ours["little"], mem=mem, **options),
    }
    if peer is not None:
        tasks["liblinear"] = partial(peer.run, text, theirs, e)
    runs = alternate(tasks, REPEATS if C == REPEATED_C and not bench.quick else 1)
    values = {what: objective(text, loss, C, read_ours(model)) for what, model in ours.items()}
    row: dict[str, Any] = {"data": name, "loss": loss, "C": C, "mem of little": mem}
    for what in ours:
        row |= {f"{k} {what}": v for k, v in costs(runs[what]).items()}
        row[f"gap {what}"] = max(done.json()["relative_gap"] for done in runs[what])
    row |= dict.fromkeys(("seconds LIBLINEAR", "peak_MB LIBLINEAR", "above", "ratio ample",
                          "ratio little", "peak of little"))  # fmt: skip
    bench.report.settings["LIBLINEAR"] = Liblinear.what()
    if peer is not None:
        best = objective(text, loss, C, read_liblinear(theirs))
        row |= {f"{k} LIBLINEAR": v for k, v in costs(runs["liblinear"]).items()}
        row |= {
            "above": max(values.values()) / best - 1,
            "ratio ample": ratio(runs["ample"], runs["liblinear"]),
            "ratio little": ratio(runs["little"], runs["liblinear"]),
            "peak of little": ratio(runs["little"], runs["liblinear"], "peak_bytes"),
        }
    else:
        bench.skip("LIBLINEAR", "it is not installed")
    bench.add(**row)


def reading(bench: Bench) -> None:
    """Text to a store, beside tools that merely read it, and the start of the program.

    LIBLINEAR with -e 1e9 reads and hardly solves. Whole processes, medians of three runs; of
    scikit-learn, which is a library, without the start of Python.
    """
    text = bench.text("ones")
    packed, store = bench.folder / "ones.svm.gz", bench.folder / "s.sbm"
    with packed.open("wb") as out:
        subprocess.run(["gzip", "-c", str(text)], stdout=out, check=True)
    peer, python = Liblinear.found(0.1), [sys.executable, "-c"]
    tasks = {
        "sbm split": partial(split, text, store),
        "sbm split, .gz": partial(split, packed, store),
        "gzip -dc": partial(run_process, ["gzip", "-dc", str(packed)]),
        "sbm --help": partial(run_process, sbm_command("--help")),
        'python -c "import numpy"': partial(run_process, [*python, "import numpy"]),
    }
    if peer is not None:
        tasks["LIBLINEAR, -e 1e9"] = partial(peer.run, text, bench.folder / "l.model", 1e9)
        code = "import sklearn.datasets as d\nwith measured:\n    d.load_svmlight_file(sys.argv[1])"
        tasks["scikit-learn's loader"] = partial(tools.run_inside, code, text)
    split(text, store)  # compiles
    for what, runs in alternate(tasks, 1 if bench.quick else REPEATS).items():
        bench.add(what=what, MB=text.stat().st_size / 1e6, **costs(runs))


# ---------------------------------------------------------------------------------- one pass


def stream(bench: Bench) -> None:
    """The model of text that is read once, and the memory that this takes.

    Whole processes from text to a model, one pass each but for the optimum (a certified gap of
    1e-3). sbm stream: with a cache, and without one. VW: its default, hinge loss, on its own text,
    converted before. pipe: the same text again and again through a pipe; the slope is that of the
    resident memory of the last half of the log, by least squares.
    """
    text, test = bench.text("text"), bench.text("text.t")
    streams: dict[str, dict[str, Any]] = {
        "sbm stream": {}, "sbm stream, no cache": {"cache_frac": 0.0, "rounds": 10},
    }  # fmt: skip
    streams = {what: {"C": 0.1, "mem": "200MB", **some} for what, some in streams.items()}
    for options in streams.values():  # compiles
        bench.train(
            first_bytes(text, 200_000, bench.folder / "warm.svm"), command="stream", **options
        )
    tasks: dict[str, Any] = {
        what: partial(bench.train, text, command="stream", **some) for what, some in streams.items()
    }
    tasks["the optimum"] = partial(bench.train, text, C=0.1, **TO_TOL)
    vw = VowpalWabbit.found(text, test, bench.folder)
    if vw is None:
        bench.skip("Vowpal Wabbit", "it is not installed")
    else:
        tasks["VW, one pass"] = vw.run
    right: dict[str, float] = {}

    def run(what: str) -> Finished:
        done: Finished = tasks[what]()
        if what not in right:
            right[what] = vw.accuracy() if vw and "VW" in what else metric_of(bench.model, test)
        return done

    runs = alternate({w: partial(run, w) for w in tasks}, 1 if bench.quick else REPEATS)
    for what, found in runs.items():
        bench.add(what=what, **costs(found), accuracy=right[what])
    _pipe(bench, text)


def _pipe(bench: Bench, text: Path) -> None:
    """Stream many copies of a text through a pipe."""
    mem, times = ("256MB", 2) if bench.quick else ("256MB", 10)
    feed = f"for i in $(seq {times}); do cat '{text}'; done"
    with subprocess.Popen(["sh", "-c", feed], stdout=subprocess.PIPE) as feeder:
        words = ("stream", "-", "-o", bench.model, "--mem", mem, "-C", 0.1, "--json", "--fresh")
        remove(bench.model)
        with tools.started_process(sbm_command(*words[:-1]), stdin=feeder.stdout) as running:
            assert feeder.stdout is not None
            feeder.stdout.close()
            done = running.wait()
    blocks = [event for event in log_of(bench.model) if event["event"] == "block"]
    last = blocks[len(blocks) // 2 :]
    share = [event["rows"] / blocks[-1]["rows"] * done.json()["text_bytes"] / 1e9 for event in last]
    resident = [event["resident_bytes"] for event in last]
    slope = float(np.polyfit(share, resident, 1)[0]) if len(last) > 1 else 0.0
    bench.report.tables["pipe"] = [{
        "GB": done.json()["text_bytes"] / 1e9, "mem": mem, "peak_MB": done.peak_bytes / 1e6,
        "of_bound": done.peak_bytes / parse_size(mem), "kB_more_per_GB": slope / 1e3,
        "seconds": done.seconds,
    }]  # fmt: skip


# ------------------------------------------------------------------------------------- memory

BYTES_PER_ROW = 56  # of `shape` below, in memory: 10 nonzeros of 4 bytes, and 16 more
TIMES = 2.5  # size of a store, in bounds


def memory(bench: Bench) -> None:
    """Peak resident memory against --mem, from outside.

    Synthetic text is piped into sbm split -, in 12 blocks; the store is 2.5 times as large as the
    bound in memory. Few features, so that rows take the memory. ok: the command worked within it.
    """
    for mem in bench.less(("180MB", "300MB")):
        bound = parse_size(mem)
        rows = 20_000 if bench.quick else int(TIMES * bound) // BYTES_PER_ROW
        store = bench.folder / f"{mem}.sbm"
        shape = ("--rows", rows, "--features", 99, "--nnz", 10, "--noise", 0.05)
        source = subprocess.Popen(
            tools.script_command("data.synthetic", "-o", "-", *shape),
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert source.stdout is not None
        words = ("split", "-", "-o", store, "--blocks", 12, "--mem", mem, "-q")
        with tools.started_process(sbm_command(*words), stdin=source.stdout) as running:
            source.stdout.close()
            done = running.wait()
        source.wait()
        _bounded(bench, "split", mem, rows, done)
        steps = {"mem": mem, "tol": 1e-12, "max_passes": 2, "rounds": 1}
        for command, options in (
            ("train", {"C": 0.1}), ("train", {"C": 0.1, "cache_frac": 0.0}),
            ("train", {"loss": "log_loss"}), ("tune", {"C": "0.1,1", "folds": 2}),
        ):  # fmt: skip
            done = bench.train(store, command=command, **steps, **options)
            _bounded(bench, command, mem, rows, done, **options)
        done = run_process(sbm_command("cat", store, "-o", bench.folder / "big.svm"))
        done = bench.train(bench.folder / "big.svm", command="stream", C=0.1, mem=mem)
        _bounded(bench, "stream", mem, rows, done, C=0.1)


def _bounded(bench: Bench, command: str, mem: str, rows: int, done: Finished, **given: Any) -> None:
    share = done.peak_bytes / parse_size(mem)
    what = " ".join(option_words(given))
    bench.add(
        command=command, options=what, mem=mem, store_MB=rows * BYTES_PER_ROW / 1e6,
        peak_MB=done.peak_bytes / 1e6, of_bound=share, seconds=done.seconds, ok=share <= 1,
    )  # fmt: skip


# --------------------------------------------------------------------------- solvers and optima

FREE: dict[str, dict[str, Any]] = {  # what is tried on rows of which many have a free alpha
    "defaults: all rows in memory": {},
    "`--parts blocks`: 12 blocks": {"parts": "blocks", "solver": "dual"},
    "`--parts blocks --cache-frac auto`": {"parts": "blocks", "solver": "dual",
                                           "cache_frac": "auto"},
    "`-C 0.1`": {"C": 0.1},
}  # fmt: skip


def converge(bench: Bench) -> None:
    """Trainings that converge slowly, and what helps.

    To a certified gap of 1e-3, at most 20 seconds, from a store; CPU seconds of the process. ill:
    an age, an income of about 50,000 and a city. remedies: C = 1 and hinge loss, unless it says
    otherwise, at most 50 passes.
    """
    plans = {"a9a": (("squared_hinge", "log_loss", "hinge"), ("dual", "newton")),
             "farm_ads": (("log_loss", "squared_hinge"), ("dual", "newton", "auto"))}  # fmt: skip
    for name, (losses, solvers) in plans.items():
        store = bench.store(bench.text(name))
        for loss, solver, C in itertools.product(losses, solvers, bench.less((*COSTS, 100.0))):
            done = bench.train(store, loss=loss, solver=solver, C=C, **TO_TOL)
            facts = done.json()
            bench.add(data=name, loss=loss, solver=solver, C=C, passes=facts["passes"],
                      relative_gap=facts["relative_gap"], CPU_seconds=done.cpu_seconds,
                      converged=facts["converged"])  # fmt: skip
    scaled = bench.report.tables["ill, --solver dual"] = []
    for scale in ("none", "maxabs", "std"):
        store = bench.store(bench.text("ill"))
        facts = bench.train(store, scale=scale, solver="dual", max_passes=50).json()
        scaled.append({"scale": scale, "passes": facts["passes"], "gap": facts["relative_gap"]})
    remedies = bench.report.tables["remedies"] = []
    store = bench.store(bench.text("remedies"), blocks=12)
    for what, options in FREE.items():
        facts = bench.train(store, max_passes=50, **options).json()
        remedies.append({
            "what": what, "passes": facts["passes"], "converged": facts["converged"],
            "relative_gap": facts["relative_gap"], "million_updates": facts["updates"] / 1e6,
        })  # fmt: skip


OPTIMA = ("a9a", "phishing", "letter", "pendigits", "abalone", "housing")
WITHIN, ROUNDING = 1e-3, 1e-6  # of the optimum; values are stored as float32


def optima(bench: Bench) -> None:
    """Certified primal against the trusted optimum of reference.json.

    Default settings, C = 0.1, 1 and 10; and 12 blocks with coordinate descent, C = 0.1 and 1. ok:
    the certified primal is within 1e-3 of the optimum, and its dual is not above it.
    """
    if bench.reference is None:
        bench.skip("all", "no --reference")
        bench.add(data="none", ok=True)
        return
    content = json.loads((bench.reference / "reference.json").read_text("utf-8"))
    known = content.get("reference", content)
    for name in OPTIMA:
        text = bench.text(name)
        for loss, records in known[DATA[name].reference].items():
            for record in (r for r in records if r["C"] in COSTS and r["relative_gap"] <= WITHIN):
                hows: list[dict[str, Any]] = [{}, {"solver": "dual", "parts": "blocks"}]
                for how in hows[: 1 if record["C"] > 1 else 2]:  # over blocks it would take long
                    store = bench.store(text, blocks=12)
                    facts = bench.train(store, loss=loss, C=record["C"], **TO_TOL, **how).json()
                    excess = facts["primal"] / record["primal"] - 1
                    is_right = excess + record["relative_gap"] >= -ROUNDING
                    is_right &= facts["dual"] <= record["primal"] * (1 + ROUNDING)
                    is_near = excess <= WITHIN or not facts["converged"]
                    bench.add(data=name, loss=loss, C=record["C"], how=" ".join(option_words(how)),
                              excess=excess, gap=facts["relative_gap"], passes=facts["passes"],
                              ok=bool(is_right and is_near))  # fmt: skip


# ------------------------------------------------------------------------------- sparse models


def sparse(bench: Bench) -> None:
    """Sparse models beside LIBLINEAR's, both from text to model.

    To a certified gap of 1e-3; LIBLINEAR's -s 6 and -s 5 with -e 1e-4. above: objective of sbm less
    LIBLINEAR's, relative to it, both computed from the text. weights: that are not 0. accuracy: of
    the test rows, or of those trained on. tuned: sbm tune over C, with l1 and with l2.
    """
    theirs = bench.folder / "l.model"
    for name, costs_ in (("a9a", COSTS), ("farm_ads", COSTS), ("text", (0.1,))):
        text = bench.text(name)
        test = bench.text(f"{name}.t") if f"{name}.t" in DATA else text
        pairs = itertools.product((("log_loss", 6), ("squared_hinge", 5)), costs_)
        for (loss, s), C in bench.less([*pairs]):
            done = bench.train(text, loss=loss, penalty="l1", C=C, **TO_TOL)
            facts, model = done.json(), read_ours(bench.model)
            row = {
                "data": name, "loss": loss, "C": C, "above": None, "gap": facts["relative_gap"],
                "passes": facts["passes"], "weights": int(np.count_nonzero(model.W)),
                "weights LIBLINEAR": None, "CPU": done.cpu_seconds, "CPU LIBLINEAR": None,
                "MB": done.peak_bytes / 1e6, "MB LIBLINEAR": None,
                "accuracy": accuracy(test, model),
            }  # fmt: skip
            if (peer := Liblinear.found(C, s)) is not None:
                run = peer.run(text, theirs, 1e-4)
                other = read_liblinear(theirs)
                mine, its = (_sparse_value(text, loss, C, one) for one in (model, other))
                row |= {
                    "above": mine / its - 1, "weights LIBLINEAR": int(np.count_nonzero(other.W)),
                    "CPU LIBLINEAR": run.cpu_seconds, "MB LIBLINEAR": run.peak_bytes / 1e6,
                }  # fmt: skip
            bench.add(**row)
    store = bench.store(bench.text("farm_ads"))
    for penalty in ("l1", "l2"):
        options = {"loss": "log_loss", "penalty": penalty, "C": "0.03,0.1,0.3,1,3,10", "folds": 3}
        found = bench.train(store, command="tune", **options).json()
        bench.report.tables.setdefault("tuned", []).extend(
            {"penalty": penalty, "C": one["C"], "accuracy": one["mean"],
             "weights": one.get("n_nonzero")}
            for one in found["settings"] if one["mean"] is not None
        )  # fmt: skip


def _sparse_value(text: Path, loss: str, C: float, model: Any) -> float:
    """Objective with |w|₁."""
    squares = 0.5 * float(np.vdot(model.W, model.W))
    return objective(text, loss, C, model) - squares + float(np.abs(model.W).sum())


# ------------------------------------------------------------------------------ tune and nightly


def tune(bench: Bench) -> None:
    """Cross-validation on one stream, beside the same models one by one.

    tune: sbm tune, the whole process, with the training of the best C. alone: each model of each
    fold that tune tried, by sbm train, processes one after the other; the splits do not count. A
    fold of alone is every fifth line, of tune a hash of the row.
    """
    from sbm.programs.tuning.grid import LOOSER

    text, folds = bench.text("text"), 2 if bench.quick else 5
    store, options = bench.store(text), {"tol": TOL, "max_passes": 50}
    values = "0.01,1" if bench.quick else "0.001:10000:x10"
    bench.train(store, command="tune", C="0.1", folds=2, max_passes=1)  # compiles
    one = bench.train(store, C=0.1, **options)
    done = bench.train(store, command="tune", C=values, folds=folds, **options)
    settings = done.json()["settings"]
    spent: dict[float, list[Finished]] = {}
    for fold in range(folds):
        part = bench.folder / "fold.svm"
        with text.open("rb") as lines, part.open("wb") as out:
            out.writelines(line for k, line in enumerate(lines) if k % folds != fold)
        source = bench.folder / "fold.sbm"
        split(part, source)
        for found in settings:
            if found["status"] != "not tried":
                some = options | {"tol": LOOSER * TOL}
                spent.setdefault(found["C"], []).append(bench.train(source, C=found["C"], **some))
    alone = [run for runs in spent.values() for run in runs]
    for what, runs in (("one training", [one]), ("tune", [done]), ("alone", alone)):
        bench.add(what=what, models=len(runs), seconds=sum(r.seconds for r in runs),
                  cpu_seconds=sum(r.cpu_seconds for r in runs))  # fmt: skip
    bench.report.tables["values"] = [
        {"C": found["C"], "status": found["status"], "mean": found["mean"],
         "alone": sum(run.seconds for run in spent.get(found["C"], []))}
        for found in settings
    ]  # fmt: skip
    bench.report.settings |= {"folds": folds, "values": len(settings)}


def nightly(bench: Bench) -> None:
    """Warm starts of which a tenth of the rows is new, beside trainings from scratch.

    Counts, not times: updates of alphas to the same certified gap of 1e-3. The store has the first
    nine tenths of the lines, is trained, and the last tenth is appended.
    """
    text = bench.text("text")
    old, new = hold_out(text, 0.1, bench.folder)
    scratch, count = bench.folder / "scratch.model", text.read_bytes().count(b"\n")
    for C, mem in bench.less(((0.1, "2GB"), (0.1, "150MB"), (0.01, "2GB"), (1.0, "2GB"))):
        store, options = (
            bench.folder / "night.sbm",
            {"C": C, "mem": mem, "tol": TOL, "solver": "dual"},
        )
        split(old, store, blocks=12)
        bench.train(store, **options)
        run_process(sbm_command("split", "--append", store, new))
        words: list[Any] = ["-o", bench.model, "--warm-start", *option_words(options), "--json"]
        warm = run_process(sbm_command("train", store, *words), codes=BUDGET).json()
        cold = bench.train(store, model=scratch, **options).json()
        bench.add(C=C, mem=mem, rows=count, updates=warm["updates"],
                  from_scratch=cold["updates"], ratio=warm["updates"] / cold["updates"],
                  passes=warm["passes"], passes_from_scratch=cold["passes"],
                  difference=abs(warm["primal"] / cold["primal"] - 1),
                  ok=abs(warm["primal"] / cold["primal"] - 1) <= 2 * TOL)  # fmt: skip


# --------------------------------------------------------------------------------------- scale


def scale(bench: Bench) -> None:
    """Predictions of rows that were held out, by --scale.

    --loss log_loss --intercept, to a certified gap of 1e-3, at most 20 seconds. A third of the rows
    is held out.
    """
    for name in ("clicks.csv", "numbers.csv"):
        text, test = hold_out(bench.text(name), 1 / 3, bench.folder)
        store = bench.store(text, label="label")
        for C, how in itertools.product(bench.less((1.0, 0.1, 0.01)), ("none", "maxabs", "std")):
            some = {"loss": "log_loss", "C": C, "scale": how, **TO_TOL}
            facts = bench.train(store, "--intercept", **some).json()
            words = ("predict", bench.model, test, "--probability", "--json")
            found = run_process(sbm_command(*words)).json()
            bench.add(data=name, scale=how, C=C, auc=found["auc"], log_loss=found["log_loss"],
                      passes=facts["passes"], gap=facts["relative_gap"])  # fmt: skip


# --------------------------------------------------------------------------------------- ranks


def ranks(bench: Bench) -> None:
    """Processes that train one model over MPI: passes, visits, time.

    sbm train --launch, one thread each, 16 blocks, from start to end of all processes, the median
    of three runs; two processes on the two cores of one machine. ok: the same certified optimum.
    """
    launcher = Path(sys.executable).with_name("mpiexec")
    if not launcher.exists() and shutil.which("mpiexec") is None:
        bench.skip("all", "mpiexec is not found; run: pip install mpi4py mpich")
        bench.add(problem="none", ok=True)
        return
    for name, loss, C, solver in bench.less((
        ("text", "hinge", 0.1, "dual"), ("text", "hinge", 1.0, "dual"),
        ("ten", "hinge", 0.1, "dual"), ("a9a", "hinge", 1.0, "dual"),
        ("columns", "squared_hinge", 1.0, "newton"),
    )):  # fmt: skip
        store = bench.store(bench.text(name), blocks=16)
        some = {
            "loss": loss,
            "C": C,
            "solver": solver,
            "threads": 1,
            "tol": TOL,
            "max_passes": 1000,
        }
        tasks = {n: partial(bench.train, store, launch=n, **some) for n in bench.less((1, 2, 4), 2)}
        runs = alternate({str(n): task for n, task in tasks.items()}, 1 if bench.quick else REPEATS)
        one = runs["1"][-1].json()
        for n, found in runs.items():
            mine = found[-1].json()
            bench.add(problem=f"{name}, {loss}, C {C:g}, {solver}", processes=int(n),
                      passes=mine["passes"], million_visits=mine["visits"] / 1e6,
                      seconds=statistics.median(run.seconds for run in found),
                      speed_up=ratio(runs["1"], found), gap=mine["relative_gap"],
                      ok=abs(mine["primal"] / one["primal"] - 1) <= 2 * TOL)  # fmt: skip


# -------------------------------------------------------------------------- pictures and the demo

CHARTS: dict[str, dict[str, Any]] = {
    "C0.01": {"C": 0.01}, "C0.1": {"C": 0.1}, "C1": {"C": 1},
    "no-cache": {"C": 0.1, "cache_frac": 0},
}  # fmt: skip


def report(bench: Bench) -> None:
    """Four trainings in one picture, as sbm report draws them.

    Coordinate descent, 12 blocks, at most 30 passes, three values of C, and one without a cache.
    """
    text, test = hold_out(bench.text("a9a"), 0.1, bench.folder)
    store, models = bench.store(text, blocks=12), []
    for name, options in CHARTS.items():
        models.append(bench.folder / f"{name}.model")
        some = {"solver": "dual", "parts": "blocks", "validate": test, "max_passes": 30, **options}
        facts = bench.train(store, model=models[-1], **some).json()
        bench.add(model=name, passes=facts["passes"], relative_gap=facts["relative_gap"],
                  accuracy=facts["validation"]["score"])  # fmt: skip
    page = bench.folder / "page.html"
    run_process(sbm_command("report", *models, "-o", page, "--png", bench.folder / "picture.png"))


def demo(bench: Bench) -> None:
    """What the commands of the README print, with data like that of scripts/demo.sh."""
    import scipy

    library = [Path(str(module.__file__)).parent for module in (np, scipy)]
    text, test = bench.folder / "prep.svm", bench.folder / "prep.t.svm"
    words = library[:1] if bench.quick else library
    run_process(tools.script_command("data.prep", *words, "-o", text, "--test-out", test))
    run_process(tools.script_command("data.people", bench.folder))
    table = bench.folder / "people.csv"
    commands: dict[str, tuple[str, ...]] = {
        "libsvm": ("train prep.svm -C 0.1 --mem 300MB",
                   "predict prep.model prep.t.svm -o labels.txt"),
        "table": ("train people.csv --label label --loss log_loss --scale std --intercept",
                  "predict people.model new.csv --probability -o scores.txt",
                  "inspect people.model --top 3"),
    }  # fmt: skip
    for name, lines in commands.items():
        shown = bench.report.tables.setdefault(name, [])
        if name == "table":
            head = table.read_text("utf-8").splitlines()[:3]
            shown += [{"line": f"$ head -3 {table.name}"}, *({"line": text} for text in head)]
        for line in lines:
            fresh = ["--fresh"] if line.startswith("train") else []
            done = run_process(sbm_command(*line.split(), *fresh), folder=bench.folder)
            said = [
                text for text in f"{done.stderr}\n{done.stdout}".splitlines()
                if text and not text.startswith("compiling")
            ]  # fmt: skip
            shown.append({"line": ""})
            shown += [{"line": f"$ sbm {line}"}, *({"line": text} for text in said)]
    bench.add(what="commands", ok=True)
