"""Damaged files: flip, cut, swap and lose bytes of stores, runs and models, and read all of them.

Each case damages one file of a small store, run or model and runs what reads it. Right is an error
of ours that is one sentence and names what is damaged, or the very result of the undamaged files,
where the damage is in a place that influences nothing. All else is a failure: another exception,
another result, a hang, or memory that the file is not worth.

What is not tried, as no file could tell: a whole store, run or model that is put in the place of
another one, and an older manifest or record of the same. LIBLINEAR's text has no checksums; of it
only errors are looked at.
"""

import contextlib
import hashlib
import json
import random
import resource
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

import sbm
from sbm.errors import DataError, StoreError
from sbm.rows import Arena
from sbm.store.blocks import BlockStore
from sbm.store.run import Run
from scripts.torture.tally import Tally

MEM = "400MB"
ACT_EVERY = 40  # cases; what takes long is tried so often
LONGEST = 60  # seconds of a case
LARGEST = 64 << 10  # kilobytes that a case may add to the peak of the process

Digest = Any
Damage = Callable[["Subject", str, random.Random, Path], list[str]]  # names of changed files


# --------------------------------------------------------------------------------- the files


def _text(n: int, seed: int, value: str, labels: Sequence[float] | None) -> str:
    """LIBSVM text; with the same seed and other values it makes a store of the same shape."""
    shape, other = random.Random(seed), random.Random(f"{seed}{value}")
    lines = []
    for row in range(n):
        ids = sorted(shape.sample(range(1, 40), shape.randint(0, 9)))
        if labels is None:
            label = f"{other.uniform(-2, 2):.6f}"
        else:
            label = f"{labels[row % len(labels)]:g}"
        values = ("1" if value == "ones" else f"{other.uniform(-1, 1):.6f}" for _ in ids)
        lines.append(" ".join([label, *(f"{i}:{x}" for i, x in zip(ids, values, strict=True))]))
    return "\n".join(lines) + "\n"


def _store(folder: Path, name: str, text: str, more: Sequence[str] = (), **options: Any) -> Path:
    path, source = folder / f"{name}.sbm", folder / f"{name}.svm"
    source.write_text(text)
    sbm.split([source], path, threads=1, **{"blocks": 3, **options})
    for k, addition in enumerate(more):
        source = folder / f"{name}-{k}.svm"
        source.write_text(addition)
        sbm.split([source], path, threads=1, append=True, blocks=2)
    return path


TWO, FIVE = (-1.0, 1.0), (3.0, 1.0, 7.0, 2.0, 9.0)
SETTINGS: dict[str, dict[str, Any]] = {
    "dense": {"loss": "hinge", "C": 0.5, "max_passes": 3, "tol": 1e-9},
    "lists": {"loss": "crammer_singer", "C": 0.5, "max_passes": 3, "tol": 1e-9},
    "several": {"loss": "squared_hinge", "C": 0.5, "max_passes": 2, "tol": 1e-9},
    "real": {"loss": "squared_epsilon_insensitive", "C": 0.5, "max_passes": 3, "tol": 1e-9},
}
STREAMS: dict[str, dict[str, Any]] = {
    "stream-dense": {"loss": "hinge", "C": 0.5},
    "stream-lists": {"loss": "crammer_singer", "C": 0.5},
}


def _settings(name: str) -> dict[str, Any]:
    return {"mem": MEM, "threads": 1, **(SETTINGS | STREAMS)[name]}


def _make(folder: Path, variant: str) -> None:
    """Make one set of everything; another variant has other numbers in files of the same shape."""
    folder.mkdir(parents=True)
    _store(folder, "ones", _text(60, 1 if variant == "a" else 8, "ones", TWO))
    _store(folder, "single", _text(60, 2, f"float{variant}", FIVE))
    _store(folder, "double", _text(60, 3, f"float{variant}", TWO), dtype="float64")
    _store(folder, "real", _text(60, 4, f"float{variant}", None))
    grown = [_text(20, seed, f"float{variant}", FIVE) for seed in (6, 7)]
    _store(folder, "grown", _text(40, 5, f"float{variant}", FIVE), grown)
    sbm.expire(folder / "grown.sbm", sources=["grown-0.svm"])
    for name, store in (
        ("dense", "double"), ("lists", "grown"), ("several", "single"), ("real", "real"),
    ):  # fmt: skip
        sbm.train(folder / f"{store}.sbm", folder / f"{name}.model", _settings(name))
    sbm.export(folder / "several.model", folder / "several.txt")
    for name, text in (("stream-dense", "double"), ("stream-lists", "single")):
        source, model = folder / f"{text}.svm", folder / f"{name}.model"
        sbm.stream([source], model, _settings(name), options={"dtype": "float64"})
        (folder / f"{name}-more.svm").write_text(_text(30, 9, "more", TWO))


# -------------------------------------------------------------------------------- what is read


def _digest(*parts: Any) -> str:
    digest = hashlib.blake2b(digest_size=12)
    for part in parts:
        if isinstance(part, np.ndarray):
            digest.update(f"{part.dtype} {part.shape}".encode() + part.tobytes())
        else:
            digest.update(json.dumps(part, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def _without(facts: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in facts.items() if key not in names}


def _rows(path: Path) -> Digest:
    """All rows, block by block, ids and labels."""
    store = BlockStore(path)
    parts: list[Any] = [store.read_feature_ids(), store.manifest["labels"]]
    y_dtype = "float64" if store.labels is None else "int32"
    for chunks in store.chunks:
        n, nnz = sum(c.rows for c in chunks), sum(c.nnz for c in chunks)
        rows = store.read(chunks, Arena.of(nnz, store.value_type).room(n, y_dtype), 0)
        parts += [rows.lengths, rows.indices, rows.y]
        parts += [] if rows.values is None else [rows.values]
    return _digest(*parts)


def _read_store(path: Path) -> Digest:
    """All there is in it, and what info and check say."""
    return _rows(path), _without(sbm.info(path), "path"), _checked(path)


def _checked(path: Path) -> dict[str, Any]:
    return _without(sbm.check(path), "store")


def _described(path: Path) -> dict[str, Any]:
    """What info says, but for what comes from the log, which nobody vouches for."""
    return _without(sbm.info(path), "path", "bytes", "log", "passes", "finished")


def _read_run(path: Path) -> Digest:
    """All alphas and the state."""
    shape = Run.read(path)["shape"]
    rows = [sum(piece[-1] for piece in part) for part in shape["parts"]]
    lists_of = max(shape["outputs"]) if shape["listed"] else None
    opened, state = Run.reopen(path, rows * len(shape["outputs"]), lists_of)
    parts: list[Any] = [state[name] for name in sorted(state)]
    for block in range(len(rows) * len(shape["outputs"])):
        alpha = opened.load(block)
        parts += [alpha.values, *([getattr(alpha, "outputs", [])])]
    return _digest(*parts, _described(path))


def _read_stream(path: Path) -> Digest:
    _, state = Run.reopen(path, [])
    return _digest(*(state[name] for name in sorted(state)), _described(path))


X = scipy.sparse.csr_matrix(np.random.default_rng(1).integers(0, 2, (6, 40)).astype(float))


def _read_model(path: Path) -> Digest:
    model = sbm.Model.load(path)
    return _digest(model.decision_function(X), model.predict(X), _described(path))


def _read_text(path: Path) -> Digest:
    """LIBLINEAR's text can be changed unnoticed, and only must not be taken for something else."""
    sbm.info(path)


def _weights(model: sbm.Model) -> str:
    return _digest(model.ids, model.W, model.labels)


def _train(path: Path) -> Digest:
    settings = {"mem": MEM, "threads": 1, "max_passes": 1, "loss": "squared_error", "C": 0.5}
    return _weights(sbm.train(path, path.parent / "new.model", settings)[0])


def _append(path: Path) -> Digest:
    source = path.parent / "append.svm"
    source.write_text("1 1:1 77:1\n")
    sbm.split([source], path, append=True, threads=1, blocks=1)
    return _rows(path), _checked(path)


def _warm_start(path: Path) -> Digest:
    """Train from a run on the store it is of, which lies beside the undamaged copy."""
    name = path.name.removesuffix(".model.run")
    store = {"dense": "double", "lists": "grown", "several": "single", "real": "real"}[name]
    settings = _settings(name) | {"warm_start": str(path), "max_passes": 1}
    source = _sources / f"{store}.sbm"
    return _weights(sbm.train(source, path.parent / "new.model", settings)[0])


def _resume(path: Path) -> Digest:
    name = path.name.removesuffix(".model.run")
    text = _sources / f"{name}-more.svm"
    return _weights(sbm.stream([text], path.parent / f"{name}.model", resume=True)[0])


def _prune(path: Path) -> Digest:
    target = path.parent / "pruned.model"
    sbm.export(path, target, format="sbm", prune=1e-3)
    return _read_model(target)


_sources = Path()  # the undamaged files of this run


@dataclass
class Subject:
    """A store, run or model that is damaged again and again.

    Attributes
    ----------
    name : str
    kind : str
    files : dict of str to bytes
        Content by name; a model has one file, named ``""``.
    twins : dict of str to bytes
        Content of another store or run of the same shape.
    read : callable
        Returns what must not change.
    acts : sequence of callable
        What takes longer, and may write.
    """

    name: str
    kind: str
    files: dict[str, bytes]
    twins: dict[str, bytes]
    read: Callable[[Path], Digest]
    acts: Sequence[Callable[[Path], Digest]] = ()
    results: dict[Any, Digest] = field(default_factory=dict)

    @property
    def is_checked(self) -> bool:
        """Whether any change must be noticed."""
        return self.kind != "text"


_READERS: dict[str, tuple[Callable[[Path], Digest], Sequence[Callable[[Path], Digest]]]] = {
    "store": (_read_store, (_train, _append)),
    "run": (_read_run, (_warm_start,)),
    "stream": (_read_stream, (_resume,)),
    "model": (_read_model, (_prune,)),
    "text": (_read_text, ()),
}


def _kind(path: Path) -> str:
    if path.suffix == ".run":
        return "stream" if path.name.startswith("stream-") else "run"
    return {".sbm": "store", ".txt": "text"}.get(path.suffix, "model")


def _content(path: Path) -> dict[str, bytes]:
    if path.is_file():
        return {"": path.read_bytes()}
    return {p.name: p.read_bytes() for p in sorted(path.iterdir()) if p.is_file()}


def _subjects(folder: Path) -> list[Subject]:
    found = []
    for path in sorted((folder / "a").iterdir()):
        if path.suffix not in (".sbm", ".run", ".model", ".txt"):
            continue
        kind = _kind(path)
        read, acts = _READERS[kind]
        twins = _content(folder / "b" / path.name) if path.is_dir() else {}
        found.append(Subject(path.name, kind, _content(path), twins, read, acts))
    return found


# ----------------------------------------------------------------------------------- the damage


def _changed(change: Callable[[bytearray, random.Random], None]) -> Damage:
    def damage(subject: Subject, name: str, choose: random.Random, path: Path) -> list[str]:
        data = bytearray(subject.files[name])
        if data:
            change(data, choose)
        path.write_bytes(data)
        return [name]

    return damage


def _flip(n: int) -> Damage:
    def change(data: bytearray, choose: random.Random) -> None:
        for place in choose.sample(range(8 * len(data)), min(n, 8 * len(data))):
            data[place // 8] ^= 1 << place % 8

    return _changed(change)


@_changed
def _burst(data: bytearray, choose: random.Random) -> None:
    begin = choose.randrange(len(data))
    for place in range(begin, min(begin + choose.choice([1, 2, 20, 64]), len(data))):
        data[place] = choose.randrange(256)


@_changed
def _sector(data: bytearray, choose: random.Random) -> None:
    begin = 512 * choose.randrange(-(-len(data) // 512))
    data[begin : begin + 512] = bytes(len(data[begin : begin + 512]))


@_changed
def _cut(data: bytearray, choose: random.Random) -> None:
    del data[choose.randrange(len(data)) :]


@_changed
def _longer(data: bytearray, choose: random.Random) -> None:
    data += choose.choice([b"\0", b"\n", bytes(512), bytes(data[-40:]), bytes(data)])


def _swap(subject: Subject, name: str, choose: random.Random, path: Path) -> list[str]:
    other = choose.choice(list(subject.files))
    path.write_bytes(subject.files[other])
    (path.parent / other).write_bytes(subject.files[name])
    return [name, other]


def _missing(subject: Subject, name: str, choose: random.Random, path: Path) -> list[str]:
    path.unlink()
    return [name]


def _other(subject: Subject, name: str, choose: random.Random, path: Path) -> list[str]:
    """Put a file of another store or run in its place."""
    content = subject.twins.get(name)
    if content is None or choose.random() < 0.3:
        content = choose.choice(list(subject.twins.values()))
    path.write_bytes(content)
    return [name]


def _unnamed(subject: Subject, name: str, choose: random.Random, path: Path) -> list[str]:
    """Put something there that nothing names, as a process that was killed leaves it."""
    left = {
        "store": ["block-000077.sbb", "index-0077.sba", "features-0077.sba", "manifest.json.tmp"]
    }.get(subject.kind, ["alpha-00000.077777.sba", "state-077777.sba", "run.json.tmp", "x.sbt"])
    data = choose.choice([b"", b"{}", choose.randbytes(100), *subject.files.values()])
    chosen = choose.choice(left)
    (path.parent / chosen).write_bytes(data)
    return [chosen]


DAMAGES: dict[str, Damage] = {
    "bit": _flip(1), "two bits": _flip(2), "burst": _burst, "sector": _sector, "cut": _cut,
    "longer": _longer, "swap": _swap, "missing": _missing, "other": _other, "unnamed": _unnamed,
}  # fmt: skip
_OF_FOLDERS = ("swap", "missing", "other", "unnamed")


# ------------------------------------------------------------------------------------ the cases


class _HangError(Exception):
    """A case that does not end."""


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    def stop(number: int, frame: Any) -> None:
        raise _HangError(f"no end after {LONGEST} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


class _Bench:
    """Where files are damaged, read and mended."""

    def __init__(self, folder: Path, seed: int) -> None:
        global _sources
        self._work, self._seed = folder / "work", seed
        for variant in ("a", "b"):
            if not (folder / variant / "done").exists():
                shutil.rmtree(folder / variant, ignore_errors=True)
                _make(folder / variant, variant)
                (folder / variant / "done").touch()
        shutil.rmtree(self._work, ignore_errors=True)
        _sources = folder / "a"
        self.subjects = _subjects(folder)
        for subject in self.subjects:
            for number in (None, *range(len(subject.acts))):
                subject.results[number] = self._result(subject, number)
            self._lay(subject)

    def _lay(self, subject: Subject) -> Path:
        """Put the undamaged files in place, in a folder of the subject's."""
        folder = self._work / subject.name.replace(".", "-")
        path = folder / subject.name
        if folder.exists():
            shutil.rmtree(folder)
        if "" in subject.files:
            folder.mkdir(parents=True)
        else:
            path.mkdir(parents=True)
        for name in subject.files:
            self._mend(subject, path, name)
        if subject.kind == "stream":
            model = subject.name.removesuffix(".run")
            shutil.copy(_sources / model, folder / model)
        return path

    @staticmethod
    def _mend(subject: Subject, path: Path, name: str) -> None:
        place = path / name if name else path
        if name in subject.files:
            place.write_bytes(subject.files[name])
        else:
            place.unlink()

    def _result(self, subject: Subject, number: int | None) -> Digest:
        path = self._lay(subject)
        return subject.read(path) if number is None else subject.acts[number](path)

    def one(self, case: int, tally: Tally) -> list[str]:
        """Run one case; return what went wrong."""
        choose = random.Random(f"{self._seed} {case}")
        subject = self.subjects[case % len(self.subjects)]
        is_folder = "" not in subject.files
        kind = choose.choice([k for k in DAMAGES if is_folder or k not in _OF_FOLDERS])
        name = choose.choice(list(subject.files))
        number = choose.randrange(len(subject.acts)) if subject.acts else None
        number = number if choose.randrange(ACT_EVERY) == 0 else None
        path = self._work / subject.name.replace(".", "-") / subject.name
        changed = DAMAGES[kind](subject, name, choose, path / name if name else path)
        read = subject.read if number is None else subject.acts[number]
        what = f"{kind} {subject.name} {' and '.join(changed)} {read.__name__.strip('_')}"
        tally.count("damage", kind)
        tally.count("files", subject.kind)
        outcome, fault = self._outcome(subject, read, path, subject.results[number])
        if number is None:  # what reads does not write
            for name in changed:
                self._mend(subject, path, name)
        else:
            self._lay(subject)
        if fault is None and kind == "unnamed" and outcome != "no effect":
            fault = f"a file that nothing names mattered: {outcome}"
        tally.count("outcome", outcome.partition(":")[0])
        return [] if fault is None else [f"{what}: {fault}"]

    def _outcome(
        self, subject: Subject, read: Callable[[Path], Digest], path: Path, expected: Digest
    ) -> tuple[str, str | None]:
        before = _peak()
        try:
            with _in_time():
                found = read(path)
        except (StoreError, DataError) as error:
            outcome = f"refused: {error}"
            fault = _fault_of(str(error), subject)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            outcome, fault = "failed", f"{type(error).__name__}: {error}"
        else:
            same = found == expected or not subject.is_checked
            outcome, fault = "no effect", None if same else "another result, and no error"
        if fault is None and _peak() - before > LARGEST:
            fault = f"{(_peak() - before) >> 10} MB more memory"
        return outcome, fault


def _fault_of(message: str, subject: Subject) -> str | None:
    """What is wrong with a refusal."""
    if "\n" in message or len(message) > 400:
        return f"no sentence: {message[:400]!r}"
    if subject.name.removesuffix(".run") not in message:
        return f"a sentence that names no file: {message}"
    return None


def run(
    cases: int, seed: int, folder: Path, tell: Callable[[str], None], *, only: int | None = None
) -> Tally:
    """Damage files and read them.

    Parameters
    ----------
    cases : int
    seed : int
        Of all choices; the files themselves are the same for every seed.
    folder : Path
        Where the files are made, or were by an earlier run.
    tell : callable
        Is told a line now and then.
    only : int, optional
        Run this case alone.

    Returns
    -------
    Tally
        Figures ``damage``, ``files`` and ``outcome`` count the cases by kind.
    """
    tally, bench = Tally("flips"), _Bench(folder, seed)
    numbers = range(cases) if only is None else [only]
    tally.try_each(numbers, lambda case: bench.one(case, tally), tell, f"seed {seed} case {{}}")
    return tally
