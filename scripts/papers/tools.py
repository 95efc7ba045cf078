"""What the scripts that make a paper's experiments again share: claims, curves, command line.

Each script measures, draws, and holds every claim of the paper against a rule of its own: a claim
holds (yes), does not (no), or some of what it says does (partly). No verdict is written by hand.
"""

import argparse
import importlib.util
import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scripts.bench.tools import BenchError, Report, tell

Curve = list[dict[str, Any]]  # a row a pass

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#e69f00", "#56b4e9", "#cc79a7", "#000000", "#8c6d31")
MARKERS = "o^sDvP*X"
ROUNDING = 1e-10  # differences to an optimum are not drawn below it
LINES = ("-", "--", "-.", ":")


# ------------------------------------------------------------------------------------------ claims


@dataclass(frozen=True)
class Claim:
    """Something that a paper says, and whether it is so here.

    Attributes
    ----------
    paper : str
    where : str
        In it.
    claim : str
    data : str
        On which it was looked at.
    expected : str
        What the rule asks for, with the paper's own figures where it has some.
    here : str
        The figures that came.
    holds : str
        As `judge` says.
    """

    paper: str
    where: str
    claim: str
    data: str
    expected: str
    here: str
    holds: str


def judge(*held: bool) -> str:
    """``yes`` if all that a claim says is so, ``no`` if nothing of it, ``partly`` between."""
    return "yes" if all(held) else "partly" if any(held) else "no"


# ------------------------------------------------------------------------------------------ curves


def relative_difference(dual: float, optimum: float) -> float:
    """|(f - f*) / f|, equation (7) of the SBM paper; signs do not matter."""
    return abs((dual - optimum) / dual)


def accuracy_difference(best: float, accuracy: float) -> float:
    """Points of percent below the best share of right labels, equation (8) of the SBM paper."""
    return 100 * (best - accuracy)


def first_at(curve: Curve, quantity: str, level: float, along: str) -> float:
    """Where a curve first is at `level` or below, in units of `along`; infinite if it never is."""
    return next((float(row[along]) for row in curve if row[quantity] <= level), math.inf)


# ------------------------------------------------------------------------------------- experiments


@dataclass(frozen=True)
class Axes:
    """A column of panels.

    Attributes
    ----------
    x, y : str
        Cells of a row of ``curves``.
    x_label, y_label : str
    x_log, y_log : bool
    least : float
        Heights below it are drawn at it: the best of all has difference 0, which a logarithm does
        not show.
    """

    x: str
    y: str
    x_label: str
    y_label: str
    x_log: bool = False
    y_log: bool = True
    least: float = 0.0


@dataclass(frozen=True)
class Experiment:
    """One script.

    Attributes
    ----------
    name : str
        Of its results.
    title : str
    measure : callable
        ``measure(args, report)`` fills the report and returns the claims; ``args.folder`` is a
        folder for whatever it makes.
    options : tuple of callable
        Add their options to a parser.
    axes : tuple of Axes
        Columns of the picture, which has a row for each data set in the table ``curves``.
    quick : dict
        Options that ``--quick`` changes.
    """

    name: str
    title: str
    measure: Callable[[argparse.Namespace, Report], list[Claim]]
    options: tuple[Callable[[argparse.ArgumentParser], None], ...] = ()
    axes: tuple[Axes, ...] = ()
    quick: dict[str, Any] = field(default_factory=dict)


def run(experiment: Experiment, script: str, argv: Sequence[str] | None = None) -> int:
    """Run the command line of a script; exit code 0 done, 1 error, 2 usage.

    Parameters
    ----------
    experiment : Experiment
    script : str
        Its ``__doc__``, whose first line describes it.
    argv : sequence of str, optional
        Default: those of the process.
    """
    args = _parse(experiment, script, argv)
    name = Path(sys.argv[0]).name
    try:
        report = _measure(experiment, args)
        if args.prefix is not None:
            report.write(args.prefix)
            picture = args.prefix.with_name(args.prefix.name + ".png")
            draw(asdict(report), experiment.axes, picture)
    except ModuleNotFoundError as error:
        print(f"{name}: {error.name} is missing; install the extra bench", file=sys.stderr)
        return 1
    except (BenchError, OSError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 1
    print(report.markdown(), end="")
    return 0


def _parse(experiment: Experiment, script: str, argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=script.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="a toy size, for tests")
    parser.add_argument(
        "-o", dest="prefix", type=Path, metavar="PREFIX",
        help="write PREFIX.json, PREFIX.md, PREFIX.png",
    )  # fmt: skip
    for add_options in experiment.options:
        add_options(parser)
    args = parser.parse_args(argv)
    if args.quick:
        parser.set_defaults(**experiment.quick)  # what was given on the command line stays
        args = parser.parse_args(argv)
    return args


def _measure(experiment: Experiment, args: argparse.Namespace) -> Report:
    """Measure, with the claims as a table and the machine's load beside its facts."""
    report = Report(experiment.name, experiment.title)
    before = _load()
    with tempfile.TemporaryDirectory(prefix="sbm-paper-") as folder:
        args.folder = Path(folder)
        claims = experiment.measure(args, report)
    report.tables = {"claims": [asdict(claim) for claim in claims], **report.tables}
    report.settings = {
        name: value
        for name, value in vars(args).items()
        if name not in ("prefix", "folder") and _is_plain(value)
    }
    report.machine["load_average_before_and_after"] = f"{before:.1f}, {_load():.1f}"
    if max(before, _load()) > report.machine["cores"] + 1:
        report.notes.append(
            "the machine had other work meanwhile (see its load average): trust passes, visits and "
            "ratios more than seconds"
        )
    return report


def _load() -> float:
    return os.getloadavg()[0]


def _is_plain(value: Any) -> bool:
    """Whether an option names no place."""
    values = value.values() if isinstance(value, dict) else [value]
    values = [item for v in values for item in (v if isinstance(v, list) else [v])]
    return bool(values) and not any(isinstance(item, Path) or item is None for item in values)


# ---------------------------------------------------------------------------------------- pictures


def draw(report: dict[str, Any], axes: Sequence[Axes], out: Path) -> bool:
    """Draw the table ``curves``: a row of panels a data set, a line a method, a marker a pass.

    Parameters
    ----------
    report : dict
        As in the JSON file.
    axes : sequence of Axes
    out : Path
        A PNG file.

    Returns
    -------
    bool
        Whether it was drawn.
    """
    rows: Curve = report["tables"].get("curves", [])
    if not rows or not axes:
        return False
    if importlib.util.find_spec("matplotlib") is None:
        tell("matplotlib is not installed (it is in the extra bench), so no picture is made")
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sets, methods = _distinct(rows, "data"), _distinct(rows, "method")
    if report["settings"].get("quick"):
        sets = sets[:1]  # all of them take longer to draw than to measure
    size = (4.6 * len(axes) + 0.6, 2.9 * len(sets) + 1.1)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(sets), len(axes), squeeze=False)
    for data, line in zip(sets, panels, strict=True):
        for axis, panel in zip(axes, line, strict=True):
            _fill(panel, [row for row in rows if row["data"] == data], axis, methods)
            panel.set_title(data, fontsize=9)
    handles: dict[str, Any] = {}
    for panel in panels.flat:
        handles |= dict(zip(*reversed(panel.get_legend_handles_labels()), strict=True))
    figure.legend(
        list(handles.values()),
        list(handles),
        fontsize=8,
        loc="outside lower center",
        ncols=min(len(handles), 5),
    )
    figure.suptitle(report["title"], fontsize=10)
    figure.savefig(out, dpi=64)
    return True


def _distinct(rows: Curve, name: str) -> list[Any]:
    return list(dict.fromkeys(row[name] for row in rows))


def _fill(panel: Any, rows: Curve, axis: Axes, methods: list[str]) -> None:
    """Draw what one panel shows; on a logarithm what is 0 lies at the smallest other height."""
    seen = [row for row in rows if row[axis.x] is not None and row[axis.y] is not None]
    least = axis.least
    if axis.y_log and not least:
        least = min((row[axis.y] for row in seen if row[axis.y] > 0), default=0.0)
    for number, method in enumerate(methods):
        mine = [row for row in seen if row["method"] == method]
        points = [(row[axis.x], max(row[axis.y], least)) for row in mine]
        if points:
            panel.plot(
                *zip(*points, strict=True), label=method, markersize=4.5, linewidth=1.3,
                color=COLOURS[number % len(COLOURS)], marker=MARKERS[number % len(MARKERS)],
                linestyle=LINES[number % len(LINES)],
            )  # fmt: skip
    for scale, is_log in ((panel.xaxis, axis.x_log), (panel.yaxis, axis.y_log)):
        _set_scale(panel, scale, is_log)
    panel.set_xlabel(axis.x_label, fontsize=8)
    panel.set_ylabel(axis.y_label, fontsize=8)
    panel.tick_params(which="both", labelsize=7)
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


def words(values: Iterable[tuple[str, float]]) -> str:
    """``SBM-1/2 0.0012, BMD 0.034``: figures with their names."""
    return ", ".join(f"{name} {number(value)}" for name, value in values)


def number(value: float) -> str:
    """Write a figure for a table of claims."""
    if math.isinf(value):
        return "never"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) >= 10 else f"{value:.3g}"
