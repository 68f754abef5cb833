"""The state of a connection in the log: the data that was read, handled and written."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from paceline.protocol import messages as m
from paceline.protocol.errors import RemoteProtocolError
from paceline.protocol.framing import HANDSHAKE_LIMITS, FrameReader
from paceline.scheduler.core.stimuli import DataPlaced
from paceline.scheduler.server.durable.log.segments import RecoveryError

from .tcp_counters import Transferred

if TYPE_CHECKING:
    from paceline.protocol.compression import Buffer
    from paceline.protocol.connection import Connection
    from paceline.protocol.framing import Frames
    from paceline.scheduler.server.comm.sockets import PeerFacts
    from paceline.scheduler.server.peers.receive_spool import ReceiveSpool


class CompilingGraph(NamedTuple):
    """A graph that another process of the scheduler was compiling when it died.

    Attributes:
        message: the ``UpdateGraph`` message.
        received_at: time of its arrival, or of the last turn before it, in seconds since the epoch;
            0 if another release has not recorded it.
    """

    graph_id: int
    message: Any
    received_at: float = 0.0


#: Counters of connections that the keeper does not hold. None of their output is written again.
NOT_KEPT = Transferred(0, 2**63)
#: Why streams without a registration are closed.
NO_SUCCESSION = "the state of a stream without a registration is not recorded"


@dataclass(slots=True, eq=False)
class RecordedConnection:
    """The state of a connection that an earlier scheduler process has accepted.

    Attributes:
        connection: its protocol state, as in ``Peer``.
        counters: bytes that were read from its socket and written to it, as the kernel counts.
        receive_spool: receives large messages in a process that continues with its files, or None.
            Snapshots do not have it.
        read, written: bytes that were read and written, as the log counts. The first output is our
            handshake.
        fault: why the connection cannot be continued, or "".
        is_admitted: its handshake was accepted.
        is_closed: it was closed; messages that were read before may wait.
        requests: requests that are not done, oldest first: their frames, or events if they were
            decoded.
        request_id: of the oldest request, if the core replies to it.
        has_replied: data other than the handshake was written since the last request was done.
        kind: "worker" or "client" if it is a stream.
        name: name of the stream.
        messages: messages of the stream that were not handled, and graphs that are being compiled,
            oldest first.
        unwritten: messages to the stream that were not encoded, oldest first.
        n_written: number of messages to the stream that were encoded before.
        unsent: data that was to be written and is not in the socket.
    """

    number: int
    facts: PeerFacts
    counters: Transferred
    connection: Connection
    reader: FrameReader = field(default_factory=lambda: FrameReader(first=HANDSHAKE_LIMITS))
    receive_spool: ReceiveSpool | None = None
    read: int = 0
    written: int = 0
    fault: str = ""
    is_admitted: bool = False
    is_closed: bool = False
    requests: deque[Any] = field(default_factory=deque)
    request_id: int = 0
    has_replied: bool = False
    kind: str = ""
    name: str = ""
    messages: deque[Any] = field(default_factory=deque)
    unwritten: deque[Any] = field(default_factory=deque)
    n_written: int = 0
    unsent: bytearray = field(default_factory=bytearray)

    def attach(self, counters: Transferred) -> None:
        """Set the counters. Before, ``unsent`` is what was written last, sent or not."""
        self.counters = counters
        missing = self.written - counters.written
        if missing > len(self.unsent):
            self.fault = f"{missing} bytes of output are missing"
        self.unsent = self.unsent[len(self.unsent) - missing :] if missing > 0 else bytearray()

    # what was read

    def receive(self, data: Buffer) -> None:
        """Add ``data`` that was read. Decode messages of a stream; store the frames of requests."""
        self.read += len(data)
        if self.fault:
            return
        with self._noting_faults():
            for frames in self.reader.feed(data):
                self._receive_frames(frames)

    @contextlib.contextmanager
    def _noting_faults(self) -> Iterator[None]:
        """Set ``fault`` if a message is invalid. The dead process then closed the connection."""
        try:
            yield
        except Exception as error:
            if isinstance(error, RemoteProtocolError):
                with self._noting_faults():
                    for frames in error.messages:
                        self._receive_frames(frames)
            self.fault = f"{type(error).__name__}: {error}"

    def _receive_frames(self, frames: Frames) -> None:
        if self.connection.phase == "handshake":
            self.connection.receive_frames(frames)
            for following in self.reader.admit():
                self._receive_frames(following)
        elif self.kind:
            for event in self.connection.receive_frames(frames):
                self.messages += event.messages  # type: ignore[union-attr]
                for more in event.more or ():  # type: ignore[union-attr]
                    self.messages += more
        else:
            self.requests.append(frames)

    # what was handled

    def become_stream(self, kind: str, name: str) -> None:
        """Make the connection a stream: its oldest request was a registration."""
        self.requests.popleft()
        if kind == "unregistered":
            self.fault = NO_SUCCESSION
            return
        self.connection.become_stream(kind)  # type: ignore[arg-type]
        self.kind, self.name = kind, name
        later, self.requests = self.requests, deque()
        with self._noting_faults():
            for frames in later:
                self._receive_frames(frames)

    def request_done(self, n_messages: int) -> None:
        """Remove the oldest request, for which ``n_messages`` were read."""
        if self.kind:
            return  # the registration
        for _ in range(min(n_messages, len(self.requests))):
            self.requests.popleft()
        self.request_id = 0
        self.has_replied = False

    def take(self, count: int) -> list[Any]:
        """Remove and return the oldest messages, which are for the core.

        A connection with a fault, whose peer will be removed, may have fewer.
        """
        if len(self.messages) < count and not self.fault:
            raise RecoveryError(f"connection {self.number} has fewer messages than were handled")
        taken = [self.messages.popleft() for _ in range(min(count, len(self.messages)))]
        return [
            data_placed(message, self.name) if type(message) is m.UpdateData else message
            for message in taken
        ]

    def find_other(self, name: str) -> tuple[int, Any] | None:
        """Return position and message of the oldest one of the class `name`.

        Return None if it was not read because of a fault.
        """
        for index, message in enumerate(self.messages):
            if type(message).__name__ == name:
                return index, message
        if self.fault:
            return None
        raise RecoveryError(f"connection {self.number} has no such message")

    def end_graph(self, graph_id: int) -> None:
        """Remove a graph whose compilation has ended."""
        for index, message in enumerate(self.messages):
            if type(message) is CompilingGraph and message.graph_id == graph_id:
                del self.messages[index]
                return

    # what was written

    def wrote(self, data: Buffer, n_messages: int) -> None:
        """Add the output ``data``, after which ``n_messages`` of the stream were encoded."""
        start = max(0, self.counters.written - self.written)
        self.has_replied = self.written > 0
        self.written += len(data)
        self.unsent += data[start:]
        self._wrote_messages(n_messages)

    def wrote_unlogged(self, nbytes: int) -> None:
        """Add output of ``nbytes`` that the log does not contain."""
        self.written += nbytes
        if self.written > self.counters.written:
            self.fault = "a long reply was cut off"
        self.has_replied = True

    def _wrote_messages(self, n_messages: int) -> None:
        if n_messages - self.n_written > len(self.unwritten):
            if self.fault:
                return
            raise RecoveryError(f"connection {self.number} has fewer messages than were written")
        while self.n_written < n_messages:
            self.unwritten.popleft()
            self.n_written += 1


def data_placed(message: m.UpdateData, client: str) -> DataPlaced:
    """Return the stimulus for data that a client has sent to workers itself."""
    who_has = {key: list(addresses) for key, addresses in message.who_has.items()}
    return DataPlaced(who_has, dict(message.nbytes), client=client)
