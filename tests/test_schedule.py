"""Blocks of classes on match days: which meet, on which rank, and which move."""

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from sbm.programs.classblocks.plan import deal_classes, make_schedule
from sbm.solver.pairs import count_days, pairs_of

SIZES = given(n_blocks=st.integers(1, 16), n_ranks=st.integers(1, 8))


@SIZES
@example(n_blocks=6, n_ranks=2)
def test_every_pair_of_blocks_meets_once_whatever_the_ranks(n_blocks, n_ranks):
    schedule = make_schedule(n_blocks, n_ranks)
    met = [meeting.blocks for some in schedule.days for meeting in some]
    pairs = sorted((m.first, m.second) for some in schedule.days for m in some)
    assert pairs == [(a, b) for a in range(n_blocks) for b in range(a, n_blocks)]
    assert [(m.first, m.second) for m in schedule.days[0]] == [(b, b) for b in range(n_blocks)]
    alone = make_schedule(n_blocks, 1)
    assert met == [meeting.blocks for some in alone.days for meeting in some]
    for day in range(count_days(n_blocks) if n_blocks > 1 else 0):
        blocks = [list(meeting.blocks) for meeting in schedule.days[1 + day]]
        assert blocks == pairs_of(n_blocks, day).tolist()


@SIZES
def test_blocks_are_where_they_are_needed(n_blocks, n_ranks):
    """The last moves lead home, so all epochs are the same."""
    schedule, at = make_schedule(n_blocks, n_ranks), list(make_schedule(n_blocks, n_ranks).home)
    assert len(schedule.ranks) == len(schedule.days)
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
            meetings, ranks = schedule.days[number], schedule.ranks[number]
            assert at == ranks
            assert all(ranks[b] == m.rank for m in meetings for b in m.blocks)
    assert at == schedule.home


@SIZES
@example(n_blocks=12, n_ranks=8)
def test_meetings_are_divided_evenly_and_few_blocks_travel(n_blocks, n_ranks):
    schedule = make_schedule(n_blocks, n_ranks)
    for number, meetings in enumerate(schedule.days[1:], 1):
        ranks = [meeting.rank for meeting in meetings]
        most = -(-len(ranks) // n_ranks)
        assert max(map(ranks.count, range(n_ranks)), default=0) <= most
        assert len(schedule.moves(number)) <= len(meetings) + (n_blocks > 2 * n_ranks)
    assert n_blocks == 1 or not schedule.moves(1)  # the first two days are in one place


@given(rows=st.lists(st.integers(0, 1000), min_size=1, max_size=40), n_blocks=st.integers(1, 12))
def test_classes_are_dealt_to_blocks_evenly(rows, n_blocks):
    blocks = deal_classes(rows, n_blocks)
    assert sorted(np.concatenate(blocks).tolist()) == list(range(len(rows)))
    counts = [len(classes) for classes in blocks]
    assert max(counts) - min(counts) <= 1
    assert all((np.diff(classes) > 0).all() for classes in blocks)
    totals = [
        sum(2 ** (c % 8) for c in one) for one in deal_classes([2**k for k in range(8)] * 8, 8)
    ]
    assert max(totals) == min(totals)
