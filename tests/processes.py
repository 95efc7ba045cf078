"""Processes started by tests: none outlives its test, and every wait has a limit."""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

LIMIT = 300.0  # seconds, for what takes some on a machine that is free


@contextlib.contextmanager
def started(command: Sequence[Any], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start a process that ends with the `with` block.

    If it still runs at the end of the block, or if the test has failed, it is killed with all of
    its children, while `subprocess.Popen` would wait for it. It is also killed after `LIMIT`
    seconds, so that reading its output ends and the test fails.

    Parameters
    ----------
    command : sequence
        Words, converted by `str`.
    **options
        Of `subprocess.Popen`; the process always gets a new session.
    """
    line = [str(word) for word in command]
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        _kill_group(process.pid)

    with subprocess.Popen(line, start_new_session=True, **options) as process:
        timer = threading.Timer(LIMIT, end)
        timer.daemon = True
        timer.start()
        try:
            yield process
        except BaseException:
            _kill_group(process.pid)
            raise
        finally:
            timer.cancel()
        if process.poll() is None:
            _kill_group(process.pid)
    assert not is_late.is_set(), f"it did not end within {LIMIT:g} s: {line}"


def finished(
    command: Sequence[Any],
    *,
    feed: Any = None,
    text: bool = True,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a process to its end, like `subprocess.run`; return its exit code and output.

    `feed` is its standard input; with `check` its exit code must be 0.
    """
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if feed is not None:
        streams["stdin"] = subprocess.PIPE
    with started(command, text=text, **streams | options) as process:
        out, err = process.communicate(feed)
    if check:
        assert process.returncode == 0, f"exit code {process.returncode}: {err!r}"
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def wait_until(condition: Callable[[], Any], *processes: subprocess.Popen[Any]) -> None:
    """Wait for a condition, as long as the processes that will meet it are running."""
    end = time.monotonic() + LIMIT
    while not condition():
        for process in processes:
            assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < end, f"nothing has come in {LIMIT:g} s"
        time.sleep(0.01)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
