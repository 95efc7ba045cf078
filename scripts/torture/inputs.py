"""Damaged input files: a command that reads one ends with a result or a sentence, within --mem.

Each case writes an input of one format, damages it, and runs a command on it in a forked process.
Right is exit code 0, 1 or 3, with one sentence for 1. A signal, a traceback, a hang, or a peak of
memory above ``--mem``, measured from outside, is a failure.

Bytes and words of text are damaged, whatever they mean; or the container stays valid, and has
columns of any type with nulls anywhere, or arrays that do not fit together.
"""

import contextlib
import gc
import io
import math
import multiprocessing
import os
import random
import select
import shutil
import sys
import time
import traceback
import zipfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import sbm
from sbm.cli import main
from scripts.torture.hostile import PACK
from scripts.torture.tally import Tally, Tell

HANGS = "\nstill running at the limit of time"
MEM = 300_000_000
LONGEST = 60  # seconds of a command
ALLOWED = (0, 1, 3)  # exit codes
WORKERS, FEW = 2, 200  # processes; cases for which one is enough
ROWS = 60
_NUMBERS = [0, 1, 2, -1, -2, 127, 255, 2**15, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62, 2**63 - 1]


# --------------------------------------------------------------------------- damage of bytes


def _damage(data: bytearray, dice: random.Random) -> str:
    """Damage bytes, more often near the begin and the end; return the kind."""
    kind = dice.choice(["bit", "bit", "byte", "word", "word", "copy", "lose", "zero", "cut"])
    for _ in range(dice.choice([1, 1, 2, 8])):
        if not data:
            break
        near = min(len(data) - 1, int(dice.expovariate(1 / 300)))
        at = dice.choice([dice.randrange(len(data)), near, len(data) - 1 - near])
        if kind == "bit":
            data[at] ^= 1 << dice.randrange(8)
        elif kind == "byte":
            data[at] = dice.choice([0, 255, 127, 128, 1, 10, 44, 58])
        elif kind == "word":  # an aligned integer
            width = dice.choice([1, 4, 8])
            at -= at % width
            old = int.from_bytes(data[at : at + width], "little")
            new = dice.choice([*_NUMBERS, old - 1000, old - 1, old + 1, old + 8])
            data[at : at + width] = (new % (1 << 8 * width)).to_bytes(width, "little")
        elif kind == "copy":
            begin = dice.randrange(len(data))
            data[at:at] = data[begin : begin + dice.randrange(200)]
        else:
            size = {"lose": dice.choice([1, 8, 64, 1000]), "zero": 16}.get(kind, len(data))
            data[at : at + size] = bytes(len(data[at : at + size]) if kind == "zero" else 0)
    return kind


# ---------------------------------------------------------------------------------- tables

_WORDS = ["red", "blue", "", " ", "x" * 3000, "grün", "a=b", "a b:c|d", "nan", "1", "?", "\0", "😀"]
_NUMERIC = [pa.float64(), pa.float32(), pa.float16(), pa.int8(), pa.int64(), pa.uint64(),
            pa.bool_(), pa.decimal128(9, 3), pa.null()]  # fmt: skip
_TEXTUAL = [pa.string(), pa.large_string(), pa.string_view()]


def _any_column(dice: random.Random, depth: int = 0) -> pa.Array:
    """Return a column of any type, with nulls, numbers that are not finite and odd words."""
    shape = dice.random() if depth < 3 else 0.0
    odd = [None, math.nan, math.inf, 2**62, 1e300, -1]
    if shape < 0.4:
        kind = dice.choice(_NUMERIC)
        numbers = [dice.choice([*odd, 0, 1, 90_000, 0.5]) for _ in range(ROWS)]
        return pa.array(numbers, pa.float64()).cast(kind, safe=False)
    if shape < 0.7:
        words = [dice.choice([*_WORDS, None]) for _ in range(ROWS)]
        return pa.array(words, dice.choice(_TEXTUAL))
    inner = _any_column(dice, depth + 1)
    if shape < 0.8:
        return inner.dictionary_encode()
    ends = pa.array(range(ROWS + 1), pa.int32())
    return dice.choice([
        lambda: pa.ListArray.from_arrays(ends, inner),
        lambda: pa.FixedSizeListArray.from_arrays(inner, 1),
        lambda: pa.StructArray.from_arrays([inner], ["a"]),
        lambda: pa.RunEndEncodedArray.from_arrays(ends[1:], inner),
        lambda: pa.array(range(ROWS)).cast(pa.timestamp("ns")),
        lambda: pa.array([b"\xff"] * ROWS, pa.binary()),
    ])()  # fmt: skip


def _table(dice: random.Random, layout: str, is_odd: bool) -> pa.Table:
    """Return a table of columns, or of lists of ids and values; perhaps with odd ones."""
    signs = [dice.choice([-1, 1]) if is_odd else (-1) ** k for k in range(ROWS)]
    columns: dict[str, Any] = {"label": pa.array(signs)}
    if layout == "sparse":
        ids: list[Any] = [sorted(dice.sample(range(50), dice.randrange(6))) for _ in range(ROWS)]
        values: list[Any] = [[round(dice.gauss(0, 1), 3) for _ in row] for row in ids]
        for _ in range(dice.choice([1, 3]) if is_odd else 0):
            odd = [None, [], [None], [-1], [2**62, 1], [1, 1, 1], [0] * 3000]
            dice.choice([ids, values])[dice.randrange(ROWS)] = dice.choice(odd)
        listed = dice.choice([pa.list_, pa.large_list, pa.list_view]) if is_odd else pa.list_
        columns["indices"] = pa.array(ids, listed(pa.int64()))
        columns["values"] = pa.array(values, listed(pa.float64()))
        return pa.table(columns)
    columns |= {
        "a": pa.array([dice.gauss(0, 1) for _ in range(ROWS)]),
        "b": pa.array([dice.choice(_WORDS[:2]) for _ in range(ROWS)]),
        "c": pa.array([dice.choice(_WORDS[:2]) for _ in range(ROWS)]).dictionary_encode(),
    }
    for name in [*columns] if is_odd else []:
        if dice.random() < 0.4:
            with contextlib.suppress(pa.ArrowException, TypeError, OverflowError, ValueError):
                columns[name] = _any_column(dice)
    return pa.table(columns)


def _arrow(dice: random.Random, layout: str, kind: str) -> tuple[bytearray, str]:
    """Return a Feather or Parquet file, with odd columns or damaged bytes."""
    is_odd, file = dice.random() < 0.4, io.BytesIO()
    table = _table(dice, layout, is_odd)
    if kind == "feather":
        codec = dice.choice([None, None, "lz4", "zstd"])
        options = pa.ipc.IpcWriteOptions(compression=codec, unify_dictionaries=True)
        with pa.ipc.new_file(file, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=dice.choice([20, 1000]))
    else:
        how: dict[str, Any] = {
            "compression": dice.choice(["none", "snappy", "zstd", "gzip"]),
            "use_dictionary": dice.random() < 0.5, "row_group_size": dice.choice([20, 1000]),
            "data_page_version": dice.choice(["1.0", "2.0"]),
        }  # fmt: skip
        pq.write_table(table, file, **how)
    data = bytearray(file.getvalue())
    return data, "types" if is_odd else _damage(data, dice)


# ------------------------------------------------------------------------------------- arrays

_HEADERS = [
    (b"<f8", b"|O"), (b"<f8", b"<c16"), (b"<f8", b"<M8[s]"), (b"<f8", b"|S8"), (b"<f8", b"<f2"),
    (b"<i8", b">i8"), (b"<i8", b"<U2"), (b"False", b"True"), (b",)", b",1)"), (b"(", b"(-"),
    (b"(", b"(99999999999999"), (b"(", b"(" * 500), (b"shape", b"shap"), (b"{", b"{'x': [],"),
    (b"}", b""), (b"\x01\x00", b"\x03\x00"), (b"NUMPY", b"numpy"), (b"(", b"(True or "),
    (b"<f8", b"f8,f8"), (b"<f8", b""),
]  # fmt: skip


def _npy(array: Any, dice: random.Random, is_damaged: bool) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    data = bytearray(file.getvalue())
    if is_damaged and dice.random() < 0.3:
        _damage(data, dice)
    elif is_damaged:
        data = data.replace(*dice.choice(_HEADERS), 1)
    return bytes(data)


def _arrays(dice: random.Random) -> dict[str, Any]:
    lengths = [dice.randrange(6) for _ in range(ROWS)]
    nnz = sum(lengths)
    return {
        "indptr": np.cumsum([0, *lengths]).astype(dice.choice([np.int32, np.int64])),
        "indices": np.array([dice.randrange(40) for _ in range(nnz)], np.int32),
        "data": np.array([dice.gauss(0, 1) for _ in range(nnz)]),
        "shape": np.array([ROWS, 40]), "format": np.array(b"csr"),
        "y": np.array([(-1) ** k for k in range(ROWS)], np.int64),
    }  # fmt: skip


def _misfit(arrays: dict[str, Any], dice: random.Random) -> None:
    """Replace an array of a matrix by one that does not fit the others, or drop it."""
    name = dice.choice([*arrays])
    old = arrays[name]
    if old.ndim == 0:
        arrays[name] = np.array(dice.choice([b"csc", b"coo", b"", "csr"]))
        return
    wide = old.astype(dice.choice([np.int64, np.int32, np.uint64, np.float64]))
    with np.errstate(all="ignore"):
        new = np.array(dice.choice([-1, -(2**31), 10**6, 2**40])).astype(wide.dtype)
        wide[dice.choice([0, len(wide) // 2, -1])] += new
    kinds = ["?", "i1", "f2", "c16", "S3", "M8[s]"]
    arrays[name] = dice.choice([
        wide, wide, old[:-1], np.concatenate([old, old[-1:]]), old[:, None], old[0], old[:0],
        old.astype("i8").astype(dice.choice(kinds)),
    ])  # fmt: skip
    if dice.random() < 0.1:
        del arrays[name]


def _pack(arrays: dict[str, Any], dice: random.Random, damaged: str = "") -> bytes:
    file, methods = io.BytesIO(), [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]
    with zipfile.ZipFile(
        file, "w", dice.choice([*methods, zipfile.ZIP_LZMA][: 2 + bool(damaged)])
    ) as archive:
        for name, array in arrays.items():
            archive.writestr(f"{name}.npy", _npy(array, dice, name == damaged))
    return file.getvalue()


def _npz(dice: random.Random, path: Path) -> str:
    """Write a damaged matrix, or damaged labels beside a good one."""
    arrays, damage = _arrays(dice), dice.choice(["arrays", "arrays", "header", "bytes", "beside"])
    if damage == "beside":
        labels = {"y": arrays.pop("y")}
        _misfit(labels, dice)
        y = labels.get("y", np.zeros(0))
        path.with_suffix(".y.npy").write_bytes(_npy(y, dice, dice.random() < 0.5))
    elif damage == "arrays":
        _misfit(arrays, dice)
    data = bytearray(_pack(arrays, dice, dice.choice([*arrays]) if damage == "header" else ""))
    damage = _damage(data, dice) if damage == "bytes" else damage
    path.write_bytes(data)
    return damage


# --------------------------------------------------------------------------------------- text

_TOKENS = [
    b"nan", b"inf", b"1e999", b"1e-999", b"9" * 400, b"-1", b"0", b"18446744073709551616", b"\0",
    b"\xff\xfe", b'"', b'""', b",,", b"|", b":", b"1:", b":1", b" ", b"|ns:", b"|n:nan a", b"#",
    b"\r", b"\n\n", b"qid:1", b"x" * 5000, b"\t", b"1_0", b"\xef\xbb\xbf", b"0x1p3", b"1:1" * 900,
    b"label", b"e5", b"1 2:3 2:4 1:5", b"\n-1 1:1", b"\xc3", b"\x1f\x8b", b'"a\n', b"1,2,3,4,5",
]  # fmt: skip


def _text(dice: random.Random, kind: str) -> bytes:
    signs = [dice.choice(["-1", "1", "+1"]) for _ in range(ROWS)]
    line = {
        "csv": "{s},{x},x{k},{w}", "vw": "{s} 0.5 'tag{k} |ns:2 a:{x} b |o x{k}",
        "svm": "{s} 1:{k} 9:{x} 40:1e-3",
    }[kind]  # fmt: skip
    rows = [line.format(s=s, x=k * 0.5, k=k % 5, w="u2"[k % 2]) for k, s in enumerate(signs)]
    return "\n".join([*["label,a,b,c"] * (kind == "csv"), *rows, ""]).encode()


def _damaged_text(dice: random.Random, path: Path, kind: str) -> str:
    data = bytearray(_text(dice, kind))
    damage = "words" if dice.random() < 0.6 else _damage(data, dice)
    for _ in range(dice.choice([1, 1, 3, 20]) if damage == "words" else 0):
        at = dice.randrange(len(data))
        data[at : at + dice.choice([0, 1, 3])] = dice.choice(_TOKENS)
    path.write_bytes(data)
    if dice.random() < 0.15:  # compressed, and damaged once more
        ending = dice.choice(list(PACK))
        packed = bytearray(PACK[ending](bytes(data), dice))
        damage = "packed " + (_damage(packed, dice) if dice.random() < 0.7 else damage)
        path.with_name(path.name + ending).write_bytes(packed)
        path.unlink()
    return damage


# -------------------------------------------------------------------------------------- cases

FORMATS = ("feather", "parquet", "npz", "csv", "vw", "svm")
LAYOUTS = ("wide", "sparse", "npz", "csv", "vw", "svm")
USES = ("split", "train", "predict", "validate", "test")


def _good(layout: str, folder: Path) -> dict[str, Path]:
    """Write rows of a layout, and a model of them."""
    dice = random.Random(layout)
    ending = layout if layout not in ("wide", "sparse") else "parquet"
    files = {"good": folder / f"{layout}.{ending}", "model": folder / f"{layout}.model"}
    if ending == "parquet":
        pq.write_table(_table(dice, layout, False), files["good"])
    else:
        content = _pack(_arrays(dice), dice) if layout == "npz" else _text(dice, layout)
        files["good"].write_bytes(content)
    sbm.train(files["good"], files["model"], {"max_passes": 2, "threads": 1})
    return files


def _write(dice: random.Random, kind: str, folder: Path) -> None:
    """Write the damaged input of a case; print its layout and the kind of damage."""
    path, layout = folder / f"input.{kind}", kind
    if kind in ("feather", "parquet"):
        layout = dice.choice(["wide", "sparse"])
        data, damage = _arrow(dice, layout, kind)
        path.write_bytes(data)
    else:
        damage = _npz(dice, path) if kind == "npz" else _damaged_text(dice, path, kind)
    print(f"{layout}\t{damage}")


def _command(use: str, path: Path, files: dict[str, Path]) -> list[str]:
    train = ["train", "-o", "out.model", "--max-passes", "2"]
    line = {
        "split": ["split", path, "-o", "out.sbm"], "train": [*train, path],
        "predict": ["predict", files["model"], path, "-o", "out.txt"],
        "validate": [*train, files["good"], "--validate", path],
        "test": [*train, files["good"], "--test", path],
        "stream": ["stream", path, "-o", "out.model"],
    }[use]  # fmt: skip
    common = ["-q"] if use == "predict" else ["-q", "--mem", f"{MEM // 10**6}MB"]
    return [*map(str, line), *common, "--threads", "1"]


def _use_frame(path: Path) -> None:
    """Split the table that pyarrow makes of a file, which it does not check either."""
    try:
        table = pa.ipc.open_file(pa.OSFile(str(path))).read_all()
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return
    sbm.split(table, "out.sbm", mem=MEM, threads=1)


@dataclass
class Ended:
    """How a case ended."""

    groups: list[tuple[str, str]]  # groups of figures and kinds to count
    peak: int  # bytes
    wrong: list[str]


def _forked(do: Callable[[], None]) -> tuple[int, str, int]:
    """Run a function in a forked process; return exit code, output and peak of memory."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        code = 99
        try:
            for number in (1, 2):
                os.dup2(write, number)
            sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
            sys.stderr = open(2, "w", closefd=False, errors="backslashreplace")  # noqa: SIM115
            do()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except sbm.errors.SbmError as error:
            code = print(f"sbm: {error}", file=sys.stderr) or 1
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)
    os.close(write)
    said, limit = b"", time.monotonic() + LONGEST
    while True:
        ready, _, _ = select.select([read], [], [], max(0.0, limit - time.monotonic()))
        some = os.read(read, 1 << 16) if ready else b""
        if not ready:
            os.kill(child, 9)
            said += HANGS.encode()
        if not some:
            break
        said += some
    os.close(read)
    _, status, usage = os.wait4(child, 0)
    return os.waitstatus_to_exitcode(status), said.decode("utf-8", "replace"), usage.ru_maxrss << 10


_files: dict[str, dict[str, Path]] = {}
_home = Path()


def _prepare(folder: Path) -> None:
    """Make the good files in a worker, and load what the commands load."""
    global _home
    _home = folder / f"worker-{os.getpid()}"
    _home.mkdir()
    for layout in LAYOUTS:
        _files[layout] = _good(layout, _home)
        case = _home / "case"
        case.mkdir()
        os.chdir(case)
        for use in _uses(_files[layout]["good"]):  # so that nothing is compiled in a case
            _forked(partial(_run, use, _files[layout]["good"], _files[layout]))
        os.chdir(_home)
        shutil.rmtree(case)
    gc.collect()
    gc.freeze()


def _uses(path: Path) -> list[str]:
    """Return what is done with a file of this name."""
    return [*USES, *["frame"] * (".feather" in path.name), *["stream"] * (".svm" in path.name)]


def _run(use: str, path: Path, files: dict[str, Path]) -> None:
    if use == "frame":
        _use_frame(path)
    else:
        main(_command(use, path, files))


def _try(seed: int, number: int) -> Ended:
    """Run a case in a worker."""
    case = _home / "case"
    case.mkdir()
    os.chdir(case)
    try:
        dice, kind = random.Random(f"{seed} {number}"), FORMATS[number % len(FORMATS)]
        code, said, _ = _forked(partial(_write, dice, kind, case))  # pyarrow may crash here too
        if code:
            return Ended([("formats", kind), ("damage", "not written")], 0, [])
        layout, damage = said.strip().split("\t")
        path = min(case.glob("input.*"), key=lambda path: path.suffix == ".npy")
        use = random.Random(f"{seed} {number} use").choice(_uses(path))
        code, said, peak = _forked(partial(_run, use, path, _files[layout]))
    finally:
        os.chdir(_home)
        shutil.rmtree(case)
    last = (said.strip().splitlines() or [""])[-1]
    wrong = [] if code in ALLOWED else [f"exit code {code}"]
    if "Traceback" in said or ".py:" in said or said.endswith(HANGS):
        wrong.append("not a sentence")
    if code == 1 and (not last.startswith("sbm: ") or len(last) > 900):
        wrong.append("no sentence")
    if peak > MEM:
        wrong.append(f"a peak of {peak / 1e6:.0f} MB")
    wrong = [f"{', '.join(wrong)} ({use} {path.name}, {damage}): {last[:300]}"] if wrong else []
    groups = [("formats", kind), ("uses", use), ("damage", damage), ("exit codes", str(code))]
    return Ended(groups, peak, wrong)


def run(cases: int, seed: int, folder: Path, tell: Tell, only: int | None = None) -> Tally:
    """Read damaged inputs."""
    tally = Tally("inputs")
    folder.mkdir(parents=True, exist_ok=True)
    chosen = range(cases) if only is None else [only]
    # The workers start anew, without what this process has in memory, and fork for each case.
    context = multiprocessing.get_context("spawn")
    workers, peak = WORKERS if len(chosen) > FEW else 1, 0
    with ProcessPoolExecutor(workers, context, _prepare, (folder,)) as pool:
        coming = {number: pool.submit(_try, seed, number) for number in chosen}

        def attempt(number: int) -> list[str]:
            nonlocal peak
            ended = coming.pop(number).result()
            peak = max(peak, ended.peak)
            for group, kind in ended.groups:
                tally.count(group, kind)
            return ended.wrong

        tally.try_each(chosen, attempt, tell, f"seed {seed} case {{}}")
    tally.figures["largest peak, MB"] = round(peak / 1e6)
    return tally
