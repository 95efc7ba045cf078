"""Shared tools of the benchmarks: measured processes, alternating runs, machine facts, reports.

A small launcher starts and measures each process. On Linux a new program inherits the peak memory
of the process that started it, which may hold a data set. The launcher holds `SMALLEST_PEAK`,
the smallest peak that can be measured.
"""

import datetime
import importlib.metadata
import inspect
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CODE = ("sbm", "configs")  # what is measured
SMALLEST_PEAK = 10_000_000  # bytes that the launcher holds
MOST_STOLEN = 0.02  # share of the processor time; above it, a measurement is repeated

PACKAGES = (
    "numpy", "numba", "llvmlite", "scipy", "scikit-learn", "liblinear-official", "vowpalwabbit",
    "sbm-linear",
)  # fmt: skip

# Arguments: where to report, the program and its arguments. The clock includes the start.
LAUNCHER = """\
import json, os, sys, time
begin = time.perf_counter()
child = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
status, usage = os.wait4(child, 0)[1:]
seconds = time.perf_counter() - begin
unit = 1 if sys.platform == "darwin" else 1024
facts = {"seconds": seconds, "cpu_seconds": usage.ru_utime + usage.ru_stime,
         "peak_bytes": usage.ru_maxrss * unit, "code": os.waitstatus_to_exitcode(status)}
with open(sys.argv[1], "w") as file:
    json.dump(facts, file)
"""

# Before and after code that measures its parts ``with measured:``. The peak is what they add.
INSIDE = """\
import json, resource, sys, time
class Measured:
    seconds = cpu_seconds = base = 0
    def peak(self):
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    def __enter__(self):
        self.base = self.base or self.peak()
        self.begin = time.perf_counter(), time.process_time()
    def __exit__(self, *_):
        self.seconds += time.perf_counter() - self.begin[0]
        self.cpu_seconds += time.process_time() - self.begin[1]
measured = Measured()
"""
INSIDE_END = """
print(json.dumps({"seconds": measured.seconds, "cpu_seconds": measured.cpu_seconds,
                  "peak_bytes": measured.peak() - measured.base}))
"""


class BenchError(Exception):
    """A benchmark cannot run; the message has the reason."""


def tell(text: str) -> None:
    """Print progress on stderr."""
    print(f"bench: {text}", file=sys.stderr, flush=True)


@dataclass(frozen=True)
class Finished:
    """A process that ended."""

    seconds: float  # wall time from start to end
    cpu_seconds: float  # of all its threads, and of the processes it waited for
    peak_bytes: int  # peak resident memory; the largest of it and the processes it waited for
    code: int  # exit code, negative for a signal
    stdout: str
    stderr: str

    def json(self) -> dict[str, Any]:
        """The JSON object that it printed."""
        facts: dict[str, Any] = json.loads(self.stdout)
        return facts


class Running:
    """A measured process that has been started; see `started_process`."""

    def __init__(
        self, command: Sequence[str | Path], folder: Path | None, stdin: Any, facts: Path
    ) -> None:
        self._facts = facts
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", LAUNCHER, str(facts), *map(str, command)],
            cwd=folder, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def wait(self, codes: Sequence[int] = (0,)) -> Finished:
        """Wait for its end. Raises `BenchError` if it ended with a code that is not in `codes`."""
        stdout, stderr = self._process.communicate()
        try:
            facts = json.loads(self._facts.read_text())
        except (OSError, ValueError):
            raise BenchError(f"the process could not be started, or was lost:\n{stderr}") from None
        finished = Finished(**facts, stdout=stdout, stderr=stderr)
        if finished.code not in codes:
            raise BenchError(f"a process ended with code {finished.code}:\n{stderr[-2000:]}")
        return finished


@contextmanager
def started_process(
    command: Sequence[str | Path], *, folder: Path | None = None, stdin: Any = subprocess.DEVNULL
) -> Iterator[Running]:
    """Start a measured process, with its output kept for `Running.wait`."""
    with tempfile.TemporaryDirectory() as private:
        yield Running(command, folder, stdin, Path(private, "facts.json"))


def run_process(
    command: Sequence[str | Path], *, folder: Path | None = None, codes: Sequence[int] = (0,)
) -> Finished:
    """Run a process to its end and measure it from outside.

    Raises `BenchError` if it ended with a code that is not in `codes`.
    """
    with started_process(command, folder=folder) as running:
        return running.wait(codes)


def run_inside(code: str, *arguments: object) -> Finished:
    """Run Python code that measures a part of itself, ``with measured:``; see `INSIDE`."""
    command = [sys.executable, "-c", f"{INSIDE}{code}{INSIDE_END}", *map(str, arguments)]
    done = run_process(command)
    facts = json.loads(done.stdout.splitlines()[-1])
    return replace(done, **facts | {"peak_bytes": max(SMALLEST_PEAK, facts["peak_bytes"])})


def sbm_command(*arguments: str | float | Path) -> list[str]:
    """Return the command line of sbm: the installed script if there is one."""
    script = Path(sys.executable).with_name("sbm")
    start = [str(script)] if script.exists() else [sys.executable, "-m", "sbm"]
    return [*start, *map(str, arguments)]


def script_command(name: str, *arguments: str | float | Path) -> list[str]:
    """Command line of the module ``scripts.NAME``."""
    return [sys.executable, "-m", f"scripts.{name}", *map(str, arguments)]


def timed(action: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def alternate(tasks: Mapping[str, Callable[[], Any]], runs: int) -> dict[str, list[Any]]:
    """Do each task once, in turn, `runs` times, so that disturbances affect all alike.

    A turn of which more than `MOST_STOLEN` was stolen is done again, as often as there are runs.
    Returns what each task returned, in order of the runs.
    """
    results: dict[str, list[Any]] = {name: [] for name in tasks}
    spare = runs
    while len(next(iter(results.values()))) < runs:
        before, turn = processor_times(), {}
        for name, task in tasks.items():
            tell(f"run {len(results[name]) + 1} of {runs}: {name}")
            turn[name] = task()
        share = stolen_share(before)
        if share > MOST_STOLEN and spare:
            tell(f"{share:.1%} of the processor time was stolen; once more")
            spare -= 1
            _forget(before)
            continue
        for name, found in turn.items():
            results[name].append(found)
    return results


def paragraphs(function: Any) -> list[str]:
    """Return title and notes of a report: the paragraphs of a docstring, each in one line."""
    text = inspect.getdoc(function) or ""
    title, *notes = (" ".join(part.split()) for part in text.split("\n\n"))
    return [title.removesuffix("."), *notes]


def median(values: Sequence[float]) -> float:
    """Median of at least one number."""
    return float(statistics.median(values))


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Median of the ratios of neighbouring runs."""
    return median([a / b for a, b in zip(above, below, strict=True)])


def costs(runs: Sequence[Any]) -> dict[str, float]:
    """Cells of processes that did the same: seconds, CPU seconds and peak."""
    return {
        "seconds": median([run.seconds for run in runs]),
        "cpu_seconds": median([run.cpu_seconds for run in runs]),
        "peak_MB": median([run.peak_bytes for run in runs]) / 1e6,
    }


def ratio(above: Sequence[Any], below: Sequence[Any], name: str = "seconds") -> float:
    """Median ratio of an attribute of neighbouring runs."""
    return median_ratio([getattr(r, name) for r in above], [getattr(r, name) for r in below])


def machine_facts() -> dict[str, Any]:
    """Return date, kind of machine and versions, but nothing that identifies the machine."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "missing"
    return {
        "date": today(),
        "commit": code_commit(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        **versions,
    }


def today() -> str:
    """Return the date."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()


def code_commit() -> str:
    """Return the last commit that changed the code, and whether it is changed since."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(ROOT), *words, "--", *CODE]
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()

    commit = git("log", "-1", "--format=%h") or "unknown"
    return f"{commit}, changed" if git("status", "--porcelain", "-uno") else commit


def processor_times() -> list[int]:
    """Ticks of all cores: user, nice, system, idle, waiting, two kinds of interrupts, stolen."""
    try:
        return list(map(int, Path("/proc/stat").read_text().split()[1:9]))
    except OSError:
        return [0] * 8  # not Linux: nothing is known to be stolen


_STARTED = processor_times()


def stolen_share(since: Sequence[int] | None = None) -> float:
    """Return the share of processor time that the host took from this virtual machine.

    It counts from what `processor_times` returned then, by default at the start of this process.
    Above a few percent, trust only the ratios of neighbouring runs, not seconds.
    """
    user, nice, system, _, _, *interrupts, stolen = (
        now - then for now, then in zip(processor_times(), since or _STARTED, strict=True)
    )
    wanted = user + nice + system + sum(interrupts) + stolen
    return round(stolen / wanted, 3) if wanted else 0.0


def _forget(since: Sequence[int]) -> None:
    """Leave the time since then out of `stolen_share`: its measurements are not used."""
    for k, (now, then) in enumerate(zip(processor_times(), since, strict=True)):
        _STARTED[k] += now - then


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"


def sizes(size: float) -> str:
    """Bytes in MB, for tables."""
    return f"{size / 1e6:,.0f} MB"


@dataclass
class Report:
    """What a benchmark found."""

    benchmark: str  # name of the subcommand
    title: str  # the question it answers
    # settings, data: what was run on what
    settings: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    # the table; all rows have the same keys
    rows: list[dict[str, Any]] = field(default_factory=list)
    # further tables by their titles
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)  # the numbers that matter
    notes: list[str] = field(default_factory=list)  # what was timed, and how
    machine: dict[str, Any] = field(default_factory=machine_facts)

    def _end(self) -> None:
        """Add what is known only at the end; later calls change nothing."""
        self.machine.setdefault("stolen_share", stolen_share())

    def markdown(self) -> str:
        """The report as a Markdown section."""
        self._end()
        lines = [f"## {self.benchmark}: {self.title}", "", *_table(self.rows), ""]
        for title, rows in self.tables.items():
            lines += [f"{title}:", "", *_table(rows), ""]
        lines += [f"- {_words(name)}: **{_number(value)}**" for name, value in self.ratios.items()]
        lines += [f"- {note}" for note in self.notes]
        described = [("data", self.data), ("settings", self.settings), ("machine", self.machine)]
        lines += [f"- {name}: {_list(facts)}" for name, facts in described if facts]
        return "\n".join(lines) + "\n"

    def write(self, prefix: Path) -> None:
        """Write PREFIX.json and PREFIX.md."""
        self._end()
        prefix.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(self), separators=(",", ":")) + "\n"
        prefix.with_name(prefix.name + ".json").write_text(text, "utf-8")
        prefix.with_name(prefix.name + ".md").write_text(self.markdown(), "utf-8")


def _table(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    lines = [_line(map(_words, rows[0])), _line("---" for _ in rows[0])]
    return lines + [_line(map(_number, row.values())) for row in rows]


def _line(cells: Any) -> str:
    return "| " + " | ".join(cells) + " |"


def _list(facts: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{_words(k)} {sizes(v) if k.endswith('bytes') else _number(v)}" for k, v in facts.items()
    )


def _words(name: str) -> str:
    return name.replace("_", " ")


def _number(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, int):
        return f"{value:,}"
    if not isinstance(value, float):
        return str(value)
    if value and math.isfinite(value) and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3g}" if abs(value) < 1 else f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.1f}"
