"""Ranks that are killed or hang while they exchange messages; the same command must then resume.

Each case takes a training by two or three processes, and a number of messages after which one of
them gets SIGKILL, or SIGSTOP: then the others must end with code 75 after `--comm-timeout`. No
process may be left, and the model must not exist or be whole. Then the command runs again, now and
then killed again, and the model must have the bytes of a run that nobody killed.

    mpiexec -n 2 python -m mpi4py -m scripts.torture.ranks RANK COUNT SIGNAL COMMAND ...

runs a command of sbm in which process RANK sends itself a signal before its COUNT-th message.
"""

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import sbm
from scripts.torture.tally import Tally, Tell, WrongError

TRAININGS = (
    ("-C", "0.1", "--solver", "dual"),
    ("-C", "0.1", "--parts", "blocks", "--cache-frac", "0.3", "--checkpoint-every", "0.001s"),
    ("-C", "0.1", "--solver", "newton", "--loss", "squared_hinge"),
    ("--loss", "log_loss", "--parts", "blocks", "--checkpoint-every", "0.001s"),
    ("--loss", "crammer_singer", "--tol", "0.01"),
    ("--loss", "weston_watkins", "--tol", "0.01"),
)
JOINT = ("crammer_singer", "weston_watkins")  # of so many classes that weights are by class
SIZES = (2, 3)
MOST_SECONDS = 100.0
MOST_TO_END = 10.0  # seconds, after the launcher
TIMEOUT = "2s"
AGAIN = 0.25  # share of the cases that are killed again
HANGING = 8  # every so many cases a rank hangs instead
EXIT_TIMEOUT, KILLED = 75, 9  # mpiexec may return the signal that it sent to another rank


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    said: str
    messages: int  # of the first process; 0 if it did not come to its end


class Ranks:
    """A training of a store by several processes."""

    def __init__(self, folder: Path, size: int, words: Sequence[str]) -> None:
        self.size = size
        self._folder, self._words = folder, words
        self.model = folder / "m.model"
        found = self.run()
        if found.code:
            raise WrongError(f"an undisturbed run exits with {found.code}: {found.said}")
        self.expected, self.messages = self.model.read_bytes(), found.messages
        self.clear()

    def clear(self) -> None:
        """Remove the model and its run."""
        self.model.unlink(missing_ok=True)
        shutil.rmtree(f"{self.model}.run", ignore_errors=True)

    def run(self, rank: int = -1, count: int = 0, how: str = "SIGKILL") -> Ended:
        """Run the command, disturbed if `rank` is at least 0; fail if a process stays."""
        mpiexec = Path(sys.executable).with_name("mpiexec")
        worker = (sys.executable, "-m", "mpi4py", "-m", "scripts.torture.ranks")
        command = ("train", "-q", self._folder / "d.sbm", "-o", self.model, "--mem", "300MB",
                   "--threads", "1", "--comm-timeout", TIMEOUT, *self._words)  # fmt: skip
        line = [mpiexec, "-n", self.size, *worker, rank, count, how, *command]
        for path in self._folder.glob("*.pid"):
            path.unlink()
        environment = {**os.environ, "SBM_TORTURE": str(self._folder)}
        try:
            done = subprocess.run(
                [str(word) for word in line], capture_output=True, text=True, env=environment,
                timeout=MOST_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise WrongError(f"the launcher waits for more than {MOST_SECONDS:g} s") from None
        finally:
            left = [path for path in self._folder.glob("*.pid") if _end(int(path.read_text()))]
        if left:
            raise WrongError(f"{len(left)} processes were left")
        counted = re.search(r"^messages (\d+)$", done.stderr, re.M)
        return Ended(done.returncode, done.stderr.strip(), int(counted[1]) if counted else 0)


def _end(pid: int) -> bool:
    """End a process of ours; return whether it was there for more than a few seconds."""
    with contextlib.suppress(OSError):
        path, latest = Path(f"/proc/{pid}/cmdline"), time.monotonic() + MOST_TO_END
        while "scripts.torture.ranks" in path.read_text() and time.monotonic() < latest:
            time.sleep(0.02)
        if "scripts.torture.ranks" in path.read_text():
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def _try(number: int, seed: int, all_ranks: Sequence[Ranks], tally: Tally) -> list[str]:
    """Run a case; return what went wrong."""
    choose = random.Random(f"{seed} {number}")
    one = all_ranks[number % len(all_ranks)]
    one.clear()
    hangs = number % HANGING == HANGING - 1
    how = "SIGSTOP" if hangs else "SIGKILL"
    tally.count("by signal", how)
    again = choose.random() < AGAIN
    for signal_name in (how, *["SIGKILL"] * again):
        rank = choose.randrange(one.size)
        ended = one.run(rank, choose.randint(1, one.messages), signal_name)
        tally.count("by exit code", str(ended.code))
        if signal_name == "SIGSTOP" and ended.code not in (0, EXIT_TIMEOUT, KILLED):
            return [f"exit code {ended.code} after a hanging rank: {ended.said}"]
        if one.model.exists() and one.model.read_bytes() != one.expected:
            return ["a model of other bytes is there after the kill"]
    ended = one.run()
    if ended.code:
        return [f"the same command then exits with {ended.code}: {ended.said}"]
    return [] if one.model.read_bytes() == one.expected else ["the model has other bytes"]


def run(cases: int, seed: int, folder: Path, tell: Tell, only: int | None = None) -> Tally:
    """Kill ranks, and let them hang, while they exchange messages."""
    tally, all_ranks = Tally("ranks"), []
    for k, words in enumerate(TRAININGS):
        for size in SIZES:
            mine = folder / f"{k}-{size}"
            mine.mkdir(parents=True)
            (_make_many_classes if words[1] in JOINT else _make_store)(mine)
            all_ranks.append(Ranks(mine, size, words))
    numbers = range(cases) if only is None else [only]
    tally.try_each(
        numbers, lambda number: _try(number, seed, all_ranks, tally), tell, f"{seed} {{}}"
    )
    return tally


def _make_many_classes(folder: Path) -> None:
    choose, lines = random.Random(0), []
    for i in range(1200):
        own = choose.sample(range(50 * (i % 600) + 1, 50 * (i % 600) + 51), 10)
        ids = sorted({*own, *(choose.randint(1, 30_000) for _ in range(30))})
        lines.append(" ".join([str(i % 600), *(f"{k}:1" for k in ids)]))
    _split(folder, lines)


def _make_store(folder: Path) -> None:
    choose, lines = random.Random(0), list[str]()
    for _ in range(400):
        features = sorted({int(300 * choose.random() ** 2) + 1 for _ in range(8)})
        label = 1 if sum(features[:3]) % 3 else -1
        lines.append(" ".join([str(label), *(f"{k}:1" for k in features)]))
    _split(folder, lines)


def _split(folder: Path, lines: Sequence[str]) -> None:
    (folder / "d.svm").write_text("\n".join(lines) + "\n")
    sbm.split([folder / "d.svm"], folder / "d.sbm", blocks=4)


# --------------------------------------------------------------------------------------- a rank


def main() -> None:
    """Run a command of sbm as one of its processes, which may send itself a signal."""
    from sbm.__main__ import main as command
    from sbm.distributed.comm import MpiComm

    rank, count, how = sys.argv[1:4]
    own = os.environ["PMI_RANK"]
    Path(os.environ["SBM_TORTURE"], f"{own}.pid").write_text(str(os.getpid()))
    wait, calls = MpiComm._wait, [0]

    def counted(self: MpiComm, *requests: object) -> None:
        calls[0] += 1
        if own == rank and calls[0] == int(count):
            os.kill(os.getpid(), signal.Signals[how])
        wait(self, *requests)  # type: ignore[arg-type]

    MpiComm._wait = counted  # type: ignore[method-assign]
    sys.argv[1:] = sys.argv[4:]
    try:
        command()
    finally:
        if own == "0":
            print(f"messages {calls[0]}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
