"""Accesses out of bounds end the process: memory between guarded pages, and checked kernels.

Kernels are compiled without checks of bounds. Processes with the environment of `checked` compile
and use such that check, kept in a folder of their own. What a kernel reads through pointers of its
own (eight or 64 bytes at a time) no compiler checks; arrays between guarded pages do.
"""

import ctypes
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.compiled import COMPILE_HERE, FOLDER

Bytes = npt.NDArray[np.uint8]


def checked(folder: Path) -> dict[str, str]:
    """Return the environment of a process whose kernels check their bounds.

    Parameters
    ----------
    folder : Path
        For machine code.
    """
    # Checks are put in before the code is optimised, which takes most of the time.
    checks = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_OPT": "0"}
    return {**os.environ, **checks, COMPILE_HERE: "1", FOLDER: str(folder)}


class GuardedBytes:
    """Memory between two pages whose reading or writing ends the process.

    Parameters
    ----------
    size : int
        Bytes that can be had, at least.
    """

    def __init__(self, size: int) -> None:
        page = mmap.PAGESIZE
        self.size = -(-size // page) * page
        whole = np.frombuffer(mmap.mmap(-1, self.size + 2 * page), np.uint8)
        self._inside = whole[page:-page]
        protect, no_access = ctypes.CDLL(None, use_errno=True).mprotect, 0
        for begin in (whole.ctypes.data, whole.ctypes.data + page + self.size):
            if protect(ctypes.c_void_p(begin), ctypes.c_size_t(page), no_access):
                raise OSError(ctypes.get_errno(), "pages cannot be protected")

    def at_end(self, n: int) -> Bytes:
        """The last n bytes: those behind them may not be touched."""
        return self._inside[self.size - n :]

    def at_begin(self, n: int) -> Bytes:
        """The first n bytes: those in front of them may not be touched."""
        return self._inside[:n]

    def hold(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return a copy of an array that ends where nothing may be touched any more."""
        copy = self.at_end(array.nbytes).view(array.dtype).reshape(array.shape)
        copy[...] = array
        return copy
