"""Sources of text: compression, globs, pieces, and positions in error messages."""

import hashlib
import io
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers import as_rows, store_rows
from hypothesis import example, given
from hypothesis import strategies as st
from inside import ParsedText, Source, convert_sources, expand_inputs, patch
from slow_parser import Row, slow_parse
from streams import PACK, small_pieces

import sbm
from sbm.errors import DataError

TEXT = "".join(
    f"{(-1) ** k:+d} " + " ".join(f"{(k * j) % 97 + 100 * j}:{j / 8}" for j in range(1, k % 9))
    + "\n# between\n"
    for k in range(400)
).encode()  # fmt: skip
ROWS = slow_parse(TEXT)[0]
EVERY_ENDING = pytest.mark.parametrize("ending", PACK)
PACKED = pytest.mark.parametrize("ending", [ending for ending in PACK if ending])


def read(
    *names: str | Path, ahead: int = 2, skip: bool = False, largest_line: int | None = None
) -> tuple[list[Source], list[Row]]:
    sources = expand_inputs([str(name) for name in names])
    rows: list[Row] = []
    with ThreadPoolExecutor(2) as pool:
        for _, p in convert_sources(
            sources, pool, ParsedText.copy, ahead=ahead, skip=skip, largest_line=largest_line
        ):
            lengths = p.indptr[1:] - p.indptr[:-1]
            rows += as_rows(p.labels, p.indptr[:-1], lengths, p.ids, p.values)
    return sources, rows


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def refusal(*names: str | Path, **options: int) -> str:
    with pytest.raises(DataError) as caught:
        read(*names, **options)
    return str(caught.value)


# ---------------------------------------------------------------------------------- compression


@EVERY_ENDING
@pytest.mark.parametrize("piece", [64, 2 << 20])
def test_compressed_members_give_rows_and_digest(
    ending: str, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch, piece)
    cut = len(TEXT) // 3  # in the middle of a line
    parts = [TEXT[:cut], TEXT[cut : cut + 1], b"", TEXT[cut + 1 :]]
    data = b"".join(map(PACK[ending], parts))
    [source], rows = read(write(tmp_path / f"a.svm{ending}", data))
    assert rows == ROWS
    assert source.size == source.read == source.parsed == len(data)
    assert (source.done.text, source.done.lines, source.done.skipped) == (len(TEXT), 800, 0)
    assert source.describe() == {
        "name": f"a.svm{ending}", "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest(),
        "rows": 400, "skipped": 0,
    }  # fmt: skip


@PACKED
def test_truncated_or_misnamed_compressed_file_is_rejected(ending: str, tmp_path: Path) -> None:
    text = "".join(f"1 1:{random.Random(k).random()}\n" for k in range(2000)).encode()
    data = PACK[ending](text)
    for cut in (len(data) // 50, len(data) // 2, len(data) - 2, 2 * len(data) - 9):
        path = write(tmp_path / f"a.svm{ending}", (data * 2)[:cut])
        said = refusal(path)
        assert said.startswith(f"{path}: ")
        assert "byte" in said
        assert "damaged" in said
    assert refusal(write(path, TEXT)).endswith(
        f"{path.name}: the file is not compressed; rename it without {ending}"
    )
    assert f"{tmp_path}/a.svm: found " in refusal(write(tmp_path / "a.svm", data))


@EVERY_ENDING
def test_read_error_names_the_file(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class BadDisk(io.FileIO):
        def read(self, *arguments: Any) -> Any:
            raise OSError("Input/output error")

        readinto = read

    path = write(tmp_path / f"a.svm{ending}", PACK[ending](TEXT))
    patch(monkeypatch, "_open", lambda source, patience: BadDisk(source.name))
    said = refusal(path)
    assert said.startswith(f"{path}: ")
    assert "Input/output error" in said
    assert "rename" not in said


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz"])
def test_flipped_bit_is_reported_or_harmless(ending: str, tmp_path: Path) -> None:
    r = random.Random(2)
    data = PACK[ending](TEXT[:3000])
    path, expected, refused = tmp_path / f"a.svm{ending}", slow_parse(TEXT[:3000])[0], 0
    for _ in range(40):
        bad = bytearray(data)
        bad[r.randrange(len(bad))] ^= 1 << r.randrange(8)
        write(path, bytes(bad))
        try:
            assert read(path)[1] == expected
        except DataError:
            refused += 1
    assert refused > 20


# ------------------------------------------------------------------------------------- which files


def test_names_and_globs_are_read_in_order(tmp_path: Path) -> None:
    for name in ("b.svm", "a.svm", "a[1].svm", "c.txt"):
        write(tmp_path / name, b"%d 1:1\n" % ord(name[-5]))
    names = [tmp_path / name for name in ("c.txt", "?.svm", "a[1].svm")]
    sources, rows = read(*names)
    assert [Path(s.name).name for s in sources] == ["c.txt", "a.svm", "b.svm", "a[1].svm"]
    assert [label for label, _ in rows] == [ord(letter) for letter in "cab]"]
    for name in ("none.svm", "*.vw"):
        assert refusal(tmp_path / name).startswith(f"{tmp_path / name} does not exist")
    assert refusal(tmp_path).startswith(f"{tmp_path} is a folder")


def test_standard_input_is_read_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(TEXT)))
    [source], rows = read("-")
    assert rows == ROWS
    assert source.describe()["sha256"] == hashlib.sha256(TEXT).hexdigest()
    assert (source.describe()["name"], source.path, source.read) == ("-", "-", len(TEXT))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"1\n1 x\n")))
    assert refusal("-").startswith("standard input, line 2: found 'x'")
    monkeypatch.setattr(sys, "stdin", None)
    assert "standard input is closed" in refusal("-")


# ------------------------------------------------------------------------------------------ pieces


def line_of(length: int, k: int) -> bytes:
    """Return a line of about `length` bytes whose label is its number."""
    features, j = b"", 1
    while len(features) < length - 12:
        features += b" %d:%d" % (j, k + 1)
        j += 1
    comment = max(0, length - len(features) - len(b"%d" % k))
    return b"%d" % k + features + b"#" * comment if length else b""


@given(
    st.lists(st.one_of(st.integers(0, 700), st.integers(60, 66), st.just(128)), max_size=12),
    st.booleans(),
    st.integers(0, 3),
)
@example([150, 300, 10], True, 1)  # a remainder as long as a piece, after a line of several pieces
@example([200, 200, 200, 200, 5, 5], False, 1)
@example([63, 63, 64, 63], True, 0)
@example([64], False, 0)
def test_rows_and_lines_do_not_depend_on_pieces(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], newline: bool, ahead: int
) -> None:
    body = b"\n".join(line_of(length, k) for k, length in enumerate(lengths))
    body += b"\n" if newline else b""
    with pytest.MonkeyPatch.context() as context:
        small_pieces(context, 64)
        path = write(tmp_path_factory.mktemp("cuts") / "a.svm", body)
        [source], rows = read(path, ahead=ahead)
        assert rows == slow_parse(body)[0]
        assert source.done.text == len(body)
        assert source.done.lines == body.count(b"\n") + (not body.endswith(b"\n") and body != b"")
        body += b"\n" * (not newline)
        write(path, body + b"bad\n")
        assert refusal(path).startswith(f"{path}:{body.count(10) + 1}: found 'bad'")


def test_skipped_lines_are_counted_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch, 64)
    text = b"".join(b"%d 1:1\n" % k + (b"%d oops\n" % k if k % 5 == 0 else b"") for k in range(200))
    path, other = write(tmp_path / "a.svm", text), write(tmp_path / "b.svm", b"7 1:1\n7 1:nan")
    rows, refused = slow_parse(text)
    assert refusal(path) == f"{path}:{refused[0][0]}: {refused[0][1]}"
    [first, second], got = read(path, other, skip=True)
    assert got == [*rows, (7, ((1, 1),))]
    assert (first.done.rows, first.done.skipped, first.done.lines) == (200, 40, 240)
    assert (second.done.rows, second.done.skipped, second.done.lines) == (1, 1, 2)
    assert first.problems == [f"{path}:{line}: {why}" for line, why in refused[:20]]
    assert [problem.split(":")[1] for problem in second.problems] == ["2"]


def test_too_long_line_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch, 64)
    path = write(tmp_path / "a.svm", b"1 1:1\n" + line_of(500, 1) + b"\n")
    assert len(read(path, largest_line=512)[1]) == 2
    write(path, b"1 1:1\n" * 100 + line_of(900, 1) + b"\n")
    said = refusal(path, largest_line=512)
    assert 1 <= int(said.removeprefix(f"{path}:").split()[0]) <= 101
    assert "512 bytes" in said
    assert "--mem" in said


# -------------------------------------------------------------------------------- very many files


@pytest.fixture
def few_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    patch(monkeypatch, "MOST_SOURCES", 4)


def write_many(folder: Path, n: int) -> bytes:
    """Write `n` files, with and without a last line end, blank, compressed; return their text."""
    dice, whole = random.Random(n), b""
    for k in range(n):
        text = b"".join(line_of(dice.randrange(9, 60), k) + b"\n" for _ in range(dice.randrange(4)))
        text += dice.choice([b"", b"", b"# none", b"2 7:1", b"\n\n"])
        ending = dice.choice(["", "", *PACK])
        begin = b"\xef\xbb\xbf" if dice.random() < 0.2 and not ending else b""
        write(folder / f"{k:03d}.svm{ending}", PACK[ending](text) if ending else begin + text)
        whole += text if not text or text.endswith(b"\n") else text + b"\n"
    return whole


def test_very_many_files_are_read_as_few_sources(tmp_path: Path, few_sources: None) -> None:
    for n in (5, 30, 61):
        folder = tmp_path / str(n)
        folder.mkdir()
        whole = write(tmp_path / f"{n}.svm", write_many(folder, n))
        options = {"shuffle": False, "blocks": 1, "new_labels": True}
        store = sbm.split(folder / "*", tmp_path / f"{n}.sbm", **options)
        one = sbm.split(whole, tmp_path / f"{n}-one.sbm", shuffle=False, blocks=1)
        assert [store[k] for k in ("rows", "nnz", "features")] == [
            one[k] for k in ("rows", "nnz", "features")
        ]
        assert store_rows(tmp_path / f"{n}.sbm") == store_rows(tmp_path / f"{n}-one.sbm")
        sources = sbm.info(tmp_path / f"{n}.sbm")["sources"]
        assert len(sources) <= 4
        with pytest.raises(DataError, match="already in"):
            sbm.split(folder / "*", tmp_path / f"{n}.sbm", append=True)


def test_error_in_one_of_very_many_files_is_located(tmp_path: Path, few_sources: None) -> None:
    write_many(tmp_path, 40)
    for k in range(40):
        (path,) = tmp_path.glob(f"{k:03d}*")
        before = path.read_bytes()
        ending = path.suffix.replace(".svm", "")
        text = b"1 1:1\n\n1 oops\n"
        path.write_bytes(PACK[ending](text) if ending else text)
        with pytest.raises(DataError, match=rf"^{path}:3: found 'oops'"):
            sbm.split(tmp_path / "*.svm*", tmp_path / "s.sbm")
        if ending:
            path.write_bytes(PACK[ending](text)[:-3])
            with pytest.raises(DataError, match=rf"^{path}: cannot read"):
                sbm.split(tmp_path / "*.svm*", tmp_path / "s.sbm")
        path.write_bytes(before)
