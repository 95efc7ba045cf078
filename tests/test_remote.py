"""Remote inputs: a local server of HTTP with ranges and faults, and memory://."""

import gzip
import itertools
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from click.testing import CliRunner
from helpers import store_rows

import sbm
from sbm.cli import cli
from sbm.errors import DataError
from sbm.inputs import remote

fsspec = pytest.importorskip("fsspec", reason="needs the extra remote")
pytest.importorskip("aiohttp", reason="needs the extra remote")

RNG = np.random.default_rng(1)
TEXT = "".join(
    f"{1 if x[0] > 0 else -1} " + " ".join(f"{k + 1}:{v:.6f}" for k, v in enumerate(x)) + "\n"
    for x in RNG.normal(size=(3000, 5))
).encode()


class Server(ThreadingHTTPServer):
    """Serves files from memory. `faults` decides on each request for a range."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files, self.requests = {}, 0
        self.faults = lambda n: None
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def url(self, name, data):
        self.files[f"/{name}"] = data
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"

    def handle_error(self, *_):
        pass


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(False)

    def do_GET(self):
        self.answer(True)

    def answer(self, with_body):
        data = self.server.files.get(self.path.partition("?")[0])
        if data is None:
            self.send_error(404)
            return
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        fault = None
        if wanted and with_body:
            self.server.requests += 1
            fault = self.server.faults(self.server.requests)
        if fault == "busy":
            self.send_error(503)
            return
        first, last = map(int, wanted.groups()) if wanted else (0, len(data) - 1)
        body = data[first : last + 1]
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Accept-Ranges", "bytes")
        if wanted:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.end_headers()
        if with_body:
            self.wfile.write(body[: len(body) // 2] if fault == "drop" else body)
            if fault == "drop":
                self.connection.close()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(remote, "RANGE", 10_000)
    monkeypatch.setattr(remote, "_WAIT", 0.001)
    server = Server()
    yield server
    server.shutdown()
    server.server_close()


def rows(data, folder, **options):
    sbm.split(data, folder / "r.sbm", blocks=1, shuffle=False, force=True, **options)
    return store_rows(folder / "r.sbm")


@pytest.fixture
def local(tmp_path):
    (tmp_path / "a.svm").write_bytes(TEXT)
    return rows(tmp_path / "a.svm", tmp_path)


def test_faults_are_retried(server, tmp_path, local):
    for name, data in (("a.svm", TEXT), ("a.svm.gz", gzip.compress(TEXT))):
        url = server.url(name, data)
        for fault in ("drop", "busy"):
            server.requests = 0
            server.faults = lambda n, fault=fault: fault if n % 3 else None
            assert rows(url, tmp_path) == local
            assert server.requests >= 3 * (len(data) // 10_000)
    report = sbm.info(tmp_path / "r.sbm")
    assert report["sources"][0]["name"] == "a.svm.gz"
    with pytest.raises(DataError, match="already in"):
        sbm.split(url, tmp_path / "r.sbm", append=True)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_failing_url_leaves_nothing(server, tmp_path):
    url = server.url("a.svm", TEXT)
    server.faults = lambda n: "busy" if n > 2 else None
    with pytest.raises(DataError, match=rf"cannot read {url}: .*503.* \(after 6 tries\)"):
        sbm.split(url, tmp_path / "a.sbm")
    with pytest.raises(DataError, match=r"b\.svm: not found"):
        sbm.train(url.replace("a.svm", "b.svm"), tmp_path / "a.model")

    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]  # nothing will listen there
    with pytest.raises(DataError, match=r"Cannot connect .* \(after 6 tries\)"):
        sbm.split(f"http://127.0.0.1:{port}/a.svm", tmp_path / "a.sbm")

    def grow(n):
        if n == 3:
            server.files["/a.svm"] = TEXT + b"1 1:1\n"

    server.requests, server.faults = 0, grow
    with pytest.raises(DataError, match=r"changed while it was read: it had [\d,]+ bytes and now"):
        sbm.split(url, tmp_path / "a.sbm")
    server.files["/a.svm"] = TEXT
    cut = itertools.count()
    server.faults = lambda n: server.files.update({"/a.svm": TEXT[:25_000]}) if next(cut) else None
    with pytest.raises(DataError, match="changed while it was read"):
        sbm.split(url, tmp_path / "a.sbm")
    with pytest.raises(DataError, match=r"cannot read nosuch://"):
        sbm.split("nosuch://a/b.svm", tmp_path / "a.sbm")
    assert not list(tmp_path.iterdir())


def test_all_commands_read_urls(server, tmp_path, local, monkeypatch):
    url = server.url("big.svm", TEXT)
    line = f"train {url}?key=1 -o {tmp_path}/m.model --json"
    assert CliRunner().invoke(cli, line.split()).exit_code == 0
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(cli, ["train", url, "-q"]).exit_code == 0
    assert (tmp_path / "big.model").exists()
    assert sbm.predict(tmp_path / "m.model", url)["accuracy"] > 0.95
    model, report = sbm.stream(url, tmp_path / "s.model")
    assert report["rows"] == 3000
    other, _ = sbm.stream(tmp_path / "a.svm", tmp_path / "t.model")
    np.testing.assert_array_equal(model.W, other.W)


def test_memory_files_and_globs(tmp_path, local):
    fs = fsspec.filesystem("memory")
    half = TEXT.index(b"\n", len(TEXT) // 2) + 1
    fs.pipe({"/in/a-1.svm": TEXT[:half], "/in/a-2.svm": TEXT[half:]})
    assert rows("memory://in/a-*.svm", tmp_path) == local
    with pytest.raises(DataError, match="matches no files"):
        sbm.split("memory://in/b-*.svm", tmp_path / "b.sbm")
    pq = pytest.importorskip("pyarrow.parquet", reason="needs the extra arrow")
    import pyarrow as pa

    pq.write_table(pa.table({"a": [1, 2], "y": ["u", "v"]}), tmp_path / "t.parquet")
    fs.pipe("/in/t.parquet", (tmp_path / "t.parquet").read_bytes())
    assert rows("memory://in/t.parquet", tmp_path) == rows(tmp_path / "t.parquet", tmp_path)


def test_missing_fsspec_is_reported(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    with pytest.raises(DataError, match=r"https://x/a\.svm needs fsspec.*pip install"):
        sbm.split("https://x/a.svm", tmp_path / "a.sbm")
