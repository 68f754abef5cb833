"""A batch of many messages, or of messages with very many keys, cut into batches that are decoded one by one.

A peer that drops 200,000 futures, or has fetched 200,000 results, says so in one frame of megabytes. To decode that in one
go takes a fifth of a second. Here only its outline is read at once; each piece is a whole frame of its own.

Must not know: what the messages mean; who decodes the pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from .compression import Buffer

#: A longer frame of messages is cut.
LONG_BATCH_NBYTES = 128 * 2**10
#: A piece is about as long; it is some milliseconds of decoding.
PIECE_NBYTES = 64 * 2**10
#: A piece has no more messages than this.
PIECE_MESSAGES_MAX = 400
#: A message of one of ``CUT_OPS`` becomes several with as many keys each.
PIECE_KEYS = 1_000

#: Messages that say the same when their list of keys is said in parts.
CUT_OPS = frozenset(("add-keys", "cancel-keys", "client-desires-keys", "client-releases-keys"))

_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_RAWS = msgspec.msgpack.Decoder(list[msgspec.Raw])
_FIELDS = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_TEXT = msgspec.msgpack.Decoder(str)
_ENCODER = msgspec.msgpack.Encoder()


def pieces_of(frame: Buffer) -> Iterator[bytes] | None:
    """Frames that say together what this one says; None where it is short, or not to be cut.

    Each holds a list of messages, and may refer to the other frames of the message as this one does.
    """
    if memoryview(frame).nbytes <= LONG_BATCH_NBYTES:
        return None
    try:
        raws = _RAWS.decode(frame)
    except _ERRORS:
        return None  # whoever decodes it whole finds out what it is
    return _pieces(raws) if raws else None


def _pieces(raws: list[msgspec.Raw]) -> Iterator[bytes]:
    part: list[Any] = []
    nbytes = 0
    for raw in raws:
        size = memoryview(raw).nbytes
        if part and (nbytes + size > PIECE_NBYTES or len(part) == PIECE_MESSAGES_MAX):
            yield _ENCODER.encode(part)
            part = []
            nbytes = 0
        if size > PIECE_NBYTES:
            yield from _cut(raw)
        else:
            part.append(raw)
            nbytes += size
    if part:
        yield _ENCODER.encode(part)


def _cut(raw: msgspec.Raw) -> Iterator[bytes]:
    """One long message, in parts where it has keys that can be said in parts."""
    try:
        fields = _FIELDS.decode(raw)
        keys = _listed(fields["keys"]) if _TEXT.decode(fields["op"]) in CUT_OPS else []
    except (*_ERRORS, KeyError):
        keys = []
    if len(keys) <= PIECE_KEYS:
        yield _ENCODER.encode([raw])
        return
    for first in range(0, len(keys), PIECE_KEYS):
        yield _ENCODER.encode([{**fields, "keys": keys[first : first + PIECE_KEYS]}])


def _listed(keys: msgspec.Raw) -> list[msgspec.Raw]:
    """The keys of a list, or of a set as stock says it."""
    try:
        return _RAWS.decode(keys)
    except _ERRORS:
        return _RAWS.decode(_FIELDS.decode(keys)["as-list"])
