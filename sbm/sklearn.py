"""Estimators for scikit-learn: `sbm train` behind `fit`, `sbm stream` behind `partial_fit`.

`fit` takes matrices, sparse or dense, and paths of a store, of LIBSVM text or of a table. Data that
is not in a store is written to a temporary one in ``TMPDIR``, which is removed again. After `fit`
of a path, column k of the estimator is feature id k, or k + 1 if the text has no feature id 0;
`sklearn.datasets.load_svmlight_file` numbers columns in the same way. After `fit` of a table,
`predict` takes data frames with its columns.

Differences from scikit-learn:

- The intercept is the weight of an extra feature of value `intercept_scaling`, regularised like the
  others, as in `sklearn.svm.LinearSVC`, unless that value is infinite.
- Training ends at a certified gap, not at an exact optimum. Another order of the rows, or a sample
  weight of 2 instead of a repeated row, gives coefficients that differ within `tol`.
- `partial_fit` after `fit` starts over, with a warning, because `fit` does not keep the dual
  variables.
- `class_weight` multiplies the cost of the rows of a class. In one-vs-rest it applies only to the
  problem in which they are the positive rows, as in `sklearn.svm.LinearSVC`.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np
import numpy.typing as npt
import scipy.sparse

from sbm.dataset.fill import read_rows
from sbm.dataset.options import ReadKeywords, ReadOptions
from sbm.engine.progress import Progress
from sbm.errors import DataError, MemoryPlanError, SettingsError
from sbm.keywords import with_keywords
from sbm.models.fitted import coefficients
from sbm.models.model import Model
from sbm.names import Names
from sbm.programs.streaming.incremental import Incremental
from sbm.programs.streaming.learner import target_type
from sbm.programs.train import train
from sbm.rows import Rows, require_matrix
from sbm.settings import Settings, match_weights
from sbm.store.blocks import MANIFEST, BlockStore, kept_generations
from sbm.store.files import temporary_folder
from sbm.units import count, format_size, list_some

try:
    from joblib import effective_n_jobs
    from sklearn.base import BaseEstimator, ClassifierMixin, OutlierMixin, RegressorMixin
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.utils import check_random_state
    from sklearn.utils.metaestimators import available_if
    from sklearn.utils.multiclass import (
        _check_partial_fit_first_call,
        check_classification_targets,
    )
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        "sbm.sklearn needs scikit-learn 1.6 or newer; run: pip install 'scikit-learn>=1.6'"
    ) from error

__all__ = ["SBMClassifier", "SBMOneClass", "SBMRegressor"]

Floats = npt.NDArray[np.float64]

_TYPES = [np.float64, np.float32]
_DTYPES = ("auto", "float32", "float64")
_AT_A_TIME = 1 << 20  # values checked or written at a time

# Parameters of estimators that are settings, by name; others need code.
_NAMES = {
    "loss": "loss", "C": "C", "nu": "nu", "penalty": "penalty", "l1_ratio": "l1_ratio",
    "scale": "scale", "mem": "mem", "cache_frac": "cache_frac", "rounds": "rounds",
    "solver": "solver", "tol": "tol",
    "max_iter": "max_passes", "probability": "calibrate",
}  # fmt: skip
# The same the other way round, for messages.
_KEYWORDS = {setting: name for name, setting in _NAMES.items()} | {
    "calibrate": "probability=True", "intercept": "intercept_scaling=inf",
    "bias": "intercept_scaling", "validate": "validation_fraction", "threads": "n_jobs",
    "seed": "random_state", "label": "y", "weight": "sample_weight", "weights": "sample_weight",
}  # fmt: skip
_OF_PASSES = ("tol", "max_iter", "solver")  # not used by partial_fit


class _Linear(BaseEstimator):
    """Base of the estimators: training on rows or files, and the fitted attributes."""

    _learner: Incremental | None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _settings(self, without: tuple[str, ...] = (), **more: Any) -> Settings:
        """Return the parameters as settings, combined with `more`."""
        params = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in self.get_params(deep=False).items()
        }
        chosen = {_NAMES[k]: v for k, v in params.items() if k in _NAMES and k not in without}
        if params.get("penalty") != "elasticnet":
            chosen.pop("l1_ratio", None)  # not used, as in SGDClassifier
        if "epsilon" in params and "insensitive" in str(chosen["loss"]):
            chosen["epsilon"] = params["epsilon"]
        if params.get("early_stopping") and "max_iter" not in without:
            chosen["validate"] = float(params["validation_fraction"])
        if params.get("fit_intercept"):
            scaling = params["intercept_scaling"]
            if not isinstance(scaling, Real) or not float(scaling) > 0:
                raise SettingsError(
                    f"intercept_scaling is {scaling!r}; it must be a number above 0. "
                    "Use fit_intercept=False to fit no intercept"
                )
            is_free = math.isinf(float(scaling))
            chosen |= {"intercept": True} if is_free else {"bias": float(scaling)}
        chosen["seed"] = int(check_random_state(self.random_state).randint(1 << 31))
        chosen["threads"] = effective_n_jobs(self.n_jobs)
        return Settings.from_dict({**chosen, **more})

    # ----------------------------------------------------------------------------- training

    def _fit(
        self, X: Any, y: Any, sample_weight: Any, reading: ReadKeywords, **settings: Any
    ) -> Model:
        """Train on a path, or on rows with codes or targets; return the model.

        `reading` says how a path is read.
        """
        chosen = self._settings(**settings)
        if isinstance(sample_weight, str):
            reading, sample_weight = {**reading, "weight": sample_weight}, None
        with (
            temporary_folder() as folder,
            self._rows_for(X, y, folder, chosen, reading) as store,
        ):
            self._first_id = 0
            if _is_path(X):
                ids = store.read_feature_ids()
                self._first_id = int(_is_numbered_text(store) and ids.min(initial=1) > 0)
                self.n_features_in_ = int(ids.max(initial=-1)) + 1 - self._first_id
                self.__dict__.pop("feature_names_in_", None)  # of an earlier fit
            _refuse_wide(self.n_features_in_, store.labels, chosen)
            if sample_weight is not None:
                weights = _write_weights(folder / "weights.txt", sample_weight)
                chosen = replace(chosen, weights=weights)
            model, report = train(store, folder / "fit.model", chosen)
        self.n_iter_, self.dual_gap_ = report["passes"], report["relative_gap"]
        self._learner = None
        ended_by = (report["validation"] or {}).get("ended_by", "limit")
        if not report["converged"] and ended_by == "limit":
            advice = "lower C"
            if report["is_falling"]:
                advice = "raise max_iter"
            elif chosen.loss == "one_class":
                advice = "if the origin lies among the rows, no weights but 0 are optimal"
            warnings.warn(
                f"the relative gap is {self.dual_gap_:.1e} after "
                f"{count(self.n_iter_, 'pass')}, above tol={chosen.tol:g}; {advice}",
                ConvergenceWarning,
                stacklevel=4,
            )
        return model

    @contextmanager
    def _rows_for(
        self, X: Any, y: Any, folder: Path, settings: Settings, reading: ReadKeywords
    ) -> Iterator[BlockStore]:
        """Open the store at a path, or read text, a table or rows."""
        rows: Any = [(X, y)]
        given = ReadOptions.of(reading).given()
        how = ReadOptions.of({"blocks": self.blocks, "dtype": self.dtype, **reading})
        if _is_path(X):
            if not isinstance(y, str | None):
                raise DataError(
                    f"y must be None if X is a path, or the name of a column; {X} contains the "
                    "labels"
                )
            if y:
                how, given = replace(how, label=y), [*given, "label"]
            if (Path(X) / MANIFEST).is_file():
                if given:
                    raise DataError(f"{X} is a store, which has no columns; leave out {given[0]}")
                yield BlockStore(X)
                return
            rows = os.fspath(X)
        else:
            if given:
                kind = type(X).__name__
                raise DataError(f"{given[0]} applies to the path of a table; X is {kind}")
            how = replace(how, dtype=_type_of(X, self.dtype))
        model = folder / "fit.model"
        with read_rows(rows, model, how, settings, Progress(), lambda: False) as (store, _):
            yield store

    def _partial_fit(
        self, X: Any, y: npt.NDArray[Any], weights: Floats | None, labels: list[float] | None,
        **settings: Any,
    ) -> Model:  # fmt: skip
        """Learn from rows with codes or targets; return the model of all batches."""
        chosen = self._settings(_OF_PASSES, **settings)
        if self._learner is None:
            self._first_id = 0
            self._learner = Incremental(chosen, labels, X.shape[1])
        self._learner.refuse_changes(chosen)
        self.n_iter_ = 1
        return self._learner.learn(
            _rows_of(X, y, weights, target_type(self._learner.settings), self.dtype)
        )

    def _is_first_batch(self) -> bool:
        """Whether this is the first batch; warn if it discards the result of `fit`."""
        self._learner = getattr(self, "_learner", None)
        if self._learner is None and hasattr(self, "dual_gap_"):
            warnings.warn(
                "partial_fit starts over and discards the result of fit, which keeps no dual "
                "variables; pass all batches to partial_fit",
                stacklevel=4,
            )
            del self.dual_gap_
        return self._learner is None

    def _keep(self, model: Model) -> None:
        """Set `model_`, `coef_` and `intercept_`."""
        self.model_ = model
        self.coef_, self.intercept_ = coefficients(self._by_column(model), self.n_features_in_)
        columns = getattr(self, "feature_names_in_", None)
        if columns is not None and model.names is None:
            self.model_ = replace(
                model, names=Names.of(str(columns[k]).encode() for k in model.ids.tolist())
            )

    def _is_of_table(self, X: Any) -> bool:
        """Whether X is a data frame with the columns of a table that was read from a path."""
        return hasattr(X, "__arrow_c_stream__") and "names" in self.model_.info

    def _by_column(self, model: Model) -> Model:
        """Return a model whose feature ids are columns."""
        return replace(model, ids=model.ids - self._first_id) if self._first_id else model

    # --------------------------------------------------------------------------- predicting

    def _scores(self, X: Any) -> Floats:
        """Return decision values, shape (n_rows,) or (n_rows, n_outputs)."""
        check_is_fitted(self)
        if self._is_of_table(X):
            return self.model_.decision_function(X)
        X = _valid(self, X, reset=False)
        scores: Floats = np.asarray(X @ self.coef_.T + self.intercept_)
        return scores.ravel() if scores.ndim > 1 and scores.shape[1] == 1 else scores


def _can_learn_batches(estimator: SBMClassifier | SBMRegressor) -> bool:
    for name, needed in (("penalty", "l2"), ("scale", "none")):
        if getattr(estimator, name) != needed:
            raise AttributeError(
                f"partial_fit requires {name}={needed!r}; {name} is {getattr(estimator, name)!r}"
            )
    if estimator.fit_intercept and estimator.intercept_scaling == math.inf:
        raise AttributeError("partial_fit requires a finite intercept_scaling")
    return True


def _can_tell_probabilities(estimator: SBMClassifier) -> bool:
    if estimator.loss != "log_loss" and not estimator.probability:
        raise AttributeError(
            f"probabilities require loss='log_loss' or probability=True; loss is {estimator.loss!r}"
        )
    return True


class SBMClassifier(ClassifierMixin, _Linear):
    """Linear classifier, trained to a certified gap in bounded memory.

    Parameters
    ----------
    loss : str
        ``hinge``, ``squared_hinge``, ``log_loss`` or ``squared_error``, one-vs-rest for more than
        two classes; or ``crammer_singer`` or ``weston_watkins``, all classes in one problem.
    C : float
        Cost of a row's loss against ½|w|².
    penalty : {"l2", "l1", "elasticnet"}
        Penalty of the weights; ``l1`` and ``elasticnet`` make most of them 0, with ``log_loss``,
        ``squared_hinge`` and ``squared_error``, and only in `fit`.
    l1_ratio : float
        Share of |w|₁ in the penalty, for ``elasticnet``.
    class_weight : dict or "balanced", optional
        Factor of C for the rows of a class. Default: 1.
    fit_intercept : bool
        Whether to fit an intercept.
    intercept_scaling : float
        Value of the feature whose weight is the intercept; larger values regularise it less, and
        ``inf``, which needs Newton's method, not at all, as in `LogisticRegression`.
    probability : bool
        Also fit probabilities, on held-out rows of a second model; not needed for ``log_loss``.
    solver : {"auto", "dual", "newton"}
        Coordinate descent or Newton's method. Not used by `partial_fit`.
    scale : {"none", "maxabs", "std"}
        Divide each feature by its largest value or standard deviation while training; `coef_` is
        for values as they are. Only in `fit`.
    mem : int or str
        Bound of the memory of the training, such as ``"2GB"``, in addition to what the process
        already uses.
    cache_frac : float or "auto"
        Share of the working set (cache and block) that is cache.
    rounds : int or str
        Maximum rounds over the working set before the next block; ``"auto"``, which is 50 for a
        single block; or ``"2,2,5"``.
    blocks : int, optional
        Number of blocks of the temporary store. Default: chosen by its size.
    dtype : {"auto", "float32", "float64"}
        Type of stored values. ``auto`` is float32 if that changes none of them, else float64; for a
        path, float32.
    tol : float
        Relative duality gap to certify.
    max_iter : int
        Maximum passes over the data.
    early_stopping : bool
        Whether to hold out a share of the rows in `fit`, stop if the score on them (accuracy, or
        mean squared error) no longer improves, and keep the best pass.
    validation_fraction : float
        Share of the rows to hold out with `early_stopping`.
    random_state : int, RandomState or None
        Seed of every random choice.
    n_jobs : int, optional
        Number of threads, which changes no result. None means 1, -1 all cores.

    Attributes
    ----------
    classes_ : ndarray, shape (n_classes,)
    coef_ : ndarray, shape (1, n_features) or (n_classes, n_features), float64
    intercept_ : ndarray, shape (1,) or (n_classes,), float64
    n_iter_ : int
        Passes.
    dual_gap_ : float
        Certified relative gap; not set by `partial_fit`.
    model_ : Model
        The model as returned by `sbm.train`, which can be saved and can predict files. Its labels
        are `classes_` if these are numbers or words, else their positions.
    n_features_in_, feature_names_in_
        As for every estimator.
    """

    def __init__(
        self,
        loss: str = "hinge",
        *,
        C: float = 1.0,
        penalty: str = "l2",
        l1_ratio: float = 0.5,
        class_weight: Mapping[Any, float] | str | None = None,
        fit_intercept: bool = True,
        intercept_scaling: float = 1.0,
        probability: bool = False,
        solver: str = "auto",
        scale: str = "none",
        mem: int | str = "2GB",
        cache_frac: float | str = 0.5,
        rounds: int | str = "auto",
        blocks: int | None = None,
        dtype: str = "auto",
        tol: float = 1e-3,
        max_iter: int = 50,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.loss = loss
        self.C = C
        self.penalty = penalty
        self.l1_ratio = l1_ratio
        self.class_weight = class_weight
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.probability = probability
        self.solver = solver
        self.scale = scale
        self.mem = mem
        self.cache_frac = cache_frac
        self.rounds = rounds
        self.blocks = blocks
        self.dtype = dtype
        self.tol = tol
        self.max_iter = max_iter
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.n_jobs = n_jobs

    @with_keywords(_KEYWORDS)
    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None,
        **reading: Unpack[ReadKeywords],
    ) -> Self:  # fmt: skip
        """Train on all rows.

        Parameters
        ----------
        X : matrix, shape (n_rows, n_features), sparse or dense; or str or Path
            The path of a store, of LIBSVM text, or of a table such as ``x.csv``.
        y : array, shape (n_rows,), of any labels; or str
            For a path, which contains the labels: None, or the column of the labels.
        sample_weight : array, shape (n_rows,), or str, optional
            Factor of C for each row; for a path, in the order of the text, or a column.
        **reading
            For a path: how to read it; ``help(sbm.ReadOptions)`` lists the names.

        Returns
        -------
        Self

        Raises
        ------
        ValueError
            Invalid data or parameters, or a single class.
        MemoryPlanError
            `mem` is too small; the message has the smallest value that works.
        """
        if _is_path(X):
            weight: Any = self.class_weight
            model = self._fit(
                X, y, sample_weight, reading, task="classification", class_weight=weight
            )
            if len(model.labels) == 1:
                raise DataError(
                    "at least two classes are required; the data contains only one class: "
                    f"{model.label_texts()[0]!r}"
                )
            self.classes_ = model.classes_
        else:
            X, y = _valid(self, X, y)
            check_classification_targets(y)
            X, y, sample_weight = _weighted(X, y, sample_weight)
            self.classes_, codes = np.unique(y, return_inverse=True)
            if len(self.classes_) < 2:
                raise DataError(
                    "at least two classes are required; y contains only one class: "
                    f"{self.classes_.tolist()[0]!r}"
                )
            weight = self._weight_of_codes()
            model = self._fit(
                X, codes, sample_weight, reading, task="classification", class_weight=weight
            )
        self._keep(self._named(model))
        return self

    @available_if(_can_learn_batches)
    @with_keywords(_KEYWORDS)
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learn from a batch of rows, as `sbm stream` does, and forget them.

        A batch is solved together with the cached rows of earlier batches. Use large batches, at
        least 1,000 rows. There is no certificate.

        Parameters
        ----------
        X : matrix, shape (n_rows, n_features), sparse or dense
        y : array, shape (n_rows,)
        classes : array, shape (n_classes,), optional
            All labels of all batches; required in the first call.
        sample_weight : array, shape (n_rows,), optional
            Factor of C for each row.

        Returns
        -------
        Self

        Raises
        ------
        ValueError
            A label that is not in `classes`, or parameters that changed since the first batch.
        """
        first = self._is_first_batch()
        if first and classes is not None:
            self.__dict__.pop("classes_", None)  # of an earlier fit
        X, y = _valid(self, X, y, reset=first)
        _check_partial_fit_first_call(self, classes)
        if len(self.classes_) < 2:
            raise DataError(
                "at least two classes are required; classes contains only one class: "
                f"{self.classes_.tolist()[0]!r}"
            )
        unknown = np.setdiff1d(y, self.classes_)
        if len(unknown):
            raise DataError(
                f"label {unknown.tolist()[0]!r} is not in classes; pass all labels as classes "
                "with the first batch"
            )
        X, y, weights = _weighted(X, y, sample_weight, may_be_empty=True)
        codes = np.searchsorted(self.classes_, y)
        labels = [float(k) for k in range(len(self.classes_))]
        model = self._partial_fit(
            X, codes, weights, labels, task="classification",
            class_weight=self._weight_of_codes(),
        )  # fmt: skip
        self._keep(self._named(model))
        return self

    def _weight_of_codes(self) -> dict[float, float] | str | None:
        """Return class weights by the position of each class."""
        if self.class_weight is None or isinstance(self.class_weight, str):
            return self.class_weight
        if not isinstance(self.class_weight, Mapping):
            raise SettingsError(
                f"class_weight is {self.class_weight!r}; expected a dict of weights by label, or "
                "'balanced'"
            )
        labels = self.classes_.tolist()
        weights, unknown = match_weights(self.class_weight, labels)
        if unknown and None in weights:  # in a fold, labels may be missing
            raise SettingsError(
                f"class_weight names label {unknown[0]!r}, but the labels are "
                f"{list_some(list(map(repr, labels)))}"
            )
        return {float(k): weight for k, weight in enumerate(weights) if weight is not None}

    def _named(self, model: Model) -> Model:
        """Return the model with `classes_` as labels if they are numbers or words."""
        if all(isinstance(label, str) for label in self.classes_):
            return replace(model, label_names=[str(label) for label in self.classes_])
        if self.classes_.dtype.kind not in "iuf":
            return model
        return replace(model, labels=[float(label) for label in self.classes_])

    def decision_function(self, X: Any) -> Floats:
        """Return decision values, shape (n_rows,) or (n_rows, n_classes)."""
        return self._scores(X)

    def predict(self, X: Any) -> npt.NDArray[Any]:
        """Return labels, shape (n_rows,)."""
        scores = self._scores(X)
        codes = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[codes])

    @available_if(_can_tell_probabilities)
    def predict_proba(self, X: Any) -> Floats:
        """Return probabilities, shape (n_rows, n_classes)."""
        check_is_fitted(self)
        if self._is_of_table(X):
            return self.model_.predict_proba(X)
        X = _valid(self, X, reset=False)
        return self._by_column(self.model_).predict_proba(scipy.sparse.csr_matrix(X))

    @available_if(_can_tell_probabilities)
    def predict_log_proba(self, X: Any) -> Floats:
        """Return log probabilities, shape (n_rows, n_classes)."""
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(self.predict_proba(X)))


class SBMRegressor(RegressorMixin, _Linear):
    """Linear regression, trained to a certified gap in bounded memory.

    Parameters
    ----------
    loss : str
        ``epsilon_insensitive``, ``squared_epsilon_insensitive`` or ``squared_error``, which is
        ridge regression with ``alpha = 1 / (2 C)``.
    C : float
        Cost of a row's loss against ½|w|².
    penalty, l1_ratio
        As for `SBMClassifier`, with ``squared_error``.
    epsilon : float
        Error that costs nothing; not for ``squared_error``.
    fit_intercept, intercept_scaling, solver, scale, mem, cache_frac, rounds, blocks, dtype, tol,
    max_iter, early_stopping, validation_fraction, random_state, n_jobs
        As for `SBMClassifier`.

    Attributes
    ----------
    coef_ : ndarray, shape (n_features,), float64
    intercept_ : float64
    n_iter_, dual_gap_, model_, n_features_in_, feature_names_in_
        As for `SBMClassifier`.
    """

    def __init__(
        self,
        loss: str = "epsilon_insensitive",
        *,
        C: float = 1.0,
        penalty: str = "l2",
        l1_ratio: float = 0.5,
        epsilon: float = 0.1,
        fit_intercept: bool = True,
        intercept_scaling: float = 1.0,
        solver: str = "auto",
        scale: str = "none",
        mem: int | str = "2GB",
        cache_frac: float | str = 0.5,
        rounds: int | str = "auto",
        blocks: int | None = None,
        dtype: str = "auto",
        tol: float = 1e-3,
        max_iter: int = 50,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.loss = loss
        self.C = C
        self.penalty = penalty
        self.l1_ratio = l1_ratio
        self.epsilon = epsilon
        self.fit_intercept = fit_intercept
        self.intercept_scaling = intercept_scaling
        self.solver = solver
        self.scale = scale
        self.mem = mem
        self.cache_frac = cache_frac
        self.rounds = rounds
        self.blocks = blocks
        self.dtype = dtype
        self.tol = tol
        self.max_iter = max_iter
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.n_jobs = n_jobs

    @with_keywords(_KEYWORDS)
    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None,
        **reading: Unpack[ReadKeywords],
    ) -> Self:  # fmt: skip
        """Train on all rows; as `SBMClassifier.fit`, with numbers for labels."""
        if not _is_path(X):
            X, y = _valid(self, X, y, y_numeric=True)
            X, y, sample_weight = _weighted(X, y, sample_weight)
        self._keep(self._fit(X, y, sample_weight, reading, task="regression"))
        return self

    @available_if(_can_learn_batches)
    @with_keywords(_KEYWORDS)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from a batch of rows; as `SBMClassifier.partial_fit`."""
        first = self._is_first_batch()
        X, y = _valid(self, X, y, y_numeric=True, reset=first)
        X, y, weights = _weighted(X, y, sample_weight, may_be_empty=True)
        self._keep(self._partial_fit(X, y, weights, None, task="regression"))
        return self

    def _keep(self, model: Model) -> None:
        super()._keep(model)
        self.coef_, self.intercept_ = self.coef_[0], self.intercept_[0]

    def predict(self, X: Any) -> Floats:
        """Return predictions, shape (n_rows,)."""
        return self._scores(X)


class SBMOneClass(OutlierMixin, _Linear):
    """One-class machine: w and an offset ρ such that w·x >= ρ for all but a share ν of the rows.

    Parameters
    ----------
    nu : float
        Share of rows that may lie outside, in (0, 1].
    mem, cache_frac, rounds, blocks, dtype, tol, max_iter, random_state, n_jobs
        As for `SBMClassifier`.

    Attributes
    ----------
    coef_ : ndarray, shape (1, n_features), float64
    offset_ : ndarray, shape (1,), float64
        ρ; the decision value is w·x - ρ.
    intercept_ : ndarray, shape (1,), float64
        -ρ.
    n_iter_, dual_gap_, model_, n_features_in_, feature_names_in_
        As for `SBMClassifier`.
    """

    def __init__(
        self,
        nu: float = 0.5,
        *,
        mem: int | str = "2GB",
        cache_frac: float | str = 0.5,
        rounds: int | str = "auto",
        blocks: int | None = None,
        dtype: str = "auto",
        tol: float = 1e-3,
        max_iter: int = 50,
        random_state: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.nu = nu
        self.mem = mem
        self.cache_frac = cache_frac
        self.rounds = rounds
        self.blocks = blocks
        self.dtype = dtype
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.n_jobs = n_jobs

    @with_keywords(_KEYWORDS)
    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None,
        **reading: Unpack[ReadKeywords],
    ) -> Self:  # fmt: skip
        """Train on all rows; labels are ignored. As `SBMClassifier.fit`."""
        if _is_path(X):
            y = y if isinstance(y, str) else None
        else:
            X = _valid(self, X)
            X, y, sample_weight = _weighted(X, np.zeros(X.shape[0]), sample_weight)
        self._keep(self._fit(X, y, sample_weight, reading, loss="one_class"))
        return self

    @with_keywords(_KEYWORDS)
    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Learn from a batch of rows; as `SBMClassifier.partial_fit`, but unweighted."""
        first = self._is_first_batch()
        X = _valid(self, X, reset=first)
        self._keep(self._partial_fit(X, np.zeros(X.shape[0]), None, None, loss="one_class"))
        return self

    def _keep(self, model: Model) -> None:
        super()._keep(model)
        self.offset_ = -self.intercept_

    def decision_function(self, X: Any) -> Floats:
        """Return decision values, shape (n_rows,); negative for rows outside."""
        return self._scores(X)

    def score_samples(self, X: Any) -> Floats:
        """Return decision values without the offset, shape (n_rows,)."""
        return self._scores(X) + self.offset_

    def predict(self, X: Any) -> npt.NDArray[np.int64]:
        """Return 1 for rows inside and -1 outside, shape (n_rows,)."""
        return np.where(self._scores(X) >= 0, 1, -1)


# ------------------------------------------------------------------------------------------- data


def _valid(estimator: BaseEstimator, X: Any, *y: Any, **how: Any) -> Any:
    """Return rows, and labels if given, as scikit-learn checks them, in CSR if they are sparse.

    Raises `DataError` if the arrays of a sparse matrix do not fit together, which neither
    scikit-learn nor SciPy checks.
    """
    if scipy.sparse.issparse(X):
        require_matrix("X", X)
    return validate_data(estimator, X, *y, accept_sparse="csr", dtype=_TYPES, **how)


def _is_path(X: Any) -> bool:
    return isinstance(X, str | os.PathLike)


def _is_numbered_text(store: BlockStore) -> bool:
    """Whether all rows come from LIBSVM text, whose feature ids may start at 0 or 1."""
    generations = kept_generations(store.manifest)
    return not any("format" in source for g in generations for source in g["sources"])


def _type_of(X: Any, dtype: str) -> str:
    """Return the type of stored values; ``auto`` is float32 if that keeps them exactly.

    Raises
    ------
    SettingsError
        `dtype` is not one of ``_DTYPES``.
    """
    if dtype not in _DTYPES:
        raise SettingsError(f"dtype is {dtype!r}; it must be auto, float32 or float64")
    if dtype != "auto":
        return dtype
    values = X.data if scipy.sparse.issparse(X) else X  # type: ignore[attr-defined]
    step = max(1, _AT_A_TIME // max(1, values[:1].size))
    parts = (values[k : k + step] for k in range(0, len(values), step))
    with np.errstate(over="ignore"):
        exact = all(np.array_equal(part, part.astype(np.float32)) for part in parts)
    return "float32" if exact else "float64"


def _weighted(
    X: Any, y: npt.NDArray[Any], sample_weight: Any, *, may_be_empty: bool = False
) -> tuple[Any, npt.NDArray[Any], Floats | None]:
    """Return rows, labels and weights, without rows of weight 0; weights are None if all are 1."""
    if sample_weight is None:
        return X, y, None
    weights = np.asarray(sample_weight, np.float64)
    if weights.ndim == 0:
        weights = np.full(len(y), weights)
    if weights.shape != y.shape:
        raise DataError(
            f"sample_weight has shape {weights.shape}; one number for each of the {len(y)} rows "
            "is expected"
        )
    bad = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(bad):
        raise DataError(
            f"sample_weight of row {bad[0]} is {weights[bad[0]]}; it must be finite and at least 0"
        )
    if (weights == 1).all():
        return X, y, None
    some = weights > 0
    if not (some.any() or may_be_empty):
        raise DataError("all sample weights are zero; give at least one row a weight above 0")
    return (X, y, weights) if some.all() else (X[some], y[some], weights[some])


def _write_weights(path: Path, weights: Any) -> str:
    """Write one weight per line, as `sbm train --weights` reads them."""
    weights = np.asarray(weights, np.float64)
    if weights.ndim != 1:
        raise DataError(f"sample_weight has shape {weights.shape}; one number per row is expected")
    with open(path, "w", encoding="ascii") as file:
        for first in range(0, len(weights), _AT_A_TIME):
            file.writelines(
                f"{weight!r}\n" for weight in weights[first : first + _AT_A_TIME].tolist()
            )
    return str(path)


def _refuse_wide(n_features: int, labels: list[float] | None, settings: Settings) -> None:
    """Check that `coef_` fits in memory.

    Raises
    ------
    MemoryPlanError
        `coef_` alone is larger than `mem`.
    """
    outputs = 1 if labels is None or len(labels) <= 2 else len(labels)
    size = 8 * n_features * outputs
    if size > settings.mem_bytes:
        raise MemoryPlanError(
            f"coef_ for {n_features} columns takes {format_size(size)}, more than "
            f"mem={format_size(settings.mem_bytes)}; use sbm.train, whose models hold only the "
            "features that occur",
            size,
        )


def _rows_of(
    matrix: Any, y: npt.NDArray[Any], weights: Floats | None, y_dtype: str, dtype: str
) -> Rows:
    """Return a batch as contiguous rows."""
    X: Any = scipy.sparse.csr_matrix(matrix)
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    values = X.data.astype(_type_of(X, dtype), copy=False)
    return Rows(
        X.indptr[:-1].astype(np.int64), np.diff(X.indptr).astype(np.int32),
        X.indices.astype(np.int32), values, y.astype(y_dtype), weights,
    )  # fmt: skip
