"""Incomplete text: pipes, growing files, and resuming at saved positions."""

import io
import os
import select
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from helpers import Row, as_rows, slow_parse
from hypothesis import given
from hypothesis import strategies as st
from inside import (
    TAIL,
    InputOptions,
    LiveFile,
    Names,
    Naming,
    ParsedText,
    Patience,
    Source,
    SourceProgress,
    convert_inputs,
    convert_sources,
    hash_names,
    is_pipe,
    open_inputs,
)
from streams import PACK, small_pieces

import sbm

TEXT = b"".join(
    b"%d" % k + b"".join(b" %d:%d" % (j, k + 1) for j in range(1, k % 7))
    + b"\n# between\n" * (k % 3) + b"\n" * (k % 3 == 0)
    for k in range(90)
)  # fmt: skip
ROWS = slow_parse(TEXT)[0]


def plain(parsed: ParsedText) -> list[Row]:
    lengths = parsed.indptr[1:] - parsed.indptr[:-1]
    return as_rows(parsed.labels, parsed.indptr[:-1], lengths, parsed.ids, parsed.values)


def pieces_of(
    sources: Sequence[Source], patience: Patience | None = None, skip: bool = False
) -> Iterator[tuple[Source, list[Row]]]:
    patience = patience or Patience()
    with ThreadPoolExecutor(2) as pool:
        yield from convert_sources(sources, pool, plain, ahead=2, skip=skip, patience=patience)


def rows_of(
    sources: Sequence[Source], patience: Patience | None = None, skip: bool = False
) -> list[Row]:
    return [row for _, rows in pieces_of(sources, patience, skip) for row in rows]


def over_after(questions: int) -> Callable[[], bool]:
    asked = iter(range(questions))
    return lambda: next(asked, None) is None


# ---------------------------------------------------------------------------------- single files


def test_silent_pipe_does_not_block(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"")
    read, write = os.pipe()
    with os.fdopen(read, "rb", 0) as pipe, open(tmp_path / "f", "rb", 0) as file:
        assert [is_pipe(f) for f in (pipe, file, io.BytesIO())] == [True, False, False]
        live, room = LiveFile(pipe, "-", Patience()), memoryview(bytearray(10))
        assert live.readinto(room) is None
        os.write(write, b"some text")
        assert live.readinto(room) == 9
        assert bytes(room[:9]) == b"some text"
        assert live.readinto(room) is None
        os.close(write)
        assert [live.readinto(room), live.readinto(room)] == [0, 0]
    assert not is_pipe(pipe)  # it is closed


def test_partial_line_in_a_pipe_is_completed() -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb", 0) as pipe:
        live, room = LiveFile(pipe, "-", Patience(is_over=over_after(1))), bytearray(20)
        os.write(write, b"1 1:1\n2 2:")
        assert live.readinto(memoryview(room)) == 10
        os.write(write, b"3\n4 4:1\n")
        assert live.readinto(memoryview(room)) == 2
        assert live.readinto(memoryview(room)) == 0
        os.close(write)
        assert pipe.read() == b"4 4:1\n"  # left for the next reader


@pytest.mark.parametrize("follow", [False, True])
def test_reading_ends_with_patience(follow: bool, tmp_path: Path) -> None:
    path, room = tmp_path / "f", memoryview(bytearray(10))
    path.write_bytes(b"abc")
    for more in ({"is_over": over_after(1)}, {"idle_timeout": 0.0}):
        with open(path, "rb", 0) as file:
            patience = Patience(follow, **more)
            live = LiveFile(file, str(path), patience, follow)
            assert live.readinto(room) == 3  # available data is read, even after the timeout
            assert not patience.gave_up
            assert live.readinto(room) == 0
            assert patience.gave_up == (follow or "is_over" in more)


# ----------------------------------------------------------------------------------- whole sources

LINES = st.lists(
    st.one_of(
        st.tuples(st.integers(-3, 3), st.integers(0, 9)).map(
            lambda p: b"%d" % p[0] + b"".join(b" %d:%d" % (j, j + 1) for j in range(p[1])) + b"\n"
        ),
        st.sampled_from([b"\n", b"# nothing\n", b"x\n", b"1 2:\n"]),
    ),
    max_size=14,
)


@given(LINES, st.booleans(), st.sampled_from([*PACK]))
def test_text_resumes_from_any_position(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], newline: bool, ending: str
) -> None:
    text = b"".join(lines)
    text = text if newline else text.rstrip()
    rows, refused = slow_parse(text)
    path = tmp_path_factory.mktemp("lines") / f"a.svm{ending}"
    path.write_bytes(PACK[ending](text))
    with pytest.MonkeyPatch.context() as context:
        small_pieces(context, 48)
        source, places, n = Source(str(path)), [SourceProgress()], 0
        for piece_of, piece in pieces_of([source], skip=True):
            assert piece == rows[n : n + len(piece)]
            assert piece_of.before == places[-1]
            n += len(piece)
            places.append(source.done)
            assert (source.done.rows, source.done.tail) == (n, text[: source.done.text][-TAIL:])
        assert n == len(rows)
        assert (source.done.text, source.done.skipped) == (len(text), len(refused))
        for place in places:
            other = Source(str(path), done=place)
            assert rows_of([other], skip=True) == rows[place.rows :]
            assert other.done == source.done
            wanted = [f"{path}:{line}: {why}" for line, why in refused if line > place.lines]
            assert len(other.problems) == len(wanted)
            assert all(map(str.startswith, other.problems, wanted))  # the last may be truncated


@pytest.mark.long
def test_rotated_file_is_finished_before_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch, 64)
    other, path, old = (tmp_path / name for name in ("a.svm", "log.svm", "log.1"))
    other.write_bytes(b"9 9:9\n")
    path.write_bytes(TEXT)
    rows, seen = [], []
    patience = Patience(follow=True, is_over=lambda: len(rows) == 2 * len(ROWS) + 2)
    for source, piece in pieces_of([Source(str(other)), Source(str(path))], patience):
        rows += piece
        if source not in seen:
            seen.append(source)
        if len(rows) == len(ROWS) + 1 and not old.exists():
            with open(path, "ab") as end:
                path.rename(old)
                end.write(b"8 8:8\n")
        elif not piece and not path.exists():
            path.write_bytes(TEXT)
    assert rows == [(9, ((9, 9),)), *ROWS, (8, ((8, 8),)), *ROWS]
    assert [source.name for source in seen] == [str(other), str(path), str(path)]
    assert [source.was_replaced for source in seen] == [False, True, False]


@pytest.mark.long
def test_followed_file_waits_for_lines_and_handles_truncation(tmp_path: Path) -> None:
    path, rows = tmp_path / "log.svm", []
    path.write_bytes(b"1 1:1\n2 2:2")
    patience = Patience(follow=True, is_over=lambda: len(rows) == 3)
    for source, piece in pieces_of([Source(str(path))], patience):
        rows += piece
        if len(rows) == 1 and path.stat().st_size == 11:
            assert source.done.text == 6
            with open(path, "ab") as end:
                end.write(b"5\n")
        if len(rows) == 2 and path.stat().st_size > 6:
            path.write_bytes(b"5 5:5\n")
    assert rows == [(1, ((1, 1),)), (2, ((2, 25),)), (5, ((5, 5),))]


def test_no_source_is_opened_after_a_stop(tmp_path: Path) -> None:
    sources = [Source(str(tmp_path / name)) for name in "ab"]
    for source in sources:
        Path(source.name).write_bytes(TEXT)
    patience = Patience(is_over=over_after(1))
    assert rows_of(sources, patience) == ROWS
    assert patience.gave_up
    assert sources[1].done == SourceProgress()


# ------------------------------------------------------------------- predictions as rows arrive

TABLE = {"label": "y", "columns": [{"name": "a", "kind": "number"}]}


@pytest.mark.parametrize(
    ("kind", "options", "rows", "answers"),
    [
        ("libsvm", {}, ["1 1:2\n", "1:-1\n", "-1 1:-3\n1 1:1\n"], ["1\n", "-1\n", "-1\n1\n"]),
        ("libsvm", {"decision": True}, ["1:2\n", "1:-3\n"], ["2\n", "-3\n"]),
        ("libsvm", {"probability": True}, ["1:0\n", "1:0\n"], ["-1 0.5 0.5\n"] * 2),
        ("csv", {}, ["y,a\n1,2\n", "1,-1\n", "-1,-3\n1,1\n"], ["1\n", "-1\n", "-1\n1\n"]),
        ("vw", {}, ["1 | a:2\n", "| a:-1\n"], ["1\n", "-1\n"]),
    ],
)  # fmt: skip
def test_rows_of_a_pipe_are_answered_as_they_arrive(tmp_path, kind, options, rows, answers):
    record = {"vw": {"hash_bits": 22}, "csv": TABLE}.get(kind)
    ids = hash_names([b"a"], 22) if kind == "vw" else np.array([1])
    info = {"loss": "log_loss", **({} if record is None else {"names": record})}
    names = Names.of([b"a"]) if kind == "csv" else None
    model = sbm.Model(ids, np.ones((1, 1)), [-1.0, 1.0], info=info, names=names)
    coming, going = tmp_path / "in", tmp_path / "out"
    os.mkfifo(coming)
    os.mkfifo(going)
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(sbm.predict, model, coming, going, format=kind, **options)
        with open(going, "rb", 0) as reply, open(coming, "wb", 0) as feed:
            if options.get("probability"):
                assert take(reply, 12) == b"labels -1 1\n"  # before the first row
            for row, answer in zip(rows, answers, strict=True):
                feed.write(row.encode())
                assert take(reply, len(answer)) == answer.encode()
            feed.close()
            assert reply.read() == b""
        assert job.result(60)["rows"] == sum(answer.count("\n") for answer in answers)


def take(file, size: int) -> bytes:
    """Read `size` bytes that must come before anything else is written."""
    found = b""
    while len(found) < size and select.select([file], [], [], 60)[0]:
        found += file.read(size - len(found)) or b""
    return found


def test_bad_row_of_a_pipe_comes_after_the_answers_before_it(tmp_path):
    os.mkfifo(tmp_path / "in")
    model = sbm.Model(np.array([1]), np.ones((1, 1)), [-1.0, 1.0])
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(sbm.predict, model, tmp_path / "in", tmp_path / "out")
        with open(tmp_path / "in", "wb", 0) as feed:
            feed.write(b"1 1:1\n1 1:x\n")
            with pytest.raises(sbm.DataError, match="in:2"):
                job.result(60)
    assert not (tmp_path / "out").exists()


def test_table_of_a_pipe_can_be_abandoned(tmp_path):
    os.mkfifo(tmp_path / "in")
    options = InputOptions(format="csv").following(Naming(TABLE), "the model")
    with ThreadPoolExecutor(1) as pool, open_both_ways(tmp_path / "in") as feed:
        feed.write(b"y,a\n1,2\n")
        source = open_inputs([tmp_path / "in"], options)
        pieces = convert_inputs(
            source, pool, ParsedText.copy, ahead=2, patience=Patience(prompt=True)
        )
        assert len(next(pieces)[1].labels) == 1
        pieces.close()  # the reader waits for more


def open_both_ways(path: Path):
    """Open a named pipe for writing, without waiting for its reader."""
    return open(os.open(path, os.O_RDWR), "wb", 0)
