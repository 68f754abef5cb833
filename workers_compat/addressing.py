"""Functions of distributed for addresses, with types."""

from __future__ import annotations

from collections.abc import Callable

from distributed import utils
from distributed.comm import addressing
from distributed.comm.utils import ensure_concrete_host

#: Split ``"tcp://h:1"`` into ``("tcp", "h:1")``.
split_address: Callable[[str], tuple[str, str]] = addressing.parse_address
#: Split ``"h:1"`` into ``("h", 1)``, ``"[::1]:1"`` into ``("::1", 1)``. Ignore a scheme.
split_host_port: Callable[..., tuple[str, int]] = addressing.parse_host_port
#: Return ``"[::1]:1"`` for ``("::1", 1)``.
join_host_port: Callable[..., str] = addressing.unparse_host_port
#: Return an address with its scheme.
normalize: Callable[[str], str] = addressing.normalize_address
#: Resolve the host name of an address.
resolve: Callable[[str], str] = addressing.resolve_address
#: Return an address from the options for host and port, and the default port.
address_of: Callable[..., str] = addressing.uri_from_host_port
#: Return a host, or for a wildcard an address that peers can reach.
contact_host: Callable[[str], str] = ensure_concrete_host
#: Return the IPv4 address of a network interface.
interface_ip: Callable[[str], str] = utils.get_ip_interface
#: Return the link to the dashboard for a host and a port.
dashboard_link: Callable[[str, int], str] = utils.format_dashboard_link
