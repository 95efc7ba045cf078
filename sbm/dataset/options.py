"""Options of a split, their checks and the memory plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Integral
from pathlib import Path
from typing import TypedDict

from sbm.engine.machine import interpreter_bytes, smaller
from sbm.engine.memory import Budget
from sbm.engine.progress import Progress
from sbm.errors import SettingsError, require_number
from sbm.inputs.columns.kinds import Asked, Dialect
from sbm.inputs.columns.state import Columns
from sbm.inputs.columns.words import WordTable
from sbm.inputs.formats import LIBSVM, format_of
from sbm.inputs.idtable import IdTable
from sbm.inputs.nametable import LabelWords, NameTable
from sbm.inputs.options import InputOptions
from sbm.inputs.text import PIECE
from sbm.settings import OF_FILES, nearest, option_name
from sbm.units import format_size

MOST_SHARDS = 256  # each is locked, and a process may open about a thousand files
LARGEST_BATCH = 64_000_000  # bytes of rows; more does not compress better
PIECE_BYTES = 5 * PIECE  # memory of a piece of text and its rows


@dataclass(frozen=True)
class SplitOptions:
    """The arguments of `sbm.split` that determine a store, and what they become.

    Raises
    ------
    SettingsError
        An option is out of range.
    """

    # blocks, block_size: number of blocks, or bytes of a block
    blocks: int | None
    block_size: int | None
    dtype: str  # one of "float32", "float64"
    seed: int
    shuffle: bool
    level: int
    threads: int  # maximum number of threads; see `within`
    on_error: str
    min_count: int
    shards: int | None
    mem: int = 0  # memory of the whole process in bytes, without `reserved`
    reserved: int = 0  # bytes for the library that reads the input
    is_for_training: bool = False  # whether the rows are read for a training, in messages
    new_labels: bool = False  # whether files may have labels that files before do not have

    def __post_init__(self) -> None:
        for name in ("blocks", "seed", "level", "threads", "min_count", "shards"):
            if not isinstance(value := getattr(self, name), Integral | None):
                raise SettingsError(f"{name} is {value!r}; a whole number is expected")
        blocks, shards = self.blocks, self.shards
        if blocks is not None and self.block_size is not None:
            raise SettingsError("give --blocks or --block-size, not both")
        if self.block_size is not None and self.block_size < 100_000:
            size = format_size(self.block_size)
            raise SettingsError(f"block_size is {size}; it must be at least 100kB")
        if blocks is not None:
            require_number("blocks", blocks, 1, 999_999)
        if self.dtype not in ("float32", "float64"):
            raise SettingsError(f"dtype is {self.dtype!r}; it must be auto, float32 or float64")
        require_number("level", self.level, 1, 19)
        require_number("threads", self.threads, 1)
        if self.on_error not in ("fail", "skip"):
            raise SettingsError(f"on_error is {self.on_error!r}; it must be fail or skip")
        require_number("seed", self.seed, 0)
        require_number("min_count", self.min_count, 1, (1 << 31) - 1)
        if shards is not None:
            require_number("shards", shards, 1, MOST_SHARDS)
        if shards is not None and blocks is not None and blocks < shards:
            raise SettingsError(
                f"blocks is {blocks}, but {shards} shards need at least one block each; give "
                f"--blocks {shards} or more"
            )

    @property
    def skip(self) -> bool:
        """Whether to skip invalid lines."""
        return self.on_error == "skip"

    @property
    def task(self) -> str:
        """What memory is needed for, in messages."""
        return "to read rows for training" if self.is_for_training else "to split"

    @property
    def total(self) -> int:
        """Bytes of `mem` that can be used; more would only help with more ids."""
        return min(self.mem, interpreter_bytes() + 6 * batch_bytes(self.mem))

    def within(self, mem: int, reserved: int = 0) -> "SplitOptions":
        """Return the options for a memory bound, with as many threads as fit.

        Parameters
        ----------
        mem : int
            Bytes of the whole process.
        reserved : int
            Bytes of `mem` for the reader of the input: libraries, windows of decompressors.

        Raises
        ------
        MemoryPlanError
            Not even one thread fits; the message names the minimum.
        """
        items = {"interpreter": interpreter_bytes()}
        items |= {"to read and decompress": reserved} if reserved else {}
        fixed = Budget(mem, self.task, items)
        needed = {"text": 3 * PIECE_BYTES, "batches": 3 * PIECE_BYTES}  # of a single thread
        replace(fixed, items=items | needed).check()
        most = (fixed.left - 3 * batch_bytes(mem - reserved)) // PIECE_BYTES - 2
        kept = reserved or self.reserved
        return replace(self, mem=mem - reserved, reserved=kept, threads=min(self.threads, most))

    def with_less(self, progress: Progress) -> "SplitOptions":
        """Return options with less memory for another try, after memory ran out."""
        doing = "reading rows" if self.is_for_training else "splitting"
        less = smaller(self.within, self.total, doing)
        progress.note(
            f"out of memory with --mem {format_size(self.mem)}; starting over with "
            f"{format_size(less.mem)}"
        )
        return less


class ReadKeywords(TypedDict, total=False):
    """The attributes of `ReadOptions` as keyword arguments of a function."""

    blocks: int | None
    dtype: str
    min_count: int
    on_error: str
    format: str | None
    hash_bits: int | None
    label: str | None
    categorical: Sequence[str] | None
    weight: str | None
    exclude: Sequence[str]
    column: Mapping[str, str] | Sequence[str]
    columns: str | Path | None
    cross: Sequence[str]
    header: bool
    sep: str | None
    quote: str
    decimal: str | None
    encoding: str | None
    feature_names: str | Path | Sequence[str] | None
    names: bool
    name: str
    new_labels: bool
    strict: bool


@dataclass(frozen=True)
class ReadOptions:
    """How text, tables and matrices are read, by every function that takes them.

    Attributes
    ----------
    blocks : int, optional
        Number of blocks. Default: by size.
    dtype : {"auto", "float32", "float64"}
        Type of stored values. ``auto`` is float32; when rows are added to a store, its type. Values
        that are all 1 take no space.
    min_count : int
        Drop features that fewer rows have. Rare words of a table become ``column=(rare)``. Rows
        that lose all features stay. When rows are added to a store, only these count, and features
        of the store stay.
    on_error : {"fail", "skip"}
        What to do with a malformed line, or a row with numbers that are not finite.
    format : str, optional
        A key of `sbm.inputs.formats.FORMATS`. Default: from the file name, else LIBSVM text.
    hash_bits : int, optional
        Number of bits of hashed feature names of VW text. Default: 22; when rows are added to a
        store, that of the store.
    label : str, optional
        Column of the labels in a table.
    categorical : sequence of str, optional
        Columns of a table whose cells are always words, even if they look like numbers; names,
        lists with commas, or patterns. The same as kind ``category`` in `column`.
    weight : str, optional
        Column of a table that holds the weight of each row, a factor of its cost.
    exclude : sequence of str
        Columns of a table to leave out; as `categorical`.
    column : dict of str to str, or sequence of str
        Kinds of columns, ``{"zip": "category"}`` or ``["zip=category"]``. Names may be lists or
        patterns. The kinds are the keys of `sbm.inputs.columns.kinds.KINDS`.
    columns : str or Path, optional
        A TOML file of kinds, as `sbm.columns` writes it.
    cross : sequence of str
        Pairs of columns of a table whose features are multiplied, ``["campaign:device"]``; or, for
        Vowpal Wabbit's text, of first letters of namespaces, ``["ab"]``.
    header : bool
        Whether the first line of CSV and TSV has the names of the columns; else they are 1, 2, 3.
    sep, quote : str
        The character between cells of CSV and TSV, and the one around cells that contain it.
        Default: that of the format, and ``"``.
    decimal : {".", ","}, optional
        Decimal separator of numbers that are text. Default: found out for each column.
    encoding : str, optional
        Encoding of CSV and TSV. Default: UTF-8, or that of the byte order mark.
    feature_names : str, Path or sequence of str, optional
        A file of lines ``ID NAME``, or the names of the columns of X. Default: the names in the
        data, if it has any.
    names : bool
        Whether to keep the names of features.
    name : str
        Name of the source in messages and in the store, for matrices.
    new_labels : bool
        Accept labels that the store, or the first of several files, does not have. Otherwise a file
        is refused if it adds a label to a store of two or more, or to files with exactly two.
    strict : bool
        Refuse a table whose columns are not those of the store, or of the first table. Default:
        refuse only some missing columns, and note the other differences.
    """

    blocks: int | None = None
    dtype: str = "auto"
    min_count: int = 1
    on_error: str = "fail"
    format: str | None = None
    hash_bits: int | None = None
    label: str | None = None
    categorical: Sequence[str] | None = None
    weight: str | None = None
    exclude: Sequence[str] = ()
    column: Mapping[str, str] | Sequence[str] = ()
    columns: str | Path | None = None
    cross: Sequence[str] = ()
    header: bool = True
    sep: str | None = None
    quote: str = '"'
    decimal: str | None = None
    encoding: str | None = None
    feature_names: str | Path | Sequence[str] | None = None
    names: bool = True
    name: str = "arrays"
    new_labels: bool = False
    strict: bool = False

    @classmethod
    def of(cls, keywords: ReadKeywords) -> "ReadOptions":
        """Create options from keyword arguments.

        Raises
        ------
        TypeError
            A name is unknown; the nearest one is suggested.
        """
        known = {one.name for one in fields(cls)}
        for name in keywords:
            if name not in known:
                raise TypeError(f"unknown argument {name!r}{nearest(name, known)}")
        return cls(**keywords)

    def given(self) -> list[str]:
        """Return the names of the options that are not their defaults."""
        values = {one.name: (getattr(self, one.name), one.default) for one in fields(self)}
        return [n for n, (value, usual) in values.items() if value != usual and value != []]

    def only_of_files(self, whose: str) -> "ReadOptions":
        """Return these options for a file that is read as `whose` data was.

        Raises
        ------
        SettingsError
            An option is given that a model or a store has fixed.
        """
        if fixed := [name for name in self.given() if name not in OF_FILES]:
            raise SettingsError(f"{option_name(fixed[0])} is fixed by {whose}; leave it out")
        return self

    def beside(self, path: str | Path) -> "ReadOptions":
        """Return how another file of the same training is written; its name may give a format."""
        written = {name: getattr(self, name) for name in OF_FILES}
        if format_of(str(path)).name != LIBSVM:
            written["format"] = None
        return ReadOptions(**written)

    def input_options(self, mem: int = 0, targets: bool = False) -> InputOptions:
        """Return how to read the inputs; labels may be `targets`, not classes.

        `mem` is a bound in bytes for `feature_names`.

        Raises `DataError` or `StoreError` if the file of names is invalid or cannot be read, and
        `MemoryPlanError` if the names do not fit.
        """
        table = NameTable() if self.names else None
        if self.feature_names is not None:
            if table is None:
                raise SettingsError("feature_names is given, but names are left out; omit one")
            for share in table.read(self.feature_names):
                items = {"interpreter": interpreter_bytes(), "names": table.nbytes}
                budget = Budget(mem, "to read feature names", items)
                if budget.left < 0:
                    what = f"names of about {round(len(table) / share):,} features"
                    items = {"interpreter": interpreter_bytes(), what: int(table.nbytes / share)}
                    replace(budget, items=items).check(f", or leave out {self.feature_names}")
        asked = Asked.of(
            self.label, self.weight, self.categorical or (), self.exclude, self.column,
            self.columns, [pair for pair in self.cross if not _is_quadratic(pair)],
        )  # fmt: skip
        dialect = Dialect(self.sep, self.quote, self.decimal, self.encoding, self.header)
        return InputOptions(
            self.format, self.hash_bits, targets=targets, names=table, words=LabelWords(),
            table=Columns(asked, dialect, self.strict),
            quadratic=tuple(filter(_is_quadratic, self.cross)),
        )  # fmt: skip

    def options(self, seed: int, threads: int, are_targets: bool = False) -> SplitOptions:
        """Return the options of the split; targets may be new in any file."""
        dtype = "float32" if self.dtype == "auto" else self.dtype
        return SplitOptions(
            self.blocks, None, dtype, seed, True, 1, threads, self.on_error, self.min_count, None,
            is_for_training=True, new_labels=self.new_labels or are_targets,
        )  # fmt: skip


def batch_bytes(mem: int) -> int:
    """Return the bytes of each of the two batches; they must not depend on the threads."""
    return min(LARGEST_BATCH, (mem - interpreter_bytes()) // 6)


def room_for_rows(ids: IdTable, options: SplitOptions, names: NameTable | WordTable | None) -> int:
    """Return the bytes that decoded rows may take while text is read."""
    text = (options.threads + 2) * PIECE_BYTES
    tables = ids.nbytes + (0 if names is None else names.nbytes)
    return options.mem - interpreter_bytes() - text - 3 * batch_bytes(options.mem) - 2 * tables


def check_ids(
    ids: IdTable, options: SplitOptions, count_bytes: int = 0,
    names: NameTable | WordTable | None = None,
) -> None:  # fmt: skip
    """Check that the ids, `count_bytes` for their counts, and the names fit with the batches.

    While features are counted there are no batches, but their memory stays reserved: a table that
    grows needs more than its final size.

    Raises `MemoryPlanError` if they do not fit.
    """
    text, needed = (options.threads + 2) * PIECE_BYTES, ids.nbytes + count_bytes
    needed += 0 if names is None else names.nbytes
    if interpreter_bytes() + text + 2 * batch_bytes(options.mem) + needed <= options.mem:
        return
    what, twice = "ids and counts" if count_bytes else "ids", 2 * needed  # more may come
    has_names = names is not None and len(names) > 0
    what += " and names" if has_names else ""
    reader = {"to read and decompress": options.reserved} if options.reserved else {}
    items = {
        "interpreter": interpreter_bytes(), **reader, "text": text,
        "batches": min((text + twice) // 2, 2 * LARGEST_BATCH),
        f"{what} for twice the {len(ids):,} features so far": twice,
    }  # fmt: skip
    can_do_without = has_names and isinstance(names, NameTable)
    mem = options.mem + options.reserved
    Budget(mem, options.task, items).check(", or --no-names" if can_do_without else "")


def _is_quadratic(pair: str) -> bool:
    """Whether a cross is of two namespaces of Vowpal Wabbit's text, as ab; not of columns, a:b."""
    return len(pair.encode()) == 2 and ":" not in pair
