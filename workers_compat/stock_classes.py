"""Classes of distributed: ``LocalCluster`` with another scheduler, ``Status``, ``Scheduler``."""

from __future__ import annotations

import logging
import sys
from typing import Any

from distributed import LocalCluster, scheduler
from distributed.core import Status
from distributed.deploy.spec import ProcessInterface
from distributed.node import ServerNode

__all__ = ["LocalCluster", "ProcessInterface", "Status"]

logger = logging.getLogger("distributed.scheduler")

#: Where a durable scheduler listens by default.
LOCAL_HOST = "127.0.0.1"
#: Its protocol.
TCP = "tcp://"


def status(name: str) -> Status:
    """Return distributed's ``Status`` of this name."""
    return Status[name]


def start_services(node: Any, host: str) -> None:
    """Start the servers in `node.service_specs` on `host` and add them to `node.services`.

    Warn about servers that do not start.
    """
    ServerNode.start_services(node, host)


def stop_services(node: Any) -> None:
    """Stop the dashboard's server and those that the option ``services=`` or preloads added."""
    for name, service in node.services.items():
        try:
            service.stop()
        except Exception:
            logger.exception("Stopping the service %r failed", name)


def local_cluster(scheduler_class: type, durable_class: type) -> type[LocalCluster]:
    """Return a ``LocalCluster`` with a scheduler of `scheduler_class`, or of `durable_class`."""

    class PacelineLocalCluster(LocalCluster):
        """Workers on this machine, and paceline's scheduler in this process.

        Options as of distributed's ``LocalCluster``. With `durable`, the folder of a log, the
        scheduler runs in processes of its own, whose death the workers and clients do not notice.
        It then listens on ``tcp://``; another `protocol` is an error.
        """

        def __init__(self, *args: Any, durable: Any = None, **kwargs: Any) -> None:
            self._durable = durable
            super().__init__(*args, **kwargs)

        def _start(self) -> Any:
            spec = self.scheduler_spec
            spec["cls"] = scheduler_class
            if self._durable:
                spec["cls"] = durable_class
                self._configure_durable(spec["options"])
            return super()._start()

        def _configure_durable(self, options: dict[str, Any]) -> None:
            """Let the scheduler and the workers use tcp, also without processes of their own."""
            options["durable"] = self._durable
            if not options.get("host") and not options.get("interface"):
                options["host"] = LOCAL_HOST  # as for worker processes
            protocol = options.get("protocol") or TCP
            scheme = protocol.split("://")[0] if isinstance(protocol, str) else ""
            if scheme not in ("tcp", "inproc"):
                raise ValueError(f"durable= is possible with {TCP}, not {protocol!r}")
            options["protocol"] = TCP
            for worker in (self.new_spec, *self.worker_spec.values()):
                if str(worker.get("options", {}).get("protocol")) == protocol:
                    worker["options"]["protocol"] = TCP

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
