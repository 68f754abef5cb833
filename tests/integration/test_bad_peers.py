"""Peers that violate the framing, or stay silent, lose their own connection and do not affect others."""

from __future__ import annotations

import operator
import socket
import struct
import time

import msgpack
import pytest

from tests.support.real_cluster import Cluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

DROP_TIMEOUT_SECONDS = 20


def connect(cluster: Cluster) -> socket.socket:
    host, port = cluster.address.removeprefix("tcp://").rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=DROP_TIMEOUT_SECONDS)


def message(value: object) -> bytes:
    body = msgpack.packb(value)
    return struct.pack("<QQQ", 16 + len(body), 1, len(body)) + body


def handshake(peer: socket.socket) -> None:
    peer.sendall(message({"compression": None, "python": (3, 11, 0), "pickle-protocol": 5}))
    receive(peer)


def receive(peer: socket.socket) -> object:
    """Return one message: its first frame."""
    head = exactly(peer, 16)
    (count,) = struct.unpack("<Q", head[8:])
    lengths = struct.unpack(f"<{count}Q", exactly(peer, 8 * count))
    frames = [exactly(peer, length) for length in lengths]
    if not frames:
        return None
    return msgpack.unpackb(frames[0], use_list=False, strict_map_key=False)


def exactly(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = peer.recv(count - len(data))
        if not more:
            raise ConnectionError("closed by the scheduler")
        data += more
    return data


def wait_until_dropped(peer: socket.socket) -> None:
    try:
        while peer.recv(65536):
            pass
    except ConnectionResetError:
        pass


def assert_others_go_on(cluster: Cluster) -> None:
    with cluster.client() as client:
        assert client.submit(operator.add, 1, 2, pure=False).result(timeout=30) == 3


LIES = {
    "no framing at all": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 4,
    "ten million frames": struct.pack("<QQ", 8 * 10_000_001, 10_000_000),
    "a frame of an exabyte": struct.pack("<QQQ", 2**60 + 16, 1, 2**60),
    "lengths that overflow": struct.pack("<QQQQ", 24, 2, 2**63, 2**63),
}


@pytest.mark.parametrize("after_handshake", [False, True], ids=["first", "later"])
@pytest.mark.parametrize("lie", LIES)
def test_framing_violation_closes_only_its_connection(
    lie: str, after_handshake: bool, paceline: Cluster
) -> None:
    log_before = len(paceline.processes[0].output())
    with connect(paceline) as peer:
        if after_handshake:
            handshake(peer)
        peer.sendall(LIES[lie])
        wait_until_dropped(peer)
        name = "{}:{}".format(*peer.getsockname())
    assert_others_go_on(paceline)
    logged = paceline.processes[0].output()[log_before:]
    assert name in logged or peer_port(name) in logged, (
        f"no log line names {name}:\n{logged[-2000:]}"
    )


def peer_port(name: str) -> str:
    return name.rsplit(":", 1)[1]


def test_half_open_connections_do_not_block_others(paceline: Cluster) -> None:
    """Open connections that stay silent, or stop in the middle of a message."""
    silent = [connect(paceline) for _ in range(20)]
    try:
        for peer in silent[::2]:
            peer.sendall(message({"op": "identity"})[:11])
        assert_others_go_on(paceline)
    finally:
        for peer in silent:
            peer.close()
    assert_others_go_on(paceline)


def test_unknown_operations_are_answered(paceline: Cluster) -> None:
    """Stock sends no reply and logs the name; an error that contains the name is acceptable too. The connection stays open."""
    log_before = len(paceline.processes[0].output())
    with connect(paceline) as peer:
        handshake(peer)
        peer.sendall(message({"op": "no-such-operation", "reply": True}))
        answer = receive(peer)
        assert answer is None or "no-such-operation" in repr(answer), answer
        peer.sendall(message({"op": "identity", "reply": True}))
        identity = receive(peer)
        assert isinstance(identity, dict) and identity["type"] == "Scheduler"
    assert "no-such-operation" in paceline.processes[0].output()[log_before:]


def test_wrong_arguments_are_answered(paceline: Cluster) -> None:
    with connect(paceline) as peer:
        handshake(peer)
        peer.sendall(message({"op": "ncores", "reply": True, "no_such_argument": 1}))
        answer = receive(peer)
        assert isinstance(answer, dict), answer
        peer.sendall(message({"op": "identity", "reply": True}))
        assert isinstance(receive(peer), dict)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_worker_that_holds_its_gil_is_not_removed(paceline: Cluster) -> None:
    """Run a task that blocks all other threads of its worker for more than half a minute."""

    def hold() -> int:
        # one call of C code that does not release the GIL: about forty seconds on a slow machine
        started = time.monotonic()
        while time.monotonic() - started < 40:
            sum(range(200_000_000))
        return 7

    with paceline.client() as client:
        known = set(client.scheduler_info()["workers"])
        assert client.submit(hold, pure=False).result(timeout=180) == 7
        assert set(client.scheduler_info()["workers"]) == known
