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
from processes import finished

import sbm

ROOT = Path(__file__).resolve().parent.parent


def build(source: Path, target: Path, kind: str) -> Path:
    """Make a wheel or a source archive."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)]
    finished(command, cwd=source, check=True)
    (made,) = target.iterdir()
    return made


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """The source archive, unpacked."""
    folder = tmp_path_factory.mktemp("source")
    archive = build(ROOT, folder / "made", "sdist")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / f"sbm-{sbm.__version__}"


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    modules = {str(p.relative_to(ROOT)) for p in (ROOT / "sbm").rglob("*.py")}
    names = {name for name in contents(wheel) if not name.startswith("sbm-")}
    assert names - {"sbm/.gitignore"} == modules | {"sbm/py.typed"}


def test_the_source_archive_holds_what_is_in_the_checkout_and_makes_the_same_wheel(
    wheel, unpacked, tmp_path
):
    assert {p.name for p in unpacked.iterdir()} == {
        "sbm", "tests", "scripts", "configs", "data", "docs", ".ci", "README.md", "CHANGELOG.md",
        "CONTRIBUTING.md", "LICENSE", "pyproject.toml", "PKG-INFO",
    }  # fmt: skip
    assert not list(unpacked.rglob("__pycache__"))
    assert (unpacked / "scripts/demo.sh").stat().st_mode & 0o777 == (
        (ROOT / "scripts/demo.sh").stat().st_mode & 0o777
    )
    assert contents(build(unpacked, tmp_path, "wheel")) == contents(wheel)


@pytest.fixture(scope="module")
def fresh(wheel, tmp_path_factory):
    """A Python environment with the wheel, where only other packages are shared with this one."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, with_pip=False)
    python = folder / "bin/python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-index"]
    finished([*command, "--no-deps", "-q", str(wheel)], check=True)
    scheme = {"base": str(folder), "platbase": str(folder)}
    own = Path(sysconfig.get_path("purelib", vars=scheme))
    (own / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return folder


def test_installed_it_does_all_that_it_does_in_the_checkout(fresh, tmp_path):
    # Machine code is kept by the text of kernels, which is the same here and there.
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    environment |= {"SBM_CACHE_DIR": str(ROOT / "sbm/__pycache__")}

    def run(*command: str) -> str:
        done = finished(command, cwd=tmp_path, env=environment, check=True)
        return done.stdout

    python, program = str(fresh / "bin/python"), str(fresh / "bin/sbm")
    where = Path(run(python, "-c", "import sbm; print(sbm.__file__)").strip())
    assert where.is_relative_to(fresh)
    assert run(program, "--version") == f"sbm, version {sbm.__version__}\n"
    assert run(python, "-m", "sbm", "--help") == run(program, "--help")
    run(program, "split", str(ROOT / "data/sample.svm"), "-o", "s.sbm")
    report = json.loads(run(program, "train", "--json"))
    assert report["converged"]
    run(python, "-m", "sbm", "predict", "s.model", str(ROOT / "data/sample.svm"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_are_told_how_to_complete(shell):
    environment = {**os.environ, "_SBM_COMPLETE": f"{shell}_source"}
    done = finished(["sbm"], env=environment, check=True)
    assert f"_SBM_COMPLETE={shell}_complete" in done.stdout


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("sbm tr", {"train"}),
        ("sbm train --loss cr", {"crammer_singer"}),
        ("sbm train --cache", {"--cache-frac", "--caches"}),
        ("sbm split --dtype f", {"float32", "float64"}),
    ],
)
def test_words_are_completed(words, found):
    typed = words.split()
    environment = {
        **os.environ,
        "_SBM_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(typed) - 1),
    }
    done = finished(["sbm"], env=environment, check=True)
    assert {line.split(",")[1] for line in done.stdout.splitlines()} == found
