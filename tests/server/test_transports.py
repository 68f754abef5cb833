"""Schemes other than tcp and tls, with stock peers: web sockets, several at once, IPv6, inproc."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import dask
import dask.config
import numpy as np
import pytest
import uvloop
from distributed import Client, Worker
from distributed.comm.inproc import global_manager
from distributed.security import Security
from paceline.scheduler.server.comm import websocket_comm
from paceline.scheduler.server.comm.backends import backends
from paceline.scheduler.server.comm.transport import Transport
from paceline.scheduler.server.scheduler import Scheduler
from paceline.workers_compat.security.tls_config import Tls
from tornado.httpclient import AsyncHTTPClient
from tornado.websocket import websocket_connect

from tests.server.test_transport import Sink
from tests.support.certificates import Authority, keywords


@pytest.fixture(
    params=[asyncio.DefaultEventLoopPolicy, uvloop.EventLoopPolicy], ids=["asyncio", "uvloop"]
)
def event_loop_policy(request: Any) -> Any:
    return request.param()


async def work(scheduler: Scheduler, address: str | None = None, **options: Any) -> None:
    """Test features that any scheme must support: tasks, large values through the scheduler, errors, closing."""
    address = address or scheduler.address
    async with (
        Worker(address, **options) as worker,
        Client(address, asynchronous=True, **options) as client,
    ):
        assert worker.address.split("://")[0] == address.split("://")[0]
        assert await client.submit(lambda x: x + 1, 1) == 2
        array = np.arange(3_000_000)
        future = await client.scatter(array, direct=False)
        back = await client.gather(future, direct=False)
        assert (back == array).all()
        assert await client.gather(client.map(lambda x: x * 2, range(100))) == list(
            range(0, 200, 2)
        )
        with pytest.raises(ZeroDivisionError):
            await client.submit(lambda: 1 / 0)
    async with asyncio.timeout(10):
        while scheduler.server.state.workers or len(scheduler.server.state.clients) > 1:
            await asyncio.sleep(0.01)


async def test_web_sockets() -> None:
    async with Scheduler(
        protocol="ws", host="127.0.0.1", port=0, dashboard_address=":0"
    ) as scheduler:
        assert scheduler.address.startswith("ws://127.0.0.1:")
        await work(scheduler)


async def test_encrypted_web_sockets(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    security = Security(**keywords(authority, authority.issue("n")), require_encryption=True)
    async with Scheduler(
        protocol="wss", security=security, host="127.0.0.1", port=0, dashboard_address=":0"
    ) as scheduler:
        assert scheduler.address.startswith("wss://127.0.0.1:")
        await work(scheduler, security=security)


async def test_web_sockets_on_the_port_of_the_pages() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with Scheduler(
        protocol="ws", host="127.0.0.1", port=port, dashboard_address=f"127.0.0.1:{port}"
    ) as scheduler:
        assert scheduler.address == f"ws://127.0.0.1:{port}"
        assert scheduler.services["dashboard"].port == port
        assert (await AsyncHTTPClient().fetch(f"http://127.0.0.1:{port}/health")).code == 200
        await work(scheduler)


async def test_several_at_once(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    security = Security(**keywords(authority, authority.issue("n")), require_encryption=False)
    async with Scheduler(
        protocol=["tcp", "ws", "tls"],
        port=[0, 0, 0],
        host="127.0.0.1",
        security=security,
        dashboard_address=":0",
    ) as scheduler:
        tcp, ws, tls = scheduler.contact_addresses
        assert [x.split("://")[0] for x in (tcp, ws, tls)] == ["tcp", "ws", "tls"]
        async with (
            Worker(ws, security=security),
            Worker(tls, security=security),
            Client(tcp, asynchronous=True) as client,
        ):
            await client.wait_for_workers(2)
            values = await client.scatter(list(range(4)), broadcast=True, direct=False)
            assert await client.gather(values, direct=False) == [0, 1, 2, 3]


async def test_more_than_peers_can_read_over_web_sockets(monkeypatch: Any) -> None:
    """The task or request fails, and the connection stays."""
    monkeypatch.setattr(websocket_comm, "SENT_FRAME_MAX_NBYTES", 2**20)
    monkeypatch.delenv("PACELINE_CHECK_MESSAGES")  # counts the reply that is replaced by an error
    async with (
        Scheduler(
            protocol=["tcp", "ws"], port=[0, 0], host="127.0.0.1", dashboard_address=":0"
        ) as scheduler,
        Worker(scheduler.contact_addresses[1]) as worker,
        Client(scheduler.contact_addresses[0], asynchronous=True) as client,
        Client(scheduler.contact_addresses[1], asynchronous=True) as ws_client,
    ):
        large, small = client.map(len, [bytes(2**21), b"x"])
        with pytest.raises(ValueError, match="more than 1048576 over websockets"):
            await large
        assert await small == 1
        result = ws_client.submit(bytes, 2**21)
        with pytest.raises(ValueError, match="more than 1048576 over websockets"):
            await ws_client.gather(result, direct=False)
        assert await ws_client.submit(len, result) == 2**21
        assert list(scheduler.server.state.workers) == [worker.address]


async def test_large_result_is_not_merged_for_web_sockets() -> None:
    async with (
        Scheduler(
            protocol=["tcp", "ws"], port=[0, 0], host="127.0.0.1", dashboard_address=":0"
        ) as scheduler,
        Worker(scheduler.contact_addresses[0]),
        Client(scheduler.contact_addresses[1], asynchronous=True) as client,
    ):
        result = client.submit(bytes, 2**27)
        assert len(await client.gather(result, direct=False)) == 2**27


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
async def test_ipv6() -> None:
    try:
        async with Scheduler(host="tcp://[::1]:0", port=None, dashboard_address=":0") as scheduler:
            assert scheduler.address.startswith("tcp://[::1]:")
            await work(scheduler)
    except OSError as error:
        if "Cannot assign requested address" in str(error):
            pytest.skip("no IPv6 here")
        raise


async def ws_transport(sink: Sink) -> tuple[Transport, int]:
    transport = Transport(sink.opened, backends(Tls()))
    listener = await transport.listen("ws", "127.0.0.1", 0)
    return transport, listener.port  # type: ignore[attr-defined]


async def test_web_socket_comm() -> None:
    sink = Sink()
    transport, port = await ws_transport(sink)
    mine = await transport.connect("ws", "127.0.0.1", port)
    await sink.until(lambda: len(sink.facts) == 2)
    theirs = next(n for n in sink.facts if n != mine)
    assert sink.facts[mine].peer_address == f"ws://127.0.0.1:{port}"
    for frames in ([b"a", b""], [], [b"b" * 20_000_000, memoryview(b"c")]):
        mine.write(frames)
        theirs.write(frames)
    await sink.until(lambda: [len(sink.messages.get(n, [])) for n in (mine, theirs)] == [3, 3])
    for comm in (mine, theirs):
        assert sink.messages[comm] == [[b"a", b""], [], [b"b" * 20_000_000, b"c"]]
    theirs.pause_reading()
    for _ in range(20):
        mine.write([b"x" * 2_000_000])
    await sink.until(lambda: sink.has("paused", mine))
    mine.close()  # after it was written
    theirs.resume_reading()
    await sink.until(lambda: sink.has("closed", theirs))
    assert len(sink.messages[theirs]) == 23
    await transport.close_all(1)
    with pytest.raises(OSError):
        await transport.connect("ws", "127.0.0.1", 1)


async def test_reset_web_socket_is_not_logged_as_an_error(caplog: Any) -> None:
    sink = Sink()
    transport, port = await ws_transport(sink)
    stranger = await websocket_connect(f"ws://127.0.0.1:{port}")
    await sink.until(lambda: sink.facts)
    (comm,) = sink.facts
    stream: Any = stranger.protocol.stream  # type: ignore[union-attr]
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.close()
    comm.write([b"x"] * 3)
    comm.flush()  # before the event loop notices
    await sink.until(lambda: sink.has("closed", comm))
    await transport.close_all(1)
    gc.collect()
    assert not caplog.records


@pytest.mark.parametrize(
    "sent",
    [
        b"123",
        b"\xff" * 8,
        "text",
        pytest.param(bytes(97 * 2**20), id="more than workers can read"),
    ],
)
async def test_peer_that_violates_the_framing_is_disconnected(sent: Any, caplog: Any) -> None:
    sink = Sink()
    transport, port = await ws_transport(sink)
    stranger = await websocket_connect(f"ws://127.0.0.1:{port}")
    await stranger.write_message(struct.pack("<Q", 1), binary=True)
    await stranger.write_message(b"fine", binary=True)
    if len(sent) > 8:
        await stranger.write_message(struct.pack("<Q", 1), binary=True)
    await stranger.write_message(sent, binary=type(sent) is bytes)
    await sink.until(lambda: any(event[0] == "closed" for event in sink.events))
    assert list(sink.messages.values()) == [[[b"fine"]]]
    assert "malformed frame" in caplog.text
    await transport.close_all(1)


async def test_unknown_schemes() -> None:
    with pytest.raises(
        ValueError, match=r"nothing here speaks foo://|unknown address scheme 'foo'"
    ):
        await Scheduler(protocol="foo", host="127.0.0.1", port=0, dashboard_address=":0")


async def test_inproc() -> None:
    async with Scheduler(
        protocol="inproc://", host=None, port=0, dashboard_address=":0"
    ) as scheduler:
        assert scheduler.address.startswith("inproc://")
        assert scheduler.port == 0
        await work(scheduler)


@pytest.mark.parametrize("option", ["host", "contact_address"])
async def test_an_invalid_inproc_address_is_an_error(option: str) -> None:
    listening = dict(global_manager.listeners)
    options = {"protocol": "inproc://", "host": None, option: "inproc://127.0.0.1"}
    with pytest.raises(ValueError, match="invalid address inproc://127"):
        await Scheduler(port=0, dashboard_address=":0", **options)
    assert dict(global_manager.listeners) == listening


async def test_an_invalid_annotation_is_reported_over_inproc() -> None:
    async with (
        Scheduler(protocol="inproc://", host=None, port=0, dashboard=False) as scheduler,
        Worker(scheduler.address),
        Client(scheduler.address, asynchronous=True) as client,
    ):
        with dask.annotate(retries=2**70):
            future = client.submit(abs, -1)
        with pytest.raises(ValueError, match="at most 64 bits"):
            await future
        assert await client.submit(abs, -2) == 2


async def test_worker_in_another_process_and_client_in_this_one() -> None:
    async with (
        Scheduler(
            protocol=["tcp", "inproc"],
            host=["127.0.0.1", None],
            port=[0, 0],
            dashboard_address=":0",
        ) as scheduler,
        Worker(scheduler.contact_addresses[0]),
        Client(scheduler.contact_addresses[1], asynchronous=True) as client,
    ):
        future = client.submit(np.arange, 10_000_000)  # sent in shards
        assert (await client.gather(future, direct=False) == np.arange(10_000_000)).all()


def test_local_cluster_with_threads() -> None:
    from paceline.scheduler import LocalCluster

    with (
        LocalCluster(
            processes=False, n_workers=2, threads_per_worker=1, dashboard_address=":0"
        ) as cluster,
        Client(cluster) as client,
    ):
        assert cluster.scheduler_address.startswith("inproc://")
        assert client.submit(sum, [1, 2]).result() == 3
        assert client.gather(client.map(lambda x: x + 1, range(20))) == list(range(1, 21))


def test_values_that_cannot_be_pickled_pass_through_inproc() -> None:
    from paceline.scheduler import LocalCluster

    lock = threading.Lock()
    with (
        LocalCluster(processes=False, n_workers=1, dashboard_address=":0") as cluster,
        Client(cluster) as client,
    ):
        [there] = client.scatter([lock])
        assert client.submit(lambda each: each, there).result() is lock
        assert client.submit(lambda each: each.locked(), there).result() is False


async def test_scheme_registered_by_a_package(monkeypatch: Any) -> None:
    from distributed.comm import tcp
    from distributed.comm.registry import backends

    class Comm(tcp.TCP):
        pass

    class Connector(tcp.TCPConnector):
        prefix = "mine://"
        comm_class = Comm

    class Listener(tcp.TCPListener):
        prefix = "mine://"
        comm_class = Comm

    class Backend(tcp.TCPBackend):
        _connector_class = Connector
        _listener_class = Listener

    monkeypatch.setitem(backends, "mine", Backend())
    async with Scheduler(
        protocol="mine", host="127.0.0.1", port=0, dashboard_address=":0"
    ) as scheduler:
        assert scheduler.address.startswith("mine://127.0.0.1:")
        await work(scheduler)
    with (
        pytest.raises(ValueError, match="Cannot unpickle messages over mine://"),
        dask.config.set({"distributed.scheduler.pickle": False}),
    ):
        await Scheduler(protocol="mine", host="127.0.0.1", port=0, dashboard_address=":0")


async def test_a_host_name_is_announced_as_its_address() -> None:
    async with Scheduler(host="localhost", port=0, dashboard_address=":0") as scheduler:
        assert scheduler.address in (
            f"tcp://127.0.0.1:{scheduler.port}",
            f"tcp://[::1]:{scheduler.port}",
        )
