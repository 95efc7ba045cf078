"""Snapshots: save the state of an engine between two steps, and restore it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.engine.certificate import visit_all
from sbm.engine.engine import Engine
from sbm.engine.learners import Pass
from sbm.store.run import Run

__all__ = [
    "BEST", "NEWTON", "bare_name", "named", "number_in", "read_weights", "restore", "snapshot",
]  # fmt: skip

BEST = "best"  # name of the weights of the best pass in a state
NEWTON = "newton_"  # begins the names of what a second-order method keeps


def snapshot(engine: Engine) -> tuple[dict[str, Any], dict[str, npt.NDArray[np.generic]]]:
    """Return the state of an engine between two steps, after pending writes have finished.

    The block that is read ahead was screened with older weights, which cannot be restored. So the
    rows to visit in it are part of the state.

    Returns
    -------
    place : dict
        Position of the engine, as JSON.
    state : dict of str to ndarray
        Arrays of the learners, and the rows to visit. The arrays are not copied.

    Raises
    ------
    Exception
        The block that is read ahead cannot be read, so its rows to visit are unknown.
    """
    engine.settle()
    coming, marks = engine.coming, engine.marks
    if coming is not None and engine.reader.failure is not None:
        raise engine.reader.failure
    place = {
        "last_block": engine.last_block,
        "pass": None if engine.now is None else engine.now.record(),
        "coming": engine.marked if coming is None else list(coming.block.parts),
    }
    state: dict[str, npt.NDArray[np.generic]] = {}
    for learner in engine.learners:
        mine = learner.solver.state()
        state |= {named(name, learner.number): array for name, array in mine.items()}
    if coming is None:  # nothing was read since the snapshot was restored
        moving: Mapping[int, npt.NDArray[np.bool_] | None] = marks
    else:
        moving = {
            k: own.moving(coming.block, engine.evicted.get(k)) for k, own in coming.own.items()
        }
    for k, rows in moving.items():
        if rows is not None:
            state[named("moving", k)] = np.packbits(rows)
    return place, state


def restore(engine: Engine, place: Mapping[str, Any], run: Run, with_rows: bool = True) -> None:
    """Restore the snapshot in a run's last checkpoint.

    Parameters
    ----------
    engine : Engine
    place : mapping
        As returned by `snapshot`.
    run : Run
        Holds the arrays.
    with_rows : bool
        Whether to read the cached rows, too. They are required for further steps.

    Raises
    ------
    KeyError, ValueError, TypeError
        The snapshot does not match this training.
    """
    engine.last_block = [int(part) for part in place["last_block"]]
    engine.now = Pass.of(place["pass"]) if place["pass"] is not None else None
    # W is read separately: there is memory for only one more copy.
    read_weights(run, "W", [learner.solver.W for learner in engine.learners])
    names: dict[int, dict[str, str]] = defaultdict(dict)
    for name in run.state_names():
        if (bare := bare_name(name)) not in (BEST, "W") and not bare.startswith(NEWTON):
            names[number_in(name)][bare] = name
    marks = {}
    rows = engine.learners[0].solver.working.alpha.capacity
    # Of a row in the cache, 32 bytes are read.
    for some in _together(len(engine.learners), 32 * rows):
        found = run.read_state([name for k in some for name in names[k].values()])
        for k in some:
            solver, state = engine.learners[k].solver, {b: found[n] for b, n in names[k].items()}
            solver.restore(state)
            solver.working.restore(state)
            if "moving" in state:
                count = sum(engine.plan.parts[int(part)].rows for part in place["coming"])
                marks[k] = np.unpackbits(state["moving"], count=count).view(np.bool_)
    proximal = engine.learners[0].solver.proximal
    engine.reader.units = None if proximal is None else proximal.units[:, 0]
    if with_rows:
        _read_cached_rows(engine)
    # Only now, because reading the cached rows clears them.
    engine.marks, engine.marked = marks, place["coming"]


def read_weights(run: Run, name: str, ours: Sequence[npt.NDArray[np.float64]]) -> None:
    """Read the array of this name of each learner into an array of ours."""
    for some in _together(len(ours), ours[0].nbytes if ours else 1):
        found = run.read_state([named(name, k) for k in some])
        for k in some:
            ours[k][:] = found[named(name, k)]


def _together(n: int, each: int) -> list[range]:
    """Return which learners to read together: each read decodes the names of all arrays."""
    step = max(1, 4_000_000 // max(1, each))
    return [range(k, min(k + step, n)) for k in range(0, n, step)]


def _read_cached_rows(engine: Engine) -> None:
    missing = sum(learner.solver.working.n_cached for learner in engine.learners)
    if not missing:
        return
    for visit in visit_all(engine, "read the cache", in_units=True):
        for learner in engine.learners:
            missing -= learner.solver.working.refill(visit.block, visit.rows)
    if missing:
        raise ValueError("cached rows are missing from the store")


def named(name: str, k: int) -> str:
    """Return the name of an array of the k-th learner in a state."""
    return name if k == 0 else f"{name}-{k}"


def bare_name(name: str) -> str:
    """Undo `named`."""
    return name.partition("-")[0]


def number_in(name: str) -> int:
    """Return the number of the learner that an array of a state belongs to."""
    return int(name.partition("-")[2] or 0)
