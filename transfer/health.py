"""Track which backends of a worker work, and log failures once per backend and kind."""

from __future__ import annotations

import importlib
import logging
import threading
import time
from dataclasses import replace

from .backend import Backend, BackendContext, BackendError, BackendFull, ValueGone
from .settings import STOCK, Settings

logger = logging.getLogger("distributed.worker.transfer")

#: Seconds during which a backend is not used after a failure.
PAUSE_SECONDS = 30.0
#: The pause doubles with each failure in a row, up to this.
PAUSE_SECONDS_MAX = 600.0
#: Errors of backends that are missing or have invalid options.
INVALID = (OSError, ImportError, AttributeError, ValueError, KeyError, TypeError)


class Health:
    """The backends of a worker, each opened with ``context`` and its own options."""

    def __init__(self, settings: Settings, context: BackendContext) -> None:
        self.backends: dict[str, Backend] = {}
        self.places: dict[str, str] = {}
        self._settings = settings
        self._context = context
        self._paused_until: dict[str, float] = {}
        self._pauses: dict[str, float] = {}
        self._warned: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        named = {name for rule in settings.rules for name in rule.use}
        for name in dict.fromkeys([*settings.backends, *sorted(named)]):
            self._open(name)

    def usable(self, name: str) -> Backend | None:
        """Return the backend ``name``, or None if it never worked or failed recently."""
        if self._paused_until.get(name, 0.0) > time.monotonic():
            return None
        return self.backends.get(name)

    def announced(self) -> tuple[tuple[str, str], ...]:
        """Return name and place of each usable backend."""
        return tuple((name, place) for name, place in self.places.items() if self.usable(name))

    def worked(self, name: str) -> None:
        """Reset the pause of ``name``, because it was used successfully."""
        self._pauses.pop(name, None)

    def failed(self, name: str, doing: str, error: BaseException) -> None:
        """Record that ``name`` failed to do ``doing``; pause it unless it was merely full."""
        if isinstance(error, ValueGone):
            logger.debug("transfer %r: %s", name, error)
            return
        backend = self.backends.get(name)
        if backend is not None:
            backend.traffic.failed_count += 1
        if isinstance(error, BackendFull):
            self._warn_once(name, "full", f"is full, so Dask's own transfer is used: {error}")
            return
        with self._lock:
            now = time.monotonic()
            # transfers in parallel fail with the same outage; it counts once
            if self._paused_until.get(name, 0.0) <= now:
                pause = min(PAUSE_SECONDS_MAX, self._pauses.get(name, PAUSE_SECONDS / 2) * 2)
                self._pauses[name] = pause
                self._paused_until[name] = now + pause
        text = f"{type(error).__name__}: {error}"
        self._warn_once(
            name, "broken", f"failed to {doing}, so Dask's own transfer is used: {text}"
        )

    def ignored(self, name: str) -> None:
        """Log that an annotation names the unknown backend ``name``."""
        known = ", ".join([STOCK, *self._settings.classes])
        self._warn_once(name, "unknown", f"in an annotation is ignored: there are {known}")

    def renew(self) -> None:
        """Renew the leases of all usable backends; runs in a thread."""
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
        if name == STOCK:
            return
        context = replace(self._context, options=dict(self._settings.options.get(name, {})))
        try:
            module, _, attribute = self._settings.classes[name].partition(":")
            backend = getattr(importlib.import_module(module), attribute)(context)
            self.places[name] = backend.place()
        except (BackendError, *INVALID) as error:
            if name not in self._settings.automatic:
                self._warn_once(name, "missing", f"does not work on this worker: {error}")
            return
        if self._settings.min_nbytes is not None:
            backend.min_nbytes = self._settings.min_nbytes
        backend.name = name
        self.backends[name] = backend

    def _warn_once(self, name: str, what: str, text: str) -> None:
        if (name, what) not in self._warned:
            self._warned.add((name, what))
            logger.warning("transfer %r %s", name, text)
