"""Data frames for `Model.predict`: their columns become feature ids as in the training."""

import warnings
from typing import Any

import numpy as np

from sbm.dataset.sources import naming_of_model, table_notes
from sbm.errors import DataError, SettingsError
from sbm.inputs.options import InputOptions
from sbm.models.model import FRAMES, Model

__all__ = ["Model", "matrix_of"]


def matrix_of(model: Model, frame: Any) -> Any:
    """Return the features of a data frame as a sparse matrix; column k is feature id k.

    Parameters
    ----------
    model : Model
        Trained on a table.
    frame : object with ``__arrow_c_stream__``
        A data frame of pandas, polars or pyarrow. Its column of labels, if any, is ignored.

    Raises
    ------
    DataError
        A value is invalid.
    SettingsError
        The model was trained on numeric ids.
    """
    from scipy.sparse import csr_matrix

    record = model.info.get("names")
    if not isinstance(record, dict):
        raise SettingsError(
            "the model was trained on feature ids, but the data has column names; pass a matrix "
            "whose column k is feature id k"
        )
    naming = naming_of_model(model)
    if naming is None or not naming.is_of_table:
        raise SettingsError(
            "the model was trained on Vowpal Wabbit's text; give sbm.predict such text"
        )
    options = InputOptions(labels=False).following(naming, "the model")
    from sbm.inputs.arrow import frame_source
    from sbm.inputs.formats import read_frame
    from sbm.inputs.matrices import read_rows

    source = frame_source(frame, "the table", options)
    ids = [np.empty(0, np.int64)]
    values, lengths = [np.empty(0)], [np.zeros(1, np.int64)]
    for piece in read_rows(read_frame, source, dtype="float64"):
        if piece.problems:
            raise DataError(piece.problems[0])
        rows = piece.parsed
        ids.append(rows.ids)
        values.append(
            np.ones(len(rows.ids)) if rows.values is None else np.asarray(rows.values, np.float64)
        )
        lengths.append(np.diff(rows.indptr))
    for warning in table_notes([source]):
        warnings.warn(warning, stacklevel=4)
    columns = np.concatenate(ids)
    shape = (sum(map(len, lengths)) - 1, int(columns.max(initial=0)) + 1)
    ends = np.cumsum(np.concatenate(lengths))
    return csr_matrix((np.concatenate(values), columns, ends), shape=shape)


FRAMES["matrix"] = matrix_of
