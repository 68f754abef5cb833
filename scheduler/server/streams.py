"""Connections that became streams: workers, clients.

A stream's batch is handled at once, each message a turn of the core. A client's messages keep their order around
its graphs: what follows an ``update-graph`` waits until that graph was committed or has failed; nobody else
waits, and several graphs are with the compilers at once.

Must not know: sockets; what messages do.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.protocol import messages as m
from paceline.protocol.codec import OddMessage, UnknownMessage
from paceline.protocol.errors import LocalProtocolError
from paceline.scheduler.core import stimuli
from paceline.workers_compat.graph_table import CompileRequest

from .backlog import ClientBacklog

if TYPE_CHECKING:
    from .peers import Peer

logger = logging.getLogger("distributed.scheduler")

#: How long a peer that was told to close may take to hang up itself, seconds. To close first could
#: throw away what it has not read.
LINGER_SECONDS = 5.0
#: Messages of a stream that wait for a later wake-up; then it is read no further.
INBOX_MAX = 5_000
#: Messages of a client that wait behind its graphs; then it is read no further.
WAITING_MESSAGES_MAX = 10_000


class _Rest:
    """What is not decoded yet of a long batch, in its place among the messages that wait."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: Iterator[list[Any]]) -> None:
        self.pieces = pieces


class Stream:
    """What workers' and clients' streams have in common.

    Attributes:
        name: the worker's address, or the client's name.
        ended: it said or was told goodbye: what still comes is ignored, but for last words (``late``).
        ROLE: the argument by which handlers of plugins are told ``name``.
    """

    ROLE: ClassVar[str]

    def __init__(self, peer: Peer, name: str) -> None:
        self.peer = peer
        self.name = name
        self.ended = False
        self._driver = peer.server.driver
        self._known = peer.server.core_types
        self._inbox: deque[Any] = deque()
        self._inbox_held = False
        self._held = False
        self._n_rests = 0
        self._lost = False
        logger.info("Starting established connection to %s", peer.address)

    def route(self, to_core: frozenset[type]) -> None:
        """See ``Server.route_streams``."""
        self._known = to_core

    # what the driver calls

    def send(self, messages: list[Any]) -> None:
        """One batch."""
        peer = self.peer
        if peer.closed or peer.connection.phase == "closed":
            return
        try:
            frames = peer.connection.send(messages)
        except LocalProtocolError:
            self._send_singly(messages)
        else:
            peer.server.write(peer.number, frames)

    def _send_singly(self, messages: list[Any]) -> None:
        """One of these cannot be said, by a mistake of ours: the others shall not be lost with it."""
        peer = self.peer
        for message in messages:
            try:
                peer.server.write(peer.number, peer.connection.send([message]))
            except LocalProtocolError:
                logger.exception("A message to %s was not sent: %r", self.name, message)

    def close_when_written(self) -> None:
        """The core has parted with this peer: it hangs up, or we do after a while."""
        if self.ended:
            return
        self.ended = True
        self.parted()
        self.peer.server.loop.call_later(LINGER_SECONDS, self.peer.close)

    # what comes

    def event(self, event: Any) -> None:
        messages = event.messages
        if self._inbox or self._driver.messages_left < len(messages):
            self._wait(messages)
        else:
            self._take(messages)
        if event.more is not None and not self.ended:
            self._n_rests += 1
            self._wait([_Rest(event.more)])
            self._hold()

    def _wait(self, messages: list[Any]) -> None:
        """This wake-up has handled enough."""
        self._inbox += messages
        self._driver.defer(self)
        if len(self._inbox) > INBOX_MAX:
            self._hold()

    def _hold(self) -> None:
        if not self._inbox_held:
            self._inbox_held = True
            self.peer.server.transport.pause_reading(self.peer.number)

    def _read_on(self) -> None:
        if not self._inbox_held and not self._held:
            self.peer.server.transport.resume_reading(self.peer.number)

    def go_on(self, count: int) -> bool:
        """Handle up to ``count`` messages that waited. Returns whether there are more."""
        inbox = self._inbox
        if inbox and type(inbox[0]) is _Rest:
            self._unfold(inbox.popleft())
        messages: list[Any] = []
        while inbox and len(messages) < count and type(inbox[0]) is not _Rest:
            messages.append(inbox.popleft())
        self._take(messages)
        if self.ended:
            self.late(list(inbox))
            inbox.clear()
            self._n_rests = 0
        if self._inbox_held and not self._n_rests and len(inbox) <= INBOX_MAX // 2:
            self._inbox_held = False
            self._read_on()
        if not inbox and self._lost:
            self._part()
        return bool(inbox)

    def _unfold(self, rest: _Rest) -> None:
        """The next piece of a long batch takes its place among the messages."""
        piece = next(rest.pieces, None)
        if piece is None:
            self._n_rests -= 1
        else:
            self._inbox.appendleft(rest)
            self._inbox.extendleft(reversed(piece))

    def _take(self, messages: list[Any]) -> None:
        if self.ended:
            self.late(messages)
            return
        if self._known.issuperset(map(type, messages)):
            self.batch(messages)
            return
        for number, message in enumerate(messages):
            if self.ended:
                self.late(messages[number:])
                return
            if type(message) in self._known:
                self.batch([message])
            else:
                self.special(message)

    def late(self, messages: list[Any]) -> None:
        """What came after the goodbye."""

    def batch(self, messages: list[Any]) -> None:
        """Messages that the core knows."""
        self._driver.feed_batch(self.name, messages)

    def special(self, message: Any) -> None:
        """A message that the core does not know."""
        kind = type(message)
        if kind is m.CloseStream:
            logger.info("Received 'close-stream' from %s; closing.", self.peer.address)
            self.end()
        elif kind is UnknownMessage and self.peer.server.plugins.takes(message.op):
            self.peer.server.plugins.take(message.op, message.raw, **{self.ROLE: self.name})
        elif self.peer.server.plugins.took_over(kind):
            self.peer.server.plugins.take_over(message, **{self.ROLE: self.name})
        elif kind is UnknownMessage:
            logger.error("Unknown op %r from %s: skipped", message.op, self.name)
        elif kind is OddMessage:
            logger.error(
                "Odd message from %s: op %r, %s: %s: skipped",
                self.name,
                message.op,
                message.path,
                message.error,
            )
        else:
            logger.error(
                "Op %r from %s does not belong on its stream: skipped",
                self.peer.server.op_name(message),
                self.name,
            )

    def end(self) -> None:
        """The peer said goodbye."""
        if not self.ended:
            self.ended = True
            self.parted()
            self.gone()
            self.peer.close()

    def closed(self, reason: str) -> None:
        if self._inbox:  # what it said before comes first
            self._lost = True
        else:
            self._part()

    def _part(self) -> None:
        if not self.ended:
            self.ended = True
            logger.info("Connection to %s has been closed.", self.peer.address)
            self.parted()
            self.gone()

    def paused(self) -> None:
        """The peer reads slowly."""

    def resumed(self) -> None:
        """It has caught up."""

    def parted(self) -> None:
        """Take it out of the driver's tables."""
        raise AssertionError("each kind of stream has its own")

    def gone(self) -> None:
        """Tell the core."""
        raise AssertionError("each kind of stream has its own")


class WorkerStream(Stream):
    """A worker."""

    ROLE = "worker"

    def __init__(self, peer: Peer, name: str) -> None:
        super().__init__(peer, name)
        logger.info("Starting worker compute stream, %s", name)
        self._driver.worker_streams[name] = self

    def late(self, messages: list[Any]) -> None:
        """A worker that was removed logs that it closes, and why, while it closes."""
        events = [message for message in messages if type(message) is m.LogEvent]
        if events and m.LogEvent in self._known:
            self._driver.feed_batch(self.name, events)

    def paused(self) -> None:
        self._driver.feed(stimuli.WorkerClogged(self.name, True))

    def resumed(self) -> None:
        if not self.ended:
            self._driver.feed(stimuli.WorkerClogged(self.name, False))

    def parted(self) -> None:
        if self._driver.worker_streams.get(self.name) is self:
            del self._driver.worker_streams[self.name]
            self.peer.server.pool.forget(self.name)

    def gone(self) -> None:
        now = self._driver.clock()
        self._driver.feed(stimuli.WorkerGone(self.name), stimulus_id=f"handle-worker-cleanup-{now}")


class _Gate:
    """A graph in a client's order: what came after it waits until it is through.

    Attributes:
        graph_id: which graph.
        outcome: its commit or failure, once that came.
        is_open: its outcome was handled, and what is behind it passes.
        behind: messages that came after it, before the next graph.
    """

    __slots__ = ("behind", "graph_id", "is_open", "outcome")

    def __init__(self, graph_id: int) -> None:
        self.graph_id = graph_id
        self.outcome: Any = None
        self.is_open = False
        self.behind: list[Any] = []


class ClientStream(Stream):
    """A client."""

    ROLE = "client"

    def __init__(self, peer: Peer, name: str) -> None:
        super().__init__(peer, name)
        self._gates: deque[_Gate] = deque()
        self._n_waiting = 0
        self._backlog = ClientBacklog(name)
        self._slow = False
        self._specials: dict[type, Callable[[Any], None]] = {
            m.UpdateGraph: self._update_graph,
            m.UpdateData: self._update_data,
        }
        self._driver.client_streams[name] = self

    # order around graphs

    def batch(self, messages: list[Any]) -> None:
        """Messages that the core knows: now, or behind a graph."""
        if not self._gates:
            self._driver.feed_batch(self.name, messages)
            return
        self._gates[-1].behind += messages
        self._n_waiting += len(messages)
        if self._n_waiting > WAITING_MESSAGES_MAX and not self._held:
            self._held = True
            self.peer.server.transport.pause_reading(self.peer.number)

    def special(self, message: Any) -> None:
        handler = self._specials.get(type(message))
        if handler is not None:
            handler(message)
        else:
            super().special(message)

    @property
    def n_graphs(self) -> int:
        """Its graphs that are being compiled."""
        return sum(1 for gate in self._gates if gate.graph_id and gate.outcome is None)

    def _update_graph(self, message: Any) -> None:
        server = self.peer.server
        graph_id = server.next_graph_id()
        request = CompileRequest(
            graph_id=graph_id,
            client=self.name,
            expr_ser=message.expr_ser,
            keys=list(message.keys),
            internal_priority=message.internal_priority,
            submitting_task=message.submitting_task,
            user_priority=message.user_priority,
            actors=message.actors,
            fifo_timeout=message.fifo_timeout,
            code=message.code,
            annotations=message.annotations,
            span_metadata=message.span_metadata,
            received_at=self._driver.clock(),
            validate=server.validate,
        )
        self._gates.append(_Gate(graph_id))
        server.compilers.compile(request, self._compiled)

    def _compiled(self, reply: Any) -> None:
        """A chunk, or the last word on a graph."""
        if self.ended:
            return
        if type(reply) is stimuli.GraphChunk:
            self._driver.feed(reply, self.name)
            return
        for gate in self._gates:
            if gate.graph_id == reply.graph_id:
                gate.outcome = reply
                break
        if self._open_gates(max(0, self._driver.messages_left)):
            self._driver.defer(self)

    def _open_gates(self, count: int) -> bool:
        """Graphs that are through let pass what came after them, up to ``count`` messages. Returns whether there is more."""
        gates = self._gates
        while gates and gates[0].outcome is not None:
            gate = gates[0]
            if not gate.is_open:
                gate.is_open = True
                self._driver.feed(
                    gate.outcome, self.name, stimulus_id=f"update-graph-{self._driver.clock()}"
                )
            if len(gate.behind) > count:
                passing, gate.behind = gate.behind[:count], gate.behind[count:]
            else:
                passing = gate.behind
                gates.popleft()
            if passing:
                count -= len(passing)
                self._n_waiting -= len(passing)
                self._driver.feed_batch(self.name, passing)
            if gates and gates[0] is gate:
                break
        if self._held and self._n_waiting <= WAITING_MESSAGES_MAX // 2:
            self._held = False
            self._read_on()
        return bool(gates) and gates[0].outcome is not None

    def go_on(self, count: int) -> bool:
        """See ``StreamPort``: what waits behind graphs came first."""
        more = self._open_gates(count)
        return super().go_on(count) or more

    def _update_data(self, message: Any) -> None:
        placed = stimuli.DataPlaced(
            who_has={key: list(addresses) for key, addresses in message.who_has.items()},
            nbytes=dict(message.nbytes),
            client=self.name,
        )
        if self._gates:
            self.batch([placed])
        else:
            self._driver.feed(placed, self.name)

    # a client that reads slowly

    def send(self, messages: list[Any]) -> None:
        """One batch; or the backlog grows."""
        if self._slow:
            self._backlog.add(messages)
        else:
            super().send(messages)

    def paused(self) -> None:
        self._slow = True

    def resumed(self) -> None:
        self._slow = False
        messages = self._backlog.take()
        if messages:
            super().send(messages)

    # the end

    def parted(self) -> None:
        for gate in self._gates:
            if gate.outcome is None:
                self.peer.server.compilers.cancel(gate.graph_id)
        if self._driver.client_streams.get(self.name) is self:
            del self._driver.client_streams[self.name]

    def gone(self) -> None:
        logger.info("Remove client %s", self.name)
        for gate in self._gates:
            if not gate.is_open:
                self._driver.feed(stimuli.GraphDropped(gate.graph_id), self.name)
        self._gates.clear()
        if self.name not in self._driver.client_streams:
            now = self._driver.clock()
            self._driver.feed(
                stimuli.ClientGone(self.name), self.name, stimulus_id=f"remove-client-{now}"
            )
        logger.info("Close client connection: %s", self.name)
