"""Make a data set (LIBSVM text) from any plain text: which preposition stood at a place.

    python -m scripts.data.prep -o prep.svm --test-out prep.t.svm          # this Python's own prose
    python -m scripts.data.prep books/ news.txt.xz -o prep.svm --classes ten

Modelled on the third data set of Chang and Roth (KDD 2011). Each place in a sentence where one of
ten prepositions stands is a row; the preposition is taken away and is the class. A row's features,
all of value 1, are the words up to three places left and right of the gap, inside the sentence, and
pairs of them: neighbours on either side, and three pairs that straddle the gap. So a row has at
most one feature of each of 13 kinds. Words are compared in lower case, without punctuation; a word
counts as a preposition by its spelling alone (``to`` before a verb too).

Input are files and folders; of a folder the ``.txt``, ``.md``, ``.rst`` and ``.py`` files, also
compressed (``.gz``, ``.bz2``, ``.xz``, ``.zst``). Of Python source the docstrings and comments are
read. A sentence that occurs again counts once. The result depends on the input and the seed alone.
One summary line goes to stdout; the exit code is 0 (done), 1 (error) or 2 (usage).
"""

import argparse
import ast
import bz2
import codecs
import gzip
import importlib.util
import io
import lzma
import os
import re
import sys
import sysconfig
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np
import zstandard
from numpy.typing import NDArray
from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

PREPOSITIONS = ("of", "in", "to", "for", "on", "with", "at", "by", "from", "about")
REACH = 3  # words looked at on either side of the gap
# The kinds of features, by places counted from the gap: single words, then pairs of words.
WORDS = (-3, -2, -1, 1, 2, 3)
PAIRS = ((-3, -2), (-2, -1), (-1, 1), (1, 2), (2, 3), (-2, 1), (-1, 2))

PROSE = (".txt", ".md", ".rst", ".py")
PACKED = (".gz", ".bz2", ".xz", ".zst")
CHUNK = 1 << 22  # bytes of text held at a time
LONGEST = 1 << 23  # characters without an end of a sentence that are waited for
TAIL = 1 << 16  # characters searched for the last end of a sentence in a chunk
BATCH = 1 << 16  # rows written at a time
UNREADABLE = (
    UnicodeDecodeError,
    SyntaxError,
    EOFError,
    zlib.error,
    lzma.LZMAError,
    zstandard.ZstdError,
)

# A sentence ends at . ! ? unless a lower-case letter follows ("e.g. this"), at a blank line and
# before an item of a list. Possessive, so that no text makes the search slower than linear.
SENTENCE_END = r"""[.!?](?=["'’”)\]*_`]*+\s++[^a-z\s])|\n(?=[^\S\n]*+(?:\n|[-*+•]\s))"""
END = re.compile(SENTENCE_END)
TOKEN = re.compile(SENTENCE_END + r"|\w+(?:['’-]\w+)*")
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

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]
Taken = TypeVar("Taken")


class PrepError(Exception):
    """What stops the run, worded for the person who started it."""


class Vocabulary(dict[str, int]):
    """Number of each token as it is spelt: 0 ends a sentence, 1 to 10 are the prepositions.

    Looking up a new spelling numbers it, so that a list of tokens is numbered by ``map`` alone;
    spellings that differ in case, or in the kind of apostrophe, share the number.
    """

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(".!?\n", 0))
        self._words = {word: i for i, word in enumerate(PREPOSITIONS, 1)}

    def __missing__(self, spelling: str) -> int:
        word = spelling.lower().replace("’", "'")
        number = self._words.setdefault(word, len(self._words) + 1)
        self[spelling] = number
        return number


@dataclass(frozen=True)
class Places:
    """Places where a preposition stands.

    Parameters
    ----------
    window : ndarray of int32, shape (n, 7)
        The words at -3 ... 3 from the place, 0 outside the sentence; the middle column is the
        number of the preposition, 1 to 10.
    key : ndarray of uint64, shape (n,)
        Hash of the whole sentence and the place in it; equal for the same place of a sentence that
        occurs again.
    """

    window: Int32s
    key: UInt64s


@dataclass(frozen=True)
class Features:
    """Rows turned into feature ids.

    Parameters
    ----------
    ids : ndarray of int32, shape (n, 13)
        Feature of each kind, counted from 1, rising within a row; 0 where there is none.
    count : int
        Number of features.
    """

    ids: Int32s
    count: int


# --- Prose out of files ---------------------------------------------------------------------------


def base_suffix(path: Path) -> str:
    """Give the suffix that tells the kind of text: that before a compression's, if there is one."""
    suffixes = path.suffixes
    if suffixes and suffixes[-1].lower() in PACKED:
        suffixes.pop()
    return suffixes[-1].lower() if suffixes else ""


def files_below(folder: Path, skip: Sequence[str] = ()) -> list[Path]:
    """List the text files below a folder in sorted order.

    Parameters
    ----------
    folder : Path
        Where to look, at any depth; links to folders are not followed.
    skip : sequence of str, optional
        Names of folders left out.

    Returns
    -------
    list of Path
        Regular files with a suffix of `PROSE`, compressed or not.
    """
    found: list[Path] = []
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in skip]
        paths = (Path(root, name) for name in names)
        found += [path for path in paths if base_suffix(path) in PROSE and path.is_file()]
    return sorted(found)


def default_files() -> list[Path]:
    """List the text files of the running Python's standard library and installed packages."""
    # Packages that lie within the standard library's folder may belong to another installation.
    stdlib = files_below(Path(sysconfig.get_path("stdlib")), ("site-packages", "dist-packages"))
    return stdlib + files_below(Path(sysconfig.get_path("purelib")))


class ZstdFile(io.RawIOBase):
    """Bytes of a zstd file, of one frame or several; unlike the library's, it must be whole.

    Parameters
    ----------
    path : Path
        File to read.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._frame: Any = None
        self._packed = b""
        self._plain = memoryview(b"")

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def readinto(self, room: Any) -> int:
        """Fill in bytes; give how many, 0 at the end."""
        while not self._plain:
            block = self._packed or self._file.read(1 << 16)
            if not block:
                if self._frame is not None:
                    raise EOFError("Compressed file ended before the end of its last frame")
                return 0
            if self._frame is None:
                self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._plain = memoryview(self._frame.decompress(block))
            self._packed = b""
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data, None
        count = min(len(room), len(self._plain))
        room[:count] = self._plain[:count]
        self._plain = self._plain[count:]
        return count

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


def open_text(path: Path) -> BinaryIO:
    """Open a file for reading bytes, decompressed as its name says."""
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return cast(BinaryIO, gzip.open(path, "rb"))
    if suffix == ".bz2":
        return cast(BinaryIO, bz2.open(path, "rb"))
    if suffix == ".xz":
        return cast(BinaryIO, lzma.open(path, "rb"))
    if suffix == ".zst":
        return io.BufferedReader(ZstdFile(path))
    return path.open("rb")


def _last_end(text: str) -> int:
    """Give where a text can be cut without cutting a sentence; 0 if there is no such place yet."""
    begin = max(0, len(text) - TAIL)
    cut = max((match.end() for match in END.finditer(text, begin)), default=0)
    if cut == 0 and len(text) > LONGEST:  # no prose: cut anywhere rather than read on for ever
        cut = len(text)
    return cut


def text_chunks(stream: BinaryIO) -> Iterator[str]:
    """Read UTF-8 text in pieces that end with a sentence.

    Parameters
    ----------
    stream : binary file
        Read to its end, about `CHUNK` bytes at a time.

    Yields
    ------
    str
        Pieces; joined they are the text.

    Raises
    ------
    UnicodeDecodeError
        If it is not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    rest = ""
    while block := stream.read(CHUNK):
        text = rest + decoder.decode(block)
        cut = _last_end(text)
        if cut:
            yield text[:cut]
        rest = text[cut:]
    yield rest + decoder.decode(b"", final=True)


def _docstrings(tree: ast.Module) -> Iterator[str]:
    """Give the docstrings of a module and of the classes and functions in it, at any depth."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text is not None:
                yield text
        # Definitions stand among statements only: walking expressions too would take far longer.
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, part, None)
            if isinstance(inner, list):
                waiting += inner


def _comments(source: str) -> Iterator[str]:
    """Give the comments of Python source without their marks, comment lines in a row as one."""
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
    """Take the prose out of Python source: docstrings without doctests, and comments.

    Parameters
    ----------
    source : bytes
        A module, in the encoding it declares.

    Returns
    -------
    str
        Docstrings and comments, set apart by blank lines.

    Raises
    ------
    SyntaxError, UnicodeDecodeError
        If it is not Python or does not decode.
    """
    text = importlib.util.decode_source(source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # odd escapes and the like in code that is not ours
        try:
            tree = ast.parse(text)
        except ValueError as error:
            raise SyntaxError(str(error)) from error  # a null character
        except (RecursionError, MemoryError) as error:
            raise SyntaxError("nested too deeply") from error  # the parser's limits
    prose = [DOCTEST.sub("", docstring) for docstring in _docstrings(tree)]
    prose += _comments(text)
    return "\n\n".join(prose)


def prose_of(path: Path) -> Iterator[str]:
    """Read a file's prose in pieces that end with a sentence; see `python_prose` for ``.py``."""
    with open_text(path) as stream:
        if base_suffix(path) == ".py":
            yield python_prose(stream.read())
        else:
            yield from text_chunks(stream)


def read_each(
    files: Sequence[tuple[Path, bool]], take: Callable[[str], Taken]
) -> Iterator[list[Taken]]:
    """Read the prose of files, as listed by `list_files`, and take from it what is needed.

    Parameters
    ----------
    files : sequence of (Path, bool)
        Files, and whether to pass over one that does not decode, unpack or parse.
    take : callable
        Called with each piece of a file's prose; see `prose_of`.

    Yields
    ------
    list
        What was taken from the pieces of a file; nothing for a file that is passed over.

    Raises
    ------
    PrepError
        If a file cannot be read.
    """
    for path, tolerant in tqdm(files, unit="file", disable=None, leave=False):
        try:
            taken = [take(text) for text in prose_of(path)]
        except (*UNREADABLE, OSError) as error:
            # The decompressors word broken data as an OSError without a number; one with a number
            # comes from the system and is never passed over.
            if not tolerant or getattr(error, "errno", None) is not None:
                raise PrepError(f"cannot read {path}: {reason(error)}") from error
            continue  # nothing of a broken file counts
        yield taken


def reason(error: Exception) -> str:
    """Word an error of the libraries in one line."""
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8 text"
    if isinstance(error, SyntaxError):
        where = "" if error.lineno is None else f", line {error.lineno}"
        return f"not Python ({error.msg}{where})"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error) or type(error).__name__).replace("\n", " ")


# --- Places out of prose --------------------------------------------------------------------------


def _mix(z: UInt64s) -> UInt64s:
    """Scramble 64-bit numbers (the finalizer of splitmix64)."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def _place_keys(tokens: Int32s, places: Int64s) -> UInt64s:
    """Hash each place with the words of its sentence; `tokens` ends with a 0."""
    ends = np.flatnonzero(tokens == 0)
    starts = np.concatenate(([0], ends[:-1] + 1))
    at = np.arange(len(tokens), dtype=np.int64) - np.repeat(starts, ends - starts + 1)
    hashes = _mix((at.astype(np.uint64) << np.uint64(32)) + tokens.astype(np.uint64))
    sentences = np.add.reduceat(hashes, starts)
    sentence_of = np.searchsorted(ends, places)
    return _mix(sentences[sentence_of] + at[places].astype(np.uint64))


def find_places(text: str, vocabulary: Vocabulary) -> Places:
    """Find the prepositions of a text.

    Parameters
    ----------
    text : str
        Prose that begins and ends with a sentence.
    vocabulary : Vocabulary
        Numbers of the words; new words are added.

    Returns
    -------
    Places
        One for each preposition, in the order of the text.
    """
    numbers = map(vocabulary.__getitem__, TOKEN.findall(text))
    tokens = np.fromiter(numbers, dtype=np.int32)
    border = np.zeros(REACH, dtype=np.int32)
    tokens = np.concatenate((border, tokens, border))
    places = np.flatnonzero((tokens >= 1) & (tokens <= len(PREPOSITIONS)))
    window = np.zeros((len(places), 2 * REACH + 1), dtype=np.int32)
    window[:, REACH] = tokens[places]
    for side in (-1, 1):
        for step in range(side, side * (REACH + 1), side):
            # A 0 nearer to the place ends the sentence: beyond it all stays 0.
            inside = window[:, REACH + step - side] != 0
            window[:, REACH + step] = np.where(inside, tokens[places + step], 0)
    return Places(window, _place_keys(tokens, places))


def _join(parts: list[Places]) -> Places:
    """Put places together, of equal ones the first only."""
    window = np.concatenate([part.window for part in parts])
    key = np.concatenate([part.key for part in parts])
    first = np.unique(key, return_index=True)[1]
    first.sort()
    return Places(window[first], key[first])


def read_places(files: Sequence[tuple[Path, bool]]) -> tuple[Places, int]:
    """Find the prepositions in files.

    Parameters
    ----------
    files : sequence of (Path, bool)
        Files, and whether to pass over one that does not decode, unpack or parse.

    Returns
    -------
    places : Places
        Places in the order of the files; those of a sentence that occurs again only once.
    skipped : int
        Files passed over.

    Raises
    ------
    PrepError
        If a file cannot be read, or none has a preposition.
    """
    vocabulary = Vocabulary()
    parts: list[Places] = []
    skipped = len(files)
    for texts in read_each(files, lambda text: find_places(text, vocabulary)):
        parts += texts
        skipped -= 1
    if not sum(len(part.key) for part in parts):
        raise PrepError(f"no prepositions found in {len(files)} files ({skipped} unreadable)")
    return _join(parts), skipped


# --- Features out of places -----------------------------------------------------------------------


def feature_keys(window: Int32s) -> Iterator[Int64s]:
    """Give each row's feature of each kind as a number, one kind after the other.

    Parameters
    ----------
    window : ndarray of int32, shape (n, 7)
        As in `Places`.

    Yields
    ------
    ndarray of int64, shape (n,)
        The word of that kind, or the pair packed as ``a << 32 | b``; 0 where there is none.
    """
    for place in WORDS:
        yield window[:, REACH + place].astype(np.int64)
    for left, right in PAIRS:
        a = window[:, REACH + left].astype(np.int64)
        b = window[:, REACH + right].astype(np.int64)
        yield np.where((a != 0) & (b != 0), a << 32 | b, 0)


def number_features(window: Int32s, trained: int, min_count: int) -> Features:
    """Give numbers to the features that occur often enough in the training rows.

    Parameters
    ----------
    window : ndarray of int32, shape (n, 7)
        The rows, as in `Places`.
    trained : int
        The first so many rows are the training rows.
    min_count : int
        Least number of training rows a feature must occur in.

    Returns
    -------
    Features
        Features of all rows; the others than the training rows have none that is not in those.
    """
    kinds = len(WORDS) + len(PAIRS)
    ids = np.zeros((len(window), kinds), dtype=np.int32)
    base = 0
    # One kind at a time: the memory needed is that of a few columns, and since each kind has its
    # own range of ids, ids rise within a row.
    for kind, keys in enumerate(feature_keys(window)):
        distinct, counts = np.unique(keys[:trained], return_counts=True)
        kept = distinct[(counts >= min_count) & (distinct != 0)]
        if len(kept):
            at = np.minimum(np.searchsorted(kept, keys), len(kept) - 1)
            ids[:, kind] = np.where(kept[at] == keys, base + 1 + at, 0)
        base += len(kept)
    return Features(ids, base)


# --- Files out of features ------------------------------------------------------------------------


def write_rows(path: Path, ids: Int32s, labels: Int32s, names: Sequence[bytes]) -> int:
    """Write rows as LIBSVM text.

    Parameters
    ----------
    path : Path
        File to write; it appears when it is whole.
    ids : ndarray of int32, shape (n, k)
        Features, rising within a row; 0 is none.
    labels : ndarray of int32, shape (n,)
        Index into `names`.
    names : sequence of bytes
        Labels as they are written.

    Returns
    -------
    int
        Bytes written.

    Raises
    ------
    PrepError
        If it cannot be written.
    """
    count = int(ids.max(initial=0))
    # A row is a row of indices into this table, so that writing is one long join.
    table = [b"", *(b" %d:1" % i for i in range(1, count + 1)), *names, b"\n"]

    def lines() -> Iterator[bytes]:
        for begin in range(0, len(ids), BATCH):
            batch = ids[begin : begin + BATCH]
            label = labels[begin : begin + BATCH, None] + (count + 1)
            end = np.full_like(label, len(table) - 1)
            cells = np.hstack((label, batch, end)).ravel().tolist()
            yield b"".join(map(table.__getitem__, cells))

    return write_whole(path, lines())


def write_whole(path: Path, chunks: Iterable[bytes]) -> int:
    """Write a file that appears when it is whole; give its size, or raise a PrepError."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as out:
            out.writelines(chunks)
        size = part.stat().st_size
        os.replace(part, path)
    except OSError as error:
        raise PrepError(f"cannot write {path}: {reason(error)}") from error
    finally:
        part.unlink(missing_ok=True)
    return size


# --- Command line ---------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts.data.prep",
        description="Make a data set from plain text: which preposition stood at a place?",
    )
    add_common_options(parser, test_fraction=0.08)
    parser.add_argument(
        "--classes",
        choices=("binary", "ten"),
        default="binary",
        help="binary: 'of' (+1) or another (-1); ten: " + ", ".join(PREPOSITIONS),
    )
    parser.add_argument("--max-rows", type=int, help="use so many rows, drawn at random")
    return parser


def add_common_options(parser: argparse.ArgumentParser, *, test_fraction: float) -> None:
    """Add what a maker of data from plain text needs: inputs, outputs, counts and seed.

    Parameters
    ----------
    parser : ArgumentParser
        What they are added to; see `check_common_options`.
    test_fraction : float
        Share of the rows that ``--test-out`` gets by default.
    """
    parser.add_argument(
        "inputs",
        nargs="*",
        type=Path,
        metavar="INPUT",
        help="files, and folders of .txt, .md, .rst and .py, compressed or not "
        "(default: the prose of the Python installation this runs in)",
    )
    parser.add_argument("-o", dest="out", type=Path, required=True, metavar="OUT.svm")
    parser.add_argument(
        "--test-out", type=Path, metavar="OUT.t.svm", help="put some of the rows here instead"
    )
    parser.add_argument(
        "--min-count", type=int, default=5, help="drop features in fewer training rows than this"
    )
    parser.add_argument(
        "--test-fraction", type=float, default=test_fraction, help="with --test-out"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the shuffling")


def _check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End with a usage error where arguments make no sense, before any work is done."""
    check_common_options(parser, args)
    if args.max_rows is not None and args.max_rows < 1:
        parser.error("--max-rows must be at least 1")


def check_common_options(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End with a usage error where options of `add_common_options` make no sense.

    Parameters
    ----------
    parser : ArgumentParser
        Tells the error.
    args : Namespace
        What it has read.
    """
    if args.min_count < 1:
        parser.error("--min-count must be at least 1")
    if not 0.0 < args.test_fraction < 1.0:
        parser.error("--test-fraction must lie between 0 and 1")
    if args.seed < 0:
        parser.error("--seed must not be negative")
    outputs = [path.resolve() for path in (args.out, args.test_out) if path is not None]
    if len(set(outputs)) < len(outputs):
        parser.error("-o and --test-out must not be the same file")
    if {path.resolve() for path in args.inputs} & set(outputs):
        parser.error("an INPUT must not be overwritten")


def check_outputs(outputs: Sequence[Path | None]) -> None:
    """Refuse at once, with a PrepError, what could not be written at the end."""
    for path in outputs:
        if path is None:
            continue
        if not path.parent.is_dir():
            raise PrepError(f"cannot write {path}: there is no folder {path.parent}")
        if path.is_dir():
            raise PrepError(f"cannot write {path}: it is a folder")


def list_files(inputs: Sequence[Path]) -> list[tuple[Path, bool]]:
    """List the files to read, for `read_places`.

    Parameters
    ----------
    inputs : sequence of Path
        Files and folders; empty for the default text.

    Returns
    -------
    list of (Path, bool)
        Each file once, folders in sorted order; False for a file that was named itself.

    Raises
    ------
    PrepError
        If an input does not exist or a folder has no text.
    """
    if not inputs:
        return [(path, True) for path in default_files()]
    files: dict[Path, bool] = {}
    for entry in inputs:
        if entry.is_dir():
            found = files_below(entry)
            if not found:
                raise PrepError(f"no {', '.join(PROSE)} files below {entry}")
            for path in found:
                files.setdefault(path, True)
        elif entry.exists():
            files[entry] = False
        else:
            raise PrepError(f"cannot read {entry}: no such file or folder")
    return list(files.items())


def _draw(count: int, args: argparse.Namespace) -> tuple[Int64s, int]:
    """Shuffle row numbers; give them with the number of training rows, which come first."""
    order = np.random.default_rng(args.seed).permutation(count)[: args.max_rows]
    tested = 0
    if args.test_out is not None:
        tested = min(round(args.test_fraction * len(order)), len(order) - 1)
    return order, len(order) - tested


def _run(args: argparse.Namespace) -> str:
    """Do the work; give the summary line."""
    begin = time.perf_counter()
    check_outputs((args.out, args.test_out))
    files = list_files(args.inputs)
    places, skipped = read_places(files)
    order, trained = _draw(len(places.key), args)
    window = places.window[order]
    features = number_features(window, trained, args.min_count)

    labels = window[:, REACH] - 1
    names = [b"%d" % i for i in range(1, len(PREPOSITIONS) + 1)]
    if args.classes == "binary":
        labels = (labels != 0).astype(np.int32)
        names = [b"+1", b"-1"]
    outputs = [(args.out, slice(None, trained)), (args.test_out, slice(trained, None))]
    size = 0
    for path, rows in outputs:
        if path is not None:
            size += write_rows(path, features.ids[rows], labels[rows], names)

    counts = np.bincount(labels, minlength=len(names)).tolist()
    classes = " ".join(f"{name.decode()}:{n}" for name, n in zip(names, counts, strict=True))
    return (
        f"rows {len(order)} (train {trained}, test {len(order) - trained}), "
        f"features {features.count}, nonzeros {np.count_nonzero(features.ids)}, bytes {size}, "
        f"classes {classes}, files {len(files)} ({skipped} skipped), "
        f"seconds {time.perf_counter() - begin:.1f}"
    )


def main(argv: list[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : list of str, optional
        Arguments; those of the process by default.

    Returns
    -------
    int
        Exit code: 0 done, 1 error. Wrong usage raises ``SystemExit(2)``.
    """
    parser = _parser()
    args = parser.parse_args(argv)
    _check(parser, args)
    try:
        print(_run(args))
    except PrepError as error:
        print(f"scripts.data.prep: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
