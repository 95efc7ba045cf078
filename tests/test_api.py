"""The functions of the package, called from Python."""

import inspect
import re

import pytest

import sbm
from sbm.cli.entry import cli

TEXT = "".join(f"{s}1 {k}:1 {k + 3}:1\n" for k in range(1, 9) for s in "+-")


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a9a.svm"
    path.write_text(TEXT)
    return path


def test_everything_can_be_seen_and_imported():
    assert sorted(sbm.__all__) == sbm.__all__
    assert set(sbm.__all__) <= set(dir(sbm))
    assert all(getattr(sbm, name).__doc__ for name in sbm.__all__)


FUNCTIONS = [n for n in sbm.__all__ if inspect.isfunction(getattr(sbm, n))]


def test_every_command_is_a_function_and_every_function_a_command():
    assert sorted(cli.commands) == FUNCTIONS


@pytest.mark.parametrize("name", [*FUNCTIONS, "Settings"])
def test_every_parameter_is_described_and_none_that_there_is_not(name):
    told = inspect.getdoc(getattr(sbm, name))
    section = re.search(
        r"^Parameters\n-+\n(.*?)\n(?=\n\w+\n---|\Z)", told, re.DOTALL | re.MULTILINE
    )
    names = re.findall(r"^(\w+(?:, \w+)*) :|^(\w+)$", section[1], re.MULTILINE)
    described = [n for several, one in names for n in (several or one).split(", ")]
    assert sorted(described) == sorted(inspect.signature(getattr(sbm, name)).parameters)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_is_returned_and_raised_is_told(name):
    told = inspect.getdoc(getattr(sbm, name))
    assert re.search(r"^Returns\n-------$", told, re.MULTILINE)
    assert re.search(r"^Raises\n------$", told, re.MULTILINE)


@pytest.mark.parametrize(
    ("function", "arguments"),
    [(sbm.train, ["a.sbm"]), (sbm.tune, ["a.sbm"]), (sbm.stream, ["a9a.svm"])],
)
def test_settings_in_the_place_of_the_model_are_noticed(source, function, arguments):
    sbm.split(source, "a.sbm")
    more = {"Cs": [1.0]} if function is sbm.tune else {}
    for settings in (sbm.Settings(), {"C": 1}):
        with pytest.raises(sbm.SettingsError) as caught:
            function(*arguments, settings, **more)
        assert str(caught.value) == (
            f"the model is {type(settings).__name__}, and a path is expected; name settings, as in "
            "settings=sbm.Settings(C=0.1)"
        )


def test_a_mistyped_name_is_refused_at_once_with_the_nearest_one():
    with pytest.raises(
        sbm.SettingsError, match=r"^unknown loss 'hing', .*; did you mean 'hinge'\?$"
    ):
        sbm.Settings(loss="hing")
    with pytest.raises(sbm.SettingsError, match=r"^unknown policy 'gradent', .* 'gradient'\?$"):
        sbm.Settings(policy="gradent")
    with pytest.raises(sbm.SettingsError, match=r"^settings: unknown key 'c'; did you mean 'C'\?$"):
        sbm.Settings.from_dict({"c": 1})


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
