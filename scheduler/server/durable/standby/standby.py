"""The standby: a copy of the scheduler process, which continues if that one dies.

The scheduler forks it between two turns. It sleeps until the keeper wakes it. Then it forks the
next standby, which is needed if the process dies again before it has forked one itself. It becomes
the scheduler process, which reads what the log contains since the fork.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import pickle
import signal
import socket
import traceback
from collections.abc import Container
from typing import TYPE_CHECKING, Any, NoReturn

from paceline.scheduler.server.comm.tcp import TcpComm
from paceline.scheduler.server.durable.channel.keeper_channel import KeeperChannel
from paceline.scheduler.server.durable.channel.messages import SnapshotReply, greeting
from paceline.scheduler.server.durable.log.durable_comm import DurableComm
from paceline.scheduler.server.durable.log.recorder import LogRecorder, dump
from paceline.scheduler.server.durable.log.segments import FORMAT as LOG_FORMAT
from paceline.scheduler.server.durable.log.segments import Position
from paceline.scheduler.server.durable.recovery.replay import RecordedState, RunStart
from paceline.scheduler.server.runtime import build
from paceline.workers_compat.counters import next_number
from paceline.workers_compat.end_process import end_process
from setproctitle import setproctitle

from . import snapshot

if TYPE_CHECKING:
    from paceline.scheduler.server.server_api import ServerApi


def capture(server: ServerApi, start: RunStart) -> RecordedState:
    """Return the state of this process, which handles nothing any more.

    Args:
        server: the server of this process.
        start: see ``RecordedState``.
    """
    recorder = server.recorder
    assert isinstance(recorder, LogRecorder)
    recorded = RecordedState(start, server.core)
    server.driver.capture(recorded)
    recorded.last_graph_id = next_number(server.graph_ids) - 1
    recorded.to_continue = dict(recorder.to_continue)
    if recorder.shuffles is not None:
        recorded.shuffles = dump(recorder.shuffles.state())
    streams: dict[tuple[str, str], Any] = {
        (kind, name): stream
        for kind, found in (
            ("worker", server.driver.worker_streams),
            ("client", server.driver.client_streams),
        )
        for name, stream in found.items()
    }
    peers: list[Any] = [comm.events for comm in server.transport.comms]
    handlers = {peer: peer.handler for peer in peers}
    handlers |= {stream.peer: stream for stream in streams.values()}
    for peer, handler in handlers.items():
        if isinstance(peer.comm, DurableComm):
            connection = recorded.connections[peer.comm.number] = peer.comm.capture(peer.connection)
            connection.receive_spool = peer.receive_spool
            handler.capture(connection, recorded)
    recorded.streams = {
        key: recorded.connections[stream.peer.comm.number] for key, stream in streams.items()
    }
    return recorded


def run(
    sock: socket.socket,
    server: ServerApi,
    start: RunStart,
    position: Position,
    keeper: KeeperChannel,
) -> NoReturn:
    """Become the standby in this process, which was just forked from the scheduler.

    Args:
        sock: socket to the keeper.
        server: the server of the scheduler process.
        start: see ``RecordedState``.
        position: the end of the log.
        keeper: the channel of the scheduler process.
    """
    code = 1
    loop = server.loop
    ancestors = [*keeper.ancestors, server, loop, *asyncio.all_tasks(loop)]
    try:
        asyncio._set_running_loop(None)  # noqa: SLF001 - documented for event loops
        begin(sock, {comm.fd for comm in server.transport.comms if isinstance(comm, TcpComm)})
        server.request_state.close()
        recorded = capture(server, start)
        channel = wait(sock, keeper, recorded, position)
        channel.ancestors = ancestors
        channel.serve(channel)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        end_process(code)


def begin(sock: socket.socket, comm_fds: Container[int] = ()) -> None:
    """Ignore signals, and close all sockets but ``sock``. Files and pipes stay open.

    Objects of other libraries, such as log handlers, keep the numbers of descriptors that are
    closed here. /dev/null gets these numbers, so that nothing is written to the peer whose socket
    would get one. Messages that are being received are continued in their files. libuv has a pipe
    for the whole process, which it closes and opens again with each fork.

    Args:
        sock: socket to the keeper.
        comm_fds: descriptors of comms, which are not used again. Their numbers become free.
    """
    setproctitle("paceline standby, not ready yet")
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    gc.disable()
    gc.freeze()
    fds = [*map(int, os.listdir("/proc/self/fd"))]
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in fds:
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{fd}")
            # an open end of a pseudoterminal would keep its shell running
            is_kept = target.startswith(("/", "pipe:")) and not target.endswith("/ptmx")
            if fd <= 2 or fd == sock.fileno() or is_kept:
                continue
            if fd in comm_fds:
                os.close(fd)
            else:
                os.dup2(null, fd, inheritable=False)
    os.close(null)


def wait(
    sock: socket.socket, keeper: KeeperChannel, recorded: RecordedState, position: Position
) -> KeeperChannel:
    """Wait until the keeper wakes this process. End the process if it is not needed.

    Return the channel of the scheduler process that it becomes.

    Args:
        sock: socket to the keeper.
        keeper: a channel whose memory is shared with the keeper.
        recorded: the state to continue from.
        position: the position in the log to which it belongs.
    """
    writers: list[int] = []

    def write_snapshot(file: int, reply: int) -> None:
        writers.append(_fork_writer(file, reply, recorded, position))

    while True:
        with contextlib.suppress(BrokenPipeError):  # the keeper has ended
            sock.send(greeting(build.description()))
        setproctitle("paceline standby")
        found = keeper.receive_successor(sock, write_snapshot)
        if found is None:
            os._exit(0)
        channel, next_sock = found
        pid = os.fork()
        if pid:
            channel.standbys += [pid, *writers]
            next_sock.close()
            sock.close()
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            channel.recorded, channel.position = recorded, position
            return channel
        sock.close()
        sock = next_sock
        channel.close()
        writers.clear()


def _fork_writer(file: int, reply: int, recorded: RecordedState, position: Position) -> int:
    """Fork a process that writes a snapshot, so that this one can be woken meanwhile.

    Return its process id.
    """
    pid = os.fork()
    if pid:
        os.close(file)
        os.close(reply)
        return pid
    try:
        about = {"release": build.description(), "log": LOG_FORMAT, "position": tuple(position)}
        with open(file, "wb") as stream:
            result = SnapshotReply(snapshot.write(stream, recorded, about))
        os.write(reply, pickle.dumps(result))
    except BaseException as error:
        os.write(reply, pickle.dumps(SnapshotReply(0, f"{type(error).__name__}: {error}")))
    finally:
        os._exit(0)
