"""The measured numbers of README.md, from the JSON files in scripts/results."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


@cache
def result(name: str) -> dict[str, Any]:
    """Read a result file."""
    found: dict[str, Any] = json.loads((ROOT / f"scripts/results/{name}.json").read_text("utf-8"))
    return found


def row(name: str, **wanted: Any) -> dict[str, Any]:
    """Return the only row of a result that has these values."""
    (found,) = (r for r in result(name)["rows"] if all(r[k] == v for k, v in wanted.items()))
    return dict(found)


def rows() -> Iterator[tuple[str, str, str, float]]:
    """Yield what was measured, the value of sbm, that of the other, and their ratio."""
    ours, theirs, vw = (row("text-to-gap", what=w) for w in ("sbm", "LIBLINEAR", "VW, one pass"))
    stream, once = (row("one-pass", what=w) for w in ("sbm stream", "VW, one pass"))
    crammer = row("multiclass", loss="crammer_singer")
    letter = row("multiclass-letter", loss="crammer_singer", peer_e=0.1)
    squared = row("family", loss="squared_hinge")
    logistic = row("family", loss="log_loss", peer_s=0)
    tune = row("tune", what="tune, together")
    alone = result("tune")["tables"]["each model alone, sums over the folds"]
    tried = result("tune")["tables"]["values of C, all folds on one stream"]
    tried_values = [r["C"] for r in tried if not r["status"].startswith(("not tried", "given up"))]
    loop = sum(r["seconds"] for r in alone if r["C"] in tried_values)

    def seconds(what: str, ours: float, who: str, theirs: float) -> tuple[str, str, str, float]:
        return what, f"{ours:.3g} s", f"{who} {theirs:.3g} s", ours / theirs

    def megabytes(what: str, ours: float, who: str, theirs: float) -> tuple[str, str, str, float]:
        return what, f"{ours:.0f} MB", f"{who} {theirs:.0f} MB", ours / theirs

    yield seconds(
        "hinge: text to a certified gap of 1e-3", ours["seconds"], "LIBLINEAR", theirs["seconds"]
    )
    yield seconds(
        "squared hinge, a third of the rows", squared["split"] + squared["train"],
        "LIBLINEAR `-s 1`", squared["peer_whole"],
    )  # fmt: skip
    yield seconds(
        "logistic, a third of the rows", logistic["split"] + logistic["train"],
        "LIBLINEAR `-s 0`", logistic["peer_whole"],
    )  # fmt: skip
    yield seconds(
        "Crammer-Singer, ten classes, a third of the rows", crammer["split"] + crammer["train"],
        "LIBLINEAR `-s 4`", crammer["peer_whole"],
    )  # fmt: skip
    yield seconds("`sbm stream`: one pass over text", stream["seconds"], "VW", once["seconds"])
    yield seconds(
        f"`sbm tune`: {len(tried_values)} values of C, 5 folds", tune["seconds"],
        "the same models, one by one,", loop,
    )  # fmt: skip
    yield seconds("hinge: text to gap, against one VW pass", ours["seconds"], "VW", vw["seconds"])
    yield seconds(
        "Crammer-Singer on `letter` (15,000 rows of 16 features)",
        letter["split"] + letter["train"], "LIBLINEAR `-s 4`", letter["peer_whole"],
    )  # fmt: skip
    yield megabytes("peak memory, first row", ours["peak_MB"], "LIBLINEAR", theirs["peak_MB"])
    yield megabytes("peak memory, first row", ours["peak_MB"], "VW", vw["peak_MB"])


def table() -> str:
    """Return the table; losses are in bold."""
    lines = ["| what | sbm | other tool | ratio |\n", "|---|---|---|---|\n"]
    for what, ours, theirs, ratio in rows():
        shown = f"{ratio:.2f}" if ratio < 1 else f"**{ratio:.2f}**"
        lines.append(f"| {what} | {ours} | {theirs} | {shown} |\n")
    return "".join(lines)
