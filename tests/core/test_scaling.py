"""The number of workers that an adaptive cluster should have, and those that it may close."""

from __future__ import annotations

from typing import Any

import pytest
from paceline.scheduler.core.lifecycle.extra_runs import add_extra_run
from paceline.scheduler.core.policy import scaling
from paceline.scheduler.core.stimuli import AnnotationSet, SizeCluster
from paceline.testing import Env


def asked(env: Env, seconds: float = 0.0, duration: float = 1.0) -> int:
    """Advance the clock, and return the answer to a request of an adaptive cluster."""
    env.tick(seconds)
    env.feed(SizeCluster(duration))
    return env.state.scaling.asked


def cluster(*workers: str, **config: Any) -> Env:
    env = Env(**config)
    env.client("alice")
    asked(env)
    for address in workers:
        env.join(address, memory_limit=1000)
    asked(env)
    return env


def roots(name: str, n: int) -> dict[Any, list[Any]]:
    return {(name, i): [] for i in range(n)}


def finish_all(env: Env) -> None:
    while any(ws.processing for ws in env.state.workers.values()):
        for ws in list(env.state.workers.values()):
            env.finish(*[ts.key for ts in ws.processing], seconds=0.5, nbytes=0)


def test_starting_workers_are_kept_between_steps() -> None:
    env = cluster("w0")
    env.submit(roots("x", 8))
    assert asked(env) == 4
    for _ in range(40):
        assert asked(env, 1.0) == 4, "three are starting"
    finish_all(env)
    env.join("w1", memory_limit=1000)
    for _ in range(20):
        assert asked(env, 1.0) == 4, "two are starting"
    assert asked(env, 5.0) < 4, "none came for half of the time that the first one took"


def test_workers_that_are_asked_for_later_are_waited_for_anew() -> None:
    env = cluster("w0")
    env.submit(roots("x", 8))
    assert asked(env) == 4
    asked(env, 290.0)
    env.submit(roots("y", 8))
    assert asked(env) == 8
    asked(env, 20.0)
    finish_all(env)
    assert asked(env, 1.0) == 8


def test_the_first_of_further_workers_is_waited_for_as_long_as_that_of_the_first_ones() -> None:
    env = cluster("w0")
    env.submit(roots("x", 8))
    assert asked(env) == 4
    env.now += 40.0
    env.join("w1", "w2", "w3", memory_limit=1000)
    assert asked(env) == 4
    for key in roots("x", 8):
        env.finish(key, seconds=100.0, nbytes=0)
    env.submit({("x", i): [] for i in range(8, 28)})
    n = asked(env)
    assert n > 4
    asked(env, 60.0)
    finish_all(env)
    assert asked(env, 1.0) == n, "one may take twice 40 s"


def test_starting_workers_are_given_up_without_work() -> None:
    env = cluster("w0")
    env.submit(roots("x", 8))
    assert asked(env) == 4
    finish_all(env)
    for _ in range(30):
        assert asked(env, 1.0) == 4
    assert asked(env, 1.0) == 0, "there was no work for 30 s"


def test_a_worker_is_not_closed_before_its_first_task() -> None:
    env = cluster("w0")
    env.submit(roots("x", 4))
    assert asked(env) == 2
    finish_all(env)
    env.join("w1", memory_limit=1000)
    env.release(*roots("x", 4))
    asked(env, 1.0)
    asked(env, 20.0)
    assert not scaling.may_close(env.state, env.worker("w1"))
    assert scaling.may_close(env.state, env.worker("w0"))
    assert scaling.workers_to_close(env.state, target=1) == ["w0"]
    assert asked(env, 11.0) == 0
    assert scaling.workers_to_close(env.state, target=0) == ["w0", "w1"]


def test_workers_in_use_are_not_closed_for_the_number_of_the_answer() -> None:
    env = cluster("w0", "w1", "w2")
    env.submit({"x": []})
    assert asked(env, 100.0) == 1
    busy = env.where("x")
    closing = scaling.workers_to_close(env.state, target=1)
    assert len(closing) == 2 and busy not in closing
    env.submit({"y": []})
    closing = scaling.workers_to_close(env.state, target=1)
    assert len(closing) == 1 and not env.processing(closing[0])
    assert len(scaling.workers_to_close(env.state, target=0)) == 3, "as the user demands"


def test_workers_in_use_are_not_closed_for_an_answer_of_zero() -> None:
    env = cluster("w0", "w1")
    assert asked(env, 100.0) == 0
    env.submit({"x": []})
    closing = scaling.workers_to_close(env.state, target=0)
    assert len(closing) == 1 and not env.processing(closing[0])


def test_idle_workers_stay_for_a_part_of_their_time() -> None:
    env = cluster("w0")
    env.submit({"x": []})
    for _ in range(10):
        asked(env, 20.0)
    finish_all(env)
    env.release("x")
    assert asked(env) == 1
    assert asked(env, 15.0) == 1
    assert asked(env, 8.0) == 0


def test_idle_workers_are_closed_if_requests_are_rare() -> None:
    env = cluster("w0", "w1", worker_ttl_seconds=0)
    env.submit(roots("x", 2))
    finish_all(env)
    env.release(*roots("x", 2))
    assert asked(env, 600.0) == 2, "both were used since the last request"
    assert asked(env, 600.0) == 0
    assert scaling.workers_to_close(env.state, target=0) == ["w0", "w1"]


def test_idle_workers_are_closed_at_once_in_a_long_tail() -> None:
    env = cluster("w0", "w1")
    env.submit(roots("x", 2))
    for _ in range(10):
        asked(env, 20.0)
    env.finish(("x", 0))
    env.release(("x", 0))
    asked(env)
    assert asked(env, 2.0) == 1


def test_workers_that_never_come_do_not_keep_others() -> None:
    env = cluster("w0", "w1")
    env.submit(roots("x", 100))
    assert asked(env) == 50
    for _ in range(50):
        asked(env, 10.0)
    finish_all(env)
    env.release(*roots("x", 100))
    asked(env)
    assert asked(env, 60.0) == 0
    env.submit(roots("y", 100))
    assert asked(env) > 2, "the maximum may have been raised"
    finish_all(env)
    env.release(*roots("y", 100))
    asked(env)
    assert asked(env, 100.0) == 0


def test_only_a_lost_worker_is_expected_back_if_no_further_ones_came() -> None:
    env = cluster("w0", "w1")
    env.submit(roots("x", 100))
    for _ in range(50):
        asked(env, 10.0)
    env.lose("w1")
    asked(env)
    finish_all(env)
    assert asked(env, 1.0) == 2
    env.submit(roots("y", 100))
    env.join("w2", memory_limit=1000)
    assert asked(env) == 50
    finish_all(env)
    assert asked(env, 1.0) == 2, "w2 is as many as there were"


def test_no_worker_is_asked_for_a_group_at_its_cap() -> None:
    env = cluster("w0", "w1", shares_groups={"alice": {"tasks": 2}})
    env.submit(roots("x", 100))
    assert env.task(("x", 99)).state == "queued"
    assert asked(env) == 2
    env = cluster("w0", "w1", shares_groups={"alice": {"threads": 5}})
    env.submit(roots("x", 100))
    assert asked(env) <= 5
    env = cluster(shares_groups={"alice": {"tasks": 2}})
    gpu = AnnotationSet(resources={"GPU": 1})
    env.submit(roots("x", 100), annotations=dict.fromkeys(roots("x", 100), gpu))
    assert env.states(("x", 0)) == ["no-worker"]
    assert asked(env, duration=0.1) == 2


def test_no_worker_is_asked_for_tasks_that_are_restricted_to_others() -> None:
    env = Env()
    env.client("alice")
    annotations = {"x": AnnotationSet(workers=["gone"])}
    env.submit({"x": []}, annotations=annotations)
    assert env.states("x") == ["no-worker"]
    assert asked(env) == 0
    env.submit({"y": []}, annotations={"y": AnnotationSet(resources={"GPU": 1})})
    assert asked(env) == 1


@pytest.mark.parametrize("n_others", [0, 4])
def test_no_worker_is_asked_for_tasks_that_wait_for_the_only_worker_they_may_run_on(
    n_others: int,
) -> None:
    env = cluster("w0", "w1")
    env.client("bob")
    env.submit(roots("y", n_others), client="bob")
    only = AnnotationSet(workers=["w0"])
    env.submit(roots("x", 200), annotations=dict.fromkeys(roots("x", 200), only))
    assert (env.task(("x", 199)).state == "queued") == (n_others > 0)
    assert asked(env) == 2


def test_workers_occupied_by_restricted_tasks_do_not_count_for_others() -> None:
    env = cluster("w0")
    only = AnnotationSet(workers=["w0"])
    env.submit(roots("x", 200), annotations=dict.fromkeys(roots("x", 200), only))
    env.submit(roots("y", 6))
    assert asked(env) == 1 + 3


def test_one_worker_is_asked_for_a_resource_that_no_worker_ever_had() -> None:
    env = cluster("w0", "w1", worker_ttl_seconds=0)
    gpu = dict.fromkeys(roots("x", 20), AnnotationSet(resources={"GPU": 1}))
    env.tick(1.0)
    env.submit(roots("x", 20), annotations=gpu)
    assert asked(env, 1.0) == 3
    env.join("w2")
    assert scaling.needed_workers(env.state, 1.0) == 0
    for _ in range(4):
        n = asked(env, 20.0)
    assert n == 0
    for address in ("w0", "w1", "w2"):
        env.lose(address, expected=True)
    assert asked(env, 1.0) == 0
    env.join("w3", resources={"GPU": 1})
    env.lose("w3", expected=True)
    assert asked(env, 1.0) == 10, "workers may have it"


def test_tasks_that_no_worker_can_run_do_not_hide_later_ones() -> None:
    env = cluster("w0")
    for name, n in (("x", 200), ("y", 1)):
        resources = dict.fromkeys(roots(name, n), AnnotationSet(resources={name: 1}))
        env.submit(roots(name, n), annotations=resources)
        n_workers = len(env.state.workers)
        assert scaling.needed_workers(env.state, 1.0) == n_workers + 1
        env.tick(1.0)
        env.join(f"{name}-worker")
        env.tick(1.0)
        assert scaling.needed_workers(env.state, 1.0) == 0


def test_a_worker_that_does_not_come_for_a_resource_does_not_keep_others() -> None:
    env = cluster("w0", "w1", worker_ttl_seconds=0)
    env.submit({"x": []}, annotations={"x": AnnotationSet(resources={"GPU": 1})})
    assert asked(env, 1.0) == 3
    for _ in range(40):
        n = asked(env, 10.0)
    assert n == 0


def test_threads_of_given_up_runs_do_not_count() -> None:
    env = cluster("w0")
    env.submit({"x": []})
    env.submit({"y": []})
    add_extra_run(env.state, env.worker("w0"), "given-up", env.task("y").account)
    assert asked(env) == 2
    env.finish("x", seconds=0.1)
    assert asked(env) == 2


def test_workers_that_end_too_soon_do_not_count() -> None:
    env = cluster("w0")
    env.submit({"x-0": []})
    env.finish("x-0", seconds=100.0)
    env.release("x-0")
    env.lose("w0", expected=True)
    env.join("w1", nthreads=4, metrics={"ends_in": 50.0})
    env.submit({"x-1": []})
    assert env.task("x-1").state == "queued"
    assert asked(env, duration=1000.0) == 2
    env.join("w2", nthreads=4)
    assert asked(env, duration=1000.0) == 2
    assert env.where("x-1") == "w2"


def test_workers_that_arrive_too_late_to_help_are_not_asked_for() -> None:
    env = cluster("w0")
    env.submit(roots("x", 100))
    assert asked(env) == 50
    env.now += 40.0
    env.join("w1", memory_limit=1000)
    asked(env)
    assert env.state.scaling.startup_seconds == 40.0
    finish_all(env)
    for _ in range(30):
        asked(env, 10.0)
    env.submit(roots("x2", 100))
    assert asked(env) == 2, "the two present ones finish within 40 s"


def test_full_memory_asks_for_twice_the_workers_once() -> None:
    env = cluster("w0", "w1")
    env.submit(roots("x", 2))
    env.finish(("x", 0), ("x", 1), nbytes=900)
    assert asked(env) == 4
    env.join("w2", memory_limit=500)
    assert asked(env) == 4
    env.join("w3", memory_limit=1)
    assert asked(env) == 8, "four are still too few"


def test_cold_starts_know_the_threads_of_workers() -> None:
    env = cluster()
    env.join("w0", nthreads=4, memory_limit=1000)
    asked(env)
    env.lose("w0")
    env.submit(roots("x", 80))
    assert asked(env) == 10


def test_pages_do_not_count_as_requests() -> None:
    env = Env()
    env.client("alice")
    env.submit(roots("x", 10))
    assert scaling.adaptive_target(env.state, 1.0) == 5
    assert env.state.scaling.asked_at == 0


def test_further_workers_that_end_too_soon_are_not_asked_for() -> None:
    """Workers that joined lately last too short a time, so that others would not help."""
    env = cluster(default_task_durations_seconds={"x": 7200.0})
    env.join("w0", metrics={"ends_in": 3600.0})
    assert asked(env) == 1
    env.submit({"x-1": []})
    for i in range(1, 20):
        for name in env.state.workers:
            env.heartbeat(name, metrics={"ends_in": 3600.0})
        if asked(env, 20.0) > len(env.state.workers):
            env.join(f"w{i}", metrics={"ends_in": 3600.0})
    assert len(env.state.workers) <= 2
    env.join("lasts")
    assert env.where("x-1") == "lasts"


def test_worker_that_its_nanny_restarts_is_not_one_that_was_asked_for() -> None:
    env = cluster("w0", "w1", default_task_durations_seconds={"x": 10.0})
    env.submit(roots("x", 40))
    assert asked(env, 1.0) == 40
    env.lose("w0")
    asked(env, 1.0)
    env.join("w0")
    assert asked(env, 1.0) == 40
    finish_all(env)
    for _ in range(20):
        assert asked(env, 1.0) == 40
    assert not env.state.scaling.startup_seconds


def test_threads_of_paused_workers_are_not_free() -> None:
    env = cluster("w0", "w1")
    for name in ("w0", "w1"):
        env.status(name, "paused")
    env.submit(roots("x", 20))
    assert asked(env, 1.0, duration=5.0) > 2


def test_threads_of_a_reserved_worker_are_not_free() -> None:
    env = cluster()
    for name in ("w0", "w1"):
        env.join(name, nthreads=8, memory_limit=1000, nanny=f"nanny-{name}")
    env.submit({"big": []})
    lost = env.where("big")
    env.heartbeat(lost, executing={"big": 1.0}, metrics={"memory": 900})
    env.lose(lost)
    env.tick()
    (reserved,) = env.state.workers.values()
    assert reserved.reserved_for is env.task("big")
    env.join("w2", nthreads=8, memory_limit=1000)
    env.submit({f"p{i}-0": [] for i in range(13)})
    assert asked(env, duration=0.5) > 2
