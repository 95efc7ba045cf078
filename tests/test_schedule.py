"""Blocks of classes on match days: who meets whom, where, and what travels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbm.jobs.classblocks.schedule import deal_classes, make_schedule
from sbm.solver.pairs import count_days, pairs_of

SIZES = [(n_blocks, n_ranks) for n_blocks in range(1, 13) for n_ranks in range(1, 9)]
EVERY_SIZE = pytest.mark.parametrize(("n_blocks", "n_ranks"), SIZES)


@EVERY_SIZE
def test_every_pair_of_blocks_meets_once_and_each_block_itself_first(n_blocks, n_ranks):
    schedule = make_schedule(n_blocks, n_ranks)
    met = [(m.first, m.second) for some in schedule.days for m in some]
    assert sorted(met) == [(a, b) for a in range(n_blocks) for b in range(a, n_blocks)]
    assert met[:n_blocks] == [(b, b) for b in range(n_blocks)]


@EVERY_SIZE
def test_no_block_is_in_two_meetings_and_each_is_where_it_is_needed(n_blocks, n_ranks):
    schedule = make_schedule(n_blocks, n_ranks)
    assert len(schedule.ranks) == len(schedule.days)
    for meetings, ranks in zip(schedule.days, schedule.ranks, strict=True):
        blocks = [block for meeting in meetings for block in meeting.blocks]
        assert len(set(blocks)) == len(blocks)
        assert set(ranks) <= set(range(n_ranks))
        assert all(ranks[b] == meeting.rank for meeting in meetings for b in meeting.blocks)


@EVERY_SIZE
def test_the_moves_lead_from_day_to_day_and_home(n_blocks, n_ranks):
    schedule = make_schedule(n_blocks, n_ranks)
    at = list(schedule.home)
    for number in range(len(schedule.days) + 1):
        held = [at.count(rank) for rank in range(n_ranks)]
        for rank in range(n_ranks):
            leaving, coming = schedule.moves_of(number, rank)
            assert all(at[block] == rank for block, _ in leaving)
            assert all(at[block] == source for block, source in coming)
            assert held[rank] + len(coming) <= schedule.most_blocks(rank)
            assert len(leaving) + len(coming) <= schedule.most_moves(rank)
        for block, source, target in schedule.moves(number):
            assert at[block] == source != target
            at[block] = target
        if number < len(schedule.days):
            assert at == schedule.ranks[number]
    assert at == schedule.home  # so the next epoch is the same, and no variable ever travels


@EVERY_SIZE
def test_meetings_are_divided_evenly_and_few_blocks_travel(n_blocks, n_ranks):
    schedule = make_schedule(n_blocks, n_ranks)
    for number, meetings in enumerate(schedule.days[1:], 1):
        ranks = [meeting.rank for meeting in meetings]
        most = -(-len(ranks) // n_ranks)
        assert max(map(ranks.count, range(n_ranks)), default=0) <= most
        assert len(schedule.moves(number)) <= len(meetings) + (n_blocks > 2 * n_ranks)
    assert not n_blocks > 1 or not schedule.moves(1)  # the first two days are in one place


@pytest.mark.parametrize("n_ranks", range(1, 41))
def test_of_twice_as_many_blocks_as_processes_each_sends_one(n_ranks):
    schedule = make_schedule(2 * n_ranks, n_ranks)
    last = len(schedule.days)
    for number in range(2, last):
        for rank in range(n_ranks):
            leaving, coming = schedule.moves_of(number, rank)
            assert len(leaving) == len(coming) == (n_ranks > 1)
    for rank in range(n_ranks):
        assert max(map(len, schedule.moves_of(last, rank))) <= 2
        assert schedule.most_blocks(rank) <= 4
    sent = sum(len(schedule.moves(number)) for number in range(last + 1))
    assert sent <= 2 * n_ranks * n_ranks  # 8 n k bytes of weights a process and epoch


@EVERY_SIZE
def test_what_is_solved_and_in_which_order_is_the_same_for_any_number_of_processes(
    n_blocks, n_ranks
):
    def plain(schedule):
        return [[meeting.blocks for meeting in some] for some in schedule.days]

    assert plain(make_schedule(n_blocks, n_ranks)) == plain(make_schedule(n_blocks, 1))


def test_days_are_the_match_days_of_the_blocks():
    schedule = make_schedule(6, 2)
    assert len(schedule.days) == 1 + count_days(6)
    for day, some in enumerate(schedule.days[1:]):
        assert [list(meeting.blocks) for meeting in some] == pairs_of(6, day).tolist()


def test_a_process_that_did_less_gets_the_odd_meeting():
    schedule = make_schedule(6, 2)  # of 15 meetings, 3 a day
    done = [sum(number > 0 for number, _ in schedule.meetings(rank)) for rank in range(2)]
    assert sorted(done) == [7, 8]


# ------------------------------------------------------------------------------------- classes


@given(rows=st.lists(st.integers(0, 1000), min_size=1, max_size=40), n_blocks=st.integers(1, 12))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_classes_are_dealt_to_blocks_of_equally_many(rows, n_blocks):
    blocks = deal_classes(rows, n_blocks)
    assert sorted(np.concatenate(blocks).tolist()) == list(range(len(rows)))
    counts = [len(classes) for classes in blocks]
    assert max(counts) - min(counts) <= 1
    assert all((np.diff(classes) > 0).all() for classes in blocks)
    assert all(classes.dtype == np.int32 for classes in blocks)


def test_blocks_have_about_equally_many_rows():
    rows = [2 ** (k % 8) for k in range(64)]
    totals = [sum(rows[c] for c in classes) for classes in deal_classes(rows, 8)]
    assert max(totals) == min(totals)
    assert [list(block) for block in deal_classes([5, 1, 1, 1, 1, 1], 2)] == [[0, 4, 5], [1, 2, 3]]
