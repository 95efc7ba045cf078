"""Export: write a model in the format of another tool, optionally without its smallest weights."""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.dataset.batches import require_input
from sbm.engine.progress import Progress
from sbm.errors import SettingsError, StoreError, require_ending, require_path
from sbm.inputs.urls import remote_terms
from sbm.models.liblinear import load_model, write_model
from sbm.models.model import Model, has_runs, parts, row_texts
from sbm.models.weights import SparseWeights
from sbm.programs.predict import is_same_file, predict
from sbm.settings import refuse_unknown
from sbm.store import container
from sbm.store.files import beside, open_atomically, reading, require_place, write_atomically


def export(
    model: str | Path | Model,
    output: str | Path | None = None,
    *,
    format: str | None = None,  # noqa: A002  the option's name
    prune: float | None = None,
    test: str | Path | None = None,
    remote_timeout: float | str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write a model in the format of another tool.

    Parameters
    ----------
    model : str, Path or Model
        A model of `sbm.train`, or a model file of LIBLINEAR.
    output : str or Path, optional
        Default: the model's name with the ending of the format.
    format : {"liblinear", "npz", "json", "sbm"}, optional
        See `FORMATS`. Default: as the ending of `output` says; that of LIBLINEAR for ``.model``,
        ``.txt`` and no ending.
    prune : float, optional
        Drop weights with at most this magnitude, except those of the bias.
    test : str or Path, optional
        Text or store to predict with and without the small weights.
    remote_timeout : float or str, optional
        Maximum time to wait for data from the server of a remote `test`. Default: 60s.
    progress : Progress, optional
        Receives the bytes read of `test`.

    Returns
    -------
    dict
        ``model`` (None for one in memory), ``output``, ``format``, ``bytes``, ``features`` and
        ``weights`` written. With `prune` also ``pruned`` and ``dropped``. With `test` also
        ``test``, ``measure`` (``accuracy``, or ``mse`` for regression), ``before``, ``after`` and
        ``change``, which are None if the test has no rows.

    Raises
    ------
    DataError
        The test is invalid.
    SettingsError
        Options that cannot be combined.
    StoreError
        The model cannot be read, the format cannot hold it, or the output cannot be written.
    """
    if not isinstance(model, Model):
        require_path(model, "the model")
    for file, what in ((output, "the output"), (test, "the test")):
        if file is not None:
            require_path(file, what)
    format = _format_of(output) if format is None else format  # noqa: A001
    refuse_unknown("format", format, FORMATS)
    write, ending = FORMATS[format]
    progress = Progress.of(progress)
    with remote_terms(remote_timeout, progress.stage):
        _check_options(prune, test)
    path = None if isinstance(model, Model) else Path(model)
    output = _name_output(path, output, ending)
    _check_output(output, format, [path, test])
    model = load_model(model)
    name = "the model" if path is None else str(path)
    _check_finite(model, name)
    report: dict[str, Any] = {"model": None if path is None else str(path)}
    report |= {"output": str(output), "format": format}
    whole = model
    if prune is not None:
        model, dropped = _prune(whole, float(prune))
        report |= {"pruned": float(prune), "dropped": dropped}
    if test is not None:
        report |= _compare(whole, model, test, remote_timeout, progress)
    if format != "sbm":
        model = model.without_threshold()
    report["bytes"] = write(model, output, name)
    report |= {"features": len(model.ids), "weights": model.n_nonzero}
    return report


def _check_options(prune: float | None, test: str | Path | None) -> None:
    """Reject invalid options before any work."""
    if prune is not None and not (math.isfinite(prune) and prune >= 0):
        raise SettingsError(f"prune is {prune}; it must be 0 or a positive number")
    if test is None:
        return
    if prune is None:
        raise SettingsError(
            "test shows the effect of pruning, but nothing is pruned; add --prune or omit --test"
        )
    if str(test) == "-":
        raise SettingsError("test is -, but it is read twice; give a file or a store")
    require_input(test)


def _format_of(output: str | Path | None) -> str:
    """Return the format that the ending of an output says."""
    name = "" if output is None else str(output).lower()
    for key, (_, ending) in FORMATS.items():
        if name.endswith(ending):
            return key
    otherwise = "use .model or .txt for LIBLINEAR, .npz, .json or .sbm.model, or give --format"
    require_ending(name, (".model", ".txt"), otherwise)
    return "liblinear"


def _name_output(path: Path | None, output: str | Path | None, ending: str) -> Path:
    if output is not None:
        return Path(output)
    if path is None:
        raise SettingsError("a model in memory has no file name; give the name of the output")
    return beside(path, ending, without=".model")


def _check_output(output: Path, format_name: str, inputs: list[Any]) -> None:
    """Reject an output that cannot be written or that is not an older export."""
    for path in inputs:
        if path is not None and is_same_file(path, output):
            raise SettingsError(
                f"the output {output} would replace an input; choose another name with -o"
            )
    require_place(output)
    if output.exists() and not _holds(output, format_name):
        raise StoreError(
            f"{output} exists and is not a {format_name} model; choose another name with -o"
        )


# Offset and bytes that identify a format; an npz file is a zip archive whose first file is ids.npy.
_JSON_BEGINNING = '{"format": "sbm model"'
_BEGINNINGS = {
    "liblinear": (0, b"solver_type "),
    "npz": (30, b"ids.npy"),
    "json": (0, _JSON_BEGINNING.encode()),
}


def _holds(path: Path, format_name: str) -> bool:
    if not path.is_file():
        return False
    if format_name == "sbm":
        return container.is_container(path)
    offset, beginning = _BEGINNINGS[format_name]
    with reading(path), open(path, "rb") as file:
        return file.read(offset + len(beginning))[offset:] == beginning


def _check_finite(model: Model, name: str) -> None:
    """Raise `StoreError` if a weight is not finite, which other tools cannot read."""
    is_sparse = isinstance(model.W, SparseWeights)
    is_finite = is_sparse and all(np.isfinite(values).all() for _, values in model.W.windows())
    for part in () if is_finite else parts(*model.W.shape):
        broken = ~np.isfinite(model.W[part]).all(axis=1)
        if broken.any():
            row = part.start + int(np.argmax(broken))
            weight = next(w for w in model.W[[row]][0].tolist() if not math.isfinite(w))
            raise StoreError(
                f"{name} has weight {weight} for feature id {model.ids[row]}; scale the values "
                "down and train again"
            )
    if not (np.isfinite(model.bias_weights).all() and math.isfinite(model.bias)):
        raise StoreError(f"{name} has a bias that is not finite; train again")


# ------------------------------------------------------------------------------------- pruning


def _prune(model: Model, threshold: float) -> tuple[Model, int]:
    """Return a model without small weights, and the number of weights dropped.

    If any were dropped, the certificate is no longer valid and is removed.
    """
    dropped = 0
    if isinstance(model.W, SparseWeights):
        keep = np.abs(model.W.entries[1]) > threshold
        W: Any = model.W.where(keep)
        dropped = len(keep) - int(np.count_nonzero(keep))
    else:
        W = np.array(model.W)
        for part in parts(*W.shape):
            some = W[part]
            small = (np.abs(some) <= threshold) & (some != 0)
            some[small] = 0
            dropped += int(np.count_nonzero(small))
    if not dropped:
        return model, 0
    info = {k: v for k, v in model.info.items() if k not in ("certificate", "converged")}
    info["pruned"] = threshold
    return replace(model, W=W, info=info).compact(), dropped


def _compare(
    whole: Model, pruned: Model, test: str | Path, timeout: float | str | None, progress: Progress
) -> dict[str, Any]:
    """Predict the test with both models and compare."""
    measure = "mse" if whole.is_regression else "accuracy"
    before, after = (
        predict(m, test, labels=True, remote_timeout=timeout, progress=progress)[measure]
        for m in (whole, pruned)
    )
    change = None if before is None else after - before
    return {
        "test": str(test), "measure": measure, "before": before, "after": after, "change": change,
    }  # fmt: skip


# ------------------------------------------------------------------------------------- formats


def _write_npz(model: Model, path: Path, name: str) -> int:
    """Write a compressed archive of NumPy arrays; loads without pickle.

    Weights that are sparse in memory are written as the arrays of a `scipy.sparse.csr_matrix`.
    """
    weights = {"W": model.W}
    if isinstance(model.W, SparseWeights):
        columns, values = model.W.entries
        weights = {"W_data": values, "W_indices": columns, "W_indptr": model.W.ends}
        weights["W_shape"] = np.array(model.W.shape)
    with open_atomically(path) as file:
        np.savez_compressed(
            file,
            ids=model.ids,
            **weights,
            labels=np.asarray(model.label_names or np.asarray(model.labels, np.float64)),
            names=np.array(list(model.names or [])),
            bias=np.float64(model.bias),
            bias_weights=model.bias_weights,
            loss=np.str_(model.info.get("loss", "")),
        )
    return path.stat().st_size


def _write_json(model: Model, path: Path, name: str) -> int:
    return write_atomically(path, (text.encode() for text in _json_text(model)))


def _json_text(model: Model) -> Iterator[str]:
    """Yield a JSON object in pieces, with one line per feature."""
    head = {
        "format": "sbm model",
        "loss": model.info.get("loss"),
        "labels": model.label_names or model.labels,
        "bias": model.bias,
        "bias_weights": model.bias_weights.tolist(),
        "info": model.info,
        **({} if model.names is None else {"names": _names_by_id(model)}),
    }
    yield json.dumps(head)[:-1] + ', "weights": {'
    before = "\n"
    for part in parts(*model.W.shape):
        W: npt.NDArray[np.float64] = model.W[part]
        some: Iterable[Any]
        if W.shape[1] > 1 and has_runs(W):
            some = (f"[{text[:-2]}]" for text in row_texts(W, "0.0, ", _numbers))
        else:
            some = W[:, 0].tolist() if W.shape[1] == 1 else W.tolist()
        ids = model.ids[part].tolist()
        yield before + ",\n".join(f'"{i}": {w}' for i, w in zip(ids, some, strict=True))
        before = ",\n"
    yield "\n}}\n"


def _numbers(values: list[float]) -> list[str]:
    return [f"{value}, " for value in values]


def _names_by_id(model: Model) -> dict[str, str]:
    ids = model.ids.tolist()
    return {str(i): name for i, name in zip(ids, model.names or [], strict=True) if name}


# By format: the function that writes it, and the ending of its files.
FORMATS: dict[str, tuple[Callable[[Model, Path, str], int], str]] = {
    "liblinear": (write_model, ".liblinear.model"),
    "npz": (_write_npz, ".npz"),
    "json": (_write_json, ".json"),
    "sbm": (lambda model, path, name: model.save(path), ".sbm.model"),
}
