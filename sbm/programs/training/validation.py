"""Validation: judge the weights after each pass on rows that are not learned from."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.compiled.calls import load
from sbm.dataset.batches import (
    SCORES,
    Batch,
    prepare_batches,
    read_batches,
    require_input,
    sources_of,
)
from sbm.dataset.options import ReadOptions
from sbm.dataset.sources import naming_of, table_notes
from sbm.engine.kernels import JUDGE, PREDICT, prepare, types_of_dtype
from sbm.engine.learners import JUDGED, GivenFolds, HeldOut, Judge
from sbm.engine.memory import MemoryPlan
from sbm.engine.problems import model_codes, model_labels
from sbm.engine.progress import Progress
from sbm.engine.snapshot import BEST, named, read_weights
from sbm.errors import DataError
from sbm.inputs.idtable import IdTable
from sbm.inputs.nametable import LabelWords
from sbm.inputs.text import PIECE
from sbm.models.metrics import BinaryMetrics
from sbm.programs.training.evaluation import (
    Evaluation,
    check_metric,
    choose_metric,
    require_two_classes,
)
from sbm.programs.training.task import Task
from sbm.rows import Arena, Rows
from sbm.settings import Settings, read_threshold
from sbm.solver.gap import Certificate
from sbm.solver.problem import AnyProblem, decide
from sbm.store.run import Run
from sbm.units import format_number

__all__ = ["Validation", "check_validation", "hold_out"]

Floats = npt.NDArray[np.float64]

NEAR = 0.1  # relative gap above which scores are still too random to end the training
PATIENCE = 3  # passes without a better score after which the training ends
_PIECES = 4  # in memory at the same time: one is read, two are parsed, one is predicted
_SPREAD = 6  # parsed bytes per byte of text, at most: "1:1 " takes 8 + 8 + 4
_FOLDS = 400  # bytes for the folds of a chunk, without those of its rows
_KEY = 8 + 8 + 4 * 12  # bytes per feature id in the table, including temporary copies


def check_validation(settings: Settings) -> None:
    """Check the options of validation before any row is read.

    Raises
    ------
    SettingsError
        An option does not fit the others.
    DataError
        The file does not exist.
    """
    if settings.validate is None:
        return
    check_metric(settings)
    if not isinstance(settings.validate, float):
        require_input(settings.validate)


def hold_out(rows: Rows, ids: npt.NDArray[np.int64], share: float) -> npt.NDArray[np.uint8]:
    """Return 0 for the rows to hold out and 1 for the others, shape (n_rows,).

    Parameters
    ----------
    rows : Rows
    ids : ndarray, shape (n_features,), int64
        Feature ids by index.
    share : float
    """
    folds, below = np.empty(len(rows), np.uint8), np.uint64(share * 2**64)
    load("sbm.solver.kernels.decision").hold_out(
        rows.starts, rows.lengths, rows.indices, rows.values, ids, below, folds
    )
    return folds


class Validation:
    """The validation data of a training, and the best weights so far.

    Parameters
    ----------
    task : Task
    progress : Progress
    reading : ReadOptions
        How the rows of the training are read.

    Attributes
    ----------
    n_bytes : int
        Memory in addition to that of the training.
    weights : list of ndarray
        The best ones, one array per problem.

    Raises
    ------
    SettingsError
        The metric or the threshold does not fit the labels.
    DataError
        The file is invalid or has no rows, or a label is not in the training data.
    """

    def __init__(self, task: Task, progress: Progress, reading: ReadOptions) -> None:
        settings, store, problems = task.settings, task.store, task.share.problems
        where = settings.validate
        self._store, self._progress, self._threshold = store, progress, settings.threshold
        self._path, self._reading = where if isinstance(where, str) else None, reading
        self.share = where if isinstance(where, float) else 0.0
        self._metric = choose_metric(settings.metric, problems, store)
        labels = model_labels(problems[0], store)
        self._is_classes, self._is_checked = bool(labels), False
        self._known = model_codes(problems[0], store)
        words = dict(zip(store.labels or [], store.label_names, strict=False))
        self._positive = words.get(labels[-1], format_number(labels[-1])) if labels else None
        if settings.threshold is not None:
            require_two_classes("threshold", labels)
        self._best: dict[str, Any] = {}
        self.weights: list[Floats] = []
        self._folds: dict[tuple[int, int], npt.NDArray[np.uint8]] = {}  # by block and chunk
        outputs = sum(problem.n_outputs for problem in problems)
        n_weights = store.n_features + 1
        if self._path is None:
            prepare("validating", JUDGE, types_of_dtype(store.manifest["dtype"]), progress)
            rows = math.ceil(self.share * store.n_rows)
            chunks = sum(map(len, store.chunks))
            self.n_bytes = 2 * store.n_rows + _FOLDS * chunks + 4 * 8 * JUDGED
            self.n_bytes += 8 * store.n_features
        else:
            rows = sum(map(len, self._read_file(outputs)))
            if not rows:
                raise DataError(f"{self._path} has no rows to validate with")
            self.n_bytes = _KEY * store.n_features + _PIECES * _SPREAD * PIECE + 3 * 8 * SCORES
            if store.scaling != "none":  # a copy of the weights, for rows that are not scaled
                self.n_bytes += 8 * n_weights * outputs
        self.n_bytes += 8 * n_weights * outputs + BinaryMetrics.bytes_for(rows, 1)

    def start(self, weights: Sequence[Floats]) -> None:
        """Forget all scores, and allocate the best weights, like those of the training."""
        self._best = {"since": 0, "score": None}
        # In one array, because the problems of Newton's method are other ones.
        self.weights = [np.zeros((len(weights[0]), sum(W.shape[1] for W in weights)))]

    def choose_rows(self) -> None:
        """Choose the rows to hold out, if they are not in a file; call it before scales are set."""
        if self._path is not None or self._folds:
            return
        store, done = self._store, 0
        ids, y_dtype = store.read_feature_ids(), "float64" if store.labels is None else "int32"
        self._progress.start("hold out", store.n_rows, "rows")
        for chunk in itertools.chain(*store.chunks):
            arena = Arena.of(chunk.nnz, store.value_type)
            rows = store.read([chunk], arena.room(chunk.rows, y_dtype), 0)
            folds = hold_out(rows, ids, self.share)
            self._folds[chunk.block, chunk.number] = folds
            self._progress.advance(done := done + chunk.rows)
        self._progress.finish()

    def held_out(self, plan: MemoryPlan, n: int) -> HeldOut | None:
        """Return which rows none of `n` learners may learn from; None if these are in a file."""
        if self._path is not None:
            return None
        folds = [
            np.concatenate([self._folds[chunk.block, chunk.number] for chunk in part.chunks])
            for part in plan.parts
        ]
        return HeldOut(GivenFolds(folds), [0] * n)

    # ------------------------------------------------------------------------------ judging

    def judge(
        self,
        passes: int,
        problems: Sequence[AnyProblem],
        weights: Sequence[Floats],
        gap: float,
        read_held_out: Callable[[Judge], None],
        unscaled: Callable[[Floats], Floats],
        after_batch: Callable[[], None],
    ) -> bool:
        """Judge weights; return whether they are the best so far.

        If scores are equal, the later pass is the better one.

        Parameters
        ----------
        passes : int
            Number of passes so far.
        problems : sequence of Problem or MultiProblem
        weights : sequence of ndarray, shape (n_weights, n_outputs of the problem), float64
            One array per problem.
        gap : float
            Relative, possibly estimated.
        read_held_out : callable
            Shows the rows that are held out, with these weights, to a judge.
        unscaled : callable
            Returns weights for rows that are not scaled, as those of a file are.
        after_batch : callable
            Called after each batch of a file; may raise.

        Raises
        ------
        DataError
            The metric is undefined.
        """
        found = Evaluation(self._metric, problems[0], self._store, True)
        if self._path is None:
            read_held_out(found)
        else:
            self._judge_file(found, problems, [unscaled(W) for W in weights], after_batch)
        score, best = found.figure, self._best
        if math.isnan(score):
            where = self._path or "the rows held out"
            what = "there are no rows" if not found.rows else "all rows have the same label"
            raise DataError(
                f"{self._metric.name} is undefined on {where}: {what}; use another metric or "
                "other rows"
            )
        is_better = best["score"] is None or (score - best["score"]) * self._metric.sign > 0
        is_best = is_better or score == best["score"]
        self._best = best | {
            "since": 0 if is_better else best["since"] + (gap <= NEAR),
            "last": score,
        }
        if is_best:
            self._best |= {"score": score, "pass": passes, "rows": found.rows}
            if found.base_rate is not None:
                self._best["base_rate"] = found.base_rate
            if found.by_score:
                self._best["curves"] = found.binary.curves()
            if self._threshold is not None:
                costs = read_threshold(self._threshold)
                self._best["threshold"] = found.binary.choose_threshold(costs)
        return is_best

    def _judge_file(
        self, found: Evaluation, problems: Sequence[AnyProblem], weights: Sequence[Floats],
        after_batch: Callable[[], None],
    ) -> None:  # fmt: skip
        for rows in self._read_file(sum(W.shape[1] for W in weights)):
            each = zip(problems, weights, strict=True)
            found.add(rows.y, [decide(rows, W, problem.bias) for problem, W in each])
            after_batch()

    def _read_file(self, outputs: int) -> Iterator[Rows]:
        """Yield the rows of the file, with class codes or targets."""
        store, path = self._store, self._path
        assert path is not None
        numbers = dict(zip(store.label_names, store.labels or [], strict=False))
        words = LabelWords(
            numbers, "labels of the training data", "convert them", may_be_numbers=True
        )
        sources = sources_of(
            path, naming_of(store), self._reading.beside(path), words=words,
            targets=not self._is_classes,
        )  # fmt: skip
        if not self._is_checked:
            prepare_batches(path, sources, "validating", PREDICT, self._progress)
        table = IdTable(store.read_feature_ids())
        batches = read_batches(path, sources, table, Batch.copy, 1, self._progress, words=words)
        for batch in itertools.chain.from_iterable(some.slices(outputs) for some in batches):
            yield Rows(
                batch.begins, (batch.ends - batch.begins).astype(np.int32), batch.indices,
                batch.values, self._codes(batch.y, words.new),
            )  # fmt: skip
        for warning in [] if self._is_checked else table_notes(sources or []):
            self._progress.stage(f"{path}: {warning}")
        self._is_checked = True

    def _codes(self, y: Floats, new: Sequence[str]) -> npt.NDArray[Any]:
        """Return the class codes of labels; targets are unchanged."""
        if not self._is_classes:
            return y
        labels = np.asarray(self._store.labels)
        order = np.argsort(labels)
        places = np.minimum(np.searchsorted(labels, y, sorter=order), len(labels) - 1)
        codes = order[places]
        if len(unknown := np.flatnonzero((labels[codes] != y) | ~np.isin(codes, self._known))):
            label = new[0] if new else format_number(float(y[unknown[0]]))
            raise DataError(
                f"{self._path} has label {label}, which is not in the training data; remove these "
                "rows, or add rows with this label to the training data"
            )
        return codes

    # ---------------------------------------------------------------------------- the best

    def keep(self, weights: Sequence[Floats], certificate: Certificate) -> None:
        """Keep weights, which were judged last, and their certificate."""
        columns = itertools.accumulate((W.shape[1] for W in weights), initial=0)
        for first, W in zip(columns, weights, strict=False):
            self.weights[0][:, first : first + W.shape[1]] = W
        self._best["certificate"] = certificate.to_dict()

    @property
    def is_over(self) -> bool:
        """Whether the score has not improved for so long that the training should end."""
        return bool(self._best["since"] >= PATIENCE)

    @property
    def certificate(self) -> Certificate:
        """The certificate of the best weights."""
        return Certificate(**self._best["certificate"])

    def figures(self) -> dict[str, Any] | None:
        """Return the last score, for the log; None if no weights were judged."""
        if "last" not in self._best:
            return None
        return {"metric": self._metric.name, "score": self._best["last"]}

    def report(self, ended_by: str) -> dict[str, Any]:
        """Return the outcome; see `sbm.train`."""
        best = self._best
        return {
            "data": self._path, "share": self.share or None, "metric": self._metric.name,
            "score": best["score"], "pass": best["pass"], "rows": best["rows"],
            "base_rate": best.get("base_rate"), "threshold": best.get("threshold"),
            "positive": self._positive,
            "ended_by": "validation" if self.is_over else ended_by,
        }  # fmt: skip

    # ------------------------------------------------------------------- checkpoints

    def record(self) -> dict[str, Any]:
        """Return the scalars of the state, as JSON."""
        return {**self._best, "is_over": self.is_over}

    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the arrays of the state."""
        return {named(BEST, k): W for k, W in enumerate(self.weights)}

    def restore(self, record: Mapping[str, Any], run: Run) -> None:
        """Restore the state of the last checkpoint."""
        self._best = {name: value for name, value in record.items() if name != "is_over"}
        read_weights(run, BEST, self.weights)
