"""Vowpal Wabbit's text: its ids, its rows, and what is refused."""

import gzip
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import as_rows, store_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_parser import Row

from sbm.errors import DataError, SettingsError
from sbm.jobs.split import split
from sbm.store.blocks import read_manifest
from sbm.store.parsing import SPARE
from sbm.store.vw import explain_vw, hash_names, parse_vw

pyvw = pytest.importorskip("vowpalwabbit.pyvw")
IN_TURN: dict[str, Any] = {"blocks": 1, "shuffle": False, "threads": 2, "force": True}


def in_order(folder: Path) -> list[Row]:
    return [row for block in store_rows(folder) for row in block]


def parsed(text: bytes, bits: int = 18, **options: Any) -> Any:
    buffer = np.zeros(len(text) + SPARE, np.uint8)
    buffer[: len(text)] = np.frombuffer(text, np.uint8)
    return parse_vw(
        buffer, len(text), mask=(1 << bits) - 1, **{"dtype": "float64", "skip": True, **options}
    )


def rows_of(text: bytes, bits: int = 18) -> list[Row]:
    p = parsed(text, bits)
    assert not p.errors, [explain_vw(e) for e in p.errors]
    return as_rows(p.labels, p.indptr[:-1], np.diff(p.indptr), p.ids, p.values)


@pytest.fixture(scope="module")
def theirs() -> Any:
    """What Vowpal Wabbit makes of a line: its label, and its features added up by id."""
    workspace = pyvw.Workspace("--quiet --noconstant -b 18")

    def read(line: str) -> Row:
        example = workspace.parse(line)
        features: dict[int, float] = defaultdict(float)
        for identity, value in example.iter_features():
            features[identity] += value
        label = example.get_simplelabel_label()
        workspace.finish_example(example)
        return label, tuple(sorted(features.items()))

    yield read
    workspace.finish()


# Values are sums of few powers of two: exact in the float32 that Vowpal Wabbit computes with.
WORDS = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\n\r\t\v\f \0|:"), min_size=1),
    st.integers(0, 2**40).map(str),
    st.sampled_from(["a", "b", "12", "colour=red", "#", "'", "\x01a\x01", "é"]),
)
VALUES = st.sampled_from(["", "", ":1", ":0.5", ":-2", ":.25", ":4.", ":+3", ":1e1", ":0"])


@st.composite
def lines(draw: st.DrawFn) -> str:
    label = draw(st.sampled_from(["1", "-1", "0.5", "+3", "1 1", "-1 1.0 0", "left\t2"]))
    line = label + " " + draw(st.sampled_from(["", "'tag", "tag", "' "]))
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.one_of(st.just(""), WORDS))
        name += draw(st.sampled_from(["", "", ":2", ":0.5"])) if name else ""
        features = draw(st.lists(st.builds("{}{}".format, WORDS, VALUES), max_size=6))
        line += f"|{name} " + draw(st.sampled_from([" ", "\t", "  "])).join(features)
        line += draw(st.sampled_from(["", " "]))
    return line


@settings(deadline=None, derandomize=True, max_examples=60)
@given(line=lines())
def test_rows_are_those_of_vowpal_wabbit(line: str, theirs: Any) -> None:
    label, features = theirs(line)
    [(our_label, ours)] = rows_of(line.encode() + b"\n")
    assert our_label == label
    assert [i for i, _ in ours] == [i for i, _ in features]
    for (_, a), (_, b) in zip(ours, features, strict=True):
        assert math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-6)


def slow_hash(name: bytes, seed: int) -> int:
    """MurmurHash3_x86_32 by its definition; a name of digits is a number."""
    name = name.strip(bytes(range(33)))
    if all(48 <= c < 58 for c in name):
        return int(name or b"0") + seed

    def rotated(x: int, r: int) -> int:
        return ((x << r) | (x >> (32 - r))) & 0xFFFFFFFF

    h = seed & 0xFFFFFFFF
    for k in range(0, len(name), 4):
        part = int.from_bytes(name[k : k + 4], "little")
        h ^= rotated(part * 0xCC9E2D51 & 0xFFFFFFFF, 15) * 0x1B873593 & 0xFFFFFFFF
        if len(name) - k >= 4:
            h = (rotated(h, 13) * 5 + 0xE6546B64) & 0xFFFFFFFF
    h ^= len(name)
    h = (h ^ (h >> 16)) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ (h >> 13)) * 0xC2B2AE35 & 0xFFFFFFFF
    return h ^ (h >> 16)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(st.one_of(st.binary(), st.integers(0, 2**64 - 1).map(lambda n: b"%d" % n))))
def test_names_are_hashed_as_defined(names: list[bytes]) -> None:
    for bits in (1, 18, 32):
        ids = hash_names(names, bits).tolist()
        assert ids == [slow_hash(name, 0) % 2**bits for name in names]


REFUSED = [
    ("|f a", "found no label in front of the bar, and a blank behind it, as in 1 |f name:value"),
    ("1|f a", "found no label in front of the bar, and a blank behind it, as in 1 |f name:value"),
    ("x |f a", "found 'x' where a numeric label is expected, as in 1 |f name:value"),
    ("1 1 0 7 |f a", "found '7' where a numeric label is expected, as in 1 |f name:value"),
    ("nan |f a", "found 'nan', but only finite numbers are allowed"),
    (
        "1 2.5 |f a",
        (
            "found the importance '2.5', but rows have weights only while they are trained; leave "
            "it out, and give sbm train --weights FILE"
        ),
    ),
    ("1 1 0.5 |f a", "found the base '0.5', but there is no such thing here; leave it out"),
    ("1 |f a:x", "found 'x' where a decimal number is expected"),
    ("1 |f a:", "found '' where a decimal number is expected"),
    ("1 |f a:1:2", "found '1:2' where a decimal number is expected"),
    ("1 |f a:inf", "found 'inf', but only finite numbers are allowed"),
    ("1 |f:x a", "found 'x' where a decimal number is expected"),
    (
        "1 |f a:1e39",
        (
            "found '1e39', too large for the value type (float64 reaches 1.79e308, float32 3.4e38; "
            "see --dtype)"
        ),
    ),
    (
        "1 1:2 3:4",
        "found '1' without a bar, a line of Vowpal Wabbit's is written as 1 |f name:value",
    ),
    ("1 |f :1", "found ':1' where a name is expected, as in 1 |f name:value"),
    ("1 |:2 a", "found ':2' where a name is expected, as in 1 |f name:value"),
]


@pytest.mark.parametrize(("line", "sentence"), REFUSED)
def test_what_is_no_such_line_is_refused_in_one_sentence(
    tmp_path: Path, line: str, sentence: str
) -> None:
    path = tmp_path / "a.vw"
    path.write_text(f"1 |f a:2\n\n{line}\n-1 |f b:0.5\n")
    with pytest.raises(DataError) as caught:
        split(path, tmp_path / "a.sbm")
    assert str(caught.value) == f"{path}:3: {sentence}"
    report = split(path, tmp_path / "a.sbm", on_error="skip", **IN_TURN)
    assert [(y, [v for _, v in f]) for y, f in in_order(tmp_path / "a.sbm")] == [
        (1.0, [2.0]), (-1.0, [0.5])
    ]  # fmt: skip
    assert report["problems"] == [f"{path}:3: {sentence}"]


@settings(deadline=None, derandomize=True, max_examples=80)
@given(st.lists(st.binary(max_size=30), max_size=4), st.booleans())
def test_no_bytes_lead_the_parser_astray(rows: list[bytes], skip: bool) -> None:
    text = b"".join(b"1 |f a:0.5 " + row + b"\n" for row in rows)
    p = parsed(text, skip=skip)
    assert len(p.indptr) == len(p.labels) + 1
    assert p.indptr[-1] == len(p.ids)
    assert not len(p.ids) or (p.ids.min() >= 0 and p.ids.max() < 2**18)
    if skip:
        assert len(p.labels) + p.n_errors <= p.n_lines == text.count(b"\n")


def test_the_shortest_names_need_more_room_than_the_text_promises() -> None:
    text = b"1 |f " + b" ".join(b"%c" % (97 + k % 26) for k in range(5000)) + b"\n"
    [(_, features)] = rows_of(text)
    assert sum(v for _, v in features) == 5000
    assert len(features) == 26


def test_pieces_and_threads_change_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = b"".join(b"%d |f x%d:%d.5 y |g z%d\n" % (k % 2, k, k, k % 7) for k in range(3000))
    (tmp_path / "a.vw").write_bytes(text)
    (tmp_path / "b.vw.gz").write_bytes(gzip.compress(text))
    split(tmp_path / "a.vw", tmp_path / "a.sbm", **IN_TURN)
    monkeypatch.setattr("sbm.store.text.PIECE", 1000)
    split(tmp_path / "b.vw.gz", tmp_path / "b.sbm", **{**IN_TURN, "threads": 3})
    assert in_order(tmp_path / "b.sbm") == in_order(tmp_path / "a.sbm") == rows_of(text, 22)


def test_what_vowpal_wabbit_makes_of_a_data_frame_is_read(tmp_path: Path, theirs: Any) -> None:
    pandas = pytest.importorskip("pandas")
    from vowpalwabbit.dftovw import DFtoVW

    frame = pandas.DataFrame(
        {"y": [1, -1, 1], "age": [33.5, 0.0, 2.0], "colour": ["red", "blue", "dark"]}
    )
    made = DFtoVW.from_column_names(df=frame, y="y", x=["age", "colour"])
    lines = made.convert_df()
    (tmp_path / "a.vw").write_text("\n".join(lines))
    split(tmp_path / "a.vw", tmp_path / "a.sbm", hash_bits=18, **IN_TURN)
    assert in_order(tmp_path / "a.sbm") == [theirs(line) for line in lines]


def test_bits_are_kept_with_the_store(tmp_path: Path) -> None:
    path, store = tmp_path / "a.vw", tmp_path / "a.sbm"
    path.write_text("1 |f a b\n")
    split(path, store, hash_bits=10, **IN_TURN)
    path.write_text("-1 |f a c\n")
    split(path, store, append=True)
    ids = {i for _, features in in_order(store) for i, _ in features}
    assert len(ids) == 3
    assert max(ids) < 1024
    records = [g["options"]["names"] for g in read_manifest(store)["generations"]]
    assert records == [{"hash_bits": 10, "label": None, "text": []}] * 2
    with pytest.raises(SettingsError) as caught:
        split(path, store, append=True, hash_bits=11)
    assert str(caught.value) == (
        f"hash_bits is 11, but names in {store} were hashed to 10 bits; leave out --hash-bits"
    )
    for bits in (0, 33):
        with pytest.raises(SettingsError, match=rf"hash_bits is {bits}; it must be from 1 to 32"):
            split(path, tmp_path / "b.sbm", hash_bits=bits)
