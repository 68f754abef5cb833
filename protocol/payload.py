"""Payloads: values that the scheduler forwards without deserializing them.

On the wire such a value is a placeholder in frame 0, and frames of its own: a msgpack header, and
the data that it describes. Stock Dask has two kinds. ``{"__Serialized__": k}``: the header names a
family of serializers ("pickle", "dask", ...). ``{"__Pickled__": k}``: the header itself contains a
pickle, and the frames are its out-of-band buffers.

Nothing here unpickles.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgpack
import msgspec

from .compression import EXPANSION_MAX_NBYTES, Buffer, expand
from .errors import RemoteProtocolError

PayloadKind = Literal["serialized", "pickled"]

_BIN8, _BIN16, _BIN32 = 0xC4, 0xC5, 0xC6
_HEADER_START = b"\x82\xabpickled-obj"
_HEADER_END = b"\xaenum-sub-frames"
_NO_BUFFERS = _HEADER_END + b"\x00"

#: Names in headers. msgpack interns names while it decodes; keeping them here avoids that they are
#: interned and freed again with every header.
_NAMES = tuple(
    map(
        sys.intern,
        (
            *("compression", "frame-lengths", "is-collection", "num-sub-frames", "pickled-obj"),
            *("serializer", "split-num-sub-frames", "split-offsets", "sub-header", "sub-headers"),
            *("type-serialized", "writeable"),
        ),
    )
)


class Payload:
    """A serialized value. Immutable by convention.

    Attributes:
        kind: "serialized" or "pickled".
        header: the msgpack header frame, verbatim.
        frames: the frames after it, verbatim: still compressed and sharded.
    """

    __slots__ = ("frames", "header", "kind")

    def __init__(self, kind: PayloadKind, header: bytes, frames: tuple[Buffer, ...] = ()) -> None:
        self.kind: PayloadKind = kind
        self.header = header
        self.frames = frames

    @property
    def nbytes(self) -> int:
        """Size of header and frames, bytes."""
        total = len(self.header)
        for frame in self.frames:
            total += frame.nbytes if isinstance(frame, memoryview) else len(frame)
        return total

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Payload):
            return NotImplemented
        return (
            self.kind == other.kind and self.header == other.header and self.frames == other.frames
        )

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __repr__(self) -> str:
        return f"<Payload {self.kind}: {len(self.frames)} frames, {self.nbytes} bytes>"


class FrameClaims:
    """The frames of one message that already belong to a payload.

    A frame belongs to at most one payload. Otherwise a short message whose placeholders share
    frames could become many times larger than what was received, in memory and when it is
    forwarded.

    Args:
        n_frames: number of frames of the message.
    """

    __slots__ = ("_claimed", "_ranges")

    def __init__(self, n_frames: int) -> None:
        self._claimed = bytearray(n_frames)
        self._ranges: list[tuple[int, int]] = []

    def __len__(self) -> int:
        """Return the number of claims."""
        return len(self._ranges)

    def claim(self, start: int, stop: int) -> None:
        """Claim the frames from `start` up to `stop` for a payload.

        Raises:
            RemoteProtocolError: one of them belongs to another payload.
        """
        shared = self._claimed.find(1, start, stop)
        if shared >= 0:
            raise RemoteProtocolError(f"two placeholders share frame {shared}")
        self._claimed[start:stop] = b"\1" * (stop - start)
        self._ranges.append((start, stop))

    def undo(self, n_claims: int) -> None:
        """Undo all claims but the first `n_claims`."""
        for start, stop in self._ranges[n_claims:]:
            self._claimed[start:stop] = bytes(stop - start)
        del self._ranges[n_claims:]


#: The part of a header that is needed to find its frames. A class statement would lose its options
#: when mypyc compiles it.
_SubFrames: Any = msgspec.defstruct(
    "_SubFrames", [("count", int)], gc=False, rename={"count": "num-sub-frames"}
)
_SUB_FRAMES: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(_SubFrames)


def count_frames(header: Buffer) -> int:
    """Return the number of frames that follow `header`.

    Raises:
        RemoteProtocolError: the header does not contain it.
    """
    try:
        count: int = _SUB_FRAMES.decode(header).count
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"the header of a payload is corrupt: {error}") from error
    if count < 0:
        raise RemoteProtocolError("the header of a payload claims a negative number of frames")
    return count


def pickled_header(pickled: bytes, n_buffers: int = 0) -> bytes:
    """Return the header frame of a "pickled" payload.

    Args:
        pickled: the pickle.
        n_buffers: number of out-of-band buffers that follow as frames.
    """
    size = len(pickled)
    if size < 0x100:
        head = _HEADER_START + bytes((_BIN8, size))
    elif size < 0x10000:
        head = _HEADER_START + bytes((_BIN16,)) + size.to_bytes(2, "big")
    else:
        head = _HEADER_START + bytes((_BIN32,)) + size.to_bytes(4, "big")
    if not n_buffers:
        return head + pickled + _NO_BUFFERS
    return head + pickled + _HEADER_END + msgspec.msgpack.encode(n_buffers)


def pickled_payload(pickled: bytes, buffers: Iterable[Buffer] = ()) -> Payload:
    """Return a payload of kind "pickled", which any reader (stock's scheduler, too) unpickles."""
    frames = tuple(buffers)
    return Payload("pickled", pickled_header(pickled, len(frames)), frames)


def serialized_payload(header: dict[str, Any], frames: Sequence[Buffer]) -> Payload:
    """Return a payload of kind "serialized".

    Args:
        header: what the family needs, with its name under "serializer"; "num-sub-frames" is set
            here.
        frames: the data.
    """
    full = {**header, "num-sub-frames": len(frames)}
    packed: bytes = msgpack.packb(full, use_bin_type=True)
    return Payload("serialized", packed, tuple(frames))


def payload_header(payload: Payload) -> dict[str, Any]:
    """Return the payload's header, decoded as stock peers decode it (arrays are tuples).

    Raises:
        RemoteProtocolError: it is not a msgpack map.
    """
    try:
        header = msgpack.unpackb(payload.header, use_list=False, strict_map_key=False, raw=False)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(f"the header of a payload is corrupt: {error}") from error
    if not isinstance(header, dict):
        raise RemoteProtocolError("the header of a payload is not a map")
    return header


def payload_pickle(
    payload: Payload, max_nbytes: int = EXPANSION_MAX_NBYTES
) -> tuple[bytes, list[Buffer]]:
    """Return the decompressed pickle and out-of-band buffers of a payload, not unpickled.

    Buffers are writable if the sender's were ("writeable" in the header of the "pickle" family).

    Args:
        payload: the payload.
        max_nbytes: limit of the decompressed size, bytes.

    Raises:
        RemoteProtocolError: the payload does not contain a pickle, is corrupt, or is too large.
    """
    header = payload_header(payload)
    try:
        if payload.kind == "pickled":
            pickled = header["pickled-obj"]
            buffers = _expanded(header, payload.frames, max_nbytes)
        elif header.get("serializer") == "pickle":
            parts = _expanded(header, payload.frames, max_nbytes)
            pickled, *buffers = _merged(header, parts)
            flags = header.get("writeable") or (None,) * len(buffers)
            buffers = [_with_flag(b, w) for b, w in zip(buffers, flags, strict=True)]
        else:
            raise RemoteProtocolError(
                f"expected a pickle, got a payload of the family {header.get('serializer')!r}"
            )
        return bytes(pickled), buffers
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise RemoteProtocolError(
            f"a payload that should contain a pickle is corrupt: {error!r}"
        ) from error


def payload_bytes(payload: Payload, max_nbytes: int = EXPANSION_MAX_NBYTES) -> bytes:
    """Return the bytes of a payload of bytes, such as a pickled exception in a reply.

    Args:
        payload: the payload.
        max_nbytes: limit of the decompressed size, bytes.

    Raises:
        RemoteProtocolError: the payload does not contain bytes, is corrupt, or is too large.
    """
    header = payload_header(payload)
    if payload.kind != "serialized" or header.get("serializer") != "dask":
        raise RemoteProtocolError("expected bytes, got a payload of another family")
    if header.get("type") not in ("bytes", "bytearray"):
        raise RemoteProtocolError(
            f"expected bytes, got a payload of the type {header.get('type')!r}"
        )
    try:
        return b"".join(_merged(header, _expanded(header, payload.frames, max_nbytes)))
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise RemoteProtocolError(f"a payload of bytes is corrupt: {error!r}") from error


def payload_members(
    payload: Payload, max_nbytes: int = EXPANSION_MAX_NBYTES
) -> tuple[str, list[tuple[Any, Payload]]] | None:
    """Return the members of a collection whose members were serialized one by one.

    Stock serializes collections so that contain bytes, arrays and the like, at any depth, also for
    peers that read only pickles (``distributed.protocol.serialize.serialize``). Each member has its
    own family of serializers.

    Args:
        payload: the payload.
        max_nbytes: limit of the decompressed size, bytes.

    Returns:
        The collection's kind ("list", "tuple", "set" or "dict"), and its members in order, each
        with its key (None except in a "dict"); members may be collections themselves. None if the
        payload is not such a collection.

    Raises:
        RemoteProtocolError: the payload is corrupt, or too large.
    """
    header = payload_header(payload)
    if payload.kind != "serialized" or "is-collection" not in header:
        return None
    try:
        kind = header["type-serialized"]
        if kind not in ("list", "tuple", "set", "dict"):
            raise ValueError(f"a collection of the kind {kind!r}")
        parts = _merged(header, _expanded(header, payload.frames, max_nbytes))
        members, start = [], 0
        for sub, length in zip(header["sub-headers"], header["frame-lengths"], strict=True):
            frames = parts[start : start + length]
            if length < 0 or len(frames) != length:
                raise ValueError("frames are missing")
            # the header of the collection repeats the compression, which is undone already
            about = {name: x for name, x in sub.items() if name not in ("key", "compression")}
            members.append((sub.get("key"), serialized_payload(about, frames)))
            start += length
        return kind, members
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise RemoteProtocolError(f"a collection of payloads is corrupt: {error!r}") from error


def _expanded(header: dict[str, Any], frames: Sequence[Buffer], max_nbytes: int) -> list[Buffer]:
    """Decompress `frames`."""
    names = header.get("compression")
    if not names:
        return list(frames)
    left = max_nbytes
    expanded = []
    for name, frame in zip(names, frames, strict=True):
        whole = expand(name, frame, left)
        left -= len(whole)
        expanded.append(whole)
    return expanded


def _merged(header: dict[str, Any], parts: list[Buffer]) -> list[Buffer]:
    """Join the shards of `parts`."""
    counts = header.get("split-num-sub-frames")
    if counts is None:
        return parts
    merged = []
    for count, offset in zip(counts, header["split-offsets"], strict=True):
        shards = parts[offset : offset + count]
        if len(shards) != count:
            raise ValueError("shards are missing")
        merged.append(shards[0] if count == 1 else bytearray().join(shards))
    return merged


def _with_flag(buffer: Buffer, writeable: bool | None) -> Buffer:
    """Return `buffer`, writable or not as its sender's was."""
    view = memoryview(buffer)
    if writeable and view.readonly:
        return memoryview(bytearray(view))
    if writeable is False and not view.readonly:
        return view.toreadonly()
    return view
