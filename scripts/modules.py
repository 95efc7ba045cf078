"""List every module of the package: lines, what it is for, and who imports it.

    python -m scripts.modules

A module without importers is an entry point: the command line, the package itself, or a program
that another process runs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "sbm"


def name_of(path: Path) -> str:
    """``sbm/store/blocks.py`` -> ``sbm.store.blocks``."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, modules: set[str]) -> Iterator[str]:
    """Names of modules of ours that a file imports, compiled ones that it loads included."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in modules else node.module
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            name = node.value if ".kernels." in node.value else ""
            yield name if name in modules else ""


def purpose(path: Path) -> str:
    """First sentence of its docstring."""
    return (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split("\n")[0]


def table() -> Iterator[str]:
    """Yield the lines of the table, in the order of the tree."""
    paths = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}
    modules = set(paths)
    by = {name: set(imported(path, modules)) & modules - {name} for name, path in paths.items()}
    yield "| module | lines | imported by | what it is |"
    yield "|---|---:|---|---|"
    total = 0
    for name, path in paths.items():
        lines = len(path.read_text("utf-8").splitlines())
        total += lines
        users = sorted(user.removeprefix("sbm.") for user, uses in by.items() if name in uses)
        yield f"| {name} | {lines} | {', '.join(users) or '-'} | {purpose(path)} |"
    yield f"| {len(paths)} modules | {total} | | |"


if __name__ == "__main__":
    print("\n".join(table()))
