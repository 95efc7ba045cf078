"""Shards: a store divided into several folders, one for each process that trains on it.

A shard ``big.2.sbm/`` has the manifest, ids and index of the whole store, but only its own block
files. ``shard.json`` records its number and the number of shards, which tells a shard from a
damaged store. Copying all block files into one folder restores the whole store.
"""

from pathlib import Path

from sbm.errors import StoreError
from sbm.fields import find_invalid, is_count
from sbm.plain import dataclass
from sbm.store.files import write_atomically
from sbm.store.records import encode_record, read_record

SHARD = "shard.json"


@dataclass(frozen=True)
class Shard:
    """Number of a shard and of all shards."""

    number: int  # counted from 0
    of: int  # number of shards

    def holds(self, block: int) -> bool:
        """Whether the block with this position in the manifest belongs to the shard."""
        return block % self.of == self.number

    def __str__(self) -> str:
        return f"shard {self.number} (of 0 to {self.of - 1})"


def shard_path(store: Path, number: int | str) -> Path:
    """Return the path of a shard: ``big.sbm`` -> ``big.2.sbm``."""
    ending = ".sbm" if store.suffix == ".sbm" else ""
    return store.with_name(f"{store.name.removesuffix(ending)}.{number}{ending}")


def write_shard(folder: Path, shard: Shard) -> None:
    """Write ``shard.json`` into a folder. Raises `StoreError` if the file cannot be written."""
    record = encode_record("shard", {"shard": shard.number, "of": shard.of})
    write_atomically(folder / SHARD, [record])


def read_shard(folder: Path) -> Shard | None:
    """Return the shard that a folder holds, or None if it holds a whole store.

    Raises `StoreError` if ``shard.json`` cannot be read.
    """
    path = folder / SHARD
    try:
        record = read_record(path, "shard")
        reason = find_invalid(record, {"shard": is_count, "of": is_count})
    except FileNotFoundError:
        return None
    except ValueError as error:
        record, reason = {}, str(error)
    if not reason and record["shard"] < record["of"]:
        return Shard(record["shard"], record["of"])
    raise StoreError(
        f"{path} is damaged ({reason or 'invalid number'}); copy it again or split the data again"
    )
