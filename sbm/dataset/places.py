"""Where the store of a training is, and where its model goes."""

from __future__ import annotations

from pathlib import Path

from sbm.errors import StoreError, require_path
from sbm.models.model import check_output
from sbm.store.blocks import BlockStore

__all__ = ["as_path", "find_store", "place_of"]


def find_store(store: str | Path | None) -> Path:
    """Return the given store, or the only one in the current folder.

    Raises
    ------
    StoreError
        The current folder has no store, or several.
    """
    if store is not None:
        require_path(store, "the store", "expected its path; sbm.split writes one")
        return Path(store)
    found = sorted(p for p in Path().glob("*.sbm") if p.is_dir())
    if not found:
        raise StoreError("no *.sbm store in this folder; create one with sbm split, or name it")
    if len(found) > 1:
        names = ", ".join(map(str, found))
        raise StoreError(f"several stores in this folder ({names}); name the one to use")
    return found[0]


def as_path(model: str | Path) -> Path:
    """Return a model's name as a path.

    Raises
    ------
    SettingsError
        It is not a path, for example settings passed by position.
    """
    keyword = "pass settings by keyword: settings=sbm.Settings(C=0.1)"
    require_path(model, "the model", f"a path is expected; {keyword}")
    return Path(model)


def place_of(model: str | Path | None, store: BlockStore | None) -> Path:
    """Return the path to write a model to. Default: the store's name, in the current folder.

    Raises
    ------
    StoreError
        The path is not writable, or holds something else.
    SettingsError
        It is not a path.
    """
    if model is None:
        assert store is not None
        model = f"{store.folder.resolve().stem}.model"
    path = as_path(model)
    check_output(path)
    return path
