"""The wheel and the source archive: their content, and that they work on their own."""

import json
import os
import platform
import re
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.shell_completion import BashComplete
from helpers import load_script
from inside import cli
from processes import finished

import sbm

ROOT = Path(__file__).resolve().parent.parent


def build(source: Path, target: Path, kind: str, **variables: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    finished(command, cwd=source, env={**os.environ, **variables}, check=True)
    (made,) = target.iterdir()
    return made


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel without machine code, as compiling all of it takes minutes."""
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel", SBM_PROCESSOR="none")


def install(wheel: Path, folder: Path, without: Sequence[str] = ()) -> Path:
    """Return the Python of a new environment with the wheel and borrowed dependencies."""
    venv.create(folder, with_pip=False)
    python = folder / "bin/python"
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--no-index"]
    finished([*command, "--no-deps", "-q", wheel], check=True)
    base = {"base": str(folder), "platbase": str(folder)}
    own = Path(sysconfig.get_path("purelib", vars=base))
    if without:
        for package in Path(sysconfig.get_path("purelib")).iterdir():
            if not package.name.startswith((*without, "sbm", "pip", "_")):
                (own / package.name).symlink_to(package)
    else:
        (own / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return python


@pytest.mark.process
def test_wheel_holds_the_package_and_works(wheel, tmp_path):
    modules = {str(p.relative_to(ROOT)) for p in (ROOT / "sbm").rglob("*.py")}
    names = {name for name in contents(wheel) if not name.startswith("sbm_linear-")}
    templates = {str(p.relative_to(ROOT)) for p in (ROOT / "sbm").rglob("*.html")}
    assert len(templates) == 1
    assert names == modules | templates | {"sbm/py.typed"}
    python = install(wheel, tmp_path / "env")
    # Machine code is kept by the text of kernels, which is the same here and there.
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}

    def run(*command: str | Path) -> str:
        return finished(command, cwd=tmp_path, env=environment, check=True).stdout

    assert (tmp_path / "env").as_posix() in run(python, "-c", "import sbm; print(sbm.__file__)")
    program = tmp_path / "env/bin/sbm"
    assert run(program, "--version") == f"sbm, version {sbm.__version__}\n"
    run(program, "split", ROOT / "data/sample.svm", "-o", "s.sbm")
    assert json.loads(run(python, "-m", "sbm", "train", "--json"))["converged"]
    assert run(program, "report", "s.model") == "report.html\n"


@pytest.mark.process
@pytest.mark.slow
def test_types_of_the_package_suit_a_strict_program(wheel, tmp_path):
    python = install(wheel, tmp_path / "env")
    text = (ROOT / "tests/downstream/app.py").read_text()
    for name, program, code in (("app", text, 0), ("wrong", text.replace("C=C", "C='x'"), 1)):
        (tmp_path / f"{name}.py").write_text(program)
        options = ["--strict", "--python-executable", python, "--python-version", "3.12"]
        command = [sys.executable, "-m", "mypy", *options, "--cache-dir", ROOT / ".mypy_cache/app"]
        done = finished([*command, f"{name}.py"], cwd=tmp_path)
        assert (done.returncode, done.stdout.count("error:")) == (code, code), done.stdout


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="compiles for x86-64-v3")
def test_wheel_with_machine_code_never_compiles(tmp_path):
    made = build(ROOT, tmp_path / "made", "wheel", SBM_LOSSES="hinge")
    assert made.name.endswith("-py3-none-linux_x86_64.whl")
    python = install(made, tmp_path / "env", without=("numba", "llvmlite"))
    left_out = ("PYTHONPATH", "SBM_COMPILE_HERE")
    environment = {k: v for k, v in os.environ.items() if k not in left_out}
    environment |= {"SBM_CACHE_DIR": str(tmp_path / "cache")}
    commands = "split SAMPLE -o s.sbm", "train s.sbm", "train SAMPLE -o u.model"
    for line in (*commands, "predict s.model SAMPLE", "stream SAMPLE -o t.model"):
        words = line.replace("SAMPLE", str(ROOT / "data/sample.svm")).split()
        finished([python, "-m", "sbm", *words], cwd=tmp_path, env=environment, check=True)
    assert {file.name.split(".")[0] for file in (tmp_path / "cache").glob("*")} <= {"ready"}
    line = [python, "-m", "sbm", "train", ROOT / "data/sample.svm", "--loss", "log_loss"]
    done = finished(line, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stderr.count("sbm-linear[compile]")) == (1, 1), done.stderr


@pytest.mark.slow
def test_source_archive_makes_the_same_wheel(wheel, tmp_path):
    archive = build(ROOT, tmp_path / "made", "sdist")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    unpacked = tmp_path / f"sbm_linear-{sbm.__version__}"
    assert {p.name for p in unpacked.iterdir()} == {
        "sbm", "tests", "scripts", "configs", "data", "docs", ".ci", ".gitignore", "README.md",
        "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "LICENSE", "hatch_build.py",
        "mkdocs.yml", "packaging", "Dockerfile", ".dockerignore", ".github", "RELEASING.md",
        "SECURITY.md",
        "pyproject.toml", "PKG-INFO",
    }  # fmt: skip
    assert not list(unpacked.rglob("__pycache__"))
    assert (unpacked / "scripts/demo.sh").stat().st_mode & 0o111
    again = build(unpacked, tmp_path / "wheel", "wheel", SBM_PROCESSOR="none")
    assert contents(again) == contents(wheel)


def test_shell_completion_works():
    completion = BashComplete(cli, {}, "sbm", "_SBM_COMPLETE")
    for typed, last, found in (
        ([], "tr", {"train"}), (["train", "--loss"], "cr", {"crammer_singer"}),
        (["train"], "--cache-f", {"--cache-frac"}), (["split", "--dtype"], "f",
                                                      {"float32", "float64"}),
    ):  # fmt: skip
        assert {item.value for item in completion.get_completions(typed, last)} == found
    assert "_SBM_COMPLETE=bash_complete" in completion.source()


def test_every_dependency_has_a_lowest_version():
    """`python -m scripts.release` installs these versions."""
    release = load_script("release")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(d for name in release.EXTRAS for d in extras[name])]
    names = {re.match(r"[\w-]+", one)[0] for one in wanted}
    bounds = dict(line.split("==") for line in release.lowest(ROOT / "pyproject.toml"))
    assert {*bounds} == names - {"llvmlite"}  # numba needs one version of it
    assert bounds["click"] == "8.0"


def test_every_file_names_the_same_version():
    for name, pattern in (
        ("CITATION.cff", r"^version: (.*)$"), ("packaging/conda/meta.yaml", r'version = "(.*)"'),
        ("CHANGELOG.md", r"^## (\S+)"),
    ):  # fmt: skip
        found = re.search(pattern, (ROOT / name).read_text("utf-8"), re.MULTILINE)
        assert found[1] == sbm.__version__, name


def test_conda_recipe_has_the_bounds_of_dependencies():
    recipe = (ROOT / "packaging/conda/meta.yaml").read_text("utf-8")
    run_part = recipe.split("  run:\n")[1].split("\ntest:")[0]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for one in project["dependencies"]:
        name, bound, elsewhere = re.match(r"([\w-]+)([^;]*)(; .*)?", one).groups()
        selector = "  # [not linux64]" if elsewhere else ""
        assert f"- {name} {bound}{selector}\n" in f"{run_part}\n", one
    for one in project["optional-dependencies"]["compile"]:  # the build compiles
        name, bound = re.match(r"([\w-]+)(.*)", one).groups()
        assert f"- {name} {bound}\n" in recipe.split("  run:\n")[0], one
