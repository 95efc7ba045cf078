"""Folds: a row's content decides, and nothing else."""

import struct
from collections import Counter

import numpy as np
import pytest
from helpers import store_rows, write_rows
from hypothesis import given, settings
from hypothesis import strategies as st

import sbm
from sbm.jobs.engine.learners import Folds
from sbm.rows import Rows

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(x):
    """The finalizer of splitmix64 in exact integers."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def slow_fold(row, n, seed, place=(0, 0), dtype="f"):
    """Fold of a row of (index, value) pairs; values are None where all are 1."""
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


@settings(deadline=None, derandomize=True)
@given(
    st.lists(PAIRS, max_size=8), st.integers(2, 255), st.integers(0, 2**63 - 1),
    st.sampled_from(["f", "d", None]), st.integers(0, 10**6), st.integers(0, 10**9),
)  # fmt: skip
def test_folds_are_those_of_the_definition(rows, n, seed, dtype, block, first):
    if dtype is None:
        rows = [[(k, None) for k, _ in row] for row in rows]
    expected = [
        slow_fold(row, n, seed, (block, first + i), dtype or "f") for i, row in enumerate(rows)
    ]
    assert assign(rows, n, seed, dtype, block, first) == expected


def test_zeros_that_are_written_out_do_not_matter():
    plain, zero, minus = [(2, 3.0)], [(1, 0.0), (2, 3.0)], [(1, -0.0), (2, 3.0), (9, 0.0)]
    for seed in range(50):
        assert len(set(assign([plain, zero, minus], 255, seed))) == 1


def test_sign_value_index_and_order_of_rows_are_content():
    rows = [[(1, 1.0)], [(1, -1.0)], [(1, 1.0000001)], [(2, 1.0)], [(1, 1.0), (2, 1.0)]]
    differ = np.zeros((5, 5), int)
    for seed in range(200):
        folds = np.array(assign(rows, 255, seed))
        differ += folds[:, None] != folds
        assert assign(rows[::-1], 255, seed) == folds[::-1].tolist()
    assert (differ[~np.eye(5, dtype=bool)] > 190).all()


@pytest.mark.parametrize("n", [2, 5, 255])
def test_folds_are_about_equally_large_and_others_with_another_seed(n):
    rows = [[(k, 1.0)] for k in range(20_000)]
    one, other = (np.array(assign(rows, n, seed)) for seed in (0, 1))
    sizes = np.bincount(one, minlength=n)
    assert len(sizes) == n
    assert ((sizes - 20_000 / n) ** 2 / (20_000 / n)).sum() < n + 5 * np.sqrt(2 * n)  # chi square
    assert np.mean(one == other) == pytest.approx(1 / n, abs=4 * np.sqrt(1 / n / 20_000))


@pytest.mark.parametrize("empty", [[], [(3, 0.0)]])
def test_rows_without_nonzeros_are_spread(empty):
    rows = [empty] * 5000
    sizes = np.bincount(assign(rows, 5), minlength=5)
    assert (abs(sizes - 1000) < 150).all()
    assert assign(rows, 5, block=1) != assign(rows, 5, block=2)
    assert assign(rows, 5, first=100)[:50] == assign(rows, 5)[100:150]


def folds_in_training(folder, name="m.model", **options):
    """Fold of every row of a store, by content, as a tuning sees them."""
    seen = {}
    original = Folds.assign

    def spy(self, block, first, rows, out):
        original(self, block, first, rows, out)
        for i, (start, length) in enumerate(zip(rows.starts, rows.lengths, strict=True)):
            part = slice(start, start + length)
            values = () if rows.values is None else rows.values[part].tolist()
            seen.setdefault((*rows.indices[part].tolist(), *values), set()).add(int(out[i]))

    Folds.assign = spy
    try:
        sbm.tune(
            folder, folder.parent / name,
            sbm.Settings(max_passes=1, **{"mem": "400MB", **options}), Cs=[0.1], folds=4,
        )  # fmt: skip
    finally:
        Folds.assign = original
    return seen


def test_blocks_order_threads_memory_and_labels_do_not_matter(tmp_path):
    random = np.random.default_rng(0)
    X = random.integers(0, 3, (300, 4)) / 2
    X[X.sum(axis=1) == 0] = X[0] = 1  # the first row numbers the features
    y = random.choice([-1, 1], 300)  # most rows occur several times, with either label
    text = write_rows(tmp_path / "a.svm", X, y)
    order = np.append(0, 1 + random.permutation(299))
    mixed = write_rows(tmp_path / "b.svm", X[order], -y[order])
    found = []
    for k, (source, how, options) in enumerate(
        [
            (text, {"blocks": 1}, {}),
            (text, {"blocks": 7, "seed": 3}, {"threads": 1}),
            (mixed, {"blocks": 4, "shuffle": False}, {"threads": 2, "mem": "250MB"}),
        ]
    ):
        sbm.split([source], tmp_path / f"{k}.sbm", **how)
        found.append(folds_in_training(tmp_path / f"{k}.sbm", **options))
    assert found[0] == found[1] == found[2]
    assert all(len(folds) == 1 for folds in found[0].values())
    assert sorted(set().union(*found[0].values())) == [0, 1, 2, 3]
    other = folds_in_training(tmp_path / "0.sbm", seed=1)
    assert other != found[0]
    assert other.keys() == found[0].keys()


def test_copies_of_a_row_that_were_appended_later_are_in_its_fold(tmp_path):
    (tmp_path / "a.svm").write_text("1 5:1 9:1\n-1 9:1\n1 5:1\n" * 5)
    (tmp_path / "b.svm").write_text("1 1:1 7:1 9:1\n-1 9:1 5:1\n1 9:1\n" * 5)
    sbm.split([tmp_path / "a.svm"], tmp_path / "s.sbm", blocks=2)
    sbm.split([tmp_path / "b.svm"], tmp_path / "s.sbm", blocks=2, append=True)
    counts = Counter(features for block in store_rows(tmp_path / "s.sbm") for _, features in block)
    assert sorted(counts.values()) == [5, 5, 10, 10]
    found = folds_in_training(tmp_path / "s.sbm")
    assert len(found) == 4
    assert all(len(folds) == 1 for folds in found.values())
