"""Stream: a model of text that is read once, as it comes (SBM 2011, section 4).

Text is parsed and rows gather in a block while the block before it is at work: it is predicted,
which is the progressive validation, and then learned. No store is made. What there is to go on from
(W, cache, alphas, what was read and not learned) is committed now and then, and at the end.

Rows, features and classes are not known ahead, so the memory plan is made for more than was seen.
Where the next row does not fit it, the stream is committed, another plan is made and the stream
goes on from the commit, as it does in another process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sbm.engine.clock import clock
from sbm.engine.machine import return_freed_memory
from sbm.engine.progress import Progress
from sbm.errors import DataError, MemoryPlanError, SettingsError, StoreError
from sbm.inputs.text import expand_inputs
from sbm.models.model import Model, check_output
from sbm.programs.streaming.options import (
    StreamOptions,
    open_stream,
    refuse_other_formats,
    refuse_packed,
)
from sbm.programs.streaming.state import Stream, rows_in_front
from sbm.programs.training.setup import as_path, run_folder
from sbm.settings import Settings

__all__ = ["stream"]


def stream(
    inputs: str | Path | Sequence[str | Path] | None = None,
    model: str | Path | None = None,
    settings: Settings | Mapping[str, Any] | None = None,
    *,
    options: StreamOptions | Mapping[str, Any] | None = None,
    resume: bool = False,
    is_stopped: Callable[[], bool] = lambda: False,
    progress: Progress | None = None,
) -> tuple[Model, dict[str, Any]]:
    """Learn a model from text that is read once.

    Parameters
    ----------
    inputs : str, Path or sequence of these, optional
        Files or globs, plain or .gz, .bz2, .xz, .zst; ``-`` is standard input. To resume, the
        default is those of before.
    model : str or Path
        Where the model goes; what there is to go on from is kept beside it in ``MODEL.run/``.
    settings : sbm.Settings or dict, optional
        Loss, cost, memory, rounds, cache. To resume, the default is those of before; a dict gives
        some of them again, of which only ``mem`` and ``threads`` may be others.
    options : StreamOptions or dict, optional
        ``classes``, ``dtype``, ``on_error``, ``checkpoint_every``, ``follow``, ``idle_timeout``,
        as the options of `sbm stream`. To resume, all but the last two are those of before.
    resume : bool
        Go on with the stream that made this model.
    is_stopped : callable
        Is asked now and then whether to finish the block, commit and end.
    progress : Progress, optional
        Is told the bytes read, and the progressive loss whenever the rows have doubled.

    Returns
    -------
    model : Model
        As written; without a certificate, as a stream is seen once.
    report : dict
        ``rows``, ``blocks``, ``features``, ``labels``, ``loss`` and ``accuracy`` (progressive),
        ``dual`` (a lower bound of the optimum of all rows, or None), ``visits``,
        ``updates``, ``visits_cut_short`` (as in training), ``seconds``, ``text_bytes``,
        ``skipped``, ``problems``, ``open`` (inputs whose last line had no line end), ``stopped``,
        ``pending`` (rows read and not learned), ``peak_rss_bytes``, ``model``.

    Raises
    ------
    DataError
        The input holds no rows, or something that is not LIBSVM text; all rows in front of it are
        learned and kept.
    SettingsError
        A setting that does not exist, is out of range, or means nothing for a stream.
    MemoryPlanError
        ``settings.mem`` is too small; all rows so far are kept.
    StoreError
        There is nothing to go on from, or something cannot be written.
    KeyboardInterrupt
        It was told to stop before there was any row.
    """
    begin = clock()
    return_freed_memory()
    progress = progress or Progress()
    names = [inputs] if isinstance(inputs, str | Path) else inputs
    if names is None and not resume:
        raise SettingsError("no input; give LIBSVM text files, globs, or - for a pipe")
    if model is None:
        raise SettingsError("name the model with -o")
    path = as_path(model)
    check_output(path)
    sources = None if names is None else expand_inputs(names)
    refuse_other_formats(sources or [])
    with open_stream(path, settings, options, resume) as opened:
        if sources is None:
            sources = expand_inputs(opened.record["inputs"])
        refuse_packed(sources, opened.options)
        try:
            one = Stream(path, opened, sources, progress, is_stopped, begin)
        except (KeyError, TypeError) as error:
            if not opened.record:
                raise
            raise StoreError(
                f"{run_folder(path)} cannot be gone on with ({error}); begin anew without --resume"
            ) from error
        try:
            _learn_all(one)
            return _finish(one)
        except MemoryError as error:
            if isinstance(error, MemoryPlanError):
                raise
            raise one.out_of_memory() from error
        finally:
            one.close()


def _learn_all(one: Stream) -> None:
    """Learn until there are no more rows."""
    needs = one.peek()
    if one.learner is None:
        if needs is None and one.is_stopped():
            raise KeyboardInterrupt  # there is nothing to keep
        if needs is None:
            raise one.arrivals.error or DataError(
                "the input holds no rows; nothing was learned and no model written"
            )
        one.make_learner(one.plan_for(needs))
    while not _learn_blocks(one):
        one.go_on_larger()


def _learn_blocks(one: Stream) -> bool:
    """Learn the blocks that fit the plan; return whether these were all."""
    for block in one.blocks():
        if block.is_cut:
            one.is_cut_short = True
            one.keep_unlearned(block.rows)
            return True
        # Where it has no rows there may be the begin of a line behind those before it.
        one.seen, one.position, one.pending = block.needs, block.position, block.pending
        if len(block.rows):
            one.learn(block)
        if block.is_last:
            return not one.arrivals.is_outgrown
        if one.is_above_bound():
            one.use_less()
            # What is being gathered is the last block.
            one.arrivals.is_outgrown = not one.is_least
        if one.is_due(block.needs.rows):
            one.save()
    return True


def _finish(one: Stream) -> tuple[Model, dict[str, Any]]:
    """Commit, polish, write the model and report.

    What is committed is not polished, so that a stream that goes on is as one that never ended.

    Raises
    ------
    DataError
        Something was refused; what came before is learned and kept.
    """
    one.progress.finish()
    one.commit()
    if not one.is_cut_short:
        one.polish()
    if not one.lacks_classes:
        one.make_model().save(one.path)
    if one.arrivals.error is not None:
        raise DataError(
            f"{one.arrivals.error}; {rows_in_front(one.seen.rows)} learned and kept in "
            f"{one.path}, mend the text and go on with --resume"
        )
    if one.lacks_classes:
        raise DataError(
            f"all {one.seen.rows:,} rows have one label, {one.loss.name} needs at least "
            "two classes; they are kept, go on with --resume"
        )
    one.progressive.tell()
    model = one.make_model()
    report = one.report(model)
    one.run.log({"event": "end", **report})
    return model, report
