"""The event log: events by topic, the clients that subscribed to them, and errors of tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias

from paceline.protocol.keys import Key

#: Topics with events. Every worker and client ever connected has one, and users add more. The topic
#: whose last event is oldest is dropped first.
TOPICS_MAX = 20_000
#: Clients subscribed to one topic.
SUBSCRIBERS_MAX = 10_000
#: Topics with subscribers.
SUBSCRIBED_TOPICS_MAX = 100_000

#: Time in seconds since the epoch, and the event: a plain or a serialized value.
LoggedEvent: TypeAlias = tuple[float, Any]


@dataclass(slots=True)
class Topic:
    """The events of one topic.

    Attributes:
        events: the latest events, oldest first.
        count: number of events ever logged.
    """

    events: deque[LoggedEvent]
    count: int = 0


class EventLog:
    """Events by topic, and the clients that subscribed.

    Attributes:
        topics: name -> Topic, the one whose last event is oldest first.
        subscribers: topic -> names of clients, in order of subscription. A subscription outlives a
            broken connection (stock clients do not subscribe again when they reconnect) until
            ``forget_client``.
    """

    def __init__(self, maxlen: int | None = 1000, topics_max: int = TOPICS_MAX) -> None:
        """Keep `maxlen` events per topic, or all if None, and at most `topics_max` topics."""
        self._maxlen = maxlen
        self._topics_max = topics_max
        self.topics: dict[Hashable, Topic] = {}
        self.subscribers: dict[Hashable, dict[str, None]] = {}

    def append(self, name: Hashable, logged: LoggedEvent) -> None:
        """Store `logged` under the topic `name`."""
        topic = self.topics.pop(name, None)
        if topic is None:
            topic = Topic(deque(maxlen=self._maxlen))
            if len(self.topics) >= self._topics_max:
                del self.topics[next(iter(self.topics))]
        topic.events.append(logged)
        topic.count += 1
        self.topics[name] = topic

    def get(
        self, topic: Hashable | None = None
    ) -> tuple[LoggedEvent, ...] | dict[Hashable, tuple[LoggedEvent, ...]]:
        """Return the events of `topic`, oldest first; without it, those of all topics."""
        if topic is None:
            return {name: tuple(t.events) for name, t in self.topics.items() if t.events}
        found = self.topics.get(topic)
        return tuple(found.events) if found is not None else ()

    def subscribe(self, topic: Hashable, client: str) -> bool:
        """Subscribe `client` to `topic`. Return False if a limit on subscriptions is reached."""
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
        """End the subscription of `client` to `topic`, if it has one."""
        clients = self.subscribers.get(topic)
        if clients is not None:
            clients.pop(client, None)
            if not clients:
                del self.subscribers[topic]

    def forget_client(self, client: str) -> None:
        """End all subscriptions of `client`."""
        for topic in [name for name, clients in self.subscribers.items() if client in clients]:
            self.unsubscribe(topic, client)

    def truncate(self, topic: Hashable | None = None) -> None:
        """Drop the events of `topic`, or of all topics if None."""
        if topic is None:
            self.topics.clear()
        else:
            self.topics.pop(topic, None)


@dataclass(slots=True)
class ErredTask:
    """An entry in the history of errors, shown on the dashboard's exceptions page.

    Attributes:
        key: the task that failed.
        timestamp: seconds since the epoch.
        erred_on: addresses of workers.
        exception_text, traceback_text: the error as text.
    """

    key: Key
    timestamp: float
    erred_on: tuple[str, ...]
    exception_text: str
    traceback_text: str
