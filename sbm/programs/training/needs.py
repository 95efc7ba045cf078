"""The memory that a task needs: its weights and rows, those of its method, and the plan for all.

A second-order method needs a matrix of features x features, or all rows in memory; sparse models
need the margins of all rows and the columns of features.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace

from sbm.distributed.comm import SLICE, Replicas
from sbm.engine.machine import MPI, system_limit, usable_threads, within_limit
from sbm.engine.memory import AUTO_BLOCKS, SLACK, MemoryPlan, Shape, plan_training, row_place_bytes
from sbm.engine.pace import LARGE_SAMPLE
from sbm.engine.progress import Progress
from sbm.engine.sync import shared_bytes
from sbm.errors import MemoryPlanError
from sbm.programs.training.ranks import MANY
from sbm.programs.training.scales import FEATURE_BYTES
from sbm.programs.training.task import PROXIMAL_COPIES, Task, is_smooth
from sbm.solver.conjugate import preconditioner_bytes
from sbm.solver.problem import MultiProblem, OneClass
from sbm.solver.sums import hessian_bytes, product_bytes, way_bytes
from sbm.store.blocks import NONZERO_BYTES, BlockStore
from sbm.units import format_size, in_megabytes

__all__ = [
    "HELD_OUT_BYTES",
    "MOST_PIECES",
    "accelerates",
    "check_memory_of_products",
    "fits",
    "has_multipliers",
    "in_groups",
    "is_wide",
    "near_bytes",
    "near_capacity",
    "near_piece",
    "piece_rows",
    "plan_of",
    "rows_near",
    "sample_rows",
    "shape_of",
]  # fmt: skip

HELD_OUT_BYTES = 16_000_000  # for decision values; more rows would change little
# Memory of a sum over all ranks besides the array: ranges of the others, indices and values.
COMM_BYTES = 5 * 8 * SLICE

_HELD_OUT_ROW = 1  # its fold
_LEAST_PIECE, MOST_PIECES = 16_000, 64  # rows of a piece of a block; pieces
_MISSED = 5.0  # factor of safety
_SEARCH_ROW = 16  # bytes: a decision value, and its change
# Bytes of a row that is visited many times, besides its variables; and of each problem for which
# this happens at the same time.
_VISIT_ROW, _VISIT_AT_ONCE = 24, 24
_MULTIPLIERS_ROW = 104  # bytes of a row of the method of multipliers, besides its variables
_LISTS_ROW, _VARIABLES = 120, 48  # bytes of its list, and for each variable, with copies
_MOST_SHARE = 0.5  # of the memory, of the matrices
_NEAR = 0.25  # most share of the rows that are near a kink, if memory allows
_LEAST_NEAR = 150  # rows near a kink per weight, if there are as many


def plan_of(
    task: Task,
    bound: int | None = None,
    progress: Progress | None = None,
    reserved: int = 0,
    copies: int = 1,
) -> MemoryPlan:
    """Plan the memory of a training.

    Parameters
    ----------
    task : Task
    bound : int, optional
        Bytes. Default: the setting `mem`, or the limit of the system if that is less.
    progress : Progress, optional
        Receives a note if the limit of the system applies.
    reserved : int
        See `plan_training` and `plan_columns`.
    copies : int
        How many times to count the weights, to leave as much for the rows.

    Returns
    -------
    MemoryPlan

    Raises
    ------
    MemoryPlanError
        The bound is too small; the message has the smallest one that works.
    """
    settings, store, shape = task.settings, task.store, shape_of(task)
    shape = replace(shape, copies=copies * shape.copies)
    cache_frac = 0.0 if task.method == "newton" else settings.cache_frac

    def plan(mem: int) -> MemoryPlan:
        if task.method == "columns":
            from sbm.engine.columns import plan_columns

            return plan_columns(store, mem, shape, task.has_weights, settings.intercept, reserved)
        if task.method == "classes":
            from sbm.engine.byclass import plan_classes

            threads = usable_threads(settings.threads)
            return plan_classes(store, mem, shape, task.share.comm.size, threads, reserved)
        if not _may_be_lean(task):
            return plan_training(store, mem, cache_frac, shape, reserved)
        with suppress(MemoryPlanError):
            made = plan_training(store, mem, cache_frac, shape, reserved)
            if not made.is_crowded:
                return made
        lean = replace(shape, copies=copies)
        return replace(plan_training(store, mem, cache_frac, lean, reserved), is_lean=True)

    if bound is not None:
        return plan(bound)
    limit = system_limit()
    chosen = within_limit(plan, settings.mem_bytes, limit, Progress.of(progress).note)
    return chosen if limit is None else replace(chosen, mem=min(chosen.mem, limit.size))


def _may_be_lean(task: Task) -> bool:
    """Return whether one array of weights is enough if several would leave little for rows."""
    settings, share = task.settings, task.share
    is_alone = task.method == "dual" and task.models == 1 and share.comm.size == 1
    others = settings.validate, settings.warm_start
    suits = task.problems[0].listed and not task.may_be_proximal
    # With more classes, the variables of rows take more memory than the weights.
    is_few = sum(problem.n_outputs for problem in task.problems) < MANY
    return is_alone and suits and is_few and not any(others)


def in_groups(task: Task) -> Task:
    """Return a task whose one-vs-rest is in one group, unless all rows stay in memory.

    Two groups take twice as much memory besides the nonzeros, and visit each row twice. In memory
    two threads visit them in less time.
    """
    every = task.share.every
    n = sum(problem.n_outputs for problem in every)
    is_alone = task.share.comm.size == 1 and len(every) > 1
    if not is_alone or not isinstance(every[0], MultiProblem) or n >= MANY:
        return task
    one = replace(task, share=replace(task.share, every=[replace(every[0], n_outputs=n)]))
    with suppress(MemoryPlanError):
        return task if plan_of(task).is_whole else one
    return one


def fits(task: Task, bound: int | None = None, reserved: int = 0) -> bool:
    """Return whether a task fits into memory; all its rows, if its method needs them there."""
    try:
        plan = plan_of(task, bound, reserved=reserved)
    except MemoryPlanError:
        return False
    return not is_wide(task) or plan.missing(range(len(plan.parts)), reserved) <= 0


def shape_of(task: Task) -> Shape:
    """Return what the memory of a training depends on.

    With several models, rows have folds. With several ranks, each rank keeps the weights and
    alphas of the last sum, and rank 0 collects the weights of all.
    """
    settings, store, problems, share = task.settings, task.store, task.problems, task.share
    first, ranks = problems[0], share.adding.size
    # W, and a copy to screen and certify with; one-class adds the sum of all rows and mixtures; a
    # warm start adds the earlier W.
    is_one_class = isinstance(first, OneClass)
    copies = 5 if is_one_class else 2
    held_out = task.models > 1 or isinstance(settings.validate, float)
    shared = 0
    if ranks > 1 and task.method != "classes":
        shared = COMM_BYTES + sum(shared_bytes(task.n_weights, p.n_outputs) for p in problems)
    scaled = store.n_features * task.is_scaled
    accelerated = is_wide(task) and accelerates(task)
    return Shape(
        n_weights=task.n_weights,
        outputs=[problem.n_outputs for problem in problems],
        listed=first.listed,
        has_few=task.loss.has_few,
        copies=copies
        + (settings.warm_start is not None)
        + (ranks > 1)
        + (PROXIMAL_COPIES if task.may_be_proximal else int(task.may_have_line)),
        row_bytes=4 * (not first.classify)
        + 8 * task.has_weights
        + _HELD_OUT_ROW * held_out
        + _newton_row_bytes(task),
        more_bytes=HELD_OUT_BYTES * settings.calibrate
        + shared
        + 8 * scaled
        + 2 * store.names_bytes
        + (0 if store.memory is None else store.memory.reader_bytes)
        + share.collected_bytes(task.n_weights)
        + task.judge_bytes
        + MPI * (share.comm.size > 1 and isinstance(share.comm, Replicas)),  # not loaded here
        ranks=ranks,
        by_block=share.by_block,
        hessian_bytes=_bytes_of_matrices(task),
        first_bytes=max(
            row_place_bytes(store) if settings.weights is not None else 0, FEATURE_BYTES * scaled
        ),
        models=task.models,
        draws=settings.parts != "blocks" and task.method in ("dual", "classes"),
        may_join=(settings.parts == "auto" or accelerated) and not is_one_class,
        is_accelerated=accelerated,
        advice=task.advice or _advice(task),
    )


def _advice(task: Task) -> str:
    """Return what else to do if memory is too small; empty if there is nothing."""
    if task.method == "classes":
        return f"--launch {2 * task.share.comm.size}, which divides the weights among processes"
    if task.loss.joint:
        return "--loss hinge, which trains some classes at a time"
    has_matrix = task.method == "newton" and task.has_many_features
    is_only_with_matrix = task.settings.intercept and not is_smooth(task.loss)
    return "--bias 1 instead of --intercept" if has_matrix and is_only_with_matrix else ""


# ------------------------------------------------------------------- of second-order methods


def is_wide(task: Task) -> bool:
    """Return whether a matrix of features x features would be too large, and is not needed."""
    if task.method != "newton" or not task.shares_rows:
        return False
    if task.loss.joint:
        return True
    if not is_smooth(task.loss):
        return task.has_many_features and not task.settings.intercept
    size = hessian_bytes(task.n_weights, len(task.problems), True)
    return task.has_many_features or size > _MOST_SHARE * task.settings.mem_bytes


def accelerates(task: Task) -> bool:
    """Return whether training without a matrix is by accelerated coordinate descent.

    Conjugate gradients take a third to a tenth of its time where columns are of different size;
    elsewhere, as in text, it takes a quarter to a half of theirs.
    """
    if task.problems[0].intercept or task.share.adding.size > 1:
        return False
    return not is_smooth(task.loss) or task.loss.joint or not task.is_uneven


def has_multipliers(task: Task) -> bool:
    """Return whether the method of multipliers takes the place of accelerated descent.

    It does for losses with kinks where columns are of different size.
    """
    is_kinked = not is_smooth(task.loss) and not task.loss.joint
    return is_kinked and not task.problems[0].listed and task.is_uneven


def _newton_row_bytes(task: Task) -> int:
    """Return the bytes per row of a second-order training of one model, but near a kink."""
    if task.method != "newton" or task.models > 1:
        return 0
    if is_wide(task):
        from sbm.solver.sums import AT_ONCE

        if accelerates(task) and has_multipliers(task):
            return _MULTIPLIERS_ROW + 16 * len(task.problems)
        first, n = task.problems[0], len(task.problems)
        lists = _LISTS_ROW + _VARIABLES * first.n_outputs if first.listed else 0
        return _VISIT_ROW + _VISIT_AT_ONCE * min(n, AT_ONCE) + 8 * n + lists
    return _SEARCH_ROW if is_smooth(task.loss) else 0


def _bytes_of_matrices(task: Task) -> int:
    """Return the bytes of the matrices of a second-order training; 0 if there is none."""
    if task.method != "newton":
        return 0
    if is_wide(task):
        outputs = [problem.n_outputs for problem in task.problems]
        if accelerates(task):
            return way_bytes(task.n_weights, outputs) + preconditioner_bytes()
        return product_bytes(task.n_weights, sum(outputs)) + preconditioner_bytes()
    return hessian_bytes(task.n_weights, len(task.problems), is_smooth(task.loss))


def check_memory_of_products(plan: MemoryPlan, missing: int) -> None:
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


def near_bytes(task: Task, plan: MemoryPlan) -> int:
    """Return the bytes of the rows near a kink; 0 for methods with a matrix that have none."""
    if task.method != "newton" or is_smooth(task.loss):
        return 0
    from sbm.solver.newton import MARGIN_ROW

    store, n = task.store, len(task.problems)
    capacity = near_capacity(store, plan, n, task.settings.intercept)
    sample = min(plan.block_rows, sample_rows(store, smooth=False))  # it stays where it is
    rows = n * capacity + near_piece(plan)
    return max(rows * _near_row(store), MARGIN_ROW * sample)


def _near_row(store: BlockStore) -> int:
    """Return the bytes of a row near a kink, and of its copy."""
    from sbm.solver.newton import MARGIN_ROW

    return MARGIN_ROW + NONZERO_BYTES[store.value_type] * -(-store.nnz // store.n_rows)


def near_piece(plan: MemoryPlan) -> int:
    """Return how many rows of a block are looked at together for those near a kink."""
    return min(plan.block_rows, max(_LEAST_PIECE, -(-plan.block_rows // MOST_PIECES)))


def near_capacity(store: BlockStore, plan: MemoryPlan, n_problems: int, intercept: bool) -> int:
    """Return how many rows near a kink each problem can have."""
    room = (max(0, plan.left) // _near_row(store) - near_piece(plan)) // n_problems
    sample = min(plan.block_rows, sample_rows(store, smooth=False))
    # Alone an intercept may put all rows of the most frequent class at their kink.
    wanted = store.n_rows if intercept else rows_near(store, sample)
    return max(1000, min(room, wanted))


def rows_near(store: BlockStore, sample: int) -> int:
    """Return how many rows may be near a kink at the weights of a sample."""
    # The weights of a sample of n rows miss decision values by about the root of weights / n.
    share = min(_NEAR, _MISSED * math.sqrt((store.n_features + 1) / sample))
    return max(int(share * store.n_rows), _LEAST_NEAR * (store.n_features + 1))
