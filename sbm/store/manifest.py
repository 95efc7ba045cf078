"""The manifest of a store: reading, checking and writing it.

A manifest may come from an untrusted source. Everything readers rely on is checked here once:
types, sums of counts and file names. Unknown fields are kept when a manifest is rewritten.
"""

from __future__ import annotations

import datetime
import json
import re
import sys
import zlib
from pathlib import Path
from typing import Any

from sbm.errors import StoreError
from sbm.store.files import open_own, read_error, write_atomically

__all__ = [
    "FORMAT", "MANIFEST", "MOST_NNZ_A_BYTE", "NONZERO_BYTES", "VERSION", "block_name",
    "checksum", "decode_record", "encode_record", "features_name", "index_name",
    "kept_generations", "names_of", "next_block", "origins", "parse", "read_manifest",
    "write_manifest",
]  # fmt: skip


def checksum(content: Any) -> int:
    """Return the CRC-32 of JSON content, independent of its layout."""
    return zlib.crc32(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def encode_record(name: str, content: dict[str, Any]) -> bytes:
    """Return a record (JSON with a checksum) as bytes."""
    return json.dumps({"crc32": checksum(content), name: content}, indent=1).encode()


def decode_record(name: str, data: bytes) -> dict[str, Any]:
    """Decode and check a record.

    Raises
    ------
    ValueError
        If it is not a JSON object, has a duplicate key, or its checksum does not match.
    """
    outer = parse(data)
    try:
        content = outer[name]
        if set(outer) != {"crc32", name} or checksum(content) != outer["crc32"]:
            raise ValueError("checksum mismatch")
    except (KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(str(error)) from error
    if not isinstance(content, dict):
        raise ValueError("not an object")
    return content


def parse(data: bytes) -> Any:
    """Decode untrusted JSON.

    Raises
    ------
    ValueError
        If it is not JSON, an object has a duplicate key, or it is nested too deeply.
    """
    try:
        return json.loads(data, object_pairs_hook=_no_key_twice)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("duplicate key")
    return found


FORMAT = "sbm-store"
VERSION = 2
MANIFEST = "manifest.json"
# Bytes of a nonzero in memory, including its index.
NONZERO_BYTES = {"ones": 4, "float32": 8, "float64": 12}
# Bounds on the content of a block, so that a small forged file cannot claim a large amount of
# memory: a chunk of 65,536 rows takes 64 bytes, and 4 bytes of zstd stand for 128 kB.
MOST_ROWS_A_BYTE = 1 << 10
MOST_NNZ_A_BYTE = 1 << 15
_NAMES = {
    "file": re.compile(r"block-[0-9]{6,9}\.sbb"),
    "features": re.compile(r"features-[0-9]{4,9}\.sba"),
    "index": re.compile(r"index-[0-9]{4,9}\.sba"),
}


def block_name(block: int) -> str:
    """Return the file name of a block."""
    return f"block-{block:06d}.sbb"


def features_name(generation: int) -> str:
    """Return the file name of the feature ids that a generation added."""
    return f"features-{generation:04d}.sba"


def index_name(generation: int) -> str:
    """Return the file name of a generation's chunk index."""
    return f"index-{generation:04d}.sba"


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Write the manifest atomically, with a checksum."""
    write_atomically(folder / MANIFEST, [encode_record("manifest", manifest)])


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read and check the manifest of a store.

    Raises
    ------
    StoreError
        If the manifest is missing, damaged or has an unsupported version.
    """
    path = folder / MANIFEST
    try:
        with open_own(path) as file:
            data = file.read()
    except StoreError:
        raise
    except (FileNotFoundError, NotADirectoryError):
        what = f"is not a store (it has no {MANIFEST})" if folder.exists() else "does not exist"
        raise StoreError(f"{folder} {what}; create a store with sbm split") from None
    except OSError as error:
        raise read_error(path, error) from error
    try:
        manifest = decode_record("manifest", data)
    except ValueError:
        raise StoreError(f"{path} is damaged; split the data again") from None
    if manifest.get("format") != FORMAT:
        raise StoreError(f"{path} is not the manifest of an sbm store")
    version = manifest.get("version")
    if type(version) is not int or version != VERSION:
        raise StoreError(
            f"{folder} has store version {str(version)[:20]}, but this sbm reads version "
            f"{VERSION}; use the version of sbm that wrote it, or a newer one"
        )
    _check_names(manifest, folder)
    if not _is_sound(manifest):
        raise StoreError(f"{path} is inconsistent; split the data again")
    return manifest


def _check_names(manifest: dict[str, Any], folder: Path) -> None:
    """Reject file names that do not have the form of block, feature and index files."""
    for group, keys in (("blocks", ["file"]), ("generations", ["features", "index"])):
        entries = manifest.get(group)
        for entry in entries if isinstance(entries, list) else []:
            for key in keys:
                name = entry.get(key) if isinstance(entry, dict) else None
                if not isinstance(name, str) or not _NAMES[key].fullmatch(name):
                    raise StoreError(
                        f"{folder}: the manifest has the invalid file name {_short(name)}; split "
                        "the data again"
                    )


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


def _is_crc(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 32


def _are_numbers(values: Any) -> bool:
    """Whether this is a list of distinct finite numbers."""
    return (
        isinstance(values, list)
        and all(type(x) in (int, float) and abs(x) <= sys.float_info.max for x in values)
        and len(set(values)) == len(values)
    )


def _is_sound(manifest: dict[str, Any]) -> bool:
    """Whether all fields that readers rely on are present and consistent."""
    try:
        blocks, labels, classes = (manifest[k] for k in ("blocks", "labels", "class_values"))
        generations = manifest["generations"]
        expired = [e for g in generations if "expired" in g for e in g["expired"]["blocks"]]
        return (
            all(_is_count(manifest[key]) for key in ("rows", "nnz", "features"))
            and manifest["features"] < 1 << 31
            and manifest["value_type"] in NONZERO_BYTES
            and manifest["dtype"] in ("float32", "float64")
            and (classes is None or _are_numbers(classes))
            and (labels is None or _are_labels(labels))
            and all(_is_block(entry) for entry in [*blocks, *expired])
            and len({entry["file"] for entry in [*blocks, *expired]}) == len(blocks) + len(expired)
            and manifest["rows"] == sum(b["rows"] for b in blocks)
            and manifest["nnz"] == sum(b["nnz"] for b in blocks)
            and all(_is_generation(g) for g in generations)
        )
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError):
        return False


def _are_labels(labels: dict[str, Any]) -> bool:
    values, counts = labels["values"], labels["counts"]
    are_counts = isinstance(counts, list) and all(map(_is_count, counts))
    return _are_numbers(values) and are_counts and len(values) == len(counts) <= 1 << 16


def _is_block(entry: dict[str, Any]) -> bool:
    """Whether the entry of a block is complete and its counts are possible for its size."""
    return (
        all(_is_count(entry[key]) for key in ("rows", "nnz", "bytes"))
        and entry["rows"] <= entry["bytes"] * MOST_ROWS_A_BYTE
        and entry["nnz"] <= entry["bytes"] * MOST_NNZ_A_BYTE
        and isinstance(entry["file"], str)
        and _NAMES["file"].fullmatch(entry["file"]) is not None
        and _is_crc(entry["crc32"])
    )


def _is_generation(entry: dict[str, Any]) -> bool:
    """Whether the entry of a generation is valid; ``deal`` is missing for rows sorted by class."""
    sources, names = entry["sources"], entry["blocks"]
    added = datetime.datetime.fromisoformat(entry["added"])
    return (
        _is_crc(entry["features_crc32"])
        and _is_count(entry["rows"])
        and isinstance(names, list)
        and all(isinstance(n, str) and _NAMES["file"].fullmatch(n) is not None for n in names)
        and isinstance(sources, list)
        and all(_is_source(source) for source in sources)
        and added.tzinfo is not None
        and isinstance(entry["options"], dict)
        and isinstance(entry.get("left_out", {}), dict)
        and ("deal" not in entry or _is_deal(entry["deal"], entry))
        and ("expired" not in entry or isinstance(entry["expired"]["at"], str))
    )


def _is_source(source: dict[str, Any]) -> bool:
    counts = [source[key] for key in ("rows", "bytes", "skipped")]
    return isinstance(source["name"], str) and all(map(_is_count, counts))


def _is_deal(deal: dict[str, Any], generation: dict[str, Any]) -> bool:
    """Whether this is a possible deal of a generation's rows."""
    batches = deal["batches"]
    options = generation["options"]
    return (
        isinstance(batches, list)
        and all(map(_is_count, batches))
        and sum(batches) == generation["rows"]
        and _is_count(deal["first"])
        and _is_count(deal["blocks"])
        and 1 <= deal["blocks"] < 1_000_000
        and _is_count(options["seed"])
        and isinstance(options["shuffle"], bool)
    )


def origins(manifest: dict[str, Any]) -> dict[str, int]:
    """Return by file of each block, expired ones too, a checksum of all that determines its rows.

    It is the same for text that is trained on and for its store.
    """
    before, found = 0, {}
    gone = [g["expired"]["blocks"] for g in manifest["generations"] if "expired" in g]
    crcs = {b["file"]: b["crc32"] for blocks in [manifest["blocks"], *gone] for b in blocks}
    for generation in manifest["generations"]:
        sources = [{**source, "name": ""} for source in generation["sources"]]
        options = {k: v for k, v in generation["options"].items() if k != "level"}
        deal = generation.get("deal") or [crcs.get(file) for file in generation["blocks"]]
        before = checksum([before, manifest["dtype"], sources, options, deal])
        for number, file in enumerate(generation["blocks"]):
            found[file] = checksum([number, before])
    return found


def kept_generations(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of the generations that are not expired."""
    return [g for g in manifest["generations"] if "expired" not in g]


def names_of(manifest: dict[str, Any]) -> dict[str, Any] | None:
    """Return how feature names became ids, or None without names; see `InputOptions.record`."""
    given = (g["options"].get("names") for g in kept_generations(manifest))
    records = [record for record in given if isinstance(record, dict)]
    if not any("columns" in record for record in records):
        return records[0] if records else None
    columns = [name for record in records for name in record.get("columns", [])]
    return {**records[0], "columns": list(dict.fromkeys(map(str, columns)))}


def next_block(manifest: dict[str, Any]) -> int:
    """Return the number of the next block to write, above all numbers ever used."""
    names = {b["file"] for b in manifest["blocks"]}
    names.update(*(g["blocks"] for g in manifest["generations"]))
    return 1 + max((_block_number(name) for name in names), default=-1)


def _block_number(file: str) -> int:
    return int(file.removeprefix("block-").removesuffix(".sbb"))
