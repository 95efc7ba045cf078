"""Damaged input files: a command that reads one ends with a result or a sentence, within --mem.

Each case writes an input of one format, damages it, and runs a command on it in a forked process.
Right is exit code 0, 1 or 3, with one sentence for 1. A signal, a traceback, a hang, or a peak of
memory above ``--mem``, measured from outside, is a failure.

Some damage is of bytes, whatever they mean. Other damage keeps the container valid: entries of the
buffers of a Feather file, arrays and their headers in an npz file, words of text, and tables of any
types with nulls anywhere. Not made are small files of much data, such as a column of a billion
equal numbers: a page of Parquet or a record batch of Feather is read whole, whatever its size.
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
from scripts.torture.tally import Tally

MEM = 300_000_000
LONGEST = 60  # seconds of a command
ALLOWED = (0, 1, 3)  # exit codes
WORKERS, FEW = 2, 200  # processes; cases for which one is enough

# ------------------------------------------------------------------------------ damage of bytes

_NUMBERS = [0, 1, 2, -1, -2, 127, 255, 2**15, 2**31 - 1, 2**31, -(2**31), 2**40, 2**62, 2**63 - 1]


def _place(data: bytearray, dice: random.Random) -> int:
    """Draw a position; the begin and the end, which tell where the rest is, come up more often."""
    if dice.random() < 0.5:
        return dice.randrange(len(data))
    near = min(len(data) - 1, int(dice.expovariate(1 / 300)))
    return near if dice.random() < 0.3 else len(data) - 1 - near


def _bit(data: bytearray, at: int, dice: random.Random) -> None:
    data[at] ^= 1 << dice.randrange(8)


def _byte(data: bytearray, at: int, dice: random.Random) -> None:
    data[at] = dice.choice([0, 255, 127, 128, 1, 10, 44, 58, dice.randrange(256)])


def _word(data: bytearray, at: int, dice: random.Random) -> None:
    """Set an aligned integer, or add to it."""
    width = dice.choice([1, 2, 4, 4, 8, 8])
    at -= at % width
    new = dice.choice(_NUMBERS)
    if dice.random() < 0.5:
        new = int.from_bytes(data[at : at + width], "little") + dice.choice([-1000, -8, -1, 1, 8])
    data[at : at + width] = (new % (1 << 8 * width)).to_bytes(width, "little")


def _varint(data: bytearray, at: int, dice: random.Random) -> None:
    """Set a number as Parquet writes it."""
    new = dice.choice([b"\xff" * 9 + b"\x01", b"\xfe\xff\xff\xff\x0f", b"\x80\x80\x04", b"\x00"])
    data[at : at + len(new)] = new


def _copy(data: bytearray, at: int, dice: random.Random) -> None:
    begin = dice.randrange(len(data))
    data[at:at] = data[begin : begin + dice.randrange(200)]


def _lose(data: bytearray, at: int, dice: random.Random) -> None:
    del data[at : at + dice.choice([1, 1, 8, 64, 1000])]


def _zero(data: bytearray, at: int, dice: random.Random) -> None:
    data[at : at + 16] = bytes(len(data[at : at + 16]))


def _swap(data: bytearray, at: int, dice: random.Random) -> None:
    other = dice.randrange(len(data))
    data[at : at + 8], data[other : other + 8] = data[other : other + 8], data[at : at + 8]


def _cut(data: bytearray, at: int, dice: random.Random) -> None:
    del data[at:]


_OF_BYTES = {
    "bit": _bit, "byte": _byte, "word": _word, "varint": _varint, "copy": _copy, "lose": _lose,
    "zero": _zero, "swap": _swap, "cut": _cut,
}  # fmt: skip


def _bytes(data: bytearray, dice: random.Random) -> str:
    """Damage bytes; return the kind."""
    kind = dice.choice([*_OF_BYTES, "bit", "word"])
    for _ in range(dice.choice([1, 1, 2, 8])):
        if data:
            _OF_BYTES[kind](data, _place(data, dice), dice)
    return kind


# ---------------------------------------------------------------------------------- tables

_WORDS = ["red", "blue", "", " ", "x" * 3000, "grün", "a=b", "a b:c|d", "nan", "1", "?", "\0", "😀"]
_INTS = [0, 1, 2, 3, 7, 90_000]


def _numbers(dice: random.Random) -> pa.DataType:
    return dice.choice([
        pa.float64(), pa.float64(), pa.float32(), pa.float16(), pa.int8(), pa.int32(), pa.int64(),
        pa.uint8(), pa.uint64(), pa.bool_(), pa.decimal128(9, 3), pa.null(),
    ])  # fmt: skip


def _any_type(dice: random.Random, depth: int = 0) -> pa.DataType:
    """Draw the type of a column, mostly one that is read."""
    shape = dice.random() if depth < 3 else 0.0
    if shape < 0.4:
        return _numbers(dice)
    if shape < 0.7:
        return dice.choice([pa.string(), pa.string(), pa.large_string(), pa.string_view()])
    if shape < 0.9:
        codes = dice.choice([pa.int8(), pa.int32(), pa.uint16()])
        return pa.dictionary(codes, dice.choice([pa.string(), pa.large_string(), _numbers(dice)]))
    inner = _any_type(dice, depth + 1)
    return dice.choice([
        pa.list_(inner), pa.large_list(inner), pa.list_(inner, 2), pa.list_view(inner),
        pa.struct([("a", inner)]), pa.map_(pa.string(), inner),
        pa.run_end_encoded(pa.int32(), inner), pa.binary(), pa.binary(3), pa.date32(),
        pa.timestamp("ns"), pa.time64("us"),
        pa.duration("s"), pa.month_day_nano_interval(), pa.binary_view(),
    ])  # fmt: skip


def _array(kind: pa.DataType, n: int, dice: random.Random, odd: float) -> pa.Array:
    """Return a column; `odd` is the share of nulls and of numbers that are not finite."""
    if pa.types.is_dictionary(kind):
        return _array(kind.value_type, n, dice, odd).dictionary_encode().cast(kind)
    if pa.types.is_run_end_encoded(kind):
        ends = pa.array(range(1, n + 1), kind.run_end_type)
        return pa.RunEndEncodedArray.from_arrays(ends, _array(kind.value_type, n, dice, odd))

    def value() -> Any:
        if dice.random() < odd:
            return dice.choice([None, None, math.nan, math.inf, 2**62, 1e300, -1])
        if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
            return round(dice.gauss(0, 1), 3)
        return dice.choice(_INTS)

    if pa.types.is_boolean(kind):
        return pa.array([dice.choice([True, False, None]) for _ in range(n)])
    if kind in (pa.string(), pa.large_string(), pa.string_view()):
        words = _WORDS if dice.random() < odd * 10 else _WORDS[:2]
        return pa.array([dice.choice(words) for _ in range(n)], kind)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return pa.array([value() for _ in range(n)], from_pandas=False).cast(kind, safe=False)
    return pa.array([dice.choice(_INTS) for _ in range(n)]).cast(kind)


def _labels(n: int, dice: random.Random) -> pa.Array:
    if dice.random() < 0.1:
        return _array(_any_type(dice), n, dice, 0.01)
    return pa.array(
        [dice.choice([-1, 1]) for _ in range(n)], dice.choice([pa.int64(), pa.float64()])
    )


def _wide_table(n: int, dice: random.Random, is_odd: bool) -> pa.Table:
    columns = {"label": _labels(n, dice) if is_odd else pa.array([(-1) ** k for k in range(n)])}
    fixed = {"a": pa.float64(), "b": pa.string(), "c": pa.dictionary(pa.int32(), pa.string())}
    for name, kind in {**fixed, "d": pa.bool_(), "e": pa.float32()}.items():
        if is_odd and dice.random() < 0.4:
            with contextlib.suppress(pa.ArrowException, TypeError, OverflowError, ValueError):
                columns[name] = _array(_any_type(dice), n, dice, dice.choice([0, 0.01, 0.1]))
        if name not in columns:
            columns[name] = _array(kind, n, dice, 0.0)
    return pa.table(columns)


def _sparse_table(n: int, dice: random.Random, is_odd: bool) -> pa.Table:
    """Return lists of ids and values, some of other lengths, with nulls, or of odd types."""
    rows = [sorted(dice.sample(range(50), dice.randrange(6))) for _ in range(n)]
    values: list[Any] = [[round(dice.gauss(0, 1), 3) for _ in row] for row in rows]
    ids: list[Any] = list(rows)
    for _ in range(dice.choice([0, 0, 1, 3]) if is_odd else 0):
        row, part = dice.randrange(n), dice.choice([ids, values])
        part[row] = dice.choice([None, [], [None], [-1], [2**62, 1], [1, 1, 1], [0] * 3000])
    kind_of_ids = dice.choice([pa.int32(), pa.int64(), pa.uint64(), pa.int8()]) if is_odd else None
    listed = dice.choice([pa.list_, pa.large_list, pa.list_view]) if is_odd else pa.list_
    columns = {"label": _labels(n, dice) if is_odd else pa.array([(-1.0) ** k for k in range(n)])}
    try:
        columns["indices"] = pa.array(ids, listed(kind_of_ids or pa.int64()))
    except (pa.ArrowException, OverflowError):
        columns["indices"] = pa.array(ids, pa.list_(pa.int64()))
    columns["values"] = pa.array(values, listed(pa.float64()))
    return pa.table(columns)


def _table(dice: random.Random, layout: str, is_odd: bool) -> pa.Table:
    n = dice.choice([1, 7, 60, 60, 200]) if is_odd else 60
    return (_wide_table if layout == "wide" else _sparse_table)(n, dice, is_odd)


def _feather(dice: random.Random, layout: str) -> tuple[bytearray, str]:
    damage = dice.choice(["types", "buffers", "buffers", "bytes", "bytes"])
    is_odd = damage == "types" or (damage == "buffers" and dice.random() < 0.5)
    table = _table(dice, layout, is_odd)
    codec = None if damage == "buffers" else dice.choice([None, "lz4", "zstd"])
    file = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=codec, unify_dictionaries=True)
    with pa.ipc.new_file(file, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=dice.choice([20, 1000]))
    data = bytearray(file.getvalue())
    if damage == "buffers":
        _entries(data, dice)
    elif damage == "bytes":
        damage = _bytes(data, dice)
    return data, damage


def _entries(data: bytearray, dice: random.Random) -> None:
    """Damage entries of buffers of an uncompressed file: offsets, codes, values, nulls."""
    kept = pa.py_buffer(bytes(data))
    reader = pa.ipc.open_file(kept)
    columns = reader.get_batch(dice.randrange(reader.num_record_batches)).columns
    column = dice.choice(columns)
    parts = column.buffers()
    if pa.types.is_dictionary(column.type) and dice.random() < 0.3:
        parts = column.dictionary.buffers()
    some = [part for part in parts if part is not None and part.size]
    if not some:
        return
    buffer = dice.choice(some)
    begin, width = buffer.address - kept.address, dice.choice([1, 4, 4, 4, 8])
    n = max(1, buffer.size // width)

    def change(place: int, new: int) -> None:
        at = begin + width * place
        data[at : at + width] = (new % (1 << 8 * width)).to_bytes(width, "little")

    def entry(place: int) -> int:
        return int.from_bytes(data[begin + width * place :][:width], "little")

    how = dice.choice(["one", "one", "last", "shift", "swap", "same"])
    at, new = dice.randrange(n), dice.choice([*_NUMBERS, -100, 50, 5000, 2 * 10**9])
    if how == "one":
        change(at, new)
    elif how == "last":
        change(n - 1, entry(n - 1) + new)
    elif how == "swap":
        here, other = entry(at), dice.randrange(n)
        change(at, entry(other))
        change(other, here)
    else:
        for k in range(at if how == "same" else 0, n):
            change(k, new if how == "same" else entry(k) + new)


def _parquet(dice: random.Random, layout: str) -> tuple[bytearray, str]:
    damage = dice.choice(["types", "text", "bytes", "bytes", "bytes"])
    table = _table(dice, layout, damage == "types")
    if damage == "text":  # words that are not UTF-8
        words = [
            dice.choice([b"a", b"\xff", b"\xc3", b"ab\xed\xa0\x80"]) for _ in range(len(table))
        ]
        column = pa.Array.from_buffers(pa.string(), len(words), pa.array(words).buffers())
        name = dice.choice(["b", "label", "f"])
        table = table.drop_columns([name] if name in table.schema.names else [])
        table = table.append_column(name, column)
    how: dict[str, Any] = {
        "compression": dice.choice(["none", "snappy", "zstd", "gzip"]),
        "use_dictionary": dice.random() < 0.5, "row_group_size": dice.choice([20, 1000]),
        "data_page_version": dice.choice(["1.0", "2.0"]), "data_page_size": dice.choice([50, None]),
        "store_schema": dice.random() < 0.7, "write_page_checksum": dice.random() < 0.2,
    }  # fmt: skip
    file = io.BytesIO()
    try:
        pq.write_table(table, file, **how)
    except pa.ArrowException:  # a type that Parquet does not have
        file = io.BytesIO()
        pq.write_table(_table(dice, layout, False), file, **how)
    data = bytearray(file.getvalue())
    if damage == "bytes":
        damage = _bytes(data, dice)
    return data, damage


# ------------------------------------------------------------------------------------- arrays

_HEADERS = [
    (b"<f8", b"|O"), (b"<f8", b"<c16"), (b"<f8", b"<M8[s]"), (b"<f8", b"|S8"), (b"<f8", b"|V8"),
    (b"<f8", b"<f2"), (b"<i4", b"<i8"), (b"<i8", b">i8"), (b"<i8", b"<U2"), (b"<i4", b"<u8"),
    (b"False", b"True"), (b",)", b",1)"), (b"(", b"(-"), (b"(", b"(9"), (b"(", b"(99999999999999"),
    (b",)", b"0000,)"), (b"(", b"(" * 500), (b"shape", b"shap"), (b"'", b'"'), (b":", b""),
    (b"{", b"{'x': [],"), (b"}", b""), (b"<f8'", b"<f8', 'x': 1"), (b"\x01\x00", b"\x03\x00"),
    (b"\x01\x00", b"\x02\x00"), (b"\x01\x00", b"\x09\x00"), (b"NUMPY", b"numpy"), (b" ", b"#"),
    (b"(", b"(True or "), (b"<f8", b"<f16"), (b"<f8", b"f8,f8"), (b"<f8", b""),
]  # fmt: skip


def _npy(array: Any, dice: random.Random, is_damaged: bool) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    data = file.getvalue()
    if not is_damaged:
        return data
    if dice.random() < 0.3:
        raw = bytearray(data)
        _bytes(raw, dice)
        return bytes(raw)
    old, new = dice.choice(_HEADERS)
    if dice.random() < 0.5:  # the header keeps its length
        head = data[:128].replace(old, new, 1)[:127].ljust(127) + b"\n"
        return head + data[128:]
    return data.replace(old, new, 1)


def _arrays(dice: random.Random) -> dict[str, Any]:
    n = 60
    lengths = [dice.randrange(6) for _ in range(n)]
    nnz = sum(lengths)
    return {
        "indptr": np.cumsum([0, *lengths]).astype(dice.choice([np.int32, np.int64])),
        "indices": np.array([dice.randrange(40) for _ in range(nnz)], np.int32),
        "data": np.array([dice.gauss(0, 1) for _ in range(nnz)]),
        "shape": np.array([n, 40]), "format": np.array(b"csr"),
        "y": np.array([(-1) ** k for k in range(n)], np.int64),
    }  # fmt: skip


def _strange(arrays: dict[str, Any], dice: random.Random) -> None:
    """Replace an array of a matrix by one that does not fit the others."""
    name = dice.choice([*arrays, *["indptr"] * (len(arrays) > 1)])
    old = arrays[name]
    kind = dice.choice(["entry", "entry", "shorter", "longer", "type", "shape", "none", "shift"])
    if kind == "none":
        del arrays[name]
    elif old.ndim == 0:
        arrays[name] = np.array(dice.choice([b"csc", b"coo", b"", "csr"]))
    elif kind in ("entry", "shift"):
        wide = old.astype(dice.choice([np.int64, np.int32, np.uint64, np.float64]))
        place = dice.randrange(len(wide)) if kind == "entry" else slice(None)
        with np.errstate(all="ignore"):
            new = np.array(dice.choice([-1, -(2**31), 10**6, 2**31 - 1, 2**40])).astype(wide.dtype)
            wide[place] = wide[place] + new
        arrays[name] = wide
    elif kind == "shorter":
        arrays[name] = old[: len(old) - dice.choice([1, 2, len(old)])]
    elif kind == "longer":
        arrays[name] = np.concatenate([old, old[-dice.choice([1, 5]) :]])
    elif kind == "type":
        types = ["?", "i1", "u8", "f2", "f4", "c16", "S3", "U3", "M8[s]", "f16"]
        with np.errstate(all="ignore"), contextlib.suppress(ValueError, TypeError):
            arrays[name] = old.astype(dice.choice(types))
    else:
        arrays[name] = dice.choice([old[:, None], old[None], old[0], np.zeros((0,), old.dtype)])


def _pack(arrays: dict[str, Any], dice: random.Random, damaged: str) -> bytes:
    file = io.BytesIO()
    method = dice.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
    if damaged and dice.random() < 0.1:
        method = dice.choice([zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, array in arrays.items():
            archive.writestr(f"{name}.npy", _npy(array, dice, name == damaged))
    return file.getvalue()


def _npz(dice: random.Random, layout: str) -> tuple[bytearray, str]:
    arrays, damaged = _arrays(dice), ""
    damage = dice.choice(["arrays", "arrays", "header", "bytes"])
    if damage == "arrays":
        _strange(arrays, dice)
    elif damage == "header":
        damaged = dice.choice(list(arrays))
    data = bytearray(_pack(arrays, dice, damaged))
    if damage == "bytes":
        damage = _bytes(data, dice)
    return data, damage


def _beside(dice: random.Random, path: Path) -> str:
    """Write an npz file without labels and damaged labels beside it."""
    arrays = _arrays(dice)
    y = arrays.pop("y")
    path.write_bytes(_pack(arrays, dice, ""))
    damage, labels = dice.choice(["header", "arrays"]), {"y": y}
    if damage == "arrays":
        _strange(labels, dice)
    content = _npy(labels.get("y", np.zeros(0)), dice, damage == "header")
    path.with_suffix(".y.npy").write_bytes(content)
    return damage


# --------------------------------------------------------------------------------------- text

_TOKENS = [
    b"nan", b"inf", b"-inf", b"1e999", b"1e-999", b"9" * 400, b"-1", b"0", b"18446744073709551616",
    b"9223372036854775807", b"\0", b"\xff\xfe", b'"', b'""', b",,", b"|", b":", b"1:", b":1", b" ",
    b"|ns:", b"|n:nan a", b"'", b"#", b"\r", b"\n\n", b"\r\n", b"qid:1", b"x" * 5000, b"\t", b"1_0",
    b"\xef\xbb\xbf", b"0x1p3", b"1:1" * 900, b"label", b"a", b"-", b"+", b".", b"e5", b"1.", b"?",
    b"1 2:3 2:4 1:5", b"\n-1 1:1", b"\xc3", b"\x1f\x8b", b'a"b', b'"a\n', b"1,2,3,4,5",
]  # fmt: skip


def _text(dice: random.Random, kind: str) -> bytes:
    signs = [dice.choice(["-1", "1", "+1"]) for _ in range(60)]
    if kind == "csv":
        rows = [
            f"{s},{k * 0.5},x{k % 5},{dice.choice(['', 'u', '2'])}" for k, s in enumerate(signs)
        ]
        rows = ["label,a,b,c", *rows]
    elif kind == "vw":
        rows = [f"{s} 0.5 'tag{k} |ns:2 a:{k * 0.5} b |o x{k % 5}" for k, s in enumerate(signs)]
    else:
        rows = [f"{s} 1:{k % 7} {k % 9 + 3}:0.5 40:1e-3" for k, s in enumerate(signs)]
    return ("\n".join(rows) + "\n").encode()


def _damaged_text(dice: random.Random, path: Path, kind: str) -> str:
    data = bytearray(_text(dice, kind))
    damage = dice.choice(["words", "words", "bytes"])
    if damage == "bytes":
        damage = _bytes(data, dice)
    else:
        for _ in range(dice.choice([1, 1, 1, 3, 20])):
            at = dice.randrange(len(data))
            data[at : at + dice.choice([0, 0, 1, 3])] = dice.choice(_TOKENS)
    path.write_bytes(data)
    if dice.random() < 0.15:  # compressed, and damaged once more
        ending = dice.choice(list(PACK))
        packed = bytearray(PACK[ending](bytes(data), dice))
        damage = "packed " + (_bytes(packed, dice) if dice.random() < 0.7 else damage)
        path.with_name(path.name + ending).write_bytes(packed)
        path.unlink()
    return damage


# -------------------------------------------------------------------------------------- cases

FORMATS = ("feather", "parquet", "npz", "npy", "csv", "vw", "svm")
USES = ("split", "train", "predict", "validate", "test")


def _good(layout: str, folder: Path) -> dict[str, Path]:
    """Write a table, or sparse rows, and a model of it."""
    dice, files = random.Random(layout), {"good": folder / f"{layout}.parquet"}
    if layout in ("csv", "vw", "svm"):
        files["good"] = folder / f"{layout}.{layout}"
        files["good"].write_bytes(_text(dice, layout))
    elif layout == "npz":
        files["good"] = folder / "npz.npz"
        files["good"].write_bytes(_pack(_arrays(dice), dice, ""))
    else:
        pq.write_table(_table(dice, layout, False), files["good"])
    files["model"] = folder / f"{layout}.model"
    sbm.train(files["good"], files["model"], {"max_passes": 2, "threads": 1})
    return files


def _write(dice: random.Random, number: int, folder: Path) -> None:
    """Write the damaged input of a case; print its layout and the kind of damage."""
    kind = FORMATS[number % len(FORMATS)]
    ending = "npz" if kind == "npy" else kind
    path, layout = folder / f"input.{ending}", kind
    if kind in ("feather", "parquet"):
        layout = dice.choice(["wide", "sparse"])
        data, damage = (_feather if kind == "feather" else _parquet)(dice, layout)
        path.write_bytes(data)
    elif kind == "npz":
        data, damage = _npz(dice, kind)
        path.write_bytes(data)
    elif kind == "npy":
        layout, damage = "npz", _beside(dice, path)
    else:
        damage = _damaged_text(dice, path, kind)
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
            said += b"\nHANG"
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
    for layout in ("wide", "sparse", "npz", "csv", "vw", "svm"):
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
        code, said, _ = _forked(partial(_write, dice, number, case))  # pyarrow may crash here too
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
    if "Traceback" in said or ".py:" in said or "HANG" in said:
        wrong.append("not a sentence")
    if code == 1 and (not last.startswith("sbm: ") or len(last) > 900):
        wrong.append("no sentence")
    if peak > MEM:
        wrong.append(f"a peak of {peak / 1e6:.0f} MB")
    wrong = [f"{', '.join(wrong)} ({use} {path.name}, {damage}): {last[:300]}"] if wrong else []
    groups = [("formats", kind), ("uses", use), ("damage", damage), ("exit codes", str(code))]
    return Ended(groups, peak, wrong)


def run(
    cases: int, seed: int, folder: Path, tell: Callable[[str], None], only: int | None = None
) -> Tally:
    """Read damaged inputs; see `scripts.torture.kills.run`."""
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
