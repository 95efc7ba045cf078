"""Settings and the small languages they are written in."""

import dataclasses
import datetime
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbm.errors import SbmError, SettingsError
from sbm.settings import (
    Settings,
    format_size,
    nearest,
    parse_duration,
    parse_moment,
    parse_size,
)

# ---------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GB", 2 * 10**9), ("300 MiB", 300 * 2**20), ("1.5g", 1_500_000_000), ("123", 123),
        (123, 123), ("1kb", 1000), ("1KiB", 1024), ("1ki", 1024), (" 4 MB ", 4 * 10**6),
        ("7B", 7), ("0.5k", 500), ("2T", 2 * 10**12), ("1TiB", 2**40), ("1GiB", 2**30),
        (".5M", 500_000),
    ],
)  # fmt: skip
def test_sizes_are_read(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "GB", "-1", "0", "0.4", "1.2.3", ".", "2XB", "1 I", "1iB", "nan", "inf", "1e9", "2 G B",
     "two", 0, -5, True, "9" * 400],
)  # fmt: skip
def test_what_is_no_size_is_refused(text):
    expected = f"{text!r} is not a size; write it as 2GB, 300MB or 1.5GiB"
    with pytest.raises(SettingsError, match=f"^{re.escape(expected)}$"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (1, "1 B"), (999, "999 B"), (1000, "1 kB"), (1234, "1.23 kB"),
        (12_345, "12.3 kB"), (123_456, "123 kB"), (999_499, "999 kB"), (999_500, "1 MB"),
        (1.5e9, "1.5 GB"), (2e12, "2 TB"), (1.234e15, "1234 TB"), (-1500, "-1.5 kB"),
    ],
)  # fmt: skip
def test_sizes_are_written(size, text):
    assert format_size(size) == text


@settings(deadline=None)
@given(st.integers(1, 10**15))
def test_a_written_size_reads_back_within_three_digits(size):
    assert parse_size(format_size(size)) == pytest.approx(size, rel=0.0051)


# ------------------------------------------------------------------------------------ durations


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90), ("90s", 90), (90, 90), (0.25, 0.25), ("5m", 300), ("1.5h", 5400), ("1d", 86400),
        (" 2 H ", 7200), ("0", 0), (1e-05, 1e-05), (1e20, 1e20),
    ],
)  # fmt: skip
def test_durations_are_read(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "m", "5x", "-5", "-5s", "1h30m", "1.2.3", ".", "inf", "nan", "five", math.nan]
)
def test_what_is_no_duration_is_refused(text):
    expected = f"{text!r} is not a time; write it as 90s, 5m or 1.5h"
    with pytest.raises(SettingsError, match=f"^{re.escape(expected)}$"):
        parse_duration(text)


def test_the_nearest_known_word_is_suggested():
    assert nearest("cach_frac", ["rounds", "cache_frac"]) == "; did you mean 'cache_frac'?"
    assert nearest("zzz", ["rounds", "cache_frac"]) == ""


# --------------------------------------------------------------------------------------- ranges


def test_defaults_are_those_of_the_issue():
    s = Settings()
    assert (s.loss, s.C, s.cache_frac, s.mem_bytes, s.rounds) == (
        "hinge",
        1,
        0.5,
        2 * 10**9,
        "auto",
    )
    assert (s.tol, s.max_passes, s.time_limit, s.policy) == (1e-3, 50, None, "gradient")
    assert (s.bias, s.class_weight, s.seed) == (0, {}, 0)


ROUNDS = "a whole number, a list such as 2,2,5, or auto is expected"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("C", 0, "C is 0; it must be a finite number above 0"),
        ("C", -2.5, "C is -2.5; it must be a finite number above 0"),
        ("C", math.inf, "C is inf; it must be a finite number above 0"),
        ("C", math.nan, "C is nan; it must be a finite number above 0"),
        ("C", "1", "C is '1'; a number is expected"),
        ("C", True, "C is True; a number is expected"),
        ("C", None, "C is None; a number is expected"),
        ("cache_frac", 1, "cache_frac is 1; it must be at least 0 and below 1, or auto"),
        ("cache_frac", -0.1, "cache_frac is -0.1; it must be at least 0 and below 1, or auto"),
        ("cache_frac", math.nan, "cache_frac is nan; it must be at least 0 and below 1, or auto"),
        ("cache_frac", "half", "cache_frac is 'half'; a number or auto is expected"),
        ("tol", 0, "tol is 0; it must be a finite number above 0"),
        ("tol", -1e-3, "tol is -0.001; it must be a finite number above 0"),
        ("tol", math.inf, "tol is inf; it must be a finite number above 0"),
        ("bias", -1, "bias is -1; it must be 0 or a positive number"),
        ("bias", math.inf, "bias is inf; it must be 0 or a positive number"),
        ("rounds", 0, "rounds is 0; it must be at least 1"),
        ("rounds", 1.5, f"rounds is 1.5; {ROUNDS}"),
        ("rounds", True, f"rounds is True; {ROUNDS}"),
        ("rounds", "2,x", f"rounds is '2,x'; {ROUNDS}"),
        ("rounds", "2,0", "rounds is 0; it must be at least 1"),
        ("threads", 0, "threads is 0; it must be at least 1"),
        ("threads", 1.5, "threads is 1.5; a whole number is expected"),
        ("max_passes", 0, "max_passes is 0; it must be at least 1"),
        ("max_passes", "9", "max_passes is '9'; a whole number is expected"),
        ("seed", -1, "seed is -1; it must be from 0 to 2^63 - 1"),
        ("seed", 2.0, "seed is 2.0; a whole number is expected"),
        ("mem", "lots", "'lots' is not a size; write it as 2GB, 300MB or 1.5GiB"),
        ("time_limit", "soon", "'soon' is not a time; write it as 90s, 5m or 1.5h"),
        (
            "class_weight", {1: -1},
            "class_weight of label 1 is -1; it must be 0 or a finite positive number",
        ),
        (
            "class_weight", {-1: math.inf},
            "class_weight of label -1 is inf; it must be 0 or a finite positive number",
        ),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_refused(name, value, message):
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        Settings(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", 2**63), ("seed", 10**400), ("rounds", 10**400), ("rounds", 2**63), ("C", 10**400)],
    ids=["seed-2^63", "seed-400-digits", "rounds-400-digits", "rounds-2^63", "C-400-digits"],
)
def test_numbers_beyond_the_machine_are_refused_in_a_sentence(name, value):
    with pytest.raises(SettingsError, match=f"^{name} is .*; it must be "):
        Settings(**{name: value})


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("C", 2, 2.0), ("cache_frac", 0, 0.0), ("bias", 0, 0.0), ("rounds", 1, 1),
        ("seed", 2**63 - 1, 2**63 - 1), ("mem", "300MB", 300_000_000), ("time_limit", "5m", 300.0),
        ("time_limit", None, None), ("class_weight", {1: 0, "-1": 2}, {1.0: 0.0, -1.0: 2.0}),
    ],
)  # fmt: skip
def test_values_at_the_edge_of_their_range_are_taken(name, value, kept):
    found = getattr(Settings(**{name: value}), name)
    assert found == kept
    assert type(found) is type(kept)


def test_settings_do_not_change_behind_ones_back():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().C = 2


# --------------------------------------------------------------------------- dictionaries, TOML


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("cash_frac", "here: unknown key 'cash_frac'; did you mean 'cache_frac'?"),
        ("max-pass", "here: unknown key 'max_pass'; did you mean 'max_passes'?"),
        ("zzz", "here: unknown key 'zzz'"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_name(key, message):
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        Settings.from_dict({key: 1}, "here")


def test_keys_may_have_dashes_like_the_options():
    made = Settings.from_dict({"cache-frac": 0.25, "max-passes": 7, "time-limit": "2m"})
    assert (made.cache_frac, made.max_passes, made.time_limit) == (0.25, 7, 120)


@pytest.mark.parametrize("written", [["1=2.5", "-1=0.5"], {"1": 2.5, "-1": 0.5}, {1: 2.5, -1: 0.5}])
def test_class_weights_are_read(written):
    assert Settings.from_dict({"class_weight": written}).class_weight == {1.0: 2.5, -1.0: 0.5}


@pytest.mark.parametrize(
    "written",
    [["1"], ["one=1"], ["1=much"], {"a": 1}, {"1": [2]}, "1:2", 3,
     "", "Balanced", ["balanced", "1=2"], ["Balanced"], np.ones(3), {(): 1}],
)  # fmt: skip
def test_what_is_no_class_weight_is_refused(written):
    message = (
        f"class_weight is {written!r}; write it as label=weight, for example 1=2.5, or balanced "
        "alone"
    )
    with pytest.raises(SettingsError, match=f"^there: {re.escape(message)}$"):
        Settings.from_dict({"class_weight": written}, "there")
    with pytest.raises(SettingsError, match=f"^{re.escape(message)}$"):
        Settings(class_weight=written)


@pytest.mark.parametrize("written", [["1=2", "1.0=3"], {"1": 2, 1.0: 3}])
def test_a_label_has_one_weight(written):
    message = "^class_weight names label 1 twice; name it once$"
    with pytest.raises(SettingsError, match=message):
        Settings(class_weight=written)


@pytest.mark.parametrize("written", [None, {}, [], "balanced", ["balanced"], ["1=2"]])
def test_class_weights_are_the_same_in_a_dictionary_and_as_an_argument(written):
    made = Settings(class_weight=written)
    assert made == Settings.from_dict({"class_weight": written})
    assert made.class_weight in ({}, "balanced", {1.0: 2.0})


@pytest.mark.parametrize("name", [f.name for f in dataclasses.fields(Settings)])
@pytest.mark.parametrize("value", [np.ones(3), np.array(["auto", "balanced"]), object(), b"1"])
def test_a_value_of_a_wrong_type_is_refused_in_a_sentence(name, value):
    with pytest.raises(SettingsError):
        Settings(**{name: value})


@pytest.mark.parametrize("name", ["weights", "warm_start"])
def test_paths_are_kept_as_text(name):
    assert getattr(Settings(**{name: Path("a", "b")}), name) == "a/b"


def test_a_warm_start_from_the_last_run_is_a_flag(tmp_path):
    (tmp_path / "a.toml").write_text("warm-start = true\n")
    made = Settings.from_dict(Settings.read_toml(tmp_path / "a.toml"))
    assert made == Settings(warm_start=True)
    assert made.warm_start is True
    assert Settings.from_dict(json.loads(json.dumps(made.to_dict()))) == made
    assert Settings(warm_start=False) == Settings()
    for value in (1, 0, 2.0):
        with pytest.raises(SettingsError, match=f"^warm_start is {value}; a name is expected$"):
            Settings(warm_start=value)


NOW = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-31", "2026-01-31T00:00:00+00:00"),
        (" 2026-01-31T06:00 ", "2026-01-31T06:00:00+00:00"),
        ("2026-01-31 06:00:07", "2026-01-31T06:00:07+00:00"),
        ("2026-01-31T06:00Z", "2026-01-31T06:00:00+00:00"),
        ("2026-01-31T06:00+01:30", "2026-01-31T06:00:00+01:30"),
        ("1d", "2026-02-28T12:00:00+00:00"),
        ("36h", "2026-02-28T00:00:00+00:00"),
        (" 0.5 D", "2026-03-01T00:00:00+00:00"),
        ("30d", "2026-01-30T12:00:00+00:00"),
    ],
)
def test_moments_are_dates_or_so_long_ago(text, expected):
    assert parse_moment(text, NOW).isoformat() == expected


@pytest.mark.parametrize(
    "text", ["", "30", "yesterday", "2026-13-01", "-1d", "d", "1e9d", "9" * 20 + "d"]
)
def test_what_is_no_moment_is_refused(text):
    with pytest.raises(SettingsError) as error:
        parse_moment(text, NOW)
    assert str(error.value) == (
        f"{text!r} is not a date; write it as 2026-01-31, 2026-01-31T06:00 (UTC), or 30d for so "
        "long ago"
    )


def test_settings_may_come_as_a_dictionary():
    made = Settings(C=3)
    assert Settings.of(made) is made
    assert Settings.of({"C": 3}) == made
    assert Settings.of(None) == Settings.of({}) == Settings()
    with pytest.raises(SettingsError, match="unknown key 'c_frac'"):
        Settings.of({"c_frac": 1})
    message = "settings is 3; sbm.Settings or a dict of its names is expected"
    with pytest.raises(SettingsError, match=f"^{message}$"):
        Settings.of(3)


SETTINGS = st.builds(
    Settings,
    loss=st.sampled_from(["hinge", "squared_hinge"]),
    C=st.floats(1e-9, 1e9),
    cache_frac=st.floats(0, 0.999),
    mem=st.integers(1, 10**12),
    rounds=st.integers(1, 1000),
    tol=st.floats(1e-15, 1),
    time_limit=st.none() | st.floats(0.001, 1e6),
    bias=st.floats(0, 100),
    seed=st.integers(0, 2**63 - 1),
    class_weight=st.dictionaries(st.floats(-1e9, 1e9), st.floats(0, 1e6), max_size=3),
)


@settings(deadline=None)
@given(SETTINGS)
def test_settings_survive_the_way_through_a_dictionary(made):
    assert Settings.from_dict(made.to_dict()) == made


def test_labels_of_many_digits_keep_them_in_a_dictionary():
    weights = {20240131.0: 2.0, 20240132.0: 3.0}
    assert Settings.from_dict(Settings(class_weight=weights).to_dict()).class_weight == weights


def test_toml_keys_are_the_options(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(
        'loss = "squared_hinge"\nC = 0.5\ncache-frac = 0.25\nmem = "1GB"\nmax_passes = 3\n'
        "[class-weight]\n1 = 2.5\n-1 = 1\n"
    )
    made = Settings.from_dict(Settings.read_toml(path), str(path))
    assert made == Settings(
        loss="squared_hinge", C=0.5, cache_frac=0.25, mem=10**9, max_passes=3,
        class_weight={1: 2.5, -1: 1},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"C = = 1", "is not a TOML file: "), (b"\xff\xfe", "is not a TOML file: ")],
)
def test_a_file_that_is_no_toml_is_refused(tmp_path, content, message):
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=f"^{re.escape(f'{path} {message}')}"):
        Settings.read_toml(path)


def test_a_toml_file_that_cannot_be_read_is_named(tmp_path):
    missing = tmp_path / "none.toml"
    with pytest.raises(SbmError, match=f"^{missing} does not exist; give a TOML file of settings$"):
        Settings.read_toml(missing)
    with pytest.raises(SbmError, match=f"^cannot read {tmp_path}: Is a directory$"):
        Settings.read_toml(tmp_path)


def test_rounds_and_cache_frac_come_in_words_too():
    assert Settings(rounds="3").rounds == 3
    assert Settings(rounds=" 2, 2 ,5").rounds == "2,2,5"
    assert Settings(rounds="auto").rounds == "auto"
    assert Settings(cache_frac="0.25").cache_frac == 0.25
    assert Settings(cache_frac="auto").cache_frac == "auto"
