"""What a command must never do to files that are not its own."""

import gzip
import sys
from pathlib import Path

import pytest
from processes import finished

import sbm
from sbm.errors import DataError, SettingsError, StoreError
from sbm.store.blocks import BlockStore

TEXT = "".join(f"{label} {k}:1 {k + 5}:0.5\n" for k in range(1, 40) for label in ("+1", "-1"))


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.svm").write_text(TEXT)
    sbm.split(["a.svm"], blocks=2)
    return tmp_path


def test_split_keeps_its_hands_off_folders_that_look_like_its_own(here):
    Path("b.sbm.old").mkdir()
    Path("b.sbm.old/backup").write_text("mine")
    Path("a.sbm.partial").mkdir()
    Path("a.sbm.partial/thesis.txt").write_text("mine")
    sbm.split(["a.svm"], "b.sbm")
    sbm.split(["a.svm"], "b.sbm", force=True)
    assert Path("b.sbm.old/backup").read_text() == "mine"
    with pytest.raises(StoreError) as error:
        sbm.split(["a.svm"], "a.sbm", force=True)
    assert str(error.value) == (
        "a.sbm.partial is in the way and holds other files; move it elsewhere"
    )
    assert Path("a.sbm.partial/thesis.txt").read_text() == "mine"
    assert sorted(p.name for p in here.iterdir()) == [
        "a.sbm", "a.sbm.partial", "a.svm", "b.sbm", "b.sbm.old",
    ]  # fmt: skip


def test_what_a_killed_split_left_is_taken_over(here):
    Path("c.sbm.partial").mkdir()
    Path("c.sbm.partial/block-000000.sbb").write_bytes(b"half a chunk")
    sbm.split(["a.svm"], "c.sbm")
    assert sbm.check("c.sbm")["rows"] == 78
    assert not Path("c.sbm.partial").exists()


def test_a_store_that_a_killed_split_put_aside_comes_back(here):
    Path("a.sbm").rename("a.sbm.replaced")
    sbm.split(["a.svm"], "a.sbm", force=True, blocks=3)
    assert sbm.info("a.sbm")["blocks"] == 3
    with pytest.raises(StoreError, match=r"a\.sbm exists; add to it"):
        sbm.split(["a.svm"], "a.sbm")
    Path("a.sbm").rename("a.sbm.replaced")
    with pytest.raises(StoreError, match=r"a\.sbm exists; add to it"):
        sbm.split(["a.svm"], "a.sbm")
    assert sorted(p.name for p in here.iterdir()) == ["a.sbm", "a.svm"]


def test_an_append_removes_what_a_killed_append_left(here):
    Path("a.sbm/block-000077.sbb").write_bytes(b"half a chunk")
    Path("a.sbm/notes.txt").write_text("mine")
    Path("n.svm").write_text("+1 3:1\n")
    sbm.split(["n.svm"], "a.sbm", append=True)
    assert not Path("a.sbm/block-000077.sbb").exists()
    assert Path("a.sbm/notes.txt").read_text() == "mine"
    assert sbm.check("a.sbm")["rows"] == 79


@pytest.mark.parametrize("output", ["a.svm", "a.model"])
def test_predictions_never_replace_what_they_are_made_from(here, output):
    sbm.train("a.sbm")
    before = Path(output).read_bytes()
    with pytest.raises(SettingsError) as error:
        sbm.predict("a.model", "a.svm", output)
    assert str(error.value) == f"the output {output} would replace an input; choose another name"
    assert Path(output).read_bytes() == before


def test_a_model_never_replaces_something_else(here):
    for output, reason in (
        ("a.svm", "a.svm exists and is no model; choose another name with -o"),
        ("a.sbm", "a.sbm is a folder; give a file name for the model with -o"),
        ("no/m", "no is no folder; make it, or choose another place with -o"),
    ):
        with pytest.raises(StoreError) as error:
            sbm.train("a.sbm", output)
        assert str(error.value) == reason
        assert not Path(f"{output}.run").exists()
    assert Path("a.svm").read_text() == TEXT
    sbm.train("a.sbm")
    sbm.train("a.sbm", settings=sbm.Settings(C=2.0))  # a model gives way to the next one
    assert sbm.Model.load("a.model").info["C"] == 2.0


def test_a_store_in_use_is_not_replaced(here):
    with (
        BlockStore("a.sbm").in_use(),
        pytest.raises(StoreError, match=r"^the store a\.sbm is in use by another sbm process"),
    ):
        sbm.split(["a.svm"], "a.sbm", force=True)
    assert not Path("a.sbm.partial").exists()
    with BlockStore("a.sbm").in_use(), BlockStore("a.sbm").in_use():  # readers share
        pass
    sbm.split(["a.svm"], "a.sbm", force=True)


def test_compressed_data_that_does_not_say_so_is_noticed(here):
    Path("z.svm").write_bytes(gzip.compress(TEXT.encode()))
    with pytest.raises(DataError) as error:
        sbm.split(["z.svm"])
    assert str(error.value) == (
        "z.svm: found gzip data; decompress it on its way (zcat, zstdcat) or give a file name "
        "that ends in .gz, .bz2, .xz or .zst"
    )


def test_blocks_of_a_few_bytes_are_refused(here):
    with pytest.raises(SettingsError, match="block_size is 1; it must be at least 100kB"):
        sbm.split(["a.svm"], "b.sbm", block_size=1)


def test_a_pass_that_was_cut_short_gives_no_estimate(here):
    rows = []

    class Passes(sbm.jobs.progress.Progress):
        def row(self, record):
            rows.append(record)

    settings = sbm.Settings(time_limit=1e-9, tol=1e-12)
    sbm.train("a.sbm", settings=settings, progress=Passes())
    assert rows[0]["estimated_gap"] is None
    assert rows[0]["certificate"]["relative_gap"] > 1e-12


def test_an_error_of_the_system_is_a_sentence(here):
    name = "x" * 300
    line = [sys.executable, "-m", "sbm", "info", name]
    done = finished(line)
    assert done.returncode == 1
    advice = "see that it is there, that you may use it and that the disk is sound"
    assert done.stderr == f"sbm: {name}: File name too long; {advice}\n"
