"""scripts/data/fetch.py against a server of our own: whole, resumed, unpacked and refused files."""

import bz2
import contextlib
import gzip
import hashlib
import lzma
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import zstandard
from helpers import SCRIPTS, load_script

ROOT = SCRIPTS.parent
TEXT = b"".join(b"%+d %d:0.5 %d:1.25\n" % ((-1) ** i, i + 1, i + 9) for i in range(9000))
HALF = len(TEXT) // 2
script = load_script("data.fetch")


@dataclass
class Site:
    """What the server offers, how it misbehaves, and what it saw."""

    files: dict[str, bytes] = field(default_factory=dict)
    ranges: bool = True  # honour Range
    etag: str = '"{}"'
    cut_after: int | None = None  # bytes of a body after which the connection ends
    status: int | None = None  # answer everything with this
    asked: list[str | None] = field(default_factory=list)  # Range of each request
    sent: list[int] = field(default_factory=list)  # bytes of each body that left
    url: str = ""


class Handler(BaseHTTPRequestHandler):
    site: Site

    def log_message(self, *_):
        pass

    def do_GET(self):
        site, content = self.site, self.site.files.get(self.path)
        site.asked.append(self.headers["Range"])
        if site.status or content is None:
            self.send_error(site.status or 404)
            return
        etag = site.etag.format(hashlib.sha256(content).hexdigest()[:12])
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
        start = 0
        if wanted and site.ranges and self.headers["If-Range"] in (etag, None):
            start = int(wanted[1])
            self.send_response(206 if start < len(content) else 416)
            last = f"{start}-{len(content) - 1}" if start < len(content) else "*"
            self.send_header("Content-Range", f"bytes {last}/{len(content)}")
        else:
            self.send_response(200)
        body = content[start:]
        part = body[: site.cut_after]
        self.send_header("ETag", etag)
        self.send_header("Content-Length", str(len(body)))
        site.sent.append(len(body[: site.cut_after]))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(part)


@pytest.fixture
def site(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    site = Site(files={"/binary/one": TEXT})
    handler = type("SiteHandler", (Handler,), {"site": site})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        site.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield site
        server.shutdown()


@pytest.fixture
def fetch(site, tmp_path, capsys, monkeypatch):
    """Fetch the file of a table that has one; return exit code, output and errors."""

    def run(*words, ending="", **known):
        source = script.Source(f"binary/one{ending}", "one", **known)
        monkeypatch.setattr(script, "SETS", (script.DataSet("one", (source,)),))
        where = ["--folder", str(tmp_path), "--base-url", site.url]
        return script.main([*where, *words, "one"]), *capsys.readouterr()

    return run


def names(folder):
    return sorted(path.name for path in folder.iterdir())


PACK = {
    "": bytes, ".gz": gzip.compress, ".xz": lzma.compress,
    ".bz2": lambda text: bz2.compress(text[:99]) + bz2.compress(text[99:]),
    ".zst": lambda text: zstandard.compress(text[:99]) + zstandard.compress(text[99:]),
}  # fmt: skip


@pytest.mark.parametrize("ending", PACK)
def test_file_is_unpacked_once_and_verified(fetch, site, tmp_path, ending):
    site.files = {f"/binary/one{ending}": PACK[ending](TEXT)}
    code, out, _ = fetch(ending=ending)
    assert code == 0
    assert hashlib.sha256(PACK[ending](TEXT)).hexdigest() in out
    assert (tmp_path / "one").read_bytes() == TEXT
    assert names(tmp_path) == ["one"]
    assert fetch(ending=ending)[0] == 0
    assert len(site.asked) == 1


@pytest.mark.parametrize(("facts", "again"), [
    ({}, len(TEXT) - HALF),  ({"ranges": False}, len(TEXT)), ({"etag": 'W/"{}"'}, len(TEXT)),
])  # fmt: skip
def test_cut_download_resumes_if_the_server_can(fetch, site, tmp_path, facts, again):
    vars(site).update(facts, cut_after=HALF)
    code, _, err = fetch()
    assert (code, f"{HALF:,}" in err) == (1, True)
    assert names(tmp_path) == ["one.part", "one.part.json"]
    site.status, site.cut_after = 503, None
    assert fetch()[0] == 1
    site.status = None
    assert fetch(sha256=hashlib.sha256(TEXT).hexdigest(), size=len(TEXT))[0] == 0
    assert site.sent == [HALF, again]
    assert (tmp_path / "one").read_bytes() == TEXT


def test_changed_file_is_downloaded_anew(fetch, site, tmp_path):
    site.cut_after = HALF
    fetch()
    site.cut_after = None
    site.files["/binary/one"] = TEXT.replace(b"0.5", b"0.7")
    assert fetch()[0] == 0
    assert (tmp_path / "one").read_bytes() == site.files["/binary/one"]


@pytest.mark.parametrize(("facts", "known", "words", "code", "fact"), [
    ({}, {"sha256": "0" * 64}, [], 1, "0" * 64), ({}, {"size": 12_345}, [], 1, "12,345"),
    ({"status": 404}, {}, [], 1, "HTTP 404"), ({}, {"ending": ".xz"}, [], 1, "one.xz: damaged"),
    ({}, {}, ["--base-url", "http://127.0.0.1:1"], 1, "--base-url"),
    ({}, {}, ["--folder", __file__], 1, "--folder"), ({}, {}, ["ones"], 2, "'ones'"),
])  # fmt: skip
def test_refused_download_leaves_nothing(fetch, site, tmp_path, facts, known, words, code, fact):
    vars(site).update(facts, files={"/binary/one": TEXT, "/binary/one.xz": TEXT})
    found, _, err = fetch(*words, **known)
    assert (found, fact in err) == (code, True), err
    assert names(tmp_path) == []


def test_table_is_that_of_the_readme():
    sources = [source for entry in script.SETS for source in entry.sources]
    assert len({source.text for source in sources}) == len(sources)
    text = (ROOT / "data/README.md").read_text()
    rows = re.findall(r"^\| ([\w.-]+)", text, re.MULTILINE)
    assert rows == ["name", *(entry.name for entry in script.SETS)]


def test_readme_shows_what_makes_the_sample(tmp_path, monkeypatch):
    text = (ROOT / "data/README.md").read_text()
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], {})
    assert Path("data/sample.svm").read_bytes() == (ROOT / "data/sample.svm").read_bytes()
