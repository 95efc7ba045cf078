"""Names of features by id, collected while data is read, and labels that are words."""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sbm.errors import DataError, SettingsError
from sbm.inputs.idtable import DIRECT_LIMIT, IdTable
from sbm.names import Names
from sbm.store.files import reading
from sbm.units import format_number

NewNames = tuple[npt.NDArray[np.int64], Names]  # ids, which may be repeated, and their names
_PART = 1 << 16  # names gathered at a time
_PART_BYTES = 1 << 20  # of names read at a time
_LONGEST = 1 << 20  # bytes of a line in a file of names
_MOST_DIGITS = 19  # of an id below 2^63


class NameTable:
    """The first name of each feature id.

    Attributes
    ----------
    collisions : list of (bytes, bytes)
        The first pairs of names that share an id.
    """

    def __init__(self) -> None:
        self._ids = IdTable()
        self._known = np.zeros(1, np.uint8)
        self._text = bytearray()
        self._ends = array("q")
        self.collisions: list[tuple[bytes, bytes]] = []

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def nbytes(self) -> int:
        """Memory of the names, also while they are written."""
        if not self._ends:
            return 0
        return self._ids.nbytes + self._known.nbytes + 2 * (len(self._text) + 8 * len(self._ends))

    @property
    def known(self) -> npt.NDArray[np.uint8]:
        """Bits of ids that have a name; others may have one. May be read in any thread."""
        return self._known

    def add(self, ids: npt.NDArray[np.int64], names: Names) -> None:
        """Add names of ids; an id keeps its first name. Call in the order of the data."""
        codes, lengths = self._ids.intern(ids), np.diff(names.ends, prepend=0)
        before = np.maximum.accumulate(np.append(np.int32(len(self._ends) - 1), codes))
        is_new = codes > before[:-1]
        self._mark(ids[is_new])
        self._text += names.text[np.repeat(is_new, lengths)].tobytes()
        begin = self._ends[-1] if self._ends else 0
        self._ends.frombytes((begin + np.cumsum(lengths[is_new])).tobytes())
        if len(self.collisions) < 5 and not is_new.all():
            self._compare(codes, names, lengths, np.flatnonzero(~is_new))

    def _mark(self, ids: npt.NDArray[np.int64]) -> None:
        """Set the bits of small ids; a longer array replaces one that may be read."""
        small = ids[(ids >= 0) & (ids < DIRECT_LIMIT)]
        least = int(small.max(initial=0)) // 8 + 1
        if least > len(self._known):
            self._known = np.append(self._known, np.zeros(2 * least - len(self._known), np.uint8))
        np.bitwise_or.at(self._known, small >> 3, np.uint8(1) << (small & 7).astype(np.uint8))

    def _compare(
        self,
        codes: npt.NDArray[np.int32],
        names: Names,
        lengths: npt.NDArray[np.int64],
        some: npt.NDArray[np.intp],
    ) -> None:
        """Note some of the names that differ from the first ones of their ids."""
        text, known = np.frombuffer(self._text, np.uint8), np.frombuffer(self._ends, np.int64)
        first, mine = codes[some], lengths[some]
        sizes = known[first] - np.where(first > 0, known[first - 1], 0)
        differs = sizes != mine
        same, size = some[~differs], mine[~differs]
        offsets = np.arange(int(size.sum())) - np.repeat(np.cumsum(size), size)
        theirs = text[offsets + np.repeat(known[codes[same]], size)]
        wrong = theirs != names.text[offsets + np.repeat(names.ends[same], size)]
        differs[~differs] = np.bincount(
            np.repeat(np.arange(len(same)), size), weights=wrong, minlength=len(same)
        ).astype(bool)
        for k in some[differs].tolist():
            pair = (self._name(int(codes[k])), names.at(k))
            self.collisions += [pair] if pair not in self.collisions else []
            if len(self.collisions) == 5:
                return

    def _name(self, code: int) -> bytes:
        return bytes(self._text[self._ends[code - 1] if code else 0 : self._ends[code]])

    def of(self, ids: npt.NDArray[np.int64]) -> Names:
        """Return the names of ids, empty for ids without a name."""
        if not self._ends:
            return Names.of([b""] * len(ids))
        text, known = np.frombuffer(self._text, np.uint8), np.array(self._ends, np.int64)
        codes = self._ids.find(ids)
        lengths = np.append(np.diff(known, prepend=0), 0)[codes]
        ends = np.cumsum(lengths)
        found = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
        for first in range(0, len(ids), _PART):
            part = slice(first, first + _PART)
            begin = int(ends[first] - lengths[first])
            size = int(lengths[part].sum())
            places = np.repeat(known[codes[part]] - ends[part], lengths[part])
            found[begin : begin + size] = text[places + np.arange(begin, begin + size)]
        return Names(found, ends)

    def read(self, given: str | Path | Sequence[str]) -> Iterator[float]:
        """Add the names in a file of lines ``ID NAME``, or a sequence of names by column.

        Yields the share that was read, after each part, so that the caller can check the memory of
        the table.

        Raises `DataError` if the file cannot be read, or a line is invalid.
        """
        if not isinstance(given, str | Path):
            if not all(isinstance(name, str) for name in given):
                raise SettingsError(
                    f"feature_names is a {type(given).__name__} of which some items are not str; "
                    "expected a file or a sequence of str"
                )
            try:
                encoded = [name.encode() for name in given]
            except UnicodeEncodeError as error:
                raise SettingsError(
                    f"feature_names has {error.object!r}, which is not valid Unicode; replace it"
                ) from error
            self.add(np.arange(len(given)), Names.of(encoded))
            yield 1.0
            return
        path = Path(given)
        with reading(path), open(path, "rb") as file:
            some: list[tuple[int, bytes]] = []
            size, total = 0, os.fstat(file.fileno()).st_size
            for number, line in enumerate(iter(lambda: file.readline(_LONGEST + 1), b""), 1):
                words = line.strip().split(maxsplit=1)
                if not words and len(line) <= _LONGEST:
                    continue
                if len(line) > _LONGEST or (feature := _read_id(words)) is None:
                    shown = line.strip().decode("utf-8", "replace")[:40]
                    raise DataError(
                        f"{given}:{number}: found {shown!r}; expected a feature id and its "
                        "name, separated by a blank, in a line of at most 1 MB"
                    )
                some.append((feature, words[1]))
                size += len(line)
                if len(some) == _PART or size > _PART_BYTES:
                    self._add_pairs(some)
                    some.clear()
                    size = 0
                    yield min(file.tell() / total, 1.0) if total else 1.0
            self._add_pairs(some)
            yield 1.0

    def _add_pairs(self, pairs: list[tuple[int, bytes]]) -> None:
        self.add(np.array([k for k, _ in pairs], np.int64), Names.of(name for _, name in pairs))


def _read_id(words: list[bytes]) -> int | None:
    """Return the feature id before a name, or None if there is no valid one."""
    if len(words) < 2 or not words[0].isdigit():
        return None
    digits = words[0].lstrip(b"0") or b"0"
    feature = int(digits) if len(digits) <= _MOST_DIGITS else 1 << 63
    return feature if feature < 1 << 63 else None


class LabelWords:
    """How labels become numbers: as they are, or if they are words, by a table.

    The first label decides, unless the labels of a store or a model are known.

    Parameters
    ----------
    known : dict of str to float, optional
        Numbers of known words; empty if labels are numbers.
    whose, advice : str
        For errors: what has the known labels, and what to do if they do not fit.
    may_be_numbers : bool
        Whether text that has numbers as labels, such as LIBSVM text, may have those of words.

    Attributes
    ----------
    are_words : bool or None
        None before the first label.
    numbers : dict of str to float
        Number of each word, in order of first appearance.
    """

    def __init__(
        self,
        known: dict[str, float] | None = None,
        whose: str = "earlier labels",
        advice: str = "if labels are words, add --categorical COLUMN",
        may_be_numbers: bool = False,
    ) -> None:
        self.are_words = None if known is None else bool(known)
        self.whose, self.advice, self._may_be_numbers = whose, advice, may_be_numbers
        self.numbers = dict(known or {})
        self._n_known = len(self.numbers)

    @property
    def new(self) -> list[str]:
        """Words that were not known from the start."""
        return list(self.numbers)[self._n_known :]

    def expect_numbers(self, name: str) -> None:
        """Note that the labels of the next text are numbers.

        Raises
        ------
        DataError
            Labels were words before.
        """
        if self.are_words and not self._may_be_numbers:
            raise DataError(
                f"{name}: labels are numbers, but {self.whose} are words such as "
                f"{next(iter(self.numbers))}; convert them"
            )
        if self.are_words is None:  # --categorical would not change the labels of this text
            self.are_words, self.advice = False, "convert them"

    def expect_words(self, place: str, word: str) -> None:
        """Note that the next labels, such as `word`, are words.

        Raises
        ------
        DataError
            Labels were numbers before.
        """
        if self.are_words is False:
            raise DataError(
                f"{place}: labels are words such as {word[:40]!r}, but {self.whose} are numbers; "
                f"{self.advice}"
            )
        self.are_words = True

    def number(self, word: str) -> float:
        """Return the number of a word, a new one if the word is new.

        Raises
        ------
        DataError
            The word has a line end or a tab, as predictions are written one per line, or is not
            valid Unicode.
        """
        found = self.numbers.get(word)
        if found is None:
            if not {*word}.isdisjoint("\n\r\t"):
                raise DataError(
                    f"found label {word!r}; labels must not contain tabs or line ends. Replace "
                    "them by spaces"
                )
            if any("\ud800" <= letter <= "\udfff" for letter in word):
                raise DataError(f"found label {word!r}, which is not valid Unicode; replace it")
            found = self.numbers[word] = 1.0 + max(self.numbers.values(), default=-1.0)
        return found

    def text(self, label: float) -> str:
        """Return a label as text: its word, or the number."""
        words = (word for word, number in self.numbers.items() if number == label)
        return next(words, format_number(label))

    def encode(self, words: Iterable[str]) -> npt.NDArray[np.float64]:
        """Return the numbers of words."""
        return np.array([self.number(word) for word in words], np.float64)
