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
from scripts.torture.tally import Tally, Tell

MEM = "400MB"
ACT_EVERY = 40  # cases; what takes long is tried so often
LONGEST = 60  # seconds of a case
LARGEST = 64 << 10  # kilobytes that a case may add to the peak of the process

Digest = Any
Damage = Callable[["Subject", Path, random.Random], None]  # of a file of a copy


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
TRAINED = {  # store and loss of each run
    "dense": ("double", "hinge"), "lists": ("grown", "crammer_singer"),
    "several": ("single", "squared_hinge"), "real": ("real", "squared_epsilon_insensitive"),
    "stream-dense": ("double", "hinge"), "stream-lists": ("single", "crammer_singer"),
}  # fmt: skip


def _settings(name: str) -> dict[str, Any]:
    limits = {} if name.startswith("stream-") else {"max_passes": 3, "tol": 1e-9}
    return {"mem": MEM, "threads": 1, "loss": TRAINED[name][1], "C": 0.5, **limits}


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
    for name, (store, _) in TRAINED.items():
        model, settings = folder / f"{name}.model", _settings(name)
        if name.startswith("stream-"):
            dtype = BlockStore(folder / f"{store}.sbm").value_type
            sbm.stream([folder / f"{store}.svm"], model, settings, options={"dtype": dtype})
            (folder / f"{name}-more.svm").write_text(_text(30, 9, "more", TWO))
        else:
            sbm.train(folder / f"{store}.sbm", model, settings)
    sbm.export(folder / "several.model", folder / "several.txt")


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
    """Return the report of info, without facts from the log, which has no checksums."""
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
    settings = _settings(name) | {"warm_start": str(path), "max_passes": 1}
    source = _sources / f"{TRAINED[name][0]}.sbm"
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

# What takes longer, and may write, comes last.
_READERS: dict[str, Sequence[Callable[[Path], Digest]]] = {
    "store": (_read_store, _train, _append), "run": (_read_run, _warm_start),
    "stream": (_read_stream, _resume), "model": (_read_model, _prune), "text": (_read_text,),
}  # fmt: skip


@dataclass
class Subject:
    """A store, run or model of which copies are damaged."""

    path: Path  # the undamaged one; beside it in another folder lies another one of the same shape
    kind: str
    results: list[Digest] = field(default_factory=list)  # what must not change, of each reader

    @property
    def names(self) -> list[str]:
        """Its files; a model is one, named ``""``."""
        if self.path.is_file():
            return [""]
        return sorted(p.name for p in self.path.iterdir() if p.is_file())

    @property
    def twins(self) -> dict[str, bytes]:
        """Content of the other store or run."""
        twin = self.path.parent.with_name("b") / self.path.name
        return {p.name: p.read_bytes() for p in sorted(twin.iterdir()) if p.is_file()}

    def copy(self, folder: Path) -> Path:
        """Lay a copy in an empty folder; a stream's with its model."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        model = self.path.with_suffix("")
        for path in (self.path, *([model] if self.kind == "stream" else [])):
            (shutil.copytree if path.is_dir() else shutil.copy)(path, folder / path.name)
        return folder / self.path.name


def _kind(path: Path) -> str:
    if path.suffix == ".run":
        return "stream" if path.name.startswith("stream-") else "run"
    return {".sbm": "store", ".txt": "text"}.get(path.suffix, "model")


# ----------------------------------------------------------------------------------- the damage


def _changed(change: Callable[[bytearray, random.Random], None]) -> Damage:
    def damage(subject: Subject, path: Path, choose: random.Random) -> None:
        data = bytearray(path.read_bytes())
        if data:
            change(data, choose)
        path.write_bytes(data)

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


def _swap(subject: Subject, path: Path, choose: random.Random) -> None:
    other = path.with_name(choose.choice(subject.names))
    mine, theirs = path.read_bytes(), other.read_bytes()
    path.write_bytes(theirs)
    other.write_bytes(mine)


def _missing(subject: Subject, path: Path, choose: random.Random) -> None:
    path.unlink()


def _other(subject: Subject, path: Path, choose: random.Random) -> None:
    """Put a file of another store or run in its place."""
    twins = subject.twins
    content = twins.get(path.name)
    if content is None or choose.random() < 0.3:
        content = choose.choice(list(twins.values()))
    path.write_bytes(content)


def _unnamed(subject: Subject, path: Path, choose: random.Random) -> None:
    """Put something there that nothing names, as a process that was killed leaves it."""
    left = {
        "store": ["block-000077.sbb", "index-0077.sba", "features-0077.sba", "manifest.json.tmp"]
    }.get(subject.kind, ["alpha-077777.sba", "state-077777.sba", "run.json.tmp", "x.sbt"])
    data = choose.choice([b"", b"{}", choose.randbytes(100), path.read_bytes()])
    path.with_name(choose.choice(left)).write_bytes(data)


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
        raise _HangError(f"not finished after {LONGEST} seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LONGEST)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _subjects(folder: Path) -> list[Subject]:
    """Make all files, and note what reading each comes to."""
    global _sources
    for variant in ("a", "b"):
        if not (folder / variant / "done").exists():
            shutil.rmtree(folder / variant, ignore_errors=True)
            _make(folder / variant, variant)
            (folder / variant / "done").touch()
    _sources = folder / "a"
    found = []
    for path in sorted(_sources.iterdir()):
        if path.suffix in (".sbm", ".run", ".model", ".txt"):
            subject = Subject(path, _kind(path))
            readers = _READERS[subject.kind]
            subject.results = [read(subject.copy(folder / "work")) for read in readers]
            found.append(subject)
    return found


def _try(subject: Subject, choose: random.Random, folder: Path, tally: Tally) -> list[str]:
    """Damage a copy and read it; return what went wrong."""
    names, readers = subject.names, _READERS[subject.kind]
    kind = choose.choice([k for k in DAMAGES if names != [""] or k not in _OF_FOLDERS])
    name = choose.choice(names)
    number = choose.randrange(1, len(readers)) if len(readers) > 1 else 0
    number = number if choose.randrange(ACT_EVERY) == 0 else 0
    path = subject.copy(folder)
    DAMAGES[kind](subject, path / name if name else path, choose)
    tally.count("damage", kind)
    tally.count("files", subject.kind)
    before, outcome, fault = _peak(), "no effect", None
    try:
        with _in_time():
            same = readers[number](path) == subject.results[number]
        if not same and subject.kind != "text":
            fault = "a different result, but no error"
    except (StoreError, DataError) as error:
        outcome, fault = "refused", _fault_of(str(error), subject)
        if kind == "unnamed":
            fault = f"an unreferenced file caused an error: {error}"
    except Exception as error:
        outcome, fault = "failed", f"{type(error).__name__}: {error}"
    if fault is None and _peak() - before > LARGEST:
        fault = f"{(_peak() - before) >> 10} MB more memory"
    tally.count("outcome", outcome)
    what = f"{kind} {subject.path.name} {name} {readers[number].__name__.strip('_')}"
    return [] if fault is None else [f"{what}: {fault}"]


def _fault_of(message: str, subject: Subject) -> str | None:
    """What is wrong with a refusal."""
    if "\n" in message or len(message) > 400:
        return f"no sentence: {message[:400]!r}"
    if subject.path.name.removesuffix(".run") not in message:
        return f"the message names no file: {message}"
    return None


def run(cases: int, seed: int, folder: Path, tell: Tell, only: int | None = None) -> Tally:
    """Damage files and read them; the files are the same for every seed."""
    tally, subjects = Tally("flips"), _subjects(folder)

    def attempt(case: int) -> list[str]:
        choose = random.Random(f"{seed} {case}")
        return _try(subjects[case % len(subjects)], choose, folder / "work", tally)

    tally.try_each(
        range(cases) if only is None else [only], attempt, tell, f"seed {seed} case {{}}"
    )
    return tally
