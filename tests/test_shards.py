"""Shards: a store in several folders, complete again if all block files are in one."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from inside import (
    SHARD,
    BlockStore,
    Shard,
    check,
    encode_record,
    info,
    patch,
    read_shard,
    require_whole,
    shard_path,
    split,
    tune,
)
from inside import dataset_destination_module as destination

import sbm
from sbm.errors import DataError, SettingsError, StoreError

N_SHARDS, N_BLOCKS = 4, 11
NAMES = {"big.svm", *(f"big.{number}.sbm" for number in range(N_SHARDS))}


@pytest.fixture
def text(tmp_path, monkeypatch):
    r = random.Random(5)
    lines = (
        " ".join([r.choice("12"), *(f"{i}:{r.random():.3f}" for i in r.sample(range(90), 6))])
        for _ in range(120)
    )
    monkeypatch.chdir(tmp_path)
    Path("big.svm").write_text("\n".join(lines) + "\n")
    return Path("big.svm")


@pytest.fixture
def shards(text):
    split(text, blocks=N_BLOCKS, shards=N_SHARDS)
    return [Path(f"big.{number}.sbm") for number in range(N_SHARDS)]


def contents(folder: Path) -> dict[str, Any]:
    """Files of a folder; the manifest without its time."""
    files: dict[str, Any] = {path.name: path.read_bytes() for path in folder.iterdir()}
    record = json.loads(files["manifest.json"])["manifest"]
    for generation in record["generations"]:
        del generation["added"]
    return {**files, "manifest.json": record}


def here() -> set[str]:
    return {path.name for path in Path().iterdir()}


def test_shards_together_equal_whole_store(text, shards):
    assert here() == NAMES
    blocks = [BlockStore(shard).blocks_here for shard in shards]
    assert blocks == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7]]
    for number, shard in enumerate(shards):
        store = BlockStore(shard)
        assert store.shard == Shard(number, N_SHARDS)
        assert (store.n_blocks, store.n_rows) == (N_BLOCKS, 120)
    sound = [check(shard) for shard in shards]
    assert sum(report["rows"] for report in sound) == 120
    assert [report["elsewhere"] for report in sound] == [8, 8, 8, 9]
    assert info(shards[1])["shard"] == {"number": 1, "of": 4, "here": blocks[1], "blocks": 11}
    split(text, "whole.sbm", blocks=N_BLOCKS)
    whole = contents(Path("whole.sbm"))
    assert BlockStore("whole.sbm").shard is None
    assert "shard" not in info("whole.sbm")
    joined = Path("joined.sbm")
    shutil.copytree(shards[0], joined)
    for shard in shards[1:]:
        for block in shard.glob("*.sbb"):
            shutil.copy(block, joined)
    found = contents(joined)
    del found[SHARD]
    assert found == whole
    require_whole(BlockStore(joined))
    assert check(joined)["elsewhere"] == 0
    Path("new.svm").write_text("1 3:1\n")
    split("new.svm", joined, append=True)
    assert not (joined / SHARD).exists()  # it was no part any more
    assert split(text, "one.sbm", blocks=2, shards=1)["store"] == "one.{rank}.sbm"
    require_whole(BlockStore("one.0.sbm"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a/big.sbm", "a/big.2.sbm"), ("x.y.sbm", "x.y.2.sbm"), ("v1.5", "v1.5.2")],
)
def test_shard_number_precedes_the_suffix(name, expected):
    assert shard_path(Path(name), 2) == Path(expected)


def test_damaged_records_are_refused(tmp_path):
    numbers = [(2, 2), (-1, 2), (0, 0), (0.0, 2), (True, 2), (0, "2"), (0, None)]
    records = [encode_record("shard", {"shard": shard, "of": of}) for shard, of in numbers]
    for record in (
        b"{}", b'{"crc32": 0, "shard": {"shard": 0, "of": 2}}', b"spam", b"[]", *records,
        encode_record("shard", {"shard": 0}),
    ):  # fmt: skip
        (tmp_path / SHARD).write_bytes(record)
        with pytest.raises(StoreError, match=f"{tmp_path / SHARD} is damaged"):
            read_shard(tmp_path)


# -------------------------------------------------------------------------------------- refusals


def test_shard_is_rejected_if_all_blocks_are_needed(shards):
    Path("new.svm").write_text("1 3:1\n")
    before = contents(shards[1])
    for command in (
        lambda: require_whole(BlockStore(shards[1])),
        lambda: tune(shards[1], Cs=[1.0]),
        lambda: sbm.expire(shards[1], sources="big.svm"),
        lambda: sbm.expire(shards[1], sources="big.svm", dry_run=True),
        lambda: split("new.svm", shards[1], append=True),
    ):
        with pytest.raises(StoreError, match=r"big\.1\.sbm .*shard 1 \(of 0 to 3\).* 3 of its 11"):
            command()
    assert contents(shards[1]) == before
    assert here() == {*NAMES, "new.svm"}
    store = BlockStore(shards[0])
    with pytest.raises(StoreError, match=r"block-000006\.sbb not found: .*shard 0.* in shard 2"):
        store.read_codes(store.chunks[6][0])


@pytest.mark.parametrize(
    ("options", "error", "facts"),
    [
        ({"shards": 0}, SettingsError, "shards is 0; it must be from 1 to 256"),
        ({"shards": 257}, SettingsError, "shards is 257"),
        ({"shards": 4, "blocks": 3}, SettingsError, "blocks is 3.* --blocks 4"),
        ({"shards": 4, "blocks": 9}, DataError, "4 shards .* there are 3"),
        ({"shards": 2, "append": True, "store": "big.sbm"}, SettingsError, "--append .*--shards"),
    ],
)
def test_impossible_shards_are_refused(text, options, error, facts):
    text.write_text("1 1:1\n" * 3)
    if options.get("append"):
        split(text)
    before = here()
    with pytest.raises(error, match=facts):
        split(text, **options)
    assert here() == before


def test_existing_shards_need_force(shards):
    shutil.rmtree(shards[0])
    before = [contents(shard) for shard in shards[1:]]
    Path("other.svm").write_text("7 7:7\n" * 20)
    with pytest.raises(StoreError, match=r"big\.1\.sbm exists; replace it with --force"):
        split("other.svm", "big.sbm", blocks=5, shards=N_SHARDS)
    in_use = BlockStore(shards[2]).in_use()
    with in_use, pytest.raises(StoreError, match=r"big\.2\.sbm is in use"):
        split("other.svm", "big.sbm", blocks=5, shards=N_SHARDS, force=True)
    assert [contents(shard) for shard in shards[1:]] == before
    split("other.svm", "big.sbm", blocks=5, shards=N_SHARDS, force=True)
    assert [check(shard)["rows"] for shard in shards] == [8, 4, 4, 4]
    assert here() == {*NAMES, "other.svm"}


# -------------------------------------------------------------------- interrupted, and damaged


def fail_at(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """Let the n-th folder that gets its name fail."""
    real, calls = destination.put_in_place, iter(range(1000))

    def put_in_place(new: Path, final: Path) -> None:
        if next(calls) == n:
            raise StoreError("no more names")
        real(new, final)

    patch(monkeypatch, "put_in_place", put_in_place)


@pytest.mark.parametrize(("n", "force"), [(0, False), (2, False), (1, True), (3, True)])
def test_shards_are_replaced_together(shards, monkeypatch, n, force):
    if not force:
        for shard in shards:
            shutil.rmtree(shard)
    Path("other.svm").write_text("7 7:7\n" * 20)
    left, before = here(), [contents(shard) for shard in shards if force]
    fail_at(monkeypatch, n)
    with pytest.raises(StoreError, match="no more names"):
        split("other.svm", "big.sbm", blocks=5, shards=N_SHARDS, force=force)
    assert here() == left
    assert [contents(shard) for shard in shards if force] == before


@pytest.mark.parametrize("n", [1, 3])
def test_split_works_after_kill_during_renaming(text, monkeypatch, n):
    with monkeypatch.context() as context:
        fail_at(context, n)
        patch(context, "_take_back", lambda whole, shards: None)  # killed before it
        with pytest.raises(StoreError, match="no more names"):
            split(text, blocks=N_BLOCKS, shards=N_SHARDS)
    assert {f"big.{number}.sbm" for number in range(n)} < here()
    split(text, blocks=N_BLOCKS, shards=N_SHARDS)
    assert here() == NAMES
    assert sum(check(f"big.{number}.sbm")["rows"] for number in range(N_SHARDS)) == 120


def test_missing_file_of_a_shard_is_detected(shards):
    lost = shards[0] / "block-000004.sbb"
    size = lost.stat().st_size
    lost.unlink()
    with pytest.raises(StoreError, match=f"{lost} has 0 bytes.* {size}"):
        check(shards[0])
