"""What the operating system says about this process."""

import contextlib
import ctypes
import os
import resource
import sys

__all__ = ["peak_bytes", "resident_bytes", "return_freed_memory", "usable_threads"]


def peak_bytes() -> int:
    """Peak resident memory so far, bytes."""
    # What `getrusage` tells on Linux may be the peak of the process that started this one.
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident_bytes() -> int:
    """Resident memory now, bytes; the peak where the system does not tell."""
    try:
        handle = os.open("/proc/self/statm", os.O_RDONLY)  # asked at every block: without a buffer
    except OSError:
        return peak_bytes()
    try:
        return int(os.read(handle, 200).split()[1]) * os.sysconf("SC_PAGE_SIZE")
    finally:
        os.close(handle)


def usable_threads(asked: int | None) -> int:
    """Return the threads asked for; None means as many as the cores this process may use."""
    return asked or len(os.sched_getaffinity(0))


def return_freed_memory() -> None:
    """Have the C library give large arrays back to the system when they are freed.

    Left alone, glibc raises its threshold for that to 32 MB as arrays come and go, and what is
    freed below it stays resident: tens of megabytes that no plan knows of.
    """
    mmap_threshold = -3  # M_MMAP_THRESHOLD of <malloc.h>
    if sys.platform == "linux":
        setter = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries lack it
        if setter is not None:
            setter(mmap_threshold, 1 << 18)
