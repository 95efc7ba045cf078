"""Kernels mean without a compiler what they mean with it."""

import json
import os
import sys
from pathlib import Path

import pytest
import uncompiled
from processes import finished


def test_kernels_do_the_same_without_a_compiler(tmp_path: Path) -> None:
    for name in ("compiled", "plain"):
        (tmp_path / name).mkdir()
    root = Path(uncompiled.__file__).parent.parent
    finished(
        [sys.executable, uncompiled.__file__, tmp_path / "plain"], check=True,
        env={**os.environ, "PYTHONPATH": str(root), "NUMBA_DISABLE_JIT": "1"},
    )  # fmt: skip
    found = json.loads((tmp_path / "plain" / "found.json").read_text())
    expected = json.loads(json.dumps(uncompiled.work(tmp_path / "compiled")))
    assert found.keys() == expected.keys()
    for what, numbers in expected.items():
        # The compiler may add and multiply in one step, with one rounding.
        assert flat(found[what]) == pytest.approx(flat(numbers), rel=1e-9, abs=1e-12), what


def flat(numbers: object) -> list[float]:
    if isinstance(numbers, list):
        return [one for part in numbers for one in flat(part)]
    return [float(numbers)]  # type: ignore[arg-type]
