"""Weston-Watkins by blocks of classes: the optimum, and the same bytes for any threads."""

from itertools import combinations

import numpy as np
import pytest
from families import N_FEATURES, assert_same_optimum, make_store, row_losses
from helpers import fit, full_weights
from hypothesis import given
from hypothesis import strategies as st
from threads import in_threads

import sbm
from sbm.errors import SettingsError
from sbm.programs.train import train_ranks
from sbm.solver.class_blocks import deal_classes, round_robin

LOSS, COST, N_CLASSES = "weston_watkins", 0.05, 7
OPTIONS = {
    "loss": LOSS, "C": COST, "tol": 1e-3, "max_passes": 300, "mem": "400MB", "class_blocks": 5,
}  # fmt: skip


@given(n=st.integers(1, 40))
def test_each_pair_is_in_one_disjoint_round(n):
    rounds = round_robin(n)
    assert sorted(pair for some in rounds for pair in some) == list(combinations(range(n), 2))
    for some in rounds:
        assert len(some) == n // 2
        assert len({k for pair in some for k in pair}) == 2 * len(some)


@given(rows=st.lists(st.integers(0, 99), min_size=1, max_size=40), n_blocks=st.integers(1, 12))
def test_classes_are_dealt_evenly(rows, n_blocks):
    blocks = deal_classes(rows, n_blocks)
    assert sorted(np.concatenate(blocks).tolist()) == list(range(len(rows)))
    sizes = [len(block) for block in blocks]
    assert len(sizes) == min(n_blocks, len(rows))
    assert max(sizes) - min(sizes) <= 1
    totals = [sum(rows[k] for k in block) for block in blocks]
    assert max(totals) - min(totals) <= max(rows)


def make_rows(n=160):
    random = np.random.default_rng(0)
    y = random.integers(0, N_CLASSES, n)
    X = random.normal(size=(N_CLASSES, N_FEATURES))[y] + random.normal(size=(n, N_FEATURES))
    X[random.random(X.shape) < 0.3] = 0
    return X.astype(np.float32), y.astype(float)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return make_store(tmp_path_factory.mktemp("store"), *make_rows(), blocks=3)


@pytest.fixture(scope="module")
def whole(store):
    """The bytes of an uninterrupted training on one thread."""
    fit(store, "whole.model", **OPTIONS, threads=1)
    return (store.parent / "whole.model").read_bytes()


@pytest.mark.long
@pytest.mark.parametrize(("n_blocks", "bias"), [(4, 1.0), (5, 0.0), (1024, 0.0)])
def test_optimum_matches_all_classes_together(store, n_blocks, bias):
    options = {**OPTIONS, "bias": bias, "class_weight": {0: 2.0, 3: 0.0}, "tol": 1e-5}
    blocks = fit(store, "b.model", **{**options, "class_blocks": n_blocks, "max_passes": 3000})
    other = fit(store, "o.model", **{**options, "class_blocks": None, "max_passes": 3000})
    assert blocks[1]["converged"]
    assert blocks[1]["drift"] < 1e-12
    assert_same_optimum(blocks[:2], other[:2])


def test_certificate_matches_written_model(store):
    model, report, passes = fit(store, "c.model", **{**OPTIONS, "max_passes": 4, "tol": 1e-9})
    X, y = make_rows()
    losses = row_losses(LOSS, X @ full_weights(model, N_FEATURES), y, model.labels, 0.0)
    expected = 0.5 * (model.W**2).sum() + COST * losses.sum()
    assert report["primal"] == pytest.approx(expected, rel=1e-10)
    assert report["gap"] == pytest.approx(report["primal"] - report["dual"], rel=1e-6)
    duals = [one["dual"] for one in passes]
    assert duals == sorted(duals)


@pytest.mark.parametrize("threads", [2, 4])
def test_bytes_do_not_depend_on_threads(store, whole, threads):
    fit(store, f"{threads}.model", **OPTIONS, threads=threads)
    assert (store.parent / f"{threads}.model").read_bytes() == whole


def test_stopped_training_resumes_to_same_bytes(store, whole, tmp_path):
    asked, path = [], tmp_path / "m.model"
    options = {**OPTIONS, "threads": 2, "checkpoint_every": 0.0001}
    with pytest.raises(KeyboardInterrupt):
        sbm.train(store, path, options, is_stopped=lambda: len(asked) > 7 or asked.append(1))
    _, report = sbm.train(store, path, options, resume=True)
    assert report["resumed"]
    assert path.read_bytes() == whole


def test_ranks_divide_rows_and_certify(store, tmp_path):
    def work(comm):
        return train_ranks(comm, store, tmp_path / "m.model", {**OPTIONS, "threads": 2})

    (model, report), _ = in_threads(2, work)
    assert report["converged"]
    assert report["relative_gap"] <= OPTIONS["tol"]
    assert_same_optimum((model, report), fit(store, "alone.model", **OPTIONS)[:2])


def test_row_weights_are_used(store, tmp_path):
    weights = tmp_path / "w.txt"
    weights.write_text("".join(f"{k % 3}\n" for k in range(160)))
    options = {**OPTIONS, "weights": str(weights)}
    others = fit(store, "o.model", **{**options, "class_blocks": None})
    assert_same_optimum(fit(store, "w.model", **options)[:2], others[:2])


def test_other_losses_are_refused(store, tmp_path):
    facts = "class_blocks is 5, .* weston_watkins.* crammer_singer"
    with pytest.raises(SettingsError, match=facts):
        sbm.train(store, tmp_path / "m.model", {**OPTIONS, "loss": "crammer_singer"})
    assert not list(tmp_path.iterdir())
