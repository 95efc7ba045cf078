"""What a section of the torture run tried, and what went wrong."""

import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

SHOW_EVERY = 500  # cases

Tell = Callable[[str], None]  # is told how far it is
# Runs so many cases of a seed in a folder, or (the last argument) one of them alone.
Section = Callable[..., "Tally"]


class WrongError(Exception):
    """A case failed; the message has the reason."""


@dataclass
class Tally:
    """The outcome of one section of `scripts/torture/__main__.py`."""

    what: str  # the section's name: kills, faults, flips, ..
    tried: int = 0  # cases that were run
    # one text per failed case, with the seed and the number that replay it
    failures: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)  # counts by kind, for example by command

    def count(self, group: str, kind: str, n: int = 1) -> None:
        """Add to the count of a kind in one group of figures."""
        counts = self.figures.setdefault(group, {})
        counts[kind] = counts.get(kind, 0) + n

    def try_each(
        self, cases: Iterable[Any], attempt: Callable[[Any], Iterable[str]],
        tell: Tell, label: str = "{}",
    ) -> None:  # fmt: skip
        """Run cases; what ``attempt`` returns is a failure, and an exception too.

        A failure begins with the label, in which ``{}`` stands for the case.
        """
        for case in cases:
            self.tried += 1
            try:
                wrong = list(attempt(case))
            except WrongError as error:
                wrong = [str(error)]
            except Exception as error:  # whatever it is, it is a failure of the case
                wrong = [f"{error!r} {traceback.format_exc(limit=-3)}".rstrip()]
            if wrong:
                self.failures.append(f"{label.format(case)}: {'; '.join(wrong)}")
                tell(self.failures[-1])
            if self.tried % SHOW_EVERY == 0:
                tell(f"{self.what}: {self.tried:,} cases, {len(self.failures)} failures")
