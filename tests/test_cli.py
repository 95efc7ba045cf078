"""The command line, in this process: results, exit codes, refusals, configuration, progress."""

import gzip
import io
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from pathlib import Path

import click
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inside import Terminal, cli, format_size, patch
from inside import cli_show_module as show

import sbm
from sbm import Model

SAMPLE = Path(__file__).resolve().parent.parent / "data" / "sample.svm"


@pytest.fixture
def run(run, monkeypatch, tmp_path):
    """Run a line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return run


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """Text, its store and a model."""
    folder = tmp_path_factory.mktemp("made")
    shutil.copy(SAMPLE, folder / "big.svm")
    shutil.copy(SAMPLE, folder / "test.svm")
    sbm.split(folder / "big.svm", folder / "big.sbm", blocks=4)
    sbm.train(folder / "big.sbm", folder / "big.model")
    (folder / "sub").mkdir()
    return folder


@pytest.fixture
def here(made, tmp_path, run) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


def strict(text: str) -> dict:
    """One JSON object on one line, without the NaN and Infinity that JSON does not have."""
    assert text.endswith("\n")
    assert text.count("\n") == 1

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


# -------------------------------------------------------------------------------------- results


def test_quick_start(run, tmp_path):
    shutil.copy(SAMPLE, "big.svm")
    code, out, err = run("sbm split big.svm --blocks 12")
    assert (code, err) == (0, "")
    assert out.startswith("big.sbm: 40 rows, 20 features, 321 nonzeros in 12 blocks\n")
    assert re.search(r"\n11 kB, \d\.\d s\n$", out)  # too small for a speed
    code, out, err = run("sbm train --cache-frac 0.5 --mem 2GB")
    assert (code, out[:18]) == (0, "big.model: primal ")
    assert err.startswith("pass  seconds  gap (tol 0.001)")
    assert re.search(r"^ +1 ", err, re.M)
    assert max(map(len, err.splitlines())) < 80
    code, out, err = run("sbm predict big.model big.svm -o out.txt")
    assert (code, err) == (0, "")
    found = re.match(r"accuracy ([\d.]+) % \((\d+) of 40\), AUC [01]\.\d{6}\n", out)
    assert float(found[1]) == pytest.approx(100 * int(found[2]) / 40)
    written = Path("out.txt").read_text()
    assert len(written.splitlines()) == 40
    assert sorted(os.listdir()) == ["big.model", "big.model.run", "big.sbm", "big.svm", "out.txt"]
    code, out, err = run("sbm predict big.model big.svm -o -")
    assert (code, out, err[:9]) == (0, written, "accuracy ")
    assert run("sbm --version") == (0, f"sbm, version {sbm.__version__}\n", "")
    for line in Path("big.model.run/log.jsonl").read_text().splitlines():
        strict(line + "\n")


def percent(x: float) -> str:
    return f"{100 * x:.4f} %"


def count(n: int, noun: str) -> str:
    return f"{n:,} {noun}" + ("" if n == 1 else "es" if noun.endswith("s") else "s")


def of_train(r):
    return [
        f"{r['model']}: primal {r['primal']:.8g}, dual {r['dual']:.8g}",
        f"gap {r['relative_gap']:.2e} after {count(r['passes'], 'pass')}",
        f"{r['n_support']:,} support vectors ({r['n_free']:,} free), {r['updates']:,} updates",
        format_size(r["bytes_read"]) + " read",
    ]


def of_tune(r):
    lines = [f"{r['folds']} folds, {r['passes']} passes", f"best C is {r['best']:g}", " *\n"]
    for row in r["settings"]:
        lines.append(f"{row['C']:>10g}  {row['mean']:12.6f} {row['std']:9.6f} {row['passes']:7d} ")
    return [*lines, *of_train(r["train"])]


# Facts of the printed text, from the JSON of the same command.
RESULTS = {
    "split big.svm -o x.sbm --blocks 3 --min-count 5 --force": lambda r: [
        f"x.sbm: {r['rows']} rows, {r['features']} features, {r['nnz']} nonzeros in 3 blocks",
        f"{format_size(r['bytes'])}, ",
        f"{count(r['left_out']['features'], 'feature')} in fewer than 5 rows left out",
        f"left out ({count(r['left_out']['nnz'], 'nonzero')})",
    ],
    "check big.sbm": lambda r: [
        f"big.sbm is sound: {r['rows']} rows in {count(r['chunks'], 'chunk')}",
        f"{format_size(r['bytes'])}, {r['features']} features",
    ],
    "train -o x.model --test test.svm": lambda r: [
        *of_train(r), f"test accuracy {percent(r['test']['accuracy'])}",
    ],
    "tune big.sbm --C 0.1,1 --folds 3 -o x.model": of_tune,
    "stream big.svm test.svm -o x.model": lambda r: [
        f"x.model: 80 rows in {count(r['blocks'], 'block')}, 20 features",
        f"progressive loss {r['loss']:.6f}, accuracy {percent(r['accuracy'])}",
        f"at least {r['dual']:.8g}", f"{r['updates']:,} updates",
    ],
    "report big.model -o x.html": lambda r: ["x.html"],
    "predict big.model test.svm --decision -o x.txt": lambda r: [
        f"accuracy {percent(r['accuracy'])} ({r['correct']} of 40), AUC {r['auc']:.6f}",
        *(f"{c['label']:>8g}{c['precision']:11.6f}{c['recall']:11.6f}{c['f1']:11.6f}"
          f"{c['support']:10}{c['predicted']:11}\n" for c in r["classes"]),
        "confusion: {1[1]} true +, {0[1]} false +, {0[0]} true -, {1[0]} false -".format(
            *r["confusion"]),
    ],
    "info big.sbm": lambda r: [
        "rows: 40", f"bytes: {format_size(r['bytes'])}", "nnz: 321",
        "labels: " + ", ".join(f"{a:g} ({n})" for a, n in zip(*r["labels"].values(), strict=True)),
        f"big.svm: {format_size(r['sources'][0]['bytes'])}, 40 rows, 0 skipped, added 20",
        f"sha256 {r['sources'][0]['sha256'][:16]}\n",
    ],
    "info big.model": lambda r: [
        "settings: defaults", "converged: True", "labels: -1, 1",
        f"relative gap {r['certificate']['relative_gap']:.10g}".replace(" gap", "_gap"),
    ],
    "info big.model.run": lambda r: [f"passes: {r['passes']}", "finished: True"],
}  # fmt: skip


@pytest.mark.parametrize("line", RESULTS)
def test_text_output_matches_json(run, here, line):
    code, out, err = run(f"{line} --json")
    assert (code, err) == (0, "")
    report = strict(out)
    if "x.model" in line:
        shutil.rmtree("x.model.run")
        os.remove("x.model")
    code, out, err = run(f"{line} -q")
    assert (code, err) == (0, "")
    for fact in RESULTS[line](report):
        assert fact in out
    assert "None" not in out
    if "train" in line:
        seconds, numbers = report["seconds"], re.search(r"(.*) s: solve (.*), wait", out)
        assert 0 < seconds["solve"] + seconds["certify"] + seconds["wait"] <= seconds["total"]
        assert float(numbers[2]) <= float(numbers[1])
        assert 5e7 < report["peak_rss_bytes"] < 2e9
        assert report["bytes_read"] >= report["passes"] * 40 * 8
        assert report["test"] == strict(run("predict x.model test.svm --json")[1])


def test_plan_output_matches_json(run, here, monkeypatch):
    code, out, _ = run("plan big.sbm --json")
    report = strict(out)
    patch(monkeypatch, "plan", lambda *arguments, **options: report)
    code, out, err = run("plan big.sbm")
    assert (code, err) == (0, "")
    assert out.startswith("big.sbm: 40 rows, 20 features, 321 nonzeros\n")
    lines = dict(re.findall(r"^ *(\S.*?)  (.*)$", out, re.M))
    memory = report["memory"]
    assert lines["memory"].startswith(f"{format_size(memory['total'])} of 2 GB: ")
    assert lines["memory"].count(" ") > 2 * len(memory)
    assert lines["blocks"].startswith(f"4, of up to {report['block_rows']} rows and ")
    assert lines["cache"].startswith(f"{count(report['cache_rows'], 'row')}, ")
    assert lines["reading"].startswith(f"{format_size(report['bytes_a_pass'])} in the first pass, ")
    rate = report["disk_bytes_per_second"]
    assert lines["speed"].startswith(f"{format_size(rate)}/s from disk, ")
    for name, line in (("decode", "speed"), ("solve", "pass")):
        speed = report[f"{name}_nnz_per_second"]
        shown = f"{speed / 1e6:,.0f} million" if speed >= 1e6 else f"{speed:,.0f}"
        assert f"{shown} nonzeros/s" in lines[line]
    assert lines["pass"].startswith(f"up to {count(report['rounds'], 'round')} of ")
    assert lines["solver"] == "dual"


def test_plan_shows_several_processes(run, here):
    code, out, _ = run("plan big.sbm --solver dual --launch 3")
    assert code == 0
    assert "in each process: " in out
    assert "to look at all rows" in run("plan big.sbm --loss log_loss --penalty l1")[1]
    assert run("plan big.sbm --launch 0")[0] == 2


def test_not_converged_exits_with_3(run, here):
    code, out, err = run("train -o x.model --max-passes 1 --tol 1e-12")
    gap = re.search(r"certified relative gap (\S+) after 1 pass\n", out)[1]
    assert code == 3
    assert err.splitlines()[-1].startswith(f"sbm: not converged: relative gap {gap} is above --tol")
    assert err.endswith("raise --max-passes\n")
    assert strict(run("info x.model --json")[1])["converged"] is False
    code, _, err = run("train -o y.model --time-limit 0.001s --tol 1e-12")
    assert (code, err.endswith("raise --time-limit\n")) == (3, True)
    assert Path("y.model").exists()


def test_advice_depends_on_cause_of_nonconvergence(run, tmp_path):
    random = np.random.default_rng(1)
    age, income = random.uniform(1, 2, 2000), random.normal(5e4, 1.5e4, 2000)
    y = np.where(age + random.normal(0, 0.2, 2000) > 1.5, 1, -1)
    rows = [f"{label} 1:{a} 2:{b}\n" for label, a, b in zip(y, age, income, strict=True)]
    Path("raw.svm").write_text("".join(rows))
    run("split raw.svm")
    code, _, err = run("train raw.sbm --max-passes 20 --solver dual --parts blocks -C 1e6")
    assert code == 3
    assert "raise --max-passes" not in err
    advice = err.splitlines()[-1]
    assert "--scale" not in advice
    assert "--solver auto, --cache-frac auto" in advice
    assert "more --mem" not in advice  # all blocks stayed
    assert "smaller -C" in advice
    line = "train raw.sbm --max-passes 21 --solver dual --parts blocks -C 1e6 --cache-frac auto"
    assert "--cache-frac auto" not in run(line)[2]
    rows = [f"{label} 1:{a} 2:{b / 5e4}\n" for label, a, b in zip(y, age, income, strict=True)]
    Path("scaled.svm").write_text("".join(rows))
    run("split scaled.svm")
    code, _, err = run("train scaled.sbm --max-passes 4 --tol 1e-5 --solver dual")
    assert "raise --max-passes\n" in err  # the gap falls, but more and more slowly


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ("", r"[\d,]+ support vectors \([\d,]+ free\), [\d,]+ updates"),
        ("--loss squared_hinge", r"[\d,]+ support vectors, [\d,]+ updates"),
        ("--loss log_loss", r"[\d,]+ updates"),
        ("--loss squared_error", r"[\d,]+ updates"),
        ("--loss log_loss --penalty l1", r"[\d,]+ of [\d,]+ weights not 0, [\d,]+ updates"),
    ],
)
def test_support_vectors_are_those_of_the_loss(run, here, more, line):
    code, out, _ = run(f"train big.sbm -o s.model --fresh -C 0.01 {more}")
    assert (code, re.fullmatch(line, out.splitlines()[1]) is not None) == (0, True), out
    report = strict(run(f"train big.sbm -o s.model -C 0.01 --json {more}")[1])
    found = strict(run("info s.model --json")[1])
    assert ("n_support" in report) == ("support" in line) == ("n_support" in found["certificate"])
    assert ("n_free" in report) == ("free" in line) == ("n_free" in found["certificate"])
    run("report s.model -o s.html")
    page = Path("s.html").read_text(encoding="utf-8")
    assert ("support vectors</t" in page) == ("support" in line)


@pytest.mark.parametrize(
    ("left", "is_falling", "text"),
    [
        (3.2, True, "; raise --max-passes (about 3 more passes)"),
        (None, True, "; raise --max-passes"),
        (95.0, False, ", and the gap falls slowly (about 95 more passes at this rate)"),
        (None, False, ", and the gap hardly falls"),
    ],
)
def test_advice_counts_passes_only_with_a_trend(left, is_falling, text):
    report = {"passes": 50, "passes_left": left, "is_falling": is_falling, "relative_gap": 0.5,
              "visits_cut_short": 0, "blocks": 1, "decoded_share": 1.0}  # fmt: skip
    first = next(show.not_converged(report, sbm.Settings()))
    assert first == f"sbm: not converged: relative gap 5.00e-01 is above --tol 0.001{text}"


def test_tune_reports_best_at_grid_edge(run, here):
    for grid in ("1e-5,1e-4", "1e-3,1e-2,0.1", "0.1"):
        out = run(f"tune big.sbm --C {grid} --folds 3 -o x.model --fresh")[1]
        best = float(re.search(r"best C is (\S+),", out)[1])
        values = [float(C) for C in grid.split(",")]
        is_edge = len(values) > 1 and best in (values[0], values[-1])
        assert ("a wider grid" in out) == is_edge, out


def test_finished_training_and_warm_start(run, here):
    code, out, err = run("train big.sbm -o x.model --warm-start")
    assert (code, err.count("\n")) == (0, out.count("x") + len(err.splitlines()) - 1)
    assert err.startswith("x.model has no earlier run")
    Path("warm.toml").write_text("warm-start = true\n")
    for line in (
        "train big.sbm -o x.model --warm-start",
        "train -o x.model --warm-start big.sbm",
        "train --warm-start --loss hinge -o x.model big.sbm",
        "train -o x.model --config warm.toml",
    ):
        code, out, err = run(line)
        assert (code, err) == (0, ""), line
        assert out.startswith("x.model: already trained on this store"), line
        assert "peak memory" not in out  # of the training before
        assert strict(run(f"{line} --json")[1])["was_finished"], line
        code, out, err = run(f"{line} --fresh")
        assert (code, err) == (0, ""), line
        assert " after 0 passes\n" in out, line


def test_append_and_expire(run, here):
    Path("new.svm").write_text("1 3:1 77:2\n-1 3:2\n5 1:1\n")
    assert run("split --append big.sbm new.svm")[0] == 1  # label 5 is new
    line = "split --append big.sbm new.svm --new-labels"
    assert "3 rows appended (43 in total), 21 features" in run(line)[1]
    assert "left out" not in run("info big.sbm")[1]
    line = "expire big.sbm --source new.svm"
    report = strict(run(f"{line} --dry-run --json")[1])
    for option, word in (("--dry-run", "would be dropped"), ("", "dropped")):
        lines = run(f"{line} {option}")[1].splitlines()
        assert lines[0] == f"new.svm, added {report['sources'][0]['added']}: 3 rows"
        assert lines[1] == (
            f"big.sbm: 1 source {word}, 3 rows in 1 block, {format_size(report['bytes'])}; "
            "40 rows left"
        )
        assert lines[2].startswith("label 5 has no rows left")
    facts = run("info big.sbm")[1]
    assert re.search(r"^ +expired: 1 source of 3 rows, the last 20\S+$", facts, re.M)
    report = strict(run("expire big.sbm --before 30d --if-any --json")[1])
    assert (report["sources"], report["rows_left"]) == ([], 40)
    Path("e.svm").write_text("1 1:1 500:1\nspam\n-1 1:1\n1 2:1")
    code, out, err = run("split e.svm -o big.sbm --append --min-count 2 --on-error skip")
    assert (code, err[:17]) == (0, "skipped e.svm:2: ")
    assert "1 line skipped\n1 feature in fewer than 2 rows left out (1 nonzero)\n" in out
    assert "left out: 1 feature in fewer than 2 rows (1 nonzero)\n" in run("info big.sbm")[1]


@pytest.mark.parametrize(
    ("name", "store"),
    [("day.svm", "day.sbm"), ("sub/day.svm.gz", "day.sbm"), ("a.b.libsvm", "a.b.sbm"),
     ("plain", "plain.sbm")],
)  # fmt: skip
def test_names_follow_the_input(run, tmp_path, name, store):
    (tmp_path / "sub").mkdir()
    pack = gzip.compress if name.endswith(".gz") else bytes
    (tmp_path / name).write_bytes(pack(SAMPLE.read_bytes()))
    assert run(f"split {name}")[1].startswith(f"{store}: 40 rows")
    shutil.move(store, "sub/other.sbm")
    assert run("train sub/other.sbm")[1].startswith("other.model: ")
    assert Path("other.model").is_file()


def test_pipe_is_read_and_problems_are_reported(run, monkeypatch):
    for text, code, facts in (
        (b"1 1:1\n-1 2:1", 0, "sbm: the last line of standard input has no newline"),
        (b"1 1:1\n-1 2:1\n", 0, ""),
        (b"1 1:1\n" * 13 + b"spam\n", 1, "sbm: standard input, line 14: found 'spam'"),
    ):
        reading, writing = os.pipe()
        os.write(writing, text)
        os.close(writing)
        with open(reading) as pipe:
            monkeypatch.setattr(sys, "stdin", pipe)
            found, _, err = run("split - -o x.sbm --force")
        assert (found, err.startswith(facts), err.count("\n")) == (code, True, bool(facts))


def test_suspicious_labels_are_reported(run):
    Path("prices.svm").write_text("".join(f"{k}.5 {k + 1}:1\n" for k in range(5)))
    Path("years.svm").write_text("".join(f"{1990 + k} {k + 1}:1\n" for k in range(30)))
    Path("one.svm").write_text("1 1:1\n1 2:1\n")
    for name, fact, loss in (
        ("prices", "such as 0.5 are treated as 5 classes", "epsilon_insensitive"),
        ("years", "such as 1990 are treated as 30 classes", "epsilon_insensitive"),
        ("one", "all rows of one.sbm have the label 1", "one_class"),
    ):
        assert run(f"split {name}.svm -q")[0] == 0
        code, _, err = run(f"train {name}.sbm")
        assert (code, fact in err.splitlines()[0]) == (0, True)
        assert fact not in run(f"train {name}.sbm --loss {loss} --fresh")[2]


# ------------------------------------------------------------------------------------- refusals

# Arguments, and facts that the error line on stderr contains. The exit code is 1.
ERRORS = {
    "split none.svm": "none.svm does not exist", "split sub": "sub is a folder",
    "split spam.svm": "spam.svm:2: found 'spam'", "split empty.svm": "no rows",
    "split big.svm": "big.sbm exists; --force -o", "split big.svm -o none/x.sbm": "none -o",
    "split garbage -o x.sbm": "garbage:1: found", "split plain.svm.gz": "plain.svm.gz: .gz",
    "train": "several stores big.sbm damaged.sbm", "train -o none/x.model big.sbm": "none -o",
    "train none.sbm": "none.sbm does not exist", "train sub": "sub is a folder without",
    "train big.model": "big.model is not a store",
    "train big.sbm -o x.model --test none.svm": "none.svm does not exist",
    "train big.sbm -o x.model --mem 1MB": "--mem 1 MB too small at least --mem",
    "train big.sbm -o x.model --warm-start none.model": "none.model does not exist",
    "train big.sbm -o x.model --warm-start big.sbm": "big.sbm is a store, a model or a run",
    "check none.sbm": "none.sbm does not exist", "check big.model": "big.model is a file",
    "check damaged.sbm": "damaged.sbm/block-000003.sbb at byte 0",
    "predict none.model test.svm": "none.model does not exist",
    "predict big.svm test.svm": "big.svm is not an sbm file",
    "predict damaged.model test.svm": "damaged.model damaged bias_weights",
    "predict big.sbm test.svm": "big.sbm is a folder model",
    "predict big.sbm/block-000000.sbb test.svm": "block-000000.sbb holds chunk data",
    "predict big.model spam.svm -o x.txt": "spam.svm:2: 'spam'",
    "predict big.model test.svm -o none/x.txt": "none -o",
    "predict big.model test.svm --confusion none/c.tsv": "none --confusion",
    "predict x.npz test.svm": "x.npz export", "info none": "none does not exist",
    "info sub": "sub manifest.json run.json", "info garbage": "garbage is not an sbm file",
    "expire big.sbm --before 30d": "no source before 30d; big.svm",
    "export .": ". is a folder without a name", "train big.sbm --warm-start /": "/ is a folder",
}  # fmt: skip
# The same with exit code 2: options and settings without a meaning, named as they were typed.
MISUSES = {
    "train big.sbm -C 0": "-C is 0; above 0", "train big.sbm --cache-frac 1": "--cache-frac is 1;",
    "train big.sbm --mem lots": "'lots' is not a size", "train big.sbm --tol 0": "--tol is 0;",
    "train big.sbm --class-weight 5=2": "--class-weight names label 5, -1, 1",
    "train big.sbm --class-weight 1:2": "--class-weight is 1:2;",
    f"train big.sbm --rounds {10**30}": "--rounds is 1000",
    "train big.sbm --config none.toml": "none.toml does not exist",
    "train big.sbm -o x.model --warm-start big.model --loss squared_hinge": "loss hinge",
    "split big.svm -o x.sbm --blocks 0": "--blocks is 0;",
    "train ''": "DATA is empty", "predict '' test.svm": "MODEL is empty",
    "train big.sbm -o ''": "-o is empty", "train big.sbm --validate ''": "validate is empty",
    f"train big.sbm --rounds {'1' * 5000}": "--rounds is 111 2^63",
    f"stream big.svm -o x.model --checkpoint-every {'1' * 5000}rows": "--checkpoint-every is",
    "plan big.sbm --launch 999999999": "--launch is 999999999; 10000",
    "train big.sbm --config deep.toml": "deep.toml is nested",
    "train big.svm -o x.model --label y": "--label big.svm is no table",
    "train none.svm --penalty l1": "--penalty l1 hinge log_loss",
    "cat big.sbm -o x.csv": "x.csv csv libsvm", "cat big.sbm -o x.foo": "x.foo .svm --format",
    "cat big.sbm -o x.svm.gz": "x.svm.gz ending",
    "export big.model -o x.foo": "x.foo .npz --format",
    "predict big.model test.svm -o x.txt.zst": "x.txt.zst .parquet",
    "predict big.model test.svm -o x.feather": ".feather .parquet",
    "split big.svm -o x.sbm --threads -1": "--threads is -1; at least 1",
    "split - -o x.sbm --min-count 2": "standard input can be read only once --min-count",
    "split big.svm -o -": "-o - standard output", "report big.model -o -": "-o - standard output",
    "tune big.sbm --C 1 --folds 1": "--folds is 1;", "tune big.sbm --C x": "'x' is not a list",
    "stream big.svm -o x.model --epsilon -1": "--epsilon is -1;",
    "stream big.svm -o x.model --resume big.model": "--resume big.model leave out -o",
    "expire big.sbm": "--before DATE --source NAME",
    "predict big.model test.svm -o - --json": "-o - --json standard output",
    "predict three.model test.svm --top 0": "--top is 0; at least 1",
    # LIBLINEAR's words
    "train big.sbm -c 1 -C 2": "-c and -C", "train big.sbm -s 3 --loss hinge": "-s and --loss",
    "train big.sbm -B 1 --bias 1": "-B and --bias", "train big.sbm -e 0.1 --tol 1": "-e and --tol",
    "train big.sbm -W v.txt --weights v.txt": "-W and --weights",
    "train big.sbm -w1 2 --class-weight 1=3": "-w and --class-weight",
    "train big.sbm -s 5 --penalty l1": "-s and --penalty",
    "train big.sbm -s 8": "-s 8 is unknown; use one of 0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 21",
    "train big.sbm -w1": "-w1 number nothing", "train big.sbm -w1 x": "-w1 'x'",
    "train big.sbm -w1 --bias 1": "-w1 '--bias'", "train big.sbm -w5 2": "label 5, -1, 1",
    "train big.sbm -B nan": "bias is nan;", "train big.sbm -n 2": "nu is 2;",
    "train -v 5 big.sbm": "-v 5 sbm tune --folds 5", "train -v5": "sbm tune --folds 5",
    "tune big.sbm --C 1 -v 5": "sbm tune --folds 5",
}  # fmt: skip


@pytest.fixture(scope="module")
def clutter(made, tmp_path_factory) -> Path:
    """Everything that can be given in the wrong place."""
    folder = tmp_path_factory.mktemp("clutter")
    shutil.copytree(made, folder, dirs_exist_ok=True)
    (folder / "garbage").write_bytes(np.random.default_rng(0).bytes(5000))
    (folder / "spam.svm").write_text("1 1:1\nspam\n")
    (folder / "empty.svm").write_bytes(b"")
    (folder / "deep.toml").write_text("a = " + "[" * 3000)
    (folder / "plain.svm.gz").write_text("1 1:1\n-1 2:1\n")
    data = bytearray((folder / "big.model").read_bytes())
    data[-5] ^= 1
    (folder / "damaged.model").write_bytes(data)
    shutil.copytree(folder / "big.sbm", folder / "damaged.sbm")
    block = folder / "damaged.sbm" / "block-000003.sbb"
    data = bytearray(block.read_bytes())
    data[-1] ^= 1
    block.write_bytes(data)
    sbm.export(folder / "big.model", folder / "x.npz", format="npz")
    multi_model(3).save(folder / "three.model")
    return folder


@pytest.mark.parametrize(
    ("line", "facts", "expected"),
    [*((line, facts, 1) for line, facts in ERRORS.items()),
     *((line, facts, 2) for line, facts in MISUSES.items())],
)  # fmt: skip
def test_error_is_one_line_and_changes_nothing(run, clutter, monkeypatch, line, facts, expected):
    monkeypatch.chdir(clutter)
    before = sorted(clutter.rglob("*"))
    code, out, err = run(line)
    assert (code, out, err.count("\n")) == (expected, "", 1), err
    assert err.startswith("sbm: ")
    for fact in facts.split():
        assert fact in err
    assert sorted(clutter.rglob("*")) == before


def test_bad_test_file_does_not_lose_the_training(run, clutter, monkeypatch, tmp_path):
    shutil.copytree(clutter / "big.sbm", "big.sbm")
    Path("late.svm").write_text("1 1:1\n" * 400_000 + "garbage\n")  # after the first piece
    code, out, err = run("train --test late.svm -o x.model")
    assert (code, out[:16]) == (1, "x.model: primal ")
    assert re.search(r"^sbm: late\.svm:400001: found .*\n\Z", err, re.M)


def test_suggested_minimum_memory_works(run, here):
    err = run("train -o x.model --mem 1MB")[2]
    least = re.search(r"at least --mem (\d+MB)\n", err)[1]
    assert run(f"train -o x.model -q --mem {least}")[0] == 0


# Values of options and names of files that mean nothing, or nearly.
HOSTILE = ["1" * 5000, "-1", "1e400", "nan", "0.0", "²", "", ".", "none/x", "x" * 5000, "a\nb"]
LINES = {
    "split": "split big.svm -o n.sbm", "train": "train big.sbm -o n.model --max-passes 1",
    "predict": "predict big.model test.svm", "stream": "stream big.svm -o n.model",
    "tune": "tune big.sbm -o n.model --folds 2 -C 1 --max-passes 1",
    "plan": "plan big.sbm --seconds 0.1",
    "info": "info big.sbm", "inspect": "inspect big.model", "cat": "cat big.sbm -o n.svm",
    "report": "report big.model", "export": "export big.model", "check": "check big.sbm",
    "expire": "expire big.sbm --dry-run --source x",
}  # fmt: skip
OPTIONS = sorted(
    (command, max(option.opts, key=len))
    for command in LINES
    for option in cli.commands[command].params
    if isinstance(option, click.Option) and not option.is_flag
    if option.name not in ("launch", "liblinear_w", "warm_start", "keep_store", "loss")
)


@given(st.sampled_from(OPTIONS), st.sampled_from(HOSTILE))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_hostile_values_end_in_a_sentence(run, made, monkeypatch, option, value):
    command, name = option
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(made, folder, dirs_exist_ok=True)
        monkeypatch.chdir(folder)
        code, _, err = run(f"{LINES[command]} {name} {shlex.quote(value)}")
        monkeypatch.chdir("/")
    assert code in (0, 1, 2, 3)
    assert code in (0, 3) or "sbm: " in err or "Error: " in err


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        ("train --los hinge", "'?--los'?.*--loss"), ("train --nu much", "'much' is not"),
        ("predict a.model", "'INPUT'"), ("frobnicate", "'frobnicate'"),
    ],
)  # fmt: skip
def test_wrong_usage_exits_with_2(run, line, facts):
    code, out, err = run(line)
    assert (code, out) == (2, "")
    assert re.search(facts, err)
    assert "Usage: sbm" in err


@pytest.mark.parametrize(
    ("error", "code", "facts"),
    [
        (MemoryError(), 1, "--mem"), (OSError(5, "Input/output error", "a.sbb"), 1, "a.sbb: Input"),
        (OSError("odd"), 1, "odd"), (sbm.DataError("a\nb"), 1, "a\\nb"),
        (sbm.SettingsError("path is 1"), 2, "path is 1"),
    ],
)  # fmt: skip
def test_errors_become_exit_codes(run, monkeypatch, error, code, facts):
    def fail(path):
        raise error

    patch(monkeypatch, "info", fail)
    found, out, err = run("info a")
    assert (found, out, err.count("\n")) == (code, "", 1)
    assert err.startswith(f"sbm: {facts}") or (not error.args and facts in err)


# -------------------------------------------------------------------- settings and LIBLINEAR


def settings_of(path: str) -> dict:
    return Model.load(path).info["settings"]


def test_options_override_config_file(run, here):
    Path("a.toml").write_text(
        'loss = "squared_hinge"\nC = 0.5\ntol = 0.5\nmax-passes = 7\ncache_frac = 0.25\n'
        "[class_weight]\n1 = 2.5\n"
    )
    assert run("train -q -o x.model --config a.toml -C 0.25 --seed 3")[0] == 0
    kept = settings_of("x.model")
    assert (kept["loss"], kept["C"], kept["max_passes"]) == ("squared_hinge", 0.25, 7)
    assert (kept["cache_frac"], kept["seed"], kept["class_weight"]) == (0.25, 3, {"1": 2.5})
    assert run("train -q -o y.model --config a.toml -s 3 -c 2 --class-weight -1=3")[0] == 0
    kept = settings_of("y.model")
    assert (kept["loss"], kept["C"], kept["class_weight"]) == ("hinge", 2, {"-1": 3})


@pytest.mark.parametrize(
    ("content", "facts"),
    [("cash_frac = 1", "'cash_frac'.*'cache_frac'"), ("C = 'much'", "C is 'much'"),
     ("policy = 'gradien'", "'gradien'.*'gradient'"), ("loss = ['hinge']", "loss is"),
     ("policy = {a = 1}", "policy is"), ("class_weight = 3", "class_weight is 3")],
)  # fmt: skip
def test_bad_configuration_names_the_file(run, here, content, facts):
    Path("a.toml").write_text(content + "\n")
    code, out, err = run("train -o x.model --config a.toml")
    assert (code, out) == (2, "")
    assert re.match(rf"sbm: a\.toml: .*{facts}", err)


# LIBLINEAR's words, and ours.
PAIRS = [
    *((f"-s {s}", f"--loss {loss}") for s, loss in (
        (0, "log_loss"), (1, "squared_hinge"), (2, "squared_hinge"), (3, "hinge"),
        (4, "crammer_singer"), (7, "log_loss"), (11, "squared_epsilon_insensitive"),
        (12, "squared_epsilon_insensitive"), (13, "epsilon_insensitive"), (21, "one_class"))),
    ("-s 13 -p 0.3", "--loss epsilon_insensitive --epsilon 0.3"),
    ("-s 21 -n 0.3", "--loss one_class --nu 0.3"),
    ("-B 2 -s 3", "--bias 2"), ("-B -1", "--loss squared_hinge"),
    ("-W v.txt", "--weights v.txt --loss squared_hinge"),
    ("-w1 2.5 -w-1 0.5 --loss hinge", "--class-weight 1=2.5 --class-weight -1=0.5"),
    ("-w+1 1e1 -w1.0 3 --config hinge.toml", "--class-weight 1=30"),
    *((f"-s {s} -e {usual}", f"--loss {loss}") for s, usual, loss in (
        (0, 0.01, "log_loss"), (1, 0.1, "squared_hinge"), (2, 0.01, "squared_hinge"),
        (11, 1e-4, "squared_epsilon_insensitive"), (21, 0.01, "one_class"))),
    ("-c 0.25 -e 0.01", "-C 0.25 --tol 1e-4 --loss squared_hinge"),
]  # fmt: skip


@pytest.mark.parametrize(("theirs", "ours"), PAIRS)
def test_liblinear_options_give_the_same_model(run, here, theirs, ours):
    Path("v.txt").write_text("1\n2\n" * 20)
    Path("hinge.toml").write_text("loss = 'hinge'\n")
    (here / "5").mkdir()
    for name, words in (("a", f"{theirs} -v"), ("b", ours)):
        assert run(f"train big.sbm -q -o {name}.model --max-passes 3 {words}")[0] in (0, 3)
    a, b = Model.load("a.model"), Model.load("b.model")
    assert a.info["settings"].pop("tol") == pytest.approx(b.info["settings"].pop("tol"), rel=1e-9)
    assert a.info["settings"] == b.info["settings"]
    np.testing.assert_array_equal(a.W, b.W)
    np.testing.assert_array_equal(a.bias_weights, b.bias_weights)


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        ("train -s 0 big.svm new.model", ["new.model", "sbm train big.svm -o new.model"]),
        ("train big.svm big.model", ["big.model", "sbm train big.svm -o big.model"]),
        ("train big.svm their.model", ["their.model", "-o their.model"]),
        ("train big.svm 'a b'", ["-o 'a b'"]),
        ("predict test.svm big.model out", ["sbm predict big.model test.svm -o out"]),
        ("predict test.svm their.model out", ["sbm predict their.model test.svm -o out"]),
        ("predict test.svm big.model", ["sbm predict big.model test.svm"]),
        ("predict big.model test.svm out", ["out", "sbm predict big.model test.svm -o out"]),
        ("predict big.model test.svm out more", ["more"]),
        ("predict -b 1 test.svm big.model out", ["--probability"]),
        ("train -R big.svm", ["--intercept"]), ("train -m 2 big.svm", ["--threads"]),
        ("train big.svm -b 1", ["--probability", "--calibrate"]),
        ("train -C big.svm", ["sbm tune"]), ("train big.svm -C", ["sbm tune"]),
        ("train -v 5 big.svm", ["sbm tune --folds 5"]),
        ("train big.svm --lambda 0.1", ["-C 1/lambda"]),
        ("tune big.sbm --C 1 --alpha=0.1", ["-C 1/lambda"]),
    ],
)  # fmt: skip
def test_words_of_other_tools_get_the_right_command(run, here, line, facts):
    sbm.export(here / "big.model", here / "their.model")
    before = {path: path.stat().st_mtime_ns for path in here.rglob("*")}
    code, out, err = run(line)
    assert (code, out) == (2, "")
    assert all(fact in err for fact in facts), err
    assert {path: path.stat().st_mtime_ns for path in here.rglob("*")} == before


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        ("train big.svm nope.svm", ["nope.svm does not exist"]),
        ("train big.svm 'n*'", ["n* does not exist"]),
        ("train nope big.svm", ["nope does not exist"]),
    ],
)
def test_missing_data_is_not_taken_for_a_model(run, here, line, facts):
    code, _, err = run(line)
    assert code == 1
    assert all(fact in err for fact in facts)
    assert " -o " not in err


def test_files_that_are_read_are_named(run, here):
    shutil.copy("big.svm", "big.svm.t")
    Path("big.svm.t").write_text("1 1:1\n-1 2:1\n")
    err = run("train big.svm big.svm.t -o x.model")[2]
    assert "big.svm.t is read as training data" in err
    assert "--test big.svm.t" in err
    assert "big.svm and big.svm.t: " in err
    assert "--test" not in run("train test.svm -o y.model")[2]


@pytest.mark.parametrize(
    ("line", "word"),
    [("train --loss logistic", "log_loss"),
     ("train --loss logistc", "log_loss"), ("train --loss ridge", "squared_error"),
     ("stream --loss svm", "hinge"), ("split x --format cvs", "csv"),
     ("precompile --loss hing", "hinge"), ("tune --C 1 --metric aucc", "auc")],
)  # fmt: skip
def test_unknown_choice_suggests_a_word(run, line, word):
    code, _, err = run(line)
    assert code == 2
    assert f"did you mean '{word}'?" in err


@pytest.mark.parametrize(
    ("line", "options"),
    [("train x --tolerance 1e-3", "'--tol'"), ("train x --los hinge", "'--loss'"),
     ("predict m x --proba", "'--probability'"), ("train x --max_passes 9", "'--max-passes'"),
     ("train x --epochs 9", None)],
)  # fmt: skip
def test_unknown_option_suggests_the_likely_one(run, line, options):
    code, _, err = run(line)
    assert code == 2
    assert (f"Did you mean {options}?" in err) if options else ("mean" not in err)


def test_help_and_version_have_other_names(run):
    assert run("help train")[:2] == run("train --help")[:2]
    assert run("help")[:2] == run("--help")[:2]
    assert run("-V") == run("--version")
    code, _, err = run("help frobnicate")
    assert code == 2
    assert "'frobnicate'" in err


# -------------------------------------------------------------------------------------- predict


def multi_model(n_classes: int) -> Model:
    """Feature k is class 10 k, as sure as can be."""
    labels = [10.0 * k for k in range(1, n_classes + 1)]
    return Model(np.arange(1, n_classes + 1), np.eye(n_classes), labels)


def test_predict_with_several_classes(run):
    multi_model(3).save("m.model")
    Path("t.svm").write_text("10 1:1\n" * 3 + "20 1:1\n" * 2 + "30 3:1 9:1\n10 2:1\n7 3:1\n")
    code, out, err = run("predict m.model t.svm -o out.txt --top 2 --confusion c.tsv")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "accuracy 50.0000 % (4 of 8), macro F1 0.444444, micro F1 0.533333",
        "top-2 accuracy 87.5000 %",
        "   label  precision     recall         F1      rows  predicted",
        "      10   0.600000   0.750000   0.666667         4          5",
        "      20   0.000000   0.000000   0.000000         2          1",
        "      30   0.500000   1.000000   0.666667         1          2",
        "most frequent confusions (true -> predicted: rows)",
        "      20 -> 10: 2",
        "      10 -> 20: 1",
        "labels unknown to the model: 1 row",
        "1 nonzero of 9 (11 %) ignored: feature ids not in the training data",
    ]
    assert Path("out.txt").read_text() == "10 20\n" * 5 + "30 10\n20 10\n30 10\n"
    assert Path("c.tsv").read_text().splitlines()[0] == "true\\predicted\t10\t20\t30"
    report = strict(run("predict m.model t.svm --json")[1])
    assert report["confusion"] == [
        [10, 10, 3], [10, 20, 1], [20, 10, 2], [30, 30, 1], [None, 30, 1],
    ]  # fmt: skip


def test_only_some_of_many_classes_are_shown(run):
    multi_model(40).save("m.model")
    rows = [f"{10 * k} {k}:1\n" * (50 - k) for k in range(1, 31)]
    rows += [f"{10 * k} {k + 1}:1\n" * (50 - k) for k in range(31, 36)]  # 36 to 40 have no rows
    Path("t.svm").write_text("".join(rows))
    out = run("predict m.model t.svm")[1].splitlines()
    shown = [line.split()[0] for line in out]
    assert out[1] == "the 10 classes with most rows:"
    assert shown[3:13] == [str(10 * k) for k in range(1, 11)]
    assert out[13] == "the 10 classes with the lowest F1:"
    assert shown[15:25] == [str(10 * k) for k in [*range(31, 36), *range(1, 6)]]
    assert out[25] == "25 of 40 classes not shown; use -v to see all"
    assert out[27:] == [f"{10 * k:>8} -> {10 * k + 10}: {50 - k}" for k in range(31, 36)]
    out = run("predict m.model t.svm -v")[1].splitlines()
    assert [line.split()[0] for line in out[2:42]] == [str(10 * k) for k in range(1, 41)]
    multi_model(30).save("m.model")
    Path("t.svm").write_text("".join(f"10 {k}:1\n" * k for k in range(1, 31)))
    out = run("predict m.model t.svm")[1].splitlines()
    assert (len(out), "left out" in str(out)) == (2 + 30 + 1 + 10, False)
    assert out[-10:] == [f"      10 -> {10 * k}: {k}" for k in range(30, 20, -1)]


def test_predict_without_known_labels(run):
    multi_model(3).save("m.model")
    Path("t.svm").write_text("7 1:1 " + " ".join(f"{k}:1" for k in range(4, 104)) + "\n")
    code, out, err = run("predict m.model t.svm")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "accuracy 0.0000 % (0 of 1), macro F1 0.000000, micro F1 0.000000"
    assert "confusion" not in out
    assert out.splitlines()[-2].endswith(": 1 row")
    assert out.splitlines()[-1].startswith("100 nonzeros of 101 (99 %) ")
    Path("none.svm").write_bytes(b"")
    assert run("predict m.model none.svm") == (0, "no rows\n", "")
    assert strict(run("predict m.model none.svm --json")[1])["accuracy"] is None


def test_regression_and_long_labels_are_shown(run):
    Path("d.svm").write_text("20240131 1:1\n20240132 2:1\n" * 5)
    assert run("split d.svm -q")[0] == 0
    out = run("train -q --test d.svm")[1]
    assert re.search(r"^20240131 .*\n20240132 ", out, re.M)
    assert "20240131 (5), 20240132 (5)" in run("info d.sbm")[1]
    assert run("train -q -o r.model --loss squared_error --fresh")[0] in (0, 3)
    line = "predict r.model d.svm"
    out, report = run(line)[1], strict(run(f"{line} --json")[1])
    assert out == (
        f"MSE {report['mse']:.6g}, MAE {report['mae']:.6g}, R2 {report['r2']:.6g}, "
        f"squared correlation {report['squared_correlation']:.6g} (10 rows)\n"
    )
    Path("one.svm").write_text("20240131 1:1\n")
    assert "R2 -" in run("predict r.model one.svm")[1]


# ------------------------------------------------------------------------------------- progress


class Tty(io.StringIO):
    def isatty(self):
        return True


PASS = {
    "pass": 3, "elapsed": 1.0, "seconds": {"load": 0.5, "wait": 0.1, "solve": 0.8},
    "certificate": None, "estimated_relative_gap": 0.02, "tol": 1e-3, "rows_per_second": 1e6,
    "nnz_per_second": 1e7, "dual": 12.5, "cached_rows": 7, "cached_free": 5, "cache_hits": 3,
    "visits": 1000, "resident_bytes": 99_000_000, "passes_left": 3.4,
}  # fmt: skip
DOUBLING = {
    "rows": 1024, "loss": 0.5, "last_loss": None, "accuracy": 0.75, "last_accuracy": 0.8,
    "features": 20, "cached_rows": 7, "elapsed": 1.5, "resident_bytes": 99_000_000,
}  # fmt: skip


def screen(text: str) -> list[str]:
    """Return the lines that are left on a terminal of 80 columns."""
    lines = [""]
    for part in re.findall(r"\r|\n|[^\r\n]+", text):
        if part == "\n":
            lines.append("")
        elif part == "\r":
            column = 0
        else:
            column = len(lines[-1]) if not lines[-1] else column
            lines[-1] = lines[-1][:column] + part + lines[-1][column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines]


def test_lines_do_not_overlap_progress_bar(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Tty())
    progress = Terminal(verbose=True)
    progress.start("pass 4", 12, "blocks")
    progress._bar.mininterval = 0
    progress.advance(5, rows=1000, memory=120_000_000)
    assert "pass 4:  42%|" in sys.stderr.getvalue()
    assert ", 120 MB]" in sys.stderr.getvalue()
    progress.note("note")
    progress.stage("stage")
    progress.wait("compiling", 1.0)
    assert screen(sys.stderr.getvalue())[-1].startswith("compiling: 1 s")
    progress.wait("compiling", 2.5, is_over=True)
    progress.finish()
    assert screen(sys.stderr.getvalue()) == ["note", "stage", "compiling: 2 s, done", ""]


def test_tables_fit_80_columns(monkeypatch):
    monkeypatch.setattr(sys, "stderr", Tty())
    progress = Terminal()
    score = {"metric": "accuracy", "score": 0.25}
    progress.row({**PASS, "validation": score})
    progress.row({**PASS, "validation": score, "certificate": {"relative_gap": 1e-3}})
    progress.row({**PASS, "passes_left": 640.0})
    title, first, second, third = sys.stderr.getvalue().splitlines()
    assert title.split()[:5] == ["pass", "seconds", "gap", "(tol", "0.001)"]
    assert first.split() == [
        "3", "1.00", "~2.0e-02", "~3", "1,000", "99", "MB", "accuracy", "0.25",
    ]  # fmt: skip
    assert second.split()[2:] == ["1.0e-03", "-", "1,000", "99", "MB", "accuracy", "0.25"]
    assert third.split()[3] == ">99"
    sys.stderr = Tty()
    progress = Terminal()
    progress.doubling(DOUBLING)
    title, line = sys.stderr.getvalue().splitlines()
    assert line.split() == [
        "1,024", "1.50", "0.500000", "-", "75.00", "%", "80.00", "%", "99", "MB",
    ]  # fmt: skip
    assert max(map(len, (first, second, title, line))) < 80
    Terminal(verbose=True).row(PASS)
    assert sys.stderr.getvalue().splitlines()[-1].split()[-7:] == [
        "0.80", "1.00", "10.0", "12.5", "7", "5", "3",
    ]  # fmt: skip


def test_logs_show_only_milestone_passes(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    progress = Terminal()
    for k in range(41):  # from 1 to the tolerance
        progress.row({**PASS, "pass": k, "estimated_relative_gap": 10 ** (-3 * k / 40 - 1e-9 * k)})
    progress.row({**PASS, "pass": 41, "estimated_relative_gap": None})
    progress.row({**PASS, "pass": 42, "certificate": {"relative_gap": 1e-2}})
    shown = [line.split()[0] for line in sys.stderr.getvalue().splitlines()]
    assert shown == ["pass", *map(str, range(0, 41, 4)), "42"]


def test_without_a_terminal_progress_prints_lines(monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    progress = Terminal()
    for unit, total, size in (("blocks", 12, 1), ("B", 8000, 1000), ("B", None, 1000)):
        progress.start("pass 4", total, unit)
        begin = now[0]
        for done, seconds in enumerate((5.0, 11.0, 12.0, 22.0), 1):
            now[0] = begin + seconds
            progress.advance(size * done, rows=1000 * done if total else 0, memory=120_000_000)
        progress.finish()
    Terminal(quiet=True).row(PASS)
    Terminal(as_json=True).row(PASS)
    Terminal().note("not shown")
    Terminal(verbose=True).note("shown")
    assert sys.stderr.getvalue().splitlines() == [
        "pass 4: 2 blocks of 12, 17 %, about 55 s left, 182 rows/s",
        "pass 4: 4 blocks of 12, 33 %, about 44 s left, 182 rows/s",
        "pass 4: 2 kB of 8 kB, 25 %, about 33 s left, 182 B/s, 182 rows/s",
        "pass 4: 4 kB of 8 kB, 50 %, about 22 s left, 182 B/s, 182 rows/s",
        "pass 4: 2 kB, 182 B/s",
        "pass 4: 4 kB, 182 B/s",
        "shown",
    ]


def test_lines_fit_a_terminal(monkeypatch, capsys):
    terminal = Terminal()
    lines = [
        "  memory  66 MB of 2 GB: interpreter 46 MB, weights 48 B, decoding 200 B, overhead 20 MB",
        "x.model: primal 0.9, dual 0.9, certified relative gap 1.21e-15 (scaled by std) in 1 pass",
        "1\t" * 50, "x" * 90, "short",
    ]  # fmt: skip
    terminal.answer({}, lambda _: lines)
    assert capsys.readouterr().out.split("\n") == [*lines, ""]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    terminal.answer({}, lambda _: lines)
    shown = capsys.readouterr().out.split("\n")
    assert [line for line in shown if len(line) > 80] == ["1\t" * 50, "x" * 90]
    assert shown[1] == f"{'':10}overhead 20 MB"
    assert shown[3].startswith("  ")


def test_rates_of_tiny_data_are_left_out():
    report = {
        "store": "a.sbm", "rows": 4, "rows_in_all": 4, "features": 3, "nnz": 6, "blocks": 1,
        "bytes": 762, "seconds": 0.1, "text_bytes": 30, "compile_seconds": 0.0, "skipped": 0,
        "collisions": [["text=" + "a document " * 500, "b\nc"]],
    }  # fmt: skip
    _, size, collision = show.split(report, 1)
    assert size == "762 B, 0.1 s"
    assert len(collision) < 200
    _, size, _ = show.split({**report, "nnz": 10**6, "bytes": 10**6, "text_bytes": 10**7}, 1)
    assert size == "1 MB (8.0 bits per nonzero), 0.1 s (100 MB/s)"


def test_names_are_printed_in_one_line(run, tmp_path):
    Path("t.csv").write_text('"a\nb",label\n1,0\n2,1\n"3\x1b[2J",1\n' + "x" * 500 + ",0\n")
    assert run("split t.csv")[0] == 0
    out = run("info t.sbm -v")[1]
    assert r"a\nb" in out
    assert all(": " in line or line.startswith(" " * 20) for line in out.splitlines())
    assert run("train t.sbm -q")[0] == 0
    out = run("inspect t.model")[1]
    assert "\x1b" not in out
    assert max(map(len, out.splitlines())) < 300
