"""Messages between the scheduler and the dashboard's process: each a pickle in one frame.

The dashboard's process is a child of the scheduler's process, and only it is connected to this
pipe. The first message is ``Setup``, which the child answers with ``DashboardReady``. Then the
child sends ``Poll``, answered by ``Updates``, and ``Call``, answered by ``CallReply``.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from paceline.protocol.framing import FrameReader, Limits, pack_frames
from paceline.workers_compat.security.http_connections import HttpLimits
from paceline.workers_compat.security.http_token import TokenGate

#: Larger messages are rejected.
LIMITS = Limits(max_frames=1, max_message_nbytes=2**31)


@dataclass(slots=True)
class Setup:
    """The first message: configuration of the dashboard's process.

    Attributes:
        config, path: dask's configuration, and ``sys.path``.
        gate: checks the token of each request; None if pages need no token.
    """

    config: dict[str, Any]
    path: list[str]
    prefix: str
    port: int
    jupyter: bool
    gate: TokenGate | None = None
    limits: HttpLimits = field(default_factory=HttpLimits)


@dataclass(slots=True)
class DashboardReady:
    """The child serves pages, or ``error`` is the reason why it cannot."""

    error: str = ""


@dataclass(slots=True)
class Poll:
    """Request for updates of topics that open pages read: topic -> its detail."""

    wanted: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Updates:
    """Reply to ``Poll``: topic -> changes, and the seconds that the previous reply took."""

    updates: dict[str, Any]
    seconds: float


@dataclass(slots=True)
class Call:
    """Call of a method of the scheduler that takes time."""

    number: int
    method: str
    options: dict[str, Any]


@dataclass(slots=True)
class CallReply:
    """Result of a ``Call``; ``error`` is text if the call failed."""

    number: int
    value: Any = None
    error: str = ""


def pack(message: Any) -> bytes:
    """Return the bytes of a message."""
    return b"".join(pack_frames([pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)]))


class MessageReader:
    """Reads messages from a stream of bytes."""

    def __init__(self) -> None:
        self._reader = FrameReader(LIMITS)

    def feed(self, data: bytes) -> Iterator[Any]:
        """Yield the messages that `data` completes. Raise RemoteProtocolError beyond ``LIMITS``."""
        for (frame,) in self._reader.feed(data):
            yield pickle.loads(frame)
