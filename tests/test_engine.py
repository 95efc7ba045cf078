"""Several learners on one stream of blocks: held-out rows, and forks."""

import contextlib
import dataclasses
import gc
import itertools
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from families import make_store
from helpers import fit, write_rows
from hypothesis import given
from hypothesis import strategies as st
from inside import (
    Arena,
    BlockStore,
    Dense,
    DenseSet,
    Engine,
    Folds,
    Group,
    HeldOut,
    Lists,
    MemoryPlan,
    Part,
    Progress,
    Task,
    WorkingSet,
    certify_each,
    fork,
    make_problems,
    open_run,
    patch,
    plan_training,
    ray,
    shape_of,
    visit_all,
)
from test_folds import slow_fold

import sbm


def made(seed=0, n=240, features=8, classes=2):
    """Rows and labels 1, 2, ...; or targets if there are no classes."""
    random = np.random.default_rng(seed)
    X = random.normal(size=(n, features)).astype(np.float32).astype(float)
    X[1:][random.random(X[1:].shape) < 0.3] = 0  # the first row numbers the features
    scores = X @ random.normal(size=(features, max(1, classes)))
    scores += 0.5 * random.normal(size=scores.shape)
    return X, 1.0 + np.argmax(scores, axis=1) if classes else scores[:, 0].round(4)


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores")
    for classes in (0, 2, 3):
        text = write_rows(folder / f"{classes}.svm", *made(classes=classes))
        sbm.split([text], folder / f"{classes}.sbm", blocks=4)
    return folder


@contextlib.contextmanager
def engine_of(folder, model, settings, Cs, **options):
    """A running engine, with the learners of each C, and its store."""
    store = BlockStore(folder)
    problems = [p for C in Cs for p in make_problems(dataclasses.replace(settings, C=C), store)]
    models = len(Cs) if "folds" in options else 1
    task = Task.of(settings, store)
    share = dataclasses.replace(task.share, every=problems)
    shape = shape_of(dataclasses.replace(task, share=share, models=models))
    plan = plan_training(store, 400_000_000, settings.cache_frac, shape)
    with open_run(model, problems, plan) as run:
        engine = Engine(store, task.visiting, problems, plan, run, Progress(), **options)
        with engine.at_work():
            yield engine


def run_pass(engine, number):
    groups = [Group([learner]) for learner in engine.active]
    for visit in engine.visits(engine.begin_pass(number)):
        for group in groups:
            visit.steps.update(visit.solve(group))


# ---------------------------------------------------------------------------- nothing leaks


def test_model_does_not_depend_on_held_out_labels(tmp_path):
    X, y = made(1)
    folds = [slow_fold([(int(k), x[k]) for k in np.flatnonzero(x)], 3, 0) for x in X]
    held_out = np.array(folds) == 1
    held_out[:5] = False  # the first rows number the labels
    weights = []
    for k, labels in enumerate((y, np.where(held_out, 3 - y, y))):
        text = write_rows(tmp_path / f"{k}.svm", X, labels)
        sbm.split([text], tmp_path / f"{k}.sbm", blocks=4)
        options = {"held_out": HeldOut(Folds(3, 0), [0, 1, 2])}
        settings = sbm.Settings()
        with engine_of(tmp_path / f"{k}.sbm", tmp_path / "m", settings, [1.0] * 3, **options) as e:
            for number in range(1, 4):
                run_pass(e, number)
            weights.append([learner.solver.W.tobytes() for learner in e.learners])
    assert [a == b for a, b in zip(*weights, strict=True)] == [False, True, False]


# ----------------------------------------------------------------------------------- forking

FORKS = [
    (0, "epsilon_insensitive", 0.5), (2, "log_loss", 2.0), (2, "squared_hinge", 0.1),
    (3, "hinge", 2.0), (3, "crammer_singer", 0.1),
]  # fmt: skip


def variables(alpha):
    return alpha.values if isinstance(alpha, Dense) else alpha.values[: alpha.offsets[-1]]


def copy_of(alpha):
    if isinstance(alpha, Dense):
        return Dense(alpha.values.copy())
    return Lists(alpha.offsets.copy(), alpha.outputs.copy(), alpha.values.copy())


@pytest.mark.parametrize(("classes", "loss", "C"), FORKS)
def test_fork_is_feasible_and_reaches_the_optimum(classes, loss, C, stores, tmp_path):
    settings = sbm.Settings(loss=loss, bias=1.0, seed=3, max_passes=1000)
    start = 0.03
    store = stores / f"{classes}.sbm"
    with engine_of(store, tmp_path / "m", settings, [start, C]) as engine:
        n = len(engine.learners) // 2
        sources, targets = engine.learners[:n], engine.learners[n:]
        for learner in targets:
            learner.is_active = False
        for learner in engine.learners:
            learner.solver.rounds = 5
        for number in (1, 2):
            run_pass(engine, number)
        shares = [ray(s.solver.dual_sum, s.solver.W, C / start) for s in sources]
        for source, target in zip(sources, targets, strict=True):
            fork(engine, source, target, C / start)
            source.is_active, target.is_active = False, True
        for visit in visit_all(engine, "look"):
            for target in targets:
                alpha = visit.own[target.number].alpha
                inside = copy_of(alpha)
                target.solver.problem.make_feasible(visit.rows, inside)
                np.testing.assert_allclose(variables(inside), variables(alpha), rtol=1e-14)
        found = certify_each(engine)
        for share, target in zip(shares, targets, strict=True):
            certificate, W_alpha = found[target.number]
            W, dual_sum = target.solver.W, target.solver.dual_sum
            np.testing.assert_allclose(W_alpha, W, atol=1e-12 * np.abs(W).max())
            exact = certificate.dual + 0.5 * np.square(W_alpha).sum()
            assert certificate.dual > 0
            assert dual_sum <= exact * (1 + 1e-12)
            if share == 1:
                assert dual_sum == pytest.approx(exact, rel=1e-12)
        for number in itertools.count(3):
            run_pass(engine, number)
            parts = [certificate for certificate, _ in certify_each(engine).values()]
            gap = sum(part.gap for part in parts) / sum(part.primal for part in parts)
            if gap < 1e-4 or number == 500:
                break
        assert gap < 1e-4
        forked = sum(part.primal for part in parts)
    straight = dataclasses.replace(settings, C=C, tol=1e-4)
    _, report = sbm.train(store, tmp_path / "straight.model", straight)
    assert forked == pytest.approx(report["primal"], rel=2.1e-4)


def test_ray_finds_best_step():
    W = np.array([[3.0], [4.0]])  # |W|² = 25
    assert ray(30.0, W, 1.0) == 1.0
    assert ray(100.0, W, 2.0) == 1.0
    assert ray(25.0, W, 2.0) == 0.5
    assert ray(-1.0, W, 2.0) == 0.0
    assert ray(5.0, 0 * W, 2.0) == 1.0
    for share in (0.4, 0.6):  # θ f Σd - ½ (θ f)² |W|² is lower next to it
        assert share * 50 - 0.5 * (share * 2) ** 2 * 25 < 0.5 * 50 - 0.5 * 25


def test_ended_training_leaves_no_garbage(stores, monkeypatch):
    made = []
    begin = Engine.__init__

    def noted(engine, *args, **how):
        made.append(weakref.ref(engine))
        begin(engine, *args, **how)

    monkeypatch.setattr(Engine, "__init__", noted)
    gc.disable()
    try:
        sbm.train(stores / "2.sbm", stores / "garbage.model", {"mem": "400MB"})
        assert made
        assert not any(engine() for engine in made)
    finally:
        gc.enable()


# ---------------------------------------------------------------------------- ages of cached rows


def test_ages_are_of_cached_rows(stores, tmp_path):
    quick = {"max_passes": 5, "tol": 1e-12, "C": 0.1, "solver": "dual"}
    *_, log = fit(stores / "2.sbm", cache_frac=0.3, **quick)
    for one in log:
        assert sum(one["cached_ages"]) == one["cached_rows"] > 0
        assert len(one["cached_ages"]) <= one["pass"]
    # In a cache with room for all rows they stay, and are what is certified.
    *_, log = fit(stores / "2.sbm", cache_frac=0.9, screen=False, policy="random", **quick)
    assert [one["cached_ages"] for one in log] == [[0] * k + [240] for k in range(len(log))]
    assert log[-1]["cached_zero"] == 240 - log[-1]["certificate"]["n_support"]
    assert log[-1]["cached_free"] == log[-1]["certificate"]["n_free"]
    assert log[-1]["bytes_read"] >= log[0]["bytes_read"] > 0
    working = WorkingSet(Arena.of(80, "float32"), DenseSet(3), 2, 10)
    working.age[:3], working.n_cached = (254, 0, 9), 2
    for _ in range(3):
        working.grow_older()
    assert working.age.tolist() == [255, 3, 9]  # the last one is of no cached row
    assert working.count_ages() == [0, 0, 1] + [0] * 251 + [1]


def plan_of_parts(sizes, rows, nnz):
    """A plan with parts of the given (rows, nnz), which draws blocks of at most so much."""
    parts = [Part([], [SimpleNamespace(rows=r, nnz=n)]) for r, n in sizes]
    return MemoryPlan(10**9, "", {}, parts, rows, nnz, 0, 0, 0, 4, 16, draws=True)


SIZES = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 90)), min_size=1, max_size=40)


@given(SIZES, st.integers(50, 120), st.integers(90, 200), st.integers(0, 99))
def test_blocks_have_each_part_once_within_their_size(sizes, rows, nnz, seed):
    plan, random = plan_of_parts(sizes, rows, nnz), np.random.default_rng(seed)
    order = random.permutation(len(sizes)).tolist()
    before = set(order[: len(order) // 2])
    blocks = plan.blocks(order, before)
    assert sorted(itertools.chain(*blocks)) == sorted(order)
    for block in blocks:
        assert block == sorted(block) != []
        assert sum(sizes[part][0] for part in block) <= rows
        assert sum(sizes[part][1] for part in block) <= nnz
    assert not before & set(blocks[0]) or before == set(order)
    for one, other in itertools.pairwise(blocks):  # none of the second fits into the first
        first = [part for part in other if one is not blocks[0] or part not in before]
        least = [(sizes[part][0], sizes[part][1]) for part in first]
        total = [sum(sizes[part][k] for part in one) for k in (0, 1)]
        assert all(total[0] + r > rows or total[1] + n > nnz for r, n in least)


def test_passes_draw_other_blocks(tmp_path, monkeypatch):
    patch(monkeypatch, "CHUNK_NNZ", 60)
    store = make_store(tmp_path, *made(1, 600), blocks=4)
    drawn, real = [], Engine.begin_pass

    def told(self, number, only=None):
        now = real(self, number, only)
        drawn.append(now.order)
        return now

    monkeypatch.setattr(Engine, "begin_pass", told)
    fit(store, C=0.1, tol=1e-9, max_passes=6, solver="dual", cache_frac=0.0)
    every = sorted(itertools.chain(*drawn[0]))
    assert len(every) > 2 * len(drawn[0]) > 6
    for order in drawn:
        assert sorted(itertools.chain(*order)) == every
    for one, other in itertools.pairwise(drawn):
        assert {*map(tuple, one)} != {*map(tuple, other)}
        # Alphas of the last block are not yet stored when the next block is read.
        assert not {*one[-1]} & {*other[0]}
    drawn.clear()
    fit(store, C=0.1, tol=1e-9, max_passes=4, solver="dual", parts="blocks")
    assert all(sorted(order) == [[0], [1], [2], [3]] for order in drawn)


def test_more_rounds_where_passes_are_not_enough(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    X = np.zeros((3000, 400), np.float32)
    for row in X:
        row[random.zipf(1.3, 10) % 400] = 1
    scores = X @ random.normal(size=400) + 2 * random.normal(size=3000)
    store = make_store(tmp_path, X, np.sign(scores), blocks=12)
    how = {"C": 3.0, "solver": "dual", "cache_frac": 0.7}
    _, report, log = fit(store, **how, max_passes=15)
    assert report["converged"]
    assert max(row["rounds"] for row in log[1:]) > 2
    # With as many passes as a training needs, it does as without a limit.
    *_, free = fit(store, "b.model", **how, max_passes=1000)
    *_, late = fit(store, "c.model", **how, max_passes=4 * len(free))
    rows = [[(row["rounds"], row["dual"]) for row in some] for some in (free, late)]
    assert rows[0] == rows[1]
    assert {rounds for rounds, _ in rows[0][1:]} == {1}
    # A cache for too few of the free rows would make more rounds go in circles.
    *_, small = fit(store, "d.model", **how | {"cache_frac": 0.1}, max_passes=15)
    assert {row["rounds"] for row in small[1:]} == {1}
