"""Helpers of the tests of `sbm stream`: growing text and pipes."""

import bz2
import contextlib
import gzip
import itertools
import lzma
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zstandard
from inside import Run, Size, patch, sources_at
from inside import store_container_module as arrays
from inside import streaming_plan_module as streamplan

import sbm

PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.compress,
}


def make_lines(
    n: int, seed: int = 0, classes: int = 2, values: bool = True, targets: bool = False
) -> list[bytes]:
    """Rows of text; later ones have features and classes that earlier ones do not have."""
    random = np.random.default_rng(seed)
    lines = []
    for k in range(n):
        known = 8 + k // 4
        ids = np.unique(random.integers(1, 1 + known, random.integers(1, 7)))
        there = min(classes, 2 + k * classes // n)
        label: Any = int(ids[0] + random.integers(0, 2)) % there
        label = 2 * label - 1 if classes == 2 else label
        if targets:
            label = round(float(np.sin(ids).sum() + random.normal() / 8), 3)
        pairs = (f"{i}:{random.integers(1, 32) / 8 if values else 1:g}" for i in ids)
        lines.append(f"{label} {' '.join(pairs)}\n".encode())
    return lines


def stop_at(call: int) -> Callable[[], bool]:
    """Return false, and true from the n-th call on."""
    calls = iter(range(1, call))
    return lambda: next(calls, None) is None


def learn(
    inputs: Any, model: Path, resume: bool = False, stop: Callable[[], bool] | None = None,
    options: Any = None, **settings: Any,
) -> dict[str, Any]:  # fmt: skip
    """Stream with test settings; return the report."""
    if not resume:
        settings = {"mem": "400MB", **settings}
    _, report = sbm.stream(
        inputs, model, settings, options=options, resume=resume,
        is_stopped=stop or (lambda: False),
    )  # fmt: skip
    return report


def kept(model: Path) -> dict[str, Any]:
    """Return everything saved by a stream, by name, in a comparable form."""
    folder = model.with_name(model.name + ".run")
    record = Run.read(folder)
    state = arrays.read(folder / record["state"], "state").arrays
    sources = sources_at(record["sources"])
    names = ("learner", "needs", "seen", "labels", "progressive", "totals", "blocks", "pending")
    return {
        "model": model.read_bytes() if model.exists() else None, "sources": sources,
        **{name: record[name] for name in names},
        **{name: (a.dtype.str, a.shape, a.tobytes()) for name, a in state.items()},
    }  # fmt: skip


def same(model: Path, other: Path) -> None:
    """Check that two streams saved the same bytes."""
    one, two = kept(model), kept(other)
    assert sorted(one) == sorted(two), sorted({*one} ^ {*two})
    different = {name: (one[name], two[name]) for name in one if one[name] != two[name]}
    assert not different, {name: str(pair)[:300] for name, pair in different.items()}


def chunks(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Cut bytes into parts of these sizes, repeatedly."""
    parts, begin = [], 0
    for size in itertools.cycle(sizes):
        if begin >= len(data):
            return parts
        parts.append(data[begin : begin + size])
        begin += size
    raise AssertionError


@contextlib.contextmanager
def writer(fd: int, parts: Sequence[bytes]) -> Iterator[threading.Thread]:
    """Write to a pipe from a thread, and close it."""

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), os.fdopen(fd, "wb", 0) as file:
            for part in parts:
                file.write(part)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        thread.join(30)
        assert not thread.is_alive()


@contextlib.contextmanager
def stdin_of(monkeypatch: pytest.MonkeyPatch, fd: int) -> Iterator[None]:
    """Make standard input the end of a pipe; close it at the end."""
    with os.fdopen(fd, "rb") as file:
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=file))
        yield


def small_plans(
    monkeypatch: pytest.MonkeyPatch, rows: int = 48, first: int = 32, cache: float = 0.5
) -> list[Any]:
    """Make blocks small and leave little room for features; return the plans made."""
    plans: list[Any] = []

    def plan(*arguments: Any) -> streamplan.StreamPlan:
        made = streamplan.plan_stream(*arguments)
        needs, cache_frac = arguments[3], arguments[1]
        share = cache if cache_frac else 0.0
        nnz = rows * 5 + needs.longest
        size = Size(
            rows, nnz, int(rows * share) * max(1, len(arguments[2].outputs)),
            int(nnz * share) * max(1, len(arguments[2].outputs)), needs.features + 20,
            made.size.row_variables,
        )  # fmt: skip
        planned = replace(made.planned, features=size.features)
        plans.append(replace(made, size=size, planned=planned))
        return plans[-1]

    patch(monkeypatch, "plan_stream", plan)
    patch(monkeypatch, "FIRST_BLOCK", first)
    return plans


def small_pieces(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Parse text in pieces of few bytes."""
    patch(monkeypatch, "text.PIECE", size)
