"""Functions of distributed for addresses."""

from distributed.comm.addressing import (
    normalize_address,
    parse_address,
    parse_host_port,
    resolve_address,
    unparse_host_port,
    uri_from_host_port,
)
from distributed.comm.utils import ensure_concrete_host
from distributed.utils import format_dashboard_link, get_ip_interface

__all__ = [
    "ensure_concrete_host",
    "format_dashboard_link",
    "get_ip_interface",
    "normalize_address",
    "parse_address",
    "parse_host_port",
    "resolve_address",
    "unparse_host_port",
    "uri_from_host_port",
]
