"""What training on several machines should cost, on paper: nothing here is measured.

    python -m scripts.bench.cost_model -o scripts/results/cost-model

A round of data-parallel training is one block on each of P machines and one sum of what the
weights have changed by:

    T_round = T_read + passes * T_dcd + T_comm

For the three data sets of the SBM paper, 8 and 64 machines, links of 1 and of 10 Gbit/s. Every
number that goes in is in `ASSUMED`, `ROUNDS` or `DATA`, with where it is from. Sections are those
of DISTRIBUTED.md, the notes that the design follows.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MACHINES = (8, 64)
LINKS = (1, 10)  # Gbit/s
NUMBER, PAIR = 8, 12  # bytes of a number, and of a place with it
SYNCS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Data:
    """A training set.

    Attributes
    ----------
    rows, features, nnz : int
    outputs : int
        Columns of the weights.
    disk_bytes : float
        Of a nonzero in a store.
    source : str
    """

    name: str
    rows: int
    features: int
    nnz: int
    outputs: int
    disk_bytes: float
    source: str


VALUED, ONES = 6.0, 1.925
_TABLE_1 = "Chang and Roth 2011, table 1"
DATA = (
    Data(
        "webspam", 350_000, 16_609_143, 1_304_740_779, 1, VALUED,
        f"{_TABLE_1}, which trains on 280,000 of the 350,000 rows: nonzeros in proportion",
    ),
    Data("kddcup10", 19_264_093, 29_890_095, 566_345_790, 1, VALUED, _TABLE_1),
    Data("prep", 60_000_000, 11_148_531, 918_704_364, 10, ONES, _TABLE_1),
)  # fmt: skip


# Value, what it is, and its source.
ASSUMED: dict[str, tuple[float, str, str]] = {
    "blocks": (
        16, "blocks of all data: memory, and so the size of a block, is that of a sixteenth",
        "section 5, as in the simulation that the rounds are from",
    ),
    "disk": (200e6, "bytes read from disk a second", "section 5; guessed, not measured"),
    "kernel": (
        1.1e8, "nonzeros times outputs that one core visits a second",
        (
            "section 6, one core of two; scripts/results/kernel.md has 1.5e8 to 5.6e8 with weights "
            "of 100,000 to 700,000 features, these here are 16 to 43 times as many and miss the "
            "cache"
        ),
    ),
    "passes": (3, "rounds over a working set", "section 5: ten did not help"),
    "cache": (1, "cached rows for each row of a block", "--cache-frac 0.5, the default"),
    "link": (
        0.117e9, "bytes a second for each Gbit/s of a link",
        "section 3, a link limited to 1 Gbit/s; for 10 in proportion",
    ),
    "changed": (
        0.24, "share of the weights that a machine changes in a round",
        "section 5, the largest seen with 24,000 rows; 0.10 the smallest",
    ),
    "union": (
        0.55, "share of the weights that any machine changes in a round",
        "section 5, the largest seen with 24,000 rows; 0.36 the smallest",
    ),
    "values": (
        VALUED, "bytes on disk of a nonzero with a value", "15.4 bits of index, 32 of value"
    ),
    "ones": (ONES, "bytes on disk of a nonzero that is 1", "15.4 bits, measured on text"),
}  # fmt: skip

# Rounds until the dual value is within 1e-3, adaptive sigma' and line search: section 5, one
# simulation with 24,000 rows and 60,000 features, 16 blocks, one seed.
ROUNDS = {1: 46, 2: 18, 4: 17, 8: 30, 16: 36}
_LAST, _BEFORE = 16, 8


def rounds_of(machines: int) -> tuple[int, bool]:
    """Return rounds to 1e-3, and whether they are extrapolated.

    Beyond the table each doubling is taken to cost what the last one did.
    """
    if machines in ROUNDS:
        return ROUNDS[machines], False
    if machines < _LAST:
        raise ValueError(f"no rounds are known for {machines} machines")
    growth = ROUNDS[_LAST] / ROUNDS[_BEFORE]
    rounds, n = float(ROUNDS[_LAST]), _LAST
    while n < machines:
        rounds, n = rounds * growth, 2 * n
    return round(rounds), True


# ------------------------------------------------------------------------------- bytes of a round


def dense_bytes(n: float, machines: int) -> float:
    """Bytes that a process sends to sum n numbers: 16 n (P - 1) / P."""
    return 2 * NUMBER * n * (machines - 1) / machines


def sparse_bytes(n: float, machines: int, changed: float, union: float) -> float:
    """Bytes that a process sends where zeros are left out: 12 n (s + u) (P - 1) / P."""
    return PAIR * n * (changed + union) * (machines - 1) / machines


def chosen_bytes(n: float, machines: int, changed: float, union: float) -> float:
    """Bytes by what `sbm.distributed.comm` does: zeros are left out where that halves a half."""
    each = sum(PAIR * s if 2 * PAIR * s < NUMBER else NUMBER for s in (changed, union))
    return n * each * (machines - 1) / machines


def class_bytes(features: int, outputs: int, density: float | None = None) -> float:
    """Bytes that a process sends in an epoch of Weston-Watkins by blocks of classes: 8 n k.

    With a density, places and values are sent: 12 times the density, n and k.
    """
    return (NUMBER if density is None else PAIR * density) * features * outputs


def most_machines(data: Data, gbit: float) -> float:
    """Machines up to which an exchange of classes takes less than the work: nnz b / (8 n r)."""
    rate, link = ASSUMED["kernel"][0], gbit * ASSUMED["link"][0]
    return data.nnz * link / (NUMBER * data.features * rate)


# ------------------------------------------------------------------------------- time of a round


@dataclass(frozen=True)
class Case:
    """A data set, machines and links, and what is predicted; seconds but for bytes and counts.

    Attributes
    ----------
    read, solve, dense, sparse, chosen : float
        Of a round; dense, sparse and chosen are the exchange.
    sync_every : int
        Blocks from one exchange to the next that keep it to half of the other work.
    total : float
        All rounds, with an exchange after each block.
    speedup : float
        Against one machine with the same memory.
    """

    data: str
    machines: int
    gbit: int
    rounds: int
    extrapolated: bool
    dense_bytes: float
    sparse_bytes: float
    chosen_bytes: float
    read: float
    solve: float
    dense: float
    sparse: float
    chosen: float
    sync_every: int
    total: float
    speedup: float


def _local(data: Data, machines: int) -> tuple[float, float]:
    """Seconds to read a block, and to solve with it, on each of some machines."""
    value = {name: assumed[0] for name, assumed in ASSUMED.items()}
    shard, block = data.nnz / machines, data.nnz / max(value["blocks"], machines)
    work = min(block * (1 + value["cache"]), shard)
    read = block * data.disk_bytes / value["disk"] if block < shard else 0.0  # else it is there
    return read, value["passes"] * work * data.outputs / value["kernel"]


def predict(data: Data, machines: int, gbit: int) -> Case:
    """Predict the time to a gap of 1e-3."""
    n, link = data.features * data.outputs, gbit * ASSUMED["link"][0]
    shares = ASSUMED["changed"][0], ASSUMED["union"][0]
    in_full = dense_bytes(n, machines)
    without_zeros = sparse_bytes(n, machines, *shares)
    as_sent = chosen_bytes(n, machines, *shares)
    read, solve = _local(data, machines)
    exchange = as_sent / link
    fits = (sync for sync in SYNCS if exchange / sync <= (read + solve) / 2)
    rounds, extrapolated = rounds_of(machines)
    total = rounds * (read + solve + exchange)
    alone = rounds_of(1)[0] * sum(_local(data, 1))
    return Case(
        data.name, machines, gbit, rounds, extrapolated, in_full, without_zeros, as_sent,
        read, solve, in_full / link, without_zeros / link, exchange,
        next(fits, SYNCS[-1]), total, alone / total,
    )  # fmt: skip


# ------------------------------------------------------------------------------------- the report


INTRODUCTION = """\
## cost model: several machines, on paper

Nothing here is measured. Rounds are those of one small simulation, so totals are orders of
magnitude. Bytes are exact for the shares of changed weights assumed: a test compares the formulas
with what processes send.

Of a round, a block on each machine:"""

NOTES = """\
- as sent: each half of the exchange leaves zeros out where that takes less than half of the bytes;
  the program counts and decides, no option does
- total: rounds * (read + solve + as sent), with an exchange after each block; reading is not
  overlapped with solving; without certificates, split and start
- speed-up: against 46 rounds on one machine with the same memory, so 8 machines have 8 times that
- 64 machines: their shards are smaller than a block, so that nothing is read again; the simulation
  ends at 16 machines, and rounds beyond are taken to grow by 1.2 with each doubling
- `--sync-every`: the least of 1, 2, 4, 8, 16 that keeps the exchange to half of the other work, 16
  where none does; what it costs in rounds is not known"""

CLASSES = """\
Weston-Watkins by blocks of classes: what each process sends in an epoch, however many there are
(section 6); two blocks of classes for each process, so at most half as many as classes. Beyond the
number of machines by Gbit/s the dense exchange takes longer than the work. LSHTC1-large: Alber et
al. 2016, table 1, which does not tell its nonzeros."""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _row(case: Case) -> list[str]:
    seconds = (case.read, case.solve, case.dense, case.sparse, case.chosen)
    return [
        case.data, str(case.machines), str(case.gbit), f"{case.dense_bytes / 1e6:,.0f}",
        f"{case.sparse_bytes / 1e6:,.0f}", f"{case.chosen_bytes / 1e6:,.0f}",
        *(f"{s:.2f}" for s in seconds),
        f"{case.rounds}{' (extrapolated)' if case.extrapolated else ''}",
        str(case.sync_every), f"{case.total / 60:.1f}", f"{case.speedup:.1f}",
    ]  # fmt: skip


def _classes() -> list[str]:
    """Weston-Watkins by blocks of classes."""
    rows = [
        [
            data.name, str(data.outputs), f"{class_bytes(data.features, data.outputs) / 1e9:.2f}",
            f"{class_bytes(data.features, data.outputs, 0.02) / 1e9:.2f}",
            str(data.outputs // 2), *(f"{most_machines(data, gbit):.0f}" for gbit in LINKS),
        ]
        for data in DATA if data.outputs > 2
    ]  # fmt: skip
    n, k = 381_581, 12_294
    dense, sparse = class_bytes(n, k) / 1e9, class_bytes(n, k, 0.02) / 1e9
    large = ["LSHTC1-large", f"{k:,}", f"{dense:.1f}", f"{sparse:.1f}", f"{k // 2:,}", "", ""]
    head = ["data", "classes", "GB sent, dense", "GB sent, 2 % not 0", "machines by classes"]
    return _table([*head, *(f"machines by {gbit} Gbit/s" for gbit in LINKS)], [*rows, large])


def report(cases: Sequence[Case]) -> str:
    """Write the report as Markdown."""
    head = [
        "data", "machines", "Gbit/s", "MB dense", "MB sparse", "MB as sent", "read s", "solve s",
        "dense s", "sparse s", "as sent s", "rounds", "`--sync-every`", "total min", "speed-up",
    ]  # fmt: skip
    assumed = [[f"{value:g}", *words] for value, *words in ASSUMED.values()]
    data = [
        [d.name, f"{d.rows:,}", f"{d.features:,}", f"{d.nnz:,}", str(d.outputs), d.source]
        for d in DATA
    ]
    lines = [
        INTRODUCTION, "", *_table(head, [_row(case) for case in cases]), "",
        NOTES, "", "What to choose:", "", *(f"- {_advice(case)}" for case in cases), "",
        CLASSES, "", *_classes(), "",
        "Assumed:", "", *_table(["value", "what", "source"], assumed), "",
        *_table(["data", "rows", "features", "nonzeros", "outputs", "source"], data),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _advice(case: Case) -> str:
    """What to set, and the share of the exchange in a round with and without it."""
    rest = case.read + case.solve
    before, after = (t / (rest + t) for t in (case.chosen, case.chosen / case.sync_every))
    line = f"{case.data}, {case.machines} machines, {case.gbit} Gbit/s: "
    line += f"{100 * before:.0f} % of a round is exchange"
    if case.sync_every > 1:
        line += f"; `--sync-every {case.sync_every}` makes that {100 * after:.0f} %"
    return line + ("; better fewer machines" if case.speedup < 2 < case.machines / 8 else "")


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Print the report; with -o write it as PREFIX.md and PREFIX.json, too."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, metavar="PREFIX")
    options = parser.parse_args(arguments)
    cases = [predict(d, machines, gbit) for d in DATA for machines in MACHINES for gbit in LINKS]
    text = report(cases)
    content = {
        "cases": [asdict(case) for case in cases],
        "assumed": {
            name: dict(zip(("value", "what", "source"), assumed, strict=True))
            for name, assumed in ASSUMED.items()
        },
        "rounds": ROUNDS,
        "data": [asdict(data) for data in DATA],
    }
    print(text, end="")
    if options.output is not None:
        options.output.with_suffix(".md").write_text(text)
        options.output.with_suffix(".json").write_text(json.dumps(content, indent=1) + "\n")
    return content


if __name__ == "__main__":
    main()
