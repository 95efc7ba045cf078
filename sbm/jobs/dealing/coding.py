"""Text as codes: features and labels by the order in which they appeared."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.store.buffers import Buffers
from sbm.store.idtable import IdTable, drop_unknown
from sbm.store.libsvm import ParsedText

__all__ = ["CodedText", "Labels"]

MOST_LABELS = 65536  # more distinct labels than this are real numbers, not classes


@dataclass(frozen=True)
class CodedText:
    """The rows of a piece of text, with codes for the ids that were known.

    Attributes
    ----------
    labels : ndarray, shape (n_rows,), float64
    indptr : ndarray, shape (n_rows + 1,), int64
    indices : ndarray, shape (nnz,), int32
    values : ndarray, shape (nnz,), float32 or float64, or None
        None when every value is 1.
    unknown : ndarray, shape (n_unknown,), int32
        Where `indices` lacks a code, in order.
    unknown_ids : ndarray, shape (n_unknown,), int64
    """

    labels: npt.NDArray[np.float64]
    indptr: npt.NDArray[np.int64]
    indices: npt.NDArray[np.int32]
    values: npt.NDArray[np.floating] | None
    unknown: npt.NDArray[np.int32]
    unknown_ids: npt.NDArray[np.int64]

    @classmethod
    def of(cls, parsed: ParsedText, ids: IdTable, buffers: Buffers) -> "CodedText":
        """Look ids up, in any thread; nothing of `parsed` is kept."""

        def kept(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
            copy = buffers.take(len(array), array.dtype)
            copy[:] = array
            return copy

        indices = buffers.take(len(parsed.ids), np.int32)
        unknown = ids.look_up(parsed.ids, indices)
        values = None if parsed.values is None else kept(parsed.values)
        return cls(
            kept(parsed.labels), kept(parsed.indptr), indices, values, unknown, parsed.ids[unknown]
        )

    def give_back(self, buffers: Buffers) -> None:
        """Let the arrays be used again."""
        buffers.give_back(self.labels, self.indptr, self.indices, self.values)

    def complete(self, ids: IdTable) -> None:
        """Give codes to the ids that had none, piece after piece in the order of the text."""
        if len(self.unknown):
            self.indices[self.unknown] = ids.intern(self.unknown_ids)

    def without_unknown(self, ids: IdTable, buffers: Buffers) -> "CodedText":
        """Leave out what is not in `ids`, which nobody adds to any more; in any thread.

        The arrays of this one are used up. Values are looked at anew: where those that were not 1
        are all left out, a store of ones needs to keep none (1.00000001, which float32 rounds to
        1, is no reason either, though it is one for the parser).
        """
        if len(self.unknown):  # large ids among them may be known
            self.indices[self.unknown] = ids.find(self.unknown_ids)
        nnz, ones = drop_unknown(self.indptr, self.indices, self.values)
        if ones:
            buffers.give_back(self.values)
        values = None if ones or self.values is None else self.values[:nnz]
        nothing = slice(0)
        return replace(
            self, indices=self.indices[:nnz], values=values, unknown=self.unknown[nothing],
            unknown_ids=self.unknown_ids[nothing],
        )  # fmt: skip


class Labels:
    """Class codes in order of first appearance, until there are too many to be classes."""

    def __init__(self, values: Sequence[float] | None, counts: Sequence[int]) -> None:
        self.real = values is None
        known = np.array(values or [], np.float64)
        self._table = IdTable(known.view(np.int64))
        self._counts = np.zeros(MOST_LABELS + 1, np.int64)
        self._counts[: len(counts)] = counts

    def encode(self, labels: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        """Codes, shape (n,), int32; the labels themselves once they are real-valued."""
        if self.real:
            return labels
        plain = labels + 0.0  # -0.0 and 0.0 are one label
        codes = self._table.intern(plain.view(np.int64))
        if len(self._table) > MOST_LABELS:
            self.real = True
            return labels
        self._counts[: len(self._table)] += np.bincount(codes, minlength=len(self._table))
        return codes

    @property
    def values(self) -> list[float]:
        """Label of each code."""
        return list(self._table.keys[:MOST_LABELS].view(np.float64).tolist())

    def describe(self) -> dict[str, Any] | None:
        """What the manifest keeps; None for real-valued labels."""
        if self.real:
            return None
        return {"values": self.values, "counts": self._counts[: len(self._table)].tolist()}
