"""Repeat what a scheduler process did before it died, from the log, without sockets or clock."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.protocol import messages as m
from paceline.scheduler.core.instructions import SetTimer
from paceline.scheduler.core.stimuli import (
    GraphCommit,
    GraphDropped,
    GraphFailed,
    Stimulus,
    TimerDue,
    stimulus_name,
)
from paceline.scheduler.core.turn import Outbox
from paceline.scheduler.server.build_core import build_core
from paceline.scheduler.server.durable.log import recorder as r
from paceline.scheduler.server.durable.log.segments import RecoveryError
from paceline.scheduler.server.journal.replay import ReplayedPlugins
from paceline.workers_compat.graphs.compiler_messages import decode_reply

from .recorded_connection import NOT_KEPT, CompilingGraph, RecordedConnection
from .tcp_counters import Transferred

if TYPE_CHECKING:
    from paceline.protocol.connection import Connection
    from paceline.scheduler.core.core import SchedulerCore
    from paceline.scheduler.server.durable.log.segments import Record


@dataclass(frozen=True, slots=True)
class RunStart:
    """The record that the first scheduler process wrote into the log when it started.

    Attributes:
        release: version of paceline.
        config: the ``SchedulerConfig``.
        id: identity of the scheduler.
        time: start, seconds since the epoch.
    """

    release: str
    config: Any
    id: str
    time: float


@dataclass(slots=True)
class RecordedState:
    """The state of a scheduler that another process continues.

    It is what the log says, or the state of the process from which a standby was forked.

    Attributes:
        connections: number -> connection, for those that are open.
        now: time of the last turn, seconds since the epoch.
        timers: number of a timer -> when it is due.
        replies: request_id -> reply of the core.
        to_continue: (kind, name) -> value, for plugins and activities that start again.
        shuffles: pickled state of P2P shuffles, if there were any.
        last_request_id, last_graph_id: the highest numbers that were used.
        outbox: output that was not sent to streams.
        streams: (kind, name) -> connection of the worker or client that registered last.
        n_turns: number of turns.
        n_errors: number of turns that failed.
    """

    start: RunStart
    core: SchedulerCore
    connections: dict[int, RecordedConnection] = field(default_factory=dict)
    now: float = 0.0
    timers: dict[int, float] = field(default_factory=dict)
    replies: dict[int, Any] = field(default_factory=dict)
    to_continue: dict[tuple[str, str], bytes] = field(default_factory=dict)
    shuffles: bytes = b""
    last_request_id: int = 0
    last_graph_id: int = 0
    outbox: Outbox = field(default_factory=Outbox)
    streams: dict[tuple[str, str], RecordedConnection] = field(default_factory=dict)
    n_turns: int = 0
    n_errors: int = 0


class Replay:
    """Handles the records of a log, one after the other.

    Args:
        counters: number of each connection that the keeper holds -> what the kernel counted.
        new_connection: returns the protocol state of an accepted connection.
        recorded: the state to start from; None for that of the first record.

    Attributes:
        recorded: the state after the records so far. Not set before the first record.

    Raises:
        RecoveryError: the log contradicts itself.
    """

    recorded: RecordedState

    def __init__(
        self,
        counters: Mapping[int, Transferred],
        new_connection: Callable[[], Connection],
        recorded: RecordedState | None = None,
    ) -> None:
        if recorded is not None:
            self.recorded = recorded
            for number, connection in recorded.connections.items():
                connection.attach(counters.get(number, NOT_KEPT))
        self._counters = counters
        self._new_connection = new_connection
        self._parts: dict[int, Callable[..., None]] = {
            r.BATCH: self._batch,
            r.OTHER: self._other,
            r.STIMULUS: self._stimulus,
            r.COMPILED: self._compiled,
            r.WRITES: lambda writes: None,
            r.FLUSHED: self._flushed,
            r.SENT: self._sent,
            r.WROTE: self._wrote,
            r.WROTE_UNLOGGED: self._wrote_unlogged,
            r.STREAM: self._stream,
            r.DONE: self._done,
            r.CONTINUED: self._continued,
            r.SHUFFLES: self._shuffles,
        }

    def record(self, record: Record) -> None:
        """Handle the next record."""
        kind, number, body = record
        if kind == r.START:
            start = pickle.loads(body)
            self.recorded = RecordedState(start, build_core(start.config))
        elif kind == r.STEP:
            self._step(pickle.loads(body))
        elif kind == r.OPENED:
            counters = self._counters.get(number, NOT_KEPT)
            connection = RecordedConnection(
                number, pickle.loads(body), counters, self._new_connection()
            )
            self.recorded.connections[number] = connection
        elif (known := self.recorded.connections.get(number)) is not None:
            if kind == r.READ:
                known.receive(body)
            elif kind == r.ADMITTED:
                known.is_admitted = True
            else:
                known.is_closed = True
                self._forget(known)

    def _forget(self, known: RecordedConnection) -> None:
        """Forget a connection that is closed and whose messages have been handled."""
        if known.is_closed and not known.messages:
            self.recorded.connections.pop(known.number, None)

    def _step(self, parts: list[tuple[Any, ...]]) -> None:
        for index, (kind, *values) in enumerate(parts):
            following = parts[index + 1] if index + 1 < len(parts) else (0,)
            state = self.recorded.core.state
            if following[0] == r.WRITES:
                state.plugins = ReplayedPlugins(state, pickle.loads(following[1]))
            self._parts[kind](*values)
            state.plugins = None

    # turns

    def _handle(self, stimulus: Stimulus, now: float) -> None:
        recorded = self.recorded
        recorded.now = now
        recorded.n_turns += 1
        try:
            recorded.core.handle(stimulus, now, recorded.outbox)
        except Exception:  # as in the process that died, which has logged it
            recorded.n_errors += 1

    def _batch(self, number: int, count: int, now: float) -> None:
        known = self._connection(number)
        for message in known.take(count):
            stimulus_id = getattr(message, "stimulus_id", None)
            stimulus_id = stimulus_id or f"{stimulus_name(message)}-{now}"
            self._handle(Stimulus(known.name, message, stimulus_id), now)
        self._forget(known)

    def _stimulus(
        self, number: int, now: float, pickled: bytes, stimulus_id: str, request_id: int
    ) -> None:
        source, message = pickle.loads(pickled)
        stimulus = Stimulus(source, message, stimulus_id, request_id)
        recorded = self.recorded
        if stimulus.request_id:
            recorded.last_request_id = max(recorded.last_request_id, stimulus.request_id)
            if number in recorded.connections:
                recorded.connections[number].request_id = stimulus.request_id
        if type(stimulus.message) is TimerDue:
            recorded.timers.pop(stimulus.message.timer_id, None)
        self._end_graph(stimulus.source, stimulus.message)
        self._handle(stimulus, now)

    def _compiled(self, client: str, stimulus_id: str, now: float, frames: list[bytes]) -> None:
        reply = decode_reply([*frames])
        self._end_graph(client, reply)
        self._handle(Stimulus(client, reply, stimulus_id), now)

    def _end_graph(self, client: str, outcome: Any) -> None:
        """Remove the graph of an outcome from those that are being compiled."""
        known = self.recorded.streams.get(("client", client))
        if known is not None and type(outcome) in (GraphCommit, GraphFailed, GraphDropped):
            known.end_graph(outcome.graph_id)

    def _other(self, number: int, name: str) -> None:
        known = self._connection(number)
        if name == m.UpdateGraph.__name__:
            self.recorded.last_graph_id += 1
        found = known.find_other(name)
        if found is None:
            return
        index, message = found
        if type(message) is m.UpdateGraph:
            known.messages[index] = CompilingGraph(
                self.recorded.last_graph_id, message, self.recorded.now
            )
        else:
            del known.messages[index]
            self._forget(known)

    # connections

    def _connection(self, number: int) -> RecordedConnection:
        known = self.recorded.connections.get(number)
        if known is None:
            raise RecoveryError(f"there is no connection {number}")
        return known

    def _stream(self, number: int, kind: str, name: str) -> None:
        known = self._connection(number)
        known.become_stream(kind, name)
        self.recorded.streams[kind, name] = known

    def _done(self, number: int, n_messages: int) -> None:
        known = self.recorded.connections.get(number)
        if known is not None:
            self.recorded.replies.pop(known.request_id, None)
            known.request_done(n_messages)

    def _continued(self, kind: str, name: str, value: bytes | None) -> None:
        if value is None:
            self.recorded.to_continue.pop((kind, name), None)
        else:
            self.recorded.to_continue[kind, name] = value

    def _shuffles(self, state: bytes) -> None:
        self.recorded.shuffles = state

    # output

    def _flushed(self) -> None:
        outbox, self.recorded.outbox = self.recorded.outbox, Outbox()
        for kind, batches in (("client", outbox.clients), ("worker", outbox.workers)):
            for name, messages in batches.items():
                stream = self.recorded.streams.get((kind, name))
                if stream is not None:
                    stream.unwritten += messages
        if outbox.replies:
            waiting = {known.request_id for known in self.recorded.connections.values()}
            self.recorded.replies.update(each for each in outbox.replies if each[0] in waiting)
        for instruction in outbox.instructions:
            if type(instruction) is SetTimer:
                self.recorded.timers[instruction.timer_id] = instruction.when

    def _sent(self, number: int, messages: bytes) -> None:
        known = self.recorded.connections.get(number)
        if known is not None:
            known.unwritten += pickle.loads(messages)

    def _wrote(self, number: int, n_messages: int, data: bytes) -> None:
        known = self.recorded.connections.get(number)
        if known is not None:
            known.wrote(data, n_messages)

    def _wrote_unlogged(self, number: int, nbytes: int) -> None:
        known = self.recorded.connections.get(number)
        if known is not None:
            known.wrote_unlogged(nbytes)
