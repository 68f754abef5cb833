"""Which back ends of a worker work, and what to say of those that do not: once each.

Must not know: values, messages.
"""

from __future__ import annotations

import importlib
import logging
import threading
import time

from .backend import Backend, BackendError, BackendFull, Surroundings, ValueGone
from .settings import Settings

logger = logging.getLogger("distributed.worker.transfer")

REST_SECONDS = 30.0
"""So long a back end that failed is left alone."""
REST_SECONDS_MAX = 600.0
"""It rests twice as long each time in a row, up to this."""


class Health:
    """A worker's back ends.

    Args:
        settings: which there are to be.
        around: what they are told of the worker.
    """

    def __init__(self, settings: Settings, around: Surroundings) -> None:
        self.backends: dict[str, Backend] = {}
        self.places: dict[str, str] = {}
        self._settings = settings
        self._around = around
        self._rests_until: dict[str, float] = {}
        self._rest: dict[str, float] = {}
        self._warned: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        named = {name for rule in settings.rules for name in rule.use}
        for name in dict.fromkeys([*settings.backends, *sorted(named)]):
            self._open(name)

    def usable(self, name: str) -> Backend | None:
        """The back end, unless it rests or never worked."""
        if self._rests_until.get(name, 0.0) > time.monotonic():
            return None
        return self.backends.get(name)

    def announced(self) -> tuple[tuple[str, str], ...]:
        """Names and places of what works now."""
        now = time.monotonic()
        return tuple(
            (name, place)
            for name, place in self.places.items()
            if self._rests_until.get(name, 0.0) <= now
        )

    def worked(self, name: str) -> None:
        if name in self._rest:
            self._rest.pop(name, None)

    def failed(self, name: str, doing: str, error: BaseException) -> None:
        """Note a failure. A full back end goes on; a broken one rests."""
        if isinstance(error, ValueGone):
            logger.debug("transfer %r: %s", name, error)
            return
        backend = self.backends.get(name)
        if backend is not None:
            backend.traffic.failed_count += 1
        if isinstance(error, BackendFull):
            self._say(name, "full", f"is full, so Dask's own transfer is used: {error}")
            return
        with self._lock:
            rest = min(REST_SECONDS_MAX, self._rest.get(name, REST_SECONDS / 2) * 2)
            self._rest[name] = rest
            self._rests_until[name] = time.monotonic() + rest
        text = f"{type(error).__name__}: {error}"
        self._say(name, "broken", f"failed to {doing}, so Dask's own transfer is used: {text}")

    def renew(self) -> None:
        """Once in a while, in a thread: leases, and what dead workers left."""
        for name, backend in list(self.backends.items()):
            if self.usable(name) is None:
                continue
            try:
                backend.renew()
            except (BackendError, OSError) as error:
                self.failed(name, "renew its lease", error)

    def close(self) -> None:
        for name, backend in self.backends.items():
            try:
                backend.close()
            except (BackendError, OSError) as error:
                logger.debug("transfer %s did not close: %s", name, error)
        self.backends = {}
        self.places = {}

    def _open(self, name: str) -> None:
        if name == "dask":
            return
        around = Surroundings(
            self._around.worker_id,
            self._around.host,
            self._around.memory_limit_nbytes,
            self._around.security,
            dict(self._settings.options.get(name, {})),
        )
        try:
            module, _, attribute = self._settings.class_of(name).partition(":")
            backend = getattr(importlib.import_module(module), attribute)(around)
            self.places[name] = backend.place()
        except (BackendError, OSError, ImportError, AttributeError, ValueError, KeyError) as error:
            if self._settings.asked_for(name):
                self._say(name, "missing", f"does not work on this worker: {error}")
            return
        if self._settings.min_nbytes is not None:
            backend.worth_nbytes = self._settings.min_nbytes
        backend.name = name
        self.backends[name] = backend

    def _say(self, name: str, what: str, text: str) -> None:
        if (name, what) not in self._warned:
            self._warned.add((name, what))
            logger.warning("transfer %r %s", name, text)
