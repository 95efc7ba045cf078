"""The peers: LIBLINEAR (program and library), scikit-learn's loader, Vowpal Wabbit."""

import argparse
import importlib.util
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scripts.bench.commands import Held, remove
from scripts.bench.data import labels_of, positive_label
from scripts.bench.tools import BenchError, Finished, run_process

# Arguments: text, model, C, e, solver. Prints where the time went.
LIBLINEAR_CHILD = """\
import json, sys, time
begin = time.perf_counter()
import scipy.sparse
from liblinear.liblinearutil import parameter, problem, save_model, train
from sklearn.datasets import load_svmlight_file
marks = [time.perf_counter()]
X, y = load_svmlight_file(sys.argv[1])
marks.append(time.perf_counter())
data = problem(y, scipy.sparse.csr_matrix(X))
del X
marks.append(time.perf_counter())
model = train(data, parameter("-q -c {} -e {} -s {}".format(*sys.argv[3:])))
marks.append(time.perf_counter())
save_model(sys.argv[2], model)
marks.append(time.perf_counter())
spent = [b - a for a, b in zip([begin, *marks], marks)]
print(json.dumps(dict(zip(["import", "read", "build", "train", "save"], spent))))
"""

SKLEARN_CHILD = """\
import json, sys, time
from sklearn.datasets import load_svmlight_file
begin = time.perf_counter()
load_svmlight_file(sys.argv[1])
print(json.dumps({"read": time.perf_counter() - begin}))
"""


def run_sklearn_loader(text: Path) -> Finished:
    """Run a process that only loads a text; it prints the seconds of the loading alone."""
    return run_process([sys.executable, "-c", SKLEARN_CHILD, str(text)])


# --------------------------------------------------------------------------------------- LIBLINEAR


class Liblinear:
    """LIBLINEAR from text to a model file, whole processes.

    Its own program where there is one: ``--liblinear-train``, else ``liblinear-train`` on the
    path. The liblinear-official package holds only the library and a reader in Python, so without
    the program (``--liblinear-train none``) it is a Python process that reads with scikit-learn's
    compiled loader, hands the rows over and trains in the C library. It prints its shares.

    Parameters
    ----------
    C : float, optional
        Default: that of the arguments.
    solver : int
        Its ``-s``: 3 is the hinge loss (of several classes, one against the rest), 4 that of
        Crammer and Singer. Where a loss has an epsilon it is 0.1, as ours is.

    Attributes
    ----------
    what : str
        Which one it is, for the report.
    """

    def __init__(
        self, args: argparse.Namespace, C: float | None = None, *, solver: int = 3
    ) -> None:
        program = args.liblinear_train or shutil.which("liblinear-train")
        self._program = None if program == "none" else program
        self._C, self._solver = args.C if C is None else C, solver
        kind = "its own train program" if self._program else "scikit-learn's loader, C library"
        self.what = f"{kind}, -s {solver} -c {self._C}"

    def run(self, text: Path, model: Path, e: float) -> Finished:
        """Train from a text to a model file."""
        remove(model)
        arguments = [text, model, self._C, e, self._solver]
        command = [sys.executable, "-c", LIBLINEAR_CHILD, *arguments]
        if self._program:
            command = [self._program, "-s", self._solver, "-q", "-c", self._C, "-e", e, text, model]
        return run_process([str(word) for word in command])

    def shares(self, done: Finished) -> dict[str, float]:
        """Where the time went, as far as it is known."""
        return {} if self._program else done.json()

    def reading(self, done: Finished, iteration: float) -> float:
        """Seconds of reading alone in a run of one iteration.

        Those that the Python process prints; the program's are estimated: its seconds less those
        of the same iteration with the rows in memory already.
        """
        known = self.shares(done).get("read")
        return max(done.seconds - iteration, 1e-9) if known is None else known


@dataclass(frozen=True)
class Trained:
    """What LIBLINEAR's library found."""

    iterations: int
    # primal less dual value, divided by the larger one, of its weights and the dual value it prints
    relative_gap: float


class LiblinearLibrary:
    """LIBLINEAR's C library with a problem in memory, its features in order of id."""

    def __init__(self, held: Held, C: float) -> None:
        import scipy.sparse
        from liblinear import liblinear as library
        from liblinear import liblinearutil as peer

        rows = held.rows
        rank = np.empty(held.n_features, np.int32)
        rank[np.argsort(held.ids)] = np.arange(held.n_features, dtype=np.int32)
        nnz = held.nnz  # there is spare room behind them
        values = np.ones(nnz) if rows.values is None else rows.values[:nnz].astype(np.float64)
        indptr = np.append(rows.starts, nnz)
        shape = (len(rows), held.n_features)
        self._X = scipy.sparse.csr_matrix((values, rank[rows.indices[:nnz]], indptr), shape=shape)
        self._X.sort_indices()
        self._signs = np.where(rows.y == held.problem.positive, 1.0, -1.0)
        self._peer, self._C, self._print_function = peer, C, library.PRINT_STRING_FUN
        self._problem = peer.problem(self._signs, self._X)

    def train(self, e: float) -> tuple[Any, str]:
        """Train; return the model and what was printed."""
        output: list[bytes] = []
        parameter = self._peer.parameter(f"-s 3 -c {self._C!r} -e {e!r}")
        parameter.print_func = self._print_function(output.append)
        model = self._peer.train(self._problem, parameter)
        return model, b"".join(output).decode("ascii")

    def iterations(self, e: float) -> int:
        """Number of iterations with a tolerance."""
        return int(_after("#iter = ", self.train(e)[1]))

    def timed_iterations(self, e: float) -> tuple[float, int]:
        """Train; return the seconds it took and the number of iterations."""
        begin = time.perf_counter()
        _, output = self.train(e)
        return time.perf_counter() - begin, int(_after("#iter = ", output))

    def find_iterations(self, more: int) -> tuple[int, int, float]:
        """Iterations at ``-e 1e9``, at least `more` more than that, and the ``-e`` for them."""
        few = self.iterations(1e9)
        e, _ = self._first_reaching(few + more)
        return few, max(few + more, self.iterations(e)), e

    def after(self, iterations: int) -> Trained | None:
        """The state after exactly so many iterations, if some ``-e`` is found that ends there."""
        low, high = self._first_reaching(iterations)
        e = low
        for _ in range(8):
            model, output = self.train(e)
            found = int(_after("#iter = ", output))
            if found == iterations:
                return Trained(found, self._relative_gap(model, output))
            low, high = (e, high) if found > iterations else (low, e)
            e = (low * high) ** 0.5
        return None

    def _first_reaching(self, iterations: int) -> tuple[float, float]:
        """Lower ``-e`` until it takes so many iterations; return it and the one before."""
        before = e = 1e9
        while self.iterations(e) < iterations:
            before, e = e, 16.0 if e > 16 else e * 0.7
            if e < 1e-6:
                raise BenchError("LIBLINEAR needs too few iterations on this data; give more rows")
        return e, before

    def _relative_gap(self, model: Any, output: str) -> float:
        weights = np.ctypeslib.as_array(model.w, shape=(self._X.shape[1],))
        margins = self._signs * (self._X @ weights) * model.get_labels()[0]
        loss = float(np.maximum(0.0, 1.0 - margins).sum())
        primal = 0.5 * float(weights @ weights) + self._C * loss
        dual = -float(_after("Objective value = ", output))
        return (primal - dual) / max(abs(primal), abs(dual))


def _after(key: str, output: str) -> str:
    return output.split(key)[1].split()[0]


# ---------------------------------------------------------------------------------- Vowpal Wabbit

VW_NOTE = (
    "VW: python -m vowpalwabbit --loss_function hinge -b 22, from text in its own format, "
    "converted before, Python's start included; no regularisation, so no objective to compare"
)


class VowpalWabbit:
    """Vowpal Wabbit's program from the package of its name, on text in its own format.

    Converting the text is no part of any time.

    Parameters
    ----------
    data, test : Path
        LIBSVM text with two labels.
    """

    def __init__(self, data: Path, test: Path, folder: Path) -> None:
        if importlib.util.find_spec("vowpalwabbit") is None:
            raise ModuleNotFoundError(name="vowpalwabbit")
        self._positive = positive_label(data)
        self._data, self._test = folder / "train.vw", folder / "test.vw"
        self._model, self._predictions = folder / "vw.model", folder / "vw.txt"
        self._cache = folder / "vw.cache"
        self._signs = np.where(labels_of(test) == self._positive, 1.0, -1.0)
        to_vw(data, self._data, self._positive)
        to_vw(test, self._test, self._positive)

    def run(self, passes: int = 1) -> Finished:
        """Train in so many passes, over its own cache of the data if there are several."""
        more = ("-c", "-k", "--cache_file", self._cache, "--passes", passes, "--holdout_off")
        options = ("--loss_function", "hinge", "-b", 22, "--quiet", "-f", self._model)
        return self._process("-d", self._data, *options, *(more if passes > 1 else ()))

    def start(self) -> Finished:
        """Start the program and end it: a share of every other run."""
        return self._process("--version")

    def accuracy(self) -> float:
        """Share of right labels of the last model on the test text."""
        options = ("-t", "-i", self._model, "-d", self._test, "-p", self._predictions, "--quiet")
        self._process(*options)
        decisions = np.array(self._predictions.read_text("ascii").split(), np.float64)
        return float(np.mean(np.where(decisions > 0, 1.0, -1.0) == self._signs))

    def _process(self, *options: object) -> Finished:
        return run_process([sys.executable, "-m", "vowpalwabbit", *map(str, options)])


def to_vw(text: Path, out: Path, positive: float) -> None:
    """Convert LIBSVM text: ``1 |f 3 5:0.5`` for a positive row with ``3:1 5:0.5``."""
    with text.open("rb") as lines, out.open("wb") as target:
        for line in lines:
            label, *features = line.split(b"#", 1)[0].split(None, 1) or [b""]
            if label:
                entries = b"".join(features).strip() + b" "
                sign = b"1" if float(label) == positive else b"-1"
                target.write(sign + b" |f " + entries.replace(b":1 ", b" ") + b"\n")
