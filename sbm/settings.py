"""Settings of a training, and the small languages they are written in (sizes, durations, TOML)."""

import dataclasses
import difflib
import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sbm.errors import SettingsError

__all__ = ["Settings", "format_number", "format_size", "nearest", "parse_duration", "parse_size"]

SCHEDULES = ("sample", "pairs")
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{unit}I": 2 ** (10 * k) for k, unit in enumerate("KMGT", 1)}
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_size(text: str | int) -> int:
    """Turn ``2GB``, ``300 MiB``, ``1.5g`` or a number of bytes into bytes.

    K, M, G, T are powers of 1000, Ki, Mi, Gi, Ti powers of 1024.

    Raises
    ------
    SettingsError
        Anything else.
    """
    match = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT]?I?)B?\s*", str(text).upper())
    try:
        if match is None or match[2] == "I":
            raise ValueError
        size = int(float(match[1]) * _UNITS[match[2]])
        if size <= 0:
            raise ValueError
    except (ValueError, OverflowError):
        raise SettingsError(f"{text!r} is not a size; write it as 2GB, 300MB or 1.5GiB") from None
    return size


def format_size(size: float) -> str:
    """Write bytes as ``1.5 GB``; powers of 1000, three digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 999.5:
            return f"{size:.0f} {unit}" if size >= 100 or unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.4g} TB"


def format_number(number: float) -> str:
    """Write a number so that it reads back the same: ``1`` for 1.0, else the shortest decimal."""
    if isinstance(number, int):
        text = str(number) if abs(number) < 10**40 else f"a number of {len(str(number))} digits"
    elif number.is_integer() and abs(number) < 1e15:
        text = str(int(number))
    else:
        text = repr(number)
    return text


def _to_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


def parse_duration(text: str | float) -> float:
    """Turn ``90``, ``90s``, ``5m``, ``1.5h`` or ``1d`` into seconds.

    Raises
    ------
    SettingsError
        Anything else.
    """
    if isinstance(text, int | float) and not isinstance(text, bool) and 0 <= text < math.inf:
        return float(text)
    match = re.fullmatch(r"\s*([0-9.]+)\s*([smhd]?)\s*", str(text).lower())
    try:
        if match is None:
            raise ValueError
        return float(match[1]) * _SECONDS[match[2]]
    except (ValueError, OverflowError):
        raise SettingsError(f"{text!r} is not a time; write it as 90s, 5m or 1.5h") from None


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the known word nearest to a mistyped one, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""


@dataclass(frozen=True)
class Settings:
    """Everything that decides which model a store gives, and the budgets of the training.

    The names are the long options of ``sbm train`` with underscores, and the keys of its TOML file.

    Parameters
    ----------
    loss : str
        A key of ``sbm.solver.losses.LOSSES``.
    C : float
        Cost of a row's loss against ½|w|².
    cache_frac : float or "auto"
        Share of the working set (cache and block together) that is cache, in [0, 1); ``auto``
        chooses it pass by pass, from how many alphas are free.
    mem : int or str
        Bound of the process's peak resident memory; bytes, or text such as ``"2GB"``.
    rounds : int or str
        Most sweeps over the working set before the next block is loaded; ``"2,2,5"`` gives a number
        for each pass, the last one for all that follow; ``"auto"`` chooses it by the number of
        blocks, and more where they load slowly.
    tol : float
        Relative duality gap at which training ends.
    max_passes : int
        Most passes over the store.
    time_limit : float, str or None
        Most seconds, looked at after each block.
    policy : str
        How the cache is chosen, a key of ``sbm.solver.cache.POLICIES``.
    screen : bool
        Leave out rows that were at rest at the weights of one step ago (but every 8th pass).
    bias : float
        Value of an extra feature in every row; 0 for none.
    class_weight : mapping of float to float
        Label to factor of C.
    seed : int
        Of every random choice.
    schedule : {"sample", "pairs"}
        Of ``weston_watkins``: visit rows with all their classes, or pairs of classes in parallel.
    caches : int
        Of one-vs-rest: groups of classes with a cache and a thread of their own.
    threads : int, optional
        For reading, decoding and screening beside the solver; no result depends on it. Default: the
        cores this process may use.

    Raises
    ------
    SettingsError
        A value outside its range.
    """

    loss: str = "hinge"
    C: float = 1.0
    cache_frac: float | str = 0.5
    mem: int | str = 2_000_000_000
    rounds: int | str = "auto"
    tol: float = 1e-3
    max_passes: int = 50
    time_limit: float | str | None = None
    policy: str = "gradient"
    screen: bool = True
    bias: float = 0.0
    class_weight: Mapping[float, float] = field(default_factory=dict)
    seed: int = 0
    schedule: str = "sample"
    caches: int = 1
    threads: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "mem", parse_size(self.mem))
        if self.time_limit is not None:
            object.__setattr__(self, "time_limit", parse_duration(self.time_limit))
        weights = {_to_float(k): _to_float(v) for k, v in self.class_weight.items()}
        object.__setattr__(self, "class_weight", weights)
        for name in ("loss", "policy", "schedule"):
            if not isinstance(getattr(self, name), str):
                raise SettingsError(f"{name} is {getattr(self, name)!r}; a name is expected")
        if not isinstance(self.screen, bool):
            raise SettingsError(f"screen is {self.screen!r}; true or false is expected")
        object.__setattr__(self, "rounds", _read_rounds(self.rounds))
        object.__setattr__(self, "cache_frac", _read_frac(self.cache_frac))
        for name in ("C", "cache_frac", "tol", "bias"):
            value = getattr(self, name)
            if (name, value) == ("cache_frac", "auto"):
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise SettingsError(f"{name} is {value!r}; a number is expected")
            object.__setattr__(self, name, _to_float(value))
        for name in ("max_passes", "seed", "caches", "threads"):
            value = getattr(self, name)
            if (name, value) == ("threads", None):
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise SettingsError(f"{name} is {value!r}; a whole number is expected")
        self._require("C", self.C > 0 and math.isfinite(self.C), "a finite number above 0")
        if not isinstance(self.cache_frac, str):
            self._require("cache_frac", 0 <= self.cache_frac < 1, "at least 0 and below 1, or auto")
        self._require("tol", self.tol > 0 and math.isfinite(self.tol), "a finite number above 0")
        self._require("bias", self.bias >= 0 and math.isfinite(self.bias), "0 or a positive number")
        if self.schedule not in SCHEDULES:
            raise SettingsError(
                f"unknown schedule {self.schedule!r}, known are {', '.join(SCHEDULES)}"
                f"{nearest(self.schedule, SCHEDULES)}"
            )
        for name in ("max_passes", "caches", "threads"):
            value = getattr(self, name)
            self._require(name, value is None or value >= 1, "at least 1")
            self._require(name, value is None or value < 2**63, "below 2^63")
        self._require("seed", 0 <= self.seed < 2**63, "from 0 to 2^63 - 1")
        for label, weight in weights.items():
            if not (weight >= 0 and math.isfinite(weight)):
                raise SettingsError(
                    f"class_weight of label {format_number(label)} is {format_number(weight)}; "
                    "it must be 0 or a finite positive number"
                )

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            shown = format_number(getattr(self, name))
            raise SettingsError(f"{name} is {shown}; it must be {expected}")

    @property
    def mem_bytes(self) -> int:
        """The memory bound in bytes."""
        return int(self.mem)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "settings") -> "Settings":
        """Build settings from names and values, refusing names that do not exist.

        Raises
        ------
        SettingsError
            An unknown name (the nearest known one is suggested) or a bad value.
        """
        known = [f.name for f in dataclasses.fields(cls)]
        plain = {key.replace("-", "_"): value for key, value in values.items()}
        for key in plain:
            if key not in known:
                raise SettingsError(f"{where}: unknown key {key!r}{nearest(key, known)}")
        if "class_weight" in plain:
            plain["class_weight"] = _read_weights(plain["class_weight"], where)
        return cls(**plain)

    @staticmethod
    def read_toml(path: str | Path) -> dict[str, Any]:
        """Read the keys of a TOML file, checked by `from_dict` later.

        Raises
        ------
        SettingsError
            The file cannot be read or is not TOML.
        """
        try:
            return tomllib.loads(Path(path).read_text("utf-8"))
        except OSError as error:
            raise SettingsError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise SettingsError(f"{path} is not a TOML file: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """Names and plain values, as JSON or TOML can hold them."""
        values = dataclasses.asdict(self)
        values["class_weight"] = {format_number(k): v for k, v in self.class_weight.items()}
        return values


def _read_rounds(value: Any) -> int | str:
    """Check a number of rounds, or a list of them in words; a plain number becomes an int."""
    if value == "auto":
        return "auto"
    parts = [part.strip() for part in str(value).split(",")]
    known = isinstance(value, int | str) and not isinstance(value, bool)
    if not known or not all(re.fullmatch(r"-?[0-9]+", part) for part in parts):
        raise SettingsError(
            f"rounds is {value!r}; a whole number, a list such as 2,2,5, or auto is expected"
        )
    numbers = [int(part) for part in parts]
    for number in numbers:
        if not 1 <= number < 2**63:
            bound = "at least 1" if number < 1 else "below 2^63"
            raise SettingsError(f"rounds is {format_number(number)}; it must be {bound}")
    return numbers[0] if len(numbers) == 1 else ",".join(map(str, numbers))


def _read_frac(value: Any) -> Any:
    """Turn the text of a number into the number; ``auto`` stays."""
    if not isinstance(value, str) or value == "auto":
        return value
    try:
        return float(value)
    except ValueError:
        raise SettingsError(f"cache_frac is {value!r}; a number or auto is expected") from None


def _read_weights(value: Any, where: str) -> dict[float, float]:
    """Read a table of label to weight, or a list of ``"label=weight"``."""
    try:
        items = value.items() if isinstance(value, Mapping) else value
        pairs = items if isinstance(value, Mapping) else [str(v).split("=", 1) for v in items]
        return {float(label): float(weight) for label, weight in pairs}
    except (TypeError, ValueError):
        raise SettingsError(
            f"{where}: class_weight is {value!r}; write it as label=weight, for example 1=2.5"
        ) from None
