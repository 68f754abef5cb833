"""A durable scheduler: its log, the state that it continues from, and its connections."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import pickle
import socket
import time
import warnings
from collections.abc import Callable, Container, Coroutine
from typing import TYPE_CHECKING, Any

from paceline.scheduler.core.handlers.reconciliation import unfinished_instructions
from paceline.scheduler.server.peers.connection_factory import ConnectionFactory
from paceline.scheduler.server.requests.plugins import restore_plugins_and_activities
from paceline.scheduler.server.runtime import build
from paceline.workers_compat.config import config as dask_config

from .channel.messages import STANDBY_NOW
from .log.durable_comm import DurableBackend, DurableComm
from .log.recorder import START, LogRecorder, dump
from .log.segments import Log, RecoveryError
from .recovery.adoption import Adoption
from .recovery.reconcile import reconcile
from .recovery.recorded_connection import NOT_KEPT
from .recovery.replay import RecordedState, Replay, RunStart
from .recovery.tcp_counters import Transferred, transferred
from .standby import standby

if TYPE_CHECKING:
    from pathlib import Path

    from paceline.protocol.connection import Connection
    from paceline.scheduler.core.config import SchedulerConfig
    from paceline.scheduler.server.server_api import ServerApi
    from paceline.workers_compat.security.shared_secret import Secret

    from .channel.keeper_channel import KeeperChannel
    from .log.segments import Position
    from .recovery.recorded_connection import RecordedConnection

#: Default of ``paceline.scheduler.standby-turns``: turns after which a standby is forked.
STANDBY_TURNS = 20_000
#: Shortest interval between two forks, seconds.
STANDBY_SECONDS = 2.0
#: Largest message that the keeper sends to the scheduler process.
KEEPER_NBYTES = 64
#: Interval at which the scheduler notes that its event loop runs, seconds.
ALIVE_SECONDS = 0.25

#: Why a scheduler in a program cannot be durable.
NOT_DURABLE = (
    "a scheduler inside a program ends with it. Use LocalCluster(durable=DIR) or the command "
    "paceline --durable DIR"
)

logger = logging.getLogger("distributed.scheduler")


class Durability:
    """Records what the scheduler does, and continues what a process before this one did.

    Args:
        keeper: the channel to the keeper.
        start: identity and configuration, unless a process before this one has recorded its own.
        new_connection: returns the protocol state of an accepted connection.

    Attributes:
        start: identity and configuration of the scheduler.
        recorded: the state to continue from; None for the first process.
        restart_seconds: time from the death of the process before this one until the connections
            were continued; 0 for the first process.
        is_complete: whether the log is complete; if not, the scheduler is not durable any more.

    Raises:
        OSError: the folder of the log cannot be used.
        RecoveryError: the log is missing, or contradicts itself.
    """

    def __init__(
        self,
        keeper: KeeperChannel,
        start: RunStart,
        new_connection: Callable[[], Connection],
    ) -> None:
        self.start = start
        self.recorded: RecordedState | None = None
        self._forked_at = 0.0
        self._forked_turns, self._forked_segment = 0, 1
        self._can_fork = True
        self._has_set_aside = False
        turns = dask_config.get("paceline.scheduler.standby-turns")
        self._standby_turns = STANDBY_TURNS if turns is None else int(turns)
        self.restart_seconds = 0.0
        self.is_complete = True
        self._keeper = keeper
        self._log = Log(keeper.folder, keeper.position)
        self.recorder = LogRecorder(self._log, keeper.kept.progress)
        self.recorder.on_failure = self._give_up
        self.recorder.poisonous_stimulus = keeper.kept.deaths.poisonous_stimulus
        self.recorder.on_set_aside = self._set_aside_stimulus
        self._sockets = {
            number: socket.socket(fileno=fd) for number, fd in keeper.kept.connections.items()
        }
        self.scratch = memoryview(keeper.kept.scratch.memory)
        if keeper.is_successor:
            self._replay(new_connection)
        if self.recorded is None:
            self._log.append(START, 0, dump(start))
        else:
            self.start = self.recorded.start
        self.backend = DurableBackend(self.recorder, keeper)

    @classmethod
    def open(
        cls, keeper: KeeperChannel | None, config: SchedulerConfig, id: str, secret: Secret | None
    ) -> Durability | None:
        """Return the durability of a scheduler with this id; None without a keeper."""
        if keeper is None:
            if dask_config.get("paceline.scheduler.durable"):
                logger.warning("paceline.scheduler.durable has no effect here: %s", NOT_DURABLE)
            return None
        start = RunStart(build.description(), config, id, time.time())
        return cls(keeper, start, ConnectionFactory(secret).accepted)

    @property
    def n_restarts(self) -> int:
        """The number of scheduler processes before this one that died."""
        return self._keeper.kept.deaths.n_restarts

    @property
    def n_upgrades(self) -> int:
        """The number of scheduler processes that were replaced by another release."""
        return self._keeper.kept.deaths.n_upgrades

    # replay

    def _replay(self, new_connection: Callable[[], Connection]) -> None:
        """Read the log. Add to it what a process read from a socket last, before it died."""
        counters = {number: _counters(sock) for number, sock in self._sockets.items()}
        replay = Replay(counters, new_connection, self._keeper.recorded)
        for record in self._log:
            replay.record(record)
        self.recorded = getattr(replay, "recorded", None)
        if self.recorded is None:
            if self._sockets:
                raise RecoveryError(f"the log in {self._keeper.folder} is missing")
            return
        for known in self.recorded.connections.values():
            missing = known.counters.read - known.read
            if known.number not in self._sockets or missing == 0:
                continue
            if 0 < missing <= len(self.scratch):
                data = self.scratch[:missing]
                self.recorder.read(known.number, data)
                known.receive(data)
            else:
                known.fault = f"the log has {-missing} bytes more than were read"

    # continuation

    async def continue_connections(self, server: ServerApi) -> None:
        """Continue all connections, once the server has been set up."""
        recorded = self.recorded
        if recorded is None:
            return
        driver = server.driver
        recorded.now = max(recorded.now, self._keeper.kept.progress.clock or time.time())
        driver.continue_from(recorded)
        server.graph_ids = itertools.count(recorded.last_graph_id + 1)
        alive = asyncio.ensure_future(self._note_alive())
        try:
            await restore_plugins_and_activities(server, recorded.to_continue)
        finally:
            alive.cancel()
        if recorded.shuffles and self.recorder.shuffles is not None:
            self.recorder.shuffles.restore(pickle.loads(recorded.shuffles))
        ended = [self._adopt(server, recorded, known) for known in self._ended_streams(recorded)]
        adopted: list[tuple[Adoption, socket.socket]] = []
        accepted: list[Coroutine[Any, Any, None]] = []
        for number, sock in self._sockets.items():
            known = recorded.connections.get(number)
            if known is None and _counters(sock) == Transferred(0, 0):
                # it was accepted, but not opened
                accepted.append(self.backend.accept(server.transport, sock, number))
            elif known is None or known.is_closed:
                self._discard(number, sock)
            else:
                adopted.append((self._adopt(server, recorded, known), sock))
        for adoption in [*ended, *(adoption for adoption, _ in adopted)]:
            self.recorder.handling(adoption.comm.number)
            adoption.begin()
        self.recorder.handling(0)
        self.recorder.commit()
        driver.resume()
        # concurrently, because each connected peer sends messages that keep the event loop busy
        await asyncio.gather(*(adoption.connect(sock) for adoption, sock in adopted), *accepted)
        for instruction in unfinished_instructions(server.state):
            driver.instructions[type(instruction)](instruction)
        self.restart_seconds = time.time() - self._keeper.kept.deaths.last[-1].time
        logger.info(
            "Continuing %d connections after %d turns, %.2f s after the scheduler process %s",
            len(adopted),
            recorded.n_turns,
            self.restart_seconds,
            self._keeper.kept.deaths.last[-1].how,
        )

    async def _note_alive(self) -> None:
        """Note that the event loop runs while plugins start again."""
        while True:
            self._keeper.kept.progress.alive()
            await asyncio.sleep(ALIVE_SECONDS)

    def _adopt(
        self, server: ServerApi, recorded: RecordedState, known: RecordedConnection
    ) -> Adoption:
        if known.number == self._keeper.kept.deaths.poisonous_connection:
            self._set_aside(known)
        comm = DurableComm(server.transport, self.recorder, self._keeper, known)
        return Adoption(server, recorded, known, comm)

    def _ended_streams(self, recorded: RecordedState) -> list[RecordedConnection]:
        """Return the streams that have ended, but whose peers the core has not removed yet."""
        state = recorded.core.state
        peers: dict[str, Container[str]] = {"worker": state.workers, "client": state.clients}
        ended = []
        for (kind, name), known in recorded.streams.items():
            if known.number not in self._sockets and not known.is_closed:  # it was not kept
                known.is_closed = True
                self.recorder.closed(known.number)
            if known.is_closed and name in peers.get(kind, ()):
                ended.append(known)
        return ended

    def _discard(self, number: int, sock: socket.socket) -> None:
        """Close a connection that was about to be closed, or of which nothing is known."""
        sock.close()
        self.recorder.closed(number)
        self._keeper.release(number)

    def _set_aside(self, known: RecordedConnection) -> None:
        """Write the input that ended several processes to a file; its connection is closed."""
        data = dump([list(known.requests), list(known.messages)])
        path = _write_new(self._keeper.folder, "connection", data)
        known.fault = f"its messages ended the scheduler repeatedly; they are now in {path}"

    def _set_aside_stimulus(self, name: str, pickled: bytes) -> None:
        """Write a stimulus that ended several processes to a file; it is not handled."""
        if self._has_set_aside:
            return  # it is the same one again, such as a tick
        self._has_set_aside = True
        logger.error(
            "The stimulus %s ended the scheduler repeatedly; it is now in %s and is not handled",
            name,
            _write_new(self._keeper.folder, name, pickled),
        )

    async def watch(self, server: ServerApi) -> None:
        """Report that the scheduler serves its peers; fork standbys until the keeper ends."""
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        progress = self._keeper.kept.progress
        loop.add_reader(self._keeper.channel, self._on_keeper, ended)
        self._keeper.ready()
        if self.recorded is not None:
            server.spawn(reconcile(server), "comparison with the workers")
        try:
            while not ended.is_set():
                progress.alive()
                progress.clock = server.driver.clock()
                self.recorder.check()
                self._reap_standbys()
                if self._wants_standby(server):
                    loop.call_soon(self._fork_standby, server)  # outside of tasks
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(ended.wait(), ALIVE_SECONDS)
        finally:
            loop.remove_reader(self._keeper.channel)
        logger.error("The keeper process has ended. Without it nothing outlives the scheduler")
        await server.scheduler.close(reason="the-keeper-process-has-ended")

    def _on_keeper(self, ended: asyncio.Event) -> None:
        """Handle a message of the keeper, or its end."""
        try:
            message = self._keeper.channel.recv(KEEPER_NBYTES)
        except ConnectionResetError:
            message = b""
        if message:
            self._forked_turns = -self._standby_turns
            if message == STANDBY_NOW:
                self._forked_at = -STANDBY_SECONDS
        else:
            ended.set()

    def _wants_standby(self, server: ServerApi) -> bool:
        """Return whether much was logged since the last standby was forked."""
        if not self.is_complete or time.monotonic() - self._forked_at < STANDBY_SECONDS:
            return False
        n_turns = server.driver.n_stimuli - self._forked_turns
        return n_turns >= self._standby_turns or self._log.position.segment > self._forked_segment

    def _fork_standby(self, server: ServerApi) -> None:
        """Fork a standby from this process, between two turns.

        Log an error, unless the previous attempt has failed, too.
        """
        self.recorder.commit()
        if not self.is_complete:  # since it was to be forked
            return
        position = self._log.position
        self._forked_at = time.monotonic()
        try:
            self._fork(server, position)
        except OSError as error:  # no descriptor or memory is available
            if self._can_fork:
                logger.error(
                    "Cannot fork a standby: %s; trying again every %s s. Until then, the log grows "
                    "and a restart takes longer",
                    error,
                    STANDBY_SECONDS,
                )
            self._can_fork = False
            return
        self._can_fork = True
        self._forked_turns, self._forked_segment = server.driver.n_stimuli, position.segment
        self._log.forget_old()

    def _fork(self, server: ServerApi, position: Position) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs, warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which it does not use
            pid = os.fork()
            if pid == 0:
                standby.run(theirs, server, self.start, position, self._keeper)
            self._keeper.standbys.append(pid)
            self._keeper.standby(ours, position.segment)

    def _reap_standbys(self) -> None:
        """Reap standbys that have ended because there is a newer one."""
        for pid in list(self._keeper.standbys):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._keeper.standbys.remove(pid)

    def _give_up(self, error: OSError) -> None:
        """Go on without a log."""
        logger.error(
            "The scheduler is NO LONGER DURABLE: the log in %s cannot be written: %s",
            self._keeper.folder,
            error,
        )
        self.is_complete = False
        self._log.close()
        self._keeper.give_up()


def _write_new(folder: Path, name: str, data: bytes) -> Path:
    """Write a new file for a bug report, and return its path. If that fails, log it and go on."""
    paths = (folder / f"set-aside-{name}-{number}.pickle" for number in itertools.count(1))
    path = next(path for path in paths if not path.exists())
    try:
        path.write_bytes(data)
    except OSError as error:
        logger.error("Cannot write %s: %s", path, error)
    return path


def _counters(sock: socket.socket) -> Transferred:
    """Return the counters of a connection; ``NOT_KEPT`` if it was reset."""
    try:
        return transferred(sock)
    except OSError:
        return NOT_KEPT
