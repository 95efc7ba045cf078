"""Model files of LIBLINEAR, read and written so that both tools predict the same labels.

A file is text. It begins with header lines, in any order (any blanks separate words)::

    solver_type L2R_L2LOSS_SVC_DUAL
    nr_class 3
    label 3 1 2
    nr_feature 4
    bias 1
    w

After ``w`` follows a line for each feature 1, 2, ..., ``nr_feature`` with a weight per column, and
a line for the bias if ``bias`` is not negative. `Model` follows the same prediction rules:

- one class: one column; its label is predicted for every row.
- two classes: one column; above 0 is the first label, otherwise the second.
- more classes: one column per label; the largest wins, and the first of equal ones.
- ``MCSVM_CS`` has one column per label even with two classes, but LIBLINEAR then uses only the
  first. So only the first is read, and the second is written as its negative.
- regression: ``nr_class`` is 2, there are no labels; the single column is the prediction.
- ``ONECLASS_SVM``: as regression, with a line ``rho``; above rho is 1, otherwise -1.

Numbers are written with 17 digits, so they read back as the same float64.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from sbm.errors import StoreError
from sbm.models.model import READERS, Model, has_runs, parts, row_texts
from sbm.store.files import reading, write_atomically
from sbm.units import format_number, shorten


def load_model(model: str | Path | Model) -> Model:
    """Read a model of `sbm train` or LIBLINEAR; the first line tells which it is.

    Parameters
    ----------
    model : str, Path or Model

    Returns
    -------
    Model
        Features with only zero weights are in its `zero_ids`.

    Raises
    ------
    StoreError
        If the file is neither, or is damaged.
    """
    if isinstance(model, Model):
        return model.compact()
    return Model.load(model).compact()


Weights = npt.NDArray[np.float64]

# Solver written for each loss, for classification and for regression. LIBLINEAR also uses it to
# choose how to predict: L2R_LR gives probabilities.
_CLASSES = {
    "hinge": "L2R_L1LOSS_SVC_DUAL",
    "squared_hinge": "L2R_L2LOSS_SVC_DUAL",
    "log_loss": "L2R_LR",
    "crammer_singer": "MCSVM_CS",
    "weston_watkins": "MCSVM_CS",  # not in LIBLINEAR; same prediction rule
    "squared_error": "L2R_L2LOSS_SVC",  # not in LIBLINEAR; same prediction rule
    "one_class": "ONECLASS_SVM",
}
_REGRESSION = {
    "epsilon_insensitive": "L2R_L1LOSS_SVR_DUAL",
    "squared_epsilon_insensitive": "L2R_L2LOSS_SVR_DUAL",
    "squared_error": "L2R_L2LOSS_SVR",  # not in LIBLINEAR; same prediction rule
}
# Loss of each solver.
_LOSSES = {
    "L2R_LR": "log_loss",
    "L2R_L2LOSS_SVC_DUAL": "squared_hinge",
    "L2R_L2LOSS_SVC": "squared_hinge",
    "L2R_L1LOSS_SVC_DUAL": "hinge",
    "MCSVM_CS": "crammer_singer",
    "L1R_L2LOSS_SVC": "squared_hinge",
    "L1R_LR": "log_loss",
    "L2R_LR_DUAL": "log_loss",
    "L2R_L2LOSS_SVR": "squared_epsilon_insensitive",
    "L2R_L2LOSS_SVR_DUAL": "squared_epsilon_insensitive",
    "L2R_L1LOSS_SVR_DUAL": "epsilon_insensitive",
    "ONECLASS_SVM": "one_class",
}
_ONE_CLASS_LABELS = [-1.0, 1.0]

_LARGEST_INT = 2**31 - 1  # LIBLINEAR counts features, labels and weights in 32 bits
_MANY_LINES = 100_000_000
_SPARSE = 10  # lines per feature with weights above which the text format is rejected

_TEXT_BYTES = 8  # a weight takes this many times its memory while it is text
_READ = 1 << 16  # bytes read at a time
_LONGEST_WORD = 400  # bytes
_BLANKS = b" \t\n\r\v\f"
_WORD = re.compile(rb"\S+")
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WHOLE = re.compile(rb"[+-]?[0-9]{1,10}")
_AGAIN = "save the model with LIBLINEAR again"


# ------------------------------------------------------------------------------------- reading


class _Words:
    """Words of a file, read in parts; lines are counted so that errors can name them.

    As in LIBLINEAR, line ends are no more than blanks.
    """

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path, self.line = path, 1  # line: number of that of the last word
        self._file, self._text, self._at = file, b"", 0
        self._is_over = False

    def next(self) -> bytes:
        """Return the next word, empty at the end of the file."""
        while True:
            found = _WORD.search(self._text, self._at)
            if found and (found.end() < len(self._text) or self._is_over):
                self.line += self._text.count(b"\n", self._at, found.start())
                self._at = found.end()
                return found[0]
            if self._is_over:
                return b""
            self._read(found.start() if found else len(self._text))

    def again(self, word: bytes) -> None:
        """Let `next` return its last word once more."""
        self._at -= len(word)

    def numbers(self) -> Iterator[Weights]:
        """Yield the numbers in the rest of the file, some at a time."""
        while True:
            cut = len(self._text)
            while not self._is_over and cut > self._at and self._text[cut - 1] not in _BLANKS:
                cut -= 1
            cut = self._at + len(self._text[self._at : cut].rstrip())  # `line` is of the last word
            words = self._text[self._at : cut].split()
            if words:
                yield self._to_numbers(words)
            self.line += self._text.count(b"\n", self._at, cut)
            self._at = cut
            if self._is_over:
                return
            rest = _WORD.search(self._text, cut)
            self._read(rest.start() if rest else len(self._text))

    def _read(self, begin: int) -> None:
        """Read more behind the incomplete word that begins there."""
        if len(self._text) - begin > _LONGEST_WORD:
            raise self.error(f"a word of more than {_LONGEST_WORD} bytes")
        self.line += self._text.count(b"\n", self._at, begin)
        more = self._file.read(_READ)
        self._text, self._at, self._is_over = self._text[begin:] + more, 0, not more

    def _to_numbers(self, words: list[bytes]) -> Weights:
        try:
            numbers = np.fromiter(map(float, words), np.float64, len(words))
            # float() accepts underscores, which are invalid here
            if np.isfinite(numbers).all() and b"_" not in b"".join(words):
                return numbers
        except ValueError:
            pass
        while _NUMBER.fullmatch(word := self.next()) and math.isfinite(float(word)):
            pass
        raise self.error(shorten(repr(word.decode("utf-8", "replace")), 42), "a finite number")

    def skip(self, n: int) -> None:
        """Skip words that `numbers` yielded last."""
        for _ in range(n):
            self.next()

    def error(self, found: str, expected: str = "") -> StoreError:
        """Return an error with the line, what was found and what is expected."""
        wanted = f", expected {expected}" if expected else ""
        return StoreError(f"{self.path}:{self.line}: found {found}{wanted}; {_AGAIN}")


def read_model(path: str | Path) -> Model:
    """Read a model file of LIBLINEAR.

    Parameters
    ----------
    path : str or Path

    Returns
    -------
    Model
        Without features that have only zero weights. Labels are in the order in which LIBLINEAR
        breaks ties. ``info`` has ``loss`` and ``solver_type``.

    Raises
    ------
    StoreError
        If the file cannot be read or is not a LIBLINEAR model. Names the first invalid line.
    """
    path = Path(path)
    with reading(path), open(path, "rb") as file:
        return _read(_Words(path, file))


def _read(words: _Words) -> Model:
    header = _read_header(words)
    solver = header["solver_type"]
    labels, n_columns = _read_labels(words, header)
    n, with_bias = header["nr_feature"], header["bias"] >= 0
    ids, blocks = [np.empty(0, np.int64)], [np.empty((0, n_columns))]
    zero_ids = [np.empty(0, np.int64)]
    bias_weights = np.zeros(n_columns)
    for first, block in _read_weights(words, n + with_bias, n_columns):
        if first + len(block) > n:  # the last line is the bias
            bias_weights, block = block[-1], block[:-1]
        used = block.any(axis=1)
        ids.append(np.flatnonzero(used) + (first + 1))
        zero_ids.append(np.flatnonzero(~used) + (first + 1))
        blocks.append(block[used])
    W = np.concatenate(blocks)
    del blocks
    bias = header["bias"] if with_bias else 0.0
    if solver == "ONECLASS_SVM":
        bias_weights, bias = bias * bias_weights - header["rho"], 1.0
    elif bias == 0:
        bias_weights = np.zeros(n_columns)
    if solver == "MCSVM_CS" and len(labels) == 2:
        W, bias_weights = np.ascontiguousarray(W[:, :1]), bias_weights[:1]
    info = {"loss": _LOSSES[solver], "solver_type": solver}
    return Model(
        np.concatenate(ids), W, labels, bias, bias_weights.copy(), info, np.concatenate(zero_ids)
    ).compact()


def _read_header(words: _Words) -> dict[str, Any]:
    """Read all of the header, up to ``w``."""
    header: dict[str, Any] = {}
    while (word := words.next()) != b"w":
        if not word:
            raise StoreError(f"{words.path} ends before the weights; {_AGAIN}")
        name = word.decode("utf-8", "replace")
        if name in header:
            raise words.error(f"duplicate {name}")
        if name not in _FIELDS:
            raise words.error(shorten(repr(name), 42), f"one of {', '.join(_FIELDS)} or w")
        expected, read = _FIELDS[name]
        try:
            if name == "label":
                header[name] = _read_labels_of(words)
            else:
                header[name] = read(words.next().decode("utf-8", "replace"))
        except _RefusedError as error:
            raise words.error(shorten(repr(str(error)), 42), expected) from None
    missing = [name for name in ("solver_type", "nr_class", "nr_feature") if name not in header]
    if header.get("solver_type") == "ONECLASS_SVM" and "rho" not in header:
        missing.append("rho")
    if missing:
        raise words.error("the weights", f"a line {missing[0]} before them")
    header.setdefault("bias", -1.0)
    return header


def _read_labels_of(words: _Words) -> list[int]:
    """Read labels up to the next name of the header."""
    labels = []
    while (word := words.next()) and word != b"w" and word not in READERS:
        labels.append(_read_whole(word.decode("utf-8", "replace")))
    words.again(word)
    return labels


class _RefusedError(Exception):
    """An invalid word in the header."""


def _read_solver(word: str) -> str:
    if word not in _LOSSES:
        raise _RefusedError(word)
    return word


def _read_count(word: str) -> int:
    count = _read_whole(word)
    if count < 0:
        raise _RefusedError(word)
    return count


def _read_whole(word: str) -> int:
    if not _WHOLE.fullmatch(word.encode()) or not -_LARGEST_INT <= int(word) <= _LARGEST_INT:
        raise _RefusedError(word)
    return int(word)


def _read_real(word: str) -> float:
    if not _NUMBER.fullmatch(word.encode()) or not math.isfinite(float(word)):
        raise _RefusedError(word)
    return float(word)


# Header: description and reader of the value.
_FIELDS: dict[str, Any] = {
    "solver_type": (f"a solver of LIBLINEAR ({', '.join(_LOSSES)})", _read_solver),
    "nr_class": ("a number of classes", _read_count),
    "label": ("a whole number of 32 bits", _read_whole),
    "nr_feature": ("a number of features", _read_count),
    "bias": ("a finite number", _read_real),
    "rho": ("a finite number", _read_real),
}
READERS |= {name.encode(): read_model for name in _FIELDS}


def _read_labels(lines: _Words, header: dict[str, Any]) -> tuple[list[float], int]:
    """Return the labels in the order of `Model`, and the number of columns in the file."""
    solver, n_classes = header["solver_type"], header["nr_class"]
    regression = solver in ("L2R_L2LOSS_SVR", "L2R_L2LOSS_SVR_DUAL", "L2R_L1LOSS_SVR_DUAL")
    if regression or solver == "ONECLASS_SVM":
        if n_classes != 2:
            raise lines.error(f"nr_class {n_classes}", f"nr_class 2 for {solver}")
        return ([], 1) if regression else (list(_ONE_CLASS_LABELS), 1)
    labels = [float(label) for label in header.get("label", [])]
    if len(labels) != n_classes:
        raise lines.error(f"{len(labels)} labels", f"{n_classes} (one per class)")
    if not labels:
        raise lines.error("no label", "at least one")
    if len(set(labels)) < n_classes:
        twice = next(a for a, b in itertools.pairwise(sorted(labels)) if a == b)
        raise lines.error(f"label {format_number(twice)} twice")
    if n_classes == 2:
        return labels[::-1], 2 if solver == "MCSVM_CS" else 1
    return labels, n_classes


def _read_weights(words: _Words, n_rows: int, n_columns: int) -> Iterator[tuple[int, Weights]]:
    """Yield blocks of weights, each with the number of rows before it.

    Memory is bounded by the bytes read, not by the numbers in the header.
    """
    total, seen, rest = n_rows * n_columns, 0, np.empty(0)
    for numbers in words.numbers():
        if seen + len(numbers) > total:
            words.skip(total - seen + 1)
            raise words.error(f"a number after {total:,} weights")
        some = np.concatenate([rest, numbers])
        whole = len(some) // n_columns
        yield (seen - len(rest)) // n_columns, some[: whole * n_columns].reshape(-1, n_columns)
        seen, rest = seen + len(numbers), some[whole * n_columns :]
    if seen < total:
        raise StoreError(f"{words.path} ends with {seen:,} weights, expected {total:,}; {_AGAIN}")


# ------------------------------------------------------------------------------------- writing


def write_model(model: Model, path: str | Path, name: str = "the model") -> int:
    """Write a model in LIBLINEAR's format, atomically.

    Parameters
    ----------
    model : Model
    path : str or Path
    name : str
        Name of the model in error messages.

    Returns
    -------
    int
        Bytes written.

    Raises
    ------
    StoreError
        If LIBLINEAR cannot represent the model, or the file cannot be written.
    """
    model = model.compact()
    solver = _solver(model, name)
    n_columns = _columns(model, solver, model.bias_weights[np.newaxis]).shape[1]
    n_features = _largest_id(model, n_columns, name)
    one_class = solver == "ONECLASS_SVM"
    labels = [] if one_class else model.labels[::-1] if len(model.labels) == 2 else model.labels
    head = [f"solver_type {solver}", f"nr_class {len(labels) or 2}"]
    if labels:
        head.append("label " + " ".join(map(format_number, labels)))
    head.append(f"nr_feature {n_features}")
    if one_class:  # rho takes the place of the bias
        rho = 0.0 - model.bias * model.bias_weights[0]
        head += ["bias -1", f"rho {rho:.17g}"]
    else:
        head.append(f"bias {abs(model.bias):.17g}" if model.bias else "bias -1")
    head.append("w\n")
    return write_atomically(Path(path), _text("\n".join(head), model, solver, n_features))


def _solver(model: Model, name: str) -> str:
    """Return LIBLINEAR's solver; reject models that it does not have."""
    loss = model.info.get("loss")
    solver = (_REGRESSION if model.is_regression else _CLASSES).get(str(loss))
    if solver is None:
        kind = "regression" if model.is_regression else "classes"
        known = ", ".join(_REGRESSION if model.is_regression else _CLASSES)
        raise StoreError(
            f"{name} has the loss {loss!r}, which LIBLINEAR lacks for {kind} (known: {known}); "
            "use --format npz or json"
        )
    if solver == "ONECLASS_SVM" and model.labels != _ONE_CLASS_LABELS:
        shown = ", ".join(map(format_number, model.labels))
        raise StoreError(
            f"{name} has the loss 'one_class' and the labels {shown}, but LIBLINEAR supports only "
            "-1 and 1; use --format npz or json"
        )
    for label in model.labels:
        if not float(label).is_integer() or abs(label) > _LARGEST_INT:
            raise StoreError(
                f"{name} has the label {format_number(label)}, but LIBLINEAR supports only whole "
                f"numbers up to {_LARGEST_INT}; use --format npz or json"
            )
    return solver


def _largest_id(model: Model, n_columns: int, name: str) -> int:
    """Return the number of lines of weights; reject ids and sizes LIBLINEAR does not support."""
    if not len(model.ids):
        return 1
    smallest, largest = int(model.ids.min()), int(model.ids.max())
    if smallest < 1:
        raise StoreError(
            f"{name} has a weight for feature id {smallest}, but LIBLINEAR's ids start at 1; "
            "use --format npz or json, or train on ids from 1"
        )
    if largest > _LARGEST_INT or (largest + 1) * n_columns > _LARGEST_INT:
        columns = "" if n_columns == 1 else f" in {n_columns} columns"
        raise StoreError(
            f"{name} has a weight for feature id {largest}{columns}, but LIBLINEAR's largest id is "
            f"{_LARGEST_INT // n_columns - 1}; use --format npz or json"
        )
    if largest > max(_MANY_LINES, _SPARSE * len(model.ids)):
        raise StoreError(
            f"{name} has a weight for feature id {largest}, so the LIBLINEAR file would have "
            f"{largest:,} lines for {len(model.ids):,} features with weights; use --format npz "
            "or json"
        )
    return largest


def _columns(model: Model, solver: str, W: Weights) -> Weights:
    """Return weights in LIBLINEAR's columns.

    With two classes, half the difference of two columns decides. It equals the second column if
    that is the negative of the first one, as in every Crammer-Singer model.
    """
    if len(model.labels) != 2:
        return W
    if W.shape[1] == 2:
        W = 0.5 * W[:, 1:] - 0.5 * W[:, :1]
    return np.hstack([W, 0.0 - W]) if solver == "MCSVM_CS" else W


def _numbers(values: list[float]) -> list[str]:
    return (("%.17g \n" * len(values)) % tuple(values)).split("\n")


def _text(head: str, model: Model, solver: str, n_features: int) -> Iterator[bytes]:
    """Yield the file in pieces of bounded size."""

    def lines(W: Weights) -> bytes:
        W = _columns(model, solver, W)
        if has_runs(W):
            return "\n".join([*row_texts(W, "0 ", _numbers), ""]).encode()
        text: str = ("%.17g " * W.shape[1] + "\n") * len(W)
        return (text % tuple(W.reshape(-1).tolist())).encode()

    yield head.encode()
    n_outputs = model.W.shape[1]
    empty = lines(np.zeros((1, n_outputs)))
    order = np.argsort(model.ids)
    ids = model.ids[order]
    for part in parts(n_features, _TEXT_BYTES * n_outputs):
        begin, end = np.searchsorted(ids, [part.start + 1, part.stop + 1])
        if begin == end:
            yield empty * (part.stop - part.start)
            continue
        block = np.zeros((part.stop - part.start, n_outputs))
        block[ids[begin:end] - (part.start + 1)] = model.W[order[begin:end]]
        yield lines(block)
    if model.bias and solver != "ONECLASS_SVM":
        yield lines(math.copysign(1.0, model.bias) * model.bias_weights[np.newaxis])
