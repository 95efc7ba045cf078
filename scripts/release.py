"""Check what a release would publish, in fresh environments and a fresh clone.

    python -m scripts.release --keep dist
    python -m scripts.release --pythons python3.13 --no-clone

Builds wheel and source archive from a clone of HEAD, and checks them and README with twine. Each
is installed into a new environment of each Python, with its dependencies from the package index,
where it trains, predicts and reports on ``data/sample.svm``. The first Python also gets the wheel
with its extras and the lowest versions that ``pyproject.toml`` allows, the last one with its extras
and the newest versions that the package index has. Then the demo and the tests
run in the clone, with an empty home folder.
"""

import argparse
import os
import re
import shutil
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from scripts.bench.tools import ROOT, BenchError, Finished, Report, run_process, tell

PYTHONS = ["python3.11", "python3.12", "python3.13"]
LAST = {"demo": 25, "test": 6}  # lines of a transcript
# What each installation must do.
SMOKE = (
    "sbm --version",
    "sbm train sample.svm --mem 200MB -o s.model",
    "sbm split sample.svm -o s.sbm",
    "sbm train s.sbm --loss log_loss -o t.model",
    "sbm predict s.model sample.svm -o labels.txt",
    "sbm report s.model -o page.html",
    "python -c 'import sbm, sbm.settings; assert sbm.Model.load(\"s.model\").ids.size'",
)
EXTRAS = ("arrow", "remote", "gzip", "sklearn", "plot")  # tried with the lowest versions
SMOKE_OF_EXTRAS = (
    "sbm cat s.sbm -o rows.parquet --format parquet",
    "sbm train rows.parquet -o u.model --mem 400MB",
    "sbm report s.model -o page.html --png page.png",
    "python -c 'import fsspec.implementations.http'",
    "python -c 'import isal.isal_zlib'",
    "python -c 'from sbm.sklearn import SBMClassifier as S; S().fit([[0.0], [1.0]], [0, 1])'",
)


class StepError(Exception):
    """A step failed; its message is the end of what it printed."""


def _run(command: Sequence[str | Path], folder: Path) -> Finished:
    done = run_process(command, folder=folder, codes=range(256))
    if done.code:
        raise StepError("\n".join((done.stdout + done.stderr).splitlines()[-20:]))
    return done


def _find(python: str) -> str | None:
    """Return the path of a Python that starts: version managers have names without a program."""
    managed = sorted(
        Path.home().glob(f".pyenv/versions/{python.removeprefix('python')}*/bin/python")
    )
    for path in (shutil.which(python), *map(str, managed)):
        if path and not run_process([path, "--version"], codes=range(256)).code:
            return path
    return None


def _build(clone: Path, folder: Path) -> list[Path]:
    """Build wheel and source archive, and check them with twine."""
    tell("building and checking")
    tools = folder / "tools"
    venv.create(tools, with_pip=True)
    pip: list[str | Path] = [tools / "bin/pip", "install", "-q", "--disable-pip-version-check"]
    _run([*pip, "build", "hatchling", "twine", "readme_renderer[md]"], folder)
    _run([tools / "bin/python", "-m", "build", "-o", folder / "dist", clone], folder)
    made = sorted((folder / "dist").iterdir())
    checked = _run([tools / "bin/twine", "check", "--strict", *made], folder)
    if checked.stdout.count("PASSED") != 2:
        raise StepError(checked.stdout)
    return made


def lowest(pyproject: Path) -> list[str]:
    """Return the lowest versions of dependencies, as lines of a file of constraints."""
    project = tomllib.loads(pyproject.read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *(one for name in EXTRAS for one in extras[name])]
    found = [re.match(r"([\w-]+)>=([\d.]+)", one) for one in wanted]
    return [f"{bound[1]}=={bound[2]}" for bound in found if bound]


def _install(
    python: str, path: str, archive: Path, folder: Path, constraints: Sequence[str] | None = None
) -> dict[str, Any]:
    """Install into a new environment and use it; a row of the report.

    Constraints are versions of dependencies; if they are given, extras are installed, too.
    """
    kind = "wheel" if archive.suffix == ".whl" else "source archive"
    if constraints is not None:
        kind += f", extras, {'lowest' if constraints else 'newest'} dependencies"
    tell(f"{python}: {kind}")
    home = folder / f"{python}-{archive.suffix[1:]}"
    home.mkdir()
    _run([path, "-m", "venv", home / "env"], home)
    programs = home / "env/bin"
    pip: list[str | Path] = [programs / "pip", "install", "-q", "--disable-pip-version-check"]
    what = str(archive)
    smoke: Sequence[str] = SMOKE
    if constraints is not None:
        (home / "lowest.txt").write_text("\n".join(constraints))
        what += f"[{','.join(EXTRAS)}]"
        pip += ["-c", home / "lowest.txt"]
        smoke = (*SMOKE, *SMOKE_OF_EXTRAS)
    first = _run([*pip, what], home)
    shutil.copyfile(ROOT / "data/sample.svm", home / "sample.svm")
    code = f"unset PYTHONPATH; PATH={programs}:$PATH; set -e; " + "; ".join(smoke)
    seconds = _run(["sh", "-c", code], home).seconds
    version = _run([programs / "python", "--version"], home).stdout.split()[1]
    shutil.rmtree(home)
    return {
        "python": version, "what": kind, "install_seconds": first.seconds,
        "commands": len(smoke), "seconds": seconds, "ok": True,
    }  # fmt: skip


def _in_clone(clone: Path, home: Path) -> Iterator[tuple[str, float, list[str]]]:
    """Run the two commands of README; yield each with its minutes and what it printed."""
    home.mkdir()
    kept = [
        f"{k}={v}" for k, v in os.environ.items() if k.startswith(("PATH", "LANG", "PIP", "PYENV"))
    ]
    settings = [*kept, f"HOME={home}"]
    for name in LAST:
        tell(f"sh scripts/{name}.sh")
        done = _run(["env", "-i", *settings, "sh", "-c", f"sh scripts/{name}.sh 2>&1"], clone)
        lines = done.stdout.strip().splitlines()
        yield f"sh scripts/{name}.sh", done.seconds / 60, lines[-LAST[name] :]


def check(args: argparse.Namespace, report: Report) -> None:
    """Build, install, use; fill the report."""
    found = {python: _find(python) for python in args.pythons}
    if not all(found.values()):
        missing = ", ".join(python for python, path in found.items() if path is None)
        raise BenchError(f"{missing} not found; name those that are there with --pythons")
    with tempfile.TemporaryDirectory(prefix="sbm-release-") as name:
        folder = Path(name)
        clone = folder / "clone"
        _run(["git", "clone", "-q", ROOT, clone], folder)
        archives = _build(clone, folder)
        report.data["twine check --strict"] = ", ".join(f"{a.name} passed" for a in archives)
        first, last = args.pythons[0], args.pythons[-1]
        wheel = next(archive for archive in archives if archive.suffix == ".whl")
        bounds = lowest(clone / "pyproject.toml")
        for python, versions in ((first, bounds), (last, ())):
            report.rows.append(_install(python, str(found[python]), wheel, folder, versions))
        for python, path in found.items():
            for archive in archives:
                report.rows.append(_install(python, str(path), archive, folder))
        if not args.no_clone:
            for command, minutes, lines in _in_clone(clone, folder / "home"):
                report.data[f"{command}, minutes"] = minutes
                report.tables[command] = [{"line": line} for line in lines]
        if args.keep is not None:
            args.keep.mkdir(exist_ok=True)
            for archive in archives:
                shutil.copy2(archive, args.keep)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; exit code 0 done, 1 a step failed, 2 usage."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("-o", dest="prefix", type=Path, help="write PREFIX.json and PREFIX.md")
    parser.add_argument("--keep", type=Path, help="folder for the archives that passed")
    parser.add_argument("--pythons", nargs="+", default=PYTHONS, help="default: 3.11 to 3.13")
    parser.add_argument("--no-clone", action="store_true", help="without the demo and the tests")
    args = parser.parse_args(argv)
    report = Report("release", "the archives in fresh environments, and a fresh clone")
    try:
        check(args, report)
    except (BenchError, StepError, OSError) as error:
        print(f"scripts.release: {error}", file=sys.stderr)
        return 1
    if args.prefix is not None:
        report.write(args.prefix)
    print(report.markdown(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
