"""For which processor code is compiled, and the names of files of machine code.

The name of a file says for what it was compiled: the kernel, the types of its arguments, its
source with that of all kernel files it imports, the compiler, and the processor.
"""

import functools
import hashlib
import importlib.util
import os
import platform
import re
import sys
import zlib
from pathlib import Path

from sbm.errors import SbmError

__all__ = [
    "LEVELS",
    "PROCESSOR",
    "Kinds",
    "has_linker",
    "level",
    "machine",
    "source_hash",
    "sources",
    "symbol_name",
]

# Names the processor to compile for, one of LEVELS, instead of the current one.
PROCESSOR = "SBM_PROCESSOR"
# Levels of x86-64 processors, with features as LLVM names them, and as Linux does.
LEVELS = {
    "x86-64-v3": {
        "avx": "avx",
        "avx2": "avx2",
        "bmi": "bmi1",
        "bmi2": "bmi2",
        "cx16": "cx16",
        "f16c": "f16c",
        "fma": "fma",
        "lzcnt": "abm",
        "movbe": "movbe",
        "popcnt": "popcnt",
        "sahf": "lahf_lm",
        "sse3": "pni",
        "sse4.1": "sse4_1",
        "sse4.2": "sse4_2",
        "ssse3": "ssse3",
    },
    "generic": {},
}

PACKAGE = Path(__file__).resolve().parent.parent

# Settings of numba that do not affect the generated code.
_SAME_CODE = ("NUMBA_CACHE_DIR=", "NUMBA_NUM_THREADS=", "NUMBA_THREADING_LAYER=")
# An import statement, up to the end of the line or parenthesis. (Parsing with ast takes 5 ms.)
_IMPORT = re.compile(rb"^[ \t]*(?:from|import) [^\n(]*(?:\([^)]*\))?", re.MULTILINE)
_WORD = re.compile(rb"\w+")

Kinds = tuple[str, ...]


def has_linker() -> bool:
    """Whether `linker.link` makes libraries for this system; otherwise LLVM links."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


@functools.cache
def _described() -> tuple[str, frozenset[str]]:
    """Return what identifies this processor, and its features as Linux names them."""
    facts: dict[str, str] = {}
    try:
        with open("/proc/cpuinfo", "rb") as file:  # all cores would be much text
            first = file.read(8192).partition(b"\n\n")[0].decode("utf-8", "replace")
    except OSError:
        first = ""
    for line in first.splitlines():
        name, _, value = line.partition(":")
        facts[name.strip()] = value.strip()
    features = frozenset(facts.get("flags", "").split())
    identity = [facts.get(name, "") for name in ("vendor_id", "cpu family", "model")]
    if not features:  # not x86-64 Linux: the system's own words
        identity.append(platform.processor())
    return f"{sys.platform} {platform.machine()} {identity} {sorted(features)}", features


def level() -> str | None:
    """Return the level that `PROCESSOR` names.

    Raises
    ------
    SbmError
        If there is no such level.
    """
    name = os.environ.get(PROCESSOR)
    if name is not None and name not in LEVELS:
        raise SbmError(f"{PROCESSOR} is {name}; choose one of {', '.join(LEVELS)}")
    return name


def runs(name: str) -> bool:
    """Whether this processor runs the code of a level."""
    return has_linker() and set(LEVELS[name].values()) <= _described()[1]


@functools.cache
def _compiler_version(package: str) -> bytes:
    """Return the text that says a package's version, without importing it; empty if missing."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        return b""
    try:
        return Path(found.origin).with_name("_version.py").read_bytes()
    except OSError:
        return b""


def machine() -> str:
    """Return a hash (8 hex digits) of the processor and of numba with its settings."""
    numba = sorted(f"{k}={os.environ[k]}" for k in os.environ if k.startswith("NUMBA_"))
    numba = [setting for setting in numba if not setting.startswith(_SAME_CODE)]
    state = f"{level() or _described()[0]} {numba!a}".encode()
    for package in ("numba", "llvmlite"):
        state += _compiler_version(package)
    return f"{zlib.crc32(state):08x}"


def source_of(module: str) -> Path:
    """Return the file of a module."""
    return PACKAGE.joinpath(*module.split(".")[1:]).with_suffix(".py")


def sources(module: str) -> list[Path]:
    """Return the file of a module and of all kernels it imports, directly or indirectly."""
    files = [source_of(module)]
    kernels = _kernels()
    for source in files:  # the list grows during the loop
        beside = _beside(source.parent)
        for name in _imports(_as_it_is(source)):
            helper = beside.get(name) or kernels.get(name)
            if helper is not None and helper not in files:
                files.append(helper)
    return files


# What a process has found out about files is kept: a training calls dozens of kernels.
_AsItIs = tuple[Path, int, int]  # a file, with the time of its last change and its size


def _as_it_is(path: Path) -> _AsItIs:
    status = path.stat()
    return path, status.st_mtime_ns, status.st_size


@functools.cache
def _beside(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in folder.glob("[a-z]*.py")}


@functools.cache
def _kernels() -> dict[str, Path]:
    return {path.stem: path for path in PACKAGE.glob("*/kernels/[a-z]*.py")}


@functools.cache
def _imports(source: _AsItIs) -> list[str]:
    """Return all words in a file's imports; too many are harmless."""
    imports = _IMPORT.findall(source[0].read_bytes())
    return sorted({word.decode() for line in imports for word in _WORD.findall(line)})


@functools.cache
def _hash(files: tuple[_AsItIs, ...]) -> str:
    digest = hashlib.blake2b(digest_size=6)
    for path, _, _ in files:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def source_hash(module: str) -> str:
    """Return a hash (12 hex digits) of a kernel module's sources and of how they are compiled."""
    files = (PACKAGE / "compiled" / "compiler.py", *sources(module))
    return _hash(tuple(map(_as_it_is, files)))


def symbol_name(module: str, name: str, kinds: Kinds) -> str:
    """Return the symbol of a kernel for some types of arguments in a library."""
    short = module.removeprefix("sbm.").replace(".kernels.", "-")
    types = zlib.crc32(" ".join(kinds).encode())
    return f"{short}-{name}.{types:08x}.{source_hash(module)}"
