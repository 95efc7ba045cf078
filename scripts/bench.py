"""Benchmarks: one subcommand a question, ours beside the peers, in alternating runs.

    python scripts/bench.py parse --data big.svm -o results/parse
    python scripts/bench.py text-to-gap --quick

`parse`        how fast is text turned into rows, on one core?
`epoch`        how long does one sweep over rows in memory take, against LIBLINEAR's iteration and
               against merely touching every nonzero and its weight?
`start`        how long does ``sbm --help`` take?
`text-to-gap`  how long from text to a model of given accuracy, with how much memory?
`overlap`      does a pass cost the larger one of loading and solving, or their sum?

Every number is a median over ``--runs`` runs, in which the contestants take turns; ratios are
medians of the ratios of neighbouring runs. Data is LIBSVM text with two labels, by default made
by ``make_synthetic.py`` and thrown away. The report goes to stdout as Markdown, and with ``-o`` to
PREFIX.md and PREFIX.json. ``--quick`` is a toy size that only shows that everything still runs.

To add a benchmark, write a function that takes the arguments and fills a `Report`, and add a row to
`BENCHMARKS` at the end.
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from scripts.bench_tools import (
    BenchError,
    Finished,
    Report,
    alternate,
    median,
    median_ratio,
    run_process,
    sbm_command,
    script_command,
    timed,
)

PIECE = 4 << 20  # bytes of text parsed at a time, as in sbm split
SYNTHETIC = ("--rows", 2_500_000, "--features", 700_000, "--nnz", 10, "--power", 0.8)
SYNTHETIC_QUICK = ("--rows", 20_000, "--features", 5_000, "--nnz", 10, "--power", 0.8)
NOISE = ("--noise", 0.02)

Floats = npt.NDArray[np.float64]


def tell(text: str) -> None:
    """Say on stderr what is going on."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


# ----------------------------------------------------------------------------------------- parse


def bench_parse(args: argparse.Namespace, report: Report) -> None:
    """Time the text parser alone, beside the readers of the peers.

    Ours runs in this thread over the whole file in pieces of 4 MB; reading the file and compiling
    are left out. The readers of the peers open the file themselves (it is in the page cache by
    then), and only read its first part (``--peer-bytes``), since their speed does not depend on
    the length and one of them is slow: liblinear-official holds no compiled reader, its
    ``svm_read_problem`` is Python.
    """
    from liblinear.commonutil import svm_read_problem
    from sklearn.datasets import load_svmlight_file

    part = _first_bytes(args.data, int(args.peer_bytes), args.folder / "part.svm")
    size, part_size = args.data.stat().st_size, part.stat().st_size
    _parse_file(part)  # compiles
    tasks = {
        "sbm parse_text": lambda: size / _parse_file(args.data),
        "scikit-learn load_svmlight_file": lambda: (
            part_size / timed(lambda: load_svmlight_file(str(part)))
        ),
        "liblinear svm_read_problem": lambda: (
            part_size / timed(lambda: svm_read_problem(str(part), return_scipy=True))
        ),
    }
    speeds = alternate(tasks, args.runs, tell)
    ours = speeds["sbm parse_text"]
    for name, values in speeds.items():
        read = size if name == "sbm parse_text" else part_size
        report.rows.append({
            "reader": name, "text_MB": read / 1e6, "MB_per_second": median(values) / 1e6,
            "sbm_is_faster": median_ratio(ours, values),
        })  # fmt: skip
    report.ratios = {
        "MB_per_second": median(ours) / 1e6,
        "times_scikit-learn": median_ratio(ours, speeds["scikit-learn load_svmlight_file"]),
        "times_liblinear_python_reader": median_ratio(ours, speeds["liblinear svm_read_problem"]),
    }
    report.notes = [
        "sbm: one thread, text in memory, without reading the file and without compiling",
        (
            "peers: their own reading of the file from the page cache included; the package "
            "liblinear-official holds no compiled reader, what is timed is its Python one"
        ),
    ]


def _pieces(path: Path) -> Iterator[tuple[npt.NDArray[np.uint8], int]]:
    """Yield whole lines in arrays with the room that the parser asks for, and their sizes."""
    rest = b""
    with path.open("rb") as file:
        while data := file.read(PIECE):
            data = rest + data
            end = data.rfind(b"\n") + 1
            data, rest = data[:end], data[end:]
            if data:
                yield np.frombuffer(bytearray(data + b"\0\0"), np.uint8), end
    if rest:
        yield np.frombuffer(bytearray(rest + b"\0\0"), np.uint8), len(rest)


def _parse_file(path: Path) -> float:
    """Parse a file; return the seconds spent parsing."""
    from sbm.store.libsvm import parse_text

    seconds = 0.0
    for text, size in _pieces(path):
        begin = time.perf_counter()
        parsed = parse_text(text, size)
        seconds += time.perf_counter() - begin
        if parsed.errors:
            raise BenchError(f"{path.name}: {parsed.errors[0].message}")
    return seconds


def _first_bytes(path: Path, size: int, out: Path) -> Path:
    """Copy whole lines from the beginning of a file, about `size` bytes."""
    with path.open("rb") as source, out.open("wb") as target:
        target.write(source.read(size))
        target.write(source.readline())
    return out


# ----------------------------------------------------------------------------------------- epoch


def bench_epoch(args: argparse.Namespace, report: Report) -> None:
    """Time one epoch over rows in memory, against LIBLINEAR's and against the machine.

    Ours is one call of the kernel with ``rounds=1`` over all rows as a store with one block gives
    them (dealt at random, indices in order of first appearance), in chunks as the solver cuts
    them. Epoch 1 starts from zero weights, the next ones go on from there.

    LIBLINEAR's ``train`` is called through the C library with the problem already built. It has no
    option for the number of iterations, and its time includes setting up (grouping by class, two
    more sweeps over the data) and the final objective. So it runs twice: with ``-e 1e9``, which
    ends after iteration 1, and with the largest ``-e`` found (by lowering it step by step) that
    ends after at least ``--more-iterations`` more; the number is read from its output. The
    difference of the two times, divided by the difference of the iterations, is one iteration:
    iterations 2 to about 5, where shrinking has hardly begun (in iteration 1 the largest violation
    is not positive, so the rule of iteration 2 removes nothing at the lower bound). What it does
    remove makes LIBLINEAR look faster, not us. It is compared with the mean of our epochs of the
    same numbers, whose rows are all visited.

    The roofline is a compiled loop that adds up ``W[indices[p]]`` over all nonzeros in storage
    order, with four sums, so that it waits for memory alone.
    """
    held = _hold(args)
    peer = _Liblinear(held, args.C)
    few, many, eps = peer.find_iterations(args.more_iterations)
    contestants = {name: _Epochs(held, values, many) for name, values in held.kinds().items()}
    touch = _make_touch()
    tasks: dict[str, Callable[[], Any]] = {}
    for name, epochs in contestants.items():
        W = np.random.default_rng(0).standard_normal(held.n_features)
        loop = partial(touch, held.rows.indices, epochs.values, W)
        loop(), epochs.run()  # compile
        tasks[f"sbm {name}"] = epochs.run
        tasks[f"touch {name}"] = partial(timed, loop)
    tasks["first"] = lambda: timed(lambda: peer.train(1e9))
    tasks["later"] = lambda: timed(lambda: peer.train(eps))
    times = alternate(tasks, args.runs, tell)
    iteration = (median(times["later"]) - median(times["first"])) / (many - few)
    _fill_epoch_report(report, held, times, iteration, (few, many))
    report.data |= {"rows": len(held.rows), "features": held.n_features, "nonzeros": held.nnz}
    report.settings |= {"liblinear_e": f"1e9 and {eps:.4g}", "liblinear_iterations": [few, many]}


def _fill_epoch_report(
    report: Report,
    held: "_Held",
    times: dict[str, list[Any]],
    iteration: float,
    span: tuple[int, int],
) -> None:
    few, many = span

    def add(name: str, seconds: float) -> None:
        report.rows.append({
            "what": name, "seconds": seconds, "Mnonzeros_per_second": held.nnz / seconds / 1e6,
            "of_liblinear_iteration": seconds / iteration,
        })  # fmt: skip

    for kind in held.kinds():
        epochs = np.array(times[f"sbm {kind}"])  # runs x epochs
        later = median(epochs[:, few:].mean(axis=1).tolist())
        touched = median(times[f"touch {kind}"])
        add(f"sbm, {kind}, epoch 1", median(epochs[:, 0].tolist()))
        add(f"sbm, {kind}, mean of epochs {few + 1} to {many}", later)
        add(f"touch every nonzero and its weight, {kind}", touched)
        report.ratios[f"{kind}: epoch_of_liblinear_iteration"] = later / iteration
        report.ratios[f"{kind}: epoch_of_touching"] = later / touched
    add(f"LIBLINEAR -s 3, mean of iterations {few + 1} to {many}", iteration)
    add("LIBLINEAR -s 3, call with 1 iteration, set-up included", median(times["first"]))
    report.notes = [
        (
            f"LIBLINEAR's iteration: (call with {many} iterations - call with {few}) "
            f"/ {many - few}, problem already built, output collected"
        ),
        "one thread each; the same rows in the same order; LIBLINEAR's features in order of id",
    ]


@dataclass
class _Held:
    """A whole data set in memory, as training sees a block."""

    rows: Any
    problem: Any
    ids: npt.NDArray[np.int64]

    @property
    def n_features(self) -> int:
        return len(self.ids)

    @property
    def nnz(self) -> int:
        return int(self.rows.nnz)

    def kinds(self) -> dict[str, Any]:
        """Values as stored, and explicit ones where none are stored."""
        values = self.rows.values
        if values is not None:
            return {str(values.dtype): values}
        return {"implicit ones": None, "float32": np.ones(self.nnz, np.float32)}


def _hold(args: argparse.Namespace) -> _Held:
    """Load the data through a store of one block."""
    from sbm import Settings, split
    from sbm.jobs.problem import make_problem
    from sbm.rows import Arena, Rows
    from sbm.store.blocks import BlockStore

    folder = args.folder / "epoch.sbm"
    split([args.data], folder, blocks=1, force=True)
    store = BlockStore(folder)
    n = store.n_rows
    arena = Arena.of(store.nnz, store.value_type)
    into = Rows(
        np.empty(n, np.int64), np.empty(n, np.int32), arena.indices, arena.values,
        np.empty(n, np.int32),
    )  # fmt: skip
    rows = store.read(store.chunks[0], into, 0)
    return _Held(rows, make_problem(Settings(C=args.C), store), store.read_feature_ids())


@dataclass
class _Epochs:
    """Epochs of our kernel, from zero, each timed."""

    held: _Held
    values: Any
    number: int
    home: npt.NDArray[np.int32] = field(init=False)
    active: npt.NDArray[np.int32] = field(init=False)
    order: npt.NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.home = np.zeros(len(self.held.rows), np.int32)
        self.active, self.order = np.empty_like(self.home), np.empty(len(self.home), np.int64)

    def run(self) -> list[float]:
        """Seconds of each epoch."""
        n = len(self.held.rows)
        alpha, score = np.zeros(n), np.zeros(n, np.float32)
        W = np.zeros((self.held.n_features, 1))
        state = np.array([1], np.uint64)
        return [timed(partial(self._epoch, W, alpha, score, state)) for _ in range(self.number)]

    def _epoch(
        self,
        W: Floats,
        alpha: Floats,
        score: npt.NDArray[np.float32],
        state: npt.NDArray[np.uint64],
    ) -> None:
        from sbm.solver.step import INNER_TOL, _chunk

        rows, problem = self.held.rows, self.held.problem
        problem.loss.kernels.solve(
            rows.starts, rows.lengths, rows.y, self.home, rows.indices, self.values, alpha, score,
            W[:, 0], problem.positive, problem.cost_positive, problem.cost_negative, problem.bias,
            problem.loss.squared, 1.0, 1, _chunk(len(rows)), problem.ahead(W), INNER_TOL, 0,
            state, self.active, self.order, np.zeros(5),
        )  # fmt: skip


def _make_touch() -> Callable[..., float]:
    """Compile the roofline loop."""
    from numba import njit

    @njit(error_model="numpy")
    def touch(indices: Any, values: Any, W: Any) -> float:
        a = b = c = d = 0.0
        end = len(indices) // 4 * 4
        for p in range(0, end, 4):
            if values is None:
                a += W[indices[p]]
                b += W[indices[p + 1]]
                c += W[indices[p + 2]]
                d += W[indices[p + 3]]
            else:
                a += W[indices[p]] * values[p]
                b += W[indices[p + 1]] * values[p + 1]
                c += W[indices[p + 2]] * values[p + 2]
                d += W[indices[p + 3]] * values[p + 3]
        for p in range(end, len(indices)):
            a += W[indices[p]]
        return a + b + c + d

    compiled: Callable[..., float] = touch
    return compiled


class _Liblinear:
    """LIBLINEAR's C library with a problem in memory."""

    def __init__(self, held: _Held, C: float) -> None:
        import scipy.sparse
        from liblinear import liblinear as library
        from liblinear import liblinearutil as peer

        rows = held.rows
        rank = np.empty(held.n_features, np.int32)
        rank[np.argsort(held.ids)] = np.arange(held.n_features, dtype=np.int32)
        values = np.ones(held.nnz) if rows.values is None else rows.values.astype(np.float64)
        indptr = np.append(rows.starts, held.nnz)
        shape = (len(rows), held.n_features)
        X = scipy.sparse.csr_matrix((values, rank[rows.indices], indptr), shape=shape)
        X.sort_indices()
        self._peer, self._C, self._print_function = peer, C, library.PRINT_STRING_FUN
        self._problem = peer.problem(np.where(rows.y == held.problem.positive, 1.0, -1.0), X)

    def train(self, eps: float) -> int:
        """Train and return the number of iterations."""
        output: list[bytes] = []
        parameter = self._peer.parameter(f"-s 3 -c {self._C!r} -e {eps!r}")
        parameter.print_func = self._print_function(output.append)
        self._peer.train(self._problem, parameter)
        return int(b"".join(output).split(b"#iter = ")[1].split()[0])

    def find_iterations(self, more: int) -> tuple[int, int, float]:
        """Iterations at ``-e 1e9``, at least `more` more than that, and the ``-e`` for them."""
        few, eps = self.train(1e9), 16.0
        while eps > 1e-6:
            if (many := self.train(eps)) >= few + more:
                return few, many, eps
            eps *= 0.7
        raise BenchError("LIBLINEAR needs too few iterations on this data; give more rows")


# ----------------------------------------------------------------------------------------- start


def bench_start(args: argparse.Namespace, report: Report) -> None:
    """Time ``sbm --help`` as a whole process, beside the start of Python and of numpy."""
    commands = {
        "sbm --help": sbm_command("--help"),
        "python -c pass": [sys.executable, "-c", "pass"],
        "python -c 'import numpy'": [sys.executable, "-c", "import numpy"],
    }
    for command in commands.values():
        run_process(command)  # fills the caches
    tasks = {name: partial(run_process, command) for name, command in commands.items()}
    results = alternate(tasks, args.runs, tell)
    seconds = {name: [r.seconds for r in found] for name, found in results.items()}
    ours = seconds["sbm --help"]
    for name, values in seconds.items():
        report.rows.append({
            "process": name, "seconds": median(values),
            "peak_MB": median([r.peak_bytes for r in results[name]]) / 1e6,
            "sbm_takes": median_ratio(ours, values),
        })  # fmt: skip
    report.ratios = {
        "seconds": median(ours),
        "times_python": median_ratio(ours, seconds["python -c pass"]),
        "times_numpy": median_ratio(ours, seconds["python -c 'import numpy'"]),
    }
    report.notes = ["wall time from start to end of the process, files in the page cache"]


# ----------------------------------------------------------------------------------- text-to-gap

# Arguments: text, model, C, e. Prints where the time went.
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
model = train(data, parameter(f"-s 3 -q -c {sys.argv[3]} -e {sys.argv[4]}"))
marks.append(time.perf_counter())
save_model(sys.argv[2], model)
marks.append(time.perf_counter())
spent = [b - a for a, b in zip([begin, *marks], marks)]
print(json.dumps(dict(zip(["import", "read", "build", "train", "save"], spent))))
"""


def bench_text_to_gap(args: argparse.Namespace, report: Report) -> None:
    """Time whole processes from text to a model on disk, ours and LIBLINEAR, taking turns.

    Ours are two processes, ``sbm split`` and ``sbm train``. LIBLINEAR is its own ``train`` program
    where ``--liblinear-train`` names one. The liblinear-official package holds only the library
    and a reader in Python, so by default it is a Python process that reads with scikit-learn's
    compiled loader (the fastest one at hand), hands the rows over and trains in the C library; its
    shares are reported, so that the reading can be thought away.

    Peak memory is measured from outside. The objective of every model is computed here by one
    function from the text and the weights in the model file, and compared with the largest dual
    value that ours certified, a lower bound of the optimum.
    """
    ours, theirs = _Ours(args), _Theirs(args)
    ours.warm_up()
    tasks: dict[str, Callable[[], Any]] = {"sbm": ours.run, "LIBLINEAR": theirs.run}
    runs = alternate(tasks, args.runs, tell)
    tell("computing objectives")
    bound = max(r.facts["dual"] for r in runs["sbm"])
    objectives = {
        "sbm": _objective(args.data, args.C, *_read_model(ours.model)),
        "LIBLINEAR": _objective(args.data, args.C, *_read_liblinear_model(theirs.model)),
    }
    for name, found in runs.items():
        report.rows.append(_describe_runs(name, found, objectives[name], bound))
    times = {name: [r.seconds for r in found] for name, found in runs.items()}
    peaks = {name: [r.peak_bytes for r in found] for name, found in runs.items()}
    report.ratios = {
        "sbm_of_liblinear_time": median_ratio(times["sbm"], times["LIBLINEAR"]),
        "sbm_of_liblinear_peak_memory": median_ratio(peaks["sbm"], peaks["LIBLINEAR"]),
        "sbm_certified_relative_gap": median([r.facts["relative_gap"] for r in runs["sbm"]]),
        "sbm_passes": median([r.facts["passes"] for r in runs["sbm"]]),
    }
    report.settings |= {"policy": "gradient", "liblinear": theirs.what}
    report.notes = [
        f"LIBLINEAR: {theirs.what}",
        "peak memory from outside, of ours the larger one of split and train",
        (
            "objective computed from text and model file by one function; above the optimum by at "
            "most the last column (against the largest certified dual value)"
        ),
    ]


@dataclass(frozen=True)
class _TextRun:
    """One way from text to a model: shares of its time, and what it said."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    shares: dict[str, float]
    facts: dict[str, Any]


class _Ours:
    """Split and train."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._store = args.folder / "ours.sbm"
        self.model = args.folder / "ours.model"

    def warm_up(self) -> None:
        """Compile, with rows of the data, so that no timed process has to."""
        tell("warming up")
        part = _first_bytes(self._args.data, 200_000, self._args.folder / "warm.svm")
        store = self._args.folder / "warm.sbm"
        run_process(sbm_command("split", part, "-o", store, "--force", "-q"))
        model = self._args.folder / "warm.model"
        run_process(sbm_command("train", store, "-o", model, "-q"), codes=(0, 3))

    def run(self) -> _TextRun:
        """Do it once."""
        _remove(self._store, self.model, self.model.with_name(self.model.name + ".run"))
        split, train = _split(self._args, self._store), _train(self._args, self._store, self.model)
        facts = train.json()
        inside = {k: facts["seconds"][k] for k in ("solve", "wait", "certify")}
        return _TextRun(
            split.seconds + train.seconds, split.cpu_seconds + train.cpu_seconds,
            max(split.peak_bytes, train.peak_bytes),
            {"split": split.seconds, "train": train.seconds, **inside}, facts,
        )  # fmt: skip


def _split(args: argparse.Namespace, store: Path) -> Finished:
    """Split the data, as the options say."""
    where = ("-o", store, "--blocks", args.blocks, "--mem", args.mem)
    return run_process(sbm_command("split", args.data, *where, "--json"))


def _train(args: argparse.Namespace, store: Path, model: Path) -> Finished:
    """Train on a store, as the options say; fails when the tolerance is not reached."""
    options = (
        "--tol", args.tol, "-C", args.C, "--rounds", args.rounds, "--mem", args.mem,
        "--cache-frac", args.cache_frac, "--max-passes", 500,
    )  # fmt: skip
    return run_process(sbm_command("train", store, "-o", model, *options, "--json"))


class _Theirs:
    """LIBLINEAR, as a program or through its library."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.model = args.folder / "liblinear.model"
        e, C, program = args.liblinear_e, args.C, args.liblinear_train
        if program:
            options = ("-s", 3, "-q", "-c", C, "-e", e, args.data, self.model)
            self._command = [program, *map(str, options)]
            self.what = f"its train program, -s 3 -c {C} -e {e}"
        else:
            code = [sys.executable, "-c", LIBLINEAR_CHILD]
            self._command = [*code, *map(str, (args.data, self.model, C, e))]
            self.what = f"scikit-learn's loader and the C library, -s 3 -c {C} -e {e}"
        self._in_python = not program

    def run(self) -> _TextRun:
        """Do it once."""
        _remove(self.model)
        done = run_process(self._command)
        shares = done.json() if self._in_python else {}
        return _TextRun(done.seconds, done.cpu_seconds, done.peak_bytes, shares, {})


def _describe_runs(
    name: str, runs: list[_TextRun], objective: float, bound: float
) -> dict[str, Any]:
    shares = {k: median([r.shares[k] for r in runs]) for k in runs[0].shares}
    return {
        "what": name,
        "seconds": median([r.seconds for r in runs]),
        "cpu_seconds": median([r.cpu_seconds for r in runs]),
        "of_these": ", ".join(f"{k} {v:.2f}" for k, v in shares.items()),
        "peak_MB": median([r.peak_bytes for r in runs]) / 1e6,
        "objective": f"{objective:.10g}",
        "above_bound": objective / bound - 1,
    }


def _objective(
    path: Path, C: float, ids: npt.NDArray[np.int64], weights: Floats, positive: float
) -> float:
    """Primal value of the hinge loss, ½|w|² + C Σ max(0, 1 - s w·x), in float64 from the text.

    Parameters
    ----------
    path : Path
        LIBSVM text.
    C : float
    ids : ndarray, shape (n,)
        Feature ids, increasing.
    weights : ndarray, shape (n,)
    positive : float
        Label with s = +1.
    """
    import scipy.sparse

    from sbm.store.libsvm import parse_text

    extended = np.append(weights, 0.0)  # the last one is for ids the model does not know
    loss = 0.0
    for text, size in _pieces(path):
        parsed = parse_text(text, size, dtype="float64")
        column = np.searchsorted(ids, parsed.ids)
        unknown = ids[np.minimum(column, len(ids) - 1)] != parsed.ids
        column[unknown] = len(ids)
        values = np.ones(len(column)) if parsed.values is None else parsed.values
        shape = (len(parsed.labels), len(extended))
        X = scipy.sparse.csr_matrix((values, column, parsed.indptr), shape=shape)
        sign = np.where(parsed.labels == positive, 1.0, -1.0)
        loss += float(np.maximum(0.0, 1.0 - sign * (X @ extended)).sum())
    return 0.5 * float(weights @ weights) + C * loss


def _read_model(path: Path) -> tuple[npt.NDArray[np.int64], Floats, float]:
    """Ids, weights and positive label of one of our models."""
    from sbm import Model

    model = Model.load(path)
    order = np.argsort(model.ids)
    return model.ids[order], model.W[order, 0], float(model.labels[1])


def _read_liblinear_model(path: Path) -> tuple[npt.NDArray[np.int64], Floats, float]:
    """Ids, weights and positive label of LIBLINEAR's text."""
    head, _, tail = path.read_text("ascii").partition("\nw\n")
    label = next(line.split()[1] for line in head.splitlines() if line.startswith("label "))
    weights = np.array(tail.split(), np.float64)
    return np.arange(1, len(weights) + 1), weights, float(label)


def _remove(*paths: Path) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


# --------------------------------------------------------------------------------------- overlap


def bench_overlap(args: argparse.Namespace, report: Report) -> None:
    """Compare each pass's wall time with the larger one of loading and solving.

    From the log of ``sbm train``. Loading happens in a thread, solving in the main one. The wall
    time of a pass is that between two rows of the log, less the certificate, which is a pass of
    its own; the first one includes opening the store.
    """
    store = args.folder / "overlap.sbm"
    _split(args, store)
    _train(args, store, args.folder / "overlap.model")  # compiles, fills the page cache
    runs = alternate({"train": partial(_log_of_passes, args, store)}, args.runs, tell)["train"]
    for k in range(min(map(len, runs))):
        row = {name: median([run[k][name] for run in runs]) for name in runs[0][k]}
        row["wall_of_larger"] = median([_excess([run[k]]) for run in runs])
        report.rows.append({"pass": k + 1, **row})
    report.ratios = {
        "wall_of_larger": median([_excess(run) for run in runs]),
        "sum_of_larger": median([_excess(run, "load", "solve") for run in runs]),
    }
    report.notes = [
        (
            "wall of larger: wall time of the passes over Σ max(load, solve); sum of larger: what "
            "it would be if nothing overlapped; the first pass includes opening the store"
        )
    ]


def _excess(passes: list[dict[str, float]], *parts: str) -> float:
    """Time of some passes (or the sum of some parts) over Σ max(load, solve)."""
    spent = sum(p[part] for p in passes for part in parts or ("wall",))
    return spent / sum(max(p["load"], p["solve"]) for p in passes)


def _log_of_passes(args: argparse.Namespace, store: Path) -> list[dict[str, float]]:
    """Train once and return the seconds of each pass."""
    model = args.folder / "overlap.model"
    folder = model.with_name(model.name + ".run")
    _remove(model, folder)
    _train(args, store, model)
    passes, before = [], 0.0
    for line in (folder / "log.jsonl").read_text("utf-8").splitlines():
        event = json.loads(line)
        if event["event"] != "pass":
            continue
        parts = {name: event["seconds"][name] for name in ("load", "solve", "wait", "write")}
        wall = event["elapsed"] - before - event["seconds"]["certify"]
        passes.append({"wall": wall, **parts})
        before = event["elapsed"]
    return passes


# ---------------------------------------------------------------------------------- command line


def _training_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--blocks", type=int, default=12, metavar="M")
    parser.add_argument("--mem", default="400MB", metavar="SIZE", help="of sbm split and sbm train")
    parser.add_argument("--cache-frac", type=float, default=0.5, metavar="F")
    parser.add_argument("--rounds", type=int, default=1, metavar="N")
    parser.add_argument("--tol", type=float, default=1e-3)
    parser.add_argument("-C", dest="C", type=float, default=0.1)


def _parse_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--peer-bytes", type=float, default=64e6, metavar="N", help="text that the peers read"
    )


def _epoch_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-C", dest="C", type=float, default=0.1)
    parser.add_argument(
        "--more-iterations", type=int, default=2, metavar="N",
        help="least difference of the two runs of LIBLINEAR",
    )  # fmt: skip


def _text_options(parser: argparse.ArgumentParser) -> None:
    _training_options(parser)
    parser.add_argument("--liblinear-e", type=float, default=0.1, metavar="E")
    parser.add_argument("--liblinear-train", metavar="PROGRAM", help="LIBLINEAR's own program")


def _no_options(parser: argparse.ArgumentParser) -> None:
    pass


@dataclass(frozen=True)
class Benchmark:
    """One row of the table.

    Attributes
    ----------
    run : callable
        ``run(args, report)`` fills the report.
    title : str
    options : callable
        Adds its own options to a parser.
    quick : dict
        Options that ``--quick`` changes.
    needs_data : bool
    """

    run: Callable[[argparse.Namespace, Report], None]
    title: str
    options: Callable[[argparse.ArgumentParser], None] = _no_options
    quick: dict[str, Any] = field(default_factory=dict)
    needs_data: bool = True


BENCHMARKS: dict[str, Benchmark] = {
    "parse": Benchmark(
        bench_parse, "LIBSVM text to rows on one core", _parse_options, {"peer_bytes": 2e5}
    ),
    "epoch": Benchmark(
        bench_epoch,
        "one epoch over rows in memory",
        _epoch_options,
        {"more_iterations": 30, "runs": 7},
    ),
    "start": Benchmark(bench_start, "start of the program", needs_data=False),
    "text-to-gap": Benchmark(
        bench_text_to_gap,
        "text to a model of given accuracy",
        _text_options,
        {"tol": 1e-2, "runs": 1},
    ),
    "overlap": Benchmark(
        bench_overlap, "loading behind solving", _training_options, {"tol": 1e-2, "runs": 1}
    ),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bench.py", description=(__doc__ or "").split("\n", 1)[0])
    commands = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    for name, benchmark in BENCHMARKS.items():
        command = commands.add_parser(name, help=benchmark.title, description=benchmark.title)
        command.add_argument("--quick", action="store_true", help="a toy size, for tests")
        command.add_argument("--runs", type=int, metavar="N", help="default 5, fewer with --quick")
        command.add_argument(
            "-o", dest="prefix", type=Path, metavar="PREFIX", help="write PREFIX.json, PREFIX.md"
        )
        if benchmark.needs_data:
            command.add_argument(
                "--data", type=Path, metavar="FILE",
                help="LIBSVM text with two labels; default: made, then removed",
            )  # fmt: skip
        benchmark.options(command)
    return parser


def _make_data(args: argparse.Namespace, report: Report) -> None:
    """See to it that there is data, and describe it."""
    if args.data is None:
        options = SYNTHETIC_QUICK if args.quick else SYNTHETIC
        args.data = args.folder / "data.svm"
        tell("making data")
        run_process(script_command("make_synthetic", "-o", args.data, *options, *NOISE))
        report.data["name"] = " ".join(map(str, ("make_synthetic", *options, *NOISE)))
    elif not args.data.is_file():
        raise BenchError(f"{args.data}: no such file")
    else:
        args.data = args.data.resolve()
        report.data["name"] = args.data.name
    report.data["bytes"] = args.data.stat().st_size


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    left_out = ("benchmark", "prefix", "data", "folder", "liblinear_train")
    return {k: v for k, v in vars(args).items() if k not in left_out and v is not None}


def run(args: argparse.Namespace) -> Report:
    """Run one benchmark.

    Raises
    ------
    BenchError
        It cannot be done.
    """
    benchmark = BENCHMARKS[args.benchmark]
    if args.quick:
        vars(args).update(
            {"runs": 2} | benchmark.quick | ({"runs": args.runs} if args.runs else {})
        )
    args.runs = args.runs or 5
    report = Report(args.benchmark, benchmark.title, settings=_settings(args))
    with tempfile.TemporaryDirectory(prefix="sbm-bench-") as folder:
        args.folder = Path(folder)
        if benchmark.needs_data:
            _make_data(args, report)
        benchmark.run(args, report)
    return report


def main(argv: list[str] | None = None) -> int:
    """Run the command line; exit code 0 done, 1 error, 2 usage."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.runs is not None and args.runs < 1:
        parser.error("--runs must be at least 1")
    try:
        report = run(args)
        if args.prefix is not None:
            report.write(args.prefix)
    except ModuleNotFoundError as error:
        print(f"bench.py: {error.name} is missing; install the extra bench", file=sys.stderr)
        return 1
    except (BenchError, OSError) as error:
        print(f"bench.py: {error}", file=sys.stderr)
        return 1
    print(report.markdown(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
