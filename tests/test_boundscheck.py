"""Kernels in guarded memory and with bounds checks, by scripts/torture/guard.py."""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts.torture import guard

PAST_THE_END = """
import ctypes
import numpy as np
from scripts.torture.guard import _Guard
_Guard().call(lambda a: ctypes.string_at(a.ctypes.data, 4 * SIZE), [np.zeros(SIZE, np.int32)])
"""


@pytest.mark.process
@pytest.mark.parametrize(("read", "code"), [("SIZE", 0), ("SIZE + 1", -11)])
def test_reading_past_end_crashes(read: str, code: int) -> None:
    script = PAST_THE_END.replace("4 * SIZE", f"4 * ({read})").replace("SIZE", "7")
    done = subprocess.run([sys.executable, "-c", script], cwd=guard.ROOT, check=False)
    assert done.returncode == code


@pytest.mark.process
@pytest.mark.slow
def test_text_and_store_kernels_stay_in_bounds(tmp_path: Path) -> None:
    tally = guard.run_examples(30, 5, tmp_path, lambda text: None, ["libsvm", "codec", "alphas"])
    assert tally.failures == []
    assert min(tally.figures["tests"].values()) > 3


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(1200)  # all of these kernels are compiled anew
def test_kernels_stay_within_their_arrays(tmp_path: Path) -> None:
    files = ["libsvm", "codec", "alphas", "kernels"]
    tally = guard.run_bounds(20, 1, tmp_path, lambda text: None, files)
    assert tally.failures == []  # also if an access out of bounds would not be noticed
    assert min(tally.figures["tests"].values()) > 3
