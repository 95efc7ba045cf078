"""The command line: each command parses, calls one function and prints what it returns.

`entry` is where it starts and `commands` has the commands. `options` are the options they share,
`command` is their class, `show` turns reports into lines, `terminal` has progress, signals and the
two streams, and `processes` what several processes of one command do.
"""

from sbm.cli.entry import cli, main

__all__ = ["cli", "main"]
