"""Warm starts: the alphas of an earlier training as the first ones of another.

Any alphas inside their bounds are a legal start, if W is the one that belongs to them. So a run of
the same loss on the same store, or on what the store was before rows were appended, can be gone on
with: with another C all alphas are multiplied by C' / C, which leaves those at a bound there; new
rows start at 0.
"""

import itertools
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.alphas import Alphas, Dense, Lists, no_alphas
from sbm.errors import SettingsError, StoreError
from sbm.jobs.engine import Engine, Learner, Visit, ray
from sbm.jobs.memory import MemoryPlan, Part, cut_block
from sbm.settings import Settings
from sbm.solver.gap import Certificate
from sbm.solver.problem import AnyProblem
from sbm.store.blocks import BlockStore, Chunk
from sbm.store.files import lock, write_error
from sbm.store.run import Run

__all__ = ["Earlier", "find_run", "shape_record"]

Floats = npt.NDArray[np.float64]


def shape_record(
    store: BlockStore, plan: MemoryPlan, problems: Sequence[AnyProblem]
) -> dict[str, Any]:
    """Return what a run must say of itself so that another training can start from it."""
    return {
        "blocks": _signature(store),
        "cuts": plan.cuts,
        "outputs": [problem.n_outputs for problem in problems],
        "listed": problems[0].listed,
    }


def _signature(store: BlockStore) -> list[list[int]]:
    """Return what tells blocks of other rows from these, as far as sizes can."""
    blocks = store.manifest["blocks"]
    return [[entry[name] for name in ("rows", "nnz", "bytes")] for entry in blocks]


def find_run(path: str | Path) -> Path:
    """Return the run that is meant: a folder, or the one beside a model.

    Raises
    ------
    StoreError
        There is none with a commit.
    """
    path = Path(path)
    beside = path.with_name(path.name + ".run")
    for folder in (path, beside, _aside(path), _aside(beside)):
        if (folder / "run.json").is_file():
            return folder
    what, where = "is not there", beside.name
    if path.is_dir():
        what, where = "is no run", "MODEL.run"
    elif path.exists():
        what = "has no run beside it"
    raise StoreError(
        f"{path} {what}: a warm start takes the alphas of an earlier training, which are in "
        f"{where}; leave out --warm-start to start from nothing"
    )


def _aside(folder: Path) -> Path:
    return folder.with_name(folder.name + ".before")


class Earlier:
    """The run of an earlier training.

    Parameters
    ----------
    folder : Path
    store : BlockStore
    settings : Settings
        Of the training to come.
    problems : sequence of Problem, MultiProblem or OneClass

    Raises
    ------
    SettingsError
        It solved another problem.
    StoreError
        It is damaged, or belongs to other data.
    """

    def __init__(
        self, folder: Path, store: BlockStore, settings: Settings, problems: Sequence[AnyProblem]
    ) -> None:
        self.folder, self._store = folder, store
        self._replaced: Path | None = None
        record = Run.read(folder)
        try:
            shape, was = record["shape"], record["settings"]
            self._was_blocks, self._cuts = list(shape["blocks"]), int(shape["cuts"])
            self._block_rows = [int(rows) for rows, _, _ in self._was_blocks]
            outputs, listed = list(shape["outputs"]), bool(shape["listed"])
            factor = settings.C / float(was["C"]) if was["loss"] != "one_class" else 1.0
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(
                f"{folder} cannot be started from ({error}); an older version wrote it"
            ) from error
        self._refuse_others(was, outputs, listed, settings, problems)
        old_parts = self._parts(store.chunks[: len(self._block_rows)], self._cuts)
        self._n_old = len(old_parts)
        rows = [part.rows for part in old_parts] * len(outputs)
        self._run, self._state = Run.reopen(folder, rows, max(outputs) if listed else None)
        self._old_parts, self._outputs = old_parts, outputs
        self._factors = [
            factor * ray(float(self._of("dual_sum", k)[0]), self._of("W", k), factor)
            for k in range(len(outputs))
        ]

    def _refuse_others(
        self,
        was: dict[str, Any],
        outputs: list[int],
        listed: bool,
        settings: Settings,
        problems: Sequence[AnyProblem],
    ) -> None:
        """Notice another problem, or other data."""
        for name in ("loss", "task", "schedule", "bias"):
            now = getattr(settings, name)
            if was.get(name) != now:
                raise SettingsError(
                    f"{self.folder} was trained with {name} {was.get(name)}, now it is {now}; "
                    "a warm start keeps it, leave out --warm-start to change it"
                )
        if _signature(self._store)[: len(self._was_blocks)] != self._was_blocks:
            raise StoreError(
                f"{self.folder} was trained on other data than {self._store.folder}: only blocks "
                "that were appended since may be new; leave out --warm-start"
            )
        grown = [problem.n_outputs for problem in problems]
        as_before = len(grown) == len(outputs) or (len(grown) > len(outputs) > 1)
        if listed != problems[0].listed or not as_before:
            raise SettingsError(
                f"{self.folder} solved {len(outputs)} problems of {max(outputs)} columns, now "
                f"there are {len(grown)} of {max(grown)}; leave out --warm-start"
            )

    @staticmethod
    def _parts(blocks: Sequence[Sequence[Chunk]], cuts: int) -> list[Part]:
        return [part for chunks in blocks for part in cut_block(chunks, cuts)]

    def step_aside(self, folder: Path) -> None:
        """Move out of the way if a new run is about to take this one's place.

        What lies there is the new one's from now on, and `remove` removes it.

        Raises
        ------
        StoreError
            Another process trains this model, or the run cannot be moved.
        """
        aside = _aside(folder)
        self._replaced = aside
        if not folder.exists() or not self.folder.samefile(folder):
            return
        with lock(folder / "lock", f"the run {folder}"):
            try:
                if aside.exists():
                    shutil.rmtree(aside)
                folder.rename(aside)
            except OSError as error:
                raise write_error(aside, error) from error
        self.folder = self._run.folder = aside

    def hand_over(self, run: Run, plan: MemoryPlan) -> None:
        """Put the alphas where a new run expects them, whatever parts the blocks were cut in."""
        for k in range(len(self._outputs)):
            for block, alpha in self._blocks(k):
                for number, part in enumerate(plan.parts):
                    if part.block == block:
                        places = _places(self._store.chunks[block], part.chunks)
                        home = k * len(plan.parts) + number
                        run.store(home, alpha.take(places).times(self._factors[k]))

    def _blocks(self, k: int) -> Iterator[tuple[int, Alphas]]:
        """Yield the alphas of each block, of the k-th problem."""
        numbered = enumerate(self._old_parts)
        for block, parts in itertools.groupby(numbered, key=lambda pair: pair[1].block):
            whole = no_alphas(self._block_rows[block], self._run_lists)
            for number, part in parts:
                alpha = self._run.load(k * self._n_old + number)
                rows, cached = self._cached(k, number)
                alpha.put(rows, cached)
                whole.put(_places(self._store.chunks[block], part.chunks), alpha)
            yield block, whole

    @property
    def _run_lists(self) -> bool:
        return "alpha_offsets" in self._state

    def _of(self, name: str, k: int) -> npt.NDArray[Any]:
        return self._state[name if k == 0 else f"{name}-{k}"]

    def _cached(self, k: int, part: int) -> tuple[npt.NDArray[np.int32], Alphas]:
        """Rows of a part that were in the cache, and their alphas."""
        mine = np.flatnonzero(self._of("home", k) == part)
        alpha: Alphas = Dense(self._of("alpha", k))
        if self._run_lists:
            offsets, outputs = self._of("alpha_offsets", k), self._of("alpha_outputs", k)
            alpha = Lists(offsets, outputs, self._of("alpha", k))
        return self._of("row", k)[mine], alpha.take(mine)

    def start(self, engine: Engine) -> Certificate:
        """Give the learners W and alphas to start with; return the certificate of that start."""
        for learner in engine.learners[: len(self._outputs)]:
            self._give_weights(learner)

        def change(visit: Visit, learner: Learner) -> None:
            alpha = visit.alpha[learner.number]
            learner.solver.problem.make_feasible(visit.rows, alpha)
            learner.solver.working.alpha.admit(visit.block, alpha)
            engine.keep(visit.block, learner, alpha)

        found = engine.certify(change=change)
        certificate = Certificate.total([one for one, _ in found.values()])
        engine.replace_weights(found)
        self._state = {}  # its memory
        return certificate

    def _give_weights(self, learner: Learner) -> None:
        """Let W be the earlier one; features and classes that are new have no weight yet."""
        was, now = self._of("W", learner.number), learner.solver.W
        with_bias = int(learner.solver.problem.bias > 0)
        n, columns = len(was) - with_bias, was.shape[1]
        now[:n, :columns] = was[:n]
        if with_bias:
            now[-1, :columns] = was[-1]
        now *= self._factors[learner.number]
        learner.solver.problem.restore(
            {name: self._of(name, learner.number) for name in learner.solver.problem.state()}
        )

    def remove(self) -> None:
        """Remove the run that the one that is finished now has replaced."""
        if self._replaced is not None:
            shutil.rmtree(self._replaced, ignore_errors=True)


def _places(block: Sequence[Chunk], chunks: Sequence[Chunk]) -> npt.NDArray[np.int64]:
    """Return the numbers, in their block, of the rows of some of its chunks."""
    first = dict(zip((c.offset for c in block), _begins(block), strict=True))
    rows = [np.arange(first[c.offset], first[c.offset] + c.rows) for c in chunks]
    return np.concatenate(rows)


def _begins(block: Sequence[Chunk]) -> list[int]:
    """Return the number of each chunk's first row."""
    return [0, *itertools.accumulate(chunk.rows for chunk in block)][:-1]
