"""Formats over time: old files are read, newer ones refused, and what is not known is kept.

What is in ``frozen/runs-v1`` was made by commit 295a7fa, and ``frozen/runs-v2`` and
``frozen/v2-checksums`` by the commit that brought them, in an empty folder, by ::

    sbm.split(["sample.svm"], "sample.sbm", blocks=3, threads=1)  # once, frozen with runs-v1
    chosen = {"C": 0.5, "max_passes": 3, "threads": 1, "mem": "300MB", "tol": 1e-9}
    sbm.train("sample.sbm", "dense.model", {"loss": "squared_hinge", **chosen})
    sbm.train("sample.sbm", "lists.model", {"loss": "crammer_singer", **chosen})
    sbm.stream(["sample.svm"], "stream.model", {"loss": "hinge", "C": 0.5, "mem": "300MB"})
    sbm.split(["ones.svm"], "ones.sbm", blocks=2, threads=1)
    sbm.split(["more.svm"], "ones.sbm", blocks=1, seed=1, append=True, threads=1)

and lies there without logs and locks. Never make it anew: a change of a format gets a folder of its
own. Stores of versions 1 and 2 are in ``test_split.py``, models in ``test_model.py``.
"""

import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import store_rows

import sbm
from sbm.errors import StoreError
from sbm.store import arrays as container
from sbm.store.blocks import read_manifest, write_manifest
from sbm.store.records import encode_record
from sbm.store.run import Run

FROZEN = Path(__file__).resolve().parent / "frozen"
RUNS = pytest.mark.parametrize("version", ["runs-v1", "runs-v2"])
ROWS = [13, 13, 14]
CHOSEN = {"C": 0.5, "max_passes": 3, "threads": 1, "mem": "300MB"}


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


# ------------------------------------------------------------------------------------ old files


@RUNS
@pytest.mark.parametrize(
    ("name", "lists_of", "sums", "weights", "gap"),
    [
        ("dense", None, [6.022738367545, 1.490844358995, 3.372769332775], 6.882443160555123,
         0.03664495162826616),
        ("lists", 2, [3.5, 2.5, 2.0], 11.096553544182704, 0.08687852804747413),
    ],
)  # fmt: skip
def test_frozen_runs_hold_what_was_committed(version, name, lists_of, sums, weights, gap):
    folder = FROZEN / version / f"{name}.run"
    record = Run.read(folder)
    assert record["version"] == int(version[-1])
    assert record["certificate"]["gap"] == gap
    run, state = Run.reopen(folder, ROWS, lists_of)
    alphas = [run.load(block) for block in range(3)]
    assert [len(alpha) for alpha in alphas] == ROWS
    assert [float(a.values.sum()) for a in alphas] == pytest.approx(sums, abs=1e-11)
    assert state["W"].shape == (20, lists_of or 1)
    assert float(np.abs(state["W"]).sum()) == pytest.approx(weights, rel=1e-14)


@RUNS
@pytest.mark.parametrize(
    ("name", "loss"), [("dense", "squared_hinge"), ("lists", "crammer_singer")]
)
def test_a_frozen_run_is_started_from(here, version, name, loss):
    shutil.copytree(FROZEN / "runs-v1" / "sample.sbm", "sample.sbm")
    shutil.copytree(FROZEN / version / f"{name}.run", "old.run")
    gap = Run.read(Path("old.run"))["certificate"]["relative_gap"]
    model, report = sbm.train(
        "sample.sbm",
        "new.model",
        {**CHOSEN, "loss": loss, "tol": 1.01 * gap, "warm_start": "old.run"},
    )
    assert report["passes"] == 0  # it is as good as it was, and that is enough
    assert report["relative_gap"] == pytest.approx(gap, rel=1e-6)
    assert len(model.ids) == 20


@RUNS
def test_a_frozen_stream_is_gone_on_with(here, version):
    shutil.copytree(FROZEN / version / "stream.run", "stream.model.run")
    Path("more.svm").write_text("1 1:1 77:1\n-1 2:1\n")
    model, report = sbm.stream(["more.svm"], "stream.model", resume=True)
    assert report["rows"] == 42
    assert report["features"] == 21
    assert model.ids.tolist() == [
        1, 5, 8, 9, 12, 20, 2, 4, 6, 7, 11, 13, 14, 16, 17, 18, 3, 10, 15, 19, 77
    ]  # fmt: skip


def test_frozen_models_of_the_runs_hold_their_weights():
    for version in ("runs-v1", "runs-v2"):
        model = sbm.Model.load(FROZEN / version / "lists.model")
        assert float(np.abs(model.W).sum()) == pytest.approx(11.096553544182704, rel=1e-14)
        assert model.labels == [-1.0, 1.0]


def test_a_frozen_store_with_checksums_of_its_files_holds_its_rows():
    folder = FROZEN / "v2-checksums" / "ones.sbm"
    assert store_rows(folder) == store_rows(FROZEN / "v2" / "ones.sbm")
    assert sbm.check(folder)["rows"] == 6
    manifest = read_manifest(folder)
    assert all("crc32" in entry for entry in manifest["blocks"])
    assert all("features_crc32" in entry for entry in manifest["generations"])


# ---------------------------------------------------------------------------------- newer files

NEWER = "use the program that wrote it, or a newer one"


@pytest.mark.parametrize(
    "name",
    ["v2-checksums/ones.sbm/block-000000.sbb", "v2-checksums/ones.sbm/index-0000.sba",
     "v2-checksums/ones.sbm/features-0000.sba", "runs-v2/dense.run/alpha-00000.000010.sba",
     "runs-v2/dense.run/state-000012.sba", "runs-v2/lists.model", "models-v1/binary.model"],
)  # fmt: skip
def test_a_container_of_a_newer_version_is_refused(tmp_path, name):
    data = bytearray((FROZEN / name).read_bytes())
    data[8:12] = (2).to_bytes(4, "little")
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(StoreError) as caught:
        container.read(path, "whatever it is")
    assert str(caught.value) == (
        f"{path} has format version 2, this program reads version 1; {NEWER}"
    )


def test_a_store_of_a_newer_version_is_refused(tmp_path):
    shutil.copytree(FROZEN / "v2-checksums" / "ones.sbm", tmp_path / "s.sbm")
    write_manifest(tmp_path / "s.sbm", {**read_manifest(tmp_path / "s.sbm"), "version": 3})
    for call in (sbm.info, sbm.check, read_manifest):
        with pytest.raises(StoreError) as caught:
            call(tmp_path / "s.sbm")
        assert str(caught.value) == (
            f"{tmp_path / 's.sbm'} has store version 3, this program reads versions 1 and 2; "
            f"{NEWER}"
        )


def test_a_run_of_a_newer_version_is_refused(tmp_path):
    shutil.copytree(FROZEN / "runs-v2" / "dense.run", tmp_path / "d.run")
    path = tmp_path / "d.run" / "run.json"
    path.write_bytes(encode_record("run", {**Run.read(tmp_path / "d.run"), "version": 3}))
    with pytest.raises(StoreError) as caught:
        sbm.info(tmp_path / "d.run")
    assert str(caught.value) == (
        f"{path} has version 3, this program reads runs of versions 1 and 2; {NEWER}"
    )


# ----------------------------------------------------------------------- fields that are not known


def rewritten(path: Path, change: Any) -> None:
    """Change the header of a container, and its checksum with it."""
    data = path.read_bytes()
    end = container.HEAD + int.from_bytes(data[12:16], "little")
    header = json.loads(data[container.HEAD : end])
    change(header)
    text = json.dumps(header).encode()
    numbers = (1, len(text), zlib.crc32(text))
    path.write_bytes(
        data[:8] + b"".join(n.to_bytes(4, "little") for n in numbers) + text + data[end:]
    )


def header_of(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return json.loads(data[container.HEAD : container.HEAD + int.from_bytes(data[12:16], "little")])


def add_fields(header: dict[str, Any]) -> None:
    header["written_by"] = "sbm 9"
    header["arrays"][0]["unit"] = ["m", 1]
    header["meta"]["notes"] = {"a": 1}
    header["meta"].setdefault("info", {})["mood"] = "good"


@pytest.mark.parametrize("name", ["models-v1/multi.model", "runs-v2/lists.model"])
def test_fields_of_a_model_that_are_not_known_are_kept(tmp_path, name):
    path, again, pruned = tmp_path / "m.model", tmp_path / "again.model", tmp_path / "p.sbm.model"
    path.write_bytes((FROZEN / name).read_bytes())
    rewritten(path, add_fields)
    sbm.Model.load(path).save(again)
    sbm.export(path, pruned, format="sbm", prune=0.2)
    for written in (again, pruned):
        header = header_of(written)
        assert header["written_by"] == "sbm 9"
        assert [entry.get("unit") for entry in header["arrays"] if entry["name"] == "ids"] == [
            ["m", 1]
        ]
        assert header["meta"]["notes"] == {"a": 1}
        assert header["meta"]["info"]["mood"] == "good"
    assert sbm.info(pruned)["pruned"] == 0.2


def test_arrays_of_a_model_that_are_not_known_are_passed_over(tmp_path):
    path = tmp_path / "m.model"
    file = container.read(FROZEN / "runs-v2" / "lists.model", "model")
    container.write(path, "model", {**file.arrays, "more": np.zeros((3, 3))}, file.meta)
    model = sbm.Model.load(path)
    np.testing.assert_array_equal(model.W, file.arrays["W"])
    model.save(path)
    assert "more" not in container.read(path, "model").arrays


def test_containers_with_fields_that_are_not_known_are_read(tmp_path):
    folder = tmp_path / "ones.sbm"
    shutil.copytree(FROZEN / "v2" / "ones.sbm", folder)  # its manifest notes no checksums of files
    for name in ("index-0000.sba", "features-0001.sba"):
        rewritten(folder / name, add_fields)
    file = container.read(folder / "features-0001.sba", "features")
    assert file.unknown == container.Unknown({"written_by": "sbm 9"}, {"ids": {"unit": ["m", 1]}})
    assert sbm.check(folder)["rows"] == 6


def test_fields_of_a_manifest_that_are_not_known_are_kept(tmp_path):
    folder = tmp_path / "ones.sbm"
    shutil.copytree(FROZEN / "v2-checksums" / "ones.sbm", folder)
    manifest = read_manifest(folder)
    new = {"of a newer program": [1, {"x": None}]}
    parts = [
        lambda m: m, lambda m: m["labels"], lambda m: m["blocks"][0],
        lambda m: m["generations"][0], lambda m: m["generations"][0]["sources"][0],
        lambda m: m["generations"][0]["options"],
    ]  # fmt: skip
    for part in parts:
        part(manifest).update(new)
    write_manifest(folder, manifest)
    (tmp_path / "new.svm").write_text("1 5:1\n")
    sbm.split([tmp_path / "new.svm"], folder, append=True, threads=1)
    sbm.expire(folder, sources=["more.svm"])
    after = read_manifest(folder)
    assert "expired" in after["generations"][1]
    assert all(new.items() <= part(after).items() for part in parts)
    assert sbm.info(folder)["sources"][0]["of a newer program"] == [1, {"x": None}]
    sbm.expire(folder, sources=["ones.svm"])
    assert new.items() <= read_manifest(folder)["generations"][0]["expired"]["blocks"][0].items()
