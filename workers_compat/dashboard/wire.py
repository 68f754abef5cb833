"""What the scheduler and the dashboard's process say to each other: pickled messages, each behind its length.

The process is the scheduler's own child; nobody else reaches this pipe. It asks, the scheduler answers:
``Poll`` -> ``State``, ``Question`` -> ``Answer``; first comes ``Setup``, then the child says ``Ready``.

Must not know: what a snapshot holds.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_LENGTH = struct.Struct("<Q")
#: A message beyond this is no message: something went wrong.
MESSAGE_MAX_NBYTES = 2**31


@dataclass(slots=True)
class Setup:
    """The first message: what the child needs to know of its parent.

    Attributes:
        config: dask's configuration.
        path: ``sys.path``.
        prefix: before every path.
        port: that browsers reach us by.
        jupyter: whether Jupyter is served beside.
        facts: address, id and the like, which never change.
    """

    config: dict[str, Any]
    path: list[str]
    prefix: str
    port: int
    jupyter: bool
    facts: dict[str, Any]


@dataclass(slots=True)
class Ready:
    """The child serves pages, or says why it cannot."""

    error: str = ""


@dataclass(slots=True)
class Poll:
    """The child wants the news.

    Attributes:
        wanted: topic -> what of it (its meaning is the topic's), of those that open pages read.
    """

    wanted: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class State:
    """The news: topic -> what changed. ``seconds``: how long the last ones took to gather."""

    news: dict[str, Any]
    seconds: float


@dataclass(slots=True)
class Question:
    """A page asks something that takes time."""

    number: int
    what: str
    options: dict[str, Any]


@dataclass(slots=True)
class Answer:
    """What came of it; ``error`` is text where nothing did."""

    number: int
    value: Any = None
    error: str = ""


def pack(message: Any) -> bytes:
    """A message as it goes through the pipe."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(data)) + data


class Splitter:
    """Bytes in, messages out."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> Iterator[Any]:
        """Messages that are whole by now.

        Raises:
            ValueError: no message is so long.
        """
        self._data += data
        while len(self._data) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._data)
            if length > MESSAGE_MAX_NBYTES:
                raise ValueError(f"a message of {length} bytes")
            end = _LENGTH.size + length
            if len(self._data) < end:
                return
            message = pickle.loads(memoryview(self._data)[_LENGTH.size : end])
            del self._data[:end]
            yield message
