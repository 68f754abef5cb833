"""Addresses and names of workers: what they mean, and whether a worker may register with them."""

from __future__ import annotations

from typing import Any

from .scheduler_state import SchedulerState


def coerce_address(state: SchedulerState, address: Any) -> str:
    """Return the address for an alias, a ``(host, port)`` pair or an address without scheme.

    Raises:
        TypeError: ``address`` is none of these.
    """
    try:
        found = state.aliases.get(address, address)
    except TypeError:
        found = address
    if isinstance(found, tuple | list) and len(found) == 2:
        host, port = found
        found = f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    if not isinstance(found, str):
        raise TypeError(f"addresses should be strings or tuples, got {found!r}")
    return found if "://" in found else f"tcp://{found}"


def address_or_host(state: SchedulerState, name: Any) -> str | None:
    """Return the address that ``name`` means in a restriction; None if it is the name of a host.

    Host names inside addresses are resolved by the graph compiler. Here only ``localhost`` is.
    """
    if name in state.aliases:
        return state.aliases[name]
    is_pair = isinstance(name, tuple) and len(name) == 2
    is_address = ":" in name if isinstance(name, str) else is_pair
    if not is_address:
        return None
    scheme, rest = coerce_address(state, name).split("://", 1)
    if rest.startswith("localhost:"):
        rest = "127.0.0.1" + rest[len("localhost") :]
    return f"{scheme}://{rest}"


def registration_error(
    state: SchedulerState, address: str, name: Any, nthreads: int = 1
) -> str | None:
    """Return why a worker may not register under ``name``, in the words of stock's reply, or None.

    Raises:
        ValueError: the address is taken (stock replies with an ``uncaught-error``), or
            ``nthreads`` is less than 1 (stock accepts the worker and then divides by zero).
    """
    if nthreads < 1:
        raise ValueError(f"worker {address} has {nthreads} threads; at least one is required")
    if address in state.workers:
        raise ValueError(f"Worker already exists {address}")
    try:
        taken = name in state.aliases
    except TypeError:
        return f"not a name: {name!r}"
    return f"name taken, {name}" if taken else None
