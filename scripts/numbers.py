"""The measured numbers of README.md and docs/, from the JSON files in scripts/results."""

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


def _of_grid(found: dict[str, Any]) -> tuple[str, str, str, list[float]]:
    """Cells of a row of the grid; one with little memory has its own ratios beside it."""
    what = f"{result('grid')['data'][found['data']]}: {found['loss']}"
    ratios = [found["ratio"]]
    if found["what"] == "default":
        little = row("grid", data=found["data"], loss=found["loss"], what="little")
        ratios += [little["ratio"], little["peak_MB"] / little["peer_peak_MB"]]
    other = f"{found['peer']} {found['peer_seconds']:.3g} s"
    return what, f"{found['seconds']:.3g} s", other, ratios


def rows() -> Iterator[tuple[str, str, str, list[float]]]:
    """Yield what was measured, the value of sbm, that of the other, and the ratios."""
    for found in result("grid")["rows"]:
        if found["what"] in ("default", "vw"):
            yield _of_grid(found)
    stream, once = (row("one-pass", what=w) for w in ("sbm stream", "VW, one pass"))
    ratio = stream["seconds"] / once["seconds"]
    other = f"VW, one pass {once['seconds']:.3g} s"
    yield "`sbm stream`: one pass over text", f"{stream['seconds']:.3g} s", other, [ratio]
    tune = row("tune", what="tune, together")
    alone = result("tune")["tables"]["each model alone, sums over the folds"]
    tried = result("tune")["tables"]["values of C, all folds on one stream"]
    values = [r["C"] for r in tried if not r["status"].startswith(("not tried", "given up"))]
    loop = sum(r["seconds"] for r in alone if r["C"] in values)
    what, other = f"`sbm tune`: {len(values)} values of C, 5 folds", "the same models, one by one,"
    yield what, f"{tune['seconds']:.3g} s", f"{other} {loop:.3g} s", [tune["seconds"] / loop]


def table() -> str:
    """Return the table; losses are in bold."""
    lines = [
        "| what | sbm | other tool | ratio | in little memory | its peak |\n",
        "|---|---|---|---|---|---|\n",
    ]
    for what, ours, theirs, ratios in rows():
        digits = [f"{ratio:.{0 if ratio >= 10 else 2}f}" for ratio in ratios]
        shown = [d if ratio < 1 else f"**{d}**" for d, ratio in zip(digits, ratios, strict=True)]
        cells = [what, ours, theirs, *shown, *[""] * (3 - len(shown))]
        lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines)


def sparse_table() -> str:
    """Return the table of sparse models beside LIBLINEAR's."""
    lines = [
        "| data | loss, C | objective | CPU | memory | weights not 0 | passes in a quarter |\n",
        "|---|---|---|---|---|---|---|\n",
    ]
    for one in result("sparse")["rows"]:
        passes = f"{one['passes in a quarter']}"
        if float(one["gap in a quarter"]) > result("sparse")["settings"]["tol"]:
            passes += f", gap {one['gap in a quarter']}"
        pairs = [
            f"{one['seconds']:.3g} s, {one['seconds of LIBLINEAR']:.3g} s",
            f"{one['memory']}, {one['memory of LIBLINEAR']}",
            f"{one['weights']:,}, {one['of LIBLINEAR']:,}",
        ]
        cells = [one["data"], f"`{one['loss']}`, {one['C']:g}", one["above"], *pairs, passes]
        lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines)
