"""scripts/torture_bounds.py: kernels of the store with their bounds checked; others on request."""

import sys
from pathlib import Path

import pytest
from helpers import SCRIPTS, load_script
from processes import finished

from sbm import compiled

torture_bounds = load_script("torture_bounds")
from scripts.torture_guard import checked  # noqa: E402  the script says where scripts are


def test_no_access_of_the_kernels_of_the_store_is_out_of_bounds(tmp_path: Path) -> None:
    # Its lines are read as float32, which the parser was compiled for to show that it is checked.
    tally = torture_bounds.run(1000, 1, tmp_path, lambda text: None, solvers=())
    assert tally.failures == []
    assert tally.tried == 1000 + 5 * 100
    assert sum(tally.figures["lines"].values()) == 1000
    assert tally.figures["store"] == dict.fromkeys(
        ("ids", "rows", "planes", "alphas", "names"), 100
    )
    # They were compiled for this, and nothing of it is left to others.
    code = {path.name: path.read_bytes() for path in (tmp_path / "code").iterdir()}
    made = {name.split(".")[0] for name in code}
    kernels = {
        "text": ["parse"], "ids": ["count", "drop_unknown", "intern", "look_up", "rehash"],
        "rows": ["encode_numbers", "decode_numbers", "encode_rows", "decode_rows"],
        "planes": ["join", "ungap", "ungap_2"], "alphas": ["pack", "unpack"],
        "names": ["hash_names", "parse"],
    }  # fmt: skip
    assert made == {f"store-{file}-{name}" for file, names in kernels.items() for name in names}
    others = [path for path in compiled.folder().glob("*.sbk") if path.name in code]
    assert not any(path.read_bytes() == code[path.name] for path in others)


PROBE = """
import sys
import numpy as np
from pathlib import Path
sys.path[:0] = [sys.argv[1], sys.argv[2]]
from sbm import compiled
compiled._source = lambda module: Path(sys.argv[1]) / "probe" / "kernels.py"
numbers = np.arange(10)
print(compiled.Kernel("probe.kernels", "last")(numbers[:4], int(sys.argv[3])))
"""
KERNELS = """
from numba import njit

@njit(nogil=True, error_model="numpy")
def last(numbers, k):
    return numbers[k]
"""


@pytest.mark.parametrize(
    ("kind", "place", "code", "said"),
    [
        ("checked", 3, 0, "3\n"), ("checked", 4, -6, ""), ("unchecked", 4, 0, "4\n"),
    ],
)  # fmt: skip
def test_a_checked_kernel_that_leaves_its_array_ends_the_process(
    tmp_path: Path, kind: str, place: int, code: int, said: str
) -> None:
    (tmp_path / "probe").mkdir()
    (tmp_path / "probe" / "kernels.py").write_text(KERNELS)
    environment = checked(tmp_path / "code")
    if kind == "unchecked":
        del environment["NUMBA_BOUNDSCHECK"]
    done = finished(
        [sys.executable, "-c", PROBE, str(tmp_path), str(SCRIPTS.parent), str(place)],
        env=environment,
    )
    assert (done.returncode, done.stdout) == (code, said), done.stderr


def test_kernels_that_are_not_checked_are_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if numba did not know the word: an array that is too short is not noticed.
    script = tmp_path / "child.py"
    script.write_text("")
    monkeypatch.setattr(torture_bounds, "__file__", str(script))
    tally = torture_bounds.run(0, 0, tmp_path, lambda text: None, solvers=())
    assert "the parser does not notice an array that is too short" in tally.failures


def test_a_part_that_ends_with_its_process_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "child.py"
    script.write_text(
        "import os, sys\nprint(sys.argv[2], file=sys.stderr, flush=True)\nos.abort()\n"
    )
    monkeypatch.setattr(torture_bounds, "__file__", str(script))
    tally = torture_bounds.run(0, 7, tmp_path, lambda text: None, solvers=("hinge",))
    assert tally.failures == [
        f"seed 7, {part}: the process ended with code -6: {part}" for part in ("store", "hinge")
    ]
