"""Graph compilers in threads: their threads end, and errors fail the graph."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import distributed
import pytest
from paceline.scheduler import Scheduler
from paceline.scheduler.core.stimuli import GraphFailed
from paceline.scheduler.server.compilers import process
from paceline.scheduler.server.compilers.threads import ThreadGraphCompilers
from paceline.workers_compat.graphs import dispatch

from tests.support.fake_peers import until

from .test_graph_compilers import compiled, request

#: Exits while a thread waits until its replies are handled by a loop that was never closed.
EXIT_WITHOUT_STOP = """
import asyncio
from paceline.workers_compat.graphs import dispatch
from tests.server.test_thread_graph_compilers import EndlessGraph, block_a_thread

graph = EndlessGraph()
dispatch.replies = graph.replies
loop = asyncio.new_event_loop()
loop.run_until_complete(block_a_thread(graph))
"""


class EndlessGraph:
    """Replaces ``dispatch.replies``: replies until the test is over.

    Attributes:
        is_blocked: set when the thread waits until its replies are handled.
        has_ended: set when the thread requests no more replies.
    """

    def __init__(self) -> None:
        self.is_blocked = threading.Event()
        self.has_ended = threading.Event()
        self.is_over = False

    def replies(self, *args: Any) -> Iterator[Any]:
        try:
            for n in itertools.count():
                if n == process.WAITING_MESSAGES_MAX:
                    self.is_blocked.set()
                if self.is_over:
                    return
                yield n
        finally:
            self.has_ended.set()


class Slow:
    """An argument that is unpickled once ``proceed`` is set."""

    proceed = threading.Event()

    def __reduce__(self) -> Any:
        return wait_and_return_one, ()


def wait_and_return_one() -> int:
    Slow.proceed.wait(30)
    return 1


async def test_graph_is_kept_for_a_later_one_that_was_compiled_before_it() -> None:
    """The two threads finish the graphs in any order."""
    options: dict[str, Any] = {"host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    Slow.proceed.clear()
    async with (
        Scheduler(**options, dashboard=False) as scheduler,
        distributed.Client(scheduler.address, asynchronous=True) as client,
    ):
        first = client.submit(int, Slow(), key="first")
        second = client.submit(int, first, key="second")
        stream = scheduler.server.driver.client_streams[client.id]
        graphs = stream.pending_graphs
        await until(lambda: len(graphs) == 2 and graphs[1].outcome is not None)
        del first
        await until(lambda: graphs[1].released)
        Slow.proceed.set()
        async with distributed.Worker(scheduler.address, dashboard_address=":0"):
            assert await second == 1


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> EndlessGraph:
    made = EndlessGraph()
    monkeypatch.setattr(dispatch, "replies", made.replies)
    return made


@pytest.fixture
def loop(graph: EndlessGraph) -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    graph.is_over = True
    if not made.is_closed():
        made.run_until_complete(asyncio.sleep(0.1))  # wake the thread of a failed test
        made.close()


async def block_a_thread(graph: EndlessGraph) -> ThreadGraphCompilers:
    compilers = ThreadGraphCompilers()
    compilers.compile(request(1, None, []), lambda reply, frames: None)
    assert graph.is_blocked.wait(10)
    return compilers


def test_stop_ends_a_thread_although_the_loop_has_stopped(
    graph: EndlessGraph, loop: asyncio.AbstractEventLoop
) -> None:
    async def compile_and_stop() -> None:
        await (await block_a_thread(graph)).stop()

    loop.run_until_complete(compile_and_stop())
    assert graph.has_ended.wait(10)


def test_closing_the_loop_ends_a_thread(
    graph: EndlessGraph, loop: asyncio.AbstractEventLoop
) -> None:
    loop.run_until_complete(block_a_thread(graph))
    time.sleep(0.1)  # the thread is blocked again after the last replies were handled
    loop.close()
    assert graph.has_ended.wait(10)


def test_exit_does_not_wait_for_a_thread() -> None:
    """The threads of a program that never closes its scheduler are not joined."""
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", EXIT_WITHOUT_STOP], cwd=root, check=True, timeout=60)


async def test_runtime_error_fails_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*args: Any) -> Iterator[Any]:
        raise RuntimeError("no such node")

    monkeypatch.setattr(dispatch, "replies", failing)
    compilers = ThreadGraphCompilers()
    (failed,) = await compiled(compilers, request(1, None, ["x"]))
    assert type(failed) is GraphFailed and "RuntimeError: no such node" in failed.text
    await compilers.stop()
