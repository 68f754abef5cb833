"""The in-place encoding: a placeholder contains its value's header and the position of its frames.

A stock placeholder is the index of a header frame, which must be decoded to know how many frames
follow it. Here the placeholder has all of it, so that a reader in a static language needs one
pass, and no frame is used for a header::

    {"__Serialized__": [header, first, count]}        {"__Pickled__": [header, first, count]}

``header`` is the header as bytes (msgpack ``bin``), the same bytes that stock puts in a frame.
``first`` is the index of the value's first frame in the message, ``count`` the number of its
frames. A value without frames is ``[header, 0, 0]``. Everything else is as in the stock encoding:
frame 0, sets, enums, and headers with their compression and shards. ``count`` equals the header's
"num-sub-frames".

It is used only if both ends have sent ``"encodings": ["in-place"]`` in their handshakes
(``handshake.py``), which stock peers never do. Both codecs encode and decode the same typed
messages. ``fields_of`` lists which fields of a message are inline and which are offloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from .codec import Codec
from .compression import Buffer
from .errors import RemoteProtocolError
from .payload import FrameClaims, Payload, PayloadKind, count_frames
from .values import PLACEHOLDERS, ValueReader, ValueWriter

#: Where a field's value is: in frame 0, in frames of its own that a placeholder refers to, or
#: either (an untyped value that may contain placeholders).
Place = Literal["inline", "offloaded", "either"]


@dataclass(frozen=True, slots=True)
class Attribute:
    """One field of a message, as an encoding places it.

    Attributes:
        name: on the wire.
        place: where the value is.
        optional: whether it may also be None, inline.
    """

    name: str
    place: Place
    optional: bool = False


def fields_of(cls: type[msgspec.Struct]) -> tuple[Attribute, ...]:
    """Return where the value of each field of `cls` is. Both encodings place values alike."""
    return tuple(
        Attribute(field.encode_name, *_place(field.type)) for field in msgspec.structs.fields(cls)
    )


def _place(hint: Any) -> tuple[Place, bool]:
    if hint is Payload:
        return "offloaded", False
    if hint == Payload | None:
        return "offloaded", True
    return ("either", False) if _holds_anything(hint) else ("inline", False)


def _holds_anything(hint: Any) -> bool:
    """Return whether a value of type `hint` may contain a payload."""
    if hint is Any or hint is Payload:
        return True
    args = getattr(hint, "__args__", ())
    if getattr(hint, "__origin__", None) is dict:  # keys are never serialized values
        args = args[1:]
    return any(_holds_anything(x) for x in args)


def payload_in_place(
    kind: PayloadKind, place: Any, frames: Sequence[Buffer], claims: FrameClaims
) -> Payload:
    """Return the payload of a placeholder in this encoding.

    Raises:
        RemoteProtocolError: the placeholder is invalid, or its frames are missing.
    """
    if not isinstance(place, list | tuple) or len(place) != 3:
        raise RemoteProtocolError("a placeholder is not [header, first, count]")
    header, first, count = place
    if type(header) is not bytes or type(first) is not int or type(count) is not int:
        raise RemoteProtocolError("a placeholder is not [header, first, count]")
    if count != count_frames(header):
        raise RemoteProtocolError(
            f"a placeholder claims {count} frames, but its header claims another number"
        )
    if not count:
        return Payload(kind, header)
    if not 0 < first <= len(frames) - count:
        raise RemoteProtocolError(
            f"a placeholder points to {count} frames from {first} on, of {len(frames)}"
        )
    claims.claim(first, first + count)
    return Payload(kind, header, tuple(frames[first : first + count]))


class InPlaceReader(ValueReader):
    """Reads the values of one message in this encoding."""

    __slots__ = ()

    payload_of = staticmethod(payload_in_place)


class InPlaceWriter(ValueWriter):
    """Encodes one message in this encoding."""

    __slots__ = ()

    def convert(self, value: Any) -> Any:
        """See ``ValueWriter.convert``."""
        if not isinstance(value, Payload):
            return super().convert(value)
        count = len(value.frames)
        first = len(self.frames) if count else 0
        self.frames.extend(value.frames)
        return {PLACEHOLDERS[value.kind]: (value.header, first, count)}


class InPlaceCodec(Codec):
    """A ``Codec`` for this encoding: same methods, same messages, same errors."""

    __slots__ = ()

    READER = InPlaceReader
    WRITER = InPlaceWriter
