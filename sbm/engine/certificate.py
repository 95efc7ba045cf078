"""Everything at fixed weights: certificates, and other looks at every block."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sbm.engine.engine import Engine
from sbm.engine.learners import Group, Learner, LoadedBlock
from sbm.solver.gap import MOST_DRIFT, Certificate, Certifier
from sbm.solver.problem import squared_norm

__all__ = ["certify", "certify_each", "replace_weights", "visit_all"]

# Of each learner, by number: its certificate, and the weights that belong to its alphas.
Found: TypeAlias = Mapping[int, tuple[Certificate, npt.NDArray[np.float64]]]
Change: TypeAlias = Callable[[LoadedBlock, Learner], None]


def visit_all(engine: Engine, what: str) -> Iterator[LoadedBlock]:
    """Yield every block with the alphas of the active learners, cached ones included.

    Parameters
    ----------
    engine : Engine
    what : str
        For progress.
    """
    engine.stop_reading()
    engine.progress.start(what, len(engine.own), "blocks")
    blocks = engine.reader.read(engine.own, engine.prepare_alpha, engine.load_alpha, engine.look)
    for done, loaded in enumerate(blocks, 1):
        visit = loaded.coming.visit(loaded.result)
        for k, mine in visit.alpha.items():
            engine.learners[k].solver.working.alphas_of(visit.block, mine)
        yield visit
        engine.progress.advance(done)
        engine.pauses.after_look()
    engine.progress.finish()


def certify(engine: Engine, change: Change | None = None) -> tuple[Certificate, Found]:
    """Certify the active learners as one model.

    Where numbers are so extreme that the running weights have drifted away from the alphas, they
    are replaced by those of the alphas, and certified again.

    Parameters
    ----------
    engine : Engine
    change : callable, optional
        See `certify_each`.

    Returns
    -------
    certificate : Certificate
    found : dict
        See `certify_each`.
    """
    found = certify_each(engine, change=change)
    certificate = Certificate.total([one for one, _ in found.values()])
    if certificate.drift > MOST_DRIFT:
        replace_weights(engine, found)
        found = certify_each(engine)
        certificate = Certificate.total([one for one, _ in found.values()])
    return certificate, found


def certify_each(
    engine: Engine, groups: Sequence[Group] | None = None, change: Change | None = None
) -> Found:
    """Evaluate primal and dual of every active learner at fixed W and alphas.

    Held-out rows are shown to the judges meanwhile.

    Parameters
    ----------
    engine : Engine
    groups : sequence of Group, optional
        All active learners. Default: each alone.
    change : callable, optional
        ``change(visit, learner)`` is called first for each block and learner, and may change the
        alphas.

    Returns
    -------
    dict of int to (Certificate, ndarray)
        The arrays are the weights that belong to the alphas, for `replace_weights`.
    """
    active = engine.active
    certifiers = {
        one.number: Certifier(one.solver.problem, one.solver.W, one.solver.W_seen) for one in active
    }

    def add(visit: LoadedBlock, group: Group) -> None:
        group.evaluate(visit.rows, visit.folds)
        for learner in group.learners:
            if change is not None:
                change(visit, learner)
            rows, alpha = visit.rows, visit.alpha[learner.number]
            mine = learner.its_own(visit.folds)
            if mine is not None:
                places = np.flatnonzero(mine)
                rows, alpha = rows.take(places), alpha.take(places)
            certifiers[learner.number].add(rows, alpha)

    with engine.seconds.measure("certify"):
        for visit in visit_all(engine, "certify"):
            work = functools.partial(add, visit)
            list(engine.for_each(groups or [Group([one]) for one in active], work))
        for certifier in certifiers.values():
            # The sums of all processes, each of which has blocks of its own.
            theirs = engine.comm.share([one.tolist() for one in certifier.sums])
            certifier.sums = [np.array(one) for one in itertools.chain(*theirs)]
            for array in certifier.arrays:
                engine.comm.add_up(array)
        return {k: (one.finish(), one.W_alpha) for k, one in certifiers.items()}


def replace_weights(engine: Engine, found: Found) -> None:
    """Go on with the weights that were rebuilt from the alphas; that cancels drift."""
    for k, (certificate, W_alpha) in found.items():
        solver = engine.learners[k].solver
        solver.W[:] = W_alpha
        solver.dual_sum = certificate.dual + 0.5 * squared_norm(W_alpha)
