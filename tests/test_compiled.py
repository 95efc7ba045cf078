"""sbm/compiled.py: machine code from the disk gives what numba gives."""

import importlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import sbm
from sbm import compiled
from sbm.cli import _Terminal
from sbm.jobs import warm

PACKAGE = Path(sbm.__file__).parent

PROBE = '''
import numpy as np
from numba import njit

@njit(nogil=True, error_model="numpy")
def add(numbers, table, flags, start, factor, key, negate, absent):
    """Return a checksum of everything; write the sum of each row of the table to numbers."""
    for i in range(table.shape[0]):
        numbers[i] = factor * start
        for j in range(table.shape[1]):
            numbers[i] += -table[i, j] if negate else table[i, j]
        flags[i] = numbers[i] > 0
    return len(numbers), np.int64(key >> np.uint64(60)), absent is None, start

@njit(nogil=True, error_model="numpy")
def nothing(numbers):
    numbers[:] = 7

@njit(nogil=True, error_model="numpy")
def greedy(n):
    return len(np.empty(n))

@njit(nogil=True, error_model="numpy")
def fraction(x):
    return x / 3
'''


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A module of kernels that is loaded like ours, from a folder of its own."""
    (tmp_path / "sbm_probe").mkdir()
    source = tmp_path / "sbm_probe" / "kernels.py"
    source.write_text(PROBE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(compiled, "_source", lambda module: source)
    monkeypatch.setattr(compiled, "folder", lambda: tmp_path / "code")
    yield tmp_path / "code"
    for name in [m for m in sys.modules if m.startswith("sbm_probe")]:
        del sys.modules[name]


def call(kernel, negate):
    numbers, table = np.zeros(3), np.arange(6, dtype=np.float32).reshape(3, 2)
    flags = np.zeros(3, bool)
    got = kernel(numbers, table, flags, -3, 0.5, np.uint64(5 << 60), negate, None)
    return got, numbers.tolist(), flags.tolist()


def test_every_kind_of_argument_and_result_arrives(probe):
    kernel = compiled.Kernel("sbm_probe.kernels", "add")
    plain = [-1.5 + 1, -1.5 + 5, -1.5 + 9]
    assert call(kernel, False) == ((3, 5, 1, -3), plain, [False, True, True])
    assert call(kernel, np.True_) == ((3, 5, 1, -3), [-2.5, -6.5, -10.5], [False] * 3)


def test_threads_may_call_different_kernels_for_the_first_time_at_once(probe):
    def first_call(name: str) -> list[float]:
        numbers = np.zeros(2)
        compiled.Kernel("sbm_probe.kernels", name)(numbers)
        return numbers.tolist()

    first_call("nothing")  # compiled by now
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(first_call, ["nothing"] * 64)) == [[7.0, 7.0]] * 64


def test_a_kernel_without_results_gives_none(probe):
    numbers = np.zeros((2, 3), np.int32)
    assert compiled.Kernel("sbm_probe.kernels", "nothing")(numbers) is None
    assert (numbers == 7).all()


def test_machine_code_is_kept_and_used_without_compiling_again(probe, monkeypatch):
    first = call(compiled.Kernel("sbm_probe.kernels", "add"), False)
    assert len(list(probe.iterdir())) == 1
    monkeypatch.setattr(compiled, "_make", lambda *a: pytest.fail("compiled again"))
    assert call(compiled.Kernel("sbm_probe.kernels", "add"), False) == first


@pytest.mark.parametrize("damage", [b"", b"x" * 100, None])
def test_damaged_machine_code_is_made_again(probe, damage):
    first = call(compiled.Kernel("sbm_probe.kernels", "add"), False)
    (path,) = probe.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] if damage is None else damage)
    assert call(compiled.Kernel("sbm_probe.kernels", "add"), False) == first
    assert compiled._read(path) is not None


def test_an_edited_source_is_compiled_anew_and_replaces_the_old_code(probe, tmp_path):
    call(compiled.Kernel("sbm_probe.kernels", "add"), False)
    before = list(probe.iterdir())
    source = tmp_path / "sbm_probe" / "kernels.py"
    source.write_text(PROBE + "\n")
    call(compiled.Kernel("sbm_probe.kernels", "add"), False)
    after = list(probe.iterdir())
    assert len(before) == len(after) == 1
    assert before != after


USER = """
from numba import njit

from sbm_probe.helper import half

@njit(nogil=True, error_model="numpy")
def twice(x):
    return half(4 * x)
"""
HELPER = """
from numba import njit

import sbm_probe.deeper

quarter = sbm_probe.deeper.quarter

@njit(nogil=True, error_model="numpy")
def half(x):
    return 2 * quarter(x)
"""
DEEPER = """
from numba import njit

@njit(nogil=True, error_model="numpy")
def quarter(x):
    return x // 4
"""


@pytest.mark.parametrize(
    ("edited", "found", "put"),
    [("helper", "2 * q", "20 * q"), ("deeper", "x // 4", "10 * x // 4")],
)
def test_an_edited_helper_leaves_no_stale_code_of_the_kernels_that_use_it(
    probe, tmp_path, edited, found, put
):
    def twice_of_three() -> int:
        for name in [m for m in sys.modules if m.startswith("sbm_probe")]:
            del sys.modules[name]  # as in a process of its own
        importlib.invalidate_caches()
        return compiled.Kernel("sbm_probe.kernels", "twice")(3)

    folder = tmp_path / "sbm_probe"
    texts = {"kernels": USER, "helper": HELPER, "deeper": DEEPER, "stranger": DEEPER}
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    assert twice_of_three() == 6
    (before,) = probe.iterdir()
    (folder / "stranger.py").write_text("")
    assert twice_of_three() == 6
    assert [before] == list(probe.iterdir())  # nobody imports it
    (folder / f"{edited}.py").write_text(texts[edited].replace(found, put))
    assert twice_of_three() == 60
    (after,) = probe.iterdir()
    assert before != after


def test_kernels_are_named_after_the_helpers_they_import():
    def names(module: str) -> list[str]:
        return [path.name for path in compiled._sources(f"sbm.solver.kernels.{module}")]

    assert names("svc") == ["svc.py", "sparse.py"]
    assert names("multiclass") == ["multiclass.py", "sparse.py"]
    assert names("working_set") == ["working_set.py"]


def test_a_folder_that_cannot_be_written_does_no_harm(probe, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(compiled, "folder", lambda: tmp_path / "file" / "code")
    assert call(compiled.Kernel("sbm_probe.kernels", "add"), False)[0] == (3, 5, 1, -3)


def test_kernels_that_allocate_or_return_fractions_are_refused(probe):
    with pytest.raises(compiled.KernelError, match="allocates; give it its scratch as an argument"):
        compiled.Kernel("sbm_probe.kernels", "greedy")(3)
    with pytest.raises(compiled.KernelError, match="whole numbers are expected"):
        compiled.Kernel("sbm_probe.kernels", "fraction")(3.0)


def test_what_is_no_array_or_number_is_refused(probe):
    kernel = compiled.Kernel("sbm_probe.kernels", "nothing")
    with pytest.raises(TypeError, match="contiguous arrays only"):
        kernel(np.zeros((4, 4), np.int32)[:, ::2])
    with pytest.raises(TypeError, match="not str"):
        kernel("numbers")


def run(code: str, **environment: str) -> str:
    env = {k: v for k, v in os.environ.items() if k != compiled.COMPILE_HERE} | environment
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_process_compiles_in_a_child_and_never_loads_numba(tmp_path):
    code = (
        "import sys, numpy as np\n"
        "from pathlib import Path\n"
        "from sbm import compiled\n"
        f"compiled.folder = lambda: Path({str(tmp_path)!r})\n"
        "keep = np.zeros(3, bool)\n"
        "kernel = compiled.load('sbm.solver.kernels.working_set').mark\n"
        "ties = kernel(np.array([1, 2, 2], np.uint32), 0x80000002, keep)\n"
        "print(ties, keep.tolist(), 'numba' in sys.modules)\n"
    )
    assert run(code) == "2 [False, False, False] False"


def test_a_child_that_fails_is_reported_in_one_sentence():
    code = (
        "from sbm import compiled\n"
        "try:\n    compiled.load('sbm.solver.kernels.svc').solve(1)\n"
        "except compiled.KernelError as error:\n    print(error)\n"
    )
    assert run(code).startswith("sbm.solver.kernels.svc.solve cannot be compiled: ")


def test_codes_of_refused_lines_are_the_same_on_both_sides():
    from sbm.store import libsvm
    from sbm.store.kernels import text

    assert len(libsvm._REASONS) == text.DUPLICATE + 1 == text.HARD
    assert libsvm._DUPLICATE == text.DUPLICATE
    assert libsvm._LABEL == text.LABEL
    assert libsvm.LARGEST_VALUE["float64"] == text.LARGEST_LABEL
    words = {text.BAD_LABEL: "numeric label", text.NOT_FINITE: "finite", text.BAD_ID: "id:value",
             text.ID_TOO_LARGE: "largest allowed id", text.NO_COLON: "without a value",
             text.BAD_VALUE: "decimal number", text.OUT_OF_RANGE: "too large",
             text.DUPLICATE: "twice"}  # fmt: skip
    for code, word in words.items():
        assert word in libsvm._REASONS[code]


def test_constants_that_stand_on_both_sides_are_the_same():
    from sbm import rows
    from sbm.solver import variables
    from sbm.solver.kernels import multiclass, working_set
    from sbm.solver.losses import LOSSES
    from sbm.store import codec, idtable, libsvm, run
    from sbm.store.kernels import alphas, ids, text
    from sbm.store.kernels import rows as coded_rows

    assert rows.SPARE == working_set._RUN
    assert codec._SHORTEST == coded_rows.SPARE
    assert idtable.DIRECT_LIMIT == ids.DIRECT_LIMIT
    assert libsvm.SPARE == text.SPARE + 2  # two newlines
    assert variables.FEW == multiclass.FEW
    assert run.FREE == alphas.FREE
    kinds = {name: loss.kind for name, loss in LOSSES.items() if loss.kind is not None}
    assert kinds == {
        "hinge": multiclass.ONE_VS_REST,
        "squared_hinge": multiclass.ONE_VS_REST,
        "crammer_singer": multiclass.CRAMMER_SINGER,
        "weston_watkins": multiclass.WESTON_WATKINS,
    }


@pytest.mark.parametrize(
    ("quiet", "shown"), [(False, "compiling the kernels of split, once"), (True, "")]
)
def test_the_command_line_says_that_kernels_are_compiled(
    tmp_path, monkeypatch, capsys, quiet, shown
):
    monkeypatch.delenv(compiled.COMPILE_HERE, raising=False)
    monkeypatch.setattr(compiled, "folder", lambda: tmp_path)
    done = subprocess.CompletedProcess([], 0)
    monkeypatch.setattr(warm.subprocess, "run", lambda *_, **__: done)
    for _ in range(2):  # the second time they are there
        warm.prepare("split", "float32", _Terminal(quiet))
    assert capsys.readouterr().err.split(";")[0] == shown
    assert [path.suffix for path in tmp_path.iterdir()] == [".ready"]


def test_kernels_of_predict_are_compiled_ahead(tmp_path):
    environment = {**os.environ, compiled.COMPILE_HERE: "1"}
    code = "from sbm.jobs.warm import run; run('predict', 'float64')"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, cwd=tmp_path)
    assert not list(tmp_path.iterdir())
