"""scripts/torture_text.py: the parser as the slow one, wherever text is cut; what errs is found."""

import random
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import SCRIPTS, load_script
from processes import finished
from slow_parser import read_line

from sbm.store import text as text_module
from sbm.store.libsvm import parse_text
from sbm.store.parsing import ParsedText

torture_text = load_script("torture_text")
from scripts.torture_cuts import WAYS, Cutter  # noqa: E402  the script says where scripts are
from scripts.torture_lines import Lines  # noqa: E402
from scripts.torture_tally import Tally  # noqa: E402


def silent(text: str) -> None:
    pass


def test_the_parser_reads_random_lines_as_the_slow_one_does(tmp_path: Path) -> None:
    told: list[str] = []
    tally = torture_text.run(30_500, 5, tmp_path, told.append)
    assert tally.failures == []
    assert tally.tried == 30_500
    assert len(told) == 1
    figures = tally.figures
    assert set(figures["lines"]) == {"rows", "empty", *torture_text.SENTENCES}
    assert sum(figures["lines"].values()) == 30_500
    assert figures["lines"]["rows"] > 10_000
    assert set(figures["parses without skip"]) == {"refused", "whole"}
    assert set(figures["cut at every byte"]) == {"texts", *WAYS}
    assert figures["distinct outcomes"] > 1000


NASTY = [
    b"1 1:1\r\n-1 2:0.5 3:7\n# x\n\n+1 5:1",
    b"1 1:1\n2 2:x\n\n3 qid:4 3:3\n4 :1\n5 5:5",
    b"+1 18446744073709551617:1\n\x00\n1 7:1 3:1#\n1 1:1.0000000000000001110223024625156540424",
    b"\n\n\n1",
    b"1 1:nan",
    b"",
]  # fmt: skip


@pytest.mark.parametrize("skip", [False, True])
def test_no_cut_changes_what_is_read(tmp_path: Path, skip: bool) -> None:
    cutter, ways = Cutter(tmp_path), list[str]()
    for text in NASTY:
        assert cutter.check(text, skip, ways.append) == []
        assert ways.count("pieces") >= len(text)
    assert set(ways) == set(WAYS)


def test_one_batch_is_tried_again_as_it_was(tmp_path: Path) -> None:
    whole = torture_text.run(2000, 1, tmp_path, silent)
    again = [torture_text.replay(1, case, tmp_path) for case in (999, 1000)]
    assert [tally.tried for tally in again] == [torture_text.BATCH] * 2
    counts = [tally.figures["lines"] for tally in again]
    kinds = whole.figures["lines"]
    assert kinds == {kind: sum(c.get(kind, 0) for c in counts) for kind in kinds}


def test_the_same_seed_gives_the_same_lines_and_another_one_others() -> None:
    def drawn(seed: str) -> list[bytes]:
        lines, all_of_them = Lines(seed), []
        for _ in range(3):
            batch = lines.draw(50)
            all_of_them += batch
            for line in batch:
                lines.learn(line, read_line(line))
        return all_of_them

    assert drawn("a") == drawn("a") != drawn("b")
    assert not any(b"\n" in line for line in drawn("a"))


# ---------------------------------------------------------------------------- it notices mistakes


def wrong_rounding(parsed: ParsedText) -> ParsedText:
    labels = parsed.labels.copy()
    labels.view(np.int64)[0] ^= 1
    return replace(parsed, labels=labels)


def wrong_zero(parsed: ParsedText) -> ParsedText:
    labels = parsed.labels.copy()
    labels[labels == 0] *= -1
    return replace(parsed, labels=labels)


def wrong_id(parsed: ParsedText) -> ParsedText:
    return replace(parsed, ids=parsed.ids ^ 1)


def wrong_type(parsed: ParsedText) -> ParsedText:
    values = np.ones(len(parsed.ids)) if parsed.values is None else parsed.values
    return replace(parsed, values=values.astype("float16"))


def wrong_row(parsed: ParsedText) -> ParsedText:
    indptr = parsed.indptr.copy()
    indptr[1] += 1
    return replace(parsed, indptr=indptr)


def wrong_line(parsed: ParsedText) -> ParsedText:
    return replace(parsed, errors=[replace(e, line=e.line + 1) for e in parsed.errors])


def wrong_sentence(parsed: ParsedText) -> ParsedText:
    return replace(parsed, errors=[replace(e, code=e.code % 8 + 1) for e in parsed.errors])


def wrong_count(parsed: ParsedText) -> ParsedText:
    return replace(parsed, n_lines=parsed.n_lines + 1)


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (wrong_rounding, "labels should be"), (wrong_zero, "labels should be -0.0 and are 0.0"),
        (wrong_id, "ids should be"), (wrong_type, "values should be"),
        (wrong_row, "lengths should be"), (wrong_line, "refused lines should be"),
        (wrong_sentence, "refused lines should be"), (wrong_count, "lines should be"),
    ],
)  # fmt: skip
def test_a_parser_that_errs_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Any, what: str
) -> None:
    def parse(*arguments: Any, **options: Any) -> ParsedText:
        parsed = parse_text(*arguments, **options)
        has_rows = len(parsed.labels) > 0 and len(parsed.ids) > 0
        return spoil(parsed) if has_rows or parsed.errors else parsed

    monkeypatch.setattr(torture_text, "parse_text", parse)
    lines = [b"1 1:2", b"-0 3:1", b"", b"2 2:x"]
    if spoil not in (wrong_line, wrong_sentence):
        lines.pop()
    for seed in range(5):
        tally, found = Tally("fuzz"), [read_line(line) for line in lines]
        trial = torture_text.Trial(tmp_path)
        failures = trial.check(lines, found, "float32", random.Random(seed), tally)
        assert any(what in text for _, text in failures), failures


def test_a_parser_that_errs_without_skip_or_at_a_cut_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(*arguments: Any, **options: Any) -> ParsedText:
        parsed = parse_text(*arguments, **options)
        return parsed if options["skip"] else replace(parsed, labels=parsed.labels + 1)

    monkeypatch.setattr(torture_text, "parse_text", parse)
    trial, lines = torture_text.Trial(tmp_path), [b"1", b"2 x", b"3"]
    found = [read_line(line) for line in lines]
    failures = []
    for seed in range(20):
        failures += trial.check(lines, found, "float32", random.Random(seed), Tally("fuzz"))
    assert {failure[0] for failure in failures} == {1}
    assert "b'2 x' as float32 without skip: labels should be 1.0 and are 2.0" in failures[0][1]
    monkeypatch.setitem(text_module.convert_sources.__kwdefaults__, "parse", parse)
    found_ways = Cutter(tmp_path).check(b"1\n2\n", False, silent)
    assert len(found_ways) == len(WAYS)
    assert "b'1\\n2\\n' in pieces of 1 bytes, skip=False: expected" in found_ways[0]


def test_the_death_of_a_process_is_a_failure_that_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "dies.py"
    script.write_text(
        "import os, signal, sys\n"
        "first = int(sys.argv[sys.argv.index('--first') + 1])\n"
        f"open({str(tmp_path / 'fuzz.at')!r}, 'w').write(f'{{first + 7000}} ')\n"
        "os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    monkeypatch.setattr(torture_text, "__file__", str(script))
    tally = torture_text.run(250_000, 3, tmp_path, silent)
    assert tally.failures == [
        f"seed 3, case {case} or one of the 1000 from there on: the process ended with code -11: "
        for case in (7000, 207000)
    ]
    assert tally.tried == 14000


# ------------------------------------------------------------------------------ the guarded pages

TOUCH = """
import ctypes, sys
sys.path.insert(0, sys.argv[1])
from scripts.torture_guard import GuardedBytes
guard = GuardedBytes(5000)
end, begin = guard.at_end(100), guard.at_begin(100)
end[:] = begin[:] = 7
first = int(sys.argv[2])
address = (end if first >= 0 else begin).ctypes.data + first
print(ctypes.string_at(address, 1) == b"\\x07")
"""


@pytest.mark.parametrize(
    ("place", "is_allowed"), [(0, True), (99, True), (100, False), (-1, False)]
)
def test_to_touch_what_is_beside_the_guarded_bytes_ends_the_process(
    place: int, is_allowed: bool
) -> None:
    done = finished([sys.executable, "-c", TOUCH, str(SCRIPTS.parent), str(place)])
    expected = (0, "True\n") if is_allowed else (-signal.SIGSEGV, "")
    assert (done.returncode, done.stdout) == expected, done.stderr


PARSE = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from sbm.store.libsvm import parse_text
from sbm.store.parsing import SPARE
from scripts.torture_guard import GuardedBytes
text = b"1 1:1 2:0.5"
buffer = GuardedBytes(5000).at_end(len(text) + SPARE - int(sys.argv[2]))
buffer[: len(text)] = np.frombuffer(text, np.uint8)
print(parse_text(buffer, len(text)).ids.tolist())
"""


@pytest.mark.parametrize(("missing", "is_enough"), [(0, True), (60, False)])
def test_a_parser_that_reads_past_its_buffer_would_be_noticed(
    missing: int, is_enough: bool
) -> None:
    done = finished([sys.executable, "-c", PARSE, str(SCRIPTS.parent), str(missing)])
    expected = (0, "[1, 2]\n") if is_enough else (-signal.SIGSEGV, "")
    assert (done.returncode, done.stdout) == expected, done.stderr
