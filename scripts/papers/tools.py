"""Shared tools of the paper experiments: claims and curves.

Each experiment checks every claim of the paper by a rule: the claim holds (yes), does not hold
(no), or holds in part (partly). No verdict is written by hand.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from scripts.bench.plot import Axes
from scripts.bench.tools import Report

Curve = list[dict[str, Any]]  # a row a pass

ROUNDING = 1e-10  # differences to an optimum are not drawn below it
BELOW = "dual below the optimum, relative"
DIFFERENCE = Axes("pass", "difference", "passes", BELOW, least=ROUNDING)
DIFFERENCE_IN_TIME = Axes(
    "seconds", "difference", "seconds from text; one marker per pass", BELOW, least=ROUNDING
)


class Claims:
    """The claims of a paper, as a table of a report; a claim may say itself where it is."""

    def __init__(self, report: Report, paper: str, where: str = "") -> None:
        self._rows = report.tables.setdefault("claims", [])
        self._paper, self._where = paper, where

    def add(
        self, claim: str, data: str, expected: str, here: str, *held: bool, where: str = "",
        why: str = "",
    ) -> None:  # fmt: skip
        """Judge a claim on some data; ``held`` is what of it is so.

        ``expected`` says what the rule asks for, with the paper's own figures if it has some,
        ``here`` has the figures that came, and ``why`` the reason, with the measurement that shows
        it, if the claim does not hold.
        """
        holds = "yes" if all(held) else "partly" if any(held) else "no"
        self._rows.append({
            "paper": self._paper, "where": where or self._where, "claim": claim, "data": data,
            "expected": expected, "here": here, "holds": holds,
            "why": "" if holds == "yes" else why,
        })  # fmt: skip


def first_at(curve: Curve, quantity: str, level: float, along: str) -> float:
    """Where a curve first is at `level` or below, in units of `along`; infinite if it never is."""
    return next((float(row[along]) for row in curve if row[quantity] <= level), math.inf)


def told(curves: Mapping[str, Curve], quantity: str, level: float, along: str) -> str:
    """Figures of `first_at` with their names; of a curve that ends before, its length."""
    shown = []
    for name, curve in curves.items():
        value = first_at(curve, quantity, level, along)
        more = "" if math.isfinite(value) else "more than "
        shown.append(f"{name} {more}{number(value if not more else float(curve[-1][along]))}")
    return ", ".join(shown)


def words(values: Iterable[tuple[Any, float]]) -> str:
    """``SBM-1/2 0.0012, BMD 0.034``: figures with their names."""
    return ", ".join(f"{name} {number(value)}" for name, value in values)


def number(value: float) -> str:
    """Write a figure for a table of claims."""
    if math.isinf(value):
        return "not reached"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) >= 10 else f"{value:.3g}"
