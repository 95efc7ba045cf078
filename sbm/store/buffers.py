"""Arrays that are used again: to get new pages from the system takes longer than to fill them."""

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Buffers"]


class Buffers:
    """A heap of arrays of bytes that any thread takes from and gives back to.

    Parameters
    ----------
    size : int
        Bytes of an array; what is larger is made when asked for and not kept.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._free: deque[npt.NDArray[np.uint8]] = deque()

    def take(self, n: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return an array of n elements, whatever they are."""
        dtype = np.dtype(dtype)
        size = n * dtype.itemsize
        if size > self._size:
            return np.empty(n, dtype)
        try:
            whole = self._free.pop()
        except IndexError:
            whole = np.empty(self._size, np.uint8)
        return whole[:size].view(dtype)

    def give_back(self, *arrays: npt.NDArray[Any] | None) -> None:
        """Take back what `take` returned, or a part of it; None is nothing."""
        for array in arrays:
            whole = array
            while whole is not None and isinstance(whole.base, np.ndarray):
                whole = whole.base
            if whole is not None and whole.nbytes == self._size and whole.dtype == np.uint8:
                self._free.append(whole)
