"""Where second-order training is possible, and its memory; see `sbm.solver.newton`."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sbm.engine.columns import AT_ONCE
from sbm.engine.memory import AUTO_BLOCKS, SLACK, MemoryPlan
from sbm.engine.pace import LARGE_SAMPLE, Work
from sbm.errors import MemoryPlanError, SettingsError
from sbm.losses import LOSSES, Loss
from sbm.programs.training.ranks import MANY
from sbm.settings import Settings
from sbm.solver.newton import MARGIN_ROW
from sbm.solver.problem import AnyProblem
from sbm.solver.sums import hessian_bytes, product_bytes
from sbm.store.blocks import NONZERO_BYTES, BlockStore
from sbm.units import format_size, in_megabytes

__all__ = [
    "accelerates", "bytes_of_matrices", "check_memory_of_products", "first_solver", "is_smooth",
    "is_wide", "near_bytes", "near_capacity", "newton_refusal", "newton_row_bytes", "piece_rows",
    "refuse_newton", "sample_rows", "starts_with_newton", "suits_newton", "work_of",
]  # fmt: skip

MOST_FEATURES = 5000  # with which a matrix is considered

_FEW_ROUNDS = 14  # of coordinate descent, on easy data
# Nanoseconds of work: so few are not worth a matrix; so many more are a small part of the time that
# the program takes to start.
_LEAST_WORK, _UNNOTICED = 1e7, 5e7
_LEAST_PIECE = 16_000  # rows
_MISSED = 5.0  # factor of safety
_SEARCH_ROW = 16  # bytes: a decision value, and its change
# Bytes of a row that is visited many times, besides its variables; and of each problem for which
# this happens at the same time.
_VISIT_ROW, _VISIT_AT_ONCE = 24, 24
_LISTS_ROW, _VARIABLES = 120, 48  # bytes of its list, and for each variable, with copies
# Visits of all rows without a matrix: of a squared loss, of another, and of a joint one.
_VISITS, _JOINT_VISITS = {True: 150, False: 200}, 500
_MOST_SHARE = 0.5  # of the memory, of the matrices
_NEAR = 0.25  # most share of the rows that are near a kink, if memory allows
_LEAST_NEAR = 150  # rows near a kink per weight, if there are as many


def is_smooth(loss: Loss) -> bool:
    """Return whether a loss has a derivative everywhere."""
    return loss.squared or not loss.rests


def first_solver(settings: Settings) -> str:
    """Return the solver that `auto` begins with, before the rows are known."""
    return "newton" if settings.intercept and settings.penalty == "l2" else "dual"


def newton_refusal(settings: Settings) -> str:
    """Return what the second-order methods do not support of the settings; empty if nothing."""
    loss = LOSSES[settings.loss]
    if loss.name == "one_class":
        return f"loss {loss.name}"
    if loss.joint:
        if settings.intercept:
            return f"loss {loss.name}"
        unsupported = {
            "calibrate": settings.calibrate,
            "a share of the rows to validate": isinstance(settings.validate, float),
        }
        for what, is_set in unsupported.items():
            if is_set:
                return f"loss {loss.name} with {what}"
    if settings.penalty != "l2":
        return f"penalty {settings.penalty}"
    return ""


def suits_newton(settings: Settings, store: BlockStore, processes: int = 1) -> bool:
    """Return whether `auto` considers Newton's method."""
    if newton_refusal(settings):
        return False
    suits = processes == 1 and not settings.calibrate
    joint = LOSSES[settings.loss].joint
    return suits or (store.n_features <= MOST_FEATURES and not joint)


def refuse_newton(settings: Settings) -> None:
    """Check that a second-order method exists for the settings, if they ask for one.

    Raises
    ------
    SettingsError
        There is none.
    """
    needs_newton = first_solver(settings) == "newton"
    if needs_newton and settings.solver == "dual":
        raise SettingsError("solver dual does not support intercept; use solver newton, or bias 1")
    reason = newton_refusal(settings)
    if needs_newton and reason:
        raise SettingsError(
            f"intercept needs solver newton, which does not support {reason}; leave it out"
        )
    if settings.solver == "newton" and reason:
        raise SettingsError(f"solver newton does not support {reason}; use solver dual")


def is_wide(settings: Settings, store: BlockStore, problems: Sequence[AnyProblem]) -> bool:
    """Return whether a matrix of features x features would be too large, and is not needed."""
    if settings.solver != "newton" or isinstance(settings.validate, float):
        return False
    if problems[0].loss.joint:
        return True
    if not is_smooth(problems[0].loss):
        return store.n_features > MOST_FEATURES and not settings.intercept
    n_weights = store.n_features + (problems[0].bias > 0)
    most = _MOST_SHARE * settings.mem_bytes
    return n_weights > MOST_FEATURES or hessian_bytes(n_weights, len(problems), True) > most


def accelerates(problem: AnyProblem, processes: int) -> bool:
    """Return whether training without a matrix is by accelerated coordinate descent."""
    return not problem.intercept and processes == 1


def newton_row_bytes(
    settings: Settings, store: BlockStore, problems: Sequence[AnyProblem], models: int
) -> int:
    """Return the bytes per row of a second-order training of one model, but near a kink."""
    if settings.solver != "newton" or models > 1:
        return 0
    if is_wide(settings, store, problems):
        outputs = problems[0].n_outputs
        lists = _LISTS_ROW + _VARIABLES * outputs if problems[0].listed else 0
        visits = _VISIT_ROW + _VISIT_AT_ONCE * min(len(problems), AT_ONCE)
        return visits + 8 * len(problems) + lists
    return _SEARCH_ROW if is_smooth(problems[0].loss) else 0


def bytes_of_matrices(
    settings: Settings, store: BlockStore, problems: Sequence[AnyProblem], models: int
) -> int:
    """Return the bytes of the matrices of a second-order training; 0 if there is none."""
    if settings.solver != "newton":
        return 0
    n_weights = store.n_features + (problems[0].bias > 0)
    if models == 1 and is_wide(settings, store, problems):
        return product_bytes(n_weights, sum(problem.n_outputs for problem in problems))
    return hessian_bytes(n_weights, len(problems), is_smooth(problems[0].loss))


def check_memory_of_products(settings: Settings, plan: MemoryPlan, missing: int) -> None:
    """Check that all rows stay in memory.

    Raises
    ------
    MemoryPlanError
        `missing` bytes are missing.
    """
    if missing > 0:
        least = plan.mem + int(1.02 * missing / (1 - SLACK))
        raise MemoryPlanError(
            f"--mem {format_size(plan.mem)} is too small {plan.task} with --solver newton, which "
            f"must keep all rows in memory here; use at least --mem {in_megabytes(least)}, or "
            "--solver dual",
            least,
        )


def piece_rows(store: BlockStore) -> int:
    """Return how many rows of a block are added to the sums at a time."""
    return max(_LEAST_PIECE, -(-store.n_rows // AUTO_BLOCKS))


def sample_rows(store: BlockStore, smooth: bool) -> int:
    """Return how many rows of the first block a method learns from before the first pass."""
    size = max(1, min(store.n_rows, piece_rows(store)))
    if smooth:
        return size
    # Each step of the interior point method visits these rows, and later those near a kink.
    return min(size, max(-(-store.n_rows // AUTO_BLOCKS), LARGE_SAMPLE * (store.n_features + 1)))


def near_bytes(settings: Settings, store: BlockStore, plan: MemoryPlan, n_problems: int) -> int:
    """Return the bytes of the rows near a kink; 0 for methods with a matrix that have none."""
    if settings.solver != "newton" or is_smooth(LOSSES[settings.loss]):
        return 0
    capacity = near_capacity(store, plan, n_problems, settings.intercept)
    rows = capacity + min(plan.part_rows, sample_rows(store, smooth=False))
    return n_problems * rows * _near_row(store)


def _near_row(store: BlockStore) -> int:
    """Return the bytes of a row near a kink."""
    return MARGIN_ROW + NONZERO_BYTES[store.value_type] * -(-store.nnz // store.n_rows)


def near_capacity(store: BlockStore, plan: MemoryPlan, n_problems: int, intercept: bool) -> int:
    """Return how many rows near a kink each problem can have."""
    sample = min(plan.part_rows, sample_rows(store, smooth=False))
    room = max(0, plan.left) // (n_problems * _near_row(store)) - sample
    # Alone an intercept may put all rows of the most frequent class at their kink.
    wanted = store.n_rows if intercept else _rows_near(store, sample)
    return max(1000, min(room, wanted))


def _rows_near(store: BlockStore, sample: int) -> int:
    """Return how many rows may be near a kink at the weights of a sample."""
    # The weights of a sample of n rows miss decision values by about the root of weights / n.
    share = min(_NEAR, _MISSED * math.sqrt((store.n_features + 1) / sample))
    return max(int(share * store.n_rows), _LEAST_NEAR * (store.n_features + 1))


def starts_with_newton(settings: Settings, store: BlockStore) -> bool:
    """Return whether Newton's method is expected to take less time than a few other passes."""
    loss = LOSSES[settings.loss]
    if newton_refusal(settings) or not is_smooth(loss) or not store.n_rows:
        return False
    if store.n_features > MOST_FEATURES or settings.warm_start is not None:
        return False
    labels = len(store.labels or [])
    problems = labels if labels > 2 else 1
    iterates = loss.kernel == "logistic"
    sample = sample_rows(store, smooth=True)
    work = Work(store.n_rows, store.nnz, store.n_features, problems, sample, iterates=iterates)
    few = work.dual(1, _FEW_ROUNDS * store.n_rows * problems)
    return few > _LEAST_WORK and work.newton() < few + _UNNOTICED


def work_of(store: BlockStore, problems: Sequence[AnyProblem]) -> Work:
    """Return what passes of a training cost."""
    first, outputs = problems[0], sum(problem.n_outputs for problem in problems)
    sample = sample_rows(store, is_smooth(first.loss))
    near = 0 if is_smooth(first.loss) else min(store.n_rows, _rows_near(store, sample))
    visits = _JOINT_VISITS if first.loss.joint else _VISITS[first.loss.squared]
    visits *= first.loss.joint or store.n_features > MOST_FEATURES
    weights, iterates = store.n_features + (first.bias > 0), first.loss.kernel == "logistic"
    together = (outputs if first.loss.joint else min(outputs, MANY)) if first.listed else 0
    return Work(
        store.n_rows,
        store.nnz,
        weights,
        outputs,
        sample,
        near,
        together,
        iterates,
        visits,
        joint=first.loss.joint,
    )
