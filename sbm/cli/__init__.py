"""The command line: each command parses, calls one function and prints what it returns.

It starts in `entry`; the commands are in `commands`, their shared options in `options` and their
class in `command`. `show` turns reports into lines. `terminal` has progress, signals and the
output streams, `processes` what several processes of one command do.
"""

from sbm.cli.entry import cli, main

__all__ = ["cli", "main"]
