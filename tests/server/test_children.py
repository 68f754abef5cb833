"""The compilers: graphs in, chunks out, also when a child dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from paceline.protocol.payload import serialized_payload
from paceline.scheduler.core.stimuli import GraphChunk, GraphCommit, GraphFailed
from paceline.scheduler.server import children
from paceline.scheduler.server.children import ChildCompilers, ThreadCompilers
from paceline.workers_compat.graph_table import CompileRequest


def request(graph_id: int, expr: Any, keys: list[Any]) -> CompileRequest:
    import cloudpickle

    payload = serialized_payload(
        {"serializer": "pickle", "writeable": []}, [cloudpickle.dumps(expr)]
    )
    return CompileRequest(graph_id=graph_id, client="c", expr_ser=payload, keys=keys)


def expression(n: int) -> tuple[Any, list[Any]]:
    """An expression as a client sends it, of about n tasks."""
    from dask._expr import LLGExpr

    dsk = {f"inc-{i}": (sum, [i, 1]) for i in range(n)}
    return LLGExpr(dsk), list(dsk)


async def compiled(compilers: Any, req: CompileRequest) -> list[Any]:
    replies: list[Any] = []
    done = asyncio.get_running_loop().create_future()

    def take(reply: Any) -> None:
        replies.append(reply)
        if isinstance(reply, GraphCommit | GraphFailed) and not done.done():
            done.set_result(None)

    compilers.compile(req, take)
    await asyncio.wait_for(done, 30)
    return replies


@pytest.fixture(params=[ChildCompilers, ThreadCompilers])
async def compilers(request: Any) -> AsyncIterator[Any]:
    made = request.param()
    made.start()
    yield made
    await made.stop()


async def test_a_graph_comes_back_in_chunks(compilers: Any) -> None:
    expr, keys = expression(1200)
    *chunks, commit = await compiled(compilers, request(1, expr, keys))
    assert all(type(c) is GraphChunk for c in chunks)
    assert len(chunks) > 1
    assert sum(len(c.keys) for c in chunks) == 1200
    assert type(commit) is GraphCommit
    assert commit.n_tasks == 1200


async def test_a_broken_pickle_fails_its_graph_alone(compilers: Any) -> None:
    bad = request(1, None, ["x"])
    bad.expr_ser = serialized_payload({"serializer": "pickle", "writeable": []}, [b"nonsense"])
    expr, keys = expression(3)
    failed, good = await asyncio.gather(
        compiled(compilers, bad), compiled(compilers, request(2, expr, keys))
    )
    assert type(failed[-1]) is GraphFailed
    assert failed[-1].keys == ["x"]
    assert type(good[-1]) is GraphCommit


async def test_a_child_that_dies_fails_its_graph_and_comes_back() -> None:
    class Deadly:
        def __reduce__(self) -> Any:
            return exec, ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)",)

    compilers = ChildCompilers()
    compilers.start()
    try:
        expr, keys = expression(3)
        deadly, behind = await asyncio.gather(
            compiled(compilers, request(1, Deadly(), ["x"])),
            compiled(compilers, request(2, expr, keys)),
        )
        assert type(deadly[-1]) is GraphFailed
        assert "killed by signal 9" in deadly[-1].text
        assert type(behind[-1]) is GraphCommit
        again = await compiled(compilers, request(3, expr, keys))
        assert type(again[-1]) is GraphCommit
    finally:
        await compilers.stop()


async def test_a_stuck_graph_does_not_hold_up_those_behind_it() -> None:
    class Slow:
        def __reduce__(self) -> Any:
            return exec, ("import time; time.sleep(5)",)

    compilers = ChildCompilers()
    compilers.start()
    loop = asyncio.get_running_loop()
    try:
        expr, keys = expression(3)
        await compiled(compilers, request(1, expr, keys))  # the child is up
        compilers.compile(request(2, Slow(), ["x"]), lambda reply: None)
        started = loop.time()
        done = await compiled(compilers, request(3, expr, keys))
        assert type(done[-1]) is GraphCommit
        assert loop.time() - started < 4
    finally:
        await compilers.stop()


async def test_children_that_helped_out_go_and_never_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a machine so slow that every graph looks stuck, graphs wander; children are not started for ever."""
    monkeypatch.setattr(children, "SLOW_SECONDS", 0.001)
    alive = lambda: len(compilers._children)  # noqa: E731 - what it is about
    compilers = ChildCompilers()
    compilers.start()
    try:
        expr, keys = expression(40)
        counts = []
        for round_ in range(4):
            requests = [request(100 * round_ + i, expr, keys) for i in range(1, 13)]
            running = [asyncio.ensure_future(compiled(compilers, r)) for r in requests]
            while not all(task.done() for task in running):
                counts.append(alive())
                await asyncio.sleep(0.005)
            assert all(type(task.result()[-1]) is GraphCommit for task in running)
        assert max(counts) <= children.CHILDREN_MAX
        for _ in range(200):
            if alive() == 2:
                break
            await asyncio.sleep(0.05)
        assert alive() == 2, "one a lane is left"
    finally:
        await compilers.stop()


class Endless:
    """An expression that takes for ever to read."""

    def __reduce__(self) -> Any:
        return exec, ("import time; time.sleep(1000)",)


@pytest.mark.parametrize("others_wait", [False, True])
async def test_a_cancelled_graph_that_does_not_end_costs_its_child(
    monkeypatch: pytest.MonkeyPatch, others_wait: bool
) -> None:
    monkeypatch.setattr(children, "CANCELLED_SECONDS", 0.2)
    monkeypatch.setattr(children, "SLOW_SECONDS", 1000.0)  # nobody else helps out
    compilers = ChildCompilers()
    compilers.start()
    try:
        expr, keys = expression(3)
        await compiled(compilers, request(1, expr, keys))  # the child is up
        heard: list[Any] = []
        compilers.compile(request(2, Endless(), ["x"]), heard.append)
        behind = asyncio.ensure_future(compiled(compilers, request(3, expr, keys)))
        if not others_wait:
            behind.cancel()
            compilers.cancel(3)
        await asyncio.sleep(0.1)
        compilers.cancel(2)
        if others_wait:
            assert type((await behind)[-1]) is GraphCommit
        else:
            async with asyncio.timeout(30):
                while any(2 in child.sent for child in compilers._children):
                    await asyncio.sleep(0.01)
        again = await compiled(compilers, request(4, expr, keys))
        assert type(again[-1]) is GraphCommit
        assert not heard
    finally:
        await compilers.stop()


async def test_a_cancel_does_not_end_a_child_that_still_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a client that gives up early, on a machine where imports are slow, would keep it from ever starting."""
    monkeypatch.setattr(children, "CANCELLED_SECONDS", 0.001)
    compilers = ChildCompilers()
    compilers.start()
    try:
        first = list(compilers._children)
        expr, keys = expression(3)
        heard: list[Any] = []
        compilers.compile(request(1, expr, keys), heard.append)
        compilers.cancel(1)
        await asyncio.sleep(0.05)  # many times the patience; a child imports for longer
        monkeypatch.setattr(children, "CANCELLED_SECONDS", 1000.0)
        replies = await compiled(compilers, request(2, expr, keys))
        assert type(replies[-1]) is GraphCommit
        assert not heard
        assert compilers._children == first
    finally:
        await compilers.stop()


async def test_cancelled_graphs_are_silent(compilers: Any) -> None:
    expr, keys = expression(2000)
    heard: list[Any] = []
    compilers.compile(request(1, expr, keys), heard.append)
    compilers.cancel(1)
    done = await compiled(compilers, request(2, expr, keys))
    assert type(done[-1]) is GraphCommit
    assert not any(type(r) is GraphCommit for r in heard)
