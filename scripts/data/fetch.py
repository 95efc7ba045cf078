"""Download the public data sets of the papers and unpack them to LIBSVM text.

    python -m scripts.data.fetch --list
    python -m scripts.data.fetch a9a real-sim          # into data/public
    python -m scripts.data.fetch kddb --folder /big/disk --keep-archive

A download that stops, for whatever reason, is continued by the same command. What is being
downloaded is called ``NAME.part``, beside it ``NAME.part.json`` says which version of the file on
the server it is; a file carries its own name only when it is whole. Results go to stdout, progress
and remarks to stderr; the exit code is 0 (done), 1 (error, or stopped by Ctrl-C) or 2 (usage).
"""

import argparse
import bz2
import difflib
import errno
import fcntl
import gzip
import hashlib
import http.client
import json
import lzma
import os
import re
import shutil
import sys
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, NoReturn, TypeAlias
from urllib.error import HTTPError
from urllib.parse import urlsplit

import zstandard
from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

BASE_URL = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets"
CHUNK = 1 << 16
TIMEOUT = 60.0  # seconds without a byte from the server

Reply: TypeAlias = http.client.HTTPResponse | HTTPError
Unpacker: TypeAlias = bz2.BZ2File | gzip.GzipFile | lzma.LZMAFile


@dataclass(frozen=True)
class Source:
    """One published file.

    Parameters
    ----------
    path : str
        Where it lies below the base address.
    text : str
        Name of the unpacked file.
    size : int, optional
        Bytes to download, where known for certain.
    sha256 : str, optional
        Checksum of the bytes to download, where known for certain.
    """

    path: str
    text: str
    size: int | None = None
    sha256: str | None = None

    @property
    def archive(self) -> str:
        """Name of the file as published; that of the text where it is published unpacked."""
        return PurePosixPath(self.path).name


@dataclass(frozen=True)
class DataSet:
    """One data set: its files, the papers that use it, and the name they give it."""

    name: str
    sources: tuple[Source, ...]
    paper: str = "-"
    alias: str | None = None


# Sizes and checksums are entered only by somebody who has seen them: the script prints them.
SETS = (
    DataSet(
        "webspam",
        (
            Source(
                "binary/webspam_wc_normalized_trigram.svm.xz", "webspam_wc_normalized_trigram.svm"
            ),
        ),
        "SBM 2011",
    ),
    DataSet(
        "kddb",
        (Source("binary/kddb.bz2", "kddb"), Source("binary/kddb.t.bz2", "kddb.t")),
        "SBM 2011",
        alias="kddcup10",
    ),
    DataSet("kdda", (Source("binary/kdda.bz2", "kdda"), Source("binary/kdda.t.bz2", "kdda.t"))),
    DataSet(
        "rcv1",
        (
            Source("binary/rcv1_train.binary.bz2", "rcv1_train.binary"),
            Source("binary/rcv1_test.binary.bz2", "rcv1_test.binary"),
        ),
        "DCD 2008, LIBLINEAR 2008",
    ),
    DataSet(
        "news20.binary",
        (Source("binary/news20.binary.bz2", "news20.binary"),),
        "DCD 2008, LIBLINEAR 2008",
    ),
    DataSet("real-sim", (Source("binary/real-sim.bz2", "real-sim"),), "DCD 2008"),
    DataSet("a9a", (Source("binary/a9a", "a9a"), Source("binary/a9a.t", "a9a.t")), "DCD 2008"),
    DataSet("w8a", (Source("binary/w8a", "w8a"), Source("binary/w8a.t", "w8a.t"))),
    DataSet(
        "news20",
        (Source("multiclass/news20.bz2", "news20"), Source("multiclass/news20.t.bz2", "news20.t")),
        "Weston-Watkins 2016",
    ),
    DataSet(
        "letter.scale",
        (
            Source("multiclass/letter.scale", "letter.scale"),
            Source("multiclass/letter.scale.t", "letter.scale.t"),
        ),
        "Weston-Watkins 2016",
    ),
    DataSet(
        "mnist",
        (Source("multiclass/mnist.bz2", "mnist"), Source("multiclass/mnist.t.bz2", "mnist.t")),
    ),
    DataSet(
        "sector",
        (
            Source("multiclass/sector/sector.bz2", "sector"),
            Source("multiclass/sector/sector.t.bz2", "sector.t"),
        ),
    ),
    DataSet("aloi", (Source("multiclass/aloi.bz2", "aloi"),)),
)


class FetchError(Exception):
    """What went wrong and what to do about it, in one sentence."""


class UnknownSetError(FetchError):
    """A name that is not in the table."""


class ConnectionCutError(Exception):
    """The server stopped sending before the end."""


def find_set(name: str) -> DataSet:
    """Return the data set of that name.

    Parameters
    ----------
    name : str
        A name, or the name a paper uses, from ``SETS``.

    Returns
    -------
    DataSet
        Its row of the table.

    Raises
    ------
    UnknownSetError
        If there is none; the message names the nearest one.
    """
    known = {entry.alias: entry for entry in SETS if entry.alias}
    known |= {entry.name: entry for entry in SETS}
    if name not in known:
        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
        raise UnknownSetError(
            f"unknown data set {name!r}: did you mean {nearest}? (--list shows all of them)"
        )
    return known[name]


def fetch(source: Source, folder: Path, base_url: str, *, keep_archive: bool) -> None:
    """Bring one file into the folder as plain text, doing only what is still to be done.

    Parameters
    ----------
    source : Source
        What to bring.
    folder : Path
        An existing folder.
    base_url : str
        Address that ``source.path`` is below.
    keep_archive : bool
        Keep the compressed file, too.
    """
    text, archive = folder / source.text, folder / source.archive
    if text.exists():
        print(f"{text}: already there")
        return
    if not archive.exists():
        download(source, archive, f"{base_url.rstrip('/')}/{source.path}")
    if archive != text:
        unpack(archive, text)
        if not keep_archive:
            archive.unlink()
    print(f"{text}: {text.stat().st_size:,} bytes")


# ---- downloading -------------------------------------------------------------------------------


def download(source: Source, target: Path, url: str) -> None:
    """Download to ``target``, continuing an earlier attempt, and verify size and checksum.

    Parameters
    ----------
    source : Source
        Its size and checksum, where known.
    target : Path
        The finished file; until then the bytes are in ``target`` + ``.part``.
    url : str
        Where to get it.
    """
    part = target.with_name(target.name + ".part")
    with explain_full_disk(part), open_locked(part) as handle:
        try:
            receive(source, handle, part, url)
        except BaseException:
            if handle.tell() == 0:  # a refused request leaves nothing behind
                discard(part)
            raise
    verify(source, part)
    part.rename(target)
    record_of(part).unlink(missing_ok=True)


@contextmanager
def open_locked(part: Path) -> Iterator[IO[bytes]]:
    """Open for appending; two runs appending to one file would spoil it."""
    with part.open("ab") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FetchError(
                f"{part}: another scripts.data.fetch is downloading this file; wait for it to end"
            ) from None
        yield handle


def receive(source: Source, handle: IO[bytes], part: Path, url: str) -> None:
    """Append to ``handle`` what is missing of the file at ``url``."""
    have = os.fstat(handle.fileno()).st_size
    reply, start = ask(url, have, read_record(part, url) if have else {})
    with closing(reply):
        if reply.status == 416:  # nothing is missing
            return
        total = total_bytes(reply, start)
        check_size(source, url, total)
        if start == 0:
            if have:
                handle.truncate(0)
                handle.seek(0)
            write_record(part, url, reply)
        check_space(part, None if total is None else total - start)
        try:
            append(reply, handle, source.archive, start, total)
        except ConnectionCutError:
            raise FetchError(cut_message(url, handle.tell(), total, reply)) from None


def ask(url: str, have: int, record: dict[str, str]) -> tuple[Reply, int]:
    """Request the bytes from ``have`` on, or all of them where that is not possible.

    Returns
    -------
    reply : Reply
        Open; its status is 200, 206, or 416 when the server has no more than ``have`` bytes.
    start : int
        Position in the file of the first byte it sends.
    """
    version = validator(record)
    if have and version:
        # If-Range makes the server send the whole file when it is no longer the same one.
        reply = open_url(url, {"Range": f"bytes={have}-", "If-Range": version})
        if reply.status == 206 and continues(reply, have, version):
            remark(f"{url}: continuing after {have:,} bytes")
            return reply, have
        if reply.status == 416 and content_range(reply) == (None, have):
            return reply, have
        if reply.status == 200:
            remark(f"{url}: the server sends the file from its beginning: starting over")
            return reply, 0
        reply.close()
    if have:
        remark(f"{url}: the earlier attempt cannot be continued: starting over")
    return open_url(url, {}), 0


def open_url(url: str, headers: dict[str, str]) -> Reply:
    """Send one request; any answer that is of no use becomes a sentence."""
    # Compression in transit would make positions and lengths mean something else.
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity", **headers})
    try:
        reply: Reply = urllib.request.urlopen(request, timeout=TIMEOUT)
    except HTTPError as error:
        if error.code == 416 and "Range" in headers:
            return error
        error.close()
        raise FetchError(http_message(url, error.code, error.reason)) from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise FetchError(
            f"{url}: cannot be reached ({reason}); "
            "check the network and --base-url, then run the same command again"
        ) from None
    return reply


def http_message(url: str, code: int, reason: str) -> str:
    """Say what an HTTP error means for the user."""
    if code in (404, 410):
        advice = f"look on {BASE_URL}/ whether it has moved, and give its place with --base-url"
    elif code == 429 or code >= 500:
        advice = "the server is busy or broken: run the same command again later"
    else:
        advice = "try the address in a browser, or another place with --base-url"
    return f"{url}: HTTP {code} {reason}; {advice}"


def cut_message(url: str, have: int, total: int | None, reply: Reply) -> str:
    """Say how far a download came that the server did not finish."""
    of_total = "" if total is None else f" of {total:,}"
    can_resume = validator(described(reply)) is not None
    then = "resumes there" if can_resume else "starts over, as this server cannot resume"
    return f"{url}: the connection ended after {have:,}{of_total} bytes; the same command {then}"


def continues(reply: Reply, have: int, version: str) -> bool:
    """Whether a 206 reply is the rest of the same version of the file."""
    start, _ = content_range(reply)
    return start == have and validator(described(reply)) in (version, None)


def content_range(reply: Reply) -> tuple[int | None, int | None]:
    """Start and total length from ``Content-Range``, each None where not given."""
    found = re.fullmatch(
        r"bytes (?:(\d+)-\d+|\*)/(?:(\d+)|\*)", reply.headers.get("Content-Range", "").strip()
    )
    if found is None:
        return None, None
    start, total = found.groups()
    return (None if start is None else int(start)), (None if total is None else int(total))


def total_bytes(reply: Reply, start: int) -> int | None:
    """Length of the whole file, None where the server does not tell."""
    total = content_range(reply)[1] if reply.status == 206 else None
    if total is None:
        length = reply.headers.get("Content-Length", "")
        total = start + int(length) if length.isdecimal() else None
    return total


def append(reply: Reply, handle: IO[bytes], name: str, start: int, total: int | None) -> None:
    """Write the body of the reply, showing progress."""
    with progress(name, start, total) as bar:
        for chunk in body(reply, None if total is None else total - start):
            handle.write(chunk)
            bar.update(len(chunk))


def body(reply: Reply, missing: int | None) -> Iterator[bytes]:
    """Yield what arrives as it arrives, so that a stop loses next to nothing."""
    while missing is None or missing > 0:
        try:
            chunk = reply.read1(CHUNK if missing is None else min(CHUNK, missing))
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionCutError from error
        if missing is not None:
            if not chunk:
                raise ConnectionCutError
            missing -= len(chunk)
        elif not chunk:
            return
        yield chunk


def verify(source: Source, part: Path) -> None:
    """Compare a complete download with what is known about it."""
    check_size(source, str(part), part.stat().st_size)
    with part.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    if source.sha256 is None:
        print(f"{source.archive}: checksum not known: SHA-256 is {digest}")
    elif digest != source.sha256:
        discard(part)
        raise FetchError(
            f"{source.archive}: the SHA-256 is {digest} and should be {source.sha256}: "
            "the download was removed, run the same command to get it again"
        )


def check_size(source: Source, where: str, size: int | None) -> None:
    """Refuse a file of another length than the table says."""
    if size is not None and source.size is not None and size != source.size:
        raise FetchError(
            f"{where}: {size:,} bytes where {source.size:,} are expected: the published file has "
            "changed, or --base-url leads to another one"
        )


def check_space(part: Path, missing: int | None) -> None:
    """Refuse at once what would fill the disk hours later."""
    free = shutil.disk_usage(part.parent).free
    if missing is not None and missing > free:
        raise FetchError(
            f"{part.parent}: {missing:,} bytes are still to come and the disk has {free:,} left: "
            "free some space or choose another --folder"
        )


# ---- which version of the file a .part belongs to ----------------------------------------------


def record_of(part: Path) -> Path:
    """Name of the record beside a ``.part`` file."""
    return part.with_name(part.name + ".json")


def described(reply: Reply) -> dict[str, str]:
    """Collect what a reply says about the version of the file."""
    names = {"etag": "ETag", "last_modified": "Last-Modified"}
    return {key: reply.headers[name] for key, name in names.items() if name in reply.headers}


def validator(record: dict[str, str]) -> str | None:
    """Return what identifies the version byte for byte; a weak ETag does not."""
    etag = record.get("etag")
    return etag if etag and not etag.startswith("W/") else record.get("last_modified")


def read_record(part: Path, url: str) -> dict[str, str]:
    """Return the record, empty where there is none for this address."""
    try:
        record = json.loads(record_of(part).read_text())
    except (FileNotFoundError, ValueError):
        return {}
    is_ours = isinstance(record, dict) and record.get("url") == url
    return {key: str(value) for key, value in record.items()} if is_ours else {}


def write_record(part: Path, url: str, reply: Reply) -> None:
    """Remember which version of the file is being downloaded."""
    record_of(part).write_text(json.dumps({"url": url, **described(reply)}) + "\n")


def discard(part: Path) -> None:
    """Forget a download."""
    part.unlink(missing_ok=True)
    record_of(part).unlink(missing_ok=True)


# ---- unpacking ---------------------------------------------------------------------------------


def unpack(archive: Path, text: Path) -> None:
    """Decompress by the name's ending, without ever holding more than a chunk.

    Parameters
    ----------
    archive : Path
        The compressed file.
    text : Path
        The result, which gets this name only when it is whole.
    """
    unfinished = text.with_name(text.name + ".unpacking")
    try:
        with explain_full_disk(unfinished), unfinished.open("wb") as out:
            for chunk in unpacked(archive):
                out.write(chunk)
        unfinished.rename(text)
    except (EOFError, lzma.LZMAError, zlib.error, zstandard.ZstdError, OSError) as error:
        # bz2 and gzip report damage as an OSError without a number; the system's have one.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        archive.unlink()
        raise FetchError(
            f"{archive}: damaged ({error}): it was removed, run the same command to get it again"
        ) from None
    finally:
        unfinished.unlink(missing_ok=True)


def unpacked(archive: Path) -> Iterator[bytes]:
    """Yield the decompressed bytes; progress is counted in compressed ones."""
    size = archive.stat().st_size
    with archive.open("rb") as packed, progress(f"unpacking {archive.name}", 0, size) as bar:
        for chunk in DECODERS[archive.suffix](packed):
            bar.update(packed.tell() - bar.n)
            yield chunk


def read_zstd(packed: IO[bytes]) -> Iterator[bytes]:
    """Decompress zstd frames; unlike the package's own reader, miss an end that is cut off."""
    decoder = zstandard.ZstdDecompressor(max_window_size=1 << 31)
    frame = decoder.decompressobj()
    while data := packed.read(CHUNK):
        while data:
            if frame.eof:
                frame = decoder.decompressobj()
            yield frame.decompress(data)
            data = frame.unused_data
    if not frame.eof:
        raise EOFError("the end is missing")


def read_file(opener: Callable[[IO[bytes]], Unpacker], packed: IO[bytes]) -> Iterator[bytes]:
    """Decompress through one of the standard library's file objects."""
    with opener(packed) as handle:
        while chunk := handle.read(CHUNK):
            yield chunk


DECODERS: dict[str, Callable[[IO[bytes]], Iterator[bytes]]] = {
    ".bz2": partial(read_file, bz2.open),
    ".gz": partial(read_file, gzip.open),
    ".xz": partial(read_file, lzma.open),
    ".zst": read_zstd,
}


# ---- what the user sees ------------------------------------------------------------------------


@contextmanager
def explain_full_disk(path: Path) -> Iterator[None]:
    """Turn a full disk into a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise FetchError(
            f"{path}: the disk is full: free some space and run the same command again, "
            "it goes on from what is downloaded"
        ) from None


def progress(name: str, start: int, total: int | None) -> "tqdm[NoReturn]":
    """Return a bar counting bytes on stderr, silent where nobody looks on."""
    return tqdm(
        desc=name, initial=start, total=total, unit="B", unit_scale=True, disable=None, leave=False
    )


def remark(text: str) -> None:
    """Tell on stderr what is no result."""
    print(text, file=sys.stderr)


def print_table() -> None:
    """Print one line for each data set."""
    rows = [("NAME", "PAPERS", "FILES")]
    for entry in SETS:
        name = f"{entry.name} ({entry.alias})" if entry.alias else entry.name
        rows.append((name, entry.paper, " ".join(source.path for source in entry.sources)))
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    for name, paper, files in rows:
        print(f"{name:{widths[0]}}  {paper:{widths[1]}}  {files}")


def http_address(value: str) -> str:
    """Accept what urllib could speak HTTP to."""
    address = urlsplit(value)
    if address.scheme not in ("http", "https") or not address.netloc:
        raise argparse.ArgumentTypeError(f"{value!r} is not an http:// or https:// address")
    return value


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Download public data sets and unpack them to LIBSVM text; "
        "the same command continues a download that was stopped."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="data sets, as --list names them")
    parser.add_argument("--list", action="store_true", help="show the data sets and stop")
    parser.add_argument(
        "--folder", type=Path, default=Path("data/public"), help="where to (default: %(default)s)"
    )
    parser.add_argument(
        "--base-url", type=http_address, default=BASE_URL, help="where from (default: %(default)s)"
    )
    parser.add_argument(
        "--keep-archive", action="store_true", help="keep the compressed files as well"
    )
    arguments = parser.parse_args(argv)
    if not arguments.names and not arguments.list:
        parser.error("name at least one data set, or --list to see them")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Do what the command line says."""
    if arguments.list:
        print_table()
        return
    # All names are looked up before the first of them takes an hour.
    wanted = dict.fromkeys(find_set(name) for name in arguments.names)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    for entry in wanted:
        for source in entry.sources:
            fetch(source, arguments.folder, arguments.base_url, keep_archive=arguments.keep_archive)


def main(argv: list[str] | None = None) -> int:
    """Run the command.

    Parameters
    ----------
    argv : list of str, optional
        Arguments, those of the process by default.

    Returns
    -------
    int
        Exit code: 0 done, 1 error or stopped, 2 usage.
    """
    arguments = parse_arguments(argv)
    try:
        run(arguments)
    except UnknownSetError as error:
        remark(f"error: {error}")
        return 2
    except FetchError as error:
        remark(f"error: {error}")
        return 1
    except OSError as error:
        where = arguments.folder if error.filename is None else error.filename
        remark(f"error: {where}: {error.strerror}; check --folder and its permissions")
        return 1
    except KeyboardInterrupt:
        remark("\nstopped: what is downloaded is kept, the same command resumes")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
