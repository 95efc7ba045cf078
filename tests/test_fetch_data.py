"""scripts/fetch_data.py against a server of our own: resuming, verifying, unpacking, wording."""

import bz2
import contextlib
import errno
import fcntl
import gzip
import hashlib
import importlib.util
import json
import lzma
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import zstandard
from processes import started, wait_until

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "fetch_data.py"
DATA_PAGE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/"
TEXT = b"".join(b"%+d %d:0.5 %d:1.25\n" % ((-1) ** i, i + 1, i + 9) for i in range(20_000))
HALF = len(TEXT) // 2


def load_script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script(SCRIPT)


@dataclass
class Site:
    """What the server offers, how it misbehaves, and what it saw."""

    files: dict[str, bytes] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    ranges: bool = True  # honour Range
    checks_version: bool = True  # honour If-Range
    versions: str | None = "etag"  # "etag", "weak" (ETag without meaning for ranges) or None
    chunked: bool = False  # do not tell the length
    cut_after: int | None = None  # bytes of a body after which the connection ends
    hold_after: int | None = None  # bytes of a body after which nothing more comes
    answer_416: str | None = None  # Content-Range of a server that refuses every Range
    status: int | None = None  # answer everything with this
    release: threading.Event = field(default_factory=threading.Event)
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path, Range
    sent: list[int] = field(default_factory=list)  # bytes of each body that left
    url: str = ""


class Handler(BaseHTTPRequestHandler):
    site: Site
    protocol_version = "HTTP/1.1"  # for chunks; all the same every answer ends its connection

    def log_message(self, *_: Any) -> None:
        pass

    def end_headers(self) -> None:
        self.send_header("Connection", "close")
        super().end_headers()

    def do_GET(self) -> None:
        site = self.site
        site.asked.append((self.path, self.headers["Range"]))
        if site.status is not None:
            self.send_error(site.status)
        elif self.path in site.moved:
            self.send_response(302)
            self.send_header("Location", site.moved[self.path])
            self.end_headers()
        elif self.path not in site.files:
            self.send_error(404)
        elif site.answer_416 is not None and self.headers["Range"]:
            self.refuse_range(site.answer_416)
        else:
            self.offer(site.files[self.path])

    def refuse_range(self, content_range: str) -> None:
        self.send_response(416)
        self.send_header("Content-Range", content_range)
        self.end_headers()

    def offer(self, content: bytes) -> None:
        site = self.site
        etag = f'"{hashlib.sha256(content).hexdigest()[:12]}"'
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
        same = not site.checks_version or self.headers["If-Range"] in (etag, None)
        start = int(wanted[1]) if wanted and site.ranges and same else None
        if start is not None and start >= len(content):
            self.refuse_range(f"bytes */{len(content)}")
            return
        self.send_response(200 if start is None else 206)
        if start is not None:
            last = len(content) - 1
            self.send_header("Content-Range", f"bytes {start}-{last}/{len(content)}")
        if site.versions is not None:
            self.send_header("ETag", etag if site.versions == "etag" else f"W/{etag}")
        body = content[start or 0 :]
        if site.chunked:
            self.send_header("Transfer-Encoding", "chunked")
        else:
            self.send_header("Content-Length", str(len(body)))
        # Counted before the client can go on: it may not wait for the body.
        site.sent.append(len(body[: self.stop()]))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # who has enough hangs up
            self.send_body(body)

    def stop(self) -> int | None:
        site = self.site
        return site.cut_after if site.hold_after is None else site.hold_after

    def send_body(self, body: bytes) -> None:
        site, stop = self.site, self.stop()
        part = body[:stop]
        if site.chunked:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            if stop is None:
                self.wfile.write(b"0\r\n\r\n")
        else:
            self.wfile.write(part)
        if site.hold_after is not None:
            self.wfile.flush()
            site.release.wait(20)


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    site = Site()
    handler = type("SiteHandler", (Handler,), {"site": site})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        site.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        thread.start()
        yield site
        site.release.set()
        server.shutdown()
        thread.join()


@dataclass
class Result:
    code: int
    out: str
    err: str


@pytest.fixture
def fetch(
    script: ModuleType, site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Result]:
    def run(*arguments: str) -> Result:
        code = script.main(["--folder", str(tmp_path), "--base-url", site.url, *arguments])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture
def one_file(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replace the table by a single set "one"; its archive is "one" + ending."""

    def replace(ending: str = "", **known: Any) -> None:
        source = script.Source(f"binary/one{ending}", "one", **known)
        monkeypatch.setattr(script, "SETS", (script.DataSet("one", (source,)),))

    return replace


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- a whole download --------------------------------------------------------------------------


def test_plain_files_arrive_with_their_checksums_printed(
    fetch: Callable[..., Result], site: Site, tmp_path: Path
) -> None:
    site.files = {"/binary/a9a": TEXT, "/binary/a9a.t": TEXT[:500]}
    result = fetch("a9a")
    assert (tmp_path / "a9a").read_bytes() == TEXT
    assert names(tmp_path) == ["a9a", "a9a.t"]
    assert result == Result(
        0,
        f"a9a: checksum not known: SHA-256 is {sha256(TEXT)}\n"
        f"{tmp_path}/a9a: {len(TEXT):,} bytes\n"
        f"a9a.t: checksum not known: SHA-256 is {sha256(TEXT[:500])}\n"
        f"{tmp_path}/a9a.t: 500 bytes\n",
        "",
    )


def test_what_is_there_is_not_asked_for_again(
    fetch: Callable[..., Result], site: Site, tmp_path: Path
) -> None:
    site.files = {"/binary/real-sim.bz2": bz2.compress(TEXT)}
    assert fetch("real-sim").code == 0
    site.asked.clear()
    assert fetch("real-sim") == Result(0, f"{tmp_path}/real-sim: already there\n", "")
    assert site.asked == []


@pytest.mark.parametrize(
    ("ending", "compress"),
    [
        (".bz2", bz2.compress),
        (".gz", gzip.compress),
        (".xz", lzma.compress),
        (".zst", zstandard.compress),
        # Several streams in one file are legal, and parallel compressors write them.
        (".bz2", lambda text: bz2.compress(text[:99]) + bz2.compress(text[99:])),
        (".zst", lambda text: zstandard.compress(text[:99]) + zstandard.compress(text[99:])),
    ],
)
def test_every_compression_is_unpacked(
    fetch: Callable[..., Result],
    one_file: Callable[..., None],
    site: Site,
    tmp_path: Path,
    ending: str,
    compress: Callable[[bytes], bytes],
) -> None:
    one_file(ending)
    site.files = {f"/binary/one{ending}": compress(TEXT)}
    assert fetch("one").code == 0
    assert (tmp_path / "one").read_bytes() == TEXT
    assert names(tmp_path) == ["one"]


def test_archive_is_kept_when_asked_and_used_again(
    fetch: Callable[..., Result], one_file: Callable[..., None], site: Site, tmp_path: Path
) -> None:
    one_file(".xz")
    site.files = {"/binary/one.xz": lzma.compress(TEXT)}
    assert fetch("one", "--keep-archive").code == 0
    assert names(tmp_path) == ["one", "one.xz"]
    (tmp_path / "one").unlink()
    assert fetch("one", "--keep-archive").code == 0
    assert (tmp_path / "one").read_bytes() == TEXT
    assert len(site.asked) == 1


def test_redirect_is_followed_also_when_resuming(
    fetch: Callable[..., Result], one_file: Callable[..., None], site: Site, tmp_path: Path
) -> None:
    one_file()
    site.files = {"/elsewhere": TEXT}
    site.moved = {"/binary/one": "/elsewhere"}
    site.cut_after = HALF
    assert fetch("one").code == 1
    site.cut_after = None
    assert fetch("one").code == 0
    assert site.sent == [HALF, len(TEXT) - HALF]
    assert (tmp_path / "one").read_bytes() == TEXT


# ---- continuing --------------------------------------------------------------------------------


def test_cut_download_is_continued_with_only_the_missing_bytes(
    fetch: Callable[..., Result], one_file: Callable[..., None], site: Site, tmp_path: Path
) -> None:
    one_file(sha256=sha256(TEXT), size=len(TEXT))
    site.files = {"/binary/one": TEXT}
    site.cut_after = HALF
    assert fetch("one") == Result(
        1,
        "",
        f"error: {site.url}/binary/one: the connection ended after {HALF:,} of {len(TEXT):,} "
        "bytes; the same command resumes there\n",
    )
    assert names(tmp_path) == ["one.part", "one.part.json"]
    assert (tmp_path / "one.part").read_bytes() == TEXT[:HALF]
    site.cut_after = None
    assert fetch("one") == Result(
        0,
        f"{tmp_path}/one: {len(TEXT):,} bytes\n",
        f"{site.url}/binary/one: continuing after {HALF:,} bytes\n",
    )
    assert site.asked == [("/binary/one", None), ("/binary/one", f"bytes={HALF}-")]
    assert site.sent == [HALF, len(TEXT) - HALF]
    assert (tmp_path / "one").read_bytes() == TEXT
    assert names(tmp_path) == ["one"]


def test_several_cuts_add_up(
    fetch: Callable[..., Result], one_file: Callable[..., None], site: Site, tmp_path: Path
) -> None:
    one_file()
    site.files = {"/binary/one": TEXT}
    site.cut_after = len(TEXT) // 3
    assert [fetch("one").code for _ in range(4)] == [1, 1, 1, 0]
    assert sum(site.sent) == len(TEXT)
    assert (tmp_path / "one").read_bytes() == TEXT


def test_cut_without_known_length_is_noticed_and_continued(
    fetch: Callable[..., Result], one_file: Callable[..., None], site: Site, tmp_path: Path
) -> None:
    one_file()
    site.files = {"/binary/one": TEXT}
    site.chunked = True
    site.cut_after = HALF
    assert fetch("one").err == (
        f"error: {site.url}/binary/one: the connection ended after {HALF:,} bytes; "
        "the same command resumes there\n"
    )
    site.cut_after = None
    assert fetch("one").code == 0
    assert (tmp_path / "one").read_bytes() == TEXT
    assert site.sent == [HALF, len(TEXT) - HALF]


def test_server_without_ranges_restarts_cleanly(
    fetch: Callable[..., Result], one_file: Callable[..., None], site: Site, tmp_path: Path
) -> None:
    one_file()
    site.files = {"/binary/one": TEXT}
    site.ranges = False
    site.cut_after = HALF
    fetch("one")
    site.cut_after = None
    result = fetch("one")
    assert result.code == 0
    assert result.err == (
        f"{site.url}/binary/one: the server sends the file from its beginning: starting over\n"
    )
    assert site.sent == [HALF, len(TEXT)]
    assert (tmp_path / "one").read_bytes() == TEXT


@pytest.mark.parametrize("versions", ["weak", None])
def test_server_that_names_no_version_is_not_trusted_to_continue(
    fetch: Callable[..., Result],
    one_file: Callable[..., None],
    site: Site,
    tmp_path: Path,
    versions: str | None,
) -> None:
    one_file()
    site.files = {"/binary/one": TEXT}
    site.versions = versions
    site.cut_after = HALF
    assert fetch("one").err == (
        f"error: {site.url}/binary/one: the connection ended after {HALF:,} of {len(TEXT):,} "
        "bytes; the same command starts over, as this server cannot resume\n"
    )
    site.cut_after = None
    assert fetch("one").err == (
        f"{site.url}/binary/one: the earlier attempt cannot be continued: starting over\n"
    )
    assert site.asked[-1] == ("/binary/one", None)
    assert (tmp_path / "one").read_bytes() == TEXT


@pytest.mark.parametrize("checks_version", [True, False])
def test_file_that_changed_in_between_is_downloaded_anew(
    fetch: Callable[..., Result],
    one_file: Callable[..., None],
    site: Site,
    tmp_path: Path,
    checks_version: bool,
) -> None:
    one_file()
    site.files = {"/binary/one": TEXT}
    site.cut_after = HALF
    fetch("one")
    changed = TEXT.replace(b"0.5", b"0.7")
    site.files = {"/binary/one": changed}
    site.cut_after = None
    site.checks_version = checks_version  # without it the server sends the rest of the new file
    assert fetch("one").code == 0
    assert (tmp_path / "one").read_bytes() == changed
    assert site.sent[-1] == len(changed)
    assert len(site.asked) == (2 if checks_version else 3)


def test_restarted_download_counts_from_zero(
    fetch: Callable[..., Result], one_file: Callable[..., None], site: Site
) -> None:
    one_file()
    site.files = {"/binary/one": TEXT}
    site.ranges = False
    site.cut_after = HALF
    fetch("one")
    site.cut_after = 700
    assert "the connection ended after 700 of" in fetch("one").err


def test_part_of_another_address_is_not_continued(
    fetch: Callable[..., Result], one_file: Callable[..., None], site: Site, tmp_path: Path
) -> None:
    one_file()
    site.files = {"/binary/one": TEXT, "/mirror/binary/one": TEXT}
    site.cut_after = HALF
    fetch("one")
    site.cut_after = None
    assert fetch("one", "--base-url", f"{site.url}/mirror/").code == 0
    assert site.asked[-1] == ("/mirror/binary/one", None)
    assert (tmp_path / "one").read_bytes() == TEXT


@pytest.mark.parametrize("record", ["", "[]", "{}", "not json"])
def test_damaged_record_restarts(
    fetch: Callable[..., Result],
    one_file: Callable[..., None],
    site: Site,
    tmp_path: Path,
    record: str,
) -> None:
    one_file()
    site.files = {"/binary/one": TEXT}
    (tmp_path / "one.part").write_bytes(b"something else")
    (tmp_path / "one.part.json").write_text(record)
    assert fetch("one").code == 0
    assert (tmp_path / "one").read_bytes() == TEXT


def leave_part(folder: Path, site: Site, content: bytes) -> None:
    """As left by a run that ended between the last byte and the renaming."""
    (folder / "one.part").write_bytes(content)
    etag = f'"{sha256(TEXT)[:12]}"'
    record = {"url": f"{site.url}/binary/one", "etag": etag}
    (folder / "one.part.json").write_text(json.dumps(record))


def test_complete_part_is_recognised_by_416(
    fetch: Callable[..., Result], one_file: Callable[..., None], site: Site, tmp_path: Path
) -> None:
    one_file()
    site.files = {"/binary/one": TEXT}
    leave_part(tmp_path, site, TEXT)
    assert fetch("one").code == 0
    assert (site.asked, site.sent) == ([("/binary/one", f"bytes={len(TEXT)}-")], [])
    assert (tmp_path / "one").read_bytes() == TEXT
    assert names(tmp_path) == ["one"]


@pytest.mark.parametrize("answer", ["bytes */77", "bytes */*", "nonsense"])
def test_416_on_anything_else_restarts(
    fetch: Callable[..., Result],
    one_file: Callable[..., None],
    site: Site,
    tmp_path: Path,
    answer: str,
) -> None:
    one_file()
    site.files = {"/binary/one": TEXT}
    site.answer_416 = answer
    leave_part(tmp_path, site, TEXT[:HALF])
    assert fetch("one").code == 0
    assert (tmp_path / "one").read_bytes() == TEXT


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell's background job ignores Ctrl-C, and so would the programs it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_keeps_the_part_and_the_same_command_resumes(
    fetch: Callable[..., Result], site: Site, tmp_path: Path
) -> None:
    site.files = {"/binary/real-sim.bz2": (packed := bz2.compress(os.urandom(400_000)))}
    site.hold_after = half = len(packed) // 2
    where = ["--folder", str(tmp_path), "--base-url", site.url]
    command = [sys.executable, str(SCRIPT), "real-sim", *where]
    part = tmp_path / "real-sim.bz2.part"
    with started(command, stderr=subprocess.PIPE, text=True) as process:
        # The last few bytes may still be in the program's buffer.
        wait_until(lambda: part.exists() and part.stat().st_size > half - 70_000, process)
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 1
    assert err == "\nstopped: what is downloaded is kept, the same command resumes\n"
    have = part.stat().st_size
    site.hold_after = None
    assert fetch("real-sim").code == 0
    assert site.sent[-1] == len(packed) - have
    assert (tmp_path / "real-sim").read_bytes() == bz2.decompress(packed)


# ---- errors, word for word ---------------------------------------------------------------------


def test_wrong_checksum_removes_the_download(
    fetch: Callable[..., Result], one_file: Callable[..., None], site: Site, tmp_path: Path
) -> None:
    one_file(sha256="0" * 64)
    site.files = {"/binary/one": TEXT}
    assert fetch("one") == Result(
        1,
        "",
        f"error: one: the SHA-256 is {sha256(TEXT)} and should be {'0' * 64}: "
        "the download was removed, run the same command to get it again\n",
    )
    assert names(tmp_path) == []


def test_wrong_size_is_refused_before_the_download(
    fetch: Callable[..., Result], one_file: Callable[..., None], site: Site, tmp_path: Path
) -> None:
    one_file(size=12_345)
    site.files = {"/binary/one": TEXT}
    assert fetch("one").err == (
        f"error: {site.url}/binary/one: {len(TEXT):,} bytes where 12,345 are expected: "
        "the published file has changed, or --base-url leads to another one\n"
    )
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("status", "reason", "advice"),
    [
        (
            404,
            "Not Found",
            f"look on {DATA_PAGE} whether it has moved, and give its place with --base-url",
        ),
        (403, "Forbidden", "try the address in a browser, or another place with --base-url"),
        (
            503,
            "Service Unavailable",
            "the server is busy or broken: run the same command again later",
        ),
    ],
)
def test_http_errors(
    fetch: Callable[..., Result], site: Site, tmp_path: Path, status: int, reason: str, advice: str
) -> None:
    site.status = status
    assert fetch("a9a") == Result(
        1, "", f"error: {site.url}/binary/a9a: HTTP {status} {reason}; {advice}\n"
    )
    assert names(tmp_path) == []


def test_http_error_while_resuming_keeps_the_part(
    fetch: Callable[..., Result], one_file: Callable[..., None], site: Site, tmp_path: Path
) -> None:
    one_file()
    site.files = {"/binary/one": TEXT}
    site.cut_after = HALF
    fetch("one")
    site.status = 503
    assert fetch("one").code == 1
    site.status = site.cut_after = None
    assert fetch("one").code == 0
    assert site.sent == [HALF, len(TEXT) - HALF]


def test_no_server(fetch: Callable[..., Result], tmp_path: Path) -> None:
    address = "http://127.0.0.1:1"  # nothing listens on port 1
    assert fetch("a9a", "--base-url", address) == Result(
        1,
        "",
        f"error: {address}/binary/a9a: cannot be reached ([Errno {errno.ECONNREFUSED}] Connection "
        "refused); check the network and --base-url, then run the same command again\n",
    )
    assert names(tmp_path) == []


@pytest.mark.parametrize("ending", [".bz2", ".gz", ".xz", ".zst"])
@pytest.mark.parametrize("damage", ["cut off", "not compressed"])
def test_damaged_archive_is_removed(
    fetch: Callable[..., Result],
    one_file: Callable[..., None],
    site: Site,
    tmp_path: Path,
    ending: str,
    damage: str,
) -> None:
    compressors: dict[str, Callable[[bytes], bytes]] = {
        ".bz2": bz2.compress,
        ".gz": gzip.compress,
        ".xz": lzma.compress,
        ".zst": zstandard.compress,
    }
    compress = compressors[ending]
    site.files = {f"/binary/one{ending}": compress(TEXT)[:-9] if damage == "cut off" else TEXT}
    one_file(ending)
    result = fetch("one")
    assert result.code == 1
    start, end = (
        f"error: {tmp_path}/one{ending}: damaged (",
        ("): it was removed, run the same command to get it again\n"),
    )
    assert result.err.startswith(start)
    assert result.err.endswith(end)
    assert names(tmp_path) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
@pytest.mark.parametrize("what", ["one.xz.part", "one.unpacking"])
def test_full_disk(
    fetch: Callable[..., Result],
    script: ModuleType,
    one_file: Callable[..., None],
    site: Site,
    tmp_path: Path,
    what: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one_file(".xz")
    site.files = {"/binary/one.xz": lzma.compress(TEXT)}
    (tmp_path / what).symlink_to("/dev/full")
    # /dev/full is one file for all tests that run at this time.
    monkeypatch.setattr(script.fcntl, "flock", lambda *_: None)
    result = fetch("one")
    assert result.code == 1
    assert result.err == (
        f"error: {tmp_path / what}: the disk is full: free some space and run the same command "
        "again, it goes on from what is downloaded\n"
    )
    (tmp_path / what).unlink(missing_ok=True)
    assert fetch("one").code == 0
    assert (tmp_path / "one").read_bytes() == TEXT


def test_too_little_space_is_refused_at_once(
    fetch: Callable[..., Result],
    script: ModuleType,
    site: Site,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site.files = {"/binary/a9a": TEXT}
    usage = type("Usage", (), {"free": 1_000})
    monkeypatch.setattr(script.shutil, "disk_usage", lambda _: usage)
    assert fetch("a9a").err == (
        f"error: {tmp_path}: {len(TEXT):,} bytes are still to come and the disk has 1,000 left: "
        "free some space or choose another --folder\n"
    )
    assert names(tmp_path) == []


def test_second_run_on_the_same_file_is_refused(
    fetch: Callable[..., Result], site: Site, tmp_path: Path
) -> None:
    with (tmp_path / "a9a.part").open("ab") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        assert fetch("a9a").err == (
            f"error: {tmp_path}/a9a.part: another fetch_data.py is downloading this file; "
            "wait for it to end\n"
        )
    assert names(tmp_path) == ["a9a.part"]
    assert site.asked == []


def test_folder_that_cannot_be_made(fetch: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert fetch("a9a", "--folder", str(tmp_path / "file")) == Result(
        1, "", f"error: {tmp_path}/file: File exists; check --folder and its permissions\n"
    )


# ---- usage -------------------------------------------------------------------------------------


def test_unknown_name_is_refused_before_anything_is_done(
    fetch: Callable[..., Result], site: Site
) -> None:
    assert fetch("a9a", "realsim") == Result(
        2,
        "",
        "error: unknown data set 'realsim': did you mean real-sim? (--list shows all of them)\n",
    )
    assert site.asked == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name at least one data set, or --list to see them"),
        (
            ["a9a", "--base-url", "ftp://example.org"],
            "argument --base-url: 'ftp://example.org' is not an http:// or https:// address",
        ),
    ],
)
def test_usage_errors(
    script: ModuleType,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    with pytest.raises(SystemExit) as stop:
        script.main(arguments)
    assert stop.value.code == 2
    assert capsys.readouterr().err.endswith(f"error: {message}\n")


def test_list_names_every_set_and_file(script: ModuleType, fetch: Callable[..., Result]) -> None:
    result = fetch("--list")
    assert result.code == 0
    assert len(result.out.splitlines()) == 1 + len(script.SETS)
    for entry in script.SETS:
        for word in (entry.name, entry.paper, *(source.path for source in entry.sources)):
            assert word in result.out


def test_name_of_a_paper_finds_the_set(script: ModuleType) -> None:
    assert script.find_set("kddcup10") is script.find_set("kddb")


def test_table_is_consistent(script: ModuleType) -> None:
    sources = [source for entry in script.SETS for source in entry.sources]
    assert len({source.text for source in sources}) == len(sources)
    for source in sources:
        ending = Path(source.archive).suffix
        packed = ending in script.DECODERS
        assert source.archive == source.text + (ending if packed else "")


# ---- data/README.md ----------------------------------------------------------------------------


def test_readme_lists_every_set(script: ModuleType) -> None:
    rows = re.findall(r"^\| ([\w.-]+)", (ROOT / "data/README.md").read_text(), re.MULTILINE)
    assert rows == ["name", *(entry.name for entry in script.SETS)]


def test_readme_shows_what_makes_the_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = re.search(r"```python\n(.*?)```", (ROOT / "data/README.md").read_text(), re.DOTALL)
    assert code is not None
    (tmp_path / "data").mkdir()
    monkeypatch.chdir(tmp_path)
    exec(code[1], {})
    assert (tmp_path / "data/sample.svm").read_bytes() == (ROOT / "data/sample.svm").read_bytes()
