"""Exact linear models for data larger than memory.

Each command of the command line is also a function::

    sbm.split(["big.svm"], blocks=12)
    model, report = sbm.train(settings=sbm.Settings(C=0.1, mem="2GB"))
    sbm.predict(model, "test.svm")

Errors are subclasses of `SbmError`. Their message states what is wrong, where, and what to do.
"""

from __future__ import annotations

import sys

if sys.platform == "win32":
    raise ImportError("sbm runs on Linux and macOS; on Windows install it in WSL 2")

TYPE_CHECKING = False  # like typing.TYPE_CHECKING, without the slow import; checkers know the name
if TYPE_CHECKING:
    from typing import Any

    from sbm.dataset.options import ReadOptions
    from sbm.engine.progress import Progress
    from sbm.errors import DataError, MemoryPlanError, SbmError, SettingsError, StoreError
    from sbm.models.model import Model
    from sbm.programs.cat import cat
    from sbm.programs.columns import columns
    from sbm.programs.expire import expire
    from sbm.programs.export import export
    from sbm.programs.info import check, info
    from sbm.programs.inspect import inspect
    from sbm.programs.plan import plan
    from sbm.programs.precompile import precompile
    from sbm.programs.predict import predict
    from sbm.programs.report import report
    from sbm.programs.split import split
    from sbm.programs.stream import stream
    from sbm.programs.train import train
    from sbm.programs.tune import tune
    from sbm.settings import Settings

__version__ = "1.0.0"
__all__ = [
    "DataError",
    "MemoryPlanError",
    "Model",
    "Progress",
    "ReadOptions",
    "SbmError",
    "Settings",
    "SettingsError",
    "StoreError",
    "cat",
    "check",
    "columns",
    "expire",
    "export",
    "info",
    "inspect",
    "plan",
    "precompile",
    "predict",
    "report",
    "split",
    "stream",
    "train",
    "tune",
]

_HOMES = {
    "DataError": "sbm.errors",
    "MemoryPlanError": "sbm.errors",
    "Model": "sbm.dataset.frames",
    "Progress": "sbm.engine.progress",
    "ReadOptions": "sbm.dataset.options",
    "SbmError": "sbm.errors",
    "Settings": "sbm.settings",
    "SettingsError": "sbm.errors",
    "StoreError": "sbm.errors",
    "cat": "sbm.programs.cat",
    "check": "sbm.programs.info",
    "expire": "sbm.programs.expire",
    "export": "sbm.programs.export",
    "info": "sbm.programs.info",
    "columns": "sbm.programs.columns",
    "inspect": "sbm.programs.inspect",
    "plan": "sbm.programs.plan",
    "precompile": "sbm.programs.precompile",
    "predict": "sbm.programs.predict",
    "report": "sbm.programs.report",
    "split": "sbm.programs.split",
    "stream": "sbm.programs.stream",
    "train": "sbm.programs.train",
    "tune": "sbm.programs.tune",
}


def __getattr__(name: str) -> Any:
    """Import a name on first use, so that ``sbm --help`` does not wait for numpy and numba."""
    if name in _HOMES:
        import importlib

        found = getattr(importlib.import_module(_HOMES[name]), name)
        return _in_python(found) if name.islower() else found
    raise AttributeError(f"module 'sbm' has no attribute {name!r}")


def _in_python(function: Any) -> Any:
    """Return a function whose errors speak of keyword arguments, not of options."""
    from sbm.keywords import with_keywords

    found = with_keywords({"launch": "processes"})(function)
    found.__module__ = __name__  # where it is pickled
    return globals().setdefault(function.__name__, found)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
