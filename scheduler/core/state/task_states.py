"""The states of tasks."""

from __future__ import annotations

#: The states of a task, as Dask names them.
TASK_STATES = (
    "released",
    "waiting",
    "no-worker",
    "queued",
    "processing",
    "memory",
    "erred",
    "forgotten",
)
#: States in which a task is among the ``waiters`` of its dependencies.
ACTIVE_STATES = frozenset({"waiting", "no-worker", "queued", "processing"})
