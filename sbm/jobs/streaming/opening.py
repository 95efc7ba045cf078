"""The run of a stream, opened anew or where it ended; and what could not be read as one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt

from sbm.errors import SettingsError, StoreError
from sbm.jobs.streaming.options import FREE, KEPT, StreamOptions, check_settings, merge
from sbm.jobs.training.resume import is_finished
from sbm.jobs.training.setup import run_folder
from sbm.settings import Settings
from sbm.store.formats import FORMATS, LIBSVM, format_of
from sbm.store.run import RECORD, Run
from sbm.store.text import Source, is_packed

__all__ = ["Opened", "open_stream", "refuse_other_formats", "refuse_packed"]


def refuse_other_formats(sources: Sequence[Source]) -> None:
    """Notice files that are no LIBSVM text, which alone can be gone on with in its middle."""
    for source in sources:
        if (found := format_of(source.name)) is not FORMATS[LIBSVM]:
            raise SettingsError(
                f"{source.name} is {found.name} by its name, and sbm stream reads LIBSVM text; "
                "make a store of it with sbm split, and train on that"
            )


def refuse_packed(sources: Sequence[Source], options: StreamOptions) -> None:
    """Notice a file that cannot be followed."""
    if options.follow and sources and is_packed(sources[-1].name):
        raise SettingsError(
            f"{sources[-1].name} is compressed, and such a file cannot be followed; leave out "
            "--follow, or decompress it on its way (zcat, zstdcat) and give - for the pipe"
        )


def _refuse_training(folder: Path) -> None:
    """Notice a training that has not come to its end, where the run of a stream would be."""
    if not (folder / RECORD).is_file():
        return
    with contextlib.suppress(StoreError):  # what cannot be read cannot be gone on with either
        record = Run.read(folder)
        if record.get("kind") == "stream" or is_finished(record):
            return
        raise SettingsError(
            f"{folder} holds an unfinished training, which would be lost; give the model another "
            "name with -o, or remove that folder"
        )


@dataclass
class Opened:
    """The run of a stream, and what is known at its start.

    Attributes
    ----------
    run : Run
    settings : Settings
    options : StreamOptions
    record : dict
        Its last commit, if there is one.
    state : dict of str to ndarray
        The arrays of that.
    """

    run: Run
    settings: Settings
    options: StreamOptions
    record: dict[str, Any] = field(default_factory=dict)
    state: dict[str, npt.NDArray[Any]] = field(default_factory=dict)


@contextmanager
def open_stream(
    path: Path,
    settings: Settings | Mapping[str, Any] | None,
    options: StreamOptions | Mapping[str, Any] | None,
    resume: bool,
) -> Iterator[Opened]:
    """Open the run of a stream, anew or where it ended.

    Raises
    ------
    SettingsError
        Settings or options that mean nothing here, or are not those it began with; or there is an
        unfinished training.
    StoreError
        There is nothing to go on from.
    """
    folder = run_folder(path)
    if resume:
        chosen, checked = _as_before(path, settings, options)
        with Run.take_up(folder, []) as (run, record):
            yield Opened(run, checked, chosen, record, run.read_state())
        return
    chosen = StreamOptions.of(options)
    checked = check_settings(Settings.of(settings), chosen)
    _refuse_training(folder)
    with Run.create(folder, []) as run:
        yield Opened(run, checked, chosen)


def _as_before(
    path: Path,
    settings: Settings | Mapping[str, Any] | None,
    options: StreamOptions | Mapping[str, Any] | None,
) -> tuple[StreamOptions, Settings]:
    """Return what a stream began with, and of that what is given now and may change."""
    folder = run_folder(path)
    if not (folder / RECORD).is_file():
        raise StoreError(
            f"{path} is no stream to go on with (there is no {folder / RECORD}); name the "
            "model of one, or begin without --resume"
        )
    record = Run.read(folder)
    if record.get("kind") != "stream":
        raise StoreError(
            f"{folder} is of sbm train, not of a stream; sbm train --warm-start goes on with it"
        )
    given = dict(options) if isinstance(options, Mapping) else asdict(options) if options else {}
    if given.get("classes") is not None:
        given["classes"] = [float(label) for label in given["classes"]]
    chosen = StreamOptions.of(merge(record["options"], given, KEPT))
    values = settings.to_dict() if isinstance(settings, Settings) else dict(settings or {})
    kept = [name for name in record["settings"] if name not in FREE]
    asked = check_settings(Settings.from_dict({**record["settings"], **values}), chosen).to_dict()
    return chosen, Settings.from_dict(merge(record["settings"], asked, kept))
