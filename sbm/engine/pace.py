"""What is chosen while training runs: rounds, by the disk; the cache, by the free alphas.

Rounds. The rows of the cache are visited in every round of every block, and about `VISITS` times a
pass is best, whether by 2 rounds over each of 12 blocks or by 1 over 24. More would polish what the
next block undoes. The first pass does one more: there every row is new, and a row that it brings to
rest is not visited again. Where the disk does not keep up, a pass does as many rounds as took the
time of loading in the pass before it, so that the solver need not wait (the aim of the dual cached
loops of StreamSVM, Matsushima et al. 2012, in whole rounds). Only there the clock has a say; the
choice is in the log and in the report, and ``--rounds 2,2,5`` repeats it exactly. After a warm
start at the same cost, cached rows are near their optimum already: about `WARM_VISITS` times a pass
will do, in the first one, too.

Blocks. After such a start there are few passes, and a whole one too many costs a good part of the
work. Where a certificate fell short, the next pass goes over as many blocks, chosen at random, as
are needed if the gap keeps shrinking as it did; then it is certified again.

Cache. Rows whose alpha lies inside its bounds are visited again and again until the end; the others
come to rest. So with `auto` the cache of the next pass holds `ROOM` times as many rows as alphas
were free in the last one, no more than `MOST_FRAC` of the working set and no more than fits the
memory. This uses counts only.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sbm.engine.memory import BASE_FRAC

__all__ = ["PassCost", "choose_blocks", "choose_cache_rows", "choose_rounds", "passes_left"]

VISITS = 24
WARM_VISITS = 6
MARGIN = 1.2  # of the gap to be reached in part of a pass
LATE = 6  # gaps that tell how fast it shrinks
SLOWEST = 0.99  # a gap that does not shrink will, so slowly at least
LEAST_PASS = 0.25  # a certificate costs reading everything
MOST_ROUNDS = 10
MOST_LIST_ROUNDS = 25  # of rows with lists: later rounds leave out more of them, and cost less
LEAST_BYTES = 10_000_000  # of a pass for the clock to have a say; less lies in memory anyway
LEAST_FRAC = 0.25
ROOM = 1.5


@dataclass(frozen=True)
class PassCost:
    """What a pass took.

    Attributes
    ----------
    size : int
        Bytes read.
    disk, load, solve : float
        Seconds: waiting for the disk, loading in all, solving.
    """

    size: int
    disk: float
    load: float
    solve: float

    @property
    def is_behind_disk(self) -> bool:
        """Whether loading waited mostly for the disk, in a pass that is large enough to say so."""
        return self.solve > 0 and self.size >= LEAST_BYTES and self.disk > 0.5 * self.load


def choose_rounds(
    setting: str | int,
    blocks: int,
    before: Sequence[int] = (),
    last: PassCost | None = None,
    listed: bool = False,
    warm: bool = False,
    processes: int = 1,
) -> int:
    """Return the rounds of the next pass.

    Parameters
    ----------
    setting : str or int
        A number; numbers of the passes, ``"2,2,5"``, the last one for all that follow; ``"auto"``.
    blocks : int
        Steps of a pass.
    before : sequence of int
        Rounds of the passes so far.
    last : PassCost, optional
        What the last pass took; None: it does not matter.
    listed : bool
        Whether rows have lists of variables.
    warm : bool
        Whether alphas are those of an earlier training at the same cost.
    processes : int
        Of several that add up what they do each sees a part of the rows: it does not pay to solve
        that part well before the others are heard.
    """
    if setting != "auto":
        numbers = [int(number) for number in str(setting).split(",")]
        return numbers[min(len(before), len(numbers) - 1)]
    if processes > 1:
        return 1
    rounds = max(1, round((WARM_VISITS if warm else VISITS) / blocks)) + (not before and not warm)
    if before and last is not None and last.is_behind_disk:
        rounds = max(rounds, int(last.load / (last.solve / before[-1])))
    return min(rounds, MOST_LIST_ROUNDS if listed else MOST_ROUNDS)


def choose_blocks(blocks: int, gap: float, tol: float, shrink: float) -> int:
    """Return how many blocks a pass goes over that follows a certificate which fell short.

    Parameters
    ----------
    blocks : int
        Steps of a whole pass.
    gap, tol : float
        The certified relative gap, and the one to reach.
    shrink : float
        Share of the gap that the last whole pass left, by its estimate.
    """
    if not 0 < shrink < 1:
        return blocks
    passes = math.log(MARGIN * gap / tol) / -math.log(shrink)
    return min(blocks, math.ceil(blocks * max(LEAST_PASS, passes)))


def passes_left(gaps: Sequence[float], tol: float) -> float | None:
    """Return how many passes a gap will take to the tolerance if it shrinks as in the last ones.

    The last gaps are fitted by a geometric series, as single ones are noisy.

    Parameters
    ----------
    gaps : sequence of float
        Relative gaps of the passes so far; of fewer than two, or of one beyond a float64, nothing
        follows, and it is None.
    tol : float
    """
    if gaps and gaps[-1] <= 0:
        return 0.0
    late = gaps[-LATE:]
    if len(late) < 2 or not all(0 < gap < math.inf for gap in late):
        return None
    slope = float(np.polyfit(range(len(late)), np.log(late), 1)[0])
    digits = math.log(gaps[-1]) - math.log(tol)  # the quotient may be beyond a float64
    return max(0.0, digits / -min(slope, math.log(SLOWEST)))


def choose_cache_rows(free_rows: int | None, part_rows: int, capacity: int) -> int:
    """Return how many rows the cache of the next pass may hold with ``--cache-frac auto``.

    Parameters
    ----------
    free_rows : int or None
        Rows of the whole data whose alphas are inside their bounds; None before the first pass.
    part_rows : int
        Rows of the largest block.
    capacity : int
        Rows that there is memory for.
    """
    if free_rows is None:
        wanted = int(part_rows * BASE_FRAC / (1 - BASE_FRAC))
    else:
        least = int(part_rows * LEAST_FRAC / (1 - LEAST_FRAC))
        wanted = max(least, int(ROOM * free_rows))
    return min(capacity, wanted)
