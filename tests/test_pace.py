"""Rounds and cache size chosen while training runs."""

import math

import pytest

from sbm.jobs.engine.pace import (
    LEAST_BYTES,
    MOST_ROUNDS,
    choose_blocks,
    choose_cache_rows,
    choose_rounds,
    passes_left,
)

MUCH = 10 * LEAST_BYTES


@pytest.mark.parametrize(
    ("blocks", "rounds"), [(1, 10), (2, 10), (4, 6), (12, 2), (13, 2), (24, 1), (100, 1)]
)
def test_cached_rows_are_visited_about_as_often_whatever_the_number_of_blocks(blocks, rounds):
    assert choose_rounds("auto", blocks) == min(rounds + 1, MOST_ROUNDS)
    assert choose_rounds("auto", blocks, [rounds], MUCH, 0.0, 9.0, 1.0) == rounds


@pytest.mark.parametrize(("blocks", "rounds"), [(1, 6), (2, 3), (4, 2), (6, 1), (12, 1), (100, 1)])
def test_after_a_warm_start_cached_rows_are_visited_less_often(blocks, rounds):
    assert choose_rounds("auto", blocks, warm=True) == rounds
    assert choose_rounds("auto", blocks, [rounds] * 9, warm=True) == rounds
    assert choose_rounds("auto", blocks, [1], MUCH, 5.0, 5.0, 1.0, warm=True) == max(rounds, 5)
    assert choose_rounds(7, blocks, warm=True) == 7


@pytest.mark.parametrize(
    ("gap", "shrink", "blocks"),
    [
        (1.01e-3, 0.05, 10),  # a quarter at least
        (2e-3, 0.1, 16),  # 40 log(2.4) / log(10)
        (2e-3, 0.4, 39),
        (3e-3, 0.4, 40),  # a whole pass will not do
        (1.2e-3, 0.0, 40),
        (1.2e-3, 1.0, 40),
        (1.2e-3, 3.0, 40),
    ],
)
def test_a_certificate_that_fell_short_tells_how_much_of_a_pass_is_missing(gap, shrink, blocks):
    assert choose_blocks(40, gap, 1e-3, shrink) == blocks
    assert 1 <= choose_blocks(3, gap, 1e-3, shrink) <= 3


def test_lists_are_visited_in_more_rounds_where_there_is_one_block():
    assert choose_rounds("auto", 1, listed=True) == 25
    assert choose_rounds("auto", 1, [25], listed=True) == 24
    assert choose_rounds("auto", 12, [2], listed=True) == 2


@pytest.mark.parametrize(
    ("disk", "load", "solve", "rounds"),
    [
        (2.0, 2.4, 1.0, 4),  # two rounds took 1 s: four take about as long as loading
        (0.6, 1.0, 1.0, 2),  # as it is, the solver takes as long
        (0.4, 1.0, 0.1, 2),  # decoding takes the time, not the disk
        (50.0, 50.0, 1.0, MOST_ROUNDS),
        (50.0, 50.0, 0.0, 2),
    ],
)
def test_behind_a_slow_disk_rounds_fill_the_time_of_loading(disk, load, solve, rounds):
    assert choose_rounds("auto", 12, [2], MUCH, disk, load, solve) == rounds
    assert choose_rounds("auto", 12, [2], LEAST_BYTES - 1, disk, load, solve) == 2


def test_a_list_gives_a_number_for_each_pass_and_the_last_one_for_the_rest():
    chosen = [choose_rounds("2,3,5", 12, [0] * k, MUCH, 9.0, 9.0, 0.1) for k in range(6)]
    assert chosen == [2, 3, 5, 5, 5, 5]
    assert choose_rounds(7, 12, [7] * 3, MUCH, 9.0, 9.0, 0.1) == 7


def test_the_cache_holds_half_as_many_rows_again_as_are_free_within_its_limits():
    assert choose_cache_rows(1000, 1500, 9999) == 1500
    assert choose_cache_rows(1000, 1500, 1200) == 1200
    assert choose_cache_rows(10, 1500, 9999) == 500  # a quarter of the working set
    assert choose_cache_rows(10, 1500, 100) == 100


def test_before_the_first_pass_the_cache_is_half_of_the_working_set():
    assert choose_cache_rows(None, 1500, 9999) == 1500
    assert choose_cache_rows(None, 1500, 1200) == 1200


def test_a_gap_goes_on_to_shrink_as_it_did_lately():
    assert passes_left([1.0, 0.5, 0.4, 0.2, 0.1], 1e-3) == pytest.approx(math.log2(100))
    assert passes_left([0.5, 0.6], 1e-3) == pytest.approx(math.log(600) / -math.log(0.99))
    assert passes_left([0.5, 0.0005], 1e-3) == 0.0
    assert passes_left([0.5, 0.0], 1e-3) == 0.0
    assert passes_left([0.5], 1e-3) is None
    assert passes_left([math.inf, 1e300], 1e-3) is passes_left([1.0, math.inf], 1e-3) is None
    assert passes_left([1e300, 1e299], 1e-10) == pytest.approx(309, rel=1e-12)  # 1e309 is infinite
