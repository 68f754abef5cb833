"""TLS: which peers are accepted or rejected, which errors are logged, and the cost of large frames."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import dask.config
import numpy as np
import pytest
import uvloop
from distributed import Client, Nanny, Worker
from distributed.security import Security
from paceline.protocol import messages as m
from paceline.scheduler.server.cli.rpc_client import RpcError, call_scheduler
from paceline.scheduler.server.comm.backends import backends
from paceline.scheduler.server.comm.errors import EncryptionRequiredError
from paceline.scheduler.server.comm.transport import Transport
from paceline.scheduler.server.scheduler import Scheduler
from paceline.workers_compat.security.tls_config import Tls, certificate_names, read

from tests.server.test_transport import Sink
from tests.support.certificates import Authority, Pair, keywords


@pytest.fixture(
    params=[asyncio.DefaultEventLoopPolicy, uvloop.EventLoopPolicy], ids=["asyncio", "uvloop"]
)
def event_loop_policy(request: Any) -> Any:
    return request.param()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: Any) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("dask-node")


def tls_of(authority: Authority, pair: Pair, **config: Any) -> Tls:
    with dask.config.set(config):
        return read(keywords(authority, pair) | {"require_encryption": True})


@contextlib.asynccontextmanager
async def listening(tls: Tls) -> AsyncIterator[tuple[Transport, Sink, int]]:
    sink = Sink()
    transport = Transport(sink.opened, backends(tls), require_encryption=tls.required)
    listener = await transport.listen("tls", "127.0.0.1", 0)
    yield transport, sink, listener.port
    listener.close()
    await transport.close_all(1)


async def test_messages_in_both_directions_and_large_ones_unsharded(
    authority: Authority, pair: Pair
) -> None:
    async with listening(tls_of(authority, pair)) as (transport, sink, port):
        mine = await transport.connect("tls", "127.0.0.1", port)
        await sink.until(lambda: len(sink.facts) == 2)
        theirs = next(n for n in sink.facts if n != mine)
        assert sink.facts[mine].peer_address == f"tls://127.0.0.1:{port}"
        assert sink.facts[theirs].local_address == f"tls://127.0.0.1:{port}"
        assert sink.facts[theirs].names == ("dask-node", "127.0.0.1")
        large = np.random.default_rng(0).bytes(20 * 2**20)
        for frames in ([b"a", b""], [b"b" * 200_000, large, b"c"], [b"d"]):
            mine.write(frames)
            theirs.write(frames)
        await sink.until(lambda: [len(sink.messages.get(n, [])) for n in (mine, theirs)] == [3, 3])
        for comm in (mine, theirs):
            assert [bytes(f) for f in sink.messages[comm][1]] == [b"b" * 200_000, large, b"c"]
            assert bytes(sink.messages[comm][2][0]) == b"d"
        mine.close()
        await sink.until(lambda: sink.has("closed", theirs))


async def test_a_slow_reader_is_reported_and_bounds_what_is_encrypted(
    authority: Authority, pair: Pair
) -> None:
    async with listening(tls_of(authority, pair)) as (transport, sink, port):
        mine = await transport.connect("tls", "127.0.0.1", port)
        await sink.until(lambda: len(sink.facts) == 2)
        theirs = next(n for n in sink.facts if n != mine)
        theirs.pause_reading()
        mine.write([b"x" * 64 * 2**20])
        await sink.until(lambda: sink.has("paused", mine))
        for _ in range(20):
            await asyncio.sleep(0)
        link = mine
        assert link._transport.get_write_buffer_size() < 8 * 2**20  # type: ignore[attr-defined]
        assert mine.unwritten_nbytes > 32 * 2**20
        assert not sink.has("resumed", mine)
        theirs.resume_reading()
        await sink.until(lambda: sink.has("resumed", mine) and sink.messages.get(theirs))
        mine.write([b"y" * 64 * 2**20])
        mine.close()  # after it was written
        await sink.until(lambda: sink.has("closed", theirs))
        assert [len(frames[0]) for frames in sink.messages[theirs]] == [64 * 2**20] * 2


async def knock(port: int, context: ssl.SSLContext | None, say: bytes = b"") -> None:
    """Connect as a peer that may be rejected, and read until the connection is closed."""
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(say)
        await asyncio.wait_for(reader.read(), 10)
        writer.close()


def context(authority: Authority, pair: Pair | None) -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=authority.ca_file)
    made.check_hostname = False
    if pair is not None:
        made.load_cert_chain(pair.cert, pair.key)
    return made


async def refused(tls: Tls, caplog: Any, knocks: Any, say: bytes = b"") -> str:
    """Return the logged line, while another peer communicates."""
    async with listening(tls) as (transport, sink, port):
        friend = await transport.connect("tls", "127.0.0.1", port)
        await sink.until(lambda: len(sink.facts) == 2)
        with caplog.at_level(logging.WARNING, logger="distributed.scheduler"):
            await knock(port, knocks, say)
            async with asyncio.timeout(10):
                while not caplog.records:
                    await asyncio.sleep(0.01)
        friend.write([b"still there"])
        await sink.until(lambda: sum(map(len, sink.messages.values())) == 1)
        assert len(sink.facts) == 2  # the server received no event
        return str(caplog.records[-1].getMessage())


async def test_refused_without_a_certificate(authority: Authority, pair: Pair, caplog: Any) -> None:
    line = await refused(tls_of(authority, pair), caplog, context(authority, None))
    assert "TLS handshake failed with remote 'tls://127.0.0.1:" in line
    assert "it sent no certificate" in line


async def test_refused_with_a_certificate_of_another_authority(
    authority: Authority, pair: Pair, caplog: Any, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger").issue("dask-node")
    line = await refused(tls_of(authority, pair), caplog, context(authority, stranger))
    assert "its certificate is not accepted: unable to get local issuer certificate" in line


async def test_refused_with_an_expired_one(authority: Authority, pair: Pair, caplog: Any) -> None:
    old = authority.issue("dask-node", (-20, -10))
    line = await refused(tls_of(authority, pair), caplog, context(authority, old))
    assert "its certificate is not accepted: certificate has expired" in line


async def test_refused_for_its_host_name(authority: Authority, pair: Pair, caplog: Any) -> None:
    tls = tls_of(authority, pair, **{"paceline.security.peer-names": ["dask-*"]})
    line = await refused(tls, caplog, context(authority, authority.issue("mallory")))
    assert (
        "its certificate names 'mallory', '127.0.0.1', which is not in paceline.security.peer-names"
        in line
    )


async def test_refused_for_plain_tcp(authority: Authority, pair: Pair, caplog: Any) -> None:
    line = await refused(tls_of(authority, pair), caplog, None, b"\x20" + b"\0" * 40)
    assert "it does not speak TLS" in line


async def test_peer_that_closes_during_the_handshake(
    authority: Authority, pair: Pair, caplog: Any
) -> None:
    async with listening(tls_of(authority, pair)) as (_, _sink, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        async with asyncio.timeout(10):
            while not caplog.records:
                await asyncio.sleep(0.01)
    assert caplog.records[0].getMessage().endswith(": the peer closed the connection")


async def test_refused_host_does_not_fill_the_log(
    authority: Authority, pair: Pair, caplog: Any
) -> None:
    async with listening(tls_of(authority, pair)) as (_, _sink, port):
        for _ in range(5):
            await knock(port, context(authority, None))
    assert len([r for r in caplog.records if "no certificate" in r.getMessage()]) == 1


async def test_connecting_to_an_untrusted_worker(
    authority: Authority, pair: Pair, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "stranger")
    async with listening(tls_of(other, other.issue("scheduler"))) as (_, _sink, port):
        sink = Sink()
        transport = Transport(sink.opened, backends(tls_of(authority, pair)))
        with pytest.raises(ConnectionError, match="its certificate is not accepted"):
            await transport.connect("tls", "127.0.0.1", port)
        assert not sink.events


async def test_encryption_required(authority: Authority, pair: Pair) -> None:
    async with listening(tls_of(authority, pair)) as (transport, _, port):
        with pytest.raises(
            EncryptionRequiredError, match="encryption required by Dask configuration"
        ):
            await transport.connect("tcp", "127.0.0.1", port)
        with pytest.raises(
            RuntimeError, match=r"refusing communication from/to 'tcp://127.0.0.1:0'"
        ):
            await transport.listen("tcp", "127.0.0.1", 0)


async def test_versions_and_ciphers_of_the_configuration(authority: Authority, pair: Pair) -> None:
    config = {"distributed.comm.tls.min-version": 1.3}
    tls = tls_of(authority, pair, **config)
    assert tls.listen is not None and tls.listen.minimum_version is ssl.TLSVersion.TLSv1_3
    config = {
        "distributed.comm.tls.ciphers": "ECDHE-ECDSA-AES128-GCM-SHA256",
        "distributed.comm.tls.max-version": 1.2,
    }
    tls = tls_of(authority, pair, **config)
    async with listening(tls) as (transport, _sink, port):
        mine = await transport.connect("tls", "127.0.0.1", port)
        cipher = mine._transport.get_extra_info("cipher")  # type: ignore[attr-defined]
        assert cipher[:2] == ("ECDHE-ECDSA-AES128-GCM-SHA256", "TLSv1.2")
    with pytest.raises(ValueError, match="not supported"):
        tls_of(authority, pair, **{"distributed.comm.tls.min-version": 1.1})


def test_names_of_certificates() -> None:
    found = {
        "subject": ((("commonName", "a"),), (("countryName", "X"),)),
        "subjectAltName": (("DNS", "b"), ("DNS", "a")),
    }
    assert certificate_names(found) == ("a", "b")
    assert certificate_names(None) == ()
    with (
        pytest.raises(ValueError, match="needs TLS"),
        dask.config.set({"paceline.security.peer-names": "x"}),
    ):
        read()


@pytest.mark.parametrize("security", ["files", "temporary"])
async def test_stock_peers(authority: Authority, pair: Pair, security: str) -> None:
    made = (
        Security.temporary()
        if security == "temporary"
        else Security(**keywords(authority, pair), require_encryption=True)
    )
    async with Scheduler(security=made, port=0, dashboard_address=":0") as scheduler:
        assert scheduler.address.startswith("tls://")
        async with (
            Worker(scheduler.address, security=made) as worker,
            Client(scheduler.address, security=made, asynchronous=True) as client,
        ):
            assert worker.address.startswith("tls://")
            assert await client.submit(lambda x: x + 1, 1) == 2
            array = np.ones(3_000_000)
            # the scheduler connects to the worker
            future = await client.scatter(array, direct=False)
            assert (await client.submit(np.sum, future)) == 3_000_000
            back = await client.gather(future, direct=False)
            assert (back == array).all()


async def test_commands_use_the_certificates_of_a_client(authority: Authority, pair: Pair) -> None:
    def call(address: str) -> Any:
        return asyncio.to_thread(call_scheduler, address, m.Identity(n_workers=0))

    names: dict[str, Any] = {"distributed.comm.tls.ca-file": authority.ca_file}
    security = Security(**keywords(authority, pair))
    async with Scheduler(security=security, port=0, dashboard_address=":0") as scheduler:
        with (
            dask.config.set(names),
            pytest.raises(RpcError, match=r"distributed\.comm\.tls\.client\.{cert,key}"),
        ):
            await call(scheduler.address)
        for role in ("client", "scheduler"):
            files = {"cert": pair.cert, "key": pair.key}
            theirs = {f"distributed.comm.tls.{role}.{name}": file for name, file in files.items()}
            with dask.config.set(names | theirs):
                assert (await call(scheduler.address))["address"] == scheduler.address


async def test_commands_connect_with_encryption_only(authority: Authority, pair: Pair) -> None:
    names: dict[str, Any] = {
        "distributed.comm.require-encryption": True,
        "distributed.comm.tls.ca-file": authority.ca_file,
        "distributed.comm.tls.client": {"cert": pair.cert, "key": pair.key},
    }
    security = Security(**keywords(authority, pair))
    async with Scheduler(security=security, port=0, dashboard_address=":0") as scheduler:
        with dask.config.set(names):
            plain = scheduler.address.removeprefix("tls://")
            found = await asyncio.to_thread(call_scheduler, plain, m.Identity(n_workers=0))
            assert found["address"] == scheduler.address
            with pytest.raises(RpcError, match="require-encryption permits tls:// addresses only"):
                call_scheduler(f"tcp://{plain}", m.Identity())


@pytest.mark.slow
async def test_a_nanny(authority: Authority, pair: Pair) -> None:
    made = Security(**keywords(authority, pair), require_encryption=True)
    async with (
        Scheduler(security=made, port=0, dashboard_address=":0") as scheduler,
        Nanny(scheduler.address, security=made, nthreads=1),
        Client(scheduler.address, security=made, asynchronous=True) as client,
    ):
        assert await client.submit(lambda x: x + 1, 1) == 2
        await client.restart()
        assert await client.submit(lambda x: x + 1, 2) == 3
