"""Pictures: matplotlib, which is no required package, and only where a picture is asked for."""

import importlib
import importlib.util
import io
from pathlib import Path
from typing import Any

from sbm.errors import SettingsError, StoreError

__all__ = ["check_picture", "make_figure", "make_figures", "to_png"]


def check_picture(path: str | Path, option: str, otherwise: str) -> None:
    """Refuse a picture that could not be written, before any work.

    Parameters
    ----------
    path : str or Path
    option : str
        What it was given with, for the sentence.
    otherwise : str
        What to do without matplotlib.

    Raises
    ------
    SettingsError
        matplotlib is not installed.
    StoreError
        A folder, or a place in a folder that does not exist.
    """
    path = Path(path)
    if path.suffix.lower() == ".png" and importlib.util.find_spec("matplotlib") is None:
        raise SettingsError(
            f"drawing {path} needs matplotlib, which is not installed; install it "
            f"(pip install matplotlib), or {otherwise}"
        )
    if path.is_dir():
        raise StoreError(f"{path} is a folder; give a file name with {option}")
    if not path.parent.is_dir():
        raise StoreError(
            f"{path.parent} is no folder; make it, or choose another place with {option}"
        )


def make_figure(width: float, height: float) -> tuple[Any, Any]:
    """Return a figure of so many inches, and its axes."""
    figure, (axes,) = make_figures(width, height, 1)
    return figure, axes


def make_figures(width: float, height: float, n: int) -> tuple[Any, list[Any]]:
    """Return a figure of so many inches, and the axes of `n` parts side by side."""
    agg = importlib.import_module("matplotlib.backends.backend_agg")
    figures = importlib.import_module("matplotlib.figure")
    figure = figures.Figure(figsize=(width, height), layout="constrained")
    agg.FigureCanvasAgg(figure)
    return figure, list(figure.subplots(1, n, squeeze=False)[0])


def to_png(figure: Any) -> bytes:
    """Return the bytes of a PNG file."""
    file = io.BytesIO()
    figure.savefig(file, dpi=130, format="png", bbox_inches="tight")
    return file.getvalue()
