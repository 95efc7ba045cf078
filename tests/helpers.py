"""Helpers shared by several test files."""

import importlib.util
import itertools
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
from inside import Alphas, BlockStore, Dense, Lists, Progress, Rows
from slow_parser import Row
from slow_parser import slow_parse as slow_parse  # re-exported

import sbm

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


def load_script(name: str) -> ModuleType:
    """Import ``scripts.NAME``."""
    return importlib.import_module(f"scripts.{name}")


# ------------------------------------------------------------------------------ whole trainings


class Passes(Progress):
    """Progress that keeps the record of each pass and the text of each stage."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.stages: list[str] = []

    def stage(self, text: str) -> None:
        self.stages.append(text)

    def row(self, record: Any) -> None:
        self.rows.append(record)


def write_rows(path: Path, X: npt.NDArray[np.floating], labels: Iterable[float]) -> Path:
    """Write LIBSVM text; features are numbered from 1."""
    lines = []
    for x, label in zip(X, labels, strict=True):
        features = " ".join(f"{k + 1}:{float(x[k])!r}" for k in np.flatnonzero(x))
        lines.append(f"{label:g} {features}\n")
    path.write_text("".join(lines))
    return path


def fit(
    store: Path, name: str = "m.model", **settings: Any
) -> tuple[sbm.Model, dict[str, Any], list[dict[str, Any]]]:
    """Train on a store; return model, report and passes."""
    progress = Passes()
    chosen = sbm.Settings(**{"mem": "400MB", **settings})
    model, report = sbm.train(store, store.parent / name, chosen, progress=progress)
    return model, report, progress.rows


def full_weights(model: sbm.Model, n_features: int) -> npt.NDArray[np.float64]:
    """Return the weights of features 1 to `n_features`, 0 for features not in the model."""
    W = np.zeros((n_features, model.W.shape[1]))
    W[model.ids - 1] = model.W
    return W


# ----------------------------------------------------------------- variables as plain Python

Variables = list[tuple[int, float]]  # (output, variable) of a row


def lists_of(rows: Iterable[Variables]) -> Lists:
    """Convert plain lists to lists of variables."""
    flat = list(rows)
    offsets = np.cumsum([0, *map(len, flat)]).astype(np.int64)
    outputs = np.array([k for row in flat for k, _ in row], np.int32)
    return Lists(offsets, outputs, np.array([value for row in flat for _, value in row], float))


def plain(alpha: Alphas) -> list[float] | list[Variables]:
    """Convert variables to plain Python, row by row."""
    if isinstance(alpha, Dense):
        return alpha.values.tolist()
    return [
        list(zip(alpha.outputs[a:b].tolist(), alpha.values[a:b].tolist(), strict=True))
        for a, b in itertools.pairwise(alpha.offsets.tolist())
    ]


# -------------------------------------------------------------------------- rows as plain Python


def as_rows(
    labels: npt.ArrayLike,
    starts: npt.ArrayLike,
    lengths: npt.ArrayLike,
    ids: npt.NDArray[np.integer],
    values: npt.NDArray[np.floating] | None,
) -> list[Row]:
    """Convert arrays to plain Python rows with sorted ids."""
    rows = []
    for label, start, length in zip(
        np.asarray(labels).tolist(),
        np.asarray(starts).tolist(),
        np.asarray(lengths).tolist(),
        strict=True,
    ):
        part = slice(start, start + length)
        kept = [1.0] * length if values is None else values[part].tolist()
        rows.append((float(label), tuple(sorted(zip(ids[part].tolist(), kept, strict=True)))))
    return rows


def store_rows(folder: str | Path) -> list[list[Row]]:
    """Return the rows of each block of a store, in stored order."""
    store = BlockStore(folder)
    ids = store.read_feature_ids()
    blocks = []
    for chunks in store.chunks:
        n, nnz = sum(c.rows for c in chunks), sum(c.nnz for c in chunks)
        room = Rows(
            np.empty(n, np.int64),
            np.empty(n, np.int32),
            np.empty(nnz + 5, np.int32),
            None if store.value_type == "ones" else np.empty(nnz + 5, store.value_type),
            np.empty(n, np.float64 if store.labels is None else np.int32),
        )
        rows = store.read(chunks, room, 5)
        labels = rows.y if store.labels is None else np.array(store.labels)[rows.y]
        used = slice(5, 5 + nnz)
        values = None if rows.values is None else rows.values[used]
        blocks.append(
            as_rows(labels, rows.starts - 5, rows.lengths, ids[rows.indices[used]], values)
        )
    return blocks


def features_of(data: Any, folder: Path, **options: Any) -> list[dict[str, float]]:
    """Features of each row of a table by name, in the order of the table."""
    name = folder / "turn.sbm"
    options = {"dtype": "float64", "shuffle": False, "blocks": 1, "force": True, **options}
    sbm.split(data, name, **options)
    store = BlockStore(name)
    names = dict(zip(store.read_feature_ids().tolist(), store.read_names() or (), strict=True))
    return [{names[i]: value for i, value in row} for _, row in store_rows(name)[0]]
