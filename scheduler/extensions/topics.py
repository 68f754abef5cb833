"""Topics: clients and workers log events, read them, and subscribe to them."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

from paceline.protocol import messages as m
from paceline.scheduler.core.extension import Extension
from paceline.scheduler.core.ticks.whole_workers import MEMORY_TOPIC, note_memory_report
from paceline.scheduler.core.turn import WARNING, Turn

from .names import hashable_name, hashable_names

#: Maximum number of clients and workers that left and whose topics are kept; the oldest goes first.
LEFT_PEERS_MAX = 20_000


class Topics(Extension):
    """Operations ``log-event``, ``log_event``, ``events`` and the subscription of topics.

    Args:
        cleanup_delay_seconds: how long to keep the events of a client or worker that left.
    """

    name: ClassVar[str] = "topics"

    def __init__(self, cleanup_delay_seconds: float) -> None:
        self.cleanup_delay_seconds = cleanup_delay_seconds
        self._timers: dict[str, int] = {}

    def handle_log_event(self, turn: Turn, message: m.LogEvent) -> None:
        """Log an event from a worker, adding the worker's address to it."""
        topics = topic_names(message.topic)
        event = message.msg
        if isinstance(event, dict) and topics != turn.source:
            event = {**event, "worker": turn.source}
        turn.log_event(topics, event)
        source = turn.source
        if source and source not in turn.state.workers and source not in self._timers:
            self._forget_later(turn, source)  # its topic was already dropped

    def handle_log_event_rpc(self, turn: Turn, message: m.LogEventRpc) -> None:
        """Log an event from a client or a nanny and reply None."""
        turn.log_event(topic_names(message.topic), message.msg)
        if message.topic == MEMORY_TOPIC:
            note_memory_report(turn, message.msg)
        turn.reply(turn.request_id, None)

    def handle_events(self, turn: Turn, message: m.Events) -> None:
        """Reply the events of a topic, or a dict of topic to events."""
        topic = hashable_name(message.topic)
        turn.reply(turn.request_id, turn.state.events.get(topic))

    def handle_subscribe_topic(self, turn: Turn, message: m.SubscribeTopic) -> None:
        """Subscribe the client to a topic."""
        topic, client = message.topic, message.client or turn.source
        if not turn.state.events.subscribe(hashable_name(topic), client):
            turn.log(WARNING, f"Too many subscriptions: {client} does not get {topic!r}")

    def handle_unsubscribe_topic(self, turn: Turn, message: m.UnsubscribeTopic) -> None:
        """Unsubscribe the client from a topic."""
        topic = hashable_name(message.topic)
        turn.state.events.unsubscribe(topic, message.client or turn.source)

    # ------------------------------------------------------------------ peers that left

    def on_client_removed(self, turn: Turn, client: str) -> None:
        self._forget_later(turn, client)

    def on_worker_removed(self, turn: Turn, address: str) -> None:
        self._forget_later(turn, address)

    def _forget_later(self, turn: Turn, peer: str) -> None:
        """Set the only timer of `peer`; leaving again restarts the delay."""
        turn.cancel_timer(self._timers.pop(peer, 0))
        if len(self._timers) >= LEFT_PEERS_MAX:
            self._forget(turn, next(iter(self._timers)))
        when = turn.now + self.cleanup_delay_seconds
        self._timers[peer] = turn.call_at(when, partial(self._forget, peer=peer))

    def _forget(self, turn: Turn, peer: str) -> None:
        """Drop the topic and the subscriptions of `peer` unless it has returned."""
        turn.cancel_timer(self._timers.pop(peer, 0))
        if peer in turn.state.clients or peer in turn.state.workers:
            return
        turn.state.events.truncate(peer)
        turn.state.events.forget_client(peer)


def topic_names(topic: Any) -> Any:
    """Return `topic` as one name or a tuple of names.

    Raises:
        ExtensionError: TypeError, if it is neither a str nor a collection of names.
    """
    return hashable_name(topic) if isinstance(topic, str) else hashable_names(topic)
