"""sbm/compiled.py: machine code from the disk gives what numba gives."""

import ast
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from processes import finished, started, wait_until

import sbm
from sbm import compiled
from sbm.cli.command import Terminal
from sbm.jobs.machine import kernels

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
    assert compiled._read(path.name) is not None


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

    assert names("svc") == ["svc.py", "sparse.py", "visits.py"]
    assert {"multiclass.py", "joint.py", "classes.py", "sparse.py"} <= set(names("multiclass"))
    assert names("working_set") == ["working_set.py"]


def test_imports_are_found_as_python_finds_them():
    package = Path(compiled.__file__).parent
    texts = [path.read_bytes() for path in package.glob("*/kernels/[a-z]*.py")]
    texts.append(
        b"if 1:\n    from a.b import (\n        c as d,\n        e,\n    )\nimport f, g.h\n"
    )
    for text in texts:
        nodes = list(ast.walk(ast.parse(text)))
        modules = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        imports = [node for node in nodes if isinstance(node, ast.Import)]
        names = [alias.name for node in [*imports, *modules] for alias in node.names]
        names += [node.module for node in modules]
        assert names
        assert {word for name in names for word in name.split(".")} <= set(compiled._imports(text))


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
    done = finished([sys.executable, "-c", code], env=env)
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
    from sbm.store import libsvm, parsing
    from sbm.store.kernels import text

    assert len(libsvm._REASONS) == text.DUPLICATE + 1 == text.HARD
    assert libsvm._DUPLICATE == text.DUPLICATE
    assert libsvm._LABEL == text.LABEL
    assert parsing.LARGEST_VALUE["float64"] == text.LARGEST_LABEL
    words = {text.BAD_LABEL: "numeric label", text.NOT_FINITE: "finite", text.BAD_ID: "id:value",
             text.ID_TOO_LARGE: "largest allowed id", text.NO_COLON: "without a value",
             text.BAD_VALUE: "decimal number", text.OUT_OF_RANGE: "too large",
             text.DUPLICATE: "twice"}  # fmt: skip
    for code, word in words.items():
        assert word in libsvm._REASONS[code]


def test_constants_that_stand_on_both_sides_are_the_same():
    from sbm import rows
    from sbm.losses import LOSSES
    from sbm.solver import variables
    from sbm.solver.kernels import joint, multiclass, working_set
    from sbm.store import codec, idtable, parsing, run
    from sbm.store.kernels import alphas, ids, text
    from sbm.store.kernels import rows as coded_rows

    assert rows.SPARE == working_set._RUN
    assert codec._SHORTEST == coded_rows.SPARE
    assert idtable.DIRECT_LIMIT == ids.DIRECT_LIMIT
    assert parsing.SPARE == text.SPARE + 2  # two newlines
    assert variables.FEW == multiclass.FEW
    assert run.FREE == alphas.FREE
    kinds = {name: loss.kind for name, loss in LOSSES.items() if loss.kind is not None}
    assert kinds == {
        "hinge": multiclass.ONE_VS_REST,
        "squared_hinge": multiclass.ONE_VS_REST,
        "crammer_singer": joint.CRAMMER_SINGER,
        "weston_watkins": joint.WESTON_WATKINS,
    }


@pytest.mark.parametrize(
    ("quiet", "shown"), [(False, "compiling the kernels of split, once"), (True, "")]
)
def test_the_command_line_says_that_kernels_are_compiled(
    tmp_path, monkeypatch, capsys, quiet, shown
):
    monkeypatch.delenv(compiled.COMPILE_HERE, raising=False)
    monkeypatch.setattr(compiled, "folder", lambda: tmp_path)
    monkeypatch.setattr(compiled, "places", lambda: [tmp_path])
    monkeypatch.setattr(compiled, "run_compiler", lambda order: ("", b""))
    for _ in range(2):  # the second time they are there
        kernels.prepare("split", "float32", Terminal(quiet))
    assert capsys.readouterr().err.split(";")[0] == shown
    assert [path.suffix for path in tmp_path.iterdir()] == [".ready"]


def test_kernels_of_predict_are_compiled_ahead(tmp_path):
    environment = {**os.environ, compiled.COMPILE_HERE: "1"}
    folder = tmp_path / "folder"
    folder.mkdir()
    code = f"from sbm.jobs.precompile import run; run('predict', 'float64', {str(folder)!r})"
    finished([sys.executable, "-c", code], env=environment, check=True, cwd=tmp_path)
    assert list(tmp_path.iterdir()) == [folder]


# ------------------------------------------------------------------- where machine code is kept


def first_call() -> list[float]:
    numbers = np.zeros(2)
    compiled.Kernel("sbm_probe.kernels", "nothing")(numbers)
    return numbers.tolist()


def count_compilations(monkeypatch) -> list[str]:
    made: list[str] = []
    make = compiled._make

    def counted(module, name, kinds):
        made.append(name)
        return make(module, name, kinds)

    monkeypatch.setattr(compiled, "_make", counted)
    return made


def test_every_bit_of_machine_code_that_flips_is_noticed(probe):
    first_call()
    (path,) = probe.iterdir()
    whole = path.read_bytes()
    assert compiled._unpack(path.name, whole) == whole[4:]
    for k in range(8 * len(whole)):
        data = bytearray(whole)
        data[k // 8] ^= 1 << k % 8
        assert compiled._unpack(path.name, bytes(data)) is None
    for size in range(len(whole)):
        assert compiled._unpack(path.name, whole[:size]) is None


def test_machine_code_under_another_name_is_made_again(probe, monkeypatch):
    first_call()
    (path,) = probe.iterdir()
    made = count_compilations(monkeypatch)
    assert call(compiled.Kernel("sbm_probe.kernels", "add"), False)[0] == (3, 5, 1, -3)
    (other,) = set(probe.iterdir()) - {path}
    other.write_bytes(path.read_bytes())  # whole, and not what its name says
    assert call(compiled.Kernel("sbm_probe.kernels", "add"), False)[0] == (3, 5, 1, -3)
    assert made == ["add", "add"]


@pytest.mark.parametrize("mode", [0o666, 0o646])
def test_machine_code_that_others_can_write_is_made_again(probe, monkeypatch, mode):
    first_call()
    (path,) = probe.iterdir()
    assert path.stat().st_mode & 0o022 == 0
    path.chmod(mode)
    made = count_compilations(monkeypatch)
    for _ in range(2):
        assert first_call() == [7, 7]
    assert made == ["nothing"]
    assert path.stat().st_mode & 0o022 == 0


ME, ROOT_USER, COLLEAGUE, STRANGER = 1000, 0, 2000, 3000  # the colleague owns the package


@pytest.mark.parametrize(
    ("owner", "mode", "package_mode", "trusted"),
    [
        (ME, 0o755, 0o755, True),
        (ROOT_USER, 0o755, 0o755, True),
        (COLLEAGUE, 0o755, 0o755, True),
        (STRANGER, 0o700, 0o755, False),
        (ME, 0o775, 0o755, False),
        (ME, 0o757, 0o755, False),
        (ME, 0o777, 0o755, False),
        (ME, 0o775, 0o775, True),  # who can write there can write our source
        (ME, 0o777, 0o775, False),
        (ROOT_USER, 0o1777, 0o755, False),
    ],
)
def test_who_may_write_machine_code(monkeypatch, owner, mode, package_mode, trusted):
    monkeypatch.setattr(compiled.os, "geteuid", lambda: ME)
    file = SimpleNamespace(st_uid=owner, st_gid=7, st_mode=mode)
    package = SimpleNamespace(st_uid=COLLEAGUE, st_gid=7, st_mode=package_mode)
    assert compiled._is_ours(file, package) is trusted
    file.st_gid = 8  # another group than that of the package
    assert compiled._is_ours(file, package) is (trusted and not mode & 0o020)


def test_the_mode_of_machine_code_does_not_depend_on_the_umask(probe):
    for mask in (0o000, 0o077):
        before = os.umask(mask)
        try:
            first_call()
        finally:
            os.umask(before)
        (path,) = probe.iterdir()
        assert path.stat().st_mode & 0o777 == 0o644 & ~mask
        path.unlink()


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """An installation that cannot be written, and no home."""
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(compiled, "_PACKAGE", tmp_path / "file")
    for name in ("XDG_CACHE_HOME", compiled.FOLDER, "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(compiled.os.path, "expanduser", lambda path: path)  # no entry of the user
    compiled.folder.cache_clear()
    yield tmp_path
    compiled.folder.cache_clear()


def test_without_a_place_machine_code_goes_with_the_process(nowhere):
    place = compiled.folder()
    assert place.parent == Path(tempfile.gettempdir())
    assert place.stat().st_mode & 0o777 == 0o700
    assert compiled.unusable() == [nowhere / "file" / "__pycache__"]
    assert compiled.places() == [place]
    place.rmdir()


def test_it_goes_with_the_process_indeed():
    code = (
        "import os\nfrom sbm import compiled\n"
        "place = compiled.folder()\nprint(place, os.path.isdir(place))\n"
    )
    place, was_there = run(code, **{compiled.FOLDER: "/dev/null/x"}).split()
    assert was_there == "True"
    assert not Path(place).exists()


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({"HOME": "here/home"}, "home/.cache/sbm"),
        ({"HOME": "here/home", "XDG_CACHE_HOME": "here/cache"}, "cache/sbm"),
        ({"HOME": "here/home", "XDG_CACHE_HOME": ""}, "home/.cache/sbm"),
        # The standard has it that a relative path is none: it would be where we happen to work.
        ({"HOME": "here/home", "XDG_CACHE_HOME": "cache"}, "home/.cache/sbm"),
        ({"HOME": "home"}, None),
        ({"HOME": "here/file"}, None),
        ({"HOME": "here/home", "SBM_CACHE_DIR": "here/mine/code"}, "mine/code"),
        ({"HOME": "here/home", "SBM_CACHE_DIR": "mine"}, "mine"),
        ({"HOME": "here/home", "SBM_CACHE_DIR": "here/file"}, None),
    ],
)
def test_where_machine_code_is_kept_if_not_beside_the_source(
    nowhere, monkeypatch, environment, place
):
    monkeypatch.undo()
    monkeypatch.chdir(nowhere)
    monkeypatch.setattr(compiled, "_PACKAGE", nowhere / "file")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value.replace("here", str(nowhere)))
    before = os.umask(0)
    try:
        found = compiled.folder()
    finally:
        os.umask(before)
    if place is None:
        assert found.parent == Path(tempfile.gettempdir())
        found.rmdir()
    else:
        assert found == nowhere / place
        assert found.stat().st_mode & 0o022 == 0
        assert compiled.unusable() == []


def test_a_folder_that_others_can_write_is_passed_over(nowhere, monkeypatch):
    open_to_all = nowhere / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    monkeypatch.setenv(compiled.FOLDER, str(open_to_all))
    place = compiled.folder()
    assert place.parent == Path(tempfile.gettempdir())
    assert compiled.unusable() == [open_to_all]
    assert open_to_all not in compiled.places()
    place.rmdir()


def test_a_command_says_that_its_kernels_cannot_be_kept(nowhere, monkeypatch, capsys):
    monkeypatch.delenv(compiled.COMPILE_HERE, raising=False)
    monkeypatch.setattr(compiled, "run_compiler", lambda order: ("", b""))
    monkeypatch.setattr(compiled, "fingerprint", lambda *sources: "0123456789abcdef")
    kernels.prepare("split", "float32", Terminal())
    second = capsys.readouterr().err.splitlines()[1]
    assert second == (
        f"they cannot be kept for the next command in {nowhere}/file/__pycache__, which we cannot "
        "write to, or others can; name a folder of your own in SBM_CACHE_DIR"
    )
    shutil.rmtree(compiled.folder())


def test_what_a_killed_process_left_of_a_file_is_removed_with_the_next_one(probe):
    first_call()
    (path,) = probe.iterdir()
    path.unlink()
    path.with_name(f"{path.name}.77.123456").write_bytes(b"half")
    first_call()
    assert list(probe.iterdir()) == [path]


def test_a_full_disk_leaves_no_half_of_a_file(probe, monkeypatch):
    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert first_call() == [7, 7]
    assert list(probe.iterdir()) == []


# --------------------------------------------------------------------------- compiling in a child

MARK = (
    "import numpy as np\n"
    "from sbm import compiled\n"
    "keep = np.zeros(3, bool)\n"
    "mark = compiled.load('sbm.solver.kernels.working_set').mark\n"
    "print(mark(np.array([1, 2, 2], np.uint32), 0x80000002, keep))\n"
)


def test_two_processes_may_compile_the_same_kernel_at_once(tmp_path):
    environment = {**os.environ, compiled.FOLDER: str(tmp_path)}
    command = [sys.executable, "-c", MARK]
    options = {"env": environment, "stdout": subprocess.PIPE}
    with started(command, **options) as one, started(command, **options) as other:
        assert [process.communicate()[0] for process in (one, other)] == [b"2\n"] * 2
    assert [one.returncode, other.returncode] == [0, 0]
    (path,) = tmp_path.iterdir()
    assert compiled._unpack(path.name, path.read_bytes()) is not None


def test_a_child_imports_nothing_from_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("numba", "numpy", "sbm", "struct"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a stranger was here')\n")
    order = "import numba, numpy, sbm, struct; print(sbm.__file__)"
    assert compiled.run_compiler(order) == ("", f"{sbm.__file__}\n".encode())
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert compiled.run_compiler(order) == ("", f"{sbm.__file__}\n".encode())


def test_a_child_that_is_killed_or_prints_nonsense_is_one_sentence(monkeypatch):
    assert compiled.run_compiler("import os; os.kill(os.getpid(), 9)")[0] == "exit code -9"
    monkeypatch.delenv(compiled.COMPILE_HERE, raising=False)
    monkeypatch.setattr(compiled, "run_compiler", lambda order: ("", b"Hello!"))
    with pytest.raises(compiled.KernelError) as error:
        compiled._make("sbm.solver.kernels.working_set", "mark", ("int64",))
    assert str(error.value) == (
        "sbm.solver.kernels.working_set.mark cannot be compiled: what the compiler printed is no "
        "machine code"
    )


def test_a_child_answers_to_no_ctrl_c_and_ends_with_us(tmp_path):
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


def test_settings_of_numba_that_change_code_change_its_name(monkeypatch):
    names = [compiled.fingerprint()]
    for name in ("NUMBA_BOUNDSCHECK", "NUMBA_OPT"):
        monkeypatch.setenv(name, "1")
        names.append(compiled.fingerprint())
    assert len(set(names)) == 3
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/nowhere")
    assert compiled.fingerprint() == names[-1]
