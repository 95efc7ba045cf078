"""Entry point of ``python -m sbm`` and of the command ``sbm``."""

import gc
import os
import signal


def main() -> None:
    """Run the command line; `sbm.cli.terminal` handles signals."""
    gc.disable()  # imports make no garbage; a command enables it
    try:
        from sbm.cli import main as run
    except KeyboardInterrupt:
        os.write(2, b"sbm: interrupted; nothing was done yet\n")
        os._exit(130)
    try:
        run()
    finally:  # the exit code is final
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    main()
