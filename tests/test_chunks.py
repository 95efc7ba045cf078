"""Chunks of matrices give the same store as equivalent text."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import Row, store_rows
from hypothesis import given
from hypothesis import strategies as st
from inside import patch, read_manifest, split

import sbm
from sbm.errors import DataError, SettingsError
from sbm.sklearn import SBMClassifier, SBMRegressor

Plain = tuple[float, list[tuple[int, float]]]  # label, and nonzeros in any order, ids repeated


def csr(rows: list[Plain], index: Any = np.int64) -> sp.csr_array:
    """A matrix of exactly these nonzeros, without changes by scipy."""
    nonzeros = [pair for _, features in rows for pair in features]
    X = sp.csr_array((len(rows), 50))
    X.indptr = np.cumsum([0, *(len(features) for _, features in rows)]).astype(index)
    X.indices = np.array([i for i, _ in nonzeros], index)
    X.data = np.array([v for _, v in nonzeros], float)
    return X


def chunk(rows: list[Plain]) -> tuple[sp.csr_array, list[float]]:
    return csr(rows), [label for label, _ in rows]


def slow(rows: list[Plain]) -> list[Row]:
    """The rows that a store should hold."""
    expected = []
    for label, features in rows:
        total: dict[int, float] = defaultdict(float)
        for i, v in features:
            total[i] += v
        kept = tuple((i, float(np.float32(v))) for i, v in sorted(total.items()))
        expected.append((label + 0.0, kept))
    return expected


def in_order(folder: Path) -> list[Row]:
    """Rows of a store of one block that was dealt in turn."""
    return [row for block in store_rows(folder) for row in block]


def text_of(rows: list[Row]) -> str:
    return "".join(
        f"{y!r} " + " ".join(f"{i}:{v!r}" for i, v in features) + "\n" for y, features in rows
    )


ROWS = st.lists(
    st.tuples(
        st.sampled_from([1.0, -1.0, 0.5, -0.0]),
        st.lists(
            st.tuples(
                st.integers(0, 40) | st.just(2**63 - 1), st.sampled_from([1.0, 0.25, -3.0, 0.0])
            ),
            max_size=7,
        ),
    ),
    min_size=1,
    max_size=25,
)
CUTS = st.lists(st.integers(0, 25), max_size=4)


@pytest.mark.long
@given(ROWS, CUTS, st.sampled_from([1, 5, 1000]), st.booleans(), st.sampled_from([1, 3]))
def test_chunks_give_the_same_store_as_text(tmp_path_factory, rows, cuts, most, ones, threads):
    if ones:
        rows = [(y, [(i, 1.0) for i in dict(features)]) for y, features in rows]
    folder = tmp_path_factory.mktemp("chunks")
    ends = [0, *sorted(min(c, len(rows)) for c in cuts), len(rows)]
    chunks = [chunk(rows[a:b]) for a, b in itertools.pairwise(ends)]
    before = [array.copy() for X, _ in chunks for array in (X.data, X.indices, X.indptr)]
    expected = slow(rows)
    options: dict[str, Any] = {"blocks": 1, "shuffle": False, "threads": threads}
    with pytest.MonkeyPatch.context() as context:
        patch(context, "matrices.PIECE", 16 * most)
        report = split(chunks, folder / "a.sbm", **options)
        split(iter(chunks), folder / "iterator.sbm", **options)
    (folder / "a.svm").write_text(text_of(expected))
    from_text = split(folder / "a.svm", folder / "text.sbm", **options)
    split([chunk(rows)], folder / "whole.sbm", **options)
    assert in_order(folder / "a.sbm") == in_order(folder / "text.sbm") == expected
    for key in ("rows", "features", "nnz", "labels", "value_type", "skipped", "bytes"):
        assert report[key] == from_text[key], key
    for path in (folder / "whole.sbm").glob("*.sb?"):
        assert path.read_bytes() == (folder / "a.sbm" / path.name).read_bytes()
    sources = [
        read_manifest(folder / f"{name}.sbm")["generations"][0]["sources"][0]
        for name in ("a", "iterator", "whole")
    ]
    assert (sources[0]["name"], sources[0]["rows"]) == ("arrays", len(rows))
    assert sources[1] == sources[0]
    assert sources[2]["sha256"] == sources[0]["sha256"]  # a digest of the rows, not of the chunks
    after = [array for X, _ in chunks for array in (X.data, X.indices, X.indptr)]
    for array, kept in zip(after, before, strict=True):
        np.testing.assert_array_equal(array, kept)


@pytest.mark.parametrize(
    "make",
    [
        sp.csr_matrix, sp.csc_matrix, sp.coo_array, sp.dok_array, np.asarray, np.asfortranarray,
        np.ndarray.tolist,
    ],
)  # fmt: skip
def test_matrix_types_give_the_same_store(tmp_path, make):
    for kind in (np.float32, np.int8, np.bool_):
        dense = np.random.default_rng(1).integers(-2, 3, (30, 9)).astype(kind)
        y = np.arange(30) % 3
        split([(make(dense), y)], tmp_path / "a.sbm", blocks=1, shuffle=False, force=True)
        assert in_order(tmp_path / "a.sbm") == [
            (float(label), tuple((int(k), float(x[k])) for k in np.flatnonzero(x)))
            for x, label in zip(dense, y, strict=True)
        ]


# ------------------------------------------------------------------------------------- refusals

GOOD = chunk([(1.0, [(1, 1.0)]), (2.0, [(2, 1.0)])])


def with_indptr(*indptr: int) -> tuple[sp.csr_array, list[int]]:
    X = csr([(1.0, [(1, 1.0)]), (2.0, [(2, 1.0)])])
    X.indptr = np.array(indptr)
    return X, [1, 2]


@pytest.mark.parametrize(
    ("bad", "facts"),
    [
        ((sp.csr_array(np.ones((1, 2_000_000), np.float32)), [1]), "row 0: .* 2000000 .* --mem"),
        (chunk([(1.0, []), (2.0, [(3, 1.0), (7, np.nan)])]), "row 1: found nan .* feature 7"),
        (chunk([(np.inf, [(1, 1.0)])]), "row 0: found inf as the label"),
        (chunk([(1.0, []), (1.0, [(7, 1e39)])]), r"row 1: found 1e\+39 .* feature 7.* --dtype"),
        (chunk([(1.0, []), (1.0, [(4, 1.0), (-7, 1.0)])]), "row 1: found a feature id"),
        ((GOOD[0], [1.0]), r"\(1,\), but X has 2 rows"),
        ((GOOD[0], [[1.0, 0], [2.0, 1]]), r"\(2, 2\), but X has 2 rows.*multi-label"),
        ((GOOD[0], ["a", "b"]), "words such as 'a'.* numbers"), (GOOD[0], "csr_array"),
        ((np.ones(3), [1, 2, 3]), "(3,)"),
        ((np.ones((1, 1), complex), [1]), "complex128"), (with_indptr(0, 1, 9), "indptr .* 2 "),
        (with_indptr(0, 2, 1), "indptr .* 2 "), (with_indptr(1, 1, 2), "indptr begins with 1;"),
        ((GOOD[0], None), r"\(\), but X has 2 rows"), ((np.ma.ones((1, 1)), [1]), "masked"),
        ((np.ones((1, 1)), [2**53 + 1]), "row 0: found the label '9007199254740993'"),
        ((np.ones((1, 1)), np.array([10**400], object)), "row 0: found inf as the label"),
    ],
)  # fmt: skip
def test_invalid_chunks_are_refused(tmp_path, bad, facts):
    for chunks in ([GOOD, bad], iter([GOOD, bad])):
        with pytest.raises(DataError, match=f"^chunk 1.*{facts}"):
            split(chunks, tmp_path / "a.sbm", threads=1, mem="200MB")
        assert list(tmp_path.iterdir()) == []


def change(kind: str, **changed: Callable[[Any], Any]) -> Any:
    """A scipy matrix whose arrays were changed behind its back."""
    X: Any = sp.csr_array(np.arange(12.0).reshape(4, 3) % 5).asformat(kind)
    for name, new in changed.items():
        setattr(X, name, new(getattr(X, name)))
    return X


def put(place: int, value: int) -> Callable[[Any], Any]:
    def changed(array: Any) -> Any:
        array = array.copy()
        array[place] = value
        return array

    return changed


LESS = itemgetter(slice(0, 2))
TAMPERED = [
    *[
        change(kind, **changed)
        for kind in ("csr", "csc", "bsr")
        for changed in (
            {"indptr": put(1, 99)}, {"indptr": put(-1, 10**6)}, {"indptr": put(1, -4)},
            {"indptr": put(0, 1)}, {"indptr": lambda array: array + 10**8}, {"indptr": LESS},
            {"data": LESS}, {"indices": LESS}, {"indices": lambda array: array[:, None]},
        )
    ],
    *[change(kind, indices=put(2, k)) for kind in ("csc", "bsr") for k in (-3, 10**8)],
    change("csr", indptr=lambda array: put(2, 2**63)(array.astype(np.uint64))),
    change("csr", indptr=lambda array: put(2, 2**63 - 1)(array.astype(np.int64))),
    change("csr", indices=lambda array: array + 0.5), change("bsr", data=lambda array: array[:, 0]),
    change("coo", row=put(1, -9)), change("coo", col=put(1, 10**9)), change("coo", data=LESS),
    change("dia", offsets=LESS), change("lil", rows=lambda rows: rows[::-1]),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(TAMPERED)))
def test_matrices_that_do_not_fit_are_refused(tmp_path, number):
    """Conversions and products of scipy would write and read out of bounds."""
    X, y = TAMPERED[number], [0, 1, 0, 1]
    sound = sp.csr_array(np.eye(4, 3))
    model, _ = sbm.train([(sound, y)], tmp_path / "a.model")
    fitted = SBMClassifier().fit(sound, y)
    uses: list[Callable[[], Any]] = [
        lambda: split([(sound, y), (X, y)], tmp_path / "a.sbm"),
        lambda: split(iter([(sound, y), (X, y)]), tmp_path / "a.sbm"),
        lambda: model.decision_function(X), lambda: model.predict(X), lambda: fitted.predict(X),
        lambda: SBMClassifier().fit(X, y), lambda: SBMRegressor().partial_fit(X, y),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(DataError, match=r"^(X|chunk 1|arrays)"):
            use()
    assert not (tmp_path / "a.sbm").exists()


def test_index_beyond_the_columns_is_refused(tmp_path):
    fitted = SBMClassifier().fit(sp.csr_array(np.eye(4, 3)), [0, 1, 0, 1])
    for k in (-1, 3, 10**8):
        X = change("csr", indices=put(2, k))
        for use in (fitted.predict, lambda X: fitted.fit(X, [0, 1, 0, 1])):
            with pytest.raises(DataError, match=f"^X: found index {k}; expected 0 to 2"):
                use(X)


@pytest.mark.parametrize("value", [3.5e38, -1e266, 2.0**1023])
def test_values_beyond_float32_are_refused(tmp_path, value):
    rows = np.array([[1.0, 0.0], [0.0, value]])
    with pytest.raises(DataError, match=r"row 1: found .* feature 1, too large"):
        split((rows, [0, 1]), tmp_path / "a.sbm")
    assert split((rows, [0, 1]), tmp_path / "a.sbm", dtype="float64")["rows"] == 2


def test_invalid_rows_are_skipped_and_counted(tmp_path, monkeypatch):
    rows: list[Plain] = [(float(k % 2), [(k % 9, float(k)), (20, 1.0)]) for k in range(60)]
    bad = {3: (np.nan, rows[3][1]), 4: (1.0, [(1, np.inf)]), 50: (0.0, [(-1, 1.0)])}
    given_rows = [bad.get(k, row) for k, row in enumerate(rows)]
    patch(monkeypatch, "matrices.PIECE", 16 * 7)
    chunks = [chunk(given_rows[:40]), chunk(given_rows[40:])]
    report = split(chunks, tmp_path / "a.sbm", blocks=1, shuffle=False, on_error="skip")
    assert in_order(tmp_path / "a.sbm") == slow([r for k, r in enumerate(rows) if k not in bad])
    assert report["skipped"] == 3
    assert [p.split(": ")[0] for p in report["problems"]] == [
        "chunk 0, row 3", "chunk 0, row 4", "chunk 1, row 10"
    ]  # fmt: skip


# --------------------------------------------------------------------------------- whole splits


class Again:
    """Chunks that can be iterated twice."""

    def __init__(self, chunks: list[Any]) -> None:
        self.chunks = chunks
        self.readings = 0

    def __iter__(self) -> Iterator[Any]:
        self.readings += 1
        yield from self.chunks


def test_min_count_needs_chunks_readable_twice(tmp_path):
    again = Again([chunk([(1.0, [(1, 1.0), (2, 5.0)]), (2.0, [(1, 1.0), (3, 1.0)])])])
    report = split(again, tmp_path / "a.sbm", blocks=1, min_count=2, shuffle=False)
    assert again.readings == 3  # of the first chunk, to count, and for the rows
    assert report["left_out"] == {"features": 2, "nnz": 2}
    assert in_order(tmp_path / "a.sbm") == [(1.0, ((1, 1.0),)), (2.0, ((1, 1.0),))]
    with pytest.raises(SettingsError, match="only once"):
        split(iter(again.chunks), tmp_path / "b.sbm", min_count=2)
    with pytest.raises(SettingsError, match="name the store"):
        split(again.chunks)
    with pytest.raises(SettingsError, match=r"blocks is 2\.5; a whole number"):
        split(again.chunks, tmp_path / "b.sbm", blocks=2.5)


def test_chunks_can_be_appended_and_expired(tmp_path):
    store = tmp_path / "a.sbm"
    new = [chunk([(2.0, [(1, 3.0), (2, 1.0)])])]
    (tmp_path / "a.svm").write_text("1 1:2\n")
    split(iter([tmp_path / "a.svm"]), store)  # an iterator of names is still names
    split(iter(new), store, append=True, name="tuesday")
    with pytest.raises(DataError, match=r"wednesday is already in .* as tuesday"):
        split(iter(new), store, append=True, name="wednesday")
    assert in_order(store) == [*slow([(1.0, [(1, 2.0)])]), (2.0, ((1, 3.0), (2, 1.0)))]
    sbm.expire(store, sources="tuesday")
    assert in_order(store) == slow([(1.0, [(1, 2.0)])])
    split(new, store, append=True, name="tuesday")
    assert read_manifest(store)["rows"] == 2
