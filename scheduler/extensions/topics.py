"""Topics: peers log events, read them, and subscribe to them.

Must not know: how events are stored (``events.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from paceline.protocol.messages import (
    Events,
    LogEvent,
    LogEventRpc,
    SubscribeTopic,
    UnsubscribeTopic,
)

from .machine import Handler, Machine, sender
from .names import hashable_name
from .replies import Refused

if TYPE_CHECKING:
    from paceline.scheduler.core.stimuli import Stimulus
    from paceline.scheduler.core.turn import Turn

WARNING = 30

#: Peers that left and whose topics are still kept. When more leave, the one that left first is forgotten.
LEFT_PEERS_MAX = 20_000


@dataclass(slots=True)
class PeerForgotten:
    """Timer: a peer left a while ago. If it has not come back, its own topic is dropped."""

    peer: str


class Topics(Machine):
    """Ops ``log-event``, ``log_event``, ``events``, ``subscribe-topic`` and ``unsubscribe-topic``."""

    name: ClassVar[str] = "topics"

    def __init__(self, cleanup_delay_seconds: float) -> None:
        """``cleanup_delay_seconds``: how long events of a peer that left are kept."""
        self.cleanup_delay_seconds = cleanup_delay_seconds
        self._timers: dict[str, int] = {}

    def routes(self) -> Mapping[type[Any], Handler]:
        return {
            LogEvent: self.handle_log_event,
            LogEventRpc: self.handle_log_event_rpc,
            Events: self.handle_events,
            SubscribeTopic: self.handle_subscribe_topic,
            UnsubscribeTopic: self.handle_unsubscribe_topic,
            PeerForgotten: self.handle_peer_forgotten,
        }

    def handle_log_event(self, turn: Turn, stimulus: Stimulus) -> None:
        """From a worker's stream: the event learns which worker it came from."""
        message = stimulus.message
        topics = topic_names(message.topic)
        event = message.msg
        if isinstance(event, dict) and topics != stimulus.source:
            event = {**event, "worker": stimulus.source}
        turn.state.events.log(turn, topics, event)
        source = stimulus.source
        if source and source not in turn.state.workers and source not in self._timers:
            self._forget_later(turn, source)  # it left longer ago than its events are kept

    def handle_log_event_rpc(self, turn: Turn, stimulus: Stimulus) -> None:
        """From a client or a nanny. Replies None."""
        message = stimulus.message
        turn.state.events.log(turn, topic_names(message.topic), message.msg)
        turn.reply(stimulus.request_id, None)

    def handle_events(self, turn: Turn, stimulus: Stimulus) -> None:
        """Replies the events of a topic, or topic -> events."""
        topic = hashable_name(stimulus.message.topic)
        turn.reply(stimulus.request_id, turn.state.events.get(topic))

    def handle_subscribe_topic(self, turn: Turn, stimulus: Stimulus) -> None:
        """The client hears of every event of the topic from now on."""
        topic, client = stimulus.message.topic, sender(stimulus)
        if not turn.state.events.subscribe(hashable_name(topic), client):
            turn.log(WARNING, f"Too many subscriptions: {client} does not get {topic!r}")

    def handle_unsubscribe_topic(self, turn: Turn, stimulus: Stimulus) -> None:
        """The opposite."""
        topic = hashable_name(stimulus.message.topic)
        turn.state.events.unsubscribe(topic, sender(stimulus))

    # ------------------------------------------------------------------ peers that left

    def on_client_gone(self, turn: Turn, client: str) -> None:
        self._forget_later(turn, client)

    def on_worker_gone(self, turn: Turn, address: str) -> None:
        self._forget_later(turn, address)

    def _forget_later(self, turn: Turn, peer: str) -> None:
        """One timer a peer: a peer that comes and goes starts the delay anew."""
        turn.cancel_timer(self._timers.pop(peer, 0))
        if len(self._timers) >= LEFT_PEERS_MAX:
            first = next(iter(self._timers))
            turn.cancel_timer(self._timers.pop(first))
            self._forget(turn, first)
        when = turn.now + self.cleanup_delay_seconds
        self._timers[peer] = turn.call_at(when, PeerForgotten(peer))

    def handle_peer_forgotten(self, turn: Turn, stimulus: Stimulus) -> None:
        """The delay is over: a peer that is not back loses its topic and its subscriptions."""
        self._timers.pop(stimulus.message.peer, None)
        self._forget(turn, stimulus.message.peer)

    def _forget(self, turn: Turn, peer: str) -> None:
        if peer in turn.state.clients or peer in turn.state.workers:
            return
        turn.state.events.truncate(peer)
        turn.state.events.forget_client(peer)


def topic_names(topic: Any) -> Any:
    """One name, or a tuple of names.

    Raises:
        Refused: TypeError, where it is neither.
    """
    if isinstance(topic, str):
        return topic
    if isinstance(topic, list | tuple):
        return tuple(hashable_name(name) for name in topic)
    raise Refused("TypeError", f"{type(topic).__name__!r} object is not iterable")
