"""Pictures of the benchmarks, drawn from their reports.

    python -m scripts.bench.plot results/text-to-gap.json

Needs matplotlib, which is in the extra bench; draws without a screen.
"""

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.bench.tools import tell

COLOURS = {"sbm": "#0072b2", "LIBLINEAR": "#d55e00", "VW": "#009e73"}
MARKERS = {"sbm": "o", "LIBLINEAR": "s", "VW": "^"}


def _text_to_gap(report: dict[str, Any], panels: Any) -> None:
    """Objective above the bound, and test accuracy, over the wall time from text."""
    shown = {"above_bound": panels[0], "test_accuracy": panels[1]}
    for quantity, panel in shown.items():
        for method, colour in COLOURS.items():
            points = [
                (row["seconds"], row[quantity])
                for row in report["tables"]["curves"]
                if row["method"] == method and row[quantity] is not None
            ]
            if points:
                marks = {"color": colour, "marker": MARKERS[method], "label": method}
                panel.plot(*zip(*points, strict=True), **marks)
        panel.set_xlabel("seconds from text")
        panel.legend()
    panels[0].set_yscale("log")
    panels[0].set_ylabel("relative objective above the best certified dual")
    panels[1].set_ylabel("test accuracy")


def _scaling(report: dict[str, Any], panels: Any) -> None:
    """Time for a row, and peak memory, over the number of rows."""
    shown = [("us_per_row", ("split", "pass")), ("peak_MB", ("split", "train"))]
    for panel, (quantity, kinds) in zip(panels, shown, strict=True):
        rows = report["rows"]
        for kind, marker in zip(kinds, "os", strict=True):
            heights = [row[f"{kind}_{quantity}"] for row in rows]
            panel.plot([row["rows"] for row in rows], heights, marker=marker, label=kind)
        panel.set_xscale("log")
        panel.set_ylim(bottom=0)
        panel.set_xlabel("rows")
        panel.legend()
    panels[0].set_ylabel("microseconds a row")
    panels[1].set_ylabel("peak memory, MB")


BMD_STYLES = {
    "SBM-1/2": ("#0072b2", "o"), "SBM-1/3": ("#56b4e9", "v"),
    "SBM-1/2-rand": ("#e69f00", "s"), "BMD": ("#d55e00", "^"),
}  # fmt: skip


def _bmd(report: dict[str, Any], panels: Any) -> None:
    """Distance from the optimum, and from the best test accuracy, over the wall time from text.

    As figure 2 (e) and (f) of the SBM paper: a marker a pass.
    """
    rows, settings = report["rows"], report["settings"]
    # The best model of all has difference 0, which a logarithm does not show.
    shown = max(0.01, 50 / settings["test_rows"])
    least = {"dual_difference": 0.0, "accuracy_difference": shown}
    for panel, (quantity, lowest) in zip(panels, least.items(), strict=True):
        for method, rounds in dict.fromkeys((row["method"], row["rounds"]) for row in rows):
            mine = [row for row in rows if (row["method"], row["rounds"]) == (method, rounds)]
            points = [(row["seconds"], max(row[quantity], lowest)) for row in mine]
            points = [point for point in points if point[1] > 0]
            marks = _bmd_marks(method, rounds, rounds == rows[0]["rounds"])
            panel.plot(*zip(*points, strict=True), **marks)
        panel.set_yscale("log")
        panel.set_xlabel("seconds from text; a marker a pass")
        panel.grid(alpha=0.3)
    known = settings["optimum_within"]
    panels[0].axhspan(0, known, color="#000000", alpha=0.07, label="optimum not known better")
    panels[0].set_ylabel("relative difference to the optimal dual")
    panels[1].set_ylabel(f"accuracy below the best, points (least {shown:.2g})")
    handles = panels[0].get_legend_handles_labels()
    panels[0].figure.legend(*handles, fontsize=8, loc="outside lower center", ncols=5)


def _bmd_marks(method: str, rounds: str, first: bool) -> dict[str, Any]:
    """How a curve is drawn."""
    colour, marker = BMD_STYLES[method]
    return {
        "color": colour, "marker": marker, "markersize": 5, "linewidth": 1.4,
        "linestyle": "-" if first else ":", "markerfacecolor": colour if first else "white",
        "label": f"{method}, {rounds} rounds" if rounds != "auto" else f"{method}, rounds auto",
    }  # fmt: skip


def _classes(report: dict[str, Any], panels: Any) -> None:
    """Seconds of a pass, and peak memory, over the number of classes."""
    rows = [row for row in report["rows"] if row["data"].endswith(" classes")]
    shown = {"seconds_a_pass": "seconds a pass", "peak_MB": "peak memory, MB"}
    for panel, (quantity, words) in zip(panels, shown.items(), strict=True):
        for loss, marker in zip(dict.fromkeys(row["loss"] for row in rows), "os^v", strict=False):
            mine = [row for row in rows if row["loss"] == loss]
            heights = [row[quantity] for row in mine]
            panel.plot([row["classes"] for row in mine], heights, marker=marker, label=loss)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlabel("classes")
        panel.set_ylabel(words)
        panel.grid(alpha=0.3)
        panel.legend()


def _tune(report: dict[str, Any], panels: Any) -> None:
    """The metric of each value of C, and seconds of one training, tuning and models alone."""
    values = report["tables"]["values of C, all folds on one stream"]
    metric = list(values[0])[1]
    for status in dict.fromkeys(row["status"] for row in values):
        mine = [row for row in values if row["status"] == status and row[metric] is not None]
        if mine:
            points = [[float(row[name]) for row in mine] for name in ("C", metric, "std")]
            panels[0].errorbar(*points, fmt="o", capsize=3, label=status)
    panels[0].set_xscale("log")
    tried = sum(row[metric] is not None for row in values)
    panels[0].set_title(f"{tried} of {len(values)} values of C tried")
    panels[0].set_xlabel("C")
    panels[0].set_ylabel(f"{metric} of the folds, mean and deviation")
    panels[0].legend()
    panels[0].grid(alpha=0.3)
    rows = [row for row in report["rows"] if row["cpu_seconds"] is not None]
    bars = panels[1].barh([row["what"] for row in rows], [row["seconds"] for row in rows])
    panels[1].bar_label(bars, fmt="%.1f", padding=3)
    panels[1].margins(x=0.12)
    panels[1].invert_yaxis()
    panels[1].set_xlabel("seconds")


def _stream_memory(report: dict[str, Any], panels: Any) -> None:
    """Resident memory over the gigabytes read, from outside, and what the run's log says."""
    samples = report["tables"]["samples"]
    read = [row["GB_read"] for row in samples]
    panels[0].plot(read, [row["resident_MB"] for row in samples], label="resident, from outside")
    panels[0].axhline(report["settings"]["bound_MB"], color="#d55e00", ls="--", label="--mem")
    panels[0].set_xlabel("GB of text read")
    panels[0].set_ylabel("MB")
    panels[1].plot(read, [row["seconds"] for row in samples], label="text read")
    panels[1].set_xlabel("GB of text read")
    panels[1].set_ylabel("seconds")
    for panel in panels:
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    panels[0].legend(loc="lower right")


PICTURES: dict[str, Callable[[dict[str, Any], Any], None]] = {
    "text-to-gap": _text_to_gap,
    "scaling": _scaling,
    "bmd": _bmd,
    "classes": _classes,
    "tune": _tune,
    "stream-memory": _stream_memory,
}


def draw(report: dict[str, Any], out: Path) -> bool:
    """Draw the picture of a report, if its benchmark has one and matplotlib is there.

    Parameters
    ----------
    report : dict
        As in the JSON file.
    out : Path
        A PNG file.

    Returns
    -------
    bool
        Whether it was drawn.
    """
    fill = PICTURES.get(report["benchmark"])
    if fill is None:
        return False
    if importlib.util.find_spec("matplotlib") is None:
        tell("matplotlib is not installed (it is in the extra bench), so no picture is made")
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    fill(report, figure.subplots(1, 2))
    figure.suptitle(f"{report['title']} ({report['data'].get('name', '')})", fontsize=10)
    figure.savefig(out, dpi=120)
    return True


def main(argv: list[str] | None = None) -> int:
    """Draw again from a JSON file; exit code 0 drawn, 1 not, 2 usage."""
    parser = argparse.ArgumentParser(
        prog="scripts.bench.plot", description="Draw a benchmark again."
    )
    parser.add_argument("report", type=Path, metavar="REPORT.json")
    path = parser.parse_args(argv).report
    try:
        drawn = draw(json.loads(path.read_text("utf-8")), path.with_suffix(".png"))
    except (OSError, ValueError) as error:
        print(f"scripts.bench.plot: {error}", file=sys.stderr)
        return 1
    return 0 if drawn else 1


if __name__ == "__main__":
    sys.exit(main())
