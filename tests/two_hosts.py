"""Two hosts for tests, on this machine: namespaces that are joined by a virtual cable.

A host has a name, a network, shared memory and mounts of its own; files elsewhere it shares with
the other one, as hosts of a cluster do. Nothing of it has a name outside. A process that waits for
the end of its input holds it: when the tests end, however that is, it ends, and with the last
process of a host the kernel takes host and cable away. Needs root, `ip`, `unshare`, `nsenter` and
`mount`.
"""

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from launching import LIMIT, MPI4PY, MPIEXEC, environment
from processes import finished, started

CABLE = "veth0"  # the name of its end in both hosts

# Other than a tmpfs for all, what lies there is not seen by the other host; the folder of the test,
# which may lie there too, is.
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
    """Say why there can be no two hosts here; nothing if there can."""
    missing = [name for name in ("ip", "unshare", "nsenter", "mount") if not shutil.which(name)]
    if missing:
        return f"two hosts need {', '.join(missing)}"
    if os.geteuid() != 0:
        return "two hosts need root"
    tried = finished(
        ["unshare", "--net", "--uts", "--ipc", "--mount", "ip", "link", "add", "type", "veth"]
    )
    return f"two hosts cannot be made here: {tried.stderr.strip()}" if tried.returncode else ""


@dataclass
class Host:
    """A name, and the process that holds what belongs to it."""

    name: str
    holder: Popen[str]

    def processes(self) -> list[int]:
        """Processes of this host, but for the one that holds it."""
        own = os.readlink(f"/proc/{self.holder.pid}/ns/net")
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(folder / "ns" / "net") == own:
                    found.append(int(folder.name))
        return [pid for pid in found if pid != self.holder.pid]

    def kill_all(self) -> None:
        """Kill them all."""
        end = time.monotonic() + LIMIT
        while (pids := self.processes()) and time.monotonic() < end:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def sent(self) -> int:
        """Bytes that have gone into the cable, with all headers."""
        lines = Path(f"/proc/{self.holder.pid}/net/dev").read_text().splitlines()
        (line,) = [line for line in lines if line.strip().startswith(f"{CABLE}:")]
        return int(line.partition(":")[2].split()[8])

    def wait_for_cable(self) -> None:
        """Wait until the system says of the cable that it is connected, which takes a moment."""
        state = f"/sys/class/net/{CABLE}/operstate"
        self.run("sh", "-c", f"until [ $(cat {state}) = up ]; do sleep 0.02; done")

    def run(self, *command: Any) -> str:
        """Run a short command there; its output."""
        done = finished([*self.enter(), *map(str, command)], check=True)
        return done.stdout

    def enter(self) -> list[str]:
        """What comes before a command that is to run there."""
        return ["nsenter", "-t", str(self.holder.pid), "--net", "--uts", "--ipc", "--mount"]


@dataclass
class TwoHosts:
    """Two hosts and the cable between them."""

    hosts: tuple[Host, Host]
    agent: Path

    def start(self, per_host: int, *program: Any) -> AbstractContextManager[Popen[str]]:
        """Start on the first host what is to run so often on each: ``FILE ...``, ``-m ...``."""
        names = ",".join(host.name for host in self.hosts)
        line = [
            *self.hosts[0].enter(), MPIEXEC, "-bind-to", "none", "-iface", CABLE,
            "-launcher", "ssh", "-launcher-exec", self.agent,
            "-hosts", names, "-ppn", per_host, "-n", 2 * per_host, *MPI4PY, *program,
        ]  # fmt: skip
        return started(line, stdout=PIPE, stderr=PIPE, text=True, env=environment())

    def run(self, per_host: int, *program: Any) -> tuple[int, int]:
        """Run it to its end, which is a good one; bytes that each host has sent to the other."""
        before = [host.sent() for host in self.hosts]
        with self.start(per_host, *program) as running:
            _, said = running.communicate()
        assert running.returncode == 0, said
        one, two = (host.sent() - b for host, b in zip(self.hosts, before, strict=True))
        return one, two

    def cut(self) -> None:
        """Pull the cable."""
        self.hosts[0].run("ip", "link", "set", CABLE, "down")


@contextlib.contextmanager
def two_hosts(folder: Path) -> Iterator[TwoHosts]:
    """Make two hosts that see the folder, and files outside of /dev/shm; they go away after."""
    with contextlib.ExitStack() as stack:
        hosts = tuple(stack.enter_context(_host(f"sbm{k}", folder)) for k in (1, 2))
        one, two = (str(host.holder.pid) for host in hosts)
        _ip("link", "add", CABLE, "netns", one, "type", "veth", "peer", CABLE, "netns", two)
        for k, host in enumerate(hosts, 1):
            host.run("ip", "address", "add", f"10.77.0.{k}/24", "dev", CABLE)
            host.run("ip", "link", "set", CABLE, "up")
            (folder / f"{host.name}.host").write_text(str(host.holder.pid))
        for host in hosts:
            host.wait_for_cable()
        agent = folder / "agent"
        agent.write_text(_AGENT)
        agent.chmod(0o755)
        yield TwoHosts(hosts, agent)


@contextlib.contextmanager
def _host(name: str, folder: Path) -> Iterator[Host]:
    line = ["unshare", "--net", "--uts", "--ipc", "--mount", "sh", "-c", _HOLD, "sh", name, folder]
    with started(line, stdin=PIPE, stdout=PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        host = Host(name, holder)
        try:
            yield host
        finally:
            host.kill_all()


def _ip(*words: str) -> None:
    finished(["ip", *words], check=True)
