"""What is said of inputs beside their names, and what a store remembers of it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sbm.errors import SettingsError

__all__ = ["HASH_BITS", "InputOptions"]

HASH_BITS = 22  # ids are found in a plain array then, which is fast and takes 16 MB
MOST_HASH_BITS = 32  # of a hash


@dataclass(frozen=True)
class InputOptions:
    """How inputs are read; None is what nobody has said yet.

    Attributes
    ----------
    format : str, optional
        Of all inputs; else the name of each tells its own.
    hash_bits : int, optional
        Where features have names, ids are so many bits of their hashes.
    label : str, optional
        Column of a table that holds the labels.
    text : tuple of str, optional
        Columns of a table whose cells are words, even if they look like numbers.
    """

    format: str | None = None
    hash_bits: int | None = None
    label: str | None = None
    text: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        bits = self.hash_bits
        if bits is not None and not 1 <= bits <= MOST_HASH_BITS:
            raise SettingsError(f"hash_bits is {bits}; it must be from 1 to {MOST_HASH_BITS}")

    def record(self) -> dict[str, Any]:
        """What makes the same ids of the same names again, as JSON holds it."""
        return {
            "hash_bits": self.hash_bits, "label": self.label, "text": list(self.text or ())
        }  # fmt: skip

    def following(self, record: Mapping[str, Any], what: str) -> "InputOptions":
        """Fill in what was chosen before, when a store or a model was made.

        Raises
        ------
        SettingsError
            Something else was asked for, so that ids would have another meaning; the record is
            none.
        """
        bits, label, text = (record.get(key) for key in ("hash_bits", "label", "text"))
        if not _is_record(bits, label, text):
            raise SettingsError(f"what {what} says of its inputs makes no sense; split them again")
        if self.hash_bits not in (None, bits):
            raise SettingsError(
                f"hash_bits is {self.hash_bits}, but names in {what} were hashed to {bits} bits; "
                "leave out --hash-bits"
            )
        assert text is not None
        if self.text is not None and sorted(self.text) != sorted(text):
            raise SettingsError(
                f"the text columns of {what} are {', '.join(text) or 'none'}; leave out --text"
            )
        return replace(
            self, hash_bits=bits, label=label if self.label is None else self.label,
            text=tuple(text),
        )  # fmt: skip


def _is_record(bits: Any, label: Any, text: Any) -> bool:
    return (
        type(bits) is int
        and 1 <= bits <= MOST_HASH_BITS
        and (label is None or isinstance(label, str))
        and isinstance(text, list)
        and all(isinstance(name, str) for name in text)
    )
