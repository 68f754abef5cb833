"""The interface of the server for the facade, and access to it within a turn of the core."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, MutableMapping
from typing import Any, Protocol

from paceline.scheduler.core.core import SchedulerCore
from paceline.scheduler.core.state.scheduler_state import SchedulerState


class FacadeDriver(Protocol):
    """The part of ``Driver`` that the facade uses."""

    @property
    def worker_streams(self) -> Mapping[str, Any]:
        """Address -> stream."""

    @property
    def client_streams(self) -> Mapping[str, Any]:
        """Client name -> stream."""

    def feed_after_turn(
        self, message: Any, source: str = "", stimulus_id: str | None = None
    ) -> None:
        """Feed a stimulus right after the current turn."""


class FacadeServer(Protocol):
    """The part of ``Server`` that the facade uses."""

    @property
    def core(self) -> SchedulerCore:
        """The core."""

    @property
    def state(self) -> SchedulerState:
        """The state of the core."""

    @property
    def driver(self) -> FacadeDriver:
        """The driver of the core."""

    @property
    def request_state(self) -> Any:
        """Logs, profiles, and registered worker and nanny plugins."""

    @property
    def graph_compilers(self) -> Any:
        """The graph compilers; ``upload_file`` gives them a module."""

    @property
    def handlers(self) -> MutableMapping[type[Any], Callable[..., Any]]:
        """Message class -> handler of a request."""

    @property
    def core_types(self) -> frozenset[type]:
        """Message classes that the core handles."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop."""

    def now(self) -> float:
        """Return the time in seconds since the epoch."""

    def send_stimulus(self, message: Any, source: str = "", stimulus_id: str | None = None) -> None:
        """Feed a stimulus to the core."""

    def request(
        self, message: Any, source: str = "", stimulus_id: str | None = None
    ) -> asyncio.Future[Any]:
        """Feed a request to the core and return a future of its reply."""

    def rpc_call(self, address: str, request: Any) -> Coroutine[Any, Any, Any]:
        """Send a request to a worker or nanny and return the reply."""

    def wait_for(self, predicate: Callable[[], bool]) -> Coroutine[Any, Any, bool]:
        """Wait until `predicate` is true after a turn."""

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run a coroutine in the background."""

    def route_streams(self, to_core: frozenset[type]) -> None:
        """Set the message classes that streams pass to the core."""

    def worker_address(self, name: Any, resolve: bool = True) -> str:
        """Return the address of a worker by name, alias or address."""

    def profile_metadata(self, **options: Any) -> Coroutine[Any, Any, dict[str, Any]]:
        """Return the number of profile samples over time."""

    def gather_on_worker(
        self, address: str, who_has: Mapping[Any, list[str]]
    ) -> Coroutine[Any, Any, set[Any]]:
        """Make a worker fetch keys, and return those that it could not fetch."""

    def delete_worker_data(
        self, address: str, keys: list[Any], stimulus_id: str
    ) -> Coroutine[Any, Any, None]:
        """Make a worker delete its copies of `keys`."""


class DeferringServer:
    """The server for requests of plugins: stimuli wait for the end of the current turn.

    Args:
        busy: returns whether a hook is running within a turn.
    """

    def __init__(self, server: FacadeServer, busy: Callable[[], bool]) -> None:
        self._server = server
        self._busy = busy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def send_stimulus(self, message: Any, source: str = "", stimulus_id: str | None = None) -> None:
        """Feed a stimulus now, or right after the turn."""
        if self._busy():
            self._server.driver.feed_after_turn(message, source, stimulus_id)
        else:
            self._server.send_stimulus(message, source, stimulus_id)

    def request(
        self, message: Any, source: str = "", stimulus_id: str | None = None
    ) -> asyncio.Future[Any]:
        """Feed a request to the core, now or after the turn, and return a future of its reply."""
        if not self._busy():
            return self._server.request(message, source, stimulus_id)
        future = self._server.loop.create_future()

        def send() -> None:
            copy_outcome(self._server.request(message, source, stimulus_id), future)

        self._server.loop.call_soon(send)
        return future


def copy_outcome(
    source: asyncio.Future[Any],
    target: asyncio.Future[Any],
    convert: Callable[[Any], Any] = lambda value: value,
) -> None:
    """Set the converted result, or the exception, of `source` on `target` as soon as it is done."""

    def copy(done: asyncio.Future[Any]) -> None:
        if target.done():
            done.cancelled() or done.exception()
        elif done.cancelled():
            target.cancel()
        elif (error := done.exception()) is not None:
            target.set_exception(error)
        else:
            target.set_result(convert(done.result()))

    source.add_done_callback(copy)
