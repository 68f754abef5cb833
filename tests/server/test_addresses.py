"""Addresses: options are interpreted as in stock."""

from __future__ import annotations

import pytest
from paceline.scheduler.server.comm import addresses as a
from paceline.workers_compat import addressing


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"host": "", "port": 8786}, ["tcp://:8786"]),
        ({"host": "127.0.0.1", "port": 0}, ["tcp://127.0.0.1:0"]),
        ({"host": "tcp://127.0.0.1:9000", "port": None}, ["tcp://127.0.0.1:9000"]),
        ({"host": "[::1]", "port": 5}, ["tcp://[::1]:5"]),
        ({"host": None, "port": 1, "protocol": "tls://"}, ["tls://:1"]),
        ({"host": "h", "port": [1, 0], "protocol": ["tcp", "ws"]}, ["tcp://h:1", "ws://h:0"]),
        ({}, ["tcp://:7"]),
    ],
)
def test_listen_addresses(options: dict[str, object], expected: list[str]) -> None:
    assert a.listen_addresses(**options, default_port=7) == expected


def test_contradictions_are_refused() -> None:
    with pytest.raises(ValueError, match="port number given twice"):
        a.listen_address("127.0.0.1:1", 2, None, None, 0)
    with pytest.raises(ValueError, match="both interface and host"):
        a.listen_address("127.0.0.1", 2, "lo", None, 0)
    with pytest.raises(ValueError, match="not a valid network interface"):
        a.listen_address(None, 2, "nothing-like-it", None, 0)


def test_parts() -> None:
    assert addressing.split_host_port("[::1]:80") == ("::1", 80)
    assert addressing.join_host_port("::1", 80) == "[::1]:80"
    assert a.address_host("tcp://10.0.0.1:1") == "10.0.0.1"
    assert a.resolve("10.0.0.1:1") == "tcp://10.0.0.1:1"
    assert a.resolve("tcp://localhost:1") == "tcp://127.0.0.1:1"
    with pytest.raises(ValueError, match="missing port"):
        addressing.split_host_port("h")


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (":8787", [("", 8787)]),
        ("8787", [("", 8787)]),
        (8787, [("", 8787)]),
        ("foo:1", [("foo", 1)]),
        (":8787,:8087", [("", 8787), ("", 8087)]),
        (("foo", 1), [("foo", 1)]),
        ([("foo", 1), 8787], [("foo", 1), ("", 8787)]),
        (None, [("", 8787)]),
    ],
)
def test_dashboard_addresses(option: object, expected: list[tuple[str, int]]) -> None:
    assert a.dashboard_addresses(option) == expected
