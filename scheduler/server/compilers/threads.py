"""Graph compilers in threads, for a scheduler that is embedded in a program.

The threads are daemons. Those of an executor would be joined when the interpreter exits, and would
wait there for the loop of a scheduler that was never closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from paceline.workers_compat.graphs.compiler_messages import CompileRequest, MatchRequest

from .process import WAITING_MESSAGES_MAX, OnReply, compile_failure

#: Number of compiler threads.
THREADS = 2
#: Interval in which a thread that waits checks whether its graph was cancelled, seconds.
CHECK_SECONDS = 0.1


class ThreadGraphCompilers:
    """Compiles graphs in threads of the program that embeds the scheduler."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._requests: SimpleQueue[tuple[Any, OnReply] | None] = SimpleQueue()
        self._n_threads = 0
        self._cancelled: set[int] = set()
        self._live: set[int] = set()

    def start(self) -> None:
        """Do nothing: threads start with the first graph."""

    def compile(self, request: CompileRequest | MatchRequest, on_reply: OnReply) -> None:
        self._live.add(request.graph_id)
        self._requests.put((request, on_reply))
        if self._n_threads < THREADS:
            self._n_threads += 1
            threading.Thread(target=self._run, name="paceline-compiler", daemon=True).start()

    def cancel(self, graph_id: int) -> None:
        if graph_id in self._live:
            self._cancelled.add(graph_id)

    def upload_file(self, name: str, data: bytes) -> None:
        """Do nothing: the threads import what the program imports."""

    async def stop(self) -> None:
        self._cancelled |= self._live
        for _ in range(self._n_threads):
            self._requests.put(None)

    def _run(self) -> None:
        """Compile graphs, in a thread."""
        while (job := self._requests.get()) is not None:
            request, on_reply = job
            if request.graph_id not in self._cancelled:
                self._compile(request, on_reply)
            self._call_in_loop(self._done, request.graph_id)
            del job, request, on_reply  # a thread that waits keeps no graph in memory

    def _compile(self, request: CompileRequest | MatchRequest, on_reply: OnReply) -> None:
        from paceline.workers_compat.graphs.dispatch import replies as replies_to

        graph_id = request.graph_id
        slots = threading.Semaphore(WAITING_MESSAGES_MAX)
        try:
            for reply in replies_to(request):
                if not self._acquire(slots, graph_id):
                    break
                self._call_in_loop(self._deliver, graph_id, reply, on_reply, slots)
        except BaseException as error:
            failure = compile_failure(request, f"{type(error).__name__}: {error}")
            self._call_in_loop(self._deliver, graph_id, failure, on_reply, slots)

    def _acquire(self, slots: threading.Semaphore, graph_id: int) -> bool:
        """Wait for one of `slots`. Return False if the graph was cancelled or the loop closed."""
        while graph_id not in self._cancelled and not self._loop.is_closed():
            # with a timeout, because a loop that has stopped does not release slots
            if slots.acquire(timeout=CHECK_SECONDS):
                return True
        return False

    def _call_in_loop(self, function: Callable[..., None], *args: Any) -> None:
        """Call a function on the loop's thread, unless the loop is closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *args)

    def _deliver(
        self, graph_id: int, reply: Any, on_reply: OnReply, slots: threading.Semaphore
    ) -> None:
        slots.release()
        if graph_id not in self._cancelled:
            on_reply(reply, None)

    def _done(self, graph_id: int) -> None:
        self._live.discard(graph_id)
        self._cancelled.discard(graph_id)
