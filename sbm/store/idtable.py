"""A dictionary from 64-bit keys to dense codes in order of first appearance.

Feature ids and labels both become codes 0, 1, 2, ... the first time they are seen, whatever their
size. Keys below `DIRECT_LIMIT` are looked up in a plain array, which grows with the largest such
key; all others in a hash table with linear probing.
"""

import numpy as np
import numpy.typing as npt
from numba import njit

__all__ = ["DIRECT_LIMIT", "IdTable", "sort_rows"]

DIRECT_LIMIT = 1 << 24  # 64 MB of codes at most

_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: multiplicative hashing (Knuth, 6.4)


@njit(cache=True, nogil=True)
def _slot(key, shift):
    x = np.uint64(key)
    x ^= x >> np.uint64(32)
    return np.int64((x * _MIX) >> shift)


@njit(cache=True, nogil=True)
def _intern(keys, begin, direct, slots, slot_keys, shift, seen, n_seen, insert, out):
    """Write the codes of keys[begin:] to `out`, adding unknown keys if `insert`.

    Returns (position reached, n_seen): short of the end where a table must grow first, the caller
    grows it and calls again. Codes are stored plus one, so that 0 means free. Unknown keys get -1
    if not inserted.
    """
    size = len(direct)
    mask = len(slots) - 1
    for k in range(begin, len(keys)):
        key = keys[k]
        if 0 <= key < size:
            code = direct[key]
            if code == 0 and insert:
                if n_seen == len(seen):
                    return k, n_seen
                seen[n_seen] = key
                n_seen += 1
                code = n_seen
                direct[key] = code
            out[k] = code - 1
            continue
        if insert and 0 <= key < DIRECT_LIMIT:
            return k, n_seen
        s = _slot(key, shift) & mask
        while slots[s] != 0 and slot_keys[s] != key:
            s = (s + 1) & mask
        if slots[s] == 0 and insert:
            if n_seen == len(seen) or 2 * n_seen >= len(slots):
                return k, n_seen
            seen[n_seen] = key
            n_seen += 1
            slots[s] = n_seen
            slot_keys[s] = key
        out[k] = slots[s] - 1
    return len(keys), n_seen


@njit(cache=True, nogil=True)
def _rehash(seen, n_seen, slots, slot_keys, shift):
    mask = len(slots) - 1
    for code in range(n_seen):
        key = seen[code]
        if 0 <= key < DIRECT_LIMIT:
            continue
        s = _slot(key, shift) & mask
        while slots[s] != 0:
            s = (s + 1) & mask
        slots[s] = code + 1
        slot_keys[s] = key


@njit(cache=True, nogil=True)
def _sift(keys, values, low, size, root):
    while True:
        child = 2 * root + 1
        if child >= size:
            return
        if child + 1 < size and keys[low + child] < keys[low + child + 1]:
            child += 1
        if keys[low + root] >= keys[low + child]:
            return
        a, b = low + root, low + child
        keys[a], keys[b] = keys[b], keys[a]
        if values is not None:
            values[a], values[b] = values[b], values[a]
        root = child


@njit(cache=True, nogil=True)
def sort_rows(indptr, keys, values):
    """Sort the keys of each row in place, values along with them.

    Parameters
    ----------
    indptr : ndarray, shape (n_rows + 1,), int64
    keys : ndarray, shape (nnz,), int32
    values : ndarray, shape (nnz,), float, or None

    Short rows by insertion, which is fastest on them, long ones by heap, whose worst case is fine.
    """
    for i in range(len(indptr) - 1):
        low, high = indptr[i], indptr[i + 1]
        if high - low <= 64:
            for p in range(low + 1, high):
                key = keys[p]
                q = p
                if values is not None:
                    value = values[p]
                    while q > low and keys[q - 1] > key:
                        keys[q] = keys[q - 1]
                        values[q] = values[q - 1]
                        q -= 1
                    values[q] = value
                else:
                    while q > low and keys[q - 1] > key:
                        keys[q] = keys[q - 1]
                        q -= 1
                keys[q] = key
            continue
        size = high - low
        for root in range(size // 2 - 1, -1, -1):
            _sift(keys, values, low, size, root)
        for end in range(size - 1, 0, -1):
            a, b = low, low + end
            keys[a], keys[b] = keys[b], keys[a]
            if values is not None:
                values[a], values[b] = values[b], values[a]
            _sift(keys, values, low, end, 0)


class IdTable:
    """Codes 0, 1, 2, ... for 64-bit keys, in order of first appearance.

    Parameters
    ----------
    keys : ndarray, shape (n,), int64, optional
        Keys already known, distinct; key ``keys[c]`` has code ``c``.
    """

    def __init__(self, keys: npt.NDArray[np.int64] | None = None) -> None:
        known = np.empty(0, np.int64) if keys is None else np.asarray(keys, np.int64)
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
        _rehash(self._seen, self._n, self._slots, self._slot_keys, self._shift)

    def __len__(self) -> int:
        return self._n

    @property
    def keys(self) -> npt.NDArray[np.int64]:
        """Keys by code, shape (n,), a view."""
        return self._seen[: self._n]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        arrays = (self._seen, self._direct, self._slots, self._slot_keys)
        return sum(a.nbytes for a in arrays)

    def intern(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Codes of the keys, shape (n,), int32; unknown keys become known.

        Raises
        ------
        OverflowError
            More than 2^31 - 1 distinct keys.
        """
        out = np.empty(len(keys), np.int32)
        begin = 0
        while True:
            begin, self._n = _intern(
                keys, begin, self._direct, self._slots, self._slot_keys, self._shift,
                self._seen, self._n, True, out,
            )  # fmt: skip
            if begin == len(keys):
                return out
            self._grow(int(keys[begin]))

    def find(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """Codes of the keys, shape (n,), int32; -1 for an unknown key."""
        out = np.empty(len(keys), np.int32)
        _intern(
            keys, 0, self._direct, self._slots, self._slot_keys, self._shift,
            self._seen, self._n, False, out,
        )  # fmt: skip
        return out

    def _grow(self, key: int) -> None:
        """Make room for the key that the kernel stopped at."""
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
