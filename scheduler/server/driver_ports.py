"""Ports of the driver: protocols for the core and for the streams of peers."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from paceline.protocol.messages import Message
    from paceline.scheduler.core.stimuli import Stimulus
    from paceline.scheduler.core.turn import Outbox


class CorePort(Protocol):
    """The scheduler core: ``SchedulerCore``."""

    @property
    def state(self) -> Any: ...

    def handle(self, stimulus: Stimulus, now: float, outbox: Outbox) -> Any: ...


class StreamPort(Protocol):
    """The stream of a worker or client: ``peers.streams.Stream``."""

    def send(self, messages: list[Message]) -> None: ...

    def close_when_written(self) -> None: ...

    @property
    def number(self) -> int: ...

    def handle_deferred(self, count: int) -> bool: ...


class ClientStreamPort(StreamPort, Protocol):
    """The stream of a client: ``peers.client_stream.ClientStream``."""

    @property
    def n_graphs(self) -> int: ...

    @property
    def pending_graphs(self) -> Collection[Any]: ...

    def drop_graphs(self) -> None: ...

    def pause_until_read(self, reply: asyncio.Future[Any]) -> None: ...
