"""Names of features: text in one array, in the order of the features."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.plain import dataclass


@dataclass(frozen=True)
class Names:
    """Names of features, of which some may be missing."""

    text: npt.NDArray[np.uint8]  # shape (n_bytes,); the names in UTF-8, one after the other
    ends: npt.NDArray[np.int64]  # shape (n_features,); end of each name. A missing name is empty.

    @classmethod
    def of(cls, names: Iterable[bytes]) -> Names:
        """Return the names in a sequence of bytes."""
        words = list(names)
        ends = np.cumsum(np.fromiter(map(len, words), np.int64, len(words)))
        return cls(np.frombuffer(b"".join(words), np.uint8), ends)

    @classmethod
    def from_arrays(cls, arrays: dict[str, Any], n: int) -> Names | None:
        """Return the names in the arrays of a file, or None if there are none.

        Raises `ValueError` if the arrays are not the names of `n` features.
        """
        if "names" not in arrays or "name_ends" not in arrays:
            return None
        text, ends = arrays["names"], arrays["name_ends"]
        if (
            text.dtype != np.uint8
            or text.ndim != 1
            or ends.dtype != np.int64
            or ends.shape != (n,)
            or (np.diff(ends, prepend=0) < 0).any()
            or int(ends[-1] if n else 0) != len(text)
        ):
            raise ValueError("feature names do not match the ids")
        return cls(text, ends)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays for a file; see `from_arrays`."""
        return {"names": self.text, "name_ends": self.ends}

    @property
    def nbytes(self) -> int:
        """Memory in bytes."""
        return self.text.nbytes + self.ends.nbytes

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, k: int) -> str:
        return self.at(k).decode("utf-8", "replace")

    def at(self, k: int) -> bytes:
        """Return the name of a feature as it is."""
        return self.text[self.ends[k - 1] if k else 0 : self.ends[k]].tobytes()

    def __iter__(self) -> Iterator[str]:
        return (self[k] for k in range(len(self)))

    def take(self, chosen: npt.NDArray[np.bool_]) -> Names:
        """Return the names of the chosen features."""
        lengths = np.diff(self.ends, prepend=0)
        text = self.text[np.repeat(chosen, lengths)]
        return Names(text, np.cumsum(lengths[chosen], dtype=np.int64))

    def join(self, other: Names) -> Names:
        """Return these names and then the others."""
        ends = other.ends + len(self.text)
        return Names(np.concatenate([self.text, other.text]), np.concatenate([self.ends, ends]))
