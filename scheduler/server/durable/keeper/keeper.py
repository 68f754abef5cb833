"""The keeper: the parent process, which holds the sockets and starts the scheduler.

The keeper holds a duplicate of each socket on which the scheduler listens and of each connection
that it has accepted. When the scheduler process dies, these keep the connections open. The keeper
wakes a standby (``standbys.py``) and passes them to it, or forks a scheduler process, which
inherits them. Either continues from the log (``log/``). The keeper neither reads nor writes the
sockets. It has no threads and no event loop.

The scheduler ends if the keeper does.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import socket
import sys
import time
from multiprocessing.connection import wait
from pathlib import Path
from types import FrameType
from typing import Any

from paceline.scheduler.server.durable.channel.deaths import DEATHS_MAX, Death
from paceline.scheduler.server.durable.channel.keeper_channel import KeeperChannel
from paceline.scheduler.server.durable.channel.kept import Kept
from paceline.scheduler.server.durable.channel.messages import (
    ENDING,
    GIVE_UP,
    HEAD,
    READY,
    STANDBY,
    STANDBY_NOW,
    receive,
    request_standby,
)
from paceline.scheduler.server.durable.channel.progress import hang_seconds
from paceline.scheduler.server.durable.log.segments import remove_segments
from paceline.scheduler.server.runtime.template import Template
from setproctitle import setproctitle

from . import control
from .keeper_state import KeeperState
from .preconditions import DurableError, lock, make_folder
from .standbys import Standbys, logging_errors
from .upgrade import Upgrade, UpgradeError, needs_renewal, remove_snapshot

logger = logging.getLogger("distributed.scheduler")

#: Scheduler processes in a row that die before they are ready, after which the keeper ends. Input
#: of which ``DEATHS_MAX`` processes died is set aside before.
STARTS_MAX = DEATHS_MAX + 1
#: How often the keeper tries to fork a scheduler process after another one died.
FORKS_MAX = 300
#: Time between two attempts, seconds.
FORK_SECONDS = 1.0
#: Option of ``prctl``: orphaned descendants become children of this process.
PR_SET_CHILD_SUBREAPER = 36
#: Signals that the keeper handles.
SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2})
#: Interval at which the keeper checks whether the event loop of the scheduler runs, seconds.
CHECK_SECONDS = 1.0
#: Longest pause of the event loop of another release before it is ready, seconds.
START_PAUSE_SECONDS = 30.0


def start(folder: Path, state: KeeperState | None = None) -> KeeperChannel:
    """Make this process the keeper, and return in each scheduler process that it forks.

    The keeper does not return: it ends with the exit code of the last scheduler process.

    Args:
        folder: the folder of the log, created if it does not exist.
        state: the state of the keeper of another release that this process was.

    Raises:
        DurableError: another keeper uses the folder, or the system has no such sockets.
        OSError: the folder cannot be used.
    """
    if sys.platform != "linux":
        raise DurableError("--durable needs Linux, which counts the bytes of connections")
    keeper = Keeper(folder, state)
    channel = keeper.run()
    if channel is None:
        sys.exit(keeper.exit_code)
    return channel


class Keeper:
    """Holds the sockets and forks scheduler processes.

    Args:
        folder: the folder of the log, created if it does not exist.
        state: the state of the keeper of another release that this process was.

    Attributes:
        exit_code: exit code of the command, once ``run`` has returned None.
    """

    def __init__(self, folder: Path, state: KeeperState | None = None) -> None:
        make_folder(folder)
        self._folder = folder
        self._lock = lock(folder) if state is None else state.lock
        self._kept = Kept() if state is None else state.kept
        self._control = control.ControlSocket(folder, None if state is None else state.control)
        self._standbys = Standbys(folder, self._kept)
        self._channel: socket.socket | None = None
        self._pid = 0
        self._was_ready = False
        self._failed_starts = 0
        self._idle_checks = 0
        self._has_given_up = False
        self._is_ending = False
        self._upgrade: Upgrade | None = None
        self._wants_upgrade = False
        self._renewed_pid = 0
        self._hang_seconds = hang_seconds()
        self.exit_code = 0
        if state is not None:
            self._continue_from(state)
            return
        remove_snapshot(folder)
        if remove_segments(folder):
            logger.warning(
                "Removed the log of a scheduler in %s whose keeper has ended: its peers are gone",
                folder,
            )

    def _continue_from(self, state: KeeperState) -> None:
        """Continue as the keeper of a scheduler process that is to be replaced."""
        self._pid = state.pid
        self._channel = state.channel
        self._standbys.is_trimmed = state.is_trimmed
        self._standbys.current = state.standby
        self._standbys.upcoming = state.next_standby
        self._upgrade = Upgrade.ready(
            self._folder, self._kept, state.successor, state.from_release, state.caller
        )

    def run(self) -> KeeperChannel | None:
        """Start scheduler processes until one ends for good.

        Returns:
            In a scheduler process: its end of the channel. In the keeper: None, at the end.
        """
        setproctitle("paceline keeper")
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, self._forward)
        signal.signal(signal.SIGUSR2, self._note_upgrade)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # an upgrade has blocked them
        self._write_pid("keeper.pid", os.getpid())
        goes_on = True
        if self._upgrade is not None and self._channel is not None:
            if not self._is_ending:  # else the present process handles the signal
                self._upgrade.switch(self._pid)
            goes_on = self._handle_end(self._serve(self._channel))
        while goes_on:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            template = Template.start([*self._fds(), ours.fileno(), theirs.fileno()], is_kept=True)
            if not self._wake_standby(theirs, template):
                if self._standbys.is_trimmed:
                    logger.error("No standby answers, and the log does not go back to the start")
                    self.exit_code = 1
                    break
                pid = self._fork()
                if pid == 0:
                    ours.close()
                    return KeeperChannel(theirs, self._kept, self._folder, template)
                if pid is None:
                    self.exit_code = 1
                    break
            theirs.close()
            if template is not None:
                template.close()
            self._write_pid("scheduler.pid", self._pid)
            goes_on = self._handle_end(self._serve(ours))
        self._remove_files()
        return None

    def _remove_files(self) -> None:
        """Remove the log and the files that name this keeper, and end an upgrade."""
        if self._upgrade is not None:
            self._upgrade.close()
        with logging_errors():
            remove_segments(self._folder)
            for name in ("keeper.pid", "scheduler.pid", control.NAME):
                (self._folder / name).unlink(missing_ok=True)

    def _fds(self) -> list[int]:
        """Return the descriptors that only this process and the scheduler need."""
        fds = {self._lock, *self._kept.fds, *self._standbys.fds}
        fds.update(sock.fileno() for sock in self._control.socks)
        if self._upgrade is not None:
            fds.update(self._upgrade.fds)
        return list(fds)

    def _fork(self) -> int | None:
        """Fork a scheduler process. Return its process id, 0 in it, and None if that failed.

        Try again for a while if there are connections to keep.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = 0  # a signal is not passed on meanwhile
        tries_left = FORKS_MAX if self._kept.deaths.last else 1
        while True:
            try:
                self._pid = os.fork()
                break
            except OSError as error:
                tries_left -= 1
                again = f"trying again in {FORK_SECONDS:g} s" if tries_left else "giving up"
                logger.error("Cannot fork a scheduler process: %s; %s", error, again)
            if not tries_left or self._is_ending:
                return None
            time.sleep(FORK_SECONDS)
        if self._pid:
            return self._pid
        os.close(self._lock)
        for sock in self._control.socks:
            sock.close()
        os.setsid()  # Ctrl-C in a terminal reaches the keeper, which passes it on
        for number in SIGNALS - {signal.SIGINT}:
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return 0

    def _wake_standby(self, channel: socket.socket, template: Template | None) -> bool:
        """Let a standby become the scheduler process. Return False if there is none that answers.

        Args:
            channel: its end of the channel.
            template: starts its child processes.
        """
        while not (pid := self._standbys.wake(channel, template, self._upgrade_segment)):
            if not self._fall_back("does not answer"):
                return False
        self._pid = pid
        return True

    def _serve(self, channel: socket.socket) -> int:
        """Handle messages until the scheduler process has ended. Return its exit code."""
        self._was_ready, self._idle_checks = False, 0
        process = os.pidfd_open(self._pid)
        with channel, open(process):
            while True:
                sources: list[Any] = [channel, process]
                sources += [*self._standbys.socks, *self._control.socks]
                if self._upgrade is not None:
                    sources += self._upgrade.sources
                ready = wait(sources, CHECK_SECONDS)
                if channel in ready:
                    message, fds = receive(channel)
                    if message:
                        self._handle(message, fds, channel)
                        continue
                    wait([process])  # it is about to end
                    ready.append(process)
                if process in ready:  # and its last message has been handled
                    code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
                    self._reap_orphans()  # in a series of deaths, something is always ready
                    return code
                self._standbys.handle(ready, channel, self._upgrade_segment)
                self._handle_upgrade(ready, channel)
                if not ready:
                    self._check_progress()
                    self._reap_orphans()

    def _reap_orphans(self) -> None:
        """Reap processes whose parent has died. The scheduler process itself is not reaped here."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, flags)) and ended.si_pid != self._pid:
                os.waitpid(ended.si_pid, 0)

    def _check_progress(self) -> None:
        """Kill the scheduler process if its event loop has not run, or not begun, for long.

        A pause of all processes is one check, however long it takes.
        """
        seconds = self._kept.progress.idle_seconds()
        self._idle_checks = self._idle_checks + 1 if seconds > CHECK_SECONDS else 0
        has_begun = self._was_ready or self._kept.deaths.last
        limit = self._hang_seconds
        if self._standbys.fallback is not None:  # which continues at once
            limit = min(limit, START_PAUSE_SECONDS)
        if has_begun and min(seconds, self._idle_checks * CHECK_SECONDS) > limit:
            logger.error(
                "The event loop of the scheduler process %d has not run for %.0f s; killing it",
                self._pid,
                seconds,
            )
            os.kill(self._pid, signal.SIGKILL)
            self._kept.progress.alive()  # the next process has the full time

    def _handle(self, message: bytes, fds: list[int], channel: socket.socket) -> None:
        kind, number = HEAD.unpack_from(message)
        if kind == STANDBY and fds:
            self._standbys.add(socket.socket(fileno=fds[0]), number)
        elif kind == STANDBY:
            logger.error("A standby cannot be kept: too many open files; requesting another one")
            request_standby(channel)
        elif kind == READY:
            self._was_ready = True
            self._failed_starts = 0
            self._end_upgrade()
            if self._upgrade is not None and self._upgrade.segment is None:
                request_standby(channel, STANDBY_NOW)  # the dead process may not have forked it
            if self._is_ending:  # the signal came before this process could handle it
                os.kill(self._pid, signal.SIGTERM)
        elif kind == ENDING:
            self._is_ending = True
        elif kind == GIVE_UP:
            self._has_given_up = True
            self._kept.release_all()
            self._standbys.end()
            with logging_errors():
                remove_segments(self._folder)
        else:
            self._kept.handle(message, fds)

    def _handle_end(self, code: int) -> bool:
        """Record the end of a scheduler process with ``code``.

        Without ``ENDING`` or a signal, it is a death also with the code 0, such as of ``os._exit``.
        Return whether to start another one.
        """
        progress = self._kept.progress
        death = Death(code, time.time(), progress.connection, progress.stimulus)
        has_closed = code == 0 and self._is_ending
        if not has_closed and self._upgrade is not None and self._upgrade.is_switching:
            death = self._switch(self._upgrade, death)
        is_replaced = death.is_replacement
        cannot_start = code >= 0 and not (self._kept.deaths.last or self._was_ready or is_replaced)
        is_ending = self._is_ending and not is_replaced  # else its successor handles the signal
        if cannot_start or self._has_given_up or is_ending:
            self.exit_code = code if code >= 0 else 128 - code
            if self._has_given_up and not has_closed:
                logger.error(
                    "The scheduler process %d, which was not durable, %s", self._pid, death.how
                )
            return False
        self._failed_starts += not self._was_ready and not is_replaced
        if self._failed_starts >= STARTS_MAX:
            logger.error(
                "The scheduler process %d %s, again before it was ready", self._pid, death.how
            )
            self.exit_code = 1
            return False
        if not is_replaced:
            logger.error("The scheduler process %d %s; starting another one", self._pid, death.how)
        self._kept.deaths.add(death)
        progress.connection = progress.stimulus = 0
        progress.alive()  # the next process has the full time
        return True

    # upgrades

    def _note_upgrade(self, number: int, frame: FrameType | None) -> None:
        """Note that a signal requests an upgrade, without a reply."""
        self._wants_upgrade = True

    def _handle_upgrade(self, ready: list[Any], channel: socket.socket) -> None:
        """Begin and continue upgrades."""
        requests: list[tuple[str, socket.socket | None]] = [
            (str(each.get("python")), caller) for each, caller in self._control.requests(ready)
        ]
        if self._wants_upgrade:
            self._wants_upgrade = False
            requests.append((sys.executable, None))
        renews = not requests and self._renewed_pid != self._pid and needs_renewal(self._kept)
        if renews and not self._obstacle():
            self._renewed_pid = self._pid
            requests.append((sys.executable, None))
        for python, caller in requests:
            obstacle = self._obstacle()
            if obstacle:
                logger.error("Cannot upgrade: %s", obstacle)
                control.reply(caller, {"error": obstacle})
            else:
                before = self._standbys.current
                self._upgrade = Upgrade(self._folder, self._kept, before, python, caller, renews)
                request_standby(channel, STANDBY_NOW)
        upgrade = self._upgrade
        if upgrade is None or upgrade.is_switching or self._is_ending:
            return
        try:
            if self._has_given_up:
                raise UpgradeError("the log cannot be written any more")
            if upgrade.step(self._standbys.current, ready):
                self._execute(upgrade, channel)
        except UpgradeError as error:
            self._upgrade = None
            upgrade.failed(str(error))

    @property
    def _upgrade_segment(self) -> int | None:
        """The first segment of the log that an upgrade needs, or None."""
        return self._upgrade.segment if self._upgrade is not None else None

    def _obstacle(self) -> str:
        """Return why no upgrade can begin, or ""."""
        if self._has_given_up:
            return "the scheduler is not durable any more, because its log cannot be written"
        if not self._was_ready:
            return "the scheduler is about to start"
        return "another upgrade is under way" if self._upgrade is not None else ""

    def _execute(self, upgrade: Upgrade, channel: socket.socket) -> None:
        """Execute the other release in this process, with all that it holds."""
        assert upgrade.standby is not None
        state = KeeperState(
            kept=self._kept,
            lock=self._lock,
            control=self._control.sock,
            channel=channel,
            pid=self._pid,
            is_trimmed=self._standbys.is_trimmed,
            standby=self._standbys.current,
            next_standby=self._standbys.upcoming,
            successor=upgrade.standby,
            from_release=upgrade.from_release,
            caller=upgrade.caller,
        )
        upgrade.close()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            upgrade.execute(state)
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def _switch(self, upgrade: Upgrade, death: Death) -> Death:
        """Choose the standby to wake after a process ended in an upgrade. Return its death."""
        if upgrade.has_switched:
            self._fall_back(death.how)
            return death
        upgrade.has_switched = True
        self._standbys.set_fallback(upgrade.standby)
        # it did not die of its input
        return death._replace(connection=0, stimulus=0, kind=upgrade.kind)

    def _fall_back(self, how: str) -> bool:
        """Let the standby of the old release be woken. Return whether there is one."""
        upgrade = self._upgrade
        if self._standbys.fallback is None or upgrade is None:
            return False
        self._standbys.use_fallback()
        self._upgrade = None
        upgrade.failed(f"the process of the other release {how} before it was ready")
        return True

    def _end_upgrade(self) -> None:
        """End an upgrade whose scheduler process is ready."""
        upgrade = self._upgrade
        if upgrade is not None and upgrade.has_switched:
            self._upgrade = None
            upgrade.succeeded()
            self._standbys.end_fallback()

    def _forward(self, number: int, frame: FrameType | None) -> None:
        """Pass a signal on to the scheduler process, which handles SIGTERM and SIGINT.

        If none was started yet, the first one receives SIGTERM when it is ready.
        """
        self._is_ending = True
        if number == signal.SIGHUP:
            number = signal.SIGTERM
        if self._pid:  # 0 is the process group
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, number)

    def _write_pid(self, name: str, pid: int) -> None:
        path, temporary = self._folder / name, self._folder / f"{name}.tmp"
        try:
            temporary.write_text(f"{pid}\n")
            temporary.replace(path)
        except OSError as error:  # the disk is full
            logger.error("Cannot write the process id %d to %s: %s", pid, path, error)
            for each in (temporary, path):
                with logging_errors():
                    each.unlink(missing_ok=True)
