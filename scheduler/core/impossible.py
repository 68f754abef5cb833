"""Pairs of states between which no task goes, and why not.

Must not know: how those transitions that there are work.
"""

from __future__ import annotations

from .groups import TASK_STATES

#: Pairs that no stimulus asks for, and why. All others that TRANSITIONS lacks go through released.
IMPOSSIBLE: dict[tuple[str, str], str] = {
    **{
        (start, finish): "a task is placed from waiting"
        for start in ("released", "processing", "memory", "erred")
        for finish in ("queued", "no-worker", "processing")
        if start != finish
    },
    ("waiting", "queued"): "chosen inside waiting -> processing",
    ("waiting", "no-worker"): "chosen inside waiting -> processing",
    ("queued", "no-worker"): "it stays queued until a worker has a slot",
    ("no-worker", "queued"): "it stays there until a worker may run it",
    **{
        (start, "memory"): "data that was not computed here is told as DataPlaced (become_data)"
        for start in ("released", "waiting", "queued", "no-worker", "erred")
    },
    **{
        ("forgotten", finish): "a key that comes back is another task"
        for finish in TASK_STATES
        if finish != "forgotten"
    },
}
