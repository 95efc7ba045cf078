"""The LIBSVM parser compared with a slow parser, and its numbers with Python's float."""

import itertools
import pickle
import random
import re
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from helpers import as_rows
from hypothesis import example, given
from hypothesis import strategies as st
from inside import LIBSVM_REASONS as REASONS
from inside import PARSING_SPARE as SPARE
from inside import ParsedText, Room, parse_text
from slow_parser import Row, slow_parse

ABOVE_1 = "1.00000000000000011102230246251565404236316680908203126"  # 19 digits cannot tell


def parse(text: bytes, dtype: str = "float32", skip: bool = True, **options: int) -> ParsedText:
    """Parse text followed by bytes that must not be parsed."""
    buffer = np.full(len(text) + SPARE, ord("7"), np.uint8)
    buffer[: len(text)] = np.frombuffer(text, np.uint8)
    return parse_text(buffer, len(text), dtype=dtype, skip=skip, **options)


def rows_of(parsed: ParsedText) -> list[Row]:
    starts, lengths = parsed.indptr[:-1], np.diff(parsed.indptr)
    for start, length in zip(starts, lengths, strict=True):
        assert (np.diff(parsed.ids[start : start + length]) > 0).all(), "ids of a row not sorted"
    return as_rows(parsed.labels, starts, lengths, parsed.ids, parsed.values)


def check(text: bytes, dtype: str = "float32") -> ParsedText:
    """Compare rows and errors with those of the slow parser."""
    expected, refused = slow_parse(text, dtype)
    parsed = parse(text, dtype)
    assert [(e.line, e.explain(REASONS)) for e in parsed.errors] == refused
    assert parsed.n_errors == len(refused)
    assert parsed.n_lines == len(text.split(b"\n")) - (text.endswith(b"\n") or not text)
    assert repr(rows_of(parsed)) == repr(expected)  # distinguishes 0.0 from -0.0
    return parsed


# ------------------------------------------------------------------------------- random text

BLANKS = st.sampled_from([" ", " ", " ", "\t", "  ", " \t ", "\r", "\v", "\f "])
BEHIND_COLON = st.sampled_from(["", "", "", "", " ", "\t \v"])
LABELS = st.one_of(
    st.sampled_from(["+1", "-1", "1", "1.0", "1e0", "-0", "0", "2.50", ".5", "3.", "-7e-3"]),
    st.sampled_from(["1", "2", str(2**53), str(2**53 + 1), f"-{2**63}.00", "1e23", "9" * 40]),
)
NUMBERS = st.one_of(
    st.sampled_from(["1", "1", "1", "1.0", "+1", "0", "-0", "1e0", "0.1", "-2.5E+3", "1e-40"]),
    st.sampled_from(["12345678.87654321", "-.5", "7.", "0.123456789", "123456789.5", "+3.00"]),
    st.floats(-(2.0**120), 2.0**120, width=32).map(repr),
    st.integers(-(10**25), 10**25).map(str),
)
IDS = st.one_of(
    st.integers(0, 9).map(str),
    st.integers(0, 2**63 - 1).map(str),
    st.sampled_from(["00", "007", str(2**63 - 1), "0" * 30 + "5", str(2**24), str(2**32)]),
)
BAD_NUMBERS = [
    "inf", "-inf", "nan", "+NaN", "Infinity", "1e", "1e+", "--1", "+", ".", "1.2.3", "0x10",
    "1_0", "1,5", "1e39", "-1e39", "1e400", "1e999999999999", "x", "é", "1:2", "9" * 60 + "q",
]  # fmt: skip
BAD_IDS = ["", "-1", "+1", "a", str(2**63), "18446744073709551616", "9" * 30, "1.0", "qid"]
BAD_FEATURES = [
    "5", "5:", "qid:", "qid:1", "qid:x", ":", "5:1 5:2", "nan", "1:1:1",
    *(f"{i}:1" for i in BAD_IDS), *(f"5:{v}" for v in BAD_NUMBERS),
]  # fmt: skip


@st.composite
def lines(draw: st.DrawFn) -> str:
    """Draw a line; about a quarter are invalid."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.sampled_from(["", " ", "\t\r", "# 1 1:1", "  #", "#"]))
    parts = [draw(st.sampled_from(BAD_NUMBERS)) if kind == 1 else draw(LABELS)]
    if draw(st.integers(0, 4)) == 0:
        parts.append(f"qid:{draw(st.integers(0, 10**20))}")
    ids = draw(st.lists(IDS, max_size=8, unique_by=int))
    ids = sorted(ids, key=int) if draw(st.booleans()) else ids
    parts += [f"{i}:{draw(BEHIND_COLON)}{draw(NUMBERS)}" for i in ids]
    if kind == 2:
        extra = draw(st.sampled_from(BAD_FEATURES))
        parts.insert(draw(st.integers(1, len(parts))), extra)
    line = draw(st.sampled_from(["", " ", "\t"])) + draw(BLANKS).join(parts)
    return line + draw(st.sampled_from(["", "", "", " ", "\r", "#", "# 9:9", "#nan:nan"]))


TEXTS = st.builds(
    lambda body, end: ("\n".join(body) + end).encode(),
    st.lists(lines(), max_size=15),
    st.sampled_from(["", "\n", "\r\n"]),
)


@given(TEXTS, st.sampled_from(["float32", "float64"]))
@example(b"", "float32")
@example(b"\n\n", "float32")
@example(b"1", "float32")
@example(b"1 1:1", "float64")
@example(b"1 0:2\nx 1:1", "float32")
@example(b"1 0:1\n1 3:2 4:x\n 1 qid:5 5:1", "float32")
def test_random_text_matches_the_slow_parser(text: bytes, dtype: str) -> None:
    check(text, dtype)
    refused = slow_parse(text, dtype)[1][:1]
    parsed = parse(text, dtype, skip=False)
    assert [(e.line, e.explain(REASONS)) for e in parsed.errors] == refused
    before = b"\n".join(text.split(b"\n")[: refused[0][0] - 1]) if refused else text
    assert repr(rows_of(parsed)) == repr(slow_parse(before, dtype)[0])


# ----------------------------------------------------------------------------- grammar by hand


def test_labels_comments_blanks_and_query_ids() -> None:
    plain = rows_of(parse(b"1 3:0.5 7:2\n-1\n2 0:1\n"))
    odd = b"\r\n# top\n \t1\t 3:0.5\v\f7:2 \r\n\n  # inside\n-1 qid:77\r\n2 qid:1\t0:1#2:x inf"
    assert rows_of(parse(odd)) == plain == [(1, ((3, 0.5), (7, 2))), (-1, ()), (2, ((0, 1),))]
    labels = parse(b"+1\n1e0\n-0\n2.5e-1\n-3.75\n1E+2\n.5\n4.\n123456789.25\n1e300").labels
    assert labels.tolist() == [1, 1, 0, 0.25, -3.75, 100, 0.5, 4, 123456789.25, 1e300]
    assert np.signbit(labels[2])


REFUSED = [
    b"x 1:1", b"1:1", b"+1x", b"nan 1:1", b"-inf", b"-1.8e308", b"1qid:2 1:1",
    *(b"1 %b" % word.encode() for word in BAD_FEATURES if word != "qid:1"),
    b"1 1:1 qid:1", b"1 qid:1 qid:2", b"1 5 6:1", b"1 1: 2:1", b"1 4:1 3:1 4:2", b"1 5:1x",
    b"1 2:" + b"z" * 40, b"1 2:" + b"z" * 41, b"1 2:\xff", b"1 2:1e99x", b"1 1:1\x00 2:1",
    b"1 1234567:1 2:1.5x", b"1 1:3.5e38", b"1 1:-3.5e38",
    b"%bqid:2 1:1" % ABOVE_1.encode(), b"1 1:%bx" % ABOVE_1.encode(),
]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_only_the_invalid_line_is_reported(text: bytes) -> None:
    [error] = check(b"1 1:1\n\n" + text + b"\n#\n1 1:1").errors
    assert error.line == 3
    assert check(text).n_errors == 1


def test_only_first_invalid_lines_are_described() -> None:
    text = b"".join(b"%d %d:1\n" % (k, k) + b"bad 1:1\n" for k in range(50))
    parsed = parse(text, max_errors=3)
    assert (parsed.n_errors, parsed.n_lines) == (50, 100)
    assert [(e.line, e.token) for e in parsed.errors] == [(k, "bad") for k in (2, 4, 6)]
    assert rows_of(parsed) == [(k, ((k, 1.0),)) for k in range(50)]
    assert len(parse(text).errors) == 20


@pytest.mark.parametrize("end", [" ", "\t", "\r", " \r", "#", " # 1:1", "\v", ""])
def test_ids_and_values_of_any_length(end: str) -> None:
    # The parser reads eight bytes at a time: test every length and every following byte.
    values = ["1", "1.0", "01", "1.", ".5", "-1", "+1", "0.25", "-0", "1e0", "11", "1234567",
              "12345678", "123456789", "1234567.7654321", "1.12345678", "12345678.5"]  # fmt: skip
    ids = ["1234567890123456789"[:n] for n in range(1, 20)]
    rows = [f"{value} {i}:{value}{end}" for i, value in itertools.product(ids, values)]
    ones = " ".join(f"{i}:1" for i in ids)
    rows += [f"+1 {ones} 9{ids[-1][:-1]}:{value}{end}" for value in values]
    assert check("\n".join([*rows, *reversed(rows)]).encode()).n_errors == 0


def test_long_rows_are_sorted_with_their_values() -> None:
    for count in (2, 63, 64, 65, 1000):
        ids = random.Random(count).sample(range(10**9), count)
        check(("1 " + " ".join(f"{i}:{i % 1000}.5" for i in ids)).encode())
        check(("1 " + " ".join(f"{i}:1" for i in ids)).encode())


def test_values_have_requested_type_unless_all_are_1() -> None:
    assert parse(b"1 1:1 2:1.0\n-1 3:1e0\n").values is None
    assert parse(b"1 1:1\n-1 3:2 4:1\n").values.tolist() == [1, 2, 1]
    for dtype in ("float32", "float64"):
        values = parse(b"1 1:0.1", dtype).values
        assert values.dtype == dtype
        assert values[0] == np.dtype(dtype).type(0.1)
        largest = np.finfo(dtype).max
        parsed = parse(f"1 1:{largest!s} 2:{float(largest)!r} 3:1e-400".encode(), dtype)
        assert parsed.values.tolist() == [largest, largest, 0]


def test_invalid_row_leaves_no_values() -> None:
    # Numbers that need arbitrary precision are filled in later, but not those of invalid rows.
    text = f"1 1:{ABOVE_1} 2:x\n2 1:2 5:{ABOVE_1}\n3 7:{ABOVE_1} 7:1\n{ABOVE_1} 3:3\n1 5:{ABOVE_1}"
    parsed = check(text.encode(), "float64")
    assert [e.line for e in parsed.errors] == [1, 3]
    assert parsed.labels[1] == 1.0000000000000002


@pytest.mark.parametrize(
    "text", ["1 1: .5\n", "1 1:\t.5\r\n", "1 1: .5 # 2", "1 1:  5e-1 \n", "1 \t1: \v+0.5"]
)
def test_blanks_may_follow_the_colon(text: str) -> None:
    assert rows_of(check(text.encode())) == [(1, ((1, 0.5),))]


LARGE = [  # a label, and whether float64 holds it
    (2**53 - 1, True), (2**53, True), (2**53 + 1, False), (2**53 + 3, False), (2**63, True),
    (2**63 - 1, False), (10**22, True), (10**23, False), (2**64, True), (2**64 + 1, False),
    (2**110, True), (2**110 + 2**57, False),
]  # fmt: skip


@pytest.mark.parametrize("form", ["{}", "-{}", "+00{}", "{}.", "{}.000"])
@pytest.mark.parametrize(("label", "is_exact"), LARGE)
def test_labels_that_float64_rounds_are_refused(form: str, label: int, is_exact: bool) -> None:
    text = f"1 1:1\n{form.format(label)} 2:1\n".encode()
    parsed = check(text)
    assert [e.line for e in parsed.errors] == ([] if is_exact else [2])
    assert parse(text, targets=True).labels[1] == float(form.format(label))
    assert len(parse(text, labels=False).labels) == 2
    real = f"{label}e0 1:1\n{label}.5 1:1\n".encode()  # not whole numbers
    assert parse(real).labels.tolist() == [float(label), float(f"{label}.5")]


def test_first_whole_number_that_float32_changes_is_noted() -> None:
    text = b"1 3:16777216 4:0.1\n1 5:1e10 6:20200100\n1 9:1 7:-20200101\n1 8:1577836800123\n"
    parsed = parse(text)
    assert parsed.notes.changed == 3
    assert "feature 7 has the value -20200101" in parsed.changed
    assert "-20200100" in parsed.changed
    assert parse(text, dtype="float64").changed == ""
    assert "9007199254740993" not in parse(b"1 1:9007199254740993").changed


# ------------------------------------------------------------------------------------- numbers


def check_numbers(words: list[str]) -> None:
    """Compare words as labels and as values of both types with float, bit for bit."""
    floats = [float(w) for w in words]
    for dtype in ("float32", "float64"):
        text = "".join(f"{w} 8:{w}\n" for w in words).encode()
        parsed = parse(text, dtype, max_errors=len(words), targets=True)
        with np.errstate(over="ignore"):
            kept = np.isfinite(np.array(floats).astype(dtype)).tolist()
        expected = np.array([x for x, keep in zip(floats, kept, strict=True) if keep])
        assert parsed.labels.tobytes() == expected.tobytes()
        values = np.ones(len(expected), dtype) if parsed.values is None else parsed.values
        assert values.tobytes() == expected.astype(dtype).tobytes()
        assert [e.line for e in parsed.errors] == [k for k, keep in enumerate(kept, 1) if not keep]


DIGITS = st.text("0123456789", min_size=1, max_size=30)
WORDS = st.builds(
    lambda sign, whole, fraction, e: sign + whole + fraction + e,
    st.sampled_from(["", "-", "+"]),
    DIGITS,
    st.one_of(st.just(""), st.just("."), DIGITS.map(lambda d: "." + d)),
    st.one_of(st.just(""), st.integers(-400, 400).map(lambda e: f"e{e}")),
)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


DECIMALS = st.from_regex(r"-?[0-9]{0,7}\.[0-9]{0,25}", fullmatch=True).filter(
    lambda w: w[-1:] > "."
)


@given(
    st.lists(st.one_of(WORDS, DECIMALS, FLOATS.map(repr), FLOATS.map("{:.16e}".format)), min_size=1)
)
@example(["0.8" + "9" * k for k in range(5, 26)] + ["9" * 7 + "." + "9" * k for k in range(1, 26)])
@example(["0." + "0" * k + d for k in range(26) for d in ("", "1", "9007199254740993") if k or d])
@example(["0", "-0", "0.0", "00", "0e400", "-0e-400", "0." + "0" * 400 + "1"])
@example(["5e-324", "2.4703282292062327e-324", "2.4703282292062328e-324"])
@example(["2.2250738585072011e-308", "2.2250738585072012e-308", "4.9406564584124653e-324"])
@example(["9007199254740993", "9007199254740992.5", "9007199254740993.0000000000000000000001"])
@example(["1" + "0" * 308, "0." + "0" * 307 + "1", "1e-343", "1e308", "123456789012345678901e288"])
@example(["9999999999999999999", "18446744073709551615", "18446744073709551616", "1e22", "1e23"])
@example(["7.2057594037927933e16", "8.5899345919999999e9", "6631236846766476e-316"])
@example(["1" * 800, "9" * 308, "1." + "1" * 800, "0.1e-6", "1e100000000000000000000", "1e-99999"])
def test_numbers_are_rounded_as_float_does(words: list[str]) -> None:
    check_numbers(words)


@pytest.mark.parametrize(
    "middle", [2**1024 - 2**970, 2**128 - 2**103 - 2**74], ids=["float64", "float32"]
)
def test_last_digit_decides_overflow(middle: int) -> None:
    # The smallest numbers that round to infinity as float64, and as float32 via float64.
    digits = len(str(middle))
    whole = [str(middle + k) for k in (-1, 0, 1)]
    words = [f"{sign}{zeros}{w}{end}" for w in whole for sign in ("", "-") for zeros in ("", "00")
             for end in ("", ".", ".0", ".00001", "e0", "0e-1", "00000e-5")]  # fmt: skip
    words += [f"{w[:k]}.{w[k:]}e{digits - k}" for w in whole for k in range(digits)]
    words += [f"{str(middle)[:k]}e{digits - k}" for k in range(15, digits)]
    words += [f"{int(str(middle)[:k]) + 1}e{digits - k}" for k in range(15, digits)]
    check_numbers(words)


def test_power_of_five_products_ending_in_ones() -> None:
    words = []
    for q in range(-342, 309):
        power = 5**q << 128 if q >= 0 else 2 ** (2 * (5**-q).bit_length() + 128) // 5**-q + 1
        leading = power >> (power.bit_length() - 64)
        if leading % 2:
            w = -pow(leading, -1, 2**64) % 2**64  # times the leading word: all ones below 2^64
            words += [f"{w}e{q}"] * (2**63 <= w < 10**19)
    assert len(words) > 10
    check_numbers(words)


def exact_decimal(x: Fraction) -> str:
    """Return all digits of a fraction whose denominator is a power of two."""
    with localcontext() as context:
        context.prec = 2000
        return f"{Decimal(x.numerator) / Decimal(x.denominator):e}"


def test_numbers_half_way_between_two_floats() -> None:
    # More of them than the parser initially reserves memory for.
    r = random.Random(2)
    words = []
    for k in range(1000):
        low = r.random() * 10.0 ** r.randint(-320, 307) if k % 2 else r.random()
        middle = (Fraction(low) + Fraction(float(np.nextafter(low, np.inf)))) / 2
        digits, exponent = exact_decimal(middle).split("e")
        short, above = digits[: r.randint(18, 23)], digits + "0" * r.randint(0, 9) + "1"
        words += [f"{d}e{exponent}" for d in (digits, above, short, f"-{short}9")]
    check_numbers(words)


@pytest.mark.parametrize(
    ("line", "facts"),
    [
        (b"1 1: ", "'1:' without a value"), (b"1 1: #1", "'1:' without a value"),
        (b"1:1 1:", "'1:1'"), (b"1 qid:x 1:1", "qid:x.*once"),
        (pickle.dumps({"a": 1}), "binary"), ("1 1:1".encode("utf-16"), "binary"),
        (b"PAR1\x15\x04", "binary"), ("ü 1:1".encode(), "label is expected$"),
    ],
)  # fmt: skip
def test_error_names_the_problem(line: bytes, facts: str) -> None:
    [error, *_] = parse(line).errors
    assert re.search(facts, error.explain(REASONS))


@pytest.mark.parametrize("n", [1, 40, 1000])
def test_room_of_rows_that_are_blank_lines(n: int) -> None:
    room = Room(n + 1, "float32")
    for text in (b"\n" * n, b"1 1:1\n" + b"\n" * n):
        buffer = np.zeros(len(text) + SPARE, np.uint8)
        buffer[: len(text)] = np.frombuffer(text, np.uint8)
        parsed = parse_text(buffer, len(text), labels=False, room=room)
        assert len(parsed.labels) == text.count(b"\n")
        assert parsed.indptr[-1] == len(parsed.ids) == (text[:1] == b"1")
