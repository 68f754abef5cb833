"""Addresses as in Dask (``tcp://host:port``): parse them, and derive them from a user's options."""

from __future__ import annotations

from itertools import repeat
from typing import Any

from paceline.workers_compat import addressing, foreign_comm
from paceline.workers_compat.addressing import split_address, split_host_port

#: Schemes whose addresses are hosts and ports.
IP_SCHEMES = frozenset({"tcp", "tls", "ws", "wss"})
#: Default port of the dashboard, as in stock.
DASHBOARD_PORT = 8787


def address_host(address: str) -> str:
    """Return the host of an address. ``inproc://host/pid/number`` has a host, too."""
    return foreign_comm.host(*split_address(address))


def parts(address: str, default_port: int | None = None) -> tuple[str, str, int]:
    """Return scheme, host and port. If the scheme has no ports, they are the location and 0.

    Raises:
        ValueError: there is no port and no default, or it is not a number.
    """
    scheme, location = split_address(address)
    if scheme not in IP_SCHEMES:
        return scheme, location, 0
    return scheme, *split_host_port(location, default_port)


def check(address: str) -> None:
    """Raise ValueError for an invalid address of another scheme, such as ``inproc://127.0.0.1``.

    Those of ``IP_SCHEMES``, and one without location, are not checked.
    """
    scheme, location = split_address(address)
    if scheme not in IP_SCHEMES and location:
        foreign_comm.check_location(scheme, location)


def resolve(address: str) -> str:
    """Return the address with its host name resolved.

    This blocks for names; stock peers announce IP addresses.

    Raises:
        OSError: the name is unknown.
    """
    scheme, location = split_address(address)
    if scheme in IP_SCHEMES:
        return addressing.resolve(address)
    return f"{scheme}://{foreign_comm.resolve(scheme, location)}"


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
    if interface:
        if host:
            raise ValueError("Can not specify both interface and host", interface, host)
        host = addressing.interface_ip(interface)
    scheme, location = split_address(host or "")
    scheme = (protocol or scheme).removesuffix("://")
    if scheme == "inproc":  # no ports there
        return f"inproc://{location}"
    number = None if port is None else int(port)
    _, location = split_address(addressing.address_of(location, number, default_port))
    return f"{scheme}://{location}"


def listen_addresses(
    host: Any = None,
    port: Any = None,
    interface: Any = None,
    protocol: Any = None,
    default_port: int = 0,
) -> list[str]:
    """Return the addresses for options that may be lists, whose items are combined in order."""
    options = (host, port, interface, protocol)
    if not any(isinstance(option, list | tuple) for option in options):
        return [listen_address(host, port, interface, protocol, default_port)]
    columns: list[Any] = [o if isinstance(o, list | tuple) else repeat(o) for o in options]
    return [listen_address(h, p, i, s, default_port) for h, p, i, s in zip(*columns)]


def dashboard_addresses(option: Any) -> list[tuple[str, int]]:
    """Parse ``":8787,:8087"`` into ``[("", 8787), ("", 8087)]``. A tuple is one host and port.

    Raises:
        ValueError: it is invalid.
    """
    if option is None or option == "":
        option = DASHBOARD_PORT
    if isinstance(option, tuple):
        option = [option]
    parts = option if isinstance(option, list) else str(option).split(",")
    addresses = []
    for part in parts:
        if isinstance(part, tuple):
            host, port = part
            addresses.append((str(host), int(port)))
            continue
        text = str(part).strip()
        if text.isdigit():
            addresses.append(("", int(text)))
        else:
            addresses.append(split_host_port(text, 0))
    return addresses
