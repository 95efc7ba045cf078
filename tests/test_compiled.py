"""Kernels: machine code on disk gives the results of numba, is stored safely, and is ignored if
others could have written it."""

import ctypes
import importlib
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from inside import (
    Progress,
    Terminal,
    clock,
    compile_seconds,
    patch,
    stopped_clock,
)
from inside import cache_module as cache
from inside import calls_module as calls
from inside import child_module as child
from inside import engine_kernels_module as kernels
from inside import linker_module as linker
from inside import processor_module as processor
from processes import finished, started, wait_until

import sbm
from sbm.errors import SbmError

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
    patch(monkeypatch, "source_of", lambda module: tmp_path / "sbm_probe" / "kernels.py")
    patch(monkeypatch, "folder", lambda: tmp_path / "code")
    yield tmp_path / "code"
    for name in [m for m in sys.modules if m.startswith("sbm_probe")]:
        del sys.modules[name]


@pytest.fixture
def made(monkeypatch) -> list[str]:
    """List the names of kernels as they are compiled."""
    names: list[str] = []
    make = child.make

    def counted(module, name, kinds):
        names.append(name)
        return make(module, name, kinds)

    patch(monkeypatch, "make", counted)
    return names


def kernel(name: str):
    return calls.Kernel("sbm_probe.kernels", name)


def replace(path: Path, data: bytes) -> None:
    """Replace a file; one that is loaded must not be written."""
    path.unlink()
    path.write_bytes(data)


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
    with pytest.raises(calls.KernelError, match="allocates"):
        kernel("greedy")(3)
    with pytest.raises(calls.KernelError, match="fraction returns float64"):
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


def test_code_of_other_sources_stays(probe, made, tmp_path):
    source = tmp_path / "sbm_probe" / "kernels.py"
    assert fill() == fill() == [7, 7]
    source.write_text(PROBE + "\n")
    fill()
    source.write_text(PROBE)  # as in another branch
    fill()
    assert made == ["fill", "fill"]
    assert len(list(probe.iterdir())) == 2


def test_old_code_is_deleted(probe, tmp_path):
    fill()
    (path,) = probe.iterdir()
    kernel_name, _, machine, ending = path.name.rsplit(".", 3)
    others = [probe / f"{kernel_name}.{k:012x}.{machine}.{ending}" for k in range(12)]
    for age, other in enumerate(others, 1):
        other.write_bytes(b"")
        os.utime(other, (0, time.time() - 86400 * 7 * age))
    unfinished = path.with_name(f"{path.name}.77.123456")  # of a process that was killed
    unfinished.write_bytes(b"half")
    os.utime(unfinished, (0, time.time() - 86400 * 70))
    (probe / "not ours").write_bytes(b"")
    os.utime(probe / "not ours", (0, 0))
    os.utime(path, (0, time.time() - 86400 * 59))
    assert fill() == [7, 7]  # is a use
    cache.delete_old()
    assert {*probe.iterdir()} == {path, probe / "not ours", *others[: cache.KEPT_VERSIONS - 1]}
    assert time.time() - path.stat().st_mtime < 3600


def test_damaged_machine_code_is_recompiled(probe, made):
    fill()
    (path,) = probe.iterdir()
    whole, random_bits = path.read_bytes(), random.Random(0)
    damaged = [b"", b"x" * 100, whole[:-1], whole[:-4096], whole + b"x", whole[4:]]
    for k in random_bits.sample(range(8 * len(whole)), 400):
        data = bytearray(whole)
        data[k // 8] ^= 1 << k % 8
        damaged.append(bytes(data))
    for data in damaged:
        replace(path, data)
        assert cache.read(path.name) is None
    replace(path, damaged[-1])
    assert fill() == [7, 7]
    kernel("size")(np.zeros(2))
    (other,) = set(probe.iterdir()) - {path}
    replace(other, path.read_bytes())  # whole, but of another kernel
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


def test_full_disk_leaves_no_partial_file(probe, monkeypatch):
    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert fill() == [7, 7]
    assert list(probe.iterdir()) == []


def test_code_depends_on_compiler_and_processor(monkeypatch):
    names = [processor.machine()]
    for name, value in (
        ("NUMBA_BOUNDSCHECK", "1"),
        ("NUMBA_OPT", "1"),
        ("SBM_PROCESSOR", "generic"),
    ):
        monkeypatch.setenv(name, value)
        names.append(processor.machine())
    assert len(set(names)) == 4
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/nowhere")
    assert processor.machine() == names[-1]
    monkeypatch.setattr(processor, "_compiler_version", lambda package: b"version 7")
    assert processor.machine() not in names
    monkeypatch.setenv("SBM_PROCESSOR", "z80")
    with pytest.raises(SbmError, match=r"z80.*x86-64-v3"):
        processor.machine()


def test_processor_is_named_by_the_system_if_linux_does_not(monkeypatch):
    def missing(*_):
        raise OSError(2, "No such file or directory")

    names = {processor.machine()}
    monkeypatch.setattr(processor, "open", missing, raising=False)
    for name in ("arm", "arm64"):
        monkeypatch.setattr(processor.platform, "processor", lambda name=name: name)
        processor._described.cache_clear()
        names.add(processor.machine())
    processor._described.cache_clear()
    assert len(names) == 3


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
    monkeypatch.setattr(cache.os, "geteuid", lambda: ME)
    file = SimpleNamespace(st_uid=owner, st_gid=7, st_mode=mode)
    package = SimpleNamespace(st_uid=COLLEAGUE, st_gid=7, st_mode=package_mode)
    assert cache._is_ours(file, package) is trusted
    file.st_gid = 8  # another group than that of the package
    assert cache._is_ours(file, package) is (trusted and not mode & 0o020)


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
    patch(monkeypatch, "cache.PACKAGE", tmp_path / "file")
    for name in ("XDG_CACHE_HOME", cache.FOLDER, "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    cache.folder.cache_clear()
    yield tmp_path
    cache.folder.cache_clear()


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
        found = cache.folder()
    finally:
        os.umask(before)
    assert found.stat().st_mode & 0o022 == 0
    assert cache.places()[0] == found
    assert nowhere / "open" not in cache.places()
    if place is None:  # a temporary folder
        assert found.parent == Path(tempfile.gettempdir())
        assert found.stat().st_mode & 0o777 == 0o700
        assert cache.unusable()
        found.rmdir()
    else:
        assert found == nowhere / place
        assert cache.unusable() == []


def test_commands_report_and_time_compiling(tmp_path, nowhere, monkeypatch, capsys, caplog):
    monkeypatch.delenv(cache.COMPILE_HERE, raising=False)
    asked = []

    def compile_all(kernels, workers):
        asked.extend(kernels)
        with stopped_clock():
            time.sleep(1.2)
        return ""

    patch(monkeypatch, "child.compile_all", compile_all)
    monkeypatch.setenv("HOME", str(nowhere / "file"))
    begin, wall, before = clock(), time.perf_counter(), compile_seconds()
    kernels.prepare("counting", ("inputs.ids.count",), {}, Terminal())
    assert clock() - begin < 0.9 < 1.2 < compile_seconds() - before < time.perf_counter() - wall
    assert asked == [("sbm.inputs.kernels.ids", "count", ("int32[1]", "int32[1]", "int64"))]
    place, during, after = capsys.readouterr().err.splitlines()
    assert str(nowhere / "file" / "__pycache__") in place
    assert cache.FOLDER in place
    assert during.startswith("compiling 1 kernel for counting (only once): 1 s")
    assert after == f"{during}, done"
    shutil.rmtree(cache.folder())
    monkeypatch.setenv(cache.FOLDER, str(tmp_path / "kept"))
    cache.folder.cache_clear()
    for _ in range(2):  # the second time they are there
        kernels.prepare("counting", ("inputs.ids.count",), {}, Terminal(quiet=True))
    assert capsys.readouterr().err == ""
    for _ in range(2):
        kernels.prepare("looking", ("inputs.ids.look_up",), {}, Progress())
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("compiling 1 kernel for looking")
    assert len(asked) == 3


# --------------------------------------------------------------------------- compiling in a child


@pytest.mark.process
def test_process_compiles_in_a_child(tmp_path):
    """The process never loads numba, and a temporary folder is removed."""
    code = (
        "import os, sys, numpy as np\nfrom sbm.compiled import cache, calls\n"
        "keep = np.zeros(3, bool)\n"
        "mark = calls.load('sbm.solver.kernels.working_set').mark\n"
        "print(mark(np.array([1, 2, 2], np.uint32), 0x80000002, keep))\n"
        "place = cache.folder()\nprint(place, os.path.isdir(place))\n"
        "print({'numba', 'llvmlite'} & set(sys.modules))\n"
    )
    env = {k: v for k, v in os.environ.items() if k != cache.COMPILE_HERE}
    env[cache.FOLDER] = "/dev/null/x"
    out = finished([sys.executable, "-c", code], env=env, check=True).stdout
    place = out.split()[1]
    assert out.split() == ["2", place, "True", "set()"]
    assert not Path(place).exists()


@pytest.mark.process
def test_child_imports_nothing_from_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("numpy", "sbm", "struct"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a stranger was here')\n")
    assert child.run_compiler("import struct, sbm") == ""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    printed = []
    assert child.run_compiler("import os; os.kill(os.getpid(), 9)") == "exit code -9"
    assert (
        child.run_compiler("print(1); raise ValueError('no')", tell=printed.append)
        == "ValueError: no"
    )
    assert printed[-1] == 2


def test_child_that_fails_is_an_error(probe, monkeypatch):
    monkeypatch.delenv(cache.COMPILE_HERE, raising=False)
    for answer, words in (("", "cannot be kept in"), ("exit code -9", "exit code -9")):
        patch(monkeypatch, "run_compiler", lambda *order, answer=answer: answer)
        with pytest.raises(calls.KernelError, match=rf"fill cannot be compiled: .*{words}"):
            fill()


@pytest.mark.process
def test_ctrl_c_stops_the_compiler(tmp_path):
    pid = tmp_path / "pid"
    order = (
        f"import os, time; from pathlib import Path; Path({str(pid)!r}).write_text("
        "f'{os.getpid()}.'); time.sleep(60)"
    )
    code = f"from sbm.compiled import child; child.run_compiler({order!r})"
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    with started(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, stderr=subprocess.PIPE
    ) as process:
        wait_until(lambda: pid.exists() and pid.read_text().endswith("."), process)
        number = int(pid.read_text()[:-1])
        assert os.getpgid(number) != os.getpgid(process.pid) == process.pid
        os.killpg(process.pid, signal.SIGINT)
        assert b"KeyboardInterrupt" in process.communicate()[1]
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


# ------------------------------------------------------------------- libraries of machine code


def test_refused_files_are_loaded_from_memory(probe, monkeypatch):
    load, refused, tried = ctypes.CDLL, [str(probe)], []

    def refuse(name, *arguments):
        tried.append(name)
        if str(name).startswith(tuple(refused)):
            raise OSError("failed to map segment from shared object")
        return load(name, *arguments)

    monkeypatch.setattr(calls.ctypes, "CDLL", refuse)  # as of a folder that is mounted noexec
    assert fill() == [7, 7]
    assert kernel("size")(np.zeros(2)) == 2
    assert len(tried) == 4
    refused.append("/proc/self/fd")  # a policy forbids this, too
    with pytest.raises(calls.KernelError, match=r"map segment.*SBM_CACHE_DIR"):
        fill()


@pytest.mark.skipif(not processor.has_linker(), reason="libraries are for x86-64 Linux")
def test_libraries_have_what_a_loader_needs(probe):
    """No segment is writable and executable, and code may be anywhere."""
    fill()
    (path,) = probe.iterdir()
    content = path.read_bytes()
    kind, machine = struct.unpack_from("<HH", content, 16)
    assert (content[:4], kind, machine) == (b"\x7fELF", 3, 62)
    rights = [struct.unpack_from("<II", content, 64 + 56 * k) for k in range(6)]
    assert [flags for kind, flags in rights if kind == 1] == [4, 5, 6, 4]
    assert (0x6474E551, 6) in rights  # the stack


def test_unknown_symbols_and_relocations_are_refused(probe):
    compiler = importlib.import_module("sbm.compiled.compiler")
    function, code = compiler.compile_object("sbm_probe.kernels", "fill", ("float64[1]",))
    assert linker.link({"a": (function, code), "b": (function, code)}).startswith(b"\x7fELF")
    for old, new in ((b"memset", b"memsat"), (b"numba_gil_ensure", b"numba_gil_ensury")):
        if old in code:
            with pytest.raises(linker.LinkError, match=new.decode()):
                linker.link({"a": (function, code.replace(old, new))})
    with pytest.raises(linker.LinkError, match="nobody"):
        linker.link({"a": ("nobody", code)})
    for damaged in (b"", code[:100], b"x" * 1000):
        with pytest.raises(linker.LinkError):
            linker.link({"a": (function, damaged)})


def test_library_of_a_wheel(probe, tmp_path, monkeypatch, made):
    """It serves the processors it is made for, and is ignored if it is damaged or of others."""
    compiler = importlib.import_module("sbm.compiled.compiler")
    symbol = processor.symbol_name("sbm_probe.kernels", "fill", ("float64[1]",))
    compiled = compiler.compile_object("sbm_probe.kernels", "fill", ("float64[1]",))
    patch(monkeypatch, "cache.NATIVE", tmp_path / "native")
    (tmp_path / "native").mkdir()
    path = tmp_path / "native" / f"x86-64-v3{cache.SUFFIX}"

    def calls_native() -> bool:
        calls._native.cache_clear()
        made.clear()
        assert fill() == [7, 7]
        for file in probe.glob("*"):
            file.unlink()
        return made == []

    try:
        assert not calls_native()
        content = cache.pack(path.name, linker.link({symbol: compiled}))
        path.write_bytes(content)
        assert calls_native()
        patch(monkeypatch, "processor.runs", lambda level: False)
        assert not calls_native()
        patch(monkeypatch, "processor.runs", lambda level: True)
        monkeypatch.setenv("SBM_PROCESSOR", "generic")
        assert not calls_native()
        monkeypatch.delenv("SBM_PROCESSOR")
        path.chmod(0o666)
        assert not calls_native()
        path.chmod(0o644)
        replace(path, content[:-1])
        assert not calls_native()
        replace(path, content[:5000] + b"?" + content[5001:])
        assert not calls_native()
        replace(path, content)
        assert calls_native()
    finally:
        calls._native.cache_clear()


# --------------------------------------------------------------------- constants on both sides


def test_duplicated_constants_are_equal():
    """Kernels cannot import what is outside their folder, so some constants are there twice."""
    for ours, theirs, apart in (
        ("rows.SPARE", "solver.kernels.working_set._RUN", 0),
        ("store.codec._SHORTEST", "store.kernels.rows.SPARE", 0),
        ("store.codec.LARGEST_TABLE", "store.kernels.values.LARGEST_TABLE", 0),
        ("store.codec.SLOTS", "store.kernels.values.SLOTS", 0),
        ("inputs.idtable.DIRECT_LIMIT", "inputs.kernels.ids.DIRECT_LIMIT", 0),
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

    monkeypatch.setattr(child.fcntl, "flock", refuse)
    patch(monkeypatch, "folder", lambda: tmp_path)
    with child._one_at_a_time("kernel"):
        pass
