"""The options of LIBLINEAR's ``train``, translated to settings.

The table `OPTIONS` defines both the translation and its help. What cannot be translated is refused
with the right command.
"""

import glob
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from sbm.errors import SettingsError
from sbm.losses import LOSSES
from sbm.plain import dataclass
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
_TOLERANCES = {0: 0.01, 2: 0.01, 5: 0.01, 6: 0.01, 11: 0.0001, 21: 0.01}  # of others 0.1
DEFAULT_SOLVER = 1


def _loss(number: int, _: int | None) -> dict[str, Any]:
    if number in _SPARSE:
        return {"loss": _SPARSE[number], "penalty": "l1"}
    if number not in SOLVERS:
        known = ", ".join(map(str, sorted({*SOLVERS, *_SPARSE})))
        raise SettingsError(f"-s {number} is unknown; use one of {known}")
    return {"loss": SOLVERS[number]}


def _tol(tolerance: float, solver: int | None) -> dict[str, Any]:
    usual = _TOLERANCES.get(DEFAULT_SOLVER if solver is None else solver, 0.1)
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


def refuse_tuning(arguments: Sequence[str], takes_grid: bool = False) -> None:
    """Refuse LIBLINEAR's ``-v 5``, and its ``-C`` without a value, which are `sbm tune` here.

    Raises `SettingsError` if ``-v`` is followed by a number that is not a file, or ``-C`` by none,
    unless it `takes_grid`.
    """
    for flag, value in pairwise([*arguments, ""]):
        if flag == "-C" and not takes_grid and not _is_number(value):
            raise SettingsError(
                f"-C must be followed by a number, found {repr(value) if value else 'nothing'}; to "
                "search for the best C, as -C does in LIBLINEAR, use sbm tune --C 0.01:100:x10"
            )
        folds = value if flag == "-v" else flag.removeprefix("-v")
        if flag.startswith("-v") and re.fullmatch("[0-9]+", folds) and not os.path.exists(folds):
            raise SettingsError(
                f"-v {folds} is cross-validation in LIBLINEAR, but -v is --verbose here; "
                f"use sbm tune --folds {folds}"
            )


_OF_C = (
    "is the weight of the penalty elsewhere; here -C is the cost of a row's loss, against ½|w|². "
    "Use -C 1/lambda, or -C 1/(lambda x rows) if the other tool takes the mean of the losses"
)
# Options of other tools, and what to use instead, by command; without a command, those of a
# training.
_OTHERS: dict[str, dict[str, str]] = {
    "": {
        "--lambda": _OF_C,
        "--alpha": _OF_C,
        "--reg": _OF_C,
        "--l2": _OF_C,
        "--l1": "is --penalty l1 here, with -C as the cost of a row's loss, against |w|₁",
        "-R": "(a bias that is not regularised) is --intercept here, without -B",
        "-m": "(threads) is --threads here",
        "-b": "(probabilities) is --probability of sbm predict here; other losses than log_loss "
        "also need sbm train --calibrate",
    },
    "predict": {"-b": "(probabilities) is --probability here"},
}
_TRAININGS = ("train", "tune", "plan", "stream")


def other_option(command: str, option: str) -> str:
    """Return what to use instead of an option of another tool; empty if it is not known."""
    known = _OTHERS[""] if command in _TRAININGS else _OTHERS.get(command, {})
    return f"{option} {known[option]}" if option in known else ""


def is_model(name: str) -> bool:
    """Whether a file is a model of sbm or LIBLINEAR, by its first bytes."""
    from sbm.models.model import READERS, first_word
    from sbm.store.container import is_container

    return is_container(Path(name)) or first_word(Path(name)) in READERS


def refuse_their_model(data: Sequence[str], has_no_output: bool) -> None:
    """Refuse ``train DATA MODEL``, the order of LIBLINEAR.

    Raises `SettingsError` if the last of several inputs is a model, or does not exist.
    """
    *first, last = data or [""]
    if not first or not has_no_output or not any(map(os.path.exists, first)):
        return
    from sbm.inputs.formats import names_format
    from sbm.inputs.urls import is_remote

    is_other = glob.has_magic(last) or is_remote(last) or names_format(last)
    is_missing = not (os.path.lexists(last) or is_other)
    if last != "-" and (is_missing or is_model(last)):
        what = "does not exist" if is_missing else "is a model"
        raise SettingsError(
            f"{last} {what}; all names after sbm train are data. To write the model there, use "
            f"sbm train {shlex.join(first)} -o {shlex.quote(last)}"
        )


def refuse_their_order(model: str, data: str, more: Sequence[str]) -> None:
    """Refuse ``predict TEST MODEL OUTPUT``, the order of LIBLINEAR.

    Raises `SettingsError` if the model is in the second place, or there are three names.
    """
    is_swapped = is_model(data) and not is_model(model)
    first, second = (data, model) if is_swapped else (model, data)
    if not more and not is_swapped:
        return
    if len(more) > 1:
        raise SettingsError(f"unexpected argument {more[1]}; predict one input at a time")
    what = "the model comes first" if is_swapped else f"unexpected argument {more[0]}"
    output = f" -o {shlex.quote(more[0])}" if more else ""
    what += " and -o names the output" if is_swapped and more else ""
    raise SettingsError(f"{what}: sbm predict {shlex.join([first, second])}{output}")
