"""Random examples of the tests in guarded memory; accesses out of bounds end the process.

The tests of readers, codecs and trainings draw their examples with hypothesis. A child of pytest
runs them with more examples, drawn anew from a seed, and with this file as a plugin: every array
that a kernel is called with is copied to lie between two pages that nobody may touch. So reading
past an end kills the child, also by pointers (eight or 64 bytes at a time), which no compiler
checks. For `bounds` the child's kernels are compiled such that they check their bounds, too.
"""

import ctypes
import json
import mmap
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sbm.compiled.cache import COMPILE_HERE, FOLDER
from sbm.compiled.calls import Kernel, load
from scripts.torture.tally import Tally, Tell

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = "SBM_TORTURE_EXAMPLES"  # how many each test draws
OUTCOME = "SBM_TORTURE_OUTCOME"  # a file for what was found
READERS = (
    "libsvm", "text", "live", "arrivals", "inputs", "inputs_arrays", "codec", "chunks", "alphas"
)  # fmt: skip
TRAININGS = ("kernels", "losses_train", "onepass", "tune", "predict")
LARGEST = 1 << 20  # bytes of an array that is copied

Array = npt.NDArray[Any]


class GuardedBytes:
    """Memory between two pages whose reading or writing ends the process; `LARGEST` bytes."""

    def __init__(self) -> None:
        page = mmap.PAGESIZE
        whole = np.frombuffer(mmap.mmap(-1, LARGEST + 2 * page), np.uint8)
        self._inside = whole[page:-page]
        protect, no_access = ctypes.CDLL(None, use_errno=True).mprotect, 0
        for begin in (whole.ctypes.data, whole.ctypes.data + page + LARGEST):
            if protect(ctypes.c_void_p(begin), ctypes.c_size_t(page), no_access):
                raise OSError(ctypes.get_errno(), "pages cannot be protected")

    def hold(self, array: Array, at_begin: bool) -> Array:
        """Return a copy of an array that begins or ends where nothing may be touched any more."""
        begin = 0 if at_begin else LARGEST - array.nbytes
        copy = self._inside[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
        copy[...] = array
        return copy


class _Guard(threading.local):
    """Copies the arrays of a call, in each thread in memory of its own."""

    def __init__(self) -> None:
        self._places: list[GuardedBytes] = []
        self._calls = 0

    def call(self, do: Callable[..., Any], values: Sequence[Any]) -> Any:
        """Call with copies, and copy back what may have been changed."""
        arrays = {id(v): v for v in values if isinstance(v, np.ndarray) and v.size}
        distinct = list({(a.ctypes.data, a.nbytes): a for a in arrays.values()}.values())
        overlap = any(
            np.may_share_memory(a, b) for k, a in enumerate(distinct) for b in distinct[:k]
        )
        if overlap or any(a.nbytes > LARGEST or not a.flags.c_contiguous for a in distinct):
            return do(*values)
        self._calls += 1
        while len(self._places) < len(distinct):
            self._places.append(GuardedBytes())
        copies = {
            a.ctypes.data: place.hold(a, self._calls % 5 == 0)
            for a, place in zip(distinct, self._places, strict=False)
        }
        before = {place: copy.tobytes() for place, copy in copies.items()}
        result = do(*(copies[v.ctypes.data].view(v.dtype).reshape(v.shape)
                      if id(v) in arrays else v for v in values))  # fmt: skip
        for array in distinct:
            if array.flags.writeable:  # another thread may write to other parts of it meanwhile
                now = copies[array.ctypes.data].reshape(-1).view(np.uint8)
                changed = now != np.frombuffer(before[array.ctypes.data], np.uint8)
                array.reshape(-1).view(np.uint8)[changed] = now[changed]
        return result


# ----------------------------------------------------------------------------- a plugin of pytest

_passed: list[str] = []


def pytest_configure(config: Any) -> None:
    """Draw more examples, and guard the arrays of all kernels."""
    if EXAMPLES not in os.environ:
        return
    from hypothesis import settings

    number = int(os.environ[EXAMPLES])
    settings.register_profile("torture", max_examples=number, deadline=None, database=None)
    settings.load_profile("torture")
    guard, call = _Guard(), Kernel.__call__

    def guarded(kernel: Kernel, *values: Any) -> Any:
        return guard.call(partial(call, kernel), values)

    Kernel.__call__ = guarded  # type: ignore[method-assign, assignment]


def pytest_runtest_logreport(report: Any) -> None:
    """Count the tests."""
    if report.when == "call" and report.passed:
        _passed.append(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write what was found."""
    if OUTCOME in os.environ:
        Path(os.environ[OUTCOME]).write_text(json.dumps(_passed))


# ------------------------------------------------------------------------------------ the section


def run_examples(
    cases: int, seed: int, folder: Path, tell: Tell,
    files: Sequence[str] = READERS, words: Sequence[str] = (), is_checked: bool = False,
) -> Tally:  # fmt: skip
    """Run tests of ``tests/test_NAME.py`` with so many random examples each.

    ``words`` are more arguments for pytest; ``is_checked``: kernels check their bounds.
    """
    tally = Tally("bounds" if is_checked else "examples")
    folder.mkdir(parents=True, exist_ok=True)
    outcome = folder / "outcome.json"
    environment = {**os.environ, EXAMPLES: str(cases), OUTCOME: str(outcome), COMPILE_HERE: "1"}
    if is_checked:
        # Checks are put in before the code is optimised, which takes most of the time.
        code = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_OPT": "0", FOLDER: str(folder / "code")}
        environment |= code
        command = [sys.executable, "-c", "from scripts.torture.guard import prove; prove()"]
        proof = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, check=False)
        if proof.returncode != -signal.SIGABRT:
            tally.failures.append("the parser does not notice an array that is too short")
    for name in files:
        outcome.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "scripts.torture.guard", "--tier", "all", "-x",
             f"--hypothesis-seed={seed}", "-p", "no:cacheprovider", "-p", "no:xdist",
             "-o", "timeout=3600", f"tests/test_{name}.py", *words],
            env=environment, cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        passed = json.loads(outcome.read_text()) if outcome.exists() else []
        tally.tried += len(passed)
        tally.count("tests", name, len(passed))
        if done.returncode != 0:
            tally.failures.append(
                f"seed {seed}, {name}: the tests ended with code {done.returncode}: "
                f"{(done.stdout + done.stderr)[-3000:].strip()}"
            )
        tell(f"{tally.what}: {name}, {len(passed)} tests, {len(tally.failures)} failures")
    return tally


def run_bounds(
    cases: int, seed: int, folder: Path, tell: Tell,
    files: Sequence[str] = (*READERS, *TRAININGS), words: Sequence[str] = (),
) -> Tally:  # fmt: skip
    """Run the tests of all kernels, compiled so that they check their bounds."""
    return run_examples(cases, seed, folder, tell, files, words, is_checked=True)


def prove() -> None:
    """Call the parser with an array that is too short; one that checks does not come back."""
    text, numbers, too_short = np.full(80, 10, np.uint8), np.zeros(4, np.int64), np.empty(0)
    text[0] = ord("1")
    load("sbm.inputs.kernels.text").parse(
        text, 2, 1.0, False, 0, True, True, too_short, numbers, numbers.copy(),
        np.empty(4, np.float32), np.empty((1, 3), np.int64), np.empty((1, 4), np.int64),
        np.zeros(7, np.int64), np.empty(1, np.uint64),
    )  # fmt: skip
