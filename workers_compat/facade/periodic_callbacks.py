"""Parts of the scheduler's tick as tornado's ``PeriodicCallback``, for programs that stop them."""

from __future__ import annotations

from typing import Any

#: Name of stock's periodic callback -> the setting that turns the check on and off.
_FIELDS = {
    "worker-ttl": "watch_worker_ttl",
    "idle-timeout": "watch_idle",
    "no-workers-timeout": "watch_no_workers",
}


class TickCallback:
    """One of the checks that each tick makes.

    Args:
        field: the setting that turns it on and off.
    """

    def __init__(self, facade: Any, field: str) -> None:
        self._facade = facade
        self._field = field

    def is_running(self) -> bool:
        """Return whether the check is on."""
        return bool(getattr(self._facade.state.config, self._field))

    def start(self) -> None:
        """Turn the check on."""
        self._facade.configure(self._field, True)

    def stop(self) -> None:
        """Turn the check off."""
        self._facade.configure(self._field, False)


def tick_callbacks(facade: Any) -> dict[str, TickCallback]:
    """Return the checks by the names of stock's periodic callbacks."""
    return {name: TickCallback(facade, field) for name, field in _FIELDS.items()}
