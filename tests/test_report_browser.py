"""The page about runs in a real browser: charts draw, nothing is wider than a phone.

Pictures of it are left in ``.artefacts``, which git ignores.
"""

import json
import re
import shutil
from pathlib import Path

import pytest
from processes import finished

import sbm
from sbm.jobs.reporting.page import to_html
from sbm.jobs.reporting.runlog import read_run

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "data" / "sample.svm"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip

# What is measured: boxes of charts that are shown, of what is drawn in them, and of the page.
PROBE = """<script>
const box = e => { const b = e.getBBox(); return [b.width, b.height]; };
const charts = [...document.querySelectorAll("svg.chart")].filter(e => e.getClientRects().length);
const seen = {
  width: innerWidth, scroll: document.documentElement.scrollWidth,
  charts: Object.fromEntries(charts.map(e => [e.id, {
    box: box(e), wide: e.getBoundingClientRect().width,
    lines: [...e.querySelectorAll("polyline,rect.bar")].map(box),
    out: [...e.querySelectorAll("text")].filter(t => {
      const a = t.getBoundingClientRect(), b = e.getBoundingClientRect();
      return a.left < b.left - 8 || a.right > b.right + 8 || a.bottom > b.bottom + 2;
    }).map(t => t.textContent),
    size: Math.min(...[...e.querySelectorAll("text")].map(t =>
      parseFloat(getComputedStyle(t).fontSize) * e.getBoundingClientRect().width / 440)),
  }])),
  ground: getComputedStyle(document.body).backgroundColor,
  scripts: document.scripts.length,
};
(parent === window ? window : parent).postMessage(JSON.stringify(seen), "*");
</script>"""
NOTE = """<pre id="seen"></pre><script>addEventListener("message", e => {
document.getElementById("seen").textContent = e.data; });</script>"""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium to look with")


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    sbm.split(SAMPLE, folder / "a.sbm", blocks=3)
    common = {"mem": "400MB", "max_passes": 6, "tol": 1e-4}
    sbm.train(folder / "a.sbm", folder / "sbm.model", common, test=SAMPLE)
    bmd = {**common, "policy": "none", "cache_frac": 0.0}
    long_name = "a-name-without-any-place-to-break-" * 3
    sbm.train(folder / "a.sbm", folder / f"{long_name}.model", bmd, test=SAMPLE)
    names = ("sbm", long_name)
    path = folder / "report.html"
    path.write_text(to_html([read_run(folder / f"{name}.model") for name in names]), "utf-8")
    return path


def _browse(page: Path, tmp_path: Path, *options: str) -> str:
    done = finished(
        [CHROMIUM, *OPTIONS, f"--user-data-dir={tmp_path / 'profile'}", *options, page.as_uri()]
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _measure(page: Path, tmp_path: Path, width: int, *options: str) -> dict:
    """Open the page in a frame of so many pixels; browsers have no windows as narrow as a phone."""
    text = page.read_text("utf-8")
    assert text.count("<script") == 0
    text = re.sub("<meta http-equiv[^>]*>", "", text).replace("</body>", PROBE + "</body>")
    (tmp_path / "probed.html").write_text(text, "utf-8")
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<body style="margin:0">{NOTE}<iframe src="probed.html" style="border:0;width:{width}px;'
        'height:3000px"></iframe></body>'
    )
    dom = _browse(frame, tmp_path, *options, "--virtual-time-budget=3000", "--dump-dom")
    found = re.search(r'<pre id="seen">(.+?)</pre>', dom, re.DOTALL)
    assert found, dom[-2000:]
    return json.loads(found[1])


def _artefact(page: Path, tmp_path: Path, name: str, size: str, *options: str) -> Path:
    """Leave a picture of the page where a person finds it."""
    folder = ROOT / ".artefacts"
    folder.mkdir(exist_ok=True)
    (folder / ".gitignore").write_text("*\n")
    path = folder / name
    path.unlink(missing_ok=True)
    _browse(page, tmp_path, *options, f"--window-size={size}", f"--screenshot={path}")
    return path


@pytest.mark.parametrize("width", [380, 1200])
def test_charts_draw_and_nothing_sticks_out(page, tmp_path, width):
    seen = _measure(page, tmp_path, width)
    assert seen["width"] == width
    assert seen["scroll"] <= width
    assert seen["scripts"] == 1  # the one that looks
    shown = seen["charts"]
    assert {"objective-time", "gap-time", "accuracy-time", "time-0", "cache-0", "age-0"} <= set(
        shown
    )
    assert not {"gap-passes", "gap-bytes"} & set(shown)  # behind the other buttons
    for name, chart in shown.items():
        assert min(chart["box"]) > 50, name
        assert 250 < chart["wide"] <= width, name
        assert chart["out"] == [], name
        assert chart["size"] >= 7.5, name  # of raised exponents; others are larger
        assert chart["lines"], name
        assert any(w > 20 for w, _ in chart["lines"]), name
    narrow = max(chart["wide"] for chart in shown.values())
    assert narrow > 300 if width == 380 else narrow < 520  # one column, or two


def test_dark_is_dark_and_pictures_are_left(page, tmp_path):
    dark = "--blink-settings=preferredColorScheme=0"
    assert _measure(page, tmp_path, 800, dark)["ground"] == "rgb(18, 21, 27)"
    for name, size, *options in (
        ("report-desktop.png", "1200,3000"),
        ("report-dark.png", "1200,3000", dark),
        ("report-narrow.png", "500,3000"),
    ):
        path = _artefact(page, tmp_path, name, size, *options)
        assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
        assert path.stat().st_size > 20_000


def test_it_prints(page, tmp_path):
    pdf = tmp_path / "report.pdf"
    _browse(page, tmp_path, f"--print-to-pdf={pdf}", "--no-pdf-header-footer")
    data = pdf.read_bytes()
    assert data[:5] == b"%PDF-"
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", data)) <= 12
