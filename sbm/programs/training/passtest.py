"""Predict test data after passes; this does not affect the training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.compiled import load
from sbm.engine.clock import clock
from sbm.engine.memory import Budget, MemoryPlan
from sbm.engine.problems import by_label, model_labels
from sbm.engine.progress import Progress
from sbm.errors import SettingsError
from sbm.inputs.idtable import IdTable
from sbm.inputs.text import PIECE
from sbm.programs.answers import SCORES, check_input, read_batches, sources_of
from sbm.solver.problem import AnyProblem, OneClass
from sbm.store.blocks import BlockStore, names_of

__all__ = ["PassTest", "check_reserve", "needed_bytes"]

Floats = npt.NDArray[np.float64]

_PIECES = 4  # in memory at the same time: one is read, two are parsed, one is predicted
_SPREAD = 6  # parsed bytes per byte of text, at most: "1:1 " takes 8 + 8 + 4
_KEY = 8 + 8 + 4 * 12  # bytes per feature id in the table, including temporary copies


@dataclass(frozen=True)
class PassTest:
    """Test data, and the passes after which to predict it.

    Parameters
    ----------
    data : str or Path
        LIBSVM text, or a store.
    every : int
        Predict after every `every`-th pass, and after the last one.

    Raises
    ------
    SettingsError
        `every` is less than 1, or `data` is standard input.
    DataError
        The file does not exist.
    """

    data: str | Path
    every: int = 1

    def __post_init__(self) -> None:
        if self.every < 1:
            raise SettingsError(f"test_every is {self.every}; it must be at least 1")
        if str(self.data) == "-":
            raise SettingsError(
                "the test data is standard input, which can be read only once; use a file "
                "or leave out --test-every"
            )
        check_input(self.data)

    def is_due(self, passes: int) -> bool:
        """Return whether to predict after this number of passes."""
        return passes % self.every == 0

    def refuse_in_many(self, processes: int) -> None:
        """Check that the training has a single process.

        Raises
        ------
        SettingsError
            It has several.
        """
        if processes > 1:
            raise SettingsError(
                f"--test-every needs a single process, but there are {processes}; "
                "leave it out and run sbm predict after training"
            )

    def measure(self, *arguments: Any) -> dict[str, Any]:
        """Return the result of `judge`, and its ``seconds``."""
        begin = clock()
        return {**self.judge(*arguments), "seconds": clock() - begin}

    def judge(
        self,
        store: BlockStore,
        problems: Sequence[AnyProblem],
        weights: Sequence[Floats],
        progress: Progress,
        after_batch: Callable[[], None] = lambda: None,
    ) -> dict[str, float | int | None]:
        """Predict all rows and return the figures.

        Parameters
        ----------
        store : BlockStore
            The training data; it defines the feature ids of the weights.
        problems : sequence of Problem, MultiProblem or OneClass
        weights : sequence of ndarray, shape (n_weights, n_outputs of the problem), float64
            One array per problem.
        progress : Progress
        after_batch : callable
            Called after each batch; may raise.

        Returns
        -------
        dict
            ``rows``, and ``accuracy`` or (for targets) ``mse``; only ``rows`` if there are none.
        """
        labels = np.array(sorted(model_labels(problems[0], store)), np.float64)
        table = IdTable(store.read_feature_ids())
        n_rows, right, squares = 0, 0, 0.0
        outputs = sum(W.shape[1] for W in weights)
        weights = [store.unscaled(W) for W in weights]
        words = dict(zip(store.label_names, store.labels or [], strict=False))
        sources = sources_of(self.data, names_of(store.manifest), words=words)
        batches = read_batches(self.data, sources, table, outputs, 1, progress)
        for y, begins, ends, indices, values in batches:
            scores = [
                _decide(problem, W, begins, ends, indices, values)
                for problem, W in zip(problems, weights, strict=True)
            ]
            found = by_label(scores, model_labels(problems[0], store))
            n_rows += len(y)
            if not len(labels):
                squares += float(((y - found[:, 0]) ** 2).sum())
            else:
                code = found[:, 0] > 0 if found.shape[1] == 1 else found.argmax(axis=1)
                right += int(np.count_nonzero(labels[code.astype(np.intp)] == y))
            after_batch()
        if not n_rows:
            return {"rows": 0}
        return {"rows": n_rows} | (
            {"accuracy": right / n_rows} if len(labels) else {"mse": squares / n_rows}
        )


def _decide(
    problem: AnyProblem,
    W: Floats,
    begins: npt.NDArray[np.int64],
    ends: npt.NDArray[np.int64],
    indices: npt.NDArray[np.int32],
    values: npt.NDArray[Any] | None,
) -> Floats:
    """Return the decision values of the model, shape (n_rows, n_outputs)."""
    scores = np.empty((len(begins), W.shape[1]))
    share = np.zeros(W.shape[1])
    if isinstance(problem, OneClass):
        share -= problem.rho
    elif problem.bias:
        share += problem.bias * W[-1]
    load("sbm.solver.kernels.decision").decide(begins, ends, indices, values, W, share, scores)
    return scores


def needed_bytes(store: BlockStore, outputs: int) -> int:
    """Return the bytes needed to predict text during a training, for rows of usual length.

    `outputs` is the number of columns of weights.
    """
    needed = _KEY * store.n_features + _PIECES * _SPREAD * PIECE + 3 * 8 * SCORES
    if store.scaling != "none":  # a copy of the weights, for rows that are not scaled
        needed += 8 * store.n_features * outputs
    return needed


def check_reserve(
    store: BlockStore, needed: int, mem: int, plan: Callable[[int], MemoryPlan]
) -> None:
    """Check that a training leaves the bytes to predict test data.

    The memory plan does not include this: otherwise blocks would be cut differently, and the test
    would change the model.

    Parameters
    ----------
    store : BlockStore
    needed : int
        From `needed_bytes`.
    mem : int
        Bytes of the whole process.
    plan : callable
        Makes the training's plan for a number of bytes.

    Raises
    ------
    MemoryPlanError
        There is not enough; the message has the smallest bound that works.
    """
    least = mem
    while (total := plan(least).total + needed) > least:  # a larger bound may need more itself
        least = total
    items = {"training": least - needed, "predicting": needed}
    task = f"to train on {store.name} and predict with --test-every at the same time"
    Budget(mem, task, items).check(", or leave out --test-every")
