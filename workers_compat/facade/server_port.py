"""The interface of the server for facade and dashboard, and access to it within a turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, MutableMapping
from typing import Any, Protocol

from paceline.scheduler.core.core import SchedulerCore
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.scheduler.core.turn_observer import TurnObserver


class FacadeDriver(Protocol):
    """The part of ``Driver`` that the facade and the dashboard use."""

    @property
    def worker_streams(self) -> Mapping[str, Any]: ...

    @property
    def client_streams(self) -> Mapping[str, Any]: ...

    def feed_after_turn(
        self, message: Any, source: str = "", stimulus_id: str | None = None
    ) -> None: ...

    def add_observer(self, observer: TurnObserver) -> None: ...

    def remove_observer(self, observer: TurnObserver) -> None: ...


class FacadeServer(Protocol):
    """The part of ``Server`` that the facade and the dashboard use."""

    core: SchedulerCore
    state: SchedulerState
    loop: asyncio.AbstractEventLoop
    core_types: frozenset[type]

    plugins: Any
    request_state: Any
    graph_compilers: Any

    @property
    def driver(self) -> FacadeDriver: ...

    @property
    def handlers(self) -> MutableMapping[type[Any], Callable[..., Any]]: ...

    @property
    def rpc_counts(self) -> Mapping[type[Any], int]: ...

    def now(self) -> float: ...

    def send_stimulus(
        self, message: Any, source: str = "", stimulus_id: str | None = None
    ) -> None: ...

    def request(
        self, message: Any, source: str = "", stimulus_id: str | None = None
    ) -> asyncio.Future[Any]: ...

    def rpc_call(self, address: str, request: Any) -> Coroutine[Any, Any, Any]: ...

    def wait_for(self, predicate: Callable[[], bool]) -> Coroutine[Any, Any, bool]: ...

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]: ...

    def route_streams(self, core_types: frozenset[type]) -> None: ...

    def worker_address(self, name: Any, resolve: bool = True) -> str: ...

    def profile_metadata(self, **options: Any) -> Coroutine[Any, Any, dict[str, Any]]: ...

    def gather_on_worker(
        self, address: str, who_has: Mapping[Any, list[str]]
    ) -> Coroutine[Any, Any, set[Any]]: ...

    def delete_worker_data(
        self, address: str, keys: list[Any], stimulus_id: str
    ) -> Coroutine[Any, Any, None]: ...


class DeferringServer:
    """The server for requests of plugins: stimuli wait for the end of a turn while it is `busy`."""

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
        reply: asyncio.Future[Any] = self._server.loop.create_future()

        def copy(done: asyncio.Future[Any]) -> None:
            if reply.done() or (done.cancelled() and reply.cancel()):
                return
            if (error := done.exception()) is not None:
                reply.set_exception(error)
            else:
                reply.set_result(done.result())

        def send() -> None:
            self._server.request(message, source, stimulus_id).add_done_callback(copy)

        self._server.loop.call_soon(send)
        return reply
