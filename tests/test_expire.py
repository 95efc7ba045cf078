"""Expire: exactly the rows of the named sources are dropped, and all else keeps its meaning."""

import datetime
import fcntl
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import store_rows
from inside import BlockStore, RowWeights, patch, read_manifest, write_manifest
from inside import programs_expire_module as job
from inside import store_blocks_module as store_files
from test_split import files_of, label_counts, multiset, random_text, rows_of, written

import sbm
from sbm.errors import DataError, SettingsError, StoreError

N = 60  # rows of a source
BLOCKS = {0: [0, 1, 2], 1: [3, 4], 2: [5, 6]}


def text_of(k: int) -> bytes:
    return random_text(k, N, labels=2 + k)  # each has a label that the ones before lack


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Three sources, 0.svm to 2.svm, added on three days, the first in three blocks."""
    folder = tmp_path_factory.mktemp("made")
    store = folder / "a.sbm"
    for k in range(3):
        source = written(folder, f"{k}.svm", text_of(k))
        sbm.split([source], store, append=k > 0, blocks=len(BLOCKS[k]), new_labels=True)
    manifest = read_manifest(store)
    for k, generation in enumerate(manifest["generations"]):
        generation["added"] = f"2026-01-0{k + 1}T06:00:00+00:00"
    write_manifest(store, manifest)
    return folder


@pytest.fixture
def store(made, tmp_path):
    return shutil.copytree(made, tmp_path / "made") / "a.sbm"


def assert_holds(store: Path, *texts: bytes) -> None:
    """Assert that the store is valid and holds the rows of these texts."""
    expected = rows_of(*texts)
    assert multiset(store_rows(store)) == expected
    told = label_counts(read_manifest(store)["labels"])
    assert {label: n for label, n in told.items() if n} == Counter(label for label, _ in expected)
    assert sbm.check(store)["rows"] == len(expected) == sbm.info(store)["rows"]


# ------------------------------------------------------------------------------------- what goes


@pytest.mark.parametrize(
    ("how", "gone"),
    [
        ({"before": "2026-01-02T06:00"}, [0]),
        ({"before": "2026-01-02T08:30+02:00"}, [0, 1]),
        ({"before": datetime.datetime(2026, 1, 2)}, [0]),
        ({"sources": [Path("1.svm"), "some/folder/2.svm"]}, [1, 2]),
        ({"sources": "2.svm"}, [2]),
        ({"sources": "1.svm"}, [1]),
    ],
    ids=str,
)
def test_only_named_sources_are_dropped(store, how, gone):
    before, manifest = store_rows(store), read_manifest(store)
    ids = BlockStore(store).read_feature_ids()
    told = sbm.expire(store, **how, dry_run=True)
    assert read_manifest(store) == manifest
    report = sbm.expire(store, **how)
    assert report == told | {"dry_run": False}
    left = [k for k in range(3) if k not in gone]
    kept = [b for k in left for b in BLOCKS[k]]
    mine = [b for k in gone for b in BLOCKS[k]]
    assert_holds(store, *(text_of(k) for k in left))
    assert store_rows(store) == [before[b] for b in kept]
    assert sorted(p.name for p in store.glob("*.sbb")) == [f"block-{b:06d}.sbb" for b in kept]
    after = BlockStore(store)
    empty = [k + 1.0 for k in gone if k > 0 and k >= max(left)]
    lost = empty if "sources" in how else []
    assert after.labels == [label for label in manifest["labels"]["values"] if label not in lost]
    np.testing.assert_array_equal(after.read_feature_ids(), ids)
    assert after.expired_blocks == [manifest["blocks"][b] for b in mine]
    sources = [
        {"name": f"{k}.svm", "rows": N, "bytes": len(text_of(k)),
         "added": f"2026-01-0{k + 1}T06:00:00+00:00"} for k in gone
    ]  # fmt: skip
    assert report == {
        "store": str(store), "sources": sources, "rows": N * len(gone), "blocks": len(mine),
        "bytes": sum(manifest["blocks"][b]["bytes"] for b in mine), "rows_left": N * len(left),
        "labels_without_rows": [label for label in empty if label not in lost],
        "labels_dropped": lost, "dry_run": False,
    }  # fmt: skip
    facts = sbm.info(store)
    assert [source["name"] for source in facts["sources"]] == [f"{k}.svm" for k in left]
    assert [source["name"] for source in facts["expired"]] == [f"{k}.svm" for k in gone]
    assert len(facts["options"]) == len(left)
    at = datetime.datetime.fromisoformat(facts["expired"][0]["expired"])
    assert datetime.datetime.now(datetime.UTC) - at < datetime.timedelta(minutes=1)


def test_store_of_targets_has_no_labels_to_count(tmp_path, monkeypatch):
    patch(monkeypatch, "MOST_LABELS", 20)
    for k in range(2):
        text = "".join(f"{k + j / 100} 1:{j + 1}\n" for j in range(30)).encode()
        sbm.split([written(tmp_path, f"{k}.svm", text)], tmp_path / "a.sbm", append=k > 0)
    report = sbm.expire(tmp_path / "a.sbm", sources="0.svm")
    assert (report["rows"], report["rows_left"], report["labels_without_rows"]) == (30, 30, [])
    assert [label for label, _ in multiset(store_rows(tmp_path / "a.sbm"))] == [
        1 + j / 100 for j in range(30)
    ]


def test_files_of_one_split_are_dropped_together(tmp_path):
    texts = [written(tmp_path, f"{k}.svm", random_text(k, 20)) for k in range(4)]
    empty = written(tmp_path, "empty.svm", b"# nothing\n")
    store = tmp_path / "a.sbm"
    sbm.split([*texts[:3], empty], store)
    sbm.split([texts[3]], store, append=True)
    before = files_of(store)
    with pytest.raises(DataError, match=r"1\.svm was added .* together with 0\.svm, 2\.svm"):
        sbm.expire(store, sources=["1.svm", "3.svm"])
    assert files_of(store) == before
    report = sbm.expire(store, sources=["1.svm", "0.svm", "2.svm"])
    assert [source["name"] for source in report["sources"]] == ["0.svm", "1.svm", "2.svm"]
    assert_holds(store, texts[3].read_bytes())


# -------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("how", "kind", "facts"),
    [
        ({}, SettingsError, "before=DATE or sources=NAME"),
        ({"before": "2026-01-02", "sources": "0.svm"}, SettingsError, "before .* sources"),
        ({"before": "soon"}, SettingsError, "'soon' is not a date"),
        ({"before": "2026-01-01"}, DataError, "before 2026-01-01; .*0.svm.* added 2026-01-01T"),
        ({"before": "2026-02-01"}, DataError, "all rows of {store}"),
        ({"sources": ["1.svm", "old/9.svm"]}, DataError,
         "no source old/9.svm; .* 0.svm, 1.svm, 2.svm$"),
    ],
    ids=str,
)  # fmt: skip
def test_invalid_requests_are_refused_and_change_nothing(store, how, kind, facts):
    before = files_of(store)
    with pytest.raises(kind, match=facts.format(store=store)):
        sbm.expire(store, **how)
    assert files_of(store) == before


def test_if_any_accepts_nothing_to_drop(store):
    before = files_of(store)
    for how in ({"before": "2026-01-01"}, {"sources": "9.svm"}):
        report = sbm.expire(store, **how, if_any=True)
        assert (report["sources"], report["rows"], report["rows_left"]) == ([], 0, 3 * N)
    assert files_of(store) == before
    with pytest.raises(StoreError, match=r"no manifest\.json"):
        sbm.expire(store.parent, sources="x")
    assert not (store.parent / "lock").exists()


def test_long_list_of_sources_is_shortened(tmp_path):
    texts = [written(tmp_path, f"{k:02d}.svm", b"1 1:1\n" * (k + 1)) for k in range(13)]
    sbm.split(texts, tmp_path / "a.sbm")
    with pytest.raises(DataError, match=r"00\.svm, .*, 09\.svm and 3 more$"):
        sbm.expire(tmp_path / "a.sbm", sources="x")


@pytest.mark.parametrize(("place", "kind"), [("lock", fcntl.LOCK_EX), (".", fcntl.LOCK_SH)])
def test_store_in_use_is_refused(store, place, kind):
    before = files_of(store)
    handle = os.open(store / place, os.O_RDONLY)
    fcntl.flock(handle, kind)  # a lock of the folder is that of a training
    try:
        with pytest.raises(StoreError, match=f"{store} is in use"):
            sbm.expire(store, sources="0.svm")
        sbm.expire(store, sources="0.svm", dry_run=True)
    finally:
        os.close(handle)
    assert files_of(store) == before
    sbm.expire(store, sources="0.svm")


# --------------------------------------------------------------------------- crashes and numbers


def killed_the_second_time() -> Callable[..., set[str]]:
    """Return `remove_leftovers`, which is interrupted when it is called again."""
    real, calls = store_files.remove_leftovers, []

    def remove(*arguments: Any) -> set[str]:
        calls.append(arguments)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*arguments)

    return remove


def test_crash_leaves_a_valid_store(store, monkeypatch):
    def fail(*_: Any) -> None:
        raise StoreError("cannot write")

    before = files_of(store)
    with monkeypatch.context() as context:
        context.setattr(job.store_files, "write_manifest", fail)
        with pytest.raises(StoreError, match="cannot write"):
            sbm.expire(store, sources="0.svm")
        assert files_of(store) == before
        context.undo()
        context.setattr(job.store_files, "remove_leftovers", killed_the_second_time())
        with pytest.raises(KeyboardInterrupt):
            sbm.expire(store, sources="0.svm")
    assert len(list(store.glob("*.sbb"))) == 7
    assert_holds(store, text_of(1), text_of(2))
    sbm.split([written(store.parent, "more.svm", b"1 1:1\n")], store, append=True)
    assert len(list(store.glob("*.sbb"))) == 5  # leftovers were removed
    assert_holds(store, text_of(1), text_of(2), b"1 1:1\n")


@pytest.mark.parametrize("chosen", [{"sources": "0.svm"}, {"before": "2001-01-01"}], ids=str)
def test_killed_expire_can_be_repeated(store, monkeypatch, chosen):
    manifest = read_manifest(store)
    manifest["generations"][0]["added"] = "2000-01-01T00:00:00+00:00"
    store_files.write_manifest(store, manifest)
    with monkeypatch.context() as context:
        context.setattr(job.store_files, "remove_leftovers", killed_the_second_time())
        with pytest.raises(KeyboardInterrupt):
            sbm.expire(store, **chosen)
    report = sbm.expire(store, **chosen)
    assert (report["rows"], report["sources"]) == (0, [])
    assert_holds(store, text_of(1), text_of(2))
    with pytest.raises(DataError, match=r"already dropped|no source added before"):
        sbm.expire(store, **chosen)  # nothing was left to remove


def test_block_numbers_are_never_reused(store):
    used: set[str] = set()
    for k in range(4):
        used |= {p.name for p in store.glob("*.sbb")}
        sbm.expire(store, sources=sbm.info(store)["sources"][-1]["name"])
        source = written(store.parent, f"n{k}.svm", text_of(k))
        sbm.split([source], store, append=True, force=True, new_labels=True)
        assert not used & set(read_manifest(store)["generations"][-1]["blocks"])
        sbm.check(store)


def test_expired_source_can_be_added_again(store):
    source = store.parent / "1.svm"
    assert sbm.expire(store, sources="2.svm")["labels_dropped"] == [3.0]
    assert sbm.expire(store, sources="1.svm")["labels_dropped"] == [2.0]
    with pytest.raises(DataError, match=r"1\.svm was already dropped from .* at "):
        sbm.expire(store, sources="1.svm")
    sbm.split([source], store, append=True, new_labels=True)
    assert_holds(store, text_of(0), text_of(1))
    with pytest.raises(DataError, match="is already in"):
        sbm.split([source], store, append=True)


def test_weights_skip_expired_rows(tmp_path):
    store = tmp_path / "a.sbm"
    for k in range(3):  # every row has its weight as the value of feature 1
        text = "".join(f"1 1:{10 * k + j}\n" for j in range(10)).encode()
        sbm.split([written(tmp_path, f"{k}.svm", text)], store, append=k > 0, blocks=2)
    sbm.expire(store, sources="1.svm")
    left = [*range(10), *range(20, 30)]
    weights = written(tmp_path, "w.txt", "".join(f"{weight}\n" for weight in left).encode())
    opened = BlockStore(store)
    dealt = RowWeights(opened, weights, tmp_path)
    for chunks, rows in zip(opened.chunks, store_rows(store), strict=True):
        got = np.empty(len(rows))
        dealt.read(chunks[0], got)
        assert got.tolist() == [features[0][1] for _, features in rows]
    weights.write_text("1\n" * 30)
    with pytest.raises(DataError, match=r"30 weights.* 20 rows"):
        RowWeights(opened, weights, tmp_path)
