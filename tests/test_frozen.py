"""Formats over time: old files stay readable and are reproduced byte for byte.

Newer versions are refused, and unknown fields are kept. ``frozen/v1`` was made by ``make``
below, with zstd 1.5.7. From the first release on, never make it again: a changed format gets a new
folder.
"""

import json
import shutil
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from helpers import Row, load_script, store_rows
from inside import Dense, Lists, Model, Run, encode_record, read_manifest, split, write_manifest
from inside import store_container_module as container

import sbm
from sbm.errors import StoreError

V1 = Path(__file__).resolve().parent / "frozen" / "v1"
# Rows of more than 127 nonzeros and gaps of more than 127, which take bits; large ids; no features.
FIRST: list[Row] = [
    (1.0, tuple((i * i, i / 8 + 0.125) for i in range(300))),
    (-1.0, ()),
    (-1.0, ((0, -0.1), (299**2, 1e300), (2**63 - 1, 3.0))),
    *((float(k % 3), ((k, 0.5), (k + 2**33, 1.0))) for k in range(30)),
]
SECOND: list[Row] = [(float(k), tuple((i, 1.0) for i in range(k, k + 3))) for k in range(10)]
WEIGHTS = np.outer([0.5, 0.0, -1e-300, 1 / 3], [1.0, 0.5, -2.0])
IDS = np.array([7, 0, 2**62, 3])
FREE = np.array([0.0, 0.1, 0.3, 0.1, -2.5])


def text(rows: list[Row]) -> str:
    return "".join(
        f"{y!r} " + " ".join(f"{i}:{v!r}" for i, v in features) + "\n" for y, features in rows
    )


def make(folder: Path) -> None:
    """Write a store, a run and models, with every kind of file they can have."""
    (folder / "first.svm").write_text(text(FIRST))
    (folder / "second.svm").write_text(text(SECOND))
    options: dict[str, Any] = {"dtype": "float64", "threads": 1}
    split(folder / "first.svm", folder / "s.sbm", blocks=3, seed=5, **options)
    split(
        folder / "second.svm", folder / "s.sbm", blocks=2, shuffle=False, append=True,
        new_labels=True, **options,
    )  # fmt: skip
    (folder / "s.sbm" / "lock").unlink()
    for name, lists_of, alpha in (
        ("dense", None, Dense(FREE)),
        ("lists", 3, Lists(np.array([0, 2, 2, 5]), np.array([0, 2, 0, 1, 2], np.int32), FREE)),
    ):
        with Run.create(folder / f"{name}.run", [3, len(alpha)], lists_of, [0.1]) as run:
            run.store(1, alpha)
            run.commit({"passes": 7}, {"W": WEIGHTS})
        (folder / f"{name}.run" / "lock").unlink()
    info = {"loss": "hinge", "certificate": {"gap": 0.25}, "converged": True}
    some = np.where(np.arange(3) == 1, WEIGHTS, 0.0)
    some[0, 0] = 1.5
    Model(IDS, WEIGHTS, [-1.0, 0.5, 7.0], 2.0, np.array([0.1, 0.0, 1.0]), info).save(
        folder / "dense.model"
    )
    Model(IDS, some, [-1.0, 0.5, 7.0], info=info).save(folder / "sparse.model")


def files_of(folder: Path) -> dict[str, Any]:
    """All files by name; records without their checksums and the time of a split."""
    found: dict[str, Any] = {}
    for path in folder.rglob("*.*"):
        if path.suffix == ".json":
            record = json.loads(path.read_text())
            record.pop("crc32")
            for generation in record.get("manifest", {}).get("generations", []):
                del generation["added"]
            found[str(path.relative_to(folder))] = record
        elif path.is_file():
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


@pytest.mark.skipif(zstandard.ZSTD_VERSION != (1, 5, 7), reason="another zstd, other bytes")
def test_frozen_files_are_reproduced(tmp_path):
    make(tmp_path)
    for path in tmp_path.glob("*.svm"):
        path.unlink()
    now, then = files_of(tmp_path), files_of(V1)
    del then["api.txt"]
    assert set(now) == set(then)
    assert [name for name in then if now[name] != then[name]] == []


def test_frozen_store_is_read():
    blocks = store_rows(V1 / "s.sbm")
    assert Counter(row for block in blocks[:3] for row in block) == Counter(FIRST)
    assert blocks[3:] == [SECOND[0::2], SECOND[1::2]]
    assert sbm.check(V1 / "s.sbm")["rows"] == len(FIRST) + len(SECOND)


def test_frozen_runs_and_models_are_read():
    for name, lists_of, rows in (("dense", None, 5), ("lists", 3, 3)):
        run, state = Run.reopen(V1 / f"{name}.run", [3, rows], lists_of)
        assert Run.read(V1 / f"{name}.run")["passes"] == 7
        assert (state["W"] == WEIGHTS).all()
        assert run.load(1).values.tolist() == FREE.tolist()
    dense, sparse = Model.load(V1 / "dense.model"), Model.load(V1 / "sparse.model")
    assert dense.ids.tolist() == [7, 2**62, 3]
    assert dense.zero_ids.tolist() == [0]
    assert (WEIGHTS[[0, 2, 3]] == dense.W).all()
    assert (dense.labels, dense.bias, dense.certificate) == ([-1.0, 0.5, 7.0], 2.0, {"gap": 0.25})
    assert dense.bias_weights.tolist() == [0.1, 0.0, 1.0]
    assert sparse.ids.tolist() == [7, 2**62, 3]
    assert sparse.W.tolist() == [[1.5, 0.25, 0], [0, -0.5e-300, 0], [0, 1 / 6, 0]]


def test_public_names_are_frozen():
    now, then = set(load_script("api").lines()), set((V1 / "api.txt").read_text().splitlines())
    advice = "if that is meant: python -m scripts.api -o tests/frozen/v1/api.txt"
    assert (now - then, then - now) == (set(), set()), advice


# ---------------------------------------------------------------------------------- newer files


@pytest.mark.parametrize(
    "name",
    ["s.sbm/block-000000.sbb", "s.sbm/features-0000.sba", "dense.run/state-000002.sba",
     "sparse.model"],
)  # fmt: skip
def test_newer_container_is_refused(name, tmp_path):
    data = bytearray((V1 / name).read_bytes())
    data[8:12] = (2).to_bytes(4, "little")
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(StoreError, match=f"{tmp_path}/x has format version 2"):
        container.read(tmp_path / "x", "whatever it is")


def test_newer_store_and_run_are_refused(tmp_path):
    store, run = tmp_path / "s.sbm", tmp_path / "d.run"
    shutil.copytree(V1 / "s.sbm", store)
    write_manifest(store, {**read_manifest(store), "version": 2})
    for call in (sbm.info, sbm.check, read_manifest):
        with pytest.raises(StoreError, match=r"s\.sbm has store version 2"):
            call(store)
    shutil.copytree(V1 / "dense.run", run)
    (run / "run.json").write_bytes(encode_record("run", {**Run.read(run), "version": 2}))
    with pytest.raises(StoreError, match=r"d\.run/run\.json has run version 2"):
        sbm.info(run)


# --------------------------------------------------------------------------------- unknown fields


def header_of(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the header of a container, and the rest."""
    end = container.HEAD + int.from_bytes(data[12:16], "little")
    return json.loads(data[container.HEAD : end]), data[end:]


def add_fields(path: Path) -> None:
    """Add fields to the header of a container and update its checksum."""
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
    file = container.read(V1 / "dense.model", "model")
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
    folder, new = tmp_path / "s.sbm", {"of a newer program": [1, {"x": None}]}
    shutil.copytree(V1 / "s.sbm", folder)
    for name in ("index-0000.sba", "features-0001.sba"):
        add_fields(folder / name)
    manifest = read_manifest(folder)
    features = (folder / "features-0001.sba").read_bytes()
    manifest["generations"][1]["features_crc32"] = container.header_crc(features)
    parts = [
        lambda m: m, lambda m: m["labels"], lambda m: m["blocks"][0],
        lambda m: m["generations"][0], lambda m: m["generations"][0]["sources"][0],
        lambda m: m["generations"][0]["options"],
    ]  # fmt: skip
    for part in parts:
        part(manifest).update(new)
    write_manifest(folder, manifest)
    assert sbm.check(folder)["rows"] == len(FIRST) + len(SECOND)
    (tmp_path / "new.svm").write_text("1 5:1\n")
    sbm.split([tmp_path / "new.svm"], folder, append=True, threads=1)
    sbm.expire(folder, sources=["second.svm"])
    after = read_manifest(folder)
    assert "expired" in after["generations"][1]
    assert all(new.items() <= part(after).items() for part in parts)
    assert new.items() <= sbm.info(folder)["sources"][0].items()
    sbm.expire(folder, sources=["first.svm"])
    assert new.items() <= read_manifest(folder)["generations"][0]["expired"]["blocks"][0].items()
