"""``python -m sbm``, and what the command ``sbm`` starts with."""

from __future__ import annotations

import os
import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _stop(number: int, frame: object) -> None:
    """End at once: nothing has begun yet."""
    try:
        os.write(2, b"sbm: stopped; nothing was done yet\n")
    finally:
        os._exit(130)


def main() -> NoReturn:
    """Run the command line, with an answer to signals from the beginning to the end."""
    signals = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in signals:
        signal.signal(number, _stop)
    from sbm.cli import main as run

    try:
        run()
    finally:  # the exit code is decided
        for number in signals:
            signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    main()
