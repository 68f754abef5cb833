"""The tap: it forwards any bytes unchanged; shows, checks and counts messages; and shuts down cleanly.

``tests/wiretap/`` tests whole clusters behind a tap.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from paceline.protocol.codec import Codec
from paceline.protocol.framing import pack_frames
from paceline.protocol.handshake import local_offer
from paceline.protocol.json_form import from_json
from paceline.protocol.messages import HeartbeatWorker, RegisterWorker
from paceline.protocol.observer import ObservedMessage, Observer
from paceline.protocol.payload import pickled_payload
from paceline.scheduler.server.cli.main import main
from paceline.scheduler.server.wiretap import proxy
from paceline.scheduler.server.wiretap.proxy import Wiretap
from paceline.scheduler.server.wiretap.report import Filter, Reporter, keys_in, line, short
from paceline.workers_compat.security import tls_config
from paceline.workers_compat.security.tls_config import Tls

from tests.support.fake_peers import until

CAPTURES = Path(__file__).parents[1] / "protocol" / "captures"


def wire(value: Any) -> bytes:
    return b"".join(map(bytes, pack_frames(Codec().encode(value))))


HELLO = wire(local_offer())


class Far:
    """The other peer: records what it receives, and sends the given replies."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.writers: list[asyncio.StreamWriter] = []
        self.reading = asyncio.Event()
        self.reading.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        while True:
            await self.reading.wait()
            data = await reader.read(2**16)
            if not data:
                break
            self.got += data
        writer.write(b"the end")
        writer.close()


@asynccontextmanager
async def tapped(**options: Any) -> AsyncIterator[tuple[Far, Wiretap, list[ObservedMessage]]]:
    far, seen = Far(), []
    context = options.pop("context", None)
    server = await asyncio.start_server(far.serve, "127.0.0.1", 0, ssl=context)
    scheme = "tls" if context else "tcp"
    forward = f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    listen = options.pop("listen", "tcp://127.0.0.1:0")
    async with Wiretap(listen, forward, lambda _, __, s: seen.append(s), **options) as tap:
        yield far, tap, seen
    server.close()


async def dial(tap: Wiretap, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection(
        "127.0.0.1", int(tap.address.rpartition(":")[2]), **options
    )


# ------------------------------------------------------------------ forwarding


@pytest.mark.parametrize("junk", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 1000, os.urandom(300_000)])
async def test_any_bytes_are_forwarded(junk: bytes) -> None:
    async with tapped() as (far, tap, seen):
        reader, writer = await dial(tap)
        writer.write(junk)
        await until(lambda: far.got == junk)
        far.writers[0].write(junk[::-1])
        assert await reader.readexactly(len(junk)) == junk[::-1]
        writer.write_eof()
        assert await reader.read() == b"the end", "each direction ends separately"
        writer.close()
    assert tap.n_connections == 1
    if junk[:4] != b"GET ":
        assert {v.kind for s in seen for v in s.violations} == {"unreadable"}


async def test_messages_are_decoded_from_any_pieces() -> None:
    async with tapped() as (far, tap, seen):
        _, writer = await dial(tap)
        asked = wire(HeartbeatWorker(address="tcp://a:1"))
        for byte in HELLO + asked:
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        await until(lambda: far.got == HELLO + asked)
        far.writers[0].write(HELLO + wire({"status": "OK", "time": 1.0, "heartbeat-interval": 0.5}))
        await until(lambda: len(seen) == 4)
        writer.close()
    assert sorted((s.kind, s.way, s.op) for s in seen) == [
        ("handshake", "down", ""),
        ("handshake", "up", ""),
        ("reply", "down", "heartbeat_worker"),
        ("request", "up", "heartbeat_worker"),
    ]


async def test_slow_reader_slows_the_other_peer() -> None:
    """The tap buffers at most the sockets' own buffers and a megabyte or two."""
    async with tapped() as (far, tap, _):
        far.reading.clear()
        _, writer = await dial(tap)
        whole = 64 * 2**20
        writer.write(bytes(whole))
        unwritten = -1
        while unwritten != writer.transport.get_write_buffer_size():
            unwritten = writer.transport.get_write_buffer_size()
            await asyncio.sleep(0.3)
        assert unwritten > whole // 2
        far.reading.set()
        await until(lambda: len(far.got) == whole)
        writer.close()


async def test_reading_pauses_while_much_waits_to_be_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proxy, "WAITING_MAX_NBYTES", 100_000)
    n = 300
    message = wire({"op": "echo", "data": ["x" * 100] * 100})
    async with tapped() as (far, tap, _):
        most = 0

        def look(*args: Any) -> None:
            nonlocal most
            most = max(most, tap._waiting_nbytes)

        tap._observer = look
        _, writer = await dial(tap)
        far_hello = HELLO + message * n
        writer.write(far_hello)
        await until(lambda: far.got == far_hello)
        writer.close()
    assert 0 < most < 1_000_000


async def test_absent_scheduler_is_retried_while_the_peer_waits() -> None:
    async with Wiretap("tcp://127.0.0.1:0", "tcp://127.0.0.1:1", lambda *_: None) as tap:
        reader, writer = await dial(tap)
        writer.write(HELLO)
        await asyncio.sleep(0.3)
        assert not reader.at_eof()
        writer.close()
        await until(lambda: not tap._tasks or writer.transport.is_closing())


async def test_error_in_decoding_closes_no_connection(caplog: pytest.LogCaptureFixture) -> None:
    async with tapped() as (far, tap, _):

        def fail(*args: Any) -> None:
            raise ZeroDivisionError

        tap._observer = fail
        _, writer = await dial(tap)
        writer.write(HELLO * 3)
        await until(lambda: far.got == HELLO * 3)
        await until(lambda: "ZeroDivisionError" in caplog.text)
        writer.close()


def test_addresses_that_cannot_be_tapped() -> None:
    async def start(listen: str, forward: str) -> None:
        async with Wiretap(listen, forward, lambda *_: None):
            pass

    for listen, forward in (
        ("tcp://:0", "ucx://a:1"),
        ("tls://:0", "tcp://a:1"),
        ("tcp://", "tcp://a:1"),
    ):
        with pytest.raises(ValueError):
            asyncio.run(start(listen, forward))


# ------------------------------------------------------------------ TLS


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tls]:
    """Create a self-signed certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificates")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=x"]
        + ["-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    files = {
        "tls_ca_file": str(cert),
        "tls_scheduler_cert": str(cert),
        "tls_scheduler_key": str(key),
    }
    yield tls_config.read(files)


async def test_tls_on_both_sides(tls: Tls) -> None:
    server, client = tls.listen, tls.connect
    for listen in ("tls://127.0.0.1:0", "tcp://127.0.0.1:0"):
        async with tapped(context=server, tls=tls, listen=listen) as (far, tap, seen):
            assert tap.address.startswith(listen[:3])
            options = {"ssl": client} if listen.startswith("tls") else {}
            reader, writer = await dial(tap, **options)
            writer.write(HELLO)
            await until(lambda: far.got == HELLO)
            far.writers[0].write(HELLO)
            assert await reader.readexactly(len(HELLO)) == HELLO
            await until(lambda: len(seen) == 2)
            writer.close()


async def test_tls_requires_certificates_of_peers(tls: Tls) -> None:
    server = tls.listen
    stranger = ssl.create_default_context(cafile=tls.security.tls_ca_file)
    stranger.check_hostname = False
    async with tapped(context=server, tls=tls, listen="tls://127.0.0.1:0") as (far, tap, _):
        with pytest.raises((ssl.SSLError, OSError)):
            reader, writer = await dial(tap, ssl=stranger)
            writer.write(HELLO)
            if not await reader.read():
                raise ConnectionResetError
        assert not far.got


# ------------------------------------------------------------------ output


class Peer:
    """A stand-in for ``proxy.TappedConnection``."""

    def __init__(self) -> None:
        self.number = 7
        self.address = "1.2.3.4:5"
        self.observer = Observer()


def conversation() -> list[tuple[Peer, ObservedMessage]]:
    """Register a worker; send a finished task and an unknown op."""
    peer, found = Peer(), []
    say: list[tuple[Any, Any]] = [
        ("down", local_offer()),
        ("up", local_offer()),
        ("up", RegisterWorker(address="tcp://w:1", name="alice", reply=False)),
        ("down", {"status": "OK", "time": 1.0, "heartbeat-interval": 1.0, "worker-plugins": {}}),
        ("up", [{"op": "task-finished", "key": ("x", 1), "nbytes": 5}, {"op": "no-such", "key": "k"}]),
        ("down", [{"op": "free-keys", "keys": [("x", 1), "y"], "stimulus_id": "s"}]),
    ]  # fmt: skip
    for way, value in say:
        found += [(peer, seen) for seen in peer.observer.observe(way, Codec().encode(value))]
    return found


def test_one_line_per_message() -> None:
    lines = [line(peer, 0.5, seen) for peer, seen in conversation()]  # type: ignore[arg-type]
    assert "#7 worker alice → task-finished key=('x', 1) nbytes=5" in lines[4]
    assert "#7 worker alice ← free-keys keys=(('x', 1), 'y')" in lines[6]
    assert "register-worker? address='tcp://w:1'" in lines[2]
    assert "register-worker= status='OK'" in lines[3]
    assert all("\n" not in text and "\x1b" not in text for text in lines)
    peer, seen = conversation()[4]
    assert "\x1b" in line(peer, 0.5, seen, color=True)  # type: ignore[arg-type]


def test_values_are_shortened() -> None:
    assert short(pickled_payload(b"1" * 100)) == "<pickled 131 B>"
    for value in ("x\n" * 500, list(range(999)), {i: i for i in range(99)}, b"1" * 999, 10**500):
        assert len(short(value)) <= 60 and "\n" not in short(value)


@pytest.mark.parametrize(
    ("chosen", "ops"),
    [
        (Filter(ops=("task-*", "no-such")), ["task-finished", "no-such"]),
        (Filter(key=("x", 1)), ["task-finished", "free-keys"]),
        (Filter(key="y"), ["free-keys"]),
        (Filter(key="('x'*"), ["task-finished", "free-keys"]),
        (Filter(peer="bob"), []),
        (Filter(peer="alice", key="k"), ["no-such"]),
    ],
)
def test_filters(chosen: Filter, ops: list[str]) -> None:
    found = [seen.op for peer, seen in conversation() if chosen.matches(peer, seen)]  # type: ignore[arg-type]
    assert found == ops


def test_keys_of_a_message() -> None:
    assert [list(keys_in(seen)) for _, seen in conversation()][4:] == [
        [("x", 1)],
        ["k"],
        [("x", 1), "y"],
    ]


def test_reports_and_counts() -> None:
    shown: list[str] = []
    warned: list[str] = []
    file = StringIO()
    reporter = Reporter(shown.append, warned.append, chosen=Filter(ops=("free-keys",)), jsonl=file)
    for position, (peer, seen) in enumerate(conversation()):
        reporter(peer, 10.0 + position, seen)  # type: ignore[arg-type]
    assert len(shown) == 2, "selected messages, and violations"
    assert len(warned) == 1 and "unknown op: no-such" in warned[0]
    (record,) = map(json.loads, file.getvalue().splitlines())
    assert record["op"] == "free-keys" and record["peer"] == "worker alice"
    assert from_json(record["message"])["keys"] == (("x", 1), "y")
    stats = reporter.stats
    assert stats.counts["worker_to_scheduler", "stream", "task-finished"].n == 1
    assert stats.n_violations == 1
    assert "7 messages" in stats.summary(1) and "1 x unknown op" in stats.summary(1)
    assert len(list(stats.table())) == 1 + len(stats.counts)


# ------------------------------------------------------------------ commands


def test_decode_and_encode_are_each_others_inverse(tmp_path: Path) -> None:
    for path in sorted(CAPTURES.glob("*.bin")):
        decoded = CliRunner().invoke(main, ["decode", str(path)])
        assert decoded.exit_code == 0, decoded.output
        (tmp_path / "x.json").write_text(decoded.output)
        target = tmp_path / "x.bin"
        done = CliRunner().invoke(main, ["encode", str(tmp_path / "x.json"), "-o", str(target)])
        assert done.exit_code == 0 and target.read_bytes() == path.read_bytes()
        options = ["encode", "--in-place", str(tmp_path / "x.json"), "-o", str(target)]
        assert CliRunner().invoke(main, options).exit_code == 0
        again = CliRunner().invoke(main, ["decode", "--in-place", str(target)])
        assert again.output == decoded.output


def test_decode_reports_violations(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(wire([{"op": "task-finished", "key": 1, "nbytes": "x"}]))
    done = CliRunner().invoke(main, ["decode", str(path), "--check", "worker_to_scheduler"])
    assert done.exit_code == 1 and "$.nbytes" in done.output
    path.write_bytes(HELLO[:-1])
    assert "ends within a message" in CliRunner().invoke(main, ["decode", str(path)]).output
    path.write_bytes(b"\xff" * 100)
    assert CliRunner().invoke(main, ["decode", str(path)]).exit_code == 1
    assert "codec can't decode" in CliRunner().invoke(main, ["encode", str(path)]).output
    path.write_text('{"$no": 1}')
    assert "unknown mark $no" in CliRunner().invoke(main, ["encode", str(path)]).output


def test_messages_lists_the_catalogue() -> None:
    everything = CliRunner().invoke(main, ["messages"]).output
    assert "compute-task" in everything and "scheduler_to_worker" in everything
    one = CliRunner().invoke(main, ["messages", "compute-task"]).output
    assert "run_spec" in one and "offloaded" in one
    near = CliRunner().invoke(main, ["messages", "compute-taks"])
    assert near.exit_code == 1 and "did you mean compute-task" in near.output
    assert (
        "nanny_rpc"
        not in CliRunner().invoke(main, ["messages", "--direction", "worker_rpc"]).output
    )
    assert CliRunner().invoke(main, ["messages", "--direction", "x"]).exit_code == 1


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
async def test_ctrl_c_prints_the_counts(tmp_path: Path) -> None:
    far = Far()
    server = await asyncio.start_server(far.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    command = [sys.executable, "-m", "paceline.scheduler.server.cli.main", "wiretap", "--listen"]
    command += ["tcp://127.0.0.1:0", "--forward", f"tcp://127.0.0.1:{port}", "--stats"]
    command += ["--jsonl", str(tmp_path / "x.jsonl")]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    first = (await asyncio.wait_for(process.stdout.readline(), 60)).decode()
    address = first.split()[2].rstrip(",")
    _, writer = await asyncio.open_connection("127.0.0.1", int(address.rpartition(":")[2]))
    writer.write(HELLO + wire({"op": "no-such"}))
    await until(lambda: len(far.got) > len(HELLO))
    far.writers[0].write(HELLO)
    await asyncio.wait_for(process.stdout.readuntil(b"handshake compression"), 20)
    process.send_signal(signal.SIGINT)
    output = (await asyncio.wait_for(process.stdout.read(), 20)).decode()
    assert await process.wait() == 1, "there was a violation"
    assert "3 messages" in output and "1 violation (" in output.splitlines()[-1]
    assert len((tmp_path / "x.jsonl").read_text().splitlines()) == 3
    server.close()
