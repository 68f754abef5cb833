"""paceline: a drop-in replacement for the Dask scheduler.

The public API is loaded lazily, so that importing ``paceline.protocol`` or ``paceline.transfer``
does not import the scheduler.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import LocalCluster

    from paceline.scheduler.server.scheduler import Scheduler
    from paceline.transfer import Transfer

    __version__: str

__all__ = ["LocalCluster", "Scheduler", "Transfer", "__version__"]

_MODULES = {
    "LocalCluster": "paceline.scheduler",
    "Scheduler": "paceline.scheduler",
    "Transfer": "paceline.transfer",
}


def __getattr__(name: str) -> Any:
    """Return the public object ``name``, importing its module on first access.

    Raises:
        AttributeError: ``name`` is not part of the public API.
    """
    from importlib import import_module, metadata

    if name == "__version__":
        return metadata.version("paceline")
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
