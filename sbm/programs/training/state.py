"""The state of a training in its run, and the decision whether to resume it.

An interrupted training is resumed by the same command (same store and settings) and produces the
same bytes. A finished one is left unchanged. Everything else needs an explicit option.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from sbm.engine.learners import Seconds
from sbm.engine.memory import EVICTED_BYTES, UNWRITTEN_BYTES, MemoryPlan
from sbm.errors import SettingsError, StoreError
from sbm.fields import Table, fields_of, is_count, is_crc, is_number_or_inf
from sbm.losses import MOST_RESTING
from sbm.plain import dataclass
from sbm.programs.training.warmstart import SHAPE_FIELDS, has_rows_of
from sbm.settings import SETTINGS, Settings, option_name
from sbm.solver.gap import CERTIFICATE_FIELDS, Certificate, GapWatch
from sbm.solver.problem import AnyProblem
from sbm.solver.step import Totals
from sbm.store.blocks import BlockStore
from sbm.store.manifest import changes_of_origin, describe_origin, origins
from sbm.store.records import checksum
from sbm.store.run import RECORD, Run, is_finished
from sbm.units import as_typed, format_size

if TYPE_CHECKING:
    from sbm.dataset.weights import AnyWeights

__all__ = [
    "TrainingState", "bound_before", "family_of", "identity", "is_of", "may_resume",
    "open_run",    "refuse_other_settings", "refuse_unfinished", "run_to_resume", "same_run",
]  # fmt: skip

# Settings that may change on resume: budgets, and settings that do not affect the result.
FREE = (
    "threads", "time_limit", "max_passes", "checkpoint_every", "comm_timeout", "remote_timeout",
)  # fmt: skip
_FOR_MESSAGES = ("store", "origin")  # entries of the identity that need not be the same
# Entries of the identity that differ between ranks, or with their number.
_OF_A_PROCESS = ("shape", "bound", "own", "classes")


@dataclass
class TrainingState:
    """The progress of a training, without weights and alphas.

    Attributes
    ----------
    passes : int
        Number of passes so far.
    rounds : list of int
        Rounds of each pass.
    gaps : list of float
        Estimated gap after each whole pass.
    only : list of int or None
        Parts to visit in the next pass; None for all.
    free_rows : int or None
        Rows with variables inside their bounds in the last whole pass.
    is_warm : bool
        Whether it started from alphas for the same cost.
    totals : Totals
        Totals of all passes.
    ended : Totals or None
        Totals of the last pass, until its end is processed.
    watch : GapWatch
    certificate : Certificate or None
        The last certificate.
    cut_short : int
        Visits of the last pass that were cut short because lists of variables were full.
    is_done : bool
        Whether the training has finished its passes.
    best : dict or None
        State of the validation, without arrays.
    switched_after : int or None
        Passes before the switch to another solver; None if there was none.
    second : TrainingState or None
        That of the second model, of `--calibrate`, after the passes that train both.
    seconds, mark : dict of str to float
        Seconds by activity: in total, and up to the start of the last pass.
    elapsed : float
        Seconds in total.
    bytes_read : int
    """

    passes: int = 0
    rounds: list[int] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    only: list[int] | None = None
    free_rows: int | None = None
    is_warm: bool = False
    totals: Totals = field(default_factory=Totals)
    ended: Totals | None = None
    watch: GapWatch = field(default_factory=lambda: GapWatch(0.0))
    certificate: Certificate | None = None
    cut_short: int = 0
    is_done: bool = False
    best: dict[str, Any] | None = None
    switched_after: int | None = None
    second: "TrainingState | None" = None
    seconds: dict[str, float] = field(default_factory=dict)
    mark: dict[str, float] = field(default_factory=dict)
    elapsed: float = 0.0
    bytes_read: int = 0

    def record(self) -> dict[str, Any]:
        """Return the state as JSON, for `of`."""
        certificate = self.certificate.to_dict() if self.certificate else None
        second = self.second.record() if self.second else None
        return asdict(self) | {"certificate": certificate, "second": second}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "TrainingState":
        """Create a state from a `record`; other keys are ignored.

        Raises
        ------
        KeyError
            It is the record of another method.
        """
        mine = {one.name: record[one.name] for one in fields(cls)}
        for name, kind in (
            ("totals", Totals), ("ended", Totals), ("watch", GapWatch), ("certificate", Certificate)
        ):  # fmt: skip
            if mine[name] is not None:
                mine[name] = kind(**mine[name])
        if mine["second"] is not None:
            mine["second"] = cls.of(mine["second"])
        return cls(**mine)


_TOTALS = fields_of(Totals, gap=is_number_or_inf)
_SECONDS = (lambda value: value == {}, fields_of(Seconds))
_STATE = fields_of(
    TrainingState, gaps=[is_number_or_inf], totals=_TOTALS, ended=(None, _TOTALS),
    watch=fields_of(GapWatch, previous=is_number_or_inf), certificate=(None, CERTIFICATE_FIELDS),
    best=(None, {"since": is_count, "*": lambda value: True}), seconds=_SECONDS, mark=_SECONDS,
    second=None,
)  # fmt: skip
_STATE["second"] = (None, dict(_STATE))
# Of the record of a run, besides those of each checkpoint.
RUN_FIELDS: Table = {
    "store?": str, "store_rows?": is_count, "data?": is_crc, "weights?": (None, is_crc),
    "bound?": (None, is_count), "own?": [is_count], "classes?": [is_count], "shape?": SHAPE_FIELDS,
    **{f"{name}?": kind for name, kind in _STATE.items()},
    "turns_left?": is_count, "reports?": [dict],
    "method?": {"family": str, "*": lambda value: True}, "report?": (None, dict),
}  # fmt: skip


def family_of(record: Mapping[str, Any]) -> str:
    """Return the family of the method that wrote a checkpoint; empty if there is none."""
    return str(record.get("method", {}).get("family", ""))


def identity(settings: Settings, store: BlockStore, weights: "AnyWeights | None") -> dict[str, Any]:
    """Return what identifies a training, as JSON; the memory plan adds the shape."""
    known = origins(store.manifest)
    found = {
        "kind": "train",
        "settings": _as_json(settings),
        "store": store.name,
        "store_rows": store.n_rows,
        "data": checksum([known[b["file"]] for b in store.manifest["blocks"]]),
        "origin": describe_origin(store.manifest),
        "weights": None if weights is None else weights.checksum,
    }
    plain: dict[str, Any] = json.loads(json.dumps(found, default=str))
    return plain


def is_of(folder: Path, mine: Mapping[str, Any]) -> bool:
    """Return whether a folder holds a run of these settings and data, of any shape."""
    wanted = {k: value for k, value in mine.items() if k not in _OF_A_PROCESS}
    return same_run(folder, wanted) is not None


def bound_before(folder: Path, mine: Mapping[str, Any]) -> int | None:
    """Return the reduced memory bound of a run that ran out of memory, otherwise None."""
    try:
        record = same_run(folder, mine)
    except StoreError:  # reported later
        return None
    return None if record is None else record.get("bound")


def same_run(folder: Path, mine: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the record of a run with this identity, ignoring `FREE` settings; otherwise None."""
    if not (folder / RECORD).exists():
        return None
    record = Run.read(folder)

    def plain(identity: Mapping[str, Any]) -> dict[str, Any]:
        settings = {k: v for k, v in identity.get("settings", {}).items() if k not in FREE}
        return {name: identity.get(name) for name in mine if name not in _FOR_MESSAGES} | {
            "settings": settings
        }

    return record if plain(record) == plain(mine) else None


def refuse_unfinished(folder: Path) -> None:
    """Check that no unfinished run would be replaced.

    Raises
    ------
    StoreError
        The folder holds an unfinished run or a stream.
    """
    if (folder / RECORD).exists():
        record = Run.read(folder)
        is_stream = record.get("kind") == "stream"
        if is_stream or not is_finished(record):
            Run.require_free(folder)
            what = "a stream" if is_stream else "an unfinished training"
            raise StoreError(
                f"{folder} holds {what} that would be lost; write the model elsewhere with -o, "
                "or replace it with --fresh"
            )


def refuse_other_settings(folder: Path, settings: Settings, resume: bool | None) -> None:
    """Check, before the data is known, that no unfinished run with other settings would be lost.

    Raises as `run_to_resume`.
    """
    if resume is not False and not (folder / RECORD).exists():
        _refuse_missing(folder, resume)
        return
    if resume is False or settings.warm_start is not None:
        return
    record = Run.read(folder)
    _refuse_stream(folder, record)
    if is_finished(record) and not resume:
        return
    if changes := _other_settings(record, _as_json(settings)):
        _refuse(folder, record, changes)


def may_resume(folder: Path, settings: Settings, resume: bool | None) -> bool:
    """Whether a folder holds a run with these settings, on any data."""
    if resume is False or not (folder / RECORD).exists():
        return False
    return _other_settings(Run.read(folder), _as_json(settings)) is None


def _refuse_missing(folder: Path, resume: bool | None) -> None:
    if resume:
        raise StoreError(f"no training to resume in {folder}; leave out --resume")


def _refuse_stream(folder: Path, record: Mapping[str, Any]) -> None:
    if record.get("kind") == "stream":
        Run.require_free(folder)
        raise StoreError(
            f"{folder} is a run of sbm stream that would be lost; write the model elsewhere with "
            "-o, or replace it with --fresh"
        )


def _refuse(
    folder: Path, record: Mapping[str, Any], reason: str, is_locked: bool = False
) -> NoReturn:
    """Raise the error about a run that was made differently, for `reason`."""
    if not is_locked:
        Run.require_free(folder)
    state = "a finished" if is_finished(record) else "an unfinished"
    text = f"{folder} holds {state} training {reason}"
    raise StoreError(text) if "other data" in reason else SettingsError(text)


def run_to_resume(
    folder: Path,
    mine: Mapping[str, Any],
    resume: bool | None,
    store: BlockStore,
    is_locked: bool = False,
) -> dict[str, Any] | None:
    """Return the record of the run to resume, finished or not; None to start over.

    Parameters
    ----------
    folder : Path
        Folder of the run, if there is one.
    mine : mapping
        `identity` of the training that is about to start.
    resume : bool or None
        True: fail if there is nothing to resume. False: start over.
    store : BlockStore
    is_locked : bool
        Whether the caller holds the lock of the run.

    Raises
    ------
    SettingsError
        There is an unfinished training with other settings.
    StoreError
        There is an unfinished training on other data, a stream or a damaged run; or `resume` is
        true and there is no run.
    """
    if resume is False:
        return None
    if not (folder / RECORD).exists():
        _refuse_missing(folder, resume)
        return None
    record, warm_start = Run.read(folder), mine["settings"]["warm_start"]
    if record.get("kind") == "stream" and warm_start is not None:
        return None  # reported by the warm start
    _refuse_stream(folder, record)
    reason = _difference(record, mine, store)
    if reason is None:
        return _if_there_is_more(record, mine["settings"])
    if resume or not (is_finished(record) or warm_start is not None):
        _refuse(folder, record, reason, is_locked)
    return None


def _difference(
    record: Mapping[str, Any], mine: Mapping[str, Any], store: BlockStore
) -> str | None:
    """Return the difference between two trainings and the remedy as text; None if equal."""
    if others := _other_settings(record, mine["settings"]):
        return others
    if record.get("data") != mine["data"]:
        warm = ", or --warm-start to start from its alphas" if has_rows_of(record, store) else ""
        rows, options = changes_of_origin(record.get("origin"), mine["origin"])
        if options:
            return (
                f"with other options: {options}; use the same options to resume, or --fresh to "
                "start over"
            )
        rows = f" ({rows})" if rows else ""
        return f"on other data than {store.name} has now{rows}; use --fresh to start over{warm}"
    if record.get("weights") != mine["weights"]:
        return "with other row weights; use --fresh to start over"
    if record.get("own") != mine.get("own"):
        return (
            "whose blocks were assigned to other ranks; give each rank the files it had, use "
            "--fresh to start over, or --warm-start to start from its alphas"
        )
    if record.get("shape") != mine.get("shape", record.get("shape")):  # turns have one each
        return (
            "with blocks cut differently, from a text in place of its store or by another version "
            "of sbm; use --fresh to start over, or --warm-start to start from its alphas"
        )
    return None


def _other_settings(record: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return the settings that differ from those of a run, and the remedy; None if none do."""
    free = {*FREE, "warm_start"} if now["warm_start"] is True else set(FREE)
    before = record.get("settings", {})
    others = [
        f"{option_name(name)} {_as_typed(name, before.get(name))} (now {_as_typed(name, value)})"
        for name, value in now.items()
        if name not in free and before.get(name) != value
    ]
    if not others:
        return None
    return (
        f"with other settings: {', '.join(others)}; use the same settings to resume, or --fresh "
        "to start over"
    )


def _as_json(settings: Settings) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(settings.to_dict(), default=str))
    return plain


def _as_typed(name: str, value: Any) -> str:
    """Return the value of a setting as it is typed."""
    if value is None or value == {}:
        return SETTINGS[name].unset or "none"
    return format_size(value) if name == "mem" else as_typed(value)


def _if_there_is_more(record: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the record to resume; None if a finished run must be started over."""
    certificate = record.get("certificate")
    fell_short = certificate is None or certificate["relative_gap"] > settings["tol"]
    fell_short = fell_short and not (record.get("best") or {}).get("is_over")
    if not is_finished(record) or not fell_short:
        return record
    if record["passes"] < settings["max_passes"]:  # it hit the time limit, or max_passes was raised
        anew = {"is_done": False, "second": None}
        return {k: v for k, v in record.items() if k != "report"} | anew
    return None if settings["warm_start"] is True else record


@contextmanager
def open_run(
    folder: Path,
    problems: Sequence[AnyProblem],
    plan: MemoryPlan,
    record: Mapping[str, Any] | None = None,
    is_one_of_many: bool = False,
    is_same_log: bool = False,
    is_locked: bool = False,
) -> Iterator[Run]:
    """Open a run for the alphas of each problem.

    Parameters
    ----------
    folder : Path
    problems : sequence of Problem, MultiProblem or OneClass
    plan : MemoryPlan
    record : mapping, optional
        Record of the checkpoint to resume from. Default: start a new run.
    is_one_of_many : bool
        Whether other ranks train the same model, each with its own run.
    is_same_log : bool
        Whether a new run continues the log of the one that it replaces.
    is_locked : bool
        Whether the caller holds the lock of the run.

    Yields
    ------
    Run

    Raises
    ------
    StoreError
        Another process is training this model, or has changed the run; or it is not writable.
    """
    rows_of_parts = plan.rows_of_parts * len(problems)
    lists_of = max(p.n_outputs for p in problems) if problems[0].listed else None
    values = sorted({value for p in problems for value in p.resting_values})[:MOST_RESTING]
    shape = (rows_of_parts, lists_of, values, EVICTED_BYTES, UNWRITTEN_BYTES, is_one_of_many)
    if record is None:
        with Run.create(folder, *shape, is_locked=is_locked) as run:
            if is_same_log:
                run.continue_log()
            yield run
        return
    with Run.resume(folder, *shape, is_locked=is_locked) as (run, found):
        if found["state"] != record["state"]:
            raise StoreError(f"{folder} was changed by another process; run the command again")
        yield run
