"""Replacement of the scheduler by another release, as the keeper does it.

1. The scheduler forks a standby, which writes a snapshot (``standby/snapshot.py``).
2. A new interpreter of the other release reads it and becomes a standby
   (``standby/new_release.py``).
3. The keeper executes the other release, with its sockets and its state (``keeper_state.py``).
4. The new keeper ends the scheduler process and wakes the standby of the other release.

Until the last step the scheduler works on, and a failure ends nothing but the upgrade. If the
standby of the other release fails in the last step, the keeper wakes the one of the old release.

A scheduler process that continues others keeps their memory. So it is renewed from time to time: it
is replaced by a new process of the same release in the same way.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

from paceline.scheduler.server.durable.channel.deaths import DeathKind
from paceline.scheduler.server.durable.channel.kept import Kept
from paceline.scheduler.server.durable.channel.messages import (
    FORMAT,
    MESSAGE_NBYTES,
    SnapshotReply,
    SnapshotRequest,
    receive,
)

from . import control
from .standbys import Standby

if TYPE_CHECKING:
    from .keeper_state import KeeperState

logger = logging.getLogger("distributed.scheduler")

#: Environment variable of a process that an upgrade starts: its role and a descriptor.
VARIABLE = "PACELINE_UPGRADE"
#: Roles: a standby of the other release, and the keeper.
STANDBY, KEEPER = "standby", "keeper"
#: File name of the snapshot.
SNAPSHOT_NAME = "snapshot"
#: Time within which the standby of the other release must be ready, seconds.
UPGRADE_SECONDS = 300.0
#: Dead processes whose memory a scheduler process may keep until it is renewed.
PREDECESSORS_MAX = 5
#: Time after the last death before that, seconds.
RENEW_SECONDS = 3.0
#: Dead processes after which it is renewed without that pause.
SERIES_MAX = 4 * PREDECESSORS_MAX
#: Lines of the output of a process that are shown if it fails.
LINES_SHOWN = 12


class UpgradeError(Exception):
    """The other release cannot continue the scheduler."""


def command(python: str) -> list[str]:
    """Return the command line of this process with another interpreter."""
    return [python, *sys.orig_argv[1:]]


def needs_renewal(kept: Kept) -> bool:
    """Return whether the scheduler process should be replaced by a new one of its release."""
    n = kept.deaths.n_predecessors
    if n < PREDECESSORS_MAX:
        return False
    return n >= SERIES_MAX or time.time() > kept.deaths.last[-1].time + RENEW_SECONDS


class Upgrade:
    """An upgrade that has begun.

    Args:
        folder: the folder of the log.
        kept: what the keeper holds.
        before: the latest standby of the scheduler. The next one writes the snapshot.
        python: the interpreter of the other release.
        caller: receives the reply; None without one.
        renews: whether only the same release may continue the scheduler.

    Attributes:
        from_release: the release of the scheduler process.
        segment: the first segment of the log that the other release needs; None if it needs none
            yet.
        standby: the standby of the other release, once it is ready.
        is_switching: whether the scheduler process was ended for the other release.
        has_switched: whether the standby of the other release may be woken.
    """

    def __init__(
        self,
        folder: Path,
        kept: Kept,
        before: Standby | None,
        python: str,
        caller: socket.socket | None,
        renews: bool = False,
    ) -> None:
        self._renews = renews
        self._folder = folder
        self._kept = kept
        self._before = before
        self.python = python
        self.caller = caller
        self.from_release = ""
        self.segment: int | None = None
        self.standby: Standby | None = None
        self.is_switching = self.has_switched = False
        self._since = 0.0
        self._deadline = time.monotonic() + UPGRADE_SECONDS
        self._snapshot: IO[bytes] | None = None
        self._reply: IO[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._output: IO[bytes] | None = None

    @classmethod
    def ready(
        cls,
        folder: Path,
        kept: Kept,
        standby: Standby,
        from_release: str,
        caller: socket.socket | None,
    ) -> Upgrade:
        """Return an upgrade whose ``standby`` is ready, in the keeper of the other release."""
        upgrade = cls(folder, kept, None, sys.executable, caller)
        upgrade.standby, upgrade.segment = standby, standby.segment
        upgrade.from_release = from_release
        return upgrade

    def switch(self, pid: int) -> None:
        """End the scheduler process."""
        self.is_switching = True
        self._since = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    @property
    def sources(self) -> list[Any]:
        """The sockets and files that are ready when ``step`` can continue."""
        waits_for = self._sock or self._reply
        return [waits_for] if waits_for is not None and self.standby is None else []

    @property
    def fds(self) -> list[int]:
        """The descriptors that only the keeper needs."""
        standby = self.standby.sock if self.standby is not None else None
        found = [self.caller, self._snapshot, self._reply, self._sock, self._output, standby]
        return [each.fileno() for each in found if each is not None]

    def step(self, standby: Standby | None, ready: list[Any]) -> bool:
        """Do what can be done now. Return whether the other release is ready.

        Args:
            standby: the latest standby of the scheduler.
            ready: the ``sources`` that are ready.

        Raises:
            UpgradeError: the upgrade has failed.
        """
        try:
            if self.segment is None:
                if standby is not None and standby is not self._before:
                    self._request_snapshot(standby)
            elif self._reply is not None and self._reply in ready:
                self._start(self._reply.read())
            elif self._sock is not None and self._sock in ready:
                return self._started(self._sock)
        except (OSError, ValueError, pickle.UnpicklingError) as error:
            raise UpgradeError(str(error)) from error
        if time.monotonic() > self._deadline:
            raise UpgradeError(f"it was not ready within {UPGRADE_SECONDS:.0f} s{self._shown()}")
        return False

    def _request_snapshot(self, standby: Standby) -> None:
        self.segment, self.from_release = standby.segment, standby.release
        path = self._folder / f"{SNAPSHOT_NAME}.tmp"
        self._snapshot = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "wb+")
        ours, theirs = os.pipe()
        self._reply = os.fdopen(ours, "rb")
        try:
            fds = [self._snapshot.fileno(), theirs]
            socket.send_fds(standby.sock, [pickle.dumps(SnapshotRequest())], fds)
        finally:
            os.close(theirs)

    def _start(self, data: bytes) -> None:
        """Start the other release, once the snapshot has been written."""
        reply = pickle.loads(data) if data else SnapshotReply(0, "the process that wrote it died")
        if reply.error:
            raise UpgradeError(f"the snapshot cannot be written: {reply.error}")
        logger.info("Wrote a snapshot of %.1f MB; starting %s", reply.nbytes / 1e6, self.python)
        assert self._reply is not None and self._snapshot is not None
        self._reply.close()
        self._reply = None
        (self._folder / f"{SNAPSHOT_NAME}.tmp").replace(self._folder / SNAPSHOT_NAME)
        self._output = os.fdopen(os.memfd_create("paceline-output"), "wb+")
        self._sock, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                command(self.python),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env={**os.environ, VARIABLE: f"{STANDBY}:{theirs.fileno()}"},
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        message = {"format": FORMAT, "folder": str(self._folder.absolute())}
        kept = self._kept
        fds = [kept.scratch.fd, kept.progress.shared.fd, self._snapshot.fileno(), 1, 2]
        socket.send_fds(self._sock, [json.dumps(message).encode()], fds)

    def _started(self, sock: socket.socket) -> bool:
        """Handle the first message of the other release, or its end."""
        data, _ = receive(sock)
        if not data:
            raise UpgradeError(f"it ended before it was ready{self._shown()}")
        assert self.segment is not None
        self.standby = Standby(sock, self.segment)
        self.standby.greeted(data)
        if self._renews and self.standby.release != self.from_release:
            raise UpgradeError(
                f"the process should be renewed, but {self.standby.release} is installed in place "
                f"of {self.from_release}; run paceline upgrade"
            )
        return True

    @property
    def kind(self) -> DeathKind:
        """The kind of the death of the scheduler process that is replaced."""
        assert self.standby is not None
        is_same = self.standby.release == self.from_release
        return DeathKind.RENEWED if is_same else DeathKind.UPGRADED

    def _shown(self) -> str:
        """Return the last lines that the other release has written."""
        if self._output is None:
            return ""
        self._output.seek(max(0, os.fstat(self._output.fileno()).st_size - MESSAGE_NBYTES))
        lines = self._output.read().decode(errors="replace").splitlines()
        return "".join(f"\n  {line}" for line in lines[-LINES_SHOWN:])

    def execute(self, state: KeeperState) -> NoReturn:
        """Execute the other release in this process.

        Raises:
            UpgradeError: it cannot be executed.
        """
        arguments = command(self.python)
        try:
            environment = {**os.environ, VARIABLE: f"{KEEPER}:{state.save()}"}
            sys.stdout.flush()
            sys.stderr.flush()
            os.execve(arguments[0], arguments, environment)
        except OSError as error:
            state.successor.end()
            raise UpgradeError(f"{arguments[0]}: {error}") from error

    def failed(self, error: str) -> None:
        """Report that the upgrade has failed, and end what it has started."""
        logger.error("The upgrade has failed; the scheduler goes on: %s", error)
        control.reply(self.caller, {"error": error})
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
        self.close()

    def succeeded(self) -> None:
        """Report that the other release serves the peers."""
        assert self.standby is not None
        seconds = time.monotonic() - self._since
        old, new = self.from_release, self.standby.release
        done = "Renewed the scheduler process" if old == new else f"Upgraded from {old} to {new}"
        logger.info("%s; %.2f s without a scheduler process", done, seconds)
        control.reply(self.caller, {"from": old, "to": new, "seconds": seconds})

    def close(self) -> None:
        """Close the descriptors that only an upgrade needs, and remove the snapshot."""
        sock = self._sock if self.standby is None else None
        for each in (self._snapshot, self._reply, self._output, sock):
            if each is not None:
                each.close()
        remove_snapshot(self._folder)


def remove_snapshot(folder: Path) -> None:
    """Remove the snapshot in ``folder``, also if it is not complete."""
    for name in (SNAPSHOT_NAME, f"{SNAPSHOT_NAME}.tmp"):
        with contextlib.suppress(OSError):
            (folder / name).unlink()
