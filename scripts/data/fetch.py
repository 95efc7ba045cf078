"""Download the public data sets of the papers and unpack them to LIBSVM text.

    python -m scripts.data.fetch --list
    python -m scripts.data.fetch a9a real-sim          # into data/public
    python -m scripts.data.fetch kddb --folder /big/disk --keep-archive

A download is tried three times. A file gets its own name only when it is complete. Results go to
stdout; the exit code is 0 (done), 1 (error) or 2 (usage).
"""

import argparse
import contextlib
import hashlib
import http.client
import io
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from sbm.errors import DataError
from sbm.inputs.packed import is_packed
from sbm.inputs.text import Source, unpacked

BASE_URL = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets"
CHUNK = 1 << 20
TIMEOUT = 60.0  # seconds without a byte from the server
ATTEMPTS = 3
PAUSE = 5.0  # seconds between attempts


@dataclass(frozen=True)
class DataSet:
    """A data set: its files below the base address, the papers that use it, and its name there."""

    name: str
    files: tuple[str, ...]
    paper: str = "-"
    alias: str | None = None


def _halves(folder: str, name: str, ending: str = "") -> tuple[str, str]:
    return f"{folder}/{name}{ending}", f"{folder}/{name}.t{ending}"


_WW, _DCD, _BOTH = "Weston-Watkins 2016", "DCD 2008", "DCD 2008, LIBLINEAR 2008"
SETS = (
    DataSet("webspam", ("binary/webspam_wc_normalized_trigram.svm.xz",), "SBM 2011"),
    DataSet("kddb", _halves("binary", "kddb", ".bz2"), "SBM 2011", "kddcup10"),
    DataSet("kdda", _halves("binary", "kdda", ".bz2")),
    DataSet("rcv1", ("binary/rcv1_train.binary.bz2", "binary/rcv1_test.binary.bz2"), _BOTH),
    DataSet("news20.binary", ("binary/news20.binary.bz2",), _BOTH),
    DataSet("real-sim", ("binary/real-sim.bz2",), _DCD),
    DataSet("a9a", _halves("binary", "a9a"), _DCD),
    DataSet("w8a", _halves("binary", "w8a")),
    DataSet("news20", _halves("multiclass", "news20", ".bz2"), _WW),
    DataSet("letter.scale", _halves("multiclass", "letter.scale"), _WW),
    DataSet("mnist", _halves("multiclass", "mnist", ".bz2")),
    DataSet("sector", _halves("multiclass/sector", "sector", ".bz2")),
    DataSet("aloi", ("multiclass/aloi.bz2",)),
)

# SHA-256 of a file as published, by its path. Enter only verified ones; a download prints its own.
CHECKSUMS: dict[str, str] = {}


class FetchError(Exception):
    """A download failed; the message has the reason and a remedy."""


def fetch(path: str, folder: Path, base_url: str, *, keep_archive: bool) -> None:
    """Download a file and unpack it, unless the text is already there.

    Parameters
    ----------
    path : str
        Of the file below the base address.
    folder : Path
        An existing folder.
    keep_archive : bool
        Keep the compressed file, too.
    """
    archive = folder / PurePosixPath(path).name
    text = archive.with_suffix("") if is_packed(archive.name) else archive
    if text.exists():
        print(f"{text}: already there")
        return
    if not archive.exists():
        with _unfinished(archive) as part:
            digest = _download(f"{base_url.rstrip('/')}/{path}", part)
            expected = CHECKSUMS.get(path)
            if expected is None:
                print(f"{archive.name}: checksum not known: SHA-256 is {digest}")
            elif digest != expected:
                raise FetchError(f"{archive.name}: SHA-256 is {digest}, expected {expected}")
    if archive != text:
        _unpack(archive, text)
        if not keep_archive:
            archive.unlink()
    print(f"{text}: {text.stat().st_size:,} bytes")


@contextlib.contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    """Give another name to write to; the file is renamed if the block succeeds, else removed."""
    part = path.with_name(path.name + ".part")
    try:
        yield part
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)


def _download(url: str, target: Path) -> str:
    """Download to a file, with retries; return its SHA-256."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            digest = hashlib.sha256()
            with urllib.request.urlopen(url, timeout=TIMEOUT) as reply, target.open("wb") as out:
                while chunk := reply.read(CHUNK):
                    digest.update(chunk)
                    out.write(chunk)
                missing = reply.length  # http.client ignores a short body read in chunks
            if not missing:
                return digest.hexdigest()
            reason = f"the connection ended with {missing:,} bytes missing"
        except urllib.error.HTTPError as error:
            reason = f"HTTP {error.code} {error.reason}"
            if error.code < 500 and error.code != 429:
                break
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            reason = str(error)
        except http.client.HTTPException as error:
            reason = repr(error)
        if attempt < ATTEMPTS:
            print(f"{url}: {reason}; trying again", file=sys.stderr)
            time.sleep(PAUSE)
    raise FetchError(f"{url}: {reason}; check the network and --base-url")


def _unpack(archive: Path, text: Path) -> None:
    """Decompress by the name's ending; remove a damaged archive."""
    try:
        with (
            _unfinished(text) as part,
            unpacked(Source(str(archive))) as packed,
            part.open("wb") as out,
        ):
            shutil.copyfileobj(io.BufferedReader(packed, CHUNK), out, CHUNK)
    except DataError as error:
        archive.unlink()
        raise FetchError(
            f"{archive}: damaged ({error}); removed. Run the same command to download it again"
        ) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts.data.fetch",
        description="Download public data sets and unpack them to LIBSVM text.",
    )
    known = [name for entry in SETS for name in (entry.name, entry.alias) if name]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(known)}")
    parser.add_argument("--list", action="store_true", help="list the data sets and exit")
    parser.add_argument(
        "--folder", type=Path, default=Path("data/public"), help="folder (default: %(default)s)"
    )
    parser.add_argument("--base-url", default=BASE_URL, help="base address (default: %(default)s)")
    parser.add_argument(
        "--keep-archive", action="store_true", help="also keep the compressed files"
    )
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.list:
        for entry in SETS:
            name = f"{entry.name} ({entry.alias})" if entry.alias else entry.name
            print(f"{name:20} {entry.paper:26} {' '.join(entry.files)}")
        return 0
    by_name = {name: entry for entry in SETS for name in (entry.name, entry.alias)}
    unknown = [name for name in args.names if name not in by_name]
    if unknown or not args.names:
        parser.error(f"unknown data sets: {unknown}" if unknown else "name a data set, or --list")
    try:
        args.folder.mkdir(parents=True, exist_ok=True)
        for path in dict.fromkeys(path for name in args.names for path in by_name[name].files):
            fetch(path, args.folder, args.base_url, keep_archive=args.keep_archive)
    except (FetchError, OSError) as error:
        print(f"scripts.data.fetch: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
