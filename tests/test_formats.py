"""Formats over time: old files are read, newer ones refused, and unknown fields kept.

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


# ------------------------------------------------------------------------------------ old files


@RUNS
@pytest.mark.parametrize(
    ("name", "loss"), [("dense", "squared_hinge"), ("lists", "crammer_singer")]
)
def test_frozen_run_starts_a_training(version, name, loss, tmp_path):
    shutil.copytree(FROZEN / "runs-v1" / "sample.sbm", tmp_path / "sample.sbm")
    shutil.copytree(FROZEN / version / f"{name}.run", tmp_path / "old.run")
    gap = Run.read(tmp_path / "old.run")["certificate"]["relative_gap"]
    chosen = {"C": 0.5, "threads": 1, "mem": "300MB", "loss": loss, "tol": 1.01 * gap}
    chosen["warm_start"] = str(tmp_path / "old.run")
    _, report = sbm.train(tmp_path / "sample.sbm", tmp_path / "new.model", chosen)
    assert report["passes"] == 0  # it is as good as it was, and that is enough
    assert report["relative_gap"] == pytest.approx(gap, rel=1e-6)


@RUNS
def test_frozen_stream_resumes(version, tmp_path):
    shutil.copytree(FROZEN / version / "stream.run", tmp_path / "stream.model.run")
    (tmp_path / "more.svm").write_text("1 1:1 77:1\n-1 2:1\n")
    model, report = sbm.stream([tmp_path / "more.svm"], tmp_path / "stream.model", resume=True)
    assert (report["rows"], report["features"]) == (42, 21)
    assert sorted(model.ids.tolist()) == [*range(1, 21), 77]


def test_frozen_store_holds_its_rows():
    folder = FROZEN / "v2-checksums" / "ones.sbm"
    assert store_rows(folder) == store_rows(FROZEN / "v2" / "ones.sbm")
    assert sbm.check(folder)["rows"] == 6
    manifest = read_manifest(folder)
    assert all("crc32" in entry for entry in manifest["blocks"])
    assert all("features_crc32" in entry for entry in manifest["generations"])


# ---------------------------------------------------------------------------------- newer files


@pytest.mark.parametrize(
    "name",
    ["v2-checksums/ones.sbm/block-000000.sbb", "v2-checksums/ones.sbm/features-0000.sba",
     "runs-v2/dense.run/state-000012.sba", "runs-v2/lists.model"],
)  # fmt: skip
def test_newer_container_is_refused(name, tmp_path):
    data = bytearray((FROZEN / name).read_bytes())
    data[8:12] = (2).to_bytes(4, "little")
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(StoreError, match=f"{tmp_path}/x has format version 2"):
        container.read(tmp_path / "x", "whatever it is")


def test_newer_store_and_run_are_refused(tmp_path):
    store, run = tmp_path / "s.sbm", tmp_path / "d.run"
    shutil.copytree(FROZEN / "v2-checksums" / "ones.sbm", store)
    write_manifest(store, {**read_manifest(store), "version": 3})
    for call in (sbm.info, sbm.check, read_manifest):
        with pytest.raises(StoreError, match=r"s\.sbm has store version 3"):
            call(store)
    shutil.copytree(FROZEN / "runs-v2" / "dense.run", run)
    (run / "run.json").write_bytes(encode_record("run", {**Run.read(run), "version": 3}))
    with pytest.raises(StoreError, match=r"d\.run/run\.json has version 3"):
        sbm.info(run)


# --------------------------------------------------------------------------------- unknown fields


def header_of(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header of a container, and what is behind it."""
    end = container.HEAD + int.from_bytes(data[12:16], "little")
    return json.loads(data[container.HEAD : end]), data[end:]


def add_fields(path: Path) -> None:
    """Add fields to the header of a container, and mend its checksum."""
    header, rest = header_of(path.read_bytes())
    header["written_by"] = "sbm 9"
    header["arrays"][0]["unit"] = ["m", 1]
    header["meta"]["notes"] = {"a": 1}
    header["meta"].setdefault("info", {})["mood"] = "good"
    text = json.dumps(header).encode()
    numbers = (1, len(text), zlib.crc32(text))
    head = path.read_bytes()[:8] + b"".join(n.to_bytes(4, "little") for n in numbers)
    path.write_bytes(head + text + rest)


def test_unknown_fields_of_a_model_are_kept(tmp_path):
    path, again, pruned = tmp_path / "m.model", tmp_path / "again.model", tmp_path / "p.sbm.model"
    file = container.read(FROZEN / "runs-v2" / "lists.model", "model")
    container.write(path, "model", {**file.arrays, "more": np.zeros((3, 3))}, file.meta)
    add_fields(path)
    model = sbm.Model.load(path)
    np.testing.assert_array_equal(model.W, file.arrays["W"])
    model.save(again)
    sbm.export(path, pruned, format="sbm", prune=0.2)
    for written in (again, pruned):
        header, _ = header_of(written.read_bytes())
        units = {entry["name"]: entry.get("unit") for entry in header["arrays"]}
        assert units["ids"] == ["m", 1]
        assert "more" not in units
        assert header["written_by"] == "sbm 9"
        assert header["meta"]["notes"] == {"a": 1}
        assert header["meta"]["info"]["mood"] == "good"
    assert sbm.info(pruned)["pruned"] == 0.2


def test_unknown_fields_of_a_store_are_kept(tmp_path):
    folder, new = tmp_path / "ones.sbm", {"of a newer program": [1, {"x": None}]}
    shutil.copytree(FROZEN / "v2" / "ones.sbm", folder)  # its manifest notes no checksums of files
    for name in ("index-0000.sba", "features-0001.sba"):
        add_fields(folder / name)
    manifest = read_manifest(folder)
    parts = [
        lambda m: m, lambda m: m["labels"], lambda m: m["blocks"][0],
        lambda m: m["generations"][0], lambda m: m["generations"][0]["sources"][0],
        lambda m: m["generations"][0]["options"],
    ]  # fmt: skip
    for part in parts:
        part(manifest).update(new)
    write_manifest(folder, manifest)
    assert sbm.check(folder)["rows"] == 6
    (tmp_path / "new.svm").write_text("1 5:1\n")
    sbm.split([tmp_path / "new.svm"], folder, append=True, threads=1)
    sbm.expire(folder, sources=["more.svm"])
    after = read_manifest(folder)
    assert "expired" in after["generations"][1]
    assert all(new.items() <= part(after).items() for part in parts)
    assert new.items() <= sbm.info(folder)["sources"][0].items()
    sbm.expire(folder, sources=["ones.svm"])
    assert new.items() <= read_manifest(folder)["generations"][0]["expired"]["blocks"][0].items()
