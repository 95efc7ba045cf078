"""Compiling the kernels once, in a process of its own.

Compiling takes tens of megabytes that a process never gives back, so it does not happen in one
whose memory is bounded: the first command of its kind starts a child that runs it on a handful of
rows, and numba keeps the machine code on disk. A marker beside that code says it is there.
"""

import os
import platform
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import numba

import sbm
from sbm.jobs.progress import Progress
from sbm.solver.kernels import svc

__all__ = ["prepare"]

_TINY = {
    "ones": "".join(f"{s}1 {k}:1 {k + 7}:1\n" for k in range(1, 20) for s in "+-"),
    "real": "".join(f"{s}1 {k}:0.5 {k + 7}:2.25\n" for k in range(1, 20) for s in "+-"),
}


def prepare(command: str, value_type: str, progress: Progress) -> None:
    """See to it that a command's kernels are on disk.

    Parameters
    ----------
    command : {"split", "train"}
    value_type : {"ones", "float32", "float64"}
    progress : Progress
        Is told when this takes a while.
    """
    folder = Path(svc.solve.stats.cache_path or tempfile.gettempdir())
    marker = folder / f"sbm-{_stamp()}-{command}-{value_type}.ready"
    code_is_there = any(folder.glob("svc.solve*.nbi")) or command == "split"
    if "SBM_WARMING" in os.environ or (marker.exists() and code_is_there):
        return
    if command == "train":  # its child splits a few rows first
        prepare("split", "float32" if value_type == "ones" else value_type, progress)
    progress.note("compiling, once; this takes a few seconds")
    code = f"from sbm.jobs.warm import run; run({command!r}, {value_type!r})"
    environment = {**os.environ, "SBM_WARMING": "1"}
    child = subprocess.run(
        [sys.executable, "-c", code], env=environment, check=False, capture_output=True
    )
    if child.returncode != 0:
        last = child.stderr.decode("utf-8", "replace").strip().rsplit("\n", 1)[-1]
        progress.note(f"compiling ahead failed ({last}); compiling in this process instead")
    elif marker.parent.is_dir():
        try:
            marker.touch()
        except OSError:
            progress.note(f"cannot write to {marker.parent}: compiling anew in every process")


def _stamp() -> str:
    """Name the code, compiler and processor that machine code on disk belongs to."""
    root = Path(sbm.__file__).parent
    facts = [sys.version, numba.__version__, platform.processor(), str(root)]
    for path in sorted(root.rglob("*.py")):
        facts.append(f"{path.name} {path.stat().st_mtime_ns}")
    return f"{zlib.crc32(' '.join(facts).encode()):08x}"


def run(command: str, value_type: str) -> None:
    """Run a command on a handful of rows, in the child."""
    from sbm.jobs.split import split
    from sbm.jobs.train import train
    from sbm.settings import Settings

    dtype = "float32" if value_type == "ones" else value_type
    kinds = _TINY if command == "split" else {"": _TINY["ones" if value_type == "ones" else "real"]}
    with tempfile.TemporaryDirectory() as folder:
        for text in kinds.values():
            source, store = Path(folder, "t.svm"), Path(folder, "t.sbm")
            source.write_text(text, "ascii")
            split([source], store, dtype=dtype, blocks=2, force=True)
        if command == "train":
            train(store, Path(folder, "t.model"), Settings(rounds=2))
