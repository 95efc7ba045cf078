"""Make a data set (LIBSVM text) from any plain text: which preposition is missing.

    python -m scripts.data.prep -o prep.svm --test-out prep.t.svm          # this Python's own prose
    python -m scripts.data.prep books/ news.txt.xz -o prep.svm --classes ten

Modelled on the third data set of Chang and Roth (KDD 2011). Each place in a sentence where one of
ten prepositions stands is a row; the preposition is taken away and is the class. A row's features,
all of value 1, are the words up to three places left and right of the gap, inside the sentence, and
pairs of them: neighbours on either side, and three pairs that straddle the gap. So a row has at
most one feature of each of 13 kinds. Words are compared in lower case, without punctuation; a word
counts as a preposition by its spelling alone (``to`` before a verb too).

Inputs are those of `scripts.data.prose`. A sentence that occurs again counts once. The result
depends on the input and the seed alone. One summary line goes to stdout; the exit code is 0 (done),
1 (error) or 2 (usage).
"""

import argparse
import re
import sys
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from scripts.data.lines import MakeError, format_rows, run, write_whole
from scripts.data.prose import SENTENCE_END, list_files, parse_checked, prose_parser, read_prose

PREPOSITIONS = ("of", "in", "to", "for", "on", "with", "at", "by", "from", "about")
REACH = 3  # words looked at on either side of the gap
# The kinds of features, by places counted from the gap: single words, then pairs of words.
WORDS = (-3, -2, -1, 1, 2, 3)
PAIRS = ((-3, -2), (-2, -1), (-1, 1), (1, 2), (2, 3), (-2, 1), (-1, 2))
BATCH = 1 << 16  # rows written at a time
TOKEN = re.compile(SENTENCE_END + r"|\w+(?:['’-]\w+)*")

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]
UInt64s = NDArray[np.uint64]


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


def find_places(text: str, vocabulary: Vocabulary) -> tuple[Int32s, UInt64s]:
    """Find the prepositions of a text that begins and ends with a sentence.

    Returns, for each of n places, the words at -3 ... 3, shape (n, 7), 0 outside the sentence and
    in the middle the preposition, 1 to 10; and a hash of the whole sentence and the place in it,
    equal for the same place of a sentence that occurs again.
    """
    numbers = map(vocabulary.__getitem__, TOKEN.findall(text))
    border = np.zeros(REACH, dtype=np.int32)
    tokens = np.concatenate((border, np.fromiter(numbers, dtype=np.int32), border))
    places = np.flatnonzero((tokens >= 1) & (tokens <= len(PREPOSITIONS)))
    window = np.zeros((len(places), 2 * REACH + 1), dtype=np.int32)
    window[:, REACH] = tokens[places]
    for side in (-1, 1):
        for step in range(side, side * (REACH + 1), side):
            # A 0 nearer to the place ends the sentence: beyond it all stays 0.
            inside = window[:, REACH + step - side] != 0
            window[:, REACH + step] = np.where(inside, tokens[places + step], 0)
    return window, _place_keys(tokens, places)


def _feature_keys(window: Int32s) -> Iterator[Int64s]:
    """Yield for each kind the word, or the pair packed in one number, of all rows; 0 is none."""
    columns = window.astype(np.int64).T
    for place in WORDS:
        yield columns[REACH + place]
    for left, right in PAIRS:
        a, b = columns[REACH + left], columns[REACH + right]
        yield np.where((a != 0) & (b != 0), a << 32 | b, 0)


def number_features(window: Int32s, trained: int, min_count: int) -> tuple[Int32s, int]:
    """Number the features that occur in at least `min_count` of the first `trained` rows.

    Returns the feature of each kind, counted from 1, rising within a row, 0 if there is none, shape
    (n, 13), and the number of features.
    """
    ids = np.zeros((len(window), len(WORDS) + len(PAIRS)), dtype=np.int32)
    base = 0
    # One kind at a time: the memory needed is that of a few columns, and since each kind has its
    # own range of ids, ids rise within a row.
    for kind, keys in enumerate(_feature_keys(window)):
        distinct, counts = np.unique(keys[:trained], return_counts=True)
        kept = distinct[(counts >= min_count) & (distinct != 0)]
        if len(kept):
            at = np.minimum(np.searchsorted(kept, keys), len(kept) - 1)
            ids[:, kind] = np.where(kept[at] == keys, base + 1 + at, 0)
        base += len(kept)
    return ids, base


def _format(ids: Int32s, names: NDArray[np.object_]) -> Iterator[bytes]:
    for begin in range(0, len(ids), BATCH):
        batch = ids[begin : begin + BATCH]
        lengths = np.count_nonzero(batch, axis=1)
        yield format_rows(names[begin : begin + BATCH], lengths, batch[batch > 0])


def _make(args: argparse.Namespace) -> str:
    """Do the work; return the summary line."""
    begin = time.perf_counter()
    files, vocabulary = list_files(args.inputs), Vocabulary()
    read = [
        [find_places(text, vocabulary) for text in pieces]
        for _, pieces in read_prose(files, args.inputs)
    ]
    places = [place for pieces in read for place in pieces]
    if not sum(len(key) for _, key in places):
        raise MakeError(f"no prepositions found in {len(files)} files")
    window, key = (np.concatenate(parts) for parts in zip(*places, strict=True))
    window = window[np.sort(np.unique(key, return_index=True)[1])]  # of equal places the first
    window = window[np.random.default_rng(args.seed).permutation(len(window))[: args.max_rows]]
    rows = trained = len(window)
    if args.test_out is not None:
        trained -= min(round(args.test_fraction * rows), rows - 1)
    ids, count = number_features(window, trained, args.min_count)
    labels = np.array([b"%d" % k for k in range(11)], object)
    if args.classes == "binary":
        labels = np.array([b"", b"+1", *[b"-1"] * 9], object)
    names = labels[window[:, REACH]]
    size = write_whole(args.out, _format(ids[:trained], names[:trained]))
    if args.test_out is not None:
        size += write_whole(args.test_out, _format(ids[trained:], names[trained:]))
    kinds, counts = np.unique(names.astype(str), return_counts=True)
    classes = " ".join(f"{kind}:{n}" for kind, n in zip(kinds, counts, strict=True))
    return (
        f"rows {rows} (train {trained}, test {rows - trained}), features {count}, nonzeros "
        f"{np.count_nonzero(ids)}, bytes {size}, classes {classes}, files {len(files)} "
        f"({len(files) - len(read)} skipped), seconds {time.perf_counter() - begin:.1f}"
    )


def main(argv: list[str] | None = None) -> int:
    """Run the command line; exit code 0 done, 1 error, 2 usage."""
    description = "Make a data set from plain text: which preposition is missing?"
    parser = prose_parser("prep", description, test_fraction=0.08)
    parser.add_argument(
        "--classes", choices=("binary", "ten"), default="binary",
        help="binary: 'of' (+1) or another (-1); ten: " + ", ".join(PREPOSITIONS),
    )  # fmt: skip
    parser.add_argument("--max-rows", type=int, help="use this many rows, drawn at random")
    args = parse_checked(parser, argv, max_rows=1)
    return run("prep", lambda: _make(args))


if __name__ == "__main__":
    sys.exit(main())
