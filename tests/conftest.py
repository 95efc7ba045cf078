import gc
import json
import os
import shlex
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from inside import engine_memory_module as memory
from inside import main

# Random cases are the same in every run; `sh scripts/test.sh --all` runs many more.
for profile, examples in (("default", 25), ("long", 200)):
    settings.register_profile(profile, max_examples=examples, deadline=None, derandomize=True)
settings.load_profile("long" if "SBM_LONG_TESTS" in os.environ else "default")

# Background jobs of a shell and their children ignore Ctrl-C; tests need the default handler.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores this one

# Compiling in a child for every combination of types that tests think of would take minutes.
os.environ["SBM_COMPILE_HERE"] = "1"

# The rows of a test fit in memory. As a single part they would test little of the engine;
# `test_whole.py` sets this back.
memory.MOST_WHOLE = 0

# fsync makes tests slow and shows nothing; power cuts are simulated in separate processes.
os.fsync = lambda handle: None


# The marks that each tier leaves out.
TIERS = {"quick": ("slow", "process", "long"), "default": ("slow",), "all": ()}
_left_out: Counter[str] = Counter()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--tier", choices=list(TIERS), default="default", help="which tests to run")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the tier does not run."""
    marks = TIERS[config.getoption("--tier")]
    kept = []
    for item in items:
        mark = next((mark for mark in marks if item.get_closest_marker(mark)), None)
        if mark is None:
            kept.append(item)
        else:
            _left_out[mark] += 1
    items[:] = kept
    if hasattr(config, "workeroutput"):
        config.workeroutput["left_out"] = dict(_left_out)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker left out; all workers collect the same tests."""
    _left_out.update(Counter(getattr(node, "workeroutput", {}).get("left_out", {})) - _left_out)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what the tier left out."""
    for mark, number in _left_out.items():
        terminalreporter.write_line(
            f"left out: {number} tests marked {mark} (--tier all runs them)"
        )


def pytest_collection_finish() -> None:
    """Exclude pytest's objects from later garbage collections, which every training makes."""
    gc.collect()
    gc.freeze()


SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def shared() -> Path:
    if not (SHARED / "reference.json").exists():
        pytest.skip(f"the reference sets are not here ({SHARED.name} beside the checkout)")
    return SHARED


@pytest.fixture(scope="session")
def reference(shared: Path) -> dict:
    content = json.loads((shared / "reference.json").read_text())
    return content.get("reference", content)


@pytest.fixture(scope="session")
def text_of(shared: Path, tmp_path_factory: pytest.TempPathFactory):
    """Unpack a reference set once per session; ``*_binary`` is label 1 against the rest."""
    from helpers import load_script

    folder = tmp_path_factory.mktemp("text")

    def unpack(name: str) -> Path:
        target = folder / f"{name}.svm"
        if not target.exists():
            load_script("bench.texts").unpack_reference(shared, name, target, 0)
        return target

    return unpack


@pytest.fixture
def run(capfd) -> Callable[[str | Sequence[str]], tuple[int, str, str]]:
    """Run a command line in this process; exit code, stdout, stderr."""

    def run_line(line: str | Sequence[str]) -> tuple[int, str, str]:
        capfd.readouterr()
        handler = signal.getsignal(signal.SIGTERM)
        with pytest.raises(SystemExit) as end:  # anything else would be a traceback
            main(shlex.split(line.removeprefix("sbm ")) if isinstance(line, str) else list(line))
        signal.signal(signal.SIGTERM, handler)
        out, err = capfd.readouterr()
        assert "Traceback" not in out + err
        return end.value.code, out, err

    return run_line
