"""Conversion of record batches to rows of features, column by column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError
from sbm.inputs.columns.cells import (
    Floats,
    Ints,
    flags_of,
    is_string,
    is_time,
    null_dates,
    numbers_of,
    shown,
    simplified,
    text_of,
    times_of,
    words_of,
    years_of,
)
from sbm.inputs.columns.kinds import MISSING, RARE, Column
from sbm.inputs.columns.words import WordTable, kernels
from sbm.inputs.parsing import TOO_LARGE
from sbm.plain import dataclass
from sbm.units import shorten

if TYPE_CHECKING:
    import pyarrow as pa

Codes = npt.NDArray[np.int32]
_OF_WORDS = ("category", "empty", "words", "ids")  # kinds
_WEEK = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_HOUR, _DAY = 3_600_000_000, 86_400_000_000  # microseconds
_SEPARATORS = r"[\s,;|]+"  # between the words of a cell
_MOST_PROBLEMS = 20  # most cells of a batch that are described
_NONE = np.empty(0, np.int64)


@dataclass
class Seen:
    """What was seen in a column while rows were read."""

    cells: int = 0
    mixed: int = 0  # cells of another kind, read as missing
    example: str = ""  # the first of them
    words: int = 0  # cells that are words
    unknown: int = 0  # those that the store or the model does not know


@dataclass
class _Words:
    """Words of a column whose codes are to be found."""

    column: int
    # row of the table of codes; or of the table of numbers, if the word is that of missing numbers;
    # -1 for words of lists
    slot: int
    codes: Ints  # shape (n,); position in `found` of each cell, -1 for none
    found: Codes  # shape (n_words,); code of each word
    prefix: bytes
    text: npt.NDArray[np.uint8]
    offsets: Ints  # shape (n_words + 1,)
    rows: Ints = field(default_factory=_NONE.copy)  # of the cells, for words of lists
    is_missing: bool = False  # whether it is the word of missing numbers


class Converter:
    """Converts batches of a table to rows.

    Parameters
    ----------
    columns : sequence of Column
        Those that become features.
    words : WordTable
        Receives new names, in the order of rows and columns, whatever the batches.
    grows : bool
        Add new names. Otherwise unknown words become ``column=(rare)``, if there is such a name.
    n_known : int
        Number of names of the store or model.

    Attributes
    ----------
    seen : dict of str to Seen
        By column.
    n_slots : int
        Most features of a row, besides those of lists.
    """

    def __init__(
        self, columns: Sequence[Column], words: WordTable, grows: bool, n_known: int = 0
    ) -> None:
        self.columns, self._words, self._grows = list(columns), words, grows
        self.seen = {column.name: Seen() for column in columns}
        self._n_known = n_known
        sizes = np.array([_n_slots(column) for column in columns], np.int64).reshape(-1, 2)
        self._slots = np.cumsum(np.vstack([[0, 0], sizes]), axis=0).tolist()  # begin of each column
        self.n_slots = int(sizes.sum())
        words.columns = frozenset(_encoded(c.name) for c in columns if c.kind in _OF_WORDS)
        names = [name for column in columns for name in _fixed_names(column)]
        offsets = np.cumsum([0, *map(len, names)], dtype=np.int64)
        text = np.frombuffer(b"".join(names), np.uint8)
        self._number_codes = (
            words.insert(text, offsets) if grows else words.find(b"", text, offsets)
        )
        if not grows:
            self._number_codes[self._number_codes < 0] = len(words)
        self._missing_codes = np.full(len(names), -1, np.int32)

    def convert(
        self, cells: Mapping[str, pa.Array], n: int, limit: float, refused: dict[int, str]
    ) -> tuple[Ints, Ints, Floats]:
        """Convert the rows of a batch.

        Parameters
        ----------
        cells : mapping of str to pyarrow.Array
            Cells by column; a column may be missing, and then has no features.
        n : int
            Number of rows.
        limit : float
            Largest magnitude of a value.
        refused : dict of int to str
            Receives messages about invalid rows.

        Returns
        -------
        indptr : ndarray, shape (n + 1,), int64
        ids : ndarray, shape (nnz,), int64
            Ascending in each row, unless there are lists of words.
        values : ndarray, shape (nnz,), float64
        """
        n_numbers, n_words = self._slots[-1]
        numbers, codes = np.empty((n_numbers, n)), np.empty((n_words, n), np.int32)
        found: list[_Words] = []
        for k, column in enumerate(self.columns):
            (a, b), (c, d) = zip(self._slots[k], self._slots[k + 1], strict=True)
            if column.name in cells and n:
                read = simplified(cells[column.name])
                found += self._read(k, column, read, numbers[a:b], codes[c:d], refused)
                self.seen[column.name].cells += n
            else:
                numbers[a:b], codes[c:d] = 0.0, -1
        self._find(found, n)
        unknown = len(self._words)
        lists: list[tuple[Ints, Codes]] = []
        for some in found:
            table = np.where(some.found < 0, unknown, some.found).astype(np.int32)
            if some.is_missing:
                self._missing_codes[some.slot] = table[0]
            elif some.slot >= 0:
                np.take(np.append(table, np.int32(-1)), some.codes, out=codes[some.slot])
            else:
                lists.append((some.rows, table[some.codes]))
        ids = np.append(self._words.ids[:unknown], self._words.free_id)
        indptr, size = np.empty(n + 1, np.int64), numbers.size + codes.size
        out_ids, out_values = np.empty(size, np.int64), np.empty(size)
        nnz, n_large = kernels.assemble(
            numbers, self._number_codes, self._missing_codes, codes, limit, ids, indptr, out_ids,
            out_values,
        )  # fmt: skip
        if n_large:
            self._refuse_large(cells, numbers, limit, refused)
        out_ids, out_values = out_ids[:nnz], out_values[:nnz]
        return _merged(indptr, out_ids, out_values, [(rows, ids[c]) for rows, c in lists])

    def _refuse_large(
        self, cells: Mapping[str, pa.Array], numbers: Floats, limit: float, refused: dict[int, str]
    ) -> None:
        """Describe the first numbers beyond the limit."""
        for k, column in enumerate(self.columns):
            part = np.abs(numbers[self._slots[k][0] : self._slots[k + 1][0]]) > limit
            rows = np.flatnonzero(part.any(axis=0)) if len(part) else _NONE
            for row in rows[:_MOST_PROBLEMS].tolist():
                text = "a number"
                if column.kind != "vector":
                    text = shown(cells[column.name], row).strip()
                is_inf = text.lstrip("+-").lower() in ("inf", "infinity")
                why = "but only finite numbers are allowed" if is_inf else TOO_LARGE
                refused.setdefault(row, f"found {text} in column {shorten(column.name)}, {why}")

    # ---------------------------------------------------------------------------------- columns

    def _read(
        self, k: int, column: Column, cells: pa.Array, numbers: Floats, codes: Codes,
        refused: dict[int, str],
    ) -> list[_Words]:  # fmt: skip
        """Fill in the numbers of a column, and return its words, which need codes."""
        kind, prefix = column.kind, _encoded(column.name) + b"="
        first, slot = self._slots[k]
        seen = self.seen[column.name]
        if kind in ("category", "empty"):
            local, words = words_of(cells, column.content)
            if kind == "empty" and cells.null_count == len(cells):
                codes[:] = -1
                return []
            return [self._words_in(k, slot, local, prefix, words)]
        if kind in ("words", "ids"):
            return [self._words_in_lists(k, cells, prefix)]
        if kind == "vector":
            self._vectors(column, cells, numbers, refused)
            local = np.where(cells.is_null().to_numpy(zero_copy_only=False), 0, -1)
            return [self._named(k, slot, local, prefix, [MISSING.encode()])]
        if kind == "date":
            return self._dates(k, column, cells, numbers[0], prefix)
        numbers[0], is_mixed = (
            flags_of(cells) if kind == "flag" else numbers_of(cells, column.decimal)
        )
        self._note_mixed(seen, cells, is_mixed)
        return self._missing(k, first, numbers[0], prefix)

    def _note_mixed(self, seen: Seen, cells: pa.Array, is_mixed: Any) -> None:
        if is_mixed is None:
            return
        if not seen.mixed:
            seen.example = shorten(shown(cells, int(np.argmax(is_mixed))), 30)
        seen.mixed += int(np.count_nonzero(is_mixed))

    def _missing(self, k: int, slot: int, numbers: Floats, prefix: bytes) -> list[_Words]:
        """Return the word of the missing cells of a column of numbers, if it is not known yet."""
        if self._missing_codes[slot] >= 0:
            return []
        is_nan = np.isnan(numbers)
        if not is_nan.any():
            return []
        found = self._named(k, slot, np.where(is_nan, 0, -1), prefix, [MISSING.encode()])
        found.is_missing = True
        return [found]

    def _named(
        self, k: int, slot: int, local: Ints, prefix: bytes, words: Sequence[bytes]
    ) -> _Words:
        text = np.frombuffer(b"".join(words), np.uint8)
        offsets = np.cumsum([0, *map(len, words)], dtype=np.int64)
        found = self._words.find(prefix, text, offsets)
        return _Words(k, slot, local, found, prefix, text, offsets)

    def _words_in(self, k: int, slot: int, local: Ints, prefix: bytes, words: pa.Array) -> _Words:
        text, offsets = text_of(words)
        found = self._words.find(prefix, text, offsets)
        if local.min(initial=0) < -1 or local.max(initial=-1) >= len(found):
            name = self.columns[k].name
            raise DataError(f"column {name}: found a code outside its {len(found)} words")
        return _Words(k, slot, local, found, prefix, text, offsets)

    def _words_in_lists(self, k: int, cells: pa.Array, prefix: bytes) -> _Words:
        import pyarrow as pa
        import pyarrow.compute as pc

        if is_string(cells.type):
            if pa.types.is_dictionary(cells.type):
                cells = cells.dictionary_decode()
            cells = pc.split_pattern_regex(pc.ascii_trim_whitespace(cells), _SEPARATORS)
        elif pa.types.is_null(cells.type) or not hasattr(cells, "flatten"):
            return self._named(k, -1, _NONE, prefix, [])
        lengths = pc.fill_null(pc.list_value_length(cells), 0).to_numpy(zero_copy_only=False)
        rows = np.repeat(np.arange(len(cells)), lengths)
        local, words = words_of(simplified(cells.flatten()), "words")
        text, offsets = text_of(words)
        skipped = pc.equal(words, MISSING).to_numpy(zero_copy_only=False)
        kept = ~np.append(skipped, True)[local]
        found = self._words.find(prefix, text, offsets)
        return _Words(k, -1, local[kept], found, prefix, text, offsets, rows[kept])

    def _vectors(
        self, column: Column, cells: pa.Array, numbers: Floats, refused: dict[int, str]
    ) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        numbers[:] = 0.0
        valid = cells.is_valid().to_numpy(zero_copy_only=False)
        if not valid.any() or pa.types.is_null(cells.type):
            return
        lengths = pc.fill_null(pc.list_value_length(cells), 0).to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(valid & (lengths != column.size))[:_MOST_PROBLEMS].tolist():
            refused.setdefault(
                row,
                f"found {lengths[row]} numbers in column {shorten(column.name)}, where "
                f"{column.size} are expected",
            )
        fits = valid & (lengths == column.size)
        flat, _ = numbers_of(simplified(cells.filter(pa.array(fits)).flatten()))
        numbers[:, fits] = np.nan_to_num(
            flat.reshape(-1, column.size).T, posinf=np.inf, neginf=-np.inf
        )

    def _dates(
        self, k: int, column: Column, cells: pa.Array, numbers: Floats, prefix: bytes
    ) -> list[_Words]:
        times = times_of(cells, column.pattern)
        valid = is_time(times)
        seen, (first, slot) = self.seen[column.name], self._slots[k]
        if not valid.all():
            is_mixed = ~valid & ~null_dates(cells)
            self._note_mixed(seen, cells, is_mixed if is_mixed.any() else None)
        numbers[:] = years_of(times)
        days = np.where(valid, times // _DAY, 0)
        month = days.astype("M8[D]").astype("M8[M]").astype(np.int64) % 12
        base = prefix[:-1]
        parts: list[tuple[Ints, bytes, list[bytes]]] = [
            (month, base + b".month=", [b"%d" % (m + 1) for m in range(12)]),
            ((days + 3) % 7, base + b".weekday=", [day.encode() for day in _WEEK]),
        ]
        if column.has_time:
            hour = np.where(valid, times // _HOUR, 0) % 24
            parts.append((hour, base + b".hour=", [b"%d" % h for h in range(24)]))
        return self._missing(k, first, numbers, prefix) + [
            self._named(k, slot + j, np.where(valid, local, -1), begin, names)
            for j, (local, begin, names) in enumerate(parts)
        ]

    # ------------------------------------------------------------------------------------ words

    def _find(self, found: list[_Words], n: int) -> None:
        """Give codes to new words in the order of rows and columns; count unknown ones."""
        new: list[tuple[Ints, Ints, _Words]] = []
        for some in found:
            column = self.columns[some.column]
            used = some.codes[some.codes >= 0] if some.slot >= 0 else some.codes
            is_unknown = (some.found < 0) | (some.found >= self._n_known)
            if column.kind in _OF_WORDS:
                self.seen[column.name].words += len(used)
                if is_unknown.any():
                    n_unknown = int(np.count_nonzero(is_unknown[used]))
                    self.seen[column.name].unknown += n_unknown
            is_new = some.found < 0
            if not is_new.any():
                continue
            if not self._grows:
                rare = self._words.code_of(some.prefix + RARE.encode())
                some.found = np.where(is_new, rare, some.found).astype(np.int32)
                continue
            rows = np.flatnonzero(some.codes >= 0) if some.slot >= 0 else some.rows
            first = np.full(len(some.found), len(used), np.int64)
            order = np.arange(len(used) - 1, -1, -1)
            first[used[order]] = order  # the first one is written last
            words = np.flatnonzero(is_new & (first < len(used)))
            new.append((rows[first[words]] * (len(self.columns) + 1) + some.column, words, some))
        if not new:
            return
        names = [
            some.prefix + some.text[some.offsets[w] : some.offsets[w + 1]].tobytes()
            for _, words, some in new
            for w in words.tolist()
        ]
        order = np.argsort(np.concatenate([key for key, *_ in new]), kind="stable")
        codes = np.empty(len(names), np.int32)
        codes[order] = self._words.add([names[k] for k in order.tolist()])
        begin = 0
        for _, words, some in new:
            some.found[words] = codes[begin : begin + len(words)]
            begin += len(words)


def _encoded(name: str) -> bytes:
    """Return a name in UTF-8; bytes of the input that are not UTF-8 are kept."""
    return name.encode("utf-8", "surrogateescape")


def _n_slots(column: Column) -> tuple[int, int]:
    """Return how many numbers and words a row may have in a column, besides those of lists."""
    if column.kind == "date":
        return 1, 2 + column.has_time
    if column.kind == "vector":
        return column.size, 1
    if column.kind in ("words", "ids"):
        return 0, 0
    return (1, 0) if column.kind in ("number", "flag") else (0, 1)


def _fixed_names(column: Column) -> list[bytes]:
    """Return the names of features that do not depend on the cells."""
    name = _encoded(column.name)
    if column.kind in ("number", "flag", "date"):
        return [name]
    if column.kind == "vector":
        return [name + b"[%d]" % k for k in range(column.size)]
    return []


def _merged(
    indptr: Ints, ids: Ints, values: Floats, lists: Sequence[tuple[Ints, Ints]]
) -> tuple[Ints, Ints, Floats]:
    """Return rows with the words of lists added."""
    if not lists:
        return indptr, ids, values
    n = len(indptr) - 1
    rows = np.concatenate([np.repeat(np.arange(n), np.diff(indptr)), *(r for r, _ in lists)])
    order = np.argsort(rows, kind="stable")
    every = np.concatenate([ids, *(some for _, some in lists)])
    ones = np.ones(len(every) - len(ids))
    ends = np.cumsum(np.bincount(rows, minlength=n))
    return np.append(0, ends), every[order], np.concatenate([values, ones])[order]
