"""Conversion of record batches to rows of features, column by column."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError
from sbm.inputs.columns.arrays import array_of, integers_of, string, valid_of, values_of
from sbm.inputs.columns.cells import (
    Cells,
    Floats,
    Ints,
    Text,
    as_arrow,
    coded,
    flags_of,
    is_string,
    is_time,
    null_dates,
    numbers_of,
    shown,
    simplified,
    take,
    times_of,
    words_of,
)
from sbm.inputs.columns.cells import kernels as reading
from sbm.inputs.columns.crosses import Cross, Features, Slots
from sbm.inputs.columns.kinds import MISSING, RARE, Column
from sbm.inputs.columns.words import WordTable, kernels, padded
from sbm.inputs.parsing import EXACT_FLOAT32, TOO_LARGE, show_change
from sbm.plain import dataclass
from sbm.store.container import Buffers
from sbm.units import format_number, shorten

if TYPE_CHECKING:
    import pyarrow as pa

Codes = npt.NDArray[np.int32]
# Kinds.
_OF_WORDS = ("category", "empty", "words", "ids")
_OF_NUMBERS = ("number", "log1p", "bins", "flag", "date")
_WEEK = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_SEPARATORS = r"[\s,;|]+"  # between the words of a cell
_BUFFER = 1 << 22  # bytes of the numbers or the codes of a batch, in an array that is used again
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


@dataclass(frozen=True)
class Ready:
    """Cells of a column that have been read as numbers, or as times."""

    cells: Cells
    numbers: Any  # shape (n,), float64; or int64 for times
    is_mixed: Any  # shape (n,), bool; None if there are none


@dataclass(frozen=True)
class Converted:
    """Rows of features."""

    indptr: Ints  # shape (n + 1,)
    ids: Ints  # shape (nnz,); ascending in each row, unless there are lists of words
    values: npt.NDArray[np.floating]  # shape (nnz,)
    # row and message of the first whole number that the type of the values changes
    changed: tuple[int, str] = (0, "")


@dataclass
class _New:
    """Words of a column whose codes are not known yet."""

    column: int
    rows: Ints  # shape (n,); where each appears
    prefix: bytes
    words: Text  # n words
    # target, places: ``target[places]`` receives their codes
    target: Codes
    places: Ints


@dataclass
class _Coded:
    """Cells of a column that are words of a dictionary."""

    codes: Codes  # shape (n_words,); code of each word
    local: Ints  # shape (n,); word of each cell, -1 for none
    out: Codes | None  # shape (n,); receives their codes; None for words of lists
    rows: Ints  # of the cells, for words of lists


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
    crosses : sequence of (str, str)
        Columns whose features are multiplied.

    Attributes
    ----------
    seen : dict of str to Seen
        By column.
    n_slots : int
        Most features of a row, besides those of lists.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        words: WordTable,
        grows: bool,
        n_known: int = 0,
        crosses: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.columns, self._words, self._grows = list(columns), words, grows
        self.seen = {column.name: Seen() for column in columns}
        self._n_known = n_known
        sizes = np.array([_n_slots(column) for column in columns], np.int64).reshape(-1, 2)
        self._slots = np.cumsum(np.vstack([[0, 0], sizes]), axis=0).tolist()  # begin of each column
        place = {column.name: k for k, column in enumerate(columns)}
        self._crosses = [
            Cross(f"{a}*{b}", self._slots_of(place[a]), self._slots_of(place[b]), words, grows)
            for a, b in crosses
            if a in place and b in place
        ]
        self._n_crossed = sum(cross.n_slots for cross in self._crosses)
        self.n_slots = int(sizes.sum()) + self._n_crossed
        words.columns = frozenset(_encoded(c.name) for c in columns if c.kind in _OF_WORDS)
        names = [name for column in columns for name in _fixed_names(column)]
        self._number_codes = self._codes_of(names)
        self._missing_codes = np.full(len(names), -1, np.int32)
        self._buffers = Buffers(_BUFFER)

    def _slots_of(self, k: int) -> Slots:
        """Return the numbers and the words of a column."""
        (a, c), (b, d) = self._slots[k], self._slots[k + 1]
        return range(a, b), range(c, d)

    def _codes_of(self, names: Sequence[bytes]) -> Codes:
        """Return the codes of names, new ones if they may be added, else of an unknown one."""
        if self._grows:
            return self._words.add(names)
        codes = [self._words.code_of(name) for name in names]
        return np.array([c if c >= 0 else len(self._words) for c in codes], np.int32)

    def prepare(self, cells: Mapping[str, Cells]) -> dict[str, Cells | Ready]:
        """Read numbers, flags and dates, which may be done in another thread than `convert`."""
        ready: dict[str, Cells | Ready] = dict(cells)
        for column in self.columns:
            if column.kind not in _OF_NUMBERS or column.name not in cells:
                continue
            some = simplified(cells[column.name])
            if column.kind == "date":
                times = times_of(some, column.pattern)
                ready[column.name] = Ready(some, times, _mixed_dates(some, times))
            else:
                is_flag = column.kind == "flag"
                found, mixed = flags_of(some) if is_flag else numbers_of(some, column.decimal)
                if column.kind == "log1p":
                    found = np.copysign(np.log1p(np.abs(found)), found)
                ready[column.name] = Ready(some, found, mixed)
        return ready

    def convert(
        self,
        cells: Mapping[str, Cells | Ready],
        n: int,
        limit: float,
        dtype: str,
        is_exact: bool,
        refused: dict[int, str],
    ) -> Converted:
        """Convert the rows of a batch.

        Parameters
        ----------
        cells : mapping of str to pyarrow.Array, Text or Ready
            From `prepare`; a column may be missing, and then has no features.
        n : int
            Number of rows.
        limit : float
            Largest magnitude of a value.
        dtype : {"float32", "float64"}
            Type of the values.
        is_exact : bool
            Whether they are not stored as float32.
        refused : dict of int to str
            Receives messages about invalid rows.
        """
        n_numbers, n_words = self._slots[-1]
        numbers = self._buffers.take(n_numbers * n, np.float64).reshape(n_numbers, n)
        every = n_words + self._n_crossed
        codes = self._buffers.take(every * n, np.int32).reshape(every, n)
        self._new: list[_New] = []
        self._coded: list[_Coded] = []
        self._spread: list[tuple[Codes, Ints, Codes]] = []
        for k, column in enumerate(self.columns):
            (a, b), (c, d) = zip(self._slots[k], self._slots[k + 1], strict=True)
            if column.name in cells and n:
                self._read(k, column, cells[column.name], numbers[a:b], codes[c:d], refused)
                self.seen[column.name].cells += n
            else:
                numbers[a:b], codes[c:d] = 0.0, -1
        n_before = len(self._words)
        keys = self._complete()
        for some in self._coded:
            codes_of = np.append(some.codes, np.int32(-1))
            if some.out is not None:
                np.take(codes_of, some.local, out=some.out, mode="wrap")
        for out, rows, some_codes in self._spread:
            out[rows] = some_codes
        crossed = np.empty((self._n_crossed, n))
        if self._crosses and n:
            self._cross(numbers, codes, crossed, n_before, keys)
        unknown = len(self._words)
        ids = np.append(self._words.ids[:unknown], self._words.free_id)
        indptr, size = np.empty(n + 1, np.int64), numbers.size + codes.size
        out_ids, out_values = np.empty(size, np.int64), np.empty(size, dtype)
        exact = np.inf if is_exact else EXACT_FLOAT32
        nnz, n_large, changed = kernels.assemble(
            numbers, self._number_codes, self._missing_codes, codes, crossed, limit, exact, ids,
            indptr, out_ids, out_values,
        )  # fmt: skip
        self._buffers.give_back(codes)
        if n_large:
            self._refuse_large(cells, numbers, limit, refused)
        found = Converted(indptr, out_ids[:nnz], out_values[:nnz])
        if changed >= 0:
            row, k = divmod(changed, n_numbers)
            name = self._words.name(int(self._number_codes[k])).decode("utf-8", "replace")
            found = replace(found, changed=(row, show_change(name, float(numbers[k, row]))))
        self._buffers.give_back(numbers)
        return _merged(
            found, [(c.rows, ids[c.codes[c.local]]) for c in self._coded if c.out is None]
        )

    def _refuse_large(
        self,
        cells: Mapping[str, Cells | Ready],
        numbers: Floats,
        limit: float,
        refused: dict[int, str],
    ) -> None:
        """Describe the first numbers beyond the limit."""
        for k, column in enumerate(self.columns):
            part = np.abs(numbers[self._slots[k][0] : self._slots[k + 1][0]]) > limit
            rows = np.flatnonzero(part.any(axis=0)) if len(part) else _NONE
            for row in rows[:_MOST_PROBLEMS].tolist():
                text = "a number"
                if column.kind != "vector":
                    some = cells[column.name]
                    text = shown(some.cells if isinstance(some, Ready) else some, row).strip()
                is_inf = text.lstrip("+-").lower() in ("inf", "infinity")
                why = "but only finite numbers are allowed" if is_inf else TOO_LARGE
                refused.setdefault(row, f"found {text} in column {shorten(column.name)}, {why}")

    # ---------------------------------------------------------------------------------- columns

    def _read(
        self,
        k: int,
        column: Column,
        cells: Cells | Ready,
        numbers: Floats,
        codes: Codes,
        refused: dict[int, str],
    ) -> None:
        """Fill in the numbers and the codes of a column, as far as they are known."""
        kind, prefix = column.kind, _encoded(column.name) + b"="
        if isinstance(cells, Ready):
            self._note_mixed(self.seen[column.name], cells.cells, cells.is_mixed)
            if kind == "date":
                self._read_dates(k, cells.numbers, numbers[0], codes, prefix)
            elif kind == "bins":
                local = np.searchsorted(column.edges, cells.numbers, side="right")
                local[np.isnan(cells.numbers)] = len(column.edges) + 1
                self._add_words(k, prefix, _bins(column), local, codes[0])
            else:
                numbers[0] = cells.numbers
                self._note_missing(k, numbers[0], prefix)
            return
        cells = simplified(cells)
        if kind in ("category", "empty"):
            if kind == "empty" and cells.null_count == len(cells):
                codes[:] = -1
            else:
                self._read_words(k, column, cells, prefix, codes[0])
        elif kind in ("words", "ids"):
            self._read_lists(k, as_arrow(cells), prefix)
        else:
            self._read_vectors(column, as_arrow(cells), numbers, refused)
            is_null = ~valid_of(as_arrow(cells))
            self._add_words(k, prefix, _MISSING_WORD, np.where(is_null, 0, -1), codes[0])

    def _note_mixed(self, seen: Seen, cells: Cells, is_mixed: Any) -> None:
        if is_mixed is None:
            return
        if not seen.mixed:
            seen.example = shorten(shown(cells, int(np.argmax(is_mixed))), 30)
        seen.mixed += int(np.count_nonzero(is_mixed))

    def _note_missing(self, k: int, numbers: Floats, prefix: bytes) -> None:
        """Find the code of missing numbers of a column, if there are some for the first time."""
        slot = self._slots[k][0]
        if self._missing_codes[slot] >= 0 or not (is_nan := np.isnan(numbers)).any():
            return
        code = self._words.code_of(prefix + MISSING.encode())
        self._missing_codes[slot] = code
        if code < 0:
            first = np.array([np.argmax(is_nan)])
            new = _New(k, first, prefix, _MISSING_WORD, self._missing_codes, np.array([slot]))
            self._new.append(new)

    def _read_words(self, k: int, column: Column, cells: Cells, prefix: bytes, out: Codes) -> None:
        """Write the codes of a column of words."""
        is_text = isinstance(cells, Text)
        if not is_text and is_string(cells.type):
            if _is_coded(cells):
                local, some = coded(cells)
                if column.content in ("", "words") or some.are_digits():
                    self._add_words(k, prefix, some, local, out)
                    return
            else:
                cells, is_text = Text.of(cells), True
        if not is_text or column.content == "flags":
            local, words = words_of(cells, column.content)
            self._add_words(k, prefix, Text.of(words), local, out)
            return
        unknown, other = self._words.find(prefix, cells, column.content == "numbers", out)
        self._count(column, out, len(other))
        self._new.append(_New(k, unknown, prefix, cells.take(unknown), out, unknown))
        if len(other):  # numbers with several spellings
            local, words = words_of(cells.take(other), column.content)
            codes = np.empty(len(other), np.int32)
            self._add_words(k, prefix, Text.of(words), local, codes, other)
            self._spread.append((out, other, codes))

    def _add_words(
        self,
        k: int,
        prefix: bytes,
        words: Text,
        local: Ints,
        out: Codes | None,
        rows: Ints | None = None,
    ) -> None:
        """Note cells that are words of a dictionary.

        Parameters
        ----------
        local : ndarray, shape (n,)
            Word of each cell, -1 for none.
        out : ndarray, shape (n,), int32
            Receives the codes; None for words of lists.
        rows : ndarray, shape (n,), int64
            Row of each cell. Default: 0 to n.
        """
        column = self.columns[k]
        if local.min(initial=0) < -1 or local.max(initial=-1) >= len(words):
            raise DataError(f"column {column.name}: found a code outside its {len(words)} words")
        codes = np.empty(len(words), np.int32)
        unknown, _ = self._words.find(prefix, words, False, codes)
        rows = np.arange(len(local)) if rows is None else rows
        self._coded.append(_Coded(codes, local, out, rows))
        if column.kind in _OF_WORDS:
            self._count(column, codes[local[local >= 0]])
        if not len(unknown):
            return
        first = np.full(len(words) + 1, len(local))
        first[local[::-1]] = np.arange(len(local) - 1, -1, -1)  # the first one is written last
        used = unknown[first[unknown] < len(local)]
        new = _New(k, rows[first[used]], prefix, words.take(used), codes, used)
        self._new.append(new)

    def _count(self, column: Column, codes: Codes, others: int = 0) -> None:
        """Count the words of a column, and those that are unknown."""
        seen = self.seen[column.name]
        seen.words += len(codes) - others
        seen.unknown += int(np.count_nonzero((codes < 0) | (codes >= self._n_known))) - others

    def _read_lists(self, k: int, cells: pa.Array, prefix: bytes) -> None:
        """Note the words of a column of lists."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if is_string(cells.type):
            if pa.types.is_dictionary(cells.type):
                cells = cells.dictionary_decode()
            cells = pc.split_pattern_regex(pc.ascii_trim_whitespace(cells), _SEPARATORS)
        elif pa.types.is_null(cells.type) or not hasattr(cells, "flatten"):
            return
        lengths = integers_of(pc.list_value_length(cells))
        rows = np.repeat(np.arange(len(cells)), lengths)
        local, words = words_of(simplified(cells.flatten()), "words")
        skipped = values_of(pc.equal(words, string(MISSING, words.type)))
        kept = ~np.append(skipped, True)[local]
        self._add_words(k, prefix, Text.of(words), local[kept], None, rows[kept])

    def _read_vectors(
        self, column: Column, cells: pa.Array, numbers: Floats, refused: dict[int, str]
    ) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        numbers[:] = 0.0
        valid = valid_of(cells)
        if not valid.any() or pa.types.is_null(cells.type):
            return
        lengths = integers_of(pc.list_value_length(cells))
        for row in np.flatnonzero(valid & (lengths != column.size))[:_MOST_PROBLEMS].tolist():
            refused.setdefault(
                row,
                f"found {lengths[row]} numbers in column {shorten(column.name)}, where "
                f"{column.size} are expected",
            )
        fits = valid & (lengths == column.size)
        flat, _ = numbers_of(simplified(cells.filter(array_of(fits)).flatten()))
        numbers[:, fits] = np.nan_to_num(
            flat.reshape(-1, column.size).T, posinf=np.inf, neginf=-np.inf
        )

    def _read_dates(
        self, k: int, times: Ints, numbers: Floats, codes: Codes, prefix: bytes
    ) -> None:
        parts = np.empty((3, len(times)), np.int64)
        reading.split_dates(times, numbers, parts)
        self._note_missing(k, numbers, prefix)
        base = prefix[:-1]
        for out, local, (what, words) in zip(codes, parts, _PARTS, strict=False):
            self._add_words(k, base + what, words, local, out)

    # ------------------------------------------------------------------------------------ words

    def _cross(
        self, numbers: Floats, codes: Codes, values: Floats, n_before: int, keys: Ints
    ) -> None:
        """Fill in the codes and values of crosses, and order the ids of new names by row."""
        width, slot = len(self.columns) + 1 + len(self._crosses), self._slots[-1][1]
        of = Features(numbers, self._number_codes, self._missing_codes, codes)
        done, every = 0, [keys]
        for k, cross in enumerate(self._crosses):
            place = slice(done, done + cross.n_slots)
            some = codes[slot + done : slot + done + cross.n_slots]
            rows = cross.fill(of, some, values[place])
            every.append(rows * width + len(self.columns) + 1 + k)
            done += cross.n_slots
        first = np.concatenate(every)
        if len(first):
            self._words.reorder(n_before, np.argsort(first, kind="stable"))

    def _complete(self) -> Ints:
        """Give codes to new words in the order of rows and columns.

        Return for each new name, in the order of codes, a key that orders names by first row.
        """
        new = [some for some in self._new if len(some.rows)]
        if not new:
            return _NONE
        if not self._grows:
            for some in new:
                rare = self._words.code_of(some.prefix + RARE.encode())
                some.target[some.places] = rare if rare >= 0 else len(self._words)
            return _NONE
        width, n_before = len(self.columns) + 1 + len(self._crosses), len(self._words)
        keys = [some.rows * width + some.column for some in new]
        codes = self._words.add_words([(some.prefix, some.words) for some in new], keys)
        begin = 0
        for some in new:
            some.target[some.places] = codes[begin : begin + len(some.rows)]
            begin += len(some.rows)
        firsts = np.full(len(self._words) - n_before, np.iinfo(np.int64).max)
        is_new = codes >= n_before
        np.minimum.at(firsts, codes[is_new] - n_before, np.concatenate(keys)[is_new])
        return firsts


def _mixed_dates(cells: Cells, times: Ints) -> Any:
    """Return which cells are neither dates nor missing; None if there are none."""
    rows = np.flatnonzero(~is_time(times))
    if not len(rows):
        return None
    is_mixed = np.zeros(len(times), np.bool_)
    is_mixed[rows] = ~null_dates(take(cells, rows))
    return is_mixed if is_mixed.any() else None


def _is_coded(cells: pa.Array) -> bool:
    """Whether an array of strings has a dictionary."""
    import pyarrow as pa

    return bool(pa.types.is_dictionary(cells.type))


def _words(*words: str) -> Text:
    """Return a few words as cells."""
    parts = [word.encode() for word in words]
    ends = np.cumsum([len(part) for part in parts]).astype(np.int32)
    begins = np.append(0, ends[:-1]).astype(np.int32)
    return Text(padded(b"".join(parts)), begins, ends)


def _bins(column: Column) -> Text:
    """Return the words of bins, and that of a missing number."""
    edges = ["-inf", *map(format_number, column.edges), "inf"]
    return _words(*(f"[{low},{high})" for low, high in itertools.pairwise(edges)), MISSING)


_MISSING_WORD = _words(MISSING)
_PARTS = (
    (b".month=", _words(*(str(month) for month in range(1, 13)))),
    (b".weekday=", _words(*_WEEK)),
    (b".hour=", _words(*map(str, range(24)))),
)


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
    return (1, 0) if column.kind in ("number", "log1p", "flag") else (0, 1)


def _fixed_names(column: Column) -> list[bytes]:
    """Return the names of features that do not depend on the cells."""
    name = _encoded(column.name)
    if column.kind in ("number", "log1p", "flag", "date"):
        return [name]
    if column.kind == "vector":
        return [name + b"[%d]" % k for k in range(column.size)]
    return []


def _merged(rows: Converted, lists: Sequence[tuple[Ints, Ints]]) -> Converted:
    """Return rows with the words of lists added."""
    if not lists:
        return rows
    n = len(rows.indptr) - 1
    of = np.repeat(np.arange(n), np.diff(rows.indptr))
    of = np.concatenate([of, *(some for some, _ in lists)])
    order = np.argsort(of, kind="stable")
    ids = np.concatenate([rows.ids, *(some for _, some in lists)])
    values = np.concatenate([rows.values, np.ones(len(ids) - len(rows.ids), rows.values.dtype)])
    indptr = np.append(0, np.cumsum(np.bincount(of, minlength=n)))
    return Converted(indptr, ids[order], values[order], rows.changed)
