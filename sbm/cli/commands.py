"""Commands that make stores, change them and look at them."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import click

from sbm.cli import show
from sbm.cli.command import GOES_ON, Command, LiblinearCommand, Terminal, shared
from sbm.cli.options import (
    FILE,
    INPUT_FORMAT,
    LAST,
    LIBLINEAR,
    NEW_FILE,
    ON_ERROR,
    TEST,
    THREADS,
    given_settings,
    read_settings,
    settings_of,
    some,
    without,
)
from sbm.cli.processes import launch as become_launcher
from sbm.cli.processes import meet
from sbm.cli.terminal import INTERRUPTED, complain, echo, stop_signals
from sbm.engine.clock import clock, compile_seconds
from sbm.errors import SettingsError
from sbm.losses import LOSSES
from sbm.settings import Settings, parse_grid

__all__ = [
    "check", "expire", "export", "info", "plan", "precompile", "predict", "report", "split",
    "stream", "train", "tune",
]  # fmt: skip


@click.command(cls=Command, example="zcat day*.svm.gz | sbm stream - -o day.model --mem 2GB")
@click.argument("inputs", nargs=-1, metavar="[INPUT...]")
@click.option("-o", "--output", "model", type=NEW_FILE, metavar="MODEL", help="Model to write.")
@click.option("--rounds", metavar="N", help="Maximum rounds over a working set.  [default: 3]")
@settings_of("stream", "rounds")
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
    from sbm.programs.answers import check_input
    from sbm.programs.predict import predict as predict_job
    from sbm.programs.stream import stream as job
    from sbm.programs.streaming.options import StreamOptions

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


_BUDGET = 3  # exit code
_STORE = click.argument("store", required=False, type=FILE)
_MODEL = click.option(
    "-o", "--output", "model", type=NEW_FILE, metavar="MODEL",
    help="Model to write.  [default: STORE.model]",
)  # fmt: skip


@click.command(
    cls=LiblinearCommand, example="sbm train big.sbm -C 0.1 --mem 2GB --json", stopped=GOES_ON
)
@_STORE
@_MODEL
@settings_of("train")
@some(LIBLINEAR.values())
@click.option(
    "--resume/--fresh", default=None,
    help="Go on with the training of this model, or begin anew.  [default: go on with a training "
    "of the same store and settings, if there is one]",
)  # fmt: skip
@TEST
@click.option(
    "--test-every", type=int, metavar="N",
    help="With --test: predict it after every N passes, too; its seconds do not count.",
)  # fmt: skip
@click.option(
    "--launch", type=int, metavar="N",
    help="Run this command in N processes, by mpiexec; {rank} in STORE is the number of each.",
)  # fmt: skip
@shared
@click.pass_context
def train(
    context: click.Context, /, terminal: Terminal, store: Path | None, model: Path | None,
    resume: bool | None, test: str | None, test_every: int | None, launch: int | None,
    config: Path | None, **options: Any,
) -> None:  # fmt: skip
    """Train a model on a block store, to a certified duality gap.

    STORE may be left out where there is only one in the current folder. Exit code 3: a budget was
    used up before the tolerance was reached; the model is written and says so.

    After Ctrl-C, SIGTERM or a crash the same command goes on from the last commit; after it has
    come to its end it does nothing.
    """
    store, options["warm_start"] = _start(store, options["warm_start"])
    settings = read_settings(config, options)
    if launch is not None:
        become_launcher(launch, "train", context.meta[LiblinearCommand.WORDS], terminal.quiet)
    from sbm.programs.answers import check_input
    from sbm.programs.predict import predict as predict_job
    from sbm.programs.train import train as job

    if test is not None:
        check_input(test)  # before hours of training
    elif test_every is not None:
        raise SettingsError("--test-every needs a text to predict; give one with --test FILE")
    comm = meet(settings)
    if comm.rank > 0:
        terminal.mute()
    with stop_signals() as is_stopped:
        result, report = job(
            store, model, settings, resume=resume, is_stopped=is_stopped, progress=terminal,
            test=None if test_every is None else test,
            test_every=1 if test_every is None else test_every, comm=comm,
        )  # fmt: skip
    comm.leave()
    if result is None:  # process 0 tells what there is to tell
        return
    if report["was_finished"]:
        terminal.stage(
            f"{report['model']} is trained already, with these settings on this store; --fresh "
            "trains it again"
        )
    if not terminal.as_json:
        terminal.answer(report, show.train)
    try:
        if test is not None:
            report["test"] = predict_job(result, test, threads=1, progress=terminal)
    finally:  # the training is not lost if the test file is bad
        if terminal.as_json:
            terminal.answer(report, show.train)
    if test is not None and not terminal.as_json:
        terminal.answer(report["test"], lambda told: show.quality(told, "test ", terminal.verbose))
    _end(report, settings)


def _start(store: Path | None, warm_start: str | None) -> tuple[Path | None, str | bool | None]:
    """Tell the store from what --warm-start names."""
    if store is None and warm_start and (Path(warm_start) / "manifest.json").is_file():
        return Path(warm_start), True  # --warm-start STORE: nobody meant another thing
    return store, True if warm_start == LAST else warm_start


def _end(report: dict[str, Any], settings: Settings) -> None:
    """Exit with a code of its own where a budget was used up first."""
    if report["converged"]:
        return
    for line in show.not_converged(report, settings):
        complain(line)
    sys.exit(_BUDGET)


@click.command(
    cls=LiblinearCommand, example="sbm tune big.sbm --C 0.01:100:x10 --folds 5", stopped=GOES_ON
)
@_STORE
@click.option(
    "--C", "-C", "Cs", required=True, metavar="GRID",
    help="Values to try: 0.01:100:x10 (from, to, factor) or 0.1,1,10.",
)  # fmt: skip
@click.option("--folds", type=int, default=5, metavar="K", help="Number of folds.  [default: 5]")
@click.option(
    "--metric", metavar="NAME",
    help="What is best: accuracy, macro_f1, auc, mse, mae or r2.  "
    "[default: accuracy, of targets mse]",
)  # fmt: skip
@_MODEL
@click.option(
    "--png", "picture", type=NEW_FILE, metavar="FILE",
    help="Draw the metric over C (needs matplotlib).",
)  # fmt: skip
@click.option("--fresh", is_flag=True, help="Begin anew, whatever an earlier command left.")
@settings_of("tune")
@some(without(LIBLINEAR, "-c"))
@shared
def tune(
    terminal: Terminal, store: Path | None, model: Path | None, Cs: str, folds: int,
    metric: str | None, picture: Path | None, fresh: bool, config: Path | None, **options: Any,
) -> None:  # fmt: skip
    """Find the best C by cross-validation, and train with it.

    All values and all folds learn from each block that is loaded, up to ten times --tol. A fold is
    some of the rows, chosen by a hash of their content. C of a configuration file is not read.

    After Ctrl-C or a crash the same command goes on from the end of the last pass.
    """
    settings = read_settings(config, options)
    values = parse_grid(Cs)
    from sbm.programs.tune import tune as job

    _, report = job(
        store, model, settings, Cs=values, folds=folds, metric=metric, picture=picture,
        resume=False if fresh else None, progress=terminal,
    )  # fmt: skip
    terminal.answer(report, show.tune)
    _end(report["train"], settings)


@click.command(cls=LiblinearCommand, example="sbm plan big.sbm -C 0.1 --mem 2GB")
@_STORE
@settings_of("plan")
@some(LIBLINEAR.values())
@click.option(
    "--seconds", type=float, default=5.0, metavar="S",
    help="Time to measure for; more of it foresees better.  [default: 5]",
)  # fmt: skip
@shared
def plan(
    terminal: Terminal, store: Path | None, seconds: float, config: Path | None, **options: Any
) -> None:
    """Tell what a training will take: memory, passes, time.

    Disk, decoding and solving are measured for a few seconds, on some rows of the store and with
    the settings of the training. Each figure that may vary has a range behind it.
    """
    from sbm.programs.plan import plan as job

    settings = read_settings(config, options)
    terminal.answer(job(store, settings, seconds=seconds, progress=terminal), show.plan)


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
    from sbm.programs.predict import predict as job

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
    from sbm.programs.export import export as job

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
    from sbm.programs.report import report as job

    told = job(runs, **options)
    if not terminal.as_json:
        for run in told["runs"]:
            for text in run["warnings"]:
                complain(f"{run['name']}: {text}")
    terminal.answer(told, show.report)


@click.command(cls=Command, example="sbm split day*.svm.gz -o week.sbm --blocks 24")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option(
    "-o", "--output", "store", type=NEW_FILE, metavar="STORE",
    help="Store to write.  [default: INPUT.sbm]",
)  # fmt: skip
@click.option("--blocks", type=int, metavar="M", help="Number of blocks.  [default: by size]")
@click.option("--block-size", metavar="SIZE", help="Or: memory that a block takes when loaded.")
@click.option(
    "--shards", type=int, metavar="P",
    help="Deal the blocks to P folders NAME.0.sbm, NAME.1.sbm ..., one for each process to train.",
)  # fmt: skip
@click.option(
    "--dtype", type=click.Choice(["auto", "float32", "float64"]), default="auto",
    help="Type of values; values that are all 1 take no space.  [default: auto]",
)  # fmt: skip
@click.option("--seed", type=int, default=0, help="Seed of every random choice.  [default: 0]")
@click.option("--no-shuffle", is_flag=True, help="Deal rows in turn, in the order of the input.")
@click.option("--level", type=int, default=1, help="Level of compression, 1 to 19.  [default: 1]")
@THREADS
@click.option(
    "--mem", default="1GB", metavar="SIZE",
    help="Most memory the process may take.  [default: 1GB]",
)  # fmt: skip
@click.option(
    "--append", is_flag=True, help="Add new blocks to a store: --append STORE INPUT..., or with -o."
)
@click.option("--force", is_flag=True, help="Replace a store; with --append: take data twice.")
@ON_ERROR
@click.option(
    "--min-count", type=int, default=1, metavar="N",
    help="Leave out features that fewer than N rows have; reads the input twice.  [default: 1]",
)  # fmt: skip
@INPUT_FORMAT
@click.option(
    "--hash-bits", type=int, metavar="B",
    help="Ids of features that have names are B bits of their hashes.  [default: 22]",
)  # fmt: skip
@click.option(
    "--label", metavar="COLUMN",
    help="Of a table: the labels.  [default: column label, y or target]",
)  # fmt: skip
@click.option(
    "--text", multiple=True, metavar="COLUMN",
    help="Of a table: its cells are words, even if they look like numbers; may be repeated.",
)  # fmt: skip
@shared
def split(
    terminal: Terminal, inputs: tuple[str, ...], no_shuffle: bool, text: tuple[str, ...],
    on_error: str | None, **options: Any,
) -> None:  # fmt: skip
    """Turn text into a block store, which can be trained on.

    INPUT are files or globs, plain or .gz, .bz2, .xz, .zst; - is standard input. It is read once
    (twice with --min-count), and its rows are dealt to the blocks at random. Files that end in
    .csv, .tsv, .vw, .npz or .parquet are read as what they are, all others as LIBSVM text.
    """
    from sbm.programs.split import split as job

    begin, compiled_before = clock(), compile_seconds()
    report = job(
        inputs, shuffle=not no_shuffle, text=text or None, on_error=on_error or "fail",
        progress=terminal, **options,
    )  # fmt: skip
    report["seconds"] = clock() - begin
    report["compile_seconds"] = compile_seconds() - compiled_before
    for problem in report["problems"]:
        complain(f"skipped {problem}")
    for line in show.open_lines(report):
        complain(line)
    terminal.answer(report, lambda told: show.split(told, options["min_count"]))


@click.command(cls=Command, example="sbm expire week.sbm --before 30d --if-any")
@click.argument("store", type=FILE)
@click.option(
    "--before", metavar="DATE",
    help="Drop what was added before 2026-01-31, 2026-01-31T06:00 (UTC), or 30d for so long ago.",
)  # fmt: skip
@click.option(
    "--source", "sources", multiple=True, metavar="NAME",
    help="Or: drop a source, named as sbm info shows it or by its path; may be repeated.",
)  # fmt: skip
@click.option("--if-any", is_flag=True, help="That there is nothing to drop is no error.")
@click.option("--dry-run", is_flag=True, help="Tell what would be dropped, and leave it.")
@shared
def expire(terminal: Terminal, store: Path, **options: Any) -> None:
    """Drop old sources from a store, with all of their rows.

    What one run of sbm split added goes as a whole, with its files. The next sbm train --warm-start
    goes on without it.
    """
    from sbm.programs.expire import expire as job

    terminal.answer(job(store, progress=terminal, **options), show.expire)


@click.command(cls=Command, example="sbm info big.sbm")
@click.argument("path", type=FILE)
@shared
def info(terminal: Terminal, path: Path) -> None:
    """Tell what a store, a run or a model is.

    With -v also what is long, or as it is by default.
    """
    from sbm.programs.info import info as job

    terminal.answer(job(path), lambda facts: show.info(facts, every=terminal.verbose))


@click.command(cls=Command, example="sbm check big.sbm")
@click.argument("store", type=FILE)
@shared
def check(terminal: Terminal, store: Path) -> None:
    """Verify every checksum and invariant of a store."""
    from sbm.programs.info import check as job

    terminal.answer(job(store, progress=terminal), show.check)


@click.command(cls=Command, example="sbm precompile --loss hinge")
@click.option(
    "--loss", "losses", type=click.Choice(list(LOSSES)), metavar="NAME", multiple=True,
    help="Loss to train with; may be repeated.  [default: all]",
)  # fmt: skip
@click.option(
    "--dtype", type=click.Choice(["float32", "float64"]), default="float32",
    help="Type of values in stores.  [default: float32]",
)  # fmt: skip
@THREADS
@shared
def precompile(terminal: Terminal, **options: Any) -> None:
    """Compile the kernels of all commands now.

    Otherwise each command compiles its kernels the first time it runs, which takes 5 to 20 seconds.
    Use it when building an image, or before a nightly job.
    """
    from sbm.programs.precompile import precompile as job

    terminal.answer(job(progress=terminal, **options), show.precompile)
