"""A graph compiler process of the pool: its socket, and the graphs that it compiles."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psutil
from paceline.protocol.errors import RemoteProtocolError
from paceline.protocol.framing import FrameReader, Frames
from paceline.scheduler.core.stimuli import GraphFailed
from paceline.scheduler.server.runtime.child_process import ChildProcess
from paceline.workers_compat import errors
from paceline.workers_compat.graphs.compiler_messages import (
    Cancel,
    CompileRequest,
    MatchRequest,
    Request,
    encode_request,
)

logger = logging.getLogger("distributed.scheduler")

#: A graph with a larger pickled expression takes long: graphs of other clients do not wait for it.
LARGE_NBYTES = 256 * 2**10
#: Messages of one compiler that wait for the core. Beyond this number its socket is not read.
WAITING_MESSAGES_MAX = 8
#: Graphs that one process may have at a time: the one that it compiles, and those that wait in it.
GRAPHS_AHEAD_MAX = 16

#: Called with each reply about a graph, and the frames of the message that it was decoded from.
OnReply = Callable[[Any, "Frames | None"], None]


@dataclass(slots=True)
class CompileJob:
    """A graph that was submitted to the pool.

    Attributes:
        answered: its commit or failure was received.
        n_chunks: number of chunks passed to ``on_reply``.
        deaths: number of processes that ended while they compiled it.
    """

    request: CompileRequest | MatchRequest
    on_reply: OnReply
    answered: bool = False
    cancelled: bool = False
    n_chunks: int = 0
    deaths: int = 0

    @property
    def graph_id(self) -> int:
        """The id of the graph."""
        return self.request.graph_id

    @property
    def client(self) -> str:
        """The client that sent the graph."""
        return self.request.client

    @property
    def large(self) -> bool:
        """Return whether it takes long, because its expression is large."""
        return self.request.nbytes > LARGE_NBYTES

    @property
    def is_open(self) -> bool:
        """Return whether its commit or failure is outstanding."""
        return not self.answered and not self.cancelled

    def fail(self, text: str) -> None:
        """Reply that the graph could not be compiled, for the reason in ``text``."""
        self.answered = True
        self.on_reply(compile_failure(self.request, text), None)


@dataclass(slots=True, eq=False)
class CompilerProcess(asyncio.Protocol):
    """A compiler process.

    Attributes:
        on_messages: called when there are messages in ``waiting``.
        on_lost: called with the process when it has ended.
        graphs: graph_id -> job, for all graphs that it has not reported as done, in the order in
            which they were sent. It compiles the first. The job is None if the graph was moved to
            another process.
        head_since: loop time at which the first of ``graphs`` became the first, or was cancelled or
            moved.
        idle_since: loop time at which ``graphs`` became empty.
        checked_idle: its memory was checked since it became idle.
        ready: it has imported what it needs.
        ending: it receives no more graphs, and ends.
        ended_for: why the scheduler killed it. Clients receive this as the reason that their graph
            failed.
        ready_nbytes: its resident memory when it was ready.
        waiting: messages that were read and not handled.
    """

    on_messages: Callable[[], None]
    on_lost: Callable[[CompilerProcess], None]
    process: ChildProcess
    graphs: dict[int, CompileJob | None] = field(default_factory=dict)
    head_since: float = 0.0
    idle_since: float = 0.0
    last_message_at: float = 0.0
    checked_idle: bool = False
    ready: bool = False
    gone: bool = False
    ended_for: str = ""
    n_compiled: int = 0
    ready_nbytes: int = 0
    waiting: deque[Any] = field(default_factory=deque)
    reader: FrameReader = field(default_factory=FrameReader)
    unsent: list[Any] = field(default_factory=list)
    transport: Any = None
    ending: bool = False

    # graphs

    @property
    def head(self) -> CompileJob | None:
        """The job that it compiles. None if there is none, or it was cancelled or moved."""
        job = next(iter(self.graphs.values()), None)
        return None if job is None or job.cancelled else job

    @property
    def accepts_more(self) -> bool:
        """Return whether it may receive another graph."""
        ends = self.ending or self.gone or self.ended_for
        return not ends and len(self.graphs) < GRAPHS_AHEAD_MAX

    def accepts(self, graph_id: int) -> bool:
        """Return whether it may receive this graph, which it must not have already."""
        return self.accepts_more and graph_id not in self.graphs

    def serves(self, client: str) -> bool:
        """Return whether it has graphs of ``client``, including cancelled ones."""
        return any(job is not None and job.client == client for job in self.graphs.values())

    def give(self, job: CompileJob, now: float) -> None:
        """Send a graph. If it cannot be encoded, raise the error and do not keep the graph."""
        pieces = encode_request(job.request)
        if not self.graphs:
            self.head_since = now
        self.graphs[job.graph_id] = job
        self.checked_idle = False
        self._write(pieces)

    def cancel(self, graph_id: int, now: float) -> None:
        """Cancel a graph. The process reports it as done when it has stopped."""
        job = self.graphs[graph_id]
        if job is not None:
            job.cancelled = True
            self._withdraw(graph_id, now)

    def move(self, graph_id: int, now: float) -> None:
        """Cancel a graph that another process compiles instead."""
        self._withdraw(graph_id, now)
        self.graphs[graph_id] = None

    def _withdraw(self, graph_id: int, now: float) -> None:
        if graph_id == next(iter(self.graphs)):
            self.head_since = now
        self.send(Cancel(graph_id))

    def done(self, graph_id: int, now: float) -> CompileJob | None:
        """Remove a graph that the process has reported as done. Return its job."""
        self.n_compiled += 1
        self.head_since = now
        job = self.graphs.pop(graph_id, None)
        if not self.graphs:
            self.idle_since = now
        return job

    # the process

    def kill(self, reason: str) -> None:
        """Kill the process. If ``reason`` is not empty, its current graph fails with it."""
        self.ended_for = reason
        self.process.kill()

    def reject(self, error: RemoteProtocolError) -> None:
        """Kill the process because of a message that cannot be read, and drop later ones."""
        logger.error(
            "Cannot read a message of the graph compiler %d: %s; killing it",
            self.process.pid,
            error,
        )
        self.waiting.clear()
        self.process.kill()
        self.transport.abort()

    def end(self) -> None:
        """Let the process end when it has done what was sent. It must be connected."""
        if not self.ending:
            self.ending = True
            self.transport.write_eof()

    def resident_nbytes(self) -> int:
        """Return the resident memory of the process, 0 if it has ended or cannot be read."""
        with contextlib.suppress(psutil.Error, OSError):  # OSError: too many open files
            return int(psutil.Process(self.process.pid).memory_info().rss)
        return 0

    # the socket

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        for piece in self.unsent:
            transport.write(piece)
        self.unsent.clear()

    def data_received(self, data: bytes) -> None:
        try:
            messages = self.reader.feed(data)
        except RemoteProtocolError as error:
            self.reject(error)
            return
        if messages:
            self.waiting.extend(messages)
            if len(self.waiting) > WAITING_MESSAGES_MAX:
                self.transport.pause_reading()
            self.on_messages()

    def connection_lost(self, error: Exception | None) -> None:
        self.on_lost(self)

    def send(self, request: Request) -> None:
        """Send a request, once the socket is connected."""
        self._write(encode_request(request))

    def _write(self, pieces: list[Any]) -> None:
        if self.transport is None:
            self.unsent += pieces
        elif not self.gone and not self.ending:
            for piece in pieces:
                self.transport.write(piece)

    def take(self) -> Any:
        """Remove and return the oldest message. Resume reading if there is space again."""
        message = self.waiting.popleft()
        if len(self.waiting) == WAITING_MESSAGES_MAX and not self.gone:
            self.transport.resume_reading()
        return message


def death_text(code: int) -> str:
    """Describe how a compiler process ended, from its exit code."""
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"the graph compiler {how} while compiling this graph"


def compile_failure(request: CompileRequest | MatchRequest, text: str) -> GraphFailed:
    """Return the failure of a graph that was not compiled because of ``text``."""
    error = RuntimeError(f"Failed to compile the task graph: {text}")
    exception, traceback, _ = errors.error_payloads(error)
    return GraphFailed(
        request.graph_id, list(request.keys), request.client, exception, traceback, text
    )
