"""The scheduler: a deterministic core, its extensions, and the server process around them.

``core`` makes decisions, ``extensions`` add coordination primitives, ``server`` does all I/O.

Programs use ``Scheduler`` and ``LocalCluster``. They are imported when they are first accessed, so
that ``core`` can be imported without dask and tornado.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import LocalCluster
    from paceline.scheduler.server.scheduler import Scheduler

__all__ = ["LocalCluster", "Scheduler"]


def __getattr__(name: str) -> Any:
    """Import ``Scheduler`` or ``LocalCluster``."""
    if name in __all__:
        from paceline.scheduler.server import scheduler

        return getattr(scheduler, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
