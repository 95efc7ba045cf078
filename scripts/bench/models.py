"""Benchmarks from text to a model: time, memory, objective and accuracy, beside the peers."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from scripts.bench.ours import (
    BUDGET,
    accuracy_of,
    split,
    splitting_options,
    stream,
    train,
    training_options,
    warm_up,
)
from scripts.bench.peers import (
    Liblinear,
    VowpalWabbit,
    accuracy,
    objective,
    read_liblinear_model,
    read_our_model,
)
from scripts.bench.tools import Finished, Report, alternate, median, median_ratio, tell

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
    shares : dict of str to float
        Of its seconds, as far as they are known.
    facts : dict
        What it said.
    """

    processes: list[Finished]
    shares: dict[str, float] = field(default_factory=dict)
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
        tell("converting text for Vowpal Wabbit")
        self.vw = VowpalWabbit(args.data, args.test, args.folder)
        warm_up(args)

    @cached_property
    def liblinear(self) -> Liblinear:
        """LIBLINEAR, where it takes part."""
        return Liblinear(self._args)

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

    def run_liblinear(self, e: float) -> Run:
        """LIBLINEAR."""
        done = self.liblinear.run(self._args.data, self.peer_model, e)
        return Run([done], self.liblinear.shares(done))

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

    def curves(self, bound: float, split_seconds: float) -> Iterator[dict[str, Any]]:
        """Yield the points of the picture, each measured once."""
        args, C = self._args, self._args.C

        def point(method: str, at: str, seconds: float, value: float | None, right: float) -> Any:
            above = None if value is None else value / bound - 1
            return {
                "method": method, "point": at, "seconds": seconds, "above_bound": above,
                "test_accuracy": right,
            }  # fmt: skip

        for passes in range(1, args.curve_passes + 1):
            tell(f"curve: sbm, {passes} passes")
            done = self.train(max_passes=passes)
            seconds = split_seconds + done.seconds
            report, right = done.json(), accuracy_of(self.model, args.test)
            yield point("sbm", f"--max-passes {passes}", seconds, report["primal"], right)
            if report["converged"]:
                break
        for e in LIBLINEAR_CURVE:
            tell(f"curve: LIBLINEAR, -e {e:g}")
            seconds = self.run_liblinear(e).seconds
            model = read_liblinear_model(self.peer_model)
            value, right = objective(args.data, C, model), accuracy(args.test, model)
            yield point("LIBLINEAR", f"-e {e:g}", seconds, value, right)
        for passes in VW_CURVE:
            tell(f"curve: VW, {passes} passes")
            seconds = self.vw.run(passes).seconds
            yield point("VW", f"--passes {passes}", seconds, None, self.vw.accuracy())


def describe(name: str, runs: list[Run], **more: Any) -> dict[str, Any]:
    """Cells of the row of a contestant: medians of its runs."""
    shares = {k: median([r.shares[k] for r in runs]) for k in runs[0].shares}
    return {
        "what": name,
        "seconds": median([r.seconds for r in runs]),
        "cpu_seconds": median([r.cpu_seconds for r in runs]),
        "of_these": ", ".join(f"{k} {v:.2f}" for k, v in shares.items()),
        "peak_MB": median([r.peak_bytes for r in runs]) / 1e6,
        **more,
    }


def ratio(above: list[Run], below: list[Run], name: str) -> float:
    """Median ratio of a quantity of neighbouring runs."""
    return median_ratio([getattr(r, name) for r in above], [getattr(r, name) for r in below])


def bench_text_to_gap(args: argparse.Namespace, report: Report) -> None:
    """Time whole processes from text to a model on disk, ours and the peers', taking turns.

    Ours are two processes, ``sbm split`` and ``sbm train``; the peers' is one, see `Liblinear` and
    `VowpalWabbit`. Vowpal Wabbit does a single pass over text in its own format. Compiling,
    predicting and converting text are left out.

    Peak memory is measured from outside. The objectives are computed here by one function from the
    text and the weights in the model files, and compared with the largest dual value that ours
    certified, a lower bound of the optimum: that of a further training to ``--bound-tol``.

    The picture: curves over the wall time from text, of trainings from scratch with ever more
    passes (sbm), ever smaller ``-e`` (LIBLINEAR), more passes (Vowpal Wabbit).
    """
    contest = Contest(args)
    names = ("sbm", "LIBLINEAR", "VW, one pass")
    tasks = {
        "sbm": contest.run_ours,
        "LIBLINEAR": lambda: contest.run_liblinear(args.liblinear_e),
        "VW, one pass": contest.run_vw,
    }
    runs = alternate(tasks, args.runs)
    ours, theirs, vw = (runs[name] for name in names)
    models = {"sbm": read_our_model(contest.model)}
    models["LIBLINEAR"] = read_liblinear_model(contest.peer_model)
    right = {name: accuracy(args.test, model) for name, model in models.items()}
    right |= {"sbm": accuracy_of(contest.model, args.test), "VW, one pass": contest.vw.accuracy()}
    bound = _best_bound(contest, args, ours)
    for name in names:
        tell(f"objective of {name}")
        value = objective(args.data, args.C, models[name]) if name in models else None
        report.rows.append(
            describe(
                name,
                runs[name],
                objective=None if value is None else f"{value:.10g}",
                above_bound=None if value is None else value / bound - 1,
                test_accuracy=right[name],
            )
        )
    split_seconds = median([r.shares["split"] for r in ours])
    report.tables["curves"] = list(contest.curves(bound, split_seconds))
    report.ratios = {
        "sbm_of_liblinear_time": ratio(ours, theirs, "seconds"),
        "sbm_of_liblinear_peak_memory": ratio(ours, theirs, "peak_bytes"),
        "sbm_of_vw_single_pass_time": ratio(ours, vw, "seconds"),
        "sbm_certified_relative_gap": median([r.facts["relative_gap"] for r in ours]),
        "sbm_passes": median([r.facts["passes"] for r in ours]),
    }
    report.settings["policy"] = "gradient"
    report.notes = [
        f"LIBLINEAR: {contest.liblinear.what} -e {args.liblinear_e}",
        VW_NOTE,
        "peak memory from outside, of ours the larger one of split and train",
        (
            "objective computed from text and model file by one function; above the optimum by at "
            f"most the column above bound (against the largest certified dual value, {bound:.10g})"
        ),
        (
            "curves: each point a training from scratch, measured once; sbm's time includes the "
            "split; VW's passes use its own cache, without its hold-out"
        ),
    ]


def _best_bound(contest: Contest, args: argparse.Namespace, ours: list[Run]) -> float:
    """The largest dual value that is certified, by a longer training too; not timed."""
    tell(f"training to {args.bound_tol:g} for a bound of the optimum")
    longer = contest.train(tol=args.bound_tol, max_passes=BOUND_PASSES).json()
    return float(max(longer["dual"], *(r.facts["dual"] for r in ours)))
