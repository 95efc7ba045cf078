"""Reports of info on stores, runs and models, and errors that check detects."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from inside import Model, Run, Settings, cli, read_manifest, write_manifest
from inside import cli_show_module as show

import sbm
from sbm.errors import StoreError

SAMPLE = Path(__file__).resolve().parent.parent / "data" / "sample.svm"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A store with two sources, a run and a model, built once."""
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
def store(made, tmp_path):
    return shutil.copytree(made / "a.sbm", tmp_path / "a.sbm")


# ------------------------------------------------------------------------------------------ info


def test_info_of_a_store(made):
    path = made / "a.sbm"
    facts = sbm.info(path)
    lines = [line.split("#")[0].split() for line in SAMPLE.read_text().splitlines()]
    rows = [tokens for tokens in lines if tokens]
    ids = {pair.split(":")[0] for row in rows for pair in row[1:]}
    nnz = sum(len(row) - 1 for row in rows) + 3
    size = sum(p.stat().st_size for p in path.glob("*.sbb"))
    n = len(rows) + 3
    assert sorted(facts["block_rows"][:3]) == sorted(
        len(rows) // 3 + (k < len(rows) % 3) for k in range(3)
    )
    expected = {
        "kind": "store", "path": str(path), "rows": n, "features": len(ids | {"3", "77"}),
        "nnz": nnz, "nnz_per_row": nnz / n, "value_type": "float32", "blocks": 4, "chunks": 4,
        "bytes": size, "bits_per_nonzero": 8 * size / nnz, "memory_bytes": 8 * nnz + 16 * n,
    }  # fmt: skip
    assert {key: facts[key] for key in expected} == expected
    assert facts["block_rows"][3] == 3
    counts = dict(zip(facts["labels"]["values"], facts["labels"]["counts"], strict=True))
    positive = sum(float(row[0]) == 1 for row in rows)
    assert counts == {1.0: positive + 1, -1.0: len(rows) - positive + 2}
    first, second = facts["sources"]
    assert (first["name"], first["rows"], first["skipped"]) == ("sample.svm", len(rows), 0)
    assert first["bytes"] == SAMPLE.stat().st_size
    assert (second["name"], second["rows"], second["skipped"]) == ("more.svm", 3, 1)
    assert [o["level"] for o in facts["options"]] == [3, 1]
    assert (facts["expired"], facts["left_out"]) == ([], [])
    for source in facts["sources"]:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", source["added"])


def test_info_of_value_types_and_dropped_features(tmp_path):
    text = tmp_path / "t.svm"
    for value, kind, nonzero in (("1", "ones", 4), ("0.1", "float64", 12)):
        text.write_text(f"1 1:1 2:{value}\n-1 3:1\n")
        sbm.split([text], tmp_path / "t.sbm", blocks=1, dtype="float64", force=True)
        facts = sbm.info(tmp_path / "t.sbm")
        assert (facts["value_type"], facts["memory_bytes"]) == (kind, 3 * nonzero + 2 * 16)
    sbm.split([text], tmp_path / "t.sbm", min_count=2, force=True)
    facts = sbm.info(tmp_path / "t.sbm")
    assert facts["left_out"] == [{"min_count": 2, "features": 3, "nnz": 3}]
    assert (facts["nnz"], facts["bits_per_nonzero"]) == (0, 0.0)


def test_info_of_a_model_and_its_run(made):
    model, path, run = sbm.Model.load(made / "a.model"), made / "a.model", made / "a.model.run"
    facts = sbm.info(path)
    expected = {
        "kind": "model", "path": str(path), "bytes": path.stat().st_size,
        "features": len(model.ids), "nonzero_weights": np.count_nonzero(model.W), "outputs": 1,
        "labels": [-1.0, 1.0], "bias": 1.0, "loss": "hinge", "C": 0.5, "converged": False,
        "certificate": model.certificate,
    }  # fmt: skip
    assert {key: facts[key] for key in expected} == expected
    assert facts["settings"]["class_weight"] == {"1": 2.0}
    assert set(facts["certificate"]) >= {"primal", "dual", "gap", "relative_gap", "drift"}
    assert [s["name"] for s in facts["sources"]] == ["sample.svm", "more.svm"]
    facts = sbm.info(run)
    expected = {
        "kind": "run", "path": str(run), "finished": True, "store": str(made / "a.sbm"),
        "passes": 4, "certificate": model.certificate,
        "bytes": sum(p.stat().st_size for p in run.iterdir()),
    }  # fmt: skip
    assert {key: facts[key] for key in expected} == expected
    assert facts["settings"]["C"] == 0.5
    assert [record["pass"] for record in facts["log"]] == [1, 2, 3, 4]
    for what in ("a.sbm", "a.model", "a.model.run"):
        facts = sbm.info(made / what)
        assert json.loads(json.dumps(facts, allow_nan=False)) == facts


@pytest.mark.parametrize(
    "half", ["", '{"event": "pa', '{"event": "pass"}\n', "5\n", '{"event": 1}']
)
def test_run_without_checkpoint_is_described_by_log(tmp_path, half):
    with Run.create(tmp_path / "b.run", [3]) as run:
        run.log({"event": "pass", "pass": 1})
    with open(tmp_path / "b.run" / "log.jsonl", "a") as file:
        file.write(half)  # killed, or the disk was full
    facts = sbm.info(tmp_path / "b.run")
    assert (facts["finished"], facts["passes"], facts["certificate"]) == (False, 1, None)
    assert [record["pass"] for record in facts["log"]] == [1]
    result = CliRunner().invoke(cli, ["info", str(tmp_path / "b.run")])
    assert (result.exit_code, "None" in result.output) == (0, False)


# ----------------------------------------------------------------------------------------- check


def test_check_of_a_valid_store_changes_nothing(made):
    path = made / "a.sbm"
    before = {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in path.iterdir()}
    facts = sbm.info(path)
    assert sbm.check(path) == {
        "store": str(path), "rows": facts["rows"], "chunks": facts["chunks"],
        "bytes": facts["bytes"], "features": facts["features"], "unused_features": 0,
        "elsewhere": 0,
    }  # fmt: skip
    assert {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in path.iterdir()} == before


def test_damage_in_any_file_is_detected(store):
    paths = [p for p in sorted(store.iterdir()) if p.stat().st_size]
    kinds = {p.name.split("-")[0] for p in paths}
    assert kinds == {"block", "features", "index", "manifest.json"}
    for path in paths:
        data = path.read_bytes()
        positions = {0, 1, 8, 12, 16, 20, *range(0, len(data), 97), len(data) - 1}
        flipped = [data[:k] + bytes([data[k] ^ 1]) + data[k + 1 :] for k in positions]
        for damaged in (*flipped, data[:-1], data + b"\0", None):
            if damaged is None:
                path.unlink()
            else:
                path.write_bytes(damaged)
            with pytest.raises(StoreError, match=re.escape(str(store))):
                sbm.check(store)
        path.write_bytes(data)
    first, second = store / "block-000000.sbb", store / "block-000003.sbb"
    data = first.read_bytes(), second.read_bytes()
    first.write_bytes(data[1])
    second.write_bytes(data[0])
    with pytest.raises(StoreError, match=re.escape(str(first))):
        sbm.check(store)


@pytest.mark.parametrize("name", ["rows", "features", "nnz", "labels"])
def test_wrong_totals_are_detected(store, name):
    manifest = read_manifest(store)
    if name == "labels":
        manifest["labels"]["counts"].reverse()
    else:
        manifest[name] += 1
    write_manifest(store, manifest)
    with pytest.raises(StoreError, match=re.escape(str(store))):
        sbm.check(store)


def test_unused_features_are_counted(store):
    sbm.expire(store, sources="more.svm")
    report = sbm.check(store)
    assert report["rows"] == sbm.info(store)["sources"][0]["rows"]
    assert (report["chunks"], report["unused_features"]) == (3, 1)  # 77


def test_labels_are_shown_in_full(tmp_path):
    labels = [0.3, 0.30000000000000004, 2.0**53, 1e300]
    Model(np.array([1]), np.ones((1, 4)), labels).save(tmp_path / "a.model")
    for every in (False, True):
        text = "\n".join(show.info(sbm.info(tmp_path / "a.model"), every))
        assert "labels: 0.3, 0.30000000000000004, 9007199254740992, 1e+300\n" in text
