"""The standby: a copy of the scheduler process, which continues if that one dies.

The scheduler forks it between two turns. It costs the memory pages that the scheduler changes from
then on. It sleeps until the keeper wakes it, reads what the log contains since it was forked, and
becomes the scheduler process. So a successor needs neither to read a snapshot nor to repeat more
than the last seconds.

Before it continues, it forks the next standby, which is needed if the process dies again before it
has forked one itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import os
import signal
import socket
import sys
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

from setproctitle import setproctitle

from .durable_comm import DurableComm
from .keeper_channel import KeeperChannel
from .log import Position
from .recorder import LogRecorder, dump
from .replay import Past, RunStart

if TYPE_CHECKING:
    from paceline.scheduler.server.requests.api import ServerApi


def capture(server: ServerApi, start: RunStart) -> Past:
    """Return the state of this process, which handles nothing any more.

    Args:
        server: the server of this process.
        start: see ``Past``.
    """
    recorder = server.recorder
    assert isinstance(recorder, LogRecorder)
    past = Past(start, server.core)
    server.driver.capture(past)
    past.last_graph_id = next(copy.copy(server.graph_ids)) - 1
    past.plugins = dict(recorder.plugins)
    if recorder.shuffles is not None:
        past.shuffles = dump(recorder.shuffles.state())
    streams: dict[tuple[str, str], Any] = {
        (kind, name): stream
        for kind, found in (
            ("worker", server.driver.worker_streams),
            ("client", server.driver.client_streams),
        )
        for name, stream in found.items()
    }
    comms = {stream.peer.comm for stream in streams.values()} | server.transport.comms
    for comm in comms:
        if isinstance(comm, DurableComm):
            peer: Any = comm.events
            connection = past.connections[comm.number] = comm.capture(peer.connection)
            peer.handler.capture(connection, past)
    past.streams = {
        key: past.connections[stream.peer.comm.number] for key, stream in streams.items()
    }
    return past


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
        start: see ``Past``.
        position: the end of the log.
        keeper: the channel of the scheduler process.
    """
    code = 1
    loop = server.loop
    ancestors = [*keeper.ancestors, server, loop, *asyncio.all_tasks(loop)]
    try:
        _leave_scheduler(sock)
        server.request_state.close()
        past = capture(server, start)
        channel = _wait(sock, keeper)
        channel.past, channel.position, channel.ancestors = past, position, ancestors
        channel.serve(channel)
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _leave_scheduler(sock: socket.socket) -> None:
    """Leave the event loop of the scheduler, and close all descriptors but ``sock`` and pipes.

    libuv has a pipe for the whole process, which it closes and opens again with each fork.
    """
    setproctitle("paceline standby")
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    asyncio._set_running_loop(None)  # noqa: SLF001 - documented for event loops
    gc.disable()
    gc.freeze()
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            kind = os.readlink(f"/proc/self/fd/{fd}").partition(":")[0]
            if fd > 2 and fd != sock.fileno() and kind != "pipe":
                os.close(fd)


def _wait(sock: socket.socket, keeper: KeeperChannel) -> KeeperChannel:
    """Wait until the keeper wakes this process. End the process if it is not needed."""
    while True:
        sock.send(os.getpid().to_bytes(8, "little"))
        found = keeper.receive_successor(sock)
        if found is None:
            os._exit(0)
        channel, next_sock = found
        pid = os.fork()
        if pid:
            channel.standbys.append(pid)
            next_sock.close()
            sock.close()
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            return channel
        sock.close()
        sock = next_sock
        channel.close()
