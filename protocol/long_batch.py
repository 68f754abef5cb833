"""Split a long batch into batches that are decoded one by one.

A peer that releases 200,000 futures, or has fetched 200,000 results, sends one frame of megabytes.
Decoding it at once takes a fifth of a second. Here only its outline is decoded first; each piece is
a frame of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from .compression import Buffer

#: Longer frames are split.
LONG_BATCH_NBYTES = 128 * 2**10
#: Approximate size of a piece, which takes some milliseconds to decode.
PIECE_NBYTES = 64 * 2**10
#: Most messages of a piece.
PIECE_MESSAGES_MAX = 400
#: Keys of each message that a longer one of ``SPLIT_OPS`` is split into.
PIECE_KEYS = 1_000

#: Ops whose list of keys can be split into several messages with the same effect.
SPLIT_OPS = frozenset(("add-keys", "cancel-keys", "client-desires-keys", "client-releases-keys"))

_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_RAWS = msgspec.msgpack.Decoder(list[msgspec.Raw])
_FIELDS = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_TEXT = msgspec.msgpack.Decoder(str)
_ENCODER = msgspec.msgpack.Encoder()


def split_batch(frame: Buffer) -> Iterator[bytes] | None:
    """Return frames that together have the messages of `frame`; None if it cannot be split.

    Each frame is a list of messages, which may refer to the other frames of the message as before.
    """
    if memoryview(frame).nbytes <= LONG_BATCH_NBYTES:
        return None
    try:
        raws = _RAWS.decode(frame)
    except _ERRORS:
        return None  # the codec reports the error
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
            yield from _split_message(raw)
        else:
            part.append(raw)
            nbytes += size
    if part:
        yield _ENCODER.encode(part)


def _split_message(raw: msgspec.Raw) -> Iterator[bytes]:
    """Yield one long message, split if it has a list of keys that can be sent in parts."""
    try:
        fields = _FIELDS.decode(raw)
        keys = _list_of_keys(fields["keys"]) if _TEXT.decode(fields["op"]) in SPLIT_OPS else []
    except (*_ERRORS, KeyError):
        keys = []
    if len(keys) <= PIECE_KEYS:
        yield _ENCODER.encode([raw])
        return
    for first in range(0, len(keys), PIECE_KEYS):
        yield _ENCODER.encode([{**fields, "keys": keys[first : first + PIECE_KEYS]}])


def _list_of_keys(keys: msgspec.Raw) -> list[msgspec.Raw]:
    """Return the keys of a list, or of a set as stock encodes it."""
    try:
        return _RAWS.decode(keys)
    except _ERRORS:
        return _RAWS.decode(_FIELDS.decode(keys)["as-list"])
