"""Rows as byte planes, ids as codes: against plain Python, and against damage."""

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sbm.store.codec import decode_rows, encode_rows, join_planes, split_planes
from sbm.store.idtable import DIRECT_LIMIT, IdTable, sort_rows

QUICK = settings(deadline=None, derandomize=True, max_examples=150)
GUARD = 64
INDEX_LIMIT = 2**31 - 1

Arrays = dict[str, npt.NDArray[Any]]


# ---------------------------------------------------------------------------------------- planes

NUMBERS = st.one_of(
    st.integers(0, 300),
    st.integers(0, 2**32 - 1),
    st.sampled_from([254, 255, 256, 65534, 65535, 65536, 2**24 - 2, 2**24 - 1, 2**24, 2**32 - 1]),
)


@QUICK
@given(st.lists(NUMBERS, max_size=60), st.integers(1, 6))
@example([], 1)
@example([2**32 - 1] * 5, 1)
@example([2**32 - 2] * 5, 1)
def test_planes_give_the_numbers_back(numbers: list[int], times: int) -> None:
    given_numbers = np.array(numbers * times, np.uint32)
    planes, exceptions = split_planes(given_numbers)
    out = np.full(len(given_numbers), 7, np.uint32)
    join_planes(planes, exceptions, out)
    assert out.tolist() == given_numbers.tolist()


@pytest.mark.parametrize(("largest", "width"), [(254, 1), (65534, 2), (2**24 - 2, 3), (2**31, 4)])
def test_every_width_is_used_where_it_pays(largest: int, width: int) -> None:
    numbers = np.full(1000, largest, np.uint32)
    planes, exceptions = split_planes(numbers)
    assert planes.shape == (width, 1000)
    assert len(exceptions) == 0
    numbers[1:] = 3
    planes, exceptions = split_planes(numbers)
    assert planes.shape == (1, 1000)
    assert exceptions.tolist() == ([] if width == 1 else [largest])


@pytest.mark.parametrize("change", [-1, 1])
def test_exceptions_that_do_not_match_are_refused(change: int) -> None:
    numbers = np.array([1, 1000, 3, 2000, *[4] * 50], np.uint32)
    planes, exceptions = split_planes(numbers)
    assert len(exceptions) == 2
    wrong = exceptions[:1] if change < 0 else np.append(exceptions, np.uint32(9))
    with pytest.raises(ValueError, match="the exceptions of the byte planes do not match"):
        join_planes(planes, wrong, np.empty(len(numbers), np.uint32))


# ------------------------------------------------------------------------------------------ rows


def arrays_of(rows: list[list[int]]) -> tuple[Any, Any, Any]:
    """Lay rows out with unused places between them, as in an arena."""
    starts, indices = [], [-5]
    for row in rows:
        starts.append(len(indices))
        indices += [*row, -7]
    lengths = [len(row) for row in rows]
    return np.array(starts, np.int64), np.array(lengths, np.int32), np.array(indices, np.int32)


def decode(
    arrays: Arrays, n_rows: int, nnz: int, n_features: int, dtype: str | None
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[Any] | None]:
    """Decode between guard zones; a write into them is an error, whatever else happens."""
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
            st.integers(1, 300),
            st.integers(1, 2**17),
            st.one_of(st.integers(1, 9), st.integers(2**24 - 2, 2**25)),
            st.one_of(st.just(1), st.sampled_from([255, 256, 257, 65535, 65536, 65537])),
        ])
    )  # fmt: skip
    rows = []
    for gaps in draw(st.lists(st.lists(gap, max_size=30), max_size=8)):
        first = draw(st.sampled_from([0, 0, 254, 255, 65534, 65535, 65536, 2**24 - 1, 2**30]))
        row = [first - 1 + int(s) for s in np.cumsum(gaps)]
        rows.append([i for i in row if i < INDEX_LIMIT])
    return rows


@QUICK
@given(rows_of_gaps(), st.data())
@example([], None)
@example([[]], None)
@example([[0]], None)
@example([[INDEX_LIMIT - 1]], None)
@example([[]] * 300, None)
@example([list(range(0, 70000 * 300, 300)), [0]], None)
@example([list(range(0, 70000 * 30, 30))] * 3, None)
def test_rows_come_back_in_the_order_chosen(rows: list[list[int]], data: Any) -> None:
    order = list(range(len(rows)))[::-1]
    if data is not None and rows:
        order = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=10))
    starts, lengths, indices = arrays_of(rows)
    chosen = [rows[k] for k in order]
    flat = [i for row in chosen for i in row]
    n_features = max(flat, default=0) + 1
    for dtype in (None, "float32", "float64"):
        values = None if dtype is None else (np.arange(len(indices)) * 0.1 - 3).astype(dtype)
        arrays = encode_rows(starts, lengths, indices, values, np.array(order, np.int64))
        got_lengths, got_indices, got_values = decode(
            arrays, len(order), len(flat), n_features, dtype
        )
        assert got_lengths.tolist() == [len(row) for row in chosen]
        assert got_indices.tolist() == flat
        if values is None:
            assert "values" not in arrays
        else:
            assert got_values is not None
            expected = [values[starts[k] + j] for k in order for j in range(lengths[k])]
            assert got_values.tolist() == [float(v) for v in expected]


def test_values_that_are_all_one_take_no_array_and_come_back_as_ones() -> None:
    starts, lengths, indices = arrays_of([[1, 5], [2]])
    values = np.full(len(indices), 1, np.float32)
    values[0] = 8  # belongs to no row
    arrays = encode_rows(starts, lengths, indices, values, np.arange(2))
    assert "values" not in arrays
    assert decode(arrays, 2, 3, 6, "float32")[2].tolist() == [1, 1, 1]  # type: ignore[union-attr]


def encoded() -> Arrays:
    starts, lengths, indices = arrays_of([[0, 3, 9], [], [5, 70000], list(range(40))])
    values = np.arange(len(indices), dtype=np.float32)
    return encode_rows(starts, lengths, indices, values, np.arange(4))


def test_the_example_of_the_damage_tests_is_sound() -> None:
    assert decode(encoded(), 4, 45, 70001, "float32")[0].tolist() == [3, 0, 2, 40]


def test_an_index_that_is_no_feature_is_refused() -> None:
    with pytest.raises(ValueError, match="the gaps do not make rows of known features"):
        decode(encoded(), 4, 45, 70000, "float32")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        pytest.param("lengths", lambda a: a[:, :-1], id="lengths-short"),
        pytest.param("lengths", lambda a: np.hstack([a, a]), id="lengths-twice"),
        pytest.param("lengths", lambda a: a + np.uint8(1), id="lengths-plus"),
        pytest.param("lengths", lambda a: a - np.uint8(1), id="lengths-minus"),
        pytest.param("lengths", lambda a: np.full_like(a, 254), id="lengths-254"),
        pytest.param("lengths", lambda a: np.full_like(a, 255), id="lengths-255"),
        pytest.param("lengths", lambda a: a[:0], id="lengths-no-plane"),
        pytest.param("lengths", lambda a: a[0], id="lengths-flat"),
        pytest.param("lengths", lambda a: np.zeros_like(a), id="lengths-zero"),
        pytest.param("lengths_more", lambda a: np.array([5], np.uint32), id="lengths-more"),
        pytest.param("gaps", lambda a: a[:, :-1], id="gaps-short"),
        pytest.param("gaps", lambda a: np.hstack([a, a]), id="gaps-twice"),
        pytest.param("gaps", lambda a: np.full_like(a, 255), id="gaps-255"),
        pytest.param("gaps", lambda a: np.vstack([a, a, a, a, a]), id="gaps-5-planes"),
        pytest.param("gaps", lambda a: np.vstack([a] * 9), id="gaps-9-planes"),
        pytest.param("gaps", lambda a: a[:0], id="gaps-no-plane"),
        pytest.param("gaps", lambda a: a[0], id="gaps-flat"),
        pytest.param("gaps_more", lambda a: a[:0], id="more-missing"),
        pytest.param("gaps_more", lambda a: np.append(a, np.uint32(1)), id="more-extra"),
        pytest.param("gaps_more", lambda a: a + np.uint32(2**31), id="more-large"),
        pytest.param("gaps_more", lambda a: np.full_like(a, 2**32 - 1), id="more-largest"),
        pytest.param("values", lambda a: a[:-1], id="values-short"),
        pytest.param("values", lambda a: np.append(a, a), id="values-twice"),
        pytest.param("values", lambda a: a[:1], id="values-one"),
        pytest.param("values", lambda a: a[:0], id="values-none"),
        pytest.param("values", lambda a: a.reshape(-1, 1), id="values-column"),
        pytest.param("values", lambda a: a.reshape(1, -1), id="values-row"),
    ],
)
def test_arrays_that_contradict_each_other_are_refused(name: str, change: Any) -> None:
    arrays = encoded()
    arrays[name] = np.ascontiguousarray(change(arrays[name]))
    with pytest.raises((ValueError, IndexError)):
        decode(arrays, 4, 45, 70001, "float32")


@pytest.mark.parametrize("name", ["lengths", "lengths_more", "gaps", "gaps_more", "values"])
@pytest.mark.parametrize("dtype", ["float64", "bool", "int64"])
def test_arrays_of_another_type_are_refused(name: str, dtype: str) -> None:
    arrays = encoded()
    arrays[name] = arrays[name].astype(dtype)
    with pytest.raises((ValueError, IndexError)):
        decode(arrays, 4, 45, 70001, "float32")


@pytest.mark.parametrize("name", ["lengths", "lengths_more", "gaps", "gaps_more"])
def test_missing_arrays_are_refused(name: str) -> None:
    arrays = encoded()
    del arrays[name]
    with pytest.raises(KeyError):
        decode(arrays, 4, 45, 70001, "float32")


def test_random_damage_is_refused_or_decodes_to_valid_rows() -> None:
    r = np.random.default_rng(4)
    refused = 0
    for _ in range(2000):
        arrays = encoded()
        name = r.choice(["lengths", "gaps", "gaps_more"])
        flat = arrays[name] = arrays[name].copy()
        flat.reshape(-1)[r.integers(flat.size)] = r.integers(256)
        try:
            lengths, indices, _ = decode(arrays, 4, 45, 70001, "float32")
        except ValueError:
            refused += 1
            continue
        assert lengths.min() >= 0
        assert lengths.sum() == 45
        for row in np.split(indices, np.cumsum(lengths)[:-1]):
            assert (np.diff(row) > 0).all()
            assert ((row >= 0) & (row <= 70000)).all()
    assert 300 < refused < 2000


# --------------------------------------------------------------------------------------- id table

KEYS = st.one_of(
    st.integers(0, 40),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(DIRECT_LIMIT - 3, DIRECT_LIMIT + 3),
    st.sampled_from([-(2**63), -1, 0, 2**63 - 1, 2**32, 2**24, 2**24 - 1, 1023, 1024, 1025]),
    st.integers(0, 50).map(lambda k: k << 57),  # alike in their low bits
)


@QUICK
@given(st.lists(st.lists(KEYS, max_size=40), max_size=5), st.lists(KEYS, max_size=20))
def test_the_id_table_does_what_a_dictionary_does(
    batches: list[list[int]], others: list[int]
) -> None:
    table, known = IdTable(), {}
    for batch in batches:
        expected = [known.setdefault(key, len(known)) for key in batch]
        assert table.intern(np.array(batch, np.int64)).tolist() == expected
    assert len(table) == len(known)
    assert table.keys.tolist() == list(known)
    questions = others + [key for batch in batches for key in batch]
    answers = [known.get(key, -1) for key in questions]
    assert table.find(np.array(questions, np.int64)).tolist() == answers
    assert len(table) == len(known), "find must not add"
    again = IdTable(table.keys)
    assert again.find(np.array(questions, np.int64)).tolist() == answers
    fresh = [key for key in others if key not in known]
    expected = [known.setdefault(key, len(known)) for key in fresh]
    assert again.intern(np.array(fresh, np.int64)).tolist() == expected
    assert again.keys.tolist() == list(known)


@pytest.mark.parametrize("shift", [0, 40])
def test_the_id_table_grows_over_many_keys_of_any_size(shift: int) -> None:
    r = np.random.default_rng(1)
    keys = r.integers(0, 2**22, 300_000) << shift
    keys[::7] = r.integers(-(2**63), 2**63 - 1, len(keys[::7]))
    table = IdTable()
    codes = np.concatenate([table.intern(part) for part in np.array_split(keys, 13)])
    unique, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    assert len(table) == len(unique)
    rank = np.empty(len(unique), np.int64)
    rank[np.argsort(first)] = np.arange(len(unique))
    assert np.array_equal(codes, rank[inverse])
    assert np.array_equal(table.keys[codes], keys)
    assert np.array_equal(table.find(keys), codes)
    assert table.nbytes >= 8 * len(table)


# ---------------------------------------------------------------------------------------- sorting


@pytest.mark.parametrize("values", [None, "float32", "float64"])
def test_rows_are_sorted_as_numpy_sorts_them(values: str | None) -> None:
    r = np.random.default_rng(2)
    lengths = [0, 1, 2, 3, 63, 64, 65, 66, 128, 1000, 0, 5000, *r.integers(0, 200, 100)]
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    keys = np.concatenate([r.permutation(5 * n)[:n] for n in lengths]).astype(np.int32)
    numbers = None if values is None else r.standard_normal(len(keys)).astype(values)
    expected_keys = keys.copy()
    expected_numbers = None if numbers is None else numbers.copy()
    for low, high in itertools.pairwise(indptr):
        order = low + np.argsort(keys[low:high])
        expected_keys[low:high] = keys[order]
        if expected_numbers is not None and numbers is not None:
            expected_numbers[low:high] = numbers[order]
    sort_rows(indptr, keys, numbers)
    assert np.array_equal(keys, expected_keys)
    if numbers is not None:
        assert np.array_equal(numbers, expected_numbers)


@pytest.mark.parametrize("n", [64, 65, 3000])
def test_rows_that_are_sorted_or_reversed_already_come_out_sorted(n: int) -> None:
    keys = np.concatenate([np.arange(n), np.arange(n)[::-1]]).astype(np.int32)
    values = keys * 2.0
    sort_rows(np.array([0, n, 2 * n]), keys, values)
    assert np.array_equal(keys, np.tile(np.arange(n), 2))
    assert np.array_equal(values, keys * 2.0)
