"""Make a data set of many classes (LIBSVM text) from any plain text: which document is this from.

    python -m scripts.data.trigrams -o tri.svm --test-out tri.t.svm        # this Python's own prose
    python -m scripts.data.trigrams books/ news.txt.xz -o tri.svm --values tfidf --min-rows 50
    python -m scripts.data.trigrams spam/ mail/ -o spam.svm --values tfidf --classes first

A document is a file, and a class: 1, 2, ... in the order of the files that have enough rows
(``--min-rows``; ``--max-classes`` takes those with the most). With ``--classes inputs`` all files
of an input (a folder) are one document; ``first`` asks whether a row is from the first input (+1)
or from another (-1). A row is a passage of a document: as few whole sentences as have
``--min-chars`` characters, cut at a blank where they have more than ``--max-chars``. Text is
lower-cased and all white space is one blank. A sentence that occurs again, in whatever document,
counts once, so that neither licences nor copies of a file give anything away.
Features are the trigrams of characters of the passage, numbered in the order of their characters;
those in fewer than ``--min-count`` training rows are dropped. Values are 1, or (``--values tfidf``)
(1 + ln n) ln(1 + N / N') for a trigram that occurs n times, and in N' of N training rows, scaled so
that each row has length 1 and rounded to 0.00001. With ``--test-out`` a random tenth of the rows of
each class, up to rounding, goes there; every class keeps training rows.

Input are files and folders; of a folder the ``.txt``, ``.md``, ``.rst`` and ``.py`` files, also
compressed (``.gz``, ``.bz2``, ``.xz``, ``.zst``). Of Python source the docstrings and comments are
read. The result depends on the input and the seed alone. One summary line goes to stdout; the exit
code is 0 (done), 1 (error) or 2 (usage).
"""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scripts.data.prep import (
    END,
    PrepError,
    add_common_options,
    check_common_options,
    check_outputs,
    list_files,
    read_each,
    write_whole,
)

BATCH = 1 << 10  # most passages looked at together
CODES = 0x110000  # code points there are
UNIT = 100_000  # values are whole multiples of 1 / UNIT

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]


@dataclass(frozen=True)
class Passages:
    """Rows as text.

    Parameters
    ----------
    texts : list of str
        Passages.
    labels : ndarray of int64, shape (len(texts),)
        Number of the document each is from, from 0.
    """

    texts: list[str]
    labels: Int64s


@dataclass(frozen=True)
class Trigrams:
    """What occurs in a batch of passages: each trigram of each passage once.

    Parameters
    ----------
    rows : ndarray of int64, shape (n,)
        Passage, from 0; never falls.
    keys : ndarray of int64, shape (n,)
        Trigram as `Alphabet` packs it; rises within a passage.
    times : ndarray of int64, shape (n,)
        How often it occurs there.
    """

    rows: Int64s
    keys: Int64s
    times: Int64s


# --- Passages out of documents --------------------------------------------------------------------


def sentences_of(text: str) -> list[str]:
    """Cut a text into sentences, in lower case and with single blanks; none is empty."""
    ends = [0, *(match.end() for match in END.finditer(text)), len(text)]
    pieces = (text[begin:end] for begin, end in pairwise(ends))
    sentences = (" ".join(piece.lower().split()) for piece in pieces)
    return [sentence for sentence in sentences if sentence]


def passages_of(sentences: Iterable[str], least: int, most: int) -> Iterator[str]:
    """Put sentences together to passages of `least` to `most` characters.

    Parameters
    ----------
    sentences : iterable of str
        With single blanks.
    least, most : int
        A passage ends with the sentence that brings it to `least`. Above `most` it ends at the last
        blank that leaves between the two, or within a word if there is none.

    Yields
    ------
    str
        Passages. What is left at the end and too short is no passage.
    """
    held = ""
    for sentence in sentences:
        held = f"{held} {sentence}" if held else sentence
        begin = 0
        while len(held) - begin > most:
            end = held.rfind(" ", begin + least, begin + most + 1)
            if end < 0:
                end = begin + most
            yield held[begin:end]
            begin = end + (held[end] == " ")
        held = held[begin:]
        if len(held) >= least:
            yield held
            held = ""


def read_passages(
    files: Sequence[tuple[Path, bool]], least: int, most: int, seen: set[bytes] | None = None
) -> tuple[Passages, int]:
    """Read files and cut them into passages.

    Parameters
    ----------
    files : sequence of (Path, bool)
        As listed by `list_files`.
    least, most : int
        Characters of a passage.
    seen : set of bytes, optional
        Digests of sentences that count no more; those of these files are added.

    Returns
    -------
    passages : Passages
        In the order of the files.
    skipped : int
        Files passed over.

    Raises
    ------
    PrepError
        If a file cannot be read.
    """
    seen = set() if seen is None else seen

    def new(sentence: str) -> bool:
        # Escapes in docstrings can make characters that are none: lone surrogates.
        digest = blake2b(sentence.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        known = len(seen)
        seen.add(digest)
        return len(seen) > known

    texts: list[str] = []
    counts: list[int] = []
    for pieces in read_each(files, sentences_of):
        known = len(texts)
        texts += passages_of(filter(new, chain.from_iterable(pieces)), least, most)
        counts.append(len(texts) - known)
    return Passages(texts, np.repeat(np.arange(len(counts)), counts)), len(files) - len(counts)


def read_inputs(inputs: Sequence[Path], least: int, most: int) -> tuple[Passages, int, int]:
    """Read inputs as `read_passages`, each of them as one document.

    Parameters
    ----------
    inputs : sequence of Path
        Files and folders; a file below two of them is read with the first one.
    least, most : int
        Characters of a passage.

    Returns
    -------
    passages : Passages
        In the order of the inputs, whose numbers are their labels.
    read, skipped : int
        Files there were, and those of them that were passed over.

    Raises
    ------
    PrepError
        If an input does not exist or a file cannot be read.
    """
    seen: set[bytes] = set()
    known: set[Path] = set()
    texts: list[str] = []
    labels, skipped = [], 0
    for number, entry in enumerate(inputs):
        files = [file for file in list_files([entry]) if file[0] not in known]
        known.update(path for path, _ in files)
        found, broken = read_passages(files, least, most, seen)
        texts += found.texts
        labels.append(np.full(len(found.texts), number, np.int64))
        skipped += broken
    return Passages(texts, np.concatenate(labels)), len(known), skipped


def choose_classes(passages: Passages, min_rows: int, max_classes: int | None) -> Passages:
    """Keep the documents that have enough passages, and number them anew.

    Parameters
    ----------
    passages : Passages
        Of all documents.
    min_rows : int
        Least number of passages of a document.
    max_classes : int or None
        Keep so many documents at most: those with the most passages, the earlier of equal ones.

    Returns
    -------
    Passages
        Of the documents that are kept, numbered in their old order.

    Raises
    ------
    PrepError
        If there are fewer than two.
    """
    counts = np.bincount(passages.labels)
    order = np.argsort(-counts, kind="stable")
    chosen = np.sort(order[counts[order] >= min_rows][:max_classes])
    if len(chosen) < 2:
        raise PrepError(
            f"found {len(chosen)} documents with at least {min_rows} passages where 2 or more are "
            "needed: give more text, or a smaller --min-rows or --min-chars"
        )
    numbers = np.full(len(counts), -1)
    numbers[chosen] = np.arange(len(chosen))
    labels = numbers[passages.labels]
    kept = np.flatnonzero(labels >= 0)
    return Passages([passages.texts[row] for row in kept.tolist()], labels[kept])


def hold_out(labels: Int64s, fraction: float, seed: int) -> tuple[Int64s, int]:
    """Shuffle rows, and draw some of each class as test rows.

    Parameters
    ----------
    labels : ndarray of int64, shape (n,)
        Classes, from 0.
    fraction : float
        Share of the test rows in each class, rounded up or down at random.
    seed : int
        Of both.

    Returns
    -------
    order : ndarray of int64, shape (n,)
        Row numbers, those of the training rows first.
    trained : int
        Number of training rows, at least one of each class that has rows.
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    counts = np.bincount(labels)
    tested = np.floor(counts * fraction + rng.random(len(counts))).astype(np.int64)
    tested = np.minimum(tested, np.maximum(counts - 1, 0))
    # Place of each row among those of its class, in the shuffled order.
    by_class = np.argsort(labels[order], kind="stable")
    place = np.empty(len(order), np.int64)
    place[by_class] = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    held = place < tested[labels[order]]
    return np.concatenate((order[~held], order[held])), len(order) - int(tested.sum())


# --- Trigrams out of passages ---------------------------------------------------------------------


def _codes(texts: Sequence[str]) -> NDArray[np.uint32]:
    """Give the code points of all characters of texts."""
    return np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), dtype="<u4")


class Alphabet:
    """The characters of passages, numbered in their order, and trigrams packed as whole numbers.

    Parameters
    ----------
    texts : sequence of str
        All passages.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        seen = np.zeros(CODES, dtype=bool)
        for begin in range(0, len(texts), BATCH):
            seen[_codes(texts[begin : begin + BATCH])] = True
        self._numbers = np.cumsum(seen, dtype=np.int64) - 1
        self._bits = max(1, int(self._numbers[-1]).bit_length())
        # Passage and trigram go into one number of 63 bits.
        self.batch = min(BATCH, 1 << (63 - 3 * self._bits))

    def trigrams(self, texts: Sequence[str]) -> Trigrams:
        """Find the trigrams of `batch` passages at most."""
        numbers = self._numbers[_codes(texts)]
        rows = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
        bits = self._bits
        found = (numbers[:-2] << 2 * bits) | (numbers[1:-1] << bits) | numbers[2:]
        found |= rows[:-2] << 3 * bits
        found = np.sort(found[rows[:-2] == rows[2:]])
        first = np.flatnonzero(np.diff(found, prepend=-1))
        times = np.diff(first, append=len(found))
        found = found[first]
        return Trigrams(found >> 3 * bits, found & ((1 << 3 * bits) - 1), times)

    def batches(self, texts: Sequence[str]) -> Iterator[tuple[int, Trigrams]]:
        """Find the trigrams of passages, batch by batch; gives also how many passages each has."""
        for begin in range(0, len(texts), self.batch):
            batch = texts[begin : begin + self.batch]
            yield len(batch), self.trigrams(batch)


def count_trigrams(alphabet: Alphabet, texts: Sequence[str]) -> tuple[Int64s, Int64s]:
    """Count in how many passages trigrams occur.

    Parameters
    ----------
    alphabet : Alphabet
        Of these passages and perhaps more.
    texts : sequence of str
        Passages.

    Returns
    -------
    keys, counts : ndarray of int64
        Trigrams in rising order, and their numbers of passages.
    """
    keys = counts = np.zeros(0, np.int64)
    for _, found in alphabet.batches(texts):
        some, times = np.unique(found.keys, return_counts=True)
        keys, where = np.unique(np.concatenate((keys, some)), return_inverse=True)
        weights = np.concatenate((counts, times))
        counts = np.bincount(where, weights, minlength=len(keys)).astype(np.int64)
    return keys, counts


# --- Files out of trigrams ------------------------------------------------------------------------


class Writer:
    """Rows as LIBSVM text.

    Parameters
    ----------
    alphabet : Alphabet
        Of all passages.
    keys : ndarray of int64, shape (features,)
        Trigrams that are features, in rising order.
    rarity : ndarray of float64, shape (features,), or None
        Factor of each feature's value, for rows of length 1; without it values are 1.
    names : sequence of bytes
        Labels of the classes.
    """

    def __init__(
        self, alphabet: Alphabet, keys: Int64s, rarity: Float64s | None, names: Sequence[bytes]
    ) -> None:
        self._alphabet = alphabet
        self._keys = keys
        self._rarity = rarity
        # A row is a row of indices into this table, so that writing is one long join.
        end = b":1" if rarity is None else b":"
        table = [b" %d%s" % (i, end) for i in range(1, len(keys) + 1)]
        self._first_label = len(table)
        table += names
        self._newline = len(table)
        table += [b"\n"]
        self._first_value = len(table)
        if rarity is not None:
            table += [b"0.%05d" % i for i in range(UNIT)]
            table += [b"1"]
        self._table = table
        self.nonzeros = 0

    def write(self, path: Path, passages: Passages) -> int:
        """Write passages to a file, which appears when it is whole; gives its size.

        Parameters
        ----------
        path : Path
            File to write.
        passages : Passages
            Its rows.

        Returns
        -------
        int
            Bytes written; `nonzeros` goes on counting.

        Raises
        ------
        PrepError
            If it cannot be written.
        """
        return write_whole(path, self._lines(passages))

    def _lines(self, passages: Passages) -> Iterator[bytes]:
        done = 0
        for count, found in self._alphabet.batches(passages.texts):
            cells = self._cells(passages.labels[done : done + count], found)
            yield b"".join(map(self._table.__getitem__, cells.tolist()))
            done += count

    def _cells(self, labels: Int64s, found: Trigrams) -> Int64s:
        """Give the rows of a batch as indices into the table."""
        ids = np.searchsorted(self._keys, found.keys)
        known = ids < len(self._keys)
        known[known] = self._keys[ids[known]] == found.keys[known]
        ids, rows = ids[known], found.rows[known]
        self.nonzeros += len(ids)

        # Of each row its label, its entries of one or two cells each, and the end of the line.
        width = 1 if self._rarity is None else 2
        ends = width * np.cumsum(np.bincount(rows, minlength=len(labels)))
        ends += 2 * np.arange(len(labels)) + 1
        cells = np.empty(width * len(ids) + 2 * len(labels), np.int64)
        cells[ends] = self._newline
        cells[np.concatenate(([0], ends[:-1] + 1))] = self._first_label + labels
        places = width * np.arange(len(ids)) + 2 * rows + 1
        cells[places] = ids
        if self._rarity is not None:
            values = (1.0 + np.log(found.times[known])) * self._rarity[ids]
            values /= np.sqrt(np.bincount(rows, values**2, minlength=len(labels)))[rows]
            units = np.clip(np.rint(values * UNIT), 1, UNIT).astype(np.int64)
            cells[places + 1] = self._first_value + units
        return cells


# --- Command line ---------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts.data.trigrams",
        description="Make a data set of many classes from plain text: which document is a passage "
        "from, by its trigrams of characters?",
    )
    add_common_options(parser, test_fraction=0.1)
    parser.add_argument(
        "--values",
        choices=("ones", "tfidf"),
        default="ones",
        help="ones: 1 for a trigram that occurs; tfidf: weighted, in rows of length 1",
    )
    parser.add_argument(
        "--min-rows", type=int, default=10, help="drop documents with fewer passages than this"
    )
    parser.add_argument(
        "--max-classes", type=int, metavar="K", help="use the K documents with the most passages"
    )
    parser.add_argument(
        "--classes",
        choices=("files", "inputs", "first"),
        default="files",
        help="files: each is a class; inputs: each INPUT is; first: the first INPUT (+1) or "
        "another (-1)",
    )
    parser.add_argument("--min-chars", type=int, default=300, help="least length of a passage")
    parser.add_argument("--max-chars", type=int, default=600, help="greatest length of a passage")
    return parser


def _check(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End with a usage error where arguments make no sense, before any work is done."""
    check_common_options(parser, args)
    if args.min_rows < 1:
        parser.error("--min-rows must be at least 1")
    if args.max_classes is not None and args.max_classes < 2:
        parser.error("--max-classes must be at least 2")
    if args.classes != "files" and len(args.inputs) < 2:
        parser.error(f"--classes {args.classes} needs two inputs or more")
    if not 3 <= args.min_chars <= args.max_chars:
        parser.error("--min-chars must be between 3 and --max-chars")


def _run(args: argparse.Namespace) -> str:
    """Do the work; give the summary line."""
    begin = time.perf_counter()
    check_outputs((args.out, args.test_out))
    if args.classes == "files":
        files = list_files(args.inputs)
        passages, skipped = read_passages(files, args.min_chars, args.max_chars)
        read = len(files)
    else:
        passages, read, skipped = read_inputs(args.inputs, args.min_chars, args.max_chars)
    passages = choose_classes(passages, args.min_rows, args.max_classes)
    names = [b"%d" % label for label in range(1, 2 + int(passages.labels.max()))]
    if args.classes == "first":
        passages, names = Passages(passages.texts, np.minimum(passages.labels, 1)), [b"+1", b"-1"]
    fraction = 0.0 if args.test_out is None else args.test_fraction
    order, trained = hold_out(passages.labels, fraction, args.seed)
    alphabet = Alphabet(passages.texts)
    texts = [passages.texts[row] for row in order.tolist()]
    labels = passages.labels[order]

    keys, counts = count_trigrams(alphabet, texts[:trained])
    kept = counts >= args.min_count
    rarity = np.log1p(trained / counts[kept]) if args.values == "tfidf" else None
    sizes = np.bincount(labels)
    writer = Writer(alphabet, keys[kept], rarity, names)
    size = writer.write(args.out, Passages(texts[:trained], labels[:trained]))
    if args.test_out is not None:
        size += writer.write(args.test_out, Passages(texts[trained:], labels[trained:]))
    return (
        f"rows {len(texts)} (train {trained}, test {len(texts) - trained}), "
        f"classes {len(sizes)} (with {sizes.min()} to {sizes.max()} rows each), "
        f"features {np.count_nonzero(kept)}, nonzeros {writer.nonzeros}, bytes {size}, "
        f"files {read} ({skipped} skipped), seconds {time.perf_counter() - begin:.1f}"
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
        print(f"scripts.data.trigrams: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
