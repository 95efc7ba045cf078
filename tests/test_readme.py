"""README and docs: every command block runs on small data; links and extras exist."""

import gzip
import os
import re
import shlex
import shutil
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import scipy.sparse
from helpers import load_script, write_rows
from inside import main
from launching import environment, needs_mpi
from processes import finished

import sbm

ROOT = Path(__file__).resolve().parent.parent
PAGES = {p: p.read_text("utf-8") for p in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]}
BLOCKS = {  # the same block is run once
    match[2]: (f"{path.stem}, line {text[: match.start()].count(chr(10)) + 1}", match[1])
    for path, text in PAGES.items()
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    if match[1] != "text"
}
# Lines that are replaced before they are run.
INSTEAD = {
    r"sh scripts/(demo|test)\.sh\b.*": "",
    r"(pip|pipx) install .*": "",
    r"eval \"\$\(_SBM_COMPLETE=.*": "",
    r"-launcher ssh -hosts \S+ ": "",
    r"--follow\b": "--follow --idle-timeout 0.2s",
    r"sbm tune ": "sbm tune --tol 0.5 ",
}
STORES = {"big.sbm": "big.svm", "week.sbm": "day1.svm.gz", "news.sbm": "news.svm"}
MODELS = {"big.model": "big.sbm", "news.model": "news.sbm", "small.model": "big.sbm"}


def test_links_and_extras_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for path, text in PAGES.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            name, _, anchor = target.partition("#")
            other = (path.parent / name).resolve() if name else path
            assert target.startswith("https://") or other.exists(), target
            if anchor and not target.startswith("https://"):
                headings = re.findall(r"^#+ (.*)$", other.read_text("utf-8"), re.MULTILINE)
                words = [re.sub(r"[^\w -]", "", heading.lower()) for heading in headings]
                assert anchor in [word.replace(" ", "-") for word in words], target
        for names in re.findall(r"install '?(?:sbm|sbm-linear|\.)\[([\w,]+)\]'?", text):
            assert {*names.split(",")} <= {*extras}
    assert {language for _, language in BLOCKS.values()} == {"sh", "python"}


def test_named_scripts_exist():
    others = [ROOT / "CONTRIBUTING.md", ROOT / "RELEASING.md", ROOT / "data" / "README.md"]
    for path in (*PAGES, *others):
        for name in re.findall(r"-m (scripts[.\w]*\w)", path.read_text("utf-8")):
            place = ROOT / name.replace(".", "/")
            assert place.is_dir() or place.with_suffix(".py").exists(), f"{path}: {name}"


def test_every_public_name_has_a_page():
    assert {*re.findall(r"^::: sbm\.(\w+)$", PAGES[ROOT / "docs/api.md"], re.M)} == {*sbm.__all__}


# What looks measured: a number with a unit of time, speed or share, or a decimal in a table.
MEASURED = re.compile(
    r"(?<![\w.-])\d[\d.,]* ?(?:s|ms|(?:micro|milli)?seconds|MB/s|points|million|times)\b"
    r"|(?<![\w.-])\d[\d.]* %|(?<=\|)[^|\n]*(?<![\w.])\d+\.\d+[^|\n]*(?=\|)"
)
CONSTANTS = {  # of the code and of its advice, and sizes of texts
    " 0.01 to 0.5, falling slowly ", " scikit-learn 1.6 or newer ", "64 times", "4,096 times",
    "1 %", "0.2 s", "200 million", "2.6 million", "27 million", "10 million",
}  # fmt: skip


def test_no_measured_number_is_typed():
    for path, text in PAGES.items():
        for part in (r"<!-- (\w+): begin -->.*?<!-- \1: end -->", "```.*?```", "`[^`]*`"):
            text = re.sub(part, "", text, flags=re.DOTALL)
        assert {*MEASURED.findall(text)} <= CONSTANTS, f"{path}: see scripts/bench/pages.py"


@pytest.mark.slow
def test_site_builds_without_warnings(tmp_path):
    for package in ("material", "mkdocstrings"):
        pytest.importorskip(package, reason="the site needs pip install -e '.[docs]'")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", tmp_path]
    finished(command, cwd=ROOT, env=environment(), check=True)
    for page in ROOT.glob("docs/*.md"):
        assert (tmp_path / page.stem.replace("index", "") / "index.html").exists()


def stubbed_site(monkeypatch):
    """Import the hooks of the site without mkdocs, which comes with the extra docs."""
    griffe, files = ModuleType("griffe"), ModuleType("mkdocs.structure.files")
    griffe.Extension = griffe.Class = object
    files.File = SimpleNamespace(generated=lambda config, name, **_: name)
    for name in ("mkdocs", "mkdocs.structure"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "griffe", griffe)
    monkeypatch.setitem(sys.modules, "mkdocs.structure.files", files)
    monkeypatch.delitem(sys.modules, "scripts.docs_site", raising=False)
    module = load_script("docs_site")
    monkeypatch.delitem(sys.modules, "scripts.docs_site")
    return module


def test_site_has_the_home_page_and_its_links(monkeypatch):
    site, docs = stubbed_site(monkeypatch), ROOT / "docs"
    there = site.on_files([], SimpleNamespace(docs_dir=docs))
    assert not [name for name in there if name.lower() in ("readme.md", "index.md")]
    there += [str(path.relative_to(docs)) for path in docs.glob("*.md")]
    generated = {"overview.md": ROOT / "README.md", "CHANGELOG.md": ROOT / "CHANGELOG.md",
                 "scripts/results/README.md": ROOT / "scripts/results/README.md"}  # fmt: skip
    for name in there:
        is_page = (docs / name).is_file()
        if not name.endswith(".md") or not (is_page or name in generated):
            continue
        text = (docs / name if is_page else generated[name]).read_text("utf-8")
        file = SimpleNamespace(generated_by=None if is_page else "hook", src_uri=name)
        shown = site.on_page_markdown(text, SimpleNamespace(file=file))
        links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", shown)
        folder = Path(name).parent
        targets = {os.path.normpath(folder / link) for link in links}
        assert {t for t in targets if not t.startswith("examples/")} <= {*there}, name
        assert links or name not in ("index.md", "overview.md"), name


def rows(seed, n, classes=2):
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, 8)) * (random.random((n, 8)) < 0.7)
    return X, (X @ random.normal(size=(8, classes))).argmax(axis=1) + 1.0


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """Every file that the pages name and do not make."""
    folder = tmp_path_factory.mktemp("shelf")
    shutil.copytree(ROOT / "configs", folder / "configs")
    names = ("big", "test", "new", "old", "day", "day1", "day2", "clicks", "prep", "prep.t")
    for k, name in enumerate(names):
        text = write_rows(folder / f"{name}.svm", *rows(k, 120)).read_bytes()
        (folder / f"{name}.svm.gz").write_bytes(gzip.compress(text))
    X, y = rows(9, 120)
    shard = scipy.sparse.csr_array(X)
    parts = {"data": shard.data, "indices": shard.indices, "indptr": shard.indptr}
    np.savez(folder / "shard.npz", **parts, y=y)
    write_rows(folder / "news.svm", *rows(10, 150, classes=4))
    for store, text in STORES.items():
        sbm.split([folder / text], folder / store, blocks=4)
    for model, store in MODELS.items():
        sbm.train(folder / store, folder / model)
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


def run(line):
    """Run a line as a shell would; what only calls sbm runs in this process."""
    words = shlex.split(line, comments=True)
    if words[:1] == ["sbm"] and "--launch" not in words and not set(line) & set("|*&"):
        with pytest.raises(SystemExit) as end:
            main(words[1:])
        assert end.value.code == 0
    elif words:
        variables = environment(PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        finished(["bash", "-e", "-o", "pipefail", "-c", line], env=variables, check=True)


@pytest.mark.parametrize(
    "block",
    [
        pytest.param(
            block, id=place, marks=[needs_mpi, pytest.mark.slow] if "-n 4" in block or
            "--launch" in block else [],
        )
        for block, (place, _) in BLOCKS.items()
    ],
)  # fmt: skip
def test_block_runs(block, shelf, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in shelf.iterdir():
        name = path.name.removesuffix(".run")
        if name not in {*STORES, *MODELS} or is_needed(name, block):
            (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / path.name)
    if BLOCKS[block][1] == "python":
        X, y = rows(7, 60)
        exec(block, {"X": scipy.sparse.csr_array(X), "y": y})
        return
    if "mpiexec" in block:
        sbm.split("big.svm", "big.sbm", shards=4)
    for line, instead in INSTEAD.items():
        block = re.sub(line, instead, block)
    # A here-document or a continued line is one command.
    for line in re.split(r"(?<!\\)\n(?=sbm|zcat|printf|timeout|$)", block):
        run(line)
