"""scripts/data/fetch.py with a local server: complete, unpacked, retried and refused files."""

import bz2
import contextlib
import hashlib
import lzma
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from helpers import SCRIPTS, load_script

ROOT = SCRIPTS.parent
TEXT = b"".join(b"%+d %d:0.5 %d:1.25\n" % ((-1) ** i, i + 1, i + 9) for i in range(9000))
script = load_script("data.fetch")


@dataclass
class Site:
    """Files of the server, and the number of requests."""

    files: dict[str, bytes] = field(default_factory=dict)
    cut: int = 0  # requests whose body ends early
    status: int | None = None  # answer everything with this
    asked: int = 0
    url: str = ""


class Handler(BaseHTTPRequestHandler):
    site: Site

    def log_message(self, *_):
        pass

    def do_GET(self):
        site, content = self.site, self.site.files.get(self.path)
        site.asked += 1
        if site.status or content is None:
            self.send_error(site.status or 404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(content[: len(content) // 2] if site.asked <= site.cut else content)


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
    monkeypatch.setattr(script, "PAUSE", 0.0)

    def run(*words, ending="", sha256=None):
        path = f"binary/one{ending}"
        monkeypatch.setattr(script, "SETS", (script.DataSet("one", (path,)),))
        monkeypatch.setattr(script, "CHECKSUMS", {path: sha256} if sha256 else {})
        where = ["--folder", str(tmp_path), "--base-url", site.url]
        return script.main([*where, *words, "one"]), *capsys.readouterr()

    return run


def names(folder):
    return sorted(path.name for path in folder.iterdir())


PACK = {
    "": bytes, ".xz": lzma.compress,
    ".bz2": lambda text: bz2.compress(text[:99]) + bz2.compress(text[99:]),
}  # fmt: skip


@pytest.mark.parametrize("ending", PACK)
def test_file_is_unpacked_once_and_verified(fetch, site, tmp_path, ending):
    packed = site.files[f"/binary/one{ending}"] = PACK[ending](TEXT)
    digest = hashlib.sha256(packed).hexdigest()
    code, out, _ = fetch(ending=ending)
    assert (code, digest in out) == (0, True)
    assert (tmp_path / "one").read_bytes() == TEXT
    assert names(tmp_path) == ["one"]
    assert fetch(ending=ending)[0] == 0
    assert site.asked == 1
    (tmp_path / "one").unlink()
    assert fetch("--keep-archive", ending=ending, sha256=digest)[0] == 0
    assert names(tmp_path) == sorted({"one", f"one{ending}"})


@pytest.mark.parametrize(("cut", "code"), [(2, 0), (3, 1)])
def test_interrupted_download_is_retried(fetch, site, tmp_path, cut, code):
    site.cut = cut
    assert fetch()[0] == code
    assert (site.asked, names(tmp_path)) == (3, [] if code else ["one"])


@pytest.mark.parametrize(("facts", "known", "words", "code", "fact"), [
    ({}, {"sha256": "0" * 64}, [], 1, "0" * 64), ({"status": 404}, {}, [], 1, "HTTP 404"),
    ({"status": 503}, {}, [], 1, "HTTP 503"), ({}, {"ending": ".xz"}, [], 1, "one.xz: damaged"),
    ({}, {}, ["--base-url", "http://127.0.0.1:1"], 1, "--base-url"),
    ({}, {}, ["--folder", __file__], 1, __file__),
])  # fmt: skip
def test_refused_download_leaves_nothing(fetch, site, tmp_path, facts, known, words, code, fact):
    vars(site).update(facts, files={"/binary/one": TEXT, "/binary/one.xz": TEXT})
    found, _, err = fetch(*words, **known)
    assert (found, fact in err) == (code, True), err
    assert names(tmp_path) == []


def test_data_table_matches_readme():
    text = (ROOT / "data/README.md").read_text()
    rows = re.findall(r"^\| ([\w.-]+)", text, re.MULTILINE)
    assert rows == ["name", *(entry.name for entry in script.SETS)]


def test_readme_shows_sample_command(tmp_path, monkeypatch):
    text = (ROOT / "data/README.md").read_text()
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1], {})
    assert Path("data/sample.svm").read_bytes() == (ROOT / "data/sample.svm").read_bytes()
