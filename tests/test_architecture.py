"""The arrows of DESIGN.md, section 3, read from the source."""

import ast
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import finished

from sbm.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "sbm"
FILES = sorted(PACKAGE.rglob("*.py"))
NAMES = [str(path.relative_to(ROOT)) for path in FILES]
EVERY_FILE = pytest.mark.parametrize("path", FILES, ids=NAMES)

# A layer may import itself and everything with a smaller number.
LEVELS = {
    "cli": 5, "sklearn": 5, "jobs": 4, "interop": 3, "solver": 2, "store": 2,
    "distributed": 2, "rows": 1, "losses": 1, "settings": 1, "errors": 1, "alphas": 1,
    "compiled": 1, "probabilities": 1,
}  # fmt: skip
# Rooms of jobs/, which hold the parts of its programs: a room may import those before it. The
# programs lie beside the rooms; no room imports one, but all tell their progress.
ROOMS = [
    "machine", "dealing", "judging", "engine", "training", "streaming", "classblocks", "reporting",
    "tuning",
]  # fmt: skip
FORBIDDEN = {("solver", "store"), ("store", "solver")}
NUMBA = re.compile(r"sbm/((solver|store)/kernels/\w+|compiled)\.py")
ONLY_IN = {
    "numba": NUMBA,
    "llvmlite": NUMBA,
    "mpi4py": re.compile(r"sbm/distributed/comm\.py"),
    "sklearn": re.compile(r"sbm/(sklearn|store/fitted)\.py"),
    "joblib": re.compile(r"sbm/sklearn\.py"),
    "click": re.compile(r"sbm/cli/\w+\.py"),
    "tqdm": re.compile(r"sbm/cli/bars\.py"),
    "pyarrow": re.compile(r"sbm/store/parquet\.py"),
    "zstandard": re.compile(r"sbm/store/(arrays|text)\.py"),
}
TOP_LEVEL = {
    "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md",
    "sbm", "tests", "scripts", "configs", "data", "docs", ".ci",
}  # fmt: skip


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def _imports(path: Path) -> Iterator[str]:
    """Full names of everything a file imports, at its top, in functions and for type checkers."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) + 1 - node.level]) if node.level else ""
            module = ".".join(part for part in (base, node.module or "") if part)
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _layer(name: str) -> str | None:
    """``sbm.store.blocks.BlockStore`` -> ``store``; None for the bare package."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LEVELS else None


def test_the_source_is_where_the_tests_look_for_it():
    assert {"sbm/cli/entry.py", "sbm/jobs/train.py", "sbm/solver/kernels/svc.py"} <= set(NAMES)


def test_every_module_belongs_to_a_layer():
    known = {f"{name}.py" for name in LEVELS} | {"__init__.py", "__main__.py"}
    for path in FILES:
        parts = path.relative_to(PACKAGE).parts
        assert parts[0] in LEVELS or parts[0] in known, f"{path} is in no layer of DESIGN.md"


@EVERY_FILE
def test_imports_point_downwards_only(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    ours = [name for name in _imports(path) if name == "sbm" or name.startswith("sbm.")]
    if parts[0] == "__main__":
        assert [_layer(name) for name in ours] == ["cli"]
        return
    if parts[0] != "cli":
        assert "cli" not in {_layer(name) for name in ours}, "nothing imports the command line"
    if parts[0] == "__init__":
        return
    for name in ours:
        target = _layer(name)
        if target is None:
            assert name in ("sbm", "sbm.__version__"), f"{name} goes through the package"
            continue
        assert LEVELS[target] <= LEVELS[parts[0]], f"{path.name} imports {name} from above"
        assert (parts[0], target) not in FORBIDDEN, f"{path.name} imports {name}"


def test_every_folder_of_jobs_is_a_room_and_has_more_than_one_file():
    folders = {path.parent.name for path in PACKAGE.glob("jobs/*/*.py")}
    assert folders == set(ROOMS)
    for folder in folders:
        assert len(list(PACKAGE.glob(f"jobs/{folder}/*.py"))) > 2, f"{folder} holds one module"


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("jobs/*/*.py")), ids=lambda p: p.name)
def test_rooms_of_jobs_import_no_program_and_no_room_behind_them(path):
    before = [*ROOMS[: ROOMS.index(path.parent.name) + 1], "progress"]
    for name in _imports(path):
        if name.startswith("sbm.jobs."):
            assert name.split(".")[2] in before, f"{path.name} imports {name}"


@pytest.mark.parametrize("path", sorted(PACKAGE.glob("*/kernels/*.py")), ids=lambda p: p.name)
def test_kernels_import_nothing_of_ours_but_what_lies_beside_them(path):
    # `compiled.py` looks there, and nowhere else, for what makes machine code stale.
    folder = ".".join(path.relative_to(ROOT).parts[:-1])
    ours = [name for name in _imports(path) if name.split(".")[0] == "sbm"]
    for name in ours:
        beside = name.removeprefix(f"{folder}.").split(".")[0]
        assert name.startswith(f"{folder}."), f"{path.name} imports {name}"
        assert path.with_name(f"{beside}.py").is_file(), f"{path.name} imports {name}"


@EVERY_FILE
def test_each_library_is_imported_only_where_it_belongs(path):
    name = str(path.relative_to(ROOT))
    for imported in _imports(path):
        where = ONLY_IN.get(imported.split(".")[0])
        assert where is None or where.fullmatch(name), f"{name} imports {imported}"


@EVERY_FILE
def test_only_required_packages_are_imported(path):
    required = {"click", "numba", "llvmlite", "numpy", "scipy", "tqdm", "zstandard", "sbm"}
    required.add("mpi4py")  # of an extra; imported where a program runs in several processes
    required.add("pyarrow")  # of an extra; imported where a Parquet file is read
    required |= {"sklearn", "joblib"}  # of another: estimators, and models turned into some
    for imported in _imports(path):
        top = imported.split(".")[0]
        assert top in required or top in sys.stdlib_module_names, f"{path} imports {imported}"


@EVERY_FILE
def test_only_the_command_line_prints(path):
    if path == PACKAGE / "cli" / "output.py":
        return
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in (
                "print", "sys.stdout.write", "sys.stderr.write", "pprint", "pprint.pprint",
            ), f"{path}:{node.lineno} prints"  # fmt: skip


@pytest.mark.parametrize("path", [f for f in FILES if "store" in f.parts], ids=lambda p: p.name)
def test_no_pickle(path):
    assert not {n.split(".")[0] for n in _imports(path)} & {"pickle", "marshal", "shelve", "dill"}
    assert "allow_pickle" not in path.read_text("utf-8")


@EVERY_FILE
def test_everything_public_has_a_docstring(path):
    tree = _tree(path)
    assert ast.get_docstring(tree), f"{path} says nothing about itself"
    defined = {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
    }
    for name in _exported(tree):
        if name not in defined:
            continue
        node = defined[name]
        assert ast.get_docstring(node), f"{path}: {name} has no docstring"
        for member in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
                assert ast.get_docstring(member), f"{path}: {name}.{member.name} has no docstring"


@EVERY_FILE
def test_everything_exported_exists(path):
    tree = _tree(path)
    names = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {t.id for t in targets if isinstance(t, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    assert set(_exported(tree)) <= names


def _exported(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def test_the_package_offers_what_it_exports():
    import sbm

    for name in sbm.__all__:
        assert getattr(sbm, name).__doc__, name
    with pytest.raises(AttributeError, match="module 'sbm' has no attribute 'trian'"):
        sbm.trian  # noqa: B018  reading it is the test


def test_the_command_line_starts_without_numpy_numba_and_scipy():
    code = (
        "import sys, json, sbm.cli\n"
        "heavy = lambda: [m for m in ('numpy', 'numba', 'scipy', 'llvmlite', 'zstandard', 'tqdm')"
        " if m in sys.modules]\n"
        "before = heavy()\n"
        "sys.stdout.flush()\n"
        "try:\n    sbm.cli.main(['train', '--help'])\n"
        "except SystemExit as end:\n    code = end.code\n"
        "print(json.dumps([before, heavy(), code]))\n"
    )
    done = finished([sys.executable, "-c", code], cwd=ROOT, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [[], [], 0]


def test_exactly_six_packages_are_required():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    names = [re.match(r"[A-Za-z0-9_-]+", text)[0] for text in project["dependencies"]]
    assert sorted(names) == ["click", "numba", "numpy", "scipy", "tqdm", "zstandard"]
    assert project["requires-python"] == ">=3.11"
    assert project["license"] == "BSD-3-Clause"
    assert project["scripts"] == {"sbm": "sbm.__main__:main"}


def test_the_top_level_holds_what_the_design_lists():
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    try:
        listed = finished(["git", "ls-files", "-z"], cwd=ROOT, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"git does not list the files: {error}")
    assert {name.split("/")[0] for name in listed.stdout.split("\0") if name} == TOP_LEVEL


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.toml")), ids=lambda p: p.name)
def test_every_config_is_settings(path):
    settings = Settings.from_dict(Settings.read_toml(path), str(path))
    assert isinstance(settings, Settings)
