"""The options of LIBLINEAR's ``train``, translated to settings.

The table `OPTIONS` defines both the translation and its help.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sbm.errors import SettingsError
from sbm.losses import LOSSES
from sbm.settings import Settings, option_name


@dataclass(frozen=True)
class Option:
    """One option of LIBLINEAR."""

    # flag, metavar, type: as typed
    flag: str
    metavar: str
    type: type
    meaning: str  # help text
    # turns the value and the number after ``-s`` into settings
    settings: Callable[[Any, int | None], dict[str, Any]]


# The loss of each number after -s, and LIBLINEAR's default tolerance.
SOLVERS = {s: loss.name for loss in LOSSES.values() for s in loss.liblinear}
_SPARSE = {5: "squared_hinge", 6: "log_loss"}  # with --penalty l1
_TOLERANCES = {0: 0.01, 2: 0.01, 5: 0.01, 6: 0.01, 11: 0.0001, 21: 0.01}
_TOLERANCE = 0.1  # of the others
DEFAULT_SOLVER = 1


def _loss(number: int, _: int | None) -> dict[str, Any]:
    if number in _SPARSE:
        return {"loss": _SPARSE[number], "penalty": "l1"}
    if number not in SOLVERS:
        known = ", ".join(map(str, sorted({*SOLVERS, *_SPARSE})))
        raise SettingsError(f"-s {number} is unknown; use one of {known}")
    return {"loss": SOLVERS[number]}


def _tol(tolerance: float, solver: int | None) -> dict[str, Any]:
    usual = _TOLERANCES.get(DEFAULT_SOLVER if solver is None else solver, _TOLERANCE)
    return {"tol": Settings.tol * tolerance / usual}


OPTIONS = (
    Option("-s", "N", int, "loss: " + ", ".join(f"{s} {SOLVERS[s]}" for s in sorted(SOLVERS))
           + "; with --penalty l1: " + ", ".join(f"{s} {_SPARSE[s]}" for s in _SPARSE)
           + "; default 1 if another option of this table is given", _loss),
    Option("-c", "COST", float, "-C", lambda value, _: {"C": value}),
    Option("-e", "EPS", float,
           "--tol, scaled: LIBLINEAR's default for the solver (0.1; 0.01 for -s 0, 2, 5, 6 and 21; "
           "0.0001 for 11) is our 1e-3", _tol),
    Option("-B", "BIAS", float, "--bias, none if negative",
           lambda value, _: {"bias": 0.0 if value < 0 else value}),
    Option("-p", "EPSILON", float, "--epsilon", lambda value, _: {"epsilon": value}),
    Option("-n", "NU", float, "--nu", lambda value, _: {"nu": value}),
    Option("-W", "FILE", str, "--weights", lambda value, _: {"weights": value}),
)  # fmt: skip


def read_options(given: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Turn LIBLINEAR's options into settings.

    Parameters
    ----------
    given : mapping of str to value
        Values of the options that were given, by flag; a list of ``label=weight`` for ``-w``.
    ours : mapping
        Settings that were given by the options of sbm.

    Raises
    ------
    SettingsError
        The same setting is given twice, or the solver is not supported.
    """
    settings: dict[str, Any] = {}
    if given.get("-w"):
        if "class_weight" in ours:
            raise SettingsError("-w and --class-weight are the same; give only one")
        settings["class_weight"] = _multiply(given["-w"])
    for option in OPTIONS:
        value = given.get(option.flag)
        if value is None:
            continue
        for name, setting in option.settings(value, given.get("-s")).items():
            if name in ours:
                raise SettingsError(
                    f"{option.flag} and {option_name(name)} are the same; give only one"
                )
            settings[name] = setting
    return settings


_WEIGHT = re.compile(r"-w([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)")


def expand_weights(arguments: Sequence[str]) -> list[str]:
    """Turn LIBLINEAR's ``-w1 2.5``, which has a label in its name, into ``--liblinear-w 1=2.5``.

    Raises
    ------
    SettingsError
        No number follows.
    """
    expanded: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        found = _WEIGHT.fullmatch(argument)
        if found is None or not _is_number(found[1]):
            expanded.append(argument)
            continue
        weight = next(rest, None)
        if weight is None or not _is_number(weight):
            behind = "nothing" if weight is None else repr(weight)
            raise SettingsError(
                f"{argument} must be followed by a number, for example -w1 2.5; found {behind}"
            )
        expanded += ["--liblinear-w", f"{found[1]}={weight}"]
    return expanded


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _multiply(weights: Sequence[str]) -> dict[float, float]:
    """Read ``label=weight``; weights of the same label are multiplied, as in LIBLINEAR."""
    factors: dict[float, float] = {}
    for text in weights:
        try:
            label, weight = map(float, text.split("="))
        except ValueError:
            raise SettingsError(f"-w is {text!r}; write it as -w1 2.5") from None
        factors[label] = factors.get(label, 1.0) * weight
    return factors


def refuse_cross_validation(arguments: Sequence[str]) -> None:
    """Refuse LIBLINEAR's ``-v 5``, which is `sbm tune` here.

    Raises `SettingsError` if ``-v`` is followed by a number that is not a file.
    """
    for flag, value in pairwise([*arguments, ""]):
        folds = value if flag == "-v" else flag.removeprefix("-v")
        if flag.startswith("-v") and re.fullmatch("[0-9]+", folds) and not os.path.exists(folds):
            raise SettingsError(
                f"-v {folds} is cross-validation in LIBLINEAR, but -v is --verbose here; "
                f"use sbm tune --folds {folds}"
            )
