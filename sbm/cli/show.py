"""Turn the reports of programs into lines of text, one function per program."""

import heapq
import math
from collections.abc import Iterator
from typing import Any

from sbm.settings import Settings
from sbm.units import (
    count,
    format_label,
    format_number,
    format_size,
    list_some,
    padding,
    shorten,
    width_of,
)

_LEAST_TEXT = 1_000_000  # bytes for a speed

Report = dict[str, Any]
Lines = Iterator[str]


def _speed(size: int, seconds: float) -> str:
    """Format bytes per second, such as ``224 kB/s``."""
    return f"{format_size(size / max(seconds, 1e-9))}/s"


# -------------------------------------------------------------------------------------- stores


def split(report: Report, min_count: int) -> Lines:
    """Show the store that was written and the features that were left out."""
    every = report["rows_in_all"]
    appended = "" if every == report["rows"] else f" appended ({every:,} in total)"
    yield (
        f"{report['store']}: {count(report['rows'], 'row')}{appended}, "
        f"{count(report['features'], 'feature')}, "
        f"{count(report['nnz'], 'nonzero')} in {count(report['blocks'], 'block')}"
    )
    # Of small data, these rates are those of headers and of starting.
    bits, speed = "", ""
    # With fewer nonzeros, the size of each says nothing.
    if report["nnz"] >= 10_000:
        bits = f" ({8 * report['bytes'] / report['nnz']:.1f} bits per nonzero)"
    if report["text_bytes"] >= _LEAST_TEXT:
        speed = f" ({_speed(report['text_bytes'], report['seconds'])})"
    yield f"{format_size(report['bytes'])}{bits}, {report['seconds']:.1f} s{speed}"
    yield from _compiling(report["compile_seconds"])
    if report["skipped"]:
        yield f"{count(report['skipped'], 'line')} skipped"
    for one, other in report["collisions"][:1]:
        yield (
            f"features share an id, such as {_short(one)} and {_short(other)}; rename one, or "
            "raise --hash-bits if names are hashed"
        )
    if min_count > 1:
        yield _left_out({"min_count": min_count, **report["left_out"]})


def _short(name: str, most: int = 40) -> str:
    """Return the name of a feature for a line: a name may be a whole document."""
    return shorten(" ".join(name.split()), most)


def _label(label: float | str) -> str:
    return _short(format_label(label))


def _left_out(rare: Report) -> str:
    return (
        f"{count(rare['features'], 'feature')} in fewer than {count(rare['min_count'], 'row')} "
        f"left out ({count(rare['nnz'], 'nonzero')})"
    )


def cat(report: Report) -> Lines:
    """Show what was written, and what the format cannot hold."""
    rows, nnz = count(report["rows"], "row"), count(report["nnz"], "nonzero")
    yield f"{report['output']}: {rows}, {nnz}"
    if report["left_out"]:
        what = {"weights": "weights of rows", "words": "labels as words"}
        yield f"left out: {' and '.join(what[k] for k in report['left_out'])} (--format parquet)"


def expire(report: Report) -> Lines:
    """Show what was dropped from a store, or would be dropped."""
    what = "would be dropped" if report["dry_run"] else "dropped"
    for source in report["sources"]:
        yield f"{source['name']}, added {source['added']}: {count(source['rows'], 'row')}"
    yield (
        f"{report['store']}: {count(len(report['sources']), 'source')} {what}, "
        f"{count(report['rows'], 'row')} in {count(report['blocks'], 'block')}, "
        f"{format_size(report['bytes'])}; {count(report['rows_left'], 'row')} left"
    )
    for label in report["labels_without_rows"]:
        yield f"label {format_label(label)} has no rows left; the store keeps it as a class"
    for label in report["labels_dropped"]:
        yield f"label {format_label(label)} has no rows left; the store no longer has it"


def check(report: Report) -> Lines:
    """Show what was verified."""
    yield (
        f"{report['store']} is sound: {count(report['rows'], 'row')} in "
        f"{count(report['chunks'], 'chunk')}, {format_size(report['bytes'])}, "
        f"{count(report['features'], 'feature')}"
    )
    if report["elsewhere"]:
        yield f"one shard of a store; {count(report['elsewhere'], 'block')} in other shards"


def open_lines(report: Report) -> Lines:
    """Name the inputs without a newline at their end, which may be truncated."""
    for name in report["open"]:
        yield f"sbm: the last line of {name} has no newline; it was read, but may be incomplete"


# ---------------------------------------------------------------------------------------- info

_ONLY_IF_ANY = ("left_out", "calibration", "certificate", "expired", "names_bytes")
_ONLY_IF_VERBOSE = ("block_rows", "options")
_MOST_LABELS = 20  # shown, unless all are asked for


def info(facts: Report, every: bool = False) -> Lines:
    """Describe a store, a run or a model; `every` adds long fields and default settings."""
    for name, value in facts.items():
        if name in ("log", "frequencies") or (name in _ONLY_IF_VERBOSE and not every):
            continue
        if value is None or (name in _ONLY_IF_ANY and not value):
            continue
        if name == "settings" and not every:
            usual = Settings().to_dict()
            value = {key: setting for key, setting in value.items() if setting != usual.get(key)}
            value = value or "defaults"
        if name == "labels" and isinstance(value, list):
            texts = [format_label(label) for label in value]
            value = ", ".join(texts) if every else _first([_short(text) for text in texts])
        words = [_source(one) for one in value] if name == "sources" else [_in_words(name, value)]
        yield f"{name.replace('_', ' '):>18}: {words[0] if words else ''}"
        yield from (f"{'':20}{line}" for line in words[1:])


def _first(labels: list[str]) -> str:
    shown = ", ".join(labels[:_MOST_LABELS])
    return shown + (f", ... {len(labels):,} in total" if len(labels) > _MOST_LABELS else "")


def _in_words(name: str, value: Any) -> str:
    if name in ("bytes", "memory_bytes", "names_bytes"):
        return format_size(value)
    if name == "labels" and isinstance(value, dict):
        return _label_counts(value)
    if name == "left_out":
        return "; ".join(_left_out(rare).replace(" left out", "") for rare in value)
    if name == "expired" and isinstance(value, list):
        rows = sum(source["rows"] for source in value)
        last = max(source["expired"] for source in value)
        return f"{count(len(value), 'source')} of {count(rows, 'row')}, the last {last}"
    if name == "columns":
        return _first([f"{column['name']} ({column['kind']})" for column in value])
    if name == "shard":
        here = ", ".join(map(str, value["here"]))
        return (
            f"{value['number']} (of 0 to {value['of'] - 1}), "
            f"blocks {here} of {value['blocks']} are here"
        )
    return _plainly(value)


def _plainly(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k} {_in_words(k, v)}" for k, v in value.items() if v not in ([], {}))
    if isinstance(value, list):
        return ", ".join(_in_words("", v) for v in value)
    if isinstance(value, float):
        return format_number(value) if value.is_integer() else f"{value:.10g}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _label_counts(labels: Report) -> str:
    pairs = sorted(zip(labels["values"], labels["counts"], strict=True))
    words = dict(enumerate(labels.get("names", [])))
    return _first([f"{_short(words.get(v, format_number(v)))} ({n:,})" for v, n in pairs])


def _source(source: Report) -> str:
    size = f"{format_size(source['bytes'])}, " if "bytes" in source else ""
    added = f", added {source['added']}" if "added" in source else ""
    digest = f", sha256 {source['sha256'][:16]}" if "sha256" in source else ""
    return (
        f"{source['name']}: {size}{count(source['rows'], 'row')}, "
        f"{source['skipped']:,} skipped{added}{digest}"
    )


# ---------------------------------------------------------------------------------- trainings


def train(report: Report) -> Lines:
    """Show the result of a training."""
    s = report["seconds"]
    if report["was_finished"]:
        yield (
            f"{report['model']}: already trained on this store with these settings; use --fresh "
            "to train again"
        )
    scaled = f" (scaled by {report['scale']})" if report["scale"] != "none" else ""
    yield (
        f"{report['model']}: primal {report['primal']:.8g}, dual {report['dual']:.8g}, "
        f"certified relative gap {report['relative_gap']:.2e}{scaled} "
        f"after {count(report['passes'], 'pass')}"
    )
    if "dropped" in report:
        yield (
            f"{count(report['dropped'], 'small weight')} dropped, which adds "
            f"{report['added']:.3g} to the primal value"
        )
    if report.get("only_label") is not None:
        yield f"the model predicts only the label {report['only_label']}"
    if report.get("switched_after") is not None:
        passes = count(report["switched_after"], "pass")
        yield f"solver: dual for {passes}, then {report['solver']}"
    elif report.get("solver") not in (None, "dual"):
        yield f"solver: {report['solver']}"
    if report.get("validation"):
        yield from _validation(report)
    if report["was_finished"]:  # its cost is not that of this command
        return
    used = []
    if "n_nonzero" in report:
        used.append(f"{report['n_nonzero']:,} of {count(report['n_weights'], 'weight')} not 0")
    if "n_support" in report:
        free = f" ({report['n_free']:,} free)" if "n_free" in report else ""
        used.append(count(report["n_support"], "support vector") + free)
    yield ", ".join([*used, count(report["updates"], "update")])
    yield (
        f"{count(report['blocks'], 'block')}, {_share(report)} of the rows stayed in memory, "
        f"{format_size(report['bytes_read'])} read, "
        f"peak memory {format_size(report['peak_rss_bytes'])}"
    )
    read = f"read text {report['read']['seconds']:.2f}, " if report["read"] else ""
    yield (
        f"{s['total']:.2f} s: {read}solve {s['solve']:.2f}, wait for blocks {s['wait']:.2f} "
        f"(of {s['load']:.2f} loading), certify {s['certify']:.2f}, checkpoints {s['write']:.2f}"
    )
    yield from _compiling(s["compile"])


def _validation(report: Report) -> Lines:
    """Show why the training ended, which pass the model is of, and its threshold."""
    one, passes = report["validation"], count(report["passes"], "pass")
    ended = {
        "validation": f"stopped early after {passes}",
        "tol": f"reached the tolerance after {passes}",
        "limit": f"reached a limit after {passes}",
    }[one["ended_by"]]
    of = one["data"] or f"{one['share']:.6g} of the rows, held out"
    yield (
        f"{ended}; the model and its gap are those of pass {one['pass']}, with the best "
        f"{one['metric']}, {one['score']:.6g} on {count(one['rows'], 'row')} ({of})"
    )
    yield from _base_rate(one["metric"], one["score"], one["base_rate"])
    if one["threshold"] is not None:
        yield f"label {one['positive']} is predicted above {one['threshold']:.6g}"


def _base_rate(metric: str, score: float, base: float | None) -> Lines:
    """Compare a metric of probabilities with that of the share of each label."""
    if base is not None:
        than = "better" if score < base else "no better"
        yield f"{than} than predicting the share of each label, whose {metric} is {base:.6g}"


def _compiling(seconds: float) -> Lines:
    if seconds >= 0.05:
        yield f"compiling took another {seconds:.1f} s, the first time only"


def not_converged(report: Report, settings: Settings) -> Lines:
    """Name the limit that was reached before the tolerance, and what helps."""
    used_up = "--max-passes" if report["passes"] == settings.max_passes else "--time-limit"
    left, is_falling = report.get("passes_left"), report["is_falling"]
    more = f"about {count(max(1, round(left)), 'more pass')}" if left else ""
    slow = f"falls slowly ({more} at this rate)" if more else "hardly falls"
    yield (
        f"sbm: not converged: relative gap {report['relative_gap']:.2e} is above --tol "
        f"{settings.tol:g}"
        + (f"; raise {used_up}" + (f" ({more})" if more else "") if is_falling else "")
        + ("" if is_falling else f", and the gap {slow}")
    )
    helps = list[str]()
    is_sparse = settings.method == "columns"
    if is_sparse:
        helps += ["a larger --mem"]
    elif settings.solver == "dual":
        helps += ["--solver auto"]
    if not is_sparse and settings.solver != "newton" and report.get("blocks", 1) > 1:
        helps += [] if settings.cache_frac == "auto" else ["--cache-frac auto"]
        if report["decoded_share"] < 1:
            helps += ["a larger --mem"]
    if not is_falling and settings.loss != "one_class":
        helps.append("a smaller -C")
    if report["passes"] > 1 and helps:
        yield f"sbm: this may help: {', '.join(helps)}"
    if not is_falling and settings.loss == "one_class":
        yield (
            "sbm: if the origin lies among the rows, no weights but 0 are optimal, and this gap "
            "cannot get small; do not centre the features"
        )
    if report["visits_cut_short"]:
        yield (
            f"sbm: {report['visits_cut_short']:,} visits of the last pass were cut short by lack "
            "of memory; raise --mem"
        )


def tune(report: Report) -> Lines:
    """Show the results for each C, and the training with the best one."""
    s = report["seconds"]
    yield f"         C  {report['metric']:>12}       std  passes   seconds  worst gap" + (
        " weights not 0" if "n_nonzero" in report["settings"][0] else ""
    )
    for row in report["settings"]:
        yield _tuned(row) + (" *" if row["C"] == report["best"] else "")
    best = max(row["mean"] for row in report["settings"] if row["C"] == report["best"])
    yield from _base_rate(report["metric"], best, report["base_rate"])
    ends = {report["settings"][k]["C"]: word for k, word in ((0, "smallest"), (-1, "largest"))}
    if report["best"] in ends and len(report["settings"]) > 1:
        yield (
            f"the best C is the {ends[report['best']]} value of the grid; a wider grid may have a "
            "better one"
        )
    if any(row["status"] == _NOT_CONVERGED for row in report["settings"]):
        yield (
            f"{_NOT_CONVERGED}: a model with this C reached --max-passes or --time-limit before "
            "10 x --tol; the figures are those of its last weights"
        )
    yield (
        f"{report['folds']} folds, {count(report['passes'], 'pass')}, "
        f"{format_size(report['bytes_read'])} read, {s['tune']:.2f} s; best C is "
        f"{format_number(report['best'])}, trained on all rows:"
    )
    yield from train(report["train"])


_NOT_CONVERGED = "not converged"


def _tuned(row: Report) -> str:
    note = "" if row["status"] == "converged" else "  " + row["status"]
    if row["mean"] is None:
        return f"{format_number(row['C']):>10}  {'-':>12}{note}"
    std = "-" if row["std"] is None else f"{row['std']:.6f}"
    gap = "-" if row["relative_gap"] is None else f"{row['relative_gap']:.1e}"
    return (
        f"{format_number(row['C']):>10}  {row['mean']:12.6f} {std:>9} "
        f"{row['passes']:7d} {row['seconds']:9.2f} {gap:>10}"
        + (f" {row['n_nonzero']:13,.0f}" if "n_nonzero" in row else "")
        + note
    )


def plan(report: Report) -> Lines:
    """Show the plan of a training, one fact per line."""
    memory = dict(report["memory"])
    total, n_blocks = memory.pop("total"), report["blocks"]
    items = ", ".join(f"{name} {format_size(n)}" for name, n in memory.items())
    yield (
        f"{report['store']}: {count(report['rows'], 'row')}, "
        f"{count(report['features'], 'feature')}, {count(report['nnz'], 'nonzero')}"
    )
    is_sparse, n_turns = report["solver"] is None, report["turns"]
    each = "in each process" if report["processes"] > 1 else ""
    for name, text in {
        "memory": f"{format_size(total)} of {format_size(report['mem'])} {each}".rstrip()
        + f": {items}",
        "blocks": f"{n_blocks:,}, of up to {count(report['block_rows'], 'row')} and "
        f"{count(report['block_nnz'], 'nonzero')}",
        "cache": ""
        if is_sparse
        else f"{count(report['cache_rows'], 'row')}, {count(report['cache_nnz'], 'nonzero')}",
        "decoded": f"{_share(report)} of the rows stay in memory "
        f"({format_size(report['decoded_bytes'])})",
        "reading": f"{format_size(report['bytes_a_pass'])} in the first pass, "
        f"{format_size(report['bytes_read_again'])} in later passes",
        "speed": _disk(report) + f"{_millions(report['decode_nnz_per_second'])} nonzeros/s decoded",
        "solver": "" if is_sparse else report["solver"],
        "pass": _pass(report),
        "turns": f"{n_turns}, of some classes each" if n_turns > 1 else "",
    }.items():
        if text:
            yield f"{name:>8}  {text}"


def _share(report: Report) -> str:
    """Return the share of the rows that stay in memory."""
    return f"{math.floor(100 * report['decoded_share'])} %"


def _disk(report: Report) -> str:
    """Return how fast the disk is, if a training reads it."""
    rate = report["disk_bytes_per_second"]
    return "" if rate is None else f"{format_size(rate)}/s from disk, "


def _millions(number: float) -> str:
    return f"{number / 1e6:,.0f} million" if number >= 1e6 else f"{number:,.0f}"


def _pass(report: Report) -> str:
    """Return what the first pass of a training takes."""
    seconds = report["seconds_a_round"]
    if seconds is None:
        return ""
    rate = f"{_millions(report['solve_nnz_per_second'])} nonzeros/s"
    if report["solver"] is None:
        return f"{seconds:.2g} s to look at all rows, {rate}"
    rounds = count(report["rounds"], "round")
    return f"up to {rounds} of {seconds:.2g} s each, {rate} solved"


def stream(report: Report) -> Lines:
    """Show what a stream has learned."""
    s, seconds = report["seconds"], report["seconds"]["total"]
    loss = "" if report["loss"] is None else f", progressive loss {report['loss']:.6f}"
    accuracy = report["accuracy"]
    loss += "" if accuracy is None else f", accuracy {100 * accuracy:.4f} %"
    yield (
        f"{report['model']}: {count(report['rows'], 'row')} in {count(report['blocks'], 'block')}"
        f", {count(report['features'], 'feature')}{loss}"
    )
    if len(report["labels"]) == 1:
        yield f"the model predicts only the label {format_label(report['labels'][0])}"
    bound = "" if report["dual"] is None else f"optimum at least {report['dual']:.8g}, "
    peak = format_size(report["peak_rss_bytes"])
    yield (
        f"{bound}{report['visits']:,} visits ({report['polish_visits']:,} in the polish), "
        f"{count(report['updates'], 'update')}, peak memory {peak}"
    )
    is_told = report["text_bytes"] >= _LEAST_TEXT
    speed = f" ({_speed(report['text_bytes'], seconds)})" if is_told else ""
    yield (
        f"{seconds:.2f} s{speed}: learn {s['learn']:.2f}"
        f", polish {s['polish']:.2f}, predict {s['predict']:.2f}, wait for text {s['wait']:.2f}"
        f", save {s['write']:.2f}"
    )
    yield from _compiling(s["compile"])
    if report["skipped"]:
        yield f"{count(report['skipped'], 'line')} skipped"


# --------------------------------------------------------------------------------- predictions


def quality(report: Report, prefix: str = "", every_class: bool = False) -> Lines:
    """Show how good predictions are; some of many classes, or all if `every_class`."""
    if not report["rows"]:
        yield "no rows"
        return
    unlabelled = report["unlabelled_rows"]
    if unlabelled == report["rows"]:
        yield f"{prefix}predicted {count(unlabelled, 'row')} without labels"
        yield from _unknown(report)
        return
    if "mse" in report:
        yield from _regression(report, prefix)
    elif "macro_f1" in report:
        yield from _multi(report, prefix, every_class)
    else:
        yield from _binary(report, prefix, every_class)
    if report.get("log_loss") is not None:
        yield f"{prefix}log-loss {_with_base(report, 'log_loss')}" + (
            f", Brier score {_with_base(report, 'brier')}" if "brier" in report else ""
        )
    if report.get("unknown_labels"):
        yield f"labels unknown to the model: {count(report['unknown_labels'], 'row')}"
    if unlabelled:
        yield f"no label: {count(unlabelled, 'row')}, not counted in these figures"
    yield from _unknown(report)


def _with_base(report: Report, name: str) -> str:
    """Return a metric of probabilities beside that of the share of each label."""
    return f"{report[name]:.6f} (base rate {report[f'base_{name}']:.6f})"


def _unknown(report: Report) -> Lines:
    """Show how many nonzeros have ids unknown to the model."""
    if report["unknown_nonzeros"]:
        share = 100 * report["unknown_nonzeros"] / report["nnz"]
        shown = f"{share:.0f}" if share >= 10 else f"{share:.2g}"
        yield (
            f"{count(report['unknown_nonzeros'], 'nonzero')} of {report['nnz']:,} ({shown} %) "
            "ignored: feature ids not in the training data"
        )
    if words := report.get("unknown_words"):
        some = list_some([f"{name} {n:,}" for name, n in words.items()])
        yield f"cells with words that are not in the training data: {some}"


def _regression(report: Report, prefix: str) -> Lines:
    names = {"mse": "MSE", "mae": "MAE", "r2": "R2", "squared_correlation": "squared correlation"}
    figures = ", ".join(
        f"{name} {'-' if report[key] is None else format(report[key], '.6g')}"
        for key, name in names.items()
    )
    yield f"{prefix}{figures} ({count(_labelled(report), 'row')})"


def _labelled(report: Report) -> int:
    return int(report["rows"] - report["unlabelled_rows"])


def _binary(report: Report, prefix: str, every_class: bool) -> Lines:
    auc = "" if report["auc"] is None else f", AUC {report['auc']:.6f}"
    if every_class and report["pr_auc"] is not None:
        auc += f", PR-AUC {report['pr_auc']:.6f}"
    yield (
        f"{prefix}accuracy {100 * report['accuracy']:.4f} % "
        f"({report['correct']:,} of {_labelled(report):,}){auc}"
    )
    yield from _classes(report["classes"], 8)
    (tn, fp), (fn, tp) = report["confusion"]
    yield f"confusion: {tp:,} true +, {fp:,} false +, {tn:,} true -, {fn:,} false -"


def _classes(classes: list[Report], width: int) -> Lines:
    """Show one line per class; labels take `width` columns of the terminal."""
    yield f"{'label':>{width}}  precision     recall         F1      rows  predicted"
    for row in classes:
        figures = "".join(
            f"{row[k]:11.6f}" if row[k] is not None else f"{'-':>11}"
            for k in ("precision", "recall", "f1")
        )
        label = _label(row["label"])
        counts = f"{row['support']:9,} {row['predicted']:10,}"
        yield f"{padding(label, width)}{label}{figures} {counts}"


_ALL_CLASSES, _SOME_CLASSES = 30, 10


def _multi(report: Report, prefix: str, every_class: bool) -> Lines:
    yield (
        f"{prefix}accuracy {100 * report['accuracy']:.4f} % "
        f"({report['correct']:,} of {_labelled(report):,}), "
        f"macro F1 {report['macro_f1']:.6f}, micro F1 {report['micro_f1']:.6f}"
    )
    if report["top_n"] > 1:
        yield f"{prefix}top-{report['top_n']} accuracy {100 * report['top_accuracy']:.4f} %"
    classes = report["classes"]
    width = max(8, *(width_of(_label(label)) for label in report["labels"]))
    if every_class or len(classes) <= _ALL_CLASSES:
        yield from _classes(classes, width)
    else:
        yield from _some_classes(classes, width)
    yield from _confusions(report["confusion"], width)


def _some_classes(classes: list[Report], width: int) -> Lines:
    """Show the most frequent classes, and those with the lowest F1."""
    seen = sorted((row for row in classes if row["support"]), key=lambda row: -row["support"])
    worst = sorted(seen, key=lambda row: row["f1"])[:_SOME_CLASSES]
    for what, some in (("with most rows", seen[:_SOME_CLASSES]), ("with the lowest F1", worst)):
        if some:
            yield f"the {count(len(some), 'class')} {what}:"
            yield from _classes(some, width)
    shown = {row["label"] for row in seen[:_SOME_CLASSES] + worst}
    yield f"{len(classes) - len(shown):,} of {len(classes):,} classes not shown; use -v to see all"


def _confusions(triples: list[list[Any]], width: int) -> Lines:
    """Show the pairs of known labels that are confused most often."""
    wrong = [triple for triple in triples if triple[0] is not None and triple[0] != triple[1]]
    if not wrong:
        return
    yield "most frequent confusions (true -> predicted: rows)"
    for true, predicted, n in heapq.nsmallest(10, wrong, key=lambda triple: -triple[2]):
        label = _label(true)
        yield f"{padding(label, width)}{label} -> {_label(predicted)}: {n:,}"


# ------------------------------------------------------------------------- models and reports


def columns(report: Report) -> Lines:
    """Yield a line for each column of a table."""
    yield from report["lines"]
    if report["output"] is not None:
        yield f"wrote {report['output']}"


def columns_toml(report: Report) -> Lines:
    """Yield the kinds of columns as TOML."""
    yield report["toml"].rstrip("\n")


def inspect(report: Report) -> Lines:
    """Show the largest and smallest weights per class, or the largest changes."""
    if "models" in report:
        yield from _changed(report)
        return
    yield (
        f"{report['loss']}, {count(report['features'], 'feature')}: "
        f"{count(report['nonzero_weights'], 'nonzero weight')} of {report['weights']:,} "
        f"({100 * report['nonzero_share']:.3g} %)"
    )
    if report["threshold"]:
        yield f"label {report['labels'][1]} is predicted above {report['threshold']:.6g}"
    if report["scale"] != "none":
        yield f"trained with --scale {report['scale']}; weights are for values as they are"
    for row in report["classes"]:
        yield (
            f"{_class(row)}: intercept {row['intercept']:.6g}, norm {row['l2_norm']:.6g} "
            f"(l1 {row['l1_norm']:.6g}), {count(row['nonzero_weights'], 'nonzero weight')}"
        )
        for feature in row["top"] + row["bottom"][::-1]:
            yield f"{feature['weight']:14.6g}  {_feature(feature)}"


def _class(row: Report) -> str:
    return "prediction" if row["label"] is None else f"label {_label(row['label'])}"


def _feature(feature: Report) -> str:
    return _short(feature["name"] or str(feature["id"]), 200)


def _changed(report: Report) -> Lines:
    yield (
        f"{count(report['features_added'], 'feature')} added, "
        f"{report['features_removed']:,} removed (with nonzero weights)"
    )
    for what in ("added", "removed"):
        if labels := report[f"labels_{what}"]:
            yield f"labels {what}: {', '.join(map(_label, labels))}"
    for row in report["classes"]:
        cosine = "-" if row["cosine"] is None else f"{row['cosine']:.6f}"
        before, after = row["intercepts"]
        yield (
            f"{_class(row)}: cosine {cosine}, norm of the change {row['l2_change']:.6g}, "
            f"intercept {before:.6g} -> {after:.6g}"
        )
        for feature in row["changes"]:
            yield f"{feature['before']:14.6g} -> {feature['after']:<12.6g}  {_feature(feature)}"


def inspect_table(report: Report) -> Lines:
    """Show the same features as a table."""
    figures = ("before", "after") if "models" in report else ("weight",)
    yield "\t".join(["label", "id", "name", *figures])
    for row in report["classes"]:
        for feature in row.get("changes") or row.get("top", []) + row.get("bottom", [])[::-1]:
            cells = ["" if row["label"] is None else row["label"], feature["id"]]
            name = " ".join((feature["name"] or "").split())
            yield "\t".join(map(str, [*cells, name, *(feature[figure] for figure in figures)]))


def export(report: Report) -> Lines:
    """Show what was written, and the effect of pruning."""
    yield (
        f"{report['output']}: {count(report['weights'], 'weight')} of "
        f"{count(report['features'], 'feature')}, {format_size(report['bytes'])}"
    )
    if "dropped" in report:
        yield from _pruning(report)


def _pruning(report: Report) -> Lines:
    yield (
        f"{count(report['dropped'], 'weight')} between -{report['pruned']:g} and "
        f"{report['pruned']:g} dropped"
    )
    if "test" not in report:
        yield "effect on accuracy not measured; add --test FILE"
    elif report["change"] is None:
        yield f"{report['test']} has no rows; effect on accuracy not measured"
    elif report["measure"] == "accuracy":
        yield (
            f"accuracy {100 * report['before']:.4f} % before, {100 * report['after']:.4f} % after: "
            f"{100 * report['change']:+.4f} points"
        )
    else:
        yield (
            f"mean squared error {report['before']:.6g} before, {report['after']:.6g} after: "
            f"{report['change']:+.6g}"
        )


def report(told: Report) -> Lines:
    """Name the page and the picture that were written."""
    yield " and ".join(filter(None, (told["output"], told["png"])))


def precompile(report: Report) -> Lines:
    """Name the folder of compiled kernels and show how many there are."""
    yield f"{report['folder']}: {count(report['kernels'], 'kernel')}, {report['seconds']:.1f} s"
