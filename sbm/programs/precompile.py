"""Precompile: run commands on a few rows, so that their kernels are compiled and stored.

`precompile` does this for all commands, in one process per core. `sbm.engine.kernels.prepare` does
it for one command when it first runs.
"""

import contextlib
import importlib
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm import compiled
from sbm.compiled import load
from sbm.distributed.comm import Message, SerialComm
from sbm.engine.kernels import (
    NEWTON,
    RANKS,
    SPARSE,
    STREAM,
    WEIGHTED,
    compile_ahead,
    is_ready,
)
from sbm.engine.machine import usable_threads
from sbm.engine.progress import Progress
from sbm.errors import MemoryPlanError, SbmError, SettingsError
from sbm.losses import LOSSES
from sbm.settings import Settings

_TINY = {
    "ones": "".join(f"{s}1 {k}:1 {k + 7}:1\n" for k in range(1, 20) for s in "+-"),
    "real": "".join(f"{s}1 {k}:0.5 {k + 7}:2.25\n" for k in range(1, 20) for s in "+-"),
    # More values than a table holds, and ids that are not sorted.
    "many": "".join(f"{s}1 9:{k}.5 3:{k}.25\n" for k in range(1, 400) for s in "+-"),
}
_SETTINGS: dict[str, dict[str, Any]] = {
    # The first loss of each kernel: one with alphas at bounds, so that rows are screened.
    **{loss.kernel: {"loss": loss.name} for loss in reversed(LOSSES.values()) if loss.kernel},
    "multiclass": {"loss": "weston_watkins"},
    "one-vs-rest": {"loss": "hinge"},
    # The weight of a class keeps the weights of features from being 0.
    SPARSE: {
        "loss": "log_loss",
        "penalty": "l1",
        "rounds": "auto",
        "parts": "auto",
        "C": 10.0,
        "tol": 1e-9,
        "intercept": True,
        "class_weight": {1.0: 3.0},
    },
}
_MANY_CLASSES = ("multiclass", "one-vs-rest")
_WITH_NEWTON = ("logistic", "svc", "svr", "multiclass")
# Other settings that use the same kernel with other types.
_MORE = {
    "svr": [{"loss": "squared_error", "task": "classification"}],
    # Without an intercept, features have weights; in the least memory, columns are packed.
    SPARSE: [
        _SETTINGS[SPARSE] | {"intercept": False, "mem": mem} for mem in ("2GB", "2GB", "1MB", "1MB")
    ],
}


def precompile(
    losses: Iterable[str] = (),
    dtype: str = "float32",
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Compile the kernels of all commands ahead of their first use.

    Otherwise each command compiles what it needs the first time it runs.

    Parameters
    ----------
    losses : iterable of str, optional
        Losses to train with. Default: all.
    dtype : {"float32", "float64"}, optional
        Type of the values of stores. Values that are all 1 are included.
    threads : int, optional
        Number of processes that compile at the same time. Default: one per core.
    progress : Progress, optional
        Receives the kernels compiled.

    Returns
    -------
    dict
        ``folder`` of the machine code, the number of ``kernels`` there, and ``seconds``.

    Raises
    ------
    SettingsError
        An unknown loss or dtype.
    SbmError
        A kernel cannot be compiled.
    """
    begin = time.perf_counter()
    chosen = list(losses) or list(LOSSES)
    if unknown := [name for name in chosen if name not in LOSSES]:
        raise SettingsError(f"unknown loss {unknown[0]!r}; expected one of {', '.join(LOSSES)}")
    if dtype not in ("float32", "float64"):
        raise SettingsError(f"dtype is {dtype!r}; it must be float32 or float64")
    tasks = [
        (commands, value_type)
        for commands, value_type in _tasks(chosen, dtype)
        if not all(is_ready(command, value_type) for command in commands)
    ]
    progress = Progress.of(progress)
    progress.start("compiling", len(tasks), "steps")
    done = 0
    with ThreadPoolExecutor(usable_threads(threads)) as pool:
        try:
            for problem in pool.map(lambda task: compile_ahead(*task), tasks):
                if problem:
                    raise SbmError(f"cannot compile a kernel: {problem}")
                progress.advance(done := done + 1)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            compiled.stop_compilers()
            raise
    progress.finish()
    return {
        "folder": str(compiled.folder()), "kernels": len(list(compiled.folder().glob("*.sbk"))),
        "seconds": time.perf_counter() - begin,
    }  # fmt: skip


def _tasks(losses: Iterable[str], dtype: str) -> list[tuple[list[str], str]]:
    """Return tasks: commands that share kernels, and a value type; longest tasks first."""
    tasks = []
    chosen = [LOSSES[name] for name in losses]
    kernels = {loss.kernel or "multiclass" for loss in chosen}
    kernels |= {"one-vs-rest" for loss in chosen if loss.kind is not None and not loss.joint}
    for kernel in sorted(kernels, key=lambda name: (name not in _MANY_CLASSES, name)):
        commands = [kernel, kernel + WEIGHTED, STREAM + kernel]
        if kernel != "one-vs-rest":  # ranks usually divide the classes
            commands.append(kernel + RANKS)
        if kernel in _WITH_NEWTON:
            commands += [kernel + NEWTON, kernel + NEWTON + WEIGHTED]
        tasks += [(commands, dtype), (commands, "ones")]
    tasks += [([SPARSE], dtype), ([SPARSE], "ones")]
    tasks += [(["split", "validate"], dtype), (["names", "predict"], "float64")]
    return [*tasks, (["validate"], "ones")]


def run(commands: Sequence[str], value_type: str, folder: str, workers: int = 1) -> None:
    """Run commands on a few rows, in a child process.

    Parameters
    ----------
    commands : sequence of str
        As for `sbm.engine.kernels.prepare`.
    folder : str
        Empty folder for temporary files.
    workers : int
        Number of processes that compile in parallel.
    """
    if workers > 1:
        _compile_together(commands, value_type, folder, workers)
    for command in commands:
        _run(command, value_type, Path(folder))


def _compile_together(commands: Sequence[str], value_type: str, folder: str, workers: int) -> None:
    """Compile the kernels of commands in parallel; `run` compiles any that are missed."""
    fork = multiprocessing.get_context("fork")  # workers have numba imported already
    found, end = fork.Pipe(duplex=False)
    arguments = (end.send, commands, value_type, folder, os.getpid())
    scout = fork.Process(target=_scout, args=arguments)
    scout.start()
    end.close()  # so that recv raises EOFError after the scout has ended
    importlib.import_module("numba")
    with (
        ProcessPoolExecutor(workers, fork, compiled.end_with, (os.getpid(),)) as pool,
        contextlib.suppress(EOFError),
    ):
        while True:
            pool.submit(_compile, *found.recv())
    scout.join()


def _compile(module: str, name: str, kinds: tuple[str, ...]) -> None:
    compiled.Kernel(module, name)._link(kinds)


def _scout(
    tell: Callable[[tuple[str, str, tuple[str, ...]]], None],
    commands: Sequence[str],
    value_type: str,
    folder: str,
    parent: int,
) -> None:
    """Run commands with the solver's kernels interpreted by Python, and report these kernels.

    This takes half a second on the few rows. Other kernels use instructions that Python lacks; they
    are compiled here unless they are on disk.
    """
    compiled.end_with(parent)
    config = importlib.import_module("numba").config
    plain = importlib.import_module("sbm.solver.kernels.vectors").PLAIN
    intrinsic = importlib.import_module("numba.core.extending")._Intrinsic
    setattr(  # noqa: B010  only in this process
        intrinsic, "__call__", lambda self, *values: plain[self._name](*values)
    )
    call, known = compiled.Kernel.__call__, set()

    def interpret(kernel: compiled.Kernel, *values: Any) -> Any:
        if not kernel.module.startswith("sbm.solver."):
            return call(kernel, *values)
        key = (kernel.module, kernel.name, tuple(map(compiled._kind, values)))
        if key not in known:
            known.add(key)
            tell(key)
        config.DISABLE_JIT = True  # takes effect when a kernel is defined
        function = getattr(importlib.import_module(kernel.module), kernel.name)
        config.DISABLE_JIT = False
        return function(*values)

    setattr(compiled.Kernel, "__call__", interpret)  # noqa: B010  only in this process
    place = Path(folder, "scout")
    place.mkdir()
    with np.errstate(all="ignore"), contextlib.suppress(Exception):
        for command in commands:
            _run(command, value_type, place)


def _run(command: str, value_type: str, folder: Path) -> None:
    """Run one command on a few rows, after splitting them if it needs a store."""
    if command == "predict":
        return _predict(folder)
    if command == "names":
        return _names()
    if command == "validate":
        return _validate(value_type)
    if command.startswith(STREAM):
        return _stream(command.removeprefix(STREAM), value_type, folder)
    from sbm.engine import sync
    from sbm.programs.info import check
    from sbm.programs.split import split
    from sbm.programs.train import train, train_ranks
    from sbm.programs.training import task

    dtype = "float32" if value_type == "ones" else value_type
    kinds = _TINY if command == "split" else {"": _TINY["ones" if value_type == "ones" else "real"]}
    if command.startswith(_MANY_CLASSES):
        kinds = {"": _with_classes(4, kinds[""])}
    source, store = Path(folder, "t.svm"), Path(folder, "t.sbm")
    for text in kinds.values():
        source.write_text(text, "ascii")
        split([source], store, dtype=dtype, blocks=2, force=True, min_count=2)
        split([source], store, dtype=dtype, blocks=2, force=True)
        check(store)
    if command != "split":
        weights = Path(folder, "weights.txt")
        weights.write_text("1\n" * text.count("\n"), "ascii")
        kernel = command.removesuffix(RANKS).removesuffix(WEIGHTED).removesuffix(NEWTON)
        l1 = vars(importlib.import_module("sbm.solver.l1"))
        usual_l1 = dict(l1)
        for k, chosen in enumerate([_SETTINGS[kernel], *_MORE.get(kernel, [])]):
            if kernel == SPARSE:
                # So that conjugate gradients, or a matrix of products, follow.
                l1.update(_SWEEPS=1, _GRAM_SHARE=0, MOST_GRAM=500 * (k % 2))
            solver = "newton" if NEWTON in command else "dual"
            usual = {"rounds": 2, "parts": "blocks", "solver": solver}
            settings = Settings(**{**usual, **chosen})
            if WEIGHTED in command:
                settings = replace(settings, weights=str(weights))
            path = Path(folder, f"{command}-{k}.model")
            if command.endswith(RANKS):
                usual_size = sync.DENSE
                for sync.DENSE in (0, usual_size):  # changes are whole arrays, or lists
                    name = path.with_stem(f"{path.stem}-{sync.DENSE}")
                    train_ranks(_Twin(), store, name, settings)
                continue
            try:
                train(store, path, settings)
            except MemoryPlanError as error:
                train(store, path, replace(settings, mem=error.least_bytes))
            if NEWTON in command:
                most, task.MOST_FEATURES = task.MOST_FEATURES, 0  # without a matrix
                # The first weights are not the optimum.
                settings = replace(settings, C=9.0, tol=1e-18)
                if kernel == "logistic":
                    settings = replace(settings, class_weight={1.0: 3.0})
                train(store, path, replace(settings, max_passes=2), resume=False)
                task.MOST_FEATURES = most
        l1.update(usual_l1)
    return None


def _with_classes(n: int, text: str) -> str:
    """Replace the two-character labels of rows by labels 0 to n - 1."""
    return "".join(f"{k % n}{line[2:]}\n" for k, line in enumerate(text.splitlines()))


def _stream(kind: str, value_type: str, folder: Path) -> None:
    from sbm.programs.stream import stream

    few = _TINY["ones" if value_type == "ones" else "real"]
    many = _with_classes(3, few)
    dtype = "float64" if value_type == "float64" else "float32"
    source = folder / "t.svm"
    texts = {"multiclass": (few, many), "one-vs-rest": (many,)}.get(kind, (few,))
    for text in texts:
        source.write_text(text, "ascii")
        settings = Settings(loss=_SETTINGS[kind]["loss"])
        stream(source, folder / "s.model", settings, options={"dtype": dtype})


def _names() -> None:
    from sbm.inputs.parsing import SPARE
    from sbm.inputs.vw import hash_names, parse_vw

    text = np.frombuffer(b"1 |f a:0.5 b\n" + bytes(SPARE), np.uint8).copy()
    parse_vw(text, len(text) - SPARE, mask=1023)
    hash_names([b"a"], 10)
    load("sbm.store.kernels.sorting").sort_rows(
        np.array([0, 1]), np.ones(1, np.int64), np.ones(1)
    )  # of tables


def _validate(value_type: str) -> None:
    from sbm.engine.learners import Folds
    from sbm.programs.training.validation import hold_out
    from sbm.rows import Arena
    from sbm.solver.problem import decide

    rows = Arena.of(1, value_type).room(0)
    hold_out(rows, np.ones(1, np.int64), 0.5)
    Folds(2, 0).assign(0, 0, rows, np.empty(0, np.uint8))
    for n_outputs in (1, 3):
        decide(rows, np.ones((1, n_outputs)), 0.0)


class _Twin(SerialComm):
    """The first of two ranks that do the same."""

    size = 2

    def gather(self, numbers: Sequence[float]) -> npt.NDArray[np.float64]:
        return np.array([numbers, numbers], np.float64)

    def collect(
        self, mine: npt.NDArray[Any], sizes: npt.NDArray[np.int64]
    ) -> list[npt.NDArray[Any]]:
        return [mine, mine]

    def share(self, content: Any) -> list[Any]:
        return super().share(content) * 2

    def exchange(self, send: Sequence[Message], receive: Sequence[Message]) -> None:
        pass


def _predict(folder: Path) -> None:
    from sbm.models.model import Model
    from sbm.programs.predict import predict

    ids = np.arange(1, 27, dtype=np.int64)
    source = folder / "t.svm"
    for name in ("ones", "real"):
        source.write_text(_TINY[name], "ascii")
        for labels, n_columns in (([-1.0, 1.0], 1), ([-1.0, 0.0, 1.0], 3)):
            predict(Model(ids, np.ones((len(ids), n_columns)), labels), source)
