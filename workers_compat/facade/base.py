"""The base class of the parts of the facade: the server, views of its objects, and settings.

Reading a setting returns the current configuration. Writing one is a command of the core, so that a
journal contains it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paceline.scheduler.core import stimuli
from paceline.scheduler.core.handlers.commands import check_setting
from paceline.scheduler.core.state.scheduler_state import SchedulerState
from paceline.workers_compat.config.config import seconds

from .server_port import DeferringServer, FacadeServer
from .views import ClientView, TaskView, WorkerView

if TYPE_CHECKING:
    from .plugins import Plugins

#: Name of stock's periodic callback -> the setting that turns the check on and off.
TICK_CHECKS = {
    "worker-ttl": "watch_worker_ttl",
    "idle-timeout": "watch_idle",
    "no-workers-timeout": "watch_no_workers",
}


class Setting:
    """A setting under the name of stock's attribute.

    Args:
        field: the field of ``SchedulerConfig``.
        parse: converts what a program assigns to a value of the field.
        show: converts the field's value to what stock shows.
    """

    def __init__(
        self,
        field: str,
        parse: Callable[[Any], Any] = lambda value: value,
        show: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        self._field = field
        self._parse = parse
        self._show = show

    def __get__(self, facade: Any, owner: type | None = None) -> Any:
        return self if facade is None else self._show(getattr(facade.state.config, self._field))

    def __set__(self, facade: Any, value: Any) -> None:
        facade.configure(self._field, self._parse(value))


class TickCallback:
    """A check that each tick makes, as tornado's ``PeriodicCallback``, for programs that stop it.

    Args:
        field: the setting that turns it on and off.
    """

    def __init__(self, facade: FacadeBase, field: str) -> None:
        self._facade = facade
        self._field = field

    def is_running(self) -> bool:
        return bool(getattr(self._facade.state.config, self._field))

    def start(self) -> None:
        self._facade.configure(self._field, True)

    def stop(self) -> None:
        self._facade.configure(self._field, False)


class FacadeBase:
    """The base class of the facade's parts, with stock's settings.

    Args:
        server: the server behind the facade.
        scheduler: the ``Scheduler`` object: address, id, status, services, ``close``, ``identity``,
            ...

    Attributes:
        plugin_host: the registered plugins.
        handlers: op -> function.
        deferring_server: the server for requests and stimuli, which wait while a turn is under way.
    """

    plugin_host: Plugins
    handlers: Any

    WORKER_SATURATION = Setting("worker_saturation", float)
    UNKNOWN_TASK_DURATION = Setting("unknown_task_duration_seconds", seconds)
    MEMORY_RECENT_TO_OLD_TIME = Setting("memory_recent_to_old_seconds", seconds)
    MEMORY_REBALANCE_MEASURE = Setting("rebalance_measure")
    MEMORY_REBALANCE_SENDER_MIN = Setting("rebalance_sender_min", float)
    MEMORY_REBALANCE_RECIPIENT_MAX = Setting("rebalance_recipient_max", float)
    MEMORY_REBALANCE_HALF_GAP = Setting("rebalance_gap", lambda half: 2 * half, lambda gap: gap / 2)
    allowed_failures = Setting("allowed_failures", int)
    idle_timeout = Setting("idle_timeout_seconds", seconds)
    no_workers_timeout = Setting("no_workers_timeout_seconds", seconds)
    rootish_tg_threshold = Setting("rootish_taskgroup", int)
    rootish_tg_dependencies_threshold = Setting("rootish_taskgroup_dependencies", int)
    validate = Setting("validate", bool)
    worker_ttl = Setting("worker_ttl_seconds", seconds)

    def __init__(self, server: FacadeServer, scheduler: Any) -> None:
        self.server = server
        self.scheduler = scheduler
        self.deferring_server = DeferringServer(server, lambda: self.plugin_host.depth > 0)

    @property
    def state(self) -> SchedulerState:
        return self.server.state

    def configure(self, field: str, value: Any) -> None:
        """Change a setting, now or right after the current turn.

        Raises:
            AttributeError: The setting is fixed when the scheduler starts.
            ValueError: The value is out of range.
        """
        check_setting(self.state, field, value)
        self.send_stimulus(stimuli.Configure(field, value))

    def send_stimulus(self, message: Any, source: str = "", stimulus_id: str | None = None) -> None:
        """Feed a stimulus to the core, now or right after the current turn."""
        self.deferring_server.send_stimulus(message, source, stimulus_id)

    def task_view(self, ts: Any) -> TaskView:
        return TaskView(ts, self.plugin_host.context)

    def worker_view(self, ws: Any) -> WorkerView:
        return WorkerView(ws, self.plugin_host.context)

    def client_view(self, cs: Any) -> ClientView:
        return ClientView(cs, self.plugin_host.context)


#: Attributes of the ``Scheduler`` object that are settings of the facade.
SETTINGS = frozenset(name for name, value in vars(FacadeBase).items() if isinstance(value, Setting))
