"""The dictionary of features of a table: names such as ``colour=red``, without hashing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.compiled.calls import load
from sbm.inputs.columns.cells import PADDING, Text
from sbm.inputs.columns.kinds import MISSING, RARE
from sbm.names import Names

kernels = load("sbm.inputs.kernels.words")
_reading = load("sbm.inputs.kernels.cells")
_NO_CELLS = np.empty(0, np.int64)
_Ints = npt.NDArray[np.int64]
_Codes = npt.NDArray[np.int32]
_LEAST = 1024
_MISSING = MISSING.encode()


class WordTable:
    """Codes and feature ids of names, in order of first appearance.

    Parameters
    ----------
    names : Names, optional
        Names of a store or a model.
    ids : ndarray, shape (n_names,), int64, optional
        Their feature ids.

    Attributes
    ----------
    ids : ndarray, shape (any,), int64
        Feature id of each code.
    """

    columns: frozenset[bytes] = frozenset()  # columns whose words have names here
    collisions: tuple[tuple[bytes, bytes], ...] = ()  # there are none, unlike in a `NameTable`

    def __init__(self, names: Names | None = None, ids: _Ints | None = None) -> None:
        # Random, so that colliding names cannot be constructed. Codes do not depend on them.
        self._seed = np.uint64(int.from_bytes(os.urandom(8)))
        self._factor = np.uint64(int.from_bytes(os.urandom(8)) | 1)
        self._n = 0
        self._slots = np.zeros(4 * _LEAST, np.uint64)
        self._text, self._ends = np.empty(16 * _LEAST, np.uint8), np.empty(_LEAST, np.int64)
        self.ids = 1 + np.arange(_LEAST)  # LIBLINEAR's ids start at 1
        self._alias: _Codes | None = None
        self.crosses: set[int] = set()  # codes of names that are crosses of columns
        if names is not None and ids is not None and len(names):
            known = np.diff(names.ends, prepend=0) > 0  # a feature may have no name
            some = names if known.all() else names.take(known)
            offsets = np.concatenate([[0], some.ends])
            text = np.append(some.text, np.zeros(PADDING, np.uint8))
            codes = self.insert(text, offsets[:-1], offsets[1:])
            first = 1 + int(ids.max())
            self.ids = first + np.arange(len(self.ids)) - self._n
            self.ids[codes] = ids[known]

    def __len__(self) -> int:
        return self._n

    @property
    def free_id(self) -> int:
        """A feature id that no name has."""
        is_full = self._n == len(self.ids)
        return 1 + int(self.ids[-1]) if is_full else int(self.ids[self._n])

    @property
    def nbytes(self) -> int:
        """Memory of the table, also while its names are written."""
        tables = (self._slots, self._text, self._ends, self.ids)
        written = (int(self._ends[self._n - 1]) if self._n else 0) + 24 * self._n
        return sum(table.nbytes for table in tables) + written

    def find(self, prefix: bytes, cells: Text, digits: bool, out: _Codes) -> tuple[_Ints, _Ints]:
        """Look up the codes of names, a prefix and a cell each.

        Parameters
        ----------
        prefix : bytes
            A column and an equals sign.
        digits : bool
            Only look up words of digits.
        out : ndarray, int32, filled in place
            Code of each cell; -1 if it is unknown.

        Returns
        -------
        unknown, other : ndarray, int64
            Cells with an unknown word, and those that are not words of digits.
        """
        n = len(cells)
        unknown, other = np.empty(n, np.int64), np.empty(n, np.int64) if digits else _NO_CELLS
        if prefix.find(b"=") < len(prefix) - 1:  # not a name that the kernel can hash
            text, offsets = _joined([(prefix, cells)])
            out[:] = self.codes(text, offsets[:-1], offsets[1:])
            return np.flatnonzero(out < 0), _NO_CELLS
        missing = self.code_of(prefix + _MISSING)
        n_unknown, n_other = _reading.find_words(
            cells.text, cells.begins, cells.ends, padded(prefix), self._seed, self._factor,
            self._slots, self._text, self._ends, missing, digits, out, unknown, other,
        )  # fmt: skip
        if self._alias is not None:
            out[:] = self._aliased(out)
        return unknown[:n_unknown], other[:n_other]

    def codes(self, text: npt.NDArray[np.uint8], begins: _Ints, ends: _Ints) -> _Codes:
        """Return the codes of names in a text with `PADDING`; -1 for unknown ones."""
        out = np.empty(len(begins), np.int32)
        kernels.intern(
            text, begins, ends, 0, self._seed, self._factor, self._slots, self._text, self._ends,
            self._n, False, out,
        )  # fmt: skip
        return self._aliased(out)

    def add_words(self, words: Sequence[tuple[bytes, Text]], keys: Sequence[_Ints]) -> _Codes:
        """Return the codes of names, a prefix and a cell each; unknown ones are added.

        Parameters
        ----------
        keys : sequence of ndarray of int64
            Unknown names are added in ascending order of these.
        """
        text, offsets = _joined(words)
        order = np.argsort(np.concatenate(keys), kind="stable")
        codes = np.empty(len(order), np.int32)
        codes[order] = self.insert(text, offsets[:-1][order], offsets[1:][order])
        return codes

    def _aliased(self, codes: _Codes) -> _Codes:
        """Return the codes that stand for codes, some of which are rare."""
        if self._alias is None:
            return codes
        alias = np.append(self._alias, np.arange(len(self._alias), self._n, dtype=np.int32))
        return np.where(codes < 0, codes, alias[codes]).astype(np.int32)

    def forget(self, ids: _Ints) -> _Ints:
        """Let rare words be ``column=(rare)`` from now on.

        Parameters
        ----------
        ids : ndarray, shape (n,), int64
            Feature ids that are rare; those of other names stay.

        Returns
        -------
        ndarray, int64
            Feature ids of the words for rare ones.
        """
        known = self.ids[: self._n]
        order = np.argsort(known)
        codes = order[np.searchsorted(known, ids, sorter=order)].tolist() if self._n else []
        rare: dict[bytes, list[int]] = {}
        for code in sorted(set(codes) - self.crosses):
            column = self._column_of(self.name(code))
            if column is not None:
                rare.setdefault(column, []).append(code)
        names = self.add([column + b"=" + RARE.encode() for column in rare])
        alias = np.arange(self._n, dtype=np.int32)
        for name, some in zip(names.tolist(), rare.values(), strict=True):
            alias[some] = name
        self._alias = alias
        return self.ids[names]

    def _column_of(self, name: bytes) -> bytes | None:
        """Return the column of a word; None if the name is no word."""
        begin = name.find(b"=")
        while begin >= 0:
            if name[:begin] in self.columns:
                return name[:begin]
            begin = name.find(b"=", begin + 1)
        return None

    def reorder(self, first: int, order: _Ints) -> None:
        """Give the ids of the names from `first` on in another order, that of `order`."""
        if self._n == len(self.ids):  # the last id must be the largest
            self._grow(0)
        self.ids[first + order] = self.ids[first : first + len(order)].copy()

    def code_of(self, name: bytes, *, insert: bool = False) -> int:
        """Return the code of a name, a new one with `insert`; otherwise -1 if it is unknown."""
        ends = np.array([len(name)])
        find = self.insert if insert else self.codes
        found = find(padded(name), ends - len(name), ends)
        return int(found[0])

    def add(self, names: Sequence[bytes]) -> _Codes:
        """Return the codes of names; unknown ones are added in this order."""
        ends = np.cumsum([0, *map(len, names)], dtype=np.int64)
        return self.insert(padded(b"".join(names)), ends[:-1], ends[1:])

    def insert(self, text: npt.NDArray[np.uint8], begins: _Ints, ends: _Ints) -> _Codes:
        """Return the codes of names in a text with `PADDING`; unknown ones are added in order."""
        out = np.empty(len(begins), np.int32)
        begin = 0
        while True:
            begin, self._n = kernels.intern(
                text, begins, ends, begin, self._seed, self._factor, self._slots, self._text,
                self._ends, self._n, True, out,
            )  # fmt: skip
            if begin == len(out):
                return self._aliased(out)
            self._grow(int(ends[begin] - begins[begin]))

    def _grow(self, size: int) -> None:
        """Make room for a name of `size` bytes."""
        n = self._n
        if n == len(self._ends):
            more: Any = np.empty(n, np.int64)
            self._ends = np.concatenate([self._ends, more])
            self.ids = np.concatenate([self.ids, self.ids[-1] + 1 + np.arange(n)])
        if 4 * n >= len(self._slots):
            slots = np.zeros(2 * len(self._slots), np.uint64)
            kernels.rehash(self._slots, slots)
            self._slots = slots
        used = int(self._ends[n - 1]) if n else 0
        if used + size + PADDING > len(self._text):
            text = np.empty(used + max(used, size) + PADDING, np.uint8)
            text[:used] = self._text[:used]
            self._text = text

    def of(self, ids: _Ints) -> Names:
        """Return the names of feature ids, empty for ids without a name."""
        known = self.ids[: self._n]
        order = np.argsort(known)
        place = np.minimum(np.searchsorted(known, ids, sorter=order), max(0, self._n - 1))
        codes = order[place] if self._n else np.zeros(len(ids), np.int64)
        fits = known[codes] == ids if self._n else np.zeros(len(ids), np.bool_)
        begins = np.concatenate([[0], self._ends[: self._n]]).astype(np.int64)
        lengths = np.where(fits, np.diff(begins)[codes] if self._n else 0, 0)
        ends = np.cumsum(lengths, dtype=np.int64)
        text = np.empty(int(ends[-1]) if len(ends) else 0, np.uint8)
        for first in range(0, len(ids), _PART):
            part = slice(first, first + _PART)
            low, size = int(ends[first] - lengths[first]), int(lengths[part].sum())
            shift = begins[:-1][codes[part]] - (ends[part] - lengths[part])
            places = np.repeat(shift, lengths[part]) + np.arange(low, low + size)
            text[low : low + size] = self._text[places]
        return Names(text, ends)

    def name(self, code: int) -> bytes:
        """Return the name of a code."""
        begin = int(self._ends[code - 1]) if code else 0
        return self._text[begin : int(self._ends[code])].tobytes()


_PART = 1 << 16  # names gathered at a time


def padded(text: bytes) -> npt.NDArray[np.uint8]:
    """Return a text with the bytes behind it that kernels may read."""
    return np.frombuffer(text + bytes(PADDING), np.uint8)


def _joined(words: Sequence[tuple[bytes, Text]]) -> tuple[npt.NDArray[np.uint8], _Ints]:
    """Return the names of words, and the begin of each and the end of the last."""
    n = sum(len(cells) for _, cells in words)
    size = sum(
        int((cells.ends - cells.begins).sum(dtype=np.int64)) + (len(p) + len(_MISSING)) * len(cells)
        for p, cells in words
    )
    text, offsets = np.empty(size + PADDING, np.uint8), np.zeros(n + 1, np.int64)
    done = 0
    for prefix, cells in words:
        _reading.join_names(
            cells.text, cells.begins, cells.ends, padded(prefix),
            np.frombuffer(_MISSING, np.uint8), text, offsets, done,
        )  # fmt: skip
        done += len(cells)
    return text, offsets
