"""Compiled lookup of ids; `sbm.store.idtable` tells how the tables are laid out."""

import numpy as np
from numba import njit

__all__ = ["count", "drop_unknown", "intern", "look_up", "rehash"]

DIRECT_LIMIT = 1 << 24


@njit(nogil=True, error_model="numpy")
def _slot(key, factor, shift):
    """Multiplicative hashing (Knuth, 6.4); the table chooses an odd factor at random."""
    x = np.uint64(key)
    x ^= x >> np.uint64(32)
    return np.int64((x * factor) >> shift)


@njit(nogil=True, error_model="numpy")
def intern(keys, begin, direct, slots, slot_keys, factor, shift, seen, n_seen, insert, out):
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
        s = _slot(key, factor, shift) & mask
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
def look_up(keys, direct, out, unknown):
    """Write the codes of keys to `out`, -1 for those that the plain array does not know.

    Returns how many those are; their positions go to `unknown`, as long as `keys`. Without a
    branch on what is found, so that many accesses are under way at a time.
    """
    size = np.uint64(len(direct))
    n_unknown = 0
    for k in range(len(keys)):
        key = np.uint64(keys[k])  # a negative key is a large one
        code = direct[key] if key < size else np.int32(0)
        out[k] = code - 1
        unknown[np.uint64(n_unknown)] = k
        n_unknown += code == 0
    return n_unknown


@njit(nogil=True, error_model="numpy")
def rehash(seen, n_seen, slots, slot_keys, factor, shift):
    """Put the known keys that are too large for the plain array into an empty hash table."""
    mask = len(slots) - 1
    for code in range(n_seen):
        key = seen[code]
        if 0 <= key < DIRECT_LIMIT:
            continue
        s = _slot(key, factor, shift) & mask
        while slots[s] != 0:
            s = (s + 1) & mask
        slots[s] = code + 1
        slot_keys[s] = key


@njit(nogil=True, error_model="numpy")
def count(codes, counts, most):
    """Add one to the count of each code; none gets above `most`, so that none overflows."""
    for k in range(len(codes)):
        code = np.uint64(codes[k])
        counts[code] += counts[code] < most


@njit(nogil=True, error_model="numpy")
def drop_unknown(indptr, codes, values):
    """Take the nonzeros whose code is -1 out of rows that begin at 0, in place.

    Returns how many are left, at the front of `codes` and `values`, and whether all of their
    values are 1; `values` may be None. Without a branch on what is dropped.
    """
    n = np.int64(0)
    ones = True
    begin = np.int64(0)
    for row in range(1, len(indptr)):
        end = indptr[row]
        for k in range(begin, end):
            code = codes[np.uint64(k)]
            codes[np.uint64(n)] = code
            if values is not None:
                value = values[np.uint64(k)]
                values[np.uint64(n)] = value
                ones &= (value == 1) | (code < 0)
            n += code >= 0
        begin = end
        indptr[row] = n
    return n, ones
