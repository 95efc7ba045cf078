"""Our side of the benchmarks: the commands, and a store held in memory."""

import argparse
import functools
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scripts.bench.data import first_bytes
from scripts.bench.tools import Finished, run_process, sbm_command, tell

BUDGET = (0, 3)  # exit codes of a training that may use up its passes

# Arguments: store, model, settings and rate, both as JSON. Prints the report.
THROTTLED_CHILD = """\
import json, sys
import sbm
from sbm.distributed.comm import SerialComm
from sbm.programs.train import train_ranks
from sbm.programs.training.job import TrainOptions
store, model, settings, rate = sys.argv[1:]
settings, options = sbm.Settings(**json.loads(settings)), TrainOptions(read_rate=json.loads(rate))
print(json.dumps(train_ranks(SerialComm(), store, model, settings, options)[1]))
"""


# Arguments: text. Does what a stream does in front of its blocks, with one thread for parsing and
# what comes behind it; a piece of text is read ahead, as always.
READING_CHILD = """\
import json, sys, time
from sbm.dataset.deal import CodedText
from sbm.engine.prefetch import loading_thread
from sbm.store.container import Buffers
from sbm.inputs.idtable import IdTable
from sbm.inputs.live import Patience
from sbm.inputs.text import PIECE, convert_sources, expand_inputs
ids, buffers = IdTable(), Buffers(PIECE)
sources = expand_inputs(sys.argv[1:])
begin = time.perf_counter()
coded = lambda parsed: CodedText.of(parsed, ids, buffers)
options = {"ahead": 1, "patience": Patience()}
rows = 0
for _, text in convert_sources(sources, loading_thread(1), coded, **options):
    text.complete(ids)
    rows += len(text.indptr) - 1
    text.give_back(buffers)
print(json.dumps({"seconds": time.perf_counter() - begin, "rows": rows}))
"""


def remove(*paths: Path) -> None:
    """Remove files and folders, where they are there."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def option_words(options: dict[str, Any]) -> list[str]:
    """``cache_frac=0.5`` as ``--cache-frac 0.5``."""
    words = []
    for name, value in options.items():
        if value is not None:
            words += [f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}", str(value)]
    return words


def _remove_model(model: Path) -> None:
    remove(model, model.with_name(model.name + ".run"))


def split(text: Path, store: Path, **options: Any) -> Finished:
    """Run ``sbm split`` to a fresh store; its report is on stdout."""
    remove(store)
    return run_process(sbm_command("split", text, "-o", store, *option_words(options), "--json"))


def learn(
    command: str,
    source: Path,
    model: Path,
    *flags: str,
    codes: Sequence[int] = (0,),
    **options: Any,
) -> Finished:
    """Run ``sbm train``, ``tune`` or ``stream`` from scratch; its report is on stdout."""
    return run_process(learn_command(command, source, model, *flags, **options), codes=codes)


def learn_command(
    command: str, source: Path | str, model: Path, *flags: str, **options: Any
) -> list[str]:
    """Command line of that; an option of None is left out."""
    _remove_model(model)
    return sbm_command(command, source, "-o", model, *option_words(options), *flags, "--json")


train = partial(learn, "train")
tune = partial(learn, "tune")
stream = partial(learn, "stream")


def read_alone(text: Path) -> dict[str, float]:
    """Read and parse a text and number its features, on one thread; ``seconds`` and ``rows``."""
    return run_process([sys.executable, "-c", READING_CHILD, str(text)]).json()


def train_throttled(
    store: Path, model: Path, read_rate: float | None, **options: Any
) -> dict[str, Any]:
    """Train from scratch, reading `read_rate` bytes a second at most; return the report."""
    _remove_model(model)
    arguments = (str(store), str(model), json.dumps(options), json.dumps(read_rate))
    return run_process([sys.executable, "-c", THROTTLED_CHILD, *arguments]).json()


def splitting_options(args: argparse.Namespace, **changes: Any) -> dict[str, Any]:
    """The options of ``sbm split`` among the arguments, some of them replaced."""
    return {"blocks": args.blocks, "mem": args.split_mem or args.mem} | changes


def split_to(args: argparse.Namespace, text: Path, **changes: Any) -> Path:
    """Split a text to a store that stays for all runs; return it."""
    tell(f"splitting {text.name}")
    store: Path = args.folder / "store.sbm"
    split(text, store, **splitting_options(args, **changes))
    return store


def training_options(args: argparse.Namespace, **changes: Any) -> dict[str, Any]:
    """The options of ``sbm train`` among the arguments, some of them replaced."""
    names = ("C", "cache_frac", "mem", "parts", "rounds", "tol", "max_passes")
    return {name: getattr(args, name) for name in names if hasattr(args, name)} | changes


def metric_of(model: Path, test: Path, metric: str = "accuracy") -> float:
    """A metric of predictions, by ``sbm predict``."""
    return float(run_process(sbm_command("predict", model, test, "--json")).json()[metric])


def warm_up(args: argparse.Namespace, text: Path | None = None) -> None:
    """Compile split and train, with rows of the data, so that no timed process has to.

    Not at toy size: its times mean nothing.
    """
    if args.quick:
        return
    tell("warming up")
    part = first_bytes(text or args.data, 200_000, args.folder / "warm.svm")
    store, model = args.folder / "warm.sbm", args.folder / "warm.model"
    split(part, store)
    train(store, model, codes=BUDGET, max_passes=1)


def warm_training(args: argparse.Namespace, store: Path, model: Path, **options: Any) -> None:
    """Train for a pass: compiles what is missing, and fills the page cache; not at toy size."""
    if args.quick:
        return
    tell("warming up")
    train(store, model, codes=BUDGET, **options | {"max_passes": 1})


def log_of(model: Path) -> list[dict[str, Any]]:
    """The events in the log of the training that made a model."""
    log = model.with_name(model.name + ".run") / "log.jsonl"
    return [json.loads(line) for line in log.read_text("utf-8").splitlines()]


def passes_of(model: Path) -> list[dict[str, float]]:
    """Seconds of each pass of the training that made a model, from its log.

    ``wall`` is the time between two rows of the log less the certificate, which is a pass of its
    own; the first one includes opening the store.
    """
    passes, before = [], 0.0
    for event in log_of(model):
        if event["event"] != "pass":
            continue
        parts = {name: event["seconds"][name] for name in ("load", "solve", "wait", "write")}
        wall = event["elapsed"] - before - event["seconds"]["certify"]
        passes.append({"wall": wall, **parts})
        before = event["elapsed"]
    return passes


@dataclass
class Held:
    """A whole data set in memory, as training sees a block."""

    rows: Any
    problem: Any
    ids: npt.NDArray[np.int64]  # feature ids, by index

    @property
    def n_features(self) -> int:
        """Number of features."""
        return len(self.ids)

    @property
    def nnz(self) -> int:
        """Number of nonzeros."""
        return int(self.rows.nnz)

    @functools.cached_property
    def kinds(self) -> dict[str, Any]:
        """Values as stored, and explicit ones where none are; as long as the rows' indices."""
        values = self.rows.values
        if values is not None:
            return {str(values.dtype): values}
        return {"implicit ones": None, "float32": np.ones(len(self.rows.indices), np.float32)}


def hold(text: Path, folder: Path, C: float) -> Held:
    """Load a text through a store of one block: rows dealt at random, as training sees them."""
    import sbm
    from sbm.engine.problems import make_problems
    from sbm.rows import Arena, Rows
    from sbm.store.blocks import BlockStore

    sbm.split([text], folder / "held.sbm", blocks=1, force=True)
    store = BlockStore(folder / "held.sbm")
    n = store.n_rows
    arena = Arena.of(store.nnz, store.value_type)
    into = Rows(
        np.empty(n, np.int64), np.empty(n, np.int32), arena.indices, arena.values,
        np.empty(n, np.int32),
    )  # fmt: skip
    rows = store.read(store.chunks[0], into, 0)
    return Held(rows, make_problems(sbm.Settings(C=C), store)[0], store.read_feature_ids())
