"""Split: no row lost or changed, dealt at random, and no partial store after a failure."""

import errno
import fcntl
import io
import json
import os
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from helpers import Passes, Row, slow_parse, store_rows
from hypothesis import given
from hypothesis import strategies as st
from inside import (
    BlockStore,
    Dealer,
    check,
    default_model,
    default_store,
    patch,
    read_manifest,
    split,
)
from inside import dataset_deal_module as deal_module
from inside import store_blocks_module as block_module
from inside import store_files_module as file_module

import sbm
from sbm.errors import DataError, MemoryPlanError, SbmError, SettingsError, StoreError


def random_text(seed: int, n: int, values: str = "mixed", labels: int = 3) -> bytes:
    r = random.Random(seed)
    lines = []
    for _ in range(n):
        ids = r.sample(range(200), r.randint(0, 8)) + r.sample([10**9, 2**40, 2**63 - 1], 1)
        some = ["1"] if values == "ones" else ["1", "0.1", "-2.5e-3", "1e10", "0"]
        features = " ".join(f"{i}:{r.choice(some)}" for i in ids)
        lines.append(f"{r.randrange(labels)} {features}")
    return "\n".join(lines).encode() + b"\n"


def written(folder: Path, name: str, text: bytes) -> Path:
    (folder / name).write_bytes(text)
    return folder / name


def multiset(rows: list[Row] | list[list[Row]]) -> list[Any]:
    return sorted(r for row in rows for r in (row if isinstance(row, list) else [row]))


def rows_of(*texts: bytes, dtype: str = "float32") -> list[Any]:
    """The rows that a store of these texts should hold, sorted."""
    return multiset([row for text in texts for row in slow_parse(text, dtype)[0]])


def label_counts(labels: dict[str, Any]) -> dict[float, int]:
    return dict(zip(labels["values"], labels["counts"], strict=True))


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file of a folder; the manifest without its time and checksum."""
    files = {p.name: p.read_bytes() for p in folder.iterdir()}
    manifest = json.loads(files["manifest.json"])["manifest"]
    for generation in manifest["generations"]:
        generation["added"] = "some time"
    return {**files, "manifest.json": json.dumps(manifest).encode()}


@pytest.fixture
def small_batches(monkeypatch):
    """Batches of 100 rows or 800 nonzeros of float32, from pieces of 1 kB."""
    patch(monkeypatch, "LARGEST_BATCH", 6400)
    patch(monkeypatch, "text.PIECE", 1 << 10)


@pytest.fixture
def store(tmp_path):
    """50 rows of a.svm in three blocks."""
    split([written(tmp_path, "a.svm", random_text(1, 50))], tmp_path / "a.sbm", blocks=3)
    return tmp_path / "a.sbm"


# --------------------------------------------------------------------------------- the same rows


@pytest.mark.parametrize(("blocks", "dtype"), [(1, "float32"), (12, "float64"), (64, "float32")])
def test_store_holds_the_rows_of_the_text(tmp_path, blocks, dtype):
    text = random_text(1, 700)
    report = split(
        [written(tmp_path, "a.svm", text)], tmp_path / "a.sbm", blocks=blocks, dtype=dtype
    )
    got, expected = store_rows(tmp_path / "a.sbm"), rows_of(text, dtype=dtype)
    assert multiset(got) == expected
    assert len(got) == report["blocks"] == blocks
    assert {len(block) for block in got} == {700 // blocks, -(-700 // blocks)}
    assert (report["rows"], report["rows_in_all"], report["skipped"]) == (700, 700, 0)
    assert report["nnz"] == sum(len(features) for _, features in expected)
    assert report["features"] == len({i for _, features in expected for i, _ in features})
    assert label_counts(report["labels"]) == Counter(label for label, _ in expected)
    assert (report["value_type"], report["text_bytes"]) == (dtype, len(text))
    assert report["bytes"] == sum(p.stat().st_size for p in (tmp_path / "a.sbm").glob("*.sbb"))
    sound = check(tmp_path / "a.sbm")
    assert (sound["rows"], sound["unused_features"]) == (700, 0)


LINES = st.builds(
    lambda label, ids, values: " ".join(
        [label, *(f"{i}:{v}" for i, v in zip(ids, values, strict=False))]
    ),
    st.sampled_from(["+1", "-1", "0.5", "-0", "7"]),
    st.lists(st.integers(0, 2**63 - 1), max_size=6, unique=True),
    st.lists(st.sampled_from(["1", "0.1", "-3", "0", "1e-40"]), min_size=6, max_size=6),
)


@pytest.mark.long
@given(
    st.lists(LINES, min_size=1, max_size=30), st.integers(1, 9), st.booleans(), st.integers(0, 3),
    st.sampled_from([128, 320, 10**6]),
)  # fmt: skip
def test_random_rows_round_trip(tmp_path_factory, lines, blocks, shuffle, seed, batch):
    folder = tmp_path_factory.mktemp("any")
    text = "\n".join(lines).encode()
    source = written(folder, "a.svm", text)
    with pytest.MonkeyPatch.context() as context:
        patch(context, "LARGEST_BATCH", batch)  # from 2 rows on
        split([source], folder / "a.sbm", blocks=blocks, seed=seed, shuffle=shuffle, threads=1)
    expected = slow_parse(text)[0]
    got = store_rows(folder / "a.sbm")
    assert multiset(got) == multiset(expected)
    assert all(got), "a block without rows"
    if not shuffle:
        assert got == [expected[b::blocks] for b in range(min(blocks, len(expected)))]


def test_bytes_do_not_depend_on_threads_or_pieces(tmp_path, monkeypatch):
    r = random.Random(7)
    lines = []
    for k in range(1000):  # new ids in every piece, small and large, among old ones
        new = [k * 5 + j for j in range(3)] + [2**24 - 500 + k, 2**40 + k]
        old = r.sample(range(max(k * 5, 1)), min(k, 4))
        ids = list(dict.fromkeys(r.sample(new + old, len(new + old))))
        lines.append(" ".join([r.choice("12"), *(f"{i}:{r.choice(['1', '.5'])}" for i in ids)]))
    text = "\n".join(lines).encode()
    source = written(tmp_path, "a.svm", text)
    patch(monkeypatch, "LARGEST_BATCH", 20_000)
    split([source], tmp_path / "whole", blocks=3, threads=1)
    patch(monkeypatch, "text.PIECE", 1 << 10)
    for threads in (1, 3):
        split([source], tmp_path / "a.sbm", blocks=3, threads=threads, force=True)
        assert files_of(tmp_path / "a.sbm") == files_of(tmp_path / "whole")
    first = store_rows(tmp_path / "whole")
    assert multiset(first) == rows_of(text)
    # Within a row the parser sorts by id.
    order = dict.fromkeys(i for _, features in slow_parse(text)[0] for i, _ in features)
    assert BlockStore(tmp_path / "a.sbm").read_feature_ids().tolist() == list(order)
    split([source], tmp_path / "other", blocks=3, seed=1)
    other = store_rows(tmp_path / "other")
    assert multiset(first) == multiset(other)
    assert [sorted(b) for b in first] != [sorted(b) for b in other]


@pytest.mark.usefixtures("small_batches")
def test_rows_longer_than_a_batch_round_trip(tmp_path):
    lines = [f"1 {k}:{k}" for k in range(400)]
    for place, label, n in ((5, 2, 850), (200, 3, 900), (201, 4, 850), (403, 5, 900)):
        lines.insert(place, f"{label} " + " ".join(f"{k}:{label}" for k in range(n)))
    text = "\n".join(lines).encode()
    split([written(tmp_path, "a.svm", text)], tmp_path / "a.sbm", blocks=2)
    assert multiset(store_rows(tmp_path / "a.sbm")) == rows_of(text)
    batches = read_manifest(tmp_path / "a.sbm")["generations"][0]["deal"]["batches"]
    assert batches == [5, 1, 100, 94, 1, 1, 100, 100, 1, 1]


def test_sorted_labels_are_mixed_between_and_within_blocks(tmp_path):
    text = b"".join(b"%d %d:1\n" % (k >= 1500, k) for k in range(3000))
    split([written(tmp_path, "a.svm", text)], tmp_path / "a.sbm", blocks=3)
    for block in store_rows(tmp_path / "a.sbm"):
        labels = np.array([label for label, _ in block])
        assert len(labels) == 1000
        for part in (labels, labels[:500], labels[500:]):  # six standard deviations of a fair coin
            assert abs(part.mean() - 0.5) < 3 / np.sqrt(len(part))


@pytest.mark.parametrize("shuffle", [True, False])
def test_orders_of_two_batches_are_valid_together(shuffle):
    dealt = deal_module.Deal(1, 0, 3, shuffle)
    orders = [(n, dealt.next(n)) for n in (10, 7)]  # the first is written while the second is made
    for n, parts in orders:
        assert sorted(np.concatenate(parts)) == list(range(n))


# ----------------------------------------------------------------------------- values and labels


@pytest.mark.usefixtures("small_batches")
def test_values_of_all_ones_are_not_stored(tmp_path):
    lines = [f"1 {k % 100}:1" for k in range(700)]
    source = written(tmp_path, "a.svm", "\n".join(lines).encode())
    report = split([source], tmp_path / "ones.sbm", dtype="float64")
    assert report["value_type"] == "ones"
    for k in (400, 401):  # batches of ones before, after and within others
        lines[k] = "2 5:0.5 7:1"
    text = "\n".join(lines).encode()
    report = split([written(tmp_path, "b.svm", text)], tmp_path / "b.sbm", blocks=2)
    assert report["value_type"] == "float32"
    assert multiset(store_rows(tmp_path / "b.sbm")) == rows_of(text)
    bad = written(tmp_path, "c.svm", b"0 1:1\n1 1:2 2:x\n-0 3:1\n1\n")
    report = split([bad], tmp_path / "c.sbm", on_error="skip")
    assert (report["value_type"], report["skipped"]) == ("ones", 1)
    assert [problem.split(": ")[0] for problem in report["problems"]] == [f"{bad}:2"]
    assert report["labels"] == {"values": [0, 1], "counts": [2, 1]}  # 0 and -0 are the same label


@pytest.mark.parametrize("n", [1 << 16, 1 + (1 << 16)])
def test_codes_of_labels_have_two_bytes(tmp_path, n):
    text = "\n".join(f"{k} 1:1" for k in range(n)).encode()
    report = split([written(tmp_path, "a.svm", text)], tmp_path / "a.sbm", blocks=1)
    assert (report["labels"] is None) == (n > 1 << 16)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("coded", [300, 301])
def test_too_many_labels_become_real_midway(tmp_path, monkeypatch, coded):
    patch(monkeypatch, "MOST_LABELS", 300)
    store = tmp_path / "a.sbm"
    text = "\n".join(f"{k % coded / 8} {k % 5}:1" for k in range(720)).encode()
    report = split([written(tmp_path, "a.svm", text)], store, blocks=2)
    assert (report["labels"] is None) == (coded > 300)
    assert multiset(store_rows(store)) == rows_of(text)
    more = b"0.125 9:1\n-77.5 9:1\n"
    split([written(tmp_path, "b.svm", more)], store, append=True)
    assert read_manifest(store)["labels"] is None
    assert multiset(store_rows(store)) == rows_of(text, more)
    assert check(store)["rows"] == 722


# --------------------------------------------------------------------------------- rare features

WORDS = st.tuples(
    st.sampled_from(["+1", "-1", "0.5"]),
    st.dictionaries(
        st.one_of(st.integers(0, 12), st.sampled_from([2**24 - 1, 2**24, 2**40, 2**63 - 1])),
        st.sampled_from(["1", "1.0", "0.1", "-3", "0"]),
        max_size=8,
    ),
)
Word = tuple[str, dict[int, str]]


def as_text(rows: list[Word]) -> bytes:
    lines = (" ".join([label, *(f"{i}:{v}" for i, v in f.items())]) for label, f in rows)
    return "".join(f"{line}\n" for line in lines).encode()


def without_source(folder: Path) -> dict[str, Any]:
    """Every file; the manifest without facts about the text and dropped features."""
    files: dict[str, Any] = dict(files_of(folder))
    manifest = json.loads(files["manifest.json"])
    for generation in manifest["generations"]:
        generation["options"].pop("min_count", None)
        generation.pop("left_out", None)
        for source in generation["sources"]:
            del source["bytes"], source["sha256"]
    return {**files, "manifest.json": manifest}


@pytest.mark.long
@given(
    st.lists(WORDS, min_size=1, max_size=25), st.lists(WORDS, max_size=5), st.integers(1, 5),
    st.integers(1, 4), st.sampled_from(["float32", "float64"]), st.sampled_from([64, 1 << 20]),
)  # fmt: skip
def test_rare_features_are_dropped_as_if_never_present(
    tmp_path_factory, rows, before, least, blocks, dtype, piece
):
    folder = tmp_path_factory.mktemp("rare")
    old = {i for _, features in before for i in features}
    counts = Counter(i for _, features in rows for i in features)
    rare = {i for i, n in counts.items() if n < least and i not in old}
    kept = [(label, {i: v for i, v in f.items() if i not in rare}) for label, f in rows]
    for name in ("whole", "cleaned"):
        (folder / f"{name}.dir").mkdir()
        if before:  # then the rows are appended, and ids of the store stay
            split([written(folder, "a.svm", as_text(before))], folder / name, dtype=dtype)
    options: dict[str, Any] = {
        "blocks": blocks, "dtype": dtype, "append": bool(before), "force": True, "threads": 2,
        "new_labels": True,
    }  # fmt: skip
    whole = written(folder / "whole.dir", "b.svm", as_text(rows))
    cleaned = written(folder / "cleaned.dir", "b.svm", as_text(kept))
    with pytest.MonkeyPatch.context() as context:
        patch(context, "text.PIECE", piece)
        seen = Passes()
        report = split([whole], folder / "whole", min_count=least, progress=seen, **options)
    nothing_is_left = bool(rare) and not old | set(counts) - rare
    assert any("drops all" in text for text in seen.stages) == nothing_is_left
    expected = split([cleaned], folder / "cleaned", **options)
    assert report["left_out"] == {"features": len(rare), "nnz": sum(counts[i] for i in rare)}
    assert without_source(folder / "whole") == without_source(folder / "cleaned")
    same = set(report) - {"store", "text_bytes", "left_out"}
    assert {k: report[k] for k in same} == {k: expected[k] for k in same}
    generation = read_manifest(folder / "whole")["generations"][-1]
    assert generation["options"].get("min_count", 1) == least
    assert generation.get("left_out", report["left_out"]) == report["left_out"]
    assert ("left_out" in generation) == (least > 1)


def test_invalid_rows_are_not_counted(tmp_path):
    first = written(tmp_path, "a.svm", b"1 1:1 2:1 3:5\n-1 1:1 3:x\n")
    second = written(tmp_path, "b.svm", b"# none\n1 1:1\n-1 2:1 4:1\n1 4:x\n-1 9:1\n")
    report = split([first, second], tmp_path / "a.sbm", blocks=1, on_error="skip", min_count=2)
    assert multiset(store_rows(tmp_path / "a.sbm")) == [
        (-1, ()), (-1, ((2, 1),)), (1, ((1, 1),)), (1, ((1, 1), (2, 1)))
    ]  # fmt: skip
    assert report["left_out"] == {"features": 3, "nnz": 3}
    assert (report["skipped"], len(report["problems"])) == (2, 2)  # of both readings
    assert report["value_type"] == "ones"  # the only other value is gone


def test_min_count_needs_unchanged_text(tmp_path, monkeypatch):
    source = written(tmp_path, "a.svm", b"1 1:1\n1 1:1\n")
    with pytest.raises(SettingsError, match="standard input can be read only once"):
        split([source, "-"], tmp_path / "a.sbm", min_count=2)

    class Changing(Dealer):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            source.write_bytes(b"1 1:1\n1 2:1\n")

    patch(monkeypatch, "Dealer", Changing)
    with pytest.raises(DataError, match=f"{source} changed between the two readings"):
        split([source], tmp_path / "a.sbm", min_count=2)
    assert [p.name for p in tmp_path.iterdir()] == ["a.svm"]


# ---------------------------------------------------------------------------------------- append


def test_append_keeps_blocks_ids_and_labels(tmp_path):
    texts = [random_text(k, 200, labels=2 + k) for k in range(3)]
    store = tmp_path / "a.sbm"
    split([written(tmp_path, "0.svm", texts[0])], store, blocks=3)
    old_files, old_rows = {p: p.read_bytes() for p in store.glob("*.sb?")}, store_rows(store)
    for k in (1, 2):
        source = written(tmp_path, f"{k}.svm", texts[k])
        inputs, target = ([store, source], None) if k == 1 else ([source], store)
        report = split(inputs, target, blocks=2, append=True, seed=k, new_labels=True)
        assert (report["rows"], report["blocks"], report["rows_in_all"]) == (200, 2, 200 + 200 * k)
    rows = store_rows(store)
    assert rows[:3] == old_rows
    assert [multiset(rows[3:5]), multiset(rows[5:])] == [rows_of(text) for text in texts[1:]]
    assert {path: path.read_bytes() for path in old_files} == old_files
    manifest = read_manifest(store)
    generations = manifest["generations"]
    assert [g["sources"][0]["name"] for g in generations] == ["0.svm", "1.svm", "2.svm"]
    assert [g["options"]["seed"] for g in generations] == [0, 1, 2]
    names = [f"block-{k:06d}.sbb" for k in range(7)]
    assert [g["blocks"] for g in generations] == [names[:3], names[3:5], names[5:]]
    assert BlockStore(store).blocks_of_generations == [3, 2, 2]
    assert sum(g["new_features"] for g in generations) == manifest["features"]
    assert label_counts(manifest["labels"]) == Counter(label for label, _ in rows_of(*texts))
    assert check(store)["rows"] == 600


def test_same_source_twice_needs_force(tmp_path, store):
    before, text = files_of(store), (tmp_path / "a.svm").read_bytes()
    again = written(tmp_path, "again.svm", text)
    both = [tmp_path / "a.svm", again]
    with pytest.raises(DataError, match=rf"{again} is already in {store} as a\.svm"):
        split([again], store, append=True)
    with pytest.raises(DataError, match=rf"{again} is the same file as .*/a\.svm"):
        split(both, tmp_path / "b.sbm")
    assert files_of(store) == before
    assert not (tmp_path / "b.sbm").exists()
    split([again], store, append=True, force=True)
    assert multiset(store_rows(store)) == rows_of(text, text)
    assert split(both, tmp_path / "b.sbm", force=True)["rows"] == 100
    empty = [written(tmp_path, f"{k}.svm", b"") for k in range(2)]
    assert split([*empty, again], tmp_path / "c.sbm")["rows"] == 50


def test_invalid_append_is_rejected(tmp_path, store, monkeypatch):
    monkeypatch.chdir(tmp_path)
    split(["a.svm"], "b.sbm", dtype="float64")
    written(tmp_path, "new.svm", b"1 1:0.1\n2 1:1\n")
    written(tmp_path, "empty.svm", b"#\n")
    before = files_of(store), files_of(Path("b.sbm"))
    for inputs, target, options, facts in (
        (["a.sbm"], None, {}, "no input to append to a.sbm"),
        (["a.sbm", "b.sbm", "new.svm"], None, {}, "a.sbm, b.sbm are stores"),
        (["none.sbm", "new.svm"], None, {}, "none.sbm does not exist"),
        (["missing.svm"], None, {}, "missing.svm does not exist"),
        (["new.svm"], "none.sbm", {}, "none.sbm does not exist"),
        (["b.sbm", "new.svm"], "a.sbm", {}, "b.sbm is a store"),
        (["new.svm"], "b.sbm", {"dtype": "float32"}, "b.sbm holds float64 values"),
        (["empty.svm"], "a.sbm", {}, "no rows"),
    ):  # fmt: skip
        with pytest.raises(SbmError, match=facts):
            split(inputs, target, append=True, **options)
    assert (files_of(store), files_of(Path("b.sbm"))) == before
    assert not Path("none.sbm").exists()
    split(["new.svm"], "b.sbm", append=True)  # of the store's type
    assert (1, ((1, 0.1),)) in multiset(store_rows("b.sbm"))


def test_values_appended_to_ones_round_trip(tmp_path):
    texts = [b"1 1:1 2:1\n", b"1 1:0.5\n", b"2 3:1\n"]
    for k, kind in enumerate(("ones", "float32", "float32")):
        source = written(tmp_path, f"{k}.svm", texts[k])
        assert split([source], tmp_path / "a.sbm", append=k > 0)["value_type"] == kind
    assert multiset(store_rows(tmp_path / "a.sbm")) == rows_of(*texts)


def test_number_of_blocks_depends_on_size(tmp_path, monkeypatch):
    patch(monkeypatch, "SMALL_BLOCK", 5_000)

    def source(k: int, n: int) -> Path:
        return written(tmp_path, f"{k}.svm", random_text(k, n, "ones"))

    store = tmp_path / "a.sbm"
    assert split([source(0, 2400)], store)["blocks"] == 12
    assert split([source(1, 50)], store, append=True)["blocks"] == 1
    assert (
        split([source(2, 600)], store, append=True)["blocks"] == 3
    )  # about as large as the existing ones
    assert split([source(3, 9600)], store, append=True)["blocks"] == 12  # as many as in a new store
    assert split([source(4, 60)], store, append=True, blocks=5)["blocks"] == 5
    assert split([source(5, 300)], tmp_path / "b.sbm")["blocks"] == 4
    assert split([source(6, 3)], tmp_path / "c.sbm", blocks=1000)["blocks"] == 3
    text = b"".join(b"1 %d:1 %d:2 %d:3\n" % (k, k + 1, k + 2) for k in range(9000))
    report = split([written(tmp_path, "7", text)], tmp_path / "d.sbm", block_size="100kB")
    assert 50_000 <= (report["nnz"] * 8 + report["rows"] * 16) / report["blocks"] <= 100_000


# ------------------------------------------------------------------------------ what is replaced


def test_existing_store_needs_force(tmp_path, store):
    before = files_of(store)
    source = written(tmp_path, "b.svm", b"5 5:5\n")
    with pytest.raises(StoreError, match=f"{store} exists.*--append.*--force"):
        split([source], store)
    assert files_of(store) == before
    split([source], store, force=True)
    assert store_rows(store) == [[(5, ((5, 5),))]]
    assert len(list(store.glob("*.sbb"))) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.sbm", "a.svm", "b.svm"]


def test_foreign_files_are_kept(tmp_path, store):
    precious = [tmp_path / "file"]
    precious[0].write_text("mine")
    for name in ("b.sbm.replaced", "a.sbm.partial", "folder"):
        (tmp_path / name).mkdir()
        precious.append(written(tmp_path / name, "thesis.txt", b"mine"))
    source = tmp_path / "a.svm"
    for target, facts in (
        ("a.sbm", r"a\.sbm\.partial.* other files"), ("file", "is not a store"),
        ("folder", "is not a store"),
    ):  # fmt: skip
        with pytest.raises(StoreError, match=f"{tmp_path / target}.*{facts}|{facts}"):
            split([source], tmp_path / target, force=True)
    for force in (False, True):
        split([source], tmp_path / "b.sbm", force=force)
    assert [path.read_text() for path in precious] == ["mine"] * 4


def test_files_of_killed_commands_are_removed(tmp_path, store):
    text, more = (tmp_path / "a.svm").read_bytes(), b"1 1:1\n"
    partial = tmp_path / "b.sbm.partial"
    partial.mkdir()
    (partial / "block-000000.sbb").write_bytes(b"half a block")
    split([tmp_path / "a.svm"], tmp_path / "b.sbm", blocks=1)
    assert multiset(store_rows(tmp_path / "b.sbm")) == rows_of(text)
    assert not partial.exists()
    for name in ("block-000003.sbb", "block-000077.sbb", "index-0001.sba.tmp", "features-0001.sba"):
        (store / name).write_bytes(b"half a file")
    (store / "notes.txt").write_text("mine")
    split([written(tmp_path, "b.svm", more)], store, append=True)
    assert (store / "notes.txt").read_text() == "mine"
    assert not (store / "block-000077.sbb").exists()
    assert multiset(store_rows(store)) == rows_of(text, more)
    (store / "notes.txt").unlink()
    for _ in range(2):  # a killed command had moved the store aside
        store.rename(tmp_path / "a.sbm.replaced")
        with pytest.raises(StoreError, match=r"a\.sbm exists"):
            split([tmp_path / "b.svm"], store)
    left = sorted(p.name for p in tmp_path.iterdir())
    assert left == ["a.sbm", "a.svm", "b.sbm", "b.svm"]


# ------------------------------------------------------------------------------- what goes wrong


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("how", ["new", "append", "force"])
def test_invalid_line_leaves_no_store(tmp_path, store, how):
    lines = [f"1 {k}:2 {k + 10**6}:1" for k in range(900)]
    lines[800] = "oops"  # blocks have been written before this line
    source = written(tmp_path, "bad.svm", "\n".join(lines).encode())
    before, target = files_of(store), tmp_path / "b.sbm" if how == "new" else store
    options = {} if how == "new" else {how: True}
    for min_count in (1, 2):
        with pytest.raises(DataError, match=f"{source}:801: found 'oops'"):
            split([source], target, blocks=2, min_count=min_count, **options)
    assert files_of(store) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.sbm", "a.svm", "bad.svm"]
    report = split([source], target, on_error="skip", **options)
    assert (report["rows"], report["skipped"]) == (899, 1)


class FullDisk(io.FileIO):
    """A file on a disk that is full after a number of writes to any file."""

    room = 0

    def write(self, data):
        FullDisk.room -= 1
        if FullDisk.room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


def open_on_full_disk(path, mode="r", **options):
    is_new = set(mode) & set("wa")
    return FullDisk(path, mode, **options) if is_new else open(path, mode, **options)


@pytest.mark.parametrize("append", [False, True])
def test_full_disk_leaves_no_partial_store(tmp_path, store, monkeypatch, append):
    source = written(tmp_path, "b.svm", random_text(2, 60))
    before, target = files_of(store), store if append else tmp_path / "b.sbm"
    stages = set()
    for module in (block_module, file_module):
        monkeypatch.setattr(module, "open", open_on_full_disk, raising=False)
    for room in range(1000):
        FullDisk.room = room
        try:
            split([source], target, blocks=2, append=append, threads=1)
            break
        except StoreError as error:
            path, reason, *_ = str(error).split(": ")
            stages.add((Path(path).name.split("-")[0], reason.split(";")[0]))
        assert files_of(store) | {"lock": b""} == before | {"lock": b""}
        assert sorted(p.name for p in tmp_path.iterdir()) == ["a.sbm", "a.svm", "b.svm"]
    names = ("block", "index", "features", "manifest.json")
    assert stages == {(name, "No space left on device") for name in names}
    check(target)


@pytest.mark.parametrize("option", [None, "append", "force"])
def test_store_in_use_is_refused(tmp_path, store, option):
    options, target, folder = {option: True}, store, store
    if option is None:
        options, target, folder = {}, tmp_path / "b.sbm", tmp_path / "b.sbm.partial"
        folder.mkdir()
    new = written(tmp_path, "b.svm", b"1 1:1\n")
    with open(folder / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        before = {p.name: p.read_bytes() for p in folder.iterdir()}
        with pytest.raises(StoreError, match=f"the store {target} is in use by another"):
            split([new], target, **options)
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    split([new], target, **options)
    with open(target / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the lock was released


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"blocks": 3, "block_size": "1MB"}, "--blocks or --block-size"),
        ({"blocks": 0}, "blocks is 0; .* 1 to 999999"), ({"blocks": 10**6}, "blocks is 1000000"),
        ({"block_size": "much"}, "'much' is not a size"), ({"block_size": 99_999}, "100kB"),
        ({"dtype": "int8"}, "dtype is 'int8'"), ({"level": 0}, "level is 0; .* 1 to 19"),
        ({"level": 20}, "level is 20"), ({"threads": 0}, "threads is 0"),
        ({"seed": -1}, "seed is -1"), ({"min_count": 0}, "min_count is 0"),
        ({"min_count": 2**31}, "min_count is 2147483648; .* to 2147483647"),
        ({"on_error": "ignore"}, "on_error is 'ignore'"),
    ],
)  # fmt: skip
def test_invalid_options_are_refused(tmp_path, options, facts):
    source = written(tmp_path, "a.svm", b"1 1:1\n")
    with pytest.raises(SettingsError, match=facts):
        split([source], tmp_path / "a.sbm", **options)
    assert [p.name for p in tmp_path.iterdir()] == ["a.svm"]


def test_empty_input_and_invalid_output_are_refused(tmp_path):
    for text in (b"", b"\n\r\n", b"# only\n  # comments\n"):
        with pytest.raises(DataError, match="no rows"):
            split([written(tmp_path, "a.svm", text)], tmp_path / "a.sbm")
    source = written(tmp_path, "a.svm", b"1 1:1\n")
    with pytest.raises(StoreError, match=f"{source} is not a folder"):
        split([source], source / "a.sbm")
    with pytest.raises(SettingsError, match="name the store"):
        split(["-"])
    with pytest.raises(DataError, match="no input"):
        split([], tmp_path / "a.sbm")
    assert [p.name for p in tmp_path.iterdir()] == ["a.svm"]


def test_several_inputs_of_all_kinds_make_one_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = [random_text(k, 40) for k in range(3)]
    written(tmp_path, "a.svm", texts[0])
    for k in (1, 2):
        written(tmp_path, f"b{k}.svm.zst", zstandard.ZstdCompressor().compress(texts[k]))
    assert split(["a.svm", "b*.zst"])["store"] == "a.sbm"
    assert multiset(store_rows("a.sbm")) == rows_of(*texts)
    sources = read_manifest(Path("a.sbm"))["generations"][0]["sources"]
    assert [s["name"] for s in sources] == ["a.svm", "b1.svm.zst", "b2.svm.zst"]
    for name, store in (("/data/big.svm.zst", "big.sbm"), ("big.t", "big.t.sbm"), ("a", "a.sbm")):
        assert default_store(name) == Path(store)
    assert default_model("b*.zst") == "b1.model"


def test_too_little_memory_reports_the_minimum(tmp_path, monkeypatch):
    source = written(tmp_path, "a.svm", b"1 1:1 5:1\n")
    with pytest.raises(MemoryPlanError) as caught:
        split([source], tmp_path / "a.sbm", mem="100MB", threads=2)
    least = caught.value.least_bytes
    assert f"--mem {-(-least // 1_000_000)}MB" in str(caught.value)
    with pytest.raises(MemoryPlanError):
        split([source], tmp_path / "a.sbm", mem=least - 10_000, threads=2)
    split([source], tmp_path / "a.sbm", mem=least, threads=2)
    monkeypatch.setattr("sbm.inputs.idtable.IdTable.nbytes", 90_000_000)
    for min_count in (1, 2):
        with pytest.raises(MemoryPlanError, match="twice the 2 features so far 180 MB") as caught:
            split([source], tmp_path / "b.sbm", mem="180MB", threads=1, min_count=min_count)
        assert ("ids and counts" in str(caught.value)) == (min_count > 1)
        split([source], tmp_path / "c.sbm", mem=caught.value.least_bytes, min_count=min_count,
              force=True)  # fmt: skip
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.sbm", "a.svm", "c.sbm"]


# --------------------------------------------------------------------------- files of other kinds

MULTI, RAW = "Several labels .*multi-label", "Raw text is not read.*docs/inputs.md"
OTHER_KINDS = [
    ("0,1 1:1 2:1\n", MULTI), ("0, 1 1:1\n", MULTI), (",1 5:0.5\n", MULTI),
    ("+1,-1 1:1 2:1\n", MULTI), ("1.0,2.0 1:1\n", MULTI),
    ("1,2,3:0.5 1:1\n", MULTI), ("3 10 4\n0,1 1:1\n", MULTI), ("3 10 4\n0 1:1\n", MULTI),
    ("7 8 9\n1 2 3\n", "id:value$"), ("1 1:1 2\n", "id:value$"), ("yes 1:1\n", "expected$"),
    ("1 a:1\n", "expected$"), ("x\n", "expected$"), ("1:0.5 1:1\n", "--weights"),
    ("-1:2 1:1 3:1\n", "--weights"), ("__label__good a great film\n", RAW),
    ("good\ta great film\n", RAW), ("5\ta great film\n", RAW), ("fin de l’été\n", RAW),
    ("good\tat 10:30 in the morning\n", RAW), ("3 words, nothing else\n", RAW),
    ('{"text": "a 1:1", "label": 1}\n', "JSON is not read.*docs/inputs.md"), ("[\n", "JSON"),
    ("1 |f a b:2\n", "--format vw"), ("a,b,label\n", "--format csv"), ("1,2\n", "--format csv"),
    ("a\tb\tlabel\n", "--format tsv"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "facts"), OTHER_KINDS)
def test_text_of_another_kind_is_named(tmp_path, text, facts):
    (tmp_path / "a.txt").write_text("1 1:1\n")
    (tmp_path / "b.txt").write_text(text)
    with pytest.raises(DataError, match=rf"b\.txt:1: found .*{facts}"):
        split([tmp_path / "a.txt", tmp_path / "b.txt"], tmp_path / "s.sbm")
    assert not (tmp_path / "s.sbm").exists()


@pytest.mark.parametrize(
    ("good", "bad", "is_refused"), [(12, 13, 0), (12, 14, 1), (1, 11, 1), (0, 9, 0)]
)
def test_mostly_invalid_text_is_not_skipped(tmp_path, good, bad, is_refused):
    (tmp_path / "a.svm").write_text("1 1:1\n" * good + "0,1 1:1\n" * bad + "2 1:1\n")
    options = {"on_error": "skip"}
    if not is_refused:
        assert split(tmp_path / "a.svm", tmp_path / "s.sbm", **options)["skipped"] == bad
        return
    for call in (
        lambda: split(tmp_path / "a.svm", tmp_path / "s.sbm", **options),
        lambda: sbm.train(tmp_path / "a.svm", tmp_path / "a.model", **options),
        lambda: sbm.stream(tmp_path / "a.svm", tmp_path / "b.model", options=options),
    ):
        with pytest.raises(DataError, match=rf"a\.svm: {bad} of .* invalid.*multi-label"):
            call()
    assert not (tmp_path / "s.sbm").exists()
    assert not (tmp_path / "a.model").exists()
