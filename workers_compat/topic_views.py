"""The event log as programs find it behind stock's ``Scheduler``: ``scheduler._broker._topics[name]`` with its events and who listens.

Views are computed when they are asked for, and opened: events that came closed are read here.

Must not know: how events get there.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any

from paceline.scheduler.extensions.events import EventLog

from .views import opened

OpenedEvents = tuple[tuple[float, Any], ...]


class TopicView:
    """One topic; as in stock, one that is not there yet is empty."""

    def __init__(self, log: EventLog, name: Hashable) -> None:
        self._log = log
        self._name = name

    @property
    def events(self) -> OpenedEvents:
        """(seconds since the epoch, event), oldest first."""
        topic = self._log.topics.get(self._name)
        return opened_events(topic.events) if topic is not None else ()

    @property
    def count(self) -> int:
        """How many there ever were."""
        topic = self._log.topics.get(self._name)
        return topic.count if topic is not None else 0

    @property
    def subscribers(self) -> set[str]:
        """Names of clients."""
        return set(self._log.subscribers.get(self._name, ()))


class TopicViews(Mapping[Hashable, TopicView]):
    """The topics by their names; any name has one."""

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
    """What stock calls ``Scheduler._broker``, to be read."""

    def __init__(self, log: EventLog) -> None:
        self._topics = TopicViews(log)


def opened_events(events: Iterable[tuple[float, Any]]) -> OpenedEvents:
    """Events with what came closed opened."""
    return tuple((when, opened(event)) for when, event in events)
