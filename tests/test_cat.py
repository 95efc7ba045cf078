"""Cat: the rows of a store come back in the order of the sources."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from helpers import store_rows
from hypothesis import given
from hypothesis import strategies as st
from inside import BlockStore, cli, main, number_lines, patch, word_lines
from slow_parser import slow_parse

import sbm
from sbm.errors import SettingsError, StoreError

FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)
ROWS = st.lists(
    st.tuples(
        st.one_of(st.sampled_from([1.0, -1.0]), FLOATS),
        st.dictionaries(st.integers(0, 2**63 - 1) | st.integers(0, 9), FLOATS, max_size=6),
    ),
    min_size=1,
    max_size=30,
)


def text_of(rows):
    return "".join(
        f"{y!r} " + " ".join(f"{i}:{v!r}" for i, v in sorted(f.items())) + "\n" for y, f in rows
    )


@given(ROWS, ROWS, st.sampled_from(["float32", "float64"]), st.sampled_from([1, 3]))
def test_text_comes_back(tmp_path_factory, first, second, dtype, nnz):
    """Two sources, several blocks and pieces of any size."""
    folder = tmp_path_factory.mktemp("cat")
    (folder / "a.svm").write_text(text_of(first))
    (folder / "b.svm").write_text(text_of(second))
    sources = [folder / "a.svm", folder / "b.svm"]
    options = {"dtype": dtype, "force": True, "threads": 1}
    sbm.split(sources, folder / "a.sbm", blocks=2, new_labels=True, **options)
    with pytest.MonkeyPatch.context() as context:
        patch(context, "_NNZ", nnz)
        report = sbm.cat(folder / "a.sbm", folder / "c.svm")
    assert report["rows"] == len(first) + len(second)
    expected = slow_parse((text_of(first) + text_of(second)).encode(), dtype)
    assert slow_parse((folder / "c.svm").read_bytes(), dtype) == expected
    for kind in ("parquet", "feather"):
        sbm.cat(folder / "a.sbm", folder / f"c.{kind}", format=kind)
        for name, store in ((f"c.{kind}", "again.sbm"), ("c.svm", "text.sbm")):
            sbm.split(folder / name, folder / store, blocks=1, shuffle=False, **options)
        assert store_rows(folder / "again.sbm") == store_rows(folder / "text.sbm")


DOUBLES = st.one_of(
    st.floats(),
    st.integers(-(10**18), 10**18).map(float),
    st.tuples(st.integers(-(10**8), 10**8), st.integers(0, 12)).map(lambda t: t[0] / 10 ** t[1]),
    st.integers(-70, 70).map(lambda k: 2.0**k),
)


@given(st.lists(st.lists(DOUBLES, min_size=3, max_size=3), min_size=1, max_size=9))
def test_numbers_are_written_as_python_writes_them(rows):
    """Shortest decimals, the closest of those; whole numbers without a point."""
    numbers, lengths = np.array(rows), np.full(len(rows), 2, np.int32)
    text = bytes(number_lines(numbers[:, 0], lengths, None, numbers[:, 1:].ravel() + 0.0))
    expected = [
        str(int(x)) if x.is_integer() and abs(x) < 2**64 else repr(x) for row in rows for x in row
    ]
    assert text.decode().split() == expected
    assert text.count(b"\n") == len(rows)


@given(
    st.lists(st.text("aé 0", max_size=5), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=9),
)
def test_words_are_written_as_python_joins_them(words, rows):
    codes = np.array(rows, np.int32).reshape(-1, 2) % len(words)
    expected = "".join(f"{words[a]}\t{words[b]}\n" for a, b in codes.tolist())
    assert bytes(word_lines(codes, words, "\t")).decode() == expected


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_numbers_of_float32_read_back_through_float64(numbers):
    values, ids = np.array(numbers), np.arange(len(numbers), dtype=np.int64)
    lengths = np.array([len(values)], np.int32)
    text = bytes(number_lines(np.zeros(1), lengths, ids, values, is_single=True)).decode()
    found = [token.split(":") for token in text.split()[1:]]
    assert [int(one) for one, _ in found] == ids.tolist()
    assert np.float32([float(x) for _, x in found]).tolist() == numbers
    short = [(x, y) for (_, x), y in zip(found, numbers, strict=True) if 1e-4 < abs(y) < 1e6]
    assert all(x == str(np.float32(y)).removesuffix(".0") for x, y in short)


def test_words_weights_and_names_come_back(tmp_path):
    (tmp_path / "a.csv").write_text("size,w,animal\n1,2,ox\n2,1,cat\n3,0.5,ox\n")
    sbm.split(tmp_path / "a.csv", tmp_path / "a.sbm", label="animal", weight="w")
    report = sbm.cat(tmp_path / "a.sbm", tmp_path / "a.svm", names=tmp_path / "names.txt")
    assert report["left_out"] == ["weights", "words"]
    size = int((tmp_path / "names.txt").read_text().split()[0])
    assert (tmp_path / "a.svm").read_text() == f"1 {size}:1\n0 {size}:2\n1 {size}:3\n"
    assert sbm.cat(tmp_path / "a.sbm", tmp_path / "a.pq", format="parquet")["left_out"] == []
    found = []
    for name in ("a.csv", "a.pq"):
        names = (
            {"label": "animal"} if name == "a.csv" else {"feature_names": tmp_path / "names.txt"}
        )
        weight = "w" if name == "a.csv" else "weight"
        model, _ = sbm.train(tmp_path / name, tmp_path / "m.model", weight=weight, **names)
        found.append((model.label_names, model.top(9)))
    assert found[0] == found[1]
    assert found[0][0] == ["cat", "ox"]


def test_command_writes_text_with_ascending_ids(tmp_path):
    (tmp_path / "a.svm").write_text("1 7:0.1\n-1 3:1e-20 7:1\n")
    sbm.split(tmp_path / "a.svm", tmp_path / "a.sbm")
    report = sbm.cat(tmp_path / "a.sbm", tmp_path / "b.svm")
    assert (tmp_path / "b.svm").read_text() == (tmp_path / "a.svm").read_text()
    line = ["cat", str(tmp_path / "a.sbm")]
    assert CliRunner().invoke(cli, [*line, "--json"]).exit_code != 0
    done = CliRunner().invoke(cli, [*line, "-o", str(tmp_path / "c.svm"), "--json"])
    assert json.loads(done.stdout) == {**report, "output": str(tmp_path / "c.svm")}
    with pytest.raises(SettingsError, match="unknown format 'svm'"):
        sbm.cat(tmp_path / "a.sbm", tmp_path / "b.svm", format="svm")
    sbm.split(tmp_path / "a.svm", tmp_path / "s.sbm", shards=2, blocks=2)
    with pytest.raises(StoreError, match="shard"):
        sbm.cat(tmp_path / "s.0.sbm", tmp_path / "b.svm")


def test_damaged_store_leaves_no_output(tmp_path):
    (tmp_path / "a.svm").write_text("1 2:0.1\n-1 3:0.5 7:1\n" * 50)
    sbm.split(tmp_path / "a.svm", tmp_path / "a.sbm", blocks=2)
    block = next((tmp_path / "a.sbm").glob("block-*"))
    data = bytearray(block.read_bytes())
    data[-3] ^= 1
    block.write_bytes(data)
    with pytest.raises(StoreError, match=r"damaged|checksum"):
        sbm.cat(tmp_path / "a.sbm", tmp_path / "b.svm")
    assert not list(tmp_path.glob("b.svm*"))


def test_expired_sources_are_left_out(tmp_path):
    for name, label in (("a", 1), ("b", 2)):
        (tmp_path / f"{name}.svm").write_text(f"{label} 1:1\n" * 3)
        sbm.split(tmp_path / f"{name}.svm", tmp_path / "s.sbm", append=name == "b")
    sbm.expire(tmp_path / "s.sbm", sources=["a.svm"])
    sbm.cat(tmp_path / "s.sbm", tmp_path / "out.svm")
    assert (tmp_path / "out.svm").read_text() == "2 1:1\n" * 3
    assert BlockStore(tmp_path / "s.sbm").n_rows == 3
    assert np.loadtxt(tmp_path / "out.svm", usecols=0).tolist() == [2, 2, 2]


def test_rows_go_to_standard_output(tmp_path, capfd):
    text = "1 1:1 2:0.5\n-1 2:1\n"
    (tmp_path / "a.svm").write_text(text)
    sbm.split(tmp_path / "a.svm", tmp_path / "a.sbm")
    for more, code, out in (([], 0, text), (["--json"], 2, "")):
        with pytest.raises(SystemExit) as end:
            main(["cat", str(tmp_path / "a.sbm"), "-o", "-", *more])
        assert (end.value.code, capfd.readouterr().out) == (code, out)
