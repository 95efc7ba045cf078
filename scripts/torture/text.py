"""Fuzz the text parser: every line as a slow parser reads it, wherever the text is cut.

A case is a line (`scripts/torture/lines.py` draws them). A thousand at a time are parsed, in a
buffer between two pages that nobody may touch, so that to read past its end kills the process, and
compared with what `tests/slow_parser.py` says of each: labels, ids and values bit by bit, of
refused ones the number and the sentence. Some of them also without `skip`, so that each refused
line ends a parse, and a few short texts through all of `sbm.inputs.text`, cut at every byte
(`scripts/torture/cuts.py`). Children do the work, so that the death of one is a failure like
others::

    python -m scripts.torture.text --cases 1000000 --seed 0    # try so many
    python -m scripts.torture.text --seed 0 --replay 123456    # the thousand that this one is in
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from sbm.compiled import COMPILE_HERE
from sbm.inputs.libsvm import REASONS, parse_text
from sbm.inputs.parsing import SPARE, ParsedText, Room
from scripts.torture.cuts import Cutter
from scripts.torture.guard import GuardedBytes, checked
from scripts.torture.lines import Lines
from scripts.torture.tally import Tally
from tests.slow_parser import Row, read_line

BATCH = 1000  # lines of a text
SHARD = 200 * BATCH  # lines that one process draws, some from others
_CUT_EVERY = 50  # batches of which one has a few lines cut at every byte
_PATIENCE = 3600  # seconds that a process may take
_SHOWN = 3  # failures told of a batch
SENTENCES = (  # a few words of each
    "a numeric label is expected", "only finite numbers", "a feature written as id:value",
    "largest allowed id", "without a value", "a decimal number is expected", "too large for the",
    "allowed once in a row",
)  # fmt: skip
_FILLERS = (0, 10, 32, 48, 55, 255)  # what stands behind the text and means nothing

Found = Sequence[Row | str | None]


# --------------------------------------------------------------------------------- the whole run


def run(
    cases: int, seed: int, folder: Path, tell: Callable[[str], None], code: Path | None = None
) -> Tally:
    """Try lines.

    Parameters
    ----------
    cases : int
        How many.
    seed : int
    folder : Path
        For what is written on the way.
    tell : callable
        Is told how far it is.
    code : Path, optional
        For machine code that checks its bounds, if it is to do so.

    Returns
    -------
    Tally
        Figures: what was said of lines, parses that ended at a refused line, texts and readings cut
        at every byte, and how many distinct outcomes there were (see `Lines`).
    """
    tally, outcomes = Tally("fuzz"), set[int]()
    folder.mkdir(parents=True, exist_ok=True)
    for first in range(0, cases, SHARD):
        found = _in_child(seed, first, min(SHARD, cases - first), folder, code)
        _add(tally, found)
        outcomes.update(found["outcomes"])
        tally.figures["distinct outcomes"] = len(outcomes)
        tell(
            f"fuzz: {tally.tried:,} of {cases:,} lines, {len(outcomes):,} distinct outcomes, "
            f"{len(tally.failures)} failures"
        )
    return tally


def replay(seed: int, case: int, folder: Path) -> Tally:
    """Try again the batch of lines that a case is in."""
    tally = Tally("fuzz")
    _add(tally, _in_child(seed, case - case % SHARD, SHARD, folder, only=case))
    return tally


def _add(tally: Tally, found: Mapping[str, Any]) -> None:
    tally.tried += found["tried"]
    tally.failures += found["failures"]
    for group, counts in found["figures"].items():
        for kind, n in counts.items():
            tally.count(group, kind, n)


def _in_child(
    seed: int, first: int, n: int, folder: Path, code: Path | None = None, only: int | None = None
) -> dict[str, Any]:
    """Try lines in a process of its own; return what it found, or how it ended."""
    at = folder / "fuzz.at"
    at.write_text(f"{first} {first}")
    options = {"seed": seed, "first": first, "cases": n, "folder": folder, "only": only}
    command = [sys.executable, "-m", "scripts.torture.text"]
    for name, value in options.items():
        command += [] if value is None else [f"--{name}", str(value)]
    environment = {**os.environ, COMPILE_HERE: "1"} if code is None else checked(code)
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
        if done.returncode == 0:
            found: dict[str, Any] = json.loads(done.stdout)
            return found
        ended = f"the process ended with code {done.returncode}: {done.stderr[-500:].strip()}"
    except subprocess.TimeoutExpired:
        ended = f"the process took more than {_PATIENCE} seconds"
    case = int(at.read_text().split()[0])
    failure = f"seed {seed}, case {case} or one of the {BATCH} from there on: {ended}"
    return {"tried": case - first, "failures": [failure], "figures": {}, "outcomes": []}


# ------------------------------------------------------------------------------------ in a child


def _shard(seed: int, first: int, n: int, folder: Path, only: int | None) -> dict[str, Any]:
    """Draw lines and try them, or only the batch that one case is in."""
    tally, lines, trial = Tally("fuzz"), Lines(f"{seed} {first}"), Trial(folder)
    with open(folder / "fuzz.at", "wb", 0) as at:
        for case in range(first, first + n, BATCH):
            batch = lines.draw(BATCH)
            chance = random.Random(f"{seed} {case}")
            dtype = chance.choice(("float32", "float64"))
            found = [read_line(line, dtype) for line in batch]
            for line, what in zip(batch, found, strict=True):
                lines.learn(line, what)
            size = min(BATCH, first + n - case)
            if only is None or case <= only < case + size:
                os.pwrite(at.fileno(), b"%d " % case, 0)
                failures = trial.check(batch[:size], found[:size], dtype, chance, tally)
                tally.failures += [f"seed {seed}, case {case + k}: {text}" for k, text in failures]
                tally.tried += size
            if only is not None and only < case + size:
                break
    outcomes = [zlib.crc32(b"%s\n%s" % (kind.encode(), token)) for kind, token in lines.outcomes]
    return {**asdict(tally), "outcomes": outcomes}


class Trial:
    """Checks batches of lines."""

    def __init__(self, folder: Path) -> None:
        self._guard = GuardedBytes(1 << 20)
        self._rooms = {dtype: Room(1 << 20, dtype) for dtype in ("float32", "float64")}
        self._cutter = Cutter(folder)

    def check(
        self, lines: Sequence[bytes], found: Found, dtype: str, chance: random.Random, tally: Tally
    ) -> list[tuple[int, str]]:
        """Parse lines in all ways; return the number of a line and what went wrong with it."""
        for what in found:
            tally.count("lines", _kind(what))
        text = b"\n".join(lines) + (b"\n" if chance.random() < 0.8 else b"")
        failures = self._together(lines, found, text, dtype, chance)
        if chance.random() < 0.2 and not failures:
            failures += self._one_by_one(lines, found, text, dtype, chance, tally)
        if chance.randrange(_CUT_EVERY) == 0 or tally.tried == 0:
            tally.count("cut at every byte", "texts")
            begin = chance.randrange(len(lines))
            few = [line for line in lines[begin : begin + 50] if len(line) < 40][:5]
            few_text = b"\n".join(few) + chance.choice((b"", b"\n"))
            failures += [
                (begin, failure)
                for failure in self._cutter.check(
                    few_text,
                    chance.random() < 0.5,
                    lambda way: tally.count("cut at every byte", way),
                )
            ]
        return failures

    def _parse(self, text: bytes, dtype: str, skip: bool, chance: random.Random) -> ParsedText:
        """Parse a text that lies at the end, or the begin, of what may be read."""
        size = len(text) + SPARE
        if size > self._guard.size:
            self._guard = GuardedBytes(2 * size)
        place = self._guard.at_end if chance.random() < 0.8 else self._guard.at_begin
        buffer = place(size)
        buffer[: len(text)] = np.frombuffer(text, np.uint8)
        buffer[len(text) :] = chance.choice(_FILLERS)
        return parse_text(
            buffer, len(text), dtype=dtype, skip=skip, max_errors=len(text) + 1,
            room=self._rooms[dtype],
        )  # fmt: skip

    def _together(
        self, lines: Sequence[bytes], found: Found, text: bytes, dtype: str, chance: random.Random
    ) -> list[tuple[int, str]]:
        """Parse all lines at once; if that differs, one by one, to say which."""
        different = differs(self._parse(text, dtype, True, chance), text, found, dtype)
        if not different:
            return []
        failures = []
        for k, (line, what) in enumerate(zip(lines, found, strict=True)):
            alone = differs(self._parse(line, dtype, True, chance), line, [what], dtype)
            if alone:
                failures.append((k, f"{line!r} as {dtype}: {alone}"))
        among = f"{len(lines)} lines as {dtype}, none of them alone: {different}"
        return failures[:_SHOWN] or [(0, among)]

    def _one_by_one(
        self, lines: Sequence[bytes], found: Found, text: bytes, dtype: str,
        chance: random.Random, tally: Tally,
    ) -> list[tuple[int, str]]:  # fmt: skip
        """Parse up to the first refused line, from behind it to the next one, and so on."""
        begin = offset = 0
        while begin < len(lines):
            stop = next((k for k in range(begin, len(found)) if isinstance(found[k], str)), None)
            end = len(lines) if stop is None else stop + 1
            rest = text[offset:]
            parsed = self._parse(rest, dtype, False, chance)
            shown = rest if stop is None else b"\n" * (end - begin)  # lines are all that counts
            different = differs(parsed, shown, found[begin:end], dtype)
            if different:
                return [(end - 1, f"{lines[end - 1]!r} as {dtype} without skip: {different}")]
            tally.count("parses without skip", "whole" if stop is None else "refused")
            offset += sum(map(len, lines[begin:end])) + end - begin
            begin = end
        return []


def _kind(found: Row | str | None) -> str:
    """What was said of a line, in a few words."""
    if found is None:
        return "empty"
    if not isinstance(found, str):
        return "rows"
    return next((words for words in SENTENCES if words in found[-150:]), "other")


def differs(parsed: ParsedText, text: bytes, found: Found, dtype: str) -> str:
    """Tell in what a parsed text differs from what was found in its lines; nothing if it does not.

    Parameters
    ----------
    parsed : ParsedText
    text : bytes
    found : sequence
        What the slow parser says of each line.
    dtype : {"float32", "float64"}
    """
    rows = [row for row in found if isinstance(row, tuple)]
    refused = [(k, what) for k, what in enumerate(found, 1) if isinstance(what, str)]
    pairs = [pair for _, features in rows for pair in features]
    values = np.array([value for _, value in pairs], dtype)
    got_values = np.ones(len(pairs), dtype) if parsed.values is None else parsed.values
    expected: dict[str, Any] = {
        "lines": text.count(b"\n") + (text != b"" and not text.endswith(b"\n")),
        "refused lines": refused,
        "how many are refused": len(refused),
        "labels": np.array([label for label, _ in rows], np.float64),
        "lengths": np.array([len(features) for _, features in rows], np.int64),
        "ids": np.array([identity for identity, _ in pairs], np.int64),
        "values": values,
    }
    got: dict[str, Any] = {
        "lines": parsed.n_lines,
        "refused lines": [(error.line, error.explain(REASONS)) for error in parsed.errors],
        "how many are refused": parsed.n_errors,
        "labels": parsed.labels,
        "lengths": np.diff(parsed.indptr),
        "ids": parsed.ids,
        "values": got_values,
    }
    for name, one in expected.items():
        other = got[name]
        if isinstance(one, np.ndarray):
            if one.dtype == other.dtype and one.tobytes() == other.tobytes():
                continue
            one, other = one.tolist(), other.tolist()
        elif one == other:
            continue
        if isinstance(one, list):
            pairs_of = zip(one, other, strict=False)
            k = next((k for k, (a, b) in enumerate(pairs_of) if repr(a) != repr(b)), None)
            one, other = (len(one), len(other)) if k is None else (one[k], other[k])
        return f"{name} should be {one!r} and are {other!r}"
    return ""


def main() -> None:
    """Try lines, or be the child that does."""
    parser = argparse.ArgumentParser(description="Fuzz the text parser.")
    parser.add_argument("--cases", type=int, default=100_000, help="lines to try")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--replay", type=int, help="try the lines around this case only")
    for name, kind in (("first", int), ("only", int), ("folder", Path)):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.folder is not None:
        print(json.dumps(_shard(args.seed, args.first, args.cases, args.folder, args.only)))
        return
    with tempfile.TemporaryDirectory() as folder:
        if args.replay is not None:
            tally = replay(args.seed, args.replay, Path(folder))
        else:
            tally = run(args.cases, args.seed, Path(folder), lambda text: print(text))
    print(json.dumps(asdict(tally), indent=1))
    sys.exit(1 if tally.failures else 0)


if __name__ == "__main__":
    main()
