"""Compile kernels ahead: those of all commands, or of some losses."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sbm.compiled import cache, child
from sbm.compiled.calls import is_there
from sbm.compiled.declared import Specialization, all_kernels, specializations
from sbm.engine.kernels import PREDICT, PREDICT_SPARSE, READ_TEXT, types_of_dtype
from sbm.engine.machine import usable_threads
from sbm.engine.progress import Progress
from sbm.errors import SbmError, SettingsError
from sbm.losses import LOSSES

__all__ = ["precompile"]


def precompile(
    losses: Iterable[str] = (),
    dtype: str = "float32",
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Compile the kernels of all commands ahead of their first use.

    Otherwise each command compiles what it needs the first time it runs.

    Parameters
    ----------
    losses : iterable of str, optional
        Losses to train with. Default: all.
    dtype : {"float32", "float64"}, optional
        Type of the values of stores. Values that are all 1 are included.
    threads : int, optional
        Number of processes that compile at the same time. Default: one per core.
    progress : Progress, optional
        Receives the kernels compiled.

    Returns
    -------
    dict
        ``folder`` of the machine code, the number of ``kernels`` compiled, and ``seconds``.

    Raises
    ------
    SettingsError
        An unknown loss or dtype.
    SbmError
        A kernel cannot be compiled.
    """
    begin = time.perf_counter()
    chosen = list(losses) or list(LOSSES)
    if unknown := [name for name in chosen if name not in LOSSES]:
        raise SettingsError(f"unknown loss {unknown[0]!r}; expected one of {', '.join(LOSSES)}")
    if dtype not in ("float32", "float64"):
        raise SettingsError(f"dtype is {dtype!r}; it must be float32 or float64")
    kernels = [each for each in _kernels(chosen, dtype) if not is_there(*each)]
    progress = Progress.of(progress)
    progress.start("compiling", len(kernels), "kernels")
    if kernels:
        problem = child.compile_all(kernels, usable_threads(threads), progress.advance)
        if problem:
            raise SbmError(f"cannot compile a kernel: {problem}")
    progress.finish()
    return {
        "folder": str(cache.folder()),
        "kernels": len(kernels),
        "seconds": time.perf_counter() - begin,
    }


def write_library(level: str, folder: Path, losses: Iterable[str] = ()) -> None:
    """Write the library of a wheel: kernels of some or all losses, for rows of any dtype.

    Parameters
    ----------
    level : str
        Level of processor, which `PROCESSOR` must name in the environment.
    folder : Path
    losses : iterable of str, optional
        Default: all.
    """
    chosen = list(losses) or list(LOSSES)
    kernels = [each for dtype in ("float32", "float64") for each in _kernels(chosen, dtype)]
    library = child.make_library(list(dict.fromkeys(kernels)), usable_threads(None))
    name = f"{level}{cache.SUFFIX}"
    (folder / name).write_bytes(cache.pack(name, library))


def _kernels(losses: Iterable[str], dtype: str) -> list[Specialization]:
    """Return the kernels of some losses, of all that reads rows, and of prediction."""
    modules = {loss.kernel for loss in LOSSES.values() if loss.kernel}
    used = {LOSSES[name].kernel for name in losses}
    names = [
        name
        for name in all_kernels()
        if name.split(".")[1] not in modules or name.split(".")[1] in used
    ]
    rows = specializations(names, **types_of_dtype(dtype))
    text = specializations(READ_TEXT + PREDICT + PREDICT_SPARSE, **types_of_dtype("float64"))
    return list(dict.fromkeys([*rows, *text]))
