"""What a section of the torture run tried, and what went wrong."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Tally:
    """The outcome of one section of `scripts/torture/__main__.py`.

    Attributes
    ----------
    what : str
        The section's name: kills, faults, flips or fuzz.
    tried : int
        Cases that were run.
    failures : list of str
        One text a case that went wrong; it holds the seed and the number of the case, which replay
        it.
    figures : dict
        Counts by kind, for example by command.
    """

    what: str
    tried: int = 0
    failures: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def count(self, group: str, kind: str, n: int = 1) -> None:
        """Add to the count of a kind in one group of figures."""
        counts = self.figures.setdefault(group, {})
        counts[kind] = counts.get(kind, 0) + n
