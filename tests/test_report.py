"""The report page: its figures equal those of the logs, and hostile text is harmless."""

import contextlib
import dataclasses
import datetime
import html
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers import write_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inside import SECONDS, encode_record, first_charts, main, patch, read_run, to_html
from inside import reporting_page_module as module
from processes import finished

import sbm
from sbm.errors import SettingsError, StoreError

HOSTILE = "<script>alert(1)&\"'<!--.svm"


def write_data(path: Path, seed: int, n: int = 300) -> Path:
    random = np.random.default_rng(seed)
    X = np.float32(random.normal(size=(n, 20)) * (random.random((n, 20)) < 0.4))
    return write_rows(path, X, np.where(X[:, :4].sum(axis=1) + random.normal(size=n) > 0, 1, -1))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Trainings with a cache, without one and stopped, and a stream."""
    folder = tmp_path_factory.mktemp("made")
    text = write_data(folder / HOSTILE, 1)
    sbm.split(text, folder / "a.sbm", blocks=4)
    calls = iter(range(20))
    common = {"mem": "400MB", "max_passes": 20, "tol": 1e-3, "C": 0.5, "rounds": 2}
    plain = {**common, "cache_frac": 0.0, "max_passes": 3, "tol": 1e-9}
    cut = {"is_stopped": lambda: next(calls) >= 6}
    with pytest.MonkeyPatch.context() as context:
        for place in ("train", "training.training", "streaming.state"):  # not the shared one
            context.setattr(f"sbm.programs.{place}.peak_bytes", lambda: 123_000_000)
        # Scores that are all the same: the last pass is the best.
        patch(context, "PATIENCE", 99)
        easy = write_rows(folder / "easy.svm", np.outer([1, -1, 1], [3.0] * 4), [1, -1, 1])
        judged = {"validate": easy, "metric": "f1"}
        sbm.train(folder / "a.sbm", folder / "sbm.model", {**common, **judged, "cache_frac": 0.6})
        sbm.train(folder / "a.sbm", folder / "plain.model", {**plain, **judged})
        with pytest.raises(KeyboardInterrupt):
            sbm.train(folder / "a.sbm", folder / "cut.model", {**common, "tol": 1e-9}, **cut)
        sbm.stream([str(text)], folder / "day.model", {"mem": "300MB"})
    return folder


@pytest.fixture
def copy(made, tmp_path):
    """Copy a run with its log changed line by line."""

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


def charts_of(page: str) -> dict[str, str]:
    """Return the charts of a page by name."""
    found = re.findall(r'<svg class="chart" id="([^"]*)".*?</svg>', page, re.DOTALL)
    assert len(found) == len(set(found))
    texts = re.findall(r'<svg class="chart".*?</svg>', page, re.DOTALL)
    assert all(' role="img" aria-label="' in text for text in texts)
    assert not any(re.search('[" ](nan|inf)[" ,]', text) for text in texts)
    return dict(zip(found, texts, strict=True))


def rows_of(page: str) -> list[list[str]]:
    """Return the cells of all rows of all tables."""
    rows = re.findall("<tr.*?</tr>", page, re.DOTALL)
    return [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]


# ------------------------------------------------------------------------------------------ figures


def test_figures_equal_the_log(made):
    run, log = read_run(made / "sbm.model"), events(made / "sbm.model.run", "pass")
    (end,) = events(made / "sbm.model.run", "end")
    assert (run.name, run.kind, run.is_finished, run.processes) == ("sbm", "train", True, 1)
    assert len(run.passes) == len(log) == end["passes"] > 2
    for one, line in zip(run.passes, log, strict=True):
        assert (one.number, one.dual, one.elapsed) == (line["pass"], line["dual"], line["elapsed"])
        assert one.estimate == line["estimated_relative_gap"]
        assert (one.cached, one.free) == (line["cached_rows"], line["cached_free"])
        assert one.zero == line["cached_zero"]
        assert one.seconds == {name: line["seconds"][name] for name in (*SECONDS, "load")}
        assert (one.metric, one.score) == ("f1", line["validation"]["score"])
        assert (one.bytes_read, one.resident) == (line["bytes_read"], line["resident_bytes"])
    assert run.certificate["relative_gap"] == end["relative_gap"] <= 1e-3
    assert (run.peak, run.mem) == (end["peak_rss_bytes"], 400_000_000)
    assert [source["name"] for source in run.sources] == [HOSTILE]
    assert run.warnings() == []
    assert read_run(made / "sbm.model.run") == run


def test_stream_figures_equal_the_log(made, copy):
    run = read_run(made / "day.model")
    (end,) = events(made / "day.model.run", "end")
    last = run.blocks[-1]
    assert (run.kind, run.is_finished) == ("stream", True)
    assert (last.rows, last.loss, last.accuracy) == (
        end["rows"],
        end["loss"],
        100 * end["accuracy"],
    )
    page = to_html([run])
    assert {"loss-rows", "right-time"} <= set(charts_of(page))
    cells = [f"{last.rows:,}", f"{last.elapsed:.2f}", f"{last.loss:.6f}"]
    assert cells in [row[:3] for row in rows_of(page)]
    folder = copy("day")  # resumed twice: seconds add up
    (line, *_) = events(folder, "block")
    lines = [{**line, "rows": k, "elapsed": t} for k, t in ((1, 3), (2, 4), (3, 1), (4, 2), (5, 1))]
    (folder / "log.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    assert [block.elapsed for block in read_run(folder).blocks] == [3, 4, 5, 6, 7]


def test_page_names_version_dates_and_commands(made, tmp_path, monkeypatch):
    run = read_run(made / "plain.model")
    page = to_html([run])
    words = shlex.split(html.unescape(re.search("<code>(sbm train .*)</code>", page)[1]))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):  # the command on the page repeats the run
        main(words[1:])
    again = read_run("plain.model")
    assert (again.settings, again.certificate) == (run.settings, run.certificate)
    day = datetime.datetime.fromtimestamp(run.changed, datetime.UTC)
    assert f"{day:%Y-%m-%d %H:%M} UTC <code>sbm" in page
    assert f"<code>sbm report</code> {sbm.__version__} on 20" in page


def test_warnings_name_the_problem(made, copy, tmp_path):
    (warning,) = read_run(made / "plain.model").warnings()
    assert "1e-09" in warning
    assert "did not converge" in warning
    reached = {"validation": {"ended_by": "tol"}}  # with an earlier pass as the best
    best = read_run(copy("plain", lambda one: {**one, **reached} if "primal" in one else one, "b"))
    assert best.warnings() == []
    assert "best pass by --validate" in to_html([best])
    cut = read_run(made / "cut.model")
    assert not cut.is_finished
    assert cut.sources == []
    assert cut.peak == max(one.resident for one in cut.passes)
    page = to_html([cut])
    assert "<li>The run is not finished. " in page
    assert "<strong>not finished</strong>" in page
    end = {"peak_rss_bytes": 10**9, "visits_cut_short": 3}
    odd = read_run(copy("sbm", lambda line: {**line, **end} if line["event"] == "end" else line))
    visits, memory = odd.warnings()
    assert "--mem" in visits
    assert "1 GB" in memory
    for rank in range(2):
        shutil.copytree(made / "sbm.model.run", tmp_path / f"m.model.run/rank-{rank}-of-2")
    several = read_run(tmp_path / "m.model.run")
    assert several.processes == 2
    assert "2 ranks" in several.warnings()[0]


def test_incomplete_last_line_is_ignored(made, copy):
    folder = copy("sbm")
    with open(folder / "log.jsonl", "a") as file:
        file.write('{"event": "pass", "pa')
    assert read_run(folder).passes == read_run(made / "sbm.model").passes
    (folder / "log.jsonl").unlink()
    run = read_run(folder)
    assert run.passes == []
    assert run.certificate["relative_gap"] <= 1e-3
    assert set(charts_of(to_html([run]))) == {"roc", "pr"}  # from the checkpoint


# ----------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("name", "value", "fact"),
    [
        ("dual", "<b>", "dual is <b>"), ("dual", 10**400, "dual is 1000"), ("pass", -1, "is -1"),
        ("dual", 2e300, "dual is 2e"), ("cached_rows", 1.5, "cached_rows is 1.5"),
        ("cached_rows", True, "cached_rows is True"), ("elapsed", -1.0, "elapsed is -1"),
        ("seconds", None, ""), ("validation", {"score": True}, "score is True"),
        ("validation", 3, "int"),
        ("certificate", {"primal": 1}, "dual"),
    ],
)  # fmt: skip
def test_damaged_line_is_named(copy, name, value, fact):
    folder = copy("sbm", lambda line: {**line, name: value} if line.get("pass") == 2 else line)
    with pytest.raises(StoreError, match=f"^{folder}/log.jsonl: line 2 is damaged .*{fact}"):
        read_run(folder)
    for line in ("[]", "{", '{"event": 3}', '{"a": 1, "a": 2}'):
        (folder / "log.jsonl").write_text(line + "\n")
        with pytest.raises(StoreError, match=r"log.jsonl: line 1 is damaged"):
            read_run(folder)


def test_other_files_are_not_runs(made, tmp_path):
    (tmp_path / "empty").mkdir()
    alone = shutil.copy(made / "sbm.model", tmp_path / "alone.model")
    tuned = shutil.copytree(made / "sbm.model.run", tmp_path / "t.tune.run")
    record = json.loads((tuned / "run.json").read_text())
    (tuned / "run.json").write_bytes(encode_record("run", {**record["run"], "kind": "tune"}))
    for path, fact in (
        (made / "a.sbm", "store"), (tmp_path / "empty", "run.json"), (tuned, "sbm.tune"),
        (alone, "alone.model.run"), (tmp_path / "none", "does not exist"),
    ):  # fmt: skip
        with pytest.raises(StoreError, match=f"^{path} .*{fact}"):
            sbm.report(path, tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_bad_outputs_are_refused(made, tmp_path, monkeypatch):
    model, page = made / "sbm.model", tmp_path / "r.html"
    for paths, output, png, fact in (
        ([], page, None, "no run"), ([model] * 27, page, None, "27 .* 26$"),
        (model, "r.pdf", None, r"r\.pdf.*\.html$"), ([model, model], page, None, f"^{model} "),
        (model, page, "r.svg", r"r\.svg.*\.png$"), (model, tmp_path / "no/r.html", None, "output="),
        (model, page, tmp_path / "no/r.png", "with png"),
    ):  # fmt: skip
        with pytest.raises((SettingsError, StoreError), match=fact):
            sbm.report(paths, output, png=png)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"r\.png .*matplotlib.* png$"):
        sbm.report(model, page, png=tmp_path / "r.png")
    assert not page.exists()


def test_only_reports_are_overwritten(made, tmp_path):
    page = tmp_path / "r.html"
    page.write_text("<!doctype html>\n<p>Notes</p>\n")
    with pytest.raises(StoreError, match=f"^{page} exists and is not a report of sbm.* output=..."):
        sbm.report(made / "sbm.model", page)
    assert "Notes" in page.read_text()
    page.unlink()
    sbm.report(made / "sbm.model", page)
    sbm.report(made / "plain.model", page)
    assert "<h1>Report of plain</h1>" in page.read_text("utf-8")
    sbm.report([made / "sbm.model", made / "plain.model"], page)
    assert "<title>sbm: Comparison of sbm and plain</title>" in page.read_text("utf-8")
    data = tmp_path / "data.csv"
    data.write_text("1,2\n")
    with pytest.raises(SettingsError, match=r"data\.csv"):
        sbm.report(made / "sbm.model", data)
    assert data.read_text() == "1,2\n"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=4,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_log_gives_a_page_or_an_error(made, tmp_path, data):
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
    page = to_html([run, named]).replace("<!-- sbm report -->", "", 1)
    for wrong in ("<script", "<img", '<b>"', "<b>:", '</table>"', "<i>", "<!--"):
        assert wrong not in page, wrong
    assert "&lt;script&gt;alert(1)&amp;" in page
    assert "http" not in re.sub(r'http-equiv="[^"]*"', "", page)  # nothing is loaded
    ids = re.findall(r' id="([^"]*)"', page)
    assert len(ids) == len(set(ids))


def test_tables_equal_the_figures(made):
    first, second = read_run(made / "sbm.model"), read_run(made / "plain.model")
    page = to_html([first, second])
    marked = re.findall(r'<tr class="differs"><th scope="row">≠ ([a-z-]+)</th>(.*?)</tr>', page)
    assert {name for name, _ in marked} == {"cache-frac", "max-passes", "tol"}
    assert re.findall("<td>(.*?)</td>", dict(marked)["max-passes"]) == ["20", "3"]
    assert 'class="differs"' not in to_html([first])
    assert "plain: empty." in page
    rows = rows_of(page)
    for run in (first, second):
        for one in run.passes:
            (row,) = (r for r in rows if r[:5] == [
                f"{one.number}", one.solver, f"{one.rounds}", f"{one.elapsed:.2f}",
                f"{one.dual:.8g}",
            ])  # fmt: skip
            assert row[7] == f"{one.score:.6g}"
            assert row[8:14] == [f"{one.seconds[k]:.3f}" for k in (*SECONDS, "load")]
            assert row[15:18] == [f"{one.cached:,}", f"{one.free:,}", f"{one.zero:,}"]
    named = {row[0]: row[1:] for row in rows if len(row) == 3}
    assert named["dual"] == [f"{run.certificate['dual']:.8g}" for run in (first, second)]
    assert named["converged"] == ["yes", "no"]
    assert (named["class-weight"], named["mem"]) == (["–"] * 2, ["400 MB"] * 2)
    assert named["passes"] == [str(len(first.passes)), "3"]
    assert named["support vectors"] == [f"{run.end['n_support']:,.0f}" for run in (first, second)]
    assert ["sbm", "123 MB", "400 MB"] in [row[:3] for row in rows]
    assert page.count('<meter min="0" max="400000000" value="123000000"') == 2


def test_charts_hold_the_figures(made):
    run = read_run(made / "sbm.model")
    gap, objective, accuracy = first_charts([run])
    assert gap.level == (1e-3, "tolerance 0.001")
    for chart, of in ((gap, "relative_gap"), (objective, "dual"), (accuracy, "score")):
        assert list(chart.series[0].points) == [
            (one.elapsed, getattr(one, of)) for one in run.passes
        ]
    for chart, of in ((gap, "certified_gap"), (objective, "primal")):
        points = [(one.elapsed, getattr(one, of)) for one in run.passes if one.certificate]
        assert (chart.series[1].style, list(chart.series[1].points)) == ("hollow", points)
    loss, right = first_charts([read_run(made / "day.model")])
    (block,) = read_run(made / "day.model").blocks[-1:]
    assert (loss.series[0].points[-1], right.series[0].points[-1]) == (
        (block.rows, block.loss), (block.rows, block.accuracy)
    )  # fmt: skip
    shown = charts_of(to_html([run, read_run(made / "plain.model")]))
    names = {f"{what}-{axis}" for what in ("gap", "objective", "f1")
             for axis in ("time", "passes", "bytes")}  # fmt: skip
    assert set(shown) == names | {"roc", "pr", "times-0", "times-1", "caches-0"}
    assert shown["gap-passes"].count("<polyline ") == 2


def test_bars_hold_the_figures(made):
    run = read_run(made / "sbm.model")
    passes = [
        dataclasses.replace(one, elapsed=k + 1.0, seconds=dict.fromkeys(one.seconds, 0.1))
        for k, one in enumerate(run.passes)
    ]
    parts = module._time_parts(dataclasses.replace(run, passes=passes))
    expected = [[pytest.approx(0.1)] * len(passes)] * 5 + [[pytest.approx(0.5)] * len(passes)]
    assert list(parts.values()) == expected
    for one, bar in zip(
        run.passes, zip(*module._cache_parts(run).values(), strict=True), strict=True
    ):
        assert bar == (one.free, one.cached - one.free - one.zero, one.zero)
    many = [dataclasses.replace(passes[0], number=k + 1, elapsed=k + 1.0) for k in range(95)]
    grouped = dataclasses.replace(run, passes=many)
    assert module._time_parts(grouped)["solve"][0] == pytest.approx(0.3)
    assert ">1–3</text>" in charts_of(to_html([grouped]))["times-0"]


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
    assert [one["name"] for one in both] == [names[0], str(other)]  # same name: named by path
    assert told["output"] == "b.html"
    assert (run["kind"], run["finished"], run["warnings"]) == ("train", True, [])
    assert run["relative_gap"] <= 1e-3
    assert (tmp_path / "b.html").read_bytes().startswith(b"<!doctype html>")


@pytest.mark.process
def test_other_commands_import_neither_jinja2_nor_matplotlib():
    jobs = "train, stream, tune, predict, info, plan, split, export"
    found = "[name in sys.modules for name in ('jinja2', 'matplotlib')]"
    code = f"import sys; from sbm import {jobs}; print({found})"
    assert finished([sys.executable, "-c", code], check=True).stdout == "[False, False]\n"
