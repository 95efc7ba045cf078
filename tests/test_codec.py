"""The codec of rows and the id table, compared with plain Python, and damaged input."""

import contextlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from inside import DIRECT_LIMIT, Buffers, IdTable, decode_rows, encode_rows, gather_rows, load

GUARD = 64
INDEX_LIMIT = 2**31 - 1
BUFFERS = Buffers(1 << 12)  # some arrays are larger; none is returned to the pool

Arrays = dict[str, npt.NDArray[Any]]

# ------------------------------------------------------------------------------------------ rows


def arrays_of(rows: list[list[int]]) -> tuple[Any, Any, Any]:
    """Place rows in an array with unused entries between them, as in an arena."""
    starts, indices = [], [-5]
    for row in rows:
        starts.append(len(indices))
        indices += [*row, -7]
    lengths = [len(row) for row in rows]
    return np.array(starts, np.int64), np.array(lengths, np.int32), np.array(indices, np.int32)


def gather(starts: Any, lengths: Any, indices: Any, values: Any, rows: list[int]) -> Any:
    """Return lengths, indices and values of the chosen rows, gathered between guard zones."""
    nnz = int(sum(lengths[k] for k in rows))
    dtype = np.float32 if values is None else values.dtype
    whole = [
        np.full(n + 2 * GUARD, -99, t)
        for n, t in ((len(rows), np.int32), (nnz, np.int32), (nnz, dtype))
    ]
    inner = [array[GUARD:-GUARD] for array in whole]
    inner[0][:] = lengths[rows]
    gather_rows(starts, indices, values, np.array(rows, np.int64), *inner)
    assert all((a[:GUARD] == -99).all() and (a[-GUARD:] == -99).all() for a in whole)
    return inner


def decode(
    arrays: Arrays, n_rows: int, nnz: int, n_features: int, dtype: str | None
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[Any] | None]:
    """Decode between guard zones; fail if they are overwritten."""
    lengths = np.full(n_rows + 2 * GUARD, -99, np.int32)
    indices = np.full(nnz + 2 * GUARD, -99, np.int32)
    values = None if dtype is None else np.full(nnz + 2 * GUARD, -99, dtype)
    inner = slice(GUARD, GUARD + nnz)
    room = None if values is None else values[inner]
    try:
        decode_rows(arrays, n_features, lengths[GUARD : GUARD + n_rows], indices[inner], room)
    finally:
        for array in (lengths, indices, values):
            if array is not None:
                assert (array[:GUARD] == -99).all()
                assert (array[-GUARD:] == -99).all()
    return lengths[GUARD:-GUARD], indices[inner], room


@st.composite
def rows_of_gaps(draw: st.DrawFn) -> list[list[int]]:
    gap = draw(
        st.sampled_from([
            st.integers(1, 3),
            st.integers(1, 2**17),
            st.one_of(st.integers(1, 9), st.integers(2**24 - 2, 2**25)),
        ])
    )  # fmt: skip
    rows = []
    for gaps in draw(st.lists(st.lists(gap, max_size=30), max_size=8)):
        first = draw(st.sampled_from([0, 0, 255, 65535, 2**24 - 1, 2**30]))
        row = [first - 1 + int(s) for s in np.cumsum(gaps)]
        rows.append([i for i in row if i < INDEX_LIMIT])
    return rows


@given(rows_of_gaps(), st.randoms(use_true_random=False))
@example([[]] * 300, None)
@example([[INDEX_LIMIT - 1]], None)
@example([list(range(0, 70000 * 300, 300)), [0]], None)
@example([list(range(k)) for k in [*range(70), 128, 1000, 5000, 65]], random.Random(1))
@example([[*range(0, INDEX_LIMIT, 2**24 + 1), *range(1, 90)], list(range(70))], None)
def test_encoded_rows_decode_sorted(rows, random):
    order = list(range(len(rows)))[::-1]
    if random is not None and rows:
        order = random.choices(order, k=random.randint(0, 10))
        rows = [random.sample(row, len(row)) for row in rows]
    starts, lengths, indices = arrays_of(rows)
    chosen = [sorted(rows[k]) for k in order]
    flat = [i for row in chosen for i in row]
    n_features = max(flat, default=0) + 1
    for dtype in (None, "float32", "float64"):
        values = None if dtype is None else (indices * 0.25 - 3).astype(dtype)
        gathered = gather(starts, lengths, indices, values, order)
        assert gathered[0].tolist() == [len(row) for row in chosen]
        assert gathered[1].tolist() == flat
        expected = 1 if dtype is None else (gathered[1] * 0.25 - 3).astype(dtype)
        assert (gathered[2] == expected).all()
        arrays = encode_rows(*gathered, BUFFERS)
        got_lengths, got_indices, got_values = decode(
            arrays, len(order), len(flat), n_features, dtype
        )
        assert got_lengths.tolist() == [len(row) for row in chosen]
        assert got_indices.tolist() == flat
        assert dtype is None or (got_values == (got_indices * 0.25 - 3).astype(dtype)).all()


def test_values_of_one_are_not_stored():
    starts, lengths, indices = arrays_of([[1, 5], [2]])
    values = np.full(len(indices), 1, np.float32)
    values[0] = 8  # not part of any row
    arrays = encode_rows(*gather(starts, lengths, indices, values, [0, 1]), BUFFERS)
    assert "values" not in arrays
    assert decode(arrays, 2, 3, 6, "float32")[2].tolist() == [1, 1, 1]


# ---------------------------------------------------------------------------------------- damage

ENCODED = [[0, 3, 9], [], [5, 70000], list(range(400))]


def encoded(n_distinct: int = 256) -> Arrays:
    starts, lengths, indices = arrays_of(ENCODED)
    values = np.arange(len(indices), dtype=np.float32) % n_distinct
    return encode_rows(*gather(starts, lengths, indices, values, [0, 1, 2, 3]), BUFFERS)


SIZES: list[Callable[[Any], Any]] = [
    lambda a: a[:-1], lambda a: a[:1], lambda a: a[:0], lambda a: np.append(a, a),
    lambda a: a.reshape(-1, 1), lambda a: a.reshape(1, -1), lambda a: a.astype(np.float64),
    lambda a: a.astype(np.int8), lambda a: a.astype(np.bool_),
]  # fmt: skip
SYMBOLS: list[Callable[[Any], Any]] = [
    lambda a: a + np.uint8(1), lambda a: a - np.uint8(1), np.zeros_like,
    *(lambda a, symbol=symbol: np.full_like(a, symbol) for symbol in (127, 227, 254, 255)),
]  # fmt: skip
DAMAGE: dict[str, list[Callable[[Any], Any]]] = {
    "lengths": [*SIZES, *SYMBOLS],
    "gaps": [*SIZES, *SYMBOLS],
    "lengths_bits": [*SIZES, lambda a: a[:7], lambda a: np.append(a, np.uint8(0))],
    "gaps_bits": [*SIZES, lambda a: np.append(a, np.uint8(0)), lambda a: np.full_like(a, 255)],
    "table": [
        *SIZES,
        lambda a: a[0].reshape(()),
        lambda a: np.full_like(a, np.nan),
        lambda a: np.full_like(a, -np.inf),
    ],
    "values": [*SIZES, lambda a: np.full_like(a, 255)],
}


BYTES = st.binary(max_size=40).map(lambda data: np.frombuffer(data, np.uint8))
STREAMS = st.fixed_dictionaries(
    dict.fromkeys(("lengths", "lengths_bits", "gaps", "gaps_bits"), BYTES)
)


def test_inconsistent_arrays_are_refused():
    nnz = sum(map(len, ENCODED))
    for n_distinct in (200, 500):
        arrays = encoded(n_distinct)
        assert ("table" in arrays) == (n_distinct < 256)
        assert decode(arrays, 4, nnz, 70001, "float32")[0].tolist() == [3, 0, 2, 400]
        for dtype in ("float64", None):
            with pytest.raises(ValueError, match="values"):
                decode(arrays, 4, nnz, 70001, dtype)
    for name, changes in DAMAGE.items():
        for change in changes:
            for n_distinct in (200, 500) if name == "values" else (200,):
                arrays = encoded(n_distinct)
                arrays[name] = np.array(change(arrays[name]), order="C")
                with pytest.raises(ValueError, match=r".*"):
                    decode(arrays, 4, nnz, 70001, "float32")
        if name not in ("values", "table"):
            arrays = encoded()
            del arrays[name]
            with pytest.raises(KeyError):
                decode(arrays, 4, nnz, 70001, "float32")
    with pytest.raises(ValueError, match="features"):
        decode(encoded(), 4, nnz, 70000, "float32")


STREAMS = st.one_of(
    st.fixed_dictionaries(
        dict.fromkeys(
            ("lengths", "lengths_bits", "gaps", "gaps_bits"), st.binary(max_size=40).map(bytearray)
        )
    ),
    st.just({name: bytearray(array.tobytes()) for name, array in encoded().items()}),
)


@given(STREAMS, st.sampled_from([100, 70001, 2**31 - 1]), st.randoms(use_true_random=False))
def test_random_bytes_never_write_out_of_bounds(streams, n_features, random):
    name = random.choice(sorted(streams))
    if streams[name]:
        streams[name][random.randrange(len(streams[name]))] = random.randrange(256)
    arrays = {name: np.frombuffer(data, np.uint8) for name, data in streams.items()}
    arrays.pop("values", None)
    arrays.pop("table", None)
    n, nnz = len(arrays["lengths"]), len(arrays["gaps"])
    with contextlib.suppress(ValueError):
        lengths, indices, _ = decode(arrays, n, nnz, n_features, None)
        assert lengths.min(initial=0) >= 0
        assert lengths.sum() == nnz
        for row in np.split(indices, np.cumsum(lengths)[:-1]) if n else []:
            assert (np.diff(row) > 0).all()
            assert ((row >= 0) & (row < n_features)).all()


# -------------------------------------------------------------------------------------- id table

KEYS = st.one_of(
    st.integers(0, 40),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(DIRECT_LIMIT - 3, DIRECT_LIMIT + 3),
    st.sampled_from([-(2**63), -1, 2**63 - 1, 2**32, 1023, 1024, 1025]),
    st.integers(0, 50).map(lambda k: k << 57),  # equal low bits
)


def ids(keys: list[int]) -> npt.NDArray[np.int64]:
    return np.array(keys, np.int64)


@given(st.lists(st.lists(KEYS, max_size=40), max_size=5), st.lists(KEYS, max_size=20), st.data())
def test_id_table_agrees_with_a_dictionary(batches, others, data):
    table, known = IdTable(), {}
    for batch in batches:
        expected = [known.setdefault(key, len(known)) for key in batch]
        assert table.intern(ids(batch)).tolist() == expected
    questions = others + list(known)
    answers = [known.get(key, -1) for key in questions]
    for same in (table, IdTable(table.keys)):
        assert same.find(ids(questions)).tolist() == answers
        assert (len(same), same.keys.tolist()) == (len(known), list(known))
    got = np.empty(len(questions), np.int32)
    unknown = table.look_up(ids(questions), got, np.empty_like(got))  # small keys only
    small = [a if 0 <= k < DIRECT_LIMIT else -1 for k, a in zip(questions, answers, strict=True)]
    assert got.tolist() == small
    assert unknown.tolist() == np.flatnonzero(got == -1).tolist()

    stays = data.draw(st.lists(st.booleans(), min_size=len(known), max_size=len(known)))
    table.keep(np.array(stays, np.bool_))
    kept = [key for key, stay in zip(known, stays, strict=True) if stay]
    known = {key: code for code, key in enumerate(kept)}
    assert table.keys.tolist() == kept
    assert table.find(ids(questions)).tolist() == [known.get(key, -1) for key in questions]
    expected = [known.setdefault(key, len(known)) for key in questions]
    assert table.intern(ids(questions)).tolist() == expected


@pytest.mark.parametrize("shift", [0, 40])
def test_id_table_grows_over_many_keys(shift):
    r = np.random.default_rng(1)
    keys = r.integers(0, 2**22, 60_000) << shift
    keys[::7] = r.integers(-(2**63), 2**63 - 1, len(keys[::7]))
    table, known = IdTable(), {}
    codes = np.concatenate([table.intern(part) for part in np.array_split(keys, 13)])
    assert codes.tolist() == [known.setdefault(key, len(known)) for key in keys.tolist()]
    assert table.keys.tolist() == list(known)
    assert np.array_equal(table.find(keys), codes)
    assert table.nbytes >= 8 * len(table)


def test_adversarial_keys_do_not_collide():
    # With a publicly known factor, these would all hash to the same slot.
    known = 0x9E3779B97F4A7C15  # 2^64 / golden ratio
    words = [k * pow(known, -1, 2**64) % 2**64 for k in range(20000)]
    made = [word ^ (word >> 32) for word in words]
    keys = ids([key for key in made if DIRECT_LIMIT < key < 2**63])
    assert len(keys) > 5000
    table = IdTable()
    assert table.intern(keys).tolist() == list(range(len(keys)))
    free = np.concatenate([[-1], np.flatnonzero(table._slots == 0)])
    assert np.diff(free).max() < 1000, "keys lie in one long row"


def test_counts_stop_at_their_limit():
    counts = np.array([0, 0, 2, 2**31 - 2], np.int32)
    for _ in range(3):
        load("sbm.inputs.kernels.ids").count(np.array([3, 1, 2, 2], np.int32), counts, 2**31 - 1)
    assert counts.tolist() == [0, 3, 8, 2**31 - 1]
    load("sbm.inputs.kernels.ids").count(np.array([0, 0, 0], np.int32), counts, 2)
    assert counts.tolist() == [2, 3, 8, 2**31 - 1]
