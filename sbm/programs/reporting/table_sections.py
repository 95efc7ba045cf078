"""The tables of a report, in sections: settings, certificates, sources, all figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sbm.programs.reporting.markup import (
    LETTERS,
    percent,
    run_title,
    section,
    short,
    table,
    verdict,
)
from sbm.programs.reporting.runlog import BlockFigures, PassFigures, RunFigures
from sbm.settings import Settings, format_number, format_size

__all__ = ["certificate_section", "figure_section", "settings_section", "source_section"]


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


def settings_section(runs: Sequence[RunFigures]) -> str:
    """Settings that differ or are not the usual ones, and the others."""
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
        table(caption, head, chosen, kinds) if chosen else "<p>All settings are the usual ones.</p>"
    )
    return section(
        "settings", "Settings",
        f"{shown}<details><summary>Settings that are as usual</summary>"
        f"{table('Usual settings', head, rows['usual'])}</details>",
    )  # fmt: skip


def certificate_section(runs: Sequence[tuple[int, RunFigures]]) -> str:
    """What is proven of each model."""
    if not runs:
        return ""
    figures: tuple[tuple[str, Callable[[RunFigures], str]], ...] = (
        ("primal", lambda run: short((run.certificate or {}).get("primal"), ".8g")),
        ("dual", lambda run: short((run.certificate or {}).get("dual"), ".8g")),
        ("relative gap", lambda run: short((run.certificate or {}).get("relative_gap"))),
        ("tolerance", lambda run: f"{float(run.settings['tol']):g}"),
        ("converged", lambda run: {"good": "yes", "bad": "no"}.get(verdict(run)[1], "–")),
        ("support vectors", lambda run: _end_count(run, "n_support")),
        ("free ones", lambda run: _end_count(run, "n_free")),
        ("updates", lambda run: _end_count(run, "updates")),
        ("passes", lambda run: f"{run.passes[-1].number}" if run.passes else "0"),
    )  # fmt: skip
    rows = [(what, *(of(run) for _, run in runs)) for what, of in figures]
    head = ["", *(f"{LETTERS[k]} {run.name}" for k, run in runs)]
    return section(
        "certificates", "Certificate", table("What is proven", head, rows),
        "Primal minus dual value, computed at fixed weights over all rows: no model is better by "
        "more than the gap.",
    )  # fmt: skip


def _end_count(run: RunFigures, name: str) -> str:
    value = run.end.get(name)
    return f"{value:,}" if isinstance(value, int) else "–"


def source_section(runs: Sequence[RunFigures]) -> str:
    """The texts that models were made from."""
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
    content = table("Texts that models were made from", head, rows)
    if not rows:
        content = "<p>There is no model yet, which would tell.</p>"
    return section("sources", "Sources", content)


_PASS_HEAD = (
    "pass", "rounds", "seconds", "dual", "est. gap", "certified", "test", "solve", "wait", "load",
    "certify", "write", "read", "cached", "free", "at 0", "memory",
)  # fmt: skip


def figure_section(runs: Sequence[RunFigures]) -> str:
    """What the charts show, as tables."""
    tables = []
    for k, run in enumerate(runs):
        caption = f"{LETTERS[k]} {run.name}"
        if run.kind == "train":
            shown = table(caption, _PASS_HEAD, map(_pass_row, run.passes))
        else:
            every = -(-len(run.blocks) // 200) if run.blocks else 1
            some = run.blocks[::-1][::every][::-1]
            head = ("rows", "seconds", "loss", "accuracy", "cached", "memory")
            shown = table(caption, head, map(_block_row, some))
        tables.append(f"<details><summary>{run_title(k, run)}</summary>{shown}</details>")
    return section("figures", "All figures", "".join(tables), "What the charts show, as tables.")


def _pass_row(one: PassFigures) -> list[str]:
    s = one.seconds
    test = percent(one.accuracy) if one.mse is None else f"{one.mse:.6g}"
    return [
        f"{one.number}", f"{one.rounds}", f"{one.elapsed:.2f}", f"{one.dual:.8g}",
        short(one.estimate), short(one.certified_gap), test, f"{s['solve']:.3f}",
        f"{s['wait']:.3f}", f"{s['load']:.3f}", f"{s['certify']:.3f}", f"{s['write']:.3f}",
        format_size(one.bytes_read), f"{one.cached:,}",
        f"{one.free:,}", "–" if one.zero is None else f"{one.zero:,}", format_size(one.resident),
    ]  # fmt: skip


def _block_row(one: BlockFigures) -> list[str]:
    return [
        f"{one.rows:,}", f"{one.elapsed:.2f}", short(one.loss, ".6f"), percent(one.accuracy),
        f"{one.cached:,}", format_size(one.resident),
    ]  # fmt: skip
