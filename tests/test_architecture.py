"""Rules of the source: imports, exports and documentation."""

import ast
import inspect
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from inside import METHODS, Method, method_named
from processes import finished

import sbm

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "sbm"
Function = ast.FunctionDef | ast.AsyncFunctionDef

# A package may import itself and those with a smaller number; circular imports are forbidden.
LEVELS = {
    "__main__": 8, "__init__": 8, "cli": 7, "sklearn": 7, "programs": 6, "dataset": 5, "engine": 4,
    "inputs": 3, "models": 3, "solver": 2, "store": 2, "distributed": 2, "compiled": 1, "rows": 1,
    "losses": 1, "settings": 1, "units": 1, "errors": 1, "alphas": 1, "names": 1, "keywords": 1,
    "fields": 1, "methods": 0, "plain": 0,
}  # fmt: skip
FORBIDDEN = {
    ("solver", "store"), ("store", "solver"), ("inputs", "models"), ("models", "inputs"),
    ("inputs", "solver"), ("models", "solver"),
}  # fmt: skip
# numba and llvmlite only where the wheel has no compiled kernels.
REQUIRED = ["click", "jinja2", "llvmlite", "numba", "numpy", "scipy", "tqdm", "zstandard"]
# Modules whose results become bytes of a model; calibration excepted.
SAME_BYTES = r"sbm/(solver/\w+|engine/\w+|programs/(training|tuning|streaming)/\w+)$"
KERNELS = r"sbm/((inputs|solver|store)/kernels/\w+|compiled/compiler)"
# Libraries that only some files may import, including those of extras.
ONLY_IN = {
    "numba": KERNELS,
    "llvmlite": KERNELS,
    "mpi4py": r"sbm/distributed/comm",
    "sklearn": r"sbm/(sklearn|models/fitted)",
    "joblib": r"sbm/sklearn",
    "click": r"sbm/cli/\w+",
    "tqdm": r"sbm/(cli/terminal|engine/progress)",
    "jinja2": r"sbm/programs/reporting/page",
    "pyarrow": r"sbm/inputs/(arrow|delimited|pages|records|tables|columns/\w+)",
    "fsspec|aiohttp": r"sbm/inputs/remote",
    "isal": r"sbm/inputs/packed",
    "zstandard": r"sbm/(store/container|inputs/packed)",
    "pickle|marshal|shelve|dill": r"sbm/sklearn",
}
# Public dataclasses refuse changes while a program runs.
SLOW_DATACLASSES = ("sbm/plain", "sbm/dataset/options")
PRINTS = {"print", "sys.stdout.write", "sys.stderr.write", "pprint", "pprint.pprint"}


def imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Full names of all that a file imports, in functions and for type checkers, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"a relative import in {package}"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def wrong_imports(name: str, imported: str) -> Iterator[str]:
    """Yield the problems of an import; `name` is the path of the file without extension."""
    parts, theirs = name.split("/"), imported.split(".")
    if imported == "dataclasses.dataclass" and name not in SLOW_DATACLASSES:
        yield "is slow to make; use that of sbm.plain"
    if theirs[0] != "sbm":
        where = next((w for lib, w in ONLY_IN.items() if re.fullmatch(lib, theirs[0])), None)
        if where is None and theirs[0] not in {*REQUIRED, *sys.stdlib_module_names}:
            yield "is not required"
        elif where is not None and not re.fullmatch(where, name):
            yield "belongs elsewhere"
        return
    layer, target = parts[1], theirs[1] if theirs[1:] else "__version__"
    if target in LEVELS:
        if LEVELS[target] > LEVELS[layer] or (layer, target) in FORBIDDEN:
            yield "is a layer above or beside"
        if target == "cli" and layer not in ("cli", "__main__"):
            yield "is the command line"
    elif target != "__version__":
        yield "goes through the package"
    # `compiled` checks only kernels when it decides whether machine code is stale.
    if parts[-2] == "kernels" and "kernels" not in theirs:
        yield "is no kernel"


def circles(arrows: dict[str, set[str]]) -> list[str]:
    """Files that can be reached from themselves, by the files they import."""
    reached = {name: set(theirs) for name, theirs in arrows.items()}
    for middle in reached:
        for theirs in reached.values():
            if middle in theirs:
                theirs |= reached[middle]
    return sorted(name for name, theirs in reached.items() if name in theirs)


def test_tests_get_inside_names_from_one_file():
    """So that a move in the package changes one file of the tests."""
    public = {"sbm", "sbm.errors", "sbm.sklearn"}
    modules = {".".join(p.relative_to(ROOT).with_suffix("").parts) for p in PACKAGE.rglob("*.py")}
    modules |= {".".join(path.relative_to(ROOT).parts) for path in PACKAGE.glob("*/")}
    wrong = [
        f"{path.name}: {name}"
        for path in sorted((ROOT / "tests").glob("*.py"))
        if path.name != "inside.py"
        for name in imports(ast.parse(path.read_text("utf-8")), path.name)
        if name.partition(".")[0] == "sbm"
        and not {name, name.rpartition(".")[0]} & (public - ({"sbm"} if name in modules else set()))
    ]
    assert not wrong


def test_circular_imports_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["b", "c"]


def exported(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, Function | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.asname or alias.name for alias in node.names)


def violations(path: Path) -> Iterator[str]:
    name = path.relative_to(ROOT).with_suffix("").as_posix()
    tree = ast.parse(path.read_text("utf-8"))
    if name.split("/")[1] not in LEVELS:
        yield f"{name} is in no layer"
        return
    for imported in imports(tree, name):
        yield from (f"{name}: {imported} {what}" for what in wrong_imports(name, imported))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            if ast.unparse(node.func) in PRINTS and name != "sbm/cli/terminal":
                yield f"{name}:{node.lineno} prints"
            if "allow_pickle" in {keyword.arg for keyword in node.keywords}:
                yield f"{name}:{node.lineno} may unpickle"
        if re.match(SAME_BYTES, name) and differs_between_processors(node):
            yield f"{name}:{node.lineno} rounds as the processor does; see sbm/solver/sums.py"
    if not ast.get_docstring(tree):
        yield f"{name} has no docstring"
    for missing in set(exported(tree)) - {*defined(tree)}:
        if name != "sbm/__init__":  # the package looks its names up when they are used
            yield f"{name} exports {missing}, which is not there"


def differs_between_processors(node: ast.AST) -> bool:
    """Whether a call uses a BLAS, or vector instructions that numpy chooses while it runs."""
    if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult):
        return True
    name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    pattern = r"np\.(linalg\.\w+|dot|inner|matmul|vdot|exp\w*|log\w*|power|tanh|sin|cos)|\w+\.dot"
    return re.fullmatch(pattern, name) is not None


@pytest.mark.long
def test_source_follows_the_rules():
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 50
    found = [what for path in files for what in violations(path)]
    modules = {".".join(p.relative_to(ROOT).with_suffix("").parts): p for p in files}
    arrows = {
        name: {
            theirs
            for imported in imports(ast.parse(path.read_text("utf-8")), name)
            for theirs in (imported, imported.rpartition(".")[0])
            if theirs in modules
        }
        for name, path in modules.items()
    }
    found += [f"{name} imports itself in a circle" for name in circles(arrows)]
    assert not found, "\n".join(found)


# --------------------------------------------------------------------------------- structure

# Structural figures of the package. A figure may fall: then lower it here. It may rise only if
# nothing else works; then write the reason beside it.
FIGURES = {
    "functions that take settings and store": 3,
    "modules that write a checkpoint": 2,
    "reads of settings.solver and settings.penalty": 5,
    "modules that refuse settings": 41,
    # 27 are numbers of a file format, in compiled/linker; 10 are limits of the inference of kinds;
    # 17 are of the kernels of cells: units of dates, padding, digits; 2 say when to screen, 4 are
    # the continuation of Newton's method in the costs, 3 of one class; 57 are sizes and thresholds
    # of weights by class, a third of them unsigned copies for kernels; 9 are of the method of
    # multipliers and its conjugate gradients, 1 of when to switch; 2 of numbers as text
    # Steps, rounds and falls of the proximal term of weights by class: 4;
    # rows of a stream's block: 1.
    # Searches along lines: the first round, and what beside them accelerated descent takes: 1.
    # Moves along the line through two passes: 5.
    # When folds, which cannot switch, start with Newton's method: 2.
    # Tags of weights by class, four in a word, and how full their tables are: 11.
    # Types, dense features, rounding of weights by class: 2 more; room to write their models: 1.
    # Where rounds of rows that may rest end: 1.
    # Newton steps of sparse models: when they leave rows out, and how often they alternate: 2.
    "numeric constants of modules": 645,
    # 31 are calls and signatures of the kernels of weights by class, which have many arrays
    # Kernels of weights by class that visit in one call, and their calls: 7.
    # Signature of searches along lines: 1.
    "lines kept from the formatter": 323,
}
_CONSTANT = ast.Constant | ast.UnaryOp | ast.BinOp | ast.Tuple


def takes_settings_and_store(node: ast.AST) -> bool:
    if not isinstance(node, Function):
        return False
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return {"settings", "store"} <= {argument.arg for argument in every}


def writes_checkpoint(node: ast.AST) -> bool:
    called = node.func if isinstance(node, ast.Call) else None
    is_commit = isinstance(called, ast.Attribute) and called.attr == "commit"
    return is_commit and "run" in ast.unparse(called.value).lower()


def reads_solver(node: ast.AST) -> bool:
    if not isinstance(node, ast.Attribute) or node.attr not in ("solver", "penalty"):
        return False
    owner = node.value
    name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
    return name in ("settings", "_settings", "asked")


def refuses_settings(node: ast.AST) -> bool:
    raised = node.exc if isinstance(node, ast.Raise) else None
    return raised is not None and "SettingsError(" in ast.unparse(raised)


def numeric_constants(tree: ast.Module) -> int:
    """Count the names that a module sets to numbers."""

    def is_numeric(value: ast.expr) -> bool:
        numbers = (n.value for n in ast.walk(value) if isinstance(n, ast.Constant))
        return isinstance(value, _CONSTANT) and any(type(n) in (int, float) for n in numbers)

    assigned = [n for n in tree.body if isinstance(n, ast.Assign) and is_numeric(n.value)]
    targets = [target for node in assigned for target in node.targets]
    return sum(isinstance(n, ast.Name) for target in targets for n in ast.walk(target))


def test_structure_does_not_get_worse():
    texts = [path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))]
    trees = [ast.parse(text) for text in texts]
    nodes = [list(ast.walk(tree)) for tree in trees]
    figures = dict(
        zip(
            FIGURES,
            [
                sum(takes_settings_and_store(node) for some in nodes for node in some),
                sum(any(map(writes_checkpoint, some)) for some in nodes),
                sum(reads_solver(node) for some in nodes for node in some),
                sum(any(map(refuses_settings, some)) for some in nodes),
                sum(map(numeric_constants, trees)),
                sum(text.count("fmt: skip") for text in texts),
            ],
            strict=True,
        )
    )
    assert figures == FIGURES


@pytest.mark.parametrize("name", [n for n in sbm.__all__ if n == "Settings" or n.islower()])
def test_every_parameter_of_the_api_is_documented(name):
    told = inspect.getdoc(getattr(sbm, name))
    section = re.search(r"^Parameters\n-+\n(.*?)(?=\n\w+\n---|\Z)", told, re.S | re.M)
    names = re.findall(r"^(?:\*\*)?(\w+(?:, \w+)*)(?: :|$)", section[1], re.M)
    documented = [n for several in names for n in several.split(", ")]
    assert sorted(documented) == sorted(inspect.signature(getattr(sbm, name)).parameters)
    assert name == "Settings" or re.search(r"^Returns\n---.*^Raises\n---", told, re.S | re.M)


@pytest.mark.parametrize("name", METHODS)
def test_methods_follow_their_protocol(name):
    method = method_named(name)
    assert method.family == name
    needed = {one for one in vars(Method) if not one.startswith("_")} - {"seconds", "reader"}
    assert needed <= set(dir(method))


def test_unknown_name_of_the_package_is_refused():
    assert sorted(sbm.__all__) == sbm.__all__
    assert set(sbm.__all__) <= set(dir(sbm))
    with pytest.raises(AttributeError, match="trian"):
        sbm.trian  # noqa: B018  reading it is the test


def test_project_facts():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    names = [re.match(r"[A-Za-z0-9_-]+", text)[0] for text in project["dependencies"]]
    assert sorted(names) == REQUIRED
    assert project["requires-python"] == ">=3.11"
    assert project["scripts"] == {"sbm": "sbm.__main__:main"}


@pytest.mark.process
def test_command_line_starts_without_heavy_imports():
    code = (
        "import sys, sbm.cli\n"
        "try:\n    sbm.cli.main(['train', '--help'])\n"
        "except SystemExit as end:\n    code = end.code\n"
        "heavy = ('numpy', 'numba', 'scipy', 'llvmlite', 'zstandard', 'tqdm', 'jinja2')\n"
        "print(code, [m for m in heavy if m in sys.modules])\n"
    )
    done = finished([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"


@pytest.mark.process
def test_programs_start_without_heavy_imports():
    code = (
        "import sys, sbm.programs.train, sbm.programs.predict, sbm.programs.stream\n"
        "heavy = ('numba', 'asyncio', 'fsspec', 'pyarrow', 'pandas', 'tqdm', 'jinja2', 'csv',\n"
        "    'llvmlite', 'multiprocessing', 'subprocess', 'tempfile', 'tomllib', 'zipfile',\n"
        "    'sbm.compiled.child', 'sbm.inputs.arrow', 'sbm.inputs.npz', 'sbm.inputs.tables',\n"
        "    'sbm.programs.reporting')\n"
        "print([m for m in heavy if m in sys.modules])\n"
    )
    done = finished([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"
