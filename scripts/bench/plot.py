"""Pictures of benchmarks and experiments, drawn from their reports; needs matplotlib.

A row of panels for each data set, a line for each method, a marker for each row of a table.
"""

import importlib.util
import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.bench.tools import tell

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9", "#cc79a7", "#000000", "#8c6d31")
MARKERS = "o^sDvP*X"
LINES = ("-", "--", "-.", ":")


@dataclass(frozen=True)
class Axes:
    """A column of panels."""

    # x, y: cells of a row of the table
    x: str
    y: str
    x_label: str
    y_label: str
    x_log: bool = False
    y_log: bool = True
    # heights below it are drawn at it: the best of all has difference 0, which a logarithm does not
    # show
    least: float = 0.0
    table: str = "curves"  # empty: the rows of the report


def draw(report: dict[str, Any], axes: Sequence[Axes], out: Path) -> bool:
    """Draw the picture of a report, a PNG file; return whether it was drawn."""
    shown = [_rows_of(report, axis) for axis in axes]
    if not shown or not any(shown):
        return False
    if importlib.util.find_spec("matplotlib") is None:
        tell("matplotlib is not installed (extra bench); no picture is drawn")
        return False
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from PIL import Image  # comes with matplotlib

    sets = list(dict.fromkeys(row.get("data", "") for rows in shown for row in rows))
    sizes: Any = {
        "font.size": 11,
        "axes.titlesize": 12,
        "axes.labelsize": 11,
        "legend.fontsize": 11,
    }
    methods = list(dict.fromkeys(_method(row) for rows in shown for row in rows))
    if report["settings"].get("quick"):
        sets = sets[:1]  # all of them take longer to draw than to measure
    # Two panels beside each other at least, so that a title of this width fits above them.
    columns = max(2, len(axes)) if len(sets) == 1 else len(axes)
    width = 4.4 * columns + 0.6
    with rc_context(sizes):
        figure = Figure(figsize=(width, 3.3 * len(sets) + 1.5), layout="constrained")
        FigureCanvasAgg(figure)
        panels = figure.subplots(len(sets), len(axes), squeeze=False)
        handles: dict[str, Any] = {}
        for data, line in zip(sets, panels, strict=True):
            for axis, rows, panel in zip(axes, shown, line, strict=True):
                _fill(panel, [row for row in rows if row.get("data", "") == data], axis, methods)
                panel.set_title(data)
                handles |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
        if any(handles):
            figure.legend(
                list(handles.values()), list(handles), loc="outside lower center",
                ncols=max(1, min(len(handles), int(width / 2.6))),
            )  # fmt: skip
        figure.suptitle(textwrap.fill(report["title"], int(9.5 * width)), fontsize=13)
        picture = io.BytesIO()
        figure.savefig(picture, dpi=66)
    Image.open(picture).convert("RGB").quantize(48).save(out, optimize=True)
    return True


def _rows_of(report: dict[str, Any], axis: Axes) -> list[dict[str, Any]]:
    rows = report["tables"].get(axis.table, []) if axis.table else report["rows"]
    return [row for row in rows if row.get(axis.x) is not None and row.get(axis.y) is not None]


def _method(row: dict[str, Any]) -> str:
    name = str(row.get("method", ""))
    return f"{name}, {row['rounds']} rounds" if "rounds" in row else name


def _fill(panel: Any, rows: list[dict[str, Any]], axis: Axes, methods: list[str]) -> None:
    """Draw what one panel shows; on a logarithm what is 0 lies at the smallest other height."""
    least = axis.least
    if axis.y_log and not least:
        least = min((row[axis.y] for row in rows if row[axis.y] > 0), default=0.0)
    for number, method in enumerate(methods):
        mine = [row for row in rows if _method(row) == method]
        points = [(float(row[axis.x]), max(row[axis.y], least)) for row in mine]
        if points:
            panel.plot(
                *zip(*points, strict=True), label=method, markersize=4.5, linewidth=1.3,
                color=COLOURS[number % len(COLOURS)], marker=MARKERS[number % len(MARKERS)],
                linestyle=LINES[number % len(LINES)],
            )  # fmt: skip
    for scale, is_log in ((panel.xaxis, axis.x_log), (panel.yaxis, axis.y_log)):
        _set_scale(panel, scale, is_log)
    panel.set_xlabel(axis.x_label)
    panel.set_ylabel(axis.y_label)
    panel.tick_params(which="both", labelsize=10)
    panel.grid(alpha=0.3)


def _set_scale(panel: Any, axis: Any, is_log: bool) -> None:
    """Make an axis linear or logarithmic, with plain numbers beside enough of its ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    if not is_log:
        axis.set_major_locator(MaxNLocator(6, integer=axis.get_view_interval()[1] > 5))
        return
    set_scale = panel.set_xscale if axis is panel.xaxis else panel.set_yscale
    set_scale("log")
    low, high = axis.get_view_interval()
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    axis.set_major_formatter(plain)
    is_short = high < 50 * low
    axis.set_minor_locator(LogLocator(subs=(2, 5) if is_short else range(2, 10)))
    axis.set_minor_formatter(plain if is_short else NullFormatter())
