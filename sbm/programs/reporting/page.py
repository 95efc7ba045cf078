"""The page of a report: one file that needs nothing else, no network, no program."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from sbm.programs.reporting.chart_sections import (
    cache_section,
    memory_section,
    progress_section,
    stream_section,
    time_section,
)
from sbm.programs.reporting.charts import PATTERNS, swatch
from sbm.programs.reporting.markup import (
    LETTERS,
    escape_whole,
    percent,
    run_title,
    seconds_in_words,
    verdict,
)
from sbm.programs.reporting.runlog import RunFigures
from sbm.programs.reporting.style import STYLE
from sbm.programs.reporting.table_sections import (
    certificate_section,
    figure_section,
    settings_section,
    source_section,
)
from sbm.settings import format_size

__all__ = ["to_html"]


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
        progress_section(trained) if any(run.passes for _, run in trained) else "",
        stream_section(streams) if any(run.blocks for _, run in streams) else "",
        time_section(trained) if any(run.passes for _, run in trained) else "",
        cache_section(trained) if any(run.passes for _, run in trained) else "",
        memory_section(runs),
        settings_section(runs),
        certificate_section(trained),
        source_section(runs),
        figure_section(runs),
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


def _cards(runs: Sequence[RunFigures]) -> str:
    return '<div class="cards">' + "".join(_card(k, run) for k, run in enumerate(runs)) + "</div>"


def _card(number: int, run: RunFigures) -> str:
    came_of_it, kind = verdict(run)
    warnings = "".join(f"<li>{escape_whole(text)}</li>" for text in run.warnings())
    warnings = f'<ul class="warnings">{warnings}</ul>' if warnings else ""
    return (
        f'<article class="card {kind}"><h2>{swatch(number)}{run_title(number, run)}</h2>'
        f"<p><strong>{escape_whole(came_of_it)}</strong></p><p>{escape(_summary(run))}</p>{warnings}"
        "</article>"
    )


def _summary(run: RunFigures) -> str:
    told = []
    if run.kind == "stream":
        rows = run.blocks[-1].rows if run.blocks else 0
        told = [f"{rows:,} rows in {len(run.blocks):,} blocks"]
        if run.blocks:
            told.append(seconds_in_words(run.blocks[-1].elapsed))
    elif run.passes:
        last = run.passes[-1]
        told = [f"{last.number:,} passes" if last.number != 1 else "1 pass"]
        total = run.end.get("seconds", {}).get("total", last.elapsed)
        told.append(seconds_in_words(float(total)))
        told.append(f"{format_size(last.bytes_read)} read")
        tested = [one.accuracy for one in run.passes if one.accuracy is not None]
        if tested:
            told.append(f"test accuracy {percent(tested[-1])}")
    else:
        told = ["no pass yet"]
    return ", ".join([*told, f"at most {format_size(run.peak)} of memory"])
