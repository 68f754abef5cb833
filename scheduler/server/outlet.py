"""Bytes that are passed on as they come: from one socket to another, with nothing kept in between.

What is written goes to the socket at once, past the event loop's buffers, as long as it takes it; what it does not take is
kept, once, and until that is gone the outlet is *full*: whoever writes to it is to stop reading where the bytes come from.

Must not know: whose bytes they are, where they come from.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from .seam import WRITE_HIGH_WATER_NBYTES, WRITE_LOW_WATER_NBYTES


class Outlet:
    """One connection's socket, while one message goes out piece by piece. Nothing else may be written meanwhile.

    Args:
        transport: asyncio's, of a plain socket.
        on_close: called once, when it is closed.

    Attributes:
        on_drained: called when what was kept is gone.
        closed: by whoever opened it.
    """

    def __init__(self, transport: Any, on_close: Callable[[], None]) -> None:
        self._transport = transport
        self._fd: int = transport.get_extra_info("socket").fileno()
        self._on_close = on_close
        self.on_drained: Callable[[], None] | None = None
        self.closed = False
        transport.set_write_buffer_limits(high=0)

    @property
    def full(self) -> bool:
        """What was written last has not all been taken."""
        return bool(self._transport.get_write_buffer_size())

    def write(self, data: bytes | memoryview) -> None:
        """Write on. The data may be reused after the call. What is written to a connection that is gone is dropped."""
        transport = self._transport
        if transport.is_closing():
            return
        taken = 0
        if not transport.get_write_buffer_size():
            try:
                taken = os.write(self._fd, data)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:
                transport.abort()
                return
        if taken < len(data):
            transport.write(bytes(memoryview(data)[taken:]))

    def drained(self) -> None:
        """The socket has taken what was kept."""
        if self.on_drained is not None:
            self.on_drained()

    def close(self) -> None:
        """The message is whole: the connection is written to as before."""
        if not self.closed:
            self.closed = True
            self.on_drained = None
            self._transport.set_write_buffer_limits(
                high=WRITE_HIGH_WATER_NBYTES, low=WRITE_LOW_WATER_NBYTES
            )
            self._on_close()
