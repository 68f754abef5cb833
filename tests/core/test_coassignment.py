"""Co-assignment of root-ish tasks: siblings in the graph run on the same worker."""

from __future__ import annotations

from typing import Any

import pytest
from paceline.scheduler.core.inspection.explain import explain
from paceline.scheduler.core.stimuli import AnnotationSet
from paceline.testing import Env


def cluster(n_workers: int = 2, **config: Any) -> Env:
    """Return a cluster with workers "w0", … of one thread, so with two slots each."""
    env = Env(**config)
    env.client("alice")
    env.join(*(f"w{i}" for i in range(n_workers)))
    return env


def pairs(n: int) -> dict[Any, list[Any]]:
    """Return `n` sums, each of two root tasks; dask's order goes pair by pair."""
    graph: dict[Any, list[Any]] = {}
    for i in range(n):
        graph |= {("x", 2 * i): [], ("x", 2 * i + 1): []}
        graph |= {("sum", i): [("x", 2 * i), ("x", 2 * i + 1)]}
    return graph


def finish_all(env: Env, name: str = "x") -> dict[int, str]:
    """Finish the root tasks one by one, and return where each ran."""
    where: dict[int, str] = {}
    while True:
        running = [ts for ts in env.state.tasks.values() if ts.state == "processing"]
        if not running:
            return where
        ts = min(running, key=lambda ts: ts.priority)
        if ts.group.prefix.name == name:
            where[ts.key[1]] = env.where(ts.key)
        env.finish(ts.key, nbytes=1000, seconds=1.0)


def n_split(where: dict[int, str]) -> int:
    """Return the number of pairs on two workers."""
    return sum(where[i] != where[i + 1] for i in range(0, len(where), 2))


def test_pairs_stay_together() -> None:
    assert n_split(finish_all_pairs(coassigned_tasks=2)) == 0
    assert n_split(finish_all_pairs(coassigned_tasks=0)) > 3


def finish_all_pairs(**config: Any) -> dict[int, str]:
    env = cluster(3, **config)
    env.submit(pairs(12))
    return finish_all(env)


def test_siblings_behind_chains_of_tasks_are_found() -> None:
    env = cluster()
    graph: dict[Any, list[Any]] = {}
    for i in range(12):
        graph |= {("x", i): [], ("mean", i): [("x", i)]}
        if i % 2:
            graph |= {("sum", i): [("mean", i - 1), ("mean", i)]}
    env.submit(graph)
    assert env.where(("x", 0)) == env.where(("x", 1)) == "w0"
    assert env.where(("x", 2)) == env.where(("x", 3)) == "w1"
    assert n_split(finish_all(env)) == 0


def test_batches_are_limited() -> None:
    env = cluster(coassigned_tasks=3)
    graph: dict[Any, list[Any]] = {("x", i): [] for i in range(12)}
    env.submit({**graph, "sum": list(graph)})
    assert [env.where(("x", i)) for i in (0, 1, 3, 4)] == ["w0", "w0", "w1", "w1"]
    assert {ts.key: ws.address for ts, ws in env.state.queued.claims.items()} == {
        ("x", 2): "w0",
        ("x", 5): "w1",
    }


def test_the_share_of_a_worker_limits_its_batch() -> None:
    env = cluster(4, coassigned_tasks=100)
    graph: dict[Any, list[Any]] = {("x", i): [] for i in range(12)}
    env.submit({**graph, "sum": list(graph)})
    assert len({env.where(("x", i)) for i in range(12) if env.task(("x", i)).processing_on}) == 4


def test_an_idle_worker_takes_over_the_last_task_of_a_batch() -> None:
    env = cluster(coassigned_tasks=4)
    graph: dict[Any, list[Any]] = {("x", i): [] for i in range(6)}
    env.submit({**graph, "sum": list(graph)})
    assert env.processing("w0") == [("x", 0), ("x", 1)]
    while env.processing("w1"):
        env.finish(*env.processing("w1"), nbytes=1000, seconds=1.0)
    assert [ws.address for ws in env.task(("x", 2)).who_has] == ["w1"]


def test_a_large_result_is_not_taken_over() -> None:
    env = cluster(coassigned_tasks=4)
    graph: dict[Any, list[Any]] = {("x", i): [] for i in range(6)}
    env.submit({**graph, "sum": list(graph)})
    while env.processing("w1"):
        env.finish(*env.processing("w1"), nbytes=10**9, seconds=0.1)
    assert env.processing("w0") == [("x", 0), ("x", 1)]
    assert [ts.key for ts in env.state.queued] == [("x", 2)]


@pytest.mark.parametrize("event", ["lost", "paused"])
def test_a_batch_ends_with_its_worker(event: str) -> None:
    env = cluster(coassigned_tasks=4)
    env.submit({**{("x", i): [] for i in range(12)}, "sum": [("x", i) for i in range(12)]})
    assert any(ws.address == "w1" for ws in env.state.queued.claims.values())
    if event == "lost":
        env.lose("w1")
    else:
        env.status("w1", "paused")
    assert not any(ws.address == "w1" for ws in env.state.queued.claims.values())
    finished = set(finish_all(env))
    if event == "lost":
        assert finished == set(range(12))
        assert env.states("sum") == ["memory"]


def test_claims_end_with_their_tasks() -> None:
    env = cluster(coassigned_tasks=4)
    env.submit({**{("x", i): [] for i in range(12)}, "sum": [("x", i) for i in range(12)]})
    assert env.state.queued.claims
    env.release("sum")
    assert not env.state.queued.claims and not env.state.tasks


@pytest.mark.parametrize("config", [{"worker_saturation": float("inf")}, {"coassigned_tasks": 0}])
def test_they_can_be_turned_off(config: dict[str, Any]) -> None:
    env = cluster(**config)
    env.submit(pairs(12))
    assert not env.state.queued.claims


def test_user_priorities_come_before_siblings() -> None:
    env = cluster()
    env.submit(pairs(12))
    env.submit(
        {("urgent", i): [] for i in range(9)},
        annotations={("urgent", i): AnnotationSet(priority=10) for i in range(9)},
    )
    env.finish(("x", 0), seconds=1.0)
    assert [key[0] for key in env.processing("w0")] == ["x", "urgent"]


def test_siblings_of_groups_that_share_the_cluster() -> None:
    env = cluster()
    env.client("bob")
    env.submit({("y", i): [] for i in range(4)}, client="bob")
    env.submit(pairs(12))
    assert n_split(finish_all(env)) <= 2


def test_explain_names_the_worker_of_the_siblings() -> None:
    env = cluster(coassigned_tasks=3)
    graph: dict[Any, list[Any]] = {("x", i): [] for i in range(12)}
    env.submit({**graph, "sum": list(graph)})
    found = explain(env.state, ("x", 2), env.now)
    assert (
        "until w0, which runs its siblings, or an idle worker has a free slot" in found["summary"]
    )
