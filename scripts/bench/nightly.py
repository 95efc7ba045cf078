"""Benchmark of warm starts: rows are appended and expired, training resumes from the last run."""

import argparse
import itertools
from pathlib import Path
from typing import Any

from scripts.bench.data import cut, end_of_line
from scripts.bench.ours import BUDGET, option_words, remove, training_options
from scripts.bench.registry import QUICK, TRAINING, Registry, benchmark, existing
from scripts.bench.tools import BenchError, Report, run_process, sbm_command, tell

BENCHMARKS: Registry = {}
TARGET = 0.35  # of the updates of a training from scratch, where a tenth is new


def cut_lines(text: Path, shares: list[float], folder: Path) -> list[Path]:
    """Cut a text into parts of whole lines, one behind the other; `shares` add up to 1."""
    middle = [end_of_line(text, share)[1] for share in itertools.accumulate(shares[:-1])]
    spans = list(itertools.pairwise([0, *middle, text.stat().st_size]))
    if any(end <= begin for begin, end in spans):
        raise BenchError(f"{text.name} has too few lines for {len(shares)} parts")
    return [
        cut(text, begin, end, folder / f"part-{k:02d}.svm") for k, (begin, end) in enumerate(spans)
    ]


@benchmark(
    BENCHMARKS, rows=2_500_000, quick={**QUICK, "nights": 1},
    options={**TRAINING, "mem": None, "max_passes": 50, "mems": ["400MB"], "costs": [],
             "nights": 10, "also": []},
)  # fmt: skip
def nightly(args: argparse.Namespace, report: Report) -> None:
    """Warm starts when rows are appended and expired.

    Counts, not times: updates and visits of alphas, passes, megabytes read, of sbm train
    --warm-start from the last run and of one from scratch on the same store, to the same certified
    tolerance. difference: of the two certified primal values, as a share; at most the sum of the
    gaps.

    a tenth is new: the store is split from the first nine tenths of the lines, trained, and the
    last tenth is appended; for each memory bound, other C and other texts.

    nights: the first half of the lines lies in --nights sources, each later night brings as much as
    one of them.

    The larger C, the more passes there are at the end of any training, which a warm start does not
    spare.
    """
    mem = args.mems[0]
    cases = [(args.data, args.C, mem) for mem in args.mems]
    cases += [(args.data, C, mem) for C in args.costs]
    cases += [(existing(text), args.C, mem) for text in args.also]
    for text, C, mem in cases:
        tell(f"a tenth is new: {text.name}, C {C:g}, --mem {mem}")
        store = _Store(args, C=C, mem=mem)
        old, new = cut_lines(text, [0.9, 0.1], args.folder)
        store.add(old)
        store.train(is_warm=True)
        store.add(new)
        row = {"data": text.name, "C": C, "mem": mem, **store.compare()}
        report.rows.append({**row, "target": TARGET, "met": row["ratio"] <= TARGET})
        name = f"updates, {text.name}: warm_of_scratch, C {C:g}, mem {mem}"
        report.ratios[name] = row["ratio"]
    for title, window in (("nights that append", False), ("nights that expire as much", True)):
        rows = _nights(args, window)
        report.tables[f"{args.nights} {title}"] = rows
        together = sum(row["updates"] for row in rows) / sum(row["from_scratch"] for row in rows)
        report.ratios[f"updates of all {title}: warm_of_scratch"] = together


class _Store:
    """A store that is trained again and again, and the options of that."""

    def __init__(self, args: argparse.Namespace, **changes: Any) -> None:
        self.path, self.model = args.folder / "nightly.sbm", args.folder / "nightly.model"
        self._mem = ["--mem", args.split_mem] if args.split_mem else []
        self._blocks, self._options = args.blocks, training_options(args, **changes)
        remove(self.path, self.model, self.model.with_name(self.model.name + ".run"))

    def add(self, text: Path) -> None:
        """Split a text, or append it where there is a store."""
        words: list[Any] = [text, "-o", self.path, "--blocks", self._blocks]
        if self.path.exists():
            words = ["--append", self.path, text]
        run_process(sbm_command("split", *words, *self._mem))

    def train(self, is_warm: bool) -> dict[str, Any]:
        """Train from the last run, if there is one, or from scratch; return the report."""
        model = self.model if is_warm else self.model.with_name("scratch.model")
        flag = "--warm-start" if is_warm else "--fresh"
        words = ("train", self.path, "-o", model, flag, *option_words(self._options), "--json")
        return run_process(sbm_command(*words), codes=BUDGET).json()

    def compare(self) -> dict[str, Any]:
        """Cells of a warm start beside a training from scratch."""
        warm, scratch = self.train(is_warm=True), self.train(is_warm=False)
        info = run_process(sbm_command("info", self.path, "--json")).json()
        return {
            "rows": int(info["rows"]), "updates": warm["updates"],
            "from_scratch": scratch["updates"], "ratio": warm["updates"] / scratch["updates"],
            "ratio_of_visits": warm["visits"] / scratch["visits"],
            "passes": warm["passes"], "passes_from_scratch": scratch["passes"],
            "MB_read": warm["bytes_read"] / 1e6, "MB_from_scratch": scratch["bytes_read"] / 1e6,
            "relative_gap": warm["relative_gap"], "gap_from_scratch": scratch["relative_gap"],
            "difference": abs(warm["primal"] - scratch["primal"]) / abs(scratch["primal"]),
        }  # fmt: skip


def _nights(args: argparse.Namespace, window: bool) -> list[dict[str, Any]]:
    """Append a part a night, and perhaps expire the oldest; a row for each night."""
    store, n = _Store(args, mem=args.mems[0]), args.nights
    parts = cut_lines(args.data, [0.5 / n] * (2 * n), args.folder)
    for part in parts[:n]:
        store.add(part)
    store.train(is_warm=True)
    rows = []
    for night in range(1, n + 1):
        tell(f"night {night} of {n}{', one source expires' * window}")
        store.add(parts[n + night - 1])
        if window:
            run_process(sbm_command("expire", store.path, "--source", parts[night - 1].name))
        rows.append({"night": night, **store.compare()})
    return rows
