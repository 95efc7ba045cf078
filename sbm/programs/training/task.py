"""A task: what to minimise, on which rows, by which method, and how ranks divide it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sbm.distributed.comm import Comm, SerialComm
from sbm.engine.engine import VisitOptions
from sbm.engine.kernels import (
    BY_CLASS,
    JUDGE,
    STORE,
    WEIGHTS,
    kernels_of,
    prepare,
    types_of,
    types_of_dtype,
)
from sbm.engine.machine import usable_threads
from sbm.engine.memory import MemoryPlan
from sbm.engine.problems import make_problems
from sbm.engine.progress import Progress
from sbm.errors import DataError
from sbm.losses import LOSSES, Loss
from sbm.plain import dataclass
from sbm.programs.training.ranks import WorkShare, only
from sbm.programs.training.scales import is_uneven
from sbm.settings import Settings
from sbm.solver.passline import fits_line
from sbm.solver.problem import AnyProblem, OneClass
from sbm.store.blocks import NONZERO_BYTES, BlockStore

if TYPE_CHECKING:
    from sbm.dataset.weights import AnyWeights

__all__ = ["MOST_FEATURES", "PROXIMAL_COPIES", "Task", "is_smooth"]

MOST_FEATURES = 5000  # with which a matrix of features x features is considered
# Visits of a row, per nonzero, that take as long as to factorize a matrix in each step of a
# training. Many more than are usually needed: where rows are dense and C is large, they are.
_VISITS = 4000
_SHARE = 0.3  # most of the memory that such rows take
# Arrays like W of a proximal term: Y, W before the last pass, and those of a moment. If they take
# more of the memory than this share, there is no term. The same for W of the pass before a move.
PROXIMAL_COPIES, _PROXIMAL_SHARE = 4, 0.05
# Joint losses keep W by class with many classes, with which it is faster if the rows fit in memory,
# with so many bytes of it for each nonzero; and with fewer if W would take a share of the memory
# otherwise. With few classes, W side by side is faster, and with a large C over several blocks it
# converges.
FEWEST_CLASSES, DENSE_COPIES, DENSE_SHARE = 50, 2, 0.5
_MANY_CLASSES, _NONZERO = 200, 64


def is_smooth(loss: Loss) -> bool:
    """Return whether a loss has a derivative everywhere."""
    return loss.squared or not loss.rests


@dataclass(frozen=True)
class Task:
    """What a training solves. Settings are resolved here once; planner and methods ask the task.

    Attributes
    ----------
    settings : Settings
        With the solver of this task, never ``auto``.
    store : BlockStore
    share : WorkShare
        The problems of the model, and those of this rank.
    tol : float
        Relative gap to reach.
    max_passes : int
    others : list of Problem, MultiProblem or OneClass
        Problems of other models that are trained at the same time: of calibration, or of other
        folds and values of C.
    models : int
        Number of models trained at the same time.
    judge_bytes : int
        Memory of what evaluates the weights: validation data, folds.
    advice : str
        What else to do if memory is too small; empty if there is nothing.
    """

    settings: Settings
    store: BlockStore
    share: WorkShare
    tol: float
    max_passes: int
    others: Sequence[AnyProblem] = ()
    models: int = 1
    judge_bytes: int = 0
    advice: str = ""

    @classmethod
    def of(
        cls,
        settings: Settings,
        store: BlockStore,
        comm: Comm | None = None,
        *,
        counts: Sequence[float] | None = None,
        classes: slice | None = None,
    ) -> Task:
        """Resolve the settings of a training.

        Parameters
        ----------
        settings : Settings
        store : BlockStore
        comm : Comm, optional
            Connects the ranks. Default: a single process.
        counts : sequence of float, optional
            Row weights per class, to balance classes. Default: their rows.
        classes : slice, optional
            Codes of the classes to train. Default: all.
        """
        settings = replace(settings, solver=settings.first_solver)
        every = make_problems(settings, store, counts)
        every = every if classes is None else only(every, classes)
        share = WorkShare.of(comm or SerialComm(), every, store)
        task = cls(settings, store, share, settings.tol, settings.max_passes)
        if not settings.calibrate:
            return task
        second = make_problems(settings, store, counts)
        return replace(task, others=second, models=2, advice="no --calibrate")

    @property
    def method(self) -> str:
        """The family of methods, a key of `sbm.methods.METHODS`."""
        return "classes" if self.is_by_class else self.settings.method

    @property
    def is_by_class(self) -> bool:
        """Whether W is kept by class, for joint losses of so many classes that it is mostly 0.

        Otherwise it has all weights of each feature side by side, which is faster with few classes.
        """
        n, settings = len(self.store.labels or []), self.settings
        if not self.loss.joint or settings.method != "dual" or n < FEWEST_CLASSES:
            return False
        if self.models > 1 or self.share.by_block:
            return False
        if settings.validate is not None or settings.warm_start is not None:
            return False
        mem = settings.mem_bytes
        if n >= _MANY_CLASSES and _NONZERO * self.store.nnz <= mem:
            return True
        return DENSE_COPIES * 8 * self.n_weights * n > DENSE_SHARE * mem

    @property
    def dividing(self) -> Comm:
        """Connects the ranks that the rows are divided among; none if each has all rows."""
        return SerialComm() if self.is_by_class else self.share.adding

    @property
    def problems(self) -> list[AnyProblem]:
        """The problems of this rank, of all models."""
        return [*self.share.problems, *self.others]

    @property
    def visiting(self) -> VisitOptions:
        """How rows are visited."""
        settings = self.settings
        return VisitOptions(
            usable_threads(settings.threads), settings.seed, settings.policy, settings.screen,
            settings.cache_frac == "auto", settings.max_passes,
        )  # fmt: skip

    @property
    def rounds(self) -> str | int:
        """Rounds of each pass: ``"auto"``, a number, or one for each pass."""
        return self.settings.rounds

    @property
    def l1_ratio(self) -> float:
        """The share of |W| in the penalty of a sparse model."""
        return self.settings.l1_ratio if self.settings.penalty == "elasticnet" else 1.0

    @property
    def loss(self) -> Loss:
        """The loss of all problems."""
        return LOSSES[self.settings.loss]

    @property
    def n_weights(self) -> int:
        """Weights of a model with one output."""
        return self.store.n_features + (self.problems[0].bias > 0)

    @property
    def has_many_features(self) -> bool:
        """Whether a matrix of features x features is not considered.

        That is with more than `MOST_FEATURES`, and with fewer if to factorize the matrix takes
        longer than to visit all rows many times, which must be possible: in memory, by one process.
        """
        n, store = self.store.n_features, self.store
        if n > MOST_FEATURES:
            return True
        is_alone = self.share.comm.size == 1 and not self.settings.calibrate
        room = NONZERO_BYTES[store.value_type] * store.nnz <= _SHARE * self.settings.mem_bytes
        if not is_alone or not room or self.settings.intercept:
            return False
        return n**3 > _VISITS * (store.n_rows + store.nnz)

    @cached_property
    def is_uneven(self) -> bool:
        """Whether some columns are so large that coordinate descent is slow, as far as is seen."""
        store = self.store
        if store.value_type == "ones" or self.is_scaled:
            return False
        prepare("reading", STORE, types_of_dtype(store.manifest["dtype"]), Progress())
        return is_uneven(store)

    @property
    def may_be_proximal(self) -> bool:
        """Whether passes over blocks may have a proximal term, whose arrays are small enough."""
        store, outputs = self.store, sum(problem.n_outputs for problem in self.problems)
        size = PROXIMAL_COPIES * 8 * self.n_weights * outputs
        is_small = size <= _PROXIMAL_SHARE * self.settings.mem_bytes
        is_small = is_small and self.settings.loss != "one_class"
        return self.method == "dual" and is_small and store.value_type != "ones"

    @property
    def may_have_line(self) -> bool:
        """Whether passes over blocks may be followed by moves; see `sbm.solver.passline`.

        Blocks as stored are for the algorithm of the paper.
        """
        size = 8 * self.n_weights * len(self.problems)
        is_small = size <= _PROXIMAL_SHARE * self.settings.mem_bytes
        suits = all(fits_line(problem, self.has_weights) for problem in self.problems)
        suits = suits and self.settings.parts != "blocks"
        return self.method == "dual" and is_small and self.share.comm.size == 1 and suits

    @property
    def has_weights(self) -> bool:
        """Whether rows have weights, from a file or in the store."""
        return self.settings.weights is not None or self.store.has_weights

    @property
    def is_scaled(self) -> bool:
        """Whether features are scaled."""
        return self.settings.scale != "none"

    @property
    def shares_rows(self) -> bool:
        """Whether all rows are those of every model: none are held out."""
        return self.models == 1 and not isinstance(self.settings.validate, float)

    def read_weights(self, folder: Path, progress: Progress) -> AnyWeights | None:
        """Read the row weights, if any, into the order of the store; files go into `folder`.

        Raises
        ------
        DataError
            The file is missing or invalid.
        """
        if not self.has_weights:
            return None
        # Most trainings have no weights.
        from sbm.dataset.weights import RowWeights, StoredWeights

        weights: AnyWeights
        if self.settings.weights is None:
            weights = StoredWeights(self.store)
        elif self.store.has_weights:
            raise DataError(f"{self.store.name} has row weights; leave out --weights")
        else:
            prepare("reading weights", WEIGHTS, types_of_dtype("float64"), progress)
            weights = RowWeights(self.store, self.settings.weights, folder)
        for problem in self.problems:
            if isinstance(problem, OneClass):
                problem.total = weights.total
        return weights

    def prepare_kernels(
        self, plan: MemoryPlan, staying: Collection[int], progress: Progress, summed: bool = False
    ) -> None:
        """Compile what the passes of a training call.

        Parameters
        ----------
        plan : MemoryPlan
        staying : collection of int
            The parts that stay in memory.
        progress : Progress
        summed : bool
            The steps of several processes are added up.
        """
        store = self.store
        kernels = kernels_of(self.settings, self.problems, plan.is_whole, summed)
        if self.method == "classes":
            kernels = BY_CLASS
        if store.memory is None or len(staying) < len(plan.parts):
            kernels += STORE
        prepare("training", kernels, types_of(self.problems, store.value_type, summed), progress)
        if self.models > 1:
            prepare("validating", JUDGE, types_of_dtype(store.manifest["dtype"]), progress)

    def class_counts(self, weights: AnyWeights | None) -> list[float] | None:
        """Return the row weight per class for balanced class weights; None to use row counts."""
        if weights is None or self.settings.class_weight != "balanced":
            return None
        return weights.class_totals(self.store)
