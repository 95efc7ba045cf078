"""What a run tells of itself, gathered from its log, its last commit and the model beside it.

A log has no checksum and is read as what it is, lines that anybody may have written: every figure
is checked before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sbm.errors import StoreError
from sbm.programs.streaming.arrivals import sources_at
from sbm.programs.training.setup import run_folder
from sbm.settings import Settings, format_size
from sbm.store import container
from sbm.store.blocks import MANIFEST
from sbm.store.files import open_own, reading
from sbm.store.manifest import parse
from sbm.store.run import LOG, RECORD, Run, runs_here

__all__ = ["BlockFigures", "PassFigures", "RunFigures", "read_run"]

# Where the time of a pass goes, one after the other; loading goes on beside all of it.
SECONDS = ("solve", "wait", "certify", "combine", "write")


@dataclass(frozen=True)
class PassFigures:
    """A pass, as its line in the log has it; None is what the line does not tell.

    Attributes
    ----------
    number, rounds : int
    elapsed : float
        Seconds since the training began, until the end of the pass.
    seconds : dict of str to float
        By `SECONDS`, and ``load``.
    dual : float
    estimate : float or None
        Of the relative gap.
    certificate : dict or None
        ``primal``, ``dual``, ``relative_gap``.
    accuracy, mse : float or None
        Of the test text.
    bytes_read, cached, free : int
        Bytes since the training began; cached rows, and those that are free.
    zero : int or None
        Cached rows at 0; None of a training with class blocks, which has no cache.
    ages : list of int
        Cached rows that came in this pass, the one before it, and so on.
    resident : int
        Bytes.
    """

    number: int
    rounds: int
    elapsed: float
    seconds: dict[str, float]
    dual: float
    estimate: float | None
    certificate: dict[str, float] | None
    accuracy: float | None
    mse: float | None
    bytes_read: int
    cached: int
    free: int
    zero: int | None
    ages: list[int]
    resident: int

    @property
    def accuracy_percent(self) -> float | None:
        """Accuracy on the test text."""
        return None if self.accuracy is None else 100 * self.accuracy

    @property
    def certified_gap(self) -> float | None:
        """The relative gap where it was certified."""
        return None if self.certificate is None else self.certificate["relative_gap"]

    @property
    def relative_gap(self) -> float | None:
        """Certified, else estimated."""
        return self.estimate if self.certificate is None else self.certified_gap


@dataclass(frozen=True)
class BlockFigures:
    """A block of a stream.

    Attributes
    ----------
    rows : int
        So far.
    elapsed : float
        Seconds so far.
    loss, accuracy : float or None
        How the rows so far were predicted, before they were learned.
    cached, resident : int
        Rows in the cache; bytes of memory.
    """

    rows: int
    elapsed: float
    loss: float | None
    accuracy: float | None
    cached: int
    resident: int

    @property
    def accuracy_percent(self) -> float | None:
        """Share of the rows so far that were predicted right."""
        return None if self.accuracy is None else 100 * self.accuracy


@dataclass(frozen=True)
class RunFigures:
    """A run of `sbm train` or `sbm stream`.

    Attributes
    ----------
    name : str
        What it was called by.
    folder : Path
    kind : {"train", "stream"}
    is_finished : bool
    passes : list of PassFigures
    blocks : list of BlockFigures
        Of a stream, which has no passes.
    settings : dict
    end : dict
        The report of a finished one, empty of others; of a stream also that of a stopped one.
    sources : list of dict
        Of the model; none as long as there is no model.
    processes : int
    committed : dict or None
        The certificate of the last commit.
    """

    name: str
    folder: Path
    kind: str
    is_finished: bool
    passes: list[PassFigures] = field(default_factory=list)
    blocks: list[BlockFigures] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    end: dict[str, Any] = field(default_factory=dict)
    sources: list[dict[str, Any]] = field(default_factory=list)
    processes: int = 1
    committed: dict[str, float] | None = None

    @property
    def certificate(self) -> dict[str, float] | None:
        """The last one; of a warm start that had nothing to do there is none in the log."""
        found = [one.certificate for one in self.passes if one.certificate is not None]
        return found[-1] if found else self.committed

    @property
    def mem(self) -> int:
        """The bound of memory, in bytes."""
        return Settings.of({"mem": self.settings["mem"]}).mem_bytes

    @property
    def peak(self) -> int:
        """Most bytes in memory; of an unfinished run, at the ends of passes or blocks."""
        if self.end:
            return int(self.end["peak_rss_bytes"])
        of_passes = (one.resident for one in self.passes)
        return max([*of_passes, *(one.resident for one in self.blocks)], default=0)

    def warnings(self) -> list[str]:
        """What somebody should know who looks at the figures."""
        told = []
        tol = float(self.settings.get("tol", 0.0))
        if not self.is_finished:
            told.append("It has not come to its end: figures are those of what was done so far.")
        if self.kind == "train" and self.is_finished and self.certificate is not None:
            if self.certificate["relative_gap"] > tol:
                told.append(
                    f"It did not converge: the certified relative gap is above the tolerance of "
                    f"{tol:g}. Raise --max-passes or --time-limit."
                )
            if self.end.get("visits_cut_short"):
                told.append(
                    "Visits of the last pass were cut short for want of memory; raise --mem."
                )
        if self.processes > 1:
            told.append(
                f"It was trained by {self.processes} processes: seconds, bytes, cache and memory "
                "are those of process 0."
            )
        if self.peak > self.mem:
            told.append(f"Its memory came to {format_size(self.peak)}, which is more than --mem.")
        return told


def read_run(path: str | Path) -> RunFigures:
    """Read what a run tells of itself.

    Parameters
    ----------
    path : str or Path
        A model, or the folder ``MODEL.run`` beside it.

    Returns
    -------
    RunFigures

    Raises
    ------
    StoreError
        There is no such run, it is not of `sbm train` or `sbm stream`, or it is damaged.
    """
    path = Path(path)
    folder = _folder_of(path)
    runs = runs_here(folder)
    processes = max(runs, default=1)
    home = runs[processes][0] if runs else folder
    record = Run.read(home) if (home / RECORD).exists() else {}
    kind = record.get("kind", "train")
    if kind not in ("train", "stream"):
        raise StoreError(
            f"{folder} is of sbm {kind}, which draws its own picture (--png); give the model that "
            "it trained"
        )
    lines = _read_log(home / LOG)
    try:
        return _figures(path, folder, kind, record, lines, processes)
    except _LineError as error:
        raise StoreError(
            f"{home / LOG}: line {error.line} is no line of a log ({error}); remove it to see the "
            "others"
        ) from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(
            f"{home / RECORD} is no record of a training ({error}); train again"
        ) from error


def _folder_of(path: Path) -> Path:
    """Return the folder of the run that is meant."""
    if path.is_dir():
        if (path / MANIFEST).exists():
            raise StoreError(f"{path} is a store; give a model that was trained on it")
        if runs_here(path) or (path / LOG).exists():
            return path
        raise StoreError(f"{path} is no run (it has no {RECORD}); give a model, or its MODEL.run")
    folder = run_folder(path)
    if folder.is_dir():
        return folder
    if path.exists():
        raise StoreError(
            f"{path} has no run beside it ({folder.name}), which holds the figures; train it again"
        )
    raise StoreError(f"{path} does not exist; give a model, or the MODEL.run beside it")


class _LineError(Exception):
    """A line of a log that is none."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line


def _read_log(path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Lines with their numbers; one that is cut off at the end is not there yet."""
    if not path.exists():
        return []
    found = []
    with reading(path), open_own(path) as file:
        for number, line in enumerate(file, 1):
            try:
                record = parse(line)
                if not isinstance(record, dict) or not isinstance(record.get("event"), str):
                    raise ValueError("it is no event")
            except ValueError as error:
                if not line.endswith(b"\n"):
                    break
                raise StoreError(
                    f"{path}: line {number} is no line of a log ({error}); remove it to see the "
                    "others"
                ) from None
            found.append((number, record))
    return found


def _figures(
    path: Path,
    folder: Path,
    kind: str,
    record: Mapping[str, Any],
    lines: list[tuple[int, dict[str, Any]]],
    processes: int,
) -> RunFigures:
    last = lines[-1][1] if lines else {}
    end = last if last.get("event") == "end" else record.get("report") or {}
    passes, blocks = [], []
    for number, line in lines:
        try:
            if kind == "train" and line["event"] == "pass":
                passes.append(_pass(line))
            elif kind == "stream" and line["event"] == "block":
                blocks.append(_block(line))
            elif line is end:
                _check_end(line)
        except (KeyError, TypeError, AttributeError) as error:
            raise _LineError(number, f"{error}") from error
        except ValueError as error:
            raise _LineError(number, str(error)) from error
    if end:
        _check_end(end)
    settings = record.get("settings") or Settings().to_dict()
    certificate = record.get("certificate")
    found = RunFigures(
        name=_name(path),
        folder=folder,
        kind=kind,
        is_finished=bool(end) and not end.get("stopped"),
        passes=passes,
        blocks=_one_behind_the_other(blocks),
        settings=dict(settings),
        end=dict(end),
        sources=_sources(path, folder, record),
        processes=processes,
        committed=None if certificate is None else _certificate(certificate),
    )
    _number(found.settings, "tol")
    assert found.mem > 0  # it raises what is said of a record
    return found


def _name(path: Path) -> str:
    name = path.name.removesuffix(".run").removesuffix(".model")
    return name or str(path)


def _number(record: Mapping[str, Any], name: str) -> float:
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1e300:
        raise ValueError(f"{name} is {str(value)[:40]}")
    return value


def _count(record: Mapping[str, Any], name: str) -> int:
    value = _number(record, name)
    if value < 0 or value != int(value) or value > 1 << 62:
        raise ValueError(f"{name} is {value}")
    return int(value)


def _maybe(record: Mapping[str, Any] | None, name: str) -> float | None:
    """Return a number that some lines do not tell."""
    return None if record is None or record.get(name) is None else _number(record, name)


def _maybe_count(record: Mapping[str, Any], name: str) -> int | None:
    return None if record.get(name) is None else _count(record, name)


def _pass(line: Mapping[str, Any]) -> PassFigures:
    seconds, certificate, test = line["seconds"], line["certificate"], line.get("test")
    if not isinstance(seconds, dict):
        raise ValueError(f"seconds is {str(seconds)[:40]}")
    ages = line.get("cached_ages", [])
    return PassFigures(
        number=_count(line, "pass"),
        rounds=_count(line, "rounds"),
        elapsed=max(0.0, _number(line, "elapsed")),
        seconds={name: max(0.0, _number(seconds, name)) for name in (*SECONDS, "load")},
        dual=_number(line, "dual"),
        estimate=_maybe(line, "estimated_relative_gap"),
        certificate=None if certificate is None else _certificate(certificate),
        accuracy=_maybe(test, "accuracy"),
        mse=_maybe(test, "mse"),
        bytes_read=_count(line, "bytes_read"),
        cached=_count(line, "cached_rows"),
        free=_count(line, "cached_free"),
        zero=_maybe_count(line, "cached_zero"),
        ages=[_count({"cached_ages": age}, "cached_ages") for age in ages],
        resident=_count(line, "resident_bytes"),
    )


def _certificate(found: Mapping[str, Any]) -> dict[str, float]:
    return {name: _number(found, name) for name in ("primal", "dual", "relative_gap")}


def _check_end(report: Mapping[str, Any]) -> None:
    """Refuse a report without the figures that are made use of."""
    _number(report, "peak_rss_bytes")
    _number(report["seconds"], "total")


def _block(line: Mapping[str, Any]) -> BlockFigures:
    return BlockFigures(
        rows=_count(line, "rows"),
        elapsed=max(0.0, _number(line, "elapsed")),
        loss=_maybe(line, "loss"),
        accuracy=_maybe(line, "accuracy"),
        cached=_count(line, "cached_rows"),
        resident=_count(line, "resident_bytes"),
    )


def _one_behind_the_other(blocks: list[BlockFigures]) -> list[BlockFigures]:
    """Let the seconds of a stream that was gone on with begin where it had stopped."""
    told: list[BlockFigures] = []
    before = last = 0.0
    for block in blocks:
        if block.elapsed < last:
            before += last
        last = block.elapsed
        told.append(BlockFigures(**{**vars(block), "elapsed": before + block.elapsed}))
    return told


def _sources(path: Path, folder: Path, record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what the model was made from, as it says itself; of a stream, as the commit does."""
    if record.get("kind") == "stream":
        return [dict(source) for source in sources_at(record["sources"])]
    model = folder.with_name(folder.name.removesuffix(".run")) if path == folder else path
    if model == folder or not model.is_file():
        return []
    meta = container.read(model, "model", lambda name: False, is_own=False).meta
    found = [source for source in meta["info"].get("sources", []) if isinstance(source, dict)]
    if not all(isinstance(source.get("name"), str) for source in found):
        raise StoreError(f"{model} is not a model that can be used (its sources); train it again")
    for source in found:
        _number(source, "rows")
    return found
