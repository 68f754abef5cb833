"""The keeper: the parent process, which holds the sockets and starts the scheduler.

The keeper holds a duplicate of each socket on which the scheduler listens and of each connection
that it has accepted. When the scheduler process dies, these keep the connections open. The keeper
wakes a standby (``standby.py``) and passes them to it, or forks a scheduler process, which inherits
them. Either continues from the log (``log.py``). The keeper neither reads nor writes the sockets.
It has no threads and no event loop.

The scheduler ends if the keeper does.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import logging
import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from types import FrameType
from typing import Any

from paceline.scheduler.server.runtime.template import Template
from paceline.workers_compat.config import config
from setproctitle import setproctitle

from .keeper_channel import KeeperChannel
from .kept import (
    HEAD,
    KEEP,
    LISTEN,
    READY,
    RELEASE,
    STANDBY,
    WAKE_SOCKETS_MAX,
    Awakening,
    Death,
    Kept,
)
from .log import remove_segments

logger = logging.getLogger("distributed.scheduler")

#: A scheduler process that dies this often without having become ready is not replaced again.
STARTS_MAX = 3
#: Largest message on the channel, and the number of sockets in it.
MESSAGE_NBYTES = 4096
MESSAGE_SOCKETS_MAX = 64
#: Time within which a standby must be ready, and have left another one when it was woken, seconds.
WAKE_SECONDS = 5.0
#: Option of ``prctl``: orphaned descendants become children of this process.
PR_SET_CHILD_SUBREAPER = 36
#: Interval at which the keeper checks whether the event loop of the scheduler runs, seconds.
CHECK_SECONDS = 1.0
#: Default of ``paceline.scheduler.hang-timeout``, seconds.
HANG_SECONDS = 300.0


class DurableError(Exception):
    """A scheduler cannot be durable as configured."""


@dataclass
class Standby:
    """A standby as the keeper knows it.

    Attributes:
        sock: socket to it.
        segment: the first segment of the log that it needs.
        pid: its process id, once it is ready.
    """

    sock: socket.socket
    segment: int
    pid: int = 0


def check(options: Mapping[str, Any]) -> None:
    """Check that a scheduler with these options of ``Scheduler`` can be durable.

    Raises:
        DurableError: it cannot.
    """
    hosts = _listed(options.get("host") or "")
    schemes = set(_listed(options.get("protocol") or "tcp"))
    schemes |= {host.split("://")[0] for host in hosts if "://" in host}
    if options.get("security") or schemes != {"tcp"}:
        raise DurableError(
            "only tcp:// connections can be kept: the keys of TLS and the state of other protocols "
            "are in the scheduler process, which may die"
        )
    if options.get("journal"):
        raise DurableError("cannot be combined with --journal")


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def start(folder: Path) -> KeeperChannel:
    """Make this process the keeper, and return in each scheduler process that it forks.

    The keeper does not return: it ends with the exit code of the last scheduler process.

    Raises:
        DurableError: another keeper uses the folder, or the system has no such sockets.
        OSError: the folder cannot be used.
    """
    if sys.platform != "linux":
        raise DurableError("--durable needs Linux, which counts the bytes of connections")
    keeper = Keeper(folder)
    channel = keeper.run()
    if channel is None:
        sys.exit(keeper.exit_code)
    return channel


class Keeper:
    """Holds the sockets and forks scheduler processes.

    Args:
        folder: the folder of the log, created if it does not exist.

    Attributes:
        exit_code: of the command, when ``run`` has returned None.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._lock = _lock(folder)
        self._kept = Kept()
        self._pid = 0
        self._was_ready = False
        self._has_given_up = False
        self._standby: Standby | None = None
        self._next_standby: Standby | None = None
        self._is_trimmed = False
        self._failed_starts = 0
        self._is_ending = False
        hang_seconds = config.seconds(config.get("paceline.scheduler.hang-timeout"))
        self._hang_seconds = HANG_SECONDS if hang_seconds is None else hang_seconds
        self.exit_code = 0
        if remove_segments(folder):
            logger.warning(
                "Removed the log of a scheduler in %s whose keeper has ended: its peers are gone",
                folder,
            )

    def run(self) -> KeeperChannel | None:
        """Start scheduler processes until one ends for good.

        Returns:
            In a scheduler process: its end of the channel. In the keeper: None, at the end.
        """
        setproctitle("paceline keeper")
        self._write_pid("keeper.pid", os.getpid())
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._forward)
        while True:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            template = Template.start([*self._fds(), ours.fileno(), theirs.fileno()], is_kept=True)
            if not self._wake_standby(theirs, template):
                if self._is_trimmed:
                    logger.error("No standby answers, and the log does not go back to the start")
                    self.exit_code = 1
                    break
                if self._fork() == 0:
                    ours.close()
                    return KeeperChannel(theirs, self._kept, self._folder, template)
            theirs.close()
            if template is not None:
                template.close()
            self._write_pid("scheduler.pid", self._pid)
            if not self._again(self._serve(ours)):
                break
        for name in ("keeper.pid", "scheduler.pid"):
            (self._folder / name).unlink(missing_ok=True)
        remove_segments(self._folder)
        return None

    def _fds(self) -> list[int]:
        """Return the descriptors that only this process and the scheduler need."""
        standbys = [each.sock.fileno() for each in (self._standby, self._next_standby) if each]
        return [self._lock, *self._kept.fds, *standbys]

    def _fork(self) -> int:
        """Fork a scheduler process. Return its process id, and 0 in it."""
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if self._pid:
            return self._pid
        os.close(self._lock)
        os.setsid()  # Ctrl-C in a terminal reaches the keeper, which passes it on
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return 0

    def _wake_standby(self, channel: socket.socket, template: Template | None) -> bool:
        """Let a standby become the scheduler process. Return False if there is none that answers.

        Args:
            channel: its end of the channel.
            template: starts its child processes.
        """
        while self._standby is not None or self._next_standby is not None:
            upcoming = self._next_standby
            if self._standby is None and upcoming is not None:
                if wait([upcoming.sock], WAKE_SECONDS):
                    self._handle_standbys([upcoming.sock], None)
                else:
                    upcoming.sock.close()
                    self._next_standby = None
            standby, self._standby = self._standby, None
            if standby is not None and self._wake(standby, channel, template):
                return True
        return False

    def _wake(self, standby: Standby, channel: socket.socket, template: Template | None) -> bool:
        """Let a standby become the scheduler process, and wait for the standby that it leaves.

        Kill it if it does not answer, unless there is no other way to continue than to wait for it.
        Return whether it is the scheduler process.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        standby.sock.settimeout(WAKE_SECONDS)
        try:
            with standby.sock, theirs:
                self._send_sockets(standby.sock, [channel, theirs], template)
            has_answered = bool(wait([ours], WAKE_SECONDS))
            data = _receive(ours)[0] if has_answered else b""
        except OSError as error:
            logger.warning("The standby process %d cannot be woken: %s", standby.pid, error)
            ours.close()
            return False
        can_wait = not has_answered and self._is_trimmed and self._next_standby is None
        if not data and not can_wait:
            logger.error("The standby process %d does not answer; killing it", standby.pid)
            ours.close()
            with contextlib.suppress(ProcessLookupError):
                os.kill(standby.pid, signal.SIGKILL)
            return False
        if self._next_standby is not None:
            self._next_standby.sock.close()  # it ends
        self._pid = standby.pid
        following = Standby(ours, standby.segment, int.from_bytes(data, "little"))
        self._standby, self._next_standby = (following, None) if data else (None, following)
        return True

    def _send_sockets(
        self, sock: socket.socket, channels: list[socket.socket], template: Template | None
    ) -> None:
        """Send a standby its channels and duplicates of all sockets that are held."""
        kept = self._kept
        numbers = list(kept.connections)
        for first in range(0, len(numbers), WAKE_SOCKETS_MAX):
            part = numbers[first : first + WAKE_SOCKETS_MAX]
            fds = [kept.connections[number] for number in part]
            socket.send_fds(sock, [pickle.dumps(part)], fds)
        assert template is not None  # Linux has one
        listening = {name: len(fds) for name, fds in kept.listening.items()}
        last = Awakening(listening, kept.last_number, kept.deaths, template.pid)
        fds = [*(each.fileno() for each in channels), template.fileno()]
        fds += [fd for found in kept.listening.values() for fd in found]
        socket.send_fds(sock, [pickle.dumps(last)], fds)

    def _serve(self, channel: socket.socket) -> int:
        """Handle messages until the scheduler process has ended. Return its exit code."""
        self._was_ready = False
        process = os.pidfd_open(self._pid)
        with channel, open(process):
            while True:
                sources: list[Any] = [channel, process]
                sources += [each.sock for each in (self._standby, self._next_standby) if each]
                ready = wait(sources, CHECK_SECONDS)
                if channel in ready:
                    message, fds = _receive(channel)
                    if message:
                        self._handle(message, fds)
                        continue
                    wait([process])  # it is about to end
                    ready.append(process)
                if process in ready:  # and its last message has been handled
                    return os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
                self._handle_standbys(ready, channel)
                if not ready:
                    self._check_progress()
                    self._reap_orphans()

    def _handle_standbys(self, ready: list[Any], channel: socket.socket | None) -> None:
        """Replace the standby by the next one when that is ready. Report if it has ended."""
        upcoming = self._next_standby
        if upcoming is not None and upcoming.sock in ready:
            self._next_standby = None
            data, _ = _receive(upcoming.sock)
            if data:
                upcoming.pid = int.from_bytes(data, "little")
                if self._standby is not None:
                    self._standby.sock.close()  # it ends
                self._standby = upcoming
                self._is_trimmed = upcoming.segment > 1
                remove_segments(self._folder, before=upcoming.segment)
            else:
                upcoming.sock.close()
                _request_standby(channel)
        elif self._standby is not None and self._standby.sock in ready:
            logger.error("The standby process %d has ended; forking another one", self._standby.pid)
            self._standby.sock.close()
            self._standby = None
            _request_standby(channel)

    def _reap_orphans(self) -> None:
        """Reap processes whose parent has died. The scheduler process itself is not reaped here."""
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        for pid in map(int, children):
            if pid != self._pid:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)

    def _check_progress(self) -> None:
        """Kill the scheduler process if its event loop has not run, or not begun, for long."""
        seconds = self._kept.progress.idle_seconds()
        has_begun = self._was_ready or self._kept.deaths
        if has_begun and seconds > self._hang_seconds:
            logger.error(
                "The event loop of the scheduler process %d has not run for %.0f s; killing it",
                self._pid,
                seconds,
            )
            os.kill(self._pid, signal.SIGKILL)
            self._kept.progress.alive()  # as is the next one

    def _handle(self, message: bytes, fds: list[int]) -> None:
        kind, number = HEAD.unpack_from(message)
        kept = self._kept
        if kind == KEEP:
            kept.last_number = number
            if fds:
                kept.connections[number] = fds[0]
            else:
                logger.error("Connection %d cannot be kept: too many open files", number)
        elif kind == RELEASE:
            fd = kept.connections.pop(number, None)
            if fd is not None:
                os.close(fd)
        elif kind == LISTEN:
            name = message[HEAD.size :].decode()
            for fd in kept.listening.pop(name, ()):
                os.close(fd)
            kept.listening[name] = fds
        elif kind == STANDBY:
            if self._next_standby is not None:
                self._next_standby.sock.close()
            self._next_standby = Standby(socket.socket(fileno=fds[0]), number)
        elif kind == READY:
            self._was_ready = True
            self._failed_starts = 0
            if self._is_ending:  # the signal came before this process could handle it
                os.kill(self._pid, signal.SIGTERM)
        else:
            self._has_given_up = True
            for fd in kept.connections.values():
                os.close(fd)
            kept.connections.clear()

    def _again(self, code: int) -> bool:
        """Return whether to start another scheduler process after one ended with ``code``."""
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        never_ready = not self._kept.deaths and not self._was_ready
        if code == 0 or never_ready or self._has_given_up or self._is_ending:
            self.exit_code = code if code >= 0 else 128 - code
            return False
        self._failed_starts += not self._was_ready
        if self._failed_starts >= STARTS_MAX:
            logger.error("The scheduler process %d %s, again before it was ready", self._pid, how)
            self.exit_code = 1
            return False
        logger.error("The scheduler process %d %s; starting another one", self._pid, how)
        progress = self._kept.progress
        death = Death(how, time.time(), progress.connection, progress.stimulus)
        self._kept.deaths.append(death)
        progress.connection = progress.stimulus = 0
        progress.alive()  # the next one has the same time
        return True

    def _forward(self, number: int, frame: FrameType | None) -> None:
        """Pass a signal on to the scheduler process, which handles SIGTERM and SIGINT."""
        self._is_ending = True
        if number == signal.SIGHUP:
            number = signal.SIGTERM
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def _write_pid(self, name: str, pid: int) -> None:
        temporary = self._folder / f"{name}.tmp"
        temporary.write_text(f"{pid}\n")
        temporary.replace(self._folder / name)


def _receive(sock: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next message and its descriptors; b"" if the other process has ended."""
    try:
        message, fds, _, _ = socket.recv_fds(sock, MESSAGE_NBYTES, MESSAGE_SOCKETS_MAX)
    except ConnectionResetError:  # it had not read everything
        return b"", []
    return message, fds


def _request_standby(channel: socket.socket | None) -> None:
    """Request a standby from the scheduler process, unless that has ended."""
    if channel is not None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            channel.send(b"standby")


def _lock(folder: Path) -> int:
    """Lock the folder for this process. Return the descriptor that holds the lock."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise DurableError(f"another scheduler uses {folder}") from None
    return descriptor
