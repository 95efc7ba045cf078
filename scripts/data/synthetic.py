"""Make LIBSVM text of any size, with known true weights, at streaming speed and in constant memory.

    python -m scripts.data.synthetic -o big.svm --rows 5000000 --features 1000000 --nnz 100
    python -m scripts.data.synthetic -o - --bytes 10GB --features 20000 --nnz 50 --values real | wc
    python -m scripts.data.synthetic -o 1k.svm --classes 1000 --bytes 1GB --features 100000 --nnz 20

Every row and every weight is a function of the arguments and its number alone, computed when it is
needed, so the output is the same whatever is buffered how. A row has between 1 and 2 NNZ - 1
nonzeros (all equally likely), at ids drawn uniformly, or by a power law: with ``--power A`` the
k-th id is about k**-A as likely as the first, until a row has it. Values are 1, or multiples of
0.0001 below 1 (``--values real``). The label is +1 where w.x > 0 for the true weights w, else -1,
flipped with the probability ``--noise``. The weights are independent standard normal numbers less
one constant, chosen so that the classes are about equally large.

With ``--classes K`` above 2 the class, 1 ... K, comes first and the features follow from it: all
classes are equally likely, or class k about k**-A as likely as the first (``--class-power A``). A
class owns S features (``--class-features``), drawn uniformly, one from each S-th part of the ids;
two classes may own the same. Of the nonzeros, drawn as above, a share P (``--class-share``; rounded
up or down at random in each row) is taken out at random, and as many of the class's own come in,
none twice. So one weight vector a class tells the classes apart, but for rows that have few of
their own features. The label is the class, or with the probability ``--noise`` one of the others,
all equally likely.

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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
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
MOST_CLASSES = 10_000_000  # the rows of each are counted; 8 digits fit in the room of a row
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
ROWS_SALT = np.uint64(0x524F5753)  # keep the streams of rows, of weights and of classes apart
WEIGHTS_SALT = np.uint64(0x57454947)
CLASSES_SALT = np.uint64(0x434C4153)
OWN_SALT = np.uint64(0x4F574E53)

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]
Bytes = NDArray[np.uint8]
# Keys of rows and of weights; features, nonzeros, spread, real; how ids are drawn: kind (0 uniform,
# 1 power of exactly 1, 2 another), span and inverse exponent.
Law: TypeAlias = tuple[np.uint64, np.uint64, int, int, int, bool, int, float, float]
# Keys of the rows' classes and of the classes' own features; classes, features each owns, share of
# those in a row, noise; how classes are drawn, as ids are.
ClassLaw: TypeAlias = tuple[np.uint64, np.uint64, int, int, float, float, int, float, float]


class SyntheticError(Exception):
    """What stops the run, worded for the person who started it."""


@dataclass
class Totals:
    """What has been written; filled in by `generate` as it goes.

    Parameters
    ----------
    rows, positive, nonzeros, size : int
        Rows, those of label +1 (of two classes), entries, and bytes.
    labels : ndarray of int64, shape (classes,)
        Rows of label k at ``[k - 1]``; empty for two classes.
    """

    rows: int = 0
    positive: int = 0
    nonzeros: int = 0
    size: int = 0
    labels: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))


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
        Probability that a label is that of another class.
    power : float
        Exponent of the power law of the ids; 0 is uniform.
    start : int
        Id of the first feature.
    seed : int
        Of rows and weights.
    classes : int
        Number of classes; what follows is for more than 2.
    class_power : float
        Exponent of the power law of the classes; 0 is uniform.
    class_share : float
        Share of a row's nonzeros that are features of its class.
    class_features : int or None
        How many features a class owns; None is as many as a row has at most.
    """

    features: int
    nnz: int
    real: bool = False
    noise: float = 0.0
    power: float = 0.0
    start: int = 1
    seed: int = 0
    classes: int = 2
    class_power: float = 0.0
    class_share: float = 0.3
    class_features: int | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.nnz <= self.features:
            raise ValueError("the nonzeros must be between 1 and the number of features")
        if not 0.0 <= self.noise <= 1.0:
            raise ValueError("the noise must be between 0 and 1")
        if not 0.0 <= self.power <= 100.0:
            raise ValueError("the power must be between 0 and 100")
        if self.start < 0 or self.features >= 2**53 or self.start >= 2**53:
            raise ValueError("ids must be between 0 and 2**53")
        if not 2 <= self.classes <= MOST_CLASSES:
            raise ValueError(f"the classes must be between 2 and {MOST_CLASSES}")
        if not 0.0 <= self.class_power <= 100.0:
            raise ValueError("the class power must be between 0 and 100")
        if not 0.0 <= self.class_share <= 1.0:
            raise ValueError("the class share must be between 0 and 1")
        if self.class_features is not None and not 1 <= self.class_features <= self.features:
            raise ValueError("the class features must be between 1 and the number of features")

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
        seed = np.uint64(self.seed % 2**64)
        return (
            np.uint64(_key(seed, ROWS_SALT)),
            np.uint64(_key(seed, WEIGHTS_SALT)),
            self.features,
            self.nnz,
            self.spread,
            self.real,
            *_power_law(self.features, self.power),
        )

    @property
    def class_law(self) -> ClassLaw:
        """What `_draw_class` and `_swap_in_own` need to know."""
        seed = np.uint64(self.seed % 2**64)
        return (
            np.uint64(_key(seed, CLASSES_SALT)),
            np.uint64(_key(seed, OWN_SALT)),
            self.classes,
            self.longest if self.class_features is None else self.class_features,
            self.class_share,
            self.noise,
            *_power_law(self.classes, self.class_power),
        )

    @property
    def pilot_rows(self) -> int:
        """How many rows are looked at beforehand."""
        return min(max(PILOT_ENTRIES // self.nnz, 256), 8192)

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
        ratios = np.empty(self.pilot_rows)
        size, entries = _look(self.law, self.start, ratios, *self.scratch())
        return float(np.median(ratios)), size / entries

    def scratch(self) -> tuple[Int64s, Int64s, Float64s]:
        """Give room for one row: ids, values and the numbers ids are made of."""
        n = self.longest
        return np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.float64)

    def rows_of_size(self, size: int) -> int:
        """Give how many rows make a file of about so many bytes, at least 1."""
        if self.classes == 2:
            line, entry = 3.0, self.pilot[1]
        else:
            line, entry = _look_classes(
                self.law, self.class_law, self.start, self.pilot_rows, *self.scratch()
            )
        return max(1, round(size / (line + self.nnz * entry)))


def _power_law(n: int, power: float) -> tuple[int, float, float]:
    """Give kind, span and inverse exponent to draw one of `n` things with `_ranked`."""
    if power == 0.0:
        return 0, 0.0, 1.0
    exponent = 1.0 - power
    if abs(exponent) < 1e-9:
        return 1, math.log(n + 1.0), 1.0
    return 2, (n + 1.0) ** exponent - 1.0, 1.0 / exponent


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
def _ranked(u: float, n: int, kind: int, span: float, inverse: float) -> float:
    """Turn a uniform number into one from [0, n), rising with it; see `_power_law`."""
    if kind == 0:
        return u * n
    if kind == 1:
        return math.exp(u * span) - 1.0
    return float((1.0 + u * span) ** inverse - 1.0)


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
        x = _ranked(sums[j] / total, features, kind, span, inverse)
        # An id that is taken moves up, but leaves room for those after it.
        before = min(max(int(min(x, features - 1.0)), before + 1), features - count + j)
        ids[j] = before
        values[j] = 1
        if real:
            state += GOLDEN
            values[j] = 1 + int(_unit(_mix(state)) * 9999)
    return count, chance


@njit(cache=True, nogil=True)
def _draw_class(law: ClassLaw, row: int) -> tuple[int, int, np.uint64]:
    """Draw the class of a row from the row's number alone.

    Returns
    -------
    owner : int
        The class, 1 ..., that the features follow.
    label : int
        The class that the row is said to be.
    state : uint64
        Where the random numbers of the row go on.
    """
    key, _, classes, _, _, noise, kind, span, inverse = law
    state = _mix(key + np.uint64(row) * GOLDEN)
    x = _ranked(_unit(_mix(state)), classes, kind, span, inverse)
    owner = label = 1 + int(min(x, classes - 1.0))
    state += GOLDEN
    chance = _unit(_mix(state))
    if chance < noise:
        # Below the noise the number is again uniform: it says which of the others.
        label = 1 + int(min(chance / noise * (classes - 1.0), classes - 2.0))
        if label >= owner:
            label += 1
    return owner, label, state + GOLDEN


@njit(cache=True, nogil=True)
def _swap_in_own(
    law: ClassLaw, features: int, owner: int, state: np.uint64, ids: Int64s, own: Int64s
) -> None:
    """Replace some of the rising ids of a row by ids that its class owns; they rise again."""
    own_key, owned, share = law[1], law[3], law[4]
    count = len(ids)
    swapped = min(int(share * count + _unit(_mix(state))), count, owned)
    # Both which leave and which come are chosen in one sweep each, an item with the probability
    # (still to choose) / (items left): all choices are equally likely, and order is kept.
    kept = 0
    for j in range(count):
        state += GOLDEN
        if _unit(_mix(state)) * (count - j) >= swapped - (j - kept):
            ids[kept] = ids[j]
            kept += 1
    class_key = _mix(own_key + np.uint64(owner) * GOLDEN)
    found = 0
    for part in range(owned):
        if found == swapped:
            break
        state += GOLDEN
        if _unit(_mix(state)) * (owned - part) < swapped - found:
            within = _unit(_mix(class_key + np.uint64(part) * GOLDEN))
            own[found] = int((part + within) * (features / owned))
            found += 1
    # Merge from the end, where there is room.
    for at in range(count - 1, -1, -1):
        if kept == 0 or (found > 0 and own[found - 1] >= ids[kept - 1]):
            found -= 1
            ids[at] = own[found]
        else:
            kept -= 1
            ids[at] = ids[kept]
    before = -1
    for j in range(count):
        before = min(max(ids[j], before + 1), features - count + j)  # as in _draw_row
        ids[j] = before


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
def _put_sign(out: Bytes, at: int, positive: bool) -> int:
    """Write the label of one of two classes; give where it ends."""
    out[at] = PLUS if positive else MINUS
    out[at + 1] = ONE
    return at + 2


@njit(cache=True, nogil=True)
def _put_entries(out: Bytes, at: int, ids: Int64s, values: Int64s, start: int, real: bool) -> int:
    """Write all of a row but its label as LIBSVM text; give where it ends."""
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
            used = _put_sign(out, used, label)
            used = _put_entries(out, used, ids[:count], values[:count], start, real)
            written += 1
            positive += label
            nonzeros += count
    return row, used, written, positive, nonzeros


@njit(cache=True, nogil=True)
def _fill_classes(
    out: Bytes,
    row: int,
    stop: int,
    only: int,
    law: Law,
    class_law: ClassLaw,
    start: int,
    labels: Int64s,
    ids: Int64s,
    values: Int64s,
    sums: Float64s,
) -> tuple[int, int, int, int]:
    """Write the rows from `row` to `stop` (of one label unless `only` is 0) while there is room.

    Returns
    -------
    row, used, written, nonzeros : int
        The first row not looked at, bytes used, and rows and entries written; rows of label k are
        added to ``labels[k - 1]``.
    """
    features, real = law[2], law[5]
    own = np.empty(len(ids), np.int64)
    used = written = nonzeros = 0
    # An entry takes 25 bytes at most, so that the longest row leaves room for its label, too.
    room = len(out) - len(ids) * ENTRY - 3
    while row < stop and used <= room:
        owner, label, state = _draw_class(class_law, row)
        if only == 0 or label == only:
            count, _ = _draw_row(law, row, ids, values, sums)
            _swap_in_own(class_law, features, owner, state, ids[:count], own)
            used = _put_number(out, used, label, _digits(label))
            used = _put_entries(out, used, ids[:count], values[:count], start, real)
            labels[label - 1] += 1
            written += 1
            nonzeros += count
        row += 1
    return row, used, written, nonzeros


@njit(cache=True, nogil=True)
def _look_classes(
    law: Law,
    class_law: ClassLaw,
    start: int,
    rows: int,
    ids: Int64s,
    values: Int64s,
    sums: Float64s,
) -> tuple[float, float]:
    """Give the mean bytes, in the pilot rows, of label and newline, and of an entry."""
    features, real = law[2], law[5]
    own = np.empty(len(ids), np.int64)
    labels = entries = size = 0
    for row in range(PILOT_ROW, PILOT_ROW + rows):
        owner, label, state = _draw_class(class_law, row)
        count, _ = _draw_row(law, row, ids, values, sums)
        _swap_in_own(class_law, features, owner, state, ids[:count], own)
        labels += _digits(label) + 1
        entries += count
        for j in range(count):
            size += _digits(ids[j] + start) + (8 if real else 3)
    return labels / rows, size / entries


@njit(cache=True, nogil=True)
def _put_weights(weights: Float64s, key: np.uint64, centre: float) -> None:
    """Fill in the centred weights."""
    for k in range(len(weights)):
        weights[k] = _weight(key, k) - centre


# --- For use from Python --------------------------------------------------------------------------


def true_weights(problem: Problem) -> Float64s:
    """Give the weights that decide the labels of two classes.

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
        Give all rows of the smallest label first, then those of the next, each in their order.
        Rather than kept, every row is drawn anew for each label; of more than two classes only
        its class is.
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
    law, class_law, scratch = problem.law, problem.class_law, problem.scratch()
    two = problem.classes == 2
    centre = problem.pilot[0] if two else 0.0
    if not two:
        totals.labels = np.zeros(problem.classes, np.int64)
    labels: Iterable[int] = (0,)
    if by_label:
        labels = (-1, 1) if two else range(1, problem.classes + 1)
    for only in labels:
        row = 0
        while row < rows:
            if two:
                row, used, written, positive, nonzeros = _fill(
                    out, row, rows, only, law, centre, problem.noise, problem.start, *scratch
                )
                totals.positive += positive
            else:
                row, used, written, nonzeros = _fill_classes(
                    out, row, rows, only, law, class_law, problem.start, totals.labels, *scratch
                )
            totals.rows += written
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
        prog="scripts.data.synthetic",
        description="Make LIBSVM text of any size: two classes split by known true weights, or "
        "many (--classes), each with features of its own.",
    )
    parser.add_argument("-o", dest="out", required=True, metavar="OUT.svm", help="- is stdout")
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--rows", type=int)
    size.add_argument("--bytes", type=parse_size, metavar="SIZE", help="about this much, as 10GB")
    parser.add_argument("--features", type=int, required=True)
    parser.add_argument("--nnz", type=int, required=True, help="mean number of nonzeros in a row")
    parser.add_argument("--values", choices=("ones", "real"), default="ones")
    parser.add_argument("--noise", type=float, default=0.0, help="probability of a wrong label")
    parser.add_argument(
        "--power", type=float, default=0.0, help="exponent of the power law of the ids; 0: uniform"
    )
    parser.add_argument("--sorted", action="store_true", help="rows in the order of their labels")
    parser.add_argument("--start", type=int, default=1, metavar="ID", help="id of the 1st feature")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--weights-out",
        type=Path,
        metavar="W.npy",
        help="write the true weights here (float64; two classes)",
    )
    parser.add_argument(
        "--classes",
        type=int,
        default=2,
        metavar="K",
        help="with more than 2, labels are 1 ... K: a row's class is drawn first and has features "
        "of its own (default: 2, labels +1 and -1)",
    )
    parser.add_argument(
        "--class-power",
        type=float,
        metavar="A",
        help="class k is about k**-A as likely as class 1 (default: 0, all equally likely)",
    )
    parser.add_argument(
        "--class-share",
        type=float,
        metavar="P",
        help="share of a row's nonzeros that are features of its class (default: "
        f"{Problem.class_share}; more is easier)",
    )
    parser.add_argument(
        "--class-features",
        type=int,
        metavar="S",
        help="how many features each class owns (default: as many as a row has at most)",
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


def _count_classes(totals: Totals) -> str:
    """Word how the rows are spread over the classes: each of two, or how many of many."""
    labels = totals.labels
    if not len(labels):
        return f"+1:{totals.positive} -1:{totals.rows - totals.positive}"
    return (
        f"{np.count_nonzero(labels)} of {len(labels)} "
        f"(with {labels.min()} to {labels.max()} rows each)"
    )


def _problem(args: argparse.Namespace) -> Problem:
    """Make the problem of the arguments; a ValueError says what makes no sense."""
    for_many = {
        name: value
        for name in ("class_power", "class_share", "class_features")
        if (value := getattr(args, name)) is not None
    }
    if args.classes == 2:
        for name in for_many:
            option = "--" + name.replace("_", "-")
            raise ValueError(f"{option} is for more than 2 classes: give --classes, too")
    elif args.weights_out is not None:
        raise ValueError(
            "--weights-out is for 2 classes: with more, a row follows from its class, not from "
            "weights"
        )
    return Problem(
        args.features,
        args.nnz,
        real=args.values == "real",
        noise=args.noise,
        power=args.power,
        start=args.start,
        seed=args.seed,
        classes=args.classes,
        **for_many,
    )


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
        f"bytes {totals.size}, classes {_count_classes(totals)}, "
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
        problem = _problem(args)
    except ValueError as error:
        parser.error(str(error))
    try:
        print(_run(args, problem), file=sys.stderr if args.out == "-" else sys.stdout)
    except SyntheticError as error:
        print(f"scripts.data.synthetic: error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        # Whoever read our output has seen enough. Python would complain when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
