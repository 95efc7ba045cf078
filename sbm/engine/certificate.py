"""Reads of all blocks at fixed weights, for certificates and other uses."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from sbm.alphas import no_alphas
from sbm.engine.engine import Engine
from sbm.engine.learners import Group, Learner, Visit
from sbm.solver.gap import MOST_DRIFT, Certificate, Certifier
from sbm.solver.problem import squared_norm

__all__ = ["certify", "certify_each", "certify_weights", "replace_weights", "visit_all"]

# By learner number: the certificate, and the weights computed from the alphas.
Found: TypeAlias = Mapping[int, tuple[Certificate, npt.NDArray[np.float64]]]
Change: TypeAlias = Callable[[Visit, Learner], None]


def visit_all(
    engine: Engine, what: str, in_units: bool = False, order: Sequence[list[int]] | None = None
) -> Iterator[Visit]:
    """Yield every block with the alphas of the active learners, including cached rows.

    Parameters
    ----------
    engine : Engine
    what : str
        Label for progress.
    in_units : bool
        Whether rows are in the units of the proximal terms, as during a pass.
    order : sequence of list of int, optional
        The parts of each block. Default: all blocks of this rank.
    """
    engine.stop_reading()
    order = engine.plan.blocks(engine.own) if order is None else order
    engine.progress.start(what, len(order), "blocks")
    blocks = engine.reader.read(
        order, engine.prepare_alpha, engine.load_alpha, engine.look, in_units=in_units
    )
    for done, loaded in enumerate(blocks, 1):
        coming = loaded.coming
        visit = Visit(coming.block, loaded.result, coming.folds, coming.own)
        for k, own in visit.own.items():
            engine.learners[k].solver.working.alphas_of(visit.block, own.alpha)
        yield visit
        engine.progress.advance(done)
        engine.pauses.after_look()
    engine.progress.finish()


def certify(
    engine: Engine, change: Change | None = None, within: float = 0.0, beyond: float = 0.0
) -> tuple[Certificate, Found]:
    """Certify the active learners as one model.

    If the weights are too far from those of the alphas (extreme values, or weights that Newton's
    method found), they are replaced by weights computed from the alphas and certified again.

    Parameters
    ----------
    engine : Engine
    change : callable, optional
        See `certify_each`.
    within : float
        Relative gap that is small enough to keep the weights as they are.
    beyond : float
        Tolerance of the number of support vectors.

    Returns
    -------
    certificate : Certificate
    found : dict
        See `certify_each`.
    """
    found = certify_each(engine, change=change, beyond=beyond)
    certificate = Certificate.total([one for one, _ in found.values()])
    is_on_its_way = engine.reader.units is not None  # from the weights of the alphas
    if certificate.drift > MOST_DRIFT and certificate.relative_gap > within and not is_on_its_way:
        replace_weights(engine, found)
        found = certify_each(engine, beyond=beyond)
        certificate = Certificate.total([one for one, _ in found.values()])
    return certificate, found


def certify_each(
    engine: Engine,
    groups: Sequence[Group] | None = None,
    change: Change | None = None,
    beyond: float = 0.0,
) -> Found:
    """Evaluate primal and dual of every active learner at fixed W and alphas.

    The same read evaluates the held-out rows, if groups have judges.

    Parameters
    ----------
    engine : Engine
    groups : sequence of Group, optional
        All active learners. Default: one group per learner.
    change : callable, optional
        ``change(visit, learner)`` is called first for each block and learner, and may change the
        alphas.
    beyond : float
        See `certify`.

    Returns
    -------
    dict of int to (Certificate, ndarray)
        By learner number. The arrays are the weights computed from the alphas, for
        `replace_weights`.
    """
    active = engine.active
    if engine.plan.is_lean:
        _rebuild_weights(engine)
    certifiers = {}
    for one in active:
        solver = one.solver
        into = None if solver.is_lean else solver.W_seen
        certifiers[one.number] = Certifier(solver.problem, solver.W, into, beyond)

    def add(visit: Visit, group: Group) -> None:
        group.evaluate(visit.rows, visit.folds)
        for learner in group.learners:
            if change is not None:
                change(visit, learner)
            rows, alpha = visit.rows, visit.own[learner.number].alpha
            mine = learner.its_own(visit.folds)
            if mine is not None:
                places = np.flatnonzero(mine)
                rows, alpha = rows.take(places), alpha.take(places)
            if engine.plan.is_whole and len(active) == 1:
                certifiers[learner.number].add_halves(rows, alpha, engine.team.map)
            else:
                certifiers[learner.number].add(rows, alpha)

    with engine.seconds.measure("certify"):
        for visit in visit_all(engine, "certify"):
            work = functools.partial(add, visit)
            list(engine.for_each(groups or [Group([one]) for one in active], work))
        for certifier in certifiers.values():
            certifier.add_up(engine.comm)
        return {k: (one.finish(), one.W_alpha) for k, one in certifiers.items()}


def certify_weights(engine: Engine) -> Certificate:
    """Certify the active learners' W with all alphas 0: its primal value, and `most`."""
    certifiers = {
        one.number: Certifier(one.solver.problem, one.solver.W, None) for one in engine.active
    }
    with engine.seconds.measure("certify"):
        for visit in visit_all(engine, "certify"):
            for learner in engine.active:
                zeros = no_alphas(len(visit.rows), learner.solver.problem.listed)
                certifiers[learner.number].add(visit.rows, zeros)
        for certifier in certifiers.values():
            certifier.add_up(engine.comm)
    return Certificate.total([one.finish() for one in certifiers.values()])


def _rebuild_weights(engine: Engine) -> None:
    """Compute the weights of the alphas in place of W, so that no second array is needed."""
    for learner in engine.active:
        learner.solver.W[:] = 0.0

    with engine.seconds.measure("certify"):
        for visit in visit_all(engine, "weights"):
            for learner in engine.active:
                W, alpha = learner.solver.W, visit.own[learner.number].alpha
                learner.solver.problem.certify(visit.rows, alpha, W, W)  # its sums mean nothing


def replace_weights(engine: Engine, found: Found) -> None:
    """Replace the running weights by those computed from the alphas, which removes drift."""
    for k, (certificate, W_alpha) in found.items():
        solver = engine.learners[k].solver
        solver.replace_weights(W_alpha)
        solver.dual_sum = certificate.dual + 0.5 * squared_norm(W_alpha)
