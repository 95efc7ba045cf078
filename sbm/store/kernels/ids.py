"""Compiled lookup of ids; `sbm.store.idtable` tells how the tables are laid out."""

import numpy as np
from numba import njit

__all__ = ["intern", "rehash", "sort_rows"]

DIRECT_LIMIT = 1 << 24

_MIX = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio: multiplicative hashing (Knuth, 6.4)


@njit(nogil=True, error_model="numpy")
def _slot(key, shift):
    x = np.uint64(key)
    x ^= x >> np.uint64(32)
    return np.int64((x * _MIX) >> shift)


@njit(nogil=True, error_model="numpy")
def intern(keys, begin, direct, slots, slot_keys, shift, seen, n_seen, insert, out):
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


@njit(nogil=True, error_model="numpy")
def rehash(seen, n_seen, slots, slot_keys, shift):
    """Put the known keys that are too large for the plain array into an empty hash table."""
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


@njit(nogil=True, error_model="numpy")
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


@njit(nogil=True, error_model="numpy")
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
