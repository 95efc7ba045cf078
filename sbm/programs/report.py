"""Report: a page about one run or several, to look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sbm.errors import SettingsError, StoreError
from sbm.programs.reporting.markup import LETTERS
from sbm.programs.reporting.page import to_html
from sbm.programs.reporting.picture import check_picture
from sbm.programs.reporting.runlog import RunFigures, read_run
from sbm.store.files import write_atomically

__all__ = ["report"]


def report(
    runs: str | Path | Sequence[str | Path],
    output: str | Path | None = None,
    *,
    png: str | Path | None = None,
) -> dict[str, Any]:
    """Write a page that shows what trainings and streams did, side by side.

    The page is one HTML file that needs nothing else: how objective, gap and test figures went,
    where the time went, what was in the cache, memory, settings, certificates and sources.

    Parameters
    ----------
    runs : str, Path, or sequence of these
        Models, or the ``MODEL.run`` folders beside them; also of trainings that go on.
    output : str or Path, optional
        Where the page goes. Default: ``report.html`` in the current folder.
    png : str or Path, optional
        Also draw objective, gap and test figures as a picture, which needs matplotlib.

    Returns
    -------
    dict
        ``output``, ``png``, and for each of ``runs`` its ``name``, ``folder``, ``kind``,
        ``finished``, ``passes``, ``relative_gap`` (the last certified one) and ``warnings``.

    Raises
    ------
    StoreError
        One of them is no run, or damaged; or the page cannot be written.
    SettingsError
        None or too many runs, an output of another kind, or there is no matplotlib.
    """
    paths = [runs] if isinstance(runs, str | Path) else list(runs)
    page = Path("report.html" if output is None else output)
    _check(paths, page, png)
    found = [read_run(path) for path in paths]
    found = _distinct(paths, found)
    write_atomically(page, [to_html(found).encode("utf-8", "replace")])
    if png is not None:
        from sbm.programs.reporting.png import draw_report

        draw_report(found, png)
    return {
        "output": str(page),
        "png": None if png is None else str(png),
        "runs": [_facts(run) for run in found],
    }


def _check(paths: Sequence[str | Path], page: Path, png: str | Path | None) -> None:
    """Refuse what could not be written, before anything is read."""
    if not paths:
        raise SettingsError("there is no run to report; name a model, or the MODEL.run beside it")
    if len(paths) > len(LETTERS):
        raise SettingsError(
            f"{len(paths)} runs are too many to see side by side; give at most {len(LETTERS)}"
        )
    if page.suffix.lower() not in (".html", ".htm"):
        raise SettingsError(f"the report {page} is a page; choose a name that ends in .html")
    for path, option in ((page, "-o"), *([(Path(png), "--png")] if png is not None else [])):
        check_picture(path, option, "leave out --png")
    if png is not None and Path(png).suffix.lower() != ".png":
        raise SettingsError(f"runs cannot be drawn as {png}; choose a name that ends in .png")


def _distinct(paths: Sequence[str | Path], runs: list[RunFigures]) -> list[RunFigures]:
    """Call runs of one name by where they are; refuse one that is there twice."""
    folders = [run.folder.resolve() for run in runs]
    for k, folder in enumerate(folders):
        if folder in folders[:k]:
            raise StoreError(f"{paths[k]} is there twice; name each run once")
    names = [run.name for run in runs]
    return [
        replace(run, name=str(path)) if names.count(run.name) > 1 else run
        for path, run in zip(paths, runs, strict=True)
    ]


def _facts(run: RunFigures) -> dict[str, Any]:
    return {
        "name": run.name,
        "folder": str(run.folder),
        "kind": run.kind,
        "finished": run.is_finished,
        "passes": len(run.passes),
        "relative_gap": None if run.certificate is None else run.certificate["relative_gap"],
        "warnings": run.warnings(),
    }
