"""Names of stores and models in which ``{rank}`` stands for the number of the rank."""

from __future__ import annotations

from pathlib import Path

from sbm.distributed.comm import Comm
from sbm.errors import require_path

__all__ = ["RANK", "common_name", "own_name"]

RANK = "{rank}"


def own_name(name: str | Path, comm: Comm) -> Path:
    """Return the path of this rank: ``{rank}`` in the name is replaced by its number."""
    require_path(name, "the store", "a path is expected; make a store of arrays with sbm.split")
    return Path(str(name).replace(RANK, str(comm.rank)))


def common_name(store: str | Path, suffix: str) -> Path | None:
    """Return the name for the result of all shards: ``big.{rank}.sbm`` gives ``big.model``.

    None if the name does not contain ``{rank}``.
    """
    if RANK not in str(store):
        return None
    return Path(Path(store).stem.replace(RANK, "").rstrip(".-_") + suffix)
