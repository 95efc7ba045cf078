"""Choices made during training: rounds per pass, blocks per pass, and the cache size.

Rounds. Cached rows are visited in every round of every block. About `VISITS` visits per pass work
best, whether as 2 rounds over 12 blocks or 1 round over 24. More visits polish what the next block
undoes. The first pass does one more round: every row is new, and a row that comes to rest is not
visited again. If the disk is slower than the solver, a pass does as many rounds as fit into the
loading time of the previous pass, so that the solver does not wait (the idea of the dual cached
loops of StreamSVM, Matsushima et al. 2012, in whole rounds). Only this choice depends on timing; it
is recorded in the log and the report, and ``--rounds 2,2,5`` repeats it exactly. After a warm start
at the same cost, cached rows are already near their optimum, so about `WARM_VISITS` visits per pass
are enough, also in the first pass.

Blocks. A warm start needs few passes, so one pass too many is expensive. If a certificate misses
the tolerance, the next pass visits only as many randomly chosen blocks as are needed if the gap
keeps shrinking at the same rate. Then the model is certified again.

Cache. Rows whose alpha is strictly inside its bounds are visited until the end; the others come to
rest. So with `auto` the next cache holds `ROOM` times as many rows as there were free alphas in the
last pass, limited by `MOST_FRAC` of the working set and by memory. This depends on counts only.
"""

import math
from collections.abc import Sequence

from sbm.engine.memory import BASE_FRAC
from sbm.plain import dataclass

__all__ = [
    "LARGE_SAMPLE", "LATE", "LEAST_PASSES", "NEWTON_PASSES", "PassCost", "Work", "choose_blocks",
    "choose_cache_rows", "choose_rounds", "foresee_passes", "hurried_rounds", "is_falling",
    "passes_left",
]  # fmt: skip

VISITS = 24
# If W moves on between passes: as many passes are enough, with half of the visits.
FEW_VISITS = 12
WARM_VISITS = 6
# Of each pass of several ranks; and of the first one of a single part, if rows at rest are skipped:
# 6 take a fifth more visits to the same gap.
FEW_ROUNDS = 2
MARGIN = 1.2  # safety factor on what is expected of passes that are planned
LATE = 6  # number of last gaps that the rate is fitted to
SLOWEST = 0.99  # the gap is assumed to shrink at least this fast per pass
FEW_LEFT = 20  # passes that a slow training is still expected to make
LEAST_PASS = 0.25  # share of a pass: the certificate after it reads all data
MOST_ROUNDS = 10
MOST_LIST_ROUNDS = 25  # for rows with lists: later rounds skip more of them and cost less
WHOLE_WORK = 2_000_000_000
MOST_WHOLE_ROUNDS = 50
# A later pass may take a fifth of the time so far: the default `max_passes` is then enough for
# trainings that need many rounds.
FEW_PASSES, GROWTH = 12, 1.2
LEAST_BYTES = 10_000_000  # per pass, for timing to matter; less is in the file cache anyway
LEAST_FRAC = 0.25
# What Newton's method usually needs: passes, fewer if it starts from the optimum of a large sample,
# steps on the sample, and steps of the interior point method for a sample or a pass.
NEWTON_PASSES, FEW_NEWTON_PASSES = 8, 3
SAMPLE_STEPS = 5
INTERIOR_STEPS = 15
LARGE_SAMPLE = 100  # rows per weight
MOMENT = 2e7  # nanoseconds
PASS_TIME = 5e6  # nanoseconds of a pass, whatever its size
LEAST_PASSES = 3  # before a switch to Newton's method
# Until then a pass takes about this share of the time of Newton's method, and each later one grows
# by this factor.
TRIAL_SHARE, TRIAL_GROWTH = 0.05, 1.3
ROOM = 1.5


@dataclass(frozen=True)
class PassCost:
    """The cost of a pass.

    Attributes
    ----------
    size : int
        Bytes read.
    disk, load, solve : float
        Seconds waiting for the disk, loading in total, and solving.
    """

    size: int
    disk: float
    load: float
    solve: float

    @property
    def is_behind_disk(self) -> bool:
        """Whether loading mostly waited for the disk, in a pass large enough to measure."""
        return self.solve > 0 and self.size >= LEAST_BYTES and self.disk > 0.5 * self.load


def choose_rounds(
    setting: str | int,
    blocks: int,
    before: Sequence[int] = (),
    last: PassCost | None = None,
    listed: bool = False,
    warm: bool = False,
    processes: int = 1,
    whole: int | None = None,
    screens: bool = False,
    moves: bool = False,
) -> int:
    """Return the rounds of the next pass.

    Parameters
    ----------
    setting : str or int
        A number; ``"auto"``; or one number per pass, ``"2,2,5"``, the last one for all later
        passes.
    blocks : int
        Steps per pass.
    before : sequence of int
        Rounds of the passes so far.
    last : PassCost, optional
        Cost of the last pass. Default: ignore timing.
    listed : bool
        Whether rows have lists of variables.
    warm : bool
        Whether the alphas come from an earlier training at the same cost.
    processes : int
        Number of ranks that add up their steps. With more than one: `FEW_ROUNDS`.
    whole : int, optional
        If one part has all rows, its nonzeros times outputs. Its rounds end at the tolerance; their
        number only bounds a pass to a few seconds, because a training can stop only between passes.
    screens : bool
        Whether rows at rest are skipped. Then the first pass of one part is short, because most
        rows may rest after it.
    moves : bool
        Whether W moves on between passes; see `sbm.solver.passline`.
    """
    if setting != "auto":
        numbers = [int(number) for number in str(setting).split(",")]
        return numbers[min(len(before), len(numbers) - 1)]
    if whole is not None:
        rounds = min(MOST_WHOLE_ROUNDS, max(1, WHOLE_WORK // max(1, whole)))
        if screens and not (before or warm or listed):
            return min(rounds, FEW_ROUNDS)
        return int(rounds * GROWTH ** max(0, len(before) - FEW_PASSES))
    if processes > 1:
        return FEW_ROUNDS
    visits = WARM_VISITS if warm else FEW_VISITS if moves else VISITS
    rounds = max(1, round(visits / blocks)) + (not before and not warm)
    if before and last is not None and last.is_behind_disk:
        rounds = max(rounds, int(last.load / (last.solve / before[-1])))
    return min(rounds, MOST_LIST_ROUNDS if listed else MOST_ROUNDS)


def hurried_rounds(last: int, left: float, passes: int) -> int:
    """Return the rounds with which a training needs no more passes than it may still make.

    Twice the rounds need about half of the passes, and little more work, if the working set is not
    too small.

    Parameters
    ----------
    last : int
        Rounds of the last pass.
    left : float
        Passes that are expected to be needed with as many.
    passes : int
        Passes that may be made.
    """
    return math.ceil(min(MOST_ROUNDS, MARGIN * last * left / max(1, passes)))


def choose_blocks(blocks: int, gap: float, tol: float, shrink: float) -> int:
    """Return the number of blocks to visit after a certificate that missed the tolerance.

    Parameters
    ----------
    blocks : int
        Steps in a whole pass.
    gap, tol : float
        Certified relative gap, and the tolerance.
    shrink : float
        Estimated factor by which the last whole pass reduced the gap.
    """
    if not 0 < shrink < 1:
        return blocks
    passes = math.log(MARGIN * gap / tol) / -math.log(shrink)
    return min(blocks, math.ceil(blocks * max(LEAST_PASS, passes)))


def passes_left(gaps: Sequence[float], tol: float) -> float | None:
    """Estimate the number of passes until the gap reaches the tolerance.

    A geometric series is fitted to the last gaps, because single gaps are noisy.

    Parameters
    ----------
    gaps : sequence of float
        Relative gaps of the passes so far.
    tol : float

    Returns
    -------
    float or None
        None if there are fewer than two gaps, or one is not a finite positive number.
    """
    if gaps and gaps[-1] <= 0:
        return 0.0
    slope = _slope(gaps)
    if slope is None:
        return None
    digits = math.log(gaps[-1]) - math.log(tol)  # the quotient may overflow
    return max(0.0, digits / -min(slope, math.log(SLOWEST)))


def foresee_passes(gaps: Sequence[float], tol: float) -> float | None:
    """Return `passes_left` if it can be trusted, for a person to read.

    A rate is a trend if it has made the estimate fall: if the gap falls more and more slowly, each
    estimate is larger than the ones before, and none of them is right.

    Parameters
    ----------
    gaps : sequence of float
        Relative gaps of the passes so far of one solver.
    tol : float

    Returns
    -------
    float or None
        None without a trend.
    """
    left = passes_left(gaps, tol)
    if left is None or left == 0.0:
        return left
    late = gaps[-LATE:]
    before = [passes_left(late[:k], tol) for k in range(2, len(late))]
    before.append(passes_left(gaps[:-1], tol))  # may begin a pass earlier
    known = [some for some in before if some is not None]
    slope = _slope(gaps)
    is_trend = slope is not None and slope < math.log(SLOWEST)
    return left if is_trend and left <= min(known, default=0.0) else None


def _slope(gaps: Sequence[float]) -> float | None:
    """Return the change of log(gap) per pass, if known."""
    late = gaps[-LATE:]
    if len(late) < 2 or not all(0 < gap < math.inf for gap in late):
        return None
    steps = [k - 0.5 * (len(late) - 1) for k in range(len(late))]  # np.polyfit reserves 30 MB
    slope = math.fsum(step * math.log(gap) for step, gap in zip(steps, late, strict=True))
    return slope / math.fsum(step * step for step in steps)


def is_falling(gaps: Sequence[float], tol: float, second_order: bool = False) -> bool:
    """Return whether as many passes as so far, or `FEW_LEFT`, are expected to reach the tolerance.

    The gaps of a second-order method may fall late, and then fast: for it, return whether one of
    the last gaps is the smallest.
    """
    if second_order:
        return min(gaps[-LATE:], default=0.0) < min(gaps[:-LATE], default=math.inf)
    left, slope = passes_left(gaps, tol), _slope(gaps)
    if left is None or slope is None:
        return True
    return slope < math.log(SLOWEST) and left <= max(FEW_LEFT, len(gaps))


@dataclass(frozen=True)
class Work:
    """What passes of both solvers cost, in nanoseconds.

    The constants were measured on one core; only their ratios matter.

    Attributes
    ----------
    rows, nnz, weights, problems : int
        Numbers of rows, their nonzeros, and weights of each problem.
    sample, near : int
        Rows that Newton's method starts from, and rows near a kink. Without any, the loss is
        smooth. Otherwise each pass is followed by solving these rows.
    together : int
        Number of problems whose variables of a row coordinate descent visits together, if many.
    iterates : bool
        Whether a visit of coordinate descent takes several evaluations of the loss.
    products : int
        Visits of all rows by a method without a matrix; 0 with a matrix.
    joint : bool
        Whether these visits, too, are of rows with the variables of all classes.
    """

    rows: int
    nnz: int
    weights: int
    problems: int
    sample: int
    near: int = 0
    together: int = 0
    iterates: bool = False
    products: int = 0
    joint: bool = False

    @property
    def _each(self) -> float:
        return self.nnz / max(1, self.rows)

    def dual(self, passes: float, visits: float) -> float:
        """Return the cost of passes of coordinate descent, each with a number of visits."""
        fixed = 90 if self.together or self.iterates else 30
        nonzero = 6 + self.together if self.together else 3
        return passes * (PASS_TIME + visits * (fixed + nonzero * self._each))

    def newton(self) -> float:
        """Return the cost of a training with Newton's method."""
        each, weights = self._each, self.weights
        pairs = 0.3 * weights**2 / 2 if each > 0.3 * weights else each**2 / 2
        read, factor = 100 + 6 * each, 0.5 * weights**3
        if self.joint:
            return self.dual(NEWTON_PASSES, self.products * self.rows / NEWTON_PASSES)
        if self.products:
            visits = self.problems * self.products
            return visits * (self.rows + 4 * self.nnz) + NEWTON_PASSES * PASS_TIME
        is_large = self.sample >= LARGE_SAMPLE * weights
        passes = FEW_NEWTON_PASSES if is_large else NEWTON_PASSES
        passes = 1 if self.sample >= self.rows else passes
        if self.near:
            solved = passes * self.near + self.sample
            cost = INTERIOR_STEPS * (solved * (read + pairs) + (passes + 1) * factor)
            cost += passes * self.rows * read
        else:
            visited = passes * self.rows + SAMPLE_STEPS * self.sample
            cost = visited * (read + pairs) + (passes + SAMPLE_STEPS) * factor
        return self.problems * cost + passes * PASS_TIME

    def trial_rounds(self, passes: int) -> int:
        """Return the rounds after which to compare both solvers, given the passes so far."""
        share = TRIAL_SHARE * TRIAL_GROWTH ** max(0, passes + 1 - LEAST_PASSES) * self.newton()
        visits = self.rows * -(-self.problems // max(1, self.together))
        return max(1, int(share / (self.dual(1, visits) - PASS_TIME)))

    def newton_pays(
        self, passes: float, visits: float, is_enough: bool = False, done: int = 0
    ) -> bool:
        """Return whether Newton's method is expected to take less time than coordinate descent.

        Parameters
        ----------
        passes, visits : float
            Passes that coordinate descent is expected to need, and visits in each of them.
        is_enough : bool
            Whether so many passes are allowed. If so, saving less than a moment does not count.
        done : int
            Passes so far. The more they cost, the more likely the expectation is too low.
        """
        other, spent = self.newton(), self.dual(done, visits)
        # Gaps of joint losses are far too large until variables are near the optimum, and then fall
        # at once. Waiting for that costs little beside the other method.
        if self.joint and spent < 0.1 * other:
            return False
        left = self.dual(passes, visits) * (1.0 + spent / other)
        return left > other + (MOMENT if is_enough else 0.0)


def choose_cache_rows(free_rows: int | None, part_rows: int, capacity: int) -> int:
    """Return the number of rows in the cache of the next pass with ``--cache-frac auto``.

    Parameters
    ----------
    free_rows : int or None
        Number of rows whose alphas are inside their bounds; None before the first pass.
    part_rows : int
        Rows of the largest block.
    capacity : int
        Number of rows that fit into memory.
    """
    if free_rows is None:
        wanted = int(part_rows * BASE_FRAC / (1 - BASE_FRAC))
    else:
        least = int(part_rows * LEAST_FRAC / (1 - LEAST_FRAC))
        wanted = max(least, int(ROOM * free_rows))
    return min(capacity, wanted)
