"""Split: no row lost, none changed, dealt at random, and no half store left whatever happens."""

import errno
import fcntl
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zstandard
from helpers import Row, slow_parse, store_rows
from hypothesis import given, settings
from hypothesis import strategies as st

from sbm.errors import DataError, MemoryPlanError, SettingsError, StoreError
from sbm.jobs.dealing import options as dealing
from sbm.jobs.dealing.deal import Dealer
from sbm.jobs.info import check
from sbm.jobs.split import default_store, split
from sbm.store import blocks as block_module
from sbm.store import files as file_module
from sbm.store.blocks import BlockStore, read_manifest

ROOT = Path(__file__).resolve().parent.parent
FROZEN = Path(__file__).resolve().parent / "frozen"
FROZEN_TEXT = FROZEN / "v1"


def random_text(seed: int, n: int, values: str = "mixed", labels: int = 3) -> bytes:
    r = random.Random(seed)
    lines = []
    for _ in range(n):
        ids = r.sample(range(200), r.randint(0, 8)) + r.sample([10**9, 2**40, 2**63 - 1], 1)
        value = {
            "ones": lambda: "1",
            "mixed": lambda: r.choice(["1", "0.1", "-2.5e-3", "1e10", "0"]),
        }[values]
        lines.append(f"{r.randrange(labels)} " + " ".join(f"{i}:{value()}" for i in ids))
    return "\n".join(lines).encode() + b"\n"


def written(folder: Path, name: str, text: bytes) -> Path:
    (folder / name).write_bytes(text)
    return folder / name


def multiset(rows: list[Row] | list[list[Row]]) -> list[Any]:
    flat = [r for row in rows for r in (row if isinstance(row, list) else [row])]
    return sorted(flat)


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file of a folder; the manifest without the time, with which its checksum goes."""
    files = {p.name: p.read_bytes() for p in folder.iterdir()}
    manifest = json.loads(files["manifest.json"])["manifest"]
    for generation in manifest["generations"]:
        generation["added"] = "some time"
    return {**files, "manifest.json": json.dumps(manifest).encode()}


# -------------------------------------------------------------------------------- the same rows


@pytest.mark.parametrize("blocks", [1, 3, 12, 400])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_store_holds_exactly_the_rows_of_the_text(
    tmp_path: Path, blocks: int, dtype: str
) -> None:
    text = random_text(1, 700)
    report = split(
        [written(tmp_path, "a.svm", text)], tmp_path / "a.sbm", blocks=blocks, dtype=dtype
    )
    got, expected = store_rows(tmp_path / "a.sbm"), slow_parse(text, dtype)[0]
    assert multiset(got) == multiset(expected)
    assert len(got) == report["blocks"] == blocks
    assert {len(block) for block in got} <= {700 // blocks, -(-700 // blocks)}
    assert (report["rows"], report["skipped"]) == (700, 0)
    assert report["nnz"] == sum(len(features) for _, features in expected)
    assert report["features"] == len({i for _, features in expected for i, _ in features})
    counts = Counter(label for label, _ in expected)
    labels = report["labels"]
    assert dict(zip(labels["values"], labels["counts"], strict=True)) == counts
    assert report["value_type"] == dtype
    assert report["text_bytes"] == len(text)
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


@settings(deadline=None, derandomize=True, max_examples=20)
@given(
    st.lists(LINES, min_size=1, max_size=30),
    st.integers(1, 9),
    st.booleans(),
    st.integers(0, 3),
)
def test_any_rows_come_back(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[str],
    blocks: int,
    shuffle: bool,
    seed: int,
) -> None:
    folder = tmp_path_factory.mktemp("any")
    text = "\n".join(lines).encode()
    split(
        [written(folder, "a.svm", text)], folder / "a.sbm", blocks=blocks, seed=seed,
        shuffle=shuffle, threads=1,
    )  # fmt: skip
    expected = slow_parse(text)[0]
    got = store_rows(folder / "a.sbm")
    assert multiset(got) == multiset(expected)
    assert len(got) == min(blocks, len(expected))
    assert all(got), "a block without rows"
    if not shuffle:
        assert got == [expected[b::blocks] for b in range(len(got))]


@pytest.mark.parametrize("piece", [1 << 10, 1 << 14])
def test_ids_that_workers_do_not_know_yet_get_codes_in_the_order_of_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    r = random.Random(7)
    lines = []
    for k in range(3000):  # new ids in every piece, small and large, old ones between them
        new = [k * 5 + j for j in range(3)] + [2**24 - 1500 + k, 2**40 + k]
        old = r.sample(range(max(k * 5, 1)), min(k, 4))
        ids = list(dict.fromkeys(r.sample(new + old, len(new + old))))
        lines.append(" ".join([r.choice("12"), *(f"{i}:{r.choice(['1', '.5'])}" for i in ids)]))
    text = "\n".join(lines).encode()
    source = written(tmp_path, "a.svm", text)
    split([source], tmp_path / "whole", blocks=3, threads=1)
    monkeypatch.setattr("sbm.store.text.PIECE", piece)
    for threads in (1, 3):
        split([source], tmp_path / "a.sbm", blocks=3, threads=threads, force=True)
        assert files_of(tmp_path / "a.sbm") == files_of(tmp_path / "whole")
    expected = slow_parse(text)[0]
    assert multiset(store_rows(tmp_path / "a.sbm")) == multiset(expected)
    # Within a row the parser sorts by id.
    order = dict.fromkeys(i for _, features in expected for i, _ in features)
    assert BlockStore(tmp_path / "a.sbm").read_feature_ids().tolist() == list(order)


def test_threads_change_no_byte_and_the_seed_changes_the_dealing(tmp_path: Path) -> None:
    source = written(tmp_path, "a.svm", random_text(2, 2000))
    for name, options in {
        "one": {"threads": 1},
        "two": {"threads": 2},
        "again": {"threads": 2},
        "other": {"threads": 1, "seed": 1},
    }.items():
        split([source], tmp_path / name, blocks=5, **options)  # type: ignore[arg-type]
    one = files_of(tmp_path / "one")
    assert files_of(tmp_path / "two") == one
    assert files_of(tmp_path / "again") == one
    first, other = store_rows(tmp_path / "one"), store_rows(tmp_path / "other")
    assert multiset(first) == multiset(other)
    assert [sorted(b) for b in first] != [sorted(b) for b in other]


def test_without_shuffling_rows_are_dealt_in_turn_in_the_order_of_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dealing, "LARGEST_BATCH", 2_000_000)  # 31250 rows: several batches
    text = b"".join(b"%d %d:1\n" % (k % 7, k % 1000) for k in range(70_000))
    split([written(tmp_path, "a.svm", text)], tmp_path / "a.sbm", blocks=3, shuffle=False)
    labels = [[label for label, _ in block] for block in store_rows(tmp_path / "a.sbm")]
    assert labels == [[k % 7 for k in range(b, 70_000, 3)] for b in range(3)]
    assert all(len(chunks) >= 3 for chunks in BlockStore(tmp_path / "a.sbm").chunks)


@pytest.mark.parametrize("blocks", [3, 12])
def test_label_sorted_text_is_mixed_in_every_block_and_within_it(
    tmp_path: Path, blocks: int
) -> None:
    text = b"".join(b"%d %d:1\n" % (k >= 6000, k) for k in range(12_000))
    split([written(tmp_path, "a.svm", text)], tmp_path / "a.sbm", blocks=blocks)
    for block in store_rows(tmp_path / "a.sbm"):
        labels = np.array([label for label, _ in block])
        n = len(labels)
        assert n == 12_000 // blocks
        # Six standard deviations of a fair coin, for the block and its halves.
        for part in (labels, labels[: n // 2], labels[n // 2 :]):
            assert abs(part.mean() - 0.5) < 3 / np.sqrt(len(part))


def test_many_batches_and_rows_longer_than_a_batch_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dealing, "LARGEST_BATCH", 2_000_000)  # 250000 nonzeros
    long = " ".join(f"{k}:2" for k in range(260_000))
    longer = " ".join(f"{k}:3" for k in range(300_000))
    lines = [f"1 {k}:{k}" for k in range(40_000)]
    lines[5:5] = [f"2 {long}"]
    lines[20_000:20_000] = [f"3 {longer}", f"4 {long}"]
    lines.append(f"5 {longer}")
    text = "\n".join(lines).encode()
    split([written(tmp_path, "a.svm", text)], tmp_path / "a.sbm", blocks=2)
    rows = multiset(store_rows(tmp_path / "a.sbm"))
    assert [len(f) for label, f in rows if label > 1] == [260_000, 300_000, 260_000, 300_000]
    assert rows[-1][1] == tuple((k, 3.0) for k in range(300_000))
    assert [row for row in rows if row[0] == 1] == sorted(
        (1.0, ((k, float(k)),)) for k in range(40_000)
    )


def test_more_blocks_than_rows_make_a_block_a_row(tmp_path: Path) -> None:
    text = b"1 1:1\n2 2:2\n3\n"
    report = split([written(tmp_path, "a.svm", text)], tmp_path / "a.sbm", blocks=1000)
    assert report["blocks"] == 3
    got = store_rows(tmp_path / "a.sbm")
    assert sorted(map(len, got)) == [1, 1, 1]
    assert multiset(got) == multiset(slow_parse(text)[0])
    names = sorted(p.name for p in (tmp_path / "a.sbm").glob("*.sbb"))
    assert names == [f"block-{k:06d}.sbb" for k in range(3)]


# ------------------------------------------------------------------------------- values and labels


def test_values_that_are_all_one_are_not_stored(tmp_path: Path) -> None:
    text = random_text(3, 300, values="ones")
    report = split([written(tmp_path, "a.svm", text)], tmp_path / "a.sbm", dtype="float64")
    assert report["value_type"] == "ones"
    assert multiset(store_rows(tmp_path / "a.sbm")) == multiset(slow_parse(text)[0])


def test_refused_lines_with_other_values_leave_a_store_of_ones(tmp_path: Path) -> None:
    source = written(tmp_path, "a.svm", b"1 1:1\n1 1:2 2:x\n-1 3:1\n")
    report = split([source], tmp_path / "a.sbm", on_error="skip")
    assert report["value_type"] == "ones"
    assert report["skipped"] == 1
    assert report["problems"] == [f"{source}:2: found 'x' where a decimal number is expected"]


def test_batches_of_ones_before_and_behind_other_values_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dealing, "LARGEST_BATCH", 2_000_000)
    monkeypatch.setattr("sbm.store.text.PIECE", 1 << 14)
    lines = [f"1 {k % 100}:1" for k in range(70_000)]
    lines[40_000] = "2 5:0.5"
    text = "\n".join(lines).encode()
    report = split([written(tmp_path, "a.svm", text)], tmp_path / "a.sbm", blocks=2)
    assert report["value_type"] == "float32"
    assert multiset(store_rows(tmp_path / "a.sbm")) == multiset(slow_parse(text)[0])


def test_zero_and_minus_zero_are_one_label(tmp_path: Path) -> None:
    source = written(tmp_path, "a.svm", b"0 1:1\n-0 1:1\n1 1:1\n")
    report = split([source], tmp_path / "a.sbm")
    assert report["labels"] == {"values": [0, 1], "counts": [2, 1]}


@pytest.mark.parametrize("coded", [65_536, 70_000])
def test_too_many_labels_to_be_classes_become_real_labels_midway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, coded: int
) -> None:
    monkeypatch.setattr(dealing, "LARGEST_BATCH", 2_000_000)  # 31250 rows a batch
    lines = [f"{k % coded / 8} {k % 5}:1" for k in range(72_000)]
    text = "\n".join(lines).encode()
    report = split([written(tmp_path, "a.svm", text)], tmp_path / "a.sbm", blocks=2)
    assert (report["labels"] is None) == (coded > 65_536)
    assert multiset(store_rows(tmp_path / "a.sbm")) == multiset(slow_parse(text)[0])
    check(tmp_path / "a.sbm")
    more = written(tmp_path, "b.svm", b"0.125 9:1\n-77.5 9:1\n")
    split([more], tmp_path / "a.sbm", append=True)
    last = store_rows(tmp_path / "a.sbm")[2:]
    assert multiset(last) == [(-77.5, ((9, 1),)), (0.125, ((9, 1),))]
    assert (read_manifest(tmp_path / "a.sbm")["labels"] is None) == (coded >= 65_536)
    assert len(multiset(store_rows(tmp_path / "a.sbm"))) == 72_002


# ----------------------------------------------------------------------------------- rare features

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


def without_rare(rows: list[Word], least: int, old: set[int]) -> tuple[list[Word], set[int], int]:
    """The rows as a patient person leaves them, what was left out, and how many nonzeros."""
    counts = Counter(i for _, features in rows for i in features)
    rare = {i for i, n in counts.items() if n < least and i not in old}
    kept = [(label, {i: v for i, v in f.items() if i not in rare}) for label, f in rows]
    return kept, rare, sum(counts[i] for i in rare)


def same_but_for_the_source(folder: Path) -> dict[str, Any]:
    """Every file; the manifest without what tells of the text and of what was left out of it."""
    files: dict[str, Any] = dict(files_of(folder))
    manifest = json.loads(files["manifest.json"])
    for generation in manifest["generations"]:
        generation["options"].pop("min_count", None)
        generation.pop("left_out", None)
        for source in generation["sources"]:
            del source["bytes"], source["sha256"]
    return {**files, "manifest.json": manifest}


@settings(deadline=None, derandomize=True, max_examples=40)
@given(
    st.lists(WORDS, min_size=1, max_size=25),
    st.lists(WORDS, max_size=5),
    st.integers(2, 5),
    st.integers(1, 4),
    st.sampled_from(["float32", "float64"]),
)
def test_a_store_without_rare_features_is_that_of_a_text_without_them(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[Word],
    before: list[Word],
    least: int,
    blocks: int,
    dtype: str,
) -> None:
    folder = tmp_path_factory.mktemp("rare")
    old = {i for _, features in before for i in features}
    kept, rare, nnz = without_rare(rows, least, old)
    for name in ("whole", "cleaned"):
        if before:  # then what is counted is appended, and the ids that are there already stay
            split([written(folder, "a.svm", as_text(before))], folder / name, dtype=dtype)
        (folder / f"{name}.dir").mkdir()
    options: dict[str, Any] = {
        "blocks": blocks, "dtype": dtype, "append": bool(before), "force": True, "threads": 2
    }  # fmt: skip
    whole = written(folder / "whole.dir", "b.svm", as_text(rows))
    cleaned = written(folder / "cleaned.dir", "b.svm", as_text(kept))
    report = split([whole], folder / "whole", min_count=least, **options)
    expected = split([cleaned], folder / "cleaned", **options)
    assert report["left_out"] == {"features": len(rare), "nnz": nnz}
    assert expected["left_out"] == {"features": 0, "nnz": 0}
    assert same_but_for_the_source(folder / "whole") == same_but_for_the_source(folder / "cleaned")
    same = set(report) - {"store", "text_bytes", "left_out"}
    assert {k: report[k] for k in same} == {k: expected[k] for k in same}
    generation = read_manifest(folder / "whole")["generations"][-1]
    assert generation["options"]["min_count"] == least
    assert generation["left_out"] == report["left_out"]
    assert check(folder / "whole")["unused_features"] == 0


def test_rare_features_are_left_out_alike_whatever_the_threads_and_the_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dealing, "LARGEST_BATCH", 2_000_000)  # several batches
    r = random.Random(5)
    rows: list[Word] = []
    for k in range(40_000):  # most rare ids come late, and frequent ones anywhere
        ids = [*r.sample(range(3000), 5), 10**6 + r.randrange(60_000), 2**41 + k % 7000]
        rows.append((r.choice("12"), {i: "2" if i % 9 == 0 else "1" for i in ids}))
    kept, rare, nnz = without_rare(rows, 6, set())
    assert min(len(rare), 60_000 - len(rare)) > 1000
    (tmp_path / "cleaned").mkdir()
    whole = written(tmp_path, "a.svm", as_text(rows))
    cleaned = written(tmp_path / "cleaned", "a.svm", as_text(kept))
    split([cleaned], tmp_path / "cleaned.sbm", blocks=3)
    expected = same_but_for_the_source(tmp_path / "cleaned.sbm")
    for piece, threads in ((1 << 14, 1), (1 << 14, 3), (2 << 20, 2)):
        monkeypatch.setattr("sbm.store.text.PIECE", piece)
        report = split(
            [whole], tmp_path / "a.sbm", blocks=3, threads=threads, min_count=6, force=True
        )
        assert report["left_out"] == {"features": len(rare), "nnz": nnz}
        assert same_but_for_the_source(tmp_path / "a.sbm") == expected


def test_a_feature_counts_the_rows_of_all_sources_and_none_that_is_refused(tmp_path: Path) -> None:
    sources = [
        written(tmp_path, "a.svm", b"1 1:1 2:1 3:5\n-1 1:1 3:x\n"),
        written(tmp_path, "b.svm", b"# none\n1 1:1\n-1 2:1 4:1\n1 4:x\n"),
        written(tmp_path, "c.svm.zst", zstandard.ZstdCompressor().compress(b"-1 9:1\n")),
    ]
    report = split(sources, tmp_path / "a.sbm", blocks=1, on_error="skip", min_count=2)
    assert multiset(store_rows(tmp_path / "a.sbm")) == [
        (-1, ()), (-1, ((2, 1),)), (1, ((1, 1),)), (1, ((1, 1), (2, 1)))
    ]  # fmt: skip
    assert (report["rows"], report["features"], report["nnz"]) == (4, 2, 4)
    assert report["left_out"] == {"features": 3, "nnz": 3}
    # Neither reading adds to what the other one found.
    assert (report["skipped"], len(report["problems"])) == (2, 2)
    assert report["text_bytes"] == sum(p.stat().st_size for p in sources[:2]) + len("-1 9:1\n")
    # The only value that was not 1 is gone.
    assert report["value_type"] == "ones"


def test_a_store_may_lose_all_its_features(tmp_path: Path) -> None:
    source = written(tmp_path, "a.svm", b"1 1:2 2:1\n-1 3:1\n")
    report = split([source], tmp_path / "a.sbm", blocks=1, min_count=2**31 - 1)
    assert multiset(store_rows(tmp_path / "a.sbm")) == [(-1, ()), (1, ())]
    assert report["left_out"] == {"features": 3, "nnz": 3}
    check(tmp_path / "a.sbm")


def test_a_count_of_one_leaves_no_trace(tmp_path: Path) -> None:
    source = written(tmp_path, "a.svm", random_text(4, 100))
    split([source], tmp_path / "plain")
    split([source], tmp_path / "one", min_count=1)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "plain")
    generation = read_manifest(tmp_path / "one")["generations"][0]
    assert "min_count" not in generation["options"]
    assert "left_out" not in generation


def test_what_can_be_read_only_once_is_not_counted(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    source = written(tmp_path, "a.svm", b"1 1:1\n")
    for name, shown in (("-", "standard input"), (str(pipe), str(pipe))):
        with pytest.raises(SettingsError) as caught:
            split([source, name], tmp_path / "a.sbm", min_count=2)
        assert str(caught.value) == (
            f"{shown} can be read only once, and --min-count reads twice; "
            "write the text to a file first"
        )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.svm", "pipe"]


def test_text_that_changes_between_the_readings_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = written(tmp_path, "a.svm", b"1 1:1\n1 1:1\n")

    class Changing(Dealer):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            source.write_bytes(b"1 1:1\n1 2:1\n")

    monkeypatch.setattr("sbm.jobs.split.Dealer", Changing)
    with pytest.raises(DataError) as caught:
        split([source], tmp_path / "a.sbm", min_count=2)
    assert str(caught.value) == (
        f"{source} changed between the two readings that --min-count takes; "
        "split it again when it is complete"
    )
    assert [p.name for p in tmp_path.iterdir()] == ["a.svm"]


def test_ids_that_do_not_fit_are_refused_while_they_are_counted(tmp_path: Path) -> None:
    r = random.Random(1)
    lines = (b"1 %d:1 %d:1\n" % (r.getrandbits(62), r.getrandbits(63)) for _ in range(700_000))
    source = written(tmp_path, "a.svm", b"".join(lines))
    with pytest.raises(MemoryPlanError) as caught:
        split([source], tmp_path / "a.sbm", mem="180MB", threads=1, min_count=2)
    assert re.fullmatch(
        r"\d+ distinct features need [\d.]+ MB for their ids and counts alone, "
        r"--mem 180 MB leaves [\d.]+ MB; raise --mem, as --mem \d+MB has room for twice as many",
        str(caught.value),
    )
    assert [p.name for p in tmp_path.iterdir()] == ["a.svm"]


def test_a_bad_line_is_found_while_counting_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = fails_in_the_middle(tmp_path)
    monkeypatch.setattr("sbm.jobs.split.Dealer", None)  # nobody gets to deal
    with pytest.raises(DataError, match=f"{source}:80001: found 'oops'"):
        split([source], tmp_path / "a.sbm", min_count=2)
    assert [p.name for p in tmp_path.iterdir()] == ["bad.svm"]


# ------------------------------------------------------------------------------------------ append


def test_appended_rows_become_new_blocks_and_ids_and_labels_keep_their_meaning(
    tmp_path: Path,
) -> None:
    texts = [random_text(k, 200, labels=2 + k) for k in range(3)]
    store = tmp_path / "a.sbm"
    split([written(tmp_path, "0.svm", texts[0])], store, blocks=3)
    old_blocks = {p.name: p.read_bytes() for p in store.glob("*.sbb")}
    old_ids = BlockStore(store).read_feature_ids().tolist()
    old_rows = store_rows(store)
    for k in (1, 2):
        report = split(
            [written(tmp_path, f"{k}.svm", texts[k])], store, blocks=2, append=True, seed=k
        )
        assert (report["rows"], report["blocks"]) == (200, 2)
    rows = store_rows(store)
    assert rows[:3] == old_rows
    assert multiset(rows[3:5]) == multiset(slow_parse(texts[1])[0])
    assert multiset(rows[5:]) == multiset(slow_parse(texts[2])[0])
    assert {name: (store / name).read_bytes() for name in old_blocks} == old_blocks
    assert BlockStore(store).read_feature_ids().tolist()[: len(old_ids)] == old_ids
    manifest = read_manifest(store)
    generations = manifest["generations"]
    assert [g["sources"][0]["name"] for g in generations] == ["0.svm", "1.svm", "2.svm"]
    assert [g["rows"] for g in generations] == [200, 200, 200]
    assert [g["options"]["seed"] for g in generations] == [0, 1, 2]
    assert [g["blocks"] for g in generations] == [
        ["block-000000.sbb", "block-000001.sbb", "block-000002.sbb"],
        ["block-000003.sbb", "block-000004.sbb"],
        ["block-000005.sbb", "block-000006.sbb"],
    ]
    assert sum(g["new_features"] for g in generations) == manifest["features"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", g["added"])
               for g in generations)  # fmt: skip
    everything = [row for text in texts for row in slow_parse(text)[0]]
    labels = manifest["labels"]
    assert dict(zip(labels["values"], labels["counts"], strict=True)) == Counter(
        label for label, _ in everything
    )
    assert (manifest["rows"], manifest["nnz"]) == (600, sum(len(f) for _, f in everything))
    assert sorted(p.name for p in store.iterdir() if p.suffix == ".tmp") == []
    check(store)


def test_a_source_that_is_in_the_store_is_refused_unless_forced(tmp_path: Path) -> None:
    text = random_text(1, 50)
    store = tmp_path / "a.sbm"
    split([written(tmp_path, "a.svm", text)], store)
    before = files_of(store)
    again = written(tmp_path, "again.svm", text)
    new = written(tmp_path, "new.svm", b"1 1:1\n")
    with pytest.raises(DataError) as caught:
        split([new, again], store, append=True)
    assert str(caught.value) == (
        f"{again} is already in {store} (as a.svm, same SHA-256); "
        "nothing was added, use --force to count its rows twice"
    )
    assert files_of(store) == before
    split([again], store, append=True, force=True)
    assert multiset(store_rows(store)) == multiset(2 * slow_parse(text)[0])


def test_a_source_that_is_given_twice_is_refused_unless_forced(tmp_path: Path) -> None:
    text = random_text(1, 50)
    sources = [written(tmp_path, name, text) for name in ("a.svm", "b.svm")]
    with pytest.raises(DataError) as caught:
        split(sources, tmp_path / "a.sbm")
    assert str(caught.value) == (
        f"{sources[1]} is given twice (as {sources[0]}, same SHA-256); nothing was written, use "
        "--force to count its rows twice"
    )
    assert not (tmp_path / "a.sbm").exists()
    assert split(sources, tmp_path / "a.sbm", force=True)["rows"] == 100


def test_empty_files_beside_others_are_no_repeated_source(tmp_path: Path) -> None:
    sources = [written(tmp_path, f"{k}.svm", b"1 1:1\n" if k == 1 else b"") for k in range(3)]
    assert split(sources, tmp_path / "a.sbm")["rows"] == 1


def fails_in_the_middle(tmp_path: Path, name: str = "bad.svm") -> Path:
    lines = [f"1 {k}:2 {k + 10**6}:1" for k in range(90_000)]
    lines[80_000] = "oops"
    return written(tmp_path, name, "\n".join(lines).encode())


def test_an_append_that_fails_leaves_the_store_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dealing, "LARGEST_BATCH", 2_000_000)  # blocks are written by then
    monkeypatch.setattr("sbm.store.text.PIECE", 1 << 16)
    store = tmp_path / "a.sbm"
    split([written(tmp_path, "a.svm", random_text(1, 50))], store)
    before = {p.name: p.read_bytes() for p in store.iterdir()}
    source = fails_in_the_middle(tmp_path)
    with pytest.raises(DataError) as caught:
        split([source], store, append=True)
    assert str(caught.value) == f"{source}:80001: found 'oops' where a numeric label is expected"
    assert {p.name: p.read_bytes() for p in store.iterdir()} == before


def test_what_a_killed_append_left_does_not_get_into_the_next_one(tmp_path: Path) -> None:
    store = tmp_path / "a.sbm"
    split([written(tmp_path, "a.svm", random_text(1, 50))], store, blocks=2)
    for name in ("block-000002.sbb", "index-0001.sba.tmp", "features-0001.sba"):
        (store / name).write_bytes(b"half a file")
    text = random_text(2, 50)
    split([written(tmp_path, "b.svm", text)], store, blocks=2, append=True)
    assert multiset(store_rows(store)[2:]) == multiset(slow_parse(text)[0])
    check(store)


def test_appending_to_what_is_no_store_is_refused(tmp_path: Path) -> None:
    source = written(tmp_path, "a.svm", b"1 1:1\n")
    with pytest.raises(StoreError) as caught:
        split([source], tmp_path / "none.sbm", append=True)
    assert str(caught.value) == (
        f"{tmp_path / 'none.sbm'} does not exist; make a store with sbm split"
    )
    assert not (tmp_path / "none.sbm").exists()


@pytest.mark.parametrize("first", [True, False])
def test_the_store_to_append_to_may_stand_among_the_inputs(tmp_path: Path, first: bool) -> None:
    store = tmp_path / "a.sbm"
    texts = [written(tmp_path, f"{k}.svm", random_text(k, 20)) for k in range(2)]
    split([texts[0]], store)
    report = split([store, texts[1]] if first else [texts[1], store], append=True)
    assert (report["store"], report["rows"]) == (str(store), 20)
    assert [p.name for p in tmp_path.glob("*.sbm")] == ["a.sbm"]
    assert len(read_manifest(store)["generations"]) == 2


def test_what_cannot_be_appended_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, "a.svm", b"1 1:1\n")
    split(["a.svm"])
    split(["a.svm"], "b.sbm")
    new = written(tmp_path, "new.svm", b"1 1:1\n2 1:1\n")
    for inputs, kind, sentence in (
        (["a.sbm"], DataError,
         "no input to append to a.sbm; give LIBSVM text files, globs, or -"),
        (["a.sbm", "b.sbm", new], SettingsError,
         "a.sbm, b.sbm are stores; append to one at a time, from its text"),
        (["none.sbm", new], StoreError,
         ("none.sbm does not exist, and --append adds to a store; make it with sbm split, the text "
         "and -o none.sbm")),
    ):  # fmt: skip
        with pytest.raises(kind) as caught:
            split(inputs, append=True)
        assert str(caught.value) == sentence
    with pytest.raises(DataError, match=r"^b\.sbm is a folder; give the LIBSVM text files in it$"):
        split(["b.sbm", new], "a.sbm", append=True)
    split([new], "a.sbm", append=True)
    assert BlockStore("a.sbm").n_rows == 3
    assert BlockStore("b.sbm").n_rows == 1


def test_appended_blocks_are_about_as_large_as_those_there_are(tmp_path: Path) -> None:
    def text(k: int, n: int) -> Path:
        return written(tmp_path, f"{k}.svm", random_text(k, n, "ones"))

    store = tmp_path / "a.sbm"
    assert split([text(0, 24_000)], store)["blocks"] == 12
    assert split([text(1, 500)], store, append=True)["blocks"] == 1
    assert split([text(2, 6_000)], store, append=True)["blocks"] == 3
    assert split([text(3, 96_000)], store, append=True)["blocks"] == 12  # as of a split
    assert split([text(4, 600)], store, append=True, blocks=5)["blocks"] == 5


def test_appending_values_of_another_type_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "a.sbm"
    split([written(tmp_path, "a.svm", b"1 1:0.5\n")], store, dtype="float64")
    more = written(tmp_path, "b.svm", b"1 1:0.1\n")
    before = files_of(store)
    with pytest.raises(SettingsError) as caught:
        split([more], store, append=True, dtype="float32")
    assert str(caught.value) == f"{store} holds float64 values; append with --dtype float64"
    assert files_of(store) == before
    split([more], store, append=True, dtype="float64")
    assert multiset(store_rows(store)) == [(1, ((1, 0.1),)), (1, ((1, 0.5),))]


def test_appending_without_a_dtype_takes_that_of_the_store(tmp_path: Path) -> None:
    store = tmp_path / "a.sbm"
    split([written(tmp_path, "a.svm", b"1 1:0.5\n")], store, dtype="float64")
    split([written(tmp_path, "b.svm", b"1 1:0.1\n")], store, append=True)
    assert multiset(store_rows(store)) == [(1, ((1, 0.1),)), (1, ((1, 0.5),))]


def test_values_appended_to_a_store_of_ones_come_back_beside_them(tmp_path: Path) -> None:
    store = tmp_path / "a.sbm"
    split([written(tmp_path, "a.svm", b"1 1:1 2:1\n")], store)
    assert split([written(tmp_path, "b.svm", b"1 1:0.5\n")], store, append=True)["value_type"] == (
        "float32"
    )
    split([written(tmp_path, "c.svm", b"2 3:1\n")], store, append=True)
    assert read_manifest(store)["value_type"] == "float32"
    assert multiset(store_rows(store)) == [
        (1, ((1, 0.5),)), (1, ((1, 1), (2, 1))), (2, ((3, 1),))
    ]  # fmt: skip


# ---------------------------------------------------------------------------- what stands there


def test_an_existing_store_is_refused_and_replaced_by_force(tmp_path: Path) -> None:
    store = tmp_path / "a.sbm"
    split([written(tmp_path, "a.svm", random_text(1, 50))], store, blocks=7)
    before = files_of(store)
    source = written(tmp_path, "b.svm", b"5 5:5\n")
    with pytest.raises(StoreError) as caught:
        split([source], store)
    assert str(caught.value) == (
        f"{store} exists; add to it with --append, replace it with --force, or name another with -o"
    )
    assert files_of(store) == before
    split([source], store, force=True)
    assert store_rows(store) == [[(5, ((5, 5),))]]
    assert len(list(store.glob("*.sbb"))) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.sbm", "a.svm", "b.svm"]


def test_a_replacement_that_fails_leaves_the_old_store(tmp_path: Path) -> None:
    store = tmp_path / "a.sbm"
    split([written(tmp_path, "a.svm", random_text(1, 50))], store)
    before = files_of(store)
    with pytest.raises(DataError):
        split([fails_in_the_middle(tmp_path)], store, force=True)
    assert files_of(store) == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.sbm", "a.svm", "bad.svm"]


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_is_no_store_is_not_replaced(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "precious"
    if kind == "folder":
        target.mkdir()
    precious = target / "thesis.txt" if kind == "folder" else target
    precious.write_text("years of work")
    source = written(tmp_path, "a.svm", b"1 1:1\n")
    with pytest.raises(StoreError) as caught:
        split([source], target, force=True)
    assert str(caught.value) == (f"{target} exists and is not a store; --force does not replace it")
    assert precious.read_text() == "years of work"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.svm", "precious"]


def test_remains_of_a_killed_split_are_no_store_and_are_swept_away(tmp_path: Path) -> None:
    partial = tmp_path / "a.sbm.partial"
    partial.mkdir()
    (partial / "block-000000.sbb").write_bytes(b"half a block")
    text = random_text(1, 50)
    split([written(tmp_path, "a.svm", text)], tmp_path / "a.sbm", blocks=1)
    assert multiset(store_rows(tmp_path / "a.sbm")) == multiset(slow_parse(text)[0])
    assert not partial.exists()


# ---------------------------------------------------------------------------------- what goes wrong


def test_a_bad_line_in_the_middle_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dealing, "LARGEST_BATCH", 2_000_000)
    monkeypatch.setattr("sbm.store.text.PIECE", 1 << 16)
    source = fails_in_the_middle(tmp_path)
    with pytest.raises(DataError) as caught:
        split([source], tmp_path / "a.sbm", blocks=12)
    assert str(caught.value) == f"{source}:80001: found 'oops' where a numeric label is expected"
    assert [p.name for p in tmp_path.iterdir()] == ["bad.svm"]
    report = split([source], tmp_path / "a.sbm", on_error="skip")
    assert (report["rows"], report["skipped"]) == (89_999, 1)
    assert report["problems"] == [f"{source}:80001: found 'oops' where a numeric label is expected"]


class FullDisk:
    """Stands for `open`: after so many writes the disk is full."""

    def __init__(self, room: int) -> None:
        self.room = room

    def __call__(self, path: Any, mode: str = "r", **options: Any) -> Any:
        file = open(path, mode, **options)  # noqa: SIM115  closed by whoever asked for it
        if not set(mode) & set("wa+"):
            return file
        inner = file.write

        def write(data: Any) -> int:
            self.room -= 1
            if self.room < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return inner(data)

        proxy = SimpleNamespace(write=write, flush=file.flush, fileno=file.fileno)

        class Context:
            def __enter__(self) -> Any:
                return proxy

            def __exit__(self, *_: object) -> None:
                file.close()

        return Context()


@pytest.mark.parametrize("append", [False, True])
def test_a_full_disk_at_any_moment_leaves_no_half_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, append: bool
) -> None:
    store = tmp_path / "a.sbm"
    before: dict[str, bytes] = {}
    if append:
        split([written(tmp_path, "a.svm", random_text(1, 50))], store, blocks=2)
        before = {p.name: p.read_bytes() for p in store.iterdir()}
    source = written(tmp_path, "b.svm", random_text(2, 60))
    sentences = []
    for room in range(1000):
        full = FullDisk(room)
        with monkeypatch.context() as patch:
            patch.setattr(block_module, "open", full, raising=False)
            patch.setattr(file_module, "open", full, raising=False)
            try:
                split([source], store, blocks=2, append=append, threads=1)
                break
            except StoreError as error:
                sentences.append(str(error))
        left = {p.name: p.read_bytes() for p in store.iterdir()} if store.exists() else {}
        assert left == before
        assert not (tmp_path / "a.sbm.partial").exists()
    pattern = (
        r"cannot write .*/(block|index|features|manifest)\S*: No space left on device; "
        r"free space or choose another place with -o"
    )
    found = [re.fullmatch(pattern, sentence) for sentence in sentences]
    assert all(found), sentences
    stages = {match[1] for match in found if match}
    assert stages == {"block", "index", "features", "manifest"}
    check(store)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_said(tmp_path: Path) -> None:
    source = written(tmp_path, "a.svm", b"1 1:1\n")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    with pytest.raises(StoreError, match="Permission denied; choose another place"):
        split([source], closed / "a.sbm")


def test_a_place_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    source = written(tmp_path, "a.svm", b"1 1:1\n")
    with pytest.raises(StoreError) as caught:
        split([source], source / "a.sbm")
    assert str(caught.value) == (f"{source} is no folder; make it, or choose another place with -o")


HOLD = "import fcntl, sys\nf = open(sys.argv[1], 'w')\nfcntl.flock(f, fcntl.LOCK_EX)\n"
HOLD += "print('held', flush=True)\nsys.stdin.read()\n"


@pytest.mark.parametrize("option", ["", "append", "force"])
def test_a_store_that_another_process_writes_is_refused(tmp_path: Path, option: str) -> None:
    store = tmp_path / "a.sbm"
    source = written(tmp_path, "a.svm", random_text(1, 50))
    options = {option: True} if option else {}
    if option:
        split([source], store)
        folder = store
    else:
        folder = tmp_path / "a.sbm.partial"
        folder.mkdir()
        (folder / "block-000000.sbb").write_bytes(b"being written")
    before = {p.name: p.read_bytes() for p in folder.iterdir()} | {"lock": b""}
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder / "lock")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(StoreError) as caught:
            split([written(tmp_path, "b.svm", b"1 1:1\n")], store, **options)
    finally:
        other.communicate()
    assert str(caught.value) == (
        f"the store {store} is in use by another sbm process; wait for it to end or stop it"
    )
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    split([tmp_path / "b.svm"], store, **options)


def test_the_lock_is_given_back(tmp_path: Path) -> None:
    store = tmp_path / "a.sbm"
    split([written(tmp_path, "a.svm", b"1 1:1\n")], store)
    with open(store / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("text", [b"", b"\n\r\n", b"# only\n  # comments\n"])
def test_an_input_without_rows_is_refused(tmp_path: Path, text: bytes) -> None:
    with pytest.raises(DataError) as caught:
        split([written(tmp_path, "a.svm", text)], tmp_path / "a.sbm")
    assert str(caught.value) == ("the input holds no rows; give LIBSVM text with at least one row")
    assert [p.name for p in tmp_path.iterdir()] == ["a.svm"]


def test_an_append_without_rows_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    store = tmp_path / "a.sbm"
    split([written(tmp_path, "a.svm", b"1 1:1\n")], store)
    before = files_of(store)
    with pytest.raises(DataError, match="the input holds no rows"):
        split([written(tmp_path, "b.svm", b"#\n")], store, append=True)
    assert files_of(store) == before


# ----------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"blocks": 3, "block_size": "1MB"}, "give --blocks or --block-size, not both"),
        ({"blocks": 0}, "blocks is 0; it must be from 1 to 999999"),
        ({"dtype": "int8"}, "dtype is 'int8'; it must be auto, float32 or float64"),
        ({"level": 20}, "level is 20; it must be from 1 to 19"),
        ({"threads": 0}, "threads is 0; it must be at least 1"),
        ({"seed": -1}, "seed is -1; it must be at least 0"),
        ({"min_count": 0}, "min_count is 0; it must be from 1 to 2147483647"),
        ({"min_count": 2**31}, "min_count is 2147483648; it must be from 1 to 2147483647"),
        ({"on_error": "ignore"}, "on_error is 'ignore'; it must be fail or skip"),
        (
            {"block_size": "much"},
            "'much' is not a size; write it as 2GB, 300MB or 1.5GiB",
        ),
    ],
)
def test_options_without_meaning_are_refused(
    tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    source = written(tmp_path, "a.svm", b"1 1:1\n")
    with pytest.raises(SettingsError) as caught:
        split([source], tmp_path / "a.sbm", **options)
    assert str(caught.value) == sentence
    assert [p.name for p in tmp_path.iterdir()] == ["a.svm"]


def test_a_block_size_gives_blocks_of_about_that_size(tmp_path: Path) -> None:
    text = b"".join(b"1 %d:1 %d:2 %d:3\n" % (k, k + 1, k + 2) for k in range(20_000))
    source = written(tmp_path, "a.svm", text)
    report = split([source], tmp_path / "a.sbm", block_size="200kB")
    size = (report["nnz"] * 8 + report["rows"] * 16) / report["blocks"]
    assert 100_000 <= size <= 200_000


def test_too_little_memory_is_refused_with_the_least_that_works(tmp_path: Path) -> None:
    text = random_text(1, 500)
    source = written(tmp_path, "a.svm", text)
    with pytest.raises(MemoryPlanError) as caught:
        split([source], tmp_path / "a.sbm", mem="100MB", threads=2)
    found = re.fullmatch(
        r"--mem 100 MB is too little to split; the least that works is --mem (.+)",
        str(caught.value),
    )
    assert found
    least = caught.value.least_bytes
    with pytest.raises(MemoryPlanError):
        split([source], tmp_path / "a.sbm", mem=least - 10_000, threads=2)
    assert [p.name for p in tmp_path.iterdir()] == ["a.svm"]
    split([source], tmp_path / "a.sbm", mem=least, threads=2)
    assert multiset(store_rows(tmp_path / "a.sbm")) == multiset(slow_parse(text)[0])
    split([source], tmp_path / "b.sbm", mem=found[1].replace(" ", ""), threads=2)


@pytest.mark.parametrize(
    ("name", "store"),
    [
        ("big.svm", "big.sbm"),
        ("/data/big.svm.zst", "big.sbm"),
        ("big.libsvm.xz", "big.sbm"),
        ("big.txt", "big.sbm"),
        ("big.t", "big.t.sbm"),
        ("a9a", "a9a.sbm"),
    ],
)
def test_the_default_store_is_named_after_the_first_input(name: str, store: str) -> None:
    assert default_store(name) == Path(store)


def test_several_inputs_of_all_kinds_make_one_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [random_text(k, 40) for k in range(3)]
    written(tmp_path, "a.svm", texts[0])
    written(tmp_path, "b1.svm.zst", zstandard.ZstdCompressor().compress(texts[1]))
    written(tmp_path, "b2.svm.zst", zstandard.ZstdCompressor().compress(texts[2]))
    report = split(["a.svm", "b*.zst"])
    assert report["store"] == "a.sbm"
    rows = [row for text in texts for row in slow_parse(text)[0]]
    assert multiset(store_rows("a.sbm")) == multiset(rows)
    sources = read_manifest(Path("a.sbm"))["generations"][0]["sources"]
    assert [(s["name"], s["rows"]) for s in sources] == [
        ("a.svm", 40), ("b1.svm.zst", 40), ("b2.svm.zst", 40)
    ]  # fmt: skip


# ----------------------------------------------------------------------------------- frozen stores

# Version 1 was made on 2026-11-21 in the top folder by commit 3f6819d, version 2 on the same day
# when it became the format, both with zstd 1.5.7, by
#   python -c "
#   from sbm.jobs.split import split
#   f, v = 'tests/frozen/v1/', 'tests/frozen/v1/'  # or v2 for the second
#   both = [f + 'sample.svm', f + 'odd.svm']
#   split(both, v + 'single.sbm', blocks=3, seed=5, threads=1)
#   split(both, v + 'double.sbm', blocks=2, dtype='float64', shuffle=False, level=19, threads=1)
#   split([f + 'ones.svm'], v + 'ones.sbm', blocks=2, threads=1)
#   split([f + 'more.svm'], v + 'ones.sbm', blocks=1, seed=1, append=True, threads=1)"
# Never make them anew: a change of the format gets a folder of its own.
FROZEN_ZSTD = (1, 5, 7)
FROZEN_STORES = ("single.sbm", "double.sbm", "ones.sbm")
ODD_ROWS: list[Row] = [
    (2.5, ((0, 1.0), (7, -0.125), (9223372036854775807, 3.0))),
    (-1.0, ()),
    (1.0, ((3, 1.0), (70000, 1.0), (20000000, 0.0), (4294967296, 1e-3))),
    (0.0, ((5, 1e30), (6, -1e-30))),
]
FIRST_SAMPLE_ROW: Row = (
    -1.0,
    ((1, 0.254), (5, 0.212), (8, -0.053), (9, 0.869), (12, 0.818), (20, -0.39)),
)
ONES_ROWS: list[Row] = [
    (1.0, ((1, 1.0), (2, 1.0))),
    (-1.0, ((2, 1.0),)),
    (1.0, ((300, 1.0), (70000, 1.0), (9000000000, 1.0))),
    (1.0, ()),
]
MORE_ROWS: list[Row] = [(7.0, ((2, 0.5), (4, 1.0))), (-1.0, ((9000000000, -8.0),))]


def rounded(rows: list[Row]) -> list[Row]:
    return [(label, tuple((i, float(np.float32(v))) for i, v in f)) for label, f in rows]


def frozen_splits(target: Path) -> None:
    """Do today what made the frozen stores."""
    both = [FROZEN_TEXT / "sample.svm", FROZEN_TEXT / "odd.svm"]
    split(both, target / "single.sbm", blocks=3, seed=5, threads=1)
    split(
        both, target / "double.sbm", blocks=2, dtype="float64", shuffle=False, level=19, threads=1
    )
    split([FROZEN_TEXT / "ones.svm"], target / "ones.sbm", blocks=2, threads=1)
    split([FROZEN_TEXT / "more.svm"], target / "ones.sbm", blocks=1, seed=1, append=True, threads=1)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_frozen_stores_hold_the_rows_that_were_put_in(version: str) -> None:
    frozen = FROZEN / version
    sample = slow_parse((FROZEN_TEXT / "sample.svm").read_bytes(), "float64")[0]
    assert len(sample) == 40
    assert sample[0] == FIRST_SAMPLE_ROW
    assert slow_parse((FROZEN_TEXT / "odd.svm").read_bytes(), "float64")[0] == ODD_ROWS
    single = store_rows(frozen / "single.sbm")
    assert sorted(map(len, single)) == [14, 15, 15]
    assert multiset(single) == multiset(rounded(sample + ODD_ROWS))
    everything = sample + ODD_ROWS
    assert store_rows(frozen / "double.sbm") == [everything[0::2], everything[1::2]]
    ones = store_rows(frozen / "ones.sbm")
    assert multiset(ones[:2]) == multiset(ONES_ROWS)
    assert multiset(ones[2:]) == multiset(MORE_ROWS)


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_frozen_stores_are_sound_and_small(version: str) -> None:
    for name in FROZEN_STORES:
        report = check(FROZEN / version / name)
        assert report["rows"] == (6 if name == "ones.sbm" else 44)
    files = [p for p in (FROZEN / version).rglob("*") if p.is_file()]
    assert sum(p.stat().st_size for p in files) < 40_000


def test_today_writes_what_is_frozen(tmp_path: Path) -> None:
    frozen_splits(tmp_path)
    for name in FROZEN_STORES:
        old_rows, frozen = store_rows(FROZEN / "v1" / name), FROZEN / "v2" / name
        assert store_rows(tmp_path / name) == store_rows(frozen) == old_rows
        today, then = files_of(tmp_path / name), files_of(frozen)
        assert set(today) | {"lock"} == set(then) | {"lock"}
        if zstandard.ZSTD_VERSION == FROZEN_ZSTD:
            assert {k: v for k, v in today.items() if k.startswith("block")} == {
                k: v for k, v in then.items() if k.startswith("block")
            }
        manifest, old = json.loads(today["manifest.json"]), json.loads(then["manifest.json"])
        for generation in manifest["generations"]:
            del generation["deal"]  # noted since then; a store without it is read as before
            del generation["features_crc32"]  # likewise
        for block in manifest["blocks"]:
            del block["crc32"]  # likewise
        for changing in (manifest, old):
            for block in changing["blocks"]:
                del block["bytes"]  # another zstd compresses differently
        assert manifest == old


def test_a_store_of_version_1_is_appended_to_and_becomes_one_of_version_2(tmp_path: Path) -> None:
    store = tmp_path / "ones.sbm"
    shutil.copytree(FROZEN / "v1" / "ones.sbm", store)
    before = store_rows(store)
    split([FROZEN_TEXT / "odd.svm"], store, blocks=1, append=True)
    assert read_manifest(store)["version"] == 2
    after = store_rows(store)
    assert after[:3] == before
    assert multiset(after[3:]) == multiset(rounded(ODD_ROWS))
    check(store)
