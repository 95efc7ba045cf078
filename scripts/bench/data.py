"""Texts of the benchmarks: made, cut, read."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from scripts.bench.tools import BenchError, run_process, script_command

PIECE = 4 << 20  # bytes of text parsed at a time, as in sbm split

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def make_text(out: Path, *options: str | float) -> str:
    """Make synthetic text, with noisy labels unless the options say so; return what was asked."""
    command = ("--noise", 0.02, *options)
    run_process(script_command("data.synthetic", "-o", out, *command))
    return " ".join(map(str, ("scripts.data.synthetic", *command)))


def pieces(path: Path) -> Iterator[tuple[npt.NDArray[np.uint8], int]]:
    """Yield whole lines in arrays with the room that the parser asks for, and their sizes."""
    from sbm.inputs.parsing import SPARE

    rest, room = b"", bytes(SPARE)
    with path.open("rb") as file:
        while data := file.read(PIECE):
            data = rest + data
            end = data.rfind(b"\n") + 1
            data, rest = data[:end], data[end:]
            if data:
                yield np.frombuffer(bytearray(data + room), np.uint8), end
    if rest:
        yield np.frombuffer(bytearray(rest + room), np.uint8), len(rest)


def parse(path: Path) -> Iterator[tuple[Floats, Ints, Ints, Floats]]:
    """Yield labels, row ends, ids and values of a text, some rows at a time, in float64."""
    from sbm.inputs.libsvm import REASONS, parse_text

    for text, size in pieces(path):
        parsed = parse_text(text, size, dtype="float64")
        if parsed.errors:
            raise BenchError(f"{path.name}: {parsed.errors[0].explain(REASONS)}")
        values = np.ones(len(parsed.ids)) if parsed.values is None else parsed.values
        yield parsed.labels, parsed.indptr, parsed.ids, values.astype(np.float64, copy=False)


def labels_of(path: Path) -> Floats:
    """The label of each row."""
    return np.concatenate([labels for labels, *_ in parse(path)])


def count_labels(text: Path) -> int:
    """Return how many labels a text has. Raises `BenchError` if fewer than three."""
    count = len(np.unique(labels_of(text)))
    if count < 3:
        raise BenchError(f"{text.name} has {count} different labels; at least three are required")
    return count


def positive_label(path: Path) -> float:
    """The larger one of two labels. Raises `BenchError` if the number of labels is not two."""
    labels = np.unique(labels_of(path))
    if len(labels) != 2:
        raise BenchError(f"{path.name} has {len(labels)} different labels, expected two")
    return float(labels[1])


def first_bytes(path: Path, size: int, out: Path) -> Path:
    """Copy whole lines from the beginning of a file, about `size` bytes."""
    with path.open("rb") as source, out.open("wb") as target:
        target.write(source.read(size))
        target.write(source.readline())
    return out


def hold_out(path: Path, share: float, folder: Path) -> tuple[Path, Path]:
    """Cut a text in two: the last `share` of the lines goes to the second file.

    Both parts of a table have its title.
    """
    with path.open("rb") as lines:
        title = lines.readline() if path.suffix == ".csv" else b""
        count = sum(1 for _ in lines)
    kept = int(count * (1 - share))
    if not 0 < kept < count:
        raise BenchError(f"{path.name} has too few lines to hold some out")
    parts = folder / f"train-{path.name}", folder / f"test-{path.name}"
    with path.open("rb") as lines:
        if title:
            lines.readline()
        for out, some in zip(parts, (kept, None), strict=True):
            with out.open("wb") as target:
                target.write(title)
                target.writelines(itertools.islice(lines, some))
    return parts


def halves(text: Path, folder: Path) -> tuple[Path, Path, bool]:
    """Return texts to train on and to test on, and whether the latter is held out.

    The test half of ``NAME.svm`` is ``NAME.t.svm`` beside it, else a random fifth of the rows.
    """
    beside = text.with_name(f"{text.stem}.t{text.suffix}")
    if beside.is_file():
        return text, beside, False
    lines = text.read_bytes().splitlines(keepends=True)
    chosen = np.random.default_rng(0).random(len(lines)) < 0.2
    parts = folder / f"train-{text.name}", folder / f"test-{text.name}"
    for out, mine in zip(parts, (~chosen, chosen), strict=True):
        out.write_bytes(b"".join(lines[k] for k in np.flatnonzero(mine)))
    return *parts, True
