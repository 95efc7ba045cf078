"""Expire: exactly the rows of the sources named are gone, and nothing else changes its meaning."""

import datetime
import fcntl
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import fit, slow_parse, store_rows, write_rows
from test_split import files_of, multiset, random_text, written

import sbm
from sbm.errors import DataError, SettingsError, StoreError
from sbm.jobs import expire as job
from sbm.store import blocks as store_files
from sbm.store.blocks import read_manifest, write_manifest

N = 60  # rows of a source


def text_of(k: int) -> bytes:
    return random_text(k, N, labels=2 + k)  # each has a label that those before it have not


def date(manifest: dict[str, Any], days: dict[int, str]) -> None:
    """Let generations have been added on given days."""
    for k, day in days.items():
        manifest["generations"][k]["added"] = f"{day}T06:00:00+00:00"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Three sources, 0.svm to 2.svm, added on three days, the first in three blocks."""
    folder = tmp_path / "a.sbm"
    for k in range(3):
        source = written(tmp_path, f"{k}.svm", text_of(k))
        sbm.split([source], folder, append=k > 0, blocks=3 if k == 0 else 2)
    manifest = read_manifest(folder)
    date(manifest, {0: "2026-01-01", 1: "2026-01-02", 2: "2026-01-03"})
    write_manifest(folder, manifest)
    return folder


def holds(store: Path, *texts: bytes) -> None:
    """Check that a store is sound and holds the rows of these texts."""
    expected = [row for text in texts for row in slow_parse(text)[0]]
    assert multiset(store_rows(store)) == multiset(expected)
    counts = Counter(label for label, _ in expected)
    labels = read_manifest(store)["labels"]
    told = dict(zip(labels["values"], labels["counts"], strict=True))
    assert {label: count for label, count in told.items() if count} == counts
    assert sbm.check(store)["rows"] == len(expected) == sbm.info(store)["rows"]


# ------------------------------------------------------------------------------------ what goes


@pytest.mark.parametrize(
    ("how", "gone"),
    [
        ({"before": "2026-01-02"}, [0]),
        ({"before": "2026-01-02T06:00"}, [0]),
        ({"before": "2026-01-02T06:00:01"}, [0, 1]),
        ({"before": "2026-01-02T08:30+02:00"}, [0, 1]),
        ({"before": "2026-01-03T05:59:59Z"}, [0, 1]),
        ({"before": datetime.datetime(2026, 1, 2)}, [0]),
        ({"sources": "0.svm"}, [0]),
        ({"sources": ["1.svm", "some/folder/2.svm"]}, [1, 2]),
        ({"sources": [Path("2.svm")]}, [2]),
    ],
    ids=str,
)
def test_the_sources_named_go_and_all_others_stay(
    store: Path, how: dict[str, Any], gone: list[int]
) -> None:
    before = store_rows(store)
    manifest = read_manifest(store)
    told = sbm.expire(store, **how, dry_run=True)
    assert read_manifest(store) == manifest
    assert store_rows(store) == before
    report = sbm.expire(store, **how)
    assert report == told | {"dry_run": False}
    left = [k for k in range(3) if k not in gone]
    holds(store, *(text_of(k) for k in left))
    blocks = {0: [0, 1, 2], 1: [3, 4], 2: [5, 6]}
    assert store_rows(store) == [before[b] for k in left for b in blocks[k]]
    sizes = [entry["bytes"] for entry in manifest["blocks"]]
    mine = [b for k in gone for b in blocks[k]]
    assert report["sources"] == [
        {"name": f"{k}.svm", "rows": N, "bytes": len(text_of(k)),
         "added": f"2026-01-0{k + 1}T06:00:00+00:00"} for k in gone
    ]  # fmt: skip
    assert (report["rows"], report["blocks"]) == (N * len(gone), len(mine))
    assert report["bytes"] == sum(sizes[b] for b in mine)
    assert report["rows_left"] == N * len(left)
    assert sorted(p.name for p in store.glob("*.sbb")) == [
        f"block-{b:06d}.sbb" for k in left for b in blocks[k]
    ]


def test_ids_and_codes_keep_their_meaning_and_a_label_may_lose_all_rows(store: Path) -> None:
    ids = store_files.BlockStore(store).read_feature_ids()
    labels = read_manifest(store)["labels"]["values"]
    report = sbm.expire(store, sources=["2.svm"])
    assert report["labels_without_rows"] == [3.0]
    report = sbm.expire(store, sources=["1.svm"])
    assert report["labels_without_rows"] == [2.0]  # not those that had none before
    after = store_files.BlockStore(store)
    assert after.labels == labels
    np.testing.assert_array_equal(after.read_feature_ids(), ids)
    assert sbm.check(store)["features"] == len(ids)
    holds(store, text_of(0))


def test_info_tells_what_is_left_and_what_was_expired(store: Path) -> None:
    assert sbm.info(store)["expired"] == []
    sbm.expire(store, sources="1.svm")
    facts = sbm.info(store)
    assert [source["name"] for source in facts["sources"]] == ["0.svm", "2.svm"]
    (gone,) = facts["expired"]
    assert (gone["name"], gone["rows"], gone["added"]) == ("1.svm", N, "2026-01-02T06:00:00+00:00")
    assert datetime.datetime.fromisoformat(gone["expired"]).tzinfo is not None
    assert facts["blocks"] == 5
    assert len(facts["options"]) == 2


def test_a_store_of_targets_has_no_labels_to_count(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("sbm.jobs.dealing.coding.MOST_LABELS", 20)
    for k in range(2):
        text = "".join(f"{k + j / 100} 1:{j + 1}\n" for j in range(30)).encode()
        sbm.split([written(tmp_path, f"{k}.svm", text)], tmp_path / "a.sbm", append=k > 0)
    assert read_manifest(tmp_path / "a.sbm")["labels"] is None
    report = sbm.expire(tmp_path / "a.sbm", sources="0.svm")
    assert (report["rows"], report["rows_left"], report["labels_without_rows"]) == (30, 30, [])
    assert sorted(label for block in store_rows(tmp_path / "a.sbm") for label, _ in block) == [
        1 + j / 100 for j in range(30)
    ]
    assert sbm.check(tmp_path / "a.sbm")["rows"] == 30


def test_several_files_of_one_split_go_together(tmp_path: Path) -> None:
    texts = [written(tmp_path, f"{k}.svm", random_text(k, 20)) for k in range(4)]
    empty = written(tmp_path, "empty.svm", b"# nothing\n")
    store = tmp_path / "a.sbm"
    sbm.split([*texts[:3], empty], store)
    sbm.split([texts[3]], store, append=True)
    before = files_of(store)
    with pytest.raises(DataError) as caught:
        sbm.expire(store, sources=["1.svm", "3.svm"])
    assert str(caught.value) == (
        f"1.svm was added to {store} together with 0.svm, 2.svm, and their rows share blocks; drop "
        "all of them, or split them anew and append sources one by one"
    )
    assert files_of(store) == before
    report = sbm.expire(store, sources=["1.svm", "0.svm", "2.svm"])
    assert [source["name"] for source in report["sources"]] == ["0.svm", "1.svm", "2.svm"]
    holds(store, texts[3].read_bytes())


# ------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("how", "kind", "sentence"),
    [
        ({}, SettingsError,
         "give either --before DATE or --source NAME, to say what is to go"),
        ({"before": "2026-01-02", "sources": "0.svm"}, SettingsError,
         "give either --before DATE or --source NAME, to say what is to go"),
        ({"before": "soon"}, SettingsError,
         ("'soon' is not a date; write it as 2026-01-31, 2026-01-31T06:00 (UTC), or 30d for so "
          "long ago")),
        ({"before": "2026-01-01"}, DataError,
         ("{store} has no source that was added before 2026-01-01; the oldest, 0.svm, was added "
         "2026-01-01T06:00:00+00:00")),
        ({"before": "2026-02-01"}, DataError,
         ("that would drop all rows of {store}; make a new store from other text with sbm split "
         "--force, or remove the folder")),
        ({"sources": ["1.svm", "old/9.svm"]}, DataError,
         "{store} has no source old/9.svm; it has 0.svm, 1.svm, 2.svm"),
    ],
    ids=str,
)  # fmt: skip
def test_what_means_nothing_is_refused_and_nothing_changes(
    store: Path, how: dict[str, Any], kind: type, sentence: str
) -> None:
    before = files_of(store)
    with pytest.raises(kind) as caught:
        sbm.expire(store, **how)
    assert str(caught.value) == sentence.format(store=store)
    assert files_of(store) == before


@pytest.mark.parametrize("how", [{"before": "2026-01-01"}, {"sources": "9.svm"}], ids=str)
def test_that_there_is_nothing_to_drop_may_be_no_error(store: Path, how: dict[str, Any]) -> None:
    before = files_of(store)
    report = sbm.expire(store, **how, if_any=True)
    assert (report["sources"], report["rows"], report["blocks"]) == ([], 0, 0)
    assert report["rows_left"] == 3 * N
    assert files_of(store) == before


def test_a_source_is_expired_once(store: Path) -> None:
    sbm.expire(store, sources="0.svm")
    with pytest.raises(DataError) as caught:
        sbm.expire(store, sources="0.svm")
    assert str(caught.value) == f"{store} has no source 0.svm; it has 1.svm, 2.svm"


def test_a_long_list_of_sources_is_cut(tmp_path: Path) -> None:
    texts = [written(tmp_path, f"{k:02d}.svm", b"1 1:1\n" * (k + 1)) for k in range(13)]
    sbm.split(texts, tmp_path / "a.sbm")
    with pytest.raises(DataError, match=r"it has 00\.svm, .*, 09\.svm and 3 more$"):
        sbm.expire(tmp_path / "a.sbm", sources="x")


def test_what_is_no_store_is_refused_and_left_alone(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"is not a store \(it has no manifest\.json\)"):
        sbm.expire(tmp_path, sources="x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["lock", "."])
@pytest.mark.parametrize("kind", [fcntl.LOCK_EX, fcntl.LOCK_SH])
def test_a_store_in_use_is_refused(store: Path, place: str, kind: int) -> None:
    """Of the folder, the shared lock is a training's."""
    before = files_of(store)
    handle = os.open(store / place, os.O_RDONLY)
    fcntl.flock(handle, kind)
    try:
        with pytest.raises(StoreError) as caught:
            sbm.expire(store, sources="0.svm")
        sbm.expire(store, sources="0.svm", dry_run=True)
    finally:
        os.close(handle)
    assert str(caught.value) == (
        f"the store {store} is in use by another sbm process; wait for it to end or stop it"
    )
    assert files_of(store) == before
    sbm.expire(store, sources="0.svm")


# -------------------------------------------------------------------------- crashes and numbers


def test_after_a_crash_before_the_files_are_removed_the_store_is_sound(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: Any) -> None:
        raise Killed

    # The first call, before anything is done, removes what others left.
    real, calls = store_files.remove_leftovers, []

    def second_time(*arguments: Any) -> None:
        calls.append(arguments)
        (real if len(calls) == 1 else kill)(*arguments)

    monkeypatch.setattr(job.store_files, "remove_leftovers", second_time)
    with pytest.raises(Killed):
        sbm.expire(store, sources="0.svm")
    monkeypatch.undo()
    assert len(list(store.glob("*.sbb"))) == 7
    holds(store, text_of(1), text_of(2))
    more = written(store.parent, "more.svm", b"1 1:1\n")
    sbm.split([more], store, append=True)  # sweeps up
    assert len(list(store.glob("*.sbb"))) == 5
    holds(store, text_of(1), text_of(2), b"1 1:1\n")


def test_if_the_manifest_cannot_be_written_nothing_is_gone(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = files_of(store)

    def fail(*_: Any) -> None:
        raise StoreError("cannot write")

    monkeypatch.setattr(job.store_files, "write_manifest", fail)
    with pytest.raises(StoreError, match="cannot write"):
        sbm.expire(store, sources="0.svm")
    assert files_of(store) == before


def test_numbers_of_blocks_are_never_given_out_again(store: Path) -> None:
    used: set[str] = set()
    for k in range(4):
        used |= {p.name for p in store.glob("*.sbb")}
        newest = sbm.info(store)["sources"][-1]["name"]
        sbm.expire(store, sources=newest)
        sbm.split([written(store.parent, f"n{k}.svm", text_of(k))], store, append=True, force=True)
        added = read_manifest(store)["generations"][-1]["blocks"]
        assert not used & set(added)
        sbm.check(store)


def test_what_was_expired_may_be_added_again(store: Path) -> None:
    source = store.parent / "1.svm"
    sbm.expire(store, sources="1.svm")
    sbm.split([source], store, append=True)
    holds(store, *(text_of(k) for k in range(3)))
    with pytest.raises(DataError, match="is already in"):
        sbm.split([source], store, append=True)
    facts = sbm.info(store)
    assert [s["name"] for s in facts["sources"]] == ["0.svm", "2.svm", "1.svm"]
    assert [s["name"] for s in facts["expired"]] == ["1.svm"]


def test_weights_are_those_of_the_rows_that_are_left(tmp_path: Path) -> None:
    """A row of weight 0 is as if it was expired; the order is that of the text."""
    random = np.random.default_rng(0)
    X, v = random.normal(size=(90, 5)), random.integers(1, 4, 90)
    y = np.where(X[:, 0] + 0.5 * random.normal(size=90) > 0, 1, -1)
    store = tmp_path / "a.sbm"
    for k in range(3):
        mine = slice(30 * k, 30 * k + 30)
        text = write_rows(tmp_path / f"{k}.svm", X[mine], y[mine])
        sbm.split([text], store, append=k > 0, blocks=2)
    keep = np.r_[0:30, 60:90]
    masked = np.zeros(90, int)
    masked[keep] = v[keep]
    np.savetxt(tmp_path / "all.txt", masked, "%d")
    np.savetxt(tmp_path / "left.txt", v[keep], "%d")
    how = {"tol": 1e-9, "max_passes": 5000}
    before, there, _ = fit(store, "b.model", weights=str(tmp_path / "all.txt"), **how)
    sbm.expire(store, sources="1.svm")
    after, here, _ = fit(store, "a.model", weights=str(tmp_path / "left.txt"), **how)
    assert there["converged"]
    assert here["converged"]
    assert here["primal"] == pytest.approx(there["primal"], rel=1e-8)
    np.testing.assert_allclose(after.W, before.W, atol=1e-3)
    with pytest.raises(DataError, match=r"all\.txt has 90 weights, the store has 60 rows"):
        fit(store, "c.model", weights=str(tmp_path / "all.txt"), **how)


def test_a_model_names_the_sources_that_are_left(store: Path) -> None:
    sbm.expire(store, sources=["0.svm"])
    model, _, _ = fit(store)
    assert [source["name"] for source in model.info["sources"]] == ["1.svm", "2.svm"]
    assert json.dumps(model.info)
