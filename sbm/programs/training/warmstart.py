"""Warm starts: use the alphas of an earlier training as the start of another.

Any alphas inside their bounds are a valid start if W matches them. So a warm start works with a run
of the same loss on the same store, also before rows were appended or expired. With another C, all
alphas are multiplied by C' / C, which keeps alphas at a bound there. New rows start at 0. Alphas of
expired rows are dropped, and W is recomputed without them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from sbm.alphas import Alphas, Dense, Lists, join, no_alphas
from sbm.engine.certificate import certify, replace_weights
from sbm.engine.engine import Engine
from sbm.engine.learners import Learner, Visit
from sbm.engine.memory import MemoryPlan, Piece
from sbm.engine.problems import is_mirrored, label_texts
from sbm.errors import SettingsError, StoreError
from sbm.fields import Table, is_count
from sbm.plain import dataclass
from sbm.settings import Settings, option_name
from sbm.solver.gap import MOST_DRIFT, SUPPORT, Certificate, ray
from sbm.solver.problem import AnyProblem
from sbm.solver.variables import admit_block
from sbm.store.blocks import MANIFEST, BlockStore, kept_generations
from sbm.store.manifest import origins
from sbm.store.run import RECORD, Run, run_folder, runs_here
from sbm.units import count

__all__ = [
    "SHAPE_FIELDS",
    "PreviousRun",
    "check_earlier",
    "earlier_blocks",
    "find_run",
    "has_rows_of",
    "last_run",
    "lost_classes",
    "refuse_other_classes",
    "refuse_other_problem",
    "shape_record",
]

Floats = npt.NDArray[np.float64]

_NAMED = 10  # most labels in a message

# Of the result of `shape_record`.
SHAPE_FIELDS: Table = {
    "blocks": [[is_count]], "files": [str], "parts": [[[is_count]]], "outputs": [is_count],
    "listed": bool,
}  # fmt: skip


def shape_record(
    store: BlockStore, plan: MemoryPlan, problems: Sequence[AnyProblem]
) -> dict[str, Any]:
    """Return what a run must record so that another training can start from it, as JSON."""
    blocks, known = store.manifest["blocks"], _contents(store)
    return {
        "blocks": [known[entry["file"]] for entry in blocks],
        "files": [entry["file"] for entry in blocks],
        "parts": [[list(astuple(piece)) for piece in part.pieces] for part in plan.parts],
        "outputs": [problem.n_outputs for problem in problems],
        "listed": problems[0].listed,
    }


def _contents(store: BlockStore) -> dict[str, list[int]]:
    """Return what identifies the rows of each block, expired ones too, by file."""
    known = origins(store.manifest)
    blocks = [*store.manifest["blocks"], *store.expired_blocks]
    return {b["file"]: [b["rows"], b["nnz"], known[b["file"]]] for b in blocks}


def last_run(model: Path) -> list[Path]:
    """Return the folders of a model's last run; empty if it has no checkpoint."""
    return _with_commit(run_folder(model))


def find_run(path: str | Path) -> list[Path]:
    """Return the folders of a run, given the run or its model.

    There is one folder per rank of the training.

    Raises
    ------
    StoreError
        There is no run with a checkpoint.
    """
    path = Path(path)
    beside = run_folder(path)
    found = _with_commit(path, beside)
    if found:
        return found
    if (path / MANIFEST).is_file():
        raise StoreError(
            f"{path} is a store, but --warm-start takes a model or a run; put the store before "
            "--warm-start"
        )
    what, where = "does not exist", beside.name
    if path.is_dir():
        what, where = "is not a run", "MODEL.run"
    elif path.exists():
        what = "has no run next to it"
    raise StoreError(
        f"{path} {what}: a warm start needs the alphas of an earlier training, stored in "
        f"{where}; leave out --warm-start to start from zero"
    )


def _with_commit(*folders: Path) -> list[Path]:
    """Return the rank folders of the first run with a checkpoint; empty if there is none."""
    return next((found for found in map(_newest, folders) if found), [])


def _newest(folder: Path) -> list[Path]:
    """Return the rank folders of the newest run in a folder, for any number of ranks."""
    every = runs_here(folder).values()
    return max(every, key=lambda mine: (mine[0] / RECORD).stat().st_mtime_ns, default=[])


@dataclass(frozen=True)
class _EarlierRecord:
    """The record of an earlier training; `C` is None if the loss has no C."""

    settings: dict[str, Any]
    C: float | None
    blocks: list[list[int]]
    files: list[str]
    parts: list[list[Piece]]
    outputs: list[int]
    listed: bool
    positive: int | None = None  # class code of the positive class

    @classmethod
    def of(cls, record: Mapping[str, Any], folder: Path) -> _EarlierRecord:
        """Read a record.

        Raises
        ------
        StoreError
            No training can start from this run.
        """
        if record.get("kind") == "stream":
            raise StoreError(
                f"{folder} is a run of sbm stream, which does not keep alphas; leave out "
                "--warm-start, or write the model elsewhere with -o"
            )
        if "turns" in record:
            raise StoreError(
                f"{folder} trained some classes at a time and kept no alphas of the others; leave "
                "out --warm-start"
            )
        try:
            shape, was = record["shape"], record["settings"]
            found = cls(
                was, float(was["C"]) if was["loss"] != "one_class" else None,
                list(shape["blocks"]), list(shape["files"]),
                [[Piece(*piece) for piece in part] for part in shape["parts"]],
                list(shape["outputs"]), bool(shape["listed"]), record.get("positive"),
            )  # fmt: skip
            rows = [0] * len(found.blocks)
            for piece in itertools.chain(*found.parts):
                rows[piece.block] += piece.rows
            if rows != [block[0] for block in found.blocks]:
                raise ValueError("row counts of parts and blocks differ")
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise StoreError(
                f"{folder} has no alphas to start from ({error}); leave out --warm-start"
            ) from error
        if "classes" in record:
            raise StoreError(
                f"{folder} holds only part of the one-vs-rest classes, which were divided among "
                f"{record['classes'][1]} ranks; start as many ranks to resume, or use --fresh "
                "without --warm-start to start over"
            )
        return found


@dataclass
class _Process:
    """One rank of the earlier training: its run, and its state at a checkpoint of all ranks."""

    run: Run
    state: dict[str, npt.NDArray[Any]]
    parts: set[int] | None

    @classmethod
    def reopen(
        cls, folder: Path, record: dict[str, Any], rows: Sequence[int], lists_of: int | None
    ) -> _Process:
        """Read the state; `rows` has the number of rows of each part, for each learner."""
        run, state = Run.reopen(folder, rows, lists_of, record)
        own = record.get("own")
        return cls(run, state, None if own is None else set(own))

    def has(self, part: int) -> bool:
        """Return whether the rank had the alphas of a part."""
        return self.parts is None or part in self.parts

    def of(self, name: str, k: int) -> npt.NDArray[Any]:
        """Return an array of the k-th learner."""
        return self.state[name if k == 0 else f"{name}-{k}"]

    @property
    def lists(self) -> bool:
        """Whether rows have lists of variables."""
        return "alpha_offsets" in self.state

    def cached(self, k: int, part: int) -> tuple[npt.NDArray[np.int32], Alphas]:
        """Return the cached rows of a part, and their alphas."""
        mine = np.flatnonzero(self.of("home", k) == part)
        alpha: Alphas = Dense(self.of("alpha", k))
        if self.lists:
            alpha = Lists(
                self.of("alpha_offsets", k), self.of("alpha_outputs", k), self.of("alpha", k)
            )
        return self.of("row", k)[mine], alpha.take(mine)


def _last_common(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the records of the last checkpoint that all ranks have, one per folder.

    Raises
    ------
    StoreError
        There is no common checkpoint, or a record is damaged.
    """
    records = [Run.read(folder) for folder in folders]
    if len(records) == 1:
        return records
    every = [
        {one["commit"]: one for one in (record, record.get("before")) if one and "commit" in one}
        for record in records
    ]
    common = set.intersection(*map(set, every))
    if not common:
        raise StoreError(
            f"the runs in {folders[0].parent} have no common checkpoint; use --fresh to start over"
        )
    return [commits[max(common)] for commits in every]


def _has(store: BlockStore, contents: list[list[int]], files: list[str]) -> bool:
    """Return whether a store has or had blocks, as in the ``shape`` of a record."""
    ever = _contents(store)
    return [ever.get(file) for file in files] == contents


def has_rows_of(record: Mapping[str, Any], store: BlockStore) -> bool:
    """Return whether a store has or had the rows of an earlier training, given its record."""
    shape = record.get("shape")
    return shape is not None and _has(store, shape["blocks"], shape["files"])


def earlier_blocks(
    folder: Path, contents: list[list[int]], files: list[str], store: BlockStore
) -> dict[int, int]:
    """Return the earlier number of each block that an earlier training had.

    Parameters
    ----------
    folder : Path
        Its run.
    contents, files : list
        As in the ``shape`` of its record.
    store : BlockStore

    Raises
    ------
    StoreError
        It was trained on other data.
    """
    now = store.manifest["blocks"]
    if not _has(store, contents, files):
        raise StoreError(
            f"{folder} was trained on other data than {store.name}, or on the same rows in other "
            "blocks (--blocks, --seed, --mem); leave out --warm-start"
        )
    was = {file: number for number, file in enumerate(files)}
    return {k: was[entry["file"]] for k, entry in enumerate(now) if entry["file"] in was}


def check_earlier(folders: Sequence[Path], settings: Settings) -> None:
    """Check that a training with these settings can start from a run, without its data.

    Raises
    ------
    SettingsError
        The run solved a different problem.
    StoreError
        The run is damaged, or has no alphas.
    """
    before = _EarlierRecord.of(Run.read(folders[0]), folders[0])
    refuse_other_problem(folders[0], before.settings, settings.to_dict())


def refuse_other_problem(
    folder: Path, before: Mapping[str, Any], after: Mapping[str, Any], is_sparse: bool = False
) -> None:
    """Check that a run with the settings `before` solved the same problem as now, `after` it.

    Raises `SettingsError` if it did not.
    """
    names = ("loss", "task", "bias", "intercept")
    for name in ("penalty", *names) if is_sparse else names:
        was, now = before.get(name), after[name]
        if was != now:
            advice = "leave out --warm-start"
            if not is_sparse:
                advice = f"{_as_before(name, was)}, or {advice} to change it"
            raise SettingsError(
                f"{folder} was trained with {name} {was}, but {name} is now {now}; {advice}"
            )


def _as_before(name: str, value: object) -> str:
    """Return the advice that gives a setting the value of an earlier run."""
    if isinstance(value, bool):
        return f"use {option_name(name if value else f'no_{name}')}"
    return f"use {option_name(name)} {value}"


def lost_classes(
    folder: Path, store: BlockStore, itself: Mapping[str, Any], n_outputs: int
) -> str | None:
    """Return a note if a run had other classes because some have lost their rows or labels.

    If there are new labels, `PreviousRun` names them. A run with weights by class is not used
    either.
    """
    record = Run.read(folder)
    if (record.get("method") or {}).get("family") == "classes":
        return f"{folder} kept its weights by class; starting from zero"
    was, n, now = record.get("settings", {}), record.get("n_labels"), len(store.labels or [])
    if not n or any(was[name] != itself["settings"][name] for name in ("loss", "task")):
        return None
    if not has_rows_of(record, store):
        return None
    if n < now or (n == now and sum(record["shape"]["outputs"]) == n_outputs):
        return None
    return f"{folder} has other classes than {store.name} now; starting from zero"


def refuse_other_classes(
    folder: Path, record: Mapping[str, Any], store: BlockStore, before: int, now: int
) -> NoReturn:
    """Raise `SettingsError` because a run had other classes, and name the new ones.

    Parameters
    ----------
    folder, record
        The run.
    before, now : int
        Numbers of outputs.
    """
    texts = label_texts(store)
    known = int(record.get("n_labels") or (2 if before == 1 else before))
    if len(texts) <= known or not has_rows_of(record, store):
        raise SettingsError(
            f"{folder} was trained with other classes or another solver ({count(before, 'output')}"
            f", now {now:,}); leave out --warm-start"
        )
    new, others = ", ".join(texts[known:][:_NAMED]), len(texts) - known - _NAMED
    sources = _sources_with(store, known, set(record["shape"]["files"]))
    way = (
        f"If that is a mistake, use sbm expire {store.folder} --source {sources}. "
        if sources
        else ""
    )
    raise SettingsError(
        f"{folder} was trained without the {'label' if len(texts) == known + 1 else 'labels'} "
        f"{new}{f' and {others} more' if others > 0 else ''}"
        f"{f', which came with {sources}' if sources else ''}. {way}To train with all labels, "
        f"leave out --warm-start or remove {folder}"
    )


def _sources_with(store: BlockStore, code: int, files: set[str]) -> str:
    """Return the names of the first new sources that have a class code at least as large."""
    numbers = {entry["file"]: k for k, entry in enumerate(store.manifest["blocks"])}
    for generation in kept_generations(store.manifest):
        blocks = [numbers[name] for name in generation["blocks"] if name not in files]
        for chunk in itertools.chain(*(store.chunks[block] for block in blocks)):
            if int(store.read_codes(chunk).max(initial=0)) >= code:
                return ", ".join(s["name"] for s in generation["sources"] if s["rows"])
    return ""


class PreviousRun:
    """The run of an earlier training.

    Parameters
    ----------
    folders : sequence of Path
        One folder per rank. The alphas of missing ranks are taken as 0.
    store : BlockStore
    itself : mapping
        `identity` of the new training.
    problems : sequence of Problem, MultiProblem or OneClass

    Attributes
    ----------
    is_rescaled : bool
        Whether the run had another C.

    Raises
    ------
    SettingsError
        The run solved a different problem.
    StoreError
        The run is damaged, or belongs to other data.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        store: BlockStore,
        itself: Mapping[str, Any],
        problems: Sequence[AnyProblem],
    ) -> None:
        self.folder, self._store = folders[0], store
        records = _last_common(folders)
        before = _EarlierRecord.of(records[0], self.folder)
        self._refuse_others(before, itself["settings"], problems, records[0])
        self._sign = -1.0 if is_mirrored(before.positive, problems[0]) else 1.0
        self._is_signed = problems[0].loss.signed
        self._was = earlier_blocks(self.folder, before.blocks, before.files, store)
        self._has_expired = len(self._was) < len(before.blocks)
        self._parts = before.parts
        self._outputs = before.outputs
        learners = len(self._outputs) * (2 if before.settings.get("calibrate") else 1)
        rows = [sum(piece.rows for piece in part) for part in self._parts] * learners
        lists_of = max(self._outputs) if before.listed else None
        self._processes = [
            _Process.reopen(folder, record, rows, lists_of)
            for folder, record in zip(folders, records, strict=True)
        ]
        factor = 1.0 if before.C is None else itself["settings"]["C"] / before.C
        self.is_rescaled = factor != 1.0
        self._factors = [
            factor * ray(float(self._first.of("dual_sum", k)[0]), self._first.of("W", k), factor)
            for k in range(len(self._outputs))
        ]

    def _refuse_others(
        self, before: _EarlierRecord, after: Mapping[str, Any], problems: Sequence[AnyProblem],
        record: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Check that the run solved the same problem."""
        refuse_other_problem(self.folder, before.settings, after)
        outputs, grown = before.outputs, [problem.n_outputs for problem in problems]
        as_before = len(grown) == len(outputs) or (len(grown) > len(outputs) > 1)
        if before.listed != problems[0].listed or not as_before:
            refuse_other_classes(self.folder, record, self._store, sum(outputs), sum(grown))

    def new_parts(self, plan: MemoryPlan) -> list[int]:
        """Return the parts of a plan with rows that the earlier training did not have."""
        return [
            number
            for number, part in enumerate(plan.parts)
            if any(piece.block not in self._was for piece in part.pieces)
        ]

    @property
    def _first(self) -> _Process:
        return self._processes[0]

    def hand_over(self, run: Run, plan: MemoryPlan, own: Sequence[int]) -> None:
        """Store the alphas of this rank's parts in a new run, even if blocks are cut differently.

        Alphas of expired blocks are dropped.
        """
        for k in range(len(self._outputs)):
            factor = self._factors[k] * (self._sign if self._is_signed else 1.0)
            for number, alpha in self._of_parts(plan, own, k):
                run.store(k * len(plan.parts) + number, alpha.times(factor))

    def _of_parts(
        self, plan: MemoryPlan, own: Sequence[int], k: int
    ) -> Iterator[tuple[int, Alphas]]:
        """Yield parts of a plan and their alphas, for the k-th problem; without those of new rows.

        Of new rows all alphas are 0.
        """
        whole, block = no_alphas(0, self._first.lists), -1
        for number in own:
            part = plan.parts[number]
            if all(piece.block not in self._was for piece in part.pieces):
                continue
            found = []
            for piece in part.pieces:
                if piece.block != block:
                    whole, block = self._of_block(k, piece.block), piece.block
                found.append(whole.take(self._places(piece)))
            yield number, join(found)

    def _of_block(self, k: int, block: int) -> Alphas:
        """Return the alphas of a block of the store, for the k-th problem."""
        whole = no_alphas(sum(c.rows for c in self._store.chunks[block]), self._first.lists)
        for number, part in enumerate(self._parts):
            begins = itertools.accumulate((piece.rows for piece in part), initial=0)
            for piece, begin in zip(part, begins, strict=False):
                process = next((one for one in self._processes if one.has(number)), None)
                if piece.block == self._was.get(block) and process is not None:
                    alpha = self._of_part(process, k, number).part(begin, piece.rows)
                    whole.put(self._places(replace(piece, block=block)), alpha)
        return whole

    def _of_part(self, process: _Process, k: int, part: int) -> Alphas:
        """Return the alphas of a part of the earlier training, including cached rows."""
        alpha = process.run.load(k * len(self._parts) + part)
        alpha.put(*process.cached(k, part))
        return alpha

    def _places(self, piece: Piece) -> npt.NDArray[np.int64]:
        """Return the row numbers, within their block, of a piece."""
        chunks = self._store.chunks[piece.block]
        begins = itertools.accumulate((chunk.rows for chunk in chunks), initial=0)
        rows = list(itertools.starmap(np.arange, itertools.pairwise(begins)))
        mine = rows[piece.first :: max(1, piece.step)]
        if sum(map(len, mine)) != piece.rows or piece.step < 1:
            raise StoreError(
                f"{self.folder} does not match the blocks it was trained on; leave out --warm-start"
            )
        return np.concatenate(mine) if mine else np.empty(0, np.int64)

    def start(self, engine: Engine, tol: float) -> Certificate | None:
        """Set the learners' W and alphas; return the certificate of this start.

        The earlier W matches the alphas, unless Newton's method found it, some alphas are gone, or
        some were moved into new bounds. Then a first read of all blocks computes the matching W,
        and a second one certifies it. But if all rows are still there and the gap of the earlier W
        is at most `tol`, it stays.
        """
        for learner in engine.learners[: len(self._outputs)]:
            self._give_weights(learner)

        def change(visit: Visit, learner: Learner) -> None:
            alpha = visit.own[learner.number].alpha
            learner.solver.problem.make_feasible(visit.rows, alpha)
            # None of its rows is cached yet.
            admit_block(learner.solver.working.alpha, visit.block, alpha)
            engine.store_alpha(learner.number, visit.block, alpha)

        within = 0.0 if self._has_expired else tol
        certificate, found = certify(engine, change, within, SUPPORT)
        self._processes = []  # free their memory
        if certificate.drift > MOST_DRIFT:
            return replace(certificate, drift=0.0)  # as of Newton's method
        replace_weights(engine, found)
        return certificate

    def _give_weights(self, learner: Learner) -> None:
        """Set W to the earlier one; weights of new features and classes are 0."""
        was, now = self._first.of("W", learner.number), learner.solver.W
        with_bias = int(learner.solver.problem.bias > 0)
        n, columns = len(was) - with_bias, was.shape[1]
        now[:n, :columns] = was[:n]
        if with_bias:
            now[-1, :columns] = was[-1]
        now *= self._sign * self._factors[learner.number]
        learner.solver.problem.restore(
            {name: self._first.of(name, learner.number) for name in learner.solver.problem.state()}
        )
