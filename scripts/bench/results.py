"""The table of results, and the run that makes those that are missing or out of date.

A result is a row: what it shows, how it is made (a function of `scripts.bench.measures` or a
command of ``scripts``), and the modules of the package that it runs. Its file remembers a digest of
each, and of the texts it read, so a later run makes it again only if one of them changed. Comments,
docstrings and the layout of code do not count.
"""

import ast
import functools
import hashlib
import inspect
import json
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scripts.bench import measures, tools
from scripts.bench.measures import Bench
from scripts.bench.texts import DATA, text_of
from scripts.bench.tools import ROOT, BenchError, Report, run_process, script_command
from scripts.modules import imported

HERE = ROOT / "scripts/results"
ALL, PAPERS = "all", "papers"
ENDINGS = (".json", ".md", ".png")


@dataclass(frozen=True)
class Result:
    """A file of ``scripts/results``."""

    what: str  # what it shows
    # A function of `measures`; or a module of ``scripts`` and its arguments, with @NAME for a text,
    # KEEP for a folder that stays, and OUT for the file without its ending.
    make: Callable[[Bench], None] | str
    runs: tuple[str, ...]  # the modules of the package that it runs, with all that they import
    group: str = ALL


TRAIN, STREAM = ("sbm.programs.train", "sbm.programs.split"), ("sbm.programs.stream",)


def _torture(what: str, **cases: int) -> Result:
    words = " --".join(f"{name} {n}" for name, n in cases.items())
    return Result(what, f"torture --{words} --seed 1 --json OUT.json", (*TRAIN, *STREAM))


def _paper(what: str, command: str) -> Result:
    return Result(what, f"papers {command} -o OUT", (*TRAIN, *STREAM), PAPERS)


RESULTS = {
    "grid": Result("text to a certified model over data, losses and C, beside LIBLINEAR: time, "
                   "memory, objective", measures.grid, TRAIN),
    "reading": Result("text to a store, beside tools that read it; the start", measures.reading,
                      TRAIN[1:]),
    "stream": Result("`sbm stream` beside the optimum and Vowpal Wabbit, and its memory",
                     measures.stream, (*TRAIN, *STREAM)),
    "memory": Result("peak memory against `--mem`, from outside", measures.memory,
                     (*TRAIN, *STREAM, "sbm.programs.tune")),
    "converge": Result("passes and CPU time of each solver over C, and of the ways out",
                       measures.converge, TRAIN),
    "optima": Result("certified primals beside trusted optima", measures.optima, TRAIN),
    "sparse": Result("sparse models beside LIBLINEAR's `-s 5` and `-s 6`", measures.sparse,
                     (*TRAIN, "sbm.programs.tune")),
    "tune": Result("cross-validation on one stream, beside the same models one by one",
                   measures.tune, (*TRAIN, "sbm.programs.tune")),
    "nightly": Result("warm starts beside trainings from scratch, in updates", measures.nightly,
                      TRAIN),
    "scale": Result("AUC and log loss of rows that were held out, by `--scale`", measures.scale,
                    (*TRAIN, "sbm.programs.predict")),
    "ranks": Result("one, two and four processes over MPI", measures.ranks, TRAIN),
    "report": Result("gap, objective and accuracy of four trainings, as `sbm report` draws them",
                     measures.report, (*TRAIN, "sbm.programs.report")),
    "demo": Result("what the commands of the README print", measures.demo,
                   (*TRAIN, "sbm.programs.predict")),
    "torture-files": _torture("commands killed and run again, and failing calls of the file "
                              "system", kills=60, faults=60),
    "torture-flips": _torture("damaged files of stores, runs and models", flips=3000),
    "torture-hostile": _torture("compressed bombs, concurrent writers, forged fields", hostile=60),
    "torture-inputs": _torture("damaged input files of all formats, read by each command",
                               inputs=400),
    "torture-memory": _torture("commands at the smallest `--mem` that they accept, and extreme "
                               "numbers in every problem", memory=10, numbers=40),
    "paper-figure2": _paper("figure 2 of the SBM paper, on a fast disk and a slow one",
                            "figure2 --keep KEEP --data prep=@ten --test prep=@ten.t"),
    "paper-figure3": _paper("figures 3 and 4: beside Pegasos and Vowpal Wabbit",
                            "figure3 --keep KEEP"),
    "paper-figure5": _paper("figure 5: the size of the cache, 3 rounds and 10",
                            "figure5 --keep KEEP"),
    "paper-table2": _paper("table 2: text that is read once, of ten classes and of two",
                           "table2 --data @ten --test @ten.t --data @text --test @text.t"),
    "paper-dcd": _paper("table 2, figures 1 and 2 of the DCD paper, figure 1 of LIBLINEAR's",
                        "dcd --data @a9a --data @farm_ads --data @trigrams"),
    "paper-ww": _paper("tables C.1 and 2 of the Weston-Watkins paper",
                       "ww --data @letter --data @pendigits --unit @news20"),
}  # fmt: skip
# Texts that a command finds beside the ones that it names.
BESIDE = {"letter": "letter.t", "pendigits": "pendigits.t"}


# ------------------------------------------------------------------------ what a result depends on


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def _bare(tree: ast.AST) -> str:
    """Return what runs of a tree: no comments, docstrings and positions."""
    for node in ast.walk(tree):
        match getattr(node, "body", None):
            case [ast.Expr(value=ast.Constant()) as first, *_]:
                first.value = ast.Constant(...)
    return ast.dump(tree)


@functools.cache
def _modules() -> dict[str, Path]:
    paths = [p for top in ("sbm", "scripts") for p in sorted((ROOT / top).rglob("*.py"))]
    names = [".".join(p.relative_to(ROOT).with_suffix("").parts) for p in paths]
    return {n.removesuffix(".__init__"): p for n, p in zip(names, paths, strict=True)}


@functools.cache
def _imports(name: str) -> frozenset[str]:
    """Return what a module imports, and all kernels beside it, which may be loaded by name."""
    known = set(_modules())
    beside = f"{name.rpartition('.')[0]}.kernels."
    kernels = {one for one in known if one.startswith(beside)}
    return frozenset(set(imported(_modules()[name], known)) & known | kernels)


def modules_of(names: Iterable[str]) -> list[str]:
    """Return modules and all modules of this tree that they import, in order.

    The package itself, which names all programs, is not followed.
    """
    found, left = {"sbm"}, [*names]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += _imports(name)
    return sorted(found)


@functools.cache
def _code(name: str) -> str:
    return _bare(ast.parse(_modules()[name].read_text("utf-8")))


def _function(make: Callable[..., Any]) -> list[str]:
    """Return the code of a function and of what it names in its module."""
    tree = ast.parse(inspect.getsource(inspect.getmodule(make) or measures))
    known: dict[str, ast.stmt] = {}
    for node in tree.body:
        for target in getattr(node, "targets", [getattr(node, "target", node)]):
            known[getattr(target, "id", getattr(target, "name", ""))] = node
    found, left = dict[str, str](), [make.__name__]
    while left:
        name = left.pop()
        if name in known and name not in found:
            words = {n.id for n in ast.walk(known[name]) if isinstance(n, ast.Name)}
            left += words - RESULTS.keys()  # a variable may be named like another result
            found[name] = _bare(known[name])
    return [found[name] for name in sorted(found)]


def _data(name: str) -> str:
    one = DATA[name]
    how = [] if one.make is None else _function(one.make)
    return _digest([str(one.rows), one.shape, one.reference, *how])


def depends_on(name: str, texts: Iterable[str]) -> dict[str, Any]:
    """Return digests of what a result depends on: the code that it runs, commands, texts."""
    one = RESULTS[name]
    if callable(one.make):
        commands = _function(one.make)
    else:
        module = one.make.split()[0]
        scripts = [m for m in modules_of([_script(one.make)]) if m.startswith("scripts.")]
        commands = [one.make, module, *map(_code, scripts)]
    return {
        "code": _digest(map(_code, modules_of(one.runs))),
        "commands": _digest(commands),
        "data": {text: _data(text) for text in sorted(texts) if text in DATA},
    }


def _script(command: str) -> str:
    """Return the module that a command runs: that of one experiment of the papers."""
    module, what, *_ = command.split()
    return f"scripts.papers.{what}" if module == "papers" else f"scripts.{module}.__main__"


def changed(name: str, results: Path = HERE) -> list[str]:
    """Return what a result depends on that has changed; ``missing`` if there is no result."""
    try:
        report = json.loads((results / f"{name}.json").read_bytes())
    except FileNotFoundError:
        return ["missing"]
    then = report.get("depends") or {"data": {}}
    now = depends_on(name, then["data"])
    return [key for key in now if now[key] != then.get(key)]


# ------------------------------------------------------------------------------------- the run


@dataclass(frozen=True)
class Place:
    """Where results and texts are, and at which size they are made."""

    results: Path = HERE
    kept: Path = ROOT / "data/bench"
    reference: Path | None = None
    quick: bool = False


def make(name: str, place: Place) -> bool:
    """Make a result; return whether all of its rows are ok."""
    one, begin = RESULTS[name], time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="sbm-bench-") as folder:
        prefix = Path(folder, "out", name)
        prefix.parent.mkdir()
        if callable(one.make):
            report = asdict(_measure(name, one.make, place, Path(folder), prefix))
            texts = [*report["data"]]
        else:
            texts = _command(one.make, place, prefix)
            report = json.loads(prefix.with_suffix(".json").read_bytes())
        report |= {
            "depends": depends_on(name, texts),
            "minutes": (time.perf_counter() - begin) / 60,
        }
        text = json.dumps(report, separators=(",", ":")) + "\n"
        prefix.with_suffix(".json").write_text(text, "utf-8")
        place.results.mkdir(parents=True, exist_ok=True)
        for ending in ENDINGS:
            if prefix.with_suffix(ending).exists():
                shutil.copyfile(prefix.with_suffix(ending), place.results / f"{name}{ending}")
    tools.tell(f"{name}: {report['minutes']:.1f} minutes")
    return all(row.get("ok", True) for row in report["rows"])


def _measure(
    name: str, function: Callable[[Bench], None], place: Place, folder: Path, prefix: Path
) -> Report:
    title, *notes = tools.paragraphs(function)
    report = Report(name, title, {"quick": True} if place.quick else {})
    kept = place.kept / ("toy" if place.quick else "texts")
    function(Bench(folder, kept, place.reference, place.quick, report))
    report.notes = [*notes, *dict.fromkeys(report.notes)]
    report.write(prefix)
    if (picture := folder / "picture.png").exists():
        shutil.copyfile(picture, prefix.with_suffix(".png"))
    return report


def _command(command: str, place: Place, prefix: Path) -> list[str]:
    """Run a command of ``scripts``; return the names of its texts."""
    module, *words = command.split()
    kept, texts, filled = place.kept / ("toy" if place.quick else "texts"), [], []
    for word in words:
        before, at, name = word.partition("@")
        if at:
            texts += [name, *([BESIDE[name]] if name in BESIDE else [])]
            for text in texts:
                text_of(text, kept, place.reference, place.quick)
            word = f"{before}{(kept / f'{name}.svm').resolve()}"
        word = word.replace("KEEP", str((place.kept / "papers").resolve()))
        filled.append(word.replace("OUT", str(prefix.resolve())))
    if place.quick and module == "torture":
        filled = ["4" if word.isdigit() and before != "--seed" else word
                  for before, word in zip(["", *filled], filled, strict=False)]  # fmt: skip
    elif place.quick:
        filled = [filled[0], "--quick", "-o", str(prefix.resolve())]
    done = run_process(script_command(module, *filled), folder=ROOT, codes=range(256))
    if done.code:
        print(done.stderr[-2000:], file=sys.stderr)
    if not prefix.with_suffix(".json").exists():
        raise BenchError(f"scripts.{module} wrote no result; its exit code is {done.code}")
    return texts


def run(names: Sequence[str], place: Place, again: bool = False) -> int:
    """Make results that are missing or out of date; return 1 if one failed or is not ok."""
    failed = 0
    for name in names:
        why = ["asked for"] if again else changed(name, place.results)
        if not why:
            tools.tell(f"{name}: is up to date")
            continue
        tools.tell(f"{name}: {', '.join(why)}")
        try:
            failed |= not make(name, place)
        except Exception as error:  # the others can still be made
            is_known = isinstance(error, BenchError)
            tools.tell(f"{name}: {error if is_known else traceback.format_exc()}")
            failed = 1
    return int(failed)


def page() -> str:
    """Return the table of ``scripts/results/README.md``."""
    lines = ["| file | what | made on | minutes |\n", "|---|---|---|---|\n"]
    for name, one in RESULTS.items():
        path = HERE / f"{name}.json"
        report = json.loads(path.read_bytes()) if path.exists() else {"machine": {}}
        facts = report["machine"]
        minutes = f"{report['minutes']:.1f}" if "minutes" in report else ""
        when = f"{facts.get('date', '')}, {facts.get('commit', '')}".strip(", ") or "not yet"
        lines.append(f"| `{name}` | {one.what} | {when} | {minutes} |\n")
    return "".join(lines)
