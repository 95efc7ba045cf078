"""Call kernels: arrays and numbers become arguments of C functions.

The function in a library takes, for each argument, an address and a shape, or a number; None is
left out. The last argument is the address of the results, the return value their number.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sbm.compiled import cache, processor
from sbm.compiled.processor import Kinds
from sbm.errors import SbmError

__all__ = ["Kernel", "KernelError", "kind_of", "load"]

# The most numbers that a kernel returns.
MOST_RESULTS = 8
_SCALARS = {
    "bool": ctypes.c_int64,
    "int64": ctypes.c_int64,
    "uint64": ctypes.c_uint64,
    "float64": ctypes.c_double,
}
_Results = ctypes.c_int64 * MOST_RESULTS
_lock = threading.Lock()


class KernelError(SbmError):
    """A kernel that cannot be compiled or loaded: a bug or a broken installation."""


@functools.cache
def _array_kind(dtype: np.dtype[Any], ndim: int) -> str:
    return f"{dtype.name}[{ndim}]"  # cached, as numpy builds the name each time


def kind_of(value: Any) -> str:
    """Return the name of an argument's type: ``int32[1]`` for an array, ``float64``, ``none``."""
    if isinstance(value, np.ndarray):
        return _array_kind(value.dtype, value.ndim)
    if value is None:
        return "none"
    if isinstance(value, bool | np.bool_):
        return "bool"
    if isinstance(value, np.uint64):
        return "uint64"
    if isinstance(value, int | np.integer):
        return "int64"
    if isinstance(value, float | np.floating):
        return "float64"
    raise TypeError(f"kernel arguments are arrays, numbers or None, not {type(value).__name__}")


def _address(array: np.ndarray[Any, Any]) -> int:
    """Return the address of an array; numpy's own ways take three to seven times as long."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array))
    except (TypeError, ValueError):  # read-only or empty
        return array.ctypes.data


def _flatten(values: Sequence[Any]) -> list[Any]:
    """Return C arguments: an array becomes its address and shape, None is omitted."""
    flat: list[Any] = []
    for value in values:
        if isinstance(value, np.ndarray):
            if not value.flags.c_contiguous:
                raise TypeError("kernel arguments must be contiguous arrays")
            flat.append(_address(value))
            flat += value.shape
        elif value is not None:
            flat.append(float(value) if isinstance(value, float | np.floating) else int(value))
    return flat


def _signature(kinds: Kinds) -> list[Any]:
    """Return the C types of `_flatten`'s result, followed by the address of the results."""
    flat: list[Any] = []
    for kind in kinds:
        if kind.endswith("]"):
            flat += [ctypes.c_void_p, *[ctypes.c_int64] * int(kind[-2])]
        elif kind != "none":
            flat.append(_SCALARS[kind])
    return [*flat, ctypes.c_void_p]


class Kernel:
    """A compiled function, loaded or compiled for each combination of argument types.

    Parameters
    ----------
    module : str
        Module in a ``kernels`` folder, such as ``sbm.store.kernels.rows``.
    name : str
        Name of a numba function in that module.
    """

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name
        self._loaded: dict[Kinds, Callable[..., int]] = {}

    def __call__(self, *values: Any) -> Any:
        """Call the kernel; return None, an int or a tuple of ints.

        Raises
        ------
        KernelError
            If the kernel cannot be compiled or loaded.
        TypeError
            If an argument is not a contiguous array, a number or None.
        """
        kinds = tuple(map(kind_of, values))
        function = self._loaded.get(kinds)
        if function is None:
            function = self._load(kinds)
        results = _Results()
        n_results = function(*_flatten(values), results)
        if n_results == 0:
            return None
        return results[0] if n_results == 1 else tuple(results[:n_results])

    def _load(self, kinds: Kinds) -> Callable[..., int]:
        with _lock:  # several threads may make the first call
            if kinds not in self._loaded:
                self._loaded[kinds] = _function(self.module, self.name, kinds)
            return self._loaded[kinds]


class _Kernels:
    """Stands for a module of kernels, without importing it."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Kernel:
        kernel = Kernel(self._module, name)
        setattr(self, name, kernel)
        return kernel


@functools.cache
def load(module: str) -> Any:
    """Return an object with the kernels of a module as attributes."""
    return _Kernels(module)


def _function(module: str, name: str, kinds: Kinds) -> Callable[..., int]:
    """Return the C function of a kernel, compiled if there is no machine code of it."""
    symbol = processor.symbol_name(module, name, kinds)
    prototype = ctypes.CFUNCTYPE(ctypes.c_int64, *_signature(kinds))
    native = _native()
    if native is not None and hasattr(native, symbol):
        return prototype((symbol, native))
    stored = cache.read(cache.file_name(symbol))
    if stored is None:
        child = importlib.import_module("sbm.compiled.child")
        stored = child.make(module, name, kinds)
    path, code = stored
    if not processor.has_linker():
        compiler = importlib.import_module("sbm.compiled.compiler")
        return prototype(compiler.linked_by_llvm(symbol, code))
    return prototype((symbol, _open(path, code)))


def is_there(module: str, name: str, kinds: Kinds) -> bool:
    """Whether there is a file of machine code of a kernel, sound or not."""
    symbol = processor.symbol_name(module, name, kinds)
    native = _native()
    if native is not None and hasattr(native, symbol):
        return True
    file = cache.file_name(symbol)
    return any(os.path.exists(place / file) for place in cache.places())


@functools.cache
def _native() -> ctypes.CDLL | None:
    """Return the library of a wheel that is made for this processor, if there is one."""
    for name in processor.LEVELS:
        if processor.level() in (None, name) and processor.runs(name):
            path = cache.native(name)
            if path is not None:
                with contextlib.suppress(OSError):  # then kernels are compiled
                    return ctypes.CDLL(str(path))
    return None


_keep: list[int] = []  # open files in memory; the loader tells libraries apart by their names


def _open(path: Path | None, library: bytes) -> ctypes.CDLL:
    """Load a library from its file, or from memory if the file is not there or refused.

    Raises
    ------
    KernelError
        If the system refuses both.
    """
    refused: OSError | None = None
    if path is not None:
        try:
            return ctypes.CDLL(str(path))
        except OSError as error:  # such as of a file system without programs
            refused = error
    try:
        _keep.append(os.memfd_create("sbm-kernel"))
        with open(_keep[-1], "wb", closefd=False) as file:
            file.write(library)
        return ctypes.CDLL(f"/proc/self/fd/{_keep[-1]}")
    except OSError as error:
        raise KernelError(
            f"this system does not let sbm run its compiled code: {refused or error}; set "
            f"{cache.FOLDER} to a folder of a file system that allows programs"
        ) from error
