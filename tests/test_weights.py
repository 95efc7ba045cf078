"""Weights of rows: each finds its row again, however the store was made; and refusals."""

import bz2
import gzip
import lzma

import numpy as np
import pytest
import zstandard
from families import Case, assert_same_optimum, make_store
from helpers import fit, write_rows

import sbm
from sbm.errors import DataError, SettingsError, StoreError
from sbm.jobs.dealing import options as dealing
from sbm.jobs.dealing.weights import RowWeights
from sbm.jobs.dealing.weights import _WeightText as Weights
from sbm.rows import Rows
from sbm.store import blocks
from sbm.store import text as text_module
from sbm.store.blocks import BlockStore, read_manifest, write_manifest


def numbered(folder, name, first, n):
    """Text whose labels are the numbers of its rows; some rows are empty."""
    X = np.random.default_rng(first).integers(0, 3, (n, 4)).astype(float)
    return write_rows(folder / name, X, range(first, first + n))


def weight_of(row):
    """A weight for each row number, all different and no two rows alike."""
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
            room = Rows(
                np.empty(chunk.rows, np.int64), np.empty(chunk.rows, np.int32),
                np.empty(chunk.nnz, np.int32), np.empty(chunk.nnz, np.float32),
                np.empty(chunk.rows, np.int32),
            )  # fmt: skip
            room = room if store.value_type != "ones" else Rows(*room_of_ones(room))
            rows = store.read([chunk], room, 0)
            found = np.full(chunk.rows, np.nan)
            weights.read(chunk, found)
            pairs += zip(np.array(store.labels)[rows.y].tolist(), found.tolist(), strict=True)
    assert weights.total == pytest.approx(sum(w for _, w in pairs), rel=1e-12)
    return pairs


def room_of_ones(room):
    return room.starts, room.lengths, room.indices, None, room.y


SPLITS = [
    {"blocks": 3},
    {"blocks": 1},
    {"blocks": 3, "shuffle": False},
    {"blocks": 70},  # more than rows: some blocks are never written
    {"blocks": 70, "shuffle": False},
    {"blocks": 4, "seed": 5},
]


@pytest.mark.parametrize("batch", [None, 900, 1])
@pytest.mark.parametrize("options", SPLITS, ids=str)
def test_every_row_gets_its_own_weight(tmp_path, monkeypatch, options, batch):
    if batch is not None:  # bytes: some rows, or a batch for each row
        monkeypatch.setattr(dealing, "LARGEST_BATCH", batch)
    monkeypatch.setattr(blocks, "CHUNK_NNZ", 20)
    texts = [numbered(tmp_path, f"{first}.svm", first, 20) for first in (0, 20, 40)]
    sbm.split(texts, tmp_path / "d.sbm", **options)
    generation = read_manifest(tmp_path / "d.sbm")["generations"][0]
    assert (len(generation["deal"]["batches"]) > 1) == (batch is not None)
    weights = write_weights(tmp_path / "v.txt", range(60))
    pairs = dealt(tmp_path / "d.sbm", weights)
    assert sorted(row for row, _ in pairs) == list(range(60))
    assert all(weight == weight_of(row) for row, weight in pairs)


def test_appended_rows_have_their_weights_behind_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(dealing, "LARGEST_BATCH", 900)
    parts = [(0, 30, {"blocks": 4}), (30, 5, {"blocks": 9}), (35, 40, {"shuffle": False})]
    for k, (first, n, options) in enumerate(parts):
        text = numbered(tmp_path, f"{first}.svm", first, n)
        sbm.split([text], tmp_path / "d.sbm", append=k > 0, **options)
    weights = write_weights(tmp_path / "v.txt", range(75))
    pairs = dealt(tmp_path / "d.sbm", weights)
    assert sorted(row for row, _ in pairs) == list(range(75))
    assert all(weight == weight_of(row) for row, weight in pairs)


def test_lines_that_were_skipped_have_no_weight(tmp_path):
    (tmp_path / "d.svm").write_text("0 1:1\nbad\n1 1:1\n# remark\n\n2 2:1\n")
    sbm.split([tmp_path / "d.svm"], tmp_path / "d.sbm", blocks=2, on_error="skip")
    pairs = dealt(tmp_path / "d.sbm", write_weights(tmp_path / "v.txt", range(3)))
    assert sorted(pairs) == [(row, weight_of(row)) for row in range(3)]


OPENERS = {
    "gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress,
    "zst": zstandard.ZstdCompressor().compress,
}  # fmt: skip


@pytest.mark.parametrize("name", OPENERS)
def test_weights_may_be_compressed(tmp_path, name):
    sbm.split([numbered(tmp_path, "d.svm", 0, 30)], tmp_path / "d.sbm", blocks=3)
    plain = write_weights(tmp_path / "v.txt", range(30))
    packed = tmp_path / f"v.txt.{name}"
    packed.write_bytes(OPENERS[name](plain.read_bytes()))
    expected = dealt(tmp_path / "d.sbm", plain)
    assert dealt(tmp_path / "d.sbm", packed) == expected


def test_parts_of_a_block_find_their_weights(tmp_path, monkeypatch):
    """With little memory blocks are cut; the model is that of whole ones."""
    monkeypatch.setattr(blocks, "CHUNK_NNZ", 60)
    case = Case("squared_hinge", 2)
    X, y = case.rows(n=200)
    store = make_store(tmp_path, X, y, blocks=2)
    v = np.random.default_rng(0).integers(0, 4, len(y))
    (tmp_path / "v.txt").write_text("".join(f"{x}\n" for x in v))
    models = []
    for mem in ("400MB", None):
        if mem is None:
            with pytest.raises(sbm.errors.MemoryPlanError) as error:
                fit(store, loss="squared_hinge", mem="1MB", weights=str(tmp_path / "v.txt"))
            mem = error.value.least_bytes
        model, report, _ = fit(
            store, loss="squared_hinge", mem=mem, weights=str(tmp_path / "v.txt"), tol=1e-5,
            max_passes=500, rounds=5,
        )  # fmt: skip
        assert report["converged"]
        assert case.primal(X, y, model, v) == pytest.approx(report["primal"], rel=1e-9)
        models.append((model, report))
    assert_same_optimum(*models)


# --------------------------------------------------------------------------------- refusals


@pytest.fixture
def store(tmp_path):
    sbm.split([numbered(tmp_path, "d.svm", 0, 3)], tmp_path / "d.sbm")
    return tmp_path / "d.sbm"


EXPECTED = "where a weight, a number that is not negative, is expected"
FINITE = "but a weight is a finite number that is not negative"
BEHIND = "behind a weight; one number a line is expected"
FEATURES = "found features, as a data file has them; one number a line is expected, a row's weight"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("1\n2\n", "{v} has 2 weights, the store has 3 rows; give one weight a row"),
        ("", "{v} has 0 weights, the store has 3 rows; give one weight a row"),
        ("1\n2\n3\n4\n5\n", "{v} has 5 weights, the store has 3 rows; give one weight a row"),
        ("1\n-0.5\n3\n", "{v}:2: found -0.5 " + EXPECTED),
        ("1\n# two\n-0.5\n3\n", "{v}: weight 2: found -0.5 " + EXPECTED),
        ("1\nx\n3\n", "{v}:2: found 'x' " + EXPECTED),
        ("# three\n\n1,5\n3\n", "{v}:3: found '1,5' " + EXPECTED),
        ("1\nnan\n3\n", "{v}:2: found 'nan', " + FINITE),
        ("1\n-inf\n3\n", "{v}:2: found '-inf', " + FINITE),
        ("1\n1e999\n3\n", "{v}:2: found '1e999', " + FINITE),
        ("1\n1 2\n3\n", "{v}:2: found '2' " + BEHIND),
        ("1\n1 kg\n3\n", "{v}:2: found 'kg' " + BEHIND),
        ("1\n1\n1 1:2\n", "{v}:3: " + FEATURES),
        ("-1 1:2\n1 2:3\n-1 1:1\n", "{v}:1: " + FEATURES),
        ("#\n-1 1:2\n1 2:3\n-1 1:1\n", "{v}: weight 1: " + FEATURES),
        ("1 1:x\n", "{v}:1: " + FEATURES),
        ("1 1:2 1:2\n", "{v}:1: " + FEATURES),
        ("1 9223372036854775808:2\n", "{v}:1: " + FEATURES),
        ("0\n0\n0\n", "{v}: all weights are 0; give at least one row a weight above 0"),
    ],
)
def test_what_is_no_weight_for_each_row_is_refused(store, text, sentence):
    path = store.parent / "v.txt"
    path.write_text(text)
    with pytest.raises(DataError) as error:
        fit(store, weights=str(path))
    assert str(error.value) == sentence.format(v=path)


def test_the_line_is_right_in_later_pieces(store, monkeypatch):
    monkeypatch.setattr(text_module, "PIECE", 64)
    for bad, sentence in (("-2", f"found -2 {EXPECTED}"), ("x", f"found 'x' {EXPECTED}")):
        path = store.parent / "v.txt"
        path.write_text("0.5\n" * 100 + f"{bad}\n" + "0.5\n" * 50)
        with pytest.raises(DataError) as error:
            list(Weights(str(path))._pieces)
        assert str(error.value) == f"{path}:101: {sentence}"


def test_a_file_that_is_not_there_is_refused(store):
    path = store.parent / "no.txt"
    with pytest.raises(DataError, match=r"no\.txt"):
        fit(store, weights=str(path))


def test_a_store_that_does_not_know_its_deal_is_refused(store):
    manifest = read_manifest(store)
    for generation in manifest["generations"]:
        del generation["deal"]
    write_manifest(store, manifest)
    (store.parent / "v.txt").write_text("1\n1\n1\n")
    with pytest.raises(StoreError) as error:
        fit(store, weights=str(store.parent / "v.txt"))
    assert str(error.value) == (
        f"{store} was split by an older version, which did not note where each row went; split "
        "the data again to use weights"
    )
    fit(store)  # without weights it is as good as ever


def test_a_setting_that_is_no_name_is_refused():
    with pytest.raises(SettingsError, match="weights is 3; a name is expected"):
        sbm.Settings(weights=3)


def test_balanced_classes_are_balanced_by_the_weights_of_their_rows(tmp_path):
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
