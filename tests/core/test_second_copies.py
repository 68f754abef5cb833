"""Second copies of results that would be expensive to compute again."""

from __future__ import annotations

from typing import Any

import pytest
from paceline.scheduler.core.inspection.explain import explain
from paceline.scheduler.core.policy.second_copies import (
    IRREPLACEABLE_SECONDS,
    KEPT_MAX,
    REPEAT_SECONDS,
    review,
    seconds_to_repeat,
)
from paceline.scheduler.core.policy.surplus_replicas import MemoryPlan, reduce_replicas
from paceline.scheduler.core.state.second_copies import CANDIDATES_MAX, SecondCopies
from paceline.scheduler.core.stimuli import DataPlaced, ReleaseAll
from paceline.testing import Env

GIB = 2**30
INTERVAL = 2.0


def cluster(n_workers: int = 3, losses: int = 1, **config: Any) -> Env:
    """Return an environment with workers w0, w1, ... after the loss of some others."""
    env = Env(**config)
    for n in range(n_workers + losses):
        env.join(f"w{n}", memory_limit=GIB)
    for n in range(n_workers, n_workers + losses):
        env.lose(f"w{n}")
    env.client("alice")
    assert look(env) == {}
    return env


def look(env: Env, seconds: float = INTERVAL) -> dict[str, list[Any]]:
    """Return the copies, by worker, that the memory manager would request after `seconds`."""
    env.now += seconds
    requests = review(env.state, INTERVAL, env.now)
    return {ws.address: [ts.key for ts in tasks] for ws, tasks in requests.items()}


def compute(env: Env, graph: dict[Any, list[Any]], seconds: float, nbytes: int = 8) -> None:
    """Compute `graph`, of which each task takes `seconds`."""
    env.submit(graph)
    for key in graph:
        env.finish(key, seconds=seconds, nbytes=nbytes)


def surplus(env: Env) -> list[Any]:
    """Return the keys of which the memory manager would drop a replica."""
    plan = MemoryPlan("managed")
    reduce_replicas(env.state, plan, 1000)
    return [ts.key for tasks in plan.drops.values() for ts in tasks]


def holder(env: Env, key: str) -> str:
    return env.task(key).who_has[0].address


def test_nothing_is_noted_while_no_worker_was_lost() -> None:
    env = cluster(losses=0)
    compute(env, {"x": []}, 100.0)
    assert look(env, 3600) == {}
    assert not env.state.second_copies.candidates


def test_a_worker_that_leaves_on_request_is_no_loss() -> None:
    env = cluster(losses=0)
    env.lose("w2", expected=True)
    compute(env, {"x": []}, 100.0)
    assert look(env, 3600) == {}


def test_an_expensive_result_is_copied_and_the_copy_is_kept() -> None:
    env = cluster()
    compute(env, {"x": []}, 1000.0)
    ((address, keys),) = look(env, 60).items()
    assert keys == ["x"]
    assert address != holder(env, "x")
    env.fetched(address, "x")
    assert look(env) == {}
    assert surplus(env) == []
    assert "Two copies are kept" in explain(env.state, "x", env.now)["summary"]
    env.release("x")
    assert look(env) == {}
    assert not env.state.second_copies.candidates
    assert not env.state.second_copies.kept


@pytest.mark.parametrize(("seconds", "nbytes"), [(0.1, 8), (1.0, 10**9)])
def test_a_result_that_is_cheaper_to_compute_than_to_copy_stays_alone(
    seconds: float, nbytes: int
) -> None:
    env = cluster()
    compute(env, {"x": []}, seconds, nbytes)
    assert look(env, 60) == {}


def test_the_risk_grows_with_the_age_of_the_result() -> None:
    env = cluster()
    compute(env, {"x": []}, 10.0, nbytes=10**6)
    assert look(env, 1) == {}
    assert look(env, 600) != {}


def test_intermediate_results_that_are_released_count() -> None:
    env = cluster()
    compute(env, {f"a-{n}": [] for n in range(3)} | {"sum": ["a-0", "a-1", "a-2"]}, 1.0)
    prefix = env.task("sum").prefix.duration_average
    assert seconds_to_repeat(env.state, env.task("sum")) == pytest.approx(prefix + 3)


def test_data_that_cannot_be_computed_is_copied() -> None:
    env = cluster()
    env.feed(DataPlaced({"x": ["w0"]}, {"x": 100}, client="alice"))
    assert seconds_to_repeat(env.state, env.task("x")) == IRREPLACEABLE_SECONDS
    assert look(env, 60) in ({"w1": ["x"]}, {"w2": ["x"]})


def test_results_from_before_the_first_loss_are_found() -> None:
    env = cluster(losses=0)
    compute(env, {"x": []}, 1000.0)
    env.join("w9", memory_limit=GIB)
    env.lose("w9")
    look(env)
    assert look(env, 60) != {}


def test_a_copy_that_does_not_arrive_is_requested_again_later() -> None:
    env = cluster()
    compute(env, {"x": []}, 1000.0)
    assert look(env, 60) != {}
    assert look(env) == {}
    assert look(env, REPEAT_SECONDS) != {}


def test_results_on_a_paused_worker_are_copied() -> None:
    env = cluster(losses=0)
    compute(env, {"x": []}, 100.0)
    env.status(holder(env, "x"), "paused")
    ((address, _),) = look(env).items()
    assert address != holder(env, "x")


def test_results_on_a_worker_that_ends_soon_are_copied_to_one_that_does_not() -> None:
    env = cluster(losses=0)
    compute(env, {"x": []}, 10.0, nbytes=10**7)
    end = holder(env, "x")
    (other,) = {"w0", "w1"} - {end}
    for address in (end, other):
        env.heartbeat(address, metrics={"ends_in": 1000.0})
    assert look(env, 1) == {}
    assert look(env, 800) == {"w2": ["x"]}


def test_result_that_is_as_new_as_the_end_of_its_worker() -> None:
    env = cluster(losses=0)
    compute(env, {"x": []}, 10.0, nbytes=10**8)
    env.heartbeat(holder(env, "x"), metrics={"ends_in": 0.0})
    assert look(env, 0) == {}
    assert look(env, 1) == {"w1": ["x"]}


def test_copies_are_made_on_another_host_if_there_is_one() -> None:
    env = Env()
    env.join("w0", "w1", "w2", host="here")
    env.join("w3", "w4", host="there")
    env.lose("w4")
    env.client("alice")
    look(env)
    compute(env, {"x": []}, 1000.0)
    env.now += 60
    same = env.worker(holder(env, "x")).host
    ((address, _),) = look(env).items()
    assert env.worker(address).host != same


def test_a_worker_without_room_gets_no_copy_and_drops_the_one_it_has() -> None:
    env = cluster(n_workers=2)
    compute(env, {"x": []}, 1000.0)
    (other,) = {"w0", "w1"} - {holder(env, "x")}
    ws = env.worker(other)
    ws.metrics = {"memory": GIB}
    ws.memory_unmanaged_old = GIB
    assert look(env, 60) == {}
    ws.memory_unmanaged_old = 0
    assert look(env) == {other: ["x"]}
    env.fetched(other, "x")
    look(env)
    assert surplus(env) == []
    ws.memory_unmanaged_old = int(KEPT_MAX * GIB) + 1
    look(env)
    assert surplus(env) == ["x"]


def test_it_can_be_switched_off() -> None:
    env = cluster(second_copies=False)
    compute(env, {"x": []}, 1000.0)
    assert look(env, 60) == {}


def test_losses_count_half_after_an_hour() -> None:
    copies = SecondCopies(losses=1.0)
    copies.observe(1, 1000.0)
    copies.observe(1, 4600.0)
    assert copies.losses == pytest.approx(0.5)
    assert copies.losses_per_second < 1 / 7200


def test_the_number_of_candidates_is_limited() -> None:
    copies = SecondCopies()
    for n in range(CANDIDATES_MAX + 10):
        copies.note(n, 1.0, 0.0)
    assert len(copies.candidates) == CANDIDATES_MAX
    assert 0 not in copies.candidates


def test_a_restart_forgets_candidates() -> None:
    env = cluster()
    compute(env, {"x": []}, 1000.0)
    assert env.state.second_copies.candidates
    env.feed(ReleaseAll())
    assert not env.state.second_copies.candidates
