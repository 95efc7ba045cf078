"""Scripts that make data: rows computed by hand or counted slowly, and stable bytes."""

import bz2
import gzip
import lzma
import random
from collections import Counter, defaultdict

import numpy as np
import pytest
import zstandard
from helpers import load_script

prep = load_script("data.prep")
prose = load_script("data.prose")
synthetic = load_script("data.synthetic")
trigrams = load_script("data.trigrams")


def parse(data):
    """Return rows as label and {id: value}; ids must rise."""
    rows = []
    for line in data.decode().removesuffix("\n").split("\n"):
        label, *entries = line.split(" ")
        pairs = [(int(i), float(v)) for i, v in (entry.split(":") for entry in entries)]
        assert [i for i, _ in pairs] == sorted({i for i, _ in pairs})
        rows.append((int(label), dict(pairs)))
    return rows


def columns(rows):
    """Return for each feature the rows that it occurs in."""
    found = defaultdict(list)
    for n, (_, row) in enumerate(rows):
        for feature in row:
            found[feature].append(n)
    return {feature: tuple(where) for feature, where in found.items()}


def run(script, folder, *arguments):
    """Run a script; return rows to train on and to test."""
    out, test = folder / "out.svm", folder / "out.t.svm"
    words = [*map(str, arguments), "-o", str(out), "--test-out", str(test)]
    assert script.main(words) == 0
    return parse(out.read_bytes()), parse(test.read_bytes())


# --- make_prep ------------------------------------------------------------------------------------

FIVE_PLACES = """\
The cat sat on the mat. The cat sat
by the mat! A pound of wool

With

- The dog sat from the start
"""


def test_prep_rows_match_hand_computed_ones(tmp_path):
    (tmp_path / "five.txt").write_text(FIVE_PLACES)
    words = ["--min-count", "1", "--classes", "ten", "-o", str(tmp_path / "out.svm")]
    assert prep.main([str(tmp_path / "five.txt"), *words]) == 0
    rows = parse((tmp_path / "out.svm").read_bytes())
    # on: 5 words (two right of it) and all pairs but (2, 3); by: the same; of: two words left, one
    # right, three pairs; with: alone; from: as on.
    assert {label: len(row) for label, row in rows} == {5: 11, 8: 11, 1: 6, 6: 0, 9: 11}
    assert {value for _, row in rows for value in row.values()} == {1.0}
    labels = [label for label, _ in rows]
    shared = Counter(frozenset(labels[n] for n in where) for where in columns(rows).values())
    assert shared == {
        frozenset({5, 8, 9}): 4,  # the _ _, sat, the; sat-the
        frozenset({5, 8}): 7,  # cat, mat; the-cat, cat-sat, the-mat, cat-the, sat-mat
        frozenset({9}): 7,  # dog, start; the-dog, dog-sat, the-start, dog-the, sat-start
        frozenset({1}): 6,  # a, pound, wool; a-pound, pound-wool, a-wool
    }


@pytest.fixture
def text_file(tmp_path):
    rng = random.Random(1)
    words = [*prep.PREPOSITIONS, *(f"w{i}" for i in range(30))]
    lines = [" ".join(rng.choices(words, k=rng.randint(1, 12))) for _ in range(400)]
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{line}. X!\n\n" for line in lines))
    return path


def test_prep_rows_depend_only_on_text_and_seed(tmp_path, text_file, monkeypatch):
    plain = text_file.read_bytes()
    expected = run(prep, tmp_path, text_file)
    ten = run(prep, tmp_path, text_file, "--classes", "ten")
    assert [[(1 if k == 1 else -1, row) for k, row in rows] for rows in ten] == [*expected]
    other = run(prep, tmp_path, text_file, "--seed", 1)
    assert expected != other
    monkeypatch.setattr(prose, "PIECE", 7)
    frames = zstandard.compress(plain[:1000]) + zstandard.compress(plain[1000:])
    for suffix, packed in {"": plain, ".gz": gzip.compress(plain), ".bz2": bz2.compress(plain),
                           ".xz": lzma.compress(plain), ".zst": frames}.items():  # fmt: skip
        path = tmp_path / f"again.txt{suffix}"
        path.write_bytes(packed)
        assert run(prep, tmp_path, path) == expected, suffix


# --- make_trigrams --------------------------------------------------------------------------------


def test_trigrams_match_slow_count(tmp_path):
    documents, rng = tmp_path / "docs", random.Random(2)
    documents.mkdir()
    for name, letters in {"a": "abcdef", "b": "aeiouß", "c": "абвгд", "e": "xyz"}.items():
        words = ["".join(rng.choices(letters, k=rng.randint(2, 6))) for _ in range(900)]
        lines = [" ".join(words[k : k + 15]) for k in range(0, 75 if name == "e" else 900, 15)]
        (documents / f"{name}.txt").write_text("".join(f"{line}.\n\n" for line in lines))
    options = (documents, "--min-chars", 40, "--max-chars", 90, "--min-count", 4, "--seed", 3)
    train, test = run(trigrams, tmp_path, *options)
    passages = [  # e.txt has too few
        list(trigrams.passages_of(trigrams.sentences_of(path.read_text()), 40, 90))
        for path in sorted(documents.iterdir())[:3]
    ]
    assert {len(text) for texts in passages for text in texts} <= set(range(40, 91))
    every = [(k, text) for k, texts in enumerate(passages) for text in texts]
    order, trained = trigrams.hold_out(np.array([k for k, _ in every]), 0.1, 3)
    found = [{every[n][1][i : i + 3] for i in range(len(every[n][1]) - 2)} for n in order]
    counts = Counter(gram for grams in found[:trained] for gram in grams)
    ids = {gram: i for i, gram in enumerate(sorted(g for g in counts if counts[g] >= 4), 1)}
    expected = [
        (every[n][0] + 1, {ids[gram]: 1.0 for gram in sorted(grams) if gram in ids})
        for n, grams in zip(order, found, strict=True)
    ]
    assert (train + test, len(train)) == (expected, trained)
    tested = Counter(label for label, _ in test)
    for label, texts in enumerate(passages, 1):
        assert abs(tested[label] - 0.1 * len(texts)) < 1
    again, _ = run(trigrams, tmp_path, *options, "--values", "tfidf")
    assert [list(row) for _, row in again] == [list(row) for _, row in train]
    assert all(abs(sum(v**2 for v in row.values()) - 1) < 1e-4 for _, row in again if row)


# --- make_synthetic -------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 5])
def test_synthetic_rows_match_options(classes):
    problem = synthetic.Problem(features=5000, nnz=30, power=1.5, real=True, classes=classes)
    text = b"".join(problem.text(2000))
    rows = parse(text)
    assert {len(row) for _, row in rows} == set(range(1, 60))
    ids = {feature for _, row in rows for feature in row}
    assert (min(ids), max(ids) <= 5000) == (1, True)
    if classes == 2:
        weights = problem.weights
        scores = [sum(v * weights[k - 1] for k, v in row.items()) for _, row in rows]
        assert [label for label, _ in rows] == [1 if score > 0 else -1 for score in scores]
    assert {label for label, _ in rows} == ({-1, 1} if classes == 2 else {1, 2, 3, 4, 5})
    assert text.startswith(b"".join(problem.text(300)))
    some = b"".join(problem.text(None, 9999))
    assert text.startswith(some)
    assert 9999 <= len(some) < 11_000


# --- people ---------------------------------------------------------------------------------------


def test_people_have_both_labels_and_stable_bytes(tmp_path):
    people = load_script("data.people")
    for name in ("a.csv", "b.csv"):
        people.write_table(tmp_path / name, 50, people.person, random.Random(0))
    head, *rows = (tmp_path / "a.csv").read_text().splitlines()
    assert head == "label,age,income,children,km,rate"
    assert rows[0] == "yes,72,23420,0,34.93,0.009182"
    assert len(rows) == 50
    assert {row.split(",")[0] for row in rows} == {"yes", "no"}
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
