"""sbm/store/records.py: JSON with a checksum, read without trust."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbm.store.records import checksum, decode_record, encode_record

CONTENT = {"rows": 3, "gap": 1e-3, "name": "x", "list": [1, {"a": None}], "limit": float("inf")}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)  # fmt: skip


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_what_is_written_is_read(content):
    assert decode_record("run", encode_record("run", content)) == content


def test_the_layout_does_not_matter():
    data = json.dumps({"run": CONTENT, "crc32": checksum(CONTENT)}, separators=(",", ":"))
    assert decode_record("run", data.encode()) == CONTENT


def test_every_flipped_bit_and_every_truncation_is_noticed():
    data = encode_record("run", CONTENT)
    for place in range(len(data)):
        with pytest.raises(ValueError, match=r".*"):
            decode_record("run", data[:place])
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            with pytest.raises(ValueError, match=r".*"):
                decode_record("run", bytes(flipped))


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "Expecting value"),
        (b"[]", "list indices must be"),
        (b'{"crc32": 1}', "run"),
        (b'{"crc32": 1, "run": {"a": 1, "a": 2}}', "a key stands in it twice"),
        (b'{"crc32": 1, "run": {"a": 1}}', "its checksum is another one"),
        (b'{"crc32": 223132457, "run": []}', "it is no object"),
        (b"[" * 100_000, "recursion"),
        (b'{"crc32": ' + b"1" * 5000 + b', "run": {}}', "digits"),
        (b'{"\xff', "codec can't decode"),
    ],
)  # fmt: skip
def test_anything_else_is_refused(data, what):
    with pytest.raises(ValueError, match=what):
        decode_record("run", data)
