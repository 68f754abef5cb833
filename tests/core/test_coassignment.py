"""Co-assignment of root-ish tasks: siblings in the graph run on the same worker."""

from __future__ import annotations

from typing import Any

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.core.inspection.explain import explain
from paceline.scheduler.core.stimuli import (
    AnnotationSet,
    BalanceWork,
    ConfigureStealing,
    SetShare,
    WorkerBackpressured,
)
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


def sums_of_means(n: int) -> dict[Any, list[Any]]:
    """Return `n` root tasks, a mean of each, and the sums of pairs of means."""
    graph: dict[Any, list[Any]] = {}
    for i in range(n):
        graph |= {("x", i): [], ("mean", i): [("x", i)]}
        if i % 2:
            graph |= {("sum", i): [("mean", i - 1), ("mean", i)]}
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
    env.submit(sums_of_means(12))
    assert env.where(("x", 0)) == env.where(("x", 1)) == "w0"
    assert env.where(("x", 2)) == env.where(("x", 3)) == "w1"
    assert n_split(finish_all(env)) == 0


def test_batches_are_limited() -> None:
    env = cluster(coassigned_tasks=3)
    graph: dict[Any, list[Any]] = {("x", i): [] for i in range(12)}
    env.submit({**graph, "sum": list(graph)})
    assert env.processing("w0") == [("x", 0), ("x", 1), ("x", 2)]
    assert env.processing("w1") == [("x", 3), ("x", 4), ("x", 5)]


@pytest.mark.parametrize(("n", "n_together"), [(2, 2), (3, 3), (4, 4), (5, 2)])
def test_small_families_stay_together(n: int, n_together: int) -> None:
    """Inputs of a task go to one worker if they are at most 4."""
    env = cluster()
    graph: dict[Any, list[Any]] = {}
    for i in range(10):
        inputs = [("x", n * i + j) for j in range(n)]
        graph |= {**{key: [] for key in inputs}, ("sum", i): inputs}
    env.submit(graph)
    assert env.processing("w0") == [("x", j) for j in range(n_together)]


@pytest.mark.parametrize(("nbytes", "are_apart"), [(200, True), (400, False)])
def test_tasks_whose_results_meet_after_they_are_reduced_are_no_siblings(
    nbytes: int, are_apart: bool
) -> None:
    env = cluster()
    env.submit({("x", 100): [], ("mean", 100): [("x", 100)]})
    env.finish(("x", 100), nbytes=1000)
    env.finish(("mean", 100), nbytes=nbytes)
    env.submit(sums_of_means(12))
    assert (env.where(("x", 0)) != env.where(("x", 1))) == are_apart


def test_a_batch_is_sent_beyond_the_slots_that_later_tasks_take() -> None:
    env = cluster(1, coassigned_tasks=3)
    graph: dict[Any, list[Any]] = {}
    for i in range(0, 12, 3):
        graph |= {("x", i + j): [] for j in range(3)}
        graph |= {("y", i + j): [("x", i), ("x", i + 1)] for j in range(6)}
        graph |= {("sum", i): [("x", i + 2), *(("y", i + j) for j in range(6))]}
    env.submit(graph)
    assert env.processing("w0") == [("x", 0), ("x", 1), ("x", 2)]


def test_batches_of_small_results_start_in_free_slots() -> None:
    graph: dict[Any, list[Any]] = {("x", i): [] for i in range(12)}
    env = cluster(1, coassigned_tasks=1)
    env.submit({**graph, "sum": list(graph)})
    assert env.processing("w0") == [("x", 0), ("x", 1)]
    env.finish(("x", 0), nbytes=1)
    assert env.processing("w0") == [("x", 1), ("x", 2)]
    run_id = env.task(("x", 1)).run_id
    env.feed(m.LongRunning(key=("x", 1), run_id=run_id, compute_duration=1.0), "w0")
    assert env.processing("w0") == [("x", 1), ("x", 2), ("x", 3)]
    env = cluster(1, coassigned_tasks=1)
    env.submit({("x", i): [] for i in range(6)})
    assert env.processing("w0") == [("x", 0), ("x", 1)]


def test_seceded_tasks_hide_no_free_thread() -> None:
    env = cluster(0)
    env.join("w0", nthreads=2, memory_limit=10**9)
    env.submit({("x", 1000): []})
    env.finish(("x", 1000), nbytes=10**7, seconds=30.0)
    for key in ("s0", "s1", "s2"):
        env.submit({key: []})
        env.feed(m.LongRunning(key=key, run_id=env.task(key).run_id, compute_duration=1.0), "w0")
    env.join("w1", nthreads=2, memory_limit=10**9)
    graph: dict[Any, list[Any]] = {}
    for i in range(20):
        graph |= {("x", i): [], ("y", i): [("x", i)]}
    env.submit(graph)
    assert len(env.processing("w1")) == 2
    assert len(env.processing("w0")) == 3 + 2


def test_tasks_that_use_results_do_not_wait_for_a_thread() -> None:
    env = cluster(1, coassigned_tasks=1)
    graph: dict[Any, list[Any]] = {}
    for i in range(6):
        graph |= {("x", i): [], ("y", i): [("x", i)]}
    env.submit({**graph, "sum": [("y", i) for i in range(6)]})
    assert env.processing("w0") == [("x", 0), ("x", 1)]
    env.finish(("x", 0))
    assert ("y", 0) in env.processing("w0")


def test_the_share_of_a_worker_limits_its_batch() -> None:
    env = cluster(4, coassigned_tasks=100)
    graph: dict[Any, list[Any]] = {("x", i): [] for i in range(12)}
    env.submit({**graph, "sum": list(graph)})
    assert len({env.where(("x", i)) for i in range(12) if env.task(("x", i)).processing_on}) == 4


def test_idle_workers_steal_siblings() -> None:
    env = cluster(coassigned_tasks=4)
    env.feed(ConfigureStealing(True))
    graph: dict[Any, list[Any]] = {("x", i): [] for i in range(6)}
    env.submit({**graph, "sum": list(graph)})
    assert env.processing("w0") == [("x", 0), ("x", 1), ("x", 2)]
    while env.processing("w1"):
        env.finish(*env.processing("w1"), nbytes=1000, seconds=1.0)
    env.turn(BalanceWork())
    assert [ts.key for ts in env.state.stealing.in_flight] == [("x", 2)]


def short_of_memory(n_tasks: int) -> Env:
    """Return a cluster without free slots, where the siblings of `n_tasks` root tasks wait."""
    env = cluster(coassigned_tasks=4)
    env.state.admission.is_short = True
    graph: dict[Any, list[Any]] = {("x", i): [] for i in range(n_tasks)}
    env.submit({**graph, "sum": list(graph)})
    assert env.processing("w0") == [("x", 0), ("x", 1)]
    assert any(ws.address == "w1" for ws in env.state.queued.claims.values())
    return env


def test_batches_wait_for_slots_while_memory_is_short() -> None:
    env = short_of_memory(12)
    assert [key for key, ws in claims(env).items() if ws == "w0"] == [("x", 2), ("x", 3)]
    env.finish(("x", 0), nbytes=1000, seconds=1.0)
    assert env.processing("w0") == [("x", 1), ("x", 2)]


def claims(env: Env) -> dict[Any, str]:
    return {ts.key: ws.address for ts, ws in env.state.queued.claims.items()}


def test_batches_go_first_when_memory_is_free_again() -> None:
    env = short_of_memory(12)
    env.state.admission.is_short = False
    where = finish_all(env)
    assert [where[i] for i in range(8)] == ["w0"] * 4 + ["w1"] * 4


@pytest.mark.parametrize("event", ["lost", "paused"])
def test_a_batch_ends_with_its_worker(event: str) -> None:
    env = short_of_memory(12)
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
    env = short_of_memory(12)
    env.release("sum")
    assert not env.state.queued.claims and not env.state.tasks


@pytest.mark.parametrize("config", [{"worker_saturation": float("inf")}, {"coassigned_tasks": 0}])
def test_they_can_be_turned_off(config: dict[str, Any]) -> None:
    env = cluster(**config)
    env.submit(pairs(12))
    assert not env.state.queued.claims


def test_a_task_with_a_user_priority_turns_them_off_until_it_is_forgotten() -> None:
    for is_forgotten in (False, True):
        env = cluster(3, coassigned_tasks=2)
        env.submit({"first": []}, commit={"user_priority": 1})
        env.finish("first")
        if is_forgotten:
            env.release("first")
        env.submit(pairs(12))
        assert (n_split(finish_all(env)) == 0) == is_forgotten


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
    env = short_of_memory(12)
    found = explain(env.state, ("x", 2), env.now)
    assert (
        "until w0, which runs its siblings, or an idle worker has a free slot" in found["summary"]
    )


def test_siblings_of_a_worker_that_takes_no_tasks_go_elsewhere() -> None:
    env = short_of_memory(12)
    env.feed(WorkerBackpressured("w0", True))
    env.state.admission.is_short = False
    env.finish(*env.processing("w1"), nbytes=1000, seconds=1.0)
    assert "w0" not in claims(env).values()
    assert set(finish_all(env)) == set(range(12)) - {4, 5}


def test_siblings_that_were_queued_before_a_cap_wait_for_it(env: Env) -> None:
    pairs: dict[Any, list[Any]] = {("sum", i): [("x", 2 * i), ("x", 2 * i + 1)] for i in range(6)}
    env.submit({**{("x", i): [] for i in range(12)}, **pairs})
    env.feed(SetShare("alice", {"tasks": 1}))
    env.join("w0", nthreads=2)
    assert env.processing("w0") == [("x", 0)]
    env.finish(("x", 0))
    assert env.processing("w0") == [("x", 1)]


def test_tasks_that_no_task_waits_for_are_not_claimed() -> None:
    env = cluster(2)
    env.client("bob")
    graph: dict[Any, list[Any]] = {("x", i): [] for i in range(24)}
    graph |= {("sum", i): [("x", 2 * i), ("x", 2 * i + 1)] for i in range(12)}
    env.submit({**graph, "top": [("sum", i) for i in range(12)]})
    env.fail(env.processing("w0")[0])
    finish_all(env)
    assert env.states("top", ("x", 20), ("x", 21)) == ["erred", "released", "released"]
    env.desire(("x", 20), client="bob")
    finish_all(env)
    assert env.states(("x", 20), ("x", 21)) == ["memory", "released"]
    assert not env.state.queued.claims
