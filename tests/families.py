"""Every kind of problem, with small data for it and its objective by definition."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from helpers import full_weights, write_rows
from scipy.special import xlogy

import sbm

Array = npt.NDArray[Any]

N_FEATURES = 6
LABELS = [7.0, -3.0, 2.0]  # not in order: codes and columns differ


@dataclass(frozen=True)
class Case:
    """A loss and a number of labels: 0 for targets, 1 if labels do not matter."""

    loss: str
    labels: int
    settings: dict[str, Any] = field(default_factory=dict)
    suffix: str = ""

    def __str__(self) -> str:
        return f"{self.loss}-{self.labels}{self.suffix}"

    @property
    def options(self) -> dict[str, Any]:
        """Settings that make it this problem."""
        return {"loss": self.loss, **self.settings}

    def at(self, C: float) -> dict[str, Any]:
        """Return the same case at another cost, if the loss has one."""
        return self.options if self.loss == "one_class" else {**self.options, "C": C}

    def rows(self, seed: int = 0, n: int = 120, noise: float = 0.5) -> tuple[Array, Array]:
        """Return random sparse rows with labels or targets."""
        random = np.random.default_rng(seed)
        X = random.normal(size=(n, N_FEATURES)).astype(np.float32).astype(float)
        X[random.random(X.shape) < 0.3] = 0
        if self.loss == "one_class":
            X[:, 0] = 2 + np.abs(random.normal(size=n))
            return X.astype(np.float32).astype(float), np.ones(n)
        scores = X @ random.normal(size=(N_FEATURES, max(1, self.labels)))
        scores += noise * random.normal(size=scores.shape)
        if self.labels == 0:
            return X, np.round(scores[:, 0], 3)
        return X, np.array(LABELS[: self.labels])[scores.argmax(axis=1)]

    def primal(self, X: Array, y: Array, model: sbm.Model, weight: Array | None = None) -> float:
        """The objective of a model, from its definition."""
        W, chosen = full_weights(model, X.shape[1]), model.info["settings"]
        z, b = X @ W, model.bias_weights
        v = np.ones(len(y)) if weight is None else weight
        if self.loss == "one_class":
            rho = -b[0]
            missing = np.maximum(0, rho - z[:, 0])
            return float(0.5 * (W**2).sum() - chosen["nu"] * v.sum() * rho + v @ missing)
        z = z + model.bias * b
        each = row_losses(self.loss, z, y, model.labels, chosen["epsilon"])
        size = (W**2).sum() + (0 if chosen["intercept"] else (b**2).sum())
        return float(0.5 * size + chosen["C"] * v @ each)


def row_losses(loss: str, z: Array, y: Array, columns: list[float], epsilon: float = 0.1) -> Array:
    """Loss of each row from its decision values, shape (n, n_outputs)."""
    if loss == "crammer_singer" or loss == "weston_watkins":
        own = y[:, None] == np.asarray(columns)
        slack = np.where(own, 0, np.maximum(0, 1 - z[own][:, None] + z))
        return slack.max(axis=1) if loss == "crammer_singer" else slack.sum(axis=1)
    if not columns:
        e = np.abs(y - z[:, 0])
        if loss == "squared_error":
            return e**2
        h = np.maximum(0, e - epsilon)
        return h if loss == "epsilon_insensitive" else h**2
    positive = columns[1:] if z.shape[1] == 1 else columns
    m = np.where(y[:, None] == np.asarray(positive), z, -z)
    return OF_MARGIN[loss](m).sum(axis=1)


# Losses of margins, C left out, by definition. A new loss has its line here and its cases below.
OF_MARGIN: dict[str, Callable[[Array], Array]] = {
    "hinge": lambda m: np.maximum(0, 1 - m),
    "squared_hinge": lambda m: np.maximum(0, 1 - m) ** 2,
    "log_loss": lambda m: np.logaddexp(0, -m),
    "squared_error": lambda m: (1 - m) ** 2,
}
# What a row adds to the dual, d(α) = C f(α / C), of those whose α is from 0 to C.
OF_ALPHA: dict[str, Callable[[Array], Array]] = {
    "log_loss": lambda p: -xlogy(p, p) - xlogy(1 - p, 1 - p),
}


CASES = [
    Case("hinge", 2), Case("hinge", 3),
    Case("squared_hinge", 2), Case("squared_hinge", 3),
    Case("log_loss", 2), Case("log_loss", 3),
    Case("crammer_singer", 2), Case("crammer_singer", 3),
    Case("weston_watkins", 3),
    Case("epsilon_insensitive", 0), Case("squared_epsilon_insensitive", 0),
    Case("squared_error", 0),
    Case("squared_error", 2, {"task": "classification"}),
    Case("squared_error", 3, {"task": "classification"}),
    Case("one_class", 1, {"nu": 0.2}),
]  # fmt: skip


def make_store(folder: Path, X: Array, y: Array, name: str = "d", **options: Any) -> Path:
    """Write rows as text and split it."""
    sbm.split([write_rows(folder / f"{name}.svm", X, y)], folder / f"{name}.sbm", **options)
    return folder / f"{name}.sbm"


def assert_same_optimum(
    first: tuple[sbm.Model, dict[str, Any]], second: tuple[sbm.Model, dict[str, Any]]
) -> None:
    """Two certified models of one problem: |W - W*| <= sqrt(2 gap), and no dual above a primal.

    The offset of one class may lie anywhere between two rows, so it is not compared.
    """
    (a, theirs), (b, ours) = first, second
    n = int(max([*a.ids, *b.ids]))
    distance = np.sqrt(2 * theirs["gap"]) + np.sqrt(2 * ours["gap"]) + 1e-9
    assert a.labels == b.labels
    assert np.linalg.norm(full_weights(a, n) - full_weights(b, n)) <= distance
    if a.info["loss"] != "one_class":
        assert np.linalg.norm(a.bias_weights - b.bias_weights) <= distance
    room = 1e-9 * abs(ours["primal"]) + 1e-12
    assert theirs["dual"] <= ours["primal"] + room
    assert ours["dual"] <= theirs["primal"] + room
