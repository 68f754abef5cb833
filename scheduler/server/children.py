"""The graph compilers: child processes that turn what clients send into tables of tasks.

Two kinds of lanes, so that a client's large graph never delays another's small one. A child works through its
requests in order; one that is stuck on its first loses those behind it to another child. When a child dies, the
graph it was working on fails with a clear error, those behind it are sent again, and a new child starts.
Replies come out one per turn of the event loop, so that other peers are served between the chunks of a graph.

An embedded scheduler compiles in threads instead (``ThreadCompilers``).

Must not know: how a graph is compiled, what becomes of its chunks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from paceline.scheduler.core.stimuli import GraphChunk, GraphFailed
from paceline.workers_compat import config, errors
from paceline.workers_compat.graph_table import (
    Cancel,
    ChildSetup,
    CompileRequest,
    GraphDone,
    MessageSplitter,
    Ready,
    Request,
    UploadFile,
    WireError,
    decode_reply,
    encode_request,
)

logger = logging.getLogger("distributed.scheduler")

#: A graph whose pickled expression is larger goes to the lane for large ones.
LARGE_NBYTES = 256 * 2**10
#: A child that works on one graph for longer is stuck as far as those behind it are concerned.
SLOW_SECONDS = 0.1
#: Children there may be at once: one per lane, and those that help out.
CHILDREN_MAX = 4
#: Messages of one child that wait for the core; then its pipe is read no further.
WAITING_MESSAGES_MAX = 8
#: Deaths in a row, before a child was ready, after which graphs fail instead of waiting for the next.
EARLY_DEATHS_MAX = 3
#: A child that still works on a graph so long after it was cancelled is ended, and another one started.
CANCELLED_SECONDS = 3.0
#: How long a child may take to end when it is told to, seconds.
STOP_SECONDS = 2.0
#: Tasks in a chunk: a chunk is one turn of the core, some milliseconds.
CHUNK_TASKS = 500
#: Threads of an embedded scheduler that compile.
THREADS = 2
#: Under memory pressure the system should end a compiler rather than the scheduler.
CHILD_OOM_SCORE = "500"

OnReply = Callable[[Any], None]


class Compilers(Protocol):
    """What ``peers`` asks of either kind."""

    def start(self) -> None:
        """Get ready, so that the first graph does not wait."""

    def compile(self, request: CompileRequest, on_reply: OnReply) -> None:
        """Compile; ``on_reply`` gets chunks, then a commit or a failure, each in a turn of the loop of its own."""

    def cancel(self, graph_id: int) -> None:
        """The graph is no longer wanted: nothing more comes of it."""

    def upload_file(self, name: str, data: bytes) -> None:
        """A client uploaded a module: graphs may need it from now on."""

    async def stop(self) -> None:
        """End them."""


@dataclass(slots=True)
class _Job:
    """A graph that was handed in. ``answered``: its commit or failure has come."""

    request: CompileRequest
    on_reply: OnReply
    answered: bool = False


@dataclass(slots=True, eq=False)
class _Child(asyncio.Protocol):
    """One child process: its pipes, and the jobs that it was sent, in order.

    Attributes:
        large: it is in the lane for large graphs.
        helper: it was started to help out.
        jobs: graph_id -> job, not done yet.
        waiting: whole messages that were read and not handled.
        head_since: loop time since which its first job is its first.
        ready: it has imported what it needs.
        leaving: it was told to end.
        gone: it has ended.
        watched: it will be looked at whether somebody waits behind a stuck head.
        ignored: graphs that were taken from it and of which it has not said its last word.
        sent: all graphs of which it has not said its last word, in order: it works on the first.
    """

    pool: ChildCompilers
    large: bool
    helper: bool
    process: subprocess.Popen[bytes]
    jobs: dict[int, _Job] = field(default_factory=dict)
    waiting: deque[Any] = field(default_factory=deque)
    splitter: MessageSplitter = field(default_factory=MessageSplitter)
    head_since: float = 0.0
    ignored: set[int] = field(default_factory=set)
    sent: dict[int, None] = field(default_factory=dict)
    ready: bool = False
    leaving: bool = False
    gone: bool = False
    watched: bool = False
    unsent: list[Any] = field(default_factory=list)
    reading: Any = None
    writing: Any = None

    # pipes

    def connection_made(self, transport: Any) -> None:
        self.reading = transport

    def data_received(self, data: bytes) -> None:
        try:
            messages = self.splitter.feed(data)
        except WireError as error:
            logger.error("The graph compiler %d is broken: %s", self.process.pid, error)
            self.process.kill()
            return
        if messages:
            self.waiting.extend(messages)
            if len(self.waiting) > WAITING_MESSAGES_MAX:
                self.reading.pause_reading()
            self.pool.has_messages()

    def connection_lost(self, error: Exception | None) -> None:
        self.pool.child_lost(self)

    def send(self, request: Request) -> None:
        pieces = encode_request(request)
        if self.gone:
            return
        if self.writing is None:
            self.unsent += pieces
            return
        for piece in pieces:
            self.writing.write(piece)

    def writable(self, transport: Any) -> None:
        self.writing = transport
        if self.gone:
            transport.abort()
            return
        for piece in self.unsent:
            transport.write(piece)
        self.unsent.clear()

    def take(self) -> Any:
        message = self.waiting.popleft()
        if len(self.waiting) == WAITING_MESSAGES_MAX and not self.gone:
            self.reading.resume_reading()
        return message


class ChildCompilers:
    """Compiles in child processes. Made and used on the event loop's thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._children: list[_Child] = []
        self._files: dict[str, bytes] = {}
        self._early_deaths = 0
        self._stopping = False
        self._pumping = False
        self._next = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start a child for each lane."""
        self._spawn(large=False)
        self._spawn(large=True)

    def compile(self, request: CompileRequest, on_reply: OnReply) -> None:
        """See ``Compilers``."""
        self._submit(_Job(request, on_reply))

    def cancel(self, graph_id: int) -> None:
        """See ``Compilers``."""
        for child in self._children:
            if graph_id in child.jobs:
                self._withdraw(child, graph_id)
                self._see_to_its_end(child, graph_id)

    def _see_to_its_end(self, child: _Child, graph_id: int) -> None:
        self._loop.call_later(CANCELLED_SECONDS, self._end_if_stuck, child, graph_id, child.ready)

    def _end_if_stuck(self, child: _Child, graph_id: int, at_work: bool) -> None:
        """A cancel takes effect between the chunks of a graph. Where that does not come (an expression that goes on for
        ever while it is read) the child ends; graphs behind this one go to the next.

        A child that was not ready when the clock was set (not ``at_work``) is not stuck: it still imports, which may take
        long on a slow disk, and takes longer for everybody each time that it is begun again.
        """
        if child.gone or next(iter(child.sent), None) != graph_id:
            return
        if not at_work:
            self._see_to_its_end(child, graph_id)
            return
        logger.info(
            "The graph compiler %d is ended: it did not stop for a cancel", child.process.pid
        )
        child.process.kill()

    def _withdraw(self, child: _Child, graph_id: int) -> _Job:
        child.ignored.add(graph_id)
        child.send(Cancel(graph_id))
        return child.jobs.pop(graph_id)

    def upload_file(self, name: str, data: bytes) -> None:
        """See ``Compilers``."""
        self._files[name] = data
        for child in self._children:
            child.send(UploadFile(name, data))

    async def stop(self) -> None:
        """See ``Compilers``."""
        self._stopping = True
        children = list(self._children)
        for child in children:
            if child.writing is not None:
                child.writing.close()
        deadline = self._loop.time() + STOP_SECONDS
        while any(c.process.poll() is None for c in children) and self._loop.time() < deadline:
            await asyncio.sleep(0.01)
        for child in children:
            if child.process.poll() is None:
                child.process.kill()
                child.process.wait()
            if child.reading is not None:
                child.reading.close()
        for task in list(self._tasks):
            task.cancel()

    # jobs and children

    def _submit(self, job: _Job) -> None:
        child = self._pick(_expr_nbytes(job.request) > LARGE_NBYTES, job.request.graph_id)
        if child is None:
            job.on_reply(_failed(job.request, "the graph compiler cannot be started"))
            return
        self._give(child, job)

    def _give(self, child: _Child, job: _Job) -> None:
        if not child.jobs:
            child.head_since = self._loop.time()
        child.jobs[job.request.graph_id] = job
        self._watch(child, SLOW_SECONDS)
        child.sent[job.request.graph_id] = None
        child.send(job.request)

    def _pick(self, large: bool, graph_id: int) -> _Child | None:
        """The child that is likely to get to a graph first; never one that it was taken from, and that still works on it.

        None where there is no such child and no room for another.
        """
        now = self._loop.time()
        lane = [c for c in self._children if c.large == large and not c.leaving]
        if not any(not c.helper for c in lane):
            return self._spawn(large)
        fit = [c for c in lane if graph_id not in c.ignored]
        best = min(fit, key=lambda c: len(c.jobs), default=None)
        if best is None:
            has_room = len(self._children) < CHILDREN_MAX
            return self._spawn(large, helper=True) if has_room else None
        if not best.jobs or not best.ready or now - best.head_since < SLOW_SECONDS:
            return best
        if len(self._children) < CHILDREN_MAX:
            return self._spawn(large, helper=True) or best
        return best

    def _relieve(self, child: _Child) -> None:
        """Give those behind a stuck head to another child, where there is one that is better."""
        child.watched = False
        if child.gone or len(child.jobs) < 2:
            return
        left = child.head_since + SLOW_SECONDS - self._loop.time()
        if left <= 0 and child.ready:
            for graph_id in list(child.jobs)[1:]:
                other = self._pick(child.large, graph_id)
                if other is not None and other is not child:
                    self._give(other, self._withdraw(child, graph_id))
        self._watch(child, max(left, SLOW_SECONDS / 2))

    def _watch(self, child: _Child, seconds: float) -> None:
        """Look after a while whether somebody waits behind a stuck head."""
        if not child.watched and len(child.jobs) > 1:
            child.watched = True
            self._loop.call_later(seconds, self._relieve, child)

    def _spawn(self, large: bool, helper: bool = False) -> _Child | None:
        if self._stopping:
            return None
        command = [sys.executable, "-m", "paceline.workers_compat.compiler_child"]
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=config.child_environment(),
                start_new_session=True,  # a terminal's Ctrl-C is for the scheduler, which ends them
            )
        except OSError as error:
            logger.error("The graph compiler cannot be started: %s", error)
            return None
        with contextlib.suppress(OSError), open(f"/proc/{process.pid}/oom_score_adj", "w") as f:
            f.write(CHILD_OOM_SCORE)
        child = _Child(self, large, helper, process)
        self._children.append(child)
        child.send(
            ChildSetup(
                config=config.plain(),
                sys_path=list(sys.path),
                files=dict(self._files),
                chunk_size=CHUNK_TASKS,
            )
        )
        task = self._loop.create_task(self._connect(child))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return child

    async def _connect(self, child: _Child) -> None:
        await self._loop.connect_read_pipe(lambda: child, child.process.stdout)
        transport, _ = await self._loop.connect_write_pipe(
            asyncio.BaseProtocol, child.process.stdin
        )
        child.writable(transport)

    def child_lost(self, child: _Child) -> None:
        """A child's pipe ended: it is dead, or was told to end."""
        if child.gone:
            return
        child.gone = True
        self._children.remove(child)
        if child.writing is not None and not child.writing.is_closing():
            child.writing.abort()
        if self._stopping:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(0.2)
        if child.process.poll() is None:
            child.process.kill()
            child.process.wait()
        code = child.process.returncode
        if child.helper and code == 0 and not child.jobs:
            return
        logger.warning("The graph compiler %d ended with exit code %s", child.process.pid, code)
        self._early_deaths = 0 if child.ready else self._early_deaths + 1
        jobs = list(child.jobs.values())
        at_work = bool(jobs) and next(iter(child.sent)) == jobs[0].request.graph_id
        if at_work and (child.ready or self._early_deaths >= EARLY_DEATHS_MAX):
            head = jobs.pop(0)
            head.on_reply(_failed(head.request, _death_text(code)))
        if not child.helper and self._early_deaths < EARLY_DEATHS_MAX:
            self._spawn(child.large)
        for job in jobs:
            self._submit(job)

    # replies

    def has_messages(self) -> None:
        """Some child has said something."""
        if not self._pumping:
            self._pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Handle one message, of the children in rotation."""
        self._pumping = False
        children = self._children
        for i in range(len(children)):
            child = children[(self._next + i) % len(children)]
            if child.waiting:
                self._next += i + 1
                self._handle(child, child.take())
                break
        if any(child.waiting for child in self._children):
            self.has_messages()

    def _handle(self, child: _Child, message: Any) -> None:
        try:
            reply = decode_reply(message)
        except WireError as error:
            logger.error("The graph compiler %d is broken: %s", child.process.pid, error)
            child.waiting.clear()  # what follows makes no sense without this one
            child.process.kill()
            return
        kind = type(reply)
        if kind is Ready:
            child.ready = True
            self._early_deaths = 0
            child.head_since = self._loop.time()
            self._dismiss(child)
            return
        job = child.jobs.get(reply.graph_id)  # type: ignore[union-attr]
        if kind is GraphDone:
            child.sent.pop(reply.graph_id, None)  # type: ignore[union-attr]
            if reply.graph_id in child.ignored:  # type: ignore[union-attr]
                child.ignored.discard(reply.graph_id)  # type: ignore[union-attr]
            else:
                child.jobs.pop(reply.graph_id, None)  # type: ignore[union-attr]
                if job is not None and not job.answered:
                    logger.warning("The graph compiler %d gave a graph up", child.process.pid)
                    job.on_reply(_failed(job.request, "the graph compiler gave it up"))
            child.head_since = self._loop.time()
            self._dismiss(child)
        elif job is not None:
            job.answered = kind is not GraphChunk
            job.on_reply(reply)

    def _dismiss(self, child: _Child) -> None:
        """A helper that is done may go."""
        if child.helper and not child.jobs and not child.ignored and child.writing is not None:
            child.leaving = True
            child.writing.close()


class ThreadCompilers:
    """Compiles in threads of an embedding program."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(THREADS, thread_name_prefix="paceline-compiler")
        self._cancelled: set[int] = set()
        self._live: set[int] = set()

    def start(self) -> None:
        """See ``Compilers``."""

    def compile(self, request: CompileRequest, on_reply: OnReply) -> None:
        """See ``Compilers``."""
        self._live.add(request.graph_id)
        self._executor.submit(self._run, request, on_reply)

    def cancel(self, graph_id: int) -> None:
        """See ``Compilers``."""
        if graph_id in self._live:
            self._cancelled.add(graph_id)

    def upload_file(self, name: str, data: bytes) -> None:
        """Nothing to do: the threads import what the program imports."""

    async def stop(self) -> None:
        """See ``Compilers``."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _run(self, request: CompileRequest, on_reply: OnReply) -> None:
        """In a thread."""
        from paceline.workers_compat.graph import compile_graph

        slots = threading.Semaphore(WAITING_MESSAGES_MAX)
        replies: Iterator[Any]
        try:
            replies = iter(compile_graph(request))
            for reply in replies:
                if request.graph_id in self._cancelled:
                    break
                slots.acquire()
                self._loop.call_soon_threadsafe(
                    self._deliver, request.graph_id, reply, on_reply, slots
                )
        except RuntimeError:  # the loop is closed
            return
        except BaseException as error:
            failure = _failed(request, f"{type(error).__name__}: {error}")
            self._loop.call_soon_threadsafe(
                self._deliver, request.graph_id, failure, on_reply, slots
            )
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._done, request.graph_id)

    def _deliver(
        self, graph_id: int, reply: Any, on_reply: OnReply, slots: threading.Semaphore
    ) -> None:
        slots.release()
        if graph_id not in self._cancelled:
            on_reply(reply)

    def _done(self, graph_id: int) -> None:
        self._live.discard(graph_id)
        self._cancelled.discard(graph_id)


def _expr_nbytes(request: CompileRequest) -> int:
    return request.expr_ser.nbytes


def _death_text(code: int | None) -> str:
    if code is not None and code < 0:
        return f"the process that reads graphs was killed by signal {-code} while reading this one"
    return f"the process that reads graphs ended with exit code {code} while reading this one"


def _failed(request: CompileRequest, text: str) -> GraphFailed:
    """The answer to a graph that could not be compiled for a reason of ours."""
    message = errors.error_message(RuntimeError(f"Failed to read the graph: {text}"))
    return GraphFailed(
        graph_id=request.graph_id,
        keys=list(request.keys),
        client=request.client,
        exception=message["exception"],
        traceback=message["traceback"],
        text=text,
    )
