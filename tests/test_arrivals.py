"""Rows of a stream in blocks: independent of the pieces, and cut exactly where a plan ends."""

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import Row, as_rows, slow_parse
from hypothesis import given
from hypothesis import strategies as st
from inside import (
    ANY,
    DIRECT_LIMIT,
    Arena,
    Arrivals,
    IdTable,
    Labels,
    Needs,
    NewRows,
    Patience,
    Reached,
    Rows,
    Source,
    TextOptions,
    arrays_of,
    patch,
    sources_at,
)
from streams import small_pieces, stdin_of

from sbm.errors import DataError


class Reader:
    """Arrivals with room for a block, of which all is kept as plain Python."""

    def __init__(
        self, name: str | Path, before: dict[str, Any] | None = None, *,
        labels: Sequence[float] | None = (), rows: int = 5, nnz: int = 40, skip: bool = False,
        **more: Any,
    ) -> None:  # fmt: skip
        before = dict(before or {"ids": None, "labels": labels})
        self.ids, known = IdTable(before.pop("ids")), before.pop("labels")
        self.labels = None if known is None else Labels(list(known), [0] * len(known))
        self.is_told = False
        self.arrivals = Arrivals(
            [Source(str(name))], self.ids, self.labels, TextOptions("float32", skip, 2, 1 << 20),
            Patience(is_over=lambda: self.is_told), **before, **more,
        )  # fmt: skip
        self.make_room(rows, nnz)

    def make_room(self, rows: int, nnz: int) -> None:
        kind = "float64" if self.labels is None else "int32"
        self.room = Arena.of(nnz, "float32").room(rows, kind)

    def gather(self, planned: Needs = ANY, may_end: bool = False) -> NewRows:
        return self.arrivals.gather(self.room, planned, lambda: may_end)

    def plain(self, rows: Rows) -> list[Row]:
        used = slice(0, rows.nnz)
        ids = self.ids.keys[rows.indices[used]]
        labels = rows.y if self.labels is None else np.array(self.labels.values)[rows.y]
        return as_rows(labels, rows.starts, rows.lengths, ids, rows.values[used])

    def all_rows(self, planned: Needs = ANY) -> list[Row]:
        """Rows up to the end, or up to one that was not planned for."""
        rows: list[Row] = []
        while True:
            self.block = self.gather(planned)
            rows += self.plain(self.block.rows)
            if self.block.is_last or self.block.wanted:
                return rows

    def kept(self, needs: Needs, position: Any, pending: Sequence[Any]) -> dict[str, Any]:
        """Return the position that another process resumes from."""
        labels = self.labels.values if self.labels else ()
        copies = [{name: array.copy() for name, array in part.items()} for part in pending]
        return {
            "ids": self.ids.keys.copy(), "labels": labels,
            "reached": Reached(needs, position, copies),
        }  # fmt: skip


def write(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def needs_of(rows: Sequence[Row], with_labels: bool = True) -> Needs:
    """Count the needs of rows with plain Python."""
    ids = {i for _, pairs in rows for i, _ in pairs}
    lengths = [len(pairs) for _, pairs in rows]
    return Needs(
        rows=len(rows), nnz=sum(lengths), longest=max(lengths, default=0), features=len(ids),
        largest_id=max((i for i in ids if i < DIRECT_LIMIT), default=0),
        hashed=any(i >= DIRECT_LIMIT for i in ids),
        labels=len({label for label, _ in rows}) if with_labels else 0,
        has_values=any(value != 1 for _, pairs in rows for _, value in pairs),
    )  # fmt: skip


def blocks_of(rows: Sequence[Row], most_rows: int, most_nnz: int) -> list[list[Row]]:
    """Rows cut in blocks, slowly."""
    blocks: list[list[Row]] = [[]]
    for row in rows:
        nnz = sum(len(pairs) for _, pairs in blocks[-1])
        if len(blocks[-1]) == most_rows or nnz + len(row[1]) > most_nnz:
            blocks.append([])
        blocks[-1].append(row)
    return blocks


IDS = st.one_of(st.integers(0, 30), st.sampled_from([DIRECT_LIMIT, 2**62, 2**63 - 1]))
PAIRS = st.lists(
    st.tuples(IDS, st.sampled_from([1, 1, 1, 2, 0.25])), max_size=8, unique_by=lambda pair: pair[0]
)
TEXTS = st.lists(st.tuples(st.sampled_from([-1, 1, 2, 0.5]), PAIRS), min_size=1, max_size=25).map(
    lambda rows: "".join(
        f"{y} " + " ".join(f"{i}:{v}" for i, v in pairs) + "\n" for y, pairs in rows
    ).encode()
)


@given(TEXTS, st.sampled_from([60, 200, 5000]), st.integers(1, 6), st.integers(8, 20))
def test_blocks_and_needs_depend_only_on_rows(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, piece: int, most_rows: int, most_nnz: int
) -> None:
    rows, blocks, seen, is_last = slow_parse(text)[0], [], 0, False
    path = write(tmp_path_factory.mktemp("rows") / "a.svm", text)
    with pytest.MonkeyPatch.context() as context:
        small_pieces(context, piece)
        reader = Reader(path, rows=most_rows, nnz=most_nnz)
        while not is_last:
            block = reader.gather()
            blocks.append(reader.plain(block.rows))
            seen += len(block.rows)
            is_last = block.is_last
            assert block.reached == reader.arrivals.reached
            assert block.reached.needs == needs_of(rows[:seen])
            [source] = sources_at(block.reached.position)
            assert source == {"name": str(path), "rows": seen, "skipped": 0}
        reader.arrivals.close()
    assert [block for block in blocks if block] == blocks_of(rows, most_rows, most_nnz)


# ------------------------------------------------------------------------------------- the plan

USUAL = "".join(f"{(-1) ** k} {k % 4 + 1}:1 {k % 3 + 7}:1\n" for k in range(11))
USUAL_ROWS = slow_parse(USUAL.encode())[0]
UNPLANNED = [  # a row, and what it needs that the others do not
    ("1 5:1", {"features": 8}),  # as large as others, but one too many
    ("1 1:1 2000:1", {"largest_id": 2000, "features": 8}),
    (f"1 {DIRECT_LIMIT}:1", {"hashed": True, "features": 8}),
    ("5 1:1", {"labels": 3}),
    ("1 1:0.5", {"has_values": True}),
    ("1 " + " ".join(f"{k}:1" for k in (1, 2, 3, 4, 7, 8, 9)), {"longest": 7}),
]


@pytest.mark.parametrize(("row", "more"), UNPLANNED)
@pytest.mark.parametrize("piece", [40, 5000])
@pytest.mark.parametrize("place", [0, 4, 10])
def test_plan_limit_is_detected_before_the_row(
    row: str, more: dict[str, Any], piece: int, place: int, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    small_pieces(monkeypatch, piece)
    front = USUAL_ROWS + USUAL_ROWS[:place]
    text = USUAL + "".join(USUAL.splitlines(True)[:place]) + f"{row}\n{USUAL}"
    whole = slow_parse(text.encode())[0]
    planned, wanted = needs_of(front), needs_of(whole[: len(front) + 1])
    reader = Reader(write(tmp_path / "a.svm", text), rows=4, nnz=6)
    assert reader.all_rows(planned) == front
    assert (reader.block.wanted, reader.block.reached.needs) == (wanted, planned)
    assert all(getattr(wanted, name) == value for name, value in more.items())
    assert reader.all_rows(planned) == []  # nothing comes until there is room
    reader.make_room(4, 40)
    assert front + reader.all_rows(wanted) == whole
    assert reader.block.is_last
    assert reader.block.reached.needs == needs_of(whole)
    reader.arrivals.close()


# --------------------------------------------------------------------------------- stops and goes


@given(
    TEXTS, st.sampled_from([60, 200]), st.lists(st.integers(0, 4), max_size=6),
    st.sampled_from(["dies", "stops", "stops at a pipe"]),
)  # fmt: skip
def test_rows_are_the_same_after_stops(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, piece: int, parts: list[int], end: str
) -> None:
    # Each reader gathers some blocks. Then it dies, and the next resumes from its last block; or it
    # is stopped, and passes on what it had read.
    rows, got, before = slow_parse(text)[0], [], None
    path: str | Path = write(tmp_path_factory.mktemp("rows") / "a.svm", text)
    with pytest.MonkeyPatch.context() as context, contextlib.ExitStack() as stack:
        small_pieces(context, piece)
        if "pipe" in end:
            path, (read, write_end) = "-", os.pipe()
            stack.enter_context(stdin_of(context, read))
            os.write(write_end, text)
            os.close(write_end)
        for n in [*parts, 10**6]:
            reader, block = Reader(path, before, rows=3, nnz=12), None
            needs = reader.arrivals.reached.needs
            for _ in range(n):
                block = reader.gather()
                got += reader.plain(block.rows)
                needs = block.reached.needs
                if block.is_last:
                    break
            if end != "dies":
                reader.is_told = True
                late, mine = reader.gather(), []
                if late.is_cut:
                    mine = [arrays_of(late.rows)] if len(late.rows) else []
                else:
                    got += reader.plain(late.rows)
                    needs = late.reached.needs
                position, pending = reader.arrivals.remaining()
                before = reader.kept(needs, position, [*mine, *pending])
            elif block is not None:
                before = reader.kept(needs, block.reached.position, block.reached.pending)
            reader.arrivals.close()
    assert got == rows
    assert before is not None
    assert before["reached"].needs == needs_of(rows)


def test_block_ends_early_only_if_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write_end = os.pipe()
    with stdin_of(monkeypatch, read):
        os.write(write_end, b"1 1:1\n1 2:1\n")
        reader = Reader("-")
        assert len(reader.gather(may_end=True).rows) == 2  # while the pipe is silent
        os.write(write_end, b"1 3:1\n")
        os.close(write_end)
        block = reader.gather(may_end=False)
        assert (len(block.rows), block.is_last) == (1, True)
        reader.arrivals.close()


# ------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("piece", [40, 5000])
@pytest.mark.parametrize(
    ("row", "facts"),
    [("1 a", ":12: found 'a'"), ("3 1:1", ": row 12 has the label 3, .*--classes")],
)
def test_rows_before_an_error_are_gathered(
    row: str, facts: str, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch, piece)
    path = write(tmp_path / "a.svm", f"{USUAL}{row}\n{USUAL}")
    reader = Reader(path, labels=(-1.0, 1.0), fixed=True)
    assert reader.arrivals.reached.needs.labels == 2
    assert reader.all_rows() == USUAL_ROWS
    assert re.match(f"{path}{facts}", str(reader.arrivals.error))
    position, pending = reader.arrivals.remaining()
    assert pending == []
    assert position[0]["rows"] + position[0]["skip"] == 11
    reader.arrivals.close()


@pytest.mark.parametrize("is_unlabelled", [False, True])
def test_targets_and_unlabelled_rows_need_no_classes(is_unlabelled: bool, tmp_path: Path) -> None:
    text = b"x\n" + b"".join(b"%d.5 1:1\n" % k for k in range(8))
    path, rows = write(tmp_path / "a.svm", text), slow_parse(text)[0]
    reader = Reader(path, labels=None, unlabelled=is_unlabelled, skip=True)
    found = reader.all_rows(needs_of(rows, with_labels=False))
    assert [label for label, _ in found] == [0 if is_unlabelled else k + 0.5 for k in range(8)]
    position, _ = reader.arrivals.remaining()
    assert sources_at(position) == [{"name": str(path), "rows": 8, "skipped": 1}]
    reader.arrivals.close()


def test_too_many_labels_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    patch(monkeypatch, "MOST_LABELS", 10)
    reader = Reader(write(tmp_path / "a.svm", "".join(f"{k} 1:1\n" for k in range(11))))
    assert reader.all_rows() == []
    assert isinstance(reader.arrivals.error, DataError)
    reader.arrivals.close()


def test_ids_wait_for_a_plan(tmp_path, monkeypatch):
    """A row that no plan has room for is kept without making the table of ids larger."""
    patch(monkeypatch, "_NEW_IDS", 8)
    text = "".join(f"{k % 2} {3 * k}:1 {2**40 + k}:1 {2**50 + k}:2\n" for k in range(400))
    path = write(tmp_path / "a.svm", text)
    expected = slow_parse(text.encode())[0]
    reader = Reader(path, rows=500, nnz=2000)
    few = Needs(features=60, largest_id=DIRECT_LIMIT, hashed=True, labels=9, has_values=True)
    got = reader.all_rows(few)
    assert got == expected[:20]
    assert len(reader.ids) <= 60 + 2 * 8
    position, pending = reader.arrivals.remaining()
    assert len(reader.ids) <= 60 + 2 * 8
    assert sum(len(part["y"]) for part in pending) == 380
    reader.arrivals.close()
    after = Reader(
        path, reader.kept(reader.block.reached.needs, position, pending), rows=500, nnz=2000
    )
    assert after.all_rows() == expected[20:]
    after.arrivals.close()
