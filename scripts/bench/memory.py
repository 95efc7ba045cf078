"""Benchmark of the peak memory of sbm split, train and tune against ``--mem``."""

import argparse
import itertools
import subprocess
from pathlib import Path
from typing import Any

from scripts.bench import tools
from scripts.bench.commands import BUDGET, remove, train, tune
from scripts.bench.registry import Registry, benchmark

BENCHMARKS: Registry = {}
FEATURES, NONZEROS = 99, 10  # few features: their weights are not what is measured
ROW_BYTES = 16 + 4 * NONZEROS
TIMES = 4.1  # size of a store, in bounds
ANY = range(256)  # exit codes
FALLBACK = "1GB"
STEPS: dict[str, Any] = {"tol": 1e-12, "max_passes": 2, "rounds": 1}


@benchmark(
    BENCHMARKS, runs=0,
    options={"mems": ["256MB", "400MB", "1GB"], "split_mems": ["256MB", "1GB"],
             "blocks": [12, 100], "cache_fracs": [0.5, 0.0], "rows": 0},
    quick={"mems": ["135MB"], "split_mems": ["160MB"], "blocks": [12]},
)  # fmt: skip
def memory(args: argparse.Namespace, report: tools.Report) -> None:
    """Peak resident memory against --mem.

    Synthetic text is piped into sbm split - and trained on for two passes, for each bound of
    memory, number of blocks and cache share. With the first number of blocks C is tuned, too. Each
    store is 4.1 times its bound in memory form (4 bytes a nonzero, all values 1, and 16 bytes a
    row), with --quick twice what the bound leaves for rows.

    peak: largest resident set of the process, from outside; MB of 10^6 bytes. ok: the command
    worked within its bound.
    """
    report.data = {"features": FEATURES, "nonzeros_of_a_row": NONZEROS, "values": "ones"}
    store, model = args.folder / "store.sbm", args.folder / "store.model"
    tools.tell("warming up")  # so that no measured process starts one that compiles
    for done in (
        _split(store, 1000, 2, FALLBACK),
        train(store, model, codes=ANY, mem=FALLBACK, **STEPS),
        tune(store, model, codes=ANY, mem=FALLBACK, C="0.1,1", folds=2, **STEPS),
    ):
        if done.code not in BUDGET:
            raise tools.BenchError(f"sbm failed: {done.stderr}")
    split_mems = itertools.cycle(args.split_mems)
    for mem, blocks in itertools.product(args.mems, args.blocks):
        rows = args.rows or _rows_for(mem, args.quick)
        remove(store)
        for bound in (next(split_mems), FALLBACK):
            if not store.exists():  # the second bound is for when the first one was refused
                done = _split(store, rows, blocks, bound)
                report.rows.append(_row("split", bound, rows, blocks, None, done))
        for frac in args.cache_fracs:
            done = train(store, model, codes=ANY, mem=mem, cache_frac=frac, C=0.1, **STEPS)
            report.rows.append(_row("train", mem, rows, blocks, frac, done))
        if blocks == args.blocks[0]:
            done = tune(store, model, codes=ANY, mem=mem, C="0.1,1", folds=2, **STEPS)
            report.rows.append(_row("tune", mem, rows, blocks, None, done))
    report.ratios["largest_share_of_bound"] = max(row["of_bound"] for row in report.rows)


def _split(store: Path, rows: int, blocks: int, mem: str) -> tools.Finished:
    """Pipe synthetic text into sbm split.

    Raises
    ------
    BenchError
        The text could not be made.
    """
    what = ("--rows", rows, "--features", FEATURES, "--nnz", NONZEROS, "--noise", 0.05)
    maker = subprocess.Popen(
        tools.script_command("data.synthetic", "-o", "-", *what),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert maker.stdout is not None
    command = tools.sbm_command("split", "-", "-o", store, "--blocks", blocks, "--mem", mem, "-q")
    with tools.started_process(command, stdin=maker.stdout) as running:
        maker.stdout.close()
        done = running.wait(codes=ANY)
    if maker.wait() and done.code == 0:
        raise tools.BenchError("scripts.data.synthetic failed")
    return done


def _row(
    command: str, mem: str, rows: int, blocks: int, cache_frac: float | None, done: tools.Finished
) -> dict[str, Any]:
    from sbm.units import parse_size

    bound = parse_size(mem)
    worked = done.code == 0 or (command != "split" and done.code in BUDGET)
    tools.tell(f"{command} --mem {mem}, {blocks} blocks: {done.peak_bytes / bound:.2f} of it")
    if not worked:
        tools.tell(done.stderr.strip()[-1000:])
    return {
        "command": command, "mem": mem, "store_MB": rows * ROW_BYTES / 1e6, "blocks": blocks,
        "cache_frac": cache_frac, "bound_MB": bound / 1e6, "peak_MB": done.peak_bytes / 1e6,
        "of_bound": done.peak_bytes / bound, "seconds": done.seconds, "exit_code": done.code,
        "ok": worked and done.peak_bytes <= bound,
    }  # fmt: skip


def _rows_for(mem: str, quick: bool) -> int:
    """Rows of the store for a bound."""
    from sbm.engine.machine import INTERPRETER
    from sbm.engine.memory import OVERHEAD
    from sbm.units import parse_size

    bound = parse_size(mem)
    return int(2 * (bound - INTERPRETER - OVERHEAD) if quick else TIMES * bound) // ROW_BYTES
