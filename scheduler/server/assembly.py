"""How a core is put together with its extensions, for a server and for a replay alike.

Must not know: sockets, files.
"""

from __future__ import annotations

from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.core.core import SchedulerCore
from paceline.scheduler.core.ports import PluginPort
from paceline.scheduler.extensions import default_extensions
from paceline.scheduler.extensions.events import EventLog
from paceline.workers_compat.errors import ErrorFactory


def build_core(config: SchedulerConfig, plugins: PluginPort | None = None) -> SchedulerCore:
    """A core without tasks, workers and clients.

    Raises:
        ValueError: a value of the configuration is out of its range.
    """
    events = EventLog(config.low_level_log_length)
    return SchedulerCore(config, ErrorFactory(), events, default_extensions(config), plugins)
