"""The report page in a real browser: charts draw, and nothing is wider than a phone."""

import json
import re
import shutil
from pathlib import Path

import pytest
from processes import finished

import sbm

SAMPLE = Path(__file__).resolve().parent.parent / "data" / "sample.svm"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip
PROBE = """<script>
const charts = [...document.querySelectorAll("svg.chart")].filter(e => e.getClientRects().length);
const seen = {
  width: innerWidth, scroll: document.documentElement.scrollWidth,
  charts: Object.fromEntries(charts.map(e => [e.id, {
    wide: e.getBoundingClientRect().width,
    lines: [...e.querySelectorAll("polyline,rect.bar")].map(x => x.getBBox().width),
    out: [...e.querySelectorAll("text")].filter(t => {
      const a = t.getBoundingClientRect(), b = e.getBoundingClientRect();
      return a.left < b.left - 8 || a.right > b.right + 8 || a.bottom > b.bottom + 2;
    }).map(t => t.textContent),
  }])),
};
parent.postMessage(JSON.stringify(seen), "*");
</script></body>"""
FRAME = """<body style="margin:0"><pre id="seen"></pre><script>addEventListener("message", e => {{
document.getElementById("seen").textContent = e.data; }});</script>
<iframe src="probed.html" style="border:0;width:{}px;height:3000px"></iframe></body>"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.process,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("page")
    sbm.split(SAMPLE, folder / "a.sbm", blocks=3)
    names = ["sbm.model", "a-name-without-any-place-to-break-" * 3 + ".model"]
    for name, more in zip(names, ({}, {"cache_frac": 0.0}), strict=True):
        settings = {"max_passes": 6, "tol": 1e-4, "validate": SAMPLE, **more}
        sbm.train(folder / "a.sbm", folder / name, settings)
    sbm.report([folder / name for name in names], folder / "report.html")
    return (folder / "report.html").read_text("utf-8")


@pytest.mark.parametrize("width", [380, 1280])
def test_charts_draw_and_fit_the_screen(page, tmp_path, width):
    """Browsers have no windows as narrow as a phone, so the page is in a frame."""
    assert page.count("<script") == 0
    text = re.sub("<meta http-equiv[^>]*>", "", page).replace("</body>", PROBE)
    (tmp_path / "probed.html").write_text(text, "utf-8")
    (tmp_path / "frame.html").write_text(FRAME.format(width))
    options = (f"--user-data-dir={tmp_path}/profile", "--virtual-time-budget=3000", "--dump-dom")
    line = [CHROMIUM, *OPTIONS, *options, (tmp_path / "frame.html").as_uri()]
    found = re.search(r'<pre id="seen">(.+?)</pre>', finished(line, check=True).stdout, re.DOTALL)
    seen = json.loads(found[1])
    assert seen["scroll"] <= seen["width"] == width
    assert {"objective-time", "gap-time", "accuracy-time", "times-0"} <= set(seen["charts"])
    assert "gap-passes" not in seen["charts"]  # behind another button
    wide = [chart["wide"] for chart in seen["charts"].values()]
    assert max(wide) - min(wide) < 1  # so that their labels have the same size
    for name, chart in seen["charts"].items():
        assert 250 < chart["wide"] <= width, name
        assert chart["out"] == [], name
        assert max(chart["lines"]) > 20, name
