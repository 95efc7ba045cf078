"""The scripts that make data, but for the downloads: what is in the files they write."""

import argparse
import bz2
import gzip
import hashlib
import io
import lzma
import random
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from helpers import SCRIPTS, load_script
from processes import finished, started
from sklearn.datasets import load_svmlight_file
from sklearn.svm import LinearSVC

prep = load_script("make_prep")
synthetic = load_script("make_synthetic")
trigrams = load_script("make_trigrams")

Row = tuple[int, dict[int, float]]

FIVE_PLACES = """\
The cat sat on the mat. The cat sat
by the mat! A pound of wool

With

- The dog sat from the start
"""


def parse(data: bytes) -> list[Row]:
    rows = []
    assert data.endswith(b"\n")
    for line in data.decode().removesuffix("\n").split("\n"):
        label, *entries = line.split(" ")
        pairs = [entry.split(":") for entry in entries]
        ids = [int(i) for i, _ in pairs]
        assert ids == sorted(set(ids))
        rows.append((int(label), {int(i): float(v) for i, v in pairs}))
    return rows


def columns(rows: list[Row]) -> dict[int, tuple[int, ...]]:
    """Of each feature the rows it occurs in."""
    found = defaultdict(list)
    for n, (_, row) in enumerate(rows):
        for feature in row:
            found[feature].append(n)
    return {feature: tuple(where) for feature, where in found.items()}


def accuracy(data: bytes, trained: int) -> float:
    """Share of right labels on the rows after the first so many, learnt from those."""
    x, y = load_svmlight_file(io.BytesIO(data))
    x.indices, x.indptr = x.indices.astype(np.int32), x.indptr.astype(np.int32)
    model = LinearSVC(C=0.1).fit(x[:trained], y[:trained])
    return float(model.score(x[trained:], y[trained:]))


# --- make_prep ------------------------------------------------------------------------------------


def run_prep(tmp_path: Path, *arguments: Any) -> list[Row]:
    out = tmp_path / "out.svm"
    assert prep.main([*map(str, arguments), "-o", str(out)]) == 0
    return parse(out.read_bytes())


def random_text(seed: int, sentences: int = 400) -> str:
    rng = random.Random(seed)
    words = [*prep.PREPOSITIONS, *(f"w{i}" for i in range(30))]
    lines = (" ".join(rng.choices(words, k=rng.randint(1, 12))) for _ in range(sentences))
    once = (f"u{i} by v{i}" for i in range(9))
    return "".join(f"{line}. X!\n\n" for line in [*lines, *once])


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(random_text(1))
    return path


def words_around(text: str) -> list[list[str]]:
    """Windows as words, "" outside the sentence."""
    vocabulary = prep.Vocabulary()
    places = prep.find_places(text, vocabulary)
    words = {0: "", **{number: word for word, number in vocabulary._words.items()}}
    return [[words[number] for number in window] for window in places.window.tolist()]


def test_prep_rows_and_features_of_a_text_worked_out_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "five.txt"
    path.write_text(FIVE_PLACES)
    rows = run_prep(tmp_path, path, "--min-count", 1, "--classes", "ten")

    sizes = {label: len(row) for label, row in rows}
    assert len(rows) == 5
    # on: 5 words (two right of it) and all pairs but (2, 3); by: the same; of: two words left, one
    # right, three pairs; with: alone; from: as on.
    assert sizes == {5: 11, 8: 11, 1: 6, 6: 0, 9: 11}
    assert {value for _, row in rows for value in row.values()} == {1.0}
    labels = [label for label, _ in rows]
    shared = Counter(frozenset(labels[n] for n in where) for where in columns(rows).values())
    assert shared == {
        frozenset({5, 8, 9}): 4,  # the _ _, sat, the; sat-the
        frozenset({5, 8}): 7,  # cat, mat; the-cat, cat-sat, the-mat, cat-the, sat-mat
        frozenset({9}): 7,  # dog, start; the-dog, dog-sat, the-start, dog-the, sat-start
        frozenset({1}): 6,  # a, pound, wool; a-pound, pound-wool, a-wool
    }
    ids = {feature for _, row in rows for feature in row}
    assert ids == set(range(1, 25))


def test_prep_windows_stop_at_the_ends_of_the_sentence() -> None:
    assert words_around(FIVE_PLACES) == [
        ["the", "cat", "sat", "on", "the", "mat", ""],
        ["the", "cat", "sat", "by", "the", "mat", ""],
        ["", "a", "pound", "of", "wool", "", ""],
        ["", "", "", "with", "", "", ""],
        ["the", "dog", "sat", "from", "the", "start", ""],
    ]


@pytest.mark.parametrize(
    ("text", "windows"),
    [
        ("a b c d OF e f g h", [["b", "c", "d", "of", "e", "f", "g"]]),
        ("an out-of-core run", []),  # one word
        ("(wool, of): it’s IT'S", [["", "", "wool", "of", "it's", "it's", ""]]),
        ("see e.g. in there", [["see", "e", "g", "in", "there", "", ""]]),
        ("Done? In there", [["", "", "", "in", "there", "", ""]]),
        ("He said “go.” In there", [["", "", "", "in", "there", "", ""]]),
        ("version 1.5 of it", [["version", "1", "5", "of", "it", "", ""]]),
        ("one\r\n\r\nof it", [["", "", "", "of", "it", "", ""]]),
        ("", []),
    ],
)
def test_prep_words_and_sentences(text: str, windows: list[list[str]]) -> None:
    assert words_around(text) == windows


def test_prep_binary_and_ten_are_the_same_rows(tmp_path: Path, text_file: Path) -> None:
    ten = run_prep(tmp_path, text_file, "--classes", "ten")
    binary = run_prep(tmp_path, text_file)
    assert {label for label, _ in ten} == set(range(1, 11))
    assert [(1 if label == 1 else -1, row) for label, row in ten] == binary
    assert (tmp_path / "out.svm").read_bytes()[:1] in b"+-"
    assert b"\n+1 " in (tmp_path / "out.svm").read_bytes()


def test_prep_order_depends_on_the_seed_alone(tmp_path: Path, text_file: Path) -> None:
    first = run_prep(tmp_path, text_file, "--min-count", 1)
    again = run_prep(tmp_path, text_file, "--min-count", 1)
    other = run_prep(tmp_path, text_file, "--min-count", 1, "--seed", 1)
    assert first == again
    assert first != other
    assert Counter(map(repr, first)) == Counter(map(repr, other))


def test_prep_counts_features_in_the_training_rows_only(tmp_path: Path, text_file: Path) -> None:
    test_file = tmp_path / "t.svm"
    split = ["--test-out", test_file, "--test-fraction", 0.3, "--seed", 3]
    train = run_prep(tmp_path, text_file, *split, "--min-count", 1)
    test = parse(test_file.read_bytes())
    assert len(test) == round(0.3 * len(train + test))
    assert set(columns(test)) <= set(columns(train))

    expected = [
        where for where in columns(train + test).values() if sum(n < len(train) for n in where) >= 4
    ]
    train4 = run_prep(tmp_path, text_file, *split, "--min-count", 4)
    test4 = parse(test_file.read_bytes())
    assert [label for label, _ in train4 + test4] == [label for label, _ in train + test]
    assert Counter(columns(train4 + test4).values()) == Counter(expected)
    assert 0 < len(expected) < len(columns(train)) / 4
    assert set(columns(test4)) <= set(columns(train4)) == set(range(1, len(expected) + 1))
    assert any(not row for _, row in train4)  # kept though nothing of it is left


def test_prep_train_and_test_share_out_all_rows(tmp_path: Path, text_file: Path) -> None:
    whole = run_prep(tmp_path, text_file, "--classes", "ten")
    test_file = tmp_path / "t.svm"
    train = run_prep(tmp_path, text_file, "--classes", "ten", "--test-out", test_file)
    test = parse(test_file.read_bytes())
    assert [label for label, _ in train + test] == [label for label, _ in whole]
    few = run_prep(tmp_path, text_file, "--classes", "ten", "--max-rows", 50)
    assert [label for label, _ in few] == [label for label, _ in whole][:50]


def test_prep_counts_a_sentence_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Made of wool in May. Made of wool.\n")
    (tmp_path / "b.md").write_text("made\n  of (wool) in May!\n\nMade of wool in June. In, in.\n")
    rows = run_prep(tmp_path, tmp_path, "--classes", "ten", "--min-count", 1)
    # of: in May, alone, in June; in: May, June and twice in the last sentence
    assert Counter(label for label, _ in rows) == {1: 3, 2: 4}


@pytest.mark.parametrize("chunk", [1, 7, 50])
def test_prep_does_not_depend_on_how_text_is_read(
    tmp_path: Path, text_file: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    text_file.write_text(text_file.read_text().replace("w1", "é—“ß”"))
    expected = run_prep(tmp_path, text_file, "--min-count", 1)
    monkeypatch.setattr(prep, "CHUNK", chunk)
    # The limit on a sentence is counted in chunks: keep it where it was.
    monkeypatch.setattr(prep, "LONGEST", 10_000)
    assert run_prep(tmp_path, text_file, "--min-count", 1) == expected


def test_prep_text_without_sentences_is_read_in_bounded_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "flat.txt"
    path.write_text("wool of " * 1000)
    monkeypatch.setattr(prep, "CHUNK", 100)
    monkeypatch.setattr(prep, "LONGEST", 200)
    with path.open("rb") as stream:
        pieces = list(prep.text_chunks(stream))
    assert "".join(pieces) == "wool of " * 1000
    assert len(pieces) > 10
    assert max(map(len, pieces)) <= 400


def test_prep_compressed_text_is_the_same_text(tmp_path: Path, text_file: Path) -> None:
    plain = text_file.read_bytes()
    expected = run_prep(tmp_path, text_file)
    frames = zstandard.compress(plain[:1000]) + zstandard.compress(plain[1000:])
    for suffix, packed in {
        ".gz": gzip.compress(plain),
        ".bz2": bz2.compress(plain),
        ".xz": lzma.compress(plain),
        ".zst": frames,
    }.items():
        folder = tmp_path / suffix
        folder.mkdir()
        (folder / f"text.txt{suffix}").write_bytes(packed)
        assert run_prep(tmp_path, folder) == expected, suffix


MODULE = '''\
#!/usr/bin/env python
# coding: latin-1
"""Module of caf\u00e9.

>>> x = "doctest of text"
"""
word = "code of text"  # trailing with mark
# next about line
#: and on it
class A:
    \'docs "by" class\'
    if True:
        async def f(self):
            r"""Method \\d from here."""
            return "# string at all", """# triple "to" it"""
    """attribute of text"""
    for x in word: pass
'''


def test_prep_reads_docstrings_and_comments_of_python(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(MODULE.encode("latin-1"))
    text = prep.python_prose((tmp_path / "a.py").read_bytes())
    assert sorted(window[3] for window in words_around(text)) == [
        "about",
        "by",
        "from",
        "of",
        "on",
        "with",
    ]
    windows = words_around(text)
    assert ["", "", "module", "of", "café", "", ""] in windows
    assert ["", "", "trailing", "with", "mark", "", ""] in windows  # ends with its line
    assert ["", "", "next", "about", "line", "and", "on"] in windows  # goes on in the next line
    assert "string" not in text
    rows = run_prep(tmp_path, tmp_path, "--classes", "ten", "--min-count", 1)
    assert sorted(label for label, _ in rows) == [1, 5, 6, 8, 9, 10]


def test_prep_passes_over_broken_files_in_folders_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "good.rst").write_text("made of wool")
    (folder / "other.csv").write_text("not in here")
    broken = {
        "bad.txt": (b"sat on the mat. " * 9 + b"\xff", "not UTF-8 text"),
        "bad.py": (b"# made of wool\nx = (", "not Python ('(' was never closed, line 2)"),
        "null.py": (b"# made of wool\n\0", "not Python ("),
        "cut.txt.gz": (gzip.compress(b"made of wool" * 99)[:-9], "Compressed file ended before"),
        "no.txt.gz": (b"made of wool", "Not a gzipped file"),
        "no.txt.bz2": (b"made of wool", "Invalid data stream"),
        "no.txt.xz": (b"made of wool", "Input format not supported"),
        "no.txt.zst": (b"made of wool", "zstd decompress"),
        "cut.txt.zst": (
            zstandard.compress(b"made of wool" * 99)[:-9],
            "Compressed file ended before",
        ),
    }
    for name, (data, _) in broken.items():
        (folder / name).write_bytes(data)
    assert len(run_prep(tmp_path, folder)) == 1
    assert f"files 10 ({len(broken)} skipped)" in capsys.readouterr().out
    for name, (_, reason) in broken.items():
        out = tmp_path / "none.svm"
        assert prep.main([str(folder / name), "-o", str(out)]) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"make_prep.py: error: cannot read {folder / name}: {reason}")
        assert error.count("\n") == 1
        assert not out.exists()


def test_prep_errors_are_one_sentence(
    tmp_path: Path, text_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "none.txt").write_text("No such word.")
    out = str(tmp_path / "o.svm")
    for arguments, sentence in [
        ([tmp_path / "nix", "-o", out], f"cannot read {tmp_path / 'nix'}: no such file or folder"),
        ([tmp_path / "none.txt", "-o", out], "no prepositions found in 1 files (0 unreadable)"),
        ([empty, "-o", out], f"no .txt, .md, .rst, .py files below {empty}"),
        ([text_file, "-o", empty], f"cannot write {empty}: it is a folder"),
        (
            [text_file, "-o", empty / "x" / "y"],
            f"cannot write {empty}/x/y: there is no folder {empty}/x",
        ),
    ]:
        assert prep.main([str(argument) for argument in arguments]) == 1
        assert capsys.readouterr().err == f"make_prep.py: error: {sentence}\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "none.txt", "text.txt"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "required: -o"),
        (["-o", "x", "--min-count", "0"], "--min-count must be at least 1"),
        (["-o", "x", "--test-fraction", "1"], "--test-fraction must lie between 0 and 1"),
        (["-o", "x", "--max-rows", "0"], "--max-rows must be at least 1"),
        (["-o", "x", "--seed", "-1"], "--seed must not be negative"),
        (["-o", "x", "--test-out", "./x"], "-o and --test-out must not be the same file"),
        (["x", "-o", "./x"], "an INPUT must not be overwritten"),
        (["-o", "x", "--classes", "two"], "invalid choice: 'two'"),
    ],
)
def test_prep_usage_errors(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        prep.main(arguments)
    assert stop.value.code == 2
    assert sentence in capsys.readouterr().err


def test_prep_summary_is_of_the_files(
    tmp_path: Path, text_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test_file = tmp_path / "t.svm"
    train = run_prep(tmp_path, text_file, "--test-out", test_file)
    line = capsys.readouterr().out
    test = parse(test_file.read_bytes())
    rows = train + test
    size = test_file.stat().st_size + (tmp_path / "out.svm").stat().st_size
    positive = sum(label == 1 for label, _ in rows)
    assert line.startswith(
        f"rows {len(rows)} (train {len(train)}, test {len(test)}), "
        f"features {len(columns(train))}, nonzeros {sum(len(row) for _, row in rows)}, "
        f"bytes {size}, classes +1:{positive} -1:{len(rows) - positive}, "
        "files 1 (0 skipped), seconds "
    )
    assert line.count("\n") == 1


def test_prep_default_text_is_this_python_without_strange_packages() -> None:
    files = set(prep.default_files())
    assert Path(np.__file__) in files
    assert Path(argparse.__file__) in files
    assert {prep.base_suffix(path) for path in files} <= set(prep.PROSE)
    stdlib = Path(argparse.__file__).parent
    strange = {path for path in files if path.is_relative_to(stdlib / "site-packages")}
    assert not strange or Path(np.__file__).is_relative_to(stdlib)


# --- make_trigrams --------------------------------------------------------------------------------


def run_trigrams(tmp_path: Path, *arguments: Any) -> list[Row]:
    out = tmp_path / "out.svm"
    assert trigrams.main([*map(str, arguments), "-o", str(out)]) == 0
    return parse(out.read_bytes())


def letters(rng: random.Random, alphabet: str) -> str:
    return "".join(rng.choices(alphabet, k=rng.randint(2, 6)))


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """Four documents of many passages, each with a liking for some letters, and two short ones."""
    folder = tmp_path / "docs"
    folder.mkdir()
    rng = random.Random(2)
    alphabets = {
        "a.txt": "abcdef", "b.md": "defghi", "c.rst": "aeiouß", "d.txt": "абвгд", "e.txt": "xyz",
    }  # fmt: skip
    for name, alphabet in alphabets.items():
        lines = [
            " ".join(letters(rng, alphabet) for _ in range(rng.randint(3, 30)))
            for _ in range(5 if name == "e.txt" else 150)
        ]
        (folder / name).write_text("".join(f"{line.capitalize()}.\n\n" for line in lines))
    (folder / "f.txt").write_text("Too short.")
    return folder


SHORT = ("--min-chars", 40, "--max-chars", 90)


def reference_trigrams(
    passages: list[list[str]], order: list[tuple[int, int]], trained: int, min_count: int
) -> list[Row]:
    """Rows of value 1, slowly: `passages` of each class, `order` as (class, passage)."""
    found = [
        {text[i : i + 3] for i in range(len(text) - 2)}
        for text in (passages[label][n] for label, n in order)
    ]
    counts = Counter(gram for grams in found[:trained] for gram in grams)
    features = sorted(gram for gram, count in counts.items() if count >= min_count)
    ids = {gram: i for i, gram in enumerate(features, 1)}
    return [
        (label + 1, {ids[gram]: 1.0 for gram in sorted(grams) if gram in ids})
        for (label, _), grams in zip(order, found, strict=True)
    ]


def test_trigrams_passages_are_whole_sentences_or_cut_at_a_blank() -> None:
    text = "One two. Three\n  four five!  Six. 7\n\nEight nine ten eleven twelve, e.g. it. End."
    sentences = [
        "one two.", "three four five!", "six.", "7", "eight nine ten eleven twelve, e.g. it.",
        "end.",
    ]  # fmt: skip
    assert trigrams.sentences_of(text) == sentences
    assert list(trigrams.passages_of(sentences, 5, 20)) == [
        "one two.", "three four five!", "six. 7", "eight nine ten", "eleven twelve, e.g.",
        "it. end.",
    ]  # fmt: skip
    assert list(trigrams.passages_of(["ab" * 12 + " cd"], 5, 10)) == [
        "ab" * 5, "ab" * 5, "abab cd"
    ]  # fmt: skip
    rng = random.Random(3)
    long = [" ".join(letters(rng, "abc") for _ in range(rng.randint(1, 200))) for _ in range(50)]
    pieces = list(trigrams.passages_of(long, 30, 60))
    assert {len(piece) for piece in pieces} <= set(range(30, 61))
    assert " ".join(long).startswith(" ".join(pieces))
    # 300 letters and the blanks between them each; what is left, 200 letters, is long enough.
    assert len(list(trigrams.passages_of(["x " * 2_000_000], 300, 600))) == 6667


@pytest.mark.parametrize(("min_count", "options"), [(1, ()), (4, ("--seed", 3))])
def test_trigrams_rows_are_those_counted_by_hand(
    tmp_path: Path, documents: Path, min_count: int, options: tuple[Any, ...]
) -> None:
    test_file = tmp_path / "t.svm"
    arguments = (documents, *SHORT, *options, "--min-count", min_count)
    train = run_trigrams(tmp_path, *arguments, "--test-out", test_file)
    test = parse(test_file.read_bytes())
    # e.txt and f.txt have too few passages.
    passages = [
        list(trigrams.passages_of(trigrams.sentences_of(path.read_text()), 40, 90))
        for path in sorted(documents.iterdir())[:4]
    ]
    labels = [label for label, texts in enumerate(passages) for _ in texts]
    places = [n for texts in passages for n in range(len(texts))]
    order, trained = trigrams.hold_out(np.array(labels), 0.1, 3 if options else 0)
    expected = reference_trigrams(
        passages, [(labels[n], places[n]) for n in order], trained, min_count
    )
    assert train + test == expected
    assert len(train) == trained
    assert any(ord(c) > 1000 for c in "".join(passages[3]))


@pytest.mark.parametrize("fraction", [0.1, 0.4, 0.9])
def test_trigrams_hold_out_a_share_of_each_class(fraction: float) -> None:
    counts = [1, 2, 5, 40, 333]
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(5), counts))
    order, trained = trigrams.hold_out(labels, fraction, 0)
    assert sorted(order.tolist()) == list(range(len(labels)))
    tested = np.bincount(labels[order[trained:]], minlength=5)
    for count, part in zip(counts, tested.tolist(), strict=True):
        assert abs(part - fraction * count) < 1 or part == count - 1
        assert part < count
    whole, none = trigrams.hold_out(labels, 0.0, 0)
    assert none == len(labels)
    assert sorted(whole.tolist()) == list(range(len(labels)))
    shares = [
        (len(order) - trained) / len(order)
        for order, trained in (
            trigrams.hold_out(np.repeat(np.arange(200), 5), 0.1, seed) for seed in range(5)
        )
    ]
    assert abs(np.mean(shares) - 0.1) < 0.02  # 5 rows a class: a half of them give one


def test_trigrams_order_depends_on_the_seed_alone(tmp_path: Path, documents: Path) -> None:
    first, again, other = (
        run_trigrams(tmp_path, documents, *SHORT, "--seed", seed) for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other
    assert Counter(map(repr, first)) == Counter(map(repr, other))


def test_trigrams_do_not_depend_on_the_batch(
    tmp_path: Path, documents: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (documents, *SHORT, "--values", "tfidf")
    expected = run_trigrams(tmp_path, *arguments)
    for batch in (1, 7):
        monkeypatch.setattr(trigrams, "BATCH", batch)
        assert run_trigrams(tmp_path, *arguments) == expected


def test_trigrams_tfidf_rows_have_length_1(tmp_path: Path, documents: Path) -> None:
    test_file = tmp_path / "t.svm"
    arguments = (documents, *SHORT, "--test-out", test_file)
    ones = run_trigrams(tmp_path, *arguments) + parse(test_file.read_bytes())
    train = run_trigrams(tmp_path, *arguments, "--values", "tfidf")
    rows = train + parse(test_file.read_bytes())
    assert [(label, list(row)) for label, row in rows] == [
        (label, list(row)) for label, row in ones
    ]
    assert all(abs(sum(v**2 for v in row.values()) - 1) < 1e-4 for _, row in rows if row)
    found = columns(train)
    rare = {feature: np.log(1 + len(train) / len(where)) for feature, where in found.items()}
    for _, row in rows:
        # Weights are whole multiples, 1 + ln n, of the rarity.
        scaled = [value / rare[feature] for feature, value in row.items()]
        times = np.exp(np.array(scaled) / min(scaled, default=1) - 1)
        assert (np.abs(times - np.rint(times)) < 0.02 * times).all()


def test_trigrams_of_any_characters_fit_in_a_number() -> None:
    rng = random.Random(5)
    anything = "".join(map(chr, [*rng.sample(range(0x110000), 270_000), 0x10FFFF, 0, 0xD800]))
    texts = ["\U0010ffff" * 9, anything[:5000], "\x00\x00\x00", anything[5000:]]
    alphabet = trigrams.Alphabet(texts)
    assert alphabet.batch == 1 << (63 - 3 * 19)
    found = alphabet.trigrams(texts)
    assert np.bincount(found.rows).tolist() == [
        len({text[i : i + 3] for i in range(len(text) - 2)}) for text in texts
    ]
    assert found.times[found.rows == 0].tolist() == [7]
    assert found.keys.min() == 0
    assert found.keys[found.rows == 2].tolist() == [0]
    assert found.keys.max() == found.keys[0]


def test_trigrams_count_a_sentence_once_wherever_it_occurs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    licence = "Permission is granted. To whom it may concern.\n\n"
    (tmp_path / "a.txt").write_text(licence + "First thing here. Second thing here.")
    (tmp_path / "b.txt").write_text(licence.upper() + "Third  thing\nhere. Second thing here.")
    (tmp_path / "c.txt").write_text(licence)
    options = ("--min-chars", 10, "--min-rows", 1, "--min-count", 1)
    rows = run_trigrams(tmp_path, tmp_path, *options)
    assert Counter(label for label, _ in rows) == {1: 4, 2: 1}
    assert " classes 2 (with 1 to 4 rows each), " in capsys.readouterr().out


def test_trigrams_keep_the_largest_documents(tmp_path: Path, documents: Path) -> None:
    every = Counter(label for label, _ in run_trigrams(tmp_path, documents, *SHORT))
    assert set(every) == {1, 2, 3, 4}
    two = Counter(
        label for label, _ in run_trigrams(tmp_path, documents, *SHORT, "--max-classes", 2)
    )
    assert sorted(two.values()) == sorted(every.values())[-2:]
    assert set(two) == {1, 2}
    five = run_trigrams(tmp_path, documents, *SHORT, "--min-rows", 2)
    assert {label for label, _ in five} == {1, 2, 3, 4, 5}


def test_trigrams_classes_are_inputs_or_the_first_of_them(tmp_path: Path, documents: Path) -> None:
    (documents / "d.txt").rename(tmp_path / "d.txt")
    # a.txt is below the last input, too, but counts with the first one.
    inputs = (documents / "a.txt", tmp_path / "d.txt", documents)
    every = run_trigrams(tmp_path, *inputs, *SHORT, "--classes", "inputs")
    counts = Counter(label for label, _ in every)
    assert set(counts) == {1, 2, 3}
    assert counts[1] == Counter(
        label for label, _ in run_trigrams(tmp_path, *inputs[:2], *SHORT)
    )[1]  # fmt: skip
    first = run_trigrams(tmp_path, *inputs, *SHORT, "--classes", "first")
    assert first == [(1 if label == 1 else -1, row) for label, row in every]


def test_trigrams_of_classes_need_two_inputs(
    tmp_path: Path, documents: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run_trigrams(tmp_path, documents, "--classes", "first")
    assert "--classes first needs two inputs or more" in capsys.readouterr().err


@pytest.mark.parametrize("values", ["ones", "tfidf"])
def test_trigrams_tell_the_documents_apart(tmp_path: Path, documents: Path, values: str) -> None:
    test_file = tmp_path / "t.svm"
    run_trigrams(tmp_path, documents, *SHORT, "--values", values, "--test-out", test_file)
    text = (tmp_path / "out.svm").read_bytes()
    assert accuracy(text + test_file.read_bytes(), text.count(b"\n")) > 0.9


def test_trigrams_read_python_and_pass_over_broken_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.py").write_text('"""Written of \\ud800 wool."""\nword = 1  # a comment on it\n')
    (folder / "b.txt.gz").write_bytes(gzip.compress(b"A text that is packed."))
    # What stands in a broken file counts nowhere, not even as seen.
    (folder / "a.txt").write_bytes(b"A text that is packed.\n\n\xff")
    options = ("--min-chars", 10, "--min-rows", 1, "--min-count", 1)
    rows = run_trigrams(tmp_path, folder, *options)
    assert sorted((label, len(row)) for label, row in rows) == [
        (1, len("a comment on it") - 2),
        (1, len("written of . wool.") - 2),
        (2, len("a text that is packed.") - 2),
    ]
    assert "files 3 (1 skipped)" in capsys.readouterr().out


def test_trigrams_summary_is_of_the_files(
    tmp_path: Path, documents: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test_file = tmp_path / "t.svm"
    train = run_trigrams(tmp_path, documents, *SHORT, "--test-out", test_file)
    test = parse(test_file.read_bytes())
    rows = train + test
    sizes = Counter(label for label, _ in rows).values()
    size = test_file.stat().st_size + (tmp_path / "out.svm").stat().st_size
    line = capsys.readouterr().out
    assert line.startswith(
        f"rows {len(rows)} (train {len(train)}, test {len(test)}), "
        f"classes 4 (with {min(sizes)} to {max(sizes)} rows each), "
        f"features {len(columns(train))}, nonzeros {sum(len(row) for _, row in rows)}, "
        f"bytes {size}, files 6 (0 skipped), seconds "
    )
    assert line.count("\n") == 1


def test_trigrams_errors_are_one_sentence(
    tmp_path: Path, documents: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "o.svm")
    missing = tmp_path / "nix"
    few = (
        "found {} documents with at least {} passages where 2 or more are needed: give more text, "
    )
    few += "or a smaller --min-rows or --min-chars"
    for arguments, sentence in [
        ([missing, "-o", out], f"cannot read {missing}: no such file or folder"),
        ([documents / "a.txt", "-o", documents], f"cannot write {documents}: it is a folder"),
        ([documents / "a.txt", "-o", out], few.format(1, 10)),
        ([documents / "f.txt", "-o", out], few.format(0, 10)),
        ([documents, "-o", out, "--min-rows", "5000"], few.format(0, 5000)),
    ]:
        assert trigrams.main([str(argument) for argument in arguments]) == 1
        assert capsys.readouterr().err == f"make_trigrams.py: error: {sentence}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["docs"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "required: -o"),
        (["-o", "x", "--min-count", "0"], "--min-count must be at least 1"),
        (["-o", "x", "--min-rows", "0"], "--min-rows must be at least 1"),
        (["-o", "x", "--max-classes", "1"], "--max-classes must be at least 2"),
        (["-o", "x", "--min-chars", "2"], "--min-chars must be between 3 and --max-chars"),
        (["-o", "x", "--max-chars", "200"], "--min-chars must be between 3 and --max-chars"),
        (["-o", "x", "--values", "real"], "invalid choice: 'real'"),
        (["-o", "x", "--test-out", "./x"], "-o and --test-out must not be the same file"),
    ],
)
def test_trigrams_usage_errors(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        trigrams.main(arguments)
    assert stop.value.code == 2
    assert sentence in capsys.readouterr().err


def test_trigrams_run_as_a_script(tmp_path: Path, documents: Path) -> None:
    expected = run_trigrams(tmp_path, documents, *SHORT)
    command = [sys.executable, str(SCRIPTS / "make_trigrams.py"), str(documents), "-o", "x.svm"]
    finished([*command, *map(str, SHORT)], cwd=tmp_path, check=True)
    assert parse((tmp_path / "x.svm").read_bytes()) == expected


# --- make_synthetic -------------------------------------------------------------------------------


def make(problem: Any, rows: int, **options: Any) -> list[Row]:
    return parse(b"".join(synthetic.generate(problem, rows, **options)))


def score(problem: Any, row: dict[int, float], weights: Any) -> float:
    total = 0.0
    for feature, value in row.items():
        total += value * weights[feature - problem.start]
    return total


PROBLEMS = [
    {"features": 1000, "nnz": 10},
    {"features": 1000, "nnz": 10, "real": True, "power": 0.5, "start": 0},
    {"features": 300, "nnz": 40, "real": True, "power": 1.0, "seed": 5},
    {"features": 5000, "nnz": 3, "power": 1.5, "start": 10**12, "seed": -1},
    {"features": 20, "nnz": 18},
    {"features": 9, "nnz": 9, "real": True},
]


@pytest.mark.parametrize("settings", PROBLEMS)
def test_synthetic_rows_follow_the_true_weights(settings: dict[str, Any]) -> None:
    problem = synthetic.Problem(**settings)
    rows = make(problem, 2000)
    weights = synthetic.true_weights(problem)
    assert len(rows) == 2000
    assert weights.shape == (problem.features,)
    first, last = problem.start, problem.start + problem.features
    assert all(first <= feature < last for _, row in rows for feature in row)
    assert all(label == (1 if score(problem, row, weights) > 0 else -1) for label, row in rows)
    assert abs(sum(label for label, _ in rows)) < 0.12 * len(rows)

    counts = [len(row) for _, row in rows]
    spread = min(problem.nnz - 1, problem.features - problem.nnz)
    assert set(counts) == set(range(problem.nnz - spread, problem.nnz + spread + 1))
    assert abs(np.mean(counts) - problem.nnz) <= 4 * spread / np.sqrt(3 * len(rows))


def test_synthetic_values_lie_on_the_grid() -> None:
    ones = b"".join(synthetic.generate(synthetic.Problem(50, 5), 500))
    assert {entry.split(b":")[1] for entry in ones.split() if b":" in entry} == {b"1"}
    real = b"".join(synthetic.generate(synthetic.Problem(50, 25, real=True), 4000))
    texts = [entry.split(b":")[1] for entry in real.split() if b":" in entry]
    assert all(len(text) == 6 and text.startswith(b"0.") for text in texts)
    units = np.array([int(text[2:]) for text in texts])
    assert units.min() == 1
    assert units.max() == 9999
    assert len(set(units.tolist())) > 9900
    assert abs(units.mean() - 5000) < 5 * 9999 / np.sqrt(12 * len(units))


def test_synthetic_weights_are_standard_normal_less_a_constant() -> None:
    weights = synthetic.true_weights(synthetic.Problem(100_000, 10))
    assert abs(weights.std() - 1.0) < 0.015
    centred = np.sort(weights - weights.mean())
    assert abs(np.interp(1.0, centred, np.linspace(0, 1, len(centred))) - 0.8413) < 0.01
    # A function of seed and feature: the others do not matter but for the constant.
    fewer = synthetic.true_weights(synthetic.Problem(500, 20, power=1.0, start=7))
    np.testing.assert_allclose(np.diff(fewer), np.diff(weights[:500]), atol=1e-12)
    other = synthetic.true_weights(synthetic.Problem(500, 20, seed=1))
    assert abs(np.corrcoef(fewer, other)[0, 1]) < 0.2


@pytest.mark.parametrize("noise", [0.1, 0.5, 1.0])
def test_synthetic_noise_flips_labels_at_that_rate(noise: float) -> None:
    clean = make(synthetic.Problem(1000, 8), 4000)
    noisy = make(synthetic.Problem(1000, 8, noise=noise), 4000)
    assert [row for _, row in clean] == [row for _, row in noisy]
    flipped = sum(a != b for (a, _), (b, _) in zip(clean, noisy, strict=True)) / 4000
    assert abs(flipped - noise) <= 4 * np.sqrt(noise * (1 - noise) / 4000)


def test_synthetic_sorted_rows_are_the_same_rows() -> None:
    problem = synthetic.Problem(1000, 8, real=True, noise=0.1)
    lines = b"".join(synthetic.generate(problem, 3000)).splitlines()
    ordered = b"".join(synthetic.generate(problem, 3000, by_label=True)).splitlines()
    assert ordered == sorted(lines, key=lambda line: not line.startswith(b"-1"))
    assert ordered != lines


@pytest.mark.parametrize("by_label", [False, True])
@pytest.mark.parametrize("buffer", [1, 5000, 12345])
def test_synthetic_output_does_not_depend_on_the_buffer(by_label: bool, buffer: int) -> None:
    problem = synthetic.Problem(1000, 20, real=True, power=0.7, noise=0.05)
    expected = b"".join(synthetic.generate(problem, 1000, by_label=by_label))
    chunks = list(synthetic.generate(problem, 1000, by_label=by_label, buffer=buffer))
    assert len(chunks) > 10
    assert all(chunk.endswith(b"\n") for chunk in chunks)
    assert max(map(len, chunks)) <= max(buffer, 39 * 32 + 3)
    assert b"".join(chunks) == expected
    if not by_label:
        assert expected.startswith(b"".join(synthetic.generate(problem, 77)))


def test_synthetic_seeds_give_other_rows() -> None:
    a, b = (make(synthetic.Problem(1000, 8, seed=seed), 200) for seed in (0, 1))
    assert not {str(row) for _, row in a} & {str(row) for _, row in b}


@pytest.mark.parametrize("power", [0.0, 0.6, 1.0])
def test_synthetic_popularity_follows_the_power_law(power: float) -> None:
    n = 4000
    counts = np.zeros(n + 1)
    for _, row in make(synthetic.Problem(n, 4, power=power, start=0), 20_000):
        counts[list(row)] += 1
    # Mass of thirty bands of ids under the density x**-power on [1, n + 1).
    edges = np.unique(np.geomspace(10, n, 30).astype(int))
    grid = np.arange(1, n + 2, dtype=float)
    mass = np.log(grid) if power == 1.0 else grid ** (1.0 - power)
    expected = np.diff(mass[edges]) / (mass[-1] - mass[0])
    seen = np.add.reduceat(counts, edges)[:-1] / counts.sum()
    error = 5 * np.sqrt(expected / counts.sum()) + 0.03 * expected
    assert (np.abs(seen - expected) < error).all()
    if power:
        assert counts[0] > 2 * counts[10] > 2 * counts[n // 2]


@pytest.mark.parametrize(
    ("settings", "rows", "by_label", "digest"),
    [
        ({"features": 1000, "nnz": 10}, 2000, False, "0ac290ab51dbf2d9"),
        (
            {"features": 500, "nnz": 20, "real": True, "power": 0.8, "noise": 0.1, "start": 0,
             "seed": 3},
            1500, False, "94c36cc99de167e6",
        ),
        ({"features": 100_000, "nnz": 7, "power": 1.0, "seed": -2}, 1500, True, "9fbfdbceb83f245a"),
        (
            {"features": 50, "nnz": 40, "real": True, "power": 2.0, "noise": 0.5},
            761, False, "3b7795c8b006f70e",
        ),
    ],
)  # fmt: skip
def test_synthetic_two_classes_are_for_ever_the_same_bytes(
    settings: dict[str, Any], rows: int, by_label: bool, digest: str
) -> None:
    text = b"".join(synthetic.generate(synthetic.Problem(**settings), rows, by_label=by_label))
    assert hashlib.sha256(text).hexdigest()[:16] == digest


MANY = {"features": 2000, "nnz": 12, "classes": 40}
MANY_PROBLEMS = [
    MANY,
    {**MANY, "real": True, "power": 0.9, "class_power": 0.5, "noise": 0.1, "start": 0, "seed": 3},
    {**MANY, "class_power": 1.0, "class_share": 1.0, "class_features": 5, "start": 10**12},
    {"features": 9, "nnz": 9, "classes": 3, "class_share": 0.5},
    {"features": 30, "nnz": 20, "power": 1.3, "classes": 11, "class_features": 30},
]


@pytest.mark.parametrize("settings", MANY_PROBLEMS)
def test_synthetic_many_classes_are_rows_like_others(settings: dict[str, Any]) -> None:
    problem = synthetic.Problem(**settings)
    text = b"".join(synthetic.generate(problem, 1500))
    rows = parse(text)  # ids rise
    assert {label for label, _ in rows} == set(range(1, problem.classes + 1))
    first, last = problem.start, problem.start + problem.features
    assert all(first <= feature < last for _, row in rows for feature in row)
    spread = min(problem.nnz - 1, problem.features - problem.nnz)
    counts = {len(row) for _, row in rows}
    assert counts == set(range(problem.nnz - spread, problem.nnz + spread + 1))

    for buffer in (1, 5000):
        chunks = list(synthetic.generate(problem, 1500, buffer=buffer))
        assert len(chunks) > 4
        assert b"".join(chunks) == text
    assert text.startswith(b"".join(synthetic.generate(problem, 77)))
    totals = synthetic.Totals()
    ordered = b"".join(synthetic.generate(problem, 1500, by_label=True, totals=totals))
    lines = text.splitlines()
    assert ordered.splitlines() == sorted(lines, key=lambda line: int(line.split()[0]))
    assert totals.labels.tolist() == np.bincount([label for label, _ in rows])[1:].tolist()


def test_synthetic_classes_own_features_one_in_each_part_of_the_ids() -> None:
    features, owned, n = 100_000, 10, 6000
    problem = synthetic.Problem(
        features, 20, classes=6, class_share=0.25, class_features=owned, start=0
    )
    rows = make(problem, n)
    for wanted in range(1, 7):
        seen = Counter(feature for label, row in rows if label == wanted for feature in row)
        own = [feature for feature, count in seen.items() if count > 100]
        assert sorted(feature * owned // features for feature in own) == list(range(owned))
        # A quarter of the entries is owned, but for 1 % where a long row would need more than 10.
        share = sum(seen[feature] for feature in own) / seen.total()
        assert abs(share - 0.25) < 0.015
    # The others follow the same law as in two classes.
    plain = make(synthetic.Problem(features, 20, start=0), n)
    kept = [len(a.keys() & b.keys()) for (_, a), (_, b) in zip(rows, plain, strict=True)]
    assert abs(sum(kept) / sum(len(row) for _, row in rows) - 0.75) < 0.015


@pytest.mark.parametrize("power", [0.0, 0.7, 1.0])
def test_synthetic_classes_follow_their_power_law(power: float) -> None:
    n, classes = 20_000, 50
    problem = synthetic.Problem(500, 2, classes=classes, class_power=power)
    counts = np.bincount([label for label, _ in make(problem, n)], minlength=classes + 1)[1:]
    edges = np.arange(1, classes + 2, dtype=float)
    mass = np.log(edges) if power == 1.0 else edges ** (1.0 - power)
    expected = np.diff(mass) / (mass[-1] - mass[0]) * n
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()


@pytest.mark.parametrize("noise", [0.1, 1.0])
def test_synthetic_noise_gives_another_class_and_all_others_alike(noise: float) -> None:
    n = 8000
    clean = make(synthetic.Problem(1000, 3, classes=5), n)
    noisy = make(synthetic.Problem(1000, 3, classes=5, noise=noise), n)
    assert [row for _, row in clean] == [row for _, row in noisy]
    pairs = Counter((a, b) for (a, _), (b, _) in zip(clean, noisy, strict=True) if a != b)
    assert abs(pairs.total() - noise * n) <= 4 * np.sqrt(noise * (1 - noise) * n)
    assert len(pairs) == 20
    expected = noise * n / 20
    assert all(abs(count - expected) < 5 * np.sqrt(expected) for count in pairs.values())


@pytest.mark.parametrize(
    ("settings", "least"),
    [
        ({"features": 1000, "nnz": 10, "classes": 10}, 0.8),
        (
            {"features": 1000, "nnz": 20, "classes": 50, "real": True, "power": 0.8, "noise": 0.1,
             "class_power": 1.0},
            0.5,
        ),
    ],
)  # fmt: skip
def test_synthetic_classes_can_be_learnt(settings: dict[str, Any], least: float) -> None:
    text = b"".join(synthetic.generate(synthetic.Problem(**settings), 4000))
    assert accuracy(text, 3000) > least


def run_synthetic(path: Path, *arguments: Any) -> list[Row]:
    assert synthetic.main(["-o", str(path), *map(str, arguments)]) == 0
    return parse(path.read_bytes())


def test_synthetic_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.svm"
    weights_file = tmp_path / "w.npy"
    rows = run_synthetic(
        path, "--rows", 500, "--features", 100, "--nnz", 7, "--values", "real", "--noise", 0.1,
        "--power", 0.5, "--sorted", "--start", 0, "--seed", 4, "--weights-out", weights_file,
    )  # fmt: skip
    problem = synthetic.Problem(100, 7, real=True, noise=0.1, power=0.5, start=0, seed=4)
    assert rows == make(problem, 500, by_label=True)
    weights = np.load(weights_file)
    assert weights.dtype == np.float64
    np.testing.assert_array_equal(weights, synthetic.true_weights(problem))
    nonzeros = sum(len(row) for _, row in rows)
    positive = sum(label == 1 for label, _ in rows)
    assert capsys.readouterr().out.startswith(
        f"rows 500, features 100, nonzeros {nonzeros}, bytes {path.stat().st_size}, "
        f"classes +1:{positive} -1:{500 - positive}, seconds "
    )
    assert sorted(file.name for file in tmp_path.iterdir()) == ["s.svm", "w.npy"]


def test_synthetic_command_line_with_many_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.svm"
    rows = run_synthetic(
        path, "--rows", 400, "--features", 100, "--nnz", 7, "--noise", 0.1, "--classes", 30,
        "--class-power", 1.5, "--class-share", 0.4, "--class-features", 5, "--sorted",
    )  # fmt: skip
    problem = synthetic.Problem(
        100, 7, noise=0.1, classes=30, class_power=1.5, class_share=0.4, class_features=5
    )
    assert rows == make(problem, 400, by_label=True)
    counts = Counter(label for label, _ in rows)
    least = min(counts.values()) if len(counts) == 30 else 0
    assert capsys.readouterr().out.startswith(
        f"rows 400, features 100, nonzeros {sum(len(row) for _, row in rows)}, "
        f"bytes {path.stat().st_size}, classes {len(counts)} of 30 "
        f"(with {least} to {max(counts.values())} rows each), seconds "
    )


MANY_OPTIONS = ("--classes", 300, "--class-power", 1, "--power", 1)


@pytest.mark.parametrize(
    "extra", [(), ("--values", "real", "--power", 1.2), ("--sorted",), MANY_OPTIONS]
)
def test_synthetic_size_is_about_what_was_asked(tmp_path: Path, extra: tuple[Any, ...]) -> None:
    path = tmp_path / "s.svm"
    run_synthetic(path, "--bytes", "1MB", "--features", 100_000, "--nnz", 9, *extra)
    assert abs(path.stat().st_size - 1e6) < 2e4


@pytest.mark.parametrize(
    ("text", "size"),
    [("10GB", 10**10), ("1.5MiB", 3 << 19), ("4096", 4096), ("2 kb", 2000), ("3k", 3000)],
)
def test_synthetic_sizes(text: str, size: int) -> None:
    assert synthetic.parse_size(text) == size


def test_synthetic_stdout_and_a_reader_that_leaves(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "make_synthetic.py"), "-o", "-", "--features", "50"]
    done = finished([*command, "--nnz", "5", "--rows", "300"], text=False)
    assert done.returncode == 0
    assert parse(done.stdout) == make(synthetic.Problem(50, 5), 300)
    assert done.stderr.startswith(b"rows 300, ")
    with started(
        [*command, "--nnz", "5", "--bytes", "10TB"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as endless:
        assert endless.stdout is not None
        assert endless.stderr is not None
        assert endless.stdout.read(1000)
        endless.stdout.close()
        assert endless.wait() == 1
        assert endless.stderr.read() == b""


def test_synthetic_cannot_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x" / "s.svm"
    arguments = ["-o", str(path), "--rows", "5", "--features", "10", "--nnz", "2"]
    assert synthetic.main(arguments) == 1
    sentence = f"make_synthetic.py: error: cannot write {path}: No such file or directory\n"
    assert capsys.readouterr().err == sentence


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("--features 10 --nnz 2", "one of the arguments --rows --bytes is required"),
        ("--features 10 --nnz 2 --rows 5 --bytes 1MB", "not allowed with"),
        ("--features 10 --nnz 2 --rows 0", "--rows must be at least 1"),
        ("--features 10 --nnz 11 --rows 5", "nonzeros must be between 1 and the number of"),
        ("--features 10 --nnz 0 --rows 5", "nonzeros must be between 1 and the number of"),
        ("--features 10 --nnz 2 --rows 5 --noise 1.5", "noise must be between 0 and 1"),
        ("--features 10 --nnz 2 --rows 5 --power -1", "power must be between 0 and 100"),
        ("--features 10 --nnz 2 --rows 5 --start -1", "ids must be between 0 and 2**53"),
        ("--features 10 --nnz 2 --bytes 10XB", "not a size: '10XB' (write for instance 10GB)"),
        ("--features 10 --nnz 2 --bytes 5iB", "not a size"),
        ("--features 10 --nnz 2 --bytes 0", "not a size"),
        ("--features 10 --nnz 2 --rows 5 --classes 1", "classes must be between 2 and 10000000"),
        (
            "--features 10 --nnz 2 --rows 5 --class-share 0.5",
            "--class-share is for more than 2 classes: give --classes, too",
        ),
        ("--features 10 --nnz 2 --rows 5 --classes 9 --class-power -1", "class power must be"),
        ("--features 10 --nnz 2 --rows 5 --classes 9 --class-share 2", "class share must be"),
        ("--features 10 --nnz 2 --rows 5 --classes 9 --class-features 11", "class features must"),
        (
            "--features 10 --nnz 2 --rows 5 --classes 9 --weights-out w.npy",
            "--weights-out is for 2 classes: with more, a row follows from its class",
        ),
    ],
)
def test_synthetic_usage_errors(
    arguments: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        synthetic.main(["-o", "x", *arguments.split()])
    assert stop.value.code == 2
    assert sentence in capsys.readouterr().err
