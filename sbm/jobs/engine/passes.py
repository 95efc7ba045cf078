"""A pass at work: its order, its totals, the block that is visited and the one that comes next."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.alphas import Alphas
from sbm.rows import Rows
from sbm.solver.cache import Evicted
from sbm.solver.step import Screen, Totals

__all__ = ["Coming", "Own", "Pass", "Seconds", "Visit"]


@dataclass
class Seconds:
    """Where the time went, in seconds. Loading overlaps with solving; waiting does not.

    Attributes
    ----------
    disk, load, wait, solve, certify, combine, write : float
    """

    disk: float = 0.0
    load: float = 0.0
    wait: float = 0.0
    solve: float = 0.0
    certify: float = 0.0
    combine: float = 0.0
    write: float = 0.0

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Add the time spent inside to one of the entries."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, name, getattr(self, name) + time.perf_counter() - begin)


@dataclass(frozen=True)
class Own:
    """What is known of the next block for one learner before the block is loaded.

    `marks` are those of the rows to visit, where these were found before a commit.
    """

    alpha: Alphas
    screen: Screen | None = None
    marks: npt.NDArray[np.bool_] | None = None

    def moving(self, block: int, evicted: Evicted | None) -> npt.NDArray[np.bool_] | None:
        """Which rows to visit, None for all; rows evicted since are taken over and visited."""
        late: npt.NDArray[np.int32] | slice = slice(0)
        if evicted is not None:
            mine = np.flatnonzero(evicted.home == block)
            late = evicted.row[mine]
            self.alpha.put(late, evicted.alpha.take(mine))
        if self.screen is None:
            return self.marks
        self.screen.moving[late] = True
        return self.screen.moving


@dataclass(frozen=True)
class Visit:
    """A loaded block.

    Attributes
    ----------
    block : int
    rows : Rows
    folds : ndarray, shape (n_rows,), uint8, or None
    alpha : dict of int to Alphas
        By number of the learner; those of its cached rows are in its cache.
    """

    block: int
    rows: Rows
    folds: npt.NDArray[np.uint8] | None
    alpha: dict[int, Alphas]


@dataclass(frozen=True)
class Coming:
    """The next block before it is loaded: folds of its rows, and what each learner knows."""

    block: int
    folds: npt.NDArray[np.uint8] | None
    own: dict[int, Own]

    def visit(self, rows: Rows) -> Visit:
        """Return the block as it was loaded."""
        return Visit(self.block, rows, self.folds, {k: own.alpha for k, own in self.own.items()})


@dataclass
class Pass:
    """An outer iteration at work.

    Attributes
    ----------
    number : int
        From 1.
    order : list of int
        Its blocks; all of them but where it is a part of a pass.
    is_part : bool
    done : int
        How many blocks are done.
    stretches : int
        How many stretches are done: alone each is a block; of several processes each ends with a
        sync, when they add up what they did.
    totals : dict of int to Totals
        Of each learner.
    free : Counter
        Rows with a variable inside its bounds that are not cached, of each learner.
    """

    number: int
    order: list[int]
    is_part: bool
    done: int = 0
    stretches: int = 0
    totals: dict[int, Totals] = field(default_factory=dict)
    free: Counter[int] = field(default_factory=Counter)

    def record(self) -> dict[str, Any]:
        """All of it as JSON; `of` undoes it."""
        totals = {k: asdict(one) for k, one in self.totals.items()}
        return {**vars(self), "totals": totals, "free": dict(self.free)}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Pass:
        """Undo `record`."""
        totals = {int(k): Totals(**one) for k, one in record["totals"].items()}
        free = Counter({int(k): int(n) for k, n in record["free"].items()})
        return cls(**{**record, "totals": totals, "free": free})
