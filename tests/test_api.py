"""The functions of the package, called from Python."""

import pytest

import sbm

TEXT = "".join(f"{s}1 {k}:1 {k + 3}:1\n" for k in range(1, 9) for s in "+-")


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a9a.svm"
    path.write_text(TEXT)
    return path


def test_everything_can_be_seen_and_imported():
    assert set(sbm.__all__) <= set(dir(sbm))
    assert all(getattr(sbm, name).__doc__ for name in sbm.__all__)


def test_split_takes_one_path_or_several(source):
    rows = [sbm.split(s, force=True)["rows"] for s in (str(source), source, [source], "a9*.svm")]
    assert rows == [16] * 4


def test_settings_of_train_and_tune_may_be_a_dictionary(source):
    store = sbm.split(source)["store"]
    _, given = sbm.train(store, "a.model", sbm.Settings(C=0.25))
    _, plain = sbm.train(store, "b.model", {"C": 0.25})
    assert plain["primal"] == given["primal"]
    _, tuned = sbm.tune(store, "c.model", {"loss": "squared_hinge"}, Cs=[0.25], folds=2)
    assert tuned["best"] == 0.25
    with pytest.raises(sbm.SbmError, match=r"^settings: unknown key 'cost'"):
        sbm.train(store, "b.model", {"cost": 1})


@pytest.mark.parametrize("function", [sbm.train, sbm.tune])
def test_help_of_training_points_to_the_settings(function):
    assert "sbm.Settings" in function.__doc__
    assert "SettingsError" in function.__doc__
