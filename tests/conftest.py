import gc
import json
import os
import signal
from pathlib import Path

import pytest

# A shell that starts a job in the background has it ignore Ctrl-C, and its children with it; tests
# that press Ctrl-C want the usual answer.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # and nohup, the end of a terminal

# Compiling in a child for every combination of types that tests think of would take minutes.
os.environ["SBM_COMPILE_HERE"] = "1"

# Waiting for the disk makes a test slow and shows nothing: what a power cut leaves is tested in
# processes of its own, where it is simulated.
os.fsync = lambda handle: None


def pytest_collection_finish() -> None:
    """Leave what pytest has gathered out of later collections: every training makes one."""
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
    """Unpack a reference set once a session; ``*_binary`` is label 1 against the rest."""
    from helpers import load_script

    folder = tmp_path_factory.mktemp("text")

    def unpack(name: str) -> Path:
        target = folder / f"{name}.svm"
        if not target.exists():
            load_script("verify_optima").write_text(shared, name, target)
        return target

    return unpack
