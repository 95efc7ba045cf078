"""Figures of runs, read from the log, the last checkpoint and the model.

A log has no checksum and may have been edited, so every number is checked before use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any, TypeVar

from sbm.errors import StoreError
from sbm.plain import dataclass
from sbm.settings import Settings
from sbm.store import container
from sbm.store.blocks import MANIFEST
from sbm.store.files import open_own, reading
from sbm.store.records import parse
from sbm.store.run import LOG, RECORD, Run, run_folder, runs_here, sources_at
from sbm.units import format_size

T = TypeVar("T")
Event = dict[str, Any]
# Consecutive parts of the time of a pass. Blocks load in the background of all of them.
SECONDS = ("solve", "wait", "certify", "combine", "write")


@dataclass(frozen=True)
class PassFigures:
    """One pass of a training."""

    number: int
    rounds: int
    solver: str
    elapsed: float  # seconds from the start of the training to the end of the pass
    seconds: dict[str, float]  # by `SECONDS`, and ``load``
    dual: float
    estimate: float | None  # estimated relative gap
    certificate: dict[str, float] | None  # ``primal``, ``dual``, ``relative_gap``
    metric: str  # of the validation data; empty without
    score: float | None
    bytes_read: int  # since the start of the training
    # cached, free, zero: cached rows, and those among them that are free and at 0
    cached: int
    free: int
    zero: int
    weights: float | None  # weights that are not 0, of a sparse model
    resident: int  # bytes of memory at the end of the pass

    @property
    def certified_gap(self) -> float | None:
        """The certified relative gap."""
        return None if self.certificate is None else self.certificate["relative_gap"]

    @property
    def primal(self) -> float | None:
        """The certified primal value."""
        return None if self.certificate is None else self.certificate["primal"]

    @property
    def relative_gap(self) -> float | None:
        """The certified relative gap, or else the estimate."""
        return self.estimate if self.certificate is None else self.certified_gap


@dataclass(frozen=True)
class BlockFigures:
    """One block of a stream: totals up to its end."""

    rows: int
    elapsed: float  # seconds
    # loss, accuracy: means over rows predicted before they were learned; accuracy is in percent
    loss: float | None
    accuracy: float | None
    # cached, resident: rows in the cache, bytes of memory
    cached: int
    resident: int


@dataclass(frozen=True)
class RunFigures:
    """A run of `sbm train` or `sbm stream`."""

    name: str
    folder: Path
    kind: str  # one of "train", "stream"
    is_finished: bool
    processes: int = 1
    passes: list[PassFigures] = field(default_factory=list)  # empty for streams
    blocks: list[BlockFigures] = field(default_factory=list)  # empty for trainings
    settings: dict[str, Any] = field(default_factory=dict)
    # totals of the final report, with ``seconds``. Empty if the run has none.
    end: dict[str, float] = field(default_factory=dict)
    # ``name``, ``rows`` and, if known, ``bytes`` and ``sha256``. Empty without a model.
    sources: list[dict[str, Any]] = field(default_factory=list)
    # the last one, or that of the best pass if there is validation data
    certificate: dict[str, float] | None = None
    is_early: bool = False  # whether the training ended because the score did not improve
    # points of the curves ``roc`` and ``pr`` on the validation data, if there are any
    curves: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)  # the store, or what was streamed
    changed: float = 0.0  # when the log was last written, in seconds since 1970

    @property
    def tol(self) -> float:
        """The relative gap to reach."""
        return float(self.settings["tol"])

    @property
    def mem(self) -> int:
        """The memory bound in bytes."""
        return Settings.of({"mem": self.settings["mem"]}).mem_bytes

    @property
    def peak(self) -> int:
        """Peak memory in bytes; for an unfinished run, the peak at the ends of passes or blocks."""
        if self.end:
            return int(self.end["peak_rss_bytes"])
        found = [one.resident for one in self.passes] + [one.resident for one in self.blocks]
        return max(found, default=0)

    @property
    def reached_tol(self) -> bool:
        """Whether a training with validation data ended at `tol`, maybe with an earlier pass."""
        return bool(self.end.get("reached_tol"))

    def warnings(self) -> list[str]:
        """Return what a reader of the figures should know."""
        found = []
        if not self.is_finished:
            found.append("The run is not finished. The figures end at its last pass or block.")
        elif self.kind == "train" and self.certificate is not None:
            if self.certificate["relative_gap"] > self.tol and not (
                self.is_early or self.reached_tol
            ):
                found.append(
                    f"The training did not converge: the certified relative gap is above the "
                    f"tolerance of {self.tol:g}."
                )
            if self.end.get("visits_cut_short"):
                found.append(
                    "Visits of the last pass were cut short by lack of memory. Raise --mem."
                )
        if self.processes > 1:
            found.append(
                f"{self.processes} ranks trained this model. Seconds, bytes, cache and memory are "
                "those of rank 0."
            )
        if self.peak > self.mem:
            found.append(f"Peak memory was {format_size(self.peak)}, above the limit --mem.")
        return found


def read_log(path: Path, convert: Callable[[Event], T], *, skip_damaged: bool = False) -> list[T]:
    """Read the events of a log. An incomplete last line and a missing file are not errors.

    Parameters
    ----------
    convert : callable
        Returns what to keep of an event. ValueError, KeyError, TypeError and AttributeError mean
        that the line is damaged.

    Raises
    ------
    StoreError
        A line is damaged and `skip_damaged` is false, or the file cannot be read.
    """
    found: list[T] = []
    if not path.exists():
        return found
    with reading(path), open_own(path) as file:
        for number, line in enumerate(file, 1):
            try:
                event = parse(line)
                if not isinstance(event, dict) or not isinstance(event.get("event"), str):
                    raise ValueError("not an event")
                if event["event"] == "pass":
                    _count(event, "pass")
                found.append(convert(event))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                if line.endswith(b"\n") and not skip_damaged:
                    raise StoreError(
                        f"{path}: line {number} is damaged ({error}); remove the line and run the "
                        "command again"
                    ) from None
    return found


def read_run(path: str | Path) -> RunFigures:
    """Read the figures of a run.

    Parameters
    ----------
    path : str or Path
        A model, or its folder ``MODEL.run``.

    Raises
    ------
    StoreError
        The run does not exist, is not one of `sbm train` or `sbm stream`, or is damaged.
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
            f"{folder} is a run of sbm {kind}, which draws its own picture (--png); give the model "
            "it trained"
        )
    events = read_log(home / LOG, _convert)
    try:
        last = events[-1] if events else None
        end = last if isinstance(last, dict) else _end(record.get("report"))
        has_passes = kind == "train" and "turns" not in record  # those of turns are of some classes
        passes = [one for one in events if isinstance(one, PassFigures) and has_passes]
        blocks = [one for one in events if isinstance(one, BlockFigures) and kind == "stream"]
        certified = [one.certificate for one in passes if one.certificate is not None]
        best = record.get("best") or {}
        found = RunFigures(
            name=path.name.removesuffix(".run").removesuffix(".model") or str(path),
            folder=folder,
            kind=kind,
            is_finished=bool(end) and not end["stopped"],
            processes=processes,
            passes=passes,
            blocks=_continuous(blocks),
            settings=dict(record.get("settings") or Settings().to_dict()),
            end=end,
            sources=_sources(path, folder, record),
            certificate=_certificate(best)
            or (certified[-1] if certified else _certificate(record)),
            is_early=bool(best.get("is_over")),
            curves=_curves(best.get("curves") or {}),
            inputs=[str(one) for one in record.get("inputs") or [record.get("store", "STORE")]],
            changed=(home / LOG).stat().st_mtime if events else 0.0,
        )
        _number(found.settings, "tol")
        assert found.mem > 0  # raises the errors of a bad setting
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"{home / RECORD} is damaged ({error}); train again") from error
    return found


def _folder_of(path: Path) -> Path:
    """Return the folder of a run."""
    if path.is_dir():
        if (path / MANIFEST).exists():
            raise StoreError(f"{path} is a store; give a model that was trained on it")
        if runs_here(path) or (path / LOG).exists():
            return path
        raise StoreError(
            f"{path} is not a run (it has no {RECORD}); give a model or its MODEL.run folder"
        )
    folder = run_folder(path)
    if folder.is_dir():
        return folder
    if path.exists():
        raise StoreError(
            f"{path} has no run folder ({folder.name}); give a model that sbm train wrote, or "
            "train it again"
        )
    raise StoreError(f"{path} does not exist; give a model or its MODEL.run folder")


def _number(record: Mapping[str, Any], name: str, least: float = -1e300) -> float:
    value = record[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= 1e300:
        raise ValueError(f"{name} is {str(value)[:40]}")
    return float(value)


def _count(record: Mapping[str, Any], name: str) -> int:
    if type(record.get(name)) is not int:
        raise ValueError(f"{name} is {str(record.get(name))[:40]}")
    return int(_number(record, name, 0))


def _optional(record: Mapping[str, Any], name: str, scale: float = 1.0) -> float | None:
    return None if record.get(name) is None else scale * _number(record, name)


def _certificate(record: Mapping[str, Any]) -> dict[str, float] | None:
    found = record.get("certificate")
    if found is None:
        return None
    return {name: _number(found, name) for name in ("primal", "dual", "relative_gap")}


def _curves(curves: Mapping[str, Any]) -> dict[str, list[tuple[float, float]]]:
    return {
        name: [(_number({"x": x}, "x", 0), _number({"y": y}, "y", 0)) for x, y in curves[name]]
        for name in ("roc", "pr") if curves.get(name)
    }  # fmt: skip


def _end(report: Event | None) -> dict[str, float]:
    """Return the totals of a final report."""
    if not report:
        return {}
    names = ("peak_rss_bytes", "n_support", "n_free", "updates", "visits_cut_short")
    found = {name: _number(report, name, 0) for name in names if name in report}
    return {
        **found,
        "peak_rss_bytes": _number(report, "peak_rss_bytes", 0),
        "seconds": _number(report["seconds"], "total", 0),
        "compile": _number({"compile": 0.0, **report["seconds"]}, "compile", 0),
        "stopped": float(bool(report.get("stopped"))),
        "reached_tol": float((report.get("validation") or {}).get("ended_by") == "tol"),
    }


def _convert(event: Event) -> PassFigures | BlockFigures | dict[str, float] | None:
    if event["event"] == "end":
        return _end(event)
    if event["event"] == "block":
        return BlockFigures(
            rows=_count(event, "rows"),
            elapsed=_number(event, "elapsed", 0),
            loss=_optional(event, "loss"),
            accuracy=_optional(event, "accuracy", 100),
            cached=_count(event, "cached_rows"),
            resident=_count(event, "resident_bytes"),
        )
    if event["event"] != "pass":
        return None
    validation = event.get("validation") or {}
    return PassFigures(
        number=_count(event, "pass"),
        rounds=_count(event, "rounds"),
        solver=str(event.get("solver", "–")),
        elapsed=_number(event, "elapsed", 0),
        seconds={name: _number(event["seconds"], name, 0) for name in (*SECONDS, "load")},
        dual=_number(event, "dual"),
        estimate=_optional(event, "estimated_relative_gap"),
        certificate=_certificate(event),
        metric=str(validation.get("metric", ""))[:40],
        score=_optional(validation, "score"),
        bytes_read=_count(event, "bytes_read"),
        cached=_count(event, "cached_rows"),
        free=_count(event, "cached_free"),
        zero=_count(event, "cached_zero"),
        weights=_optional(event, "nonzero_weights"),
        resident=_count(event, "resident_bytes"),
    )


def _continuous(blocks: list[BlockFigures]) -> list[BlockFigures]:
    """Make the seconds of a resumed stream cumulative; its clock restarts at 0."""
    found: list[BlockFigures] = []
    before = last = 0.0
    for block in blocks:
        before += last if block.elapsed < last else 0.0
        last = block.elapsed
        found.append(replace(block, elapsed=before + last))
    return found


def _sources(path: Path, folder: Path, record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the sources of the data: from the model, or for a stream from its checkpoint."""
    if record.get("kind") == "stream":
        return sources_at(record["sources"])
    model = folder.with_name(folder.name.removesuffix(".run")) if path == folder else path
    if model == folder or not model.is_file():
        return []
    meta = container.read(model, "model", lambda name: False, is_own=False).meta
    found = [source for source in meta["info"].get("sources", []) if isinstance(source, dict)]
    for source in found:
        if not isinstance(source.get("name"), str):
            raise StoreError(f"{model} is damaged (invalid sources); train the model again")
        _count(source, "rows")
    return found
