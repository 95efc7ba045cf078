"""The measured numbers of README.md and docs/, from the JSON files in scripts/results.

Each function returns the text of a block of a page. `scripts.docs_tables` writes the blocks.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from scripts.bench.everything import RESULTS
from scripts.papers.claims import VERDICTS

ROOT = Path(__file__).resolve().parent.parent


@cache
def result(name: str) -> dict[str, Any]:
    """Read a result file."""
    found: dict[str, Any] = json.loads((ROOT / f"scripts/results/{name}.json").read_text("utf-8"))
    return found


def row(name: str, **wanted: Any) -> dict[str, Any]:
    """Return the only row of a result that has these values."""
    (found,) = (r for r in result(name)["rows"] if all(r[k] == v for k, v in wanted.items()))
    return dict(found)


def _of_grid(found: dict[str, Any]) -> tuple[str, str, str, list[float]]:
    """Cells of a row of the grid; one with little memory has its own ratios beside it."""
    what = f"{result('grid')['data'][found['data']]}: {found['loss']}"
    ratios = [found["ratio"]]
    if found["what"] == "default":
        little = row("grid", data=found["data"], loss=found["loss"], what="little")
        ratios += [little["ratio"], little["peak_MB"] / little["peer_peak_MB"]]
    other = f"{found['peer']} {found['peer_seconds']:.3g} s"
    return what, f"{found['seconds']:.3g} s", other, ratios


def rows() -> Iterator[tuple[str, str, str, list[float]]]:
    """Yield what was measured, the value of sbm, that of the other, and the ratios."""
    for found in result("grid")["rows"]:
        if found["what"] in ("default", "vw"):
            yield _of_grid(found)
    stream, once = (row("one-pass", what=w) for w in ("sbm stream", "VW, one pass"))
    ratio = result("one-pass")["ratios"]["stream_of_vw_single_pass_time"]
    other = f"VW, one pass {once['seconds']:.3g} s"
    yield "`sbm stream`: one pass over text", f"{stream['seconds']:.3g} s", other, [ratio]
    tune = row("tune", what="tune, together")
    alone = result("tune")["tables"]["each model alone, sums over the folds"]
    tried = result("tune")["tables"]["values of C, all folds on one stream"]
    values = [r["C"] for r in tried if not r["status"].startswith(("not tried", "given up"))]
    loop = sum(r["seconds"] for r in alone if r["C"] in values)
    what, other = f"`sbm tune`: {len(values)} values of C, 5 folds", "the same models, one by one,"
    yield what, f"{tune['seconds']:.3g} s", f"{other} {loop:.3g} s", [tune["seconds"] / loop]


def table() -> str:
    """Return the table; losses are in bold."""
    lines = [
        "| what | sbm | other tool | ratio | in little memory | its peak |\n",
        "|---|---|---|---|---|---|\n",
    ]
    for what, ours, theirs, ratios in rows():
        digits = [f"{ratio:.{0 if ratio >= 10 else 2}f}" for ratio in ratios]
        shown = [d if ratio < 1 else f"**{d}**" for d, ratio in zip(digits, ratios, strict=True)]
        cells = [what, ours, theirs, *shown, *[""] * (3 - len(shown))]
        lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines)


def sparse_table() -> str:
    """Return the table of sparse models beside LIBLINEAR's."""
    lines = [
        "| data | loss, C | objective | CPU | memory | weights not 0 | accuracy, l2 | passes |\n",
        "|---|---|---|---|---|---|---|---|\n",
    ]
    for one in result("sparse")["rows"]:
        passes = f"{one['passes in a quarter']}"
        if float(one["gap in a quarter"]) > result("sparse")["settings"]["tol"]:
            passes += f", gap {one['gap in a quarter']}"
        pairs = [
            f"{one['CPU']:.3g} s, {one['CPU of LIBLINEAR']:.3g} s",
            f"{one['memory']}, {one['memory of LIBLINEAR']}",
            f"{one['exact weights'] or one['weights']:,}, {one['of LIBLINEAR']:,}",
        ]
        cells = [one["data"], f"`{one['loss']}`, {one['C']:g}", one["above"], *pairs]
        cells += [one["accuracy, with l2"], passes]
        lines.append(f"| {' | '.join(cells)} |\n")
    path = next(iter(result("sparse")["tables"].values()))
    best = [max((row for row in path if row["method"] == name), key=lambda row: row["accuracy"])
            for name in ("l1", "l2")]  # fmt: skip
    found = [f"{_percent(row['accuracy'])} % with {row['weights']:,.0f} weights "
             f"(`{row['method']}`, C = {row['C']:g})" for row in best]  # fmt: skip
    lines.append(f"\nBest accuracy of `sbm tune` on {path[0]['data']}: {' and '.join(found)}.\n")
    return "".join(lines)


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _seconds(value: float) -> str:
    return f"{1000 * value:.2g} ms" if value < 0.01 else f"{value:.3g} s"


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"


def _bold(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio < 1 else f"**{ratio:.2f}**"


def _command(name: str) -> str:
    """Return the command of a result, for a cell."""
    from scripts.bench.everything import RESULTS

    command = RESULTS[name].command.removesuffix(" -o OUT").removesuffix(" --json OUT.json")
    return f"`python -m scripts.{command}`"


def day() -> str:
    """Return the machine and the days of the results whose times matter."""
    machines = [result(name)["machine"] for name, one in RESULTS.items() if one.is_timed]
    days = sorted({machine["date"] for machine in machines})
    commits = {machine.get("commit", "") for machine in machines}
    commit = f"at commit {commits.pop()}" if len(commits) == 1 else "at several commits"
    kinds = " and ".join(sorted({machine["processor"].split("(R)")[0] for machine in machines}))
    cores = max(machine["cores"] for machine in machines)
    when = f"on {days[0]}" if len(days) == 1 else f"from {days[0]} to {days[-1]}"
    return f"Measured {when} on {cores} cores of a virtual machine ({kinds}), {commit}.\n"


def _speed_rows() -> Iterator[tuple[str, str, str, str, str]]:
    """Yield what, sbm, others, ratio and the name of the result."""
    once, ratios = result("one-pass")["rows"], result("one-pass")["ratios"]
    right: dict[str, dict[str, Any]] = {}
    for one in once:
        name = one["what"].removeprefix("stream, ").removeprefix("online, ").split(",")[0]
        right.setdefault(name, one)
    ours, vw = right["sbm stream"], right["VW"]
    accuracy = {name: _percent(one["test_accuracy"]) for name, one in right.items()}
    vw_ratio = ratios["stream_of_vw_single_pass_time"]
    yield (
        "`sbm stream`, text to a model of one pass",
        f"{_seconds(ours['seconds'])}, {accuracy['sbm stream']} %",
        f"VW {_seconds(vw['seconds'])}, {accuracy['VW']} %", _bold(vw_ratio), "one-pass",
    )  # fmt: skip
    titles = {
        "sbm": "optimum", "bmd": "no cache", "arow": "AROW",
        "passive_aggressive": "passive-aggressive", "pegasos": "Pegasos",
        "perceptron": "perceptron",
    }  # fmt: skip
    shown = [
        f"{title} {_mark(accuracy[name], accuracy['sbm stream'])}" for name, title in titles.items()
    ]
    yield (
        "accuracy of that pass", f"{accuracy['sbm stream']} %", ", ".join(shown) + " %", "",
        "one-pass",
    )  # fmt: skip
    table2 = result("paper-table2")["rows"]
    ten = {one["solver"]: f"{one['accuracy_percent']:.2f}" for one in table2 if one["classes"] > 2}
    others = {"Reference": "optimum", "BMD": "no cache", "CW": "AROW", "MIRA": "passive-aggressive",
              "BM-Pegasos": "Pegasos", "Perceptron": "perceptron"}  # fmt: skip
    yield (
        "one pass, ten classes (3 rounds)", f"{ten['SBM-in-3']} %",
        ", ".join(f"{title} {_mark(ten[name], ten['SBM-in-3'])}" for name, title in others.items())
        + " %", "", "paper-table2",
    )  # fmt: skip
    memory = result("stream-memory")
    slope = memory["ratios"]["slope_of_the_last_half_bytes_a_GB"] / 1000
    yield (
        f"{memory['settings']['size']} of text through a pipe, `--mem {memory['settings']['mem']}`",
        f"peak {memory['ratios']['peak_MB']:.0f} MB, {slope:.0f} kB more per GB",
        "", f"{memory['ratios']['peak_of_mem']:.2f} of the bound", "stream-memory",
    )  # fmt: skip
    split = {one["process"]: one["seconds"] for one in result("split")["rows"]}
    of = result("split")["ratios"]
    for title, name, key in (
        (
            "LIBLINEAR reads, one iteration",
            "LIBLINEAR, -e 1e9",
            "of_liblinear_one_iteration_process",
        ),
        ("scikit-learn reads", "scikit-learn load_svmlight_file", "of_scikit-learn_loader"),
        ("decompressing a `.gz` file", "decompress .gz", "gz_of_decompressing"),
    ):
        mine = split["sbm split, .gz" if "gz" in name else "sbm split"]
        what = "compressed text to a store" if "gz" in name else "text to a store"
        yield what, _seconds(mine), f"{title}: {_seconds(split[name])}", _bold(of[key]), "split"
    for name, what, kind in (
        ("kernel", "one epoch in memory, 10 nonzeros per row", "short rows"),
        ("kernel", "the same, 500 real values per row (synthetic)", "long rows"),
        ("kernel-a9a", "the same, a9a (123 features)", "short rows"),
    ):
        mine, peer, touch = _epochs(name, kind)
        other = f"LIBLINEAR {_seconds(peer)} per iteration"
        yield what, _seconds(mine), other, _bold(mine / peer), name
        if what.startswith("one"):
            what = "one epoch, compared with touching each nonzero and its weight"
            yield what, _seconds(mine), _seconds(touch), _bold(mine / touch), name
    overlap = result("overlap")
    with_cache, without = next(iter(overlap["tables"].values()))
    larger = overlap["ratios"]["wall_of_larger"]
    yield (
        "a pass, compared with the larger of loading and solving",
        "",
        "",
        _bold(larger),
        "overlap",
    )
    more = "" if without["converged"] else "more than "
    yield (
        "passes to 1e-3 at equal memory", f"{with_cache['passes']}",
        f"without a cache: {more}{without['passes']}",
        f"{'' if without['converged'] else '< '}{with_cache['passes'] / without['passes']:.2f}",
        "overlap",
    )  # fmt: skip
    for reading in dict.fromkeys(one["reading"] for one in result("rounds")["rows"]):
        found = {one["rounds"]: one["seconds"] for one in result("rounds")["rows"]
                 if one["reading"] == reading}  # fmt: skip
        best = min(value for key, value in found.items() if key != "auto")
        what, other = f"`--rounds auto`, reading {reading}", f"best fixed number: {_seconds(best)}"
        ratio = result("rounds")["ratios"][f"{reading}: auto_of_best_fixed_seconds"]
        yield what, _seconds(found["auto"]), other, _bold(ratio), "rounds"
    for data in dict.fromkeys(one["data"] for one in result("cache")["rows"]):
        found = {one["cache_frac"]: one["seconds"] for one in result("cache")["rows"]
                 if one["data"] == data}  # fmt: skip
        best = min(value for key, value in found.items() if key != "auto")
        what, other = f"`--cache-frac auto`, {_name(data)}", f"best fixed share: {_seconds(best)}"
        ratio = result("cache")["ratios"][f"{data}: auto_of_best_fixed_seconds"]
        yield what, _seconds(found["auto"]), other, _bold(ratio), "cache"
    screened, plain = (one["seconds"] for one in result("screening")["rows"][:2])
    other = f"all rows visited: {_seconds(plain)}"
    ratio = result("screening")["ratios"]["seconds: screened_of_all"]
    yield "skipping rows at rest", _seconds(screened), other, _bold(ratio), "screening"
    trains = [one["seconds"] for one in result("threads")["rows"] if one["what"] == "train"]
    other = f"on one: {_seconds(trains[0])}"
    ratio = result("threads")["ratios"]["train: 2_threads_of_1"]
    yield "training on two threads", _seconds(trains[1]), other, _bold(ratio), "threads"
    yield from _tune_rows()
    for one in result("nightly")["rows"]:
        what = f"warm start, a tenth of the rows is new: updates, {_name(one['data'])}, "
        yield (
            f"{what}C = {one['C']:g}, `--mem {one['mem']}`", f"{one['updates']:,}",
            f"from scratch: {one['from_scratch']:,}", _bold(one["ratio"]), "nightly",
        )  # fmt: skip
    parse, peer = (one["MB_per_second"] for one in result("parse")["rows"][:2])
    other, ratio = f"scikit-learn's loader: {peer:.3g} MB/s", peer / parse
    yield "parsing text, one core", f"{parse:.3g} MB/s", other, _bold(ratio), "parse"
    start = {one["process"]: one["seconds"] for one in result("start")["rows"]}
    (numpy,) = (value for key, value in start.items() if "numpy" in key)
    ours_, other = start["sbm --help"], f'`python -c "import numpy"`: {_seconds(numpy)}'
    yield "`sbm --help`", _seconds(ours_), other, _bold(ours_ / numpy), "start"


def _mark(theirs: str, ours: str) -> str:
    """Mark a better accuracy of another learner; the optimum is no other learner."""
    return f"**{theirs}**" if float(theirs) > float(ours) + 0.1 else theirs


def _name(data: str) -> str:
    """Return the name of a text in the pages."""
    stem = data.removesuffix(".svm")
    return {"b_prep_small": "SMALL", "prep_small_binary": "SMALL"}.get(stem, stem)


def _epochs(name: str, kind: str) -> tuple[float, float, float]:
    """Return seconds of an epoch, of LIBLINEAR's iteration and of touching every nonzero."""
    rows = {one["what"]: one["seconds"] for one in result(name)["rows"] if one["rows"] == kind}
    form = "implicit ones" if kind == "short rows" else "float32"

    def first(start: str) -> float:
        return float(next(value for what, value in rows.items() if what.startswith(start)))

    ours = first(f"sbm, {form}, mean")
    return ours, first("LIBLINEAR"), first(f"touch every nonzero and its weight, {form}")


def _tune_rows() -> Iterator[tuple[str, str, str, str, str]]:
    one, folds, _, together, alone = result("tune")["rows"]
    for what, mine, peer, other in (
        (folds["what"].replace("tune:", "`sbm tune`:"), folds, one, "one training"),
        ("including the training of the best C", together, one, "one training"),
        ("the same", together, alone, f"{alone['what']}"),
    ):
        yield (
            f"{what}, SMALL", f"{_seconds(mine['seconds'])}, {mine['MB_read']:,.0f} MB read",
            f"{other}: {_seconds(peer['seconds'])}, {peer['MB_read']:,.0f} MB",
            f"{mine['seconds'] / peer['seconds']:.2g}, {mine['MB_read'] / peer['MB_read']:.2g}",
            "tune",
        )  # fmt: skip


def speed() -> str:
    """Return the table of docs/speed.md; a command stands beside the first of its rows."""
    shown, rows = "", []
    for *cells, name in _speed_rows():
        rows.append([*cells, _command(name) if name != shown else ""])
        shown = name
    return _table(["what", "sbm", "others", "ratio", "command"], rows)


def tuning() -> str:
    """Return how long tuning takes beside the same models alone."""
    tried = result("tune")["tables"]["values of C, all folds on one stream"]
    ends = Counter(one["status"] for one in tried)
    done = {one["C"] for one in tried if one["status"] not in ("not tried", "given up")}
    alone = result("tune")["tables"]["each model alone, sums over the folds"]
    together = row("tune", what="tune, together")["seconds"]
    spent = sum(one["seconds"] for one in alone)
    needed = sum(one["seconds"] for one in alone if one["C"] in done)
    return (
        "[Measured](../scripts/results/tune.md) on "
        f"{len(tried)} values and {result('tune')['settings']['folds']} folds: `tune` took "
        f"{together:.3g} s. It completed {len(done)} values, gave up {ends['given up']} and did "
        f"not try {ends['not tried']}. The models of the {len(alone)} values that it tried take "
        f"{spent:.3g} s one by one (ratio {together / spent:.2f}), those of the {len(done)} "
        f"completed ones {needed:.3g} s ({together / needed:.2f}).\n"
    )


def nightly() -> str:
    """Return what warm starts save."""
    first = [one for one in result("nightly")["rows"] if one["C"] == 0.1][:2]
    shares = sorted(100 * one["ratio"] for one in first)
    return (
        f"If a tenth of {first[0]['rows']:,} rows is new, a warm start needs {shares[0]:.0f} to "
        f"{shares[-1]:.0f} % of the updates of a training from scratch. With a large C it saves "
        "less ([measurements](speed.md)).\n"
    )


def bounds() -> str:
    """Return the shares of --mem that commands use."""
    found: dict[str, float] = {}
    for one in result("memory")["rows"]:
        found[one["command"]] = max(found.get(one["command"], 0), one["of_bound"])
    shares = ", ".join(f"`{name}` {100 * share:.0f} %" for name, share in found.items())
    return f"The largest shares of the bound that were used: {shares}.\n"


# --------------------------------------------------------------------------- docs/converge.md


def _over_costs(data: str, losses: Sequence[str], solvers: Sequence[str], shown: str) -> str:
    rows = [one for one in result("converge")["rows"] if one["data"] == data]
    costs = list(dict.fromkeys(one["C"] for one in rows))
    lines = []
    for loss in losses:
        for solver in solvers:
            mine = {one["C"]: one[shown] for one in rows if one["loss"] == loss
                    and one["solver"] == solver}  # fmt: skip
            cells = [f"{mine[C]:,}" if shown == "passes" else f"{mine[C]:.2g}" for C in costs]
            lines.append([f"`{loss}`", f"`{solver}`", *cells])
    return _table(["`--loss`", "`--solver`", f"C = {costs[0]:g}", *map("{:g}".format, costs[1:])],
                  lines)  # fmt: skip


def newton() -> str:
    """Return passes of coordinate descent and of Newton's method."""
    losses = ("squared_hinge", "log_loss", "hinge")
    return _over_costs("a9a", losses, ("dual", "newton"), "passes")


def conjugate() -> str:
    """Return CPU seconds with many features."""
    return _over_costs(
        "farm_ads", ("log_loss", "squared_hinge"), ("dual", "newton", "auto"), "CPU_seconds"
    )


def held_out() -> str:
    """Return predictions of rows that were held out, by scale."""
    rows = result("scaling")["rows"]
    costs = list(dict.fromkeys(one["C"] for one in rows))
    groups: dict[tuple[str, str], list[Any]] = {}
    for one in rows:
        groups.setdefault((one["data"], one["scale"]), []).append(one)
    lines = [
        [data if scale == "none" else "", f"`{scale}`",
         *(f"{one['auc']:.3f}, {one['log_loss']:.3f}" for one in mine),
         ", ".join(str(one["passes"]) for one in mine)]
        for (data, scale), mine in groups.items()
    ]  # fmt: skip
    return _table(["rows", "`--scale`", f"C = {costs[0]:g}", *map("{:g}".format, costs[1:]),
                   "passes"], lines)  # fmt: skip


def remedies() -> str:
    """Return what helps if many rows are free."""
    rows = [
        [one["what"], f"{one['passes']}{'' if one['converged'] else ', not converged'}",
         f"{one['relative_gap']:.1e}", f"{one['million_updates']:.1f}"]
        for one in result("converge")["tables"]["synthetic"]
    ]  # fmt: skip
    return _table(["command", "passes", "certified gap", "updates, in millions"], rows)


# --------------------------------------------------------------------------- docs/machines.md


def machines() -> str:
    """Return passes, work and bytes of several processes with their rows in memory."""
    found, rows, shown = result("ranks"), [], ""
    for one in found["rows"]:
        title = one["problem"] if one["problem"] != shown else ""
        shown = one["problem"]
        numbers = [f"{one[k]:,}" for k in ("processes", "passes", "million visits")]
        sent = "" if one["processes"] == 1 else f"{one['MB sent']:,}"
        rows.append([title, *numbers, f"{one['work of the busiest']}", sent])
    titles = ["data", "processes", "passes", "million visits, all processes",
              "work of the busiest", "MB sent by each"]  # fmt: skip
    return _table(titles, rows)


def machine_times() -> str:
    """Return the times of one process and of two."""
    rows, alone = list[list[str]](), dict[str, Any]()
    for one in result("ranks")["tables"]["time"]:
        alone = one if one["processes"] == 1 else alone
        rows.append([
            one["problem"] if one is alone else "", str(one["processes"]),
            f"{one['seconds']:.2f} s", f"{alone['seconds'] / one['seconds']:.2f}",
            f"{one['seconds of solving']:.2f} s", f"{one['CPU seconds of the busiest']:.2f} s",
        ])  # fmt: skip
    titles = [
        "data", "processes", "training", "speed-up", "solving and sums", "CPU time of the busiest",
    ]  # fmt: skip
    return _table(titles, rows)


# ----------------------------------------------------------------------------- docs/papers.md


def claims() -> str:
    """Return how many claims of the papers hold."""
    found = [
        claim
        for path in (ROOT / "scripts/results").glob("paper-*.json")
        for claim in result(path.stem)["tables"]["claims"]
    ]
    counts = Counter(claim["holds"] for claim in found)
    said = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    return f"**{len(found)} claims, each on one data set: {said}.**\n"


# --------------------------------------------------------------------------- docs/security.md


def torture() -> str:
    """Return how many cases the torture runs tried, and how many failed."""
    rows = []
    for path in sorted((ROOT / "scripts/results").glob("torture-*.json")):
        for one in result(path.stem)["rows"]:
            numbers = [f"{one['tried']:,}", f"{one['failures']:,}"]
            rows.append([one["what"], *numbers, _command(path.stem)])
    return _table(["what", "cases", "failures", "command"], rows)


# --------------------------------------------------------------------------------- README.md


def demo() -> str:
    """Return what the commands of the demo print."""
    lines = [one["line"] for one in result("release")["tables"]["sh scripts/demo.sh"]]
    first = next(k for k, line in enumerate(lines) if line.startswith("prep.svm: "))
    text = "\n".join(k for k in lines[first:] if not k.startswith(("==", "compiling")))
    while "\n\n\n" in text:
        text = text.replace("\n\n\n", "\n\n")
    return f"```\n{text.strip()}\n```\n"
