"""Pictures as PNG files, drawn by matplotlib, and confusion matrices as tables.

matplotlib is optional. It is imported only when a picture is drawn.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.errors import SettingsError, StoreError
from sbm.models.metrics import Confusion
from sbm.programs.reporting.charts import COLORS, LineChart, Series
from sbm.store.files import require_place, write_atomically
from sbm.units import count, format_label, format_number

_NAMED, _COUNTED = 60, 20  # most classes with names on the axes, and with counts in the cells
_CELLS = 1000  # most cells on a side; with more classes, neighbors share a cell
_SHARES = (0, 0.01, 0.05, 0.1, 0.25, 0.5, 1)  # ticks of the color bar
_DASHES = ("-", "--", ":", "-.", (0, (9, 3)))


# ------------------------------------------------------------------------------------------ checks


def check_picture(path: str | Path, option: str, otherwise: str = "omit --png") -> None:
    """Check before any work that a picture can be written.

    Raises
    ------
    SettingsError
        The name does not end in .png, or matplotlib is not installed.
    StoreError
        As `require_place`.
    """
    path = Path(path)
    if path.suffix.lower() != ".png":
        raise SettingsError(f"cannot draw {path}; choose a name that ends in .png")
    if importlib.util.find_spec("matplotlib") is None:
        raise SettingsError(
            f"drawing {path} needs matplotlib, which is not installed; install it "
            f"(pip install matplotlib), or {otherwise}"
        )
    require_place(path, option)


def check_confusion(paths: Sequence[str | Path]) -> None:
    """Check before any work that `write_confusion` can write these files.

    Raises
    ------
    SettingsError
        A name ends in neither .tsv nor .png, or matplotlib is needed and not installed.
    StoreError
        As `require_place`.
    """
    for path in map(Path, paths):
        if path.suffix.lower() == ".tsv":
            require_place(path, "--confusion")
        elif path.suffix.lower() == ".png":
            check_picture(path, "--confusion", "choose a name that ends in .tsv for a table")
        else:
            raise SettingsError(
                f"cannot write the confusion matrix as {path}; choose a name that ends in .tsv "
                "(a table) or .png (a picture)"
            )


def _write(path: str | Path, pieces: Iterable[bytes], option: str) -> None:
    try:
        write_atomically(Path(path), pieces)
    except StoreError as error:
        raise StoreError(str(error).replace("with -o", f"with {option}")) from error


# ------------------------------------------------------------------------------------------ charts


def draw_charts(charts: Sequence[LineChart], path: str | Path) -> None:
    """Draw line charts side by side into a PNG file.

    Raises `StoreError` if the file cannot be written.
    """
    figure = _figure(5.0 * len(charts) + 1.0, 4.4)
    keys: dict[str, Any] = {}
    for axes, chart in zip(np.ravel(figure.subplots(1, len(charts))), charts, strict=True):
        for one in chart.series:
            _draw_series(axes, one)
        if chart.level is not None:
            axes.axhline(chart.level[0], color="0.3", linestyle=":", label=chart.level[1])
        axes.set_title(chart.title)
        axes.set_xlabel(chart.x_label)
        axes.set_ylabel(chart.y_label)
        axes.set_xscale("log" if chart.x_log else "linear")
        axes.set_yscale("log" if chart.y_log else "linear")
        axes.grid(alpha=0.3)
        handles, labels = axes.get_legend_handles_labels()
        keys |= dict(zip(labels, handles, strict=True))
    columns = max(1, min(len(keys), 2 * len(charts)))
    figure.legend(keys.values(), keys, loc="outside lower center", ncols=columns, fontsize=9)
    _write(path, [_to_png(figure)], "--png")


def _draw_series(axes: Any, one: Series) -> None:
    label = one.label.replace("$", r"\$")  # matplotlib reads $...$ as a formula
    if len(label) > 40:
        label = f"{label[:39]}…"
    is_line, is_hollow = one.style == "line", one.style == "hollow"
    axes.plot(
        [x for x, _ in one.points], [y for _, y in one.points],
        color=COLORS[one.number % len(COLORS)],
        linestyle=_DASHES[one.number % len(_DASHES)] if is_line else "none",
        marker="o", markersize=9 if is_hollow else 4, fillstyle="none" if is_hollow else "full",
        label=label or None,
    )  # fmt: skip


def draw_metric(report: dict[str, Any], path: str | Path) -> None:
    """Draw the metric of each fold and the means over C, with the best C marked.

    For sparse models, two more charts show the weights that are not 0 and the certified gap.

    Parameters
    ----------
    report : dict
        As `sbm.tune` returns it.
    path : str or Path
        A .png file.

    Raises
    ------
    StoreError
        The file cannot be written.
    """
    rows = [row for row in report["settings"] if row["mean"] is not None]
    means = {row["C"]: (row["C"], row["mean"]) for row in rows}
    folds = [(row["C"], value) for row in rows for value in row["folds"] if value is not None]
    dropped = [row["C"] for row in rows if row["status"] == "given up"]
    kept = [C for C in means if C not in dropped]
    series = [
        Series("folds", 7, folds, "points"),
        Series(f"mean of {report['folds']} folds", 0, [means[C] for C in kept]),
        Series("stopped early", 1, [means[C] for C in dropped], "points"),
        Series(f"best: C = {format_number(report['best'])}", 1, [means[report["best"]]], "hollow"),
    ]
    metric = report["metric"].replace("_", " ")
    chart = LineChart(
        "metric", f"{metric} by C: {len(rows)} of {len(report['settings'])} values tried",
        "C", f"{metric} of held-out rows",
        [one for one in series if one.points], x_log=True,
    )  # fmt: skip
    draw_charts([chart, *path_charts(rows)], path)


def path_charts(rows: Sequence[dict[str, Any]]) -> Iterator[LineChart]:
    """Yield the charts that only the path of sparse models has."""
    for name, title in (
        ("n_nonzero", "weights that are not 0"), ("relative_gap", "certified relative gap")
    ):  # fmt: skip
        points = [(row["C"], row[name]) for row in rows if "n_nonzero" in row and row[name]]
        if points:
            lines = [Series("", 0, points)]
            yield LineChart(name, title, "C", title, lines, x_log=True, y_log=True)


def _figure(width: float, height: float) -> Any:
    """Return a figure of this size in inches."""
    agg = importlib.import_module("matplotlib.backends.backend_agg")
    figures = importlib.import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(width, height), layout="constrained")
    agg.FigureCanvasAgg(figure)
    return figure


def _to_png(figure: Any) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about letters missing in the font
        figure.savefig(file, dpi=130, format="png", bbox_inches="tight")
    return file.getvalue()


# --------------------------------------------------------------------------------------- confusion


def write_confusion(confusion: Confusion, path: str | Path) -> None:
    """Write a confusion matrix as a table (.tsv) or a picture (.png).

    Only classes that occur, as true or predicted labels, have a row and a column. Rows whose
    label is unknown to the model are the last row of the table, ``unknown``; the picture gives
    their number in its title. The picture shows each row as shares of its sum.

    Raises
    ------
    SettingsError, StoreError
        As `check_confusion`; or the file cannot be written.
    """
    check_confusion([path])
    codes = np.union1d(confusion.true, confusion.predicted)
    codes = codes[codes < len(confusion.labels)]
    names = [format_label(confusion.labels[code]) for code in codes.tolist()]
    is_table = Path(path).suffix.lower() == ".tsv"
    pieces = (_table if is_table else _picture)(confusion, codes, names)
    _write(path, pieces, "--confusion")


def _table(confusion: Confusion, codes: npt.NDArray[np.int64], names: list[str]) -> Iterator[bytes]:
    """Yield the lines of the table, with one row of the matrix in memory at a time."""
    yield "\t".join(["true\\predicted", *names]).encode() + b"\n"
    columns = np.searchsorted(codes, confusion.predicted)
    rows = list(zip(codes.tolist(), names, strict=True))
    if len(confusion.labels) in confusion.true:
        rows.append((len(confusion.labels), "unknown"))
    for code, name in rows:
        begin, end = np.searchsorted(confusion.true, [code, code + 1]).tolist()
        counts = np.zeros(len(codes), np.int64)
        counts[columns[begin:end]] = confusion.counts[begin:end]
        yield "\t".join([name, *map(str, counts.tolist())]).encode() + b"\n"


def _picture(
    confusion: Confusion, codes: npt.NDArray[np.int64], names: list[str]
) -> Iterator[bytes]:
    """Yield the bytes of a PNG file."""
    n = len(codes)
    side = 9.0 if n > _NAMED else 4.2 + 0.14 * n + 0.1 * min(n, _COUNTED)  # inches
    figure = _figure(side + 1.2, side + 0.6)
    axes = figure.subplots()
    axes.set_title(_title(confusion, n), fontsize=11)
    if n:
        _draw_cells(figure, axes, confusion, codes)
        upright = max(map(len, names)) * n > 60
        font = {"fontsize": 9 if n <= 30 else 7}
        shown = names if n <= _NAMED else []
        axes.set_xticks(range(len(shown)), shown, rotation=90 if upright else 0, **font)
        axes.set_yticks(range(len(shown)), shown, **font)
    else:
        axes.set_axis_off()
    yield _to_png(figure)


def _title(confusion: Confusion, n_classes: int) -> str:
    rows, right = confusion.rows, confusion.correct
    if not rows:
        return "no rows"
    classes = count(n_classes, "class")
    title = f"accuracy {100 * right / rows:.2f} %\n{right:,} of {rows:,} rows, {classes}"
    unknown = int(confusion.counts[confusion.true == len(confusion.labels)].sum())
    return title + (f"\nnot shown: {unknown:,} rows with unknown labels" if unknown else "")


def _draw_cells(figure: Any, axes: Any, confusion: Confusion, codes: npt.NDArray[np.int64]) -> None:
    """Draw the cells, the color bar and the counts."""
    share = math.ceil(len(codes) / _CELLS)  # classes in a cell
    counts = np.zeros((math.ceil(len(codes) / share),) * 2, np.int64)
    known = confusion.true < len(confusion.labels)
    sides = (confusion.true, confusion.predicted)
    cells = tuple(np.searchsorted(codes, side[known]) // share for side in sides)
    np.add.at(counts, cells, confusion.counts[known])
    sums = counts.sum(axis=1, keepdims=True)
    shares = np.ma.masked_array(
        counts / np.maximum(sums, 1), np.broadcast_to(sums == 0, counts.shape)
    )
    axes.set_facecolor("0.93")  # rows without data: labels that are only predicted
    # The square root of the share makes a confusion of 1 % visible.
    norm = importlib.import_module("matplotlib.colors").PowerNorm(0.5, 0, 1)
    image = axes.imshow(shares, cmap="Blues", norm=norm, interpolation="nearest")
    beside = axes.inset_axes([1.03, 0, 0.035, 1])  # as high as the matrix
    bar = figure.colorbar(image, cax=beside, ticks=_SHARES)
    bar.ax.set_yticklabels([f"{100 * tick:g} %" for tick in _SHARES])
    bar.set_label("share of true label" + ("; grey: no rows" if not sums.all() else ""))
    note = f" ({share} labels per cell)" if share > 1 else ""
    axes.set_xlabel(f"predicted label{note}")
    axes.set_ylabel(f"true label{note}")
    if len(codes) <= _COUNTED:
        size = min(10.0, max(5.0, 500 / len(codes) / len(f"{counts.max():,}")))
        for row, column in zip(*np.nonzero(counts), strict=True):
            color = "white" if shares[row, column] > 0.4 else "black"
            text = f"{counts[row, column]:,}"
            axes.text(column, row, text, ha="center", va="center", fontsize=size, color=color)
