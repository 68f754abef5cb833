"""Split a long batch into batches that are decoded one by one.

A peer that releases 200,000 futures, or has fetched 200,000 results, sends one frame of megabytes.
Decoding it at once takes a fifth of a second. Here only its outline is decoded first; each piece is
a frame of its own. The keys of a long ``update-graph`` are not decoded here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from .compression import Buffer
from .packed_keys import PackedKeys

#: Longer frames are split.
LONG_BATCH_NBYTES: Final = 128 * 2**10
#: Approximate size of a piece, which takes some milliseconds to decode.
PIECE_NBYTES = 64 * 2**10
#: Most messages of a piece.
PIECE_MESSAGES_MAX = 400
#: Keys of each message that a longer one of ``SPLIT_OPS`` is split into.
PIECE_KEYS = 1_000

#: Ops whose list of keys can be split into several messages with the same effect.
SPLIT_OPS = frozenset(("add-keys", "cancel-keys", "client-desires-keys", "client-releases-keys"))

#: The op whose keys, and the order of these, the event loop does not need.
PACKED_OP = "update-graph"
#: First byte of a map with a length of 2 or 4 bytes.
_LONG_MAPS = (0xDE, 0xDF)

_ERRORS = (msgspec.MsgspecError, ValueError, RecursionError)
_RAWS = msgspec.msgpack.Decoder(list[msgspec.Raw])
_FIELDS = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_TEXT = msgspec.msgpack.Decoder(str)
_ENCODER = msgspec.msgpack.Encoder()


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a long batch.

    Attributes:
        frame: a list of messages, which may refer to the other frames of the message as before.
        packed: fields that the only message lacks, by name. They are not decoded.
    """

    frame: bytes
    packed: Mapping[str, Any] = field(default_factory=dict)


def split_batch(frame: Buffer) -> Iterator[Piece] | None:
    """Return pieces that together have the messages of `frame`; None if it cannot be split."""
    if memoryview(frame).nbytes <= LONG_BATCH_NBYTES:
        return None
    try:
        raws = _RAWS.decode(frame)
    except _ERRORS:
        return None  # the codec reports the error
    return _pieces(raws) if raws else None


def _pieces(raws: list[msgspec.Raw]) -> Iterator[Piece]:
    part: list[Any] = []
    nbytes = 0
    for raw in raws:
        size = memoryview(raw).nbytes
        if part and (nbytes + size > PIECE_NBYTES or len(part) == PIECE_MESSAGES_MAX):
            yield Piece(_ENCODER.encode(part))
            part = []
            nbytes = 0
        if size > PIECE_NBYTES:
            yield from _split_message(raw)
        else:
            part.append(raw)
            nbytes += size
    if part:
        yield Piece(_ENCODER.encode(part))


def _split_message(raw: msgspec.Raw) -> Iterator[Piece]:
    """Yield one long message, split if it has a list of keys that can be sent in parts."""
    try:
        fields = _FIELDS.decode(raw)
        op = _TEXT.decode(fields["op"])
        keys = PackedKeys(fields["keys"]) if op in SPLIT_OPS or op == PACKED_OP else None
    except (*_ERRORS, KeyError):
        keys = None
    if keys is None or len(keys) <= PIECE_KEYS:
        yield Piece(_ENCODER.encode([raw]))
    elif op == PACKED_OP:
        yield _with_packed_keys(fields, keys)
    else:
        raws = _RAWS.decode(keys.raw)
        for first in range(0, len(raws), PIECE_KEYS):
            part = {**fields, "keys": raws[first : first + PIECE_KEYS]}
            yield Piece(_ENCODER.encode([part]))


def _with_packed_keys(fields: dict[str, msgspec.Raw], keys: PackedKeys) -> Piece:
    """Return the message of `fields`, without its keys and their order if that is long."""
    packed: dict[str, Any] = {"keys": keys}
    others: dict[str, Any] = {**fields, "keys": []}
    priority = fields.get("internal_priority")
    if priority is not None and memoryview(priority)[0] in _LONG_MAPS:
        packed["internal_priority"] = priority
        others["internal_priority"] = None
    return Piece(_ENCODER.encode([others]), packed)
