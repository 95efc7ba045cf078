"""Scales, ticks and layout of charts."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import (  # fmt: skip
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    BarChart,
    LineChart,
    Scale,
    Series,
)

DIGIT, LINE = 8, 15  # units of the view box, generously


def chart_of(*points, **options):
    return LineChart("c", "t", "x", "y", [Series("a", 0, points)], **options)


def check_labels(drawing):
    """Labels lie inside the view box and do not overlap."""
    for at, label in drawing.y_ticks:
        assert LEFT - 7 - DIGIT * len(label) >= -DIGIT, label
        assert TOP <= at <= BOTTOM
    for (a, _), (b, _) in itertools.pairwise(drawing.y_ticks):
        assert a - b >= LINE
    for at, label in drawing.x_ticks:
        assert at + DIGIT * len(label) / 2 <= WIDTH + DIGIT
    for (a, left), (b, right) in itertools.pairwise(drawing.x_ticks):
        assert b - a >= DIGIT * (len(left) + len(right)) / 2
    labels = [label for _, label in drawing.y_ticks]
    assert len(set(labels)) == len(labels) >= 2
    assert BOTTOM + 18 + LINE < HEIGHT - 5 + 2


@given(st.lists(st.tuples(st.floats(0, 1e15), st.floats(-1e12, 1e12)), min_size=1, max_size=9))
def test_any_line_chart_has_readable_labels(points):
    drawing = chart_of(*points).drawing()
    check_labels(drawing)
    assert all(LEFT <= x <= RIGHT and TOP <= y <= BOTTOM for _, x, y, _, _ in drawing.marks)


@given(st.lists(st.tuples(st.floats(1e-9, 1e9), st.floats(1e-300, 1e300)), min_size=1, max_size=9))
def test_any_logarithmic_chart_has_readable_labels(points):
    check_labels(chart_of(*points, x_log=True, y_log=True).drawing())


@given(st.integers(0, 40), st.integers(1, 10**6), st.floats(1e-6, 1e12))
def test_any_bar_chart_has_readable_labels(n, first, height):
    labels = [f"{first + 3 * k}–{first + 3 * k + 2}" for k in range(n)]
    parts = {"a": [0.2 * height] * n, "b": [0.8 * height] * n}
    drawing = BarChart("c", "t", "x", "y", labels, parts, height).drawing()
    check_labels(drawing)
    assert len(drawing.bars) == 2 * n
    for _, left, top, width, size, _ in drawing.bars:
        assert LEFT <= left <= left + width <= RIGHT
        assert TOP <= top <= top + size <= BOTTOM + 0.02


@pytest.mark.parametrize(
    ("values", "is_log", "ends", "labels"),
    [
        ([3, 27], False, (0, 30), ["0", "5", "10", "15", "20", "25", "30"]),
        ([12, 17.5], False, (12, 18), ["12", "13", "14", "15", "16", "17", "18"]),
        ([0, 12500], False, (0, 15000), ["0", "5,000", "10,000", "15,000"]),
        ([0, 2.5e6], False, (0, 2.5e6), ["0", "0.5M", "1.0M", "1.5M", "2.0M", "2.5M"]),
        ([-0.2, 0.3], False, (-0.2, 0.3), ["-0.2", "-0.1", "0", "0.1", "0.2", "0.3"]),
        ([], False, (0.9995, 1.0005), None),
        ([0.02, 3], True, (0.01, 10), ["0.01", "0.1", "1", "10"]),
        ([100], True, (100, 1000), ["100", "1,000"]),
        ([1e-9, 1e-6], True, (1e-9, 1e-6), ["10⁻⁹", "10⁻⁸", "10⁻⁷", "10⁻⁶"]),
    ],
)  # fmt: skip
def test_scale_ends_at_round_values(values, is_log, ends, labels):
    scale = Scale.around(values, 0, 100, is_log)
    assert (scale.low, scale.high) == pytest.approx(ends, abs=2e-4)
    ticks = scale.ticks(7)
    assert labels is None or [label for _, label in ticks] == labels
    assert [scale(value) for value in (scale.low, scale.high)] == [0, 100]


def test_line_is_drawn_at_its_values():
    drawing = chart_of((0, 1.0), (5, 2.0), (10, 3.0), level=(2.0, "half")).drawing()
    middle = ((LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2)
    assert drawing.lines == [(0, f"{LEFT}.0,{BOTTOM}.0 {middle[0]},{middle[1]} {RIGHT}.0,{TOP}.0")]
    assert drawing.marks[1] == (0, *middle, False, "a 2")
    assert drawing.level == middle[1]


def test_long_lines_are_thinned_to_their_end():
    drawing = chart_of(*((k, k) for k in range(5001))).drawing()
    assert 20 < len(drawing.marks) <= 40
    assert drawing.marks[-1][1:3] == (RIGHT, Scale.around([0, 5000], BOTTOM, TOP)(5000))
    assert len(drawing.lines[0][1].split()) <= 1000


def test_parts_of_a_bar_are_stacked():
    parts = {"free": [1.0, 0.0], "at 0": [3.0, 4.0]}
    first, second, third = BarChart("c", "t", "x", "y", ["1", "2"], parts, 4.0).drawing().bars
    unit = (BOTTOM - TOP) / 4
    assert (first[0], second[0], third[0]) == (0, 1, 1)
    assert [bar[4] for bar in (first, second, third)] == pytest.approx([unit, 3 * unit, 4 * unit])
    assert second[2] + second[4] == pytest.approx(first[2])
    assert (first[5], second[5]) == ("free 1", "at 0 3")
