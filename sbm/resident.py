"""Release memory that is resident but not used: the code of LLVM.

Since Linux 6.18, a call into a library can map 2 MB of its file at once. Loading and calling LLVM
then leaves up to 80 MB resident that never run. They count for ``--mem``, so they are released;
code that is called again is mapped again.
"""

import contextlib
import ctypes
import functools

import llvmlite.binding  # noqa: F401  (loads the library)

_MADV_DONTNEED = 4


@functools.cache
def _code_of_llvm() -> list[tuple[int, int]]:
    """Return addresses and lengths; none outside Linux."""
    found = []
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8") as lines:
        for line in lines:
            if "libllvmlite" in line and " r-xp " in line:
                first, end = (int(word, 16) for word in line.split()[0].split("-"))
                found.append((first, end - first))
    return found


def release_llvm() -> None:
    """Release the code of LLVM from resident memory."""
    for address, length in _code_of_llvm():
        ctypes.CDLL(None).madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), _MADV_DONTNEED)
