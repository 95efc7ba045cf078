"""Variables of rows, compared with plain Python lists."""

import numpy as np
import pytest
from helpers import lists_of, plain
from hypothesis import given
from hypothesis import strategies as st
from inside import Block, Dense, ListPool, Lists, admit_block, blend, join, no_alphas

VALUES = st.floats(-1e300, 1e300).filter(bool)
LIST = st.dictionaries(st.integers(0, 70_000), VALUES, max_size=4).map(lambda d: sorted(d.items()))
DENSE = (VALUES, lambda rows: Dense(np.array(rows, float)), 0.0)
LISTED = (LIST, lists_of, [])


@st.composite
def rows_and_alphas(draw, kinds=(DENSE, LISTED)):
    """What makes variables of this kind; plain rows; the same, often a part of more rows."""
    row, make, _ = kind = draw(st.sampled_from(kinds))
    rows = draw(st.lists(row, max_size=12))
    front, behind = draw(st.lists(row, max_size=3)), draw(st.lists(row, max_size=3))
    alpha = make([*front, *rows, *behind]).part(len(front), len(rows))
    return kind, rows, alpha


@given(rows_and_alphas(), st.data())
def test_take_part_and_clear_match_lists(case, data):
    (_, _, nothing), rows, alpha = case
    assert plain(alpha) == rows
    assert len(alpha) == len(rows)
    if isinstance(alpha, Lists):
        assert alpha.counts.tolist() == [len(row) for row in rows]
        assert alpha.nbytes == 8 * (len(rows) + 1) + 12 * sum(map(len, rows))
    else:
        assert alpha.nbytes == 8 * len(rows)
    chosen = data.draw(st.lists(st.sampled_from(range(len(rows))))) if rows else []
    taken = alpha.take(np.array(chosen, np.int32))
    assert plain(taken) == [rows[k] for k in chosen]
    first = data.draw(st.integers(0, len(rows)))
    n = data.draw(st.integers(0, len(rows) - first))
    assert plain(alpha.part(first, n)) == rows[first : first + n]
    taken.values[:] = 7.0
    assert plain(alpha) == rows, "take copies"
    alpha.clear()
    assert plain(alpha) == [nothing] * len(rows)
    assert plain(no_alphas(len(rows), isinstance(alpha, Lists))) == [nothing] * len(rows)


@given(rows_and_alphas(), st.data())
def test_put_keeps_the_last_of_duplicate_rows(case, data):
    (row, make, _), rows, alpha = case
    where = data.draw(st.lists(st.sampled_from(range(len(rows))))) if rows else []
    fresh = [data.draw(row) for _ in where]
    more = data.draw(st.lists(row, max_size=3))
    others = make([*more, *fresh]).part(len(more), len(fresh))
    alpha.put(np.array(where, np.int32), others)
    expected = list(rows)
    for k, mine in zip(where, fresh, strict=True):
        expected[k] = mine
    assert plain(alpha) == expected
    assert plain(others) == fresh


@given(st.sampled_from([DENSE, LISTED]), st.data())
def test_join_appends_copies(kind, data):
    parts = data.draw(st.lists(rows_and_alphas([kind]), min_size=1, max_size=4))
    joined = join([alpha for _, _, alpha in parts])
    assert plain(joined) == [row for _, rows, _ in parts for row in rows]
    joined.values[:] = 7.0
    assert [plain(alpha) for _, _, alpha in parts] == [rows for _, rows, _ in parts]


@given(st.sampled_from([DENSE, LISTED]), st.sampled_from([0.0, 0.25, 1.0]), st.data())
def test_blend_interpolates(kind, share, data):
    row, make, _ = kind
    pairs = data.draw(st.lists(st.tuples(row, row), max_size=8))
    old, new = ([pair[k] for pair in pairs] for k in (0, 1))

    def mix(a, b):
        return min(max(a + share * (b - a), min(a, b)), max(a, b))

    def mixed(a, b):
        if kind is DENSE:
            return mix(a, b)
        a, b = dict(a), dict(b)
        found = {k: mix(a.get(k, 0.0), b.get(k, 0.0)) for k in sorted({*a, *b})}
        return [(k, value) for k, value in found.items() if value != 0]

    assert plain(blend(make(old), make(new), share)) == [mixed(*pair) for pair in pairs]


@pytest.mark.parametrize("offsets", [[0, 2], [0, 1, 1, 2], [1, 1, 2], [0, 1, 3], [0, 3, 2]])
def test_mismatched_lists_are_refused(offsets):
    pool, again = (ListPool(3, 2, 2, [3], 4) for _ in range(2))
    pool.fill(lists_of([[(0, 1.5)], [(3, -2.0)]]))
    state = pool.state(2)
    again.restore(state, 2)
    assert plain(again.take(np.arange(2))) == [[(0, 1.5)], [(3, -2.0)]]
    with pytest.raises(ValueError, match="do not fit"):
        again.restore({**state, "alpha_offsets": np.array(offsets)}, 2)


def test_variables_of_a_block_without_room_become_zero_where_they_are_stored():
    """The smallest ones of each part; training ended when they were read again."""
    pool, block = ListPool(5, 0, 2, [2, 3], 4), Block.of([1, 0], [2, 3])
    values = np.array([5.0, 1.0, 3.0, 4.0, 2.0, 6.0, 7.0, 8.0, 9.0, 1.0, 2.0, 3.0])
    outputs = np.array([0, 1, 2, 3] * 3, np.int32)
    alpha = Lists(np.array([0, 4, 4, 8, 12, 12]), outputs, values)
    admit_block(pool, block, alpha)
    assert alpha.offsets.tolist() == [0, 3, 3, 6, 10, 10]  # 6 of the 3 rows, and 4 of the 2
    assert alpha.values.tolist() == [5.0, 3.0, 4.0, 6.0, 7.0, 8.0, 9.0, 1.0, 2.0, 3.0]
    pool.append(0, np.arange(5, dtype=np.int32), alpha)
