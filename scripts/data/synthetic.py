"""Make LIBSVM text of any size, in constant memory.

    python -m scripts.data.synthetic -o big.svm --rows 5000000 --features 1000000 --nnz 100
    python -m scripts.data.synthetic -o - --bytes 10GB --features 20000 --nnz 50 --values real | wc
    python -m scripts.data.synthetic -o 1k.svm --classes 1000 --bytes 1GB --features 100000 --nnz 20

A row has between 1 and 2 NNZ - 1 nonzeros (all equally likely), at ids drawn uniformly, or by a
power law: with ``--power A`` the k-th id is about k**-A as likely as the first, until a row has it.
Values are 1, or multiples of 0.0001 below 1 (``--values real``). The label is +1 where w.x > 0 for
hidden weights w, else -1, flipped with the probability ``--noise``. The weights are independent
standard normal numbers less one constant, chosen so that the classes are about equally large.

With ``--classes K`` above 2 the class, 1 ... K, comes first, all equally likely, or the k-th about
k**-A as likely as the first with ``--class-power A``, and the features
follow from it: each class owns some ids, as many as a row has at most, and each nonzero of a row is
one of them with the probability ``--own``. So one weight vector a class tells the classes apart.
The label is the class, or with the probability ``--noise`` another one.

Rows depend on the arguments alone; fewer rows are the beginning of more. One summary line goes to
stdout (with ``-o -`` to stderr); the exit code is 0 (done), 1 (error) or 2 (usage).
"""

import argparse
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sbm.errors import SettingsError
from sbm.units import parse_size
from scripts.data.lines import format_rows, run, write_whole

BATCH = 1 << 20  # ids drawn at a time, about

Batch = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64] | None]


@dataclass(frozen=True)
class Problem:
    """The distribution that rows are drawn from; see the top of this file."""

    # features, nnz: number of features, and of the nonzeros of a row in the mean
    features: int
    nnz: int
    real: bool = False
    noise: float = 0.0
    power: float = 0.0
    classes: int = 2
    seed: int = 0
    # of many classes, the share of a row's nonzeros that are features of its class
    own: float = 0.3
    class_power: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.nnz <= self.features:
            raise ValueError("the nonzeros must be between 1 and the number of features")
        if not 0.0 <= self.noise <= 1.0:
            raise ValueError("the noise must be between 0 and 1")
        if not 0.0 <= self.power <= 100.0:
            raise ValueError("the power must be between 0 and 100")
        if not 0.0 <= self.class_power <= 100.0:
            raise ValueError("the power law of the classes must be between 0 and 100")
        if not 0.0 <= self.own <= 1.0:
            raise ValueError("the share of own features must be between 0 and 1")
        if self.classes < 2:
            raise ValueError("there must be two classes or more")

    @property
    def longest(self) -> int:
        """Most nonzeros that a row can have."""
        return min(2 * self.nnz - 1, self.features)

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        """Hidden weights of the features, for two classes."""
        raw = np.random.default_rng([self.seed, 1]).standard_normal(self.features)
        _, lengths, ids, values = self._rows(0)
        mass = np.ones(len(ids)) if values is None else values
        starts = np.cumsum(lengths) - lengths
        # Centred weights go through the origin and split the rows evenly.
        ratios = np.add.reduceat(mass * raw[ids], starts) / np.add.reduceat(mass, starts)
        return raw - np.median(ratios)

    def _owned(self, classes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ids that classes own, shape (n, longest)."""
        distinct, place = np.unique(classes, return_inverse=True)
        owned = [
            np.random.default_rng([self.seed, 2, k]).integers(0, self.features, self.longest)
            for k in distinct.tolist()
        ]
        return np.array(owned)[place]

    def _rows(self, number: int) -> Batch:
        """Classes, lengths, ids from 0 and values of a batch of rows."""
        rng, longest = np.random.default_rng([self.seed, 0, number]), self.longest
        n = max(1, BATCH // longest)
        lengths = rng.integers(2 * self.nnz - longest, longest + 1, n)
        ids = _ranks(rng.random((n, longest)), self.features, self.power)
        classes = rng.integers(0, self.classes, n)
        if self.class_power > 0:
            classes = _ranks(rng.random(n), self.classes, self.class_power)
        if self.classes > 2:
            ids = np.where(rng.random(ids.shape) < self.own, self._owned(classes), ids)
        inside = np.arange(longest) < lengths[:, None]
        ids[~inside] = 2 * self.features  # sorted to the end
        ids.sort(axis=1)
        # An id that is taken moves up, but leaves room for those after it.
        column = np.arange(longest)
        ids = np.maximum.accumulate(ids - column, axis=1)
        ids = np.minimum(ids, self.features - lengths[:, None]) + column
        values = rng.integers(1, 10_000, int(lengths.sum())) / 10_000 if self.real else None
        return classes, lengths, ids[inside], values

    def batch(self, number: int) -> Batch:
        """Labels, lengths, ids from 1 and values of a batch of rows."""
        classes, lengths, ids, values = self._rows(number)
        rng = np.random.default_rng([self.seed, 3, number])
        if self.classes == 2:
            scores = self.weights[ids] * (1.0 if values is None else values)
            classes = (np.add.reduceat(scores, np.cumsum(lengths) - lengths) > 0).astype(np.int64)
        others = rng.integers(1, self.classes, len(classes))
        is_wrong = rng.random(len(classes)) < self.noise
        classes = np.where(is_wrong, (classes + others) % self.classes, classes)
        return classes, lengths, ids + 1, values

    def text(self, rows: int | None, size: int = 0) -> Iterator[bytes]:
        """Yield text: so many rows, or whole lines of about so many bytes."""
        names = np.array([b"%d" % k for k in range(1, self.classes + 1)], object)
        if self.classes == 2:
            names = np.array([b"-1", b"+1"], object)
        number = 0
        while (rows or size) > 0:
            labels, lengths, ids, values = self.batch(number)
            n = len(labels) if rows is None else min(rows, len(labels))
            text = format_rows(names[labels], lengths, ids, values)
            lines = text.splitlines(keepends=True)[:n] if n < len(labels) else []
            text = b"".join(lines) or text
            if rows is not None:
                rows -= n
            elif len(text) > size:
                text = text[: text.index(b"\n", size) + 1]
            size -= len(text)
            number += 1
            yield text


def _ranks(u: NDArray[np.float64], n: int, power: float) -> NDArray[np.int64]:
    """Return numbers below n by a power law, from uniform ones."""
    power = 1.0 - power
    if abs(power) < 1e-9:
        ranks = np.exp(u * math.log(n + 1.0)) - 1.0
    else:
        ranks = (1.0 + u * ((n + 1.0) ** power - 1.0)) ** (1.0 / power) - 1.0
    return ranks.clip(0, n - 1).astype(np.int64)


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except SettingsError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(argv: list[str] | None = None) -> int:
    """Run the command line; exit code 0 done, 1 error, 2 usage."""
    parser = argparse.ArgumentParser(
        prog="scripts.data.synthetic",
        description="Make LIBSVM text of any size: two classes split by hidden weights, or many "
        "(--classes), each with features of its own.",
    )
    parser.add_argument(
        "-o", dest="out", type=Path, required=True, metavar="OUT.svm", help="- is stdout"
    )
    size = parser.add_mutually_exclusive_group(required=True)
    size.add_argument("--rows", type=int)
    size.add_argument("--bytes", type=_size, metavar="SIZE", help="approximate size, such as 10GB")
    parser.add_argument("--features", type=int, required=True)
    parser.add_argument("--nnz", type=int, required=True, help="mean number of nonzeros in a row")
    parser.add_argument("--values", choices=("ones", "real"), default="ones")
    parser.add_argument("--noise", type=float, default=0.0, help="probability of a wrong label")
    parser.add_argument(
        "--power", type=float, default=0.0, help="exponent of the power law of the ids; 0: uniform"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--classes", type=int, default=2, metavar="K",
        help="with more than 2, labels are 1 ... K and each has features of its own "
        "(default: 2, labels +1 and -1)",
    )  # fmt: skip
    parser.add_argument(
        "--own", type=float, default=0.3, help="of many classes, share of features of its own"
    )
    parser.add_argument(
        "--class-power", type=float, default=0.0, help="exponent of the power law of the classes"
    )
    args = parser.parse_args(argv)
    if args.rows is not None and args.rows < 1:
        parser.error("--rows must be at least 1")
    try:
        problem = Problem(
            args.features, args.nnz, args.values == "real", args.noise, args.power, args.classes,
            args.seed, args.own, args.class_power,
        )  # fmt: skip
    except ValueError as error:
        parser.error(str(error))

    def make() -> str:
        begin = time.perf_counter()
        written = write_whole(args.out, problem.text(args.rows, args.bytes or 0))
        seconds = time.perf_counter() - begin
        return f"bytes {written}, seconds {seconds:.1f}, MB/s {written / seconds / 1e6:.0f}"

    return run("synthetic", make, to_stderr=str(args.out) == "-")


if __name__ == "__main__":
    sys.exit(main())
