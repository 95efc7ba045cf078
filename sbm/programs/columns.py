"""Columns: show what the columns of a table are read as, and write it as TOML."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from sbm.dataset.options import ReadKeywords, ReadOptions
from sbm.dataset.sources import find_sources
from sbm.engine.kernels import TABLES, prepare
from sbm.engine.progress import Progress
from sbm.errors import DataError, require_ending, require_path
from sbm.inputs.columns.infer import SAMPLE
from sbm.inputs.columns.kinds import looks_like_a_value, to_toml
from sbm.inputs.formats import fit_headers, is_table, read_pieces
from sbm.inputs.matrices import list_problems
from sbm.inputs.text import Source
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
    SettingsError
        The output has another ending than ``.toml``.
    """
    if output is not None:
        require_path(output, "the output")
        require_ending(output, (".toml",), "use .toml")
    how, progress = ReadOptions.of(reading), Progress.of(progress)
    options = replace(how.input_options(1 << 30), labels=None)
    with remote_terms(remote_timeout, progress.stage):
        sources, _ = find_sources(inputs, "unused.sbm", False, options, how.name)
    if not is_table(sources[0]):
        what = "; name its format, as in --format csv" if sources[0].name == "-" else ""
        raise DataError(f"{sources[0].shown} is not a table; its features have no columns{what}")
    prepare("reading", TABLES, {}, progress)
    table = sources[0].options.table
    fit_headers([source for source in sources if source.comes_again])
    problems = _first_problems(sources)
    if not table.columns and table.label is None:
        raise DataError(
            f"{sources[0].shown} has no columns: it is empty; a table begins with their names"
        )
    is_without_rows = all(column.kind == "empty" for column in table.columns)
    warnings = [f"{sources[0].shown} has no cells below the names"] if is_without_rows else []
    if table.label is None and any(map(looks_like_a_value, (c.name for c in table.columns))):
        warnings.append("if the first line has no names, use --no-header")
    warnings += [*table.notes, *table.warnings(), *problems]
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
        with open_atomically(Path(output)) as file:
            file.write(toml.encode())
    return {
        "columns": found, "lines": list(table.lines()), "toml": toml, "warnings": warnings,
        "output": None if output is None else str(output),
    }  # fmt: skip


def _first_problems(sources: Sequence[Source]) -> list[str]:
    """Read the first rows as `sbm.split` does, and return messages about those that it refuses."""
    problems, n_wrong, n = list[str](), 0, SAMPLE
    for source in sources:
        source = source.again() if source.comes_again else source
        source.is_peeked = True
        with contextlib.closing(read_pieces(source, "float32", None)) as pieces:
            for piece in pieces:
                problems, n_wrong = problems + piece.problems, n_wrong + piece.parsed.n_errors
                n -= piece.parsed.n_lines
                if n <= 0:
                    break
        if n <= 0:
            break
    some = list_problems(problems, n_wrong)
    return [f"rows that sbm split refuses: {some}"] if problems else []


def _with_number(kind: str, asked: str | None) -> str:
    """Return the kind as it was asked for, such as ``bins:3``, if it has a number."""
    return asked if asked is not None and asked.startswith(f"{kind}:") else kind
