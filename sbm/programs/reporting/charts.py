"""Charts of lines and stacked bars, described once.

The page draws them as SVG from their `Drawing`, and `picture` draws the same descriptions with
matplotlib.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from sbm.plain import dataclass

# In units of the view box: the chart, and the margins around its plot.
WIDTH, HEIGHT = 440, 262
LEFT, RIGHT, TOP, BOTTOM = 72, WIDTH - 24, 14, HEIGHT - 42
# Contrast to the background of at least 4.5.
COLORS = ("#0b62a4", "#c2410c", "#15803d", "#7c3aed", "#946200", "#be185d", "#0f766e", "#475569")
DARK_COLORS = (
    "#6cb6ff", "#ff9e64", "#6ddb8b", "#c4a7ff", "#e5c453", "#ff8fc0", "#5eead4", "#a9b6c8"
)  # fmt: skip
DASHES = ("", "7 3", "2 3", "9 3 2 3", "14 4")  # with 8 colors: 40 different lines
_MOST_MARKS, _MOST_BENDS = 40, 1000
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Scale:
    """A map from values to places, linear or logarithmic."""

    # low, high: values at the ends, low < high; positive if the scale is logarithmic
    low: float
    high: float
    # begin, end: places of the ends. Values outside are drawn there.
    begin: float
    end: float
    is_log: bool = False

    @classmethod
    def around(
        cls, values: Iterable[float], begin: float, end: float, is_log: bool = False
    ) -> Scale:
        """Return a scale that contains all values and ends at round numbers."""
        shown = [value for value in values if value > 0 or not is_log] or [1.0]
        low, high = min(shown), max(shown)
        if is_log:
            first = math.floor(math.log10(low) + 1e-9)
            last = max(first + 1, math.ceil(math.log10(high) - 1e-9))
            return cls(10.0**first, 10.0**last, begin, end, True)
        # In a narrower range the labels of ticks would need too many digits.
        if high - low < (least := max(1e-3 * abs(low), 1e-3 * abs(high), 1e-6)):
            low, high = (low + high - least) / 2, (low + high + least) / 2
        step = _round_step((high - low) / 5)
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
        return cls(low, high, begin, end)

    def __call__(self, value: float) -> float:
        """Return the place of a value."""
        low, high, value = self.low, self.high, min(max(value, self.low), self.high)
        if self.is_log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return round(self.begin + (self.end - self.begin) * ((value - low) / (high - low)), 2)

    def ticks(self, most: int = 6) -> list[tuple[float, str]]:
        """Return places and labels of about `most` round values, ascending."""
        if self.is_log:
            first, last = round(math.log10(self.low)), round(math.log10(self.high))
            powers = range(first, last + 1, math.ceil((last - first + 1) / most))
            return [(self(10.0**k), _power(k)) for k in powers]
        step = _round_step((self.high - self.low) / most)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [(self(k * step), _label(k * step, step)) for k in range(first, last + 1)]


def _round_step(rough: float) -> float:
    """Return 1, 2 or 5 times a power of ten, not less than `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(k * power for k in (1, 2, 5, 10) if k * power >= rough * (1 - 1e-9))


def _label(value: float, step: float) -> str:
    """Write a multiple of `step`: 12,500 or 0.25 or 3M or 2e-07."""
    for size, letter in ((1e9, "G"), (1e6, "M")):
        if value and size <= max(abs(value), 10 * step) < 1e12 and step >= size / 1000:
            return _label(value / size, step / size) + letter
    if not value or step < 1e-6 or abs(value) >= 1e9:
        return f"{value:.5g}"
    return f"{value:,.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def _power(exponent: int) -> str:
    if -4 <= exponent <= 5:
        return f"{10.0**exponent:,.{max(0, -exponent)}f}"
    return "10" + str(exponent).translate(_SUPERSCRIPTS)


@dataclass(frozen=True)
class Drawing:
    """The places of what an SVG chart shows, in units of its view box."""

    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    # number of the series, and points of a polyline
    lines: list[tuple[int, str]] = field(default_factory=list)
    # number of the series, center, whether the mark is hollow, and its value in words
    marks: list[tuple[int, float, float, bool, str]] = field(default_factory=list)
    # number of the part, left, top, width, height, and its value in words
    bars: list[tuple[int, float, float, float, float, str]] = field(default_factory=list)
    level: float | None = None  # place of the horizontal line


@dataclass(frozen=True)
class Series:
    """Points of a series, drawn with or without a line."""

    label: str  # for the legend; empty for none
    number: int  # decides color and dashes
    points: Sequence[tuple[float, float]]
    # one of "line", "points", "hollow"; a line with marks, marks, or large hollow marks
    style: str = "line"


@dataclass(frozen=True)
class LineChart:
    """Lines over a common x axis, which starts at 0 unless it is logarithmic."""

    name: str  # unique in a page
    # title, x_label, y_label: with units
    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    x_log: bool = False
    y_log: bool = False
    level: tuple[float, str] | None = None  # a horizontal line and its label

    def drawing(self) -> Drawing:
        """Return the chart laid out for SVG."""
        points = [point for one in self.series for point in one.points]
        xs = [x for x, _ in points]
        x = Scale(0.0, max([x for x in xs if x > 1e-300], default=1.0), LEFT, RIGHT)
        if self.x_log:
            x = Scale.around(xs, LEFT, RIGHT, True)
        levels = [] if self.level is None else [self.level[0]]
        y = Scale.around([*(y for _, y in points), *levels], BOTTOM, TOP, self.y_log)
        lines, marks = [], []
        for one in self.series:
            if one.style == "line" and len(one.points) > 1:
                bends = _thinned(one.points, _MOST_BENDS)
                lines.append((one.number, " ".join(f"{x(a)},{y(b)}" for a, b in bends)))
            marks += [
                (one.number, x(a), y(b), one.style == "hollow", f"{one.label} {b:.6g}".strip())
                for a, b in _thinned(one.points, _MOST_MARKS)
            ]
        level = None if self.level is None else y(self.level[0])
        return Drawing(x.ticks(), y.ticks(), lines, marks, level=level)


def _thinned(points: Sequence[tuple[float, float]], most: int) -> Sequence[tuple[float, float]]:
    """Return at most `most` points at even distances, the last one included."""
    return points[::-1][:: max(1, -(-len(points) // most))][::-1]


@dataclass(frozen=True)
class BarChart:
    """Stacked bars."""

    # name, title, x_label, y_label: as in `LineChart`
    name: str
    title: str
    x_label: str
    y_label: str
    labels: Sequence[str]  # labels of the bars
    parts: Mapping[str, Sequence[float]]  # heights by the name of the part, from below
    highest: float  # the end of the y axis, for charts with a common scale

    def drawing(self) -> Drawing:
        """Return the chart laid out for SVG."""
        y = Scale.around([0.0, self.highest], BOTTOM, TOP)
        room = (RIGHT - LEFT) / max(1, len(self.labels))
        width = round(min(48.0, 0.8 * room), 2)
        longest = max(map(len, self.labels), default=1) + 1
        every = math.ceil(8 * longest / room)  # a digit is 8 units wide
        ticks, bars = [], []
        for k, label in enumerate(self.labels):
            middle, below = round(LEFT + (k + 0.5) * room, 2), 0.0
            if k % every == 0 and middle + 4 * len(label) <= WIDTH:
                ticks.append((middle, label))
            for number, (part, heights) in enumerate(self.parts.items()):
                top, foot = y(below + heights[k]), y(below)
                below += heights[k]
                if foot - top >= 0.2:  # less cannot be seen
                    size = (round(middle - width / 2, 2), top, width, round(foot - top, 2))
                    bars.append((number, *size, f"{part} {heights[k]:.4g}"))
        return Drawing(ticks, y.ticks(), bars=bars)
