"""LIBLINEAR's options on our command line: the same models, conflicts and refusals."""

import json
import shlex
import signal

import numpy as np
import pytest
from families import LABELS, Case, make_store

from sbm.cli import main
from sbm.errors import SettingsError
from sbm.interop.options import OPTIONS, SOLVERS, expand_weights, read_options
from sbm.losses import LOSSES
from sbm.settings import Settings
from sbm.store.model import Model


@pytest.fixture
def run(capfd, monkeypatch, tmp_path):
    """Run a line in this process, in an empty folder; exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    handler = signal.getsignal(signal.SIGTERM)

    def call(line: str) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            main(shlex.split(line))
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return end.value.code, out, err

    yield call
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture
def data(tmp_path):
    """Two and three labels, targets, and rows of one kind; weights of rows."""
    for name, case in (
        ("two", Case("hinge", 2)), ("three", Case("hinge", 3)),
        ("targets", Case("squared_error", 0)), ("one", Case("one_class", 1)),
    ):  # fmt: skip
        make_store(tmp_path, *case.rows(), name, blocks=3)
    (tmp_path / "v.txt").write_text("".join(f"{1 + k % 3}\n" for k in range(120)))
    return tmp_path


def settings_of(path):
    return Model.load(path).info["settings"]


# LIBLINEAR's words, and ours
PAIRS = [
    *(("two.sbm", f"-s {s}", f"--loss {SOLVERS[s]}") for s in (0, 1, 2, 3, 7)),
    ("three.sbm", "-s 4", "--loss crammer_singer"),
    ("three.sbm", "-s 2 -c 0.25", "--loss squared_hinge -C 0.25"),
    *(("targets.sbm", f"-s {s} -p 0.3", f"--loss {SOLVERS[s]} --epsilon 0.3")
      for s in (11, 12, 13)),
    ("one.sbm", "-s 21 -n 0.3", "--loss one_class --nu 0.3"),
    ("two.sbm", "-s 3 -B 2", "--loss hinge --bias 2"),
    ("two.sbm", "-s 3 -B -1", "--loss hinge"),
    ("two.sbm", "-s 3 -c 0.1 -e 0.01", "--loss hinge -C 0.1 --tol 1e-4"),
    ("two.sbm", "-s 2 -e 0.001", "--loss squared_hinge --tol 1e-4"),
    ("two.sbm", "-c 0.1 -e 0.01", "-C 0.1 --tol 1e-4"),
    ("targets.sbm", "-s 11 -e 0.00001", "--loss squared_epsilon_insensitive --tol 1e-4"),
    ("two.sbm", "-s 3 -W v.txt", "--loss hinge --weights v.txt"),
    ("two.sbm", "-s 3 -w7 2.5 -w-3 0.5", "--loss hinge --class-weight 7=2.5 --class-weight -3=0.5"),
    ("three.sbm", "-s 1 -w2 1e1", "--loss squared_hinge --class-weight 2=10"),
]  # fmt: skip


@pytest.mark.parametrize(("store", "theirs", "ours"), PAIRS)
def test_both_languages_give_the_same_bytes(run, data, store, theirs, ours):
    assert run(f"train {store} -q -o a.model {theirs}")[0] in (0, 3)
    assert run(f"train {store} -q -o b.model {ours}")[0] in (0, 3)
    a, b = settings_of(data / "a.model"), settings_of(data / "b.model")
    assert a.pop("tol") == pytest.approx(b.pop("tol"), rel=1e-12)
    assert a == b
    first, second = Model.load(data / "a.model"), Model.load(data / "b.model")
    np.testing.assert_array_equal(first.W, second.W)
    np.testing.assert_array_equal(first.bias_weights, second.bias_weights)


def test_every_loss_of_liblinear_is_one_of_ours():
    assert sorted(SOLVERS) == [0, 1, 2, 3, 4, 7, 11, 12, 13, 21]
    assert all(s in LOSSES[loss].liblinear for s, loss in SOLVERS.items())


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("-c 1 -C 2", "-c and -C are the same; give one of them"),
        ("-s 3 --loss hinge", "-s and --loss are the same; give one of them"),
        ("-B 1 --bias 1", "-B and --bias are the same; give one of them"),
        ("-e 0.1 --tol 1e-3", "-e and --tol are the same; give one of them"),
        ("-p 0.1 --epsilon 0.1", "-p and --epsilon are the same; give one of them"),
        ("-n 0.1 --nu 0.1", "-n and --nu are the same; give one of them"),
        ("-W v.txt --weights v.txt", "-W and --weights are the same; give one of them"),
        *(
            (
                f"-s {s}",
                (
                    f"-s {s} ({name}) is L1-regularised: it needs the data by columns, and a store "
                    "has it by rows; take -s 1 or -s 0 here and sbm export --prune for a sparse "
                    "model, or LIBLINEAR itself on data that fits in memory"
                ),
            )
            for s, name in ((5, "L1R_L2LOSS_SVC"), (6, "L1R_LR"))
        ),
        ("-s 8", "-s 8 is unknown; known are 0, 1, 2, 3, 4, 7, 11, 12, 13, 21"),
        ("-w1", "-w1 needs a number, for example -w1 2.5; nothing stands behind it"),
        ("-w1 x", "-w1 needs a number, for example -w1 2.5; 'x' stands behind it"),
        ("-w5 2", "class_weight names label 5, the labels are -3, 7"),
        ("-w1 --bias 1", "-w1 needs a number, for example -w1 2.5; '--bias' stands behind it"),
        ("-w7 2 --class-weight 7=3", "-w and --class-weight are the same; give one of them"),
        ("-B nan", "bias is nan; it must be 0 or a positive number"),
        ("-c 0", "C is 0; it must be a finite number above 0"),
        ("-n 2", "nu is 2; it must be above 0 and at most 1"),
    ],
)
def test_what_makes_no_sense_is_refused(run, data, line, sentence):
    code, _, err = run(f"train two.sbm {line}")
    assert err.strip() == f"sbm: {sentence}"
    assert code == 2
    assert not (data / "two.model.run").exists()


def test_the_command_line_overrides_the_file_in_either_language(run, data):
    (data / "a.toml").write_text('loss = "squared_hinge"\nC = 4.0\n')
    assert run("train two.sbm -q -o a.model --config a.toml -s 3 -c 0.5")[0] == 0
    chosen = settings_of(data / "a.model")
    assert (chosen["loss"], chosen["C"]) == ("hinge", 0.5)


def test_help_shows_the_table(run):
    code, out, _ = run("train --help")
    assert code == 0
    shown = " ".join(out.split())
    assert "The same in LIBLINEAR's words" in shown
    for option in OPTIONS:
        assert f"{option.flag} {option.metavar}" in shown
        assert " ".join(option.meaning.split()) in shown
    assert "-wL W --class-weight L=W" in shown
    assert shown.count("-B BIAS") == 1  # hidden in the list of ours


def test_json_is_the_same_in_either_language(run, data):
    reports = []
    for words in ("-s 3 -c 0.5", "--loss hinge -C 0.5"):
        code, out, _ = run(f"train two.sbm -o m.model --json {words}")
        assert code == 0
        report = json.loads(out)
        reports.append({name: report[name] for name in ("primal", "dual", "passes", "updates")})
    assert reports[0] == reports[1]


def test_expand_weights_leaves_everything_else_alone():
    kept = ["-w", "-wide", "--weights", "-W", "x", "-w1x", "-w1..2", "w1", "1", "--", "-wx1"]
    assert expand_weights(kept) == kept
    assert expand_weights(["-w1", "2", "-w-1", "3", "a"]) == [
        "--liblinear-w", "1=2", "--liblinear-w", "-1=3", "a",
    ]  # fmt: skip
    assert expand_weights(["-w+1e2", "-2"]) == ["--liblinear-w", "+1e2=-2"]


def test_weights_of_one_label_multiply_as_in_liblinear(run, data):
    assert run("train two.sbm -q -o a.model -w7 2 -w7.0 3")[0] == 0
    assert settings_of(data / "a.model")["class_weight"] == {"7": 6.0}


def test_cross_validation_is_a_command_of_its_own(run, data):
    for line in ("train two.sbm -v 5", "train -v 5 two.sbm", "train -v5 two.sbm", "train -v 5",
                 "tune two.sbm -C 1 -v 5"):  # fmt: skip
        code, _, err = run(line)
        assert (code, err.strip()) == (2, (
            "sbm: -v 5 is LIBLINEAR's cross-validation, and here -v tells more; "
            "use sbm tune --folds 5"
        ))  # fmt: skip
    (data / "two.sbm").rename(data / "5")
    assert run("train -v 5 -o a.model")[0] == 0


def test_read_options_knows_the_tolerance_of_each_solver():
    assert read_options({}, {}) == {}
    for s, usual in ((None, 0.1), (0, 0.01), (1, 0.1), (2, 0.01), (7, 0.1), (11, 1e-4), (21, 0.01)):
        given = {"-s": s, "-e": usual}
        assert read_options(given, {})["tol"] == pytest.approx(Settings.tol)
    with pytest.raises(SettingsError):
        read_options({"-c": 1.0}, {"C": 1.0})


def test_labels_of_the_fixture_are_those_the_lines_name():
    assert LABELS[:2] == [7.0, -3.0]
