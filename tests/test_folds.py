"""Folds depend only on the content of a row."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import Folds, Rows

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x):
    """The finalizer of splitmix64 in exact integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def slow_fold(row, n, seed, place=(0, 0), dtype="f"):
    """Return the fold of a row of (index, value) pairs; values are None if all are 1."""
    h = mix((seed + GOLDEN) & MASK)
    content = [(k, v) for k, v in row if v != 0]
    for k, v in content:
        h = mix(((h + GOLDEN) & MASK) ^ k)
        if v is not None:
            bits = struct.unpack("I" if dtype == "f" else "Q", struct.pack(dtype, v))[0]
            h = mix(h ^ bits)
    if not content:
        h = mix(h ^ mix((place[0] * GOLDEN + place[1]) & MASK))
    return (h >> 33) % n


def rows_of(rows, dtype):
    """Put (index, value) pairs into arrays."""
    flat = [pair for row in rows for pair in row]
    lengths = np.array([len(row) for row in rows], np.int32)
    values = None if dtype is None else np.array([v for _, v in flat], dtype)
    return Rows(
        np.cumsum(lengths, dtype=np.int64) - lengths, lengths,
        np.array([k for k, _ in flat], np.int32), values, np.zeros(len(rows), np.int32),
    )  # fmt: skip


def assign(rows, n=5, seed=0, dtype="f", block=0, first=0):
    out = np.empty(len(rows), np.uint8)
    Folds(n, seed).assign(block, first, rows_of(rows, dtype), out)
    return out.tolist()


PAIRS = st.dictionaries(
    st.integers(0, 2**31 - 1),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-45]) | st.floats(-(2.0**100), 2.0**100, width=32),
    max_size=6,
).map(lambda d: sorted(d.items()))


@given(
    st.lists(PAIRS, max_size=8), st.integers(2, 255), st.integers(0, 2**63 - 1),
    st.sampled_from(["f", "d", None]), st.integers(0, 10**6), st.integers(0, 10**9),
)  # fmt: skip
def test_folds_match_definition(rows, n, seed, dtype, block, first):
    """Zeros that are written out do not matter."""
    if dtype is None:
        rows = [[(k, None) for k, _ in row] for row in rows]
    expected = [
        slow_fold(row, n, seed, (block, first + i), dtype or "f") for i, row in enumerate(rows)
    ]
    assert assign(rows, n, seed, dtype, block, first) == expected


@pytest.mark.parametrize("n", [2, 255])
def test_folds_are_equally_large_and_differ_by_seed(n):
    rows = [[(k, 1.0)] for k in range(20_000)]
    one, other = (np.array(assign(rows, n, seed)) for seed in (0, 1))
    sizes = np.bincount(one, minlength=n)
    assert len(sizes) == n
    assert ((sizes - 20_000 / n) ** 2 / (20_000 / n)).sum() < n + 5 * np.sqrt(2 * n)  # chi square
    assert np.mean(one == other) == pytest.approx(1 / n, abs=4 * np.sqrt(1 / n / 20_000))


def test_rows_without_nonzeros_are_spread():
    rows = [[], [(3, 0.0)]] * 2500
    assert (abs(np.bincount(assign(rows, 5), minlength=5) - 1000) < 150).all()
