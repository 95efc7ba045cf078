"""The manifest of a store: reading, checking and writing it.

Unknown fields are kept when a manifest is rewritten.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

from sbm.errors import StoreError
from sbm.fields import (
    Table,
    find_invalid,
    is_count,
    is_crc,
    is_distinct_numbers,
    is_moment,
    is_text,
    is_weight,
)
from sbm.store.files import write_atomically
from sbm.store.records import checksum, encode_record, read_record
from sbm.units import as_typed, count

FORMAT = "sbm-store"
VERSION = 1
MANIFEST = "manifest.json"
# Bytes of a nonzero in memory, including its index.
NONZERO_BYTES = {"ones": 4, "float32": 8, "float64": 12}
# Bounds on the content of a block, so that a small forged file cannot claim a large amount of
# memory: a chunk of 65,536 rows takes 64 bytes, and 4 bytes of zstd stand for 128 kB.
MOST_ROWS_A_BYTE = 1 << 10
MOST_NNZ_A_BYTE = 1 << 15


_BLOCK_FILE = is_text(r"block-[0-9]{6,9}\.sbb")
_SHA256 = is_text(r"[0-9a-f]{64}|")

_BLOCK: Table = {
    "file": _BLOCK_FILE, "rows": is_count, "nnz": is_count, "bytes": is_count, "crc32": is_crc,
}  # fmt: skip
_SOURCE: Table = {
    "name": str, "bytes": is_count, "sha256": _SHA256, "rows": is_count, "skipped": is_count,
    "format?": str, "files?": is_count,
}  # fmt: skip
_GENERATION: Table = {
    "features": is_text(r"features-[0-9]{4,9}\.sba"), "index": is_text(r"index-[0-9]{4,9}\.sba"),
    "features_crc32": is_crc, "blocks": [_BLOCK_FILE], "rows": is_count, "sources": [_SOURCE],
    "options": {"seed": is_count, "shuffle": bool, "names?": (None, dict)},
    "deal?": {"first": is_count, "blocks": is_count, "batches": [is_count]}, "added": is_moment,
    "names_bytes?": is_count, "weights?": {"total": is_weight, "crc32": is_crc},
    "left_out?": {"*": is_count}, "expired?": {"at": str, "blocks": [_BLOCK]},
}  # fmt: skip
_FIELDS: Table = {
    "rows": is_count, "nnz": is_count, "features": is_count,
    "value_type": is_text("ones|float32|float64"), "dtype": is_text("float32|float64"),
    "labels": (None, {"values": is_distinct_numbers, "counts": [is_count], "names?": [str]}),
    "class_values": (None, is_distinct_numbers), "blocks": [_BLOCK], "generations": [_GENERATION],
}  # fmt: skip


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

    Raises `StoreError` if the manifest is missing, damaged or has an unsupported version.
    """
    path = folder / MANIFEST
    try:
        manifest = read_record(path, "manifest")
    except (FileNotFoundError, NotADirectoryError):
        what = f"is not a store (it has no {MANIFEST})" if folder.exists() else "does not exist"
        raise StoreError(f"{folder} {what}; create a store with sbm split") from None
    except ValueError:
        raise StoreError(f"{path} is damaged; split the data again") from None
    if manifest.get("format") != FORMAT:
        raise StoreError(f"{path} is not the manifest of a store; create one with sbm split")
    version = manifest.get("version")
    if type(version) is not int or version != VERSION:
        raise StoreError(
            f"{folder} has store version {str(version)[:20]}, but this sbm reads version "
            f"{VERSION}; use the version of sbm that wrote it, or a newer one"
        )
    reason = find_invalid(manifest, _FIELDS) or _find_contradiction(manifest)
    if reason:
        raise StoreError(f"{path} is invalid ({reason}); split the data again")
    return manifest


def _find_contradiction(manifest: dict[str, Any]) -> str:
    """Return which fields of a manifest contradict each other; empty if none do."""
    labels, blocks = manifest["labels"], manifest["blocks"]
    gone = [g["expired"]["blocks"] for g in manifest["generations"] if "expired" in g]
    every = [*blocks, *itertools.chain.from_iterable(gone)]
    if len({entry["file"] for entry in every}) < len(every):
        return "two blocks have the same file"
    if any(manifest[key] != sum(b[key] for b in blocks) for key in ("rows", "nnz")):
        return "counts of blocks do not add up"
    for entry in every:
        rows, nnz = entry["bytes"] * MOST_ROWS_A_BYTE, entry["bytes"] * MOST_NNZ_A_BYTE
        if entry["rows"] > rows or entry["nnz"] > nnz:
            return f"{entry['file']} is too small for its rows"
    if manifest["value_type"] not in ("ones", manifest["dtype"]):
        return "values of another type than its dtype"
    if labels is not None and not len(labels["values"]) == len(labels["counts"]) <= 1 << 16:
        return "counts of labels do not match"
    names = (labels or {}).get("names", [])
    if len(set(names)) < len(names) or (names and not {*labels["values"]} <= {*range(len(names))}):
        return "names of labels do not match"
    for generation in manifest["generations"]:
        deal = generation.get("deal")
        if deal and (
            sum(deal["batches"]) != generation["rows"] or not 1 <= deal["blocks"] < 1_000_000
        ):
            return "a deal does not match its rows"
    return "" if manifest["features"] < 1 << 31 else "too many features"


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


_READING = ("hash_bits", "label", "weight")  # options of names


def describe_origin(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return in short what `origins` depends on, as JSON, to say later what has changed."""
    every = manifest["generations"]
    options: dict[str, Any] = {"dtype": manifest["dtype"]}
    for generation in every[-1:]:  # the others were not read by the command that is running
        given = dict(generation["options"])
        names = given.pop("names", None) or {}
        options |= {key: given[key] for key in ("seed", "min_count") if key in given}
        options["no_shuffle"] = not given.get("shuffle", True)
        options |= {key: names.get(key) or None for key in _READING}
        for column in names.get("columns", []):
            options[f"column {column['name']}"] = column["kind"]
        options["blocks"] = len(generation["blocks"])
    return {
        "options": options,
        "generations": [
            [
                sum(source["rows"] for source in generation["sources"]),
                checksum([{**source, "name": ""} for source in generation["sources"]]),
                "expired" in generation,
            ]
            for generation in every
        ],
    }


def changes_of_origin(before: Any, now: dict[str, Any]) -> tuple[str, str]:
    """Return what has changed between two results of `describe_origin`, as words.

    Returns
    -------
    rows, options : str
        Changes of the rows or, if there are none, of the options. Both are empty if that is
        unknown: `before` may be missing, or of another version.
    """
    try:
        was, options = before["generations"], before["options"]
        texts = [(rows, crc) for rows, crc, _ in was]
        added = now["generations"][len(texts) :]
        if [(rows, crc) for rows, crc, _ in now["generations"]][: len(texts)] != texts:
            rows = [sum(g[0] for g in some) for some in (was, now["generations"])]
            what = f"{count(rows[0], 'row')}, now {rows[1]:,}"
            if rows[0] == rows[1]:
                what = f"{count(rows[0], 'row')} as before, with other content"
            return what, ""
        if added:
            n = sum(generation[0] for generation in added)
            return f"{count(n, 'row')} appended since", ""
        gone = sum(g[0] for g, old in zip(now["generations"], was, strict=True) if g[2] > old[2])
        if gone:
            return f"{count(gone, 'row')} expired since", ""
        others = [
            f"--{name.replace('_', '-')} {_as_typed(options.get(name))} (now {_as_typed(value)})"
            for name, value in now["options"].items()
            if options.get(name) != value
        ]
        return "", ", ".join(others)
    except (KeyError, TypeError, ValueError, IndexError):
        return "", ""


def _as_typed(value: Any) -> str:
    return "not given" if value is None else as_typed(value)


def kept_generations(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of the generations that are not expired."""
    return [g for g in manifest["generations"] if "expired" not in g]


def names_of(manifest: dict[str, Any]) -> dict[str, Any] | None:
    """Return how features are named, or None without names; see `names_record`.

    The last generation of a table knows the kinds of all columns.
    """
    given = [g["options"].get("names") for g in kept_generations(manifest)]
    records = [record for record in given if isinstance(record, dict)]
    return records[-1] if records else None


def next_block(manifest: dict[str, Any]) -> int:
    """Return the number of the next block to write, above all numbers ever used."""
    names = {b["file"] for b in manifest["blocks"]}
    names.update(*(g["blocks"] for g in manifest["generations"]))
    numbers = (int(name.removeprefix("block-").removesuffix(".sbb")) for name in names)
    return 1 + max(numbers, default=-1)
