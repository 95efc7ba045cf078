"""Shards: a store in several folders, whole again when all block files lie in one."""

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import sbm
from sbm.cli import main
from sbm.errors import DataError, SettingsError, StoreError
from sbm.jobs.dealing import destination
from sbm.jobs.expire import expire
from sbm.jobs.info import check, info
from sbm.jobs.split import split
from sbm.jobs.tune import tune
from sbm.rows import Arena
from sbm.store.blocks import BlockStore, require_whole
from sbm.store.shards import SHARD, Shard, read_shard, shard_path, write_shard

N_SHARDS, N_BLOCKS = 4, 11


@pytest.fixture
def text(tmp_path: Path) -> Path:
    r = random.Random(5)
    lines = (
        " ".join([r.choice("12"), *(f"{i}:{r.random():.3f}" for i in r.sample(range(90), 6))])
        for _ in range(120)
    )
    (tmp_path / "big.svm").write_text("\n".join(lines) + "\n")
    return tmp_path / "big.svm"


@pytest.fixture
def shards(text: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.chdir(text.parent)
    split(text, blocks=N_BLOCKS, shards=N_SHARDS)
    return [Path(f"big.{number}.sbm") for number in range(N_SHARDS)]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def without_time(manifest: bytes) -> object:
    record = json.loads(manifest)["manifest"]
    for generation in record["generations"]:
        del generation["added"]
    return record


def leave(names: set[str]) -> None:
    """Fail if there is anything else in this folder."""
    assert {path.name for path in Path().iterdir()} == names


NAMES = {"big.svm", *(f"big.{number}.sbm" for number in range(N_SHARDS))}


# ------------------------------------------------------------------------------- what they are


def test_the_block_files_of_all_shards_in_one_folder_are_the_whole_store(
    text: Path, shards: list[Path]
) -> None:
    split(text, "whole.sbm", blocks=N_BLOCKS)
    whole = contents(Path("whole.sbm"))
    manifests = {(shard / "manifest.json").read_bytes() for shard in shards}
    assert len(manifests) == 1
    assert without_time(manifests.pop()) == without_time(whole["manifest.json"])
    joined = Path("joined.sbm")
    shutil.copytree(shards[0], joined)
    for shard in shards[1:]:
        for block in shard.glob("*.sbb"):
            shutil.copy(block, joined)
    found = contents(joined)
    del found[SHARD], found["manifest.json"], whole["manifest.json"]
    assert found == whole
    require_whole(BlockStore(joined))
    assert check(joined)["elsewhere"] == 0
    added = Path("new.svm")
    added.write_text("1 3:1\n")
    split(added, joined, append=True)
    assert not (joined / SHARD).exists()  # it was no part any more


def test_blocks_are_dealt_in_turn(shards: list[Path]) -> None:
    here = [BlockStore(shard).blocks_here for shard in shards]
    assert here == [[0, 4, 8], [1, 5, 9], [2, 6, 10], [3, 7]]
    for number, shard in enumerate(shards):
        store = BlockStore(shard)
        assert store.shard == Shard(number, N_SHARDS)
        assert (store.n_blocks, store.n_rows) == (N_BLOCKS, 120)
    leave(NAMES)


def test_a_whole_store_has_all_its_blocks(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(text.parent)
    split(text, blocks=3)
    store = BlockStore("big.sbm")
    assert store.shard is None
    assert store.blocks_here == [0, 1, 2]
    require_whole(store)
    assert "shard" not in info("big.sbm")


def test_one_shard_has_all(text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(text.parent)
    report = split(text, blocks=2, shards=1)
    assert report["store"] == "big.{rank}.sbm"
    require_whole(BlockStore("big.0.sbm"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("big.sbm", "big.2.sbm"),
        ("a/week", "a/week.2"),
        ("x.y.sbm", "x.y.2.sbm"),
        ("v1.5", "v1.5.2"),
    ],
)
def test_the_number_stands_before_the_ending(name: str, expected: str) -> None:
    assert shard_path(Path(name), 2) == Path(expected)


@pytest.mark.parametrize(
    "record", ["{}", '{"crc32": 0, "shard": {"shard": 0, "of": 2}}', "spam", "[]"]
)
def test_a_damaged_record_is_told(tmp_path: Path, record: str) -> None:
    (tmp_path / SHARD).write_text(record)
    with pytest.raises(StoreError) as caught:
        read_shard(tmp_path)
    expected = f"{tmp_path / SHARD} is damaged; copy it again, or split the data again"
    assert str(caught.value) == expected


@pytest.mark.parametrize("shard", [Shard(2, 2), Shard(-1, 2), Shard(0, 0)])
def test_a_record_that_makes_no_sense_is_told(tmp_path: Path, shard: Shard) -> None:
    write_shard(tmp_path, shard)
    with pytest.raises(StoreError, match=r"shard\.json is damaged"):
        read_shard(tmp_path)


# ----------------------------------------------------------------------------- what they refuse


def test_a_block_of_another_shard_is_told_where_it_is(shards: list[Path]) -> None:
    store = BlockStore(shards[0])
    (chunk, *_) = store.chunks[6]
    room = Arena.of(chunk.nnz, store.value_type).room(chunk.rows, "int32")
    with pytest.raises(StoreError) as caught:
        store.read([chunk], room, 0)
    assert str(caught.value) == (
        "big.0.sbm/block-000006.sbb is not here: big.0.sbm is a part of a store, shard 0 (of 0 to "
        "3), and that file is in shard 2; read it there, or copy the block files of all shards "
        "into one folder"
    )


WHOLE = (
    "big.1.sbm is a part of a store, shard 1 (of 0 to 3), with 3 of its 11 blocks; train on all "
    "parts with sbm train --launch 4 and {rank} for the number in the name, or copy the block "
    "files of all shards into one folder"
)


def test_what_needs_all_blocks_refuses_a_shard(shards: list[Path]) -> None:
    Path("new.svm").write_text("1 3:1\n")
    before = contents(shards[1])
    for command in (
        lambda: require_whole(BlockStore(shards[1])),
        lambda: tune(shards[1], Cs=[1.0]),
        lambda: expire(shards[1], sources="big.svm"),
        lambda: expire(shards[1], sources="big.svm", dry_run=True),
        lambda: split("new.svm", shards[1], append=True),
    ):
        with pytest.raises(StoreError) as caught:
            command()
        assert str(caught.value) == WHOLE
    assert contents(shards[1]) == before
    leave({*NAMES, "new.svm"})


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        ({"shards": 0}, SettingsError, "shards is 0; it must be from 1 to 256"),
        ({"shards": 257}, SettingsError, "shards is 257; it must be from 1 to 256"),
        (
            {"shards": 4, "blocks": 3}, SettingsError,
            "blocks is 3, and each of 4 shards needs one; give --blocks 4 or more",
        ),
        (
            {"shards": 200, "blocks": 1000}, DataError,
            "200 shards need as many blocks, and there are 120; give --blocks, or fewer --shards",
        ),
        (
            {"shards": 2, "append": True, "store": "big.sbm"}, SettingsError,
            "--shards makes a store anew; give --append or --shards, not both",
        ),
    ],
)  # fmt: skip
def test_shards_that_cannot_be_made_are_refused(
    text: Path, monkeypatch: pytest.MonkeyPatch, options: dict, error: type, sentence: str
) -> None:
    monkeypatch.chdir(text.parent)
    if options.get("append"):
        split(text)
    before = {path.name for path in Path().iterdir()}
    with pytest.raises(error) as caught:
        split(text, **options)
    assert str(caught.value) == sentence
    leave(before)


def test_shards_that_are_there_are_replaced_by_force_alone(text: Path, shards: list[Path]) -> None:
    shutil.rmtree(shards[0])
    before = [contents(shard) for shard in shards[1:]]
    other = Path("other.svm")
    other.write_text("7 7:7\n" * 20)
    with pytest.raises(StoreError) as caught:
        split(other, "big.sbm", blocks=5, shards=N_SHARDS)
    assert str(caught.value) == (
        "big.1.sbm exists; replace it with --force, or name another with -o"
    )
    assert [contents(shard) for shard in shards[1:]] == before
    split(other, "big.sbm", blocks=5, shards=N_SHARDS, force=True)
    assert [check(shard)["rows"] for shard in shards] == [8, 4, 4, 4]
    leave({*NAMES, "other.svm"})


# -------------------------------------------------------------------- interrupted, and damaged


def fail_at(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """Let the n-th name that is given fail."""
    real, calls = destination.put_in_place, iter(range(1000))

    def put_in_place(new: Path, final: Path) -> None:
        if next(calls) == n:
            raise StoreError("no more names")
        real(new, final)

    monkeypatch.setattr(destination, "put_in_place", put_in_place)


@pytest.mark.parametrize("n", range(N_SHARDS))
@pytest.mark.parametrize("force", [False, True])
def test_all_shards_are_the_new_ones_or_none(
    text: Path, shards: list[Path], monkeypatch: pytest.MonkeyPatch, n: int, force: bool
) -> None:
    if not force:
        for shard in shards:
            shutil.rmtree(shard)
    left = {path.name for path in Path().iterdir()}
    before = [contents(shard) for shard in shards if force]
    other = Path("other.svm")
    other.write_text("7 7:7\n" * 20)
    with monkeypatch.context() as patch:
        fail_at(patch, n)
        with pytest.raises(StoreError, match="no more names"):
            split(other, "big.sbm", blocks=5, shards=N_SHARDS, force=force)
    leave({*left, "other.svm"})
    assert [contents(shard) for shard in shards if force] == before


@pytest.mark.parametrize("n", range(1, N_SHARDS))
def test_after_a_kill_between_two_names_the_same_command_begins_anew(
    text: Path, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    monkeypatch.chdir(text.parent)
    with monkeypatch.context() as patch:
        fail_at(patch, n)
        patch.setattr(destination, "_take_back", lambda whole, shards: None)  # nobody is left to
        with pytest.raises(StoreError, match="no more names"):
            split(text, blocks=N_BLOCKS, shards=N_SHARDS)
    assert {f"big.{number}.sbm" for number in range(n)} < {p.name for p in Path().iterdir()}
    split(text, blocks=N_BLOCKS, shards=N_SHARDS)
    leave(NAMES)
    assert sum(check(f"big.{number}.sbm")["rows"] for number in range(N_SHARDS)) == 120


def test_a_file_that_a_shard_should_have_is_missed_and_others_are_not(shards: list[Path]) -> None:
    rows = [check(shard)["rows"] for shard in shards]
    assert sum(rows) == 120
    assert [check(shard)["elsewhere"] for shard in shards] == [8, 8, 8, 9]
    lost = shards[0] / "block-000004.sbb"
    size = lost.stat().st_size
    lost.unlink()
    with pytest.raises(StoreError) as caught:
        check(shards[0])
    assert str(caught.value) == (
        f"{lost} has 0 bytes where the manifest says {size}; split the data again"
    )


def test_a_whole_store_without_one_of_its_files_is_damaged(
    text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(text.parent)
    split(text, blocks=3)
    lost = Path("big.sbm/block-000001.sbb")
    lost.unlink()
    with pytest.raises(StoreError, match=r"block-000001\.sbb has 0 bytes"):
        check("big.sbm")
    store = BlockStore("big.sbm")
    (chunk, *_) = store.chunks[1]
    room = Arena.of(chunk.nnz, store.value_type).room(chunk.rows, "int32")
    with pytest.raises(StoreError, match=r"^big\.sbm/block-000001\.sbb does not exist; see"):
        store.read([chunk], room, 0)


# ------------------------------------------------------------------------------ the command line


def said(line: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    with pytest.raises(SystemExit) as end:
        main(line.split())
    assert end.value.code == 0
    return capsys.readouterr().out.splitlines()


def test_the_commands_tell_what_is_here(
    text: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(text.parent)
    (made,) = said("split big.svm --blocks 12 --shards 4 -q", capsys)
    assert made.startswith("big.{rank}.sbm: 120 rows, 90 features, 720 nonzeros in 12 blocks, ")
    shown = [line.strip() for line in said("info big.0.sbm", capsys)]
    assert "shard: 0 (of 0 to 3), blocks 0, 4, 8 of 12 are here" in shown
    size = sum(os.path.getsize(p) for p in Path("big.0.sbm").glob("*.sbb"))
    (sound, elsewhere) = said("check big.0.sbm -q", capsys)
    assert sound.startswith("big.0.sbm is sound: 30 rows in 3 chunks, ")
    assert elsewhere == "it is a part of a store; 9 blocks elsewhere"
    assert json.loads(said("check big.0.sbm --json", capsys)[0])["bytes"] == size


def test_processes_train_the_same_model_on_shards_as_on_one_store(
    text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(text.parent)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parent.parent))
    split(text, blocks=6, shards=2)
    split(text, blocks=6)
    for store, model in (("big.{rank}.sbm", "of shards.model"), ("big.sbm", "whole.model")):
        line = [sys.executable, "-m", "sbm", "train", store, "-o", model, "-C", "0.1", "-q"]
        done = subprocess.run(
            [*line, "--launch", "2"], capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr
        assert json.loads(Path(f"{model}.run/status.json").read_text())["processes"] == 2
    of_shards, whole = (sbm.Model.load(name) for name in ("of shards.model", "whole.model"))
    assert of_shards.info["converged"]
    np.testing.assert_array_equal(of_shards.ids, whole.ids)
    np.testing.assert_array_equal(of_shards.W, whole.W)
