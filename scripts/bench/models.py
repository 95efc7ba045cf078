"""Benchmarks from text to a model: time, memory, objective and accuracy, beside the peers."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from scripts.bench import commands, tools
from scripts.bench.peers import Liblinear, VowpalWabbit
from scripts.bench.plot import Axes
from scripts.bench.registry import QUICK, TRAINING, Registry, benchmark
from scripts.bench.weights import LinearModel, accuracy, objective, read_liblinear, read_ours

BENCHMARKS: Registry = {}
LIBLINEAR_CURVE = (1e9, 1, 0.3, 0.1)
VW_CURVE = (1, 2, 5)
BOUND_PASSES = 100
VW_NOTE = (
    "VW: python -m vowpalwabbit --loss_function hinge -b 22, from text in its own format, "
    "converted before, Python's start included; no regularisation, so no objective to compare"
)


@dataclass(frozen=True)
class Run:
    """One way from text to a model.

    Attributes
    ----------
    processes : list of Finished
    parts : dict of str to float
        Of its seconds, as far as they are known.
    facts : dict
        What it said.
    """

    processes: list[tools.Finished]
    parts: dict[str, float] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Wall time of all its processes."""
        return sum(done.seconds for done in self.processes)

    @property
    def cpu_seconds(self) -> float:
        """User and system time of all its processes."""
        return sum(done.cpu_seconds for done in self.processes)

    @property
    def peak_bytes(self) -> int:
        """Of the largest process."""
        return max(done.peak_bytes for done in self.processes)


class Contest:
    """The contestants, each with a folder for its files, and what is computed of their models."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self.store, self.model = args.folder / "ours.sbm", args.folder / "ours.model"
        self.stream_model = args.folder / "stream.model"
        self.peer_model = args.folder / "liblinear.model"
        tools.tell("converting text for Vowpal Wabbit")
        self.vw = VowpalWabbit(args.data, args.test, args.folder)
        commands.warm_up(args)

    @cached_property
    def liblinear(self) -> Liblinear:
        """LIBLINEAR, where it takes part."""
        return Liblinear(self._args)

    def run_ours(self, **changes: Any) -> Run:
        """Split and train."""
        args = self._args
        first = commands.split(args.data, self.store, **commands.splitting_options(args))
        then = self.train(**changes)
        facts = then.json()
        inside = {k: facts["seconds"][k] for k in ("solve", "wait", "certify")}
        return Run([first, then], {"split": first.seconds, "train": then.seconds} | inside, facts)

    def train(self, **changes: Any) -> tools.Finished:
        """Train on the store that is there; it may only use up its passes if they are given."""
        codes = commands.BUDGET if "max_passes" in changes else (0,)
        options = commands.training_options(self._args, **changes)
        return commands.train(self.store, self.model, codes=codes, **options)

    def run_liblinear(self, e: float) -> Run:
        """LIBLINEAR."""
        done = self.liblinear.run(self._args.data, self.peer_model, e)
        return Run([done], self.liblinear.shares(done))

    def run_stream(self, **options: Any) -> Run:
        """One stream over the text, from text to a model."""
        done = commands.stream(self._args.data, self.stream_model, **options)
        facts = done.json()
        names = ("load", "wait", "predict", "learn", "polish", "write")
        return Run([done], {name: facts["seconds"][name] for name in names}, facts)

    def run_vw(self) -> Run:
        """Vowpal Wabbit's single pass."""
        start = self.vw.start()
        return Run([self.vw.run()], {"start of the program": start.seconds})

    def curves(self, bound: float, split_seconds: float) -> Iterator[dict[str, Any]]:
        """Yield the points of the picture, each measured once."""
        args = self._args

        def point(
            method: str, at: str, seconds: float, model: LinearModel | None, right: float = 0.0
        ) -> dict[str, Any]:
            above = None
            if model is not None:
                above = objective(args.data, "hinge", args.C, model) / bound - 1
                right = accuracy(args.test, model)
            return {
                "method": method, "point": at, "seconds": seconds, "above_bound": above,
                "test_accuracy": right,
            }  # fmt: skip

        for passes in range(1, args.curve_passes + 1):
            tools.tell(f"curve: sbm, {passes} passes")
            done = self.train(max_passes=passes)
            seconds = split_seconds + done.seconds
            yield point("sbm", f"--max-passes {passes}", seconds, read_ours(self.model))
            if done.json()["converged"]:
                break
        for e in LIBLINEAR_CURVE:
            tools.tell(f"curve: LIBLINEAR, -e {e:g}")
            seconds = self.run_liblinear(e).seconds
            yield point("LIBLINEAR", f"-e {e:g}", seconds, read_liblinear(self.peer_model))
        for passes in VW_CURVE:
            tools.tell(f"curve: VW, {passes} passes")
            seconds = self.vw.run(passes).seconds
            yield point("VW", f"--passes {passes}", seconds, None, self.vw.accuracy())


def describe(name: str, runs: list[Run], **more: Any) -> dict[str, Any]:
    """Cells of the row of a contestant: medians of its runs."""
    parts = tools.shares(tools.medians([run.parts for run in runs]))
    return {"what": name, **tools.costs(runs), "of_these": parts, **more}


@benchmark(
    BENCHMARKS, rows=2_500_000, needs_test=True,
    options={**TRAINING, "mem": "160MB", "liblinear_train": None, "liblinear_e": 0.1,
             "bound_tol": 1e-5, "curve_passes": 30},
    quick={**QUICK, "bound_tol": 1e-3, "curve_passes": 2, "mem": "400MB"},
    axes=(
        Axes("seconds", "above_bound", "seconds from text",
             "relative objective above the best certified dual"),
        Axes("seconds", "test_accuracy", "seconds from text", "test accuracy", y_log=False),
    ),
)  # fmt: skip
def text_to_gap(args: argparse.Namespace, report: tools.Report) -> None:
    """Text to a model of given accuracy.

    Whole processes from text to a model on disk, taking turns: ours are two, sbm split and sbm
    train; the peers' is one. Compiling, predicting and converting text are left out. Peak memory
    from outside, of ours the larger one of split and train.

    objective: computed from text and model file by one function; above the optimum by at most the
    column above bound (against the largest dual value that ours certified, by a further training to
    --bound-tol too).

    curves: over the wall time from text, each point a training from scratch with more passes (sbm,
    VW) or a smaller -e (LIBLINEAR), measured once; sbm's time includes the split; VW's passes use
    its own cache, without its hold-out.
    """
    contest = Contest(args)
    tasks = {
        "sbm": contest.run_ours,
        "LIBLINEAR": lambda: contest.run_liblinear(args.liblinear_e),
        "VW, one pass": contest.run_vw,
    }
    runs = tools.alternate(tasks, args.runs)
    ours, theirs, vw = runs.values()
    models = {"sbm": read_ours(contest.model), "LIBLINEAR": read_liblinear(contest.peer_model)}
    right = {
        "VW, one pass": contest.vw.accuracy(),
        "sbm": commands.metric_of(contest.model, args.test),
    }
    tools.tell(f"training to {args.bound_tol:g} for a bound of the optimum")
    longer = contest.train(tol=args.bound_tol, max_passes=BOUND_PASSES).json()
    bound = float(max(longer["dual"], *(r.facts["dual"] for r in ours)))
    for name, found in runs.items():
        tools.tell(f"objective of {name}")
        model = models.get(name)
        value = None if model is None else objective(args.data, "hinge", args.C, model)
        report.rows.append(describe(
            name, found, objective=None if value is None else f"{value:.10g}",
            above_bound=None if value is None else value / bound - 1,
            test_accuracy=right[name] if name in right else accuracy(args.test, models[name]),
        ))  # fmt: skip
    split_seconds = tools.median([run.parts["split"] for run in ours])
    report.tables["curves"] = list(contest.curves(bound, split_seconds))
    report.ratios = {
        "sbm_of_liblinear_time": tools.ratio(ours, theirs),
        "sbm_of_liblinear_peak_memory": tools.ratio(ours, theirs, "peak_bytes"),
        "sbm_of_vw_single_pass_time": tools.ratio(ours, vw),
        "sbm_certified_relative_gap": tools.median([run.facts["relative_gap"] for run in ours]),
        "sbm_passes": tools.median([run.facts["passes"] for run in ours]),
    }
    report.notes += [f"LIBLINEAR: {contest.liblinear.what} -e {args.liblinear_e}", VW_NOTE]
