"""Change the package in one place at a time and find the test that fails.

    python -m scripts.mutations --seed 1 -o scripts/results/mutations    # 150 changes
    python -m scripts.mutations -n 20 --jobs 1 --in sbm/store --tests tests/test_blocks.py

Places are found in syntax trees: comparisons, arithmetic, conditions, constants, dropped calls,
raises and updates, results, functions.

First the tests run once to record which of them reach which line. Then each mutation is applied to
a copy of the tree and the tests that reach its line run there, the quickest first, until one fails.
A mutation that no test notices means a missing test or unused code. A test that notices one must
pass in the copy without it.
"""

import argparse
import ast
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = (".git", ".venv", ".*_cache", ".hypothesis", "*.pyc", "results")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?)(?:\[| - |$)", re.MULTILINE)
REASON = re.compile(r"^E +(.+)$", re.MULTILINE)
RECORD = "SBM_MUTATIONS_RECORD"  # where the recording run leaves what its tests reach
LIMIT = 600  # seconds for the tests of one mutation; one that runs longer hangs, and is noticed
JOBS = 2  # by default


@dataclass(frozen=True)
class Mutation:
    """A change in one place."""

    name: str  # the line and the change
    file: str  # relative to the top of the tree
    line: int  # from 1
    begin: int  # the bytes of the file that `new` replaces
    end: int
    new: str

    def apply(self, root: Path) -> None:
        """Change the file in a tree."""
        path = root / self.file
        whole = path.read_bytes()
        path.write_bytes(whole[: self.begin] + self.new.encode() + whole[self.end :])


def _spans_in(data: bytes) -> Callable[[Any], tuple[int, int]]:
    """Return a function of a node that finds its first byte in a file and the one after."""
    starts = [0, *(k + 1 for k, byte in enumerate(data) if byte == 10)]

    def span(node: Any) -> tuple[int, int]:
        first = starts[node.lineno - 1] + node.col_offset
        return first, starts[node.end_lineno - 1] + node.end_col_offset

    return span


# What each operator becomes.
_OTHER = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is", ast.Add: "-",
    ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*", ast.And: "or",
    ast.Or: "and", ast.BitAnd: "|", ast.BitOr: "&", ast.LShift: ">>", ast.RShift: "<<",
}  # fmt: skip
_SWAPPED = {
    "min": "max",
    "max": "min",
    "zeros": "ones",
    "ones": "zeros",
    "any": "all",
    "all": "any",
}


def draw(n: int, seed: int, below: Sequence[str] = ("sbm",), root: Path = ROOT) -> list[Mutation]:
    """Draw random changes, of each kind equally many as far as there are.

    Constants are one kind of many, so a plain draw would be mostly of them.
    """
    choose = random.Random(seed)
    kinds: dict[str, list[Mutation]] = {}
    for top in below:
        for file in [root / top] if (root / top).is_file() else sorted((root / top).rglob("*.py")):
            for kind, mutation in _changes(file, file.relative_to(root).as_posix()):
                kinds.setdefault(kind, []).append(mutation)
    for found in kinds.values():
        choose.shuffle(found)
    drawn: list[Mutation] = []
    while len(drawn) < n and any(kinds.values()):
        drawn += [found.pop() for found in kinds.values() if found]
    return drawn[:n]


def _changes(path: Path, name: str) -> Iterator[tuple[str, Mutation]]:
    """Yield the kind and the change for each place of a file that allows one."""
    data = path.read_bytes()
    span = _spans_in(data)

    def text(node: Any) -> str:
        return data[slice(*span(node))].decode()

    def change(node: Any, new: str, part: tuple[int, int] | None = None) -> Mutation:
        begin, end = part or span(node)
        line = data[:begin].count(b"\n") + 1
        old = " ".join(data[begin:end].decode().split())[:60]
        return Mutation(f"{name}:{line} {old} -> {new}", name, line, begin, end, new)

    def sign(left: Any, right: Any, operator: Any) -> Iterator[tuple[str, Mutation]]:
        begin, end = span(left)[1], span(right)[0]
        word = re.search(r"not in|is not|[a-z]+|[^\s\w()#\\]+", data[begin:end].decode())
        if type(operator) in _OTHER and word is not None and word[0] != ",":
            first = begin + len(data[begin:end].decode()[: word.start()].encode())
            part = first, first + len(word[0].encode())
            kind = "comparison" if isinstance(operator, ast.cmpop) else "arithmetic"
            yield kind, change(left, _OTHER[type(operator)], part)

    for node in _nodes(ast.parse(data)):
        match node:
            case ast.Constant(value=bool()):
                yield "constant", change(node, str(not node.value))
            case ast.Constant(value=int() | float() as number):
                yield "constant", change(node, repr(number + 1))
            case ast.Compare(comparators=[right]):
                yield from sign(node.left, right, node.ops[0])
            case ast.BinOp():
                yield from sign(node.left, node.right, node.op)
            case ast.BoolOp():
                yield from sign(node.values[0], node.values[1], node.op)
            case ast.UnaryOp(op=ast.Not()):
                yield "condition", change(node, f"bool({text(node.operand)})")
            case ast.If() | ast.While() | ast.IfExp():
                yield "condition", change(node.test, f"(not ({text(node.test)}))")
            case ast.Expr(value=ast.Call()):
                yield "call", change(node, "pass")
            case ast.Raise() | ast.AugAssign():
                yield "statement", change(node, "pass")
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield "result", change(value, "None")
            case ast.Call(func=ast.Name(id=word)) if word in _SWAPPED:
                yield "function", change(node.func, _SWAPPED[word])
            case ast.Call(func=ast.Attribute(attr=word) as func) if word in _SWAPPED:
                end = span(func)[1]
                yield "function", change(func, _SWAPPED[word], (end - len(word), end))


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes that run, so without annotations, decorators and constants of `__all__`."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_comment"):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _nodes(child)


# ------------------------------------------------------------------- which tests reach which line


class _Recorder:
    """Notes the lines and kernels that each test reaches, in a worker of pytest."""

    def __init__(self, folder: str) -> None:
        import coverage

        from sbm.compiled.calls import Kernel

        self.path = Path(folder) / f"{os.getpid()}.json"
        self.coverage = coverage.Coverage(
            data_file=None, source_pkgs=["sbm"], omit=["*/kernels/*"], config_file=False
        )
        self.coverage.start()
        self.test = ""
        self.kernels: dict[str, set[str]] = defaultdict(set)
        self.seconds: dict[str, float] = {}
        self.processes: set[str] = set()
        self.failed: set[str] = set()
        call = Kernel.__call__

        def noted(kernel: Any, *values: Any) -> Any:
            self.kernels[kernel.module].add(self.test)
            return call(kernel, *values)

        Kernel.__call__ = noted  # type: ignore[method-assign, assignment]

    def begin(self, item: Any) -> None:
        self.test = item.nodeid
        self.coverage.switch_context(self.test)
        if item.get_closest_marker("process") is not None:
            self.processes.add(self.test)

    def write(self) -> None:
        from sbm.compiled.processor import sources

        self.coverage.stop()
        data = self.coverage.get_data()
        reached: dict[str, dict[int, list[str]]] = {
            Path(file).relative_to(ROOT).as_posix(): data.contexts_by_lineno(file)
            for file in data.measured_files()
        }
        kernels: dict[str, set[str]] = defaultdict(set)
        for module, tests in self.kernels.items():
            if not module.startswith("sbm."):  # one that a test made
                continue
            for source in sources(module):
                kernels[source.relative_to(ROOT).as_posix()] |= tests
        seconds = {test: s for test, s in self.seconds.items() if test not in self.failed}
        found = {
            "lines": reached, "seconds": seconds, "processes": sorted(self.processes),
            "kernels": {file: sorted(tests) for file, tests in kernels.items()},
        }  # fmt: skip
        self.path.write_text(json.dumps(found))


_recorder: _Recorder | None = None


def pytest_configure(config: Any) -> None:
    """Begin to record, in workers alone."""
    global _recorder
    if RECORD in os.environ and hasattr(config, "workerinput"):
        _recorder = _Recorder(os.environ[RECORD])


def pytest_runtest_protocol(item: Any) -> None:
    """Note whose lines these are."""
    if _recorder is not None:
        _recorder.begin(item)


def pytest_runtest_logreport(report: Any) -> None:
    """Add up how long a test takes; one that fails without any change is left out."""
    if _recorder is not None:
        if report.failed:
            _recorder.failed.add(report.nodeid)
        before = _recorder.seconds.get(report.nodeid, 0.0)
        _recorder.seconds[report.nodeid] = before + report.duration


def pytest_sessionfinish() -> None:
    """Write what was found."""
    if _recorder is not None:
        _recorder.write()


class Reach:
    """Which tests reach a line, the quickest first."""

    def __init__(self, tests: Sequence[str], jobs: int = JOBS) -> None:
        self.lines: dict[tuple[str, int], set[str]] = defaultdict(set)
        self.kernels: dict[str, set[str]] = defaultdict(set)
        self.seconds: dict[str, float] = {}
        self.processes: set[str] = set()
        with tempfile.TemporaryDirectory(prefix="sbm-mutations-") as folder:
            command = [
                sys.executable, "-m", "pytest", "-n", str(jobs), "-p", "scripts.mutations", *tests,
            ]  # fmt: skip
            environment = {**os.environ, RECORD: folder, "PYTHONPATH": str(ROOT)}
            done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
            if done.returncode > 1:  # 1: tests failed
                raise RuntimeError("the tests could not be run")
            for file in Path(folder).glob("*.json"):
                self._add(json.loads(file.read_text()))

    def _add(self, found: dict[str, Any]) -> None:
        for file, lines in found["lines"].items():
            for line, names in lines.items():
                self.lines[file, int(line)].update(names)
        for file, names in found["kernels"].items():
            self.kernels[file].update(names)
        self.seconds.update(found["seconds"])
        self.processes.update(found["processes"])

    def of(self, mutation: Mutation) -> list[str]:
        """Return the tests that reach a mutation's line; of a constant's line, those of its file.

        Lines of a module's or a class's body run at import, so for no test in particular. What
        tests of processes reach is not recorded: they come last.
        """
        tests = self.kernels[mutation.file] | self.lines[mutation.file, mutation.line] - {""}
        if not tests:
            tests = {t for (file, _), names in self.lines.items() if file == mutation.file
                     for t in names if t}  # fmt: skip
        order = sorted(self.seconds, key=lambda test: self.seconds[test])
        found = [test for test in order if test in tests - self.processes]
        return found + [test for test in order if test in self.processes]


# ------------------------------------------------------------------------------------ running


def run(
    mutations: Sequence[Mutation], tests: Sequence[str], jobs: int = JOBS
) -> dict[Mutation, str]:
    """Apply mutations one by one to copies of the tree; return the first test that failed of each.

    It is empty if no test failed.
    """
    reach = Reach(tests, jobs)
    found: dict[Mutation, str] = {}
    with tempfile.TemporaryDirectory(prefix="sbm-mutations-") as folder:
        copies: Queue[Path] = Queue()
        for k in range(jobs):
            _copy(ROOT, Path(folder, str(k), "tree"))
            copies.put(Path(folder, str(k), "tree"))

        def attempt(mutation: Mutation) -> None:
            copy = copies.get()
            whole = (copy / mutation.file).read_bytes()
            try:
                names = reach.of(mutation)
                mutation.apply(copy)
                try:
                    found[mutation] = test = _first_failure(copy, names)
                finally:
                    (copy / mutation.file).write_bytes(whole)
                if "::" in test and _first_failure(copy, [test]):
                    raise RuntimeError(f"{test} fails without {mutation.name!r}, too")
            finally:
                copies.put(copy)
            what = found[mutation] or f"NOT NOTICED by {len(names)} tests"
            print(f"{mutation.name}: {what}", file=sys.stderr, flush=True)

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(attempt, mutations))
    return found


def _copy(root: Path, target: Path) -> None:
    """Copy what tests need, machine code included: unbroken kernels are not compiled again."""
    shutil.copytree(root, target, ignore=shutil.ignore_patterns(*LEFT_OUT))
    if (root.parent / "shared").exists():  # reference sets that some tests read
        (target.parent / "shared").symlink_to(root.parent / "shared")


def _first_failure(tree: Path, tests: Sequence[str]) -> str:
    """Return the first test that fails and print the reason; empty if all pass, or there is none.

    Raises `RuntimeError` if the tests could not be run.
    """
    if not tests:
        return ""
    names = tree.parent / "names"
    names.write_text("\n".join(tests))
    command = [
        sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"@{names}",
        "-o", "timeout=100",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, check=False,
            timeout=LIMIT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "(does not end)"
    failed = FAILED.search(done.stdout)
    if done.returncode == 0:
        return ""
    if failed is None:  # nothing can be imported any more, or the process died
        last = (done.stderr.strip() or done.stdout.strip() or "(died)").splitlines()[-1]
        return f"({last[:80]})"
    reason = REASON.search(done.stdout)
    print(f"{failed[1]}: {reason[1] if reason else ''}", file=sys.stderr, flush=True)
    return failed[1]


def report_of(found: dict[Mutation, str]) -> str:
    """Return a table of mutations and the tests that notice them."""
    noticed = sum(map(bool, found.values()))
    lines = [
        f"# Mutations: {noticed} of {len(found)} noticed", "",
        "One change at a time, and the first test that fails.", "",
        "| change | file | noticed by |", "|---|---|---|",
    ]  # fmt: skip
    for m, noticing in found.items():
        test = noticing.removeprefix("tests/").replace("::", ", ")
        name = m.name.replace("|", "\\|")
        lines.append(f"| `{name}` | `{m.file}` | {f'`{test}`' if test else '**no test**'} |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run mutations; return 1 if one was not noticed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("-o", "--output", type=Path, help="write OUTPUT.md")
    parser.add_argument("--only", default="", help="mutations whose name contains this")
    parser.add_argument("-n", dest="number", type=int, default=150, help="number of changes")
    parser.add_argument("--jobs", type=int, default=JOBS, help="number of processes")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    parser.add_argument("--in", dest="below", nargs="+", default=["sbm"], help="draw from these")
    parser.add_argument("--tests", nargs="+", default=[], help="for pytest")
    args = parser.parse_args(argv)
    drawn = draw(args.number, args.seed, args.below)
    found = run([m for m in drawn if args.only in m.name], args.tests, args.jobs)
    text = report_of(found)
    print(text, end="")
    if args.output is not None:
        args.output.with_suffix(".md").write_text(text, "utf-8")
    return 0 if all(found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
