"""Parsing and formatting of sizes, durations, dates and lists of numbers."""

import datetime
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import (
    format_number,
    format_size,
    padding,
    parse_duration,
    parse_grid,
    parse_moment,
    parse_size,
    shorten,
    to_whole,
    width_of,
)

from sbm import SettingsError

NOW = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)


def moment(text):
    return parse_moment(text, NOW).isoformat()


@pytest.mark.parametrize(
    ("read", "written"),
    [
        (parse_size, {
            "2GB": 2 * 10**9, "300 MiB": 300 * 2**20, "1.5g": 1_500_000_000, 123: 123, 1: 1,
            "1kb": 1000, "1ki": 1024, " 4 MB ": 4 * 10**6, "7B": 7, ".5M": 500_000,
            "2T": 2 * 10**12, "1GiB": 2**30, "1TiB": 2**40,
        }),
        (parse_duration, {
            "90": 90, "90s": 90, 90: 90, 0: 0, 0.25: 0.25, "5m": 300, "1.5h": 5400, "1d": 86400,
            " 2 H ": 7200, "0": 0, 1e20: 1e20,
        }),
        (moment, {
            "2026-01-31": "2026-01-31T00:00:00+00:00",
            " 2026-01-31T06:00 ": "2026-01-31T06:00:00+00:00",
            "2026-01-31T06:00+01:30": "2026-01-31T06:00:00+01:30",
            "36h": "2026-02-28T00:00:00+00:00", " 0.5 D": "2026-03-01T00:00:00+00:00",
        }),
        (parse_grid, {
            "0.01:100:x10": [0.01, 0.1, 1, 10, 100], "1:9:x2": [1, 2, 4, 8], "3:3:x2": [3],
            "0.1,1, 10": [0.1, 1, 10], "5": [5], "1:8:x2": [1, 2, 4, 8],
        }),
    ],
)  # fmt: skip
def test_values_are_parsed(read, written):
    assert {text: read(text) for text in written} == written


@pytest.mark.parametrize(
    ("read", "texts"),
    [
        (parse_size, ["", "GB", "-1", "0", "0.4", "1.2.3", ".", "2XB", "1 I", "1iB", "nan", "1e9",
                      "2 G B", "2", " 9999 ", 0, -5, True, "9" * 400]),
        (parse_duration, ["", "m", "5x", "-5", -5, "1h30m", ".", "inf", math.inf, math.nan, True]),
        (parse_moment, ["", "30", "yesterday", "2026-13-01", "-1d", "d", "1e9d", "9" * 20 + "d"]),
        (parse_grid, ["", "a", "1:2", "1:2:2", "1:2:x1", "2:1:x2", "0:1:x2", "1:inf:x2",
                      "1:2:x1.0001", "1:2:x2:3"]),
    ],
)  # fmt: skip
def test_invalid_texts_are_refused(read, texts):
    for text in texts:
        with pytest.raises(SettingsError, match=re.escape(repr(text))):
            read(text)


def test_grid_has_at_most_1000_numbers():
    assert len(parse_grid("1:1e300:x2")) == 997
    assert len(parse_grid(f"1:{1.01**999!r}:x1.01")) == 1000
    with pytest.raises(SettingsError):
        parse_grid(f"1:{1.01**1000!r}:x1.01")


def test_durations_count_back_from_now():
    ago = datetime.datetime.now(datetime.UTC) - parse_moment("1h")
    assert ago.total_seconds() == pytest.approx(3600, abs=60)


def test_numbers_are_formatted():
    sizes = {
        0: "0 B", 999: "999 B", 1000: "1 kB", 1234: "1.23 kB", 12_345: "12.3 kB", 99_999: "100 kB",
        123_456: "123 kB", 999_499: "999 kB", 999_500: "1 MB", 1.5e9: "1.5 GB", 2e12: "2 TB",
        1.234e15: "1234 TB", -1500: "-1.5 kB",
    }  # fmt: skip
    assert {size: format_size(size) for size in sizes} == sizes
    numbers = {
        1.0: "1", 0.1: "0.1", 20240131.0: "20240131", 1e15: "1000000000000000",
        10**39: "1" + "0" * 39, 10**40: "a number of 41 digits", -2.0: "-2",
        999999999999999.0: "999999999999999", 2.0**53: "9007199254740992", -1e16: "-1" + "0" * 16,
        2.0**64: "1.8446744073709552e+19", 0.30000000000000004: "0.30000000000000004",
        10**5000: "a number of 5001 digits",
    }  # fmt: skip
    assert {number: format_number(number) for number in numbers} == numbers


def test_whole_numbers_of_any_length_are_read():
    digits = {"0": 0, "007": 7, "-12": -12, "9" * 19: 10**19 - 1, "-0": 0, "0" * 5000 + "1": 1}
    assert {text: to_whole(text) for text in digits} == digits
    assert to_whole("1" * 5000) == -to_whole("-" + "1" * 5000) == 2**64


def test_wide_characters_take_two_columns():
    widths = {"abc": 3, "日本": 4, "größe": 5, "gro\u0308ße": 5, "ｱＡ": 3}
    assert {text: width_of(text) for text in widths} == widths
    assert [padding("日本", n) for n in (3, 6)] == ["", "  "]


def test_names_are_shortened_for_messages():
    assert shorten("grün x") == "grün x"
    assert shorten("a\nb\tc\x1b[2J\x00") == r"a\nb\tc\x1b[2J\x00"
    assert len(shorten("word " * 1000)) == 60


@given(st.integers(1, 10**15))
def test_written_size_reads_back(size):
    assert parse_size(format_size(size)) == pytest.approx(size, rel=0.0051)
