"""Warm starts: the same optimum, without a pass if nothing changed, and errors."""

import shutil

import numpy as np
import pytest
from families import LABELS, N_FEATURES, Case, assert_same_optimum, make_store
from helpers import fit, write_rows
from inside import FULL_PASS, BlockStore, Engine, Run, encode_record, patch

import sbm
from sbm.errors import DataError, MemoryPlanError, SettingsError, StoreError

HINGE = Case("hinge", 2)
CASES = [
    HINGE, Case("hinge", 3), Case("squared_hinge", 2), Case("log_loss", 3),
    Case("crammer_singer", 3), Case("weston_watkins", 3), Case("epsilon_insensitive", 0),
    Case("squared_epsilon_insensitive", 0), Case("squared_error", 3, {"task": "classification"}),
    Case("one_class", 1, {"nu": 0.2}),
]  # fmt: skip
SECOND_ORDER = {
    "hinge", "squared_hinge", "log_loss", "epsilon_insensitive", "squared_error", "crammer_singer",
}  # fmt: skip
EVERY = pytest.mark.parametrize("case", CASES, ids=str)
SIZES = [60, 40, 30]  # rows of the sources 0.svm, 1.svm, 2.svm of a store


def options_of(case=HINGE, **more):
    bias = 0.0 if case.loss == "one_class" else 0.5
    options = {"tol": 1e-5, "max_passes": 5000, "rounds": 5, "bias": bias}
    return {**options, **case.at(0.1), **more}


class Night:
    """A store of several sources, a model a.model trained on it, and the rows."""

    def __init__(self, folder, case, is_trained=True):
        self.folder, self.case, self.store = folder, case, folder / "g.sbm"
        self.rows = {}
        for k, n in enumerate(SIZES):
            self.append(k, n, blocks=2)
        if is_trained:
            self.first = fit(self.store, "a.model", **options_of(case))

    def append(self, k, n, **options):
        self.rows[k] = self.case.rows(k, n=n)
        text = write_rows(self.folder / f"{k}.svm", *self.rows[k])
        sbm.split([text], self.store, append=k > 0, seed=k, **options)

    def expire(self, k):
        sbm.expire(self.store, sources=f"{k}.svm")
        del self.rows[k]

    def copy(self, folder):
        """The same in another folder."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        twin = object.__new__(Night)
        twin.__dict__.update(self.__dict__)
        twin.folder, twin.store, twin.rows = folder, folder / "g.sbm", dict(self.rows)
        return twin

    @property
    def run(self):
        return self.folder / "a.model.run"

    def warm(self, name="b.model", start="a.model", **more):
        options = options_of(self.case, **more)
        model, report, passes = fit(
            self.store, name, warm_start=str(self.folder / start), **options
        )
        assert report["converged"]
        assert report["drift"] <= 1e-9
        return model, report, passes

    def cold(self, name="c.model", **more):
        """Train from zero on a newly split store."""
        X, y = (np.concatenate(part) for part in zip(*self.rows.values(), strict=True))
        anew = make_store(self.folder, X, y, f"anew-{name}", blocks=3)
        return fit(anew, name, **options_of(self.case, **more))[:2]


@pytest.fixture(scope="module")
def nights(tmp_path_factory):
    made = {}

    def get(case):
        if str(case) not in made:
            made[str(case)] = Night(tmp_path_factory.mktemp("night"), case)
        return made[str(case)]

    return get


@pytest.fixture
def night(nights, tmp_path):
    """A hinge `Night` that no other test uses."""
    return nights(HINGE).copy(tmp_path)


def files(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


# --------------------------------------------------------------------------------- any start


@EVERY
def test_same_settings_take_no_pass(nights, tmp_path, case):
    night = nights(case).copy(tmp_path)
    first, before, _ = night.first
    for name, start in (("b.model", "a.model"), ("d.model", "b.model.run")):
        model, report, passes = night.warm(name, start)
        assert (report["passes"], passes) == (0, [])
        assert report["primal"] == pytest.approx(before["primal"], rel=1e-9)
        np.testing.assert_allclose(model.W, first.W, atol=1e-9)
        np.testing.assert_allclose(model.bias_weights, first.bias_weights, atol=1e-9)
    assert sbm.Model.load(tmp_path / "b.model").converged


@pytest.mark.parametrize("solver", ["newton", "dual"])
@pytest.mark.parametrize("case", [case for case in CASES if case.loss in SECOND_ORDER], ids=str)
def test_second_order_weights_are_kept(nights, tmp_path, case, solver):
    """They are not sums over the alphas, with which they have a small gap."""
    if solver == "dual" and case.labels == 3 and case.loss != "crammer_singer":
        pytest.skip("coordinate descent solves all classes together")
    night = nights(case).copy(tmp_path)
    first = fit(night.store, "n.model", **options_of(case, solver="newton", tol=1e-4))
    options = {"tol": 1e-4, "solver": solver}
    for name, start in (("b.model", "n.model"), ("d.model", "b.model")):
        model, report, passes = night.warm(name, start, **options)
        assert (report["passes"], passes) == (0, [])
        np.testing.assert_allclose(model.W, first[0].W, atol=1e-9)
        assert report["relative_gap"] == pytest.approx(first[1]["relative_gap"], abs=1e-9)
    model, report, _ = night.warm("e.model", "d.model", solver=solver)  # to a smaller gap
    assert_same_optimum((model, report), night.first[:2])


@pytest.mark.long
@EVERY
def test_other_settings_reach_cold_optimum(nights, tmp_path, case, monkeypatch):
    night = nights(case).copy(tmp_path)
    factor = (0.1, 5.0)[CASES.index(case) % 2]
    v = np.random.default_rng(1).integers(0, 3, sum(SIZES))
    (tmp_path / "v.txt").write_text("".join(f"{x}\n" for x in v))
    other = {"nu": 0.3} if case.loss == "one_class" else {"C": 0.1 * factor}
    other |= {"weights": str(tmp_path / "v.txt"), "seed": 4}
    other |= {"epsilon": 0.5} if "epsilon" in case.loss else {}
    if case.labels in (2, 3):
        other["class_weight"] = {LABELS[0]: 0.5, LABELS[1]: 2.0}
    cold = fit(night.store, "c.model", **options_of(case, **other))
    assert_same_optimum(night.warm(cache_frac=0.3, **other)[:2], cold[:2])
    back = night.warm("d.model", "b.model")
    assert_same_optimum(back[:2], night.first[:2])


@pytest.mark.long
@EVERY
def test_nightly_changes_reach_cold_optimum(nights, tmp_path, case, monkeypatch):
    """Appended, expired, trained; blocks cut in parts or joined; from the last run each time."""
    patch(monkeypatch, "CHUNK_NNZ", 60)
    night = Night(tmp_path, case, is_trained=False)
    with pytest.raises(MemoryPlanError) as error:
        fit(night.store, "a.model", **options_of(case), mem="1MB")
    least = error.value.least_bytes
    options = options_of(case, warm_start=True)
    for k, (n, gone) in enumerate([(None, None), (10, 0), (30, 2), (6, None)]):
        if n is not None:
            night.append(len(SIZES) + k, n, blocks=1 + k % 2)
        if gone is not None:
            night.expire(gone)
        mem = "400MB" if k % 3 else least + 100_000
        model, report, _ = fit(night.store, "a.model", **options, mem=mem, cache_frac=0.3 + 0.1 * k)
        assert report["converged"]
        assert report["drift"] <= 1e-9
        X, y = (np.concatenate(p) for p in zip(*night.rows.values(), strict=True))
        assert case.primal(X, y, model) == pytest.approx(report["primal"], rel=1e-9)
    assert_same_optimum((model, report), night.cold())
    assert night.warm()[1]["passes"] == 0


@pytest.mark.long
@pytest.mark.parametrize("case", [c for c in CASES if c.labels == 3], ids=str)
def test_appended_classes_and_features_are_learned(nights, tmp_path, case):
    night = nights(case).copy(tmp_path)
    X, y = case.rows(1, n=40)
    X = np.hstack([X, np.eye(40)[:, :3]])  # three features more, each in one row
    y[::3] = -5  # between the others
    y[1::3] = 9
    sbm.split(
        [write_rows(tmp_path / "more.svm", X, y)],
        night.store,
        append=True,
        blocks=2,
        new_labels=True,
    )
    model, report, _ = night.warm(threads=1)
    assert model.labels == [-5, -3, 2, 7, 9]
    assert set(model.ids) == set(range(1, N_FEATURES + 4))
    cold = fit(night.store, "c.model", **options_of(case))
    assert_same_optimum((model, report), cold[:2])
    assert night.warm("d.model", threads=2)[0].W.tobytes() == model.W.tobytes()


@EVERY
def test_start_after_expiring_is_certified(nights, tmp_path, case):
    night = nights(case).copy(tmp_path)
    night.expire(1)
    model, report, _ = night.warm(tol=1e6)
    assert report["passes"] == 0
    assert report["drift"] <= 1e-15
    assert np.abs(model.W - night.first[0].W).max() > 1e-3
    X, y = (np.concatenate(p) for p in zip(*night.rows.values(), strict=True))
    assert case.primal(X, y, model) == pytest.approx(report["primal"], rel=1e-9)


def test_class_without_rows_is_kept(tmp_path):
    case = Case("crammer_singer", 3)
    X, y = case.rows()
    rare = y == LABELS[2]
    store = make_store(tmp_path, X[rare], y[rare], "g", blocks=2)
    more = write_rows(tmp_path / "more.svm", X[~rare], y[~rare])
    sbm.split([more], store, append=True, new_labels=True)
    fit(store, "a.model", **options_of(case))
    assert sbm.expire(store, sources="g.svm")["labels_without_rows"] == [LABELS[2]]
    options = options_of(case, warm_start=str(tmp_path / "a.model"))
    model, report, _ = fit(store, "b.model", **options)
    assert model.labels == sorted(LABELS)
    assert_same_optimum((model, report), fit(store, "c.model", **options_of(case))[:2])


# ------------------------------------------------------------------------------- less work


def sparse_rows(n, n_features=300):
    """Rows of a few ones each, features of all frequencies, two noisy labels."""
    random = np.random.default_rng(0)
    weights = np.random.default_rng(99).normal(size=n_features)
    X = np.zeros((n, n_features))
    for row in X:
        row[np.unique((n_features * random.random(8) ** 3).astype(int))] = 1
    return X, np.where(X @ weights + random.normal(size=n) > 0, 1, -1)


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """A store of which a tenth is new since a.model was trained on it."""
    X, y = sparse_rows(2000)
    folder = tmp_path_factory.mktemp("grown")
    store = make_store(folder, X[:1800], y[:1800], blocks=12)
    for loss in ("hinge", "log_loss"):
        fit(store, f"{loss}.model", loss=loss, C=0.1)
    sbm.split([write_rows(folder / "new.svm", X[1800:], y[1800:])], store, append=True)
    assert BlockStore(store).n_blocks == 13
    return store


@pytest.mark.parametrize("loss", ["hinge", "log_loss"])
def test_warm_start_with_few_new_saves_updates(grown, loss):
    options = {"loss": loss, "C": 0.1}
    start = str(grown.parent / f"{loss}.model")
    model, report, passes = fit(grown, "b.model", warm_start=start, **options)
    other, cold, _ = fit(grown, "c.model", **options)
    assert_same_optimum((model, report), (other, cold))
    assert report["updates"] <= 0.6 * cold["updates"]
    assert report["visits"] <= 0.6 * cold["visits"]
    # New rows come first; a partial pass has no estimate.
    assert passes[0]["visits"] <= 200 < passes[1]["visits"]
    assert passes[0]["estimated_gap"] is passes[0]["certificate"] is None
    # But not if there is only one pass.
    options |= {"tol": 1e-9, "max_passes": 1}
    _, report, (only,) = fit(grown, "d.model", warm_start=start, **options)
    assert only["estimated_gap"] is not None


@pytest.mark.long
def test_partial_pass_follows_short_certificate(grown, monkeypatch):
    parts, real = [], Engine.begin_pass

    def told(self, number, only=None):
        parts.append(only)
        return real(self, number, only)

    monkeypatch.setattr(Engine, "begin_pass", told)
    found = 0
    for tol in np.geomspace(1e-2, 1e-4, 12):
        parts.clear()
        start = str(grown.parent / "hinge.model")
        _, report, passes = fit(
            grown, f"{tol}.model", warm_start=start, C=0.1, tol=tol, cache_frac=0.0
        )
        assert report["relative_gap"] <= tol
        assert parts[0] == [12]
        for before, only, this in zip(passes[1:], parts[2:], passes[2:], strict=False):
            if only is not None:
                found += 1
                assert before["certificate"]["relative_gap"] > tol
                assert 4 <= len(set(only)) == len(only) < 13
                assert this["certificate"] is not None
                assert this["pass"] % FULL_PASS
    assert found
    parts.clear()
    fit(grown, "cold.model", C=0.1, seed=7)
    assert set(map(str, parts)) == {"None"}  # never from zero


# ----------------------------------------------------------------------- from the run beside it


def test_warm_start_true_uses_last_run(night, tmp_path):
    first, before, _ = night.first
    options = options_of(warm_start=True)
    model, report, _ = fit(night.store, "a.model", **options)
    assert report == {**before, "was_finished": True, "model": report["model"]}
    np.testing.assert_array_equal(model.W, first.W)
    for was_finished in (False, True):  # has no run yet, and has one
        report = fit(night.store, tmp_path / "b.model", **options)[1]
        assert report["updates"] == before["updates"]
        assert report["was_finished"] is was_finished
    with pytest.raises(SettingsError, match="warm_start"):
        fit(night.store, "b.model", **{**options, "loss": "squared_hinge"})


def test_killed_nights_start_from_last_checkpoint(nights, night, tmp_path):
    twin = nights(HINGE).copy(tmp_path / "twin")
    for one in (night, twin):
        one.append(7, 40)
    (night.run / "alpha-999999.sba").write_bytes(b"half")
    (night.run / "run.json.tmp").write_bytes(b"half")
    models = [fit(one.store, "a.model", **options_of(warm_start=True))[0] for one in (night, twin)]
    assert models[0].W.tobytes() == models[1].W.tobytes()
    assert sorted(p.name for p in tmp_path.glob("a.model*")) == ["a.model", "a.model.run"]
    assert not list(night.run.glob("*999999*"))
    (night.run / "run.json").unlink()  # as if killed before the first checkpoint
    again = fit(night.store, "a.model", **options_of(warm_start=True))[0]
    assert again.W.tobytes() == fit(night.store, "c.model", **options_of())[0].W.tobytes()


# ------------------------------------------------------------------------------------- refusals


def test_invalid_warm_starts_are_refused(nights, tmp_path):
    night = nights(HINGE)
    X, y = HINGE.rows(1, n=130)
    same_sizes = make_store(tmp_path, X, y, "same", blocks=6)
    y[::3] = 9
    more_labels = make_store(tmp_path, X, y, "labels", blocks=6)
    other = make_store(tmp_path, X[:50], y[:50] > 0, "other", blocks=3)
    model, before = night.folder / "a.model", files(night.run)
    for store, start, options, error, facts in [
        (night.store, model, {"loss": "squared_hinge"}, SettingsError, "use loss='hinge',"),
        (night.store, model, {"bias": 1.0}, SettingsError, "a.model.run .*bias 0.5,.* 1.0"),
        (same_sizes, model, {}, StoreError, "a.model.run .*other data than .*same.sbm"),
        (other, model, {}, StoreError, "a.model.run .*other data than .*other.sbm"),
        (more_labels, model, {}, SettingsError, "other classes or another solver .1 output, now 3"),
        (night.store, "no.model", {}, StoreError, "no.model does not exist.* warm_start"),
        (night.store, night.folder / "0.svm", {}, StoreError, "0.svm has no run.* 0.svm.run"),
        (night.store, night.store, {}, StoreError, "g.sbm is a store"),
        (night.store, tmp_path, {}, StoreError, f"{tmp_path} is not a run"),
    ]:
        with pytest.raises(error, match=facts):
            fit(store, tmp_path / "b.model", warm_start=str(start), **options_of(**options))
        assert not (tmp_path / "b.model.run").exists()
    assert files(night.run) == before


@pytest.mark.parametrize("what", ["alpha", "state", "run.json", "no shape"])
def test_damaged_run_is_refused_and_kept(night, what):
    run = night.run
    if what == "run.json":
        (run / what).write_text("{")
    elif what == "no shape":
        record = Run.read(run)
        del record["shape"]
        (run / "run.json").write_bytes(encode_record("run", record))
    else:
        path = next(run.glob(f"{what}-*.sba"))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 255
        path.write_bytes(data)
    before = files(run)
    for name in ("b.model", "a.model"):
        with pytest.raises(StoreError):
            night.warm(name, C=0.3)
        assert {name: data for name, data in files(run).items() if name in before} == before


@pytest.mark.parametrize("case", [HINGE, Case("weston_watkins", 3)], ids=str)
def test_failed_training_keeps_earlier_run(nights, tmp_path, case):
    night = nights(case).copy(tmp_path)
    (tmp_path / "v.txt").write_text("1\n")
    with pytest.raises(DataError):
        night.warm("a.model", weights=str(tmp_path / "v.txt"))
    path = night.store / "block-000002.sbb"
    data = path.read_bytes()
    path.write_bytes(data[:-3] + b"xyz")
    with pytest.raises(StoreError):
        night.warm("a.model", C=0.3)
    path.write_bytes(data)
    for name in ("b.model", "a.model"):
        assert night.warm(name)[1]["passes"] == 0


@pytest.mark.parametrize("loss", ["log_loss", "squared_hinge", "hinge"])
def test_start_worse_than_zero_is_not_used(tmp_path, loss):
    """After most rows have expired, the alphas of the others can be far from any optimum."""
    random = np.random.default_rng(0)
    X = np.column_stack([random.integers(18, 80, 2500), random.random((2500, 3)) < 0.3])
    y = np.where((X[:, 0] - 45) / 20 + X[:, 1] + random.normal(size=2500) > 0, 1, -1)
    store, settings = tmp_path / "a.sbm", {"loss": loss, "solver": "newton"}
    sbm.split((X[:2000], y[:2000]), store, name="old")
    sbm.train(store, tmp_path / "a.model", settings)
    sbm.split((X[2000:], y[2000:]), store, name="new", append=True)
    sbm.train(store, tmp_path / "a.model", {**settings, "warm_start": True})
    sbm.expire(store, sources=["old"])
    _, warm = sbm.train(store, tmp_path / "a.model", {**settings, "warm_start": True})
    _, cold = sbm.train(store, tmp_path / "b.model", settings)
    assert warm["converged"]
    assert warm["passes"] <= cold["passes"]
    assert warm["primal"] == pytest.approx(cold["primal"], rel=2e-3)
