"""Addresses as in Dask (``tcp://host:port``): parse them, and derive them from a user's options.

This does not use ``distributed.comm.addressing``, because the server must not import distributed
(``tests/tidy/test_imports.py``).
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import psutil
from paceline.workers_compat import foreign_comm

#: The scheme of an address without one.
DEFAULT_SCHEME = "tcp"
#: Peer of a datagram socket (nothing is sent) whose local address peers can probably reach.
WELL_KNOWN_HOST = {socket.AF_INET: "8.8.8.8", socket.AF_INET6: "2001:4860:4860::8888"}
#: Schemes whose addresses are hosts and ports.
IP_SCHEMES = frozenset({"tcp", "tls", "ws", "wss"})
#: Hosts that represent every interface.
WILDCARDS = frozenset({"", "0.0.0.0", "::"})


def split_address(address: str, default_scheme: str = DEFAULT_SCHEME) -> tuple[str, str]:
    """Split ``"tcp://h:1"`` into ``("tcp", "h:1")``.

    Raises:
        TypeError: `address` is not a string.
    """
    if not isinstance(address, str):
        raise TypeError(f"expected str, got {type(address).__name__!r}")
    scheme, separator, location = address.rpartition("://")
    return (scheme if separator else default_scheme), location


def split_host_port(location: str, default_port: int | None = None) -> tuple[str, int]:
    """Split ``"h:1"`` into ``("h", 1)``, ``"[::1]:1"`` into ``("::1", 1)``.

    Raises:
        ValueError: there is no port and no default, or it is not a number.
    """
    if location.startswith("["):
        host, bracket, tail = location[1:].partition("]")
        if not bracket:
            raise ValueError(f"missing ']' in address {location!r}")
        port = tail[1:] if tail.startswith(":") else ""
    else:
        host, _, port = location.partition(":")
        if ":" in port:
            raise ValueError(f"invalid address {location!r}: put IPv6 hosts in brackets")
    if not port:
        if default_port is None:
            raise ValueError(f"missing port number in address {location!r}")
        return host, default_port
    return host, int(port)


def join_host_port(host: str, port: int | None = None) -> str:
    """Return ``"[::1]:1"`` for ``("::1", 1)``."""
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    return host if port is None else f"{host}:{port}"


def address_host(address: str) -> str:
    """Return the host of an address, or "". ``inproc://host/pid/number`` has a host, too."""
    scheme, host, _ = parts(address, 0)
    return host if scheme in IP_SCHEMES else foreign_comm.host(scheme, host)


def address_host_port(address: str) -> tuple[str, int]:
    """Return host and port of an address.

    Raises:
        ValueError: it has no port.
    """
    return split_host_port(split_address(address)[1])


def parts(address: str, default_port: int | None = None) -> tuple[str, str, int]:
    """Return scheme, host and port. If the scheme has no ports, they are the location and 0.

    Raises:
        ValueError: there is no port and no default, or it is not a number.
    """
    scheme, location = split_address(address)
    if scheme not in IP_SCHEMES:
        return scheme, location, 0
    return scheme, *split_host_port(location, default_port)


def normalize(address: str) -> str:
    """Return `address` with its scheme."""
    scheme, location = split_address(address)
    return f"{scheme}://{location}"


def is_ip(host: str) -> bool:
    """Return whether `host` is an IP address, not a name."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.inet_pton(family, host)
    except OSError:
        return False
    return True


def resolve(address: str) -> str:
    """Return the address with its host name resolved.

    This blocks for names; stock peers announce IP addresses.

    Raises:
        OSError: the name is unknown.
    """
    scheme, host, port = parts(address)
    if scheme not in IP_SCHEMES:
        return f"{scheme}://{foreign_comm.resolve(scheme, host)}"
    if host and not is_ip(host):
        found = socket.getaddrinfo(host, 1234, socket.AF_UNSPEC, socket.SOCK_STREAM)
        families = {family: str(where[0]) for family, _, _, _, where in reversed(found)}
        host = families.get(socket.AF_INET) or families[socket.AF_INET6]
    return f"{scheme}://{join_host_port(host, port)}"


def own_ip(family: socket.AddressFamily = socket.AF_INET) -> str:
    """Return the address of this machine that peers can probably reach."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((WELL_KNOWN_HOST[family], 80))
            ip = str(probe.getsockname()[0])
            if ip not in WILDCARDS:
                return ip
        except OSError:
            pass
    try:
        found = socket.getaddrinfo(socket.gethostname(), 80, family, socket.SOCK_DGRAM)
        return str(found[0][4][0])
    except OSError:
        return "127.0.0.1"


def interface_ip(interface: str) -> str:
    """Return the IPv4 address of a network interface.

    Raises:
        ValueError: there is no such interface, or it has no address.
    """
    interfaces = psutil.net_if_addrs()
    if interface not in interfaces:
        raise ValueError(
            f"{interface!r} is not a valid network interface. "
            f"Valid network interfaces are: {list(interfaces)}"
        )
    for entry in interfaces[interface]:
        if entry.family == socket.AF_INET:
            return str(entry.address)
    raise ValueError(f"interface {interface!r} doesn't have an IPv4 address")


def contact_host(host: str) -> str:
    """Return `host`, or for a wildcard an address that peers can reach."""
    if host == "::":
        return own_ip(socket.AF_INET6)
    return own_ip() if host in WILDCARDS else host


def listen_address(
    host: str | None,
    port: int | str | None,
    interface: str | None,
    protocol: str | None,
    default_port: int,
) -> str:
    """Return the address to listen on for one set of a user's options.

    Raises:
        ValueError: the options contradict each other.
    """
    if protocol and protocol.endswith("://"):
        protocol = protocol[: -len("://")]
    if interface:
        if host:
            raise ValueError("Can not specify both interface and host", interface, host)
        host = interface_ip(interface)
    scheme, location = split_address(host or "")
    if protocol:
        scheme = protocol
    if scheme == "inproc":  # no ports there
        return f"inproc://{location}"
    found_host, found_port = split_host_port(location, default_port if port is None else int(port))
    if port is not None and found_port != 0 and int(port) and found_port != int(port):
        raise ValueError(f"port number given twice in options: host {host} and port {port}")
    return f"{scheme}://{join_host_port(found_host, found_port)}"


def listen_addresses(
    host: Any = None,
    port: Any = None,
    interface: Any = None,
    protocol: Any = None,
    default_port: int = 0,
) -> list[str]:
    """Return the addresses for options that may be lists, whose items are combined in order.

    Raises:
        ValueError: as ``listen_address``.
    """
    options = (host, port, interface, protocol)
    if not any(isinstance(option, list | tuple) for option in options):
        return [listen_address(host, port, interface, protocol, default_port)]
    columns: list[Any] = [o if isinstance(o, list | tuple) else repeat(o) for o in options]
    return [listen_address(h, p, i, s, default_port) for h, p, i, s in zip(*columns)]


def dashboard_addresses(option: Any, default_port: int) -> list[tuple[str, int]]:
    """Parse ``":8787,:8087"`` into ``[("", 8787), ("", 8087)]``.

    Raises:
        ValueError: it is invalid.
    """
    if option is None or option == "":
        option = default_port
    parts: Sequence[Any] = option.split(",") if isinstance(option, str) else option
    if isinstance(option, int):
        parts = [option]
    addresses = []
    for part in parts:
        text = str(part).strip()
        if text.isdigit():
            addresses.append(("", int(text)))
        else:
            addresses.append(split_host_port(text, 0))
    return addresses
