"""Peak memory of ``sbm train``, ``sbm tune`` and ``sbm split`` against ``--mem``.

    python -m scripts.bench.memory -o results/memory
    python -m scripts.bench.memory --quick

Synthetic text is piped into ``sbm split -`` and trained on for two passes, for each bound of
memory, number of blocks and cache share. With the first number of blocks C is tuned, too.
Peaks are those of the whole process, as the operating system counts them, measured from outside. By
default each store is 4.1 times its bound in memory form (4 bytes a nonzero, all values 1, and 16
bytes a row), with ``--quick`` twice what the bound leaves for rows. Exit code 1 when a peak is
above its bound or a command fails (refusing the bound included).
"""

import argparse
import itertools
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.bench.tools import (
    BenchError,
    Finished,
    Report,
    run_process,
    sbm_command,
    script_command,
    started_process,
)

FEATURES, NONZEROS = 99, 10  # few features: their weights are not what is measured
ROW_BYTES = 16 + 4 * NONZEROS
BUDGET = 3  # exit code of a training that used up its passes
TIMES = 4.1  # size of a store, in bounds
PASSES = 2
TUNED, FOLDS = "0.1,1", 2
FALLBACK = "1GB"


def tell(text: str) -> None:
    """Say on stderr what is going on."""
    print(f"bench_memory: {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Grid:
    """What is measured.

    Attributes
    ----------
    mems : list of str
        Bounds of train.
    split_mems : list of str
        Bounds of split, in turn for the stores.
    blocks : list of int
    cache_fracs : list of float
    rows : list of int
        Rows of the store for each of `mems`.
    """

    mems: Sequence[str]
    split_mems: Sequence[str]
    blocks: Sequence[int]
    cache_fracs: Sequence[float]
    rows: Sequence[int]

    def stores(self) -> Iterator[tuple[str, int, int, str]]:
        """Bound of train, rows, blocks and bound of split for each store."""
        split_mems = itertools.cycle(self.split_mems)
        for mem, rows in zip(self.mems, self.rows, strict=True):
            for blocks in self.blocks:
                yield mem, rows, blocks, next(split_mems)


def measure(grid: Grid, folder: Path) -> Iterator[dict[str, Any]]:
    """Yield a row of the table for each command of a grid.

    Parameters
    ----------
    grid : Grid
    folder : Path
        For the stores; one is there at a time.
    """
    _warm_up(folder)
    store = folder / "store.sbm"
    for mem, rows, blocks, split_mem in grid.stores():
        for bound in (split_mem, FALLBACK):
            if not store.exists():  # the second bound is for when the first one was refused
                tell(f"split --mem {bound}, {rows} rows, {blocks} blocks")
                yield _row("split", bound, rows, blocks, None, split(store, rows, blocks, bound))
        for frac in grid.cache_fracs:
            tell(f"train --mem {mem} --cache-frac {frac:g}, {rows} rows, {blocks} blocks")
            yield _row("train", mem, rows, blocks, frac, train(store, mem, frac))
        if blocks == grid.blocks[0]:
            tell(f"tune --mem {mem}, {rows} rows, {blocks} blocks")
            yield _row("tune", mem, rows, blocks, None, tune(store, mem))
        shutil.rmtree(store)


def split(store: Path, rows: int, blocks: int, mem: str) -> Finished:
    """Pipe synthetic text into sbm split.

    Raises
    ------
    BenchError
        The text could not be made.
    """
    what = ("--rows", rows, "--features", FEATURES, "--nnz", NONZEROS, "--noise", 0.05)
    maker = subprocess.Popen(
        script_command("data.synthetic", "-o", "-", *what),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert maker.stdout is not None
    command = sbm_command("split", "-", "-o", store, "--blocks", blocks, "--mem", mem, "-q")
    with started_process(command, stdin=maker.stdout) as running:
        maker.stdout.close()
        done = running.wait(codes=range(256))
    if maker.wait() and done.code == 0:
        raise BenchError("scripts.data.synthetic failed")
    return done


def train(store: Path, mem: str, cache_frac: float) -> Finished:
    """Train for two passes, whatever the gap."""
    return _run("train", store, mem, "--cache-frac", cache_frac, "--rounds", 1, "-C", 0.1)


def tune(store: Path, mem: str) -> Finished:
    """Tune for two passes, then train for two."""
    return _run("tune", store, mem, "--C", TUNED, "--folds", FOLDS)


def _run(command: str, store: Path, mem: str, *options: str | float) -> Finished:
    model = store.with_suffix(".model")
    budget = ("--mem", mem, "--tol", 1e-12, "--max-passes", PASSES, "-q")
    line = sbm_command(command, store, "-o", model, *options, *budget)
    done = run_process(line, codes=range(256))
    model.unlink(missing_ok=True)
    shutil.rmtree(f"{model}.run", ignore_errors=True)
    return done


def _warm_up(folder: Path) -> None:
    """Compile everything, so that no measured process starts one that does."""
    tell("warming up")
    store = folder / "warm.sbm"
    for done in (split(store, 1000, 2, "1GB"), train(store, "1GB", 0.5), tune(store, "1GB")):
        if done.code not in (0, BUDGET):
            raise BenchError(f"sbm failed: {done.stderr}")


def _row(
    command: str, mem: str, rows: int, blocks: int, cache_frac: float | None, done: Finished
) -> dict[str, Any]:
    """One row of the table; `ok` is whether the command worked within its bound."""
    from sbm.units import parse_size

    bound = parse_size(mem)
    worked = done.code == 0 or (command != "split" and done.code == BUDGET)
    if not worked:
        tell(done.stderr.strip()[-1000:])
    return {
        "command": command, "mem": mem, "store_MB": rows * ROW_BYTES / 1e6, "blocks": blocks,
        "cache_frac": cache_frac,
        "bound_MB": bound / 1e6, "peak_MB": done.peak_bytes / 1e6,
        "of_bound": done.peak_bytes / bound, "seconds": done.seconds, "exit_code": done.code,
        "ok": worked and done.peak_bytes <= bound,
    }  # fmt: skip


def _rows_for(args: argparse.Namespace, mem: str) -> int:
    """Rows of the store for a bound."""
    from sbm.engine.memory import INTERPRETER, OVERHEAD
    from sbm.units import parse_size

    if args.rows:
        return int(args.rows)
    if args.size:
        return parse_size(args.size) // ROW_BYTES
    bound = parse_size(mem)
    size = 2 * (bound - INTERPRETER - OVERHEAD) if args.quick else int(TIMES * bound)
    return size // ROW_BYTES


def _grid(args: argparse.Namespace) -> Grid:
    mems = args.mem or (["135MB"] if args.quick else ["256MB", "400MB", "1GB"])
    split_mems = args.split_mem or (["160MB"] if args.quick else ["256MB", "1GB"])
    rows = [_rows_for(args, mem) for mem in mems]
    blocks = args.blocks or ([12] if args.quick else [12, 100])
    return Grid(mems, split_mems, blocks, args.cache_frac or [0.5, 0.0], rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts.bench.memory", description="Measure peak memory against --mem, from outside."
    )
    parser.add_argument("--quick", action="store_true", help="a small store and grid, for tests")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--rows", type=int, help="of the store")
    size.add_argument(
        "--size", metavar="SIZE", help="or: of its rows in memory; default 4.1 times --mem"
    )
    parser.add_argument("--mem", action="append", metavar="SIZE", help="may be repeated")
    parser.add_argument(
        "--split-mem", action="append", metavar="SIZE", help="of sbm split, a store each in turn"
    )
    parser.add_argument("--blocks", action="append", type=int, metavar="M", help="may be repeated")
    parser.add_argument(
        "--cache-frac", action="append", type=float, metavar="F", help="may be repeated"
    )
    parser.add_argument(
        "-o", dest="prefix", type=Path, metavar="PREFIX", help="write PREFIX.json, PREFIX.md"
    )
    parser.add_argument("--folder", type=Path, help="where there is room for the store")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command line; exit code 0 all bounds held, 1 not so or an error, 2 usage."""
    args = _parser().parse_args(argv)
    report = Report("memory", "peak resident memory against --mem")
    try:
        grid = _grid(args)
        report.data = {"features": FEATURES, "nonzeros_of_a_row": NONZEROS, "values": "ones"}
        report.settings = {"passes": PASSES, "quick": args.quick}
        with tempfile.TemporaryDirectory(prefix="sbm-bench-", dir=args.folder) as folder:
            report.rows = list(measure(grid, Path(folder)))
        report.ratios = {"largest_share_of_bound": max(row["of_bound"] for row in report.rows)}
        report.notes = ["peak: largest resident set of the process, from outside; MB of 10^6 bytes"]
        if args.prefix is not None:
            report.write(args.prefix)
    except (BenchError, OSError) as error:
        print(f"scripts.bench.memory: {error}", file=sys.stderr)
        return 1
    print(report.markdown(), end="")
    return 0 if all(row["ok"] for row in report.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
