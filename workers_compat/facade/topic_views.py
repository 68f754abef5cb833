"""The event log behind stock's ``Scheduler``: ``scheduler._broker._topics[name]``.

Views are computed and events deserialized when they are read.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

from paceline.scheduler.core.state.event_log import EventLog

from .views import deserialize

DeserializedEvents = tuple[tuple[float, Any], ...]


class TopicView:
    """One topic. As in stock, a topic that does not exist is empty."""

    def __init__(self, log: EventLog, name: Hashable) -> None:
        self._log = log
        self._name = name

    @property
    def events(self) -> DeserializedEvents:
        """Return (seconds since the epoch, event), oldest first."""
        topic = self._log.topics.get(self._name)
        return deserialized_events(topic.events) if topic is not None else ()

    @property
    def count(self) -> int:
        """Return the number of events ever logged."""
        topic = self._log.topics.get(self._name)
        return topic.count if topic is not None else 0

    @property
    def subscribers(self) -> set[str]:
        """Return the names of subscribed clients."""
        return set(self._log.subscribers.get(self._name, ()))


class TopicViews(Mapping[Hashable, TopicView]):
    """Name -> topic. Every name has a topic."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def __getitem__(self, name: Hashable) -> TopicView:
        return TopicView(self._log, name)

    def __contains__(self, name: object) -> bool:
        return name in self._log.topics

    def __iter__(self) -> Iterator[Hashable]:
        return iter(list(self._log.topics))

    def __len__(self) -> int:
        return len(self._log.topics)


class Broker:
    """Stock's ``Scheduler._broker``, read-only."""

    def __init__(self, log: EventLog) -> None:
        self._topics = TopicViews(log)


def deserialized_events(events: Iterable[tuple[float, Any]]) -> DeserializedEvents:
    """Return events with their contents deserialized."""
    return tuple((when, deserialize(event)) for when, event in events)
