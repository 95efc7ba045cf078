"""Exact linear models on LIBSVM files bigger than memory.

The functions and classes here do all that the commands do::

    sbm.split(["big.svm"], blocks=12)
    model, report = sbm.train(settings=sbm.Settings(C=0.1, mem="2GB"))
    sbm.predict(model, "test.svm")

What can go wrong is an `SbmError`: its message says what was found, where, and what to do.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as that of typing, which takes its time; checkers know the name
if TYPE_CHECKING:
    from typing import Any

    from sbm.errors import DataError, MemoryPlanError, SbmError, SettingsError, StoreError
    from sbm.jobs.expire import expire
    from sbm.jobs.export import export
    from sbm.jobs.info import check, info
    from sbm.jobs.plan import plan
    from sbm.jobs.precompile import precompile
    from sbm.jobs.predict import predict
    from sbm.jobs.report import report
    from sbm.jobs.split import split
    from sbm.jobs.stream import stream
    from sbm.jobs.train import train
    from sbm.jobs.tune import tune
    from sbm.settings import Settings
    from sbm.store.model import Model

__version__ = "0.1.0"
__all__ = [
    "DataError",
    "MemoryPlanError",
    "Model",
    "SbmError",
    "Settings",
    "SettingsError",
    "StoreError",
    "check",
    "expire",
    "export",
    "info",
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
    "Model": "sbm.store.model",
    "SbmError": "sbm.errors",
    "Settings": "sbm.settings",
    "SettingsError": "sbm.errors",
    "StoreError": "sbm.errors",
    "check": "sbm.jobs.info",
    "expire": "sbm.jobs.expire",
    "export": "sbm.jobs.export",
    "info": "sbm.jobs.info",
    "plan": "sbm.jobs.plan",
    "precompile": "sbm.jobs.precompile",
    "predict": "sbm.jobs.predict",
    "report": "sbm.jobs.report",
    "split": "sbm.jobs.split",
    "stream": "sbm.jobs.stream",
    "train": "sbm.jobs.train",
    "tune": "sbm.jobs.tune",
}


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``sbm --help`` does not wait for numpy and numba."""
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'sbm' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
