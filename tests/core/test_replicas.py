"""Replicas: copies that are added, removed and requested; scattered data."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from paceline.protocol import messages as m
from paceline.scheduler.core.stimuli import (
    AnnotationSet,
    DataPlaced,
    ReplicasAdded,
    ReplicasLost,
    WorkerRemoved,
)
from paceline.testing import Env


@pytest.fixture
def shared(duo: Env) -> Env:
    """Return an environment with x in memory on w0, desired, and its dependent y processing on w1."""
    duo.submit({"x": []})
    duo.finish("x", nbytes=100)
    duo.submit({"y": ["x"]}, annotations=restricted("y", "w1"))
    duo.take()
    return duo


def restricted(key: str, *workers: str) -> dict[str, object]:
    return {key: AnnotationSet(workers=list(workers))}


def test_fetched_replica(shared: Env) -> None:
    assert shared.state.network_occ == 100
    shared.fetched("w1", "x")
    shared.expect()
    assert [ws.address for ws in shared.task("x").who_has] == ["w0", "w1"]
    assert shared.state.network_occ == 0
    assert [ws.nbytes for ws in shared.state.workers.values()] == [100, 100]
    shared.fetched("w1", "x")
    assert len(shared.task("x").who_has) == 2


def test_replica_of_an_unknown_task_is_removed(shared: Env) -> None:
    shared.fetched("w1", "gone", "y", "x")
    shared.expect("w1: remove-replicas gone y")


def test_replica_on_removed_worker(shared: Env) -> None:
    shared.fetched("nobody", "x")
    shared.expect()


def test_all_replicas_are_freed(shared: Env) -> None:
    shared.fetched("w1", "x")
    shared.finish("y")
    shared.take()
    shared.release("x", "y")
    shared.expect("w0: free-keys x", "w1: free-keys y x")
    assert not shared.state.replicated_tasks


def test_one_of_several_replicas_is_dropped(shared: Env) -> None:
    shared.fetched("w1", "x")
    shared.feed(m.ReleaseWorkerData(key="x"), "w0")
    shared.expect()
    assert [ws.address for ws in shared.task("x").who_has] == ["w1"]
    assert not shared.state.replicated_tasks


def test_last_replica_is_dropped(shared: Env) -> None:
    shared.feed(m.ReleaseWorkerData(key="x"), "w0")
    shared.expect("alice: lost-data x", "w1: free-keys y", "w0: compute-task x")
    assert shared.states("x", "y") == ["processing", "waiting"]
    shared.work()
    assert shared.states("x", "y") == ["memory", "memory"]


def test_drop_of_known_replica(shared: Env) -> None:
    for source, key in (("w1", "x"), ("w0", "y"), ("w0", "gone"), ("nobody", "x")):
        shared.feed(m.ReleaseWorkerData(key=key), source)
    shared.expect()


def test_requests_add_and_remove_replicas(shared: Env) -> None:
    shared.feed(ReplicasAdded("w1", ["x"]))
    assert len(shared.task("x").who_has) == 2
    shared.feed(ReplicasLost("w1", ["x"]))
    assert len(shared.task("x").who_has) == 1
    shared.feed(ReplicasAdded("nobody", ["x"]))
    shared.feed(ReplicasLost("nobody", ["x"]))
    shared.expect()


def test_request_refresh_who_has(shared: Env) -> None:
    shared.fetched("w1", "x")
    shared.feed(m.RequestRefreshWhoHas(keys=["x", "y", "gone"]), "w1")
    shared.expect("w1: refresh-who-has x@w0,w1 y@", "w1: free-keys gone")
    shared.feed(m.RequestRefreshWhoHas(keys=["x"]), "nobody")
    shared.expect()


# ------------------------------------------------------------------ scattered data


def test_scattered_data(duo: Env) -> None:
    duo.client("bob")
    duo.desire("d", client="bob")
    duo.feed(DataPlaced({"d": ["w0", "w1"]}, {"d": 50}, client="alice"))
    duo.expect("bob: key-in-memory d", "alice: key-in-memory d")
    ts = duo.task("d")
    assert (ts.state, ts.nbytes, ts.run_spec) == ("memory", 50, None)
    assert ts in duo.state.replicated_tasks
    duo.submit({"y": ["d"]})
    duo.expect("w0: compute-task y with d@w0,w1")


def test_scattered_data_of_removed_workers(duo: Env) -> None:
    duo.feed(DataPlaced({"d": ["nobody"]}, {"d": 50}, client="alice"))
    duo.expect("alice: cancelled-keys d (lost data)")
    assert not duo.state.tasks


def test_data_under_an_invalid_key_is_ignored(duo: Env) -> None:
    duo.feed(DataPlaced({(): ["w0"], "d": ["w0"]}, {(): 1, "d": 50}))
    assert list(duo.state.tasks) == ["d"]


def test_lost_scattered_data_cannot_be_recomputed(duo: Env) -> None:
    duo.feed(DataPlaced({"d": ["w0"]}, {"d": 50}, client="alice"))
    duo.submit({"y": ["d"], "z": ["y"]}, annotations=restricted("y", "w1"))
    duo.take()
    duo.lose("w0")
    sent = duo.take()
    assert "alice: cancelled-keys d (already forgotten)" in sent
    assert "alice: cancelled-keys z (already forgotten)" in sent
    assert "w1: free-keys y" in sent
    assert not duo.state.tasks
    assert any("lose scattered data, which can't be recovered: {'d'}" in t for _, t in duo.lines)


def test_result_survives_loss_of_its_scattered_input(duo: Env) -> None:
    duo.feed(DataPlaced({"d": ["w0"]}, {"d": 50}, client="alice"))
    duo.submit({"y": ["d"]}, annotations=restricted("y", "w1"))
    duo.finish("y")
    duo.take()
    duo.lose("w0")
    assert duo.states("d", "y") == ["forgotten", "memory"]
    assert duo.task("y").has_lost_dependencies
    duo.take()
    duo.lose("w1")
    assert "alice: cancelled-keys y (already forgotten)" in duo.take()
    assert not duo.state.tasks


def test_scattered_data_replaces_a_running_task(duo: Env) -> None:
    duo.submit({"x": [], "y": ["x"]}, want=["x", "y"])
    duo.take()
    duo.feed(DataPlaced({"x": ["w1"]}, {"x": 8}, client="alice"))
    sent = duo.take()
    assert "w0: free-keys x" in sent
    assert "w1: compute-task y with x@w1" in sent
    assert duo.states("x", "y") == ["memory", "processing"]


@pytest.mark.parametrize("state", ["waiting", "no-worker", "queued", "erred"])
def test_scattered_data_for_a_task_in_any_state(state: str) -> None:
    env = Env(worker_saturation=1.0)
    env.client("alice")
    env.join("w0")
    graph: dict[object, list[object]] = {"x": []}
    rows: dict[str, object] = {}
    if state == "waiting":
        graph = {"a": [], "x": ["a"]}
    elif state == "no-worker":
        rows = restricted("x", "elsewhere")
    elif state == "queued":
        graph = {("x", i): [] for i in range(4)}
    env.submit(graph, annotations=rows)
    key: object = ("x", 3) if state == "queued" else "x"
    if state == "erred":
        env.fail("x")
    assert env.states(key) == [state]
    env.take()
    env.feed(DataPlaced({key: ["w0"]}, {key: 8}, client="alice"))
    assert env.states(key) == ["memory"]
    assert not [line for line in env.take() if line == f"w0: free-keys {key}"]
    env.release(key)
    assert env.states(key) == ["forgotten"]


@pytest.mark.parametrize("address", ["w0", "w1"])
def test_worker_that_receives_scattered_data_keeps_it(duo: Env, address: str) -> None:
    duo.submit({"x": []})
    here = duo.where("x")
    duo.take()
    duo.feed(DataPlaced({"x": [address]}, {"x": 8}, client="alice"))
    freed = [line for line in duo.take() if "free-keys" in line]
    assert freed == ([] if address == here else [f"{here}: free-keys x"])


def test_size_of_data_changes_while_a_worker_fetches_it(duo: Env) -> None:
    duo.feed(DataPlaced({"x": ["w0"], "y": ["w0"]}, {"x": 100, "y": 10}, client="alice"))
    duo.submit({"z": ["x", "y"]}, annotations=restricted("z", "w1"))
    assert duo.worker("w1").network_occ == 110
    duo.feed(DataPlaced({"x": ["w0"]}, {"x": 1000}, client="alice"))
    assert duo.worker("w1").network_occ == 1010
    duo.fetched("w1", "x")
    assert duo.worker("w1").network_occ == duo.state.network_occ == 10


def test_replica_that_cannot_be_recomputed_is_forgotten(shared: Env) -> None:
    """Otherwise a worker that has to fetch it requests its location every second (found with stock's state machine)."""
    shared.feed(m.RequestRefreshWhoHas(keys=["y"]), "w0")
    shared.expect("w0: free-keys y")
    shared.feed(m.RequestRefreshWhoHas(keys=["y"]), "w1")
    shared.expect("w1: refresh-who-has y@")


def test_a_replica_arrives_before_lost_data_is_released(make_env: Callable[..., Env]) -> None:
    """The tasks that wait for the data start."""
    env = make_env(turn_tasks_max=1)
    env.join("w0", "w1")
    on = {key: AnnotationSet(workers=["w0" if key in "ab" else "w1"]) for key in "abyz"}
    graph = {"a": [], "b": [], "y": ["a"], "z": ["y"]}
    env.submit(graph, want=["a", "b", "z"], annotations=on)
    env.work()
    assert env.states("a", "b", "y") == ["memory", "memory", "released"]
    env.turn(WorkerRemoved("w0"), "w0")
    env.turn(m.ClientDesiresKeys(keys=["y"], client="alice"), "alice")
    assert env.states("a", "y") == ["memory", "waiting"]
    env.fetched("w1", "a")
    assert env.states("a", "y") == ["memory", "processing"]
