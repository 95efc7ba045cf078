"""Kernels compiled ahead are those that commands need later."""

import numpy as np
import pytest
from families import CASES, make_store
from helpers import fit

import sbm
from sbm import compiled
from sbm.errors import SbmError, SettingsError
from sbm.losses import LOSSES
from sbm.programs import precompile


@pytest.fixture
def used(monkeypatch):
    """The kernels that are called, with the types of their arguments."""
    found = set()
    call = compiled.Kernel.__call__

    def noted(kernel, *values):
        found.add((kernel.module, kernel.name, tuple(map(compiled._kind, values))))
        return call(kernel, *values)

    monkeypatch.setattr(compiled.Kernel, "__call__", noted)
    return found


@pytest.mark.long
def test_later_commands_need_no_other_kernels(used, tmp_path):
    for k, (commands, value_type) in enumerate(precompile._tasks(LOSSES, "float32")):
        (tmp_path / str(k)).mkdir()
        precompile.run(commands, value_type, str(tmp_path / str(k)))
    ahead = frozenset(used)
    used.clear()
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
    assert used <= ahead


def test_tasks_are_shared_out_and_failures_told(monkeypatch):
    done = []
    monkeypatch.setattr(precompile, "is_ready", lambda command, kind: command == "svc")
    monkeypatch.setattr(precompile, "compile_ahead", lambda *task: done.append(task) or "")
    report = sbm.precompile(["log_loss"], "float64", threads=1)
    assert report["folder"] == str(compiled.folder())
    kernels = [(commands[0], kind) for commands, kind in done]
    assert kernels == [("logistic", "float64"), ("logistic", "ones"), ("split", "float64")]
    monkeypatch.setattr(precompile, "compile_ahead", lambda *task: "no space left")
    with pytest.raises(SbmError, match="no space left"):
        sbm.precompile(["log_loss"])
    for arguments, facts in (((["hinge", "x"],), "'x'.*hinge"), ((["hinge"], "int8"), "int8")):
        with pytest.raises(SettingsError, match=facts):
            sbm.precompile(*arguments)
