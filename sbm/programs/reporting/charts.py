"""Charts as SVG: scales, ticks, lines with markers, stacked bars with patterns.

Colours, strokes and patterns are classes and names that the page's style sheet and `PATTERNS` say
more of, so that one picture serves light, dark and paper. Everything can also be told apart without
colour: lines by dashes, markers and letters, parts of bars by patterns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

__all__ = [
    "KINDS", "PATTERNS", "Bar", "Line", "Scale", "bar_chart", "level_chart", "line_chart",
    "marker", "nice_scale", "swatch", "write_number",
]  # fmt: skip

# In units of the view box: of a chart, and of what stands around its lines and bars.
WIDTH, HEIGHT = 440, 262
LEFT, RIGHT, TOP, BOTTOM = 64, 26, 16, 40
LETTER = 16  # least distance of two letters at the ends of lines
LEVEL = 46  # height of a row of a level chart

_MOST_MARKERS, _MOST_BENDS = 40, 1000  # of a line; more would hide it, or be as wide as a pixel

# How often each repeats: colours after 8, dashes after 5, so 40 lines are told apart.
COLOURS = 8
DASHES = ("", "7 3", "2 3", "9 3 2 3", "14 4")
MARKERS = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "M-3.6-3.6h7.2v7.2h-7.2z",
    "M0-4.6 4.4 3.4h-8.8z",
    "M0-5 5 0 0 5-5 0z",
    "M0 4.6 4.4-3.4h-8.8z",
    "M-5-1.5h3.5v-3.5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5z",
    "M-4.4 0-2.2-3.8h4.4l2.2 3.8-2.2 3.8h-4.4z",
)

# Parts of bars; the style sheet has a colour `--NAME` for each.
KINDS = ("solve", "wait", "certify", "write", "combine", "rest", "load", "k1", "k2", "k3", "k4")
_LINES = {
    "solve": "", "wait": "M-1 1 1-1M0 6 6 0M5 7 7 5", "certify": "dots", "write": "M0 2H6M0 5H6",
    "combine": "M0 0 6 6M0 6 6 0", "rest": "none", "load": "M2 0V6M5 0V6",
    "k1": "", "k2": "M-1 1 1-1M0 6 6 0M5 7 7 5", "k3": "dots", "k4": "none",
}  # fmt: skip


def _pattern(kind: str) -> str:
    """A tile of 6 by 6: its ground, and what is drawn on it."""
    drawn = _LINES[kind]
    ground = "1" if not drawn else "0.14"
    tile = f'<rect width="6" height="6" fill="var(--{kind})" fill-opacity="{ground}"/>'
    if drawn == "dots":
        tile += f'<circle cx="3" cy="3" r="1.5" fill="var(--{kind})"/>'
    elif drawn not in ("", "none"):
        tile += f'<path d="{drawn}" fill="none" stroke="var(--{kind})" stroke-width="1.4"/>'
    return (
        f'<pattern id="p-{kind}" width="6" height="6" patternUnits="userSpaceOnUse">{tile}'
        "</pattern>"
    )


# To stand once in a page, before its charts.
PATTERNS = (
    '<svg class="patterns" width="0" height="0" aria-hidden="true" focusable="false"><defs>'
    + "".join(map(_pattern, KINDS))
    + "</defs></svg>"
)


# --------------------------------------------------------------------------------- scales and ticks


@dataclass(frozen=True)
class Scale:
    """Where values lie.

    Attributes
    ----------
    low, high : float
        What is shown, low < high; of a logarithmic scale both above 0. Values beyond lie at the
        edge.
    begin, end : float
        Where these two are.
    is_log : bool
    """

    low: float
    high: float
    begin: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        """Place of a value."""
        low, high = self.low, self.high
        value = min(max(value, low), high)
        if self.is_log:
            low, high, value = math.log10(low), math.log10(high), math.log10(value)
        return self.begin + (self.end - self.begin) * ((value - low) / (high - low))

    def ticks(self, most: int = 6) -> list[float]:
        """Round values to mark, about `most`, ascending."""
        if self.is_log:
            first, last = math.ceil(math.log10(self.low)), math.floor(math.log10(self.high))
            every = max(1, math.ceil((last - first + 1) / most))
            return [10.0**k for k in range(first, last + 1) if (k - first) % every == 0]
        step = _round_step((self.high - self.low) / most)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [k * step for k in range(first, last + 1)]


def nice_scale(
    values: Iterable[float], begin: float, end: float, is_log: bool = False, least: bool = False
) -> Scale:
    """Return a scale that shows all values and ends on round ones.

    Parameters
    ----------
    values : iterable of float
        Of a logarithmic scale those that are not above 0 have no place.
    begin, end : float
    is_log : bool
    least : bool
        Whether 0 is shown, too, at the begin.
    """
    seen = [v for v in values if v > 0 or not is_log]
    if is_log:
        seen = seen or [1.0]
        low, high = (10.0 ** f(math.log10(v)) for f, v in
                     ((math.floor, min(seen)), (math.ceil, max(seen))))  # fmt: skip
        return Scale(low, high if high > low else 10 * low, begin, end, True)
    seen = seen or [0.0]
    low, high = (0.0 if least else min(seen)), max(seen)
    if not high > low:
        low, high = (
            (0.0, high or 1.0) if least else (low - (abs(low) or 1), high + (abs(high) or 1))
        )
    step = _round_step((high - low) / 6)
    low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return Scale(low, high, begin, end)


def _round_step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, not less than `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(k * power for k in (1, 2, 5, 10) if k * power >= rough * (1 - 1e-9))


def write_number(value: float, step: float = 0.0) -> str:
    """Write a tick: 12,500, 0.25, 3M; as many decimals as multiples of `step` need."""
    if value == 0:
        return "0"
    size = abs(value)
    for power, letter in ((9, "G"), (6, "M")):
        if size >= 10**power and (step or size) >= 10 ** (power - 3):
            return write_number(value / 10**power, step / 10**power) + letter
    if size < 1e-4 or size >= 1e12:
        return f"{value:.3g}"
    decimals = max(0, -math.floor(math.log10(step) + 1e-9)) if step else 0
    return f"{value:,.{min(decimals, 9)}f}"


def _write_power(value: float) -> str:
    exponent = round(math.log10(value))
    if 0 <= exponent <= 5:
        return f"{10**exponent:,}"
    return f'10<tspan class="up" dy="-5">{"−" if exponent < 0 else ""}{abs(exponent)}</tspan>'


# ------------------------------------------------------------------------------------------- lines


@dataclass(frozen=True)
class Line:
    """Points of one run.

    Attributes
    ----------
    number : int
        Decides colour, dashes and marker.
    letter : str
        Stands at its end; none if empty.
    points : sequence of (float, float)
        In their order.
    style : {"line", "points"}
        Joined with filled markers, or large hollow markers alone.
    """

    number: int
    letter: str
    points: Sequence[tuple[float, float]]
    style: str = "line"


def marker(number: int, x: float, y: float, style: str = "line") -> str:
    """Return a marker; hollow ones are larger."""
    size = " scale(1.5)" if style == "points" else ""
    kind = "hollow" if style == "points" else "full"
    return (
        f'<path class="m c{number % COLOURS} {kind}" '
        f'transform="translate({x:.2f} {y:.2f}){size}" d="{MARKERS[number % len(MARKERS)]}"/>'
    )


def swatch(number: int) -> str:
    """Return a piece of a line with its marker, for a legend."""
    return (
        '<svg class="swatch" viewBox="0 0 44 14" width="44" height="14" aria-hidden="true">'
        f'<path class="l c{number % COLOURS}" d="M2 7H42" '
        f'stroke-dasharray="{DASHES[number % len(DASHES)]}"/>{marker(number, 22, 7)}</svg>'
    )


def line_chart(
    name: str,
    title: str,
    description: str,
    x_label: str,
    lines: Sequence[Line],
    *,
    is_log: bool = False,
    highest: float = math.inf,
    level: tuple[float, str] | None = None,
) -> str:
    """Return a chart of lines; x begins at 0.

    Parameters
    ----------
    name : str
        Of the element, once in a page.
    title, description, x_label : str
    lines : sequence of Line
    is_log : bool
        Whether y is logarithmic; points that are not above 0 lie at its lower edge.
    highest : float
        Larger values lie at the upper edge.
    level : (float, str), optional
        A horizontal line, and what it is.
    """
    points = [point for line in lines for point in line.points]
    x = Scale(0.0, max([p[0] for p in points if p[0] > 0], default=1.0), LEFT, WIDTH - RIGHT)
    shown = [min(p[1], highest) for p in points] + ([level[0]] if level else [])
    y = nice_scale(shown, HEIGHT - BOTTOM, TOP, is_log)
    drawn = [_axes(x, y, x_label)]
    if level is not None:
        at = y(level[0])
        drawn.append(f'<path class="level" d="M{LEFT} {at:.2f}H{WIDTH - RIGHT}"/>')
    for line in lines:
        places = [(x(a), y(b)) for a, b in line.points]
        if line.style == "line" and len(places) > 1:
            bends = places[::-1][:: max(1, len(places) // _MOST_BENDS)]
            way = " ".join(f"{a:.2f},{b:.2f}" for a, b in bends[::-1])
            dashes = DASHES[line.number % len(DASHES)]
            drawn.append(
                f'<polyline class="l c{line.number % COLOURS}" points="{way}" '
                f'stroke-dasharray="{dashes}"/>'
            )
        every = max(1, -(-len(places) // _MOST_MARKERS))
        drawn += [marker(line.number, *at, line.style) for at in places[::-1][::every]]
    if level is not None:  # over the lines, to be read
        at = y(level[0]) - 4
        drawn.append(f'<text class="note" x="{LEFT + 5}" y="{at:.2f}">{escape(level[1])}</text>')
    drawn += _letters([(line, y(line.points[-1][1]), x(line.points[-1][0])) for line in lines
                       if line.letter and line.points])  # fmt: skip
    return _svg(name, title, description, "".join(drawn))


def _letters(ends: Sequence[tuple[Line, float, float]]) -> list[str]:
    """Write letters beside the ends of lines, moved apart where they would meet."""
    ordered = sorted(ends, key=lambda end: (end[1], end[0].number))
    places: list[float] = []
    for _, at, _ in ordered:
        places.append(max(at, places[-1] + LETTER) if places else at)
    over = (places[-1] if places else 0) - (HEIGHT - BOTTOM)
    if over > 0:  # push them up again
        limit: float = HEIGHT - BOTTOM + LETTER
        for k in reversed(range(len(places))):
            limit = places[k] = min(places[k], limit - LETTER)
    return [
        f'<text class="letter c{line.number % COLOURS}" x="{WIDTH - RIGHT + 7}" '
        f'y="{place + 4.5:.2f}">{escape(line.letter)}</text>'
        + (
            f'<path class="leader c{line.number % COLOURS}" '
            f'd="M{end + 6:.2f} {at:.2f}H{WIDTH - RIGHT - 4}L{WIDTH - RIGHT + 5} {place:.2f}"/>'
            if end < WIDTH - RIGHT - 8 or abs(place - at) > 3
            else ""
        )
        for (line, at, end), place in zip(ordered, places, strict=True)
    ]


def _axes(x: Scale, y: Scale, x_label: str, x_words: Callable[[float], str] | None = None) -> str:
    """Grid, ticks and the name of x; that of y is in the chart's heading."""
    drawn = _levels_of(y, 6)
    foot = HEIGHT - BOTTOM
    drawn += _marks_of(x, foot, f'class="axis" d="M{{:.2f}} {foot}v4"')
    drawn.append(f'<path class="axis" d="M{LEFT} {foot}H{WIDTH - RIGHT}"/>')
    drawn.append(_x_label(x_label))
    return "".join(drawn)


def _levels_of(y: Scale, most: int) -> list[str]:
    """Lines across a chart at the ticks of y, with their numbers at the left."""
    ticks, drawn = y.ticks(most), []
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 0.0
    for value in ticks:
        at = y(value)
        words = _write_power(value) if y.is_log else write_number(value, step)
        drawn.append(f'<path class="grid" d="M{LEFT} {at:.2f}H{WIDTH - RIGHT}"/>')
        drawn.append(
            f'<text class="tick" x="{LEFT - 7}" y="{at + 4.5:.2f}" text-anchor="end">{words}</text>'
        )
    return drawn


def _marks_of(x: Scale, foot: float, path: str) -> list[str]:
    """Paths at the ticks of x, with their numbers below; `path` has a place for where each is."""
    ticks, drawn = x.ticks(6), []
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 0.0
    for value in ticks:
        at = x(value)
        drawn.append(f"<path {path.format(at)}/>")
        drawn.append(
            f'<text class="tick" x="{at:.2f}" y="{foot + 17}" text-anchor="middle">'
            f"{write_number(value, step)}</text>"
        )
    return drawn


def _x_label(text: str) -> str:
    middle = (LEFT + WIDTH - RIGHT) / 2
    return (
        f'<text class="name" x="{middle}" y="{HEIGHT - 5}" text-anchor="middle">'
        f"{escape(text)}</text>"
    )


# -------------------------------------------------------------------------------------------- bars


@dataclass(frozen=True)
class Bar:
    """Parts on top of each other, and one beside them.

    Attributes
    ----------
    label : str
    parts : dict of str to float
        By kind, from below.
    beside : dict of str to float
        At most one, thin.
    """

    label: str
    parts: dict[str, float]
    beside: dict[str, float]


def bar_chart(
    name: str, title: str, description: str, x_label: str, bars: Sequence[Bar], highest: float
) -> str:
    """Return a chart of stacked bars.

    Parameters
    ----------
    name, title, description, x_label : str
        As of `line_chart`.
    bars : sequence of Bar
    highest : float
        Of all charts beside this one, so that they have one scale.
    """
    y = nice_scale([highest], HEIGHT - BOTTOM, TOP, least=True)
    foot = HEIGHT - BOTTOM
    drawn = _levels_of(y, 5)
    room = (WIDTH - RIGHT - LEFT) / max(1, len(bars))
    thin = 0.22 if any(bar.beside for bar in bars) else 0.0
    width = min(44.0, room * (0.74 - thin))
    every = math.ceil(len(bars) * max(1, max((len(b.label) for b in bars), default=1)) / 34)
    for k, bar in enumerate(bars):
        middle = LEFT + (k + 0.5) * room
        beside = min(12.0, room * thin)
        left, below = middle - (width + beside) / 2, 0.0
        for kind, value in bar.parts.items():
            drawn.append(_rect(kind, left, width, y(below), y(below + value)))
            below += value
        for kind, value in bar.beside.items():
            drawn.append(_rect(kind, left + width + 1.5, beside, foot, y(value)))
        if k % every == 0:
            drawn.append(
                f'<text class="tick" x="{middle:.2f}" y="{foot + 17}" text-anchor="middle">'
                f"{escape(bar.label)}</text>"
            )
    drawn.append(f'<path class="axis" d="M{LEFT} {foot}H{WIDTH - RIGHT}"/>')
    drawn.append(_x_label(x_label))
    return _svg(name, title, description, "".join(drawn))


def _rect(kind: str, left: float, width: float, below: float, above: float) -> str:
    if below - above < 0.01:
        return ""
    return (
        f'<rect class="bar b-{kind}" x="{left:.2f}" y="{above:.2f}" width="{width:.2f}" '
        f'height="{below - above:.2f}" fill="url(#p-{kind})"/>'
    )


def level_chart(
    name: str,
    title: str,
    description: str,
    x_label: str,
    rows: Sequence[tuple[str, float, float]],
) -> str:
    """Return a chart with a bar for each row, and a mark that it should not pass.

    Parameters
    ----------
    name, title, description, x_label : str
        As of `line_chart`.
    rows : sequence of (str, float, float)
        What stands above the bar, its value, and the mark.
    """
    height = TOP + LEVEL * len(rows) + BOTTOM
    x = nice_scale([v for row in rows for v in row[1:]], 12, WIDTH - RIGHT, least=True)
    foot = height - BOTTOM
    drawn = _marks_of(x, foot, f'class="grid" d="M{{:.2f}} {TOP}V{foot}"')
    for k, (label, value, bound) in enumerate(rows):
        above = TOP + k * LEVEL
        drawn.append(f'<text class="note" x="12" y="{above + 13}">{escape(label)}</text>')
        drawn.append(
            f'<rect class="bar b-solve" x="12" y="{above + 19}" width="{x(value) - 12:.2f}" '
            'height="16" fill="url(#p-solve)"/>'
        )
        drawn.append(f'<path class="bound" d="M{x(bound):.2f} {above + 15}v24"/>')
    middle = (12 + WIDTH - RIGHT) / 2
    drawn.append(
        f'<text class="name" x="{middle}" y="{height - 5}" text-anchor="middle">'
        f"{escape(x_label)}</text>"
    )
    return _svg(name, title, description, "".join(drawn), height)


def _svg(name: str, title: str, description: str, drawn: str, height: int = HEIGHT) -> str:
    return (
        f'<svg class="chart" id="{name}" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-labelledby="{name}-title {name}-desc"><title id="{name}-title">{escape(title)}'
        f'</title><desc id="{name}-desc">{escape(description)}</desc>{drawn}</svg>'
    )
