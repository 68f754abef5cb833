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
        retry_on: full names of the exception classes after which the task is retried; None for all.
        retry_delay_seconds: time between a failure and the retry.
        retry_backoff: factor by which the delay grows with each retry.
        retry_delay_max_seconds: limit of the delay; 0 for none.
        retry_elsewhere: whether a retry avoids the workers on which the task has failed.
        speculative: whether the task may get a second run elsewhere; None as configured.
        pure: whether the task may run twice at a time.
    """

    timeout_seconds: float = 0.0
    deadline: float = 0.0
    deadline_text: str = ""
    retry_on: list[str] | None = None
    retry_delay_seconds: float = 0.0
    retry_backoff: float = 1.0
    retry_delay_max_seconds: float = 0.0
    retry_elsewhere: bool = False
    speculative: bool | None = None
    pure: bool = True
