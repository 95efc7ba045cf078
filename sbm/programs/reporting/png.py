"""The picture of runs: what the page of a report shows first, drawn by matplotlib."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from sbm.errors import StoreError
from sbm.programs.reporting.markup import LETTERS
from sbm.programs.reporting.picture import make_figures, to_png
from sbm.programs.reporting.runlog import PassFigures, RunFigures
from sbm.store.files import write_atomically

__all__ = ["draw_report"]

_MARKERS = "os^Dvph"
_DASHES = ("-", "--", ":", "-.")


def draw_report(runs: Sequence[RunFigures], path: str | Path) -> None:
    """Draw objective, gap and test accuracy of trainings against time.

    Parameters
    ----------
    runs : sequence of RunFigures
        Streams are left out.
    path : str or Path
        A .png file.

    Raises
    ------
    StoreError
        It cannot be written, or there is no pass to draw.
    """
    lettered = [(k, run) for k, run in enumerate(runs) if run.passes]
    if not lettered:
        raise StoreError(f"there is no pass to draw in {path}; leave out --png")
    charts: list[tuple[str, Callable[[PassFigures], float | None], bool]] = [
        ("dual value", lambda one: one.dual, False),
        ("relative gap", lambda one: one.relative_gap, True),
    ]
    for name, test in (("test accuracy, %", _accuracy), ("test mean squared error", _mse)):
        if any(test(one) is not None for _, run in lettered for one in run.passes):
            charts.append((name, test, False))
    figure, axes = make_figures(4.6 * len(charts), 4.0, len(charts))
    for ax, (name, of, is_log) in zip(axes, charts, strict=True):
        for k, run in lettered:
            shown = [(one.elapsed, y) for one in run.passes if (y := of(one)) is not None]
            label = f"{LETTERS[k]} {run.name}".replace("$", r"\$")  # else what is between is set
            ax.plot(
                [x for x, _ in shown], [y for _, y in shown], _DASHES[k % len(_DASHES)],
                marker=_MARKERS[k % len(_MARKERS)], markersize=4, label=label,
            )  # fmt: skip
        ax.set_xlabel("seconds")
        ax.set_title(name, fontsize=10)
        ax.grid(alpha=0.3)
        if is_log:
            ax.set_yscale("log")
    axes[0].legend(fontsize=8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of letters that a font has not
        drawn = to_png(figure)
    try:
        write_atomically(Path(path), [drawn])
    except StoreError as error:
        raise StoreError(str(error).replace("with -o", "with --png")) from error


def _accuracy(one: PassFigures) -> float | None:
    return one.accuracy_percent


def _mse(one: PassFigures) -> float | None:
    return one.mse
