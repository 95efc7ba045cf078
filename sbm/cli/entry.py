"""Run the command line: arguments in, exit code out, one sentence per error."""

import os
import sys
from typing import NoReturn

import click

from sbm.cli.command import STARTS_AGAIN
from sbm.cli.commands import cli
from sbm.cli.processes import abort, wait_for_first
from sbm.cli.terminal import INTERRUPTED, complain, is_flushed, stoppable, streams
from sbm.errors import SbmError, SettingsError
from sbm.units import cut

__all__ = ["cli", "main"]

_ERROR, _USAGE = 1, 2  # exit codes


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 ok, 1 error, 2 usage, 3 budget reached, 130 stopped."""
    # OpenBLAS is hardly used, and its idle threads would spin.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with streams():
        try:
            with stoppable():
                if code := _run(arguments):
                    abort(code)  # the other ranks
        except KeyboardInterrupt as stop:  # it came while another error was reported
            code = _stopped(stop)
        if not is_flushed(sys.stdout):
            code = code or _ERROR
    is_flushed(sys.stderr)
    sys.exit(code)


def _run(arguments: list[str] | None) -> int:
    """Run a command; report an error, and return the exit code."""
    try:
        code = cli.main(arguments, prog_name="sbm", standalone_mode=False)
    except SystemExit as end:
        code = end.code
    except KeyboardInterrupt as stop:
        code = _stopped(stop)
    except click.exceptions.Abort as end:  # click's form of KeyboardInterrupt
        code = _stopped(end.__cause__)
    except click.ClickException as error:
        wait_for_first()
        error.show(sys.stderr)
        code = _USAGE
    except SettingsError as error:
        code = _fail(str(error), _USAGE)
    except SbmError as error:
        code = _fail(str(error))
    except MemoryError:
        code = _fail("the machine ran out of memory; lower --mem")
    except BrokenPipeError:  # the reader closed the pipe
        code = _ERROR
    except OSError as error:
        sentence = str(error.strerror or error)
        if error.filename:
            sentence = f"{error.filename}: {sentence}; check that it exists, its permissions and "
            sentence += "the disk"
        code = _fail(sentence)
    return code if isinstance(code, int) else 0


def _fail(sentence: str, code: int = _ERROR) -> int:
    rank = wait_for_first()
    if rank > 0:
        sentence = f"rank {rank}: {sentence}"
    complain(f"sbm: {cut(sentence)}")
    return code


def _stopped(stop: BaseException | None) -> int:
    """Report that the command was stopped, and what it left."""
    if wait_for_first() == 0:
        (what, *_) = getattr(stop, "__notes__", [STARTS_AGAIN])
        complain(f"sbm: stopped; {what}")
    return INTERRUPTED
