"""Compiling the kernels of a command once, in a process of its own.

Compiling takes tens of megabytes that a process never gives back, so it does not happen in one
whose memory is bounded: the first command of its kind starts a child that runs it on a handful of
rows, and the machine code stays on disk. A marker beside that code says it is there.
"""

import itertools
import os
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import sbm
from sbm import compiled
from sbm.jobs.progress import Progress
from sbm.settings import Settings
from sbm.solver.problem import AnyProblem

__all__ = ["kernels_of", "prepare"]

_TINY = {
    "ones": "".join(f"{s}1 {k}:1 {k + 7}:1\n" for k in range(1, 20) for s in "+-"),
    "real": "".join(f"{s}1 {k}:0.5 {k + 7}:2.25\n" for k in range(1, 20) for s in "+-"),
}
_CLASS_BLOCKS = "class-blocks"
_SETTINGS: dict[str, dict[str, Any]] = {
    "svc": {},
    "svr": {"loss": "squared_epsilon_insensitive"},
    "logistic": {"loss": "log_loss"},
    "one_class": {"loss": "one_class"},
    "multiclass": {"loss": "crammer_singer"},
    "pairs": {"loss": "weston_watkins", "schedule": "pairs"},
    _CLASS_BLOCKS: {"loss": "weston_watkins", "class_blocks": 2},
}


_WITHOUT_STORE = ("split", "predict", "names")
_STREAM = "stream-"
_WEIGHTED = "-weighted"  # rows with weights have kernels of their own


def kernels_of(settings: Settings, problems: Sequence[AnyProblem], weighted: bool = False) -> str:
    """Name the kernels a training needs, for `prepare`; weights may come without a file."""
    name = str(problems[0].loss.kernel)
    if problems[0].listed:
        name = "pairs" if settings.schedule == "pairs" else "multiclass"
    return name + _WEIGHTED if weighted or settings.weights is not None else name


def prepare(command: str, value_type: str, progress: Progress) -> None:
    """See to it that a command's kernels are on disk.

    Parameters
    ----------
    command : str
        ``split``, ``predict`` (of text), ``names`` (of features), ``class-blocks``, or what
        `kernels_of` says.
    value_type : {"ones", "float32", "float64"}
    progress : Progress
        Is told when this takes a while.
    """
    if compiled.COMPILE_HERE in os.environ:
        return
    sources = sorted(Path(sbm.__file__).parent.glob("*/kernels/*.py"))
    state = compiled.fingerprint(*sources)
    marker = f"{command}-{value_type}.{state}.ready"
    if _is_there(marker):
        return
    if command not in _WITHOUT_STORE:  # its child splits a few rows first
        prepare("split", "float32" if value_type == "ones" else value_type, progress)
    what = command if command in _WITHOUT_STORE else "training"
    what = "the stream" if command.startswith(_STREAM) else what
    progress.wait(f"compiling the kernels of {what}, once; this takes up to half a minute")
    if unusable := compiled.unusable():
        progress.wait(
            f"they cannot be kept for the next command in {' or '.join(map(str, unusable))}, which "
            f"we cannot write to, or others can; name a folder of your own in {compiled.FOLDER}"
        )
    try:
        with tempfile.TemporaryDirectory(prefix="sbm-", ignore_cleanup_errors=True) as folder:
            order = f"from sbm.jobs.warm import run; run({command!r}, {value_type!r}, {folder!a})"
            problem, _ = compiled.run_compiler(order)
    except OSError as error:
        problem = str(error)
    if problem:
        progress.note(f"compiling ahead failed ({problem}); compiling kernel by kernel instead")
    else:
        compiled.keep(marker, b"")


def _is_there(marker: str) -> bool:
    return any(os.path.exists(place / marker) for place in compiled.places())


def run(command: str, value_type: str, folder: str) -> None:
    """Run a command on a handful of rows, in the child.

    Parameters
    ----------
    command, value_type : str
        As for `prepare`.
    folder : str
        For its files; an empty one.
    """
    if command == "predict":
        return _predict(Path(folder))
    if command == "names":
        return _names()
    if command.startswith(_STREAM):
        return _stream(command.removeprefix(_STREAM), value_type, Path(folder))
    from sbm.jobs.split import split
    from sbm.jobs.train import train

    dtype = "float32" if value_type == "ones" else value_type
    kinds = _TINY if command == "split" else {"": _TINY["ones" if value_type == "ones" else "real"]}
    source, store = Path(folder, "t.svm"), Path(folder, "t.sbm")
    for text in kinds.values():
        source.write_text(text, "ascii")
        split([source], store, dtype=dtype, blocks=2, force=True, min_count=2)
        split([source], store, dtype=dtype, blocks=2, force=True)
    if command != "split":
        settings = Settings(rounds=2, **_SETTINGS[command.removesuffix(_WEIGHTED)])
        if command.endswith(_WEIGHTED):
            weights = Path(folder, "weights.txt")
            weights.write_text("1\n" * text.count("\n"), "ascii")
            settings = replace(settings, weights=str(weights))
        if command == _CLASS_BLOCKS:
            return _train_class_blocks(store, Path(folder, "t.model"), settings)
        train(store, Path(folder, "t.model"), settings)
    return None


def _train_class_blocks(store: Path, model: Path, settings: Settings) -> None:
    from sbm.distributed.comm import SerialComm
    from sbm.jobs.classblocks import train_class_blocks
    from sbm.store.blocks import BlockStore

    train_class_blocks(BlockStore(store), model, settings, SerialComm())


def _stream(kind: str, value_type: str, folder: Path) -> None:
    from sbm.jobs.stream import stream
    from sbm.solver.online import ONLINE

    learners = list(ONLINE) if kind == "online" else ["sbm"]
    few = _TINY["ones" if value_type == "ones" else "real"]
    many = "".join(f"{k % 3}{line[2:]}\n" for k, line in enumerate(few.splitlines()))
    dtype = "float64" if value_type == "float64" else "float32"
    source = folder / "t.svm"
    texts = (few, many) if kind in ("online", "multiclass") else (few,)
    for text, learner in itertools.product(texts, learners):
        source.write_text(text, "ascii")
        settings = Settings(**_SETTINGS.get(kind, {}))
        options = {"learner": learner, "dtype": dtype}
        stream(source, folder / "t.model", settings, options=options)


def _names() -> None:
    from sbm.store.libsvm import SPARE
    from sbm.store.vw import hash_names, parse_vw

    text = np.frombuffer(b"1 |f a:0.5 b\n" + bytes(SPARE), np.uint8).copy()
    parse_vw(text, len(text) - SPARE, mask=1023)
    hash_names([b"a"], 10)


def _predict(folder: Path) -> None:
    from sbm.jobs.predict import predict
    from sbm.store.model import Model

    ids = np.arange(1, 27, dtype=np.int64)
    source = folder / "t.svm"
    for text in _TINY.values():
        source.write_text(text, "ascii")
        for labels, n_columns in (([-1.0, 1.0], 1), ([-1.0, 0.0, 1.0], 3)):
            predict(Model(ids, np.ones((len(ids), n_columns)), labels), source)
