"""The command that learns from text as it comes."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import click

from sbm.cli import show
from sbm.cli.command import Command, Terminal, shared
from sbm.cli.options import (
    COST,
    FILE,
    NEW_FILE,
    ON_ERROR,
    SETTINGS,
    TEST,
    given_settings,
    some,
    without,
)
from sbm.cli.output import complain
from sbm.cli.stopping import INTERRUPTED, stop_signals
from sbm.errors import SettingsError
from sbm.settings import parse_grid

__all__ = ["stream"]

# Settings that are of no use to a stream, or mean something else there.
_NOT_HERE = (
    "tol", "max_passes", "time_limit", "screen", "weights", "liblinear_w",
    "class_blocks", "rounds", "checkpoint_every",
)  # fmt: skip


@click.command(cls=Command, example="zcat day*.svm.gz | sbm stream - -o day.model --mem 2GB")
@click.argument("inputs", nargs=-1, metavar="[INPUT...]")
@click.option("-o", "--output", "model", type=NEW_FILE, metavar="MODEL", help="Model to write.")
@COST
@click.option("--rounds", metavar="N", help="Most rounds over a working set.  [default: 3]")
@some(without(SETTINGS, *_NOT_HERE))
@click.option(
    "--classes", metavar="L,L,...", help="All labels there may be.  [default: as they appear]"
)
@click.option(
    "--dtype", type=click.Choice(["float32", "float64"]),
    help="Type of values; values that are all 1 take no space.  [default: float32]",
)  # fmt: skip
@ON_ERROR
@click.option(
    "--checkpoint-every", metavar="T|N",
    help="Commit after so much time, 60s, or so many rows, 100000rows.  [default: 60s]",
)  # fmt: skip
@click.option(
    "--follow", is_flag=True, default=None, help="Wait for more at the end of the last file."
)
@click.option("--idle-timeout", metavar="T", help="End when nothing came for so long.")
@click.option(
    "--resume", type=FILE, metavar="MODEL", help="Go on with the stream that made this model."
)
@TEST
@shared
def stream(
    terminal: Terminal, inputs: tuple[str, ...], model: Path | None, resume: Path | None,
    test: str | None, config: Path | None, classes: str | None, **given: Any,
) -> None:  # fmt: skip
    """Learn a model from text that is read once, as it comes.

    INPUT are files or globs, plain or .gz, .bz2, .xz, .zst; - is standard input. No store is made.
    Every row is predicted before it is learned; the mean loss of that is told whenever the rows
    have doubled. Ctrl-C and SIGTERM finish the block, save and end with exit code 130.
    """
    from sbm.jobs.judging.batches import check_input
    from sbm.jobs.predict import predict as predict_job
    from sbm.jobs.stream import stream as job
    from sbm.jobs.streaming.options import StreamOptions

    if resume is not None and model not in (None, resume):
        raise SettingsError(f"--resume {resume} goes on in that model; leave out -o")
    if test is not None:
        check_input(test)
    names = {f.name for f in dataclasses.fields(StreamOptions)}
    options = {k: v for k, v in given.items() if k in names and v is not None}
    if classes is not None:
        options["classes"] = parse_grid(classes)
    settings = given_settings(config, {k: v for k, v in given.items() if k not in names})
    try:
        with stop_signals() as is_stopped:
            result, report = job(
                inputs or None, resume or model, settings, options=options,
                resume=resume is not None, is_stopped=is_stopped, progress=terminal,
            )  # fmt: skip
    except KeyboardInterrupt:
        name = resume or model
        if not Path(f"{name}.run", "run.json").exists():
            raise
        complain(
            f"sbm: stopped at once; what {name} last saved is kept, go on from there with "
            f"sbm stream --resume {name}"
        )
        sys.exit(INTERRUPTED)
    for problem in report["problems"]:
        complain(f"skipped {problem}")
    if test is not None and not report["stopped"]:
        report["test"] = predict_job(result, test, threads=1, progress=terminal)
    terminal.answer(report, lambda told: _in_words(told, terminal.verbose))
    _tell_the_end(report, terminal)


def _in_words(report: dict[str, Any], every_class: bool) -> Any:
    yield from show.stream(report)
    if "test" in report:
        yield from show.quality(report["test"], "test ", every_class)


def _tell_the_end(report: dict[str, Any], terminal: Terminal) -> None:
    """Say where a stream ended in the middle of something."""
    if not terminal.as_json:
        for line in show.open_lines(report):
            complain(line)
    if report["stopped"]:
        complain(f"sbm: stopped; all is kept, go on with sbm stream --resume {report['model']}")
        sys.exit(INTERRUPTED)
