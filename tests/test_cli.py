"""The command line, in this process and as a process of its own."""

import gzip
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from processes import finished, started, wait_until

from sbm import __version__
from sbm.cli import cli, main
from sbm.cli.command import Terminal
from sbm.interop.options import OPTIONS
from sbm.losses import LOSSES
from sbm.solver.cache import POLICIES
from sbm.store.model import Model

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "data" / "sample.svm"
COMMANDS = ["split", "expire", "train", "stream", "tune", "plan", "predict", "info", "check",
            "export", "report"]  # fmt: skip
README_LINES = [
    "sbm split big.svm --blocks 12",
    "sbm train --cache-frac 0.5 --mem 2GB",
    "sbm predict big.model test.svm -o out.txt",
]
NONE = "none.model does not exist; see that the name is right, or restore it"
STOPPED = "sbm: stopped; what was committed is kept, and the same command goes on from there"


def _process(line: str, folder: Path, **options):
    arguments = [sys.executable, "-m", "sbm", *shlex.split(line.removeprefix("sbm "))]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options
    return started(arguments, cwd=folder, env=environment, **streams)


def _shell(line: str, folder: Path) -> tuple[int, str, str]:
    """Run a line in a process of its own; exit code, stdout, stderr."""
    with _process(line, folder) as process:
        out, err = process.communicate()
    return process.returncode, out, err


@pytest.fixture
def run(capfd, monkeypatch, tmp_path):
    """Run a line in this process, in an empty folder; exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    handler = signal.getsignal(signal.SIGTERM)

    def call(line: str) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:  # anything else would be a traceback
            main(shlex.split(line.removeprefix("sbm ")))
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return end.value.code, out, err

    yield call
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder in which the three lines of the README have run."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copy(SAMPLE, folder / "big.svm")
    shutil.copy(SAMPLE, folder / "test.svm")
    return folder


@pytest.fixture
def here(made, tmp_path, run, readme) -> Path:
    """The current folder, with big.svm, test.svm, big.sbm and big.model."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    (tmp_path / "out.txt").unlink()
    return tmp_path


@pytest.fixture(scope="module")
def readme(made) -> list[tuple[int, str, str]]:
    return [_shell(line, made) for line in README_LINES]


# -------------------------------------------------------------------------------------- the help


def test_the_commands_are_those_that_are_tested():
    assert sorted(cli.commands) == sorted(COMMANDS)


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_the_lines_of_the_readme_stand_in_the_help(flag):
    result = CliRunner().invoke(cli, [flag])
    lines = [line.strip() for line in result.output.splitlines()]
    for expected in README_LINES:
        assert any(line.startswith(expected) for line in lines), expected
    assert "\\b" not in result.output


def test_the_version_is_told(run):
    assert run("sbm --version") == (0, f"sbm, version {__version__}\n", "")


# --------------------------------------------------------------------- the lines of the README


def test_the_lines_of_the_readme_work_in_a_folder_with_nothing_but_the_data(made, readme):
    for line, (code, out, err) in zip(README_LINES, readme, strict=True):
        assert code == 0, f"{line}: {err}"
        assert "Traceback" not in err
        assert out
    split, train, predict = (out for _, out, _ in readme)
    assert split.startswith("big.sbm: 40 rows, 20 features, 321 nonzeros in 12 blocks, ")
    assert re.match(r"big\.model: primal \S+, dual \S+, certified relative gap \S+ after ", train)
    assert re.match(r"accuracy \d+\.\d+ % \(\d+ of 40\), AUC 0\.\d+\n", predict)
    assert len((made / "out.txt").read_text().splitlines()) == 40
    assert sorted(os.listdir(made)) == [
        "big.model", "big.model.run", "big.sbm", "big.svm", "out.txt", "test.svm",
    ]  # fmt: skip


def test_results_go_to_stdout_and_progress_to_stderr(readme):
    _, (_, out, err), _ = readme
    assert err.startswith("pass  seconds    load    wait   solve")
    assert re.search(r"^ +1 .* certified gap|^ +1 ", err, re.M)
    assert "pass  seconds" not in out


@pytest.mark.parametrize(
    "line",
    ["split big.svm -o x.sbm -q", "train -o x.model -q", "predict big.model test.svm -q",
     "check big.sbm -q", "info big.sbm -q"],
)  # fmt: skip
def test_quiet_is_silent_on_stderr(run, here, line):
    code, out, err = run(line)
    assert (code, err) == (0, "")
    assert out


def test_predictions_may_go_to_stdout(run, here):
    assert run("predict big.model test.svm -o out.txt")[0] == 0
    code, out, err = run("predict big.model test.svm -o -")
    assert (code, out) == (0, (here / "out.txt").read_text())
    assert err.startswith("accuracy ")
    assert not (here / "-").exists()
    assert run("predict big.model test.svm -o - --json") == (
        2, "", "sbm: -o - and --json both write to standard output; give -o a file name\n",
    )  # fmt: skip


def test_a_reader_of_predictions_may_go(here):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        with _process("predict big.model test.svm -o -", here, stdout=writing) as process:
            _, err = process.communicate()
    finally:
        os.close(writing)
    assert (process.returncode, err) == (1, "")


@pytest.mark.parametrize("form", ["npz", "json"])
def test_exports_for_other_tools_are_one_way(run, here, form):
    assert run(f"export big.model --format {form} -o x.{form}")[0] == 0
    code, _, err = run(f"predict x.{form} test.svm")
    assert code == 1
    assert err == (
        f"sbm: x.{form} is no model to read; exports as npz and json are one way, for other "
        "tools, so give the model that was exported\n"
    )


@pytest.mark.parametrize(
    "line",
    ["split big.svm", "train big.sbm", "stream big.svm", "export big.model", "report big.model",
     "tune big.sbm --C 1"],
)  # fmt: skip
def test_what_is_a_file_does_not_go_to_stdout(run, here, line):
    before = sorted(os.listdir())
    assert run(f"{line} -o -") == (
        2, "",
        "sbm: -o - would write to standard output, which holds no such file; give -o a name\n",
    )  # fmt: skip
    assert sorted(os.listdir()) == before


# ------------------------------------------------------------------------- what a newcomer does


def _pipe(line: str, folder: Path, text: bytes) -> tuple[int, str, str]:
    """Run a line in a process of its own, with text on its standard input."""
    with _process(line, folder, stdin=subprocess.PIPE, text=False) as process:
        out, err = process.communicate(text, timeout=120)
    return process.returncode, out.decode(), err.decode()


def test_a_pipe_that_ends_inside_a_line_is_told(tmp_path):
    code, out, err = _pipe("split - -o x.sbm", tmp_path, b"1 1:1\n-1 2:1")
    assert code == 0
    assert out.startswith("x.sbm: 2 rows, ")
    assert err.splitlines()[-1] == (
        "sbm: the last line of standard input has no line end; it was taken as it stands"
    )
    code, _, err = _pipe("split - -o y.sbm", tmp_path, b"1 1:1\n-1 2:1\n")
    assert (code, err) == (0, "")
    (tmp_path / "cut.svm").write_bytes(b"1 1:1\n-1 2:1")  # many editors leave files so
    assert _shell("split cut.svm", tmp_path)[2] == ""


def test_a_bad_line_of_a_pipe_has_its_place(tmp_path):
    text = b"1 1:1\n" * 13 + b"spam\n"
    expected = "standard input, line 14: found 'spam' where a numeric label is expected\n"
    assert _pipe("split - -o x.sbm", tmp_path, text) == (1, "", f"sbm: {expected}")
    code, _, err = _pipe("split - -o x.sbm --on-error skip", tmp_path, text)
    assert (code, err) == (0, f"skipped {expected}")


def test_plain_text_with_the_name_of_compressed_text_is_told(run):
    Path("plain.svm.gz").write_text("1 1:1\n-1 2:1\n")
    code, out, err = run("split plain.svm.gz")
    assert (code, out) == (1, "")
    assert re.fullmatch(
        r"sbm: plain\.svm\.gz: cannot be read behind byte \d+ \(.*\); it is not compressed, "
        r"whatever its name says; rename it without \.gz\n", err,
    )  # fmt: skip


def test_numbers_in_the_place_of_classes_are_told(run):
    Path("prices.svm").write_text("".join(f"{k}.5 {k + 1}:1\n" for k in range(5)))
    assert run("split prices.svm -q")[0] == 0
    _, _, err = run("train prices.sbm")
    assert err.splitlines()[0] == (
        "labels of prices.sbm such as 0.5 are taken for 5 classes; to predict numbers, give "
        "--loss epsilon_insensitive"
    )
    assert "are taken for" not in run("train prices.sbm --loss epsilon_insensitive --fresh")[2]


def test_a_single_label_is_told(run):
    Path("one.svm").write_text("1 1:1\n1 2:1\n")
    assert run("split one.svm -q")[0] == 0
    code, _, err = run("train one.sbm")
    assert code == 0
    assert err.splitlines()[0] == (
        "all rows of one.sbm have the label 1, so there is nothing to tell apart"
    )
    assert "nothing to tell apart" not in run("train one.sbm --loss one_class --fresh")[2]


def test_speed_is_told_in_a_unit_that_suits_it(run, here):
    out = run("split big.svm -o x.sbm")[1]
    assert re.search(r" s \(\d[\d.]* (B|kB|MB)/s\)\n$", out)
    assert "(0 " not in out


def test_info_is_silent_of_what_there_is_not(run, here):
    assert run("export big.model --format sbm --prune 0.1 -o small.model -q")[0] == 0
    shown = run("info small.model")[1]
    assert "pruned: " in shown
    assert "None" not in shown


# ------------------------------------------------------------------------------- default names


@pytest.mark.parametrize(
    ("name", "store"),
    [("day.svm", "day.sbm"), ("sub/day.svm.gz", "day.sbm"), ("a.b.libsvm", "a.b.sbm"),
     ("plain", "plain.sbm"), ("x.txt", "x.sbm")],
)  # fmt: skip
def test_a_store_is_named_after_its_first_input(run, tmp_path, name, store):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    pack = gzip.compress if name.endswith(".gz") else bytes
    path.write_bytes(pack(SAMPLE.read_bytes()))
    code, out, _ = run(f"split {name}")
    assert code == 0
    assert out.startswith(f"{store}: 40 rows")
    assert (tmp_path / store / "manifest.json").exists()


def test_a_model_is_named_after_its_store(run, here):
    os.rename("big.sbm", "other.sbm")
    Path("sub").mkdir()
    shutil.move("other.sbm", "sub/other.sbm")
    code, out, _ = run("train sub/other.sbm")
    assert code == 0
    assert out.startswith("other.model: ")
    assert Path("other.model").is_file()


def test_without_a_store_here_train_says_how_to_make_one(run):
    assert run("train") == (
        1, "", "sbm: no *.sbm store in this folder; make one with sbm split, or name it\n",
    )  # fmt: skip


def test_several_stores_here_are_named(run, here):
    shutil.copytree("big.sbm", "small.sbm")
    code, out, err = run("train")
    assert (code, out) == (1, "")
    assert err == ("sbm: several stores in this folder (big.sbm, small.sbm); name the one to use\n")


# ---------------------------------------------------------------------------------------- JSON


def _strict(text: str) -> dict:
    """One JSON object on one line, without the NaN and Infinity that JSON does not have."""
    assert text.endswith("\n")
    assert text.count("\n") == 1

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


JSON_KEYS = {
    "split big.svm -o x.sbm --blocks 3 --json": {
        "store", "rows", "features", "nnz", "blocks", "bytes", "text_bytes", "skipped", "problems",
        "value_type", "labels", "left_out", "seconds",
    },
    "train -o x.model --json": {
        "primal", "dual", "relative_gap", "converged", "passes", "updates", "seconds", "bytes_read",
        "peak_rss_bytes", "n_support", "n_free", "model",
    },
    "predict big.model test.svm --json": {
        "rows", "accuracy", "auc", "confusion", "classes", "unknown_nonzeros", "unknown_labels",
    },
    "info big.sbm --json": {"kind", "rows", "features", "nnz", "labels", "bits_per_nonzero",
                            "sources"},
    "info big.model --json": {"kind", "certificate", "settings", "converged", "sources", "labels"},
    "info big.model.run --json": {"kind", "finished", "passes", "settings", "log"},
    "check big.sbm --json": {"store", "rows", "chunks", "bytes", "features", "unused_features",
        "elsewhere"},
}  # fmt: skip


@pytest.mark.parametrize("line", JSON_KEYS)
def test_json_is_one_object_with_the_promised_keys(run, here, line):
    code, out, err = run(line)
    assert (code, err) == (0, "")
    assert set(_strict(out)) >= JSON_KEYS[line]


def test_the_figures_of_a_training_fit_together(run, here):
    code, out, _ = run("train -o x.model --json --test test.svm")
    report = _strict(out)
    assert code == 0
    assert report["converged"] is True
    assert report["relative_gap"] <= 1e-3
    assert report["dual"] <= report["primal"]
    assert report["n_free"] <= report["n_support"] <= 40
    assert report["model"] == "x.model"
    assert 5e7 < report["peak_rss_bytes"] < 2e9
    seconds = report["seconds"]
    assert set(seconds) >= {"total", "load", "wait", "solve", "certify"}
    assert 0 < seconds["solve"] + seconds["certify"] + seconds["wait"] <= seconds["total"]
    assert report["bytes_read"] >= report["passes"] * 40 * 8
    assert report["test"] == _strict(run("predict x.model test.svm --json")[1])


def test_every_line_of_the_log_is_json(here):
    for line in Path("big.model.run/log.jsonl").read_text().splitlines():
        _strict(line + "\n")


# -------------------------------------------------------------------------- night after night


def test_append_names_its_store_and_expire_drops_a_source(run, here):
    Path("new.svm").write_text("1 3:1 77:2\n-1 3:2\n5 1:1\n")
    code, out, err = run("split --append big.sbm new.svm")
    assert (code, err) == (0, "")
    added = "3 rows appended (43 in all), 21 features, 4 nonzeros in 1 block"
    assert out.startswith(f"big.sbm: {added}")
    added = _strict(run("info big.sbm --json")[1])["sources"][1]["added"]
    line = f"new.svm, added {added}: 3 rows\nbig.sbm: 1 source {{}}, 3 rows in 1 block, "
    for option, word in (("--dry-run", "would be dropped"), ("", "dropped")):
        code, out, err = run(f"expire big.sbm --source new.svm {option}")
        assert (code, err) == (0, "")
        assert out.startswith(line.format(word))
        assert out.endswith(
            "; 40 rows left\nlabel 5 has no row left; it stays a class of the store\n"
        )
    assert run("check big.sbm -q")[0] == 0
    facts = run("info big.sbm")[1]
    assert re.search(r"^ +expired: 1 source of 3 rows, the last \S+$", facts, re.M)
    assert facts.count("added ") == 1
    report = _strict(run("expire big.sbm --before 30d --if-any --json")[1])
    assert (report["sources"], report["rows_left"]) == ([], 40)
    code, out, err = run("expire big.sbm --before 30d")
    assert (code, out) == (1, "")
    assert err.startswith(
        "sbm: big.sbm has no source that was added before 30d; the oldest, big.svm,"
    )
    code, out, err = run("expire big.sbm")
    assert (code, out) == (2, "")
    assert err == "sbm: give either --before DATE or --source NAME, to say what is to go\n"


def test_a_warm_start_needs_no_name(run, here):
    code, out, err = run("train big.sbm -o x.model --warm-start")
    assert code == 0
    assert err.startswith("x.model was not trained yet: starting from nothing\n")
    for line in (
        "train big.sbm -o x.model --warm-start",
        "train -o x.model --warm-start",
        "train -o x.model --warm-start big.sbm",
        "train --warm-start -o x.model",
        "train --warm-start --loss hinge -o x.model big.sbm",
        "train -o x.model --config warm.toml",
        "train -o x.model --config cold.toml --warm-start",
    ):
        Path("warm.toml").write_text("warm-start = true\n")
        Path("cold.toml").write_text("warm-start = false\n")
        code, out, err = run(line)
        assert code == 0, line
        assert err == (
            "x.model is trained already, with these settings on this store; --fresh trains it "
            "again\n"
        ), line
        code, out, err = run(f"{line} --fresh")
        assert (code, err) == (0, ""), line
        assert " after 0 passes\n" in out, line
    code, _, err = run("train big.sbm -o y.model --warm-start none.model")
    assert code == 1
    assert err.startswith(
        "sbm: none.model does not exist: a warm start takes the alphas of an earlier"
    )
    code, _, err = run("train big.sbm -o x.model --warm-start big.sbm")
    assert (code, err) == (1, (
        "sbm: big.sbm is a store, but a warm start takes a model or a run; name the store in front "
        "of --warm-start\n"
    ))  # fmt: skip
    assert run("train big.sbm -o x.model --warm-start --loss squared_hinge")[0] == 2


# --------------------------------------------------------------------------------- exit codes


def test_a_budget_that_ends_too_early_is_exit_code_3_and_the_model_says_so(run, here):
    code, out, err = run("train -o x.model --max-passes 1 --tol 1e-12")
    assert code == 3
    gap = re.search(r"certified relative gap (\S+) after 1 pass\n", out)[1]
    assert err.splitlines()[-1] == (
        f"sbm: not converged: relative gap {gap} is above --tol 1e-12; raise --max-passes"
    )
    facts = _strict(run("info x.model --json")[1])
    assert facts["converged"] is False
    assert facts["certificate"]["relative_gap"] == pytest.approx(float(gap), rel=0.01)
    assert re.search(r"^ +converged: False$", run("info x.model")[1], re.M)


def test_a_time_limit_is_a_budget(run, here):
    code, _, err = run("train -o x.model --time-limit 0.001s --tol 1e-12")
    assert code == 3
    assert "raise --time-limit" in err
    assert Path("x.model").exists()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("train --los hinge", r"No such option '?--los'?.*--loss"),
        ("train --cach-frac 0.5", r"No such option '?--cach-frac'?.*--cache-frac"),
        ("split big.svm --block 3", r"No such option '?--block'?.*--blocks"),
        ("train --loss hing", "'hing' is not one of 'hinge', 'squared_hinge'"),
        ("train -C much", "'much' is not a valid float"),
        ("train big.sbm more.sbm", r"Got unexpected extra argument \(more\.sbm\)"),
        ("predict big.model", "Missing argument 'INPUT'"),
        ("split", "Missing argument 'INPUT...'"),
        ("frobnicate", "No such command 'frobnicate'"),
    ],
)
def test_wrong_usage_is_exit_code_2(run, line, expected):
    code, out, err = run(line)
    assert (code, out) == (2, "")
    assert re.search(expected, err)
    assert "Usage: sbm" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("-C 0", "-C is 0; it must be a finite number above 0"),
        ("--cache-frac 1", "--cache-frac is 1; it must be at least 0 and below 1, or auto"),
        ("--mem lots", "'lots' is not a size; write it as 2GB, 300MB or 1.5GiB"),
        ("--time-limit soon", "'soon' is not a time; write it as 90s, 5m or 1.5h"),
        ("--tol 0", "--tol is 0; it must be a finite number above 0"),
        ("--class-weight 5=2", "--class-weight names label 5, the labels are -1, 1"),
        (
            "--class-weight 1:2",
            (
                "--class-weight is ['1:2']; write it as label=weight, for example 1=2.5, "
                "or balanced alone"
            ),
        ),
        ("--config none.toml", "none.toml does not exist; give a TOML file of settings"),
    ],
)
def test_settings_without_a_meaning_are_exit_code_2(run, here, options, message):
    assert run(f"train -o x.model {options}") == (2, "", f"sbm: {message}\n")
    assert not Path("x.model").exists()
    assert not Path("x.model.run").exists()


def test_options_are_named_as_they_were_typed(run, here):
    for line, name in (
        ("split big.svm -o x.sbm --blocks 0", "--blocks"),
        ("tune big.sbm --C 1 --folds 1", "--folds"),
        ("train -o x.model --caches 2", "--caches"),
        ("plan big.sbm --seconds 0", "--seconds"),
        ("stream big.svm -o x.model --max-passes 0", None),
        ("stream big.svm -o x.model --epsilon -1", "--epsilon"),
    ):
        code, out, err = run(line)
        assert (code, out) == (2, "")
        assert name is None or err.startswith(f"sbm: {name} is "), err


def test_a_round_count_beyond_the_machine_is_no_traceback(run, here):
    code, out, err = run(f"train -o x.model --rounds {10**30}")
    assert (code, out) == (2, "")
    assert err.startswith("sbm: --rounds is ")


def test_too_little_memory_is_refused_with_the_least_that_works(run, here):
    code, out, err = run("train -o x.model --mem 1MB")
    assert (code, out) == (1, "")
    found = re.fullmatch(
        r"sbm: --mem 1 MB is too little to train on big\.sbm, which needs .*; "
        r"the least that works is --mem (\d+MB)\n", err,
    )  # fmt: skip
    assert found
    assert not Path("x.model.run").exists()
    assert run(f"train -o x.model -q --mem {found[1]}")[0] == 0


# ------------------------------------------------------------------------- what users may cause


GARBAGE = bytes(np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8))


@pytest.fixture
def clutter(here) -> Path:
    """Everything that can be given in the wrong place."""
    Path("garbage").write_bytes(GARBAGE)
    Path("spam.svm").write_text("1 1:1\nspam\n")
    Path("empty.svm").write_bytes(b"")
    Path("folder").mkdir()
    data = bytearray(Path("big.model").read_bytes())
    data[-5] ^= 1
    Path("damaged.model").write_bytes(data)
    return here


NOT_SBM = (
    "is not an sbm file (or its first bytes are damaged); models are made by sbm train, "
    "stores by sbm split"
)
NO_STORE = "is not a store (it has no manifest.json); make a store with sbm split"
NOTHING = "does not exist; make a store with sbm split"
NO_FILE = "does not exist; give LIBSVM text files, globs, or - for a pipe"
NO_TEXT = "is a folder; give the LIBSVM text files in it"
DAMAGED = "is damaged (array 'bias_weights'); restore it from a copy or make it again"
TAKEN = "exists; add to it with --append, replace it with --force, or name another with -o"
NO_ROWS = "the input holds no rows; give LIBSVM text with at least one row"
NOWHERE = "none is no folder; make it, or choose another place with -o"
NEITHER = (
    "is neither a store (no manifest.json) nor a run (no run.json); a store is made by sbm split"
)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("split none.svm", f"none.svm {NO_FILE}"),
        ("split folder", f"folder {NO_TEXT}"),
        ("split big.sbm", f"big.sbm {NO_TEXT}"),
        ("split spam.svm", "spam.svm:2: found 'spam' where a numeric label is expected"),
        ("split empty.svm", NO_ROWS),
        ("split big.svm -o none/big.sbm", NOWHERE),
        ("train -o none/big.model", NOWHERE),
        ("split big.svm", f"big.sbm {TAKEN}"),
        ("train none.sbm", f"none.sbm {NOTHING}"),
        ("train folder", f"folder {NO_STORE}"),
        ("train big.model.run", f"big.model.run {NO_STORE}"),
        ("check none.sbm", f"none.sbm {NOTHING}"),
        ("check folder", f"folder {NO_STORE}"),
        ("predict none.model test.svm", NONE),
        ("predict big.svm test.svm", f"big.svm {NOT_SBM}"),
        ("predict garbage test.svm", f"garbage {NOT_SBM}"),
        ("predict empty.svm test.svm", f"empty.svm {NOT_SBM}"),
        ("predict damaged.model test.svm", f"damaged.model {DAMAGED}"),
        ("predict big.sbm/block-000000.sbb test.svm",
         "big.sbm/block-000000.sbb holds a chunk, a model is expected"),
        ("predict big.model none.svm", f"none.svm {NO_FILE}"),
        ("predict big.model folder", f"folder {NO_TEXT}"),
        ("predict big.model spam.svm -o out.txt",
         "spam.svm:2: found 'spam' where a numeric label is expected"),
        ("predict big.model test.svm -o none/out.txt", NOWHERE),
        ("info none", "none does not exist; give a store, a run or a model"),
        ("info folder", f"folder {NEITHER}"),
        ("info garbage", f"garbage {NOT_SBM}"),
        ("info damaged.model", f"damaged.model {DAMAGED}"),
    ],
)  # fmt: skip
def test_an_error_is_one_sentence_and_exit_code_1(run, clutter, line, message):
    assert run(line) == (1, "", f"sbm: {message}\n")
    assert not Path("out.txt").exists()
    assert not list(Path().rglob("*.tmp"))


@pytest.mark.parametrize("given", ["big.model", "big.svm", "garbage"])
def test_a_file_in_the_place_of_a_store_is_told_from_one(run, clutter, given):
    code, out, err = run(f"train {given}")
    assert (code, out) == (1, "")
    assert re.fullmatch(rf"sbm: {given} is not a store.*; make a store with sbm split\n", err)
    assert run(f"check {given}") == (1, "", (
        f"sbm: {given} is a file, and a store is a folder; models are verified whenever they are "
        f"read, as by sbm info {given}\n"
    ))  # fmt: skip


@pytest.mark.parametrize("given", ["big.sbm", "folder", "big.model.run"])
def test_a_folder_in_the_place_of_a_model_is_told_from_one(run, clutter, given):
    code, out, err = run(f"predict {given} test.svm")
    assert (code, out) == (1, "")
    assert re.fullmatch(rf"sbm: {given} is a folder.*model.*\n", err)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("split garbage -o x.sbm", "garbage"),
        ("split big.model -o x.sbm", "big.model"),
        ("predict big.model garbage -o out.txt", "garbage"),
        ("predict big.model big.model -o out.txt", "big.model"),
        ("train --test garbage -o x.model", "garbage"),
    ],
)
def test_binary_bytes_in_the_place_of_text_are_a_sentence_with_a_place(run, clutter, line, name):
    code, out, err = run(line)
    assert code == 1
    assert re.search(rf"^sbm: {name}:\d+: found .*\n\Z", err, re.M)
    assert not Path("out.txt").exists()
    assert not Path("x.sbm").exists()
    # A training that ended well is told, whatever comes of its test file.
    assert out.startswith("x.model: primal") if "train" in line else out == ""


def test_a_test_file_that_is_missing_is_noticed_before_the_training(run, here):
    code, out, err = run("train -o x.model --test none.svm")
    assert (code, out) == (1, "")
    assert err == "sbm: none.svm does not exist; give LIBSVM text files, globs, or - for a pipe\n"
    assert not Path("x.model").exists()
    assert not Path("x.model.run").exists()


def test_a_store_with_a_damaged_block_is_named_with_the_place(run, here):
    path = Path("big.sbm/block-000003.sbb")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    for line in ("check big.sbm -q", "train -q -o x.model", "predict big.model big.sbm -q"):
        code, out, err = run(line)
        assert (code, out) == (1, "")
        assert re.fullmatch(rf"sbm: {path} at byte 0 is damaged \(.*\); .*\n", err)
    assert not Path("x.model").exists()


def test_rare_features_are_left_out_and_the_command_and_the_store_say_how_many(run, tmp_path):
    Path("d.svm").write_text("1 1:1 2:1 5:3\n-1 1:1 6:2\n1 1:1 2:1\n")
    code, out, _ = run("split d.svm --min-count 3")
    assert code == 0
    assert re.fullmatch(
        r"d\.sbm: 3 rows, 1 feature, 3 nonzeros in 1 block, .*\n"
        r"3 features in fewer than 3 rows left out \(4 nonzeros\)\n",
        out,
    )
    Path("e.svm").write_text("1 2:1 7:1\n-1 2:1 1:1\n")
    assert run("split e.svm -o d.sbm --append --min-count 2 -q")[1].endswith(
        "1 feature in fewer than 2 rows left out (1 nonzero)\n"
    )
    shown = [line.strip() for line in run("info d.sbm")[1].splitlines()]
    assert (
        "left out: 3 features in fewer than 3 rows (4 nonzeros); "
        "1 feature in fewer than 2 rows (1 nonzero)"
    ) in shown
    assert _strict(run("info d.sbm --json")[1])["left_out"] == [
        {"min_count": 3, "features": 3, "nnz": 4}, {"min_count": 2, "features": 1, "nnz": 1}
    ]  # fmt: skip


def test_stores_of_whole_text_say_nothing_of_rare_features(run, here):
    assert "left out" not in run("split big.svm -o x.sbm")[1]
    assert "left out" not in run("info x.sbm")[1]
    assert run("split big.svm -o y.sbm --min-count 1")[1].count("\n") == 1


def test_standard_input_is_not_read_twice(run, here):
    refused = (
        "standard input can be read only once, and --min-count reads twice; write the text to a "
        "file first"
    )
    assert run("split - -o x.sbm --min-count 2") == (2, "", f"sbm: {refused}\n")
    assert not Path("x.sbm").exists()


@pytest.mark.parametrize("threads", ["0", "-1"])
def test_fewer_than_one_thread_is_refused(run, here, threads):
    expected = (2, "", f"sbm: --threads is {threads}; it must be at least 1\n")
    assert run(f"predict big.model test.svm --threads {threads}") == expected
    assert run(f"split big.svm -o x.sbm --threads {threads}") == expected


# ---------------------------------------------------------------------------------------- TOML


def test_the_keys_of_a_toml_file_are_the_options_and_options_override_them(run, here):
    Path("a.toml").write_text(
        'loss = "squared_hinge"\nC = 0.5\ntol = 0.5\nmax-passes = 7\ncache_frac = 0.25\n'
        "[class_weight]\n1 = 2.5\n"
    )
    assert run("train -q -o x.model --config a.toml -C 0.25 --seed 3")[0] == 0
    kept = _strict(run("info x.model --json")[1])["settings"]
    assert (kept["loss"], kept["C"], kept["max_passes"]) == ("squared_hinge", 0.25, 7)
    assert (kept["cache_frac"], kept["seed"], kept["class_weight"]) == (0.25, 3, {"1": 2.5})
    assert run("train -q -o y.model --config a.toml --class-weight -1=3 --class-weight 1=4")[0] == 0
    kept = _strict(run("info y.model --json")[1])["settings"]
    assert kept["class_weight"] == {"-1": 3.0, "1": 4.0}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("cash_frac = 1", "a.toml: unknown key 'cash_frac'; did you mean 'cache_frac'?"),
        ("C = 'much'", "a.toml: C is 'much'; a number is expected"),
        (
            "rounds = 1.5",
            "a.toml: rounds is 1.5; a whole number, a list such as 2,2,5, or auto is expected",
        ),
        (
            "policy = 'gradien'",
            (
                f"a.toml: unknown policy 'gradien', known are {', '.join(POLICIES)}; "
                "did you mean 'gradient'?"
            ),
        ),
        (
            "loss = 'hing'",
            f"a.toml: unknown loss 'hing', known are {', '.join(LOSSES)}; did you mean 'hinge'?",
        ),
        (
            "class_weight = 3",
            (
                "a.toml: class_weight is 3; write it as label=weight, for example 1=2.5, "
                "or balanced alone"
            ),
        ),
    ],
)
def test_a_bad_toml_file_is_one_sentence_and_exit_code_2(run, here, content, message):
    Path("a.toml").write_text(content + "\n")
    assert run("train -o x.model --config a.toml") == (2, "", f"sbm: {message}\n")


@pytest.mark.parametrize("key", ["loss", "policy"])
@pytest.mark.parametrize("value", ["5", "['hinge']", "{a = 1}", "true"])
def test_a_toml_name_that_is_no_text_is_no_traceback(run, here, key, value):
    Path("a.toml").write_text(f"{key} = {value}\n")
    code, out, err = run("train -o x.model --config a.toml")
    assert (code, out) == (2, "")
    assert re.match(rf"sbm: .*{key}", err)


# ------------------------------------------------------------------------------------- predict


def test_predict_says_what_it_found(run, here):
    Path("t.svm").write_text("1 1:1 500:1\n-1 2:1\n5 1:1\n")
    code, out, _ = run("predict big.model t.svm -o out.txt --decision")
    assert code == 0
    lines = out.splitlines()
    assert re.fullmatch(r"accuracy \d+\.\d{4} % \(\d of 3\), AUC [01]\.\d{6}", lines[0])
    assert lines[1].split() == ["label", "precision", "recall", "F1", "rows", "predicted"]
    assert [line.split()[0] for line in lines[2:4]] == ["-1", "1"]
    assert re.fullmatch(r"confusion: \d true \+, \d false \+, \d true -, \d false -", lines[4])
    assert lines[5:] == [
        "labels that the model does not know: 1 row",
        "1 nonzero of 4 (25 %) ignored: the model has no weight for their ids",
    ]
    assert len(Path("out.txt").read_text().splitlines()) == 3


def test_predict_of_no_rows_says_so(run, here):
    Path("none.svm").write_bytes(b"")
    assert run("predict big.model none.svm") == (0, "no rows\n", "")
    assert _strict(run("predict big.model none.svm --json")[1])["accuracy"] is None


def test_labels_of_many_digits_are_shown_with_all_of_them(run, tmp_path):
    Path("d.svm").write_text("20240131 1:1\n20240132 2:1\n" * 5)
    assert run("split d.svm -q")[0] == 0
    assert run("train -q")[0] == 0
    out = run("predict d.model d.svm")[1]
    assert "20240131" in out
    assert "20240132" in out
    assert "20240131" in run("info d.sbm")[1]


def _multi_model(n_classes: int) -> Model:
    """Feature k is class 10 k, as sure as can be."""
    labels = [10.0 * k for k in range(1, n_classes + 1)]
    return Model(np.arange(1, n_classes + 1), np.eye(n_classes), labels)


def test_predict_with_several_classes_says_what_it_found(run):
    _multi_model(3).save("m.model")
    Path("t.svm").write_text("10 1:1\n" * 3 + "20 1:1\n" * 2 + "30 3:1 9:1\n10 2:1\n7 3:1\n")
    code, out, err = run("predict m.model t.svm -o out.txt --top 2 --confusion c.tsv")
    assert (code, err) == (0, "")
    f1 = [6 / 9, 0, 2 / 3]
    assert out.splitlines() == [
        "accuracy 50.0000 % (4 of 8), macro F1 0.444444, micro F1 0.533333",
        "top-2 accuracy 87.5000 %",
        "   label  precision     recall         F1      rows  predicted",
        f"      10   0.600000   0.750000{f1[0]:11.6f}         4          5",
        "      20   0.000000   0.000000   0.000000         2          1",
        f"      30   0.500000   1.000000{f1[2]:11.6f}         1          2",
        "most frequent confusions (true -> predicted: rows)",
        "      20 -> 10: 2",
        "      10 -> 20: 1",
        "labels that the model does not know: 1 row",
        "1 nonzero of 9 (11 %) ignored: the model has no weight for their ids",
    ]
    assert Path("out.txt").read_text() == "10 20\n" * 5 + "30 10\n20 10\n30 10\n"
    assert Path("c.tsv").read_text().splitlines()[0] == "true\\predicted\t10\t20\t30"
    report = _strict(run("predict m.model t.svm --json")[1])
    assert (report["top_n"], report["accuracy"]) == (1, 0.5)
    assert report["confusion"] == [
        [10, 10, 3],
        [10, 20, 1],
        [20, 10, 2],
        [30, 30, 1],
        [None, 30, 1],
    ]


def test_of_many_classes_the_most_frequent_and_the_worst_are_shown_and_all_with_v(run):
    _multi_model(40).save("m.model")
    rows = [f"{10 * k} {k}:1\n" * (50 - k) for k in range(1, 31)]
    rows += [f"{10 * k} {k + 1}:1\n" * (50 - k) for k in range(31, 36)]  # 36 to 40 have no rows
    Path("t.svm").write_text("".join(rows))
    out = run("predict m.model t.svm")[1].splitlines()
    table = "   label  precision     recall         F1      rows  predicted"
    shown = [line.split()[0] for line in out]
    assert out[1:3] == ["the 10 classes with most rows:", table]
    assert shown[3:13] == [str(10 * k) for k in range(1, 11)]
    assert out[13:15] == ["the 10 classes with the lowest F1:", table]
    worst = [*range(31, 36), *range(1, 6)]  # of equal ones those with more rows
    assert shown[15:25] == [str(10 * k) for k in worst]
    assert out[25] == "25 of 40 classes left out; -v shows all"
    assert out[26] == "most frequent confusions (true -> predicted: rows)"
    assert out[27:] == [f"{10 * k:>8} -> {10 * k + 10}: {50 - k}" for k in range(31, 36)]
    out = run("predict m.model t.svm -v")[1].splitlines()
    assert out[1] == table
    assert [line.split()[0] for line in out[2:42]] == [str(10 * k) for k in range(1, 41)]


def test_ten_confusions_are_shown_at_most_and_none_of_a_perfect_prediction(run):
    _multi_model(30).save("m.model")
    Path("t.svm").write_text("".join(f"10 {k}:1\n" * k for k in range(1, 31)))
    out = run("predict m.model t.svm")[1].splitlines()
    assert out[-11:] == [
        "most frequent confusions (true -> predicted: rows)",
        *(f"      10 -> {10 * k}: {k}" for k in range(30, 20, -1)),
    ]
    Path("t.svm").write_text("10 1:1\n20 2:1\n")
    assert "confusion" not in run("predict m.model t.svm")[1]


def test_no_known_label_at_all_is_no_traceback(run):
    _multi_model(40).save("m.model")
    Path("t.svm").write_text("7 1:1\n")
    code, out, err = run("predict m.model t.svm")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "accuracy 0.0000 % (0 of 1), macro F1 0.000000, micro F1 0.000000",
        "40 of 40 classes left out; -v shows all",
        "labels that the model does not know: 1 row",
    ]
    Path("none.svm").write_bytes(b"")
    assert run("predict m.model none.svm") == (0, "no rows\n", "")


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ("--top 0", 2, "--top is 0; it must be at least 1"),
        ("--top 4", 2, "--top is 4; the model has 3 classes, so it must be at most that"),
        ("--top 2 --decision", 2,
         ("--top is 2, but decision values are written for all labels, in the order of the labels; "
          "leave out --top or --decision")),
        ("--confusion c.tsv --confusion c.jpg", 2,
         ("the confusion matrix cannot be written as c.jpg; "
          "choose a name that ends in .tsv (a table) or .png (a picture)")),
        ("--confusion none/c.tsv", 1,
         "none is no folder; make it, or choose another place with --confusion"),
        ("--confusion t.tsv", 2, "the output t.tsv would replace an input; choose another name"),
    ],
)  # fmt: skip
def test_options_of_predict_without_a_meaning_are_one_sentence(run, options, code, message):
    _multi_model(3).save("m.model")
    Path("t.tsv").write_text("spam\n")
    assert run(f"predict m.model t.tsv -o out.txt {options}") == (code, "", f"sbm: {message}\n")
    assert sorted(os.listdir()) == ["m.model", "t.tsv"]


def test_the_confusion_of_two_classes_is_written_too(run, here):
    pytest.importorskip("matplotlib")
    line = "predict big.model test.svm --confusion c.tsv --confusion c.png"
    code, out, err = run(line)
    assert (code, err) == (0, "")
    assert out == run("predict big.model test.svm")[1]
    (tn, fp), (fn, tp) = _strict(run("predict big.model test.svm --json")[1])["confusion"]
    assert Path("c.tsv").read_text() == (f"true\\predicted\t-1\t1\n-1\t{tn}\t{fp}\n1\t{fn}\t{tp}\n")
    assert Path("c.png").read_bytes().startswith(b"\x89PNG")


# ------------------------------------------------------------------- pipes, Ctrl-C and SIGTERM


def test_a_reader_that_has_gone_is_no_traceback(here):
    reading, writing = os.pipe()
    os.close(reading)  # as if `| head` had ended
    try:
        with _process("info big.model", here, stdout=writing) as process:
            _, err = process.communicate()
    finally:
        os.close(writing)
    assert err == ""
    assert process.returncode == 1


def test_head_gets_its_lines(here):
    script = f"{shlex.quote(sys.executable)} -m sbm info big.sbm | head -n 1"
    done = finished(
        ["sh", "-c", script], cwd=here, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True
    )
    assert done.stdout.split() == ["kind:", "store"]
    assert done.stderr == ""


@pytest.fixture(scope="module")
def long_store(tmp_path_factory) -> Path:
    """A folder with a store of 4000 random rows, on which a tight tolerance takes long."""
    folder = tmp_path_factory.mktemp("long")
    random = np.random.default_rng(0)
    lines = []
    for _ in range(4000):
        ids = np.sort(random.choice(300, 8, replace=False)) + 1
        values = random.integers(-99, 100, 8) / 100
        label = random.choice(["+1", "-1"])
        lines.append(f"{label} " + " ".join(f"{i}:{v}" for i, v in zip(ids, values, strict=True)))
    (folder / "big.svm").write_text("\n".join(lines) + "\n")
    assert _shell("sbm split big.svm --blocks 6 -q", folder)[0] == 0
    return folder


@pytest.fixture
def long(long_store, tmp_path) -> Path:
    shutil.copytree(long_store, tmp_path, dirs_exist_ok=True)
    return tmp_path


FOR_EVER = "sbm train --tol 1e-14 --max-passes 100000 -C 10"


def _stop(line: str, folder: Path, number: signal.Signals) -> tuple[int, list[str], float]:
    """Start a training, stop it after two passes; exit code, stderr, seconds it took to stop."""
    with _process(line, folder) as process:
        seen = []
        while len(seen) < 3:  # the head of the table and two passes
            seen.append(process.stderr.readline())
            assert seen[-1], f"ended by itself: {seen}"
        begin = time.monotonic()
        process.send_signal(number)
        out, err = process.communicate()
        seconds = time.monotonic() - begin
    assert out == ""
    return process.returncode, (seen[-1] + err).splitlines(), seconds


def test_ctrl_c_and_sigterm_stop_at_once_and_leave_nothing_half_written(long):
    for number in (signal.SIGTERM, signal.SIGINT):  # the second one: the same command again
        code, err, seconds = _stop(FOR_EVER, long, number)
        assert code == 130
        assert err[-1] == STOPPED
        assert not [text for text in err if "Traceback" in text or "Error" in text]
        assert seconds < 5
        assert sorted(os.listdir(long)) == ["big.model.run", "big.sbm", "big.svm"]
        assert not list(long.rglob("*.tmp"))
    code, out, _ = _shell("sbm train --tol 1e-14 --max-passes 2 -C 10", long)
    assert code == 3
    assert out.startswith("big.model: primal ")


def test_a_second_training_of_the_same_model_is_refused(run, long):
    with _process(FOR_EVER, long, stderr=subprocess.DEVNULL) as first:
        wait_until((long / "big.model.run" / "log.jsonl").exists, first)
        code, out, err = run("sbm train -q")
    assert (code, out) == (1, "")
    assert err == (
        "sbm: the run big.model.run is in use by another sbm process; "
        "wait for it to end or stop it\n"
    )


# ------------------------------------------------------------------------------ many classes


@pytest.mark.parametrize(
    "loss", sorted(n for n, loss in LOSSES.items() if "classification" in loss.tasks)
)
def test_train_predict_and_info_of_many_classes(run, loss):
    """Trained on the command line; labels that are no codes, three best ones, confusions."""
    labels = [-3, 0.5, 7, 1e6]
    rows = [(k, k % 4) for k in range(80)]
    text = "".join(f"{labels[c]:g} {c + 1}:2 {5 + k % 9}:1\n" for k, c in rows)
    wrong = "7 1:2\n"  # looks like a -3
    Path("t.svm").write_text(text)
    Path("p.svm").write_text(text + wrong)
    assert run("split t.svm -o t.sbm --blocks 3")[0] == 0
    task = "--task classification"  # squared_error is for targets, too
    assert run(f"train t.sbm -o m.model --loss {loss} {task} --tol 1e-4")[0] == 0
    code, out, _ = run("predict m.model p.svm -o out.txt --top 3 --confusion c.tsv --json")
    assert code == 0
    report = _strict(out)
    assert (report["rows"], report["top_n"]) == (81, 3)
    assert report["accuracy"] == pytest.approx(80 / 81)
    assert sum(n for _, _, n in report["confusion"]) == 81
    assert [7.0, -3.0, 1] in report["confusion"]
    lines = [line.split() for line in Path("out.txt").read_text().splitlines()]
    assert [float(line[0]) for line in lines] == [*(labels[c] for _, c in rows), -3]
    assert all(len({*map(float, line)} & {*labels}) == 3 for line in lines)
    head, *table = (line.split("\t") for line in Path("c.tsv").read_text().splitlines())
    counts = {(row[0], c): n for row in table for c, n in zip(head[1:], row[1:], strict=True)}
    assert {k: n for k, n in counts.items() if n != "0"} == {
        ("-3", "-3"): "20", ("0.5", "0.5"): "20", ("7", "7"): "20", ("7", "-3"): "1",
        ("1000000", "1000000"): "20",
    }  # fmt: skip
    code, out, _ = run("info m.model --json")
    assert code == 0
    info = _strict(out)
    assert info["labels"] == labels
    assert (info["loss"], info["outputs"], info["converged"]) == (loss, 4, True)
    assert info["certificate"]["relative_gap"] <= 1e-4
    code, out, err = run("info m.model")
    assert (code, err) == (0, "")
    assert loss in out


# ------------------------------------------------------------------------- tables of the README


def test_the_readme_has_the_problems_of_losses_and_all_that_liblinear_knows():
    text = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (½.*) \| (.*)\|$", text, re.MULTILINE)
    told = {name: LOSSES[name] for name, _, _ in rows}
    assert list(told) == [name for name in LOSSES if name in told]
    assert {name for name, loss in LOSSES.items() if loss.liblinear} <= set(told)
    for name, problem, numbers in rows:
        assert problem.replace("\\|", "|") == told[name].problem
        assert tuple(map(int, re.findall(r"`-s (\d+)`", numbers))) == told[name].liblinear, name


def test_the_readme_has_every_option_of_liblinear():
    text = (Path(__file__).parent.parent / "docs/train.md").read_text("utf-8")
    table = text[text.index("## In LIBLINEAR's words") :].split("\n\n")[2]
    shown = CliRunner().invoke(cli, ["train", "--help"]).output
    for option in OPTIONS:
        assert f"`{option.flag} {option.metavar}`" in table
        assert f"{option.flag} {option.metavar}" in shown


# ------------------------------------------------------------------------------------ progress


class _Tty(io.StringIO):
    def isatty(self):
        return True


PASS = {
    "pass": 3, "elapsed": 1.0, "seconds": {"load": 0.5, "wait": 0.1, "solve": 0.8},
    "certificate": None, "estimated_relative_gap": 0.02, "rows_per_second": 1e6,
    "nnz_per_second": 1e7, "dual": 12.5, "cached_rows": 7, "cached_free": 5, "cache_hits": 3,
    "resident_bytes": 99_000_000, "passes_left": 3.4,
}  # fmt: skip


def test_on_a_terminal_a_line_follows_the_blocks_and_a_row_each_pass(monkeypatch):
    monkeypatch.setattr(sys, "stderr", _Tty())
    progress = Terminal()
    progress.row(PASS)
    progress.start("pass 4", 12, "blocks")
    progress._bar.mininterval = 0
    progress.advance(5, rows=1000, memory=120_000_000)
    progress.finish()
    shown = sys.stderr.getvalue()
    assert "   3     1.00    0.50    0.10    0.80" in shown
    assert "\rpass 4, about 3 to go:  42%|" in shown
    assert "memory 120 MB" in shown


def test_where_nobody_looks_there_are_lines_now_and_then(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    progress = Terminal()
    progress.start("pass 4", 12, "blocks")
    for done, now[0] in enumerate((5.0, 11.0, 12.0, 22.0), 1):
        progress.advance(done, rows=1000 * done, memory=120_000_000)
    progress.finish()
    assert sys.stderr.getvalue().splitlines() == [
        "pass 4: 2 blocks of 12, 17 %, about 55 s left, 182 rows/s",
        "pass 4: 4 blocks of 12, 33 %, about 44 s left, 182 rows/s",
    ]
