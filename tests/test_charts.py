"""Scales and ticks of charts."""

import itertools
import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbm.programs.reporting.charts import (
    Bar,
    Line,
    Scale,
    bar_chart,
    level_chart,
    line_chart,
    nice_scale,
    write_number,
)  # fmt: skip


@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=20))
def test_scale_shows_all_values_between_ticks(values):
    scale = nice_scale(values, 10, 110)
    near = 1e-6 * (scale.high - scale.low)
    ticks = scale.ticks()
    assert 2 <= len(ticks) <= 16
    assert ticks == sorted(set(ticks))
    for tick, bound in ((ticks[0], scale.low), (ticks[-1], scale.high)):
        assert abs(tick - bound) < 0.5 * (scale.high - scale.low)
    assert scale.low - near <= min(values) <= max(values) <= scale.high + near
    assert (scale(scale.low), scale(scale.high)) == (10, pytest.approx(110))
    places = [scale(value) for value in sorted(values)]
    assert places == sorted(places)


@given(st.lists(st.floats(1e-12, 1e12), min_size=1, max_size=20))
def test_logarithmic_scale_ends_on_powers_of_ten(values):
    scale = nice_scale(values, 200, 0, is_log=True)
    assert scale.low <= min(values) * (1 + 1e-9)
    assert scale.high >= max(values) * (1 - 1e-9)
    powers = [math.log10(tick) for tick in [scale.low, scale.high, *scale.ticks()]]
    assert powers == pytest.approx([round(power) for power in powers])
    assert 1 <= len(scale.ticks()) <= 8
    places = [scale(value) for value in sorted(values)]
    assert places == sorted(places, reverse=True)


def test_places_and_ticks():
    assert [Scale(0, 4, 10, 50)(v) for v in (0, 1, 4, 9, -3)] == [10, 20, 50, 50, 10]
    log = Scale(1e-4, 1, 100, 0, is_log=True)
    assert [log(v) for v in (1e-4, 1e-2, 1, 0.0)] == pytest.approx([100, 50, 0, 100])
    assert Scale(0, 101.4, 0, 1).ticks() == [0, 20, 40, 60, 80, 100]
    assert log.ticks() == [1e-4, 1e-3, 1e-2, 1e-1, 1]
    for values, options, ends in (
        ([3, 27], {}, (0, 30)), ([3, 27], {"least": True}, (0, 30)), ([], {}, (-1, 1)),
        ([12, 17.5], {}, (12, 18)), ([0], {"least": True}, (0, 1)), ([-2], {}, (-4, 0)),
        ([0, 0.02, 3], {"is_log": True}, (0.01, 10)), ([100], {"is_log": True}, (100, 1000)),
    ):  # fmt: skip
        scale = nice_scale(values, 0, 1, **options)
        assert (scale.low, scale.high) == pytest.approx(ends)


@pytest.mark.parametrize(
    ("value", "step", "text"),
    [
        (0, 1, "0"), (12500, 500, "12,500"), (0.25, 0.05, "0.25"), (90, 0.5, "90.0"),
        (3e6, 1e6, "3M"), (2_500_000, 500_000, "2.5M"), (1_000_200, 100, "1,000,200"),
        (4e9, 1e9, "4G"), (1e-7, 1e-7, "1e-07"), (-0.5, 0.1, "-0.5"),
    ],
)  # fmt: skip
def test_ticks_have_the_digits_they_need(value, step, text):
    assert write_number(value, step) == text


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12))
def test_letters_at_line_ends_do_not_overlap(ends):
    lines = [Line(k, chr(65 + k), [(0, 50), (k + 1, end)]) for k, end in enumerate(ends)]
    chart = ET.fromstring(line_chart("c", "t", "d", "x", lines))
    places = sorted(float(t.get("y")) for t in chart.iter("text") if "letter" in t.get("class"))
    assert len(places) == len(ends)
    assert all(b - a >= 15.98 for a, b in itertools.pairwise(places))
    assert places[-1] <= 262 - 40 + 4.6


@pytest.mark.parametrize("points", [[], [(0.0, 0.0)], [(1.0, -5.0)], [(2.0, 1e300), (3.0, 1e-300)]])
def test_odd_values_are_drawn(points):
    for is_log in (False, True):
        text = line_chart("c", "<&>", "d", "x", [Line(0, "A", points)], is_log=is_log, highest=10.0)
        assert "nan" not in text
        assert "inf" not in text
        ET.fromstring(text)
    ET.fromstring(bar_chart("b", "t", "d", "x", [Bar("<", {"solve": 0.0}, {})], 0.0))
    ET.fromstring(bar_chart("b", "t", "d", "x", [], 1.0))
    ET.fromstring(level_chart("l", "t", "d", "x", [("<a>", 1.0, 2.0)]))
