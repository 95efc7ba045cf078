"""The command line: each command parses, calls one function and prints what it returns.

`entry` is where it starts. Commands are in `stores`, `training`, `streams` and `models`; `options`
are the words they share, `command` is what they have in common, and `show` turns reports into
lines. `bars` are the progress, `output` the two streams, `stopping` the signals, `processes` what
a command does that was started several times.
"""

from sbm.cli.entry import cli, main

__all__ = ["cli", "main"]
