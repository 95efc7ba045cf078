"""A process of a training that meets trouble: ``faulty_ranks.py FOLDER TROUBLE COMMAND ...``.

A trouble is a JSON list ``[rank, function, when, count, signal]``: process `rank` sends itself the
signal before or after its `count`-th call of the function; null is none. It leaves ``RANK.pid`` in
the folder when it starts, ``RANK.there`` when it comes to the call, and ``RANK.peak``, the most
memory it took in bytes, when it ends.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sbm.__main__ import main as run
from sbm.distributed.comm import MpiComm
from sbm.jobs.engine.engine import Engine
from sbm.jobs.training.ranks import Status
from sbm.store.model import Model
from sbm.store.run import Run

OWNERS = {owner.__name__: owner for owner in (Engine, Model, MpiComm, Run, Status)}


def meet(function: str, when: str, count: int, what: Callable[[], None]) -> None:
    """Do something before or after a call of ``Class.method``."""
    name, method = function.split(".")
    original, calls = getattr(OWNERS[name], method), [0]

    def faulty(*arguments: Any, **options: Any) -> Any:
        calls[0] += 1
        is_it = calls[0] == count
        if is_it and when == "before":
            what()
        result = original(*arguments, **options)
        if is_it and when == "after":
            what()
        return result

    setattr(OWNERS[name], method, faulty)


def main(folder: Path, trouble: list[Any] | None) -> None:
    """Run the command line."""
    rank = int(os.environ["PMI_RANK"])
    (folder / f"{rank}.pid").write_text(str(os.getpid()))

    def fall() -> None:
        assert trouble is not None
        (folder / f"{rank}.there").touch()
        os.kill(os.getpid(), signal.Signals[trouble[4]])

    if trouble is not None and trouble[0] == rank:
        meet(*trouble[1:4], fall)
    try:
        run()
    finally:
        peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        (folder / f"{rank}.peak").write_text(str(peak))


if __name__ == "__main__":
    arguments = sys.argv[1:3]
    sys.argv[1:] = sys.argv[3:]
    main(Path(arguments[0]), json.loads(arguments[1]))
