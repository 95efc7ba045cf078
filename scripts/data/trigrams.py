"""Make a data set of many classes (LIBSVM text) from any plain text: which document is this from.

    python -m scripts.data.trigrams -o tri.svm --test-out tri.t.svm        # this Python's own prose
    python -m scripts.data.trigrams books/ news.txt.xz -o tri.svm --values tfidf --min-rows 50
    python -m scripts.data.trigrams spam/ mail/ -o spam.svm --values tfidf --classes first

A document is a file, and a class: 1, 2, ... in the order of the files that have enough rows
(``--min-rows``). With ``--classes first`` the question is whether a row is from the first input
(+1) or from another (-1). A row is a passage of a document: as few whole sentences as have
``--min-chars`` characters, cut at a blank where they have more than ``--max-chars``. Text is
lower-cased and all white space is one blank. A sentence that occurs again, in whatever document,
counts once, so that neither licences nor copies of a file give anything away.
Features are the trigrams of characters of the passage, numbered in the order of their characters;
those in fewer than ``--min-count`` training rows are dropped. Values are 1, or (``--values tfidf``)
(1 + ln n) ln(1 + N / N') for a trigram that occurs n times, and in N' of N training rows, scaled so
that each row has length 1. With ``--test-out`` a random tenth of the rows of each class, up to
rounding, goes there; every class keeps training rows.

Inputs are those of `scripts.data.prose`. The result depends on the input and the seed alone. One
summary line goes to stdout; the exit code is 0 (done), 1 (error) or 2 (usage).
"""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from scripts.data.lines import MakeError, format_rows, run, write_whole
from scripts.data.prose import END, list_files, parse_checked, prose_parser, read_prose

BATCH = 1 << 10  # most passages looked at together

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]


# --- Passages out of documents --------------------------------------------------------------------


def sentences_of(text: str) -> list[str]:
    """Cut a text into sentences, in lower case and with single blanks; none is empty."""
    ends = [0, *(match.end() for match in END.finditer(text)), len(text)]
    pieces = (text[begin:end] for begin, end in pairwise(ends))
    sentences = (" ".join(piece.lower().split()) for piece in pieces)
    return [sentence for sentence in sentences if sentence]


def passages_of(sentences: Iterable[str], least: int, most: int) -> Iterator[str]:
    """Put sentences together to passages of `least` to `most` characters.

    A passage ends with the sentence that brings it to `least`. Above `most` it ends at the last
    blank that leaves between the two, or within a word if there is none. What is left at the end
    and too short is no passage.
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


def _read_passages(args: argparse.Namespace) -> tuple[list[str], Int64s, str]:
    """Return the passages, the number of each one's document, and how many files were read."""
    files, seen = list_files(args.inputs), set[bytes]()

    def is_new(sentence: str) -> bool:
        # Escapes in docstrings can make characters that are none: lone surrogates.
        digest = blake2b(sentence.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        known = len(seen)
        seen.add(digest)
        return len(seen) > known

    texts: list[str] = []
    labels: list[int] = []
    read = 0
    for read, (path, pieces) in enumerate(read_prose(files, args.inputs), 1):
        sentences = filter(is_new, chain.from_iterable(map(sentences_of, pieces)))
        texts += passages_of(sentences, args.min_chars, args.max_chars)
        label = min(files[path], 1) if args.classes == "first" else read
        labels += [label] * (len(texts) - len(labels))
    return texts, np.array(labels, np.int64), f"files {len(files)} ({len(files) - read} skipped)"


def hold_out(labels: Int64s, fraction: float, seed: int) -> tuple[Int64s, int]:
    """Shuffle rows, and draw a fraction of each class as test rows; classes count from 0.

    Returns the row numbers, those of the training rows first, and the number of training rows: at
    least one of each class that has rows.
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


def _trigrams(texts: Sequence[str]) -> Iterator[tuple[Int64s, Int64s, Int64s]]:
    """Yield row, trigram (in one number of 63 bits) and count, of some passages at a time.

    Each trigram of a passage comes once; they rise within a passage.
    """
    for begin in range(0, len(texts), BATCH):
        some = texts[begin : begin + BATCH]
        text = "".join(some).encode("utf-32-le", "surrogatepass")
        codes = np.frombuffer(text, "<u4").astype(np.int64)
        rows = np.repeat(np.arange(len(some)), [len(text) for text in some])
        found = (codes[:-2] << 42) | (codes[1:-1] << 21) | codes[2:]
        inside = rows[:-2] == rows[2:]
        found, rows = found[inside], rows[:-2][inside]
        order = np.lexsort((found, rows))
        found, rows = found[order], rows[order]
        first = np.flatnonzero(np.append(True, (np.diff(found) != 0) | (np.diff(rows) != 0)))
        yield rows[first], found[first], np.diff(first, append=len(found))


def _count(texts: Sequence[str]) -> tuple[Int64s, Int64s]:
    """Return the trigrams in rising order, and in how many passages each occurs."""
    keys = counts = np.zeros(0, np.int64)
    for _, found, _ in _trigrams(texts):
        some, times = np.unique(found, return_counts=True)
        keys, where = np.unique(np.concatenate((keys, some)), return_inverse=True)
        weights = np.concatenate((counts, times))
        counts = np.bincount(where, weights, minlength=len(keys)).astype(np.int64)
    return keys, counts


def _format(
    texts: Sequence[str], names: NDArray[np.object_], keys: Int64s, rarity: Float64s | None
) -> Iterator[bytes]:
    """Write passages; `keys` are the features, `rarity` the factors of their values."""
    for number, (rows, found, times) in enumerate(_trigrams(texts)):
        some = names[number * BATCH : (number + 1) * BATCH]
        ids = np.minimum(np.searchsorted(keys, found), len(keys) - 1)
        known = keys[ids] == found
        ids, rows, values = ids[known], rows[known], None
        if rarity is not None:
            values = (1.0 + np.log(times[known])) * rarity[ids]
            values /= np.sqrt(np.bincount(rows, values**2, minlength=len(some)))[rows]
        yield format_rows(some, np.bincount(rows, minlength=len(some)), ids + 1, values)


def _make(args: argparse.Namespace) -> str:
    """Do the work; return the summary line."""
    begin = time.perf_counter()
    texts, labels, files = _read_passages(args)
    counts = np.bincount(labels)
    chosen = np.flatnonzero(counts >= args.min_rows)
    if len(chosen) < 2:
        raise MakeError(
            f"found {len(chosen)} documents with at least {args.min_rows} passages; 2 or more "
            "are needed: give more text, or a smaller --min-rows or --min-chars"
        )
    kept = np.flatnonzero(np.isin(labels, chosen))
    labels = np.searchsorted(chosen, labels[kept])
    fraction = 0.0 if args.test_out is None else args.test_fraction
    order, trained = hold_out(labels, fraction, args.seed)
    texts, labels = [texts[row] for row in kept[order].tolist()], labels[order]
    names = np.array([b"%d" % label for label in range(1, len(chosen) + 1)], object)
    if args.classes == "first":
        names = np.array([b"+1", b"-1"], object)
    keys, times = _count(texts[:trained])
    frequent = times >= args.min_count
    if not frequent.any():
        raise MakeError("no trigram is in --min-count training rows")
    rarity = np.log1p(trained / times[frequent]) if args.values == "tfidf" else None
    size = 0
    for path, part in ((args.out, slice(trained)), (args.test_out, slice(trained, None))):
        if path is not None:
            lines = _format(texts[part], names[labels[part]], keys[frequent], rarity)
            size += write_whole(path, lines)
    counts = counts[chosen]
    return (
        f"rows {len(texts)} (train {trained}, test {len(texts) - trained}), classes {len(chosen)} "
        f"(with {counts.min()} to {counts.max()} rows each), features "
        f"{np.count_nonzero(frequent)}, bytes {size}, {files}, "
        f"seconds {time.perf_counter() - begin:.1f}"
    )


def main(argv: list[str] | None = None) -> int:
    """Run the command line; exit code 0 done, 1 error, 2 usage."""
    parser = prose_parser(
        "trigrams",
        "Make a data set of many classes from plain text: which document has a passage, by its "
        "trigrams of characters?",
        test_fraction=0.1,
    )
    parser.add_argument(
        "--values", choices=("ones", "tfidf"), default="ones",
        help="ones: 1 for a trigram that occurs; tfidf: weighted, in rows of length 1",
    )  # fmt: skip
    parser.add_argument(
        "--min-rows", type=int, default=10, help="drop documents with fewer passages than this"
    )
    parser.add_argument(
        "--classes", choices=("files", "first"), default="files",
        help="files: each is a class; first: the first INPUT (+1) or another (-1)",
    )  # fmt: skip
    parser.add_argument("--min-chars", type=int, default=300, help="least length of a passage")
    parser.add_argument("--max-chars", type=int, default=600, help="greatest length of a passage")
    args = parse_checked(parser, argv, min_rows=1, min_chars=3)
    if args.max_chars < args.min_chars:
        parser.error("--max-chars must be at least --min-chars")
    if args.classes == "first" and len(args.inputs) < 2:
        parser.error("--classes first needs two inputs or more")
    return run("trigrams", lambda: _make(args))


if __name__ == "__main__":
    sys.exit(main())
