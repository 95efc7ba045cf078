"""Commands that make stores, change them and look at them."""

import time
from pathlib import Path
from typing import Any

import click

from sbm.cli import show
from sbm.cli.command import Command, Terminal, shared
from sbm.cli.options import FILE, INPUT_FORMAT, NEW_FILE, ON_ERROR, THREADS
from sbm.cli.output import complain
from sbm.losses import LOSSES

__all__ = ["check", "expire", "info", "precompile", "split"]


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
    from sbm.jobs.split import split as job

    begin = time.perf_counter()
    report = job(
        inputs, shuffle=not no_shuffle, text=text or None, on_error=on_error or "fail",
        progress=terminal, **options,
    )  # fmt: skip
    report["seconds"] = time.perf_counter() - begin
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
    from sbm.jobs.expire import expire as job

    terminal.answer(job(store, progress=terminal, **options), show.expire)


@click.command(cls=Command, example="sbm info big.sbm")
@click.argument("path", type=FILE)
@shared
def info(terminal: Terminal, path: Path) -> None:
    """Tell what a store, a run or a model is.

    With -v also what is long, or as it is by default.
    """
    from sbm.jobs.info import info as job

    terminal.answer(job(path), lambda facts: show.info(facts, every=terminal.verbose))


@click.command(cls=Command, example="sbm check big.sbm")
@click.argument("store", type=FILE)
@shared
def check(terminal: Terminal, store: Path) -> None:
    """Verify every checksum and invariant of a store."""
    from sbm.jobs.info import check as job

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
    from sbm.jobs.precompile import precompile as job

    terminal.answer(job(progress=terminal, **options), show.precompile)
