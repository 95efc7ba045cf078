"""Where second-order training is possible, and where it pays; see `sbm.solver.newton`."""

from __future__ import annotations

from dataclasses import replace

from sbm.engine.pace import Work
from sbm.errors import SettingsError
from sbm.programs.training.needs import rows_near, sample_rows
from sbm.programs.training.ranks import MANY
from sbm.programs.training.task import Task, is_smooth

__all__ = ["folds_start_with_newton", "starts_with_newton", "suits_newton", "work_of"]

# Nanoseconds of work: so few are not worth a matrix; so many more are a small part of the time that
# the program takes to start.
_LEAST_WORK, _UNNOTICED = 1e7, 5e7
_EASY = 14  # rounds of coordinate descent for easy data
# So many times longer it may take if coordinate descent cannot be left later: on the data that this
# decides, folds took at most twice as long, and converged.
_PATIENCE = 6
# Visits of all rows without a matrix: of a squared loss, of another, and of a joint one.
_VISITS, _JOINT_VISITS = {True: 150, False: 200}, 500
# The same beside coordinate descent with searches along lines, which large C hardly slows down: of
# a smooth loss and of one with kinks, for which the method takes longer on all data measured.
_SEARCHED = {True: 1000, False: 10_000}


def _is_supported(task: Task) -> bool:
    """Return whether there is a second-order method for the settings of a task."""
    try:
        replace(task.settings, solver="newton").refuse_conflicts()
    except SettingsError:
        return False
    return True


def suits_newton(task: Task) -> bool:
    """Return whether `auto` considers Newton's method."""
    if not _is_supported(task):
        return False
    suits = task.share.comm.size == 1 and not task.settings.calibrate
    return suits or not (task.has_many_features or task.loss.joint)


def starts_with_newton(task: Task) -> bool:
    """Return whether Newton's method is expected to take less time than a few other passes."""
    store, loss = task.store, task.loss
    if not _is_supported(task) or not is_smooth(loss) or not store.n_rows:
        return False
    if task.has_many_features or task.settings.warm_start is not None:
        return False
    labels = len(store.labels or [])
    problems = labels if labels > 2 else 1
    iterates = loss.kernel == "logistic"
    sample = sample_rows(store, smooth=True)
    work = Work(store.n_rows, store.nnz, store.n_features, problems, sample, iterates=iterates)
    few = work.dual(1, _EASY * store.n_rows * problems)
    return few > _LEAST_WORK and work.newton() < few + _UNNOTICED


def folds_start_with_newton(task: Task) -> bool:
    """Return whether the folds of a task, which cannot switch later, start with Newton's method."""
    if starts_with_newton(task):
        return True
    if not _is_supported(task) or task.has_many_features or task.loss.joint:
        return False
    work = work_of(task)
    few = _EASY * task.store.n_rows * -(-work.problems // max(1, work.together))
    return task.is_uneven or work.newton() < _PATIENCE * work.dual(1, few)


def _visits_of(task: Task) -> int:
    """Return the visits of each row that take as long as the method without a matrix."""
    loss = task.loss
    if loss.joint:
        return _JOINT_VISITS
    if not task.problems[0].searches or task.is_uneven:
        return _VISITS[loss.squared]
    return _SEARCHED[is_smooth(loss)]


def work_of(task: Task) -> Work:
    """Return what passes of a training cost."""
    store, loss, problems = task.store, task.loss, task.share.problems
    first, outputs = problems[0], sum(problem.n_outputs for problem in problems)
    sample = sample_rows(store, is_smooth(loss))
    near = 0 if is_smooth(loss) else min(store.n_rows, rows_near(store, sample))
    visits = _visits_of(task) * (loss.joint or task.has_many_features)
    together = (outputs if loss.joint else min(outputs, MANY)) if first.listed else 0
    return Work(
        store.n_rows,
        store.nnz,
        task.n_weights,
        outputs,
        sample,
        near,
        together,
        loss.kernel == "logistic",
        visits,
        joint=loss.joint,
    )
