"""Text that is not all there yet: pipes, growing files, and places in them to go on from."""

import bz2
import gzip
import io
import lzma
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import zstandard
from helpers import Row, as_rows, slow_parse
from hypothesis import example, given, settings
from hypothesis import strategies as st
from streams import chunks, small_pieces, stdin_of, writer

from sbm.errors import DataError
from sbm.store.live import TAIL, LiveFile, Patience, Place, Readable, go_to, is_pipe, is_replay
from sbm.store.parsing import ParsedText
from sbm.store.text import Source, convert_sources

TEXT = b"".join(
    b"%d" % k + b"".join(b" %d:%d" % (j, k + 1) for j in range(1, k % 7))
    + b"\n# between\n" * (k % 3) + b"\n" * (k % 3 == 0)
    for k in range(90)
)  # fmt: skip
ROWS = slow_parse(TEXT)[0]
TORN = " (the last line has no line end: something stopped in its middle)"


class Stream:
    """Gives parts one by one; None where nothing is there for now."""

    def __init__(self, parts: Sequence[bytes | None]) -> None:
        self.parts = list(parts)

    def readinto(self, buffer: memoryview, /) -> int | None:
        while self.parts and self.parts[0] == b"":
            self.parts.pop(0)
        if not self.parts:
            return 0
        part = self.parts.pop(0)
        if part is None:
            return None
        n = min(len(part), len(buffer))
        buffer[:n] = part[:n]
        self.parts.insert(0, part[n:])
        return n


def read_all(stream: Readable, size: int = 7) -> bytes:
    data, room = b"", memoryview(bytearray(size))
    while (n := stream.readinto(room)) != 0:
        data += bytes(room[: n or 0])
    return data


def plain(parsed: ParsedText) -> list[Row]:
    lengths = parsed.indptr[1:] - parsed.indptr[:-1]
    return as_rows(parsed.labels, parsed.indptr[:-1], lengths, parsed.ids, parsed.values)


def pieces_of(
    sources: Sequence[Source], patience: Patience | None = None, skip: bool = False
) -> Iterator[tuple[Source, list[Row]]]:
    with ThreadPoolExecutor(2) as pool:
        yield from convert_sources(
            sources, pool, plain, ahead=2, skip=skip, patience=patience or Patience()
        )


def rows_of(sources: Sequence[Source], patience: Patience | None = None) -> list[Row]:
    return [row for _, rows in pieces_of(sources, patience) for row in rows]


def left(source: Source, pipe: bool = False) -> Source:
    """A source that goes on where this one ended."""
    other = Source(source.name, place=source.place)
    if pipe:
        other.head, other.rest, other.carried = source.head, source.rest, source.carried
    return other


def over_after(questions: int) -> Callable[[], bool]:
    asked = iter(range(questions))
    return lambda: next(asked, None) is None


# ---------------------------------------------------------------------------------- single files


def test_pipes_are_told_from_files(tmp_path: Path) -> None:
    read, write = os.pipe()
    (tmp_path / "f").write_bytes(b"")
    with os.fdopen(read, "rb", 0) as pipe, open(tmp_path / "f", "rb", 0) as file:
        assert is_pipe(pipe)
        assert not is_pipe(file)
        assert not is_pipe(io.BytesIO())
    os.close(write)
    assert not is_pipe(pipe)  # it is closed


def test_a_silent_pipe_holds_nobody_up() -> None:
    read, write = os.pipe()
    with os.fdopen(read, "rb", 0) as pipe:
        live = LiveFile(pipe, "-", Patience())
        room = memoryview(bytearray(10))
        assert live.readinto(room) is None
        os.write(write, b"some text")
        assert live.readinto(room) == 9
        assert bytes(room[:9]) == b"some text"
        assert live.readinto(room) is None
        os.close(write)
        assert live.readinto(room) == 0
        assert live.readinto(room) == 0


@pytest.mark.parametrize("follow", [False, True])
def test_patience_ends_the_reading(follow: bool, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    room = memoryview(bytearray(10))
    with open(tmp_path / "f", "rb", 0) as file:
        patience = Patience(follow, is_over=over_after(1))
        assert LiveFile(file, "f", patience, follow).readinto(room) == 3
        assert not patience.gave_up
        assert LiveFile(file, "f", patience, follow).readinto(room) == 0
        assert patience.gave_up
    with open(tmp_path / "f", "rb", 0) as file:
        patience = Patience(follow, idle_timeout=0.0)
        live = LiveFile(file, str(tmp_path / "f"), patience, follow)
        assert live.readinto(room) == 3  # what is there is read, late or not
        assert not patience.gave_up
        assert live.readinto(room) == 0
        assert patience.gave_up == follow  # a file that is not followed has an end


def test_a_followed_file_is_read_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"")
    room = memoryview(bytearray(10))
    with open(path, "rb", 0) as file, open(path, "ab", 0) as end:
        live = LiveFile(file, str(path), Patience(), follow=True)
        assert live.readinto(room) is None
        end.write(b"abc")
        assert live.readinto(room) == 3
        path.unlink()  # it may come again
        assert live.readinto(room) is None
        end.write(b"de")
        path.write_bytes(b"other")
        assert live.readinto(room) == 2  # first what the old one still has
        assert not live.was_replaced
        assert live.readinto(room) == 0
        assert live.was_replaced


def test_a_followed_file_that_is_cut_is_at_its_end(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"abcdef")
    room = memoryview(bytearray(10))
    with open(path, "rb", 0) as file:
        live = LiveFile(file, str(path), Patience(), follow=True)
        assert live.readinto(room) == 6
        path.write_bytes(b"abc")
        assert live.readinto(room) == 0
        assert live.was_replaced


# ----------------------------------------------------------------------------- replays and places

BYTES = st.text("ab\n", max_size=12).map(str.encode)
PARTS = st.lists(st.one_of(st.none(), BYTES), max_size=8)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(BYTES, PARTS, st.integers(1, 9))
@example(b"ab", [b"a", None, b"b", b"c"], 3)
@example(b"ab", [b"a"], 3)
@example(b"", [b"a"], 3)
def test_a_replay_is_known_by_its_head_and_nothing_of_it_is_lost(
    head: bytes, parts: list[bytes | None], size: int
) -> None:
    data = b"".join(part for part in parts if part)
    again, stream = is_replay(Stream(parts), head, Patience())
    assert again == (head != b"" and data.startswith(head))
    assert read_all(stream, size) == data


@settings(deadline=None, derandomize=True, max_examples=300)
@given(BYTES, BYTES, st.integers(0, 3))
def test_a_place_is_known_by_the_text_in_front_of_it(
    before: bytes, behind: bytes, cut: int
) -> None:
    before += b"\n" * (before != b"")
    place = Place(len(before), tail=before[-TAIL:])
    parts = [before[:cut], None, before[cut:] + behind]
    assert read_all(go_to(place, Stream(parts), "f", Patience())) == behind
    with TemporaryDirectory() as folder:
        path = Path(folder, "f")
        path.write_bytes(before + behind)
        with open(path, "rb", 0) as file:
            assert read_all(go_to(place, file, "f", Patience(), file)) == behind
    if before:
        for other in (before[:-1], bytes([before[0] ^ 1]) + before[1:], b"x" + before):
            with pytest.raises(DataError) as caught:
                go_to(place, Stream([other]), "f", Patience())
            assert str(caught.value) == (
                f"f is not the text that was learned from before, its first {len(before)} bytes "
                "differ; give the text that is new in a file of its own"
            )


@pytest.mark.parametrize(
    ("behind", "is_whole"), [(b"", True), (b"\n2\n", True), (b"\r\n2\n", True), (b"5\n", False)]
)
def test_a_line_that_was_taken_without_its_end_must_not_go_on(
    behind: bytes, is_whole: bool
) -> None:
    place = Place(4, 2, 2, tail=b"1\n2:")
    stream = go_to(place, Stream([b"1\n2:", None, behind]), "f", Patience())
    if is_whole:
        assert read_all(stream) == behind
        return
    with pytest.raises(DataError) as caught:
        read_all(stream)
    assert str(caught.value) == (
        "f:2: the line had no line end when it was learned, and has gone on since"
    )


def test_a_text_that_is_not_there_because_of_a_stop_is_no_other_text() -> None:
    patience = Patience(is_over=lambda: True)
    patience.ends()
    stream = go_to(Place(9, tail=b"x" * 9), Stream([b"xx"]), "f", patience)
    assert read_all(stream) == b""


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


@settings(deadline=None, derandomize=True, max_examples=60)
@given(LINES, st.booleans())
def test_a_text_read_on_from_any_place_gives_the_rows_behind_it(
    lines: list[bytes], newline: bool
) -> None:
    text = b"".join(lines)
    text = text if newline else text.rstrip()
    rows, refused = slow_parse(text)
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        small_pieces(patch, 48)
        path = Path(folder, "a.svm")
        path.write_bytes(text)
        source, places, n = Source(str(path)), [Place()], 0
        for piece_of, piece in pieces_of([source], skip=True):
            assert piece == rows[n : n + len(piece)]
            assert piece_of.before == places[-1]
            n += len(piece)
            places.append(source.place)
            assert source.place.rows == n
            assert source.place.tail == text[: source.place.text][-TAIL:]
        assert n == len(rows)
        end = source.place
        assert (end.text, end.skipped) == (len(text), len(refused))
        for place in places:
            other = Source(str(path), place=place)
            got = [row for _, piece in pieces_of([other], skip=True) for row in piece]
            assert got == rows[place.rows :]
            assert other.place == end
            wanted = [f"{path}:{line}: {why}" for line, why in refused if line > place.lines]
            assert [problem.removesuffix(TORN) for problem in other.problems] == wanted


@settings(deadline=None, derandomize=True, max_examples=20)
@given(st.lists(st.integers(1, len(TEXT)), min_size=1, max_size=3), st.sampled_from([31, 400]))
@example([len(TEXT) - 1], 64)
@example([1, 1], 64)
def test_a_pipe_read_on_by_another_reader_gives_the_same_rows(cuts: list[int], piece: int) -> None:
    # Each reader gets what was written up to a cut, in the middle of a line or not, and is stopped.
    with pytest.MonkeyPatch.context() as patch:
        small_pieces(patch, piece)
        source, rows, begin = Source("-"), [], 0
        for end in [*sorted(cuts), None]:
            source = left(source, pipe=True)
            read, write = os.pipe()
            with stdin_of(patch, read):
                os.write(write, TEXT[begin:end])
                if end is None:
                    os.close(write)
                # A pipe that stays open and brings nothing ends by the clock.
                rows += rows_of([source], Patience(idle_timeout=0.0))
            if end is not None:
                os.close(write)
                begin = end
                assert len(rows) == len(slow_parse(TEXT[: end - len(source.rest)])[0])
                assert TEXT[:end].endswith(source.rest)
        assert rows == ROWS
        assert source.rest == b""


@pytest.mark.parametrize("cut", [0, 1, 300, 301, 302, 303, 304, 305, len(TEXT) - 1])
def test_a_pipe_that_begins_again_goes_on_behind_what_was_taken(
    cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch, 64)
    read, write = os.pipe()
    source = Source("-")
    with stdin_of(monkeypatch, read):
        os.write(write, TEXT[:cut])
        first = rows_of([source], Patience(idle_timeout=0.0))
    os.close(write)
    for _ in range(2):  # what is passed over may be followed by the next stop
        source = left(source, pipe=True)
        read, write = os.pipe()
        with writer(write, chunks(TEXT, (5, 333))), stdin_of(monkeypatch, read):
            rows = rows_of([source])
        assert first + rows == ROWS
        assert source.place.text == len(TEXT)
        assert source.head == TEXT[:TAIL]
        first = ROWS


def test_a_pipe_that_brings_nothing_leaves_everything_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read, write = os.pipe()
    source = Source("-")
    with stdin_of(monkeypatch, read):
        os.write(write, b"1 1:1\n2 2:2")
        assert rows_of([source], Patience(idle_timeout=0.0)) == [(1, ((1, 1),))]
    os.close(write)
    before = left(source, pipe=True)
    read, write = os.pipe()
    with stdin_of(monkeypatch, read):
        other = left(source, pipe=True)
        assert rows_of([other], Patience(idle_timeout=0.0)) == []
    os.close(write)
    assert left(other, pipe=True) == before
    assert before.rest == b"2 2:2"


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstandard.compress,
}  # fmt: skip


@pytest.mark.parametrize("ending", COMPRESS)
def test_compressed_text_is_read_on_from_a_place(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch, 200)
    path = tmp_path / f"a.svm{ending}"
    path.write_bytes(COMPRESS[ending](TEXT))
    source = Source(str(path))
    places = [source.place for _ in pieces_of([source])]
    assert len(places) > 3
    for place in places:
        assert rows_of([Source(str(path), place=place)]) == ROWS[place.rows :]
    path.write_bytes(COMPRESS[ending](b"7" + TEXT))
    with pytest.raises(DataError, match="is not the text that was learned from before"):
        rows_of([Source(str(path), place=places[0])])


def test_rows_in_front_of_a_refused_line_come_before_the_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = TEXT.splitlines(True)
    for piece in (64, 1 << 20):
        small_pieces(monkeypatch, piece)
        for k in (0, 1, 40, len(lines)):
            path = tmp_path / "a.svm"
            path.write_bytes(b"".join([*lines[:k], b"1 a\n", *lines[k:]]))
            rows, source = [], Source(str(path))
            with pytest.raises(DataError) as caught:  # noqa: PT012  the loop is what raises
                for _, part in pieces_of([source]):
                    rows += part
            assert str(caught.value) == (
                f"{path}:{k + 1}: found 'a' where a feature written as id:value is expected"
            )
            assert rows == slow_parse(b"".join(lines[:k]))[0]
            assert source.place.lines <= k


def test_only_the_last_line_is_said_to_be_torn(tmp_path: Path) -> None:
    path = tmp_path / "a.svm"
    for text, is_torn in ((b"1 1:1\n2 x", True), (b"1 1:1\n2 x\n", False), (b"2 x\n1 1", False)):
        path.write_bytes(text)
        with pytest.raises(DataError) as caught:
            rows_of([Source(str(path))])
        assert str(caught.value).endswith(TORN) == is_torn


def test_a_followed_file_that_is_rotated_is_read_to_its_end_and_then_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch, 64)
    other, path = tmp_path / "a.svm", tmp_path / "log.svm"
    other.write_bytes(b"9 9:9\n")
    path.write_bytes(TEXT)
    sources = [Source(str(other)), Source(str(path))]
    rows, seen = [], []
    is_rotated = False
    patience = Patience(follow=True, is_over=lambda: len(rows) == 2 * len(ROWS) + 2)
    for source, piece in pieces_of(sources, patience):
        rows += piece
        if source not in seen:
            seen.append(source)
        if len(rows) == len(ROWS) + 1 and not is_rotated:
            is_rotated = True
            with open(path, "ab") as end:
                path.rename(tmp_path / "log.1")
                end.write(b"8 8:8\n")
            path.write_bytes(TEXT)
    assert rows == [(9, ((9, 9),)), *ROWS, (8, ((8, 8),)), *ROWS]
    assert [source.name for source in seen] == [str(other), str(path), str(path)]
    assert [source.was_replaced for source in seen] == [False, True, False]


def test_a_followed_file_that_is_cut_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "log.svm"
    path.write_bytes(TEXT)
    rows, is_cut = [], False
    patience = Patience(follow=True, is_over=lambda: len(rows) == len(ROWS) + 1)
    for _, piece in pieces_of([Source(str(path))], patience):
        rows += piece
        if len(rows) == len(ROWS) and not is_cut:
            is_cut = True
            path.write_bytes(b"5 5:5\n")
    assert rows == [*ROWS, (5, ((5, 5),))]


def test_the_beginning_of_a_line_waits_for_its_end_in_a_followed_file(tmp_path: Path) -> None:
    path = tmp_path / "log.svm"
    path.write_bytes(b"1 1:1\n2 2:2")
    rows, source = [], Source(str(path))
    patience = Patience(follow=True, is_over=lambda: len(rows) == 2)
    for _, piece in pieces_of([source], patience):
        rows += piece
        if len(rows) == 1:
            assert not piece or source.place.text == 6
            with open(path, "ab") as end:
                end.write(b"5\n" * (path.stat().st_size == 11))
    assert rows == [(1, ((1, 1),)), (2, ((2, 25),))]
    assert source.place.text == 13


def test_no_more_sources_are_opened_behind_a_stop(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / name).write_bytes(TEXT)
    sources = [Source(str(tmp_path / name)) for name in "ab"]
    patience = Patience(is_over=over_after(1))
    assert rows_of(sources, patience) == ROWS
    assert patience.gave_up
    assert sources[1].place == Place()
