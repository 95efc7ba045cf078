"""Online learners against their papers' formulas in dense arithmetic."""

import numpy as np
import pytest

from sbm.rows import Rows
from sbm.solver.online import ONLINE, Online


def learn(name, X, labels, C, decay):
    """The formulas, one row after the other; u is s x."""
    w, precision, updates = np.zeros(9), np.ones(9), 0
    for t, (x, y) in enumerate(zip(X, labels, strict=True), 1):
        u = x if y == 1 else -x
        margin = w @ u
        moved = bool(u.any()) and (margin <= 0 if name == "perceptron" else margin < 1)
        updates += moved
        if name == "perceptron":
            w = w + moved * u
        elif name == "passive_aggressive":
            w = w + moved * min(C, (1 - margin) / (u @ u)) * u
        elif name == "arow" and moved:
            beta = 1 / ((u**2 / precision).sum() + 1 / (2 * C))
            w = w + (1 - margin) * beta * u / precision
            precision = precision + 2 * C * u**2
        elif name == "pegasos":
            w = (1 - 1 / t) * w + moved * u / (decay * t)
            w *= min(1, 1 / (np.sqrt(decay) * max(np.linalg.norm(w), 1e-300)))
    return w, updates


@pytest.mark.parametrize("name", ONLINE)
def test_learner_follows_its_formula(name):
    random = np.random.default_rng(1)
    X = random.normal(size=(60, 8)).astype(np.float32).astype(float)
    X[random.random(X.shape) < 0.4] = 0
    y = random.integers(0, 2, 60).astype(np.int32)
    lengths = np.count_nonzero(X, axis=1).astype(np.int32)
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    indices = np.nonzero(X)[1].astype(np.int32)
    rows = Rows(starts, lengths, indices, X[X != 0].astype(np.float32), y)
    for C, decay in [(0.03, 0.4871), (99.0, 1.039e-3)]:
        w, updates = learn(name, np.hstack([X, np.full((60, 1), 0.5)]), y, C, decay)
        online = Online(ONLINE[name], C=C, decay=decay, bias=0.5)
        arrays = [np.zeros((9, 1)) for _ in range(ONLINE[name].n_arrays)]
        assert online.learn(rows, arrays, 1) == (60, updates)
        np.testing.assert_allclose(arrays[0][:, 0], w, rtol=1e-9, atol=1e-11 * abs(w).max())
