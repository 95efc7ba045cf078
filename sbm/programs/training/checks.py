"""Checks before any row of a training is read: settings, and the files that it needs besides."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from sbm.dataset.options import ReadOptions
from sbm.dataset.sources import naming_of
from sbm.distributed.comm import Comm
from sbm.engine.kernels import WEIGHTS, prepare, types_of_dtype
from sbm.engine.progress import Progress
from sbm.errors import DataError, SettingsError
from sbm.inputs.formats import FORMATS, names_record
from sbm.inputs.nametable import LabelWords
from sbm.inputs.options import Naming
from sbm.inputs.text import Source
from sbm.plain import dataclass
from sbm.programs.training.state import may_resume, refuse_other_settings
from sbm.programs.training.task import Task, is_smooth
from sbm.programs.training.warmstart import check_earlier, find_run, last_run
from sbm.settings import Settings, number_of
from sbm.store.blocks import BlockStore
from sbm.store.run import run_folder

__all__ = ["FirstLook", "check_settings", "refuse_pipes", "refuse_ranks"]

_TEST = r"(?i)(^|[._-])(t|test)([._-]|$)"  # in the name of a test set


def check_settings(settings: Settings, processes: int = 1) -> None:
    """Check that settings fit each other and the number of processes.

    Raises
    ------
    SettingsError
        Some do not.
    DataError
        A file does not exist.
    """
    settings.refuse_conflicts(processes)
    if settings.validate is not None:
        from sbm.programs.training.validation import check_validation

        check_validation(settings)
    _require_weights(settings.weights)


def _require_weights(name: str | Path | None) -> None:
    """Check that the file of row weights exists, if there is one.

    Raises
    ------
    DataError
        It is missing, or not a file.
    """
    if name not in (None, "-") and not Path(name).is_file():
        what = "is not a file" if Path(name).exists() else "does not exist"
        raise DataError(f"{name} {what}; expected a text file with one weight per line")


def refuse_ranks(task: Task, processes: int) -> None:
    """Check that a method that keeps rows near a kink in memory has a single process.

    Raises `SettingsError` if there are several.
    """
    loss = task.loss
    if processes > 1 and not is_smooth(loss):
        many = "" if loss.joint else " and so many features"
        raise SettingsError(
            f"solver newton with loss {loss.name}{many} needs a single process; use solver dual"
        )


def refuse_pipes(**inputs: Any) -> None:
    """Check that at most one input is standard input.

    Parameters
    ----------
    **inputs : str, Path, sequence of these, or anything else
        By the name of their option.

    Raises
    ------
    SettingsError
        Several are.
    """
    named = [
        name
        for name, given in inputs.items()
        for source in (given if isinstance(given, list | tuple) else [given])
        if isinstance(source, str) and source == "-"
    ]
    if len(named) > 1:
        raise SettingsError(
            f"{' and '.join(named)} are both standard input, which can be read only once; use files"
        )


@dataclass(frozen=True)
class FirstLook:
    """Looks at the files that a training needs besides its rows, before it reads all of these.

    Attributes
    ----------
    settings : Settings
    comm : Comm
        Only rank 0 looks.
    progress : Progress
    resume : bool or None
        As for `sbm.train`.
    test : str or Path or None
        Data to predict after the training.
    reading : ReadOptions
        How the rows of the training are read.
    """

    settings: Settings
    comm: Comm
    progress: Progress
    resume: bool | None = None
    test: str | Path | None = None
    reading: ReadOptions = field(default_factory=ReadOptions)

    def before_text(self, model: Path, sources: Sequence[Source]) -> None:
        """Look at the run of the model and at all files, before the text is read.

        Raises
        ------
        SbmError
            One of them is missing or does not fit.
        """
        settings = self.settings
        is_numeric = all(s.chunks is None and not FORMATS[s.format].has_words for s in sources)
        named: dict[str, Any] = {}
        if settings.positive is not None:
            named["positive"] = [settings.positive]
        if not isinstance(settings.class_weight, str):
            named["class_weight"] = settings.class_weight
        for option, labels in named.items():
            words = [label for label in labels if math.isnan(number_of(label))]
            if is_numeric and words:
                raise SettingsError(
                    f"{option} names label {words[0]}, but labels of {sources[0].shown} are numbers"
                )
        if self.comm.rank:
            return
        tests = [
            s.name for s in sources if s.chunks is None and re.search(_TEST, Path(s.name).name)
        ]
        if 0 < len(tests) < len(sources):
            self.progress.stage(
                f"{tests[0]} is read as training data; if it is a test set, use --test {tests[0]}"
            )
        if self.comm.size == 1:
            refuse_other_settings(run_folder(model), settings, self.resume)
        self._check_earlier(model)
        if settings.weights not in (None, "-"):
            from sbm.dataset.weights import check_weights

            prepare("reading weights", WEIGHTS, types_of_dtype("float64"), self.progress)
            check_weights(str(settings.weights))
        record = names_record(sources)
        naming = None if record is None else Naming(record)
        self._check_rows(naming, {} if is_numeric else None)

    def at_store(self, model: Path, store: BlockStore, is_read: bool) -> None:
        """Look at the data to validate and test with, given the rows of the training.

        If text `is_read` into memory, which may be full now, only tables are looked at again: their
        labels were not known before.

        Raises
        ------
        SbmError
            Some are missing or do not fit.
        """
        if self.comm.rank:
            return
        self._check_earlier(model)
        names = naming_of(store)
        if is_read and names is None:
            return
        known = dict(zip(store.label_names, store.labels or [], strict=False))
        self._check_rows(names, known)

    def _check_earlier(self, model: Path) -> None:
        """Look at the run to start from, if there is one."""
        where = self.settings.warm_start
        if where is None or may_resume(run_folder(model), self.settings, self.resume):
            return
        folders = find_run(where) if isinstance(where, str) else last_run(model) if where else []
        if folders:
            check_earlier(folders, self.settings)

    def _check_rows(self, names: Naming | None, known: dict[str, float] | None) -> None:
        """Read the first rows of the data to validate and test with.

        Parameters
        ----------
        names : Naming or None
            How features are named.
        known : dict or None
            Numbers of labels that are words; None if labels are not known yet.
        """
        settings = self.settings
        if settings.problem != "classification":
            known = {}
        validate = settings.validate if isinstance(settings.validate, str) else None
        for data in (validate, self.test):
            if data is not None:
                words = LabelWords(
                    known, "labels of the training data", "convert them", may_be_numbers=True
                )
                from sbm.dataset.batches import check_input

                check_input(data, names, words, self.progress, self.reading.beside(data))
