"""The learner of a stream, created for the rows, features and classes known so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import field, replace
from typing import Any

import numpy as np

from sbm.engine.memory import Shape
from sbm.engine.problems import make_problems
from sbm.losses import LOSSES
from sbm.plain import dataclass
from sbm.rows import SPARE, Arena, Rows
from sbm.settings import Settings
from sbm.solver.onepass import OnePass, Size, caches_nnz
from sbm.solver.problem import AnyProblem, MultiProblem, OneClass


def target_type(settings: Settings) -> str:
    """Return the dtype of y: int32 for class codes or no labels, float64 for targets."""
    task = settings.problem
    return "float64" if task == "regression" else "int32"


@dataclass(frozen=True)
class Seen:
    """The rows of a stream so far, as `make_problems` needs them."""

    n_rows: int
    labels: list[float] | None
    name: str = "the stream"
    label_counts: list[int] = field(default_factory=list)
    label_names: list[str] = field(default_factory=list)


def problems_of(settings: Settings, labels: list[float] | None) -> list[AnyProblem]:
    """Create the problems for the classes known so far; class weights of other labels wait."""
    weights = {} if isinstance(settings.class_weight, str) else dict(settings.class_weight)
    if labels is not None:
        weights = {label: weight for label, weight in weights.items() if label in labels}
    settings = replace(settings, class_weight=weights)
    loss = LOSSES[settings.loss]
    if loss.joint and labels is not None and len(labels) == 1:  # until a second class occurs
        cost = settings.C * weights.get(labels[0], 1.0)
        return [MultiProblem(loss, np.array([cost]), settings.C, settings.bias)]
    return make_problems(settings, Seen(1, labels))


def learner_shape(problems: list[AnyProblem]) -> Shape:
    """Return what the memory depends on, besides the rows."""
    copies = 1 + (sum(p.n_outputs for p in problems) > 1)  # the model needs sorted columns
    if isinstance(problems[0], OneClass):
        copies = 3
    row_bytes = 0 if problems[0].classify else 4
    listed = problems[0].listed
    return Shape(0, [p.n_outputs for p in problems], listed, copies=copies, row_bytes=row_bytes)


@dataclass(frozen=True)
class Workspace:
    """A learner, and rooms for the blocks that it learns."""

    learner: OnePass
    arena: Arena  # the nonzeros of the caches, followed by those of each room
    rooms: list[Rows]  # uninitialized rows, whose starts count from the begin of the room
    begins: list[int]  # offset of each room in the arena

    @classmethod
    def of(
        cls,
        settings: Settings,
        problems: list[AnyProblem],
        size: Size,
        value_type: str,
        *,
        weighted: bool = False,
        spread: Callable[..., Iterable[Any]] = map,
        rooms: int = 1,
    ) -> Workspace:
        """Allocate the rooms and an untrained learner; `spread` is a ``map`` in threads."""
        first, y_dtype = caches_nnz(size, len(problems)), target_type(settings)
        begins = [first + k * size.block_nnz for k in range(rooms)]
        arena = Arena.of(begins[-1] + size.block_nnz + SPARE, value_type)
        learner = OnePass(
            problems, arena, size, y_dtype, rounds=int(settings.rounds), policy=settings.policy,
            seed=settings.seed, weighted=weighted, spread=spread,
        )  # fmt: skip
        own = [
            arena.part(begin, size.block_nnz).room(size.block_rows, y_dtype, weighted)
            for begin in begins
        ]
        return cls(learner, arena, own, begins)

    def parts(self, batch: Rows) -> Iterator[Rows]:
        """Yield the rows of a room as rows of the arena, which changes their starts.

        Other rows, which are contiguous, are copied into the first room, as many as fit at a time.
        """
        for room, begin in zip(self.rooms, self.begins, strict=True):
            if len(batch) and batch.indices is room.indices:
                yield self._in_arena(batch, begin)
                return
        first = 0
        while first < len(batch):
            part = self._lay_out(batch, first)
            first += len(part)
            yield self._in_arena(part, self.begins[0])

    def _in_arena(self, rows: Rows, begin: int) -> Rows:
        rows.starts += begin
        return replace(rows, indices=self.arena.indices, values=self.arena.values)

    def _lay_out(self, batch: Rows, first: int) -> Rows:
        room = self.rooms[0]
        ends = np.cumsum(batch.lengths[first : first + len(room)], dtype=np.int64)
        n = int(np.searchsorted(ends, len(room.indices), side="right"))
        old, new = slice(first, first + n), slice(0, n)
        nnz, begin = int(ends[n - 1]), int(batch.starts[first])
        room.starts[new] = batch.starts[old] - begin
        room.lengths[new], room.y[new] = batch.lengths[old], batch.y[old]
        if room.weights is not None:
            room.weights[new] = 1 if batch.weights is None else batch.weights[old]
        room.indices[:nnz] = batch.indices[begin : begin + nnz]
        if room.values is not None:
            room.values[:nnz] = 1 if batch.values is None else batch.values[begin : begin + nnz]
        return room.part(0, n)
