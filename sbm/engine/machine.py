"""Memory and cores available to this process, and plans that respect the limits.

All Linux-only features have a fallback for other systems.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, TypeVar

from sbm.errors import MemoryPlanError
from sbm.plain import dataclass
from sbm.units import format_size

__all__ = [
    "INTERPRETER", "Limit", "interpreter_bytes", "peak_bytes", "resident_bytes",
    "return_freed_memory", "smaller", "system_limit", "usable_threads", "within_limit",
]  # fmt: skip


def peak_bytes() -> int:
    """Return the peak resident memory so far, in bytes."""
    # On Linux `getrusage` may return the peak of the parent process.
    with contextlib.suppress(OSError), open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident_bytes() -> int:
    """Return the current resident memory in bytes, or the peak on systems without /proc."""
    try:
        handle = os.open("/proc/self/statm", os.O_RDONLY)  # called per block: avoid a buffer
    except OSError:
        return peak_bytes()
    try:
        return int(os.read(handle, 200).split()[1]) * os.sysconf("SC_PAGE_SIZE")
    finally:
        os.close(handle)


# Python, numpy and our modules, in pages that stay resident (CPython 3.11 on Linux: 42 to 44 MB).
INTERPRETER = 46_000_000
MPI = 46_000_000  # of MPI, whose shared memory and buffers grow with the first messages
_STEP = 16_000_000  # plans must not depend on some pages more or less


@functools.cache
def interpreter_bytes() -> int:
    """Return the memory of interpreter and modules, as a plan counts it.

    That is `INTERPRETER`, with `MPI` where it is loaded; or in a process of the command line what
    is resident when it first plans,
    if that is more. In other processes the caller's data are not ours to count.
    """
    usual = INTERPRETER + (MPI if "mpi4py.MPI" in sys.modules else 0)
    script = sys.modules.get("__main__")  # ours, or one that pip made
    started = getattr(getattr(script, "main", None), "__module__", None)
    module = getattr(getattr(script, "__spec__", None), "name", None)
    if "sbm.__main__" in (started, module):
        more = max(0, resident_bytes() - usual)
        return usual + -(-more // _STEP) * _STEP
    return usual


def usable_threads(asked: int | None) -> int:
    """Return the number of threads: as asked, or if None, the cores this process may use."""
    if asked:
        return asked
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def return_freed_memory() -> None:
    """Make the C library return memory that is free now, and large arrays when they are freed.

    By default glibc raises its threshold for this up to 32 MB, so that freed arrays below it stay
    resident: tens of megabytes that the memory plan does not include.
    """
    mmap_threshold = -3  # M_MMAP_THRESHOLD of <malloc.h>
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        for name, arguments in (("mallopt", (mmap_threshold, 1 << 18)), ("malloc_trim", (0,))):
            if (function := getattr(library, name, None)) is not None:  # other libraries lack them
                function(*arguments)


_CGROUPS = Path("sys/fs/cgroup")
# A second try gets this share of the memory above the minimum, unless that is less than _CLOSE.
_LESS, _CLOSE = 0.5, 2_000_000


@dataclass(frozen=True)
class Limit:
    """A memory limit set by the system.

    Attributes
    ----------
    size : int
        Bytes.
    what : str
        What sets the limit, for messages.
    """

    size: int
    what: str

    def less_than(self, mem: int) -> str:
        """Return the message that this limit is below `mem`."""
        return (
            f"--mem is {format_size(mem)}, but {self.what} limits this process to "
            f"{format_size(self.size)}"
        )


class Plan(Protocol):
    """A memory plan of a training, a stream or a split."""

    @property
    def total(self) -> int:
        """Total bytes."""


AnyPlan = TypeVar("AnyPlan", bound=Plan)


def system_limit(root: Path = Path("/")) -> Limit | None:
    """Return the smallest memory limit of this process; None if there is no known limit.

    Parameters
    ----------
    root : Path
        Root of the file system with /proc and /sys.
    """
    limits = [*_cgroup_limits(root), *_process_limits()]
    with contextlib.suppress(ValueError, OSError):
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        limits.append(Limit(size, "this machine"))
    return min((limit for limit in limits if limit.size > 0), key=lambda x: x.size, default=None)


def _process_limits() -> Iterator[Limit]:
    """Yield the limits set with `ulimit`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if soft != resource.RLIM_INFINITY:
        yield Limit(soft, "ulimit -d")
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        yield Limit(max(1, soft - _unused_addresses()), "ulimit -v")


def _unused_addresses() -> int:
    """Return the bytes of address space that are mapped but not resident."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            size, resident = file.read().split()[:2]
    except OSError:
        return 0
    return (int(size) - int(resident)) * os.sysconf("SC_PAGE_SIZE")


def _cgroup_limits(root: Path) -> Iterator[Limit]:
    """Yield the memory limits of the control groups of this process and of their parents."""
    try:
        lines = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
    except (OSError, UnicodeError):
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        mount = root / _CGROUPS / ("memory" if controllers else "")
        group = str(mount / path.strip("/"))
        # In a container the path may be that of the host: then the root group is ours.
        while len(group) >= len(str(mount)):
            with contextlib.suppress(OSError, ValueError), open(f"{group}/{name}", "rb") as file:
                yield Limit(int(file.read()), "the memory cgroup")
            group = os.path.dirname(group)


def within_limit(
    plan: Callable[[int], AnyPlan], mem: int, limit: Limit | None, note: Callable[[str], None]
) -> AnyPlan:
    """Make a plan for `mem`, or for the limit of the system if the plan would exceed it.

    Parameters
    ----------
    plan : callable
        Makes the plan for a number of bytes.
    mem : int
        Requested bytes.
    limit : Limit or None
        See `system_limit`.
    note : callable
        Receives a message if the limit applies.

    Returns
    -------
    AnyPlan

    Raises
    ------
    MemoryPlanError
        `mem` or the limit is too small.
    """
    made = plan(mem)
    if limit is None or made.total <= limit.size:
        return made
    try:
        smaller = plan(limit.size)
    except MemoryPlanError as error:
        least = -(-error.least_bytes // 1_000_000)
        raise MemoryPlanError(
            f"{limit.less_than(mem)}, and at least {least} MB are needed; raise that limit or use "
            "a machine with more memory",
            error.least_bytes,
        ) from None
    note(f"{limit.less_than(mem)}; planning for that limit")
    return smaller


def smaller(plan: Callable[[int], AnyPlan], before: int, what: str) -> AnyPlan:
    """Make a smaller plan, after memory ran out.

    Parameters
    ----------
    plan : callable
        Makes the plan for a number of bytes.
    before : int
        Bytes of the previous plan.
    what : str
        The activity, for the message: ``training on d.sbm``.

    Returns
    -------
    AnyPlan

    Raises
    ------
    MemoryPlanError
        There is no smaller plan.
    """
    least = 1
    try:
        plan(least)
    except MemoryPlanError as error:
        least = error.least_bytes
    if before - least < _CLOSE:
        raise MemoryPlanError(
            f"memory ran out while {what}, with --mem {format_size(before)}, and no smaller plan "
            "exists; close other programs or raise the memory limit",
            least,
        )
    return plan(least + int(_LESS * (before - least)))
