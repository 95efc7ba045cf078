"""Chunks of matrices: the same store as from the text that says the same."""

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from helpers import store_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_parser import Row

from sbm.errors import DataError, SettingsError, StoreError
from sbm.jobs.expire import expire
from sbm.jobs.split import split
from sbm.store.blocks import BlockStore, read_manifest
from sbm.store.model import Model

Plain = tuple[float, list[tuple[int, float]]]  # label, and nonzeros in any order, ids repeated


def csr(rows: list[Plain], index: Any = np.int32) -> sp.csr_array:
    """A matrix of exactly these nonzeros, whatever scipy would make of them."""
    nonzeros = [pair for _, features in rows for pair in features]
    indptr = np.cumsum([0, *(len(features) for _, features in rows)]).astype(index)
    ids = np.array([i for i, _ in nonzeros], index)
    X = sp.csr_array((len(rows), 50))
    X.indptr, X.indices = indptr, ids
    X.data = np.array([v for _, v in nonzeros], float)
    return X


def chunk(rows: list[Plain]) -> tuple[sp.csr_array, list[float]]:
    return csr(rows), [label for label, _ in rows]


def slow(rows: list[Plain]) -> list[Row]:
    """What a store should hold of the rows."""
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
        f"{label!r} " + " ".join(f"{i}:{v!r}" for i, v in features) + "\n"
        for label, features in rows
    )


ROWS = st.lists(
    st.tuples(
        st.sampled_from([1.0, -1.0, 0.5, -0.0]),
        st.lists(
            st.tuples(st.integers(0, 40), st.sampled_from([1.0, 0.25, -3.0, 0.0])), max_size=7
        ),
    ),
    min_size=1,
    max_size=25,
)
CUTS = st.lists(st.integers(0, 25), max_size=4)


@settings(deadline=None, derandomize=True, max_examples=20)
@given(ROWS, CUTS, st.sampled_from([1, 5, 1000]), st.booleans())
def test_any_rows_come_back_however_they_are_cut(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[Plain],
    cuts: list[int],
    most: int,
    ones: bool,
) -> None:
    if ones:
        rows = [(y, [(i, 1.0) for i in dict(features)]) for y, features in rows]
    folder = tmp_path_factory.mktemp("chunks")
    ends = [0, *sorted(min(c, len(rows)) for c in cuts), len(rows)]
    chunks = [chunk(rows[a:b]) for a, b in itertools.pairwise(ends)]
    expected = slow(rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sbm.store.pieces.PIECE", 16 * most)
        options: dict[str, Any] = {"blocks": 1, "shuffle": False, "threads": 2}
        report = split(chunks, folder / "a.sbm", **options)
        split(iter(chunks), folder / "iterator.sbm", **options)
    (folder / "a.svm").write_text(text_of(expected))
    from_text = split(folder / "a.svm", folder / "text.sbm", **options)
    assert in_order(folder / "a.sbm") == in_order(folder / "text.sbm") == expected
    for key in ("rows", "features", "nnz", "labels", "value_type", "skipped", "bytes"):
        assert report[key] == from_text[key], key
    whole = split([chunk(rows)], folder / "whole.sbm", **options)
    assert whole["rows"] == len(rows)
    [source] = read_manifest(folder / "a.sbm")["generations"][0]["sources"]
    [same] = read_manifest(folder / "whole.sbm")["generations"][0]["sources"]
    assert (source["name"], source["rows"]) == ("arrays", len(rows))
    assert source["sha256"] == same["sha256"], "the digest is that of the rows, not of the chunks"
    assert read_manifest(folder / "iterator.sbm")["generations"][0]["sources"] == [source]


@pytest.mark.parametrize(
    "make",
    [
        sp.csr_matrix, sp.csr_array, sp.csc_matrix, sp.coo_array, sp.lil_array, sp.dok_array,
        np.asarray, np.asfortranarray, np.ndarray.tolist,
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [np.float32, np.int8, np.bool_])
def test_matrices_of_every_kind_are_the_same(tmp_path: Path, make: Any, kind: Any) -> None:
    dense = np.random.default_rng(1).integers(-2, 3, (30, 9)).astype(kind)
    y = np.arange(30) % 3
    split([(make(dense), y)], tmp_path / "a.sbm", blocks=1, shuffle=False, threads=1)
    expected = [
        (float(label), tuple((int(k), float(x[k])) for k in np.flatnonzero(x)))
        for x, label in zip(dense, y, strict=True)
    ]
    assert in_order(tmp_path / "a.sbm") == expected


def test_columns_are_the_ids_of_decision_function(tmp_path: Path) -> None:
    X = sp.csr_array(np.array([[0, 2.0, 0], [1, 0, 3.0]]))
    split([(X, [0, 1])], tmp_path / "a.sbm", blocks=1, threads=1)
    assert sorted(BlockStore(tmp_path / "a.sbm").read_feature_ids().tolist()) == [0, 1, 2]
    model = Model(np.array([0, 1, 2]), np.array([[1.0], [10.0], [100.0]]), [0.0, 1.0])
    assert model.decision_function(X).tolist() == [20.0, 301.0]


def test_large_ids_and_index_types(tmp_path: Path) -> None:
    rows: list[Plain] = [(1.0, [(2**63 - 1, 2.0), (7, 1.0)]), (2.0, [])]
    split([(csr(rows, np.int64), [1, 2])], tmp_path / "a.sbm", blocks=1, shuffle=False)
    assert in_order(tmp_path / "a.sbm") == slow(rows)


def test_the_callers_arrays_are_left_alone(tmp_path: Path) -> None:
    X, y = chunk([(1.0, [(5, 1.0), (3, 2.0), (5, 1.0)]), (2.0, [(9, 0.0), (1, 4.0)])])
    before = [a.copy() for a in (X.data, X.indices, X.indptr)]
    split([(X, np.array(y))], tmp_path / "a.sbm", threads=1)
    for array, kept in zip((X.data, X.indices, X.indptr), before, strict=True):
        np.testing.assert_array_equal(array, kept)


# ------------------------------------------------------------------------------------- refusals


def refusal(tmp_path: Path, chunks: Any, **options: Any) -> str:
    with pytest.raises((DataError, SettingsError)) as caught:
        split(chunks, tmp_path / "a.sbm", threads=1, **options)
    assert not (tmp_path / "a.sbm").exists()
    return str(caught.value)


GOOD = chunk([(1.0, [(1, 1.0)]), (2.0, [(2, 1.0)])])


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (
            chunk([(1.0, [(1, 1.0)]), (2.0, [(3, 1.0), (7, np.nan)])]),
            ("chunk 1, row 1: found nan as the value of feature 7, but only finite numbers are "
            "allowed"),
        ),
        (
            chunk([(np.inf, [(1, 1.0)])]),
            "chunk 1, row 0: found inf as the label, but only finite numbers are allowed",
        ),
        (
            chunk([(1.0, []), (1.0, [(7, 1e39)])]),
            ("chunk 1, row 1: found 1e+39 as the value of feature 7, too large for the value type "
            "(float64 reaches 1.79e308, float32 3.4e38; see --dtype)"),
        ),
        (
            chunk([(1.0, []), (1.0, [(4, 1.0), (-7, 1.0)])]),
            ("chunk 1, row 1: found a feature id that is negative or larger than "
            "9223372036854775807; ids are numbers between"),
        ),
        (
            (GOOD[0], [1.0]),
            "chunk 1: y has shape (1,), but X has 2 rows; give a label for each",
        ),
        (
            (GOOD[0], [[1.0], [2.0]]),
            "chunk 1: y has shape (2, 1), but X has 2 rows; give a label for each",
        ),
        ((GOOD[0], ["a", "b"]), "chunk 1: y holds <U1; labels are numbers"),
        (GOOD[0], "chunk 1 is a csr_array; a pair (X, y) of a matrix and its labels is expected"),
        (
            (np.ones(3), [1, 2, 3]),
            "chunk 1: X has shape (3,); a matrix has two dimensions",
        ),
        (
            (np.ones((1, 1), complex), [1]),
            "chunk 1: X holds complex128; real numbers are expected",
        ),
    ],
)  # fmt: skip
def test_what_is_no_chunk_is_refused_in_one_sentence(
    tmp_path: Path, bad: Any, sentence: str
) -> None:
    assert refusal(tmp_path, [GOOD, bad]) == sentence
    assert refusal(tmp_path, iter([GOOD, bad])) == sentence


def test_an_indptr_that_leads_out_of_the_arrays_is_refused(tmp_path: Path) -> None:
    for indptr in ([0, 1, 9], [0, 2, 1], [1, 1, 2]):
        X, y = csr([(1.0, [(1, 1.0)]), (2.0, [(2, 1.0)])]), [1, 2]
        X.indptr = np.array(indptr)
        assert refusal(tmp_path, [(X, y)]) == (
            "chunk 0: the indptr of X does not fit its 2 nonzeros; X.check_format() tells more"
        )


def test_wrong_rows_may_be_left_out_and_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[Plain] = [(float(k % 2), [(k % 9, float(k)), (20, 1.0)]) for k in range(60)]
    bad = {3: (np.nan, rows[3][1]), 4: (1.0, [(1, np.inf)]), 50: (0.0, [(-1, 1.0)])}
    given_rows = [bad.get(k, row) for k, row in enumerate(rows)]
    monkeypatch.setattr("sbm.store.pieces.PIECE", 16 * 7)
    report = split(
        [chunk(given_rows[:40]), chunk(given_rows[40:])], tmp_path / "a.sbm", blocks=1,
        shuffle=False, on_error="skip",
    )  # fmt: skip
    assert in_order(tmp_path / "a.sbm") == slow([r for k, r in enumerate(rows) if k not in bad])
    assert report["skipped"] == 3
    assert [p.split(": ")[0] for p in report["problems"]] == [
        "chunk 0, row 3", "chunk 0, row 4", "chunk 1, row 10"
    ]  # fmt: skip


def test_chunks_have_no_name_and_no_rows_are_no_store(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        split([GOOD])
    assert str(caught.value) == "chunks have no file name; name the store, as sbm.split(chunks, S)"
    nothing = (sp.csr_array((0, 3)), [])
    assert refusal(tmp_path, [nothing]) == (
        "the input holds no rows; give LIBSVM text with at least one row"
    )


# --------------------------------------------------------------------------------- whole splits


class Again:
    """Chunks that are made anew whenever they are wanted."""

    def __init__(self, chunks: list[Any]) -> None:
        self.chunks = chunks
        self.readings = 0

    def __iter__(self) -> Iterator[Any]:
        self.readings += 1
        yield from self.chunks


def test_rare_features_need_chunks_that_can_be_read_again(tmp_path: Path) -> None:
    rows: list[Plain] = [(1.0, [(1, 1.0), (2, 5.0)]), (2.0, [(1, 1.0), (3, 1.0)])]
    again = Again([chunk(rows)])
    report = split(again, tmp_path / "a.sbm", blocks=1, min_count=2, shuffle=False)
    assert again.readings == 2
    assert report["left_out"] == {"features": 2, "nnz": 2}
    assert in_order(tmp_path / "a.sbm") == [(1.0, ((1, 1.0),)), (2.0, ((1, 1.0),))]
    assert refusal(tmp_path / "b", iter(again.chunks), min_count=2) == (
        "an iterator of chunks can be read only once, and min_count reads twice; give a list, or "
        "an object whose __iter__ begins anew"
    )


def test_chunks_are_appended_once_and_expire(tmp_path: Path) -> None:
    store = tmp_path / "a.sbm"
    first, second = [chunk([(1.0, [(1, 2.0)])])], [chunk([(2.0, [(1, 3.0), (2, 1.0)])])]
    (tmp_path / "a.svm").write_text("1 1:2\n")
    split(tmp_path / "a.svm", store)
    split(iter(second), store, append=True, name="tuesday")
    with pytest.raises(DataError) as caught:
        split(iter(second), store, append=True, name="wednesday")
    assert str(caught.value) == (
        f"wednesday is already in {store} (as tuesday, same SHA-256); nothing was added, use "
        "--force to count its rows twice"
    )
    split(first, store, append=True)
    assert sorted(in_order(store)) == sorted(
        [*slow([(1.0, [(1, 2.0)])] * 2), (2.0, ((1, 3.0), (2, 1.0)))]
    )
    expire(store, sources="tuesday")
    assert in_order(store) == slow([(1.0, [(1, 2.0)])] * 2)
    split(second, store, append=True, name="tuesday")
    assert read_manifest(store)["rows"] == 3


def test_threads_and_pieces_change_no_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    r = random.Random(3)
    rows: list[Plain] = [
        (r.choice([1.0, 2.0]), [(r.randrange(3000), r.random()) for _ in range(r.randrange(20))])
        for _ in range(3000)
    ]
    chunks = [chunk(rows[:10]), chunk(rows[10:])]
    split(chunks, tmp_path / "whole", blocks=5, threads=1)
    monkeypatch.setattr("sbm.store.pieces.PIECE", 4000)
    split(chunks, tmp_path / "a", blocks=5, threads=3)
    for path in (tmp_path / "whole").glob("*.sb?"):
        assert path.read_bytes() == (tmp_path / "a" / path.name).read_bytes()
    assert sorted(in_order(tmp_path / "a")) == sorted(slow(rows))


def test_a_row_that_memory_has_no_room_for_is_refused(tmp_path: Path) -> None:
    wide = sp.csr_array(np.ones((1, 2_000_000), np.float32))
    assert refusal(tmp_path, [(wide, [1])], mem="200MB") == (
        "chunk 0, row 0: found a row of 2000000 nonzeros, more than --mem has room for; raise --mem"
    )


def test_a_generator_of_names_is_still_names(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("1 1:2\n")
    (tmp_path / "b.svm").write_text("2 1:2\n")
    report = split(iter([tmp_path / "a.svm", tmp_path / "b.svm"]), tmp_path / "a.sbm")
    assert report["rows"] == 2
    with pytest.raises(StoreError):
        split([GOOD], tmp_path / "a.sbm")
