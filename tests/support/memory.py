"""Clusters whose workers have little memory."""

from __future__ import annotations

from typing import Any

from paceline.testing import Env

MB = 10**6


def cluster(n: int = 2, nthreads: int = 1, limit: int = 400, idle: int = 60, **config: Any) -> Env:
    """Return a cluster of `n` workers with `limit` MB, whose idle processes take `idle` MB."""
    env = Env(**config)
    env.client("alice")
    for i in range(n):
        join(env, f"w{i}", nthreads, limit, idle)
    return env


def join(env: Env, name: str, nthreads: int = 1, limit: int = 400, idle: int = 60) -> None:
    metrics = {"memory": idle * MB}
    env.join(name, nthreads=nthreads, memory_limit=limit * MB, metrics=metrics)


def beat(env: Env, address: str, process: int, managed: int | None = None, **facts: Any) -> None:
    """Send a heartbeat: the process takes `process` MB, results `managed` MB by default as known."""
    if managed is None:
        managed = env.worker(address).nbytes // MB
    spilled = facts.pop("spilled", 0) * MB
    metrics = {
        "memory": process * MB,
        "managed_bytes": managed * MB,
        "spilled_bytes": {"memory": spilled, "disk": spilled},
    }
    env.heartbeat(address, metrics=metrics, **facts)


def learn(env: Env, prefix: str, nbytes: int) -> None:
    """Run a task of `prefix` whose result has `nbytes` bytes, and release it."""
    env.submit({f"{prefix}-0": []})
    env.finish(f"{prefix}-0", nbytes=nbytes)
    env.release(f"{prefix}-0")
    env.tick()  # memory is no longer checked for a large task
