"""README, docs and help: every command block is run as it stands, on small data; links lead."""

import gzip
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from helpers import write_rows
from launching import environment, needs_mpi
from test_engine import made

import sbm
from sbm.cli import cli

ROOT = Path(__file__).resolve().parent.parent
PAGES = {p: p.read_text("utf-8") for p in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]}
BLOCKS = [
    (f"{path.stem}, line {text[: match.start()].count(chr(10)) + 1}", match[1], match[2])
    for path, text in PAGES.items()
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
]
BLOCKS += [(f"help of sbm {name}", "sh", f"{c.example}\n") for name, c in cli.commands.items()]
# A block that says the same as another one is run once.
UNIQUE = {block: (place, language) for place, language, block in reversed(BLOCKS)}
EVERY_PAGE = pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)

# Lines that are not run as they stand: what they end in, and what is run instead; "" is nothing.
ELSEWHERE = {
    r"sh scripts/(demo|test)\.sh\b.*": "",  # the first needs minutes, the second is what runs this
    r"(pip|pipx) install .*": "",  # that there are such extras is tested below
    r"eval \"\$\(_SBM_COMPLETE=.*": "",  # tested with the package
    r"-launcher ssh -hosts \S+ ": "",  # there are no other hosts
    r"--follow\b": "--follow --idle-timeout 0.2s",  # it would wait for ever
}


def test_there_is_no_language_that_is_not_run():
    assert {language for _, language, _ in BLOCKS} == {"sh", "python"}
    for line in ELSEWHERE:
        assert any(re.search(line, text) for text in PAGES.values()), f"{line} is nowhere any more"


def anchors(text):
    """What the headings of a page can be reached by, as GitHub makes it."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@EVERY_PAGE
def test_every_link_leads_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[path]):
        if not target.startswith("https://"):
            name, _, anchor = target.partition("#")
            other = (path.parent / name).resolve() if name else path
            assert other.exists(), target
            assert not anchor or anchor in anchors(other.read_text("utf-8")), target


def test_extras_that_are_to_be_installed_are_there():
    named = [
        name for text in PAGES.values() for name in re.findall(r"install '?sbm\[([\w,]+)\]'?", text)
    ]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert named
    assert {extra for names in named for extra in names.split(",")} <= set(extras)


# --------------------------------------------------------------------------------------- data

STORES = {"big.sbm": "big.svm", "week.sbm": "day1.svm.gz", "news.sbm": "news.svm"}
MODELS = {"big.model": "big.sbm", "news.model": "news.sbm", "small.model": "big.sbm"}


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """Every file that README names and does not make."""
    folder = tmp_path_factory.mktemp("shelf")
    shutil.copytree(ROOT / "configs", folder / "configs")
    X, y = made(5, 400)
    texts = ("big", "test", "new", "old", "day", "day1", "day2", "clicks")
    for k, name in enumerate(texts):
        write_rows(folder / f"{name}.svm", X[k * 40 : (k + 3) * 40], y[k * 40 : (k + 3) * 40])
    for name in ("test", "old", "day", "day1", "day2"):
        text = (folder / f"{name}.svm").read_bytes()
        (folder / f"{name}.svm.gz").write_bytes(gzip.compress(text))
    shard = scipy.sparse.csr_array(X)
    parts = {"data": shard.data, "indices": shard.indices, "indptr": shard.indptr}
    np.savez(folder / "shard.npz", **parts, y=y)
    X, y = made(6, 150, classes=4)
    write_rows(folder / "news.svm", X, y)
    for store, text in STORES.items():
        sbm.split([folder / text], folder / store, blocks=4)
    for model, store in MODELS.items():
        sbm.train(folder / store, folder / model, {"mem": "400MB"})
    sbm.export(folder / "big.model", folder / "liblinear.txt", format="liblinear")
    return folder


def is_needed(name, block):
    """Whether a block uses a store or a model before a line of it makes that."""
    stem = re.escape(name.removesuffix(".sbm"))
    makes = rf" -o {re.escape(name)}|split\W+{stem}\.svm(?!.*--shards)"
    for line in block.splitlines():
        if re.search(makes, line):
            return False
        if name in line:
            return True
    return False


@pytest.fixture
def here(shelf, tmp_path, monkeypatch):
    """Put what a block needs, and does not make itself, into an empty folder; go there."""
    monkeypatch.chdir(tmp_path)

    def lay_out(block):
        for path in shelf.iterdir():
            name = path.name.removesuffix(".run")
            is_text = name not in STORES and name not in MODELS
            if is_text or is_needed(name, block):
                (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / path.name)

    return lay_out


def as_run(block):
    """Return a block with what is run in the place of some lines."""
    for line, instead in ELSEWHERE.items():
        block = re.sub(line, instead, block)
    return block


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(
            block,
            id=f"{place}: {block.split(chr(10))[0][:40]}",
            marks=[needs_mpi] if "--launch" in block or "mpiexec" in block else [],
        )
        for block, (place, language) in UNIQUE.items()
        if language == "sh"
    ],
)
def test_every_command_block_does_its_work(block, here):
    here(block)
    if "mpiexec" in block:
        sbm.split("big.svm", "big.sbm", shards=4)
    variables = environment() | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", as_run(block)],
        capture_output=True, text=True, timeout=300, env=variables,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "block", [block for block, (_, language) in UNIQUE.items() if language == "python"]
)
def test_every_python_block_does_its_work(block, here):
    here(block)
    X, y = made(7, 60)
    exec(block, {"X": scipy.sparse.csr_array(X), "y": np.asarray(y)})
