"""The interface through which a job reports its progress."""

from typing import Any

__all__ = ["Progress"]


class Progress:
    """Receives the progress of a job.

    Subclass it to show the progress. This base class ignores all calls, but logs long waits.
    """

    _waits_for = ""

    def start(self, what: str, total: int | None, unit: str = "B") -> None:
        """Start a task of `total` units, or of unknown size if None."""

    def advance(self, done: int, **numbers: Any) -> None:
        """Report the units done so far, with numbers to show next to them."""

    def finish(self) -> None:
        """End the task."""

    def note(self, text: str) -> None:
        """Report a detail."""

    def stage(self, text: str) -> None:
        """Report the result of a stage, or something unusual."""

    def wait(self, why: str, seconds: float, is_over: bool = False) -> None:
        """Report the reason for a wait, once per second. This class logs it once."""
        if not is_over and why != self._waits_for:
            import logging  # slow to import

            self._waits_for = why
            logging.getLogger("sbm").warning("%s; this may take a minute", why)

    def row(self, record: dict[str, Any]) -> None:
        """Report the figures of a pass, including those of the test data if it was predicted."""

    def doubling(self, record: dict[str, Any]) -> None:
        """Report the progressive loss of a stream, each time its row count has doubled."""
