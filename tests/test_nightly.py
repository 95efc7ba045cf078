"""scripts/nightly.sh: night after night on tiny data, exit codes, and what is left after each."""

import fcntl
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from families import Case, assert_same_optimum
from helpers import fit, write_rows

import sbm
from sbm.settings import Settings
from sbm.store.blocks import read_manifest, write_manifest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "nightly.sh"
CASE = Case("hinge", 2)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder for the texts, and a program named sbm that is this checkout's."""
    program = tmp_path / "bin" / "sbm"
    program.parent.mkdir()
    command = f"{shlex.quote(sys.executable)} -m sbm"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={shlex.quote(str(ROOT))} exec {command} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("SBM", str(program))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "new texts").mkdir()
    return tmp_path / "new texts"


def text(folder, name, seed, n=40):
    return write_rows(folder / name, *CASE.rows(seed, n=n))


def night(*arguments):
    """Run the script; exit code, stdout, stderr."""
    command = ["sh", str(SCRIPT), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def sources():
    return [source["name"] for source in sbm.info("a store.sbm")["sources"]]


def passes():
    """How many passes the last training took."""
    return sbm.info("a.model")["passes"]


ARGUMENTS = ("a store.sbm", "a.model", "new texts")


def test_night_after_night(folder):
    text(folder, "1.svm", 1)
    text(folder, "2.svm", 2)
    (folder / "empty.svm").write_text("")
    (folder / "notes.md").write_text("no data\n")
    code, out, err = night(*ARGUMENTS)
    assert (code, err) == (0, "")
    assert "a.model: primal" in out
    assert sources() == ["1.svm", "2.svm"]
    first = passes()
    assert first > 0

    before = Path("a.model.run/run.json").read_bytes()
    assert night(*ARGUMENTS)[0] == 0  # the same again: nothing to do
    assert sources() == ["1.svm", "2.svm"]
    assert Path("a.model.run/run.json").read_bytes() == before

    text(folder, "3.svm", 3)
    (folder / "again.svm").write_bytes((folder / "1.svm").read_bytes())  # under another name
    assert night(*ARGUMENTS)[0] == 0
    assert sources() == ["1.svm", "2.svm", "3.svm"]
    assert passes() > 0
    model = sbm.Model.load("a.model")
    assert model.converged
    cold = fit(Path("a store.sbm"), "cold.model", C=0.1)
    assert_same_optimum((model, model.certificate), cold[:2])


def test_files_may_be_named_one_by_one_and_be_compressed(folder):
    one, two = text(folder, "1.svm", 1), text(folder, "2.svm", 2)
    subprocess.run(["gzip", str(two)], check=True)
    assert night("a store.sbm", "a.model", one)[0] == 0
    assert night("a store.sbm", "a.model", one, f"{two}.gz")[0] == 0
    assert sources() == ["1.svm", "2.svm.gz"]
    assert night(*ARGUMENTS)[0] == 0
    assert sources() == ["1.svm", "2.svm.gz"]


def test_what_is_older_is_dropped_and_not_taken_again(folder):
    for k in (1, 2, 3):
        text(folder, f"{k}.svm", k)
    assert night("-k", 30, *ARGUMENTS)[0] == 0
    assert sources() == ["1.svm", "2.svm", "3.svm"]
    manifest = read_manifest(Path("a store.sbm"))
    for generation in manifest["generations"][:2]:
        generation["added"] = "2020-01-01T00:00:00+00:00"
    write_manifest(Path("a store.sbm"), manifest)
    text(folder, "4.svm", 4)
    records = []
    for _ in range(2):
        code, _, err = night("-k", 30, *ARGUMENTS)
        assert (code, err) == (0, "")
        assert sources() == ["3.svm", "4.svm"]
        records.append(Path("a.model.run/run.json").read_bytes())
    assert records[0] == records[1]  # nothing to do
    model = sbm.Model.load("a.model")
    sbm.split([folder / "3.svm", folder / "4.svm"], "anew.sbm")
    assert_same_optimum((model, model.certificate), fit(Path("anew.sbm"), "cold.model", C=0.1)[:2])


def test_a_text_to_test_is_predicted(folder, tmp_path):
    text(folder, "1.svm", 1)
    test = text(tmp_path, "test.svm", 1, 7)
    code, out, _ = night("-t", test, "-o", "labels.txt", *ARGUMENTS)
    assert code == 0
    assert "accuracy" in out
    assert len(Path("labels.txt").read_text().splitlines()) == 7


def test_a_budget_that_is_used_up_is_exit_code_3_and_the_next_night_goes_on(folder, tmp_path):
    text(folder, "1.svm", 1, 300)
    test = text(tmp_path, "test.svm", 1, 7)
    config = tmp_path / "short.toml"
    config.write_text("C = 1\ntol = 1e-12\nmax-passes = 1\nrounds = 1\nwarm-start = true\n")
    gaps = []
    for _ in range(3):
        code, _, err = night("-c", config, "-t", test, "-o", "labels.txt", *ARGUMENTS)
        assert code == 3
        assert "not converged" in err
        model = sbm.Model.load("a.model")
        assert not model.converged
        gaps.append(model.certificate["relative_gap"])
        assert len(Path("labels.txt").read_text().splitlines()) == 7
        Path("labels.txt").unlink()
    assert gaps[0] > gaps[1] > gaps[2]


def test_a_file_that_is_no_text_stops_the_night_and_the_model_stays(folder):
    text(folder, "1.svm", 1)
    assert night(*ARGUMENTS)[0] == 0
    before = Path("a.model").read_bytes()
    (folder / "2.svm").write_text("1 1:1\noops\n")
    text(folder, "3.svm", 3)
    code, _, err = night(*ARGUMENTS)
    assert code == 1
    assert err == "sbm: new texts/2.svm:2: found 'oops' where a numeric label is expected\n"
    assert sources() == ["1.svm"]
    assert Path("a.model").read_bytes() == before
    (folder / "2.svm").unlink()
    assert night(*ARGUMENTS)[0] == 0
    assert sources() == ["1.svm", "3.svm"]


def test_settings_that_a_warm_start_keeps_are_refused_with_2(folder, tmp_path):
    text(folder, "1.svm", 1)
    assert night(*ARGUMENTS)[0] == 0
    config = tmp_path / "other.toml"
    config.write_text('loss = "squared_hinge"\nwarm-start = true\n')
    code, _, err = night("-c", config, *ARGUMENTS)
    assert code == 2
    assert "a warm start keeps it, leave out --warm-start to change it" in err


def test_while_another_one_works_on_the_store_it_ends_with_1(folder):
    text(folder, "1.svm", 1)
    assert night(*ARGUMENTS)[0] == 0
    text(folder, "2.svm", 2)
    with open("a store.sbm/lock", "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        code, _, err = night(*ARGUMENTS)
    assert (code, sources()) == (1, ["1.svm"])
    assert err == (
        "sbm: the store a store.sbm is in use by another sbm process; wait for it to end or stop "
        "it\n"
    )
    assert night(*ARGUMENTS)[0] == 0
    assert sources() == ["1.svm", "2.svm"]


@pytest.mark.parametrize(
    "arguments", [(), ("a.sbm", "a.model"), ("-x", *ARGUMENTS), ("-k", "soon", *ARGUMENTS), ("-k",)]
)
def test_wrong_use_is_exit_code_2(folder, arguments):
    code, out, err = night(*arguments)
    assert (code, out) == (2, "")
    assert "usage: nightly.sh [-k DAYS]" in err
    assert os.listdir(folder) == []


def test_nothing_to_begin_with_is_an_error(folder):
    code, _, err = night(*ARGUMENTS)
    assert code == 1
    assert "a store.sbm does not exist; make a store with sbm split" in err
    code, _, err = night("a store.sbm", "a.model", "nowhere")
    assert (code, err) == (1, "nightly.sh: nowhere is neither a file nor a folder\n")


def test_its_settings_have_a_meaning():
    path = ROOT / "configs" / "nightly.toml"
    made = Settings.from_dict(Settings.read_toml(path), str(path))
    assert made.warm_start is True
    assert made.time_limit == 7200
    assert json.dumps(made.to_dict())
    assert np.isclose(made.tol, 1e-3)
