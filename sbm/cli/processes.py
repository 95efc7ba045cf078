"""A command that was started as several processes: it meets the others, and ends with them."""

import contextlib
import shlex
import sys
import time
from typing import TYPE_CHECKING, NoReturn

from sbm.cli.terminal import complain
from sbm.errors import SbmError, SettingsError
from sbm.settings import Settings

if TYPE_CHECKING:
    from sbm.distributed.comm import Comm

__all__ = ["abort", "launch", "meet", "refuse_several", "wait_for_first"]

_OF_SEVERAL = ("train",)  # commands that several processes share
_LATER = 1.0  # seconds; see `wait_for_first`

# Whom to end when this process fails; the others would wait for it.
_others: list["Comm"] = []


def refuse_several(command: str | None) -> None:
    """Raise `SettingsError` where several processes were started, and would do the same work."""
    from sbm.distributed.comm import launched_size

    if command not in _OF_SEVERAL and launched_size() > 1:
        raise SettingsError(
            f"{launched_size()} processes were started, and each of them would do all of "
            f"sbm {command}; only sbm train is shared by several, start this one alone"
        )


def launch(n_processes: int, command: str, words: list[str], quiet: bool) -> NoReturn:
    """Become the launcher of several processes that run a command."""
    from sbm.distributed.launch import become, launch_line

    line = launch_line(n_processes, command, words)
    if not quiet:
        complain(shlex.join(line))
    become(line)


def meet(settings: Settings) -> "Comm":
    """Find the other processes of this command, if it was started as several."""
    from sbm.distributed.comm import world

    comm = world(float(settings.comm_timeout))
    if comm.size > 1:
        _others.append(comm)
    return comm


def abort(code: int) -> None:
    """End the other processes of this command, if there are any, with an exit code."""
    for comm in _others:
        comm.abort(code)


def wait_for_first() -> int:
    """Return the number of this process, 0 at once and another one later.

    What all processes have to say process 0 says first, which ends the others meanwhile.
    """
    from sbm.distributed.comm import launched_size

    if not _others and launched_size() > 1 and "mpi4py" in sys.modules:
        with contextlib.suppress(SbmError):  # it failed before it met the others
            meet(Settings())
    for comm in _others:
        if comm.rank > 0:
            time.sleep(_LATER)
        return comm.rank
    return 0
