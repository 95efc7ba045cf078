"""Scales and ticks of charts."""

import itertools
import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbm.jobs.reporting.charts import (
    COLOURS,
    DASHES,
    MARKERS,
    Bar,
    Line,
    Scale,
    bar_chart,
    level_chart,
    line_chart,
    nice_scale,
    write_number,
)  # fmt: skip

REAL = st.floats(-1e12, 1e12)
POSITIVE = st.floats(1e-12, 1e12)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(REAL, min_size=1, max_size=20))
def test_a_scale_shows_all_values_and_ends_on_ticks(values):
    scale = nice_scale(values, 10, 110)
    near = 1e-6 * (scale.high - scale.low)
    assert scale.low <= min(values) + near
    assert scale.high >= max(values) - near
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 16
    assert ticks == sorted(set(ticks))
    for tick in (ticks[0], ticks[-1]):
        assert min(abs(scale(tick) - 10), abs(scale(tick) - 110)) < 51
    assert scale(scale.low) == 10
    assert scale(scale.high) == pytest.approx(110)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(POSITIVE, min_size=1, max_size=20))
def test_a_logarithmic_scale_ends_on_powers_of_ten(values):
    scale = nice_scale(values, 200, 0, is_log=True)
    assert scale.low <= min(values) * (1 + 1e-9)
    assert scale.high >= max(values) * (1 - 1e-9)
    assert all(math.log10(t) == pytest.approx(round(math.log10(t))) for t in scale.ticks())
    assert len(scale.ticks()) <= 8


@settings(max_examples=50, deadline=None, derandomize=True)
@given(POSITIVE, POSITIVE)
def test_larger_values_are_not_before_smaller_ones(a, b):
    for scale in (nice_scale([a, b], 0, 100), nice_scale([a, b], 0, 100, is_log=True)):
        assert (scale(a) <= scale(b)) == (a <= b) or scale(a) == scale(b)


def test_places_are_even():
    assert [Scale(0, 4, 10, 50)(v) for v in (0, 1, 4, 9, -3)] == [10, 20, 50, 50, 10]
    log = Scale(1e-4, 1, 100, 0, is_log=True)
    assert [log(v) for v in (1e-4, 1e-2, 1, 0.0)] == pytest.approx([100, 50, 0, 100])
    assert Scale(0, 101.4, 0, 1).ticks() == [0, 20, 40, 60, 80, 100]
    assert log.ticks() == [1e-4, 1e-3, 1e-2, 1e-1, 1]


@pytest.mark.parametrize(
    ("value", "step", "text"),
    [
        (0, 1, "0"), (12500, 500, "12,500"), (0.25, 0.05, "0.25"), (90, 0.5, "90.0"),
        (3e6, 1e6, "3M"), (2_500_000, 500_000, "2.5M"), (1_000_200, 100, "1,000,200"),
        (4e9, 1e9, "4G"), (1e-7, 1e-7, "1e-07"),
    ],
)  # fmt: skip
def test_ticks_are_written_with_the_digits_they_need(value, step, text):
    assert write_number(value, step) == text


def test_forty_lines_are_told_apart_without_colour():
    looks = {(DASHES[k % len(DASHES)], MARKERS[k % len(MARKERS)]) for k in range(26)}
    assert len(looks) == 26
    assert len(set(MARKERS)) == len(MARKERS) < COLOURS


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=12))
def test_letters_at_the_ends_of_lines_do_not_meet(ends):
    lines = [Line(k, chr(65 + k), [(0, 50), (k + 1, end)]) for k, end in enumerate(ends)]
    chart = ET.fromstring(line_chart("c", "t", "d", "x", lines))
    places = sorted(float(t.get("y")) for t in chart.iter("text") if "letter" in t.get("class"))
    assert len(places) == len(ends)
    assert all(b - a >= 15.98 for a, b in itertools.pairwise(places))
    assert places[-1] <= 262 - 40 + 4.6


@pytest.mark.parametrize("points", [[], [(0.0, 0.0)], [(1.0, -5.0)], [(2.0, 1e300), (3.0, 1e-300)]])
def test_strange_points_are_drawn_too(points):
    for is_log in (False, True):
        text = line_chart("c", "<&>", "d", "x", [Line(0, "A", points)], is_log=is_log, highest=10.0)
        assert "nan" not in text
        assert "inf" not in text
        ET.fromstring(text)
    ET.fromstring(bar_chart("b", "t", "d", "x", [Bar("<", {"solve": 0.0}, {})], 0.0))
    ET.fromstring(bar_chart("b", "t", "d", "x", [], 1.0))
    ET.fromstring(level_chart("l", "t", "d", "x", [("<a>", 1.0, 2.0)]))
