"""``Transfer``, the worker plugin that enables a transfer on present and future workers."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import distributed.worker
from distributed.diagnostics.plugin import WorkerPlugin
from tornado.ioloop import PeriodicCallback

from .backend import RENEW_SECONDS, BackendContext
from .health import Health
from .prefetch import Prefetcher
from .settings import Rule, configured, settings
from .worker_transfer import WorkerTransfer
from .wrappers import POOL_ATTRIBUTE, wrap_get_data, wrap_get_data_from_worker

logger = logging.getLogger("distributed.worker.transfer")

NAME = "paceline-transfer"
#: Metric in heartbeats with the memory domain of the worker; used for placement by
#: ``scheduler/core/state/workers/locality.py``.
DOMAIN_METRIC = "memory_domain"
#: The backend whose values are read in place.
MEMORY = "shm"


class Transfer(WorkerPlugin):  # type: ignore[misc]  # distributed is not typed
    """Worker plugin that moves task results: ``client.register_plugin(Transfer())``.

    Args:
        backends: names in order of preference ("shm", "vm", "file", "redis", "direct", "auto", or
            "module:Class").
        rules: other choices for certain values (``Rule``, or mappings of its attributes).
        min_nbytes: smaller values use Dask's own transfer; None for the backend's own limit. Bytes,
            or text such as "1 MiB".
        options: backend name -> its options; "file" and "redis" also accept the directory or URL,
            as in ``Transfer("file", file="/shared/folder")``. Sizes and durations are numbers, or
            text such as "1 GiB" and "30s".

    Raises:
        ValueError: a backend in ``backends``, ``rules`` or ``options``, or an option of a built-in
            backend is unknown, a rule, a size or a duration is invalid, or a required option is
            missing.
    """

    name = NAME
    idempotent = False
    #: The transfer of the worker while the plugin is set up.
    transfer: WorkerTransfer | None = None
    _prefetcher: Prefetcher

    def __init__(
        self,
        *backends: str,
        rules: Sequence[Rule | Mapping[str, Any]] = (),
        min_nbytes: int | str | None = None,
        **options: Any,
    ) -> None:
        self.settings = settings(*backends, rules=rules, min_nbytes=min_nbytes, **options)

    def __repr__(self) -> str:
        return f"Transfer({', '.join(map(repr, self.settings.backends))})"

    def __getstate__(self) -> dict[str, Any]:
        return {"settings": self.settings}

    def setup(self, worker: Any) -> None:
        """Wrap the worker's data handlers; called by the worker."""
        if worker.address.startswith("inproc"):
            return  # peers in the same process share objects
        host = worker.address.rpartition("://")[2].rpartition(":")[0].strip("[]")
        memory = worker.memory_manager.memory_limit or 0
        security = worker.security if worker.address.startswith("tls") else None
        context = BackendContext(secrets.token_hex(16), host, memory, security)
        self.transfer = WorkerTransfer(worker, self.settings, Health(self.settings, context))
        self._stock = worker.handlers["get_data"]
        self._handler = wrap_get_data(self.transfer, self._stock)
        worker.handlers["get_data"] = self._handler
        self._prefetcher = Prefetcher(self.transfer)
        if not hasattr(distributed.worker.get_data_from_worker, "paceline_stock"):
            # once per process; the wrapper only changes calls of workers with a transfer
            wrapped = wrap_get_data_from_worker(distributed.worker.get_data_from_worker)
            distributed.worker.get_data_from_worker = wrapped
        setattr(worker.rpc, POOL_ATTRIBUTE, self.transfer)
        worker.metrics[DOMAIN_METRIC] = self._memory_domain
        renewing = PeriodicCallback(self.transfer.renew, RENEW_SECONDS * 1000)
        worker.periodic_callbacks[NAME] = renewing
        renewing.start()
        logger.info(
            "Transfer enabled with backends: %s",
            ", ".join(self.transfer.health.backends) or "none",
        )

    def teardown(self, worker: Any) -> None:
        """Restore the stock handlers; called when the worker closes or the plugin is removed."""
        if self.transfer is None:
            return
        transfer, self.transfer = self.transfer, None
        renewing = worker.periodic_callbacks.pop(NAME, None)
        if renewing is not None:
            renewing.stop()
        worker.metrics.pop(DOMAIN_METRIC, None)
        if worker.handlers.get("get_data") is self._handler:
            worker.handlers["get_data"] = self._stock
        self._prefetcher.close()
        if getattr(worker.rpc, POOL_ATTRIBUTE, None) is transfer:
            delattr(worker.rpc, POOL_ATTRIBUTE)
        transfer.close()

    def transition(self, key: Hashable, start: str, finish: str, **more: Any) -> None:
        """Offer results that enter memory, and drop values that leave it; called by the worker."""
        if self.transfer is None:
            return
        if start == "executing":
            self._prefetcher.report()
        if start == "memory":
            self.transfer.on_key_released(key)
            self._prefetcher.on_key_released(key)
        elif finish == "memory" and start != "flight":
            self.transfer.on_task_finished(key)

    def _memory_domain(self, worker: Any) -> str:
        """Return the name of the shared memory that this worker reads, for heartbeats."""
        transfer = self.transfer
        return dict(transfer.health.announced()).get(MEMORY, "") if transfer is not None else ""


def configured_transfer() -> Transfer:
    """Return the transfer given by the configuration; "auto" if there is none."""
    plugin = Transfer()
    plugin.settings = configured() or plugin.settings
    return plugin


def preload(worker: Any) -> None:
    """Enable the configured transfer on a starting worker."""
    # preloads run before the worker sets up its plugins
    worker._pending_plugins = (*worker._pending_plugins, configured_transfer())  # noqa: SLF001
