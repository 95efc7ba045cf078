"""The columns of the tables of one reading: those of the first, of a store, or of a model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sbm.errors import DataError, SettingsError
from sbm.inputs.columns.cells import numbers_of, simplified
from sbm.inputs.columns.convert import Converter
from sbm.inputs.columns.infer import infer
from sbm.inputs.columns.kinds import (
    KINDS,
    Asked,
    Column,
    Dialect,
    Problems,
    base_kind,
    different_columns,
    edges_of,
    find_roles,
    from_record,
    nameless,
    no_column,
    refuse_ambiguous,
    with_kind,
)
from sbm.inputs.columns.words import WordTable
from sbm.names import Names
from sbm.units import list_some, padding, shorten, width_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

_NAMELESS = re.compile(re.escape(nameless(0)).replace("1", r"\d+"))
_NAMED = 5  # columns named in a warning


class Columns:
    """Columns and features of the tables of one reading.

    Parameters
    ----------
    asked : Asked
    dialect : Dialect

    Attributes
    ----------
    columns : list of Column
        Empty before the first table, if no store or model has any.
    label, weight : str or None
        Names of columns.
    grows : bool
        Whether new words become features.
    whose : str
        What the columns are from, for messages; empty for the first table.
    strict : bool
        Refuse tables with other columns.
    notes : list of str
        Warnings about tables.
    is_shown : bool
        Whether the columns have been printed.
    """

    def __init__(self, asked: Asked, dialect: Dialect, strict: bool = False) -> None:
        self.asked, self.dialect, self.strict = asked, dialect, strict
        self.columns: list[Column] = []
        self.crosses = [*asked.crosses]
        self.label, self.weight = asked.label, asked.weight
        self._words: WordTable | None = None
        self.grows, self.whose = True, ""
        self.notes: list[str] = []
        self.is_shown = False
        self._converter: Converter | None = None
        self._n_known = 0  # names of the store or model
        self._checked: set[str] = set()

    @property
    def words(self) -> WordTable:
        """Names and ids of features."""
        if self._words is None:
            self._words = WordTable()
        return self._words

    # ------------------------------------------------------------------------------- the record

    def record(self) -> dict[str, Any]:
        """Return what is stored, ready for JSON."""
        known = {} if self._converter is None else self._converter.seen
        columns = [
            replace(c, kind="category")
            if c.kind == "empty" and c.name in known and known[c.name].words
            else c
            for c in self.columns
        ]
        record: dict[str, Any] = {
            "label": self.label, "weight": self.weight, "dialect": self.dialect.record(),
            "columns": [column.record() for column in columns],
            "crosses": [[*pair] for pair in self.crosses] or None,
        }  # fmt: skip
        return {key: value for key, value in record.items() if value not in (None, {})}

    def follow(
        self, record: Mapping[str, Any], whose: str, names: Names | None,
        ids: npt.NDArray[np.int64] | None, grows: bool,
    ) -> None:  # fmt: skip
        """Take the columns of a store or a model.

        Raises
        ------
        SettingsError
            The record is invalid, or options contradict it.
        """
        label, weight = record.get("label"), record.get("weight")
        given, crosses = record.get("dialect", {}), record.get("crosses", [])
        try:
            self.columns = from_record(record.get("columns"))
            if not all(name is None or isinstance(name, str) for name in (label, weight)):
                raise ValueError("names of columns are not text")
            before = Dialect(**given)
            known = {column.name for column in self.columns}
            if not isinstance(crosses, list) or not all(
                isinstance(pair, list) and len(pair) == 2 and known.issuperset(pair)
                for pair in crosses
            ):
                raise ValueError("crosses are not pairs of columns")
        except (ValueError, TypeError, SettingsError) as error:
            raise SettingsError(
                f"the columns in {whose} are invalid ({error}); split the data again"
            ) from error
        self.label = self.asked.label or label
        if self.asked.weight not in (None, weight):
            raise SettingsError(
                f"weight is {self.asked.weight}, but {whose} was split "
                f"{'without --weight' if weight is None else f'with --weight {weight}'}; omit it"
            )
        self.weight = weight
        self.crosses = [(first, second) for first, second in crosses]
        if self.asked.crosses and [*self.asked.crosses] != self.crosses:
            raise SettingsError(
                f"cross differs from the crosses of {whose}; omit it, or split the data again"
            )
        kinds = {column.name: column.kind for column in self.columns}
        for name, kind in kinds.items():
            wanted = self.asked.kind_of(name)
            if (
                wanted is not None
                and base_kind(wanted) != kind
                and kind != "empty"
                and (wanted != "ignored")
            ):
                raise SettingsError(
                    f"column {name} is to be read as {wanted}, but {whose} has it as {kind}; omit "
                    "that option, or split the data again"
                )
        if self.dialect == Dialect():
            self.dialect = before
        self.whose, self.grows = whose, grows
        self._words = WordTable(names, ids)
        self._n_known = len(self._words)

    # ------------------------------------------------------------------------------- the header

    def fit(
        self, names: Sequence[str], head: Callable[[], Mapping[str, pa.Array]], place: str,
        needs_label: bool,
    ) -> None:  # fmt: skip
        """Compare a table with the columns, or infer them.

        Parameters
        ----------
        names : sequence of str
            Columns of the table.
        head : callable
            Returns the first cells of each column.
        place : str
            For messages.
        needs_label : bool
            Whether every row needs a label.

        Raises
        ------
        DataError
            A column is missing, or cannot be read as asked.
        """
        roles = self._find_roles(names, place, needs_label)
        if not self.columns:
            self.columns = self._infer_all(head(), roles, place, needs_label)
        elif self.grows and any(c.kind == "empty" and c.name in names for c in self.columns):
            cells = head()
            self.columns = [
                self._infer(c.name, cells[c.name], place)
                if c.kind == "empty" and c.name in cells
                else c
                for c in self.columns
            ]
        if place not in self._checked:
            self._compare([name for name in names if name not in roles], place, needs_label)
            self._checked.add(place)

    def _infer_all(
        self, head: Mapping[str, pa.Array], roles: set[str | None], place: str, needs_label: bool
    ) -> list[Column]:
        """Return the columns of the first table. Raises `DataError` with all their problems."""
        columns, problems = [], Problems(place)
        for name, cells in head.items():
            if name not in roles:
                with problems.noted():
                    columns.append(self._infer(name, cells, place))
        for check in (refuse_ambiguous, self._refuse_crosses):
            with problems.noted():
                check(columns, place)
        problems.check()
        self._refuse_only_text(columns, place, needs_label)
        return columns

    def _refuse_crosses(self, columns: Sequence[Column], place: str) -> None:
        """Raise `DataError` if a column that is crossed has no features, or lists of them."""
        by_name = {column.name: column for column in columns}
        for name in (name for pair in self.crosses for name in pair):
            column = by_name.get(name)
            kind = "no feature" if column is None else column.kind
            if kind in ("words", "ids", "vector", "id", "text", "ignored", "no feature"):
                is_list = column is not None and column.content in ("lists", "vectors")
                what = (
                    "cross another column" if is_list else "--column {}=category makes words of it"
                )
                raise DataError(
                    f"{place}: column {shorten(name)} cannot be crossed, as it is {kind}; "
                    f"{what.format(shorten(name))}"
                )

    def names_only(self) -> Columns:
        """Return columns for `check_names` of several tables."""
        found = Columns(self.asked, self.dialect, self.strict)
        found.columns, found.label, found.weight = self.columns, self.label, self.weight
        found.whose, found.grows = self.whose, self.grows
        return found

    def check_names(self, names: Sequence[str], place: str, needs_label: bool) -> None:
        """Compare the names of columns alone, as `fit` does, which may take longer.

        Raises `DataError` if a column is missing.
        """
        roles = self._find_roles(names, place, needs_label)
        if not self.columns:
            kinds = {name: self.asked.kind_of(name) or "number" for name in names}
            self.columns = [Column(n, kinds[n]) for n in names if n not in roles]
        self._compare([name for name in names if name not in roles], place, needs_label)

    def _find_roles(self, names: Sequence[str], place: str, needs_label: bool) -> set[str | None]:
        """Find the columns of labels and weights, and return them."""
        features = [column.name for column in self.columns if column.is_read]
        asked = Asked(self.label, self.weight, self.asked.kinds)
        label = weight = None
        problems = Problems(place)
        with problems.noted():
            label, weight = find_roles(names, asked, place, needs_label, features)
        if not self.columns:
            with problems.noted():
                self.asked.refuse_unmatched(names, place)
            if self.asked.label is not None and self.asked.label not in names:
                problems.add(f"found {no_column(self.asked.label, names, 'label')}")
        problems.check()
        self.label = label if self.label is None else self.label
        return {label, weight, self.label}

    def _infer(self, name: str, cells: pa.Array, place: str) -> Column:
        column = infer(name, cells, self.dialect.decimal)
        wanted = self.asked.kind_of(name)
        if wanted is None and _NAMELESS.fullmatch(name):
            return replace(column, kind="ignored", seen=f"no name; {column.seen}")
        if wanted is None or wanted == column.kind:
            return column
        try:
            found = with_kind(column, wanted, "column")
            if found.kind == "bins":
                numbers, _ = numbers_of(simplified(cells), column.decimal)
                found = replace(found, edges=edges_of(numbers, wanted))
            return found
        except DataError as error:
            raise DataError(f"{place}: {error}") from error

    def _refuse_only_text(self, columns: Sequence[Column], place: str, needs_label: bool) -> None:
        """Raise `DataError` if no column becomes features."""
        texts = [column.name for column in columns if column.kind == "text"]
        if needs_label and texts and not any(column.is_read for column in columns):
            raise DataError(
                f"{place}: column {shorten(texts[0])}, the only feature, holds texts. Raw text is "
                "not read; turn it into features first (see Raw text in docs/inputs.md)"
            )

    def _compare(self, names: Sequence[str], place: str, needs_label: bool) -> None:
        """Note or refuse columns that are missing or unknown."""
        every = {column.name for column in self.columns}
        needed = [column.name for column in self.columns if column.is_read]
        here = [name for name in names if name not in every or name in needed]
        differ = different_columns(needed, here)
        if not differ:
            return
        whose = self.whose or "the first table"
        if self.strict:
            raise DataError(
                f"{place}: columns differ from those of {whose}: {differ}; correct the file, or "
                "leave out --strict"
            )
        missing = [name for name in needed if name not in names]
        if missing and needs_label and not self.whose:
            raise DataError(
                f"{place}: found no column {missing[0]}, which earlier data have; add it, or "
                f"leave it out of all files with --exclude {missing[0]}"
            )
        self.notes.append(f"columns differ from those of {whose}: {differ}")

    # --------------------------------------------------------------------------------- the rows

    @property
    def converter(self) -> Converter:
        """What converts rows; made when the columns are known."""
        read = [column for column in self.columns if column.is_read]
        if self._converter is None or self._converter.columns != read:
            before = None if self._converter is None else self._converter.seen
            self._converter = Converter(read, self.words, self.grows, self._n_known, self.crosses)
            if before is not None:
                self._converter.seen |= before
        return self._converter

    def restart(self) -> None:
        """Forget what was seen in rows, before they are read again."""
        self._converter = None

    def warnings(self) -> list[str]:
        """Return what a user should know about the rows that were read.

        Raises
        ------
        DataError
            With `strict`, if all words of a known column are unknown, or all its numbers are words.
        """
        seen = {} if self._converter is None else self._converter.seen
        mixed = [
            f"{name} ({one.mixed:,}, such as {one.example!r})"
            for name, one in seen.items()
            if one.mixed
        ]
        found = []
        if mixed:
            found.append(
                f"cells that do not fit the kind of their column are read as missing: "
                f"{list_some(mixed, _NAMED)}; --column NAME=KIND sets the kind"
            )
        strange = [
            name
            for name, one in seen.items()
            if self.whose
            and ((one.words > 0 and one.unknown == one.words) or (0 < one.cells == one.mixed))
        ]
        if strange:
            what = (
                f"no cell of column {list_some(strange, _NAMED)} has a word or number that "
                f"{self.whose} knows"
            )
            if self.strict:
                raise DataError(f"{what}; correct the file, or leave out --strict")
            found.append(what)
        return found

    def unknown_words(self) -> dict[str, int]:
        """Return by column the number of cells with a word that is not known."""
        seen = {} if self._converter is None else self._converter.seen
        return {name: one.unknown for name, one in seen.items() if one.unknown}

    def lines(self) -> Iterable[str]:
        """Yield a line for each column, with what was seen."""
        roles = [(self.label, "label"), (self.weight, "weight")]
        rows = [(name, kind, KINDS[kind]) for name, kind in roles if name is not None]
        rows += [(c.name, c.kind, c.seen) for c in self.columns]
        width = min(30, max((width_of(name) for name, *_ in rows), default=0))
        return (
            f"{name}{padding(name, width)}  {kind:<8}  {seen}"
            for name, kind, seen in ((shorten(name), *rest) for name, *rest in rows)
        )
