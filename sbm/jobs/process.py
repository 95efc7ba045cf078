"""What the operating system says about this process."""

import os
import resource
import sys

__all__ = ["peak_bytes", "resident_bytes"]


def peak_bytes() -> int:
    """Peak resident memory so far, bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident_bytes() -> int:
    """Resident memory now, bytes; the peak where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return peak_bytes()
