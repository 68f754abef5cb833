"""Payload: a value that passes through closed.

On the wire such a value is a placeholder in frame 0 and frames of its own: a header in msgpack, and what it describes.
Stock Dask has two kinds. ``{"__Serialized__": k}``: the header names a family of serializers ("pickle", "dask", ...).
``{"__Pickled__": k}``: the header itself holds a pickle, and the frames are its out-of-band buffers.

Nothing here unpickles.

Must not know: messages, connections, what a payload is for.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgpack
import msgspec

from .compression import EXPANSION_MAX_NBYTES, Buffer, expand
from .errors import RemoteProtocolError

Kind = Literal["serialized", "pickled"]

_BIN8, _BIN16, _BIN32 = 0xC4, 0xC5, 0xC6
_HEADER_START = b"\x82\xabpickled-obj"
_HEADER_END = b"\xaenum-sub-frames"
_NO_BUFFERS = _HEADER_END + b"\x00"

#: Names in headers, held here: msgpack interns those that it meets, and each would come and go again with every header.
_NAMES = tuple(
    map(
        sys.intern,
        (
            "compression", "frame-lengths", "is-collection", "num-sub-frames", "pickled-obj", "serializer", "split-num-sub-frames",
            "split-offsets", "sub-header", "sub-headers", "type-serialized", "writeable",
        ),
    )
)  # fmt: skip


class Payload:
    """A value that nobody opens on the way. Immutable by convention.

    Attributes:
        kind: "serialized" or "pickled".
        header: the msgpack header frame, verbatim.
        frames: what follows it, verbatim: still compressed, still in shards.
    """

    __slots__ = ("frames", "header", "kind")

    def __init__(self, kind: Kind, header: bytes, frames: tuple[Buffer, ...] = ()) -> None:
        self.kind: Kind = kind
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

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<Payload {self.kind}: {len(self.frames)} frames, {self.nbytes} bytes>"


class _SubFrames(msgspec.Struct, gc=False, rename={"count": "num-sub-frames"}):
    """All that must be known of a header to find its frames."""

    count: int


_SUB_FRAMES = msgspec.msgpack.Decoder(_SubFrames)


def count_frames(header: Buffer) -> int:
    """How many frames follow this header.

    Raises:
        RemoteProtocolError: the header does not say.
    """
    try:
        count = _SUB_FRAMES.decode(header).count
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RemoteProtocolError(f"the header of a payload is broken: {error}") from error
    if count < 0:
        raise RemoteProtocolError("the header of a payload claims a negative number of frames")
    return count


def pickled_header(pickled: bytes, n_buffers: int = 0) -> bytes:
    """The header frame of a "pickled" payload.

    Args:
        pickled: the pickle.
        n_buffers: how many out-of-band buffers follow as frames.
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
    """A payload of kind "pickled", which its reader unpickles at once (also the stock scheduler)."""
    frames = tuple(buffers)
    return Payload("pickled", pickled_header(pickled, len(frames)), frames)


def serialized_payload(header: dict[str, Any], frames: Sequence[Buffer]) -> Payload:
    """A payload of kind "serialized".

    Args:
        header: what the family needs, with its name under "serializer"; "num-sub-frames" is set here.
        frames: what it describes.
    """
    full = {**header, "num-sub-frames": len(frames)}
    packed: bytes = msgpack.packb(full, use_bin_type=True)
    return Payload("serialized", packed, tuple(frames))


def payload_header(payload: Payload) -> dict[str, Any]:
    """The payload's header, decoded as stock peers decode it (arrays are tuples).

    Raises:
        RemoteProtocolError: it is no msgpack map.
    """
    try:
        header = msgpack.unpackb(payload.header, use_list=False, strict_map_key=False, raw=False)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(f"the header of a payload is broken: {error}") from error
    if not isinstance(header, dict):
        raise RemoteProtocolError("the header of a payload is not a map")
    return header


def payload_pickle(
    payload: Payload, max_nbytes: int = EXPANSION_MAX_NBYTES
) -> tuple[bytes, list[Buffer]]:
    """Pickle and out-of-band buffers of a payload that holds a pickle: expanded, put together, not unpickled.

    Buffers are writable where the sender's were ("writeable" in the header of the "pickle" family).

    Args:
        max_nbytes: what all of it may become, bytes.

    Raises:
        RemoteProtocolError: the payload holds no pickle, is broken, or becomes too large.
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
                f"a payload of the family {header.get('serializer')!r} where a pickle is needed"
            )
        return bytes(pickled), buffers
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise RemoteProtocolError(
            f"a payload that should hold a pickle is broken: {error!r}"
        ) from error


def payload_bytes(payload: Payload, max_nbytes: int = EXPANSION_MAX_NBYTES) -> bytes:
    """The bytes of a payload that holds bytes, as stock closes them (exceptions in replies, for one, pickled).

    Args:
        max_nbytes: what they may become, bytes.

    Raises:
        RemoteProtocolError: the payload holds no bytes, is broken, or becomes too large.
    """
    header = payload_header(payload)
    if payload.kind != "serialized" or header.get("serializer") != "dask":
        raise RemoteProtocolError("a payload of another family where bytes are needed")
    if header.get("type") not in ("bytes", "bytearray"):
        raise RemoteProtocolError(f"a payload of the type {header.get('type')!r} where bytes are needed")
    try:
        return b"".join(_merged(header, _expanded(header, payload.frames, max_nbytes)))
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise RemoteProtocolError(f"a payload of bytes is broken: {error!r}") from error


def payload_members(
    payload: Payload, max_nbytes: int = EXPANSION_MAX_NBYTES
) -> tuple[str, list[tuple[Any, Payload]]] | None:
    """What a list, tuple, set or dict holds whose members were serialized one by one, each in a family of its own.

    Stock does so with collections that hold bytes, arrays and the like, at whatever depth, also for peers that read pickles
    alone (``distributed.protocol.serialize.serialize``).

    Args:
        max_nbytes: what all of it may become, bytes.

    Returns:
        The collection's kind ("list", "tuple", "set" or "dict"), and its members in order, each with its key (None but in a
        "dict"); members may be collections themselves. None: the payload is no such collection.

    Raises:
        RemoteProtocolError: the payload is broken, or becomes too large.
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
            # its compression is said once more in the header of the whole, and has been undone
            about = {name: x for name, x in sub.items() if name not in ("key", "compression")}
            members.append((sub.get("key"), serialized_payload(about, frames)))
            start += length
        return kind, members
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise RemoteProtocolError(f"a collection of payloads is broken: {error!r}") from error


def _expanded(header: dict[str, Any], frames: Sequence[Buffer], max_nbytes: int) -> list[Buffer]:
    """The frames without their compression."""
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
    """The frames without their sharding."""
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
    """The buffer, writable or not as its sender's was."""
    view = memoryview(buffer)
    if writeable and view.readonly:
        return memoryview(bytearray(view))
    if writeable is False and not view.readonly:
        return view.toreadonly()
    return view
