"""Compressed bombs, concurrent writers of one file, forged records, and very many input files.

Each case is drawn from the seed and its number, which also decides the kind.
"""

import bz2
import contextlib
import gzip
import io
import json
import lzma
import math
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zstandard

import sbm
import sbm.inputs.formats
from sbm.errors import SbmError
from sbm.inputs.packed import MOST, USUAL, Unpacked, WindowError, errors
from sbm.store.files import open_atomically
from sbm.store.records import encode_record
from scripts.torture.tally import Tally, Tell, WrongError

QUICK: dict[str, Any] = {"mem": "300MB", "max_passes": 1, "threads": 1, "tol": 1e-9}
TEXT = "".join(f"{(-1, 1)[k % 2]} {k % 7 + 1}:{k / 8} {k + 9}:1 300:0.5\n" for k in range(24))
# What takes the place of a value.
ODD: list[Any] = [
    None, True, False, -1, 0, 7, 2**31, 2**61, 2**63, 10**400, 0.5, 0.03, -1e308, math.nan,
    math.inf, "", "x", "../x", "x" * 9000, [], [[]], [None], ["x"], [2**62] * 3, {}, {"a": 1},
]  # fmt: skip

# ------------------------------------------------------------------------------------ bombs


def _zstd(data: bytes, dice: random.Random) -> bytes:
    window, level = dice.choice([10, 17, 21, 23, 24, 27]), dice.choice([-5, 1, 3])
    parameters = zstandard.ZstdCompressionParameters.from_level(
        level, window_log=window, write_checksum=dice.choice([0, 1])
    )
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packer.compress(data) + packer.flush()


def _xz(data: bytes, dice: random.Random) -> bytes:
    size = 1 << dice.choice([12, 16, 20, 22, 24])
    return lzma.compress(data, filters=[{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": size}])


PACK: dict[str, Callable[[bytes, random.Random], bytes]] = {
    ".gz": lambda data, dice: gzip.compress(data, dice.choice([1, 6, 9])),
    ".bz2": lambda data, dice: bz2.compress(data, dice.choice([1, 9])),
    ".xz": _xz, ".zst": _zstd,
}  # fmt: skip


def _bomb(dice: random.Random, folder: Path, tally: Tally) -> Iterator[str]:
    """Bytes that shrink to almost nothing, among others, are read in bounded pieces."""
    ending = dice.choice(list(PACK))
    data = packed = b""
    for _ in range(dice.randrange(1, 4)):
        blank = dice.choice([b"\n", b"\0", b"1 1:1 2:1\n"]) * dice.choice([0, 99, 1 << 18, 1 << 21])
        part = dice.randbytes(dice.choice([0, 9, 70_000])) + blank + dice.randbytes(9)
        data, packed = data + part, packed + PACK[ending](part, dice)
    cut = dice.random() < 0.4
    if cut:
        packed = packed[: -dice.randrange(1, 12)]
    stream, room, found = (
        Unpacked(io.BytesIO(packed).read, "a" + ending, 0),
        bytearray(1 << 22),
        b"",
    )
    tally.count("compressions", ending)
    try:
        while n := stream.readinto(memoryview(room)):
            if n > MOST:
                yield f"a piece of {ending} has {n} bytes"
            found += room[:n]
    except WindowError as error:
        if error.size <= USUAL:
            yield f"a window of {error.size} was refused"
        return
    except errors():
        if not cut:
            raise
        return
    if cut or found != data:
        yield f"{ending}: other bytes came out{', and the end was missing' if cut else ''}"


# ------------------------------------------------------------------------------------ writers


def _writers(dice: random.Random, folder: Path, tally: Tally) -> Iterator[str]:
    """Processes write one file at the same time, and some are killed."""
    output, children = folder / "out", []
    n = dice.randrange(2, 5)
    tally.count("writers", str(n))
    for number in range(n):
        sizes = [dice.randrange(1, 50_000) for _ in range(dice.randrange(1, 30))]
        killed_at = dice.randrange(len(sizes)) if dice.random() < 0.3 else None
        if child := os.fork():
            children.append((child, killed_at))
            continue
        code = 1
        with contextlib.suppress(BaseException), open_atomically(output) as file:
            for k, size in enumerate(sizes):
                if k == killed_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                file.write(b"%d" % number * size)
            code = 0
        os._exit(code)
    codes = [os.waitpid(child, 0)[1] for child, _ in children]
    for (_, killed_at), code in zip(children, codes, strict=True):
        if killed_at is None and code != 0:
            yield "a writer failed"
    written = output.read_bytes() if output.exists() else b""
    if len(set(written)) > 1 or (not written and 0 in codes):
        yield f"the file has bytes of {len(set(written))} writers"
    with open_atomically(output) as file:
        file.write(b"last")
    if output.read_bytes() != b"last" or len(list(folder.iterdir())) > 1:
        yield f"what was left stays: {sorted(folder.iterdir())}"


# ------------------------------------------------------------------------------------ records


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value in JSON."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in items:
        yield (*path, key)
        if isinstance(one, dict | list):
            yield from _places(one, (*path, key))


def _make_sound(folder: Path) -> Path:
    """Make a store, runs and a shard once."""
    sound = folder.parent / "sound"
    if not sound.exists():
        sound.mkdir()
        (sound / "a.svm").write_text(TEXT)
        (sound / "b.svm").write_text("1 400:1\n-1 9:2\n")
        sbm.split(sound / "a.svm", sound / "s.sbm", blocks=2, threads=1)
        sbm.split(sound / "b.svm", sound / "s.sbm", append=True, threads=1)
        sbm.split(sound / "a.svm", sound / "p.sbm", blocks=2, threads=1, shards=2)
        sbm.train(sound / "s.sbm", sound / "m.model", QUICK)
        sbm.stream(sound / "a.svm", sound / "t.model", {"mem": "300MB"})
    return sound


def _record(dice: random.Random, folder: Path, tally: Tally) -> Iterator[str]:
    """A field of another type or value, with the right checksum, is refused or harmless."""
    sound = _make_sound(folder)
    shutil.copytree(sound, folder, dirs_exist_ok=True)
    name, path = dice.choice([
        ("manifest", folder / "s.sbm/manifest.json"), ("run", folder / "m.model.run/run.json"),
        ("run", folder / "t.model.run/run.json"), ("shard", folder / "p.0.sbm/shard.json"),
    ])  # fmt: skip
    content = json.loads(path.read_bytes())[name]
    place = dice.choice(list(_places(content)))
    at = content
    for key in place[:-1]:
        at = at[key]
    if isinstance(at, dict) and dice.random() < 0.15:
        del at[place[-1]]
    else:
        at[place[-1]] = dice.choice(ODD)
    path.write_bytes(encode_record(name, content))
    store, model, stream = folder / "s.sbm", folder / "m.model", folder / "t.model"
    warm = {**QUICK, "warm_start": str(folder / "m.model.run"), "C": 0.5}
    for use in (
        lambda: sbm.info(path.parent), lambda: sbm.check(store),
        lambda: sbm.check(folder / "p.0.sbm"), lambda: sbm.report(model, folder / "r.html"),
        lambda: sbm.split(folder / "b.svm", store, append=True),
        lambda: sbm.train(store, folder / "w.model", warm),
        lambda: sbm.train(store, model, {**QUICK, "max_passes": 2}),
        lambda: sbm.stream(None, stream, resume=True), lambda: sbm.expire(store, sources="b.svm"),
    ):  # fmt: skip
        try:
            use()
            tally.count("uses", "harmless")
        except SbmError as error:
            tally.count("uses", "refused")
            if "\n" in str(error):
                yield f"an error of several lines: {error}"
        except Exception as error:
            raise WrongError(f"{name} {place}: {error!r}") from error


# ---------------------------------------------------------------------------------- many files


def _many(dice: random.Random, folder: Path, tally: Tally) -> Iterator[str]:
    """Many files, of which several make a source, give the rows of their text as one file."""
    whole, names = "", []
    n = dice.randrange(2, 90)
    for k in range(n):
        rows = [f"{dice.choice('+-')}1 {dice.randrange(1, 50)}:{dice.random():.3g}"
                for _ in range(dice.choice([0, 1, 1, 1, 5]))]  # fmt: skip
        text = "\n".join(rows) + dice.choice(["", "\n", "\n# end", "\n\n"])
        ending = dice.choice(["", "", "", *PACK])
        path = folder / f"{k:03d}.svm{ending}"
        path.write_bytes(PACK[ending](text.encode(), dice) if ending else text.encode())
        whole += f"{text}\n" if text and not text.endswith("\n") else text
        names.append(path)
    tally.count("files", f"up to {-(-n // 30) * 30}")
    (folder / "whole.svm").write_text(whole)
    before = sbm.inputs.formats.MOST_SOURCES
    sbm.inputs.formats.MOST_SOURCES = dice.choice([1, 3, 10])
    try:
        for target, inputs in (("a.sbm", names), ("b.sbm", [folder / "whole.svm"])):
            sbm.split(inputs, folder / target, blocks=1, threads=1, force=True)
    except SbmError as error:
        if "window" not in str(error) and whole.strip():
            raise
        return
    finally:
        sbm.inputs.formats.MOST_SOURCES = before
    a, b = ((folder / name / "block-000000.sbb") for name in ("a.sbm", "b.sbm"))
    if a.exists() != b.exists() or (a.exists() and a.read_bytes() != b.read_bytes()):
        yield "other rows than of the same text in one file"


# ----------------------------------------------------------------------------------------- all

KINDS = (_bomb, _writers, _record, _many)


def run(cases: int, seed: int, folder: Path, tell: Tell, only: int | None = None) -> Tally:
    """Try hostile files and neighbours."""
    tally = Tally("hostile")
    folder.mkdir(parents=True, exist_ok=True)

    def attempt(number: int) -> list[str]:
        kind, place = KINDS[number % len(KINDS)], folder / "case"
        tally.count("kinds", kind.__name__.strip("_"))
        place.mkdir()
        try:
            return list(kind(random.Random(f"{seed} {number}"), place, tally))
        finally:
            shutil.rmtree(place)

    chosen = range(cases) if only is None else [only]
    tally.try_each(chosen, attempt, tell, f"seed {seed} case {{}}")
    return tally
