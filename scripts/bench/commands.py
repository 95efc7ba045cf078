"""Our side of the benchmarks: the commands, and a store held in memory."""

import json
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from scripts.bench.tools import Finished, run_inside, run_process, sbm_command

BUDGET = (0, 3)  # exit codes of a training that may use up its passes

# Arguments: text. Does what a stream does in front of its blocks, with one thread for parsing and
# what comes behind it; a piece of text is read ahead, as always.
READING_CHILD = """\
from sbm.dataset.deal import CodedText
from sbm.engine.prefetch import loading_thread
from sbm.store.container import Buffers
from sbm.inputs.idtable import IdTable
from sbm.inputs.live import Patience
from sbm.inputs.text import PIECE, convert_sources, expand_inputs
ids, buffers = IdTable(), Buffers(PIECE)
sources = expand_inputs(sys.argv[1:])
coded = lambda parsed: CodedText.of(parsed, ids, buffers)
options = {"ahead": 1, "patience": Patience()}
with measured:
    for _, text in convert_sources(sources, loading_thread(1), coded, **options):
        text.complete(ids)
        text.give_back(buffers)
"""


def remove(*paths: Path) -> None:
    """Remove files and folders, where they are there."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def option_words(options: dict[str, Any]) -> list[str]:
    """``cache_frac=0.5`` as ``--cache-frac 0.5``; an option of None is left out."""
    words = []
    for name, value in options.items():
        if value is not None:
            words += [f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}", str(value)]
    return words


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
    remove(model, model.with_name(model.name + ".run"))
    words = sbm_command(command, source, "-o", model, *option_words(options), *flags, "--json")
    return run_process(words, codes=codes)


train = partial(learn, "train")
stream = partial(learn, "stream")


def read_alone(text: Path) -> Finished:
    """Read and parse a text and number its features, on one thread."""
    return run_inside(READING_CHILD, text)


def metric_of(model: Path, test: Path, metric: str = "accuracy") -> float:
    """A metric of predictions, by ``sbm predict``."""
    return float(run_process(sbm_command("predict", model, test, "--json")).json()[metric])


def log_of(model: Path) -> list[dict[str, Any]]:
    """The events in the log of the training that made a model."""
    log = model.with_name(model.name + ".run") / "log.jsonl"
    return [json.loads(line) for line in log.read_text("utf-8").splitlines()]
