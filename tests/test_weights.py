"""Row weights: each is used for its row with any kind of store; and errors."""

import errno

import numpy as np
import pytest
from families import Case, make_store
from helpers import fit, write_rows
from inside import Arena, BlockStore, RowWeights, patch, read_manifest

import sbm
from sbm.errors import DataError, SettingsError, StoreError


def numbered(folder, name, first, n):
    """Text whose labels are the numbers of its rows; some rows are empty."""
    X = np.random.default_rng(first).integers(0, 3, (n, 4)).astype(float)
    return write_rows(folder / name, X, range(first, first + n))


def weight_of(row):
    """Distinct weights for row numbers."""
    return np.asarray(row) / 8 + 0.25


def write_weights(path, rows):
    path.write_text("".join(f"{w}\n" for w in weight_of(rows)))
    return path


def dealt(folder, source):
    """(row number, weight) of every row of a store, chunk by chunk."""
    store = BlockStore(folder)
    weights = RowWeights(store, source, folder.parent)
    pairs = []
    for chunks in store.chunks:
        for chunk in chunks:
            room = Arena.of(chunk.nnz, store.value_type).room(chunk.rows)
            rows = store.read([chunk], room, 0)
            found = np.full(chunk.rows, np.nan)
            weights.read(chunk, found)
            pairs += zip(np.array(store.labels)[rows.y].tolist(), found.tolist(), strict=True)
    assert weights.total == pytest.approx(sum(w for _, w in pairs), rel=1e-12)
    return pairs


# Bytes of a batch: all rows, some rows, one row. More blocks than rows: some are never written.
SPLITS = [
    (None, {"blocks": 3}),
    (900, {"blocks": 3, "shuffle": False}),
    (1, {"blocks": 70}),
    (900, {"blocks": 4, "seed": 5}),
]


@pytest.mark.parametrize(("batch", "options"), SPLITS, ids=str)
def test_every_row_gets_its_weight(tmp_path, monkeypatch, options, batch):
    if batch is not None:
        patch(monkeypatch, "LARGEST_BATCH", batch)
    patch(monkeypatch, "CHUNK_NNZ", 20)
    texts = [numbered(tmp_path, f"{first}.svm", first, 20) for first in (0, 20, 40)]
    sbm.split(texts, tmp_path / "d.sbm", **options)
    generation = read_manifest(tmp_path / "d.sbm")["generations"][0]
    assert (len(generation["deal"]["batches"]) > 1) == (batch is not None)
    weights = write_weights(tmp_path / "v.txt", range(60))
    pairs = dealt(tmp_path / "d.sbm", weights)
    assert sorted(row for row, _ in pairs) == list(range(60))
    assert all(weight == weight_of(row) for row, weight in pairs)


def test_appended_rows_use_later_weights(tmp_path, monkeypatch):
    patch(monkeypatch, "LARGEST_BATCH", 900)
    parts = [(0, 30, {"blocks": 4}), (30, 5, {"blocks": 9}), (35, 40, {"shuffle": False})]
    for k, (first, n, options) in enumerate(parts):
        text = numbered(tmp_path, f"{first}.svm", first, n)
        sbm.split([text], tmp_path / "d.sbm", append=k > 0, **options)
    weights = write_weights(tmp_path / "v.txt", range(75))
    pairs = dealt(tmp_path / "d.sbm", weights)
    assert sorted(row for row, _ in pairs) == list(range(75))
    assert all(weight == weight_of(row) for row, weight in pairs)


def test_skipped_lines_have_no_weight(tmp_path):
    (tmp_path / "d.svm").write_text("0 1:1\nbad\n1 1:1\n# remark\n\n2 2:1\n")
    sbm.split([tmp_path / "d.svm"], tmp_path / "d.sbm", blocks=2, on_error="skip")
    pairs = dealt(tmp_path / "d.sbm", write_weights(tmp_path / "v.txt", range(3)))
    assert sorted(pairs) == [(row, weight_of(row)) for row in range(3)]


def test_chunks_read_their_weights(tmp_path, monkeypatch):
    patch(monkeypatch, "CHUNK_NNZ", 60)
    case = Case("squared_hinge", 2)
    X, y = case.rows(n=200)
    store = make_store(tmp_path, X, y, blocks=2)
    v = np.random.default_rng(0).integers(0, 4, len(y))
    (tmp_path / "v.txt").write_text("".join(f"{x}\n" for x in v))
    model, report, _ = fit(store, **case.options, weights=str(tmp_path / "v.txt"), tol=1e-5)
    assert report["converged"]
    assert case.primal(X, y, model, v) == pytest.approx(report["primal"], rel=1e-9)


# --------------------------------------------------------------------------------- refusals


@pytest.fixture
def store(tmp_path):
    sbm.split([numbered(tmp_path, "d.svm", 0, 3)], tmp_path / "d.sbm")
    return tmp_path / "d.sbm"


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("1\n2\n", "2 weights.* 3 rows"),
        ("", "0 weights.* 3 rows"),
        ("1\n2\n3\n4\n5\n", "5 weights.* 3 rows"),
        ("1\n-0.5\n3\n", ":2: .*-0.5.*at least 0"),
        ("1\n# two\n-0.5\n3\n", "weight 2: .*-0.5.*at least 0"),
        ("1\nx\n3\n", ":2: .*'x'"),
        ("# three\n\n1,5\n3\n", ":3: .*'1,5'"),
        ("1\nnan\n3\n", ":2: .*'nan'.*finite"),
        ("1\n1e999\n3\n", ":2: .*'1e999'.*finite"),
        ("1\n1 2\n3\n", ":2: .*'2'.*one number per line"),
        ("1\n1 kg\n3\n", ":2: .*'kg'.*one number per line"),
        ("1\n1\n1 1:2\n", ":3: .*features"),
        ("#\n-1 1:2\n1 2:3\n-1 1:1\n", "weight 1: .*features"),
        ("1 1:x\n", ":1: .*features"),
        ("1 1:2 1:2\n", ":1: .*features"),
        ("0\n0\n0\n", "all weights are 0"),
        ("0.5\n" * 100 + "-2\n" + "0.5\n" * 50, ":101: .*-2"),
        ("0.5\n" * 100 + "x\n", ":101: .*'x'"),
    ],
)  # fmt: skip
def test_invalid_weights_are_reported_with_line(store, text, facts, monkeypatch):
    patch(monkeypatch, "text.PIECE", 64)
    path = store.parent / "v.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=r"v\.txt.*" + facts):
        fit(store, weights=str(path))


def test_missing_weights_are_rejected(store, monkeypatch):
    with pytest.raises(DataError, match=r"no\.txt"):
        fit(store, weights=str(store.parent / "no.txt"))
    with pytest.raises(SettingsError, match=r"weights.* 3"):
        sbm.Settings(weights=3)

    def refuse(source, patience):
        raise PermissionError(errno.EACCES, "Permission denied", source.name)

    (store.parent / "v.txt").write_text("1\n")
    patch(monkeypatch, "_open", refuse)
    with pytest.raises(PermissionError, match=r"v\.txt"):  # of the file, not of the folder
        fit(store, weights=str(store.parent / "v.txt"))

    def full(**_):
        raise OSError(errno.ENOSPC, "No space left on device")

    patch(monkeypatch, "TemporaryFile", full)
    with pytest.raises(StoreError, match=r"cannot write .*No space left on device; free space"):
        fit(store, weights=str(store.parent / "v.txt"))


def test_balanced_classes_count_weights_of_rows(tmp_path):
    random = np.random.default_rng(3)
    X = random.normal(size=(300, 5))
    y = np.where(X[:, 0] > 0.7, 1, -1)
    weights = np.where(y > 0, 3.0, random.choice([0.0, 1.0, 2.0], 300))
    write_rows(tmp_path / "a.svm", X, y)
    np.savetxt(tmp_path / "w.txt", weights, "%g")
    sbm.split([tmp_path / "a.svm"], tmp_path / "a.sbm", blocks=3)
    total, mine = weights.sum(), weights[y > 0].sum()
    by_hand = {1: total / (2 * mine), -1: total / (2 * (total - mine))}
    how = {"weights": str(tmp_path / "w.txt"), "tol": 1e-8, "max_passes": 500}
    balanced, _, _ = fit(tmp_path / "a.sbm", class_weight="balanced", **how)
    given, _, _ = fit(tmp_path / "a.sbm", "g.model", class_weight=by_hand, **how)
    assert balanced.certificate["primal"] == pytest.approx(given.certificate["primal"], rel=1e-7)
