"""What model files hold and leave out, old files, and models that are not of two classes."""

import re
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import sbm
from sbm.errors import StoreError
from sbm.store import arrays as container
from sbm.store import model as model_module
from sbm.store.model import Model

FROZEN = Path(__file__).resolve().parent / "frozen" / "models-v1"

# The files were written by commit a66e846, with dense weights and features of weight 0, by
#   W = np.zeros((5, 3)); W[0] = [1, 0, -1/3]; W[3, 1] = 2.5; W[4] = [0, -0.125, 0]
#   Model(np.array([7, 0, 2**40, 3]), np.array([[0.5], [0.0], [-1e-300], [1/3]]), [-1.0, 1.0], 2.0,
#         np.array([0.1]), info).save("binary.model")
#   Model(np.array([4, 1, 9, 2**62, 5]), W, [-2.5, 0.0, 7.0], 0.0, info=info).save("multi.model")
# Never make them anew: a change of the format gets files of its own.


def test_frozen_models_hold_what_was_put_in():
    binary, multi = Model.load(FROZEN / "binary.model"), Model.load(FROZEN / "multi.model")
    assert binary.ids.tolist() == [7, 0, 2**40, 3]
    assert binary.W.tolist() == [[0.5], [0.0], [-1e-300], [1 / 3]]
    assert (binary.labels, binary.bias, binary.bias_weights.tolist()) == ([-1.0, 1.0], 2.0, [0.1])
    assert (binary.info["loss"], binary.converged, binary.certificate["gap"]) == (
        "hinge", True, 0.25,
    )  # fmt: skip
    assert multi.ids.tolist() == [4, 1, 9, 2**62, 5]
    assert multi.W.tolist() == [[1, 0, -1 / 3], [0] * 3, [0] * 3, [0, 2.5, 0], [0, -0.125, 0]]
    assert (multi.labels, multi.bias_weights.tolist()) == ([-2.5, 0.0, 7.0], [0.0] * 3)
    assert (multi.info["C"], multi.converged, multi.certificate) == (1.0, False, {})


def test_what_a_frozen_model_says_today_it_says_after_it_was_saved_again(tmp_path):
    X = scipy.sparse.csr_matrix(np.arange(40.0).reshape(4, 10))
    for name in ("binary.model", "multi.model"):
        old = Model.load(FROZEN / name)
        old.save(tmp_path / name)
        new = Model.load(tmp_path / name)
        assert len(new.ids) < len(old.ids)
        np.testing.assert_array_equal(new.decision_function(X), old.decision_function(X))


def test_weights_of_0_take_no_place_in_the_file(tmp_path):
    ids = np.arange(10_000)
    for outputs in (1, 20):
        W = np.zeros((10_000, outputs))
        labels = [float(k) for k in range(max(2, outputs))]
        Model(ids, W, labels, info={"loss": "hinge"}).save(tmp_path / "none.model")
        nothing = (tmp_path / "none.model").stat().st_size
        assert nothing < 1000
        W[5, 0], W[77, outputs - 1] = 1.5, -2.5
        model = Model(ids, W, labels, info={"loss": "hinge"})
        assert model.save(tmp_path / "two.model") - nothing < 300  # names of arrays
        loaded = Model.load(tmp_path / "two.model")
        assert loaded.ids.tolist() == [5, 77]
        np.testing.assert_array_equal(loaded.W, W[[5, 77]])


def test_many_weights_are_stored_densely_and_few_are_not(tmp_path):
    path = tmp_path / "m.model"
    for share, names in ((1.0, {"W"}), (0.1, {"counts", "columns", "values"})):
        W = np.where(np.random.default_rng(0).random((300, 40)) < share, 1.0, 0.0)
        model = Model(np.arange(300), W, [float(k) for k in range(40)])
        assert model.save(path) < 300 * (8 + 40 * (8 * share + 1)) + 1000
        assert set(container.read(path, "model").arrays) == names | {"ids", "bias_weights"}
        np.testing.assert_array_equal(Model.load(path).weights_of(model.ids), W)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None
)
@given(
    W=hnp.arrays(
        np.float64, st.tuples(st.integers(0, 12), st.sampled_from([1, 3, 5, 300])),
        elements=st.sampled_from([0.0, 0.0, 0.0, 1.0, -1e-300]),
    ),
    part=st.sampled_from([1, 7, 1 << 17]),
)  # fmt: skip
def test_weights_survive_whatever_is_0_and_however_they_are_cut(tmp_path, W, part):
    outputs = W.shape[1]
    labels = [float(k) for k in range(max(2, outputs))]
    ids = np.arange(len(W)) * 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_module, "_PART", part)
        Model(ids, W, labels).save(tmp_path / "m.model")
        loaded = Model.load(tmp_path / "m.model")
    used = W.any(axis=1)
    assert loaded.ids.tolist() == ids[used].tolist()
    np.testing.assert_array_equal(loaded.W, W[used])
    np.testing.assert_array_equal(loaded.weights_of(ids), W)


def test_saving_takes_no_memory_of_the_size_of_the_weights(tmp_path):
    import tracemalloc

    W = np.ones((200_000, 1))
    W[::2] = 0
    model = Model(np.arange(200_000), W, [0.0, 1.0])
    tracemalloc.start()
    model.save(tmp_path / "m.model")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000 + 2 * 8 * model_module._PART  # a mark a feature, and a part of each array
    assert len(Model.load(tmp_path / "m.model").ids) == 100_000


def test_a_model_without_any_weight_predicts_by_its_bias(tmp_path):
    X = scipy.sparse.csr_matrix(np.eye(3))
    Model(np.arange(3), np.zeros((3, 1)), [0.0, 1.0], 1.0, np.array([2.0])).save(tmp_path / "m")
    model = Model.load(tmp_path / "m")
    assert model.ids.shape == (0,)
    assert model.decision_function(X).tolist() == [2.0] * 3
    (tmp_path / "t.svm").write_text("1 1:1\n0 7:1 8:1\n")
    report = sbm.predict(tmp_path / "m", tmp_path / "t.svm")
    assert (report["correct"], report["unknown_nonzeros"]) == (1, 3)


def test_a_feature_of_weight_0_counts_as_unknown_before_and_after_saving(tmp_path):
    model = Model(np.array([1, 2, 3]), np.array([[1.0], [0.0], [-1.0]]), [0.0, 1.0])
    model.save(tmp_path / "m")
    (tmp_path / "t.svm").write_text("1 1:1 2:1\n0 2:1 3:1 4:1\n")
    in_memory = sbm.predict(model, tmp_path / "t.svm")
    assert in_memory["unknown_nonzeros"] == 3
    assert sbm.predict(tmp_path / "m", tmp_path / "t.svm") == in_memory
    assert len(model.ids) == 3  # it was not touched


def test_compact_leaves_a_model_without_zeros_alone():
    model = Model(np.array([1, 2]), np.array([[1.0], [2.0]]), [0.0, 1.0])
    assert model.compact() is model


def test_weights_of_features_in_any_order():
    model = Model(np.array([9, 2]), np.array([[1.0, 2.0], [3.0, 4.0]]), [0.0, 1.0])
    assert model.weights_of(np.array([2, 5, 9, 2**62])).tolist() == [[3, 4], [0, 0], [1, 2], [0, 0]]


# --------------------------------------------------------------------------------- other models


def test_the_prediction_of_a_regression_model_is_its_decision_value(tmp_path):
    model = Model(np.array([0, 1]), np.array([[0.5], [-2.0]]), [], 1.0, np.array([0.25]))
    model.save(tmp_path / "m")
    loaded = Model.load(tmp_path / "m")
    X = scipy.sparse.csr_matrix(np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))
    assert loaded.is_regression
    assert loaded.predict(X).tolist() == loaded.decision_function(X).tolist() == [0.75, -1.75, 0.25]
    assert not Model(np.array([0]), np.ones((1, 1)), [0.0, 1.0]).is_regression


def test_of_equal_decision_values_the_first_column_wins_in_whatever_order_the_labels_are(tmp_path):
    W = np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]])
    model = Model(np.array([1, 2]), W, [5.0, -1.0, 3.0])
    rows = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]])
    assert model.predict(scipy.sparse.csr_matrix(rows)).tolist() == [5.0, -1.0, 5.0]
    text, out = tmp_path / "t.svm", tmp_path / "out.txt"
    text.write_text("5 1:1\n3 2:1\n5\n7 1:1\n")
    report = sbm.predict(model, text, out, top=2)
    assert out.read_text() == "5 -1\n-1 3\n5 -1\n5 -1\n"
    assert (report["labels"], report["correct"]) == ([-1.0, 3.0, 5.0], 2)
    assert (report["top_accuracy"], report["unknown_labels"]) == (0.75, 1)
    assert report["confusion"] == [[3.0, -1.0, 1], [5.0, 5.0, 2], [None, 5.0, 1]]
    sbm.predict(model, text, out, decision=True)  # in ascending order of the labels
    assert out.read_text() == "1 0 1\n1 1 0\n0 0 0\n1 0 1\n"


# ------------------------------------------------------------------------------ hostile files

SPARSE = {
    "ids": np.array([1, 2]), "counts": np.array([1, 2], np.uint8),
    "columns": np.array([0, 0, 2], np.uint8), "values": np.array([1.0, 2.0, 3.0]),
    "bias_weights": np.zeros(3),
}  # fmt: skip
META = {"labels": [1.0, 2.0, 3.0], "bias": 0.0, "info": {}}


def test_the_sparse_arrays_that_the_refusals_start_from_are_good(tmp_path):
    container.write(tmp_path / "m", "model", SPARSE, META)
    assert Model.load(tmp_path / "m").W.tolist() == [[1, 0, 0], [2, 0, 3]]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"counts": np.array([1, 3], np.uint8)}, "its weights are not as many as it counts"),
        ({"counts": np.array([4, -1], np.int8)}, "its weights are not as many as it counts"),
        ({"counts": np.array([3], np.uint8)}, "its arrays have shapes that do not belong together"),
        ({"counts": np.array([1.0, 2.0])}, "its arrays have the wrong types"),
        ({"columns": np.array([0, 0, 3], np.uint8)}, "a weight belongs to no column"),
        ({"columns": np.array([0, 0, -1], np.int8)}, "a weight belongs to no column"),
        ({"columns": np.array([0, 0], np.uint8)}, "its arrays have shapes that do not belong toge"),
        ({"values": np.array([1, 2, 3])}, "its arrays have the wrong types"),
        ({"values": np.ones((3, 1)), "columns": np.zeros((3, 1), np.uint8)}, "its arrays have sha"),
        ({"values": None}, "'values'"),
        ({"bias_weights": None}, "'bias_weights'"),
    ],
)
def test_sparse_weights_that_contradict_each_other_are_refused(tmp_path, change, reason):
    arrays = {k: v for k, v in {**SPARSE, **change}.items() if v is not None}
    container.write(tmp_path / "m", "model", arrays, META)
    message = f"{tmp_path / 'm'} is not a model that can be used ({reason}"
    with pytest.raises(StoreError, match=f"^{re.escape(message)}.*; train it again$"):
        Model.load(tmp_path / "m")


def test_weights_that_no_memory_can_hold_are_a_sentence(tmp_path, monkeypatch):
    def spread(arrays):
        raise MemoryError

    container.write(tmp_path / "m", "model", SPARSE, META)
    monkeypatch.setattr(model_module, "_spread", spread)
    message = (
        f"{tmp_path / 'm'} holds weights of 2 features and 3 outputs, which do not fit in memory; "
        "predict where there is more"
    )
    with pytest.raises(StoreError, match=f"^{re.escape(message)}$"):
        Model.load(tmp_path / "m")


def test_a_model_is_shown_in_a_line():
    model = Model(np.arange(3), np.ones((3, 1)), [-1.0, 1.0], info={"loss": "hinge"})
    assert repr(model) == "<Model of 2 labels: hinge, 3 features>"
    model.info["certificate"] = {"relative_gap": 2.5e-4}
    assert repr(model) == "<Model of 2 labels: hinge, 3 features, certified relative gap 2.50e-04>"
