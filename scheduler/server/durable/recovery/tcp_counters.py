"""How many bytes of a TCP connection a process has read and written, as the kernel knows it.

Linux counts what arrived and what was acknowledged, and what waits in the queues of the socket.
The differences are the bytes that the process has read from the socket and written to it, also when
that process was killed in between.
"""

from __future__ import annotations

import array
import fcntl
import socket
import struct
import termios
from typing import NamedTuple

#: Position of ``tcpi_bytes_acked`` and ``tcpi_bytes_received`` (u64) in ``struct tcp_info``.
_COUNTERS_AT = 120
_COUNTERS = struct.Struct("QQ")
#: Requests that return the unread and the unacknowledged bytes (SIOCINQ, SIOCOUTQ).
_UNREAD, _UNACKNOWLEDGED = termios.FIONREAD, termios.TIOCOUTQ
#: States of a connection whose peer has sent its last byte. It counts as one byte more.
_PEER_HAS_ENDED = frozenset({7, 8, 9, 11})  # CLOSE, CLOSE_WAIT, LAST_ACK, CLOSING


class Transferred(NamedTuple):
    """Bytes that processes have read from a socket and written to it, since it was opened."""

    read: int
    written: int


def transferred(sock: socket.socket) -> Transferred:
    """Return the counters of a connected TCP socket, from which no process reads at present.

    The queues are read between two equal readings of what arrived and was acknowledged, because
    segments may arrive in between.

    Raises:
        OSError: the kernel does not know them.
    """
    info = _info(sock)
    while True:
        unread, unacknowledged = _queued(sock, _UNREAD), _queued(sock, _UNACKNOWLEDGED)
        earlier, info = info, _info(sock)
        if info == earlier:
            return Transferred(
                info.received - info.peer_has_ended - unread, info.acknowledged + unacknowledged
            )


class _Info(NamedTuple):
    """Bytes that were acknowledged and received, and whether the peer has ended."""

    acknowledged: int
    received: int
    peer_has_ended: bool


def _info(sock: socket.socket) -> _Info:
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _COUNTERS_AT + _COUNTERS.size)
    if len(info) < _COUNTERS_AT + _COUNTERS.size:
        raise OSError("the kernel does not count the bytes of TCP connections")
    acknowledged, received = _COUNTERS.unpack_from(info, _COUNTERS_AT)
    return _Info(acknowledged, received, info[0] in _PEER_HAS_ENDED)


def _queued(sock: socket.socket, request: int) -> int:
    number = array.array("i", [0])
    fcntl.ioctl(sock, request, number)
    return number[0]
