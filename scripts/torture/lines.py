"""Lines of LIBSVM text, well and badly formed, drawn at random and from what led somewhere new.

Half of the lines are composed of tokens, most of them at an edge of the grammar: numbers near every
limit of rounding and range, ids of any length, all that is no number. The other half are lines from
before, with bytes and tokens changed. A line whose outcome was not seen before (what was said of
it, and the shape of the token it was said of) is kept, to be changed further.
"""

import math
import random
import re
import struct

from tests.slow_parser import Row

_KEPT = 4000  # lines to be changed further
_NUMBERS = 3000  # numbers to draw from; a part of them is new in each batch
_FRESH = 100

_PLAIN = b"1 1 1 1 +1 -1 0 -0 2 0.5 1.0 01 1. .5 3.25 1e0 12 1234567 12345678 123456789".split()
_EDGES = b"""
    0.0 -0.0 +.0 0e5 0e-400 -0e999999999 00000000000000000000 0.00000000000000000000000001
    5e-324 4.9e-324 2.4703282292062327e-324 2.4703282292062328e-324 -2.5e-324 1e-400 1e-45 7e-46
    2.2250738585072011e-308 2.2250738585072014e-308 1.1754943508222875e-38 1.401298464324817e-45
    1.7976931348623157e308 1.7976931348623158e308 1.7976931348623159e308 1.8e308 -1e309 1e400
    3.4028234663852886e38 3.4028235e38 3.4028235677973364e38 3.4028235677973366e38 3.5e38 -3.5e38
    3.4028235677973367e38 9007199254740993 9007199254740992.5 9007199254740993.000000000000000001
    1e22 1e23 9999999999999999999 18446744073709551615 18446744073709551616 1e308 1E+5 1e-5 1e+0
    1e1000000000000000000000 1e-1000000000000000000000 9724429689633648307e292 1e0000000000000000001
    1234567.7654321 12345678.5 1.12345678 1.1234567 .12345678 .1234567 1234567. 12345678. 1e00000005
    1.00000000000000011102230246251565404236316680908203125
    1.00000000000000011102230246251565404236316680908203126
    1.00000000000000011102230246251565404236316680908203124
""".split()
_LIMITS = (2**1024 - 2**970, 2**128 - 2**103 - 2**74)  # the least numbers that are too large
_NO_NUMBERS = b"""
    inf -inf +Inf Infinity INF nan NaN -nan nanx infx in na i n 1e 1e+ 1e- 1.e .e5 e5 E . - + -. +.
    --1 +-1 1.2.3 1..2 0x10 0X1p3 1_0 1,5 1,2,3 1d5 1f 1e5.5 1e5e5 x 1x 1- 1+1 1:2 ?? 1e400x 1/2 1%
    $1 'a' " \xef\xbb\xbf1 \xc3\xa9 \xef\xbc\x91 \xff 999999999999999999999999q
""".split()
_NO_FEATURES = b"""
    5 : :1 1: :: 1:: 1:1:1 -1:1 +1:1 a:1 1a:1 1.0:1 1e3:1 qid:1 qid: qid:x qid:1x qid:-1 Qid:1 qi
    qid q sid:1 qid:1:1 9223372036854775808:1 18446744073709551616:1 18446744073709551617:1 0x1:1
    1_0:1 00000000000000000009223372036854775808:1 99999999999999999999999999:1 1;1
    9223372036854775808
""".split()
_IDS = [
    0,
    1,
    2,
    9,
    10,
    2**24 - 1,
    2**24,
    2**31,
    2**32,
    9999999,
    10000000,
    99999999,
    2**63 - 2,
    2**63 - 1,
]
_BLANKS = [b" "] * 12 + [b"  ", b"\t", b"\r", b"\v", b"\f", b" \t ", b"   "]
_TAILS = [b""] * 10 + [
    b" ",
    b"\r",
    b"\t",
    b"#",
    b" # 1:1",
    b"#1:nan",
    b"\v",
    b" \r",
    b"\x00",
    b"\x1a",
]
_WHOLE = [
    b"", b" ", b"\t\r", b"#", b"# 1 1:1", b"  #x", b"\x00", b"\r", b"1", b"+1 ", b"1\t1:1", b"1#",
    b"1 qid:7 1:1", b"1 1:1 qid:7", b"1 qid:7 qid:8 1:1", b"1qid:7 1:1", b"1 qid:7", b"1 qid:7#",
    b"1 5:1 5:2", b"1 9:1 5:1 7:1 5:3", b"1 3:1 2:1 1:1", b"\xef\xbb\xbf1 1:1", b"1,2 1:1",
    b"1 1:1\x002:1", b"\xff\xfe1\x00 \x001\x00:\x001\x00", b"1 " + b" " * 200 + b"1:1",
    b"1 " + b"9" * 300 + b":1", b"1 1:" + b"0" * 300 + b"1", b"1 1:1" + b"0" * 400,
    b"-" * 100, b"1 " + b":" * 100, b"1" + b" 1:1 2:2" * 30, b"#" * 100, b"1 2:" + b"z" * 41,
    b"1" + b"".join(b" %d:1" % k for k in range(1, 120)),
    b"1" + b"".join(b" %d:0.5" % k for k in range(99, 0, -1)),
]  # fmt: skip
_BYTES = b"0123456789 :.+-eE#\t\r\v\f\x00\x1f\x7f\x80\xffqidnaf_,x"  # what a byte is changed to

_CLASSES = bytearray(b"?" * 256)
for _set, _name in (
    (b"0123456789", b"0"), (b"+-", b"-"), (b" \t\r\v\f", b" "), (b"eE", b"e"), (b".", b"."),
    (b":", b":"), (b"#", b"#"), (bytes(range(128, 256)), b"\x80"), (b"\x00\x1a\x1f", b"\x00"),
    (b"abcdfghijklmnopqrstuvwxyzABCDFGHIJKLMNOPQRSTUVWXYZ", b"a"),
):  # fmt: skip
    for _byte in _set:
        _CLASSES[_byte] = _name[0]
_RUNS = (  # what runs of digits and of letters are shortened to
    (re.compile(b"0{19,}"), b"9"), (re.compile(b"0{8,}"), b"8"), (re.compile(b"00+"), b"0"),
    (re.compile(b"a[ae]+"), b"a"),
)  # fmt: skip


class Lines:
    """Draws lines; the same ones from the same seed, if it is told the same outcomes.

    Parameters
    ----------
    seed : str

    Attributes
    ----------
    outcomes : set of (str, bytes)
        What was said of lines, and the shape of the token that it was said of.
    """

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        self.outcomes: set[tuple[str, bytes]] = set()
        self._kept = list(_WHOLE)
        ids = {*_IDS, *(self._digits(k % 19 + 1) % 2**63 for k in range(200))}
        self._ids = [b"%d" % i for i in sorted(ids)]
        self._ids.insert(self._ids.index(b"9") + 1, b"0" * 30 + b"9")
        self._numbers = [*_EDGES, *map(self._number, range(_NUMBERS))]

    def draw(self, n: int) -> list[bytes]:
        """Draw n lines, without their ends."""
        chance = self._random.random
        for k in range(_FRESH):
            self._numbers[int(chance() * len(self._numbers))] = self._number(k)
        return [self._compose() if chance() < 0.5 else self._change() for _ in range(n)]

    def learn(self, line: bytes, found: Row | str | None) -> None:
        """Keep a line if what became of it is new."""
        outcome = _outcome(line, found)
        if outcome not in self.outcomes:
            self.outcomes.add(outcome)
            if len(self._kept) < _KEPT:
                self._kept.append(line)
            else:
                self._kept[int(self._random.random() * _KEPT)] = line

    def _pick(self, choices: list[bytes]) -> bytes:
        return choices[int(self._random.random() * len(choices))]

    # ------------------------------------------------------------------------------- composed

    def _compose(self) -> bytes:
        chance, pick = self._random.random, self._pick
        parts = [pick(_PLAIN if chance() < 0.6 else self._numbers)]
        if chance() < 0.06:
            parts.append(b"qid:%d" % int(chance() * 10**6))
        many = 60 if chance() < 0.01 else 6
        places = [int(chance() * len(self._ids)) for _ in range(int(chance() * many))]
        if chance() < 0.7:
            places.sort()
        are_ones = chance() < 0.3
        for place in places:
            value = b"1" if are_ones else pick(_PLAIN if chance() < 0.4 else self._numbers)
            parts.append(self._ids[place] + b":" + value)
        if chance() < 0.2:
            self._spoil(parts)
        blank = pick(_BLANKS)
        line = blank.join(parts) + pick(_TAILS)
        return blank + line if chance() < 0.05 else line

    def _spoil(self, parts: list[bytes]) -> None:
        """Put something into a line that is not allowed there."""
        chance, pick = self._random.random, self._pick
        place, kind = int(chance() * len(parts)), chance()
        if kind < 0.3:
            parts.insert(place + 1, pick(_NO_FEATURES))
        elif kind < 0.6:
            parts.insert(place + 1, pick(self._ids) + b":" + pick(_NO_NUMBERS))
        elif kind < 0.8:
            parts[0] = pick(_NO_NUMBERS)
        else:
            parts[place] += pick(_NO_NUMBERS)  # a number that goes on

    # -------------------------------------------------------------------------------- changed

    def _change(self) -> bytes:
        chance = self._random.random
        line = self._pick(self._kept)
        for _ in range(1 + int(3 * chance() ** 2)):
            a = int(chance() * (len(line) + 1))
            b = a + int(chance() * 6)
            kind = int(chance() * 8)
            if kind == 0:
                line = line[:a] + line[b:]
            elif kind == 1:
                line = line[:b] + line[a:]
            elif kind == 2:
                line = line[:a] + self._pick(self._numbers) + line[a:]
            elif kind == 3:
                line = line[:a] + self._pick(_NO_FEATURES if b & 1 else _NO_NUMBERS) + line[b:]
            elif kind == 4:
                other = self._pick(self._kept)
                line = line[:a] + other[int(chance() * len(other)) :]
            elif kind == 5 and a < len(line):
                line = line[:a] + bytes([line[a] ^ 1 << int(chance() * 8)]) + line[a + 1 :]
            else:
                byte = _BYTES[int(chance() * len(_BYTES))]
                line = line[:a] + bytes([byte]) + line[a + (kind == 6) :]
        return line[:200].replace(b"\n", b"")

    # -------------------------------------------------------------------------------- numbers

    def _number(self, kind: int) -> bytes:
        """A number of one of several kinds."""
        r = self._random
        kind %= 12
        if kind == 0:
            return repr(self._any_float()).encode()
        if kind == 1:
            return b"%.*e" % (r.randrange(25), self._any_float())
        if kind == 2:
            return b"%s.%se%d" % (
                b"%d" % self._digits(r.randint(1, 25)), b"%d" % self._digits(r.randint(1, 9)),
                r.randint(-360, 310) if r.random() < 0.5 else r.randint(-60, 10),
            )  # fmt: skip
        if kind == 3:
            return b"%.*f" % (r.randrange(10), r.uniform(-1, 1) * 10.0 ** r.randrange(9))
        if kind == 4:
            return self._pointed(
                str(r.choice(_LIMITS) + r.choice((0, 0, 1, -1, 10**20, -(10**20))))
            )
        if kind == 5:
            return self._middle()
        if kind < 9:
            return b"%.6g" % r.uniform(-9, 9)
        return b"%de%d" % (r.randrange(1, 2 ** r.randint(1, 64)), r.randint(-30, 30))

    def _digits(self, n: int) -> int:
        return self._random.randrange(10 ** (n - 1), 10**n)

    def _any_float(self) -> float:
        if self._random.random() < 0.5:
            number: float = struct.unpack("f", self._random.randbytes(4))[0]
        else:
            number = struct.unpack("d", self._random.randbytes(8))[0]
        return number if math.isfinite(number) else 0.1

    def _middle(self) -> bytes:
        """Half way between two floats of a moderate size, or a little beside it."""
        r = self._random
        bits, exponent = (54, r.randint(-140, 70)) if r.random() < 0.7 else (25, r.randint(-90, 99))
        odd = r.randrange(2 ** (bits - 1), 2**bits) | 1  # the last bit is the half
        if exponent >= 0:
            digits, shift = str(odd << exponent), 0
        else:
            digits, shift = str(odd * 5**-exponent), exponent
        kind = r.randrange(4)
        if kind == 1:
            digits, shift = digits + "0" * r.randrange(9) + "1", shift - 1
            shift -= len(digits) - len(digits.rstrip("1").rstrip("0")) - 1
        elif kind == 2:
            digits = str(int(digits) - 1)
        elif kind == 3:
            cut = r.randint(15, 25)
            digits, shift = digits[:cut], shift + max(0, len(digits) - cut)
        return self._pointed(digits, shift)

    def _pointed(self, digits: str, shift: int = 0) -> bytes:
        """These digits times a power of ten, with a point anywhere or nowhere."""
        r = self._random
        sign = r.choice(("", "", "-", "+"))
        if r.random() < 0.3:
            return f"{sign}{digits}e{shift}".encode() if shift else f"{sign}{digits}".encode()
        cut = r.randint(0, len(digits))
        zeros = "0" * r.randrange(3)
        return f"{sign}{zeros}{digits[:cut]}.{digits[cut:]}e{shift + len(digits) - cut}".encode()


def _outcome(line: bytes, found: Row | str | None) -> tuple[str, bytes]:
    """What was said of a line, and the shape of the token it was said of, or of the last one."""
    if found is None:
        return "empty", b""
    if isinstance(found, str):
        return found[-14:], _shape(found[7:40].encode("latin-1", "replace"))
    return f"row {min(len(found[1]), 2)}", _shape(line[-33:].rsplit(b" ", 1)[-1])


def _shape(token: bytes) -> bytes:
    """The kinds of bytes of a token: where 8 or 19 digits stand, letters, signs, points."""
    token = token.translate(_CLASSES)
    for run, short in _RUNS:
        token = run.sub(short, token)
    return token[:4]
