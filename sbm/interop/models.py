"""Reading a model, whichever tool wrote it."""

from pathlib import Path

from sbm.errors import StoreError
from sbm.store import arrays as container
from sbm.store.model import Model

__all__ = ["load_model"]


def load_model(model: str | Path | Model) -> Model:
    """Read a model of `sbm train` or the text of LIBLINEAR, known by its first line.

    Parameters
    ----------
    model : str, Path or Model

    Returns
    -------
    Model
        Without features whose weights are all 0.

    Raises
    ------
    StoreError
        Neither, or damaged.
    """
    if isinstance(model, Model):
        return model.compact()
    path = Path(model)
    if _is_liblinear(path):
        from sbm.interop.liblinear import read_model

        return read_model(path)
    if path.suffix in (".npz", ".json") and path.is_file() and not container.is_container(path):
        raise StoreError(
            f"{path} is no model to read; exports as npz and json are one way, for other tools, "
            "so give the model that was exported"
        )
    return Model.load(path).compact()


def _is_liblinear(path: Path) -> bool:
    """Whether a file begins like the text of LIBLINEAR; pipes are not asked, they are read once."""
    try:
        if not path.is_file():
            return False
        with open(path, "rb") as file:
            return file.read(12).split() == [b"solver_type"]
    except OSError:
        return False
