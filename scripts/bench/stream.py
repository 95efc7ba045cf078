"""Benchmarks of streams: the model of text that is read once, and what memory it takes."""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench.commands import (
    BUDGET,
    learn_command,
    log_of,
    metric_of,
    split,
    splitting_options,
    stream,
    train,
    training_options,
    warm_up,
)
from scripts.bench.data import labels_of, make_text
from scripts.bench.learners import BLOCKWISE, Learner, choose, title_of, warm_up_streams
from scripts.bench.peers import VW_NOTE, VowpalWabbit
from scripts.bench.plot import Axes
from scripts.bench.registry import QUICK, TRAINING, Registry, benchmark
from scripts.bench.tools import (
    BenchError,
    Finished,
    Report,
    Run,
    Running,
    alternate,
    costs,
    medians,
    ratio,
    shares,
    started_process,
    tell,
)

BENCHMARKS: Registry = {}

# ---------------------------------------------------------------------------------------- one pass


class Contest:
    """The contestants, each with a folder for its files, and what is computed of their models."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self.store, self.model = args.folder / "ours.sbm", args.folder / "ours.model"
        self.stream_model = args.folder / "stream.model"
        tell("converting text for Vowpal Wabbit")
        self.vw = VowpalWabbit(args.data, args.test, args.folder)
        warm_up(args)

    def run_ours(self, **changes: Any) -> Run:
        """Split and train."""
        args = self._args
        first = split(args.data, self.store, **splitting_options(args))
        then = self.train(**changes)
        facts = then.json()
        inside = {k: facts["seconds"][k] for k in ("solve", "wait", "certify")}
        return Run([first, then], {"split": first.seconds, "train": then.seconds} | inside, facts)

    def train(self, **changes: Any) -> Finished:
        """Train on the store that is there; it may only use up its passes if they are given."""
        codes = BUDGET if "max_passes" in changes else (0,)
        options = training_options(self._args, **changes)
        return train(self.store, self.model, codes=codes, **options)

    def run_stream(self, **options: Any) -> Run:
        """One stream over the text, from text to a model."""
        done = stream(self._args.data, self.stream_model, **options)
        facts = done.json()
        names = ("load", "wait", "predict", "learn", "write")
        return Run([done], {name: facts["seconds"][name] for name in names}, facts)

    def run_vw(self) -> Run:
        """Vowpal Wabbit's single pass."""
        start = self.vw.start()
        return Run([self.vw.run()], {"start of the program": start.seconds})


def describe(name: str, runs: list[Run], **more: Any) -> dict[str, Any]:
    """Cells of the row of a contestant: medians of its runs."""
    parts = shares(medians([run.parts for run in runs]))
    return {"what": name, **costs(runs), "of_these": parts, **more}


@benchmark(
    BENCHMARKS, rows=2_500_000, needs_test=True,
    options={**TRAINING, "tol": 1e-4, "mem": "200MB", "rounds": 2, "stream_mem": None,
             "stream_rounds": "auto", "learner_C": [0.01, 0.1, 1.0]},
    quick={**QUICK, "learner_C": [0.1], "mem": "400MB"},
)  # fmt: skip
def one_pass(args: argparse.Namespace, report: Report) -> None:
    """The model of text that is read once.

    Whole processes from text to a model, taking turns. sbm stream: one process, the progressive
    validation included; split and train: two, a single pass and the certificate at its end;
    converged: a training to --tol, measured once. Compiling, choosing C of the online learners,
    predicting and converting text are left out.

    of these: as each command reports them; of a stream, load is behind learning. C of
    passive_aggressive and arow: that of --learner-C with the best progressive accuracy, which is of
    the training text; lambda of pegasos: 1/(C n).
    """
    contest = Contest(args)
    data, folder = args.data, args.folder
    mem = args.stream_mem or args.mem
    ours = {"mem": mem, "C": args.C, "rounds": args.stream_rounds, "cache_frac": args.cache_frac}
    bmd = {"mem": mem, "C": args.C, **BLOCKWISE["bmd"]}
    if not args.quick:
        warm_up_streams(data, folder, [ours, bmd])
    tell("training to convergence")
    converged = contest.run_ours(rounds="auto")
    best = metric_of(contest.model, args.test)
    labels = sorted(set(labels_of(data).tolist()))
    rows = converged.processes[0].json()["rows"]
    learners = choose(data, contest.stream_model, args.learner_C, args.C, labels, rows)

    def run_online(learner: Learner) -> Run:
        done = learner.run(data, contest.stream_model, labels)
        facts = done.json()
        return Run([done], {name: facts["seconds"][name] for name in ("load", "learn")}, facts)

    tasks: dict[str, Callable[[], Run]] = {
        "sbm stream": partial(contest.run_stream, **ours),
        "VW, one pass": contest.run_vw,
        "sbm, split and train, one pass": partial(contest.run_ours, max_passes=1),
        **{f"online, {title_of(one)}": partial(run_online, one) for one in learners},
        "stream, bmd": partial(contest.run_stream, **bmd),
    }
    right: dict[str, float] = {}

    def run(name: str) -> Run:
        done = tasks[name]()
        if name not in right:  # its model is there now
            right[name] = _accuracy(contest, args, name)
        return done

    runs = alternate({name: partial(run, name) for name in tasks}, args.runs)
    for name, found in {f"sbm, to {args.tol:g}": [converged], **runs}.items():
        facts, share = found[-1].facts, right.get(name, best)
        report.rows.append(describe(
            name, found, passes=facts.get("passes", 1),
            certified_relative_gap=facts.get("relative_gap"),
            progressive_accuracy=facts.get("accuracy"), test_accuracy=share,
            of_converged_accuracy=share / best,
        ))  # fmt: skip
    online = {name: share for name, share in right.items() if name.startswith("online, ")}
    first = max(online, key=lambda name: online[name])
    stream, vw, split = (runs[name] for name in list(tasks)[:3])
    mine, of_vw, of_split = (right[name] for name in list(tasks)[:3])
    report.ratios = {
        "stream_of_vw_single_pass_time": ratio(stream, vw),
        "stream_of_vw_single_pass_cpu_time": ratio(stream, vw, "cpu_seconds"),
        "stream_of_split_and_train_time": ratio(stream, split),
        "sbm_of_vw_single_pass_time": ratio(split, vw),
        "sbm_of_vw_single_pass_cpu_time": ratio(split, vw, "cpu_seconds"),
        "accuracy_of_one_pass_of_converged": of_split / best,
        "accuracy_of_vw_of_converged": of_vw / best,
        "accuracy_of_stream_of_converged": mine / best,
        "points: stream_below_converged": 100 * (best - mine),
        "points: stream_above_vw": 100 * (mine - of_vw),
        "points: stream_above_best_online_learner": 100 * (mine - online[first]),
        "points: stream_above_bmd": 100 * (mine - right["stream, bmd"]),
    }
    report.notes += [f"online learners: {first} is the best one on the test text", VW_NOTE]


def _accuracy(contest: Contest, args: argparse.Namespace, name: str) -> float:
    """Share of right labels of the last model of a contestant."""
    if name.startswith("VW"):
        return contest.vw.accuracy()
    return metric_of(contest.model if "train" in name else contest.stream_model, args.test)


# ------------------------------------------------------------------------------------------ memory

MOST_SHOWN = 100  # samples in the report

# Arguments: text, bytes to write. Writes the text again and again, each time from another row on.
FEEDER = """\
import os, random, sys
import numpy as np
text, left = np.fromfile(sys.argv[1], np.uint8), int(sys.argv[2])
ends, order = np.flatnonzero(text == 10), random.Random(0)
while left > 0:
    begin = int(ends[order.randrange(len(ends))]) + 1
    for part in (memoryview(text)[begin:], memoryview(text)[:begin]):
        part = part[:left]
        if 0 < left == len(part) and part[-1] != 10:
            part = part[:bytes(part).rfind(b"\\n") + 1]
            left = len(part)
        left -= len(part)
        while part:
            part = part[os.write(1, part[: 1 << 20]):]
"""


@benchmark(
    BENCHMARKS, runs=0,
    options={"C": 0.1, "mem": "256MB", "rounds": TRAINING["rounds"],
             "cache_frac": TRAINING["cache_frac"], "size": "10GB", "base": "64MB",
             "features": 700_000, "sample_seconds": 0.5},
    quick={"size": "40MB", "base": "4MB", "features": 5000, "sample_seconds": 0.02},
    axes=(
        Axes("GB_read", "resident_MB", "GB of text read", "resident MB", y_log=False,
             table="samples"),
        Axes("GB_read", "seconds", "GB of text read", "seconds", y_log=False, table="samples"),
    ),
)  # fmt: skip
def stream_memory(args: argparse.Namespace, report: Report) -> None:
    """Memory of a stream through a pipe.

    A process writes the same synthetic rows again and again, each time from another row on, as fast
    as they are read. What was read is what that process wrote, 1 MB in the pipe aside.

    resident: VmRSS of the process, looked at from outside every --sample-seconds; peak: as the
    system counts it; resident of the log: as the run says it itself. MB per second: text over the
    seconds of the run, beside the process that writes it.

    slope: of a line through the samples of the last half, by least squares; without those behind
    the last byte, when the buffers of the text are gone.
    """
    from sbm.units import parse_size

    if not Path("/proc/self/io").exists():
        raise BenchError("this system does not have /proc/PID/status and io")
    total, bound = parse_size(args.size), parse_size(args.mem)
    tell("making data")
    text = args.folder / "base.svm"
    shape = ("--bytes", args.base, "--features", args.features, "--nnz", 10, "--power", 0.8)
    report.data["name"] = make_text(text, *shape)
    model = args.folder / "stream.model"
    options = {"mem": args.mem, "C": args.C, "rounds": args.rounds, "cache_frac": args.cache_frac}
    warm_up_streams(text, args.folder, [options], online=False)
    command = learn_command("stream", "-", model, **options)
    tell(f"streaming {total / 1e9:.3g} GB")
    with _fed([text, total]) as feeder, started_process(command, stdin=feeder.stdout) as running:
        assert feeder.stdout is not None
        feeder.stdout.close()
        samples = list(_samples(running, feeder.pid, args.sample_seconds))
        done = running.wait()
    facts = done.json()
    read, seconds = facts["text_bytes"], facts["seconds"]["total"]
    if not 0.9 * total < read <= total + text.stat().st_size:
        raise BenchError(f"{read} bytes were read, expected {total}")
    if len(samples) < 4:
        raise BenchError("the stream ended before its memory was sampled; give a larger --size")
    for share in (0.1, 0.25, 0.5, 0.75, 1.0):
        near = min(samples, key=lambda row: abs(row["GB_read"] - share * read / 1e9))
        report.rows.append({"read": f"{share:.0%}", **near})
    report.tables["log of the run"] = _log(model)
    report.tables["samples"] = samples[:: -(-len(samples) // MOST_SHOWN)]
    peak = max([done.peak_bytes, *(int(1e6 * row["peak_MB"]) for row in samples)])
    slope = _slope(samples)
    report.ratios = {
        "MB_of_text_per_second": read / seconds / 1e6,
        "rows_per_second": facts["rows"] / seconds,
        "peak_MB": peak / 1e6,
        "peak_of_mem": peak / bound,
        "slope_of_the_last_half_bytes_a_GB": slope,
        "slope: growth_of_the_last_half_of_peak": slope * read / 2e9 / peak,
    }
    report.settings["bound_MB"] = bound / 1e6
    report.data |= {
        "text": f"{read / 1e9:.4g} GB", "rows": facts["rows"], "features": facts["features"],
    }  # fmt: skip


@contextmanager
def _fed(arguments: list[Any]) -> Iterator["subprocess.Popen[bytes]"]:
    """Start the process that writes."""
    command = [sys.executable, "-c", FEEDER, *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
    ) as feeder:
        try:
            yield feeder
        finally:
            feeder.kill()


def _samples(running: Running, feeder: int, every: float) -> Iterator[dict[str, float]]:
    """Yield what is seen of a process until it ends."""
    begin, written = time.perf_counter(), 0.0
    while not running.has_ended:
        status = _facts_of(running.program, "status")
        written = max(written, _facts_of(feeder, "io").get("wchar", 0.0))
        if status.get("VmRSS") and written:
            yield {
                "GB_read": written / 1e9, "seconds": time.perf_counter() - begin,
                "resident_MB": status["VmRSS"] * 1024 / 1e6,
                "peak_MB": status["VmHWM"] * 1024 / 1e6,
            }  # fmt: skip
        time.sleep(every)


def _facts_of(pid: int | None, name: str) -> dict[str, float]:
    """Numbers of a file of /proc; none where the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/{name}").read_text("utf-8").splitlines()
    except OSError:
        return {}
    words = [line.replace(":", " ").split() for line in lines]
    return {some[0]: float(some[1]) for some in words if len(some) > 1 and some[1].isdigit()}


def _slope(samples: list[dict[str, float]]) -> float:
    """Bytes a GB by which the process grew in the last half, while there was text to come."""
    whole = samples[-1]["GB_read"]
    last = [row for row in samples if whole / 2 <= row["GB_read"] < whole]
    read = np.array([row["GB_read"] for row in last])
    resident = np.array([row["resident_MB"] for row in last]) * 1e6
    if len(np.unique(read)) < 2:
        return 0.0
    return float(np.polyfit(read, resident, 1)[0])


def _log(model: Path) -> list[dict[str, Any]]:
    """The log of the run, whenever its rows had doubled, and at its end."""
    blocks = [event for event in log_of(model) if event["event"] == "block"]
    shown, mark = [], 1
    for event in blocks:
        if event["rows"] >= mark or event is blocks[-1]:
            mark = 2 * event["rows"]
            shown.append(event)
    return [
        {
            "rows": event["rows"], "elapsed": event["elapsed"], "features": event["features"],
            "cached_rows": event["cached_rows"], "resident_MB": event["resident_bytes"] / 1e6,
            "rows_per_second": event["rows"] / event["elapsed"],
        }
        for event in shown
    ]  # fmt: skip
