"""Columns of a table as features: which are read, and how their cells become rows."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError
from sbm.inputs.matrices import Batch
from sbm.inputs.parsing import (
    FIRST_ROUNDED,
    MOST_HASH_BITS,
    ROUNDED_LABEL,
    TOO_LARGE,
    InputOptions,
    is_rounded,
)
from sbm.inputs.vw import hash_names
from sbm.plain import dataclass
from sbm.settings import nearest
from sbm.units import shorten

_LABELS = ("label", "y", "target")  # default names of the label column
_FRACTION = re.compile(r"[+-]?\d*\.\d+")  # a value, hardly the name of a column
NO_LABEL = ("", "?")  # label cells of rows without a label
NOT_FINITE = re.compile(r"\s*[+-]?(nan|inf|infinity)\s*", re.ASCII | re.IGNORECASE)

# A column is raw text if it has at least this many cells, most of them are distinct, and a distinct
# one has more words than this on average.
_FEWEST_TEXTS, _DISTINCT_SHARE, _WORDS_OF_TEXT = 10, 0.9, 4
_SHOWN = 6  # names listed from either end of many
_MOST_COMPARED = 20_000  # names to search for the nearest; more would take seconds
_MOST_PROBLEMS = 20  # most cells of a batch that are described
_NONE = np.empty(0, np.int64)
_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Cells:
    """The cells of a column in some rows."""

    # shape (n_rows,); nan for cells that are not numbers; None if no cell is a number
    numbers: _Floats | None
    text: Callable[[int], str]  # ``text(row)`` returns a cell for messages
    words: list[bytes] = field(default_factory=list)  # distinct cells that are words, in UTF-8
    # shape (n_rows,); index of each row's word; -1 for none. Without words it may be empty.
    codes: _Ints = field(default_factory=_NONE.copy)

    def __post_init__(self) -> None:
        """Raise `DataError` if a code lies outside its dictionary."""
        if self.codes.min(initial=-1) < -1 or self.codes.max(initial=-1) >= len(self.words):
            raise DataError(f"found a code outside the {len(self.words)} words of a column")


@dataclass(frozen=True)
class Columns:
    """The columns of a table."""

    names: list[str]
    # label, weight: positions of the columns of labels and of row weights; -1 for none
    label: int
    weight: int
    ignored: frozenset[int]  # columns that are not read
    text: frozenset[int]  # columns in which every cell is a word
    ids: _Ints  # shape (n_columns,)
    options: InputOptions
    place: str  # place of the header for messages
    is_begun: list[bool] = field(default_factory=list)  # not empty after the first rows

    @classmethod
    def find(cls, names: list[str], options: InputOptions, place: str) -> "Columns":
        """Find the columns named in the options, without ids, which take a kernel.

        Parameters
        ----------
        names : list of str
            The header.
        options : InputOptions
            `label` (default: the column named label, y or target), `weight`, `exclude`,
            `categorical` and `hash_bits`. If rows may lack labels, so may the table lack columns.
        place : str
            Place of the header for messages.

        Raises
        ------
        DataError
            A column is missing (also one of the tables before), or a name occurs twice; with
            `strict`, columns differ from those of the tables before.
        """
        twice = [name for name, n in Counter(names).items() if n > 1]
        if twice:
            raise DataError(
                f"{place}: found column {shorten(twice[0])} twice; names must be unique"
            )
        if "" in names:
            raise DataError(
                f"{place}: found a column without a name; add one (with pandas, write "
                "to_csv(index=False))"
            )
        given = _LABELS if options.label is None else (options.label,)
        found = [name for name in given if name in names and name not in options.columns]
        if len(found) > 1 or (not found and options.labels is True):
            if found:
                what = f"columns {' and '.join(map(repr, found))}; choose one with --label"
            elif options.label is not None:
                what = no_column(options.label, names, "--label")
            else:
                what = f"no column {' or '.join(map(repr, given))} among {listed(names)}; choose "
                what += "the label column with --label"
                if place.endswith(":1") and any(map(_FRACTION.fullmatch, names)):
                    what += ". The first line must have the names of the columns"
            raise DataError(f"{place}: found {what}")
        wanted = {
            "--categorical": options.categorical or (),
            "--exclude": options.exclude,
            "--weight": () if options.weight is None else (options.weight,),
        }
        for option, columns in wanted.items():
            missing = [name for name in columns if name not in names]
            is_known = bool(options.columns) and option != "--weight"
            if missing and options.labels is True and not is_known:
                raise DataError(f"{place}: found {no_column(missing[0], names, option)}")
        places = {name: k for k, name in enumerate(names)}
        label = places[found[0]] if found else -1
        weight = -1 if options.weight is None else places.get(options.weight, -1)
        if label >= 0 and label == weight:
            raise DataError(
                f"{place}: column {names[label]} is both the label and the weight; choose another "
                "with --label or --weight"
            )
        ignored = {places[name] for name in options.exclude if name in places} - {label, weight}
        if options.labels is False:
            ignored, label = ignored | {label}, -1
        text = {places[name] for name in options.categorical or () if name in places}
        chosen = cls(
            names, label, weight, frozenset(ignored), frozenset(text), _NONE, options, place
        )
        chosen._refuse_different()
        chosen._refuse_missing()
        return chosen

    @classmethod
    def of(cls, names: list[str], options: InputOptions, place: str) -> "Columns":
        """Find the columns and their ids; see `find`.

        Raises
        ------
        DataError
            Also if two names have the same id.
        """
        chosen = cls.find(names, options, place)
        assert options.hash_bits is not None
        ids = hash_names([as_bytes(name) for name in names], options.hash_bits)
        chosen = replace(chosen, ids=ids)
        chosen._refuse_collisions()
        return chosen

    def _features(self) -> list[int]:
        others = {self.label, self.weight, *self.ignored}
        return [k for k in range(len(self.names)) if k not in others]

    @property
    def features(self) -> list[str]:
        """Names of the columns that are features."""
        return [self.names[k] for k in self._features()]

    def _refuse_different(self) -> None:
        """With `strict`, raise `DataError` if the features are not those of the tables before."""
        options = self.options
        known = options.usual or options.columns or tuple(options.kinds)
        if options.strict and known and (differ := different_columns(known, self.features)):
            raise DataError(
                f"{self.place}: columns differ from those of {options.whose}: {differ}; correct "
                "the file, or leave out --strict"
            )

    def _refuse_missing(self) -> None:
        """Raise `DataError` if a feature of the tables before has no column."""
        missing = [name for name in self.options.kinds if name not in self.names]
        if missing and self.options.labels is True:
            raise DataError(
                f"{self.place}: found no column {missing[0]}, which earlier data have; add it, or "
                f"leave it out of all files with --exclude {missing[0]}"
            )
        for name in self.features:
            self.options.kinds.setdefault(name, None)

    def _refuse_collisions(self) -> None:
        """Raise `DataError` if two columns have the same id."""
        chosen = self._features()
        names, ids = self.features, self.ids[chosen]
        found, first, count = np.unique(ids, return_index=True, return_counts=True)
        if len(found) == len(ids):
            return
        one, other = np.flatnonzero(ids == ids[first[count > 1][0]])[:2].tolist()
        raw = [as_bytes(name) for name in names]
        more = range((self.options.hash_bits or 0) + 1, MOST_HASH_BITS + 1)
        bits = next((b for b in more if len(np.unique(hash_names(raw, b))) == len(raw)), None)
        raise DataError(
            f"{self.place}: columns {shorten(names[one])} and {shorten(names[other])} have the "
            f"same id with --hash-bits {self.options.hash_bits}; "
            + ("rename one" if bits is None else f"use --hash-bits {bits}")
        )

    def batch(
        self,
        n: int,
        cells: Iterable[tuple[int, Cells]],
        refused: dict[int, str],
        limit: float,
        place: Callable[[int], str] | None = None,
        size: int = 0,
    ) -> Batch:
        """Return rows made of the cells of the columns that are read.

        Parameters
        ----------
        n : int
            Number of rows.
        cells : iterable of (int, Cells)
            Positions of columns, ascending, and their cells.
        refused : dict of int to str
            Messages about invalid rows; more are added.
        limit : float
            Largest magnitude of a value.
        place, size
            As in `Batch`.
        """
        rows, ids, values = [_NONE], [_NONE], [np.empty(0)]
        numeric: list[tuple[int, Cells, _Floats]] = []
        named: list[tuple[_Ints, list[bytes]]] = []
        labels, weights = np.full(n, np.nan), None
        for k, column in cells:
            if k == self.label:
                labels = self._labels(column, refused)
                continue
            if k == self.weight:
                weights = numbers = np.full(n, np.nan) if column.numbers is None else column.numbers
                for row in np.flatnonzero(~((numbers >= 0) & (numbers < np.inf))).tolist():
                    refused.setdefault(
                        row,
                        f"found {shorten(column.text(row))!r} as the weight, where a number of at "
                        "least 0 is expected",
                    )
                continue
            if column.numbers is not None:
                numeric.append((k, column, column.numbers))
            if not column.words:
                continue
            with_word = np.flatnonzero(column.codes >= 0)
            self._refuse_texts(k, column.words, len(with_word))
            begin = as_bytes(self.names[k]) + b"="
            words = [begin + word for word in column.words]
            word_ids = hash_names(words, self.options.hash_bits or 0)
            named.append((word_ids, words))
            rows.append(with_word)
            ids.append(word_ids[column.codes[with_word]])
            values.append(np.ones(len(with_word)))
        if numeric:
            where = np.array([k for k, _, _ in numeric])
            table: _Floats = np.column_stack([numbers for _, _, numbers in numeric])
            for row, j in np.argwhere(np.abs(table) > limit)[:_MOST_PROBLEMS].tolist():
                k, column, _ = numeric[j]
                cell = column.text(row)
                reason = "but only finite numbers are allowed"
                reason = reason if NOT_FINITE.fullmatch(cell) else TOO_LARGE
                refused.setdefault(row, f"found {cell.strip()} in column {self.names[k]}, {reason}")
            here, columns = np.nonzero((table != 0) & ~np.isnan(table) & (np.abs(table) <= limit))
            rows.append(here)
            ids.append(self.ids[where[columns]])
            values.append(table[here, columns])
            used = where[np.unique(columns)]
            named.append((self.ids[used], [as_bytes(self.names[k]) for k in used.tolist()]))
        row_of = np.concatenate(rows)
        order = np.argsort(row_of, kind="stable")
        names = None
        if named and self.options.names is not None:
            names = (np.concatenate([i for i, _ in named]), [w for _, some in named for w in some])
        return Batch(
            labels,
            np.concatenate([[0], np.cumsum(np.bincount(row_of, minlength=n))]),
            np.concatenate(ids)[order], np.concatenate(values)[order], refused, size, place,
            names, weights,
        )  # fmt: skip

    def _refuse_texts(self, k: int, words: list[bytes], n: int) -> None:
        """Raise `DataError` if the only feature is raw text, judged by the first rows.

        Parameters
        ----------
        k : int
            Position of the column.
        words : list of bytes
            Distinct cells.
        n : int
            Number of cells that are words.
        """
        if self.is_begun or self.options.labels is not True or self._features() != [k]:
            return
        self.is_begun.append(True)
        n_words = sum(len(word.split()) for word in words)
        is_distinct = n >= _FEWEST_TEXTS and len(words) > _DISTINCT_SHARE * n
        if is_distinct and n_words > _WORDS_OF_TEXT * len(words):
            raise DataError(
                f"{self.place}: column {self.names[k]}, the only feature, holds texts. Raw text is "
                "not read; turn it into features first (see Raw text in docs/inputs.md)"
            )

    def _labels(self, column: Cells, refused: dict[int, str]) -> _Floats:
        """Return labels as numbers, and refuse the rows with an invalid label."""
        words = self.options.words
        labels = np.full(len(column.codes), np.nan) if column.numbers is None else column.numbers
        are_numbers = bool(words.are_words) and column.numbers is not None and not column.codes.size
        if are_numbers:  # which are refused, or missing
            labels = np.full(len(labels), np.nan)
        elif words.are_words:
            table = [" ".join(word.decode("utf-8", "replace").split()) for word in column.words]
            numbers = np.append(
                [np.nan if word in NO_LABEL else words.number(word) for word in table], np.nan
            )
            labels = numbers[column.codes]
        elif not self.options.targets:
            for row in np.flatnonzero(np.abs(labels) >= FIRST_ROUNDED).tolist():
                if is_rounded(column.text(row), labels[row]):
                    shown = repr(column.text(row))
                    refused.setdefault(row, ROUNDED_LABEL.format(token=shown))
        allowed = () if self.options.labels else NO_LABEL
        for row in np.flatnonzero(~np.isfinite(labels)).tolist():
            cell = column.text(row)
            if cell.strip() in allowed:
                continue
            shown = cell if len(cell) <= 40 else cell[:37] + "..."
            expected = "where a label is expected"
            if are_numbers:
                expected = f"as the label, but {words.whose} are words; {words.advice}"
            if not words.are_words:
                expected = "where a numeric label is expected"
                if NOT_FINITE.fullmatch(cell) or np.isinf(labels[row]):
                    expected = "as the label, but only finite numbers are allowed"
                elif cell.strip() not in NO_LABEL:
                    expected += f", as {words.whose} are numbers; {words.advice}"
            refused.setdefault(row, f"found {shown!r} {expected}")
        return labels


def no_column(name: str, names: Sequence[str], option: str) -> str:
    """Return the words for a column that an option names and a table does not have."""
    near = nearest(name, names) if len(names) <= _MOST_COMPARED else ""
    parts = [part.strip() for part in name.split(",")]
    if len(parts) > 1 and option in ("--categorical", "--exclude") and {*parts} <= {*names}:
        near = f"; give {listed(parts)} separately, not with commas"
    return f"no column {shorten(name)!r} for {option}{near or f' among {listed(names)}'}"


def listed(names: Sequence[str]) -> str:
    """Return names of columns in quotes; of many, the first and the last ones."""
    shown = [repr(shorten(name)) for name in names]
    if len(shown) > 2 * _SHOWN:
        shown = [*shown[:_SHOWN], "...", *shown[-_SHOWN:]]
        return f"{len(names):,} columns: {', '.join(shown)}"
    return ", ".join(shown)


def different_columns(known: Sequence[str], names: Sequence[str]) -> str:
    """Return in words how the columns of a table differ from the known ones; empty if not."""
    differ = {
        "missing": [name for name in known if name not in names],
        "unknown": [name for name in names if name not in known],
    }
    return "; ".join(f"{what} {listed(some)}" for what, some in differ.items() if some)


def as_bytes(word: str) -> bytes:
    """Return a word in UTF-8; bytes of the input that are not UTF-8 are kept."""
    return word.encode("utf-8", "surrogateescape")
