"""The event log: what happened, by topic, and who wants to hear of it.

The core logs here too, so this module imports nothing of the core but types and containers.

Must not know: what the events mean; how peers ask for them (``topics.py``).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from paceline.protocol.messages import Event
from paceline.scheduler.core.history import History

if TYPE_CHECKING:
    from paceline.scheduler.core.turn import Turn

#: Topics with events. Every worker and client that ever came has one, and users make more; the one that was
#: silent longest is dropped first.
TOPICS_MAX = 20_000
#: Clients listening to one topic, and topics that one log remembers listeners of.
SUBSCRIBERS_MAX = 10_000
SUBSCRIBED_TOPICS_MAX = 100_000

#: When (seconds since the epoch), and what: anything plain, or closed.
LoggedEvent: TypeAlias = tuple[float, Any]


class Topic:
    """What was logged under one name.

    Attributes:
        events: the latest, oldest first.
        count: how many there ever were.
    """

    __slots__ = ("count", "events")

    def __init__(self, maxlen: int | None) -> None:
        self.events: History[LoggedEvent] = History(maxlen)
        self.count = 0


class EventLog:
    """Events by topic, and the clients that subscribed.

    Attributes:
        topics: name -> Topic, the one that was silent longest first.
        subscribers: topic -> names of clients, in order of subscription. A subscription outlives a broken
            connection (stock clients do not subscribe again when they reconnect) until ``forget_client``.
    """

    __slots__ = ("_maxlen", "_topics_max", "subscribers", "topics")

    def __init__(self, maxlen: int | None = 1000, topics_max: int = TOPICS_MAX) -> None:
        """``maxlen``: events kept a topic; None for all."""
        self._maxlen = maxlen
        self._topics_max = topics_max
        self.topics: dict[Hashable, Topic] = {}
        self.subscribers: dict[Hashable, dict[str, None]] = {}

    def log(self, turn: Turn, topics: str | Iterable[Hashable], event: Any) -> None:
        """Store an event under its topics and tell the clients that subscribed to them."""
        logged = (turn.now, event)
        for name in (topics,) if isinstance(topics, str) else topics:
            self._append(name, logged)
            for client in self.subscribers.get(name, ()):
                if client in turn.state.clients:
                    turn.to_client(client, Event(topic=name, event=logged))
            turn.outbox.records.append(("log-event", name, event))

    def _append(self, name: Hashable, logged: LoggedEvent) -> None:
        topic = self.topics.pop(name, None)
        if topic is None:
            topic = Topic(self._maxlen)
            if len(self.topics) >= self._topics_max:
                del self.topics[next(iter(self.topics))]
        topic.events.append(logged)
        topic.count += 1
        self.topics[name] = topic

    def get(
        self, topic: Hashable | None = None
    ) -> tuple[LoggedEvent, ...] | dict[Hashable, tuple[LoggedEvent, ...]]:
        """The events of a topic, oldest first; without one, those of every topic that has any."""
        if topic is None:
            return {name: tuple(t.events) for name, t in self.topics.items() if t.events}
        found = self.topics.get(topic)
        return tuple(found.events) if found is not None else ()

    def subscribe(self, topic: Hashable, client: str) -> bool:
        """Tell the client of every event of the topic from now on. False where too many listen."""
        clients = self.subscribers.get(topic)
        if clients is None:
            if len(self.subscribers) >= SUBSCRIBED_TOPICS_MAX:
                return False
            clients = self.subscribers[topic] = {}
        if client not in clients and len(clients) >= SUBSCRIBERS_MAX:
            return False
        clients[client] = None
        return True

    def unsubscribe(self, topic: Hashable, client: str) -> None:
        """The opposite; a client that did not subscribe is ignored."""
        clients = self.subscribers.get(topic)
        if clients is not None:
            clients.pop(client, None)
            if not clients:
                del self.subscribers[topic]

    def forget_client(self, client: str) -> None:
        """End all of a client's subscriptions."""
        for topic in [name for name, clients in self.subscribers.items() if client in clients]:
            self.unsubscribe(topic, client)

    def truncate(self, topic: Hashable | None = None) -> None:
        """Drop the events of a topic, or of all."""
        if topic is None:
            self.topics.clear()
        else:
            self.topics.pop(topic, None)
