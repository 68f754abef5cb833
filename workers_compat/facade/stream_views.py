"""Views of the streams of workers and clients, and of their connections."""

from __future__ import annotations

from typing import Any

from distributed.comm import CommClosedError
from paceline.protocol.catalogue import TABLES

from .stock_calls import StockCoroutine


class StreamView:
    """The stream of a worker or client, with the methods of stock's ``BatchedSend``."""

    __slots__ = ("_stream",)

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @property
    def comm(self) -> CommView:
        return CommView(self._stream.peer)

    def closed(self) -> bool:
        return bool(self._stream.ended or self._stream.peer.closed)

    def send(self, *messages: Any) -> None:
        """Send messages (dicts in wire format). Raise CommClosedError if the stream is closed."""
        if self.closed():
            raise CommClosedError(f"Comm {self.comm!r} already closed.")
        direction = f"scheduler_to_{self._stream.ROLE}"
        self._stream.send_own([build_message(direction, message) for message in messages])

    def abort(self) -> None:
        """Close the connection without waiting for what is buffered."""
        self.comm.abort()


class CommView:
    """The connection of a stream, with attributes of stock's ``Comm``."""

    __slots__ = ("_peer",)

    def __init__(self, peer: Any) -> None:
        self._peer = peer

    peer_address = property(lambda self: self._peer.comm.facts.peer_address)
    local_address = property(lambda self: self._peer.comm.facts.local_address)

    def __repr__(self) -> str:
        return f"<Comm local={self.local_address} remote={self.peer_address}>"

    def closed(self) -> bool:
        return bool(self._peer.closed)

    def abort(self) -> None:
        """Close the connection at once."""
        self._peer.comm.abort("aborted by a program")


class RequestComm(CommView):
    """The connection of a request, for functions in ``handlers`` that take one.

    It has no ``read``. ``peer`` is the server's object, for the built-in handlers.
    """

    __slots__ = ()

    @property
    def peer(self) -> Any:
        return self._peer

    def write(self, msg: Any, serializers: Any = None, on_error: Any = None) -> StockCoroutine:
        """Send a message. Await until the peer reads. Raise CommClosedError without connection."""
        if self.closed():
            raise CommClosedError(f"{self!r} is closed")
        self._peer.send(msg)
        return StockCoroutine(self._peer.drained())


def build_message(direction: Any, message: Any) -> Any:
    """Return a stream message from its dict. One with an unknown op remains a dict."""
    if not isinstance(message, dict):
        return message
    known = TABLES[direction].get(str(message.get("op")))
    if known is None:
        return message
    renamed: Any = dict(zip(known.cls.__struct_encode_fields__, known.cls.__struct_fields__))
    fields = {renamed.get(name, str(name)): message[name] for name in message if name != "op"}
    return known.cls(**fields)
