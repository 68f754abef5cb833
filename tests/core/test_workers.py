"""Workers: registration, heartbeats, status, loss, and which tasks are blamed for a death."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.core.lifecycle.removal import UNREPORTED_MAX
from paceline.scheduler.core.stimuli import (
    AnnotationSet,
    CloseWorker,
    SetWorkerStatus,
    WorkerBackpressured,
    WorkerRemoved,
)
from paceline.testing import Env

MakeEnv = Callable[..., Env]


def gone(address: str, *others: str, tasks: Iterable[str] = ()) -> list[str]:
    """Return the messages that are sent when a worker is lost; those about ``tasks`` come first."""
    return [
        *tasks,
        f"{address}: close (scheduler-remove-worker)",
        f"driver: drop-worker-connection {address}",
        *(f"{other}: remove-worker {address}" for other in others),
    ]


# ------------------------------------------------------------------ registration


def test_facts_of_a_worker(env: Env) -> None:
    env.join("w0", nthreads=4, memory_limit=100, resources={"gpu": 2}, host="h", pid=7)
    ws = env.worker("w0")
    assert (ws.nthreads, ws.memory_limit, ws.resources, ws.host, ws.pid) == (
        4,
        100,
        {"gpu": 2},
        "h",
        7,
    )
    state = env.state
    assert state.aliases == {"w0": "w0"}
    assert (state.total_nthreads, state.total_memory) == (4, 100)
    assert state.resources == {"gpu": {"w0": 2}}
    assert state.host_info["h"]["nthreads"] == 4
    assert ws in state.running and ws in state.loads.idle


def test_new_worker_gets_no_worker_tasks(env: Env) -> None:
    env.submit({"x": [], "y": []}, annotations={"y": AnnotationSet(resources={"gpu": 1})})
    # x is queued, as its group is larger than an empty cluster
    assert env.states("x", "y") == ["queued", "no-worker"]
    env.expect()
    env.join("w0")
    env.expect("w0: compute-task x")
    env.join("w1", resources={"gpu": 1})
    env.expect("w1: compute-task y using gpu=1")


def test_new_worker_gets_queued_tasks(make_env: MakeEnv) -> None:
    env = make_env(worker_saturation=1.0)
    env.join("w0")
    env.submit({("x", i): [] for i in range(4)})
    env.expect("w0: compute-task ('x',0)")
    env.join("w1", nthreads=2)
    env.expect("w1: compute-task ('x',1)", "w1: compute-task ('x',2)")


def test_worker_that_registers_paused_gets_no_tasks(env: Env) -> None:
    env.submit({"x": []})
    env.join("w0", status="paused")
    env.expect()
    env.status("w0", "running")
    env.expect("w0: compute-task x")


# ------------------------------------------------------------------ heartbeats and status


def test_heartbeat_updates_load_and_bandwidth(duo: Env) -> None:
    duo.submit({"x": []})
    duo.now += 3
    metrics = {
        "bandwidth": {"total": 2e8, "workers": {"w1": (1e6, 2)}, "types": {"int": (3e6, 1)}},
        "digests_total_since_heartbeat": {"ticks": 2.0},
    }
    duo.heartbeat("w0", executing={"x": 2.5, "nobody-knows": 1}, metrics=metrics, now=duo.now - 0.5)
    ws, state = duo.worker("w0"), duo.state
    assert {ts.key: seconds for ts, seconds in ws.executing.items()} == {"x": 2.5}
    assert (ws.last_seen, ws.time_delay) == (duo.now, 0.5)
    assert state.bandwidth == pytest.approx(1.5e8)
    assert state.bandwidth_workers == {("w0", "w1"): 5e5}
    assert state.cumulative_worker_metrics == {"ticks": 2.0}
    assert duo.task("x").prefix.max_exec_time == 2.5
    assert state.compute_occupancy == pytest.approx(5.0)  # twice what it has run already
    duo.heartbeat("nobody")
    duo.take()


def test_memory_that_no_data_accounts_for(env: Env) -> None:
    env.join("w0", metrics={"memory": 500})
    sizes = [env.worker("w0").memory_unmanaged_old]
    for seconds, memory in ((10, 300), (10, 900), (40, 900)):
        env.now += seconds
        env.heartbeat("w0", metrics={"memory": memory})
        sizes.append(env.worker("w0").memory_unmanaged_old)
    assert sizes == [500, 300, 300, 900]


def test_resources_change(duo: Env) -> None:
    duo.submit({"x": []}, annotations={"x": AnnotationSet(resources={"gpu": 1})})
    duo.feed(m.SetResources(worker="w1", resources={"gpu": 1}))
    duo.expect("w1: compute-task x using gpu=1")
    assert duo.worker("w1").used_resources == {"gpu": 1}
    duo.feed(m.SetResources(worker="nobody", resources={"gpu": 1}))
    assert duo.state.resources == {"gpu": {"w1": 1}}


@pytest.mark.parametrize("status", ["paused", "closing_gracefully", "closing"])
def test_paused_worker_gets_no_new_tasks(duo: Env, status: str) -> None:
    duo.submit({"a": []})
    duo.take()
    duo.status("w0", status)
    duo.submit({"b": [], "c": ["a"]})
    duo.expect("w1: compute-task b")
    duo.finish("a")
    duo.expect("w1: compute-task c with a@w0", "alice: key-in-memory a")
    duo.status("w1", status)
    duo.submit({"d": []})
    assert duo.states("d") == ["no-worker"]
    duo.expect()


def test_resumed_worker_gets_waiting_tasks(duo: Env) -> None:
    duo.status("w0", "paused")
    duo.status("w1", "paused")
    duo.submit({"x": []})
    duo.expect()
    duo.status("w1", "running")
    duo.expect("w1: compute-task x")
    duo.status("w1", "running")
    duo.status("nobody", "running")
    duo.expect()


def test_backpressured_worker_gets_no_new_tasks(make_env: MakeEnv) -> None:
    env = make_env(worker_saturation=1.0)
    env.join("w0", "w1")
    env.feed(WorkerBackpressured("w0", True))
    env.submit({("x", i): [] for i in range(4)} | {("x", i): [] for i in range(4, 6)})
    env.expect("w1: compute-task ('x',0)")
    env.feed(WorkerBackpressured("w0", False))
    env.expect("w0: compute-task ('x',1)")
    env.feed(WorkerBackpressured("nobody", True))
    env.expect()


def test_the_scheduler_changes_a_status(duo: Env) -> None:
    duo.feed(SetWorkerStatus("w0", "closing_gracefully"))
    duo.expect("w0: worker-status-change closing_gracefully")
    assert duo.worker("w0") not in duo.state.running
    duo.feed(SetWorkerStatus("w0", "running"))
    assert duo.worker("w0") in duo.state.running
    duo.feed(SetWorkerStatus("nobody", "running"))
    duo.expect("w0: worker-status-change running")


def test_a_worker_is_asked_to_close(duo: Env) -> None:
    duo.feed(CloseWorker("w0"))
    duo.feed(CloseWorker("nobody"))
    duo.expect("w0: close (scheduler-close-worker)")
    assert "w0" in duo.state.workers


# ------------------------------------------------------------------ removal


def test_expected_removal_reassigns_tasks_without_blame(duo: Env) -> None:
    duo.submit({"x": [], "y": []})
    duo.take()
    duo.lose("w0", expected=True)
    duo.expect(*gone("w0", "w1", tasks=["w1: compute-task x"]))
    state = duo.state
    assert (state.total_nthreads, list(state.workers), list(state.aliases)) == (1, ["w1"], ["w1"])
    assert duo.task("x").suspicious == 0


def test_lost_results_are_recomputed(duo: Env) -> None:
    duo.submit({"a": [], "b": ["a"], "c": ["b"]}, want=["a", "c"])
    duo.finish("a", "b")
    duo.take()
    duo.lose("w0")
    duo.expect(*gone("w0", "w1", tasks=["alice: lost-data a", "w1: compute-task a"]))
    assert duo.states("a", "b", "c") == ["processing", "waiting", "waiting"]
    duo.work()
    assert duo.states("a", "b", "c") == ["memory", "released", "memory"]
    text = next(t for level, t in duo.lines if level == 30)
    assert "already computed task(s), which will be recomputed elsewhere: {'a', 'b'}" in text


def test_running_dependents_of_lost_data_restart(duo: Env) -> None:
    duo.submit({"a": [], "b": ["a"]}, annotations={"b": AnnotationSet(workers=["w1"])})
    duo.finish("a")
    assert duo.where("b") == "w1"
    duo.take()
    duo.lose("w0")
    duo.expect(*gone("w0", "w1", tasks=["w1: free-keys b", "w1: compute-task a"]))
    duo.finish("a")
    duo.expect("w1: compute-task b with a@w1")


def test_data_with_another_copy_is_not_lost(duo: Env) -> None:
    duo.submit({"a": []})
    duo.finish("a")
    duo.fetched("w1", "a")
    duo.take()
    duo.lose("w0")
    duo.expect(*gone("w0", "w1"))
    assert duo.states("a") == ["memory"]


def test_the_last_worker_is_lost(duo: Env) -> None:
    duo.submit({"a": []})
    duo.lose("w0")
    duo.lose("w1")
    assert duo.states("a") == ["queued"]
    assert (20, "Lost all workers") in duo.lines
    assert duo.state.total_occupancy == 0
    duo.take()
    duo.join("w2")
    duo.expect("w2: compute-task a")


def test_a_worker_is_removed_by_request(duo: Env) -> None:
    duo.feed(WorkerRemoved("w0", expected=True, close=False))
    duo.expect("driver: drop-worker-connection w0", "w1: remove-worker w0")
    duo.feed(WorkerRemoved("w0"))
    duo.expect()
    assert set(duo.state.workers) == {"w1"}


# ------------------------------------------------------------------ blame


def die(env: Env, key: Any, times: int, executing: bool = True) -> None:
    """Kill the worker that has the task, and add another."""
    for _ in range(times):
        address = env.where(key)
        if executing:
            env.heartbeat(address, executing={key: 1.0})
        env.lose(address)
        env.join(f"next-{env.turns}")


def test_a_task_that_kills_its_workers_fails(make_env: MakeEnv) -> None:
    env = make_env(allowed_failures=2)
    env.join("w0")
    env.submit({"killer": [], "after": ["killer"]})
    die(env, "killer", times=2)
    assert env.states("killer") == ["processing"]
    last = env.where("killer")
    env.take()
    die(env, "killer", times=1)
    assert env.states("killer", "after") == ["erred", "erred"]
    sent = env.take()
    assert f"alice: task-erred after: KilledWorker(killer, {last})" in sent
    assert env.task("killer").prefix.suspicious == 3


def test_a_task_that_kills_before_any_heartbeat_fails(make_env: MakeEnv) -> None:
    env = make_env(allowed_failures=2)
    env.join("w0")
    env.submit({"killer": []})
    die(env, "killer", times=3, executing=False)
    assert env.states("killer") == ["erred"]


def test_only_tasks_that_may_have_started_are_blamed(make_env: MakeEnv) -> None:
    """Stock blames all tasks that were assigned to the worker."""
    env = make_env(worker_saturation=10.0)
    env.join("w0", nthreads=2)
    env.submit({("x", i): [] for i in range(10)})
    assert len(env.processing("w0")) == 10
    env.heartbeat("w0", executing={("x", 7): 1.0})
    env.lose("w0")
    assert {i: env.task(("x", i)).suspicious for i in range(10)} == {
        i: int(i in (0, 1, 7)) for i in range(10)
    }


@pytest.mark.parametrize(("seconds", "blamed"), [(0.001, 9), (1.0, 2)])
def test_quick_tasks_may_have_finished_unreported(
    make_env: MakeEnv, seconds: float, blamed: int
) -> None:
    """A task that kills its worker at once is blamed although others are before it."""
    env = make_env(worker_saturation=10.0)
    env.join("w0", nthreads=2)
    env.submit({("x", i): [] for i in range(2)})
    env.finish(("x", 0), ("x", 1), seconds=seconds)
    env.submit({("x", i): [] for i in range(2, 11)})
    env.lose("w0")
    suspicious = [env.task(("x", i)).suspicious for i in range(2, 11)]
    assert suspicious == [int(i < blamed) for i in range(9)]


def test_number_of_quick_tasks_that_are_blamed_is_limited(make_env: MakeEnv) -> None:
    env = make_env(worker_saturation=100.0)
    env.join("w0")
    env.submit({("x", 0): []})
    env.finish(("x", 0), seconds=0.001)
    env.submit({("x", i): [] for i in range(1, 51)})
    env.lose("w0")
    assert sum(env.task(("x", i)).suspicious for i in range(1, 51)) == 1 + UNREPORTED_MAX


def test_task_that_was_sent_first_is_blamed(make_env: MakeEnv) -> None:
    """A free thread started it before tasks of higher priority arrived."""
    env = make_env(worker_saturation=10.0)
    env.join("w0")
    env.submit({"killer": []}, annotations={"killer": AnnotationSet(priority=-1)})
    env.submit({f"first-{i}": [] for i in range(5)})
    env.lose("w0")
    assert env.task("killer").suspicious == env.task("first-0").suspicious == 1
    assert not any(env.task(f"first-{i}").suspicious for i in range(1, 5))


def test_closed_worker_counts_against_no_task(make_env: MakeEnv) -> None:
    env = make_env(allowed_failures=0)
    env.join("w0")
    env.submit({"x": []})
    for i in range(5):
        env.lose(env.where("x"), expected=True)
        env.join(f"v{i}")
    assert env.task("x").suspicious == 0
    assert env.states("x") == ["processing"]


@pytest.mark.parametrize("status", ["closed", "failed"])
def test_worker_that_reports_that_it_is_closed_is_removed(make_env: MakeEnv, status: Any) -> None:
    """A stock worker that is closed while it registers reports it on a stream that stays open."""
    env = make_env(allowed_failures=0)
    env.join("w0")
    env.submit({"x": []})
    env.join("w1")
    env.status("w0", status)
    assert list(env.state.workers) == ["w1"]
    sent = env.take()
    assert "driver: drop-worker-connection w0" in sent
    assert not any(line.startswith("w0: close") for line in sent)
    assert env.where("x") == "w1"
    assert env.task("x").suspicious == 0


def test_task_present_at_too_many_deaths_fails_without_blame(make_env: MakeEnv) -> None:
    env = make_env(allowed_failures=0, worker_saturation=10.0)
    env.join("w0")
    annotations = {"last": AnnotationSet(priority=-1)}
    env.submit({"last": []}, annotations=annotations)
    for i in range(3):
        env.submit({f"first-{i}": []})
        env.heartbeat("w0" if i == 0 else f"v{i - 1}", executing={f"first-{i}": 1.0})
        ts = env.task("last")
        assert ts.suspicious == 0 and ts.state == "processing", i
        env.submit({f"other-{i}": []})
        env.lose(env.where("last"))
        env.join(f"v{i}")
    assert env.states("last") == ["erred"]


def test_blame_propagates_to_dependents_and_frees_inputs(make_env: MakeEnv) -> None:
    env = make_env(allowed_failures=0)
    env.join("w0", "w1")
    env.submit({"a": [], "killer": ["a"]}, annotations={"killer": AnnotationSet(workers=["w1"])})
    env.finish("a")
    env.take()
    env.lose("w1")
    erred = "alice: task-erred killer: KilledWorker(killer, w1)"
    env.expect(*gone("w1", "w0", tasks=[erred, "w0: free-keys a"]))
    assert env.states("a", "killer") == ["released", "erred"]
