"""Settings and options of a stream, and which of them may change on resume."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, field, fields, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from sbm.dataset.options import ReadOptions
from sbm.engine.memory import BASE_FRAC
from sbm.errors import SettingsError, StoreError
from sbm.inputs.formats import FORMATS, LIBSVM, format_of, with_hash_bits
from sbm.inputs.nametable import LabelWords
from sbm.inputs.options import InputOptions
from sbm.inputs.packed import is_packed
from sbm.inputs.text import Source
from sbm.plain import dataclass
from sbm.settings import Settings, nearest, refuse_unknown
from sbm.store.run import RECORD, Run, is_finished, run_folder
from sbm.units import format_label, format_number, parse_duration, shorten, to_whole


def choose_format(sources: Sequence[Source], chosen: str | None) -> str:
    """Return the format of all files: the chosen one, or that of their names.

    Raises
    ------
    SettingsError
        They have several, or one that cannot be resumed midway: only lines of text can.
    """
    kinds = {format_of(s.name).name: s.name for s in sources if s.name != "-"}
    others = [name for name in kinds if name not in (chosen or name, LIBSVM)]
    if others:
        raise SettingsError(f"{kinds[others[0]]} is {others[0]} by its name, not {chosen}")
    if chosen is None and len(kinds) > 1:
        first, second, *_ = kinds
        raise SettingsError(
            f"{kinds[first]} is {first} by its name, and {kinds[second]} {second}; stream files of "
            "one format, or give --format"
        )
    name = chosen or next(iter(kinds), LIBSVM)
    if FORMATS[name].parser is None and FORMATS[name].opener is None:
        place = kinds.get(name, "the input")
        raise SettingsError(
            f"{place} is {name}, which sbm stream does not read; use sbm split and sbm train"
        )
    return name


def refuse_packed(sources: Sequence[Source], options: StreamOptions) -> None:
    """Check that the last file is text that can be followed, if it is to be."""
    if options.follow and options.is_table:
        raise SettingsError(
            f"{sources[-1].name if sources else 'the input'} is a table, which cannot be followed; "
            "leave out --follow, or pipe its rows and read them as -"
        )
    if options.follow and sources and is_packed(sources[-1].name):
        raise SettingsError(
            f"{sources[-1].name} is compressed and cannot be followed; leave out "
            "--follow, or pipe it through zcat or zstdcat and read it as -"
        )


def _refuse_training(folder: Path) -> None:
    """Check that the stream's run would not replace an unfinished training."""
    if not (folder / RECORD).is_file():
        return
    try:
        record = Run.read(folder)
    except StoreError:  # it cannot be resumed anyway
        return
    if record.get("kind") == "stream" or is_finished(record):
        return
    Run.require_free(folder)
    raise SettingsError(
        f"{folder} holds an unfinished training that would be lost; write the model elsewhere "
        "with -o, or remove that folder"
    )


@dataclass
class Opened:
    """The open run of a stream."""

    run: Run
    settings: Settings
    options: StreamOptions
    # the last checkpoint; empty for a new stream
    record: dict[str, Any] = field(default_factory=dict)
    # the arrays of the last checkpoint
    state: dict[str, npt.NDArray[Any]] = field(default_factory=dict)


@contextmanager
def open_stream(
    path: Path,
    settings: Settings | Mapping[str, Any] | None,
    options: StreamOptions | Mapping[str, Any] | None,
    resume: bool,
) -> Iterator[Opened]:
    """Open the run of a stream, new or at its last checkpoint.

    Raises
    ------
    SettingsError
        A setting or option does not apply to streams, or has changed since the start; or there is
        an unfinished training.
    StoreError
        There is no stream to resume.
    """
    folder = run_folder(path)
    if resume:
        chosen, checked = _as_before(path, settings, options)
        with Run.resume(folder, []) as (run, record):
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
    """Return the options and settings of the last checkpoint, with allowed changes applied."""
    folder = run_folder(path)
    if not (folder / RECORD).is_file():
        raise StoreError(
            f"no stream to resume for {path} ({folder / RECORD} not found); name the model of a "
            "stream, or leave out --resume"
        )
    record = Run.read(folder)
    if record.get("kind") != "stream":
        raise StoreError(
            f"{folder} is a run of sbm train, not of sbm stream; use sbm train --warm-start"
        )
    given = dict(options) if isinstance(options, Mapping) else asdict(options) if options else {}
    if given.get("classes") is not None:
        given["classes"] = [float(label) for label in given["classes"]]
    chosen = StreamOptions.of(merge(record["options"], given, KEPT))
    values = settings.to_dict() if isinstance(settings, Settings) else dict(settings or {})
    kept = [name for name in record["settings"] if name not in FREE]
    asked = check_settings(Settings.from_dict({**record["settings"], **values}), chosen).to_dict()
    return chosen, Settings.from_dict(merge(record["settings"], asked, kept))


ROUNDS = 3  # as in the paper's SBM-in-3


@dataclass(frozen=True)
class StreamOptions:
    """Options of a stream in addition to `Settings`."""

    # all labels that may occur. Default: labels are added as they occur.
    classes: tuple[float, ...] | None = None
    # whether files may have labels that files before do not have, although these have two
    new_labels: bool = False
    format: str | None = None  # of all files, libsvm or vw. Default: from their names
    hash_bits: int | None = None  # number of bits of hashed feature names
    # pairs of first letters of namespaces of VW text whose features are multiplied, with commas
    quadratic: str = ""
    # how tables are read: keywords of `sbm.ReadOptions`
    reading: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float32"  # one of "float32", "float64"; type of values other than 1
    on_error: str = "fail"  # one of "fail", "skip"; what to do with a malformed line
    # seconds (``60s``, ``5m``) or rows (``100000rows``) between checkpoints
    checkpoint_every: str | float = "60s"
    follow: bool = False  # wait for more text at the end of the last file
    idle_timeout: float | str | None = None  # end the stream after this many seconds without text

    def __post_init__(self) -> None:
        for name, known in (
            ("dtype", ("float32", "float64")), ("on_error", ("fail", "skip")),
        ):  # fmt: skip
            refuse_unknown(name, str(getattr(self, name)), known)
        if self.format is not None:
            refuse_unknown("format", self.format, FORMATS)
        if self.reading and self.format is not None and not self.is_table:
            raise SettingsError(
                f"{min(self.reading)} applies to tables, and the input is {self.format}; leave it "
                "out"
            )
        if self.format is not None and FORMATS[self.format].has_names and not self.is_table:
            bits = with_hash_bits(InputOptions(hash_bits=self.hash_bits)).hash_bits
            object.__setattr__(self, "hash_bits", bits)
        elif self.format is not None and self.quadratic:
            raise SettingsError(f"quadratic does not apply to {self.format} text; leave it out")
        elif self.format is not None and self.hash_bits is not None:
            raise SettingsError(f"hash_bits does not apply to {self.format} text; leave it out")
        for pair in self.pairs:
            if len(pair.encode()) != 2:
                raise SettingsError(f"quadratic is {pair!r}; expected two letters, as in ab")
        if self.idle_timeout is not None:
            object.__setattr__(self, "idle_timeout", parse_duration(self.idle_timeout))
        self.commit_interval  # noqa: B018  raises if invalid
        if self.classes is not None:
            object.__setattr__(self, "classes", tuple(float(label) for label in self.classes))
            if len(self.classes) < 2 or len(set(self.classes)) < len(self.classes):
                shown = ",".join(map(format_number, self.classes))
                raise SettingsError(f"classes is {shown}; expected two or more distinct labels")

    @property
    def is_table(self) -> bool:
        """Whether rows are those of tables."""
        return self.format is not None and FORMATS[self.format].opener is not None

    def input_options(self, targets: bool) -> InputOptions:
        """Return how the inputs are read; labels may be `targets`."""
        if not self.is_table:
            return InputOptions(hash_bits=self.hash_bits, quadratic=self.pairs, targets=targets)
        advice = "use sbm split and sbm train for words"
        words = LabelWords({}, "labels of a stream", advice)
        options = ReadOptions(**self.reading).input_options(targets=targets)
        return replace(options, format=self.format, words=words)

    @property
    def pairs(self) -> tuple[str, ...]:
        """The pairs of `quadratic`."""
        return tuple(self.quadratic.split(",")) if self.quadratic else ()

    @classmethod
    def of(cls, options: StreamOptions | Mapping[str, Any] | None) -> StreamOptions:
        """Return `options` as `StreamOptions`; None gives the defaults.

        Raises
        ------
        SettingsError
            An unknown name or value.
        """
        if isinstance(options, StreamOptions):
            return options
        known, values = [f.name for f in fields(cls)], dict(options or {})
        for name in values:
            if name not in known:
                raise SettingsError(f"options: unknown key {name!r}{nearest(name, known)}")
        return cls(**values)

    def kept(self) -> dict[str, Any]:
        """Return the options to store in checkpoints, as JSON."""
        values = {name: getattr(self, name) for name in (*KEPT, *_USUAL)}
        classes = values["classes"]
        return {**values, "classes": None if classes is None else list(classes)}

    @property
    def commit_interval(self) -> tuple[float, int]:
        """Seconds and rows between checkpoints; 0 means no limit."""
        text = str(self.checkpoint_every).strip().lower()
        rows = text.removesuffix("s").removesuffix("row").strip()
        if text.endswith(("row", "rows")):
            if re.fullmatch(r"[0-9]+", rows) and 0 < to_whole(rows) < 2**63:
                return 0.0, int(rows)
            raise SettingsError(
                f"checkpoint_every is {shorten(repr(self.checkpoint_every))}; write it as 60s or "
                "100000rows"
            )
        return parse_duration(self.checkpoint_every), 0


# On resume, only the settings in FREE may change, and the options in KEPT may not. The options in
# _USUAL keep their value unless they are given again.
FREE = ("mem", "threads", "remote_timeout")
KEPT = ("classes", "dtype", "format", "hash_bits", "quadratic", "reading")
_USUAL = ("checkpoint_every", "on_error")


def merge(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    kept: Iterable[str],
    began: str = "the stream was started",
    advice: str = "leave it out, or start over without --resume",
) -> dict[str, Any]:
    """Return the previous values, updated by the current ones.

    Raises `SettingsError` if a value in `kept` has changed.
    """
    for name in kept:
        if name in now and now[name] != before[name]:
            raise SettingsError(f"{name} is {now[name]}, but {began} with {before[name]}; {advice}")
    return {**before, **now}


def check_settings(settings: Settings, options: StreamOptions) -> Settings:
    """Reject settings that do not apply to streams, and fill in automatic ones."""
    settings.refuse_foreign("stream")
    settings.refuse_conflicts()
    task = settings.problem
    if options.classes is not None and task != "classification":
        raise SettingsError(f"classes does not apply to {settings.loss}, which has no classes")
    if isinstance(settings.class_weight, str):
        raise SettingsError(
            "class_weight balanced needs the row count of each class, which is unknown in a "
            "stream; give numbers"
        )
    for label in settings.class_weight:
        if isinstance(label, str):
            raise SettingsError(
                f"class_weight names label {label}, but labels of a stream are numbers"
            )
        if options.classes is not None and label not in options.classes:
            raise SettingsError(
                f"class_weight names label {format_label(label)}, which is not in --classes"
            )
    if isinstance(settings.rounds, str) and settings.rounds != "auto":
        raise SettingsError(f"rounds is {settings.rounds}; a stream takes one number")
    rounds = ROUNDS if settings.rounds == "auto" else settings.rounds
    frac = BASE_FRAC if settings.cache_frac == "auto" else settings.cache_frac
    return replace(settings, rounds=rounds, cache_frac=frac, solver="dual")
