"""What a stream is told, and what of it may change when it goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from sbm.errors import SettingsError
from sbm.jobs.machine.memory import BASE_FRAC
from sbm.settings import Settings, format_number, nearest, parse_duration

__all__ = ["FREE", "KEPT", "StreamOptions", "check_settings", "merge"]

ROUNDS = 3  # of the paper's SBM-in-3


@dataclass(frozen=True)
class StreamOptions:
    """What a stream is told beside `Settings`.

    Attributes
    ----------
    classes : tuple of float, optional
        All labels there may be; default: they are learned as they come.
    dtype : {"float32", "float64"}
        Type of values other than 1.
    on_error : {"fail", "skip"}
        What to do with a line that is not LIBSVM text.
    checkpoint_every : str or float
        Seconds (``60s``, ``5m``), or rows (``100000rows``), between two commits.
    follow : bool
        Wait for more at the end of the last file.
    idle_timeout : float or str, optional
        Seconds without text that are the end.
    """

    classes: tuple[float, ...] | None = None
    dtype: str = "float32"
    on_error: str = "fail"
    checkpoint_every: str | float = "60s"
    follow: bool = False
    idle_timeout: float | str | None = None

    def __post_init__(self) -> None:
        for name, known in (
            ("dtype", ("float32", "float64")), ("on_error", ("fail", "skip")),
        ):  # fmt: skip
            value = getattr(self, name)
            if value not in known:
                raise SettingsError(
                    f"unknown {name.replace('_', '-')} {value!r}, known are {', '.join(known)}"
                    f"{nearest(str(value), known)}"
                )
        if self.idle_timeout is not None:
            object.__setattr__(self, "idle_timeout", parse_duration(self.idle_timeout))
        self.commit_interval  # noqa: B018  refuses what is no interval
        if self.classes is not None:
            object.__setattr__(self, "classes", tuple(float(label) for label in self.classes))
            self._check_classes(self.classes)

    @classmethod
    def of(cls, options: StreamOptions | Mapping[str, Any] | None) -> StreamOptions:
        """Return options as they are, a mapping of names and values as options, None as defaults.

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
        """Those that a stream has when it goes on, as JSON holds them."""
        values = {name: getattr(self, name) for name in (*KEPT, *_USUAL)}
        classes = values["classes"]
        return {**values, "classes": None if classes is None else list(classes)}

    @staticmethod
    def _check_classes(classes: Sequence[float]) -> None:
        if len(set(classes)) < len(classes) or len(classes) < 2:
            shown = ",".join(map(format_number, classes))
            raise SettingsError(f"classes is {shown}; two or more different labels are expected")

    @property
    def commit_interval(self) -> tuple[float, int]:
        """Seconds and rows between two commits; 0 is never for that reason."""
        text = str(self.checkpoint_every).strip().lower()
        rows = text.removesuffix("s").removesuffix("row").strip()
        if text.endswith(("row", "rows")):
            if rows.isdecimal() and int(rows) > 0:
                return 0.0, int(rows)
            raise SettingsError(
                f"checkpoint-every is {self.checkpoint_every!r}; write it as 60s or 100000rows"
            )
        return parse_duration(self.checkpoint_every), 0


# Settings of trainings that have no meaning for a stream.
_FOREIGN = (
    "tol", "max_passes", "time_limit", "screen", "weights", "warm_start", "calibrate",
    "class_blocks",
)  # fmt: skip
# A stream that goes on keeps all its settings but these, and these of its options; the last ones
# are as before unless they are given again.
FREE = ("mem", "threads")
KEPT = ("classes", "dtype")
_USUAL = ("checkpoint_every", "on_error")


def merge(before: Mapping[str, Any], now: Mapping[str, Any], kept: Sequence[str]) -> dict[str, Any]:
    """Return what was chosen before and now.

    Raises
    ------
    SettingsError
        They differ in what must stay.
    """
    for name in kept:
        if name in now and now[name] != before[name]:
            raise SettingsError(
                f"{name} is {now[name]}, but the stream began with {before[name]} and keeps it; "
                "leave it out, or begin anew without --resume"
            )
    return {**before, **now}


def check_settings(settings: Settings, options: StreamOptions) -> Settings:
    """Refuse what means nothing for a stream; fill in what is chosen automatically."""
    usual = Settings()
    for name in _FOREIGN:
        if getattr(settings, name) != getattr(usual, name):
            raise SettingsError(f"{name} is of no use for a stream, which comes once; leave it out")
    if isinstance(settings.class_weight, str):
        raise SettingsError(
            "class_weight balanced needs the number of rows of each class, which a stream does not "
            "tell ahead; give numbers"
        )
    for label in settings.class_weight:
        if options.classes is not None and label not in options.classes:
            raise SettingsError(
                f"class_weight names label {format_number(label)}, which --classes does not name"
            )
    if isinstance(settings.rounds, str) and settings.rounds != "auto":
        raise SettingsError(f"rounds is {settings.rounds}; a stream takes one number")
    rounds = ROUNDS if settings.rounds == "auto" else settings.rounds
    frac = BASE_FRAC if settings.cache_frac == "auto" else settings.cache_frac
    if settings.policy == "none":
        frac = 0.0
    return replace(settings, rounds=rounds, cache_frac=frac)
