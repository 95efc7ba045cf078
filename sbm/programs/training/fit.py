"""Train: passes over all rows until the certified gap is small enough, or a budget is used up."""

from __future__ import annotations

from sbm.programs.training.job import Carried
from sbm.programs.training.training import Training

__all__ = ["fit"]


def fit(training: Training) -> Carried | None:
    """Run the passes of a training, from zero or from where it was interrupted.

    What a pass does with each block is the method's: `Dual` solves it together with the cache
    (Algorithm 1 of SBM 2011), `SecondOrder` and `Columns` add it to sums and move W after the pass.

    Returns
    -------
    Carried or None
        What another method starts from if that is expected to be faster; None at the end.
    """
    state, task, method = training.state, training.task, training.method
    while not state.is_done:
        # A checkpoint may be inside a pass, between it and its certificate, or between passes.
        if state.ended is None and (columns := method.carried()) is not None:
            return training.hand_over(columns)
        done, certificate = state.ended or method.run_pass(), None
        is_late = training.is_late()
        is_last = is_late or state.passes >= task.max_passes
        is_best = (is_last or method.is_worth_judging) and training.judge(done.gap)
        is_last = is_last or training.is_over
        if method.may_be_done(done) or is_last or is_best:
            state.certificate = certificate = method.certify(is_last, is_best)
            is_last = is_last or certificate.relative_gap <= task.tol
        is_last = is_last or not method.move(certificate)
        training.end_pass(done, certificate, is_late, is_last)
    return None
