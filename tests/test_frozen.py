"""Files of today's formats stay readable, and are written to the same bytes.

``frozen/now`` was made once by ``make`` below, with zstd 1.5.7. Never make it anew: a change of a
format gets a folder of its own.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from helpers import Row, slow_parse, store_rows

import sbm
from sbm.alphas import Dense, Lists
from sbm.jobs.split import split
from sbm.store.model import Model
from sbm.store.run import Run

FROZEN = Path(__file__).resolve().parent / "frozen"
NOW = FROZEN / "now"
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
    split(folder / "second.svm", folder / "s.sbm", blocks=2, shuffle=False, append=True, **options)
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
            del record["crc32"]
            for generation in record.get("manifest", {}).get("generations", []):
                del generation["added"]
            found[str(path.relative_to(folder))] = record
        elif path.is_file():
            found[str(path.relative_to(folder))] = path.read_bytes()
    return found


@pytest.mark.skipif(zstandard.ZSTD_VERSION != (1, 5, 7), reason="another zstd, other bytes")
def test_frozen_files_are_written_again(tmp_path):
    make(tmp_path)
    for path in tmp_path.glob("*.svm"):
        path.unlink()
    now, then = files_of(tmp_path), files_of(NOW)
    assert set(now) == set(then)
    assert [name for name in then if now[name] != then[name]] == []


def test_frozen_store_holds_its_rows():
    blocks = store_rows(NOW / "s.sbm")
    assert Counter(row for block in blocks[:3] for row in block) == Counter(FIRST)
    assert blocks[3:] == [SECOND[0::2], SECOND[1::2]]
    assert sbm.check(NOW / "s.sbm")["rows"] == len(FIRST) + len(SECOND)


def test_frozen_runs_and_models_hold_their_numbers():
    for name, lists_of, rows in (("dense", None, 5), ("lists", 3, 3)):
        run, state = Run.reopen(NOW / f"{name}.run", [3, rows], lists_of)
        assert Run.read(NOW / f"{name}.run")["passes"] == 7
        assert (state["W"] == WEIGHTS).all()
        assert run.load(1).values.tolist() == FREE.tolist()
    dense, sparse = Model.load(NOW / "dense.model"), Model.load(NOW / "sparse.model")
    assert dense.ids.tolist() == [7, 2**62, 3]
    assert (WEIGHTS[[0, 2, 3]] == dense.W).all()
    assert (dense.labels, dense.bias, dense.certificate) == ([-1.0, 0.5, 7.0], 2.0, {"gap": 0.25})
    assert dense.bias_weights.tolist() == [0.1, 0.0, 1.0]
    assert sparse.ids.tolist() == [7, 2**62, 3]
    assert sparse.W.tolist() == [[1.5, 0.25, 0], [0, -0.5e-300, 0], [0, 1 / 6, 0]]


def test_files_of_older_versions_are_read():
    old = FROZEN / "v1"
    rows = slow_parse((old / "sample.svm").read_bytes() + (old / "odd.svm").read_bytes(), "float64")
    for version in ("v1", "v2"):
        assert store_rows(FROZEN / version / "double.sbm") == [rows[0][0::2], rows[0][1::2]]
        assert sbm.check(FROZEN / version / "single.sbm")["rows"] == 44
    ones = store_rows(FROZEN / "v1" / "ones.sbm")
    assert store_rows(FROZEN / "v2-checksums" / "ones.sbm") == ones
    multi = Model.load(FROZEN / "models-v1" / "multi.model")
    assert multi.ids.tolist() == [4, 1, 9, 2**62, 5]
    assert multi.W.tolist() == [[1, 0, -1 / 3], [0] * 3, [0] * 3, [0, 2.5, 0], [0, -0.125, 0]]
