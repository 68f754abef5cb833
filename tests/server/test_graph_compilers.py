"""The graph compilers: graphs in, chunks out, also when a child process dies."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from paceline.protocol.errors import RemoteProtocolError
from paceline.protocol.packed_keys import PackedKeys
from paceline.protocol.payload import serialized_payload
from paceline.scheduler.core.stimuli import GraphChunk, GraphCommit, GraphFailed, GraphRestarted
from paceline.scheduler.server.compilers import pool, process
from paceline.scheduler.server.compilers.pool import ProcessGraphCompilers
from paceline.scheduler.server.compilers.threads import ThreadGraphCompilers
from paceline.workers_compat.graphs.compiler_messages import CompileRequest, decode_reply


def request(graph_id: int, expr: Any, keys: list[Any], client: str = "c") -> CompileRequest:
    import cloudpickle

    payload = serialized_payload(
        {"serializer": "pickle", "writeable": []}, [cloudpickle.dumps(expr)]
    )
    return CompileRequest(graph_id=graph_id, client=client, expr_ser=payload, keys=keys)


def expression(n: int) -> tuple[Any, list[Any]]:
    """Return an expression of about n tasks, as a client sends it."""
    from dask._expr import LLGExpr

    dsk = {f"inc-{i}": (sum, [i, 1]) for i in range(n)}
    return LLGExpr(dsk), list(dsk)


async def compiled(compilers: Any, req: CompileRequest) -> list[Any]:
    replies: list[Any] = []
    done = asyncio.get_running_loop().create_future()

    def take(reply: Any, frames: Any) -> None:
        replies.append(reply)
        if isinstance(reply, GraphCommit | GraphFailed) and not done.done():
            done.set_result(None)

    compilers.compile(req, take)
    await asyncio.wait_for(done, 30)
    return replies


@pytest.fixture(params=[ProcessGraphCompilers, ThreadGraphCompilers])
async def compilers(request: Any) -> AsyncIterator[Any]:
    made = request.param()
    made.start()
    yield made
    await made.stop()


async def test_graph_is_returned_in_chunks(compilers: Any) -> None:
    expr, keys = expression(1200)
    *chunks, commit = await compiled(compilers, request(1, expr, keys))
    assert all(type(c) is GraphChunk for c in chunks)
    assert len(chunks) > 1
    assert sum(len(c.keys) for c in chunks) == 1200
    assert type(commit) is GraphCommit
    assert commit.n_tasks == 1200


async def test_broken_pickle_fails_only_its_graph(compilers: Any) -> None:
    bad = request(1, None, ["x"])
    bad.expr_ser = serialized_payload({"serializer": "pickle", "writeable": []}, [b"nonsense"])
    expr, keys = expression(3)
    failed, good = await asyncio.gather(
        compiled(compilers, bad), compiled(compilers, request(2, expr, keys))
    )
    assert type(failed[-1]) is GraphFailed
    assert failed[-1].keys == ["x"]
    assert type(good[-1]) is GraphCommit


def packed_keys(keys: list[Any], word: bytes = b"inc") -> PackedKeys:
    return PackedKeys(msgspec.Raw(msgspec.msgpack.encode(keys).replace(b"inc", word)))


async def test_graph_whose_wanted_keys_were_not_decoded(compilers: Any) -> None:
    expr, keys = expression(20)
    req = request(1, expr, keys)
    req.keys = packed_keys(keys)
    chunk, commit = await compiled(compilers, req)
    assert sorted(chunk.keys[row] for row in commit.rows) == sorted(keys)
    req = request(3, expr, keys)
    order = {key: 20 - n for n, key in enumerate(keys)}
    req.internal_priority = msgspec.Raw(msgspec.msgpack.encode(order))
    chunk, _ = await compiled(compilers, req)
    assert dict(zip(chunk.keys, chunk.priorities, strict=True)) == order
    broken = request(2, None, [])
    broken.expr_ser = serialized_payload({"serializer": "pickle", "writeable": []}, [b"nonsense"])
    broken.keys = packed_keys(keys)
    (failed,) = await compiled(compilers, broken)
    assert type(failed) is GraphFailed and failed.keys == keys


async def test_wanted_keys_that_cannot_be_decoded_affect_no_other_graph(compilers: Any) -> None:
    expr, keys = expression(20)
    bad = request(1, expr, [])
    bad.keys = packed_keys(keys, b"\xffnc")
    bad.internal_priority = msgspec.Raw(b"\x81\xa1\xff\x01")
    ended, good = await asyncio.gather(
        compiled(compilers, bad), compiled(compilers, request(2, expr, keys, client="d"))
    )
    assert type(ended[-1]) in (GraphCommit, GraphFailed)
    assert type(good[-1]) is GraphCommit and len(good[-1].rows) == 20


async def test_dead_child_fails_its_graph_and_is_restarted() -> None:
    class Deadly:
        def __reduce__(self) -> Any:
            return exec, ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)",)

    compilers = ProcessGraphCompilers()
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


async def test_stuck_graph_does_not_block_those_behind_it() -> None:
    class Slow:
        def __reduce__(self) -> Any:
            return exec, ("import time; time.sleep(5)",)

    compilers = ProcessGraphCompilers()
    compilers.start()
    loop = asyncio.get_running_loop()
    try:
        expr, keys = expression(3)
        await compiled(compilers, request(1, expr, keys))  # the child has started
        compilers.compile(request(2, Slow(), ["x"]), lambda reply, frames: None)
        started = loop.time()
        done = await compiled(compilers, request(3, expr, keys, client="d"))
        assert type(done[-1]) is GraphCommit
        assert loop.time() - started < 4
    finally:
        await compilers.stop()


async def test_additional_processes_end_and_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a machine so slow that every graph looks stuck, graphs move between a bounded number of processes."""
    monkeypatch.setattr(pool, "SLOW_SECONDS", 0.001)
    alive = lambda: len(compilers._processes)  # noqa: E731 - what it is about
    compilers = ProcessGraphCompilers()
    compilers.start()
    try:
        regular = list(compilers._processes)
        regular = list(compilers._processes)
        expr, keys = expression(40)
        counts = []
        for round_ in range(4):
            requests = [request(100 * round_ + i, expr, keys, client=f"c{i}") for i in range(1, 13)]
            running = [asyncio.ensure_future(compiled(compilers, r)) for r in requests]
            while not all(task.done() for task in running):
                counts.append(alive())
                await asyncio.sleep(0.005)
            assert all(type(task.result()[-1]) is GraphCommit for task in running)
        assert max(counts) <= pool.PROCESSES_MAX
        for _ in range(200):
            if alive() == 1:
                break
            await asyncio.sleep(0.05)
        assert compilers._processes == regular
    finally:
        await compilers.stop()


class Endless:
    """An expression that never finishes unpickling."""

    def __reduce__(self) -> Any:
        return exec, ("import time; time.sleep(1000)",)


@pytest.mark.parametrize("others_wait", [False, True])
async def test_cancelled_graph_that_does_not_end_costs_its_child(
    monkeypatch: pytest.MonkeyPatch, others_wait: bool
) -> None:
    monkeypatch.setattr(pool, "CANCELLED_SECONDS", 0.2)
    monkeypatch.setattr(pool, "SLOW_SECONDS", 1000.0)  # no additional process
    compilers = ProcessGraphCompilers()
    compilers.start()
    try:
        expr, keys = expression(3)
        await compiled(compilers, request(1, expr, keys))  # the child has started
        heard: list[Any] = []
        compilers.compile(request(2, Endless(), ["x"]), lambda reply, frames: heard.append(reply))
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
                while any(2 in each.graphs for each in compilers._processes):
                    await asyncio.sleep(0.01)
        again = await compiled(compilers, request(4, expr, keys))
        assert type(again[-1]) is GraphCommit
        assert not heard
    finally:
        await compilers.stop()


async def test_cancel_does_not_end_a_starting_child(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a client that cancels early, on a machine with slow imports, would keep the child from ever starting."""
    monkeypatch.setattr(pool, "CANCELLED_SECONDS", 0.001)
    compilers = ProcessGraphCompilers()
    compilers.start()
    try:
        first = list(compilers._processes)
        expr, keys = expression(3)
        heard: list[Any] = []
        compilers.compile(request(1, expr, keys), lambda reply, frames: heard.append(reply))
        compilers.cancel(1)
        await asyncio.sleep(0.05)  # many times the timeout; imports in a child take longer
        monkeypatch.setattr(pool, "CANCELLED_SECONDS", 1000.0)
        replies = await compiled(compilers, request(2, expr, keys))
        assert type(replies[-1]) is GraphCommit
        assert not heard
        assert compilers._processes == first
    finally:
        await compilers.stop()


@pytest.fixture
async def processes() -> AsyncIterator[ProcessGraphCompilers]:
    made = ProcessGraphCompilers()
    made.start()
    expr, keys = expression(3)
    await compiled(made, request(1, expr, keys, client="first"))  # a process is ready
    yield made
    await made.stop()


class Runs:
    """An expression that runs code on unpickling, and is then a small graph."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __reduce__(self) -> Any:
        return _ran, (self.code,)


def _ran(code: str) -> Any:
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    return namespace.get("expr")


_ran.__module__ = "__main__"  # pickled by value

ENDLESS = "import time; time.sleep(1000)"
EXPRESSION = "from dask._expr import LLGExpr; expr = LLGExpr({'x': (sum, [1, 1])}); "
DIES = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


async def test_endless_graphs_of_one_client_occupy_one_process(
    processes: ProcessGraphCompilers,
) -> None:
    for graph_id in range(10, 20):
        processes.compile(
            request(graph_id, Runs(ENDLESS), ["x"], client="bad"), lambda reply, frames: None
        )
    expr, keys = expression(3)
    for graph_id in range(20, 24):
        replies = await compiled(processes, request(graph_id, expr, keys, client=f"{graph_id}"))
        assert type(replies[-1]) is GraphCommit
    holding = [each for each in processes._processes if each.serves("bad")]
    assert len(holding) == 1


async def test_a_graph_without_progress_fails_with_the_setting_to_raise(
    processes: ProcessGraphCompilers,
) -> None:
    processes._timeout_seconds = 0.3
    expr, keys = expression(3)
    stuck, behind = await asyncio.gather(
        compiled(processes, request(10, Runs(ENDLESS), ["x"])),
        compiled(processes, request(11, expr, keys)),
    )
    assert "made no progress for 0.3 s" in stuck[-1].text
    assert "paceline.graph-compiler.timeout" in stuck[-1].text
    assert type(behind[-1]) is GraphCommit


async def test_limits_hold_while_all_processes_are_full(
    processes: ProcessGraphCompilers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GRAPHS_AHEAD_MAX", 1)
    processes._timeout_seconds = 0.3
    stuck = [
        asyncio.ensure_future(
            compiled(processes, request(10 + i, Runs(ENDLESS), ["x"], client=f"stuck-{i}"))
        )
        for i in range(pool.PROCESSES_MAX)
    ]
    expr, keys = expression(3)
    waiting = await compiled(processes, request(20, expr, keys, client="waiting"))
    assert type(waiting[-1]) is GraphCommit
    for task in stuck:
        assert type((await task)[-1]) is GraphFailed


async def test_a_graph_past_the_memory_limit_fails_alone(
    processes: ProcessGraphCompilers,
) -> None:
    processes._memory_limit_nbytes = 400 * 2**20
    hungry = "import time; data = bytearray(b'x') * 2**29; time.sleep(1000)"
    expr, keys = expression(3)
    failed, behind = await asyncio.gather(
        compiled(processes, request(10, Runs(hungry), ["x"])),
        compiled(processes, request(11, expr, keys)),
    )
    assert type(failed[-1]) is GraphFailed
    assert "paceline.graph-compiler.memory-limit" in failed[-1].text
    assert type(behind[-1]) is GraphCommit


async def test_a_graph_whose_compiler_died_is_compiled_once_more(
    processes: ProcessGraphCompilers, tmp_path: Any
) -> None:
    once = f"import os; first = not os.path.exists({str(tmp_path / 'tried')!r}); "
    once += f"open({str(tmp_path / 'tried')!r}, 'w').close(); "
    again = await compiled(
        processes, request(10, Runs(EXPRESSION + once + f"first and exec({DIES!r})"), ["x"])
    )
    assert type(again[-1]) is GraphCommit
    never = await compiled(processes, request(11, Runs(DIES), ["x"]))
    assert type(never[-1]) is GraphFailed
    assert "killed by signal 9" in never[-1].text


async def test_chunks_of_a_dead_compiler_are_dropped(processes: ProcessGraphCompilers) -> None:
    n = 30_000
    expr, keys = expression(n)
    replies: list[Any] = []
    done = asyncio.get_running_loop().create_future()

    def take(reply: Any, frames: Any) -> None:
        if not replies:
            (at_work,) = [each for each in processes._processes if 10 in each.graphs]
            at_work.process.kill()
        replies.append(reply)
        if isinstance(reply, GraphCommit | GraphFailed):
            done.set_result(None)

    processes.compile(request(10, expr, keys), take)
    await asyncio.wait_for(done, 60)
    assert type(replies[-1]) is GraphCommit
    kinds = [type(reply) for reply in replies]
    restarted = kinds.index(GraphRestarted)
    assert sum(len(chunk.keys) for chunk in replies[restarted + 1 : -1]) == n


async def test_an_invalid_chunk_restarts_the_graph(
    processes: ProcessGraphCompilers,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    n_chunks = 0

    def decode(frames: Any) -> Any:
        nonlocal n_chunks
        reply = decode_reply(frames)  # the first one may be CompilerReady
        n_chunks += isinstance(reply, GraphChunk)
        if n_chunks == 2:
            n_chunks += 1
            raise RemoteProtocolError("invalid")
        return reply

    monkeypatch.setattr(pool, "decode_reply", decode)
    expr, keys = expression(30_000)
    replies = await compiled(processes, request(10, expr, keys))
    kinds = [type(reply) for reply in replies]
    assert kinds[:2] == [GraphChunk, GraphRestarted]
    assert sum(len(chunk.keys) for chunk in replies[2:-1]) == len(keys)
    assert kinds[-1] is GraphCommit
    assert "Cannot read a message of the graph compiler" in caplog.text


async def test_a_request_that_cannot_be_encoded_fails_alone(
    processes: ProcessGraphCompilers,
) -> None:
    expr, keys = expression(3)
    bad = request(10, expr, keys)
    bad.annotations = {"a": threading.Lock()}
    before = list(processes._processes)
    failed, good = await asyncio.gather(
        compiled(processes, bad), compiled(processes, request(11, expr, keys))
    )
    assert type(failed[-1]) is GraphFailed
    assert "cannot be encoded" in failed[-1].text
    assert type(good[-1]) is GraphCommit
    assert processes._processes == before


async def test_processes_are_replaced_after_many_graphs(
    processes: ProcessGraphCompilers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "RECYCLE_GRAPHS", 4)
    before = list(processes._processes)
    expr, keys = expression(3)
    for graph_id in range(10, 20):
        replies = await compiled(processes, request(graph_id, expr, keys))
        assert type(replies[-1]) is GraphCommit
    async with asyncio.timeout(60):
        while processes._processes[0] is before[0] or len(processes._processes) > 1:
            await asyncio.sleep(0.02)


async def test_a_process_whose_memory_stays_high_is_replaced_when_idle(
    processes: ProcessGraphCompilers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "RECYCLE_NBYTES", 100 * 2**20)
    monkeypatch.setattr(pool, "RECYCLE_IDLE_SECONDS", 0.1)
    before = list(processes._processes)
    leaks = EXPRESSION + "import sys; sys.leaked = bytearray(b'x') * (200 * 2**20)"
    replies = await compiled(processes, request(10, Runs(leaks), ["x"]))
    assert type(replies[-1]) is GraphCommit
    async with asyncio.timeout(60):
        while before[0] in processes._processes:
            await asyncio.sleep(0.02)
    assert len(processes._processes) == 1


async def test_cancelled_graphs_send_nothing(compilers: Any) -> None:
    expr, keys = expression(2000)
    heard: list[Any] = []
    compilers.compile(request(1, expr, keys), lambda reply, frames: heard.append(reply))
    compilers.cancel(1)
    done = await compiled(compilers, request(2, expr, keys))
    assert type(done[-1]) is GraphCommit
    assert not any(type(r) is GraphCommit for r in heard)
