"""Streams of registered clients.

The messages of a client keep their order around its graphs: those that arrive after an
``update-graph`` wait until that graph is committed or has failed. Other peers do not wait, and
several graphs of a client may be compiled at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from paceline.protocol import messages as m
from paceline.scheduler.core import stimuli
from paceline.scheduler.core.graphs.commit import is_lost
from paceline.scheduler.server.durable.recovery.recorded_connection import (
    CompilingGraph,
    data_placed,
)
from paceline.workers_compat.graphs.compiler_messages import CompileRequest

from .slow_peers import SlowClientBuffer
from .streams import Stream

if TYPE_CHECKING:
    from paceline.protocol.framing import Frames
    from paceline.scheduler.server.durable.recovery.recorded_connection import RecordedConnection
    from paceline.scheduler.server.durable.recovery.replay import RecordedState

    from .peer import Peer

logger = logging.getLogger("distributed.scheduler")

#: Time that a client is given to read a reply before it receives further messages, seconds.
READ_SECONDS = 0.02
#: Messages of a client that wait behind its graphs, and these graphs. Beyond this number the client
#: is not read.
WAITING_MESSAGES_MAX = 10_000


@dataclass(eq=False, slots=True)
class PendingUpdateGraph:
    """A graph that blocks later messages of its client until it has an outcome.

    Attributes:
        keys: the keys that the client wants of it.
        message: the ``UpdateGraph`` message.
        received_at: when it arrived, in seconds since the epoch.
        started: when it was submitted to the graph compilers (``time.perf_counter``).
        outcome: its commit, its failure or ``GraphDropped``, once there is one.
        outcome_frames: the outcome as the graph compiler sent it, if it did.
        is_fed: the outcome was fed to the core. The blocked messages follow.
        blocked_messages: messages that arrived after it and before the next graph.
        awaited: earlier graphs of other clients that compute inputs of this one. Its outcome is fed
            after theirs.
        released: keys that these messages release or cancel.
        may_be_used: one of these messages may refer to keys of this graph or an earlier one.
    """

    graph_id: int
    keys: Collection[Any]
    message: Any = None
    received_at: float = 0.0
    started: float = field(default_factory=time.perf_counter)
    outcome: Any = None
    outcome_frames: Frames | None = None
    is_fed: bool = False
    blocked_messages: list[Any] = field(default_factory=list)
    awaited: list[PendingUpdateGraph] = field(default_factory=list)
    released: set[Any] = field(default_factory=set)
    may_be_used: bool = False

    @property
    def is_ready(self) -> bool:
        """Return whether its outcome can be fed to the core."""
        return self.outcome is not None and all(graph.is_fed for graph in self.awaited)

    def block(self, messages: list[Any]) -> None:
        """Append ``messages`` to those that wait."""
        self.blocked_messages += messages
        for message in messages:
            if type(message) in (m.ClientReleasesKeys, m.CancelKeys):
                self.released.update(message.keys)
            elif type(message) not in (m.HeartbeatClient, m.LogEvent):
                self.may_be_used = True


class ClientStream(Stream):
    """The stream of a client."""

    ROLE = "client"

    def __init__(self, peer: Peer, name: str) -> None:
        super().__init__(peer, name, SlowClientBuffer(name))
        self.pending_graphs: deque[PendingUpdateGraph] = deque()
        self._n_waiting = 0
        self._ends_after_graphs = False
        self._driver.client_streams[name] = self

    def pause_until_read(self, reply: asyncio.Future[Any]) -> None:
        """Buffer messages until ``READ_SECONDS`` after `reply`, sent on another connection."""
        peer = self.peer
        peer.pause_writing()
        loop = peer.server.loop
        reply.add_done_callback(lambda _: loop.call_later(READ_SECONDS, peer.resume_writing))

    # order around graphs

    def feed_core(self, messages: list[Any]) -> int:
        """Feed messages that the core handles, or block them behind the newest graph.

        See ``Driver.feed_batch``.
        """
        if not self.pending_graphs:
            return super().feed_core(messages)
        self.pending_graphs[-1].block(messages)
        self._n_waiting += len(messages)
        self._pause_if_many_wait()
        self._cancel_released()
        return len(messages)

    def _pause_if_many_wait(self) -> None:
        if self._n_waiting > WAITING_MESSAGES_MAX:
            self.peer.pause_reading("graphs")

    def _cancel_released(self) -> None:
        """Cancel the compilation of the newest graphs of which all wanted keys were released.

        A graph is compiled after all if an earlier message may refer to its keys, such as another
        graph, or if another client wants one of them. The other graph may be compiled already:
        threads finish graphs in any order.
        """
        released: set[Any] = set()
        for graph in reversed(self.pending_graphs):
            if graph.may_be_used:
                break
            released |= graph.released
            if type(graph.outcome) is stimuli.GraphDropped:
                continue
            if graph.outcome is not None:
                break
            if len(released) < len(graph.keys):  # PackedKeys are decoded only if necessary
                break
            if not released.issuperset(graph.keys) or self._is_wanted_by_others(graph.keys):
                break
            self._drop(graph)

    def _is_wanted_by_others(self, keys: Collection[Any]) -> bool:
        tasks = self.peer.server.state.tasks
        return any(
            client.client_key != self.name
            for key in keys
            if key in tasks
            for client in tasks[key].who_wants
        )

    def _drop(self, graph: PendingUpdateGraph) -> None:
        """Cancel the compilation of ``graph`` and unblock the messages after it."""
        self.peer.server.graph_compilers.cancel(graph.graph_id)
        graph.outcome = stimuli.GraphDropped(graph.graph_id)
        self._driver.defer(self)

    def drop_graphs(self) -> None:
        """Cancel the compilation of all graphs of the client."""
        for graph in self.pending_graphs:
            if graph.outcome is None:
                self._drop(graph)

    def handle_other(self, message: Any) -> None:
        if type(message) is m.UpdateGraph:
            self._recorder.other(self.peer.comm.number, m.UpdateGraph.__name__)
            self._update_graph(message, next(self.peer.server.graph_ids), self._driver.clock())
        elif type(message) is m.UpdateData:
            self.feed_core([data_placed(message, self.name)])
        else:
            super().handle_other(message)

    @property
    def n_graphs(self) -> int:
        """The number of the client's graphs that are being compiled."""
        return sum(1 for graph in self.pending_graphs if graph.graph_id and graph.outcome is None)

    def _update_graph(self, message: Any, graph_id: int, received_at: float) -> None:
        server = self.peer.server
        fields = msgspec.structs.asdict(message)
        del fields["stimulus_id"]
        request = CompileRequest(
            **{**fields, "client": self.name},
            graph_id=graph_id,
            received_at=received_at,
            validate=server.state.config.validate,
        )
        self.pending_graphs.append(PendingUpdateGraph(graph_id, request.keys, message, received_at))
        self._n_waiting += 1
        self._pause_if_many_wait()
        server.graph_compilers.compile(request, self._compiled)

    def continue_from(self, messages: list[Any], unwritten: list[Any], n_written: int) -> None:
        """See ``Stream``. Graphs that were being compiled are compiled again."""
        super().continue_from([], unwritten, n_written)
        waiting: list[Any] = []
        for message in messages:
            if type(message) is not CompilingGraph:
                waiting.append(message)
                continue
            self._handle_all(waiting)
            waiting = []
            self._driver.feed(stimuli.GraphRestarted(message.graph_id), self.name)
            received_at = message.received_at or self._driver.clock()
            self._update_graph(message.message, message.graph_id, received_at)
        self._handle_all(waiting)

    def capture(self, connection: RecordedConnection, recorded: RecordedState) -> None:
        """See ``EventHandler``. The messages behind graphs precede those of the inbox."""
        for graph in self.pending_graphs:
            if not graph.is_fed:
                connection.messages.append(
                    CompilingGraph(graph.graph_id, graph.message, graph.received_at)
                )
            connection.messages += graph.blocked_messages
        super().capture(connection, recorded)

    def _compiled(self, reply: Any, frames: Frames | None = None) -> None:
        """Handle a reply of the graph compilers: a chunk of a graph, or its outcome."""
        if self.ended:
            return
        previous = self._recorder.handling(self.peer.comm.number)
        self._feed_compiled(reply, frames)
        self._recorder.handling(previous)

    def _feed_compiled(self, reply: Any, frames: Frames | None) -> None:
        if type(reply) in (stimuli.GraphChunk, stimuli.GraphRestarted):
            self._driver.feed(reply, self.name, frames=frames)
            return
        for graph in self.pending_graphs:
            if graph.graph_id == reply.graph_id:
                graph.outcome = reply
                graph.outcome_frames = frames
                if type(reply) is stimuli.GraphCommit:
                    graph.awaited = self._awaited(graph)
                self.peer.server.measures.compiles.observe(time.perf_counter() - graph.started)
                break
        if self._unblock(max(0, self._driver.messages_left)):
            self._driver.defer(self)

    def _awaited(self, graph: PendingUpdateGraph) -> list[PendingUpdateGraph]:
        """Return the earlier graphs of other clients that compute missing inputs of ``graph``."""
        state = self.peer.server.state
        pending = state.graphs.get(graph.graph_id)
        keys = pending.external_dependencies if pending is not None else []
        missing = {key for key in keys if is_lost(state.tasks.get(key))}
        found = [
            other
            for stream in self._driver.client_streams.values()
            if missing and stream is not self
            for other in stream.pending_graphs
            if other.graph_id < graph.graph_id and not other.is_fed
            if not missing.isdisjoint(other.keys)
        ]
        if found:
            self.peer.server.spawn(self._continue_after(found), "wait for graphs of other clients")
        return found

    async def _continue_after(self, graphs: list[PendingUpdateGraph]) -> None:
        await self._driver.conditions.wait_for(lambda: all(graph.is_fed for graph in graphs))
        self._driver.defer(self)

    def _unblock(self, count: int) -> bool:
        """Feed the outcomes of finished graphs, and up to ``count`` messages that they blocked.

        Stop early if this wake-up has made enough transitions.

        Returns:
            Whether there are more.
        """
        graphs = self.pending_graphs
        while graphs and graphs[0].is_ready:
            graph = graphs[0]
            if not graph.is_fed:
                graph.is_fed = True
                self._driver.feed(
                    graph.outcome,
                    self.name,
                    stimulus_id=f"update-graph-{self._driver.clock()}",
                    frames=graph.outcome_frames,
                )
            if self._waits_for_commit(graph):
                break
            blocked = graph.blocked_messages
            if blocked and count:
                handled = super().feed_core(blocked[:count])
                graph.blocked_messages = blocked[handled:]
                count -= handled
                self._n_waiting -= handled
            if graph.blocked_messages:
                break
            graphs.popleft()
            self._n_waiting -= 1
        if self._n_waiting <= WAITING_MESSAGES_MAX // 2:
            self.peer.resume_reading("graphs")
        if self._ends_after_graphs and not graphs and not self.ended:
            super()._end()
        return bool(graphs) and graphs[0].is_ready

    def _waits_for_commit(self, graph: PendingUpdateGraph) -> bool:
        """Return whether the commit of a compiled graph waits for that of another graph.

        Later messages must wait too: they may release keys on which the graph depends.
        """
        pending = self.peer.server.state.graphs.get(graph.graph_id)
        return pending is not None and pending.commit is not None and not pending.has_begun

    def handle_deferred(self, count: int) -> bool:
        """See ``Stream``. Messages that were blocked by graphs precede those of the inbox."""
        more = self._unblock(count)
        return super().handle_deferred(count) or more

    # the end

    def handle_late(self, messages: list[Any]) -> None:
        """Ignore them."""

    def _end(self) -> None:
        """End the stream, after its graphs are compiled if another client needs one of them.

        A client may close right after ``fire_and_forget``.
        """
        if any(map(self._is_needed_by_others, self.pending_graphs)):
            self._ends_after_graphs = True
        else:
            super()._end()

    def _is_needed_by_others(self, graph: PendingUpdateGraph) -> bool:
        return self._is_wanted_by_others(graph.keys) or any(
            type(message) is m.ClientDesiresKeys and message.client not in ("", self.name)
            for message in graph.blocked_messages
        )

    def unregister(self) -> None:
        for graph in self.pending_graphs:
            if graph.outcome is None:
                self.peer.server.graph_compilers.cancel(graph.graph_id)
        if self._driver.client_streams.get(self.name) is self:
            del self._driver.client_streams[self.name]

    def removed(self) -> None:
        logger.info("Remove client %s", self.name)
        for graph in self.pending_graphs:
            if not graph.is_fed:
                graph.is_fed = True
                self._driver.feed(stimuli.GraphDropped(graph.graph_id), self.name)
        self.pending_graphs.clear()
        if self.name not in self._driver.client_streams:
            now = self._driver.clock()
            self._driver.feed(
                stimuli.ClientRemoved(self.name), self.name, stimulus_id=f"remove-client-{now}"
            )
        logger.info("Close client connection: %s", self.name)
