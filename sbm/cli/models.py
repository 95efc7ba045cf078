"""Commands that use models and look at trainings: predict, export, report."""

from pathlib import Path
from typing import Any

import click

from sbm.cli import show
from sbm.cli.command import Command, Terminal, shared
from sbm.cli.options import FILE, INPUT_FORMAT, NEW_FILE, THREADS
from sbm.cli.output import complain, echo
from sbm.errors import SettingsError

__all__ = ["export", "predict", "report"]


@click.command(cls=Command, example="sbm predict big.model test.svm.gz -o labels.txt")
@click.argument("model", type=FILE)
@click.argument("data", metavar="INPUT")
@click.option(
    "-o", "--output", type=FILE, metavar="FILE",
    help="A label or number a line goes here; - is stdout, and the report goes to stderr then.",
)  # fmt: skip
@click.option(
    "--top", type=int, default=1, metavar="N",
    help="Labels a line, the best first, separated by blanks (more than two classes).  "
    "[default: 1]",
)  # fmt: skip
@click.option(
    "--decision", is_flag=True,
    help="Write decision values instead of labels; multi-class: one for each label, in ascending "
    "order of the labels, separated by blanks.",
)  # fmt: skip
@click.option(
    "--probability", is_flag=True,
    help="Write the probabilities of all labels behind each label, in ascending order of the "
    "labels, which the first line names (models of log_loss, or trained with --calibrate).",
)  # fmt: skip
@click.option(
    "--confusion", multiple=True, type=FILE, metavar="FILE",
    help="Write the confusion matrix: a table (.tsv) or a picture (.png, needs matplotlib); may "
    "be repeated.",
)  # fmt: skip
@INPUT_FORMAT
@THREADS
@shared
def predict(terminal: Terminal, model: Path, data: str, **options: Any) -> None:
    """Predict the labels of rows, and say how good they are.

    INPUT is a file, plain or compressed, a store, or - for standard input. A regression model
    predicts numbers. Feature ids that the model does not know are ignored and counted. Of many
    classes the most frequent and the worst are shown, all of them with -v.
    """
    from sbm.jobs.predict import predict as job

    to_stdout = str(options["output"]) == "-"
    if to_stdout and terminal.as_json:
        raise SettingsError("-o - and --json both write to standard output; give -o a file name")
    report = job(model, data, progress=terminal, **options)
    terminal.answer(
        report,
        lambda told: show.quality(told, every_class=terminal.verbose),
        tell=complain if to_stdout else echo,
    )


@click.command(
    cls=Command, example="sbm export big.model --format liblinear --prune 1e-4 --test test.svm"
)
@click.argument("model", type=FILE)
@click.option(
    "-o", "--output", type=NEW_FILE, metavar="FILE",
    help="File to write.  [default: MODEL's name, with the format's ending]",
)  # fmt: skip
@click.option(
    "--format", type=click.Choice(["liblinear", "npz", "json", "sbm"]), default="liblinear",
    help="Format of the file.  [default: liblinear]",
)  # fmt: skip
@click.option(
    "--prune", type=float, metavar="T", help="Leave out weights between -T and T, these included."
)
@click.option(
    "--test", type=click.Path(), metavar="FILE",
    help="With --prune: predict this file or store with all weights and without the small ones.",
)  # fmt: skip
@shared
def export(terminal: Terminal, model: Path, **options: Any) -> None:
    """Write a model as a file of another tool.

    MODEL is what sbm train wrote, or a model file of LIBLINEAR. With --prune its smallest weights
    are left out.
    """
    from sbm.jobs.export import export as job

    terminal.answer(job(model, progress=terminal, **options), show.export)


@click.command(cls=Command, example="sbm report small.model big.model -o report.html")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=FILE)
@click.option(
    "-o", "--output", type=NEW_FILE, default="report.html", metavar="FILE",
    help="Page to write.  [default: report.html]",
)  # fmt: skip
@click.option(
    "--png", type=NEW_FILE, metavar="FILE",
    help="Also draw objective, gap and test accuracy (needs matplotlib).",
)  # fmt: skip
@shared
def report(terminal: Terminal, runs: tuple[Path, ...], **options: Any) -> None:
    """Show what trainings and streams did, side by side, on a page.

    RUN is a model, or the MODEL.run folder beside it, also of a training that goes on. The page is
    one HTML file that needs no network; test accuracy is in it if sbm train had --test-every.
    """
    from sbm.jobs.report import report as job

    told = job(runs, **options)
    if not terminal.as_json:
        for run in told["runs"]:
            for text in run["warnings"]:
                complain(f"{run['name']}: {text}")
    terminal.answer(told, show.report)
