"""Compiled lookup of ids for `sbm.inputs.idtable`.

Tables: direct (size,) int32 for small keys; slots (2^k,) int32 and slot_keys (2^k,) int64 for large
keys; seen (room,) int64, the key of each code. `direct` and `slots` hold codes plus one; 0 means
free.
Source: multiplicative hashing with linear probing (Knuth, volume 3, section 6.4).
"""

import numpy as np
from numba import njit

DIRECT_LIMIT = 1 << 24


@njit(nogil=True, error_model="numpy")
def _slot(key, factor, shift):
    """Multiplicative hashing (Knuth, 6.4) with a random odd factor."""
    x = np.uint64(key)
    x ^= x >> np.uint64(32)
    return np.int64((x * factor) >> shift)


@njit(nogil=True, error_model="numpy")
def intern(keys, begin, direct, slots, slot_keys, factor, shift, seen, n_seen, insert, out):
    """Write the codes of keys[begin:] to `out`, adding unknown keys if `insert`.

    Parameters
    ----------
    keys : (n,) int64
    direct, slots, slot_keys, seen : the tables, in place
    factor, shift : uint64
        Parameters of the hash; see `_slot`.
    n_seen : int
        Number of known keys.
    insert : bool
        Add unknown keys; otherwise they get -1.
    out : (n,) int32, filled in place

    Returns
    -------
    reached, n_seen : int
        `reached` is less than len(keys) if a table is full: the caller enlarges it and calls again.
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
    """Write the codes of keys to `out`, with -1 for keys that are not in the plain array.

    Branch-free, so that many memory accesses overlap.

    Parameters
    ----------
    keys : (n,) int64
    direct : (size,) int32
    out : (n,) int32, filled in place
    unknown : (n,) int64, filled in place
        Positions of unknown keys.

    Returns
    -------
    int
        Number of unknown keys.
    """
    size = np.uint64(len(direct))
    n_unknown = 0
    for k in range(len(keys)):
        key = np.uint64(keys[k])  # negative keys become large ones
        code = direct[key] if key < size else np.int32(0)
        out[k] = code - 1
        unknown[np.uint64(n_unknown)] = k
        n_unknown += code == 0
    return n_unknown


@njit(nogil=True, error_model="numpy")
def rehash(seen, n_seen, slots, slot_keys, factor, shift):
    """Insert the known keys that are too large for the plain array into an empty hash table.

    Parameters
    ----------
    seen, slots, slot_keys : the tables, the last two in place
    factor, shift : uint64
        Parameters of the hash; see `_slot`.
    """
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
    """Add one to the count of each code, up to `most` to avoid overflow.

    Parameters
    ----------
    codes : (n,) int32
    counts : (n_codes,) int, in place
    """
    for k in range(len(codes)):
        code = np.uint64(codes[k])
        counts[code] += counts[code] < most


@njit(nogil=True, error_model="numpy")
def drop_unknown(indptr, codes, values):
    """Remove the nonzeros with code -1 from rows that begin at 0; branch-free.

    Parameters
    ----------
    indptr : (n_rows + 1,) int64, in place
    codes : (nnz,) int32, in place
    values : (nnz,) float32 or float64, in place, or None

    Returns
    -------
    n_left : int
        Number of nonzeros left, at the beginning of `codes` and `values`.
    ones : bool
        Whether all their values are 1.
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
