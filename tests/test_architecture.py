"""What the source shows: who imports what, what is exported and documented."""

import ast
import inspect
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import finished

import sbm

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "sbm"
Function = ast.FunctionDef | ast.AsyncFunctionDef

# A layer may import itself and everything with a smaller number.
LEVELS = {
    "__main__": 6, "__init__": 6, "cli": 5, "sklearn": 5, "jobs": 4, "interop": 3, "solver": 2,
    "store": 2, "distributed": 2, "rows": 1, "losses": 1, "settings": 1, "errors": 1, "alphas": 1,
    "compiled": 1, "probabilities": 1,
}  # fmt: skip
FORBIDDEN = {("solver", "store"), ("store", "solver")}
# Folders of jobs/: each may import those before it, and none a program beside the folders.
ROOMS = [
    "progress", "machine", "dealing", "judging", "engine", "training", "streaming", "classblocks",
    "reporting", "tuning",
]  # fmt: skip
REQUIRED = ["click", "numba", "numpy", "scipy", "tqdm", "zstandard"]
KERNELS = r"sbm/((solver|store)/kernels/\w+|compiled)"
# Libraries that are imported in some files only, those of extras among them.
ONLY_IN = {
    "numba": KERNELS,
    "llvmlite": KERNELS,
    "mpi4py": r"sbm/distributed/comm",
    "sklearn": r"sbm/(sklearn|store/fitted)",
    "joblib": r"sbm/sklearn",
    "click": r"sbm/cli/\w+",
    "tqdm": r"sbm/cli/bars",
    "pyarrow": r"sbm/store/parquet",
    "zstandard": r"sbm/store/(arrays|text)",
    "pickle|marshal|shelve|dill": r"sbm/sklearn",
}
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
    """What is wrong about an import of a file; `name` is its path without the ending."""
    parts, theirs = name.split("/"), imported.split(".")
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
    if layer == "jobs" and len(parts) == 4 and target == "jobs":
        before = ROOMS[: ROOMS.index(parts[2]) + 1]
        if theirs[2] not in before:
            yield "is a room behind this one, or a program"
    # `compiled` looks beside a kernel, and nowhere else, for what makes machine code stale.
    if parts[-2] == "kernels" and theirs[:-1] != parts[:-1] and theirs[:-2] != parts[:-1]:
        yield "does not lie beside this kernel"


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
            if ast.unparse(node.func) in PRINTS and name != "sbm/cli/output":
                yield f"{name}:{node.lineno} prints"
            if "allow_pickle" in {keyword.arg for keyword in node.keywords}:
                yield f"{name}:{node.lineno} may unpickle"
    if not ast.get_docstring(tree):
        yield f"{name} has no docstring"
    for missing in set(exported(tree)) - {*defined(tree)}:
        if name != "sbm/__init__":  # the package looks its names up when they are used
            yield f"{name} exports {missing}, which is not there"


@pytest.mark.long
def test_source_follows_the_rules():
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 50
    found = [what for path in files for what in violations(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", [n for n in sbm.__all__ if n == "Settings" or n.islower()])
def test_every_parameter_of_the_api_is_documented(name):
    told = inspect.getdoc(getattr(sbm, name))
    section = re.search(r"^Parameters\n-+\n(.*?)(?=\n\w+\n---|\Z)", told, re.S | re.M)
    names = re.findall(r"^(\w+(?:, \w+)*)(?: :|$)", section[1], re.M)
    documented = [n for several in names for n in several.split(", ")]
    assert sorted(documented) == sorted(inspect.signature(getattr(sbm, name)).parameters)
    assert name == "Settings" or re.search(r"^Returns\n---.*^Raises\n---", told, re.S | re.M)


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
        "heavy = ('numpy', 'numba', 'scipy', 'llvmlite', 'zstandard', 'tqdm')\n"
        "print(code, [m for m in heavy if m in sys.modules])\n"
    )
    done = finished([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert done.stdout.splitlines()[-1] == "0 []"
