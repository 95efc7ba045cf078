"""What all commands share: their class, messages when stopped, `-q`, `-v` and `--json`."""

import contextlib
import gc
import importlib
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

import click

from sbm.cli.liblinear import OPTIONS, expand_weights, other_option, refuse_tuning
from sbm.cli.options import GROUPS, Later
from sbm.cli.processes import refuse_several
from sbm.cli.terminal import Bars, echo
from sbm.errors import SettingsError
from sbm.losses import LOSSES

# Printed when a command was stopped.
STARTS_AGAIN = "no partial files were left"
RESUMES = "run the same command to resume from the last checkpoint, if there is one"


# Begin of a line in a list of facts: a right-aligned name, or blanks under it.
_LABEL = re.compile(r" *[\w ]*?\w(: |  )| {20}")
_TYPED = click.core.ParameterSource.COMMANDLINE


class Commands(click.Group):
    """Group that lists its commands in the order they were added, and takes ``help COMMAND``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Turn ``help train`` into ``train --help``."""
        if args[:1] == ["help"]:
            args = [*args[1:2], "--help"]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order they were added."""
        return list(self.commands)


class Command(click.Command):
    """Command whose help ends with an example, after a table of losses if it has ``--loss``.

    All have ``--json``, ``-q`` and ``-v``; the function of a command receives a `Terminal`.

    Parameters
    ----------
    example : str
        A complete command line.
    stopped : str
        Message printed if the command is stopped.
    """

    def __init__(
        self, *arguments: Any, example: str, stopped: str = STARTS_AGAIN, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self.example, self.stopped = example, stopped
        self._given += [
            click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object."),
            click.Option(["-q", "--quiet"], is_flag=True, help="Show no progress."),
            click.Option(["-v", "--verbose"], is_flag=True, help="Show more, on stderr."),
        ]

    _given: list[Any]  # parameters, and what stands for some

    @property
    def params(self) -> list[click.Parameter]:
        """The options and arguments."""
        if any(isinstance(one, Later) for one in self._given):
            each = [one.params() if isinstance(one, Later) else [one] for one in self._given]
            self._given = [one for some in each for one in some]
        return self._given

    @params.setter
    def params(self, params: list[click.Parameter]) -> None:
        self._given = params

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; say what to type instead of an option of another tool."""
        try:
            return super().parse_args(ctx, self._with_quadratic(args))
        except click.NoSuchOption as error:
            if instead := other_option(str(self.name), error.option_name):
                raise SettingsError(instead) from None
            name = error.option_name
            raise click.NoSuchOption(name, possibilities=self._like(name), ctx=ctx) from None

    def _with_quadratic(self, args: list[str]) -> list[str]:
        """Turn ``-q ab`` into ``--quadratic ab``, as in Vowpal Wabbit; -q alone is --quiet."""
        if not any("--quadratic" in option.opts for option in self.params):
            return args
        args = list(args)
        for k, (first, second) in enumerate(itertools.pairwise(args)):
            is_pair = len(os.fsencode(second)) == 2 and second[0] != "-"
            if first == "-q" and is_pair and not os.path.exists(second):
                args[k] = "--quadratic"
        return args

    def _like(self, typed: str) -> list[str]:
        """Return the options that were probably meant."""
        import difflib

        names = [name for option in self.params for name in (*option.opts, *option.secondary_opts)]
        names = [name for name in names if name.startswith("--")]
        longer = [name for name in names if name.startswith(typed) or typed.startswith(name)]
        return longer or difflib.get_close_matches(typed, names, cutoff=0.7)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, unless it was started as several processes by mistake."""
        refuse_several(self.name)  # here, so that --help works in any case
        _import_program(str(self.name))
        terminal = Terminal(*map(ctx.params.pop, ("quiet", "verbose", "as_json")))
        ctx.params["terminal"] = terminal
        try:
            return super().invoke(ctx)
        except SettingsError as error:
            raise SettingsError(self._as_typed(ctx, str(error))) from error
        except KeyboardInterrupt as stop:
            stop.add_note(self.stopped)
            raise
        finally:  # so that no error is printed after a bar
            terminal.finish()

    def _as_typed(self, ctx: click.Context, sentence: str) -> str:
        """Replace the setting at the start of an error by the option as typed."""
        name, _, rest = sentence.partition(" ")
        for option in self.params:
            if option.name == name and ctx.get_parameter_source(name) is _TYPED:
                return f"{max(option.opts, key=len)} {rest}"
        return sentence

    @property
    def _has_loss(self) -> bool:
        return any(option.name == "loss" for option in self.params)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the options, in groups if the command has the settings of a training."""
        groups: dict[str, list[tuple[str, str]]] = {"Options": []}
        for option in self.get_params(ctx):
            shown = option.get_help_record(ctx) if isinstance(option, click.Option) else None
            if shown is not None:
                group = GROUPS.get(str(option.name), "Options") if self._has_loss else "Options"
                groups.setdefault(group, []).append(shown)
        width = max(len(typed) for rows in groups.values() for typed, _ in rows)
        for name, rows in groups.items():
            with formatter.section(name):
                formatter.write_dl([(f"{typed:{min(width, 30)}}", text) for typed, text in rows])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the table of losses if the command has ``--loss``, and the unwrapped example."""
        if self._has_loss:
            with formatter.section("Losses, minimised over w"):
                formatter.write_dl([(loss.name, loss.problem) for loss in LOSSES.values()])
        with formatter.section("Example"):
            formatter.write(f"{'':{formatter.current_indent}}{self.example}\n")


def _import_program(name: str) -> None:
    """Import what a command runs; then begin to collect garbage, but not in what was imported."""
    with contextlib.suppress(ModuleNotFoundError):  # a program of another name
        importlib.import_module(f"sbm.programs.{name}")
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


class LiblinearCommand(Command):
    """Command that also takes LIBLINEAR's options."""

    WORDS = "sbm.words"  # key of the arguments as typed, in the context

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Turn -w1 2.5 into an option that click can parse; refuse -v 5."""
        refuse_tuning(args, self.name == "tune")
        ctx.meta[self.WORDS] = list(args)
        return super().parse_args(ctx, expand_weights(args))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the table of LIBLINEAR's options before the example."""
        with formatter.section("LIBLINEAR's options"):
            rows = [(f"{o.flag} {o.metavar}", o.meaning) for o in OPTIONS]
            formatter.write_dl([*rows, ("-wL W", "--class-weight L=W")])
        super().format_epilog(ctx, formatter)


class Terminal(Bars):
    """Shows progress, and the result as text or JSON.

    Parameters
    ----------
    quiet, verbose, as_json : bool
        The options ``-q``, ``-v`` and ``--json``. JSON implies no progress.
    """

    def __init__(self, quiet: bool = False, verbose: bool = False, as_json: bool = False) -> None:
        super().__init__(quiet or as_json, verbose)
        self.as_json = as_json

    def mute(self) -> None:
        """Stop showing progress, because another process shows it."""
        self.quiet, self.verbose = True, False

    def answer(
        self,
        report: dict[str, Any],
        in_words: Callable[[dict[str, Any]], Iterable[str]],
        tell: Callable[[str], None] = echo,
    ) -> None:
        """Print a result as one JSON object, or as lines through `tell`."""
        if self.as_json:
            import json

            echo(json.dumps(report))
            return
        import shutil

        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
        for line in in_words(report):
            for part in _wrapped(line, width):
                tell(part)


def _wrapped(line: str, width: int) -> list[str]:
    """Return a line in pieces that fit a terminal; one of width 0 is no terminal."""
    if not width or len(line) <= width or "\t" in line:
        return [line]
    import textwrap

    label = _LABEL.match(line)
    indent = " " * (len(label[0]) if label else 2)
    return textwrap.wrap(
        line, max(width, 40), subsequent_indent=indent, break_long_words=False,
        break_on_hyphens=False, drop_whitespace=True,
    )  # fmt: skip
