"""Rows in memory: training on text gives the bytes of split and train, wherever blocks are."""

import errno
import gzip
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from families import Case, make_store
from helpers import write_rows
from inside import (
    BlockWriter,
    DecodedChunks,
    Filling,
    Limit,
    MemoryPlan,
    interpreter_bytes,
    main,
    patch,
    read_manifest,
    train_ranks,
)
from inside import engine_memory_module as memory
from inside import store_blocks_module as blocks
from inside import store_files_module as files
from processes import finished, started, wait_until
from threads import in_threads

import sbm
from sbm.errors import StoreError

HINGE = Case("hinge", 2)
CASES = [
    Case("hinge", 2, {"calibrate": True, "bias": 1.0}, "-calibrate"),
    Case("squared_hinge", 3, {"cache_frac": 0.0}, "-none"),
    Case("log_loss", 2, {"policy": "mixed"}), Case("crammer_singer", 3, {"bias": 1.0}),
    Case("weston_watkins", 3), Case("epsilon_insensitive", 0), Case("one_class", 1, {"nu": 0.2}),
    Case("log_loss", 3, {"penalty": "l1", "bias": 1.0}, "-l1"),
]  # fmt: skip
# Which blocks stay decoded.
STAYING: dict[str, Callable[[list[int]], list[int]]] = {
    "none": lambda own: [], "first": lambda own: own[:1], "second": lambda own: own[1::2],
    "all": list,
}  # fmt: skip
MEM = "400MB"


def settings_of(case: Case = HINGE, **more: Any) -> dict[str, Any]:
    return {"tol": 1e-5, "max_passes": 5, "mem": MEM, **case.at(1.0), **more}


def model_of(data: Any, path: Path, settings: dict[str, Any] | None = None, **how: Any) -> bytes:
    """Train from the start and return the bytes of the model; nothing else may be left."""
    sbm.train(data, path, settings or settings_of(), resume=False, **how)
    assert not list(path.parent.glob(f"{path.name}.rows*"))
    return path.read_bytes()


def text_of(folder: Path, case: Case = HINGE, n: int = 150, name: str = "t.svm") -> Path:
    return write_rows(folder / name, *case.rows(0, n))


@pytest.fixture
def stay(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Choose the blocks that stay decoded."""

    def choose(which: str) -> None:
        chosen = STAYING[which]
        monkeypatch.setattr(MemoryPlan, "staying", lambda self, own, more=0: chosen(list(own)))

    return choose


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 40 nonzeros, batches of 100, and blocks that are loaded in two parts."""
    patch(monkeypatch, "CHUNK_NNZ", 40)
    patch(monkeypatch, "LARGEST_BATCH", 800)
    patch(monkeypatch, "_OBJECTS", 0)
    cut = memory._cut_block
    patch(monkeypatch, "_cut_block", lambda chunks, cuts: cut(chunks, max(2, cuts)))


def spill_above(monkeypatch: pytest.MonkeyPatch, room: int) -> list[int]:
    """Leave this room for rows while text is read; return the list of blocks that are spilled."""
    spilled: list[int] = []
    spill = BlockWriter.spill

    def noted(self: BlockWriter, block: int, numbers: Any = None) -> None:
        spilled.extend([block] if numbers is None else [-1] * len(list(numbers)))
        spill(self, block, numbers)

    monkeypatch.setattr(BlockWriter, "spill", noted)
    patch(monkeypatch, "room_for_rows", lambda ids, options, names: room)
    return spilled


# ------------------------------------------------------------------------------ where blocks are


@pytest.mark.long
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_model_does_not_depend_on_staying_blocks(tmp_path, stay, case):
    X, y = case.rows(0, 90)
    store = make_store(tmp_path, X, y, blocks=3)
    for night in range(3):  # small blocks, which are joined
        part = write_rows(tmp_path / f"{night}.svm", *case.rows(night + 1, 12))
        sbm.split([part], store, append=True, blocks=1)
    lines = [tmp_path / "d.svm", *(tmp_path / f"{night}.svm" for night in range(3))]
    weights = tmp_path / "weights.txt"
    weights.write_text("".join(f"{0.5 + k % 3}\n" for k in range(126)))
    settings, found = settings_of(case, weights=str(weights)), {"store": set(), "text": set()}
    if case.loss in ("crammer_singer", "weston_watkins"):
        settings["solver"] = "dual"  # the other one needs all blocks to stay
    for which in STAYING:
        stay(which)
        found["store"].add(model_of(store, tmp_path / "m.model", settings))
        if which in ("first", "all"):
            found["text"].add(model_of(lines, tmp_path / "m.model", settings, blocks=4))
    assert [len(models) for models in found.values()] == [1, 1]


@pytest.mark.long
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("room", [10**9, 3000, 800, 0])
def test_spilled_rows_train_and_store_alike(tmp_path, monkeypatch, stay, room):
    text = text_of(tmp_path)
    sbm.split(text, tmp_path / "split.sbm", mem=MEM, blocks=4)
    expected = model_of(tmp_path / "split.sbm", tmp_path / "s.model")
    spilled = spill_above(monkeypatch, room)
    for which in ("all", "second", "none"):
        stay(which)
        assert model_of(text, tmp_path / "t.model", blocks=4) == expected
        kept = tmp_path / f"{which}.sbm"
        assert model_of(text, tmp_path / "t.model", blocks=4, keep_store=kept) == expected
        assert contents(kept) == contents(tmp_path / "split.sbm")
    assert (max(spilled) >= 0) == (room < 10**9)  # while reading
    assert (-1 in spilled) == (room > 800)  # before the first pass


def contents(store: Path) -> dict[str, Any]:
    """Return the files of a store, without the time in the manifest."""
    found: dict[str, Any] = {path.name: path.read_bytes() for path in store.iterdir()}
    manifest = read_manifest(store)
    del found["manifest.json"]
    for generation in manifest["generations"]:
        del generation["added"]
    return found | {"manifest": manifest}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_chunks_keep_their_rows_when_others_go(dtype):
    chunks, random = DecodedChunks(799, dtype), np.random.default_rng(0)
    rows = {k: random.integers(0, 9, (5, k)).cumsum(axis=1) + np.arange(k) for k in range(30, 35)}

    def add(k: int, values: np.ndarray | None) -> Any:
        made = blocks.Rows(
            np.arange(5) * k, np.full(5, k, np.int32), rows[k].ravel().astype(np.int32), values,
            np.zeros(5, np.int32),
        )  # fmt: skip
        if values is not None:
            chunks.have_values()
        codes = {"codes": np.zeros(5, np.uint8)}
        return chunks.gather(k, 0, made, np.arange(5), made.lengths, codes)

    for k in (30, 31, 32):
        add(k, None)
    chunks.drop(31, 0)
    assert 0 <= chunks.nbytes() - (4 * 5 * 62 + 2 * 5 * 5) < 2 * 2000
    assert add(33, np.arange(165).astype(dtype)) is not None
    assert add(34, np.arange(170).astype(dtype)) is None  # no room, before the gap is closed
    chunks.close_up()
    assert chunks.used == chunks.nnz == 5 * (30 + 32 + 33)
    assert add(34, np.arange(170).astype(dtype)) is not None
    arena = chunks.arena()
    for k in (30, 32, 33, 34):
        chunk = chunks.get(k, 0)
        assert chunk.indices.tolist() == rows[k].ravel().tolist()
        assert arena.indices[chunk.place].tolist() == chunk.indices.tolist()
        expected = np.arange(5 * k) if k > 32 else np.ones(5 * k)
        assert arena.values[chunk.place].tolist() == expected.tolist()


# ---------------------------------------------------------------------------- every kind of input


def _lines(rows: list[str]) -> Callable[[Path], tuple[Any, dict[str, Any]]]:
    def write(folder: Path) -> tuple[Any, dict[str, Any]]:
        (folder / "in.svm").write_text("".join(f"{row}\n" for row in rows))
        return folder / "in.svm", {}

    return write


def _libsvm(folder: Path) -> tuple[Any, dict[str, Any]]:
    return text_of(folder), {}


def _packed_and_plain(folder: Path) -> tuple[Any, dict[str, Any]]:
    text = text_of(folder).read_bytes()
    (folder / "a.svm.gz").write_bytes(gzip.compress(text))
    return [str(folder / "*.gz"), text_of(folder, n=30, name="b.svm")], {}


def _csv(folder: Path) -> tuple[Any, dict[str, Any]]:
    lines = [f"{k % 2},{k % 7},{'abc'[k % 3]},{k}" for k in range(120)]
    (folder / "in.csv").write_text("\n".join(["p,q,r,s", *lines]))
    return folder / "in.csv", {"label": "p", "categorical": ["s"]}


def _vw(folder: Path) -> tuple[Any, dict[str, Any]]:
    text = "".join(f"{2 * (k % 2) - 1} |x a:{k % 5}.5 w{k % 7} |y b\n" for k in range(120))
    (folder / "in.txt").write_text(text)
    return folder / "in.txt", {"format": "vw"}


def _npz(folder: Path) -> tuple[Any, dict[str, Any]]:
    X, y = HINGE.rows(0, 120)
    sparse = scipy.sparse.csr_matrix(X)
    np.savez(folder / "in.npz", data=sparse.data, indices=sparse.indices, indptr=sparse.indptr, y=y)
    return folder / "in.npz", {}


def _matrices(folder: Path) -> tuple[Any, dict[str, Any]]:
    X, y = HINGE.rows(0, 120)
    return [(X[:50], y[:50]), (scipy.sparse.csr_matrix(X[50:]), y[50:])], {"name": "mine"}


ODD = [f"{k % 2} {k % 5 + 1}:1 {k % 7 + 9}:1" for k in range(200)]
INPUTS: dict[str, Any] = {
    "libsvm": _libsvm, "packed": _packed_and_plain, "csv": _csv, "vw": _vw, "npz": _npz,
    "matrices": _matrices, "late values": _lines([*ODD, "1 3:0.5 4:2", *ODD[:40]]),
    "few rows": _lines(ODD[:3]), "empty rows": _lines(["1", *ODD[:60], "0", "1"]),
    "long row": _lines([*ODD[:9], "1 " + " ".join(f"{k}:{k % 9}.5" for k in range(999, 0, -1))]),
}  # fmt: skip
READING = [  # room for rows, and how to read
    (10**9, {}), (600, {}), (600, {"min_count": 9}), (600, {"dtype": "float64"}),
    (10**9, {"on_error": "skip", "blocks": 7}),
]  # fmt: skip


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("room", "how"), READING, ids=str)
@pytest.mark.parametrize("kind", INPUTS)
def test_text_trains_like_its_store(tmp_path, monkeypatch, kind, room, how):
    spill_above(monkeypatch, room)
    data, options = INPUTS[kind](tmp_path)
    options = {"blocks": 4, **options, **how}
    sbm.split(data, tmp_path / "in.sbm", mem=MEM, **options)
    expected = model_of(tmp_path / "in.sbm", tmp_path / "s.model")
    assert model_of(data, tmp_path / "t.model", **options) == expected


def test_rows_in_memory_keep_a_limit_of_the_system(tmp_path, monkeypatch):
    found, free = [], interpreter_bytes()

    def noted(folder, shown, sources, options, append, progress, decoded, *others):
        found.append((options.mem - free, decoded.capacity))
        return Filling(folder, shown, sources, options, append, progress, decoded, *others)

    patch(monkeypatch, "fill.Filling", noted)
    text, _ = _lines(ODD)(tmp_path)
    for size in (10**12, free + 1_000_000_000):
        patch(monkeypatch, "fill.system_limit", lambda size=size: Limit(size, "ulimit -v"))
        model_of(text, tmp_path / f"{size}.model", {"mem": free + 1_500_000_000})
    assert found == [(1_500_000_000, 375_000_000), (1_000_000_000, 250_000_000)]


@pytest.mark.long
@pytest.mark.parametrize("room", [10**9, 10**5])
def test_labels_that_turn_real_while_reading(tmp_path, monkeypatch, room):
    patch(monkeypatch, "LARGEST_BATCH", 10**6)
    spill_above(monkeypatch, room)
    rows = [f"{k / 8 if k < 66_000 else k % 9} {k % 3 + 1}:{k % 11}" for k in range(70_000)]
    text, _ = _lines(rows)(tmp_path)
    settings = {"loss": "squared_error", "mem": MEM, "max_passes": 1, "C": 1e-3}
    sbm.split(text, tmp_path / "in.sbm", mem=MEM)
    expected = model_of(tmp_path / "in.sbm", tmp_path / "s.model", settings)
    assert model_of(text, tmp_path / "t.model", settings) == expected


def test_other_reading_is_other_data(tmp_path):
    text, path = text_of(tmp_path), tmp_path / "m.model"
    for how in ({}, {"dtype": "float64"}, {"blocks": 2}, {"min_count": 2}):
        finished = [
            sbm.train(text, path, settings_of(tol=0.5), on_error="skip", **how)[1]["was_finished"]
            for _ in range(2)
        ]
        assert finished == [False, True]


# ------------------------------------------------------------------------- stops, errors, resume


class Stop:
    """Asks to stop when asked for the n-th time."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


@pytest.mark.long
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("room", [10**9, 600])
def test_stopped_at_any_point_resumes(tmp_path, monkeypatch, room):
    spill_above(monkeypatch, room)
    text, path = text_of(tmp_path), tmp_path / "m.model"
    expected = model_of(text, tmp_path / "whole.model", blocks=3)
    seen = set()
    for n in range(1000):
        stop = Stop(n)
        try:
            report = sbm.train(text, path, settings_of(), is_stopped=stop, blocks=3)[1]
        except KeyboardInterrupt:
            seen.add((tmp_path / "m.model.run" / "run.json").exists())
            assert not list(tmp_path.glob("m.model.rows*"))
        else:
            break
    assert seen == {False, True}  # while reading, and later
    assert report["resumed"]
    assert path.read_bytes() == expected
    assert sbm.train(text, path, settings_of(), blocks=3)[1]["was_finished"]


def test_changed_text_is_other_data(tmp_path):
    text, path = text_of(tmp_path), tmp_path / "m.model"
    with pytest.raises(KeyboardInterrupt):
        sbm.train(text, path, settings_of(tol=1e-9), is_stopped=Stop(6), blocks=3)
    text.write_text(text.read_text() + "7 1:1\n")
    with pytest.raises(StoreError, match="resume=False") as caught:
        sbm.train(text, path, settings_of(tol=1e-9), blocks=3)
    assert str(tmp_path / "m.model.rows") not in str(caught.value)
    assert "--warm-start" not in str(caught.value)  # which would be refused
    assert not list(tmp_path.glob("m.model.rows*"))


def test_bad_line_and_full_disk_leave_nothing(tmp_path, monkeypatch, capsys):
    text, path = text_of(tmp_path), tmp_path / "m.model"
    spill_above(monkeypatch, 0)
    before = sorted(p.name for p in tmp_path.iterdir())

    def fail(self: BlockWriter, block: int, data: Any) -> int:
        raise files.write_error(Path("x"), OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    with monkeypatch.context() as context:
        context.setattr(BlockWriter, "_append", fail)
        for how in ({}, {"keep_store": tmp_path / "kept.sbm"}):
            with pytest.raises(StoreError, match="No space left"):
                sbm.train(text, path, settings_of(), **how)
            assert sorted(p.name for p in tmp_path.iterdir()) == before
    text.write_text(text.read_text() + "1 1:x\n")
    for how, code in ([], 1), (["--on-error", "skip", "--max-passes", "99"], 0):
        with pytest.raises(SystemExit) as ended:
            main(["train", "-q", str(text), "-o", str(path), *how])
        assert ended.value.code == code
        assert "t.svm:151" in capsys.readouterr().err
        assert not list(tmp_path.glob("m.model.rows*"))


def test_memory_that_runs_out_starts_reading_over(tmp_path, monkeypatch):
    text, tries, gather = text_of(tmp_path), [0], DecodedChunks.gather
    patch(monkeypatch, "CHUNK_NNZ", 40)

    def gather_once(self: DecodedChunks, *args: Any) -> Any:
        tries[0] += 1
        if tries[0] == 5:
            raise MemoryError
        return gather(self, *args)

    expected = model_of(text, tmp_path / "a.model", blocks=4)
    monkeypatch.setattr(DecodedChunks, "gather", gather_once)
    assert model_of(text, tmp_path / "b.model", blocks=4) == expected


@pytest.mark.process
def test_killed_anywhere_resumes_from_text(tmp_path):
    text = text_of(tmp_path, n=40_000)
    line = [sys.executable, "-m", "sbm", "train", text.name, "--mem", MEM, "--tol", "1e-300",
            "--blocks", "4", "--solver", "dual", "--max-passes", "30",
            "--checkpoint-every", "0.001s"]  # fmt: skip
    where: dict[str, Any] = {"cwd": tmp_path}
    finished([*line, "-o", "whole.model"], **where)
    path, run = tmp_path / "m.model", tmp_path / "m.model.run" / "run.json"
    from_pipe = ["-" if word == text.name else word for word in line]
    with started([*from_pipe, "-o", path], **where, stdin=subprocess.PIPE) as one:
        one.stdin.write(text.read_bytes()[: text.stat().st_size // 2])  # and it stays open
        one.stdin.flush()
        wait_until((tmp_path / "m.model.rows.partial").exists, one)
        one.send_signal(signal.SIGKILL)
    for command, is_there in (
        (line, run.exists),
        (from_pipe, lambda: len(list(run.parent.iterdir())) > 6),
    ):
        with text.open("rb") as stdin, started([*command, "-o", path], **where, stdin=stdin) as one:
            wait_until(is_there, one)
            one.send_signal(signal.SIGKILL)
    done = finished([*line, "-o", path], **where)
    assert done.returncode == 3
    assert "resuming" in done.stderr
    assert path.read_bytes() == (tmp_path / "whole.model").read_bytes()
    assert not list(tmp_path.glob("m.model.rows*"))


# --------------------------------------------------------------------------- ranks and other uses


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("case", [HINGE, Case("squared_hinge", 3)], ids=str)
def test_ranks_read_text_like_their_store(tmp_path, case):
    text = text_of(tmp_path, case)
    sbm.split(text, tmp_path / "d.sbm", mem=MEM)
    found = []
    for k, data in enumerate((tmp_path / "d.sbm", text)):
        path = tmp_path / f"{k}.model"
        in_threads(2, lambda comm, d=data, p=path: train_ranks(comm, d, p, settings_of(case)))
        found.append(path.read_bytes())
        assert not list(tmp_path.glob("*.rows*"))
    assert found[0] == found[1]


def test_warm_start_between_text_and_its_store(tmp_path):
    text, store, path = text_of(tmp_path), tmp_path / "d.sbm", tmp_path / "m.model"
    sbm.split(text, store, mem=MEM, level=9)  # the same rows in other bytes

    def updates(data: Path, C: float, is_warm: bool = True, **how: Any) -> int:
        warm = {"warm_start": True} if is_warm else {}
        settings = settings_of(HINGE, tol=1e-3, max_passes=99, **warm) | {"C": C}
        report = sbm.train(data, path, settings, **how)[1]
        assert report["converged"]
        return int(report["updates"])

    first = updates(text, 1.0, is_warm=False)
    for k, data in enumerate((text, store, text)):
        assert updates(data, 1.1 + k / 10) < first / 2
    with pytest.raises(StoreError, match=r"the same rows in other blocks.*leave out warm_start"):
        updates(text, 2.0, blocks=5)
    sbm.split([text_of(tmp_path, n=9, name="more.svm")], store, append=True)
    assert updates(store, 1.3) < first * 2 / 3
    with pytest.raises(StoreError, match=r"other data than .*t\.svm.*leave out warm_start"):
        updates(text, 1.6)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kept", [None, "k.sbm"])
def test_bytes_read_are_those_on_disk(tmp_path, stay, kept):
    text, keep = text_of(tmp_path), None if kept is None else tmp_path / kept
    sbm.split(text, tmp_path / "d.sbm", mem=MEM, blocks=4)
    settings = settings_of(max_passes=1, cache_frac=0.0)
    of_store = {}
    for which in ("all", "none"):  # decided before the first pass
        stay(which)
        of_store[which] = sbm.train(tmp_path / "d.sbm", tmp_path / f"{which}.model", settings)[1]
    stay("none")
    read = sbm.train(text, tmp_path / "t.model", settings, blocks=4, keep_store=keep)[1]
    assert read["bytes_read"] == of_store["none"]["bytes_read"] > of_store["all"]["bytes_read"]
    stay("all")
    model = tmp_path / "u.model"
    read = sbm.train(text, model, settings, blocks=4, keep_store=keep)[1]
    assert read["bytes_read"] == 0


def test_kept_store_is_in_place_when_text_is_read(tmp_path):
    text, kept, path = text_of(tmp_path), tmp_path / "kept.sbm", tmp_path / "m.model"
    expected = model_of(text, tmp_path / "whole.model", blocks=3)
    stop = Stop(3)
    with pytest.raises(KeyboardInterrupt):
        sbm.train(text, path, settings_of(), is_stopped=stop, blocks=3, keep_store=kept)
    assert (tmp_path / "m.model.run" / "run.json").exists()
    before = contents(kept)
    for is_finished in (False, True):  # the same command
        report = sbm.train(text, path, settings_of(), blocks=3, keep_store=kept)[1]
        assert (report["resumed"], report["was_finished"]) == (True, is_finished)
        assert report["read"]["bytes"] == sbm.info(kept)["bytes"]
    assert path.read_bytes() == expected
    assert sbm.train(kept, path, settings_of())[1]["was_finished"]
    for data, n in ((text, 4), (text_of(tmp_path, n=9, name="more.svm"), 3)):
        with pytest.raises(StoreError, match="name another with keep_store"):
            sbm.train(data, tmp_path / "u.model", settings_of(), blocks=n, keep_store=kept)
    assert contents(kept) == before
    assert not list(tmp_path.glob("*.rows*"))


def test_unfinished_training_on_text_resumes_on_its_store(tmp_path):
    text, store, path = text_of(tmp_path), tmp_path / "d.sbm", tmp_path / "m.model"
    sbm.split(text, store, mem=MEM)
    expected = model_of(store, tmp_path / "whole.model")
    with pytest.raises(KeyboardInterrupt):
        sbm.train(text, path, settings_of(), is_stopped=Stop(3))
    assert sbm.train(store, path, settings_of())[1]["resumed"]
    assert path.read_bytes() == expected
    assert sbm.train(text, path, settings_of())[1]["was_finished"]
