"""The interface through which a job reports its progress."""

import importlib.util
import sys
from typing import Any

from sbm.units import format_size

__all__ = ["NotebookProgress", "Progress", "pass_line", "pass_title", "score_text"]


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
    """Shows bars of tqdm, as widgets if ipywidgets is there, and the table of passes; also logs."""

    _bar: Any = None
    _titled = False

    def start(self, what: str, total: int | None, unit: str = "B") -> None:
        """Show a new bar."""
        self.finish()
        self._bar = _bars()(desc=what, total=total, unit=unit, unit_scale=True, leave=False)

    def advance(self, done: int, **numbers: Any) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(done - self._bar.n)

    def finish(self) -> None:
        """Close the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def row(self, record: dict[str, Any]) -> None:
        """Show the figures of a pass, as `sbm train` does on a terminal."""
        super().row(record)
        lines = [pass_line(record) + score_text(record.get("validation"))]
        if not self._titled:
            self._titled = True
            lines.insert(0, pass_title(record))
        _bars().write("\n".join(lines))


def _bars() -> Any:
    """Return the class of bars; without ipywidgets, `tqdm.auto` would warn."""
    if importlib.util.find_spec("ipywidgets") is None:
        from tqdm import tqdm
    else:
        from tqdm.auto import tqdm
    return tqdm


def pass_title(record: dict[str, Any]) -> str:
    """Return the titles of the columns of `pass_line`."""
    return f"pass  seconds  {_gap_title(record)}  passes left      visits   memory"


def _gap_title(record: dict[str, Any]) -> str:
    return f"gap (tol {record['tol']:g})".rjust(15)


def pass_line(record: dict[str, Any]) -> str:
    """Format the columns that are always shown; ~ marks estimates."""
    certificate, gap = record["certificate"], record["estimated_relative_gap"]
    shown = "-" if gap is None else f"~{gap:.1e}"
    if certificate:
        shown = f"{certificate['relative_gap']:.1e}"
    left = record.get("passes_left")
    to_go = "-" if left is None or certificate else f"~{left:.0f}" if left < 100 else ">99"
    return (
        f"{record['pass']:4d} {record['elapsed']:8.2f} "
        f"{shown:>{len(_gap_title(record)) + 1}} {to_go:>12} "
        f"{record['visits']:11,} {format_size(record['resident_bytes']):>8}"
    )


def score_text(validation: dict[str, Any] | None) -> str:
    """Format the score on the validation data, which follows the other columns."""
    if validation is None:
        return ""
    return f"  {validation['metric']} {validation['score']:.6g}"
