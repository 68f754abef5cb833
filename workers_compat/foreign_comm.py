"""``inproc://``, and schemes that packages register under ``distributed.comm.backends``.

Comms of distributed read and write messages, not frames. This module converts between the two.
distributed unpickles parts of the messages. Therefore schemes other than ``inproc``, whose peer is
in this process, are refused if unpickling is disabled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from distributed import protocol
from distributed.comm.registry import get_backend
from distributed.protocol.compression import decompress
from distributed.protocol.serialize import Serialize, Serialized, ToPickle, serialize_and_split
from paceline.workers_compat.security.unpickling import check_allowed

INPROC = "inproc"
#: Arguments of a connection without TLS.
NO_ARGUMENTS = {"ssl_context": None, "require_encryption": False}


def listener(
    scheme: str,
    location: str,
    handle: Callable[[Any], Awaitable[None]],
    arguments: dict[str, Any] | None,
) -> Any:
    """Return a listener, not started. It calls `handle` with each comm before its handshake.

    `arguments` are the result of ``Security.get_listen_args``. Raise ValueError if the scheme is
    not registered, or unpickling is disabled.
    """
    made = _backend(scheme).get_listener(location, handle, False, **(arguments or NO_ARGUMENTS))
    made.on_connection = lambda comm, *_, **__: asyncio.sleep(0)  # the caller makes the handshake
    return made


def connect(scheme: str, location: str, arguments: dict[str, Any] | None) -> Awaitable[Any]:
    """Return an awaitable of a comm, before its handshake.

    `arguments` are the result of ``Security.get_connection_args``. Raise as ``listener``.
    """
    connector = _backend(scheme).get_connector()
    return connector.connect(location, deserialize=False, **(arguments or NO_ARGUMENTS))  # type: ignore[no-any-return]


def resolve(scheme: str, location: str) -> str:
    """Return the location as the scheme resolves it; unchanged for an unknown scheme."""
    with suppress(Exception):  # backends are code of other packages
        return str(get_backend(scheme).resolve_address(location))
    return location


def check_location(scheme: str, location: str) -> None:
    """Raise ValueError unless the location is valid for the scheme."""
    try:
        get_backend(scheme).get_address_host(location)
    except Exception as error:  # backends are code of other packages
        raise ValueError(f"invalid address {scheme}://{location}: {error}") from error


def host(scheme: str, location: str) -> str:
    """Return the host of a location; the location itself for an unknown scheme."""
    with suppress(Exception):  # backends are code of other packages
        return str(get_backend(scheme).get_address_host(location))
    return location


def to_message(frames: Sequence[Any], scheme: str) -> Any:
    """Convert a message for `Comm.write`; serialized values are not deserialized."""
    message = protocol.loads(list(frames), deserialize=False)
    return _for_this_process(message) if scheme == INPROC else message


def to_frames(message: Any, scheme: str) -> list[Any]:
    """Convert a message from `Comm.read` to the form that sockets deliver."""
    return list(protocol.dumps(_serialized(message) if scheme == INPROC else message))


def _backend(scheme: str) -> Any:
    if scheme != INPROC:
        check_allowed(f"messages over {scheme}://, which distributed reads")
    return get_backend(scheme)


class _Handle(bytes):
    """A frame for a value that cannot be pickled, such as a lock or an open file.

    The peer, which is in this process, gets the value itself, as with stock's ``inproc``. The
    scheduler forwards the frame as any other.
    """

    value: Any


#: "serializer" of a value whose frame is a ``_Handle``. Peers outside this process reject it.
_BY_REFERENCE = "this-process"


def _serialized(value: Any) -> Any:
    """Serialize the marked values in a message. Those that cannot be pickled become handles."""
    if type(value) is dict:
        out = {key: _serialized(each) for key, each in value.items()}
        if out.get("op") == "update-graph" and "annotations" in out:
            out["annotations"] = ToPickle(out["annotations"])  # as the client did; inproc undoes it
        return out
    if type(value) in (tuple, list):
        return type(value)([_serialized(each) for each in value])
    if not isinstance(value, Serialize):
        return value
    try:
        return Serialized(*serialize_and_split(value, on_error="raise"))
    except Exception:
        handle = _Handle()
        handle.value = value.data
        return Serialized({"serializer": _BY_REFERENCE}, [handle])


def _for_this_process(value: Any) -> Any:
    """Return a message in the form in which a peer in this process reads it.

    Serialized values get complete frames. Batches become lists, because the reader finds
    serialized values only in dicts and lists.
    """
    if type(value) is dict:
        return {key: _for_this_process(each) for key, each in value.items()}
    if type(value) in (tuple, list):
        if any(isinstance(each, dict | Serialized) for each in value):
            return [_for_this_process(each) for each in value]
        return value
    if isinstance(value, Serialized):
        return _whole(value)
    return value


def _whole(value: Serialized) -> Serialized | Serialize:
    header, frames = dict(value.header), list(value.frames)
    if header.get("serializer") == _BY_REFERENCE and frames and isinstance(frames[0], _Handle):
        return Serialize(frames[0].value)
    if "compression" in header:
        frames = decompress(header, frames)
        del header["compression"]
    counts = header.pop("split-num-sub-frames", None)
    offsets = header.pop("split-offsets", None)
    if counts is not None and offsets is not None:
        frames = [
            frames[offset] if count == 1 else bytearray().join(frames[offset : offset + count])
            for count, offset in zip(counts, offsets, strict=True)
        ]
    return Serialized(header, frames)
