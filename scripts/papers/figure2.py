"""Figure 2 of the SBM paper (Chang & Roth 2011): a chosen cache, a random one, and none.

    python -m scripts.papers.figure2 -o results/paper-figure2
    python -m scripts.papers.figure2 --sets webspam --data webspam=data/public/webspam.svm

BMD has m blocks (12, prep 15); the others have smaller ones and a cache that together are as large
(`configs/paper_*.toml`), and all do ten rounds on each. After every pass: how far is the dual value
from the optimum (7), and the accuracy from the best that any method had (8)? Then SBM-1/2 and BMD
once more from a disk as slow as the paper's, where reading a pass took half as long as what SBM-1/2
did with it.
"""

import sys
from argparse import ArgumentParser, Namespace
from itertools import accumulate
from typing import Any

from scripts.bench.tools import Report, median
from scripts.bench.trajectory import METHODS, Method, Point
from scripts.papers.data import Problem, data_options, problems
from scripts.papers.tools import (
    ROUNDING,
    Axes,
    Claim,
    Curve,
    Experiment,
    first_at,
    judge,
    number,
    run,
    words,
)
from scripts.papers.training import Curves, Trainer, training_options

PAPER = "SBM 2011"
SLOW = ("SBM-1/2", "BMD")  # what is done on a slow disk, too
SLOW_SHARE = 0.5  # reading a pass of webspam took 90 s, learning of SBM-1/2 180 s (section 7.1)
IN_CACHE = 0.98  # share of the free support vectors of webspam in the cache after pass 2


class Trained:
    """All trainings on one data set."""

    def __init__(self, args: Namespace, problem: Problem) -> None:
        self.args, self.problem = args, problem
        self._blocks = {method.name: method.blocks(problem.blocks) for method in METHODS}
        trainer = Trainer(args, problem, self._blocks.values())
        before = {name: trainer.split_seconds[n] for name, n in self._blocks.items()}
        found = {method.name: self._train(trainer, method) for method in METHODS}
        slow = {}
        if not args.no_slow_disk:
            solving = median([point["solve"] for point in found["SBM-1/2"]])
            rate = trainer.bytes(self._blocks["SBM-1/2"]) / (SLOW_SHARE * solving)
            slow = {m.name: self._train(trainer, m, rate) for m in METHODS if m.name in SLOW}
        self.reference = trainer.refer(self._blocks["SBM-1/2"])
        self.curves = Curves(problem.title, found, before, self.reference)
        self.slow = self.curves.also(slow, before)
        for some in filter(None, (self.curves.by_name, self.slow)):
            add_cost(some)

    def _train(self, trainer: Trainer, method: Method, rate: float | None = None) -> list[Point]:
        options = {**method.options, "rounds": self.args.rounds}
        return trainer.train(method.name, self._blocks[method.name], rate=rate, **options)

    def rows(self) -> list[dict[str, Any]]:
        """A row a method."""
        return [
            {
                "data": self.problem.title, "method": name, "passes": len(curve),
                "difference": curve[-1]["difference"],
                "accuracy_after_1_pass": 100 * curve[0]["accuracy"],
                "accuracy": 100 * curve[-1]["accuracy"],
                "converged_accuracy": 100 * self.reference.accuracy,
                "seconds": curve[-1]["seconds"],
                "solve_seconds_a_pass": median([row["solve"] for row in curve]),
                "load_seconds_a_pass": median([row["load"] for row in curve]),
                "visits_a_pass": round(median([row["visits"] for row in curve])),
                "free_share": self.reference.free_share,
            }
            for name, curve in self.curves.by_name.items()
        ]  # fmt: skip


def add_cost(curves: dict[str, Curve]) -> None:
    """Add to each pass what all passes so far cost, in passes of SBM-1/2.

    Visits of rows are counted, and for reading a pass a share of those that SBM-1/2 makes in one:
    that is the paper's clock, without the noise of a machine.
    """
    unit = median([row["visits"] for row in curves["SBM-1/2"]])
    for curve in curves.values():
        costs = accumulate(row["visits"] / unit + SLOW_SHARE for row in curve)
        for row, cost in zip(curve, costs, strict=True):
            row["cost"] = cost / (1 + SLOW_SHARE)


# ------------------------------------------------------------------------------------------ claims

SBMS = ("SBM-1/2", "SBM-1/3", "SBM-1/2-rand")


def _claims_of(one: Trained) -> list[Claim]:
    """What the paper says of each data set."""
    curves, passes = one.curves, one.args.max_passes
    left = {name: curves.difference(name) for name in curves.by_name}
    chosen = {name: curves.ratio(name, "SBM-1/2-rand") for name in ("SBM-1/2", "SBM-1/3")}
    level = max(left["SBM-1/2"], left["SBM-1/3"])
    alike = {name: curves.passes_to(name, level) for name in chosen}

    def claim(says: str, expected: str, here: str, *held: bool) -> Claim:
        title = one.problem.title
        return Claim(PAPER, "7.1, figure 2", says, title, expected, here, judge(*held))

    claims = [
        claim(
            "SBM-1/2, -1/3 and -1/2-rand beat BMD by far, pass for pass",
            f"difference (7) after {passes} passes at most half of BMD's, each of the three",
            words(left.items()), *(left[name] <= left["BMD"] / 2 for name in SBMS),
        ),
        _faster(one, one.curves.by_name, SBMS, "seconds", "on this disk"),
        _faster(
            one, one.curves.by_name, SBMS, "cost",
            "counted: visits, and half of SBM-1/2's in a pass for reading it, as in the paper",
        ),
        claim(
            "a cache chosen by gradients is better than a random one",
            "difference of SBM-1/2 and SBM-1/3 over SBM-1/2-rand's below 1, mean over the passes",
            words(chosen.items()), *(value < 1 for value in chosen.values()),
        ),
        claim(
            "SBM-1/2 and SBM-1/3 are alike: the ratio of block and cache hardly matters",
            "the passes they need where the worse one ends differ by one at most",
            f"to a difference of {number(level)}: {words(alike.items())} passes",
            abs(alike["SBM-1/2"] - alike["SBM-1/3"]) <= 1,
        ),
        claim(
            "even a random cache is better than none",
            "difference of SBM-1/2-rand over BMD's below 1, mean over the passes",
            number(curves.ratio("SBM-1/2-rand", "BMD")), curves.ratio("SBM-1/2-rand", "BMD") < 1,
        ),
        _stability(one),
    ]  # fmt: skip
    if one.slow:
        disk = "from a disk as slow as the paper's"
        claims.append(_faster(one, one.slow, SLOW[:1], "seconds", disk))
    return claims


def _faster(
    one: Trained, curves: dict[str, Curve], names: tuple[str, ...], along: str, how: str
) -> Claim:
    """By the clock, or by what is counted for it."""
    last = curves["BMD"][-1]
    level = max(float(last["difference"]), one.curves.known)
    took = {name: first_at(curves[name], "difference", level, along) for name in names}
    return Claim(
        PAPER, "7.1, figure 2", f"they beat BMD by the clock ({how})", one.problem.title,
        f"each is sooner where BMD is after {len(curves['BMD'])} passes",
        f"{along}: {words([*took.items(), ('BMD', last[along])])}",
        judge(*(spent < last[along] for spent in took.values())),
    )  # fmt: skip


def _stability(one: Trained) -> Claim:
    """The test accuracy settles."""
    spread = {}
    for name in ("SBM-1/2", "BMD"):
        right = [row["accuracy"] for row in one.curves.by_name[name][1:]]
        spread[name] = 100 * (max(right) - min(right))
    return Claim(
        PAPER, "7.1, figure 2", "models of SBM are more stable in test", one.problem.title,
        "accuracy from pass 2 on varies less with SBM-1/2 than with BMD",
        f"points: {words(spread.items())}", judge(spread["SBM-1/2"] < spread["BMD"]),
    )  # fmt: skip


def _claims_of_webspam(one: Trained) -> list[Claim]:
    """What the paper says of webspam alone."""
    second = one.curves.by_name["SBM-1/2"][1]
    share = second["cached_free"] / max(second["free_rows"], 1)
    once = one.curves.by_name["SBM-1/2"][0]["accuracy"]
    needed = next(
        (row["pass"] for row in one.curves.by_name["BMD"] if row["accuracy"] >= once), None
    )
    passes = f"{needed}" if needed else f"more than {one.args.max_passes}"
    title, below = one.problem.title, 100 * (one.reference.accuracy - once)
    return [
        Claim(
            PAPER, "7.1, footnote 6", "where free support vectors fit, the cache has them", title,
            f"more than {IN_CACHE:.0%} in the cache of SBM-1/2 after 2 passes", f"{share:.1%}",
            judge(share > IN_CACHE),
        ),
        Claim(
            PAPER, "1, 7.2", "one pass of SBM predicts as the optimum; BMD needs ten", title,
            "accuracy after 1 pass at most 0.1 points below the converged model's (paper: 99.55 "
            "and 99.55 %); BMD needs 2 passes or more for as much",
            f"{number(below)} points below; BMD: {passes} passes",
            judge(below <= 0.1, needed != 1),
        ),
    ]  # fmt: skip


def _claims_across(ones: dict[str, Trained]) -> list[Claim]:
    """What the paper says of one data set beside another."""
    claims = []
    if {"webspam", "kddcup10"} <= set(ones):
        gain = {
            name: ones[name].curves.ratio("SBM-1/2-rand", "SBM-1/2")
            for name in ("webspam", "kddcup10")
        }
        claims.append(Claim(
            PAPER, "7.1, figure 2 (c)", "with many free support vectors the choice matters less",
            "kddcup10 beside webspam",
            "difference of SBM-1/2-rand over that of SBM-1/2 is smaller on kddcup10, mean over "
            "passes",
            words(gain.items()), judge(gain["kddcup10"] < gain["webspam"]),
        ))  # fmt: skip
    binary = [name for name in ones if name != "prep"]
    if binary and "prep" in ones:
        gain = {name: ones[name].curves.ratio("BMD", "SBM-1/2") for name in ones}
        claims.append(Claim(
            PAPER, "7.1", "SBM gains more on two classes than on several", "prep beside the others",
            "difference of BMD over that of SBM-1/2 is larger on sets of two classes, mean over "
            "passes",
            words(gain.items()), judge(*(gain[name] > gain["prep"] for name in binary)),
        ))  # fmt: skip
    return claims


# ----------------------------------------------------------------------------------------- command


def measure(args: Namespace, report: Report) -> list[Claim]:
    """Train everything on each data set."""
    claims: list[Claim] = []
    curves: Curve = []
    ones: dict[str, Trained] = {}
    for problem in problems(args, report):
        one = Trained(args, problem)
        ones[problem.name] = one
        report.rows += one.rows()
        curves += one.curves.rows()
        slow = [row for curve in one.slow.values() for row in curve]
        curves += [{**row, "data": f"{row['data']}, slow disk"} for row in slow]
        report.ratios |= {
            f"{problem.title}: difference_of_SBM-1/2_of_BMD": (
                one.curves.difference("SBM-1/2") / one.curves.difference("BMD")
            ),
            f"{problem.title}: optimum_known_within": one.curves.known,
        }
        claims += _claims_of(one)
        if problem.name == "webspam":
            claims += _claims_of_webspam(one)
    report.tables["curves"] = curves
    report.notes = [
        (
            "difference: equation (7), to the largest dual value of all trainings, one to a small "
            "gap among them; accuracy difference: equation (8), points"
        ),
        "seconds: split and passes, without certificates and looking; a block is read ahead",
        (
            "rows at rest are left out by all methods, BMD too; the paper's has the shrinking of "
            "LIBLINEAR inside a block"
        ),
        (
            f"slow disk: as many bytes a second as make reading a pass take {SLOW_SHARE:g} of the "
            "time that SBM-1/2 solves in a pass, as in the paper (90 and 180 s on webspam)"
        ),
    ]
    return claims + _claims_across(ones)


def _options(parser: ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=10, metavar="N", help="default: 10")
    parser.add_argument("--no-slow-disk", action="store_true")


FIGURE2 = Experiment(
    "paper-figure2",
    "chosen caches, a random one and none, in the same memory: figure 2 of the SBM paper",
    measure,
    (data_options("webspam", "kddcup10", "prep"), training_options, _options),
    (
        Axes(
            "seconds", "difference", "seconds from text; a marker a pass", "difference (7)",
            least=ROUNDING,
        ),
        Axes("pass", "difference", "passes", "difference (7)", least=ROUNDING),
        Axes(
            "seconds", "accuracy_difference", "seconds from text", "accuracy below the best (8)",
            least=0.01,
        ),
    ),
    {"rows": 600, "max_passes": 2, "tol": 1e-2, "mem": "1GB", "rounds": 2},
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(run(FIGURE2, __doc__ or ""))
