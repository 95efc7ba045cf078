"""The measured numbers of README.md and docs/, from the JSON files in scripts/results.

Each function returns the text of a block of a page. `scripts.docs_tables` writes the blocks.
"""

import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from scripts.bench.results import ALL, HERE, RESULTS
from scripts.bench.texts import DATA
from scripts.papers.claims import VERDICTS, collect

Row = dict[str, Any]
CAPTION = """\
On two cores of a shared virtual machine, from text to a certified gap of 1e-3, over losses and C from 0.1 to
10. A ratio below 1 means that `sbm` is faster or smaller; **bold** ratios are losses. Each cell has the median
and the worst. In little memory, `--mem` leaves room for a fifth of the rows.
"""  # noqa: E501


@cache
def result(name: str) -> Row:
    """Read a result file."""
    found: Row = json.loads((HERE / f"{name}.json").read_text("utf-8"))
    return found


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _groups(rows: Iterable[Row], *keys: str) -> Iterator[tuple[Any, list[Row]]]:
    """Group rows by some columns, in order."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[k] for k in keys), []).append(row)
    yield from ((key[0] if len(key) == 1 else key, found) for key, found in groups.items())


def _by(name: str, key: str = "what") -> dict[Any, Row]:
    return {row[key]: row for row in result(name)["rows"]}


def _seconds(value: float) -> str:
    return f"{1000 * value:.2g} ms" if value < 0.01 else f"{value:.3g} s"


def _bold(ratio: float, digits: int = 2) -> str:
    shown = f"{ratio:.0f}" if ratio >= 10 else f"{ratio:.{digits}f}"
    return shown if ratio < 1 else f"**{shown}**"


def _over(values: Sequence[float]) -> str:
    """Return the median of ratios, and the worst one."""
    return f"{_bold(statistics.median(values))}, {_bold(max(values))}"


def day() -> str:
    """Return the machine and the days of the results."""
    names = [n for n, one in RESULTS.items() if one.group == ALL and (HERE / f"{n}.json").exists()]
    machines = [result(name)["machine"] for name in names or ["grid"]]
    days = sorted({machine["date"] for machine in machines})
    commits = sorted({machine.get("commit", "") for machine in machines})
    kinds = " and ".join(sorted({machine["processor"].split("(R)")[0] for machine in machines}))
    when = f"on {days[0]}" if len(days) == 1 else f"from {days[0]} to {days[-1]}"
    commit = f"at commit {commits[0]}" if len(commits) == 1 else "at several commits"
    cores = max(machine["cores"] for machine in machines)
    return f"Measured {when} on {cores} cores of a virtual machine ({kinds}), {commit}.\n"


# ------------------------------------------------------------------------ README, docs/speed.md


def numbers() -> str:
    """Return the table of the README: a line for each data set of the grid."""
    rows = []
    for name, found in _groups(result("grid")["rows"], "data"):
        beside = [row for row in found if row["ratio ample"] is not None]
        one = min(beside or found, key=lambda row: abs(row["C"] - 1))
        peer = one["seconds LIBLINEAR"]
        rows.append([
            DATA[name].what, f"`{one['loss']}`", _seconds(one["seconds ample"]),
            "" if peer is None else _seconds(peer),
            *(_over([row[key] for row in beside]) if beside else ""
              for key in ("ratio ample", "ratio little", "peak of little")),
        ])  # fmt: skip
    text = _table(
        ["data", "for example", "sbm", "LIBLINEAR", "time, default `--mem`",
         "time, little memory", "its peak"], rows,
    )  # fmt: skip
    peer = result("grid")["settings"]["LIBLINEAR"]
    return f"{CAPTION}\n{text}\nLIBLINEAR was measured as {peer}.\n"


def grid() -> str:
    """Return every problem of the grid at C = 1, and the worst of the other costs."""
    rows = []
    for (name, loss), found in _groups(result("grid")["rows"], "data", "loss"):
        beside = [row for row in found if row["ratio ample"] is not None]
        if beside:
            one = min(beside, key=lambda row: abs(row["C"] - 1))
            gap = max(max(row["gap ample"], row["gap little"]) for row in found)
            rows.append([
                DATA[name].what, f"`{loss}`",
                f"{_seconds(one['seconds ample'])}, {_seconds(one['seconds LIBLINEAR'])}",
                *(" / ".join(_bold(row[key]) for row in beside)
                  for key in ("ratio ample", "ratio little")),
                _bold(max(row["peak of little"] for row in beside)), f"{gap:.0e}",
                f"{max(row['above'] for row in beside):.0e}",
            ])  # fmt: skip
    return _table(
        ["data", "`--loss`", "sbm, LIBLINEAR at C = 1", "ratio, C = 0.1 / 1 / 10",
         "in little memory", "its peak, worst", "largest gap", "objective above"], rows,
    )  # fmt: skip


def speed() -> str:
    """Return the other measurements: what, sbm, others, ratio."""
    read, stream, rows = _by("reading"), _by("stream"), []
    for what, mine, peer in (
        ("text to a store", "sbm split", "LIBLINEAR, -e 1e9"),
        ("text to a store", "sbm split", "scikit-learn's loader"),
        ("compressed text to a store", "sbm split, .gz", "gzip -dc"),
        ("the start", "sbm --help", 'python -c "import numpy"'),
    ):
        if peer in read:
            ours, theirs = read[mine]["seconds"], read[peer]["seconds"]
            cells = [what, _seconds(ours), f"{peer}: {_seconds(theirs)}", _bold(ours / theirs)]
            rows.append([*cells, "reading"])
    ours = stream["sbm stream"]
    for peer in [name for name in stream if name != "sbm stream"]:
        one = stream[peer]
        rows.append([
            "one pass over text: time, accuracy",
            f"{_seconds(ours['seconds'])}, {100 * ours['accuracy']:.2f} %",
            f"{peer}: {_seconds(one['seconds'])}, {100 * one['accuracy']:.2f} %",
            _bold(ours["seconds"] / one["seconds"]), "stream",
        ])  # fmt: skip
    (pipe,) = result("stream")["tables"]["pipe"]
    rows.append([
        f"{pipe['GB']:.1f} GB of text through a pipe, `--mem {pipe['mem']}`",
        f"peak {pipe['peak_MB']:.0f} MB, {pipe['kB_more_per_GB']:.0f} kB more per GB", "",
        f"{pipe['of_bound']:.2f} of the bound", "stream",
    ])  # fmt: skip
    tune = _by("tune")
    together, alone = tune["tune"], tune["alone"]
    count = result("tune")["settings"]["values"]
    rows.append([
        f"`sbm tune`: {count} values of C", _seconds(together["seconds"]),
        f"its {alone['models']} models one by one: {_seconds(alone['seconds'])}",
        _bold(together["seconds"] / alone["seconds"]), "tune",
    ])  # fmt: skip
    for one in result("nightly")["rows"]:
        rows.append([
            f"warm start, a tenth of the rows is new, C = {one['C']:g}, `--mem {one['mem']}`",
            f"{one['updates']:,} updates", f"from scratch: {one['from_scratch']:,}",
            _bold(one["ratio"]), "nightly",
        ])  # fmt: skip
    return _table(["what", "sbm", "others", "ratio", "result"],
                  [[*cells, f"`{name}`"] for *cells, name in rows])  # fmt: skip


def bounds() -> str:
    """Return the shares of --mem that commands use."""
    shares = {
        name: max(row["of_bound"] for row in found)
        for name, found in _groups(result("memory")["rows"], "command")
    }
    said = ", ".join(f"`{name}` {100 * share:.0f} %" for name, share in shares.items())
    return f"The largest shares of the bound that were used: {said}.\n"


def optima() -> str:
    """Return how many optima were reached."""
    rows = result("optima")["rows"]
    right = sum(row["ok"] for row in rows)
    return f"{right} of {len(rows)} certified primal values agree with the trusted optimum.\n"


# ------------------------------------------------------------------------------- other pages


def sparse() -> str:
    """Return the table of sparse models beside LIBLINEAR's."""
    rows = []
    for one in result("sparse")["rows"]:
        has_peer = one["above"] is not None
        cells = [DATA[one["data"]].what, f"`{one['loss']}`, {one['C']:g}"]
        cells.append(f"{one['above']:.1e}" if has_peer else "")
        for mine, form in (("CPU", "{:.3g} s"), ("MB", "{:.0f} MB"), ("weights", "{:,}")):
            pair = [one[mine], *([one[f"{mine} LIBLINEAR"]] if has_peer else [])]
            cells.append(", ".join(form.format(value) for value in pair))
        rows.append([*cells, f"{one['accuracy']:.4f}", f"{one['passes']}"])
    text = _table(["data", "loss, C", "objective", "CPU", "memory", "weights not 0", "accuracy",
                   "passes"], rows)  # fmt: skip
    best = []
    for penalty, found in _groups(result("sparse")["tables"]["tuned"], "penalty"):
        top = max(found, key=lambda row: row["accuracy"])
        count = "" if top["weights"] is None else f" with {top['weights']:,.0f} weights"
        best.append(f"{100 * top['accuracy']:.2f} %{count} (`{penalty}`, C = {top['C']:g})")
    return f"{text}\nBest accuracy of `sbm tune` on farm_ads: {' and '.join(best)}.\n"


def _over_costs(data: str, shown: Callable[[Row], str]) -> str:
    rows = [row for row in result("converge")["rows"] if row["data"] == data]
    costs = list(dict.fromkeys(row["C"] for row in rows))
    lines = [
        [f"`{loss}`", f"`{solver}`", *(shown(row) + "" if row["converged"] else
         f"gap {row['relative_gap']:.0e}" for row in found)]
        for (loss, solver), found in _groups(rows, "loss", "solver")
    ]  # fmt: skip
    return _table(["`--loss`", "`--solver`", f"C = {costs[0]:g}", *map("{:g}".format, costs[1:])],
                  lines)  # fmt: skip


def newton() -> str:
    """Return passes of coordinate descent and of Newton's method."""
    return _over_costs("a9a", lambda row: f"{row['passes']:,}")


def conjugate() -> str:
    """Return CPU seconds with many features."""
    return _over_costs("farm_ads", lambda row: f"{row['CPU_seconds']:.2g}")


def remedies() -> str:
    """Return what helps if many rows are free."""
    data = DATA["remedies"]
    made = f"python -m scripts.data.synthetic -o big.svm --rows {data.rows} {data.shape}"
    return f"Measured with C = 1 and hinge loss on the rows of `{made}`:\n\n" + _table(
        ["command", "passes", "certified gap", "updates, in millions"],
        [[row["what"], f"{row['passes']}{'' if row['converged'] else ', not converged'}",
          f"{row['relative_gap']:.1e}", f"{row['million_updates']:.1f}"]
         for row in result("converge")["tables"]["remedies"]],
    )  # fmt: skip


def held_out() -> str:
    """Return predictions of rows that were held out, by scale."""
    rows = result("scale")["rows"]
    costs = list(dict.fromkeys(row["C"] for row in rows))
    lines = []
    for data, some in _groups(rows, "data"):
        for k, (how, mine) in enumerate(_groups(some, "scale")):
            lines.append([
                DATA[data].what if k == 0 else "", f"`{how}`",
                *(f"{row['auc']:.3f}, {row['log_loss']:.3f}" for row in mine),
                ", ".join(str(row["passes"]) for row in mine),
            ])  # fmt: skip
    return _table(["rows", "`--scale`", f"C = {costs[0]:g}", *map("{:g}".format, costs[1:]),
                   "passes"], lines)  # fmt: skip


def machines() -> str:
    """Return passes, visits and times of several processes."""
    rows, before = [], ""
    for one in result("ranks")["rows"]:
        title = one["problem"] if one["problem"] != before else ""
        before = one["problem"]
        rows.append([
            title, str(one["processes"]), str(one["passes"]), f"{one['million_visits']:.3g}",
            f"{one['seconds']:.2f} s", f"{one['speed_up']:.2f}",
        ])  # fmt: skip
    return _table(["data", "processes", "passes", "million visits, all processes", "time",
                   "speed-up"], rows)  # fmt: skip


def tuning() -> str:
    """Return how long tuning takes beside the same models alone."""
    tried, tune = result("tune")["tables"]["values"], _by("tune")
    ends, together = Counter(one["status"] for one in tried), tune["tune"]["seconds"]
    done = [one for one in tried if one["status"] not in ("not tried", "given up")]
    needed = sum(one["alone"] for one in done)
    return (
        f"Measured on {len(tried)} values and {result('tune')['settings']['folds']} folds: `tune` "
        f"took {together:.3g} s. It completed {len(done)} values, gave up {ends['given up']} and "
        f"did not try {ends['not tried']}. The models of the values that it completed take "
        f"{needed:.3g} s one by one (ratio {together / needed:.2f}).\n"
    )


def nightly() -> str:
    """Return what warm starts save."""
    rows = [row for row in result("nightly")["rows"] if row["C"] == 0.1]
    shares = sorted(100 * row["ratio"] for row in rows)
    return (
        f"If a tenth of {rows[0]['rows']:,} rows is new, a warm start needs {shares[0]:.0f} to "
        f"{shares[-1]:.0f} % of the updates of a training from scratch. With a large C it saves "
        "less ([measurements](speed.md)).\n"
    )


def claims() -> str:
    """Return how many claims of the papers hold."""
    found = collect(HERE)
    counts = Counter(claim["holds"] for claim in found)
    said = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    return f"**{len(found)} claims, each on one data set: {said}.**\n"


def torture() -> str:
    """Return how many cases the torture runs tried, and how many failed."""
    rows = []
    for name in (name for name in RESULTS if name.startswith("torture-")):
        settings = result(name)["settings"]
        words = " ".join(f"--{key} {value}" for key, value in settings.items())
        for one in result(name)["rows"]:
            counts = [f"{one['tried']:,}", f"{one['failures']:,}"]
            rows.append([one["what"], *counts, f"`python -m scripts.torture {words}`"])
    return _table(["what", "cases", "failures", "command"], rows)


def _shown(name: str) -> str:
    text = "\n".join(row["line"] for row in result("demo")["tables"][name])
    return f"```text\n{text.strip()}\n```\n"


BLOCKS: dict[str, Callable[[], str]] = {
    "numbers": numbers, "grid": grid, "sparse": sparse, "day": day, "speed": speed,
    "tuning": tuning, "nightly": nightly, "bounds": bounds, "optima": optima, "newton": newton,
    "conjugate": conjugate, "heldout": held_out, "remedies": remedies, "machines": machines,
    "torture": torture, "claims": claims, "demo": lambda: _shown("libsvm"),
    "people": lambda: _shown("table"),
}  # fmt: skip
