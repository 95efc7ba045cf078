"""The picture of a tuning: the metric over C, with the folds around it."""

from pathlib import Path
from typing import Any

from sbm.errors import SettingsError, StoreError
from sbm.programs.reporting.picture import check_picture, make_figure, to_png
from sbm.settings import format_number
from sbm.store.files import write_atomically

__all__ = ["check_metric_picture", "draw_metric"]


def check_metric_picture(path: str | Path) -> None:
    """Refuse a name that `draw_metric` could not write, before any work.

    Raises
    ------
    SettingsError, StoreError
        Another ending than .png, no matplotlib, or no such place.
    """
    if Path(path).suffix.lower() != ".png":
        raise SettingsError(
            f"the metric cannot be drawn as {path}; choose a name that ends in .png"
        )
    check_picture(path, "--png", "leave out --png")


def draw_metric(report: dict[str, Any], path: str | Path) -> None:
    """Draw means and standard deviations over C, every fold as a point, the best C marked.

    Parameters
    ----------
    report : dict
        Of `sbm.tune`.
    path : str or Path
        A .png file.

    Raises
    ------
    StoreError
        It cannot be written.
    """
    figure, axes = make_figure(7.0, 4.2)
    rows = [row for row in report["settings"] if row["mean"] is not None]
    kept = [row for row in rows if row["status"] != "given up"]
    points = [(row["C"], x) for row in rows for x in row["folds"] if x is not None]
    axes.plot(*zip(*points, strict=True), ".", color="0.6", markersize=4, zorder=1, label="folds")
    axes.errorbar(
        [row["C"] for row in kept], [row["mean"] for row in kept],
        [row["std"] or 0.0 for row in kept],
        color="tab:blue", marker="o", capsize=3,
        label=f"mean and deviation of {report['folds']} folds", zorder=2,
    )  # fmt: skip
    dropped = [row for row in rows if row["status"] == "given up"]
    if dropped:
        axes.plot(
            [row["C"] for row in dropped], [row["mean"] for row in dropped],
            "x", color="tab:red", label="given up early", zorder=2,
        )  # fmt: skip
    best = next(row for row in rows if row["C"] == report["best"])
    axes.plot(
        best["C"], best["mean"], "o", color="tab:orange", markersize=11, fillstyle="none",
        markeredgewidth=2, label=f"best: C = {format_number(best['C'])}", zorder=3,
    )  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlabel("C")
    axes.set_ylabel(f"{report['metric'].replace('_', ' ')} of held-out rows")
    axes.grid(alpha=0.3)
    axes.legend()
    try:
        write_atomically(Path(path), [to_png(figure)])
    except StoreError as error:
        raise StoreError(str(error).replace("with -o", "with --png")) from error
