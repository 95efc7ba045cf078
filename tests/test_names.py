"""Names of features and labels that are words: in stores, models, predictions and exports."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from helpers import Passes, store_rows
from inside import BlockStore, Names, NameTable, cli, patch, read_manifest

import sbm
from sbm.errors import DataError, MemoryPlanError, SbmError, SettingsError, StoreError

RNG = np.random.default_rng(0)
COLOURS = ["red", "grün", "blue"]


def animals(path: Path, n: int = 120, first: int = 0) -> Path:
    """Write a table whose class follows from its columns."""
    lines = ["size,colour,animal"]
    for k in range(first, first + n):
        colour = COLOURS[k % 3]
        lines.append(f"{k % 7},{colour},{'zebra' if colour == 'red' else 'ant ear'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def names_of(store: Path) -> dict[int, str]:
    opened = BlockStore(store)
    names = opened.read_names()
    return (
        {} if names is None else dict(zip(opened.read_feature_ids().tolist(), names, strict=True))
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("names")
    store = folder / "a.sbm"
    sbm.split(animals(folder / "a.csv"), store, label="animal", blocks=3)
    model, _ = sbm.train(store, folder / "a.model", sbm.Settings(loss="log_loss", bias=1))
    return folder, model


def test_words_are_classes_in_alphabetical_order(trained):
    folder, model = trained
    manifest = read_manifest(folder / "a.sbm")
    assert manifest["labels"]["names"] == ["ant ear", "zebra"]
    assert (model.labels, model.label_names) == ([0.0, 1.0], ["ant ear", "zebra"])
    name, weight = model.top(1, "zebra")[0]
    assert (name, weight > 0) == ("colour=red", True)
    assert {name for name, _ in model.top(-9)} >= {"colour=grün", "colour=blue"}
    assert names_of(folder / "a.sbm").keys() == {*model.ids.tolist()}
    report = sbm.predict(model, folder / "a.csv", folder / "out", probability=True)
    assert report["accuracy"] == 1
    assert (report["labels"], report["classes"][1]["label"]) == (["ant ear", "zebra"], "zebra")
    lines = (folder / "out").read_text().splitlines()
    assert lines[0] == "labels\tant ear\tzebra"  # tabs, because a label has a blank
    assert lines[1].startswith("zebra\t0.")
    assert sbm.info(folder / "a.model")["labels"] == ["ant ear", "zebra"]


def test_labels_stay_on_their_line(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n" + 3 * '1,"b\n\u2028a"\n-1,a\n')
    model, _ = sbm.train(tmp_path / "a.csv", tmp_path / "m.model", {"loss": "log_loss"})
    assert model.label_names == ["a", "b a"]
    sbm.predict(model, tmp_path / "a.csv", tmp_path / "out", probability=True)
    lines = (tmp_path / "out").read_text().split("\n")
    assert [line.split("\t")[0] for line in lines] == ["labels", *["b a", "a"] * 3, ""]
    with pytest.raises(DataError, match=r"b\\na"):
        sbm.train((np.eye(2), np.array(["a", "b\na"])), tmp_path / "n.model")


def test_unknown_words_count_as_wrong(trained):
    folder, model = trained
    (folder / "new.csv").write_text("size,colour,animal\n1,red,zebra\n2,red,cow\n3,blue,\n")
    report = sbm.predict(model, folder / "new.csv", confusion=[folder / "c.tsv"])
    assert (report["correct"], report["unknown_labels"], report["unlabelled_rows"]) == (1, 1, 1)
    assert report["warnings"] == ["labels not in the model: cow; their rows count as wrong"]
    assert "zebra\t1" in (folder / "c.tsv").read_text()


def test_numbers_and_words_are_not_mixed(tmp_path):
    (tmp_path / "n.csv").write_text("size,label\n1,0\n2,1\n3,1\n")
    model, _ = sbm.train(tmp_path / "n.csv", tmp_path / "n.model")
    (tmp_path / "w.csv").write_text("size,label\n1,zebra\n")
    with pytest.raises(DataError, match=r"w\.csv:2: found 'zebra' .*numeric label"):
        sbm.predict(model, tmp_path / "w.csv")
    sbm.split(tmp_path / "n.csv", tmp_path / "n.sbm")
    with pytest.raises(DataError, match=r"w\.csv:2: found 'zebra' .*numeric label"):
        sbm.split(tmp_path / "w.csv", tmp_path / "n.sbm", append=True)
    sbm.split(tmp_path / "n.csv", tmp_path / "words.sbm", categorical=["label"])
    assert read_manifest(tmp_path / "words.sbm")["labels"]["names"] == ["0", "1"]
    with pytest.raises(DataError, match=r"words such as 0, but squared_error needs numbers"):
        sbm.train(tmp_path / "words.sbm", settings={"loss": "squared_error"})


@pytest.mark.parametrize("text", ["old.svm", "old.vw", "old.npz"])
def test_text_of_numbers_and_tables_of_words_are_not_mixed(tmp_path, text):
    (tmp_path / "old.svm").write_text("1 1:1\n1 1:1\n-1 2:1\n")
    (tmp_path / "old.vw").write_text("1 | a\n-1 | b\n")
    np.savez(tmp_path / "old.npz", y=[1, 0], data=[1.0, 2], indices=[0, 1], indptr=[0, 1, 2],
             shape=[2, 2], format=b"csr")  # fmt: skip
    (tmp_path / "new.csv").write_text("x,label\n3,yes\n2,no\n")
    old, new, store = tmp_path / text, tmp_path / "new.csv", tmp_path / "s.sbm"
    with pytest.raises(DataError, match=rf"new\.csv is a table .*{text} cannot be added"):
        sbm.train([old, new], tmp_path / "a.model")
    sbm.split(new, store)
    with pytest.raises(DataError, match=r"is not a table, but .* has the features of a table"):
        sbm.split(old, store, append=True)
    sbm.split(new, store, append=True, force=True)
    assert read_manifest(store)["labels"]["counts"] == [2, 2]


def test_words_of_a_store_are_compared_by_name(trained):
    folder, model = trained
    rows = "size,colour,animal\n1,red,zebra\n2,blue,ant ear\n"
    (folder / "few.csv").write_text(rows)
    (folder / "more.csv").write_text(rows + "2,red,aardvark\n")
    for name in ("few", "more"):
        sbm.split(folder / f"{name}.csv", folder / f"{name}.sbm", label="animal")
    report = sbm.predict(model, folder / "more.sbm")
    assert (report["correct"], report["unknown_labels"], report["rows"]) == (2, 1, 3)
    assert report["warnings"] == ["labels not in the model: aardvark; their rows count as wrong"]
    settings = {"loss": "log_loss", "metric": "accuracy"}
    for name in ("few.sbm", "few.csv"):
        _, report = sbm.train(
            folder / "a.sbm", folder / "b.model", settings | {"validate": str(folder / name)}
        )
        assert report["validation"]["score"] == 1
    with pytest.raises(DataError, match=r"more\.sbm has label aardvark"):
        sbm.train(
            folder / "a.sbm", folder / "c.model", settings | {"validate": str(folder / "more.sbm")}
        )
    outliers, _ = sbm.train(folder / "a.sbm", folder / "o.model", {"loss": "one_class"})
    with pytest.raises(DataError, match=r"few\.sbm: labels are words such as .*labels=False"):
        sbm.predict(outliers, folder / "few.sbm")
    assert sbm.predict(outliers, folder / "few.sbm", labels=False)["unlabelled_rows"] == 2


def test_appended_words_keep_their_numbers(tmp_path):
    store = tmp_path / "a.sbm"
    sbm.split(animals(tmp_path / "a.csv"), store, label="animal", blocks=2)
    (tmp_path / "b.csv").write_text("size,legs,animal\n9,8,octopus\n9,6,bee\n1,4,zebra\n")
    seen = Passes()
    sbm.split(tmp_path / "b.csv", store, append=True, new_labels=True, progress=seen)
    assert (
        seen.stages[-1]
        == f"warning: columns differ from those of {store}: missing 'colour'; unknown 'legs'"
    )
    manifest = read_manifest(store)["labels"]
    assert manifest["names"] == ["ant ear", "zebra", "bee", "octopus"]
    counts = dict(zip(BlockStore(store).label_names, manifest["counts"], strict=True))
    assert counts == {"ant ear": 80, "zebra": 41, "bee": 1, "octopus": 1}
    assert set(names_of(store).values()) >= {"size", "colour=red"}
    settings = sbm.Settings(loss="crammer_singer", class_weight={"bee": 2})
    model, _ = sbm.train(store, settings=settings, model=tmp_path / "m.model")
    assert model.classes_.tolist() == manifest["names"]
    with pytest.raises(SettingsError, match=r"label cow, but the labels are ant ear, zebra"):
        sbm.train(store, tmp_path / "n.model", {"class_weight": {"cow": 2}})


def test_arrays_may_have_words_and_column_names(tmp_path):
    X = RNG.normal(size=(60, 3))
    y = np.array(["low", "high"])[(X[:, 1] > 0).astype(int)]
    sbm.split((X, y), tmp_path / "a.sbm", feature_names=["a", "b", "c"])
    model, _ = sbm.train(tmp_path / "a.sbm", tmp_path / "a.model")
    assert model.classes_.tolist() == ["high", "low"]
    assert model.top(-1, "low")[0][0] == "b"
    assert (model.predict(X) == y).mean() > 0.9
    estimator = model.to_sklearn()
    assert (estimator.predict(X) == model.predict(X)).all()
    with pytest.raises(DataError, match=r"chunk 1: labels are numbers.* words"):
        sbm.split([(X, y), (X, (y == "low").astype(int))], tmp_path / "b.sbm")


def test_ids_of_text_get_names_from_a_file(tmp_path):
    (tmp_path / "a.svm").write_text("1 1:1 7:2\n-1 1:-1 9:1\n" * 5)
    (tmp_path / "names.txt").write_text("7 lucky number\n\n1 größe\n")
    line = f"train {tmp_path}/a.svm --feature-names {tmp_path}/names.txt -o {tmp_path}/m.model"
    assert CliRunner().invoke(cli, [*line.split(), "--json"]).exit_code == 0
    model = sbm.Model.load(tmp_path / "m.model")
    assert {model.feature_name(k) for k in range(3)} == {"größe", "lucky number", 9}
    for text in ("7\n", "x y\n", f"{1 << 63} a\n"):
        (tmp_path / "names.txt").write_text(f"1 a\n{text}")
        with pytest.raises(DataError, match=r"names\.txt:2: found .*id and its name"):
            sbm.split(tmp_path / "a.svm", tmp_path / "a.sbm", feature_names=tmp_path / "names.txt")
    with pytest.raises(StoreError, match="does not exist"):
        sbm.split(tmp_path / "a.svm", tmp_path / "a.sbm", feature_names=tmp_path / "no.txt")
    assert not (tmp_path / "a.sbm").exists()


def test_names_of_tables_cannot_be_left_out(tmp_path):
    animals(tmp_path / "a.csv")
    for name, value in (("names", False), ("feature_names", ["a"]), ("hash_bits", 4)):
        with pytest.raises(SettingsError, match=f"features of .* omit {name}"):
            sbm.split(tmp_path / "a.csv", tmp_path / "a.sbm", label="animal", **{name: value})
    (tmp_path / "a.vw").write_text("1 | a b:2\n0 | c\n")
    for names in (True, False):
        sbm.split(tmp_path / "a.vw", tmp_path / f"{names}.sbm", names=names)
    assert store_rows(tmp_path / "True.sbm") == store_rows(tmp_path / "False.sbm")
    assert not names_of(tmp_path / "False.sbm")
    assert len(names_of(tmp_path / "True.sbm")) == 3


def test_rare_features_have_no_names(tmp_path):
    (tmp_path / "a.csv").write_text("y,w,n\n1,often,1\n0,often,\n1,once,2\n")
    sbm.split(tmp_path / "a.csv", tmp_path / "a.sbm", min_count=2)
    assert set(names_of(tmp_path / "a.sbm").values()) == {"w=often", "n", "w=(rare)"}


def test_names_never_share_an_id(tmp_path):
    n = 100_000
    (tmp_path / "a.csv").write_text("y,w\n" + "".join(f"{k % 2},w{k // 2}\n" for k in range(n)))
    report = sbm.split(tmp_path / "a.csv", tmp_path / "a.sbm")
    assert (report["features"], report["collisions"]) == (n // 2, [])
    assert len(set(names_of(tmp_path / "a.sbm").values())) == n // 2


def test_memory_for_names_counts_in_the_plan(tmp_path):
    word = "x" * 200
    with open(tmp_path / "a.csv", "w") as file:
        file.write("y,w\n")
        file.writelines(f"{k % 2},{word}{k // 2}\n" for k in range(300_000))
    with pytest.raises(MemoryPlanError, match=r"ids and names ") as caught:
        sbm.split(tmp_path / "a.csv", tmp_path / "a.sbm", mem="240MB", threads=1)
    assert "no-names" not in str(caught.value)


def test_first_name_of_an_id_is_kept():
    table = NameTable()
    table.add(np.array([5, 1 << 40, 5]), Names.of([b"a", "größe".encode(), b"b"]))
    again = [b"", b"c", b"a", b"c", b"longer", "größe".encode(), b"word"]
    table.add(np.array([7, 5, 5, 5, 5, 1 << 40, 1 << 40]), Names.of(again))
    assert list(table.of(np.array([1 << 40, 3, 7, 5]))) == ["größe", "", "", "a"]
    assert table.collisions[:3] == [(b"a", b"b"), (b"a", b"c"), (b"a", b"longer")]
    assert table.collisions[3:] == [("größe".encode(), b"word")]
    assert list(NameTable().of(np.array([1, 2]))) == ["", ""]


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (b"1 x\n" + b"9" * 5000 + b" y\n", r"n\.txt:2: found '9999"),
        (b"1 " + b"x" * 2_000_000, r"n\.txt:1: found '1 xxx.* at most 1 MB"),
        (b"9223372036854775808 x\n", r"n\.txt:1"), (b"-1 x\n", r"n\.txt:1"), (b"1\n", r"n\.txt:1"),
        ("٣ x\n".encode(), r"n\.txt:1"), (None, r"n\.txt does not exist"),
    ],
    ids=["digits", "long", "large", "negative", "bare", "unicode", "none"],
)  # fmt: skip
def test_bad_files_of_names_are_refused(tmp_path, content, facts):
    (tmp_path / "a.svm").write_text("1 1:1\n-1 2:1\n")
    if content is not None:
        (tmp_path / "n.txt").write_bytes(content)
    with pytest.raises(SbmError, match=facts):
        sbm.split(tmp_path / "a.svm", tmp_path / "a.sbm", feature_names=tmp_path / "n.txt")


def test_names_must_fit_in_memory(tmp_path):
    (tmp_path / "a.svm").write_text("1 1:1\n-1 2:1\n")
    names = tmp_path / "n.txt"
    names.write_text("".join(f"00{k} {'x' * 4000}\n" for k in range(20_000)))
    with pytest.raises(MemoryPlanError, match=r"names of about \d+,\d+ features") as caught:
        sbm.split(tmp_path / "a.svm", tmp_path / "a.sbm", feature_names=names, mem="110MB")
    assert 120e6 < caught.value.least_bytes < 250e6
    sbm.split(tmp_path / "a.svm", tmp_path / "a.sbm", feature_names=names, mem="1GB")


def test_exports_have_names(trained):
    folder, model = trained
    sbm.export(model, folder / "m.json", format="json")
    content = json.loads((folder / "m.json").read_text())
    assert content["labels"] == ["ant ear", "zebra"]
    assert "colour=grün" in content["names"].values()
    sbm.export(model, folder / "m.npz", format="npz")
    with np.load(folder / "m.npz") as file:
        assert file["labels"].tolist() == ["ant ear", "zebra"]
        names = dict(zip(file["ids"].tolist(), file["names"].tolist(), strict=True))
    assert names == {int(k): v for k, v in content["names"].items()}


def test_names_of_vw_text_have_their_namespace(tmp_path):
    (tmp_path / "a.vw").write_text(
        "1 |user age:33 city=Oslo |i:2 red\r\n-1 'tag | x city=Oslo\n" * 3
    )
    for threads in (1, 3):
        sbm.split(tmp_path / "a.vw", tmp_path / "a.sbm", threads=threads, force=True)
        names = names_of(tmp_path / "a.sbm")
        assert set(names.values()) == {"user^age", "user^city=Oslo", "i^red", "x", "city=Oslo"}
    model, _ = sbm.train(tmp_path / "a.sbm", tmp_path / "a.model")
    (tmp_path / "b.vw").write_text("1 |user age:1\n")
    sbm.predict(model, tmp_path / "b.vw", tmp_path / "out", decision=True)
    assert float((tmp_path / "out").read_text()) == dict(model.top(9))["user^age"]


@pytest.mark.parametrize("ending", ["csv", "vw"])
def test_names_do_not_depend_on_threads(tmp_path, monkeypatch, ending):
    words = RNG.integers(0, 500, 4000).tolist()
    rows = [f"{k % 2} | w={w}x a:{k}\n" for k, w in enumerate(words)]
    if ending == "csv":
        rows = ["y,w,a\n"] + [f"{k % 2},{w}x,{k}\n" for k, w in enumerate(words)]
    (tmp_path / f"a.{ending}").write_text("".join(rows))
    found = []
    for threads, piece in ((1, 1000), (3, 1000), (1, 2 << 20)):
        patch(monkeypatch, "text.PIECE" if ending == "vw" else "delimited.PIECE", piece)
        sbm.split(tmp_path / f"a.{ending}", tmp_path / "a.sbm", force=True, threads=threads)
        found.append(names_of(tmp_path / "a.sbm"))
    assert found[0] == found[1] == found[2]
    assert len(found[0]) > 100


def test_names_by_column_are_str(tmp_path):
    with pytest.raises(SettingsError, match=r"feature_names is a list .* not str"):
        sbm.split((np.eye(2), [0, 1]), tmp_path / "a.sbm", feature_names=["a", 2])
