"""Graphs from a client through the compilers to the core."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import cloudpickle
import pytest
from dask._expr import LLGExpr
from dask._task_spec import Task, TaskRef
from paceline.protocol import messages as m
from paceline.protocol.payload import serialized_payload
from paceline.scheduler.core.stimuli import GraphCommit
from paceline.scheduler.server.runtime import child_process
from paceline.scheduler.server.runtime.template import Template
from paceline.scheduler.server.scheduler import Scheduler

from tests.support.fake_peers import Peer, client, until, worker

LARGE = 30_000
SERVE = """
import socket, sys
import paceline.workers_compat.graphs.compiler_process
from paceline.scheduler.server.runtime.template import serve
serve(socket.socket(fileno=int(sys.argv[1])))
"""


@pytest.fixture(scope="module")
def template() -> Iterator[Template]:
    """Return a template that is not a fork of this process, which has threads."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        fd = theirs.fileno()
        process = subprocess.Popen([sys.executable, "-c", SERVE, str(fd)], pass_fds=[fd])
    made = Template(process.pid, ours)
    yield made
    made.stop()
    process.wait()


@pytest.fixture
async def scheduler(
    template: Template, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Scheduler]:
    """Start a scheduler whose graph compilers are forked, as those of the command are."""
    monkeypatch.setattr(child_process, "spawn", template.spawn)
    options = {"host": "127.0.0.1", "port": 0, "dashboard": False}
    async with Scheduler(**options, compile_in_threads=False) as made:
        yield made


def graph(name: str, n: int) -> m.UpdateGraph:
    """Return n independent tasks; the first is desired with the last."""
    dsk = {f"{name}-{i}": (sum, [i, 1]) for i in range(n)}
    dsk[f"{name}-end"] = (list, list(dsk))  # type: ignore[assignment]
    expr = serialized_payload(
        {"serializer": "pickle", "writeable": []}, [cloudpickle.dumps(LLGExpr(dsk))]
    )
    return m.UpdateGraph(expr_ser=expr, keys=[f"{name}-end"])


async def computed(peer: Peer) -> list[str]:
    return [x.key for x in await peer.messages() if type(x) is m.ComputeTask]


def noted(scheduler: Scheduler, *kinds: type) -> list[int]:
    """Return a list that collects the graph ids of messages of these kinds (0 without one) as the core handles them."""
    found: list[int] = []
    handlers = scheduler.server.core.handlers
    for kind in kinds:

        def noting(turn: Any, message: Any, handle: Any = handlers[kind]) -> None:
            found.append(getattr(message, "graph_id", 0))
            handle(turn, message)

        handlers[kind] = noting
    return found


async def test_large_graph_does_not_delay_a_small_one_of_another_client(
    scheduler: Scheduler,
) -> None:
    state = scheduler.server.state
    alice = await worker(scheduler)
    large, small = await client(scheduler, "large"), await client(scheduler, "small")
    warm_up = graph("warm", 1)
    small.send([warm_up])
    await until(lambda: "warm-end" in state.tasks)
    large.send([graph("big", LARGE)])
    await asyncio.sleep(0.05)
    small.send([graph("quick", 1)])
    seen: list[str] = []
    while "quick-0" not in seen:
        seen += await computed(alice)
    assert "big-end" not in state.tasks
    await until(lambda: "big-end" in state.tasks)


async def test_graphs_of_a_removed_client_are_dropped(scheduler: Scheduler) -> None:
    state = scheduler.server.state
    leaving = await client(scheduler, "leaving")
    leaving.send([graph("big", LARGE)])
    await until(lambda: state.graphs)  # chunks are arriving
    leaving.writer.close()
    await until(lambda: "leaving" not in state.clients)
    await until(lambda: not state.graphs and not state.tasks)
    stays = await client(scheduler, "stays")
    stays.send([graph("next", 1)])
    await until(lambda: "next-end" in state.tasks)
    assert "big-end" not in state.tasks


async def test_only_messages_after_a_graph_wait_for_it(
    scheduler: Scheduler,
) -> None:
    """Submit two graphs at once; the second is compiled first, and waits for the first."""
    state = scheduler.server.state
    peer = await client(scheduler)
    commits = noted(scheduler, GraphCommit, m.ClientReleasesKeys)
    peer.send([graph("big", LARGE)])
    peer.send([graph("small", 1), m.ClientReleasesKeys(keys=["big-end"])])
    requester = await Peer.connect(scheduler)
    assert await requester.request({"op": "get_task_status", "keys": ["small-end"]}) == {
        "small-end": None
    }
    await until(lambda: len(commits) == 3)
    assert commits == [1, 2, 0]
    peer.send([m.ClientReleasesKeys(keys=["small-end"])])
    await until(lambda: not state.tasks)


class Endless:
    """An expression that never finishes unpickling."""

    def __reduce__(self) -> Any:
        return exec, ("import time; time.sleep(1000)",)


def endless(key: str) -> m.UpdateGraph:
    expr = serialized_payload(
        {"serializer": "pickle", "writeable": []}, [cloudpickle.dumps(Endless())]
    )
    return m.UpdateGraph(expr_ser=expr, keys=[key])


def dependent(key: str) -> m.UpdateGraph:
    """Return a graph of one task that uses ``key``, which it does not compute."""
    expr = LLGExpr({"uses": Task("uses", abs, TaskRef(key))})
    payload = serialized_payload(
        {"serializer": "pickle", "writeable": []}, [cloudpickle.dumps(expr)]
    )
    return m.UpdateGraph(expr_ser=payload, keys=["uses"])


async def test_a_graph_waits_for_the_earlier_graph_of_another_client_that_it_uses(
    scheduler: Scheduler,
) -> None:
    state = scheduler.server.state
    first, second = await client(scheduler, "first"), await client(scheduler, "second")
    commits = noted(scheduler, GraphCommit)
    first.send([graph("big", LARGE)])
    await until(lambda: scheduler.server.driver.n_compiling)
    second.send([m.ClientDesiresKeys(keys=["big-end"]), dependent("big-end")])
    await until(lambda: "uses" in state.tasks)
    assert commits == [1, 2]


async def test_a_graph_does_not_wait_for_a_client_that_left(scheduler: Scheduler) -> None:
    first, second = await client(scheduler, "first"), await client(scheduler, "second")
    first.send([endless("big-end")])
    await until(lambda: scheduler.server.driver.n_compiling)
    second.send([dependent("big-end")])
    stream: Any = scheduler.server.driver.client_streams["second"]
    await until(lambda: stream.pending_graphs and stream.pending_graphs[0].awaited)
    first.writer.close()
    assert [type(x) for x in await second.messages()] == [m.CancelledKeys]


async def test_a_scheduler_that_compiles_a_graph_is_not_idle(scheduler: Scheduler) -> None:
    peer, requester = await client(scheduler), await Peer.connect(scheduler)
    check = {"op": "check_idle"}
    await until(lambda: scheduler.server.state.clients)
    assert await requester.request(check) is not None
    peer.send([endless("a")])
    await until(lambda: scheduler.server.driver.n_compiling)
    assert await requester.request(check) is None
    peer.send([m.ClientReleasesKeys(keys=["a"])])
    await until(lambda: not scheduler.server.driver.n_compiling)
    assert await requester.request(check) is not None


@pytest.mark.parametrize(
    "given_up",
    [
        m.ClientReleasesKeys(keys=["c", "b", "a"]),
        m.CancelKeys(keys=["a", "b", "c"]),
    ],
    ids=["released", "cancelled"],
)
async def test_graphs_with_released_keys_are_no_longer_compiled(
    scheduler: Scheduler, given_up: m.Message
) -> None:
    peer = await client(scheduler)
    peer.send([endless("a"), endless("b"), endless("c")])
    peer.send([given_up])
    peer.send([graph("next", 1)])
    await until(lambda: "next-end" in scheduler.server.state.tasks)


async def test_released_graph_is_compiled_if_another_may_depend_on_it(scheduler: Scheduler) -> None:
    state = scheduler.server.state
    release = m.ClientReleasesKeys(keys=["x-end"])
    commits = noted(scheduler, GraphCommit)
    peer, other = await client(scheduler, "one"), await client(scheduler, "other")
    # another graph of the client may depend on it
    peer.send([graph("x", 1), graph("y", 1), release])
    await until(lambda: "y-end" in state.tasks)
    assert commits == [1, 2]
    # another client desires it
    other.send([m.ClientDesiresKeys(keys=["z-end"])])
    await until(lambda: "z-end" in state.tasks)
    peer.send([graph("z", 1), m.ClientReleasesKeys(keys=["z-end"])])
    await until(lambda: "z-0" in state.tasks)
    # the scheduler keeps it
    peer.send(
        [
            graph("w", 1),
            m.ClientDesiresKeys(keys=["w-end"], client="fire-and-forget"),
            m.ClientReleasesKeys(keys=["w-end"]),
        ]
    )
    await until(lambda: "w-0" in state.tasks)


async def test_inputs_released_while_an_earlier_graph_is_committed_are_kept(
    scheduler: Scheduler,
) -> None:
    """`client.submit(sum, client.map(...))` releases the inputs as soon as both graphs are sent."""
    state = scheduler.server.state
    peer = await client(scheduler)
    total = LLGExpr({"total": Task("total", list, TaskRef("x-end"))})
    expr = serialized_payload({"serializer": "pickle", "writeable": []}, [cloudpickle.dumps(total)])
    released = m.ClientReleasesKeys(keys=["x-end"])
    # the commit of the first graph takes several turns
    peer.send([graph("x", 2000), m.UpdateGraph(expr_ser=expr, keys=["total"]), released])
    await until(lambda: "total" in state.tasks)
    await until(lambda: not state.tasks["x-end"].who_wants)
    assert [ts.key for ts in state.tasks["total"].dependencies] == ["x-end"]


async def test_graphs_of_a_client_that_closes_are_compiled_if_others_need_them(
    scheduler: Scheduler,
) -> None:
    state = scheduler.server.state
    commits = noted(scheduler, GraphCommit)
    peer, other = await client(scheduler, "one"), await client(scheduler, "other")
    forget = m.ClientDesiresKeys(keys=["x-end"], client="fire-and-forget")
    peer.send([graph("x", 1), forget, m.CloseClient(), m.CloseStream()])
    await until(lambda: "one" not in state.clients)
    assert commits == [1]
    assert "x-0" in state.tasks
    peer = await client(scheduler, "two")
    other.send([m.ClientDesiresKeys(keys=["y-end"])])
    await until(lambda: "y-end" in state.tasks)
    peer.send([graph("y", 1)])
    peer.writer.close()
    await until(lambda: "y-0" in state.tasks and "two" not in state.clients)
    peer = await client(scheduler, "three")
    peer.send([endless("z"), m.CloseClient(), m.CloseStream()])
    await until(lambda: "three" not in state.clients)
    assert "z-end" not in state.tasks


async def test_a_restart_drops_graphs_that_are_being_compiled(scheduler: Scheduler) -> None:
    peer = await client(scheduler)
    peer.send([endless("a")])
    await until(lambda: scheduler.server.driver.client_streams["client-1"].n_graphs == 1)
    await scheduler.restart(wait_for_workers=False)
    peer.send([graph("next", 1)])
    await until(lambda: "next-end" in scheduler.server.state.tasks)


async def test_unreadable_graph_affects_no_other(scheduler: Scheduler) -> None:
    peer = await client(scheduler)
    bad = serialized_payload({"serializer": "pickle", "writeable": []}, [b"nonsense"])
    peer.send([m.UpdateGraph(expr_ser=bad, keys=["x"]), graph("good", 1)])
    (report,) = [x for x in await peer.messages() if type(x) is m.TaskErredReport]
    assert report.key == "x"
    assert report.exception is not None
    await until(lambda: "good-end" in scheduler.server.state.tasks)
