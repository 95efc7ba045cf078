"""The commands in the order of ``sbm --help``. Each calls one function and prints its report."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import click

from sbm import __version__
from sbm.cli import show
from sbm.cli.command import RESUMES, Command, Commands, LiblinearCommand, Terminal
from sbm.cli.liblinear import refuse_their_model, refuse_their_order
from sbm.cli.options import (
    FILE,
    LAST,
    LIBLINEAR,
    NEW_FILE,
    PATH,
    REMOTE_TIMEOUT,
    TEST,
    THREADS,
    Choice,
    given_settings,
    read_settings,
    settings_of,
    some,
    without,
)
from sbm.cli.processes import launch as become_launcher
from sbm.cli.processes import meet
from sbm.cli.terminal import INTERRUPTED, complain, echo, stop_signals, stopped_at_once
from sbm.compiled.clock import clock, compile_seconds
from sbm.errors import SettingsError
from sbm.losses import LOSSES
from sbm.settings import OF_FILES, Settings
from sbm.units import parse_grid

_TYPED = click.core.ParameterSource.COMMANDLINE
_DATA = click.argument("data", nargs=-1, metavar="[DATA]...", type=PATH)
_MODEL = click.option(
    "-o", "--output", "model", type=NEW_FILE, metavar="MODEL",
    help="Model to write.  [default: the first DATA's name with .model]",
)  # fmt: skip


# How inputs are read, by every command.
_READING = {
    "blocks": click.option(
        "--blocks", type=int, metavar="M", help="Number of blocks.  [default: by size]"
    ),
    "dtype": click.option(
        "--dtype", type=Choice(["auto", "float32", "float64"]), default="auto",
        help="Type of values; values that are all 1 take no space.  [default: auto]",
    ),
    "new_labels": click.option(
        "--new-labels", is_flag=True,
        help="Accept a file with labels that the store, or the files before it, do not have.",
    ),
    "on_error": click.option(
        "--on-error", type=Choice(["fail", "skip"]),
        help="What to do with a malformed line.  [default: fail]",
    ),
    "min_count": click.option(
        "--min-count", type=int, default=1, metavar="N",
        help="Drop features that fewer than N rows have; rare words of a table become "
        "COLUMN=(rare). Reads the input twice.  [default: 1]",
    ),
    "format": click.option(
        "--format", type=Choice(["libsvm", "csv", "tsv", "vw", "npz", "parquet", "feather"]),
        help="Format of the input.  [default: by the extension, else libsvm]",
    ),
    "hash_bits": click.option(
        "--hash-bits", type=int, metavar="B",
        help="Number of bits of hashed feature names of VW text.  [default: 22]",
    ),
    "label": click.option(
        "--label", metavar="COLUMN",
        help="Column of the labels in a table.  [default: label, y or target]",
    ),
    "categorical": click.option(
        "--categorical", multiple=True, metavar="COLUMN",
        help="Column of a table whose cells are always words; a name, a list, or a pattern; may be "
        "repeated.",
    ),
    "weight": click.option(
        "--weight", metavar="COLUMN", help="Column of a table that holds the weight of each row."
    ),
    "exclude": click.option(
        "--exclude", multiple=True, metavar="COLUMN",
        help="Column of a table to leave out; a name, a list, or a pattern; may be repeated.",
    ),
    "column": click.option(
        "--column", multiple=True, metavar="COLUMN=KIND",
        help="Kind of a column: number, log1p, bins:N, flag, category, date, words, ids, "
        "vector, id, text, ignored, label or weight; may be repeated.  "
        "[default: as sbm columns shows]",
    ),
    "columns": click.option(
        "--columns", type=PATH, metavar="FILE", help="TOML file of kinds, as sbm columns writes it."
    ),
    "cross": click.option(
        "--cross", multiple=True, metavar="A:B",
        help="Add the products of the features of two columns of a table; may be repeated.",
    ),
    "quadratic": click.option(
        "--quadratic", multiple=True, metavar="AB",
        help="The same for two namespaces of VW text, by their first letters (: for all).",
    ),
    "header": click.option(
        "--header/--no-header", default=True,
        help="Whether the first line of CSV has the names; else columns are 1, 2, 3.",
    ),
    "sep": click.option("--sep", metavar="C", help="Separator of cells.  [default: , or a tab]"),
    "quote": click.option(
        "--quote", metavar="C", default='"', help='Quote around cells.  [default: "]'
    ),
    "decimal": click.option(
        "--decimal", type=Choice([".", ","]),
        help="Decimal separator.  [default: found out for each column]",
    ),
    "encoding": click.option(
        "--encoding", metavar="NAME", help="Encoding of CSV, such as latin-1.  [default: utf-8]"
    ),
    "strict": click.option(
        "--strict", is_flag=True,
        help="Refuse a table with other columns than the earlier data, or the model.  "
        "[default: note the difference]",
    ),
    "feature_names": click.option(
        "--feature-names", type=PATH, metavar="FILE",
        help="Names of features, for text that has only ids: a line ID NAME for each.",
    ),
    "names": click.option(
        "--names/--no-names", default=True, help="Keep the names of features.  [default: keep]"
    ),
}  # fmt: skip


# Options of a store that is read twice, or whole: a stream has none.
_NOT_OF_STREAMS = ("blocks", "min_count", "weight", "feature_names", "names")


# Options of what becomes of the cells, or of text that is no table.
_NOT_OF_COLUMNS = (
    "blocks", "dtype", "new_labels", "on_error", "min_count", "hash_bits", "cross", "quadratic",
    "strict", "feature_names", "names",
)  # fmt: skip


def _read_options(options: dict[str, Any]) -> dict[str, Any]:
    """Take the options of reading text out of those of a command, as keywords of a function."""
    reading = {name: options.pop(name) for name in _READING}
    reading["categorical"] = reading["categorical"] or None
    reading["on_error"] = reading["on_error"] or "fail"
    for pair in reading["quadratic"]:
        if len(pair.encode()) != 2:
            raise SettingsError(f"--quadratic is {pair!r}; expected two letters, as in ab")
    reading["cross"] = (*reading["cross"], *reading.pop("quadratic"))
    return reading


_KEEP_STORE = click.option(
    "--keep-store", type=NEW_FILE, is_flag=False, flag_value=LAST, metavar="[STORE]",
    help="Also write the store that sbm split would make.  [default: the first DATA's name with "
    ".sbm]",
)  # fmt: skip


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "-V", "--version", prog_name="sbm")
def cli() -> None:
    """Exact linear models on data bigger than memory.

    \b
    sbm train big.svm                          text to a model, big.model
    sbm split big.svm                          text to a store, to train on often
    sbm predict big.model test.svm -o out.txt  accuracy, and labels in out.txt
    zcat day*.gz | sbm stream - -o day.model   a model of text that is read once
    """  # noqa: D301  \b is click's mark for lines that stay as they are


@cli.command(cls=Command, example="sbm split day*.svm.gz -o week.sbm --blocks 24")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...", type=PATH)
@click.option(
    "-o", "--output", "store", type=NEW_FILE, metavar="STORE",
    help="Store to write.  [default: the first INPUT's name with .sbm]",
)  # fmt: skip
@_READING["blocks"]
@click.option("--block-size", metavar="SIZE", help="Memory of a loaded block, instead of --blocks.")
@click.option(
    "--shards", type=int, metavar="P",
    help="Distribute the blocks over P folders NAME.0.sbm, NAME.1.sbm, ..., one per process.",
)  # fmt: skip
@_READING["dtype"]
@click.option("--seed", type=int, default=0, help="Seed of every random choice.  [default: 0]")
@click.option("--no-shuffle", is_flag=True, help="Assign rows to blocks in turn, not at random.")
@click.option("--level", type=int, default=1, help="Compression level, 1 to 19.  [default: 1]")
@THREADS
@click.option(
    "--mem", default="1GB", metavar="SIZE",
    help="Maximum resident memory of the process.  [default: 1GB]",
)  # fmt: skip
@click.option(
    "--append", is_flag=True, help="Add blocks to a store: --append STORE INPUT..., or with -o."
)
@click.option(
    "--force",
    is_flag=True,
    help="Replace a store; with --append: accept data that is already there.",
)
@some(without(_READING, "blocks", "dtype"))
@REMOTE_TIMEOUT
def split(
    terminal: Terminal, inputs: tuple[str, ...], no_shuffle: bool, **options: Any,
) -> None:  # fmt: skip
    """Turn text into a block store to train on.

    Each INPUT is a file or a glob, plain or .gz, .bz2, .xz, .zst; - is standard input. Inputs are
    read once (twice with --min-count), and rows are assigned to blocks at random. The extension
    .csv, .tsv, .vw, .npz, .parquet or .feather gives the format; other files are LIBSVM text.
    """
    from sbm.programs.split import split as job

    begin, compiled_before = clock(), compile_seconds()
    reading = _read_options(options)
    report = job(inputs, shuffle=not no_shuffle, progress=terminal, **reading, **options)
    report["seconds"] = clock() - begin
    report["compile_seconds"] = compile_seconds() - compiled_before
    _tell_skipped(report)
    terminal.answer(report, lambda told: show.split(told, reading["min_count"]))


@cli.command(
    cls=LiblinearCommand, example="sbm train big.svm -C 0.1 --mem 2GB --json", stopped=RESUMES
)
@_DATA
@_MODEL
@settings_of("train")
@some(LIBLINEAR.values())
@click.option(
    "--resume/--fresh", default=None,
    help="Resume the training of this model, or start over.  [default: resume a training with the "
    "same data and settings, if there is one]",
)  # fmt: skip
@some(_READING.values())
@_KEEP_STORE
@TEST
@click.option(
    "--launch", type=int, metavar="N",
    help="Run N processes with mpiexec; {rank} in DATA is replaced by the rank of each.",
)  # fmt: skip
@click.pass_context
def train(
    context: click.Context, /, terminal: Terminal, data: tuple[str, ...], model: Path | None,
    resume: bool | None, test: str | None, launch: int | None,
    keep_store: str | Path | None, config: Path | None, **options: Any,
) -> None:  # fmt: skip
    """Train a model on text or a store, to a certified gap.

    DATA are text files or globs, as for split; - is standard input. They are read once, into memory
    as far as --mem allows; the rest goes to a folder next to the model, which is removed at the
    end. Or DATA is a store; it may be left out if there is only one in the current folder.

    Progress shows a line per pass; ~ marks estimates, other gaps are certified. -v adds seconds
    (load, wait, solve), millions of rows and nonzeros per second, the dual, cached rows, those with
    free alphas, and visits of cached rows.

    Exit code 3: --max-passes or --time-limit was reached before --tol; the model is written, with
    its certified gap. With --validate, code 0 also means that the score stopped improving.

    After Ctrl-C, SIGTERM or a crash, the same command resumes from the last checkpoint. Rerunning
    a finished training does nothing.
    """
    from sbm.dataset.options import ReadOptions

    data, options["warm_start"] = _start(data, options["warm_start"])
    data, keep_store = _kept(data, keep_store)
    refuse_their_model(data, context.get_parameter_source("model") is not _TYPED)
    reading = ReadOptions(**_read_options(options))
    settings = read_settings(config, options)
    if launch is not None:
        become_launcher(launch, "train", context.meta[LiblinearCommand.WORDS], terminal.quiet)
    from sbm.programs.train import train_ranks
    from sbm.programs.training.job import TrainOptions

    comm = meet(settings)
    if comm.rank > 0:
        terminal.mute()
    with stop_signals() as is_stopped:
        result, report = train_ranks(
            comm, list(data) or None, model, settings,
            TrainOptions(
                resume, is_stopped, terminal, reading, keep_store, test,
                while_reading=stopped_at_once,
            ),
        )  # fmt: skip
    comm.leave()
    if result is None:  # rank 0 prints the report
        return
    _tell_skipped(report["read"])
    if not terminal.as_json:
        terminal.answer(report, show.train)
    try:
        if test is not None:
            from sbm.programs.predict import predict as predict_job

            report["test"] = predict_job(
                result, test, labels=True, threads=1, remote_timeout=settings.remote_timeout,
                progress=terminal, **vars(reading.beside(test)),
            )  # fmt: skip
    finally:  # print the training's report even if the test file is invalid
        if terminal.as_json:
            terminal.answer(report, show.train)
    if test is not None and not terminal.as_json:
        terminal.answer(report["test"], lambda told: show.quality(told, "test ", terminal.verbose))
    _end(report, settings)


def _tell_skipped(report: dict[str, Any] | None) -> None:
    """Report lines that were skipped, and pipes whose last line has no end."""
    for problem in (report or {}).get("problems", []):
        complain(f"skipped {problem}")
    for line in show.open_lines(report or {"open": []}):
        complain(line)


def _start(
    data: tuple[str, ...], warm_start: str | None
) -> tuple[tuple[str, ...], str | bool | None]:
    """Return the data and the setting `warm_start` from the arguments as typed."""
    if not data and warm_start and (Path(warm_start) / "manifest.json").is_file():
        return (warm_start,), True  # typed as: --warm-start STORE
    return data, True if warm_start == LAST else warm_start


def _kept(
    data: tuple[str, ...], keep: str | Path | None
) -> tuple[tuple[str, ...], str | Path | None]:
    """Return the data and the store to write from the arguments as typed."""
    if keep is None:
        return data, None
    if not data and str(keep) != LAST and Path(keep).suffix != ".sbm":
        data, keep = (str(keep),), LAST  # typed as: --keep-store DATA
    if str(keep) not in (LAST, "."):
        return data, keep
    from sbm.dataset.fill import default_store

    return data, default_store(data[0]) if data else None


def _end(report: dict[str, Any], settings: Settings) -> None:
    """Exit with code 3 if a limit ended the training before it converged."""
    validation = report.get("validation")
    ended_by = validation["ended_by"] if validation else "limit"
    if report["converged"] or ended_by != "limit":
        return
    for line in show.not_converged(report, settings):
        complain(line)
    # The exit code of a used-up budget.
    sys.exit(3)


@cli.command(
    cls=Command, example="sbm predict big.model test.svm.gz -o labels.txt",
    context_settings={"allow_extra_args": True},
)  # fmt: skip
@click.argument("model", type=FILE)
@click.argument("data", metavar="INPUT", type=PATH)
@click.option(
    "-o", "--output", type=FILE, metavar="FILE",
    help="Write one label or number per line here, or a table if its name ends in .csv, .tsv or "
    ".parquet; with -, to stdout, and the report to stderr.",
)  # fmt: skip
@click.option(
    "--id", metavar="COLUMN",
    help="Write the cells of this column beside the predictions (tag: those of vw text).",
)  # fmt: skip
@click.option(
    "--top", type=int, default=1, metavar="N",
    help="Labels per line, best first, separated by spaces (more than two classes).  "
    "[default: 1]",
)  # fmt: skip
@click.option(
    "--decision", is_flag=True,
    help="Write decision values instead of labels; with more than two classes one per label, in "
    "ascending order of the labels.",
)  # fmt: skip
@click.option(
    "--probability", is_flag=True,
    help="Append the probability of each label, in the order of the first line (models of "
    "log_loss, or trained with --calibrate).",
)  # fmt: skip
@click.option(
    "--confusion", multiple=True, type=FILE, metavar="FILE",
    help="Write the confusion matrix as a table (.tsv) or a picture (.png, needs matplotlib); "
    "repeatable.",
)  # fmt: skip
@click.option(
    "--labels/--no-labels",
    default=None,
    help="Require labels, or ignore them and read a blank line of text as a row.  "
    "[default: use labels that are present]",
)
@some(_READING[name] for name in OF_FILES)
@THREADS
@REMOTE_TIMEOUT
@click.pass_context
def predict(
    context: click.Context, /, terminal: Terminal, model: Path, data: str, **options: Any
) -> None:
    """Predict the labels of rows and report how good they are.

    INPUT is a file, plain or compressed, a store, or - for standard input. A regression model
    predicts numbers. Unknown feature ids are ignored and counted. With many classes, only the most
    frequent and the worst are shown; -v shows all.
    """
    refuse_their_order(str(model), data, context.args)
    from sbm.programs.predict import predict as job

    to_stdout = str(options["output"]) == "-"
    if to_stdout and terminal.as_json:
        raise SettingsError("-o - and --json both write to standard output; give -o a file name")
    report = job(model, data, progress=terminal, **options)
    for text in report["warnings"]:
        complain(f"sbm: warning: {text}")
    terminal.answer(
        report,
        lambda told: show.quality(told, every_class=terminal.verbose),
        tell=complain if to_stdout else echo,
    )


@cli.command(cls=Command, example="zcat day*.svm.gz | sbm stream - -o day.model --mem 2GB")
@click.argument("inputs", nargs=-1, metavar="[INPUT...]", type=PATH)
@click.option("-o", "--output", "model", type=NEW_FILE, metavar="MODEL", help="Model to write.")
@click.option("--rounds", metavar="N", help="Maximum rounds over a working set.  [default: 3]")
@settings_of("stream", "rounds")
@click.option(
    "--classes", metavar="L,L,...", help="All possible labels.  [default: as they appear]"
)
@click.option(
    "--checkpoint-every", metavar="T|N",
    help="Time (60s) or number of rows (100000rows) between checkpoints.  [default: 60s]",
)  # fmt: skip
@some(without(_READING, *_NOT_OF_STREAMS))
@click.option(
    "--follow", is_flag=True, default=None, help="Wait for more data at the end of the last file."
)
@click.option("--idle-timeout", metavar="T", help="End after T without new data.")
@click.option(
    "--resume", type=FILE, metavar="MODEL", help="Resume the stream that made this model."
)
@TEST
def stream(
    terminal: Terminal, inputs: tuple[str, ...], model: Path | None, resume: Path | None,
    test: str | None, config: Path | None, classes: str | None, **given: Any,
) -> None:  # fmt: skip
    """Learn a model from text that is read once.

    Each INPUT is a file or a glob of LIBSVM or VW text, plain or .gz, .bz2, .xz, .zst, or a table
    whose labels are numbers; - is standard input. No store is made.
    Every row is predicted before it is learned; the mean loss is printed each time the number of
    rows has doubled. Ctrl-C and SIGTERM finish the block, write a checkpoint and exit with 130.
    """
    from sbm.dataset.batches import check_input
    from sbm.dataset.options import ReadOptions
    from sbm.inputs.nametable import LabelWords
    from sbm.inputs.urls import remote_terms
    from sbm.programs.predict import predict as predict_job
    from sbm.programs.stream import stream as job
    from sbm.programs.streaming.options import StreamOptions

    if resume is not None and model not in (None, resume):
        raise SettingsError(f"--resume {resume} also writes that model; leave out -o")
    names = {f.name for f in dataclasses.fields(StreamOptions)}
    given["quadratic"] = ",".join(given["quadratic"]) or None
    given["dtype"] = None if given["dtype"] == "auto" else given["dtype"]
    reading = {name: given.pop(name) for name in _READING if name in given.keys() - names}
    usual = ReadOptions()
    given["reading"] = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in reading.items()
        if value not in ((), None, getattr(usual, name))
    } or None
    options = {k: v for k, v in given.items() if k in names and v is not None}
    how = ReadOptions(format=given["format"], **given["reading"] or {})
    if classes is not None:
        try:
            options["classes"] = [float(label) for label in classes.split(",")]
        except ValueError:
            raise SettingsError(f"classes is {classes!r}; write numbers, as in 1,2,3") from None
    settings = given_settings(config, {k: v for k, v in given.items() if k not in names})
    timeout = settings.get("remote_timeout")
    if test is not None:
        numbers = LabelWords({}, "labels of a stream", "convert them")
        naming = _names_of(inputs, resume, given)
        with remote_terms(timeout, terminal.stage):
            if naming is None or not naming.is_of_table:  # whose columns are not known yet
                check_input(test, naming, numbers, terminal, how.beside(test))
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
            f"sbm: stopped immediately; resume from the last checkpoint with "
            f"sbm stream --resume {name}"
        )
        sys.exit(INTERRUPTED)
    for problem in report["problems"]:
        complain(f"skipped {problem}")
    if test is not None and not report["stopped"]:
        report["test"] = predict_job(
            result,
            test,
            labels=True,
            threads=1,
            remote_timeout=timeout,
            progress=terminal,
            **vars(how.beside(test)),
        )
    terminal.answer(report, lambda told: _in_words(told, terminal.verbose))
    _tell_the_end(report, terminal)


def _names_of(inputs: tuple[str, ...], resume: Path | None, given: dict[str, Any]) -> Any:
    """Return how a stream hashes names of features; None if it reads ids."""
    from sbm.inputs.formats import FORMATS, format_of, with_hash_bits
    from sbm.inputs.options import InputOptions, Naming
    from sbm.store.run import Run

    name, bits, pairs = given["format"], given["hash_bits"], given["quadratic"]
    if resume is not None and Path(f"{resume}.run", "run.json").exists():
        options = Run.read(Path(f"{resume}.run")).get("options", {})
        name, bits = options.get("format"), options.get("hash_bits")
        pairs = options.get("quadratic")
    name = name or (format_of(inputs[0]).name if inputs else "libsvm")
    if not FORMATS[name].has_names:
        return None
    if FORMATS[name].opener is not None:
        return Naming({"columns": []})
    bits = with_hash_bits(InputOptions(hash_bits=bits)).hash_bits
    return Naming({"hash_bits": bits, "quadratic": pairs.split(",") if pairs else []})


def _in_words(report: dict[str, Any], every_class: bool) -> Any:
    yield from show.stream(report)
    if "test" in report:
        yield from show.quality(report["test"], "test ", every_class)


def _tell_the_end(report: dict[str, Any], terminal: Terminal) -> None:
    """Report lines without a newline; exit with code 130 if the stream was stopped."""
    if not terminal.as_json:
        for line in show.open_lines(report):
            complain(line)
    if report["stopped"]:
        complain(
            f"sbm: stopped; everything is saved, resume with sbm stream --resume {report['model']}"
        )
        sys.exit(INTERRUPTED)


@cli.command(
    cls=LiblinearCommand, example="sbm tune big.sbm --C 0.01:100:x10 --folds 5", stopped=RESUMES
)
@_DATA
@click.option(
    "--C", "-C", "Cs", required=True, metavar="GRID",
    help="Values to try: 0.01:100:x10 (from, to, factor) or 0.1,1,10. Larger values are skipped "
    "once the metric gets worse.",
)  # fmt: skip
@click.option("--folds", type=int, default=5, metavar="K", help="Number of folds.  [default: 5]")
@click.option(
    "--metric",
    type=Choice(
        [
            "accuracy",
            "macro_f1",
            "auc",
            "pr_auc",
            "f1",
            "log_loss",
            "brier",
            "mse",
            "mae",
            "r2",
        ]
    ),
    help="Metric to compare by.  [default: accuracy; for regression mse]",
)
@_MODEL
@click.option(
    "--png", "picture", type=NEW_FILE, metavar="FILE",
    help="Draw the metric over C (needs matplotlib).",
)  # fmt: skip
@click.option("--fresh", is_flag=True, help="Start over instead of resuming.")
@settings_of("tune")
@some(without(LIBLINEAR, "-c"))
@some(_READING.values())
def tune(
    terminal: Terminal, data: tuple[str, ...], model: Path | None, Cs: str, folds: int,
    metric: str | None, picture: Path | None, fresh: bool, config: Path | None, **options: Any,
) -> None:  # fmt: skip
    """Find the best C by cross-validation, and train with it.

    DATA is a store, or text as for train, which is read once into memory as far as --mem allows.
    Each block is loaded once per pass for all values and folds, which are trained to 10 x --tol.
    Rows belong to folds by a hash of their content. C in a configuration file is ignored.

    After Ctrl-C or a crash, the same command resumes at the end of the last pass.
    """
    reading = _read_options(options)
    settings = read_settings(config, options)
    values = parse_grid(Cs)
    from sbm.programs.tune import tune as job

    _, report = job(
        list(data) or None, model, settings, Cs=values, folds=folds, metric=metric,
        picture=picture, resume=False if fresh else None, progress=terminal, **reading,
    )  # fmt: skip
    _tell_skipped(report["read"])
    terminal.answer(report, show.tune)
    _end(report["train"], settings)


@cli.command(cls=LiblinearCommand, example="sbm plan big.sbm -C 0.1 --mem 2GB")
@_DATA
@settings_of("plan")
@some(LIBLINEAR.values())
@click.option(
    "--launch", type=int, default=1, metavar="N",
    help="Plan for N processes, each with a core and a disk of its own.  [default: 1]",
)  # fmt: skip
@some(_READING.values())
def plan(
    terminal: Terminal, data: tuple[str, ...], launch: int, config: Path | None, **options: Any
) -> None:
    """Plan the memory of a training, and measure what a pass takes.

    DATA is a store, or text as for train, which is read. Disk, decoding and solving are measured on
    some of its rows, in less than a second, with the settings of the training. With --launch, the
    plan is that of each process.
    """
    from sbm.programs.plan import plan as job

    reading = _read_options(options)
    settings = read_settings(config, options)
    report = job(list(data) or None, settings, processes=launch, progress=terminal, **reading)
    terminal.answer(report, show.plan)


@cli.command(cls=Command, example="sbm info big.sbm")
@click.argument("path", type=FILE)
def info(terminal: Terminal, path: Path) -> None:
    """Describe a store, a run or a model.

    -v also shows long fields and default settings.
    """
    from sbm.programs.info import info as job

    terminal.answer(job(path), lambda facts: show.info(facts, every=terminal.verbose))


@cli.command(cls=Command, example="sbm inspect big.model --top 20")
@click.argument("model", type=FILE)
@click.argument("newer", required=False, metavar="[NEWER]", type=FILE)
@click.option(
    "--top", type=int, default=10, metavar="N",
    help="Number of largest and smallest weights, or of changes, per class.  [default: 10]",
)  # fmt: skip
@click.option("--tsv", is_flag=True, help="Print a table separated by tabs.")
def inspect(terminal: Terminal, model: Path, tsv: bool, **options: Any) -> None:
    """Show the weights of a model, or what changed in a newer one.

    MODEL and NEWER are models of sbm or LIBLINEAR. Features are shown by name if the training data
    had names, otherwise by id.
    """
    from sbm.programs.inspect import inspect as job

    if tsv and terminal.as_json:
        raise SettingsError("--tsv and --json are two forms of the same output; give one")
    terminal.answer(job(model, **options), show.inspect_table if tsv else show.inspect)


@cli.command(cls=Command, example="sbm check big.sbm")
@click.argument("store", type=FILE)
def check(terminal: Terminal, store: Path) -> None:
    """Verify every checksum and invariant of a store."""
    from sbm.programs.info import check as job

    terminal.answer(job(store, progress=terminal), show.check)


@cli.command(cls=Command, example="sbm cat big.sbm -o big.svm")
@click.argument("store", type=FILE)
@click.option(
    "-o", "--output", type=FILE, default="-", metavar="FILE",
    help="File to write.  [default: standard output]",
)  # fmt: skip
@click.option(
    "--format", type=Choice(["libsvm", "parquet", "feather"]),
    help="LIBSVM text, or records of label, indices and values.  [default: by the ending of "
    "FILE, else libsvm]",
)  # fmt: skip
@click.option(
    "--names", type=NEW_FILE, metavar="FILE",
    help="Also write the names of features here, for --feature-names.",
)  # fmt: skip
def cat(terminal: Terminal, store: Path, output: Path, **options: Any) -> None:
    """Write the rows of a store in the order of its sources.

    Running sbm split on the output gives the same rows. Parquet and Feather need pyarrow.
    """
    from sbm.programs.cat import cat as job

    to_stdout = str(output) == "-"
    if to_stdout and terminal.as_json:
        raise SettingsError("-o - and --json both write to standard output; give -o a file name")
    report = job(store, output, progress=terminal, **options)
    terminal.answer(report, show.cat, tell=complain if to_stdout else echo)


@cli.command(cls=Command, example="sbm columns people.csv -o people.toml")
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...", type=FILE)
@click.option("-o", "--output", type=NEW_FILE, metavar="FILE", help="TOML file to write.")
@click.option("--toml", is_flag=True, help="Print TOML instead of a table.")
@some(without(_READING, *_NOT_OF_COLUMNS))
def columns(
    terminal: Terminal, inputs: tuple[str, ...], output: Path | None, toml: bool, **options: Any
) -> None:
    """Show what the columns of a table are read as.

    Only the first 10,000 rows are read. The TOML file can be edited and given to sbm split or sbm
    train with --columns.
    """
    from sbm.programs.columns import columns as job

    report = job(inputs, output, progress=terminal, **options)
    for text in report["warnings"]:
        complain(f"sbm: warning: {text}")
    terminal.answer(report, show.columns_toml if toml else show.columns)


@cli.command(cls=Command, example="sbm report small.model big.model -o report.html")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=FILE)
@click.option(
    "-o", "--output", type=NEW_FILE, default="report.html", metavar="FILE",
    help="Page to write.  [default: report.html]",
)  # fmt: skip
@click.option(
    "--png", type=NEW_FILE, metavar="FILE",
    help="Also draw objective, gap and test accuracy (needs matplotlib).",
)  # fmt: skip
def report(terminal: Terminal, runs: tuple[Path, ...], **options: Any) -> None:
    """Compare trainings and streams on an HTML page.

    RUN is a model, or the MODEL.run folder next to it; the training may still be running. The page
    is one file that needs no network. It shows scores and curves if sbm train had --validate.
    """
    from sbm.programs.report import report as job

    told = job(runs, **options)
    if not terminal.as_json:
        for run in told["runs"]:
            for text in run["warnings"]:
                complain(f"{run['name']}: {text}")
    terminal.answer(told, show.report)


@cli.command(
    cls=Command, example="sbm export big.model --format liblinear --prune 1e-4 --test test.svm"
)
@click.argument("model", type=FILE)
@click.option(
    "-o", "--output", type=NEW_FILE, metavar="FILE",
    help="File to write.  [default: MODEL with the extension of the format]",
)  # fmt: skip
@click.option(
    "--format", type=Choice(["liblinear", "npz", "json", "sbm"]),
    help="Format of the file.  [default: by its ending]",
)  # fmt: skip
@click.option("--prune", type=float, metavar="T", help="Drop weights from -T to T.")
@click.option(
    "--test", type=PATH, metavar="FILE",
    help="With --prune: predict this file or store before and after.",
)  # fmt: skip
@REMOTE_TIMEOUT
def export(terminal: Terminal, model: Path, **options: Any) -> None:
    """Write a model in the format of another tool.

    MODEL is a model of sbm, or a model file of LIBLINEAR.
    """
    from sbm.programs.export import export as job

    terminal.answer(job(model, progress=terminal, **options), show.export)


@cli.command(cls=Command, example="sbm expire week.sbm --before 30d --if-any")
@click.argument("store", type=FILE)
@click.option(
    "--before", metavar="DATE",
    help="Drop what was added before 2026-01-31, 2026-01-31T06:00 (UTC), or 30d ago.",
)  # fmt: skip
@click.option(
    "--source", "sources", multiple=True, metavar="NAME",
    help="Drop this source, by the name that sbm info shows or its path; may be repeated.",
)  # fmt: skip
@click.option("--if-any", is_flag=True, help="Exit with 0 if nothing matches.")
@click.option("--dry-run", is_flag=True, help="Only show what would be dropped.")
def expire(terminal: Terminal, store: Path, **options: Any) -> None:
    """Drop old sources from a store, with all of their rows.

    Files that were added by one sbm split are dropped together. Then run sbm train --warm-start.
    """
    from sbm.programs.expire import expire as job

    terminal.answer(job(store, progress=terminal, **options), show.expire)


@cli.command(cls=Command, example="sbm precompile --loss hinge")
@click.option(
    "--loss", "losses", type=Choice(list(LOSSES)), metavar="NAME", multiple=True,
    help="Loss to compile for; repeatable.  [default: all]",
)  # fmt: skip
@click.option(
    "--dtype", type=Choice(["float32", "float64"]), default="float32",
    help="Type of values in stores.  [default: float32]",
)  # fmt: skip
@THREADS
def precompile(terminal: Terminal, **options: Any) -> None:
    """Compile the kernels of all commands now.

    Otherwise each command compiles the kernels that it needs before it begins, once. Not needed if
    sbm was installed from a wheel that has code for this processor.
    """
    from sbm.programs.precompile import precompile as job

    terminal.answer(job(progress=terminal, **options), show.precompile)
