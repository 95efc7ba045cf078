"""Rows of a stream in blocks: the same whatever the pieces, and cut exactly where a plan ends."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from helpers import Row, as_rows, slow_parse
from hypothesis import given, settings
from hypothesis import strategies as st
from streams import chunks, small_pieces, stdin_of, stop_at, writer

from sbm.errors import DataError
from sbm.jobs.dealing import coding
from sbm.jobs.dealing.deal import Labels
from sbm.jobs.streaming.arrivals import (
    Arrays,
    Arrivals,
    Block,
    Limits,
    Needs,
    TextOptions,
    arrays_of,
)
from sbm.jobs.streaming.positions import sources_at
from sbm.rows import Arena, Rows
from sbm.store.idtable import IdTable
from sbm.store.live import Patience
from sbm.store.text import Source

OFFSET = 3  # where blocks begin in the arena
BIG = 1 << 62  # not looked up in a plain array
WIDE = Needs(
    features=1 << 20, largest_id=1 << 20, hashed=True, labels=1 << 16, has_values=True
)  # nothing outgrows this


class Reader:
    """Arrivals with room for a block, of which all is kept as plain Python."""

    def __init__(
        self, names: Sequence[str | Path], labels: Sequence[float] | None = (), *,
        stop: Callable[[], bool] = lambda: False, before: dict[str, Any] | None = None,
        rows: int = 5, nnz: int = 40, skip: bool = False, **more: Any,
    ) -> None:  # fmt: skip
        before = before or {"ids": np.empty(0, np.int64), "labels": labels}
        self.ids = IdTable(before["ids"])
        classes = None if labels is None else before["labels"]
        self.labels = None if classes is None else Labels(list(classes), [0] * len(classes))
        options = TextOptions("float32", skip, 2, 1 << 20)
        patience = Patience(is_over=stop)
        self.arrivals = Arrivals(
            [Source(str(name)) for name in names], self.ids, self.labels, options, patience,
            position=before.get("position", ()), pending=before.get("pending", ()),
            needs=before.get("needs"), **more,
        )  # fmt: skip
        self.rows, self.nnz = rows, nnz
        self.arena = Arena.of(nnz + 7, "float32")
        self.room = self.arena.room(rows, "float64" if labels is None else "int32")

    def gather(self, planned: Needs = WIDE, may_end: bool = False, **limits: int) -> Block:
        chosen = {"rows": self.rows, "nnz": self.nnz, **limits}
        return self.arrivals.gather(
            self.room, OFFSET, Limits(planned=planned, may_end=lambda: may_end, **chosen)
        )

    def plain(self, rows: Rows) -> list[Row]:
        used = slice(OFFSET, OFFSET + rows.nnz)
        ids = self.ids.keys[rows.indices[used]]
        labels = rows.y if self.labels is None else np.array(self.labels.values)[rows.y]
        return as_rows(labels, rows.starts - OFFSET, rows.lengths, ids, rows.values[used])

    def blocks(self, planned: Needs = WIDE) -> list[list[Row]]:
        blocks = []
        while True:
            block = self.gather(planned)
            blocks.append(self.plain(block.rows))
            if block.is_last:
                return blocks

    def kept(self, position: Any, pending: Sequence[Arrays], needs: Needs) -> dict[str, Any]:
        """What another process goes on from."""
        pending = [{name: array.copy() for name, array in part.items()} for part in pending]
        labels = self.labels.values if self.labels else ()
        return {
            "ids": self.ids.keys.copy(), "labels": labels, "position": position,
            "pending": pending, "needs": needs,
        }  # fmt: skip

    def close(self) -> None:
        self.arrivals.close()


def write(path: Path, text: bytes) -> Path:
    path.write_bytes(text)
    return path


def needs_of(rows: Sequence[Row], with_labels: bool = True) -> Needs:
    """What rows need, counted slowly."""
    ids = {i for _, pairs in rows for i, _ in pairs}
    return Needs(
        rows=len(rows),
        nnz=sum(len(pairs) for _, pairs in rows),
        longest=max((len(pairs) for _, pairs in rows), default=0),
        features=len(ids),
        largest_id=max((i for i in ids if i < BIG), default=0),
        hashed=any(i >= BIG for i in ids),
        labels=len({label for label, _ in rows}) if with_labels else 0,
        has_values=any(value != 1 for _, pairs in rows for _, value in pairs),
    )


def blocks_of(rows: Sequence[Row], most_rows: int, most_nnz: int) -> list[list[Row]]:
    """Rows cut in blocks, slowly."""
    blocks: list[list[Row]] = [[]]
    for row in rows:
        nnz = sum(len(pairs) for _, pairs in blocks[-1])
        if len(blocks[-1]) == most_rows or nnz + len(row[1]) > most_nnz:
            blocks.append([])
        blocks[-1].append(row)
    return blocks


ROW = st.tuples(
    st.sampled_from([-1, 1, 2, 0.5]),
    st.lists(
        st.tuples(
            st.one_of(st.integers(0, 30), st.integers(2**62, 2**62 + 5)),
            st.sampled_from([1, 1, 1, 2, 0.25]),
        ),
        max_size=8,
        unique_by=lambda pair: pair[0],
    ),
)
ROWS = st.lists(ROW, min_size=1, max_size=25)


def text_of(rows: Sequence[tuple[float, Sequence[tuple[int, float]]]]) -> bytes:
    lines = (f"{y} " + " ".join(f"{i}:{v}" for i, v in pairs) + "\n" for y, pairs in rows)
    return "".join(lines).encode()


@settings(deadline=None, derandomize=True, max_examples=150)
@given(ROWS, st.sampled_from([60, 200, 5000]), st.integers(1, 6), st.integers(8, 20))
def test_blocks_and_needs_depend_on_the_rows_alone(
    rows: list[Any], piece: int, most_rows: int, most_nnz: int
) -> None:
    text = text_of(rows)
    wanted = slow_parse(text)[0]
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        small_pieces(patch, piece)
        path = write(Path(folder, "a.svm"), text)
        reader = Reader([path], rows=most_rows, nnz=most_nnz)
        peeked = reader.arrivals.peek(most_rows)
        assert peeked == needs_of(wanted[:most_rows])
        blocks, seen = [], 0
        while True:
            block = reader.gather()
            blocks.append(reader.plain(block.rows))
            seen += len(block.rows)
            assert block.needs == reader.arrivals.needs == needs_of(wanted[:seen])
            [source] = sources_at(block.position)
            assert source == {"name": str(path), "rows": seen, "skipped": 0}
            if block.is_last:
                break
        reader.close()
        assert [block for block in blocks if block] == blocks_of(wanted, most_rows, most_nnz)


def test_a_pipe_in_odd_parts_gives_the_same_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    small_pieces(monkeypatch, 100)
    text = b"".join(b"%d %d:1 %d:%d\n" % (k % 3, k, k + 1, 1 + k % 2) for k in range(60))
    wanted = blocks_of(slow_parse(text)[0], 7, 40)
    for sizes in ((1000,), (1, 50, 3), (97,)):
        read, write_end = os.pipe()
        with writer(write_end, chunks(text, sizes)), stdin_of(monkeypatch, read):
            reader = Reader(["-"], rows=7)
            assert [block for block in reader.blocks() if block] == wanted
            reader.close()


# ------------------------------------------------------------------------------------- the plan

USUAL = "".join(f"{(-1) ** k} {k % 4 + 1}:1 {k % 3 + 7}:1\n" for k in range(11))
UNPLANNED = [  # a row, and what it needs that the others do not
    ("1 5:1", {"features": 8}),  # as large as others, but one too many
    ("1 50:1", {"features": 8}),
    ("1 1:1 2000:1", {"largest_id": 2000, "features": 8}),
    (f"1 {BIG}:1", {"hashed": True, "features": 8}),
    ("5 1:1", {"labels": 3}),
    ("1 1:0.5", {"has_values": True}),
    ("1 " + " ".join(f"{k}:1" for k in (1, 2, 3, 4, 7, 8, 9)), {"longest": 7}),
]


@pytest.mark.parametrize(("row", "more"), UNPLANNED)
@pytest.mark.parametrize("piece", [40, 5000])
@pytest.mark.parametrize("place", [0, 1, 4, 10])
def test_a_plan_is_outgrown_exactly_in_front_of_the_row_that_does_not_fit(
    row: str, more: dict[str, Any], piece: int, place: int, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    small_pieces(monkeypatch, piece)
    lines = [*USUAL.splitlines(True), *USUAL.splitlines(True)[:place], row + "\n", USUAL]
    path = write(tmp_path / "a.svm", "".join(lines).encode())
    front = slow_parse("".join(lines[: 11 + place]).encode())[0]
    whole = slow_parse(path.read_bytes())[0]
    planned = needs_of(front)
    assert planned.features == 7
    reader = Reader([path], rows=4, nnz=6)
    got = [r for block in reader.blocks(planned) for r in block]
    assert got == front
    assert reader.arrivals.is_outgrown
    assert reader.arrivals.needs == planned
    assert reader.arrivals.wanted == needs_of(whole[: 12 + place])
    for name, value in more.items():
        assert getattr(reader.arrivals.wanted, name) == value
    again = reader.gather(planned)  # nothing comes until there is room
    assert (len(again.rows), again.is_last) == (0, True)
    reader.arrivals.is_outgrown = False
    reader.nnz = 40
    reader.arena = Arena.of(47, "float32")
    reader.room = reader.arena.room(4, "int32")
    planned = reader.arrivals.wanted
    got += [r for block in reader.blocks(planned) for r in block]
    assert got == whole
    assert reader.arrivals.is_over
    assert reader.arrivals.needs == needs_of(whole)
    reader.close()


def test_targets_and_rows_without_labels_need_no_classes(tmp_path: Path) -> None:
    text = b"".join(b"%d.5 1:1\n" % k for k in range(8))
    path = write(tmp_path / "a.svm", text)
    planned = needs_of(slow_parse(text)[0], with_labels=False)
    reader = Reader([path], labels=None)
    assert [r for block in reader.blocks(planned) for r in block] == slow_parse(text)[0]
    reader.close()
    reader = Reader([path], labels=None, unlabelled=True)
    assert [label for b in reader.blocks(planned) for label, _ in b] == [0] * 8
    reader.close()


# --------------------------------------------------------------------------------- stops and goes


@settings(deadline=None, derandomize=True, max_examples=150)
@given(ROWS, st.sampled_from([60, 200]), st.lists(st.integers(0, 4), max_size=6), st.booleans())
def test_reading_on_after_a_stop_at_any_row_is_as_if_it_had_not_stopped(
    rows: list[Any], piece: int, parts: list[int], is_told: bool
) -> None:
    # Each reader gathers some blocks. Then it dies, and what the last block said is gone on from;
    # or it is told to stop, and hands over what it had read.
    text = text_of(rows)
    wanted = slow_parse(text)[0]
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        small_pieces(patch, piece)
        path = write(Path(folder, "a.svm"), text)
        got: list[Row] = []
        before: dict[str, Any] | None = None
        for n in [*parts, 10**6]:
            over = [False]
            reader = Reader([path], before=before, stop=lambda over=over: over[0], rows=3, nnz=12)
            block = None
            for _ in range(n):
                block = reader.gather()
                got += reader.plain(block.rows)
                if block.is_last:
                    break
            if is_told:
                over[0] = True
                late = reader.gather()
                mine = [arrays_of(late.rows)] if late.is_cut and len(late.rows) else []
                if not late.is_cut:
                    got += reader.plain(late.rows)
                needs = late.needs if not late.is_cut else block.needs if block else None
                position, pending = reader.arrivals.remaining()
                before = reader.kept(
                    position, [*mine, *pending], needs or (before or {}).get("needs") or Needs()
                )
            elif block is not None:
                before = reader.kept(block.position, block.pending, block.needs)
            reader.close()
        assert got == wanted
        assert before is not None
        assert before["needs"] == needs_of(wanted)


def test_what_a_pipe_brought_is_not_lost_when_the_plan_is_full_at_a_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The block ends because of its nonzeros, so nobody has asked for more and noticed the stop.
    small_pieces(monkeypatch, 64)
    text = b"".join(b"1 %d:1 %d:1\n" % (k, k + 1) for k in range(30))
    got: list[Row] = []
    before = None
    read, write_end = os.pipe()
    with writer(write_end, [text]), stdin_of(monkeypatch, read):
        for limit in (1, 3, 5, 10**6):
            over = [False]
            reader = Reader(["-"], before=before, stop=lambda over=over: over[0], rows=9, nnz=6)
            needs = before["needs"] if before else Needs()
            for _ in range(limit):
                block = reader.gather()
                got += reader.plain(block.rows)
                needs = block.needs
                if block.is_last:
                    break
            over[0] = True
            late = reader.gather()
            mine = [arrays_of(late.rows)] if len(late.rows) else []
            assert late.is_cut
            position, pending = reader.arrivals.remaining()
            before = reader.kept(position, [*mine, *pending], needs)
            reader.close()
    assert got == slow_parse(text)[0]


def test_another_pipe_is_read_from_its_first_row_on(monkeypatch: pytest.MonkeyPatch) -> None:
    before = None
    for text in (USUAL, "1 3:1\n" + USUAL):  # the second one begins otherwise
        read, write_end = os.pipe()
        with writer(write_end, [text.encode()]), stdin_of(monkeypatch, read):
            reader = Reader(["-"], before=before)
            if before is None:  # it dies in the middle of a piece
                block = reader.gather()
                assert [record["skip"] for record in block.position] == [5]
                before = reader.kept(block.position, block.pending, block.needs)
            else:
                assert [r for b in reader.blocks() for r in b] == slow_parse(text.encode())[0]
                position, _ = reader.arrivals.remaining()
                assert sources_at(position) == [{"name": "-", "rows": 17, "skipped": 0}]
            reader.close()


def test_a_block_may_end_early_only_where_it_is_asked_to(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write_end = os.pipe()
    with stdin_of(monkeypatch, read):
        os.write(write_end, b"1 1:1\n1 2:1\n")
        reader = Reader(["-"])
        assert len(reader.gather(may_end=True).rows) == 2  # while the pipe is silent
        os.write(write_end, b"1 3:1\n")
        os.close(write_end)
        block = reader.gather(may_end=False)
        assert (len(block.rows), block.is_last) == (1, True)
        reader.close()


# ------------------------------------------------------------------------------------- refusals


def test_rows_in_front_of_a_refused_line_are_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for piece in (40, 5000):
        small_pieces(monkeypatch, piece)
        path = write(tmp_path / "a.svm", (USUAL + "1 a\n" + USUAL).encode())
        reader = Reader([path])
        assert [r for b in reader.blocks() for r in b] == slow_parse(USUAL.encode())[0]
        assert str(reader.arrivals.error) == (
            f"{path}:12: found 'a' where a feature written as id:value is expected"
        )
        position, pending = reader.arrivals.remaining()
        assert pending == []
        assert position[0]["rows"] + position[0]["skip"] == 11
        reader.close()


def test_rows_in_front_of_a_label_without_a_name_are_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for piece in (40, 5000):
        small_pieces(monkeypatch, piece)
        path = write(tmp_path / "a.svm", (USUAL + "3 1:1\n" + USUAL).encode())
        reader = Reader([path], (-1.0, 1.0), fixed=True)
        assert reader.arrivals.needs.labels == 2
        assert [r for b in reader.blocks() for r in b] == slow_parse(USUAL.encode())[0]
        assert str(reader.arrivals.error) == (
            f"{path}: row 12 has the label 3, which --classes does not name"
        )
        reader.close()


def test_labels_that_are_too_many_are_no_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coding, "MOST_LABELS", 10)
    path = write(tmp_path / "a.svm", b"".join(b"%d 1:1\n" % k for k in range(11)))
    reader = Reader([path])
    assert reader.blocks() == [[]]
    assert isinstance(reader.arrivals.error, DataError)
    reader.close()


def test_a_stop_before_the_first_row_leaves_all_to_another(tmp_path: Path) -> None:
    path = write(tmp_path / "a.svm", USUAL.encode())
    reader = Reader([path], stop=stop_at(1))
    assert reader.arrivals.peek(5) is None
    block = reader.gather()
    assert (len(block.rows), block.is_cut) == (0, True)
    position, pending = reader.arrivals.remaining()
    reader.close()
    other = Reader([path], before=reader.kept(position, pending, Needs()))
    assert [r for b in other.blocks() for r in b] == slow_parse(USUAL.encode())[0]
    other.close()


def test_skipped_lines_are_counted_up_to_the_place(tmp_path: Path) -> None:
    path = write(tmp_path / "a.svm", ("x\n" + USUAL + "y\n" + USUAL).encode())
    reader = Reader([path], skip=True)
    reader.blocks()
    position, _ = reader.arrivals.remaining()
    assert sources_at(position) == [{"name": str(path), "rows": 22, "skipped": 2}]
    reader.close()
