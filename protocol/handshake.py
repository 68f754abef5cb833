"""What both sides of a connection say first, and what follows from it.

Either side sends ``{"compression": name or None, "python": [3, 11, 7], "pickle-protocol": 5}`` as its first message.

What we announce is a promise about *every* reader of what the peer then sends, because the scheduler passes values on
closed: what a client sends now, a worker reads later. Therefore:

- Compression: None. A frame that was compressed for us could reach a worker without that codec.
- Pickle protocol: 5, to those who dial us and to those whom we dial. Protocol 5 came with Python 3.8, and every release of
  distributed that paceline speaks needs 3.10, so each peer reads it. It matters: values that a client scatters, results
  that the scheduler gathers and exceptions are pickled with the *agreed* protocol, and only from 5 on large buffers
  travel out of band, uncopied. (A client's expression and all ``__Pickled__`` fields use the sender's highest protocol
  whatever was agreed.) Should a protocol 6 come, what may be announced is the least of what all peers have said:
  ``least_pickle_protocol``.

- Encodings: ``"encodings": ["in-place"]`` is a word of ours (``in_place.py``), said only when asked for. Stock looks at no key that it
  does not know (``Comm.handshake_configuration``) and never says this one, so a stock peer is always spoken to in the stock encoding.

Stock means to announce ``"pickle-protocol": 4, "compression": None`` where the scheduler listens (``Scheduler.start_unsafe``), but
its TCP listener drops these overrides: it announces 5 and the configured compression there. To workers that it dials
it announces 4, so results gathered through a stock scheduler are pickled in band. Both are seen in captures (a test
holds them), and both were weighed for the choice here.

Must not know: sockets, messages.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .compression import is_available
from .errors import RemoteProtocolError

#: What all peers read, and what we announce.
PICKLE_PROTOCOL = 5
#: Ways to put values into frames: what every peer speaks, and what two of ours may agree on.
Encoding = Literal["stock", "in-place"]
IN_PLACE: Encoding = "in-place"


@dataclass(frozen=True, slots=True)
class Agreement:
    """What both sides of a connection can.

    Attributes:
        compression: codec that payload frames may be compressed with, or None.
        pickle_protocol: highest protocol of pickles.
        python: version of the peer's Python; () where it does not say.
        encoding: how values are put into frames.
    """

    compression: str | None = None
    pickle_protocol: int = PICKLE_PROTOCOL
    python: tuple[int, ...] = ()
    encoding: Encoding = "stock"


def local_offer(
    compression: str | None = None,
    pickle_protocol: int = PICKLE_PROTOCOL,
    python: tuple[int, ...] | None = None,
    in_place: bool = False,
) -> dict[str, Any]:
    """What we say. The defaults are safe for any peer (see above)."""
    offer: dict[str, Any] = {
        "compression": compression,
        "python": tuple(sys.version_info[:3]) if python is None else python,
        "pickle-protocol": pickle_protocol,
    }
    if in_place:
        offer["encodings"] = [IN_PLACE]
    return offer


def least_pickle_protocol(announced: Iterable[int], ours: int = PICKLE_PROTOCOL) -> int:
    """The highest protocol that all peers read, and so the highest that may be announced to new ones."""
    return min([ours, *announced])


def negotiate(local: Mapping[str, Any], remote: Any, same_host: bool = False) -> Agreement:
    """What follows from both sides' words.

    Args:
        local: what we said.
        remote: what the peer said, as it came.
        same_host: compressing would be a waste of time.

    Raises:
        RemoteProtocolError: the peer did not say what a supported release says.
    """
    if not isinstance(remote, Mapping):
        raise RemoteProtocolError("the first message is not a handshake")
    theirs = remote.get("pickle-protocol")
    if type(theirs) is not int or theirs < 0:
        raise RemoteProtocolError(
            "the handshake names no pickle protocol: the versions of Dask may not be in sync"
        )
    compression = local["compression"]
    if same_host or compression != remote.get("compression"):
        compression = None
    if not isinstance(compression, str) or not is_available(compression):
        compression = None
    python = remote.get("python")
    if not isinstance(python, tuple | list) or not all(type(part) is int for part in python):
        python = ()
    encoding = IN_PLACE if offers_in_place(local) and offers_in_place(remote) else "stock"
    return Agreement(compression, min(local["pickle-protocol"], theirs), tuple(python), encoding)


def offers_in_place(offer: Any) -> bool:
    """Whether this handshake, as it came, offers the second encoding."""
    encodings = offer.get("encodings") if isinstance(offer, Mapping) else None
    return isinstance(encodings, list | tuple) and IN_PLACE in encodings
