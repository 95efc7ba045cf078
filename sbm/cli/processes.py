"""Commands that run as several processes: find the other ranks, and end together."""

import contextlib
import shlex
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from sbm.cli.terminal import complain
from sbm.errors import SbmError, SettingsError
from sbm.settings import Settings
from sbm.units import count

if TYPE_CHECKING:
    from sbm.distributed.comm import Comm

_OF_SEVERAL = ("train",)  # commands that several processes share

# Communicators to abort when this process fails, because other ranks would wait for it.
_others: list["Comm"] = []


def refuse_several(command: str | None) -> None:
    """Raise `SettingsError` if several processes were started for a single-process command."""
    from sbm.distributed.comm import launched_size

    if command not in _OF_SEVERAL and launched_size() > 1:
        raise SettingsError(
            f"{launched_size()} processes were started, but sbm {command} runs as one; only "
            "sbm train divides its work among several"
        )


def launch(n_processes: int, command: str, words: list[str], quiet: bool) -> NoReturn:
    """Replace this process by the launcher of `n_processes` that run a command."""
    from sbm.distributed.launch import become, launch_line
    from sbm.engine.machine import usable_threads

    line, cores = launch_line(n_processes, command, words), usable_threads(None)
    if n_processes > cores:
        complain(
            f"sbm: warning: --launch {n_processes} is more than the {count(cores, 'core')} of this "
            "machine; unless MPI starts some on other machines, fewer are faster"
        )
    if not quiet:
        complain(shlex.join(line))
    become(line)


def meet(settings: Settings) -> "Comm":
    """Return the communicator of this command's processes."""
    from sbm.distributed.comm import world

    comm = world(float(settings.comm_timeout))
    if comm.size > 1:
        _others.append(comm)
    return comm


def abort(code: int) -> None:
    """End the other processes of this command, if any, with an exit code."""
    for comm in _others:
        comm.abort(code)


def wait_for_first() -> int:
    """Return the rank of this process; ranks above 0 wait a second first.

    If all ranks fail alike, rank 0 reports the error and ends the others while they wait.
    """
    from sbm.distributed.comm import launched_size

    if not _others and launched_size() > 1 and "mpi4py" in sys.modules:
        with contextlib.suppress(SbmError):  # it failed before `meet`
            meet(Settings())
    for comm in _others:
        if comm.rank > 0:
            time.sleep(1.0)
        return comm.rank
    return 0
