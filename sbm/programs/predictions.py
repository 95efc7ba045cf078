"""Files of predictions: lines of text, CSV, or Parquet."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import numpy.typing as npt

from sbm.dataset.batches import Answers
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
        self._is_first, self._writer = True, cast(Any, None)
        if self._is_parquet and file is not None:
            from sbm.inputs.records import ParquetWriter

            self._writer = ParquetWriter(file, str(path))

    def add(
        self,
        y: npt.NDArray[np.float64],
        scores: npt.NDArray[np.float64],
        tags: npt.NDArray[np.object_] | None,
    ) -> None:
        """Judge rows, and write them.

        Parameters
        ----------
        y, scores
            As for `Answers.add`.
        tags : ndarray, shape (n,), optional
            Ids of the rows.
        """
        lines = self._answers.add(y, scores)
        if self._file is None:
            return
        if self._separator is None and not self._is_parquet:
            self._write(lines if tags is None else _with_tags(lines, tags))
            return
        columns: dict[str, npt.NDArray[Any]] = {} if tags is None else {str(self._tag): tags}
        columns |= self._answers.columns(scores)
        if self._is_parquet:
            self._writer.add(columns)
        else:
            self._write(self._rows(columns))

    def start(self) -> None:
        """Write what is above the rows of text."""
        if self._separator is None and not self._is_parquet:
            for line in self._answers.title():
                self._write([line if self._tag is None else f"{self._tag}\t{line}"])

    def finish(self) -> None:
        """Write what is behind the rows."""
        if self._writer is not None:
            self._writer.close()

    def _write(self, pieces: Any) -> None:
        """Write text for a reader that may wait for it; without a file, nothing is generated."""
        if self._file is not None:
            self._file.writelines(piece.encode() for piece in pieces)
            self._file.flush()

    def _rows(self, columns: Mapping[str, npt.NDArray[Any]]) -> Iterator[str]:
        import csv  # here, as few commands need it

        text = io.StringIO()
        writer = csv.writer(text, delimiter=self._separator or ",", lineterminator="\n")
        if self._is_first:
            writer.writerow(columns)
            self._is_first = False
        writer.writerows(zip(*map(_as_texts, columns.values()), strict=True))
        yield text.getvalue()


def _as_texts(column: npt.NDArray[Any]) -> list[str]:
    values = column.tolist()
    return [format_number(v) for v in values] if column.dtype.kind == "f" else values


def _with_tags(pieces: Iterator[str], tags: npt.NDArray[np.object_]) -> Iterator[str]:
    """Yield lines with the id of the row before each."""
    lines = "".join(pieces).split("\n")[:-1]
    rows = zip(tags.tolist(), lines, strict=True)
    yield "".join(f"{' '.join(tag.split())}\t{line}\n" for tag, line in rows)
