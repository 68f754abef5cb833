"""Workers that end: they get no task that they cannot finish, and the tasks wait for others."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from paceline.scheduler.core.inspection.explain import explain, explain_all
from paceline.scheduler.core.stimuli import AnnotationSet, BalanceWork
from paceline.testing import Env

DURATIONS = {"long": 100.0, "short": 1.0}


def ending(*seconds: float | None, nthreads: int = 1, **config: Any) -> Env:
    """Return a cluster with a worker for each of `seconds`, after which it ends; None for never.

    Tasks of the prefixes "long" and "short" are expected to take 100 s and 1 s.
    """
    env = Env(**config)
    env.client("alice")
    env.join("w")
    for prefix, duration in DURATIONS.items():
        env.submit({f"{prefix}-0": []})
        env.finish(f"{prefix}-0", seconds=duration)
    env.release("long-0", "short-0")
    env.lose("w", expected=True)
    for i, left in enumerate(seconds):
        env.join(f"w{i}", nthreads=nthreads, metrics={"ends_in": left})
    env.take()
    return env


@pytest.mark.parametrize("shares_enabled", [True, False])
@pytest.mark.parametrize("workers", [None, ["w0", "w1"]])
def test_a_task_goes_to_a_worker_that_lasts(shares_enabled: bool, workers: Any) -> None:
    env = ending(50.0, None, shares_enabled=shares_enabled)
    env.submit({"long-1": []}, annotations={"long-1": AnnotationSet(workers=workers)})
    assert env.where("long-1") == "w1"
    env.submit({"short-1": []})
    assert env.where("short-1") == "w0"


def test_a_loosely_restricted_task_goes_to_another_worker_that_lasts() -> None:
    env = ending(50.0, None)
    loose = AnnotationSet(workers=["w0"], allow_other_workers=True)
    env.submit({"long-1": [], "short-1": []}, annotations={"long-1": loose, "short-1": loose})
    assert (env.where("long-1"), env.where("short-1")) == ("w1", "w0")


def test_it_waits_if_all_workers_end_too_soon() -> None:
    env = ending(50.0, 60.0)
    env.submit({"long-1": [], "short-1": []})
    assert env.states("long-1", "short-1") == ["queued", "processing"]
    found = explain(env.state, "long-1", env.now)
    assert found["summary"].endswith(
        "it is expected to take 100.0 s, and 2 of 2 workers end before that. Start a worker."
    )
    assert "w1: ends in 60.0 s; the task is expected to take 100.0 s." in found["words"]
    assert explain_all(env.state, env.now)["cluster"]["ends"] == [
        {"worker": "w0", "seconds": 50.0},
        {"worker": "w1", "seconds": 60.0},
    ]
    env.tick(5.0)
    env.heartbeat("w0", metrics={"ends_in": 45.0})
    assert env.states("long-1") == ["queued"]
    env.join("w9", metrics={"ends_in": 1000.0})
    assert env.where("long-1") == "w9"


def test_explanation_of_a_worker_that_is_past_its_end() -> None:
    env = ending(0.0)
    env.submit({"long-1": []})
    assert "w0: its end has passed." in explain(env.state, "long-1", env.now)["words"]


def test_it_waits_for_a_slot_of_a_worker_that_lasts() -> None:
    env = ending(50.0, 1000.0)
    env.submit({"long-1": []})
    env.submit({"long-2": [], "short-1": []})
    assert env.where("long-1") == "w1"
    assert env.where("short-1") == "w0"
    assert env.task("long-2").processing_on in (None, env.worker("w1"))
    env.submit({"long-3": []})
    assert explain(env.state, "long-3", env.now)["summary"].endswith(
        "1 of 2 workers ends before that. It waits for a slot of w1."
    )
    env.finish("long-1", seconds=100.0)
    assert env.where("long-2") == "w1"


def test_root_tasks_of_a_large_group_do_not_block_shorter_ones() -> None:
    env = ending(150.0, 150.0)
    graph = {(f"{prefix}-x", i): [] for prefix in ("long", "short") for i in range(20)}
    env.submit(graph)
    assert env.task(("long-x", 19)).state == "queued"
    env.now += 60.0
    env.tick()
    for key in [*env.processing("w0"), *env.processing("w1")]:
        if key in {ts.key for ts in env.state.stealing.in_flight}:
            env.give_back(key)
        else:
            env.finish(key, seconds=100.0)
    running = [*env.processing("w0"), *env.processing("w1")]
    assert running and all(key[0] == "short-x" for key in running)
    for key in running:
        env.finish(key, seconds=1.0)
    env.join("w9")
    assert {key[0] for key in env.processing("w9")} == {"long-x"}


def test_a_task_that_was_not_begun_in_time_is_recalled() -> None:
    env = ending(150.0)
    env.submit({"long-1": []})
    env.submit({"long-2": []})
    assert env.where("long-2") == "w0"
    env.heartbeat("w0", executing={"long-1": 0.5}, metrics={"ends_in": 150.0})
    env.tick(60.0)
    assert [ts.key for ts in env.state.stealing.in_flight] == ["long-2"]
    env.give_back("long-2")
    assert env.states("long-1", "long-2") == ["processing", "queued"]
    env.join("w9")
    assert env.where("long-2") == "w9"


def test_a_notice_recalls_tasks() -> None:
    env = ending(None, None)
    env.submit({"long-1": [], "long-2": [], "long-3": [], "long-4": []})
    here = env.processing("w0")
    env.submit({"short-1": []}, annotations={"short-1": AnnotationSet(workers=["w0"])})
    env.heartbeat("w0", executing={here[0]: 1.0}, metrics={"ends_in": 30.0})
    assert [ts.key for ts in env.state.stealing.in_flight] == here[1:]


def test_an_end_that_moves_away_starts_waiting_tasks() -> None:
    env = ending(50.0)
    env.submit({"long-1": []})
    assert env.states("long-1") == ["queued"]
    env.heartbeat("w0", metrics={"ends_in": None})
    assert env.where("long-1") == "w0"
    assert not env.state.worker_ends.workers


@pytest.mark.parametrize("seconds", ["soon", float("nan"), float("inf"), [1]])
def test_other_values_are_ignored(seconds: Any) -> None:
    env = ending(seconds)
    env.submit({"long-1": []})
    assert env.where("long-1") == "w0"


def test_unknown_durations_count_as_configured() -> None:
    env = ending(50.0, unknown_task_duration_seconds=60.0)
    env.submit({"new-1": []})
    assert env.states("new-1") == ["queued"]
    env = ending(50.0, unknown_task_duration_seconds=1.0)
    env.submit({"new-1": []})
    assert env.where("new-1") == "w0"


@pytest.mark.parametrize(("seconds", "steals"), [(50.0, False), (500.0, True)])
def test_a_thief_has_the_time(seconds: float, steals: bool) -> None:
    env = ending(None, worker_saturation=inf)
    env.submit({f"long-{i}": [] for i in range(8)})
    env.join("w1", metrics={"ends_in": seconds})
    env.turn(BalanceWork())
    assert bool(env.state.stealing.in_flight) is steals


def test_a_worker_that_left_limits_nothing() -> None:
    env = ending(50.0, None)
    env.lose("w0")
    env.submit({"long-1": []})
    assert env.where("long-1") == "w1"
    assert not env.state.worker_ends.workers and not env.task("long-1").account.share.n_held


def test_a_failed_run_that_took_long_does_not_stop_its_prefix() -> None:
    env = ending(3600.0)
    env.submit({"new-0": []})
    env.tick(1900.0)
    env.heartbeat("w0", executing={"new-0": 1900.0}, metrics={"ends_in": 1700.0})
    env.join("w1", metrics={"ends_in": 3600.0})
    env.submit({"new-1": []})
    assert env.states("new-1") == ["queued"], "it is expected to take 3800 s"
    env.fail("new-0")
    assert env.states("new-1") == ["processing"]
