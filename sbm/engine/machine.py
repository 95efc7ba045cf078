"""What the system lets this process have, memory and cores, and plans that keep to it.

Everything here that only Linux has, has a fallback for other systems.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from sbm.errors import MemoryPlanError
from sbm.units import format_size

__all__ = [
    "Limit", "free_bytes", "peak_bytes", "resident_bytes", "return_freed_memory", "smaller",
    "system_limit", "usable_threads", "within_limit",
]  # fmt: skip


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
    if asked:
        return asked
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_bytes() -> int:
    """Memory that nothing takes, which the system can keep files in; 0 if it does not say."""
    with contextlib.suppress(ValueError, OSError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return 0


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


_CGROUPS = Path("sys/fs/cgroup")
# A second try has this share of what the first one had above the least; closer, there is none.
_LESS, _CLOSE = 0.5, 2_000_000


@dataclass(frozen=True)
class Limit:
    """A bound that is not ours.

    Attributes
    ----------
    size : int
        Bytes.
    what : str
        What sets it, for a sentence.
    """

    size: int
    what: str

    def less_than(self, mem: int) -> str:
        """Say that this is less than what was asked for."""
        return (
            f"--mem is {format_size(mem)}, but {self.what} limits this process to "
            f"{format_size(self.size)}"
        )


class Plan(Protocol):
    """A memory plan, of a training, a stream or a split."""

    @property
    def total(self) -> int:
        """Bytes in all."""


AnyPlan = TypeVar("AnyPlan", bound=Plan)


def system_limit(root: Path = Path("/")) -> Limit | None:
    """Return the smallest limit of this process; None where the system tells none.

    Parameters
    ----------
    root : Path
        Where the system's files are.
    """
    limits = [*_cgroup_limits(root), *_process_limits()]
    with contextlib.suppress(ValueError, OSError):
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        limits.append(Limit(size, "this machine"))
    return min((limit for limit in limits if limit.size > 0), key=lambda x: x.size, default=None)


def _process_limits() -> Iterator[Limit]:
    """Yield the limits that a shell sets by `ulimit`."""
    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if soft != resource.RLIM_INFINITY:
        yield Limit(soft, "ulimit -d")
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        yield Limit(max(1, soft - _unused_addresses()), "ulimit -v")


def _unused_addresses() -> int:
    """Bytes of addresses that are taken and hold nothing, as those of code that is not used."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            size, resident = file.read().split()[:2]
    except OSError:
        return 0
    return (int(size) - int(resident)) * os.sysconf("SC_PAGE_SIZE")


def _cgroup_limits(root: Path) -> Iterator[Limit]:
    """Yield the limits of the control groups that this process is in, and of those around them."""
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
        folder = mount / path.strip("/")
        # In a container the path may be that of the host: then the outermost group is ours.
        for group in [folder, *folder.parents]:
            with contextlib.suppress(OSError, ValueError):
                yield Limit(int((group / name).read_text("ascii")), "the memory cgroup")
            if group == mount:
                break


def within_limit(
    plan: Callable[[int], AnyPlan], mem: int, limit: Limit | None, note: Callable[[str], None]
) -> AnyPlan:
    """Plan for `mem`; where that takes more than the system gives, plan for what it gives.

    Parameters
    ----------
    plan : callable
        Makes the plan for a bound.
    mem : int
        Bytes that may be used, as asked for.
    limit : Limit or None
        See `system_limit`.
    note : callable
        Is told where the plan is another one than that for `mem`.

    Returns
    -------
    AnyPlan

    Raises
    ------
    MemoryPlanError
        `mem` is too little, or what the system gives is.
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
    """Plan for less, for another try after memory ran out.

    Parameters
    ----------
    plan : callable
        Makes the plan for a bound.
    before : int
        Bytes that were planned for.
    what : str
        What is done, for the sentence.

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
