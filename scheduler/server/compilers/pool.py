"""The pool of processes that compile the expressions of clients to tables of tasks.

There is one process, so that what the graphs of a program need is imported once. It compiles graphs
in order. The graphs of a client are in one process at a time: they are committed in the order in
which they were sent, so more processes would not help, and a client whose graphs do not end cannot
occupy more than one. If a process is slow with one graph, the graphs of other clients behind it are
moved to an extra process, which is started if there are fewer than ``PROCESSES_MAX``, or wait for
the next free one. An extra process ends when it is idle.

A process is killed and its graph fails if it makes no progress for
``paceline.graph-compiler.timeout``, or if its memory exceeds
``paceline.graph-compiler.memory-limit``. If it ends for another reason, the graph is compiled once
more. Processes are replaced after a number of graphs, or when their memory stays high.

One reply is handled per iteration of the event loop, so that other peers are served between the
chunks of a graph. An embedded scheduler compiles in threads instead (``threads.py``).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections import deque
from typing import Any, Protocol

from paceline.protocol.errors import RemoteProtocolError
from paceline.scheduler.core.stimuli import GraphChunk, GraphRestarted
from paceline.scheduler.core.text import format_nbytes
from paceline.scheduler.server.runtime import child_process
from paceline.scheduler.server.runtime.child_process import Spawn
from paceline.workers_compat.config import config
from paceline.workers_compat.graphs.compiler_messages import (
    ChildSetup,
    CompileRequest,
    CompilerReady,
    GraphDone,
    MatchRequest,
    UploadedFile,
    decode_reply,
)

from .process import CompileJob, CompilerProcess, OnReply, death_text

logger = logging.getLogger("distributed.scheduler")

#: Module that the processes run.
CHILD = "paceline.workers_compat.graphs.compiler_process"
#: A process that compiles one graph for longer is slow: graphs of other clients do not wait for it,
#: seconds. Another process takes about as long to start, and imports the same modules.
SLOW_SECONDS = 0.5
#: Interval of the checks of processes, seconds.
CHECK_SECONDS = 0.1
#: Number of processes: a regular one, and extra ones.
PROCESSES_MAX = 4
#: Consecutive processes that end before they are ready, after which graphs fail instead of waiting
#: for the next.
EARLY_DEATHS_MAX = 3
#: A graph fails after this number of processes has ended while compiling it.
DEATHS_OF_A_GRAPH_MAX = 2
#: A process that still compiles a graph this long after it was cancelled is killed, seconds.
CANCELLED_SECONDS = 1.0
#: Time for processes to end when the pool stops, seconds.
STOP_SECONDS = 2.0
#: Time for a process to exit after its socket was closed, seconds.
EXIT_SECONDS = 0.2
#: A process is replaced after this many graphs.
RECYCLE_GRAPHS = 20_000
#: A process is replaced if its memory has grown by more than this when it is idle.
RECYCLE_NBYTES = 512 * 2**20
#: Idle time before the memory of a process is checked, and before an extra one ends, seconds.
RECYCLE_IDLE_SECONDS = 1.0


class GraphCompilers(Protocol):
    """Graph compilers, in processes or in threads."""

    def start(self) -> None:
        """Start the processes, so that the first graph does not wait for them."""

    def compile(self, request: CompileRequest | MatchRequest, on_reply: OnReply) -> None:
        """Compile a graph.

        ``on_reply`` is called with chunks, then a commit or a failure, each in a separate iteration
        of the loop. A failure may be reported before this returns.
        """

    def cancel(self, graph_id: int) -> None:
        """Cancel a graph. There are no more replies about it."""

    def upload_file(self, name: str, data: bytes) -> None:
        """Make a module that a client uploaded importable for graphs."""

    async def stop(self) -> None:
        """End all processes or threads."""


class ProcessGraphCompilers:
    """Compile graphs in child processes. Created and used on the event loop's thread.

    Args:
        spawn: starts a process.
    """

    def __init__(self, spawn: Spawn = child_process.spawn) -> None:
        self._spawn_child = spawn
        self._loop = asyncio.get_running_loop()
        self._processes: list[CompilerProcess] = []
        # client -> its jobs that no process has, in order. A client with too many is not read any
        # further
        self._queues: dict[str, deque[CompileJob]] = {}
        self._timeout_seconds = config.graph_compiler_timeout_seconds()
        self._memory_limit_nbytes = config.graph_compiler_memory_limit_nbytes()
        self._files: dict[str, bytes] = {}
        self._early_deaths = 0
        self._stopping = False
        self._pumping = False
        self._check_handle: asyncio.TimerHandle | None = None
        self._next = 0
        self._connecting: set[asyncio.Task[Any]] = set()

    def start(self) -> None:
        """Start the regular process."""
        self._spawn()

    def compile(self, request: CompileRequest | MatchRequest, on_reply: OnReply) -> None:
        job = CompileJob(request, on_reply)
        self._queues.setdefault(job.client, deque()).append(job)
        self._dispatch()

    def cancel(self, graph_id: int) -> None:
        for queue in self._queues.values():
            for job in queue:
                if job.graph_id == graph_id:
                    queue.remove(job)
                    return
        for process in self._processes:
            if graph_id in process.graphs:
                process.cancel(graph_id, self._loop.time())
        self._check_soon()

    def upload_file(self, name: str, data: bytes) -> None:
        self._files[name] = data
        for process in self._processes:
            process.send(UploadedFile(name, data))

    async def stop(self) -> None:
        self._stopping = True
        if self._check_handle is not None:
            self._check_handle.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        processes = [process for process in self._processes if process.transport is not None]
        for process in processes:
            process.end()
        await child_process.stop([process.process for process in self._processes], STOP_SECONDS)
        for process in processes:
            process.transport.close()

    # from the queues to processes

    def _dispatch(self) -> None:
        """Send queued graphs to processes that accept more, one client after the other."""
        for client in list(self._queues):
            queue = self._queues[client]
            if len(self._processes) >= PROCESSES_MAX and not any(
                process.accepts_more for process in self._processes
            ):
                break
            del self._queues[client]
            while queue and self._place(queue[0]):
                queue.popleft()
            if queue:
                self._queues[client] = queue  # after those of other clients
        self._check_soon()

    def _place(self, job: CompileJob) -> bool:
        """Send a graph to a process, or fail it. Return False if it has to wait."""
        process = self._choose(job)
        if process is None:
            if self._stopping or self._processes:
                return False
            job.fail("the graph compiler cannot be started")
            return True
        try:
            process.give(job, self._loop.time())
        except Exception as error:
            # the message of the client contains a value that cannot be encoded for the pipe
            job.fail(f"the request cannot be encoded: {type(error).__name__}: {error}")
        return True

    def _choose(self, job: CompileJob) -> CompilerProcess | None:
        """Return the process that will probably compile a graph first; None if it has to wait."""
        own = next((p for p in self._processes if p.serves(job.client)), None)
        if own is not None:
            return own if own.accepts(job.graph_id) else None
        fast = [p for p in self._processes if not p.ending and not self._is_slow(p)]
        if not fast and len(self._processes) < PROCESSES_MAX:
            return self._spawn()
        fit = [p for p in fast if p.accepts(job.graph_id)]
        return min(fit, key=lambda p: len(p.graphs), default=None)

    def _is_slow(self, process: CompilerProcess) -> bool:
        """Return whether its graph is large, or has taken longer than ``SLOW_SECONDS``."""
        if not process.ready or not process.graphs:
            return False
        is_large = process.head is not None and process.head.large
        return is_large or self._loop.time() - process.head_since >= SLOW_SECONDS

    def _requeue(self, jobs: list[CompileJob]) -> None:
        """Put jobs at the front of the queues of their clients."""
        for job in reversed(jobs):
            self._queues.setdefault(job.client, deque()).appendleft(job)

    # checks, while there is a process to check

    def _check_soon(self) -> None:
        if self._check_handle is not None or self._stopping:
            return
        if any(p.graphs or (p.ready and not p.checked_idle) for p in self._processes):
            self._check_handle = self._loop.call_later(CHECK_SECONDS, self._check)

    def _check(self) -> None:
        """Kill processes that exceed a limit, relieve slow ones, and replace worn ones."""
        self._check_handle = None
        for process in list(self._processes):
            if not process.ready or process.ended_for or process.ending:
                continue  # it imports modules, which may take long on a slow disk, or it is ending
            if process.graphs:
                self._check_busy(process)
            else:
                self._check_idle(process)
        self._dispatch()

    def _check_busy(self, process: CompilerProcess) -> None:
        now = self._loop.time()
        limit = self._memory_limit_nbytes
        timeout = self._timeout_seconds
        if limit and (nbytes := process.resident_nbytes()) > limit:
            self._kill(
                process,
                f"the graph compiler used {format_nbytes(nbytes)} of memory for this graph; "
                f"the limit is {format_nbytes(limit)}. "
                "Send a smaller graph, or raise `paceline.graph-compiler.memory-limit`",
            )
        elif process.head is None and now - process.head_since > CANCELLED_SECONDS:
            self._kill(process, "it did not stop compiling a cancelled graph")
        elif (
            timeout
            and not process.waiting
            and now - max(process.head_since, process.last_message_at) > timeout
        ):
            self._kill(
                process,
                f"the graph compiler made no progress for {timeout:g} s. "
                "Send a smaller graph, or raise `paceline.graph-compiler.timeout`",
            )
        elif self._is_slow(process):
            self._rebalance(process)

    def _rebalance(self, process: CompilerProcess) -> None:
        """Move the graphs of other clients away from a slow process."""
        head = process.head
        others = [
            job
            for job in list(process.graphs.values())[1:]
            if job is not None and job.is_open and (head is None or job.client != head.client)
        ]
        for job in others:
            process.move(job.graph_id, self._loop.time())
        self._requeue(others)

    def _check_idle(self, process: CompilerProcess) -> None:
        if self._loop.time() - process.idle_since < RECYCLE_IDLE_SECONDS or process.checked_idle:
            return
        process.checked_idle = True
        if process is not next(each for each in self._processes if not each.ending):
            process.end()  # the oldest stays: it has imported most of what graphs need
            return
        allowed = RECYCLE_NBYTES
        if self._memory_limit_nbytes:
            allowed = min(allowed, (self._memory_limit_nbytes - process.ready_nbytes) // 4)
        if process.resident_nbytes() - process.ready_nbytes > allowed:
            self._replace(process, "its memory stayed high")

    def _replace(self, process: CompilerProcess, reason: str) -> None:
        """End an idle process, and start its successor."""
        logger.info("Replacing the graph compiler %d: %s", process.process.pid, reason)
        process.end()
        self._spawn()

    def _kill(self, process: CompilerProcess, reason: str) -> None:
        logger.warning("Killing the graph compiler %d: %s", process.process.pid, reason)
        process.kill(reason)

    # processes

    def _spawn(self) -> CompilerProcess | None:
        if self._stopping:
            return None
        ours, theirs = socket.socketpair()
        try:
            child = self._spawn_child(CHILD, [theirs.fileno()])
        except OSError as error:
            logger.error("Cannot start a graph compiler: %s", error)
            ours.close()
            return None
        finally:
            theirs.close()
        process = CompilerProcess(self._pump_soon, self._process_lost, child)
        self._processes.append(process)
        process.send(
            ChildSetup(config.plain_config(), sys_path=list(sys.path), files=dict(self._files))
        )
        ours.setblocking(False)
        task = self._loop.create_task(self._loop.connect_accepted_socket(lambda: process, ours))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        return process

    def _process_lost(self, process: CompilerProcess) -> None:
        """Fail or requeue the graphs of a process that has ended, and start one if none is left."""
        if process.gone:
            return
        process.gone = True
        self._processes.remove(process)
        if self._stopping:
            return
        code = child_process.reap(process.process, EXIT_SECONDS)
        if process.ending and code == 0:
            return
        logger.warning("The graph compiler %d ended with exit code %s", process.process.pid, code)
        self._early_deaths = 0 if process.ready else self._early_deaths + 1
        is_startable = self._early_deaths < EARLY_DEATHS_MAX
        jobs = [job for job in process.graphs.values() if job is not None and job.is_open]
        if not process.ready and not is_startable:
            for job in jobs:
                job.fail(death_text(code))
            jobs = []
        elif process.ready and jobs and jobs[0] is process.head:
            if not self._may_try_again(jobs[0], process, death_text(code)):
                jobs.pop(0)
        if is_startable and not self._processes:
            self._spawn()
        self._requeue(jobs)
        self._dispatch()

    def _may_try_again(self, job: CompileJob, process: CompilerProcess, text: str) -> bool:
        """Return whether a graph whose compiler has died is compiled once more. If not, fail it."""
        job.deaths += 1
        if process.ended_for:
            job.fail(process.ended_for)
        elif job.deaths >= DEATHS_OF_A_GRAPH_MAX:
            job.fail(f"{text}; so did the previous one")
        else:
            if job.n_chunks:
                job.n_chunks = 0
                job.on_reply(GraphRestarted(job.graph_id), None)
            return True
        return False

    # replies

    def _pump_soon(self) -> None:
        """Handle the messages of processes soon."""
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Handle one message. Processes take turns."""
        self._pumping = False
        processes = self._processes
        for i in range(len(processes)):
            process = processes[(self._next + i) % len(processes)]
            if process.waiting:
                self._next += i + 1
                self._handle(process, process.take())
                break
        if any(process.waiting for process in self._processes):
            self._pump_soon()

    def _handle(self, process: CompilerProcess, message: Any) -> None:
        try:
            reply = decode_reply(message)
        except RemoteProtocolError as error:
            process.reject(error)
            return
        process.last_message_at = self._loop.time()
        if isinstance(reply, CompilerReady):
            self._handle_ready(process)
        elif isinstance(reply, GraphDone):
            self._handle_done(process, reply.graph_id)
        else:
            job = process.graphs.get(reply.graph_id)
            if job is not None and job.is_open:
                is_chunk = isinstance(reply, GraphChunk)
                job.answered = not is_chunk
                job.n_chunks += is_chunk
                job.on_reply(reply, message)

    def _handle_ready(self, process: CompilerProcess) -> None:
        process.ready = True
        process.head_since = process.idle_since = self._loop.time()
        process.ready_nbytes = process.resident_nbytes()
        self._early_deaths = 0
        self._check_soon()

    def _handle_done(self, process: CompilerProcess, graph_id: int) -> None:
        job = process.done(graph_id, self._loop.time())
        if job is not None and job.is_open:
            logger.warning("The graph compiler %d did not finish a graph", process.process.pid)
            job.fail("the graph compiler did not finish it")
        if self._queues:
            self._dispatch()
        if process.n_compiled >= RECYCLE_GRAPHS and not process.graphs:
            self._replace(process, f"it has compiled {process.n_compiled} graphs")
        self._check_soon()
