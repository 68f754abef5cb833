"""Access to pages, the shared secret, and blocked handlers."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from typing import Any

import dask.config
import pytest
from distributed import Client, Worker
from paceline.protocol import messages as m
from paceline.scheduler.server.cli.rpc_client import RpcError, call_scheduler
from paceline.scheduler.server.scheduler import Scheduler
from paceline.workers_compat.security import shared_secret
from paceline.workers_compat.security.shared_secret import CONNECTOR, LISTENER, Secret, SecretError
from tornado.httpclient import AsyncHTTPClient, HTTPResponse

from tests.support.fake_peers import Peer

SECRET = "correct horse battery staple"


async def get(url: str, **options: Any) -> HTTPResponse:
    return await AsyncHTTPClient().fetch(url, raise_error=False, follow_redirects=False, **options)


async def test_pages_require_the_token(tmp_path: Any) -> None:
    (tmp_path / "token").write_text("open-sesame\n")
    with dask.config.set({"paceline.http.token-file": str(tmp_path / "token")}):
        async with Scheduler(
            host="127.0.0.1", port=0, dashboard_address="127.0.0.1:0"
        ) as scheduler:
            base = f"http://127.0.0.1:{scheduler.services['dashboard'].port}"
            assert (await get(f"{base}/health")).code == 200
            for path in ("/metrics", "/", "/status", "/info/main/workers.html", "/nothing"):
                refused = await get(base + path)
                assert (refused.code, b"requires a token" in refused.body) == (401, True), path
            for wrong in ("Bearer open-sesam", "Basic open-sesame", "open-sesame", "Bearer é"):
                assert (await get(f"{base}/metrics", headers={"Authorization": wrong})).code == 401
            right = await get(f"{base}/metrics", headers={"Authorization": "Bearer open-sesame"})
            assert (right.code, b"dask_scheduler" in right.body) == (200, True)
            assert (await get(f"{base}/metrics?token=wrong")).code == 401
            kept = await get(f"{base}/metrics?a=1&token=open-sesame")
            assert (kept.code, kept.headers["Location"]) == (302, "/metrics?a=1")
            cookie = kept.headers["Set-Cookie"].split(";")[0]
            assert "open-sesame" not in cookie
            assert (await get(f"{base}/metrics", headers={"Cookie": cookie})).code == 200


async def test_redirect_stays_on_this_host() -> None:
    with dask.config.set({"paceline.http.token": "t"}):
        async with Scheduler(
            host="127.0.0.1", port=0, dashboard_address="127.0.0.1:0"
        ) as scheduler:
            base = f"http://127.0.0.1:{scheduler.services['dashboard'].port}"
            assert (await get(f"{base}//elsewhere.example/x?token=t")).headers["Location"] == "/x"


@pytest.mark.parametrize("blocked", [["run_function", "feed"], "run_function"])
async def test_blocked_handlers_return_an_error_and_others_work(blocked: Any) -> None:
    with dask.config.set({"distributed.scheduler.blocked-handlers": blocked}):
        scheduler = Scheduler(host="127.0.0.1", port=0, dashboard_address=":0")
    async with scheduler, Client(scheduler.address, asynchronous=True) as client:
        with pytest.raises(
            ValueError, match="'run_function' handler has been explicitly disallowed"
        ):
            await client.run_on_scheduler(lambda: 1)
        assert (await client.scheduler.identity())["type"] == "Scheduler"


# ------------------------------------------------------------------ the secret


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_proofs() -> None:
    clock = Clock()
    ours, theirs = Secret(SECRET.encode(), clock), Secret(SECRET.encode(), clock)
    proof = {"compression": None, **theirs.proof(CONNECTOR)}
    assert SECRET not in repr(proof) and SECRET not in repr(ours)
    assert ours.refusal(proof, LISTENER) == "it proved a different secret"  # reflected
    assert ours.refusal(proof, CONNECTOR) is None
    assert ours.refusal(proof, CONNECTOR) == "its proof was used before"
    other = Secret(b"another one entirely", clock).proof(CONNECTOR)
    assert "different secret" in str(ours.refusal(other, CONNECTOR))
    late = theirs.proof(CONNECTOR)
    clock.now += shared_secret.VALID_SECONDS + 1
    assert "+301 s ago: do the clocks differ?" in str(ours.refusal(late, CONNECTOR))
    early = theirs.proof(CONNECTOR)
    clock.now -= shared_secret.VALID_SECONDS + 1
    assert "do the clocks differ?" in str(ours.refusal(early, CONNECTOR))


@pytest.mark.parametrize(
    "handshake", [None, 1, {}, {"paceline-proof": 1}, {"paceline-proof": ["a", "b"]}, {"paceline-proof": ["a", 1, None]}, {"paceline-proof": ["\ud800", "é", "é"]}]
)  # fmt: skip
def test_invalid_proofs(handshake: Any) -> None:
    assert Secret(SECRET.encode()).refusal(handshake, CONNECTOR)


@pytest.mark.parametrize(
    "moment", ["nan", "-nan", "inf", "-inf", "1e999", "9" * 400, "", "x", "-1", "1e300", "True"]
)
def test_proof_with_invalid_time_is_refused(moment: str) -> None:
    secret = Secret(SECRET.encode(), lambda: 1e9)
    proof = [moment, "nonce", secret._mac(CONNECTOR, moment, "nonce")]
    assert secret.refusal({"paceline-proof": proof}, CONNECTOR) is not None


@pytest.mark.parametrize("moment", [True, 10**400, 1e9, None, b"1000000000.000"])
def test_proof_with_time_that_is_no_text_is_malformed(moment: Any) -> None:
    secret = Secret(SECRET.encode(), lambda: 1e9)
    proof = [moment, "nonce", "mac"]
    assert "malformed" in str(secret.refusal({"paceline-proof": proof}, CONNECTOR))


def test_used_proofs_are_forgotten_after_they_expire() -> None:
    clock = Clock()
    secret = Secret(SECRET.encode(), clock)
    for _ in range(100):
        assert secret.refusal(secret.proof(CONNECTOR), CONNECTOR) is None
        clock.now += 60
    assert len(secret._used) <= 11


def test_selection_of_the_secret(tmp_path: Any) -> None:
    assert shared_secret.configured() is None
    with (
        dask.config.set({"paceline.security.secret": "short"}),
        pytest.raises(SecretError, match="shorter than 16 bytes"),
    ):
        shared_secret.configured()
    with (
        dask.config.set({"paceline.security.secret-file": str(tmp_path / "x")}),
        pytest.raises(SecretError, match="cannot be read"),
    ):
        shared_secret.configured()


async def test_peers_without_proof_are_refused_with_an_error(caplog: Any) -> None:
    with dask.config.set({"paceline.security.secret": SECRET}):
        async with Scheduler(host="127.0.0.1", port=0, dashboard_address=":0") as scheduler:
            caplog.set_level(logging.WARNING)
            peer = await Peer.connect(scheduler)
            assert await peer.ended()
            assert "it does not know the cluster's secret" in caplog.text
            with pytest.raises(OSError):
                await Client(scheduler.address, asynchronous=True, timeout=1)


async def test_commands_with_a_secret_refuse_a_scheduler_without_it() -> None:
    config = {"paceline.security.secret": SECRET}
    async with Scheduler(host="127.0.0.1", port=0, dashboard_address=":0") as scheduler:
        with (
            dask.config.set(config),
            pytest.raises(RpcError, match="it does not know the cluster's secret"),
        ):
            await asyncio.to_thread(call_scheduler, scheduler.address, m.Identity())
    with dask.config.set(config):
        async with Scheduler(host="127.0.0.1", port=0, dashboard_address=":0") as scheduler:
            found = await asyncio.to_thread(call_scheduler, scheduler.address, m.Identity())
            assert found["address"] == scheduler.address


PROGRAM = """
import asyncio, sys, dask.config
import numpy
from distributed import Client, Worker
from distributed.core import rpc

async def main(address):
    async with Worker(address) as worker, Client(address, asynchronous=True) as client:
        assert await client.submit(sum, [1, 2]) == 3
        future = await client.scatter(numpy.ones(100), direct=False)  # the scheduler dials the worker
        assert (await client.gather(future, direct=False)).sum() == 100
        assert await client.submit(len, future) == 100
        print(worker.address, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)

asyncio.run(main(sys.argv[1]))
"""


async def test_stock_peers_with_the_preload_and_a_worker_that_requires_proofs() -> None:
    preload = "paceline.workers_compat.security.secret_preload"
    names = {
        f"DASK_DISTRIBUTED__{role}__PRELOAD": f"['{preload}']" for role in ("WORKER", "CLIENT")
    }
    environment = {**os.environ, **names, "DASK_PACELINE__SECURITY__SECRET": SECRET}
    with dask.config.set({"paceline.security.secret": SECRET}):
        async with Scheduler(host="127.0.0.1", port=0, dashboard_address=":0") as scheduler:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", PROGRAM, scheduler.address,
                env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip
            assert process.stdin is not None and process.stdout is not None
            async with asyncio.timeout(60):
                address = (await process.stdout.readline()).decode().strip()
            assert address.startswith("tcp://")
            from distributed.core import connect

            # an unauthorized peer, which the worker disconnects
            comm = await connect(address)
            with pytest.raises(OSError):
                await comm.write({"op": "identity", "reply": True})
                await comm.read()
            comm.abort()
            process.stdin.write(b"\n")
            async with asyncio.timeout(60):
                assert await process.wait() == 0


async def test_connecting_to_a_worker_without_proof_is_not_retried() -> None:
    async with (
        Scheduler(host="127.0.0.1", port=0, dashboard_address=":0") as scheduler,
        Worker(scheduler.address) as worker,
    ):
        scheduler.server.secret = Secret(SECRET.encode())
        with pytest.raises(OSError, match="does not know the cluster's secret"):
            await scheduler.server.rpc_call(worker.address, {"op": "identity", "reply": True})


async def test_restarted_program_finds_its_keys() -> None:
    with dask.config.set({"paceline.scheduler.client-grace": "1 minute"}):
        scheduler = Scheduler(host="127.0.0.1", port=0, dashboard_address=":0")
    async with scheduler, Worker(scheduler.address):
        async with Client(scheduler.address, asynchronous=True) as first:
            future = first.submit(os.urandom, 4, key="random", pure=False)
            value = await future
            first._reconnect = lambda: asyncio.Event().wait()  # its client was removed
            first.scheduler_comm.comm.abort()
            async with asyncio.timeout(10):
                while first.id in scheduler.server.state.clients:
                    await asyncio.sleep(0.01)
            async with Client(scheduler.address, asynchronous=True) as again:
                assert await again.submit(os.urandom, 4, key="random", pure=False) == value
        assert "random" in scheduler.server.state.tasks
