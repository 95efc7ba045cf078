"""Settings of a training, and the small languages they are written in (sizes, durations, TOML)."""

import dataclasses
import datetime
import difflib
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from sbm.errors import SettingsError
from sbm.losses import LOSSES

__all__ = [
    "Settings", "format_number", "format_size", "nearest", "option_name", "parse_duration",
    "parse_grid", "parse_moment", "parse_size",
]  # fmt: skip

# The keys of `sbm.solver.cache.POLICIES`: known here, so that a mistyped one is refused at once.
POLICY_NAMES = ("gradient", "mixed", "random", "none")
SIGMAS = ("adaptive", "safe")
MOST_CLASS_BLOCKS = 1024
TASKS = ("auto", "classification", "regression")
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


def parse_moment(text: str, now: datetime.datetime | None = None) -> datetime.datetime:
    """Turn ``2026-01-31``, ``2026-01-31T06:00`` (UTC) or ``30d`` (so long ago) into a moment.

    Parameters
    ----------
    text : str
    now : datetime, optional
        What a duration is counted back from; default: now.

    Returns
    -------
    datetime.datetime

    Raises
    ------
    SettingsError
        Anything else.
    """
    try:
        moment = datetime.datetime.fromisoformat(str(text).strip())
        return moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
    except ValueError:
        pass
    try:
        if not re.search(r"[smhd]\s*$", str(text).lower()):
            raise SettingsError(text)  # a number without a unit is more likely a mistyped date
        ago = datetime.timedelta(seconds=parse_duration(str(text)))
        return (now or datetime.datetime.now(datetime.UTC)) - ago
    except (SettingsError, OverflowError):
        raise SettingsError(
            f"{text!r} is not a date; write it as 2026-01-31, 2026-01-31T06:00 (UTC), or 30d for "
            "so long ago"
        ) from None


def parse_grid(text: str) -> list[float]:
    """Turn ``0.01:100:x10`` or ``0.1,1,10`` into numbers.

    Of ``first:last:xF`` each number is F times the one before, up to the last one.

    Raises
    ------
    SettingsError
        Anything else, or more than 1000 numbers.
    """
    try:
        if ":" not in text:
            return [float(part) for part in text.split(",")]
        first, last, step = text.split(":")
        a, b, factor = float(first), float(last), float(step.removeprefix("x"))
        if not (step.startswith("x") and 0 < a <= b < math.inf and factor > 1):
            raise ValueError
        n = math.floor(math.log(b / a, factor) * (1 + 1e-12) + 1e-9) + 1
        if n > 1000:
            raise ValueError
        return [float(f"{a * factor**k:.12g}") for k in range(n)]
    except (ValueError, OverflowError):
        raise SettingsError(
            f"{text!r} is no list of numbers; write it as 0.01:100:x10 (from, to, factor) or 0.1,1"
        ) from None


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the known word nearest to a mistyped one, or nothing."""
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.5)
    return f"; did you mean {by_lower[close[0]]!r}?" if close else ""


def option_name(name: str) -> str:
    """Return the option of a setting, as it is typed: ``-C``, ``--cache-frac``."""
    return "-C" if name == "C" else "--" + name.replace("_", "-")


@dataclass(frozen=True)
class Settings:
    """Everything that decides which model a store gives, and the budgets of the training.

    The names are the long options of ``sbm train`` with underscores, and the keys of its TOML file.

    Parameters
    ----------
    loss : str
        What a row costs: ``"hinge"``, ``"log_loss"``, ... ; ``sbm train --help`` has the formulas.
    C : float
        Cost of a row's loss against ½|w|².
    task : {"auto", "classification", "regression"}
        What labels are: ``auto`` is what the loss is for. ``squared_error`` is for either; its
        ``auto`` is regression.
    epsilon : float
        Half the width of the tube of ``epsilon_insensitive`` and ``squared_epsilon_insensitive``.
    nu : float
        Of ``one_class``: share of rows that may lie outside, in (0, 1].
    cache_frac : float or "auto"
        Share of the working set (cache and block together) that is cache, in [0, 1); ``auto``
        chooses it pass by pass, from how many alphas are free.
    mem : int or str
        Bound of the process's peak resident memory; bytes, or text such as ``"2GB"``.
    rounds : int or str
        Most rounds over the working set before the next block is loaded; ``"2,2,5"`` gives a number
        for each pass, the last one for all that follow; ``"auto"`` chooses it by the number of
        blocks, and more where they load slowly.
    tol : float
        Relative duality gap at which training ends.
    max_passes : int
        Most passes over the store.
    time_limit : float, str or None
        Most seconds, looked at after each block.
    policy : str
        How the cache is chosen: ``"gradient"``, ``"mixed"``, ``"random"``,
        ``"none"``.
    screen : bool
        Leave out rows that were at rest at the weights of one step ago (but every 8th pass).
    bias : float
        Value of an extra feature in every row; 0 for none.
    class_weight : mapping of float to float, or "balanced"
        Label to factor of C; ``balanced`` is rows / (labels x rows of the label);
        None is no weight.
    weights : str or Path, optional
        File with a factor of C for each row, one a line, in the order of the text of the store.
    warm_start : str, Path or bool, optional
        Run, or model whose run lies beside it, to take the alphas from at the start; True is the
        run beside the model that is about to be written, and nothing where there is none yet.
    calibrate : bool
        Also fit probabilities, on decision values of held-out rows.
    seed : int
        Of every random choice.
    sigma : float or {"adaptive", "safe"}
        Of several processes: how far each goes, σ' of CoCoA+; ``safe`` is their number, and
        ``adaptive`` what the last sums have shown to do.
    sync_every : int
        Blocks that each of several processes visits before their weights are added up.
    comm_timeout : float or str
        Most seconds, or text such as ``"10m"``, that a process waits for the others.
    class_blocks : int, optional
        Of ``weston_watkins``: blocks of classes that processes divide among themselves; the model
        depends on it, not on the number of processes. Default: rows are divided, not classes.
    checkpoint_every : float or str
        Seconds, or text such as ``"5m"``, between commits inside a pass; 0: at the ends of passes
        alone.
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
    task: str = "auto"
    epsilon: float = 0.1
    nu: float = 0.5
    cache_frac: float | str = 0.5
    mem: int | str = 2_000_000_000
    rounds: int | str = "auto"
    tol: float = 1e-3
    max_passes: int = 50
    time_limit: float | str | None = None
    policy: str = "gradient"
    screen: bool = True
    bias: float = 0.0
    class_weight: Mapping[float, float] | str = field(default_factory=dict)
    weights: str | Path | None = None
    warm_start: str | Path | bool | None = None
    calibrate: bool = False
    seed: int = 0
    sigma: float | str = "adaptive"
    sync_every: int = 1
    comm_timeout: float | str = 600.0
    class_blocks: int | None = None
    checkpoint_every: float | str = 300.0
    threads: int | None = None

    def __post_init__(self) -> None:
        for name, read in _READERS.items():
            object.__setattr__(self, name, read(getattr(self, name)))
        for name, rule in _RULES.items():
            object.__setattr__(self, name, rule.check(name, getattr(self, name)))

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
            plain["class_weight"] = _parse_class_weight(plain["class_weight"], f"{where}: ")
        return cls(**plain)

    @classmethod
    def of(cls, settings: "Settings | Mapping[str, Any] | None") -> "Settings":
        """Return settings as they are, a dict of names and values as settings, None as defaults.

        Raises
        ------
        SettingsError
            Anything else, or as of `from_dict`.
        """
        if settings is None or isinstance(settings, Mapping):
            return cls.from_dict(settings or {})
        if not isinstance(settings, cls):
            raise SettingsError(
                f"settings is {settings!r}; sbm.Settings or a dict of its names is expected"
            )
        return settings

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
        except FileNotFoundError:
            raise SettingsError(f"{path} does not exist; give a TOML file of settings") from None
        except OSError as error:
            raise SettingsError(f"cannot read {path}: {error.strerror}") from error
        except ValueError as error:
            raise SettingsError(f"{path} is not a TOML file: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """Names and plain values, as JSON or TOML can hold them."""
        values = dataclasses.asdict(self)
        if not isinstance(self.class_weight, str):
            values["class_weight"] = {format_number(k): v for k, v in self.class_weight.items()}
        return values


@dataclass(frozen=True)
class _Rule:
    """What a setting may be.

    Attributes
    ----------
    kind : type
        bool, str, int or float; an int will do for a float.
    besides : tuple
        Values of other types that are allowed.
    holds, expected : callable, str
        Condition, and the same in words.
    names : sequence of str
        Known ones, if only these are.
    """

    kind: type
    besides: tuple[Any, ...] = ()
    holds: Callable[[Any], bool] = lambda _: True
    expected: str = ""
    names: Sequence[str] = ()

    def check(self, name: str, value: Any) -> Any:
        """Return the value, of the right type.

        Raises
        ------
        SettingsError
            It is of another type, or out of range.
        """
        if any(isinstance(value, type(b)) and value == b for b in self.besides):
            return value
        kinds = (int, float) if self.kind is float else (self.kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and self.kind is not bool):
            raise SettingsError(f"{name} is {value!r}; {_KINDS[self.kind]} is expected")
        if self.kind is float:
            value = _to_float(cast(float, value))
        if self.names and value not in self.names:
            raise SettingsError(
                f"unknown {name} {value!r}, known are {', '.join(self.names)}"
                f"{nearest(value, self.names)}"
            )
        if not self.holds(value):
            raise SettingsError(f"{name} is {format_number(value)}; it must be {self.expected}")
        if self.kind is int and value >= 2**63:
            raise SettingsError(f"{name} is {format_number(value)}; it must be below 2^63")
        return value


_KINDS = {bool: "true or false", str: "a name", int: "a whole number", float: "a number"}


def _is_positive(x: float) -> bool:
    return x > 0 and math.isfinite(x)


def _is_not_negative(x: float) -> bool:
    return x >= 0 and math.isfinite(x)


_NAME = _Rule(str)
_FLAG = _Rule(bool)
_POSITIVE = _Rule(float, holds=_is_positive, expected="a finite number above 0")
_NOT_NEGATIVE = _Rule(float, holds=_is_not_negative, expected="0 or a positive number")
_COUNT = _Rule(int, holds=lambda n: n >= 1, expected="at least 1")
_FRACTION = _Rule(
    float, ("auto",), lambda x: 0 <= x < 1, "at least 0 and below 1, or auto"
)  # fmt: skip

_RULES = {
    "loss": _Rule(str, names=tuple(LOSSES)),
    "C": _POSITIVE,
    "task": _Rule(str, names=TASKS),
    "epsilon": _NOT_NEGATIVE,
    "nu": _Rule(float, holds=lambda x: 0 < x <= 1, expected="above 0 and at most 1"),
    "cache_frac": _FRACTION,
    "tol": _POSITIVE,
    "max_passes": _COUNT,
    "policy": _Rule(str, names=POLICY_NAMES),
    "screen": _FLAG,
    "bias": _NOT_NEGATIVE,
    "weights": replace(_NAME, besides=(None,)),
    "warm_start": replace(_NAME, besides=(None, True)),
    "calibrate": _FLAG,
    "seed": _Rule(int, holds=lambda n: 0 <= n < 2**63, expected="from 0 to 2^63 - 1"),
    "sigma": _Rule(
        float, SIGMAS, lambda x: x >= 1 and math.isfinite(x), "at least 1, adaptive or safe"
    ),
    "sync_every": _COUNT,
    "class_blocks": _Rule(int, (None,), lambda n: 1 <= n <= MOST_CLASS_BLOCKS, "from 1 to 1024"),
    "threads": replace(_COUNT, besides=(None,)),
}


def _read_rounds(value: Any) -> int | str:
    """Check a number of rounds, or a list of them in words; a plain number becomes an int."""
    if isinstance(value, str) and value == "auto":
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


def _number_or(name: str, *words: str) -> Callable[[Any], Any]:
    """Return what turns the text of a number into the number; some words stay."""

    def read(value: Any) -> Any:
        if not isinstance(value, str) or value in words:
            return value
        try:
            return float(value)
        except ValueError:
            raise SettingsError(
                f"{name} is {value!r}; a number or {' or '.join(words)} is expected"
            ) from None

    return read


def _path_to_text(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


def _parse_class_weight(value: Any, where: str = "") -> dict[float, float] | str:
    """Read a table of label to weight, a list of ``"label=weight"``, or ``balanced``."""
    if isinstance(value, list | tuple) and len(value) == 1 and isinstance(value[0], str):
        value = value[0] if value[0] == "balanced" else value
    if value is None or (isinstance(value, str) and value == "balanced"):
        return value or {}
    try:
        if isinstance(value, Mapping):
            pairs: Any = value.items()
        elif isinstance(value, list | tuple):
            pairs = [str(v).split("=", 1) for v in value]
        else:
            raise TypeError
        numbers = [(_to_float(label), _to_float(weight)) for label, weight in pairs]
    except (TypeError, ValueError):
        raise SettingsError(
            f"{where}class_weight is {value!r}; write it as label=weight, for example 1=2.5, "
            "or balanced alone"
        ) from None
    weights: dict[float, float] = {}
    for label, weight in numbers:
        if label in weights:
            raise SettingsError(
                f"{where}class_weight names label {format_number(label)} twice; name it once"
            )
        weights[label] = weight
    return weights


def _check_class_weight(weights: dict[float, float] | str) -> dict[float, float] | str:
    """Refuse factors below 0, and those that are no numbers."""
    table = {} if isinstance(weights, str) else weights
    for label, weight in table.items():
        if not _is_not_negative(weight):
            raise SettingsError(
                f"class_weight of label {format_number(label)} is {format_number(weight)}; "
                "it must be 0 or a finite positive number"
            )
    return weights


# Turn what may be written in several ways into one, before the rules are looked at.
_READERS: dict[str, Callable[[Any], Any]] = {
    "mem": parse_size,
    "time_limit": lambda value: None if value is None else parse_duration(value),
    "class_weight": lambda value: _check_class_weight(_parse_class_weight(value)),
    "checkpoint_every": parse_duration,
    "weights": _path_to_text,
    "warm_start": lambda value: None if value is False else _path_to_text(value),
    "rounds": _read_rounds,
    "cache_frac": _number_or("cache_frac", "auto"),
    "sigma": _number_or("sigma", *SIGMAS),
    "comm_timeout": parse_duration,
}
