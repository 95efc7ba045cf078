"""The charts of a report, in sections: progress, streams, time, caches, memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from sbm.programs.reporting.charts import Bar, Line, bar_chart, level_chart, line_chart, swatch
from sbm.programs.reporting.markup import (
    LETTERS,
    figure,
    legend,
    run_title,
    seconds_in_words,
    section,
    short,
)
from sbm.programs.reporting.runlog import SECONDS, BlockFigures, PassFigures, RunFigures
from sbm.settings import format_size

__all__ = ["cache_section", "memory_section", "progress_section", "stream_section", "time_section"]

_MOST_BARS = 40
# Above this ratio of the largest to the smallest, objectives have a logarithmic scale.
_WIDE = 20.0
_HIGHEST_GAP = 10.0

_TIME_WORDS = {
    "solve": "solve", "wait": "wait for blocks", "certify": "certify",
    "combine": "add up with others", "write": "write (commits)", "rest": "the rest (start, log)",
    "load": "load, beside the others",
}  # fmt: skip
_CACHE_WORDS = {"k1": "free", "k2": "at the upper bound", "k3": "at 0"}
_AGE_WORDS = {
    "k1": "came in this pass", "k2": "one pass before", "k3": "2 or 3 before", "k4": "4 or more"
}  # fmt: skip


@dataclass(frozen=True)
class _Axis:
    """What figures are drawn against.

    Attributes
    ----------
    name, title : str
    of : callable
        Returns the value of a pass.
    units : sequence of (float, str)
        Largest value for which a unit is used, as a divisor too, and its name.
    """

    name: str
    title: str
    of: Callable[[PassFigures], float]
    units: Sequence[tuple[float, str]]

    def unit(self, largest: float) -> tuple[float, str]:
        """Return the divisor and the name of the unit for values up to the largest."""
        return next((u for u in reversed(self.units) if largest >= 2 * u[0]), self.units[0])


_SECONDS = ((1.0, "seconds"), (60.0, "minutes"), (3600.0, "hours"))
_AXES = (
    _Axis("time", "Time", lambda one: one.elapsed, _SECONDS),
    _Axis("passes", "Passes", lambda one: one.number, ((1.0, "passes"),)),
    _Axis("bytes", "Bytes read", lambda one: one.bytes_read, (
        (1e6, "MB read"), (1e9, "GB read"), (1e12, "TB read"))),
)  # fmt: skip


# ----------------------------------------------------------------------------------------- progress


def progress_section(runs: Sequence[tuple[int, RunFigures]]) -> str:
    """Objective, gap and test figures, against each axis."""
    buttons = "".join(
        f'<input type="radio" name="axis" id="axis-{axis.name}"{" checked" if not k else ""}>'
        f'<label for="axis-{axis.name}">{axis.title}</label>'
        for k, axis in enumerate(_AXES)
    )
    panels = "".join(
        f'<div class="panel {axis.name}"><h3>Against {axis.title.lower()}</h3>'
        f'<div class="charts">{_progress_charts(axis, runs)}</div></div>'
        for axis in _AXES
    )
    lead = (
        "Small filled markers are passes: dual values, and estimates of the gap. Large hollow ones "
        "are certified at fixed weights."
    )
    if len({repr([r.settings.get("loss"), r.settings.get("C")]) for _, r in runs}) > 1:
        lead += " Losses or costs differ, so objectives are those of different problems."
    keys = "".join(f"<li>{swatch(k)}{run_title(k, run)}</li>" for k, run in runs)
    return section(
        "progress", "How it went",
        f'<ul class="legend">{keys}</ul><div class="tabs" role="group" '
        f'aria-label="What figures are drawn against">{buttons}{panels}</div>',
        lead,
    )  # fmt: skip


def _progress_charts(axis: _Axis, runs: Sequence[tuple[int, RunFigures]]) -> str:
    largest = max((axis.of(p) for _, run in runs for p in run.passes), default=0.0)
    divisor, unit = axis.unit(largest)

    def line(
        number: int, run: RunFigures, of: Callable[[PassFigures], float | None], style: str = "line"
    ) -> Line:
        points = [
            (axis.of(one) / divisor, value) for one in run.passes if (value := of(one)) is not None
        ]
        letter = LETTERS[number] if len(runs) > 1 and style == "line" else ""
        return Line(number, letter, points, style)

    def lines(*figures: tuple[Callable[[PassFigures], float | None], str]) -> list[Line]:
        return [line(k, run, of, style) for of, style in figures for k, run in runs]

    duals = [one.dual for _, run in runs for one in run.passes]
    wide = min(duals) > 0 and max(duals) > _WIDE * min(duals)
    charts = [
        figure(
            "Objective",
            line_chart(
                f"objective-{axis.name}", f"Objective against {axis.title.lower()}",
                _in_words(runs, "dual value", lambda one: f"{one.dual:.6g}"), unit,
                lines((lambda one: one.dual, "line"), (_primal, "points")), is_log=wide,
            ),
            "dual, and primal where certified",
        ),
        figure(
            "Relative gap",
            line_chart(
                f"gap-{axis.name}", f"Relative gap against {axis.title.lower()}",
                _in_words(runs, "relative gap", lambda one: short(one.relative_gap)), unit,
                lines((lambda one: one.relative_gap, "line"), (_certified_gap, "points")),
                is_log=True, highest=_HIGHEST_GAP, level=_tolerance(runs),
            ),
            "estimated, and certified",
        ),
    ]  # fmt: skip
    for name, words, of in (
        ("accuracy", "Test accuracy", _accuracy), ("mse", "Test mean squared error", _mse)
    ):  # fmt: skip
        if any(of(one) is not None for _, run in runs for one in run.passes):
            told = _in_words(runs, words.lower(), _words_with(of))
            title = f"{words} against {axis.title.lower()}"
            chart = line_chart(f"{name}-{axis.name}", title, told, unit, lines((of, "line")))
            charts.append(figure(words, chart, "%" if name == "accuracy" else ""))
    return "".join(charts)


def _primal(one: PassFigures) -> float | None:
    return None if one.certificate is None else one.certificate["primal"]


def _certified_gap(one: PassFigures) -> float | None:
    return one.certified_gap


def _accuracy(one: PassFigures) -> float | None:
    return one.accuracy_percent


def _mse(one: PassFigures) -> float | None:
    return one.mse


def _words_with(of: Callable[[PassFigures], float | None]) -> Callable[[PassFigures], str]:
    return lambda one: short(of(one), ".6g")


def _tolerance(runs: Sequence[tuple[int, RunFigures]]) -> tuple[float, str] | None:
    """The level that gaps should come to, where it is one."""
    found = {float(run.settings["tol"]) for _, run in runs}
    tol = found.pop()
    return (tol, f"tolerance {tol:g}") if not found and tol > 1e-12 else None


def _in_words(
    runs: Sequence[tuple[int, RunFigures]], what: str, of: Callable[[PassFigures], str]
) -> str:
    """Say what a chart shows, for those who do not see it."""
    told = [f"{run.name}: {what} {of(run.passes[-1])} after pass {run.passes[-1].number}"
            for _, run in runs if run.passes]  # fmt: skip
    return "; ".join(told) + ". All figures are in the tables at the end."


# ------------------------------------------------------------------------------------------ streams


def stream_section(runs: Sequence[tuple[int, RunFigures]]) -> str:
    """Progressive loss and accuracy, by rows and by time."""
    charts = []
    for name, words, of in (
        ("loss", "Progressive loss", lambda one: one.loss),
        ("right", "Progressive accuracy", lambda one: one.accuracy_percent),
    ):
        for against in ("rows", "time"):
            chart = _stream_chart(f"{name}-{against}", words, against, of, runs)
            if chart:
                unit = "%" if name == "right" else ""
                charts.append(figure(f"{words}, by {against}", chart, unit))
    lead = "Every row was predicted before it was learned; these are means over all rows so far."
    return section("streams", "Streams", f'<div class="charts">{"".join(charts)}</div>', lead)


def _stream_chart(
    name: str,
    words: str,
    against: str,
    of: Callable[[BlockFigures], float | None],
    runs: Sequence[tuple[int, RunFigures]],
) -> str:
    found = []
    for k, run in runs:
        shown = [one for one in run.blocks if of(one) is not None]
        ends = [one.rows if against == "rows" else one.elapsed for one in shown]
        found.append((k, run, shown, ends))
    if not any(shown for _, _, shown, _ in found):
        return ""
    largest = max(max(ends, default=0.0) for *_, ends in found)
    time = _AXES[0].unit(largest)
    divisor, unit = (1.0, "rows") if against == "rows" else time
    lines = [
        Line(k, LETTERS[k] if len(runs) > 1 else "",
             [(end / divisor, float(of(one) or 0.0)) for one, end in zip(shown, ends, strict=True)])
        for k, _, shown, ends in found
    ]  # fmt: skip
    told = "; ".join(
        f"{run.name}: {of(shown[-1]):.4g} after {shown[-1].rows:,} rows"
        for _, run, shown, _ in found if shown
    )  # fmt: skip
    return line_chart(name, f"{words} by {against}", told, unit, lines)


# ------------------------------------------------------------------------------ time, cache, memory


def _groups(passes: Sequence[PassFigures]) -> list[Sequence[PassFigures]]:
    """Put passes together where there are too many for a bar each."""
    size = -(-len(passes) // _MOST_BARS)
    return [passes[k : k + size] for k in range(0, len(passes), size)]


def _label(group: Sequence[PassFigures]) -> str:
    first, last = group[0].number, group[-1].number
    return f"{first}" if first == last else f"{first}–{last}"


def _rest(before: float, one: PassFigures) -> float:
    """Seconds of a pass that are none of those that are measured."""
    return max(0.0, one.elapsed - before - sum(one.seconds[name] for name in SECONDS))


def _time_bars(run: RunFigures) -> list[Bar]:
    begins = [0.0, *(one.elapsed for one in run.passes[:-1])]
    rest = {id(one): _rest(begin, one) for one, begin in zip(run.passes, begins, strict=True)}
    return [
        Bar(
            _label(group),
            {name: sum(one.seconds[name] for one in group) for name in SECONDS}
            | {"rest": sum(rest[id(one)] for one in group)},
            {"load": sum(one.seconds["load"] for one in group)},
        )
        for group in _groups(run.passes)
    ]


def _height(bars: Iterable[Bar]) -> float:
    return max((max(sum(b.parts.values()), *b.beside.values(), 0.0) for b in bars), default=0.0)


def time_section(runs: Sequence[tuple[int, RunFigures]]) -> str:
    """What the time of each pass went to."""
    bars = {k: _time_bars(run) for k, run in runs}
    highest = max(_height(mine) for mine in bars.values())
    divisor, unit = _AXES[0].unit(highest)
    seen = {kind for mine in bars.values() for bar in mine for kind, value in bar.parts.items()
            if value > 0} | {"load"}  # fmt: skip
    charts = []
    for k, run in runs:
        scaled = [
            Bar(bar.label, *({kind: v / divisor for kind, v in some.items()}
                             for some in (bar.parts, bar.beside)))
            for bar in bars[k]
        ]  # fmt: skip
        total = {kind: sum(b.parts.get(kind, 0) + b.beside.get(kind, 0) for b in bars[k])
                 for kind in _TIME_WORDS}  # fmt: skip
        told = ", ".join(
            f"{word} {seconds_in_words(total[kind])}"
            for kind, word in _TIME_WORDS.items() if kind in seen
        )  # fmt: skip
        chart = bar_chart(f"time-{k}", f"Time of each pass of {run.name}", f"In all: {told}.",
                          "pass", scaled, highest / divisor)  # fmt: skip
        charts.append(figure(run_title(k, run), chart, f"{unit} a pass"))
    words = {kind: word for kind, word in _TIME_WORDS.items() if kind in seen}
    lead = (
        "A thick bar is the time of a pass. The thin one beside it is what loading took meanwhile, "
        "in a thread of its own: of that only the waiting delays a pass."
    )
    content = f'{legend(words)}<div class="charts">{"".join(charts)}</div>'
    return section("times", "Where the time went", content, lead)


def cache_section(runs: Sequence[tuple[int, RunFigures]]) -> str:
    """What cached rows are, and when they came."""
    charts = []
    for k, run in runs:
        highest = max((float(one.cached) for one in run.passes), default=0.0)
        if not highest:
            charts.append(f'<p class="none">{run_title(k, run)} had no cache.</p>')
            continue
        last = [group[-1] for group in _groups(run.passes)]
        kinds = [Bar(f"{one.number}", _cache_parts(one), {}) for one in last]
        ages = [Bar(f"{one.number}", _age_parts(one.ages), {}) for one in last if one.ages]
        end = last[-1]
        told = f"After the last pass {end.cached:,} rows, {end.free:,} of them free."
        charts.append(figure(
            f"{run_title(k, run)}: what the rows are",
            bar_chart(f"cache-{k}", f"Cached rows of {run.name} after each pass", told, "pass",
                      kinds, highest),
            "rows",
        ))  # fmt: skip
        if ages:
            parts = _age_parts(end.ages)
            told = "After the last pass " + ", ".join(
                f"{parts[kind]:,.0f} rows {word}" for kind, word in _AGE_WORDS.items()
            )
            charts.append(figure(
                f"{run_title(k, run)}: when they came",
                bar_chart(f"age-{k}", f"Age of the cached rows of {run.name}", told, "pass",
                          ages, highest),
                "rows",
            ))  # fmt: skip
    return section(
        "caches", "What is in the cache",
        f'<div class="pair"><div><h3>What rows are</h3>{legend(_CACHE_WORDS)}</div>'
        f"<div><h3>When they came</h3>{legend(_AGE_WORDS)}</div></div>"
        f'<div class="charts">{"".join(charts)}</div>',
        "At the end of each pass. Free rows have an alpha inside its bounds: they are what the "
        "cache is for.",
    )  # fmt: skip


def _cache_parts(one: PassFigures) -> dict[str, float]:
    bound, zero = max(0, one.cached - one.free), one.zero or 0
    return {"k1": one.free, "k2": max(0, bound - zero), "k3": min(zero, bound)}


def _age_parts(ages: Sequence[int]) -> dict[str, float]:
    return {"k1": sum(ages[:1]), "k2": sum(ages[1:2]), "k3": sum(ages[2:4]), "k4": sum(ages[4:])}


def memory_section(runs: Sequence[RunFigures]) -> str:
    """The most memory in use, against its bound."""
    unit, word = (1e6, "MB") if max(max(r.mem, r.peak) for r in runs) < 2e9 else (1e9, "GB")
    rows = [
        (f"{LETTERS[k]}  {run.name[:24]}: {format_size(run.peak)} of {format_size(run.mem)}",
         run.peak / unit, run.mem / unit)
        for k, run in enumerate(runs)
    ]  # fmt: skip
    told = "; ".join(
        f"{run.name}: at most {format_size(run.peak)} of {format_size(run.mem)}" for run in runs
    )
    chart = level_chart("memory-levels", "Memory against its bound", told, word, rows)
    return section(
        "memory", "Memory", f'<div class="charts">{figure("Peak", chart, word)}</div>',
        "The bar is the most that was in use, the mark is <code>--mem</code>. Of unfinished runs "
        "it is the most that was in use at the end of a pass.",
    )  # fmt: skip
