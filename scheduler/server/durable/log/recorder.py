"""The records of a durable scheduler: input at once, everything else in steps.

Input is what cannot be had again: data read from connections, and connections that open and close.
It is in the log as soon as it was read. So is the acceptance of a handshake, because a proof of the
shared secret cannot be checked again later.

A *step* is what the scheduler did with the input since the step before: a list of tuples whose
first element is one of the constants below. It is written as one record before any of its output
reaches a socket. If the process dies before that, no peer has seen the step, and its input is
handled again.
"""

from __future__ import annotations

import copyreg
import io
import logging
import pickle
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from paceline.protocol.payload import Payload
from paceline.scheduler.core.ports import TurnWrites
from paceline.scheduler.core.stimuli import stimulus_name

if TYPE_CHECKING:
    from paceline.protocol.compression import Buffer
    from paceline.protocol.framing import Frames
    from paceline.scheduler.core.stimuli import Stimulus
    from paceline.scheduler.server.comm.sockets import PeerFacts
    from paceline.scheduler.server.durable.channel.progress import Progress

    from .segments import Log

logger = logging.getLogger("distributed.scheduler")

# kinds of records
#: The release, the configuration and the identity of the scheduler.
START: Final = 1
#: A connection was accepted; its ``PeerFacts``.
OPENED: Final = 2
#: Data that was read from a connection.
READ: Final = 3
#: A connection was closed.
CLOSED: Final = 4
#: A step.
STEP: Final = 5
#: The handshake of a connection was accepted.
ADMITTED: Final = 6

# kinds of parts of a step
#: (connection, number of messages, time): the core handled messages of a stream.
BATCH: Final = 1
#: (connection, name of a class): the server handled the oldest message of this class.
OTHER: Final = 2
#: (connection of the request or 0, time, pickled source and message, stimulus_id, request_id).
STIMULUS: Final = 3
#: (client, stimulus_id, time, frames): the core handled a reply of a graph compiler.
COMPILED: Final = 4
#: (writes): what plugins wrote in hooks of the last turn.
WRITES: Final = 5
#: (): the outbox was sent to streams.
FLUSHED: Final = 6
#: (connection, pickled messages): the server sent messages to a stream.
SENT: Final = 7
#: (connection, number of messages so far, data): data for a connection.
WROTE: Final = 8
#: (connection, size): data for a connection, which is not logged itself.
WROTE_UNLOGGED: Final = 9
#: (connection, kind, name): a registration made the connection a stream.
STREAM: Final = 10
#: (connection, number of messages read): the oldest request is done.
DONE: Final = 11
#: (kind, name, value or None): something that a successor starts again has begun or ended.
CONTINUED: Final = 12
#: (pickled state): the state of P2P shuffles changed.
SHUFFLES: Final = 13


class ShufflesPort(Protocol):
    """The plugin that runs P2P shuffles: ``stock_plugins.SuspendedShufflePlugin``."""

    def fingerprint(self) -> object:
        """Return a value that differs if the state does."""

    def state(self) -> Any:
        """Return the state, which can be pickled."""

    def restore(self, state: Any) -> None:
        """Continue from a state."""


class Recorder:
    """Records what is needed to continue after the scheduler's death. This base class does not."""

    #: Whether anything is recorded.
    is_durable = False
    #: The plugin that runs P2P shuffles, whose state is recorded when it changes.
    shuffles: ShufflesPort | None = None

    def admitted(self, connection: int) -> None:
        """Record that the handshake of a connection was accepted."""

    def batch(self, connection: int, count: int, now: float) -> None:
        """Record that the core handles the next messages of a stream."""

    def other(self, connection: int, name: str) -> None:
        """Record that the server handles the oldest message of the class `name` itself."""

    def stimulus(self, stimulus: Stimulus, now: float) -> None:
        """Record a stimulus of the server."""

    def is_set_aside(self, stimulus: Stimulus) -> bool:
        """Return whether this stimulus has ended several processes, and is not to be handled."""
        return False

    def compiled(self, client: str, stimulus_id: str, now: float, frames: Frames) -> None:
        """Record a reply of a graph compiler."""

    def hook_writes(self) -> None:
        """Record what plugins wrote within the turn, which has ended."""

    def flushed(self) -> None:
        """Record that the outbox is sent."""

    def sent(self, connection: int, messages: list[Any]) -> None:
        """Record messages of the server to a stream."""

    def stream(self, connection: int, kind: str, name: str) -> None:
        """Record that a connection becomes the stream of a worker or client."""

    def handling(self, connection: int) -> int:
        """Note that input of this connection is handled now; 0 at the end.

        Return the connection of which input was handled before.
        """
        return 0

    def done(self, connection: int, n_messages: int) -> None:
        """Record that the oldest request is done, for which `n_messages` were read."""

    def continued(self, kind: str, name: str, value: bytes | None) -> None:
        """Record what a successor starts again, or None when it has ended.

        Args:
            kind: "worker", "nanny" or "scheduler" for a plugin, which is `value`, pickled. Others
                are those of ``requests.plugins.ACTIVITIES``.
            name: identifies it among those of its kind.
            value: what the successor needs to start it.
        """

    def is_continued(self, kind: str, name: str) -> bool:
        """Return whether a successor starts this again."""
        return False


class LogRecorder(Recorder):
    """Writes to the log.

    Args:
        progress: receives the connection whose input is handled.

    Attributes:
        turn_writes: what plugins write within the current turn.
        to_continue: (kind, name) -> value, for what a successor starts again.
        poisonous_stimulus: digest of the stimulus that is not to be handled, or 0.
        on_set_aside: called with the name and the pickle of a stimulus that was not handled.
        on_failure: called once if the log cannot be written. Nothing is recorded after that.
    """

    is_durable = True

    def __init__(self, log: Log, progress: Progress) -> None:
        self._progress = progress
        self.turn_writes = TurnWrites()
        self._log = log
        self.to_continue: dict[tuple[str, str], bytes] = {}
        self.on_failure: Callable[[OSError], None] = lambda error: None
        self.poisonous_stimulus = 0
        self.shuffles = None  # mypyc drops the default in the class
        self.on_set_aside: Callable[[str, bytes], None] = lambda name, pickled: None
        self._failed = False
        self._fingerprint: object = None
        self._step: list[tuple[Any, ...]] = []

    # input

    def opened(self, connection: int, facts: PeerFacts) -> None:
        """Record that a connection was accepted."""
        self._append(OPENED, connection, dump(facts))

    def read(self, connection: int, data: Buffer) -> None:
        """Record data that was read."""
        self._append(READ, connection, data)

    def admitted(self, connection: int) -> None:
        self._append(ADMITTED, connection, b"")

    def closed(self, connection: int) -> None:
        """Record that a connection was closed."""
        self._append(CLOSED, connection, b"")

    def _append(self, kind: int, connection: int, body: Buffer) -> None:
        if self._failed:
            return
        try:
            self._log.append(kind, connection, body)
        except OSError as error:
            self._fail(error)

    def check(self) -> None:
        """Record nothing any more if the log was removed."""
        if self._failed:
            return
        try:
            self._log.check()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        self._failed = True
        self.on_failure(error)

    # steps

    def commit(self) -> None:
        """Write the step. Call this before its output is written to sockets."""
        if self._failed:
            self._step.clear()
        elif self._step:
            if self.shuffles is not None:
                self._record_shuffles(self.shuffles)
            step, self._step = self._step, []
            self._append(STEP, 0, pickle.dumps(step, protocol=5))

    def _record_shuffles(self, shuffles: ShufflesPort) -> None:
        fingerprint = shuffles.fingerprint()
        if fingerprint != self._fingerprint:
            self._fingerprint = fingerprint
            self._step.append((SHUFFLES, dump(shuffles.state())))

    def batch(self, connection: int, count: int, now: float) -> None:
        self.turn_writes.begin()
        self._step.append((BATCH, connection, count, now))

    def other(self, connection: int, name: str) -> None:
        self._step.append((OTHER, connection, name))

    def stimulus(self, stimulus: Stimulus, now: float) -> None:
        self.turn_writes.begin()
        number = self._progress.connection if stimulus.request_id else 0
        source, message, stimulus_id, request_id = stimulus
        pickled = dump((source, message))
        self._progress.stimulus = zlib.crc32(pickled)
        self._step.append((STIMULUS, number, now, pickled, stimulus_id, request_id))

    def is_set_aside(self, stimulus: Stimulus) -> bool:
        if not self.poisonous_stimulus:
            return False
        pickled = dump((stimulus.source, stimulus.message))
        if zlib.crc32(pickled) != self.poisonous_stimulus:
            return False
        self.on_set_aside(stimulus_name(stimulus.message), pickled)
        return True

    def compiled(self, client: str, stimulus_id: str, now: float, frames: Frames) -> None:
        self.turn_writes.begin()
        self._step.append((COMPILED, client, stimulus_id, now, list(map(bytes, frames))))

    def hook_writes(self) -> None:
        self._progress.stimulus = 0
        if self.turn_writes.made:
            try:
                self._step.append((WRITES, dump(self.turn_writes.made)))
            except Exception as error:  # of a value of a plugin; the turn itself is over
                logger.error(
                    "What scheduler plugins wrote to tasks in a hook cannot be recorded, and is "
                    "lost if the scheduler process dies: %s",
                    error,
                )

    def flushed(self) -> None:
        self._step.append((FLUSHED,))

    def sent(self, connection: int, messages: list[Any]) -> None:
        self._step.append((SENT, connection, dump(messages)))

    def wrote(self, connection: int, n_messages: int, data: bytes) -> None:
        """Record data for a connection, with the number of messages sent to the stream so far."""
        self._step.append((WROTE, connection, n_messages, data))

    def wrote_unlogged(self, connection: int, nbytes: int) -> None:
        """Record the size of data for a connection that is too large for the log."""
        self._step.append((WROTE_UNLOGGED, connection, nbytes))

    def stream(self, connection: int, kind: str, name: str) -> None:
        self._step.append((STREAM, connection, kind, name))

    def handling(self, connection: int) -> int:
        previous = self._progress.connection
        self._progress.connection = connection
        return previous

    def done(self, connection: int, n_messages: int) -> None:
        self._step.append((DONE, connection, n_messages))

    def continued(self, kind: str, name: str, value: bytes | None) -> None:
        self._step.append((CONTINUED, kind, name, value))
        if value is None:
            self.to_continue.pop((kind, name), None)
        else:
            self.to_continue[kind, name] = value

    def is_continued(self, kind: str, name: str) -> bool:
        return (kind, name) in self.to_continue


def dump(value: Any) -> bytes:
    """Pickle ``value``. Memory views in it become bytes."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=5)
    table: dict[type, Any] = {**copyreg.dispatch_table, memoryview: _as_bytes}
    table[Payload] = _as_payload  # a compiled class cannot be pickled
    pickler.dispatch_table = table
    pickler.dump(value)
    return file.getvalue()


def _as_bytes(view: memoryview) -> tuple[type[bytes], tuple[bytes]]:
    return bytes, (bytes(view),)


def _as_payload(payload: Payload) -> tuple[type[Payload], tuple[Any, ...]]:
    return Payload, (payload.kind, payload.header, payload.frames)
