"""The page of a report: one HTML file without JavaScript that needs no network."""

from __future__ import annotations

import datetime
import itertools
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, TypeVar

import jinja2

import sbm
from sbm.plain import dataclass
from sbm.programs.reporting import charts
from sbm.programs.reporting.charts import BarChart, LineChart, Series
from sbm.programs.reporting.figures import SECONDS, BlockFigures, PassFigures, RunFigures
from sbm.settings import Settings, option_name, used_by
from sbm.units import BYTES, TIME, choose_unit, format_number, format_size

MARK = "<!-- sbm report -->"  # in one of the first lines of every page
MOST_RUNS = 26
_MOST_BARS = 40
_LARGEST_GAP = 100.0  # larger gaps say nothing and would hide the others

T = TypeVar("T", PassFigures, BlockFigures)
Runs = Sequence[tuple[int, RunFigures]]  # with their numbers, which decide colors
_PARTS = {
    "solve": "solve", "wait": "wait for blocks", "certify": "certify",
    "combine": "combine ranks", "write": "write checkpoints",
}  # fmt: skip
_TIME_LEAD = (
    "Blocks load in the background. Only waiting for them delays a pass. The tables show how long "
    "loading took."
)
_CACHE_LEAD = (
    "Cached rows at the end of each pass. The cache is meant for free rows, whose alpha is inside "
    "its bounds."
)


@dataclass(frozen=True)
class _Axis:
    """What passes or blocks are plotted against."""

    name: str
    title: str
    of: Callable[[Any], float]
    units: Sequence[tuple[float, str]]

    def unit(self, runs: Runs) -> tuple[float, str]:
        """Return the unit that suits the largest value, and the label of the axis."""
        values = [self.of(one) for _, run in runs for one in [*run.passes, *run.blocks]]
        size, unit = choose_unit(max(values, default=0.0), self.units)
        return size, f"{self.title.lower()}, {unit}" if unit else self.title.lower()


_AXES = (
    _Axis("time", "Time", lambda one: one.elapsed, TIME),
    _Axis("passes", "Passes", lambda one: one.number, ((1.0, ""),)),
    _Axis("bytes", "Bytes read", lambda one: one.bytes_read, BYTES),
)
_ROWS = _Axis("rows", "Rows", lambda one: one.rows, ((1.0, ""),))


@dataclass(frozen=True)
class _Table:
    """Text in rows; the first cell of each is its heading. Rows in `marked` stand out."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: frozenset[int] = frozenset()


@dataclass(frozen=True)
class _Section:
    """Charts with one legend, and notes about runs without a chart."""

    name: str
    title: str
    lead: str
    charts: Sequence[LineChart | BarChart] = ()
    legend: Sequence[tuple[int, str]] = ()
    notes: Sequence[str] = field(default_factory=list)


def to_html(runs: Sequence[RunFigures]) -> str:
    """Return the page about at most `MOST_RUNS` runs with distinct names."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    numbered = list(enumerate(runs))
    trained = [(k, run) for k, run in numbered if run.passes]
    streams = [(k, run) for k, run in numbered if run.blocks]
    sections = [_stream_section(streams)] if streams else []
    if curved := [(k, run) for k, run in numbered if len(run.curves) == 2]:
        sections.append(_curve_section(curved))
    if trained:
        sections += [
            _bar_section("times", "Where the time went", _TIME_LEAD, trained, _time_parts, TIME),
            _bar_section("caches", "Cache contents", _CACHE_LEAD, trained, _cache_parts,
                         ((1.0, "rows"),)),
        ]  # fmt: skip
    return environment.get_template("report.html").render(
        mark=MARK,
        version=sbm.__version__,
        date=_date(time.time()),
        geometry=charts,
        title=_title(runs),
        cards=[_card(run) for run in runs],
        legend=[(k, run.name) for k, run in trained],
        panels=[(axis, _progress_charts(axis, trained)) for axis in _AXES] if trained else [],
        sections=sections,
        memory=[(run.name, run.peak, run.mem, format_size(run.peak), format_size(run.mem))
                for run in runs],
        settings=_settings_tables(runs),
        certificates=_certificate_table([run for run in runs if run.kind == "train"]),
        sources=_source_table(runs),
        figures=[_figure_table(run) for run in runs],
    )  # fmt: skip


def first_charts(runs: Sequence[RunFigures]) -> list[LineChart]:
    """Return the charts that a picture shows: progress of trainings, else that of streams."""
    numbered = list(enumerate(runs))
    if trained := [(k, run) for k, run in numbered if run.passes]:
        return _progress_charts(_AXES[0], trained)
    return _stream_charts(_ROWS, [(k, run) for k, run in numbered if run.blocks])


# ------------------------------------------------------------------------------------------- cards


def _card(run: RunFigures) -> dict[str, Any]:
    verdict, state = _verdict(run)
    return {
        "name": run.name, "verdict": verdict, "state": state, "summary": _summary(run),
        "warnings": run.warnings(), "command": _command(run), "date": _date(run.changed),
    }  # fmt: skip


def _command(run: RunFigures) -> str:
    """Return the command of this run, without options that do not change the model."""
    defaults, words = Settings().to_dict(), [*run.inputs, "-o", f"{run.name}.model"]
    for name, value in used_by(run.kind, run.settings).items():
        if value is None or value == defaults.get(name):
            continue
        option = option_name(name)
        if isinstance(value, bool):
            words.append(option if value else f"--no-{name}")
        elif isinstance(value, dict):
            words += [
                word
                for k, weight in value.items()
                for word in (option, f"{k}={format_number(weight)}")
            ]
        else:
            words += [option, _in_words(value)]
    return shlex.join(["sbm", run.kind, *words])


def _date(seconds: float) -> str:
    moment = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return f"{moment:%Y-%m-%d %H:%M} UTC" if seconds else ""


def _verdict(run: RunFigures) -> tuple[str, str]:
    """Return the result of a run in words, and one of good, bad and open."""
    if run.kind == "stream" or not run.is_finished or run.certificate is None:
        kind = "stream, " if run.kind == "stream" else ""
        return kind + ("finished" if run.is_finished else "not finished"), "open"
    gap = run.certificate["relative_gap"]
    if gap <= run.tol:
        return f"converged: certified gap {gap:.2e}", "good"
    if run.is_early:
        return f"stopped early by --validate: certified gap {gap:.2e}", "open"
    if run.reached_tol:
        return f"best pass by --validate: certified gap {gap:.2e}", "open"
    return f"not converged: certified gap {gap:.2e}", "bad"


def _summary(run: RunFigures) -> str:
    facts = []
    if run.blocks:
        last = run.blocks[-1]
        facts = [f"rows: {last.rows:,}, blocks: {len(run.blocks):,}", _seconds(last.elapsed)]
    elif run.passes:
        final = run.passes[-1]
        facts = [
            f"passes: {final.number:,}", _seconds(run.end.get("seconds", final.elapsed)),
            f"{format_size(final.bytes_read)} read",
        ]  # fmt: skip
        if (compiling := run.end.get("compile", 0.0)) >= 0.05:
            facts.insert(2, f"{_seconds(compiling)} compiling first")
        if final.score is not None:
            facts.append(f"{final.metric} after the last pass {final.score:.6g}")
    return ", ".join([*(facts or ["no pass yet"]), f"peak memory {format_size(run.peak)}"])


def _seconds(value: float) -> str:
    size, unit = choose_unit(value, TIME)
    return f"{value / size:.3g} {unit}"


def _title(runs: Sequence[RunFigures]) -> str:
    *others, last = (run.name for run in runs)
    if not others:
        return f"Report of {last}"
    return f"Comparison of {', '.join(others)} and {last}"


# ------------------------------------------------------------------------------------------ charts


def _series(
    runs: Runs, of: Callable[[RunFigures], Sequence[T]], x: Callable[[T], float],
    y: Callable[[T], float | None], style: str = "line", most: float | None = None,
) -> list[Series]:  # fmt: skip
    """Return a series for each run; with `most`, of values in (0, most] only."""
    found = []
    for k, run in runs:
        points = [(x(one), value) for one in of(run) if (value := y(one)) is not None]
        if most is not None:
            points = [point for point in points if 0 < point[1] <= most]
        found.append(Series(run.name if style == "line" else "", k, points, style))
    return [one for one in found if one.points]


def _progress_charts(axis: _Axis, runs: Runs) -> list[LineChart]:
    size, label = axis.unit(runs)

    def series(
        y: Callable[[PassFigures], float | None], style: str = "line", most: float | None = None
    ) -> list[Series]:
        return _series(
            runs, lambda run: run.passes, lambda one: axis.of(one) / size, y, style, most
        )

    tols = {run.tol for _, run in runs}
    tol = tols.pop()
    found = [
        LineChart(
            f"gap-{axis.name}", "Relative gap", label, "estimated; hollow: certified",
            series(lambda one: one.relative_gap, most=_LARGEST_GAP)
            + series(lambda one: one.certified_gap, "hollow", _LARGEST_GAP),
            y_log=True, level=None if tols or tol < 1e-12 else (tol, f"tolerance {tol:g}"),
        ),
        LineChart(
            f"objective-{axis.name}", "Objective", label, "dual; hollow: certified primal",
            series(lambda one: one.dual) + series(lambda one: one.primal, "hollow"),
        ),
        LineChart(f"weights-{axis.name}", "Weights that are not 0", label, "weights",
                  series(lambda one: one.weights)),
    ]  # fmt: skip
    for metric in sorted({one.metric for _, run in runs for one in run.passes if one.metric}):
        scores = series(lambda one, of=metric: one.score if one.metric == of else None)  # type: ignore[misc]
        found.append(
            LineChart(f"{metric}-{axis.name}", f"Validation {metric}", label, metric, scores)
        )
    return [chart for chart in found if chart.series]


def _stream_charts(axis: _Axis, runs: Runs) -> list[LineChart]:
    size, label = axis.unit(runs)
    found = []
    values: list[tuple[str, str, str, Callable[[BlockFigures], float | None]]] = [
        ("loss", "Progressive loss", "mean per row", lambda one: one.loss),
        ("right", "Progressive accuracy", "%", lambda one: one.accuracy),
    ]
    for name, title, unit, y in values:
        lines = _series(runs, lambda run: run.blocks, lambda one: axis.of(one) / size, y)
        found.append(LineChart(f"{name}-{axis.name}", title, label, unit, lines))
    return [chart for chart in found if chart.series]


def _stream_section(runs: Runs) -> _Section:
    return _Section(
        "streams", "Streams",
        "Every row was predicted before it was learned. Values are means over all rows so far.",
        _stream_charts(_ROWS, runs) + _stream_charts(_AXES[0], runs),
        [(k, run.name) for k, run in runs],
    )  # fmt: skip


def _curve_section(runs: Runs) -> _Section:
    names = {
        "roc": ("ROC curve", "false positive rate", "true positive rate"),
        "pr": ("Precision and recall", "recall", "precision"),
    }
    charts = [
        LineChart(name, *words, [Series(run.name, k, run.curves[name]) for k, run in runs])
        for name, words in names.items()
    ]
    lead = "On the validation data, of the model that was kept."
    return _Section("curves", "Curves", lead, charts, [(k, run.name) for k, run in runs])


def _groups(passes: Sequence[PassFigures]) -> list[Sequence[PassFigures]]:
    """Group consecutive passes to get at most `_MOST_BARS` bars."""
    size = -(-len(passes) // _MOST_BARS)
    return [passes[k : k + size] for k in range(0, len(passes), size)]


def _bar_section(
    name: str,
    title: str,
    lead: str,
    runs: Runs,
    parts_of: Callable[[RunFigures], Mapping[str, Sequence[float]]],
    units: Sequence[tuple[float, str]],
) -> _Section:
    """Return a stacked chart for each run with values, all with the same scale."""
    heights = {k: parts_of(run) for k, run in runs}
    used = [part for part in heights[runs[0][0]] if any(any(h[part]) for h in heights.values())]
    highest = {k: max(map(sum, zip(*h.values(), strict=True))) for k, h in heights.items()}
    size, unit = choose_unit(max(highest.values()), units)
    shown = [
        BarChart(
            f"{name}-{k}", run.name, "pass", unit, [_range(group) for group in _groups(run.passes)],
            {part: [value / size for value in heights[k][part]] for part in used},
            max(highest.values()) / size,
        )
        for k, run in runs if highest[k]
    ]  # fmt: skip
    notes = [f"{run.name}: empty." for k, run in runs if not highest[k]]
    return _Section(name, title, lead, shown, list(enumerate(used)), notes)


def _range(group: Sequence[PassFigures]) -> str:
    first, last = group[0].number, group[-1].number
    return f"{first}" if first == last else f"{first}–{last}"


def _time_parts(run: RunFigures) -> dict[str, list[float]]:
    """Return seconds by part; "other" is the rest of the elapsed time."""
    groups = _groups(run.passes)
    ends = [0.0, *(group[-1].elapsed for group in groups)]
    parts = {
        words: [sum(one.seconds[name] for one in group) for group in groups]
        for name, words in _PARTS.items()
    }
    measured = map(sum, zip(*parts.values(), strict=True))
    spent = (end - begin for begin, end in itertools.pairwise(ends))
    other = [max(0.0, a - b) for a, b in zip(spent, measured, strict=True)]
    return parts | {"other (start, log)": other}


def _cache_parts(run: RunFigures) -> dict[str, list[float]]:
    last = [group[-1] for group in _groups(run.passes)]
    return {
        "free": [one.free for one in last],
        "at the upper bound": [max(0, one.cached - one.free - one.zero) for one in last],
        "at 0": [one.zero for one in last],
    }


# ------------------------------------------------------------------------------------------ tables


def _format(value: float | None, form: str = ".2e") -> str:
    return "–" if value is None else format(value, form)


def _in_words(value: Any) -> str:
    if value is None or value == {}:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{k}: {_in_words(v)}" for k, v in value.items())
    return format_number(value) if isinstance(value, float) else str(value)


def _settings_tables(runs: Sequence[RunFigures]) -> list[_Table]:
    """Return two tables: settings that differ or are not defaults, and the others."""
    defaults = Settings().to_dict()
    names = dict.fromkeys([*defaults, *(name for run in runs for name in run.settings)])
    chosen: list[list[str]] = []
    others, different = [], []
    for name in names:
        values = [run.settings.get(name, defaults.get(name)) for run in runs]
        row = [name.replace("_", "-"),
               *(format_size(run.mem) if name == "mem" else _in_words(value)
                 for run, value in zip(runs, values, strict=True))]  # fmt: skip
        if len(set(row[1:])) > 1:
            different.append(["≠ " + row[0], *row[1:]])
        elif all(value == defaults.get(name) for value in values):
            others.append(row)
        else:
            chosen.append(row)
    head = ["setting", *(run.name for run in runs)]
    return [
        _Table("Settings that differ (≠) or are not the defaults", head, different + chosen,
               frozenset(range(len(different)))),
        _Table("Settings at their defaults", head, others),
    ]  # fmt: skip


def _certificate_table(runs: Sequence[RunFigures]) -> _Table:
    def certified(name: str, form: str) -> list[str]:
        return [_format((run.certificate or {}).get(name), form) for run in runs]

    def total(name: str) -> list[str]:
        return [_format(run.end.get(name), ",.0f") for run in runs]

    converged = {"good": "yes", "bad": "no"}
    rows = {
        "primal": certified("primal", ".8g"),
        "dual": certified("dual", ".8g"),
        "relative gap": certified("relative_gap", ".2e"),
        "tolerance": [f"{run.tol:g}" for run in runs],
        "converged": [converged.get(_verdict(run)[1], "–") for run in runs],
        "support vectors": total("n_support"),
        "free support vectors": total("n_free"),
        "updates": total("updates"),
        "passes": [f"{run.passes[-1].number}" if run.passes else "0" for run in runs],
    }
    for name in ("support vectors", "free support vectors"):
        if set(rows[name]) <= {"–"}:  # no loss here has any
            del rows[name]
    return _Table("Certificates", ["", *(run.name for run in runs)],
                  [[name, *cells] for name, cells in rows.items()] if runs else [])  # fmt: skip


def _source_table(runs: Sequence[RunFigures]) -> _Table:
    rows = [
        [run.name, source["name"], f"{source['rows']:,}",
         format_size(source["bytes"]) if isinstance(source.get("bytes"), int) else "–",
         str(source.get("sha256") or "–")[:16]]
        for run in runs for source in run.sources
    ]  # fmt: skip
    return _Table("Source files of the data", ["run", "source", "rows", "size", "sha256"], rows)


def _figure_table(run: RunFigures) -> _Table:
    """Return all figures of a run."""
    if run.kind == "stream":
        head = ["rows", "seconds", "loss", "accuracy, %", "cached", "memory"]
        every = max(1, -(-len(run.blocks) // 200))
        shown = run.blocks[::-1][::every][::-1]
        return _Table(run.name, head, [
            [f"{one.rows:,}", f"{one.elapsed:.2f}", _format(one.loss, ".6f"),
             _format(one.accuracy, ".3f"), f"{one.cached:,}", format_size(one.resident)]
            for one in shown
        ])  # fmt: skip
    head = ["pass", "solver", "rounds", "seconds", "dual", "estimated gap", "certified gap",
            "score", *(f"{name}, s" for name in (*SECONDS, "load")),
            "read", "cached", "free", "at 0", "weights not 0", "memory"]  # fmt: skip
    return _Table(run.name, head, [
        [f"{one.number}", one.solver, f"{one.rounds}", f"{one.elapsed:.2f}", f"{one.dual:.8g}",
         _format(one.estimate), _format(one.certified_gap), _format(one.score, ".6g"),
         *(f"{one.seconds[name]:.3f}" for name in (*SECONDS, "load")),
         format_size(one.bytes_read), f"{one.cached:,}", f"{one.free:,}", f"{one.zero:,}",
         _format(one.weights, ",.0f"), format_size(one.resident)]
        for one in run.passes
    ])  # fmt: skip
