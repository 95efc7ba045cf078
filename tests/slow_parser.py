"""A slow reference parser of LIBSVM text, from the grammar in the README.

A line is ``label [qid:N] [id:value]... [# comment]``. Tokens are separated by blanks, which may
also follow the colon. Any other control character also ends a token, but is not allowed anywhere,
so it is refused itself.
"""

import itertools
import re
import struct

from inside import ROUNDED_LABEL

__all__ = ["Row", "read_line", "slow_parse"]

Row = tuple[float, tuple[tuple[int, float], ...]]  # label, (id, value) by increasing id

_BLANKS = re.compile(rb"[ \t\r\v\f]+")
_CONTROL = re.compile(rb"[\x00-\x1f]")
_NUMBER = re.compile(rb"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_FINITE = re.compile(rb"[+-]?(inf|nan)", re.IGNORECASE)
_QUERY = re.compile(rb"qid:[0-9]+")
_WHOLE = re.compile(rb"([+-]?[0-9]+)(\.0*)?")
_DIGITS = re.compile(rb"[0-9]*")
_LARGEST_ID = 2**63 - 1


class _RefusedError(Exception):
    pass


def slow_parse(text: bytes, dtype: str = "float32") -> tuple[list[Row], list[tuple[int, str]]]:
    """Return the rows of LIBSVM text, and (line, problem) for each malformed line."""
    rows, refused = [], []
    for number, line in enumerate(text.split(b"\n"), 1):
        found = read_line(line, dtype)
        if isinstance(found, str):
            refused.append((number, found))
        elif found is not None:
            rows.append(found)
    return rows, refused


def read_line(line: bytes, dtype: str = "float32") -> Row | str | None:
    """Return the row of a line, the problem with it, or None if the line is empty."""
    words = _words(line)
    try:
        return _row(words, dtype) if words else None
    except _RefusedError as error:
        is_binary = re.search(r"(?<!\\)\\x[01]", str(error))
        return f"{error}{'; this looks like a binary file, not text' * bool(is_binary)}"


def _words(line: bytes) -> list[tuple[bytes, bytes]]:
    """Return the tokens of a line, each with the text that messages quote."""
    words = []
    for token in _BLANKS.split(line.split(b"#", 1)[0]):
        control = _CONTROL.search(token)
        end = control.start() if control else len(token)
        if end:
            words.append((token[:end], token))
        if control:
            words.append((b"", token[end:]))
    return words


def _row(words: list[tuple[bytes, bytes]], dtype: str) -> Row:
    label = _number(*words[0], "float64", "a numeric label")
    digits = _WHOLE.fullmatch(words[0][0])
    if digits and int(digits[1]) != int(label):
        raise _RefusedError(ROUNDED_LABEL.format(token=_show(words[0][1])))
    features = _joined(words[1:])
    if features and _QUERY.fullmatch(features[0][0]):
        features = features[1:]
    pairs = sorted([_feature(word, shown, dtype) for word, shown in features])
    for (before, _), (identity, _) in itertools.pairwise(pairs):
        if before == identity:
            raise _RefusedError(
                f"found feature id '{identity}' twice; each id is allowed once per row"
            )
    return label, tuple(pairs)


def _joined(words: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the tokens, with those that end in a colon joined to the next one."""
    joined: list[tuple[bytes, bytes]] = []
    for word, shown in words:
        if joined and re.fullmatch(rb"[0-9]+:", joined[-1][1]):
            before = joined.pop()
            word, shown = before[0] + word, before[1] + shown
        joined.append((word, shown))
    return joined


def _feature(word: bytes, shown: bytes, dtype: str) -> tuple[int, float]:
    digits = _DIGITS.match(word)[0]  # type: ignore[index]
    significant = digits.lstrip(b"0")
    if len(significant) > 19 or int(significant or b"0") > _LARGEST_ID:
        raise _RefusedError(
            f"found feature id {_show(shown)}; the largest allowed id is {_LARGEST_ID}"
        )
    if digits and (word == digits or shown == digits + b":"):
        raise _RefusedError(
            f"found {_show(shown)} without a value; a feature is written as id:value"
        )
    behind = len(digits) + 1
    if shown.startswith(b"qid:"):
        raise _RefusedError(
            f"found {_show(shown)}; qid is allowed once, right after the label, with an integer"
        )
    if not digits or word[len(digits) : behind] != b":":
        raise _RefusedError(f"found {_show(shown)} where a feature written as id:value is expected")
    value = _number(word[behind:], shown[behind:], dtype, "a decimal number")
    return int(significant or b"0"), value


def _number(word: bytes, shown: bytes, dtype: str, expected: str) -> float:
    """Return the value of a number, rounded to float64 and then to the type."""
    if not _NUMBER.fullmatch(word):
        if _NOT_FINITE.match(word):
            raise _RefusedError(f"found {_show(shown)}, but only finite numbers are allowed")
        raise _RefusedError(f"found {_show(shown)} where {expected} is expected")
    kind = "d" if dtype == "float64" else "f"
    try:
        number: float = struct.unpack(kind, struct.pack(kind, float(word)))[0]
    except OverflowError:
        number = float("inf")
    if abs(number) == float("inf"):
        raise _RefusedError(
            f"found {_show(shown)}, too large: --dtype float32 holds up to 3.4e38, and "
            "--dtype float64 up to 1.79e308"
        )
    return number


def _show(token: bytes) -> str:
    """Return a token as messages quote it, at most 40 characters."""
    text = token.decode("utf-8", "replace")
    return repr(text if len(text) <= 40 else text[:37] + "...")
