"""What a job reports while it runs."""

from typing import Any

__all__ = ["Progress"]


class Progress:
    """Receives the news of a job. The command line shows them; this base class logs long waits."""

    _waits_for = ""

    def start(self, what: str, total: int | None, unit: str = "B") -> None:
        """Begin a piece of work of a known size, or None."""

    def advance(self, done: int, **numbers: Any) -> None:
        """Tell how much is done in all, and figures to show beside it."""

    def finish(self) -> None:
        """End the piece of work."""

    def note(self, text: str) -> None:
        """Tell something once."""

    def stage(self, text: str) -> None:
        """Tell what one of several stages came to."""

    def wait(self, why: str, seconds: float, is_over: bool = False) -> None:
        """Report, once a second, why nothing happens. Goes to the log, as nobody watches it."""
        if not is_over and why != self._waits_for:
            import logging  # it takes a while

            self._waits_for = why
            logging.getLogger("sbm").warning("%s; this may take a minute", why)

    def row(self, record: dict[str, Any]) -> None:
        """Tell the figures of a pass, those of a test text included where it was predicted."""

    def doubling(self, record: dict[str, Any]) -> None:
        """Tell the progressive loss of a stream, whenever its rows have doubled."""
