"""What is wrong with settings and files is reported before the rows are read or compiled for."""

import random
from pathlib import Path

import pytest
from helpers import Passes

import sbm
from sbm import DataError, SbmError, SettingsError


def write_table(path: Path, n: int, header: str = "y,a,b,device", seed: int = 0) -> Path:
    """Write a CSV file of random rows; a name more in the header is a column more."""
    draw, more = random.Random(seed), header.count(",") - 3
    lines = [header]
    for _ in range(n):
        label, device = draw.choice(["yes", "no"]), draw.choice(["phone", "tablet"])
        lines.append(f"{label},{draw.random():.4f},{draw.gauss(0, 1):.4f},{device}" + ",1" * more)
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with files that do not fit; ``bad.svm`` and ``bad.csv`` cannot be read."""
    monkeypatch.chdir(tmp_path)
    Path("bad.svm").write_text("a line that is no row\n")
    Path("bad.csv").write_text("y,a\nyes,1\nno,1,2\n")
    Path("weights").write_text("1\n2\nx\n")
    Path("zeros").write_text("0\n0\n")
    Path("text.svm").write_text("1 1:1\n-1 1:-1 2:1\n")
    write_table(Path("t.csv"), 20)
    sbm.split("t.csv", "words.sbm")
    sbm.train("text.svm", "old.model", {"loss": "log_loss"})
    return tmp_path


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        ("train bad.svm --intercept --loss crammer_singer", ["--intercept", "crammer_singer"]),
        ("train bad.svm --intercept --solver dual", ["--solver dual", "intercept"]),
        ("train bad.svm --loss one_class --solver newton", ["newton", "one_class"]),
        ("train bad.svm --loss hinge --task regression", ["--task", "regression"]),
        ("train bad.svm --loss squared_error --class-weight 1=2", ["--class-weight"]),
        ("train bad.svm --class-weight yes=2", ["yes", "bad.svm"]),
        ("train bad.svm --positive yes", ["--positive", "yes", "bad.svm"]),
        ("train t.csv --loss squared_error", ["t.csv:2", "squared_error"]),
        ("train bad.svm --calibrate --loss log_loss", ["--calibrate"]),
        ("train bad.svm --calibrate --loss squared_error", ["calibrate"]),
        ("train bad.svm --warm-start nope.model", ["nope.model"]),
        ("train bad.svm --warm-start old.model", ["log_loss", "hinge"]),
        ("train bad.svm -o old.model --warm-start", ["log_loss", "hinge"]),
        ("train bad.svm --resume", ["bad.model.run", "--resume"]),
        ("train bad.svm --weights weights", ["weights:3", "x"]),
        ("train bad.svm --weights zeros", ["zeros"]),
        ("train bad.svm --test t.csv", ["t.csv"]),
        ("train bad.svm --test words.sbm", ["words.sbm", "labels are words"]),
        ("train bad.svm --test old.model", ["old.model", "another file of sbm"]),
        ("train bad.svm --test weights", ["weights:3"]),
        ("train bad.csv --test bad.svm", ["bad.svm:1"]),
        ("train bad.csv --loss one_class --test t.csv", ["t.csv:2"]),
        ("train bad.svm --validate t.csv", ["t.csv"]),
        ("train bad.svm --validate old.model", ["old.model"]),
        ("train bad.svm --validate 10% --metric mse", ["--metric mse", "classification"]),
        ("train bad.svm --validate 9% --metric f1 --loss squared_error", ["f1", "regression"]),
        ("train bad.svm --validate 9% --threshold f1 --loss squared_error", ["--threshold"]),
        ("train - --test -", ["data and test", "standard input"]),
        ("train bad.svm --weights - --test -", ["weights and test"]),
        ("train old.model", ["old.model", "another file of sbm"]),
        ("stream bad.svm -o s.model --epsilon 2", ["--epsilon"]),
        ("stream bad.svm -o s.model --class-weight yes=2", ["yes"]),
        ("stream bad.svm -o s.model --loss squared_error --classes 1,2", ["--classes"]),
        ("stream bad.svm -o s.model --test t.csv", ["t.csv"]),
        ("stream bad.svm -o s.model --test weights", ["weights:3"]),
        ("predict old.model old.model", ["old.model", "another file of sbm"]),
        ("split old.model", ["old.model", "another file of sbm"]),
        ("tune words.sbm --C 1,2 --weights weights", ["weights:3"]),
    ],
)  # fmt: skip
def test_faults_are_found_before_rows_are_read(here, run, line, facts):
    code, _, err = run(line)
    assert code in (1, 2)
    assert all(fact in err for fact in facts), err
    assert "bad." not in err or "bad." in "".join(facts), err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("line", "fact"),
    [
        ("split t.csv -o n.sbm --label nope", "nope"),
        ("train t.csv --exclude nope", "nope"),
        ("train t.csv u.csv --strict", "u.csv:1"),
        ("train t.csv u.csv", "device"),
        ("predict words.model u.csv --strict", "u.csv:1"),
        ("split --append words.sbm u.csv --strict", "words.sbm"),
    ],
)
def test_headers_are_checked_before_kernels_are_compiled(here, run, monkeypatch, line, fact):
    sbm.train("words.sbm", "words.model")
    write_table(Path("u.csv"), 10, "y,a,b,device_type")

    def compile_nothing(*_):
        raise AssertionError("compiles before the header is checked")

    for module in ("engine.kernels", "dataset.batches"):
        monkeypatch.setattr(f"sbm.{module}.prepare", compile_nothing)
    code, _, err = run(line)
    assert code == 1
    assert fact in err


def test_labels_that_are_numbers_may_be_named(here, run):
    for option in ("--positive 1", "--positive -1", "--class-weight 1=2", "--class-weight -1.0=2"):
        assert run(f"train text.svm {option} -o n.model -q")[0] == 0


def test_folder_without_permission_is_reported_first(here, run, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    for line in ("train bad.svm -o m.model", "stream bad.svm -o m.model",
                 "predict old.model bad.svm --confusion c.tsv"):  # fmt: skip
        code, _, err = run(line)
        assert code == 1
        assert "cannot write to" in err
        assert "bad.svm" not in err


# -------------------------------------------------------------------------- columns of a table


def test_strict_refuses_other_columns(tmp_path):
    first = write_table(tmp_path / "a.csv", 60)
    renamed = write_table(tmp_path / "b.csv", 20, "y,a,b,device_type", 1)
    wider = write_table(tmp_path / "c.csv", 20, "y,a,b,device,extra", 2)
    good = write_table(tmp_path / "d.csv", 20, seed=3)
    store, model = tmp_path / "s.sbm", tmp_path / "m.model"
    sbm.split(first, store)
    sbm.train(store, model)
    settings = {"validate": str(renamed)}
    for name in (renamed, wider):
        for job, arguments, more in (
            (sbm.split, (name, store), {"append": True}),
            (sbm.split, ([first, name], tmp_path / "n.sbm"), {}),
            (sbm.train, ([first, name], tmp_path / "n.model"), {}),
            (sbm.predict, (model, name), {}),
        ):
            with pytest.raises(DataError, match=f"{name.name}:1"):
                job(*arguments, strict=True, **more)
    for data in (store, first):
        with pytest.raises(DataError, match=r"b\.csv:1.*missing 'device'; unknown 'device_type'"):
            sbm.train(data, tmp_path / "n.model", settings, strict=True)
    assert sbm.predict(model, good, strict=True)["warnings"] == []
    assert sbm.split(good, store, append=True, strict=True)["rows"] == 20


def test_files_of_a_model_may_be_written_in_another_way(tmp_path):
    train = write_table(tmp_path / "a.csv", 60)
    other = tmp_path / "b.data"
    other.write_text(train.read_text().replace("y,a", "label2,a").replace(",", ";"))
    how = {"format": "csv", "sep": ";", "label": "label2"}
    store, model, text = tmp_path / "s.sbm", tmp_path / "m.model", tmp_path / "o.txt"
    sbm.split(train, store)
    _, report = sbm.train(store, model, {"validate": str(other)}, **how)
    assert report["validation"]["score"] == sbm.predict(model, train, text)["accuracy"]
    expected = text.read_bytes()
    assert sbm.predict(model, other, text, **how)["accuracy"] == report["validation"]["score"]
    assert text.read_bytes() == expected
    for data, options, fact in (
        (train, {"categorical": ["a"]}, "^categorical is fixed by the model"),
        (train, {"hash_bits": 9}, "^hash_bits is fixed by the model"),
        (store, {"sep": ";"}, "is a store; sep"),
    ):
        with pytest.raises(SettingsError, match=fact):
            sbm.predict(model, data, **options)
    with pytest.raises(TypeError, match="'lable'; did you mean 'label'"):
        sbm.predict(model, train, lable="y")
    with pytest.raises(SettingsError, match="is a store; sep"):
        sbm.train(store, model, sep=";")
    with pytest.raises(DataError, match=r"is a store; .*cat"):
        sbm.split(store, tmp_path / "n.sbm")


def test_note_of_columns_does_not_stick(tmp_path):
    store = tmp_path / "s.sbm"
    sbm.split(write_table(tmp_path / "a.csv", 60), store)

    def notes(name, header, seed, **more):
        progress = Passes()
        path = write_table(tmp_path / name, 20, header, seed)
        sbm.split(path, store, append=True, progress=progress, **more)
        return [text for text in progress.stages if "columns differ" in text]

    assert len(notes("b.csv", "y,a,b,device_type", 1)) == 1
    assert notes("c.csv", "y,a,b,device", 2, strict=True) == []
    assert len(notes("d.csv", "y,a,b,device,extra", 3)) == 1
    assert notes("e.csv", "y,a,b,device", 4) == []
    sbm.train(store, tmp_path / "m.model")
    for name, n in (("e.csv", 0), ("b.csv", 1)):
        assert len(sbm.predict(tmp_path / "m.model", tmp_path / name)["warnings"]) == n


# ------------------------------------------------------------- unfinished trainings, and changes


class Stop(Passes):
    """Stops a training after a few blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.is_pass = 7, False

    def start(self, what, total, unit="B"):
        self.is_pass = what.startswith("pass")

    def advance(self, done, **numbers):
        self.left -= self.is_pass


SETTINGS = {"tol": 1e-13, "solver": "dual", "parts": "blocks"}


def stop(data, model):
    progress = Stop()
    with pytest.raises(KeyboardInterrupt):
        sbm.train(data, model, SETTINGS, progress=progress, is_stopped=lambda: progress.left <= 0,
                  **({"blocks": 5} if str(data).endswith("csv") else {}))  # fmt: skip


def refused(data, model, settings=None, **reading) -> str:
    with pytest.raises(SbmError) as error:
        sbm.train(data, model, {**SETTINGS, **(settings or {})}, **reading)
    return str(error.value)


def test_what_differs_from_an_unfinished_training_is_named(tmp_path):
    text, model = write_table(tmp_path / "ev.csv", 200), tmp_path / "ev.model"
    stop(text, model)
    for reading, fact in (
        ({"exclude": ["device"]}, "column device category (now ignored)"),
        ({"dtype": "float64"}, "dtype='float32' (now float64)"),
        ({"blocks": 3}, "blocks=5 (now 3)"),
        ({"min_count": 2}, "min_count not given (now 2)"),
    ):
        message = refused(text, model, **{"blocks": 5, **reading})
        assert fact in message
        assert "other data" not in message
        assert "resume=False" in message
    assert "class_weight=1 each (now yes=2)" in refused(
        text, model, {"class_weight": {"yes": 2}}, blocks=5
    )
    write_table(text, 200, seed=1)
    assert "200 rows as before, with other content" in refused(text, model, blocks=5)
    write_table(text, 210)
    assert "200 rows, now 210" in refused(text, model, blocks=5)
    write_table(tmp_path / "moved.csv", 200)
    assert sbm.train(tmp_path / "moved.csv", model, SETTINGS, blocks=5)[1]["resumed"]


def test_changes_of_a_store_since_it_was_trained_on_are_named(tmp_path):
    text, store = write_table(tmp_path / "ev.csv", 200), tmp_path / "ev.sbm"
    more, model = write_table(tmp_path / "more.csv", 50, seed=1), tmp_path / "ev.model"
    sbm.split(text, store, blocks=5)
    stop(store, model)
    sbm.split(more, store, append=True)
    message = refused(store, model)
    assert "50 rows appended since" in message
    assert "warm_start" in message
    sbm.train(store, model, SETTINGS, resume=False)
    sbm.split(text, store, blocks=5, shuffle=False, force=True)
    assert sbm.train(store, model, SETTINGS)[1]["resumed"] is False
    sbm.split(text, store, blocks=5, force=True)
    sbm.split(more, store, append=True)
    stop(store, model)
    sbm.expire(store, sources=["more.csv"])
    assert "50 rows expired since" in refused(store, model)


def test_other_settings_are_refused_before_text_is_read(here):
    stop(write_table(Path("ev.csv"), 200), Path("ev.model"))
    with pytest.raises(SettingsError, match=r"C=1 \(now 2\)"):
        sbm.train("bad.csv", "ev.model", {**SETTINGS, "C": 2})
