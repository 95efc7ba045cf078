"""What the page of a report is made of: figures in words, sections, tables, legends.

Whatever comes from files is escaped: names of runs and sources are anybody's words.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from sbm.programs.reporting.runlog import RunFigures

__all__ = [
    "LETTERS", "escape_whole", "figure", "legend", "percent", "run_title", "seconds_in_words",
    "section", "short", "table", "verdict",
]  # fmt: skip

LETTERS = string.ascii_uppercase
_HYPHENED = re.compile(r"(--[a-z-]+|[\d.]+e-\d+)")  # not to be broken into two lines


def seconds_in_words(value: float) -> str:
    """Return seconds in the unit that suits them."""
    if value < 120:
        return f"{value:.3g} s" if value < 10 else f"{value:.1f} s"
    return f"{value / 60:.1f} min" if value < 7200 else f"{value / 3600:.1f} h"


def escape_whole(text: str) -> str:
    """Escape a sentence, and keep its options and small numbers whole."""
    return _HYPHENED.sub(r'<span class="whole">\1</span>', escape(text))


def percent(value: float | None) -> str:
    """Return a share as a percentage."""
    return "–" if value is None else f"{100 * value:.3f}\N{NO-BREAK SPACE}%"


def short(value: float | None, form: str = ".2e") -> str:
    """Return a number in so many digits, a dash where there is none."""
    return "–" if value is None else format(value, form)


def section(name: str, title: str, content: str, lead: str = "") -> str:
    """Return a section of the page; title, content and lead are HTML."""
    lead = f'<p class="lead">{lead}</p>' if lead else ""
    return f'<section id="{name}"><h2>{title}</h2>{lead}{content}</section>'


def figure(title: str, chart: str, unit: str = "") -> str:
    """Return a chart with what is above it; its title is HTML."""
    unit = f' <span class="unit">{escape(unit)}</span>' if unit else ""
    return f"<figure><figcaption>{title}{unit}</figcaption>{chart}</figure>"


def table(
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


def legend(words: Mapping[str, str]) -> str:
    """Show what the patterns of bars are."""
    items = "".join(
        f'<li><svg class="swatch" viewBox="0 0 20 14" width="20" height="14" aria-hidden="true">'
        f'<rect class="bar b-{kind}" x="1" y="1" width="18" height="12" fill="url(#p-{kind})"/>'
        f"</svg>{escape(word)}</li>"
        for kind, word in words.items()
    )
    return f'<ul class="legend">{items}</ul>'


def run_title(number: int, run: RunFigures) -> str:
    """Return the letter and the name of a run."""
    return f'<b class="key c{number % 8}">{LETTERS[number]}</b> {escape(run.name)}'


def verdict(run: RunFigures) -> tuple[str, str]:
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
