"""Warm starts: the same optimum from anywhere, at once where nothing changed, and refusals."""

import json
import shutil

import numpy as np
import pytest
from families import CASES, LABELS, N_FEATURES, Case, assert_same_optimum, make_store
from helpers import fit, full_weights, store_rows, write_rows

import sbm
from sbm.alphas import Dense
from sbm.errors import DataError, SettingsError, StoreError
from sbm.jobs.engine.engine import FULL_PASS, Engine
from sbm.jobs.progress import Progress
from sbm.store import blocks
from sbm.store.blocks import BlockStore
from sbm.store.records import encode_record
from sbm.store.run import Run

EVERY = pytest.mark.parametrize("case", CASES, ids=str)


def in_turn(name, first, second):
    """Every case, with one of two values each."""
    pairs = [(case, (first, second)[k % 2]) for k, case in enumerate(CASES)]
    return pytest.mark.parametrize(("case", name), pairs, ids=str)


OPTIONS = {"C": 0.1, "tol": 1e-5, "max_passes": 5000, "rounds": 5}


def options_of(case):
    return {**{name: OPTIONS[name] for name in OPTIONS if name != "C"}, **case.at(OPTIONS["C"])}


def trained(folder, case, n_blocks=4, **options):
    X, y = case.rows()
    store = make_store(folder, X, y, blocks=n_blocks)
    return store, fit(store, "a.model", **{**options_of(case), **options})


def warm(store, case, name="b.model", start="a.model", **options):
    chosen = {**options_of(case), **options}
    model, report, passes = fit(store, name, warm_start=str(store.parent / start), **chosen)
    assert report["converged"]
    assert report["drift"] <= 1e-9
    return model, report, passes


def files(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir()}


# ----------------------------------------------------------------------------- nothing changed


@in_turn("start", "a.model", "a.model.run")
def test_the_same_settings_take_no_pass(tmp_path, case, start):
    store, (first, before, _) = trained(tmp_path, case)
    model, report, passes = warm(store, case, start=start)
    assert (report["passes"], passes) == (0, [])
    assert report["relative_gap"] <= OPTIONS["tol"]
    assert report["primal"] == pytest.approx(before["primal"], rel=1e-9)
    np.testing.assert_allclose(model.W, first.W, atol=1e-9)
    np.testing.assert_allclose(model.bias_weights, first.bias_weights, atol=1e-9)
    assert sbm.Model.load(tmp_path / "b.model").converged
    again, report, _ = warm(store, case, "c.model", "b.model")  # and so on, from that
    assert report["passes"] == 0
    np.testing.assert_allclose(again.W, first.W, atol=1e-9)


@EVERY
def test_onto_its_own_name_it_goes_on(tmp_path, case):
    store, (_, before, _) = trained(tmp_path, case, tol=1e-2)
    model, report, _ = warm(store, case, "a.model")
    assert report["relative_gap"] <= 1e-5
    assert report["dual"] >= before["dual"] - 1e-9 * abs(before["dual"])
    cold = fit(store, "c.model", **options_of(case))
    assert_same_optimum((model, report), cold[:2])
    assert sorted(p.name for p in tmp_path.glob("a.model*")) == ["a.model", "a.model.run"]
    assert warm(store, case, "d.model")[1]["passes"] == 0


# ------------------------------------------------------------------------------ other settings


@in_turn("factor", 0.1, 5.0)
def test_with_another_cost_the_optimum_is_that_of_a_cold_start(tmp_path, case, factor):
    other = {"nu": 0.2 * factor**0.5} if case.loss == "one_class" else {"C": 0.1 * factor}
    store, _ = trained(tmp_path, case, bias=0.0 if case.loss == "one_class" else 0.5)
    other["bias"] = 0.0 if case.loss == "one_class" else 0.5
    model, report, _ = warm(store, case, **other)
    cold = fit(store, "c.model", **{**options_of(case), **other})
    assert_same_optimum((model, report), cold[:2])
    assert model.info["settings"]["C"] == other.get("C", 1.0)


@EVERY
def test_other_weights_memory_cache_and_seed(tmp_path, case, monkeypatch):
    monkeypatch.setattr(blocks, "CHUNK_NNZ", 60)
    store, _ = trained(tmp_path, case, 2)
    v = np.random.default_rng(1).integers(0, 3, 120)
    (tmp_path / "v.txt").write_text("".join(f"{x}\n" for x in v))
    options = {**options_of(case), "weights": str(tmp_path / "v.txt"), "seed": 4}
    if case.labels in (2, 3) and case.loss != "one_class":
        options["class_weight"] = {LABELS[0]: 0.5, LABELS[1]: 2.0}
    with pytest.raises(sbm.errors.MemoryPlanError) as error:
        fit(store, "b.model", **options, warm_start=str(tmp_path / "a.model"), mem="1MB")
    least = error.value.least_bytes  # blocks are cut in other parts
    model, report, _ = warm(store, case, **{**options, "mem": least, "cache_frac": 0.3})
    cold = fit(store, "c.model", **options)
    assert_same_optimum((model, report), cold[:2])
    back = fit(store, "d.model", **options_of(case), warm_start=str(tmp_path / "b.model"))
    assert_same_optimum(back[:2], fit(store, "e.model", **options_of(case))[:2])


@pytest.mark.parametrize("loss", ["epsilon_insensitive", "squared_epsilon_insensitive"])
def test_with_another_tube_the_optimum_is_that_of_a_cold_start(tmp_path, loss):
    case = Case(loss, 0)
    store, _ = trained(tmp_path, case)
    model, report, _ = warm(store, case, epsilon=0.5)
    cold = fit(store, "c.model", **options_of(case), epsilon=0.5)
    assert_same_optimum((model, report), cold[:2])


# ------------------------------------------------------------------------------------ more rows


@EVERY
def test_appended_rows_and_features(tmp_path, case):
    store, _ = trained(tmp_path, case, bias=0.0 if case.loss == "one_class" else 0.5)
    bias = 0.0 if case.loss == "one_class" else 0.5
    X, y = case.rows(1, n=40)
    X = np.hstack([X, np.eye(40)[:, :3]])  # three features more, each in one row
    text = write_rows(tmp_path / "more.svm", X, y)
    sbm.split([text], store, append=True, blocks=2)
    model, report, _ = warm(store, case, bias=bias)
    assert set(model.ids) == set(range(1, N_FEATURES + 4))
    cold = fit(store, "c.model", **options_of(case), bias=bias)
    assert_same_optimum((model, report), cold[:2])


GROWING = [case for case in CASES if case.labels == 3 and not case.settings.get("caches")]


@pytest.mark.parametrize("case", GROWING, ids=str)
def test_appended_classes(tmp_path, case):
    store, _ = trained(tmp_path, case)
    X, y = case.rows(1, n=40)
    y[::3] = -5  # between the others
    y[1::3] = 9
    sbm.split([write_rows(tmp_path / "more.svm", X, y)], store, append=True, blocks=2)
    model, report, _ = warm(store, case)
    assert model.labels == [-5, -3, 2, 7, 9]
    assert_same_optimum((model, report), fit(store, "c.model", **options_of(case))[:2])


def sparse(seed, n, n_features=300, wide=8):
    """Rows of a few ones each, features of all frequencies, two noisy labels."""
    random = np.random.default_rng(seed)
    weights = np.random.default_rng(99).normal(size=n_features)
    X = np.zeros((n, n_features))
    for row in X:
        row[np.unique((n_features * random.random(wide) ** 3).astype(int))] = 1
    return X, np.where(X @ weights + random.normal(size=n) > 0, 1, -1)


def counted(tmp_path, loss, **options):
    """What a warm start makes where a tenth of the rows is new, and a training from nothing."""
    X, y = sparse(0, 4000)
    store = make_store(tmp_path, X[:3600], y[:3600], blocks=12)
    options = {"loss": loss, "C": 0.1, **options}
    fit(store, "a.model", **options)
    sbm.split([write_rows(tmp_path / "new.svm", X[3600:], y[3600:])], store, append=True)
    assert BlockStore(store).n_blocks == 13
    warm_one = fit(store, "a.model", warm_start=True, **options)
    return warm_one, fit(store, "b.model", **options)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "log_loss"])
def test_where_a_tenth_is_new_a_third_of_the_updates_will_do(tmp_path, loss):
    (model, report, _), (other, cold, _) = counted(tmp_path, loss)
    assert_same_optimum((model, report), (other, cold))
    assert report["updates"] <= 0.35 * cold["updates"]
    assert report["visits"] <= 0.35 * cold["visits"]


def test_of_a_reference_set_a_fifth_will_do(tmp_path, text_of):
    lines = text_of("a9a").read_text().splitlines(True)
    for name, part in (("old", lines[:29_305]), ("new", lines[29_305:])):
        (tmp_path / f"{name}.svm").write_text("".join(part))
    store = tmp_path / "a.sbm"
    sbm.split([tmp_path / "old.svm"], store)
    fit(store, "a.model", C=0.1)
    sbm.split([tmp_path / "new.svm"], store, append=True)
    warm_one = fit(store, "a.model", warm_start=True, C=0.1)
    cold = fit(store, "b.model", C=0.1)
    assert_same_optimum(warm_one[:2], cold[:2])
    assert warm_one[1]["updates"] <= 0.2 * cold[1]["updates"]


def test_rows_that_are_new_come_first(tmp_path):
    (_, _, passes), _ = counted(tmp_path, "hinge")
    assert passes[0]["visits"] <= 400
    assert passes[0]["estimated_gap"] is passes[0]["certificate"] is None
    assert passes[1]["visits"] > 400
    # But not where one pass is all there is.
    _, report, (only,) = fit(
        tmp_path / "d.sbm", "a.model", warm_start=True, C=0.1, tol=1e-9, max_passes=1
    )
    assert only["estimated_gap"] is not None
    assert report["passes"] == 1


def test_a_certificate_that_fell_short_is_followed_by_part_of_a_pass(tmp_path, monkeypatch):
    parts = []
    real = Engine.run_pass

    def told(self, number, groups=None, what="pass", only=None):
        parts.append(only)
        return real(self, number, groups, what, only)

    monkeypatch.setattr(Engine, "run_pass", told)
    found = False
    for tol in np.geomspace(1e-2, 1e-4, 8):
        folder = tmp_path / f"{tol:.0e}"
        folder.mkdir()
        parts.clear()
        (model, report, passes), cold = counted(folder, "hinge", tol=tol)
        assert report["relative_gap"] <= tol
        assert_same_optimum((model, report), cold[:2])
        mine = parts[-len(passes) - len(cold[2]) : -len(cold[2])]
        assert mine[0] == [12]
        assert parts[-len(cold[2]) :] == [None] * len(cold[2])  # never from nothing
        for before, only, this in zip(passes[1:], mine[2:], passes[2:], strict=False):
            if only is not None:
                found = True
                assert before["certificate"]["relative_gap"] > tol
                assert 4 <= len(set(only)) == len(only) < 13
                assert this["certificate"] is not None
                assert this["pass"] % FULL_PASS
    assert found


@EVERY
def test_the_same_start_gives_the_same_bytes(tmp_path, case):
    store, _ = trained(tmp_path, case)
    X, y = case.rows(1, n=40)
    sbm.split([write_rows(tmp_path / "more.svm", X, y)], store, append=True, blocks=2)
    first = warm(store, case, "b.model", threads=1)[0]
    second = warm(store, case, "c.model", threads=2)[0]
    assert first.W.tobytes() == second.W.tobytes()


# ------------------------------------------------------------------------------- rows that left


def generations(folder, case, sizes, name="g", **options):
    """A store of several sources, 0.svm and so on, and the rows of each."""
    store, rows = folder / f"{name}.sbm", []
    for k, n in enumerate(sizes):
        rows.append(case.rows(k, n=n))
        text = write_rows(folder / f"{k}.svm", *rows[-1])
        sbm.split([text], store, append=k > 0, blocks=2, seed=k, **options)
    return store, rows


def split_anew(folder, rows, name="anew"):
    X, y = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    return make_store(folder, X, y, name, blocks=3)


def biased(case):
    return {"bias": 0.0 if case.loss == "one_class" else 0.5}


@in_turn("gone", 0, 1)
def test_expired_rows_leave_nothing_behind(tmp_path, case, gone):
    store, rows = generations(tmp_path, case, [60, 40, 30])
    fit(store, "a.model", **options_of(case), **biased(case))
    sbm.expire(store, sources=f"{gone}.svm")
    model, report, _ = warm(store, case, **biased(case))
    assert report["passes"] > 0
    cold = fit(store, "c.model", **options_of(case), **biased(case))
    assert_same_optimum((model, report), cold[:2])
    other = split_anew(tmp_path, rows[:gone] + rows[gone + 1 :])
    assert_same_optimum(
        (model, report), fit(other, "d.model", **options_of(case), **biased(case))[:2]
    )
    X, y = (np.concatenate(p) for p in zip(*rows[:gone], *rows[gone + 1 :], strict=True))
    assert case.primal(X, y, model) == pytest.approx(report["primal"], rel=1e-9)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge", "log_loss", "crammer_singer"])
def test_at_a_small_tolerance_objectives_agree_to_many_digits(tmp_path, loss):
    case = Case(loss, 3 if loss == "crammer_singer" else 2)
    store, rows = generations(tmp_path, case, [60, 40])
    options = {**options_of(case), "tol": 1e-8, "max_passes": 20_000}
    fit(store, "a.model", **options)
    rows.append(case.rows(7, n=30))
    sbm.split([write_rows(tmp_path / "new.svm", *rows[-1])], store, append=True)
    for left, anew in ((rows, "all"), (rows[1:], "some")):
        if anew == "some":
            sbm.expire(store, sources="0.svm")
        model, report, _ = fit(store, "a.model", warm_start=True, **options)
        other, cold, _ = fit(split_anew(tmp_path, left, anew), f"{anew}.model", **options)
        assert report["converged"]
        assert cold["converged"]
        assert report["primal"] == pytest.approx(cold["primal"], rel=1e-7)
        np.testing.assert_allclose(
            full_weights(model, N_FEATURES), full_weights(other, N_FEATURES), atol=1e-3
        )


@EVERY
def test_a_start_after_expiring_is_certified_at_the_weights_of_what_is_left(tmp_path, case):
    """With a tolerance that anything meets, the start is what is shipped."""
    store, rows = generations(tmp_path, case, [60, 40, 30])
    first, _, _ = fit(store, "a.model", **options_of(case), **biased(case))
    sbm.expire(store, sources="1.svm")
    model, report, _ = warm(store, case, tol=1e6, **biased(case))
    assert report["passes"] == 0
    assert report["drift"] <= 1e-15
    assert np.abs(model.W - first.W).max() > 1e-3
    X, y = (np.concatenate(p) for p in zip(rows[0], rows[2], strict=True))
    assert case.primal(X, y, model) == pytest.approx(report["primal"], rel=1e-9)
    # And once more, from the run of that: nothing has changed.
    again, report, _ = warm(store, case, "c.model", "b.model", tol=1e6, **biased(case))
    np.testing.assert_allclose(again.W, model.W, rtol=1e-12, atol=1e-15)


def test_the_weights_after_expiring_are_the_sum_over_the_rows_that_are_left(tmp_path):
    case = Case("hinge", 2)
    store, _ = generations(tmp_path, case, [60, 40, 40])
    fit(store, "a.model", **options_of(case))
    run = tmp_path / "a.model.run"
    sizes = [sum(c.rows for c in chunks) for chunks in BlockStore(store).chunks]
    kept, state = Run.reopen(run, sizes)
    total = np.zeros(N_FEATURES)
    for block in (0, 1, 4, 5):  # those of 1.svm are 2 and 3
        alpha = kept.load(block)
        mine = state["home"] == block
        alpha.put(state["row"][mine], Dense(state["alpha"][mine]))
        for value, (label, features) in zip(alpha.values, store_rows(store)[block], strict=True):
            for number, x in features:
                total[number - 1] += value * np.sign(label) * x
    assert sorted({np.sign(label) for block in store_rows(store) for label, _ in block}) == [-1, 1]
    sbm.expire(store, sources="1.svm")
    model, _, _ = warm(store, case, tol=1e6)
    np.testing.assert_allclose(full_weights(model, N_FEATURES)[:, 0], total, atol=1e-12)


@EVERY
def test_night_after_night(tmp_path, case, monkeypatch):
    """Appended, expired, trained; blocks cut in parts or joined; from the last run each time."""
    monkeypatch.setattr(blocks, "CHUNK_NNZ", 60)
    store, rows = generations(tmp_path, case, [60, 20])
    with pytest.raises(sbm.errors.MemoryPlanError) as error:
        fit(store, "a.model", **options_of(case), mem="1MB")
    least = error.value.least_bytes
    left = dict(enumerate(rows))
    options = {**options_of(case), **biased(case), "warm_start": True}
    nights = [(None, None), (10, 0), (5, None), (None, 2), (30, 1), (6, None), (7, 3)]
    for night, (n, gone) in enumerate(nights):
        if n is not None:
            k = max(left) + 1
            left[k] = case.rows(k, n=n)
            text = write_rows(tmp_path / f"{k}.svm", *left[k])
            sbm.split([text], store, append=True, blocks=1 + night % 2)
        if gone is not None:
            sbm.expire(store, sources=f"{gone}.svm")
            del left[gone]
        mem = "400MB" if night % 3 else least + 100_000
        model, report, _ = fit(store, "a.model", **options, mem=mem, cache_frac=0.3 + 0.1 * night)
        assert report["converged"]
        assert report["drift"] <= 1e-9
        X, y = (np.concatenate(p) for p in zip(*left.values(), strict=True))
        assert case.primal(X, y, model) == pytest.approx(report["primal"], rel=1e-9)
    cold = fit(split_anew(tmp_path, left.values()), "c.model", **options_of(case), **biased(case))
    assert_same_optimum((model, report), cold[:2])
    assert warm(store, case, "b.model", **biased(case))[1]["passes"] == 0


def test_a_class_that_lost_its_rows_is_still_one(tmp_path):
    case = Case("crammer_singer", 3)
    X, y = case.rows()
    rare = y == LABELS[2]
    store = make_store(tmp_path, X[~rare], y[~rare], blocks=2)
    sbm.split([write_rows(tmp_path / "rare.svm", X[rare], y[rare])], store, append=True)
    fit(store, "a.model", **options_of(case))
    assert sbm.expire(store, sources="rare.svm")["labels_without_rows"] == [LABELS[2]]
    model, report, _ = warm(store, case)
    assert model.labels == sorted(LABELS)
    assert_same_optimum((model, report), fit(store, "c.model", **options_of(case))[:2])


def test_a_run_of_before_blocks_had_names_still_fits(tmp_path):
    case = Case("hinge", 2)
    store, _ = trained(tmp_path, case)
    path = tmp_path / "a.model.run" / "run.json"
    record = Run.read(path.parent)
    del record["shape"]["files"], record["shape"]["parts"], record["crc32"]
    record["shape"]["cuts"] = 1
    path.write_text(json.dumps({**record, "version": 1}))
    assert warm(store, case)[1]["passes"] == 0
    X, y = case.rows(1, n=40)
    sbm.split([write_rows(tmp_path / "more.svm", X, y)], store, append=True)
    model, report, _ = warm(store, case)
    assert_same_optimum((model, report), fit(store, "c.model", **options_of(case))[:2])
    sbm.expire(store, sources="d.svm")
    with pytest.raises(StoreError, match="was trained on other data than"):
        warm(store, case)


# ----------------------------------------------------------------------- from the run beside it


def test_without_a_name_it_goes_on_from_the_last_run(tmp_path):
    case = Case("hinge", 2)
    store, (first, before, _) = trained(tmp_path, case)
    model, report, _ = fit(store, "a.model", warm_start=True, **options_of(case))
    assert report == {**before, "was_finished": True}  # nothing has changed since
    np.testing.assert_array_equal(model.W, first.W)
    other = fit(store, "b.model", warm_start=True, **options_of(case))[1]  # has no run yet
    assert other["updates"] == before["updates"]
    assert fit(store, "b.model", warm_start=True, **options_of(case))[1]["was_finished"]
    with pytest.raises(SettingsError, match="leave out --warm-start to change it"):
        fit(store, "b.model", warm_start=True, **options_of(Case("squared_hinge", 2)))


def test_the_first_night_is_told(tmp_path):
    case = Case("hinge", 2)
    store = make_store(tmp_path, *case.rows(), blocks=2)

    class Told(Progress):
        lines: list[str] = []  # noqa: RUF012

        def stage(self, text):
            self.lines.append(text)

    path = tmp_path / "a.model"
    settings = {"warm_start": True, "mem": "400MB"}
    for _ in range(2):
        sbm.train(store, path, settings, progress=Told())
    assert Told.lines == [f"{path} was not trained yet: starting from nothing"]


def test_a_first_night_that_was_killed_is_a_first_night(tmp_path):
    case = Case("hinge", 2)
    store, (_, before, _) = trained(tmp_path, case)
    (tmp_path / "a.model.run" / "run.json").unlink()
    report = fit(store, "a.model", warm_start=True, **options_of(case))[1]
    assert report["updates"] == before["updates"]


def test_a_second_night_that_was_killed_starts_from_the_first_one(tmp_path):
    case = Case("hinge", 2)
    store, _ = trained(tmp_path, case)
    sbm.split([write_rows(tmp_path / "more.svm", *case.rows(1, n=40))], store, append=True)
    before = Run.read(tmp_path / "a.model.run")
    (tmp_path / "a.model.run" / "alpha-00000.999999.sba").write_bytes(b"half")
    (tmp_path / "a.model.run" / "run.json.tmp").write_bytes(b"half")
    assert Run.read(tmp_path / "a.model.run") == before
    warmed = fit(store, "a.model", warm_start=True, **options_of(case))[1]
    assert warmed["converged"]
    assert sorted(p.name for p in tmp_path.glob("a.model*")) == ["a.model", "a.model.run"]
    assert not list((tmp_path / "a.model.run").glob("*999999*"))


# ------------------------------------------------------------------------------------- refusals


def test_another_problem_is_refused_and_the_run_is_still_there(tmp_path):
    case = Case("hinge", 2)
    store, _ = trained(tmp_path, case)
    run = tmp_path / "a.model.run"
    keeps = "a warm start keeps it, leave out --warm-start to change it"
    for options, words in (
        ({"loss": "squared_hinge"}, "loss hinge, now it is squared_hinge"),
        ({"loss": "hinge", "bias": 1.0}, "bias 0.0, now it is 1.0"),
    ):
        before = files(run)
        with pytest.raises(SettingsError) as error:
            fit(store, "a.model", warm_start=str(tmp_path / "a.model"), **OPTIONS, **options)
        assert str(error.value) == f"{run} was trained with {words}; {keeps}"
        assert files(run) == before
    assert warm(store, case)[1]["passes"] == 0


def test_other_data_is_refused_and_the_run_is_still_there(tmp_path):
    case = Case("hinge", 2)
    trained(tmp_path, case)
    before = files(tmp_path / "a.model.run")
    X, y = case.rows(n=50)
    other = make_store(tmp_path, X, y, "other", blocks=3)
    with pytest.raises(StoreError) as error:
        fit(other, "a.model", warm_start=str(tmp_path / "a.model"), **OPTIONS)
    assert str(error.value) == (
        f"{tmp_path / 'a.model.run'} was trained on other data than {other}: only blocks that were "
        "appended or expired since may differ; leave out --warm-start"
    )
    assert files(tmp_path / "a.model.run") == before


def test_rows_of_the_same_number_but_other_content_are_not_taken_for_the_same(tmp_path):
    """Blocks of equal sizes say nothing: alphas of other rows give other weights."""
    case = Case("hinge", 2)
    store, _ = trained(tmp_path, case)
    X, y = case.rows(1)
    other = make_store(tmp_path, X, y, "other", blocks=4)
    with pytest.raises(StoreError, match="was trained on other data than"):
        fit(other, "b.model", warm_start=str(tmp_path / "a.model"), **options_of(case))
    assert warm(store, case)[1]["passes"] == 0


def test_another_number_of_problems_is_refused(tmp_path):
    case = Case("hinge", 2)
    store, _ = trained(tmp_path, case)
    X, y = case.rows(1, n=40)
    y[::3] = 9
    sbm.split([write_rows(tmp_path / "more.svm", X, y)], store, append=True)
    with pytest.raises(SettingsError, match="solved 1 problems of 1 columns, now there are 1 of 3"):
        fit(store, "b.model", warm_start=str(tmp_path / "a.model"), **options_of(case))
    assert (tmp_path / "a.model.run" / "run.json").exists()


def test_nothing_there_is_refused(tmp_path):
    case = Case("hinge", 2)
    store, _ = trained(tmp_path, case)
    ends = "; leave out --warm-start to start from nothing"
    for name, words in (("no.model", "does not exist"), ("d.svm", "has no run beside it")):
        with pytest.raises(StoreError) as error:
            fit(store, "b.model", warm_start=str(tmp_path / name), **case.options)
        assert str(error.value) == (
            f"{tmp_path / name} {words}: a warm start takes the alphas of an earlier training, "
            f"which are in {name}.run{ends}"
        )
    with pytest.raises(StoreError) as error:
        fit(store, "b.model", warm_start=str(store), **case.options)
    assert str(error.value) == (
        f"{store} is a store, but a warm start takes a model or a run; name the store in front of "
        "--warm-start"
    )
    with pytest.raises(StoreError) as error:
        fit(store, "b.model", warm_start=str(tmp_path), **case.options)
    assert str(error.value) == (
        f"{tmp_path} is no run: a warm start takes the alphas of an earlier training, which are in "
        f"MODEL.run{ends}"
    )
    assert not (tmp_path / "b.model.run").exists()


@pytest.mark.parametrize("what", ["alpha", "state", "run.json", "other version"])
def test_a_damaged_run_is_refused_and_left_alone(tmp_path, what):
    case = Case("hinge", 2)
    store, _ = trained(tmp_path, case)
    run = tmp_path / "a.model.run"
    if what == "run.json":
        (run / what).write_text("{")
    elif what == "other version":
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
            fit(store, name, warm_start=str(tmp_path / "a.model"), **options_of(case))
        assert {name: data for name, data in files(run).items() if name in before} == before


@EVERY
def test_after_an_error_half_way_the_earlier_run_can_be_started_from(tmp_path, case):
    store, _ = trained(tmp_path, case)
    whole = tmp_path / "whole.sbm"
    shutil.copytree(store, whole)
    path = store / "block-000002.sbb"
    path.write_bytes(path.read_bytes()[:-3] + b"xyz")
    with pytest.raises(StoreError):
        fit(store, "a.model", warm_start=str(tmp_path / "a.model"), **options_of(case))
    shutil.rmtree(store)
    whole.rename(store)
    for name in ("b.model", "a.model"):  # MODEL still means the run that was moved aside
        assert warm(store, case, name)[1]["passes"] == 0


def test_a_weights_file_that_is_refused_costs_no_run(tmp_path):
    case = Case("hinge", 2)
    store, _ = trained(tmp_path, case)
    (tmp_path / "v.txt").write_text("1\n")
    with pytest.raises(DataError):
        fit(store, "a.model", weights=str(tmp_path / "v.txt"), **options_of(case))
    assert warm(store, case)[1]["passes"] == 0
    with pytest.raises(DataError):
        warm(store, case, "a.model", weights=str(tmp_path / "v.txt"))
    assert warm(store, case)[1]["passes"] == 0
