"""The command line: each command parses, calls one function and prints what it returns."""

import codecs
import contextlib
import dataclasses
import heapq
import io
import json
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, cast

import click

from sbm import __version__
from sbm.errors import SbmError, SettingsError
from sbm.interop.options import (
    OPTIONS,
    expand_weights,
    read_options,
    refuse_cross_validation,
)
from sbm.jobs.progress import Progress
from sbm.settings import SCHEDULES, TASKS, Settings, format_number, format_size, parse_grid
from sbm.solver.cache import POLICIES
from sbm.solver.losses import LOSSES

if TYPE_CHECKING:
    from sbm.distributed.comm import Comm

EXIT_ERROR, EXIT_USAGE, EXIT_BUDGET, EXIT_INTERRUPTED = 1, 2, 3, 130


# Control characters of a name could move the cursor of a terminal, or worse.
_CONTROLS = {c: f"\\x{c:02x}" for c in (*range(32), *range(128, 160)) if c != ord("\n")}


def _echo(text: str) -> None:
    """Print a result on standard output."""
    if sys.stdout is sys.stderr:  # redirected, because something else has standard output
        return _complain(text)
    try:
        if sys.stdout is None:
            raise SbmError("standard output is closed, so the result cannot be printed")
        print(text.translate(_CONTROLS), flush=True)
    except BrokenPipeError:
        raise  # whoever read it has gone
    except OSError as error:
        raise SbmError(f"cannot print the result: {error.strerror or error}") from error
    return None


def _count(n: int, noun: str) -> str:
    plural = "es" if noun.endswith("s") else "s"
    return f"{n:,} {noun}" + ("" if n == 1 else plural)


def _complain(text: str) -> None:
    """Tell something on stderr, which is not what anybody waits for: no error comes of it."""
    print(text.translate(_CONTROLS), file=sys.stderr, flush=True)


class _Terminal(Progress):
    """Progress on stderr: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self, quiet: bool = False, verbose: bool = False) -> None:
        self._quiet, self._verbose = quiet, verbose
        self._live = sys.stderr.isatty() and not quiet
        self._bar: Any = None
        self._titled = False
        self._passes_left: float | None = None

    def start(self, what: str, total: int | None, unit: str = "B") -> None:
        self._what, self._total, self._unit = what, total, unit
        self._begin = self._last = time.monotonic()
        self._size, self._row_count = 0, 0
        if self._live:
            from tqdm import tqdm

            if what.startswith("pass ") and self._passes_left:
                what += f", about {max(1, round(self._passes_left))} to go"
            self._bar = tqdm(
                desc=what, total=total, unit=unit, unit_scale=unit == "B", leave=False,
                dynamic_ncols=True, file=sys.stderr,
            )  # fmt: skip

    def advance(self, done: int, **numbers: Any) -> None:
        self._size, self._row_count = done, numbers.get("rows", 0)
        if self._bar is not None:
            if self._row_count:
                seconds = max(time.monotonic() - self._begin, 1e-9)
                shown = f"{self._row_count / seconds:,.0f} rows/s"
                if "memory" in numbers:
                    shown += f", memory {format_size(numbers['memory'])}"
                self._bar.set_postfix_str(shown, refresh=False)
            self._bar.update(done - self._bar.n)
        elif not self._quiet and time.monotonic() - self._last > 10:
            self._last = time.monotonic()
            _complain(self._line())

    def _line(self) -> str:
        seconds = max(time.monotonic() - self._begin, 1e-9)
        amount = format_size(self._size) if self._unit == "B" else f"{self._size} {self._unit}"
        text = f"{self._what}: {amount}"
        if self._total:
            left = seconds * (self._total / max(self._size, 1) - 1)
            text += f" of {format_size(self._total) if self._unit == 'B' else self._total}"
            text += f", {100 * self._size / self._total:.0f} %, about {left:.0f} s left"
        if self._unit == "B":
            text += f", {self._size / seconds / 1e6:.0f} MB/s"
        if self._row_count:
            text += f", {self._row_count / seconds:,.0f} rows/s"
        return text

    def finish(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def note(self, text: str) -> None:
        if self._verbose:
            _complain(text)

    def stage(self, text: str) -> None:
        if not self._quiet:
            _complain(text)

    def wait(self, why: str) -> None:
        if not self._quiet:
            _complain(why)

    def doubling(self, record: dict[str, Any]) -> None:
        if self._quiet:
            return
        if not self._titled:
            self._titled = True
            _complain(
                "        rows        loss  since last  accuracy  since last   features     cached"
                "  seconds   memory"
            )

        def number(name: str, width: int, share: bool = False) -> str:
            value = record[name]
            if value is None:
                return f"{'-':>{width}}"
            return f"{100 * value:{width - 2}.2f} %" if share else f"{value:{width}.6f}"

        _complain(
            f"{record['rows']:12,} {number('loss', 11)} {number('last_loss', 11)} "
            f"{number('accuracy', 9, True)} {number('last_accuracy', 11, True)} "
            f"{record['features']:10,} {record['cached_rows']:10,} {record['elapsed']:8.2f} "
            f"{format_size(record['resident_bytes']):>8}"
        )

    def row(self, record: dict[str, Any]) -> None:
        if self._quiet:
            return
        if not self._titled:
            self._titled = True
            _complain(
                "pass  seconds    load    wait   solve    Mrows/s  Mnnz/s            dual"
                "  est. gap   cached     free    hits   memory"
            )
        s, certificate = record["seconds"], record["certificate"]
        self._passes_left = record.get("passes_left")
        gap = record["estimated_relative_gap"]
        estimate = "-" if gap is None else f"{gap:.1e}"
        _complain(
            f"{record['pass']:4d} {record['elapsed']:8.2f} {s['load']:7.2f} {s['wait']:7.2f} "
            f"{s['solve']:7.2f} {record['rows_per_second'] / 1e6:10.2f} "
            f"{record['nnz_per_second'] / 1e6:7.1f} {record['dual']:15.8g} "
            f"{estimate:>9} {record['cached_rows']:8d} "
            f"{record['cached_free']:8d} {record['cache_hits']:7d} "
            f"{format_size(record['resident_bytes']):>8}"
            + (f"   certified gap {certificate['relative_gap']:.2e}" if certificate else "")
            + _test_figure(record.get("test"))
        )


def _test_figure(test: dict[str, Any] | None) -> str:
    """What a test text came to after a pass, behind its other figures."""
    if test is None or not test["rows"]:
        return ""
    if "mse" in test:
        return f"   test MSE {test['mse']:.6g}"
    return f"   test accuracy {100 * test['accuracy']:.4f} %"


# ------------------------------------------------------------------------------------ commands


class _Command(click.Command):
    """A command that is told when it was started as several processes by mistake."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run it; not before, as that is not needed for its help."""
        from sbm.distributed.comm import launched_size

        if self.name not in _OF_SEVERAL and launched_size() > 1:
            raise SettingsError(
                f"{launched_size()} processes were started, and each of them would do all of "
                f"sbm {self.name}; only sbm train is shared by several, start this one alone"
            )
        return super().invoke(ctx)


_OF_SEVERAL = ("train",)
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="sbm")
def cli() -> None:
    """Exact linear models on LIBSVM files bigger than memory.

    \b
    sbm split big.svm --blocks 12              text to a compressed block store, big.sbm
    sbm train --cache-frac 0.5 --mem 2GB       the only store here to a model, big.model
    sbm predict big.model test.svm -o out.txt  accuracy here, a label a line there
    zcat day*.gz | sbm stream - -o day.model   a model of text that comes once
    """  # noqa: D301  \b is click's mark for lines that stay as they are


cli.command_class = _Command


def _shared(command: Callable[..., Any]) -> Callable[..., Any]:
    """Options that every command has."""
    for option in (
        click.option("-v", "--verbose", is_flag=True, help="Tell more, on stderr."),
        click.option("-q", "--quiet", is_flag=True, help="The result alone, no progress."),
        click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout."),
    ):
        command = option(command)
    return command


_format_option = click.option(
    "--format", type=click.Choice(["libsvm", "csv", "tsv", "vw", "npz", "parquet"]),
    help="Of the input; default: what the file's name tells, LIBSVM text where it tells nothing.",
)  # fmt: skip


@cli.command()
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.option("-o", "--output", "store", type=click.Path(path_type=Path), help="Store to make.")
@click.option("--blocks", type=int, metavar="M", help="Number of blocks.")
@click.option("--block-size", metavar="SIZE", help="Or: memory a block takes when loaded.")
@click.option(
    "--shards", type=int, metavar="P",
    help="Deal the blocks to P folders NAME.0.sbm, NAME.1.sbm ..., one for each process to train.",
)  # fmt: skip
@click.option(
    "--dtype", type=click.Choice(["auto", "float32", "float64"]), default="auto",
    show_default=True, help="Type of stored values; values that are all 1 take no space.",
)  # fmt: skip
@click.option("--seed", type=int, default=0, show_default=True, help="Of the dealing to blocks.")
@click.option("--no-shuffle", is_flag=True, help="Deal rows in turn, in the order of the input.")
@click.option("--level", type=int, default=1, show_default=True, help="Level of zstd, 1 to 19.")
@click.option("--threads", type=int, metavar="N", help="Default: all cores.")
@click.option("--mem", default="1GB", show_default=True, metavar="SIZE", help="Bound of memory.")
@click.option(
    "--append", is_flag=True, help="Add new blocks to a store: --append STORE INPUT..., or with -o."
)
@click.option("--force", is_flag=True, help="Replace a store; with --append: take data twice.")
@click.option(
    "--on-error", type=click.Choice(["fail", "skip"]), default="fail", show_default=True,
    help="At a line that is not LIBSVM text.",
)  # fmt: skip
@click.option(
    "--min-count", type=int, default=1, show_default=True, metavar="N",
    help="Leave out features that fewer than N rows have; reads the input twice.",
)  # fmt: skip
@_format_option
@click.option(
    "--hash-bits", type=int, metavar="B",
    help="Ids of features that have names are B bits of their hashes; default: 22.",
)  # fmt: skip
@click.option(
    "--label", metavar="COLUMN", help="Of a table: labels; default: column label, y or target."
)
@click.option(
    "--text", multiple=True, metavar="COLUMN",
    help="Of a table: its cells are words, even if they look like numbers; may be repeated.",
)  # fmt: skip
@_shared
def split(
    inputs: tuple[str, ...], no_shuffle: bool, text: tuple[str, ...], as_json: bool, quiet: bool,
    verbose: bool, **options: Any,
) -> None:  # fmt: skip
    """Turn LIBSVM text into a block store, reading it once (twice with --min-count).

    INPUT are files or globs, plain or .gz, .bz2, .xz, .zst; - is standard input. Rows are dealt to
    the blocks at random. Files that end in .csv, .tsv, .vw, .npz or .parquet are read as what they
    are; --format tells it of others.

    \b
    Example: sbm split day*.svm.gz -o week.sbm --blocks 24
             sbm split --append week.sbm new.svm
    """  # noqa: D301
    from sbm.jobs.split import split as job

    begin = time.perf_counter()
    report = job(
        inputs, shuffle=not no_shuffle, text=text or None,
        progress=_Terminal(quiet or as_json, verbose), **options,
    )  # fmt: skip
    report["seconds"] = time.perf_counter() - begin
    for problem in report["problems"]:
        _complain(f"skipped {problem}")
    if as_json:
        return _echo(json.dumps(report))
    bits = 8 * report["bytes"] / report["nnz"] if report["nnz"] else 0
    _echo(
        f"{report['store']}: {_count(report['rows'], 'row')}{_in_all(report)}, "
        f"{_count(report['features'], 'feature')}, "
        f"{_count(report['nnz'], 'nonzero')} in {_count(report['blocks'], 'block')}, "
        f"{format_size(report['bytes'])} "
        f"({bits:.1f} bits a nonzero), {report['seconds']:.1f} s "
        f"({report['text_bytes'] / 1e6 / report['seconds']:.0f} MB/s)"
    )
    if report["skipped"]:
        _echo(f"{_count(report['skipped'], 'line')} skipped")
    if options["min_count"] > 1:
        _echo(_left_out({"min_count": options["min_count"], **report["left_out"]}))
    return None


@cli.command()
@click.argument("store", type=click.Path(path_type=Path))
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
@_shared
def expire(store: Path, as_json: bool, quiet: bool, verbose: bool, **options: Any) -> None:
    """Drop old sources from a store, with all of their rows.

    What one run of sbm split added goes as a whole, with its files. The next sbm train --warm-start
    goes on without it.

    Example: sbm expire week.sbm --before 30d
    """
    from sbm.jobs.expire import expire as job

    report = job(store, progress=_Terminal(quiet or as_json, verbose), **options)
    if as_json:
        return _echo(json.dumps(report))
    what = "would be dropped" if report["dry_run"] else "dropped"
    for source in report["sources"]:
        _echo(f"{source['name']}, added {source['added']}: {_count(source['rows'], 'row')}")
    _echo(
        f"{report['store']}: {_count(len(report['sources']), 'source')} {what}, "
        f"{_count(report['rows'], 'row')} in {_count(report['blocks'], 'block')}, "
        f"{format_size(report['bytes'])}; {_count(report['rows_left'], 'row')} left"
    )
    for label in report["labels_without_rows"]:
        _echo(f"label {format_number(label)} has no row left; it stays a class of the store")
    return None


def _in_all(report: dict[str, Any]) -> str:
    """Say of appended rows how many there are with the others."""
    every = report["rows_in_all"]
    return "" if every == report["rows"] else f" appended ({every:,} in all)"


def _left_out(rare: dict[str, Any]) -> str:
    return (
        f"{_count(rare['features'], 'feature')} in fewer than {_count(rare['min_count'], 'row')} "
        f"left out ({_count(rare['nnz'], 'nonzero')})"
    )


# What decides a model beside C; the words of `Settings`.
_SETTINGS = (
    click.option(
        "--loss",
        type=click.Choice(list(LOSSES)),
        help="What a row costs, see the README.  [default: hinge]",
    ),
    click.option(
        "--task",
        type=click.Choice(TASKS),
        help="Of squared_error: what labels are.  [default: auto]",
    ),
    click.option(
        "--epsilon", type=float, help="Of regression: deviation that costs nothing.  [default: 0.1]"
    ),
    click.option(
        "--nu", type=float, help="Of one_class: share of rows that may lie outside.  [default: 0.5]"
    ),
    click.option(
        "--cache-frac",
        metavar="F",
        help="Share of the working set cached, or auto.  [default: 0.5]",
    ),
    click.option("--mem", metavar="SIZE", help="Bound of the process's memory.  [default: 2GB]"),
    click.option(
        "--rounds",
        metavar="N",
        help="Most sweeps over a working set, 2,2,5 by pass, or auto (default).",
    ),
    click.option("--tol", type=float, help="Relative duality gap to reach.  [default: 1e-3]"),
    click.option("--max-passes", type=int, help="Most passes over the store.  [default: 50]"),
    click.option("--time-limit", metavar="T", help="Most time, as 90s, 5m or 2h."),
    click.option(
        "--checkpoint-every",
        metavar="T",
        help="Commit so often inside a pass, too; 0: only at its end.  [default: 5m]",
    ),
    click.option(
        "--policy",
        type=click.Choice(list(POLICIES)),
        help="How the cache is chosen.  [default: gradient]",
    ),
    click.option(
        "--screen/--no-screen",
        default=None,
        help="Leave out rows that are at rest before their visit.  [default: screen]",
    ),
    click.option(
        "--bias", type=float, help="Value of an extra feature in every row.  [default: 0]"
    ),
    click.option(
        "--class-weight",
        multiple=True,
        metavar="L=W",
        help="Multiply C for label L; may be repeated. Or balanced.",
    ),
    click.option(
        "--liblinear-w", multiple=True, hidden=True, help="A factor of C for a label: -w1 2.5."
    ),
    click.option(
        "--weights",
        type=click.Path(),
        metavar="FILE",
        help="A factor of C for each row, one a line.",
    ),
    click.option(
        "--schedule",
        type=click.Choice(SCHEDULES),
        help="Of weston_watkins: rows with all classes, or pairs of classes.  [default: sample]",
    ),
    click.option(
        "--caches", type=int, metavar="N", help="Of one-vs-rest: groups of classes.  [default: 1]"
    ),
    click.option(
        "--class-blocks",
        type=int,
        metavar="N",
        help="Of weston_watkins: divide N blocks of classes among processes.",
    ),
    click.option("--seed", type=int, help="Of every random choice.  [default: 0]"),
    click.option("--threads", type=int, metavar="N", help="Default: all cores."),
    click.option(
        "--config",
        type=click.Path(path_type=Path),
        help="TOML file; its keys are the settings, see the README. sbm tune does not read its C.",
    ),
)


def _with(options: Iterable[Callable[..., Any]]) -> Callable[..., Any]:
    """Decorate a command with options, in the order given."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(list(options)):
            command = option(command)
        return command

    return decorate


_WORDS = "sbm.words"  # where a context keeps the arguments as they were typed


class _LiblinearCommand(_Command):
    """A command that understands LIBLINEAR's options, too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Turn -w1 2.5 into an option that can be declared; explain -v 5."""
        refuse_cross_validation(args)
        ctx.meta[_WORDS] = list(args)
        return super().parse_args(ctx, expand_weights(args))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Show the table of LIBLINEAR's options."""
        with formatter.section("The same in LIBLINEAR's words"):
            rows = [(f"{o.flag} {o.metavar}", o.meaning) for o in OPTIONS]
            formatter.write_dl([*rows, ("-wL W", "--class-weight L=W")])


# Hidden: help shows them in a table of their own.
_LIBLINEAR = tuple(
    click.option(
        o.flag, f"liblinear{o.flag.replace('-', '_')}", type=o.type, hidden=True, help=o.meaning
    )
    for o in OPTIONS
)


_DISTRIBUTED = (
    click.option(
        "--sigma", metavar="S",
        help="Of several processes: how far each goes, adaptive, safe or a number from 1 on.  "
        "[default: adaptive]",
    ),
    click.option(
        "--sync-every", type=int, metavar="N",
        help="Of several processes: blocks before weights are added up.  [default: 1]",
    ),
    click.option(
        "--comm-timeout", metavar="T",
        help="Of several processes: most time to wait for the others.  [default: 10m]",
    ),
)  # fmt: skip

_LAST = ""  # --warm-start without a name


@cli.command(cls=_LiblinearCommand)
@click.argument("store", required=False, type=click.Path(path_type=Path))
@click.option("-o", "--output", "model", type=click.Path(path_type=Path), help="Model to write.")
@click.option("-C", "C", type=float, help="Cost of a row's loss.  [default: 1.0]")
@_with(_SETTINGS)
@_with(_DISTRIBUTED)
@_with(_LIBLINEAR)
@click.option(
    "--warm-start", is_flag=False, flag_value=_LAST, type=click.Path(), metavar="[MODEL|RUN]",
    help="Start from the alphas of an earlier training on this store, or on what it was before "
    "split --append and expire; without a name, from those of the model that is to be written.",
)  # fmt: skip
@click.option(
    "--calibrate/--no-calibrate", default=None,
    help="Also fit probabilities, on rows held out from a second model.",
)  # fmt: skip
@click.option(
    "--resume/--fresh", default=None,
    help="Go on with the training of this model, or begin anew.  [default: go on with a training "
    "of the same store and settings, if there is one]",
)  # fmt: skip
@click.option("--test", "test", type=click.Path(), help="Also predict this file at the end.")
@click.option(
    "--test-every", type=int, metavar="N",
    help="With --test: predict it after every N passes, too; its seconds do not count.",
)  # fmt: skip
@click.option(
    "--launch", type=int, metavar="N",
    help="Run this command in N processes, by mpiexec; {rank} in STORE is the number of each.",
)  # fmt: skip
@_shared
@click.pass_context
def train(
    context: click.Context, /, store: Path | None, model: Path | None, resume: bool | None,
    test: str | None, test_every: int | None, launch: int | None, config: Path | None,
    as_json: bool, quiet: bool, verbose: bool, **options: Any,
) -> None:  # fmt: skip
    """Train a model on a block store, to a certified duality gap.

    STORE may be left out where there is only one in the current folder. Exit code 3: a budget was
    used up before the tolerance was reached; the model is written and says so.

    After Ctrl-C, SIGTERM or a crash the same command goes on from the last commit; after it has
    come to its end it does nothing.

    Example: sbm train big.sbm -C 0.1 --mem 2GB --json
    """
    start = options["warm_start"]
    if store is None and start and (Path(start) / "manifest.json").is_file():
        store, start = Path(start), _LAST  # --warm-start STORE: nobody meant another thing
    options["warm_start"] = True if start == _LAST else start
    settings = _settings(config, options)
    if launch is not None:
        _launch(launch, "train", context.meta[_WORDS], quiet or as_json)
    from sbm.jobs.judging.batches import check_input
    from sbm.jobs.predict import predict as predict_job
    from sbm.jobs.train import train as job

    if test is not None:
        check_input(test)  # before hours of training
    elif test_every is not None:
        raise SettingsError("--test-every needs a text to predict; give one with --test FILE")
    comm = _meet(settings)
    progress = _Terminal(quiet or as_json or comm.rank > 0, verbose and comm.rank == 0)
    with _stop_signals() as is_stopped:
        result, report = job(
            store, model, settings, resume=resume, is_stopped=is_stopped, progress=progress,
            test=None if test_every is None else test,
            test_every=1 if test_every is None else test_every, comm=comm,
        )  # fmt: skip
    comm.leave()
    if result is None:  # process 0 tells what there is to tell
        return
    if report["was_finished"]:
        progress.stage(
            f"{report['model']} is trained already, with these settings on this store; --fresh "
            "trains it again"
        )
    if not as_json:
        _print_training(report)
    try:
        if test is not None:
            report["test"] = predict_job(result, test, threads=1, progress=progress)
    finally:  # the training is not lost if the test file is bad
        if as_json:
            _echo(json.dumps(report))
    if test is not None and not as_json:
        _print_quality(report["test"], "test ", every_class=verbose)
    if not report["converged"]:
        sys.exit(_not_converged(report, settings))


def _launch(n_processes: int, command: str, words: list[str], quiet: bool) -> NoReturn:
    """Become the launcher of several processes that run a command."""
    from sbm.distributed.launch import become, launch_line

    line = launch_line(n_processes, command, words)
    if not quiet:
        _complain(shlex.join(line))
    become(line)


def _meet(settings: Settings) -> "Comm":
    """Find the other processes of this command, if it was started as several."""
    from sbm.distributed.comm import world

    comm = world(float(settings.comm_timeout))
    if comm.size > 1:
        _ABORT.append(comm)
    return comm


# Whom to end when this process fails; the others would wait for it.
_ABORT: list["Comm"] = []
_LATER = 1.0  # seconds; see `_wait_for_first`


def _not_converged(report: dict[str, Any], settings: Settings) -> int:
    """Say which budget was used up; return the exit code for that."""
    used_up = "--max-passes" if report["passes"] == settings.max_passes else "--time-limit"
    _complain(
        f"sbm: not converged: relative gap {report['relative_gap']:.2e} is above --tol "
        f"{settings.tol:g}; raise {used_up}"
    )
    if report["visits_cut_short"]:
        _complain(
            f"sbm: {report['visits_cut_short']:,} visits of the last pass were cut short, as "
            "there is no room for more variables; raise --mem"
        )
    return EXIT_BUDGET


def _settings(config: Path | None, options: dict[str, Any]) -> Settings:
    """Options given on the command line override the file, in our words or LIBLINEAR's."""
    return Settings.from_dict(_given(config, options), str(config) if config else "options")


def _given(config: Path | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that were given, by name."""
    values = {} if config is None else Settings.read_toml(config)
    merged = {key.replace("-", "_"): value for key, value in values.items()}
    typed = {key: value for key, value in options.items() if value not in (None, ())}
    given = {o.flag: typed.pop(f"liblinear{o.flag.replace('-', '_')}", None) for o in OPTIONS}
    given["-w"] = typed.pop("liblinear_w", None)
    if "class_weight" in typed:
        typed["class_weight"] = list(typed["class_weight"])
    return merged | read_options(given, typed) | typed


def _name_of(option: Callable[..., Any]) -> str:
    """Return what a click option calls its value."""

    def nothing() -> None: ...

    declared: click.Option = option(nothing).__click_params__[0]
    return str(declared.name)


# Settings that `sbm plan` does not look at.
_NOT_PLANNED = {"checkpoint_every", "weights", "class_blocks", "time_limit"}
# Settings that are of no use to a stream, or mean less than to a training.
_OF_TRAINING = {
    "tol", "max_passes", "time_limit", "screen", "weights", "schedule", "caches", "liblinear_w",
    "class_blocks", "rounds", "class_weight", "checkpoint_every",
}  # fmt: skip


@cli.command(cls=_LiblinearCommand)
@click.argument("store", required=False, type=click.Path(path_type=Path))
@click.option("-C", "C", type=float, help="Cost of a row's loss.  [default: 1.0]")
@_with(option for option in _SETTINGS if _name_of(option) not in _NOT_PLANNED)
@_with(_LIBLINEAR)
@click.option(
    "--seconds", type=float, default=5.0, show_default=True, metavar="S",
    help="Of trials; more of them foresee better.",
)  # fmt: skip
@_shared
def plan(
    store: Path | None, seconds: float, config: Path | None, as_json: bool, quiet: bool,
    verbose: bool, **options: Any,
) -> None:  # fmt: skip
    """Tell what a training will take: memory, blocks, seconds a pass, passes, time in all.

    Disk, decoding and solving are measured in trials of a few seconds, on some rows of the store
    and with the settings of the training. Each figure that may vary has a range behind it.

    Example: sbm plan big.sbm -C 0.1 --mem 2GB
    """
    from sbm.jobs.plan import plan as job

    progress = _Terminal(quiet or as_json, verbose)
    report = job(store, _settings(config, options), seconds=seconds, progress=progress)
    if as_json:
        return _echo(json.dumps(report))
    return _print_plan(report)


def _print_plan(report: dict[str, Any]) -> None:
    """Show a plan as a table of a line each."""
    memory = dict(report["memory"])
    total, n_blocks, size = memory.pop("total"), report["blocks"], report["bytes_a_pass"]
    items = ", ".join(f"{name} {format_size(n)}" for name, n in memory.items())
    _echo(
        f"{report['store']}: {_count(report['rows'], 'row')}, "
        f"{_count(report['features'], 'feature')}, {_count(report['nnz'], 'nonzero')}"
    )
    passes = _with_range(report["passes"], "{:,}")
    if report["passes"][2] >= report["max_passes"]:
        passes += f", --max-passes is {report['max_passes']:,}"
    if not report["trials"][-1]["is_done"]:
        passes += "; no trial came to its end, so more --seconds will tell better"
    for name, text in {
        "memory": f"{format_size(total)} of {format_size(report['mem'])}: {items}",
        "blocks": f"{n_blocks:,}, of up to {_count(report['block_rows'], 'row')} and "
        f"{_count(report['block_nnz'], 'nonzero')}",
        "cache": f"{_count(report['cache_rows'], 'row')}, {_count(report['cache_nnz'], 'nonzero')}",
        "reading": f"{format_size(size)} a pass, {format_size(report['disk_bytes_per_second'])}/s "
        f"where it is new, {report['decode_nnz_per_second'] / 1e6:,.0f} million nonzeros/s decoded",
        "solving": f"{report['solve_nnz_per_second'] / 1e6:,.0f} million nonzeros/s",
        "a pass": _with_range(report["seconds_a_pass"], "{:.3g}") + " s",
        "passes": passes,
        "in all": _in_time(report["seconds"]),
    }.items():
        _echo(f"{name:>8}  {text}")


def _with_range(figures: list[float], form: str) -> str:
    """Show a figure, and from where to where it may be."""
    least, likely, most = (form.format(figure) for figure in figures)
    return f"about {likely} ({least} to {most})"


def _in_time(seconds: list[float]) -> str:
    """Show durations in the unit that suits the likely one."""
    unit, size = next(
        ((unit, size) for unit, size in (("h", 3600), ("min", 60)) if seconds[1] > 3 * size),
        ("s", 1),
    )
    return f"{_with_range([s / size for s in seconds], '{:.3g}')} {unit}"


@cli.command()
@click.argument("inputs", nargs=-1, metavar="[INPUT...]")
@click.option("-o", "--output", "model", type=click.Path(path_type=Path), help="Model to write.")
@click.option("-C", "C", type=float, help="Cost of a row's loss.  [default: 1.0]")
@click.option("--rounds", metavar="N", help="Most sweeps over a working set.  [default: 3]")
@click.option(
    "--class-weight", multiple=True, metavar="L=W", help="Multiply C for label L; may be repeated."
)
@_with(option for option in _SETTINGS if _name_of(option) not in _OF_TRAINING)
@click.option(
    "--learner", metavar="NAME",
    help="sbm, or to compare with: bmd (no cache), perceptron, passive_aggressive, arow, pegasos.",
)  # fmt: skip
@click.option("--lambda", "decay", type=float, help="Of pegasos.  [default: 1e-4]")
@click.option(
    "--classes", metavar="L,L,...", help="All labels there may be.  [default: as they appear]"
)
@click.option("--dtype", type=click.Choice(["float32", "float64"]), help="Type of values.")
@click.option(
    "--on-error", type=click.Choice(["fail", "skip"]), help="At a line that is not LIBSVM text."
)
@click.option(
    "--checkpoint-every", metavar="T|N",
    help="Save after so much time, 60s, or so many rows, 100000rows.  [default: 60s]",
)  # fmt: skip
@click.option(
    "--follow", is_flag=True, default=None, help="Wait for more at the end of the last file."
)
@click.option("--idle-timeout", metavar="T", help="End when nothing came for so long.")
@click.option(
    "--resume", type=click.Path(path_type=Path), metavar="MODEL",
    help="Go on with the stream that made this model.",
)  # fmt: skip
@click.option("--test", type=click.Path(), help="Also predict this file at the end.")
@_shared
def stream(
    inputs: tuple[str, ...], model: Path | None, resume: Path | None, test: str | None,
    config: Path | None, classes: str | None, as_json: bool, quiet: bool, verbose: bool,
    **given: Any,
) -> None:  # fmt: skip
    """Learn a model from text that is read once, as it comes.

    INPUT are files or globs, plain or .gz, .bz2, .xz, .zst; - is standard input. No store is made.
    Every row is predicted before it is learned; the mean loss of that is told whenever the rows
    have doubled. Ctrl-C and SIGTERM finish the block, save and end with exit code 130.

    Example: zcat day*.svm.gz | sbm stream - -o day.model --mem 2GB
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
    settings = _given(config, {k: v for k, v in given.items() if k not in names})
    progress = _Terminal(quiet or as_json, verbose)
    try:
        with _stop_signals() as is_stopped:
            result, report = job(
                inputs or None, resume or model, settings, options=options,
                resume=resume is not None, is_stopped=is_stopped, progress=progress,
            )  # fmt: skip
    except KeyboardInterrupt:
        name = resume or model
        if not Path(f"{name}.run", "run.json").exists():
            raise
        _complain(
            f"sbm: stopped at once; what {name} last saved is kept, go on from there with "
            f"sbm stream --resume {name}"
        )
        sys.exit(EXIT_INTERRUPTED)
    for problem in report["problems"]:
        _complain(f"skipped {problem}")
    if test is not None and not report["stopped"]:
        report["test"] = predict_job(result, test, threads=1, progress=progress)
    if as_json:
        _echo(json.dumps(report))
    else:
        _print_stream(report)
        if "test" in report:
            _print_quality(report["test"], "test ", every_class=verbose)
    if report["stopped"]:
        _complain(f"sbm: stopped; all is kept, go on with sbm stream --resume {report['model']}")
        sys.exit(EXIT_INTERRUPTED)


@contextlib.contextmanager
def _stop_signals() -> Iterator[Callable[[], bool]]:
    """Turn Ctrl-C and SIGTERM into a question; a second Ctrl-C ends at once."""
    stopped = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        handler = before[signal.Signals(number)]
        if stopped.is_set() and number == signal.SIGINT and callable(handler):
            handler(number, frame)
        stopped.set()

    before = {
        number: signal.signal(number, note)
        for number in _STOPS
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield stopped.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_stream(report: dict[str, Any]) -> None:
    s, seconds = report["seconds"], max(report["seconds"]["total"], 1e-9)
    loss = "" if report["loss"] is None else f", progressive loss {report['loss']:.6f}"
    accuracy = report["accuracy"]
    loss += "" if accuracy is None else f", accuracy {100 * accuracy:.4f} %"
    _echo(
        f"{report['model']}: {_count(report['rows'], 'row')} in {_count(report['blocks'], 'block')}"
        f", {_count(report['features'], 'feature')}{loss}"
    )
    bound = "" if report["dual"] is None else f"optimum of all rows at least {report['dual']:.8g}, "
    _echo(f"{bound}{report['updates']:,} updates, peak {format_size(report['peak_rss_bytes'])}")
    _echo(
        f"{seconds:.2f} s ({report['text_bytes'] / 1e6 / seconds:.0f} MB/s): learn {s['learn']:.2f}"
        f", predict {s['predict']:.2f}, wait for text {s['wait']:.2f}, save {s['write']:.2f}"
    )
    if report["skipped"]:
        _echo(f"{_count(report['skipped'], 'line')} skipped")
    for name in report["open"]:
        _complain(f"sbm: the last line of {name} has no line end; it was taken as it stands")


def _print_training(report: dict[str, Any]) -> None:
    s = report["seconds"]
    _echo(
        f"{report['model']}: primal {report['primal']:.8g}, dual {report['dual']:.8g}, "
        f"certified relative gap {report['relative_gap']:.2e} "
        f"after {_count(report['passes'], 'pass')}\n"
        f"{_count(report['n_support'], 'support vector')} ({report['n_free']:,} free), "
        f"{report['updates']:,} updates, {format_size(report['bytes_read'])} read, "
        f"peak memory {format_size(report['peak_rss_bytes'])}\n"
        f"{s['total']:.2f} s: solve {s['solve']:.2f}, wait for blocks {s['wait']:.2f} "
        f"(of {s['load']:.2f} loading), certify {s['certify']:.2f}, commits {s['write']:.2f}"
    )


@cli.command(cls=_LiblinearCommand)
@click.argument("store", required=False, type=click.Path(path_type=Path))
@click.option(
    "--C", "-C", "Cs", required=True, metavar="GRID",
    help="Values to try: 0.01:100:x10 (from, to, factor) or 0.1,1,10.",
)  # fmt: skip
@click.option("--folds", type=int, default=5, show_default=True, metavar="K", help="Of the rows.")
@click.option("--metric", metavar="NAME", help="accuracy, macro_f1, auc, mse, mae or r2.")
@click.option("-o", "--output", "model", type=click.Path(path_type=Path), help="Model to write.")
@click.option("--png", "picture", type=click.Path(path_type=Path), help="Draw the metric over C.")
@click.option("--fresh", is_flag=True, help="Begin anew, whatever an earlier command left.")
@_with(_SETTINGS)
@_with(option for option, o in zip(_LIBLINEAR, OPTIONS, strict=True) if o.flag != "-c")
@_shared
def tune(
    store: Path | None, model: Path | None, Cs: str, folds: int, metric: str | None,
    picture: Path | None, fresh: bool, config: Path | None, as_json: bool, quiet: bool,
    verbose: bool, **options: Any,
) -> None:  # fmt: skip
    """Find the best C by cross-validation on one stream of the data, and train with it.

    All values and all folds learn from each block that is loaded, up to ten times --tol. Rows are
    divided by a hash of their content. After Ctrl-C or a crash the same command goes on from the
    end of the last pass.

    Example: sbm tune big.sbm --C 0.01:100:x10 --folds 5
    """
    settings = _settings(config, options)
    values = parse_grid(Cs)
    from sbm.jobs.tune import tune as job

    progress = _Terminal(quiet or as_json, verbose)
    _, report = job(
        store, model, settings, Cs=values, folds=folds, metric=metric, picture=picture,
        resume=False if fresh else None, progress=progress,
    )  # fmt: skip
    if as_json:
        _echo(json.dumps(report))
    else:
        _print_tuning(report)
        _print_training(report["train"])
    if not report["train"]["converged"]:
        sys.exit(_not_converged(report["train"], settings))


def _print_tuning(report: dict[str, Any]) -> None:
    s = report["seconds"]
    _echo(f"         C  {report['metric']:>12}       std  passes   seconds  worst gap")
    for row in report["settings"]:
        gap = "-" if row["relative_gap"] is None else f"{row['relative_gap']:.1e}"
        note = "" if row["status"] == "converged" else "  " + row["status"]
        if row["mean"] is None:
            _echo(f"{format_number(row['C']):>10}  {'-':>12}{note}")
            continue
        std = "-" if row["std"] is None else f"{row['std']:.6f}"
        _echo(
            f"{format_number(row['C']):>10}  {row['mean']:12.6f} {std:>9} "
            f"{row['passes']:7d} {row['seconds']:9.2f} {gap:>10}"
            + note
            + (" *" if row["C"] == report["best"] else "")
        )
    _echo(
        f"{report['folds']} folds, {_count(report['passes'], 'pass')}, "
        f"{format_size(report['bytes_read'])} read, {s['tune']:.2f} s; best C is "
        f"{format_number(report['best'])}, trained on all rows:"
    )


@cli.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("data", metavar="INPUT")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="A label or number a line goes here; - is stdout, and the report goes to stderr then.",
)
@click.option(
    "--top",
    type=int,
    default=1,
    show_default=True,
    metavar="N",
    help="Labels a line, the best first, separated by blanks (more than two classes).",
)
@click.option(
    "--decision",
    is_flag=True,
    help="Write decision values instead of labels; multi-class: one for each label, in ascending "
    "order of the labels, separated by blanks.",
)
@click.option(
    "--probability",
    is_flag=True,
    help="Write the probabilities of all labels behind each label, in ascending order of the "
    "labels, which the first line names (models of log_loss, or trained with --calibrate).",
)
@click.option(
    "--confusion",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the confusion matrix: a table (.tsv) or a picture (.png, needs matplotlib); may "
    "be repeated.",
)
@_format_option
@click.option("--threads", type=int, metavar="N", help="For parsing; default: all cores.")
@_shared
def predict(
    model: Path, data: str, as_json: bool, quiet: bool, verbose: bool, **options: Any
) -> None:
    """Predict the labels of LIBSVM text or of a store, and say how good they are.

    A regression model predicts numbers. Feature ids that the model does not know are ignored and
    counted. Of many classes the most frequent and the worst are shown, all of them with -v.

    Example: sbm predict big.model test.svm.gz -o labels.txt
    """
    from sbm.jobs.predict import predict as job

    to_stdout = str(options["output"]) == "-"
    if to_stdout and as_json:
        raise SettingsError("-o - and --json both write to standard output; give -o a file name")
    report = job(model, data, progress=_Terminal(quiet or as_json, verbose), **options)
    if as_json:
        return _echo(json.dumps(report))
    with contextlib.redirect_stdout(sys.stderr) if to_stdout else contextlib.nullcontext():
        _print_quality(report, every_class=verbose)
    return None


def _print_quality(report: dict[str, Any], prefix: str = "", every_class: bool = False) -> None:
    if not report["rows"]:
        return _echo("no rows")
    if "mse" in report:
        _print_regression(report, prefix)
    elif "macro_f1" in report:
        _print_multi(report, prefix, every_class)
    else:
        _print_binary(report, prefix)
    if report.get("log_loss") is not None:
        brier = f", Brier score {report['brier']:.6f}" if "brier" in report else ""
        _echo(f"{prefix}log-loss {report['log_loss']:.6f}{brier}")
    if report.get("unknown_labels"):
        _echo(f"labels that the model does not know: {_count(report['unknown_labels'], 'row')}")
    if report["unknown_nonzeros"]:
        ignored = f"{_count(report['unknown_nonzeros'], 'nonzero')} ignored"
        _echo(f"{ignored}: the model has no weight for their ids")
    return None


def _print_regression(report: dict[str, Any], prefix: str) -> None:
    names = {"mse": "MSE", "mae": "MAE", "r2": "R2", "squared_correlation": "squared correlation"}
    figures = ", ".join(
        f"{name} {'-' if report[key] is None else format(report[key], '.6g')}"
        for key, name in names.items()
    )
    _echo(f"{prefix}{figures} ({_count(report['rows'], 'row')})")


def _print_binary(report: dict[str, Any], prefix: str) -> None:
    auc = "" if report["auc"] is None else f", AUC {report['auc']:.6f}"
    _echo(
        f"{prefix}accuracy {100 * report['accuracy']:.4f} % "
        f"({report['correct']:,} of {report['rows']:,}){auc}"
    )
    _print_classes(report["classes"], 8)
    (tn, fp), (fn, tp) = report["confusion"]
    _echo(f"confusion: {tp:,} true +, {fp:,} false +, {tn:,} true -, {fn:,} false -")


def _print_classes(classes: list[dict[str, Any]], width: int) -> None:
    """A line for each class; labels take `width` letters."""
    _echo(f"{'label':>{width}}  precision     recall         F1      rows  predicted")
    for row in classes:
        figures = "".join(
            f"{row[k]:11.6f}" if row[k] is not None else f"{'-':>11}"
            for k in ("precision", "recall", "f1")
        )
        _echo(
            f"{format_number(row['label']):>{width}}{figures} {row['support']:9,} "
            f"{row['predicted']:10,}"
        )


_ALL_CLASSES, _SOME_CLASSES = 30, 10


def _print_multi(report: dict[str, Any], prefix: str, every_class: bool) -> None:
    _echo(
        f"{prefix}accuracy {100 * report['accuracy']:.4f} % "
        f"({report['correct']:,} of {report['rows']:,}), "
        f"macro F1 {report['macro_f1']:.6f}, micro F1 {report['micro_f1']:.6f}"
    )
    if report["top_n"] > 1:
        _echo(f"{prefix}top-{report['top_n']} accuracy {100 * report['top_accuracy']:.4f} %")
    classes = report["classes"]
    width = max(8, *(len(format_number(label)) for label in report["labels"]))
    if every_class or len(classes) <= _ALL_CLASSES:
        _print_classes(classes, width)
    else:
        _print_some_classes(classes, width)
    _print_confusions(report["confusion"], width)


def _print_some_classes(classes: list[dict[str, Any]], width: int) -> None:
    """The most frequent classes, and the worst of those that have rows."""
    seen = sorted((row for row in classes if row["support"]), key=lambda row: -row["support"])
    worst = sorted(seen, key=lambda row: row["f1"])[:_SOME_CLASSES]
    for what, some in (("with most rows", seen[:_SOME_CLASSES]), ("with the lowest F1", worst)):
        if some:
            _echo(f"the {_count(len(some), 'class')} {what}:")
            _print_classes(some, width)
    shown = {row["label"] for row in seen[:_SOME_CLASSES] + worst}
    _echo(f"{len(classes) - len(shown):,} of {len(classes):,} classes left out; -v shows all")


def _print_confusions(triples: list[list[Any]], width: int) -> None:
    """The pairs of known labels that are mistaken most often."""
    wrong = [triple for triple in triples if triple[0] is not None and triple[0] != triple[1]]
    if not wrong:
        return
    _echo("most frequent confusions (true -> predicted: rows)")
    for true, predicted, count in heapq.nsmallest(10, wrong, key=lambda triple: -triple[2]):
        _echo(f"{format_number(true):>{width}} -> {format_number(predicted)}: {count:,}")


@cli.command()
@click.argument("path", type=click.Path(path_type=Path))
@_shared
def info(path: Path, as_json: bool, quiet: bool, verbose: bool) -> None:
    """Tell what a store, a run or a model is.

    Example: sbm info big.sbm
    """
    from sbm.jobs.info import info as job

    facts = job(path)
    if as_json:
        return _echo(json.dumps(facts))
    for name, value in facts.items():
        if name == "log" or (name in ("block_rows", "options") and not verbose):
            continue
        if name in ("left_out", "calibration", "expired") and not value:
            continue
        if name == "settings" and not verbose:
            usual = Settings().to_dict()
            value = {key: setting for key, setting in value.items() if setting != usual.get(key)}
        _echo(f"{name.replace('_', ' '):>18}: {_in_words(name, value)}")
    return None


def _in_words(name: str, value: Any) -> str:
    if name in ("bytes", "memory_bytes"):
        return format_size(value)
    if name == "labels" and isinstance(value, dict):
        pairs = sorted(zip(value["values"], value["counts"], strict=True))
        shown = ", ".join(f"{format_number(label)} ({count:,})" for label, count in pairs[:20])
        return shown + (f", ... {len(pairs)} in all" if len(pairs) > 20 else "")
    if name == "left_out":
        return "; ".join(_left_out(rare).replace(" left out", "") for rare in value)
    if name == "expired" and isinstance(value, list):
        rows = sum(source["rows"] for source in value)
        last = max(source["expired"] for source in value)
        return f"{_count(len(value), 'source')} of {_count(rows, 'row')}, the last {last}"
    if name == "sources":
        return "\n".join(_source(s) for s in value).lstrip()
    if name == "shard":
        here = ", ".join(map(str, value["here"]))
        return (
            f"{value['number']} (of 0 to {value['of'] - 1}), "
            f"blocks {here} of {value['blocks']} are here"
        )
    if isinstance(value, dict):
        return ", ".join(f"{k} {_in_words(k, v)}" for k, v in value.items())
    if isinstance(value, list):
        return ", ".join(_in_words("", v) for v in value)
    if isinstance(value, float):
        return format_number(value) if value.is_integer() else f"{value:.10g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _source(source: dict[str, Any]) -> str:
    size = f"{format_size(source['bytes'])}, " if "bytes" in source else ""
    added = f", added {source['added']}" if "added" in source else ""
    digest = f", sha256 {source['sha256'][:16]}" if "sha256" in source else ""
    return (
        f"{'':20}{source['name']}: {size}{_count(source['rows'], 'row')}, "
        f"{source['skipped']:,} skipped{added}{digest}"
    )


@cli.command()
@click.argument("store", type=click.Path(path_type=Path))
@_shared
def check(store: Path, as_json: bool, quiet: bool, verbose: bool) -> None:
    """Verify every checksum and invariant of a store.

    Example: sbm check big.sbm
    """
    from sbm.jobs.info import check as job

    report = job(store, progress=_Terminal(quiet or as_json, verbose))
    if as_json:
        return _echo(json.dumps(report))
    _echo(
        f"{report['store']} is sound: {report['rows']:,} rows in {report['chunks']:,} chunks, "
        f"{format_size(report['bytes'])}, {report['features']:,} features"
    )
    if report["elsewhere"]:
        _echo(f"it is a part of a store; {_count(report['elsewhere'], 'block')} elsewhere")
    return None


@cli.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write.")
@click.option(
    "--format",
    type=click.Choice(["liblinear", "npz", "json", "sbm"]),
    default="liblinear",
    show_default=True,
    help="What to write it as, see the README.",
)
@click.option(
    "--prune", type=float, metavar="T", help="Leave out weights between -T and T, these included."
)
@click.option(
    "--test",
    type=click.Path(),
    metavar="FILE",
    help="With --prune: predict this file or store with all weights and without the small ones.",
)
@_shared
def export(model: Path, as_json: bool, quiet: bool, verbose: bool, **options: Any) -> None:
    """Write a model as a file of another tool, all of it or without its smallest weights.

    MODEL is what sbm train wrote, or a model file of LIBLINEAR.

    Example: sbm export big.model --format liblinear --prune 1e-4 --test test.svm
    """
    from sbm.jobs.export import export as job

    report = job(model, progress=_Terminal(quiet or as_json, verbose), **options)
    if as_json:
        return _echo(json.dumps(report))
    _echo(
        f"{report['output']}: {_count(report['weights'], 'weight')} of "
        f"{_count(report['features'], 'feature')}, {format_size(report['bytes'])}"
    )
    if "dropped" in report:
        _print_pruning(report)
    return None


def _print_pruning(report: dict[str, Any]) -> None:
    _echo(
        f"{_count(report['dropped'], 'weight')} between -{report['pruned']:g} and "
        f"{report['pruned']:g} dropped"
    )
    if "test" not in report:
        _echo("what that does to predictions was not looked at; --test FILE shows it")
    elif report["change"] is None:
        _echo(f"{report['test']} holds no rows to show what that does")
    elif report["measure"] == "accuracy":
        _echo(
            f"accuracy {100 * report['before']:.4f} % before, {100 * report['after']:.4f} % after: "
            f"{100 * report['change']:+.4f} points"
        )
    else:
        _echo(
            f"mean squared error {report['before']:.6g} before, {report['after']:.6g} after: "
            f"{report['change']:+.6g}"
        )


@cli.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), default="report.html", show_default=True,
    help="Page to write.",
)  # fmt: skip
@click.option(
    "--png", type=click.Path(path_type=Path), metavar="FILE",
    help="Also draw objective, gap and test accuracy (needs matplotlib).",
)  # fmt: skip
@_shared
def report(
    runs: tuple[Path, ...], as_json: bool, quiet: bool, verbose: bool, **options: Any
) -> None:
    """Show what trainings and streams did, side by side, on a page of its own.

    RUN is a model, or the MODEL.run folder beside it, also of a training that goes on. The page is
    one HTML file that needs no network; test accuracy is in it if sbm train had --test-every.

    Example: sbm report small.model large.model -o report.html
    """
    from sbm.jobs.report import report as job

    told = job(runs, **options)
    if as_json:
        return _echo(json.dumps(told))
    for run in told["runs"]:
        for text in run["warnings"]:
            _complain(f"{run['name']}: {text}")
    _echo(" and ".join(filter(None, (told["output"], told["png"]))))
    return None


# ---------------------------------------------------------------------------------------- main


class _Stopped(KeyboardInterrupt):
    """Ctrl-C, SIGTERM or the end of the terminal."""


_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_INSISTS = 1.0  # seconds from a signal to one that means it: before, it is the same one again


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """Let a signal end the work, and another one, that comes while it ends, the process.

    What is ignored stays so: that is how nohup and the shells keep signals from us.
    """
    first: list[float] = []

    def stop(number: int, frame: object) -> None:
        now = time.monotonic()
        if not first:
            first.append(now)
            raise _Stopped
        if now - first[0] > _INSISTS:
            with contextlib.suppress(OSError):
                os.write(2, b"sbm: stopped at once; the same command starts again\n")
            os._exit(EXIT_INTERRUPTED)

    def try_again(lost: Any) -> None:
        if not isinstance(lost.exc_value, KeyboardInterrupt):
            sys.__unraisablehook__(lost)
            return
        # Python swallows what is raised where it tidies up, and would here: a moment later, then.
        first.clear()
        signal.setitimer(signal.ITIMER_REAL, 0.01)

    before = {
        number: signal.signal(number, stop)
        for number in (*_STOPS, signal.SIGALRM)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    hook, sys.unraisablehook = sys.unraisablehook, try_again
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)


class _Steadfast:
    """Standard error that stops no work: what it does not take is not told."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _as_it_can(error: UnicodeError) -> tuple[bytes, int]:
    """Write the bytes of a file name as they are, and letters that a terminal lacks as escapes."""
    assert isinstance(error, UnicodeEncodeError)
    written = b""
    for letter in error.object[error.start : error.end]:
        if "\udc80" <= letter <= "\udcff":
            written += bytes([ord(letter) - 0xDC00])
        else:
            written += letter.encode("ascii", "backslashreplace")
    return written, error.end


codecs.register_error("sbm", _as_it_can)


@contextlib.contextmanager
def _streams() -> Iterator[None]:
    """See to it that printing does no harm."""
    for number in range(3):  # else the next file that is opened would be our standard output
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    streams = [s for s in (sys.stdout, sys.stderr) if isinstance(s, io.TextIOWrapper)]
    before = [(stream, stream.errors) for stream in streams]
    for stream in streams:
        stream.reconfigure(errors="sbm")
    stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115  it lasts as long as we do
    sys.stderr = cast(TextIO, _Steadfast(stderr))
    try:
        yield
    finally:
        sys.stderr = stderr
        for stream, errors in before:
            with contextlib.suppress(OSError, ValueError):  # it flushes
                stream.reconfigure(errors=errors)


def _is_flushed(stream: TextIO | None) -> bool:
    """Flush for the last time; where that fails, Python is not to try again."""
    if stream is None:
        return True
    try:
        stream.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return False
    return True


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 ok, 1 error, 2 usage, 3 budget reached, 130 stopped."""
    # numpy's library of dense algebra is hardly used, and would start by spinning its threads.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with _streams():
        try:
            with _stoppable():
                code = _run(arguments)
        except KeyboardInterrupt:  # it came while we told of something else
            code = _stopped()
        if not _is_flushed(sys.stdout):
            code = code or EXIT_ERROR
    _is_flushed(sys.stderr)
    sys.exit(code)


def _run(arguments: list[str] | None) -> int:
    """Run a command, and end the other processes of it if it fails; return the exit code."""
    code = _attempt(arguments)
    for comm in _ABORT if code else ():
        comm.abort(code)
    return code


def _attempt(arguments: list[str] | None) -> int:
    try:
        code = cli.main(arguments, prog_name="sbm", standalone_mode=False)
    except SystemExit as end:
        code = end.code
    except (KeyboardInterrupt, click.exceptions.Abort):
        code = _stopped()
    except click.ClickException as error:
        _wait_for_first()
        error.show(sys.stderr)
        code = EXIT_USAGE
    except SettingsError as error:
        code = _fail(str(error), EXIT_USAGE)
    except SbmError as error:
        code = _fail(str(error))
    except MemoryError:
        code = _fail("the machine ran out of memory; lower --mem")
    except BrokenPipeError:  # whoever read our output has gone
        code = EXIT_ERROR
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        advice = "see that it is there, that you may use it and that the disk is sound"
        code = _fail(f"{where}{error.strerror or error}; {advice}")
    return code if isinstance(code, int) else 0


def _wait_for_first() -> int:
    """Return the number of this process, 0 at once and another one later.

    What all processes have to say process 0 says first, which ends the others meanwhile.
    """
    from sbm.distributed.comm import launched_size

    if not _ABORT and launched_size() > 1 and "mpi4py" in sys.modules:
        with contextlib.suppress(SbmError):  # it failed before it met the others
            _meet(Settings())
    for comm in _ABORT:
        if comm.rank > 0:
            time.sleep(_LATER)
        return comm.rank
    return 0


def _fail(sentence: str, code: int = EXIT_ERROR) -> int:
    rank = _wait_for_first()
    if rank > 0:
        sentence = f"process {rank}: {sentence}"
    _complain("sbm: " + sentence.replace("\n", "\\n"))  # of a name
    return code


def _stopped() -> int:
    if _wait_for_first() > 0:
        return EXIT_INTERRUPTED
    _complain(
        "sbm: stopped; nothing half-written was left, the same command goes on, or starts again"
    )
    return EXIT_INTERRUPTED
