"""Inputs of every format through the commands: named, mixed, predicted, refused."""

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from helpers import fit, store_rows
from processes import finished

import sbm
from sbm.cli import cli
from sbm.errors import DataError, SbmError, SettingsError
from sbm.jobs.split import default_store, split
from sbm.store.formats import FORMATS, format_of
from sbm.store.inputs import InputOptions
from sbm.store.model import Model

ROOT = Path(__file__).resolve().parent.parent
IN_TURN: dict[str, Any] = {"blocks": 1, "shuffle": False, "threads": 1, "force": True}


def test_the_command_line_offers_the_formats_that_there_are() -> None:
    for command in ("split", "predict"):
        [option] = [p for p in cli.commands[command].params if p.name == "format"]
        assert sorted(option.type.choices) == sorted(FORMATS)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "kind", "store"),
    [
        ("a.svm", "libsvm", "a"), ("a", "libsvm", "a"), ("a.dat", "libsvm", "a.dat"),
        ("-", "libsvm", "-"), ("a.csv.zst", "csv", "a"), ("A.CSV", "csv", "A.CSV"),
        ("a.tsv", "tsv", "a"), ("x/a.vw.gz", "vw", "a"), ("a.npz", "npz", "a"),
        ("a.parquet", "parquet", "a"), ("a.pq", "parquet", "a"), ("csv", "libsvm", "csv"),
    ],
)  # fmt: skip
def test_the_name_tells_the_format(name: str, kind: str, store: str) -> None:
    assert format_of(name).name == kind
    assert default_store(name) == Path(f"{store}.sbm")


def test_the_content_tells_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("y,b\n1,2\n")
    with pytest.raises(DataError) as caught:
        split(tmp_path / "a.txt", tmp_path / "a.sbm")
    assert str(caught.value) == (
        f"{tmp_path}/a.txt:1: found 'y,b' where a numeric label is expected"
    )
    report = split(tmp_path / "a.txt", tmp_path / "a.sbm", format="csv")
    assert report["rows"] == 1


def test_inputs_of_several_formats_make_one_store(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_text("1 5:2\n")
    (tmp_path / "b.vw").write_text("2 | 5:3\n")
    (tmp_path / "c.csv").write_text("y,5\n3,4\n")
    np.savez(tmp_path / "d.npz", data=[5.0], indices=[5], indptr=[0, 1], y=[4])
    names = [tmp_path / f"{name}" for name in ("a.svm", "b.vw", "c.csv", "d.npz", "a.svm")]
    split(names, tmp_path / "a.sbm", **IN_TURN)
    assert store_rows(tmp_path / "a.sbm") == [
        [(1, ((5, 2),)), (2, ((5, 3),)), (3, ((5, 4),)), (4, ((5, 5),)), (1, ((5, 2),))]
    ]


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("a.npz.gz", {}, "{} is compressed, and npz files are so inside; unpack it"),
        ("a.svm", {"format": "cvs"}, (f"unknown format 'cvs', known are {', '.join(FORMATS)}; "
         "did you mean 'csv'?")),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(
    tmp_path: Path, name: str, options: dict[str, Any], sentence: str
) -> None:
    (tmp_path / name).touch()
    with pytest.raises(SbmError) as caught:
        split(tmp_path / name, tmp_path / "a.sbm", **options)
    assert str(caught.value) == sentence.format(tmp_path / name)


def piped(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(text)))


def test_a_pipe_says_its_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    piped(monkeypatch, b"y\t7\n1\t2\n")
    split("-", tmp_path / "a.sbm", format="tsv", **IN_TURN)
    assert store_rows(tmp_path / "a.sbm") == [[(1, ((7, 2),))]]
    for kind in ("npz", "parquet"):
        with pytest.raises(DataError) as caught:
            split("-", tmp_path / "b.sbm", format=kind)
        assert str(caught.value) == (
            f"standard input: {kind} is read from files only, not from a pipe"
        )


def test_rare_words_are_counted_in_a_first_reading(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y,w\n1,a\n0,b\n1,a\n")
    report = split(tmp_path / "a.csv", tmp_path / "a.sbm", min_count=2, **IN_TURN)
    assert report["left_out"] == {"features": 1, "nnz": 1}
    assert [len(f) for _, f in store_rows(tmp_path / "a.sbm")[0]] == [1, 0, 1]


# ------------------------------------------------------------------------------------ prediction


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, its store, and a model of that."""
    folder = tmp_path_factory.mktemp("trained")
    rows = [
        (k % 3 != 0, f"{k % 3},{k % 5},{'low' if k % 2 else 'high'},9{k % 2}") for k in range(90)
    ]
    lines = [f"{int(y)},{cells}\n" for y, cells in rows]
    (folder / "a.csv").write_text("class,n,m,word,zip\n" + "".join(lines))
    store = folder / "a.sbm"
    split(folder / "a.csv", store, label="class", text=["zip"], hash_bits=16)
    model, _, _ = fit(store, "a.model", C=10.0)
    assert model.info["names"] == {"hash_bits": 16, "label": "class", "text": ["zip"]}
    return folder


def test_names_are_hashed_for_a_model_as_they_were_for_its_store(trained: Path) -> None:
    model = trained / "a.model"
    of_store = sbm.predict(model, trained / "a.sbm")
    of_table = sbm.predict(model, trained / "a.csv")
    for key in ("rows", "accuracy", "auc", "confusion", "unknown_nonzeros"):
        assert of_table[key] == of_store[key]
    assert of_table["unknown_nonzeros"] == 0
    (trained / "new").write_text("zip,class,word,m,n\n91,1,new,0.5,2\n")
    report = sbm.predict(model, trained / "new", trained / "out", format="csv", decision=True)
    assert (report["rows"], report["unknown_nonzeros"]) == (1, 1)
    (trained / "new.vw").write_text("1 | zip=91 word=new m:0.5 n:2\n")
    sbm.predict(model, trained / "new.vw", trained / "out.vw", decision=True)
    assert (trained / "out").read_text() == (trained / "out.vw").read_text()


def test_the_command_line_tests_a_training_on_a_table(trained: Path) -> None:
    done = CliRunner().invoke(
        cli,
        ["train", str(trained / "a.sbm"), "-o", str(trained / "b.model"), "-C", "10", "--mem",
         "400MB", "--test", str(trained / "a.csv"), "-q"],
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "test accuracy 100.0000 % (90 of 90)" in done.output


def test_a_model_of_ids_knows_no_names(tmp_path: Path) -> None:
    model = Model(np.array([1]), np.array([[1.0]]), [0.0, 1.0])
    (tmp_path / "a.csv").write_text("y,b\n1,2\n")
    with pytest.raises(SettingsError) as caught:
        sbm.predict(model, tmp_path / "a.csv")
    assert str(caught.value) == (
        f"{tmp_path}/a.csv has features with names, but the model was trained on ids without "
        "names; train it on a store that was split from such text"
    )
    model.info["names"] = {"hash_bits": "many"}
    with pytest.raises(SettingsError, match="what the model says of its inputs makes no sense"):
        sbm.predict(model, tmp_path / "a.csv")


@pytest.mark.parametrize(
    "record",
    [{}, {"hash_bits": 0, "label": None, "text": []}, {"hash_bits": 9, "label": 1, "text": []},
     {"hash_bits": 9, "label": None, "text": [1]}, {"hash_bits": True, "label": None, "text": []}],
)  # fmt: skip
def test_records_that_are_none_are_refused(record: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="what a says of its inputs makes no sense"):
        InputOptions().following(record, "a")


def test_a_stream_takes_libsvm_text_alone(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("y,b\n1,2\n")
    with pytest.raises(SettingsError) as caught:
        sbm.stream(tmp_path / "a.csv", tmp_path / "a.model")
    assert str(caught.value) == (
        f"{tmp_path}/a.csv is csv by its name, and sbm stream reads LIBSVM text; make a store of "
        "it with sbm split, and train on that"
    )


def test_the_command_line_splits_a_table_from_a_pipe(tmp_path: Path) -> None:
    done = finished(
        [sys.executable, "-m", "sbm", "split", "-", "-o", "a.sbm", "--format", "csv", "--label",
         "c", "--text", "zip", "--text", "w", "--hash-bits", "12", "--json"],
        feed="c,zip,w\n1,5,x\n0,5,7\n", cwd=tmp_path, check=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "", "SBM_COMPILE_HERE": "1", "HOME": str(tmp_path)},
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert (report["rows"], report["features"], report["value_type"]) == (2, 3, "ones")
