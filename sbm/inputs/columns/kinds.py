"""Kinds of columns, the columns of a table, and their record in stores, models and TOML files."""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError, SettingsError
from sbm.plain import dataclass
from sbm.settings import nearest
from sbm.store.files import reading
from sbm.units import shorten

# What each kind of column becomes.
KINDS = {
    "number": "the value of the feature COLUMN",
    "log1p": "COLUMN with log(1 + value), of both signs alike",
    "bins": "COLUMN=[low,high) of quantile bins; bins:20 for another number than 10",
    "flag": "COLUMN with value 1 for true",
    "category": "COLUMN=word",
    "date": "COLUMN in years since 2000, COLUMN.month=1, COLUMN.weekday=Mon, COLUMN.hour=0",
    "words": "COLUMN=word for each word of a list",
    "ids": "COLUMN=id for each number of a list",
    "vector": "COLUMN[0], COLUMN[1] and so on",
    "id": "left out: all cells differ",
    "text": "left out: raw text",
    "empty": "nothing until it has values",
    "ignored": "left out",
    "label": "the label of the row",
    "weight": "the weight of the row",
}
READ = ("number", "log1p", "bins", "flag", "category", "date", "words", "ids", "vector", "empty")
CONTENTS = ("", "numbers", "flags", "words", "dates", "lists", "vectors")
MISSING = "(missing)"  # the word of a missing cell
RARE = "(rare)"  # the word that stands for all rare words of a column

_LABELS = ("label", "y", "target")  # default names of the label column
_SHOWN = 6  # names listed from either end of many
_MOST_PROBLEMS = 8  # in a message
_MOST_COMPARED = 20_000  # names to search for the nearest; more would take seconds
_LARGEST_VECTOR = 1 << 20  # elements
_BINS, _MOST_BINS = 10, 1000
_OF_NUMBERS = ("number", "log1p", "bins")  # kinds that numbers may have


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    kind: str  # a key of `KINDS`
    content: str = ""  # what its cells hold, one of `CONTENTS`
    decimal: str = "."  # decimal separator of numbers that are text
    pattern: str = ""  # format of dates that are text, for strptime; empty for ISO 8601
    has_time: bool = False  # whether dates have a time of day
    size: int = 0  # length of a vector
    edges: tuple[float, ...] = ()  # between bins
    seen: str = ""  # what the inference saw, for people

    @property
    def is_read(self) -> bool:
        """Whether the column becomes features."""
        return self.kind in READ

    def record(self) -> dict[str, Any]:
        """Return the column as JSON, without defaults."""
        values = {name: getattr(self, name) for name in _STORED} | {"edges": [*self.edges]}
        return {name: value for name, value in values.items() if value != _DEFAULTS[name]}


_STORED = ("name", "kind", "content", "decimal", "pattern", "has_time", "size", "edges")
_DEFAULTS: dict[str, Any] = {
    "name": None, "kind": None, "content": "", "decimal": ".", "pattern": "", "has_time": False,
    "size": 0, "edges": [],
}  # fmt: skip


@dataclass(frozen=True)
class Dialect:
    """How a file of delimited text is written."""

    separator: str | None = None  # default: that of the format
    quote: str = '"'
    decimal: str | None = None  # default: found out for each column
    encoding: str | None = None  # default: UTF-8, or that of the byte order mark
    header: bool = True  # whether the first line has names; else they are 1, 2, 3

    def __post_init__(self) -> None:
        for name, value in (("sep", self.separator), ("quote", self.quote)):
            if value is not None and (len(value) != 1 or not value.isascii() or value in "\r\n"):
                raise SettingsError(f"{name} is {value!r}; expected one ASCII character")
        if self.separator == self.quote:
            raise SettingsError(f"sep and quote are both {self.quote!r}; choose another one")
        if self.decimal not in (None, ".", ","):
            raise SettingsError(f"decimal is {self.decimal!r}; expected . or ,")
        if self.encoding is not None:
            import codecs

            try:
                "a".encode(codecs.lookup(self.encoding).name)
            except (LookupError, ValueError) as error:
                raise SettingsError(f"encoding {self.encoding!r} is unknown") from error

    def record(self) -> dict[str, Any]:
        """Return what is not the default, as JSON."""
        values = {name: getattr(self, name) for name in _DIALECT}
        return {name: value for name, value in values.items() if value != _DIALECT[name]}


_DIALECT: dict[str, Any] = {
    "separator": None, "quote": '"', "decimal": None, "encoding": None, "header": True
}  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """What the user says about the columns of a table.

    Attributes
    ----------
    label, weight : str, optional
        Names of columns.
    kinds : tuple of (str, str, str)
        Pattern of names, a key of `KINDS` (or ``bins:N``), and the option, for messages. Later ones
        override.
    crosses : tuple of (str, str)
        Columns whose features are multiplied.
    """

    label: str | None = None
    weight: str | None = None
    kinds: tuple[tuple[str, str, str], ...] = ()
    crosses: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(
        cls,
        label: str | None,
        weight: str | None,
        categorical: Iterable[str],
        exclude: Iterable[str],
        column: Mapping[str, str] | Iterable[str],
        columns: str | Path | None,
        crosses: Iterable[str] = (),
    ) -> Asked:
        """Return what the options of a command say.

        Raises
        ------
        SettingsError
            A kind is unknown, or the file of columns is invalid.
        """
        listed: list[tuple[str, str, str]] = []
        if columns is not None:
            listed += _read_toml(Path(columns))
        pairs = column.items() if isinstance(column, Mapping) else map(_pair, column)
        listed += [(name, "category", "categorical") for name in categorical]
        listed += [(name, "ignored", "exclude") for name in exclude]
        listed += [(name, kind, "column") for name, kind in pairs]
        kinds = []
        for names, kind, option in listed:
            if base_kind(kind) not in KINDS:
                raise SettingsError(
                    f"kind {kind!r} of column {names} is unknown{nearest(kind, list(KINDS))}; "
                    f"expected one of {', '.join(KINDS)}"
                )
            if kind == "label":
                label = label or names
            elif kind == "weight":
                weight = weight or names
            else:
                kinds.append((names, kind, option))
        return cls(label, weight, tuple(kinds), tuple(map(_read_cross, crosses)))

    def kind_of(self, name: str) -> str | None:
        """Return the kind that the user wants for a column, if any."""
        found = [kind for pattern, kind, _ in self.kinds if name in _matches(pattern, [name])]
        return found[-1] if found else None

    def refuse_unmatched(self, names: Sequence[str], place: str) -> None:
        """Raise `DataError` if options name columns that are not among `names`."""
        known, problems = set(names), Problems(place)
        for pattern, _, option in self.kinds:
            parts = [part.strip() for part in pattern.split(",")]
            for part in [pattern] if pattern in known else parts:
                if not (part in known or fnmatch.filter(names, part)):
                    problems.add(f"found {no_column(part, names, option)}")
        for name in (name for pair in self.crosses for name in pair):
            if name not in known:
                problems.add(f"found {no_column(name, names, 'cross')}")
        problems.check()


class Problems:
    """Collects the problems of a file, to report them together.

    Parameters
    ----------
    place : str
        Begin of messages.
    """

    def __init__(self, place: str) -> None:
        self._place, self._found = f"{place}: ", list[str]()

    def add(self, problem: str) -> None:
        """Note a problem, once."""
        problem = problem.removeprefix(self._place)
        self._found += [] if problem in self._found else [problem]

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note a `DataError`, and go on."""
        try:
            yield
        except DataError as error:
            self.add(str(error))

    def check(self) -> None:
        """Raise `DataError` with all problems, if there are some."""
        if self._found:
            more = len(self._found) - _MOST_PROBLEMS
            shown = "; ".join(self._found[:_MOST_PROBLEMS])
            raise DataError(f"{self._place}{shown}" + (f"; and {more} more" if more > 0 else ""))


def nameless(k: int) -> str:
    """Return the name of a column whose name is empty, as of an index, or behind a last comma."""
    return f"(column {k + 1})"


def base_kind(kind: str) -> str:
    """Return a kind without its argument: ``bins`` for ``bins:20``."""
    base, colon, argument = kind.partition(":")
    if not colon:
        return kind
    if base != "bins" or not argument.isdecimal() or not 2 <= int(argument) <= _MOST_BINS:
        raise SettingsError(
            f"kind {kind!r} is invalid; bins may have a number from 2 to {_MOST_BINS}, as in "
            "bins:20"
        )
    return base


def edges_of(numbers: npt.NDArray[np.float64], kind: str) -> tuple[float, ...]:
    """Return the edges between quantile bins of numbers, each once; nan is ignored."""
    n = int(kind.partition(":")[2] or _BINS)
    some = numbers[np.isfinite(numbers)]
    if not len(some):
        return ()
    edges = np.unique(np.quantile(some, np.arange(1, n) / n, method="inverted_cdf"))
    return tuple(edges[edges > some.min()].tolist())


def _read_cross(text: str) -> tuple[str, str]:
    first, colon, second = text.partition(":")
    if not (first and colon and second) or first == second:
        raise SettingsError(
            f"cross is {text!r}; expected two columns, as in --cross campaign:device (of Vowpal "
            "Wabbit's text: --quadratic ab)"
        )
    return first, second


def _pair(text: str) -> tuple[str, str]:
    name, equals, kind = text.rpartition("=")
    if not equals or not name:
        raise SettingsError(f"column is {text!r}; expected NAME=KIND, as in --column zip=category")
    return name, kind


def _matches(pattern: str, names: Sequence[str]) -> list[str]:
    """Return the names that a name, a list with commas or a pattern stands for."""
    if pattern in names:
        return [pattern]
    parts = [part.strip() for part in pattern.split(",")]
    return [n for n in names if any(n == part or fnmatch.fnmatchcase(n, part) for part in parts)]


def _read_toml(path: Path) -> list[tuple[str, str, str]]:
    """Return the kinds in a file that ``sbm columns -o`` writes."""
    import tomllib

    with reading(path), open(path, "rb") as file:
        try:
            content = tomllib.load(file)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise SettingsError(f"{path} is not valid TOML ({error})") from error
    kinds = content.get("columns", content)
    if not isinstance(kinds, dict) or not all(isinstance(kind, str) for kind in kinds.values()):
        raise SettingsError(f'{path} must have lines like "name" = "number" below [columns]')
    return [(name, str(kind), "columns") for name, kind in kinds.items()]


def to_toml(columns: Iterable[tuple[str, str, str]]) -> str:
    """Return names and kinds of columns as TOML, with what was seen as comments."""
    import json

    lines = ["[columns]"]
    for name, kind, seen in columns:
        comment = f"  # {' '.join(seen.split())}" if seen else ""
        lines.append(f'{json.dumps(name, ensure_ascii=False)} = "{kind}"{comment}')
    return "\n".join(lines) + "\n"


def from_record(record: Any) -> list[Column]:
    """Return the columns in the record of a store or a model.

    Raises
    ------
    ValueError
        The record is invalid.
    """
    if not isinstance(record, list):
        raise ValueError("columns are not a list")
    found = []
    for one in record:
        values = _DEFAULTS | (one if isinstance(one, dict) else {})
        texts = [values[key] for key in ("name", "kind", "content", "decimal", "pattern")]
        if (
            not all(isinstance(text, str) for text in texts)
            or values["kind"] not in KINDS
            or values["content"] not in CONTENTS
            or values["decimal"] not in (".", ",")
            or type(values["has_time"]) is not bool
            or type(values["size"]) is not int
            or not 0 <= values["size"] <= _LARGEST_VECTOR
            or not _are_edges(values["edges"])
        ):
            raise ValueError(f"column {str(one)[:80]} is invalid")
        values = {name: values[name] for name in _STORED}
        found.append(Column(**(values | {"edges": tuple(values["edges"])})))
    names = [column.name for column in found]
    if len(set(names)) < len(names):
        raise ValueError("two columns have the same name")
    return found


def _are_edges(edges: Any) -> bool:
    """Whether this is a list of ascending numbers."""
    if not isinstance(edges, list) or len(edges) >= _MOST_BINS:
        return False
    if not all(type(edge) is float and math.isfinite(edge) for edge in edges):
        return False
    return all(a < b for a, b in itertools.pairwise(edges))


def find_roles(
    names: Sequence[str], asked: Asked, place: str, needs_label: bool, known: Iterable[str] = ()
) -> tuple[str | None, str | None]:
    """Return the names of the columns of labels and of weights.

    Parameters
    ----------
    names : sequence of str
        All columns.
    place : str
        For messages.
    needs_label : bool
        Whether every row needs a label.
    known : iterable of str
        Columns that are features in earlier data, and so not labels.

    Raises
    ------
    DataError
        A column is missing or ambiguous, or a name occurs twice.
    """
    if len(set(names)) < len(names):
        twice = next(name for k, name in enumerate(names) if name in names[:k])
        raise DataError(f"{place}: found column {shorten(twice)} twice; names must be unique")
    if "" in names:
        raise DataError(
            f"{place}: found a column without a name; add one (with pandas, write "
            "to_csv(index=False))"
        )
    features, problems = set(known), Problems(place)
    given = _LABELS if asked.label is None else (asked.label,)
    found = [name for name in given if name in names and name not in features]
    if len(found) > 1 or (not found and needs_label):
        if found:
            what = f"columns {' and '.join(map(repr, found))}; choose one with --label"
        elif asked.label is not None:
            what = no_column(asked.label, names, "label")
        else:
            what = f"no column {' or '.join(map(repr, given))} among {listed(names)}; choose "
            what += "the label column with --label"
            if place.endswith(":1") and any(map(looks_like_a_value, names)):
                what += ". If the first line has no names, use --no-header"
        problems.add(f"found {what}")
    label = found[0] if found else None
    weight = asked.weight if asked.weight in names else None
    if asked.weight is not None and weight is None and needs_label:
        problems.add(f"found {no_column(asked.weight, names, 'weight')}")
    problems.check()
    if label is not None and label == weight:
        raise DataError(
            f"{place}: column {label} is both the label and the weight; choose another with "
            "--label or --weight"
        )
    return label, weight


def looks_like_a_value(name: str) -> bool:
    """Whether a name is a number with a fraction, hardly the name of a column."""
    number = name.lstrip("+-")
    return "." in number and number.replace(".", "", 1).isdigit()


def refuse_ambiguous(columns: Sequence[Column], place: str) -> None:
    """Raise `DataError` if words of one column may have the names of another column."""
    names = {column.name for column in columns if column.is_read}
    for name in names:
        for k, letter in enumerate(name):
            if letter == "=" and name[:k] in names:
                raise DataError(
                    f"{place}: found columns {shorten(name[:k])} and {shorten(name)}; a word of "
                    "the first could have the name of the second. Rename or exclude one"
                )


def no_column(name: str, names: Sequence[str], option: str) -> str:
    """Return the words for a column that an option names and a table does not have."""
    near = nearest(name, names) if len(names) <= _MOST_COMPARED else ""
    return f"no column {shorten(name)!r} for --{option}{near or f' among {listed(names)}'}"


def listed(names: Sequence[str]) -> str:
    """Return names of columns in quotes; of many, the first and the last ones."""
    shown = [repr(shorten(name)) for name in names]
    if len(shown) > 2 * _SHOWN:
        shown = [*shown[:_SHOWN], "...", *shown[-_SHOWN:]]
        return f"{len(names):,} columns: {', '.join(shown)}"
    return ", ".join(shown)


def different_columns(known: Sequence[str], names: Sequence[str]) -> str:
    """Return in words how the columns of a table differ from the known ones; empty if not."""
    here, there = set(names), set(known)
    differ = {
        "missing": [name for name in known if name not in here],
        "unknown": [name for name in names if name not in there],
    }
    return "; ".join(f"{what} {listed(some)}" for what, some in differ.items() if some)


def with_kind(column: Column, kind: str, names_option: str) -> Column:
    """Return a column with the kind that the user wants.

    Raises
    ------
    DataError
        The cells cannot be read as this kind.
    """
    is_list = column.content in ("lists", "vectors")
    fits = {
        "words": column.content in ("lists", "words", "numbers", ""), "ids": is_list,
        "vector": column.content == "vectors",
        **dict.fromkeys((*_OF_NUMBERS, "flag", "category", "date"), not is_list),
    }.get(base_kind(kind), True)  # fmt: skip
    if not fits:
        raise DataError(
            f"column {shorten(column.name)} cannot be read as {kind} ({column.seen}); leave out "
            f"--{names_option} {shorten(column.name)}"
        )
    return replace(column, kind=base_kind(kind), seen=f"{column.seen}; chosen: {kind}")
