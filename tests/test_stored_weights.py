"""Weights of rows in the data: VW importance and a column of a table."""

import numpy as np
import pytest
from inside import Arena, BlockStore, read_manifest
from sklearn.svm import LinearSVC

import sbm
from sbm.errors import DataError

RNG = np.random.default_rng(3)
X = np.round(RNG.normal(size=(300, 4)), 3)
Y = np.where(X @ [1, -2, 0.5, 0] + RNG.normal(size=300) > 0, 1, -1)
WEIGHTS = RNG.choice([0.0, 0.5, 1.0, 3.25], 300)
EXACT = {"tol": 1e-9, "max_passes": 500, "loss": "squared_hinge"}


def write(folder, weights=WEIGHTS, name="a"):
    """Write the same rows as a table and as VW text, and their weights."""
    table = ["a,b,w,c,d,y"]
    lines = []
    for row, y, w in zip(X, Y, weights, strict=False):
        a, b, c, d = row
        table.append(f"{a},{b},{w},{c},{d},{y}")
        lines.append(f"{y} {w} | a:{a} b:{b} c:{c} d:{d}")
    (folder / f"{name}.csv").write_text("\n".join(table) + "\n")
    (folder / f"{name}.vw").write_text("\n".join(lines) + "\n")
    (folder / f"{name}.txt").write_text("".join(f"{w}\n" for w in weights))


def stored(path):
    store = BlockStore(path)
    pairs = []
    for chunk in (chunk for chunks in store.chunks for chunk in chunks):
        room = Arena.of(chunk.nnz, store.value_type).room(chunk.rows, weighted=True)
        rows = store.read([chunk], room, 0)
        assert store.read_weights(chunk).tolist() == rows.weights.tolist()
        pairs += rows.weights.tolist()
    return sorted(pairs)


def test_weights_in_the_data_equal_those_of_a_file(tmp_path):
    write(tmp_path)
    sbm.split(tmp_path / "a.csv", tmp_path / "t.sbm", weight="w", blocks=3)
    sbm.split(tmp_path / "a.vw", tmp_path / "v.sbm", blocks=3)
    sbm.split(tmp_path / "a.csv", tmp_path / "f.sbm", exclude=["w"], blocks=3)
    assert stored(tmp_path / "t.sbm") == stored(tmp_path / "v.sbm") == sorted(WEIGHTS)
    for extra in ({}, {"solver": "newton"}, {"penalty": "l1"}, {"class_weight": "balanced"}):
        found = [
            sbm.train(
                tmp_path / f"{name}.sbm", tmp_path / f"{name}.model", {**EXACT, **extra, **more}
            )
            for name, more in (("t", {}), ("v", {}), ("f", {"weights": str(tmp_path / "a.txt")}))
        ]
        ours = [dict(zip(list(m.names), m.W[:, 0], strict=True)) for m, _ in found]
        assert {*ours[0]} <= {"a", "b", "c", "d"}
        for other in ours[1:]:
            assert ours[0] == pytest.approx(other, rel=1e-6, abs=1e-9)
        assert found[0][1]["primal"] == pytest.approx(found[2][1]["primal"], rel=1e-8)
        assert found[0][1]["converged"]


def test_optimum_is_that_of_scikit_learn(tmp_path):
    write(tmp_path)
    model, _ = sbm.train(tmp_path / "a.csv", tmp_path / "m.model", EXACT, weight="w")
    theirs = LinearSVC(loss="squared_hinge", fit_intercept=False, tol=1e-10, max_iter=100_000)
    theirs.fit(X, Y, sample_weight=WEIGHTS)
    ours = dict(zip(list(model.names), model.W[:, 0], strict=True))
    np.testing.assert_allclose([ours[c] for c in "abcd"], theirs.coef_[0], rtol=1e-3)
    # A weight of 0 is as if the row were not there.
    kept = WEIGHTS > 0
    sbm.split((X[kept], Y[kept]), tmp_path / "k.sbm")
    (tmp_path / "k.txt").write_text("".join(f"{w}\n" for w in WEIGHTS[kept]))
    other, _ = sbm.train(
        tmp_path / "k.sbm", tmp_path / "k.model", {**EXACT, "weights": str(tmp_path / "k.txt")}
    )
    np.testing.assert_allclose(other.coef_, theirs.coef_, rtol=1e-3)


def test_appended_rows_without_weights_count_once(tmp_path):
    write(tmp_path, np.full(300, 2.0))
    sbm.split(tmp_path / "a.vw", tmp_path / "a.sbm", blocks=2)
    write(tmp_path, np.ones(7), "b")
    sbm.split(tmp_path / "b.vw", tmp_path / "a.sbm", append=True)
    assert stored(tmp_path / "a.sbm") == [1.0] * 7 + [2.0] * 300
    first, second = read_manifest(tmp_path / "a.sbm")["generations"]
    assert first["weights"]["total"] == 600
    assert "weights" not in second
    model, _ = sbm.train(tmp_path / "a.sbm", tmp_path / "o.model", {"loss": "one_class"})
    assert model.info["rows"] == 307


def test_bad_weights_are_refused(tmp_path):
    for bad, facts in (("-1", "'-1' as the weight"), ("", "'' as"), ("nan", "'nan'"), ("x", "'x'")):
        (tmp_path / "a.csv").write_text(f"y,w,x\n1,1,2\n0,{bad},2\n")
        with pytest.raises(DataError, match=rf"a\.csv:3: found {facts}.*at least 0"):
            sbm.split(tmp_path / "a.csv", tmp_path / "a.sbm", weight="w")
    (tmp_path / "a.csv").write_text("y,w,x\n1,0,2\n0,0,2\n")
    with pytest.raises(DataError, match="all weights"):
        sbm.split(tmp_path / "a.csv", tmp_path / "a.sbm", weight="w")
    with pytest.raises(DataError, match=r"no column 'v' for weight among 'y', 'w', 'x'"):
        sbm.split(tmp_path / "a.csv", tmp_path / "a.sbm", weight="v")
    with pytest.raises(DataError, match="both the label and the weight"):
        sbm.split(tmp_path / "a.csv", tmp_path / "a.sbm", weight="y")
    assert not (tmp_path / "a.sbm").exists()
    write(tmp_path)
    sbm.split(tmp_path / "a.csv", tmp_path / "a.sbm", weight="w")
    with pytest.raises(DataError, match="leave out weights"):
        sbm.train(tmp_path / "a.sbm", settings={"weights": str(tmp_path / "a.txt")})


def test_weights_are_no_features_of_new_data(tmp_path):
    write(tmp_path)
    model, _ = sbm.train(tmp_path / "a.csv", tmp_path / "m.model", weight="w", exclude=["d"])
    report = sbm.predict(model, tmp_path / "a.csv")
    assert (report["unknown_nonzeros"], report["warnings"]) == (0, [])
    (tmp_path / "n.csv").write_text("a,b,c\n1,2,3\n")
    assert sbm.predict(model, tmp_path / "n.csv")["warnings"] == []
