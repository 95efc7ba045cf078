"""Kernels: machine code on disk gives the results of numba, is stored safely, and is ignored if
others could have written it."""

import importlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from inside import Progress, Terminal, clock, compile_seconds, patch
from inside import compiled_module as compiled
from inside import engine_kernels_module as kernels
from processes import finished, started, wait_until

import sbm

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
def fill(numbers):
    numbers[:] = 7

@njit(nogil=True, error_model="numpy")
def size(numbers):
    return numbers.size

@njit(nogil=True, error_model="numpy")
def greedy(n):
    return len(np.empty(n))

@njit(nogil=True, error_model="numpy")
def fraction(x):
    return x / 3
'''


@pytest.fixture
def probe(tmp_path, monkeypatch):
    """Make a module of kernels; return the folder of its machine code."""
    (tmp_path / "sbm_probe").mkdir()
    (tmp_path / "sbm_probe" / "kernels.py").write_text(PROBE)
    monkeypatch.syspath_prepend(str(tmp_path))
    patch(monkeypatch, "_source", lambda module: tmp_path / "sbm_probe" / "kernels.py")
    patch(monkeypatch, "folder", lambda: tmp_path / "code")
    yield tmp_path / "code"
    for name in [m for m in sys.modules if m.startswith("sbm_probe")]:
        del sys.modules[name]


@pytest.fixture
def made(monkeypatch) -> list[str]:
    """List the names of kernels as they are compiled."""
    names: list[str] = []
    make = compiled._make

    def counted(module, name, kinds):
        names.append(name)
        return make(module, name, kinds)

    patch(monkeypatch, "_make", counted)
    return names


def kernel(name: str):
    return compiled.Kernel("sbm_probe.kernels", name)


def fill() -> list[float]:
    """Call a small kernel as a new process would."""
    numbers = np.zeros(2)
    assert kernel("fill")(numbers) is None
    return numbers.tolist()


# ------------------------------------------------------------------------------------- calling


@pytest.mark.long
def test_all_types_of_arguments_and_results(probe):
    add = kernel("add")
    for negate, sums in ((False, [-0.5, 3.5, 7.5]), (np.True_, [-2.5, -6.5, -10.5])):
        numbers, flags = np.zeros(3), np.zeros(3, bool)
        table = np.arange(6, dtype=np.float32).reshape(3, 2)
        table.flags.writeable = False
        got = add(numbers, table, flags, -3, 0.5, np.uint64(5 << 60), negate, None)
        assert got == (3, 5, 1, -3)
        assert numbers.tolist() == sums
        assert flags.tolist() == [x > 0 for x in sums]
    for shape in ((0,), (2, 3), (4,)):
        assert kernel("size")(np.zeros(shape, np.int32)) == np.prod(shape)


def test_bad_calls_and_kernels_are_refused(probe):
    with pytest.raises(TypeError, match="contiguous"):
        kernel("fill")(np.zeros((4, 4), np.int32)[:, ::2])
    with pytest.raises(TypeError, match="not str"):
        kernel("fill")("numbers")
    with pytest.raises(compiled.KernelError, match="allocates"):
        kernel("greedy")(3)
    with pytest.raises(compiled.KernelError, match="fraction returns float64"):
        kernel("fraction")(3.0)


def test_concurrent_first_calls_work(probe, made):
    shared = kernel("fill")

    def call(_):
        numbers = np.zeros(2)
        shared(numbers)
        return numbers.tolist()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(call, range(32))) == [[7, 7]] * 32
    assert made == ["fill"]


# -------------------------------------------------------------------------------------- keeping


def test_cached_code_is_replaced_when_source_changes(probe, made, tmp_path):
    assert fill() == fill() == [7, 7]
    assert made == ["fill"]
    (path,) = probe.iterdir()
    path.with_name(f"{path.name}.77.123456").write_bytes(b"half")  # of a process that was killed
    (tmp_path / "sbm_probe" / "kernels.py").write_text(PROBE + "\n")
    fill()
    assert made == ["fill", "fill"]
    (after,) = probe.iterdir()
    assert after != path


def test_damaged_machine_code_is_recompiled(probe, made):
    fill()
    (path,) = probe.iterdir()
    whole, random_bits = path.read_bytes(), random.Random(0)
    damaged = [b"", b"x" * 100, whole[:-1], whole + b"x", whole[4:]]
    for k in random_bits.sample(range(8 * len(whole)), 400):
        data = bytearray(whole)
        data[k // 8] ^= 1 << k % 8
        damaged.append(bytes(data))
    for data in damaged:
        path.write_bytes(data)
        assert compiled._read(path.name) is None
    path.write_bytes(damaged[-1])
    assert fill() == [7, 7]
    kernel("size")(np.zeros(2))
    (other,) = set(probe.iterdir()) - {path}
    other.write_bytes(path.read_bytes())  # whole, but of another kernel
    assert kernel("size")(np.zeros(2)) == 2
    assert made == ["fill", "fill", "size", "size"]


def test_edited_helper_leaves_no_stale_code(probe, tmp_path):
    head = "from numba import njit\n{}\n@njit(nogil=True, error_model='numpy')\ndef {}:\n    {}\n"
    texts = {
        "kernels": head.format("from sbm_probe.helper import half", "twice(x)", "return half(4*x)"),
        "helper": head.format(
            "import sbm_probe.deeper\nquarter = sbm_probe.deeper.quarter",
            "half(x)", "return 2 * quarter(x)",
        ),
        "deeper": head.format("", "quarter(x)", "return x // 4"),
        "stranger": "",
    }  # fmt: skip
    for name, text in texts.items():
        (tmp_path / "sbm_probe" / f"{name}.py").write_text(text)

    def twice_of_three() -> int:
        for name in [m for m in sys.modules if m.startswith("sbm_probe")]:
            del sys.modules[name]  # as in a process of its own
        importlib.invalidate_caches()
        return kernel("twice")(3)

    assert twice_of_three() == 6
    (before,) = probe.iterdir()
    (tmp_path / "sbm_probe" / "stranger.py").write_text("x = 1")  # not imported
    assert twice_of_three() == 6
    assert [*probe.iterdir()] == [before]
    edited = texts["deeper"].replace("x // 4", "10 * x // 4")
    (tmp_path / "sbm_probe" / "deeper.py").write_text(edited)
    assert twice_of_three() == 60
    assert before not in probe.iterdir()


def test_full_disk_leaves_no_partial_file(probe, monkeypatch):
    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert fill() == [7, 7]
    assert list(probe.iterdir()) == []


def test_numba_settings_change_cache_key(monkeypatch):
    names = [compiled.fingerprint()]
    for name in ("NUMBA_BOUNDSCHECK", "NUMBA_OPT"):
        monkeypatch.setenv(name, "1")
        names.append(compiled.fingerprint())
    assert len(set(names)) == 3
    assert {len(name) for name in names} == {16}
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/nowhere")
    assert compiled.fingerprint() == names[-1]


# ---------------------------------------------------------------------------------------- trust

ME, ROOT_USER, COLLEAGUE, STRANGER = 1000, 0, 2000, 3000  # the colleague owns the package


@pytest.mark.parametrize(
    ("owner", "mode", "package_mode", "trusted"),
    [
        (ME, 0o755, 0o755, True), (ROOT_USER, 0o755, 0o755, True), (COLLEAGUE, 0o755, 0o755, True),
        (STRANGER, 0o700, 0o755, False), (ME, 0o775, 0o755, False), (ME, 0o757, 0o755, False),
        (ME, 0o775, 0o775, True),  # the same users can write our source
        (ME, 0o777, 0o775, False),
    ],
)  # fmt: skip
def test_code_writable_by_others_is_not_trusted(monkeypatch, owner, mode, package_mode, trusted):
    monkeypatch.setattr(compiled.os, "geteuid", lambda: ME)
    file = SimpleNamespace(st_uid=owner, st_gid=7, st_mode=mode)
    package = SimpleNamespace(st_uid=COLLEAGUE, st_gid=7, st_mode=package_mode)
    assert compiled._is_ours(file, package) is trusted
    file.st_gid = 8  # another group than that of the package
    assert compiled._is_ours(file, package) is (trusted and not mode & 0o020)


def test_cached_code_is_writable_by_owner_only(probe, made):
    for mask in (0o077, 0o000):
        before = os.umask(mask)
        try:
            fill()
        finally:
            os.umask(before)
        (path,) = probe.iterdir()
        assert path.stat().st_mode & 0o777 == 0o644 & ~mask
        path.chmod(0o646)  # the next call compiles it again
    assert fill() == fill() == [7, 7]
    assert made == ["fill"] * 3
    assert path.stat().st_mode & 0o022 == 0


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """An installation that cannot be written, and no home."""
    (tmp_path / "file").write_text("")
    patch(monkeypatch, "_PACKAGE", tmp_path / "file")
    for name in ("XDG_CACHE_HOME", compiled.FOLDER, "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    compiled.folder.cache_clear()
    yield tmp_path
    compiled.folder.cache_clear()


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({"HOME": "here/home"}, "home/.cache/sbm"),
        ({"HOME": "here/home", "XDG_CACHE_HOME": "here/cache"}, "cache/sbm"),
        # The standard ignores relative paths: they would be where we happen to work.
        ({"HOME": "here/home", "XDG_CACHE_HOME": "cache"}, "home/.cache/sbm"),
        ({"HOME": "here/file"}, None),
        ({"HOME": "here/home", "SBM_CACHE_DIR": "here/mine/code"}, "mine/code"),
        ({"HOME": "here/home", "SBM_CACHE_DIR": "here/file"}, None),
        ({"SBM_CACHE_DIR": "here/open"}, None),
    ],
)
def test_cache_folder_of_machine_code(nowhere, monkeypatch, environment, place):
    for name, value in environment.items():
        monkeypatch.setenv(name, value.replace("here", str(nowhere)))
    (nowhere / "open").mkdir()
    (nowhere / "open").chmod(0o777)
    before = os.umask(0)
    try:
        found = compiled.folder()
    finally:
        os.umask(before)
    assert found.stat().st_mode & 0o022 == 0
    assert compiled.places()[0] == found
    assert nowhere / "open" not in compiled.places()
    if place is None:  # a temporary folder
        assert found.parent == Path(tempfile.gettempdir())
        assert found.stat().st_mode & 0o777 == 0o700
        assert compiled.unusable()
        found.rmdir()
    else:
        assert found == nowhere / place
        assert compiled.unusable() == []


def test_commands_report_and_time_compiling(tmp_path, nowhere, monkeypatch, capsys, caplog):
    monkeypatch.delenv(compiled.COMPILE_HERE, raising=False)
    patch(monkeypatch, "run_compiler", lambda order: time.sleep(1.2) or ("", b""))
    patch(monkeypatch, "fingerprint", lambda *sources: "0123456789abcdef")
    monkeypatch.setenv("HOME", str(nowhere / "file"))
    begin, wall, before = clock(), time.perf_counter(), compile_seconds()
    kernels.prepare("split", "float32", Terminal())
    assert clock() - begin < 0.2 < 1.2 < compile_seconds() - before < time.perf_counter() - wall
    place, during, after = capsys.readouterr().err.splitlines()
    assert str(nowhere / "file" / "__pycache__") in place
    assert compiled.FOLDER in place
    assert during.startswith("compiling kernels for split (only once): 1 s")
    assert after == f"{during}, done"
    shutil.rmtree(compiled.folder())
    monkeypatch.setenv(compiled.FOLDER, str(tmp_path / "kept"))
    compiled.folder.cache_clear()
    for _ in range(2):  # the second time they are there
        kernels.prepare("split", "float64", Terminal(quiet=True))
    assert capsys.readouterr().err == ""
    for _ in range(2):
        kernels.prepare("split", "float32", Progress())
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("compiling kernels for split")


# --------------------------------------------------------------------------- compiling in a child


@pytest.mark.process
def test_process_compiles_in_a_child(tmp_path):
    """The process never loads numba, and a temporary folder is removed."""
    code = (
        "import os, sys, numpy as np\nfrom sbm import compiled\n"
        "keep = np.zeros(3, bool)\n"
        "mark = compiled.load('sbm.solver.kernels.working_set').mark\n"
        "print(mark(np.array([1, 2, 2], np.uint32), 0x80000002, keep), 'numba' in sys.modules)\n"
        "place = compiled.folder()\nprint(place, os.path.isdir(place))\n"
    )
    env = {k: v for k, v in os.environ.items() if k != compiled.COMPILE_HERE}
    env[compiled.FOLDER] = "/dev/null/x"
    out = finished([sys.executable, "-c", code], env=env, check=True).stdout
    place = out.split()[2]
    assert out.split() == ["2", "False", place, "True"]
    assert not Path(place).exists()


@pytest.mark.process
def test_child_imports_nothing_from_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("numpy", "sbm", "struct"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a stranger was here')\n")
    order = "import struct, sbm; print(sbm.__file__)"
    assert compiled.run_compiler(order) == ("", f"{sbm.__file__}\n".encode())
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert compiled.run_compiler("import os; os.kill(os.getpid(), 9)") == ("exit code -9", b"")
    assert compiled.run_compiler("print(1); raise ValueError('no')") == ("ValueError: no", b"1\n")


@pytest.mark.parametrize("answer", [("", b"Hello!"), ("exit code -9", b"")])
def test_child_that_fails_is_an_error(probe, monkeypatch, answer):
    monkeypatch.delenv(compiled.COMPILE_HERE, raising=False)
    patch(monkeypatch, "run_compiler", lambda order: answer)
    with pytest.raises(compiled.KernelError, match=rf"fill cannot be compiled: .*{answer[0]}"):
        fill()


@pytest.mark.process
def test_ctrl_c_stops_the_compiler(tmp_path):
    pid = tmp_path / "pid"
    order = (
        f"import os, time; from pathlib import Path; Path({str(pid)!r}).write_text("
        "f'{os.getpid()}.'); time.sleep(60)"
    )
    code = f"from sbm import compiled; compiled.run_compiler({order!r})"
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    with started(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, stderr=subprocess.PIPE
    ) as process:
        wait_until(lambda: pid.exists() and pid.read_text().endswith("."), process)
        child = int(pid.read_text()[:-1])
        assert os.getpgid(child) != os.getpgid(process.pid) == process.pid
        os.killpg(process.pid, signal.SIGINT)
        assert b"KeyboardInterrupt" in process.communicate()[1]
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


# --------------------------------------------------------------------- constants on both sides


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")
def test_code_of_llvm_does_not_stay_resident(probe):
    fill()  # links
    resident, is_code = 0, False
    for line in Path("/proc/self/smaps").read_text("utf-8").splitlines():
        if "-" in line.split()[0]:
            is_code = "libllvmlite" in line and " r-xp " in line
        resident += int(line.split()[1]) if is_code and line.startswith("Rss:") else 0
    assert resident < 1000  # kB


def test_duplicated_constants_are_equal():
    """Kernels cannot import what is outside their folder, so some constants are there twice."""
    for ours, theirs, apart in (
        ("rows.SPARE", "solver.kernels.working_set._RUN", 0),
        ("store.codec._SHORTEST", "store.kernels.rows.SPARE", 0),
        ("store.codec.LARGEST_TABLE", "store.kernels.values.LARGEST_TABLE", 0),
        ("store.codec.SLOTS", "store.kernels.values.SLOTS", 0),
        ("inputs.idtable.DIRECT_LIMIT", "inputs.kernels.ids.DIRECT_LIMIT", 0),
        ("inputs.parsing.SPARE", "inputs.kernels.text.SPARE", 2),  # two newlines
        ("inputs.libsvm._DUPLICATE", "inputs.kernels.text.DUPLICATE", 0),
        ("inputs.libsvm._LABEL", "inputs.kernels.text.LABEL", 0),
        ("solver.variables.FEW", "solver.kernels.multiclass.FEW", 0),
        ("store.run.FREE", "store.kernels.alphas.FREE", 0),
    ):
        values = []
        for name in (ours, theirs):
            module, _, constant = name.rpartition(".")
            values.append(getattr(importlib.import_module(f"sbm.{module}"), constant))
        assert values[0] == values[1] + apart, ours


def test_kernels_compile_without_file_locks(monkeypatch, tmp_path):
    def refuse(*_):
        raise OSError("no locks available")

    monkeypatch.setattr(compiled.fcntl, "flock", refuse)
    patch(monkeypatch, "folder", lambda: tmp_path)
    with compiled._one_at_a_time("kernel"):
        pass
