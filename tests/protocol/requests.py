"""Encode messages as stock peers do, and decode a request without a connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from distributed.protocol import dumps
from paceline.protocol.catalogue import Direction
from paceline.protocol.codec import Codec, Received
from paceline.protocol.compression import Buffer
from paceline.protocol.errors import RemoteProtocolError


def decode_rpc(
    codec: Codec, frames: Sequence[Buffer], direction: Direction = "scheduler_rpc"
) -> Received:
    """Return the request in `frames`, or raise RemoteProtocolError if it is not a map with an op."""
    value = codec.decode_value(frames)
    if not isinstance(value, dict) or not isinstance(value.get("op"), str):
        raise RemoteProtocolError("a request is a map with an op")
    return codec.as_message(value, direction)


def stock_frames(message: Any) -> list[bytes]:
    """Return what a stock peer would send."""
    return [bytes(frame) for frame in dumps(message)]
