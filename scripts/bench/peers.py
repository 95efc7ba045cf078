"""The peers: LIBLINEAR (program or library), Vowpal Wabbit."""

import importlib.util
import shutil
from pathlib import Path

import numpy as np

from scripts.bench.commands import remove
from scripts.bench.data import labels_of, positive_label
from scripts.bench.tools import Finished, run_inside, run_process

# Arguments: text, model, C, e, solver. LIBLINEAR's program reads into the form in which it trains,
# so handing the rows over is not measured.
LIBLINEAR_CHILD = """\
import scipy.sparse
from liblinear.liblinearutil import parameter, problem, save_model, train
from sklearn.datasets import load_svmlight_file
problem([1.0], scipy.sparse.csr_matrix([[1.0]]))  # compiles the handing over
with measured:
    X, y = load_svmlight_file(sys.argv[1])
data = problem(y, scipy.sparse.csr_matrix(X))
del X
with measured:
    save_model(sys.argv[2], train(data, parameter("-q -c {} -e {} -s {}".format(*sys.argv[3:]))))
"""

# Arguments: those of the program.
VW_CHILD = """\
import vowpalwabbit
with measured:
    vowpalwabbit.Workspace(arg_list=sys.argv[1:]).finish()
"""


class Liblinear:
    """LIBLINEAR from text to a model file; if a loss has an epsilon it is 0.1, as ours is.

    Its own program if `liblinear-train` is on the path (Debian: liblinear-tools): the whole
    process. Otherwise the library of the package liblinear-official in a Python process, which
    reads with scikit-learn's compiled loader: reading, training and saving, as the process itself
    measures them, so that neither the start of Python nor its imports count.
    """

    def __init__(self, C: float, solver: int) -> None:
        self._C, self._solver = C, solver

    @classmethod
    def found(cls, C: float, solver: int = 3) -> "Liblinear | None":
        """Return it, or None if it is not installed."""
        packages = all(map(importlib.util.find_spec, ("liblinear", "sklearn")))
        return cls(C, solver) if packages or shutil.which("liblinear-train") else None

    @staticmethod
    def what() -> str:
        """Say which one it is."""
        if shutil.which("liblinear-train"):
            return "its own program"
        return (
            "its library in a Python process, without the start of Python and without what it "
            "holds then; scikit-learn reads the text"
        )

    def run(self, text: Path, model: Path, e: float) -> Finished:
        """Train from a text to a model file."""
        remove(model)
        if program := shutil.which("liblinear-train"):
            words = [program, "-s", self._solver, "-q", "-c", self._C, "-e", e, text, model]
            return run_process([str(word) for word in words])
        return run_inside(LIBLINEAR_CHILD, text, model, self._C, e, self._solver)


# ---------------------------------------------------------------------------------- Vowpal Wabbit


class VowpalWabbit:
    """Vowpal Wabbit from the package of its name, on text in its own format, of two labels.

    Neither converting the LIBSVM text nor the start of Python counts.
    """

    @classmethod
    def found(cls, data: Path, test: Path, folder: Path) -> "VowpalWabbit | None":
        """Return it, or None if it is not installed."""
        is_there = importlib.util.find_spec("vowpalwabbit") is not None
        return cls(data, test, folder) if is_there else None

    def __init__(self, data: Path, test: Path, folder: Path) -> None:
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

    def accuracy(self) -> float:
        """Share of right labels of the last model on the test text."""
        options = ("-t", "-i", self._model, "-d", self._test, "-p", self._predictions, "--quiet")
        self._process(*options)
        decisions = np.array(self._predictions.read_text("ascii").split(), np.float64)
        return float(np.mean(np.where(decisions > 0, 1.0, -1.0) == self._signs))

    def _process(self, *options: object) -> Finished:
        return run_inside(VW_CHILD, *options)


def to_vw(text: Path, out: Path, positive: float) -> None:
    """Convert LIBSVM text: ``1 |f 3 5:0.5`` for a positive row with ``3:1 5:0.5``."""
    with text.open("rb") as lines, out.open("wb") as target:
        for line in lines:
            label, *features = line.split(b"#", 1)[0].split(None, 1) or [b""]
            if label:
                entries = b"".join(features).strip() + b" "
                sign = b"1" if float(label) == positive else b"-1"
                target.write(sign + b" |f " + entries.replace(b":1 ", b" ") + b"\n")
