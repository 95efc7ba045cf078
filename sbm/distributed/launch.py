"""Build the command line with which MPI starts the ranks of a training.

The launcher of the MPI library, ``mpiexec``, starts and ends the ranks; this process is replaced by
it. Signals, output and the exit code are those of the launcher. Its exit code is not reliable:
check that the model was written.

Open MPI, unlike MPICH, binds each rank to a core, refuses more ranks than cores, and refuses to run
as root. Its options for all of that are given here.
"""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from sbm.distributed.comm import launched_size
from sbm.errors import SettingsError, require_number

MOST_PROCESSES = 10_000
RANK = ("-m", "mpi4py", "-m", "sbm")
OPEN_MPI = ("--bind-to", "none", "--map-by", ":OVERSUBSCRIBE")
AS_ROOT = "--allow-run-as-root"


def launch_line(n_processes: int, command: str, arguments: Sequence[str]) -> list[str]:
    """Return the command line that runs an sbm command with several ranks.

    Parameters
    ----------
    n_processes : int
        Number of ranks.
    command : str
        Such as ``train``.
    arguments : sequence of str
        Arguments of the command; ``--launch N`` is removed.

    Raises
    ------
    SettingsError
        mpiexec or mpi4py is missing, or this process was itself launched.
    """
    require_number("launch", n_processes, 1, MOST_PROCESSES)
    if launched_size() > 1:
        raise SettingsError(
            f"--launch {n_processes} was given to one of {launched_size()} processes that are "
            "already launched; leave it out"
        )
    program = _find_launcher()
    if program is None or importlib.util.find_spec("mpi4py") is None:
        missing = "mpiexec" if program is None else "mpi4py"
        raise SettingsError(
            f"--launch needs {missing}, which is not installed; run: pip install mpi4py mpich (on "
            "a cluster, load its MPI module and run: pip install mpi4py)"
        )
    line = [program, *_options_of(program), "-n", str(n_processes)]
    return [*line, sys.executable, *RANK, command, *_without_launch(arguments)]


def _find_launcher() -> str | None:
    """Return the mpiexec of this Python environment, otherwise that of the system."""
    beside = Path(sys.executable).parent
    return shutil.which("mpiexec", path=str(beside)) or shutil.which("mpiexec")


def _options_of(program: str) -> list[str]:
    """Return the options that a launcher needs: none, unless it is that of Open MPI."""
    try:
        version = subprocess.run(
            [program, "--version"], capture_output=True, check=False, timeout=10.0
        ).stdout
    except (OSError, subprocess.TimeoutExpired):  # running it will show what is wrong
        return []
    if b"Open MPI" not in version and b"OpenRTE" not in version:
        return []
    return [*OPEN_MPI, *([AS_ROOT] if os.geteuid() == 0 else [])]


def _without_launch(arguments: Sequence[str]) -> list[str]:
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--":
            return [*kept, word, *words]
        if word == "--launch":
            next(words, None)
        elif not word.startswith("--launch="):
            kept.append(word)
    return kept


def become(line: Sequence[str]) -> NoReturn:
    """Replace this process by another program. Raises `OSError` if the program cannot be run."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by Python, and exec keeps that
        signal.signal(number, signal.SIG_DFL)
    os.execv(line[0], list(line))
