"""Commands that train on stores: train, tune, plan."""

import sys
from pathlib import Path
from typing import Any

import click

from sbm.cli import show
from sbm.cli.command import GOES_ON, LiblinearCommand, Terminal, shared
from sbm.cli.options import (
    COST,
    DISTRIBUTED,
    FILE,
    LIBLINEAR,
    NEW_FILE,
    SETTINGS,
    TEST,
    read_settings,
    some,
    without,
)
from sbm.cli.output import complain
from sbm.cli.processes import launch as become_launcher
from sbm.cli.processes import meet
from sbm.cli.stopping import stop_signals
from sbm.errors import SettingsError
from sbm.settings import Settings, parse_grid

__all__ = ["plan", "train", "tune"]

_BUDGET = 3  # exit code
_LAST = ""  # --warm-start without a name
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
@COST
@some(SETTINGS.values())
@some(DISTRIBUTED.values())
@some(LIBLINEAR.values())
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
    from sbm.jobs.judging.batches import check_input
    from sbm.jobs.predict import predict as predict_job
    from sbm.jobs.train import train as job

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
    return store, True if warm_start == _LAST else warm_start


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
@some(SETTINGS.values())
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
    from sbm.jobs.tune import tune as job

    _, report = job(
        store, model, settings, Cs=values, folds=folds, metric=metric, picture=picture,
        resume=False if fresh else None, progress=terminal,
    )  # fmt: skip
    terminal.answer(report, show.tune)
    _end(report["train"], settings)


@click.command(cls=LiblinearCommand, example="sbm plan big.sbm -C 0.1 --mem 2GB")
@_STORE
@COST
@some(without(SETTINGS, "checkpoint_every", "weights", "class_blocks", "time_limit"))
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
    from sbm.jobs.plan import plan as job

    settings = read_settings(config, options)
    terminal.answer(job(store, settings, seconds=seconds, progress=terminal), show.plan)
