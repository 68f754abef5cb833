"""Replicas that are made and dropped while tasks run, and rebalancing of memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.core.config import SchedulerConfig
from paceline.scheduler.core.handlers.replicas import drop
from paceline.scheduler.core.lifecycle import accounting
from paceline.scheduler.core.policy.memory import measured, memory_use
from paceline.scheduler.core.policy.rebalancing import RebalancePlan
from paceline.scheduler.core.policy.surplus_replicas import MemoryPlan, reduce_replicas
from paceline.scheduler.core.stimuli import AnnotationSet, MoveReplicas, RecallTask
from paceline.scheduler.core.turn import Outbox, Turn
from paceline.testing import Env

from tests.support.annotations import on

MakeEnv = Callable[..., Env]


def holders(env: Env, key: str) -> list[str]:
    return [ws.address for ws in env.task(key).who_has]


def reduce(env: Env, count: int = 1000) -> None:
    """Run the memory manager as its timer does."""
    plan = MemoryPlan("managed")
    reduce_replicas(env.state, plan, count)
    turn = Turn(env.state, Outbox(), env.now, "", "amm")
    for ws, tasks in plan.drops.items():
        drop(turn, ws, tasks)
    for address, messages in turn.outbox.workers.items():
        env.outbox.workers.setdefault(address, []).extend(messages)
    env.check()


def uses(env: Env, address: str, process: int, spilled: int = 0, disk: int = 0) -> None:
    metrics = {"memory": process, "spilled_bytes": {"memory": spilled, "disk": disk}}
    env.heartbeat(address, metrics=metrics)


@pytest.fixture
def trio(make_env: MakeEnv) -> Env:
    """Return an environment with x on w0, w1 and w2."""
    env = make_env()
    env.join("w0", "w1", "w2")
    env.submit({"x": []}, ["x"])
    env.finish("x", nbytes=100)
    for address in ("w1", "w2"):
        env.fetched(address, "x")
    env.take()
    return env


def test_memory_measures(duo: Env) -> None:
    duo.submit({"x": []}, ["x"])
    duo.finish("x", nbytes=100)
    uses(duo, "w0", 1000, spilled=40, disk=30)
    use = memory_use(duo.worker("w0"))
    assert (use.process, use.managed, use.spilled, use.managed_total) == (1000, 60, 30, 90)
    assert use.unmanaged == 940 == use.unmanaged_old + use.unmanaged_recent
    assert use.optimistic == 60 + use.unmanaged_old
    uses(duo, "w0", 50)
    assert memory_use(duo.worker("w0")).managed == 50


def test_an_unknown_measure_is_refused() -> None:
    with pytest.raises(ValueError, match=r"active-memory-manager\.measure must be one of managed"):
        SchedulerConfig(amm_measure="guess").check()


def test_surplus_replicas_are_dropped_from_the_fullest_worker(trio: Env) -> None:
    trio.submit({"y": []}, ["y"], annotations=on("w1", "y"))
    trio.finish("y", nbytes=1000)
    for address in ("w0", "w1", "w2"):
        uses(trio, address, 10_000)
    trio.take()
    reduce(trio)
    trio.expect("w1: remove-replicas x", "w0: remove-replicas x")
    assert holders(trio, "x") == ["w2"]
    reduce(trio)
    trio.expect()


def test_worker_that_refuses_keeps_its_replica(trio: Env) -> None:
    reduce(trio)
    trio.take()
    trio.fetched("w0", "x")
    assert holders(trio, "x")[-1] == "w0"
    reduce(trio)
    assert len(holders(trio, "x")) == 1


def test_tasks_on_one_worker_need_one_replica(trio: Env) -> None:
    trio.submit({"y": ["x"], "z": ["x"]}, ["y", "z"], annotations=on("w0", "y", "z"))
    trio.take()
    reduce(trio)
    assert holders(trio, "x") == ["w0"]


def test_replicas_that_tasks_need_are_kept(trio: Env) -> None:
    trio.submit(
        {"y": ["x"], "z": ["x"]},
        ["y", "z"],
        annotations=on("w0", "y") | on("w1", "z"),
    )
    trio.take()
    reduce(trio)
    trio.expect("w2: remove-replicas x")
    trio.feed(MoveReplicas(drop={"w0": ["x"]}))
    trio.expect()
    assert holders(trio, "x") == ["w0", "w1"]


def test_retiring_workers_drop_first(trio: Env) -> None:
    trio.status("w2", "closing_gracefully")
    trio.take()
    reduce(trio)
    assert holders(trio, "x") in (["w0"], ["w1"])


def test_replica_on_running_worker_is_kept_over_one_on_retiring_worker(trio: Env) -> None:
    trio.submit({"y": ["x"]}, ["y"], annotations=on("w2", "y"))
    trio.status("w2", "closing_gracefully")
    trio.feed(MoveReplicas(drop={"w1": ["x"]}))
    trio.take()
    assert holders(trio, "x") == ["w0", "w2"]
    reduce(trio)
    trio.expect()


def fetching(duo: Env, nbytes: int, **graph: list[str]) -> None:
    """Let w1 begin to fetch x, of `nbytes` bytes on w0, for y; `graph` are further tasks."""
    duo.state.drops_replicas = True
    places = dict.fromkeys(["x", *graph], "w0") | {"y": "w1"}
    annotations = {key: AnnotationSet(workers=[place]) for key, place in places.items()}
    duo.submit({"x": [], "y": ["x"], **graph}, ["y", *graph], annotations=annotations)
    duo.finish("x", nbytes=nbytes)
    duo.take()


def test_large_inputs_are_dropped_elsewhere_once_they_are_fetched(duo: Env) -> None:
    fetching(duo, 1_000_000)
    duo.fetched("w1", "x")
    duo.expect("w0: remove-replicas x")
    assert holders(duo, "x") == ["w1"]
    duo.fetched("w0", "x")  # it refuses
    duo.expect()
    assert holders(duo, "x") == ["w1", "w0"]


def test_inputs_are_kept_for_other_tasks(duo: Env) -> None:
    fetching(duo, 1_000_000, z=["x"])
    duo.fetched("w1", "x")
    duo.expect()
    duo.finish("z")
    assert holders(duo, "x") == ["w0", "w1"]


def test_inputs_that_another_worker_is_fetching_are_kept(make_env: MakeEnv) -> None:
    env = make_env()
    env.state.drops_replicas = True
    env.join("w0", "w1", "w2", "w3")
    places = {"x": "w0", "y1": "w1", "y2": "w2", "y3": "w3"}
    annotations = {key: AnnotationSet(workers=[place]) for key, place in places.items()}
    ys = ["y1", "y2", "y3"]
    env.submit({"x": [], "y1": ["x"], "y2": ["x"], "y3": ["x"]}, ys, annotations=annotations)
    env.finish("x", nbytes=1_000_000)
    env.fetched("w1", "x")
    env.finish("y1")
    env.take()
    env.fetched("w2", "x")
    env.expect()
    env.fetched("w3", "x")
    assert sorted(env.take()) == ["w0: remove-replicas x", "w1: remove-replicas x"]


def test_input_of_a_task_that_is_being_stolen_is_kept(duo: Env) -> None:
    duo.state.drops_replicas = True
    annotations = on("w0", "x") | on("w1", "y")
    duo.submit({"x": [], "y": ["x"]}, ["y"], annotations=annotations)
    duo.finish("x", nbytes=1_000_000)
    duo.feed(RecallTask(key="y", thief="w0"))
    duo.take()
    duo.fetched("w1", "x")
    duo.expect()


def test_input_of_a_restricted_task_that_waits_is_kept(make_env: MakeEnv) -> None:
    env = make_env()
    env.state.drops_replicas = True
    env.join("w0", "w1", "w2", "w3")
    places = {"x": "w0", "g": "w3", "y1": "w1", "y2": "w2", "z": "w0"}
    annotations = {key: AnnotationSet(workers=[place]) for key, place in places.items()}
    graph = {"x": [], "g": [], "y1": ["x"], "y2": ["x"], "z": ["x", "g"]}
    env.submit(graph, ["y1", "y2", "z"], annotations=annotations)
    env.finish("x", nbytes=1_000_000)
    env.fetched("w1", "x")
    env.finish("y1")
    env.fetched("w2", "x")
    assert "w0" in holders(env, "x")


def is_small(env: Env) -> None:
    accounting.set_nbytes(env.state, env.task("x"), 99_999)


def is_wanted(env: Env) -> None:
    env.desire("x")


def has_many_dependents(env: Env) -> None:
    keys = [f"d{i}" for i in range(20)]
    env.submit({key: ["x"] for key in keys}, keys, annotations=on("w0", *keys))
    env.finish(*keys)


def manager_is_off(env: Env) -> None:
    env.state.drops_replicas = False


def takes_long(env: Env) -> None:
    accounting.set_duration_average(env.state, env.task("x").group.prefix, 10.0)


def workers_may_be_lost(env: Env) -> None:
    env.state.second_copies.is_active = True


@pytest.mark.parametrize(
    "but",
    [is_small, is_wanted, has_many_dependents, manager_is_off, takes_long, workers_may_be_lost],
)
def test_other_inputs_wait_for_the_manager(duo: Env, but: Callable[[Env], None]) -> None:
    fetching(duo, 1_000_000)
    but(duo)
    duo.take()
    duo.fetched("w1", "x")
    duo.expect()
    assert holders(duo, "x") == ["w0", "w1"]


def test_tasks_checked_least_recently_come_first(duo: Env) -> None:
    keys = [f"k{i}" for i in range(4)]
    duo.submit({key: [] for key in keys}, keys, annotations=on("w0", *keys))
    duo.finish(*keys)
    duo.fetched("w1", *keys)
    duo.submit({"y": ["k0"], "z": ["k0"]}, ["y", "z"])
    duo.take()
    for _ in keys:
        reduce(duo, 1)
    assert [len(holders(duo, key)) for key in keys[1:]] == [1, 1, 1]


def test_invalid_moves_are_ignored(trio: Env) -> None:
    trio.feed(MoveReplicas({"w0": ["x", "no"], "gone": ["x"]}, {"w1": ["no"], "gone": ["x"]}))
    trio.expect()


def test_copies_are_fetched(duo: Env) -> None:
    duo.submit({"x": []}, ["x"])
    duo.finish("x", nbytes=7)
    duo.take()
    duo.feed(MoveReplicas(acquire={"w1": ["x"]}))
    (message,) = duo.outbox.workers["w1"]
    assert isinstance(message, m.AcquireReplicas)
    assert (message.who_has, message.nbytes) == ({"x": ["w0"]}, {"x": 7})
    duo.take()
    duo.feed(MoveReplicas(drop={"w0": ["x"]}))
    duo.expect()


# ------------------------------------------------------------------ rebalance


def filled(make_env: MakeEnv, *counts: int, nbytes: int = 100, **config: Any) -> Env:
    """Return an environment with workers w0, w1, ... of 10,000 bytes and the given number of tasks on each."""
    env = make_env(rebalance_measure="managed", **config)
    names = [f"w{i}" for i in range(len(counts))]
    env.join(*names, memory_limit=10_000)
    for name, count in zip(names, counts):
        keys = [f"{name}-{i}" for i in range(count)]
        env.submit({key: [] for key in keys}, keys, annotations=on(name, *keys))
        env.finish(*keys, nbytes=nbytes)
        uses(env, name, 1_000_000)
    env.take()
    return env


def moves(env: Env, **options: Any) -> list[str]:
    plan = RebalancePlan(env.state, list(env.state.workers.values()), **options)
    return [f"{s.address} {ts.key} {r.address}" for s, r, ts in plan.moves]


def test_the_oldest_data_moves(make_env: MakeEnv) -> None:
    env = filled(make_env, 6, 0, rebalance_sender_min=0.0, rebalance_gap=0.0)
    assert moves(env) == ["w0 w0-0 w1", "w0 w0-1 w1", "w0 w0-2 w1"]
    assert moves(env, keys={"w0-4"}) == ["w0 w0-4 w1"]


def test_nothing_moves_while_memory_is_free(make_env: MakeEnv) -> None:
    assert moves(filled(make_env, 20, 0)) == []
    assert len(moves(filled(make_env, 60, 0))) == 25  # to within a gap of 5 % of the mean


def test_full_workers_receive_nothing(make_env: MakeEnv) -> None:
    assert moves(filled(make_env, 95, 70)) == []


def test_holder_does_not_receive_a_replica(make_env: MakeEnv) -> None:
    """The next recipient gets it, although the holder is farther below the mean."""
    env = filled(make_env, 6, 0, 2, rebalance_sender_min=0.0, rebalance_gap=0.0)
    env.fetched("w1", "w0-0")
    assert moves(env) == ["w0 w0-0 w2", "w0 w0-1 w1", "w0 w0-2 w1"]


def test_an_empty_cluster(make_env: MakeEnv) -> None:
    env = make_env()
    assert RebalancePlan(env.state, []).moves == []


@pytest.mark.parametrize("seed", range(20))
def test_rebalance_terminates_and_evens_memory(make_env: MakeEnv, seed: int) -> None:
    rng = random.Random(seed)
    counts = [rng.choice((0, 3, 20, 60)) for _ in range(rng.randint(2, 7))]
    env = filled(make_env, *counts, rebalance_sender_min=0.0, nbytes=rng.choice((10, 100)))
    used = {ws.address: measured(ws, "managed") for ws in env.state.workers.values()}
    spread = max(used.values()) - min(used.values())
    plan = RebalancePlan(env.state, list(env.state.workers.values()))
    assert len(plan.moves) == len({move.task for move in plan.moves})
    for sender, recipient, ts in plan.moves:
        assert ts in sender.has_what and ts not in recipient.has_what
        used[sender.address] -= ts.nbytes
        used[recipient.address] += ts.nbytes
    assert max(used.values()) - min(used.values()) <= spread
