"""``python -m sbm``, and what the command ``sbm`` starts with."""

import os
import signal


def main() -> None:
    """Run the command line; the answer to signals is in `sbm.cli.terminal`."""
    try:
        from sbm.cli import main as run
    except KeyboardInterrupt:
        os.write(2, b"sbm: stopped; nothing was done yet\n")
        os._exit(130)
    try:
        run()
    finally:  # the exit code is decided
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    main()
