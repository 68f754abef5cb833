"""The scheduler: ``core`` decides, ``extensions`` stand beside it, ``server`` carries out.

``Scheduler`` and ``LocalCluster`` are what programs use. Importing this loads none of them, so that ``core`` imports where
neither dask nor tornado is installed; each is loaded when it is first asked for.

Must not know: anything; names of its rooms are imported from them.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distributed import LocalCluster
    from paceline.scheduler.server.scheduler import Scheduler

__all__ = ["LocalCluster", "Scheduler"]


def __getattr__(name: str) -> Any:
    """What programs use, loaded now."""
    if name in __all__:
        from paceline.scheduler.server import scheduler

        return getattr(scheduler, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
