"""Virtual hosts on one machine: network namespaces with a link to a switch, each with its own PID namespace."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import psutil

START_SECONDS = 10.0
QUEUE_MS = 50
BURST_NBYTES = 256_000
_made = itertools.count()


@dataclass(frozen=True)
class Host:
    """A virtual host.

    Attributes:
        name: of its network namespace.
        address: under which all other hosts reach it.
        init_pid: PID, on this machine, of its first process; the host ends with it.
    """

    name: str
    address: str
    init_pid: int = 0

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command line that runs a command on this host."""
        return ["nsenter", f"--target={self.init_pid}", "--net", "--pid", "--mount", "--", *command]


def are_supported() -> bool:
    """Return whether this machine can make virtual hosts."""
    if os.geteuid() or not all(map(shutil.which, ("ip", "unshare", "nsenter"))):
        return False
    name = f"pl{os.getpid()}t"
    try:
        _run(f"ip netns add {name}")
        _run(f"ip netns exec {name} unshare --pid --fork --mount-proc true")
        _run(f"ip link add {name} type bridge")
    except (subprocess.CalledProcessError, OSError):
        return False
    finally:
        _try(f"ip netns del {name}")
        _try(f"ip link del {name}")
    return True


@contextlib.contextmanager
def hosts(count: int, megabits: float = 0) -> Iterator[tuple[str, list[Host]]]:
    """Make virtual hosts, each with a link to this machine; yield this machine's address and the hosts.

    Args:
        count: number of hosts.
        megabits: bandwidth of each link per second and direction; 0 for no limit.

    Raises:
        subprocess.CalledProcessError: this machine cannot make them (see `are_supported`).
    """
    number = os.getpid() * 8 + next(_made)
    mark = f"pl{number % 1_000_000}"
    net = f"10.{77 + number % 100}.{number // 100 % 250}"
    switch = f"{mark}s"
    made = [Host(f"{mark}h{i}", f"{net}.{i + 2}") for i in range(count)]
    started: list[subprocess.Popen[bytes]] = []
    try:
        _run(f"ip link add {switch} type bridge")
        _run(f"ip addr add {net}.1/24 dev {switch}")
        _run(f"ip link set {switch} up")
        for i, host in enumerate(made):
            _add_host(host, switch, f"{mark}v{i}", megabits)
            started.append(_start(host))
        yield f"{net}.1", [replace(h, init_pid=_init_pid(p)) for h, p in zip(made, started)]
    finally:
        for process in started:
            process.kill()
            process.wait()
        for i, host in enumerate(made):
            _try(f"ip netns del {host.name}")
            _try(f"ip link del {mark}v{i}")
        _try(f"ip link del {switch}")


def _start(host: Host) -> subprocess.Popen[bytes]:
    """Start the first process of a host, which only sleeps; its PID namespace ends with it."""
    inside = "unshare --pid --fork --kill-child --mount-proc sleep infinity"
    return subprocess.Popen(f"ip netns exec {host.name} {inside}".split())


def _init_pid(started: subprocess.Popen[bytes]) -> int:
    """Return the PID of the first process once it has started."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        for child in psutil.Process(started.pid).children():
            with contextlib.suppress(psutil.Error):
                if child.name() == "sleep":  # the process has mounted its own /proc
                    return child.pid
        time.sleep(0.01)
    raise TimeoutError("a host did not start")


def _add_host(host: Host, switch: str, interface: str, megabits: float) -> None:
    """Make a host and its link: one end in the switch, the other the host's only interface."""
    inside = f"ip netns exec {host.name} "
    _run(f"ip netns add {host.name}")
    _run(f"ip link add {interface} type veth peer name eth0 netns {host.name}")
    _run(f"ip link set {interface} master {switch}")
    _run(f"ip link set {interface} up")
    _run(f"{inside}ip addr add {host.address}/24 dev eth0")
    _run(f"{inside}ip link set eth0 up")
    _run(f"{inside}ip link set lo up")
    if megabits:
        shaped = f"root tbf rate {megabits:g}mbit burst {BURST_NBYTES}b latency {QUEUE_MS}ms"
        _run(f"tc qdisc add dev {interface} {shaped}")
        _run(f"{inside}tc qdisc add dev eth0 {shaped}")


def _try(command: str) -> None:
    with contextlib.suppress(subprocess.CalledProcessError):
        _run(command)


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True)
