"""Stream: learn a model from text that is read once, as it arrives (SBM 2011, section 4).

While a block is learned, text is parsed and rows are collected into the next block. Each block is
predicted before it is learned (progressive validation). No store is written. Checkpoints (W, cache,
alphas, rows read but not learned) are written from time to time and at the end.

The numbers of rows, features and classes are unknown in advance, so the memory plan has room for
more than was seen. If the next row does not fit, the stream writes a checkpoint, makes a larger
plan, and resumes from the checkpoint.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sbm.dataset.places import as_path
from sbm.dataset.sources import refuse_skipped, table_notes
from sbm.engine.kernels import NAMES, prepare
from sbm.engine.machine import return_freed_memory
from sbm.engine.progress import Progress
from sbm.errors import DataError, MemoryPlanError, SettingsError, StoreError
from sbm.inputs.formats import LIBSVM, open_inputs
from sbm.inputs.options import InputOptions
from sbm.inputs.text import expand_inputs
from sbm.inputs.urls import remote_terms
from sbm.models.model import Model, check_output
from sbm.programs.streaming.options import (
    StreamOptions,
    choose_format,
    open_stream,
    refuse_packed,
)
from sbm.programs.streaming.state import Stream, rows_in_front
from sbm.settings import Settings
from sbm.store.run import run_folder


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
        Files or globs, plain or .gz, .bz2, .xz, .zst; ``-`` is standard input. When resuming, the
        default is the previous inputs.
    model : str or Path
        Model to write. The state to resume from is in ``MODEL.run/`` next to it.
    settings : sbm.Settings or dict, optional
        Loss, cost, memory, rounds, cache. When resuming, the default is the previous settings; only
        ``mem`` and ``threads`` may change.
    options : StreamOptions or dict, optional
        ``classes``, ``new_labels``, ``format``, ``hash_bits``, ``quadratic`` (pairs with commas),
        ``reading`` (keywords of `sbm.ReadOptions` for tables),
        ``dtype``, ``on_error``, ``checkpoint_every``, ``follow``, ``idle_timeout``, as the options
        of ``sbm stream``. When resuming, all but ``new_labels``, ``follow`` and ``idle_timeout``
        default to the previous ones.
    resume : bool
        Resume the stream that made this model.
    is_stopped : callable
        Called repeatedly; if true, the stream finishes the block, writes a checkpoint and ends.
    progress : Progress, optional
        Receives the bytes read, and the progressive loss each time the rows have doubled.

    Returns
    -------
    model : Model
        The model as written. It has no certificate, because each row is seen only once.
    report : dict
        ``rows``, ``blocks``, ``features``, ``labels``, ``loss`` and ``accuracy`` (progressive),
        ``dual`` (a lower bound of the optimum of all rows, or None), ``visits``,
        ``polish_visits`` (among these), ``updates``, ``visits_cut_short`` (as in training),
        ``seconds``, ``text_bytes``, ``skipped``, ``problems``, ``open`` (inputs whose last line has
        no line end), ``stopped``, ``pending`` (rows read but not learned), ``peak_rss_bytes``,
        ``model``.

    Raises
    ------
    DataError
        The input has no rows, or a malformed line. All rows before it are learned and saved.
    SettingsError
        An unknown setting, a value out of range, or a setting that does not apply to streams.
    MemoryPlanError
        ``settings.mem`` is too small. All rows so far are saved.
    StoreError
        There is no stream to resume, or a file cannot be written.
    KeyboardInterrupt
        `is_stopped` returned true before the first row.
    """
    return_freed_memory()
    progress = Progress.of(progress)
    names = [inputs] if isinstance(inputs, str | Path) else inputs
    if names is None and not resume:
        raise SettingsError(
            "no input; name files of LIBSVM or VW text, globs, or - for standard input"
        )
    for given in names or ():
        if not isinstance(given, str | Path):
            raise SettingsError(
                f"an input is a {type(given).__name__}; sbm.stream reads text files"
            )
    if model is None:
        raise SettingsError("no model name; give one with -o")
    path = as_path(model)
    check_output(path)
    asked = Settings.of(settings)
    with contextlib.ExitStack() as until:
        until.enter_context(remote_terms(asked.remote_timeout, progress.stage, is_stopped))
        sources = None if names is None else expand_inputs(names)
        if not resume:
            chosen = StreamOptions.of(options)
            options = replace(chosen, format=choose_format(sources or [], chosen.format))
        opened = until.enter_context(open_stream(path, settings, options, resume))
        if sources is None:
            sources = expand_inputs(opened.record["inputs"])
        kind = choose_format(sources, opened.options.format)
        if opened.options.is_table:
            named = [source.name for source in sources]
            sources = open_inputs(named, InputOptions(kind))
        elif kind != LIBSVM:
            prepare("reading names", NAMES, {}, progress)
        refuse_packed(sources, opened.options)
        try:
            one = Stream(path, opened, sources, progress, is_stopped)
        except (KeyError, TypeError) as error:
            if not opened.record:
                raise
            raise StoreError(
                f"cannot resume {run_folder(path)} ({error}); leave out --resume to start over"
            ) from error
        try:
            one.learn_all()
            return _finish(one)
        except MemoryError as error:
            if isinstance(error, MemoryPlanError):
                raise
            raise one.out_of_memory() from error
        finally:
            one.close()


def _finish(one: Stream) -> tuple[Model, dict[str, Any]]:
    """Write a checkpoint, polish, write the model and return the report.

    The checkpoint is written before polishing, so that a resumed stream equals one that never
    ended.

    Raises
    ------
    DataError
        The input is malformed; all rows before the error are learned and saved.
    """
    one.progress.finish()
    one.commit()
    if not one.is_cut_short:
        one.polish()
    if not one.lacks_classes:
        one.make_model().save(one.path)
    if one.arrivals.error is not None:
        raise DataError(
            f"{one.arrivals.error}; {rows_in_front(one.reached.needs.rows)} learned and saved in "
            f"{one.path}. Fix the input and use --resume"
        )
    if one.lacks_classes:
        raise DataError(
            f"all {one.reached.needs.rows:,} rows have one label, but {one.opened.settings.loss} "
            "needs at least two classes. The rows are saved; use --resume to add more"
        )
    try:
        refuse_skipped(one.arrivals.sources)
    except DataError as error:
        raise DataError(f"{error}. The model of the other rows is in {one.path}") from None
    for note in table_notes(one.arrivals.sources):
        one.progress.stage(f"warning: {note}")
    if changed := next((s.changed for s in one.arrivals.sources if s.changed), ""):
        one.progress.stage(changed)
    one.progressive.tell()
    model = one.make_model()
    report = one.report(model)
    one.opened.run.log({"event": "end", **report})
    return model, report
