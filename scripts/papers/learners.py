"""Online learners of the papers, to compare with: one row at a time, no rows kept.

    python -m scripts.papers.learners TEXT -o MODEL --learner arow -C 0.1

Reads LIBSVM text `--passes` times and prints a JSON report. `sbm predict` reads the model. Text is
read and parsed in a second thread. A row x of class y has a margin m. Two classes have one weight
vector w and s = ±1; several have one each, and r is the highest-scoring wrong class, of equal ones
the first::

    two classes    m = s w·x,      u = s x
    several        m = z_y - z_r,  u = x at w_y, -x at w_r        z_c = w_c·x

    perceptron           m ≤ 0:  W += u
    passive_aggressive   m < 1:  W += min(C, (1 - m) / |u|²) u
    arow                 m < 1:  W += (1 - m) / (u·Σu + r) Σu,   Σ⁻¹ += diag(u²) / r,   r = 1 / 2C
    pegasos              W *= 1 - 1/t,   m < 1:  W += u / (λt),   |W|² ≤ 1/λ by scaling

|u|² is |x|², or 2|x|² of several classes. Rows without nonzeros change nothing.

Sources: Rosenblatt 1958, with the max-score update of Crammer & Singer 2003; PA-I of Crammer,
Dekel, Keshet, Shalev-Shwartz & Singer 2006 (its binary form without C is MIRA); Crammer, Kulesza &
Dredze 2009, figure 1, with a diagonal Σ; Shalev-Shwartz, Singer, Srebro & Cotter 2011, figure 1,
with the projection.
"""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

from sbm.dataset.coding import CodedText
from sbm.engine.prefetch import prefetched
from sbm.errors import SbmError, SettingsError
from sbm.inputs.idtable import IdTable
from sbm.inputs.parsing import ParsedText
from sbm.inputs.text import PIECE, convert_sources, expand_inputs
from sbm.models.model import Model, check_output
from sbm.store.container import Buffers
from sbm.units import parse_grid
from scripts.bench.data import labels_of

LEARNERS = ("perceptron", "passive_aggressive", "arow", "pegasos")
_PERCEPTRON, _PASSIVE_AGGRESSIVE, _AROW, _PEGASOS = range(4)
# A scale below this is multiplied into the weights.
_SMALL = 1e-100

Floats = npt.NDArray[np.float64]


@njit(cache=True, nogil=True, error_model="numpy")
def _add(indices, values, begin, end, W, P, column, step, r):  # type: ignore[no-untyped-def]
    """Add step times a row to a column of W; of arow, r > 0, step times Σx, and x²/r to P."""
    for p in range(begin, end):
        f = indices[p]
        v = 1.0 if values is None else np.float64(values[p])
        if r > 0.0:
            W[f, column] += step * v / (1.0 + P[f, column])
            P[f, column] += v * v / r
        else:
            W[f, column] += step * v


@njit(cache=True, nogil=True, error_model="numpy")
def _learn(kind, indptr, y, indices, values, W, P, cost, counters, z):  # type: ignore[no-untyped-def]
    """Learn rows in their order; return how many were updates and how many were predicted right.

    ``kind`` is a place in `LEARNERS`, ``cost`` is C, of pegasos λ. W and P, shape (n_features,
    n_outputs), are changed in place; of arow, Σ = 1 / (1 + P). ``values`` may be None if all are 1.
    ``counters`` of pegasos are t and |W|². ``z`` is scratch, shape (n_outputs,).
    """
    updates = right = 0
    t, norm, scale = counters[0], counters[1], 1.0  # pegasos: the weights are scale times W
    r = 0.5 / cost if kind == _AROW else 0.0
    for i in range(len(y)):
        begin, end = indptr[i], indptr[i + 1]
        a = 0.0
        z[:] = 0.0
        for p in range(begin, end):
            v = 1.0 if values is None else np.float64(values[p])
            a += v * v
            for k in range(len(z)):
                z[k] += v * W[indices[p], k]
        own, rival, s, m = 0, 0, 2.0 * y[i] - 1.0, 0.0
        if len(z) == 1:
            m = s * z[0]
        else:
            own, rival, s, a = y[i], int(y[i] == 0), 1.0, 2.0 * a
            for k in range(rival + 1, len(z)):
                if k != own and z[k] > z[rival]:
                    rival = k
            m = z[own] - z[rival]
        m *= scale
        right += m > 0.0
        shrink = 1.0
        if kind == _PEGASOS:
            t += 1.0
            shrink = 1.0 - 1.0 / t
            scale *= shrink
            norm *= shrink * shrink
        if a == 0.0 or (m > 0.0 if kind == _PERCEPTRON else m >= 1.0):
            continue
        updates += 1
        step = 1.0
        if kind == _PASSIVE_AGGRESSIVE:
            step = min(cost, (1.0 - m) / a)
        elif kind == _AROW:
            variance = r
            for p in range(begin, end):
                v = 1.0 if values is None else np.float64(values[p])
                variance += v * v / (1.0 + P[indices[p], own])
                if rival != own:
                    variance += v * v / (1.0 + P[indices[p], rival])
            step = (1.0 - m) / variance
        elif kind == _PEGASOS:
            if scale < _SMALL:  # also at t = 1, when it is 0
                W *= scale
                scale = 1.0
            step = 1.0 / (cost * t)
            norm += step * (2.0 * shrink * m + step * a)
            step /= scale
        _add(indices, values, begin, end, W, P, own, step * s, r)
        if rival != own:
            _add(indices, values, begin, end, W, P, rival, -step, r)
        if kind == _PEGASOS and norm * cost > 1.0:
            scale *= np.sqrt(1.0 / (norm * cost))
            norm = 1.0 / cost
    if kind == _PEGASOS:
        W *= scale
    counters[0], counters[1] = t, norm
    return updates, right


class Learner:
    """Weights of an online learner; the cost is C of passive_aggressive and arow, λ of pegasos."""

    def __init__(self, name: str, cost: float, n_classes: int) -> None:
        self._kind, self._cost = LEARNERS.index(name), float(cost)
        self._n_outputs = 1 if n_classes == 2 else n_classes
        self._arrays = [np.zeros((0, self._n_outputs))] * (1 + (name == "arow"))
        self._counters = np.zeros(2)
        self.n_features = 0

    @property
    def W(self) -> Floats:
        """Weights, shape (n_features, n_outputs)."""
        return self._arrays[0][: self.n_features]

    def learn(
        self, indptr: npt.NDArray[np.int64], y: npt.NDArray[np.int64], indices: Any, values: Any,
        n_features: int,
    ) -> tuple[int, int]:  # fmt: skip
        """Learn rows; return how many were updates and how many were predicted right."""
        if n_features > len(self._arrays[0]):
            more = np.zeros((max(n_features, 2 * len(self._arrays[0])), self._n_outputs))
            self._arrays = [
                np.concatenate([old, more[len(old) :]]) for old in self._arrays
            ]  # fmt: skip
        self.n_features = n_features
        W, P = self._arrays[0], self._arrays[-1]
        z = np.empty(self._n_outputs)
        updates, right = _learn(
            self._kind, indptr, y, indices, values, W, P, self._cost, self._counters, z
        )
        return int(updates), int(right)


def learn_text(
    text: Path, model: Path, learner: str, *, cost: float, labels: Sequence[float] = (),
    passes: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """Learn a LIBSVM text; write a model and return a report.

    Without ``labels`` the text is read for them first. In the report, ``accuracy`` is that of the
    first pass, in which each row is predicted before it is learned, and ``seconds`` has ``total``,
    ``load`` and ``learn``; loading is behind learning. Raises `SbmError` if the text or the
    settings are invalid.
    """
    if not 0 < cost < np.inf:
        raise SettingsError(f"the cost of {learner} is {cost:g}; it must be above 0")
    check_output(model)
    known = np.unique(labels if len(labels) else labels_of(text))
    if len(known) < 2:
        raise SettingsError(f"{text} has one label; at least two are required")
    begin = time.perf_counter()
    one, ids = Learner(learner, cost, len(known)), IdTable()
    rows = right = updates = 0
    load = learn = 0.0
    for number in range(passes):
        for piece, n_features, seconds in _pieces(text, ids):
            start = time.perf_counter()
            y = np.searchsorted(known, piece.labels)
            if (known[np.minimum(y, len(known) - 1)] != piece.labels).any():
                raise SettingsError(f"{text} has a label that is not in --labels")
            some, correct = one.learn(piece.indptr, y, piece.indices, piece.values, n_features)
            updates += some
            load, learn = load + seconds, learn + time.perf_counter() - start
            if number == 0:
                rows, right = rows + len(y), right + correct
    Model(ids.keys, one.W, known.tolist(), info={"loss": learner}).save(model)
    return {
        "learner": learner, "rows": rows, "features": len(ids), "labels": known.tolist(),
        "accuracy": right / max(1, rows), "updates": updates,
        "seconds": {"total": time.perf_counter() - begin, "load": load, "learn": learn},
        "model": str(model),
    }  # fmt: skip


def _pieces(text: Path, ids: IdTable) -> Iterator[tuple[CodedText, int, float]]:
    """Yield parsed rows, the number of features so far and the seconds that loading took.

    The next piece is loaded meanwhile.
    """
    buffers = Buffers(PIECE)

    def code(parsed: ParsedText) -> CodedText:
        return CodedText.of(parsed, ids, buffers)

    def load(*_: Any) -> tuple[CodedText, int] | None:
        for _source, piece in parsed:
            piece.complete(ids)
            return piece, len(ids)
        return None

    with ThreadPoolExecutor(1) as parsing, ThreadPoolExecutor(1) as pool:
        parsed = convert_sources(expand_inputs([str(text)]), parsing, code, ahead=0)
        for loaded in prefetched(itertools.repeat(None), lambda *_: None, load, pool):
            if loaded.result is None:
                return
            piece, n_features = loaded.result
            yield piece, n_features, loaded.load_seconds
            piece.give_back(buffers)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; exit code 0 done, 1 error, 2 usage."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("text", type=Path, metavar="TEXT", help="LIBSVM text")
    parser.add_argument("-o", dest="model", type=Path, required=True, help="model to write")
    parser.add_argument("--learner", choices=LEARNERS, required=True)
    parser.add_argument("-C", dest="C", type=float, default=1.0, help="default: %(default)s")
    parser.add_argument("--lambda", dest="decay", type=float, default=1e-4, help="of pegasos")
    parser.add_argument("--labels", default="", metavar="L,L,...", help="default: read first")
    parser.add_argument("--passes", type=int, default=1, metavar="N", help="default: 1")
    args = parser.parse_args(argv)
    try:
        report = learn_text(
            args.text, args.model, args.learner, passes=args.passes,
            cost=args.decay if args.learner == "pegasos" else args.C,
            labels=parse_grid(args.labels) if args.labels else (),
        )  # fmt: skip
    except SbmError as error:
        print(f"scripts.papers.learners: {error}", file=sys.stderr)
        return 1
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
