"""The handshake: the first message in each direction, and what both ends agree on.

Either end sends ``{"compression": name or None, "python": [3, 11, 7], "pickle-protocol": 5}``.

What the scheduler announces must hold for *every* reader of what the peer then sends, because the
scheduler forwards serialized values: a worker reads later what a client sends now. Therefore:

- Compression: None. A frame compressed for the scheduler could reach a worker without that codec.
- Pickle protocol: 5, both to peers that connect and to peers that the scheduler connects to.
  Protocol 5 came with Python 3.8, and every supported release of distributed needs 3.10, so each
  peer reads it. It matters because values that a client scatters, results that the scheduler
  gathers and exceptions are pickled with the *agreed* protocol, and only from 5 on are large
  buffers sent out of band, without a copy. (A client's expression and all ``__Pickled__`` fields
  use the sender's highest protocol, whatever was agreed.) If a protocol 6 is added, the one to
  announce is the lowest that any peer has announced.
- Encodings: ``"encodings": ["in-place"]`` is an extension of paceline (``values.py``), sent only
  on request. Stock ignores unknown keys (``Comm.handshake_configuration``) and never sends this
  one, so the stock encoding is always used with a stock peer.

Stock's scheduler announces 5 and the configured compression where it listens, and 4 to the workers
that it connects to, so that results gathered through it are pickled in band.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from .compression import Buffer
from .errors import RemoteProtocolError

#: The pickle protocol to announce, which all peers read.
PICKLE_PROTOCOL = 5
#: Encodings of values: the one of every peer, and one that two peers of paceline may agree on.
Encoding = Literal["stock", "in-place"]
IN_PLACE: Encoding = "in-place"


_Plain = bool | int | float | str | None
_VALUE = msgspec.msgpack.Decoder(_Plain | list[_Plain])
_ENTRIES = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


@dataclass(frozen=True, slots=True)
class Agreement:
    """The options that both ends of a connection support.

    Attributes:
        pickle_protocol: highest pickle protocol.
        encoding: how values are encoded in frames.
    """

    pickle_protocol: int = PICKLE_PROTOCOL
    encoding: Encoding = "stock"


def local_offer(in_place: bool = False) -> dict[str, Any]:
    """Return this end's handshake. The default is safe for any peer (see above)."""
    offer: dict[str, Any] = {
        "compression": None,
        "python": tuple(sys.version_info[:3]),
        "pickle-protocol": PICKLE_PROTOCOL,
    }
    if in_place:
        offer["encodings"] = [IN_PLACE]
    return offer


def read_handshake(frames: Sequence[Buffer]) -> dict[str, Any]:
    """Return the entries of a handshake, arrays as tuples.

    The sender is not authenticated, so only entries with a plain value or an array of these are
    decoded. Others are ignored: maps whose keys collide would block the reader.

    Raises:
        RemoteProtocolError: the message is not a handshake.
    """
    try:
        entries = _ENTRIES.decode(frames[0])
    except (*_ERRORS, IndexError) as error:
        raise RemoteProtocolError("the first message is not a handshake") from error
    handshake: dict[str, Any] = {}
    for name, raw in entries.items():
        try:
            value = _VALUE.decode(raw)
        except _ERRORS:
            continue
        handshake[name] = tuple(value) if isinstance(value, list) else value
    return handshake


def negotiate(local: Mapping[str, Any], remote: Any) -> Agreement:
    """Return what both ends support.

    Args:
        local: this end's handshake.
        remote: the peer's handshake, as received.

    Raises:
        RemoteProtocolError: `remote` is not a handshake of a supported release.
    """
    if not isinstance(remote, Mapping):
        raise RemoteProtocolError("the first message is not a handshake")
    theirs = remote.get("pickle-protocol")
    if type(theirs) is not int or theirs < 0:
        raise RemoteProtocolError(
            "the handshake has no pickle protocol: the versions of Dask may not be in sync"
        )
    encoding = IN_PLACE if offers_in_place(local) and offers_in_place(remote) else "stock"
    return Agreement(min(local["pickle-protocol"], theirs), encoding)


def offers_in_place(offer: Any) -> bool:
    """Return whether the handshake `offer`, as received, offers the in-place encoding."""
    encodings = offer.get("encodings") if isinstance(offer, Mapping) else None
    return isinstance(encodings, list | tuple) and IN_PLACE in encodings
