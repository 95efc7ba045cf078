"""What info tells of stores, runs and models, and what check notices."""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import sbm
from sbm.errors import SbmError, StoreError
from sbm.settings import Settings
from sbm.store import blocks as store_files
from sbm.store.blocks import BlockStore
from sbm.store.run import Run

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "data" / "sample.svm"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A store of two sources, a run and a model, made once."""
    folder = tmp_path_factory.mktemp("made")
    more = folder / "more.svm"
    more.write_text("+1 3:1 77:0.5\n-1 77:2\nbad\n-1\n")
    sbm.split([SAMPLE], folder / "a.sbm", blocks=3, level=3)
    sbm.split([more], folder / "a.sbm", blocks=1, append=True, on_error="skip")
    sbm.train(
        folder / "a.sbm", folder / "a.model",
        Settings(C=0.5, max_passes=4, tol=1e-9, bias=1.0, class_weight={1: 2}),
    )  # fmt: skip
    return folder


@pytest.fixture
def store(made, tmp_path) -> Path:
    return shutil.copytree(made / "a.sbm", tmp_path / "a.sbm")


def _sample() -> list[list[str]]:
    lines = SAMPLE.read_text().splitlines()
    return [tokens for line in lines if (tokens := line.split("#")[0].split())]


# -------------------------------------------------------------------------------------- stores


def test_info_of_a_store(made):
    path = made / "a.sbm"
    facts = sbm.info(path)
    rows = _sample()
    ids = {pair.split(":")[0] for row in rows for pair in row[1:]}
    nnz = sum(len(row) - 1 for row in rows) + 3
    size = sum(p.stat().st_size for p in path.glob("*.sbb"))
    assert facts["kind"] == "store"
    assert facts["path"] == str(path)
    assert (facts["rows"], facts["nnz"]) == (len(rows) + 3, nnz)
    assert facts["features"] == len(ids | {"3", "77"})
    assert facts["nnz_per_row"] == nnz / (len(rows) + 3)
    assert facts["value_type"] == "float32"
    assert facts["blocks"] == 4
    assert sum(facts["block_rows"]) == len(rows) + 3
    assert sorted(facts["block_rows"][:3]) == sorted(
        len(rows) // 3 + (k < len(rows) % 3) for k in range(3)
    )
    assert facts["bytes"] == size
    assert facts["bits_per_nonzero"] == 8 * size / nnz
    counts = dict(zip(facts["labels"]["values"], facts["labels"]["counts"], strict=True))
    positive = sum(float(row[0]) == 1 for row in rows)
    assert counts == {1.0: positive + 1, -1.0: len(rows) - positive + 2}
    first, second = facts["sources"]
    assert (first["name"], first["rows"], first["skipped"]) == ("sample.svm", len(rows), 0)
    assert first["bytes"] == SAMPLE.stat().st_size
    assert (second["name"], second["rows"], second["skipped"]) == ("more.svm", 3, 1)
    assert [o["level"] for o in facts["options"]] == [3, 1]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", s["added"])
               for s in facts["sources"])  # fmt: skip


@pytest.mark.parametrize(
    ("text", "dtype", "kind", "each"),
    [
        ("1 1:1 2:1\n-1 3:1\n", "auto", "ones", 4),
        ("1 1:1 2:0.5\n-1 3:1\n", "auto", "float32", 8),
        ("1 1:1 2:0.1\n-1 3:1\n", "float64", "float64", 12),
    ],
)
def test_the_memory_of_a_store_follows_its_values(tmp_path, text, dtype, kind, each):
    (tmp_path / "t.svm").write_text(text)
    sbm.split([tmp_path / "t.svm"], tmp_path / "t.sbm", blocks=1, dtype=dtype)
    facts = sbm.info(tmp_path / "t.sbm")
    assert facts["value_type"] == kind
    assert 3 * each <= facts["memory_bytes"] <= 3 * each + 2 * 40


# -------------------------------------------------------------------------- models and runs


def test_info_of_a_model(made):
    path = made / "a.model"
    facts = sbm.info(path)
    model = sbm.Model.load(path)
    assert facts["kind"] == "model"
    assert facts["bytes"] == path.stat().st_size
    assert 0 < facts["features"] == len(model.ids) <= sbm.info(made / "a.sbm")["features"]
    assert facts["nonzero_weights"] == np.count_nonzero(model.W) > 0
    assert (facts["outputs"], facts["labels"], facts["bias"]) == (1, [-1.0, 1.0], 1.0)
    assert (facts["loss"], facts["C"], facts["converged"]) == ("hinge", 0.5, False)
    assert facts["settings"]["class_weight"] == {"1": 2.0}
    assert facts["certificate"] == model.certificate
    assert set(facts["certificate"]) >= {"primal", "dual", "gap", "relative_gap", "drift"}
    assert [s["name"] for s in facts["sources"]] == ["sample.svm", "more.svm"]


def test_info_of_a_run(made):
    path = made / "a.model.run"
    facts = sbm.info(path)
    assert facts["kind"] == "run"
    assert facts["finished"] is True
    assert facts["store"] == str(made / "a.sbm")
    assert facts["passes"] == 4
    assert facts["settings"]["C"] == 0.5
    assert facts["certificate"] == sbm.Model.load(made / "a.model").certificate
    assert facts["bytes"] == sum(p.stat().st_size for p in path.iterdir())
    assert [record["pass"] for record in facts["log"]] == [1, 2, 3, 4]
    duals = [record["dual"] for record in facts["log"]]
    assert duals == sorted(duals)


def test_a_run_before_its_first_commit_is_not_finished(tmp_path):
    with Run.create(tmp_path / "b.run", [3]) as run:
        run.log({"event": "pass", "pass": 1})
    facts = sbm.info(tmp_path / "b.run")
    assert (facts["finished"], facts["passes"], facts["certificate"]) == (False, 1, None)
    assert len(facts["log"]) == 1


@pytest.mark.parametrize("half", ['{"event": "pa', '{"event": "pass", "pass": 2', "{"])
def test_a_last_line_of_the_log_that_was_cut_off_is_passed_over(tmp_path, half):
    with Run.create(tmp_path / "b.run", [3]) as run:
        run.log({"event": "pass", "pass": 1})
    with open(tmp_path / "b.run" / "log.jsonl", "a") as file:
        file.write(half)  # killed, or the disk was full
    assert [record["pass"] for record in sbm.info(tmp_path / "b.run")["log"]] == [1]


@pytest.mark.parametrize("what", ["a.sbm", "a.model", "a.model.run"])
def test_the_facts_are_plain_json(made, what):
    facts = sbm.info(made / what)
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts


def test_what_is_neither_is_refused(tmp_path):
    message = f"{tmp_path / 'none'} does not exist; give a store, a run or a model"
    with pytest.raises(StoreError, match=f"^{re.escape(message)}$"):
        sbm.info(tmp_path / "none")
    message = (
        f"{tmp_path} is neither a store (no manifest.json) nor a run (no run.json); "
        "a store is made by sbm split"
    )
    with pytest.raises(StoreError, match=f"^{re.escape(message)}$"):
        sbm.info(tmp_path)
    with pytest.raises(StoreError, match=rf"^{SAMPLE} is not an sbm file "):
        sbm.info(SAMPLE)


def test_a_file_of_a_store_is_no_model(made):
    for path in (made / "a.sbm").glob("*.sb?"):
        kind = {"block": "chunk", "index": "index", "features": "features"}[path.name.split("-")[0]]
        with pytest.raises(StoreError, match=rf"^{path} holds a {kind}, a model is expected$"):
            sbm.info(path)


# --------------------------------------------------------------------------------------- check


def test_a_sound_store_is_sound(made):
    path = made / "a.sbm"
    facts = sbm.info(path)
    report = sbm.check(path)
    assert report == {
        "store": str(path), "rows": facts["rows"], "chunks": facts["chunks"],
        "bytes": facts["bytes"], "features": facts["features"], "unused_features": 0,
        "elsewhere": 0,
    }  # fmt: skip


def test_a_flipped_bit_is_noticed_in_every_file(store):
    paths = [p for p in sorted(store.iterdir()) if p.stat().st_size]
    kinds = {p.name.split("-")[0] for p in paths}
    assert kinds == {"block", "features", "index", "manifest.json"}
    for path in paths:
        data = path.read_bytes()
        positions = {0, 1, 8, 12, 16, 20, len(data) // 2, len(data) - 2, len(data) - 1}
        for position in sorted(positions | set(range(0, len(data), 101))):
            damaged = bytearray(data)
            damaged[position] ^= 1
            path.write_bytes(damaged)
            with pytest.raises(StoreError, match=re.escape(str(store))):
                sbm.check(store)
        path.write_bytes(data)
    sbm.check(store)


def test_flipped_bits_all_over_a_manifest_are_noticed(store):
    path = store / "manifest.json"
    data = path.read_bytes()
    for position in range(0, len(data), 5):
        damaged = bytearray(data)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match=rf"^{path} is damaged; split the data again$"):
            store_files.read_manifest(store)


@pytest.mark.parametrize("change", ["missing", "cut", "longer"])
def test_a_file_that_is_missing_or_has_another_size_is_noticed(store, change):
    for path in sorted(p for p in store.iterdir() if p.stat().st_size):
        data = path.read_bytes()
        if change == "missing":
            path.unlink()
        else:
            path.write_bytes(data[:-1] if change == "cut" else data + b"\0")
        with pytest.raises(StoreError, match=re.escape(str(store))):
            sbm.check(store)
        path.write_bytes(data)
    sbm.check(store)


def test_exchanged_blocks_are_noticed(store):
    first, second = store / "block-000000.sbb", store / "block-000003.sbb"
    data = first.read_bytes(), second.read_bytes()
    first.write_bytes(data[1])
    second.write_bytes(data[0])
    with pytest.raises(StoreError, match=re.escape(str(store))):
        sbm.check(store)


def _rewrite(store: Path, change) -> None:
    """Change a manifest as a program would, with a checksum that fits."""
    manifest = store_files.read_manifest(store)
    change(manifest)
    store_files.write_manifest(store, manifest)


@pytest.mark.parametrize("name", ["rows", "features", "nnz"])
def test_totals_of_a_manifest_that_are_not_those_of_the_blocks_are_noticed(store, name):
    _rewrite(store, lambda manifest: manifest.update({name: manifest[name] + 1}))
    with pytest.raises(StoreError, match=re.escape(str(store))):
        sbm.check(store)


def test_label_counts_that_are_not_those_of_the_blocks_are_noticed(store):
    _rewrite(store, lambda manifest: manifest["labels"]["counts"].reverse())
    expected = f"{store}: the manifest's counts are not those of the blocks"
    with pytest.raises(StoreError, match=f"^{re.escape(expected)}$"):
        sbm.check(store)


def test_a_name_that_points_outside_of_the_store_is_refused(store):
    def change(manifest):
        manifest["blocks"][0]["file"] = "../block-000000.sbb"

    _rewrite(store, change)
    expected = f"{store}: the manifest names '../block-000000.sbb', which is no file of the store"
    with pytest.raises(StoreError, match=f"^{re.escape(expected)}$"):
        sbm.check(store)


def test_features_that_no_row_names_any_more_are_counted(store):
    def drop_the_last_block(manifest):
        dropped = manifest["blocks"].pop()
        manifest["rows"] -= dropped["rows"]
        manifest["nnz"] -= dropped["nnz"]
        labels = manifest["labels"]
        lost = {1.0: 1, -1.0: 2}  # the rows of more.svm
        pairs = zip(labels["values"], labels["counts"], strict=True)
        labels["counts"] = [count - lost[label] for label, count in pairs]

    _rewrite(store, drop_the_last_block)
    report = sbm.check(store)
    assert report["rows"] == len(_sample())
    assert report["unused_features"] == 1  # 77
    assert BlockStore(store).n_blocks == 3


def test_check_of_anything_else_is_refused(made, tmp_path):
    with pytest.raises(StoreError, match=rf"^{tmp_path} is not a store \(it has no manifest\.json"):
        sbm.check(tmp_path)
    for path, what in (
        (made / "a.model", "is a file, and a store is a folder"),
        (made / "a.model.run", "is not a store"),
        (tmp_path / "none", "does not exist"),
    ):
        with pytest.raises(SbmError, match=rf"^{path} {what}"):
            sbm.check(path)


def test_check_changes_nothing(made):
    path = made / "a.sbm"
    before = {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in path.iterdir()}
    sbm.check(path)
    sbm.info(path)
    assert {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in path.iterdir()} == before
    assert set(os.listdir(path)) == set(before)
