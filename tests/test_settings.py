"""Settings: their table, their rules and TOML files."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inside import SETTINGS, nearest

import sbm
from sbm import Settings, SettingsError


def test_nearest_known_word_is_suggested():
    assert "'cache_frac'" in nearest("cach_frac", ["rounds", "cache_frac"])
    assert "'C'" in nearest("c", ["rounds", "C"])
    assert nearest("zzz", ["rounds", "cache_frac"]) == ""


# --------------------------------------------------------------------------------------- ranges


def test_defaults():
    s = Settings()
    assert (s.loss, s.C, s.cache_frac, s.mem_bytes, s.rounds) == (
        "hinge", 1, 0.5, 2 * 10**9, "auto",
    )  # fmt: skip
    assert (s.tol, s.max_passes, s.time_limit, s.policy) == (1e-3, 50, None, "gradient")
    assert (s.bias, s.class_weight, s.seed, s.screen, s.calibrate) == (0, {}, 0, True, False)
    assert (s.epsilon, s.nu) == (0.1, 0.5)
    assert (s.checkpoint_every, s.comm_timeout, s.threads) == (300, 600, None)


WRONG_TYPE = [np.ones(3), np.array(["auto", "balanced"]), object(), b"1", (1, 2)]
# For each setting: valid values with their stored form, and invalid values.
RANGES = {
    "loss": ({"log_loss": "log_loss"}, ["hing", 5]),
    "C": ({2: 2.0, 1e-300: 1e-300}, [0, -2.5, math.inf, math.nan, "1", True, None, 10**400]),
    "task": ({"regression": "regression"}, ["regresion"]),
    "epsilon": ({0: 0.0}, [-0.1, math.inf]),
    "nu": ({1: 1.0, 0.01: 0.01}, [0, 1.01]),
    "cache_frac": ({0: 0.0, "0.25": 0.25, "auto": "auto"}, [1, -0.1, math.nan, "half"]),
    "mem": ({"300MB": 300_000_000}, ["lots", 0]),
    "rounds": ({1: 1, "3": 3, " 2, 2 ,5": "2,2,5", "auto": "auto", 2**63 - 1: 2**63 - 1},
               [0, 1.5, True, "2,x", "2,0", "-1", 2**63, 10**400]),
    "tol": ({1e-12: 1e-12}, [0, -1e-3, math.inf]),
    "max_passes": ({1: 1}, [0, "9", 2**63]),
    "time_limit": ({"5m": 300.0, None: None}, ["soon", -1]),
    "policy": ({"mixed": "mixed"}, ["none", True]),
    "screen": ({False: False}, [1, "yes"]),
    "bias": ({0: 0.0}, [-1, math.inf]),
    "class_weight": ({None: {}}, [{1: -1}, {-1: math.inf}, {1: math.nan}]),
    "weights": ({Path("a", "b"): "a/b", None: None}, [True]),
    "warm_start": ({Path("a", "b"): "a/b", False: None, True: True}, [1, 0, 2.0]),
    "calibrate": ({True: True}, [1]),
    "seed": ({0: 0, 2**63 - 1: 2**63 - 1}, [-1, 2.0, 2**63, 10**400]),
    "comm_timeout": ({"10m": 600.0}, ["late"]),
    "checkpoint_every": ({0: 0.0}, ["often"]),
    "threads": ({1: 1, None: None}, [0, 1.5]),
    "remote_timeout": ({"5m": 300.0, 0.5: 0.5}, [0, "0s", "soon", None]),
}  # fmt: skip


@pytest.mark.parametrize("name", RANGES)
def test_range_of_each_setting(name):
    taken, refused = RANGES[name]
    for value, kept in taken.items():
        found = getattr(Settings(**{name: value}), name)
        assert (found, type(found)) == (kept, type(kept))
    for value in [*refused, *WRONG_TYPE]:
        with pytest.raises(SettingsError) as error:
            Settings(**{name: value})
        assert re.search(rf"\b{name}\b|is not a (size|time)", str(error.value))
        assert len(str(error.value)) < 500


def test_refusal_names_value_and_range():
    for given_value, facts in (
        ({"C": 0}, "C is 0; .* above 0"), ({"tol": "x"}, "tol is 'x'; a number"),
        ({"loss": "hing"}, "loss 'hing'; .*hinge, .* 'hinge'"),
        ({"rounds": 2**63}, "rounds is 9223372036854775808; .* below 2"),
        ({"rounds": -1}, "rounds is -1; .* at least 1"),
        ({"max_passes": 2**63}, "max_passes .* below 2"),
        ({"cache_frac": "half"}, "cache_frac is 'half'; .*auto"),
        ({"class_weight": {1: -1}}, "class_weight of label 1 is -1"),
    ):  # fmt: skip
        with pytest.raises(SettingsError, match=f"^(unknown )?{facts}"):
            Settings(**given_value)


# --------------------------------------------------------------------------------- class weights


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        (["1=2.5", "-1=0.5"], {1.0: 2.5, -1.0: 0.5}), ({"1": 2.5, -1: 0}, {1.0: 2.5, -1.0: 0}),
        (None, {}), ([], {}), ("balanced", "balanced"), (["balanced"], "balanced"),
        ({20240131.0: 2.0, 20240132.0: 3.0}, {20240131.0: 2.0, 20240132.0: 3.0}),
    ],
)  # fmt: skip
def test_class_weights_are_read(written, kept):
    made = Settings(class_weight=written)
    assert made == Settings.from_dict({"class_weight": written})
    assert made.class_weight == kept
    assert Settings.from_dict(json.loads(json.dumps(made.to_dict()))) == made


@pytest.mark.parametrize(
    "written",
    [["1"], ["1=much"], {"1": [2]}, "1:2", 3, "", "Balanced",
     ["balanced", "1=2"], np.ones(3), {(): 1}, ["1=2", "1.0=3"], {"1": 2, 1.0: 3}],
)  # fmt: skip
def test_invalid_class_weights_are_refused(written):
    with pytest.raises(SettingsError, match=r"^class_weight "):
        Settings(class_weight=written)


# --------------------------------------------------------------------------- dictionaries, TOML


@given(
    st.builds(
        Settings,
        loss=st.sampled_from(["hinge", "squared_hinge"]),
        C=st.floats(1e-9, 1e9),
        cache_frac=st.floats(0, 0.999),
        mem=st.integers(1, 10**12),
        rounds=st.integers(1, 1000),
        time_limit=st.none() | st.floats(0.001, 1e6),
        seed=st.integers(0, 2**63 - 1),
        class_weight=st.dictionaries(st.floats(-1e9, 1e9), st.floats(0, 1e6), max_size=3),
        warm_start=st.none() | st.just(True) | st.just("m.model"),
    )
)
def test_settings_round_trip_through_json(made):
    assert Settings.from_dict(json.loads(json.dumps(made.to_dict()))) == made


def test_settings_accept_a_dictionary():
    made = Settings(C=3)
    assert Settings.of(made) is made
    assert Settings.of({"C": 3}) == made
    assert Settings.of(None) == Settings.of({}) == Settings()
    assert Settings(C=np.float32(3), max_passes=np.int64(9)) == Settings(C=3, max_passes=9)
    for wrong, facts in (
        ({"cash_frac": 1}, "unknown key 'cash_frac'.*'cache_frac'"), ({"c": 1}, "'c'.*'C'"),
        ({"zzz": 1}, "unknown key 'zzz'$"), (3, "settings is 3"),
        ({"cache-frac": 0.1, "cache_frac": 0.2}, "cache_frac is given twice"),
    ):  # fmt: skip
        with pytest.raises(SettingsError, match=facts):
            Settings.of(wrong)


def test_toml_keys_are_the_options(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text(
        'loss = "squared_hinge"\nC = 0.5\ncache-frac = 0.25\nmem = "1GB"\nmax_passes = 3\n'
        "warm-start = true\n[class-weight]\n1 = 2.5\n-1 = 1\n"
    )
    assert Settings.from_dict(Settings.read_toml(path)) == Settings(
        loss="squared_hinge", C=0.5, cache_frac=0.25, mem=10**9, max_passes=3, warm_start=True,
        class_weight={1: 2.5, -1: 1},
    )  # fmt: skip


@pytest.mark.parametrize(
    "content",
    [
        b"C = = 1", b"\xff\xfe", None, "folder", b"a = " + b"[" * 3000,
        b"rounds = " + b"1" * 5000, b"#" * 2_000_000,
    ],
    ids=["form", "bytes", "none", "folder", "nested", "digits", "large"],
)  # fmt: skip
def test_unreadable_toml_file_is_named(tmp_path, content):
    path = tmp_path / "bad.toml"
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content:
        path.mkdir()
    with pytest.raises(SettingsError, match=re.escape(str(path))):
        Settings.read_toml(path)


def test_every_config_file_is_valid():
    paths = sorted(Path(__file__).resolve().parents[1].glob("configs/*.toml"))
    assert len(paths) > 3
    for path in paths:
        Settings.from_dict(Settings.read_toml(path), str(path))


def test_docstring_says_where_settings_apply():
    assert not re.search(r"\S {2,}\S", Settings.__doc__)
    text = " ".join(Settings.__doc__.split())
    for part in (
        "Only with loss one_class.",
        "Not dual with intercept; newton with loss one_class",
    ):
        assert part in text


def test_settings_passed_as_model_are_refused(tmp_path):
    (tmp_path / "a.svm").write_text("1 1:1\n-1 2:1\n")
    store = sbm.split(tmp_path / "a.svm", tmp_path / "a.sbm")["store"]
    for function in (sbm.train, sbm.tune, sbm.stream):
        more = {"Cs": [1.0]} if function is sbm.tune else {}
        for given_settings in (Settings(), {"C": 1}):
            with pytest.raises(SettingsError, match=rf"{type(given_settings).__name__}.*settings="):
                function(store, given_settings, **more)


SPARSE = {"loss": "squared_hinge", "penalty": "elasticnet"}
JOINT = {"loss": "crammer_singer"}
CONFLICTS = [
    # settings, processes, the setting that is refused, a fact about why
    ({"loss": "one_class", "C": 2.0}, 1, "C 2", "one_class; set nu"),
    ({"penalty": "l1"}, 1, "penalty l1", "hinge; use .*log_loss"),
    (SPARSE, 2, "penalty elasticnet", "2 processes"),
    ({"l1_ratio": 0.3}, 1, "l1_ratio 0.3", "penalty l2, only to elasticnet"),
    ({"epsilon": 0.3}, 1, "epsilon 0.3", "hinge, only to epsilon_insensitive"),
    ({"nu": 0.3}, 1, "nu 0.3", "hinge, only to one_class"),
    ({"solver": "dual", "intercept": True}, 1, "solver dual", "intercept; .*newton, or --bias"),
    ({"solver": "newton", "loss": "one_class"}, 1, "solver newton", "one_class"),
    ({"solver": "newton", **SPARSE}, 1, "solver newton", "penalty elasticnet"),
    ({"solver": "newton", **JOINT, "validate": 0.1}, 1, "solver newton", "singer.* share of"),
    ({"solver": "newton", **JOINT, "calibrate": True}, 1, "solver newton", "singer.*calibrate"),
    ({**SPARSE, "cache_frac": 0.1}, 1, "cache_frac 0.1", "elasticnet"),
    ({**SPARSE, "parts": "blocks"}, 1, "parts blocks", "elasticnet"),
    ({**SPARSE, "rounds": 3}, 1, "rounds 3", "elasticnet"),
    ({**SPARSE, "policy": "random"}, 1, "policy random", "elasticnet"),
    ({**SPARSE, "screen": False}, 1, "screen off", "elasticnet"),
    ({"bias": 1.0, "intercept": True}, 1, "bias 1", "intercept; leave out one"),
    ({"bias": 1.0, "loss": "one_class"}, 1, "bias 1", "one_class"),
    ({"intercept": True, "loss": "one_class"}, 1, "intercept", "one_class"),
    ({"intercept": True, **JOINT}, 1, "intercept", "crammer_singer.*--bias 1"),
    ({"prune": 0.1, **SPARSE}, 1, "prune 0.1", "elasticnet"),
    ({"prune": 0.1, **JOINT}, 1, "prune 0.1", "crammer_singer"),
    ({"prune": 0.1, "loss": "one_class"}, 1, "prune 0.1", "one_class"),
    ({"prune": 0.1, "scale": "std"}, 1, "prune 0.1", "scale"),
    ({"prune": 0.1, "validate": 0.1}, 1, "prune 0.1", "validate"),
    ({"class_weight": "balanced", "loss": "squared_error"}, 1, "class_weight", "no classes"),
    ({"positive": "1", "loss": "one_class"}, 1, "positive 1", "no classes"),
    ({"positive": "1", **JOINT}, 1, "positive 1", "crammer_singer"),
    ({"weights": "-"}, 3, "weights -", "3 processes and standard input; use a file"),
    ({"calibrate": True, "loss": "log_loss"}, 1, "calibrate", "log odds"),
    ({"calibrate": True, "loss": "squared_error"}, 1, "calibrate", "no classes"),
    ({"calibrate": True, **SPARSE}, 1, "calibrate", "elasticnet"),
    ({"calibrate": True}, 2, "calibrate", "2 processes.*--warm-start"),
    ({"validate": "v.svm", "loss": "one_class"}, 1, "validate v.svm", "one_class"),
    ({"validate": 0.1, "calibrate": True}, 1, "validate 0.1", "calibrate"),
    ({"validate": 0.1}, 2, "validate 0.1", "2 processes"),
    ({"validate": "-"}, 1, "validate -", "standard input"),
    ({"validate": 0.1, **SPARSE}, 1, "validate 0.1", "elasticnet; use --validate FILE"),
    ({"metric": "auc"}, 1, "metric auc", "--validate FILE"),
    ({"threshold": "f1"}, 1, "threshold f1", "--validate FILE"),
    ({"threshold": "f1", "validate": 0.1, "loss": "squared_error"}, 1, "threshold", "no classes"),
    ({"threshold": "f1", "validate": 0.1, **JOINT}, 1, "threshold f1", "crammer_singer"),
]


@pytest.mark.parametrize(("made", "processes", "setting", "why"), CONFLICTS, ids=str)
def test_conflicts_are_refused(made, processes, setting, why):
    with pytest.raises(SettingsError, match=rf"^{re.escape(setting)}.* does not apply to .*{why}"):
        Settings(**made).refuse_conflicts(processes)
    name = setting.split()[0]
    if not {"-", 0.1, "v.svm"} & {made.get("validate")}:
        del (allowed := dict(made))[name]
        Settings(**allowed).refuse_conflicts(1)


def test_every_conflict_is_tried():
    tried = [setting.split()[0] for _, _, setting, _ in CONFLICTS]
    rows = [name for name, row in SETTINGS.items() for _ in row.excludes]
    assert sorted(tried) == sorted(rows)
