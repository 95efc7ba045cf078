"""Incremental learning: learn batches of rows in memory as `sbm stream` learns text.

A batch is a block: it is merged with the cache and solved, and rows that are not selected for the
next cache are dropped. Classes and features are known from the start. Memory is allocated for the
largest batch so far and a cache in proportion to it (``cache_frac``), so the cost of a batch does
not depend on the number of batches before. ``mem`` limits both: a larger batch is cut into several
blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.engine.kernels import kernels_of, prepare, types_of
from sbm.engine.problems import assemble_model
from sbm.engine.progress import Progress
from sbm.models.model import Model
from sbm.plain import dataclass
from sbm.programs.streaming.arrivals import Needs
from sbm.programs.streaming.learner import Seen, Workspace, learner_shape, problems_of
from sbm.programs.streaming.options import FREE, StreamOptions, check_settings, merge
from sbm.programs.streaming.plan import FIRST_BLOCK, plan_stream
from sbm.rows import Rows
from sbm.settings import Settings
from sbm.solver.onepass import OnePass, Size
from sbm.solver.problem import AnyProblem
from sbm.solver.step import Totals

_OPTIONS = StreamOptions()
_TYPES = ("ones", "float32", "float64")  # each holds the values of those before it


@dataclass(frozen=True)
class _Plan:
    """The sizes that memory is allocated for."""

    size: Size
    value_type: str
    weighted: bool

    def holds(self, other: _Plan, longest: int) -> bool:
        """Return whether this plan covers another one, with rows of up to `longest` nonzeros."""
        return (
            self.size.block_rows >= other.size.block_rows
            and self.size.block_nnz >= longest
            and 2 * self.size.block_nnz >= other.size.block_nnz  # rows may be longer than before
            and (self.value_type, self.weighted) == (other.value_type, other.weighted)
        )


class Incremental:
    """Learns a model from batches of rows.

    It can be pickled between two batches, with weights, cached rows and random state.

    Parameters
    ----------
    labels : list of float, optional
        Label of each class code; None for regression and one-class.
    n_features : int
        Columns of every batch; column k is feature id k.

    Attributes
    ----------
    settings : Settings
        With automatic values filled in.
    n_rows : int
        Rows so far.

    Raises
    ------
    SettingsError
        A setting does not apply to rows that are seen once.
    """

    def __init__(self, settings: Settings, labels: list[float] | None, n_features: int) -> None:
        self.settings = check_settings(settings, _OPTIONS)
        self.labels, self.n_features = labels, n_features
        self._needs = Needs(features=n_features, labels=len(labels or ()))
        self._largest = 0  # batch, in rows
        self._totals, self._n_blocks = Totals(), 0
        self._plan: _Plan | None = None
        self._workspace: Workspace | None = None
        self._state: dict[str, npt.NDArray[Any]] = {}  # of a learner that will be recreated
        self._before: Mapping[str, Any] | None = None

    @property
    def n_rows(self) -> int:
        """Rows learned so far."""
        return self._needs.rows

    def refuse_changes(self, settings: Settings) -> None:
        """Check that settings are those of the first batch, except memory, threads and seed.

        Raises `SettingsError` if a setting has changed.
        """
        before, now = self.settings.to_dict(), check_settings(settings, _OPTIONS).to_dict()
        advice = "set it back, or clone the estimator and fit all batches again"
        merge(before, now, before.keys() - {"seed", *FREE}, "partial_fit started", advice)

    def learn(self, batch: Rows) -> Model:
        """Learn a batch; return the model of all rows so far.

        Parameters
        ----------
        batch : Rows
            Contiguous rows; `y` has the dtype `target_type`. Values are stored with their own
            dtype, float32 or float64.

        Raises
        ------
        MemoryPlanError
            ``settings.mem`` is too small; the message has the smallest bound.
        """
        self._grow(batch)
        workspace = self._workspace
        assert workspace is not None
        for block in workspace.parts(batch):
            self._totals.add(workspace.learner.learn(block))
            self._n_blocks += 1
        return self._model(workspace.learner)

    def _grow(self, batch: Rows) -> None:
        """Allocate a larger workspace if a batch needs it."""
        before, needs = self._plan, self._needs
        has_values = batch.values is not None and bool((batch.values != 1).any())
        self._needs = needs = replace(
            needs, rows=needs.rows + len(batch), nnz=needs.nnz + batch.nnz,
            longest=max(needs.longest, int(batch.lengths.max(initial=0))),
            has_values=needs.has_values or has_values,
        )  # fmt: skip
        self._largest = max(self._largest, len(batch))
        value_type = str(batch.values.dtype) if batch.values is not None and has_values else "ones"
        weighted = batch.weights is not None
        if before is not None:
            value_type = max(value_type, before.value_type, key=_TYPES.index)
            weighted = weighted or before.weighted
        plan = _Plan(self._size(value_type), value_type, weighted)
        if before is None or not before.holds(plan, needs.longest):
            self._plan = before = plan
            self._put_away()
        if self._workspace is None:
            self._workspace = self._make_workspace(before)

    def _size(self, value_type: str) -> Size:
        """Return sizes for blocks as large as the largest batch, limited by memory."""
        settings, needs = self.settings, self._needs
        shape = learner_shape(self._problems())
        dtype = "float64" if value_type == "float64" else "float32"
        most = plan_stream(
            settings.mem_bytes, float(settings.cache_frac), shape, needs, dtype, "partial_fit"
        ).size
        rows = min(most.block_rows, max(FIRST_BLOCK, 1 << (self._largest - 1).bit_length()))
        share = rows / most.block_rows
        return replace(
            most, block_rows=rows, features=self.n_features,
            block_nnz=int(share * (most.block_nnz - needs.longest)) + needs.longest,
            cache_rows=int(share * most.cache_rows), cache_nnz=int(share * most.cache_nnz),
        )  # fmt: skip

    def _problems(self) -> list[AnyProblem]:
        return problems_of(self.settings, self.labels)

    def _make_workspace(self, plan: _Plan) -> Workspace:
        """Create a workspace, and restore the learner's state in it."""
        settings, problems = self.settings, self._problems()
        types = types_of(problems, plan.value_type)
        prepare("streaming", kernels_of(settings, problems, streamed=True), types, Progress())
        workspace = Workspace.of(
            settings, problems, plan.size, plan.value_type, weighted=plan.weighted
        )
        learner = workspace.learner
        learner.grow(self.n_features)
        if self._before is not None:
            learner.restore(self._state, self._before)
        self._state, self._before = {}, None
        return workspace

    def _put_away(self) -> None:
        """Free the workspace, and keep a copy of the learner's state."""
        if self._workspace is not None:
            state = self._workspace.learner.state()
            self._state = {name: np.copy(array) for name, array in state.items()}
            self._before = self._workspace.learner.describe()
            self._workspace = None

    def __getstate__(self) -> dict[str, Any]:
        workspace = self._workspace
        self._put_away()
        kept, self._workspace = {**self.__dict__, "_workspace": None}, workspace
        return kept

    def _model(self, learner: OnePass) -> Model:
        """Create the model of the rows so far, with copies of the weights."""
        problems, settings = learner.problems, self.settings
        facts = {
            "rounds": [settings.rounds],
            "converged": False,
            "passes": 1,
            "updates": self._totals.updates,
            "rows": self.n_rows,
            "sources": [],
            "stream": {"blocks": self._n_blocks, "dual": learner.dual},
        }
        rows = Seen(self.n_rows, self.labels)
        ids = np.arange(self.n_features, dtype=np.int64)
        weights = [W.copy() for W in learner.weights]
        return assemble_model(ids, rows, settings, problems, weights, facts)
