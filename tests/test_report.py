"""The page about runs: what it shows is what their logs say, whoever wrote them."""

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
from sbm.cli import main
from sbm.errors import SettingsError, StoreError
from sbm.programs.reporting import picture
from sbm.programs.reporting.page import to_html
from sbm.programs.reporting.runlog import SECONDS, read_run
from sbm.store.manifest import encode_record

HOSTILE = "<script>alert(1)&\"'<!--.svm"
SVG = "{http://www.w3.org/2000/svg}"


def write_data(path: Path, seed: int, n: int = 300) -> Path:
    random = np.random.default_rng(seed)
    X = np.float32(random.normal(size=(n, 20)) * (random.random((n, 20)) < 0.4))
    return write_rows(path, X, np.where(X[:, :4].sum(axis=1) + random.normal(size=n) > 0, 1, -1))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Trainings with a cache, without one and stopped, and a stream."""
    folder = tmp_path_factory.mktemp("made")
    text, test = write_data(folder / HOSTILE, 1), write_data(folder / "test.svm", 2)
    sbm.split(text, folder / "a.sbm", blocks=4)
    calls = iter(range(20))
    common = {"mem": "400MB", "max_passes": 20, "tol": 1e-3, "C": 0.5, "rounds": 2}
    plain = {**common, "cache_frac": 0.0, "policy": "none", "max_passes": 3, "tol": 1e-9}
    cut = {"is_stopped": lambda: next(calls) >= 6}
    with pytest.MonkeyPatch.context() as patch:
        for place in ("train", "training.state", "streaming.state"):  # not that of all tests
            patch.setattr(f"sbm.programs.{place}.peak_bytes", lambda: 123_000_000)
        sbm.train(folder / "a.sbm", folder / "sbm.model", {**common, "cache_frac": 0.6}, test=test)
        sbm.train(folder / "a.sbm", folder / "plain.model", plain, test=test)
        with pytest.raises(KeyboardInterrupt):
            sbm.train(folder / "a.sbm", folder / "cut.model", {**common, "tol": 1e-9}, **cut)
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


def events(folder: Path, event: str) -> list[dict]:
    lines = map(json.loads, (folder / "log.jsonl").read_text().splitlines())
    return [line for line in lines if line["event"] == event]


def charts_of(page: str) -> dict[str, ET.Element]:
    """All charts of a page, by name; they are well-formed XML and say what they are."""
    found = {}
    for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        chart = ET.fromstring(text.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1))
        name = chart.get("id")
        if name:
            assert name not in found
            assert chart.get("role") == "img"
            told = {one.get("id"): one.text for one in chart}
            assert all(told[part] for part in chart.get("aria-labelledby").split())
            found[name] = chart
    return found


def rows_of(page: str) -> list[list[str]]:
    """Cells of all rows of all tables."""
    return [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall("<tr.*?</tr>", page)
    ]


# ------------------------------------------------------------------------------------------ figures


def test_figures_match_the_log(made):
    run, log = read_run(made / "sbm.model"), events(made / "sbm.model.run", "pass")
    (end,) = events(made / "sbm.model.run", "end")
    assert (run.name, run.kind, run.is_finished, run.processes) == ("sbm", "train", True, 1)
    assert len(run.passes) == len(log) == end["passes"] > 2
    for one, line in zip(run.passes, log, strict=True):
        assert (one.number, one.dual, one.elapsed) == (line["pass"], line["dual"], line["elapsed"])
        assert one.estimate == line["estimated_relative_gap"]
        assert (one.cached, one.free) == (line["cached_rows"], line["cached_free"])
        assert (one.zero, one.ages) == (line["cached_zero"], line["cached_ages"])
        assert one.seconds == {name: line["seconds"][name] for name in (*SECONDS, "load")}
        assert one.accuracy_percent == 100 * line["test"]["accuracy"]
        assert (one.bytes_read, one.resident) == (line["bytes_read"], line["resident_bytes"])
    assert run.certificate["relative_gap"] == end["relative_gap"] <= 1e-3
    assert (run.peak, run.mem) == (end["peak_rss_bytes"], 400_000_000)
    assert [source["name"] for source in run.sources] == [HOSTILE]
    assert run.warnings() == []
    assert read_run(made / "sbm.model.run") == run


def test_stream_figures_match_the_log(made, copy):
    run = read_run(made / "day.model")
    (end,) = events(made / "day.model.run", "end")
    last = run.blocks[-1]
    assert (run.kind, run.is_finished) == ("stream", True)
    assert (last.rows, last.loss, last.accuracy) == (end["rows"], end["loss"], end["accuracy"])
    page = to_html([run])
    assert {"loss-rows", "right-time"} <= set(charts_of(page))
    cells = [f"{last.rows:,}", f"{last.elapsed:.2f}", f"{last.loss:.6f}"]
    assert cells in [row[:3] for row in rows_of(page)]
    folder = copy("day")  # resumed twice: seconds add up
    (line, *_) = events(folder, "block")
    lines = [{**line, "rows": k, "elapsed": t} for k, t in ((1, 3), (2, 4), (3, 1), (4, 2), (5, 1))]
    (folder / "log.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    assert [block.elapsed for block in read_run(folder).blocks] == [3, 4, 5, 6, 7]


def test_warnings_name_what_is_wrong(made, copy, tmp_path):
    (told,) = read_run(made / "plain.model").warnings()
    assert "1e-09" in told
    assert "--max-passes" in told
    cut = read_run(made / "cut.model")
    assert not cut.is_finished
    assert cut.warnings()
    assert cut.sources == []
    assert cut.peak == max(one.resident for one in cut.passes)
    assert "unfinished" in to_html([cut])
    end = {"peak_rss_bytes": 10**9, "visits_cut_short": 3}
    odd = read_run(copy("sbm", lambda line: {**line, **end} if line["event"] == "end" else line))
    visits, memory = odd.warnings()
    assert "--mem" in visits
    assert "1 GB" in memory
    for rank in range(2):
        shutil.copytree(made / "sbm.model.run", tmp_path / f"m.model.run/rank-{rank}-of-2")
    several = read_run(tmp_path / "m.model.run")
    assert several.processes == 2
    assert "2 processes" in several.warnings()[0]


def test_missing_figures_are_left_out(made, copy):
    new = {"test", "cached_ages", "cached_zero"}
    old = copy("sbm", lambda line: {k: v for k, v in line.items() if k not in new}, "old")
    shown = set(charts_of(to_html([read_run(old)])))
    assert {"gap-time", "gap-passes", "gap-bytes", "cache-0"} <= shown
    assert not {"accuracy-time", "age-0"} & shown
    with open(old / "log.jsonl", "a") as file:  # a line that is being written
        file.write('{"event": "pass", "pa')
    assert len(read_run(old).passes) == len(events(made / "sbm.model.run", "pass"))
    (old / "log.jsonl").unlink()
    run = read_run(old)
    assert run.passes == []
    assert run.certificate["relative_gap"] <= 1e-3
    assert set(charts_of(to_html([run]))) == {"memory-levels"}


# ----------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("name", "value", "fact"),
    [
        ("dual", "<b>", "dual is <b>"), ("dual", 10**400, "dual is 1000"), ("pass", -1, "is -1"),
        ("dual", 2e300, "dual is 2e"), ("cached_rows", 1.5, "cached_rows is 1.5"),
        ("cached_rows", 1 << 63, "cached_rows is 9"), ("cached_ages", [1, "x"], "cached_ages is x"),
        ("cached_ages", 3, "int"), ("seconds", None, "seconds is None"),
        ("test", {"accuracy": True}, "accuracy is True"), ("certificate", {"primal": 1}, "dual"),
    ],
)  # fmt: skip
def test_damaged_line_is_named(copy, name, value, fact):
    folder = copy("sbm", lambda line: {**line, name: value} if line.get("pass") == 2 else line)
    with pytest.raises(StoreError, match=f"^{folder}/log.jsonl: line 2 .*{fact}"):
        read_run(folder)
    for line in ("[]", "{", '{"event": 3}', '{"a": 1, "a": 2}'):
        (folder / "log.jsonl").write_text(line + "\n")
        with pytest.raises(StoreError, match=r"log.jsonl: line 1 "):
            read_run(folder)


def test_other_files_are_not_runs(made, tmp_path):
    (tmp_path / "empty").mkdir()
    alone = shutil.copy(made / "sbm.model", tmp_path / "alone.model")
    tuned = shutil.copytree(made / "sbm.model.run", tmp_path / "t.tune.run")
    record = json.loads((tuned / "run.json").read_text())
    (tuned / "run.json").write_bytes(encode_record("run", {**record["run"], "kind": "tune"}))
    for path, fact in (
        (made / "a.sbm", "store"), (tmp_path / "empty", "run.json"), (tuned, "sbm tune"),
        (alone, "alone.model.run"), (tmp_path / "none", "does not exist"),
    ):  # fmt: skip
        with pytest.raises(StoreError, match=f"^{path} .*{fact}"):
            sbm.report(path, tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_bad_outputs_are_refused(made, tmp_path, monkeypatch):
    model, page = made / "sbm.model", tmp_path / "r.html"
    for paths, output, png, fact in (
        ([], page, None, "no run"), ([model] * 27, page, None, "27 .* 26$"),
        (model, "r.pdf", None, r"r\.pdf .*\.html$"), ([model, model], page, None, f"^{model} "),
        (model, page, "r.svg", r"r\.svg.*\.png$"), (model, tmp_path / "no/r.html", None, "no "),
        (model, page, tmp_path / "no/r.png", "--png"), (made / "day.model", page, "r.png", "--png"),
    ):  # fmt: skip
        with pytest.raises((SettingsError, StoreError), match=fact):
            sbm.report(paths, output, png=png)
        page.unlink(missing_ok=True)  # there is a page of streams, but no picture
    monkeypatch.setattr(picture.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"r\.png .*matplotlib.*--png$"):
        sbm.report(model, page, png=tmp_path / "r.png")
    assert not page.exists()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_log_gives_a_page_or_a_refusal(made, tmp_path, data):
    name = data.draw(st.sampled_from(["sbm", "day"]))
    folder = tmp_path / "f.model.run"
    folder.mkdir(exist_ok=True)
    shutil.copy(made / f"{name}.model.run" / "run.json", folder)
    log = (made / f"{name}.model.run/log.jsonl").read_text()
    lines = [json.loads(line) for line in log.splitlines()]
    line = data.draw(st.sampled_from(lines))
    key = data.draw(st.sampled_from(sorted(line)))
    if isinstance(line[key], dict) and data.draw(st.booleans()):
        line = line[key]
        key = data.draw(st.sampled_from(sorted(line)))
    line[key] = data.draw(JSON)
    (folder / "log.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    with contextlib.suppress(StoreError):
        charts_of(to_html([read_run(folder)]))


# ----------------------------------------------------------------------------------------- the page


def test_names_are_escaped(made, copy):
    run = read_run(copy("sbm", to='"><img src=x onerror=alert(1)>'))
    chosen = {**run.settings, "class_weight": {"<b>": 1}, "</table>": "<i>"}
    named = dataclasses.replace(read_run(made / "sbm.model"), settings=chosen)
    page = to_html([run, named])
    for wrong in ("<script", "<img", '<b>"', "<b>:", '</table>"', "<i>", "<!--"):
        assert wrong not in page, wrong
    assert "&lt;script&gt;alert(1)&amp;" in page
    assert "http" not in re.sub(r'http-equiv="[^"]*"', "", page)  # nothing is loaded
    ids = re.findall(r' id="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    charts_of(page)


def test_tables_match_the_figures(made):
    first, second = read_run(made / "sbm.model"), read_run(made / "plain.model")
    page = to_html([first, second])
    marked = re.findall(r'<tr class="differs"><th scope="row">≠ ([a-z-]+)</th>(.*?)</tr>', page)
    assert {name for name, _ in marked} == {"cache-frac", "policy", "max-passes", "tol"}
    assert re.findall("<td>(.*?)</td>", dict(marked)["max-passes"]) == ["20", "3"]
    assert 'class="differs"' not in to_html([first])
    assert "plain had no cache" in re.sub(r"<[^>]*>", "", page)
    rows = rows_of(page)
    for run in (first, second):
        for one in run.passes:
            (row,) = (r for r in rows if r[:4] == [
                f"{one.number}", f"{one.rounds}", f"{one.elapsed:.2f}", f"{one.dual:.8g}"
            ])  # fmt: skip
            assert row[6].split("\N{NO-BREAK SPACE}")[0] == f"{one.accuracy_percent:.3f}"
            assert row[7:10] == [f"{one.seconds[k]:.3f}" for k in ("solve", "wait", "load")]
            assert row[13:16] == [f"{one.cached:,}", f"{one.free:,}", f"{one.zero:,}"]
    named = {row[0]: row[1:] for row in rows if len(row) == 3}
    assert named["dual"] == [f"{run.certificate['dual']:.8g}" for run in (first, second)]
    assert named["converged"] == ["yes", "no"]
    assert (named["class-weight"], named["mem"]) == (["–"] * 2, ["400 MB"] * 2)
    assert named["passes"] == [str(len(first.passes)), "3"]
    assert named["support vectors"] == [f"{run.end['n_support']:,}" for run in (first, second)]


def tick_value(tick: ET.Element) -> float:
    """Read a tick: 12,500, or 10 to a power."""
    power = tick.find(f"{SVG}tspan")
    if power is not None:
        return float(10.0 ** int(power.text.replace("−", "-")))
    return float(tick.text.replace(",", ""))


def ticks_of(chart: ET.Element, anchor: str, at: str) -> list[tuple[float, float]]:
    ticks = [t for t in chart.iter(f"{SVG}text") if t.get("class") == "tick"]
    return [(tick_value(t), float(t.get(at))) for t in ticks if t.get("text-anchor") == anchor]


def place_between(ticks: list[tuple[float, float]], value: float) -> float:
    """Where a value is, if the first and the last tick are right and all is even."""
    (a, at_a), (b, at_b) = ticks[0], ticks[-1]
    return at_a + (value - a) / (b - a) * (at_b - at_a)


def test_points_are_where_ticks_say(made):
    run = read_run(made / "sbm.model")
    charts = charts_of(to_html([run]))
    for name, of in (
        ("gap-passes", lambda one: (one.number, np.log10(one.relative_gap))),
        ("objective-time", lambda one: (one.elapsed, one.dual)),
        ("accuracy-bytes", lambda one: (one.bytes_read / 1e6, 100 * one.accuracy)),
    ):
        chart = charts[name]
        line = chart.find(f"{SVG}polyline").get("points").split()
        points = [tuple(map(float, point.split(","))) for point in line]
        xs, ys = ticks_of(chart, "middle", "x"), ticks_of(chart, "end", "y")
        if name.startswith("gap"):
            ys = [(np.log10(value), y) for value, y in ys]
        for one, (x, y) in zip(run.passes, points, strict=True):
            assert x == pytest.approx(place_between(xs, of(one)[0]), abs=0.02)
            assert y + 4.5 == pytest.approx(place_between(ys, of(one)[1]), abs=0.02)
        hollow = [m for m in chart.iter(f"{SVG}path") if "hollow" in m.get("class")]
        certified = sum(one.certificate is not None for one in run.passes)
        assert len(hollow) == (0 if name.startswith("accuracy") else certified)


@pytest.mark.parametrize(
    ("chart", "kind", "of"),
    [
        ("cache-0", "k1", lambda one: one.free), ("cache-0", "k3", lambda one: one.zero),
        ("cache-0", "k2", lambda one: one.cached - one.free - one.zero),
        ("age-0", "k1", lambda one: one.ages[0]), ("age-0", "k2", lambda one: sum(one.ages[1:2])),
        ("age-0", "k4", lambda one: sum(one.ages[4:])),
        ("time-0", "solve", lambda one: one.seconds["solve"]),
        ("time-0", "load", lambda one: one.seconds["load"]),
        ("time-0", "rest", lambda one: 1 - sum(one.seconds[k] for k in SECONDS)),
    ],
)  # fmt: skip
def test_bars_are_as_high_as_figures(made, chart, kind, of):
    run = read_run(made / "sbm.model")
    passes = [
        dataclasses.replace(one, elapsed=k + 1.0, seconds=dict.fromkeys(one.seconds, 0.1 + k / 100))
        for k, one in enumerate(run.passes)
    ]
    drawn = charts_of(to_html([dataclasses.replace(run, passes=passes)]))[chart]
    bars = [b for b in drawn.iter(f"{SVG}rect") if b.get("fill") == f"url(#p-{kind})"]
    ticks = ticks_of(drawn, "end", "y")
    unit = place_between(ticks, 0) - place_between(ticks, 1)
    expected = [of(one) * unit for one in passes if of(one)]
    assert [float(b.get("height")) for b in bars] == pytest.approx(expected, abs=0.02)


def test_many_passes_share_bars_and_markers(made):
    run = read_run(made / "sbm.model")
    many = [dataclasses.replace(run.passes[0], number=k + 1, elapsed=k + 1.0) for k in range(95)]
    charts = charts_of(to_html([dataclasses.replace(run, passes=many)]))
    labels = [t.text for t in charts["time-0"].iter(f"{SVG}text") if t.text and "–" in t.text]
    assert labels[0] == "1–3"
    assert 60 < len(charts["cache-0"].findall(f"{SVG}rect")) <= 3 * 40
    assert 20 < len(charts["gap-time"].findall(f"{SVG}path[@class='m c0 full']")) <= 40


# -------------------------------------------------------------------------------------- the command


def test_command_writes_page_and_picture(made, tmp_path, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    odd = shutil.copytree(made / "plain.model.run", tmp_path / "b$\\frac^語.run")
    names = [str(made / "sbm.model"), odd.name]
    with pytest.raises(SystemExit) as end:
        main(["report", *names, "--png", "r.png"])
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (0, "report.html and r.png\n")
    (warning,) = err.splitlines()
    assert warning.startswith("b$\\frac^語: ")
    assert (tmp_path / "r.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    with pytest.raises(SystemExit):
        main(["report", names[0], "-o", "b.html", "--json"])
    told = json.loads(capsys.readouterr().out)
    (run,) = told["runs"]
    other = shutil.copytree(made / "plain.model.run", tmp_path / "sbm.model.run")
    both = sbm.report([names[0], other], tmp_path / "r.html")["runs"]
    assert [one["name"] for one in both] == [names[0], str(other)]  # of one name: by place
    assert told["output"] == "b.html"
    assert (run["kind"], run["finished"], run["warnings"]) == ("train", True, [])
    assert run["relative_gap"] <= 1e-3
    assert (tmp_path / "b.html").read_bytes().startswith(b"<!doctype html>")
