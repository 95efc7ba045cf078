"""Report: an HTML page about one or more runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from sbm.errors import SettingsError, StoreError, require_path
from sbm.programs.reporting.figures import RunFigures, read_run
from sbm.programs.reporting.page import MARK, MOST_RUNS, first_charts, to_html
from sbm.programs.reporting.picture import check_picture, draw_charts
from sbm.store.files import reading, require_place, write_atomically


def report(
    runs: str | Path | Sequence[str | Path],
    output: str | Path | None = None,
    *,
    png: str | Path | None = None,
) -> dict[str, Any]:
    """Write an HTML page that compares trainings and streams.

    The page is one file without JavaScript that needs no network. It shows gap, objective and
    test figures by time, passes and bytes read, where the time went, cache, memory, settings,
    certificates and sources.

    Parameters
    ----------
    runs : str, Path, or sequence of these
        Models, or the ``MODEL.run`` folders next to them. Trainings may still be running.
    output : str or Path, optional
        Page to write. Default: ``report.html`` in the current folder. An existing file is replaced
        only if it is a report of sbm.
    png : str or Path, optional
        Also draw the first charts as a picture. Needs matplotlib.

    Returns
    -------
    dict
        ``output``, ``png``, and for each of ``runs`` its ``name``, ``folder``, ``kind``,
        ``finished``, ``passes``, ``relative_gap`` (the last certified one) and ``warnings``.

    Raises
    ------
    StoreError
        A path is not a run, or damaged; or the page cannot be written.
    SettingsError
        No run, too many runs, an invalid file name, or matplotlib is not installed.
    """
    given: Any = runs
    paths = list(given) if isinstance(given, list | tuple) else [given]
    for path in paths:
        require_path(path, "a run", "give a model's path or its MODEL.run folder")
    page = Path("report.html" if output is None else output)
    if not paths:
        raise SettingsError("no run to report; give a model or its MODEL.run folder")
    if len(paths) > MOST_RUNS:
        raise SettingsError(f"cannot report {len(paths)} runs; give at most {MOST_RUNS}")
    _check_page(page)
    if png is not None:
        check_picture(png, "--png")
    found = _named_apart(paths, [read_run(path) for path in paths])
    charts = first_charts(found) if png is not None else []
    if png is not None and not charts:
        raise StoreError(f"no pass or block to draw in {png} yet; omit --png")
    write_atomically(page, [to_html(found).encode("utf-8", "replace")])
    if png is not None:
        draw_charts(charts, png)
    told = {
        "output": str(page),
        "png": None if png is None else str(png),
        "runs": [
            {
                "name": run.name,
                "folder": str(run.folder),
                "kind": run.kind,
                "finished": run.is_finished,
                "passes": len(run.passes),
                "relative_gap": (run.certificate or {}).get("relative_gap"),
                "warnings": run.warnings(),
            }
            for run in found
        ],
    }
    return _Report(told)


class _Report(dict[str, Any]):
    """A report that a notebook shows as the page."""

    def _repr_html_(self) -> str:
        page = escape(Path(self["output"]).read_text("utf-8"))
        return f'<iframe srcdoc="{page}" width="100%" height="800"></iframe>'


def _check_page(page: Path) -> None:
    """Check the page's name, and that an existing file is a report of sbm."""
    if page.suffix.lower() not in (".html", ".htm"):
        raise SettingsError(f"cannot write a page as {page}; choose a name that ends in .html")
    require_place(page)
    if not page.exists():
        return
    is_report = False
    if page.is_file():
        with reading(page), open(page, "rb") as file:
            is_report = MARK.encode() in file.read(200)
    if not is_report:
        raise StoreError(f"{page} exists and is not a report of sbm; choose another name with -o")


def _named_apart(paths: Sequence[str | Path], runs: list[RunFigures]) -> list[RunFigures]:
    """Use paths as names for runs of the same name; raise `StoreError` for duplicate runs."""
    folders = [run.folder.resolve() for run in runs]
    for k, folder in enumerate(folders):
        if folder in folders[:k]:
            raise StoreError(f"{paths[k]} is given twice; list each run once")
    names = [run.name for run in runs]
    return [
        replace(run, name=str(path)) if names.count(run.name) > 1 else run
        for path, run in zip(paths, runs, strict=True)
    ]
