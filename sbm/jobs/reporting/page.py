"""The page of a report: one file that needs nothing else, no network, no program.

Whatever comes from files is escaped: names of runs and sources are anybody's words.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from sbm.jobs.reporting.charts import (
    PATTERNS,
    Bar,
    Line,
    bar_chart,
    level_chart,
    line_chart,
    swatch,
)
from sbm.jobs.reporting.runlog import SECONDS, BlockFigures, PassFigures, RunFigures
from sbm.jobs.reporting.style import STYLE
from sbm.settings import Settings, format_number, format_size

__all__ = ["AXES", "LETTERS", "Axis", "to_html"]

LETTERS = string.ascii_uppercase
_MOST_BARS = 40
_HYPHENED = re.compile(r"(--[a-z-]+|[\d.]+e-\d+)")  # not to be broken into two lines
# Above this ratio of the largest to the smallest, objectives have a logarithmic scale.
_WIDE = 20.0
_HIGHEST_GAP = 10.0

_TIME_WORDS = {
    "solve": "solve", "wait": "wait for blocks", "certify": "certify",
    "combine": "add up with others", "write": "write (commits)", "rest": "the rest (start, log)",
    "load": "load, beside the others",
}  # fmt: skip
_CACHE_WORDS = {"k1": "free", "k2": "at the upper bound", "k3": "at 0"}
_OLD_CACHE_WORDS = {"k1": "free", "k2": "at a bound"}
_AGE_WORDS = {
    "k1": "came in this pass", "k2": "one pass before", "k3": "2 or 3 before", "k4": "4 or more"
}  # fmt: skip


@dataclass(frozen=True)
class Axis:
    """What figures are drawn against.

    Attributes
    ----------
    name, title : str
    of : callable
        Returns the value of a pass, None where it is not known.
    units : sequence of (float, str)
        Largest value for which a unit is used, as a divisor too, and its name.
    """

    name: str
    title: str
    of: Callable[[PassFigures], float | None]
    units: Sequence[tuple[float, str]]

    def unit(self, largest: float) -> tuple[float, str]:
        """Return the divisor and the name of the unit for values up to the largest."""
        return next((u for u in reversed(self.units) if largest >= 2 * u[0]), self.units[0])


_SECONDS = ((1.0, "seconds"), (60.0, "minutes"), (3600.0, "hours"))
AXES = (
    Axis("time", "Time", lambda one: one.elapsed, _SECONDS),
    Axis("passes", "Passes", lambda one: one.number, ((1.0, "passes"),)),
    Axis("bytes", "Bytes read", lambda one: one.bytes_read, (
        (1e6, "MB read"), (1e9, "GB read"), (1e12, "TB read"))),
)  # fmt: skip


def to_html(runs: Sequence[RunFigures]) -> str:
    """Return the page.

    Parameters
    ----------
    runs : sequence of RunFigures
        At most as many as there are `LETTERS`.
    """
    lettered = list(zip(LETTERS, runs, strict=False))
    trained = [(k, run) for k, (_, run) in enumerate(lettered) if run.kind == "train"]
    streams = [(k, run) for k, (_, run) in enumerate(lettered) if run.kind == "stream"]
    names = " · ".join(run.name for run in runs)
    title = f"sbm report: {names}" if len(names) < 120 else f"sbm report of {len(runs)} runs"
    body = [
        f"<header><h1>{escape(names)}</h1>{_cards(runs)}</header>",
        _progress(trained) if any(run.passes for _, run in trained) else "",
        _streams(streams) if any(run.blocks for _, run in streams) else "",
        _times(trained) if any(run.passes for _, run in trained) else "",
        _caches(trained) if any(run.passes for _, run in trained) else "",
        _memory(runs),
        _settings(runs),
        _certificates(trained),
        _sources(runs),
        _figures(runs),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>{PATTERNS}"
        f"<main>{''.join(body)}</main><footer>Made by <code>sbm report</code> from the logs of "
        "runs, which have no checksums; <code>sbm info MODEL</code> tells the certificate that a "
        "model carries.</footer></body></html>\n"
    )


# ------------------------------------------------------------------------------------------ words


def _seconds(value: float) -> str:
    if value < 120:
        return f"{value:.3g} s" if value < 10 else f"{value:.1f} s"
    return f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"


def _escape_whole(text: str) -> str:
    """Escape a sentence, and keep its options and small numbers whole."""
    return _HYPHENED.sub(r'<span class="whole">\1</span>', escape(text))


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.3f}\N{NO-BREAK SPACE}%"


def _short(value: float | None, form: str = ".2e") -> str:
    return "–" if value is None else format(value, form)


def _section(name: str, title: str, content: str, lead: str = "") -> str:
    lead = f'<p class="lead">{lead}</p>' if lead else ""
    return f'<section id="{name}"><h2>{title}</h2>{lead}{content}</section>'


def _figure(title: str, chart: str, unit: str = "") -> str:
    unit = f' <span class="unit">{escape(unit)}</span>' if unit else ""
    return f"<figure><figcaption>{title}{unit}</figcaption>{chart}</figure>"


def _table(
    caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], kinds: Sequence[str] = ()
) -> str:
    """Return a table that scrolls by itself; all of it is escaped, but for `kinds`, of its rows."""
    titles = "".join(f'<th scope="col">{escape(one)}</th>' for one in head)
    lines = []
    for k, row in enumerate(rows):
        first, *others = row
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in others)
        kind = f' class="{kinds[k]}"' if k < len(kinds) and kinds[k] else ""
        lines.append(f'<tr{kind}><th scope="row">{escape(first)}</th>{cells}</tr>')
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{titles}</tr></thead>"
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _legend(words: Mapping[str, str]) -> str:
    """Show what the patterns of bars are."""
    items = "".join(
        f'<li><svg class="swatch" viewBox="0 0 20 14" width="20" height="14" aria-hidden="true">'
        f'<rect class="bar b-{kind}" x="1" y="1" width="18" height="12" fill="url(#p-{kind})"/>'
        f"</svg>{escape(word)}</li>"
        for kind, word in words.items()
    )
    return f'<ul class="legend">{items}</ul>'


def _run_title(number: int, run: RunFigures) -> str:
    return f'<b class="key c{number % 8}">{LETTERS[number]}</b> {escape(run.name)}'


# ------------------------------------------------------------------------------------------ header


def _cards(runs: Sequence[RunFigures]) -> str:
    return '<div class="cards">' + "".join(_card(k, run) for k, run in enumerate(runs)) + "</div>"


def _card(number: int, run: RunFigures) -> str:
    verdict, kind = _verdict(run)
    warnings = "".join(f"<li>{_escape_whole(text)}</li>" for text in run.warnings())
    warnings = f'<ul class="warnings">{warnings}</ul>' if warnings else ""
    return (
        f'<article class="card {kind}"><h2>{swatch(number)}{_run_title(number, run)}</h2>'
        f"<p><strong>{_escape_whole(verdict)}</strong></p><p>{escape(_summary(run))}</p>{warnings}"
        "</article>"
    )


def _verdict(run: RunFigures) -> tuple[str, str]:
    """What came of a run, and what that is: good, bad or open."""
    if run.kind == "stream":
        return ("a stream, finished" if run.is_finished else "a stream, not finished"), "open"
    if not run.is_finished:
        return "unfinished", "open"
    certificate = run.certificate
    if certificate is None:
        return "finished, without a certificate in its log", "open"
    gap = f"certified gap {certificate['relative_gap']:.2e}"
    if certificate["relative_gap"] <= float(run.settings["tol"]):
        return f"converged: {gap}", "good"
    return f"not converged: {gap}", "bad"


def _summary(run: RunFigures) -> str:
    told = []
    if run.kind == "stream":
        rows = run.blocks[-1].rows if run.blocks else 0
        told = [f"{rows:,} rows in {len(run.blocks):,} blocks"]
        if run.blocks:
            told.append(_seconds(run.blocks[-1].elapsed))
    elif run.passes:
        last = run.passes[-1]
        told = [f"{last.number:,} passes" if last.number != 1 else "1 pass"]
        total = run.end.get("seconds", {}).get("total", last.elapsed)
        told.append(_seconds(float(total)))
        if last.bytes_read is not None:
            told.append(f"{format_size(last.bytes_read)} read")
        tested = [one.accuracy for one in run.passes if one.accuracy is not None]
        if tested:
            told.append(f"test accuracy {_percent(tested[-1])}")
    else:
        told = ["no pass yet"]
    return ", ".join([*told, f"at most {format_size(run.peak)} of memory"])


# --------------------------------------------------------------------------------------- progress


def _progress(runs: Sequence[tuple[int, RunFigures]]) -> str:
    """Objective, gap and test figures, against each axis."""
    axes = [axis for axis in AXES if any(axis.of(p) is not None for _, r in runs for p in r.passes)]
    buttons = "".join(
        f'<input type="radio" name="axis" id="axis-{axis.name}"{" checked" if not k else ""}>'
        f'<label for="axis-{axis.name}">{axis.title}</label>'
        for k, axis in enumerate(axes)
    )
    panels = "".join(
        f'<div class="panel {axis.name}"><h3>Against {axis.title.lower()}</h3>'
        f'<div class="charts">{_progress_charts(axis, runs)}</div></div>'
        for axis in axes
    )
    lead = (
        "Small filled markers are passes: dual values, and estimates of the gap. Large hollow ones "
        "are certified at fixed weights."
    )
    if len({repr([r.settings.get("loss"), r.settings.get("C")]) for _, r in runs}) > 1:
        lead += " Losses or costs differ, so objectives are those of different problems."
    missing = [r.name for _, r in runs if r.passes and r.passes[-1].bytes_read is None]
    if missing and len(axes) == len(AXES):
        lead += f" The bytes of {escape(', '.join(missing))} are not in the log, which is older."
    legend = "".join(f"<li>{swatch(k)}{_run_title(k, run)}</li>" for k, run in runs)
    return _section(
        "progress", "How it went",
        f'<ul class="legend">{legend}</ul><div class="tabs" role="group" '
        f'aria-label="What figures are drawn against">{buttons}{panels}</div>',
        lead,
    )  # fmt: skip


def _progress_charts(axis: Axis, runs: Sequence[tuple[int, RunFigures]]) -> str:
    largest = max((axis.of(p) or 0.0 for _, run in runs for p in run.passes), default=0.0)
    divisor, unit = axis.unit(largest)

    def line(
        number: int, run: RunFigures, of: Callable[[PassFigures], float | None], style: str = "line"
    ) -> Line:
        points = [
            (at / divisor, value)
            for one in run.passes
            if (at := axis.of(one)) is not None and (value := of(one)) is not None
        ]
        letter = LETTERS[number] if len(runs) > 1 and style == "line" else ""
        return Line(number, letter, points, style)

    def lines(*figures: tuple[Callable[[PassFigures], float | None], str]) -> list[Line]:
        return [line(k, run, of, style) for of, style in figures for k, run in runs]

    duals = [one.dual for _, run in runs for one in run.passes]
    wide = min(duals) > 0 and max(duals) > _WIDE * min(duals)
    charts = [
        _figure(
            "Objective",
            line_chart(
                f"objective-{axis.name}", f"Objective against {axis.title.lower()}",
                _in_words(runs, "dual value", lambda one: f"{one.dual:.6g}"), unit,
                lines((lambda one: one.dual, "line"), (_primal, "points")), is_log=wide,
            ),
            "dual, and primal where certified",
        ),
        _figure(
            "Relative gap",
            line_chart(
                f"gap-{axis.name}", f"Relative gap against {axis.title.lower()}",
                _in_words(runs, "relative gap", lambda one: _short(one.relative_gap)), unit,
                lines((lambda one: one.relative_gap, "line"), (_certified, "points")),
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
            charts.append(_figure(words, chart, "%" if name == "accuracy" else ""))
    return "".join(charts)


def _primal(one: PassFigures) -> float | None:
    return None if one.certificate is None else one.certificate["primal"]


def _certified(one: PassFigures) -> float | None:
    return None if one.certificate is None else one.certificate["relative_gap"]


def _accuracy(one: PassFigures) -> float | None:
    return one.accuracy_percent


def _mse(one: PassFigures) -> float | None:
    return one.mse


def _words_with(of: Callable[[PassFigures], float | None]) -> Callable[[PassFigures], str]:
    return lambda one: _short(of(one), ".6g")


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


# ---------------------------------------------------------------------------------------- streams


def _streams(runs: Sequence[tuple[int, RunFigures]]) -> str:
    charts = []
    for name, words, of in (
        ("loss", "Progressive loss", lambda one: one.loss),
        ("right", "Progressive accuracy", lambda one: one.accuracy_percent),
    ):
        for against in ("rows", "time"):
            chart = _stream_chart(f"{name}-{against}", words, against, of, runs)
            if chart:
                unit = "%" if name == "right" else ""
                charts.append(_figure(f"{words}, by {against}", chart, unit))
    if not charts:
        charts = ["<p>The log is of an older version and holds no losses.</p>"]
    lead = "Every row was predicted before it was learned; these are means over all rows so far."
    return _section("streams", "Streams", f'<div class="charts">{"".join(charts)}</div>', lead)


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
    time = AXES[0].unit(largest)
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


# ----------------------------------------------------------------------------- time, cache, memory


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


def _times(runs: Sequence[tuple[int, RunFigures]]) -> str:
    bars = {k: _time_bars(run) for k, run in runs}
    highest = max(_height(mine) for mine in bars.values())
    divisor, unit = AXES[0].unit(highest)
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
        told = ", ".join(f"{word} {_seconds(total[kind])}" for kind, word in _TIME_WORDS.items()
                         if kind in seen)  # fmt: skip
        chart = bar_chart(f"time-{k}", f"Time of each pass of {run.name}", f"In all: {told}.",
                          "pass", scaled, highest / divisor)  # fmt: skip
        charts.append(_figure(_run_title(k, run), chart, f"{unit} a pass"))
    words = {kind: word for kind, word in _TIME_WORDS.items() if kind in seen}
    lead = (
        "A thick bar is the time of a pass. The thin one beside it is what loading took meanwhile, "
        "in a thread of its own: of that only the waiting delays a pass."
    )
    content = f'{_legend(words)}<div class="charts">{"".join(charts)}</div>'
    return _section("times", "Where the time went", content, lead)


def _caches(runs: Sequence[tuple[int, RunFigures]]) -> str:
    charts, is_old = [], any(one.zero is None for _, run in runs for one in run.passes)
    for k, run in runs:
        highest = max((float(one.cached) for one in run.passes), default=0.0)
        if not highest:
            charts.append(f'<p class="none">{_run_title(k, run)} had no cache.</p>')
            continue
        last = [group[-1] for group in _groups(run.passes)]
        kinds = [Bar(f"{one.number}", _cache_parts(one, is_old), {}) for one in last]
        ages = [Bar(f"{one.number}", _age_parts(one.ages), {}) for one in last if one.ages]
        end = last[-1]
        told = f"After the last pass {end.cached:,} rows, {end.free:,} of them free."
        charts.append(_figure(
            f"{_run_title(k, run)}: what the rows are",
            bar_chart(f"cache-{k}", f"Cached rows of {run.name} after each pass", told, "pass",
                      kinds, highest),
            "rows",
        ))  # fmt: skip
        if ages:
            parts = _age_parts(end.ages)
            told = "After the last pass " + ", ".join(
                f"{parts[kind]:,.0f} rows {word}" for kind, word in _AGE_WORDS.items()
            )
            charts.append(_figure(
                f"{_run_title(k, run)}: when they came",
                bar_chart(f"age-{k}", f"Age of the cached rows of {run.name}", told, "pass",
                          ages, highest),
                "rows",
            ))  # fmt: skip
    words = _OLD_CACHE_WORDS if is_old else _CACHE_WORDS
    return _section(
        "caches", "What is in the cache",
        f'<div class="pair"><div><h3>What rows are</h3>{_legend(words)}</div>'
        f"<div><h3>When they came</h3>{_legend(_AGE_WORDS)}</div></div>"
        f'<div class="charts">{"".join(charts)}</div>',
        "At the end of each pass. Free rows have an alpha inside its bounds: they are what the "
        "cache is for.",
    )  # fmt: skip


def _cache_parts(one: PassFigures, is_old: bool) -> dict[str, float]:
    bound = max(0, one.cached - one.free)
    if is_old or one.zero is None:
        return {"k1": one.free, "k2": bound}
    return {"k1": one.free, "k2": max(0, bound - one.zero), "k3": min(one.zero, bound)}


def _age_parts(ages: Sequence[int]) -> dict[str, float]:
    return {"k1": sum(ages[:1]), "k2": sum(ages[1:2]), "k3": sum(ages[2:4]), "k4": sum(ages[4:])}


def _memory(runs: Sequence[RunFigures]) -> str:
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
    return _section(
        "memory", "Memory", f'<div class="charts">{_figure("Peak", chart, word)}</div>',
        "The bar is the most that was in use, the mark is <code>--mem</code>. Of unfinished runs "
        "it is the most that was in use at the end of a pass.",
    )  # fmt: skip


# ----------------------------------------------------------------------------------------- tables


def _words_of(value: Any) -> str:
    if value is None or value == {}:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return format_number(value)
    if isinstance(value, dict):
        return ", ".join(f"{k}: {_words_of(v)}" for k, v in value.items())
    return str(value)


def _settings(runs: Sequence[RunFigures]) -> str:
    usual = Settings().to_dict()
    names = list(dict.fromkeys([*usual, *(name for run in runs for name in run.settings)]))
    rows: dict[str, list[tuple[str, ...]]] = {"differs": [], "": [], "usual": []}
    for name in names:
        values = [
            format_size(run.mem) if name == "mem" else _words_of(run.settings.get(name))
            for run in runs
        ]
        is_usual = all(run.settings.get(name, usual.get(name)) == usual.get(name) for run in runs)
        kind = "differs" if len(set(values)) > 1 else "usual" if is_usual else ""
        mark = "≠ " if kind == "differs" else ""
        rows[kind].append((mark + name.replace("_", "-"), *values))
    head = ["setting", *(f"{LETTERS[k]} {run.name}" for k, run in enumerate(runs))]
    chosen = [*rows["differs"], *rows[""]]
    kinds = ["differs"] * len(rows["differs"])
    caption = "Settings that differ (≠) or are not the usual ones"
    shown = (
        _table(caption, head, chosen, kinds)
        if chosen
        else "<p>All settings are the usual ones.</p>"
    )
    return _section(
        "settings", "Settings",
        f"{shown}<details><summary>Settings that are as usual</summary>"
        f"{_table('Usual settings', head, rows['usual'])}</details>",
    )  # fmt: skip


def _certificates(runs: Sequence[tuple[int, RunFigures]]) -> str:
    if not runs:
        return ""
    figures: tuple[tuple[str, Callable[[RunFigures], str]], ...] = (
        ("primal", lambda run: _short((run.certificate or {}).get("primal"), ".8g")),
        ("dual", lambda run: _short((run.certificate or {}).get("dual"), ".8g")),
        ("relative gap", lambda run: _short((run.certificate or {}).get("relative_gap"))),
        ("tolerance", lambda run: f"{float(run.settings['tol']):g}"),
        ("converged", lambda run: {"good": "yes", "bad": "no"}.get(_verdict(run)[1], "–")),
        ("support vectors", lambda run: _end_count(run, "n_support")),
        ("free ones", lambda run: _end_count(run, "n_free")),
        ("updates", lambda run: _end_count(run, "updates")),
        ("passes", lambda run: f"{run.passes[-1].number}" if run.passes else "0"),
    )  # fmt: skip
    rows = [(what, *(of(run) for _, run in runs)) for what, of in figures]
    head = ["", *(f"{LETTERS[k]} {run.name}" for k, run in runs)]
    return _section(
        "certificates", "Certificate", _table("What is proven", head, rows),
        "Primal minus dual value, computed at fixed weights over all rows: no model is better by "
        "more than the gap.",
    )  # fmt: skip


def _end_count(run: RunFigures, name: str) -> str:
    value = run.end.get(name)
    return f"{value:,}" if isinstance(value, int) else "–"


def _sources(runs: Sequence[RunFigures]) -> str:
    rows = []
    for k, run in enumerate(runs):
        for source in run.sources:
            digest, size = source.get("sha256"), source.get("bytes")
            rows.append((
                f"{LETTERS[k]} {run.name}", source["name"], f"{source['rows']:,}",
                format_size(size) if isinstance(size, int) else "–",
                str(digest)[:16] if digest else "–",
            ))  # fmt: skip
    head = ["run", "source", "rows", "size", "sha256"]
    content = _table("Texts that models were made from", head, rows)
    if not rows:
        content = "<p>There is no model yet, which would tell.</p>"
    return _section("sources", "Sources", content)


_PASS_HEAD = (
    "pass", "rounds", "seconds", "dual", "est. gap", "certified", "test", "solve", "wait", "load",
    "certify", "write", "read", "cached", "free", "at 0", "memory",
)  # fmt: skip


def _figures(runs: Sequence[RunFigures]) -> str:
    tables = []
    for k, run in enumerate(runs):
        caption = f"{LETTERS[k]} {run.name}"
        if run.kind == "train":
            table = _table(caption, _PASS_HEAD, map(_pass_row, run.passes))
        else:
            every = -(-len(run.blocks) // 200) if run.blocks else 1
            some = run.blocks[::-1][::every][::-1]
            head = ("rows", "seconds", "loss", "accuracy", "cached", "memory")
            table = _table(caption, head, map(_block_row, some))
        tables.append(f"<details><summary>{_run_title(k, run)}</summary>{table}</details>")
    return _section("figures", "All figures", "".join(tables), "What the charts show, as tables.")


def _pass_row(one: PassFigures) -> list[str]:
    s = one.seconds
    test = _percent(one.accuracy) if one.mse is None else f"{one.mse:.6g}"
    return [
        f"{one.number}", f"{one.rounds}", f"{one.elapsed:.2f}", f"{one.dual:.8g}",
        _short(one.estimate), _short(_certified(one)), test, f"{s['solve']:.3f}",
        f"{s['wait']:.3f}", f"{s['load']:.3f}", f"{s['certify']:.3f}", f"{s['write']:.3f}",
        "–" if one.bytes_read is None else format_size(one.bytes_read), f"{one.cached:,}",
        f"{one.free:,}", "–" if one.zero is None else f"{one.zero:,}", format_size(one.resident),
    ]  # fmt: skip


def _block_row(one: BlockFigures) -> list[str]:
    return [
        f"{one.rows:,}", f"{one.elapsed:.2f}", _short(one.loss, ".6f"), _percent(one.accuracy),
        f"{one.cached:,}", format_size(one.resident),
    ]  # fmt: skip
