"""A dictionary from 64-bit keys to dense codes in order of first appearance.

Feature ids and labels get codes 0, 1, 2, ... when they are first seen. Keys below `DIRECT_LIMIT`
are looked up in a plain array, which grows with the largest such key; all others in a hash table
with linear probing.
"""

import os

import numpy as np
import numpy.typing as npt

from sbm.compiled.calls import load
from sbm.store.container import Buffers

DIRECT_LIMIT = 1 << 24  # at most 64 MB of codes

kernels = load("sbm.inputs.kernels.ids")


class IdTable:
    """Codes 0, 1, 2, ... for 64-bit keys, in order of first appearance.

    Parameters
    ----------
    keys : ndarray, shape (n,), int64, optional
        Distinct keys known from the start; key ``keys[c]`` has code ``c``.
    """

    def __init__(self, keys: npt.NDArray[np.int64] | None = None) -> None:
        # A random factor, so that colliding keys cannot be constructed. Codes do not depend on it.
        self._factor = np.uint64(int.from_bytes(os.urandom(8)) | 1)
        self._fill(np.empty(0, np.int64) if keys is None else np.asarray(keys, np.int64))

    def _fill(self, known: npt.NDArray[np.int64]) -> None:
        self._n = len(known)
        self._seen = np.empty(max(1024, self._n), np.int64)
        self._seen[: self._n] = known
        small = known[(known >= 0) & (known < DIRECT_LIMIT)]
        self._direct = np.zeros(self._direct_size(int(small.max(initial=0))), np.int32)
        codes = np.arange(1, self._n + 1, dtype=np.int32)
        self._direct[small] = codes[(known >= 0) & (known < DIRECT_LIMIT)]
        self._resize_hash(2 * (self._n - len(small)) + 2)

    @staticmethod
    def _direct_size(largest: int) -> int:
        return min(DIRECT_LIMIT, 1 << max(10, largest.bit_length()))

    def _resize_hash(self, least: int) -> None:
        bits = max(10, least.bit_length())
        self._slots = np.zeros(1 << bits, np.int32)
        self._slot_keys = np.empty(1 << bits, np.int64)
        self._shift = np.uint64(64 - bits)
        if self._n:  # an empty table is made before kernels are compiled
            kernels.rehash(
                self._seen, self._n, self._slots, self._slot_keys, self._factor, self._shift
            )

    def __len__(self) -> int:
        return self._n

    @property
    def keys(self) -> npt.NDArray[np.int64]:
        """Keys by code, shape (n,), a view."""
        return self._seen[: self._n]

    @property
    def nbytes(self) -> int:
        """Memory of the tables in bytes."""
        arrays = (self._seen, self._direct, self._slots, self._slot_keys)
        return sum(a.nbytes for a in arrays)

    def intern(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Return the codes of the keys, shape (n,), int32, and add unknown keys.

        Raises
        ------
        OverflowError
            More than 2^31 - 1 distinct keys.
        """
        out = np.empty(len(keys), np.int32)
        begin = 0
        while True:
            begin, self._n = kernels.intern(
                keys, begin, self._direct, self._slots, self._slot_keys, self._factor,
                self._shift, self._seen, self._n, True, out,
            )  # fmt: skip
            if begin == len(keys):
                return out
            self._grow(int(keys[begin]))

    def keep(self, chosen: npt.NDArray[np.bool_]) -> None:
        """Remove all keys except the chosen ones, and renumber these in the same order.

        Parameters
        ----------
        chosen : ndarray, shape (n,), bool
            Whether to keep the key of each code.
        """
        known = self.keys[chosen]
        del self._seen, self._direct, self._slots, self._slot_keys  # room for the new ones
        self._fill(known)

    def find(
        self, keys: npt.NDArray[np.int64], buffers: Buffers | None = None
    ) -> npt.NDArray[np.int32]:
        """Return the codes of the keys, shape (n,), int32; -1 for unknown keys.

        Parameters
        ----------
        keys : ndarray, shape (n,), int64
        buffers : Buffers, optional
            The codes are taken from there; by default, they are a new array.
        """
        take = np.empty if buffers is None else buffers.take
        codes, unknown = take(len(keys), np.int32), take(len(keys), np.int32)
        rest = unknown[: kernels.look_up(keys, self._direct, codes, unknown)]
        if len(rest):
            some, found = keys[rest], np.empty(len(rest), np.int32)
            kernels.intern(
                some, 0, self._direct, self._slots, self._slot_keys, self._factor,
                self._shift, self._seen, self._n, False, found,
            )  # fmt: skip
            codes[rest] = found
        if buffers is not None:
            buffers.give_back(unknown)
        return codes

    def look_up(
        self,
        keys: npt.NDArray[np.int64],
        codes: npt.NDArray[np.int32],
        places: npt.NDArray[np.int32],
    ) -> npt.NDArray[np.int32]:
        """Look up small keys while another thread may call `intern`.

        Codes found are correct, but a key that is not found may be known. Only the plain array is
        searched: its entries change once, from free to a code, and when it grows it is copied.

        Parameters
        ----------
        keys : ndarray, shape (n,), int64
        codes : ndarray, shape (n,), int32, filled in place
            -1 for a key that was not found.
        places : ndarray, shape (n,), int32
            Scratch.

        Returns
        -------
        ndarray, shape (n_unknown,), int32
            Positions of the keys that were not found, in order.
        """
        n_unknown = kernels.look_up(keys, self._direct, codes, places)
        return places[:n_unknown].copy()

    def _grow(self, key: int) -> None:
        """Make room for the key at which the kernel stopped."""
        if self._n >= 2**31 - 1:
            raise OverflowError("more than 2147483647 distinct ids")
        if self._n == len(self._seen):
            seen = np.empty(2 * self._n, np.int64)
            seen[: self._n] = self._seen
            self._seen = seen
        if 0 <= key < DIRECT_LIMIT:
            if key >= len(self._direct):
                direct = np.zeros(self._direct_size(key), np.int32)
                direct[: len(self._direct)] = self._direct
                self._direct = direct
        elif 2 * self._n >= len(self._slots):
            self._resize_hash(4 * self._n)
