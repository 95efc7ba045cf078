"""Model files: their content, sparse weights, and prediction of each kind of model."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from inside import Model, patch
from inside import models_model_module as model_module
from inside import store_container_module as container

import sbm
from sbm.errors import StoreError

WEIGHTS = hnp.arrays(
    np.float64,
    st.tuples(st.integers(0, 12), st.sampled_from([1, 3, 5, 300])),
    elements=st.sampled_from([0.0, 0.0, 0.0, 1.0, -1e-300]),
)


@given(WEIGHTS, st.sampled_from([1, 7, 1 << 17]))
def test_weights_round_trip_in_any_parts(tmp_path_factory, W, part):
    path = tmp_path_factory.mktemp("m") / "m.model"
    outputs = W.shape[1]
    ids = np.arange(len(W)) * 3
    with pytest.MonkeyPatch.context() as context:
        patch(context, "_PART", part)
        model = Model(ids, W, [float(k) for k in range(max(2, outputs))])
        assert model.save(path) == path.stat().st_size
        loaded = Model.load(path)
    used = W.any(axis=1)
    assert loaded.ids.tolist() == ids[used].tolist()
    np.testing.assert_array_equal(loaded.W, W[used])
    np.testing.assert_array_equal(loaded.weights_of(ids), W)
    X = scipy.sparse.csr_matrix(np.arange(160.0).reshape(4, 40))
    np.testing.assert_array_equal(loaded.decision_function(X), model.decision_function(X))
    assert (model.compact() is model) == used.all()
    assert model.compact().ids.tolist() == loaded.ids.tolist()
    assert model.compact().zero_ids.tolist() == loaded.zero_ids.tolist() == ids[~used].tolist()


def test_weights_are_stored_in_the_smaller_form(tmp_path):
    path = tmp_path / "m.model"
    for share, names in ((1.0, {"W"}), (0.1, {"counts", "columns", "values"})):
        W = np.where(np.random.default_rng(0).random((300, 40)) < share, 1.0, 0.0)
        model = Model(np.arange(300), W, [float(k) for k in range(40)])
        assert model.save(path) < 300 * (8 + 40 * (8 * share + 1)) + 1000
        arrays = set(container.read(path, "model").arrays) - {"zero_ids"}
        assert arrays == names | {"ids", "bias_weights"}
    for outputs, kind in ((255, "|u1"), (256, "<u2"), (1 << 16, "<i4")):
        W = np.zeros((2, outputs))
        W[1, -1] = 1.0
        Model(np.arange(2), W, [float(k) for k in range(outputs)]).save(path)
        assert container.read(path, "model").arrays["columns"].dtype.str == kind
        assert Model.load(path).W[0, -1] == 1.0
    Model(np.arange(10_000), np.zeros((10_000, 9)), list(range(9))).save(path)
    assert path.stat().st_size < 8 * 10_000 + 1000


def test_saving_takes_little_memory(tmp_path):
    W = np.ones((200_000, 1))
    W[::2] = 0
    model = Model(np.arange(200_000), W, [0.0, 1.0])
    tracemalloc.start()
    model.save(tmp_path / "m.model")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000 + 2 * 8 * model_module._PART  # a flag per feature, parts of arrays


def test_features_of_weight_0_are_known(tmp_path):
    model = Model(np.array([1, 2, 3]), np.array([[1.0], [0.0], [-1.0]]), [0.0, 1.0])
    model.save(tmp_path / "m")
    (tmp_path / "t.svm").write_text("1 1:1 2:1\n0 2:1 3:1 4:1\n")
    in_memory = sbm.predict(model, tmp_path / "t.svm")
    assert in_memory["unknown_nonzeros"] == 1
    assert sbm.predict(tmp_path / "m", tmp_path / "t.svm") == in_memory
    assert len(model.ids) == 3  # unchanged
    Model(np.arange(3), np.zeros((3, 1)), [0.0, 1.0], 1.0, np.array([2.0])).save(tmp_path / "m")
    nothing = Model.load(tmp_path / "m")  # its bias alone predicts
    assert nothing.decision_function(scipy.sparse.csr_matrix(np.eye(3))).tolist() == [2.0] * 3
    report = sbm.predict(tmp_path / "m", tmp_path / "t.svm")
    assert (report["correct"], report["unknown_nonzeros"]) == (1, 2)


def test_weights_of_ids_in_any_order():
    model = Model(np.array([9, 2]), np.array([[1.0, 2.0], [3.0, 4.0]]), [0.0, 1.0])
    assert model.weights_of(np.array([2, 5, 9, 2**62])).tolist() == [[3, 4], [0, 0], [1, 2], [0, 0]]


def test_predictions_follow_the_kind_of_model(tmp_path):
    X = scipy.sparse.csr_matrix(np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))
    W = np.array([[0.5], [-2.0]])
    Model(np.array([0, 1]), W, [], 1.0, np.array([0.25])).save(tmp_path / "m")
    targets = Model.load(tmp_path / "m")
    assert targets.is_regression
    assert targets.predict(X).tolist() == targets.decision_function(X).tolist()
    assert targets.predict(X).tolist() == [0.75, -1.75, 0.25]
    two = Model(np.array([0, 1]), W, [-1.0, 7.0])
    assert not two.is_regression
    assert two.predict(X).tolist() == [7.0, -1.0, -1.0]  # 0 is negative
    ties = Model(np.array([0, 1]), np.array([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]), [5.0, -1.0, 3.0])
    assert ties.predict(X).tolist() == [5.0, -1.0, 5.0]  # the first of equal ones
    wide = Model(np.array([0, 1]), np.array([[1.0, np.inf, 0.0], [0.0, -np.inf, 1.0]]), [3.0, 5, 6])
    assert wide.predict(scipy.sparse.csr_matrix(np.ones((1, 2)))).tolist() == [3.0]  # not a NaN


def test_unknown_fields_and_repr_of_a_model(tmp_path):
    model = Model(np.arange(3), np.ones((3, 1)), [-1.0, 1.0], info={"loss": "hinge"})
    model.more = {"future": 1}
    model.save(tmp_path / "m")
    assert Model.load(tmp_path / "m").more == {"future": 1}
    assert repr(model) == "<Model of 2 labels: hinge, 3 features>"
    model.info["certificate"] = {"relative_gap": 2.5e-4}
    assert "certified relative gap 2.50e-04" in repr(model)
    with pytest.raises(StoreError, match="is a folder"):
        Model.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "fact"), [("m.json", "json export"), ("m.npz", "npz"), ("m.txt", "not a")]
)
def test_file_that_is_no_model_is_named(tmp_path, name, fact):
    (tmp_path / name).write_text("1 2:3\n" * 9)
    with pytest.raises(StoreError, match=fact) as caught:
        sbm.Model.load(tmp_path / name)
    assert ("export" in str(caught.value)) == (name != "m.txt")
