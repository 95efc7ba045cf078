"""Precompiled kernels are the ones that commands need later."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from families import CASES, make_store
from helpers import fit
from inside import LOSSES, patch, train_ranks
from inside import compiled_module as compiled
from inside import programs_precompile_module as precompile
from processes import started, wait_until
from threads import in_threads

import sbm
from sbm.errors import SbmError, SettingsError


@pytest.fixture
def used(monkeypatch):
    """The kernels called, with the types of their arguments."""
    found = set()
    call = compiled.Kernel.__call__

    def noted(kernel, *values):
        found.add((kernel.module, kernel.name, tuple(map(compiled._kind, values))))
        return call(kernel, *values)

    monkeypatch.setattr(compiled.Kernel, "__call__", noted)
    return found


@pytest.mark.long
def test_precompiled_commands_compile_nothing(used, tmp_path, monkeypatch):
    asked, tasks = set(), precompile._tasks(LOSSES, "float32")
    for k, (commands, value_type) in enumerate(tasks):
        (tmp_path / str(k)).mkdir()
        precompile.run(commands, value_type, str(tmp_path / str(k)))
    ahead = frozenset(used)
    used.clear()
    monkeypatch.delenv(compiled.COMPILE_HERE)
    patch(monkeypatch, "kernels.is_ready", lambda *kind: asked.add(kind) or True)
    for k, case in enumerate(CASES):
        folder = tmp_path / f"case{k}"
        folder.mkdir()
        X, y = case.rows(0, 40)
        store = make_store(folder, X, y, blocks=2)
        (folder / "weights.txt").write_text("".join(f"{w}\n" for w in np.arange(40) % 3))
        fit(store, max_passes=2, **case.options)
        fit(store, "w.model", max_passes=2, weights=str(folder / "weights.txt"), **case.options)
        sbm.predict(folder / "m.model", folder / "d.svm")
        sbm.stream([folder / "d.svm"], folder / "s.model", {"mem": "400MB", **case.options})
        if case.loss != "one_class":
            fit(store, "v.model", max_passes=1, validate=0.3, **case.options)
            fit(store, "v.model", max_passes=1, validate=str(folder / "d.svm"), **case.options)
        settings = sbm.Settings(max_passes=2, parts="blocks", **case.options)
        path = folder / "r.model"
        in_threads(2, lambda comm, at=(store, path, settings): train_ranks(comm, *at))
    (tmp_path / "a.csv").write_text("x,y\nu,1\n2,0\n")
    model, _ = sbm.train(tmp_path / "a.csv", tmp_path / "a.model")
    sbm.predict(model, tmp_path / "a.csv")
    assert asked <= {(command, kind) for commands, kind in tasks for command in commands}
    assert used <= ahead


@pytest.mark.process
def test_scout_finds_the_kernels_of_a_training(used, tmp_path):
    (tmp_path / "there").mkdir()
    order = (
        "import json, os\nfrom sbm.programs.precompile import _scout\nfound = []\n"
        f"_scout(found.append, ['svc'], 'ones', {str(tmp_path / 'there')!r}, os.getppid())\n"
        "print(json.dumps(found))"
    )
    problem, out = compiled.run_compiler(order)
    assert not problem
    found = {(module, name, tuple(kinds)) for module, name, kinds in json.loads(out)}
    precompile.run(["svc"], "ones", str(tmp_path))
    assert found == {kernel for kernel in used if kernel[0].startswith("sbm.solver.")}


@pytest.mark.slow
@pytest.mark.process
def test_kernels_compile_in_parallel(tmp_path, monkeypatch):
    for file in compiled.folder().glob("[is][nt]*.sbk"):  # compiled by split
        shutil.copy(file, tmp_path)
    before = set(os.listdir(tmp_path))
    (tmp_path / "run").mkdir()
    order = (
        "from sbm.programs.precompile import _compile_together as go; "
        f"go(['svc'], 'ones', {str(tmp_path / 'run')!r}, 2)"
    )
    monkeypatch.setenv(compiled.FOLDER, str(tmp_path))
    compiled.folder.cache_clear()
    try:
        assert compiled.run_compiler(order) == ("", b"")
    finally:
        monkeypatch.undo()
        compiled.folder.cache_clear()
    made = {name.split(".")[0] for name in set(os.listdir(tmp_path)) - before}
    assert {"solver-svc-solve", "solver-svc-screen", "solver-svc-certify"} <= made


@pytest.mark.process
def test_compilers_end_with_a_killed_parent():
    code = (
        "import os, time\nfrom sbm.compiled import end_with\nparent = os.getpid()\n"
        "if not os.fork():\n    end_with(parent)\n    print('begun', flush=True)\n"
        "time.sleep(60)"
    )
    with started([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline()
        process.kill()
        assert process.stdout.read() == b""  # the worker has closed it, too


@pytest.mark.process
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 130), (signal.SIGKILL, -9)])
def test_compiler_ends_with_a_stopped_command(tmp_path, number, code):
    (tmp_path / "a.svm").write_text("1 1:1\n-1 2:1\n")
    command = [sys.executable, "-m", "sbm", "train", tmp_path / "a.svm", "-o", tmp_path / "m.model"]
    environment = {**os.environ, compiled.FOLDER: str(tmp_path / "cache")}
    del environment[compiled.COMPILE_HERE]
    with started(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        if not children.exists():
            pytest.skip("the system does not list children")
        wait_until(children.read_text, process)
        (child,) = children.read_text().split()
        process.send_signal(number)
        said = process.stderr.read()
    assert process.returncode == code
    assert not list((tmp_path / "cache").glob("*.ready"))  # it did not wait for the compiler
    assert number == signal.SIGKILL or "stopped" in said
    wait_until(lambda: not Path("/proc", child).exists())


def test_tasks_are_distributed_and_failures_reported(monkeypatch):
    done = []
    patch(monkeypatch, "precompile.is_ready", lambda command, kind: command == "svc")
    patch(monkeypatch, "compile_ahead", lambda *task: done.append(task) or "")
    report = sbm.precompile(["log_loss"], "float64", threads=1)
    assert report["folder"] == str(compiled.folder())
    first = [(commands[0], kind) for commands, kind in done]
    both = [(name, kind) for name in ("logistic", "l1") for kind in ("float64", "ones")]
    rest = [("split", "float64"), ("names", "float64"), ("validate", "ones")]
    assert first == [*both, *rest]
    patch(monkeypatch, "compile_ahead", lambda *task: "no space left")
    with pytest.raises(SbmError, match="no space left"):
        sbm.precompile(["log_loss"])
    for arguments, facts in (((["hinge", "x"],), "'x'.*hinge"), ((["hinge"], "int8"), "int8")):
        with pytest.raises(SettingsError, match=facts):
            sbm.precompile(*arguments)
