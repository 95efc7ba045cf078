"""A program that uses sbm, for mypy --strict: every public function, as its docs show it."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

import sbm


class Gaps(sbm.Progress):
    """Collect the gap after each pass."""

    def __init__(self) -> None:
        self.gaps: list[float] = []

    def row(self, record: dict[str, Any]) -> None:
        """Take a pass."""
        self.gaps.append(float(record["estimated_relative_gap"]))


def train(text: Path, C: float) -> sbm.Model:
    """Train from text and from a store."""
    settings = sbm.Settings(C=C, mem="2GB", loss="log_loss")
    seen = Gaps()
    model, report = sbm.train(text, settings=settings, progress=seen)
    gap: float = report["relative_gap"]
    assert gap <= min([*seen.gaps, 1.0])
    split: dict[str, Any] = sbm.split([text], "big.sbm", blocks=12, force=True)
    model, report = sbm.train("big.sbm", "big.model", {"C": C}, is_stopped=lambda: False)
    best, _ = sbm.tune("big.sbm", "best.model", Cs=[0.1, 1.0], folds=3)
    day, _ = sbm.stream(text, "day.model", settings)
    print(split["rows"], best.certificate, day.converged, sbm.plan("big.sbm")["passes"])
    return model


def use(model: sbm.Model, X: "scipy.sparse.csr_array[np.float64]") -> npt.NDArray[np.float64]:
    """Predict and export."""
    try:
        facts = sbm.predict(model, "test.svm", probability=True)
        sbm.predict("big.model", "test.svm", "out.txt")
    except sbm.DataError as error:
        raise SystemExit(str(error)) from error
    except (sbm.SettingsError, sbm.StoreError, sbm.MemoryPlanError):
        raise
    sbm.export(model, "big.npz", format="npz", prune=0.1)
    sbm.report(["big.model"], "page.html")
    sbm.cat("big.sbm", "rows.svm")
    sbm.expire("big.sbm", before="30d", if_any=True)
    print(facts, sbm.info("big.sbm"), sbm.check("big.sbm"), sbm.inspect(model, top=3))
    sbm.precompile(["hinge"])
    names: list[tuple[str | int, float]] = model.top(5)
    print(names, model.predict(X), model.predict_proba(X))
    return model.decision_function(X)
