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
from scripts.bench.registry import Registry, benchmark
from scripts.bench.tools import (
    BenchError,
    Report,
    alternate,
    costs,
    median,
    median_ratio,
    ratio,
    run_process,
    sbm_command,
    tell,
    timed,
)

BENCHMARKS: Registry = {}

# Arguments: file. Decompresses it to nowhere.
DECOMPRESS_CHILD = """\
import gzip, sys
import zstandard
path = sys.argv[1]
with gzip.open(path) if path.endswith(".gz") else zstandard.open(path) as file:
    while file.read(1 << 22):
        pass
"""


@benchmark(
    BENCHMARKS, options={"peer_bytes": 64e6}, quick={"peer_bytes": 2e5}, rows=2_500_000
)  # fmt: skip
def parse(args: argparse.Namespace, report: Report) -> None:
    """LIBSVM text to rows on one core.

    sbm: one thread over the whole text in pieces of 4 MB in memory, without reading the file and
    without compiling.

    peers: their own reading of the file from the page cache included, of its first part
    (--peer-bytes) alone, as their speed does not depend on the length; the package
    liblinear-official holds no compiled reader, what is timed is its Python one.
    """
    from liblinear.commonutil import svm_read_problem
    from sklearn.datasets import load_svmlight_file

    part = first_bytes(args.data, int(args.peer_bytes), args.folder / "part.svm")
    readers: dict[str, tuple[Path, Callable[[], float]]] = {
        "sbm parse_text": (args.data, lambda: _parse_file(args.data)),
        "scikit-learn load_svmlight_file": (
            part, lambda: timed(lambda: load_svmlight_file(str(part)))
        ),
        "liblinear svm_read_problem": (
            part, lambda: timed(lambda: svm_read_problem(str(part), return_scipy=True))
        ),
    }  # fmt: skip
    _parse_file(part)  # compiles
    found = alternate({name: read for name, (_, read) in readers.items()}, args.runs)
    sizes = {name: path.stat().st_size for name, (path, _) in readers.items()}
    speeds = {name: [sizes[name] / s for s in seconds] for name, seconds in found.items()}
    ours, sklearn, liblinear = speeds.values()
    for name, values in speeds.items():
        report.rows.append({
            "reader": name, "text_MB": sizes[name] / 1e6, "MB_per_second": median(values) / 1e6,
            "sbm_is_faster": median_ratio(ours, values),
        })  # fmt: skip
    report.ratios = {
        "MB_per_second": median(ours) / 1e6,
        "times_scikit-learn": median_ratio(ours, sklearn),
        "times_liblinear_python_reader": median_ratio(ours, liblinear),
    }


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


@benchmark(
    BENCHMARKS, "split", rows=2_500_000,
    options={"C": 0.1, "blocks": 12, "mem": "400MB", "threads": 2, "liblinear_train": None},
)  # fmt: skip
def split_text(args: argparse.Namespace, report: Report) -> None:
    """LIBSVM text to a store.

    sbm split: a whole process, --blocks and --threads unless it says otherwise; compressed text
    beside a process that only decompresses it, in Python as ours does. Text is in the page cache.

    LIBLINEAR, -e 1e9: reads, does one iteration, writes the model. Its reading alone: of its
    program that process less the same iteration in memory through the C library (what remains still
    holds the writing); a Python process says what its loader took. scikit-learn's loader is a
    process that only loads; its start and imports count as ours do.
    """
    warm_up(args)
    packed = {ending: _pack(args.data, ending, args.folder) for ending in (".gz", ".zst")}
    reader, model = Liblinear(args), args.folder / "read.model"
    tell("loading the rows")
    library = LiblinearLibrary(hold(args.data, args.folder, args.C), args.C)

    def ours(text: Path = args.data, **changes: int) -> Any:
        options = {"blocks": args.blocks, "threads": args.threads, "mem": args.mem}
        return split(text, args.folder / "split.sbm", **options | changes)

    def decompress(ending: str) -> Any:
        return run_process([sys.executable, "-c", DECOMPRESS_CHILD, str(packed[ending])])

    tasks: dict[str, Callable[[], Any]] = {
        "sbm split": ours,
        "sbm split, 1 block": partial(ours, blocks=1),
        "sbm split, 100 blocks": partial(ours, blocks=100),
        "sbm split, 1 thread": partial(ours, threads=1),
        "sbm split, .gz": partial(ours, packed[".gz"]),
        "decompress .gz": partial(decompress, ".gz"),
        "sbm split, .zst": partial(ours, packed[".zst"]),
        "decompress .zst": partial(decompress, ".zst"),
        "LIBLINEAR, -e 1e9": partial(reader.run, args.data, model, 1e9),
        "scikit-learn load_svmlight_file": partial(run_sklearn_loader, args.data),
        "iteration": partial(timed, lambda: library.train(1e9)),
    }
    found = alternate(tasks, args.runs)
    iterations, process = found.pop("iteration"), found["LIBLINEAR, -e 1e9"]
    readings = [reader.reading(*pair) for pair in zip(process, iterations, strict=True)]
    report.tables["LIBLINEAR's reading, seconds"] = [{
        "process_with_one_iteration": costs(process)["seconds"],
        "the_iteration_in_memory": median(iterations), "reading": median(readings),
    }]  # fmt: skip
    size, mine = args.data.stat().st_size, found["sbm split"]
    for name, runs in found.items():
        cells = costs(runs)
        report.rows.append({
            "process": name, **cells, "MB_of_text_per_second": size / cells["seconds"] / 1e6,
            "sbm_takes": ratio(mine, runs),
        })  # fmt: skip
    blocks = (found["sbm split, 100 blocks"], found["sbm split, 1 block"])
    report.ratios = {
        "MB_of_text_per_second": size / costs(mine)["seconds"] / 1e6,
        "of_liblinear_one_iteration_process": ratio(mine, process),
        "of_liblinear_reading_alone": median_ratio([done.seconds for done in mine], readings),
        "of_scikit-learn_loader": ratio(mine, found["scikit-learn load_svmlight_file"]),
        "100_blocks_of_1_block": ratio(*blocks),
        f"{args.threads}_threads_of_1": ratio(mine, found["sbm split, 1 thread"]),
        "gz_of_decompressing": ratio(found["sbm split, .gz"], found["decompress .gz"]),
        "zst_of_decompressing": ratio(found["sbm split, .zst"], found["decompress .zst"]),
    }
    report.notes.append(f"LIBLINEAR: {reader.what}")


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


@benchmark(BENCHMARKS)
def start(args: argparse.Namespace, report: Report) -> None:
    """Start of the program.

    Wall time from start to end of the process, files in the page cache.
    """
    commands = {
        "sbm --help": sbm_command("--help"),
        "python -c pass": [sys.executable, "-c", "pass"],
        "python -c 'import numpy'": [sys.executable, "-c", "import numpy"],
    }
    for command in commands.values():
        run_process(command)  # fills the caches
    tasks = {name: partial(run_process, command) for name, command in commands.items()}
    runs = alternate(tasks, args.runs)
    ours, python, numpy = runs.values()
    for name, found in runs.items():
        report.rows.append({"process": name, **costs(found), "sbm_takes": ratio(ours, found)})
    report.ratios = {
        "seconds": costs(ours)["seconds"],
        "times_python": ratio(ours, python),
        "times_numpy": ratio(ours, numpy),
    }
