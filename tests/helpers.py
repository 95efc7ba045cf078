"""What several test files need."""

import importlib.util
import itertools
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

import sbm
from sbm.alphas import Alphas, Dense, Lists
from sbm.jobs.progress import Progress
from sbm.rows import Rows
from sbm.store.blocks import BlockStore

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


def load_script(name: str) -> ModuleType:
    """Import ``scripts/NAME.py``, which is no package, once per process."""
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(SCRIPTS / f"{name}.py"):
        return known
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


# ------------------------------------------------------------------------------ whole trainings


class Passes(Progress):
    """Keeps what is told of each pass."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

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
    """Train on a store; model, report and passes."""
    progress = Passes()
    chosen = sbm.Settings(**{"mem": "400MB", **settings})
    model, report = sbm.train(store, store.parent / name, chosen, progress=progress)
    return model, report, progress.rows


def full_weights(model: sbm.Model, n_features: int) -> npt.NDArray[np.float64]:
    """Weights of the features 1 to `n_features`, also of those that the model does not know."""
    W = np.zeros((n_features, model.W.shape[1]))
    W[model.ids - 1] = model.W
    return W


# ----------------------------------------------------------------- variables as plain Python

Variables = list[tuple[int, float]]  # (output, variable) of a row


def lists_of(rows: Iterable[Variables]) -> Lists:
    """Lists of variables from plain ones."""
    flat = list(rows)
    offsets = np.cumsum([0, *map(len, flat)]).astype(np.int64)
    outputs = np.array([k for row in flat for k, _ in row], np.int32)
    return Lists(offsets, outputs, np.array([value for row in flat for _, value in row], float))


def plain(alpha: Alphas) -> list[float] | list[Variables]:
    """Variables as plain ones, row by row."""
    if isinstance(alpha, Dense):
        return alpha.values.tolist()
    return [
        list(zip(alpha.outputs[a:b].tolist(), alpha.values[a:b].tolist(), strict=True))
        for a, b in itertools.pairwise(alpha.offsets.tolist())
    ]


# ------------------------------------------------------------ LIBSVM text, slowly and surely

Row = tuple[float, tuple[tuple[int, float], ...]]  # label, (id, value) by increasing id

LARGEST = {"float32": 3.4028234e38, "float64": 1.79769313486231e308}
_BLANKS = re.compile(rb"[ \t\r\v\f]+")
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_QUERY = re.compile(rb"qid:[0-9]+")


class _RefusedError(Exception):
    pass


def _number(token: bytes, largest: float, otherwise: str) -> float:
    shown = repr(token.decode() if len(token) <= 40 else token[:37].decode() + "...")
    found = _NUMBER.match(token)
    if found and abs(float(found[0])) > largest:
        raise _RefusedError(
            f"found {shown}, too large for the value type (float64 reaches 1.79e308, "
            "float32 3.4e38; see --dtype)"
        )
    if found is None or found[0] != token:
        if re.match(rb"[+-]?[iInN]", token):
            raise _RefusedError(f"found {shown}, but only finite numbers are allowed")
        raise _RefusedError(f"found {shown} where a {otherwise} is expected")
    return float(token)


def _slow_line(tokens: list[bytes], dtype: str) -> Row:
    label = _number(tokens[0], LARGEST["float64"], "numeric label")
    pairs: list[tuple[int, float]] = []
    for token in tokens[1:]:
        if _QUERY.fullmatch(token) and not pairs:
            continue
        shown = repr(token.decode() if len(token) <= 40 else token[:37].decode() + "...")
        digits = re.match(rb"[0-9]*", token)[0]  # type: ignore[index]
        if digits and int(digits) >= 2**63:
            raise _RefusedError(
                f"found feature id {shown}, the largest allowed id is 9223372036854775807"
            )
        if digits and token == digits:
            raise _RefusedError(f"found {shown} without a value, a feature is written as id:value")
        if not digits or token[len(digits) : len(digits) + 1] != b":":
            raise _RefusedError(f"found {shown} where a feature written as id:value is expected")
        value = _number(token[len(digits) + 1 :], LARGEST[dtype], "decimal number")
        pairs.append((int(digits), float(np.dtype(dtype).type(value))))
    pairs.sort(key=lambda pair: pair[0])
    for (before, _), (identity, _) in itertools.pairwise(pairs):
        if before == identity:
            raise _RefusedError(
                f"found feature id '{identity}' twice, each id is allowed once in a row"
            )
    return label, tuple(pairs)


def slow_parse(text: bytes, dtype: str = "float32") -> tuple[list[Row], list[tuple[int, str]]]:
    """Rows of LIBSVM text, and (line, what is wrong with it) of those that are none."""
    rows, refused = [], []
    for number, line in enumerate(text.split(b"\n"), 1):
        tokens = [token for token in _BLANKS.split(line.split(b"#", 1)[0]) if token]
        if not tokens:
            continue
        try:
            rows.append(_slow_line(tokens, dtype))
        except _RefusedError as error:
            refused.append((number, str(error)))
    return rows, refused


def as_rows(
    labels: npt.ArrayLike,
    starts: npt.ArrayLike,
    lengths: npt.ArrayLike,
    ids: npt.NDArray[np.integer],
    values: npt.NDArray[np.floating] | None,
) -> list[Row]:
    """Arrays as plain Python rows, ids sorted."""
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
    """The rows of each block of a store, in the order in which they lie there."""
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
