"""The Dockerfile: its form, and its steps in a fresh virtual environment."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "Dockerfile").read_text()
# Instructions with their words, without comments; lines that end in a backslash are joined.
STEPS = [
    tuple(line.split(maxsplit=1))
    for line in re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", TEXT, flags=re.M)).splitlines()
    if line
]


def words_of(instruction: str) -> list[str]:
    return [words for name, words in STEPS if name == instruction]


def test_dockerfile_follows_the_usual_rules():
    """What hadolint checks, as far as it applies here."""
    known = {"FROM", "WORKDIR", "COPY", "RUN", "ENV", "USER", "ENTRYPOINT", "CMD"}
    assert {name for name, _ in STEPS} <= known
    assert STEPS[0][0] == "FROM"
    for image in words_of("FROM"):
        assert re.match(r"\S+:[\w.-]*\d[\w.-]*slim( AS \w+)?$", image), "a slim base with a version"
    assert all(path.startswith("/") for path in words_of("WORKDIR"))
    last = STEPS[len(STEPS) - [name for name, _ in STEPS][::-1].index("FROM") :]
    assert [words for name, words in last if name == "USER"] == ["sbm"], "not root"
    for name in ("ENTRYPOINT", "CMD"):
        (form,) = words_of(name)
        assert isinstance(json.loads(form), list), "the exec form, which receives signals"
    assert "pip install --no-cache-dir" in TEXT
    assert "sudo" not in TEXT
    for source in re.findall(r"install -D (\S+)", TEXT):
        assert (ROOT / source).is_file()
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert not {"sbm", "scripts", "configs", "README.md", "hatch_build.py"} & {*ignored}


@pytest.mark.slow
@pytest.mark.process
def test_steps_work_in_a_fresh_environment(tmp_path):
    """The commands of the first stage, with another folder and the kernels of one loss."""
    source, target = tmp_path / "src", tmp_path / "opt"
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    for name in tracked.stdout.splitlines():
        if not name.startswith(("docs", "tests", "scripts/results", "data/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    commands = words_of("RUN")[0].replace("/opt/sbm", str(target))
    commands = commands.replace("python -m", f"{sys.executable} -m", 1)
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    environment |= {"SBM_LOSSES": "hinge", "SBM_CACHE_DIR": str(tmp_path / "cache")}
    subprocess.run(["sh", "-ec", commands], cwd=source, env=environment, check=True)
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.svm").write_text("1 1:1\n-1 2:1\n")
    (entry,) = json.loads(words_of("ENTRYPOINT")[0])
    line = [str(target / "bin" / entry), "train", "a.svm", "--loss", "hinge", "--json"]
    done = subprocess.run(line, cwd=data, env=environment, capture_output=True, check=True)
    assert json.loads(done.stdout)["converged"]
    assert not list((tmp_path / "cache").glob("solver*"))  # nothing was compiled
    assert (target / "scripts" / "nightly.sh").is_file()
