"""Record which tests reach which statements of sbm, in any process, and keep it for the next time.

Tracing makes all Python code half again as slow, so the package marks by itself where it is: at the
begin of each block of statements, the code that is imported sets a byte of a file in memory. Child
processes share that file, and what was set before they are killed remains. A kernel is compiled, so
its call is marked; the functions it can call follow from the source.

`Places` finds the marks, `Recorder` works in pytest (``-p scripts.reach``), `Reach` has the result.
"""

import ast
import functools
import hashlib
import json
import marshal
import mmap
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / ".mutations_cache" / "reach.json"
FOLDER = "SBM_REACH"  # where the recording run leaves what its tests reach
MARKS = "SBM_REACH_MARKS"  # the file of marks that a process and its children set

# Loads marked code instead of the package's own; Python imports it before anything else.
HOOK = f"""
import builtins, marshal, mmap, os
from importlib.machinery import SourceFileLoader as Loader
folder = os.path.dirname(__file__)
with open(os.environ["{MARKS}"], "r+b") as file:
    builtins._sbm_reach = mmap.mmap(file.fileno(), 0)
plain = Loader.get_code
def get_code(self, name):
    path = os.path.join(folder, name + ".code")
    if not self.path.startswith({str(ROOT / "sbm") + os.sep!r}) or not os.path.exists(path):
        return plain(self, name)
    with open(path, "rb") as file:
        return marshal.load(file)
Loader.get_code = get_code
"""
# Appended to sbm/compiled/calls.py.
CALLS = """
def _marked(self, *values, _call=Kernel.__call__, _marks={marks!r}):
    _sbm_reach[_marks.get((self.module, self.name), 0)] = 1
    return _call(self, *values)
Kernel.__call__ = _marked
"""
_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


class Places:
    """The marks of the package: each is of a block of statements, or a function of a kernel."""

    def __init__(self, root: Path = ROOT, below: str = "sbm") -> None:
        self.n = 1  # 0 stands for nothing
        self.at: dict[tuple[str, int], int] = {}  # of each line
        self.of_file: dict[str, set[int]] = defaultdict(set)
        self.code: dict[str, ast.Module] = {}  # by the module's name, with marks
        self._file = ""
        self._users: dict[str, set[int]] = defaultdict(set)  # the functions that mention a name
        self._made: dict[str, set[str]] = defaultdict(set)  # names made of another one at import
        self._names: dict[tuple[str, int], set[str]] = {}  # that a line sets at import
        called: dict[int, set[str]] = {}
        kernels: dict[str, dict[str, int]] = {}
        imported: dict[str, set[str]] = {}
        for path in sorted((root / below).rglob("*.py")):
            self._file = path.relative_to(root).as_posix()
            tree = ast.parse(path.read_bytes())
            name = self._file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            if path.parent.name == "kernels":
                kernels[name] = found = {}
                froms = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
                imported[name] = {alias.name for node in froms for alias in node.names}
                for node in tree.body:
                    kernel = _kernel(node)
                    if kernel:
                        found[kernel] = mark = self._mark(node)
                        called[mark] = self._mention(node, mark)
                    else:
                        self._at_import(node)
            else:
                tree.body = [self._at_import(node) for node in tree.body]
                self.code[name] = tree
        self.kernels = {(m, f): mark for m, found in kernels.items() for f, mark in found.items()}
        if "sbm.compiled.calls" in self.code:
            text = CALLS.format(marks=self.kernels)
            self.code["sbm.compiled.calls"].body += ast.parse(text).body
        # Callers of each function of a kernel, directly or not.
        by_name: dict[str, set[int]] = defaultdict(set)
        for (_, function), mark in self.kernels.items():
            by_name[function].add(mark)
        self._callers: dict[int, set[int]] = defaultdict(set)
        for name, found in kernels.items():
            for mark in found.values():
                for word in called[mark]:
                    others = by_name[word] if word in imported[name] else set()
                    for callee in {found[word]} if word in found else others:
                        self._callers[callee].add(mark)

    def of(self, file: str, line: int) -> set[int]:
        """Return the marks of those who run a line, or use what it sets at import.

        If that is unknown, these are all marks of the file.
        """
        if (file, line) in self.at:
            found = {self.at[file, line]}
        else:
            names = _closure(self._names.get((file, line), set()), self._made)
            found = {mark for name in names for mark in self._users[name]}
        return _closure(found or self.of_file[file], self._callers)

    def write(self, folder: Path) -> None:
        """Write the code with marks, and the module that makes Python load it."""
        (folder / "sitecustomize.py").write_text(HOOK)
        for name, tree in self.code.items():
            path = ROOT / name.replace(".", "/")
            file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            code = compile(ast.fix_missing_locations(tree), str(file), "exec")
            (folder / f"{name}.code").write_bytes(marshal.dumps(code))

    def _mark(self, node: Any) -> int:
        """Make a mark for the lines of a node."""
        mark, self.n = self.n, self.n + 1
        self.of_file[self._file].add(mark)
        self._cover(node, mark)
        return mark

    def _cover(self, node: Any, mark: int) -> None:
        for line in range(node.lineno, node.end_lineno + 1):
            self.at[self._file, line] = mark

    def _mention(self, node: ast.AST, mark: int) -> set[str]:
        """Note which names a function mentions."""
        names = _words(node)
        for name in names:
            self._users[name].add(mark)
        return names

    def _at_import(self, node: Any) -> Any:
        """Add marks to the functions in a statement that runs at import."""
        if isinstance(node, _FUNCTION):
            if not any("cache" in ast.unparse(one) for one in node.decorator_list):
                entry = self._mark(node)  # the lines of its signature, too
                self._mention(node, entry)
                node.body = self._block(node.body, entry)
            return node
        nested = _blocks(node)
        if not nested:
            value = getattr(node, "value", None)
            targets = {word for target in _targets(node) for word in _words(target)}
            for line in range(node.lineno, node.end_lineno + 1):
                self._names[self._file, line] = targets
            for word in _words(value) if value is not None else ():
                self._made[word] |= targets
        for block in nested:
            block[:] = [self._at_import(one) for one in block]
        return node

    def _block(self, body: list[Any], entry: int = 0) -> list[Any]:
        """Return the statements of a block with marks: at its begin, and after each inner block."""
        marked: list[Any] = []
        mark = 0
        for node in body:
            if entry and not marked and isinstance(node, ast.Expr) and _is_text(node.value):
                marked.append(node)
                continue
            if not mark:
                mark = entry or self._mark(node)
                entry = 0
                statement = ast.parse(f"_sbm_reach[{mark}] = 1").body[0]
                for one in ast.walk(statement):
                    ast.copy_location(one, node)
                marked.append(statement)
            self._cover(node, mark)
            marked.append(node)
            if isinstance(node, _FUNCTION):
                node.body = self._block(node.body, self._mark(node))
                continue
            nested = _blocks(node)
            for block in nested:
                block[:] = self._block(block)
            if nested:
                mark = 0
        return marked


def _kernel(node: ast.stmt) -> str:
    """Return the name of a function of a kernel, or of one that is built from functions."""
    match node:
        case ast.FunctionDef(name=name) | ast.Assign(targets=[ast.Name(name)], value=ast.Call()):
            return name
    return ""


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _blocks(node: Any) -> list[list[Any]]:
    """Return the lists of statements in a statement."""
    parts = [node, *getattr(node, "handlers", []), *getattr(node, "cases", [])]
    lists = [getattr(part, name, []) for part in parts for name in ("body", "orelse", "finalbody")]
    return [one for one in lists if isinstance(one, list) and one]


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign | ast.AugAssign) else []


def _words(node: ast.AST) -> set[str]:
    """Return the names in a piece of code, and those of attributes."""
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return names | {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}


def _closure(start: set[Any], leads_to: dict[Any, set[Any]]) -> set[Any]:
    found, new = set(start), set(start)
    while new:
        new = {other for one in new for other in leads_to.get(one, ())} - found
        found |= new
    return found


# ---------------------------------------------------------------------------- in pytest


class Recorder:
    """Notes the marks that each test sets; a shared fixture's belong to all tests that use it."""

    def __init__(self, folder: str) -> None:
        import builtins

        self.path = Path(folder, f"{os.getpid()}.json")
        marks = self.path.with_suffix(".marks")
        marks.write_bytes(bytes(len(builtins._sbm_reach)))  # type: ignore[attr-defined]
        with marks.open("r+b") as file:
            self.marks = mmap.mmap(file.fileno(), 0)
        builtins._sbm_reach = self.marks  # type: ignore[attr-defined]
        os.environ[MARKS] = str(marks)
        self.fixtures: dict[str, int] = defaultdict(int)
        self.reached: dict[str, int] = defaultdict(int)
        self.test = ""
        self.seconds: dict[str, float] = defaultdict(float)
        self.failed: set[str] = set()

    def take(self) -> int:
        """Return the marks that are set, as bits, and clear them."""
        found = self.marks[:]
        self.marks[:] = bytes(len(found))
        return int(found[::-1].translate(_DIGITS), 2)

    def write(self) -> None:
        """Write what the tests of this process reached."""
        found = {test: (self.seconds[test], f"{bits:x}") for test, bits in self.reached.items()
                 if test not in self.failed}  # fmt: skip
        self.path.write_text(json.dumps(found))


_DIGITS = bytes([48, 49, *range(2, 256)])
_recorder: Recorder | None = None


def pytest_configure(config: Any) -> None:
    """Begin to record, in workers alone."""
    global _recorder
    if FOLDER in os.environ and hasattr(config, "workerinput"):
        _recorder = Recorder(os.environ[FOLDER])


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: Any) -> Iterator[None]:
    """Keep what a test reaches, and what its shared fixtures reached."""
    if _recorder is not None:
        _recorder.take()
        _recorder.test = item.nodeid
    yield
    if _recorder is not None:
        for bits in [_recorder.take(), *(_recorder.fixtures[name] for name in item.fixturenames)]:
            _recorder.reached[item.nodeid] |= bits


@pytest.hookimpl(hookwrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Iterator[None]:
    """Keep what a fixture that several tests share reaches."""
    if _recorder is None or fixturedef.scope == "function":
        yield
        return
    _recorder.reached[_recorder.test] |= _recorder.take()
    yield
    _recorder.fixtures[fixturedef.argname] |= _recorder.take()


def pytest_runtest_logreport(report: Any) -> None:
    """Add up how long a test takes; one that fails without any change is left out."""
    if _recorder is not None:
        if report.failed:
            _recorder.failed.add(report.nodeid)
        _recorder.seconds[report.nodeid] += report.duration


def pytest_sessionfinish() -> None:
    """Write what was found."""
    if _recorder is not None:
        _recorder.write()


# ------------------------------------------------------------------------------------- the result


@functools.cache
def _digest(*files: Path) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for file in files:
        digest.update(f"{file.relative_to(ROOT)} ".encode() + file.read_bytes())
    return digest.hexdigest()


class Reach:
    """Which tests reach a line.

    What is known of a file of tests is kept until it or the package changes.
    """

    def __init__(self, files: Sequence[str], jobs: int) -> None:
        self.places = Places()
        tests = ROOT / "tests"
        wanted = [ROOT / file for file in files] or sorted(tests.glob("test_*.py"))
        helpers = [path for path in sorted(tests.glob("*.py")) if path.name[:5] != "test_"]
        base = _digest(*sorted((ROOT / "sbm").rglob("*.py")), *helpers, Path(__file__))
        kept: dict[str, Any] = json.loads(KEPT.read_text()) if KEPT.exists() else {}
        known = kept.get("files", {}) if kept.get("base") == base else {}
        now = {path.relative_to(ROOT).as_posix(): _digest(path) for path in wanted}
        new = [file for file, digest in now.items() if known.get(file, [""])[0] != digest]
        if new:
            found = self._record(new, jobs)
            for file in new:
                own = {test: it for test, it in found.items() if test.split("::")[0] == file}
                known[file] = [now[file], own]
            KEPT.parent.mkdir(exist_ok=True)
            KEPT.write_text(json.dumps({"base": base, "files": known}))
        self.bits: dict[str, int] = {}
        self.seconds: dict[str, float] = {}
        for file in now:
            for test, (seconds, bits) in known[file][1].items():
                self.seconds[test], self.bits[test] = seconds, int(bits, 16)
        self._cost = {t: self.seconds[t] * bits.bit_count() for t, bits in self.bits.items()}

    def _record(self, files: Sequence[str], jobs: int) -> dict[str, Any]:
        """Run tests, and return of each that passes its seconds and the marks it sets."""
        found: dict[str, Any] = {}
        with tempfile.TemporaryDirectory(prefix="sbm-reach-") as name:
            folder = Path(name)
            self.places.write(folder)
            (folder / "marks").write_bytes(bytes(self.places.n))
            command = [
                sys.executable, "-m", "pytest", "-n", str(jobs), "--dist", "worksteal",
                "-p", "scripts.reach", *files,
            ]  # fmt: skip
            environment = {
                **os.environ, FOLDER: name, MARKS: str(folder / "marks"),
                "PYTHONPATH": f"{ROOT}{os.pathsep}{name}",
            }  # fmt: skip
            done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
            if done.returncode not in (0, 1, 5):  # 1: tests failed, 5: there are none
                raise RuntimeError("the tests could not be run")
            for file in folder.glob("*.json"):
                found |= json.loads(file.read_text())
        return found

    def of(self, file: str, line: int) -> list[str]:
        """Return the tests that reach a line: first the quick ones that reach little else."""
        marks = sum(1 << mark for mark in self.places.of(file, line))
        return sorted(
            (t for t, bits in self.bits.items() if bits & marks), key=self._cost.__getitem__
        )
