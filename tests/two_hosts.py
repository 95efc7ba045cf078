"""Two hosts for tests on this machine: namespaces joined by a virtual cable.

Each host has its own name, network, shared memory and mounts. Other files are shared, as in a
cluster. A process that waits for the end of its input keeps a host alive: it ends with the tests,
and the kernel then removes host and cable. Needs root, `ip`, `unshare`, `nsenter` and `mount`.
"""

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from launching import MPI4PY, MPIEXEC, environment
from processes import finished, started, wait_until

CABLE = "veth0"  # the name of its end in both hosts
NAMESPACES = ["--net", "--uts", "--ipc", "--mount"]

# Other than a tmpfs for all, /dev/shm is not seen by the other host; the folder of the test, which
# may lie there too, is.
_HOLD = """
set -e
hostname "$1"
ip link set lo up
mount -t sysfs sysfs /sys  # of this network
exec 9< "$2"
mount -t tmpfs tmpfs /dev/shm
mkdir -p "$2"
mount --no-canonicalize --bind /proc/self/fd/9 "$2"
exec 9<&-
echo held
exec cat
"""

# In place of ssh: [-OPTION...] HOST COMMAND...
_AGENT = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
pid=$(cat "$(dirname "$0")/$1.host")
shift
exec nsenter -t "$pid" --net --uts --ipc --mount sh -c "$*"
"""


def why_not() -> str:
    """Return why there can be no two hosts here; empty if there can."""
    missing = [name for name in ("ip", "unshare", "nsenter", "mount") if not shutil.which(name)]
    if missing or os.geteuid() != 0:
        return f"two hosts need {', '.join(missing) or 'root'}"
    tried = finished(["unshare", *NAMESPACES, "ip", "link", "add", "type", "veth"])
    return f"two hosts cannot be made here: {tried.stderr.strip()}" if tried.returncode else ""


class TwoHosts:
    """Two hosts, by the processes that hold them, and the cable between them."""

    def __init__(self, folder: Path, holders: list[int]) -> None:
        self._folder, self._holders = folder, holders
        one, two = map(str, holders)
        ends = ["netns", one, "type", "veth", "peer", CABLE, "netns", two]
        finished(["ip", "link", "add", CABLE, *ends], check=True)
        up = f"until [ $(cat /sys/class/net/{CABLE}/operstate) = up ]; do sleep 0.02; done"
        for k in (0, 1):
            self._run(k, "ip", "address", "add", f"10.77.0.{k + 1}/24", "dev", CABLE)
            self._run(k, "ip", "link", "set", CABLE, "up")
            (folder / f"sbm{k + 1}.host").write_text(str(holders[k]))
        for k in (0, 1):
            self._run(k, "sh", "-c", up)
        (folder / "agent").write_text(_AGENT)
        (folder / "agent").chmod(0o755)

    def _run(self, host: int, *command: str) -> None:
        finished([*self._enter(host), *command], check=True)

    def _enter(self, host: int) -> list[str]:
        return ["nsenter", "-t", str(self._holders[host]), *NAMESPACES]

    def _sent(self, host: int) -> int:
        """Return the bytes that have gone into the cable, with all headers."""
        lines = Path(f"/proc/{self._holders[host]}/net/dev").read_text().splitlines()
        (line,) = [line for line in lines if line.strip().startswith(f"{CABLE}:")]
        return int(line.partition(":")[2].split()[8])

    def start(self, per_host: int, *program: Any) -> AbstractContextManager[Popen[str]]:
        """Start a program several times on each host: ``FILE ...``, ``-m ...``."""
        line = [
            *self._enter(0), MPIEXEC, "-bind-to", "none", "-iface", CABLE,
            "-launcher", "ssh", "-launcher-exec", self._folder / "agent",
            "-hosts", "sbm1,sbm2", "-ppn", per_host, "-n", 2 * per_host, *MPI4PY, *program,
        ]  # fmt: skip
        return started(line, stdout=PIPE, stderr=PIPE, text=True, env=environment())

    def run(self, per_host: int, *program: Any) -> list[int]:
        """Run a program until it succeeds; return the bytes that each host sent to the other."""
        before = [self._sent(host) for host in (0, 1)]
        with self.start(per_host, *program) as running:
            _, said = running.communicate()
        assert running.returncode == 0, said
        return [self._sent(host) - before[host] for host in (0, 1)]

    def cut(self) -> None:
        """Disconnect the cable."""
        self._run(0, "ip", "link", "set", CABLE, "down")

    def kill(self, host: int) -> None:
        """Kill all processes of a host but for the one that holds it."""
        wait_until(lambda: not _kill_all(self._holders[host]))


def _kill_all(holder: int) -> list[int]:
    """Kill the processes of a host; return those there were."""
    own, found = os.readlink(f"/proc/{holder}/ns/net"), []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.readlink(folder / "ns" / "net") == own and folder.name != str(holder):
                os.kill(int(folder.name), signal.SIGKILL)
                found.append(int(folder.name))
    return found


@contextlib.contextmanager
def two_hosts(folder: Path) -> Iterator[TwoHosts]:
    """Make two hosts that see the folder, and files outside of /dev/shm; they go away after."""
    holders: list[int] = []
    with contextlib.ExitStack() as stack:
        for name in ("sbm1", "sbm2"):
            line = ["unshare", *NAMESPACES, "sh", "-c", _HOLD, "sh", name, folder]
            holder = stack.enter_context(started(line, stdin=PIPE, stdout=PIPE, text=True))
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            holders.append(holder.pid)
        try:
            yield TwoHosts(folder, holders)
        finally:
            wait_until(lambda: not any(_kill_all(holder) for holder in holders))
