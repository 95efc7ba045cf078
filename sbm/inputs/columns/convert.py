"""Conversion of record batches to rows of features, column by column."""

from __future__ import annotations

import itertools
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
_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
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
    slot: int  # row of the table of codes; -1 for words of lists
    codes: Ints  # shape (n,); position in `found` of each cell, -1 for none
    found: Codes  # shape (n_words,); code of each word
    prefix: bytes
    text: npt.NDArray[np.uint8]
    offsets: Ints  # shape (n_words + 1,)
    rows: Ints = field(default_factory=_NONE.copy)  # of the cells, for words of lists


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
    """

    def __init__(
        self, columns: Sequence[Column], words: WordTable, grows: bool, n_known: int = 0
    ) -> None:
        self.columns, self._words, self._grows = list(columns), words, grows
        self.seen = {column.name: Seen() for column in columns}
        self._n_known = n_known
        self._slots: list[int] = []
        n = 0
        for column in columns:
            self._slots.append(n)
            n += _n_slots(column)
        self.n_slots = n
        lists = ("category", "empty", "words", "ids")
        words.columns = frozenset(_encoded(c.name) for c in columns if c.kind in lists)
        names = [name for column in columns for name in _fixed_names(column)]
        offsets = np.cumsum([0, *map(len, names)], dtype=np.int64)
        text = np.frombuffer(b"".join(names), np.uint8)
        codes = words.insert(text, offsets) if grows else words.find(b"", text, offsets)
        counts = np.cumsum([0, *(len(_fixed_names(column)) for column in columns)])
        self._fixed = [codes[a:b] for a, b in itertools.pairwise(counts.tolist())]

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
        codes = np.full((self.n_slots, n), -1, np.int32)
        values = np.ones((self.n_slots, n))
        found: list[_Words] = []
        for k, column in enumerate(self.columns):
            if column.name in cells and n:
                slots = slice(self._slots[k], self._slots[k] + _n_slots(column))
                read = simplified(cells[column.name])
                found += self._read(k, column, read, codes[slots], values[slots], limit, refused)
                self.seen[column.name].cells += n
        self._find(found, n)
        unknown = len(self._words)
        lists: list[tuple[Ints, Codes]] = []
        for some in found:
            table = np.where(some.found < 0, unknown, some.found).astype(np.int32)
            if some.slot >= 0:
                chosen = some.codes >= 0
                codes[some.slot][chosen] = table[some.codes[chosen]]
            else:
                lists.append((some.rows, table[some.codes]))
        ids = np.append(self._words.ids[:unknown], self._words.free_id)
        indptr = np.empty(n + 1, np.int64)
        out_ids, out_values = np.empty(codes.size, np.int64), np.empty(codes.size)
        nnz = kernels.assemble(codes, values, ids, indptr, out_ids, out_values)
        out_ids, out_values = out_ids[:nnz], out_values[:nnz]
        return _merged(indptr, out_ids, out_values, [(rows, ids[c]) for rows, c in lists])

    # ---------------------------------------------------------------------------------- columns

    def _read(
        self, k: int, column: Column, cells: pa.Array, codes: Codes, values: Floats, limit: float,
        refused: dict[int, str],
    ) -> list[_Words]:  # fmt: skip
        """Fill in the slots of a column, and return words that still have no codes."""
        kind, prefix = column.kind, _encoded(column.name) + b"="
        slot, seen = self._slots[k], self.seen[column.name]
        if kind in ("category", "empty"):
            local, words = words_of(cells, column.content)
            if kind == "empty" and cells.null_count == len(cells):
                return []
            return [self._words_in(k, slot, local, prefix, words)]
        if kind in ("words", "ids"):
            return [self._words_in_lists(k, cells, prefix)]
        if kind == "vector":
            self._vectors(column, cells, codes, values, self._fixed[k], limit, refused)
            is_null = cells.is_null().to_numpy(zero_copy_only=False)
            return self._missing(k, slot, is_null, prefix)
        if kind == "date":
            return self._dates(k, column, cells, codes, values, prefix)
        read = flags_of(cells) if kind == "flag" else numbers_of(cells, column.decimal)
        numbers, is_mixed = read
        self._note_mixed(seen, cells, is_mixed)
        is_large = np.abs(numbers) > limit
        if is_large.any():
            for row in np.flatnonzero(is_large)[:_MOST_PROBLEMS].tolist():
                text = shown(cells, row).strip()
                is_inf = text.lstrip("+-").lower() in ("inf", "infinity")
                why = "but only finite numbers are allowed" if is_inf else TOO_LARGE
                refused.setdefault(row, f"found {text} in column {shorten(column.name)}, {why}")
            numbers = np.where(is_large, 0.0, numbers)
        is_nan = np.isnan(numbers)
        codes[0] = np.where(is_nan | (numbers == 0), -1, self._code(k, 0))
        values[0] = np.where(is_nan, 1.0, numbers)
        return self._missing(k, slot, is_nan, prefix)

    def _code(self, k: int, name: int) -> int:
        """Return the code of a fixed name of a column."""
        code = int(self._fixed[k][name])
        return len(self._words) if code < 0 else code

    def _note_mixed(self, seen: Seen, cells: pa.Array, is_mixed: Any) -> None:
        if is_mixed is None:
            return
        if not seen.mixed:
            seen.example = shorten(shown(cells, int(np.argmax(is_mixed))), 30)
        seen.mixed += int(np.count_nonzero(is_mixed))

    def _missing(
        self, k: int, slot: int, is_missing: npt.NDArray[np.bool_], prefix: bytes
    ) -> list[_Words]:
        """Return the word of the missing cells of a column that has other features."""
        if not is_missing.any():
            return []
        local = np.where(is_missing, 0, -1)
        return [self._named(k, slot, local, prefix, [MISSING.encode()])]

    def _named(
        self, k: int, slot: int, local: Ints, prefix: bytes, words: Sequence[bytes]
    ) -> _Words:
        text = np.frombuffer(b"".join(words), np.uint8)
        offsets = np.cumsum([0, *map(len, words)], dtype=np.int64)
        return _Words(
            k, slot, local, self._words.find(prefix, text, offsets), prefix, text, offsets
        )

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
        self, column: Column, cells: pa.Array, codes: Codes, values: Floats, fixed: Codes,
        limit: float, refused: dict[int, str],
    ) -> None:  # fmt: skip
        import pyarrow.compute as pc

        valid = cells.is_valid().to_numpy(zero_copy_only=False)
        if not valid.any():
            return
        lengths = pc.fill_null(pc.list_value_length(cells), 0).to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(valid & (lengths != column.size))[:_MOST_PROBLEMS].tolist():
            refused.setdefault(
                row,
                f"found {lengths[row]} numbers in column {shorten(column.name)}, where "
                f"{column.size} are expected",
            )
        fits = valid & (lengths == column.size)
        import pyarrow as pa

        flat, _ = numbers_of(simplified(cells.filter(pa.array(fits)).flatten()))
        table = flat.reshape(-1, column.size).T
        is_large = np.abs(table) > limit
        for row in np.flatnonzero(fits)[is_large.any(axis=0)][:_MOST_PROBLEMS].tolist():
            refused.setdefault(
                row,
                f"found a number in column {shorten(column.name)} that is not finite, or "
                f"{TOO_LARGE}",
            )
        used = ~(np.isnan(table) | (table == 0) | is_large)
        unknown = len(self._words)
        names = np.where(fixed < 0, unknown, fixed).astype(np.int32)[:, np.newaxis]
        codes[1:, fits] = np.where(used, names, -1)
        values[1:, fits] = np.where(used, table, 1.0)

    def _dates(
        self, k: int, column: Column, cells: pa.Array, codes: Codes, values: Floats, prefix: bytes
    ) -> list[_Words]:
        times = times_of(cells, column.pattern)
        valid = is_time(times)
        seen, slot = self.seen[column.name], self._slots[k]
        if not valid.all():
            is_mixed = ~valid & ~null_dates(cells)
            self._note_mixed(seen, cells, is_mixed if is_mixed.any() else None)
        codes[0] = np.where(valid, self._code(k, 0), -1)
        values[0] = np.where(valid, years_of(times), 1.0)
        days = np.where(valid, times // _DAY, 0)
        month = days.astype("M8[D]").astype("M8[M]").astype(np.int64) % 12
        base = prefix[:-1]
        parts: list[tuple[Ints, bytes, list[bytes]]] = [
            (month, base + b".month=", [b"%d" % (m + 1) for m in range(12)]),
            ((days + 3) % 7, base + b".weekday=", [day.encode() for day in _DAYS]),
        ]
        if column.has_time:
            hour = np.where(valid, times // _HOUR, 0) % 24
            parts.append((hour, base + b".hour=", [b"%d" % h for h in range(24)]))
        return self._missing(k, slot, ~valid, prefix) + [
            self._named(k, slot + j, np.where(valid, local, -1), begin, names)
            for j, (local, begin, names) in enumerate(parts, 1)
        ]

    # ------------------------------------------------------------------------------------ words

    def _find(self, found: list[_Words], n: int) -> None:
        """Give codes to new words in the order of rows and columns; count unknown ones."""
        new: list[tuple[Ints, int, Ints, _Words]] = []
        for some in found:
            seen = self.seen[self.columns[some.column].name]
            some_codes = some.codes[some.codes >= 0] if some.slot >= 0 else some.codes
            seen.words += len(some_codes)
            is_unknown = (some.found < 0) | (some.found >= self._n_known)
            if not is_unknown.any():
                continue
            seen.unknown += int(np.count_nonzero(is_unknown[some_codes]))
            if not self._grows:
                rare = self._words.code_of(some.prefix + RARE.encode())
                some.found = np.where(some.found < 0, rare, some.found).astype(np.int32)
                continue
            is_new = some.found < 0
            if not is_new.any():
                continue
            rows = np.flatnonzero(some.codes >= 0) if some.slot >= 0 else some.rows
            count = n if some.slot >= 0 else len(some.codes)
            first = np.full(len(some.found), count, np.int64)
            order = np.arange(len(some_codes) - 1, -1, -1)
            first[some_codes[order]] = order  # the first one is written last
            words = np.flatnonzero(is_new & (first < count))
            new.append((rows[first[words]], some.column, words, some))
            new[-1] = (rows[first[words]] * (len(self.columns) + 1) + some.column, *new[-1][1:])
        if not new:
            return
        names = [
            some.prefix + some.text[some.offsets[w] : some.offsets[w + 1]].tobytes()
            for _, _, words, some in new
            for w in words.tolist()
        ]
        keys = np.concatenate([key for key, *_ in new])
        order = np.argsort(keys, kind="stable")
        codes = np.empty(len(names), np.int32)
        codes[order] = self._words.add([names[k] for k in order.tolist()])
        begin = 0
        for _, _, words, some in new:
            some.found[words] = codes[begin : begin + len(words)]
            begin += len(words)


def _encoded(name: str) -> bytes:
    """Return a name in UTF-8; bytes of the input that are not UTF-8 are kept."""
    return name.encode("utf-8", "surrogateescape")


def _n_slots(column: Column) -> int:
    """Return how many features a row may have of a column, besides those of lists."""
    if column.kind == "date":
        return 3 + column.has_time
    if column.kind == "vector":
        return 1 + column.size
    return 0 if column.kind in ("words", "ids") else 1


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
