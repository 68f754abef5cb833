"""``Transfer``: the plugin that turns it on, for workers that run and workers that come.

Must not know: back ends' insides, what is said on the wire.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import distributed.worker
from distributed.diagnostics.plugin import WorkerPlugin
from tornado.ioloop import PeriodicCallback

from .ahead import Ahead
from .backend import RENEW_SECONDS, Surroundings
from .exchange import POOL_ATTRIBUTE, Exchange, answering, asking
from .health import Health
from .settings import Rule, configured, settings

logger = logging.getLogger("distributed.worker.transfer")

NAME = "paceline-transfer"
DOMAIN_METRIC = "memory_domain"
"""Under this name heartbeats say which memory a worker shares (``scheduler/core/nearness.py``)."""
MEMORY = "shm"
"""The back end whose values are read where they lie."""


class Transfer(WorkerPlugin):
    """Moves task results another way: ``client.register_plugin(Transfer())``.

    Args:
        backends: names in order of preference ("shm", "file", "redis", "direct", "auto", or "module:Class").
        rules: for which values another choice holds (``Rule``, or mappings).
        min_nbytes: values smaller than this go Dask's own way; each back end has an idea of its own.
        options: name of a back end -> its options: ``Transfer("file", file="/shared/folder")``.

    Raises:
        ValueError: a word that means nothing here.
    """

    name = NAME
    idempotent = False

    def __init__(
        self,
        *backends: str,
        rules: Sequence[Rule | Mapping[str, Any]] = (),
        min_nbytes: int | str | None = None,
        **options: Any,
    ) -> None:
        self.settings = settings(*backends, rules=rules, min_nbytes=min_nbytes, **options)
        self._off()

    def __repr__(self) -> str:
        return f"Transfer({', '.join(map(repr, self.settings.backends))})"

    def __getstate__(self) -> dict[str, Any]:
        return {"settings": self.settings}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.settings = state["settings"]
        self._off()

    def _off(self) -> None:
        """Nothing of it stands on any worker yet."""
        self._exchange: Exchange | None = None
        self._ahead: Ahead | None = None
        self._stock: Any = None
        self._handler: Any = None

    @property
    def exchange(self) -> Exchange | None:
        """The worker's part of the transfer while it is on."""
        return self._exchange

    def setup(self, worker: Any) -> None:
        """Called by the worker."""
        if worker.address.startswith("inproc"):
            return  # peers are in this process: values pass as they are
        host = worker.address.rpartition("://")[2].rpartition(":")[0].strip("[]")
        memory = worker.memory_manager.memory_limit or 0
        security = worker.security if worker.address.startswith("tls") else None
        around = Surroundings(secrets.token_hex(16), host, memory, security)
        self._exchange = Exchange(worker, self.settings, Health(self.settings, around))
        self._stock = worker.handlers["get_data"]
        self._handler = answering(self._exchange, self._stock)
        worker.handlers["get_data"] = self._handler
        self._ahead = Ahead(self._exchange)
        _teach_asking()
        setattr(worker.rpc, POOL_ATTRIBUTE, self._exchange)
        worker.metrics[DOMAIN_METRIC] = self._memory_domain
        renewing = PeriodicCallback(self._renew, RENEW_SECONDS * 1000)
        worker.periodic_callbacks[NAME] = renewing
        renewing.start()
        logger.info("transfer on: %s", ", ".join(self._exchange.health.backends) or "nothing works")

    def teardown(self, worker: Any) -> None:
        """Called by the worker when it closes or the plugin is removed."""
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        renewing = worker.periodic_callbacks.pop(NAME, None)
        if renewing is not None:
            renewing.stop()
        worker.metrics.pop(DOMAIN_METRIC, None)
        if worker.handlers.get("get_data") is self._handler:
            worker.handlers["get_data"] = self._stock
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
        if getattr(worker.rpc, POOL_ATTRIBUTE, None) is exchange:
            delattr(worker.rpc, POOL_ATTRIBUTE)
        exchange.close()

    def transition(self, key: Hashable, start: str, finish: str, **more: Any) -> None:
        """Called by the worker: what it made is offered, what left memory is put nowhere any more."""
        if self._exchange is None or self._ahead is None:
            return
        if start == "executing":
            self._ahead.tell()
        if start == "memory":
            self._exchange.let_go(key)
            self._ahead.let_go(key)
        elif finish == "memory" and start != "flight":
            self._exchange.made(key)

    def _memory_domain(self, worker: Any) -> str:
        """For heartbeats: what this worker reads from at next to no cost. The scheduler places tasks by it."""
        exchange = self._exchange
        return dict(exchange.health.announced()).get(MEMORY, "") if exchange is not None else ""

    def _renew(self) -> None:
        if self._exchange is not None:
            self._exchange.renew()


def _teach_asking() -> None:
    """Put our ``get_data_from_worker`` around stock's, once a process: it does nothing for workers without the transfer."""
    if not hasattr(distributed.worker.get_data_from_worker, "paceline_stock"):
        wrapped = asking(distributed.worker.get_data_from_worker)
        distributed.worker.get_data_from_worker = wrapped


def configured_transfer() -> Transfer:
    """What the configuration says; `auto` where it says nothing.

    Raises:
        ValueError: what it says means nothing.
    """
    plugin = Transfer()
    plugin.settings = configured() or plugin.settings
    return plugin


def preload(worker: Any) -> None:
    """Turn on what the configuration says, on one worker that starts."""
    worker._pending_plugins = (*worker._pending_plugins, configured_transfer())
