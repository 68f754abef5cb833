"""Decompress single frames. Their size is known or estimated before, and limited.

Nothing is compressed here: values are forwarded as they are received.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any

from .errors import RemoteProtocolError

Buffer = bytes | bytearray | memoryview

#: Default limit of a decompressed frame, bytes.
EXPANSION_MAX_NBYTES = 2**32
#: lz4 cannot exceed 255:1, so a size prefix that claims more is invalid.
LZ4_RATIO_MAX = 255
#: Codec -> its module, in the order of preference of stock's ``auto``.
MODULES = {"lz4": "lz4.block", "snappy": "snappy", "zstd": "zstandard", "zlib": "zlib"}


def expand(name: str | None, frame: Buffer, max_nbytes: int = EXPANSION_MAX_NBYTES) -> Buffer:
    """Return `frame` decompressed with the codec `name`; None if it is not compressed.

    Raises:
        RemoteProtocolError: the codec is unknown or not installed, the frame is corrupt, or it
            would exceed `max_nbytes`.
    """
    if name is None:
        return frame
    expander = _EXPANDERS.get(name)
    if expander is None:
        raise RemoteProtocolError(f"a frame is compressed with {name!r}, an unknown codec")
    try:
        return expander(frame, max_nbytes)
    except RemoteProtocolError:
        raise
    except Exception as error:  # each codec has its own exceptions
        raise RemoteProtocolError(
            f"a frame compressed with {name!r} is corrupt: {error}"
        ) from error


def _codec(name: str) -> Any:
    """Import the module of the codec `name`."""
    try:
        return import_module(MODULES[name])
    except ImportError:
        raise RemoteProtocolError(f"the codec {name!r} is not installed") from None


def _check(claimed_nbytes: int, max_nbytes: int) -> None:
    if claimed_nbytes > max_nbytes:
        raise RemoteProtocolError(
            f"a compressed frame would become {claimed_nbytes} bytes; the limit is {max_nbytes}"
        )


def _expand_zlib(frame: Buffer, max_nbytes: int) -> Buffer:
    expander = zlib.decompressobj()
    expanded = expander.decompress(frame, max_nbytes + 1)
    _check(len(expanded), max_nbytes)
    if not expander.eof:
        raise RemoteProtocolError("a frame compressed with 'zlib' is truncated")
    return expanded


def _expand_lz4(frame: Buffer, max_nbytes: int) -> Buffer:
    module = _codec("lz4")
    claimed = int.from_bytes(memoryview(frame)[:4], "little")
    _check(claimed, min(max_nbytes, len(frame) * LZ4_RATIO_MAX))
    expanded: Buffer = module.decompress(frame, return_bytearray=True)
    return expanded


def _expand_zstd(frame: Buffer, max_nbytes: int) -> Buffer:
    module = _codec("zstd")
    claimed = module.frame_content_size(frame)
    if claimed < 0:
        raise RemoteProtocolError("a frame compressed with 'zstd' does not contain its size")
    _check(claimed, max_nbytes)
    expanded: Buffer = module.ZstdDecompressor().decompress(frame)
    return expanded


def _expand_snappy(frame: Buffer, max_nbytes: int) -> Buffer:
    module = _codec("snappy")
    claimed = shift = 0
    for byte in bytes(memoryview(frame)[:5]):
        claimed |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
    _check(claimed, max_nbytes)
    expanded: Buffer = module.decompress(frame)
    return expanded


_EXPANDERS: dict[str, Callable[[Buffer, int], Buffer]] = {
    "zlib": _expand_zlib,
    "lz4": _expand_lz4,
    "zstd": _expand_zstd,
    "snappy": _expand_snappy,
}
