"""How inputs are read: what the user says, and what a store or a model has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.errors import SettingsError, require_number
from sbm.inputs.columns.kinds import Asked, Dialect
from sbm.inputs.columns.state import Columns
from sbm.inputs.nametable import LabelWords, NameTable
from sbm.inputs.parsing import MOST_HASH_BITS
from sbm.names import Names
from sbm.plain import dataclass


@dataclass(frozen=True)
class InputOptions:
    """Options for reading inputs; None means not set."""

    format: str | None = None  # format of all inputs. Default: from each file name.
    hash_bits: int | None = None  # number of bits of hashed feature names, of VW text
    # pairs of first letters of namespaces of VW text, whose features are multiplied
    quadratic: tuple[str, ...] = ()
    # True: every row needs a label. None: the label of a row without one is nan. False: labels are
    # ignored and need not be numbers, and a blank line of text is a row.
    labels: bool | None = True
    # whether labels are targets; other whole numbers have to be exact in float64
    targets: bool = False
    names: NameTable | None = None  # receives the names of features; None to drop them
    words: LabelWords = field(default_factory=LabelWords)  # how labels become numbers
    tag: str | None = None  # column of the tags of rows; ``tag`` for those of Vowpal Wabbit's text
    # the columns of tables
    table: Columns = field(default_factory=lambda: Columns(Asked(), Dialect()))

    def __post_init__(self) -> None:
        if self.hash_bits is not None:
            require_number("hash_bits", self.hash_bits, 1, MOST_HASH_BITS)

    @property
    def label(self) -> str | None:
        """The column of labels."""
        return self.table.label

    @property
    def weight(self) -> str | None:
        """The column of weights."""
        return self.table.weight

    def following(self, known: Naming, whose: str, grows: bool = False) -> InputOptions:
        """Return these options completed from a store or a model.

        Parameters
        ----------
        known : Naming
        whose : str
            The store or the model, for messages.
        grows : bool
            Whether new words of tables become features.

        Raises
        ------
        SettingsError
            The record is invalid, or these options contradict it.
        """
        record = known.record
        if "columns" in record:
            self.table.follow(record, whose, known.names, known.ids, grows)
            return self
        bits = record.get("hash_bits")
        if type(bits) is not int or not 1 <= bits <= MOST_HASH_BITS:
            raise SettingsError(f"the input options in {whose} are invalid; split the data again")
        pairs = record.get("quadratic", [])
        if not isinstance(pairs, list) or not all(
            isinstance(pair, str) and len(pair.encode()) == 2 for pair in pairs
        ):
            raise SettingsError(f"the input options in {whose} are invalid; split the data again")
        if self.quadratic and [*self.quadratic] != pairs:
            raise SettingsError(
                f"quadratic differs from that of {whose}, which is {' '.join(pairs) or 'none'}; "
                "omit it"
            )
        if self.hash_bits not in (None, bits):
            raise SettingsError(
                f"hash_bits is {self.hash_bits}, but {whose} uses {bits} bits; omit --hash-bits"
            )
        return replace(self, hash_bits=bits, quadratic=tuple(pairs))


@dataclass(frozen=True)
class Naming:
    """How a store or a model names its features.

    Attributes
    ----------
    record : mapping
        See `sbm.inputs.formats.names_record`.
    names : Names, optional
        Names of its features.
    ids : ndarray, optional
        Their ids.
    """

    record: Mapping[str, Any]
    names: Names | None = None
    ids: npt.NDArray[np.int64] | None = None

    @property
    def is_of_table(self) -> bool:
        """Whether features are those of the columns of a table."""
        return "columns" in self.record
