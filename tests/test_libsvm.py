"""The parser of LIBSVM text against a slow one, and its numbers against Python's float."""

import random
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from helpers import as_rows
from hypothesis import example, given, settings
from hypothesis import strategies as st
from slow_parser import Row, slow_parse

from sbm.store.libsvm import explain_text, parse_text
from sbm.store.parsing import SPARE, ParsedText, Room

QUICK = settings(deadline=None, derandomize=True, max_examples=150)


def parse(text: bytes, dtype: str = "float32", skip: bool = False, **options: int) -> ParsedText:
    """Parse text that lies between bytes which must not be read as part of it."""
    buffer = np.full(len(text) + SPARE, ord("7"), np.uint8)
    buffer[: len(text)] = np.frombuffer(text, np.uint8)
    return parse_text(buffer, len(text), dtype=dtype, skip=skip, **options)


def rows_of(parsed: ParsedText) -> list[Row]:
    starts, lengths = parsed.indptr[:-1], np.diff(parsed.indptr)
    for start, length in zip(starts, lengths, strict=True):
        assert (np.diff(parsed.ids[start : start + length]) > 0).all(), "ids of a row not sorted"
    return as_rows(parsed.labels, starts, lengths, parsed.ids, parsed.values)


def only_error(text: bytes, dtype: str = "float32") -> tuple[int, str]:
    parsed = parse(text, dtype)
    assert parsed.n_errors == len(parsed.errors) == 1
    return parsed.errors[0].line, explain_text(parsed.errors[0])


def same_floats(a: list[Row], b: list[Row]) -> bool:
    """Equality that tells 0.0 and -0.0 apart."""
    return repr(a) == repr(b)


# ------------------------------------------------------------------------ against the slow parser

BLANKS = st.sampled_from([" ", " ", " ", "\t", "  ", " \t ", "\r", "\v", "\f "])
LABELS = st.sampled_from(["+1", "-1", "1", "1.0", "1e0", "-0", "0", "2.50", ".5", "3.", "-7e-3"])
PLAIN_NUMBERS = st.one_of(
    st.sampled_from(["1", "1", "1", "1.0", "+1", "0", "-0", "1e0", "0.1", "-2.5E+3", "1e-40"]),
    st.floats(-(2.0**120), 2.0**120, width=32).map(repr),
    st.floats(-1e9, 1e9).map(repr),
    st.integers(-(10**25), 10**25).map(str),
)
BAD_NUMBERS = st.sampled_from([
    "", "inf", "-inf", "nan", "+NaN", "Infinity", "1e", "1e+", "--1", "+", ".", "1.2.3", "0x10",
    "1_0", "1,5", "1e39", "-1e39", "1e400", "1e999999999999", "x", "é", "1:2", "9" * 60 + "q",
])  # fmt: skip
IDS = st.one_of(
    st.integers(0, 9).map(str),
    st.integers(0, 2**63 - 1).map(str),
    st.sampled_from(["0", "00", "007", str(2**63 - 1), "0" * 30 + "5", str(2**24), str(2**32)]),
)
BAD_IDS = st.sampled_from([
    "", "-1", "+1", "a", str(2**63), "18446744073709551616", "9" * 30, "1.0", "qid",
])  # fmt: skip


@st.composite
def lines(draw: st.DrawFn, refused: bool) -> str:
    """Draw a line; with `refused`, about a third hold something that is not allowed."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.sampled_from(["", " ", "\t\r", "# 1 1:1", "  #", "#"]))
    bad = refused and kind < 5
    parts = [draw(st.one_of(BAD_NUMBERS.filter(bool), LABELS)) if bad else draw(LABELS)]
    if draw(st.integers(0, 4)) == 0:
        parts.append(f"qid:{draw(st.integers(0, 10**20))}")
    ids = draw(st.lists(IDS, max_size=8, unique_by=int))
    parts += [f"{i}:{draw(PLAIN_NUMBERS)}" for i in ids]
    if bad:
        extra = draw(
            st.one_of(
                BAD_IDS.map(lambda i: f"{i}:1"),
                BAD_NUMBERS.map(lambda v: f"5:{v}"),
                st.sampled_from(["5", "qid:", "qid:1", "qid:x", ":", "5:1 5:2", "nan", "1:1:1"]),
            )
        )
        parts.insert(draw(st.integers(1, len(parts))), extra)
    line = draw(st.sampled_from(["", " ", "\t"])) + draw(BLANKS).join(parts)
    return line + draw(st.sampled_from(["", "", "", " ", "\r", "#", "# 9:9", "#nan:nan"]))


@st.composite
def texts(draw: st.DrawFn, refused: bool = False) -> bytes:
    body = "\n".join(draw(st.lists(lines(refused), max_size=6)))
    return (body + draw(st.sampled_from(["", "\n", "\r\n"]))).encode()


@QUICK
@given(texts(), st.sampled_from(["float32", "float64"]))
@example(b"", "float32")
@example(b"\n\n", "float32")
@example(b"1", "float32")
@example(b"1\n", "float32")
@example(b"1 1:1", "float64")
def test_allowed_text_gives_the_rows_of_the_slow_parser(text: bytes, dtype: str) -> None:
    expected, refused = slow_parse(text, dtype)
    parsed = parse(text, dtype, skip=True)
    assert [(e.line, explain_text(e)) for e in parsed.errors] == refused
    assert same_floats(rows_of(parsed), expected)
    assert parsed.n_lines == len(text.split(b"\n")) - (text.endswith(b"\n") or not text)


@QUICK
@given(texts(refused=True), st.sampled_from(["float32", "float64"]))
def test_refused_lines_are_named_and_all_others_kept(text: bytes, dtype: str) -> None:
    expected, refused = slow_parse(text, dtype)
    parsed = parse(text, dtype, skip=True)
    assert [(e.line, explain_text(e)) for e in parsed.errors] == refused
    assert parsed.n_errors == len(refused)
    assert same_floats(rows_of(parsed), expected)


@QUICK
@given(texts(refused=True))
def test_without_skip_parsing_ends_at_the_first_refused_line(text: bytes) -> None:
    _, refused = slow_parse(text)
    parsed = parse(text)
    assert [(e.line, explain_text(e)) for e in parsed.errors] == refused[:1]
    before = b"\n".join(text.split(b"\n")[: refused[0][0] - 1]) if refused else text
    assert same_floats(rows_of(parsed), slow_parse(before)[0])


# ------------------------------------------------------------------------------ the grammar by hand


def test_labels_of_every_spelling() -> None:
    text = b"+1\n-1\n1\n1.0\n1e0\n-0\n2.5e-1\n-3.75\n1E+2\n.5\n4.\n123456789.25\n"
    labels = parse(text).labels
    assert labels.tolist() == [1, -1, 1, 1, 1, 0, 0.25, -3.75, 100, 0.5, 4, 123456789.25]
    assert np.signbit(labels[5])


def test_blanks_line_ends_comments_and_query_numbers_mean_nothing() -> None:
    plain = rows_of(parse(b"1 3:0.5 7:2\n-1\n2 0:1\n"))
    odd = b"\r\n# top\n \t1\t 3:0.5\v\f7:2 \r\n\n  # inside\n-1 qid:77\r\n2 qid:1\t0:1#2:x inf"
    assert rows_of(parse(odd)) == plain
    assert plain == [(1, ((3, 0.5), (7, 2))), (-1, ()), (2, ((0, 1),))]


def test_values_are_kept_beside_their_ids_when_ids_are_sorted() -> None:
    assert rows_of(parse(b"1 9:9 2:2 5:5 0:0.5\n")) == [(1, ((0, 0.5), (2, 2), (5, 5), (9, 9)))]


@pytest.mark.parametrize("count", [2, 63, 64, 65, 1000])
def test_long_unsorted_rows_are_sorted_with_their_values(count: int) -> None:
    ids = random.Random(count).sample(range(10**9), count)
    text = "1 " + " ".join(f"{i}:{i % 1000}.5" for i in ids)
    expected = tuple((i, i % 1000 + 0.5) for i in sorted(ids))
    assert rows_of(parse(text.encode())) == [(1, expected)]
    ones = "1 " + " ".join(f"{i}:1" for i in ids)
    assert rows_of(parse(ones.encode())) == [(1, tuple((i, 1.0) for i in sorted(ids)))]


def test_values_that_are_all_one_are_not_stored() -> None:
    assert parse(b"1 1:1 2:1.0\n-1 3:1e0\n").values is None
    values = parse(b"1 1:1 2:1\n-1 3:2 4:1\n").values
    assert values is not None
    assert values.tolist() == [1, 1, 2, 1]


def test_the_value_type_is_the_one_asked_for() -> None:
    for dtype in ("float32", "float64"):
        values = parse(b"1 1:0.1", dtype).values
        assert values is not None
        assert values.dtype == dtype
        assert values[0] == np.dtype(dtype).type(0.1)


@pytest.mark.parametrize("end", [" ", "\t", "\r", "  ", " \r", "#", " # 1:1", "\v", ""])
@pytest.mark.parametrize(
    "value", ["1", "1.0", "01", "1.", ".5", "-1", "+1", "0.25", "-0", "1e0", "11", "1234567",
              "12345678", "123456789", "1234567.7654321", "1.12345678", "12345678.5"],
)  # fmt: skip
def test_ids_and_values_of_any_length_are_read_before_any_end(value: str, end: str) -> None:
    # Eight bytes are read at a time: every length, and everything that may follow.
    ids = ["1234567890123456789"[:n] for n in range(1, 20)]
    rows = [f"{value} {i}:{value}{end}" for i in ids]
    rows.append("+1 " + " ".join(f"{i}:1" for i in ids) + f" 9{ids[-1][:-1]}:{value}{end}")
    text = "\n".join([*rows, *reversed(rows)]).encode()
    expected, refused = slow_parse(text)
    assert refused == []
    assert same_floats(rows_of(parse(text)), expected)


@pytest.mark.parametrize("text", ["1 5:1x", "1 5:1:1", "1 5:12x", "1 1234567:1 2:1.5x", "1 :1"])
def test_what_only_begins_like_a_short_number_is_refused(text: str) -> None:
    parsed = parse(text.encode(), skip=True)
    assert [(e.line, explain_text(e)) for e in parsed.errors] == slow_parse(text.encode())[1]
    assert parsed.n_errors == 1


def test_a_room_is_used_again_where_it_is_large_enough() -> None:
    room = Room(100, "float32")
    texts = [b"1 1:0.5 2:2\n-1 3:3\n", b"2 7:1\n", b"3 1:0.1" + b" 9:9" * 40, b"", b"4 2:2"]
    for text in texts:
        buffer = np.frombuffer(text + bytes(SPARE), np.uint8).copy()
        parsed = parse_text(buffer, len(text), room=room, skip=True)
        assert rows_of(parsed) == rows_of(parse(text, skip=True))
        assert np.shares_memory(parsed.labels, room.labels) == (0 < len(text) < 100)
        kept = parsed.copy()
        assert not np.shares_memory(kept.ids, room.ids)
        assert rows_of(kept) == rows_of(parsed)


def test_ids_reach_from_0_to_two_to_the_63_minus_1() -> None:
    text = b"1 0:1 9223372036854775807:1 00000000000000000000000009:1"
    assert parse(text).ids.tolist() == [0, 9, 2**63 - 1]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (b"x 1:1", 1, "found 'x' where a numeric label is expected"),
        (b"1\n\n#\n1:1", 4, "found '1:1' where a numeric label is expected"),
        (b"+1x", 1, "found '+1x' where a numeric label is expected"),
        (b"1\r\nnan 1:1", 2, "found 'nan', but only finite numbers are allowed"),
        (b"-inf", 1, "found '-inf', but only finite numbers are allowed"),
        (b"1 1:Infinity", 1, "found 'Infinity', but only finite numbers are allowed"),
        (b"1 a:1", 1, "found 'a:1' where a feature written as id:value is expected"),
        (b"1 -1:1", 1, "found '-1:1' where a feature written as id:value is expected"),
        (b"1 :1", 1, "found ':1' where a feature written as id:value is expected"),
        (b"1 1:1 qid:1", 1, "found 'qid:1' where a feature written as id:value is expected"),
        (b"1 5 6:1", 1, "found '5' without a value, a feature is written as id:value"),
        (b"1 5", 1, "found '5' without a value, a feature is written as id:value"),
        (
            b"1 9223372036854775808:1",
            1,
            (
                "found feature id '9223372036854775808:1', the largest allowed id is "
                "9223372036854775807"
            ),
        ),
        (b"1 1:", 1, "found '' where a decimal number is expected"),
        (b"1 1: 2", 1, "found '' where a decimal number is expected"),
        (b"1 1:1e", 1, "found '1e' where a decimal number is expected"),
        (b"1 1:0x1", 1, "found '0x1' where a decimal number is expected"),
        (b"1 2:" + b"z" * 41, 1, f"found '{'z' * 37}...' where a decimal number is expected"),
        (b"1 2:" + b"z" * 40, 1, f"found '{'z' * 40}' where a decimal number is expected"),
        (b"1 2:\xff", 1, "found '\ufffd' where a decimal number is expected"),
        (b"1 2:1e99x", 1, "found '1e99x' where a decimal number is expected"),
        (b"1 qid:1 qid:2", 1, "found 'qid:2' where a feature written as id:value is expected"),
        (b"1qid:2 1:1", 1, "found '1qid:2' where a numeric label is expected"),
        (
            b"1." + b"0" * 15 + b"11102230246251565404236316680908203126qid:2 1:1",
            1,
            "found '1.00000000000000011102230246251565404...' where a numeric label is expected",
        ),
        (
            b"1 1:1." + b"0" * 15 + b"11102230246251565404236316680908203126x",
            1,
            "found '1.00000000000000011102230246251565404...' where a decimal number is expected",
        ),
        (b"1 4:1 3:1 4:2", 1, "found feature id '4' twice, each id is allowed once in a row"),
        (b"1 4:1 4:1", 1, "found feature id '4' twice, each id is allowed once in a row"),
        (b"1 1:1\x00 2:1", 1, "found '\\x00' where a feature written as id:value is expected"),
        (
            b"1 1:1e39",
            1,
            (
                "found '1e39', too large for the value type (float64 reaches 1.79e308, "
                "float32 3.4e38; see --dtype)"
            ),
        ),
        (
            b"-1.8e308",
            1,
            (
                "found '-1.8e308', too large for the value type (float64 reaches 1.79e308, "
                "float32 3.4e38; see --dtype)"
            ),
        ),
    ],
)
def test_what_is_refused_is_said_exactly(text: bytes, line: int, message: str) -> None:
    assert only_error(text) == (line, message)
    assert only_error(b"1 1:1\n" + text + b"\n1 1:1\n") == (line + 1, message)


def test_the_range_is_that_of_the_value_type() -> None:
    assert parse(b"1 1:3.4e38 2:-3.4e38").n_errors == 0
    assert parse(b"1 1:3.5e38").n_errors == parse(b"1 1:-3.5e38").n_errors == 1
    assert parse(b"1 1:3.5e38 2:1.79e308", "float64").n_errors == 0
    assert parse(b"1 1:1.8e308", "float64").n_errors == 1
    assert parse(b"1 1:1e-400 2:1e-45", "float64").n_errors == 0
    assert parse(b"1e300 1:1").labels.tolist() == [1e300], "labels are float64 always"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_largest_number_of_the_value_type_is_allowed(dtype: str) -> None:
    largest = np.finfo(dtype).max
    parsed = parse(f"1 1:{largest!s} 2:{float(largest)!r}".encode(), dtype)
    assert [explain_text(e) for e in parsed.errors] == []
    assert parsed.values is not None
    assert (parsed.values == largest).all()


def test_skipping_counts_all_refused_lines_and_describes_the_first_ones() -> None:
    text = b"".join(b"%d %d:1\n" % (k, k) + b"bad 1:1\n" for k in range(50))
    parsed = parse(text, skip=True, max_errors=3)
    assert parsed.n_errors == 50
    assert [e.line for e in parsed.errors] == [2, 4, 6]
    assert parsed.n_lines == 100
    assert rows_of(parsed) == [(k, ((k, 1.0),)) for k in range(50)]


def test_a_refused_row_leaves_no_values_behind() -> None:
    # Numbers that need arbitrary precision are put in place later: not those of refused rows.
    hard = "1.00000000000000011102230246251565404236316680908203126"
    text = f"1 1:{hard} 2:x\n2 1:2 5:{hard}\n3 7:{hard} 7:1\n{hard} 3:3\n".encode()
    parsed = parse(text, "float64", skip=True)
    above = 1.0000000000000002
    assert rows_of(parsed) == [(2, ((1, 2), (5, above))), (above, ((3, 3),))]
    assert [e.line for e in parsed.errors] == [1, 3]


# ------------------------------------------------------------------------------------- numbers


def bits(numbers: list[float] | np.ndarray) -> list[int]:
    return np.array(numbers, np.float64).view(np.uint64).tolist()


def check_numbers(words: list[str]) -> None:
    """Compare words as labels and as values of both types with float, bit for bit."""
    floats = [float(w) for w in words]
    for dtype in ("float32", "float64"):
        text = "".join(f"{w} 8:{w}\n" for w in words).encode()
        parsed = parse(text, dtype, skip=True, max_errors=len(words))
        with np.errstate(over="ignore"):
            kept = np.isfinite(np.array(floats).astype(dtype)).tolist()
        expected = [x for x, keep in zip(floats, kept, strict=True) if keep]
        assert bits(parsed.labels) == bits(expected)
        values = np.ones(len(expected), dtype) if parsed.values is None else parsed.values
        assert values.dtype == dtype
        assert bits(values) == bits(np.array(expected).astype(dtype))
        assert [e.line for e in parsed.errors] == [k for k, keep in enumerate(kept, 1) if not keep]


DIGITS = st.text("0123456789", min_size=1, max_size=30)
WORDS = st.builds(
    lambda sign, whole, fraction, e: sign + whole + fraction + e,
    st.sampled_from(["", "-", "+"]),
    DIGITS,
    st.one_of(st.just(""), st.just("."), DIGITS.map(lambda d: "." + d)),
    st.one_of(st.just(""), st.integers(-400, 400).map(lambda e: f"e{e}")),
)


@QUICK
@given(st.lists(WORDS, min_size=1, max_size=20))
@example(["0", "-0", "0.0", "00", "0e400", "-0e-400", "0." + "0" * 400 + "1"])
@example(
    ["5e-324", "2.4703282292062327e-324", "2.4703282292062328e-324", "2.2250738585072014e-308"]
)
@example(["2.2250738585072011e-308", "2.2250738585072012e-308", "4.9406564584124653e-324"])
@example(["9007199254740993", "9007199254740992.5", "9007199254740993.0000000000000000000001"])
@example(["1" + "0" * 308, "0." + "0" * 307 + "1", "1e-343", "1e308", "123456789012345678901e288"])
@example(["9999999999999999999", "18446744073709551615", "18446744073709551616", "1e22", "1e23"])
@example(["7.2057594037927933e16", "8.5899345919999999e9", "6631236846766476e-316"])
@example(["1" * 800, "9" * 308, "1." + "1" * 800, "0.1e-6", "1e100000000000000000000", "1e-99999"])
def test_random_decimal_numbers_are_rounded_as_float_does(words: list[str]) -> None:
    check_numbers(words)


@pytest.mark.parametrize(
    "middle",
    [
        # The least numbers that are infinite: as float64, and as the float32 nearest to a float64.
        2**1024 - 2**970,
        2**128 - 2**103 - 2**74,
    ],
)
def test_the_last_of_many_digits_says_whether_a_number_is_too_large(middle: int) -> None:
    digits = len(str(middle))
    whole = [str(middle + k) for k in (-1, 0, 1)]
    words = [f"{sign}{zeros}{w}{end}" for w in whole for sign in ("", "-") for zeros in ("", "00")
             for end in ("", ".", ".0", ".00001", "e0", "0e-1", "00000e-5")]  # fmt: skip
    words += [f"{w[:k]}.{w[k:]}e{digits - k}" for w in whole for k in range(digits)]
    words += [f"0.000{w}e{digits + 3}" for w in whole]
    words += [f"{str(middle)[:k]}e{digits - k}" for k in range(15, digits)]
    words += [f"{int(str(middle)[:k]) + 1}e{digits - k}" for k in range(15, digits)]
    assert {abs(float(w)) == np.inf for w in words} == {False, digits > 300}
    check_numbers(words)


def test_products_with_a_power_of_five_that_end_in_ones_are_rounded_as_float_does() -> None:
    words = []
    for q in range(-342, 309):
        power = 5**q << 128 if q >= 0 else 2 ** (2 * (5**-q).bit_length() + 128) // 5**-q + 1
        leading = power >> (power.bit_length() - 64)
        if leading % 2:
            w = -pow(leading, -1, 2**64) % 2**64  # times the leading word: all ones below 2^64
            words += [f"{w}e{q}"] * (2**63 <= w < 10**19)
    assert len(words) > 10
    assert any(float(w) == np.inf for w in words)
    check_numbers(words)


@QUICK
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_the_shortest_spelling_of_every_float_comes_back(numbers: list[float]) -> None:
    check_numbers([repr(x) for x in numbers] + [f"{x:.16e}" for x in numbers])


def exact_decimal(x: Fraction) -> str:
    """All digits of a fraction whose denominator is a power of two."""
    with localcontext() as context:
        context.prec = 2000
        return f"{Decimal(x.numerator) / Decimal(x.denominator):e}"


@st.composite
def halves(draw: st.DrawFn) -> list[str]:
    """Draw a number half way between two floats, and its neighbours, in all their digits."""
    low = draw(st.floats(0, 1e308, allow_subnormal=True))
    high = float(np.nextafter(low, np.inf))
    middle = (Fraction(low) + Fraction(high)) / 2
    word = exact_decimal(middle)
    digits, exponent = word.split("e")
    cut = draw(st.integers(17, 22))
    short = digits.rstrip("0")[: cut + 1]
    above = digits + ("" if "." in digits else ".") + "0" * draw(st.integers(0, 9)) + "1"
    return [word, f"{above}e{exponent}", f"{short}e{exponent}", f"-{short}9e{exponent}"]


@QUICK
@given(halves())
def test_numbers_half_way_between_two_floats_go_to_the_even_one(words: list[str]) -> None:
    check_numbers(words)


def test_a_hundred_thousand_numbers_of_17_to_25_digits() -> None:
    r = random.Random(1)
    words = []
    for _ in range(60_000):
        n = r.randint(17, 25)
        digits = str(r.randrange(10 ** (n - 1), 10**n))
        point = r.randint(0, n)
        words.append(f"{digits[:point]}.{digits[point:]}e{r.randint(-360, 310)}")
    for _ in range(40_000):  # short ones near the limit of the fast path
        words.append(f"{r.randrange(1, 2 ** r.randint(1, 54))}e{r.randint(-30, 30)}")
    check_numbers(words)


def test_thousands_of_hard_numbers_in_one_text() -> None:
    # More of them than the parser sets room aside for at first.
    r = random.Random(2)
    words = []
    for _ in range(3000):
        low = r.random() * 10.0 ** r.randint(-20, 20)
        middle = (Fraction(low) + Fraction(float(np.nextafter(low, np.inf)))) / 2
        words.append(exact_decimal(middle).replace("e", r.choice(["0001e", "e"])))
    check_numbers(words)


def test_a_number_a_little_above_1_is_not_taken_for_1() -> None:
    # Just above half way between 1 and the next float: the first 19 digits cannot tell.
    word = "1.00000000000000011102230246251565404236316680908203126"
    assert float(word) == 1.0000000000000002
    for text in (f"1 5:{word}", f"1 1:1 5:{word} 7:1", f"1 5:1\n1 5:{word}\n"):
        expected = slow_parse(text.encode(), "float64")[0]
        assert same_floats(rows_of(parse(text.encode(), "float64")), expected)
