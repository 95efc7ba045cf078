"""The wheel and the source archive: what is in them, and that they work where nothing else is."""

import json
import os
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from click.shell_completion import BashComplete
from processes import finished

import sbm
from sbm.cli import cli

ROOT = Path(__file__).resolve().parent.parent


def build(source: Path, target: Path, kind: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    finished(command, cwd=source, check=True)
    (made,) = target.iterdir()
    return made


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.mark.process
def test_wheel_holds_the_package_and_works(wheel, tmp_path):
    modules = {str(p.relative_to(ROOT)) for p in (ROOT / "sbm").rglob("*.py")}
    names = {name for name in contents(wheel) if not name.startswith("sbm-")}
    templates = {str(p.relative_to(ROOT)) for p in (ROOT / "sbm").rglob("*.html")}
    assert len(templates) == 1
    assert names - {"sbm/.gitignore"} == modules | templates | {"sbm/py.typed"}
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env/bin/python"
    command = [sys.executable, "-m", "pip", "--python", python, "install", "--no-index"]
    finished([*command, "--no-deps", "-q", wheel], check=True)
    base = {"base": str(tmp_path / "env"), "platbase": str(tmp_path / "env")}
    own = Path(sysconfig.get_path("purelib", vars=base))
    (own / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    # Machine code is kept by the text of kernels, which is the same here and there.
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    environment |= {"SBM_CACHE_DIR": str(ROOT / "sbm/__pycache__")}

    def run(*command: str | Path) -> str:
        return finished(command, cwd=tmp_path, env=environment, check=True).stdout

    assert (tmp_path / "env").as_posix() in run(python, "-c", "import sbm; print(sbm.__file__)")
    program = tmp_path / "env/bin/sbm"
    assert run(program, "--version") == f"sbm, version {sbm.__version__}\n"
    run(program, "split", ROOT / "data/sample.svm", "-o", "s.sbm")
    assert json.loads(run(python, "-m", "sbm", "train", "--json"))["converged"]
    assert run(program, "report", "s.model") == "report.html\n"


@pytest.mark.slow
def test_source_archive_makes_the_same_wheel(wheel, tmp_path):
    archive = build(ROOT, tmp_path / "made", "sdist")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    unpacked = tmp_path / f"sbm-{sbm.__version__}"
    assert {p.name for p in unpacked.iterdir()} == {
        "sbm", "tests", "scripts", "configs", "data", "docs", ".ci", "README.md", "CHANGELOG.md",
        "CONTRIBUTING.md", "LICENSE", "mkdocs.yml", "pyproject.toml", "PKG-INFO",
    }  # fmt: skip
    assert not list(unpacked.rglob("__pycache__"))
    assert (unpacked / "scripts/demo.sh").stat().st_mode & 0o111
    assert contents(build(unpacked, tmp_path / "wheel", "wheel")) == contents(wheel)


def test_words_are_completed():
    completion = BashComplete(cli, {}, "sbm", "_SBM_COMPLETE")
    for typed, last, found in (
        ([], "tr", {"train"}), (["train", "--loss"], "cr", {"crammer_singer"}),
        (["train"], "--cache-f", {"--cache-frac"}), (["split", "--dtype"], "f",
                                                      {"float32", "float64"}),
    ):  # fmt: skip
        assert {item.value for item in completion.get_completions(typed, last)} == found
    assert "_SBM_COMPLETE=bash_complete" in completion.source()
