"""Helpers of the tests of share groups."""

from __future__ import annotations

from collections import Counter
from typing import Any

from paceline.scheduler.core.stimuli import AnnotationSet
from paceline.scheduler.core.task_policy import TaskPolicy
from paceline.testing import Env, Graph


def tasks(name: str, n: int) -> Graph:
    return {(name, i): [] for i in range(n)}


def counts(env: Env) -> Counter[Any]:
    """Return the number of tasks on workers by task group."""
    return Counter(ts.group.name for ws in env.state.workers.values() for ts in ws.processing)


def share(env: Env, client: str) -> Any:
    return env.state.shares.account(client).share


def contended(env: Env) -> None:
    """Give bob a task on each worker, so that the tasks of alice are held."""
    env.submit(tasks("b", 4), client="bob")


def restricted(*workers: str, **more: Any) -> AnnotationSet:
    return AnnotationSet(workers=list(workers) or None, **more)


def give_up(env: Env, address: str, n: int) -> Graph:
    """Give up the runs of `n` tasks, which continue in threads of the worker. Return the tasks."""
    stuck = tasks("stuck", n)
    annotation = restricted(address, policy=TaskPolicy(timeout_seconds=5.0))
    env.submit(stuck, annotations=dict.fromkeys(stuck, annotation))
    env.tick(6.0)
    env.heartbeat(address, executing=dict.fromkeys(stuck, 6.0))
    env.tick()
    assert list(env.worker(address).extra_runs) == list(stuck)
    return stuck
