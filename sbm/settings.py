"""Settings of a training: their table, their rules and their TOML files."""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any, cast

from sbm.errors import SettingsError
from sbm.fields import Table, is_number
from sbm.losses import LOSSES
from sbm.methods import SOLVERS
from sbm.plain import dataclass
from sbm.units import (
    as_typed,
    format_label,
    format_number,
    parse_duration,
    parse_size,
    shorten,
    to_whole,
)

_MOST_TOML = 1_000_000  # bytes


def _is_in_range(value: Any) -> bool:
    """Whether this is not a number that is too large; `Settings` checks the rest."""
    if isinstance(value, dict):
        return all(map(_is_in_range, value.values()))
    return type(value) is not int or abs(value) < 1 << 62


# Of the settings in the record of a run.
SETTINGS_FIELDS: Table = {"C?": is_number, "loss?": str, "*": _is_in_range}

# Names of losses elsewhere.
_ALSO = {
    "svm": "hinge", "svc": "hinge", "linear_svc": "hinge", "l1": "hinge", "l2": "squared_hinge",
    "logistic": "log_loss", "logit": "log_loss", "softmax": "log_loss",
    "cross_entropy": "log_loss", "binary:logistic": "log_loss", "mse": "squared_error",
    "squared": "squared_error", "ridge": "squared_error", "lasso": "squared_error",
    "svr": "epsilon_insensitive", "mae": "epsilon_insensitive",
}  # fmt: skip


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the known word nearest to `word`, or an empty string."""
    import difflib

    by_lower = {name.lower(): name for name in known}
    elsewhere = {name: other for name, other in _ALSO.items() if other in by_lower}
    close = [w for w in [word.lower()] if w in elsewhere]
    close = close or difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.55)
    close = close or difflib.get_close_matches(word.lower(), elsewhere, n=1, cutoff=0.75)
    return f"; did you mean {(elsewhere | by_lower)[close[0]]!r}?" if close else ""


def refuse_unknown(what: str, name: str, known: Iterable[str]) -> None:
    """Raise `SettingsError` unless a name is one of those known."""
    if name not in (known := list(known)):
        raise SettingsError(
            f"unknown {what} {name!r}; expected one of {', '.join(known)}{nearest(name, known)}"
        )


# Options that say how a file is written; a model or a store has fixed what others say.
OF_FILES = ("format", "label", "header", "sep", "quote", "decimal", "encoding", "strict")


def option_name(name: str) -> str:
    """Return the option of a setting, as it is typed: ``-C``, ``--cache-frac``."""
    return "-C" if name == "C" else "--" + name.replace("_", "-")


def _to_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


@dataclass(frozen=True)
class _Rule:
    """Valid values of a setting.

    Attributes
    ----------
    kind : type, optional
        bool, str, int or float (which also accepts int). None: `read` checks everything.
    words : tuple
        Additional valid values, such as ``"auto"`` or None.
    holds, expected : callable, str
        Condition, and its description.
    choices : tuple of str
        All valid values, if they can be listed.
    read : callable, optional
        Converts a value to the stored form before it is checked.
    """

    kind: type | None = None
    words: tuple[Any, ...] = ()
    holds: Callable[[Any], bool] = lambda _: True
    expected: str = ""
    choices: tuple[str, ...] = ()
    read: Callable[[Any], Any] | None = None

    @property
    def texts(self) -> list[str]:
        """The additional values that are strings."""
        return [word for word in self.words if isinstance(word, str)]

    def check(self, name: str, value: Any) -> Any:
        """Check a value and return it in its stored form.

        Raises
        ------
        SettingsError
            If the value has the wrong type or is out of range.
        """
        if hasattr(value, "dtype") and getattr(value, "shape", None) == ():
            value = value.item()  # a number of numpy
        if self.read is not None:
            try:
                value = self.read(value)
            except SettingsError as error:
                text = str(error)
                raise SettingsError(text if text.startswith(name) else f"{name} {text}") from None
        if self.kind is None or any(isinstance(value, type(w)) and value == w for w in self.words):
            return value
        if self.texts and isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                known = " or ".join(self.texts)
                raise SettingsError(
                    f"{name} is {value!r}; a number or {known} is expected"
                ) from None
        kinds = (int, float) if self.kind is float else (self.kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and self.kind is not bool):
            raise SettingsError(f"{name} is {value!r}; {_KINDS[self.kind]} is expected")
        if self.kind is float:
            value = _to_float(cast(float, value))
        if self.choices:
            refuse_unknown(name, str(value), self.choices)
        if not self.holds(value):
            raise SettingsError(f"{name} is {format_number(value)}; it must be {self.expected}")
        if self.kind is int and value >= 2**63:
            raise SettingsError(f"{name} is {format_number(value)}; it must be below 2^63")
        return value


_KINDS = {bool: "true or false", str: "a name", int: "a whole number", float: "a number"}


def _is_positive(x: float) -> bool:
    return x > 0 and math.isfinite(x)


def _is_not_negative(x: float) -> bool:
    return x >= 0 and math.isfinite(x)


def _read_rounds(value: Any) -> int | str:
    """Check a number of rounds or a comma-separated list; a plain number becomes an int."""
    if isinstance(value, str) and value == "auto":
        return "auto"
    parts = [part.strip() for part in str(value).split(",")]
    known = isinstance(value, int | str) and not isinstance(value, bool)
    if not known or not all(re.fullmatch(r"-?[0-9]+", part) for part in parts):
        raise SettingsError(
            f"rounds is {shorten(repr(value))}; a whole number, a list such as 2,2,5, or auto is "
            "expected"
        )
    for part in parts:
        if not 1 <= to_whole(part) < 2**63:
            bound = "at least 1" if to_whole(part) < 1 else "below 2^63"
            raise SettingsError(f"rounds is {shorten(part)}; it must be {bound}")
    numbers = [int(part) for part in parts]
    return numbers[0] if len(numbers) == 1 else ",".join(map(str, numbers))


def _read_validate(value: Any) -> float | str | None:
    """Return a share of the rows as a number, and a file as text."""
    text = str(value).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        if not text:
            raise SettingsError("validate is empty; give a file, or a share such as 10%") from None
        return None if value is None else text
    if isinstance(value, bool) or not 0 < share < 1:
        raise SettingsError(
            f"validate is {value}; a share must be between 0 and 1, or between 0% and 100%; a file "
            "with such a name needs its folder, as in ./0.1"
        )
    return share


def read_threshold(value: Any) -> tuple[float, float] | None:
    """Return the costs of a false positive and a false negative; None for F1.

    Raises `SettingsError` if the value is neither ``f1`` nor ``cost:FP,FN``.
    """
    if value == "f1":
        return None
    kind, _, rest = str(value).partition(":")
    try:
        costs = [float(cost) for cost in rest.split(",")]
    except ValueError:
        costs = []
    if kind != "cost" or len(costs) != 2 or not all(_is_positive(cost) for cost in costs):
        raise SettingsError(
            f"threshold is {value!r}; f1 is expected, or cost:FP,FN with the costs of a false "
            "positive and a false negative, such as cost:1,5"
        )
    return costs[0], costs[1]


def _check_threshold(value: Any) -> Any:
    if value is not None:
        read_threshold(value)
    return value


def _path_to_text(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _to_label(value: Any) -> float | str:
    """Return a label, which is a number or a word."""
    try:
        return _to_float(value)
    except ValueError:
        return str(value)


def _label_to_text(value: Any) -> str | None:
    """Return a label as text."""
    if value is None or isinstance(value, str):
        return value if value is None else value.strip()
    try:
        return format_label(float(value))
    except (TypeError, ValueError):
        raise SettingsError(f"positive is {value!r}; a label is expected") from None


def _read_class_weight(value: Any) -> dict[float | str, float] | str:
    """Read a mapping of label to weight, a list of ``"label=weight"``, or ``balanced``."""
    if isinstance(value, list | tuple) and len(value) == 1 and isinstance(value[0], str):
        value = value[0] if value[0] == "balanced" else value
    if value is None or (isinstance(value, str) and value == "balanced"):
        return value or {}
    try:
        if isinstance(value, Mapping):
            pairs: Any = value.items()
        elif isinstance(value, list | tuple):
            pairs = [str(v).split("=", 1) for v in value]
        else:
            raise TypeError
        numbers = [(_to_label(label), _to_float(weight)) for label, weight in pairs]
    except (TypeError, ValueError):
        shown = ", ".join(map(str, value)) if isinstance(value, list | tuple) else repr(value)
        raise SettingsError(
            f"class_weight is {shown}; write it as label=weight, for example 1=2.5, "
            "or balanced alone"
        ) from None
    weights: dict[float | str, float] = {}
    for label, weight in numbers:
        if label in weights:
            raise SettingsError(f"class_weight has label {format_label(label)} twice; give it once")
        if not _is_not_negative(weight):
            raise SettingsError(
                f"class_weight of label {format_label(label)} is {format_number(weight)}; "
                "it must be 0 or a finite positive number"
            )
        weights[label] = weight
    return weights


def match_weights(
    given: Mapping[Any, float], labels: Sequence[Any]
) -> tuple[list[float | None], list[Any]]:
    """Find the class weight of each label.

    A weight is given by the label as text, or else by its value, so 1, 1.0 and ``"1"`` name the
    same label.

    Returns
    -------
    weights : list of float or None
        None for labels without a weight.
    unknown : list
        Keys of `given` that are no label.

    Raises
    ------
    SettingsError
        A label has two weights, or a weight is no number of at least 0.
    """
    texts, numbers = [str(label) for label in labels], [number_of(label) for label in labels]
    weights: list[float | None] = [None] * len(texts)
    unknown = []
    for key, weight in given.items():
        text, number = format_label(key) if isinstance(key, float) else str(key), number_of(key)
        same = [k for k, known in enumerate(texts) if text == known]
        same = same or [k for k, known in enumerate(numbers) if number == known]
        for k in same:
            if weights[k] is not None:
                raise SettingsError(f"class_weight has label {texts[k]} twice; give it once")
            weights[k] = number_of(weight)
            if not _is_not_negative(number_of(weight)):
                raise SettingsError(
                    f"class_weight of label {texts[k]} is {weight!r}; it must be 0 or a finite "
                    "positive number"
                )
        unknown += [] if same else [key]
    return weights, unknown


def number_of(label: Any) -> float:
    """Return the value of a label, which may be a text; nan if it is no number."""
    try:
        return float(label)
    except (TypeError, ValueError, OverflowError):
        return math.nan


_FLAG = _Rule(bool)
_POSITIVE = _Rule(float, holds=_is_positive, expected="a finite number above 0")


def _read_timeout(value: Any) -> float:
    """Check a time that must not be 0."""
    if not (seconds := parse_duration(value)):
        raise SettingsError(f"is {value!r}; it must be above 0")
    return seconds


_NOT_NEGATIVE = _Rule(float, holds=_is_not_negative, expected="0 or a positive number")
_COUNT = _Rule(int, holds=lambda n: n >= 1, expected="at least 1")
_DURATION = _Rule(read=parse_duration)


@dataclass(frozen=True)
class Case:
    """A case in which a setting does not apply.

    Attributes
    ----------
    text : str
        For ``--help`` and the docs. If it begins with "only", it tells the other cases.
    holds : callable
        ``holds(settings, processes)`` returns whether it is the case.
    now : str
        For errors, with ``{loss}``, ``{penalty}`` or ``{processes}``. Default: `text`.
    advice : str
        What to do.
    """

    text: str
    holds: Callable[["Settings", int], bool]
    now: str = ""
    advice: str = "leave it out"

    def __and__(self, other: "Case") -> "Case":
        return Case(
            f"{self.text} {'with' if self.now == _ITSELF else 'and'} {other.text}",
            lambda settings, n: self.holds(settings, n) and other.holds(settings, n),
            other.shown if self.now == _ITSELF else f"{self.shown} and {other.shown}",
        )

    @property
    def shown(self) -> str:
        """The text for errors."""
        return self.now or self.text

    def but(self, advice: str) -> "Case":
        """Return the case with what to do."""
        return replace(self, advice=advice)


_ITSELF = "itself"  # the case is a value of the setting, which errors name already
_TUBES = ("epsilon_insensitive", "squared_epsilon_insensitive")
_SMOOTH = ("log_loss", "squared_hinge", "squared_error")  # losses of sparse models
_USE_DUAL = "use --solver dual"
_ONE_CLASS = Case("loss one_class", lambda s, _: s.loss == "one_class")
_NOT_ONE_CLASS = Case(
    "only with loss one_class",
    lambda s, _: s.loss != "one_class",
    "loss {loss}, only to one_class",
)
_NO_TUBE = Case(
    f"only with loss {' or '.join(_TUBES)}",
    lambda s, _: s.loss not in _TUBES,
    f"loss {{loss}}, only to {' and '.join(_TUBES)}",
)
_NOT_SPARSE = Case(
    f"only l2 with losses other than {', '.join(_SMOOTH)}",
    lambda s, _: s.loss not in _SMOOTH,
    "loss {loss}",
    f"use --loss {' or '.join(_SMOOTH)}",
)
_LOG_LOSS = Case(
    "loss log_loss (its decision values are log odds)", lambda s, _: s.loss == "log_loss"
)
_JOINT = Case(
    "loss crammer_singer or weston_watkins",
    lambda s, _: LOSSES[s.loss].joint,
    "loss {loss}",
)
_NO_CLASSES = Case(
    "losses without classes",
    lambda s, _: s.problem != "classification",
    "loss {loss}, which has no classes",
)
_SPARSE = Case("penalty l1 or elasticnet", lambda s, _: s.penalty != "l2", "penalty {penalty}")
_NOT_MIXED = Case(
    "only with penalty elasticnet",
    lambda s, _: s.penalty != "elasticnet",
    "penalty {penalty}, only to elasticnet",
)
_INTERCEPT = Case("intercept", lambda s, _: s.intercept)
_L2_INTERCEPT = Case("intercept", lambda s, _: s.intercept and s.penalty == "l2")
_CALIBRATE = Case("calibrate", lambda s, _: s.calibrate)
_DUAL = Case("dual", lambda s, _: s.solver == "dual", _ITSELF)
_NEWTON = Case("newton", lambda s, _: s.solver == "newton", _ITSELF)
_SHARE = Case("a share of the rows to validate", lambda s, _: isinstance(s.validate, float))
_OWN_SHARE = replace(_SHARE, text="a share of the rows", now=_ITSELF)
_VALIDATED = Case("validate", lambda s, _: s.validate is not None)
_SCALED = Case("scale", lambda s, _: s.scale != "none")
_NO_VALIDATION = Case(
    "only with --validate", lambda s, _: s.validate is None, "a training without validation data"
)
_PIPED_VALIDATION = Case("standard input", lambda s, _: s.validate == "-")
_PIPED_WEIGHTS = Case("standard input", lambda s, _: s.weights == "-")
_RANKS = Case("several processes", lambda _, n: n > 1, "{processes} processes")


@dataclass(frozen=True)
class Setting:
    """Description of a setting: one row of the table `SETTINGS`.

    Attributes
    ----------
    default : object
    rule : _Rule
    meaning : str
        Text for ``--help``, the docs and the docstring of `Settings`.
    details : str
        Further text for the docs and the docstring.
    metavar : str, optional
        Placeholder of the value in ``--help``.
    unset : str
        Meaning of the default None.
    commands : str
        Commands that use the setting.
    ignored_by : str
        Commands that ignore the setting, for example in TOML files. Other commands reject it.
    excludes : tuple of Case
        Cases in which a value other than the default does not apply.
    """

    default: bool | float | str | None
    rule: _Rule
    meaning: str
    details: str = ""
    metavar: str | None = None
    unset: str = ""
    commands: str = "train tune plan stream"
    ignored_by: str = ""
    excludes: tuple[Case, ...] = ()

    @property
    def limits(self) -> str:
        """In which cases it does not apply, for ``--help`` and the docs."""
        texts = [case.text for case in self.excludes]
        only = [f"O{text[1:]}." for text in texts if text.startswith("only ")]
        if others := [text for text in texts if not text.startswith("only ")]:
            start = "Not" if " with " in others[0] else "Not with"
            only.append(f"{start} {'; '.join(others)}.")
        return " ".join(only)

    @property
    def default_text(self) -> str:
        """The default as written on the command line, or the meaning of None."""
        if self.default is None:
            return self.unset
        if isinstance(self.default, bool):
            return "on" if self.default else "off"
        return self.default if isinstance(self.default, str) else f"{self.default:g}"


def _setting(default: Any, rule: _Rule, meaning: str, details: str = "", **more: Any) -> Any:
    """Return the dataclass field of a setting."""
    row = Setting(default, rule, meaning, details, **more)
    return field(default=default, metadata={"setting": row})


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of a training: everything that determines the model, and limits of memory and time.

    Names are the long options of ``sbm train`` with underscores, and the keys of its TOML file.

    Parameters
    ----------
    {parameters}

    Raises
    ------
    SettingsError
        If a value is invalid.
    """

    # fmt: off
    loss: str = _setting(
        "hinge", _Rule(str, choices=tuple(LOSSES)), "Loss function.",
        "`sbm train --help` lists the formulas.", metavar="NAME",
    )
    C: float = _setting(
        1.0, _POSITIVE, "Cost of a row's loss, against ½|w|².",
        commands="train plan stream", ignored_by="tune",
        excludes=(_ONE_CLASS.but("set nu instead"),),
    )
    penalty: str = _setting(
        "l2", _Rule(str, choices=("l2", "l1", "elasticnet")),
        "Penalty of the weights: ½|w|², |w|₁ or r|w|₁ + (1-r)/2 |w|².",
        "`l1` and `elasticnet` make most weights 0, with log_loss, squared_hinge and "
        "squared_error.", commands="train tune plan",
        excludes=(_NOT_SPARSE, _RANKS.but("train without --launch")),
    )
    l1_ratio: float = _setting(
        0.5, _Rule(float, holds=lambda x: 0 <= x <= 1, expected="from 0 to 1"),
        "Share r of |w|₁ in the penalty.", metavar="R",
        commands="train tune plan", excludes=(_NOT_MIXED,),
    )
    task: str = _setting(
        "auto", _Rule(str, choices=("auto", "classification", "regression")),
        "Meaning of the labels, for squared_error.", "`auto` means regression.",
    )
    epsilon: float = _setting(
        0.1, _NOT_NEGATIVE, "Largest error without loss.",
        excludes=(_NO_TUBE,),
    )
    nu: float = _setting(
        0.5, _Rule(float, holds=lambda x: 0 < x <= 1, expected="above 0 and at most 1"),
        "Upper bound on the share of outliers.",
        excludes=(_NOT_ONE_CLASS,),
    )
    solver: str = _setting(
        "auto", _Rule(str, choices=("auto", *SOLVERS)),
        "Algorithm: dual coordinate descent, or Newton's method for few features.",
        "`newton` needs a matrix of features x features, and few passes even if C is large or "
        "features are not scaled. With more than 5,000 features, or `loss` crammer_singer or "
        "weston_watkins, it keeps all rows in memory instead. `auto` starts with `dual` and "
        "switches if that is expected to save time. Folds of `sbm tune` keep the solver that they "
        "start with.",
        metavar="NAME", commands="train tune plan", ignored_by="stream",
        excludes=((_DUAL & _L2_INTERCEPT).but("use --solver newton, or --bias 1"),
                  (_NEWTON & _ONE_CLASS).but(_USE_DUAL), _NEWTON & _SPARSE,
                  (_NEWTON & _JOINT & _SHARE).but(_USE_DUAL),
                  (_NEWTON & _JOINT & _CALIBRATE).but(_USE_DUAL)),
    )
    cache_frac: float | str = _setting(
        0.5, _Rule(float, ("auto",), lambda x: 0 <= x < 1, "at least 0 and below 1, or auto"),
        "Share of the working set for the cache, or auto.",
        "0 is block minimization without a cache; `auto` adapts to the number of free alphas in "
        "each pass.", metavar="F", excludes=(_SPARSE,),
    )
    parts: str = _setting(
        "auto", _Rule(str, choices=("auto", "drawn", "blocks")),
        "Rows solved together: all if they fit in memory (auto), or a block at a time.",
        "`auto` joins all blocks if their rows stay decoded in `mem` and have at most 2 billion "
        "nonzeros times classes; then there is no cache, and a pass ends when its gap is below "
        "`tol`. Otherwise, and with `drawn`, each pass draws its blocks anew, at random. With "
        "`blocks` they are those of the store, as in the paper, which takes more passes.",
        commands="train tune plan", ignored_by="stream", excludes=(_SPARSE,),
    )
    mem: int | str = _setting(
        "2GB", _Rule(read=parse_size), "Maximum resident memory of the process.", metavar="SIZE"
    )
    rounds: int | str = _setting(
        "auto", _Rule(read=_read_rounds),
        "Maximum rounds over a working set; 2,2,5 sets each pass.",
        "The last number applies to all later passes. `auto` depends on the number of blocks, and "
        "on their load time if the disk is slow.", metavar="N",
        excludes=(_SPARSE,),
    )
    tol: float = _setting(
        1e-3, _POSITIVE, "Relative duality gap to reach.", commands="train tune plan"
    )
    max_passes: int = _setting(
        50, _COUNT, "Maximum passes over the store.", metavar="N", commands="train tune plan"
    )
    time_limit: float | str | None = _setting(
        None, _Rule(read=lambda time: None if time is None else parse_duration(time)),
        "Maximum time, such as 90s, 5m or 2h.", "It is checked after each block.", metavar="T",
        unset="none", commands="train tune", ignored_by="plan",
    )
    policy: str = _setting(
        "gradient", _Rule(str, choices=("gradient", "mixed", "random")),
        "Rule that chooses the rows of the cache.",
        "`gradient` ranks rows by projected gradient (`log_loss` and `squared_error`, whose "
        "variables never rest, use `mixed` instead), `mixed` chooses half of them at random, "
        "`random` all of them.",
        excludes=(_SPARSE,),
    )
    screen: bool = _setting(
        True, _FLAG, "Skip rows whose alpha would not change.",
        "Every 8th pass visits all rows.", commands="train tune plan",
        excludes=(_SPARSE,),
    )
    bias: float = _setting(
        0.0, _NOT_NEGATIVE, "Value of an extra feature in every row; 0 for none.", metavar="B",
        excludes=(_INTERCEPT.but("leave out one of them"), _ONE_CLASS),
    )
    intercept: bool = _setting(
        False, _FLAG, "Add a bias that is not regularised.",
        "It needs `solver` newton, or `penalty` l1 or elasticnet.",
        commands="train tune plan",
        excludes=(_ONE_CLASS, _JOINT.but("use --bias 1")),
    )
    scale: str = _setting(
        "none", _Rule(str, choices=("none", "maxabs", "std")),
        "Divide each feature by its largest value or standard deviation while training.",
        "The weights of the model are for values as they are; the certificate is of the scaled "
        "problem, its values rounded to the type of the store. Features are not centred: with "
        "`intercept`, that changes no prediction.",
        commands="train tune plan",
    )
    prune: float | None = _setting(
        None, _Rule(float, (None,), lambda x: 0 < x < math.inf, "a finite number above 0"),
        "Drop weights from -T to T at the end, except that of the bias.",
        "The certificate is that of the weights that are left. The report has the number of "
        "dropped weights, and what they add to the objective.", metavar="T", unset="none",
        commands="train", ignored_by="plan",
        excludes=(_SPARSE, _JOINT, _ONE_CLASS, _SCALED, _VALIDATED),
    )
    class_weight: Mapping[float | str, float] | str = _setting(
        None, _Rule(read=_read_class_weight),
        "Factor of C for label L, or balanced; repeatable.",
        "`balanced` is rows / (labels x rows of the label); with `--weights`, of their sums.",
        metavar="L=W", unset="1 each",
        excludes=(_NO_CLASSES,),
    )
    positive: str | None = _setting(
        None, _Rule(str, (None,), read=_label_to_text),
        "The label of two that is the positive class.",
        "Decision values above 0 stand for it. AUC, PR-AUC, F1, `threshold` and the weights of the "
        "model are those of this label.", metavar="LABEL", unset="the larger label",
        excludes=(_NO_CLASSES, _JOINT),
    )
    weights: str | Path | None = _setting(  # noqa: RUF009
        None, _Rule(str, (None,), read=_path_to_text),
        "File with a factor of C for each row, one per line.",
        "Rows are in the order of the text of the store.", metavar="FILE", unset="1 each",
        commands="train tune",
        excludes=((_RANKS & _PIPED_WEIGHTS).but("use a file"),),
    )
    warm_start: str | Path | bool | None = _setting(  # noqa: RUF009
        None,
        _Rule(str, (None, True), read=lambda run: None if run is False else _path_to_text(run)),
        "Start from the alphas of an earlier training on this store. Without a name, use the "
        "previous run of the output model.",
        "The store may have changed by `split --append` and `expire` since. In Python and TOML, "
        "`true` stands for the previous run, and starts cold if there is none.",
        metavar="[MODEL|RUN]", commands="train", ignored_by="plan",
    )
    calibrate: bool = _setting(
        False, _FLAG, "Also fit probabilities, with a second model and held-out rows.",
        commands="train",
        excludes=(_LOG_LOSS, _NO_CLASSES, _SPARSE,
                  _RANKS.but("train without it, then run one process with --warm-start "
                             "--calibrate")),
    )
    validate: str | Path | float | None = _setting(  # noqa: RUF009
        None, _Rule(read=_read_validate),
        "Data to evaluate the model on after each pass; the best pass is kept. A file, or a share "
        "of the rows to hold out, such as 10%.",
        "The training ends after 3 passes without a better score and with a gap below 0.1. The "
        "rows of a share do not depend on blocks or on the order of the rows.",
        metavar="FILE|SHARE", unset="none", commands="train", ignored_by="plan",
        excludes=(_ONE_CLASS, _CALIBRATE.but("leave out one of them, or use --loss log_loss"),
                  _RANKS.but("leave it out and run sbm predict after training"),
                  _PIPED_VALIDATION.but("use a file"),
                  (_OWN_SHARE & _SPARSE).but("use --validate FILE, or sbm tune")),
    )
    metric: str | None = _setting(
        None,
        _Rule(
            str, (None,),
            choices=(
                "accuracy", "macro_f1", "auc", "pr_auc", "f1", "log_loss", "brier", "mse", "mae",
                "r2",
            ),
        ),
        "Score of each pass.",
        "`macro_f1` is for more than two classes, `auc`, `pr_auc` and `f1` (of the positive label) "
        "are for two, and `mse`, `mae` and `r2` for regression. `log_loss` and `brier` (of two "
        "labels) judge the probabilities of --loss log_loss.", unset="accuracy, or mse",
        commands="train", ignored_by="plan",
        excludes=(_NO_VALIDATION.but("add --validate FILE or SHARE"),),
    )
    threshold: str | None = _setting(
        None, _Rule(str, (None,), read=_check_threshold),
        "Choose the decision value above which the positive label is predicted, on the rows "
        "of --validate: with the best F1, or the least cost of false positives and negatives.",
        metavar="f1|cost:FP,FN", unset="0", commands="train", ignored_by="plan",
        excludes=(_NO_VALIDATION.but("add --validate FILE or SHARE"), _NO_CLASSES, _JOINT),
    )
    seed: int = _setting(
        0, _Rule(int, holds=lambda n: 0 <= n < 2**63, expected="from 0 to 2^63 - 1"),
        "Seed of every random choice.",
    )
    comm_timeout: float | str = _setting(
        "10m", _DURATION, "Maximum time to wait for the other processes.", metavar="T",
        commands="train", ignored_by="tune plan stream",
    )
    checkpoint_every: float | str = _setting(
        "5m", _DURATION, "Time between checkpoints within a pass; 0: only at its end.",
        metavar="T", commands="train tune", ignored_by="plan stream",
    )
    threads: int | None = _setting(
        None, replace(_COUNT, words=(None,)), "Number of threads.",
        "They read, decode and screen while the solver runs. No result depends on their number.",
        metavar="N", unset="all cores",
    )
    remote_timeout: float | str = _setting(
        "60s", _Rule(read=_read_timeout),
        "Maximum time to wait for data from the server of a remote input.", metavar="T",
    )
    # fmt: on

    def __post_init__(self) -> None:
        for name, setting in SETTINGS.items():
            object.__setattr__(self, name, setting.rule.check(name, getattr(self, name)))

    @property
    def mem_bytes(self) -> int:
        """The memory limit in bytes."""
        return int(self.mem)

    @property
    def problem(self) -> str:
        """What the labels are: ``classification``, ``regression``, or ``none`` (they are ignored).

        Raises
        ------
        SettingsError
            The loss does not support the task.
        """
        tasks = LOSSES[self.loss].tasks
        if self.task == "auto":
            return tasks[0] if tasks else "none"
        if self.task not in tasks:
            known = " or ".join(tasks) or "data without labels"
            raise SettingsError(
                f"task is {self.task}, but {self.loss} is for {known}; choose another --loss"
            )
        return self.task

    @property
    def first_solver(self) -> str:
        """The solver that a training begins with; with ``auto``, the rows may suggest another."""
        if self.solver != "auto":
            return self.solver
        return "newton" if self.intercept and self.penalty == "l2" else "dual"

    @property
    def method(self) -> str:
        """The method that a training begins with: ``columns``, ``newton`` or ``dual``."""
        return "columns" if self.penalty != "l2" else self.first_solver

    @property
    def bias_value(self) -> float:
        """The value of the extra feature of `bias` or `intercept`; 0 for none."""
        return 1.0 if self.intercept else self.bias

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "settings") -> "Settings":
        """Create settings from a mapping of names to values.

        Raises
        ------
        SettingsError
            If a name is unknown (the nearest known one is suggested) or a value is invalid.
        """
        plain: dict[str, Any] = {}
        for key, value in values.items():
            if (name := str(key).replace("-", "_")) not in SETTINGS:
                raise SettingsError(f"{where}: unknown key {key!r}{nearest(name, SETTINGS)}")
            if name in plain:
                raise SettingsError(f"{where}: {name} is given twice; leave out one")
            plain[name] = value
        return cls(**plain)

    @classmethod
    def of(cls, settings: "Settings | Mapping[str, Any] | None") -> "Settings":
        """Convert a mapping to settings; return `Settings` unchanged, and defaults for None.

        Raises
        ------
        SettingsError
            If the argument has another type, or as for `from_dict`.
        """
        if settings is None or isinstance(settings, Mapping):
            return cls.from_dict(settings or {})
        if not isinstance(settings, cls):
            raise SettingsError(
                f"settings is {settings!r}; sbm.Settings or a dict of its names is expected"
            )
        return settings

    @staticmethod
    def read_toml(path: str | Path) -> dict[str, Any]:
        """Read the keys of a TOML file; `from_dict` checks them.

        Raises
        ------
        SettingsError
            If the file cannot be read or is not TOML.
        """
        import tomllib

        try:
            with open(path, "rb") as file:
                content = file.read(_MOST_TOML + 1)
            if len(content) > _MOST_TOML:
                raise SettingsError(f"{path} is larger than 1 MB; a TOML file of settings is small")
            return tomllib.loads(content.decode())
        except FileNotFoundError:
            raise SettingsError(f"{path} does not exist; give a TOML file of settings") from None
        except OSError as error:
            raise SettingsError(f"cannot read {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SettingsError(f"{path} is not a TOML file: {error}") from error
        except SettingsError:
            raise
        except ValueError:
            raise SettingsError(f"{path} has a number with too many digits; shorten it") from None
        except RecursionError:
            raise SettingsError(
                f"{path} is nested too deeply; write lines such as mem = '4GB'"
            ) from None

    def to_dict(self) -> dict[str, Any]:
        """Return names and values as JSON types."""
        values = dataclasses.asdict(self)
        if not isinstance(self.class_weight, str):
            values["class_weight"] = {format_label(k): v for k, v in self.class_weight.items()}
        return values

    def refuse_foreign(self, command: str) -> None:
        """Reject settings that do not apply to a command, unless they have the default value.

        Raises
        ------
        SettingsError
            If there is such a setting.
        """
        for name in self._given():
            setting = SETTINGS[name]
            if command not in f"{setting.commands} {setting.ignored_by}".split():
                raise SettingsError(f"{name} does not apply to sbm {command}; leave it out")

    def refuse_conflicts(self, processes: int = 1) -> None:
        """Reject settings that exclude each other, the loss or the number of processes.

        Raises
        ------
        SettingsError
            If there are such settings; see `Setting.excludes`.
        """
        for name in self._given():
            for case in SETTINGS[name].excludes:
                if case.holds(self, processes):
                    value = getattr(self, name)
                    what = name if value is True else f"{name} {as_typed(value)}"
                    shown = case.shown.format(
                        loss=self.loss, penalty=self.penalty, processes=processes
                    )
                    raise SettingsError(f"{what} does not apply to {shown}; {case.advice}")

    def _given(self) -> list[str]:
        """Return the names of settings that do not have their default."""
        usual = _usual()
        return [name for name in SETTINGS if getattr(self, name) != getattr(usual, name)]


@functools.cache
def _usual() -> Settings:
    return Settings()


SETTINGS: dict[str, Setting] = {f.name: f.metadata["setting"] for f in dataclasses.fields(Settings)}


def used_by(command: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a command uses, and those that are unknown."""
    return {
        name: value
        for name, value in values.items()
        if name not in SETTINGS or command in SETTINGS[name].commands.split()
    }


class _Help:
    """The docstring of `Settings`, with all parameters; it is made when it is read."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __get__(self, instance: Settings | None, owner: type[Settings]) -> str:
        import inspect
        import textwrap

        lines = []
        for f in dataclasses.fields(owner):
            row = SETTINGS[f.name]
            kind = "{" + ", ".join(map(repr, row.rule.choices)) + "}" if row.rule.choices else ""
            lines.append(f"{f.name} : {kind or inspect.formatannotation(f.type)}")
            text = " ".join(f"{row.meaning} {row.details} {row.limits}".split()).replace("`", "``")
            if row.unset:
                text += f" Default: {row.unset}."
            lines += textwrap.wrap(text, 92, initial_indent="    ", subsequent_indent="    ")
        return inspect.cleandoc(self._text).format(parameters="\n".join(lines))


if Settings.__doc__:  # None with python -OO
    Settings.__doc__ = _Help(Settings.__doc__)  # type: ignore[assignment]
