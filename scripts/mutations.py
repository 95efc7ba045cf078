"""Change the package in one place at a time and find the test that fails.

    python -m scripts.mutations --seed 1 -o scripts/results/mutations    # 150 changes
    python -m scripts.mutations -n 20 --jobs 1 --in sbm/store --tests tests/test_blocks.py

Places are found in syntax trees: comparisons, arithmetic, conditions, constants, dropped calls,
raises and updates, results, functions.

First the tests run once to record which of them reach which line (see `scripts.reach`). Then each
mutation is applied to a copy of the tree and the tests that reach its line run there, the quickest
that reach little else first, until one fails.
A mutation that no test notices means a missing test or unused code. A test that notices one must
pass in the copy without it.
"""

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from pathlib import Path
from queue import Queue
from typing import Any

from sbm.compiled import cache
from scripts.reach import Reach

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = (".git", ".venv", ".*_cache", ".hypothesis", "*.pyc", "results")
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+?)(?:\[| - |$)", re.MULTILINE)
REASON = re.compile(r"^E +(.+)$", re.MULTILINE)
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
                other = number + 1 if abs(number) < 100 else 2 * number
                yield "constant", change(node, repr(other))
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


# ------------------------------------------------------------------------------------ running


def run(
    mutations: Sequence[Mutation], tests: Sequence[str], jobs: int = JOBS, most: float = inf
) -> dict[Mutation, str]:
    """Apply mutations one by one to copies of the tree; return the first test that failed of each.

    It is empty if no test failed. The tests of a mutation end after `most` seconds, as they were
    recorded.
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
            everyone = names = reach.of(mutation.file, mutation.line)
            begin = time.monotonic()
            sums = accumulate(reach.seconds[name] for name in names)
            names = [name for name, total in zip(names, sums, strict=True) if total <= most]
            n, test = len(names), ""
            try:
                while names:
                    limit = 120 + 5 * sum(reach.seconds[name] for name in names)
                    mutation.apply(copy)
                    try:
                        test = _first_failure(copy, names, limit)
                    finally:
                        (copy / mutation.file).write_bytes(whole)
                    if "::" not in test or not _first_failure(copy, [test], limit):
                        break
                    names = [name for name in names if name.split("[")[0] != test]
                    print(f"{test} fails without {mutation.name!r}, too", file=sys.stderr)
                    test = ""
            finally:
                copies.put(copy)
            found[mutation] = test
            what = test or f"NOT NOTICED by {n} of {len(everyone)} tests"
            seconds = time.monotonic() - begin
            print(f"{mutation.name}: {what} ({seconds:.0f} s)", file=sys.stderr, flush=True)

        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(attempt, mutations))
    return found


def _copy(root: Path, target: Path) -> None:
    """Copy what tests need, machine code included: unbroken kernels are not compiled again."""
    shutil.copytree(root, target, ignore=shutil.ignore_patterns(*LEFT_OUT))
    if (root.parent / "shared").exists():  # reference sets that some tests read
        (target.parent / "shared").symlink_to(root.parent / "shared")
    if cache.folder().is_dir():  # what changed kernels leave must not displace others' code
        shutil.copytree(cache.folder(), target.parent / "cache")


def _first_failure(tree: Path, tests: Sequence[str], limit: float) -> str:
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
    environment = {
        **os.environ, "PYTHONPATH": str(tree), cache.FOLDER: str(tree.parent / "cache")
    }  # fmt: skip
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, check=False,
            timeout=limit,
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
    parser.add_argument("--tests", nargs="+", default=[], metavar="FILE", help="run only these")
    parser.add_argument("--most", type=float, default=inf, help="seconds of tests per change")
    args = parser.parse_args(argv)
    drawn = draw(args.number, args.seed, args.below)
    found = run([m for m in drawn if args.only in m.name], args.tests, args.jobs, args.most)
    text = report_of(found)
    print(text, end="")
    if args.output is not None:
        args.output.with_suffix(".md").write_text(text, "utf-8")
    return 0 if all(found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
