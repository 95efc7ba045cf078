"""Foresee what the sums of several ranks cost: their number, bytes and seconds.

The numbers of sums, and how they are sent, follow `Combiner` and `MpiComm`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sbm.distributed.comm import PAIR_BYTES, SMALL
from sbm.engine.sync import BUCKETS, DENSE, MOST_LISTED, frequent_of, sums_of

__all__ = ["LATENCY", "MORE_WORK", "RATE", "Exchange"]

# Rounds and visits of N ranks are those of one times N to the power of these: at best, likely, and
# if the rows have few features.
MORE_WORK = -0.3, 0.2, 0.7
# Seconds of a message, and bytes per second between ranks: on one machine, likely, and in a slow
# network.
LATENCY, RATE = (2e-5, 5e-5, 5e-4), (2e9, 1e9, 1e8)
WEIGHT_SECONDS = 1e-8  # to add up a weight, besides sending it
SMALL_MESSAGES = 2  # with a sum of all weights


@dataclass(frozen=True)
class Exchange:
    """The sums of ranks that train one model.

    Attributes
    ----------
    ranks : int
    weights, outputs : int
        Rows and columns of W.
    nnz : int
        Nonzeros of the busiest rank in a round.
    """

    ranks: int
    weights: int
    outputs: int
    nnz: int

    @property
    def sums(self) -> tuple[int, int]:
        """Sums of a round: of the frequent weights, and of all."""
        n, every = sums_of(self.nnz)
        return n, -(-n // every)

    def bytes_sent(self, changed: float) -> float:
        """Return the bytes that a rank sends in a round.

        Parameters
        ----------
        changed : float
            Nonzeros of the rows that a rank updates in the round; infinity: all weights change.
        """
        (often, full), others = self.sums, self.ranks - 1
        numbers = min(frequent_of(self.outputs), self.weights) * self.outputs + BUCKETS
        frequent = often * 8.0 * numbers * (others if numbers <= SMALL else 2 * others / self.ranks)
        return frequent + full * self._bytes_of_all(changed / full)

    def _bytes_of_all(self, changed: float) -> float:
        """Return the bytes that a rank sends in a sum of all weights."""
        others, n, outputs = self.ranks - 1, self._different(changed), self.outputs
        most = min(self.weights, MOST_LISTED // (self.ranks * outputs))
        if changed <= DENSE * self.weights / self.ranks and n <= most:
            return others * n * (4 + 8 * outputs)
        union, every = self._different(self.ranks * changed), 8.0 * self.weights * outputs
        pairs = [PAIR_BYTES * outputs * some for some in (n, union)]
        return others / self.ranks * sum(one if 2 * one < every else every for one in pairs)

    def _different(self, changed: float) -> float:
        """Return how many weights some nonzeros change if they are spread evenly."""
        return self.weights * -math.expm1(-changed / max(1, self.weights))

    def seconds(self, rounds: float, sent: float, latency: float, rate: float) -> float:
        """Return the seconds that the sums of some rounds take in a rank, with these bytes."""
        often, full = self.sums
        messages, added = often + SMALL_MESSAGES * full, full * self.weights * self.outputs
        return rounds * (messages * latency + added * WEIGHT_SECONDS) + sent / rate
