"""Rows as byte planes, ids as codes: against plain Python, and against damage."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sbm.store.buffers import Buffers
from sbm.store.codec import decode_rows, encode_rows, kernels
from sbm.store.idtable import DIRECT_LIMIT, IdTable, count_codes, drop_unknown
from sbm.store.planes import join_planes

QUICK = settings(deadline=None, derandomize=True, max_examples=150)
GUARD = 64
INDEX_LIMIT = 2**31 - 1
BUFFERS = Buffers(1 << 12)  # some arrays are larger, and none is given back

Arrays = dict[str, npt.NDArray[Any]]


# --------------------------------------------------------------------------- planes of version 1


def planes_of(numbers: list[int], width: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Write numbers as version 1 did: planes of bytes, and exceptions behind the escape."""
    escape = 256**width - 1
    fitting = np.array([min(x, escape) for x in numbers], np.int64)
    planes = np.array([(fitting >> 8 * b) & 255 for b in range(width)], np.uint8)
    exceptions = [x for x in numbers if x >= escape]
    return planes.reshape(width, len(numbers)), np.array(exceptions, np.uint32)


NUMBERS = st.one_of(
    st.integers(0, 300),
    st.integers(0, 2**32 - 1),
    st.sampled_from([254, 255, 256, 65534, 65535, 65536, 2**24 - 2, 2**24 - 1, 2**24, 2**32 - 1]),
)


@QUICK
@given(st.lists(NUMBERS, max_size=60), st.integers(1, 4))
@example([], 1)
@example([2**32 - 1] * 5, 1)
@example([2**32 - 1] * 5, 4)
def test_planes_of_version_1_give_the_numbers_back(numbers: list[int], width: int) -> None:
    out = np.full(len(numbers), 7, np.uint32)
    join_planes(*planes_of(numbers, width), out)
    assert out.tolist() == numbers


@pytest.mark.parametrize("change", [-1, 1])
def test_exceptions_that_do_not_match_are_refused(change: int) -> None:
    planes, exceptions = planes_of([1, 1000, 3, 2000, *[4] * 50], 1)
    assert len(exceptions) == 2
    wrong = exceptions[:1] if change < 0 else np.append(exceptions, np.uint32(9))
    with pytest.raises(ValueError, match="the exceptions of the byte planes do not match"):
        join_planes(planes, wrong, np.empty(54, np.uint32))


# ------------------------------------------------------------------------------ symbols and bits


@QUICK
@given(st.lists(NUMBERS.filter(lambda x: x < 2**31), max_size=60))
@example([])
@example([2**31 - 1] * 5)
@example([127, 128, 129, 159, 160, 255, 256])
@example(list(range(1000)))
@example([2**k + d for k in range(2, 31) for d in (-1, 0, 1)])
def test_symbols_and_bits_give_the_numbers_back(numbers: list[int]) -> None:
    plain = np.array(numbers, np.int32)
    symbols = np.empty(len(plain), np.uint8)
    bits = np.empty(4 * len(plain) + 16, np.uint8)
    bits = bits[: kernels.encode_numbers(plain, symbols, bits)]
    assert (symbols[plain < 128] == plain[plain < 128]).all()
    n_bits = sum(x.bit_length() - 3 for x in numbers if x >= 128)
    assert len(bits) == -(-n_bits // 8) + 8
    out = np.full(len(plain), 7, np.int32)
    limit = max(numbers, default=0) + 1
    assert kernels.decode_numbers(symbols, bits, limit, out)
    assert out.tolist() == numbers
    if numbers:
        assert not kernels.decode_numbers(symbols, bits, limit - 1, out)
    assert not kernels.decode_numbers(symbols, np.append(bits, np.uint8(0)), limit, out)


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
        arrays = encode_rows(starts, lengths, indices, values, np.array(order, np.int64), BUFFERS)
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
    arrays = encode_rows(starts, lengths, indices, values, np.arange(2), BUFFERS)
    assert "values" not in arrays
    assert decode(arrays, 2, 3, 6, "float32")[2].tolist() == [1, 1, 1]  # type: ignore[union-attr]


ENCODED = [[0, 3, 9], [], [5, 70000], list(range(40))]


def encoded() -> Arrays:
    starts, lengths, indices = arrays_of(ENCODED)
    values = np.arange(len(indices), dtype=np.float32)
    return encode_rows(starts, lengths, indices, values, np.arange(4), BUFFERS)


def encoded_1() -> Arrays:
    """The same rows as version 1 wrote them."""
    gaps = [x - y - 1 for row in ENCODED for x, y in zip(row, [-1, *row], strict=False)]
    arrays: Arrays = {"values": encoded()["values"]}
    arrays["lengths"], arrays["lengths_more"] = planes_of([len(row) for row in ENCODED], 1)
    arrays["gaps"], arrays["gaps_more"] = planes_of(gaps, 1)
    return arrays


EXAMPLES = {1: encoded_1, 2: encoded}
VERSIONS = pytest.mark.parametrize("version", [1, 2])


@VERSIONS
def test_the_example_of_the_damage_tests_is_sound(version: int) -> None:
    lengths, indices, values = decode(EXAMPLES[version](), 4, 45, 70001, "float32")
    assert lengths.tolist() == [3, 0, 2, 40]
    assert indices.tolist() == [i for row in ENCODED for i in row]
    assert values is not None
    assert values[:5].tolist() == [1, 2, 3, 6, 7]


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_planes_of_any_width_are_read(width: int) -> None:
    arrays = encoded_1()
    gaps = [*arrays["gaps"][0].tolist()]
    gaps[gaps.index(255)] = int(arrays["gaps_more"][0])
    arrays["gaps"], arrays["gaps_more"] = planes_of(gaps, width)
    indices = decode(arrays, 4, 45, 70001, "float32")[1]
    assert indices.tolist() == [i for row in ENCODED for i in row]


@VERSIONS
def test_an_index_that_is_no_feature_is_refused(version: int) -> None:
    with pytest.raises(ValueError, match="the gaps do not make rows of known features"):
        decode(EXAMPLES[version](), 4, 45, 70000, "float32")


DAMAGE: list[tuple[int, str, Callable[[Any], Any]]] = [
    *[
        (version, name, change)
        for version in (1, 2)
        for name in ("lengths", "gaps")
        for change in (
            lambda a: a[..., :-1],
            lambda a: np.concatenate([a, a], axis=-1),
            lambda a: a + np.uint8(1),
            lambda a: a - np.uint8(1),
            lambda a: np.full_like(a, 127),
            lambda a: np.full_like(a, 254),
            lambda a: np.full_like(a, 255),
            lambda a: np.zeros_like(a),
            lambda a: a[:0],
            lambda a: a.reshape(-1, 1),
            lambda a: a[0],
            lambda a: np.vstack([a] * 5),
            lambda a: np.vstack([a] * 9),
        )
    ],
    (1, "lengths_more", lambda a: np.array([5], np.uint32)),
    (1, "gaps_more", lambda a: a[:0]),
    (1, "gaps_more", lambda a: np.append(a, np.uint32(1))),
    (1, "gaps_more", lambda a: a + np.uint32(2**31)),
    (1, "gaps_more", lambda a: np.full_like(a, 2**32 - 1)),
    *[
        (2, name, change)
        for name in ("lengths_bits", "gaps_bits")
        for change in (
            lambda a: a[:-1],
            lambda a: a[:7],
            lambda a: a[:0],
            lambda a: np.append(a, np.uint8(0)),
            lambda a: np.append(a, a),
            lambda a: a.reshape(1, -1),
            lambda a: a.reshape(-1, 1),
        )
    ],
    (2, "gaps_bits", lambda a: np.full_like(a, 255)),
    *[
        (version, "values", change)
        for version in (1, 2)
        for change in (
            lambda a: a[:-1],
            lambda a: np.append(a, a),
            lambda a: a[:1],
            lambda a: a[:0],
            lambda a: a.reshape(-1, 1),
            lambda a: a.reshape(1, -1),
        )
    ],
]


@pytest.mark.parametrize(("version", "name", "change"), DAMAGE)
def test_arrays_that_contradict_each_other_are_refused(
    version: int, name: str, change: Callable[[Any], Any]
) -> None:
    arrays = EXAMPLES[version]()
    arrays[name] = np.ascontiguousarray(change(arrays[name]))
    with pytest.raises((ValueError, IndexError)):
        decode(arrays, 4, 45, 70001, "float32")


NAMES = [(v, name) for v in (1, 2) for name in EXAMPLES[v]()]


@pytest.mark.parametrize(("version", "name"), NAMES)
@pytest.mark.parametrize("dtype", ["float64", "bool", "int64"])
def test_arrays_of_another_type_are_refused(version: int, name: str, dtype: str) -> None:
    arrays = EXAMPLES[version]()
    arrays[name] = arrays[name].astype(dtype)
    with pytest.raises((ValueError, IndexError)):
        decode(arrays, 4, 45, 70001, "float32")


@pytest.mark.parametrize(("version", "name"), [n for n in NAMES if n[1] != "values"])
def test_missing_arrays_are_refused(version: int, name: str) -> None:
    arrays = EXAMPLES[version]()
    del arrays[name]
    with pytest.raises(KeyError):
        decode(arrays, 4, 45, 70001, "float32")


@pytest.mark.parametrize(
    ("version", "names"),
    [(1, ["lengths", "gaps", "gaps_more"]), (2, ["lengths", "gaps", "gaps_bits", "lengths_bits"])],
)
def test_random_damage_is_refused_or_decodes_to_valid_rows(version: int, names: list[str]) -> None:
    r = np.random.default_rng(4)
    refused = 0
    for _ in range(2000):
        arrays = EXAMPLES[version]()
        name = r.choice(names)
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


@QUICK
@given(st.lists(st.tuples(KEYS, st.booleans()), max_size=80, unique_by=lambda pair: pair[0]))
def test_an_id_table_that_keeps_some_keys_is_a_table_of_those(
    pairs: list[tuple[int, bool]],
) -> None:
    table, keys = IdTable(), np.array([key for key, _ in pairs], np.int64)
    table.intern(keys)
    table.keep(np.array([stays for _, stays in pairs], np.bool_))
    kept = [key for key, stays in pairs if stays]
    assert table.keys.tolist() == kept
    codes = {key: code for code, key in enumerate(kept)}
    assert table.find(keys).tolist() == [codes.get(key, -1) for key, _ in pairs]
    fresh = [key for key, stays in pairs if not stays]
    again = table.intern(np.array(fresh, np.int64))
    assert again.tolist() == list(range(len(kept), len(pairs)))


@QUICK
@given(
    st.lists(
        st.lists(st.tuples(st.integers(-1, 4), st.sampled_from([1.0, 1.0, 0.5])), max_size=6),
        max_size=6,
    ),
    st.sampled_from(["float32", "float64", None]),
)
def test_nonzeros_without_a_code_are_taken_out_of_their_rows(
    rows: list[list[tuple[int, float]]], dtype: str | None
) -> None:
    flat = [pair for row in rows for pair in row]
    indptr = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    codes = np.array([code for code, _ in flat], np.int32)
    values = None if dtype is None else np.array([value for _, value in flat], dtype)
    n, ones = drop_unknown(indptr, codes, values)
    kept = [[pair for pair in row if pair[0] >= 0] for row in rows]
    left = [pair for row in kept for pair in row]
    assert indptr.tolist() == np.cumsum([0, *map(len, kept)]).tolist()
    assert (n, codes[:n].tolist()) == (len(left), [code for code, _ in left])
    assert ones == (values is None or all(value == 1 for _, value in left))
    if values is not None:
        assert values[:n].tolist() == [value for _, value in left]


def test_a_count_stops_at_the_most_it_needs_to_tell() -> None:
    counts = np.array([0, 0, 2, 2**31 - 2], np.int32)
    for _ in range(3):
        count_codes(np.array([3, 1, 2, 2], np.int32), counts, 2**31 - 1)
    assert counts.tolist() == [0, 3, 8, 2**31 - 1]
    count_codes(np.array([0, 0, 0], np.int32), counts, 2)
    assert counts.tolist() == [2, 3, 8, 2**31 - 1]


@QUICK
@given(st.lists(KEYS, max_size=60), st.lists(KEYS, max_size=60))
def test_a_look_up_finds_small_keys_and_says_where_it_found_nothing(
    known: list[int], questions: list[int]
) -> None:
    table = IdTable()
    codes = dict(zip(known, table.intern(np.array(known, np.int64)).tolist(), strict=True))
    got = np.empty(len(questions) + len(known), np.int32)
    unknown = table.look_up(np.array([*questions, *known], np.int64), got)
    small = [k if 0 <= k < DIRECT_LIMIT else None for k in [*questions, *known]]
    assert got.tolist() == [-1 if k is None else codes.get(k, -1) for k in small]
    assert unknown.tolist() == np.flatnonzero(got == -1).tolist()


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


@pytest.mark.parametrize("order", ["random", "increasing", "decreasing"])
@pytest.mark.parametrize("values", [None, "float32", "float64"])
def test_rows_in_any_order_are_sorted_with_their_values(values: str | None, order: str) -> None:
    r = np.random.default_rng(2)
    lengths = [*range(70), 128, 1000, 0, 5000, 65, 17, 15, 1]
    rows = [np.sort(r.permutation(5 * n)[:n]) for n in lengths]
    change = {"random": r.permutation, "increasing": np.copy, "decreasing": np.flip}[order]
    # Nothing stands behind the last row: no kernel may look there.
    indices = np.concatenate([change(row) for row in rows]).astype(np.int32)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    numbers = None if values is None else (indices * 0.25 - 3).astype(values)
    arrays = encode_rows(
        starts, np.array(lengths, np.int32), indices, numbers, np.arange(len(rows)), BUFFERS
    )
    got = decode(arrays, len(rows), len(indices), 25_000, values)
    assert np.array_equal(got[1], np.concatenate(rows))
    if got[2] is not None:
        assert np.array_equal(got[2], got[1] * 0.25 - 3)


def test_keys_made_to_meet_in_one_place_do_not() -> None:
    # With a factor that everybody knows, these would all begin at the same place of the table.
    known = 0x9E3779B97F4A7C15  # 2^64 / golden ratio
    words = [k * pow(known, -1, 2**64) % 2**64 for k in range(20000)]
    made = [word ^ (word >> 32) for word in words]
    keys = np.array([key for key in made if DIRECT_LIMIT < key < 2**63], np.int64)
    assert len(keys) > 5000
    table = IdTable()
    assert table.intern(keys).tolist() == list(range(len(keys)))
    assert table.find(keys).tolist() == list(range(len(keys)))
    free = np.concatenate([[-1], np.flatnonzero(table._slots == 0)])
    assert np.diff(free).max() < 1000, "keys lie in one long row"
