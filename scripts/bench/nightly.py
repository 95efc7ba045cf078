"""Benchmark of warm starts: rows are appended and expired, training goes on from the last run."""

import argparse
import itertools
from pathlib import Path
from typing import Any

from scripts.bench.data import cut, end_of_line
from scripts.bench.ours import BUDGET, remove, training_options
from scripts.bench.tools import BenchError, Finished, Report, run_process, sbm_command, tell

TARGET = 0.35  # of the updates of a training from scratch, where a tenth is new


def cut_lines(text: Path, shares: list[float], folder: Path) -> list[Path]:
    """Cut a text into parts of whole lines, one behind the other; `shares` add up to 1."""
    ends, total = [0], 0.0
    for share in shares[:-1]:
        total += share
        ends.append(end_of_line(text, total)[1])
    ends.append(text.stat().st_size)
    if any(end <= begin for begin, end in itertools.pairwise(ends)):
        raise BenchError(f"{text.name} has too few lines for {len(shares)} parts")
    return [
        cut(text, begin, end, folder / f"part-{k:02d}.svm")
        for k, (begin, end) in enumerate(itertools.pairwise(ends))
    ]


def bench_nightly(args: argparse.Namespace, report: Report) -> None:
    """Count updates of a warm start and of a training from scratch on the same store.

    Once where a tenth is new, for each memory bound, other C and other texts; then night after
    night, where each appends a part, and where each also expires the oldest one.
    """
    mem = args.mems[0]
    cases = [(args.data, args.C, mem) for mem in args.mems]
    cases += [(args.data, C, mem) for C in args.costs]
    cases += [(text, args.C, mem) for text in args.also]
    for text, C, mem in cases:
        report.rows.append(_a_tenth(args, text, C, mem))
        name = f"{text.name}, C {C:g}, mem {mem}"
        report.ratios[f"updates, {name}: warm_of_scratch"] = report.rows[-1]["ratio"]
    for title, window in (("nights that append", False), ("nights that expire as much", True)):
        rows = _nights(args, window)
        report.tables[f"{args.nights} {title}"] = rows
        together = sum(row["updates"] for row in rows) / sum(row["from_scratch"] for row in rows)
        report.ratios[f"updates of all {title}: warm_of_scratch"] = together
    report.notes = [
        (
            "counts, not times: updates and visits of alphas, passes, megabytes read, of sbm train "
            "--warm-start from the last run and of one from scratch on the same store, to the same "
            "certified tolerance"
        ),
        (
            "a tenth is new: the store is split from the first nine tenths of the lines, trained, "
            "and the last tenth is appended"
        ),
        (
            f"nights: the first half of the lines lies in {args.nights} sources, each later night "
            "brings as much as one of them"
        ),
        "difference: of the two certified primal values, as a share; at most the sum of the gaps",
        (
            f"the target: at most {TARGET} of the updates where a tenth is new; the larger C, the "
            "more passes there are at the end of any training, which a warm start does not spare"
        ),
    ]


def _sbm(command: str, *words: Any, codes: tuple[int, ...] = (0,), **options: Any) -> Finished:
    """Run a command of sbm; a number or text for each option, whose report is on stdout."""
    named = [str(word) for name, value in options.items() for word in (_flag(name), value)]
    return run_process(sbm_command(command, *words, *named, "--json"), codes=codes)


def _flag(name: str) -> str:
    return f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}"


class _Store:
    """A store that is trained again and again, and the options of that."""

    def __init__(self, args: argparse.Namespace, **changes: Any) -> None:
        self.path = args.folder / "nightly.sbm"
        self.model = args.folder / "nightly.model"
        self._scratch = args.folder / "scratch.model"
        self._split = {"mem": args.split_mem} if args.split_mem else {}
        self._first = {"blocks": args.blocks}
        self._train = training_options(args, **changes)
        for model in (self.model, self._scratch):
            remove(model, model.with_name(model.name + ".run"))
        remove(self.path)

    def add(self, text: Path) -> None:
        """Split a text, or append it where there is a store."""
        if self.path.exists():
            _sbm("split", "--append", self.path, text, **self._split)
        else:
            _sbm("split", text, o=self.path, **self._split, **self._first)

    def expire(self, source: str) -> None:
        """Drop a source."""
        _sbm("expire", self.path, source=source)

    def go_on(self) -> dict[str, Any]:
        """Train from the last run, if there is one; return the report."""
        words = (self.path, "--warm-start")
        return _sbm("train", *words, o=self.model, codes=BUDGET, **self._train).json()

    def from_scratch(self) -> dict[str, Any]:
        """Train as if nothing was known."""
        return _sbm("train", self.path, o=self._scratch, codes=BUDGET, **self._train).json()

    @property
    def rows(self) -> int:
        """Rows there are."""
        return int(_sbm("info", self.path).json()["rows"])


def _row(warm: dict[str, Any], scratch: dict[str, Any]) -> dict[str, Any]:
    """What is told of a warm start beside a training from scratch."""
    difference = abs(warm["primal"] - scratch["primal"]) / abs(scratch["primal"])
    return {
        "updates": warm["updates"],
        "from_scratch": scratch["updates"],
        "ratio": warm["updates"] / scratch["updates"],
        "ratio_of_visits": warm["visits"] / scratch["visits"],
        "passes": warm["passes"],
        "passes_from_scratch": scratch["passes"],
        "MB_read": warm["bytes_read"] / 1e6,
        "MB_from_scratch": scratch["bytes_read"] / 1e6,
        "relative_gap": warm["relative_gap"],
        "gap_from_scratch": scratch["relative_gap"],
        "difference": difference,
    }


def _a_tenth(args: argparse.Namespace, text: Path, C: float, mem: str) -> dict[str, Any]:
    """Append a tenth, go on, and train from scratch."""
    tell(f"a tenth is new: {text.name}, C {C:g}, --mem {mem}")
    store = _Store(args, C=C, mem=mem)
    old, new = cut_lines(text, [0.9, 0.1], args.folder)
    store.add(old)
    store.go_on()
    store.add(new)
    row = _row(store.go_on(), store.from_scratch())
    first = {"data": text.name, "C": C, "mem": mem, "rows": store.rows}
    return first | row | {"target": TARGET, "met": row["ratio"] <= TARGET}


def _nights(args: argparse.Namespace, window: bool) -> list[dict[str, Any]]:
    """Append a part a night, and perhaps expire the oldest; a row for each night."""
    store, n = _Store(args, mem=args.mems[0]), args.nights
    parts = cut_lines(args.data, [0.5 / n] * (2 * n), args.folder)
    for part in parts[:n]:
        store.add(part)
    store.go_on()
    rows = []
    for night in range(1, n + 1):
        tell(f"night {night} of {n}{', one source expires' * window}")
        store.add(parts[n + night - 1])
        if window:
            store.expire(parts[night - 1].name)
        row = _row(store.go_on(), store.from_scratch())
        rows.append({"night": night, "rows": store.rows, **row})
    return rows
