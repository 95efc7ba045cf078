"""The interface through which a job reports its progress."""

import sys
from typing import Any

__all__ = ["NotebookProgress", "Progress"]


class Progress:
    """Receives the progress of a job.

    Subclass it to show or record the progress; see ``docs/api.md``. This base class writes stages,
    passes and long waits to the logger ``sbm`` of the module `logging`.
    """

    _waits_for = ""

    @staticmethod
    def of(given: "Progress | None") -> "Progress":
        """Return the object that a caller gave, or else one that suits the environment."""
        if given is not None:
            return given
        return NotebookProgress() if "ipykernel" in sys.modules else Progress()

    def start(self, what: str, total: int | None, unit: str = "B") -> None:
        """Start a task of `total` units, or of unknown size if None."""

    def advance(self, done: int, **numbers: Any) -> None:
        """Report the units done so far, with numbers to show next to them."""

    def finish(self) -> None:
        """End the task."""

    def note(self, text: str) -> None:
        """Report a detail. This class logs it as DEBUG."""
        _log("debug", text)

    def stage(self, text: str) -> None:
        """Report the result of a stage, or something unusual. This class logs it as INFO."""
        _log("info", text)

    def wait(self, why: str, seconds: float, is_over: bool = False) -> None:
        """Report the reason for a wait, once per second. This class logs it once as WARNING."""
        if not is_over and why != self._waits_for:
            self._waits_for = why
            _log("warning", f"{why}; this may take a minute")

    def row(self, record: dict[str, Any]) -> None:
        """Report the figures of a pass, including those of the test data if it was predicted.

        This class logs the relative gap as INFO.
        """
        certificate = record.get("certificate")
        known = certificate or {"relative_gap": record.get("estimated_relative_gap")}
        gap = known["relative_gap"]
        if gap is not None:
            kind = "estimated" if certificate is None else "certified"
            _log("info", f"pass {record['pass']}: {kind} relative gap {gap:.2e}")

    def doubling(self, record: dict[str, Any]) -> None:
        """Report the progressive loss of a stream, each time its row count has doubled."""


def _log(level: str, text: str) -> None:
    import logging  # slow to import

    getattr(logging.getLogger("sbm"), level)("%s", text)


class NotebookProgress(Progress):
    """Shows tasks as bars of `tqdm.auto`, which are widgets in a notebook; also logs."""

    _bar: Any = None

    def start(self, what: str, total: int | None, unit: str = "B") -> None:
        """Show a new bar."""
        from tqdm.auto import tqdm

        self.finish()
        self._bar = tqdm(desc=what, total=total, unit=unit, unit_scale=True, leave=False)

    def advance(self, done: int, **numbers: Any) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(done - self._bar.n)

    def finish(self) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
