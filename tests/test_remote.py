"""Remote inputs: a local server of HTTP whose answers are scripted, and memory://."""

import gzip
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from helpers import Passes, store_rows
from inside import cli, default_store, patch
from inside import inputs_remote_module as remote
from processes import started, wait_until

import sbm
from sbm.errors import DataError, SettingsError

fsspec = pytest.importorskip("fsspec", reason="needs the extra remote")
pytest.importorskip("aiohttp", reason="needs the extra remote")

RNG = np.random.default_rng(1)
TEXT = "".join(
    f"{1 if x[0] > 0 else -1} " + " ".join(f"{k + 1}:{v:.6f}" for k, v in enumerate(x)) + "\n"
    for x in RNG.normal(size=(1000, 5))
).encode()
RANGE = 10_000  # bytes, instead of 4 MB
HUGE = 100_000_000  # bytes that a server would send


@dataclass(frozen=True)
class Answer:
    """An answer to a request; the usual one is that of a server with ranges."""

    status: int
    headers: dict[str, Any]
    body: Iterable[bytes]
    hangs: bool = False  # stays silent after the body, or before the headers if there are none
    breaks: bool = False  # closes the connection after half of the body

    def with_headers(self, **headers: Any) -> "Answer":
        """Set headers, or remove those that are None."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        merged = self.headers | named
        return replace(self, headers={k: v for k, v in merged.items() if v is not None})


def usual(data: bytes, wanted: tuple[int, int] | None) -> Answer:
    size = len(data)
    if wanted is None:
        return Answer(200, {"Content-Length": size}, [data])
    first, last = wanted[0], min(wanted[1], size - 1)
    if first > last:
        return Answer(416, {"Content-Range": f"bytes */{size}", "Content-Length": 5}, [b"wrong"])
    found = {"Content-Range": f"bytes {first}-{last}/{size}", "Content-Length": last - first + 1}
    return Answer(206, found, [data[first : last + 1]])


def whole(answer: Answer, data: bytes = TEXT) -> Answer:
    return replace(usual(data, None), hangs=answer.hangs, breaks=answer.breaks)


class Server(ThreadingHTTPServer):
    """Serves files from memory. `script` may change the answer to the n-th GET."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.requests = self.sent = self.silent = 0
        self.script: Any = lambda n, answer: answer
        self.released = threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def url(self, name: str, data: bytes = TEXT) -> str:
        self.files[f"/{name}"] = data
        self.requests = self.sent = self.silent = 0
        return f"http://127.0.0.1:{self.server_address[1]}/{name}"

    def handle_error(self, *_: Any) -> None:
        pass


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.send_error(405)

    def do_GET(self) -> None:
        data = self.server.files.get(self.path.partition("?")[0])
        if data is None:
            self.send_error(404)
            return
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        self.server.requests += 1
        wanted = None if found is None else (int(found[1]), int(found[2]))
        answer = self.server.script(self.server.requests, usual(data, wanted))
        if answer.headers or not answer.hangs:
            self.send(answer)
        if answer.hangs:
            self.server.silent += 1
            self.server.released.wait(100)
        if answer.hangs or answer.breaks:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True

    def send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, str(value))
        self.end_headers()
        is_chunked = answer.headers.get("Transfer-Encoding") == "chunked"
        for piece in answer.body:
            part = piece[: len(piece) // 2] if answer.breaks or answer.hangs else piece
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part) if is_chunked else part)
            self.server.sent += len(part)
        if is_chunked and not answer.breaks:
            self.wfile.write(b"0\r\n\r\n")


@pytest.fixture
def server(monkeypatch):
    patch(monkeypatch, "RANGE", RANGE)
    patch(monkeypatch, "_WAIT", 0.001)
    server = Server()
    yield server
    server.released.set()
    server.shutdown()
    server.server_close()


def rows(data, folder, **options):
    sbm.split(data, folder / "r.sbm", blocks=1, shuffle=False, force=True, **options)
    return store_rows(folder / "r.sbm")


@pytest.fixture
def local(tmp_path_factory):
    folder = tmp_path_factory.mktemp("local")
    (folder / "a.svm").write_bytes(TEXT)
    return rows(folder / "a.svm", folder)


# ------------------------------------------------------------------------------- what is read


def chunked(answer: Answer) -> Answer:
    body = [TEXT[k : k + 7000] for k in range(0, len(TEXT), 7000)]
    return Answer(200, {"Transfer-Encoding": "chunked"}, body)


def half_ranges(answer: Answer) -> Answer:
    """Give less of a range than was asked for, as RFC 9110 allows."""
    found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", answer.headers["Content-Range"])
    first, last = int(found[1]), (int(found[1]) + int(found[2])) // 2
    part = Answer(206, {}, [TEXT[first : last + 1]])
    sizes = f"bytes {first}-{last}/{len(TEXT)}", last - first + 1
    return part.with_headers(Content_Range=sizes[0], Content_Length=sizes[1])


READ = {
    "ranges": lambda n, a: a,
    "weak etag": lambda n, a: a.with_headers(ETag='W/"1"'),
    "chunked range": lambda n, a: a.with_headers(Transfer_Encoding="chunked", Content_Length=None),
    "half of each range": lambda n, a: half_ranges(a),
    "no ranges": lambda n, a: whole(a),
    "no ranges, chunked": lambda n, a: chunked(a),
    "errors that go away": lambda n, a: Answer(429, {"Content-Length": 0}, []) if n % 3 else a,
    "broken connections": lambda n, a: replace(a, breaks=n % 3 > 0),
    "identity": lambda n, a: a.with_headers(Content_Encoding="identity"),
    "no coding": lambda n, a: a.with_headers(Content_Encoding=("aws-chunked,", "UTF-8")[n % 2]),
    "upper case": lambda n, a: a.with_headers(
        Content_Range=a.headers["Content-Range"].replace("b", "B")
    ),
}


@pytest.mark.parametrize("name", READ)
def test_servers_that_are_read(server, tmp_path, local, name):
    server.script = READ[name]
    assert rows(server.url("a.svm"), tmp_path) == local


@pytest.mark.parametrize("size", [1, RANGE - 1, RANGE, RANGE + 1, 3 * RANGE])
@pytest.mark.parametrize("script", [READ["ranges"], lambda n, a: whole(a, b"".join(a.body))])
def test_remote_bytes_are_those_of_the_file(server, size, script):
    data = (TEXT * 3)[:size]
    url = server.url("a.svm", data)
    server.script = script if script is READ["ranges"] else lambda n, a: whole(a, data)
    assert remote.remote_size(url) == size
    with remote.RemoteFile(url) as file:
        assert file.read() == data


def test_empty_file_is_that_of_a_local_one(server, tmp_path):
    for script in (
        READ["ranges"], lambda n, a: whole(a, b""), lambda n, a: a.with_headers(Content_Range=None)
    ):  # fmt: skip
        server.script = script
        with pytest.raises(DataError, match="no rows"):
            sbm.split(server.url("a.svm", b""), tmp_path / "a.sbm")
    assert not list(tmp_path.iterdir())


def test_redirects_are_followed(server, tmp_path, local):
    url = server.url("a.svm")
    server.files["/b.svm"] = b""
    place = {"Location": "/a.svm?key=1", "Content-Length": 0}
    server.script = lambda n, a: Answer(302, place, []) if n % 2 else a
    assert rows(url.replace("a.svm", "b.svm"), tmp_path) == local


def test_retries_are_reported(server, tmp_path, local):
    for name, data in (("a.svm", TEXT), ("a.svm.gz", gzip.compress(TEXT))):
        url, progress = server.url(name, data), Passes()
        server.script = lambda n, a: replace(a, breaks=True) if n == 4 else a
        assert rows(url, tmp_path, progress=progress) == local
        assert [line for line in progress.stages if url in line and "trying again" in line]
    report = sbm.info(tmp_path / "r.sbm")
    assert report["sources"][0]["name"] == "a.svm.gz"
    with pytest.raises(DataError, match="already in"):
        sbm.split(url, tmp_path / "r.sbm", append=True)


def test_all_commands_read_urls(server, tmp_path, local, monkeypatch):
    url = server.url("big.svm")
    line = f"train {url}?key=1 -o {tmp_path}/m.model --json"
    assert CliRunner().invoke(cli, line.split()).exit_code == 0
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(cli, ["train", f"{url}?key=a/b.csv", "-q"]).exit_code == 0
    assert (tmp_path / "big.model").exists()
    assert sbm.predict(tmp_path / "m.model", url)["accuracy"] > 0.95
    (tmp_path / "a.svm").write_bytes(TEXT)
    model, report = sbm.stream(url, tmp_path / "s.model")
    assert report["rows"] == 1000
    other, _ = sbm.stream(tmp_path / "a.svm", tmp_path / "t.model")
    np.testing.assert_array_equal(model.W, other.W)


# ---------------------------------------------------------------------------- what is refused


def endless() -> Iterable[bytes]:
    for _ in range(HUGE // 50_000):
        yield b"\n" * 50_000


def wrong_range(n: int, answer: Answer) -> Answer:
    found = answer.headers["Content-Range"]
    return answer if n < 4 else answer.with_headers(Content_Range=re.sub(r" \d+-", " 7-", found))


def plain(status: int, **headers: Any) -> Any:
    answer = Answer(status, {"Content-Length": 0}, []).with_headers(**headers)
    return lambda n, _: answer


REFUSED = {
    "a longer body": (
        lambda n, a: replace(a, body=endless()).with_headers(Content_Length=HUGE),
        r"was asked for 1 byte and sends 100,000,000",
    ),
    "an endless body": (
        lambda n, a: replace(a, body=endless()).with_headers(
            Content_Length=None, Transfer_Encoding="chunked"
        ),
        "sends more than its headers say",
    ),
    "an endless error": (
        lambda n, a: Answer(403, {"Content-Length": HUGE}, endless()),
        r"403 Forbidden; check",
    ),
    "compressed on the way": (
        lambda n, a: replace(a, body=endless()).with_headers(
            Content_Encoding="gzip", Content_Length=HUGE
        ),
        r"Content-Encoding: gzip.*curl --compressed -O http",
    ),
    "compressed without ranges": (
        lambda n, a: whole(a).with_headers(Content_Encoding="br"),
        "Content-Encoding: br",
    ),
    "another range": (wrong_range, r"asked for bytes 10000-19999 and sends bytes 7-19999"),
    "all ranges at once": (
        lambda n, a: a.with_headers(Content_Range=f"bytes 0-{len(TEXT) - 1}/{len(TEXT)}"),
        "asked for bytes 0-0 and sends bytes 0-",
    ),
    "no Content-Range": (lambda n, a: a.with_headers(Content_Range=None), "without saying which"),
    "a range of an unknown length": (
        lambda n, a: a.with_headers(Content_Range="bytes 0-0/*"),
        "does not state the length",
    ),
    "an unknown length": (
        lambda n, a: replace(whole(a).with_headers(Content_Length=None, Connection="close")),
        "does not state the length",
    ),
    "ranges that end": (lambda n, a: a if n < 4 else whole(a), "sends the whole file"),
    "a body that breaks off": (
        lambda n, a: replace(whole(a), breaks=n > 1),
        r"broke off after [\d,]+ bytes .*does not support ranges",
    ),
    "chunks that break off": (lambda n, a: replace(chunked(a), breaks=n > 1), "broke off after"),
    "gone": (plain(410), "not found"),
    "no content": (plain(204), "204"),
    "a redirect to nowhere": (plain(302), "302 Found"),
    "a circle of redirects": (plain(302, Location="/a.svm"), "too many redirects"),
    "a redirect to a file": (
        plain(302, Location="file:///etc/passwd"),
        r"redirect(ed)? (to file:|only to http)",
    ),
    "no length": (plain(200, Content_Length="-5"), "not valid HTTP"),
    "too many headers": (
        lambda n, a: a.with_headers(**{f"X{k}": k for k in range(1000)}),
        "not valid HTTP",
    ),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_answers_that_are_refused(server, tmp_path, name):
    url = server.url("a.svm")
    server.script, expected = REFUSED[name]
    with pytest.raises(DataError, match=f"{re.escape(url)}.*{expected}"):
        sbm.split(url, tmp_path / "a.sbm")
    assert server.sent < HUGE / 4  # what the sockets buffer
    assert not list(tmp_path.iterdir())


def test_gzip_file_that_is_encoded_is_explained(server, tmp_path):
    url = server.url("a.svm.gz", gzip.compress(TEXT))
    server.script = lambda n, a: a.with_headers(Content_Encoding="gzip")
    with pytest.raises(DataError, match=rf"save the \.gz file with curl -O {url}"):
        sbm.split(url, tmp_path / "a.sbm")


CHANGED = {
    "ETag": lambda n, a: a.with_headers(ETag='"a"' if n < 4 else '"b"'),
    "ETag of mirrors": lambda n, a: a.with_headers(
        ETag=f'"{n % 2}"', Last_Modified="Thu, 01 Jan 2026 00:00:00 GMT"
    ),
    "a missing ETag": lambda n, a: a.with_headers(ETag='"a"' if n < 4 else None),
    "Last-Modified": lambda n, a: a.with_headers(Last_Modified=f"Thu, 0{1 + n // 4} Jan 2026"),
    "Last-Modified without ranges": lambda n, a: whole(a).with_headers(Last_Modified=n // 3),
    "the last look": lambda n, a: a.with_headers(ETag=str(n * RANGE > len(TEXT) + 3 * RANGE)),
}


@pytest.mark.parametrize("name", CHANGED)
def test_changed_file_is_refused(server, tmp_path, name):
    server.script = CHANGED[name]
    url = server.url("a.svm")
    with pytest.raises(DataError, match=rf"{url} changed while it was read: its (ETag|Last-M)"):
        sbm.split(url, tmp_path / "a.sbm")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("length", [0, 25_000, 2 * len(TEXT)])
def test_changed_length_is_refused(server, tmp_path, length):
    url = server.url("a.svm")

    def change(n, answer):
        server.files["/a.svm"] = (TEXT * 2)[:length] if n > 2 else TEXT
        return answer

    server.script = change
    with pytest.raises(DataError, match=r"changed while it was read: its length was [\d,]+ bytes"):
        sbm.split(url, tmp_path / "a.sbm")
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_unreachable_servers_leave_nothing(server, tmp_path):
    url, progress = server.url("a.svm"), Passes()
    server.script = lambda n, a: Answer(503, {"Content-Length": 0}, []) if n > 2 else a
    with pytest.raises(DataError, match=rf"cannot read {url}: .*503.* \(after 6 tries\)"):
        sbm.split(url, tmp_path / "a.sbm", progress=progress)
    assert len(progress.stages) == 5
    with pytest.raises(DataError, match=r"b\.svm: not found"):
        sbm.train(url.replace("a.svm", "b.svm"), tmp_path / "a.model")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]  # nothing will listen there
    place = f"127.0.0.1:{port}"
    with pytest.raises(DataError, match=rf"connect to {place} \(Connection.*after 3 tries"):
        sbm.split(f"http://{place}/a.svm", tmp_path / "a.sbm")
    with pytest.raises(DataError, match=r"connect to nosuch\.invalid:80 .*after 3 tries"):
        sbm.split("http://nosuch.invalid/a.svm", tmp_path / "a.sbm")
    with pytest.raises(DataError, match=r"connect to ::1:1 .*after 3 tries"):
        sbm.split("HTTP://[::1]:1/a.svm", tmp_path / "a.sbm")
    for odd in ("nosuch://a/b.svm", "http://", "http://127.0.0.1:99999/a.svm"):
        with pytest.raises(DataError, match=rf"cannot read {odd}"):
            sbm.split(odd, tmp_path / "a.sbm")
    assert not list(tmp_path.iterdir())


def test_long_list_of_files_is_refused(server, tmp_path, monkeypatch):
    patch(monkeypatch, "_LISTING", 1_000_000)
    url = server.url("files/", b"")
    server.script = lambda n, a: Answer(200, {"Content-Length": HUGE}, endless())
    with pytest.raises(DataError, match="longer than 1,000,000 bytes"):
        sbm.split(f"{url}*.svm", tmp_path / "a.sbm")
    server.script = lambda n, a: replace(a, hangs=True)
    with pytest.raises(DataError, match=r"nothing for 0\.2 s"):
        sbm.split(f"{url}*.svm", tmp_path / "a.sbm", remote_timeout=0.2)


# ----------------------------------------------------------------------------------- stalls

SILENT = Answer(200, {}, [], hangs=True)
STALLS = {
    "at once": lambda n, a: SILENT,
    "in a range": lambda n, a: replace(a, hangs=n == 4),
    "without ranges": lambda n, a: replace(whole(a), hangs=n > 1),
    "in the last look": lambda n, a: SILENT if n * RANGE > len(TEXT) + 3 * RANGE else a,
    "after a redirect": lambda n, a: plain(302, Location="/a.svm")(n, a) if n == 1 else SILENT,
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", STALLS)
def test_stalled_server_ends_in_time(server, tmp_path, name):
    server.script = STALLS[name]
    url = server.url("a.svm")
    with pytest.raises(DataError, match=rf"{url}: the server sent nothing for 0\.2 s"):
        sbm.split(url, tmp_path / "a.sbm", remote_timeout=0.2)
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_every_command_has_a_timeout(server, tmp_path, local):
    (tmp_path / "a.svm").write_bytes(TEXT)
    sbm.train(tmp_path / "a.svm", tmp_path / "m.model")
    url = server.url("b.svm")
    server.script = lambda n, a: replace(a, hangs=True)
    for line in (
        f"split {url}", f"train {url}", f"stream {url} -o s.model", f"predict m.model {url}",
        f"export m.model --prune 1e-3 --test {url}", f"train a.svm -o t.model --test {url}",
        f"train a.svm -o t.model --validate {url}", f"stream a.svm -o t.model --test {url}",
    ):  # fmt: skip
        words = [str(tmp_path / w) if w.endswith((".model", "a.svm")) else w for w in line.split()]
        result = CliRunner().invoke(cli, [*words, "--remote-timeout", "0.1s"])
        assert isinstance(result.exception, DataError), line
        assert "nothing for 0.1 s (--remote-timeout)" in str(result.exception)
    with pytest.raises(SettingsError, match="remote_timeout is 0; it must be above 0"):
        sbm.split(url, tmp_path / "a.sbm", remote_timeout=0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_stopped_stream_is_saved(server, tmp_path):
    for name in ("in a range", "without ranges"):
        for ending, data in ((".svm", TEXT), (".svm.gz", gzip.compress(TEXT, 0))):
            url = server.url(f"a{ending}", data)
            server.script = lambda n, a, name=name, data=data: (
                STALLS[name](n, a) if name == "in a range" else replace(whole(a, data), hangs=n > 1)
            )
            model = tmp_path / f"{name[0]}{ending}.model"
            looks = iter(range(100))

            def is_stopped(looks=looks):  # not before the rows that came are read
                return server.silent > 0 and next(looks) > 5

            _, report = sbm.stream(url, model, is_stopped=is_stopped)
            assert report["stopped"]
            server.script = READ["ranges"]
            _, report = sbm.stream(url, model, resume=True)
            assert (report["rows"], report["stopped"]) == (1000, False)


@pytest.mark.process
@pytest.mark.parametrize(
    ("number", "stall", "line"),
    [
        (signal.SIGTERM, "in a range", "split {} -o a.sbm"),
        (signal.SIGTERM, "without ranges", "train {} -o a.model"),
        (signal.SIGINT, "at once", "stream {} -o a.model"),
    ],
)
def test_signal_ends_a_stalled_command(server, tmp_path, number, stall, line):
    large = TEXT * 200  # more than the pieces of 4 MB
    url = server.url("a.svm", large)
    server.script = lambda n, a: (
        replace(whole(a, large), hangs=n > 1) if stall == "without ranges" else STALLS[stall](n, a)
    )
    command = [sys.executable, "-m", "sbm", *line.format(url).split()]
    environment = {**os.environ, "PYTHONPATH": str(Path(sbm.__file__).parent.parent)}
    with started(command, cwd=tmp_path, env=environment) as process:
        wait_until(lambda: server.silent, process)
        process.send_signal(number)
        assert process.wait(20) == 130  # --remote-timeout is 60 s
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------ names, tables, fsspec


def test_urls_are_shown_whole(server, tmp_path):
    url, progress = server.url("a.svm"), Passes()
    sbm.train(f"{url}?key=1", tmp_path / "a.model", progress=progress)
    assert [line for line in progress.stages if line.startswith(f"{url}?key=1: 1,000 rows")]
    assert str(default_store("https://x.org/a/big.svm.zst?key=b/c.csv")) == "big.sbm"
    rows(f"{url}?key=secret", tmp_path)
    assert sbm.info(tmp_path / "r.sbm")["sources"][0]["name"] == "a.svm"
    with pytest.raises(SettingsError, match=r"http://x/a\.sbm is a store by its name"):
        sbm.train("http://x/a.sbm", tmp_path / "b.model")
    with pytest.raises(DataError, match="give a URL as a string"):
        sbm.split(Path("https://x.org/a.svm"), tmp_path / "b.sbm")


def test_table_that_does_not_fit_is_explained(server, tmp_path, monkeypatch):
    pa = pytest.importorskip("pyarrow", reason="needs the extra arrow")
    pq = pytest.importorskip("pyarrow.parquet", reason="needs the extra arrow")
    pq.write_table(pa.table({"a": [1, 2], "y": ["u", "v"]}), tmp_path / "t.parquet")
    data = (tmp_path / "t.parquet").read_bytes()
    url, place = server.url("t.parquet", data), tmp_path / "small"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    assert rows(url, tmp_path) == rows(tmp_path / "t.parquet", tmp_path)
    server.script = lambda n, a: replace(a, hangs=n > 2)
    with pytest.raises(DataError, match="sent nothing"):
        sbm.split(url, tmp_path / "b.sbm", remote_timeout=0.2)
    server.script, server.sent = READ["ranges"], 0
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(len(data) - 1))
    with pytest.raises(DataError, match=rf"{url}, {len(data):,} bytes, to {place} .*TMPDIR"):
        sbm.split(url, tmp_path / "b.sbm")
    assert server.sent <= 1  # counted after it was sent
    assert not list(place.iterdir())


@dataclass
class Usage:
    free: int
    used: int = field(default=0)


def test_memory_files_and_globs(tmp_path, local):
    fs = fsspec.filesystem("memory")
    half = TEXT.index(b"\n", len(TEXT) // 2) + 1
    fs.pipe({"/in/a-1.svm": TEXT[:half], "/in/a-2.svm": TEXT[half:]})
    assert rows("memory://in/a-*.svm", tmp_path) == local
    with pytest.raises(DataError, match="matches no files"):
        sbm.split("memory://in/b-*.svm", tmp_path / "b.sbm")


def test_replaced_file_of_a_service_is_refused(monkeypatch):
    patch(monkeypatch, "RANGE", RANGE)
    fs = fsspec.filesystem("memory")
    for other in (TEXT[::-1], TEXT[:-1]):
        fs.pipe({"/in/c.svm": TEXT})
        with remote.RemoteFile("memory://in/c.svm") as file:
            assert file.read(10) == TEXT[:10]
            fs.pipe({"/in/c.svm": other})
            with pytest.raises(DataError, match=r"changed while it was read: its (created|length)"):
                file.read()


def test_short_answer_of_a_service_is_asked_for_again(monkeypatch):
    for name, value in (("RANGE", RANGE), ("_WAIT", 0.001)):
        patch(monkeypatch, name, value)
    fs, asked = fsspec.filesystem("memory"), []
    fs.pipe({"/in/d.svm": TEXT})
    cat_file = type(fs).cat_file

    def short(self, path, start=None, end=None, **options):
        asked.append((start, end))
        data = cat_file(self, path, start, end, **options)
        return data[: len(data) // 2] if len(asked) == 2 else data

    monkeypatch.setattr(type(fs), "cat_file", short)
    with remote.RemoteFile("memory://in/d.svm") as file:
        assert file.read() == TEXT
    assert asked[1] == asked[2]


def test_memory_of_readers_is_planned(server, tmp_path, monkeypatch):
    overhead = []
    for data in (tmp_path / "a.svm", server.url("a.svm")):
        (tmp_path / "a.svm").write_bytes(TEXT)
        notes = Notes()
        sbm.train(data, tmp_path / "a.model", resume=False, progress=notes)
        overhead += [float(x) for x in re.findall(r"overhead ([\d.]+) MB", notes.text)]
    assert overhead[1] - overhead[0] >= 60


class Notes(Passes):
    text = ""

    def note(self, text: str) -> None:
        self.text += text


def test_missing_fsspec_is_reported(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fsspec", None)
    with pytest.raises(DataError, match=r"https://x/a\.svm needs fsspec.*pip install"):
        sbm.split("https://x/a.svm", tmp_path / "a.sbm")


def test_matrices_are_not_read_from_afar(tmp_path):
    fsspec.filesystem("memory").pipe({"/in/a.npz": b"PK\x03\x04"})
    with pytest.raises(DataError, match=r"memory://in/a\.npz: npz files are read locally"):
        sbm.split("memory://in/a.npz", tmp_path / "a.sbm")
