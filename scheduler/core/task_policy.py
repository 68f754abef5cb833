"""Policies of a task: what users set with ``dask.annotate`` or in the configuration.

Graph compilers check the values (``paceline.workers_compat.graphs.policies``).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class TaskPolicy:
    """The policies of a task; tasks with equal annotations share one.

    Attributes:
        timeout_seconds: limit of the time that a run may take; 0 for none.
        deadline: time in seconds since the epoch at which the task errs; 0 for none.
        deadline_text: the same for error messages.
    """

    timeout_seconds: float = 0.0
    deadline: float = 0.0
    deadline_text: str = ""
