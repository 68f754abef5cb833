"""The one adaptor to ``distributed.comm``: for ``inproc://`` and schemes that packages register under ``distributed.comm.backends``.

Such a comm gives and takes messages, not frames; here they become each other. To do that distributed opens what was pickled in
place, so that these schemes, but for ``inproc`` where the peer is in this very process, are refused where pickles stay closed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from distributed import protocol
from distributed.comm.registry import get_backend
from distributed.protocol.compression import decompress
from distributed.protocol.serialize import Serialize, Serialized, serialize_and_split
from paceline.workers_compat.security.unpickling import check_allowed

INPROC = "inproc"
#: What distributed says for "no security".
NO_ARGUMENTS = {"ssl_context": None, "require_encryption": False}


def listener(
    scheme: str,
    location: str,
    handle: Callable[[Any], Awaitable[None]],
    arguments: dict[str, Any] | None,
) -> Any:
    """A listener of the scheme's, not started; ``handle`` is given each comm before anything was said on it.

    Args:
        arguments: of ``Security.get_listen_args``.

    Raises:
        ValueError: nobody registered the scheme, or it may not be used here.
    """
    made = _backend(scheme).get_listener(location, handle, False, **(arguments or NO_ARGUMENTS))
    made.on_connection = lambda comm, *_, **__: _Done()  # the handshake is ours
    return made


def connect(scheme: str, location: str, arguments: dict[str, Any] | None) -> Awaitable[Any]:
    """A comm on which nothing was said.

    Args:
        arguments: of ``Security.get_connection_args``.

    Raises:
        ValueError: nobody registered the scheme, or it may not be used here.
    """
    connector = _backend(scheme).get_connector()
    return connector.connect(location, deserialize=False, **(arguments or NO_ARGUMENTS))  # type: ignore[no-any-return]


def resolve(scheme: str, location: str) -> str:
    """The location in the form that the scheme knows it by; as it is where nobody knows the scheme."""
    try:
        return str(get_backend(scheme).resolve_address(location))
    except Exception:
        return location


def host(scheme: str, location: str) -> str:
    """The host that a location is on; the location itself where nobody knows."""
    try:
        return str(get_backend(scheme).get_address_host(location))
    except Exception:
        return location


def same_host(comm: Any) -> bool:
    """Return whether both ends are on one host, if the comm knows."""
    try:
        return bool(comm.same_host)
    except Exception:
        return False


def to_message(frames: Sequence[Any], scheme: str) -> Any:
    """Convert a message for `Comm.write`; serialized values are not deserialized."""
    message = protocol.loads(list(frames), deserialize=False)
    return _for_this_process(message) if scheme == INPROC else message


def to_frames(message: Any, scheme: str = "") -> list[Any]:
    """Convert a message from `Comm.read` to the form that sockets deliver."""
    return list(protocol.dumps(_closed(message) if scheme == INPROC else message))


def _backend(scheme: str) -> Any:
    if scheme != INPROC:
        check_allowed(f"what is pickled in messages over {scheme}://, which distributed reads")
    return get_backend(scheme)


class _Handle(bytes):
    """A frame for a value that cannot leave this process (a lock, an open file): whoever reads it here gets the value itself, as with
    stock's ``inproc``. It passes through the scheduler as other frames do, and lives as long as its message.

    Attributes:
        value: that one.
    """

    value: Any


#: "serializer" of a closed value whose frame is a ``_Handle``. A peer outside this process is told that it knows no such family.
_BY_REFERENCE = "this-process"


def _closed(value: Any) -> Any:
    """Values that are to be serialized and cannot be are replaced by handles; the others are serialized here, once."""
    if type(value) is dict:
        return {key: _closed(each) for key, each in value.items()}
    if type(value) in (tuple, list):
        return type(value)([_closed(each) for each in value])
    if not isinstance(value, Serialize):
        return value
    try:
        return Serialized(*serialize_and_split(value, on_error="raise"))
    except Exception:
        handle = _Handle()
        handle.value = value.data
        return Serialized({"serializer": _BY_REFERENCE}, [handle])


def _for_this_process(value: Any) -> Any:
    """Nobody will put it into frames and back: closed values get whole frames, and batches are lists, for the reader looks for closed
    values in dictionaries and lists alone."""
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


class _Done:
    """An awaitable that has nothing to wait for."""

    def __await__(self) -> Any:
        return iter(())
