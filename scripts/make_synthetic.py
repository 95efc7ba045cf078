"""Make LIBSVM text of any size, with known true weights, at streaming speed and in constant memory.

    python scripts/make_synthetic.py -o big.svm --rows 5000000 --features 1000000 --nnz 100
    python scripts/make_synthetic.py -o - --bytes 10GB --features 20000 --nnz 50 --values real | wc

Every row and every weight is a function of the arguments and its number alone, computed when it is
needed, so the output is the same whatever is buffered how. A row has between 1 and 2 NNZ - 1
nonzeros (all equally likely), at ids drawn uniformly, or by a power law: with ``--power A`` the
k-th id is about k**-A as likely as the first, until a row has it. Values are 1, or multiples of
0.0001 below 1 (``--values real``). The label is +1 where w.x > 0 for the true weights w, else -1,
flipped with the probability ``--noise``. The weights are independent standard normal numbers less
one constant, chosen so that the classes are about equally large.

One summary line goes to stdout (with ``-o -`` to stderr); the exit code is 0 (done), 1 (error) or
2 (usage).
"""

import argparse
import math
import os
import re
import stat
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray
from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

ZERO, ONE, SPACE, COLON, POINT, PLUS, MINUS, NEWLINE = (np.uint8(c) for c in b"01 :.+-\n")
BUFFER = 1 << 22  # bytes of text handed over at a time
ENTRY = 32  # bytes at most of one " id:value"
PILOT_ENTRIES = 2_000_000  # nonzeros looked at to centre the weights
PILOT_ROW = 1 << 62  # number of the first row looked at: none that is ever written
UNITS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

# Constants of splitmix64; all typed, for a mere integer would turn the sums into floats.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX1 = np.uint64(0xBF58476D1CE4E5B9)
MIX2 = np.uint64(0x94D049BB133111EB)
S11, S27, S30, S31, S32 = (np.uint64(bits) for bits in (11, 27, 30, 31, 32))
TEN = np.uint64(10)
LOW32 = np.uint64(0xFFFFFFFF)
TO_UNIT = 2.0**-53
TO_HALF = 2.0**-32
ROWS_SALT = np.uint64(0x524F5753)  # keep the streams of rows and of weights apart
WEIGHTS_SALT = np.uint64(0x57454947)

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]
Bytes = NDArray[np.uint8]
# Keys of rows and of weights; features, nonzeros, spread, real; how ids are drawn: kind (0 uniform,
# 1 power of exactly 1, 2 another), span and inverse exponent.
Law: TypeAlias = tuple[np.uint64, np.uint64, int, int, int, bool, int, float, float]


class SyntheticError(Exception):
    """What stops the run, worded for the person who started it."""


@dataclass
class Totals:
    """What has been written; filled in by `generate` as it goes.

    Parameters
    ----------
    rows, positive, nonzeros, size : int
        Rows, those of label +1, entries, and bytes.
    """

    rows: int = 0
    positive: int = 0
    nonzeros: int = 0
    size: int = 0


@dataclass(frozen=True)
class Problem:
    """The distribution that rows are drawn from.

    Parameters
    ----------
    features : int
        Number of features.
    nnz : int
        Mean number of nonzeros in a row, 1 ... `features`.
    real : bool
        Whether values are multiples of 0.0001 rather than 1.
    noise : float
        Probability that a label is flipped.
    power : float
        Exponent of the power law of the ids; 0 is uniform.
    start : int
        Id of the first feature.
    seed : int
        Of rows and weights.
    """

    features: int
    nnz: int
    real: bool = False
    noise: float = 0.0
    power: float = 0.0
    start: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.nnz <= self.features:
            raise ValueError("the nonzeros must be between 1 and the number of features")
        if not 0.0 <= self.noise <= 1.0:
            raise ValueError("the noise must be between 0 and 1")
        if not 0.0 <= self.power <= 100.0:
            raise ValueError("the power must be between 0 and 100")
        if self.start < 0 or self.features >= 2**53 or self.start >= 2**53:
            raise ValueError("ids must be between 0 and 2**53")

    @property
    def spread(self) -> int:
        """How far the number of nonzeros of a row may be from the mean."""
        return min(self.nnz - 1, self.features - self.nnz)

    @property
    def longest(self) -> int:
        """Most nonzeros that a row can have."""
        return self.nnz + self.spread

    @property
    def law(self) -> Law:
        """What `_draw_row` and `_weight` need to know."""
        exponent = 1.0 - self.power
        span = 0.0
        kind = 1 if abs(exponent) < 1e-9 else 2
        if self.power == 0.0:
            kind = 0
        elif kind == 2:
            span = (self.features + 1.0) ** exponent - 1.0
        else:
            span = math.log(self.features + 1.0)
        seed = np.uint64(self.seed % 2**64)
        return (
            np.uint64(_key(seed, ROWS_SALT)),
            np.uint64(_key(seed, WEIGHTS_SALT)),
            self.features,
            self.nnz,
            self.spread,
            self.real,
            kind,
            span,
            1.0 / exponent if kind == 2 else 1.0,
        )

    @cached_property
    def pilot(self) -> tuple[float, float]:
        """Look at rows of their own: how to centre the weights, and how long an entry is.

        Returns
        -------
        centre : float
            What to take off each weight: the median of w.x / sum(x) over the rows, so that the
            centred weights, which still go through the origin, split the rows evenly.
        entry : float
            Mean bytes of one " id:value".
        """
        rows = min(max(PILOT_ENTRIES // self.nnz, 256), 8192)
        ratios = np.empty(rows)
        size, entries = _look(self.law, self.start, ratios, *self.scratch())
        return float(np.median(ratios)), size / entries

    def scratch(self) -> tuple[Int64s, Int64s, Float64s]:
        """Give room for one row: ids, values and the numbers ids are made of."""
        n = self.longest
        return np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.float64)

    def rows_of_size(self, size: int) -> int:
        """Give how many rows make a file of about so many bytes, at least 1."""
        return max(1, round(size / (3.0 + self.nnz * self.pilot[1])))


# --- Kernels --------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _mix(z: np.uint64) -> np.uint64:
    """Scramble a 64-bit number (the finalizer of splitmix64)."""
    z = (z ^ (z >> S30)) * MIX1
    z = (z ^ (z >> S27)) * MIX2
    return z ^ (z >> S31)


@njit(cache=True, nogil=True)
def _key(seed: np.uint64, salt: np.uint64) -> np.uint64:
    """Give where the random numbers of a purpose begin."""
    return _mix(_mix(seed + GOLDEN) ^ salt)


@njit(cache=True, nogil=True)
def _unit(z: np.uint64) -> float:
    """Turn 64 random bits into a number from [0, 1)."""
    return float(z >> S11) * TO_UNIT


@njit(cache=True, nogil=True)
def _weight(key: np.uint64, k: int) -> float:
    """Give the true weight of a feature before centring: standard normal (Box and Muller)."""
    z = _mix(key + np.uint64(k) * GOLDEN)
    radius = math.sqrt(-2.0 * math.log((float(z >> S32) + 1.0) * TO_HALF))
    return radius * math.cos(2.0 * math.pi * float(z & LOW32) * TO_HALF)


@njit(cache=True, nogil=True)
def _draw_row(law: Law, row: int, ids: Int64s, values: Int64s, sums: Float64s) -> tuple[int, float]:
    """Draw a row from its number alone.

    Returns
    -------
    count : int
        Nonzeros, now in `ids` (from 0, strictly rising) and `values` (in units of 0.0001 if real).
    chance : float
        A number from [0, 1) left for the label.
    """
    row_key, _, features, nnz, spread, real, kind, span, inverse = law
    state = _mix(row_key + np.uint64(row) * GOLDEN)
    count = nnz - spread + int(_unit(_mix(state)) * (2 * spread + 1))
    state += GOLDEN
    chance = _unit(_mix(state))
    # Partial sums of exponential numbers, divided by the whole sum, are uniform numbers in rising
    # order: ids come out sorted without sorting.
    total = 0.0
    for j in range(count):
        state += GOLDEN
        total -= math.log(1.0 - _unit(_mix(state)))
        sums[j] = total
    state += GOLDEN
    total -= math.log(1.0 - _unit(_mix(state)))
    before = -1
    for j in range(count):
        u = sums[j] / total
        if kind == 0:
            x = u * features
        elif kind == 1:
            x = math.exp(u * span) - 1.0
        else:
            x = (1.0 + u * span) ** inverse - 1.0
        # An id that is taken moves up, but leaves room for those after it.
        before = min(max(int(min(x, features - 1.0)), before + 1), features - count + j)
        ids[j] = before
        values[j] = 1
        if real:
            state += GOLDEN
            values[j] = 1 + int(_unit(_mix(state)) * 9999)
    return count, chance


@njit(cache=True, nogil=True)
def _digits(number: int) -> int:
    """Count the decimal digits of a number from 0."""
    n = 1
    bound = 10
    while number >= bound:
        n += 1
        bound *= 10
    return n


@njit(cache=True, nogil=True)
def _put_number(out: Bytes, at: int, number: int, digits: int) -> int:
    """Write a number with so many digits; give where it ends."""
    rest = np.uint64(number)
    for place in range(at + digits - 1, at - 1, -1):
        quotient = rest // TEN
        out[place] = ZERO + np.uint8(rest - quotient * TEN)
        rest = quotient
    return at + digits


@njit(cache=True, nogil=True)
def _put_row(
    out: Bytes, at: int, positive: bool, ids: Int64s, values: Int64s, start: int, real: bool
) -> int:
    """Write a row as LIBSVM text; give where it ends."""
    out[at] = PLUS if positive else MINUS
    out[at + 1] = ONE
    at += 2
    for j in range(len(ids)):
        number = ids[j] + start
        out[at] = SPACE
        at = _put_number(out, at + 1, number, _digits(number))
        out[at] = COLON
        if real:
            out[at + 1] = ZERO
            out[at + 2] = POINT
            at = _put_number(out, at + 3, values[j], 4)
        else:
            out[at + 1] = ONE
            at += 2
    out[at] = NEWLINE
    return at + 1


@njit(cache=True, nogil=True)
def _look(
    law: Law, start: int, ratios: Float64s, ids: Int64s, values: Int64s, sums: Float64s
) -> tuple[int, int]:
    """Fill in w.x / sum(x) of the pilot rows; give the bytes and the number of their entries."""
    weight_key, real = law[1], law[5]
    size = 0
    entries = 0
    for i in range(len(ratios)):
        count, _ = _draw_row(law, PILOT_ROW + i, ids, values, sums)
        score = 0.0
        mass = 0
        for j in range(count):
            score += values[j] * _weight(weight_key, ids[j])
            mass += values[j]
            size += _digits(ids[j] + start) + (8 if real else 3)
        ratios[i] = score / mass
        entries += count
    return size, entries


@njit(cache=True, nogil=True)
def _fill(
    out: Bytes,
    row: int,
    stop: int,
    only: int,
    law: Law,
    centre: float,
    noise: float,
    start: int,
    ids: Int64s,
    values: Int64s,
    sums: Float64s,
) -> tuple[int, int, int, int, int]:
    """Write the rows from `row` to `stop` (of one label if `only` is +1 or -1) while there is room.

    Returns
    -------
    row, used, written, positive, nonzeros : int
        The first row not looked at, bytes used, and rows, those of label +1 and entries written.
    """
    weight_key, real = law[1], law[5]
    scale = 10000.0 if real else 1.0
    used = written = positive = nonzeros = 0
    # Room for the longest row, not for the next: so the next need not be drawn twice.
    room = len(out) - len(ids) * ENTRY - 3
    while row < stop and used <= room:
        count, chance = _draw_row(law, row, ids, values, sums)
        row += 1
        score = 0.0
        for j in range(count):
            score += values[j] / scale * (_weight(weight_key, ids[j]) - centre)
        label = (score > 0.0) != (chance < noise)
        if only == 0 or (only > 0) == label:
            used = _put_row(out, used, label, ids[:count], values[:count], start, real)
            written += 1
            positive += label
            nonzeros += count
    return row, used, written, positive, nonzeros


@njit(cache=True, nogil=True)
def _put_weights(weights: Float64s, key: np.uint64, centre: float) -> None:
    """Fill in the centred weights."""
    for k in range(len(weights)):
        weights[k] = _weight(key, k) - centre


# --- For use from Python --------------------------------------------------------------------------


def true_weights(problem: Problem) -> Float64s:
    """Give the weights that decide the labels.

    Parameters
    ----------
    problem : Problem
        The distribution.

    Returns
    -------
    ndarray of float64, shape (features,)
        Weight of the feature with the id ``problem.start + k`` at ``[k]``. The label of a row
        without noise is +1 exactly if w.x, summed in the order of the ids, is above 0.
    """
    weights = np.empty(problem.features)
    _put_weights(weights, problem.law[1], problem.pilot[0])
    return weights


def generate(
    problem: Problem,
    rows: int,
    *,
    by_label: bool = False,
    buffer: int = BUFFER,
    totals: Totals | None = None,
) -> Iterator[bytes]:
    """Generate rows as LIBSVM text.

    Parameters
    ----------
    problem : Problem
        The distribution.
    rows : int
        How many; fewer rows are the beginning of more (unless `by_label`).
    by_label : bool, optional
        Give all rows of label -1 first and then those of +1, each in their order. Every row is
        drawn twice for that, rather than kept.
    buffer : int, optional
        Bytes given at a time at most, if the longest row fits; the text does not depend on it.
    totals : Totals, optional
        Filled in with what has been given so far.

    Yields
    ------
    bytes
        Whole lines.
    """
    totals = Totals() if totals is None else totals
    out = np.empty(max(buffer, problem.longest * ENTRY + 3), dtype=np.uint8)
    law, centre, scratch = problem.law, problem.pilot[0], problem.scratch()
    for only in (-1, 1) if by_label else (0,):
        row = 0
        while row < rows:
            row, used, written, positive, nonzeros = _fill(
                out, row, rows, only, law, centre, problem.noise, problem.start, *scratch
            )
            totals.rows += written
            totals.positive += positive
            totals.nonzeros += nonzeros
            totals.size += used
            if used:
                yield out[:used].tobytes()


# --- Command line ---------------------------------------------------------------------------------


def parse_size(text: str) -> int:
    """Turn ``10GB``, ``1.5 MiB`` or ``4096`` into bytes.

    Parameters
    ----------
    text : str
        A number and perhaps a unit: kB, MB, GB, TB (powers of 1000) or KiB ... (of 1024).

    Returns
    -------
    int
        Bytes, at least 1.

    Raises
    ------
    argparse.ArgumentTypeError
        If it is no size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*([kmgt]?)(i?)b?", text.strip().lower())
    size = 0
    if match and not (match[3] and not match[2]):
        size = round(float(match[1]) * (1024 if match[3] else 1000) ** UNITS[match[2]])
    if size < 1:
        raise argparse.ArgumentTypeError(f"not a size: {text!r} (write for instance 10GB)")
    return size


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="make_synthetic.py",
        description="Make LIBSVM text of any size from known true weights.",
    )
    parser.add_argument("-o", dest="out", required=True, metavar="OUT.svm", help="- is stdout")
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--rows", type=int)
    size.add_argument("--bytes", type=parse_size, metavar="SIZE", help="about this much, as 10GB")
    parser.add_argument("--features", type=int, required=True)
    parser.add_argument("--nnz", type=int, required=True, help="mean number of nonzeros in a row")
    parser.add_argument("--values", choices=("ones", "real"), default="ones")
    parser.add_argument("--noise", type=float, default=0.0, help="probability of a flipped label")
    parser.add_argument(
        "--power", type=float, default=0.0, help="exponent of the power law of the ids; 0: uniform"
    )
    parser.add_argument("--sorted", action="store_true", help="all -1 rows first, then all +1 rows")
    parser.add_argument("--start", type=int, default=1, metavar="ID", help="id of the 1st feature")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--weights-out", type=Path, metavar="W.npy", help="write the true weights here (float64)"
    )
    return parser


def _write_stream(out: BinaryIO, chunks: Iterator[bytes]) -> None:
    """Write chunks, with a bar on a terminal."""
    with tqdm(unit="B", unit_scale=True, disable=None, leave=False) as bar:
        for chunk in chunks:
            out.write(chunk)
            bar.update(len(chunk))
    out.flush()


def _write(target: str, chunks: Iterator[bytes]) -> None:
    """Write chunks to stdout (``-``), to a pipe or device, or to a file that appears when whole."""
    if target == "-":
        _write_stream(sys.stdout.buffer, chunks)
        return
    path = Path(target)
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        with path.open("wb") as out:
            _write_stream(out, chunks)
        return
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as out:
            _write_stream(out, chunks)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _run(args: argparse.Namespace, problem: Problem) -> str:
    """Do the work; give the summary line."""
    begin = time.perf_counter()
    rows = args.rows or problem.rows_of_size(args.bytes)
    totals = Totals()
    target = args.weights_out
    try:
        if target is not None:
            with target.open("wb") as out:
                np.save(out, true_weights(problem))
        target = args.out
        _write(target, generate(problem, rows, by_label=args.sorted, totals=totals))
    except BrokenPipeError:
        raise
    except OSError as error:
        raise SyntheticError(f"cannot write {target}: {error.strerror or error}") from error
    seconds = time.perf_counter() - begin
    return (
        f"rows {totals.rows}, features {problem.features}, nonzeros {totals.nonzeros}, "
        f"bytes {totals.size}, classes +1:{totals.positive} -1:{totals.rows - totals.positive}, "
        f"seconds {seconds:.1f}, MB/s {totals.size / seconds / 1e6:.0f}"
    )


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : list of str, optional
        Arguments; those of the process by default.

    Returns
    -------
    int
        Exit code: 0 done, 1 error. Wrong usage raises ``SystemExit(2)``.
    """
    parser = _parser()
    args = parser.parse_args(argv)
    if args.rows is not None and args.rows < 1:
        parser.error("--rows must be at least 1")
    try:
        problem = Problem(
            args.features,
            args.nnz,
            real=args.values == "real",
            noise=args.noise,
            power=args.power,
            start=args.start,
            seed=args.seed,
        )
    except ValueError as error:
        parser.error(str(error))
    try:
        print(_run(args, problem), file=sys.stderr if args.out == "-" else sys.stdout)
    except SyntheticError as error:
        print(f"make_synthetic.py: error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Whoever read our output has seen enough. Python would complain when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
