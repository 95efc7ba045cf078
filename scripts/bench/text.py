"""Benchmarks of text: the parser alone, ``sbm split``, and the start of the program."""

import argparse
import gzip
import shutil
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from scripts.bench.data import first_bytes, pieces
from scripts.bench.ours import hold, split, warm_up
from scripts.bench.peers import Liblinear, LiblinearLibrary, run_sklearn_loader
from scripts.bench.tools import (
    BenchError,
    Finished,
    Report,
    alternate,
    median,
    median_ratio,
    run_process,
    sbm_command,
    tell,
    timed,
)

# Arguments: file. Decompresses it to nowhere.
DECOMPRESS_CHILD = """\
import gzip, sys
import zstandard
path = sys.argv[1]
with gzip.open(path) if path.endswith(".gz") else zstandard.open(path) as file:
    while file.read(1 << 22):
        pass
"""
OURS = "sbm split"
IN_MEMORY = "LIBLINEAR's iteration in memory"


def bench_parse(args: argparse.Namespace, report: Report) -> None:
    """Time the text parser alone, beside the readers of the peers.

    Ours runs in this thread over the whole file in pieces of 4 MB; reading the file and compiling
    are left out. The readers of the peers open the file themselves (it is in the page cache by
    then), and only read its first part (``--peer-bytes``), since their speed does not depend on
    the length and one of them is slow: liblinear-official holds no compiled reader, its
    ``svm_read_problem`` is Python.
    """
    from liblinear.commonutil import svm_read_problem
    from sklearn.datasets import load_svmlight_file

    part = first_bytes(args.data, int(args.peer_bytes), args.folder / "part.svm")
    size, part_size = args.data.stat().st_size, part.stat().st_size
    _parse_file(part)  # compiles
    tasks = {
        "sbm parse_text": lambda: size / _parse_file(args.data),
        "scikit-learn load_svmlight_file": lambda: (
            part_size / timed(lambda: load_svmlight_file(str(part)))
        ),
        "liblinear svm_read_problem": lambda: (
            part_size / timed(lambda: svm_read_problem(str(part), return_scipy=True))
        ),
    }
    speeds = alternate(tasks, args.runs)
    ours = speeds["sbm parse_text"]
    for name, values in speeds.items():
        read = size if name == "sbm parse_text" else part_size
        report.rows.append({
            "reader": name, "text_MB": read / 1e6, "MB_per_second": median(values) / 1e6,
            "sbm_is_faster": median_ratio(ours, values),
        })  # fmt: skip
    report.ratios = {
        "MB_per_second": median(ours) / 1e6,
        "times_scikit-learn": median_ratio(ours, speeds["scikit-learn load_svmlight_file"]),
        "times_liblinear_python_reader": median_ratio(ours, speeds["liblinear svm_read_problem"]),
    }
    report.notes = [
        "sbm: one thread, text in memory, without reading the file and without compiling",
        (
            "peers: their own reading of the file from the page cache included; the package "
            "liblinear-official holds no compiled reader, what is timed is its Python one"
        ),
    ]


def _parse_file(path: Path) -> float:
    """Parse a file; return the seconds spent parsing."""
    from sbm.inputs.libsvm import REASONS, parse_text

    seconds = 0.0
    for text, size in pieces(path):
        begin = time.perf_counter()
        parsed = parse_text(text, size)
        seconds += time.perf_counter() - begin
        if parsed.errors:
            raise BenchError(f"{path.name}: {parsed.errors[0].explain(REASONS)}")
    return seconds


def bench_split(args: argparse.Namespace, report: Report) -> None:
    """Time ``sbm split`` as a whole process, beside processes that merely read the text.

    LIBLINEAR merely reads: the whole process from text to a model file with ``-e 1e9``, which
    reads, does one iteration and writes the model. Reading alone is estimated as that less the
    same call through the C library with the rows in memory already (set-up, one iteration and the
    final objective); what remains still holds the writing of the model. Where LIBLINEAR is a
    Python process (see `Liblinear`), reading alone is what it says the loader took.
    scikit-learn's loader is a process that only loads; its start and imports count as ours do.

    Compressed text is split beside a process that only decompresses it, in Python as ours does.
    Text is in the page cache, and what is written may stay there. Compressing is not timed.
    """
    warm_up(args)
    packed = {ending: _pack(args.data, ending, args.folder) for ending in (".gz", ".zst")}
    reader, model = Liblinear(args), args.folder / "read.model"
    tell("loading the rows")
    library = LiblinearLibrary(hold(args.data, args.folder, args.C), args.C)
    ours = partial(_split, args)
    tasks: dict[str, Callable[[], Any]] = {
        OURS: ours,
        "sbm split, 1 block": partial(ours, blocks=1),
        "sbm split, 100 blocks": partial(ours, blocks=100),
        "sbm split, 1 thread": partial(ours, threads=1),
        "sbm split, .gz": partial(ours, packed[".gz"]),
        "decompress .gz": partial(_decompress, packed[".gz"]),
        "sbm split, .zst": partial(ours, packed[".zst"]),
        "decompress .zst": partial(_decompress, packed[".zst"]),
        "LIBLINEAR, -e 1e9": partial(reader.run, args.data, model, 1e9),
        "scikit-learn load_svmlight_file": partial(run_sklearn_loader, args.data),
        IN_MEMORY: partial(timed, lambda: library.train(1e9)),
    }
    found = alternate(tasks, args.runs)
    iterations = found.pop(IN_MEMORY)
    readings = [
        reader.reading(done, iteration)
        for done, iteration in zip(found["LIBLINEAR, -e 1e9"], iterations, strict=True)
    ]
    report.tables["LIBLINEAR's reading, seconds"] = [{
        "process_with_one_iteration": median([d.seconds for d in found["LIBLINEAR, -e 1e9"]]),
        "the_iteration_in_memory": median(iterations), "reading": median(readings),
    }]  # fmt: skip
    _fill_split_report(args, report, found, readings)
    report.notes = [
        f"LIBLINEAR: {reader.what} -e 1e9: reads, one iteration, writes the model",
        (
            "LIBLINEAR's reading alone: its program's is estimated, that process less the same "
            "iteration in memory through the C library; a Python process says what its loader took"
        ),
        f"sbm split: {args.blocks} blocks, {args.threads} threads unless it says otherwise",
    ]


def _split(
    args: argparse.Namespace,
    text: Path | None = None,
    *,
    blocks: int | None = None,
    threads: int | None = None,
) -> Finished:
    options = {"blocks": blocks or args.blocks, "threads": threads or args.threads}
    return split(text or args.data, args.folder / "split.sbm", mem=args.mem, **options)


def _fill_split_report(
    args: argparse.Namespace,
    report: Report,
    found: dict[str, list[Finished]],
    readings: list[float],
) -> None:
    size = args.data.stat().st_size
    seconds = {name: [done.seconds for done in runs] for name, runs in found.items()}
    for name, runs in found.items():
        report.rows.append({
            "process": name, "seconds": median(seconds[name]),
            "cpu_seconds": median([done.cpu_seconds for done in runs]),
            "peak_MB": median([done.peak_bytes for done in runs]) / 1e6,
            "MB_of_text_per_second": size / median(seconds[name]) / 1e6,
            "sbm_takes": median_ratio(seconds[OURS], seconds[name]),
        })  # fmt: skip

    def ratio(above: str, below: str) -> float:
        return median_ratio(seconds[above], seconds[below])

    report.ratios = {
        "MB_of_text_per_second": size / median(seconds[OURS]) / 1e6,
        "of_liblinear_one_iteration_process": ratio(OURS, "LIBLINEAR, -e 1e9"),
        "of_liblinear_reading_alone": median_ratio(seconds[OURS], readings),
        "of_scikit-learn_loader": ratio(OURS, "scikit-learn load_svmlight_file"),
        "100_blocks_of_1_block": ratio("sbm split, 100 blocks", "sbm split, 1 block"),
        f"{args.threads}_threads_of_1": ratio(OURS, "sbm split, 1 thread"),
        "gz_of_decompressing": ratio("sbm split, .gz", "decompress .gz"),
        "zst_of_decompressing": ratio("sbm split, .zst", "decompress .zst"),
    }


def _pack(text: Path, ending: str, folder: Path) -> Path:
    """Compress a text, with the default level of its kind."""
    import zstandard

    tell(f"compressing to {ending}")
    packed = folder / f"packed.svm{ending}"
    with (
        text.open("rb") as source,
        gzip.open(packed, "wb", 6) if ending == ".gz" else zstandard.open(packed, "wb") as target,
    ):
        shutil.copyfileobj(source, target, 1 << 22)
    return packed


def _decompress(packed: Path) -> Finished:
    return run_process([sys.executable, "-c", DECOMPRESS_CHILD, str(packed)])


def bench_start(args: argparse.Namespace, report: Report) -> None:
    """Time ``sbm --help`` as a whole process, beside the start of Python and of numpy."""
    commands = {
        "sbm --help": sbm_command("--help"),
        "python -c pass": [sys.executable, "-c", "pass"],
        "python -c 'import numpy'": [sys.executable, "-c", "import numpy"],
    }
    for command in commands.values():
        run_process(command)  # fills the caches
    tasks = {name: partial(run_process, command) for name, command in commands.items()}
    results = alternate(tasks, args.runs)
    seconds = {name: [r.seconds for r in found] for name, found in results.items()}
    ours = seconds["sbm --help"]
    for name, values in seconds.items():
        report.rows.append({
            "process": name, "seconds": median(values),
            "peak_MB": median([r.peak_bytes for r in results[name]]) / 1e6,
            "sbm_takes": median_ratio(ours, values),
        })  # fmt: skip
    report.ratios = {
        "seconds": median(ours),
        "times_python": median_ratio(ours, seconds["python -c pass"]),
        "times_numpy": median_ratio(ours, seconds["python -c 'import numpy'"]),
    }
    report.notes = ["wall time from start to end of the process, files in the page cache"]
