"""Crosses: products of the features of two columns, with names unless there are too many.

A cross of ``campaign=summer`` and ``device=mobile`` is ``campaign=summer*device=mobile``, and its
value is the product of both.
"""

from __future__ import annotations

import zlib

import numpy as np
import numpy.typing as npt

from sbm.inputs.columns.words import WordTable
from sbm.inputs.idtable import IdTable
from sbm.plain import dataclass

Slots = tuple[range, range]  # numbers and words of a column
_Floats = npt.NDArray[np.float64]
_Ints = npt.NDArray[np.int64]
_Codes = npt.NDArray[np.int32]
# Crosses of two columns with a name of their own; further ones share as many hashed names.
_MOST, _BUCKETS = 1 << 21, 1 << 18
_NONE = np.empty(0, np.int64)


@dataclass(frozen=True)
class Features:
    """The features of the rows of a batch; see `assemble` in `sbm.inputs.kernels.words`."""

    numbers: _Floats
    number_codes: _Codes
    missing_codes: _Codes
    codes: _Codes

    def of_number(self, k: int) -> tuple[_Codes, _Floats]:
        """Return codes and values of the features of a column of numbers; -1 for none."""
        values = self.numbers[k]
        is_nan = np.isnan(values)
        codes = np.where(is_nan, self.missing_codes[k], self.number_codes[k]).astype(np.int32)
        codes[values == 0] = -1
        return codes, np.where(is_nan, 1.0, values)

    def of(self, slots: Slots) -> list[tuple[_Codes, _Floats]]:
        """Return codes and values of the features of a column."""
        words = [self.codes[k] for k in slots[1]]
        ones = np.ones(self.codes.shape[1])
        return [*map(self.of_number, slots[0]), *((codes, ones) for codes in words)]


class Cross:
    """The products of the features of two columns.

    Parameters
    ----------
    name : str
        That of both columns.
    first, second : Slots
        Their numbers and words.
    words : WordTable
        Receives the names.
    grows : bool
        Add new names.

    Attributes
    ----------
    n_slots : int
        Most products of a row.
    """

    def __init__(
        self, name: str, first: Slots, second: Slots, words: WordTable, grows: bool
    ) -> None:
        self._name = name.encode("utf-8", "surrogateescape")
        self._columns, self._words, self._grows = (first, second), words, grows
        self.n_slots = sum(map(len, first)) * sum(map(len, second))
        self._pairs = IdTable()
        self._codes = np.empty(1024, np.int32)  # code of each pair

    def fill(self, of: Features, codes: _Codes, values: _Floats) -> _Ints:
        """Write the codes and values of the products of each row.

        Parameters
        ----------
        of : Features
        codes, values : ndarray, shape (n_slots, n_rows), filled in place

        Returns
        -------
        ndarray, int64
            Row in which each new name appears first, in the order of their codes.
        """
        first, second = (of.of(slots) for slots in self._columns)
        pairs = [(a, b) for a in first for b in second]
        keys = np.full(codes.shape, -1, np.int64)
        for k, ((a, x), (b, y)) in enumerate(pairs):
            both = (a >= 0) & (b >= 0)
            keys[k] = np.where(both, (a.astype(np.int64) << 32) | b, -1)
            np.multiply(x, y, out=values[k])
        in_rows = np.ascontiguousarray(keys.T).ravel()  # in the order of rows
        used = np.flatnonzero(in_rows >= 0)
        before = len(self._pairs)
        local = self._pairs.intern(in_rows[used])
        rows = self._find(before, local, used // max(1, len(pairs)))
        flat = np.full(len(in_rows), -1, np.int32)
        flat[used] = self._codes[local]
        codes[:] = flat.reshape(codes.shape[::-1]).T
        return rows

    def _find(self, before: int, local: _Codes, rows: _Ints) -> _Ints:
        """Find the codes of new pairs, of which `rows` are the rows that have them."""
        n = len(self._pairs)
        if n == before:
            return _NONE
        while n > len(self._codes):
            self._codes = np.concatenate([self._codes, np.empty_like(self._codes)])
        words = self._words
        unknown = len(words)
        names = [
            b"" if max(a, b) >= unknown else words.name(a) + b"*" + words.name(b)
            for a, b in (divmod(key, 1 << 32) for key in self._pairs.keys[before:].tolist())
        ]
        if not self._grows:
            found = [words.code_of(name) if name else -1 for name in names]
            found = [
                words.code_of(self._bucket(name)) if code < 0 and name else code
                for code, name in zip(found, names, strict=True)
            ]
            self._codes[before:n] = [code if code >= 0 else unknown for code in found]
            return _NONE
        left = max(0, _MOST - before)
        names[left:] = map(self._bucket, names[left:])
        self._codes[before:n] = words.add(names)
        words.crosses.update(self._codes[before:n].tolist())
        firsts = np.full(len(words) - unknown, np.iinfo(np.int64).max)
        codes = self._codes[local]
        is_new = codes >= unknown
        np.minimum.at(firsts, codes[is_new] - unknown, rows[is_new])
        return firsts

    def _bucket(self, name: bytes) -> bytes:
        """Return the name that a cross shares with others."""
        return b"%s=(hash %d)" % (self._name, zlib.crc32(name) % _BUCKETS)
