"""Classes of distributed: ``LocalCluster`` with another scheduler, ``Status``, ``Scheduler``."""

from __future__ import annotations

import sys
from typing import Any

from distributed import LocalCluster, scheduler
from distributed.core import Status


def status(name: str) -> Status:
    """Return distributed's ``Status`` of this name."""
    return Status[name]


def local_cluster(scheduler_class: type, protocols: tuple[str, ...]) -> type[LocalCluster]:
    """Return a ``LocalCluster`` that starts a scheduler of `scheduler_class`.

    The first of the `protocols` that the scheduler supports replaces any other.
    """

    class PacelineLocalCluster(LocalCluster):
        """Workers on this machine, and paceline's scheduler in this process.

        Options as of distributed's ``LocalCluster``.
        """

        def _start(self) -> Any:
            spec = self.scheduler_spec
            spec["cls"] = scheduler_class
            protocol = spec["options"].get("protocol") or ""
            if isinstance(protocol, str) and protocol and protocol.split("://")[0] not in protocols:
                spec["options"]["protocol"] = f"{protocols[0]}://"
                for worker in (self.new_spec, *self.worker_spec.values()):
                    if str(worker.get("options", {}).get("protocol")) == protocol:
                        worker["options"]["protocol"] = f"{protocols[0]}://"
            return super()._start()

    PacelineLocalCluster.__name__ = PacelineLocalCluster.__qualname__ = "LocalCluster"
    return PacelineLocalCluster


def current_scheduler_class() -> type:
    """Return the class that distributed currently binds as ``Scheduler``."""
    current: type = scheduler.Scheduler
    return current


def replace_class(replacement: type) -> None:
    """Bind `replacement` in all modules of distributed that bind the current class."""
    current = current_scheduler_class()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "distributed" and vars(module).get("Scheduler") is current:
            module.Scheduler = replacement  # type: ignore[attr-defined]
