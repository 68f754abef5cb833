"""Admission by memory: workers get only tasks whose results they are expected to have memory for."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from paceline.scheduler.core.inspection.explain import explain
from paceline.scheduler.core.inspection.memory_report import memory_report
from paceline.scheduler.core.policy import admission
from paceline.scheduler.core.state.admission import TaskMemory
from paceline.scheduler.core.state.containers import PriorityQueue
from paceline.scheduler.core.stimuli import AnnotationSet, BalanceWork
from paceline.testing import Env, Graph

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


def test_first_members_of_a_queue() -> None:
    class Item:
        def __init__(self, priority: int) -> None:
            self.priority = priority

    queue: PriorityQueue[Item] = PriorityQueue()
    items = [Item((7 * i) % 50) for i in range(50)]
    for item in items:
        queue.add(item)
    for item in items[::3]:
        queue.discard(item)
    expected = [item.priority for item in queue]
    for n in (0, 1, 5, 100):
        assert [item.priority for item in queue.first(n)] == expected[:n]


def open_files(env: Env, loads: list[str]) -> None:
    """Submit tasks that take six inputs of 8 bytes, too many for root-ish tasks; run the inputs."""
    opened = [f"open-{i}" for i in range(6)]
    env.submit({**{key: [] for key in opened}, **dict.fromkeys(loads, opened)})
    while todo := [key for key in opened if env.states(key) != ["memory"]]:
        env.finish(next(key for key in todo if env.states(key) == ["processing"]), nbytes=8)


def test_unknown_tasks_with_common_inputs_wait_for_slots() -> None:
    env = cluster()
    loads = [f"load-{i}" for i in range(9)]
    open_files(env, loads)
    assert sorted(env.states(*loads)) == ["processing"] * 4 + ["queued"] * 5
    assert [len(ws.processing) for ws in env.state.workers.values()] == [2, 2]


def test_they_start_as_soon_as_one_has_finished() -> None:
    """Also if other tasks, which need no slots, occupy the workers."""
    env = cluster()
    learn(env, "x", 1000)
    loads = [f"load-{i}" for i in range(9)]
    open_files(env, loads)
    env.submit({f"x-{i}": ["open-0"] for i in range(1, 9)})
    assert env.states(loads[-1]) == ["queued"]
    env.finish(next(key for key in loads if env.states(key) == ["processing"]), nbytes=8)
    assert sorted(env.states(*loads)) == ["memory"] + ["processing"] * 8


def test_tasks_that_wait_because_nothing_is_known_of_them_do_not_hold_others() -> None:
    env = cluster()
    learn(env, "x", 1000)
    loads = [f"load-{i}" for i in range(9)]
    open_files(env, loads)
    env.submit({"x-1": [f"open-{i}" for i in range(6)]})
    assert env.states("x-1", loads[-1]) == ["processing", "queued"]


def test_known_tasks_with_common_inputs_start_at_once() -> None:
    env = cluster()
    learn(env, "load", 8)
    loads = [f"load-{i}" for i in range(1, 7)]
    open_files(env, loads)
    assert env.states(*loads) == ["processing"] * 6


def test_nothing_is_checked_while_there_is_memory() -> None:
    env = cluster()
    learn(env, "x", 10 * MB)
    env.submit({f"x-{i}": [] for i in range(1, 5)})
    assert not env.state.admission.is_short
    assert env.states("x-1", "x-4") == ["processing", "processing"]


def test_makers_wait_and_start_when_memory_is_freed() -> None:
    env = cluster()  # 280 MB per worker, 60 MB of them for the process: two results of 90 MB
    learn(env, "x", 90 * MB)
    env.submit({f"x-{i}": [] for i in range(1, 9)})
    running = [f"x-{i}" for i in range(1, 9) if env.states(f"x-{i}") == ["processing"]]
    assert len(running) == 4 and env.state.admission.is_short
    for key in running:
        env.finish(key, nbytes=90 * MB)
    # no task fits, and none frees memory: each free thread gets one
    left = [f"x-{i}" for i in range(1, 9) if f"x-{i}" not in running]
    assert env.states(*left) == ["processing", "processing", "queued", "queued"]
    assert {env.where(key) for key in left[:2]} == {"w0", "w1"}
    found = explain(env.state, left[0], env.now)
    text = "and may spill: nothing fits, and no task there is expected to free memory, or"
    use = "to use 314.71 MiB, more than the 267.03 MiB that it may use ("
    assert any(use in each and text in each for each in found["words"])
    env.release(*running)
    assert env.states(*left) == ["processing"] * 4


def test_threads_are_free_if_what_they_would_make_cannot_be_spilled() -> None:
    env = cluster(nthreads=4)  # 220 MB for results on each
    learn(env, "x", 90 * MB)
    env.submit({f"x-{i}": [] for i in range(1, 13)})
    held = [f"x-{i}" for i in range(1, 13) if env.states(f"x-{i}") == ["processing"]]
    for key in held:
        env.finish(key, nbytes=90 * MB)
    assert [len(env.processing(ws)) for ws in ("w0", "w1")] == [2, 2]


@pytest.mark.parametrize(
    ("waits", "seconds", "state"),
    [
        ("long", 1.0, "queued"),
        ("long", 3.0, "processing"),  # it frees nothing
        ("summed", 3.0, "queued"),
        ("summed", 70.0, "processing"),
        ("parent", 3.0, "processing"),  # it waits for its subtasks
        ("heavy", 3.0, "queued"),
    ],
)
def test_tasks_that_free_nothing_are_not_waited_for(waits: str, seconds: float, state: str) -> None:
    env = cluster(1, nthreads=2)
    learn(env, "x", 90 * MB)
    held = ["x-1", "x-2"]
    env.submit({key: [] for key in held})
    for key in held:
        env.finish(key, nbytes=90 * MB)
    env.submit({waits: [], "sum": [waits]}, want=["sum"] if waits == "summed" else [waits])
    if waits == "parent":
        env.submit({"x-5": []}, commit={"submitting_task": "parent"})
    else:
        env.submit({"x-5": []})
    if waits == "heavy":
        env.task("heavy").prefix.memory.add_peak(100.0 * MB)
    assert env.states(waits, "x-5") == ["processing", "queued"]
    env.heartbeat(env.where(waits), executing={waits: seconds})
    env.tick()
    assert env.states("x-5") == [state]


def test_worker_without_tasks_is_sent_one_that_does_not_fit_if_it_can_spill() -> None:
    env = cluster(nthreads=2)  # 220 MB for results on each
    learn(env, "x", 90 * MB)
    held = [f"x-{i}" for i in range(1, 5)]
    env.submit({key: [] for key in held})
    for key in held:
        env.finish(key, nbytes=90 * MB)
    env.submit(
        {"frees": [], "sum": ["frees"]}, annotations={"frees": AnnotationSet(workers=["w0"])}
    )
    env.submit({"x-5": [], "x-6": []})
    assert (env.processing("w0"), env.processing("w1")) == (["frees"], ["x-5"])


def test_tasks_that_cannot_begin_are_not_waited_for() -> None:
    env = cluster(1)
    join(env, "w1", nthreads=2)
    learn(env, "x", 90 * MB)
    learn(env, "w", 8)
    held = [f"x-{i}" for i in range(1, 5)]
    env.submit({key: [] for key in held})
    for key in held:
        env.finish(key, nbytes=90 * MB)
    on = dict.fromkeys(("w-1", "w-2"), AnnotationSet(workers=["w0"]))
    on["w-3"] = AnnotationSet(workers=["w1"])
    graph: Graph = {"w-1": [], "w-2": [], "w-3": [], "sum": ["w-2"]}
    env.submit(graph, ["w-1", "w-3", "sum"], annotations=on)
    env.submit({"x-5": []})
    assert (env.processing("w0"), env.processing("w1")) == (["w-1", "w-2"], ["w-3"])
    env.heartbeat("w1", executing={"w-3": 3.0})
    assert env.states("x-5") == ["queued"]
    env.heartbeat("w0", executing={"w-1": 3.0})
    env.tick()
    assert env.where("x-5") == "w1"


@pytest.mark.parametrize(("nbytes", "chosen"), [((200, 150), "w1"), ((150, 200), "w0")])
def test_a_task_that_fits_nowhere_goes_where_most_memory_is_left(
    nbytes: tuple[int, int], chosen: str
) -> None:
    env = cluster()  # 220 MB for results on each
    learn(env, "x", 90 * MB)
    data = {f"data-{i}": AnnotationSet(workers=[f"w{i}"]) for i in range(2)}
    env.submit({key: [] for key in data}, annotations=data)
    for key, n in zip(data, nbytes, strict=True):
        env.finish(key, nbytes=n * MB)
    env.submit({"x-1": []})
    assert env.where("x-1") == chosen


def test_tasks_that_free_go_before_makers() -> None:
    env = cluster(1, limit=500)
    learn(env, "x", 100 * MB)
    learn(env, "sum", 8)
    env.submit({"x-1": [], "x-2": [], "x-3": [], "sum-1": ["x-1", "x-2"]}, ["x-3", "sum-1"])
    for key in ("x-1", "x-2"):
        env.finish(key, nbytes=100 * MB)
    assert env.states("sum-1") == ["processing"]
    env.finish("sum-1", nbytes=8)
    assert env.states("x-1", "x-2", "x-3") == ["released", "released", "processing"]


def test_a_task_goes_to_another_worker_where_it_fits() -> None:
    env = cluster()
    learn(env, "x", 90 * MB)
    on = AnnotationSet(workers=["w0"])
    env.submit({"data-1": [], "data-2": []}, annotations=dict.fromkeys(("data-1", "data-2"), on))
    env.finish("data-1", nbytes=90 * MB)
    env.finish("data-2", nbytes=90 * MB)
    assert env.state.admission.is_short
    env.submit({"y-1": ["data-1"], "x-1": [], "x-2": []})
    env.state.admission.is_short = True
    assert {env.where(key) for key in ("x-1", "x-2")} == {"w1"}


@pytest.mark.parametrize("is_restricted", [False, True])
def test_a_task_for_a_worker_with_a_free_slot_is_found_among_many(is_restricted: bool) -> None:
    """Most of the queued tasks wait for workers that are busy."""
    env = cluster(39, worker_saturation=1.0)
    join(env, "w39", nthreads=2)
    learn(env, "out", 100 * MB)
    at = [AnnotationSet(workers=[f"w{i}"]) for i in range(40)]
    for i in range(40):
        for key in (f"in-{i}", f"more-{i}"):
            env.submit({key: []}, annotations={key: at[i]})
            env.finish(key, nbytes=75 * MB)
    for i in range(40):
        env.submit({f"busy-{i}": []}, annotations={f"busy-{i}": at[i]})
    for i in range(40):
        key = f"out-{i}"
        env.submit({key: [f"in-{i}"]}, annotations={key: at[i]} if is_restricted else {})
    assert env.states("out-0", "out-39") == ["queued", "queued"]
    env.release("more-39")
    env.tick()
    assert env.where("out-39") == "w39"
    assert env.states("out-0", "out-38") == ["queued", "queued"]


def test_restricted_task_that_does_not_fit_is_passed_over() -> None:
    env = cluster(1, nthreads=2)
    learn(env, "big", 300 * MB)
    learn(env, "tiny", 100)
    on = AnnotationSet(workers=["w0"])
    env.submit({"data": []}, annotations={"data": on})
    env.finish("data", nbytes=100 * MB)
    env.submit({"busy": ["data"], "after": ["busy"]})
    for key in ("big-1", "tiny-1", "tiny-2"):
        env.submit({key: []}, annotations={key: on})
    env.tick()
    assert env.states("big-1", "tiny-1") == ["queued", "processing"]
    env.finish("tiny-1")
    assert env.states("big-1", "tiny-2") == ["queued", "processing"]


def test_the_only_large_worker_of_many_is_found() -> None:
    env = cluster(0)
    env.checks = False  # they take long
    for i in range(301):
        join(env, f"w{i}", limit=40_000 if i == 250 else 400)
    on = AnnotationSet(workers=["w250"])
    env.submit({"huge-0": []}, annotations={"huge-0": on})
    env.finish("huge-0", nbytes=10_000 * MB)
    env.release("huge-0")
    env.submit({"input": [], "huge-1": ["input"]})
    env.finish("input")
    for _ in range(3):
        env.tick(1.0)
    assert env.where("huge-1") == "w250"


def restricted_to_w0() -> tuple[Env, list[str]]:
    """Return two workers and the keys of four tasks for w0, which has the memory for two."""
    env = cluster()
    learn(env, "x", 90 * MB)
    on = AnnotationSet(workers=["w0"])
    keys = [f"x-{i}" for i in range(1, 5)]
    env.submit({key: [] for key in keys}, annotations=dict.fromkeys(keys, on))
    return env, keys


def test_restrictions_are_kept() -> None:
    env, keys = restricted_to_w0()
    assert sorted(env.states(*keys)) == ["processing", "processing", "queued", "queued"]
    assert not env.processing("w1")


def test_restricted_tasks_whose_worker_leaves_are_not_queued() -> None:
    env, keys = restricted_to_w0()
    env.lose("w0", expected=True)
    assert env.state.admission.is_short
    assert env.states(*keys) == ["no-worker"] * 4


def test_task_that_frees_more_than_it_makes_fits_where_its_inputs_are() -> None:
    env = cluster()  # 220 MB for results on each
    learn(env, "y", 90 * MB)
    env.submit({"busy": []}, annotations={"busy": AnnotationSet(workers=["w1"])})
    here = {"here": AnnotationSet(workers=["w0"])}
    env.submit({"here": [], "y-1": ["here"]}, annotations=here)
    env.finish("here", nbytes=215 * MB)
    assert env.where("y-1") == "w0"


def test_at_most_one_task_of_unknown_size_per_thread_when_memory_is_short() -> None:
    env = cluster(nthreads=2)
    env.submit({"data": []}, annotations={"data": AnnotationSet(workers=["w0"])})
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
    on = [AnnotationSet(workers=[f"w{i}"]) for i in range(2)]
    env.submit({"here": [], "x-0": []}, annotations={"here": on[1], "x-0": on[0]})
    env.finish("here", nbytes=8)
    env.finish("x-0", nbytes=240 * MB)
    env.submit({f"x-{i}": ["here"] if i % 2 else [] for i in range(1, 9)})
    while running := env.processing("w0"):  # soon nothing fits
        assert not env.processing("w1")
        env.finish(running[0], nbytes=240 * MB)
        env.tick()
    assert env.states("x-1", "x-8") == ["memory", "memory"]
    env.submit({"x-9": []}, annotations={"x-9": on[1]})
    assert env.where("x-9") == "w1"


def test_queued_tasks_that_turn_out_large_do_not_go_to_small_workers() -> None:
    env = cluster(1, limit=1500)
    join(env, "w1", limit=300)
    on = AnnotationSet(workers=["w1"])
    env.submit({"y-1": [], "y-2": []}, annotations=dict.fromkeys(("y-1", "y-2"), on))
    env.submit({f"x-{i}": [] for i in range(12)})
    env.finish(env.processing("w0")[0], nbytes=240 * MB)
    env.finish("y-1", "y-2", nbytes=8)
    assert not env.processing("w1")
    assert len(env.processing("w0")) == 2


def test_queued_large_tasks_do_not_go_to_a_small_worker_that_joins() -> None:
    env = cluster(1, limit=2000)
    env.submit({f"x-{i}": [] for i in range(12)})
    env.finish(env.processing("w0")[0], nbytes=240 * MB)
    assert not env.state.admission.is_short
    join(env, "w1", limit=300)
    assert not env.processing("w1")


def test_spilled_results_do_not_count() -> None:
    env = cluster(1)
    learn(env, "x", 90 * MB)
    env.submit({"data": [], "x-1": []})
    env.finish("data", nbytes=250 * MB)
    env.finish("x-1", nbytes=90 * MB)
    env.submit({"x-2": []})
    env.submit({"x-3": []})
    assert sorted(env.states("x-2", "x-3")) == ["processing", "queued"]
    beat(env, "w0", 150, spilled=300)
    assert env.states("x-2", "x-3") == ["processing", "processing"]


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
    busy = {"busy": AnnotationSet(workers=["w1"])}
    env.submit({"busy": []}, annotations=busy)
    env.submit({"there": []}, annotations={"there": AnnotationSet(workers=["w1"])})
    env.finish("there", nbytes=150 * MB)
    here = {"here": AnnotationSet(workers=["w0"])}
    env.submit({"here": [], "y-1": ["here", "there"]}, annotations=here)
    env.finish("here", nbytes=n_last_use * MB)
    assert env.states("y-1") == ["queued"]


def test_tasks_that_turn_out_large_are_recalled() -> None:
    env = cluster(1, limit=1000)
    keys = [f"x-{i}" for i in range(12)]
    on = AnnotationSet(workers=["w0"])
    env.submit({key: [] for key in keys}, annotations=dict.fromkeys(keys, on))
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
    at = {f"in-{i}": AnnotationSet(workers=[f"w{i}"]) for i in range(2)}
    env.submit({"in-0": [], "in-1": [], "y-1": ["in-0", "in-1"]}, annotations=at)
    env.finish("in-0", nbytes=200 * MB)
    busy = {f"busy-{i}": AnnotationSet(workers=[f"w{i}"]) for i in range(2)}
    env.submit({"busy-0": [], "busy-1": []}, annotations=busy)
    env.finish("in-1", nbytes=170 * MB)
    text = (
        "expected to take 7.63 MiB and has to fetch 162.12 MiB, and w0, which lacks least, has "
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
