"""Rounds, blocks and cache size chosen during training."""

import itertools
import math

import numpy as np
import pytest
from inside import (
    LEAST_BYTES,
    PassCost,
    choose_blocks,
    choose_cache_rows,
    choose_rounds,
    foresee_passes,
    hurried_rounds,
    is_falling,
    passes_left,
)

MUCH = 10 * LEAST_BYTES


@pytest.mark.parametrize(
    ("rounds", "blocks", "options"),
    [
        (10, 2, {}),
        (7, 4, {}),  # the first pass does one more
        (6, 4, {"before": [6]}),
        (2, 100, {}),
        (1, 100, {"before": [1]}),
        (25, 1, {"listed": True}),
        (24, 1, {"before": [25], "listed": True}),
        (6, 1, {"warm": True}),
        (2, 4, {"warm": True}),
        (1, 100, {"before": [1] * 9, "warm": True}),
        (2, 1, {"processes": 2}),
        # One part; if rows at rest are skipped, the first pass is short.
        (20, 1, {"whole": 100_000_000}),
        (2, 1, {"whole": 100_000_000, "screens": True}),
        (1, 1, {"whole": 10**10, "screens": True}),
        (20, 1, {"whole": 100_000_000, "screens": True, "warm": True}),
        (20, 1, {"whole": 100_000_000, "screens": True, "before": [2]}),
        # Behind a slow disk: (pass of so many bytes, seconds of disk, loading, solving)
        (4, 12, {"before": [2], "times": (MUCH, 2.0, 2.4, 1.0)}),  # 2 rounds took 1 s
        (2, 12, {"before": [2], "times": (LEAST_BYTES - 1, 2.0, 2.4, 1.0)}),
        (4, 12, {"before": [2], "times": (LEAST_BYTES, 2.0, 2.4, 1.0)}),
        (2, 12, {"before": [2], "times": (MUCH, 0.6, 1.0, 1.0)}),  # solving takes as long
        (2, 12, {"before": [2], "times": (MUCH, 0.4, 1.0, 0.1)}),  # decoding takes the time
        (10, 12, {"before": [2], "times": (MUCH, 50.0, 50.0, 1.0)}),
        (2, 12, {"before": [2], "times": (MUCH, 50.0, 50.0, 0.0)}),
        (5, 12, {"before": [1], "times": (MUCH, 5.0, 5.0, 1.0), "warm": True}),
    ],
)  # fmt: skip
def test_auto_rounds_follow_blocks_and_disk(rounds, blocks, options):
    before, times = options.pop("before", ()), options.pop("times", (0, 0.0, 0.0, 0.0))
    assert choose_rounds("auto", blocks, before, PassCost(*times), **options) == rounds


@pytest.mark.parametrize(
    ("rounds", "last", "left", "passes"),
    [(1, 2, 4.0, 10), (3, 2, 10.0, 10), (5, 2, 20.0, 10), (5, 4, 10.0, 10), (10, 2, 1e9, 1),
     (10, 2, 40.0, 0), (0, 2, 0.0, 5)],
)  # fmt: skip
def test_rounds_make_up_for_passes(rounds, last, left, passes):
    assert hurried_rounds(last, left, passes) == rounds


def test_listed_rounds_apply_per_pass():
    last = PassCost(MUCH, 9.0, 9.0, 0.1)
    chosen = [choose_rounds("2,3,5", 12, [0] * k, last) for k in range(5)]
    assert chosen == [2, 3, 5, 5, 5]
    assert choose_rounds(7, 12, [7] * 3, last, warm=True) == 7


@pytest.mark.parametrize(
    ("gap", "shrink", "blocks"),
    [
        (1.01e-3, 0.05, 10),  # a quarter at least
        (2e-3, 0.1, 16),  # 40 log(2.4) / log(10)
        (2e-3, 0.4, 39),
        (3e-3, 0.4, 40),  # a whole pass will not do
        (1.2e-3, 0.0, 40),
        (1.2e-3, 1.0, 40),
    ],
)
def test_short_certificate_chooses_part_of_a_pass(gap, shrink, blocks):
    assert choose_blocks(40, gap, 1e-3, shrink) == blocks


def test_cache_holds_one_and_half_free_rows():
    assert choose_cache_rows(1000, 1500, 9999) == 1500
    assert choose_cache_rows(1000, 1500, 1200) == 1200
    assert choose_cache_rows(10, 1500, 9999) == 500  # a quarter of the working set
    assert choose_cache_rows(10, 1500, 100) == 100
    assert choose_cache_rows(None, 1500, 9999) == 1500  # half of it before the first pass
    assert choose_cache_rows(None, 1500, 1200) == 1200


def test_passes_left_follow_the_latest_gaps():
    steady = [0.5**k for k in range(6)]
    assert passes_left([1e9, 1e6, *steady], 1e-3) == pytest.approx(math.log2(1000 / 32))
    noisy = [gap * (1.2 if k % 2 else 1 / 1.2) for k, gap in enumerate(steady)]
    assert passes_left(noisy, 1e-3) == pytest.approx(math.log2(1000 / 32), abs=1)
    assert passes_left([0.5, 0.6], 1e-3) == pytest.approx(math.log(600) / -math.log(0.99))
    assert passes_left([0.5, 0.0005], 1e-3) == 0.0
    assert passes_left([0.5, 0.0], 1e-3) == 0.0
    assert passes_left([0.5], 1e-3) is None
    assert passes_left([math.inf, 1e300], 1e-3) is passes_left([1.0, math.inf], 1e-3) is None
    assert passes_left([1e300, 1e299], 1e-10) == pytest.approx(309, rel=1e-9)  # 1e309 is infinite


@pytest.mark.parametrize(
    ("gaps", "left"),
    [
        ([0.5**k for k in range(6)], math.log2(1000 / 32)),
        ([1e9, 1e6, *(0.5**k for k in range(7))], math.log2(1000 / 64)),
        ([1.0, 0.1, 0.01], 1.0),
        ([1.0, 0.01], None),  # the first passes differ
        ([1.0, 0.01, 0.005], None),
        ([1 / k for k in range(1, 40)], None),  # falls more and more slowly
        ([k**-0.5 for k in range(1, 9)], None),
        ([0.5, 0.6], None),
        ([0.5, 0.4999, 0.4998], None),
        ([0.5, 0.005, 0.0005], 0.0),
        ([0.5], None),
        ([], None),
        ([math.inf, 1.0, 0.1], None),
    ],
)
def test_passes_are_foreseen_only_from_a_trend(gaps, left):
    assert foresee_passes(gaps, 1e-3) == (left if left is None else pytest.approx(left))


@pytest.mark.parametrize("seed", range(5))
def test_foreseen_passes_never_grow_with_a_falling_gap(seed):
    random = np.random.default_rng(seed)
    steps = np.sort(random.uniform(-0.7, 0.0, 40))  # more and more slowly
    gaps = np.exp(np.cumsum(steps)).tolist()
    shown = [foresee_passes(gaps[:k], 1e-6) for k in range(1, 41)]
    pairs = [(a, b) for a, b in itertools.pairwise(shown) if None not in (a, b)]
    assert pairs
    assert all(a >= b for a, b in pairs)


@pytest.mark.parametrize(
    ("gaps", "helps"),
    [
        ([0.5], True),  # unknown
        ([0.5**k for k in range(4)], True),  # seven more
        ([0.9**k for k in range(30)], False),  # 36 more
        ([0.5**k for k in range(8)], True),  # three more
        ([1.5e-3] * 50, False),
        ([1.5e-3 + 1e-6 * k for k in range(50)], False),
    ],
)
def test_more_passes_help_only_if_the_gap_falls(gaps, helps):
    assert is_falling(gaps, 1e-3) == helps


@pytest.mark.parametrize(
    ("gaps", "helps"),
    [([], True), ([1.2, 1e-2], True), ([1.2, 1.3, 1.2], True), ([1.0] * 8 + [0.9], True),
     ([1.0, 1e-12, *[2e-12] * 6], False), ([1.0] * 7, False)],
)  # fmt: skip
def test_gap_of_second_order_method_falls_late(gaps, helps):
    assert is_falling(gaps, 1e-9, second_order=True) == helps
