"""Parsing and formatting of sizes, durations, dates and numbers.

Does not import numpy, so that ``sbm --help`` starts fast.
"""

import datetime
import math
import re
from collections.abc import Sequence

from sbm.errors import SettingsError

# Units and their size, smallest first.
BYTES = ((1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"))
TIME = ((1.0, "s"), (60.0, "min"), (3600.0, "h"))
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {f"{unit}I": 2 ** (10 * k) for k, unit in enumerate("KMGT", 1)}
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

# Control characters in names could move the cursor of a terminal, or worse.
CONTROLS = {c: f"\\x{c:02x}" for c in (*range(32), *range(127, 160))}
CONTROLS |= {ord("\t"): "\\t", ord("\n"): "\\n", ord("\r"): "\\r"}


def parse_size(text: str | int) -> int:
    """Parse ``2GB``, ``300 MiB``, ``1.5g`` or a number of bytes; return bytes.

    K, M, G, T are powers of 1000; Ki, Mi, Gi, Ti are powers of 1024.

    Raises `SettingsError` if the text has another form, or a small number has no unit.
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
    # A smaller size without a unit is likely a mistake.
    if isinstance(text, str) and text.strip()[-1] in "0123456789." and size < 10_000:
        raise SettingsError(f"{text!r} has no unit; add one, as in {size}GB or {size}MB")
    return size


def format_size(size: float) -> str:
    """Format bytes as ``1.5 GB``, in powers of 1000 and with three digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 999.5:
            return f"{size:.0f} {unit}" if size >= 100 or unit == "B" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.4g} TB"


def in_megabytes(size: int) -> str:
    """Format bytes as whole megabytes, rounded up, for use with ``--mem``."""
    return f"{-(-size // 1_000_000)}MB"


def format_number(number: float) -> str:
    """Format a number as a short decimal that reads back the same; 1.0 becomes ``1``."""
    if isinstance(number, int):
        digits = math.floor(math.log10(abs(number))) + 1 if number else 1
        text = str(number) if digits <= 40 else f"a number of {digits} digits"
    elif number.is_integer() and abs(number) < 2**64:
        text = str(int(number))
    else:
        text = repr(number)
    return text


def to_whole(digits: str) -> int:
    """Return the whole number in a text of digits, or ±2^64 if it has more than 19 digits."""
    sign, digits = ("-", digits[1:]) if digits.startswith("-") else ("", digits)
    digits = digits.lstrip("0") or "0"
    return int(sign + digits) if len(digits) <= 19 else int(f"{sign}{2**64}")


def shorten(text: str, most: int = 60) -> str:
    """Return a text for a message: at most `most` characters, with control characters escaped."""
    text = text.translate(CONTROLS)
    return text if len(text) <= most else f"{text[: most - 20]}...{text[-17:]}"


def width_of(text: str) -> int:
    """Return the columns of a terminal that a text takes: 2 for each wide character."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def padding(text: str, width: int) -> str:
    """Return the blanks that a text lacks to take `width` columns of a terminal."""
    return " " * (width - width_of(text))


def first_line(error: object) -> str:
    """Return the first line of another library's error, or the name of its type if it has none."""
    lines = str(error).splitlines()
    return lines[0][:300] if lines else type(error).__name__


def list_some(texts: Sequence[str], most: int = 6) -> str:
    """Return the first of some texts, separated by commas, with ``...`` if there are more."""
    return ", ".join(texts[:most]) + (", ..." if len(texts) > most else "")


def cut(sentence: str, most: int = 800) -> str:
    """Return a message without its middle if it is very long: it may quote a whole document."""
    half = most // 2
    return sentence if len(sentence) <= most else f"{sentence[:half]} ... {sentence[-half:]}"


def as_typed(value: object) -> str:
    """Return the value of an option as it is typed."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, dict):
        return " ".join(f"{label}={as_typed(weight)}" for label, weight in value.items())
    return format_number(value) if isinstance(value, int | float) else str(value)


def format_label(label: float | str) -> str:
    """Format a label, which is a number or a word."""
    return label if isinstance(label, str) else format_number(label)


def parse_duration(text: str | float) -> float:
    """Parse ``90``, ``90s``, ``5m``, ``1.5h`` or ``1d``; return seconds.

    Raises `SettingsError` if the text has another form.
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
    """Parse ``2026-01-31``, ``2026-01-31T06:00`` (UTC) or ``30d`` (30 days ago).

    Parameters
    ----------
    now : datetime, optional
        Time that a duration is subtracted from; default: the current time.

    Raises
    ------
    SettingsError
        If the text has another form.
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
            "30 days ago"
        ) from None


def parse_grid(text: str) -> list[float]:
    """Parse ``0.01:100:x10`` or ``0.1,1,10`` into a list of numbers.

    In ``first:last:xF`` each number is F times the one before, up to ``last``.

    Raises `SettingsError` if the text has another form, or gives more than 1000 numbers.
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
            f"{text!r} is not a list of numbers; write 0.01:100:x10 (from the smaller number "
            "to the larger, by a factor) or 0.1,1"
        ) from None


def count(n: int, noun: str) -> str:
    """Format a count with its noun: ``1 row``, ``2,000 rows``, ``3 passes``."""
    plural = "es" if noun.endswith("s") else "s"
    return f"{n:,} {noun}" + ("" if n == 1 else plural)


def choose_unit(largest: float, units: Sequence[tuple[float, str]]) -> tuple[float, str]:
    """Return the largest unit at most half as large as the number, else the smallest unit."""
    return next((unit for unit in reversed(units) if largest >= 2 * unit[0]), units[0])
