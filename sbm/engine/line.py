"""Moves along the line through the last two passes; see `sbm.solver.passline`.

The run stores the alphas at the end of the pass before, too.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sbm.alphas import Dense
from sbm.engine.certificate import visit_all
from sbm.engine.engine import Engine
from sbm.engine.learners import Group, Learner, Pass, Visit
from sbm.solver.passline import Bend, Reach
from sbm.solver.variables import DenseSet

__all__ = ["clip_rest", "move_on"]

Array = npt.NDArray[np.float64]
Places = npt.NDArray[np.integer]


def move_on(engine: Engine) -> None:
    """Move W and all alphas of the active learners on, after a pass over all blocks."""
    groups = [Group([one]) for one in engine.active if one.solver.line is not None]
    list(engine.for_each(groups, lambda group: _move(engine, group.learners[0])))


def _move(engine: Engine, learner: Learner) -> None:
    solver = learner.solver
    line, working = solver.line, solver.working
    assert line is not None
    assert isinstance(working.alpha, DenseSet)
    if line.left > 1:
        line.left -= 1
        return
    values = working.alpha.values
    k, run = learner.number, engine.run
    n_cached = working.n_cached
    order = np.argsort(working.home[:n_cached], kind="stable")
    n_parts = len(engine.plan.parts)
    ends = np.searchsorted(working.home[order], np.arange(n_parts + 1))

    def read(part: int, is_now: bool = False) -> tuple[Array, Array, Places, Places]:
        """Return alphas of a part, their change since the pass before, and its cached rows.

        The rows are given by their numbers in the part, and in the working set.
        """
        alpha, way = (engine.room(slot, k, engine.plan.parts[part].rows) for slot in range(2))
        run.load(engine.home(k, part), Dense(alpha))
        cached = order[ends[part] : ends[part + 1]]
        rows = working.row[cached]
        alpha[rows] = values[cached]
        if is_now:
            way[:] = 0.0
        else:
            run.load(run.before(engine.home(k, part)), Dense(way))
            np.subtract(alpha, way, out=way)
        return alpha, way, rows, cached

    bend, reach, after = Bend(), Reach(line.problem), Bend()
    if line.left == 0:
        for part in range(n_parts):
            alpha, way, *_ = read(part)
            bend.add(line.problem, alpha, way)
            reach.add(alpha, way)
    elif line.bends:
        for part in range(n_parts):
            bend.add(line.problem, *read(part, is_now=True)[:2])
    t = line.length(solver.dual_sum, bend, reach)
    if line.left:
        return
    for part in range(n_parts):
        alpha, way, rows, cached = read(part, is_now=t == 0.0)
        run.store(run.before(engine.home(k, part)), Dense(alpha))
        if t == 0.0:
            continue
        way *= t
        alpha += way
        after.add(line.problem, alpha, way)
        values[cached] = alpha[rows]
        alpha[rows] = 0.0
        run.store(engine.home(k, part), Dense(alpha))
    line.move(t)
    if t > 0.0:
        solver.dual_sum = line.dual_sum(t, after)
        solver.dual_sum += line.clip(working.rows, Dense(values[:n_cached]))


def clip_rest(engine: Engine, now: Pass) -> None:
    """Clip the alphas of the blocks that a pass did not come to."""
    lines = [learner.solver.line for learner in engine.active]
    is_open = any(line is not None and line.is_open for line in lines)
    if is_open and now.done < len(now.order):
        for visit in visit_all(engine, "clip", order=now.order[now.done :]):
            for learner in engine.active:
                _clip(engine, learner, visit)
    for line in lines:
        if line is not None:
            line.is_open = False


def _clip(engine: Engine, learner: Learner, visit: Visit) -> None:
    """Clip the alphas of a block; those of cached rows are."""
    solver, alpha = learner.solver, visit.own[learner.number].alpha
    assert solver.line is not None
    assert isinstance(alpha, Dense)
    solver.dual_sum += solver.line.clip(visit.rows, alpha)
    cached = np.zeros(len(visit.block), np.bool_)
    solver.working.mark_cached(visit.block, cached)
    alpha.values[cached] = 0.0
    engine.store_alpha(learner.number, visit.block, alpha)
