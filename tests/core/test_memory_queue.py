"""Tasks that wait for memory: which are queued, and which go next and where."""

from __future__ import annotations

import pytest
from paceline.scheduler.core.inspection.explain import explain
from paceline.scheduler.core.policy import admission
from paceline.scheduler.core.state.containers import PriorityQueue
from paceline.scheduler.core.stimuli import AnnotationSet
from paceline.testing import Env, Graph

from tests.support.annotations import on
from tests.support.memory import MB, beat, cluster, join, learn


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
    # two further results would take the workers to 0.95 of their limit
    assert [len(env.processing(ws)) for ws in ("w0", "w1")] == [1, 1]
    for address in ("w0", "w1"):
        beat(env, address, 60, spilled=180)
    assert [len(env.processing(ws)) for ws in ("w0", "w1")] == [2, 2]


def test_the_first_task_waits_for_a_report_of_what_was_spilled() -> None:
    """Check that it does not wait for a worker that has not reported for some time."""
    env = cluster(1)  # 220 MB for results
    learn(env, "x", 90 * MB)
    env.submit({f"x-{i}": [] for i in range(1, 7)})
    for i in range(1, 4):
        env.finish(f"x-{i}", nbytes=90 * MB)
    assert env.states("x-4") == ["queued"]
    beat(env, "w0", 330, managed=200)  # it has not spilled, and counts otherwise than the scheduler
    assert env.states("x-4") == ["processing"]
    env.finish("x-4", nbytes=90 * MB)
    assert env.states("x-5") == ["queued"]
    env.tick(admission.REPORT_SECONDS)
    assert env.states("x-5") == ["processing"]


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
    env.submit({"frees": [], "sum": ["frees"]}, annotations=on("w0", "frees"))
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
    places = on("w0", "w-1", "w-2") | on("w1", "w-3")
    graph: Graph = {"w-1": [], "w-2": [], "w-3": [], "sum": ["w-2"]}
    env.submit(graph, ["w-1", "w-3", "sum"], annotations=places)
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


def test_a_task_that_frees_is_found_behind_many_others() -> None:
    env = cluster(1, worker_saturation=1.0)
    learn(env, "copy", 90 * MB)
    learn(env, "sum", 50 * MB)
    kept = [f"kept-{i}" for i in range(6)]  # too many inputs for root-ish tasks
    env.submit({"last": []})
    env.finish("last", nbytes=90 * MB)
    env.submit({key: [] for key in kept})
    for _ in kept:
        env.finish(*env.processing("w0"), nbytes=15 * MB)
    env.submit({"busy": []})
    graph: Graph = {f"copy-{i}": kept for i in range(1, 40)} | {"sum-1": ["last"]}
    env.submit(graph, priorities={key: i for i, key in enumerate(graph)})
    env.release("last")
    assert env.states("sum-1") == ["queued"]
    env.finish("busy", nbytes=8)
    assert env.processing("w0") == ["sum-1"]


def test_a_task_goes_to_another_worker_where_it_fits() -> None:
    env = cluster()
    learn(env, "x", 90 * MB)
    env.submit({"data-1": [], "data-2": []}, annotations=on("w0", "data-1", "data-2"))
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
    env.submit({"data": []}, annotations=on("w0", "data"))
    env.finish("data", nbytes=100 * MB)
    env.submit({"busy": ["data"], "after": ["busy"]})
    for key in ("big-1", "tiny-1", "tiny-2"):
        env.submit({key: []}, annotations=on("w0", key))
    env.tick()
    assert env.states("big-1", "tiny-1") == ["queued", "processing"]
    env.finish("tiny-1")
    assert env.states("big-1", "tiny-2") == ["queued", "processing"]


def test_the_only_large_worker_of_many_is_found() -> None:
    env = cluster(0)
    env.checks = False  # they take long
    for i in range(301):
        join(env, f"w{i}", limit=40_000 if i == 250 else 400)
    env.submit({"huge-0": []}, annotations=on("w250", "huge-0"))
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
    keys = [f"x-{i}" for i in range(1, 5)]
    env.submit({key: [] for key in keys}, annotations=on("w0", *keys))
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


def test_queued_tasks_that_turn_out_large_do_not_go_to_small_workers() -> None:
    env = cluster(1, limit=1500)
    join(env, "w1", limit=300)
    env.submit({"y-1": [], "y-2": []}, annotations=on("w1", "y-1", "y-2"))
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
