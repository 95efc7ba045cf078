"""Precompile: run a command on a handful of rows, so that its kernels are compiled and kept.

`sbm.jobs.machine.kernels` starts this in a child of the first command of its kind.
"""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sbm.jobs.machine.kernels import CLASS_BLOCKS, STREAM, WEIGHTED
from sbm.losses import LOSSES
from sbm.settings import Settings

__all__ = ["run"]

_TINY = {
    "ones": "".join(f"{s}1 {k}:1 {k + 7}:1\n" for k in range(1, 20) for s in "+-"),
    "real": "".join(f"{s}1 {k}:0.5 {k + 7}:2.25\n" for k in range(1, 20) for s in "+-"),
}
_SETTINGS: dict[str, dict[str, Any]] = {
    # The first loss of a kernel: one whose variables rest, so that rows are screened.
    **{loss.kernel: {"loss": loss.name} for loss in reversed(LOSSES.values()) if loss.kernel},
    "multiclass": {"loss": "crammer_singer"},
    "pairs": {"loss": "weston_watkins", "schedule": "pairs"},
    CLASS_BLOCKS: {"loss": "weston_watkins", "class_blocks": 2},
}


def run(command: str, value_type: str, folder: str) -> None:
    """Precompile: run a command on a handful of rows, in the child.

    Parameters
    ----------
    command, value_type : str
        As for `sbm.jobs.machine.kernels.prepare`.
    folder : str
        For its files; an empty one.
    """
    if command == "predict":
        return _predict(Path(folder))
    if command == "names":
        return _names()
    if command.startswith(STREAM):
        return _stream(command.removeprefix(STREAM), value_type, Path(folder))
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
        settings = Settings(rounds=2, **_SETTINGS[command.removesuffix(WEIGHTED)])
        if command.endswith(WEIGHTED):
            weights = Path(folder, "weights.txt")
            weights.write_text("1\n" * text.count("\n"), "ascii")
            settings = replace(settings, weights=str(weights))
        if command == CLASS_BLOCKS:
            return _train_class_blocks(store, Path(folder, "t.model"), settings)
        train(store, Path(folder, "t.model"), settings)
    return None


def _train_class_blocks(store: Path, model: Path, settings: Settings) -> None:
    from sbm.distributed.comm import SerialComm
    from sbm.jobs.classblocks.training import train_class_blocks
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
    from sbm.store.parsing import SPARE
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
