"""Format rows as LIBSVM text, and write files that appear only when complete."""

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

Array = npt.NDArray[Any]


class MakeError(Exception):
    """A data set cannot be made; the message has the reason."""


def _texts(form: bytes, numbers: Array) -> Array:
    """Format numbers, each distinct one once."""
    distinct, place = np.unique(numbers, return_inverse=True)
    return np.array([form % number for number in distinct.tolist()], object)[place]


def format_rows(names: Array, lengths: Array, ids: Array, values: Array | None = None) -> bytes:
    """Return rows as LIBSVM text, from labels as bytes and the number of entries of each row.

    Ids rise within a row; values are written with five digits, and are 1 if there are none.
    """
    width = 1 if values is None else 2
    ends = np.cumsum(width * lengths + 2)
    cells = np.empty(ends[-1] if len(ends) else 0, object)
    is_entry = np.ones(len(cells), bool)
    for places, words in ((ends - width * lengths - 2, names), (ends - 1, b"\n")):
        cells[places] = words
        is_entry[places] = False
    if values is None:
        cells[is_entry] = _texts(b" %d:1", ids)
    else:
        pairs = (_texts(b" %d:", ids), _texts(b"%.5g", values))
        cells[is_entry] = np.column_stack(pairs).ravel()
    return b"".join(cells.tolist())


def write_whole(path: Path, chunks: Iterable[bytes]) -> int:
    """Write a file that appears when complete, a pipe or (``-``) stdout; return its size."""
    size = 0
    is_stream = str(path) == "-" or (path.exists() and not path.is_file())
    part = path if is_stream else path.with_name(path.name + ".part")
    target: Any = sys.stdout.buffer if str(path) == "-" else part.open("wb")
    try:
        with tqdm(unit="B", unit_scale=True, disable=None, leave=False) as bar:
            for chunk in chunks:
                target.write(chunk)
                size += len(chunk)
                bar.update(len(chunk))
        target.flush()
        if not is_stream:
            part.rename(path)
    finally:
        if target is not sys.stdout.buffer:
            target.close()
        if not is_stream:
            part.unlink(missing_ok=True)
    return size


def run(name: str, make: Callable[[], str], to_stderr: bool = False) -> int:
    """Make data and print its summary; exit code 0 done, 1 error."""
    try:
        print(make(), file=sys.stderr if to_stderr else sys.stdout)
    except BrokenPipeError:
        # The reader has seen enough. Python would complain when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (MakeError, OSError) as error:
        print(f"scripts.data.{name}: error: {error}", file=sys.stderr)
        return 1
    return 0
