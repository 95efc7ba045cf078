"""Errors in Python speak of keyword arguments; on the command line, of options."""

import json
import pickle
import re

import pytest
from inside import in_python

import sbm

OURS = {"max_passes": "max_iter", "intercept": "intercept_scaling=inf", "bias": "scaling"}


@pytest.mark.parametrize(
    ("typed", "written"),
    [
        ("--mem 20 MB is too small; use at least --mem 113MB",
         "mem='20MB' is too small; use at least mem='113MB'"),
        ("x exists; replace it with --force, or choose another name with -o",
         "x exists; replace it with force=True, or choose another name with store=..."),
        ("use --loss log_loss or hinge", "use loss='log_loss' or hinge"),
        ("--validate needs a single process", "validate needs a single process"),
        ("use --validate FILE, or sbm tune", "use validate=FILE, or sbm.tune"),
        ("build it with sbm split --force, or", "build it with sbm.split(force=True), or"),
        ("sbm split --min-count N drops", "sbm.split(min_count=N) drops"),
        ("use --fresh, or --no-names", "use resume=False, or names=False"),
        ("other settings: -C 1.0, --tol 1e-09", "other settings: C=1.0, tol=1e-09"),
        ("give --before DATE or --source NAME", "give before=DATE or sources=NAME"),
        ("--bias 1 instead of --intercept", "scaling=1 instead of intercept_scaling=inf"),
        ("max_passes is 0; raise it", "max_iter is 0; raise it"),
        ("drop them with sbm expire s.sbm --source b.csv, or",
         "drop them with sbm.expire('s.sbm', sources='b.csv'), or"),
        ("create it with sbm split; see a.b", "create it with sbm.split; see a.b"),
        ("use curl --compressed x, --fresh", "use curl --compressed x, resume=False"),
        ("decompress it (zstdcat --long=31)", "decompress it (zstdcat --long=31)"),
        ("a--b.svm:1: found -o-", "a--b.svm:1: found -o-"),
    ],
)  # fmt: skip
def test_options_become_keywords(typed, written):
    assert in_python(typed, OURS, "split") == written


def test_errors_of_the_api_name_keywords(tmp_path):
    (tmp_path / "a.svm").write_text("1 1:1\n-1 2:1\n")
    store, model = tmp_path / "a.sbm", tmp_path / "a.model"
    sbm.split(tmp_path / "a.svm", store)
    for call in (
        lambda: sbm.split(tmp_path / "a.svm", store),
        lambda: sbm.train(store, model, {"mem": "1MB"}),
        lambda: sbm.train(store, model, {"penalty": "l1"}),
        lambda: sbm.train(store, model, {"threshold": "f1"}),
        lambda: sbm.train(store, model, {"warm_start": "none"}),
        lambda: sbm.train(store, model, {"intercept": True, "bias": 1}),
        lambda: sbm.expire(store),
        lambda: sbm.plan(store, processes=0),
        lambda: sbm.predict(tmp_path / "none", store),
        lambda: sbm.export(tmp_path / "none", prune=-1),
    ):
        with pytest.raises(sbm.SbmError) as caught:
            call()
        assert not re.search(r"(^| )--?[a-zA-Z]", str(caught.value))


def test_functions_can_be_pickled():
    assert pickle.loads(pickle.dumps(sbm.train)) is sbm.train


def test_reports_are_dicts_shown_in_short(tmp_path):
    (tmp_path / "a.svm").write_text("".join(f"{k % 2} 1:{k} {k + 2}:1\n" for k in range(60)))
    _, report = sbm.train(tmp_path / "a.svm", tmp_path / "a.model", {"max_passes": 9})
    for shown in (report, sbm.info(tmp_path / "a.model"), sbm.inspect(tmp_path / "a.model")):
        lines = repr(shown).splitlines()
        assert len(lines) < 20
        assert max(map(len, lines[:-1])) <= 120
        assert all(name in repr(shown) for name in list(shown)[:15])
        assert "<table>" in shown._repr_html_()
        assert json.loads(json.dumps(shown)) == shown == pickle.loads(pickle.dumps(shown))
        assert repr(dict(shown)).startswith("{'")
        assert isinstance(shown, dict)
