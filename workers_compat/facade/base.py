"""The base class of the parts of the facade: access to the server, and views of its objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.scheduler.core.state.scheduler_state import SchedulerState

from .server_port import DeferringServer, FacadeServer
from .views import ClientView, TaskView, WorkerView

if TYPE_CHECKING:
    from .plugins import Plugins


class FacadeBase:
    """The base class of the facade's parts.

    Args:
        server: the server behind the facade.
        scheduler: the ``Scheduler`` object: address, id, status, services, ``close``, ``identity``,
            ...

    Attributes:
        plugin_host: the registered plugins.
        deferring_server: the server for requests and stimuli, which wait while a turn is under way.
    """

    plugin_host: Plugins
    handlers: Any

    def __init__(self, server: FacadeServer, scheduler: Any) -> None:
        self.server = server
        self.scheduler = scheduler
        self.deferring_server = DeferringServer(server, lambda: self.plugin_host.depth > 0)

    @property
    def state(self) -> SchedulerState:
        """Return the scheduler's state."""
        return self.server.state

    def send_stimulus(self, message: Any, source: str = "", stimulus_id: str | None = None) -> None:
        """Feed a stimulus to the core, now or right after the current turn."""
        self.deferring_server.send_stimulus(message, source, stimulus_id)

    def task_view(self, ts: Any) -> TaskView:
        """Return the view of a task of the core."""
        return TaskView(ts, self.plugin_host.context)

    def worker_view(self, ws: Any) -> WorkerView:
        """Return the view of a worker of the core."""
        return WorkerView(ws, self.plugin_host.context)

    def client_view(self, cs: Any) -> ClientView:
        """Return the view of a client of the core."""
        return ClientView(cs, self.plugin_host.context)
