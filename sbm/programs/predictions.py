"""Files of predictions: lines of text, CSV, or Parquet."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from sbm.dataset.batches import Answers, Found
from sbm.units import format_number

__all__ = ["PredictionFile"]

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_PARQUET = (".parquet", ".pq")


class PredictionFile:
    """Receives the predictions of rows.

    Parameters
    ----------
    path : str or Path, optional
        Its ending chooses the format.
    file : binary file, optional
        None: nothing is written.
    answers : Answers
    tag : str, optional
        Name of the ids of rows.
    """

    def __init__(
        self, path: str | Path | None, file: IO[bytes] | None, answers: Answers, tag: str | None
    ) -> None:
        ending = Path(path).suffix.lower() if path is not None else ""
        self._file, self._answers, self._tag = file, answers, tag
        self._separator, self._is_parquet = _SEPARATORS.get(ending), ending in _PARQUET
        self._has_lines = self._separator is None and not self._is_parquet
        self._is_first, self._writer = True, cast(Any, None)
        if self._is_parquet and file is not None:
            from sbm.inputs.records import ParquetWriter

            self._writer = ParquetWriter(file, str(path))

    def format(
        self, found: Found, tags: npt.NDArray[np.object_] | None
    ) -> npt.NDArray[np.uint8] | bytes | None:
        """Return the lines of rows; None if none are written. May be called in any thread.

        Parameters
        ----------
        found : Found
            As returned by `Answers.find`.
        tags : ndarray, shape (n,), optional
            Ids of the rows.
        """
        if self._file is None or not self._has_lines:
            return None
        lines = self._answers.text(found)
        return lines if tags is None else _with_tags(bytes(lines), tags)

    def add(
        self,
        found: Found,
        lines: npt.NDArray[np.uint8] | bytes | None,
        tags: npt.NDArray[np.object_] | None,
    ) -> None:
        """Write rows; `lines` are those of `format`."""
        if self._file is None:
            return
        if lines is not None:
            self._write(lines)
            return
        columns: dict[str, npt.NDArray[Any]] = {} if tags is None else {str(self._tag): tags}
        columns |= self._answers.columns(found)
        if self._is_parquet:
            self._writer.add(columns)
        else:
            self._write(self._rows(columns))

    def start(self) -> None:
        """Write what is above the rows of text."""
        if self._has_lines:
            for line in self._answers.title():
                self._write((line if self._tag is None else f"{self._tag}\t{line}").encode())

    def finish(self) -> None:
        """Write what is behind the rows."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, text: npt.NDArray[np.uint8] | bytes) -> None:
        """Write text for a reader that may wait for it."""
        if self._file is not None:
            self._file.write(text)
            self._file.flush()

    def _rows(self, columns: Mapping[str, npt.NDArray[Any]]) -> bytes:
        import csv  # here, as few commands need it

        text = io.StringIO()
        writer = csv.writer(text, delimiter=self._separator or ",", lineterminator="\n")
        if self._is_first:
            writer.writerow(columns)
            self._is_first = False
        writer.writerows(zip(*map(_as_texts, columns.values()), strict=True))
        return text.getvalue().encode()


def _as_texts(column: npt.NDArray[Any]) -> list[str]:
    values = column.tolist()
    return [format_number(v) for v in values] if column.dtype.kind == "f" else values


def _with_tags(lines: bytes, tags: npt.NDArray[np.object_]) -> bytes:
    """Return lines with the id of the row before each."""
    rows = zip(tags.tolist(), lines.decode().split("\n")[:-1], strict=True)
    return "".join(f"{' '.join(tag.split())}\t{line}\n" for tag, line in rows).encode()
