"""Admission by memory: workers get only tasks whose results they are expected to have memory for."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from paceline.scheduler.core.inspection.explain import explain
from paceline.scheduler.core.inspection.memory_report import memory_report
from paceline.scheduler.core.policy import admission
from paceline.scheduler.core.state.admission import TaskMemory
from paceline.scheduler.core.stimuli import BalanceWork
from paceline.testing import Env

from tests.support.annotations import on
from tests.support.memory import MB, beat, cluster, join, learn


def test_mean_of_results_and_decaying_peak() -> None:
    memory = TaskMemory()
    assert not memory.is_known
    for nbytes in (100, 200, 300):
        memory.add_result(nbytes)
    assert (memory.is_known, memory.task_nbytes) == (True, 200)
    memory.add_peak(1000.0)
    assert memory.task_nbytes == 1000
    for _ in range(100):
        memory.add_peak(0.0)
    assert memory.task_nbytes == 200
    for _ in range(100):
        memory.add_result(1000)
    assert memory.task_nbytes > 990


def test_nothing_is_checked_while_there_is_memory() -> None:
    env = cluster()
    learn(env, "x", 10 * MB)
    env.submit({f"x-{i}": [] for i in range(1, 5)})
    assert not env.state.admission.is_short
    assert env.states("x-1", "x-4") == ["processing", "processing"]


def test_task_that_frees_more_than_it_makes_fits_where_its_inputs_are() -> None:
    env = cluster()  # 220 MB for results on each
    learn(env, "y", 90 * MB)
    env.submit({"busy": []}, annotations=on("w1", "busy"))
    env.submit({"here": [], "y-1": ["here"]}, annotations=on("w0", "here"))
    env.finish("here", nbytes=215 * MB)
    assert env.where("y-1") == "w0"


@pytest.mark.parametrize(("far", "fits"), [(30, True), (50, False)])
def test_task_that_frees_more_than_it_makes_may_fetch_a_small_input(far: int, fits: bool) -> None:
    """Up to a tenth of the limit of 400 MB."""
    env = cluster()
    learn(env, "y", 90 * MB)
    places = on("w0", "here") | on("w1", "far")
    env.submit({"here": [], "far": [], "y-1": ["here", "far"]}, ["far", "y-1"], annotations=places)
    env.finish("here", nbytes=215 * MB)
    env.state.admission.is_short = True
    y, w0 = env.task("y-1"), env.worker("w0")
    env.task("far").nbytes = far * MB
    assert admission.fits(env.state, y, w0) == fits


def test_at_most_one_task_of_unknown_size_per_thread_when_memory_is_short() -> None:
    env = cluster(nthreads=2)
    env.submit({"data": []}, annotations=on("w0", "data"))
    env.finish("data", nbytes=170 * MB)
    env.submit({f"new-{i}": [] for i in range(8)})
    assert [len(env.processing(ws)) for ws in ("w0", "w1")] == [2, 2]


def test_tiny_results_always_fit() -> None:
    env = cluster(1)
    learn(env, "tiny", 100)
    env.submit({"data": []})
    env.finish("data", nbytes=350 * MB)
    env.submit({"tiny-1": ["data"], "tiny-2": ["data"]})
    assert env.states("tiny-1", "tiny-2") == ["processing", "processing"]


def test_peaks_are_learned_from_heartbeats() -> None:
    env = cluster(1, nthreads=2)
    env.submit({"x-1": [], "x-2": []})
    executing = {"x-1": 2.0, "x-2": 2.0}
    beat(env, "w0", 260, executing=executing)
    memory = env.task("x-1").prefix.memory
    assert memory.peak_nbytes == 100 * MB
    beat(env, "w0", 100, executing={"x-1": 0.1})
    beat(env, "w0", 460, managed=400, executing=executing)  # as of different times
    assert memory.peak_nbytes == 100 * MB
    assert env.state.admission.is_short
    env.submit({"x-3": []})
    assert env.states("x-3") == ["queued"]
    env.finish("x-1", nbytes=8)
    assert env.states("x-3") == ["processing"]


def test_memory_of_the_idle_process_is_limited() -> None:
    env = cluster(1)
    beat(env, "w0", 390)
    ws = env.worker("w0")
    assert ws.idle_nbytes == 390 * MB
    learn(env, "x", 100 * MB)
    assert admission.free_nbytes(env.state, ws) == 140 * MB
    env.submit({"x-1": []})
    assert env.states("x-1") == ["processing"]


def test_a_result_larger_than_a_worker_starts_on_an_empty_one() -> None:
    env = cluster(2)
    learn(env, "x", 1000 * MB)
    env.submit({"x-1": [], "x-2": [], "x-3": []})
    assert sorted(env.states("x-1", "x-2", "x-3")) == ["processing", "processing", "queued"]


@pytest.mark.parametrize("large", [1500, 0])
def test_a_worker_is_too_small_while_a_larger_one_may_run_the_task(large: int) -> None:
    env = cluster(1, limit=large)
    join(env, "w1", nthreads=4, limit=300)  # 150 MB for results
    env.submit({"here": [], "x-0": []}, annotations=on("w1", "here") | on("w0", "x-0"))
    env.finish("here", nbytes=8)
    env.finish("x-0", nbytes=240 * MB)
    env.submit({f"x-{i}": ["here"] if i % 2 else [] for i in range(1, 9)})
    while running := env.processing("w0"):  # soon nothing fits
        assert not env.processing("w1")
        env.finish(running[0], nbytes=240 * MB)
        beat(env, "w0", 60)
        beat(env, "w1", 60)
        env.tick()
    assert env.states("x-1", "x-8") == ["memory", "memory"]
    env.submit({"x-9": []}, annotations=on("w1", "x-9"))
    assert env.where("x-9") == "w1"


def test_spilled_results_do_not_count() -> None:
    env = cluster(1)
    learn(env, "x", 90 * MB)
    env.submit({"data": [], "x-1": []})
    env.finish("data", nbytes=250 * MB)
    env.finish("x-1", nbytes=90 * MB)
    beat(env, "w0", 390)
    env.submit({"x-2": []})
    env.submit({"x-3": []})
    assert sorted(env.states("x-2", "x-3")) == ["processing", "queued"]
    beat(env, "w0", 150, spilled=300)
    assert env.states("x-2", "x-3") == ["processing", "processing"]


def spilling_worker() -> Env:
    """Return a cluster of one worker that spilled all results and runs ``sum``."""
    env = cluster(1, nthreads=2)  # 220 MB for results
    learn(env, "x", 90 * MB)
    inputs = ["in-1", "in-2"]
    env.submit({**{key: [] for key in (*inputs, "other")}, "sum": inputs}, ["other", "sum"])
    for key in (*inputs, "other"):
        env.finish(key, nbytes=75 * MB)
    beat(env, "w0", 210, spilled=225)
    return env


def test_spilled_inputs_of_running_tasks_count() -> None:
    env = spilling_worker()
    w0 = env.worker("w0")
    assert admission.resident_nbytes(env.state, w0) == 150 * MB
    env.submit({"x-1": []})
    assert env.states("sum", "x-1") == ["processing", "queued"]
    env.finish("sum", nbytes=8)
    assert env.states("x-1") == ["processing"]


def test_spilled_inputs_of_running_tasks_do_not_count_as_the_peak_of_a_task() -> None:
    env = spilling_worker()
    beat(env, "w0", 210, spilled=225, executing={"sum": 1.0})
    assert env.task("sum").prefix.memory.peak_nbytes == 0.0


def test_spilled_inputs_need_memory() -> None:
    """A task that frees more than it makes does not fit beside another one that needs the memory."""
    env = cluster(1, nthreads=2)  # 220 MB for results
    first, second = ["a-1", "a-2"], ["b-1", "b-2"]
    env.submit({key: [] for key in first + second})
    for key in first + second:
        env.finish(key, nbytes=75 * MB)
    beat(env, "w0", 60, spilled=300)
    learn(env, "sum", 8)
    env.submit({"sum-1": first, "sum-2": second})
    env.release(*first, *second)
    assert env.states("sum-1", "sum-2") == ["processing", "queued"]
    found = explain(env.state, "sum-2", env.now)
    assert "has to load 143.05 MiB" in found["summary"]
    env.finish("sum-1", nbytes=8)
    assert env.states("sum-2") == ["processing"]


def test_a_task_that_frees_memory_waits_for_another_with_large_inputs() -> None:
    """Both inputs are in use, and no result of 20 MB fits beside them."""
    env = cluster(1, nthreads=2)  # 220 MB for results
    learn(env, "sum", 20 * MB)
    env.submit({"a": [], "b": [], "sum-1": ["a"], "sum-2": ["b"]}, ["sum-1", "sum-2"])
    env.finish("a", nbytes=100 * MB)
    env.finish("b", nbytes=100 * MB)
    assert env.states("sum-1", "sum-2") == ["processing", "queued"]
    env.finish("sum-1", nbytes=20 * MB)
    assert env.states("sum-2") == ["processing"]


@pytest.mark.parametrize(("n", "often", "usual"), [(2, 0.1, 0.5), (40, 0.4, 1.0), (300, 2.5, 2.5)])
def test_workers_that_may_run_short_of_memory_report_more_often(
    n: int, often: float, usual: float
) -> None:
    env = cluster(n)
    learn(env, "x", 90 * MB)
    env.submit({"x-1": [], "x-2": []}, annotations=on("w0", "x-1", "x-2"))
    seconds = [admission.heartbeat_seconds(env.state, ws) for ws in ("w0", "w1", "gone")]
    assert seconds == [often, usual, usual]
    env.release("x-1", "x-2")
    env.tick()
    assert admission.heartbeat_seconds(env.state, "w0") == usual


def test_a_measurement_is_learned_from_once() -> None:
    """Heartbeats may repeat the memory of the process, which was measured before a release."""
    env = cluster(1)
    env.submit({"data": []})
    env.finish("data", nbytes=100 * MB)
    metrics = {"memory": 160 * MB, "time": 1.0}
    env.heartbeat("w0", metrics={**metrics, "managed_bytes": 100 * MB})
    assert env.worker("w0").idle_nbytes == 60 * MB
    env.release("data")
    for _ in range(2):
        env.heartbeat("w0", metrics={**metrics, "managed_bytes": 0})
    assert env.worker("w0").idle_nbytes == 60 * MB
    for when in (1.5, 2.0):
        env.heartbeat("w0", metrics={"memory": 70 * MB, "time": when, "managed_bytes": 0})
    assert env.worker("w0").idle_nbytes == 70 * MB


def test_few_tasks_are_chosen_in_a_turn() -> None:
    """To choose a task while memory is short takes much longer than to send it."""
    env = cluster(1, nthreads=30)  # 220 MB for results
    learn(env, "x", 5 * MB)
    learn(env, "use", 8)
    env.submit({"held": []})
    env.finish("held", nbytes=215 * MB)
    env.submit({"use-1": ["held"]})
    env.release("held")
    env.submit({f"x-{i}": [] for i in range(1, 31)})
    assert env.processing("w0") == ["use-1"]
    n_turns = env.turns
    env.finish("use-1")
    assert len(env.processing("w0")) == 30
    assert env.turns - n_turns > 1


def test_data_that_a_worker_receives_does_not_count_for_its_process() -> None:
    env = cluster(1, idle=60)
    transfer = {"incoming_bytes": 100 * MB}
    env.heartbeat("w0", metrics={"memory": 160 * MB, "managed_bytes": 0, "transfer": transfer})
    assert env.worker("w0").idle_nbytes == 60 * MB


@pytest.mark.parametrize("n_last_use", [0, 100])
def test_inputs_that_have_to_be_fetched_need_memory(n_last_use: int) -> None:
    """Such inputs need memory even if the task frees more than it makes."""
    env = cluster()  # 220 MB for results on each
    learn(env, "y", 90 * MB)
    env.submit({"busy": []}, annotations=on("w1", "busy"))
    env.submit({"there": []}, annotations=on("w1", "there"))
    env.finish("there", nbytes=150 * MB)
    env.submit({"here": [], "y-1": ["here", "there"]}, annotations=on("w0", "here"))
    env.finish("here", nbytes=n_last_use * MB)
    assert env.states("y-1") == ["queued"]


def test_tasks_that_turn_out_large_are_recalled() -> None:
    env = cluster(1, limit=1000)
    keys = [f"x-{i}" for i in range(12)]
    env.submit({key: [] for key in keys}, annotations=on("w0", *keys))
    assert len(env.processing("w0")) == 12
    n = len(env.processing("w0"))
    env.finish("x-0", nbytes=200 * MB)
    last = env.processing("w0")[-1]
    beat(env, "w0", 260, executing={last: 0.1})
    env.tick()
    recalled = [ts.key for ts in env.state.stealing.in_flight]
    assert recalled and len(recalled) < n and last not in recalled
    env.give_back(*recalled)
    assert set(env.states(*recalled)) == {"queued"}


def test_a_thief_has_the_memory() -> None:
    env = cluster(1, limit=10_000, worker_saturation=inf)
    learn(env, "x", 90 * MB)
    env.submit({f"x-{i}": [] for i in range(1, 9)})
    join(env, "w1", limit=300)  # 150 MB for results
    env.state.admission.is_short = True
    env.turn(BalanceWork())
    asked = [ts.key for ts in env.state.stealing.in_flight]
    assert len(asked) > 1
    env.give_back(*asked)
    assert len(env.processing("w1")) == 1


def test_it_ends_when_memory_is_free_again() -> None:
    env = cluster(1)
    learn(env, "x", 90 * MB)
    env.submit({"x-1": [], "x-2": [], "x-3": []})
    for key in ("x-1", "x-2", "x-3"):
        env.finish(key, nbytes=90 * MB)
    env.tick()
    assert env.state.admission.is_short
    env.release("x-1", "x-2", "x-3")
    env.tick()
    assert not env.state.admission.is_short


@pytest.mark.parametrize("value", [False, 0.0])
def test_it_can_be_switched_off(value: Any) -> None:
    env = cluster(1, memory_admission=value)
    learn(env, "x", 300 * MB)
    env.submit({"x-1": []})
    env.submit({"x-2": []})
    assert env.states("x-1", "x-2") == ["processing", "processing"]
    assert not env.state.admission.is_short


def test_explanation() -> None:
    env = cluster(1)
    learn(env, "x", 90 * MB)
    env.submit({"x-1": []})
    env.submit({"x-2": []})
    env.submit({"x-3": []})
    assert env.states("x-3") == ["queued"]
    assert explain(env.state, "x-3", env.now)["summary"] == (
        "x-3 is queued (for 0 ms): it waits for memory: it is expected to take 85.83 MiB, and w0, "
        "which lacks least, has 38.15 MiB free of the 267.03 MiB that it may use "
        "(paceline.scheduler.memory-admission: 0.7 of its limit of 381.47 MiB)."
    )


def test_explanation_of_inputs_that_have_to_be_fetched() -> None:
    env = cluster()  # 220 MB for results on each
    learn(env, "y", 8 * MB)
    at = on("w0", "in-0") | on("w1", "in-1")
    env.submit({"in-0": [], "in-1": [], "y-1": ["in-0", "in-1"]}, annotations=at)
    env.finish("in-0", nbytes=200 * MB)
    busy = on("w0", "busy-0") | on("w1", "busy-1")
    env.submit({"busy-0": [], "busy-1": []}, annotations=busy)
    env.finish("in-1", nbytes=170 * MB)
    text = (
        "expected to take 7.63 MiB and has to load 162.12 MiB, and w0, which lacks least, has "
        "19.07 MiB"
    )
    assert text in explain(env.state, "y-1", env.now)["summary"]


def test_explanation_of_a_task_of_unknown_size() -> None:
    env = cluster(1)
    env.submit({"data": []})
    env.finish("data", nbytes=170 * MB)
    env.submit({"new-1": [], "new-2": []})
    text = "it is of unknown size, and workers get one such task per thread ("
    assert text in explain(env.state, "new-2", env.now)["summary"]


def test_report() -> None:
    env = cluster(1)
    join(env, "w1", limit=0)
    assert memory_report(env.state)["n_workers"] == 1
    env.lose("w1", expected=True)
    learn(env, "x", 90 * MB)
    env.submit({"x-1": [], "y-1": ["x-1"]})
    env.submit({"x-2": []})
    env.submit({"x-3": []})
    env.finish("x-1", nbytes=90 * MB)
    report = memory_report(env.state)
    assert (report["is_short"], report["waiting"], report["recalled"]) == (True, 0, 0)
    assert (report["n_prefixes"], report["n_workers"]) == (2, 1)
    first, second = report["prefixes"]
    assert (first["name"], first["task_nbytes"], first["queued"]) == ("x", 90 * MB, 1)
    assert (second["name"], second["task_nbytes"]) == ("y", None)
    (worker,) = report["workers"]
    assert (worker["limit_nbytes"], worker["allowed_nbytes"]) == (400 * MB, 280 * MB)
    assert worker["results_nbytes"] == worker["tasks_nbytes"] == 90 * MB
    assert worker["free_nbytes"] == 280 * MB - worker["expected_nbytes"] == 40 * MB


def test_reports_do_not_refresh_loads() -> None:
    """The order of refreshes decides between workers, and a replay has no reports."""
    env = cluster(1, nthreads=8)
    learn(env, "x", 90 * MB)
    for i in range(1, 6):
        env.submit({f"x-{i}": []})
    assert env.states("x-5") == ["queued"]
    ws = env.worker("w0")
    env.state.loads.touch(ws)
    assert memory_report(env.state)["waiting"] > 0
    assert env.state.loads.are_slots_dirty(ws)
