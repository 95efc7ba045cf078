"""Read prose from files, for the makers of data from plain text.

Inputs are files and folders. From a folder, the ``.txt``, ``.md``, ``.rst`` and ``.py`` files are
read, plain or compressed (``.gz``, ``.bz2``, ``.xz``, ``.zst``). From Python source, the docstrings
and comments are read. The default is the prose of the running Python installation.
"""

import argparse
import ast
import importlib.util
import io
import re
import sysconfig
import warnings
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

from sbm.errors import SbmError
from sbm.inputs.packed import is_packed
from sbm.inputs.text import Source, unpacked
from scripts.data.lines import MakeError

PROSE = (".txt", ".md", ".rst", ".py")
PIECE = 1 << 22  # characters handled at a time

# A sentence ends at . ! ? unless a lower-case letter follows ("e.g. this"), at a blank line and
# before an item of a list. Possessive, so that no text makes the search slower than linear.
SENTENCE_END = r"""[.!?](?=["'’”)\]*_`]*+\s++[^a-z\s])|\n(?=[^\S\n]*+(?:\n|[-*+•]\s))"""
END = re.compile(SENTENCE_END)
# Python's strings, matched only to be stepped over, or (group 1) a run of comment lines.
STRING_OR_COMMENT = re.compile(
    r'"""[^"\\]*+(?:(?:\\.|"(?!""))[^"\\]*+)*+"""'
    r"|'''[^'\\]*+(?:(?:\\.|'(?!''))[^'\\]*+)*+'''"
    r'|"[^"\\\n]*+(?:\\.[^"\\\n]*+)*+"'
    r"|'[^'\\\n]*+(?:\\.[^'\\\n]*+)*+'"
    r"|(#[^\n]*+(?:\n[ \t]*+#[^\n]*+)*+)",
    re.DOTALL,
)
COMMENT_MARK = re.compile(r"^[ \t]*#+[!:]?", re.MULTILINE)
DOCTEST = re.compile(r"^[ \t]*(?:>>>|\.\.\.).*$", re.MULTILINE)


def _kind(path: Path) -> str:
    """Return the suffix that tells the kind of text: that before a compression's."""
    return Path(path.stem if is_packed(path.name) else path.name).suffix.lower()


def _below(folder: Path, skip: Collection[str] = ()) -> list[Path]:
    """List the text files below a folder in sorted order, but for those in folders to skip."""
    return sorted(
        path for path in folder.rglob("*")
        if _kind(path) in PROSE and path.is_file()
        and not set(path.relative_to(folder).parts[:-1]) & set(skip)
    )  # fmt: skip


def list_files(inputs: Sequence[Path]) -> dict[Path, int]:
    """List the files to read, each once, with the number of the input that it is from.

    Raises `MakeError` if an input does not exist, or a folder has no text.
    """
    if not inputs:
        # Packages that lie within the standard library's folder may belong to another installation.
        stdlib = _below(Path(sysconfig.get_path("stdlib")), ("site-packages", "dist-packages"))
        return dict.fromkeys(stdlib + _below(Path(sysconfig.get_path("purelib"))), 0)
    files: dict[Path, int] = {}
    for number, entry in enumerate(inputs):
        if not entry.exists():
            raise MakeError(f"{entry}: no such file or folder")
        found = _below(entry) if entry.is_dir() else [entry]
        if not found:
            raise MakeError(f"no {', '.join(PROSE)} files in {entry}")
        for path in found:
            files.setdefault(path, number)
    return files


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield the docstrings of a module and of the classes and functions in it, at any depth."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node, clean=False) or ""
        # Definitions stand among statements only: walking expressions too would take far longer.
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, part, None)
            waiting += inner if isinstance(inner, list) else []


def _comments(source: str) -> Iterator[str]:
    """Yield the comments of Python source without their marks, comment lines in a row as one."""
    for match in STRING_OR_COMMENT.finditer(source):
        comment = match.group(1)
        if comment is None:
            continue
        line = source.rfind("\n", 0, match.start()) + 1
        first, _, others = comment.partition("\n")
        if others and source[line : match.start()].strip():
            # A comment behind code does not go on in the comment lines below it.
            comment = f"{first}\n\n{others}"
        yield COMMENT_MARK.sub("", comment)


def python_prose(source: bytes) -> str:
    """Extract the prose of Python source: docstrings without doctests, and comments.

    Raises `SyntaxError` or `ValueError` or `RecursionError` or `MemoryError` if it is not Python,
    does not decode or is nested too deeply.
    """
    text = importlib.util.decode_source(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # odd escapes and the like in code that is not ours
        tree = ast.parse(text)
    prose = [DOCTEST.sub("", docstring) for docstring in _docstrings(tree) if docstring]
    return "\n\n".join([*prose, *_comments(text)])


def _prose_of(path: Path) -> str:
    with unpacked(Source(str(path))) as stream:
        data = io.BufferedReader(stream).read()
    return python_prose(data) if _kind(path) == ".py" else data.decode("utf-8-sig")


def read_prose(files: dict[Path, int], inputs: Sequence[Path]) -> Iterator[tuple[Path, list[str]]]:
    """Yield files and their prose in pieces that end with a sentence.

    Below a folder, a file that does not decode, unpack or parse is skipped.

    Raises `MakeError` if a file cannot be read.
    """
    for path in tqdm(files, unit="file", disable=None, leave=False):
        try:
            text = _prose_of(path)
        except (SbmError, OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            if path in inputs or isinstance(error, OSError):
                raise MakeError(f"cannot read {path}: {error}") from error
            continue
        pieces, begin = [], 0
        while begin < len(text):
            end = END.search(text, begin + PIECE)
            stop = end.end() if end else len(text)
            pieces.append(text[begin:stop])
            begin = stop
        yield path, pieces


def prose_parser(name: str, description: str, test_fraction: float) -> argparse.ArgumentParser:
    """Return a parser with inputs, outputs, counts and seed."""
    parser = argparse.ArgumentParser(prog=f"scripts.data.{name}", description=description)
    parser.add_argument(
        "inputs", nargs="*", type=Path, metavar="INPUT",
        help="files, and folders of .txt, .md, .rst and .py, compressed or not "
        "(default: the prose of the running Python installation)",
    )  # fmt: skip
    parser.add_argument("-o", dest="out", type=Path, required=True, metavar="OUT.svm")
    parser.add_argument(
        "--test-out", type=Path, metavar="OUT.t.svm", help="write some of the rows here instead"
    )
    parser.add_argument(
        "--min-count", type=int, default=5, help="drop features in fewer training rows than this"
    )
    parser.add_argument("--test-fraction", type=float, default=test_fraction, help="for --test-out")
    parser.add_argument("--seed", type=int, default=0, help="of the shuffling")
    return parser


def parse_checked(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None, **least: int
) -> argparse.Namespace:
    """Parse arguments; exit with a usage error if they are invalid. ``least``: smallest values."""
    args = parser.parse_args(argv)
    for name, bound in {"min_count": 1, "seed": 0, **least}.items():
        value = getattr(args, name)
        if value is not None and value < bound:
            parser.error(f"--{name.replace('_', '-')} must be at least {bound}")
    if not 0.0 < args.test_fraction < 1.0:
        parser.error("--test-fraction must lie between 0 and 1")
    outputs = [path.resolve() for path in (args.out, args.test_out) if path is not None]
    if len(set(outputs)) < len(outputs):
        parser.error("-o and --test-out must not be the same file")
    if {path.resolve() for path in args.inputs} & set(outputs):
        parser.error("an INPUT must not be overwritten")
    return args
