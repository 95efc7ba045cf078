"""The run that makes all of scripts/results again, on one commit."""

import argparse
import json
import re
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import scipy

from scripts.bench import tools
from scripts.bench.optima import write_text
from scripts.bench.registry import Option, Registry, benchmark, one_of
from scripts.bench.tools import ROOT, BenchError, Report, run_process, script_command

BENCHMARKS: Registry = {}
CAPITALS = re.compile(r"\b[A-Z][A-Z0-9_]+\b")
ENDINGS = (".json", ".md", ".png")
AT_A_TIME = 2  # results whose times do not matter


@dataclass(frozen=True)
class Result:
    """A file of ``scripts/results``."""

    what: str  # what it shows
    # The module of ``scripts`` that makes it, and its arguments. Words in capitals are keys of
    # `TEXTS`, REFERENCE the folder of the reference sets, and OUT the file without its ending.
    command: str
    is_timed: bool = True  # whether stolen time matters


_TABLE2 = "--data TEN --test TEN_TEST --data TEXT --test TEST"
_NEWTON = "--seconds 10"
_NIGHTLY = "--data SMALL --also A9A --mems 2GB,150MB --costs 0.01,1"
_GRID = "--data prep=TEXT --data ten=TEN --data trigrams=TRIGRAMS --data digits=DIGITS --resume"
RESULTS = {
    "start": Result("`sbm --help` beside the import of numpy", "bench start --runs 9 -o OUT"),
    "parse": Result(
        "text parsed per second on one core, beside other readers",
        "bench parse --data TEXT --runs 3 -o OUT",
    ),
    "split": Result(
        "text to a store, beside LIBLINEAR and scikit-learn merely reading; 1 to 100 blocks, "
        "threads, compressed text",
        "bench split --data TEXT --runs 3 -o OUT",
    ),
    "kernel": Result(
        "an epoch over rows in memory, short and long, beside LIBLINEAR's iteration and a touch "
        "of every nonzero; the gap after some epochs",
        "bench kernel --data TEXT --runs 3 -o OUT",
    ),
    "kernel-a9a": Result(
        "the same on a9a, where weights fit the processor's cache",
        "bench kernel --data A9A -o OUT",
    ),
    "grid": Result(
        "text to a certified model on many kinds of data, losses and memories, beside LIBLINEAR "
        "and Vowpal Wabbit: time, memory, objective",
        f"bench grid {_GRID} -o OUT",
    ),
    "one-pass": Result(
        "`sbm stream`: time, memory and accuracy, beside the certified optimum, Vowpal Wabbit's "
        "single pass, split and a pass of train, and online learners",
        "bench one-pass --data TEXT --test TEST -o OUT",
    ),
    "stream-memory": Result(
        "resident memory of a stream over 10 GB of text through a pipe, from outside",
        "bench stream-memory -o OUT",
        is_timed=False,
    ),
    "overlap": Result(
        "loading behind solving; passes with a cache and without one at equal memory",
        "bench overlap --data TEXT --runs 3 --bmd-max-passes 60 -o OUT",
    ),
    "rounds": Result(
        "time and passes for each number of rounds, on a fast disk and a slow one",
        "bench rounds --data TEXT --runs 3 -o OUT",
    ),
    "cache": Result(
        "time and passes for each share of the cache at one `--mem`",
        "bench cache --data SMALL --also W8A --also A9A --runs 3 -o OUT",
    ),
    "screening": Result(
        "savings by skipping rows at rest",
        "bench screening --data TEXT --runs 3 -o OUT",
    ),
    "threads": Result(
        "one thread and two",
        "bench threads --data TEXT --runs 3 -o OUT",
    ),
    "tune": Result(
        "cross-validation of eight values of C on one stream, beside one training and beside "
        "each model trained alone: time, CPU time, bytes read",
        "bench tune --data SMALL --test SMALL_TEST --runs 1 --alone -o OUT",
    ),
    "nightly": Result(
        "warm starts beside trainings from scratch, in updates, passes and bytes",
        f"bench nightly {_NIGHTLY} -o OUT",
    ),
    "memory": Result(
        "peak resident memory against `--mem`, from outside",
        "bench memory --mems 180MB,256MB,400MB --split-mems 180MB,1GB -o OUT",
        is_timed=False,
    ),
    "newton": Result(
        "passes, CPU time and memory of each solver, and of LIBLINEAR",
        f"bench newton --reference REFERENCE {_NEWTON} -o OUT",
    ),
    "newton-table": Result(
        "a table of 10,000,000 rows and 30 columns in 1 GB of memory, beside LIBLINEAR",
        "bench newton-table --keep KEEP -o OUT",
    ),
    "defaults": Result(
        "trainings of every data set with default settings, over C",
        "bench defaults --reference REFERENCE --seconds 60 -o OUT",
    ),
    "converge": Result(
        "passes and gaps of trainings that converge slowly, and of the ways out",
        "bench converge --reference REFERENCE -o OUT",
    ),
    "scaling": Result(
        "AUC and log loss of rows that were held out, by `--scale`, on tables of numbers and words",
        "bench scaling --reference REFERENCE -o OUT",
        is_timed=False,
    ),
    "sparse": Result(
        "sparse models beside LIBLINEAR's `-s 5` and `-s 6`: objective, weights, passes, CPU time "
        "and memory; passes with a quarter of the memory; the path of C",
        "bench sparse --reference REFERENCE --trigrams TRIGRAMS --resume -o OUT",
    ),
    "ranks": Result(
        "processes that train one model over MPI: passes, visits, bytes sent, time",
        "bench ranks --reference REFERENCE --trigrams TRIGRAMS -o OUT",
    ),
    "report": Result(
        "gap, objective and test accuracy of four trainings, as `sbm report` draws them",
        "bench report --data A9A -o OUT",
        is_timed=False,
    ),
    "drift": Result(
        "drift of the running weights from the sum over their alphas in up to 100 passes",
        "bench drift --rows 200 --passes 1,10,100 -o OUT",
        is_timed=False,
    ),
    "optima": Result(
        "certified primal against trusted optima, over losses, C, blocks, cache and rounds",
        "bench optima --reference REFERENCE --cache-fracs 0.33,0.5 -o OUT",
        is_timed=False,
    ),
    "optima-many": Result(
        "the same for sets of many classes and all losses",
        "bench optima --reference REFERENCE --kind many -o OUT",
        is_timed=False,
    ),
    "optima-family": Result(
        "the same for logistic loss and regression",
        "bench optima --reference REFERENCE --kind family -o OUT",
        is_timed=False,
    ),
    "paper-figure2": Result(
        "figure 2 of the SBM paper: SBM-1/2, SBM-1/3, SBM-1/2-rand and BMD on three data sets, on "
        "this disk and on a slow one",
        "papers figure2 --keep KEEP --data prep=TEN --test prep=TEN_TEST --rows 500000 "
        "--max-passes 6 -o OUT",
    ),
    "paper-figure3": Result(
        "figures 3 and 4: beside Pegasos and Vowpal Wabbit, in double and single precision",
        "papers figure3 --keep KEEP --costs webspam=1 -o OUT",
    ),
    "paper-figure5": Result(
        "figure 5: no cache, 1/4, 1/2 and a whole block, 3 and 10 rounds",
        "papers figure5 --keep KEEP --rows 500000 --max-passes 6 -o OUT",
    ),
    "paper-table2": Result(
        "table 2, every learner of it: reading, learning, accuracy, of ten classes and of two",
        f"papers table2 {_TABLE2} --several-mem 1GB -o OUT",
    ),
    "paper-dcd": Result(
        "table 2, figures 1 and 2 of the DCD paper, figure 1 of the LIBLINEAR paper",
        "papers dcd --data A9A --data FARM_ADS --data TRIGRAMS -o OUT",
    ),
    "paper-ww": Result(
        "tables C.1 and 2 of the Weston-Watkins paper",
        "papers ww --data LETTER --data PENDIGITS --unit NEWS20 -o OUT",
    ),
    "torture-files": Result(
        "commands killed and run again, and failing calls of the file system: cases and failures",
        "torture --kills 1104 --faults 1104 --seed 0 --json OUT.json",
        is_timed=False,
    ),
    "torture-flips": Result(
        "damaged files of stores, runs and models",
        "torture --flips 100000 --seed 0 --json OUT.json",
        is_timed=False,
    ),
    "torture-examples": Result(
        "random examples of the tests of readers and codecs, in guarded memory",
        "torture --examples 100 --seed 1 --json OUT.json",
        is_timed=False,
    ),
    "torture-hostile": Result(
        "compressed bombs, concurrent writers of one output, records with forged fields",
        "torture --hostile 1200 --seed 0 --json OUT.json",
        is_timed=False,
    ),
    "torture-inputs": Result(
        "damaged input files of all formats, read by each command",
        "torture --inputs 20000 --seed 1 --json OUT.json",
        is_timed=False,
    ),
    "torture-ranks": Result(
        "processes of one training, killed or stopped while they exchange messages",
        "torture --ranks 100 --seed 0 --json OUT.json",
        is_timed=False,
    ),
    "torture-memory": Result(
        "commands at the smallest `--mem` that they accept, and extreme numbers in every problem",
        "torture --memory 100 --numbers 300 --seed 0 --json OUT.json",
        is_timed=False,
    ),
    "mutations": Result(
        "important lines broken one by one, and the first test that notices each",
        "mutations -o OUT",
        is_timed=False,
    ),
    "release": Result(
        "wheel and source archive in fresh environments, the demo and the tests in a fresh clone",
        "release -o OUT",
        is_timed=False,
    ),
}  # fmt: skip
# Made once everything is there: pages that repeat results.
PAGES = ("papers.claims RESULTS -o RESULTS/claims.md", "docs_tables")


def _reference(name: str) -> Callable[[argparse.Namespace, Path], None]:
    return lambda args, text: write_text(args.reference, name, text)


def _trigrams(args: argparse.Namespace, text: Path) -> None:
    folders = [Path(str(module.__file__)).parent for module in (numpy, scipy)]
    words = ("-o", text, "--values", "tfidf", "--classes", "first")
    run_process(script_command("data.trigrams", *folders, *words))


# Texts by the word that stands for them in commands; the others must be given by --text.
TEXTS: dict[str, tuple[str, Callable[[argparse.Namespace, Path], None]]] = {
    word: (f"{name}.svm", _reference(name))
    for word, name in (
        ("TEXT", "prep_medium_binary"), ("TEST", "prep_medium.t_binary"),
        ("SMALL", "prep_small_binary"), ("SMALL_TEST", "prep_small.t_binary"),
        ("TEN", "prep_medium"), ("TEN_TEST", "prep_medium.t"), ("A9A", "a9a"), ("W8A", "w8a"),
        ("FARM_ADS", "farm_ads"), ("NEWS20", "news20"), ("LETTER", "letter"),
        ("LETTER_TEST", "letter.t"), ("PENDIGITS", "pendigits_scale"),
    )
} | {"TRIGRAMS": ("trigrams.svm", _trigrams)}  # fmt: skip
BESIDE = {"LETTER": "letter.t", "PENDIGITS": "pendigits_scale.t"}  # test halves, found by name


def _named(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    return name, Path(path).resolve()


@benchmark(
    BENCHMARKS, name="all", runs=0,
    options={
        "reference": None, "keep": None,
        "text": Option(_named, "WORD=TEXT, instead of the text that is made", [], repeated=True),
        "only": Option(one_of(RESULTS), "names of results to make, even if they are good", []),
        "tries": Option(int, "maximum runs of a result while stolen time is above 2 %", 3),
    },
)  # fmt: skip
def everything(args: argparse.Namespace, report: Report) -> None:
    """Make all results again.

    Runs one command after the other, then two at a time those whose times do not matter, and writes
    each result beside the prefix. The same command resumes: it skips the results of this commit
    whose stolen share is at most 2 %, and runs the others again, up to --tries times each; the
    least disturbed try is kept. Then it writes the pages that repeat results.

    commit: of the code that is measured (sbm, configs). After a change of a benchmark, --only makes
    its results again. stolen share: processor time that this virtual machine wanted and did not
    get. minutes: of the try that was kept.
    """
    if args.prefix is None:
        raise BenchError("give -o scripts/results/all")
    if args.reference is None and not args.quick:
        raise BenchError("give --reference FOLDER")
    commit = report.machine["commit"]
    if commit.endswith("changed") and not args.quick:
        raise BenchError("commit the changes of the code first: results name their commit")
    rows = _rows_of(args.prefix)
    report.settings = {}
    wanted = args.only or [name for name in RESULTS if not _is_good(name, rows.get(name), commit)]

    def keep(*made: dict[str, Any]) -> None:
        """Write what there is so far: the run may be interrupted."""
        rows.update({row["result"]: row for row in made})
        report.rows = [rows[name] for name in RESULTS if name in rows]
        replace(report, machine=dict(report.machine)).write(args.prefix)

    keep()
    make = partial(_make, args=args, commit=commit)
    for name in wanted:
        if RESULTS[name].is_timed:
            keep(make(name))
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        others = [pool.submit(make, name) for name in wanted if not RESULTS[name].is_timed]
        for one in as_completed(others):
            keep(one.result())
    if not args.quick:
        for command in PAGES:
            _run(command, args, args.prefix)


def _rows_of(prefix: Path) -> dict[str, dict[str, Any]]:
    """Rows of an earlier run, by result."""
    path = prefix.with_name(prefix.name + ".json")
    rows = json.loads(path.read_bytes())["rows"] if path.is_file() else []
    return {row["result"]: row for row in rows}


def _is_good(name: str, row: dict[str, Any] | None, commit: str) -> bool:
    """Whether a result need not be made again."""
    made = row is not None and row["commit"] == commit and row["ok"]
    return bool(made and row and _was_quiet(name, row["stolen_share"]))


def _was_quiet(name: str, share: float) -> bool:
    return share <= tools.MOST_STOLEN or not RESULTS[name].is_timed


def _make(name: str, args: argparse.Namespace, commit: str) -> dict[str, Any]:
    """Run the command of a result until the machine was quiet; keep the quietest try."""
    best: dict[str, Any] | None = None
    work = args.keep or args.folder
    for number in range(args.tries):
        tools.tell(f"{name}: try {number + 1}")
        prefix = Path(work, "tries", name)  # a later call finds what an interrupted one left
        before, begin = tools.processor_times(), time.perf_counter()
        code = _run(RESULTS[name].command, args, prefix)
        share = tools.stolen_share(before)
        made = [prefix.with_name(name + ending) for ending in ENDINGS]
        facts = json.loads(made[0].read_bytes()).get("machine", {}) if made[0].exists() else {}
        share = facts.get("stolen_share", share)
        if best is None or share < best["stolen_share"]:
            best = {
                "result": name, "day": tools.today(), "commit": commit, "stolen_share": share,
                "tries": number + 1, "minutes": (time.perf_counter() - begin) / 60,
                "ok": code == 0,
            }  # fmt: skip
            args.prefix.parent.mkdir(parents=True, exist_ok=True)
            for path in made:
                if path.exists():
                    shutil.copyfile(path, args.prefix.with_name(path.name))
        for path in made:
            path.unlink(missing_ok=True)
        if _was_quiet(name, share) or not best["ok"]:
            break
    assert best is not None
    return best


def _run(command: str, args: argparse.Namespace, prefix: Path) -> int:
    """Run a module of ``scripts``; return its exit code."""
    module, *words = command.split()
    prefix = prefix.resolve()  # commands run at the top of the checkout
    prefix.parent.mkdir(parents=True, exist_ok=True)
    places = {"OUT": prefix, "RESULTS": args.prefix.parent, "KEEP": args.keep or args.folder}
    if args.reference is not None:
        places["REFERENCE"] = args.reference
    found = {key: str(path.resolve()) for key, path in places.items()}
    given = dict(args.text)
    filled: list[str] = []
    for word in words:
        unknown = [key for key in CAPITALS.findall(word) if key not in found]
        for key in unknown:
            if key in given or key in TEXTS:
                found[key] = str(given.get(key) or _text(key, args))
        if all(key in found for key in unknown):
            filled.append(CAPITALS.sub(lambda m: found[m[0]], word))
        else:
            filled.pop()  # the option that would have named a text that is not there
    quick = ["--quick"] * (args.quick and module in ("bench", "papers"))
    done = run_process([*script_command(module), *filled, *quick], folder=ROOT, codes=range(256))
    if done.code:
        print(done.stderr[-2000:], file=sys.stderr)
    return done.code


def _text(key: str, args: argparse.Namespace) -> Path:
    """Make a text once."""
    name, make = TEXTS[key]
    text = Path(args.keep or args.folder, "texts", name)
    text.parent.mkdir(parents=True, exist_ok=True)
    if not text.exists():
        tools.tell(f"making {name}")
        half = text.with_suffix(".part")
        make(args, half)
        half.rename(text)
        if key in BESIDE:
            write_text(args.reference, BESIDE[key], text.with_name(f"{BESIDE[key]}.svm"))
    return text


def page() -> str:
    """Return the table of ``scripts/results/README.md``."""
    lines = ["| file | what | command |\n", "|---|---|---|\n"]
    for name, one in RESULTS.items():
        command = one.command.replace("OUT", f"scripts/results/{name}").replace("|", "\\|")
        lines.append(f"| `{name}` | {one.what} | `python -m scripts.{command}` |\n")
    return "".join(lines)
