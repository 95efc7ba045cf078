"""Processes that tests start: none outlives its test, and none is waited for without end."""

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
    """Start a process that does not go on when the test does.

    If it runs on the way out, or the test has failed, it is killed with all that it has started;
    `subprocess.Popen` would wait for it, and nobody has told it to end. So it is after `LIMIT`
    seconds: whoever reads its output hears of the end, and the test fails.

    Parameters
    ----------
    command : sequence
        Words, or what `str` makes words of.
    **options
        As of `subprocess.Popen`; a session of its own is a matter of course.
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
    """Run a process to its end, as `subprocess.run` does; return its exit code and what it said.

    `feed` is what it reads from standard input; with `check` its exit code must be 0.
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
    """Wait for what some processes will do, as long as they are there to do it."""
    end = time.monotonic() + LIMIT
    while not condition():
        for process in processes:
            assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < end, f"nothing has come in {LIMIT:g} s"
        time.sleep(0.01)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
