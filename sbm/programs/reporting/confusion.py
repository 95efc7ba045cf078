"""The confusion matrix as a table (.tsv) or a picture (.png)."""

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.errors import SettingsError, StoreError
from sbm.models.metrics import Confusion
from sbm.programs.reporting.picture import check_picture, make_figure, to_png
from sbm.settings import format_number
from sbm.store.files import write_atomically

__all__ = ["check_confusion", "write_confusion"]

_UNKNOWN = "unknown"  # the row of the labels that the model does not know
_NAMED = 60  # so many classes have their names on the axes,
_COUNTED = 20  # and so many the number of rows in each cell
_SHARES = [0, 0.01, 0.05, 0.1, 0.25, 0.5, 1]  # ticks of the colour bar
_CELLS = 1000  # of a side of the picture; neighbours share a cell where there are more classes


def check_confusion(paths: Sequence[str | Path]) -> None:
    """Refuse names that `write_confusion` could not write, before any work.

    Parameters
    ----------
    paths : sequence of str or Path

    Raises
    ------
    SettingsError
        Another ending than .tsv and .png, or a picture where matplotlib is not installed.
    StoreError
        A folder, or a place in a folder that does not exist.
    """
    for path in map(Path, paths):
        ending = path.suffix.lower()
        if ending not in (".tsv", ".png"):
            raise SettingsError(
                f"the confusion matrix cannot be written as {path}; "
                "choose a name that ends in .tsv (a table) or .png (a picture)"
            )
        check_picture(path, "--confusion", "choose a name that ends in .tsv for a table")


def write_confusion(confusion: Confusion, path: str | Path) -> None:
    """Write a confusion matrix, atomically.

    Only classes that occur, as a true or a predicted label, have a row and a column. Rows whose
    label the model does not know make up one last row of the table, ``unknown``; the picture
    leaves them out and says so.

    Parameters
    ----------
    confusion : Confusion
    path : str or Path
        ``.tsv``: the predicted labels in the first line, then a line for each true label; ``.png``:
        a picture, each row in shares of its sum.

    Raises
    ------
    SettingsError, StoreError
        As `check_confusion`; or the file cannot be written.
    """
    check_confusion([path])
    path = Path(path)
    pieces = _table(confusion) if path.suffix.lower() == ".tsv" else _picture(confusion)
    try:
        write_atomically(path, pieces)
    except StoreError as error:
        raise StoreError(str(error).replace("with -o", "with --confusion")) from error


def _occurring(confusion: Confusion) -> npt.NDArray[np.int64]:
    """Codes of the known classes that occur, ascending."""
    codes = np.union1d(confusion.true, confusion.predicted)
    return codes[codes < len(confusion.labels)]


# ---------------------------------------------------------------------------------------- table


def _table(confusion: Confusion) -> Iterator[bytes]:
    """Lines of a table; one row of the matrix is in memory at a time."""
    codes = _occurring(confusion)
    names = [format_number(confusion.labels[code]) for code in codes.tolist()]
    yield "\t".join(["true\\predicted", *names]).encode() + b"\n"
    columns = np.searchsorted(codes, confusion.predicted)
    rows = list(zip(codes.tolist(), names, strict=True))
    n_labels = len(confusion.labels)
    if n_labels in confusion.true:
        rows.append((n_labels, _UNKNOWN))
    for code, name in rows:
        begin, end = np.searchsorted(confusion.true, [code, code + 1]).tolist()
        cells = ["0"] * len(codes)
        pairs = zip(columns[begin:end].tolist(), confusion.counts[begin:end].tolist(), strict=True)
        for column, count in pairs:
            cells[column] = str(count)
        yield "\t".join([name, *cells]).encode() + b"\n"


# -------------------------------------------------------------------------------------- picture


def _matrix(confusion: Confusion, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Counts of known labels as a square array of at most `_CELLS` rows."""
    share = max(1, -(-len(codes) // _CELLS))  # classes that share a row
    counts = np.zeros((-(-len(codes) // share),) * 2, np.int64)
    known = confusion.true < len(confusion.labels)
    row, column = (
        np.searchsorted(codes, which[known]) // share
        for which in (confusion.true, confusion.predicted)
    )
    np.add.at(counts, (row, column), confusion.counts[known])
    return counts


def _picture(confusion: Confusion) -> Iterator[bytes]:
    """The bytes of a PNG file."""
    codes = _occurring(confusion)
    side = _side(len(codes))
    figure, axes = make_figure(side + 1.2, side + 0.6)
    axes.set_title(_title(confusion, len(codes)), fontsize=11)
    if len(codes):
        _draw_cells(figure, axes, confusion, codes)
    else:
        axes.set_axis_off()
    yield to_png(figure)


def _side(n_classes: int) -> float:
    """Inches: room for names and counts, and from some size on for a dot a cell."""
    if n_classes > _NAMED:
        return 9.0
    return 4.2 + 0.14 * n_classes + 0.1 * min(n_classes, _COUNTED)


def _title(confusion: Confusion, n_classes: int) -> str:
    rows, right = confusion.rows, confusion.correct
    if not rows:
        return "no rows"
    classes = f"{n_classes:,} class{'' if n_classes == 1 else 'es'}"
    title = f"accuracy {100 * right / rows:.2f} % ({right:,} of {rows:,} rows), {classes}"
    unknown = int(confusion.counts[confusion.true == len(confusion.labels)].sum())
    if unknown:
        title += f"\nrows of labels that the model does not know, not shown: {unknown:,}"
    return title


def _draw_cells(figure: Any, axes: Any, confusion: Confusion, codes: npt.NDArray[np.int64]) -> None:
    """Fill the axes: cells, colour bar, names."""
    counts = _matrix(confusion, codes)
    sums = counts.sum(axis=1, keepdims=True)
    shares = np.ma.masked_array(
        counts / np.maximum(sums, 1), np.broadcast_to(sums == 0, counts.shape)
    )
    axes.set_facecolor("0.93")  # of rows without an entry: labels that were predicted only
    # The square root of the share: a confusion of one row in a hundred can still be seen.
    norm = importlib.import_module("matplotlib.colors").PowerNorm(0.5, 0, 1)
    image = axes.imshow(shares, cmap="Blues", norm=norm, interpolation="nearest")
    beside = axes.inset_axes([1.03, 0, 0.035, 1])  # as high as the matrix, whatever the layout
    bar = figure.colorbar(image, cax=beside, ticks=_SHARES)
    bar.ax.set_yticklabels([f"{100 * share:g} %" for share in _SHARES])
    bar.set_label(
        "share of the rows with this true label" + (", grey: no rows" if not sums.all() else "")
    )
    share = max(1, -(-len(codes) // _CELLS))
    note = f" ({share} labels a cell)" if share > 1 else ""
    axes.set_xlabel(f"predicted label{note}")
    axes.set_ylabel(f"true label{note}")
    _name_classes(axes, [format_number(confusion.labels[code]) for code in codes.tolist()])
    if len(codes) <= _COUNTED:
        _write_counts(axes, counts, shares)


def _name_classes(axes: Any, names: list[str]) -> None:
    """Tick labels for a few dozen classes, none for more."""
    if len(names) > _NAMED:
        axes.set_xticks([])
        axes.set_yticks([])
        return
    size = 9 if len(names) <= 30 else 7
    longest = max(map(len, names))
    upright = longest * len(names) > 60
    axes.set_xticks(range(len(names)), names, fontsize=size, rotation=90 if upright else 0)
    axes.set_yticks(range(len(names)), names, fontsize=size)


def _write_counts(axes: Any, counts: npt.NDArray[np.int64], shares: Any) -> None:
    cell = 72 * 0.75 * _side(len(counts)) / len(counts)  # points, roughly
    size = min(10, max(5, cell / (0.55 * len(f"{counts.max():,}"))))
    for row, column in zip(*np.nonzero(counts), strict=True):
        colour = "white" if shares[row, column] > 0.4 else "black"
        axes.text(
            column, row, f"{counts[row, column]:,}",
            ha="center", va="center", fontsize=size, color=colour,
        )  # fmt: skip
