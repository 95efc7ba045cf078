"""Commands compile the kernels that they call before they begin, and no others."""

import importlib
import inspect
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from families import CASES, make_store
from helpers import fit
from inside import LOSSES, Limit, patch, specializations, train_ranks
from inside import cache_module as cache
from inside import calls_module as calls
from inside import child_module as child
from inside import declared_module as declared
from inside import engine_kernels_module as kernels
from inside import programs_precompile_module as precompile
from processes import started, wait_until
from threads import in_threads

import sbm
from sbm.errors import SbmError, SettingsError


class Watch:
    """Runs commands, and tells which kernels they call without having prepared them."""

    def __init__(self, monkeypatch) -> None:
        self.called, self.prepared = set(), set()
        self.all_prepared = set()
        call = calls.Kernel.__call__

        def noted(kernel, *values):
            kinds = tuple(map(calls.kind_of, values))
            self.called.add((kernel.module, kernel.name, kinds))
            return call(kernel, *values)

        def listed(names, **types):
            found = specializations(names, **types)
            self.prepared.update(found)
            return found

        monkeypatch.setattr(calls.Kernel, "__call__", noted)
        monkeypatch.delenv(cache.COMPILE_HERE)
        patch(monkeypatch, "kernels._is_there", lambda marker: False)
        patch(monkeypatch, "kernels.is_there", lambda *kernel: True)
        patch(monkeypatch, "kernels.specializations", listed)
        patch(monkeypatch, "keep", lambda name, data: None)

    def __call__(self, command, *arguments, **options):
        for seen in (self.called, self.prepared, kernels._ready):
            seen.clear()
        try:
            return command(*arguments, **options)
        finally:
            self.all_prepared |= self.prepared
            assert sorted(self.called - self.prepared) == []


@pytest.fixture
def watch(monkeypatch) -> Watch:
    return Watch(monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=str)
def test_commands_prepare_what_they_call(watch, tmp_path, monkeypatch, case):
    X, y = case.rows(0, 40)
    store = make_store(tmp_path, X, y, blocks=2)
    text, weights = tmp_path / "d.svm", tmp_path / "weights.txt"
    weights.write_text("".join(f"{w}\n" for w in np.arange(40) % 3))
    more = {"max_passes": 2, **case.options}
    for parts in ("auto", "blocks"):
        watch(fit, store, f"{parts}.model", parts=parts, **more)
    watch(fit, store, "w.model", weights=str(weights), **more)
    watch(fit, store, "newton.model", solver="newton", **more) if case.loss != "one_class" else None
    with monkeypatch.context() as context:
        patch(context, "MOST_WHOLE", 10**9)  # all rows are one part, as by default
        watch(sbm.train, text, tmp_path / "t.model", {**more})
    watch(sbm.split, [text], tmp_path / "again.sbm", dtype="float64", min_count=2)
    watch(fit, tmp_path / "again.sbm", "d.model", **more)
    watch(sbm.predict, tmp_path / "t.model", text)
    watch(sbm.predict, tmp_path / "t.model", store)
    watch(sbm.check, store)
    watch(sbm.cat, store, tmp_path / "c.svm")
    watch(fit, store, "auto.model", warm_start=True, tol=1e-9, **more)
    watch(sbm.plan, store, {**case.options})
    watch(sbm.stream, [text], tmp_path / "s.model", {"mem": "400MB", **case.options})
    if case.loss != "one_class":
        watch(fit, store, "v.model", validate=0.3, **more)
        watch(fit, store, "f.model", validate=str(text), **more)
    settings = sbm.Settings(parts="blocks", **more)
    watch(in_threads, 2, lambda comm: train_ranks(comm, store, tmp_path / "r.model", settings))
    assert watch.all_prepared - {*specializations(kernels.STORE, words="uint64[1]")} <= {
        *precompile._kernels([case.loss], "float32"),
        *precompile._kernels([case.loss], "float64"),
    }


def test_sparse_trainings_and_tables_prepare_what_they_call(watch, tmp_path):
    X, y = CASES[0].rows(0, 40)
    store = make_store(tmp_path, X, y, blocks=2)
    for mem in ("2GB", "150MB"):
        watch(
            fit,
            store,
            f"{mem}.model",
            loss="log_loss",
            penalty="l1",
            mem=mem,
            intercept=True,
            tol=1e-9,
        )
    for penalty in ("l1", "l2"):
        options = {"loss": "log_loss", "penalty": penalty}
        watch(sbm.tune, store, tmp_path / f"{penalty}.model", options, Cs=[0.1, 1.0], folds=2)
    (tmp_path / "a.csv").write_text("x,y\nu,1\n2,0\n")
    (tmp_path / "a.vw").write_text("1 |a x:2 y\n-1 |b z\n")
    for name in ("a.csv", "a.vw"):
        model, _ = watch(sbm.train, tmp_path / name, tmp_path / f"{name}.model")
        watch(sbm.predict, model, tmp_path / name)
    watch(sbm.stream, [tmp_path / "a.vw"], tmp_path / "s.model", options={"hash_bits": 10})


def test_declarations_have_the_arguments_of_the_kernels():
    for pattern in declared.all_kernels():
        folder, module, _ = pattern.split(".")
        names = importlib.import_module(f"sbm.{folder}.kernels.{module}")
        for name, types in declared._types(folder)[module].items():
            parameters = inspect.signature(getattr(names, name).py_func).parameters
            assert [each.partition(":")[0] for each in types.split()] == [*parameters], name


def test_variants_of_a_declaration(monkeypatch):
    types = {"m": {"k": "a:{values} b:int64[1]?on c:uint8[1]?on|int32[1] d:{values}"}}
    monkeypatch.setattr(declared, "_types", lambda folder: types)
    found = {kinds for _, _, kinds in specializations(["store.m.*"])}
    assert len(found) == 6
    assert ("none", "none", "int32[1]", "none") in found
    assert specializations(["store.m.k"], values="float64[1]", on=True, other="x") == [
        ("sbm.store.kernels.m", "k", ("float64[1]", "int64[1]", "uint8[1]", "float64[1]"))
    ]
    two = specializations(["store.m.k"], values=("none", "float64[1]"), on=False)
    assert [kinds[0] for _, _, kinds in two] == ["none", "float64[1]"]


@pytest.mark.process
def test_kernels_compile_in_parallel(tmp_path, monkeypatch):
    monkeypatch.delenv(cache.COMPILE_HERE)
    patch(monkeypatch, "folder", lambda: tmp_path)
    wanted = specializations(["store.alphas.*", "inputs.ids.count"])
    counts = []
    assert child.compile_all(wanted, 2, counts.append) == ""
    assert counts == sorted(counts)
    assert counts[-1] == len(wanted) == 4
    assert {file.name.split(".")[0] for file in tmp_path.iterdir()} == {
        "store-alphas-count_free",
        "store-alphas-pack",
        "store-alphas-unpack",
        "inputs-ids-count",
    }
    problem = child.compile_all([("sbm.store.kernels.alphas", "pack", ("none",) * 4)], 2)
    assert "Failed in nopython mode" in problem or "No implementation" in problem or problem


@pytest.mark.parametrize(
    ("threads", "free", "expected"),
    [(4, None, 4), (20, None, 8), (20, 160 * 5, 4), (4, 160 * 5 - 1, 3), (4, 0, 1)],
)
def test_compilers_fit_into_the_memory(threads, free, expected, monkeypatch):
    limit = None if free is None else Limit((1000 + free) * 10**6, "ulimit -v")
    patch(monkeypatch, "kernels.usable_threads", lambda asked: threads)
    patch(monkeypatch, "kernels.system_limit", lambda: limit)
    patch(monkeypatch, "kernels.resident_bytes", lambda: 1000 * 10**6)
    assert kernels._workers() == expected


@pytest.mark.process
def test_compilers_end_with_a_killed_parent():
    code = (
        "import os, time\nfrom sbm.compiled.child import end_with\nparent = os.getpid()\n"
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
    environment = {**os.environ, cache.FOLDER: str(tmp_path / "cache")}
    del environment[cache.COMPILE_HERE]
    with started(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        if not children.exists():
            pytest.skip("the system does not list children")
        wait_until(children.read_text, process)
        (compiler,) = children.read_text().split()
        process.send_signal(number)
        said = process.stderr.read()
    assert process.returncode == code
    assert not list((tmp_path / "cache").glob("ready.*"))  # it did not wait for the compiler
    assert number == signal.SIGKILL or "stopped" in said
    wait_until(lambda: not Path("/proc", compiler).exists())


def test_precompiled_kernels_and_failures(monkeypatch):
    asked = []

    def compile_all(wanted, workers, tell):
        asked.extend(wanted)
        return ""

    patch(monkeypatch, "precompile.is_there", lambda module, name, kinds: name == "certify")
    patch(monkeypatch, "child.compile_all", compile_all)
    report = sbm.precompile(["log_loss"], "float64", threads=1)
    assert report["folder"] == str(cache.folder())
    assert report["kernels"] == len(asked) == len(set(asked))
    losses = {
        module.rpartition(".")[2] for module, name, _ in asked if name in ("solve", "certify")
    }
    assert losses == {"batches", "logistic", "multiclass", "newton"}
    assert not any(name == "certify" for _, name, _ in asked)
    assert not any("float32[1]" in kinds for _, name, kinds in asked if name == "parse")
    patch(monkeypatch, "child.compile_all", lambda *task: "no space left")
    with pytest.raises(SbmError, match="no space left"):
        sbm.precompile([*LOSSES][:1])
    for arguments, facts in (((["hinge", "x"],), "'x'.*hinge"), ((["hinge"], "int8"), "int8")):
        with pytest.raises(SettingsError, match=facts):
            sbm.precompile(*arguments)
