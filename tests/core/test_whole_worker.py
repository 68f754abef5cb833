"""Tasks whose worker ran out of memory are tried once more alone on a worker before they are blamed."""

from __future__ import annotations

from typing import Any

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.core.inspection.explain import explain
from paceline.scheduler.core.stealing.requests import send_steal_request
from paceline.scheduler.core.stimuli import (
    AnnotationSet,
    BalanceWork,
    ConfigureStealing,
    ReleaseAll,
    RestrictionsSet,
    SetShare,
)
from paceline.scheduler.core.turn import Turn
from paceline.scheduler.extensions.topics import Topics
from paceline.testing import Env

from tests.support.shares import share

LIMIT = 400_000_000


def cluster(*names: str, nthreads: int = 1, **config: Any) -> Env:
    """Return a cluster with workers under nannies, which have a memory limit."""
    env = Env(**config)
    env.core.handlers.update(Topics(0.0).handlers())
    env.client("alice")
    for name in names:
        join(env, name, nthreads)
    env.take()
    return env


def join(env: Env, name: str, nthreads: int = 1) -> None:
    env.join(name, nthreads=nthreads, memory_limit=LIMIT, nanny=f"nanny-{name}")


def die(env: Env, name: str, share: float = 0.9) -> None:
    """Lose the worker `name`, whose last heartbeat reports `share` of its memory limit."""
    executing = dict.fromkeys(env.processing(name)[: env.worker(name).nthreads], 0.5)
    env.heartbeat(name, executing=executing, metrics={"memory": int(share * LIMIT)})
    env.lose(name)


def report(env: Env, name: str) -> None:
    """Let the nanny of the worker `name` report that it restarts it."""
    env.request(memory_report(name))


def memory_report(name: str) -> m.LogEventRpc:
    event = {"worker": name, "pid": 1, "rss": LIMIT}
    return m.LogEventRpc(topic="worker-restart-memory", msg=event)


def on(env: Env, name: str) -> AnnotationSet:
    return AnnotationSet(workers=[name], allow_other_workers=True)


@pytest.mark.parametrize("is_reported", [True, False])
@pytest.mark.parametrize(("n", "seconds", "part"), [(1, 0.0, 1), (3, 0.0, 0.5), (1, 0.4, 0)])
def test_peaks_are_learned_from_losses(
    is_reported: bool, n: int, seconds: float, part: float
) -> None:
    """All but one of the tasks fit; those too short to be measured do not count."""
    env = cluster("w0", nthreads=3)
    env.heartbeat("w0", metrics={"memory": 1})
    if seconds:
        env.submit({"x": []})
        env.finish("x", seconds=seconds)
    env.submit({f"x-{i}": [] for i in range(n)})
    prefix = env.task("x-0").prefix
    die(env, "w0", share=0.1 if is_reported else 0.9)
    if is_reported:
        assert not prefix.memory.peak_nbytes
        report(env, "w0")
    assert prefix.memory.peak_nbytes == pytest.approx(part * 0.7 * LIMIT)


def test_a_task_gets_an_empty_worker() -> None:
    env = cluster("w0", "w1", "w2")
    env.submit({"x": [], "y": []})
    here, other = env.where("x"), env.where("y")
    die(env, here)
    assert env.states("x") == ["no-worker"]
    assert env.task("x").suspicious == 0
    env.tick()
    assert env.where("x") not in (here, other)
    assert env.state.whole_workers.sent_count == 1
    env.submit({f"z{i}": [] for i in range(6)})
    assert env.processing(env.where("x")) == ["x"]
    env.finish("x")
    env.tick()
    assert not env.state.whole_workers.reserved and not env.state.whole_workers.due
    env.submit({f"late{i}": [] for i in range(6)})
    assert all(ws in env.state.running for ws in env.state.workers.values())


def test_a_worker_that_cannot_hold_the_result_is_not_reserved() -> None:
    env = cluster("w0")
    there = AnnotationSet(workers=["w1"])
    env.join("w1", memory_limit=10 * LIMIT, nanny="nanny-w1")
    env.submit({"x-0": []}, annotations={"x-0": there})
    env.finish("x-0", nbytes=LIMIT)
    env.submit({"x-1": []})
    env.heartbeat("w1", executing={"x-1": 0.5}, metrics={"memory": 9 * LIMIT})
    env.lose("w1")
    env.join("w1", memory_limit=10 * LIMIT, nanny="nanny-w1")
    env.submit({"busy": []}, annotations={"busy": there})
    env.tick()
    assert env.worker("w1").reserved_for is env.task("x-1")
    assert env.worker("w0").reserved_for is None


def test_the_second_death_counts() -> None:
    env = cluster("w0", "w1", allowed_failures=0)
    env.submit({"x": []})
    die(env, env.where("x"))
    env.tick()
    assert env.states("x") == ["processing"]
    die(env, env.where("x"))
    assert env.states("x") == ["erred"]
    join(env, "w2")
    env.tick()
    assert not env.state.whole_workers.due and not env.state.whole_workers.reserved


def test_further_tries_are_alone_too() -> None:
    env = cluster("w0", "w1", "w2", allowed_failures=1)
    env.submit({"x": []})
    for suspicious in (0, 1):
        die(env, env.where("x"))
        assert env.states("x") == ["no-worker"]
        assert env.task("x").suspicious == suspicious
        env.tick()
    assert env.worker(env.where("x")).reserved_for is env.task("x")


def test_other_deaths_count_at_once() -> None:
    env = cluster("w0", "w1", nthreads=2)
    env.submit({"x": []})
    die(env, env.where("x"), share=0.5)
    assert env.task("x").suspicious == 1
    assert env.states("x") == ["processing"]
    env = cluster("w0", "w1", whole_worker_retry=False)
    env.submit({"x": []})
    die(env, env.where("x"))
    assert env.task("x").suspicious == 1
    assert env.states("x") == ["processing"]


def test_a_paused_worker_died_of_memory() -> None:
    env = cluster("w0", "w1")
    env.submit({"x": []})
    here = env.where("x")
    env.heartbeat(here, executing={"x": 1.0}, metrics={"memory": LIMIT // 2})
    env.status(here, "paused")
    env.lose(here)
    assert env.task("x").suspicious == 0
    assert env.states("x") == ["no-worker"]


@pytest.mark.parametrize("is_early", [True, False])
def test_a_nanny_reports_the_cause(is_early: bool) -> None:
    env = cluster("w0", "w1")
    env.submit({"x": []})
    here = env.where("x")
    if is_early:
        report(env, here)
        die(env, here, share=0.1)
    else:
        die(env, here, share=0.1)
        assert env.task("x").suspicious == 1
        report(env, here)
        env.give_back("x")
    assert env.states("x") == ["no-worker"]
    assert env.task("x").suspicious == env.task("x").group.prefix.suspicious == 0
    env.tick()
    assert env.states("x") == ["processing"]


def test_a_late_report_does_not_stop_a_run_that_has_begun() -> None:
    env = cluster("w0", "w1")
    env.submit({"x": []})
    here = env.where("x")
    die(env, here, share=0.1)
    report(env, here)
    env.give_back("x", state="executing")
    env.tick()
    assert env.states("x") == ["processing"]
    assert not env.state.whole_workers.reserved
    die(env, env.where("x"))
    assert env.states("x") == ["no-worker"]
    assert env.task("x").suspicious == 0


def test_a_late_report_leaves_finished_tasks_alone() -> None:
    env = cluster("w0", "w1")
    env.submit({"x": []})
    here = env.where("x")
    die(env, here, share=0.1)
    env.finish("x")
    report(env, here)
    assert env.states("x") == ["memory"]
    assert not env.state.whole_workers.due


def test_a_late_report_takes_all_tasks_from_the_queue() -> None:
    env = cluster("w0", "w1", nthreads=2, turn_tasks_max=1, shares_groups={"alice": {"tasks": 2}})
    env.submit({"x": [], "y": []}, annotations=dict.fromkeys("xy", on(env, "w0")))
    env.feed(SetShare("alice", {"tasks": 0}))
    die(env, "w0", share=0.1)
    assert env.states("x", "y") == ["queued"] * 2
    env.turn(memory_report("w0"), request_id=1000)
    assert "queued" not in env.states("x", "y")
    env.run_deferred()
    assert env.states("x", "y") == ["no-worker"] * 2


def test_reports_are_forgotten() -> None:
    env = cluster("w0", "w1")
    env.submit({"x": []})
    here = env.where("x")
    die(env, here, share=0.1)
    report(env, env.where("x"))
    env.tick(11.0)
    assert not env.state.whole_workers
    report(env, here)
    assert env.task("x").suspicious == 1


@pytest.mark.parametrize("event", ["w0", {}, {"worker": ["w0"]}, {"worker": "unknown"}])
def test_other_events_of_the_topic_are_ignored(event: Any) -> None:
    env = cluster("w0", "w1")
    env.submit({"x": []})
    env.request(m.LogEventRpc(topic="worker-restart-memory", msg=event))
    assert not env.state.whole_workers


def test_the_empty_worker_with_most_free_memory_is_chosen() -> None:
    env = cluster("w0", "w1", "w2", "w3")
    env.submit({"x": []}, annotations={"x": on(env, "w0")})
    for name, used in (("w1", 0.3), ("w2", 0.1), ("w3", 0.2)):
        env.heartbeat(name, metrics={"memory": int(used * LIMIT)})
    die(env, "w0")
    env.tick()
    assert env.where("x") == "w2"


def test_a_busy_worker_is_closed_until_it_is_empty() -> None:
    env = cluster("w0", "w1", "w2", nthreads=2)
    env.submit({f"x{i}": [] for i in range(6)})
    dead, busy = env.processing("w0"), env.processing("w1") + env.processing("w2")
    env.submit({f"y{i}": [] for i in range(20)})
    die(env, "w0")
    env.tick()
    whole = env.state.whole_workers
    [(ws, ts)] = whole.reserved.items()
    assert ts.key in dead and ts.state == "no-worker"
    found = explain(env.state, ts.key, env.now)
    assert "for a whole worker, because its worker ran out of memory" in found["summary"]
    assert f"{ws.address} is sent nothing else" in found["summary"]
    for key in [ts.key for ts in env.state.stealing.in_flight]:
        env.give_back(key, state="executing" if key in busy else "ready")
    while env.processing(ws.address):
        env.finish(env.processing(ws.address)[0])
        assert len(env.processing(ws.address)) < 2
    env.tick()
    assert env.processing(ws.address) == [ts.key]
    for _ in range(200):
        env.tick()
        for each in list(env.state.workers.values()):
            if each.processing:
                env.finish(next(iter(each.processing)).key)
    assert all(ts.state == "memory" for ts in env.state.tasks.values())
    assert all(env.task(key).suspicious == 0 for key in dead)


def test_the_only_worker_runs_one_task_at_a_time() -> None:
    env = cluster("w0", nthreads=4)
    env.submit({f"x{i}": [] for i in range(4)})
    die(env, "w0")
    join(env, "w1", nthreads=4)
    env.submit({f"y{i}": [] for i in range(4)})
    for i in range(20):
        env.tick()
        running = env.processing("w1")
        if env.worker("w1").reserved_for is not None and running:
            assert len(running) == 1 or i == 0
        for key in running:
            env.finish(key)
    assert set(env.states(*(f"{c}{i}" for c in "xy" for i in range(4)))) == {"memory"}
    assert env.state.whole_workers.sent_count == 4


def test_restrictions_are_kept() -> None:
    env = cluster("w0", "w1", "w2")
    env.submit({"x": []}, annotations={"x": AnnotationSet(workers=["w0", "w2"])})
    here = env.where("x")
    die(env, here)
    env.tick()
    assert env.where("x") == ({"w0", "w2"} - {here}).pop()


def test_the_task_is_not_stolen() -> None:
    env = cluster("w0", "w1", "w2")
    env.feed(ConfigureStealing(True))
    env.submit({"x": []})
    die(env, env.where("x"))
    env.tick()
    env.feed(BalanceWork())
    assert env.task("x") not in env.state.stealing.in_flight


def test_a_seceded_task_shares_its_worker() -> None:
    env = cluster("w0", "w1")
    env.submit({"x": []})
    die(env, env.where("x"))
    env.tick()
    here = env.where("x")
    env.feed(m.LongRunning(key="x", run_id=env.task("x").run_id), here)
    env.tick()
    assert env.worker(here) in env.state.running


def test_subtasks_of_the_task_run_beside_it_if_there_is_no_other_worker() -> None:
    env = cluster("w0", "w1")
    env.submit({"x": []})
    die(env, env.where("x"))
    env.tick()
    env.client("Client-worker-1")
    env.submit({"part": []}, client="Client-worker-1", commit={"submitting_task": "x"})
    assert env.states("part") == ["no-worker"]
    env.tick()
    assert env.states("part") == ["processing"]


def test_subtasks_of_an_earlier_run_do_not_end_the_reservation() -> None:
    env = cluster("w0", "w1")
    env.submit({"x": []})
    env.submit({"part": []}, commit={"submitting_task": "x"})
    env.finish("part")
    die(env, env.where("x"))
    env.tick()
    env.submit({"y": []})
    env.tick()
    assert env.states("x", "y") == ["processing", "no-worker"]


def test_a_released_task_frees_its_worker() -> None:
    env = cluster("w0", "w1")
    env.submit({"x": []})
    die(env, env.where("x"))
    env.tick()
    here = env.where("x")
    env.release("x")
    env.tick()
    assert env.worker(here) in env.state.running
    assert not env.state.whole_workers


def test_the_reserved_worker_leaves() -> None:
    env = cluster("w0", "w1", "w2", nthreads=2)
    env.submit({"x": []}, annotations={"x": on(env, "w0")})
    die(env, "w0")
    env.tick()
    env.lose(env.where("x"), expected=True)
    assert env.states("x") == ["no-worker"]
    assert env.task("x").suspicious == 0
    env.tick()
    assert env.states("x") == ["processing"]


def test_a_lost_dependency_is_computed_first() -> None:
    env = cluster("w0", "w1", "w2")
    env.submit({"x": [], "y": ["x"]})
    env.finish("x")
    here = env.where("y")
    die(env, here)
    assert env.states("x", "y") == ["processing", "waiting"]
    env.finish("x")
    assert env.states("y") == ["no-worker"]
    env.tick()
    assert env.states("y") == ["processing"]


def test_no_workers_timeout_does_not_apply() -> None:
    env = cluster("w0", "w1", no_workers_timeout_seconds=5.0)
    env.submit({"x": []})
    die(env, env.where("x"))
    env.tick()
    env.submit({"y": []})
    assert env.states("y") == ["no-worker"]
    env.tick(20.0)
    assert env.states("x", "y") == ["processing", "no-worker"]
    env.finish("x")
    env.tick()
    assert env.states("y") == ["processing"]


def test_no_workers_timeout_applies_to_tasks_that_no_worker_may_run() -> None:
    env = cluster("w0", "w1", "w2", no_workers_timeout_seconds=5.0)
    restricted = {"x": AnnotationSet(workers=["w0"]), "y": AnnotationSet(workers=["elsewhere"])}
    env.submit({"x": [], "y": [], "z": []}, annotations=restricted)
    die(env, "w0")  # "x" waits for a whole worker, but only w0 may run it
    die(env, env.where("z"))
    assert env.states("x", "y", "z") == ["no-worker"] * 3
    env.tick()
    env.tick(20.0)
    assert env.states("x", "y", "z") == ["erred", "erred", "processing"]


def test_task_is_not_stolen_by_a_worker_with_other_tasks() -> None:
    env = cluster("w0", "w1", "w2", nthreads=2)
    env.submit({"x": []}, annotations={"x": on(env, "w0")})
    die(env, "w0", share=0.5)  # the nanny has not reported the cause yet
    ts = env.task("x")
    victim = env.worker(env.where("x"))
    thief = next(ws for ws in env.state.workers.values() if ws is not victim)
    turn = Turn(env.state, env.outbox, env.now, "", "balance")
    send_steal_request(turn, ts, victim, thief, 1.0, 0.5)
    report(env, "w0")
    assert ts in env.state.whole_workers.due
    env.give_back("x")
    assert env.states("x") == ["no-worker"]


def test_restart_ends_reservations() -> None:
    env = cluster("w0", "w1")
    env.submit({"x": []})
    die(env, env.where("x"))
    env.tick()
    env.feed(ReleaseAll())
    assert not env.state.whole_workers and all(
        ws in env.state.running for ws in env.state.workers.values()
    )


def test_no_worker_is_reserved_for_a_group_at_its_cap() -> None:
    env = cluster("w0")
    env.client("bob")
    env.submit({"x": []})
    die(env, "w0")
    env.feed(SetShare("alice", {"tasks": 0}))
    join(env, "w1")
    env.tick()
    env.submit({"y": []}, client="bob")
    assert env.states("x", "y") == ["no-worker", "processing"]
    found = explain(env.state, "x", env.now)["summary"]
    assert "ran out of memory; its share group alice has reached its cap of 0 tasks" in found
    env.feed(SetShare("alice", {"tasks": 1}))
    env.tick()
    assert list(env.state.whole_workers.reserved.values()) == [env.task("x")]
    env.feed(SetShare("alice", {"tasks": 0}))  # while the worker finishes y
    env.tick()
    assert not env.state.whole_workers.reserved
    env.feed(SetShare("alice", {"tasks": -1}))
    env.finish("y")
    env.tick()
    assert env.where("x") == "w1"


@pytest.mark.parametrize("cap", ["tasks", "threads"])
@pytest.mark.parametrize("n", [1, 2])
def test_a_group_with_a_cap_keeps_a_place(cap: str, n: int) -> None:
    env = cluster("w0", "w1", "w2", "w3", shares_groups={"alice": {cap: n}})
    env.submit({"x": []})
    die(env, env.where("x"))
    env.submit({f"y{i}": [] for i in range(9)})
    env.tick()
    env.tick()
    assert env.states("x") == ["no-worker"] and share(env, "alice").n_processing == n
    env.finish("y0")
    assert env.states("x") == ["no-worker"] and share(env, "alice").n_processing == n - 1
    found = explain(env.state, "y8", env.now)["summary"]
    assert "and a place kept for x, which waits for a whole worker" in found
    env.tick()
    assert env.states("x") == ["processing"] and share(env, "alice").n_processing == n
    assert env.worker(env.where("x")).reserved_for is env.task("x")
    env.finish("x")
    assert share(env, "alice").n_processing == n


def test_a_place_that_is_kept_is_given_up_with_its_task() -> None:
    env = cluster("w0", "w1", shares_groups={"alice": {"tasks": 1}})
    env.submit({"x": []})
    die(env, env.where("x"))
    env.submit({f"y{i}": [] for i in range(9)})
    env.tick()
    env.finish("y0")
    env.release("x")
    env.tick()
    assert share(env, "alice").n_processing == 1
    assert not env.state.whole_workers.first


def test_no_worker_stays_reserved_that_ends_too_soon() -> None:
    env = cluster("w0")
    env.submit({"x": []})
    die(env, "w0")
    join(env, "w1")
    env.submit({"y": []}, annotations={"y": on(env, "w1")})
    env.tick()
    assert env.worker("w1").reserved_for is env.task("x")
    env.heartbeat("w1", metrics={"ends_in": 0.1})
    env.finish("y")
    env.tick()
    assert env.states("x") == ["no-worker"]
    assert env.worker("w1").reserved_for is None


def test_no_worker_is_reserved_that_is_too_small_for_the_inputs() -> None:
    env = cluster()
    env.join("small", memory_limit=LIMIT // 4)
    for name in ("big1", "big2"):
        join(env, name)
    env.submit({"a": []}, annotations={"a": on(env, "big1")})
    env.finish("a", nbytes=LIMIT // 2)
    env.fetched("big2", "a")
    env.submit({"busy": []}, annotations={"busy": on(env, "big2")})
    env.submit({"x": ["a"]}, annotations={"x": on(env, "big1")})
    assert (env.where("busy"), env.where("x")) == ("big2", "big1")
    die(env, "big1")
    env.tick()
    assert env.states("x") == ["no-worker"]
    env.finish("busy")
    env.tick()
    assert env.where("x") == "big2"


def test_restrictions_that_are_set_later_end_the_reservation() -> None:
    env = cluster("w0", "w1", "w2")
    env.submit({"y0": [], "y1": [], "x": []})
    die(env, env.where("x"))
    env.tick()
    (reserved,) = (ws for ws in env.state.workers.values() if ws.reserved_for is not None)
    other = next(name for name in env.state.workers if name != reserved.address)
    env.feed(RestrictionsSet({"x": [other]}))
    env.finish("y0", "y1")
    env.tick()
    assert env.where("x") == other


def test_no_worker_may_run_a_task_with_inputs() -> None:
    env = cluster("w0", "w1")
    env.submit({"a": []}, annotations={"a": on(env, "w0")})
    env.finish("a", nbytes=LIMIT // 2)
    env.submit({"x": ["a"]}, annotations={"x": AnnotationSet(workers=["w1"])})
    die(env, env.where("x"))
    env.feed(RestrictionsSet({"x": ["absent"]}))
    env.tick()
    assert env.states("x") == ["no-worker"]
    join(env, "absent")
    env.tick()
    assert env.where("x") == "absent"
