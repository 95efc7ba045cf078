"""Sources of text: compression, pipes, globs, pieces, and the place of what is refused."""

import bz2
import errno
import gzip
import hashlib
import io
import json
import lzma
import os
import random
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import zstandard
from helpers import as_rows, store_rows
from hypothesis import example, given, settings
from hypothesis import strategies as st
from processes import finished
from slow_parser import Row, slow_parse

from sbm.errors import DataError
from sbm.store import text as text_module
from sbm.store.text import Source, expand_inputs, parse_sources

ROOT = Path(__file__).resolve().parent.parent
TEXT = "".join(
    f"{(-1) ** k:+d} " + " ".join(f"{(k * j) % 97 + 100 * j}:{j / 8}" for j in range(1, k % 9))
    + "\n# between\n"
    for k in range(400)
).encode()  # fmt: skip

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}


def read(
    *names: str | Path, ahead: int = 2, skip: bool = False, largest_line: int = 1 << 30
) -> tuple[list[Source], list[Row]]:
    sources = expand_inputs([str(name) for name in names])
    rows: list[Row] = []
    with ThreadPoolExecutor(2) as pool:
        for _, p in parse_sources(sources, pool, ahead=ahead, skip=skip, largest_line=largest_line):
            lengths = p.indptr[1:] - p.indptr[:-1]
            rows += as_rows(p.labels, p.indptr[:-1], lengths, p.ids, p.values)
    return sources, rows


def refusal(*names: str | Path, largest_line: int = 1 << 30) -> str:
    with pytest.raises(DataError) as caught:
        read(*names, largest_line=largest_line)
    return str(caught.value)


# ---------------------------------------------------------------------------------- compression


@pytest.mark.parametrize("ending", COMPRESS)
def test_compressed_text_gives_the_rows_and_the_digest_of_the_bytes_on_disk(
    tmp_path: Path, ending: str
) -> None:
    data = COMPRESS[ending](TEXT)
    (tmp_path / f"a.svm{ending}").write_bytes(data)
    [source], rows = read(tmp_path / f"a.svm{ending}")
    assert rows == slow_parse(TEXT)[0]
    assert len(rows) == source.rows == 400
    assert source.sha256 == hashlib.sha256(data).hexdigest()
    assert source.size == source.read == source.parsed == len(data)
    assert (source.text, source.lines, source.skipped) == (len(TEXT), 800, 0)
    assert source.describe() == {
        "name": f"a.svm{ending}",
        "bytes": len(data),
        "sha256": source.sha256,
        "rows": 400,
        "skipped": 0,
    }


@pytest.mark.parametrize("ending", [e for e in COMPRESS if e])
def test_files_of_several_members_are_read_to_the_end(tmp_path: Path, ending: str) -> None:
    cut = len(TEXT) // 3  # in the middle of a line
    parts = [TEXT[:cut], TEXT[cut : cut + 1], b"", TEXT[cut + 1 :]]
    data = b"".join(COMPRESS[ending](part) for part in parts)
    (tmp_path / f"a.svm{ending}").write_bytes(data)
    [source], rows = read(tmp_path / f"a.svm{ending}")
    assert rows == slow_parse(TEXT)[0]
    assert source.sha256 == hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("ending", [e for e in COMPRESS if e])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9, 0.999])
def test_a_truncated_compressed_file_is_refused(tmp_path: Path, ending: str, share: float) -> None:
    r = random.Random(1)
    text = "".join(f"1 1:{r.random()}\n" for _ in range(2000)).encode()
    data = COMPRESS[ending](text)
    path = tmp_path / f"a.svm{ending}"
    path.write_bytes(data[: int(len(data) * share)])
    assert re.fullmatch(
        re.escape(str(path)) + r": cannot be read behind byte \d+ \(.+\); "
        r"the file is damaged or not what its name says",
        refusal(path),
    )


@pytest.mark.parametrize("ending", COMPRESS)
def test_whichever_read_fails_the_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    path = tmp_path / f"a.svm{ending}"
    path.write_bytes(COMPRESS[ending](TEXT))
    failing, reads = 0, 0

    class BadDisk(io.FileIO):
        """Whose failures have no name, as those of the system."""

        def readinto(self, buffer: Any, /) -> int:
            nonlocal reads
            reads += 1
            if reads == failing:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return super().readinto(buffer)

        def read(self, size: int | None = -1, /) -> bytes:
            room = bytearray(size or 0)
            return bytes(room[: self.readinto(room)])

    monkeypatch.setattr(text_module, "_open", lambda name, patience: BadDisk(name))
    read(path)
    for failing in range(1, reads + 1):
        reads = 0
        said = refusal(path)
        assert said.startswith(f"{path}: cannot be read behind byte "), failing
        assert "Input/output error" in said


@pytest.mark.parametrize("ending", [e for e in COMPRESS if e])
def test_a_second_member_that_is_cut_off_is_refused(tmp_path: Path, ending: str) -> None:
    second = COMPRESS[ending](b"-1 2:2\n" * 50)
    path = tmp_path / f"a.svm{ending}"
    path.write_bytes(COMPRESS[ending](b"1 1:1\n" * 50) + second[: len(second) - 9])
    assert "the file is damaged or not what its name says" in refusal(path)


@pytest.mark.parametrize("ending", [e for e in COMPRESS if e])
def test_text_that_is_not_compressed_as_its_name_says_is_refused(
    tmp_path: Path, ending: str
) -> None:
    (tmp_path / f"a.svm{ending}").write_bytes(TEXT)
    assert "it is not compressed, whatever its name says; rename it without" in refusal(
        tmp_path / f"a.svm{ending}"
    )


@pytest.mark.parametrize("ending", [".gz", ".bz2", ".xz"])
def test_damaged_compressed_bytes_are_refused_or_do_not_matter(tmp_path: Path, ending: str) -> None:
    r = random.Random(2)
    text = "".join(f"1 1:{r.random()}\n" for _ in range(300)).encode()
    data = COMPRESS[ending](text)
    path = tmp_path / f"a.svm{ending}"
    expected = slow_parse(text)[0]
    refused = 0
    for _ in range(120):
        bad = bytearray(data)
        bad[r.randrange(len(bad))] ^= 1 << r.randrange(8)
        path.write_bytes(bad)
        try:
            rows = read(path)[1]
        except DataError:
            refused += 1
        else:
            assert rows == expected
    assert refused > 60


# ------------------------------------------------------------------------------------- which files


def test_globs_give_their_files_in_order_of_name(tmp_path: Path) -> None:
    for name in ("b.svm", "a.svm", "c.txt"):
        (tmp_path / name).write_text(f"{ord(name[0])} 1:1\n")
    sources, rows = read(tmp_path / "c.txt", tmp_path / "*.svm")
    assert [Path(s.name).name for s in sources] == ["c.txt", "a.svm", "b.svm"]
    assert [label for label, _ in rows] == [99, 97, 98]


def test_a_file_whose_name_looks_like_a_pattern_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "a[1].svm").write_text("5 1:1\n")
    (tmp_path / "a1.svm").write_text("6 1:1\n")
    assert read(tmp_path / "a[1].svm")[1] == [(5, ((1, 1),))]


def test_a_missing_file_a_pattern_without_files_and_a_folder_are_refused(tmp_path: Path) -> None:
    hint = "does not exist; give LIBSVM text files, globs, or - for a pipe"
    for name in (tmp_path / "none.svm", tmp_path / "*.svm"):
        assert refusal(name) == f"{name} {hint}"
    assert refusal(tmp_path) == f"{tmp_path} is a folder; give the LIBSVM text files in it"


def test_standard_input_is_read_to_its_end(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sbm", "split", "-", "-o", str(tmp_path / "x.sbm"), "-q"]
    done = finished(command, feed=TEXT, cwd=ROOT, text=False)
    assert done.returncode == 0, done.stderr
    blocks = store_rows(tmp_path / "x.sbm")
    assert sorted(row for block in blocks for row in block) == sorted(slow_parse(TEXT)[0])
    content = json.loads((tmp_path / "x.sbm" / "manifest.json").read_text())
    [source] = content["manifest"]["generations"][0]["sources"]
    assert source["name"] == "-"
    assert source["sha256"] == hashlib.sha256(TEXT).hexdigest()
    assert source["bytes"] == len(TEXT)


def test_a_refused_line_of_standard_input_is_named_and_no_traceback_is_shown(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "sbm", "split", "-", "-o", str(tmp_path / "x.sbm"), "-q"]
    done = finished(command, feed=b"1\n1 x\n", cwd=ROOT, text=False)
    assert done.returncode == 1
    assert done.stderr.decode() == (
        "sbm: standard input, line 2: found 'x' where a feature written as id:value is expected\n"
    )
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------ pieces


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "PIECE", 64)


LINE_LENGTHS = st.lists(
    st.one_of(st.integers(0, 80), st.integers(0, 700), st.sampled_from([62, 63, 64, 65, 127, 128])),
    max_size=12,
)


def line_of(length: int, k: int) -> bytes:
    """Return a line of about `length` bytes that says which line it is."""
    features = b""
    j = 1
    while len(features) < length - 12:
        features += b" %d:%d" % (j, k + 1)
        j += 1
    comment = max(0, length - len(features) - len(b"%d" % k))
    return b"%d" % k + features + b"#" * comment if length else b""


@settings(deadline=None, derandomize=True, max_examples=150)
@given(LINE_LENGTHS, st.booleans(), st.integers(0, 3))
@example([150, 300, 10], True, 1)  # a rest as long as a piece, behind a line of several
@example([200, 200, 200, 200, 5, 5], False, 1)
@example([63, 63, 64, 63], True, 0)
@example([64], False, 0)
def test_rows_and_line_numbers_do_not_depend_on_where_text_is_cut(
    lengths: list[int], newline: bool, ahead: int
) -> None:
    body = b"\n".join(line_of(length, k) for k, length in enumerate(lengths))
    body += b"\n" if newline else b""
    expected = slow_parse(body)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_module, "PIECE", 64)
        from tempfile import TemporaryDirectory

        with TemporaryDirectory() as folder:
            path = Path(folder, "a.svm")
            path.write_bytes(body)
            [source], rows = read(path, ahead=ahead)
            assert rows == expected
            assert source.text == len(body)
            assert source.lines == body.count(b"\n") + (not body.endswith(b"\n") and body != b"")
            path.write_bytes(body + b"\n" * (not newline) + b"bad\n")
            line = (body + b"\n" * (not newline)).count(b"\n") + 1
            assert refusal(path).startswith(f"{path}:{line}: found 'bad'")


def test_what_another_text_left_in_the_buffer_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "a.svm").write_bytes(b"#Zh")
    (tmp_path / "b.svm").write_bytes(b"B")  # BZh is how bzip2 begins
    sources, rows = read(tmp_path / "a.svm", tmp_path / "b.svm", skip=True)
    assert (rows, sources[1].problems) == (
        [],
        [f"{tmp_path / 'b.svm'}:1: found 'B' where a numeric label is expected"],
    )


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("ending", COMPRESS)
def test_compressed_text_of_many_pieces_is_read_whole(tmp_path: Path, ending: str) -> None:
    text = TEXT + line_of(1500, 3) + b"\n" + line_of(1500, 4) + b"\n" + TEXT
    half = len(text) // 2
    data = COMPRESS[ending](text[:half]) + COMPRESS[ending](text[half:])
    (tmp_path / f"a.svm{ending}").write_bytes(data)
    [source], rows = read(tmp_path / f"a.svm{ending}")
    assert rows == slow_parse(text)[0]
    assert source.lines == 1602


@pytest.mark.usefixtures("small_pieces")
def test_refused_lines_are_counted_in_the_whole_file_and_skipped_on_request(tmp_path: Path) -> None:
    path, other = tmp_path / "a.svm", tmp_path / "b.svm"
    text = b"".join(b"%d 1:1\n" % k + (b"%d oops\n" % k if k % 5 == 0 else b"") for k in range(200))
    path.write_bytes(text)
    other.write_bytes(b"7 1:1\n7 1:nan")
    rows, refused = slow_parse(text)
    assert len(refused) == 40
    assert refusal(path) == f"{path}:{refused[0][0]}: {refused[0][1]}"
    [first, second], got = read(path, other, skip=True)
    assert got == [*rows, (7, ((1, 1),))]
    assert (first.rows, first.skipped, first.lines) == (200, 40, 240)
    assert (second.rows, second.skipped, second.lines) == (1, 1, 2)
    assert first.problems == [f"{path}:{line}: {why}" for line, why in refused[:20]]
    assert second.problems == [f"{other}:2: found 'nan', but only finite numbers are allowed"]


@pytest.mark.usefixtures("small_pieces")
def test_a_line_longer_than_allowed_is_refused_and_a_shorter_one_read(tmp_path: Path) -> None:
    path = tmp_path / "a.svm"
    path.write_bytes(b"1 1:1\n" + line_of(500, 1) + b"\n")
    assert len(read(path, largest_line=512)[1]) == 2
    path.write_bytes(b"1 1:1\n" * 100 + line_of(900, 1) + b"\n")
    message = refusal(path, largest_line=512)
    found = re.fullmatch(
        re.escape(str(path)) + r":(\d+) or later: found a line longer than 512 bytes, "
        r"more than --mem has room for; raise --mem",
        message,
    )
    assert found, message
    assert 1 <= int(found[1]) <= 101


def test_lines_of_many_megabytes_are_read(tmp_path: Path) -> None:
    # Lines of 10 MB and 9 MB in pieces of 4 MB: nothing of the second may get lost.
    counts = [1_000_000, 900_000, 3]
    with open(tmp_path / "a.svm", "w") as file:
        for k, n in enumerate(counts):
            file.write(f"{k} " + " ".join(f"{j + 1000000}:1" for j in range(n)) + "\n")
    size = (tmp_path / "a.svm").stat().st_size
    sources = expand_inputs([tmp_path / "a.svm"])
    with ThreadPoolExecutor(1) as pool:
        pieces = [p for _, p in parse_sources(sources, pool, ahead=1)]
    assert sources[0].text == sources[0].size == size
    labels = [label for p in pieces for label in p.labels.tolist()]
    lengths = [n for p in pieces for n in (p.indptr[1:] - p.indptr[:-1]).tolist()]
    assert (labels, lengths) == ([0, 1, 2], counts)
    assert all((p.ids[: counts[2]] == [1000000, 1000001, 1000002]).all() for p in pieces)
