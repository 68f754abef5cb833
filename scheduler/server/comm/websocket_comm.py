"""The comm of ``ws://`` and ``wss://``, compatible with stock's.

A message is a frame with the number of the others (eight bytes, little-endian), then these frames,
each in a binary web socket message.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Any

from paceline.protocol.compression import Buffer
from paceline.protocol.framing import frame_nbytes
from tornado.iostream import StreamClosedError
from tornado.websocket import WebSocketClosedError

from .async_comm import AsyncComm
from .sockets import PeerFacts
from .transport import Transport

_COUNT = struct.Struct("<Q")
#: The largest frame that is read.
FRAME_MAX_NBYTES = 2**30
#: The largest frame that is sent. Stock's peers cannot read frames of more than 100 MiB, the size
#: of tornado's buffer. Workers would all be lost one after the other if they were sent one.
SENT_FRAME_MAX_NBYTES = 99 * 2**20
#: The largest frame that is accepted. Messages that contain its data may be a little larger.
ACCEPTED_FRAME_MAX_NBYTES = 96 * 2**20


class WebSocketComm(AsyncComm):
    """A connection over a web socket.

    Args:
        socket: tornado's handler (accepted) or connection (outgoing), with ``write_message`` and
            ``close``.
        stream: its iostream.
    """

    def __init__(self, owner: Transport, socket: Any, stream: Any, facts: PeerFacts) -> None:
        super().__init__(owner, facts)
        self._socket = socket
        self._stream = stream
        self._frames: list[Any] = []
        self._missing = 0
        self._nbytes_in = 0
        self._limits = owner.handshake_limits or owner.limits

    def collect(self, frames: Sequence[Buffer]) -> None:
        """See ``Comm``.

        Raises:
            ValueError: a frame is larger than peers can read.
        """
        largest = max(map(frame_nbytes, frames), default=0)
        if largest > SENT_FRAME_MAX_NBYTES:
            raise ValueError(
                f"a message has a frame of {largest} bytes. Workers and clients cannot read more "
                f"than {SENT_FRAME_MAX_NBYTES} over websockets: use tcp://, or scatter large "
                "arguments"
            )
        super().collect(frames)

    async def send(self, frames: Sequence[Buffer]) -> None:
        try:
            self._send_frame(_COUNT.pack(len(frames)))
            for frame in frames:
                written = self._send_frame(bytes(frame))
                if self._stream.writing():
                    await written
        except (WebSocketClosedError, StreamClosedError) as error:
            raise ConnectionError(str(error) or "closed") from error

    def _send_frame(self, data: bytes) -> asyncio.Future[None]:
        """Write one frame. The result, which may be an error, need not be awaited."""
        written: asyncio.Future[None] = self._socket.write_message(data, binary=True)
        written.add_done_callback(_retrieve_error)
        return written

    def end(self) -> None:
        self._socket.close()

    def close_now(self) -> None:
        self._stream.close()

    def admit(self) -> None:
        self._limits = self._owner.limits
        protocol = getattr(self._socket, "ws_connection", None) or self._socket.protocol
        protocol.params.max_message_size = FRAME_MAX_NBYTES

    def received(self, data: Any) -> None:
        """Process one web socket message."""
        if self._closing:
            return
        if not isinstance(data, bytes):
            self.drop("malformed frame: text instead of bytes")
        elif len(data) > ACCEPTED_FRAME_MAX_NBYTES:
            self.drop(
                f"malformed frame: {len(data)} bytes. Workers cannot read more than "
                f"{ACCEPTED_FRAME_MAX_NBYTES} over websockets: scatter large arguments"
            )
        elif self._missing:
            self._nbytes_in += len(data)
            limit = self._limits.max_message_nbytes
            if self._nbytes_in > limit:
                self.drop(f"malformed frame: a message of more than {limit} bytes")
                return
            self._frames.append(data)
            self._missing -= 1
            if not self._missing:
                self._complete()
        else:
            self._begin(data)

    def _begin(self, data: bytes) -> None:
        if len(data) != _COUNT.size:
            self.drop(f"malformed frame: a count of frames of {len(data)} bytes")
            return
        (count,) = _COUNT.unpack(data)
        if count > self._limits.max_frames:
            self.drop(f"malformed frame: {count} frames in a message")
            return
        self._missing, self._frames, self._nbytes_in = count, [], 0
        if not count:
            self._complete()

    def _complete(self) -> None:
        frames, self._frames = self._frames, []
        self.message_received(frames)


def _retrieve_error(written: asyncio.Future[None]) -> None:
    """Retrieve the error of a write, or else asyncio logs it. The stream reports it, too."""
    if not written.cancelled():
        written.exception()
