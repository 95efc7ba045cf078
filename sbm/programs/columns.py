"""Columns: show what the columns of a table are read as, and write it as TOML."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from sbm.dataset.options import ReadKeywords, ReadOptions
from sbm.dataset.sources import find_sources
from sbm.engine.kernels import TABLES, prepare
from sbm.engine.progress import Progress
from sbm.errors import DataError, require_path
from sbm.inputs.columns.kinds import to_toml
from sbm.inputs.formats import fit_headers, is_table
from sbm.inputs.urls import remote_terms
from sbm.store.files import open_atomically


def columns(
    inputs: str | Path | Iterable[str | Path],
    output: str | Path | None = None,
    *,
    remote_timeout: float | str | None = None,
    progress: Progress | None = None,
    **reading: Unpack[ReadKeywords],
) -> dict[str, Any]:
    """Infer what the columns of a table are, as `sbm.split` does.

    Parameters
    ----------
    inputs : str, Path or iterable of these; or a data frame
        As for `sbm.split`. Only the first rows are read.
    output : str or Path, optional
        TOML file to write, for `columns` of `sbm.split` and `sbm.train`.
    remote_timeout : float or str, optional
        Maximum time to wait for data from the server of a remote input. Default: 60s.
    progress : Progress, optional
        Receives the wait for compiled kernels.
    **reading
        How to read the inputs; ``help(sbm.ReadOptions)`` lists the names.

    Returns
    -------
    dict
        ``columns`` (a list of ``name``, ``kind`` and ``seen``, what was seen), ``lines`` (the same
        as text), ``toml``, ``warnings``, ``output``.

    Raises
    ------
    DataError
        The input is invalid, or not a table.
    """
    how, progress = ReadOptions.of(reading), Progress.of(progress)
    options = replace(how.input_options(1 << 30), labels=None)
    with remote_terms(remote_timeout, progress.stage):
        sources, _ = find_sources(inputs, "unused.sbm", False, options, how.name)
    if not is_table(sources[0]):
        what = "; name its format, as in --format csv" if sources[0].name == "-" else ""
        raise DataError(f"{sources[0].shown} is not a table; its features have no columns{what}")
    prepare("reading", TABLES, {}, progress)
    table = sources[0].options.table
    fit_headers(sources)
    if not table.columns and table.label is None:
        raise DataError(
            f"{sources[0].shown} has no columns: it is empty; a table begins with their names"
        )
    is_without_rows = all(column.kind == "empty" for column in table.columns)
    warnings = [f"{sources[0].shown} has no cells below the names"] if is_without_rows else []
    found = [
        {"name": name, "kind": kind, "seen": ""}
        for name, kind in ((table.label, "label"), (table.weight, "weight"))
        if name is not None
    ]
    found += [{"name": c.name, "kind": c.kind, "seen": c.seen} for c in table.columns]
    toml = to_toml(
        (one["name"], _with_number(one["kind"], table.asked.kind_of(one["name"])), one["seen"])
        for one in found
    )
    if output is not None:
        require_path(output, "the output")
        with open_atomically(Path(output)) as file:
            file.write(toml.encode())
    return {
        "columns": found, "lines": list(table.lines()), "toml": toml, "warnings": warnings,
        "output": None if output is None else str(output),
    }  # fmt: skip


def _with_number(kind: str, asked: str | None) -> str:
    """Return the kind as it was asked for, such as ``bins:3``, if it has a number."""
    return asked if asked is not None and asked.startswith(f"{kind}:") else kind
