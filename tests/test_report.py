"""The page about runs: what it tells is what their logs say, whoever wrote them."""

import contextlib
import dataclasses
import json
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from helpers import write_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sbm
from sbm.errors import SettingsError, StoreError
from sbm.jobs.reporting import picture
from sbm.jobs.reporting.markup import LETTERS
from sbm.jobs.reporting.page import to_html
from sbm.jobs.reporting.runlog import SECONDS, read_run

HOSTILE = "<script>alert(1)&\"'<!--.svm"
SVG = "{http://www.w3.org/2000/svg}"


def _data(path: Path, seed: int, n: int = 300) -> Path:
    random = np.random.default_rng(seed)
    X = np.float32(random.normal(size=(n, 20)) * (random.random((n, 20)) < 0.4))
    return write_rows(path, X, np.where(X[:, :4].sum(axis=1) + random.normal(size=n) > 0, 1, -1))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Trainings with a cache and without, one that was stopped, and a stream.

    They are in the process of all tests, whose peak is none of theirs.
    """
    with pytest.MonkeyPatch.context() as patch:
        for place in ("train", "training.figures", "streaming.state"):
            patch.setattr(f"sbm.jobs.{place}.peak_bytes", lambda: 123_000_000)
        return _make(tmp_path_factory.mktemp("made"))


def _make(folder):
    text, test = _data(folder / HOSTILE, 1), _data(folder / "test.svm", 2)
    sbm.split(text, folder / "a.sbm", blocks=4)
    common = {"mem": "400MB", "max_passes": 20, "tol": 1e-3, "C": 0.5, "rounds": 2}
    sbm.train(folder / "a.sbm", folder / "sbm.model", {**common, "cache_frac": 0.6}, test=test)
    bmd = {**common, "cache_frac": 0.0, "policy": "none", "max_passes": 3, "tol": 1e-9}
    sbm.train(folder / "a.sbm", folder / "bmd.model", bmd, test=test)
    calls = iter(range(20))
    with pytest.raises(KeyboardInterrupt):
        sbm.train(
            folder / "a.sbm", folder / "cut.model", {**common, "tol": 1e-9},
            is_stopped=lambda: next(calls) >= 6,
        )  # fmt: skip
    sbm.stream([str(text)], folder / "day.model", {"mem": "300MB"})
    return folder


@pytest.fixture
def copy(made, tmp_path):
    """Copy a run, its log changed line by line."""

    def make(name: str, change=lambda record: record, to: str = "x") -> Path:
        folder = shutil.copytree(made / f"{name}.model.run", tmp_path / f"{to}.model.run")
        log = folder / "log.jsonl"
        lines = [json.dumps(change(json.loads(line))) for line in log.read_text().splitlines()]
        log.write_text("".join(f"{line}\n" for line in lines))
        return folder

    return make


def _log(folder: Path, event: str) -> list[dict]:
    lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == event]


def _charts(page: str) -> dict[str, ET.Element]:
    """All charts of a page, by name; they are well-formed XML."""
    found = {}
    for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        element = ET.fromstring(text.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1))
        if element.get("id"):
            assert element.get("id") not in found
            found[element.get("id")] = element
    return found


# ------------------------------------------------------------------------------- what is gathered


def test_figures_are_those_of_the_log(made):
    run, log = read_run(made / "sbm.model"), _log(made / "sbm.model.run", "pass")
    (end,) = _log(made / "sbm.model.run", "end")
    assert (run.name, run.kind, run.is_finished, run.processes) == ("sbm", "train", True, 1)
    assert len(run.passes) == len(log) == end["passes"]
    for one, line in zip(run.passes, log, strict=True):
        assert (one.number, one.dual, one.elapsed) == (line["pass"], line["dual"], line["elapsed"])
        assert one.estimate == line["estimated_relative_gap"]
        assert (one.cached, one.free) == (line["cached_rows"], line["cached_free"])
        assert (one.zero, one.ages) == (line["cached_zero"], line["cached_ages"])
        assert one.seconds == {name: line["seconds"][name] for name in (*SECONDS, "load")}
        assert one.accuracy == line["test"]["accuracy"]
    assert run.certificate["relative_gap"] == end["relative_gap"] <= 1e-3
    assert run.peak == end["peak_rss_bytes"]
    assert run.mem == 400_000_000
    assert [source["name"] for source in run.sources] == [HOSTILE]
    assert run.warnings() == []


def test_a_folder_is_as_good_as_its_model(made):
    by_model, by_folder = read_run(made / "bmd.model"), read_run(made / "bmd.model.run")
    assert by_model == by_folder
    assert len(by_model.warnings()) == 1
    assert by_model.warnings()[0].startswith("It did not converge")


def test_an_unfinished_run_is_reported_as_such(made):
    run = read_run(made / "cut.model")  # which is not there yet
    assert not run.is_finished
    assert run.sources == []
    assert run.warnings()[0].startswith("It has not come to its end")
    assert "unfinished" in to_html([run])


def test_a_stream_tells_its_losses_so_far(made):
    run = read_run(made / "day.model")
    (end,) = _log(made / "day.model.run", "end")
    assert run.kind == "stream"
    assert (run.blocks[-1].rows, run.blocks[-1].loss) == (end["rows"], end["loss"])
    assert run.blocks[-1].accuracy == end["accuracy"]
    assert {"loss-rows", "right-time"} <= set(_charts(to_html([run])))


def test_seconds_of_a_stream_that_was_gone_on_with_add_up(copy):
    folder = copy("day")
    line = _log(folder, "block")[-1]
    lines = [json.dumps({**line, "rows": k, "elapsed": t}) for k, t in ((1, 3), (2, 4), (3, 1))]
    (folder / "log.jsonl").write_text("\n".join(lines) + "\n")
    assert [block.elapsed for block in read_run(folder).blocks] == [3, 4, 5]


def test_a_run_of_several_processes_is_that_of_the_first(made, tmp_path):
    for rank in range(2):
        shutil.copytree(made / "sbm.model.run", tmp_path / f"m.model.run/rank-{rank}-of-2")
    run = read_run(tmp_path / "m.model.run")
    assert run.processes == 2
    assert run.warnings() == [
        "It was trained by 2 processes: seconds, bytes, cache and memory are those of process 0."
    ]


def test_logs_of_older_versions_are_shown_with_what_they_have(made, copy):
    new = {"bytes_read", "test", "cached_ages", "cached_zero"}
    old = copy("sbm", lambda line: {k: v for k, v in line.items() if k not in new}, "old")
    page = to_html([read_run(old)])
    assert {"gap-time", "gap-passes", "cache-0"} <= set(_charts(page))
    assert not {"gap-bytes", "accuracy-time", "age-0"} & set(_charts(page))
    assert "at a bound" in page
    both = to_html([read_run(made / "sbm.model"), read_run(old)])
    assert "The bytes of old are not in the log, which is older." in both


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_run_without_its_log_tells_what_was_committed(version):
    run = read_run(Path(__file__).parent / "frozen" / f"runs-{version}" / "dense.run")
    assert run.passes == []
    assert run.certificate is None or run.certificate["relative_gap"] < 1
    page = to_html([run])
    assert "no pass yet" in page
    assert set(_charts(page)) == {"memory-levels"}


def test_a_line_that_is_cut_off_at_the_end_is_not_there_yet(copy):
    folder = copy("sbm")
    with open(folder / "log.jsonl", "a") as file:
        file.write('{"event": "pass", "pa')
    assert len(read_run(folder).passes) == len(_log_of_whole_lines(folder))


def _log_of_whole_lines(folder: Path) -> list[str]:
    lines = (folder / "log.jsonl").read_text().split("\n")[:-1]
    return [line for line in lines if '"event": "pass"' in line]


# --------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("dual", "<b>", "dual is <b>"),
        ("dual", 10**400, "dual is 1000"),
        ("pass", -1, "pass is -1"),
        ("cached_rows", 1.5, "cached_rows is 1.5"),
        ("cached_ages", [1, "x"], "cached_ages is x"),
        ("cached_ages", 3, "'int' object is not iterable"),
        ("seconds", None, "seconds is None"),
        ("test", {"accuracy": True}, "accuracy is True"),
        ("certificate", {"primal": 1}, "'dual'"),
    ],
)
def test_a_damaged_line_is_named(copy, name, value, reason):
    folder = copy("sbm", lambda line: {**line, name: value} if line.get("pass") == 2 else line)
    with pytest.raises(StoreError) as caught:
        read_run(folder)
    sentence = str(caught.value)
    assert sentence.startswith(f"{folder}/log.jsonl: line 2 is no line of a log (")
    assert reason in sentence
    assert sentence.endswith("; remove it to see the others")


@pytest.mark.parametrize("line", ["[]", "{", '{"event": 3}', '{"a": 1, "a": 2}'])
def test_a_line_that_is_no_event_is_named(copy, line):
    folder = copy("sbm")
    log = folder / "log.jsonl"
    log.write_text(line + "\n" + log.read_text())
    with pytest.raises(StoreError, match=r"log.jsonl: line 1 is no line of a log \("):
        read_run(folder)


def test_what_is_no_run_is_refused_with_what_would_be_one(made, tmp_path):
    (tmp_path / "empty").mkdir()
    alone = shutil.copy(made / "sbm.model", tmp_path / "alone.model")
    tuned = shutil.copytree(made / "sbm.model.run", tmp_path / "t.tune.run")
    record = json.loads((tuned / "run.json").read_text())
    from sbm.store.records import encode_record

    (tuned / "run.json").write_bytes(encode_record("run", {**record["run"], "kind": "tune"}))
    sentences = {
        made / "a.sbm": f"{made / 'a.sbm'} is a store; give a model that was trained on it",
        tmp_path / "empty":
            f"{tmp_path / 'empty'} is no run (it has no run.json); give a model, or its MODEL.run",
        alone:
            f"{alone} has no run beside it (alone.model.run), which holds the figures; train it "
            "again",
        tmp_path / "none":
            f"{tmp_path / 'none'} does not exist; give a model, or the MODEL.run beside it",
        tuned:
            f"{tuned} is of sbm tune, which draws its own picture (--png); give the model that it "
            "trained",
    }  # fmt: skip
    for path, sentence in sentences.items():
        with pytest.raises(StoreError) as caught:
            sbm.report(path, tmp_path / "r.html")
        assert str(caught.value) == sentence
    assert not (tmp_path / "r.html").exists()


def test_outputs_that_cannot_be_are_refused(made, tmp_path, monkeypatch):
    model, page = made / "sbm.model", tmp_path / "r.html"
    for arguments, sentence in (
        (([], page), "there is no run to report; name a model, or the MODEL.run beside it"),
        (([model] * 27, page), "27 runs are too many to see side by side; give at most 26"),
        ((model, "r.pdf"), "the report r.pdf is a page; choose a name that ends in .html"),
        (([model, model], page), f"{model} is there twice; name each run once"),
    ):
        with pytest.raises((SettingsError, StoreError)) as caught:
            sbm.report(*arguments)
        assert str(caught.value) == sentence
    with pytest.raises(SettingsError, match=r"^runs cannot be drawn as r.svg; choose a name that"):
        sbm.report(model, page, png="r.svg")
    monkeypatch.setattr(picture.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingsError) as caught:
        sbm.report(model, page, png=tmp_path / "r.png")
    assert str(caught.value) == (
        f"drawing {tmp_path / 'r.png'} needs matplotlib, which is not installed; install it "
        "(pip install matplotlib), or leave out --png"
    )
    assert not page.exists()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_whatever_a_log_says_there_is_a_page_or_a_sentence(made, tmp_path, data):
    name = data.draw(st.sampled_from(["sbm", "day"]))
    folder = tmp_path / "f.model.run"
    if not folder.exists():
        folder.mkdir()
    shutil.copy(made / f"{name}.model.run" / "run.json", folder)
    lines = [json.loads(x) for x in (made / f"{name}.model.run/log.jsonl").read_text().split("\n")
             if x]  # fmt: skip
    line = data.draw(st.sampled_from(lines))
    key = data.draw(st.sampled_from(sorted(line)))
    inner = line[key] if isinstance(line[key], dict) and data.draw(st.booleans()) else line
    key = data.draw(st.sampled_from(sorted(inner))) if inner is not line else key
    inner[key] = data.draw(JSON)
    (folder / "log.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    with contextlib.suppress(StoreError):
        _charts(to_html([read_run(folder)]))


# ---------------------------------------------------------------------------------------- the page


def test_nothing_of_a_name_is_taken_for_more_than_text(made, copy):
    run = read_run(copy("sbm", to='"><img src=x onerror=alert(1)>'))
    chosen = {**run.settings, "class_weight": {"<b>": 1}, "</table>": "<i>"}
    named = dataclasses.replace(read_run(made / "sbm.model"), settings=chosen)
    page = to_html([run, named])
    for wrong in ("<script", "<img", '<b>"', "<b>:", '</table>"', "<i>", "<!--"):
        assert wrong not in page, wrong
    assert "&lt;script&gt;alert(1)&amp;" in page
    assert "http" not in re.sub(r'http-equiv="[^"]*"', "", page)  # it asks nobody for anything
    ids = re.findall(r' id="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    _charts(page)


def test_settings_that_differ_are_marked(made):
    page = to_html([read_run(made / "sbm.model"), read_run(made / "bmd.model")])
    marked = re.findall(r'<tr class="differs"><th scope="row">≠ ([a-z-]+)</th>(.*?)</tr>', page)
    assert {name for name, _ in marked} == {"cache-frac", "policy", "max-passes", "tol"}
    assert dict(marked)["policy"] == "<td>gradient</td><td>none</td>"
    assert "bmd</b>" not in page
    assert "bmd had no cache" in re.sub(r"<[^>]*>", "", page)
    alone = to_html([read_run(made / "sbm.model")])
    assert 'class="differs"' not in alone


def test_points_are_where_ticks_say(made):
    """The place of each point, from the places of the ticks around it, gives the logged value."""
    run = read_run(made / "sbm.model")
    charts = _charts(to_html([run]))
    for name, of in (
        ("gap-passes", lambda one: (one.number, one.relative_gap)),
        ("objective-time", lambda one: (one.elapsed, one.dual)),
        ("accuracy-bytes", lambda one: (one.bytes_read / 1e6, 100 * one.accuracy)),
    ):
        chart = charts[name]
        line = chart.find(f"{SVG}polyline").get("points").split()
        points = [tuple(map(float, point.split(","))) for point in line]
        assert len(points) == len(run.passes)
        ticks = [(t, float(t.get("x")), float(t.get("y"))) for t in chart.iter(f"{SVG}text")
                 if t.get("class") == "tick"]  # fmt: skip
        xs = [(_value(t), x) for t, x, _ in ticks if t.get("text-anchor") == "middle"]
        ys = [(_value(t), y - 4.5) for t, _, y in ticks if t.get("text-anchor") == "end"]
        if name.startswith("gap"):
            ys = [(np.log10(value), y) for value, y in ys]
        for one, (x, y) in zip(run.passes, points, strict=True):
            at, value = of(one)
            value = np.log10(value) if name.startswith("gap") else value
            assert x == pytest.approx(_between(xs, at), abs=0.02)
            assert y == pytest.approx(_between(ys, value), abs=0.02)


def _value(tick: ET.Element) -> float:
    """Read a tick: 12,500, or 10 to a power."""
    power = tick.find(f"{SVG}tspan")
    if power is not None:
        return float(10.0 ** int(power.text.replace("−", "-")))
    return float(tick.text.replace(",", ""))


def _between(ticks: list[tuple[float, float]], value: float) -> float:
    """Where a value is, if the first and the last tick are right and all is even."""
    (a, at_a), (b, at_b) = ticks[0], ticks[-1]
    return at_a + (value - a) / (b - a) * (at_b - at_a)


def test_bars_are_as_high_as_what_they_show(made):
    run = read_run(made / "sbm.model")
    chart = _charts(to_html([run]))["cache-0"]
    bars = [b for b in chart.iter(f"{SVG}rect") if b.get("fill") == "url(#p-k1)"]
    ticks = [t for t in chart.iter(f"{SVG}text") if t.get("text-anchor") == "end"]
    unit = (float(ticks[0].get("y")) - float(ticks[-1].get("y"))) / _value(ticks[-1])
    assert [float(b.get("height")) for b in bars] == pytest.approx(
        [one.free * unit for one in run.passes if one.free], abs=0.02
    )


def test_each_chart_says_what_it_is(made):
    for name, chart in _charts(to_html([read_run(made / "sbm.model")])).items():
        assert chart.get("role") == "img"
        assert chart.get("aria-labelledby") == f"{name}-title {name}-desc"
        texts = {one.get("id"): one.text for one in chart}
        assert texts[f"{name}-title"]
        assert texts[f"{name}-desc"]


def test_many_passes_are_put_together_in_bars(made):
    run = read_run(made / "sbm.model")
    many = [dataclasses.replace(run.passes[0], number=k + 1, elapsed=k + 1.0) for k in range(95)]
    charts = _charts(to_html([dataclasses.replace(run, passes=many)]))
    labels = [t.text for t in charts["time-0"].iter(f"{SVG}text") if t.text and "–" in t.text]
    assert labels[0] == "1–3"
    assert len(charts["cache-0"].findall(f"{SVG}rect")) <= 3 * 40
    assert len(charts["gap-time"].findall(f"{SVG}path[@class='m c0 full']")) <= 40


def test_runs_of_one_name_are_called_by_their_place(made, tmp_path):
    shutil.copytree(made / "bmd.model.run", tmp_path / "sbm.model.run")
    told = sbm.report([made / "sbm.model", tmp_path / "sbm.model.run"], tmp_path / "r.html")
    assert [run["name"] for run in told["runs"]] == [
        str(made / "sbm.model"), str(tmp_path / "sbm.model.run")
    ]  # fmt: skip
    assert len(LETTERS) == 26


def test_the_command_writes_page_and_picture(made, tmp_path, monkeypatch, capsys):
    from sbm.cli import main

    monkeypatch.chdir(tmp_path)
    odd = shutil.copytree(made / "bmd.model.run", tmp_path / "b$\\frac^語.run")
    names = [str(made / "sbm.model"), odd.name]
    with pytest.raises(SystemExit) as end:
        main(["report", *names, "--png", "r.png"])
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (0, "report.html and r.png\n")
    assert err.startswith("b$\\frac^語: It did not converge")
    assert len(err.splitlines()) == 1
    assert (tmp_path / "r.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with pytest.raises(SystemExit):
        main(["report", names[0], "-o", "b.html", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert told["output"] == "b.html"
    assert told["runs"][0]["relative_gap"] <= 1e-3
    assert (tmp_path / "b.html").read_bytes().startswith(b"<!doctype html>")
